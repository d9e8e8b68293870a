"""The per-record work, in C where it could be built and in Python where it could not.

`ottla.records._kernel` (Cython) and `ottla.records._twin` give the same answers and the same errors; the tests hold them
against each other. `NATIVE` says which one runs: the broker says it once at start, because the twin is many times slower.
"""

from __future__ import annotations

__all__ = [
    "FAULTS",
    "NATIVE",
    "check_records",
    "first_at_or_after",
    "keys_present",
    "max_timestamp",
    "plain_records",
    "records",
]

NATIVE: bool
try:
    from ottla.records._kernel import check_records, first_at_or_after, keys_present, max_timestamp, plain_records, records

    NATIVE = True
except ImportError:
    from ottla.records._twin import check_records, first_at_or_after, keys_present, max_timestamp, plain_records, records

    NATIVE = False

FAULTS = {
    1: "a record's length is not a number",
    2: "a record is too short to be one, or reaches beyond the batch",
    3: "the batch holds fewer records than it claims",
    4: "bytes follow the last record",
}
"""What the codes of `check_records` mean."""
