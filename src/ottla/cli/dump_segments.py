"""A segment from its first batch to its last, and on from there while a broker writes it.

Guards: what is damaged inside a batch ends that batch and not the dump, for its length still tells where the next one is;
only a length that cannot be one ends the file. A follower reads a segment to its very end before it goes on to the next: it
looks for the next one first, and a broker does not write to a segment once there is a later one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ottla.cli.dump_decoders import Parsed, Parser
from ottla.cli.dump_entries import Control, Entry, Reader, Unreadable, control, entries, rows
from ottla.cli.dump_indexes import absolute, base_offset
from ottla.cli.dump_output import NON_CONSECUTIVE, Findings, Output

LOG_SUFFIX: Final = ".log"
WHOLE: Final = (1 << 31) - 1
_NOTHING: Final[Parsed] = (None, None)


@dataclass(slots=True, frozen=True)
class LogView:
    """What of a segment is to be shown: its records too if `deep`, and their contents if there is a `parser`."""

    deep: bool = False
    parser: Parser | None = None
    max_bytes: int = WHOLE


class SegmentDump:
    """One `.log` file on its way to the output. `complain` is told each damage."""

    __slots__ = ("_complain", "_end", "_findings", "_last_offset", "_output", "_path", "_reader", "_view", "position")

    def __init__(self, path: str, view: LogView, output: Output, findings: Findings, complain: Callable[[str], None]) -> None:
        self._path = path
        self._view = view
        self._output = output
        self._findings = findings
        self._complain = complain
        self._last_offset: int | None = None
        self._end = 0
        self.position = 0
        output.file(path)
        output.log_start(base_offset(path))
        self._reader = Reader(path)

    def run(self, *, live: bool = False) -> bool:
        """Show the whole batches that are there and were not shown yet; whether there were any."""
        self._end = end = min(self._reader.size, self._view.max_bytes)
        if live:
            self._reader.forget()
            if end < self.position:
                self._complain(f"{self._path} was cut from {self.position} to {end} bytes")
                self.position = end
        begun = self.position
        for entry in entries(self._reader, self.position, end, live=live):
            self._output.batch(entry)
            if self._view.deep:
                self._records(entry)
            self.position = entry.end
        return self.position > begun

    def finish(self) -> None:
        """Tell what was behind the last whole batch when it was looked for, and close."""
        if self._end > self.position and self._view.max_bytes == WHOLE:
            self._output.invalid_bytes(self.position, self._end - self.position)
        self.close()

    def close(self) -> None:
        self._reader.close()

    def _records(self, entry: Entry) -> None:
        parser = self._view.parser if not entry.header.is_control or entry.legacy else None
        try:
            for row in rows(entry):
                last = self._last_offset
                if last is not None and row.offset != last + 1:
                    self._findings.add(NON_CONSECUTIVE, absolute(self._path), last, row.offset)
                self._last_offset = row.offset
                said: Control | None = None
                damage: Unreadable | None = None
                if entry.header.is_control and not entry.legacy:
                    try:
                        said = control(row)
                    except Unreadable as problem:
                        damage = problem
                self._output.record(entry, row, said, parser(row) if parser is not None else _NOTHING)
                if damage is not None:
                    raise damage
        except Unreadable as problem:
            self._complain(
                f"{problem} (the batch at offset {entry.header.base_offset}, position {entry.position} of {self._path})"
            )


def next_segment(path: str) -> str | None:
    """The segment after this one, if there is one."""
    directory, name = os.path.split(path)
    current = base_offset(path)
    later = (
        other
        for other in os.listdir(directory or ".")
        if other.endswith(LOG_SUFFIX) and other[: -len(LOG_SUFFIX)].isdigit() and int(other[: -len(LOG_SUFFIX)]) > current
    )
    found = min(later, key=base_offset, default=None)
    return None if found is None else path[: len(path) - len(name)] + found


def follow(
    path: str, open_segment: Callable[[str], SegmentDump], flush: Callable[[], None], wait: Callable[[], object]
) -> None:
    """Show a segment, what is appended to it, and the segments after it. `Unreadable` or OSError ends it; else nothing does."""
    while True:
        segment = open_segment(path)
        try:
            while True:
                following = next_segment(path)  # looked for before the rest is read, see above
                moved = segment.run(live=following is None)
                flush()
                if following is not None:
                    break
                if not moved:
                    wait()
        except BaseException:
            segment.close()
            raise
        segment.finish()
        path = following
