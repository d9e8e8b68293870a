"""What `ottla dump-log` prints: lines as Apache Kafka's tool prints them, or JSON, one object a line.

Guards: a line leaves whole. Keys and payloads reach a file or a pipe as they are, as Apache's tool has it; a terminal gets no
line end and no terminal code that somebody wrote into a record. What is wrong is gathered for the end in `Findings`, on the
disk where it is much: a compacted segment may have millions of gaps.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from struct import Struct
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, Final, NamedTuple, Protocol

from ottla.cli.dump_entries import Control, Entry, Row
from ottla.cli.output import compact_json, one_line

_GATHERED: Final = 64 * 1024
_SPOOLED: Final = 256 * 1024
_PAIR: Final = Struct(">qq")
# Half a surrogate pair in UTF-8 is no text; Java's decoder puts one sign for its three bytes, Python's one for each.
_HALF_PAIR: Final = re.compile(rb"\xed[\xa0-\xbf](?:[\x80-\xbf]|$)")


def java_text(data: bytes) -> str:
    """Text in UTF-8, with signs in the places where it is none: as many as Java puts."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _HALF_PAIR.sub(b"\xff", data).decode(errors="replace")


class Shown(NamedTuple):
    """A key or a payload as a decoder shows it: a line's part for people, and what JSON says; bytes are no text."""

    text: str
    data: object


class Aborted(NamedTuple):
    """An entry of a transaction index."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class SnapshotEntry(NamedTuple):
    """A producer in a snapshot."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction_start: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) % (1 << 31)


class Output(Protocol):
    """What a dump tells, in the order in which it stands in the files."""

    def file(self, path: str) -> None: ...
    def log_start(self, offset: int) -> None: ...
    def batch(self, entry: Entry) -> None: ...
    def record(self, entry: Entry, row: Row, control: Control | None, parsed: tuple[Shown | None, Shown | None]) -> None: ...
    def invalid_bytes(self, position: int, count: int) -> None: ...
    def offset_entry(self, offset: int, position: int) -> None: ...
    def time_entry(self, timestamp: int, offset: int) -> None: ...
    def aborted(self, entry: Aborted) -> None: ...
    def producer(self, entry: SnapshotEntry) -> None: ...
    def empty(self) -> None: ...
    def sane(self) -> None: ...
    def flush(self) -> None: ...


class Lines:
    """Lines on their way to a stream, some kilobytes at a time."""

    __slots__ = ("_gathered", "_size", "_stream")

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._gathered: list[str] = []
        self._size = 0

    def add(self, line: str) -> None:
        self._gathered.append(line)
        self._size += len(line)
        if self._size >= _GATHERED:
            self.write()

    def write(self) -> None:
        lines, self._gathered, self._size = self._gathered, [], 0
        if lines:
            self._stream.write(("\n".join(lines) + "\n").encode("utf-8", "replace"))

    def flush(self) -> None:
        self.write()
        self._stream.flush()


class TextOutput:
    """The lines of Apache Kafka's tool. Without `metadata`, of a record only its key and payload."""

    __slots__ = ("_lines", "_metadata", "_path", "_safe")

    def __init__(self, stream: BinaryIO, *, metadata: bool = True) -> None:
        self._lines = Lines(stream)
        self._metadata = metadata
        self._safe = stream.isatty()
        self._path = ""

    def file(self, path: str) -> None:
        self._path = path
        self._lines.add(f"Dumping {path}")

    def log_start(self, offset: int) -> None:
        self._lines.add(f"Log starting offset: {offset}")

    def batch(self, entry: Entry) -> None:
        header = entry.header
        if entry.legacy:
            head = f"offset: {header.base_offset}"
        else:
            head = (
                f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.count} "
                f"baseSequence: {header.base_sequence} lastSequence: {header.last_sequence} "
                f"producerId: {header.producer_id} producerEpoch: {header.producer_epoch} "
                f"partitionLeaderEpoch: {header.leader_epoch} isTransactional: {_boolean(header.is_transactional)} "
                f"isControl: {_boolean(header.is_control)} deleteHorizonMs: {_optional(entry.delete_horizon)}"
            )
        self._lines.add(
            f"{head} position: {entry.position} {entry.timestamp_type}: {header.max_timestamp} size: {header.size} "
            f"magic: {header.magic} compresscodec: {entry.codec} crc: {header.crc} isvalid: {_boolean(entry.valid)}"
        )

    def record(self, entry: Entry, row: Row, control: Control | None, parsed: tuple[Shown | None, Shown | None]) -> None:
        parts: list[str] = []
        if self._metadata:
            parts.append(
                f"offset: {row.offset} {entry.timestamp_type}: {row.timestamp} keySize: {row.key_size} "
                f"valueSize: {row.value_size}"
            )
            if row.crc is None:
                names = ",".join(map(_name, row.headers))
                parts.append(f"sequence: {row.sequence} headerKeys: [{self._clean(names)}]")
            else:  # the brace is Apache's
                parts.append(f"isValid: {_boolean(row.valid)} crc: {row.crc}}}")
            if control is not None and control.coordinator_epoch is not None:
                parts.append(f"endTxnMarker: {control.name} coordinatorEpoch: {control.coordinator_epoch}")
            elif control is not None:
                parts.append(f"controlType: {control.name}({control.type_id})")
        key, payload = parsed
        if key is not None:
            parts.append(f"key: {self._clean(key.text)}")
        if payload is not None:
            parts.append(f"payload: {self._clean(payload.text)}")
        self._lines.add(f"| {' '.join(parts)}" if parts else "")

    def _clean(self, text: str) -> str:
        return one_line(text) if self._safe else text

    def invalid_bytes(self, position: int, count: int) -> None:
        self._lines.add(f"Found {count} invalid bytes at the end of {self._path.rpartition('/')[2]}")

    def offset_entry(self, offset: int, position: int) -> None:
        self._lines.add(f"offset: {offset} position: {position}")

    def time_entry(self, timestamp: int, offset: int) -> None:
        self._lines.add(f"timestamp: {timestamp} offset: {offset}")

    def aborted(self, entry: Aborted) -> None:
        self._lines.add(
            f"version: {entry.version} producerId: {entry.producer_id} firstOffset: {entry.first_offset} "
            f"lastOffset: {entry.last_offset} lastStableOffset: {entry.last_stable_offset}"
        )

    def producer(self, entry: SnapshotEntry) -> None:
        start = entry.transaction_start
        last = (
            f"firstSequence: {entry.first_sequence} lastSequence: {entry.last_sequence} lastOffset: {entry.last_offset} "
            f"offsetDelta: {entry.offset_delta} timestamp: {entry.timestamp}"
        )
        self._lines.add(
            f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch} "
            f"coordinatorEpoch: {entry.coordinator_epoch} "
            f"currentTxnFirstOffset: {_optional(start if start >= 0 else None)} lastTimestamp: {entry.timestamp} "
            f"{last if entry.last_offset >= 0 else ''}"
        )

    def empty(self) -> None:
        self._lines.add(f"{self._path} is empty.")

    def sane(self) -> None:
        self._lines.add(f"{self._path} passed sanity check.")

    def flush(self) -> None:
        self._lines.flush()


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _optional(number: int | None) -> str:
    return "OptionalLong.empty" if number is None else f"OptionalLong[{number}]"


def _name(header: tuple[str, bytes | None]) -> str:
    """A header's key: the kernel keeps bytes that are no text as surrogates."""
    return header[0] if header[0].isascii() else java_text(header[0].encode("utf-8", "surrogateescape"))


class JsonOutput:
    """One object a line; `type` says what it is about, `file` where it stands. With `contents`, headers have their values."""

    __slots__ = ("_contents", "_lines", "_metadata", "_path")

    def __init__(self, stream: BinaryIO, *, metadata: bool = True, contents: bool = False) -> None:
        self._contents = contents
        self._lines = Lines(stream)
        self._metadata = metadata
        self._path = ""

    def _say(self, kind: str, **fields: object) -> None:
        found = {"type": kind, "file": self._path, **fields}
        self._lines.add(compact_json(found))

    def file(self, path: str) -> None:
        self._path = path

    def log_start(self, offset: int) -> None:
        """Nothing: the file's name says it too."""

    def batch(self, entry: Entry) -> None:
        header = entry.header
        numbered: Mapping[str, object] = {"offset": header.base_offset}
        if not entry.legacy:
            numbered = {
                "baseOffset": header.base_offset,
                "lastOffset": header.last_offset,
                "count": header.count,
                "baseSequence": header.base_sequence,
                "lastSequence": header.last_sequence,
                "producerId": header.producer_id,
                "producerEpoch": header.producer_epoch,
                "partitionLeaderEpoch": header.leader_epoch,
                "isTransactional": header.is_transactional,
                "isControl": header.is_control,
                "deleteHorizonMs": entry.delete_horizon,
            }
        self._say(
            "batch",
            **numbered,
            position=entry.position,
            timestampType=entry.timestamp_type,
            maxTimestamp=header.max_timestamp,
            size=header.size,
            magic=header.magic,
            compressCodec=entry.codec,
            crc=header.crc,
            isValid=entry.valid,
        )

    def record(self, entry: Entry, row: Row, control: Control | None, parsed: tuple[Shown | None, Shown | None]) -> None:
        fields: dict[str, object] = {"offset": row.offset}
        if self._metadata:
            fields |= {
                "timestampType": entry.timestamp_type,
                "timestamp": row.timestamp,
                "keySize": row.key_size,
                "valueSize": row.value_size,
            }
            if row.crc is None:
                fields |= {"sequence": row.sequence, "headerKeys": list(map(_name, row.headers))}
            else:
                fields |= {"isValid": row.valid, "crc": row.crc}
            if control is not None and control.coordinator_epoch is not None:
                fields |= {"endTxnMarker": control.name, "coordinatorEpoch": control.coordinator_epoch}
            elif control is not None:
                fields |= {"controlType": control.name, "controlTypeId": control.type_id}
        if self._contents and row.headers:
            fields["headers"] = [{"key": _name(header)} | named_data("value", header[1]) for header in row.headers]
        for name, shown in zip(("key", "payload"), parsed, strict=True):
            if shown is not None:
                fields |= named_data(name, shown.data)
        self._say("record", **fields)

    def invalid_bytes(self, position: int, count: int) -> None:
        self._say("invalidBytes", position=position, count=count)

    def offset_entry(self, offset: int, position: int) -> None:
        self._say("offsetIndexEntry", offset=offset, position=position)

    def time_entry(self, timestamp: int, offset: int) -> None:
        self._say("timeIndexEntry", timestamp=timestamp, offset=offset)

    def aborted(self, entry: Aborted) -> None:
        self._say(
            "abortedTransaction",
            version=entry.version,
            producerId=entry.producer_id,
            firstOffset=entry.first_offset,
            lastOffset=entry.last_offset,
            lastStableOffset=entry.last_stable_offset,
        )

    def producer(self, entry: SnapshotEntry) -> None:
        last: dict[str, object] = {
            "firstSequence": entry.first_sequence,
            "lastSequence": entry.last_sequence,
            "lastOffset": entry.last_offset,
            "offsetDelta": entry.offset_delta,
            "timestamp": entry.timestamp,
        }
        self._say(
            "producer",
            producerId=entry.producer_id,
            producerEpoch=entry.producer_epoch,
            coordinatorEpoch=entry.coordinator_epoch,
            currentTxnFirstOffset=entry.transaction_start if entry.transaction_start >= 0 else None,
            lastTimestamp=entry.timestamp,
            **(last if entry.last_offset >= 0 else {}),
        )

    def empty(self) -> None:
        """Nothing: there is no entry to tell."""

    def sane(self) -> None:
        self._say("sanityCheck", passed=True)

    def flush(self) -> None:
        self._lines.flush()


def named_data(name: str, data: object) -> dict[str, object]:
    """A value under its name; bytes that are no text in base64, and then the name says so."""
    if not isinstance(data, bytes):
        return {name: data}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(data).decode()}


class Kind(NamedTuple):
    """Something wrong between two numbers: what stands over them, how each pair is told, and in which order."""

    title: str
    line: str
    newest_first: bool = False


# In the order, and with the indentation, in which Apache's tool tells them.
INDEX_MISMATCH: Final = Kind("Mismatches in :{path}", "  Index offset: {0}, log offset: {1}", newest_first=True)
TIME_MISMATCH: Final = Kind("Found timestamp mismatch in :{path}", "  Index timestamp: {0}, log timestamp: {1}")
OUT_OF_ORDER: Final = Kind(
    "Found out of order timestamp in :{path}", "  Index timestamp: {0}, Previously indexed timestamp: {1}"
)
OFFSET_NOT_FOUND: Final = Kind(
    "The following indexed offsets are not found in the log.", "Indexed offset: {0}, found log offset: {1}"
)
NON_CONSECUTIVE: Final = Kind("Non-consecutive offsets in {path}", "  {0} is followed by {1}", newest_first=True)
_KINDS: Final = (INDEX_MISMATCH, TIME_MISMATCH, OUT_OF_ORDER, OFFSET_NOT_FOUND, NON_CONSECUTIVE)


class Findings:
    """What is wrong, by kind and file."""

    __slots__ = ("_pairs",)

    def __init__(self) -> None:
        self._pairs: dict[tuple[Kind, str], SpooledTemporaryFile[bytes]] = {}

    def add(self, kind: Kind, path: str, first: int, second: int) -> None:
        where = kind, path
        if where not in self._pairs:
            self._pairs[where] = SpooledTemporaryFile(_SPOOLED)  # noqa: SIM115 - lives as long as this does
        self._pairs[where].write(_PAIR.pack(first, second))

    def lines(self) -> Iterator[str]:
        """All of it, as Apache's tool tells it when it is done."""
        for kind in _KINDS:
            for (found, path), pairs in self._pairs.items():
                if found is kind:
                    yield kind.title.format(path=path)
                    for first, second in _read_pairs(pairs, newest_first=kind.newest_first):
                        yield kind.line.format(first, second)


def _read_pairs(pairs: SpooledTemporaryFile[bytes], *, newest_first: bool) -> Iterator[tuple[int, int]]:
    step = 4096 * _PAIR.size
    starts = range(0, pairs.tell(), step)
    for start in reversed(starts) if newest_first else starts:
        pairs.seek(start)
        chunk = list(_PAIR.iter_unpack(pairs.read(step)))
        yield from reversed(chunk) if newest_first else chunk
