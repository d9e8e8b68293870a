"""`ottla transactions` beside Apache Kafka's kafka-transactions.sh, at Ottla and at Apache Kafka: the same tables, and a
transaction that hangs is found and aborted.

One scene per broker, played once. The broker does not verify writes, as none did before Apache Kafka 3.6: a producer can write
to a partition after (or without) the transaction that its coordinator knows of.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from clients.members import until
from ottla.client.cluster import Cluster
from support import java
from support.anchor import Broker, open_apache, open_ottla
from support.lawless import Producer

APACHE_TOOL = "org.apache.kafka.tools.TransactionsCommand"
SETTINGS = {"transaction.partition.verification.enable": "false"}
HOUR_MS = 3_600_000


class Scene(NamedTuple):
    """A broker on which one transaction is open, one is committed, and two hang."""

    servers: str
    broker: int
    late_offset: int
    unknown: Producer

    def ours(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What `ottla transactions` says."""
        command = [sys.executable, "-m", "ottla", "transactions", "--bootstrap-server", self.servers, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)

    def table(self, *arguments: str) -> str:
        result = self.ours(*arguments)
        assert (result.returncode, result.stderr) == (0, "")
        return result.stdout

    def objects(self, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.table(*arguments, "--json"))
        return found

    def theirs(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return java.run(APACHE_TOOL, "--bootstrap-server", self.servers, *arguments, check=False)


def play(broker: Broker) -> Scene:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    for future in admin.create_topics([NewTopic(name, 2, 1) for name in ("fine", "hang", "story")]).values():
        future.result(30)
    with Cluster(broker.bootstrap_servers) as cluster:
        # Open and old, but its coordinator will end it.
        ongoing = Producer(cluster, "ongoing")
        ongoing.add("fine", 0, 1)
        ongoing.write("fine", ago_ms=3 * HOUR_MS)
        # What a slow network does: a record of a transaction arrives when the transaction is over.
        late = Producer(cluster, "late")
        late.add("hang", 0)
        late.write("hang")
        late.commit()
        until(lambda: _stable_end(admin, "hang") == 2, "the marker is written")
        late_offset = late.write("hang", ago_ms=HOUR_MS)
        # A producer id that no coordinator knows: its transactional id has expired.
        unknown = Producer(cluster, "unknown")
        unknown.id += 1000
        unknown.write("hang", 1, ago_ms=2 * HOUR_MS)
        return Scene(broker.bootstrap_servers, next(iter(cluster.brokers())), late_offset, unknown)


def _stable_end(admin: AdminClient, topic: str) -> int:
    """The last stable offset: where readers of committed data wait."""
    place = TopicPartition(topic, 0)
    found = admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED)[place]
    return int(found.result(20).offset)


@pytest.fixture(scope="module", params=["ottla", pytest.param("apache", marks=[pytest.mark.java, pytest.mark.slow])], ids=str)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    opened = open_ottla if request.param == "ottla" else open_apache
    with opened(str(tmp_path_factory.mktemp(request.param)), SETTINGS) as broker:
        yield play(broker)


def steady(printed: str) -> str:
    """A table without what differs from one moment to the next: durations, and the order of a set that Java prints."""
    in_order = printed.replace("fine-1,fine-0", "fine-0,fine-1")
    # In both tables that have one, a duration stands behind a time in milliseconds.
    return re.sub(r"(\b1\d{12} *\t)\d+ *\t", r"\1DURATION\t", in_order) if "Duration" in printed else in_order


@pytest.mark.java
@pytest.mark.parametrize(
    "arguments",
    [
        "list",
        "list --duration-filter 1000000000",
        "describe --transactional-id ongoing",
        "describe --transactional-id unknown",
        "describe-producers --topic fine --partition 0",
        "describe-producers --topic hang --partition 0",
        "describe-producers --topic story --partition 1",
        "find-hanging --topic hang",
        "find-hanging --topic hang --partition 0",
        "find-hanging --topic hang --max-transaction-timeout 90",
        "find-hanging --topic fine",
    ],
)
def test_the_same_table_as_apaches_tool(scene: Scene, arguments: str) -> None:
    theirs = scene.theirs(*arguments.split())
    assert theirs.returncode == 0, theirs.stderr
    assert steady(scene.table(*arguments.split())) == steady(theirs.stdout)


@pytest.mark.java
@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "lst",
        "list --nope",
        "describe",
        "describe --transactional-id nope",
        "describe-producers --topic fine --partition x",
        "find-hanging",
        "find-hanging --topic nope",
        "abort --topic fine --partition 0",
        "abort --topic fine --partition 0 --producer-id 1",
        "abort --topic fine --partition 0 --start-offset 99",
    ],
)
def test_where_apaches_tool_fails_ours_says_why_in_one_line(scene: Scene, arguments: str) -> None:
    ours = scene.ours(*arguments.split())
    assert ours.returncode == scene.theirs(*arguments.split()).returncode == 1
    assert ours.stdout == ""
    assert re.fullmatch(r"ottla transactions: .+\n", ours.stderr)


def test_all_of_a_broker_is_searched(scene: Scene) -> None:
    found = scene.objects("find-hanging", "--broker-id", str(scene.broker))
    assert [(one["topic"], one["partition"], one["startOffset"]) for one in found] == [
        ("hang", 0, scene.late_offset),
        ("hang", 1, 0),
    ]
    assert [one["durationMinutes"] // 60 for one in found] == [1, 2]
    assert found[1]["producerId"] == scene.unknown.id


def test_the_same_as_json(scene: Scene) -> None:
    listed = {one["transactionalId"]: one for one in scene.objects("list")}
    assert {name: one["transactionState"] for name, one in listed.items()}.items() >= {
        "ongoing": "Ongoing",
        "late": "CompleteCommit",
        "unknown": "Empty",
    }.items()
    assert listed["ongoing"]["coordinator"] == scene.broker
    (described,) = scene.objects("describe", "--transactional-id", "ongoing")
    assert described["topicPartitions"] == [{"topic": "fine", "partition": 0}, {"topic": "fine", "partition": 1}]
    assert described["producerId"] == listed["ongoing"]["producerId"]
    (empty,) = scene.objects("describe", "--transactional-id", "unknown")
    assert (empty["currentTransactionStartTimeMs"], empty["topicPartitions"]) == (None, [])
    (producer,) = scene.objects("describe-producers", "--topic", "fine", "--partition", "0")
    assert producer["currentTransactionStartOffset"] == 0
    assert scene.objects("describe-producers", "--topic", "fine", "--partition", "1") == []


@pytest.mark.parametrize("by", ["start offset", "producer"])
def test_a_hanging_transaction_is_found_and_aborted_and_readers_go_on(scene: Scene, by: str) -> None:
    admin = AdminClient({"bootstrap.servers": scene.servers, "log_level": 0})
    write_plain(scene.servers, "story", b"before")
    with Cluster(scene.servers) as cluster:
        stuck = Producer(cluster, f"stuck by {by}")
        offset = stuck.write("story", ago_ms=HOUR_MS)
    write_plain(scene.servers, "story", by.encode())
    assert _stable_end(admin, "story") == offset

    (found,) = scene.objects("find-hanging", "--topic", "story")
    assert (found["startOffset"], found["producerId"]) == (offset, stuck.id)
    where = ("abort", "--topic", found["topic"], "--partition", str(found["partition"]))
    for wrong in (offset - 1, offset + 1):
        assert scene.ours(*where, "--start-offset", str(wrong)).returncode == 1
    assert _stable_end(admin, "story") == offset  # nobody else's transaction is aborted
    if by == "start offset":
        assert scene.table(*where, "--start-offset", str(found["startOffset"])) == ""
    else:
        who = ("--producer-id", str(stuck.id), "--producer-epoch", str(stuck.epoch), "--coordinator-epoch", "-1")
        assert scene.table(*where, *who) == ""

    assert scene.objects("find-hanging", "--topic", "story") == []
    states = {one["producerId"]: one for one in scene.objects("describe-producers", "--topic", "story", "--partition", "0")}
    ended = states[stuck.id]  # by no coordinator: its epoch was written as 0, which none is older than
    assert (ended["currentTransactionStartOffset"], ended["latestCoordinatorEpoch"]) == (None, 0)
    assert _stable_end(admin, "story") == offset + 3  # the record that hung, the one behind it, the marker
    assert read_committed(scene.servers, "story", offset) == by.encode()


def write_plain(servers: str, topic: str, value: bytes) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "log_level": 0})
    producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def read_committed(servers: str, topic: str, offset: int) -> bytes:
    """The first value that a reader of committed data sees from this offset on."""
    settings = {"bootstrap.servers": servers, "group.id": "reader", "isolation.level": "read_committed", "log_level": 0}
    reader = confluent_kafka.Consumer(settings)
    try:
        reader.assign([TopicPartition(topic, 0, offset)])
        message = reader.poll(30)
        assert message is not None
        assert message.error() is None
        return bytes(message.value() or b"")
    finally:
        reader.close()
