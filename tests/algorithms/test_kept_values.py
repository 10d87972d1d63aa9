"""Actor-critics whose policy and value share their work: values are kept from acting; and passes without gradients in chunks."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import Agent, ComputationTask, OnPolicyHelper, Robot, VectorAgent
from parl_like.algorithms import A2C, IMPALA, PPO, VMPO, unrolls
from parl_like.algorithms.unrolls import in_chunks, minibatches_of
from parl_like.learning.factory import create_algorithm_func
from parl_like.models import ConvActorCritic, ConvTrunk, RecurrentActorCritic
from parl_like.values.batch import Batch

PIXELS, ACTS = gym.spaces.Box(0, 255, (9, 8, 3), np.uint8), {"two": gym.spaces.Discrete(2), "box": gym.spaces.Box(-1, 1, (2,))}


class NoisePictures(gym.Env):
    """Pictures of noise; an episode has 5 steps."""

    observation_space = PIXELS

    def __init__(self, act="two"):
        self.action_space = ACTS[act]

    def picture(self):
        return self.np_random.integers(0, 256, PIXELS.shape, np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return self.picture(), {}

    def step(self, action):
        self.left -= 1
        return self.picture(), self.np_random.random(), self.left == 0, False, {}


class CheckedPPO(PPO):
    """Notes each update: rows of passes in `process`, and how far its results are from those of a pass over all rows."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.passes, self.errors = [], []

    def check(self, batch):
        rows = []
        hook = self.model.perception.register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
        batch = PPO.process(self, batch)
        hook.remove()
        out, value = self.model.evaluate(batch.obs)
        self.passes.append((len(batch.last), int(batch.last.sum()), sum(rows)))
        self.errors.append(max(float((value - batch.value).abs().max()),
                               float((self.model.head.log_prob(out, batch.act) - batch.log_prob).abs().max())))
        return batch


def robot_of(agent=Agent, act="two", kind=CheckedPPO):
    func = create_algorithm_func(ConvActorCritic, dict(obs=PIXELS, act=ACTS[act], features=8), kind, {})
    return Robot(lambda: NoisePictures(act), agent=agent, n_agents=2, seed=1,
                 tasks={"RL": ComputationTask(func, helper=lambda: OnPolicyHelper(unroll=8))})


def watched(robot):
    """Let `process` of the robot's algorithm be checked, which is still that of all actor-critics."""
    algorithm = robot.tasks["RL"].algorithm
    object.__setattr__(algorithm, "process", algorithm.check)
    return algorithm


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("agent", [Agent, lambda: VectorAgent(2)], ids=["single", "vector"])
def test_only_the_rows_at_cuts_need_another_pass(agent, act):
    with robot_of(agent, act) as robot:
        algorithm = watched(robot)
        for _ in range(3):
            robot.train_iter()
    assert len(algorithm.passes) == 3 and all(again == cuts < n for n, cuts, again in algorithm.passes)
    assert max(algorithm.errors) < 1e-5


class Contrary(Agent):
    """Does another thing than was predicted in every second step."""

    def run_one_episode(self):
        obs, _ = self.env.reset()
        done = False
        while not done:
            act = self.helpers["RL"].predict(obs)
            if self.env.unwrapped.left % 2:
                act = np.int64(0)
            after, rew, terminated, truncated, _ = self.env.step(act)
            self.helpers["RL"].store(obs, act, rew, after, terminated, truncated)
            obs, done = after, terminated or truncated


def test_rows_of_other_actions_are_computed_again():
    with robot_of(Contrary) as robot:
        algorithm = watched(robot)
        robot.train_iter()
    assert [again == n + cuts for n, cuts, again in algorithm.passes] == [True] and max(algorithm.errors) < 1e-5


def test_rows_of_other_parameters_are_computed_again():
    torch.manual_seed(0)
    algorithm = PPO(ConvActorCritic(PIXELS, ACTS["two"], features=8))
    obs = torch.randint(0, 256, (6, *PIXELS.shape), dtype=torch.uint8)
    with torch.no_grad():
        kept = Batch(algorithm.predict(Batch(obs=obs)))["kept"]
        rows = Batch(kept=kept)
        out, value = algorithm.kept(rows)
        torch.testing.assert_close(value, algorithm.model.value(obs))
        assert set(out) == {"logits"} and algorithm.kept(Batch(obs=obs)) is None
        algorithm.updates += 1
        assert algorithm.kept(rows) is None
        kept.updates[1:] += 1
        assert algorithm.kept(rows) is None, "one row is of before"


def test_who_computes_values_anew_keeps_none():
    for kind in (A2C, VMPO, IMPALA):
        with robot_of(kind=kind) as robot:
            robot.train_iter()
            kept = {name for name in robot.buffers["RL"].columns if name.startswith("kept.")}
        assert kept == (set() if kind is IMPALA else {"kept.logits", "kept.value", "kept.updates"})


class Sharper(ConvActorCritic):
    """Acts in its own way."""

    def policy(self, obs, state=None):
        out, state = super().policy(obs, state)
        return {**out, "logits": out["logits"] * 100.0}, state


class Forgetful(ConvActorCritic):
    """Has dropout."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.perception.activation = torch.nn.Dropout(0.5)


def test_models_that_act_in_another_way_than_they_learn_keep_nothing():
    obs = torch.randint(0, 256, (6, *PIXELS.shape), dtype=torch.uint8)
    for kind in (Sharper, Forgetful):
        algorithm = PPO(kind(PIXELS, ACTS["two"], features=8))
        algorithm.model.eval()
        out = algorithm.predict(Batch(obs=obs))
        assert "kept" not in out
        torch.testing.assert_close(out["logits"], algorithm.model.policy(obs)[0]["logits"])


# ------------------------------------------------------------------------------------------------------------------------ chunks


def test_large_rows_are_computed_in_chunks(monkeypatch):
    torch.manual_seed(0)
    model = ConvActorCritic(PIXELS, ACTS["two"], features=8)
    obs = torch.randint(0, 256, (11, *PIXELS.shape), dtype=torch.uint8)
    sizes = []
    model.perception.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    with torch.no_grad():
        out, value = in_chunks(model.evaluate, obs[:8], obs[8:])
        monkeypatch.setattr(unrolls, "CHUNK", 3 * 4 * 9 * 8 * 3)
        parts, values = in_chunks(model.evaluate, obs[:8], obs[8:])
    assert sizes == [11, 3, 3, 2, 3]
    torch.testing.assert_close(values, value)
    torch.testing.assert_close(parts["logits"], out["logits"])


def test_chunks_of_nested_observations_and_of_what_has_no_rows(monkeypatch):
    obs = Batch(a=torch.arange(5.0), b=Batch(c=torch.arange(10.0).reshape(5, 2)))
    monkeypatch.setattr(unrolls, "CHUNK", 2 * 3 * 4)
    found = in_chunks(lambda x: ({"sum": x.a + x.b.c.sum(1), "own": torch.ones(4)}, x.a), obs)
    assert found[0]["sum"].tolist() == [1, 6, 11, 16, 21] and found[0]["own"].shape == (4,)
    assert found[1].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_a_memory_is_run_over_a_few_sequences_at_a_time(monkeypatch, memory):
    torch.manual_seed(0)
    model = RecurrentActorCritic(PIXELS, ACTS["two"], hidden=(), memory=memory, size=4, trunk=ConvTrunk(PIXELS, out_size=8))
    algorithm, last = PPO(model), torch.tensor([0, 0, 1, 1, 0, 1, 0, 0, 1], dtype=torch.bool)
    obs = torch.randint(0, 256, (9, *PIXELS.shape), dtype=torch.uint8)
    batch = Batch(obs=obs, last=last, state=Batch({name: torch.randn(9, *s.shape) for name, s in model.state_specs().items()}))
    out, value = algorithm.evaluate(batch)
    sizes = []
    model.perception.register_forward_hook(lambda _, inputs, __: sizes.append(tuple(inputs[0].shape[:2])))
    monkeypatch.setattr(unrolls, "CHUNK", 7 * 4 * 9 * 8 * 3)  # two sequences of three rows
    with torch.no_grad():
        parts, values = algorithm.evaluate(batch)
    assert sizes == [(3, 2), (3, 2)]
    torch.testing.assert_close(values, value.detach())
    torch.testing.assert_close(parts["logits"], out["logits"].detach())


def test_minibatches_of_large_rows_are_the_same(monkeypatch):
    fields = Batch(obs=torch.arange(30).reshape(10, 3), act=torch.arange(10))
    last = torch.zeros(10, dtype=torch.bool)

    def parts():
        return [(part.obs.tolist(), part.act.tolist())
                for part in minibatches_of(fields, last, 3, np.random.default_rng(0), False)]

    small = parts()
    monkeypatch.setattr(unrolls, "CHUNK", 1)
    assert parts() == small and sum(len(act) for _, act in small) == 10
