"""Settings that are changed by several clients at once: no change is lost under another."""

from __future__ import annotations

from ottla.testing import Broker
from ottla.wire.apis.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from ottla.wire.frame import encode_request
from robustness.raw import RawClient

SETTINGS = (
    "retention.ms",
    "segment.ms",
    "max.message.bytes",
    "flush.ms",
    "retention.bytes",
    "delete.retention.ms",
    "segment.bytes",
)


def test_changes_at_the_same_time_are_all_kept() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        clients = [RawClient(port) for _ in SETTINGS]
        for client, name in zip(clients, SETTINGS, strict=True):
            change = IncrementalAlterableConfig(name=name, config_operation=0, value="12345")
            resource = IncrementalAlterConfigsResource(resource_type=2, resource_name="t", configs=[change])
            client.send(encode_request(IncrementalAlterConfigsRequest(resources=[resource]), 1, 1, None))
        for client in clients:
            assert client.read_frame() is not None
            client.close()
        kept = broker.run_on_loop(lambda real: dict(real.services.configs.of_topic("t")))
        assert kept == dict.fromkeys(SETTINGS, "12345")
