"""What the storage tests build on: batches by the handful, a log in a fresh directory, everything that a log holds."""

from __future__ import annotations

from ottla.clock import ManualClock
from ottla.model import TopicPartition
from ottla.records.batch import BatchHeader, Record, build, read_records, split
from ottla.records.codecs import Codec
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig

NOW = 1_700_000_000_000
TP = TopicPartition("orders", 0)


def batch(
    count: int = 1,
    *,
    timestamp: int = NOW,
    size: int = 10,
    key: bytes | None = b"k",
    value: bytes | None = None,
    codec: Codec = Codec.NONE,
    pid: int = -1,
    epoch: int = 0,
    seq: int = 0,
    transactional: bool = False,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    records = [
        Record(base_offset + n, timestamp + n, key, value if value is not None else bytes([97 + n % 26]) * size)
        for n in range(count)
    ]
    return build(
        records,
        base_offset=base_offset,
        codec=codec,
        producer_id=pid,
        producer_epoch=epoch if pid >= 0 else -1,
        base_sequence=seq if pid >= 0 else -1,
        transactional=transactional,
        leader_epoch=leader_epoch,
    )


def view(data: bytes) -> memoryview:
    return memoryview(bytearray(data))


def open_log(directory: object, config: LogConfig | None = None, clock: ManualClock | None = None, **options: object) -> Log:
    return Log.open(str(directory), TP, config or LogConfig(), clock or ManualClock(NOW), **options)  # type: ignore[arg-type]


def append(log: Log, data: bytes, leader_epoch: int = 0) -> int:
    """Append as the leader; the first offset."""
    return log.append_as_leader(view(data), leader_epoch).first_offset


def headers(log: Log, start: int | None = None) -> list[BatchHeader]:
    """Every batch of the log by reading it as a consumer does."""
    found: list[BatchHeader] = []
    offset = log.log_start_offset if start is None else start
    while (piece := log.read(offset, 1 << 20, log.log_end_offset, True)) is not None:
        for _, header in split(piece.read(), cut=True):
            found.append(header)
            offset = header.next_offset
    return found


def records(log: Log) -> list[Record]:
    found: list[Record] = []
    offset = log.log_start_offset
    while (piece := log.read(offset, 1 << 20, log.log_end_offset, True)) is not None:
        data = piece.read()
        for position, header in split(data, cut=True):
            found += read_records(data, position, header)
            offset = header.next_offset
    return [record for record in found if record.offset >= log.log_start_offset]
