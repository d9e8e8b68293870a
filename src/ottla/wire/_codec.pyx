# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Reads and writes messages in C: one small machine that follows a plan, a table of what comes after what.

A `Plan` stands for one struct in one version; `native.py` makes plans out of the declarations. What generated Python does with many
objects and calls (`decoder.py` and `encoder.py`, the twins of this) is done here with a pointer, and above all with little code: a
broker that wakes up for one request finds its caches cold, and pays for every line that it has to bring in.

Guards: no pointer leaves pos..end, whatever the bytes say; counts are held against the bytes that are left before anything is
allocated; what is wrong with a sender's bytes leaves as `Malformed`. Slots are written by their offsets, so an object is always of the
very class that the plan was made for. Tagged fields are rare: their payloads are left to the twins.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_Append
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MIN, int16_t, int32_t, int64_t, int8_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

import struct

from ottla.wire.primitives import Malformed, read_tags

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        PyObject *(*tp_alloc)(PyTypeObject *, Py_ssize_t) except NULL
    ctypedef struct PyMemberDef:
        Py_ssize_t offset
    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member
    int PyLong_Check(object)
    long long PyLong_AsLongLong(object) except? -1
    const char *PyUnicode_AsUTF8AndSize(object, Py_ssize_t *) except NULL
    object PySequence_Fast(object, const char *)
    Py_ssize_t PySequence_Fast_GET_SIZE(object)
    PyObject *PySequence_Fast_GET_ITEM(object, Py_ssize_t)

cdef extern from *:
    """
    #include <structmember.h>
    static inline uint16_t ottla_u16(const uint8_t *p) { return (uint16_t)((p[0] << 8) | p[1]); }
    static inline uint32_t ottla_u32(const uint8_t *p) {
        return ((uint32_t)p[0] << 24) | ((uint32_t)p[1] << 16) | ((uint32_t)p[2] << 8) | p[3];
    }
    static inline uint64_t ottla_u64(const uint8_t *p) { return ((uint64_t)ottla_u32(p) << 32) | ottla_u32(p + 4); }
    """
    uint16_t ottla_u16(const uint8_t *) noexcept
    uint32_t ottla_u32(const uint8_t *) noexcept
    uint64_t ottla_u64(const uint8_t *) noexcept

cdef enum Kind:
    BOOLEAN, INT8, INT16, UINT16, INT32, UINT32, INT64, FLOAT64, UUID, STRING, BYTES, RECORDS, STRUCT, ARRAY

KINDS = {
    "boolean": BOOLEAN, "int8": INT8, "int16": INT16, "uint16": UINT16, "int32": INT32, "uint32": UINT32, "int64": INT64,
    "float64": FLOAT64, "uuid": UUID, "string": STRING, "bytes": BYTES, "records": RECORDS, "struct": STRUCT, "array": ARRAY,
}

cdef int[9] WIDTHS = [1, 1, 2, 2, 4, 4, 8, 8, 16]
cdef int64_t[7] LEAST = [0, -0x80, -0x8000, 0, -0x80000000, 0, INT64_MIN]
cdef int64_t[7] MOST = [1, 0x7F, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF]

cdef enum:
    MAX_STRING = 0x7FFF
    MAX_INT32 = 0x7FFFFFFF
    FIRST_ROOM = 256


cdef struct Op:
    int kind
    bint nullable
    Py_ssize_t offset   # of the slot in the object
    Py_ssize_t child    # which of the plan's children: of a struct, or of an array's elements
    Py_ssize_t smallest # the fewest bytes that an element takes


cdef struct Reader:
    const uint8_t *base
    Py_ssize_t pos
    Py_ssize_t end


cdef struct Writer:
    uint8_t *base
    Py_ssize_t size
    Py_ssize_t room


cdef object _packer = struct.Struct(">d")


cdef class Plan:
    """One struct in one version, or (without a class) what an array's elements are."""

    cdef object cls
    cdef object where
    cdef bint flexible
    cdef Op *ops
    cdef Py_ssize_t count
    cdef list children
    cdef list names
    cdef list absent     # (offset, value) of the slots that nothing on the wire sets
    cdef list made       # (offset, class) of the slots that get an empty struct of their own
    cdef list read_tagged   # (tag, offset, read)
    cdef list write_tagged  # (tag, offset, a value that is left out, differs, write)
    cdef object known

    def __cinit__(self, cls, where, bint flexible, list ops, list children, list absent, list made, list read_tagged, list write_tagged):
        cdef Py_ssize_t at
        self.cls, self.where, self.flexible, self.children = cls, where, flexible, children
        self.count = len(ops)
        self.ops = <Op *>malloc(max(1, self.count) * sizeof(Op))
        if self.ops == NULL:
            raise MemoryError
        self.names = [op[0] for op in ops]
        for at in range(self.count):
            name, kind, nullable, child, smallest = ops[at]
            self.ops[at].kind = kind
            self.ops[at].nullable = nullable
            self.ops[at].offset = offset_of(cls, name) if cls is not None else 0
            self.ops[at].child = child
            self.ops[at].smallest = smallest
        self.absent = [(offset_of(cls, name), value) for name, value in absent]
        self.made = [(offset_of(cls, name), of) for name, of in made]
        self.read_tagged = [(tag, offset_of(cls, name), read) for tag, name, read in read_tagged]
        self.write_tagged = [(tag, offset_of(cls, name), *rest) for tag, name, *rest in write_tagged]
        self.known = frozenset(tag for tag, _, _ in self.read_tagged)

    def __dealloc__(self):
        free(self.ops)

    def decode(self, buf, Py_ssize_t pos=0):
        """`(buffer, position) -> (message, position after it)`; raises `Malformed`."""
        cdef Py_buffer view
        cdef Reader reader
        PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
        try:
            reader.base, reader.pos, reader.end = <const uint8_t *>view.buf, pos, view.len
            if not 0 <= pos <= view.len:
                raise Malformed(f"{pos - view.len} bytes are missing")
            message = read_struct(self, &reader, buf)
        except Short:
            raise Malformed(f"{self.where} ends before all its fields are there") from None
        except (ValueError, OverflowError) as error:  # Malformed is one, and so is text that is no UTF-8
            raise Malformed(f"{self.where}: {error}") from error
        finally:
            PyBuffer_Release(&view)
        return message, reader.pos

    def encode(self, message):
        """`message -> bytes`."""
        cdef Writer writer
        start(&writer)
        try:
            write_struct(self, &writer, message, None)
            return PyBytes_FromStringAndSize(<char *>writer.base, writer.size)
        finally:
            free(writer.base)

    def parts(self, message):
        """`message -> [bytes, pass-through object, bytes, ...]`."""
        cdef Writer writer
        cdef list done = []
        start(&writer)
        try:
            write_struct(self, &writer, message, done)
            if writer.size:
                done.append(PyBytes_FromStringAndSize(<char *>writer.base, writer.size))
            return done
        finally:
            free(writer.base)


class Short(Exception):
    """The bytes end before the message does."""


cdef Py_ssize_t offset_of(cls, name) except -1:
    slot = getattr(cls, name)
    return (<PyMemberDescrObject *><PyObject *>slot).d_member.offset


cdef inline void put_slot(object item, Py_ssize_t offset, object value) noexcept:
    """Set a slot that is still empty, or has a value that goes."""
    cdef PyObject **slot = <PyObject **>(<char *><PyObject *>item + offset)
    cdef PyObject *before = slot[0]
    Py_INCREF(value)
    slot[0] = <PyObject *>value
    Py_XDECREF(before)


# ---- reading -------------------------------------------------------------------------------------------------------------


cdef inline const uint8_t *take(Reader *r, Py_ssize_t size) except NULL:
    cdef const uint8_t *at = r.base + r.pos
    if size > r.end - r.pos:
        raise Short
    r.pos += size
    return at


cdef int64_t uvarint(Reader *r) except -1:
    cdef uint64_t value = 0
    cdef uint8_t byte
    cdef int shift = 0
    while True:
        byte = take(r, 1)[0]
        value |= (<uint64_t>(byte & 0x7F)) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise Malformed("a varint does not end after 5 bytes")
    if value > MAX_INT32:
        raise Malformed(f"a varint of {value} does not fit in 31 bits")
    return <int64_t>value


cdef int64_t length(Plan plan, Py_ssize_t at, Reader *r) except -2:
    """A length or count; -1 for null, where that is allowed."""
    cdef Op *op = &plan.ops[at]
    cdef int64_t size
    if plan.flexible:
        size = uvarint(r) - 1
        if op.kind == STRING and size > MAX_STRING:
            raise Malformed(f"a string of {size} bytes, at most {MAX_STRING} are allowed")
    elif op.kind == STRING:
        size = <int16_t>ottla_u16(take(r, 2))
    else:
        size = <int32_t>ottla_u32(take(r, 4))
    if size < -1 or (size == -1 and not op.nullable):
        raise Malformed(f"{plan.names[at]} may not be null or have a negative length")
    return size


cdef object fixed(int kind, const uint8_t *p):
    if kind == INT32:
        return <int32_t>ottla_u32(p)
    if kind == INT64:
        return <int64_t>ottla_u64(p)
    if kind == INT16:
        return <int16_t>ottla_u16(p)
    if kind == INT8:
        return <int8_t>p[0]
    if kind == BOOLEAN:
        return p[0] != 0
    if kind == UINT16:
        return ottla_u16(p)
    if kind == UINT32:
        return ottla_u32(p)
    if kind == UUID:
        return PyBytes_FromStringAndSize(<const char *>p, 16)
    return _packer.unpack(PyBytes_FromStringAndSize(<const char *>p, 8))[0]


cdef object read_value(Plan plan, Py_ssize_t at, Reader *r, object buf):
    cdef Op *op = &plan.ops[at]
    cdef int kind = op.kind
    cdef int64_t size
    cdef const uint8_t *p
    if kind <= UUID:
        return fixed(kind, take(r, WIDTHS[kind]))
    if kind == STRUCT:
        if op.nullable and <int8_t>take(r, 1)[0] < 0:
            return None
        return read_struct(<Plan>plan.children[op.child], r, buf)
    size = length(plan, at, r)
    if size < 0:
        return None
    if kind == ARRAY:
        return read_array(plan, at, r, buf, size)
    p = take(r, size)
    if kind == STRING:
        return PyUnicode_DecodeUTF8(<const char *>p, size, NULL)
    if kind == BYTES:
        return PyBytes_FromStringAndSize(<const char *>p, size)
    return memoryview(buf)[r.pos - size : r.pos]


cdef object read_array(Plan plan, Py_ssize_t at, Reader *r, object buf, int64_t count):
    cdef Op *op = &plan.ops[at]
    cdef Plan element = <Plan>plan.children[op.child]
    cdef int64_t number
    cdef int kind
    cdef const uint8_t *p
    cdef list items
    if count * op.smallest > r.end - r.pos:
        raise Malformed(f"{plan.names[at]}: {count} elements in {r.end - r.pos} bytes")
    if element.cls is None:
        kind = element.ops[0].kind
        if kind < UUID:
            p = take(r, count * WIDTHS[kind])
            numbers = PyTuple_New(count)
            for number in range(count):
                value = fixed(kind, p + number * WIDTHS[kind])
                Py_INCREF(value)
                PyTuple_SET_ITEM(numbers, number, value)
            return numbers
        items = []
        for number in range(count):
            PyList_Append(items, read_value(element, 0, r, buf))
        return items
    items = []
    for number in range(count):
        PyList_Append(items, read_struct(element, r, buf))
    return items


cdef object read_struct(Plan plan, Reader *r, object buf):
    cdef PyTypeObject *cls = <PyTypeObject *><PyObject *>plan.cls
    cdef PyObject *fresh = cls.tp_alloc(cls, 0)
    cdef object item = <object>fresh
    Py_XDECREF(fresh)  # `item` has it now
    cdef Py_ssize_t at
    cdef tuple pair
    cdef int64_t tags
    for pair in plan.absent:
        put_slot(item, <Py_ssize_t>pair[0], pair[1])
    for pair in plan.made:
        put_slot(item, <Py_ssize_t>pair[0], pair[1]())
    for at in range(plan.count):
        put_slot(item, plan.ops[at].offset, read_value(plan, at, r, buf))
    if plan.flexible:
        tags = uvarint(r)
        if tags:
            read_all_tags(plan, r, buf, item, tags)
    return item


cdef int read_all_tags(Plan plan, Reader *r, object buf, object item, int64_t count) except -1:
    try:
        payloads, r.pos = read_tags(memoryview(buf), r.pos, r.end, count, plan.known)
        for tag, offset, read in plan.read_tagged:
            if tag in payloads:
                put_slot(item, offset, read(payloads[tag]))
    except (IndexError, struct.error):
        raise Short
    if r.pos > r.end:
        raise Short
    return 0


# ---- writing -------------------------------------------------------------------------------------------------------------


cdef int start(Writer *w) except -1:
    w.base = <uint8_t *>malloc(FIRST_ROOM)
    if w.base == NULL:
        raise MemoryError
    w.size, w.room = 0, FIRST_ROOM
    return 0


cdef uint8_t *more(Writer *w, Py_ssize_t size) except NULL:
    """Room for `size` bytes, which are to be filled."""
    cdef uint8_t *larger
    cdef uint8_t *at
    if size > w.room - w.size:
        larger = <uint8_t *>realloc(w.base, 2 * w.room + size)
        if larger == NULL:
            raise MemoryError
        w.base, w.room = larger, 2 * w.room + size
    at = w.base + w.size
    w.size += size
    return at


cdef inline int put_number(Writer *w, uint64_t number, int width) except -1:
    cdef uint8_t *p = more(w, width)
    while width:
        width -= 1
        p[width] = number & 0xFF
        number >>= 8
    return 0


cdef int put_uvarint(Writer *w, uint64_t number) except -1:
    while number > 0x7F:
        more(w, 1)[0] = (number & 0x7F) | 0x80
        number >>= 7
    more(w, 1)[0] = <uint8_t>number
    return 0


cdef int put_length(Plan plan, int kind, Writer *w, Py_ssize_t size) except -1:
    if plan.flexible:
        return put_uvarint(w, size + 1)
    if size > (MAX_STRING if kind == STRING else MAX_INT32):
        raise ValueError(f"{size} is too long for {plan.where}")
    return put_number(w, size, 2 if kind == STRING else 4)


cdef int put_bytes(Writer *w, const char *data, Py_ssize_t size) except -1:
    if size:
        memcpy(more(w, size), data, size)
    return 0


cdef int put_buffer(Writer *w, object data) except -1:
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return put_bytes(w, <const char *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef int put_fixed(int kind, Writer *w, object value) except -1:
    cdef long long number
    cdef uint8_t *p
    if kind == BOOLEAN:
        more(w, 1)[0] = 1 if value else 0
    elif kind <= INT64:
        number = PyLong_AsLongLong(value)
        if not LEAST[kind] <= number <= MOST[kind]:
            raise struct.error(f"{number} does not fit in {WIDTHS[kind]} bytes")
        put_number(w, <uint64_t>number, WIDTHS[kind])
    elif kind == UUID:
        p = more(w, 16)
        memset(p, 0, 16)
        memcpy(p, PyBytes_AS_STRING(<bytes?>value), min(16, PyBytes_GET_SIZE(value)))
    else:
        put_buffer(w, _packer.pack(value))
    return 0


cdef int write_value(Plan plan, Py_ssize_t at, Writer *w, object value, list done) except -1:
    cdef Op *op = &plan.ops[at]
    cdef int kind = op.kind
    cdef Py_ssize_t size
    cdef const char *text
    if kind <= UUID:
        return put_fixed(kind, w, value)
    if kind == STRUCT:
        if op.nullable:
            more(w, 1)[0] = 0xFF if value is None else 1
            if value is None:
                return 0
        return write_struct(<Plan>plan.children[op.child], w, value, done)
    if value is None:
        if not op.nullable:
            raise TypeError(f"{plan.names[at]} may not be null in {plan.where}")
        if plan.flexible:
            more(w, 1)[0] = 0
            return 0
        return put_number(w, <uint64_t>-1, 2 if kind == STRING else 4)
    if kind == STRING:
        text = PyUnicode_AsUTF8AndSize(value, &size)
        put_length(plan, kind, w, size)
        return put_bytes(w, text, size)
    if kind == ARRAY:
        return write_array(plan, at, w, value, done)
    size = len(value)
    put_length(plan, kind, w, size)
    if kind == RECORDS and done is not None and type(value) not in BUFFERS:
        if size:
            done.append(PyBytes_FromStringAndSize(<char *>w.base, w.size))
            done.append(value)
            w.size = 0
        return 0
    return put_buffer(w, value)


BUFFERS = (bytes, bytearray, memoryview)


cdef int write_array(Plan plan, Py_ssize_t at, Writer *w, object value, list done) except -1:
    cdef Plan element = <Plan>plan.children[plan.ops[at].child]
    cdef object items = PySequence_Fast(value, "an array must be a sequence")
    cdef Py_ssize_t number, count = PySequence_Fast_GET_SIZE(items)
    put_length(plan, ARRAY, w, count)
    for number in range(count):
        one = <object>PySequence_Fast_GET_ITEM(items, number)
        if element.cls is None:
            write_value(element, 0, w, one, done)
        else:
            write_struct(element, w, one, done)
    return 0


cdef int write_struct(Plan plan, Writer *w, object item, list done) except -1:
    cdef Py_ssize_t at
    cdef PyObject *value
    if type(item) is not plan.cls:
        raise TypeError(f"{item!r} is not a {plan.where}")
    for at in range(plan.count):
        value = (<PyObject **>(<char *><PyObject *>item + plan.ops[at].offset))[0]
        if value == NULL:
            raise AttributeError(f"{plan.names[at]} was not set in {plan.where}")
        write_value(plan, at, w, <object>value, done)
    if plan.flexible:
        if plan.write_tagged:
            write_all_tags(plan, w, item)
        else:
            more(w, 1)[0] = 0
    return 0


cdef int write_all_tags(Plan plan, Writer *w, object item) except -1:
    cdef list found = None
    cdef PyObject *value
    for tag, offset, left_out, differs, write in plan.write_tagged:
        value = (<PyObject **>(<char *><PyObject *>item + <Py_ssize_t>offset))[0]
        if value == NULL:
            raise AttributeError(f"tag {tag} was not set in {plan.where}")
        if <object>value is left_out or not differs(<object>value):
            continue
        if found is None:
            found = []
        found.append((tag, write(<object>value)))
    if found is None:
        more(w, 1)[0] = 0
        return 0
    put_uvarint(w, len(found))
    for tag, payload in found:
        put_uvarint(w, tag)
        put_uvarint(w, len(payload))
        put_buffer(w, payload)
    return 0


# ---- the header of a request ---------------------------------------------------------------------------------------------

cdef bytes _client_bytes = b""
cdef object _client = ""


def plain_header(buf, versions):
    """`(key, version, correlation id, client id, where the body begins)`; None for whatever takes a second look (`frame`).

    `versions` says of a key in which versions its header has tagged fields; here there are none in it.
    """
    global _client_bytes, _client
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef int key, version, size, first, last
    cdef Py_ssize_t pos
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t *>view.buf
        if view.len < 11:
            return None
        key, version, size = <int16_t>ottla_u16(p), <int16_t>ottla_u16(p + 2), <int16_t>ottla_u16(p + 8)
        pos = 10 + size
        if size < 0 or pos >= view.len:
            return None
        first, last = versions[key]
        if first <= version <= last:
            if p[pos]:
                return None
            pos += 1
        # Those who ask have few names, and mostly one: the text is made anew only for another one.
        if size != PyBytes_GET_SIZE(_client_bytes) or memcmp(p + 10, PyBytes_AS_STRING(_client_bytes), size):
            _client = PyUnicode_DecodeUTF8(<const char *>p + 10, size, NULL)
            _client_bytes = PyBytes_FromStringAndSize(<const char *>p + 10, size)
        return key, version, <int32_t>ottla_u32(p + 4), _client, pos
    except UnicodeDecodeError:
        return None
    finally:
        PyBuffer_Release(&view)
