"""What compaction does with every record, in C where it could be built and in Python where it could not.

`ottla.records._offset_map` (Cython) and `ottla.records._offset_map_twin` give the same answers; the tests hold them against
each other.
"""

from __future__ import annotations

__all__ = ["DONE", "ENTRY_BYTES", "FULL", "SPECIAL", "OffsetMap"]

try:
    from ottla.records._offset_map import DONE, ENTRY_BYTES, FULL, SPECIAL, OffsetMap
except ImportError:
    from ottla.records._offset_map_twin import (  # type: ignore[assignment]
        DONE,
        ENTRY_BYTES,
        FULL,
        SPECIAL,
        OffsetMap,
    )
