# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, embedsignature=True
"""What compaction does with every record, in C: note the last offset of each key, and copy the records that stay.

Guards: no pointer leaves the bytes that were given; a key is told from another by 128 bits of SipHash-2-4 under a key that nobody
outside knows, so that nobody can make two keys collide and a value be lost; a batch is believed only if its checksum, its count
and the row of offsets are right, because what is written from it gets a new checksum. Every answer is that of `_offset_map_twin.py`.

`put_batches` and `filter_batches` walk over many plain batches (v2, not compressed, no transaction) at once; at any other they
stop, and the caller looks at that one by itself with `put_all` and `retain`.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from ottla.records._walk cimport Head, body, head, sized, varint32, varint64

cdef extern from *:
    """
    #include <stdint.h>
    static inline uint64_t high_product(uint64_t a, uint64_t b) { return (uint64_t)(((unsigned __int128)a * b) >> 64); }
    static inline uint64_t big64(const uint8_t *p) { uint64_t v; __builtin_memcpy(&v, p, 8); return __builtin_bswap64(v); }
    static inline uint32_t big32(const uint8_t *p) { uint32_t v; __builtin_memcpy(&v, p, 4); return __builtin_bswap32(v); }
    static inline void set_big64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); __builtin_memcpy(p, &v, 8); }
    static inline void set_big32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); __builtin_memcpy(p, &v, 4); }
    #define ROTL(x, b) (uint64_t)(((x) << (b)) | ((x) >> (64 - (b))))
    #define SIPROUND do { \
        v0 += v1; v1 = ROTL(v1, 13); v1 ^= v0; v0 = ROTL(v0, 32); \
        v2 += v3; v3 = ROTL(v3, 16); v3 ^= v2; \
        v0 += v3; v3 = ROTL(v3, 21); v3 ^= v0; \
        v2 += v1; v1 = ROTL(v1, 17); v1 ^= v2; v2 = ROTL(v2, 32); } while (0)
    static inline uint64_t little64(const uint8_t *p, int n) {
        uint64_t v = 0;
        for (int i = 0; i < n; i++) v |= (uint64_t)p[i] << (8 * i);
        return v;
    }
    static void siphash128(uint64_t k0, uint64_t k1, const uint8_t *p, size_t size, uint64_t *low, uint64_t *high) {
        uint64_t v0 = 0x736f6d6570736575ULL ^ k0, v1 = 0x646f72616e646f6dULL ^ k1 ^ 0xee;
        uint64_t v2 = 0x6c7967656e657261ULL ^ k0, v3 = 0x7465646279746573ULL ^ k1, m;
        const uint8_t *end = p + (size & ~(size_t)7);
        for (; p != end; p += 8) {
            __builtin_memcpy(&m, p, 8);
            v3 ^= m; SIPROUND; SIPROUND; v0 ^= m;
        }
        m = (uint64_t)size << 56 | little64(p, size & 7);
        v3 ^= m; SIPROUND; SIPROUND; v0 ^= m;
        v2 ^= 0xee; SIPROUND; SIPROUND; SIPROUND; SIPROUND;
        *low = v0 ^ v1 ^ v2 ^ v3;
        v1 ^= 0xdd; SIPROUND; SIPROUND; SIPROUND; SIPROUND;
        *high = v0 ^ v1 ^ v2 ^ v3;
    }
    """
    uint64_t high_product(uint64_t, uint64_t) nogil
    uint64_t big64(const uint8_t *) nogil
    uint32_t big32(const uint8_t *) nogil
    void set_big64(uint8_t *, uint64_t) nogil
    void set_big32(uint8_t *, uint32_t) nogil
    void siphash128(uint64_t, uint64_t, const uint8_t *, size_t, uint64_t *, uint64_t *) nogil

cdef enum:
    HEADER = 61
    OVERHEAD = 12
    MAGIC_AT = 16
    CRC_AT = 17
    ATTRIBUTES_AT = 21
    LAST_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    COUNT_AT = 57
    LEGACY_MIN = 14
    NOT_PLAIN = 0x37         # codec, transactional, control
    TIMESTAMP_TYPE = 0x08
    HORIZON = 0x40
    MIN_RECORD = 7
    FIRST_SLOTS = 4096
    SPARE_BYTES = 1 << 20
    GROWTH = 3               # a record whose timestamp is written anew becomes at most this many times longer

ENTRY_BYTES = 24
DONE, SPECIAL, FULL = 0, 1, 2


cdef struct Entry:
    uint64_t low
    uint64_t high
    int64_t mark             # the offset and one; 0 is an empty slot


cdef struct Plan:
    int64_t kept
    int64_t max_timestamp
    bint tombstones


def siphash(bytes key, bytes data):
    """SipHash-2-4 with 128 bits, for the tests: 16 bytes of key, 16 bytes of answer."""
    cdef uint64_t words[2]
    cdef uint64_t answer[2]
    memcpy(words, PyBytes_AS_STRING(key), 16)
    siphash128(words[0], words[1], <const uint8_t *>PyBytes_AS_STRING(data), len(data), &answer[0], &answer[1])
    return PyBytes_FromStringAndSize(<char *>answer, 16)


cdef object corrupt(int64_t index):
    return ValueError(f"record {index + 1} of the batch is corrupt")


cdef class OffsetMap:
    """The last offset of every key: open addressing, 24 bytes a slot, growing up to `memory` bytes."""

    cdef Entry *table
    cdef uint64_t slots, most_slots, entries, limit, k0, k1
    cdef uint8_t *last_words  # a bit for each offset from words_from to words_end: whether it is the last one of its key
    cdef int64_t words_from, words_end
    cdef public int64_t latest
    """The last offset that was noted: the map knows nothing of later ones."""

    def __cinit__(self, Py_ssize_t memory, double load_factor, bytes secret):
        if len(secret) != 16:
            raise ValueError("the secret has 16 bytes")
        memcpy(&self.k0, PyBytes_AS_STRING(secret), 8)
        memcpy(&self.k1, PyBytes_AS_STRING(secret) + 8, 8)
        self.most_slots = <uint64_t>max(memory // ENTRY_BYTES, 2)
        self.limit = min(<uint64_t>max(<int64_t>(self.most_slots * load_factor), 1), self.most_slots - 1)
        self.slots = min(self.most_slots, <uint64_t>FIRST_SLOTS)
        self.table = <Entry *>calloc(self.slots, sizeof(Entry))
        if self.table == NULL:
            raise MemoryError
        self.latest = -1

    def __dealloc__(self):
        free(self.table)
        free(self.last_words)

    def __len__(self):
        return self.entries

    @property
    def memory(self):
        """Bytes that the table takes."""
        return self.slots * sizeof(Entry)

    cdef inline Entry *find(self, const uint8_t *key, Py_ssize_t size, uint64_t *low, uint64_t *high) noexcept nogil:
        """Where the key is, or where it would go."""
        cdef uint64_t slot
        siphash128(self.k0, self.k1, key, size, low, high)
        slot = high_product(low[0], self.slots)
        while self.table[slot].mark != 0 and (self.table[slot].low != low[0] or self.table[slot].high != high[0]):
            slot += 1
            if slot == self.slots:
                slot = 0
        return &self.table[slot]

    cdef bint grow(self) noexcept nogil:
        """Twice the room, as far as it may; false if there is no memory for it."""
        cdef uint64_t wanted = min(self.slots * 2, self.most_slots), at, slot
        cdef Entry *table = <Entry *>calloc(wanted, sizeof(Entry))
        if table == NULL:
            return False
        for at in range(self.slots):
            if self.table[at].mark != 0:
                slot = high_product(self.table[at].low, wanted)
                while table[slot].mark != 0:
                    slot += 1
                    if slot == wanted:
                        slot = 0
                table[slot] = self.table[at]
        free(self.table)
        self.table, self.slots = table, wanted
        return True

    cdef bint put(self, const uint8_t *key, Py_ssize_t size, int64_t offset) noexcept nogil:
        """False if the key is new and there is no room."""
        cdef uint64_t low, high
        cdef Entry *entry
        if self.entries * 4 >= self.slots * 3 and self.slots < self.most_slots and not self.grow():
            self.limit = min(self.limit, self.slots - 1)
        entry = self.find(key, size, &low, &high)
        if entry.mark == 0:
            if self.entries >= self.limit or self.entries + 1 >= self.slots:
                return False
            entry.low = low
            entry.high = high
            self.entries += 1
        if offset >= entry.mark:
            entry.mark = offset + 1
        self.latest = offset
        return True

    def get(self, bytes key):
        """The last offset of a key; -1 if it has none here."""
        cdef uint64_t low, high
        return self.find(<const uint8_t *>PyBytes_AS_STRING(key), len(key), &low, &high).mark - 1

    def note(self, int64_t offset):
        """Everything up to `offset` has been looked at."""
        if offset > self.latest:
            self.latest = offset

    def settle(self, int64_t first_dirty):
        """All is noted from `first_dirty` on: from now on `holds_any` can tell which batches have nothing that stays."""
        cdef int64_t size = self.latest + 1 - first_dirty, offset
        cdef uint64_t at
        if size <= 0 or size // 8 > <int64_t>(self.slots * sizeof(Entry)) + SPARE_BYTES:  # offsets with large gaps
            return
        free(self.last_words)
        self.last_words = <uint8_t *>calloc(size // 8 + 1, 1)
        if self.last_words == NULL:
            return
        self.words_from, self.words_end = first_dirty, self.latest + 1
        for at in range(self.slots):
            offset = self.table[at].mark - 1 - first_dirty
            if 0 <= offset < size:
                self.last_words[offset >> 3] |= 1 << (offset & 7)

    cdef bint any_between(self, int64_t first, int64_t last) noexcept nogil:
        cdef int64_t offset
        if self.last_words == NULL or first < self.words_from or last >= self.words_end:
            return True
        for offset in range(first - self.words_from, last - self.words_from + 1):
            if self.last_words[offset >> 3] >> (offset & 7) & 1:
                return True
        return False

    def holds_any(self, int64_t first, int64_t last):
        """Whether a record from `first` to `last` may be the last one of its key. Where nobody knows, it may."""
        return self.any_between(first, last)

    cdef int64_t put_area(
        self, const uint8_t *p, const uint8_t *end, int64_t base_offset, int64_t count, int32_t last_delta, int64_t from_offset
    ) noexcept nogil:
        """-1 if all were put, -2 if there was no room, else the number of the first record that is none."""
        cdef const uint8_t *close
        cdef int64_t index
        cdef int32_t size, before = -1
        cdef Head found
        if count < 0:  # a negative number would be taken for an answer
            return 0
        for index in range(count):
            if not (body(&p, end, &close) and head(&p, close, 0, &found) and sized(&p, close, -1, &size)):
                return index
            if found.delta <= before or found.delta > last_delta:
                return index
            before = found.delta
            if size >= 0 and base_offset + found.delta >= from_offset:
                if not self.put(p, size, base_offset + found.delta):
                    return -2
            p = close
        return -1 if p == end else count

    def put_all(self, buf, int64_t base_offset, int64_t count, int32_t last_delta, int64_t from_offset):
        """Note the records of a batch, given its unpacked records, from `from_offset` on; false if the map is full."""
        cdef Py_buffer view
        cdef int64_t answer
        PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
        answer = self.put_area(
            <const uint8_t *>view.buf, <const uint8_t *>view.buf + view.len, base_offset, count, last_delta, from_offset
        )
        PyBuffer_Release(&view)
        if answer >= 0:
            raise corrupt(answer)
        return answer == -1

    cdef int plan(
        self,
        const uint8_t *p,
        const uint8_t *end,
        int64_t base_offset,
        int64_t base_timestamp,
        int64_t count,
        int32_t last_delta,
        bint drop_tombstones,
        uint8_t *flags,
        Plan *plan,
    ) noexcept nogil:
        """Which records stay, as `flags`; false if they are not `count` sound ones."""
        cdef const uint8_t *close
        cdef int64_t index, offset
        cdef uint64_t low, high
        cdef int32_t size, value, before = -1
        cdef Head found
        cdef bint keep
        plan.kept = 0
        plan.max_timestamp = INT64_MIN
        plan.tombstones = False
        for index in range(count):
            if not (body(&p, end, &close) and head(&p, close, base_timestamp, &found)):
                return False
            if found.delta <= before or found.delta > last_delta or not sized(&p, close, -1, &size):
                return False
            before = found.delta
            offset = base_offset + found.delta
            if offset > self.latest:
                keep = True
            elif size < 0:
                keep = False
            else:
                keep = offset >= self.find(p, size, &low, &high).mark - 1
            if keep:
                if size > 0:
                    p += size
                if not sized(&p, close, -1, &value):
                    return False
                if value < 0:
                    if drop_tombstones and offset <= self.latest:
                        keep = False
                    else:
                        plan.tombstones = True
            if keep:
                plan.kept += 1
                if found.timestamp > plan.max_timestamp:
                    plan.max_timestamp = found.timestamp
            flags[index] = keep
            p = close
        return p == end

    def retain(
        self, buf, int64_t base_offset, int64_t base_timestamp, int64_t count, int32_t last_delta, bint drop_tombstones,
        int64_t horizon,
    ):
        """(records that stay or None if all do as they are, their number, their largest timestamp, whether one is a tombstone).

        `horizon` is the base timestamp that a batch with a tombstone gets, -1 if it keeps its own. Where its timestamps lie too far
        from `horizon` to be counted from it, the batch keeps its own too, and the last answer is false.
        """
        cdef Py_buffer view
        cdef const uint8_t *p
        cdef uint8_t *flags
        cdef Py_ssize_t size
        cdef Plan plan
        cdef bint renew
        PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
        p = <const uint8_t *>view.buf
        flags = NULL
        try:
            if count < 0 or count > view.len // MIN_RECORD:
                raise ValueError("the batch holds fewer records than it claims")
            flags = <uint8_t *>malloc(count + 1)
            if flags == NULL:
                raise MemoryError
            if not self.plan(p, p + view.len, base_offset, base_timestamp, count, last_delta, drop_tombstones, flags, &plan):
                raise ValueError(f"the records of the batch at offset {base_offset} are corrupt")
            if not plan.kept:
                return b"", 0, -1, False
            renew = plan.tombstones and horizon >= 0
            if renew:
                out = PyBytes_FromStringAndSize(NULL, view.len * GROWTH)
                size = renewed(p, p + view.len, count, flags, base_timestamp, horizon, <uint8_t *>PyBytes_AS_STRING(out))
                if size >= 0:
                    return out[:size], plan.kept, plan.max_timestamp, True
                plan.tombstones = False
            if plan.kept == count:
                return None, count, plan.max_timestamp, plan.tombstones
            out = PyBytes_FromStringAndSize(NULL, view.len)
            size = copied(p, p + view.len, count, flags, <uint8_t *>PyBytes_AS_STRING(out))
            return out[:size], plan.kept, plan.max_timestamp, plan.tombstones
        finally:
            free(flags)
            PyBuffer_Release(&view)

    def put_batches(self, buf, Py_ssize_t start, Py_ssize_t end, int64_t after, int64_t limit, int64_t from_offset, crc32c):
        """Note the plain batches from `start` on, whose offsets lie between `after` and `limit`.

        (where it stopped, the last offset there, why: DONE without a whole batch left, SPECIAL at one that is not plain, FULL)
        """
        cdef Py_buffer view
        cdef const uint8_t *p
        cdef const uint8_t *stop
        cdef int64_t answer
        cdef int code
        PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= start <= end <= view.len:
                raise ValueError("the batches lie outside the buffer")
            p = <const uint8_t *>view.buf + start
            stop = <const uint8_t *>view.buf + end
            while True:
                code = whole(p, stop)
                if code != -1:
                    return p - <const uint8_t *>view.buf, after, code
                check_offsets(p, after, limit)
                check_sum(p, crc32c)
                answer = self.put_area(
                    p + HEADER, p + size_of(p), big64(p), <int32_t>big32(p + COUNT_AT), <int32_t>big32(p + LAST_DELTA_AT),
                    from_offset,
                )
                if answer >= 0:
                    raise corrupt(answer)
                if answer == -2:
                    return p - <const uint8_t *>view.buf, after, FULL
                after = <int64_t>big64(p) + <int32_t>big32(p + LAST_DELTA_AT)
                if after >= from_offset:
                    self.note(after)
                p += size_of(p)
        finally:
            PyBuffer_Release(&view)

    def filter_batches(
        self, buf, Py_ssize_t start, Py_ssize_t end, out, Py_ssize_t at, int64_t after, int64_t limit, int64_t now_ms,
        int64_t horizon, kept_empty, crc32c,
    ):
        """Write what stays of the plain batches from `start` on into `out` from `at` on.

        `horizon` is the one that a batch with a tombstone gets if it has none; `kept_empty` (an array of int64) the last offsets, rising, of the
        batches that stay though nothing is left in them. (where it stopped, where it ended in `out`, the last offset read, why:
        DONE without a whole batch left, SPECIAL at one that is not plain, FULL without room in `out` for the next).
        """
        cdef Py_buffer view, target, row
        cdef const uint8_t *p
        cdef const uint8_t *stop
        cdef uint8_t *o
        cdef uint8_t *flags = NULL
        cdef Py_ssize_t room = 0, size, written
        cdef int64_t count, base_timestamp, base_offset
        cdef int32_t last_delta
        cdef uint16_t attributes
        cdef bint drop, renew
        cdef Plan plan
        cdef int code
        PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
        except BaseException:
            PyBuffer_Release(&view)
            raise
        try:
            PyObject_GetBuffer(kept_empty, &row, PyBUF_SIMPLE)
        except BaseException:
            PyBuffer_Release(&target)
            PyBuffer_Release(&view)
            raise
        try:
            if not (0 <= start <= end <= view.len and 0 <= at <= target.len):
                raise ValueError("the batches lie outside the buffer")
            p = <const uint8_t *>view.buf + start
            stop = <const uint8_t *>view.buf + end
            while True:
                code = whole(p, stop)
                if code == -1 and size_of(p) * GROWTH + HEADER > target.len - at:
                    code = FULL
                if code != -1:
                    return p - <const uint8_t *>view.buf, at, after, code
                check_offsets(p, after, limit)
                size = size_of(p)
                count = <int32_t>big32(p + COUNT_AT)
                last_delta = <int32_t>big32(p + LAST_DELTA_AT)
                base_offset, base_timestamp = <int64_t>big64(p), <int64_t>big64(p + BASE_TIMESTAMP_AT)
                after = base_offset + last_delta
                attributes = p[ATTRIBUTES_AT] << 8 | p[ATTRIBUTES_AT + 1]
                o = <uint8_t *>target.buf + at
                if not self.any_between(base_offset, after):  # its checksum was compared when its keys were noted
                    if holds(<const int64_t *>row.buf, row.len // sizeof(int64_t), after):
                        at += empty(p, o, attributes, crc32c)
                    p += size
                    continue
                check_sum(p, crc32c)
                if count < 0 or count > (size - HEADER) // MIN_RECORD:
                    raise ValueError(f"the batch at offset {base_offset} holds fewer records than it claims")
                if count + 1 > room:
                    free(flags)
                    room = count + 1
                    flags = <uint8_t *>malloc(room)
                    if flags == NULL:
                        room = 0
                        raise MemoryError
                drop = attributes & HORIZON and base_timestamp <= now_ms
                if not self.plan(
                    p + HEADER, p + size, base_offset, base_timestamp, count, last_delta, drop, flags, &plan
                ):
                    raise ValueError(f"the records of the batch at offset {base_offset} are corrupt")
                if not plan.kept:
                    if holds(<const int64_t *>row.buf, row.len // sizeof(int64_t), after):
                        at += empty(p, o, attributes, crc32c)
                    p += size
                    continue
                written = -1
                if plan.tombstones and not attributes & HORIZON:
                    written = renewed(p + HEADER, p + size, count, flags, base_timestamp, horizon, o + HEADER)
                renew = written >= 0
                if plan.kept == count and not renew:
                    memcpy(o, p, size)
                    at += size
                    p += size
                    continue
                if not renew:
                    written = copied(p + HEADER, p + size, count, flags, o + HEADER)
                memcpy(o, p, HEADER)
                if renew:
                    set_big64(o + BASE_TIMESTAMP_AT, horizon)
                    o[ATTRIBUTES_AT + 1] |= HORIZON
                if not attributes & TIMESTAMP_TYPE:
                    set_big64(o + MAX_TIMESTAMP_AT, plan.max_timestamp)
                set_big32(o + COUNT_AT, <uint32_t>plan.kept)
                seal(o, HEADER + written, crc32c)
                at += HEADER + written
                p += size
        finally:
            free(flags)
            PyBuffer_Release(&row)
            PyBuffer_Release(&target)
            PyBuffer_Release(&view)


cdef inline Py_ssize_t size_of(const uint8_t *p) noexcept nogil:
    return OVERHEAD + <int32_t>big32(p + 8)


cdef int whole(const uint8_t *p, const uint8_t *stop) except -2:
    """-1 if a whole, plain batch is at `p`, else why not."""
    if stop - p < OVERHEAD + LEGACY_MIN:
        return DONE
    if <int32_t>big32(p + 8) < LEGACY_MIN:
        raise ValueError(f"a batch with a length of {<int32_t>big32(p + 8)}")
    if size_of(p) > stop - p:
        return DONE
    if p[MAGIC_AT] != 2:
        return SPECIAL
    if size_of(p) < HEADER:
        raise ValueError(f"a batch with a length of {<int32_t>big32(p + 8)}")
    return SPECIAL if p[ATTRIBUTES_AT + 1] & NOT_PLAIN else -1


cdef int check_offsets(const uint8_t *p, int64_t after, int64_t limit) except -1:
    """Its offsets lie where they must."""
    cdef int64_t base_offset = <int64_t>big64(p)
    cdef int32_t delta = <int32_t>big32(p + LAST_DELTA_AT)
    if delta < 0 or base_offset <= after or base_offset > limit - 1 - delta:
        raise ValueError(f"a batch with the offsets {base_offset} to {base_offset + delta} between {after} and {limit}")
    return 0


cdef int check_sum(const uint8_t *p, object crc32c) except -1:
    """Its checksum is right."""
    area = PyMemoryView_FromMemory(<char *>p + ATTRIBUTES_AT, size_of(p) - ATTRIBUTES_AT, 0x100)
    if crc32c(area) != big32(p + CRC_AT):
        raise ValueError(f"the checksum of the batch at offset {<int64_t>big64(p)} is wrong")
    return 0


cdef int seal(uint8_t *o, Py_ssize_t size, object crc32c) except -1:
    """The length and the checksum of a batch that was written."""
    set_big32(o + 8, <uint32_t>(size - OVERHEAD))
    area = PyMemoryView_FromMemory(<char *>o + ATTRIBUTES_AT, size - ATTRIBUTES_AT, 0x100)
    set_big32(o + CRC_AT, crc32c(area))
    return 0


cdef Py_ssize_t empty(const uint8_t *p, uint8_t *o, uint16_t attributes, object crc32c) except -1:
    """The header of a batch that stays without records: no codec, no base timestamp, no horizon."""
    memcpy(o, p, HEADER)
    o[ATTRIBUTES_AT + 1] = attributes & 0x38
    set_big64(o + BASE_TIMESTAMP_AT, <uint64_t>-1)
    set_big32(o + COUNT_AT, 0)
    seal(o, HEADER, crc32c)
    return HEADER


cdef bint holds(const int64_t *row, Py_ssize_t size, int64_t wanted) noexcept nogil:
    cdef Py_ssize_t low = 0, high = size, middle
    while low < high:
        middle = (low + high) // 2
        if row[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low < size and row[low] == wanted


cdef inline uint8_t *put_varint(uint8_t *o, uint64_t rest) noexcept nogil:
    while rest >= 0x80:
        o[0] = rest & 0x7F | 0x80
        o += 1
        rest >>= 7
    o[0] = <uint8_t>rest
    return o + 1


cdef inline int varint_size(uint64_t rest) noexcept nogil:
    cdef int size = 1
    while rest >= 0x80:
        size += 1
        rest >>= 7
    return size


cdef Py_ssize_t copied(
    const uint8_t *p, const uint8_t *end, int64_t count, const uint8_t *flags, uint8_t *out
) noexcept nogil:
    """Copy the records that stay; the bytes written."""
    cdef const uint8_t *record
    cdef const uint8_t *close = p
    cdef uint8_t *o = out
    cdef int64_t index
    for index in range(count):
        record = p
        body(&p, end, &close)
        if flags[index]:
            memcpy(o, record, close - record)
            o += close - record
        p = close
    return o - out


cdef Py_ssize_t renewed(
    const uint8_t *p, const uint8_t *end, int64_t count, const uint8_t *flags, int64_t base_timestamp, int64_t horizon, uint8_t *out
) noexcept nogil:
    """Write the records that stay, their timestamps counted from `horizon`; the bytes written, -1 if one cannot be.

    `horizon` is not negative.
    """
    cdef const uint8_t *record
    cdef const uint8_t *close = p
    cdef uint8_t *o = out
    cdef int64_t index, shift, delta = 0
    cdef uint64_t zigzag
    if base_timestamp < INT64_MIN + horizon:
        return -1
    shift = base_timestamp - horizon
    for index in range(count):
        body(&p, end, &close)
        if flags[index]:
            record = p
            p += 1
            varint64(&p, close, &delta)
            if (shift > 0 and delta > INT64_MAX - shift) or (shift < 0 and delta < INT64_MIN - shift):
                return -1
            delta += shift
            zigzag = (<uint64_t>delta << 1) ^ <uint64_t>(delta >> 63)
            o = put_varint(o, <uint64_t>(1 + varint_size(zigzag) + (close - p)) << 1)
            o[0] = record[0]
            o = put_varint(o + 1, zigzag)
            memcpy(o, p, close - p)
            o += close - p
        p = close
    return o - out
