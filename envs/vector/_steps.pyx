# distutils: extra_compile_args = -ffp-contract=off -fno-builtin -fno-tree-slp-vectorize
# distutils: define_macros = NPY_NO_DEPRECATED_API=NPY_1_7_API_VERSION
# distutils: depends = envs/vector/physics.h
# cython: boundscheck=False, wraparound=False, cdivision=True
"""Kernel of compiled.py: one step of n environments of gymnasium's classic control and toy text in one call; physics.h has the
physics.

Every number is gymnasium's to the last bit: the same operations in the same order and precision. Sine and cosine are NumPy's own
loops where gymnasium calls NumPy, and the C library's where it calls `math`. A power is the C library's `pow`, which is not always
the product; hence no builtins. Products and sums are not fused. GCC 12 loses a rounding to float32 and back where it makes vectors
of neighbouring assignments; hence none of these. Random numbers come from each environment's own generator.
`tests/envs/steps_twin.py` says the same in NumPy.
"""

from cpython.dict cimport PyDict_Next
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from numpy cimport (
    NPY_ARRAY_C_CONTIGUOUS, NPY_BOOL, NPY_DOUBLE, NPY_FLOAT, NPY_INT64, NPY_OBJECT, PyArray_CHKFLAGS, PyArray_DATA, PyArray_DIM,
    PyArray_EMPTY, PyArray_ISCARRAY_RO, PyArray_NDIM, PyArray_TYPE, import_array, import_ufunc, ndarray, npy_intp, ufunc,
)

import numpy as np

cdef extern from "physics.h" nogil:
    enum: CONSTANTS
    enum: KINDS
    ctypedef struct bitgen_t:
        void* state
        double (*next_double)(void*) noexcept nogil
    ctypedef void (*LoopCall)(char**, npy_intp*, npy_intp*, void*) noexcept nogil
    ctypedef struct Loop:
        LoopCall call
        void* data
    Loop COS64, SIN64, COS32, SIN32
    ctypedef struct Physics:
        void (*begin)(double*, bitgen_t*, float*) noexcept nogil
        bint (*move)(double*, const double*, const void*, bint, float*, double*) noexcept nogil
        int actions
    const Physics PHYSICS[]
    int64_t first_above(const double*, int64_t, double) noexcept
    ctypedef struct TypeObject "PyTypeObject":
        unsigned int tp_version_tag

cdef extern from "numpy/ufuncobject.h":
    ctypedef struct UFunc "PyUFuncObject":  # NumPy's own declaration for Cython lacks what it has from version 2.5 on
        int ntypes
        void** functions
        const void** data
        const char* types

import_array()
import_ufunc()

COLUMNS = CONSTANTS

cdef enum:
    WATCHED = 8

cpdef enum Kind:  # physics.h has the same order
    CARTPOLE, PENDULUM, MOUNTAIN_CAR, MOUNTAIN_CAR_CONTINUOUS, ACROBOT, TABLE

cpdef enum Mode:
    DISABLED, NEXT_STEP, SAME_STEP

cpdef enum End:
    RUNS, CUT, ENDED


cdef int find_loop(ufunc function, char letter, Loop* loop) except -1:
    """The inner loop of a function of one number, for numbers of a type on both sides."""
    cdef UFunc* made = <UFunc*>function
    cdef int i
    for i in range(made.ntypes):
        if made.types[2 * i] == letter and made.types[2 * i + 1] == letter:
            loop.call = <LoopCall><void*>made.functions[i]
            loop.data = <void*>made.data[i] if made.data != NULL else NULL  # there is no array where no loop needs data
            return 0
    raise ImportError(f"{function} of NumPy has no loop for numbers of type {letter}")

find_loop(np.cos, NPY_DOUBLE, &COS64)
find_loop(np.sin, NPY_DOUBLE, &SIN64)
find_loop(np.cos, NPY_FLOAT, &COS32)
find_loop(np.sin, NPY_FLOAT, &SIN32)


cdef class Table:
    """A Markov decision process: what each action may lead to in each state, as flat arrays.

    Attributes:
        states, actions: How many there are.
        first: [states · actions + 1] int64, where the outcomes of a pair begin. start: [states] float64, sums of the distribution.
        sums, chance, reward: [outcomes] float64; sums are of one pair each. to: [outcomes] int64. ends: [outcomes] uint8.
        masks: [states, actions] int8, shown as `action_mask`; or None.
        whole: A reset shows `prob` as an integer.
    """

    cdef readonly int64_t states, actions
    cdef readonly ndarray first, start, sums, chance, reward, to, ends
    cdef readonly object masks
    cdef readonly bint whole

    def __init__(self, ndarray first, ndarray start, ndarray sums, ndarray chance, ndarray reward, ndarray to, ndarray ends,
                 object masks, bint whole=False):
        self.states, self.actions = len(start), (len(first) - 1) // len(start)
        self.first, self.start, self.sums, self.chance, self.reward = first, start, sums, chance, reward
        self.to, self.ends, self.masks, self.whole = to, ends, masks, whole


# ------------------------------------------------------------------------------------------------------------- the batch

cdef struct Out:  # what a step returns, n rows each; the last two of tables only
    char* obs
    double* rew
    uint8_t* terminated
    uint8_t* truncated
    double* chance
    double* last_chance


cdef class Watch:
    """Knows whether classes have been changed."""

    cdef tuple classes
    cdef unsigned int[WATCHED] tags  # of the classes

    def __cinit__(self):
        self.classes = ()

    def watch(self, tuple classes):
        """No step is made any more once one of these classes, or a base of one, is changed. Python numbers the versions of a class
        for its own caches of attributes. False: one of them has no number, or they are too many."""
        cdef Py_ssize_t j
        if len(classes) > WATCHED:
            return False
        self.classes = classes
        for j in range(len(classes)):
            getattr(classes[j], "step", None)  # a class gets its number when an attribute is looked up
            self.tags[j] = (<TypeObject*>classes[j]).tp_version_tag
            if self.tags[j] == 0:
                return False
        return True

    cpdef bint changed(self):
        """Return whether a class that is watched has been changed."""
        cdef Py_ssize_t j
        for j in range(len(self.classes)):
            if (<TypeObject*>self.classes[j]).tp_version_tag != self.tags[j]:
                return True
        return False

    @property
    def versions(self):
        """The classes, and the number of the version of each."""
        return self.classes, tuple([self.tags[j] for j in range(len(self.classes))])


cdef class Steps(Watch):
    """n environments of one kind.

    Args:
        kind, mode: Of the environments, and of automatic resets.
        copy: Whether `step` returns copies of observations.
        obs, final, act, rew, terminated, truncated: Columns of n rows, written by each step; `act` is read.
        table: Where the kind is TABLE, else None.

    Attributes:
        state: [n, 4] float64. constants: [n, COLUMNS] float64. steps, limits: [n] int64, of the episode, and when it is cut off; a
            limit of 0 is none. over: [n] uint8, an `End` each, of episodes whose reset is to come.
    """

    cdef readonly int64_t n
    cdef readonly ndarray state, constants, steps, limits, over
    cdef ndarray obs, final, act, rew, terminated, truncated, tried
    cdef Table table
    cdef list generators
    cdef bitgen_t** bits
    cdef int kind, mode, actions
    cdef int64_t begun  # resets of the last step
    cdef bint copy
    cdef int64_t width, row  # numbers and bytes of an observation

    def __cinit__(self, int kind, int mode, bint copy, ndarray obs, ndarray final, ndarray act, ndarray rew, ndarray terminated,
                  ndarray truncated, Table table):
        cdef int64_t n = len(rew)
        self.n, self.kind, self.mode, self.copy, self.table = n, kind, mode, copy, table
        self.obs, self.final, self.act, self.rew, self.terminated, self.truncated = obs, final, act, rew, terminated, truncated
        self.width, self.row = obs.size // n, obs.nbytes // n
        self.actions = table.actions if kind == TABLE else PHYSICS[kind].actions
        self.state, self.tried, self.constants = np.zeros((n, 4)), np.zeros((n, 4)), np.zeros((n, COLUMNS))
        self.steps, self.limits, self.over = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.uint8)
        self.generators = [None] * n
        self.bits = <bitgen_t**>calloc(n, sizeof(bitgen_t*))
        if self.bits == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.bits)

    def draw_from(self, int64_t i, object generator):
        """From now on environment i draws from this generator of NumPy's."""
        if not 0 <= i < self.n:
            raise IndexError(f"Steps: environment {i}; there are {self.n}")
        bits = generator.bit_generator
        self.bits[i] = <bitgen_t*>PyCapsule_GetPointer(bits.capsule, "BitGenerator")
        self.generators[i] = bits  # it owns them

    def take(self, object actions):
        """Copy actions into their column; False: they are no array of just that type and shape, so somebody else must."""
        cdef ndarray array
        cdef int j
        if type(actions) is not ndarray:
            return False
        array = actions
        if (PyArray_TYPE(array) != PyArray_TYPE(self.act) or PyArray_NDIM(array) != PyArray_NDIM(self.act)
                or not PyArray_CHKFLAGS(array, NPY_ARRAY_C_CONTIGUOUS) or array.descr is not self.act.descr):
            return False
        for j in range(PyArray_NDIM(array)):
            if PyArray_DIM(array, j) != PyArray_DIM(self.act, j):
                return False
        memcpy(PyArray_DATA(self.act), PyArray_DATA(array), self.n * 8 if self.actions else self.n * 4)
        return True

    cdef bint can(self) noexcept nogil:
        """Whether all actions in the column exist, and no episode waits for a reset by the caller."""
        cdef int64_t i
        cdef const int64_t* chosen = <const int64_t*>PyArray_DATA(self.act)
        cdef const float* pushed = <const float*>PyArray_DATA(self.act)
        cdef const uint8_t* over = <const uint8_t*>PyArray_DATA(self.over)
        for i in range(self.n):
            if over[i] and self.mode == DISABLED or self.bits[i] == NULL:
                return False
            if over[i]:
                continue  # its action is ignored
            if self.actions and not 0 <= chosen[i] < self.actions or not self.actions and pushed[i] != pushed[i]:
                return False
        return True

    def step(self):
        """One step with the actions in their column: the five values of a vector environment; None, and nothing is changed: an
        action does not exist, a number is none, a class was changed, or an episode is over and resets are the caller's."""
        if self.changed():
            return None
        cdef npy_intp[2] shape
        cdef npy_intp n = self.n
        cdef bint tabular = self.kind == TABLE
        shape[0], shape[1] = n, self.width
        cdef ndarray obs = PyArray_EMPTY(1 if tabular else 2, shape, NPY_INT64 if tabular else NPY_FLOAT, 0)
        cdef ndarray rew = PyArray_EMPTY(1, &n, NPY_DOUBLE, 0)
        cdef ndarray terminated = PyArray_EMPTY(1, &n, NPY_BOOL, 0)
        cdef ndarray truncated = PyArray_EMPTY(1, &n, NPY_BOOL, 0)
        cdef ndarray chance = None, last_chance = None
        cdef dict info = {}
        cdef Out out
        cdef int64_t ended = -1
        out.obs, out.rew = <char*>PyArray_DATA(obs), <double*>PyArray_DATA(rew)
        out.terminated, out.truncated = <uint8_t*>PyArray_DATA(terminated), <uint8_t*>PyArray_DATA(truncated)
        out.chance = out.last_chance = NULL
        if tabular:
            chance = PyArray_EMPTY(1, &n, NPY_DOUBLE, 0)
            last_chance = PyArray_EMPTY(1, &n, NPY_DOUBLE, 0)
            out.chance, out.last_chance = <double*>PyArray_DATA(chance), <double*>PyArray_DATA(last_chance)
        with nogil:
            if self.can() and (tabular or self.try_all(&out)):
                ended = self.move_all(&out)
        if ended < 0:
            return None
        memcpy(PyArray_DATA(self.obs), out.obs, n * self.row)
        memcpy(PyArray_DATA(self.rew), out.rew, n * sizeof(double))
        memcpy(PyArray_DATA(self.terminated), out.terminated, n)
        memcpy(PyArray_DATA(self.truncated), out.truncated, n)
        if ended and self.mode == SAME_STEP:
            self.tell_ends(info, &out, last_chance)
        if tabular:
            if self.begun == n and self.table.whole:
                chance = np.ones(n, np.int64)
            info["prob"], info["_prob"] = chance, every(n)
            if self.table.masks is not None:
                info["action_mask"], info["_action_mask"] = self.table.masks[obs], every(n)
        return obs if self.copy else self.obs, rew, terminated, truncated, info

    def begin_some(self, ndarray mask):
        """Begin an episode in each environment of a mask, [n] bool; return their infos. None, and nothing is changed: a class
        was."""
        cdef int64_t i
        cdef const uint8_t* wanted = <const uint8_t*>PyArray_DATA(mask)
        cdef double* states = <double*>PyArray_DATA(self.state)
        cdef char* obs = <char*>PyArray_DATA(self.obs)
        if len(mask) != self.n:
            raise IndexError(f"Steps: a mask of {len(mask)}; there are {self.n} environments")
        if self.changed():
            return None
        for i in range(self.n):
            if wanted[i]:
                self.begin(i, states + 4 * i, obs + self.row * i)
                (<uint8_t*>PyArray_DATA(self.terminated))[i] = (<uint8_t*>PyArray_DATA(self.truncated))[i] = False
        if self.kind != TABLE:
            return {}
        info = {"prob": mask.astype(np.int64 if self.table.whole else np.float64), "_prob": mask.copy()}
        if self.table.masks is not None:
            info["action_mask"] = np.where(mask[:, None], self.table.masks[self.obs], np.int8(0))
            info["_action_mask"] = mask.copy()
        return info

    cdef int tell_ends(self, dict info, Out* out, ndarray chance) except -1:
        """Say how the episodes ended that a step has ended, as gymnasium puts such things together."""
        cdef npy_intp n = self.n
        cdef ndarray final = PyArray_EMPTY(1, &n, NPY_OBJECT, 0)
        cdef ndarray mask = PyArray_EMPTY(1, &n, NPY_BOOL, 0)
        cdef uint8_t* of_mask = <uint8_t*>PyArray_DATA(mask)
        cdef dict last = {}
        cdef int64_t i
        for i in range(n):
            of_mask[i] = out.terminated[i] or out.truncated[i]
            if of_mask[i]:
                final[i] = self.final[i].copy()
        info["final_obs"], info["_final_obs"] = final, mask
        info["final_info"], info["_final_info"] = last, mask.copy()
        if chance is not None:
            last["prob"], last["_prob"] = np.where(mask, chance, 0.0), mask.copy()
            if self.table.masks is not None:
                last["action_mask"] = np.where(mask[:, None], self.table.masks[self.final], np.int8(0))
                last["_action_mask"] = mask.copy()
        return 0

    cdef bint try_all(self, Out* out) noexcept nogil:
        """Step all physics aside: states into `tried`, ends into `terminated`. False: some number is none, or infinite."""
        cdef int64_t i
        cdef int j
        cdef double sum = 0.0
        cdef const double* constants = <const double*>PyArray_DATA(self.constants)
        cdef const int64_t* steps = <const int64_t*>PyArray_DATA(self.steps)
        cdef const uint8_t* over = <const uint8_t*>PyArray_DATA(self.over)
        cdef const char* act = <const char*>PyArray_DATA(self.act)
        cdef double* tried = <double*>PyArray_DATA(self.tried)
        cdef float* obs
        memcpy(tried, PyArray_DATA(self.state), self.n * 4 * sizeof(double))
        for i in range(self.n):
            if over[i]:
                continue
            obs = <float*>(out.obs + self.row * i)
            out.terminated[i] = PHYSICS[self.kind].move(
                tried + 4 * i, constants + CONSTANTS * i, act + (8 if self.actions else 4) * i, steps[i] == 0, obs, out.rew + i)
            sum += 0.0 * out.rew[i]
            for j in range(self.width):
                sum += 0.0 * obs[j]
        return sum == 0.0

    cdef int64_t move_all(self, Out* out) noexcept nogil:
        """Step all, and return how many episodes ended with that."""
        cdef int64_t i, ended = 0, row = self.row
        cdef double* states = <double*>PyArray_DATA(self.state)
        cdef const double* tried = <const double*>PyArray_DATA(self.tried)
        cdef int64_t* steps = <int64_t*>PyArray_DATA(self.steps)
        cdef const int64_t* limits = <const int64_t*>PyArray_DATA(self.limits)
        cdef const int64_t* act = <const int64_t*>PyArray_DATA(self.act)
        cdef uint8_t* over = <uint8_t*>PyArray_DATA(self.over)
        cdef char* final = <char*>PyArray_DATA(self.final)
        cdef char* obs
        cdef bint cut, ends
        self.begun = 0
        for i in range(self.n):
            obs = out.obs + row * i
            if over[i]:  # NEXT_STEP
                out.rew[i], out.terminated[i], out.truncated[i] = 0.0, False, False
                if self.kind == TABLE:
                    out.chance[i] = 1.0
                self.begin(i, states + 4 * i, obs)
                continue
            if self.kind == TABLE:
                ends = self.look_up(i, states + 4 * i, act[i], out)
                (<int64_t*>obs)[0] = <int64_t>states[4 * i]
            else:
                ends = out.terminated[i]
                memcpy(states + 4 * i, tried + 4 * i, 4 * sizeof(double))
            steps[i] += 1
            cut = limits[i] > 0 and steps[i] >= limits[i]
            out.terminated[i], out.truncated[i] = ends, cut
            if ends or cut:
                ended += 1
                over[i] = ENDED if ends else CUT
                if self.mode == SAME_STEP:
                    memcpy(final + row * i, obs, row)
                    if self.kind == TABLE:
                        out.last_chance[i], out.chance[i] = out.chance[i], 1.0
                    self.begin(i, states + 4 * i, obs)
        return ended

    cdef void begin(self, int64_t i, double* state, char* obs) noexcept nogil:
        cdef bitgen_t* bits = self.bits[i]
        self.begun += 1
        (<int64_t*>PyArray_DATA(self.steps))[i] = 0
        (<uint8_t*>PyArray_DATA(self.over))[i] = RUNS
        if self.kind == TABLE:
            state[0] = <double>first_above(<const double*>PyArray_DATA(self.table.start), self.table.states,
                                           bits.next_double(bits.state))
            (<int64_t*>obs)[0] = <int64_t>state[0]
        else:
            PHYSICS[self.kind].begin(state, bits, <float*>obs)

    cdef bint look_up(self, int64_t i, double* state, int64_t action, Out* out) noexcept nogil:
        cdef const int64_t* first = <const int64_t*>PyArray_DATA(self.table.first) + <int64_t>state[0] * self.actions + action
        cdef const double* sums = <const double*>PyArray_DATA(self.table.sums) + first[0]
        cdef bitgen_t* bits = self.bits[i]
        cdef int64_t outcome = first[0] + first_above(sums, first[1] - first[0], bits.next_double(bits.state))
        state[0] = <double>(<const int64_t*>PyArray_DATA(self.table.to))[outcome]
        out.rew[i] = (<const double*>PyArray_DATA(self.table.reward))[outcome]
        out.chance[i] = (<const double*>PyArray_DATA(self.table.chance))[outcome]
        return (<const uint8_t*>PyArray_DATA(self.table.ends))[outcome]


# ------------------------------------------------------------------------------------------------------------- one of them

cdef enum:
    TRIES = 8  # changes of attributes after which an environment steps by itself for good

cdef object NO = 0, PUSH = 1


cdef class CartPoleStep(Watch):
    """The `step` of one CartPole in gymnasium's wrappers, on their own attributes: what each call finds, and what it leaves, is
    in them. Where they are others than it knows, the environment steps by itself.

    Args:
        plain: The environment's own `step`.
        layers: The wrappers from the outermost on, and the environment.
        look: Return constants [COLUMNS], or None: it is no environment of this kind any more.
        limit: Number of the layer with the time limit, −1: none. most: Its limit.
    """

    cdef readonly object plain
    cdef object look
    cdef tuple layers
    cdef object bare
    cdef list known  # of each layer and of the action space: a dict, and a tuple of what it held
    cdef double[CONSTANTS] constants
    cdef int limit, left
    cdef int64_t most

    def __init__(self, plain, tuple layers, look, int limit, int64_t most):
        self.plain, self.layers, self.look, self.limit, self.most, self.left = plain, layers, look, limit, most, TRIES
        self.bare, self.known = layers[len(layers) - 1], None

    def __call__(self, act):
        cdef int64_t chosen = act is PUSH
        if self.left and (act is NO or act is PUSH) and not self.changed() and (self.same() or self.looked()):
            out = self.moved(chosen)
            if out is not None:
                return out
        return self.plain(act)

    cdef bint same(self):
        """Whether all attributes are the objects that were looked at, but for those that each step and reset writes."""
        cdef PyObject* key
        cdef PyObject* value
        cdef Py_ssize_t at, i
        cdef tuple before
        if self.known is None:
            return False
        for own, part, kind, before in self.known:
            if type(part) is not kind or part.__dict__ is not own or len(<dict>own) != len(before):
                return False
            at = i = 0
            while i < len(before) and PyDict_Next(<dict>own, &at, &key, &value):
                if <PyObject*>before[i] != value and <object>key not in WRITTEN:
                    return False
                i += 1
        return True

    cdef bint looked(self):
        cdef int j
        self.left -= 1
        numbers = self.look()
        if numbers is None:
            self.left = 0
            return False
        for j in range(CONSTANTS):
            self.constants[j] = numbers[j]
        parts = (*self.layers, self.bare.action_space)
        self.known = [(part.__dict__, part, type(part), tuple(part.__dict__.values())) for part in parts]
        return True

    cdef tuple moved(self, int64_t act):
        cdef npy_intp four = 4
        cdef dict own = self.bare.__dict__, of_limit
        cdef ndarray state, obs
        cdef double rew
        cdef double* s
        cdef int j
        cdef bint ends, cut = False
        before = own["state"]
        if type(before) is not ndarray or own["steps_beyond_terminated"] is not None:
            return None
        state = before
        if PyArray_TYPE(state) != NPY_DOUBLE or PyArray_NDIM(state) != 1 or PyArray_DIM(state, 0) != 4 or not PyArray_ISCARRAY_RO(
                state):
            return None
        for j in range(len(self.layers) - 1):  # gymnasium's order of calls
            if self.layers[j].__dict__.get("_has_reset", True) is not True:
                return None
        elapsed = None if self.limit < 0 else (<dict>self.layers[self.limit].__dict__)["_elapsed_steps"]
        if self.limit >= 0 and type(elapsed) is not int:
            return None
        s = <double*>PyArray_DATA(state)
        state = PyArray_EMPTY(1, &four, NPY_DOUBLE, 0)
        memcpy(PyArray_DATA(state), s, 4 * sizeof(double))
        obs = PyArray_EMPTY(1, &four, NPY_FLOAT, 0)
        ends = PHYSICS[<int>CARTPOLE].move(<double*>PyArray_DATA(state), self.constants, &act, False, <float*>PyArray_DATA(obs), &rew)
        for j in range(4):
            if 0.0 * (<float*>PyArray_DATA(obs))[j] != 0.0:  # of which NumPy warns
                return None
        own["state"] = state
        if ends:
            own["steps_beyond_terminated"] = 0
        if self.limit >= 0:
            of_limit = self.layers[self.limit].__dict__
            of_limit["_elapsed_steps"] = elapsed = elapsed + 1
            cut = elapsed >= self.most
        return obs, rew, ends, cut, {}


cdef frozenset WRITTEN = frozenset(("state", "steps_beyond_terminated", "_elapsed_steps", "_has_reset", "_np_random",
                                    "_np_random_seed"))


cdef object every(npy_intp n):
    cdef ndarray out = PyArray_EMPTY(1, &n, NPY_BOOL, 0)
    memset(PyArray_DATA(out), 1, n)
    return out
