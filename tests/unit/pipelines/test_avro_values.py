"""Avro as columns: every type there and back, what bad bytes are called, old and new schemas, and what is refused."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer

from ottla.pipelines.kinds import NotMapped
from ottla.pipelines.registry import RegistryFailed, registry
from ottla.pipelines.values import Reader, decode_values, row_of
from support.registry import SchemaRegistry


def record(*fields: dict[str, Any] | tuple[str, Any], name: str = "R") -> dict[str, Any]:
    made = [one if isinstance(one, dict) else {"name": one[0], "type": one[1]} for one in fields]
    return {"type": "record", "name": name, "fields": made}


def written(schema: Any, row: Any) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(schema), row)
    return stream.getvalue()


def read(values: list[bytes | None], reader: Any, address: str = "") -> tuple[list[Any], list[str | None]]:
    found = decode_values(pa.array(values, pa.binary()), Reader("avro", (json.dumps(reader),), registry=address))
    found.validate(full=True)
    return found.field("decoded").to_pylist(), found.field("reason").to_pylist()


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}
COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
INNER = record(("x", "int"), ("when", ["null", {"type": "long", "logicalType": "timestamp-millis"}]), name="Inner")
WHEN = datetime(2026, 11, 1, 12, 30, 1, 123456, UTC)
ID = UUID("5b2d7e3c-7f2f-4f6e-9f39-cc0c1b4a1c11")


@pytest.mark.parametrize(
    ("kind", "sql", "value", "expected"),
    [
        ("boolean", "BOOLEAN", True, True),
        ("int", "INT", -7, -7),
        ("long", "BIGINT", 1 << 60, 1 << 60),
        ("float", "FLOAT", 1.5, 1.5),
        ("double", "DOUBLE", 0.1, 0.1),
        ("string", "STRING", "grün", "grün"),
        ("bytes", "BINARY", b"\xff\0", b"\xff\0"),
        ({"type": "fixed", "name": "F", "size": 2}, "BINARY", b"ab", b"ab"),
        (COLOUR, "STRING", "BLUE", "BLUE"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "TIMESTAMP", WHEN, WHEN),
        ({"type": "long", "logicalType": "timestamp-millis"}, "TIMESTAMP", WHEN, WHEN.replace(microsecond=123000)),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "TIMESTAMP_NTZ", WHEN.replace(tzinfo=None),
         WHEN.replace(tzinfo=None)),
        ({"type": "int", "logicalType": "date"}, "DATE", date(1969, 2, 28), date(1969, 2, 28)),
        (DECIMAL, "DECIMAL(30, 2)", Decimal("-1234567890123456789012345678.91"), Decimal("-1234567890123456789012345678.91")),
        ({"type": "fixed", "name": "D", "size": 8, "logicalType": "decimal", "precision": 9, "scale": 3}, "DECIMAL(9, 3)",
         Decimal("0.125"), Decimal("0.125")),
        ({"type": "string", "logicalType": "uuid"}, "STRING", ID, str(ID)),
        ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, "STRING", ID.bytes, str(ID)),
        ({"type": "int", "logicalType": "time-millis"}, "INT", 1000, 1000),  # no type of Spark's: it stays its number
        (["null", "string"], "STRING", None, None),
        (["string", "null"], "STRING", "a", "a"),
        (["long"], "BIGINT", 1, 1),
        ({"type": "array", "items": ["null", DECIMAL]}, "ARRAY<DECIMAL(30, 2)>", [Decimal("1.25"), None],
         [Decimal("1.25"), None]),
        ({"type": "map", "values": "int"}, "MAP<STRING, INT>", {"a": 1, "b": 2}, [("a", 1), ("b", 2)]),
        ({"type": "map", "values": {"type": "array", "items": INNER}},
         "MAP<STRING, ARRAY<STRUCT<`x`: INT, `when`: TIMESTAMP>>>",
         {"a": [{"x": 1, "when": WHEN}]}, [("a", [{"x": 1, "when": WHEN.replace(microsecond=123000)}])]),
        (INNER, "STRUCT<`x`: INT, `when`: TIMESTAMP>", {"x": 1, "when": None}, {"x": 1, "when": None}),
    ],
)  # fmt: skip
def test_every_type(kind: Any, sql: str, value: Any, expected: Any) -> None:
    schema = record(("f", kind))
    assert row_of(Reader("avro", (json.dumps(schema),))).sql == f"STRUCT<`f`: {sql}>"
    bare = json.loads(json.dumps(schema).replace('"logicalType": "uuid"', '"unused": ""'))  # written as its text or bytes
    body = written(bare if isinstance(value, bytes) else schema, {"f": value})
    assert read([body], schema) == ([{"f": expected}], [None])


PERSON = record(("name", "string"), ("age", ["null", "int"]))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "the value is empty"),
        (b"\x06ab", "the value is not Avro of this schema: it ends too early"),
        (b"\x04ab\x00more", "the value is not Avro of this schema: 4 bytes are left over"),
        (b"\x04\xff\xfe\x00", "the value is not Avro of this schema: its text is not UTF-8"),
        (b"\x04ab\x08", "the value is not Avro of this schema: a union or an enum has no such branch"),
        (b'{"name":"ab"}', "the value is not Avro of this schema: it ends too early"),
    ],
)
def test_bad_bytes_have_their_reason_and_good_ones_beside_them_stay(value: bytes, reason: str) -> None:
    good = written(PERSON, {"name": "ab", "age": 3})
    rows, reasons = read([good, value, None, good], PERSON)
    assert rows == [{"name": "ab", "age": 3}, None, None, {"name": "ab", "age": 3}]
    assert reasons == [None, reason, None, None]


def test_a_value_that_no_column_holds_is_bad_alone() -> None:
    narrow = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}
    wide = record(("f", {"type": "bytes"}))
    good, bad = written(wide, {"f": (123).to_bytes(1, "big")}), written(wide, {"f": (123456).to_bytes(4, "big")})
    rows, reasons = read([good, bad, good], record(("f", narrow)))
    assert rows == [{"f": Decimal("12.3")}, None, {"f": Decimal("12.3")}]
    assert reasons[1] is not None
    assert reasons[1].startswith("the value does not fit the schema: ")
    millis = record(("f", {"type": "long", "logicalType": "timestamp-millis"}))
    rows, reasons = read([written(record(("f", "long")), {"f": (1 << 62) + 1})], millis)
    assert (rows, reasons[0] is not None) == ([None], True)


def test_the_writers_schema_resolves_to_the_readers() -> None:
    old = record(("name", "string"), ("age", "int"), ("gone", "string"), ("colour", COLOUR))
    newer = {**COLOUR, "symbols": ["RED"], "default": "RED"}
    new = record(
        ("age", ["null", "long"]), ("name", "string"), {"name": "raw", "type": "bytes", "default": "\u00ff"}, ("colour", newer)
    )
    with SchemaRegistry() as server:
        number = server.register("t-value", old)
        shared = server.register("inner", {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]})
        assert shared != number
        parts = record(("age", "int"), ("name", "string"), ("colour", "Colour"))
        split = server.register("u-value", parts, references=[{"name": "Colour", "subject": "inner", "version": 1}])
        body = written(old, {"name": "a", "age": 3, "gone": "x", "colour": "BLUE"})
        whole = record(("age", "int"), ("name", "string"), ("colour", COLOUR))
        referring = written(whole, {"name": "b", "age": 4, "colour": "RED"})
        row = {"age": 3, "name": "a", "raw": b"\xff", "colour": "RED"}
        other = {"age": 4, "name": "b", "raw": b"\xff", "colour": "RED"}
        values = [framed(number, body), framed(split, referring), framed(number, body)]
        assert read(values, new, server.url) == ([row, other, row], [None] * 3)
        assert server.asked == {f"/schemas/ids/{number}": 1, f"/schemas/ids/{split}": 1, "/subjects/inner/versions/1": 1}


def test_what_a_registry_makes_of_a_record() -> None:
    with SchemaRegistry("us er", "p@ss/word") as server:
        good = server.register("a", PERSON)
        other = server.register("b", record(("name", "int")))
        timed = server.register("c", record(("name", "string"), ("age", {"type": "int", "logicalType": "date"})))
        proto = server.register("d", "AAAA", "PROTOBUF")
        body = written(PERSON, {"name": "ab", "age": 3})
        values = [
            framed(good, body),
            body,
            b"\0\0",
            framed(99, body),
            framed(99, body),
            framed(other, b"\2"),
            framed(proto, body),
        ]
        rows, reasons = read([*values, None], PERSON, server.url)
        assert rows == [{"name": "ab", "age": 3}, *[None] * 7]
        unframed = "the value has no schema id: a registry's framing begins with byte 0 and four bytes of id"
        lacking = f"the schema registry {server.bare} has no schema id 99"
        assert reasons[:5] == [None, unframed, unframed, lacking, lacking]
        assert reasons[5] is not None
        assert reasons[5].startswith("the writer's schema does not resolve to the reader's: ")
        assert reasons[6] == f"schema id {proto} of the record cannot be used: it is of type PROTOBUF, and AVRO is expected"
        assert server.asked["/schemas/ids/99"] == 1  # once for a batch
        day = record(("name", "string"), ("age", {"type": "int", "logicalType": "date"}))
        millis = record(("name", "string"), ("age", {"type": "long", "logicalType": "timestamp-millis"}))
        assert read([framed(timed, body[:-2] + b"\x02")], day, server.url)[1] == [None]
        _, (reason,) = read([framed(timed, body)], millis, server.url)
        assert reason == (
            f"schema id {timed} of the record cannot be used: age is date to the writer and timestamp-millis to the reader"
        )


def test_a_registry_that_cannot_be_asked_ends_the_query_and_blames_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.pipelines.registry._PAUSE_SECONDS", 0.0)
    with SchemaRegistry("user", "secret") as server:
        number = server.register("a", PERSON)
        value = framed(number, written(PERSON, {"name": "ab", "age": 3}))
        server.failing = 3
        with pytest.raises(RegistryFailed, match=f"The schema registry {server.bare} refuses schema id 1: 503"):
            read([value], PERSON, server.url)
        server.failing = 2  # it comes round before we give up
        assert read([value], PERSON, server.url)[1] == [None]
        wrong = server.url.replace("secret", "hidden")
        with pytest.raises(RegistryFailed, match="401") as refused:
            read([value], PERSON, wrong)
        assert "hidden" not in str(refused.value)
        gone = server.url
    with pytest.raises(RegistryFailed, match=r"does not answer: .*refused"):
        registry(gone).newest("b")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ('{"type": "record"', "it is not JSON"),
        ('"string"', "a record is expected"),
        ('{"type": "record", "fields": []}', "it is no Avro schema"),
        (record(("f", "nothing")), "it names nothing, which is no type and not defined before"),
        (record(("f", "null")), "field f: null has no type of Spark's"),
        (record(("f", ["null", "int", "string"])), "field f: a union of int and string is no column"),
        (record(("f", {"type": "array", "items": record(("g", ["int", "string"]), name="G")})),
         r"field f\[\]\.g: a union of int and string"),
        (record(("next", ["null", "R"])), "field next: R contains itself"),
        (record(("f", record(name="E"))), "field f: it has no fields"),
        (record(("f", {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2})),
         "field f: a decimal of 40 digits, 2 of them behind the point, does not fit: 38 is most"),
        (record(("a", "int"), ("A", "int")), "a and A are one name to Spark"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_column_is_refused(schema: Any, words: str) -> None:
    with pytest.raises(NotMapped, match=words):
        row_of(Reader("avro", (schema if isinstance(schema, str) else json.dumps(schema),)))
