"""Values of Avro and Protobuf as Arrow columns, a batch at a time, in Spark's workers.

Guards: every value becomes a row or gets a reason, its own: where a batch as a whole does not fit its columns, its rows are
tried one by one. What is needed to decode is plain data (`Reader`), so that it travels to workers, and each of them makes a
decoder of it once.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import pyarrow as pa

from ottla.pipelines.kinds import Kind, NotMapped
from ottla.pipelines.registry import NotRegistered, Registered, registry, unframed, unindexed
from ottla.pipelines.undecodable import Undecodable


@dataclass(frozen=True, slots=True)
class Reader:
    """What values are read with."""

    format: str
    texts: tuple[str, ...]
    """Avro: the reader's schema as JSON, those that it refers to before it. Protobuf: a FileDescriptorSet in base64."""
    message: str = ""
    registry: str = ""
    """The address, where values are framed."""


class _Decoder(Protocol):
    row: Kind

    def decode(self, value: bytes) -> Any: ...


def row_of(reader: Reader) -> Kind:
    """The columns that values become; raises `NotMapped`."""
    return _decoder(reader).row


def of_registered(found: Registered, kind: str, message: str, address: str) -> Reader:
    """What reads a registry's schema; raises `NotMapped`."""
    if found.kind.lower() != kind:
        raise NotMapped(f"it is of type {found.kind} in the registry, and {kind.upper()} is expected")
    texts = tuple(text for _, text in found.texts)
    if kind == "avro":
        return Reader(kind, texts, registry=address)
    return Reader(kind, (base64.b64encode(_files(found)).decode(),), message, address)


def decode_values(values: pa.Array, reader: Reader) -> pa.Array:
    """A struct for each value: `decoded`, null where it cannot be or there is nothing, and `reason`, why it cannot."""
    decoder = _decoder(reader)
    decode = _framed(decoder, reader) if reader.registry else decoder.decode
    convert = decoder.row.convert
    rows: list[Any] = []
    reasons: list[str | None] = []
    for value in values.to_pylist():
        row, reason = None, None
        if value is not None:
            try:
                row = decode(value)
                row = row if convert is None else convert(row)
            except Undecodable as problem:
                row, reason = None, str(problem)
            except (ValueError, ArithmeticError) as problem:  # of a conversion: text in another coding, numbers without end
                row, reason = None, _misfit(problem)
        rows.append(row)
        reasons.append(reason)
    made = _column(rows, reasons, decoder.row.arrow)
    return pa.StructArray.from_arrays([made, pa.array(reasons, pa.string())], names=["decoded", "reason"])


def _column(rows: list[Any], reasons: list[str | None], kind: pa.DataType) -> pa.Array:
    """Rows as a column; those that do not fit become null and get their reason."""
    try:
        return pa.array(rows, kind)
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError):
        pass
    for number, row in enumerate(rows):
        try:
            pa.array([row], kind)
        except (pa.ArrowException, ValueError, TypeError, ArithmeticError) as problem:
            rows[number], reasons[number] = None, _misfit(problem)
    return pa.array(rows, kind)


def _misfit(problem: BaseException) -> str:
    return f"the value does not fit the schema: {str(problem).partition(chr(10))[0]}"


@lru_cache(maxsize=64)
def _decoder(reader: Reader) -> _Decoder:
    if reader.format == "avro":
        from ottla.pipelines.avro import AvroDecoder  # noqa: PLC0415 - only what is decoded has to be installed

        return AvroDecoder(reader.texts)
    from ottla.pipelines.protobuf import ProtobufDecoder  # noqa: PLC0415

    return ProtobufDecoder(base64.b64decode(reader.texts[-1]), reader.message)


# ---- with a registry -----------------------------------------------------------------------------------------------------


def _framed(decoder: _Decoder, reader: Reader) -> Callable[[bytes], Any]:
    """Decode values that begin with the id of their writer's schema. What the registry lacks is asked for once a batch."""
    lacking: dict[int, str] = {}

    def decode(value: bytes) -> Any:
        number, body = unframed(value)
        if number in lacking:
            raise Undecodable(lacking[number])
        indexes: tuple[int, ...] = ()
        if reader.format == "protobuf":
            indexes, body = unindexed(body)
        try:
            return _resolved(reader, number, indexes)(body)
        except NotRegistered as problem:
            lacking[number] = str(problem)
            raise Undecodable(str(problem)) from None

    return decode


@lru_cache(maxsize=1024)
def _resolved(reader: Reader, number: int, indexes: tuple[int, ...]) -> Callable[[bytes], Any]:
    """How values of a writer's schema are decoded."""
    decoder: Any = _decoder(reader)
    found = registry(reader.registry).by_id(number)
    try:
        if found.kind.lower() != reader.format:
            raise Undecodable(f"it is of type {found.kind}, and {reader.format.upper()} is expected")
        if reader.format == "avro":
            writer = decoder.writer([text for _, text in found.texts])
            return lambda body: decoder.decode(body, writer)
        return _of_message(decoder, found, indexes)
    except (Undecodable, NotMapped) as problem:
        reason = f"schema id {number} of the record cannot be used: {problem}"
        return lambda _: _raise(reason)


def _of_message(decoder: Any, found: Registered, indexes: Sequence[int]) -> Callable[[bytes], Any]:
    """Protobuf's own rules resolve the two schemas, so the reader's is used; but it has to be the same message."""
    from ottla.pipelines.protobuf import message_at  # noqa: PLC0415 - only what is decoded has to be installed

    name = message_at(_files(found), indexes)
    if name != decoder.message:
        raise Undecodable(f"it is a {name}, and {decoder.message} is expected")
    return lambda body: decoder.decode(body, is_ours=True)


def _files(found: Registered) -> bytes:
    from ottla.pipelines.protobuf import file_set  # noqa: PLC0415 - only what is decoded has to be installed

    files = []
    for name, text in found.texts:
        try:
            files.append((name, base64.b64decode(text, validate=True)))
        except ValueError:
            raise NotMapped("the registry gives Protobuf as text only: it has to know format=serialized") from None
    return file_set(files)


def _raise(reason: str) -> Any:
    raise Undecodable(reason)
