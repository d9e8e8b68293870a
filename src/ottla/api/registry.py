"""From a frame to a handler and back: which APIs are served, in which versions, and what happens when one goes wrong.

A handler is declared with `@handles(SomeRequest)`; ApiVersions is computed from those declarations, so that what is
advertised is what is served. A plain function answers at once (or returns LATER and answers through `ctx.answer`); a
coroutine gets a task. Guards: one request in, at most one answer out; a client's mistake ends in an error code or a closed
connection and one log line, a mistake of ours in UNKNOWN_SERVER_ERROR and a traceback for the operator, never in a broken
loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ottla.clock import stopwatch
from ottla.metadata.image import Endpoint, Image
from ottla.metrics import RequestCounters
from ottla.model import Error, KafkaError
from ottla.replication.waiting import Pending
from ottla.wire.apis import RESPONSES, ApiKey
from ottla.wire.frame import RequestHeader, encode_response, frame_body, read_request_header
from ottla.wire.schema import Malformed, Request, Response

if TYPE_CHECKING:
    from ottla.api.faults import Fault, Faults
    from ottla.api.services import Services
    from ottla.coordinator.groups import GroupCoordinator
    from ottla.coordinator.transactions import TransactionCoordinator

log = logging.getLogger("ottla.api")

LATER: Final = object()
"""What a plain handler returns when it will answer through `ctx.answer`."""
NO_ANSWER: Final = object()
"""What a plain handler returns when the client wants no answer (acks=0)."""
DISCONNECT: Final = object()
"""What a plain handler returns when the only way to tell the client is to hang up."""
_WORTH_TELLING: Final = 0.0001  # seconds behind other requests of the same connection that count as waiting

Decode = Callable[[Any, int], tuple[Any, int]]
Handler = Callable[["Context", Any], Any]
_R = TypeVar("_R", bound=Handler)
_S = TypeVar("_S", bound=Callable[[Any, Error, str], Response | None])

HANDLERS: dict[int, tuple[type[Request], Handler]] = {}
READERS: dict[tuple[int, int], Decode] = {}
ERROR_SHAPES: dict[int, Callable[[Any, Error, str], Response | None]] = {}


def handles(request: type[Request]) -> Callable[[_R], _R]:
    """Declare the handler of an API, in all the versions that its table declares."""

    def declare(handler: _R) -> _R:
        HANDLERS[request.api_key] = (request, handler)
        return handler

    return declare


def reads(request: type[Request], version: int, decode: Decode) -> None:
    """Declare another way to read a request in one version than by its table; the handler knows what comes of it."""
    READERS[request.api_key, version] = decode


def shapes_errors_of(request: type[Request]) -> Callable[[_S], _S]:
    """Declare how an API whose answer has no error code of its own says that the whole request failed; None: by a hang-up."""

    def declare(shape: _S) -> _S:
        ERROR_SHAPES[request.api_key] = shape
        return shape

    return declare


class Peer(Protocol):
    """What a handler may know of a connection; the network layer has the rest."""

    host: str
    port: int
    listener: str
    waiter: Pending | None
    closed: bool
    last_active: float
    """When something came from it last, by the `stopwatch`; 0 where nobody measures."""
    answering: RequestCounters | None
    """What counts the answer that is on its way, if it takes a while to leave."""

    def answer(self, parts: Sequence[Any]) -> None: ...
    def owe(self) -> Peer: ...
    def no_answer(self) -> None: ...
    def close(self) -> None: ...


class Context:
    """One request on its way: who asks, through what, and what the broker has to answer with."""

    __slots__ = ("_begun", "_counted", "_counters", "_handled", "connection", "header", "services", "version")

    def __init__(self, services: Services, connection: Peer, header: RequestHeader, counters: RequestCounters) -> None:
        self.services = services
        self.connection = connection
        self.header = header
        self.version = header.api_version
        self._counters = counters
        self._begun: float = stopwatch()
        self._handled = 0.0
        self._counted = False

    @property
    def image(self) -> Image:
        return self.services.metadata.image

    @property
    def broker_id(self) -> int:
        return self.services.broker_id

    @property
    def client_host(self) -> str:
        return self.connection.host

    @property
    def groups(self) -> GroupCoordinator:
        return self.services.groups

    @property
    def transactions(self) -> TransactionCoordinator:
        return self.services.transactions

    def node(self, broker_id: int) -> Endpoint | None:
        """Where a client that came through this listener reaches a broker."""
        broker = self.services.metadata.image.brokers.get(broker_id)
        return broker.endpoints.get(self.connection.listener) if broker is not None else None

    def finish(self, response: Any) -> None:
        """Do what a handler returned: an answer, or one of the three words that stand for none."""
        if response is LATER:
            self.wait()
        elif response is NO_ANSWER:
            self.count()
            self.connection.no_answer()
        elif response is DISCONNECT:
            self.connection.close()
        else:
            self.answer(response)

    def wait(self) -> None:
        """The handler is done, and the answer waits for something else."""
        if not self._counted and not self._handled:
            self._handled = stopwatch()

    def count(self) -> None:
        """The request has its answer: where did its time go?"""
        self._counted = True
        now: float = stopwatch()
        counters, begun, handled = self._counters, self._begun, self._handled
        came = self.connection.last_active
        queued = begun - came if came else 0.0
        if queued < _WORTH_TELLING:
            if not handled:
                counters.quick.add(now - begun)
                return
            queued = 0.0
        else:
            counters.queue.add(queued)
        counters.total.add(now - begun + queued)
        if handled:
            counters.local.add(handled - begun)
            counters.remote.add(now - handled)
        else:
            counters.local.add(now - begun)

    def failed(self, error: Error) -> None:
        """The request as a whole ends in an error."""
        self._counters.failed(error)

    def later(self, wait: asyncio.Future[Any], request: Request, finish: Callable[[], Response]) -> Any:
        """Answer with what `finish` makes when `wait` is over; it may raise what a handler may. For plain handlers."""
        wait.add_done_callback(lambda done: self._finish_later(done, request, finish))
        return LATER

    def _finish_later(self, done: asyncio.Future[Any], request: Request, finish: Callable[[], Response]) -> None:
        if self.connection.closed:
            if not done.cancelled():
                done.exception()  # nobody is left to tell: looked at, so that it is not called forgotten
            return
        try:
            self.answer(finish())
        except Exception as problem:
            answer_error(self, request, problem)

    def answer_with(self, body: bytes, *, tagged: bool) -> Any:
        """Send an answer whose bytes are made already. For plain handlers."""
        self.connection.answering = self._counters
        self.connection.answer([frame_body(self.header.correlation_id, body, tagged)])
        self.count()
        return LATER

    def answer(self, response: Response) -> None:
        """Send the answer to this request."""
        self.connection.answering = self._counters
        self.connection.answer(encode_response(self.header.correlation_id, response, self.version))
        self.count()


class Route:
    """One API in one version: everything that does not change from request to request."""

    __slots__ = ("counters", "decode", "handler", "is_async", "request")

    def __init__(self, request: type[Request], version: int, handler: Handler, counters: RequestCounters) -> None:
        self.request = request
        self.counters = counters
        self.decode: Decode = READERS.get((request.api_key, version)) or request.decoder(version)
        self.handler = handler
        self.is_async = inspect.iscoroutinefunction(handler)


class Registry:
    """The dispatcher that connections hand their frames to."""

    def __init__(self, services: Services, faults: Faults) -> None:
        self._services = services
        self._faults = faults
        self._routes: dict[tuple[int, int], Route] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.counters: dict[int, RequestCounters] = {api_key: RequestCounters() for api_key in HANDLERS}
        """By API key."""

    def __call__(self, connection: Peer, frame: memoryview) -> None:
        try:
            header, at = read_request_header(frame)
        except Malformed as problem:
            _hang_up(connection, f"a request header that cannot be read ({problem})")
            return
        route = self._routes.get((header.api_key, header.api_version)) or self._route(header)
        if route is None:
            self._refuse_version(connection, header)
            return
        counters = route.counters
        counters.requests[header.api_version] += 1
        ctx = Context(self._services, connection, header, counters)
        if self._faults.planned and (fault := self._faults.take(header.api_key)) is not None:
            self._misbehave(fault, ctx, route, bytes(frame), at)
        else:
            self._handle(ctx, route, frame, at)

    def _handle(self, ctx: Context, route: Route, frame: memoryview | bytes, at: int) -> None:
        """The way of every request; flat, because it is taken tens of thousands of times a second."""
        try:
            request, _ = route.decode(bytes(frame) if route.is_async else frame, at)
        except Malformed as problem:
            self._unreadable(ctx, problem)
            return
        if route.is_async:
            ctx.wait()
            self._spawn(self._answer_later(ctx, route, request))
            return
        try:
            response = route.handler(ctx, request)
            if response.__class__ is object:  # LATER, NO_ANSWER or DISCONNECT
                ctx.finish(response)
            else:
                ctx.answer(response)
        except Exception as problem:
            answer_error(ctx, request, problem)

    async def _answer_later(self, ctx: Context, route: Route, request: Request) -> None:
        try:
            ctx.finish(await route.handler(ctx, request))
        except Exception as problem:
            answer_error(ctx, request, problem)

    def _unreadable(self, ctx: Context, problem: Malformed) -> None:
        _hang_up(ctx.connection, f"{_name(ctx.header)} that cannot be read ({problem})")

    def _misbehave(self, fault: Fault, ctx: Context, route: Route, frame: bytes, at: int) -> None:
        log.info("Planned for a test: %s meets %s", _name(ctx.header), fault)

        def act() -> None:
            if ctx.connection.closed:
                return
            if fault.disconnect:
                ctx.connection.close()
            elif fault.error is None:
                self._handle(ctx, route, memoryview(frame), at)
            else:
                try:
                    request, _ = route.decode(frame, at)
                except Malformed as problem:
                    self._unreadable(ctx, problem)
                    return
                answer_error(ctx, request, KafkaError(fault.error, "Planned for a test."))

        if fault.delay:
            self._services.timer(fault.delay, act)
        else:
            act()

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self) -> None:
        """End what is still being worked on: the broker stops."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _route(self, header: RequestHeader) -> Route | None:
        declared = HANDLERS.get(header.api_key)
        if declared is None:
            return None
        request, handler = declared
        if not request.min_version <= header.api_version <= request.max_version:
            return None
        counters = self.counters[header.api_key]
        counters.requests[header.api_version] = 0
        route = self._routes[header.api_key, header.api_version] = Route(request, header.api_version, handler, counters)
        return route

    def _refuse_version(self, connection: Peer, header: RequestHeader) -> None:
        """ApiVersions must be answered in any version, for it is how a client learns ours; all else is hung up on."""
        if header.api_key != ApiKey.API_VERSIONS:
            _hang_up(connection, f"{_name(header)}, which is not served")
            return
        from ottla.api.versions import supported_versions  # noqa: PLC0415 - it reads this module's table

        response = supported_versions(Error.UNSUPPORTED_VERSION)
        connection.answer(encode_response(header.correlation_id, response, 0))


def answer_error(ctx: Context, request: Request, problem: Exception) -> None:
    """Tell the client, in the shape that its request allows, that it went wrong, and the operator if it was our fault."""
    if isinstance(problem, KafkaError):
        error, message = problem.error, problem.message
    else:
        log.error("%s from %s failed", _name(ctx.header), ctx.client_host, exc_info=problem)
        error, message = Error.UNKNOWN_SERVER_ERROR, "The broker failed on this request; its log says why."
    ctx.failed(error)
    shape = ERROR_SHAPES.get(ctx.header.api_key)
    try:
        response = shape(request, error, message) if shape else _with_error(ctx.header.api_key, error, message)
        if response is None:
            _hang_up(ctx.connection, f"{_name(ctx.header)}, which ended in {error.name} ({message})")
        else:
            ctx.answer(response)
    except Exception:
        log.exception("The error answer to %s could not be made", _name(ctx.header))
        ctx.connection.close()


def _hang_up(connection: Peer, what: str) -> None:
    log.warning("Closing %s:%d: it sent %s", connection.host, connection.port, what)
    connection.close()


def _with_error(api_key: int, error: Error, message: str) -> Response | None:
    """The answer that is nothing but an error; None where the API's answer has no place for one."""
    response_type = RESPONSES[api_key]
    names = {field.name for field in response_type.__fields__}
    if "error_code" not in names:
        return None
    return response_type(error_code=error, **({"error_message": message} if "error_message" in names else {}))


def _name(header: RequestHeader) -> str:
    try:
        name = ApiKey(header.api_key).name
    except ValueError:
        name = f"API key {header.api_key}"
    return f"{name} version {header.api_version}"
