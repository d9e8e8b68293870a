"""Topics as Arrow: read and write whole tables, without a Python object per record, against Ottla or Apache Kafka.

    from ottla import client

    table = client.read("orders", cluster="127.0.0.1:9092").table()

Blocking, with threads that fetch ahead; tables need pyarrow: `pip install "ottla[client]"`. What only asks a
cluster (`cluster`, `admin`) does without it and is what commands are built on, so names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.client.admin.configs import describe_topic
    from ottla.client.admin.groups import Committed, commit_offsets, committed_offsets
    from ottla.client.admin.offsets import list_offsets
    from ottla.client.admin.topics import create_topic, delete_topic
    from ottla.client.bounds import At
    from ottla.client.cluster import Cluster, PartitionInfo, TopicInfo
    from ottla.client.decoding import COLUMNS, SCHEMA
    from ottla.client.errors import (
        AuthenticationFailed,
        BrokerUnreachable,
        ClientError,
        CorruptBatch,
        InvalidSetting,
        InvalidTable,
        OffsetOutOfRange,
        ProducerFenced,
        TimedOut,
        TransactionAborted,
        UnknownTopic,
        UnsupportedByBroker,
        WriteFailed,
    )
    from ottla.client.reading import Reader, read, read_known, tail
    from ottla.client.sending import Written
    from ottla.client.transactions import (
        Identity,
        add_offsets,
        end_transaction,
        init_producer,
        is_open,
        open_transactions,
        until_visible,
    )
    from ottla.client.writing import Producer, write
    from ottla.model import TopicPartition

__all__ = [
    "COLUMNS",
    "SCHEMA",
    "At",
    "AuthenticationFailed",
    "BrokerUnreachable",
    "ClientError",
    "Cluster",
    "Committed",
    "CorruptBatch",
    "Identity",
    "InvalidSetting",
    "InvalidTable",
    "OffsetOutOfRange",
    "PartitionInfo",
    "Producer",
    "ProducerFenced",
    "Reader",
    "TimedOut",
    "TopicInfo",
    "TopicPartition",
    "TransactionAborted",
    "UnknownTopic",
    "UnsupportedByBroker",
    "WriteFailed",
    "Written",
    "add_offsets",
    "commit_offsets",
    "committed_offsets",
    "create_topic",
    "delete_topic",
    "describe_topic",
    "end_transaction",
    "init_producer",
    "is_open",
    "list_offsets",
    "open_transactions",
    "read",
    "read_known",
    "tail",
    "until_visible",
    "write",
]

_HOMES = {
    "ottla.client.admin.configs": ("describe_topic",),
    "ottla.client.admin.groups": ("Committed", "commit_offsets", "committed_offsets"),
    "ottla.client.admin.offsets": ("list_offsets",),
    "ottla.client.admin.topics": ("create_topic", "delete_topic"),
    "ottla.client.bounds": ("At",),
    "ottla.client.cluster": ("Cluster", "PartitionInfo", "TopicInfo"),
    "ottla.client.decoding": ("COLUMNS", "SCHEMA"),
    "ottla.client.errors": (
        "AuthenticationFailed",
        "BrokerUnreachable",
        "ClientError",
        "CorruptBatch",
        "InvalidSetting",
        "InvalidTable",
        "OffsetOutOfRange",
        "ProducerFenced",
        "TimedOut",
        "TransactionAborted",
        "UnknownTopic",
        "UnsupportedByBroker",
        "WriteFailed",
    ),
    "ottla.client.reading": ("Reader", "read", "read_known", "tail"),
    "ottla.client.sending": ("Written",),
    "ottla.client.transactions": (
        "Identity",
        "add_offsets",
        "end_transaction",
        "init_producer",
        "is_open",
        "open_transactions",
        "until_visible",
    ),
    "ottla.client.writing": ("Producer", "write"),
    "ottla.model": ("TopicPartition",),
}

_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found: object = getattr(import_module(_HOME_OF[name]), name)
    except ImportError as problem:
        if problem.name != "pyarrow":
            raise
        raise ImportError('ottla.client needs pyarrow: pip install "ottla[client]"', name="pyarrow") from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
