"""Tasks that ask other tasks while they learn: with the newest parameters, in no circle, under every driver."""

import sys
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from transport_fakes import Drift

from parl_like import OffPolicyHelper, Robot
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopAfterSteps, StopWhen
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.explorers import Categorical
from parl_like.learning.model import Model
from parl_like.tasks.task import ComputationTask
from parl_like.values.spec import SpecError


class Scale(Model):
    def __init__(self, n=1):
        super().__init__(gym.spaces.Box(-np.inf, np.inf, (n,), np.float32), gym.spaces.Discrete(3))
        self.w = torch.nn.Parameter(torch.zeros(()))


class Predictor(Algorithm):
    """Random network distillation (Burda et al. 2019) in one number: f(x) = w x learns the fixed g(x) = x. The bonus of a row is
    its error, |f(x) − g(x)|²."""

    def __init__(self, n=1, lr=0.25):
        super().__init__(Scale(n), lr=lr)

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=self.lr)

    def predict(self, inputs):
        return {"bonus": (self.model.w * inputs.obs - inputs.obs).square().sum(1)}

    def learn(self, batch):
        return {"loss": self.predict(batch)["bonus"].mean()}


class Policy(Algorithm):
    """Acts at random, and learns a value of all rows together: w ← w + ½ (mean bonus − w)."""

    def __init__(self, n=1):
        super().__init__(Scale(n), lr=0.25)

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=self.lr)

    def explorer(self):
        return Categorical()

    def predict(self, inputs):
        return {"logits": torch.zeros(len(inputs.obs), 3)}

    def process(self, batch):
        batch.rew = self.ask("RND", obs=batch.obs)["bonus"]
        return batch

    def learn(self, batch):
        return {"loss": (self.model.w - batch.rew).square().mean(), "bonus": batch.rew.mean()}


def replaying(learn_every=4):
    return OffPolicyHelper(size=500, batch_size=8, learn_every=learn_every)


def two(n=1, serve="central", **options):
    return {"RL": ComputationTask(partial(Policy, n), replaying, asks=["RND"], serve=serve, **options),
            "RND": ComputationTask(partial(Predictor, n, 0.01), replaying, serve=serve)}


def test_rewards_are_those_of_the_moment_not_frozen():
    tasks = {"RL": ComputationTask(Policy, asks=["RND"]), "RND": ComputationTask(Predictor)}
    rows = {"obs": np.array([[1.0], [-1.0]], np.float32)}
    with Robot(tasks=tasks):
        # With x² = 1 the bonus is (w − 1)², its slope 2 (w − 1): w goes half of the way to 1, so the bonus falls to a quarter.
        for version, bonus in enumerate((1.0, 0.25, 0.0625)):
            out = tasks["RL"].learn(rows)
            assert (out["bonus"], out["version/RND"]) == (bonus, version)
            tasks["RND"].learn(rows)
    # 0 → ½ → ½ − ½ (½ − ¼) = ⅜ → ⅜ − ½ (⅜ − 1/16) = 7/32
    assert tasks["RL"].algorithm.model.w.item() == 7 / 32


def test_who_asks_gets_the_newest_parameters_also_where_agents_get_older_ones():
    tasks = {"RL": ComputationTask(Policy, asks=["RND"]), "RND": ComputationTask(Predictor)}
    rows = {"obs": np.ones((1, 1), np.float32)}
    with Robot(tasks=tasks):
        tasks["RND"].publish()
        tasks["RND"].learn(rows)
        assert tasks["RND"].predict(rows)["bonus"] == 1.0  # the acting copies have not been renewed
        assert tasks["RL"].learn(rows)["bonus"] == 0.25


def test_a_network_of_both_learns_on_in_its_training_mode():
    trunk = torch.nn.Dropout(0.5)

    class Seen(Policy):
        def __init__(self):
            super().__init__()
            self.model.trunk, self.modes = trunk, []

        def process(self, batch):
            before = trunk.training
            batch = super().process(batch)
            self.modes.append((before, trunk.training))
            return batch

    class Trunked(Predictor):
        def __init__(self):
            super().__init__()
            self.model.trunk = trunk

    tasks = {"RL": ComputationTask(Seen, asks=["RND"]), "RND": ComputationTask(Trunked)}
    with Robot(tasks=tasks):
        tasks["RL"].learn({"obs": np.ones((1, 1), np.float32)})
    assert tasks["RL"].algorithm.modes == [(True, True)] and not trunk.training


def test_what_cannot_be_asked_is_refused():
    def robot(**asks):
        return Robot(tasks={name: ComputationTask(Policy, asks=asked) for name, asked in asks.items()})

    with pytest.raises(KeyError, match="task 'RL' asks: no task 'RMD'; did you mean 'RND'"):
        robot(RL=["RMD"], RND=[])
    with pytest.raises(ValueError, match="in a circle, a → b → c → a, and could wait"):
        robot(a=["b"], b=["c"], c=["a"])
    with pytest.raises(ValueError, match="in a circle, RL → RL"):
        robot(RL=["RL"])
    rows = {"obs": np.ones((1, 1), np.float32)}
    with pytest.raises(ValueError, match=r"Policy: ask\('RND'\) .* ComputationTask\(..., asks=\['RND'\]\)"):
        ComputationTask(Policy).learn(rows)
    tasks = {"RL": ComputationTask(Policy, asks=["other"]), "other": ComputationTask(Predictor)}
    with Robot(tasks=tasks):
        with pytest.raises(ValueError, match=r"task 'RL' asks 'RND', which it does not declare \(asks=\['other'\]\)"):
            tasks["RL"].learn(rows)
        with pytest.raises(ValueError, match="is for process and learn"):
            tasks["RL"].algorithm.ask("other", obs=torch.ones(1, 1))
    tasks = two(n=3)
    with Robot(tasks=tasks), pytest.raises(SpecError, match=r"task 'RL' asks 'RND': expected rows of {'obs': \(3,\)}, got"):
        tasks["RL"].learn(rows)


def test_those_who_ask_each_other_have_one_lock():
    tasks = {name: ComputationTask(Policy, asks=asked)
             for name, asked in dict(a=["c"], b=["c", "d"], c=[], d=[], e=[]).items()}
    with Robot(tasks=tasks):
        assert len({id(tasks[name].lock) for name in "abcd"}) == 1 and tasks["e"].lock is not tasks["a"].lock


def run(n_steps, tmp_path=None, **options):
    """What a run leaves; with a path, one that is interrupted half-way, and resumed by another robot."""
    def robot():
        return Robot(Drift, tasks=two(3), n_agents=3, trace=True, **options)

    with robot() as first:
        first.run(StopAfterSteps(n_steps // 2))
        first.checkpoint_boundary()
        if tmp_path is not None:
            first.save(tmp_path / "half")
        else:
            first.run(StopAfterSteps(n_steps // 2))
            return first.trace_hash(), first.counters(), first.metrics()["RL/version/RND"]
    with robot() as second:
        second.load(tmp_path / "half")
        second.run(StopAfterSteps(n_steps // 2))
        return second.trace_hash(), second.counters(), second.metrics()["RL/version/RND"]


def test_runs_with_one_seed_are_equal_and_so_is_a_resumed_one(tmp_path):
    whole = run(240)
    assert whole == run(240) == run(240, tmp_path) and whole[1]["updates/RL"] > 20 and whole[2] > 10


DRIVERS = [("cooperative", "central"), ("threads", "central")]
if sys.platform == "linux":
    DRIVERS += [(Processes(workers=2), "central"), (Processes(workers=2), "replica")]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("driver", "serve"), DRIVERS, ids=lambda value: getattr(value, "name", value))
def test_nobody_waits_for_ever_where_both_learn_often(driver, mode, serve):
    """Beside them a third, which asks both and shares the predictor's parameters with nobody."""
    tasks = {**two(3, serve), "third": ComputationTask(partial(Third, 3), replaying, asks=["RL", "RND"], serve=serve)}
    with Robot(Drift, tasks=tasks, n_agents=4, driver=driver, mode=mode) as robot:
        robot.run(StopWhen(lambda robot: all(task.algorithm.updates >= 12 for task in tasks.values())))
        assert {"third/version/RL", "third/version/RND"} <= robot.metrics().keys()


class Third(Policy):
    def process(self, batch):
        self.ask("RL", obs=batch.obs)
        return super().process(batch)
