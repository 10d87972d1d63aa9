# cython: boundscheck=False, wraparound=False, cdivision=True
"""Kernels of returns.py.

The kernels along time take arrays [T, ...] in C order, T ≥ 1, all of one shape; floats all float32 or all float64, `last` bool. Anything
else is refused (TypeError, ValueError); returns.py then copies it into that form and says what does not fit. Ranges of numbers are not
checked here. Sums are kept in double. Every kernel releases the GIL.

Rows are walked as they lie in memory, from the last one to the first, with what is carried from row to row in an array of one double a
column: neighbouring columns do not wait for each other, so the compiler puts several into one instruction. That is where C is needed:
only there can a function be compiled once for each width of registers, the fitting one chosen when the module is loaded.
"""

cimport cython
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer


cdef extern from *:
    """
    enum { COLUMNS = 256 };  /* whose carry is kept together: 2 KiB of stack, and a row's piece is some cache lines long */

    typedef struct {
        const void *in[5];
        const unsigned char *last;
        void *out[2];
        ptrdiff_t steps, rows, n;
        double lam, rho_bar, c_bar;
        int is_float;
    } Call;

    /* No fused multiply-add: the same numbers come out at every width, and of a column alone or among others. */
    #if defined(__GNUC__) && !defined(__clang__)
    #pragma GCC push_options
    #pragma GCC optimize("fp-contract=off", "no-trapping-math")
    #define COLUMNS_ARE_INDEPENDENT _Pragma("GCC ivdep")
    #elif defined(__clang__)
    #pragma STDC FP_CONTRACT OFF
    #define COLUMNS_ARE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
    #else
    #define COLUMNS_ARE_INDEPENDENT
    #endif
    #if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
    #define EACH_WIDTH __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
    #else
    #define EACH_WIDTH
    #endif

    /* Walks [from, to] from its end to its beginning. `body` sees the place `i`, whether the chain is `cut` there, and `carried`, which
       comes from row t + 1 and goes to row t - 1. Few columns are walked one by one: their carry then stays in a register. */
    #define WALK(from, to, body)                                                                                                  \
        if (rows < 4) {                                                                                                           \
            for (ptrdiff_t b = 0; b < rows; b++) {                                                                                \
                double carried = 0.0;                                                                                             \
                for (ptrdiff_t t = (to); t >= (from); t--) {                                                                      \
                    const ptrdiff_t i = t * rows + b;                                                                             \
                    const int cut = last[i] | (t == (to));                                                                        \
                    body                                                                                                          \
                }                                                                                                                 \
            }                                                                                                                     \
        } else {                                                                                                                  \
            double carry[COLUMNS];                                                                                                \
            for (ptrdiff_t begin = 0; begin < rows; begin += COLUMNS) {                                                           \
                const ptrdiff_t n = rows - begin < COLUMNS ? rows - begin : COLUMNS;                                              \
                for (ptrdiff_t b = 0; b < n; b++) carry[b] = 0.0;                                                                 \
                for (ptrdiff_t t = (to); t >= (from); t--) {                                                                      \
                    const unsigned char final = t == (to);                                                                        \
                    const ptrdiff_t at = t * rows + begin;                                                                        \
                    COLUMNS_ARE_INDEPENDENT                                                                                       \
                    for (ptrdiff_t b = 0; b < n; b++) {                                                                           \
                        const ptrdiff_t i = at + b;                                                                               \
                        const int cut = last[i] | final;                                                                          \
                        double carried = carry[b];                                                                                \
                        body                                                                                                      \
                        carry[b] = carried;                                                                                       \
                    }                                                                                                             \
                }                                                                                                                 \
            }                                                                                                                     \
        }

    #define IN(real, name, k) const real *restrict name = (const real *)call->in[k]
    #define OUT(real, name, k) real *restrict name = (real *)call->out[k]
    #define ROWS                                                                                                                  \
        const unsigned char *restrict last = call->last;                                                                          \
        const ptrdiff_t steps = call->steps, rows = call->rows;

    /* In each body a cut chooses, it does not multiply by 0: that would let an infinity from over the cut through, as NaN. */

    #define LAMBDA_RETURN(real, name)                                                                                             \
    EACH_WIDTH static void name(const Call *call) {                                                                               \
        IN(real, rew, 0); IN(real, discount, 1); IN(real, value_next, 2); OUT(real, out, 0); ROWS                                 \
        const double lam = call->lam, rest = 1.0 - lam;                                                                           \
        const int unmixed = lam == 1.0;                                                                                           \
        WALK(0, steps - 1,                                                                                                        \
            const double value = value_next[i];                                                                                   \
            const double mixed = unmixed ? 0.0 : rest * value;                                                                    \
            const double weight = discount[i] * lam;                                                                              \
            carried = rew[i] + discount[i] * (cut ? value : mixed) + weight * (cut ? 0.0 : carried);                              \
            out[i] = (real)carried;                                                                                               \
        )                                                                                                                         \
    }

    #define GAE(real, name)                                                                                                       \
    EACH_WIDTH static void name(const Call *call) {                                                                               \
        IN(real, rew, 0); IN(real, discount, 1); IN(real, value, 2); IN(real, value_next, 3); OUT(real, out, 0); ROWS             \
        const double lam = call->lam;                                                                                             \
        WALK(0, steps - 1,                                                                                                        \
            const double one_step = rew[i] + (double)discount[i] * value_next[i] - value[i];                                      \
            const double weight = discount[i] * lam;                                                                              \
            carried = one_step + weight * (cut ? 0.0 : carried);                                                                  \
            out[i] = (real)carried;                                                                                               \
        )                                                                                                                         \
    }

    /* The comparison is in this order so that NaN stays NaN. */
    #define CLIPPED(ratio, bar) ((ratio) > (bar) ? (bar) : (ratio))

    #define VTRACE(real, name)                                                                                                    \
    EACH_WIDTH static void name(const Call *call) {                                                                               \
        IN(real, rew, 0); IN(real, discount, 1); IN(real, value, 2); IN(real, value_next, 3); IN(real, ratio, 4);                 \
        OUT(real, out, 0); OUT(real, advantage, 1); ROWS                                                                          \
        const double lam = call->lam, rho_bar = call->rho_bar, c_bar = call->c_bar;                                               \
        WALK(0, steps - 1,                                                                                                        \
            const double rho = CLIPPED((double)ratio[i], rho_bar);                                                                \
            const double c = lam * CLIPPED((double)ratio[i], c_bar);                                                              \
            const double one_step = rew[i] + (double)discount[i] * value_next[i] - value[i];                                      \
            const double follows = discount[i] * (cut ? 0.0 : carried);                                                           \
            advantage[i] = (real)(rho * (one_step + follows));                                                                    \
            carried = rho * one_step + c * follows;                                                                               \
            out[i] = (real)(value[i] + carried);                                                                                  \
        )                                                                                                                         \
    }

    #define BOTH(KERNEL, name)                                                                                                    \
        KERNEL(float, name##_float)                                                                                               \
        KERNEL(double, name##_double)                                                                                             \
        static void name##_both(const Call *call) { (call->is_float ? name##_float : name##_double)(call); }
    BOTH(LAMBDA_RETURN, lambda_return)
    BOTH(GAE, gae)
    BOTH(VTRACE, vtrace)

    #if defined(__GNUC__) && !defined(__clang__)
    #pragma GCC pop_options
    #endif
    """
    ctypedef struct Call:
        const void* in_ "in"[5]
        const unsigned char* last
        void* out[2]
        Py_ssize_t steps, rows, n
        double lam, rho_bar, c_bar
        bint is_float

    void lambda_return_both(const Call*) noexcept nogil
    void gae_both(const Call*) noexcept nogil
    void vtrace_both(const Call*) noexcept nogil


ctypedef fused real:
    float
    double

cdef enum:
    MOST = 8  # arrays that a kernel takes


@cython.final
@cython.freelist(4)
cdef class Arrays:
    """One call's arrays, held while it runs.

    Buffers instead of typed memoryviews: the match of two float types at each argument takes those longer than a small kernel runs.
    """

    cdef Call call
    cdef Py_buffer views[MOST]
    cdef int held, n_in, n_out
    cdef char kind  # of the floats: f or d

    def __cinit__(self):
        self.held = self.n_in = self.n_out = 0

    def __dealloc__(self):
        cdef int i
        for i in range(self.held):
            PyBuffer_Release(&self.views[i])

    cdef Py_buffer* hold(self, array, int writable) except NULL:
        """Of the shape of the first one held, which is the first float."""
        cdef Py_buffer* view = &self.views[self.held]
        cdef Py_ssize_t i
        PyObject_GetBuffer(array, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | writable)
        self.held += 1
        if view.format == NULL or view.format[0] == 0 or view.format[1] != 0:
            raise TypeError("an element is not one native number")
        if self.held == 1:
            if (view.format[0] != c"f" and view.format[0] != c"d") or view.ndim < 1 or view.shape[0] < 1:
                raise TypeError("the first array is not [T, ...] of float32 or float64, T ≥ 1")
            self.kind = view.format[0]
            self.call.is_float = self.kind == c"f"
            self.call.steps, self.call.rows = view.shape[0], 1
            for i in range(1, view.ndim):
                self.call.rows *= view.shape[i]
        elif view.ndim != self.views[0].ndim:
            raise ValueError("the arrays differ in shape")
        for i in range(view.ndim):
            if view.shape[i] != self.views[0].shape[i]:
                raise ValueError("the arrays differ in shape")
        return view

    cdef int floats(self, array, int writable=0) except -1:
        cdef Py_buffer* view = self.hold(array, writable)
        if view.format[0] != self.kind:
            raise TypeError("the arrays differ in type")
        if writable:
            self.call.out[self.n_out] = view.buf
            self.n_out += 1
        else:
            self.call.in_[self.n_in] = view.buf
            self.n_in += 1
        return 0

    cdef int flags(self, array) except -1:
        cdef Py_buffer* view = self.hold(array, 0)
        if view.format[0] != c"?":
            raise TypeError("`last` is not bool")
        self.call.last = <const unsigned char*> view.buf
        return 0


cdef Arrays held(tuple floats, last, tuple results):
    """The arrays of one call."""
    cdef Arrays arrays = Arrays.__new__(Arrays)
    for array in floats:
        arrays.floats(array)
    arrays.flags(last)
    for array in results:
        arrays.floats(array, PyBUF_WRITABLE)
    return arrays


def lambda_return(rew, discount, value_next, last, double lam, out):
    """Writes TD(λ) targets [T, ...] into `out`. With λ = 1 value_next counts at cut rows only."""
    cdef Arrays arrays = held((rew, discount, value_next), last, (out,))
    arrays.call.lam = lam
    with nogil:
        lambda_return_both(&arrays.call)


def gae(rew, discount, value, value_next, last, double lam, out):
    """Writes advantages [T, ...] into `out`."""
    cdef Arrays arrays = held((rew, discount, value, value_next), last, (out,))
    arrays.call.lam = lam
    with nogil:
        gae_both(&arrays.call)


def vtrace(rew, discount, value, value_next, ratio, last, double lam, double rho_bar, double c_bar, out, advantage):
    """Writes V-trace targets [T, ...] into `out`, policy-gradient advantages into `advantage`."""
    cdef Arrays arrays = held((rew, discount, value, value_next, ratio), last, (out, advantage))
    arrays.call.lam, arrays.call.rho_bar, arrays.call.c_bar = lam, rho_bar, c_bar
    with nogil:
        vtrace_both(&arrays.call)
