"""Apache Kafka's own tools from Java, unchanged, against Ottla. JVMs start slowly, so each run shows several things."""

from __future__ import annotations

import re

import pytest

from clients.adapters import BY_NAME, CLIENTS, Out, read
from clients.conftest import Topics
from clients.stored import batches
from support import java
from support.server import ServerProcess

pytestmark = pytest.mark.java

CONSOLE_PRODUCER = "kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"


def _tool(server: ServerProcess, main: str, *args: str, stdin: str = "", check: bool = True) -> str:
    return java.run(main, "--bootstrap-server", server.bootstrap_servers, *args, stdin=stdin, check=check).stdout


def test_console_producer_writes_and_every_client_reads(server: ServerProcess, topic: str) -> None:
    """The Java producer with its defaults: idempotent, acks=all; the topic comes into being by itself."""
    lines = [f"k{number}:řádek {number}" for number in range(500)]
    options = ("--property", "parse.key=true", "--property", "key.separator=:")
    _tool(server, CONSOLE_PRODUCER, "--topic", topic, *options, stdin="\n".join(lines) + "\n")
    assert min(batch.producer_id for batch in batches(server, topic)) >= 0
    for client in CLIENTS:
        with client.reader(server.bootstrap_servers, [(topic, 0)]) as reader:
            records = read(reader, 500)
        assert [f"{(r.key or b'').decode()}:{(r.value or b'').decode()}" for r in records] == lines, client.name


def test_console_consumer_reads_what_every_client_wrote_in_every_codec(
    server: ServerProcess, topics: Topics, topic: str
) -> None:
    """One run over a topic that holds batches of all clients and codecs, with keys, headers and timestamps."""
    topics.create(topic)
    expected = []
    for client in CLIENTS:
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            settings = {"linger.ms": 20, **({"compression.type": codec} if codec != "none" else {})}
            values = [f"{client.name} {codec} {number} {'x' * 50}" for number in range(40)]
            sent = [Out(value.encode(), b"key", (("h", b"1"),), 1_600_000_000_000) for value in values]
            client.produce(server.bootstrap_servers, topic, sent, settings)
            expected += [f"CreateTime:1600000000000\th:1\tkey\t{value}" for value in values]
    assert {batch.codec for batch in batches(server, topic)} == {"none", "gzip", "snappy", "lz4", "zstd"}
    shown = ("print.timestamp=true", "print.headers=true", "print.key=true")
    options = [part for one in shown for part in ("--property", one)]
    output = _tool(
        server,
        CONSOLE_CONSUMER,
        "--topic",
        topic,
        "--from-beginning",
        "--max-messages",
        str(len(expected)),
        "--timeout-ms",
        "20000",
        *options,
    )
    assert output.splitlines() == expected


def test_a_group_of_the_console_consumer_is_listed_and_described(server: ServerProcess, topics: Topics, topic: str) -> None:
    topics.create(topic, 2)
    BY_NAME["confluent"].produce(server.bootstrap_servers, topic, [Out(b"%d" % n, partition=n % 2) for n in range(20)])
    group = f"g-{topic}"
    read_all = ("--topic", topic, "--group", group, "--from-beginning", "--max-messages", "20", "--timeout-ms", "20000")
    assert len(_tool(server, CONSOLE_CONSUMER, *read_all).splitlines()) == 20
    BY_NAME["confluent"].produce(server.bootstrap_servers, topic, [Out(b"more", partition=0)] * 3)
    assert group in _tool(server, GROUPS, "--list").splitlines()
    described = _tool(server, GROUPS, "--describe", "--group", group)
    rows = [line.split()[:6] for line in described.splitlines() if line.startswith(group)]
    assert sorted(rows) == [[group, topic, "0", "10", "13", "3"], [group, topic, "1", "10", "10", "0"]]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_performance_tools_there_and_back(server: ServerProcess, topics: Topics, topic: str, codec: str) -> None:
    topics.create(topic, 3)
    count = 100_000
    wrote = java.run(
        "org.apache.kafka.tools.ProducerPerformance",
        "--topic", topic, "--num-records", str(count), "--record-size", "100", "--throughput", "-1",
        "--producer-props", f"bootstrap.servers={server.bootstrap_servers}", f"compression.type={codec}",
    ).stdout  # fmt: skip
    assert re.search(rf"^{count} records sent, [\d.]+ records/sec", wrote, re.MULTILINE), wrote
    read_back = _tool(
        server, "org.apache.kafka.tools.ConsumerPerformance", "--topic", topic, "--messages", str(count), "--timeout", "20000"
    )
    assert f", {count}, " in read_back, read_back
    stored = [batch for partition in range(3) for batch in batches(server, topic, partition)]
    assert {batch.codec for batch in stored} == {codec}


def test_offsets_shell(server: ServerProcess, topics: Topics, topic: str) -> None:
    topics.create(topic, 2)
    stamps = [1_600_000_000_000 + number for number in (1, 9, 3)]
    BY_NAME["confluent"].produce(server.bootstrap_servers, topic, [Out(b"v", timestamp=stamp, partition=1) for stamp in stamps])
    assert _tool(server, OFFSETS, "--topic", topic).splitlines() == [f"{topic}:0:0", f"{topic}:1:3"]
    assert f"{topic}:1:1" in _tool(server, OFFSETS, "--topic", topic, "--time", "max-timestamp").splitlines()
    assert f"{topic}:1:1" in _tool(server, OFFSETS, "--topic", topic, "--time", str(stamps[0] + 1)).splitlines()


def test_topic_command(server: ServerProcess, topic: str) -> None:
    made = _tool(server, TOPICS, "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=60000")
    assert f"Created topic {topic}." in made
    again = java.run(TOPICS, "--bootstrap-server", server.bootstrap_servers, "--create", "--topic", topic, check=False)
    assert again.returncode == 1
    assert "already exists" in again.stdout + again.stderr
    assert topic in _tool(server, TOPICS, "--list").splitlines()
    _tool(server, TOPICS, "--alter", "--topic", topic, "--partitions", "3")
    described = _tool(server, TOPICS, "--describe", "--topic", topic)
    assert "PartitionCount: 3" in described
    assert "ReplicationFactor: 1" in described
    assert "retention.ms=60000" in described
    assert len(re.findall(r"Partition: \d\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+", described)) == 3
    _tool(server, TOPICS, "--delete", "--topic", topic)
    assert topic not in _tool(server, TOPICS, "--list").splitlines()


def test_config_command(server: ServerProcess, topics: Topics, topic: str) -> None:
    topics.create(topic)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    changed = _tool(server, CONFIGS, "--alter", *entity, "--add-config", "retention.ms=7000,cleanup.policy=[compact,delete]")
    assert f"Completed updating config for topic {topic}." in changed
    described = _tool(server, CONFIGS, "--describe", *entity)
    assert "retention.ms=7000 sensitive=false" in described
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=7000" in described
    assert "cleanup.policy=compact,delete" in described
    _tool(server, CONFIGS, "--alter", *entity, "--delete-config", "retention.ms")
    everything = _tool(server, CONFIGS, "--describe", *entity, "--all")
    assert "retention.ms=604800000" in everything
    broker = re.search(r"broker (\d+) of cluster", server.log())
    assert broker is not None
    of_broker = _tool(server, CONFIGS, "--describe", "--entity-type", "brokers", "--entity-name", broker[1], "--all")
    assert f"log.dirs={server.directory} sensitive=false" in of_broker
    assert "num.io.threads=8" in of_broker
