"""`ottla configs` beside kafka-configs.sh: topics and brokers at both, quotas, users and loggers at Apache Kafka."""

from __future__ import annotations

import pytest

from commands.side import Side
from robustness.raw import wait_until

pytestmark = pytest.mark.java


def test_settings_of_topics(side: Side, topic: str) -> None:
    for twin in ("ours", "theirs"):
        assert side.ours("topics", f"--create --topic {topic}-{twin}").code == 0
    file = side.file("retention.bytes=12345\nflush.ms=7\n")
    for change in (
        "--add-config retention.ms=1000,cleanup.policy=[compact,delete]",
        "--add-config retention.ms=2000 --delete-config cleanup.policy",
        f"--add-config-file {file}",
        "--delete-config flush.ms",
    ):
        side.twins("configs", f"--alter --entity-type topics --entity-name TOPIC {change}", topic)
    side.twins("configs", "--alter --topic TOPIC --add-config max.message.bytes=4096", topic)
    side.twins("configs", "--describe --topic TOPIC", topic)
    for arguments in (f"--topic {topic}-ours", f"--topic {topic}-ours --all", "--entity-type topics"):
        side.same("configs", f"--describe {arguments}", _blocks)
    (found,) = side.objects("configs", f"--describe --topic {topic}-ours")
    assert {one["name"]: one["value"] for one in found["configs"]} == {
        "retention.ms": "2000",
        "retention.bytes": "12345",
        "max.message.bytes": "4096",
    }


def test_settings_of_brokers(side: Side) -> None:
    broker = side.brokers[0]
    change = "--alter --add-config log.cleaner.threads"
    for entity, value in ((f"--broker {broker}", 1), ("--broker-defaults", 2), ("--entity-type brokers --entity-default", 2)):
        assert side.ours("configs", f"{change}={value} {entity}") == side.theirs("configs", f"{change}={value} {entity}")
    for arguments in (
        f"--broker {broker}",
        f"--entity-type brokers --entity-name {broker} --all",
        "--broker-defaults",
        "--entity-type brokers",
    ):
        side.same("configs", f"--describe {arguments}")
    for entity in (f"--broker {broker}", "--broker-defaults"):
        assert side.ours("configs", f"--alter {entity} --delete-config log.cleaner.threads").code == 0
    wait_until(lambda: "log.cleaner.threads" not in side.same("configs", "--describe --entity-type brokers"))


@pytest.mark.slow
def test_quotas(apache_side: Side) -> None:
    side = apache_side
    for arguments in (
        "--client TOPIC --add-config producer_byte_rate=100,consumer_byte_rate=20000000",
        "--user TOPIC --add-config producer_byte_rate=100",
        "--user TOPIC --client c --add-config request_percentage=50",
        "--entity-type users --entity-name TOPIC --entity-type clients --entity-default --add-config producer_byte_rate=5",
        "--client TOPIC --delete-config producer_byte_rate",
    ):
        side.twins("configs", f"--alter {arguments}", "q")
    for arguments in (
        "--entity-type users --entity-default --entity-type clients --entity-default --add-config producer_byte_rate=5",
        "--client-defaults --add-config controller_mutation_rate=3",
        "--ip 127.0.0.9 --add-config connection_creation_rate=7",
        "--ip-defaults --add-config connection_creation_rate=100000",
    ):
        side.same("configs", f"--alter {arguments}")
    for arguments in (
        "--entity-type clients",
        "--client q-ours",
        "--client nope",
        "--client-defaults",
        "--entity-type users",
        "--user q-ours",
        "--user-defaults",
        "--entity-type users --entity-type clients",
        "--user q-ours --client c",
        "--entity-type ips",
        "--ip 127.0.0.9",
    ):
        side.same("configs", f"--describe {arguments}", _lines)
    for entity, name in (  # what is left would hold up every test that comes after
        ("--entity-type users --entity-default --entity-type clients --entity-default", "producer_byte_rate"),
        ("--client-defaults", "controller_mutation_rate"),
        ("--ip-defaults", "connection_creation_rate"),
    ):
        assert side.ours("configs", f"--alter {entity} --delete-config {name}").code == 0
    assert side.objects("configs", "--describe --client q-ours") == [
        {"entity": {"client-id": "q-ours"}, "quotas": {"consumer_byte_rate": 20000000.0}}
    ]


@pytest.mark.slow
def test_users_and_loggers(apache_side: Side) -> None:
    side = apache_side
    both = "SCRAM-SHA-256=[iterations=8192,password=sec],SCRAM-SHA-512=[password=sec]"
    side.twins("configs", f"--alter --user TOPIC --add-config {both}", "scram")
    side.twins("configs", "--describe --user TOPIC", "scram")
    side.same("configs", "--describe --entity-type users", _lines)
    side.twins("configs", "--alter --entity-type users --entity-name TOPIC --delete-config SCRAM-SHA-256", "scram")
    side.twins("configs", "--describe --user TOPIC", "scram")
    broker = side.brokers[0]
    side.same("configs", f"--alter --broker-logger {broker} --add-config kafka.server.KafkaApis=ERROR")
    assert "kafka.server.KafkaApis=ERROR" in side.same("configs", f"--describe --broker-logger {broker}")
    side.same("configs", f"--alter --broker-logger {broker} --delete-config kafka.server.KafkaApis")


def _lines(printed: str) -> list[str]:
    """Without an order of entities, or of the quotas of one."""
    found = (one.partition(" are ") for one in printed.splitlines())
    return sorted(head + ",".join(sorted(tail.split(", "))) for head, _, tail in found)


def _blocks(printed: str) -> list[str]:
    """Without an order of entities."""
    return sorted(printed.replace("\n  ", " | ").splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "exactly one action"),
        ("--describe", "No entity is given"),
        ("--describe --entity-type nope --entity-name x", "Entity type nope is not valid"),
        ("--describe --topic t --entity-type topics", "cannot be used beside flags"),
        ("--describe --topic t --broker 1", "Only users and clients may be given together"),
        ("--describe --topic nope", "Topic nope does not exist"),
        ("--describe --broker x", "x is not the id of a broker"),
        ("--describe --entity-type topics --entity-name a --entity-name b", "more entity names than entity types"),
        ("--describe --broker-logger 1", "INVALID_REQUEST"),
        ("--describe --client c", "DescribeClientQuotasRequest is needed"),
        ("--alter --client c --add-config producer_byte_rate=1", "AlterClientQuotasRequest is needed"),
        ("--alter --topic known", "needs at least one of --add-config"),
        ("--alter --entity-type topics --add-config a=b", "needs an entity name"),
        ("--alter --topic known --add-config foo", "allowed is NAME=VALUE"),
        ("--alter --topic known --add-config nope=1", "INVALID_CONFIG"),
        ("--alter --topic known --add-config-file /no/such/file", "--add-config-file /no/such/file cannot be read"),
        ("--alter --topic known --delete-config segment.ms", "Nothing is set that could be deleted: segment.ms"),
        ("--alter --topic nope --add-config retention.ms=1", "Topic nope does not exist"),
        ("--alter --broker 1 --add-config broker.id=9", "INVALID_REQUEST"),
        ("--describe --all --nope", "No such option '--nope'"),
    ],
)
def test_refusals(ottla_side: Side, arguments: str, words: str) -> None:
    ottla_side.ours("topics", "--create --topic known --if-not-exists")
    ottla_side.both_refuse("configs", arguments, words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--alter --client c --add-config nope=3", "nope is no quota of clients"),
        ("--alter --client c --add-config producer_byte_rate=much", "allowed is a number"),
        ("--alter --client c --delete-config consumer_byte_rate", "Nothing is set that could be deleted"),
        ("--alter --entity-type clients --add-config producer_byte_rate=1", "needs an entity name"),
        ("--alter --user u --add-config SCRAM-SHA-256=[iterations=10,password=x]", "allowed is 4096 to 16384"),
        ("--alter --user u --add-config SCRAM-SHA-256=[iterations=8192]", "is not valid"),
        ("--alter --user u --add-config SCRAM-SHA-256=[password=x],producer_byte_rate=1", "cannot be changed at once"),
        ("--alter --user u --delete-config SCRAM-SHA-256", "RESOURCE_NOT_FOUND"),
        ("--alter --broker-logger 0 --add-config kafka.server.KafkaApis=LOUD", "INVALID_CONFIG"),
    ],
)
def test_refusals_for_users(apache_side: Side, arguments: str, words: str) -> None:
    apache_side.both_refuse("configs", arguments, words)
