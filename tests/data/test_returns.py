"""Returns: golden numbers that can be redone by hand, the numbers of the specifications, and laws."""


import numpy as np
import pytest
import torch
from gil import let_others_run
from return_twins import (
    discounted_return_reference,
    gae_reference,
    lambda_return_reference,
    n_step_return_reference,
    n_step_targets,
    n_step_targets_reference,
    next_values_reference,
    vtrace_reference,
)

from parl_like.data import _returns
from parl_like.data.returns import (
    discounted_return,
    gae,
    lambda_return,
    n_step_return,
    next_values,
    vtrace,
)


def flags(n, *true_at):
    out = np.zeros(n, bool)
    out[list(true_at)] = True
    return out


# ---- numbers worked out by hand

# Two segments in five rows, γ = 1/2. Row 1 is truncated: its value, 8, counts. Row 3 terminates: its value, 100, must not. Row 4
# is an episode that is still running.
REW = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
DISCOUNT = np.array([0.5, 0.5, 0.5, 0.0, 0.5])
VALUE_NEXT = np.array([2.0, 8.0, 10.0, 100.0, 6.0])
LAST = flags(5, 1, 3)


@pytest.mark.parametrize(
    ("lam", "expected"),
    [
        # G4 = 5 + ½·6 = 8;  G3 = 4;  G2 = 3 + ½((1−λ)10 + λ·4);  G1 = 2 + ½·8 = 6;  G0 = 1 + ½((1−λ)2 + λ·6)
        (0.0, [2.0, 6.0, 8.0, 4.0, 8.0]),
        (0.5, [3.0, 6.0, 6.5, 4.0, 8.0]),
        (1.0, [4.0, 6.0, 5.0, 4.0, 8.0]),
    ],
)
def test_lambda_targets_by_hand(lam, expected):
    np.testing.assert_allclose(lambda_return(REW, DISCOUNT, VALUE_NEXT, LAST, lam), expected, rtol=1e-12)


def test_discounted_return_by_hand():
    np.testing.assert_allclose(discounted_return(REW, DISCOUNT, LAST, VALUE_NEXT), [4, 6, 5, 4, 8], rtol=1e-12)
    # Without values a cut row counts its reward only: G1 = 2, G0 = 1 + ½·2, G4 = 5.
    np.testing.assert_allclose(discounted_return(REW, DISCOUNT, LAST), [2, 2, 5, 4, 5], rtol=1e-12)


def test_gae_by_hand():
    # δ = rew + discount·V' − 1 = [1, 5, 7, 3, 7];  A0 = 1 + ½·½·5;  A1 = 5, cut;  A2 = 7 + ½·½·3;  A3 = 3, cut;  A4 = 7
    got = gae(REW, DISCOUNT, np.ones(5), VALUE_NEXT, LAST, 0.5)
    np.testing.assert_allclose(got, [2.25, 5.0, 7.75, 3.0, 7.0], rtol=1e-12)


def test_next_values_by_hand():
    value = np.array([10.0, 11.0, 12.0, 13.0, 14.0], np.float32)
    got = next_values(value, flags(5, 1, 2, 4), np.array([-1.0, -2.0, -3.0]))
    assert got.dtype == np.float32 and got.tolist() == [11, -1, -2, 14, -3]
    assert value.tolist() == [10, 11, 12, 13, 14]


def test_n_step_return_by_hand():
    rew = torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 0.0], [3.0, 0.0, 0.0], [0.0] * 3])
    got, scale = n_step_return(rew, [1.0, 0.5, 0.25, 0.125], torch.tensor([3, 2, 1, 0]))
    assert got.tolist() == [3.0, 2.0, 3.0, 0.0]  # 1 + ½·2 + ¼·4;  1 + ½·2;  3;  nothing
    assert scale.tolist() == [0.125, 0.25, 0.5, 1.0]
    # A discount for each row: 1 + ½·2 + ½·¼·4, then ½·¼·½; a row that terminates, and a window that ends without one.
    rows = torch.tensor([[0.5, 0.25, 0.5], [0.5, 0.0, 1.0], [0.5, 1.0, 1.0], [1.0] * 3])
    got, scale = n_step_return(rew, rows)
    assert (got.tolist(), scale.tolist()) == ([2.5, 2.0, 3.0, 0.0], [0.0625, 0.0, 0.5, 1.0])


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        # One step: rew + discount · V'.  Two: G0 = 1 + ½·(2 + ½·8);  row 1 is cut;  G2 = 3 + ½·4;  row 3 ended;  row 4 has none
        # after it
        (1, [2.0, 6.0, 8.0, 4.0, 8.0]),
        (2, [4.0, 6.0, 5.0, 4.0, 8.0]),
        (3, [4.0, 6.0, 5.0, 4.0, 8.0]),
        (9, [4.0, 6.0, 5.0, 4.0, 8.0]),
    ],
)
def test_n_step_targets_by_hand(n, expected):
    np.testing.assert_allclose(n_step_targets(REW, DISCOUNT, VALUE_NEXT, LAST, n), expected, rtol=1e-12)


def test_n_step_targets_count_n_rewards():
    # 1 + ½·2 + ¼·(V' of row 1 = 8), then 2 + ½·4 + ¼·16, then fewer rows: 4 + ½·8 + ¼·32, 8 + ½·32
    got = n_step_targets(np.array([1.0, 2, 4, 8]), np.full(4, 0.5), np.array([4.0, 8, 16, 32]), flags(4), 2)
    assert got.tolist() == [4.0, 8.0, 16.0, 24.0]


LN2 = np.log(2.0)
# π/μ of the five rows: 2, ½, 4, 1, 1/8.  V = 1 everywhere, so δ/ρ = rew + discount·V' − 1 = [1, 5, 7, 3, 7].
LOG_RATIO = LN2 * np.array([1.0, -1.0, 2.0, 0.0, -3.0])


def test_vtrace_by_hand():
    # ρ = c = min(1, π/μ) = [1, ½, 1, 1, ⅛]
    # x4 = 7/8;  x3 = 3 (ended);  x2 = 7 + ½·3;  x1 = ½·5 (cut);  x0 = 1 + ½·2.5
    # A4 = 7/8;  A3 = 3;  A2 = 7 + ½·3;  A1 = 2.5;  A0 = 1 + ½·2.5
    target, advantage = vtrace(REW, DISCOUNT, np.ones(5), VALUE_NEXT, LOG_RATIO, LAST)
    np.testing.assert_allclose(target, [3.25, 3.5, 9.5, 4.0, 1.875], rtol=1e-12)
    np.testing.assert_allclose(advantage, [2.25, 2.5, 8.5, 3.0, 0.875], rtol=1e-12)


def test_vtrace_with_other_clips_by_hand():
    # ρ̄ = 2: ρ = [2, ½, 2, 1, ⅛];  c̄ = ½, λ = ½: c = [¼, ¼, ¼, ¼, 1/16]
    # x3 = 3;  x2 = 2·7 + ½·¼·3;  x1 = 2.5;  x0 = 2·1 + ½·¼·2.5;      A2 = 2·(7 + ½·3);  A0 = 2·(1 + ½·2.5)
    target, advantage = vtrace(REW, DISCOUNT, np.ones(5), VALUE_NEXT, LOG_RATIO, LAST, rho_bar=2.0, c_bar=0.5, lam=0.5)
    np.testing.assert_allclose(target, [3.3125, 3.5, 15.375, 4.0, 1.875], rtol=1e-12)
    np.testing.assert_allclose(advantage, [4.5, 2.5, 17.0, 3.0, 0.875], rtol=1e-12)


# ---- T48: n-step targets from a circular buffer


def ring(truncated_at=None):
    """The buffer of T48: 10 slots, 12 adds, rew i + 1, every fourth row terminated (or, in one place, truncated)."""
    rew, terminated, last = np.zeros(10), np.zeros(10, bool), np.zeros(10, bool)
    for i in range(12):
        end = i % 4 == 3
        rew[i % 10], last[i % 10], terminated[i % 10] = i + 1, end, end and i != truncated_at
    return rew, terminated, last


def walked_targets(n, rew, terminated, last):
    """Targets at positions 2 … 9, 0, 1, that is in time order, where V of a row is minus the reward of the row after it.

    Brute force: walk slot by slot. The row after an end row, or after the newest one, is that row itself.
    """
    newest = 1
    after = [slot if last[slot] or slot == newest else (slot + 1) % 10 for slot in range(10)]
    rows, valid, final = [], [], []
    for slot in [*range(2, 10), 0, 1]:
        walk = [slot]
        while len(walk) < n and after[walk[-1]] != walk[-1]:
            walk.append(after[walk[-1]])
        rows.append([rew[s] for s in walk] + [0.0] * (n - len(walk)))
        valid.append(len(walk))
        final.append(walk[-1])
    value = np.array([-rew[after[s]] for s in final])
    powers = [0.1**k for k in range(n + 1)]
    got, scale = (part.numpy() for part in n_step_return(torch.tensor(rows, dtype=torch.float64), powers, torch.tensor(valid)))
    return got + scale * value * ~terminated[final]


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, [2.6, 4, 4.4, 5.3, 6.2, 8, 8, 8.9, 9.8, 12]),
        (2, [3.4, 4, 5.53, 6.62, 7.8, 8, 9.89, 10.98, 12.2, 12]),
        (10, [3.4, 4, 5.678, 6.78, 7.8, 8, 10.122, 11.22, 12.2, 12]),
    ],
)
def test_t48_targets(n, expected):
    np.testing.assert_allclose(walked_targets(n, *ring()), expected, rtol=1e-12)


def test_t48_a_truncated_row_bootstraps():
    one, two = walked_targets(1, *ring(truncated_at=3)), walked_targets(2, *ring(truncated_at=3))
    np.testing.assert_allclose(one, [2.6, 3.6, 4.4, 5.3, 6.2, 8, 8, 8.9, 9.8, 12], rtol=1e-12)
    np.testing.assert_allclose(two[:2], [3.36, 3.6], rtol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 10])
@pytest.mark.parametrize("truncated_at", [None, 3])
def test_t48_time_major_rows_give_the_same_targets(n, truncated_at):
    rew, terminated, last = (np.roll(field, -2) for field in ring(truncated_at))  # slots 2 … 9, 0, 1: as they were added
    value_next = -np.where(last | flags(10, 9), rew, np.roll(rew, -1))
    got = n_step_targets(rew, 0.1 * ~terminated, value_next, last, n)
    np.testing.assert_allclose(got, walked_targets(n, *ring(truncated_at)), rtol=1e-12)


# ---- T49: returns and GAE


@pytest.mark.parametrize(
    ("rew", "terminated", "truncated", "expected"),
    [
        (range(8), [0, 3, 7], [5], [0, 1.23, 2.3, 3, 4.5, 5, 6.7, 7]),
        ([7, 6, 1, 2, 3, 4, 5], [1, 3, 5], [], [7.6, 6, 1.2, 2, 3.4, 4, 5]),
        ([7, 6, 1, 2, 3, 4, 5], [1, 3, 6], [], [7.6, 6, 1.2, 2, 3.45, 4.5, 5]),
    ],
)
def test_t49_returns_without_values(rew, terminated, truncated, expected):
    rew = np.array(rew, float)
    terminal, last = flags(len(rew), *terminated), flags(len(rew), *terminated, *truncated)
    discount = 0.1 * ~terminal
    np.testing.assert_allclose(discounted_return(rew, discount, last), expected, rtol=1e-12)
    zeros = np.zeros(len(rew))
    np.testing.assert_allclose(gae(rew, discount, zeros, zeros, last, 1.0), expected, rtol=1e-12)


T49_REW = np.array([101.0, 102, 103, 200, 104, 105, 106, 201, 107, 108, 109, 202])
T49_VALUE_NEXT = np.array([2.0, 3, 4, -1, 5, 6, 7, -2, 8, 9, 10, -3])


@pytest.mark.parametrize(
    ("terminated", "expected"),
    [
        (
            [3, 7, 11],
            [454.8344, 376.1143, 291.298, 200, 464.5610, 383.1085, 295.387, 201, 474.2876, 390.1027, 299.476, 202],
        ),
        (
            [11],
            [454.0109, 375.2386, 290.3669, 199.01, 462.9138, 381.3571, 293.5248, 199.02, 474.2876, 390.1027, 299.476, 202],
        ),
    ],
)
def test_t49_gae_plus_value(terminated, expected):
    value, last = np.roll(T49_VALUE_NEXT, 1), flags(12, 3, 7, 11)
    discount = 0.99 * ~flags(12, *terminated)
    got = gae(T49_REW, discount, value, T49_VALUE_NEXT, last, 0.95) + value
    np.testing.assert_allclose(got, expected, atol=5e-5)  # four digits are printed there
    np.testing.assert_allclose(lambda_return(T49_REW, discount, T49_VALUE_NEXT, last, 0.95), expected, atol=5e-5)


# ---- A21, A22: ALF's next-index convention


def rows_of_time_steps(value, rew, discount, is_last, gamma):
    """ALF's time steps as our rows.

    In ALF, time step t carries the reward and discount of the action *before* it: ret[t] = r[t+1] + γ d[t+1] ret[t+1]. So our row
    t takes reward, discount and value of time step t + 1, and is last where that one is LAST; T time steps give T − 1 rows. From
    a LAST step no action leads on, so there is no row: ALF puts the value itself there (advantage 0). Here such a place is filled
    with a row that earns just that and ends.
    """
    here, following = is_last[:-1], is_last[1:]
    return {
        "rew": np.where(here, value[:-1], rew[1:]),
        "discount": np.where(here, 0.0, gamma * discount[1:]),
        "value_next": value[1:],
        "last": here | following,
    }


ALF_CASES = [
    # (index of the LAST step, its discount), A21, A22
    (None, 1.0, [7.5341, 6.149, 4.61, 2.9], [6.0928, 5.488, 4.48, 2.8]),
    (2, 1.0, [4.61, 2.9, 1, 2.9], [4.48, 2.8, 0, 2.8]),
    (2, 0.0, [3.8, 2, 1, 2.9], [3.4, 1, 0, 2.8]),
]


def alf_steps(index, end_discount):
    is_last = flags(5) if index is None else flags(5, index)
    return np.where(is_last, end_discount, 1.0), is_last


@pytest.mark.parametrize(("index", "end_discount", "expected", "_"), ALF_CASES)
def test_a21_discounted_return(index, end_discount, expected, _):
    rows = rows_of_time_steps(np.full(5, 1.0), np.full(5, 2.0), *alf_steps(index, end_discount), gamma=0.9)
    np.testing.assert_allclose(discounted_return(**rows), expected, rtol=1e-12)
    np.testing.assert_allclose(lambda_return(**rows, lam=1.0), expected, rtol=1e-12)


@pytest.mark.parametrize(("index", "end_discount", "_", "expected"), ALF_CASES)
def test_a22_gae(index, end_discount, _, expected):
    value = np.full(5, 2.0)
    rows = rows_of_time_steps(value, np.full(5, 3.0), *alf_steps(index, end_discount), gamma=0.9)
    np.testing.assert_allclose(gae(**rows, value=value[:-1], lam=0.6 / 0.9), expected, rtol=1e-12)


def test_a22_a_doubled_reward_channel_gives_a_doubled_advantage():
    value = np.full(5, 2.0)
    rows = rows_of_time_steps(value, np.full(5, 3.0), *alf_steps(2, 1.0), gamma=0.9)
    rows["value"] = value[:-1]
    # Time-major [T, B, channel]: both agents alike, the second channel doubled.
    scaled = {name: np.stack([x, 2 * x if name in ("rew", "value", "value_next") else x], axis=-1) for name, x in rows.items()}
    scaled = {name: np.stack([x, x], axis=1).astype(bool if name == "last" else float) for name, x in scaled.items()}
    got = gae(**scaled, lam=0.6 / 0.9)
    assert got.shape == (4, 2, 2)
    np.testing.assert_allclose(got[:, 1, 0], [4.48, 2.8, 0, 2.8], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(got[..., 1], 2 * got[..., 0], rtol=1e-12)


def test_a23_nothing_flows_back_over_an_end():
    rows = rows_of_time_steps(np.full(5, 1.0), np.full(5, 2.0), *alf_steps(2, 1.0), gamma=0.9)
    huge = {**rows, "value_next": rows["value_next"].copy(), "rew": rows["rew"].copy()}
    huge["value_next"][3] = huge["rew"][3] = 1e30  # after the boundary
    np.testing.assert_allclose(discounted_return(**huge)[:3], [4.61, 2.9, 1], rtol=1e-12)
    np.testing.assert_array_equal(lambda_return(**huge, lam=0.9)[:3], lambda_return(**rows, lam=0.9)[:3])


# ---- J32


@pytest.mark.parametrize(
    ("ends", "tail", "expected"),
    [([], 0, [2.75, 3.5, 3]), ([], 4, [3.25, 4.5, 5]), ([1], 2, [2, 2, 4]), ([0, 2], 0, [1, 3.5, 3]), ([0, 2], 9, [1, 3.5, 3])],
)
def test_j32_returns(ends, tail, expected):
    terminated = flags(3, *ends)
    value_next = np.array([0.0, 0.0, tail])
    got = discounted_return(np.array([1.0, 2.0, 3.0]), 0.5 * ~terminated, terminated, value_next)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize(("ends", "expected"), [([], [1.27, 1.8, 2]), ([0, 2], [0, 1.5, 0])])
def test_j32_gae(ends, expected):
    value, terminated = np.array([1.0, 2.0, 3.0, 4.0]), flags(3, *ends)
    got = gae(np.array([1.0, 2.0, 3.0]), 0.5 * ~terminated, value[:-1], value[1:], terminated, 0.3)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


def test_j32_batched_over_either_axis():
    rew, last = np.array([[1.0, 2.0, 3.0]] * 2), np.array([flags(3), flags(3, 0, 2)])
    rows_last = {"rew": rew, "discount": 0.5 * ~last, "last": last}  # [B, T]
    got = discounted_return(**{name: value.T for name, value in rows_last.items()}).T
    np.testing.assert_allclose(got, [[2.75, 3.5, 3], [1, 3.5, 3]], rtol=1e-12)


# ---- laws


def random_unroll(steps, rows, dtype=np.float64):
    """rew, discount, value, value_next, last; ends about one row in five, half of them terminated."""
    rng = np.random.default_rng([steps, rows])
    last = rng.random((steps, rows)) < 0.2
    terminated = last & (rng.random((steps, rows)) < 0.5)
    rew, value, value_next = rng.normal(size=(3, steps, rows)).astype(dtype)
    return rew, (0.97 * ~terminated).astype(dtype), value, value_next, last


# Few columns are walked one by one, others in blocks of 256: below, at and above either bound.
SIZES = [(1, 1), (1, 7), (5, 1), (13, 3), (7, 4), (64, 33), (3, 256), (4, 257), (2, 600)]
DTYPES = [(np.float64, 1e-12), (np.float32, 1e-5)]


@pytest.mark.parametrize(("steps", "rows"), SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("lam", [0.0, 0.3, 0.95, 1.0])
def test_kernels_equal_references(steps, rows, dtype, tolerance, lam):
    rew, discount, _, value_next, last = unroll = random_unroll(steps, rows, dtype)
    pairs = [
        (lambda_return(rew, discount, value_next, last, lam), lambda_return_reference(rew, discount, value_next, last, lam)),
        (gae(*unroll, lam), gae_reference(*unroll, lam)),
        (discounted_return(rew, discount, last), discounted_return_reference(rew, discount, last)),
        (discounted_return(rew, discount, last, value_next), discounted_return_reference(rew, discount, last, value_next)),
    ]
    for got, expected in pairs:
        assert got.dtype == dtype and got.shape == (steps, rows)
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("steps", "rows"), SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(("lam", "rho_bar", "c_bar"), [(1.0, 1.0, 1.0), (0.9, 2.5, 0.5), (0.0, 1.0, 0.0), (1.0, np.inf, 1.0)])
def test_off_policy_kernels_equal_references(steps, rows, dtype, tolerance, lam, rho_bar, c_bar):
    *floats, last = random_unroll(steps, rows, dtype)
    log_ratio = np.random.default_rng(rows).normal(size=(steps, rows)).astype(dtype)
    gots = vtrace(*floats, log_ratio, last, rho_bar=rho_bar, c_bar=c_bar, lam=lam)
    wanted = vtrace_reference(*floats, log_ratio, last, rho_bar, c_bar, lam)
    for got, expected in zip(gots, wanted, strict=True):
        assert got.dtype == dtype and got.shape == (steps, rows)
        np.testing.assert_allclose(got, expected, rtol=4 * tolerance, atol=4 * tolerance)


@pytest.mark.parametrize(("steps", "rows"), SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("n", [1, 2, 5, 64, 100])
def test_n_step_targets_equal_reference(steps, rows, dtype, tolerance, n):
    rew, discount, _, value_next, last = random_unroll(steps, rows, dtype)
    got = n_step_targets(rew, discount, value_next, last, n)
    assert got.dtype == dtype and got.shape == (steps, rows)
    np.testing.assert_allclose(
        got, n_step_targets_reference(rew, discount, value_next, last, n), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize(("rows", "n"), [(0, 3), (1, 1), (7, 1), (33, 5)])
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_n_step_return_equals_reference(rows, n, dtype, tolerance):
    """With powers of one γ, and with a discount for each row."""
    rng = np.random.default_rng([rows, n])
    rew, valid = rng.normal(size=(rows, n)).astype(dtype), rng.integers(0, n + 1, rows)
    real = np.arange(n) < valid[:, None]
    rewards, counts = torch.from_numpy(np.where(real, rew, 0)), torch.from_numpy(valid)
    each = torch.from_numpy(np.where(real, 0.97, 1).astype(dtype))
    for parts in (n_step_return(rewards, [0.97**k for k in range(n + 1)], counts), n_step_return(rewards, each)):
        for got, expected in zip(parts, n_step_return_reference(rew, valid, 0.97), strict=True):
            assert got.numpy().dtype == dtype and got.shape == (rows,)
            np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def test_sums_are_kept_in_double():
    # One big reward, then many that are each below half its float32 spacing: summed in float32 they would vanish.
    rew = np.full(5001, 1e-4, np.float32)
    rew[-1] = 2048.0
    ones, last = np.ones(5001, np.float32), flags(5001, 5000)
    assert discounted_return(rew, ones, last)[0] == pytest.approx(2048.5, abs=1e-3)
    assert gae(rew, ones, 0 * ones, 0 * ones, last, 1.0)[0] == pytest.approx(2048.5, abs=1e-3)


@pytest.mark.parametrize("length", [1, 2, 5, 40])
def test_next_values_equal_reference(length):
    rng = np.random.default_rng(length)
    value, last = rng.normal(size=length), rng.random(length) < 0.3
    last[-1] = True
    boot = rng.normal(size=np.count_nonzero(last))
    np.testing.assert_array_equal(next_values(value, last, boot), next_values_reference(value, last, boot))


FUNCTIONS = {
    "lambda_return": lambda rew, discount, value, value_next, last: lambda_return(rew, discount, value_next, last, 0.9),
    "discounted_return": lambda rew, discount, value, value_next, last: discounted_return(rew, discount, last, value_next),
    "gae": lambda rew, discount, value, value_next, last: gae(rew, discount, value, value_next, last, 0.9),
}


def log_ratio_of(rew):
    """One for each row that is its own function, so that it goes where the rows go."""
    return 1.3 * np.sin(7 * np.asarray(rew))


FUNCTIONS |= {
    "lambda_return at 1": lambda rew, discount, value, value_next, last: lambda_return(rew, discount, value_next, last, 1.0),
    "n_step_targets": lambda rew, discount, value, value_next, last: n_step_targets(rew, discount, value_next, last, 3),
    "vtrace": lambda *unroll: vtrace(*unroll[:4], log_ratio_of(unroll[0]), unroll[4], rho_bar=1.5, lam=0.9)[0],
    "vtrace advantage": lambda *unroll: vtrace(*unroll[:4], log_ratio_of(unroll[0]), unroll[4], rho_bar=1.5, lam=0.9)[1],
}
each_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())


@each_function
def test_two_episodes_in_one_unroll_equal_two_unrolls(function):
    first, second = random_unroll(6, 3), random_unroll(4, 3)
    first[-1][-1] = True
    together = function(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))
    np.testing.assert_array_equal(together, np.concatenate([function(*first), function(*second)]))


@each_function
def test_the_final_row_is_cut_whether_it_says_so_or_not(function):
    *floats, last = random_unroll(6, 3)
    said = last.copy()
    said[-1] = True
    np.testing.assert_array_equal(function(*floats, last), function(*floats, said))


@each_function
def test_rows_of_a_batch_never_meet(function):
    unroll = random_unroll(6, 4)
    alone = [function(*(field[:, b] for field in unroll)) for b in range(4)]
    assert alone[0].shape == (6,)
    np.testing.assert_array_equal(function(*unroll), np.stack(alone, axis=1))


@each_function
def test_memory_order_does_not_matter_and_nothing_is_written_to(function):
    unroll = random_unroll(6, 4)
    before = [field.copy() for field in unroll]
    expected = function(*unroll)
    np.testing.assert_array_equal(function(*(np.asfortranarray(field) for field in unroll)), expected)
    np.testing.assert_array_equal(function(*(field[::-1] for field in (f[::-1].copy() for f in unroll))), expected)
    for field in unroll:
        field.flags.writeable = False
    np.testing.assert_array_equal(function(*unroll), expected)
    for field, old in zip(unroll, before, strict=True):
        np.testing.assert_array_equal(field, old)


@each_function
def test_dtypes_may_be_mixed(function):
    *floats, last = random_unroll(6, 4, np.float32)
    expected = function(*floats, last)
    for i in range(4):
        mixed = [field.astype(np.float64) if k == i else field for k, field in enumerate(floats)]
        got = function(*mixed, last)
        assert got.dtype == (np.float64 if i == 0 else np.float32)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
        swapped = [field.astype(">f4") if k == i else field for k, field in enumerate(floats)]
        np.testing.assert_allclose(function(*swapped, last), expected, rtol=1e-5, atol=1e-5)


@each_function
def test_lists_and_odd_addresses_are_copied(function):
    *floats, last = random_unroll(6, 4)
    expected = function(*floats, last)
    np.testing.assert_array_equal(function(*(field.tolist() for field in floats), last.tolist()), expected)

    def shifted(field):
        raw = np.zeros(field.nbytes + 1, np.uint8)
        raw[1:] = np.frombuffer(field.tobytes(), np.uint8)
        return raw[1:].view(field.dtype).reshape(field.shape)

    assert not shifted(floats[0]).flags.aligned
    np.testing.assert_array_equal(function(*(shifted(field) for field in floats), last), expected)


@each_function
@pytest.mark.parametrize("rows", [2, 9])
@pytest.mark.parametrize("poison", [np.inf, np.nan])
def test_nothing_over_a_cut_counts_not_even_what_is_no_number(function, rows, poison):
    rew, discount, value, value_next, last = random_unroll(8, rows)
    last[3] = True
    expected = function(rew, discount, value, value_next, last)[:4]
    for field in (rew, value, value_next):
        field[4:] = poison
    with np.errstate(invalid="ignore"):  # in making the ratios of these rows
        got = function(rew, discount, value, value_next, last)[:4]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("rows", [2, 9])
def test_values_inside_a_segment_are_not_read(rows):
    """discounted_return, and n-step targets before their last row."""
    rew, discount, _, value_next, last = random_unroll(8, rows)
    last[-1] = True
    holes = np.where(last, value_next, np.nan)
    expected = discounted_return(rew, discount, last, value_next)
    np.testing.assert_array_equal(discounted_return(rew, discount, last, holes), expected)
    np.testing.assert_array_equal(lambda_return(rew, discount, holes, last, 1.0), expected)
    np.testing.assert_array_equal(lambda_return_reference(rew, discount, holes, last, 1.0), expected)
    np.testing.assert_allclose(n_step_targets(rew, discount, holes, last, 8), expected, rtol=1e-12)
    assert np.isfinite(n_step_targets(rew, discount, holes, last, 3)[-3:]).all()


def test_n_step_targets_between_one_step_and_all():
    rew, discount, _, value_next, last = random_unroll(9, 5)
    one, every = lambda_return(rew, discount, value_next, last, 0.0), lambda_return(rew, discount, value_next, last, 1.0)
    np.testing.assert_allclose(n_step_targets(rew, discount, value_next, last, 1), one, rtol=1e-12)
    for n in (9, 10):
        np.testing.assert_allclose(n_step_targets(rew, discount, value_next, last, n), every, rtol=1e-12)


def chained(steps, rows):
    """A random unroll where value_next[t] is value[t+1] inside a segment."""
    rew, discount, value, value_next, last = random_unroll(steps, rows)
    last[-1] = True
    return rew, discount, value, np.where(last, value_next, np.roll(value, -1, axis=0)), last


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_on_policy_vtrace_is_the_lambda_return(lam):
    rew, discount, value, value_next, last = unroll = chained(23, 5)
    target, advantage = vtrace(rew, discount, value, value_next, np.zeros_like(rew), last, lam=lam)
    expected = lambda_return(rew, discount, value_next, last, lam)
    np.testing.assert_allclose(target, expected, rtol=1e-10, atol=1e-12)
    # A[t] bootstraps from v[t+1]: with λ = 1 that is all there is, the discounted return less the value.
    following = np.where(last, value_next, np.roll(target, -1, axis=0))
    np.testing.assert_allclose(advantage, rew + discount * following - value, rtol=1e-10, atol=1e-12)
    if lam == 1.0:
        np.testing.assert_allclose(target, discounted_return(rew, discount, last, value_next), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(advantage, gae(*unroll, 1.0), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(target, n_step_targets(rew, discount, value_next, last, 23), rtol=1e-10, atol=1e-12)


def test_vtrace_is_the_sum_of_the_paper():
    """Equation 1 as it is printed, without the recursion: v_s = V_s + Σ_t γ^(t−s) (Π_{i<t} c_i) δ_t, one segment, γ fixed."""
    rng = np.random.default_rng(3)
    rew, log_ratio, value = rng.normal(size=7), rng.normal(size=7), rng.normal(size=8)
    ratio, gamma = np.exp(log_ratio), 0.9
    rho, c = np.minimum(1.2, ratio), np.minimum(0.8, ratio)
    delta = rho * (rew + gamma * value[1:] - value[:-1])
    v = [value[s] + sum(gamma ** (t - s) * np.prod(c[s:t]) * delta[t] for t in range(s, 7)) for s in range(7)]
    target, advantage = vtrace(rew, np.full(7, gamma), value[:-1], value[1:], log_ratio, flags(7, 6), rho_bar=1.2, c_bar=0.8)
    np.testing.assert_allclose(target, v, rtol=1e-12)
    np.testing.assert_allclose(advantage, rho * (rew + gamma * np.append(v[1:], value[7]) - value[:-1]), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_that_one_policy_never_takes(dtype):
    rew, discount, value, value_next, last = random_unroll(6, 5, dtype)
    huge, never = np.full_like(rew, 1e4), np.full_like(rew, -np.inf)
    # Far more likely than exp can say: clipped like any other, and nothing is warned of.
    for got, expected in zip(
        vtrace(rew, discount, value, value_next, huge, last),
        vtrace(rew, discount, value, value_next, 0 * rew, last),
        strict=True,
    ):
        np.testing.assert_array_equal(got, expected)
    target, advantage = vtrace(rew, discount, value, value_next, never, last)
    np.testing.assert_array_equal(target, value)
    assert not advantage.any()
    unknown = np.zeros_like(rew)
    unknown[2, 1] = np.nan  # is not clipped away
    assert np.isnan(vtrace(rew, discount, value, value_next, unknown, last)[0][2, 1])


@pytest.mark.parametrize(("dtype", "low", "high"), [(np.float32, -87, 88), (np.float64, -708, 709)])
@pytest.mark.parametrize("rows", [1, 16])
def test_the_exponential_is_numpys(dtype, low, high, rows):
    """With ρ̄ infinite, reward 1 and no values the advantage is ρ itself, over all that the kernel's own exp takes for finite."""
    x = np.linspace(low, high, 1600 * rows).astype(dtype).reshape(-1, rows)
    one, none, every = np.ones_like(x), np.zeros_like(x), np.ones(x.shape, bool)
    ratio = vtrace(one, one, none, none, x, every, rho_bar=np.inf)[1]
    np.testing.assert_allclose(ratio, np.exp(x.astype(np.longdouble)).astype(dtype), rtol=2 * np.finfo(dtype).eps)
    x[:3] = [[-np.inf] * rows, [np.inf] * rows, [np.nan] * rows]
    np.testing.assert_array_equal(vtrace(one, one, none, none, x, every, rho_bar=np.inf)[1][:3, 0], [0, np.inf, np.nan])


def test_special_cases_of_lambda():
    rew, discount, value, value_next, last = random_unroll(9, 3)
    one_step = rew + discount * value_next
    np.testing.assert_allclose(lambda_return(rew, discount, value_next, last, 0.0), one_step, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(gae(rew, discount, value, value_next, last, 0.0), one_step - value, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        lambda_return(rew, discount, value_next, last, 1.0), discounted_return(rew, discount, last, value_next), rtol=1e-12
    )


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_advantage_plus_value_is_the_lambda_return_of_chained_values(lam):
    rew, discount, value, _, last = (field[:, 0] for field in random_unroll(23, 1))
    last[-1] = True
    value_next = next_values(value, last, np.arange(np.count_nonzero(last), dtype=float))
    got = gae(rew, discount, value, value_next, last, lam) + value
    np.testing.assert_allclose(got, lambda_return(rew, discount, value_next, last, lam), rtol=1e-12)


def test_other_numbers_are_float64():
    got = discounted_return([1, 2, 3], [0.5, 0.5, 0.0], [False, False, True])
    assert got.dtype == np.float64 and got.tolist() == [2.75, 3.5, 3.0]
    assert discounted_return(np.ones(2, np.float16), np.ones(2), flags(2, 1)).dtype == np.float64
    assert discounted_return(np.ones((3, 0)), np.ones((3, 0)), np.ones((3, 0), bool)).shape == (3, 0)
    mixed = lambda_return(REW.astype(np.float32), DISCOUNT, VALUE_NEXT, LAST, 0.5)
    assert mixed.dtype == np.float32 and mixed.tolist() == [3.0, 6.0, 6.5, 4.0, 8.0]


# ---- errors


def test_shapes_are_checked_by_name():
    with pytest.raises(ValueError, match=r"lambda_return: `value_next` has shape \(4,\); expected .* like `rew` \(5,\)"):
        lambda_return(REW, DISCOUNT, VALUE_NEXT[:4], LAST, 0.5)
    with pytest.raises(ValueError, match=r"gae: `last` has shape \(5, 1\)"):
        gae(REW, DISCOUNT, REW, VALUE_NEXT, LAST[:, None], 0.5)
    with pytest.raises(ValueError, match=r"discounted_return: `discount`"):
        discounted_return(REW, 0.5, LAST)
    with pytest.raises(ValueError, match="T ≥ 1"):
        discounted_return(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 3), bool))
    with pytest.raises(ValueError, match="T ≥ 1"):
        discounted_return(1.0, 0.5, True)


@pytest.mark.parametrize("lam", [-0.1, 1.1, np.nan])
def test_fractions_are_checked(lam):
    with pytest.raises(ValueError, match=r"`lam` is .*; expected a number in \[0, 1\]"):
        lambda_return(REW, DISCOUNT, VALUE_NEXT, LAST, lam)
    with pytest.raises(ValueError, match="`lam`"):
        gae(REW, DISCOUNT, REW, VALUE_NEXT, LAST, lam)


def test_clips_and_counts_are_checked():
    for rho_bar, c_bar in [(0.5, 1.0), (1.0, -0.1), (np.nan, 1.0), (1.0, np.nan)]:
        with pytest.raises(ValueError, match=r"vtrace: `c_bar` is .* and `rho_bar` .*; expected 0 ≤ c_bar ≤ rho_bar"):
            vtrace(REW, DISCOUNT, REW, VALUE_NEXT, LOG_RATIO, LAST, rho_bar=rho_bar, c_bar=c_bar)
    with pytest.raises(ValueError, match=r"vtrace: `lam` is 2"):
        vtrace(REW, DISCOUNT, REW, VALUE_NEXT, LOG_RATIO, LAST, lam=2)
    with pytest.raises(ValueError, match=r"vtrace: `log_ratio` has shape \(4,\); expected .* like `rew` \(5,\)"):
        vtrace(REW, DISCOUNT, REW, VALUE_NEXT, LOG_RATIO[:4], LAST)


@pytest.mark.parametrize("name", ["lambda_return", "gae", "vtrace"])
def test_kernels_themselves_refuse_what_they_cannot_read(name):
    """They get raw memory: nothing of another shape, type or order may pass."""
    n_floats, numbers, n_out = {
        "lambda_return": (3, (0.9,), 1), "gae": (4, (0.9,), 1),
        "vtrace": (5, (0.9, 1.0, 1.0), 2),
    }[name]  # fmt: skip
    x, last = np.ones((4, 6)), np.zeros((4, 6), bool)
    locked = np.ones((4, 6))
    locked.flags.writeable = False

    def call(*, ends=last, at=None, by=x):
        arrays = [x] * n_floats + [np.ones((4, 6)) for _ in range(n_out)]
        if at is not None:
            arrays[at] = by
        getattr(_returns, name)(*arrays[:n_floats], ends, *numbers, *arrays[n_floats:])

    call()
    wrong = [np.ones((4, 5)), np.ones((3, 6)), np.ones(24), np.ones((4, 6, 1)), np.ones((4, 6), np.float32),
             np.ones((4, 6), np.int64),
             np.asfortranarray(x), np.ones((4, 12))[:, ::2], [[1.0] * 6] * 4, None, np.ones((4, 6), complex)]  # fmt: skip
    for by in wrong:
        for at in range(n_floats + n_out):
            with pytest.raises((TypeError, ValueError)):
                call(at=at, by=by)
    for ends in (np.zeros((4, 6), np.uint8), np.zeros((4, 7), bool), np.zeros(24, bool), np.asfortranarray(last), x, None):
        with pytest.raises((TypeError, ValueError)):
            call(ends=ends)
    for at in range(n_floats, n_floats + n_out):
        with pytest.raises((TypeError, ValueError)):
            call(at=at, by=locked)


def test_last_must_be_bool():
    for call in (
        lambda: vtrace(REW, DISCOUNT, REW, VALUE_NEXT, LOG_RATIO, LAST.astype(np.uint8)),
        lambda: lambda_return(REW, LAST, VALUE_NEXT, DISCOUNT, 0.5),  # discount and last exchanged
        lambda: discounted_return(REW, DISCOUNT, LAST.astype(int)),
        lambda: next_values(REW, DISCOUNT, REW),
    ):
        with pytest.raises(TypeError, match=r"`last` is .*; expected bool"):
            call()


def test_next_values_refusals():
    with pytest.raises(ValueError, match="the final row is not `last`"):
        next_values(REW, LAST, np.zeros(2))
    with pytest.raises(ValueError, match=r"`boot` has shape \(3,\); expected one value per last row: \(2,\)"):
        next_values(REW[:4], LAST[:4], np.zeros(3))
    with pytest.raises(ValueError, match=r"expected both \[T\]"):
        next_values(REW[:, None], LAST[:, None], np.zeros(2))
    with pytest.raises(ValueError, match="T ≥ 1"):
        next_values(np.zeros(0), np.zeros(0, bool), np.zeros(0))


def test_n_step_refusals():
    rew, valid = torch.ones(2, 3), torch.tensor([1, 3])
    for call in (lambda: n_step_return(rew, [1.0, 0.9], valid), lambda: n_step_return(rew, [1.0, 0.9, 0.81, 0.729])):
        with pytest.raises(ValueError, match="expected 4 powers γ⁰ … γⁿ, and `valid`"):
            call()
    for bad, discount in ((rew, torch.ones(2, 2)), (torch.ones(2, 0), torch.ones(2, 0))):
        with pytest.raises(ValueError, match=r"expected both \[..., n\], n ≥ 1"):
            n_step_return(bad, discount)


# ---- the kernels let other threads run


def kernel_calls():
    n = 200_000
    x, last, out = np.ones((1, n), np.float32), np.zeros((1, n), bool), np.ones((1, n), np.float32)
    return {
        "lambda_return": lambda: _returns.lambda_return(x, x, x, last, 0.9, out),
        "gae": lambda: _returns.gae(x, x, x, x, last, 0.9, out),
        "vtrace": lambda: _returns.vtrace(x, x, x, x, x, last, 0.9, 1.0, 1.0, out, out),
    }


@pytest.mark.parametrize("name", ["lambda_return", "gae", "vtrace"])
def test_kernels_release_the_gil(name):
    let_others_run(kernel_calls()[name], 1000, f"kernel-{name}")
