"""A real broker for tests of other people's programs: same code, own port, own directory, gone afterwards.

    with Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

The broker runs on a loop of its own in a thread of this process: it starts in a moment, and `broker.faults` can reach it.
"""

from ottla.model import Error
from ottla.testing.broker import Broker, PlannedFaults

__all__ = ["Broker", "Error", "PlannedFaults"]
