"""RSAC and RTD3: that without memory they are SAC and TD3, what their memory is, and runs of both."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple

from parl_like import ComputationTask, Robot
from parl_like.algorithms import R2D2, RSAC, RTD3, SAC, TD3
from parl_like.envs.recall import Recall
from parl_like.learning.model_check import ContractError
from parl_like.models import MLPActorQ, RecurrentActorQ, RecurrentQ
from parl_like.values.batch import Batch
from parl_like.values.spec import Spec

OBS, ACT = Box(-1, 1, (3,), np.float32), Box(-1, 1, (2,), np.float32)
N, L = 4, 2


class Forgets(MLPActorQ):
    """Its memory says what is seen, and nothing else."""

    def state_specs(self):
        return {"h": Spec("h", (1,), np.dtype(np.float32))}

    def features(self, obs, state=None):
        return obs, dict(state.items())


def sequences(seed, **more):
    """N sequences of L rows, in which each row leads to the one after it; the last row of some is no real one."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(N, L + 1, 3)).astype(np.float32)
    rows = {"obs": obs[:, :-1], "obs_next": obs[:, 1:], "act": rng.uniform(-1, 1, (N, L, 2)).astype(np.float32),
            "rew": rng.normal(size=(N, L)).astype(np.float32), "terminated": np.zeros((N, L), bool),
            "truncated": np.zeros((N, L), bool), "valid": np.ones((N, L), bool), "state.h": np.zeros((N, 1), np.float32)}
    rows["terminated"][:2, -1] = True
    return {**rows, **more}


def flat(rows):
    """The same rows one by one, all first ones before all second ones."""
    return {name: np.swapaxes(value, 0, 1).reshape(N * L, *value.shape[2:]) for name, value in rows.items()
            if name not in ("valid", "state.h")}


@pytest.mark.parametrize(("recurrent", "plain", "policy"), [(RSAC, SAC, "squashed"), (RTD3, TD3, "deterministic")])
def test_on_a_model_that_forgets_everything_it_is_the_plain_one(recurrent, plain, policy):
    one, other = (kind(OBS, ACT, (8,), policy=policy) for kind in (Forgets, MLPActorQ))
    other.load_state_dict(one.state_dict())
    before = copy.deepcopy(other.state_dict())
    tasks = [ComputationTask(recurrent(one, sequence=L, burn_in=0, lr=0.01)), ComputationTask(plain(other, lr=0.01))]
    tasks[1].algorithm.native_learn = lambda batch: None  # which rounds otherwise
    for seed in range(20):
        rows = sequences(seed)
        for task, given in zip(tasks, (rows, flat(rows)), strict=True):
            task.algorithm.torch_rng.manual_seed(seed)
            task.learn(given)
    for name, value in one.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[name], rtol=1e-4, atol=1e-5)
        assert not torch.equal(before[name], value)


def test_rows_behind_the_end_of_an_episode_teach_nothing():
    """And the priority of a sequence is η max + (1 − η) mean of the errors of its real rows."""
    algorithm = RSAC(Forgets(OBS, ACT, (8,)), sequence=L, burn_in=0, eta=0.75)
    rows = sequences(1)
    rows["valid"][0, 1] = False
    batch = Batch.nest({name: torch.from_numpy(value) for name, value in rows.items()})
    with torch.no_grad():
        batch = algorithm.process(batch)
    first = next(algorithm.learn(batch))
    with torch.no_grad():
        errors = (algorithm.model.q(batch.obs.flatten(0, 1), batch.act.flatten(0, 1)).view(-1, N, L) - batch.target).abs()
    errors = errors.amax(0)
    assert first["critic"].item() == pytest.approx(sum(
        (algorithm.model.q(batch.obs.flatten(0, 1), batch.act.flatten(0, 1)).view(-1, N, L) - batch.target).square()[i]
        [batch.valid].mean().item() for i in range(2)), rel=1e-5)
    assert first["priority"][0].item() == pytest.approx(errors[0, 0].item(), rel=1e-5)
    assert first["priority"][1].item() == pytest.approx((0.75 * errors[1].max() + 0.25 * errors[1].mean()).item(), rel=1e-5)


@pytest.mark.parametrize("kind", [R2D2, RSAC])
def test_without_stored_state_sequences_begin_with_zeros(kind):
    """As with stored zeros; what is stored counts otherwise."""
    act = Discrete(2)
    torch.manual_seed(0)
    model = (RecurrentQ if kind is R2D2 else RecurrentActorQ)(OBS, act, (4,), size=5)
    rows = sequences(3, act=np.zeros((N, L), np.int64), **{"state.h": np.ones((N, 5), np.float32)})
    zeros = {**rows, "state.h": np.zeros((N, 5), np.float32)}

    def targets(stored_state, given):
        algorithm = kind(copy.deepcopy(model), sequence=L, burn_in=0, stored_state=stored_state)
        with torch.no_grad():
            return algorithm.process(Batch.nest({name: torch.from_numpy(value) for name, value in given.items()})).target

    torch.testing.assert_close(targets(False, rows), targets(True, zeros))
    assert not torch.allclose(targets(True, rows), targets(True, zeros))


def test_a_sequence_of_one_row_is_refused():
    for kind, policy in ((RSAC, "squashed"), (RTD3, "deterministic")):
        with pytest.raises(ValueError, match="expected sequence ≥ 2"):
            kind(RecurrentActorQ(OBS, ACT, policy=policy), sequence=1)


def test_a_model_without_a_memory_is_refused():
    with pytest.raises(ContractError, match="MLPActorQ has no"):
        ComputationTask(RSAC(MLPActorQ(OBS, ACT)))


class Steps(gym.Env):
    """Episodes of five steps with a mask, of which the illegal choice is an error."""

    observation_space = Dict({"mask": Dict({"a": MultiBinary(3)}), "x": Box(-1, 1, (2,), np.float32)})
    action_space = Dict({"a": Discrete(3), "b": Tuple([Box(-1, 1, (1,), np.float32)])})

    def obs(self):
        return {"mask": {"a": np.array([1, 0, 1], np.int8)}, "x": self.np_random.uniform(-1, 1, 2).astype(np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return self.obs(), {}

    def step(self, act):
        assert act["a"] != 1
        self.left -= 1
        return self.obs(), 1.0, self.left == 0, False, {}


@pytest.mark.parametrize(("algorithm", "env"), [("RSAC", Steps), ("RSAC", "Pendulum-v1"), ("RTD3", "Pendulum-v1")])
def test_agents_act_and_learn(algorithm, env, tmp_path):
    def build():
        return Robot.of(algorithm, env, seed=1, n_agents=2, warmup=20, random_steps=10, batch_size=4, learn_every=4, sequence=3,
                        burn_in=2, hidden=[8], actor_hidden=[8], trace=True, buffer="PrioritizedReplayBuffer",
                        total_steps=120)

    with build() as robot, build() as other:
        robot.run(60)
        assert robot.tasks["RL"].learns > 5
        robot.save(tmp_path / "c")
        other.load(tmp_path / "c")
        for one in (robot, other):
            one.run(60)
        assert robot.trace_hash() == other.trace_hash()


@pytest.mark.slow
def test_it_recalls_what_it_saw():
    """What is to be recalled was seen three steps before; without a memory half of the answers are right."""
    with Robot.of("RSAC", lambda: Recall(3), seed=0, n_agents=4, total_steps=6_000, sequence=5, burn_in=0, lr=3e-3) as robot:
        robot.run(6_000)
        assert robot.evaluate(50).mean_return > 0.9
