"""The native offset map's twin in pure Python: the same answers, slower, for machines without a C compiler.

Guards: a record stays if no later one of its key is known, and a tombstone that may go only if it is not the last word;
records whose row of offsets does not rise are refused. Keys are told apart by a keyed 128-bit digest, as in
`_offset_map.pyx`, so the map's memory does not depend on their size. The batch-wise functions leave every batch to the
caller (`SPECIAL`), who looks at it with `put_all` and `retain`: that is what they save in C. A change here is a change there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from hashlib import blake2b

from ottla.records._twin import _INT64_MAX, _INT64_MIN, _Bad, _body, _times, _varint32, _varint64
from ottla.records.codecs import Buffer

ENTRY_BYTES = 24
DONE, SPECIAL, FULL = 0, 1, 2

_OVERHEAD, _LEGACY_MIN, _HEADER, _MAGIC_AT = 12, 14, 61, 16
_MIN_RECORD = 7


class OffsetMap:
    """The last offset of every key, for as many keys as `memory` bytes have room for at 24 bytes each."""

    __slots__ = ("_last_words", "_limit", "_offsets", "_secret", "_words_end", "_words_from", "latest")

    def __init__(self, memory: int, load_factor: float, secret: bytes) -> None:
        if len(secret) != 16:
            raise ValueError("the secret has 16 bytes")
        slots = max(memory // ENTRY_BYTES, 2)
        self._limit = min(max(int(slots * load_factor), 1), slots - 1)
        self._offsets: dict[bytes, int] = {}
        self._secret = secret
        self._last_words: list[int] = []
        self._words_from, self._words_end = 0, -1
        self.latest = -1
        """The last offset that was noted: the map knows nothing of later ones."""

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def memory(self) -> int:
        """Bytes that the entries would take in the native map."""
        return len(self._offsets) * ENTRY_BYTES

    def _digest(self, key: Buffer) -> bytes:
        return blake2b(key, digest_size=16, key=self._secret).digest()

    def get(self, key: bytes) -> int:
        """The last offset of a key; -1 if it has none here."""
        return self._offsets.get(self._digest(key), -1)

    def note(self, offset: int) -> None:
        """Everything up to `offset` has been looked at."""
        self.latest = max(self.latest, offset)

    def settle(self, first_dirty: int) -> None:
        """All is noted from `first_dirty` on: from now on `holds_any` can tell which batches have nothing that stays."""
        self._words_from, self._words_end = first_dirty, self.latest + 1
        self._last_words = sorted(self._offsets.values())

    def holds_any(self, first: int, last: int) -> bool:
        """Whether a record from `first` to `last` may be the last one of its key. Where nobody knows, it may."""
        if first < self._words_from or last >= self._words_end:
            return True
        at = bisect_left(self._last_words, first)
        return at < len(self._last_words) and self._last_words[at] <= last

    def put_all(self, buf: Buffer, base_offset: int, count: int, last_delta: int, from_offset: int) -> bool:
        """Note the records of a batch, given its unpacked records, from `from_offset` on; false if the map is full."""
        view = memoryview(buf).cast("B")
        pos, before, index = 0, -1, 0
        if count < 0:
            raise ValueError("record 1 of the batch is corrupt")
        try:
            while index < count:
                index += 1
                inner, pos = _body(view, pos, len(view))
                _, delta, inner = _times(view, inner, pos, 0)
                size, inner = _varint32(view, inner, pos)
                if size < -1 or size > pos - inner or delta <= before or delta > last_delta:
                    raise _Bad
                before = delta
                offset = base_offset + delta
                if size >= 0 and offset >= from_offset:
                    digest = self._digest(view[inner : inner + size])
                    known = self._offsets.get(digest)
                    if known is None and len(self._offsets) >= self._limit:
                        return False
                    self._offsets[digest] = offset if known is None else max(known, offset)
                    self.latest = offset
        except _Bad:
            raise ValueError(f"record {index} of the batch is corrupt") from None
        if pos != len(view):
            raise ValueError(f"record {index + 1} of the batch is corrupt")
        return True

    def retain(
        self,
        buf: Buffer,
        base_offset: int,
        base_timestamp: int,
        count: int,
        last_delta: int,
        drop_tombstones: bool,
        horizon: int,
    ) -> tuple[bytes | None, int, int, bool]:
        """(records that stay or None if all do as they are, their number, their largest timestamp, whether one is a tombstone).

        `horizon` is the base timestamp that a batch with a tombstone gets, -1 if it keeps its own. Where its timestamps lie
        too far from `horizon` to be counted from it, the batch keeps its own too, and the last answer is false.
        """
        view = memoryview(buf).cast("B")
        if count < 0 or count > len(view) // _MIN_RECORD:
            raise ValueError("the batch holds fewer records than it claims")
        stay: list[tuple[int, int, int]] = []
        pos, before, newest, tombstones = 0, -1, _INT64_MIN, False
        try:
            for _ in range(count):
                start = pos
                inner, pos = _body(view, pos, len(view))
                timestamp, delta, after_times = _times(view, inner, pos, base_timestamp)
                size, key_at = _varint32(view, after_times, pos)
                if size < -1 or size > pos - key_at or delta <= before or delta > last_delta:
                    raise _Bad
                before = delta
                offset = base_offset + delta
                past = offset > self.latest
                if not past and (size < 0 or offset < self._offsets.get(self._digest(view[key_at : key_at + size]), -1)):
                    continue
                value, value_at = _varint32(view, key_at + max(size, 0), pos)
                if value < -1 or value > pos - value_at:
                    raise _Bad
                if value < 0 and drop_tombstones and not past:
                    continue
                tombstones |= value < 0
                newest = max(newest, timestamp)
                stay.append((start, inner, pos))
            if pos != len(view):
                raise _Bad
        except _Bad:
            raise ValueError(f"the records of the batch at offset {base_offset} are corrupt") from None
        if not stay:
            return b"", 0, -1, False
        if tombstones and horizon >= 0:
            renewed = _renewed(view, stay, base_timestamp, horizon)
            if renewed is not None:
                return renewed, len(stay), newest, True
            tombstones = False
        if len(stay) == count:
            return None, count, newest, tombstones
        return b"".join(view[start:end] for start, _, end in stay), len(stay), newest, tombstones

    def put_batches(
        self, buf: Buffer, start: int, end: int, after: int, limit: int, from_offset: int, crc32c: Callable[[Buffer], int]
    ) -> tuple[int, int, int]:
        """Whether a whole batch is at `start`: SPECIAL or DONE, with what the caller knew."""
        return start, after, _whole(memoryview(buf).cast("B"), start, end)

    def filter_batches(
        self,
        buf: Buffer,
        start: int,
        end: int,
        out: bytearray,
        at: int,
        after: int,
        limit: int,
        now_ms: int,
        horizon: int,
        kept_empty: array[int],
        crc32c: Callable[[Buffer], int],
    ) -> tuple[int, int, int, int]:
        """Whether a whole batch is at `start`: SPECIAL or DONE, with what the caller knew."""
        return start, at, after, _whole(memoryview(buf).cast("B"), start, end)


def _whole(view: memoryview, start: int, end: int) -> int:
    if end - start < _OVERHEAD + _LEGACY_MIN:
        return DONE
    length = int.from_bytes(view[start + 8 : start + _OVERHEAD], "big", signed=True)
    if length < _LEGACY_MIN or (view[start + _MAGIC_AT] == 2 and length + _OVERHEAD < _HEADER <= end - start):
        raise ValueError(f"a batch with a length of {length}")
    return SPECIAL if length + _OVERHEAD <= end - start else DONE


def _renewed(view: memoryview, stay: list[tuple[int, int, int]], base_timestamp: int, horizon: int) -> bytes | None:
    """The records that stay, their timestamps counted from `horizon`; None if one cannot be."""
    shift = base_timestamp - horizon
    if shift < _INT64_MIN:
        return None
    out = bytearray()
    for _, inner, end in stay:
        delta, rest = _varint64(view, inner + 1, end)
        if not _INT64_MIN <= delta + shift <= _INT64_MAX:
            return None
        time = _zigzag(delta + shift)
        out += _zigzag(1 + len(time) + end - rest) + view[inner : inner + 1] + time + view[rest:end]
    return bytes(out)


def _zigzag(number: int) -> bytes:
    rest = number << 1 if number >= 0 else ~(number << 1)
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
