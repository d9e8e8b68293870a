"""Every API, version and direction, byte for byte what kio writes."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import kio_oracle as oracle
import pytest
from kio.index import UnknownAPIKey, UnknownEntity, load_entity_schema, load_request_schema, load_response_schema
from kio.static.constants import EntityType

from ottla.wire.apis import REQUESTS, RESPONSES, consumer_groups
from ottla.wire.apis import consumer_protocol as protocol
from ottla.wire.schema import Message

MESSAGES_EACH = 25


def cases() -> list[Any]:
    found = []
    for tables, load in ((REQUESTS, load_request_schema), (RESPONSES, load_response_schema)):
        for key, cls in tables.items():
            found += [
                pytest.param(cls, version, load, key, id=f"{cls.name}-v{version}")
                for version in range(cls.min_version, cls.max_version + 1)
                if (cls.name, version) not in oracle.UNKNOWN
            ]
    for cls, name in (
        (protocol.ConsumerProtocolSubscription, "consumer_protocol_subscription"),
        (protocol.ConsumerProtocolAssignment, "consumer_protocol_assignment"),
    ):
        found += [
            pytest.param(
                cls, version, lambda n, v: load_entity_schema(n, v, EntityType.data), name, id=f"{cls.name}-v{version}"
            )
            for version in range(4)
        ]
    return found


@pytest.mark.parametrize(("cls", "version", "load", "key"), cases())
def test_same_bytes_and_same_values(cls: type[Message], version: int, load: Any, key: Any) -> None:
    theirs = load(key, version)
    rng = random.Random(f"{cls.name} {version}")
    encode, parts, decode = cls.encoder(version), cls.parts_encoder(version), cls.decoder(version)
    for _ in range(MESSAGES_EACH):
        entity = oracle.random_entity(theirs, rng)
        expected = oracle.encode(entity)
        ours = oracle.as_ours(cls, entity)
        assert encode(ours) == expected
        assert parts(ours) == ([expected] if expected else [])
        for buffer in (expected, bytearray(expected), memoryview(expected)):
            assert decode(buffer, 0) == (ours, len(expected))
        assert decode(b"header" + expected + b"rest", 6) == (ours, len(expected) + 6)


@pytest.mark.parametrize(("cls", "version", "load", "key"), cases())
def test_same_fields_and_defaults(cls: type[Message], version: int, load: Any, key: Any) -> None:
    theirs = load(key, version)
    assert theirs.__flexible__ == (version >= cls.flexible)
    compare_fields(cls, theirs, version)


def compare_fields(cls: Any, theirs: Any, version: int) -> None:
    present = {field.name for field in cls.__fields__ if field.since <= version <= field.until}
    assert present == {oracle.our_name(cls, field) for field in dataclasses.fields(theirs)}
    for field in dataclasses.fields(theirs):
        ours = oracle.our_field(cls, field)
        kind, is_array, nullable = oracle.shape(field)
        assert ours.tag == field.metadata.get("tag")
        if dataclasses.is_dataclass(kind):
            compare_fields(ours.element.struct if is_array else ours.struct, kind, version)
        elif field.metadata["kafka_type"] not in {"uuid", "datetime_i64"}:  # kio has None for what is zero or -1 on the wire
            assert nullable == (ours.nullable_since <= version), field.name
        if field.default is not dataclasses.MISSING and not dataclasses.is_dataclass(kind):
            default = oracle.on_the_wire(field.default, field)
            assert (list(ours.default) if is_array and ours.default is not None else ours.default) == default, field.name


def test_every_version_of_every_api_has_an_oracle() -> None:
    """kio knows all that travels; `test_stored_records` compares the internal topics' records with Apache Kafka's bytes."""
    without = []
    for tables, load in ((REQUESTS, load_request_schema), (RESPONSES, load_response_schema)):
        for key, cls in tables.items():
            for version in range(cls.min_version, cls.max_version + 1):
                try:
                    load(key, version)
                except (ImportError, UnknownAPIKey, UnknownEntity):
                    without.append((cls.name, version))
    assert set(without) == oracle.UNKNOWN


def test_a_version_that_kio_does_not_know() -> None:
    request = consumer_groups.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=3,
        instance_id=None,
        rack_id="r",
        rebalance_timeout_ms=5,
        subscribed_topic_names=["t"],
        subscribed_topic_regex="t.*",
        server_assignor=None,
        topic_partitions=[],
    )
    written = b"\x02g\x02m\0\0\0\x03\0\x02r\0\0\0\x05\x02\x02t\x04t.*\0\x01\0"
    assert request.encoder(1)(request) == written
    assert request.decoder(1)(written, 0) == (request, len(written))
    response = consumer_groups.ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=3, heartbeat_interval_ms=5000)
    assert response.encoder(1)(response) == response.encoder(0)(response)
