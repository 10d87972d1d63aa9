"""Probes for users: shipped classes keep the laws, and a mistake is found by exactly the law that it breaks."""

import re
from copy import deepcopy

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from masked_pick import Locked

from parl_like import Algorithm, Batch, Model, ReplayBuffer, Window, probe_algorithm, probe_buffer, probe_env
from parl_like.algorithms import A2C, BDQ, DQN, ES, R2D2, RND, SAC, TD, TD3, AlphaZero, MonteCarlo
from parl_like.lab.cli import main
from parl_like.lab.probes.algorithm import ACTS, END, AlgorithmProbe
from parl_like.lab.yaml_text import ConfigError
from parl_like.learning.explorers import EpsilonGreedy


class NoEnd(DQN):
    """Bootstraps through termination."""

    def process(self, batch):
        batch.terminated = batch.terminated & False
        return super().process(batch)


class NoFuture(DQN):
    """Takes a truncated step for the end."""

    def process(self, batch):
        batch.terminated = batch.terminated | batch.truncated
        return super().process(batch)


class Hasty(DQN):
    """Discounts twice."""

    def begin(self, batch):
        rew, discount = super().begin(batch)
        return rew, discount * self.gamma


class Blind(DQN):
    """Takes random actions without asking the mask."""

    def predict(self, inputs):
        return {"q": super().predict(inputs)["q"]}


class Forgetful(DQN):
    """Has a momentum of its own, which it does not save."""

    transient = ("calls_made",)

    def __init__(self, model, **options):
        super().__init__(model, **options)
        self.calls_made = 0

    def learn(self, batch):
        self.calls_made += 1
        out = super().learn(batch)
        return {**out, "loss": out["loss"] * (1.0 + self.calls_made)}


class Dropping(torch.optim.Adam):
    def load_state_dict(self, state):
        super().load_state_dict({**state, "state": {}})


class NoMoments(DQN):
    """Forgets the moments of its optimiser with each state that it loads."""

    def optimizer(self, parameters):
        return Dropping(parameters, lr=2e-3)


class Late(ReplayBuffer):
    """Keeps the arrays of the last row until the next one comes."""

    kept = None

    def add(self, rows, lanes=None):
        kept, self.kept = self.kept, rows
        return super().add(rows if kept is None else kept, lanes)


class Newest(ReplayBuffer):
    """Draws the newest row alone."""

    def sample_indices(self, n, rng=None, ahead=0, behind=0):
        drawn = super().sample_indices(n, rng, ahead, behind)
        return np.full_like(drawn, self.sample_indices(0)[-1]) if n else drawn


class Flat(ReplayBuffer):
    """Gives observations as one row of numbers, whatever their shape."""

    def __getitem__(self, index):
        found = super().__getitem__(index)
        return Batch({**found, "obs": found.obs.reshape(len(found.obs), -1)}) if isinstance(found.obs, np.ndarray) else found


class Dictless(ReplayBuffer):
    """Takes no Dict."""

    def add(self, rows, lanes=None):
        return super().add({**rows, "obs": rows["obs"] + 0, "obs_next": rows["obs_next"] + 0}, lanes)


class Random(gym.Env):
    """Draws its numbers from the global generator, and changes its actions and its one array."""

    observation_space, action_space = gym.spaces.Box(-9, 9, (2,), np.float32), gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self):
        self.memory = np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.memory[:] = np.random.rand(2)
        return self.memory, {}

    def step(self, act):
        act *= 0.5
        self.memory[:] = np.random.rand(2)
        return self.memory, 0.0, False, False, {}


class Plain(Algorithm):
    """Values of actions, made from nothing of ours; it does not say the mask to its explorer."""

    window = Window(in_order=False)

    def explorer(self):
        return EpsilonGreedy(0.5)

    def predict(self, inputs):
        return {"q": self.model.q(inputs.obs)}

    def learn(self, batch):
        return {"loss": (self.model.q(batch.obs).gather(1, batch.act[:, None])[:, 0] - batch.rew).pow(2).mean()}


class FlatQ(Model):
    """Reads observations that are one array."""

    def __init__(self, obs, act):
        super().__init__(obs, act)
        self.net = torch.nn.Linear(obs.shape[0], int(act.n))

    def q(self, obs):
        return self.net(obs)


class NeedsMore(Plain):
    def predict(self, inputs):
        return {"q": self.model.worth(inputs.obs)}


def environment(space, rew=1.0, shown=lambda obs: obs):
    """The class of an environment that shows numbers at random, and always gives the same reward."""

    class Drawn(gym.Env):
        observation_space, action_space = space, Discrete(2)

        def obs(self):
            self.drawn.seed(int(self.np_random.integers(1 << 30)))
            return shown(self.drawn.sample())

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.t, self.drawn = 0, deepcopy(space)
            return self.obs(), {}

        def step(self, act):
            self.t += 1
            return self.obs(), rew, self.t % 7 == 0, self.t % 5 == 0, {}

    return Drawn


ZERO, DICT = Box(-1, 1, (), np.float32), Dict(a=Box(-1, 1, (), np.float32), b=Box(0, 255, (2, 3), np.uint8), c=Discrete(3))

WRONG = {NoEnd: "stops at termination", NoFuture: "bootstraps through truncation", Hasty: "discounts", Blind: "respects masks",
         Forgetful: "resumes exactly", NoMoments: "resumes exactly"}


@pytest.mark.parametrize("algorithm", [Blind, Forgetful, NoMoments])
def test_a_mistake_is_found(algorithm):
    assert probe_algorithm(algorithm, laws=(WRONG[algorithm],)).broken == [WRONG[algorithm]]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", WRONG)
def test_a_mistake_is_found_by_its_law_alone(algorithm):
    assert probe_algorithm(algorithm).broken == [WRONG[algorithm]]


def test_what_keeps_the_laws_is_said_to():
    found = probe_algorithm(A2C, laws=("repeats with the same seed", "resumes exactly"))
    assert found.broken == [] and str(found).splitlines()[-1] == "2 laws hold, 0 broken, 0 do not apply"
    assert probe_env("FrozenLake-v1").broken == probe_buffer(ReplayBuffer).broken == []
    assert probe_env("FrozenLake-v1").findings[3].state == "does not apply"


def test_an_algorithm_made_from_none_of_ours_gets_the_helper_and_network_that_fit():
    found = probe_algorithm(Plain, laws=("respects masks",))
    assert "illegal actions" in found.findings[0].reason


def test_a_method_that_predicts_what_a_given_policy_is_worth_chooses_no_action():
    found = probe_algorithm(TD, laws=("learns which action pays", "discounts", "repeats with the same seed"))
    assert [one.state for one in found.findings] == ["does not apply", "does not apply", "holds"]


def test_what_does_not_run_is_said_once_with_the_way_out():
    found = probe_algorithm(NeedsMore)
    assert [one.law for one in found.findings] == found.broken == ["runs"]
    assert "worth" in found.findings[0].reason
    assert "it got MLPQ and OffPolicyHelper" in found.findings[0].look and "model=" in found.findings[0].look
    with pytest.raises(ConfigError, match="modle"):
        probe_algorithm(Plain, modle=FlatQ)


@pytest.mark.parametrize("algorithm", [AlphaZero, BDQ, RND])
def test_ours_that_do_not_run_alone_are_no_mistake_and_what_is_made_from_them_may_be(algorithm):
    (found,) = probe_algorithm(algorithm).findings
    assert (found.law, found.state) == ("runs", "does not apply") and found.reason
    assert probe_algorithm(type("Mine", (algorithm,), {})).broken == ["runs"]


def test_a_network_that_reads_no_mask_is_told_what_a_mask_is():
    found = probe_algorithm(Plain, model=FlatQ, laws=("respects masks",)).findings[0]
    assert "an observation with a mask is a Dict" in found.reason and "Takes(masks=False)" in found.reason


def test_a_network_with_a_memory_is_asked_what_it_does_at_the_beginning_of_an_episode():
    probe = AlgorithmProbe(R2D2, 2_000, {})
    robot, _ = probe.robot(ACTS, (0, END))
    with robot:
        assert probe.chooses(0, robot, ACTS) in (0, 1)


def test_runs_that_are_compared_have_updates_before_and_after_the_saved_state():
    for algorithm, late in ((MonteCarlo, {"episodes": 250}), (ES, {"population": 300})):
        probe = AlgorithmProbe(algorithm, 2_000, late)
        robot, _ = probe.robot(ACTS, (0, END))
        with robot:
            steps = probe.run_past_an_update(robot)
            assert steps > 200 and (before := robot.tasks["RL"].algorithm.updates)
            robot.run(steps)
            assert robot.tasks["RL"].algorithm.updates > before


@pytest.mark.slow
def test_an_algorithm_that_keeps_all_laws_is_said_to():
    found = probe_algorithm(A2C)
    assert found.broken == [] and str(found).splitlines()[-1] == "9 laws hold, 0 broken, 0 do not apply"


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [SAC, TD3])
def test_continuous_actions_keep_the_laws_of_values(algorithm):
    laws = ("learns which action pays", "discounts", "stops at termination", "bootstraps through truncation")
    assert str(probe_algorithm(algorithm, laws=laws)).endswith("4 laws hold, 0 broken, 0 do not apply")


def test_a_policy_of_real_actions_comes_back_from_what_its_critics_thought_at_first():
    assert probe_algorithm(TD3, laws=("stops at termination",), seed=3, steps=1_000).broken == []


def test_buffers_and_environments_that_break_laws():
    assert "rows come out as they went in" in probe_buffer(Late).broken
    assert probe_buffer(Newest).broken == ["draws every row"]
    for buffer, why in ((Flat, r"obs of shape \(\) came out as obs \(6, 1\); expected obs \(6,\)"), (Dictless, "TypeError")):
        found = probe_buffer(buffer)
        assert "keeps shapes of observations" in found.broken
        assert any(re.match(why, one.reason) for one in found.findings)
    found = probe_env(Random).broken
    assert {"repeats with the same seed", "leaves actions as they are", "gives arrays of its own"} <= set(found)


@pytest.mark.parametrize("space", [ZERO, Box(-1, 1, (1,), np.float32), Box(-1, 1, (2, 3, 4), np.float32), DICT,
                                   Box(0, 0, (2,), np.float32), Tuple([Discrete(2), ZERO]), Discrete(3, start=5)], ids=str)
def test_observations_of_every_shape_keep_the_laws(space):
    assert probe_env(environment(space), steps=20).broken == []


@pytest.mark.parametrize(("env", "broken"), [
    (environment(ZERO, shown=lambda obs: obs[None]), "gives what its spaces say"),
    (environment(DICT, shown=lambda obs: {**obs, "c": 7}), "gives what its spaces say"),
    (environment(DICT, shown=lambda obs: {"a": obs["a"]}), "gives what its spaces say"),
    (environment(ZERO, rew=float("nan")), "gives what its spaces say"),
    (environment(ZERO, rew=True), "passes gymnasium's checker"),
])
def test_what_breaks_the_laws_is_named_in_plain_text(env, broken):
    found = probe_env(env, steps=20)
    assert broken in found.broken and "\x1b" not in str(found)


def test_an_environment_that_refuses_illegal_actions_is_played_with_legal_ones():
    found = probe_env(Locked, steps=20)
    assert {one.law for one in found.findings if one.state != "holds"} == {"leaves actions as they are"}, str(found)


def test_the_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "probed_things.py").write_text("from parl_like import Algorithm, ReplayBuffer\nclass Mine(ReplayBuffer):\n"
                                               "    def n_step(self, index, n):\n        return super().n_step(index, n + 1)\n"
                                               "class Good(ReplayBuffer): pass\nother = 3\nclass Empty(Algorithm): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["probe", "probed_things:Good"]) == 0
    capsys.readouterr()
    assert main(["probe", "probed_things:Mine"]) == 1
    out = capsys.readouterr().out
    assert "follows rewards to the end     BROKEN" in out and "look at n_step" in out
    assert max(map(len, out.splitlines())) <= 80
    assert main(["probe", "probed_things:Empty"]) == 1
    out = capsys.readouterr().out
    assert "has no predict(inputs): write it" in " ".join(out.split()) and "Traceback" not in out
    assert main(["probe", "./probed_things.py:Mine"]) == 2 and "another module" in capsys.readouterr().err
    (tmp_path / "probed_file.py").write_text((tmp_path / "probed_things.py").read_text())
    assert main(["probe", "./probed_file.py:Good"]) == 0 and main(["probe", "probed_file.py:Mine"]) == 1
    for words in (["no_such.py:Good"], ["probed_file.py:None"], ["probed_file.py"], ["probed_file.py:other"]):
        assert main(["probe", *words]) == 2
    capsys.readouterr()
    assert main(["probe", "probed_file.py:Goood"]) == 2 and "no class 'Goood'; did you mean 'Good'?" in capsys.readouterr().err
    for words in (["probed_things:other"], ["probed_things"], ["probed_things:Good", "lr=1"]):
        assert main(["probe", *words]) == 2
