"""How `ottla dump-log` shows keys and payloads: as text or numbers, as internal topics' records, or by one's own function.

Guards: a record that cannot be decoded is told in its place, in Apache Kafka's words where it has some, and the dump goes
on. The shapes are Apache's: JSON for `__consumer_offsets`, with a consumer's subscription and assignment opened, and a line
of its own kind for `__transaction_state`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from struct import Struct as Packed
from typing import Any, Final

from ottla.cli.dump_entries import Row
from ottla.cli.dump_output import Shown, java_text
from ottla.cli.output import compact_json
from ottla.cli.tool import Failure
from ottla.client.internal_topics import OffsetsRecords, TransactionRecords, UnknownKind
from ottla.wire.schema import Malformed

Parsed = tuple[Shown | None, Shown | None]
Parser = Callable[[Row], Parsed]
Decoder = Callable[[bytes], Shown]

DELETED: Final = Shown("<DELETE>", None)
_INT32: Final = Packed(">i")
_INT64: Final = Packed(">q")


class UnknownDecoder(Failure):
    """There is no decoder of that name; the words say what there is."""


# Plain decoders


def _text(data: bytes) -> Shown:
    return Shown(java_text(data), data)


def _bytes(data: bytes) -> Shown:
    return Shown(data.hex(), data.hex())


def _number(packed: Packed) -> Decoder:
    def decode(data: bytes) -> Shown:
        (number,) = packed.unpack_from(data)
        return Shown(str(number), number)

    return decode


_PLAIN: Final[dict[str, Decoder]] = {
    "StringDecoder": _text,
    "DefaultDecoder": _bytes,
    "IntegerDecoder": _number(_INT32),
    "LongDecoder": _number(_INT64),
}
_PACKAGES: Final = ("org.apache.kafka.tools.api", "kafka.serializer")
STRING_DECODER: Final = f"{_PACKAGES[0]}.StringDecoder"


def find_decoder(name: str) -> Decoder:
    """A decoder of Apache Kafka by its class name, or a Python function as `module:function`, which takes bytes."""
    package, _, plain = name.rpartition(".")
    if package in _PACKAGES and plain in _PLAIN:
        return _PLAIN[plain]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise UnknownDecoder(
            f"{name} is not a decoder: allowed are {', '.join(_PLAIN)} of {_PACKAGES[0]}, "
            "and a Python function as module:function"
        )
    sys.path.insert(0, os.getcwd())  # a function next to the user, as `python -m` would find it
    try:
        function: Any = import_module(module)
        for part in attribute.split("."):
            function = getattr(function, part)
    except Exception as problem:
        raise UnknownDecoder(f"{name} cannot be loaded: {type(problem).__name__}: {problem}") from None
    finally:
        sys.path.pop(0)
    if not callable(function):
        raise UnknownDecoder(f"{name} is not a function")

    def decode(data: bytes) -> Shown:
        found = function(data)
        return Shown(found if isinstance(found, str) else str(found), _plain(found))

    return decode


def _plain(found: object) -> object:
    """What JSON can say of a function's answer."""
    if isinstance(found, bytes):
        return found
    try:
        compact_json(found)
    except (TypeError, ValueError):
        return str(found)
    return found


def plain_parser(key_decoder: Decoder, value_decoder: Decoder) -> Parser:
    """Keys and values each by a decoder of their own."""

    def shown(decoder: Decoder, row: Row, data: bytes | None) -> Shown | None:
        if data is None:
            return None
        try:
            return decoder(data)
        except Exception as problem:  # a function of somebody else may raise anything
            return _failed(row, f"{type(problem).__name__}: {problem}")

    return lambda row: (shown(key_decoder, row, row.key), shown(value_decoder, row, row.value))


def _failed(row: Row, why: str) -> Shown:
    words = f"Error at offset {row.offset}, skipping. {why}"
    return Shown(words, {"error": words})


# The internal topics


def _compact(data: object) -> Shown:
    return Shown(compact_json(data), data)


class OffsetsParser:
    """The records of `__consumer_offsets`."""

    __slots__ = ("_records",)

    def __init__(self) -> None:
        self._records = OffsetsRecords()

    def __call__(self, row: Row) -> Parsed:
        if row.key is None:
            words = f"Failed to decode message at offset {row.offset} using offset topic decoder (message had a missing key)"
            return Shown(words, {"error": words}), None
        try:
            kind, key = self._records.key(row.key)
            shown = _compact({"type": str(kind), "data": key})
            if row.value is None:
                return shown, DELETED
            version, value = self._records.value(kind, row.value)
        except UnknownKind as problem:
            words = f"Unknown record type {problem.kind} at offset {row.offset}, skipping."
            return Shown(words, {"error": words}), None
        except Malformed as problem:
            return _failed(row, str(problem)), None
        return shown, _compact({"version": str(version), "data": value})


class TransactionsParser:
    """The records of `__transaction_state`."""

    __slots__ = ("_records",)

    def __init__(self) -> None:
        self._records = TransactionRecords()

    def __call__(self, row: Row) -> Parsed:
        if row.key is None:
            return _failed(row, "A transaction log record without a key"), None
        try:
            kind, key = self._records.key(row.key)
            shown = Shown(f"transaction_metadata::transactionalId={key['transactionalId']}", {"type": str(kind), "data": key})
            return shown, DELETED if row.value is None else self._transaction(kind, row.value)
        except UnknownKind as problem:
            words = f"unknown::version={problem.kind}"
            return Shown(words, {"error": words}), None
        except Malformed as problem:
            return _failed(row, str(problem)), None

    def _transaction(self, kind: int, data: bytes) -> Shown:
        version, value = self._records.value(kind, data)
        partitions = ",".join(
            f"{topic['topic']}-{number}" for topic in value["transactionPartitions"] or () for number in topic["partitionIds"]
        )
        text = (
            f"producerId:{value['producerId']},producerEpoch:{value['producerEpoch']},state={value['transactionStatus']},"
            f"partitions=[{partitions}],txnLastUpdateTimestamp={value['transactionLastUpdateTimestampMs']},"
            f"txnTimeoutMs={value['transactionTimeoutMs']}"
        )
        return Shown(text, {"version": str(version), "data": value})
