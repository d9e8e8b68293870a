"""Which of a log's oldest segments may go: by age, by size, or because the log starts after them. Pure.

Guards: segments go oldest first and without a hole, none that reaches beyond the high watermark, and an empty active
one never.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ottla.storage.log_config import LogConfig
from ottla.storage.segment import Segment


def deletable(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    now_ms: int,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
) -> tuple[int, str]:
    """(how many of the oldest segments may be deleted, why)."""
    ends = [segment.base_offset for segment in segments[1:]] + [log_end_offset]

    def prefix(expired: Callable[[int], bool]) -> int:
        count = 0
        for at, end in enumerate(ends):
            empty_tail = end == log_end_offset and at == len(ends) - 1 and segments[at].size == 0
            if empty_tail or end > high_watermark or not expired(at):
                break
            count += 1
        return count

    best, why = prefix(lambda at: at + 1 < len(segments) and ends[at] <= log_start_offset), "the log starts after it"
    if not config.delete:
        return best, why
    if config.retention_bytes >= 0:
        surplus = sum(segment.size for segment in segments) - config.retention_bytes

        def over_size(at: int) -> bool:
            nonlocal surplus
            if surplus < segments[at].size:
                return False
            surplus -= segments[at].size
            return True

        if surplus >= 0 and (count := prefix(over_size)) > best:
            best, why = count, f"retention.bytes={config.retention_bytes}"
    if config.retention_ms >= 0:
        count = prefix(lambda at: now_ms - segments[at].age_timestamp() > config.retention_ms)
        if count > best:
            best, why = count, f"retention.ms={config.retention_ms}"
    return best, why
