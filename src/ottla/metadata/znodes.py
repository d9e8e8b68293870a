"""One dataclass per node of the tree: its path, and its JSON exactly as Apache Kafka 3.9 writes it.

Field order inside the JSON follows Apache Kafka's, so that a dump of both trees can be compared as text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CLUSTER_ID = "/cluster/id"
CONFIGS = "/config"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = "/config/changes/config_change_"
DELETE_TOPICS = "/admin/delete_topics"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
BROKER_SEQUENCE = "/brokers/seqid"
FEATURE = "/feature"
ISR_CHANGES = "/isr_change_notification"
LOG_DIR_EVENTS = "/log_dir_event_notification"

PERSISTENT_PATHS = (
    "/consumers",
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    BROKER_SEQUENCE,
    ISR_CHANGES,
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENTS,
    TOPIC_CONFIGS,
    "/config/clients",
    "/config/users",
    BROKER_CONFIGS,
    "/config/ips",
)
"""What every broker makes at its start where it is missing: empty, to be watched and filled."""


def encode_id(value: bytes) -> str:
    """Kafka's text form of 16 bytes: url-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def decode_id(text: str) -> bytes:
    """The 16 bytes behind a text id."""
    return base64.urlsafe_b64decode(text + "==")


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@dataclass(slots=True, frozen=True)
class BrokerNode:
    """/brokers/ids/N: a live broker and where to reach it."""

    id: int
    endpoints: tuple[str, ...]
    protocols: Mapping[str, str]
    timestamp: int
    rack: str | None = None

    @property
    def path(self) -> str:
        return f"{BROKER_IDS}/{self.id}"

    def encode(self) -> bytes:
        host, _, port = self.endpoints[0].partition("://")[2].rpartition(":")
        value: dict[str, Any] = {
            "features": {},
            "listener_security_protocol_map": dict(self.protocols),
            "endpoints": list(self.endpoints),
        }
        if self.rack is not None:
            value["rack"] = self.rack
        value |= {"jmx_port": -1, "port": int(port), "host": host.strip("[]"), "version": 5, "timestamp": str(self.timestamp)}
        return _dump(value)

    @classmethod
    def decode(cls, broker_id: int, data: bytes) -> BrokerNode:
        value = json.loads(data)
        return cls(
            broker_id,
            tuple(value["endpoints"]),
            value.get("listener_security_protocol_map", {}),
            int(value.get("timestamp", -1)),
            value.get("rack"),
        )


@dataclass(slots=True, frozen=True)
class TopicNode:
    """/brokers/topics/T: which brokers hold each partition, and the topic's id."""

    name: str
    topic_id: bytes
    partitions: Mapping[int, tuple[int, ...]]
    adding: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    removing: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"{TOPICS}/{self.name}"

    def encode(self) -> bytes:
        return _dump(
            {
                "partitions": {str(p): list(replicas) for p, replicas in sorted(self.partitions.items())},
                "topic_id": encode_id(self.topic_id),
                "adding_replicas": {str(p): list(replicas) for p, replicas in self.adding.items()},
                "removing_replicas": {str(p): list(replicas) for p, replicas in self.removing.items()},
                "version": 3,
            }
        )

    @classmethod
    def decode(cls, name: str, data: bytes) -> TopicNode:
        value = json.loads(data)

        def assignment(key: str) -> dict[int, tuple[int, ...]]:
            return {int(p): tuple(replicas) for p, replicas in value.get(key, {}).items()}

        topic_id = decode_id(value["topic_id"]) if "topic_id" in value else bytes(16)
        return cls(name, topic_id, assignment("partitions"), assignment("adding_replicas"), assignment("removing_replicas"))


def partition_state_path(topic: str, partition: int) -> str:
    """/brokers/topics/T/partitions/P/state."""
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


@dataclass(slots=True, frozen=True)
class PartitionStateNode:
    """/brokers/topics/T/partitions/P/state: who leads, in which epoch, and who is in sync."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int

    def encode(self) -> bytes:
        return _dump(
            {
                "controller_epoch": self.controller_epoch,
                "leader": self.leader,
                "version": 1,
                "leader_epoch": self.leader_epoch,
                "isr": list(self.isr),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> PartitionStateNode:
        value = json.loads(data)
        return cls(value["leader"], value["leader_epoch"], tuple(value["isr"]), value["controller_epoch"])


@dataclass(slots=True, frozen=True)
class ControllerNode:
    """/controller: the one broker that decides."""

    broker_id: int
    timestamp: int

    def encode(self) -> bytes:
        return _dump({"version": 2, "brokerid": self.broker_id, "timestamp": str(self.timestamp), "kraftControllerEpoch": -1})

    @classmethod
    def decode(cls, data: bytes) -> ControllerNode:
        value = json.loads(data)
        return cls(value["brokerid"], int(value["timestamp"]))


def encode_isr_change(partitions: Iterable[tuple[str, int]]) -> bytes:
    """/isr_change_notification/isr_change_N: a leader wrote these partitions' ISR itself, as old ones do."""
    told = [{"topic": topic, "partition": partition} for topic, partition in partitions]
    return _dump({"version": 1, "partitions": told})


def decode_isr_change(data: bytes) -> list[tuple[str, int]]:
    return [(one["topic"], one["partition"]) for one in json.loads(data)["partitions"]]


def encode_log_dir_event(broker_id: int) -> bytes:
    """/log_dir_event_notification/log_dir_event_N: a log directory of this broker failed."""
    return _dump({"version": 1, "broker": broker_id, "event": 1})


def decode_log_dir_event(data: bytes) -> int:
    broker_id: int = json.loads(data)["broker"]
    return broker_id


def encode_cluster_id(cluster_id: str) -> bytes:
    return _dump({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    value: str = json.loads(data)["id"]
    return value


def encode_config(config: Mapping[str, str]) -> bytes:
    """/config/topics/T and /config/brokers/N: the settings that were changed."""
    return _dump({"version": 1, "config": dict(config)})


def decode_config(data: bytes) -> dict[str, str]:
    value: dict[str, str] = json.loads(data)["config"]
    return value


def encode_config_change(entity_path: str) -> bytes:
    """/config/changes/config_change_N: whose settings changed, such as topics/orders."""
    return _dump({"version": 2, "entity_path": entity_path})


def encode_feature() -> bytes:
    """/feature: no finalized features, and feature versioning on."""
    return _dump({"features": {}, "version": 2, "status": 1})


@dataclass(slots=True, frozen=True)
class ProducerIdBlock:
    """/latest_producer_id_block: the producer ids that a broker took for itself, so that no two producers share one."""

    broker_id: int
    first: int
    last: int

    def encode(self) -> bytes:
        return _dump({"version": 1, "broker": self.broker_id, "block_start": str(self.first), "block_end": str(self.last)})

    @classmethod
    def decode(cls, data: bytes) -> ProducerIdBlock:
        value = json.loads(data)
        return cls(value["broker"], int(value["block_start"]), int(value["block_end"]))
