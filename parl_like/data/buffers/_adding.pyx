# cython: boundscheck=False, wraparound=False, cdivision=True
"""What `ReplayBuffer.add` does for every row. FieldPaths: the values of fields out of nested rows. EpisodeCounts: open episodes.

`tests/fakes/buffer_twins.py` has the same things in plain Python; the tests hold them equal.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.dict cimport PyDict_GetItem, PyDict_Size
from cpython.object cimport PyObject

import numpy as np

from parl_like.data.buffers.fields import as_array
from parl_like.values.batch import Batch

cdef object NO_INT = np.zeros(1, np.int64), NO_FLOAT = np.zeros(1)  # to be copied: a third of the time of `np.zeros`


cdef char* start_of(object array) except? NULL:
    """Where an array in C order begins. The caller keeps it."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
    cdef char* begin = <char*> view.buf
    PyBuffer_Release(&view)
    return begin


cdef object ascontiguousarray = np.ascontiguousarray, ndarray = np.ndarray
cdef object INT64 = np.dtype(np.int64), FLOAT64 = np.dtype(np.float64), BOOL = np.dtype(np.bool_)


cdef object contiguous(object value, object dtype):
    """Numbers as an array in C order."""
    if type(value) is ndarray:  # which is not to be asked whether it is a tensor: that takes 0.3 microseconds
        return value if value.dtype is dtype and value.flags.c_contiguous else ascontiguousarray(value, dtype)
    return ascontiguousarray(as_array(value), dtype)


cdef inline dict entries(object rows):
    """The fields of a dict or a Batch; None of anything else."""
    if type(rows) is dict:
        return <dict> rows
    return rows.__dict__ if type(rows) is Batch else None


cdef class FieldPaths:
    """Where the values of fields lie in rows that are nested as the fields' dotted names say.

    Args:
        names: Dotted names of fields, in the order in which `values` gives their values.
        empty: Keys of groups without a leaf, such as `info`, that rows may have beside them.

    Attributes:
        names: As given.
    """

    cdef readonly tuple names
    cdef tuple keys  # of this level
    cdef tuple parts  # of each key the paths of its group, whose names have the numbers of the whole; None: a leaf
    cdef tuple numbers  # of each leaf its place in `names`
    cdef object empty  # None: any

    def __init__(self, names, empty=()):
        self.names = tuple(names)
        self.empty = empty
        self.plan(list(enumerate(self.names)))

    cdef plan(self, list numbered):
        groups = {}
        for number, name in numbered:
            key, _, rest = name.partition(".")
            groups.setdefault(key, []).append((number, rest))
        keys, parts, numbers = [], [], []
        for key, members in groups.items():
            keys.append(key)
            numbers.append(members[0][0])
            if members[0][1]:
                part = FieldPaths((), None)
                (<FieldPaths> part).plan(members)
                parts.append(part)
            else:
                parts.append(None)
        self.keys, self.parts, self.numbers = tuple(keys), tuple(parts), tuple(numbers)

    def values(self, rows):
        """The values of all fields, a tuple in the order of `names`, from dicts and Batches.

        Returns None where the rows have other fields, dotted keys, or other mappings: these are to be looked at one by one.
        """
        cdef dict given = entries(rows)
        if given is None or not self.names:
            return None
        out = [None] * len(self.names)
        return tuple(out) if self.fill(given, out) else None

    cdef bint fill(self, dict given, list out) except -1:
        cdef Py_ssize_t i, n = len(self.keys)
        cdef PyObject* value
        cdef dict group
        for i in range(n):
            value = PyDict_GetItem(given, self.keys[i])
            if value is NULL:
                return False
            if self.parts[i] is None:
                out[<Py_ssize_t> self.numbers[i]] = <object> value
                continue
            group = entries(<object> value)
            if group is None or not (<FieldPaths> self.parts[i]).fill(group, out):
                return False
        if PyDict_Size(given) == n:
            return True
        for key, rest in given.items():
            if key not in self.keys:
                group = entries(rest)
                if group is None or PyDict_Size(group) or (self.empty is not None and key not in self.empty):
                    return False
        return True


cdef class EpisodeCounts:
    """Return, length and first row of the episode that is open in each lane, by the rows given to `ReplayBuffer.add`.

    Args:
        starts: [n_lanes] int64, the first slots of the lanes.

    Attributes:
        returns: [n_lanes, *shape] float64, undiscounted, of rewards of that shape. lengths, starts: [n_lanes] int64.
    """

    cdef readonly object returns, lengths, starts
    cdef Py_ssize_t width  # numbers of a reward
    cdef double* totals
    cdef long long* length
    cdef long long* start

    def __init__(self, starts):
        self.use(np.zeros(len(starts)), np.zeros(len(starts), np.int64), np.array(starts, np.int64))

    def __reduce__(self):
        return opened, (self.returns, self.lengths, self.starts)

    cdef use(self, returns, lengths, starts):
        self.returns, self.lengths, self.starts = returns, lengths, starts
        self.width = 1
        for size in returns.shape[1:]:
            self.width *= size
        self.totals, self.length, self.start = <double*> start_of(returns), <long long*> start_of(lengths), <long long*> start_of(starts)

    def add_lanes(self, starts):
        """Add lanes whose first slots are `starts`, [n] int64."""
        self.use(np.concatenate([self.returns, np.zeros((len(starts), *self.returns.shape[1:]))]),
                 np.append(self.lengths, np.zeros_like(starts)), np.append(self.starts, starts))

    def forget(self, lane=slice(None)):
        """Forget what was counted of one lane, or of all."""
        self.returns[lane], self.lengths[lane] = 0.0, 0

    def moved(self, Py_ssize_t lane, long long start):
        """The rows of a lane are gone; its next one goes to `start`."""
        self.starts[lane] = start

    def count_row(self, Py_ssize_t lane, long long position, rew, bint done):
        """`count` for one row, whose position and lane are right: rew a number, or an array of any shape."""
        cdef double reward
        if self.returns.ndim != 1 or not isinstance(rew, (float, int)):
            array = np.asarray(as_array(rew), np.float64)
            if array.ndim or self.returns.ndim != 1:
                at, ends = np.array([position]), np.array([done])
                return at, *self.count(np.array([lane]), at, array.reshape(1, *array.shape), ends, ends)
            reward = array
        else:
            reward = rew
        if not self.length[lane]:
            self.start[lane] = position
        self.length[lane] += 1
        self.totals[lane] += reward
        at, returns, lengths, starts = NO_INT.copy(), NO_FLOAT.copy(), NO_INT.copy(), NO_INT.copy()
        (<long long*> start_of(at))[0] = position
        (<long long*> start_of(starts))[0] = self.start[lane]
        if done:
            (<double*> start_of(returns))[0] = self.totals[lane]
            (<long long*> start_of(lengths))[0] = self.length[lane]
            self.totals[lane], self.length[lane] = 0.0, 0
        return at, returns, lengths, starts

    def count(self, into, positions, rew, terminated, truncated):
        """Adds row i, of lane `into[i]` at `positions[i]`, with reward `rew[i]`; rew is [k, *shape], the flags are [k] bool.

        Returns:
            [k, *shape] return and [k] length of the episode that ended with each row, 0 where it goes on; [k] where it began.
        """
        cdef Py_ssize_t i, j, lane, n = len(positions), m
        cdef bint ends
        into, positions, rew = contiguous(into, INT64), contiguous(positions, INT64), contiguous(rew, FLOAT64)
        terminated, truncated = contiguous(terminated, BOOL), contiguous(truncated, BOOL)
        if not self.returns.ndim == rew.ndim == 1 and self.returns.shape[1:] != rew.shape[1:]:
            self.use(np.zeros((len(self.lengths), *rew.shape[1:])), self.lengths, self.starts)
        returns, lengths, starts = np.zeros(rew.shape), np.zeros(n, np.int64), np.empty(n, np.int64)
        cdef const long long* lanes = <const long long*> start_of(into)
        cdef const long long* at = <const long long*> start_of(positions)
        cdef const double* rewards = <const double*> start_of(rew)
        cdef const char* first = start_of(terminated)
        cdef const char* second = start_of(truncated)
        cdef double* to_return = <double*> start_of(returns)
        cdef long long* to_length = <long long*> start_of(lengths)
        cdef long long* to_start = <long long*> start_of(starts)
        m = self.width
        for i in range(n):
            lane, ends = lanes[i], first[i] or second[i]
            if not self.length[lane]:
                self.start[lane] = at[i]
            self.length[lane] += 1
            to_start[i] = self.start[lane]
            for j in range(m):
                self.totals[lane * m + j] += rewards[i * m + j]
                if ends:
                    to_return[i * m + j] = self.totals[lane * m + j]
                    self.totals[lane * m + j] = 0
            if ends:
                to_length[i] = self.length[lane]
                self.length[lane] = 0
        return returns, lengths, starts

    def state_dict(self):
        return {"return": self.returns.tolist(), "length": self.lengths.tolist(), "start": self.starts.tolist()}

    def load_state_dict(self, state, firsts, lane_size):
        """Takes over what `state_dict` gave, of lanes that begin at `firsts`, [n_lanes] int64.

        Raises:
            ValueError: it is none, or is not that of these lanes.
        """
        returns = np.array(state["return"], np.float64)
        lengths, starts = np.array(state["length"], np.int64), np.array(state["start"], np.int64)
        fits = len(returns) == len(firsts) and lengths.shape == starts.shape == firsts.shape and (lengths >= 0).all()
        if not fits or ((starts < firsts) | (starts >= firsts + lane_size)).any():
            raise ValueError(f"open episodes {str(dict(state)):.200}; expected one for each of {len(firsts)} lanes, and in it")
        self.use(returns, lengths, starts)


def opened(returns, lengths, starts):
    """Counts with these books, for pickle."""
    cdef EpisodeCounts counts = EpisodeCounts(starts)
    counts.use(returns, lengths, starts)
    return counts
