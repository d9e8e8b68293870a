"""How `ottla console-consumer` shows a record: Apache Kafka's stock formatters, and JSON.

Guards: what goes to a file or a pipe are the bytes of the record, as Apache's formatter writes them; a terminal gets no line
end and no terminal code that somebody wrote into a record. The formatters of internal topics write one object a line, where
Apache's write them without a space between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ottla.cli.console_deserializers import Deserializer, find_deserializer, known
from ottla.cli.data_tool import say
from ottla.cli.dump_output import java_text, named_data
from ottla.cli.output import compact_json, one_line
from ottla.cli.tool import Failure
from ottla.client.internal_topics import as_json
from ottla.wire.schema import Data, Malformed, decode_versioned, peek_version

if TYPE_CHECKING:
    from confluent_kafka import Message

Formatter = Callable[["Message"], bytes]
"""A record as what is written for it; nothing where the formatter passes it over."""

_PACKAGE: Final = "org.apache.kafka.tools.consumer."
DEFAULT: Final = f"{_PACKAGE}DefaultMessageFormatter"
_OLD_NAMES: Final = {
    "kafka.tools.DefaultMessageFormatter": "DefaultMessageFormatter",
    "kafka.tools.LoggingMessageFormatter": "LoggingMessageFormatter",
    "kafka.tools.NoOpMessageFormatter": "NoOpMessageFormatter",
    "kafka.coordinator.transaction.TransactionLog$TransactionLogMessageFormatter": "TransactionLogMessageFormatter",
    "kafka.coordinator.group.GroupMetadataManager$OffsetsMessageFormatter": "OffsetsMessageFormatter",
    "kafka.coordinator.group.GroupMetadataManager$GroupMetadataMessageFormatter": "GroupMetadataMessageFormatter",
}
_TIMES: Final = {1: "CreateTime", 2: "LogAppendTime"}


def find_formatter(name: str, properties: Mapping[str, str], *, safe: bool) -> Formatter:
    """The formatter of a class name; `safe` where a terminal shows it."""
    if name in _OLD_NAMES:
        say(f"WARNING: {name} is deprecated. Please use {_PACKAGE}{_OLD_NAMES[name]} instead")
    plain = _OLD_NAMES.get(name, name.removeprefix(_PACKAGE))
    if plain not in _MAKERS:
        allowed = ", ".join(f"{_PACKAGE}{one}" for one in _MAKERS)
        raise Failure(f"--formatter {name} is not here: allowed are {allowed}")
    return _MAKERS[plain](properties, safe)


def _flag(properties: Mapping[str, str], name: str, default: bool = False) -> bool:
    return properties.get(name, str(default)).strip().lower() == "true"


def _deserializer(properties: Mapping[str, str], name: str) -> Deserializer | None:
    wanted = properties.get(name)
    if not wanted:
        return None
    found = find_deserializer(wanted)
    if found is None:
        say(f"WARNING: {name}={wanted} is not here, the bytes are shown as they are: there are {known()}")
    return found


def shown_safely(data: bytes) -> bytes:
    """What a terminal may get: nothing in it moves the cursor."""
    return one_line(java_text(data)).encode(errors="replace")


class _Default:
    """Timestamp, partition, offset, headers, key and value, each if asked for, with separators between."""

    def __init__(self, properties: Mapping[str, str], safe: bool) -> None:
        self._timestamp = _flag(properties, "print.timestamp")
        self._partition = _flag(properties, "print.partition")
        self._offset = _flag(properties, "print.offset")
        self._headers = _flag(properties, "print.headers")
        self._key = _flag(properties, "print.key")
        self._value = _flag(properties, "print.value", True)
        self._separator = properties.get("key.separator", "\t").encode()
        self._line_end = properties.get("line.separator", "\n").encode()
        self._headers_separator = properties.get("headers.separator", ",").encode()
        self._null = properties.get("null.literal", "null").encode()
        self._decode_key = _deserializer(properties, "key.deserializer")
        self._decode_value = _deserializer(properties, "value.deserializer")
        self._decode_header = _deserializer(properties, "headers.deserializer")
        self._safe = safe

    def __call__(self, message: Message) -> bytes:
        parts: list[bytes] = []
        if self._timestamp:
            kind, at = message.timestamp()
            parts.append(f"{_TIMES[kind]}:{at}".encode() if kind in _TIMES else b"NO_TIMESTAMP")
        if self._partition:
            parts.append(b"Partition:%d" % (message.partition() or 0))
        if self._offset:
            parts.append(b"Offset:%d" % (message.offset() or 0))
        if self._headers:
            parts.append(self._shown_headers(message))
        if self._key:
            parts.append(self._shown(message.key(), self._decode_key))
        if self._value:
            parts.append(self._shown(message.value(), self._decode_value))
        return self._separator.join(parts) + self._line_end if parts else b""

    def _shown(self, data: bytes | None, decode: Deserializer | None) -> bytes:
        if data is None:
            return self._null
        if decode is not None:
            data = decode(data)
        return shown_safely(data) if self._safe else data

    def _shown_headers(self, message: Message) -> bytes:
        headers: Any = message.headers()
        if not headers:
            return b"NO_HEADERS"
        return self._headers_separator.join(
            (shown_safely(key.encode()) if self._safe else key.encode()) + b":" + self._shown(value, self._decode_header)
            for key, value in headers
        )


def json_formatter(properties: Mapping[str, str]) -> Formatter:
    """All that a record is, as one object a line; data that are no text come in base64, under another name."""
    decode_key = _deserializer(properties, "key.deserializer")
    decode_value = _deserializer(properties, "value.deserializer")

    def shown(name: str, data: bytes | None, decode: Deserializer | None) -> dict[str, object]:
        return named_data(name, data if data is None or decode is None else decode(data))

    def write(message: Message) -> bytes:
        kind, at = message.timestamp()
        headers: Any = message.headers() or []
        record = {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp": at,
            "timestampType": _TIMES.get(kind),
            **shown("key", message.key(), decode_key),
            **shown("value", message.value(), decode_value),
            "headers": [{"key": key, **shown("value", value, None)} for key, value in headers],
        }
        return compact_json(record).encode() + b"\n"

    return write


def _nothing(properties: Mapping[str, str], safe: bool) -> Formatter:
    return lambda message: b""


class _Stored:
    """The records of an internal topic whose keys are of one kind; those of the other known kinds are passed over."""

    def __init__(self, key: type[Data], value: type[Data], *passed: type[Data]) -> None:
        self._key = key
        self._value = value
        self._passed = passed

    def __call__(self, message: Message) -> bytes:
        key, value = message.key(), message.value()
        if key is not None and any(_is_of(kind, key) for kind in self._passed):
            return b""
        shown = {"key": _opened(self._key, key), "value": _opened(self._value, value)}
        return compact_json(shown).encode() + b"\n"


def _is_of(kind: type[Data], data: bytes) -> bool:
    return len(data) >= 2 and kind.min_version <= peek_version(data) <= kind.max_version


def _opened(kind: type[Data], data: bytes | None) -> object:
    if data is None:
        return None
    try:
        version = peek_version(data)
        known_version = kind.min_version <= version <= kind.max_version
        return {"version": version, "data": as_json(decode_versioned(kind, data), version) if known_version else "unknown"}
    except Malformed:
        return "unknown"


def _offsets(properties: Mapping[str, str], safe: bool) -> Formatter:
    from ottla.wire.apis import group_records as stored  # noqa: PLC0415 - only this formatter needs the tables

    return _Stored(stored.OffsetCommitKey, stored.OffsetCommitValue, stored.GroupMetadataKey)


def _group_metadata(properties: Mapping[str, str], safe: bool) -> Formatter:
    from ottla.wire.apis import group_records as stored  # noqa: PLC0415 - only this formatter needs the tables

    return _Stored(stored.GroupMetadataKey, stored.GroupMetadataValue, stored.OffsetCommitKey)


def _transactions(properties: Mapping[str, str], safe: bool) -> Formatter:
    from ottla.wire.apis.transaction_records import TransactionLogKey, TransactionLogValue  # noqa: PLC0415 - as above

    return _Stored(TransactionLogKey, TransactionLogValue)


_MAKERS: Final[dict[str, Callable[[Mapping[str, str], bool], Formatter]]] = {
    "DefaultMessageFormatter": _Default,
    "LoggingMessageFormatter": _Default,  # its log lines are below the level that the tools show
    "NoOpMessageFormatter": _nothing,
    "OffsetsMessageFormatter": _offsets,
    "GroupMetadataMessageFormatter": _group_metadata,
    "TransactionLogMessageFormatter": _transactions,
}
