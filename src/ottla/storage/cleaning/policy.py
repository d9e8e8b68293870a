"""What of a log may be compacted, which log comes first, and which segments become one. Pure.

Guards: never the active segment, nothing at or beyond the last stable offset, nothing younger than min.compaction.lag.ms; a
group of segments fits into one segment by size, by its indexes and by its offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from ottla.storage.log_config import MAX_INT, MAX_LONG, LogConfig

_MOST_SOURCES: Final = 100
"""So many segments at most become one at a time: their renames are made in one turn of the broker's loop."""


class _Segment(Protocol):
    """What is asked of a segment."""

    base_offset: int
    size: int

    @property
    def first_timestamp(self) -> int: ...
    def age_timestamp(self) -> int: ...


class Section(NamedTuple):
    """The dirty part of a log from `first_dirty` to `end` (the base of a segment), and how much there is."""

    first_dirty: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool = False
    """max.compaction.lag.ms has passed for some of it."""
    misplaced: bool = False
    """The cleaner point lay outside the log, and starts anew."""

    @property
    def ratio(self) -> float:
        """The dirty part of all that could be cleaned."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


class Source(NamedTuple):
    """A segment that is to be rewritten."""

    base_offset: int
    size: int
    index_bytes: int
    time_index_bytes: int


def cleanable(
    segments: Sequence[_Segment],
    config: LogConfig,
    *,
    cleaned_to: int | None,
    log_start_offset: int,
    log_end_offset: int,
    last_stable_offset: int,
    now_ms: int,
) -> Section:
    """What of a log could be cleaned now. The last of `segments` is the active one."""
    first_dirty = log_start_offset if cleaned_to is None else cleaned_to
    misplaced = not log_start_offset <= first_dirty <= log_end_offset
    if misplaced:
        first_dirty = log_start_offset
    bound = min(last_stable_offset, segments[-1].base_offset)
    dirty = [segment for segment in _from(segments, first_dirty) if segment is not segments[-1]]
    if config.min_compaction_lag_ms > 0:
        young = (one for one in dirty if one.age_timestamp() > now_ms - config.min_compaction_lag_ms)
        bound = min(bound, next((one.base_offset for one in young), MAX_LONG))
    end = _from(segments, max(first_dirty, bound))[0].base_offset
    overdue = False
    if config.max_compaction_lag_ms < MAX_LONG:
        first = min((one.first_timestamp for one in dirty if one.first_timestamp > 0), default=MAX_LONG)
        overdue = first < now_ms - config.max_compaction_lag_ms
    return Section(
        first_dirty,
        end,
        sum(one.size for one in segments if one.base_offset < first_dirty),
        sum(one.size for one in _from(segments, min(first_dirty, end)) if one.base_offset < end),
        overdue,
        misplaced,
    )


_S = TypeVar("_S", bound=_Segment)


def _from(segments: Sequence[_S], offset: int) -> Sequence[_S]:
    """The segment that holds `offset`, and those after it."""
    at = len(segments) - 1
    while at > 0 and segments[at].base_offset > offset:
        at -= 1
    return segments[at:]


def worth_cleaning(section: Section, config: LogConfig) -> bool:
    """Whether a log has enough that is dirty, or something dirty that has waited too long."""
    if section.end <= section.first_dirty or not section.dirty_bytes:
        return False
    return section.overdue or section.ratio > config.min_cleanable_dirty_ratio


_C = TypeVar("_C")


def filthiest(candidates: Iterable[tuple[_C, Section, int]]) -> tuple[_C, Section] | None:
    """The log with the highest dirty ratio among (log, section, failures); one whose cleans failed comes after the others."""
    best = min(candidates, key=lambda candidate: (candidate[2], -candidate[1].ratio), default=None)
    return None if best is None else (best[0], best[1])


def must_roll(active: _Segment, config: LogConfig, now_ms: int) -> bool:
    """Whether the active segment keeps records from being compacted for longer than max.compaction.lag.ms allows."""
    if config.max_compaction_lag_ms == MAX_LONG or not active.size:
        return False
    return 0 < active.first_timestamp < now_ms - config.max_compaction_lag_ms


def groups(sources: Sequence[Source], *, end: int, segment_bytes: int, index_bytes: int) -> list[list[Source]]:
    """Neighbours that may become one segment. `end` is the offset after the last source."""
    found: list[list[Source]] = []
    ends = [*(source.base_offset for source in sources[1:]), end][: len(sources)]
    sizes = (0, 0, 0)
    for source, next_offset in zip(sources, ends, strict=True):
        grown = (sizes[0] + source.size, sizes[1] + source.index_bytes, sizes[2] + source.time_index_bytes)
        fits = (
            bool(found)
            and len(found[-1]) < _MOST_SOURCES
            and grown[0] <= segment_bytes
            and max(grown[1:]) <= index_bytes
            and (not source.size or next_offset - 1 - found[-1][0].base_offset <= MAX_INT)
        )
        if fits:
            found[-1].append(source)
            sizes = grown
        else:
            found.append([source])
            sizes = source[1:]
    return found
