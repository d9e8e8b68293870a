"""Avro and Protobuf through Spark, written by confluent-kafka's serializers: an outside witness for framing and encoding."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from fastavro import parse_schema, schemaless_writer
from pyspark.sql import SparkSession

from ottla import client
from ottla.client import Cluster
from ottla.pipelines.running import Failed
from pipelines.conftest import Run
from pipelines.test_pipelines import produce, rows, values
from support.protobuf import add, classes, file, file_set
from support.registry import SchemaRegistry


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry("reader", "p@ss") as server:
        yield server


def confluent(server: SchemaRegistry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": server.bare, "basic.auth.user.info": "reader:p@ss"})


def of(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


PAID = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
AT = {"type": "long", "logicalType": "timestamp-millis"}
FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "paid", "type": ["null", PAID]},
    {"name": "at", "type": AT},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "ref", "type": {"type": "string", "logicalType": "uuid"}},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "counts", "type": {"type": "map", "values": "int"}},
    {"name": "who", "type": ["null", {"type": "record", "name": "Who", "fields": [{"name": "name", "type": "string"}]}]},
]
OLD = {"type": "record", "name": "Order", "namespace": "shop", "fields": FIELDS[:5]}
LATER = [{**one, "default": default} for one, default in zip(FIELDS[5:], ([], {}, None), strict=True)]
NEW = {**OLD, "fields": [*FIELDS[:5], *LATER]}
NEWEST = {**OLD, "fields": [*FIELDS[:5], *LATER, {"name": "later", "type": "string", "default": "-"}]}
REF = "5b2d7e3c-7f2f-4f6e-9f39-cc0c1b4a1c11"
ROW = {
    "id": 1,
    "paid": Decimal("12.30"),
    "at": datetime(2026, 11, 1, 12, 0, 0, 123000, UTC),
    "day": date(2026, 11, 1),
    "ref": REF,
    "tags": ["a"],
    "counts": {"x": 1},
    "who": {"name": "Ada"},
}


def test_avro_of_a_registry(
    spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path, run_once: Run, registry: SchemaRegistry
) -> None:
    """Old and new writers give the columns of the newest schema, bad records their letters; a restart keeps its columns."""
    with_client = confluent(registry)
    old, new = (AvroSerializer(with_client, json.dumps(schema)) for schema in (OLD, NEW))
    first = old({**ROW, "paid": None}, of(topic))
    second = new({**ROW, "id": 2}, of(topic))
    bad = [b"nonsense", second[:-1], b"\0\0\0\0\x63" + second[5:], None]
    produce(cluster, topic, [first, second, *bad])
    client.create_topic(cluster, f"{topic}-bad", 1, 1)
    pipeline = tmp_path / "p.yaml"
    pipeline.write_text(f"""
sources:
  s:
    topic: {topic}
    decode: {{format: avro, schema_registry: "{registry.url}", bad: dead-letter, dead_letter: {topic}-bad}}
steps: {{plain: {{sql: "SELECT * EXCEPT (_key, _topic, _partition, _offset, _timestamp) FROM s"}}}}
sinks: {{out: {{from: plain, format: parquet, path: out}}}}
""")
    run_once(pipeline)
    newest = f"/subjects/{topic}-value/versions/latest"
    assert registry.asked[newest] == 1
    third = AvroSerializer(with_client, json.dumps(NEWEST))({**ROW, "id": 3, "later": "now"}, of(topic))
    produce(cluster, topic, [third], create=False)
    run_once(pipeline)
    assert registry.asked[newest] == 1
    table = spark.read.parquet(str(tmp_path / "out"))
    assert table.dtypes == [
        ("id", "bigint"), ("paid", "decimal(10,2)"), ("at", "timestamp"), ("day", "date"), ("ref", "string"),
        ("tags", "array<string>"), ("counts", "map<string,int>"), ("who", "struct<name:string>"),
    ]  # fmt: skip
    found = {row["id"]: row for row in table.orderBy("id").toArrow().to_pylist(maps_as_pydicts="strict")}
    assert found == {
        1: {**ROW, "paid": None, "tags": [], "counts": {}, "who": None},
        2: {**ROW, "id": 2},
        3: {**ROW, "id": 3},
    }
    letters = {row["value"]: row["headers"][0]["value"].decode() for row in rows(cluster, f"{topic}-bad", "value", "headers")}
    assert letters == {
        bad[0]: "the value has no schema id: a registry's framing begins with byte 0 and four bytes of id",
        bad[1]: "the value is not Avro of this schema: it ends too early",
        bad[2]: f"the schema registry {registry.bare} has no schema id 99",
        None: "the value is null",
    }


def test_protobuf_of_a_registry(cluster: Cluster, topic: str, tmp_path: Path, run_once: Run, registry: SchemaRegistry) -> None:
    """Another message is a bad record; a registry that cannot be asked ends the query, and no record is blamed."""
    schema = file(f"{topic}.proto")
    del schema.dependency[:]
    add(schema.message_type.add(name="Other"), "id", 1, "int32")
    order = schema.message_type.add(name="Order")
    add(order, "id", 1, "int32")
    add(order, "tags", 2, "string", "repeated")
    found = classes(schema)
    by_name = {name: found(f"shop.{name}") for name in ("Order", "Other")}
    serializer = {
        name: ProtobufSerializer(one, confluent(registry), {"use.deprecated.format": False}) for name, one in by_name.items()
    }
    good = serializer["Order"](by_name["Order"](id=1, tags=["a"]), of(topic))
    other = serializer["Other"](by_name["Other"](id=2), of(topic))
    produce(cluster, topic, [good], partitions=1)
    pipeline = tmp_path / "p.yaml"
    pipeline.write_text(f"""
sources: {{s: {{topic: {topic}, decode: {{format: protobuf, message: shop.Order, schema_registry: "{registry.url}"}}}}}}
sinks: {{out: {{from: s, topic: {topic}-out, create: {{partitions: 1}}}}}}
""")
    run_once(pipeline)
    assert values(cluster, f"{topic}-out") == [{"id": 1, "tags": ["a"]}]
    produce(cluster, topic, [other], create=False)
    produce(cluster, topic, [b"\0\0\0\0\7" + good[5:]], create=False)
    registry.failing = 1000
    with pytest.raises(Failed, match=rf"sink out failed: The schema registry {registry.bare} refuses schema id \d: 503"):
        run_once(pipeline)
    registry.failing = 0
    words = f"Record {topic}-0 at offset 1 cannot be decoded: schema id 1 of the record cannot be used: it is a shop.Other, and"
    with pytest.raises(Failed, match=words):
        run_once(pipeline)


def test_schemas_in_files(cluster: Cluster, topic: str, tmp_path: Path, run_once: Run) -> None:
    """Without a registry, values are the bytes alone; bad ones are told in a column, tombstones dropped or kept."""
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(OLD), ROW)
    (tmp_path / "order.avsc").write_text(json.dumps(OLD))
    schema = file("order.proto")
    add(schema.message_type.add(name="Order"), "id", 1, "int32")
    (tmp_path / "order.desc").write_bytes(file_set(schema))
    produce(cluster, f"{topic}-avro", [stream.getvalue(), b"\x02", None])
    produce(cluster, f"{topic}-proto", [b"\x08\x05", b"nonsense", None])
    pipeline = tmp_path / "p.yaml"
    pipeline.write_text(f"""
sources:
  a: {{topic: {topic}-avro, decode: {{format: avro, schema: order.avsc, bad: column, tombstones: drop}}}}
  p: {{topic: {topic}-proto, decode: {{format: protobuf, descriptor: order.desc, message: shop.Order, bad: column,
      tombstones: keep}}}}
steps:
  both: {{sql: "SELECT 'a' AS f, id, _bad AS bad, _value AS raw FROM a UNION ALL SELECT 'p', id, _bad, _value FROM p"}}
sinks: {{both: {{topic: {topic}-out, create: {{partitions: 1}}}}}}
""")
    run_once(pipeline)
    assert values(cluster, f"{topic}-out") == sorted(
        [
            {"f": "a", "id": 1, "bad": None, "raw": None},
            {"f": "a", "id": None, "bad": "the value is not Avro of this schema: it ends too early", "raw": "Ag=="},
            {"f": "p", "id": 5, "bad": None, "raw": None},
            {"f": "p", "id": None, "bad": "the value is no shop.Order: Wire format was corrupt", "raw": "bm9uc2Vuc2U="},
            {"f": "p", "id": None, "bad": None, "raw": None},
        ],
        key=str,
    )
