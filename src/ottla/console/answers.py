"""From a request to an answer: work that may block runs in a thread, and what goes wrong becomes one line in JSON.

Guards: nobody who uses the console sees a traceback; a problem that nobody foresaw is in the log, with one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from inspect import iscoroutinefunction

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ottla.console.asking import BadRequest, Body, status_of
from ottla.model import KafkaError

log = logging.getLogger("ottla.console")

Endpoint = Callable[[Request], Awaitable[Response]]


def reading(work: Callable[[Request], object]) -> Endpoint:
    """An endpoint that answers with what `work` finds, or with its response. Unless that is a coroutine it may block."""

    async def endpoint(request: Request) -> Response:
        return await _answer(work, request)

    return endpoint


def acting(work: Callable[[Request, Body], object]) -> Endpoint:
    """An endpoint that does something with what it was given."""

    async def endpoint(request: Request) -> Response:
        try:
            fields = json.loads(await request.body() or b"{}")
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            return _problem(HTTPStatus.BAD_REQUEST, "The request is not a JSON object.")
        return await _answer(work, request, Body(fields))

    return endpoint


async def _answer(work: Callable[..., object], *given: object) -> Response:
    try:
        found = await work(*given) if iscoroutinefunction(work) else await run_in_threadpool(work, *given)
        return found if isinstance(found, Response) else JSONResponse(found)
    except BadRequest as problem:
        return _problem(problem.status, str(problem))
    except KafkaError as problem:
        return _problem(status_of(problem), problem.message or problem.error.name)
    except Exception:
        log.exception("A request failed")
        return _problem(HTTPStatus.INTERNAL_SERVER_ERROR, "The console failed at this; its log says where.")


def _problem(status: HTTPStatus, why: str) -> Response:
    return JSONResponse({"error": why}, status)
