# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, embedsignature=True, cdivision=True
"""Records to Arrow's buffers, in C: see `_columns_twin.py`, which says what each function does and in which layout.

Guards: no pointer leaves a piece or a buffer to be filled, whatever the bytes say; every answer and every error is the twin's,
which the tests hold against this on mutated input. A change here is a change there.

The GIL is given up for the walks: all buffers are held meanwhile, and none of them changes its size.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from ottla.records._walk cimport Head, body, head, sized
from ottla.records._columns_twin import Sizes
from ottla.records.errors import BadPiece


cdef struct Piece:
    const uint8_t *start
    const uint8_t *end
    int64_t base_offset
    int64_t base_timestamp
    int64_t append_time
    int64_t count
    int64_t last_offset
    bint appended


cdef struct Found:
    int64_t offset
    int64_t timestamp
    const uint8_t *key
    const uint8_t *value
    const uint8_t *headers
    int32_t key_size
    int32_t value_size
    int32_t header_count


cdef struct Count:
    int64_t rows
    int64_t key_bytes
    int64_t key_nulls
    int64_t value_bytes
    int64_t value_nulls
    int64_t header_nulls
    int64_t headers
    int64_t name_bytes
    int64_t header_value_bytes
    int64_t header_value_nulls


cdef class Pieces:
    """The pieces with their buffers held."""

    cdef Py_buffer *views
    cdef Piece *items
    cdef Py_ssize_t held
    cdef Py_ssize_t number

    def __cinit__(self, list pieces):
        cdef Py_ssize_t index
        cdef Piece *item
        self.number = len(pieces)
        self.views = <Py_buffer *>calloc(self.number + 1, sizeof(Py_buffer))
        self.items = <Piece *>calloc(self.number + 1, sizeof(Piece))
        if self.views == NULL or self.items == NULL:
            raise MemoryError
        for index in range(self.number):
            area, base_offset, base_timestamp, append_time, count, last_offset = pieces[index]
            PyObject_GetBuffer(area, &self.views[index], PyBUF_SIMPLE)
            self.held += 1
            item = &self.items[index]
            item.start = <const uint8_t *>self.views[index].buf
            item.end = item.start + self.views[index].len
            item.base_offset = base_offset
            item.base_timestamp = base_timestamp
            item.appended = append_time is not None
            item.append_time = append_time if append_time is not None else 0
            item.count = count
            item.last_offset = last_offset

    def __dealloc__(self):
        cdef Py_ssize_t index
        for index in range(self.held):
            PyBuffer_Release(&self.views[index])
        free(self.views)
        free(self.items)


cdef inline bint take(const uint8_t **at, const uint8_t *stop, const Piece *piece, int64_t *last, Found *out) noexcept nogil:
    """Step over one record whose parts are all there; its headers are not looked at yet."""
    cdef const uint8_t *p
    cdef const uint8_t *close
    cdef Head found
    if not (body(at, stop, &close) and head(at, close, piece.base_timestamp, &found)):
        return False
    if found.delta <= last[0] or piece.base_offset > INT64_MAX - found.delta:
        return False
    last[0] = found.delta
    out.offset = piece.base_offset + found.delta
    if out.offset > piece.last_offset:
        return False
    out.timestamp = piece.append_time if piece.appended else found.timestamp
    p = at[0]
    if not sized(&p, close, -1, &out.key_size):
        return False
    out.key = p
    if out.key_size > 0:
        p += out.key_size
    if not sized(&p, close, -1, &out.value_size):
        return False
    out.value = p
    if out.value_size > 0:
        p += out.value_size
    if not sized(&p, close, 0, &out.header_count):  # a header takes bytes, so their count is bounded like a length
        return False
    out.headers = p
    if out.header_count == 0 and p != close:
        return False
    at[0] = close
    return True


cdef inline bint count_headers(const Found *found, const uint8_t *close, bint wanted, Count *sums) noexcept nogil:
    cdef const uint8_t *p = found.headers
    cdef int32_t index, size
    cdef int64_t names = 0, values = 0, nulls = 0
    for index in range(found.header_count):
        if not sized(&p, close, 0, &size):
            return False
        p += size
        names += size
        if not sized(&p, close, -1, &size):
            return False
        if size > 0:
            p += size
            values += size
        elif size < 0:
            nulls += 1
    if p != close:
        return False
    if wanted:
        sums.headers += found.header_count
        sums.name_bytes += names
        sums.header_value_bytes += values
        sums.header_value_nulls += nulls
    return True


cdef Py_ssize_t count_all(
    const Piece *items, Py_ssize_t number, int64_t first, int64_t end, Count *sums, int64_t *record
) noexcept nogil:
    """How much there is; the place of the piece that is corrupt, or -1. `record` is the corrupt one, or -1 for what follows."""
    cdef Py_ssize_t index
    cdef int64_t row, last
    cdef const uint8_t *p
    cdef const Piece *piece
    cdef Found found
    cdef bint wanted
    for index in range(number):
        piece = &items[index]
        p = piece.start
        last = -1
        for row in range(piece.count):
            record[0] = row
            if not take(&p, piece.end, piece, &last, &found):
                return index
            wanted = first <= found.offset < end
            if found.header_count and not count_headers(&found, p, wanted, sums):
                return index
            if not wanted:
                continue
            sums.rows += 1
            if found.key_size >= 0:
                sums.key_bytes += found.key_size
            else:
                sums.key_nulls += 1
            if found.value_size >= 0:
                sums.value_bytes += found.value_size
            else:
                sums.value_nulls += 1
            if found.header_count == 0:
                sums.header_nulls += 1
        if p != piece.end:
            record[0] = -1
            return index
    return -1


def measure(list pieces, int64_t first, int64_t end):
    cdef Pieces held = Pieces(pieces)
    cdef Count sums
    cdef Py_ssize_t bad
    cdef int64_t record = 0
    memset(&sums, 0, sizeof(Count))
    with nogil:
        bad = count_all(held.items, held.number, first, end, &sums, &record)
    if bad >= 0:
        raise BadPiece(bad, f"record {record + 1} of the batch is corrupt" if record >= 0 else "bytes follow the last record")
    return Sizes(
        sums.rows, sums.key_bytes, sums.key_nulls, sums.value_bytes, sums.value_nulls, sums.header_nulls, sums.headers,
        sums.name_bytes, sums.header_value_bytes, sums.header_value_nulls,
    )


cdef enum:
    OFFSET, TIMESTAMP, KEY_OFFSETS, KEY_DATA, KEY_VALID, VALUE_OFFSETS, VALUE_DATA, VALUE_VALID
    HEADER_OFFSETS, HEADER_VALID, NAME_OFFSETS, NAME_DATA, HEADER_VALUE_OFFSETS, HEADER_VALUE_DATA, HEADER_VALUE_VALID
    PLACES


cdef struct Out:
    uint8_t *data
    int64_t size


cdef class Places:
    """The buffers that are to be filled, held."""

    cdef Py_buffer views[PLACES]
    cdef Out outs[PLACES]
    cdef bint held[PLACES]

    def __cinit__(self, columns):
        cdef int index
        for index in range(PLACES):
            self.held[index] = False
            self.outs[index].data = NULL
            self.outs[index].size = 0
        for index, buffer in enumerate(columns):
            if buffer is not None and index < PLACES:
                PyObject_GetBuffer(buffer, &self.views[index], PyBUF_WRITABLE)
                self.held[index] = True
                self.outs[index].data = <uint8_t *>self.views[index].buf
                self.outs[index].size = self.views[index].len
                if index == KEY_VALID or index == VALUE_VALID or index == HEADER_VALID or index == HEADER_VALUE_VALID:
                    memset(self.outs[index].data, 0, self.outs[index].size)

    def __dealloc__(self):
        cdef int index
        for index in range(PLACES):
            if self.held[index]:
                PyBuffer_Release(&self.views[index])


cdef inline bint begin(Out *offsets) noexcept nogil:
    if offsets.data != NULL:
        if offsets.size < 4:
            return False
        (<int32_t *>offsets.data)[0] = 0
    return True


cdef inline bint put(
    Out *offsets, Out *data, Out *valid, int64_t row, int64_t *used, const uint8_t *content, int32_t size
) noexcept nogil:
    """One value of a binary column behind the ones before it; false where there is no room."""
    if offsets.data == NULL:
        return True
    if (row + 2) * 4 > offsets.size:
        return False
    if size > 0:
        if used[0] + size > data.size or used[0] + size > INT32_MAX:
            return False
        memcpy(data.data + used[0], content, size)
        used[0] += size
    (<int32_t *>offsets.data)[row + 1] = <int32_t>used[0]
    if valid.data != NULL:
        if row >= valid.size * 8:
            return False
        if size >= 0:
            valid.data[row >> 3] |= 1 << (row & 7)
    return True


cdef bint is_utf8(const uint8_t *p, int64_t size) noexcept nogil:
    """As Python decodes: nothing overlong, no surrogates, nothing beyond U+10FFFF."""
    cdef int64_t at = 0
    cdef int more
    cdef uint8_t byte, low, high
    while at < size:
        byte = p[at]
        at += 1
        if byte < 0x80:
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= byte <= 0xDF:
            more = 1
        elif 0xE0 <= byte <= 0xEF:
            more = 2
            if byte == 0xE0:
                low = 0xA0
            elif byte == 0xED:
                high = 0x9F
        elif 0xF0 <= byte <= 0xF4:
            more = 3
            if byte == 0xF0:
                low = 0x90
            elif byte == 0xF4:
                high = 0x8F
        else:
            return False
        if size - at < more or not (low <= p[at] <= high):
            return False
        at += 1
        more -= 1
        while more > 0:
            if not (0x80 <= p[at] <= 0xBF):
                return False
            at += 1
            more -= 1
    return True


cdef inline int64_t micros(int64_t millis) noexcept nogil:
    if millis > INT64_MAX / 1000:
        return INT64_MAX
    if millis < INT64_MIN / 1000:
        return INT64_MIN
    return millis * 1000


cdef int64_t fill_all(
    const Piece *items, Py_ssize_t number, int64_t first, int64_t end, Out *outs
) noexcept nogil:
    """The rows that were written; -1 where a buffer is too small or a piece is corrupt."""
    cdef Py_ssize_t index
    cdef int64_t at, last, row = 0, keys = 0, values = 0, names = 0, header_values = 0, headers = 0, byte
    cdef int32_t number_of, size
    cdef const uint8_t *p
    cdef const uint8_t *h
    cdef const Piece *piece
    cdef Found found
    cdef Out none
    none.data = NULL
    none.size = 0
    if not (begin(&outs[KEY_OFFSETS]) and begin(&outs[VALUE_OFFSETS]) and begin(&outs[HEADER_OFFSETS])):
        return -1
    if not (begin(&outs[NAME_OFFSETS]) and begin(&outs[HEADER_VALUE_OFFSETS])):
        return -1
    for index in range(number):
        piece = &items[index]
        p = piece.start
        last = -1
        for at in range(piece.count):
            if not take(&p, piece.end, piece, &last, &found):
                return -1
            if not (first <= found.offset < end):
                continue
            if outs[OFFSET].data != NULL:
                if (row + 1) * 8 > outs[OFFSET].size:
                    return -1
                (<int64_t *>outs[OFFSET].data)[row] = found.offset
            if outs[TIMESTAMP].data != NULL:
                if (row + 1) * 8 > outs[TIMESTAMP].size:
                    return -1
                (<int64_t *>outs[TIMESTAMP].data)[row] = micros(found.timestamp)
            if not put(&outs[KEY_OFFSETS], &outs[KEY_DATA], &outs[KEY_VALID], row, &keys, found.key, found.key_size):
                return -1
            if not put(
                &outs[VALUE_OFFSETS], &outs[VALUE_DATA], &outs[VALUE_VALID], row, &values, found.value, found.value_size
            ):
                return -1
            if outs[HEADER_OFFSETS].data != NULL:
                h = found.headers
                for number_of in range(found.header_count):
                    if not sized(&h, p, 0, &size):
                        return -1
                    if not put(&outs[NAME_OFFSETS], &outs[NAME_DATA], &none, headers, &names, h, size):
                        return -1
                    if size > 0 and not is_utf8(h, size):
                        for byte in range(names - size, names):
                            if outs[NAME_DATA].data[byte] >= 0x80:
                                outs[NAME_DATA].data[byte] = c"?"
                    h += size
                    if not sized(&h, p, -1, &size):
                        return -1
                    if not put(
                        &outs[HEADER_VALUE_OFFSETS], &outs[HEADER_VALUE_DATA], &outs[HEADER_VALUE_VALID], headers,
                        &header_values, h, size,
                    ):
                        return -1
                    if size > 0:
                        h += size
                    headers += 1
                if (row + 2) * 4 > outs[HEADER_OFFSETS].size or headers > INT32_MAX:
                    return -1
                (<int32_t *>outs[HEADER_OFFSETS].data)[row + 1] = <int32_t>headers
                if outs[HEADER_VALID].data != NULL:
                    if row >= outs[HEADER_VALID].size * 8:
                        return -1
                    if found.header_count > 0:
                        outs[HEADER_VALID].data[row >> 3] |= 1 << (row & 7)
            row += 1
    return row


def fill(list pieces, int64_t first, int64_t end, columns):
    cdef Pieces held = Pieces(pieces)
    cdef Places places = Places(columns)
    cdef int64_t rows
    with nogil:
        rows = fill_all(held.items, held.number, first, end, places.outs)
    if rows < 0:
        raise ValueError("the buffers are too small for the records")
    return rows

