# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, embedsignature=True
"""The native kernel: the per-record work of the v2 batch format, in C.

Guards: no pointer leaves start..end, whatever the bytes say; every answer and every error is that of `_twin.py`, which describes the
layout and which the tests hold against this on mutated input. A change here is a change there.

A `Py_buffer` is taken by hand, because a typed memoryview costs more than the walk over a small batch. The GIL is given up only for
inputs that are worth the switch. While a buffer is held, a bytearray cannot be resized under us.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    MIN_BODY = 6            # attributes, two deltas, two lengths and a header count, of one byte each
    WORTH_A_SWITCH = 65536  # bytes: some ten microseconds of walking


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


cdef int walk(const uint8_t *p, const uint8_t *end, int64_t count) noexcept nogil:
    cdef int64_t index
    cdef int32_t size
    for index in range(count):
        if p >= end:
            return 3
        if not varint32(&p, end, &size):
            return 1
        if size < MIN_BODY or size > end - p:
            return 2
        p += size
    return 4 if p < end else 0


cdef inline int open_buffer(object buf, Py_ssize_t start, Py_ssize_t end, Py_buffer *view) except -1:
    PyObject_GetBuffer(buf, view, PyBUF_SIMPLE)
    if not 0 <= start <= end <= view.len:
        PyBuffer_Release(view)
        raise ValueError("the records lie outside the buffer")
    return 0


cdef object corrupt(int64_t index):
    return ValueError(f"record {index + 1} of the batch is corrupt")


def check_records(buf, Py_ssize_t start, Py_ssize_t end, int64_t count):
    """0 if exactly `count` records, each behind its length, fill `start..end`; else a code of `kernel.FAULTS`."""
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef int fault
    open_buffer(buf, start, end, &view)
    p = <const uint8_t *>view.buf
    if end - start < WORTH_A_SWITCH:
        fault = walk(p + start, p + end, count)
    else:
        with nogil:
            fault = walk(p + start, p + end, count)
    PyBuffer_Release(&view)
    return fault


def keys_present(buf, Py_ssize_t start, Py_ssize_t end, int64_t count):
    """Whether every record has a key; `ValueError` on corruption before the first that has none."""
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef const uint8_t *stop
    cdef const uint8_t *close
    cdef int64_t index
    cdef int32_t size
    cdef Head found
    open_buffer(buf, start, end, &view)
    try:
        p = <const uint8_t *>view.buf + start
        stop = <const uint8_t *>view.buf + end
        for index in range(count):
            if not (body(&p, stop, &close) and head(&p, close, 0, &found) and sized(&p, close, -1, &size)):
                raise corrupt(index)
            if size < 0:
                return False
            p = close
        return True
    finally:
        PyBuffer_Release(&view)


cdef inline object content(const uint8_t *p, int32_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char *>p, size)


cdef object read_headers(const uint8_t **at, const uint8_t *end, int32_t number):
    """The headers as a tuple of pairs, or None if they are not well-formed."""
    cdef list pairs = []
    cdef int32_t index, size
    for index in range(number):
        if not sized(at, end, 0, &size):
            return None
        name = PyUnicode_DecodeUTF8(<const char *>at[0], size, "surrogateescape")
        at[0] += size
        if not sized(at, end, -1, &size):
            return None
        pairs.append((name, content(at[0], size)))
        if size > 0:
            at[0] += size
    return tuple(pairs)


def records(buf, Py_ssize_t start, Py_ssize_t end, int64_t base_offset, int64_t base_timestamp, int64_t count):
    """Every record as (offset, timestamp, key, value, headers); `ValueError` unless `count` of them fill `start..end`."""
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef const uint8_t *stop
    cdef const uint8_t *close
    cdef int64_t index
    cdef int32_t size, number, last_delta = -1
    cdef Head found
    cdef list rows = []
    cdef tuple none = ()
    open_buffer(buf, start, end, &view)
    try:
        p = <const uint8_t *>view.buf + start
        stop = <const uint8_t *>view.buf + end
        for index in range(count):
            if not (body(&p, stop, &close) and head(&p, close, base_timestamp, &found)):
                raise corrupt(index)
            if found.delta <= last_delta or base_offset > INT64_MAX - found.delta:
                raise corrupt(index)
            last_delta = found.delta
            if not sized(&p, close, -1, &size):
                raise corrupt(index)
            key = content(p, size)
            if size > 0:
                p += size
            if not sized(&p, close, -1, &size):
                raise corrupt(index)
            value = content(p, size)
            if size > 0:
                p += size
            if not sized(&p, close, 0, &number):  # a header takes bytes, so their count is bounded like a length
                raise corrupt(index)
            headers = none if number == 0 else read_headers(&p, close, number)
            if headers is None or p != close:
                raise corrupt(index)
            rows.append((base_offset + found.delta, found.timestamp, key, value, headers))
        if p != stop:
            raise ValueError("bytes follow the last record")
        return rows
    finally:
        PyBuffer_Release(&view)


def max_timestamp(buf, Py_ssize_t start, Py_ssize_t end, int64_t base_timestamp, int64_t count):
    """The largest timestamp and the offset delta of the first record that has it; `ValueError` if there is no record."""
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef const uint8_t *stop
    cdef const uint8_t *close
    cdef int64_t index
    cdef Head best, found
    open_buffer(buf, start, end, &view)
    try:
        if count <= 0:
            raise ValueError("there is no record")
        p = <const uint8_t *>view.buf + start
        stop = <const uint8_t *>view.buf + end
        best.timestamp = INT64_MIN
        best.delta = 0
        for index in range(count):
            if not (body(&p, stop, &close) and head(&p, close, base_timestamp, &found)):
                raise corrupt(index)
            if index == 0 or found.timestamp > best.timestamp:
                best = found
            p = close
        return best.timestamp, best.delta
    finally:
        PyBuffer_Release(&view)


def first_at_or_after(buf, Py_ssize_t start, Py_ssize_t end, int64_t base_timestamp, int64_t count, int64_t timestamp):
    """The offset delta and the timestamp of the first record that is at least as late as `timestamp`."""
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef const uint8_t *stop
    cdef const uint8_t *close
    cdef int64_t index
    cdef Head found
    open_buffer(buf, start, end, &view)
    try:
        p = <const uint8_t *>view.buf + start
        stop = <const uint8_t *>view.buf + end
        for index in range(count):
            if not (body(&p, stop, &close) and head(&p, close, base_timestamp, &found)):
                raise corrupt(index)
            if found.timestamp >= timestamp:
                return found.delta, found.timestamp
            p = close
        return None
    finally:
        PyBuffer_Release(&view)
