# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Plain commits in C: see `_commits_twin.py`, which says what each function does.

Guards: no pointer leaves the request, whatever its lengths say; every answer is the twin's, which the tests hold against this. A
change here is a change there.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcpy, memset

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object, Py_ssize_t *) except NULL

cdef extern from *:
    """
    static inline int32_t ottla_i32(const uint8_t *p) {
        return (int32_t)(((uint32_t)p[0] << 24) | ((uint32_t)p[1] << 16) | ((uint32_t)p[2] << 8) | p[3]);
    }
    """
    int32_t ottla_i32(const uint8_t *) noexcept

cdef enum:
    LONGEST = 127   # a length or count of one byte
    ROW = 18        # partition, offset, leader epoch, metadata, tags
    TAKEN = 7       # partition, no error, no tags


cdef inline Py_ssize_t text(const uint8_t *p, const uint8_t *end) noexcept:
    """How much a text of at most 126 bytes takes with its length, 0 for none; -1 where it is of another form, or cut."""
    if p >= end or p[0] > LONGEST or p[0] > end - p:
        return -1
    return p[0]


cdef inline object read(const uint8_t *p, Py_ssize_t size):
    return PyUnicode_DecodeUTF8(<const char *>p + 1, size - 1, NULL)


def read_plain(buf, Py_ssize_t start):
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef const uint8_t *stop
    cdef Py_ssize_t count, rows, size
    cdef int32_t generation
    cdef object group_id, member_id, name, instance_id = None
    cdef list topics = []
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= view.len:
            return None
        p, end = <const uint8_t *>view.buf + start, <const uint8_t *>view.buf + view.len
        size = text(p, end)
        if size < 1 or end - p - size < 4:
            return None
        group_id = read(p, size)
        p += size
        generation = ottla_i32(p)
        p += 4
        size = text(p, end)
        if size < 1:
            return None
        member_id = read(p, size)
        p += size
        size = text(p, end)
        if size < 0:
            return None
        if size:
            instance_id = read(p, size)
            p += size
        else:
            p += 1
        if p >= end or not 0 < p[0] <= LONGEST:
            return None
        count = p[0] - 1
        p += 1
        while count:
            count -= 1
            size = text(p, end)
            if size < 1:
                return None
            name = read(p, size)
            p += size
            if p >= end or not 0 < p[0] <= LONGEST:
                return None
            rows = (p[0] - 1) * ROW
            p += 1
            if rows >= end - p:
                return None
            topics.append((name, PyBytes_FromStringAndSize(<const char *>p, rows)))
            stop = p + rows
            while p < stop:
                if p[ROW - 2] > 1 or p[ROW - 1]:
                    return None
                p += ROW
            if p[0]:
                return None
            p += 1
        if p + 1 != end or p[0]:
            return None
        return group_id, generation, member_id, instance_id, topics
    except UnicodeDecodeError:
        return None
    finally:
        PyBuffer_Release(&view)


def all_in(bytes rows, there):
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(rows)
    cdef const uint8_t *end = p + PyBytes_GET_SIZE(rows)
    while p < end:
        if ottla_i32(p) not in there:
            return False
        p += ROW
    return True


def taken(list topics):
    cdef Py_ssize_t total = 6, size, count, index
    cdef const char *name
    cdef const char *row
    cdef char *p
    cdef bytes rows, made
    if len(topics) >= LONGEST:
        raise ValueError("too many topics for a plain commit")
    for title, rows in topics:
        PyUnicode_AsUTF8AndSize(title, &size)
        if size >= LONGEST or PyBytes_GET_SIZE(rows) >= LONGEST * ROW:
            raise ValueError("too much of a topic for a plain commit")
        total += size + 3 + PyBytes_GET_SIZE(rows) // ROW * TAKEN
    made = PyBytes_FromStringAndSize(NULL, total)
    p = PyBytes_AS_STRING(made)
    memset(p, 0, total)  # no throttling, no errors, no tags
    p[4] = <char>(len(topics) + 1)
    p += 5
    for title, rows in topics:
        name = PyUnicode_AsUTF8AndSize(title, &size)
        p[0] = <char>(size + 1)
        memcpy(p + 1, name, size)
        p += size + 1
        count = PyBytes_GET_SIZE(rows) // ROW
        row = PyBytes_AS_STRING(rows)
        p[0] = <char>(count + 1)
        p += 1
        for index in range(count):
            memcpy(p, row, 4)
            p += TAKEN
            row += ROW
        p += 1
    return made
