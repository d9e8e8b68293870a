"""Records to Arrow's buffers and back, in C where it could be built and in Python where it could not.

`ottla.records._columns` and `_rows` (Cython) and `ottla.records._columns_twin` give the same answers and the same errors; the
tests hold them against each other. The types are the twin's.
"""

from __future__ import annotations

from ottla.records._columns_twin import Binary, Columns, Headers, Piece, Rows, Sizes

__all__ = ["NATIVE", "Binary", "Columns", "Headers", "Piece", "Rows", "Sizes", "choose", "encode", "fill", "group", "measure"]

NATIVE: bool
try:
    from ottla.records._columns import fill, measure
    from ottla.records._rows import choose, encode, group

    NATIVE = True
except ImportError:
    from ottla.records._columns_twin import choose, encode, fill, group, measure

    NATIVE = False
