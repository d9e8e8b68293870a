"""The console as an application: which path leads where."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ottla import __version__
from ottla.console import disks, groups, messages, overview, state, topics, transactions
from ottla.console.answers import acting, reading
from ottla.console.security import Guard
from ottla.console.state import Console
from ottla.console.streams import event, respond
from ottla.console.view import problems

_STATIC = os.path.join(os.path.dirname(__file__), "static")
_WRONG_TOKEN_COSTS = 0.5
_KEEP_ALIVE = 20.0


def build(console: Console) -> Starlette:
    """The application of a console; the sampler runs while it does."""

    @contextlib.asynccontextmanager
    async def living(_app: Starlette) -> AsyncIterator[None]:
        console.sampler.start()
        yield
        console.close()

    topic = "/topics/{topic}"
    api = [
        Route("/session", reading(_session)),
        Route("/login", _log_in, methods=["POST"]),
        Route("/events", _events),
        Route("/overview", reading(overview.overview)),
        Route("/topics", reading(topics.list_topics)),
        Route("/topics", acting(topics.create), methods=["POST"]),
        Route(topic, reading(topics.describe_topic)),
        Route(topic, acting(topics.delete), methods=["DELETE"]),
        Route(topic + "/settings", reading(topics.describe_settings)),
        Route(topic + "/settings", acting(topics.change_settings), methods=["POST"]),
        Route(topic + "/partitions", acting(topics.add_partitions), methods=["POST"]),
        Route(topic + "/search", messages.search),
        Route(topic + "/tail", messages.follow),
        Route(topic + "/messages", acting(messages.send), methods=["POST"]),
        Route(topic + "/messages/{partition}/{offset}", reading(messages.one)),
        Route("/groups", reading(groups.list_all)),
        # A group may be called anything, slashes included: its name goes into the query.
        Route("/group", reading(groups.describe)),
        Route("/group", acting(groups.delete), methods=["DELETE"]),
        Route("/group/preview", reading(groups.preview)),
        Route("/group/offsets", acting(groups.apply), methods=["POST"]),
        Route("/transactions", reading(transactions.describe)),
        Route("/transactions/abort", acting(transactions.abort), methods=["POST"]),
        Route("/disks", reading(disks.describe)),
        Route("/disks/{broker}/{topic}/{partition}", reading(disks.describe_log)),
    ]
    app = Starlette(
        routes=[Mount("/api", routes=api), Mount("/", StaticFiles(directory=_STATIC, html=True))],
        middleware=[Middleware(Guard, rules=console.rules)],
        lifespan=living,
    )
    app.state.console = console
    return app


def _session(request: Request) -> object:
    """What a page needs to know before anything else. Only our own pages can read it."""
    console = state.of(request)
    return {
        "csrf": console.rules.csrf,
        "readOnly": console.rules.read_only,
        "version": __version__,
        "bootstrap": ",".join(map(str, console.cluster.settings.bootstrap)),
    }


async def _log_in(request: Request) -> Response:
    """The token for a cookie. A wrong one takes its time."""
    rules = state.of(request).rules
    try:
        token = json.loads(await request.body())["token"]
    except (ValueError, KeyError, TypeError):
        token = None
    if not isinstance(token, str) or not rules.knows(token):
        await asyncio.sleep(_WRONG_TOKEN_COSTS)
        return JSONResponse({"error": "That is not the token that the console was started with."}, HTTPStatus.UNAUTHORIZED)
    answer = JSONResponse({})
    answer.set_cookie(rules.cookie, rules.session, httponly=True, samesite="strict", path="/")
    return answer


async def _events(request: Request) -> Response:
    """A word after each look at the cluster, until the page is gone."""
    console = state.of(request)
    loop, news = asyncio.get_running_loop(), asyncio.Event()

    async def listen() -> AsyncIterator[bytes]:
        stop = console.sampler.listen(lambda: loop.call_soon_threadsafe(news.set))
        try:
            if console.sampler.number:
                yield _sample(console)
            while True:
                try:
                    async with asyncio.timeout(_KEEP_ALIVE):
                        await news.wait()
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                news.clear()
                yield _sample(console)
        finally:
            stop()

    return respond(listen())


def _sample(console: Console) -> bytes:
    sampler = console.sampler
    view = sampler.view
    found = problems(view) if view is not None else []
    return event(
        "sample",
        {
            "number": sampler.number,
            "taken": view.taken_ms if view is not None else 0,
            "problem": sampler.problem,
            "problems": len(found) + (sampler.problem is not None),
        },
    )
