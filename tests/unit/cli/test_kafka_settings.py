from __future__ import annotations

import pytest

from ottla.cli.kafka_settings import consumer_settings, parse_pairs, producer_settings
from ottla.cli.tool import Failure

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="a\\"b";'


@pytest.mark.parametrize(("given", "expected"), [
    ({"max.request.size": "5000"}, {"message.max.bytes": "5000"}),
    ({"buffer.memory": "33554432"}, {"queue.buffering.max.kbytes": "32768"}),
    ({"send.buffer.bytes": "-1"}, {"socket.send.buffer.bytes": "0"}),
    ({"sasl.jaas.config": JAAS}, {"sasl.username": "me", "sasl.password": 'a"b'}),
    ({"ssl.truststore.location": "ca.pem", "ssl.truststore.type": "PEM"}, {"ssl.ca.location": "ca.pem"}),
    ({"ssl.keystore.location": "me.p12", "ssl.keystore.type": "PKCS12"}, {"ssl.keystore.location": "me.p12"}),
    ({"ssl.keystore.location": "me.pem"}, {"ssl.certificate.location": "me.pem", "ssl.key.location": "me.pem"}),
    ({"ssl.endpoint.identification.algorithm": ""}, {"ssl.endpoint.identification.algorithm": "none"}),
    ({}, {"acks": "all", "enable.idempotence": "true", "partitioner": "murmur2_random"}),
    ({"acks": "1"}, {"enable.idempotence": "false"}),
    ({"retries": "0"}, {"enable.idempotence": "false"}),
])  # fmt: skip
def test_a_producer(given: dict[str, str], expected: dict[str, str]) -> None:
    settings = producer_settings({**given, "key.serializer": "x"})
    assert expected.items() <= settings.items()
    assert "key.serializer" not in settings


@pytest.mark.parametrize(("given", "expected"), [
    ({"auto.offset.reset": "none"}, {"auto.offset.reset": "error"}),
    ({"fetch.max.wait.ms": "9", "request.timeout.ms": "7"}, {"fetch.wait.max.ms": "9", "socket.timeout.ms": "7"}),
    ({"partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor,roundrobin"},
     {"partition.assignment.strategy": "range,roundrobin"}),
    ({"group.protocol": "consumer", "group.remote.assignor": "range"}, {"group.remote.assignor": "range"}),
])  # fmt: skip
def test_a_consumer(given: dict[str, str], expected: dict[str, str]) -> None:
    assert expected.items() <= consumer_settings(given).items()


def test_what_the_new_protocol_does_not_hear() -> None:
    given = {"group.protocol": "consumer", "session.timeout.ms": "1", "partition.assignment.strategy": "range"}
    assert not {"session.timeout.ms", "partition.assignment.strategy"} & consumer_settings(given).keys()


def test_an_assignor_that_librdkafka_lacks() -> None:
    with pytest.raises(Failure, match="StickyAssignor cannot be used"):
        consumer_settings({"partition.assignment.strategy": "org.apache.kafka.clients.consumer.StickyAssignor"})


def test_pairs() -> None:
    assert parse_pairs(["a=b=c", "d", "e="]) == {"a": "b=c", "d": "", "e": ""}
