# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, embedsignature=True
"""The native kernel: the per-record work of the v2 batch format, in C.

Guards: no pointer leaves start..end, whatever the bytes say; every answer and every error is that of `_twin.py`, which describes the
layout and which the tests hold against this on mutated input. A change here is a change there.

A `Py_buffer` is taken by hand, because a typed memoryview costs more than the walk over a small batch. The GIL is given up only for
inputs that are worth the switch. While a buffer is held, a bytearray cannot be resized under us.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from ottla.records._walk cimport MIN_BODY, Head, body, head, sized, varint32

cdef enum:
    WORTH_A_SWITCH = 65536  # bytes: some ten microseconds of walking


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


def keys_present(buf, Py_ssize_t start, Py_ssize_t end, int64_t base_timestamp, int64_t count):
    """Whether every record has a key; `ValueError` on what the cleaner could not read, before the first that has none.

    That is corruption, an offset delta out of the row 0, 1, 2, or a timestamp beyond 64 bits.
    """
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
            if not (body(&p, stop, &close) and head(&p, close, base_timestamp, &found) and sized(&p, close, -1, &size)):
                raise corrupt(index)
            if size < 0:
                return False
            p += size
            if found.delta != index or not sized(&p, close, -1, &size):
                raise corrupt(index)
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


cdef inline Py_ssize_t varint_size(Py_ssize_t number) noexcept:
    """Of a number that is not negative."""
    cdef Py_ssize_t rest = number << 1, size = 1
    while rest >= 0x80:
        rest >>= 7
        size += 1
    return size


cdef inline uint8_t *put_varint(uint8_t *p, Py_ssize_t number) noexcept:
    cdef Py_ssize_t rest = number << 1
    while rest >= 0x80:
        p[0] = (rest & 0x7F) | 0x80
        p += 1
        rest >>= 7
    p[0] = <uint8_t>rest
    return p + 1


cdef inline uint8_t *put_sized(uint8_t *p, bytes content) noexcept:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(content)
    p = put_varint(p, size)
    memcpy(p, PyBytes_AS_STRING(content), size)
    return p + size


cdef inline Py_ssize_t body_size(Py_ssize_t index, bytes key, bytes value) noexcept:
    cdef Py_ssize_t size = 3 + varint_size(index) + varint_size(PyBytes_GET_SIZE(key)) + PyBytes_GET_SIZE(key)
    if value is None:
        return size + 1
    return size + varint_size(PyBytes_GET_SIZE(value)) + PyBytes_GET_SIZE(value)


def plain_records(list rows, Py_ssize_t room):
    """`room` zero bytes, then each (key, value) as a record without headers, at the batch's time; no value is a tombstone."""
    cdef Py_ssize_t index, size, total = room
    cdef uint8_t *p
    cdef bytes key, value
    for index in range(len(rows)):
        key, value = rows[index]
        if key is None:
            raise TypeError("a record of a coordinator has a key")
        size = body_size(index, key, value)
        total += varint_size(size) + size
    made = PyByteArray_FromStringAndSize(NULL, total)
    p = <uint8_t *>PyByteArray_AS_STRING(made)
    memset(p, 0, room)
    p += room
    for index in range(len(rows)):
        key, value = rows[index]
        p = put_varint(p, body_size(index, key, value))
        p[0] = p[1] = 0  # attributes, and no time beyond the batch's
        p = put_varint(p + 2, index)
        p = put_sized(p, key)
        if value is None:
            p[0] = 1
            p += 1
        else:
            p = put_sized(p, value)
        p[0] = 0
        p += 1
    return made
