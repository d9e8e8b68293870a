"""Time and processes of the simulation: an event loop that waits for nothing.

Guards: the same seed gives the same run. There is no selector and no thread; callbacks run in the order in which they were
scheduled, timers in the order of their times and then of their making, and when nothing is ready time jumps to the next timer.
Whatever is scheduled belongs to the process in whose context it was scheduled (`Process`): of one that is dead nothing runs any
more, just as after kill -9 (no `finally`, no clean-up), and of one that is paused everything waits until it is woken. Limits on
steps and on virtual time end a run that would not end by itself.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
from asyncio import Handle, TimerHandle
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

TURN = 2e-6  # seconds that one turn of the loop takes: a loop that only gives way must not stop time
EPOCH_MS = 1_600_000_000_000  # wall time at virtual second 0: before any file that the simulation makes


class Overrun(Exception):
    """The run took more steps or more virtual time than it may."""


class Stuck(Exception):
    """Nothing is left that could ever happen, and what was waited for has not."""


class Process:
    """One process of the simulation: a life of a broker, or a client. A restarted broker is another one."""

    __slots__ = ("alive", "context", "held", "host", "name", "number", "paused")

    def __init__(self, name: str, host: str, number: int = -1) -> None:
        self.name = name
        self.host = host
        self.number = number
        """The broker's id; -1 for a client."""
        self.alive = True
        self.paused = False
        self.held: list[Handle] = []
        self.context = copy_context()
        self.context.run(_PROCESS.set, self)

    def __repr__(self) -> str:
        return self.name


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def current_process() -> Process | None:
    """Whose code runs now; None for the simulation itself."""
    return _PROCESS.get()


class SimTask(asyncio.Task[Any]):
    """A task, hashed by the order of making: a set of them is gone through in the same order in every run."""

    def __init__(self, work: Any, *, loop: SimLoop, name: str | None, context: Context | None) -> None:
        self._number = loop.next_number()
        self.process = (context or copy_context()).get(_PROCESS)
        super().__init__(work, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._number


class SimFuture(asyncio.Future[Any]):
    """A future, hashed by the order of making too."""

    def __init__(self, *, loop: SimLoop) -> None:
        self._number = loop.next_number()
        self.process = _PROCESS.get()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class SimLoop(asyncio.AbstractEventLoop):
    """The loop of one run. All brokers and clients of the run share it."""

    def __init__(self, *, max_seconds: float, max_steps: int) -> None:
        self.steps = 0
        self.problems: list[str] = []
        """What callbacks and tasks raised and nobody caught."""
        self._time = 0.0
        self._max_time = max_seconds
        self._max_steps = max_steps
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, TimerHandle]] = []
        self._cancelled = 0
        self._made = 0
        self._tasks: list[SimTask] = []
        self._prune_at = 4096
        self._running = False
        self._closed = False

    # ---- what asyncio asks of a loop -------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._time

    def call_soon(self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None) -> Handle:
        handle = Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # there are no threads

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> TimerHandle:
        return self.call_at(self._time + max(delay, 0.0), callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> TimerHandle:
        handle = TimerHandle(when, callback, args, self, context)
        handle._scheduled = True  # type: ignore[attr-defined]  # asks to be told when it is cancelled
        heapq.heappush(self._timers, (when, self.next_number(), handle))
        return handle

    def _timer_handle_cancelled(self, _handle: TimerHandle) -> None:
        self._cancelled += 1
        if self._cancelled > 1000 and self._cancelled * 2 > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(loop=self)

    def next_number(self) -> int:
        """A number that nothing else in this run has."""
        self._made += 1
        return self._made

    def create_task(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[_T]:
        task = SimTask(coro, loop=self, name=name, context=context)
        self._tasks.append(task)  # held: one that only the dead remember must not be taken away, which would run its `finally`
        if len(self._tasks) > self._prune_at:
            self._tasks = [one for one in self._tasks if not one.done()]
            self._prune_at = 2 * len(self._tasks) + 4096
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        owner = getattr(context.get("future") or context.get("task"), "process", None) or current_process()
        if not self._closed and (owner is None or owner.alive):
            self.problems.append(f"{owner}: {context.get('message')}: {context.get('exception')!r}")

    def stop(self) -> None:
        raise RuntimeError("a simulation ends when what it runs for is done")

    def close(self) -> None:
        """Forget everything: what still waits will wait for ever."""
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                work = task.get_coro()
                if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                    work.close()  # it never began: Python would complain

    # ---- running ---------------------------------------------------------------------------------------------------------

    def run_until_complete(self, future: Any) -> Any:
        """Run until this is done; its result. Raises Overrun and Stuck."""
        self._running = True
        asyncio._set_running_loop(self)
        try:
            waited = asyncio.ensure_future(future, loop=self)
            while not waited.done():
                self._turn()
            return waited.result()
        finally:
            asyncio._set_running_loop(None)
            self._running = False

    def _turn(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready:
            if not timers:
                raise Stuck("nothing is left that could happen")
            self._time = max(self._time, timers[0][0])
        self._time += TURN
        while timers and timers[0][0] <= self._time:
            handle = heapq.heappop(timers)[2]
            handle._scheduled = False  # type: ignore[attr-defined]
            ready.append(handle)
        if self.steps > self._max_steps:
            raise Overrun(f"more than {self._max_steps} steps")
        if self._time > self._max_time:
            raise Overrun(f"more than {self._max_time:g} s of virtual time")
        for _ in range(len(ready)):
            one = ready.popleft()
            if one.cancelled():
                continue
            process = one._context.get(_PROCESS)  # type: ignore[attr-defined]
            if process is not None and not process.alive:
                continue
            if process is not None and process.paused:
                process.held.append(one)
                continue
            self.steps += 1
            one._run()

    def pause(self, process: Process) -> None:
        """As SIGSTOP does: from now on everything of the process waits."""
        process.paused = True

    def resume(self, process: Process) -> None:
        """As SIGCONT does: what was held comes first, in its order."""
        process.paused = False
        held, process.held = process.held, []
        self._ready.extend(held)

    def kill(self, process: Process) -> None:
        """As SIGKILL does: nothing of the process runs any more."""
        process.alive = False
        process.held = []


def new_loop(*, max_seconds: float = 3600.0, max_steps: int = 5_000_000) -> SimLoop:
    """A loop for one run. What it does not offer (sockets, signals, threads) nobody in the simulation may use."""
    return SimLoop(max_seconds=max_seconds, max_steps=max_steps)  # type: ignore[abstract]


class SimClock:
    """A process's clock: the loop's time; the wall clocks of different machines may differ."""

    __slots__ = ("_loop", "_skew_ms")

    def __init__(self, loop: SimLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        return EPOCH_MS + self._skew_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()
