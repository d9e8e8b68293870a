"""One broker for a story that must hold on both: `ottla server`, or with OTTLA_ANCHOR=apache the real Apache Kafka 3.9.1.

    OTTLA_ANCHOR=apache pytest tests/clients/test_transactions.py

runs the same test, unchanged, against the original: a story that Apache Kafka does not tell that way is a wrong story. By
default nothing of this is seen; a test asks for `open_broker` instead of a `ServerProcess`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Protocol

from support.kafka import ApacheKafka, ZooKeeper
from support.server import ServerProcess

ON_APACHE = os.environ.get("OTTLA_ANCHOR") == "apache"
# Both start with these: internal topics that are made in no time, and no waiting for members that do not come.
_SMALL = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
}


class Broker(Protocol):
    """What a story needs of a broker process."""

    port: int

    @property
    def bootstrap_servers(self) -> str: ...
    def log(self) -> str: ...


@contextlib.contextmanager
def open_ottla(directory: str, settings: Mapping[str, object] | None = None) -> Iterator[Broker]:
    """`ottla server`; at the end it must still live and have no traceback in its log."""
    with ServerProcess(os.path.join(directory, "data"), {**_SMALL, **(settings or {})}) as server:
        yield server
        assert server.process is not None
        assert server.process.poll() is None, f"the broker died:\n{server.log()}"
        assert "Traceback" not in server.log(), server.log()
        assert server.stop() == 0


@contextlib.contextmanager
def open_apache(directory: str, settings: Mapping[str, object] | None = None) -> Iterator[Broker]:
    """Apache Kafka with a ZooKeeper of its own."""
    with ZooKeeper(directory) as zookeeper, ApacheKafka(directory, zookeeper, {**_SMALL, **(settings or {})}) as kafka:
        yield kafka


def open_broker(directory: str, settings: Mapping[str, object] | None = None) -> contextlib.AbstractContextManager[Broker]:
    """The broker that this run is about."""
    return (open_apache if ON_APACHE else open_ottla)(directory, settings)
