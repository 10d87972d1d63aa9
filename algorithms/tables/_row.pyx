# cython: boundscheck=False, wraparound=False, cdivision=True
"""A step of Q-learning or SARSA for one row: what `learn` of temporal_difference.py does with NumPy, and `EpsilonGreedy.act_one`, bit for bit."""


from cpython.object cimport PyObject_GenericSetAttr


cdef extern from *:
    """
    /* No fused multiply-add: the same numbers as NumPy's, which rounds after each operation. */
    #if defined(__GNUC__) && !defined(__clang__)
    #pragma GCC optimize("fp-contract=off")
    #elif defined(__clang__)
    #pragma STDC FP_CONTRACT OFF
    #endif
    """


cdef class TableRow:
    """Acts and learns on the table of an algorithm, `lr`, `gamma` and `updates` of which it reads at each step.

    Args:
        algorithm: Its `model.table` is [S, A] float64 in C order, and stays the same memory.
    """

    reports = "td"

    cdef object algorithm
    cdef double[:, ::1] table

    def __init__(self, algorithm):
        self.algorithm, self.table = algorithm, algorithm.model.table

    cdef int _check(self, Py_ssize_t s, Py_ssize_t a) except -1:
        if not 0 <= s < self.table.shape[0] or not 0 <= a < self.table.shape[1]:
            raise IndexError(f"state {s}, action {a} of a table of {self.table.shape[0]} states and {self.table.shape[1]} actions")
        return 0

    def act(self, Py_ssize_t s, double noise):
        """What `EpsilonGreedy.act_one` gives for the values of state `s`."""
        self._check(s, 0)
        cdef Py_ssize_t n = self.table.shape[1], i, ties = 1, best = 0, chosen
        cdef double *q = &self.table[s, 0]
        if noise >= 0:
            return <Py_ssize_t> (noise * n)
        for i in range(1, n):
            if q[i] > q[best]:
                best, ties = i, 1
            elif q[i] == q[best]:
                ties += 1
        chosen = <Py_ssize_t> ((noise + 1.0) * ties)
        for i in range(best, n):
            if q[i] == q[best]:
                if chosen == 0:
                    return i
                chosen -= 1
        return best

    def learn(self, Py_ssize_t s, Py_ssize_t a, double rew, Py_ssize_t s_next, bint terminated, Py_ssize_t a_next=-1):
        """One update.

        Args:
            s, a, s_next: State, action, and the state that it led to.
            rew, terminated: Its reward, and whether the episode ended there.
            a_next: The action after it, whose value the target takes; −1: that of the best.

        Returns:
            |target − Q(s, a)| before it.

        Raises:
            IndexError: there is no such state or action; nothing was learned.
        """
        self._check(s, a)
        self._check(s_next, max(a_next, 0))
        cdef object algorithm = self.algorithm, lr = algorithm.lr
        cdef long updates = algorithm.updates
        cdef double gamma = algorithm.gamma, rate = lr if type(lr) is float or not callable(lr) else lr(updates)
        cdef double *q = &self.table[s_next, 0]
        cdef double value = q[max(a_next, 0)]
        cdef Py_ssize_t i
        if a_next < 0:
            for i in range(1, self.table.shape[1]):
                if q[i] > value or q[i] != q[i]:  # no number is the largest, as for NumPy
                    value = q[i]
        cdef double td = rew + gamma * (1.0 - terminated) * value - self.table[s, a]
        self.table[s, a] += rate * td
        PyObject_GenericSetAttr(algorithm, "updates", updates + 1)  # past `__setattr__`, which looks for settings
        return abs(td)
