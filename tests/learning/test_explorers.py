"""Explorers: probabilities, ties, legal actions, schedules. Every count is seeded, and tested within 4 standard errors."""

import numpy as np
import pytest
from buffer_twins import sample_categorical_reference

from parl_like.learning.algorithm import Exponential, Linear
from parl_like.learning.explorers import (
    GREEDY,
    Categorical,
    EpsilonGreedy,
    Explorer,
    Gaussian,
    MultiCategorical,
    all_best,
    best_actions,
    one_of,
    sample_categorical,
)

N = 40_000


def frequencies(explorer, out, n=N, seed=0):
    """How often each action is taken for one prediction, [A]."""
    rng = np.random.default_rng(seed)
    rows = {name: np.repeat(value[None], n, axis=0) for name, value in out.items()}
    act = explorer.act(rows, explorer.draw(rng, 0, n))["act"]
    return np.bincount(act, minlength=len(next(iter(out.values())))) / n


def close(found, expected, n=N):
    expected = np.asarray(expected)
    return bool((np.abs(found - expected) <= 4 * np.sqrt(expected * (1 - expected) / n)).all())


def test_epsilon_greedy_takes_each_action_as_often_as_it_should():
    assert close(frequencies(EpsilonGreedy(0.1), {"q": np.array([0.0, 1.0, 2.0, -1.0])}), [0.025, 0.025, 0.925, 0.025])


def test_ties_are_broken_at_random_where_asked_for():
    """Two best among 5: ε/5 + (1 − ε)/2 each."""
    q = {"q": np.array([1.0, 3.0, 0.0, 3.0, 2.0])}
    assert close(frequencies(EpsilonGreedy(0.2, random_ties=True), q), [0.04, 0.44, 0.04, 0.44, 0.04])
    assert close(frequencies(EpsilonGreedy(0.2), q), [0.04, 0.84, 0.04, 0.04, 0.04])
    assert EpsilonGreedy(0.2).kind() != EpsilonGreedy(0.2, random_ties=True).kind() == EpsilonGreedy(0.5, random_ties=True).kind()


def test_illegal_actions_are_never_taken_and_the_random_part_is_the_legal_ones():
    """ε 0.3, 3 legal of 5, the best of them is action 0: 0.7 + 0.1, 0.1, 0.1."""
    out = {"q": np.array([2.0, 9.0, 1.0, 0.0, 9.0]), "mask": np.array([1, 0, 1, 1, 0], np.int8)}
    for ties in (False, True):
        found = frequencies(EpsilonGreedy(0.3, random_ties=ties), out)
        assert close(found, [0.8, 0.0, 0.1, 0.1, 0.0]) and found[1] == found[4] == 0
    legal = np.array([False, True, False, True, False])
    found = frequencies(EpsilonGreedy(0.5, random_ties=True), {"q": np.array([7.0, 3.0, 7.0, 3.0, 7.0]), "mask": legal})
    assert close(found, [0.0, 0.5, 0.0, 0.5, 0.0]) and found[~legal].sum() == 0


def test_each_row_of_a_batch_keeps_to_its_own_mask():
    rng = np.random.default_rng(3)
    mask = rng.random((500, 6)) < 0.4
    mask[np.arange(500), rng.integers(6, size=500)] = True
    out = {"q": rng.normal(size=(500, 6)), "logits": rng.normal(size=(500, 6)).astype(np.float32), "mask": mask}
    for explorer in (EpsilonGreedy(0.5), EpsilonGreedy(0.5, random_ties=True), Categorical()):
        act = explorer.act(out, explorer.draw(rng, 0, 500))["act"]
        assert mask[np.arange(500), act].all()


@pytest.mark.parametrize("explorer",
                         [EpsilonGreedy(0.0), EpsilonGreedy(1.0), EpsilonGreedy(0.5, random_ties=True),
                          Categorical(log_prob=True)],
                         ids=["greedy", "random", "ties", "drawn"])
def test_a_mask_that_allows_nothing_allows_everything(explorer):
    """Such a row is predicted like one without a mask: the same actions, and log-probabilities that are numbers."""
    rng = np.random.default_rng(5)
    values = rng.normal(size=(200, 4)).astype(np.float32)
    out, noise = {"q": values, "logits": values}, explorer.draw(rng, 0, 200)
    free, none = explorer.act(out, noise), explorer.act({**out, "mask": np.zeros((200, 4), np.int8)}, noise)
    for name, expected in free.items():
        np.testing.assert_array_equal(none[name], expected)


def test_of_several_choices_each_has_a_mask_of_its_own():
    """The first choice has no legal alternative, so it has them all; the second has one."""
    rng = np.random.default_rng(6)
    explorer = MultiCategorical([2, 3], log_prob=True)
    out = {"logits": rng.normal(size=(300, 5)).astype(np.float32), "mask": np.array([[0, 0, 0, 1, 0]] * 300)}
    found = explorer.act(out, explorer.draw(rng, 0, 300))
    assert set(found["act"][:, 0]) == {0, 1} and set(found["act"][:, 1]) == {1} and np.isfinite(found["log_prob"]).all()


def test_all_best_actions_under_a_mask():
    values = np.array([[0, 1, 2, 1, 2, 1, 0]], float)
    mask = np.array([[1, 1, 0, 0, 0, 1, 1]], bool)
    assert np.flatnonzero(all_best(values, mask)).tolist() == [1, 5]  # the 2nd and the 6th, of value 1
    assert np.flatnonzero(all_best(values)).tolist() == [2, 4]
    assert best_actions(values, mask).tolist() == [1] and best_actions(values, None).tolist() == [2]
    assert one_of(all_best(values, mask), np.array([0.49])).tolist() == [1]
    assert one_of(all_best(values, mask), np.array([0.5])).tolist() == [5]


def test_schedules_count_acts_from_one():
    linear = Linear(0.9, 0.1, steps=8, warmup=3)
    found = [linear(k) for k in range(1, 14)]
    np.testing.assert_allclose(found, [0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1], atol=1e-12)
    exponential = Exponential(0.9, 0.1, decay=8, warmup=3)
    assert exponential(11) == pytest.approx(0.1 + 0.8 * np.exp(-1))  # after 10 calls


def test_the_explorer_asks_its_schedule_for_each_act():
    asked = []
    explorer = EpsilonGreedy(lambda count: asked.append(count) or 0.5)
    asked.clear()
    rng = np.random.default_rng(0)
    explorer.draw(rng, 0, 3)
    explorer.draw(rng, 3, 2)
    assert asked == [1, 2, 3, 4, 5]
    always_then_never = EpsilonGreedy(lambda count: float(count <= 2))
    assert (always_then_never.draw(rng, 0, 5) >= 0).tolist() == [True, True, False, False, False]


def test_a_draw_does_not_depend_on_what_is_predicted_nor_on_others():
    first, second = (EpsilonGreedy(0.3).draw(np.random.default_rng(9), 0, 64) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("epsilon", [-0.1, 1.5, lambda count: 2.0])
def test_epsilon_is_a_probability(epsilon):
    with pytest.raises(ValueError, match=r"expected a number in \[0, 1\]"):
        EpsilonGreedy(epsilon)


# --------------------------------------------------------------------------------------------------------------- distributions


def test_softmax_frequencies_and_log_probabilities():
    logits = np.log(np.array([0.1, 0.2, 0.7], np.float32))
    assert close(frequencies(Categorical(), {"logits": logits}), [0.1, 0.2, 0.7])
    out = Categorical(log_prob=True).act({"logits": np.repeat(logits[None], 3, 0)}, np.array([0.05, 0.25, 0.99]))
    assert out["act"].tolist() == [0, 1, 2]
    np.testing.assert_allclose(out["log_prob"], logits, atol=1e-6)


def test_masked_softmax_is_the_softmax_of_the_legal_ones():
    out = {"logits": np.log(np.array([0.1, 0.2, 0.7], np.float32)), "mask": np.array([True, True, False])}
    found = frequencies(Categorical(), out)
    assert close(found, [1 / 3, 2 / 3, 0.0]) and found[2] == 0


@pytest.mark.parametrize(("rows", "actions"), [(1, 1), (1, 2), (7, 3), (64, 18)])
def test_the_kernel_equals_the_reference(rows, actions):
    rng = np.random.default_rng(rows)
    logits = (5 * rng.normal(size=(rows, actions))).astype(np.float32)
    noise = rng.random(rows)
    noise[0] = GREEDY
    ours, reference = sample_categorical(logits, noise, True), sample_categorical_reference(logits, noise, True)
    np.testing.assert_array_equal(ours["act"], reference["act"])
    np.testing.assert_allclose(ours["log_prob"], reference["log_prob"], atol=1e-5)


def test_several_choices_are_independent():
    explorer = MultiCategorical([2, 3], log_prob=True)
    p = [np.array([0.3, 0.7]), np.array([0.5, 0.2, 0.3])]
    logits = np.log(np.concatenate(p)).astype(np.float32)
    out = explorer.act({"logits": np.repeat(logits[None], N, 0)}, explorer.draw(np.random.default_rng(0), 0, N))
    act = out["act"]
    assert act.shape == (N, 2)
    joint = np.bincount(act[:, 0] * 3 + act[:, 1], minlength=6) / N
    assert close(joint, np.outer(*p).ravel())
    np.testing.assert_allclose(out["log_prob"], np.log(p[0][act[:, 0]] * p[1][act[:, 1]]), atol=1e-5)
    greedy = explorer.act({"logits": logits[None]}, explorer.greedy()[None])["act"]
    assert greedy.tolist() == [[1, 0]]


def test_gaussian_moments_and_density():
    explorer = Gaussian(2, log_prob=True)
    mean, log_std = np.array([1.0, -2.0], np.float32), np.log(np.array([0.5, 2.0], np.float32))
    rows = {"mean": np.repeat(mean[None], N, 0), "log_std": np.repeat(log_std[None], N, 0)}
    out = explorer.act(rows, explorer.draw(np.random.default_rng(0), 0, N))
    act = out["act"]
    assert (np.abs(act.mean(0) - mean) < 4 * np.exp(log_std) / np.sqrt(N)).all()
    assert (np.abs(act.std(0) / np.exp(log_std) - 1) < 4 / np.sqrt(2 * N)).all()
    z = (act - mean) / np.exp(log_std)
    np.testing.assert_allclose(out["log_prob"], (-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(1), atol=1e-4)


@pytest.mark.parametrize(("explorer", "out", "best"), [
    (EpsilonGreedy(1.0), {"q": np.array([[0.0, 3.0, 1.0]])}, [1]),
    (EpsilonGreedy(1.0, random_ties=True), {"q": np.array([[0.0, 3.0, 1.0]])}, [1]),
    (Categorical(), {"logits": np.array([[0.0, 3.0, 1.0]], np.float32)}, [1]),
    (Gaussian(1), {"mean": np.array([[0.25]], np.float32), "log_std": np.array([[0.0]], np.float32)}, [[0.25]]),
])
def test_the_greedy_noise_takes_the_best_action(explorer, out, best):
    noise = np.array([explorer.greedy()], explorer.noise.dtype)
    assert explorer.act(out, noise)["act"].tolist() == best


@pytest.mark.parametrize(("explorer", "missing"), [(EpsilonGreedy(), "q"), (Categorical(), "logits"), (Gaussian(1), "mean"),
                                                   (MultiCategorical([2]), "logits")])
def test_a_prediction_without_what_the_explorer_reads_is_explained(explorer, missing):
    noise = np.array([explorer.greedy()])
    with pytest.raises(ValueError, match=f"{type(explorer).__name__} reads '{missing}' of the prediction, which has value; "
                                         "return it from"):
        explorer.act({"value": np.zeros(1)}, noise)


def test_an_explorer_of_ones_own_must_draw():
    with pytest.raises(TypeError, match="Explorer has a noise spec but no draw"):
        Explorer().draw(np.random.default_rng(0), 0, 1)
    assert Explorer().act({}, None) == {}
