# cython: boundscheck=False, wraparound=False, cdivision=True
"""Kernels of returns.py, which checks shapes and ranges; nothing is checked here.

All arrays are in C order and of one float type; sums are kept in double. Every kernel releases the GIL.
"""

ctypedef fused real:
    float
    double


def lambda_return(const real[:, ::1] rew, const real[:, ::1] discount, const real[:, ::1] value_next,
                  const unsigned char[:, ::1] last, double lam, real[:, ::1] out):
    """Writes TD(λ) targets [T, B] into `out`."""
    cdef Py_ssize_t steps = rew.shape[0], rows = rew.shape[1], t, b
    cdef double target, mix
    with nogil:
        for b in range(rows):
            target = value_next[steps - 1, b]
            for t in range(steps - 1, -1, -1):
                mix = 0.0 if last[t, b] else lam
                target = rew[t, b] + discount[t, b] * ((1.0 - mix) * value_next[t, b] + mix * target)
                out[t, b] = <real> target


def gae(const real[:, ::1] rew, const real[:, ::1] discount, const real[:, ::1] value, const real[:, ::1] value_next,
        const unsigned char[:, ::1] last, double lam, real[:, ::1] out):
    """Writes advantages [T, B] into `out`."""
    cdef Py_ssize_t steps = rew.shape[0], rows = rew.shape[1], t, b
    cdef double advantage, carried
    with nogil:
        for b in range(rows):
            advantage = 0.0
            for t in range(steps - 1, -1, -1):
                carried = 0.0 if last[t, b] else lam * advantage
                advantage = rew[t, b] + discount[t, b] * (<double> value_next[t, b] + carried) - value[t, b]
                out[t, b] = <real> advantage


def n_step_return(const real[:, ::1] rew, const long long[::1] valid, double gamma, real[::1] out, real[::1] scale):
    """Writes the sum of the first `valid` discounted rewards of each row [N, n] into `out`, and gamma ** valid into `scale`."""
    cdef Py_ssize_t rows = rew.shape[0], i, k
    cdef double total, power
    with nogil:
        for i in range(rows):
            total = 0.0
            power = 1.0
            for k in range(valid[i]):
                total += power * rew[i, k]
                power *= gamma
            out[i] = <real> total
            scale[i] = <real> power
