"""Apache Kafka's own tool reads what we write: segments, indexes, snapshots, aborted transactions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ottla.clock import SystemClock
from ottla.model import TopicPartition
from ottla.records.batch import ControlType, Record, build, end_transaction_marker
from ottla.records.codecs import Codec
from ottla.storage.append import Origin
from ottla.storage.log import Log
from ottla.storage.log_config import LOG_APPEND_TIME, LogConfig
from ottla.storage.manager import LogManager
from support import java

pytestmark = pytest.mark.java


def send(log: Log, count: int, *, epoch: int = 0, origin: Origin = Origin.CLIENT, **options: object) -> None:
    now = SystemClock().now_ms()
    first = log.log_end_offset
    records = [Record(n, now + n, b"key-%d" % (first + n), b"value-%d" % (first + n), (("h", b"x"),)) for n in range(count)]
    data = build(records, **options)  # type: ignore[arg-type]
    log.append_as_leader(memoryview(bytearray(data)), epoch, origin=origin)


def mark(log: Log, kind: ControlType, producer_id: int) -> None:
    now = SystemClock().now_ms()
    data = end_transaction_marker(kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=2, timestamp=now)
    log.append_as_leader(memoryview(bytearray(data)), 0, origin=Origin.COORDINATOR)


@pytest.fixture(scope="module", params=["closed", "killed"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three partitions, closed cleanly or left as a kill leaves them."""
    path = tmp_path_factory.mktemp(request.param)
    manager = LogManager([str(path)], SystemClock(), broker_id=1, cluster_id="kVb5WvEbTVeMkRmT2p8lZg")
    manager.load()
    small = LogConfig(segment_bytes=5_000, index_interval_bytes=300)
    plain = manager.create(TopicPartition("plain", 0), small, bytes(range(16)))
    for number in range(100):
        send(plain, 5, epoch=number // 30, codec=Codec(number % 5), producer_id=9, producer_epoch=0, base_sequence=5 * number)
    stamped = manager.create(
        TopicPartition("stamped", 0), LogConfig(message_timestamp_type=LOG_APPEND_TIME, compression_type="lz4")
    )
    for _ in range(20):
        send(stamped, 3)
    txn = manager.create(TopicPartition("txn", 0))
    for number, kind in enumerate((ControlType.COMMIT, ControlType.ABORT, ControlType.ABORT)):
        send(txn, 4, transactional=True, producer_id=7, producer_epoch=0, base_sequence=4 * number)
        mark(txn, kind, 7)
    send(txn, 4, transactional=True, producer_id=7, producer_epoch=0, base_sequence=12)
    if request.param == "closed":
        manager.shutdown()
    else:
        for log in manager.logs.values():
            log.flush()
        manager.abandon()
    return path


def dump(files: list[Path], *options: str) -> str:
    names = ",".join(str(path) for path in files)
    result = java.run("kafka.tools.DumpLogSegments", *options, "--files", names)
    return result.stdout + result.stderr


def test_segments(directory: Path) -> None:
    for partition, expected in (("plain-0", 500), ("stamped-0", 60), ("txn-0", 16)):
        text = dump(sorted((directory / partition).glob("*.log")), "--deep-iteration", "--print-data-log")
        batches = re.findall(r"^baseOffset: (\d+) lastOffset: (\d+) .*isvalid: (\w+)", text, re.M)
        assert batches
        assert {valid for _, _, valid in batches} == {"true"}
        offset = 0
        for base, last, _ in batches:  # no gap, no overlap
            assert int(base) == offset
            offset = int(last) + 1
        payloads = re.findall(r"offset: (\d+) .*headerKeys: \[h\] key: key-(\d+) payload: value-(\d+)", text)
        assert len(payloads) == expected
        assert all(offset == key == value for offset, key, value in payloads)
        if partition == "plain-0":
            assert set(re.findall(r"compresscodec: (\w+)", text)) == {"none", "gzip", "snappy", "lz4", "zstd"}
            assert set(re.findall(r"partitionLeaderEpoch: (\d+)", text)) == {"0", "1", "2", "3"}
        if partition == "stamped-0":
            assert set(re.findall(r"^\| offset: \d+ (\w+):", text, re.M)) == {"LogAppendTime"}
        if partition == "txn-0":
            assert re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", text) == [
                ("COMMIT", "2"),
                ("ABORT", "2"),
                ("ABORT", "2"),
            ]


def test_indexes(directory: Path) -> None:
    indexes, times = (sorted((directory / "plain-0").glob(pattern)) for pattern in ("*.index", "*.timeindex"))
    assert len(indexes) > 2
    if directory.name.startswith("killed"):  # the active segment's have a tail of zeros, as Kafka's own would
        del indexes[-1], times[-1]
    for checks in (["--index-sanity-check"], ["--verify-index-only"]):
        text = dump(indexes + times, *checks)
        assert "Mismatches" not in text
        assert "Exception" not in text
        assert "Found timestamp mismatch" not in text
        assert "out of order" not in text
    listing = dump(indexes[:1])
    assert len(re.findall(r"offset: \d+ position: [1-9]\d*", listing)) > 5


def test_snapshots_and_aborted_transactions(directory: Path) -> None:
    snapshots = sorted((directory / "plain-0").glob("*.snapshot"))
    assert snapshots
    text = dump(snapshots)
    assert "producerId: 9 producerEpoch: 0" in text
    text = dump(sorted((directory / "txn-0").glob("*.txnindex")))
    found = re.findall(r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", text)
    assert found == [("7", "5", "9", "10"), ("7", "10", "14", "15")]
