# cython: language_level=3
"""How the records of a v2 batch are walked in C: what the native modules share.

Guards: no pointer leaves at..end, whatever the bytes say. Each function steps over one thing and says whether it was there.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    MIN_BODY = 6            # attributes, two deltas, two lengths and a header count, of one byte each


cdef struct Head:
    int64_t timestamp
    int32_t delta


cdef inline bint varint32(const uint8_t **at, const uint8_t *end, int32_t *out) noexcept nogil:
    """The number at `at`, which moves behind it; false if there is none."""
    cdef const uint8_t *p = at[0]
    cdef uint32_t number = 0, byte
    cdef int shift = 0
    while p < end:
        byte = p[0]
        p += 1
        if shift == 28 and byte > 0x0F:
            return False
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            out[0] = <int32_t>((number >> 1) ^ (0 - (number & 1)))
            at[0] = p
            return True
        shift += 7
    return False


cdef inline bint varint64(const uint8_t **at, const uint8_t *end, int64_t *out) noexcept nogil:
    cdef const uint8_t *p = at[0]
    cdef uint64_t number = 0, byte
    cdef int shift = 0
    while p < end:
        byte = p[0]
        p += 1
        if shift == 63 and byte > 1:
            return False
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            out[0] = <int64_t>((number >> 1) ^ (0 - (number & 1)))
            at[0] = p
            return True
        shift += 7
    return False


cdef inline bint body(const uint8_t **at, const uint8_t *end, const uint8_t **close) noexcept nogil:
    """Step over the next record's length: `at` is where its body begins, `close` where it ends."""
    cdef int32_t size
    if not varint32(at, end, &size) or size < MIN_BODY or size > end - at[0]:
        return False
    close[0] = at[0] + size
    return True


cdef inline bint head(const uint8_t **at, const uint8_t *end, int64_t base_timestamp, Head *out) noexcept nogil:
    """Step over a record's attributes, timestamp and offset delta. A body is never empty, so the attributes are there."""
    cdef int64_t delta
    at[0] += 1
    if not varint64(at, end, &delta):
        return False
    if delta > 0 and base_timestamp > INT64_MAX - delta:
        return False
    if delta < 0 and base_timestamp < INT64_MIN - delta:
        return False
    out.timestamp = base_timestamp + delta
    return varint32(at, end, &out.delta) and out.delta >= 0


cdef inline bint sized(const uint8_t **at, const uint8_t *end, int32_t least, int32_t *size) noexcept nogil:
    """Step over a length whose bytes, `at` now, are all there; -1 is null, where `least` allows it."""
    return varint32(at, end, size) and size[0] >= least and size[0] <= end - at[0]
