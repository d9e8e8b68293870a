from array import array
from collections.abc import Callable

from ottla.records.codecs import Buffer

ENTRY_BYTES: int
DONE: int
SPECIAL: int
FULL: int

def siphash(key: bytes, data: bytes) -> bytes: ...

class OffsetMap:
    latest: int

    def __init__(self, memory: int, load_factor: float, secret: bytes) -> None: ...
    def __len__(self) -> int: ...
    @property
    def memory(self) -> int: ...
    def get(self, key: bytes) -> int: ...
    def note(self, offset: int) -> None: ...
    def settle(self, first_dirty: int) -> None: ...
    def holds_any(self, first: int, last: int) -> bool: ...
    def put_all(self, buf: Buffer, base_offset: int, count: int, last_delta: int, from_offset: int) -> bool: ...
    def retain(
        self,
        buf: Buffer,
        base_offset: int,
        base_timestamp: int,
        count: int,
        last_delta: int,
        drop_tombstones: bool,
        horizon: int,
    ) -> tuple[bytes | None, int, int, bool]: ...
    def put_batches(
        self, buf: Buffer, start: int, end: int, after: int, limit: int, from_offset: int, crc32c: Callable[[Buffer], int]
    ) -> tuple[int, int, int]: ...
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
    ) -> tuple[int, int, int, int]: ...
