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

cdef enum:  # what an action turns out to be; the numbers are those of the original
    REAL = 1, REVISIT, ABSORBING, EXPAND
    DROPPED  # a reset of reset_mode 1, which drops the imaginary action

cdef enum:  # numbers of the entries in `Layout.starts`: of the root (those of the current node begin at CURRENT), then the rest
    ACTION, R, D, V, LOGITS, MEAN, MAX, COUNT, TRAIL, ROLLOUT, BEST
    CURRENT
    RESET = 19, TIME, DEPTH, SEQUENCE

# Fields in an order that needs no padding: NumPy reads these structs.
cdef struct Node:
    double r, v
    double total_ahead, best_ahead  # of the rollout returns without the node's own reward: v_p + Σ total_c, max(v_p, max best_c)
    double total, best
    int64_t t  # total_step when it was last expanded
    int64_t done
    int32_t action, parent  # of the edge into it
    int32_t size, visits  # returns through it; traversals of the edge into it

cdef struct Env:
    int64_t root, cur, cur_t, depth, deepest, total_step, n_free
    double max_q, baseline

cdef struct Planned:  # what the next update will do with an environment
    int64_t child
    int32_t primary
    uint8_t status, resets, forced


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
    cdef list keep  # arrays behind the pointers
    cdef Py_ssize_t n, A, capacity, size_of
    cdef int64_t K, stage, L
    cdef double gamma
    cdef bint newer, carry, reset_mode, perfect, faithful, masked, sequence
    cdef int kind
    cdef int64_t[23] at
    cdef Node* nodes
    cdef int32_t* children
    cdef float* logits
    cdef Env* envs
    cdef Planned* plans
    cdef int32_t* free
    cdef int64_t[::1] phase
    cdef int32_t* stack
    cdef uint8_t* hidden
    cdef double* power  # γ^depth

    def __cinit__(
        self, Py_ssize_t n, layout, int64_t stage, int64_t max_depth, double gamma, bint carry, bint reset_mode, bint perfect,
        bint faithful, Py_ssize_t capacity, hidden, phase,
    ):
        cdef Py_ssize_t i, count = n * capacity
        self.n, self.A, self.K, self.stage, self.L, self.gamma = n, layout.n_actions, layout.K, stage, max_depth, gamma
        self.newer, self.kind = layout.generation == "G2", 1 + layout.enc_f_type if layout.enc_type else 0
        self.carry, self.reset_mode, self.perfect, self.faithful = carry, reset_mode, perfect, faithful
        self.capacity, self.size_of, self.sequence, self.phase = capacity, layout.size, layout.seq_slots > 0, phase
        for i in range(23):
            self.at[i] = layout.starts[i]
        self.masked, self.keep = bool(np.any(hidden)), []
        children, logits = np.zeros((count, self.A), np.int32), np.zeros((count, self.A), np.float32)
        free = np.zeros((n, capacity), np.int32)
        self.nodes = <Node*> self.memory(np.zeros(count * sizeof(Node), np.uint8))
        self.envs = <Env*> self.memory(np.zeros(n * sizeof(Env), np.uint8))
        self.plans = <Planned*> self.memory(np.zeros(n * sizeof(Planned), np.uint8))
        self.children, self.free = <int32_t*> self.memory(children), <int32_t*> self.memory(free)
        self.logits = <float*> self.memory(logits)
        self.stack = <int32_t*> self.memory(np.zeros(capacity, np.int32))
        self.hidden = <uint8_t*> self.memory(hidden)
        self.power = <double*> self.memory(gamma ** np.arange(stage + 1.0))
        self.arrays = {"children": children, "logits": logits, "free": free}
        for fields in (np.asarray(<Node[:count]> self.nodes), np.asarray(<Env[:n]> self.envs)):
            self.arrays.update((name, fields[name]) for name in fields.dtype.names)

    cdef void* memory(self, array):
        """The address of an array that lives as long as this object."""
        cdef uint8_t[::1] view = array.reshape(-1).view(np.uint8)
        self.keep.append(array)
        return &view[0]

    # ---- one node

    cdef inline void put(self, Py_ssize_t e, Py_ssize_t at, double r, double v, bint done, const float* logits) noexcept nogil:
        """What the model says about a node, new or old. Its and its ancestors' returns follow: this is the correction of a stale node."""
        cdef Node* node = self.nodes + at
        cdef Node* child
        cdef Py_ssize_t a
        cdef int32_t* children
        node.r, node.v, node.done, node.t = r, v, done, self.envs[e].total_step
        memcpy(self.logits + at * self.A, logits, self.A * sizeof(float))
        while at >= 0:
            node, children = self.nodes + at, self.children + at * self.A
            node.size, node.total_ahead, node.best_ahead = 1, node.v, node.v
            for a in range(self.A):
                if children[a] >= 0:
                    child = self.nodes + children[a]
                    node.size += child.size
                    node.total_ahead += child.total
                    node.best_ahead = max(node.best_ahead, child.best)
            node.total = node.size * node.r + self.gamma * node.total_ahead
            node.best = node.r + self.gamma * node.best_ahead
            at = node.parent

    cdef inline void fresh(self, Py_ssize_t node, Py_ssize_t parent, int32_t action) noexcept nogil:
        memset(self.children + node * self.A, 0xff, self.A * sizeof(int32_t))  # −1
        self.nodes[node].parent, self.nodes[node].action, self.nodes[node].visits = <int32_t> parent, action, 0

    cdef void release(self, Py_ssize_t e, Py_ssize_t kept, bint subtree) noexcept nogil:
        """Gives the slots of the whole tree back, except that of `kept`, or except those of all that hangs from it."""
        cdef Py_ssize_t node, a
        cdef int32_t c
        cdef int top = 1
        self.stack[0] = <int32_t> self.envs[e].root
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
                self.free[e * self.capacity + self.envs[e].n_free] = <int32_t> node
                self.envs[e].n_free += 1

    # ---- features

    cdef inline void block(self, Py_ssize_t i, const int64_t* at, float* out) noexcept nogil:
        cdef Node* node = self.nodes + i
        cdef Node* child
        cdef Py_ssize_t a
        out[at[ACTION] + node.action] = 1.0
        out[at[R]] = <float> transform(node.r, self.kind)
        out[at[V]] = <float> transform(node.v, self.kind)
        if at[D] >= 0:
            out[at[D]] = node.done
        memcpy(out + at[LOGITS], self.logits + i * self.A, self.A * sizeof(float))
        for a in range(self.A):
            if self.children[i * self.A + a] >= 0:
                child = self.nodes + self.children[i * self.A + a]
                out[at[MEAN] + a] = <float> transform(child.total / child.size, self.kind)
                out[at[MAX] + a] = <float> transform(child.best, self.kind)
                out[at[COUNT] + a] = <float> ((child.visits if self.newer else child.size) / <double> self.stage)

    cdef void features(self, Env* env, Py_ssize_t shown, bint reset, float* out) noexcept nogil:
        cdef Py_ssize_t y = shown, slot = env.depth, i
        cdef double trail = 0.0, rollout = self.nodes[shown].v
        memset(out, 0, self.size_of * sizeof(float))
        self.block(env.root, &self.at[0], out)
        self.block(shown, &self.at[CURRENT], out)
        if self.sequence:
            out[self.at[SEQUENCE] + self.nodes[env.root].action] = 1.0
        while y != env.root:  # Σ γ^(m−1) r_m along the path, from its end to its beginning
            trail = self.nodes[y].r + self.gamma * trail
            rollout = self.nodes[y].r + self.gamma * rollout
            if self.sequence:
                out[self.at[SEQUENCE] + slot * self.A + self.nodes[y].action] = 1.0
            y = self.nodes[y].parent
            slot -= 1
        out[self.at[TRAIL]] = <float> transform(trail, self.kind)
        out[self.at[ROLLOUT]] = <float> transform(rollout, self.kind)
        out[self.at[BEST]] = <float> transform(self.nodes[env.root].best_ahead, self.kind)
        out[self.at[RESET]] = reset
        if env.cur_t < self.K:
            out[self.at[TIME] + env.cur_t] = 1.0
        out[self.at[DEPTH]] = <float> self.power[env.depth]
        if self.masked:
            for i in range(self.size_of):
                if self.hidden[i]:
                    out[i] = 0.0

    # ---- all environments

    def begin(self, const float[::1] v, const float[:, ::1] logits, float[:, ::1] features, int64_t[:, ::1] ints,
              float[:, ::1] floats, uint8_t[:, ::1] flags):
        """Throws all trees away and plants new ones, whose roots are the first slots."""
        cdef Py_ssize_t e, i, node
        cdef Env* env
        with nogil:
            for e in range(self.n):
                node, env = e * self.capacity, self.envs + e
                env.root = env.cur = node
                env.cur_t, env.depth, env.deepest, env.total_step, env.baseline = self.phase[e], 0, 0, 0, 0.0
                env.n_free = self.capacity - 1
                for i in range(self.capacity - 1):  # the lowest slot lies on top
                    self.free[node + i] = <int32_t> (node + self.capacity - 1 - i)
                self.fresh(node, -1, 0)
                self.put(e, node, 0.0, v[e], False, &logits[e, 0])
                env.max_q = 0.0 if self.faithful else v[e]
                self.plans[e].resets = self.plans[e].forced = 0
                self.show(e, node, True, 0.0, 0, features, ints, floats, flags)

    def select(self, const int64_t[::1] primary, const int64_t[::1] reset, uint8_t[::1] real, int64_t[:, ::1] rows):
        """Writes the plan; nothing of the tree changes. `rows` [5, n]: environment, parent, child, action of expansions; slots of roots.

        Returns (expansions, real steps), or (−1 − e, 0) if the action of environment e is out of range, (−1 − e, 1) if its reset is.
        """
        cdef Py_ssize_t e, m = 0, k = 0
        cdef int64_t a, child
        cdef bint ends
        cdef Env* env
        cdef Planned* plan
        with nogil:
            for e in range(self.n):
                if not 0 <= primary[e] < self.A or not 0 <= reset[e] <= 1:
                    m, k = -1 - e, 0 <= primary[e] < self.A
                    break
            for e in range(self.n if m == 0 else 0):
                a, env, plan = primary[e], self.envs + e, self.plans + e
                plan.primary, plan.resets, plan.forced = <int32_t> a, 0, 0
                real[e] = env.cur_t >= self.stage - 1
                if real[e]:
                    # A new root takes the slot of the child that it would have been, else that of the old root: either is free
                    # then, so the slot does not depend on whether the episode ends.
                    child = self.children[env.root * self.A + a] if self.carry else -1
                    plan.status, plan.child = REAL, child if child >= 0 else env.root
                    rows[4, k] = plan.child
                    k += 1
                    continue
                ends = (reset[e] or (self.L > 0 and env.depth + 1 >= self.L)
                        or (self.reset_mode and env.cur_t + 1 == self.stage - 1))
                plan.resets, plan.forced = ends, ends and not reset[e]
                if ends and self.reset_mode:
                    plan.status, plan.child = DROPPED, env.root
                    continue
                child = self.children[env.cur * self.A + a]
                plan.child = child if child >= 0 else self.free[e * self.capacity + env.n_free - 1]
                if child >= 0 and (self.perfect or self.nodes[child].t >= env.total_step):
                    plan.status = REVISIT
                elif self.nodes[env.cur].done:
                    plan.status = ABSORBING
                else:
                    plan.status = EXPAND
                    rows[0, m], rows[1, m], rows[2, m], rows[3, m] = e, env.cur, plan.child, a
                    m += 1
        return m, k

    def update(self, const float[::1] r, const float[::1] v, const uint8_t[::1] done, const float[:, ::1] logits,
               const float[::1] reward, const uint8_t[::1] real_done, const float[::1] real_v, const float[:, ::1] real_logits,
               float[:, ::1] features, int64_t[:, ::1] ints, float[:, ::1] floats, uint8_t[:, ::1] flags):
        """Carries the plan out. Returns −1, or which of the four columns r, v, reward, real_v holds a number that is not finite (then
        nothing has changed)."""
        cdef Py_ssize_t e, i, m = 0, k = 0
        cdef int64_t deepest, edge
        cdef double im_reward
        cdef int bad = -1
        cdef Env* env
        cdef Planned* plan
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
                env, plan = self.envs + e, self.plans + e
                deepest = env.deepest
                if plan.status == REAL:
                    self.real_step(e, reward[k], real_done[k] != 0, real_v[k], &real_logits[k, 0])
                    k += 1
                    self.show(e, env.root, True, 0.0, deepest, features, ints, floats, flags)
                    continue
                env.cur_t += 1
                env.depth += 1
                env.deepest = max(env.deepest, env.depth)
                if plan.status == DROPPED:
                    env.depth = 0
                elif plan.status != REVISIT:
                    edge = env.cur * self.A + plan.primary
                    if self.children[edge] < 0:
                        env.n_free -= 1
                        self.fresh(plan.child, env.cur, plan.primary)
                        self.children[edge] = <int32_t> plan.child
                    if plan.status == EXPAND:
                        self.put(e, plan.child, r[m], 0.0 if done[m] else v[m], done[m] != 0, &logits[m, 0])
                        m += 1
                    else:
                        self.put(e, plan.child, 0.0, 0.0, True, self.logits + env.cur * self.A)
                self.nodes[plan.child].visits += 1
                im_reward = self.nodes[env.root].best_ahead - env.max_q
                env.max_q = self.nodes[env.root].best_ahead
                if im_reward < 0.0 and (self.newer or not self.perfect):
                    im_reward = 0.0
                if plan.resets and self.newer and self.faithful:
                    im_reward = 0.0
                self.show(e, plan.child, plan.resets, im_reward, deepest, features, ints, floats, flags)
                env.cur = plan.child
                if plan.resets:
                    env.cur, env.depth = env.root, 0
        return bad

    cdef void real_step(self, Py_ssize_t e, double reward, bint over, double v, const float* logits) noexcept nogil:
        cdef Env* env = self.envs + e
        cdef Py_ssize_t node = self.plans[e].child
        cdef bint kept = self.carry and not over and node != env.root
        env.baseline = self.nodes[env.root].total_ahead / self.nodes[env.root].size
        env.cur_t = env.depth = env.deepest = 0
        env.total_step += 1
        self.release(e, node, kept)
        env.root = env.cur = node
        if kept:
            self.nodes[node].parent = -1
        else:
            self.fresh(node, -1, 0 if over else self.plans[e].primary)
        self.put(e, node, reward if self.newer and (self.faithful or not over) else 0.0, v, False, logits)
        env.max_q = self.nodes[node].best_ahead

    cdef void show(self, Py_ssize_t e, Py_ssize_t shown, bint reset, double im_reward, int64_t deepest, float[:, ::1] features,
                   int64_t[:, ::1] ints, float[:, ::1] floats, uint8_t[:, ::1] flags) noexcept nogil:
        """Writes one environment's part of the state: the node that was reached, before a reset takes the pointer back."""
        cdef Env* env = self.envs + e
        cdef Planned* plan = self.plans + e
        cdef bint last = env.cur_t >= self.stage - 1
        self.features(env, shown, reset, &features[e, 0])
        if reset and not plan.resets:  # after a real step, or at the beginning
            ints[0, e] = 3 if last and not (self.faithful and self.stage == 1) else 0
        else:
            ints[0, e] = 2 if last else 1
        ints[1, e], ints[2, e], ints[3, e] = deepest, env.root, shown
        floats[0, e], floats[1, e] = <float> im_reward, <float> env.baseline
        flags[0, e], flags[1, e], flags[2, e] = self.nodes[shown].done != 0, plan.resets, plan.forced
