# cython: boundscheck=False, wraparound=False, cdivision=True
"""SegmentTree: weights under a binary tree of their sums or minima, for prioritised sampling."""

from cpython.float cimport PyFloat_Check
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact

import numpy as np

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define fetch(address) __builtin_prefetch(address)
    #else
    #define fetch(address) ((void) (address))
    #endif
    """
    void fetch(const void* address) noexcept nogil

DEF ABREAST = 64  # searches that go down side by side, so that the processor waits for the memory of all of them at once


cdef class SegmentTree:
    """Weights at positions 0 … n − 1, each set in O(log n), with their sum or minimum over any range.

    A parent is always computed anew from its two children, never by adding a difference, so no rounding error outlives the next
    update that passes it: the numbers are the same as in a tree built from the present weights. (Schaul et al. 2016, "Prioritized
    Experience Replay", appendix B.2.1, draws transitions with such a tree.)

        tree = SegmentTree(4)
        tree[[0, 2]] = [1.0, 3.0]
        tree.total                                # 4.0
        positions = tree.sample(32, rng)          # int64 [32]: 0 with probability 1/4, 2 with 3/4

    Nothing is locked, and calls with arrays release the GIL: threads that share a tree need a lock of their own.

    Args:
        n: Number of positions, at least 1. The memory holds 2 · (n rounded up to a power of two) numbers.
        kind: "sum": all weights are 0 at first. "min": all are +inf at first, which stands for a position without a weight.

    Attributes:
        n, kind: As given.
        nodes: The tree itself, float64 [2 · size]: the root at 1, the children of i at 2i and 2i + 1, the leaves from `size` on.
            For tests; whoever writes into it breaks the tree.

    Raises:
        ValueError: n is below 1, or an unknown kind.
    """

    cdef readonly Py_ssize_t n
    cdef readonly str kind
    cdef readonly object nodes
    cdef Py_ssize_t size
    cdef double* node
    cdef double limit
    cdef bint least

    def __cinit__(self, Py_ssize_t n, str kind="sum"):
        if n < 1:
            raise ValueError(f"SegmentTree: n is {n}; expected at least 1")
        if kind not in ("sum", "min"):
            raise ValueError(f"SegmentTree: kind is {kind!r}; expected 'sum' or 'min'")
        self.n = n
        self.kind = kind
        self.least = kind == "min"
        self.size = 1
        while self.size < n:
            self.size *= 2
        # Weights so great that their sum could overflow are refused; size is a power of two, so the bound itself is exact.
        self.limit = np.inf if self.least else np.finfo(np.float64).max / self.size
        self.nodes = np.full(2 * self.size, np.inf if self.least else 0.0)
        cdef double[::1] memory = self.nodes
        self.node = &memory[0]

    def __reduce__(self):
        return SegmentTree, (self.n, self.kind), self.values

    def __setstate__(self, values):
        self.fill(values)

    def __len__(self):
        return self.n

    def __repr__(self):
        return f"SegmentTree({self.n}, {self.kind!r})"

    # ---- weights

    def __getitem__(self, positions):
        """Weights at `positions`: a float for one int, else float64 of the shape of the positions.

        Raises:
            IndexError: a position is outside 0 … n − 1, or no integer.
        """
        cdef long long position
        cdef int overflow
        if PyLong_CheckExact(positions):
            position = PyLong_AsLongLongAndOverflow(positions, &overflow)
            if overflow or position < 0 or position >= self.n:
                raise self.no_position(positions)
            return self.node[self.size + position]
        array = self.integers(positions)
        if array.size and (array.min() < 0 or array.max() >= self.n):
            raise self.no_position(array[(array < 0) | (array >= self.n)][0])
        return self.nodes[self.size + array]

    def __setitem__(self, positions, values):
        """Sets weights, in O(k log n) for k positions, and in O(n) once k is a fair part of n.

        Args:
            positions: An int, or integers of any shape. Where a position comes twice, its last value stays.
            values: One number for all, or as many as positions. At least 0; of kind "sum" finite and at most the greatest float
                divided by n rounded up to a power of two, of kind "min" +inf takes the weight away.

        Raises:
            IndexError: a position is outside 0 … n − 1, or no integer. The tree is as before.
            ValueError: a weight is negative, NaN or too great, or the shapes differ. The tree is as before.
        """
        cdef long long position
        cdef double weight
        cdef Py_ssize_t i
        cdef int overflow
        if PyLong_CheckExact(positions) and PyFloat_Check(values):
            position = PyLong_AsLongLongAndOverflow(positions, &overflow)
            weight = values
            if overflow or position < 0 or position >= self.n:
                raise self.no_position(positions)
            if not 0 <= weight <= self.limit:
                raise self.no_weight(position, weight)
            i = self.size + position
            self.node[i] = weight
            i >>= 1
            while i:
                self.join(i)
                i >>= 1
            return
        where = self.integers(positions)
        weights = np.asarray(values, np.float64)
        if weights.ndim != 1 or where.ndim != 1 or len(weights) != len(where):
            if weights.shape and weights.shape != where.shape:
                raise ValueError(f"{self!r}: {weights.shape} weights for {where.shape} positions; give one for each, or one for all")
            weights = np.broadcast_to(weights, where.shape).ravel()
            where = where.ravel()
        weights = np.ascontiguousarray(weights)
        cdef const long long[::1] place = where
        cdef const double[::1] value = weights
        cdef long long[::1] touched = np.empty(len(where), np.int64)
        cdef Py_ssize_t k = place.shape[0], bad
        if not k:
            return
        with nogil:
            bad = self.check(&place[0], &value[0], &touched[0], k)
            if bad < 0:
                self.store(&value[0], &touched[0], k)
        if bad >= 0:
            if not 0 <= where[bad] < self.n:
                raise self.no_position(where[bad])
            raise self.no_weight(where[bad], weights[bad])

    def fill(self, values):
        """Sets all weights, in O(n): `values` is [n], or one number for all. Errors as of setting positions."""
        self[np.arange(self.n)] = values

    @property
    def values(self):
        """All weights, float64 [n], a copy: `fill` with it restores the tree."""
        return self.nodes[self.size : self.size + self.n].copy()

    # ---- sums and minima

    @property
    def total(self):
        """Sum (or minimum) of all weights."""
        return self.node[1]

    def reduce(self, start=0, end=None):
        """Sum (or minimum) of the weights at start … end − 1, in O(log n); `end` None is n. Of no position: 0 (or +inf).

        Raises:
            IndexError: not 0 ≤ start ≤ end ≤ n.
        """
        cdef Py_ssize_t first = start, last = self.n if end is None else end
        if not 0 <= first <= last <= self.n:
            raise IndexError(f"{self!r}: range [{start}, {end}); expected 0 ≤ start ≤ end ≤ {self.n}")
        if last == self.n:
            last = self.size  # the padding is neutral; so the whole range is the root, to the last bit
        cdef double left = self.node[0], right = self.node[0]  # the unused node holds the neutral number
        first += self.size
        last += self.size
        while first < last:
            if first & 1:
                left = self.joined(left, self.node[first])
                first += 1
            if last & 1:
                last -= 1
                right = self.joined(self.node[last], right)
            first >>= 1
            last >>= 1
        return self.joined(left, right)

    # ---- search

    def find(self, values):
        """For each value the smallest position up to which the weights sum to at least that value; kind "sum" only.

            find(v) = min {i : w[0] + … + w[i] ≥ v},    0 ≤ v < total

        A position of weight 0 is never found for v > 0, whatever is rounded: a search enters no part of the tree that sums to 0.
        v = 0 gives position 0, whatever its weight; so draw from (0, total), or better use `sample`.

        `total` itself is refused, though the formula would have an answer for it (the last position with a weight): a tree with
        0.1, 0, 0.1 finds 0.2 − 1e−6 at position 2 and raises for 0.2, which is what 0.1 + 0.1 is in floats. Tianshou's
        SegmentTree draws the line there too.

        Args:
            values: A number, or numbers of any shape.

        Returns:
            An int for one number, else int64 of the shape of the values.

        Raises:
            ValueError: a value is outside [0, total) or NaN, as any is while all weights are 0; or the kind is "min".
        """
        if self.least:
            raise ValueError(f"{self!r}: find searches sums; make a tree of kind 'sum'")
        array = np.array(values, np.float64, order="C")  # a copy: the search goes on without the GIL, on checked values only
        bad = ~((array >= 0) & (array < self.node[1]))
        if bad.any():
            raise ValueError(f"{self!r}: find got {array[bad][0]}; expected 0 ≤ value < {self.total}, the sum of all weights")
        out = self.search(array.ravel()).reshape(array.shape)
        return out if array.ndim else int(out[()])

    def sample(self, Py_ssize_t n, rng):
        """n independent positions, each drawn with the probability weight / total; kind "sum" only. O(n log len(self)).

        Args:
            n: How many, 0 or more.
            rng: np.random.Generator; gives n numbers.

        Returns:
            int64 [n]. Positions of weight 0 are never among them.

        Raises:
            ValueError: n is negative, all weights are 0, or the kind is "min".
        """
        if self.least:
            raise ValueError(f"{self!r}: sample draws by weight; make a tree of kind 'sum'")
        if n < 0:
            raise ValueError(f"{self!r}: cannot sample {n} positions; expected 0 or more")
        if not n:
            return np.empty(0, np.int64)
        if not self.node[1] > 0:
            raise ValueError(f"{self!r}: cannot sample {n} positions, all weights are 0; set some first")
        drawn = rng.random(n)
        cdef double[::1] value = drawn
        cdef Py_ssize_t j
        for j in range(n):
            # In (0, total], because 0 would find position 0 whatever its weight. A tiny total can round the product down to 0.
            value[j] = max(self.node[1] * (1.0 - value[j]), 5e-324)
        return self.search(drawn)

    # ---- inside

    cdef inline double joined(self, double a, double b) noexcept nogil:
        if self.least:
            return b if b < a else a
        return a + b

    cdef inline void join(self, Py_ssize_t i) noexcept nogil:
        self.node[i] = self.joined(self.node[2 * i], self.node[2 * i + 1])

    cdef Py_ssize_t check(self, const long long* place, const double* value, long long* touched, Py_ssize_t k) noexcept nogil:
        """Writes the leaves of the positions into `touched`. Returns the first that is wrong, or whose weight is, else −1.

        What is stored later are these leaves, not the caller's positions, which another thread may have changed by then.
        """
        cdef Py_ssize_t j
        cdef long long position
        for j in range(k):
            position = place[j]
            if position < 0 or position >= self.n or not 0 <= value[j] <= self.limit:
                return j
            touched[j] = self.size + position
        return -1

    cdef void store(self, const double* value, long long* touched, Py_ssize_t k) noexcept nogil:
        """Writes weights into the leaves `touched`, and then level by level the parents of what was written."""
        cdef Py_ssize_t width = self.size >> 1, count = 0, kept, j
        cdef long long i
        for j in range(k):
            i = touched[j]
            self.node[i] = value[j]
            i >>= 1
            if not count or touched[count - 1] != i:  # neighbours share a parent; other repetitions cost less than a search
                touched[count] = i
                count += 1
        while width:
            if 4 * count >= width:
                # The whole level and all above it, in order: no more than 8 nodes for each position, and in a row.
                for i in range(2 * width - 1, 0, -1):
                    self.join(i)
                return
            kept = 0
            for j in range(count):
                i = touched[j]
                self.join(i)
                i >>= 1
                if not kept or touched[kept - 1] != i:
                    touched[kept] = i
                    kept += 1
            count = kept
            width >>= 1

    cdef object search(self, array):
        out = np.empty(len(array), np.int64)
        cdef const double[::1] value = array
        cdef long long[::1] found = out
        with nogil:
            self.descend(value, found)
        return out

    cdef void descend(self, const double[::1] value, long long[::1] out) noexcept nogil:
        """Positions of checked values, `total` included.

        0 < rest ≤ weight of the node holds on the way, which is why a leaf of weight 0 is out of reach: to the left by the
        comparison; to the right, where rest > left, because the difference of two different floats is not 0, and because the
        minimum undoes rounding (a right side of 0 is not entered: the node then weighs what its left side does).
        """
        cdef double rest[ABREAST]
        cdef Py_ssize_t at[ABREAST]
        cdef Py_ssize_t begin, width, j, m
        cdef double left
        cdef bint right
        cdef double* node = self.node
        cdef Py_ssize_t last = 2 * self.size - 1, k = value.shape[0]
        for begin in range(0, k, ABREAST):
            m = min(ABREAST, k - begin)
            for j in range(m):
                rest[j] = value[begin + j]
                at[j] = 1
            width = 1
            while width < self.size:
                for j in range(m):  # arithmetic instead of branches, which would be guessed wrong every other time
                    left = node[2 * at[j]]
                    right = rest[j] > left
                    at[j] = 2 * at[j] + right
                    fetch(node + min(4 * at[j], last))  # two levels on: a large tree is mostly a wait for memory
                    rest[j] = min(rest[j] - right * left, node[at[j]])
                width *= 2
            for j in range(m):
                out[begin + j] = at[j] - self.size

    cdef object integers(self, positions):
        """Positions as int64 in C order, unchecked."""
        array = np.asarray(positions)
        if array.dtype.kind not in "iu":
            if array.size:
                raise IndexError(f"{self!r}: position {positions!r}; expected an int or integers (of a mask: np.flatnonzero(mask))")
        elif array.dtype.kind == "u" and array.size and array.max() >= self.n:
            raise self.no_position(array.max())  # before the conversion makes it negative
        return array.astype(np.int64, order="C", copy=False)

    cdef object no_position(self, position):
        return IndexError(f"{self!r}: there is no position {position}; positions are 0 to {self.n - 1}")

    cdef object no_weight(self, position, weight):
        legal = "0 ≤ weight, +inf for none" if self.least else f"0 ≤ weight ≤ {self.limit:.4g}"
        return ValueError(f"{self!r}: weight {weight} at position {position}; expected {legal}")
