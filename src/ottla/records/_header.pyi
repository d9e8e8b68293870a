from typing import TypeVar

from ottla.records.codecs import Buffer

H = TypeVar("H")

def header_at(cls: type[H], buf: Buffer, pos: int) -> H | None: ...
def number(buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None: ...
def seal(
    batch: bytearray, count: int, timestamp: int, producer_id: int, producer_epoch: int, base_sequence: int, attributes: int
) -> None: ...
