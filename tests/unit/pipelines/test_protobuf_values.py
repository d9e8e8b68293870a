"""Protobuf as columns: every type, what is not set, what bad bytes are called, framing, and what is refused."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from ottla.pipelines.kinds import NotMapped
from ottla.pipelines.registry import unindexed
from ottla.pipelines.undecodable import Undecodable
from ottla.pipelines.values import Reader, decode_values, of_registered, row_of
from support.protobuf import add, add_map, classes, file, file_set
from support.registry import SchemaRegistry


def orders() -> Any:
    """A file with a message of everything."""
    made = file("orders.proto")
    made.enum_type.add(name="Colour")
    for number, name in enumerate(("UNKNOWN", "RED")):
        made.enum_type[0].value.add(name=name, number=number)
    line = made.message_type.add(name="Line")
    add(line, "sku", 1, "string")
    add(line, "count", 2, "uint32")
    order = made.message_type.add(name="Order")
    for number, kind in enumerate(("bool", "sint32", "uint32", "fixed64", "int64", "float", "double", "string", "bytes"), 1):
        add(order, f"a_{kind}", number, kind)
    add(order, "colour", 10, "enum:.shop.Colour")
    add(order, "at", 11, ".google.protobuf.Timestamp")
    add(order, "note", 12, ".google.protobuf.StringValue")
    add(order, "lines", 13, ".shop.Line", "repeated")
    add(order, "first", 14, ".shop.Line")
    add_map(order, "prices", 15, ".shop.Order", "string", "double")
    order.oneof_decl.add(name="way")
    order.oneof_decl.add(name="_maybe")
    add(order, "card", 16, "string", oneof_index=0)
    add(order, "cash", 17, "int32", oneof_index=0)
    add(order, "maybe", 18, "int32", oneof_index=1, proto3_optional=True)
    return made


def reader_of(*files: Any, message: str, address: str = "") -> Reader:
    return Reader("protobuf", (base64.b64encode(file_set(*files)).decode(),), message, address)


def read(values: list[bytes | None], reader: Reader) -> tuple[list[Any], list[str | None]]:
    found = decode_values(pa.array(values, pa.binary()), reader)
    found.validate(full=True)
    return found.field("decoded").to_pylist(), found.field("reason").to_pylist()


EMPTY = {
    "a_bool": False, "a_sint32": 0, "a_uint32": 0, "a_fixed64": Decimal(0), "a_int64": 0, "a_float": 0.0, "a_double": 0.0,
    "a_string": "", "a_bytes": b"", "colour": "UNKNOWN", "at": None, "note": None, "lines": [], "first": None, "prices": [],
    "card": None, "cash": None, "maybe": None,
}  # fmt: skip


def test_every_type_and_what_is_not_set() -> None:
    schema = orders()
    reader = reader_of(schema, message="shop.Order")
    assert row_of(reader).sql == (
        "STRUCT<`a_bool`: BOOLEAN, `a_sint32`: INT, `a_uint32`: BIGINT, `a_fixed64`: DECIMAL(20, 0), `a_int64`: BIGINT,"
        " `a_float`: FLOAT, `a_double`: DOUBLE, `a_string`: STRING, `a_bytes`: BINARY, `colour`: STRING, `at`: TIMESTAMP,"
        " `note`: STRING, `lines`: ARRAY<STRUCT<`sku`: STRING, `count`: BIGINT>>,"
        " `first`: STRUCT<`sku`: STRING, `count`: BIGINT>,"
        " `prices`: MAP<STRING, DOUBLE>, `card`: STRING, `cash`: INT, `maybe`: INT>"
    )
    order = classes(schema)("shop.Order")(
        a_bool=True, a_sint32=-5, a_uint32=(1 << 32) - 1, a_fixed64=(1 << 64) - 1, a_int64=-(1 << 63), a_float=1.5,
        a_double=0.1, a_string="grün", a_bytes=b"\xff", colour=1, lines=[{"sku": "x", "count": 2}], first={"sku": "y"},
        prices={"a": 1.25},
        cash=0, maybe=0,
    )  # fmt: skip
    order.at.FromDatetime(datetime(2026, 11, 1, 12, 0, 0, 123456))
    order.note.value = ""
    newer = classes(schema)("shop.Order")(colour=7)
    rows, reasons = read([order.SerializeToString(), b"", newer.SerializeToString(), None], reader)
    assert reasons == [None] * 4
    assert rows[0] == {
        "a_bool": True, "a_sint32": -5, "a_uint32": (1 << 32) - 1, "a_fixed64": Decimal((1 << 64) - 1), "a_int64": -(1 << 63),
        "a_float": 1.5, "a_double": 0.1, "a_string": "grün", "a_bytes": b"\xff", "colour": "RED",
        "at": datetime(2026, 11, 1, 12, 0, 0, 123456, UTC), "note": "", "lines": [{"sku": "x", "count": 2}],
        "first": {"sku": "y", "count": 0}, "prices": [("a", 1.25)], "card": None, "cash": 0, "maybe": 0,
    }  # fmt: skip
    assert rows[1:] == [EMPTY, {**EMPTY, "colour": "7"}, None]


def test_bad_bytes_have_their_reason() -> None:
    schema = file("old.proto", syntax="proto2")
    message = schema.message_type.add(name="M")
    add(message, "id", 1, "int32", "required")
    add(message, "size", 2, "int32", default_value="7")
    add(message, "text", 3, "string")
    newer = b"\x98\x06\x01"  # field 99 alone
    values: list[bytes | None] = [b"\x08\x01", b"nonsense", b"\x08", b"\x10\x01", b""]
    rows, reasons = read(values, reader_of(schema, message="shop.M"))
    assert rows == [{"id": 1, "size": 7, "text": None}, None, None, None, None]
    corrupt = "the value is no shop.M: Wire format was corrupt"
    assert reasons == [None, corrupt, corrupt, "field id is missing", "field id is missing"]
    text = reader_of(orders(), message="shop.Line")
    assert read([newer, b"\x0a\x01\xff"], text)[1] == [
        "the value is no shop.Line: it has none of its fields",
        "the value is no shop.Line: String field had bad UTF-8",
    ]


def test_the_framing_of_a_registry() -> None:
    """The message of the writer has to be ours; fields of its newer schema are passed over."""
    shared = file("shared.proto", package="base")
    add(shared.message_type.add(name="Money"), "cents", 1, "int64")
    old = file("order.proto", imports=("shared.proto",))
    order = old.message_type.add(name="Order")
    add(order, "id", 1, "int32")
    add(order, "price", 2, ".base.Money")
    add(order.nested_type.add(name="Part"), "id", 1, "int32")
    new = file("order.proto", imports=("shared.proto",))
    new.CopyFrom(old)
    add(new.message_type[0], "more", 3, "string")
    with SchemaRegistry() as server:
        server.register("shared", base64.b64encode(shared.SerializeToString()).decode(), "PROTOBUF")
        refers = [{"name": "shared.proto", "subject": "shared", "version": 1}]
        for version in (old, new):
            server.register("t-value", base64.b64encode(version.SerializeToString()).decode(), "PROTOBUF", refers)
        text = server.register("text", 'syntax = "proto3";', "PROTOBUF")
        of = classes(shared, new)
        body = of("shop.Order")(id=1, price={"cents": 5}, more="x").SerializeToString()
        only_new = of("shop.Order")(more="x").SerializeToString()
        from ottla.pipelines.registry import Registry  # noqa: PLC0415 - one of its own: nothing is kept from other tests

        newest = of_registered(Registry(server.url).newest("t-value"), "protobuf", "", server.url)
        assert row_of(newest).sql == "STRUCT<`id`: INT, `price`: STRUCT<`cents`: BIGINT>, `more`: STRING>"
        reader = reader_of(shared, old, message="shop.Order", address=server.url)
        head = b"\0\0\0\0\3"
        values: list[bytes | None] = [head + b"\0" + body, head + b"\2\0" + body, head + b"\0" + only_new]
        values += [head + b"\4\0\0\x08\1", head + b"\2\2" + body, head, b"\0\0\0\0" + bytes([text]) + b"\0" + body]
        rows, reasons = read(values, reader)
        row = {"id": 1, "price": {"cents": 5}}
        assert rows == [row, row, {"id": 0, "price": None}, None, None, None, None]
        assert reasons == [
            None,
            None,
            None,
            "schema id 3 of the record cannot be used: it is a shop.Order.Part, and shop.Order is expected",
            "schema id 3 of the record cannot be used: its schema has no message [1]",
            "the value has no message indexes behind its schema id",
            f"schema id {text} of the record cannot be used: the registry gives Protobuf as text only: it has to know"
            " format=serialized",
        ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(b"\0x", ((0,), b"x")), (b"\2\0x", ((0,), b"x")), (b"\4\2\xac\2x", ((1, 150), b"x")), (b"\1", None), (b"\4\2", None)],
)
def test_message_indexes(value: bytes, expected: Any) -> None:
    if expected is None:
        with pytest.raises(Undecodable, match="message indexes"):
            unindexed(value)
    else:
        assert unindexed(value) == expected


def test_what_cannot_be_a_column_is_refused() -> None:
    tree = file("tree.proto")
    node = tree.message_type.add(name="Node")
    add(node, "children", 1, ".shop.Node", "repeated")
    holder = tree.message_type.add(name="Holder")
    add(holder, "nothing", 1, ".shop.Nothing")
    tree.message_type.add(name="Nothing")
    far = file("far.proto", imports=("elsewhere.proto",))
    for files, message, words in (
        ((tree,), "shop.Node", "field children: shop.Node contains itself"),
        ((tree,), "shop.Holder", "field nothing: it has no fields"),
        ((tree,), "shop.None", "it has no message shop.None: there are shop.Holder, shop.Node, shop.Nothing"),
        ((far,), "shop.M", "far.proto imports elsewhere.proto, which is not in it: give protoc the option --include_imports"),
    ):
        with pytest.raises(NotMapped, match=words):
            row_of(reader_of(*files, message=message))
    with pytest.raises(NotMapped, match="it is no FileDescriptorSet"):
        row_of(Reader("protobuf", (base64.b64encode(b"nonsense").decode(),), "shop.M"))
