"""What stands in the records of `__consumer_offsets` and `__transaction_state`, as JSON in Apache Kafka's names.

Guards: a key or a value that cannot be read raises `Malformed` with Apache's words where it has some, and nothing else; what
consumers put into opaque fields is opened where it can be, and stays base64 where not. The tables are loaded by whoever makes
a decoder. Needs no pyarrow.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

from ottla.wire.schema import Data, Field, Malformed, Struct, decode_versioned, peek_version

OFFSETS_TOPIC, TRANSACTIONS_TOPIC = "__consumer_offsets", "__transaction_state"


class Versioned(NamedTuple):
    """A key with its kind, or a value with its version, and the fields."""

    number: int
    fields: dict[str, Any]


class UnknownKind(Malformed):
    """A key of a kind that is not known: records of a newer Kafka are passed over, not called broken."""

    def __init__(self, kind: int) -> None:
        super().__init__(f"Unknown record type {kind}")
        self.kind = kind


def as_json(struct: Struct, version: int) -> dict[str, Any]:
    """A stored message in a version as Apache's JSON: its field names, base64 for bytes, its own letters for ids."""
    return {
        _camel(field.name): _value(field, value, version)
        for field in type(struct).__fields__
        if field.since <= version <= field.until
        for value in [getattr(struct, field.name)]
        if field.tag is None or value != _unsent(field)
    }


def _unsent(field: Field) -> object:
    return field.struct() if field.absent_is_empty else field.default


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _value(field: Field, value: Any, version: int) -> object:
    if value is None:
        return None
    match field.kind:
        case "array":
            return [_value(field.element, item, version) for item in value]
        case "struct":
            return as_json(value, version)
        case "bytes":
            return base64.b64encode(value).decode()
        case "uuid":
            return base64.urlsafe_b64encode(value).decode().rstrip("=")
        case _:
            return value


def _version(part: str, data: bytes) -> int:
    try:
        return peek_version(data)
    except Malformed:
        raise Malformed(f"Could not read version from {part}'s buffer.") from None


def _read(part: str, cls: type[Data], data: bytes) -> Data:
    try:
        return decode_versioned(cls, data)
    except Malformed as problem:
        raise Malformed(
            f"Could not read record with version {peek_version(data)} from {part}'s buffer due to: {problem}."
        ) from None


class OffsetsRecords:
    """The records of `__consumer_offsets`: what groups committed, and the groups themselves."""

    __slots__ = ("_keys", "_open_member", "_values")

    def __init__(self) -> None:
        from ottla.wire.apis import group_records as stored  # noqa: PLC0415 - only this decoder needs the tables
        from ottla.wire.apis.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription  # noqa: PLC0415

        self._keys = stored.GROUP_KEYS
        self._values: Sequence[type[Data]] = (
            stored.OffsetCommitValue,
            stored.OffsetCommitValue,
            stored.GroupMetadataValue,
            stored.ConsumerGroupMetadataValue,
            stored.ConsumerGroupPartitionMetadataValue,
            stored.ConsumerGroupMemberMetadataValue,
            stored.ConsumerGroupTargetAssignmentMetadataValue,
            stored.ConsumerGroupTargetAssignmentMemberValue,
            stored.ConsumerGroupCurrentMemberAssignmentValue,
        )
        self._open_member = {"subscription": ConsumerProtocolSubscription, "assignment": ConsumerProtocolAssignment}

    def key(self, data: bytes) -> Versioned:
        kind = _version("key", data)
        if kind not in self._keys:
            raise UnknownKind(kind)
        return Versioned(kind, as_json(_read("key", self._keys[kind], data), kind))

    def value(self, kind: int, data: bytes) -> Versioned:
        """The value of a record whose key is of this kind."""
        version = _version("value", data)
        value = as_json(_read("value", self._values[kind], data), version)
        if value.get("protocolType") == "consumer":
            self._open_members(value["members"])
        return Versioned(version, value)

    def _open_members(self, members: Any) -> None:
        """What consumers put into the opaque fields of a group's members, where it can be read."""
        for member in members:
            for name, cls in self._open_member.items():
                data = base64.b64decode(member[name])
                try:
                    member[name] = as_json(decode_versioned(cls, data), peek_version(data))
                except Malformed:
                    continue  # stays in base64


class TransactionRecords:
    """The records of `__transaction_state`. The status is given by its name."""

    __slots__ = ("_key", "_states", "_value")

    def __init__(self) -> None:
        from ottla.coordinator.transaction_state import STATUS_BY_CODE  # noqa: PLC0415 - only this decoder needs it
        from ottla.wire.apis.transaction_records import TransactionLogKey, TransactionLogValue  # noqa: PLC0415

        self._key = TransactionLogKey
        self._value = TransactionLogValue
        self._states = {code: status.shown for code, status in STATUS_BY_CODE.items()}

    def key(self, data: bytes) -> Versioned:
        kind = _version("key", data)
        if not self._key.min_version <= kind <= self._key.max_version:
            raise UnknownKind(kind)
        return Versioned(kind, as_json(_read("key", self._key, data), kind))

    def value(self, _kind: int, data: bytes) -> Versioned:
        version = _version("value", data)
        if not self._value.min_version <= version <= self._value.max_version:
            raise Malformed(f"Unknown version {version} from the transaction log message value")
        found = as_json(_read("value", self._value, data), version)
        state = self._states.get(found["transactionStatus"])
        if state is None:
            raise Malformed(f"Unknown transaction state id {found['transactionStatus']} from the transaction status message")
        return Versioned(version, found | {"transactionStatus": state})


def decoder_of(topic: str) -> OffsetsRecords | TransactionRecords | None:
    """What reads the records of an internal topic; None for all others."""
    if topic == OFFSETS_TOPIC:
        return OffsetsRecords()
    return TransactionRecords() if topic == TRANSACTIONS_TOPIC else None
