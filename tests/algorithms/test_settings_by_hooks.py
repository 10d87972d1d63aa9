"""A hook sets what members are trained with while they run: it counts from the next update, or is refused by name with the way
out. What each assignment changes is in test_settings.py."""

import numpy as np
import pytest
import torch
from test_settings import DEFAULTS, HELPERS, algorithms, arguments, options_of, other_than, world_of

from parl_like import Robot
from parl_like.environment.hooks import EveryNSteps
from parl_like.learning.model import ArrayModel

WORDS = ("lr", "gamma", "epsilon", "clip", "temperature", "alpha", "beta", "entropy", "noise", "tau", "std")


def weights(task):
    model = task.algorithm.model
    return [model.table.copy()] if isinstance(model, ArrayModel) else [p.detach().clone() for p in model.parameters()]


def same(one, other):
    return all(bool((a == b).all()) for a, b in zip(one, other, strict=True))


def set_or_refused(algorithm, agents, key):
    """Sets another value; where the algorithm's explorer has it, that of every helper. Returns why not, or nothing."""
    value = other_than(key, vars(algorithm).get(key, 0.5))
    try:
        setattr(algorithm, key, value)
    except AttributeError as error:
        if "explorer" not in str(error):
            return str(error)
        for agent in agents:
            explorer = agent.helpers["RL"].explorer
            name = key if hasattr(explorer, key) else "std"
            setattr(explorer, name, 0.25)
            assert getattr(explorer, name) == 0.25
    return ""


@pytest.mark.parametrize("name", [name for name in DEFAULTS if DEFAULTS[name]["helper"] != "PopulationHelper"])
def test_a_hook_sets_what_a_member_is_trained_with(name):
    """At last the rates: with 0 nothing moves any more."""
    torch.manual_seed(0)
    kind, helper = getattr(algorithms, name), DEFAULTS[name]["helper"]
    keys = [key for key in arguments(kind) if key in WORDS or key.endswith("_lr")]
    rates = [key for key in arguments(kind) if key == "lr" or key.endswith("_lr") or key == "delta"]
    calls, seen, refused = [], [], {}

    def change(robot):
        task = robot.tasks["RL"]
        calls.append(task.learns)
        if len(calls) == 2:
            refused.update({key: why for key in keys if (why := set_or_refused(task.algorithm, robot.agents, key))})
        elif len(calls) == 3:
            for key in rates:
                if key not in refused:  # as of Thompson's bandit, whose posterior needs means
                    setattr(task.algorithm, key, 0.0)
        elif len(calls) > 3:
            seen.append(weights(task))

    options = {**options_of(name, arguments(kind)), **{f"{helper}.{key}": value for key, value in HELPERS[helper].items()}}
    options |= {"critic_hidden": (32, 32)} if name == "CrossQ" else {}
    with Robot.of(name, world_of(name), n_agents=1 if name == "PSRL" else 2, total_steps=2_000, seed=0, **options) as robot:
        robot.run(6 * 32 + 1, EveryNSteps(32, change))
        learns = robot.tasks["RL"].learns
        last = weights(robot.tasks["RL"])
    assert len(calls) == 6 and learns > calls[3] > 0, "it goes on learning"
    if set(rates) - set(refused):  # else it has none, as what draws from a posterior
        assert all(same(one, last) for one in seen), "a rate of 0 that a hook has set counts from the next update"
    assert not same(seen[0], [np.zeros_like(one) for one in seen[0]])
    for key, why in refused.items():
        assert key in why and kind.__name__ in why and any(sign in why for sign in ";:"), why
