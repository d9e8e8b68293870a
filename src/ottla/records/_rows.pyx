# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, embedsignature=True, cdivision=True
"""Arrow's columns to records, in C: see `_columns_twin.py`, which says what each function does and in which layout.

Guards: no pointer leaves a column, whatever its offsets say; every answer and every error is the twin's, which the tests hold
against this. A change here is a change there. Columns do not change while they are read: Arrow's are immutable.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset


cdef struct Binary:
    const int32_t *offsets
    const uint8_t *data
    const uint8_t *valid
    int64_t offset
    int64_t rows        # that the offsets and the validity reach to
    int64_t size        # of the data


cdef class Lease:
    """Read-only buffers, held until this goes."""

    cdef Py_buffer views[16]
    cdef int held

    cdef const uint8_t *open(self, object buffer, int64_t *size) except? NULL:
        if self.held == 16:
            raise ValueError("too many buffers")
        PyObject_GetBuffer(buffer, &self.views[self.held], PyBUF_SIMPLE)
        self.held += 1
        size[0] = self.views[self.held - 1].len
        return <const uint8_t *>self.views[self.held - 1].buf

    cdef int binary(self, object column, Binary *out) except -1:
        cdef int64_t size = 0, bits
        memset(out, 0, sizeof(Binary))
        if column is None:
            return 0
        offset, offsets, data, valid = column
        out.offset = offset
        out.offsets = <const int32_t *>self.open(offsets, &size)
        out.rows = size / 4 - 1
        out.data = self.open(data, &out.size)
        if valid is not None:
            out.valid = self.open(valid, &bits)
            out.rows = min(out.rows, bits * 8)
        out.rows -= out.offset
        if out.offset < 0 or out.rows < 0:
            raise ValueError("a column's buffers are too small")
        return 0

    def __dealloc__(self):
        cdef int index
        for index in range(self.held):
            PyBuffer_Release(&self.views[index])


cdef inline bint at_row(const Binary *column, int64_t row, const uint8_t **content, int32_t *size) noexcept nogil:
    """One value; a size of -1 is null. False where the column's own offsets lie."""
    cdef int32_t start, stop
    size[0] = -1
    if column.offsets == NULL:
        return True
    if row < 0 or row >= column.rows:
        return False
    row += column.offset
    if column.valid != NULL and not (column.valid[row >> 3] >> (row & 7)) & 1:
        return True
    start = column.offsets[row]
    stop = column.offsets[row + 1]
    if start < 0 or stop < start or stop > column.size:
        return False
    content[0] = column.data + start
    size[0] = stop - start
    return True


cdef uint32_t murmur2(const uint8_t *p, int32_t size) noexcept nogil:
    """As Java's producer hashes a key."""
    cdef uint32_t h = <uint32_t>0x9747B28C ^ <uint32_t>size
    cdef uint32_t k
    while size >= 4:
        k = p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24
        k *= <uint32_t>0x5BD1E995
        k ^= k >> 24
        k *= <uint32_t>0x5BD1E995
        h = h * <uint32_t>0x5BD1E995 ^ k
        p += 4
        size -= 4
    if size == 3:
        h ^= <uint32_t>p[2] << 16
    if size >= 2:
        h ^= <uint32_t>p[1] << 8
    if size >= 1:
        h = (h ^ p[0]) * <uint32_t>0x5BD1E995
    h ^= h >> 13
    h *= <uint32_t>0x5BD1E995
    return h ^ h >> 15


def choose(int64_t rows, key, given, int64_t partitions, int64_t sticky, int64_t run, out):
    cdef Lease lease = Lease()
    cdef Binary keys
    cdef const int32_t *wanted = NULL
    cdef int32_t *chosen
    cdef int64_t row, size = 0, bad = -1
    cdef int32_t length, number
    cdef const uint8_t *content = NULL
    cdef Py_buffer view
    if partitions <= 0 or partitions > INT32_MAX or run <= 0 or rows < 0 or sticky < 0:
        raise ValueError("there is nothing to choose from")
    lease.binary(key, &keys)
    if given is not None:
        wanted = <const int32_t *>lease.open(given, &size)
        if size < rows * 4:
            raise ValueError("a column's buffers are too small")
    PyObject_GetBuffer(out, &view, PyBUF_WRITABLE)
    try:
        if view.len < rows * 4:
            raise ValueError("a column's buffers are too small")
        chosen = <int32_t *>view.buf
        with nogil:
            for row in range(rows):
                number = wanted[row] if wanted != NULL else -1
                if number < 0:
                    if not at_row(&keys, row, &content, &length):
                        bad = row
                        break
                    if length >= 0:
                        number = <int32_t>((murmur2(content, length) & <uint32_t>0x7FFFFFFF) % partitions)
                    else:
                        number = <int32_t>(sticky / run % partitions)
                        sticky += 1
                elif number >= partitions:
                    bad = row
                    break
                chosen[row] = number
    finally:
        PyBuffer_Release(&view)
    if bad >= 0:
        raise ValueError(f"row {bad} has no partition among the {partitions} that there are")
    return sticky


def group(chosen, int64_t partitions, order):
    cdef Lease lease = Lease()
    cdef int64_t size = 0, row, rows, at, number
    cdef const int32_t *which = <const int32_t *>lease.open(chosen, &size)
    cdef Py_buffer view
    cdef int64_t *places
    cdef int64_t *sorted_rows
    cdef bint fits = True
    rows = size / 4
    if partitions <= 0 or partitions > INT32_MAX:
        raise ValueError("there is nothing to choose from")
    PyObject_GetBuffer(order, &view, PyBUF_WRITABLE)
    places = <int64_t *>calloc(partitions + 1, sizeof(int64_t))
    try:
        if places == NULL:
            raise MemoryError
        if view.len < rows * 8:
            raise ValueError("a column's buffers are too small")
        sorted_rows = <int64_t *>view.buf
        with nogil:
            for row in range(rows):
                if not 0 <= which[row] < partitions:
                    fits = False
                    break
                places[which[row] + 1] += 1
        if not fits:
            raise ValueError(f"row {row} has no partition among the {partitions} that there are")
        for at in range(partitions):
            places[at + 1] += places[at]
        starts = [places[at] for at in range(partitions + 1)]
        with nogil:
            for row in range(rows):
                number = which[row]
                sorted_rows[places[number]] = row
                places[number] += 1
        return starts
    finally:
        free(places)
        PyBuffer_Release(&view)


cdef struct Rows:
    Binary key
    Binary value
    Binary names
    Binary header_values
    const int64_t *timestamps
    const int32_t *header_offsets
    const uint8_t *header_valid
    int64_t header_offset
    int64_t header_rows
    int64_t count
    int64_t now


cdef inline int varint_size(int64_t number) noexcept nogil:
    cdef uint64_t rest = (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)
    cdef int size = 1
    while rest >= 0x80:
        rest >>= 7
        size += 1
    return size


cdef inline uint8_t *write_varint(uint8_t *p, int64_t number) noexcept nogil:
    cdef uint64_t rest = (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)
    while rest >= 0x80:
        p[0] = <uint8_t>(rest | 0x80)
        p += 1
        rest >>= 7
    p[0] = <uint8_t>rest
    return p + 1


cdef inline uint8_t *write_bytes(uint8_t *p, const uint8_t *content, int32_t size) noexcept nogil:
    p = write_varint(p, size)
    if size > 0:
        memcpy(p, content, size)
        p += size
    return p


cdef inline bint header_range(const Rows *rows, int64_t row, int64_t *start, int64_t *stop) noexcept nogil:
    start[0] = stop[0] = 0
    if rows.header_offsets == NULL:
        return True
    if row < 0 or row >= rows.header_rows:
        return False
    row += rows.header_offset
    if rows.header_valid != NULL and not (rows.header_valid[row >> 3] >> (row & 7)) & 1:
        return True
    start[0] = rows.header_offsets[row]
    stop[0] = rows.header_offsets[row + 1]
    return 0 <= start[0] <= stop[0]


cdef inline int64_t body_size(const Rows *rows, int64_t row, int64_t delta, int64_t time_delta) noexcept nogil:
    """Bytes of a record behind its length; -1 where a column does not hold the row."""
    cdef const uint8_t *content = NULL
    cdef int32_t size
    cdef int64_t start, stop, at
    cdef int64_t total = 1 + varint_size(time_delta) + varint_size(delta)
    if row < 0 or row >= rows.count:
        return -1
    if not at_row(&rows.key, row, &content, &size):
        return -1
    total += varint_size(size) + (size if size > 0 else 0)
    if not at_row(&rows.value, row, &content, &size):
        return -1
    total += varint_size(size) + (size if size > 0 else 0)
    if not header_range(rows, row, &start, &stop):
        return -1
    total += varint_size(stop - start)
    for at in range(start, stop):
        if not at_row(&rows.names, at, &content, &size) or size < 0:
            return -1
        total += varint_size(size) + size
        if not at_row(&rows.header_values, at, &content, &size):
            return -1
        total += varint_size(size) + (size if size > 0 else 0)
    return total if total <= INT32_MAX else -1


cdef inline uint8_t *write_record(
    uint8_t *p, const Rows *rows, int64_t row, int64_t delta, int64_t time_delta, int64_t size
) noexcept nogil:
    cdef const uint8_t *content = NULL
    cdef int32_t length
    cdef int64_t start, stop, at
    p = write_varint(p, size)
    p[0] = 0
    p = write_varint(p + 1, time_delta)
    p = write_varint(p, delta)
    at_row(&rows.key, row, &content, &length)
    p = write_bytes(p, content, length)
    at_row(&rows.value, row, &content, &length)
    p = write_bytes(p, content, length)
    header_range(rows, row, &start, &stop)
    p = write_varint(p, stop - start)
    for at in range(start, stop):
        at_row(&rows.names, at, &content, &length)
        p = write_bytes(p, content, length)
        at_row(&rows.header_values, at, &content, &length)
        p = write_bytes(p, content, length)
    return p


def encode(source, order, int64_t start, int64_t stop, int64_t now, int64_t room, int64_t limit):
    cdef Lease lease = Lease()
    cdef Rows rows
    cdef const int64_t *numbers = NULL
    cdef int64_t size = 0, bits, at, row, time, first = 0, latest = 0, total = 0, bad = -1
    cdef uint8_t *p
    cdef bint failed = False
    memset(&rows, 0, sizeof(Rows))
    count, key, value, timestamps, headers = source
    rows.count = count
    lease.binary(key, &rows.key)
    lease.binary(value, &rows.value)
    if timestamps is not None:
        rows.timestamps = <const int64_t *>lease.open(timestamps, &size)
        if size < rows.count * 8:
            raise ValueError("a column's buffers are too small")
    if headers is not None:
        rows.header_offset, header_offsets, header_valid, names, header_values = headers
        rows.header_offsets = <const int32_t *>lease.open(header_offsets, &size)
        rows.header_rows = size / 4 - 1
        if header_valid is not None:
            rows.header_valid = lease.open(header_valid, &bits)
            rows.header_rows = min(rows.header_rows, bits * 8)
        rows.header_rows -= rows.header_offset
        if rows.header_offset < 0 or rows.header_rows < 0:
            raise ValueError("a column's buffers are too small")
        lease.binary(names, &rows.names)
        lease.binary(header_values, &rows.header_values)
    if order is not None:
        numbers = <const int64_t *>lease.open(order, &size)
        if not 0 <= start < stop <= size / 8:
            raise ValueError("there are no such rows")
    elif not 0 <= start < stop <= rows.count:
        raise ValueError("there are no such rows")
    if room < 0 or stop - start > INT32_MAX:
        raise ValueError("there are no such rows")
    with nogil:
        for at in range(start, stop):
            row = numbers[at] if numbers != NULL else at
            if row < 0 or row >= rows.count:
                bad = row
                failed = True
                break
            time = rows.timestamps[row] if rows.timestamps != NULL else now
            if at == start:
                first = latest = time
            if (time >= 0 and first < time - INT64_MAX) or (time < 0 and first > time - INT64_MIN):
                bad = row
                failed = True
                break
            size = body_size(&rows, row, at - start, time - first)
            if size < 0:
                bad = row
                failed = True
                break
            size += varint_size(size)
            if at > start and total + size > limit:
                stop = at
                break
            if time > latest:
                latest = time
            total += size
    if failed:
        raise ValueError(f"row {bad} cannot be written")
    area = PyByteArray_FromStringAndSize(NULL, room + total)
    p = <uint8_t *>PyByteArray_AS_STRING(area)
    memset(p, 0, room)
    p += room
    with nogil:
        for at in range(start, stop):
            row = numbers[at] if numbers != NULL else at
            time = rows.timestamps[row] if rows.timestamps != NULL else now
            size = body_size(&rows, row, at - start, time - first)
            p = write_record(p, &rows, row, at - start, time - first, size)
    return area, stop, first, latest
