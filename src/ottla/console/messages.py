"""Messages of a topic: search, follow, look at one, send one. The reader process does it; here is what pages see of it."""

from __future__ import annotations

import json
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ottla.console import state
from ottla.console.asking import BadRequest, Body
from ottla.console.process import Job
from ottla.console.streams import encoded, event, respond

_RESUMES = 64


class Resumes:
    """What searches left that found enough: a page that wants more comes back with a name for it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, object] = OrderedDict()

    def keep(self, left: object) -> str:
        """A name for what is left."""
        name = secrets.token_urlsafe(9)
        self._kept[name] = left
        while len(self._kept) > _RESUMES:
            self._kept.popitem(last=False)
        return name

    def get(self, name: str) -> object:
        if name not in self._kept:
            raise BadRequest("That search is too long ago to go on with: begin it again.")
        return self._kept[name]


_resumes = Resumes()


async def search(request: Request) -> Response:
    """Hits and progress as events; the last one says how to go on."""
    name = request.query_params.get("resume")
    return await _stream(request, "search", lambda: {"left": _resumes.get(name)} if name else {})


async def follow(request: Request) -> Response:
    """What is written from now on, as events."""
    return await _stream(request, "follow", dict)


async def _stream(request: Request, kind: str, more: Callable[[], Mapping[str, Any]]) -> Response:
    """What a job says; where it is refused, an answer with the reason."""
    try:
        asked = {"topic": request.path_params["topic"], "query": dict(request.query_params), **more()}
        return respond(_events(await state.of(request).reader.follow(kind, asked)))
    except BadRequest as problem:
        return JSONResponse({"error": str(problem)}, problem.status)


async def _events(job: Job) -> AsyncIterator[bytes]:
    try:
        async for frame in job.words():
            if frame.kind == "done":
                done = json.loads(frame.text)
                left = done.pop("left")
                yield event("done", {**done, "resume": None if left is None else _resumes.keep(left)})
            else:
                yield encoded(frame.kind, frame.text)
    finally:
        job.end()


async def one(request: Request) -> Response:
    """A message whole."""
    return _json(await state.of(request).reader.ask("one", request.path_params))


async def send(request: Request, body: Body) -> Response:
    """Write one message; where it came to stand."""
    asked = {"topic": request.path_params["topic"], "body": body.fields}
    return _json(await state.of(request).reader.ask("send", asked))


def _json(text: bytes) -> Response:
    """A message may be large: what is JSON already is not read again."""
    return Response(text, media_type="application/json")
