"""Topics straight from the files of their logs, without a broker: for backfills, and for the data of a cluster that is dead.

Guards: what is read is what a consumer would have got. It ends at the high watermark that the broker last wrote down, or with
`read_committed` at the last stable offset; control batches and what transactions aborted are left out; checksums are compared.
Nothing is locked and nothing is written, so that a directory can be mounted read-only; a broker that is running may delete
segments meanwhile, and then the reader fails. Where several directories hold replicas of a partition, the one that is known to
reach furthest is read.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from ottla.client.decoding import COLUMNS, Decoder, Part, split
from ottla.client.errors import ClientError, InvalidSetting, UnknownTopic
from ottla.model import Error, TopicPartition
from ottla.records.batch import BatchHeader, ControlType, read_marker
from ottla.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, read_offsets
from ottla.storage.scan import Damage, walk

_PARTITION = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<number>[0-9]+)")
_SEGMENT = re.compile(r"([0-9]{20})\.log")
_WINDOW = 8 << 20


class Aborted(NamedTuple):
    """A transaction that did not commit: from its first offset to its marker."""

    producer_id: int
    first: int
    last: int


class SegmentRange(NamedTuple):
    """What is to be read of one segment file."""

    path: str
    partition: TopicPartition
    start: int
    end: int
    aborted: tuple[Aborted, ...] = ()


class StoredPartition(NamedTuple):
    """A partition's directory, from where to where it can be read, and its segments by base offset."""

    partition: TopicPartition
    directory: str
    start: int
    high_watermark: int | None
    """None where the data directory does not say."""
    segments: tuple[int, ...]

    def path(self, base: int) -> str:
        return os.path.join(self.directory, f"{base:020}.log")


def stored_partitions(directories: Sequence[str], topics: Iterable[str] | None = None) -> dict[TopicPartition, StoredPartition]:
    """What these data directories (entries of `log.dirs`) hold of the topics, or of all topics that are not internal."""
    wanted = None if topics is None else set(topics)
    found: dict[TopicPartition, StoredPartition] = {}
    for directory in directories:
        if not os.path.isdir(directory):
            raise InvalidSetting(f"{directory} is not a directory: name one that stands in a broker's log.dirs.")
        high, low = (read_offsets(os.path.join(directory, name)) for name in (HIGH_WATERMARKS, LOG_START_OFFSETS))
        for name in sorted(os.listdir(directory)):
            match = _PARTITION.fullmatch(name)
            if match is None or not os.path.isdir(os.path.join(directory, name)):
                continue
            tp = TopicPartition(match["topic"], int(match["number"]))
            if tp.topic not in wanted if wanted is not None else tp.topic.startswith("__"):
                continue
            one = _stored(tp, os.path.join(directory, name), low.get(tp, 0), high.get(tp))
            before = found.get(tp)
            if one is not None and (before is None or (before.high_watermark or -1) < (one.high_watermark or -1)):
                found[tp] = one
    missing = (wanted or set()) - {tp.topic for tp in found}
    if missing:
        where = ", ".join(directories)
        raise UnknownTopic(f"Topic {min(missing)} has no partition in {where}: check its name, and the directories.")
    return found


def _stored(tp: TopicPartition, directory: str, start: int, high_watermark: int | None) -> StoredPartition | None:
    bases = sorted(int(match[1]) for match in map(_SEGMENT.fullmatch, os.listdir(directory)) if match)
    if not bases:
        return None
    return StoredPartition(tp, directory, max(start, bases[0]), high_watermark, tuple(bases))


def plan_segments(stored: StoredPartition, isolation: str, start: int = 0) -> list[SegmentRange]:
    """The segments that hold something to read from `start` on, each with its share of it."""
    end = _end(stored) if stored.high_watermark is None else stored.high_watermark
    aborted: list[Aborted] = []
    if isolation == "read_committed":
        end, aborted = _stable(stored, end)
    first = max(start, stored.start)
    ranges = []
    for base, following in zip(stored.segments, (*stored.segments[1:], end), strict=True):
        here = SegmentRange(stored.path(base), stored.partition, max(first, base), min(end, max(following, base)))
        if here.start < here.end:
            mine = tuple(one for one in aborted if one.first < here.end and one.last >= here.start)
            ranges.append(here._replace(aborted=mine))
    return ranges


def _end(stored: StoredPartition) -> int:
    """Where the last segment ends: the directory does not say how far its records were replicated."""
    end = stored.segments[-1]
    for header_end in _headers(stored.path(stored.segments[-1])):
        end = header_end
    return end


def _headers(path: str) -> Iterator[int]:
    with open(path, "rb") as file:
        try:
            for _, header in walk(file.fileno(), 0, os.fstat(file.fileno()).st_size):
                yield header.next_offset
        except Damage:  # a batch that was not written to its end: nobody was told that it was
            return


def _stable(stored: StoredPartition, end: int) -> tuple[int, list[Aborted]]:
    """The last stable offset, and the transactions before it that were aborted."""
    running: dict[int, int] = {}
    aborted: list[Aborted] = []
    for base in stored.segments:
        if base >= end:
            break
        with open(stored.path(base), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                continue
            data = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            for position, header in _walked(file.fileno(), size, stored.path(base)):
                if header.base_offset >= end:
                    break
                if not header.is_transactional:
                    continue
                if not header.is_control:
                    running.setdefault(header.producer_id, header.base_offset)
                    continue
                marker = read_marker(data, position, header)
                began = running.pop(header.producer_id, None)
                if marker is not None and marker.type is ControlType.ABORT and began is not None:
                    aborted.append(Aborted(header.producer_id, began, header.base_offset))
    return min([end, *running.values()]), aborted


def _walked(fd: int, size: int, path: str) -> Iterator[tuple[int, BatchHeader]]:
    try:
        yield from walk(fd, 0, size)
    except Damage as damage:
        raise ClientError(Error.CORRUPT_MESSAGE, f"{path} is damaged {damage}: read with read_uncommitted.") from None


def read_segment(wanted: SegmentRange, columns: Sequence[str] = COLUMNS) -> Iterator[pa.RecordBatch]:
    """The records of one segment."""
    decoder = Decoder(wanted.partition, columns)
    with open(wanted.path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return
        view = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    position, offset, window = 0, wanted.start, _WINDOW
    while position < size and offset < wanted.end:
        piece = view[position : position + window]
        found = split(wanted.partition, piece, wanted.start, None, end=wanted.end)
        parts = [part for part in found.parts if not _is_aborted(part, wanted.aborted)]
        yield from decoder.decode(piece, parts, wanted.start, wanted.end)
        if found.problem is not None and found.next_offset < wanted.end:
            raise found.problem
        offset = max(offset, found.next_offset)
        taken = _taken(piece)
        if taken == 0 and position + window >= size:
            return  # a batch that was not written to its end
        position += taken
        window = _WINDOW if taken else window * 2


def _taken(piece: memoryview) -> int:
    """How many bytes of whole batches there are."""
    at = 0
    while len(piece) - at >= 12:
        size = 12 + int.from_bytes(piece[at + 8 : at + 12], "big")
        if at + size > len(piece):
            break
        at += size
    return at


def _is_aborted(part: Part, aborted: Sequence[Aborted]) -> bool:
    header = part.header
    return (
        header is not None
        and header.is_transactional
        and any(one.producer_id == header.producer_id and one.first <= header.base_offset <= one.last for one in aborted)
    )
