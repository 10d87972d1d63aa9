# cython: boundscheck=False, wraparound=False, cdivision=True
"""Kernel of tree.py, which checks shapes, types and ranges: all nodes of n trees in flat arrays. The loops run without the GIL.

Node i of environment e is number e · capacity + i, everywhere; −1 is no node. A rollout return through a node p ends at a node y below
p or at p itself, one for every such y:  g(p → y) = r_p + γ · g(c → y) through p's child c,  g(p → p) = r_p + γ · v_p.  So the count,
sum and maximum of all returns of p follow from those of its children,

    size  = 1 + Σ size_c          total = size · r_p + γ · (v_p + Σ total_c)          best = r_p + γ · max(v_p, max best_c)

and neither lists nor paths are kept: after a change of one node, its ancestors are computed anew, from the bottom up.
"""

from libc.math cimport fabs, isfinite, log, sqrt
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

import numpy as np

DEF REAL = 1  # what an action turns out to be; the numbers are those of the original
DEF REVISIT = 2
DEF ABSORBING = 3
DEF EXPAND = 4
DEF DROPPED = 5  # a reset of reset_mode 1, which drops the imaginary action

# Where the entries begin in the feature vector, −1 where the layout has none: first those of the root, then those of the current node
# (each ENTRIES), then the rest. tree.py fills the list from the names of the layout.
DEF ENTRIES = 8
DEF ACTION = 0
DEF R = 1
DEF D = 2
DEF V = 3
DEF LOGITS = 4
DEF MEAN = 5
DEF MAX = 6
DEF COUNT = 7
DEF TRAIL = 16
DEF ROLLOUT = 17
DEF BEST = 18
DEF RESET = 19
DEF TIME = 20
DEF DEPTH = 21
DEF SEQUENCE = 22


cdef inline double transform(double x, int kind) noexcept nogil:
    """kind 0: x itself; 1: sign(x)(√(|x|+1) − 1) + 0.001x; 2: sign(x) ln(|x|+1)."""
    cdef double y
    if kind == 0:
        return x
    y = sqrt(fabs(x) + 1.0) - 1.0 + 0.001 * fabs(x) if kind == 1 else log(fabs(x) + 1.0)
    return -y if x < 0.0 else y


cdef class Kernel:
    """n trees. Arguments are those of `tree.Tree`, which documents and checks them.

    Attributes:
        arrays: Name → NumPy array, all that changes: of nodes [n · capacity], of environments [n], free slots [n, capacity].
    """

    cdef readonly dict arrays
    cdef Py_ssize_t n, A, capacity, size_of
    cdef int64_t K, stage, L
    cdef double gamma
    cdef bint newer, carry, reset_mode, perfect, faithful, masked
    cdef int kind
    cdef Py_ssize_t seq_slots
    cdef int64_t[23] at
    cdef object keep  # arrays behind pointers that are not in `arrays`
    # nodes
    cdef int32_t* action
    cdef int32_t* parent
    cdef int32_t* children
    cdef int32_t* size
    cdef int32_t* visits
    cdef int64_t* t
    cdef uint8_t* done
    cdef double* r
    cdef double* v
    cdef double* total
    cdef double* best
    cdef float* logits
    # environments
    cdef int64_t* root
    cdef int64_t* cur
    cdef int64_t* cur_t
    cdef int64_t* depth
    cdef int64_t* deepest
    cdef int64_t* total_step
    cdef double* max_q
    cdef double* baseline
    cdef int32_t* free
    cdef int64_t* n_free
    # the plan: what the next update will do with each environment
    cdef uint8_t* status
    cdef uint8_t* resets
    cdef uint8_t* forced
    cdef int32_t* primary
    cdef int64_t* child
    cdef int64_t[::1] phase
    cdef int32_t* stack
    cdef uint8_t* hidden
    cdef double* power  # γ^depth

    def __cinit__(
        self, Py_ssize_t n, Py_ssize_t n_actions, int64_t K, int64_t stage, int64_t max_depth, double gamma, bint newer, bint carry,
        bint reset_mode, bint perfect, bint faithful, int kind, Py_ssize_t capacity, Py_ssize_t seq_slots, at, hidden, phase,
    ):
        self.n, self.A, self.K, self.stage, self.L, self.gamma = n, n_actions, K, stage, max_depth, gamma
        self.newer, self.carry, self.reset_mode, self.perfect, self.faithful = newer, carry, reset_mode, perfect, faithful
        self.kind, self.capacity, self.seq_slots, self.size_of, self.phase = kind, capacity, seq_slots, len(hidden), phase
        cdef int64_t[::1] starts = at
        cdef Py_ssize_t i
        for i in range(23):
            self.at[i] = starts[i]
        self.masked = bool(np.any(hidden))
        self.arrays, self.keep = {}, []
        cdef Py_ssize_t nodes = n * capacity
        self.action = <int32_t*> self.memory("action", np.zeros(nodes, np.int32))
        self.parent = <int32_t*> self.memory("parent", np.full(nodes, -1, np.int32))
        self.children = <int32_t*> self.memory("children", np.full((nodes, n_actions), -1, np.int32))
        self.size = <int32_t*> self.memory("size", np.zeros(nodes, np.int32))
        self.visits = <int32_t*> self.memory("visits", np.zeros(nodes, np.int32))
        self.t = <int64_t*> self.memory("t", np.zeros(nodes, np.int64))
        self.done = <uint8_t*> self.memory("done", np.zeros(nodes, np.uint8))
        self.r = <double*> self.memory("r", np.zeros(nodes))
        self.v = <double*> self.memory("v", np.zeros(nodes))
        self.total = <double*> self.memory("total", np.zeros(nodes))
        self.best = <double*> self.memory("best", np.zeros(nodes))
        self.logits = <float*> self.memory("logits", np.zeros((nodes, n_actions), np.float32))
        self.root = <int64_t*> self.memory("root", np.zeros(n, np.int64))
        self.cur = <int64_t*> self.memory("cur", np.zeros(n, np.int64))
        self.cur_t = <int64_t*> self.memory("cur_t", np.zeros(n, np.int64))
        self.depth = <int64_t*> self.memory("depth", np.zeros(n, np.int64))
        self.deepest = <int64_t*> self.memory("deepest", np.zeros(n, np.int64))
        self.total_step = <int64_t*> self.memory("total_step", np.zeros(n, np.int64))
        self.max_q = <double*> self.memory("max_q", np.zeros(n))
        self.baseline = <double*> self.memory("baseline", np.zeros(n))
        self.free = <int32_t*> self.memory("free", np.zeros((n, capacity), np.int32))
        self.n_free = <int64_t*> self.memory("n_free", np.zeros(n, np.int64))
        self.status = <uint8_t*> self.memory(None, np.zeros(n, np.uint8))
        self.resets = <uint8_t*> self.memory(None, np.zeros(n, np.uint8))
        self.forced = <uint8_t*> self.memory(None, np.zeros(n, np.uint8))
        self.primary = <int32_t*> self.memory(None, np.zeros(n, np.int32))
        self.child = <int64_t*> self.memory(None, np.zeros(n, np.int64))
        self.stack = <int32_t*> self.memory(None, np.zeros(capacity, np.int32))
        self.hidden = <uint8_t*> self.memory(None, np.array(hidden, np.uint8))
        self.power = <double*> self.memory(None, gamma ** np.arange(stage + 1.0))

    cdef void* memory(self, name, array):
        """The address of an array that lives as long as this object."""
        cdef uint8_t[::1] view = array.reshape(-1).view(np.uint8)
        if name is None:
            self.keep.append(array)
        else:
            self.arrays[name] = array
        return &view[0]

    # ---- one node

    cdef inline void refresh(self, Py_ssize_t node) noexcept nogil:
        """size, total and best of a node from its children's."""
        cdef double total = self.v[node], best = self.v[node]
        cdef int32_t size = 1
        cdef Py_ssize_t a
        cdef int32_t c
        cdef int32_t* children = self.children + node * self.A
        for a in range(self.A):
            c = children[a]
            if c >= 0:
                size += self.size[c]
                total += self.total[c]
                if self.best[c] > best:
                    best = self.best[c]
        self.size[node] = size
        self.total[node] = size * self.r[node] + self.gamma * total
        self.best[node] = self.r[node] + self.gamma * best

    cdef inline double best_from_here(self, Py_ssize_t node) noexcept nogil:
        """The best rollout return without the node's own reward: (best − r) / γ, without the division."""
        cdef double best = self.v[node]
        cdef Py_ssize_t a
        cdef int32_t c
        for a in range(self.A):
            c = self.children[node * self.A + a]
            if c >= 0 and self.best[c] > best:
                best = self.best[c]
        return best

    cdef inline double mean_from_here(self, Py_ssize_t node) noexcept nogil:
        """The mean rollout return without the node's own reward: (total / size − r) / γ."""
        cdef double total = self.v[node]
        cdef Py_ssize_t a
        cdef int32_t c
        for a in range(self.A):
            c = self.children[node * self.A + a]
            if c >= 0:
                total += self.total[c]
        return total / self.size[node]

    cdef inline void fresh(self, Py_ssize_t node, Py_ssize_t parent, int32_t action) noexcept nogil:
        cdef Py_ssize_t a
        for a in range(self.A):
            self.children[node * self.A + a] = -1
        self.parent[node], self.action[node], self.visits[node] = <int32_t> parent, action, 0

    cdef inline void put(self, Py_ssize_t e, Py_ssize_t node, double r, double v, bint done, const float* logits) noexcept nogil:
        """What the model says about a node, new or old. Its and its ancestors' returns follow: this is the correction of a stale node."""
        cdef Py_ssize_t up = node
        self.r[node], self.v[node], self.done[node], self.t[node] = r, v, done, self.total_step[e]
        memcpy(self.logits + node * self.A, logits, self.A * sizeof(float))
        while up >= 0:
            self.refresh(up)
            up = self.parent[up]

    cdef void release(self, Py_ssize_t e, Py_ssize_t kept, bint subtree) noexcept nogil:
        """Gives the slots of the whole tree back, except that of `kept`, or except those of all that hangs from it."""
        cdef Py_ssize_t node, a, base = e * self.capacity
        cdef int32_t c
        cdef int top = 1
        self.stack[0] = <int32_t> self.root[e]
        while top:
            top -= 1
            node = self.stack[top]
            if node == kept and subtree:
                continue
            for a in range(self.A):
                c = self.children[node * self.A + a]
                if c >= 0:
                    self.stack[top] = c
                    top += 1
            if node != kept:
                self.free[base + self.n_free[e]] = <int32_t> node
                self.n_free[e] += 1

    # ---- features

    cdef inline void block(self, Py_ssize_t node, const int64_t* at, float* out) noexcept nogil:
        cdef Py_ssize_t a
        cdef int32_t c
        out[at[ACTION] + self.action[node]] = 1.0
        out[at[R]] = <float> transform(self.r[node], self.kind)
        out[at[V]] = <float> transform(self.v[node], self.kind)
        if at[D] >= 0:
            out[at[D]] = self.done[node]
        memcpy(out + at[LOGITS], self.logits + node * self.A, self.A * sizeof(float))
        for a in range(self.A):
            c = self.children[node * self.A + a]
            if c >= 0:
                out[at[MEAN] + a] = <float> transform(self.total[c] / self.size[c], self.kind)
                out[at[MAX] + a] = <float> transform(self.best[c], self.kind)
                out[at[COUNT] + a] = <float> ((self.visits[c] if self.newer else self.size[c]) / <double> self.stage)

    cdef void features(self, Py_ssize_t e, Py_ssize_t shown, bint reset, float* out) noexcept nogil:
        cdef Py_ssize_t root = self.root[e], y = shown, slot = self.depth[e], i
        cdef double trail = 0.0, rollout = self.v[shown]
        memset(out, 0, self.size_of * sizeof(float))
        self.block(root, &self.at[0], out)
        self.block(shown, &self.at[ENTRIES], out)
        if self.seq_slots:
            out[self.at[SEQUENCE] + self.action[root]] = 1.0
        while y != root:  # Σ γ^(m−1) r_m along the path, from its end to its beginning
            trail = self.r[y] + self.gamma * trail
            rollout = self.r[y] + self.gamma * rollout
            if self.seq_slots:
                out[self.at[SEQUENCE] + slot * self.A + self.action[y]] = 1.0
            y = self.parent[y]
            slot -= 1
        out[self.at[TRAIL]] = <float> transform(trail, self.kind)
        out[self.at[ROLLOUT]] = <float> transform(rollout, self.kind)
        out[self.at[BEST]] = <float> transform(self.best_from_here(root), self.kind)
        out[self.at[RESET]] = reset
        if self.cur_t[e] < self.K:
            out[self.at[TIME] + self.cur_t[e]] = 1.0
        out[self.at[DEPTH]] = <float> self.power[self.depth[e]]
        if self.masked:
            for i in range(self.size_of):
                if self.hidden[i]:
                    out[i] = 0.0

    # ---- all environments

    def begin(self, const float[::1] v, const float[:, ::1] logits, float[:, ::1] features, int64_t[:, ::1] ints,
              float[:, ::1] floats, uint8_t[:, ::1] flags):
        """Throws all trees away and plants new ones, whose roots are the first slots."""
        cdef Py_ssize_t e, i, node
        with nogil:
            for e in range(self.n):
                node = e * self.capacity
                self.root[e] = self.cur[e] = node
                self.cur_t[e], self.depth[e], self.deepest[e], self.total_step[e], self.baseline[e] = self.phase[e], 0, 0, 0, 0.0
                self.n_free[e] = self.capacity - 1
                for i in range(self.capacity - 1):  # the lowest slot lies on top
                    self.free[node + i] = <int32_t> (node + self.capacity - 1 - i)
                self.fresh(node, -1, 0)
                self.put(e, node, 0.0, v[e], False, &logits[e, 0])
                self.max_q[e] = 0.0 if self.faithful else self.v[node]
                self.resets[e] = self.forced[e] = 0
                self.show(e, node, True, 0.0, 0, features, ints, floats, flags)

    def select(self, const int64_t[::1] primary, const int64_t[::1] reset, uint8_t[::1] real, int64_t[:, ::1] rows):
        """Writes the plan; nothing of the tree changes. `rows` [5, n]: environment, parent, child, action of expansions; slots of roots.

        Returns (expansions, real steps), or (−1 − e, 0) if the action of environment e is out of range, (−1 − e, 1) if its reset is,
        (−1 − e, 2) if it has no slot left.
        """
        cdef Py_ssize_t e, m = 0, k = 0
        cdef int64_t a, cur, child
        cdef bint chosen, ends
        with nogil:
            for e in range(self.n):
                if primary[e] < 0 or primary[e] >= self.A:
                    m, k = -1 - e, 0
                    break
                if reset[e] < 0 or reset[e] > 1:
                    m, k = -1 - e, 1
                    break
            if m == 0:
                for e in range(self.n):
                    a, cur, chosen = primary[e], self.cur[e], reset[e] != 0
                    self.primary[e] = <int32_t> a
                    real[e] = self.cur_t[e] >= self.stage - 1
                    if real[e]:
                        # A new root takes the slot of the child that it would have been, else that of the old root: either is free
                        # then, so the slot does not depend on whether the episode ends.
                        child = self.children[self.root[e] * self.A + a] if self.carry else -1
                        self.status[e], self.resets[e], self.forced[e] = REAL, 0, 0
                        self.child[e] = child if child >= 0 else self.root[e]
                        rows[4, k] = self.child[e]
                        k += 1
                        continue
                    ends = chosen or (self.L > 0 and self.depth[e] + 1 >= self.L)
                    if self.reset_mode and self.cur_t[e] + 1 == self.stage - 1:
                        ends = True
                    self.resets[e], self.forced[e] = ends, ends and not chosen
                    if ends and self.reset_mode:
                        self.status[e], self.child[e] = DROPPED, self.root[e]
                        continue
                    child = self.children[cur * self.A + a]
                    if child >= 0 and (self.perfect or self.t[child] >= self.total_step[e]):
                        self.status[e], self.child[e] = REVISIT, child
                        continue
                    if child < 0:
                        if self.n_free[e] == 0:
                            m, k = -1 - e, 2
                            break
                        child = self.free[e * self.capacity + self.n_free[e] - 1]
                    self.child[e] = child
                    if self.done[cur]:
                        self.status[e] = ABSORBING
                        continue
                    self.status[e] = EXPAND
                    rows[0, m], rows[1, m], rows[2, m], rows[3, m] = e, cur, self.child[e], a
                    m += 1
        return m, k

    def update(self, const float[::1] r, const float[::1] v, const uint8_t[::1] done, const float[:, ::1] logits,
               const float[::1] reward, const uint8_t[::1] real_done, const float[::1] real_v, const float[:, ::1] real_logits,
               float[:, ::1] features, int64_t[:, ::1] ints, float[:, ::1] floats, uint8_t[:, ::1] flags):
        """Carries the plan out. Returns −1, or which of the four columns r, v, reward, real_v holds a number that is not finite (then
        nothing has changed)."""
        cdef Py_ssize_t e, i, m = 0, k = 0, cur, child, shown
        cdef int64_t deepest
        cdef double best, im_reward
        cdef int bad = -1
        with nogil:
            for i in range(r.shape[0]):
                if not isfinite(r[i]):
                    bad = 0
                elif not isfinite(v[i]) and not done[i]:
                    bad = 1
            for i in range(reward.shape[0]):
                if not isfinite(reward[i]):
                    bad = 2
                elif not isfinite(real_v[i]):
                    bad = 3
            for e in range(self.n if bad < 0 else 0):
                deepest, child = self.deepest[e], self.child[e]
                if self.status[e] == REAL:
                    self.real_step(e, child, reward[k], real_done[k] != 0, real_v[k], &real_logits[k, 0])
                    k += 1
                    self.show(e, self.root[e], True, 0.0, deepest, features, ints, floats, flags)
                    continue
                self.cur_t[e] += 1
                self.depth[e] += 1
                if self.depth[e] > deepest:
                    self.deepest[e] = self.depth[e]
                if self.status[e] == DROPPED:
                    self.depth[e] = 0
                elif self.status[e] != REVISIT:
                    cur = self.cur[e]
                    if self.children[cur * self.A + self.primary[e]] < 0:
                        self.n_free[e] -= 1
                        self.fresh(child, cur, self.primary[e])
                        self.children[cur * self.A + self.primary[e]] = <int32_t> child
                    if self.status[e] == EXPAND:
                        self.put(e, child, r[m], 0.0 if done[m] else v[m], done[m] != 0, &logits[m, 0])
                        m += 1
                    else:
                        self.put(e, child, 0.0, 0.0, True, self.logits + cur * self.A)
                self.visits[child] += 1
                best = self.best_from_here(self.root[e])
                im_reward = best - self.max_q[e]
                self.max_q[e] = best
                if im_reward < 0.0 and (self.newer or not self.perfect):
                    im_reward = 0.0
                if self.resets[e] and self.newer and self.faithful:
                    im_reward = 0.0
                self.show(e, child, self.resets[e], im_reward, deepest, features, ints, floats, flags)
                self.cur[e] = child
                if self.resets[e]:
                    self.cur[e], self.depth[e] = self.root[e], 0
        return bad

    cdef void real_step(self, Py_ssize_t e, Py_ssize_t node, double reward, bint over, double v, const float* logits) noexcept nogil:
        cdef bint kept = self.carry and not over and node != self.root[e]
        self.baseline[e] = self.mean_from_here(self.root[e])
        self.cur_t[e] = self.depth[e] = self.deepest[e] = 0
        self.total_step[e] += 1
        self.release(e, node, kept)
        self.root[e] = self.cur[e] = node
        if kept:
            self.parent[node] = -1
        else:
            self.fresh(node, -1, 0 if over else self.primary[e])
        self.put(e, node, reward if self.newer and (self.faithful or not over) else 0.0, v, False, logits)
        self.max_q[e] = self.best_from_here(node)

    cdef void show(self, Py_ssize_t e, Py_ssize_t shown, bint reset, double im_reward, int64_t deepest, float[:, ::1] features,
                   int64_t[:, ::1] ints, float[:, ::1] floats, uint8_t[:, ::1] flags) noexcept nogil:
        """Writes one environment's part of the state: the node that was reached, before a reset takes the pointer back."""
        cdef bint last = self.cur_t[e] >= self.stage - 1
        cdef bint real = reset and not self.resets[e]  # after a real step, or at the beginning
        self.features(e, shown, reset, &features[e, 0])
        if real:
            ints[0, e] = 3 if last and not (self.faithful and self.stage == 1) else 0
        else:
            ints[0, e] = 2 if last else 1
        ints[1, e], ints[2, e], ints[3, e] = deepest, self.root[e], shown
        floats[0, e], floats[1, e] = <float> im_reward, <float> self.baseline[e]
        flags[0, e], flags[1, e], flags[2, e] = self.done[shown], self.resets[e], self.forced[e]
