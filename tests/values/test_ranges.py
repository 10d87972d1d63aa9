"""Numbers that are out of range, of every class of which a robot is built, are refused where they are given."""

import inspect
import math
import re

import gymnasium as gym
import numpy as np
import pytest

from parl_like import BatchRule, ComputationTask, Model, OffPolicyHelper, Robot, VectorAgent
from parl_like.algorithms import DQN, PPO
from parl_like.environment.stop_conditions import StopAfterSeconds, StopAfterSteps, StopAtReturn, StopWithoutImprovement
from parl_like.lab.user_experiments import candidates
from parl_like.models import MLPQ, MLPActorCritic
from parl_like.robots.settings import CATALOGUE, _of_kind
from parl_like.values.ranges import RANGES, settings_of

OBS, ACT = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)
CLASSES = {one.__name__: one for kind, paths in CATALOGUE.items() if kind != "Wrapper"
           for one in _of_kind(kind, candidates("", paths)[1]).values()}
CLASSES |= {one.__name__: one for one in (
    ComputationTask, VectorAgent, Robot, StopAfterSteps, StopAfterSeconds, StopAtReturn, StopWithoutImprovement)}
OWNERS = {one.__qualname__: one for kind in CLASSES.values() for one in kind.__mro__
          if one.__module__.startswith("parl_like") and hasattr(vars(one).get("__init__"), "__wrapped__")}
SETTINGS = [(owner, name) for owner, kind in OWNERS.items() for name in settings_of(inspect.unwrap(vars(kind)["__init__"]))]
TO_INFINITY = ("high", "low", "c_bar", "rho_bar", "seconds")
SIGNED = ("correlation", "floor", "keep", "log_std_init", "reward_mean", "reward_scale", "scale", "shift", "start",
          "target_entropy", "target_return", "threshold", "v_max", "v_min")


def wrong(owner, name, kinds):
    """Values that no setting of this name and type takes."""
    numbers = {"int", "float"} & {*kinds} or {"int" if any("int" in kind for kind in kinds) else "float"}
    values = ["x"] if numbers else []
    if "bool" in kinds and not {"int", "float"} & {*kinds}:
        return ["x", 1.5, math.nan, 0]
    values += [True, math.nan]
    if name != "seed":
        values.append(10**400)
    if "float" not in numbers:
        values += [1.5, math.inf, -1]
    elif name not in TO_INFINITY:
        values += [math.inf, *([] if name in SIGNED else [-1, -1e-9])]
    allowed = RANGES.get(f"{owner}.{name}", RANGES.get(name))
    if ("float" not in numbers and (allowed is None or allowed.low == 1)
            or allowed is not None and (allowed.low, allowed.above) == (0, True)):
        values.append(0)
    if any(kind.startswith("Sequence") for kind in kinds) and not {"int", "float"} & {*kinds}:
        return [[value] for value in values] + [7, "x"]
    return values


@pytest.mark.parametrize("owner", OWNERS)
def test_every_number_out_of_range_is_refused_by_name(owner):
    """Before anything is made of it: so what else the constructor needs is not given."""
    kind = OWNERS[owner]
    for name, setting in settings_of(inspect.unwrap(vars(kind)["__init__"])).items():
        for value in wrong(owner, name, setting.kinds):
            if name in TO_INFINITY and value == 10**400:
                continue
            said = ""
            try:
                object.__new__(kind).__init__(**{name: value})
            except (TypeError, ValueError) as error:
                said = str(error)
            assert re.search(rf"{owner}: {name} is {re.escape(repr(value)[:60])}.*; expected \S", said), (name, value, said)


@pytest.mark.parametrize("owner", OWNERS)
def test_every_default_is_in_its_range(owner):
    made = inspect.unwrap(vars(OWNERS[owner])["__init__"])
    for name, setting in settings_of(made).items():
        if (default := inspect.signature(made).parameters[name].default) is not inspect.Parameter.empty:
            setting.check(owner, default)


def test_the_table_has_no_name_that_is_no_setting():
    known = {name for _, name in SETTINGS} | {f"{owner}.{name}" for owner, name in SETTINGS}
    assert {*RANGES} <= known | {"max_queued", "max_wait"}  # of BatchRule


def test_a_return_to_stop_at_may_be_negative():
    assert StopAtReturn(-110.0).threshold == -110.0


@pytest.mark.parametrize(("make", "says"), [
    (lambda: MLPQ(OBS, ACT, hidden=[-3]), "MLPQ: hidden is [-3]; expected numbers, each at least 1"),
    (lambda: MLPQ(OBS, ACT, [0]), "MLPQ: hidden is [0]; expected numbers, each at least 1"),
    (lambda: MLPQ(OBS, ACT, [10**10]),
     "MLPQ: hidden is [10000000000]; expected numbers, each at least 1 and below 16777216; lower them"),
    (lambda: DQN(MLPQ(OBS, ACT), gamma=2), "DQN: gamma is 2; expected a number in [0, 1]"),
    (lambda: DQN(MLPQ(OBS, ACT), lr=math.nan), "DQN: lr is nan; expected a finite number, at least 0 or a schedule"),
    (lambda: DQN(MLPQ(OBS, ACT), tau=-1), "DQN: tau is -1; expected a number in [0, 1] or None"),
    (lambda: OffPolicyHelper(batch_size=0), "OffPolicyHelper: batch_size is 0; expected at least 1"),
    (lambda: Robot.of("DQN", "CartPole-v1", hidden=[0]), "Robot.of: MLPQ: hidden is [0]; expected numbers, each at least 1"),
])
def test_what_a_refusal_says(make, says):
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        make()


def test_numbers_of_numpy_are_numbers():
    learner = PPO(MLPActorCritic(OBS, ACT), clip=np.float32(0.1), epochs=np.int64(2), normalize=np.bool_(True))
    assert (learner.epochs, learner.n_minibatches) == (2, 4)
    assert [tuple(one.shape) for one in MLPQ(OBS, ACT, hidden=np.array([4, 5])).parameters()][::2] == [(4, 3), (5, 4), (2, 5)]


def test_an_assigned_setting_has_the_same_range():
    task = ComputationTask(lambda: DQN(MLPQ(OBS, ACT), tau=0.1))
    task.build()
    for name, value in (("tau", -1), ("tau", math.nan), ("lr", math.inf), ("max_grad_norm", 0)):
        with pytest.raises(ValueError, match=f"DQN: {name} is {value}; expected"):
            setattr(task.algorithm, name, value)
    task.algorithm.tau, task.algorithm.max_grad_norm = 0.5, None


class Mine(MLPQ):
    """A network of a user's own, whose settings are its own affair."""

    def __init__(self, obs, act, hidden=(4,), gamma: "float" = 1.5):
        super().__init__(obs, act, hidden)
        self.gamma = gamma


def test_a_robot_takes_classes_of_networks_and_helpers():
    with Robot.of("DQN", "CartPole-v1", model=Mine, helper=OffPolicyHelper, n_agents=1,
                  **{"Mine.gamma": 2.5}) as robot:
        assert type(robot.tasks["RL"].algorithm.model) is Mine and robot.tasks["RL"].algorithm.model.gamma == 2.5
    for key, value, kind in (("model", 3, "Model"), ("model", OffPolicyHelper, "Model"), ("helper", Model, "AgentHelper")):
        with pytest.raises(ValueError, match=rf"Robot.of: {key} is {re.escape(repr(value)[:60])}; expected the name of a {kind}"):
            Robot.of("DQN", "CartPole-v1", **{key: value})


def test_a_rule_of_batches_is_checked():
    with pytest.raises(ValueError, match="max_rows is 0"):
        BatchRule(max_rows=0)
