"""What goes wrong: leaders that die, connections that break, logs that are corrupt or gone, and the words for it."""

from __future__ import annotations

import glob
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from client.tables import everything, same
from ottla import client
from ottla.client import TopicPartition
from ottla.model import Error
from ottla.testing import Broker
from ottla.testing import Cluster as Brokers

QUICK = {"retry.backoff.ms": 20, "default.api.timeout.ms": 20_000}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as one:
        yield one


@pytest.fixture
def cluster(ottla_server: Broker) -> Iterator[client.Cluster]:
    with client.Cluster({"bootstrap.servers": ottla_server.bootstrap_servers, **QUICK}) as one:
        yield one


# ---- leaders -------------------------------------------------------------------------------------------------------------


def test_readers_and_writers_follow_leaders_that_die() -> None:
    with Brokers(3) as brokers:
        brokers.create_topic("t", partitions=4)
        settings = {"bootstrap.servers": brokers.bootstrap_servers, **QUICK}
        got: list[tuple[int, int, bytes]] = []
        with (
            client.tail("t", "earliest", cluster=settings, columns=["partition", "offset", "value"]) as reader,
            client.Producer(settings) as producer,
        ):

            def follow() -> None:
                for batch in reader:
                    got.extend(tuple(row.values()) for row in batch.to_pylist())

            thread = threading.Thread(target=follow)
            thread.start()
            for number in range(12):
                rows = [b"%d-%d" % (number, row) for row in range(500)]
                if number in (3, 7):
                    victim = brokers.leader_of("t", number % 4)
                    killer = threading.Thread(target=brokers.kill, args=(victim,))
                    killer.start()
                producer.write("t", pa.table({"value": rows, "partition": [row % 4 for row in range(500)]}))
                if number in (3, 7):
                    killer.join()
                    brokers.start_broker(victim)
                    brokers.wait_until_in_sync()
            deadline = time.monotonic() + 20
            while len(got) < 6000 and time.monotonic() < deadline:
                time.sleep(0.02)
            reader.stop()
            thread.join()
        expected = sorted(b"%d-%d" % (number, row) for number in range(12) for row in range(500))
        assert sorted(row[2] for row in got) == expected, "everything once"
        for partition in range(4):
            assert [row[1] for row in got if row[0] == partition] == list(range(1500)), "in order"
        assert client.read("t", cluster=settings).table().num_rows == 6000


def test_a_broker_that_goes_away_for_a_while(tmp_path: object) -> None:
    first = Broker(directory=str(tmp_path))
    with first:
        port = first.bootstrap_servers.rpartition(":")[2]
    with Broker({"listeners": f"PLAINTEXT://127.0.0.1:{port}"}, directory=str(tmp_path)) as broker:
        broker.create_topic("t", 2)
        settings = {"bootstrap.servers": broker.bootstrap_servers, **QUICK}
        client.write("t", everything(1000), cluster=settings)
        with client.tail("t", "earliest", cluster=settings) as reader:
            rows = 0
            while rows < 1000:
                rows += next(reader).num_rows
            broker.kill()
            assert reader.poll(0.3) is None
            broker.start()
            client.write("t", everything(500), cluster=settings)
            while rows < 1500:
                rows += next(reader).num_rows
        assert rows == 1500


def test_a_reader_gives_up_in_words(broker: Broker) -> None:
    broker.create_topic("t", 1)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "default.api.timeout.ms": 300, "retry.backoff.ms": 20}
    client.write("t", everything(10), cluster=settings)
    with client.tail("t", "earliest", cluster=settings) as reader:
        assert next(reader).num_rows == 10
        broker.kill()
        with pytest.raises(client.TimedOut, match=r"Partition t-0 could not be read from offset 10 for 0\.3 s: "):
            next(reader)
    broker.start()


@pytest.mark.parametrize("error", [Error.NOT_LEADER_OR_FOLLOWER, Error.KAFKA_STORAGE_ERROR, Error.REQUEST_TIMED_OUT])
def test_errors_that_pass(ottla_server: Broker, cluster: client.Cluster, topic: str, error: Error) -> None:
    client.create_topic(cluster, topic, 2, 1)
    for api in ("Produce", "Fetch", "ListOffsets"):
        ottla_server.faults.fail(api, error, times=2)
    client.write(topic, everything(5000), cluster=cluster, batch_size=10_000)
    assert same(client.read(topic, cluster=cluster, columns=client.SCHEMA.names).table()) == same(everything(5000))
    ottla_server.faults.clear()


def test_connections_that_break(ottla_server: Broker, cluster: client.Cluster, topic: str) -> None:
    """With several batches of a partition under way: none is lost, none is there twice, order stays."""
    client.create_topic(cluster, topic, 1, 1)
    rows = pa.table({"value": [b"%06d" % row for row in range(20_000)]})
    for api in ("Produce", "Fetch"):
        ottla_server.faults.disconnect(api, times=3)
    written = client.write(topic, rows, cluster=cluster, batch_size=10_000)
    assert written == {TopicPartition(topic, 0): client.Written(0, 20_000, 20_000)}
    assert client.read(topic, cluster=cluster).table()["value"].to_pylist() == rows["value"].to_pylist()
    ottla_server.faults.clear()


def test_a_transaction_over_broken_connections(ottla_server: Broker, cluster: client.Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 2, 1)
    with client.Producer(cluster, transactional_id=topic) as producer:
        for api in ("AddPartitionsToTxn", "Produce", "EndTxn"):
            ottla_server.faults.disconnect(api)
        producer.begin()
        producer.write(topic, everything(1000))
        producer.commit()
    assert client.read(topic, cluster=cluster, isolation="read_committed").table().num_rows == 1000
    ottla_server.faults.clear()


def test_after_a_write_that_failed_nothing_of_it_comes_later(ottla_server: Broker, cluster: client.Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 1, 1)
    with client.Producer(cluster, transactional_id=topic) as producer:
        producer.begin()
        ottla_server.faults.fail("Produce", Error.INVALID_RECORD)
        with pytest.raises(client.WriteFailed, match="INVALID_RECORD"):
            producer.write(topic, everything(10))
        for use in (producer.commit, lambda: producer.write(topic, everything(10))):
            with pytest.raises(client.ClientError, match="A write of this producer failed: abort"):
                use()
        producer.abort()
        with pytest.raises(client.ClientError, match="make a new one"):
            producer.begin()
    client.write(topic, everything(3), cluster=cluster, transactional_id=topic)
    assert client.read(topic, cluster=cluster, isolation="read_committed").table().num_rows == 3
    ottla_server.faults.clear()


# ---- logs ----------------------------------------------------------------------------------------------------------------


def test_a_corrupt_batch_is_named(broker: Broker) -> None:
    broker.create_topic("t", 1)
    cluster = client.Cluster(broker.bootstrap_servers)
    rows = pa.table({"value": [b"record %d" % row for row in range(3000)]})
    client.write("t", rows, cluster=cluster, batch_size=10_000)
    (path,) = glob.glob(f"{broker.directory}/t-0/*.log")
    with open(path, "r+b") as log:
        content = log.read()
        at = content.index(b"record 1700")
        log.seek(at)
        log.write(b"RECORD")
    got: list[bytes] = []
    batches = client.read("t", cluster=cluster)
    with pytest.raises(client.CorruptBatch, match=r"The batch at offset \d+ of partition t-0 is corrupt") as caught:
        got.extend(value for batch in batches for value in batch["value"].to_pylist())
    assert 1000 < caught.value.offset <= 1700
    assert caught.value.partition == TopicPartition("t", 0)
    assert got == rows["value"].to_pylist()[: caught.value.offset], "what is before it was handed out"
    before = client.read("t", 0, caught.value.offset, cluster=cluster).table()
    assert before.num_rows == caught.value.offset, "whoever asks for no more than that is not told"
    unchecked = client.Cluster({"bootstrap.servers": broker.bootstrap_servers, "check.crcs": False})
    assert client.read("t", cluster=unchecked).table()["value"][1700].as_py() == b"RECORD 1700"
    for one in (cluster, unchecked):
        one.close()


def test_offsets_that_are_not_there(cluster: client.Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 1, 1)
    client.write(topic, everything(100), cluster=cluster)
    for start, end, bad in ((101, "latest", 101), (0, 101, 101)):
        with pytest.raises(client.OffsetOutOfRange) as caught:
            client.read(topic, start, end, cluster=cluster)
        expected = f"Offset {bad} of partition {topic}-0 is out of range: the log has offsets 0 to 100."
        assert str(caught.value) == expected
    tp = TopicPartition(topic, 0)
    assert client.list_offsets(cluster, {tp: -2}) == {tp: 0}


def test_an_offset_that_goes_while_it_is_read(broker: Broker) -> None:
    """Records from 1970 are deleted by retention, under a reader that waits for more."""
    broker.create_topic("t", 1)
    settings = {"bootstrap.servers": broker.bootstrap_servers, **QUICK, "fetch.wait.max.ms": 50}
    old = pa.table({"value": [b"old"] * 10, "timestamp": [1] * 10})
    client.write("t", old, cluster=settings)
    with client.Cluster(settings) as cluster:
        tp = TopicPartition("t", 0)
        deadline = time.monotonic() + 10
        while client.list_offsets(cluster, {tp: -2}) != {tp: 10}:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with pytest.raises(
            client.OffsetOutOfRange, match="Offset 3 of partition t-0 is out of range: the log has offsets 10 to 10"
        ):
            client.read("t", 3, cluster=cluster)


def test_a_topic_that_is_deleted_under_a_reader(broker: Broker) -> None:
    broker.create_topic("t", 1)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": 20, "default.api.timeout.ms": 500}
    client.write("t", everything(10), cluster=settings)
    with client.tail("t", "earliest", cluster=settings) as reader:
        assert next(reader).num_rows == 10
        broker.delete_topic("t")
        with pytest.raises(client.UnknownTopic, match="Topic t does not exist"):
            next(reader)


# ---- words ---------------------------------------------------------------------------------------------------------------


def test_what_is_not_there(cluster: client.Cluster, topic: str) -> None:
    for use in (
        lambda: client.read(topic, cluster=cluster),
        lambda: client.write(topic, everything(1), cluster=cluster),
        lambda: client.describe_topic(cluster, topic),
    ):
        with pytest.raises(client.UnknownTopic, match=f"Topic {topic} does not exist: check its name, or create it"):
            use()
    client.create_topic(cluster, topic, 2, 1)
    with pytest.raises(client.UnknownTopic, match=f"Partition {topic}-5 does not exist: the topic has 2 partitions"):
        client.read(topic, cluster=cluster, partitions=[5])
    with pytest.raises(client.ClientError, match=f"Topic {topic} was not created: TOPIC_ALREADY_EXISTS"):
        client.create_topic(cluster, topic, 2, 1)
    with pytest.raises(client.InvalidSetting, match="'yesterday' is not a bound"):
        client.read(topic, "yesterday", cluster=cluster)


def test_a_broker_that_is_not_there(ottla_server: Broker) -> None:
    with pytest.raises(
        client.BrokerUnreachable, match=r"Cannot connect to the broker at 127\.0\.0\.1:1 \(Connection refused\)"
    ):
        client.read("t", cluster="127.0.0.1:1")
    tls = {"bootstrap.servers": ottla_server.bootstrap_servers, "security.protocol": "SSL", "request.timeout.ms": 2000}
    with pytest.raises(client.BrokerUnreachable, match="No TLS with the broker at "):
        client.read("t", cluster=tls)


def test_tables_that_cannot_be_written(cluster: client.Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 2, 1)
    good = pa.table({"value": [b"x"]})
    for table, arguments, words in (
        (pa.table({"a": [1]}), {}, "There is no column value for the value: the columns are a"),
        (good, {"key": "id"}, "There is no column id for the key"),
        (pa.table({"value": [[1]]}), {}, r"Column value has type list<.*>: a record needs bytes or text"),
        (good.append_column("partition", [[7]]), {}, "row 0 has no partition among the 2 that there are"),
        (good.append_column("partition", [["x"]]), {}, "Column partition has type string, which cannot be int32"),
        (good.append_column("timestamp", [["x"]]), {}, "Column timestamp has type string: a timestamp or milliseconds"),
        (good.append_column("headers", [["x"]]), {}, "Column headers has type string: headers are a list of"),
        (17, {}, "A int cannot be written: give an Arrow table"),
    ):
        with pytest.raises(client.InvalidTable, match=words):
            client.write(topic, table, cluster=cluster, **arguments)
    with pytest.raises(client.InvalidTable, match="No topic: name one, or give a column"):
        client.write(None, good, cluster=cluster)
    with pytest.raises(client.WriteFailed, match=r"MESSAGE_TOO_LARGE \(a batch of \d+ bytes with 1 records: lower batch.size"):
        client.write(topic, pa.table({"value": [bytes(2 << 20)]}), cluster=cluster)
    with pytest.raises(client.InvalidSetting, match="A transaction needs acks=all"):
        client.write(topic, good, cluster=cluster, acks=1, transactional_id="x")
    assert client.read(topic, cluster=cluster).table().num_rows == 0
    for acks in (0, 1, "all"):
        client.write(topic, good, cluster=cluster, acks=acks)
    deadline = time.monotonic() + 5
    while client.read(topic, cluster=cluster).table().num_rows < 3:
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "Setting bootstrap.servers is missing"),
        ({"bootstrap.servers": "nowhere"}, "Setting bootstrap.servers: 'nowhere' is not valid, allowed is HOST:PORT"),
        ({"bootstrap.servers": "a:1", "acks": "most"}, "Setting acks: 'most' is not valid, allowed is a number"),
        (
            {"bootstrap.servers": "a:1", "security.protocol": "TLS"},
            "allowed is one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        ({"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL"}, "SASL_SSL needs sasl.username and sasl.password"),
        ({"bootstrap.servers": "a:1", "sasl.mechanism": "GSSAPI"}, "allowed is one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"bootstrap.servers": "a:1", "check.crcs": "maybe"}, "allowed is true or false"),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict[str, object], words: str) -> None:
    with pytest.raises(client.InvalidSetting, match=words):
        client.Cluster(settings)


# ---- memory --------------------------------------------------------------------------------------------------------------


def test_a_reader_fetches_no_more_than_it_may(cluster: client.Cluster, topic: str) -> None:
    """The reader that nobody reads from fills its budget and stops; in the end everything is there."""
    client.create_topic(cluster, topic, 4, 1)
    rows = pa.table({"value": [bytes(1000)] * 60_000})
    client.write(topic, rows, cluster=cluster)
    reader = client.read(topic, cluster=cluster, max_bytes=8 << 20)
    seen = next(reader).num_rows
    time.sleep(0.3)
    assert reader.peak_bytes <= 8 << 20
    for batch in reader:
        seen += batch.num_rows
    assert seen == 60_000
    assert reader.peak_bytes <= 8 << 20
    tiny = client.read(topic, cluster=cluster, max_bytes=1)  # a batch larger than the budget comes alone
    assert sum(batch.num_rows for batch in tiny) == 60_000
    assert tiny.peak_bytes < 2 << 20


# ---- clusters ------------------------------------------------------------------------------------------------------------


def test_transactions_over_brokers_that_die() -> None:
    """The coordinator or a leader is killed inside a transaction: what was committed is there once, what was not is not."""
    with Brokers(3) as brokers:
        brokers.create_topic("t", partitions=3)
        settings = {"bootstrap.servers": brokers.bootstrap_servers, **QUICK}
        wanted = []
        with client.Cluster(settings) as cluster, client.Producer(cluster, transactional_id="x") as producer:
            for number in range(8):
                producer.begin()
                rows = [b"%d-%d" % (number, row) for row in range(60)]
                producer.write("t", pa.table({"value": rows[:30], "partition": [row % 3 for row in range(30)]}))
                victim = 0
                if number in (2, 5):
                    victim = cluster.coordinator_of("x", 1) if number == 2 else brokers.leader_of("t", 1)
                    brokers.kill(victim)
                producer.write("t", pa.table({"value": rows[30:], "partition": [row % 3 for row in range(30)]}))
                if number % 3 == 1:
                    producer.abort()
                else:
                    producer.send_offsets("g", {TopicPartition("t", 0): number})
                    producer.commit()
                    wanted += rows
                if victim:
                    brokers.start_broker(victim)
                    brokers.wait_until_in_sync()
            got = client.read("t", cluster=cluster, isolation="read_committed").table()
            assert sorted(got["value"].to_pylist()) == sorted(wanted)
            assert client.committed_offsets(cluster, "g") == {TopicPartition("t", 0): client.Committed(6)}


def test_the_nearest_replica_is_read() -> None:
    """The leader names it to a reader who says its rack."""
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    brokers = Brokers(2, {"replica.selector.class": selector})
    for number in brokers.brokers:
        place = {"broker.id": number, "broker.rack": f"rack-{number}", "replica.selector.class": selector}
        directory = brokers.brokers[number].directory
        brokers.brokers[number] = Broker(place, directory=directory, open_store=brokers._open_store)
    with brokers:
        brokers.create_topic("t", partitions=2)
        brokers.wait_until_in_sync()
        settings = {"bootstrap.servers": brokers.bootstrap_servers, **QUICK}
        client.write("t", everything(1000), cluster=settings)
        for rack in ("rack-1", "rack-2"):
            with client.tail("t", "earliest", cluster={**settings, "client.rack": rack}) as reader:
                rows = 0
                while rows < 1000:
                    rows += next(reader).num_rows
                near = int(rack[-1])
                fetchers = reader._fetching._fetchers
                assert {number: len(one._positions) for number, one in fetchers.items()}[near] == 2
