"""A broker that hangs keeps only those waiting who asked it; connections are used again, and go with those that break."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from ottla import client
from ottla.client import BrokerUnreachable
from ottla.client.cluster import Cluster
from ottla.testing import Broker
from ottla.wire.apis.metadata import MetadataRequest

HUNG = 99
"""The id of a broker that the cluster does not know; we say that it listens where nobody answers."""
QUICK = {"retry.backoff.ms": 20, "default.api.timeout.ms": 60_000, "request.timeout.ms": 60_000}


@pytest.fixture
def hung() -> Iterator[socket.socket]:
    """Somebody who takes connections and never says a word. Closed, it wakes those who wait."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


class Asking(threading.Thread):
    """A question in a thread of its own, which the broker that hangs has taken."""

    def __init__(self, hung: socket.socket, ask: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._ask = ask
        self.problem: BrokerUnreachable | None = None
        self.start()
        self.taken = hung.accept()[0]
        assert self.taken.recv(4)  # it waits for an answer now

    def run(self) -> None:
        try:
            self._ask()
        except BrokerUnreachable as problem:
            self.problem = problem

    def give_up(self) -> BrokerUnreachable:
        """Hang up on it."""
        self.taken.close()
        self.join(20)
        assert self.problem is not None
        return self.problem


@pytest.fixture
def cluster(ottla_server: Broker, hung: socket.socket) -> Iterator[Cluster]:
    host, port = hung.getsockname()
    servers = f"{host}:{port},{ottla_server.bootstrap_servers}"
    with Cluster({"bootstrap.servers": servers, **QUICK}) as one:
        yield one


def test_who_asks_anybody_does_not_wait_for_one_that_hangs(cluster: Cluster, hung: socket.socket) -> None:
    waiting = Asking(hung, cluster.brokers)  # the first address is that of the broker that hangs
    assert len(cluster.brokers()) == 1
    assert cluster.topics() is not None
    assert waiting.is_alive()
    waiting.taken.close()  # hung up on, it goes to the next address
    waiting.join(20)
    assert waiting.problem is None
    assert not waiting.is_alive()


def test_who_asks_a_healthy_broker_does_not_wait_for_another(cluster: Cluster, hung: socket.socket) -> None:
    """Questions to one broker, and to all at once, while one of them does not answer."""
    first = Asking(hung, cluster.brokers)
    (healthy,) = cluster.brokers()
    with cluster._lock:
        cluster._nodes = {**cluster._nodes, HUNG: client.settings.Address(*hung.getsockname())}
    question = MetadataRequest(topics=[])
    waiting = [Asking(hung, lambda: cluster.ask(question, HUNG)),
               Asking(hung, lambda: cluster.ask_each({healthy: question, HUNG: question}))]  # fmt: skip
    assert cluster.ask(question, healthy).brokers
    assert cluster.ask_each({healthy: question})[healthy].brokers
    assert all(one.is_alive() for one in (first, *waiting))
    for one in waiting:
        assert "closed the connection" in str(one.give_up())
    first.taken.close()
    first.join(20)


def test_connections_are_used_again_and_closed(ottla_server: Broker) -> None:
    with Cluster(ottla_server.bootstrap_servers) as cluster:
        opened = []
        inner = cluster._pool._open

        def counted(*given: object) -> object:
            opened.append(inner(*given))  # type: ignore[arg-type]
            return opened[-1]

        cluster._pool._open = counted  # type: ignore[assignment]
        for _ in range(3):
            cluster.brokers()
        assert len(opened) == 1
        (broker,) = cluster.brokers()

        def ask_often() -> None:
            for _ in range(20):
                cluster.ask(MetadataRequest(), broker)

        threads = [threading.Thread(target=ask_often) for _ in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(20)
        assert len(opened) <= 1 + 8 + 1
        idle = [one for one in opened if not one.closed]
        assert 1 <= len(idle) <= 4
        idle[-1]._sock.shutdown(socket.SHUT_RDWR)  # as a broker does that ends
        with contextlib.suppress(BrokerUnreachable):
            for _ in idle:
                cluster.ask(MetadataRequest(), broker)
        assert cluster.ask(MetadataRequest(), broker).brokers
    assert all(one.closed for one in opened)
