# cython: boundscheck=False, wraparound=False, cdivision=True
"""Kernel of tree.py, which has the formulas and checks what it is given: n trees in flat arrays. The loops run without the GIL.

Node i of tree t is number t · capacity + i of every array; −1 is no node. It computes in the order of `PlainTree`, so both give
the same bits.
"""

from libc.math cimport INFINITY, exp, log, sqrt
from libc.stdint cimport int32_t, int64_t, uint8_t

import numpy as np

cdef struct Node:
    double total, reward  # the sum of returns, for who moves here; of the edge into it, for who moved there
    int64_t visits
    int64_t parent, player
    bint done


cdef class Kernel:
    """n trees that are searched in step. Arguments are those of `tree.SearchTree`."""

    cdef readonly Py_ssize_t n, n_actions, capacity
    cdef double exploration, base, gamma
    cdef bint uct, normalize
    cdef list keep  # arrays behind the pointers
    cdef Node* nodes
    cdef int32_t* children
    cdef double* priors
    cdef int32_t* size  # nodes of each tree
    cdef double* low
    cdef double* high

    def __cinit__(self, Py_ssize_t n, Py_ssize_t n_actions, Py_ssize_t capacity, double exploration, double base, double gamma,
                  bint uct, bint normalize):
        cdef Py_ssize_t count = n * capacity
        self.n, self.n_actions, self.capacity = n, n_actions, capacity
        self.exploration, self.base, self.gamma, self.uct, self.normalize = exploration, base, gamma, uct, normalize
        self.keep = []
        self.nodes = <Node*> self.memory(np.zeros(count * sizeof(Node), np.uint8))
        self.children = <int32_t*> self.memory(np.zeros(count * n_actions, np.int32))
        self.priors = <double*> self.memory(np.zeros(count * n_actions))
        self.size = <int32_t*> self.memory(np.zeros(n, np.int32))
        self.low, self.high = <double*> self.memory(np.zeros(n)), <double*> self.memory(np.zeros(n))

    cdef void* memory(self, array):
        """The address of an array that lives as long as this object."""
        cdef uint8_t[::1] view = array.view(np.uint8)
        self.keep.append(array)
        return &view[0]

    cdef void put(self, Py_ssize_t at, Py_ssize_t parent, double reward, bint done, int64_t player, const double* logits,
                  const uint8_t* legal) noexcept nogil:
        """A node without returns. The prior of an illegal action is −1."""
        cdef Node* node = self.nodes + at
        cdef double* prior = self.priors + at * self.n_actions
        cdef int32_t* children = self.children + at * self.n_actions
        cdef double top = 0.0, total = 0.0
        cdef bint one = False
        cdef Py_ssize_t a
        node.total, node.visits, node.reward, node.done = 0.0, 0, reward, done
        node.parent, node.player = parent, player
        for a in range(self.n_actions):
            children[a] = -1
            if legal[a] and (not one or logits[a] > top):
                top, one = logits[a], True
        for a in range(self.n_actions):
            prior[a] = exp(logits[a] - top) if legal[a] else -1.0
            if legal[a]:
                total += prior[a]
        for a in range(self.n_actions):
            if legal[a]:
                prior[a] /= total

    cdef inline double q(self, Py_ssize_t at) noexcept nogil:
        """The value of the edge into a node, for who moved there."""
        cdef Node* node = self.nodes + at
        cdef double sign = 1.0 if node.player == self.nodes[node.parent].player else -1.0
        return node.reward + self.gamma * sign * (node.total / node.visits)

    cdef void back(self, Py_ssize_t t, Py_ssize_t at, double value) noexcept nogil:
        """A return that ends at a node with this value, for who moves there."""
        cdef Node* node
        cdef double one, sign
        while True:
            node = self.nodes + at
            node.total += value
            node.visits += 1
            if node.parent < 0:
                return
            one = self.q(at)
            self.low[t], self.high[t] = min(self.low[t], one), max(self.high[t], one)
            sign = 1.0 if node.player == self.nodes[node.parent].player else -1.0
            value = node.reward + self.gamma * sign * value
            at = node.parent

    cdef Py_ssize_t best(self, Py_ssize_t t, Py_ssize_t at) noexcept nogil:
        """The action with the highest score, the first of these."""
        cdef const double* prior = self.priors + at * self.n_actions
        cdef const int32_t* children = self.children + at * self.n_actions
        cdef double seen = self.nodes[at].visits, score, best = 0.0, one, times
        cdef double factor
        cdef Py_ssize_t a, chosen = -1
        if self.uct:
            factor = log(seen)
        else:
            factor = (self.exploration + log((seen + self.base + 1.0) / self.base)) * sqrt(seen)
        for a in range(self.n_actions):
            if prior[a] < 0.0:
                continue
            one, times = 0.0, 0.0
            if children[a] >= 0:
                one, times = self.q(children[a]), self.nodes[children[a]].visits
                if self.normalize and self.high[t] > self.low[t]:
                    one = (one - self.low[t]) / (self.high[t] - self.low[t])
            elif self.uct:
                return a
            if self.uct:
                score = one + self.exploration * sqrt(factor / times)
            else:
                score = one + factor * prior[a] / (1.0 + times)
            if chosen < 0 or score > best:
                best, chosen = score, a
        return chosen

    def begin(self, const double[:, ::1] logits, const uint8_t[:, ::1] legal, const double[::1] value, const int64_t[::1] player,
              const double[:, ::1] noise, double share):
        """Throws all trees away, and plants their roots."""
        cdef Py_ssize_t t, a, at
        with nogil:
            for t in range(self.n):
                at = t * self.capacity
                self.size[t], self.low[t], self.high[t] = 1, INFINITY, -INFINITY
                self.put(at, -1, 0.0, False, player[t], &logits[t, 0], &legal[t, 0])
                if share > 0.0:
                    for a in range(self.n_actions):
                        if legal[t, a]:
                            self.priors[at * self.n_actions + a] = (
                                (1.0 - share) * self.priors[at * self.n_actions + a] + share * noise[t, a])
                self.back(t, at, value[t])

    def select(self, int64_t[:, ::1] found):
        """Writes tree, parent, action and new node of each leaf to `found` [4, n], and returns how many there are."""
        cdef Py_ssize_t t, m = 0, at, action, child
        with nogil:
            for t in range(self.n):
                at = t * self.capacity
                while True:
                    action = self.best(t, at)
                    child = self.children[at * self.n_actions + action]
                    if child < 0:
                        found[0, m], found[1, m], found[2, m] = t, at - t * self.capacity, action
                        found[3, m] = self.size[t]
                        m += 1
                        break
                    at = child
                    if self.nodes[at].done:
                        self.back(t, at, 0.0)
                        break
        return m

    def expand(self, const int64_t[:, ::1] found, const double[::1] reward, const uint8_t[::1] done, const int64_t[::1] player,
               const double[:, ::1] logits, const uint8_t[:, ::1] legal, const double[::1] value):
        """Adds the leaves that `select` found, and counts a return through each."""
        cdef Py_ssize_t i, t, at, parent
        with nogil:
            for i in range(reward.shape[0]):
                t = found[0, i]
                parent, at = t * self.capacity + found[1, i], t * self.capacity + found[3, i]
                self.put(at, parent, reward[i], done[i], player[i], &logits[i, 0], &legal[i, 0])
                self.children[parent * self.n_actions + found[2, i]] = <int32_t> at
                self.size[t] += 1
                self.back(t, at, 0.0 if done[i] else value[i])

    def result(self, int64_t[:, ::1] visits, double[:, ::1] q, double[::1] value):
        """Writes the visits and values of the roots' actions, and the roots' values."""
        cdef Py_ssize_t t, a, root
        cdef int32_t child
        with nogil:
            for t in range(self.n):
                root = t * self.capacity
                value[t] = self.nodes[root].total / self.nodes[root].visits
                for a in range(self.n_actions):
                    child = self.children[root * self.n_actions + a]
                    visits[t, a] = self.nodes[child].visits if child >= 0 else 0
                    q[t, a] = self.q(child) if child >= 0 else 0.0
