# cython: boundscheck=False, wraparound=False
"""RowBlock: preallocated columns that take one row, or a few, of named values per call.

The one place where rows are written: requests of many agents are packed with it, and replay buffers store with it.
`rows.RowBlockReference` is the same thing in plain NumPy; the tests hold the two equal.
"""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_Check
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from libc.string cimport memcpy

import numpy as np

DEF MAX_FIELDS = 64

cdef enum Kind:
    ARRAY = 0
    FLOAT64 = 1
    FLOAT32 = 2
    INT64 = 3
    BOOL = 4

cdef int nan_in(const char* data, Py_ssize_t nbytes, char code) noexcept nogil:
    cdef Py_ssize_t i
    cdef const unsigned short* h
    cdef const float* f
    cdef const double* d
    if code == b"e":
        h = <const unsigned short*> data
        for i in range(nbytes // 2):
            if (h[i] & 0x7FFF) > 0x7C00:
                return 1
    elif code == b"f":
        f = <const float*> data
        for i in range(nbytes // 4):
            if f[i] != f[i]:
                return 1
    elif code == b"d":
        d = <const double*> data
        for i in range(nbytes // 8):
            if d[i] != d[i]:
                return 1
    return 0


cdef class RowBlock:
    """Columns [capacity, *shape], one per spec.

    Args:
        specs: The fields, in the order in which `write` takes their values.
        capacity: Rows.
        arrays: Existing columns to write into instead of new ones (C order, of the specs' dtypes).

    Attributes:
        arrays: dict of field name -> [capacity, *shape] array. Callers read, and may overwrite, whole columns.
    """

    cdef readonly tuple specs
    cdef readonly tuple names
    cdef readonly dict arrays
    cdef readonly Py_ssize_t capacity
    cdef int n_fields
    cdef char* base[MAX_FIELDS]
    cdef Py_ssize_t nbytes[MAX_FIELDS]
    cdef int kind[MAX_FIELDS]
    cdef char code[MAX_FIELDS]
    cdef int ndim[MAX_FIELDS]
    cdef Py_ssize_t shape[MAX_FIELDS][8]

    def __init__(self, specs, Py_ssize_t capacity, arrays=None):
        cdef int i, k
        cdef Py_buffer view
        self.specs = tuple(specs)
        self.names = tuple(spec.name for spec in self.specs)
        self.n_fields = len(self.specs)
        if self.n_fields > MAX_FIELDS:
            raise ValueError(f"RowBlock: {self.n_fields} fields; at most {MAX_FIELDS}")
        if capacity < 1:
            raise ValueError(f"RowBlock: capacity is {capacity}; expected at least 1")
        self.capacity = capacity
        self.arrays = {s.name: s.zeros(capacity) for s in self.specs} if arrays is None else dict(arrays)
        for i, spec in enumerate(self.specs):
            column = self.arrays[spec.name]
            if column.shape != (capacity, *spec.shape) or column.dtype != spec.dtype:
                raise ValueError(f"RowBlock: column {spec.name!r} is {column.shape} {column.dtype}; "
                                 f"expected {(capacity, *spec.shape)} {spec.dtype}")
            if len(spec.shape) > 8:
                raise ValueError(f"RowBlock: field {spec.name!r} has {len(spec.shape)} axes; at most 8")
            PyObject_GetBuffer(column, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE)
            self.base[i] = <char*> view.buf
            self.code[i] = view.format[0]
            PyBuffer_Release(&view)
            self.nbytes[i] = column.nbytes // capacity
            self.ndim[i] = len(spec.shape)
            for k in range(self.ndim[i]):
                self.shape[i][k] = spec.shape[k]
            self.kind[i] = ARRAY
            if spec.shape == ():
                self.kind[i] = {"float64": FLOAT64, "float32": FLOAT32, "int64": INT64, "bool": BOOL}.get(spec.dtype.name, ARRAY)

    def __reduce__(self):
        # The addresses are those of this process; the copy finds its own. (Cython's own way would copy them as texts.)
        return RowBlock, (self.specs, self.capacity, self.arrays)

    cdef int put(self, Py_ssize_t row, int i, object value) except -1:
        cdef char* target = self.base[i] + row * self.nbytes[i]
        cdef int kind = self.kind[i]
        cdef Py_buffer view
        cdef double number
        cdef int fits, k
        cdef long long integer
        if kind == FLOAT64 or kind == FLOAT32:
            if PyFloat_Check(value):
                number = PyFloat_AS_DOUBLE(value)
                if number == number:
                    if kind == FLOAT64:
                        (<double*> target)[0] = number
                    else:
                        (<float*> target)[0] = <float> number
                    return 0
        elif kind == INT64:
            if PyLong_CheckExact(value):
                integer = PyLong_AsLongLongAndOverflow(value, &fits)
                if not fits:
                    (<long long*> target)[0] = integer
                    return 0
        elif kind == BOOL:
            if value is True:
                target[0] = 1
                return 0
            if value is False:
                target[0] = 0
                return 0
        elif self.ndim[i] and PyObject_CheckBuffer(value):
            try:
                PyObject_GetBuffer(value, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
            except (BufferError, ValueError):
                return self.put_checked(row, i, value)
            fits = view.len == self.nbytes[i] and view.ndim == self.ndim[i] and view.format[0] == self.code[i] \
                and view.format[1] == 0
            if fits:
                for k in range(view.ndim):
                    if view.shape[k] != self.shape[i][k]:
                        fits = 0
            if fits and nan_in(<const char*> view.buf, view.len, self.code[i]):
                fits = 0
            if fits:
                memcpy(target, view.buf, view.len)
            PyBuffer_Release(&view)
            if fits:
                return 0
        return self.put_checked(row, i, value)

    cdef int put_checked(self, Py_ssize_t row, int i, object value) except -1:
        """The slow path: converts or explains."""
        self.arrays[self.names[i]][row] = self.specs[i].convert(value)
        return 0

    cpdef write(self, Py_ssize_t row, tuple values):
        """Writes one row: `values[i]` into field i.

        Raises:
            SpecError: a value does not fit; fields before it are already written, so the caller must not count the row.
            IndexError: `row` is outside the capacity, or the number of values is not the number of fields.
        """
        cdef int i
        if row < 0 or row >= self.capacity or len(values) != self.n_fields:
            raise IndexError(f"RowBlock: row {row} of {self.capacity}, {len(values)} values for fields {self.names}")
        for i in range(self.n_fields):
            self.put(row, i, values[i])

    cpdef put_field(self, Py_ssize_t row, int i, object value):
        """Writes field `i` of one row."""
        if row < 0 or row >= self.capacity or i < 0 or i >= self.n_fields:
            raise IndexError(f"RowBlock: row {row} of {self.capacity}, field {i} of {self.n_fields}")
        self.put(row, i, value)

    def write_rows(self, Py_ssize_t start, Py_ssize_t n, tuple values):
        """Writes rows start … start + n − 1: `values[i]` is an array [n, *shape]. Nothing is written when one does not fit."""
        if start < 0 or start + n > self.capacity or len(values) != self.n_fields:
            raise IndexError(f"RowBlock: rows {start}:{start + n} of {self.capacity}, {len(values)} values for fields {self.names}")
        arrays = [spec.convert(value, True) for spec, value in zip(self.specs, values)]
        for spec, array in zip(self.specs, arrays):
            if len(array) != n:
                raise spec.error(f"{array.shape} {array.dtype}", f"give {n} rows", True)
        for spec, array in zip(self.specs, arrays):
            self.arrays[spec.name][start:start + n] = array
