"""The broker in a thread, behind a handle that tests can use from theirs."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from ottla.api.faults import Fault
from ottla.broker import Broker as RealBroker
from ottla.clock import Clock
from ottla.config import BrokerConfig
from ottla.controller.controller import NewTopic
from ottla.metadata.embedded import RunBlocking
from ottla.metadata.store import Store
from ottla.model import Error, KafkaError
from ottla.network.loop import new_event_loop
from ottla.surroundings import Surroundings, of_the_machine
from ottla.wire.apis import ApiKey

_R = TypeVar("_R")
OpenStore = Callable[[BrokerConfig, str, Clock, RunBlocking], Awaitable[Store]]

_DEFAULTS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "log.initial.task.delay.ms": "1000",
}


class Broker:
    """A running broker. Settings are Kafka's, as text or numbers: `Broker({"num.partitions": 3})`."""

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        directory: str | os.PathLike[str] | None = None,
        open_store: OpenStore | None = None,
    ) -> None:
        """`open_store` gives the metadata that brokers of a cluster share; without it the broker has its own."""
        self._own_directory = directory is None
        self.directory = tempfile.mkdtemp(prefix="ottla-") if directory is None else os.fspath(directory)
        texts = {**_DEFAULTS, "log.dirs": self.directory, **{key: _text(value) for key, value in (settings or {}).items()}}
        self._config = BrokerConfig(texts)
        for name in self._config.unknown:
            warnings.warn(f"Unknown setting {name} is ignored", stacklevel=2)
        self._open_store = open_store
        self._killed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._broker: RealBroker | None = None
        self.faults = PlannedFaults(self)

    @property
    def bootstrap_servers(self) -> str:
        """What a client is given to find the broker."""
        return ",".join(f"{one.host}:{one.port}" for one in self._running.advertised)

    @property
    def cluster_id(self) -> str:
        return self._running.cluster_id

    def start(self) -> Self:
        """Start; returns when clients are answered."""
        if self._thread is not None:
            return self
        ready: threading.Event = threading.Event()
        failure: list[BaseException] = []
        self._thread = threading.Thread(target=self._serve, args=(ready, failure), name="ottla-broker", daemon=True)
        self._thread.start()
        ready.wait()
        if failure:
            self._thread.join()
            self._thread = None
            raise failure[0]
        return self

    def stop(self) -> None:
        """Stop cleanly, and remove the data if the directory is ours."""
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._thread = None
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self) -> None:
        """End as kill -9 would: nobody is told, nothing is finished. The data stay; `start` begins another life over them."""
        if self._thread is not None and self._loop is not None:
            self._killed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._thread = None
            self._killed = False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None, *, replication_factor: int = 1
    ) -> None:
        """Create a topic; raises KafkaError where that cannot be."""
        settings = {key: _text(value) for key, value in (config or {}).items()}
        wanted = NewTopic(name, partitions, replication_factor, config=settings)
        result = self._call(self._running.services.controller.create_topics([wanted], validate_only=False))[name]
        if isinstance(result, KafkaError):
            raise result

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its data."""
        self._call(self._running.services.controller.delete_topic(name))

    @property
    def _running(self) -> RealBroker:
        if self._broker is None or self._thread is None:
            raise RuntimeError("the broker is not running: use `with Broker() as broker`, or call start()")
        return self._broker

    def _call(self, work: Coroutine[Any, Any, _R]) -> _R:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def run_on_loop(self, work: Callable[[RealBroker], _R]) -> _R:
        """Do something with the real broker, in its own thread."""

        async def do() -> _R:
            return work(self._running)

        return self._call(do())

    def _surroundings(self) -> Surroundings:
        machine = of_the_machine()
        return machine if self._open_store is None else dataclasses.replace(machine, open_store=self._open_store)

    def _serve(self, ready: threading.Event, failure: list[BaseException]) -> None:
        loop = self._loop = new_event_loop()
        asyncio.set_event_loop(loop)
        broker = self._broker = RealBroker(self._config, self._surroundings())
        try:
            loop.run_until_complete(broker.start())
        except BaseException as problem:
            failure.append(problem)
            loop.close()
            return
        finally:
            ready.set()
        try:
            loop.run_forever()
            loop.run_until_complete(broker.abandon() if self._killed else broker.stop())
        finally:
            loop.close()


class PlannedFaults:
    """Misbehaviour on order. APIs by Kafka's names: "Produce", "FindCoordinator"."""

    def __init__(self, broker: Broker) -> None:
        self._of = broker

    def fail(self, api: str, error: Error, times: int = 1) -> None:
        """The next `times` requests of this kind are answered with `error`, and not carried out."""
        if not isinstance(error, Error):
            raise TypeError(f"{error!r} is not an error of Kafka's: use ottla.testing.Error, such as Error.REQUEST_TIMED_OUT")
        self._plan(api, Fault(error=error), times)

    def delay(self, api: str, seconds: float, times: int = 1) -> None:
        """The next `times` requests of this kind wait before they are carried out."""
        self._plan(api, Fault(delay=seconds), times)

    def disconnect(self, api: str, times: int = 1) -> None:
        """The next `times` requests of this kind lose their connection, and are not carried out."""
        self._plan(api, Fault(disconnect=True), times)

    def clear(self) -> None:
        """Behave from now on."""
        self._of.run_on_loop(lambda broker: broker.faults.clear())

    def _plan(self, api: str, fault: Fault, times: int) -> None:
        key = _api_key(api)
        self._of.run_on_loop(lambda broker: broker.faults.plan(key, fault, times))


def _api_key(name: str) -> ApiKey:
    folded = name.replace("_", "").lower()
    for key in ApiKey:
        if key.name.replace("_", "").lower() == folded:
            return key
    raise ValueError(f"{name} is not a Kafka API; known are: {', '.join(key.name.title().replace('_', '') for key in ApiKey)}")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
