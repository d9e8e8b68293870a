"""A real broker for tests of other people's programs: same code, own port, own directory, gone afterwards.

    with Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

The broker runs on a loop of its own in a thread of this process: it starts in a moment, and `broker.faults` can reach it.
`Cluster(3)` is three of them that replicate, elect and fail over as real ones do, without ZooKeeper and without Java.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.model import Error
    from ottla.testing.broker import Broker, PlannedFaults
    from ottla.testing.cluster import Cluster

__all__ = ["Broker", "Cluster", "Error", "PlannedFaults"]


def __getattr__(name: str) -> Any:
    """Load the broker when it is first asked for: every pytest session imports this package, for the sake of its plugin."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    if name == "Cluster":
        from ottla.testing.cluster import Cluster  # noqa: PLC0415

        return Cluster
    from ottla.testing import broker  # noqa: PLC0415

    return getattr(broker, name)
