"""What the tests of compaction build on: a clean without a process around it, and readers as consumers are."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.records.batch import BatchHeader, ControlType, Record, read_marker, read_records, split
from ottla.records.offset_map import OffsetMap
from ottla.storage.cleaning import faults
from ottla.storage.cleaning.cleaner import CleanerSettings, make_job
from ottla.storage.cleaning.policy import Section, cleanable
from ottla.storage.cleaning.rewrite import Pass
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig

SECRET = bytes(range(16))


def compacted(**fields: object) -> LogConfig:
    """The settings of a topic that is compacted, in small segments."""
    return LogConfig(cleanup_policy=frozenset({"compact"}), **{"index_interval_bytes": 200, **fields})  # type: ignore[arg-type]


def section_of(log: Log, now_ms: int) -> Section:
    return cleanable(
        log.segments,
        log.config,
        cleaned_to=log.cleaned_to,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        last_stable_offset=log.last_stable_offset,
        now_ms=now_ms,
    )


def clean(
    log: Log, now_ms: int, *, map_bytes: int = 1 << 20, buffer_bytes: int = 1, offset_map: type[OffsetMap] = OffsetMap
) -> Pass | None:
    """One clean as the cleaner and its worker do it; None if there is nothing to clean."""
    section = section_of(log, now_ms)
    if section.end <= section.first_dirty:
        return None
    settings = CleanerSettings(1, map_bytes, 0.9, buffer_bytes, 1e300, 1000)
    running = Pass(make_job(log, section, settings, now_ms), lambda _count: None, offset_map(map_bytes, 0.9, SECRET))
    for written in running.run():
        faults.reach("before-swap")
        log.swap_in(**written._asdict())
    faults.reach("pass-ended")
    faults.reach("directory-synced")
    log.cleaned_to = running.end
    faults.reach("before-checkpoint")
    faults.reach("checkpointed")
    return running


def batches(log: Log, start: int, limit: int) -> Iterator[tuple[bytes, int, BatchHeader]]:
    """Every batch from `start` on and below `limit`, as fetches bring them."""
    offset = start
    while offset < limit and (region := log.read(offset, 300, limit, True)) is not None:
        data = region.read()
        for position, header in split(data, cut=True):
            yield data, position, header
            offset = header.next_offset


def everything(log: Log, start: int | None = None) -> list[Record]:
    """What a consumer that reads uncommitted data sees from `start` on."""
    begin = log.log_start_offset if start is None else start
    found: list[Record] = []
    for data, position, header in batches(log, begin, log.high_watermark):
        if not header.is_control:
            found += [record for record in read_records(data, position, header) if record.offset >= begin]
    return found


def committed(log: Log) -> list[Record]:
    """What a read_committed consumer sees from the start: it steps over what each answer names as aborted."""
    found: list[Record] = []
    offset, limit = log.log_start_offset, log.last_stable_offset
    while offset < limit and (region := log.read(offset, 300, limit, True)) is not None:
        data = region.read()
        waiting = sorted(log.aborted_within(region, offset), key=lambda one: one.first_offset)
        aborted: set[int] = set()
        for position, header in split(data, cut=True):
            while waiting and waiting[0].first_offset <= header.last_offset:
                aborted.add(waiting.pop(0).producer_id)
            if header.is_control:
                marker = read_marker(data, position, header) if header.count else None
                if marker is not None and marker.type is ControlType.ABORT:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                found += [one for one in read_records(data, position, header) if one.offset >= log.log_start_offset]
            offset = header.next_offset
    return found


def final_values(records: list[Record]) -> dict[bytes, bytes]:
    """What a reader knows in the end."""
    known: dict[bytes, bytes] = {}
    for record in records:
        assert record.key is not None
        if record.value is None:
            known.pop(record.key, None)
        else:
            known[record.key] = record.value
    return known
