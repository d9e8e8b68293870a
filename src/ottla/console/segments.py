"""Segments of logs on this machine: what a client cannot ask for, read from the files themselves.

Guards: only directories that the console was told of are looked at, and nothing is written. A file that goes away meanwhile
(retention, a clean) is left out.
"""

from __future__ import annotations

import bisect
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ottla.model import TopicPartition
from ottla.storage.checkpoints import CLEANER_POINTS, MalformedCheckpoint, read_meta_properties, read_offsets

_TIME_ENTRY = struct.Struct(">qi")


class Segment(NamedTuple):
    """One segment; `newest_ms` is its largest timestamp as far as the index or the file's age tell."""

    base_offset: int
    size: int
    newest_ms: int
    active: bool
    dirty: bool


class Directory(NamedTuple):
    """A data directory of a broker: whose it is, and up to where each log was compacted."""

    path: str
    broker: int
    clean_up_to: Mapping[TopicPartition, int]


def directories(paths: Iterable[str]) -> list[Directory]:
    """The directories that can be read, with what their checkpoints say."""
    found = []
    for path in paths:
        try:
            meta = read_meta_properties(path)
            if meta is not None:
                found.append(Directory(path, meta.broker_id, _cleaned(path)))
        except (OSError, MalformedCheckpoint):
            continue
    return found


def _cleaned(path: str) -> dict[TopicPartition, int]:
    try:
        return read_offsets(os.path.join(path, CLEANER_POINTS))
    except MalformedCheckpoint:
        return {}


def segments(directory: Directory, tp: TopicPartition) -> list[Segment]:
    """The segments of a log, oldest first; none where the directory does not have it. What follows the clean part is dirty."""
    place = os.path.join(directory.path, f"{tp.topic}-{tp.partition}")
    files = sorted(_files(place))
    clean_up_to = directory.clean_up_to.get(tp, 0)
    return [
        Segment(base, size, _newest(place, base, age), at == len(files) - 1, base >= clean_up_to and at < len(files) - 1)
        for at, (base, size, age) in enumerate(files)
    ]


def _files(place: str) -> Iterator[tuple[int, int, int]]:
    try:
        entries = list(os.scandir(place))
    except OSError:
        return
    for entry in entries:
        base, dot, ending = entry.name.partition(".")
        if ending == "log" and dot and base.isdigit():
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue
            yield int(base), status.st_size, status.st_mtime_ns // 1_000_000


def _newest(place: str, base: int, age: int) -> int:
    """The last entry of the time index. That of an active segment is longer than what it holds: zeros follow."""
    try:
        with open(os.path.join(place, f"{base:020}.timeindex"), "rb", buffering=0) as file:

            def timestamp(entry: int) -> int:
                data = os.pread(file.fileno(), _TIME_ENTRY.size, entry * _TIME_ENTRY.size)
                return int(_TIME_ENTRY.unpack(data)[0]) if len(data) == _TIME_ENTRY.size else 0

            entries = range(os.fstat(file.fileno()).st_size // _TIME_ENTRY.size)
            used = bisect.bisect_left(entries, True, key=lambda entry: timestamp(entry) <= 0)
            return timestamp(used - 1) if used else age
    except OSError:
        return age
