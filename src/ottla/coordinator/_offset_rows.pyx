# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""A topic's offsets as records and as entries of a table, in C: see `_offset_rows_twin.py`, which says what each function does.

Guards: every answer is the twin's, which the tests hold against this. A change here is a change there.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from ottla.records._tuples cimport fresh, put

from ottla.coordinator.records import CommittedOffset
from ottla.model import NO_TIMESTAMP, TopicPartition

cdef extern from *:
    """
    static inline uint32_t ottla_u32(const uint8_t *p) {
        return ((uint32_t)p[0] << 24) | ((uint32_t)p[1] << 16) | ((uint32_t)p[2] << 8) | p[3];
    }
    static inline uint64_t ottla_u64(const uint8_t *p) { return ((uint64_t)ottla_u32(p) << 32) | ottla_u32(p + 4); }
    static inline void ottla_put64(uint8_t *p, uint64_t n) {
        int at;
        for (at = 7; at >= 0; at--) { p[at] = (uint8_t)n; n >>= 8; }
    }
    """
    uint32_t ottla_u32(const uint8_t *) noexcept
    uint64_t ottla_u64(const uint8_t *) noexcept
    void ottla_put64(uint8_t *, uint64_t) noexcept

cdef enum:
    ROW = 18    # partition, offset, leader epoch, metadata, tags
    VERSION = 3
    VALUE = 24  # version, offset, leader epoch, no metadata, commit time

cdef object _committed = CommittedOffset, _partition = TopicPartition, _never = NO_TIMESTAMP


cdef inline object record(object cls, tuple items):
    """A named tuple of `items`, without a call."""
    cdef Py_ssize_t at
    made = fresh(cls, len(items))
    for at in range(len(items)):
        put(made, at, items[at])
    return made


def append_rows(list out, bytes head, bytes rows, int64_t now_ms):
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(rows)
    cdef const uint8_t *end = p + PyBytes_GET_SIZE(rows)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(head)
    cdef uint8_t *at
    while p < end:
        key = PyBytes_FromStringAndSize(NULL, size + 4)
        at = <uint8_t *>PyBytes_AS_STRING(key)
        memcpy(at, PyBytes_AS_STRING(head), size)
        memcpy(at + size, p, 4)
        value = PyBytes_FromStringAndSize(NULL, VALUE)
        at = <uint8_t *>PyBytes_AS_STRING(value)
        at[0], at[1] = 0, VERSION
        memcpy(at + 2, p + 4, 12)
        memset(at + 14, 0, 2)
        ottla_put64(at + 16, <uint64_t>now_ms)
        out.append((key, value))
        p += ROW


def put_into(dict offsets, str topic, bytes rows, now_ms):
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(rows)
    cdef const uint8_t *end = p + PyBytes_GET_SIZE(rows)
    while p < end:
        value = record(
            _committed, (<int64_t>ottla_u64(p + 4), <int32_t>ottla_u32(p + 12), "", now_ms, _never)
        )
        offsets[record(_partition, (topic, <int32_t>ottla_u32(p)))] = value
        p += ROW
