"""The JSON files in which Apache Kafka's tools take partitions: `{"partitions": [{"topic": ..., "partition": ...}, ...]}`."""

from __future__ import annotations

from typing import Any

from ottla.cli.tool import Failure, read_json
from ottla.model import TopicPartition

_KINDS: dict[str, type] = {"topic": str, "partition": int, "offset": int, "replicas": list}


def read_partitions(path: str, option: str, *more: str) -> dict[TopicPartition, dict[str, Any]]:
    """The partitions of a file in their order, each with what it says of it; `more` are fields that each must have."""
    found = read_json(path, option)
    if found.get("version", 1) != 1:
        raise Failure(f"{option} {path} has version {found['version']}: only 1 is known.")
    entries = found.get("partitions")
    if not isinstance(entries, list):
        raise Failure(f'{option} {path} has no list "partitions".')
    partitions: dict[TopicPartition, dict[str, Any]] = {}
    for entry in entries:
        for field in ("topic", "partition", *more):
            if not isinstance(entry, dict) or not isinstance(entry.get(field), _KINDS[field]):
                raise Failure(f'{option} {path}: a partition needs "{field}" ({_KINDS[field].__name__}), which {entry} lacks.')
        tp = TopicPartition(entry["topic"], entry["partition"])
        if tp in partitions:
            raise Failure(f"{option} {path} names partition {tp} twice.")
        partitions[tp] = entry
    return partitions
