"""Tuples of a class of their own, made in C without a call.

Guards: what is made here is found in tables as one that Python made. From 3.14 on a tuple remembers its hash, and memory
that is all zeros would count as having one.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.tuple cimport PyTuple_SET_ITEM

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        PyObject *(*tp_alloc)(PyTypeObject *, Py_ssize_t) except NULL

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030E0000
    #define ottla_not_hashed(made) ((void)(((PyTupleObject *)(made))->ob_hash = -1))
    #else
    #define ottla_not_hashed(made) ((void)(made))
    #endif
    """
    void ottla_not_hashed(PyObject *) noexcept


cdef inline object fresh(object cls, Py_ssize_t size):
    """A tuple of this class whose items are still to be put."""
    cdef PyTypeObject *kind = <PyTypeObject *><PyObject *>cls
    cdef PyObject *made = kind.tp_alloc(kind, size)
    ottla_not_hashed(made)
    found = <object>made
    Py_XDECREF(made)  # `found` has it now
    return found


cdef inline void put(object made, Py_ssize_t at, object item) noexcept:
    """Set an item, once."""
    Py_INCREF(item)
    PyTuple_SET_ITEM(made, at, item)
