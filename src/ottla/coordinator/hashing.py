"""Which partition of an internal topic a name belongs to: the same answer as every Kafka broker gives, or clients go astray."""

from __future__ import annotations

import struct
from functools import lru_cache


def partition_for(name: str, partitions: int) -> int:
    """The partition that holds the state of a group or a transactional id."""
    unsigned = java_hash(name)
    # Java's absolute value of the signed hash; the one number that has none counts as 0.
    return (unsigned if unsigned < 1 << 31 else -unsigned & 0x7FFFFFFF) % partitions


@lru_cache(maxsize=4096)
def java_hash(text: str) -> int:
    """Java's String.hashCode, as an unsigned number: over UTF-16 units, in 32 bits."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in struct.unpack(f">{len(units) // 2}H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value
