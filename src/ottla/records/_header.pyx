# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""A batch's header, read and written in C: see `_header_twin.py`, which says what each function does.

Guards: no pointer leaves the buffer; every answer is the twin's, which the tests hold against this. A change here is a change
there.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, int8_t, uint16_t, uint32_t, uint64_t, uint8_t

from fastcrc.crc32 import iscsi as crc32c

from ottla.records._tuples cimport fresh, put

cdef extern from *:
    """
    static inline uint16_t ottla_u16(const uint8_t *p) { return (uint16_t)((p[0] << 8) | p[1]); }
    static inline uint32_t ottla_u32(const uint8_t *p) {
        return ((uint32_t)p[0] << 24) | ((uint32_t)p[1] << 16) | ((uint32_t)p[2] << 8) | p[3];
    }
    static inline uint64_t ottla_u64(const uint8_t *p) { return ((uint64_t)ottla_u32(p) << 32) | ottla_u32(p + 4); }
    static inline void ottla_put16(uint8_t *p, uint16_t n) { p[0] = (uint8_t)(n >> 8); p[1] = (uint8_t)n; }
    static inline void ottla_put32(uint8_t *p, uint32_t n) { ottla_put16(p, (uint16_t)(n >> 16)); ottla_put16(p + 2, (uint16_t)n); }
    static inline void ottla_put64(uint8_t *p, uint64_t n) { ottla_put32(p, (uint32_t)(n >> 32)); ottla_put32(p + 4, (uint32_t)n); }
    """
    uint16_t ottla_u16(const uint8_t *) noexcept
    uint32_t ottla_u32(const uint8_t *) noexcept
    uint64_t ottla_u64(const uint8_t *) noexcept
    void ottla_put16(uint8_t *, uint16_t) noexcept
    void ottla_put32(uint8_t *, uint32_t) noexcept
    void ottla_put64(uint8_t *, uint64_t) noexcept

cdef enum:
    SIZE = 61
    FIELDS = 13
    OVERHEAD = 12
    CRC = 17
    ATTRIBUTES = 21
    MAGIC = 2


def header_at(cls, buf, Py_ssize_t pos):
    cdef Py_buffer view
    cdef const uint8_t *p
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        if pos < 0 or view.len - pos < SIZE:
            return None
        p = <const uint8_t *>view.buf + pos
        made = fresh(cls, FIELDS)
        put(made, 0, <int64_t>ottla_u64(p))
        put(made, 1, <int32_t>ottla_u32(p + 8))
        put(made, 2, <int32_t>ottla_u32(p + 12))
        put(made, 3, <int8_t>p[16])
        put(made, 4, ottla_u32(p + CRC))
        put(made, 5, <int16_t>ottla_u16(p + ATTRIBUTES))
        put(made, 6, <int32_t>ottla_u32(p + 23))
        put(made, 7, <int64_t>ottla_u64(p + 27))
        put(made, 8, <int64_t>ottla_u64(p + 35))
        put(made, 9, <int64_t>ottla_u64(p + 43))
        put(made, 10, <int16_t>ottla_u16(p + 51))
        put(made, 11, <int32_t>ottla_u32(p + 53))
        put(made, 12, <int32_t>ottla_u32(p + 57))
        return made
    finally:
        PyBuffer_Release(&view)


def number(buf, Py_ssize_t pos, int64_t base_offset, int32_t leader_epoch):
    cdef Py_buffer view
    PyObject_GetBuffer(buf, &view, PyBUF_WRITABLE)
    try:
        if pos < 0 or view.len - pos < 16:
            raise ValueError("a batch header reaches beyond its buffer")
        ottla_put64(<uint8_t *>view.buf + pos, <uint64_t>base_offset)
        ottla_put32(<uint8_t *>view.buf + pos + 12, <uint32_t>leader_epoch)
    finally:
        PyBuffer_Release(&view)


def seal(
    bytearray batch, int32_t count, int64_t timestamp, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
    int16_t attributes,
):
    cdef uint8_t *p
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(batch)
    if size < SIZE or size > 0x7FFFFFFF:
        raise ValueError("a batch has a header, and less than 2 GB")
    p = <uint8_t *>PyByteArray_AS_STRING(batch)
    ottla_put64(p, 0)
    ottla_put32(p + 8, <uint32_t>(size - OVERHEAD))
    ottla_put32(p + 12, 0xFFFFFFFF)
    p[16] = MAGIC
    ottla_put16(p + ATTRIBUTES, <uint16_t>attributes)
    ottla_put32(p + 23, <uint32_t>(count - 1))
    ottla_put64(p + 27, <uint64_t>timestamp)
    ottla_put64(p + 35, <uint64_t>timestamp)
    ottla_put64(p + 43, <uint64_t>producer_id)
    ottla_put16(p + 51, <uint16_t>producer_epoch)
    ottla_put32(p + 53, <uint32_t>base_sequence)
    ottla_put32(p + 57, <uint32_t>count)
    ottla_put32(p + CRC, <uint32_t>crc32c(memoryview(batch)[ATTRIBUTES:]))
