# cython: boundscheck=False, wraparound=False, cdivision=True
"""Gradients of losses with respect to what networks give out, written out. Twins: the `learn` of the algorithms, by autograd.

All arrays are float32 and C-contiguous; actions are int64. Sums are taken in double precision, and are infinite where
float32 is too small for them, as torch's are. NaN goes through to the loss.
"""

from libc.math cimport NAN, exp, expf, fabs, isinf, log, logf, log1p, sqrt, tanh
from libc.stdint cimport int64_t

import numpy as np

cdef double HALF_LOG_2PI = 0.91893853320467274
cdef float ILLEGAL = -1e9  # what stands in the place of logits and values of illegal actions


cpdef double within(double x) noexcept:
    """Return a number, or infinity where float32 is too small for it."""
    return <float>x if isinf(<float>x) else x


cdef class Categorical:
    """Independent choices with their logits side by side. Those at −1e9 are illegal, and have no gradient.

    Args:
        logits: [N, Σ nvec]. nvec: Actions of each choice. act: [N, choices], from 0.

    Attributes:
        log_prob: log π(act) [N]. entropy: The mean over the rows.

    Raises:
        ValueError: sizes do not fit, or there is no such action.
    """

    cdef float[:, ::1] log_p
    cdef const float[:, ::1] logits
    cdef const int64_t[:, ::1] act
    cdef const int64_t[::1] nvec
    cdef readonly object log_prob, d_parameter
    cdef readonly double entropy

    def __init__(self, const float[:, ::1] logits not None, nvec, const int64_t[:, ::1] act not None):
        cdef long n = logits.shape[0], r, k, a, at
        cdef double total = 0.0, chosen
        cdef float most, sum
        self.nvec, self.act, self.logits = np.asarray(nvec, np.int64), act, logits
        if act.shape[0] != n or act.shape[1] != self.nvec.shape[0] or logits.shape[1] != sum_of(self.nvec):
            raise ValueError(f"Categorical: {n} × {logits.shape[1]} logits and {act.shape[0]} × {act.shape[1]} actions; expected "
                             f"rows of {sum_of(self.nvec)} logits and {self.nvec.shape[0]} actions")
        self.log_p = np.empty((n, logits.shape[1]), np.float32)
        self.log_prob = np.empty(n, np.float32)
        cdef float[::1] log_prob = self.log_prob
        for r in range(n):
            at, chosen = 0, 0.0
            for k in range(self.nvec.shape[0]):
                most = logits[r, at]
                for a in range(at + 1, at + self.nvec[k]):
                    most = logits[r, a] if logits[r, a] > most else most
                sum = 0.0
                for a in range(at, at + self.nvec[k]):
                    sum += expf(logits[r, a] - most)
                sum = logf(sum)
                for a in range(at, at + self.nvec[k]):
                    self.log_p[r, a] = logits[r, a] - most - sum
                    total -= expf(self.log_p[r, a]) * self.log_p[r, a]
                if not 0 <= act[r, k] < self.nvec[k]:
                    raise ValueError(f"Categorical: action {act[r, k]}; expected 0 to {self.nvec[k] - 1}")
                chosen += self.log_p[r, at + act[r, k]]
                at += self.nvec[k]
            log_prob[r] = <float>chosen
        self.entropy = total / n

    def gradient(self, const float[::1] d_log_prob not None, double d_entropy):
        """Return the gradient of the logits, from those of `log_prob` and `entropy`."""
        cdef long n = self.log_p.shape[0], r, k, a, at
        cdef double entropy, e = d_entropy / n, p
        out = np.empty((n, self.log_p.shape[1]), np.float32)
        cdef float[:, ::1] d = out
        if d_log_prob.shape[0] != n:
            raise ValueError(f"Categorical: {d_log_prob.shape[0]} gradients; expected {n}")
        for r in range(n):
            at = 0
            for k in range(self.nvec.shape[0]):
                entropy = 0.0
                if e != 0.0:
                    for a in range(at, at + self.nvec[k]):
                        entropy -= expf(self.log_p[r, a]) * self.log_p[r, a]
                for a in range(at, at + self.nvec[k]):
                    p = expf(self.log_p[r, a])
                    d[r, a] = <float>(-p * d_log_prob[r])
                    if e != 0.0:
                        d[r, a] -= <float>(e * p * (self.log_p[r, a] + entropy))
                d[r, at + self.act[r, k]] += d_log_prob[r]
                for a in range(at, at + self.nvec[k]):
                    if self.logits[r, a] <= ILLEGAL:
                        d[r, a] = 0.0
                at += self.nvec[k]
        return out


cdef long sum_of(const int64_t[::1] x):
    cdef long i, total = 0
    for i in range(x.shape[0]):
        total += x[i]
    return total


cdef class Gaussian:
    """Independent normal distributions.

    Args:
        numbers: The means [N, dim]; without `log_std` [N, 2 dim], the means and log std beside them, kept within [−20, 2].
        log_std: [dim], of all rows. act: [N, dim].

    Attributes:
        log_prob: log π(act) [N]. entropy: The mean over the rows. d_parameter: After `gradient`, that of `log_std`, or None.

    Raises:
        ValueError: sizes do not fit.
    """

    cdef const float[:, ::1] numbers, act
    cdef const float[::1] own
    cdef long dim
    cdef readonly object log_prob, d_parameter
    cdef readonly double entropy

    def __init__(self, const float[:, ::1] numbers not None, const float[::1] log_std, const float[:, ::1] act not None):
        cdef long n = numbers.shape[0], r, i
        cdef double z, total, ends = 0.0
        self.numbers, self.act, self.own, self.dim = numbers, act, log_std, act.shape[1]
        if act.shape[0] != n or numbers.shape[1] != self.dim * (1 if log_std is not None else 2) or (
                log_std is not None and log_std.shape[0] != self.dim):
            raise ValueError(f"Gaussian: {n} × {numbers.shape[1]} numbers, {act.shape[0]} × {self.dim} actions")
        self.log_prob = np.empty(n, np.float32)
        cdef float[::1] log_prob = self.log_prob
        for r in range(n):
            total = 0.0
            for i in range(self.dim):
                z = (act[r, i] - numbers[r, i]) * exp(-self.log_std(r, i))
                total -= 0.5 * z * z + self.log_std(r, i) + HALF_LOG_2PI
                ends += self.log_std(r, i)
            log_prob[r] = <float>total
        self.entropy = ends / n + self.dim * (0.5 + HALF_LOG_2PI)

    cdef double log_std(self, long r, long i) noexcept:
        cdef double x
        if self.own is not None:
            return self.own[i]
        x = self.numbers[r, self.dim + i]
        return -20.0 if x < -20.0 else 2.0 if x > 2.0 else x

    def gradient(self, const float[::1] d_log_prob not None, double d_entropy):
        """Return the gradient of `numbers`, from those of `log_prob` and `entropy`."""
        cdef long n = self.numbers.shape[0], r, i
        cdef double z, slope, d, x
        if d_log_prob.shape[0] != n:
            raise ValueError(f"Gaussian: {d_log_prob.shape[0]} gradients; expected {n}")
        out = np.zeros((n, self.numbers.shape[1]), np.float32)
        of_all = np.zeros(self.dim)
        cdef float[:, ::1] to = out
        cdef double[::1] parameter = of_all
        for r in range(n):
            for i in range(self.dim):
                slope = exp(-self.log_std(r, i))
                z = (self.act[r, i] - self.numbers[r, i]) * slope
                to[r, i] = <float>(d_log_prob[r] * z * slope)
                d = d_log_prob[r] * (z * z - 1.0) + d_entropy / n
                if self.own is not None:
                    parameter[i] += d
                else:
                    x = self.numbers[r, self.dim + i]
                    to[r, self.dim + i] = <float>(d if -20.0 <= x <= 2.0 else 0.0)
        self.d_parameter = None if self.own is None else of_all.astype(np.float32)
        return out


def clipped(const float[::1] log_prob not None, const float[::1] old not None, const float[::1] advantage not None,
            bint normalize, double clip, double dual_clip):
    """−mean(min(ρ A, clip(ρ, 1 − clip, 1 + clip) A)) of PPO, with ρ = exp(log_prob − old); where A < 0 a row's part is at least
    dual_clip · A (0: no bound). With `normalize` A has mean 0 and standard deviation 1.

    Returns:
        The gradient of `log_prob` [N], the loss, and mean(ρ − 1 − log ρ).

    Raises:
        ValueError: lengths differ.
    """
    cdef long n = log_prob.shape[0], r
    cdef double mean = 0.0, scale = 1.0, a, ratio, gain, most, weight, difference, loss = 0.0, kl = 0.0, inverse = 1.0 / n
    if old.shape[0] != n or advantage.shape[0] != n:
        raise ValueError(f"clipped: {n}, {old.shape[0]} and {advantage.shape[0]} numbers; expected as many of each")
    if normalize and n > 1:
        for r in range(n):
            mean += advantage[r]
        mean /= n
        a = 0.0
        for r in range(n):
            a += (advantage[r] - mean) * (advantage[r] - mean)
        scale = 1.0 / (sqrt(a / (n - 1)) + 1e-8)
    out = np.empty(n, np.float32)
    cdef float[::1] d = out
    for r in range(n):
        a, difference = (advantage[r] - mean) * scale, log_prob[r] - old[r]
        ratio = within(exp(difference))
        gain, most = ratio * a, (1.0 + clip if a >= 0.0 else 1.0 - clip) * a
        weight = gain
        if gain > most:
            gain, weight = most, 0.0 * ratio  # no number where ratio is infinite, as autograd has it
        elif gain == most:
            weight *= 0.5  # as autograd has it where two are equal
        if dual_clip > 0.0 and a < 0.0:
            if gain < dual_clip * a:
                gain, weight = dual_clip * a, 0.0
            elif gain == dual_clip * a:
                weight *= 0.5
        d[r] = <float>(-weight * inverse)
        loss -= within(gain)
        kl += ratio - 1.0 - difference
    return out, within(within(loss) * inverse), within(within(kl) * inverse)


def squared(const float[:, ::1] value not None, const float[::1] target not None, double factor, const float[::1] old,
            double clip):
    """mean((value − target)²) of values [N, 1]; with `old` [N] that of max((value − target)², (near − target)²), where near is
    at most `clip` from `old`.

    Returns:
        The gradient of `value` [N, 1], times `factor`, and the loss.

    Raises:
        ValueError: lengths differ.
    """
    cdef long n = value.shape[0], r
    cdef double e, f, near, inside, loss = 0.0, weight = factor / n
    if value.shape[1] != 1 or target.shape[0] != n or (old is not None and old.shape[0] != n):
        raise ValueError(f"squared: {n} × {value.shape[1]} values and {target.shape[0]} targets; expected as many of each")
    out = np.empty((n, 1), np.float32)
    cdef float[:, ::1] d = out
    for r in range(n):
        e = value[r, 0] - target[r]
        if old is None:
            loss += within(e * e)
            d[r, 0] = <float>(2.0 * weight * e)
            continue
        near, inside = value[r, 0] - old[r], 1.0
        if near > clip or near < -clip:
            near, inside = clip if near > clip else -clip, 0.0
        f = old[r] + near - target[r]
        if e * e > f * f or inside == 1.0 or e != e:
            loss += within(e * e)
            d[r, 0] = <float>(2.0 * weight * e)
        else:
            loss += within(f * f)
            d[r, 0] = 0.0 if e * e < f * f else <float>(weight * e)
    return out, within(within(loss) / n)


def huber(const float[:, ::1] q not None, const int64_t[::1] act not None, const float[::1] target not None,
          const float[::1] weight):
    """mean(weight · h(q[act] − target)), h(e) = e² / 2 where |e| < 1, else |e| − 1/2. weight None: 1. Values of −1e9 are those of
    illegal actions, and have no gradient.

    Returns:
        The gradient of `q` [N, A], the loss, mean q[act], and |q[act] − target| [N].

    Raises:
        ValueError: lengths differ, or there is no such action.
    """
    cdef long n = q.shape[0], r
    cdef double e, w, loss = 0.0, mean = 0.0
    if act.shape[0] != n or target.shape[0] != n or (weight is not None and weight.shape[0] != n):
        raise ValueError(f"huber: {n} rows, {act.shape[0]} actions and {target.shape[0]} targets; expected as many of each")
    out, errors = np.zeros((n, q.shape[1]), np.float32), np.empty(n, np.float32)
    cdef float[:, ::1] d = out
    cdef float[::1] error = errors
    for r in range(n):
        if not 0 <= act[r] < q.shape[1]:
            raise ValueError(f"huber: action {act[r]}; expected 0 to {q.shape[1] - 1}")
        e, w = q[r, act[r]] - target[r], 1.0 if weight is None else weight[r]
        mean += q[r, act[r]]
        error[r] = <float>fabs(e)
        loss += within(w * (0.5 * e * e if fabs(e) < 1.0 else fabs(e) - 0.5))
        if q[r, act[r]] > ILLEGAL or q[r, act[r]] != q[r, act[r]]:
            d[r, act[r]] = <float>(w / n * (e if fabs(e) < 1.0 else 1.0 if e > 0.0 else -1.0))
    return out, within(within(loss) / n), within(within(mean) / n), errors


def critics(list values not None, const float[::1] target not None, const float[::1] weight):
    """Σ_i mean(weight · (Q_i − target)²) of several critics [N, 1] each. weight None: 1.

    Returns:
        The gradients of all values, the loss, and max_i |Q_i − target| [N].

    Raises:
        ValueError: lengths differ.
    """
    cdef long n = target.shape[0], r
    cdef const float[:, ::1] q
    cdef float[:, ::1] d
    cdef double e, w, loss = 0.0, total
    errors, gradients = np.zeros(n, np.float32), []
    cdef float[::1] error = errors
    for one in values:
        q, out = one, np.empty((n, 1), np.float32)
        d = out
        if q.shape[0] != n or q.shape[1] != 1 or (weight is not None and weight.shape[0] != n):
            raise ValueError(f"critics: {q.shape[0]} × {q.shape[1]} values and {n} targets; expected as many of each")
        total = 0.0
        for r in range(n):
            e, w = q[r, 0] - target[r], 1.0 if weight is None else weight[r]
            total += within(w * within(e * e))
            loss += w * e * e
            d[r, 0] = <float>(2.0 * w * e / n)
            error[r] = error[r] if error[r] >= fabs(e) else <float>fabs(e)
        gradients.append(out)
        loss += <float>total if isinf(<float>total) else 0.0
    return gradients, within(loss / n), errors


def least(list values not None, double factor):
    """min_i Q_i [N] of several critics [N, 1] each, no number where one of them is none; and the gradients of Σ_rows `factor` ·
    min_i Q_i: equal ones share it. Without a factor there are none.

    Raises:
        ValueError: lengths differ.
    """
    cdef long n = len(values[0]), r
    out, counts, gradients = np.array(values[0], np.float32).reshape(n), np.zeros(n, np.int64), []
    cdef float[::1] low = out
    cdef int64_t[::1] same = counts
    cdef const float[:, ::1] q
    cdef float[:, ::1] d
    for one in values[1:]:
        q = one
        if q.shape[0] != n or q.shape[1] != 1:
            raise ValueError(f"least: {q.shape[0]} × {q.shape[1]} values; expected {n} × 1")
        for r in range(n):
            if not q[r, 0] >= low[r] and low[r] == low[r]:
                low[r] = q[r, 0]
    for one in values if factor != 0.0 else ():
        q = one
        for r in range(n):
            same[r] += q[r, 0] == low[r]
    for one in values if factor != 0.0 else ():
        q, into = one, np.zeros((n, 1), np.float32)
        d = into
        for r in range(n):
            if same[r] == 0:  # as autograd has it
                d[r, 0] = NAN
            elif q[r, 0] == low[r]:
                d[r, 0] = <float>factor / same[r]
        gradients.append(into)
    return out, gradients


cdef class Squashed:
    """tanh of normal distributions, of which one action a row is drawn.

    Args:
        numbers: Means and log std [N, 2 dim], these kept within [−20, 2]. noise: Standard normal [N, dim].

    Attributes:
        act: [N, dim]. log_prob: log π(act) [N].
    """

    cdef const float[:, ::1] numbers, noise
    cdef readonly object act, log_prob

    def __init__(self, const float[:, ::1] numbers not None, const float[:, ::1] noise not None):
        cdef long n = noise.shape[0], dim = noise.shape[1], r, i
        cdef double u, x, total, size
        if numbers.shape[0] != n or numbers.shape[1] != 2 * dim:
            raise ValueError(f"Squashed: {numbers.shape[0]} × {numbers.shape[1]} numbers; expected {n} × {2 * dim}")
        self.numbers, self.noise = numbers, noise
        self.act, self.log_prob = np.empty((n, dim), np.float32), np.empty(n, np.float32)
        cdef float[:, ::1] act = self.act
        cdef float[::1] log_prob = self.log_prob
        for r in range(n):
            total = 0.0
            for i in range(dim):
                x = bounded(numbers[r, dim + i])
                u = numbers[r, i] + exp(x) * noise[r, i]
                act[r, i] = <float>tanh(u)
                size = -2.0 * u
                total -= 0.5 * noise[r, i] * noise[r, i] + x + HALF_LOG_2PI
                total -= 2.0 * (log(2.0) - u - (log1p(exp(-fabs(size))) + (size if size > 0.0 else 0.0)))
            log_prob[r] = <float>total

    def gradient(self, const float[:, :] d_act not None, double d_log_prob):
        """Return the gradient of `numbers`, from that of `act` [N, dim], and of each row's `log_prob`."""
        cdef long n = self.noise.shape[0], dim = self.noise.shape[1], r, i
        cdef double a, x, d
        out = np.empty((n, 2 * dim), np.float32)
        cdef float[:, ::1] to = out
        cdef const float[:, ::1] act = self.act
        for r in range(n):
            for i in range(dim):
                a, x = act[r, i], self.numbers[r, dim + i]
                d = d_act[r, i] * (1.0 - a * a) + d_log_prob * 2.0 * a
                to[r, i] = <float>d
                to[r, dim + i] = <float>(d * exp(bounded(x)) * self.noise[r, i] - d_log_prob if -20.0 <= x <= 2.0 else 0.0)
        return out


cdef double bounded(double x) noexcept:
    return -20.0 if x < -20.0 else 2.0 if x > 2.0 else x
