# cython: boundscheck=False, wraparound=False, cdivision=True
"""Kernel of `explorer.Categorical`; the explorer's NumPy code is the reference that the tests hold it against."""

from libc.math cimport exp, log


def categorical(const float[:, ::1] logits, const double[::1] noise, long long[::1] act, float[::1] log_prob):
    """For each row the smallest a with Σ_{b≤a} softmax(logits)_b > noise; the best action where noise < 0.

    Args:
        logits: [N, A]. noise: [N], in [0, 1), or negative for the best action (the first of several).
        act: [N], written. log_prob: [N], written; of length 0: not wanted.
    """
    cdef Py_ssize_t rows = logits.shape[0], actions = logits.shape[1], n, a, best, chosen
    cdef double top, total, running, level
    with nogil:
        for n in range(rows):
            best = 0
            for a in range(1, actions):
                if logits[n, a] > logits[n, best]:
                    best = a
            top = logits[n, best]
            chosen = best
            if noise[n] >= 0 or log_prob.shape[0]:
                total = 0
                for a in range(actions):
                    total += exp(logits[n, a] - top)
            if noise[n] >= 0:
                level = noise[n] * total
                running = 0
                for a in range(actions):
                    running += exp(logits[n, a] - top)
                    if running > level:
                        chosen = a
                        break
            act[n] = chosen
            if log_prob.shape[0]:
                log_prob[n] = <float> (logits[n, chosen] - top - log(total))
