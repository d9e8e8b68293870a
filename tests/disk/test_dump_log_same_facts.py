"""`ottla dump-log` and Apache Kafka's own tool: the same lines, complaints and exit codes for the same files."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from struct import iter_unpack, pack
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from fastcrc.crc32 import iscsi as crc32c

from ottla import model
from ottla.cli.dump_log import command
from ottla.clock import SystemClock
from ottla.records.batch import ControlType, Record, TimestampType, build, end_transaction_marker
from ottla.records.codecs import Codec
from ottla.records.legacy import write_messages
from ottla.storage.append import Origin
from ottla.storage.log import Log
from ottla.storage.log_config import LOG_APPEND_TIME, LogConfig
from ottla.storage.manager import LogManager
from ottla.wire.apis import consumer_protocol, group_records, transaction_records
from ottla.wire.schema import Data, encode_versioned
from support import java
from support.server import ServerProcess
from unit.storage.cleaning_kit import clean, compacted

pytestmark = pytest.mark.java

NOW = 1_700_000_000_000
NAME = "00000000000000000000"
# Whatever the locale here is, the tool is to write UTF-8, as ours does.
_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8")
_CHATTER = re.compile(r"^(log4j:.*|\S+Decoder is deprecated\. .*)\n", re.M)
_PARTITIONS = re.compile(r"(?<=,partitions=\[)[^]]+")


class Printed(NamedTuple):
    lines: list[str]
    complaints: list[str]
    code: int


def printed(stdout: str, stderr: str, code: int) -> Printed:
    """What can be compared: Apache Kafka keeps a transaction's partitions, and the files that it complains about, in hash
    tables, and prints them in an order that depends on the path of a test's directory."""
    lines = _PARTITIONS.sub(lambda found: ",".join(sorted(found[0].split(","))), stdout).splitlines()
    return Printed(lines, by_file(_CHATTER.sub("", stderr).splitlines()), code)


def by_file(complaints: list[str]) -> list[str]:
    """The same complaints, each with its own details behind it; those of one kind in the order of their files."""
    blocks: list[list[str]] = []
    for line in complaints:
        if line.startswith("  ") and blocks:
            blocks[-1].append(line)
        else:
            blocks.append([line])
    kinds = groupby(blocks, key=lambda block: block[0].partition(" in ")[0])
    return [line for _, same_kind in kinds for block in sorted(same_kind) for line in block]


def by_apache(*arguments: str) -> Printed:
    run = java.command("kafka.tools.DumpLogSegments", *arguments, options=_JVM)
    result = subprocess.run(run, capture_output=True, encoding="utf-8", timeout=90, check=False)
    return printed(result.stdout, result.stderr, result.returncode)


def by_ottla(*arguments: str) -> Printed:
    result = CliRunner().invoke(command, arguments)
    return printed(result.stdout, result.stderr, result.exit_code)


def same(files: list[Path], *options: str) -> Printed:
    """What both print."""
    assert files
    arguments = [*options, "--files", ",".join(map(str, files))]
    ours, theirs = by_ottla(*arguments), by_apache(*arguments)
    assert ours.lines == theirs.lines
    assert ours == theirs
    return ours


# Files that a broker of ours left


def send(log: Log, count: int, *, origin: Origin = Origin.CLIENT, **options: object) -> None:
    now = SystemClock().now_ms()
    first = log.log_end_offset
    records = [Record(n, now + n, b"key-%d" % (first + n), b"value-%d" % (first + n), (("h", b"x"),)) for n in range(count)]
    log.append_as_leader(memoryview(bytearray(build(records, **options))), 0, origin=origin)  # type: ignore[arg-type]


def mark(log: Log, kind: ControlType, producer_id: int) -> None:
    now = SystemClock().now_ms()
    data = end_transaction_marker(kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=2, timestamp=now)
    log.append_as_leader(memoryview(bytearray(data)), 0, origin=Origin.COORDINATOR)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`plain-0` (every codec, several segments), `stamped-0` (log append time) and `txn-0`, closed."""
    path = tmp_path_factory.mktemp("closed")
    manager = LogManager([str(path)], SystemClock(), broker_id=1, cluster_id="kVb5WvEbTVeMkRmT2p8lZg")
    manager.load()
    plain = manager.create(model.TopicPartition("plain", 0), LogConfig(segment_bytes=5_000, index_interval_bytes=300))
    for number in range(100):
        send(plain, 5, codec=Codec(number % 5), producer_id=9, producer_epoch=0, base_sequence=5 * number)
    stamped = manager.create(
        model.TopicPartition("stamped", 0), LogConfig(message_timestamp_type=LOG_APPEND_TIME, compression_type="lz4")
    )
    for _ in range(20):
        send(stamped, 3)
    txn = manager.create(model.TopicPartition("txn", 0))
    for number, kind in enumerate((ControlType.COMMIT, ControlType.ABORT, ControlType.ABORT)):
        send(txn, 4, transactional=True, producer_id=7, producer_epoch=0, base_sequence=4 * number)
        mark(txn, kind, 7)
    send(txn, 4, transactional=True, producer_id=7, producer_epoch=0, base_sequence=12)
    manager.shutdown()
    return path


@pytest.mark.parametrize(
    "options", [(), ("--deep-iteration",), ("--print-data-log",), ("--print-data-log", "--skip-record-metadata")]
)
def test_logs(directory: Path, options: tuple[str, ...]) -> None:
    found = same(sorted(directory.glob("*/*.log")), *options)
    assert found.code == 0
    assert set(re.findall(r"compresscodec: (\w+)", "\n".join(found.lines))) == {codec.label for codec in Codec}


@pytest.mark.parametrize("options", [(), ("--index-sanity-check",), ("--verify-index-only",)])
def test_indexes_and_snapshots(directory: Path, options: tuple[str, ...]) -> None:
    files = [*directory.glob("*/*index"), *directory.glob("*/*.snapshot")]
    assert {path.suffix for path in files} == {".index", ".timeindex", ".txnindex", ".snapshot"}
    found = same(sorted(files), *options)
    assert (found.code, found.complaints) == (0, [])


# Files made by hand


def write(directory: Path, *parts: bytes, suffix: str = ".log") -> Path:
    path = directory / f"{NAME}{suffix}"
    path.write_bytes(b"".join(parts))
    return path


def record(offset: int, key: bytes | None = b"k", value: bytes | None = b"v", *headers: tuple[str, bytes | None]) -> Record:
    return Record(offset, NOW + offset, key, value, headers)


def cleaned(data: bytes) -> bytes:
    """A batch over which Apache Kafka's cleaner has passed: its base timestamp is a delete horizon."""
    changed = bytearray(data)
    changed[22] |= 0x40
    changed[17:21] = pack(">I", crc32c(bytes(changed[21:])))
    return bytes(changed)


def test_unusual_records(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        build([record(0, b"k", b"v", ("h", b"x"), ("a,b", None), ("é", b""))], leader_epoch=3),
        build([record(1, None), record(2, b"k", None), record(3, b"", b""), record(4, None, None)], base_offset=1),
        build([record(5, b"\xff\xfe\x80a", b"\xe2\x82"), record(6, b"\xed\xa0\x80", b"\xf0\x90\x80")], base_offset=5),
        build([record(7, "é€😀".encode(), b"a\nb\0\x1b")], base_offset=7, timestamp_type=TimestampType.LOG_APPEND_TIME),
        build([record(8), record(9)], base_offset=8, producer_id=7, producer_epoch=2, base_sequence=2**31 - 1),
        build([Record(10, NOW, pack(">hh", 0, 99), b"\0\0")], base_offset=10, control=True),
        cleaned(build([record(12), record(15)], base_offset=11)),
        build([record(20)], base_offset=20),
        b"\0" * 10,
    )
    found = same([path], "--print-data-log")
    assert found.complaints[1:] == ["  15 is followed by 20", "  12 is followed by 15", "  10 is followed by 12"]
    assert found.lines[-1] == f"Found 10 invalid bytes at the end of {NAME}.log"
    same([path], "--print-data-log", "--max-bytes", "300")


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_compacted_logs(tmp_path: Path, codec: Codec) -> None:
    """Gaps between offsets, batches without records, delete horizons, merged segments with their indexes."""
    path = tmp_path / "kept-0"
    log = Log.open(str(path), model.TopicPartition("kept", 0), compacted(segment_bytes=3000), SystemClock())
    for number in range(400):
        producer, tombstone = number % 3, number % 50 == 7
        rows = [record(at, b"k%d" % (number * at % 23), None if tombstone else b"v" * 40) for at in range(3)]
        data = build(rows, codec=codec, producer_id=producer, producer_epoch=0, base_sequence=number // 3 * 3)
        log.append_as_leader(memoryview(bytearray(data)), 0)
        if number % 40 == 39:
            mark(log, ControlType.ABORT, producer)
    log.high_watermark = log.log_end_offset
    log.roll()
    assert clean(log, SystemClock().now_ms()) is not None
    log.close()
    assert same(sorted(path.glob("*.log")), "--print-data-log", "--deep-iteration").code == 0
    same(sorted(path.glob("*.index"))[:-1] + sorted(path.glob("*.timeindex"))[:-1])
    same(sorted(path.glob("*.index"))[:-1] + sorted(path.glob("*.timeindex"))[:-1], "--index-sanity-check")


def test_old_formats(tmp_path: Path) -> None:
    old = [
        write_messages([record(2 * n), record(2 * n + 1, None, None)], magic, codec=codec, timestamp_type=kind)
        for n, (magic, codec, kind) in enumerate(
            (magic, codec, kind)
            for magic in (0, 1)
            for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
            for kind in TimestampType
        )
    ]
    broken = bytearray(old[0])
    broken[-1] ^= 1
    found = same([write(tmp_path, *old, bytes(broken))], "--print-data-log")
    assert " isvalid: false" in "".join(found.lines)


def test_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, build([record(0, pack(">i", -7), pack(">q", 1 << 40))]))
    package = "org.apache.kafka.tools.api"
    same([path], "--key-decoder-class", f"{package}.IntegerDecoder", "--value-decoder-class", f"{package}.LongDecoder")


def test_findings_in_indexes(directory: Path, tmp_path: Path) -> None:
    source = sorted((directory / "plain-0").glob("*.log"))[0]
    entries = list(iter_unpack(">ii", source.with_suffix(".index").read_bytes()))
    (first, _), *_ = iter_unpack(">qi", source.with_suffix(".timeindex").read_bytes())
    write(tmp_path, source.read_bytes())
    wrong = [(offset + number % 2, position) for number, (offset, position) in enumerate(entries)]
    index = write(tmp_path, *(pack(">ii", *entry) for entry in wrong), bytes(800), suffix=".index")
    found = same([index])
    assert len(found.complaints) == 1 + len(entries) // 2
    write(tmp_path, *(pack(">ii", *entry) for entry in entries), suffix=".index")
    wrong_times = [(first, 9), (first - 7, 19), (first - 8, 29), (first + 50, 33), (first + 60, 99_999), (0, 0)]
    times = write(tmp_path, *(pack(">qi", *entry) for entry in wrong_times), suffix=".timeindex")
    found = same([times])
    assert [line for line in found.complaints if not line.startswith(("  ", "Indexed"))] == [
        f"Found timestamp mismatch in :{times}",
        f"Found out of order timestamp in :{times}",
        "The following indexed offsets are not found in the log.",
    ]


# The internal topics

_SUBSCRIPTION = consumer_protocol.ConsumerProtocolSubscription(
    topics=["t"],
    user_data=b"u",
    owned_partitions=[consumer_protocol.TopicPartitions(topic="t", partitions=[1])],
    generation_id=3,
    rack_id="r",
)
_ASSIGNMENT = consumer_protocol.ConsumerProtocolAssignment(
    assigned_partitions=[consumer_protocol.TopicPartitions(topic="t", partitions=[0, 1])]
)


def members(protocol_type: str = "consumer", subscription: bytes = b"", assignment: bytes = b"") -> Data:
    return group_records.GroupMetadataValue(
        protocol_type=protocol_type,
        generation=4,
        protocol="range",
        leader="m",
        current_state_timestamp=NOW,
        members=[
            group_records.MemberMetadata(
                member_id="m",
                group_instance_id="i",
                client_id="c",
                client_host="/127.0.0.1",
                rebalance_timeout=1000,
                session_timeout=500,
                subscription=subscription,
                assignment=assignment,
            )
        ],
    )


def group_rows() -> Iterator[tuple[bytes, bytes | None]]:
    """Each kind of record of `__consumer_offsets`, in each version, and its tombstone."""
    stored = group_records
    topics = [
        stored.AssignedTopicPartitions(topic_id=bytes(range(16)), partitions=[1, 2]),
        stored.AssignedTopicPartitions(topic_id=b"\xff" * 16, partitions=[]),
    ]
    member = stored.ConsumerGroupMemberMetadataValue(
        instance_id="i",
        client_id="c",
        client_host="h",
        subscribed_topic_names=["a", "b"],
        server_assignor=None,
        classic_member_metadata=stored.ClassicMemberMetadata(
            session_timeout_ms=5, supported_protocols=[stored.ClassicProtocol(name="range", metadata=b"\0\xff")]
        ),
    )
    offset = stored.OffsetCommitValue(offset=5, leader_epoch=2, metadata='é"\\', commit_timestamp=NOW, expire_timestamp=NOW)
    partition = stored.PartitionMetadata(partition=0, racks=["r"])
    topic = stored.TopicMetadata(topic_id=bytes(16), topic_name="t", num_partitions=2, partition_metadata=[partition])
    in_group = {"group_id": "g", "member_id": "m"}
    kinds: list[tuple[Data, list[Data]]] = [
        (stored.OffsetCommitKey(group="g", topic="t", partition=3), [offset]),
        (
            stored.GroupMetadataKey(group="g"),
            [
                *(
                    members("consumer", encode_versioned(_SUBSCRIPTION, version), encode_versioned(_ASSIGNMENT, version))
                    for version in range(4)
                ),
                members("consumer", pack(">h", 9) + encode_versioned(_SUBSCRIPTION, 3)[2:], pack(">h", -1) + b"x"),
                members("consumer", encode_versioned(_SUBSCRIPTION, 1), b""),
                members("consumer", b"\0", encode_versioned(_ASSIGNMENT, 1)),
                members("connect", b"\0\1ab", b"xyz"),
            ],
        ),
        (stored.ConsumerGroupMetadataKey(group_id="g"), [stored.ConsumerGroupMetadataValue(epoch=9)]),
        (stored.ConsumerGroupPartitionMetadataKey(group_id="g"), [stored.ConsumerGroupPartitionMetadataValue(topics=[topic])]),
        (
            stored.ConsumerGroupMemberMetadataKey(**in_group),
            [
                member,
                stored.ConsumerGroupMemberMetadataValue(classic_member_metadata=None),
                stored.ConsumerGroupMemberMetadataValue(classic_member_metadata=stored.ClassicMemberMetadata()),
            ],
        ),
        (
            stored.ConsumerGroupTargetAssignmentMetadataKey(group_id="g"),
            [stored.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=3)],
        ),
        (
            stored.ConsumerGroupTargetAssignmentMemberKey(**in_group),
            [stored.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics)],
        ),
        (
            stored.ConsumerGroupCurrentMemberAssignmentKey(**in_group),
            [stored.ConsumerGroupCurrentMemberAssignmentValue(member_epoch=2, state=1, assigned_partitions=topics)],
        ),
    ]
    for key, values in kinds:
        for kind in range(key.min_version, key.max_version + 1):
            yield encode_versioned(key, kind), None
            for value in values:
                for version in range(value.min_version, value.max_version + 1):
                    yield encode_versioned(key, kind), encode_versioned(value, version)
    yield b"\0\x63", b""  # a kind that nobody knows
    yield b"\0", b""


def test_consumer_offsets(tmp_path: Path) -> None:
    rows = [record(number, key, value) for number, (key, value) in enumerate(group_rows())]
    found = same([write(tmp_path, build(rows))], "--offsets-decoder")
    assert len(found.lines) == 3 + len(rows)
    assert '"subscription":{"topics":["t"]' in "".join(found.lines)


def transaction_rows() -> Iterator[tuple[bytes, bytes | None]]:
    key = encode_versioned(transaction_records.TransactionLogKey(transactional_id='t"é'), 0)
    yield key, None
    partitions = [
        transaction_records.TransactionPartitions(topic="b", partition_ids=[2, 1]),
        transaction_records.TransactionPartitions(topic="a-x", partition_ids=[0]),
    ]
    for version in (0, 1):
        for status in range(8):
            value = transaction_records.TransactionLogValue(
                producer_id=4,
                producer_epoch=2,
                transaction_timeout_ms=60_000,
                transaction_status=status,
                transaction_partitions=partitions if status else None,
                transaction_last_update_timestamp_ms=NOW,
                transaction_start_timestamp_ms=NOW - 5,
            )
            yield key, encode_versioned(value, version)
    yield b"\0\5", b""


def test_transaction_state(tmp_path: Path) -> None:
    rows = [record(number, key, value) for number, (key, value) in enumerate(transaction_rows())]
    found = same([write(tmp_path, build(rows))], "--transaction-log-decoder")
    assert len(found.lines) == 3 + len(rows)


def test_a_broker_that_runs(tmp_path: Path) -> None:
    """Groups and transactions of a real client, looked at while the broker has the files open."""
    with ServerProcess(str(tmp_path / "data"), {"transaction.state.log.num.partitions": 2}) as server:
        where = {"bootstrap.servers": server.bootstrap_servers}
        producer = Producer({**where, "transactional.id": "tx"})
        producer.init_transactions(30)
        consumer = Consumer({**where, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False})
        try:
            for number, end in enumerate((producer.commit_transaction, producer.abort_transaction)):
                producer.begin_transaction()
                producer.produce("topic", b"value-%d" % number, b"key", partition=0)
                producer.flush(30)
                end(30)
            consumer.subscribe(["topic"])
            while (message := consumer.poll(30)) is None or message.error():
                pass
            consumer.commit(message, asynchronous=False)
            producer.begin_transaction()
            producer.send_offsets_to_transaction([TopicPartition("topic", 0, 1)], consumer.consumer_group_metadata(), 30)
            producer.commit_transaction(30)
            compare_running(Path(server.directory))
        finally:
            consumer.close()


def compare_running(data: Path) -> None:
    logs = {name: sorted(data.glob(f"{name}-*/*.log")) for name in ("__consumer_offsets", "__transaction_state", "topic")}
    states = ["--transaction-log-decoder", "--files", ",".join(map(str, logs["__transaction_state"]))]
    while "".join(by_ottla(*states).lines).count("state=Complete") < 3:
        time.sleep(0.01)  # an end is answered before its markers are written; after this nobody writes any more
    offsets = same(logs["__consumer_offsets"], "--offsets-decoder")
    assert '"group":"g","topic":"topic"' in "".join(offsets.lines)
    transactions = same(logs["__transaction_state"], "--transaction-log-decoder")
    assert "transactionalId=tx payload: " in "".join(transactions.lines)
    topic = same([*logs["topic"], *data.glob("topic-0/*.txnindex")], "--print-data-log")
    assert "endTxnMarker: ABORT" in "".join(topic.lines)
    assert topic.lines[-1].startswith("version: 0 producerId: ")
