# cython: boundscheck=False, wraparound=False, cdivision=True
"""RowBlock: preallocated columns that take one row, or a few, of named values per call. Ring: circular lanes of such rows.

The one place where rows are written: requests of many agents are packed with a RowBlock, and replay buffers store in a Ring.
`tests/fakes/buffer_twins.py` has the same things in plain NumPy; the tests hold them equal.
"""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_Check
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from libc.float cimport FLT_MAX
from libc.math cimport fabs, isinf
from libc.stdint cimport uint32_t, uint64_t
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
    cdef int found = 0  # no early end: so the loops look at several numbers at once
    if code == b"e":
        for i in range(nbytes // 2):
            found |= ((<const unsigned short*> data)[i] & 0x7FFF) > 0x7C00
    elif code == b"f":
        for i in range(nbytes // 4):
            found |= (<const float*> data)[i] != (<const float*> data)[i]
    elif code == b"d":
        for i in range(nbytes // 8):
            found |= (<const double*> data)[i] != (<const double*> data)[i]
    return found


cdef char* memory(object array, Py_ssize_t* n) except? NULL:
    """Where a one-dimensional array in C order begins; `n` gets its length. The caller keeps the array."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS)
    cdef int axes = view.ndim
    cdef char* begin = <char*> view.buf
    n[0] = view.shape[0] if axes else 0
    PyBuffer_Release(&view)
    if axes != 1:
        raise ValueError(f"Ring: an array of {axes} axes; expected one")
    return begin


cdef char* start_of(object array) except? NULL:
    """Where a new array, of any shape, begins."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
    cdef char* begin = <char*> view.buf
    PyBuffer_Release(&view)
    return begin


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
    cdef bint bounded[MAX_FIELDS]  # whether the field's integers have bounds; of one integer they are these
    cdef long long lowest[MAX_FIELDS]
    cdef long long highest[MAX_FIELDS]

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
            self.bounded[i] = spec.integer_bounds is not None
            if self.bounded[i] and spec.shape == ():
                self.lowest[i], self.highest[i] = int(spec.low), int(spec.high)
            if spec.shape == ():
                self.kind[i] = {"float64": FLOAT64, "float32": FLOAT32, "int64": INT64, "bool": BOOL}.get(spec.dtype.name, ARRAY)

    def __reduce__(self):
        # The addresses are those of this process; the copy finds its own. (Cython's own way would copy them as texts.)
        return RowBlock, (self.specs, self.capacity, self.arrays)

    cdef bint fits(self, Py_buffer* view, int i, int rows) noexcept nogil:
        """Whether a value, or with rows = 1 several, has the field's dtype and shape, and no NaN. Bounds are not looked at."""
        cdef int k
        if view.ndim != self.ndim[i] + rows or view.format[0] != self.code[i] or view.format[1] != 0:
            return False
        for k in range(self.ndim[i]):
            if view.shape[k + rows] != self.shape[i][k]:
                return False
        return not nan_in(<const char*> view.buf, view.len, self.code[i])

    cdef int put(self, Py_ssize_t row, int i, object value) except -1:
        cdef char* target = self.base[i] + row * self.nbytes[i]
        cdef int kind = self.kind[i]
        cdef Py_buffer view
        cdef double number
        cdef int fits
        cdef long long integer
        if kind == FLOAT64 or kind == FLOAT32:
            if PyFloat_Check(value):
                number = PyFloat_AS_DOUBLE(value)
                if number == number and (kind == FLOAT64 or fabs(number) <= FLT_MAX or isinf(number)):
                    if kind == FLOAT64:
                        (<double*> target)[0] = number
                    else:
                        (<float*> target)[0] = <float> number
                    return 0
        elif kind == INT64:
            if PyLong_CheckExact(value):
                integer = PyLong_AsLongLongAndOverflow(value, &fits)
                if not fits and not (self.bounded[i] and (integer < self.lowest[i] or integer > self.highest[i])):
                    (<long long*> target)[0] = integer
                    return 0
        elif kind == BOOL:
            if value is True:
                target[0] = 1
                return 0
            if value is False:
                target[0] = 0
                return 0
        if PyObject_CheckBuffer(value):  # arrays, and NumPy's scalars
            try:
                PyObject_GetBuffer(value, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
            except (BufferError, ValueError):
                return self.put_checked(row, i, value)
            fits = self.fits(&view, i, 0)
            if fits and self.bounded[i]:
                integer = (<const long long*> view.buf)[0] if kind == INT64 else 0
                fits = kind == INT64 and self.lowest[i] <= integer <= self.highest[i]
            if fits:
                memcpy(target, view.buf, view.len)
            PyBuffer_Release(&view)
            if fits:
                return 0
        return self.put_checked(row, i, value)

    cdef int put_checked(self, Py_ssize_t row, int i, object value) except -1:
        """The slow path: converts or explains."""
        spec = self.specs[i]
        array = spec.convert(value)
        if self.bounded[i]:
            spec.check_bounds(array)
        self.arrays[spec.name][row] = array
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

    def write_rows(self, Py_ssize_t start, Py_ssize_t n, tuple values):
        """Writes rows start … start + n − 1: `values[i]` is an array [n, *shape]. Nothing is written when one does not fit."""
        if start < 0 or start + n > self.capacity or len(values) != self.n_fields:
            raise IndexError(f"RowBlock: rows {start}:{start + n} of {self.capacity}, {len(values)} values for fields {self.names}")
        cdef Py_buffer view
        cdef int f
        held = list(values)
        for f in range(self.n_fields):
            if not self.lent(f, held[f], n, &view):
                break
            PyBuffer_Release(&view)
        else:
            for f in range(self.n_fields):
                memcpy(self.base[f] + start * self.nbytes[f], start_of(held[f]), n * self.nbytes[f])
            return
        for f in range(self.n_fields):
            held[f] = self.specs[f].convert(held[f], True)
        for f in range(self.n_fields):
            self.check_rows(f, held[f], n)
        for f in range(self.n_fields):
            self.arrays[self.names[f]][start:start + n] = held[f]

    cdef bint lent(self, int f, object rows, Py_ssize_t n, Py_buffer* view) except -1:
        """Whether an array holds n rows of field f as they are stored; `view` then has its memory, and is to be released."""
        if self.bounded[f] or not isinstance(rows, np.ndarray):
            return False
        try:
            PyObject_GetBuffer(rows, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
        except (BufferError, ValueError):
            return False
        if self.fits(view, f, 1) and view.shape[0] == n:
            return True
        PyBuffer_Release(view)
        return False

    cdef int check_rows(self, int f, object rows, Py_ssize_t n) except -1:
        """Refuse converted rows of field f that are not n, or out of its bounds."""
        spec = self.specs[f]
        if len(rows) != n:
            raise spec.error(f"{rows.shape} {rows.dtype}", f"give {n} rows", True)
        spec.check_bounds(rows)
        return 0


cdef void scatter(char* target, const char* source, const long long* index, Py_ssize_t n, Py_ssize_t nbytes) noexcept nogil:
    """Row i of `source` to row `index[i]` of `target`."""
    cdef Py_ssize_t i, k
    # The usual widths by assignment: a call of memcpy takes as long as ten of them.
    if nbytes == 1:
        for i in range(n):
            target[index[i]] = source[i]
    elif nbytes == 4:
        for i in range(n):
            (<uint32_t*> target)[index[i]] = (<const uint32_t*> source)[i]
    elif nbytes <= 64 and nbytes % 8 == 0:
        for i in range(n):
            for k in range(nbytes // 8):
                (<uint64_t*> (target + index[i] * nbytes))[k] = (<const uint64_t*> (source + i * nbytes))[k]
    else:
        for i in range(n):
            memcpy(target + index[i] * nbytes, source + i * nbytes, nbytes)


cdef inline void copy_row(char* target, const char* source, Py_ssize_t nbytes) noexcept nogil:
    if nbytes == 8:
        (<uint64_t*> target)[0] = (<const uint64_t*> source)[0]
    elif nbytes == 4:
        (<uint32_t*> target)[0] = (<const uint32_t*> source)[0]
    else:
        memcpy(target, source, nbytes)


cdef class Ring:
    """Rows in circular lanes: lane k owns the positions k * lane_size ... (k + 1) * lane_size - 1, and a full lane gives up its oldest row.

    Positions given to a method must hold rows, and are not checked. Where a method looks along time it stays in the lane, between its
    oldest and its newest row, and never leaves an episode: a row with `terminated` or `truncated` is its last.

    Args:
        specs: The fields, in the order in which `push` takes their values; () as long as they are not known.
        n_lanes, lane_size: Lanes, and rows of each.
        columns: Existing columns [n_lanes * lane_size, ...] by name; those that it lacks are made, of zeros.
        state: count, cursor and written of another ring, see `set`; None: no rows.

    Attributes:
        block: The RowBlock that holds the columns. count: [n_lanes] int64, rows per lane. cursor: [n_lanes] int64, the position
            that the next row of each lane takes. written: [n_lanes] int64, rows that each lane ever took. total: Rows in all.
    """

    cdef readonly RowBlock block
    cdef RowBlock spare
    cdef readonly Py_ssize_t n_lanes, lane_size, total
    cdef readonly object count, cursor, written
    cdef long long[::1] counts, cursors, writes
    cdef const char* terminated
    cdef const char* truncated

    def __init__(self, specs, Py_ssize_t n_lanes, Py_ssize_t lane_size, columns=None, state=None):
        self.n_lanes, self.lane_size = n_lanes, lane_size
        specs = tuple(specs)
        if columns is not None or specs:
            have = {} if columns is None else columns
            columns = {s.name: have[s.name] if s.name in have else s.zeros(n_lanes * lane_size) for s in specs}
        self.block = RowBlock(specs, n_lanes * lane_size, columns)
        self.spare = RowBlock(specs, 1)
        self.terminated = self.truncated = NULL
        for i, name in enumerate(self.block.names):
            if name == "terminated":
                self.terminated = self.block.base[i]
            elif name == "truncated":
                self.truncated = self.block.base[i]
        if state is None:
            first = np.arange(n_lanes, dtype=np.int64) * lane_size
            state = np.zeros(n_lanes, np.int64), first, np.zeros(n_lanes, np.int64)
        self.set(*state)

    def __reduce__(self):
        return Ring, (self.block.specs, self.n_lanes, self.lane_size, self.block.arrays, (self.count, self.cursor, self.written))

    def set(self, count, cursor, written):
        """Takes over the books of another ring, [n_lanes] integers each."""
        count, cursor, written = (np.array(x, np.int64) for x in (count, cursor, written))
        if not count.shape == cursor.shape == written.shape == (self.n_lanes,):
            raise ValueError(f"Ring: books of {count.size} lanes; expected {self.n_lanes}")
        ahead = cursor - np.arange(self.n_lanes) * self.lane_size
        sound = (count >= 0) & (count <= self.lane_size) & (count <= written) & np.where(
            count == self.lane_size, (ahead >= 0) & (ahead < self.lane_size), ahead == count)
        if not sound.all():
            lane = int(np.flatnonzero(~sound)[0])
            raise ValueError(f"Ring: lane {lane} has {count[lane]} rows of {self.lane_size} and its next at {cursor[lane]}; damaged books")
        self.count, self.cursor, self.written = count, cursor, written
        self.counts, self.cursors, self.writes = self.count, self.cursor, self.written
        self.total = int(self.count.sum())

    def clear(self, Py_ssize_t lane):
        """Forgets the rows of a lane."""
        self.check_lane(lane)
        self.total -= self.counts[lane]
        self.counts[lane] = 0
        self.cursors[lane] = lane * self.lane_size

    cdef int check_lane(self, Py_ssize_t lane) except -1:
        if lane < 0 or lane >= self.n_lanes:
            raise IndexError(f"Ring: lane {lane} of {self.n_lanes}")
        return 0

    cdef int check_positions(self, const long long* at, Py_ssize_t n) except -1:
        """Refuses what lies outside of the memory. Whether a position holds a row is not asked."""
        cdef Py_ssize_t i
        for i in range(n):
            if at[i] < 0 or at[i] >= self.n_lanes * self.lane_size:
                raise IndexError(f"Ring: position {at[i]}; positions are 0 to {self.n_lanes * self.lane_size - 1}")
        return 0

    cdef inline Py_ssize_t advance(self, Py_ssize_t lane) noexcept nogil:
        """The position of the next row of a lane, which it now holds."""
        cdef Py_ssize_t position = self.cursors[lane]
        if self.counts[lane] < self.lane_size:
            self.counts[lane] += 1
            self.total += 1
        self.writes[lane] += 1
        self.cursors[lane] = position + 1 if position + 1 < (lane + 1) * self.lane_size else lane * self.lane_size
        return position

    def push(self, Py_ssize_t lane, tuple values):
        """Writes one row. Returns its position.

        Raises:
            SpecError: a value does not fit; no row has changed. IndexError: no such lane, or another number of values.
        """
        cdef RowBlock block = self.block, spare = self.spare
        cdef Py_ssize_t position
        cdef int f
        self.check_lane(lane)
        position = self.cursors[lane]
        if self.counts[lane] < self.lane_size:
            block.write(position, values)
        else:  # a write that fails half way must not damage the oldest row, so a spare row takes it first
            spare.write(0, values)
            for f in range(block.n_fields):
                memcpy(block.base[f] + position * block.nbytes[f], spare.base[f], block.nbytes[f])
        return self.advance(lane)

    def push_rows(self, into, tuple values):
        """Writes row i of every array [k, ...] into lane `into[i]`. Returns the positions [k].

        Raises:
            SpecError: a value does not fit; nothing is written. IndexError: no such lane, or another number of values.
        """
        cdef RowBlock block = self.block
        cdef Py_ssize_t n, i
        cdef int f, opened = 0
        cdef Py_buffer views[MAX_FIELDS]
        into = np.ascontiguousarray(into, np.int64)
        cdef const long long* lanes = <const long long*> memory(into, &n)
        if len(values) != block.n_fields:
            raise IndexError(f"Ring: {len(values)} values for fields {block.names}")
        for i in range(n):
            self.check_lane(lanes[i])
        positions = np.empty(n, np.int64)
        cdef long long* at = <long long*> memory(positions, &n)
        held = list(values)  # keeps converted arrays alive
        try:
            for f in range(block.n_fields):
                if not block.lent(f, held[f], n, &views[f]):
                    held[f] = block.specs[f].convert(held[f], True)
                    block.check_rows(f, held[f], n)
                    PyObject_GetBuffer(held[f], &views[f], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
                opened = f + 1
            for i in range(n):
                at[i] = self.advance(lanes[i])
            for f in range(block.n_fields):
                scatter(block.base[f], <const char*> views[f].buf, at, n, block.nbytes[f])
        finally:
            for f in range(opened):
                PyBuffer_Release(&views[f])
        return positions

    cdef inline Py_ssize_t age(self, Py_ssize_t position) noexcept nogil:
        """How many rows of its lane are newer; -1 where the position is no row's."""
        if position < 0 or position >= self.n_lanes * self.lane_size:
            return -1
        cdef Py_ssize_t lane = self.lane_of(position), age = self.cursors[lane] - 1 - position
        age += self.lane_size if age < 0 else 0
        return age if age < self.counts[lane] else -1

    def first_empty(self, positions):
        """The first of [N] positions that is no row's, by its place among them; -1 where all are."""
        cdef Py_ssize_t n
        positions = np.ascontiguousarray(positions, np.int64)
        cdef const long long* at = <const long long*> memory(positions, &n)
        cdef Py_ssize_t i
        for i in range(n):
            if self.age(at[i]) < 0:
                return i
        return -1

    def serials(self, positions):
        """[N]: the numbers of rows in the history of their lane, from 0; -1 where the position is no row's."""
        cdef Py_ssize_t n
        positions = np.ascontiguousarray(positions, np.int64)
        cdef const long long* at = <const long long*> memory(positions, &n)
        cdef Py_ssize_t i, age
        out = np.full(n, -1, np.int64)
        cdef long long* to = <long long*> start_of(out)
        for i in range(n):
            age = self.age(at[i])
            if age >= 0:
                to[i] = self.writes[at[i] // self.lane_size] - 1 - age
        return out

    def numbered(self, numbers):
        """[N]: positions of rows by their numbers, 0 ... total - 1, counted lane after lane, and in a lane by slots.

        Raises:
            IndexError: there is no such row.
        """
        cdef Py_ssize_t n, i, lane, low, high, same = self.counts[0]
        numbers = np.ascontiguousarray(numbers, np.int64)
        cdef const long long* number = <const long long*> memory(numbers, &n)
        out, ends = np.empty(n, np.int64), np.empty(self.n_lanes, np.int64)  # of each lane the number after its last row
        cdef long long* to = <long long*> start_of(out)
        cdef long long* end = <long long*> start_of(ends)
        for i in range(n):
            if number[i] < 0 or number[i] >= self.total:
                raise IndexError(f"Ring: row {number[i]} of {self.total}")
        with nogil:
            end[0] = same
            for lane in range(1, self.n_lanes):
                end[lane] = end[lane - 1] + self.counts[lane]
                if self.counts[lane] != same:
                    same = 0
            for i in range(n):
                if same:  # as many rows in every lane
                    low = number[i] // same
                else:
                    low, high = 0, self.n_lanes - 1
                    while low < high:
                        lane = (low + high) // 2
                        if end[lane] <= number[i]:
                            low = lane + 1
                        else:
                            high = lane
                to[i] = number[i] - end[low] + self.counts[low] + low * self.lane_size
        return out

    # ---- along time

    cdef inline bint ends(self, Py_ssize_t position) noexcept nogil:
        return self.terminated != NULL and (self.terminated[position] != 0 or self.truncated[position] != 0)

    cdef inline Py_ssize_t lane_of(self, Py_ssize_t position) noexcept nogil:
        """Of a position in the memory. Divisions of 32 bits take a third of the time."""
        if self.n_lanes == 1:
            return 0
        if self.n_lanes * self.lane_size <= 2147483647:
            return <uint32_t> position // <uint32_t> self.lane_size
        return position // self.lane_size

    cdef inline Py_ssize_t after(self, Py_ssize_t position, Py_ssize_t lane) noexcept nogil:
        """The next row of the episode, or the same where there is none; `lane` is that of the position."""
        cdef Py_ssize_t start = lane * self.lane_size, following = position + 1
        if following == start + self.lane_size:
            following = start
        if following == self.cursors[lane] or self.ends(position):
            return position
        return following

    cdef inline Py_ssize_t before(self, Py_ssize_t position, Py_ssize_t lane) noexcept nogil:
        cdef Py_ssize_t start = lane * self.lane_size, previous
        cdef Py_ssize_t oldest = self.cursors[lane] if self.counts[lane] == self.lane_size else start
        if position == oldest:
            return position
        previous = position - 1 if position > start else start + self.lane_size - 1
        return position if self.ends(previous) else previous

    def next(self, positions):
        """[N]: the row after each, within the episode; a row that ends one and the newest row of a lane are their own."""
        return self.walked(positions, 1, False)

    def prev(self, positions):
        """[N]: the row before each, within the episode; its first row and the oldest row of a lane are their own."""
        return self.walked(positions, 0, False)

    def episode_end(self, positions):
        """[N]: the newest row of the episode of each; in O(rows until there)."""
        return self.walked(positions, 1, True)

    cdef object walked(self, positions, bint ahead, bint to_end):
        """The row after, or before, each; or the last one that can be reached so."""
        cdef Py_ssize_t n
        positions = np.ascontiguousarray(positions, np.int64)
        cdef const long long* at = <const long long*> memory(positions, &n)
        cdef Py_ssize_t i, here, there, lane
        self.check_positions(at, n)
        out = np.empty(n, np.int64)
        cdef long long* to = <long long*> start_of(out)
        with nogil:
            for i in range(n):
                here = at[i]
                lane = self.lane_of(here)
                there = self.after(here, lane) if ahead else self.before(here, lane)
                while to_end and there != here:
                    here = there
                    there = self.after(here, lane)
                to[i] = there
        return out

    def around(self, positions, Py_ssize_t back, Py_ssize_t ahead):
        """The rows from `back` before to `ahead` after each row.

        Returns:
            [N, back + 1 + ahead] positions: where the episode or the lane ends, its last row in that direction is repeated; and
            [N, back + 1 + ahead] bool, False at the repeated ones.
        """
        cdef Py_ssize_t n
        positions = np.ascontiguousarray(positions, np.int64)
        cdef const long long* at = <const long long*> memory(positions, &n)
        cdef Py_ssize_t i, k, here, there, lane
        self.check_positions(at, n)
        out = np.empty((n, back + 1 + ahead), np.int64)
        real = np.ones((n, back + 1 + ahead), bool)
        cdef long long[:, ::1] to = out
        cdef unsigned char[:, ::1] is_real = real.view(np.uint8)
        with nogil:
            for i in range(n):
                to[i, back] = here = at[i]
                lane = self.lane_of(here)
                for k in range(back - 1, -1, -1):
                    there = self.before(here, lane)
                    is_real[i, k] = there != here and is_real[i, k + 1]
                    to[i, k] = here = there
                here = at[i]
                for k in range(back + 1, back + 1 + ahead):
                    there = self.after(here, lane)
                    is_real[i, k] = there != here and is_real[i, k - 1]
                    to[i, k] = here = there
        return out, real

    def n_step(self, positions, Py_ssize_t n, int field):
        """See `ReplayBuffer.n_step`; `field` is the number of the reward's column."""
        cdef Py_ssize_t rows
        positions = np.ascontiguousarray(positions, np.int64)
        cdef const long long* at = <const long long*> memory(positions, &rows)
        cdef RowBlock block = self.block
        cdef Py_ssize_t i, k, here, there, lane, nbytes = block.nbytes[field]
        cdef char* target
        cdef char* begin
        self.check_positions(at, rows)
        spec = block.specs[field]
        rew = np.zeros((rows, n, *spec.shape), spec.dtype)
        valid, last = np.empty(rows, np.int64), np.empty(rows, np.int64)
        cdef long long* valids = <long long*> start_of(valid)
        cdef long long* lasts = <long long*> start_of(last)
        begin = start_of(rew)
        with nogil:
            for i in range(rows):
                target = begin + i * n * nbytes
                here = at[i]
                lane = self.lane_of(here)
                copy_row(target, block.base[field] + here * nbytes, nbytes)
                k = 1
                while k < n:
                    there = self.after(here, lane)
                    if there == here:
                        break
                    here = there
                    copy_row(target + k * nbytes, block.base[field] + here * nbytes, nbytes)
                    k += 1
                valids[i] = k
                lasts[i] = here
        return {"rew": rew, "valid": valid, "last_index": last}

    def whole(self, positions, Py_ssize_t stack, Py_ssize_t ahead, bint full):
        """[N] bool: whether the rows that are looked at with each row can be had.

        Args:
            stack: Frames. The stack - 1 oldest rows of a full lane have lost the frames before them. full: also rows whose
                episode is younger than the stack are refused.
            ahead: Rows that must follow, unless the episode ends before.
        """
        cdef Py_ssize_t n
        positions = np.ascontiguousarray(positions, np.int64)
        cdef const long long* at = <const long long*> memory(positions, &n)
        cdef Py_ssize_t i, k, here, there, lane
        cdef bint good
        self.check_positions(at, n)
        out = np.empty(n, bool)
        cdef unsigned char* to = <unsigned char*> start_of(out)
        with nogil:
            for i in range(n):
                here = at[i]
                lane = self.lane_of(here)
                good = True
                if stack > 1 and self.counts[lane] == self.lane_size:
                    good = (here - self.cursors[lane] + self.lane_size) % self.lane_size >= stack - 1
                if full:
                    for k in range(stack - 1):
                        there = self.before(here, lane)
                        if there == here:
                            good = False
                            break
                        here = there
                here = at[i]
                for k in range(ahead):
                    there = self.after(here, lane)
                    if there == here:
                        if not self.ends(here):
                            good = False
                        break
                    here = there
                to[i] = good
        return out
