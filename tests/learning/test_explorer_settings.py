"""Every constructor argument of every explorer, assigned once its helper has joined the task: the next noise or action goes by
it, or the assignment is refused by name."""

import inspect

import gymnasium as gym
import numpy as np
import pytest

from parl_like.learning import explorers
from parl_like.learning.explorers import Explorer, Noise, StructuredExplorer
from parl_like.learning.schedule import Linear

N, A = 6, 3
KINDS = {name: kind for name in explorers.__all__ if isinstance(kind := getattr(explorers, name), type)
         and issubclass(kind, Explorer) and kind not in (Explorer, StructuredExplorer)}  # without arguments, and of others
GIVEN = {"shape": 2, "n": A, "nvec": (2, 3), "features": 4, "std": 0.3, "epsilon": 0.5, "temperature": 1.0, "c": 1.0,
         "correlation": 0.5, "theta": 0.2, "dt": 1.0, "period": 5, "log_prob": False, "random_ties": True, "each": False,
         "best": explorers.Categorical(), "act": gym.spaces.Dict({"a": gym.spaces.Discrete(2), "b": gym.spaces.Discrete(3)})}
OTHER = {"shape": 3, "n": 2, "nvec": (3, 2), "features": 3, "std": 0.9, "epsilon": 1.0, "temperature": 9.0, "c": 9.0,
         "correlation": 0.9, "theta": 0.9, "dt": 0.1, "period": 1, "log_prob": True, "random_ties": False, "each": True,
         "best": explorers.Softmax(), "act": gym.spaces.Tuple([gym.spaces.Discrete(2)] * 2)}


def given(name):
    return {key: GIVEN[key] for key in inspect.signature(KINDS[name]).parameters}


CASES = [(name, key) for name in KINDS for key in given(name)]


def out_of(kind):
    """A prediction with all that explorers read."""
    rng = np.random.default_rng(1)
    width = 5 if kind.startswith(("Multi", "Nested")) else A
    real = {key: rng.uniform(1.5, 2.0, (N, 2)).astype(np.float32) for key in ("alpha", "beta")}
    real |= {key: rng.uniform(-0.1, 0.1, (N, 2)).astype(np.float32) for key in ("mean", "log_std")}
    return {**real, "q": rng.normal(size=(N, width)), "logits": rng.normal(size=(N, width)).astype(np.float32),
            "weights": rng.random((N, width)), "counts": rng.integers(1, 9, (N, width)), "basis": rng.normal(size=(N, 4, 2)),
            "std": rng.uniform(0.5, 1.0, (N, width))}


def acts(name, change=lambda explorer: None, more=()):
    """What is done in some acts of which the first two are before the change."""
    explorer = KINDS[name](**{**given(name), **dict(more)})
    noise = Noise(explorer, np.random.default_rng(0), True, N)
    done = []
    for step in range(8):
        if step == 2:
            change(explorer)
        drawn = None if explorer.noise is None else explorer.draw(noise.rng, step * N, N)
        done.append({key: np.array(value) for key, value in explorer.act(out_of(name), drawn).items()})
        for lane in range(N * (step == 5)):
            noise.begin(lane)
    return done


@pytest.mark.parametrize(("name", "key"), CASES)
def test_an_assigned_setting_counts_from_the_next_act_or_is_refused_by_name(name, key):
    refused = []

    def change(explorer):
        try:
            setattr(explorer, key, OTHER[key])
        except AttributeError as error:
            refused.append(str(error))

    before, after = acts(name), acts(name, change)
    same = all(one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)
               for one, other in zip(before, after, strict=True))
    if refused:
        assert f"{name}.{key} cannot be assigned" in refused[0] and "explorer=" in refused[0] and same
    else:
        assert not same, f"{name}.{key} = {OTHER[key]} changes nothing"


def test_those_that_agents_have_for_themselves_can_be_changed():
    """So that a refusal is no way around the work."""
    for name, key in (("EpsilonGreedy", "epsilon"), ("MultiEpsilonGreedy", "epsilon"), ("Noisy", "std"),
                      ("OrnsteinUhlenbeck", "theta"), ("SquashedGaussian", "correlation"), ("GSDE", "period")):
        acts(name, lambda explorer, key=key: setattr(explorer, key, OTHER[key]))


@pytest.mark.parametrize(("name", "key", "value", "more"), [
    ("SquashedGaussian", "correlation", 0.5, {"correlation": 0.0}), ("EpsilonGreedy", "epsilon", [0.1, 0.2], {}),
    ("EpsilonGreedy", "epsilon", 0.1, {"epsilon": [0.1, 0.2]})])
def test_what_a_kind_of_noise_cannot_become_is_refused(name, key, value, more):
    with pytest.raises(AttributeError, match=f"{name}.{key} cannot be assigned once its helper has joined the task, "):
        acts(name, lambda explorer: setattr(explorer, key, value), more)


@pytest.mark.parametrize(("name", "key", "value", "error"), [
    ("EpsilonGreedy", "epsilon", 2.0, ValueError), ("EpsilonGreedy", "epsilon", "half", TypeError),
    ("Noisy", "std", -1.0, ValueError), ("SquashedGaussian", "correlation", 1.0, ValueError), ("GSDE", "period", 0, ValueError)])
def test_numbers_out_of_range_are_refused_where_they_are_assigned(name, key, value, error):
    with pytest.raises(error, match=f"{name}: {key} is "):
        acts(name, lambda explorer: setattr(explorer, key, value))


def test_a_schedule_may_be_assigned():
    done = acts("EpsilonGreedy", lambda explorer: setattr(explorer, "epsilon", Linear(1.0, 0.0, 10)))
    assert len(done) == 8
