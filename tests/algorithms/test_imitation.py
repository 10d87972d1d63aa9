"""GAIL and DAgger: the discriminator by hand, rewards that say who acted, what an agent stores of its expert, and that it comes
to do what the expert does."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import ComputationTask, OffPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import BC, GAIL, PPO
from parl_like.data.datasets import from_arrays
from parl_like.lab import pretrained, runner
from parl_like.lab.config import resolve
from parl_like.lab.policies import exporting
from parl_like.lab.yaml_text import ConfigError
from parl_like.models import MLPActorCritic, MLPImitator
from parl_like.robots import dagger
from parl_like.robots.dagger import DAggerAgent
from parl_like.values.batch import Batch

OBS, TWO = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)
TORQUE = gym.spaces.Box(-2, 2, (1,), np.float32)


def data(act_space=TWO, n=64):
    obs = np.random.default_rng(0).uniform(-1, 1, (n, 3)).astype(np.float32)
    act = (obs[:, 0] > 0).astype(np.int64) if act_space is TWO else 2 * obs[:, :1]
    return from_arrays(obs=obs, act=act, rew=np.zeros(n), terminated=np.ones(n, bool), obs_next=obs, action_space=act_space)


def rows(n=8, act_space=TWO):
    rng = np.random.default_rng(1)
    act = rng.integers(2, size=n) if act_space is TWO else rng.uniform(-1, 1, (n, 1)).astype(np.float32)
    return {"obs": rng.normal(size=(n, 3)).astype(np.float32), "obs_next": rng.normal(size=(n, 3)).astype(np.float32), "act": act,
            "rew": np.full(n, 100.0), "terminated": np.arange(n) % 3 == 0, "truncated": np.zeros(n, bool),
            "last": np.arange(n) == n - 1}


@pytest.mark.parametrize(("kind", "reward"), [("positive", math.log(1 + math.e**2)), ("log_odds", 2.0)])
def test_losses_and_rewards_by_hand(kind, reward):
    """g = 2 everywhere: −log D = log (1 + e⁻²), −log (1 − D) = log (1 + e²), and so is the reward; half are told right."""
    algorithm = GAIL(MLPImitator(OBS, TWO, (8,)), data(), reward=kind, epochs=1, minibatches=1, gamma=0.5, lam=1.0, lr=0.0)
    with torch.no_grad():
        for parameter in algorithm.model.discriminator.parameters():
            parameter.zero_()
        algorithm.model.discriminator.layers[-1].bias.fill_(2.0)
    part = algorithm.expert[torch.arange(2)]
    with torch.no_grad():
        batch = algorithm.process(Batch(obs=part.obs, act=part.act, rew=torch.zeros(2), terminated=torch.tensor([False, True]),
                                        truncated=torch.zeros(2, dtype=torch.bool), obs_next=torch.zeros(2, 3),
                                        last=torch.tensor([False, True])))
    np.testing.assert_allclose(batch.rew, [reward] * 2, rtol=1e-6)
    np.testing.assert_allclose(batch.returns, [1.5 * reward, reward], rtol=1e-5)
    out = ComputationTask(algorithm).learn(rows())
    assert out["discriminator"] == pytest.approx(math.log(1 + math.e**-2) + math.log(1 + math.e**2), rel=1e-6)
    assert out["told_apart"] == pytest.approx(0.5)


@pytest.mark.parametrize("space", [TWO, TORQUE], ids=["Discrete", "Box"])
def test_the_discriminator_tells_the_expert_and_rewards_it(space):
    """Rewards of the environment count for nothing; the data's torques are taken in the policy's units."""
    torch.manual_seed(0)
    task = ComputationTask(GAIL(MLPImitator(OBS, space, (16,)), data(space), epochs=1, minibatches=2, lr=0.02))
    assert space is TWO or float(task.algorithm.expert.act.abs().max()) <= 1.0
    for _ in range(40):
        out = task.learn(rows(64, space))
    assert out["told_apart"] > 0.7
    seen = task.algorithm.expert
    own = torch.from_numpy(rows(64, space)["act"])
    assert task.algorithm.reward_of(seen.obs, seen.act).mean() > task.algorithm.reward_of(seen.obs, own).mean()


def test_with_rewards_of_its_own_the_policy_is_that_of_ppo(monkeypatch):
    """Same rows, same steps of the policy: the discriminator moves nothing else."""
    torch.manual_seed(0)
    model = MLPImitator(OBS, TWO, (8,))
    given = torch.linspace(-1, 1, 8)
    monkeypatch.setattr(GAIL, "reward_of", lambda self, obs, act: given)
    tasks = [ComputationTask(GAIL(model.clone(), data(), max_grad_norm=None), native=False),
             ComputationTask(PPO(MLPActorCritic(OBS, TWO, (8,)), max_grad_norm=None), native=False)]
    for name in ("own", "head", "value_head"):
        getattr(tasks[1].algorithm.model, name).load_state_dict(getattr(model, name).state_dict())
    # the expert's rows are drawn by the generator that shuffles minibatches
    monkeypatch.setattr(GAIL, "minibatches", lambda self, batch: [batch])
    monkeypatch.setattr(PPO, "minibatches", lambda self, batch: [batch])
    for _ in range(5):
        tasks[0].learn(rows())
        tasks[1].learn({**rows(), "rew": given.numpy()})
    one, other = (task.algorithm.model for task in tasks)
    for name in ("own", "head", "value_head"):
        for mine, others in zip(getattr(one, name).parameters(), getattr(other, name).parameters(), strict=True):
            torch.testing.assert_close(mine, others)


def balance(obs):
    """A rule that keeps CartPole's pole up to the time limit."""
    return int(obs[2] + 0.4 * obs[3] + 0.05 * obs[0] + 0.1 * obs[1] > 0)


def test_dagger_stores_the_expert_s_actions_where_the_policy_leads():
    """In the first episode the expert acts, then the policy; rows always have the expert's action. It comes to balance."""
    spaces = dict(obs=gym.make("CartPole-v1").observation_space, act=TWO)
    func = create_algorithm_func(MLPActorCritic, spaces, BC, dict(lr=5e-3))
    task = ComputationTask(func, lambda: OffPolicyHelper(size=3_000, batch_size=64, learn_every=4, warmup=64))
    with Robot("CartPole-v1", agent=lambda: DAggerAgent(balance, decay=0.0), tasks={"RL": task}, seed=0) as robot:
        robot.run(1_400)
        rows = robot.buffers["RL"][:]
        assert [balance(obs) for obs in rows.obs] == rows.act.tolist()
        first = int(np.argmax(rows.done)) + 1
        assert first == 500, "the expert's own episode"
        assert robot.evaluate(10, seed=1).mean_return > 450


def test_the_count_of_episodes_is_resumed(tmp_path):
    def robot():
        func = create_algorithm_func(MLPActorCritic, dict(obs=gym.make("CartPole-v1").observation_space, act=TWO), BC, {})
        return Robot("CartPole-v1", agent=lambda: DAggerAgent(balance, decay=0.9), seed=0,
                     tasks={"RL": ComputationTask(func, lambda: OffPolicyHelper(size=900, batch_size=8))})

    with robot() as one, robot() as other:
        one.run(600)
        one.save(tmp_path / "state")
        other.load(tmp_path / "state")
        assert one.agents[0].begun == other.agents[0].begun > 0
    with pytest.raises(ValueError, match="decay is 2"):
        DAggerAgent(balance, 2.0)


def test_an_expert_is_a_policy_that_ships_a_run_or_an_exported_policy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with runner.load_run(pretrained.run_of("dqn-cartpole")) as robot:
        exporting.write(robot, "exported")
        seen = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
        wanted = [robot.act(obs) for obs in seen]
    for expert in ("dqn-cartpole", "runs/pretrained/dqn-cartpole", "exported"):
        dagger.policy_of.cache_clear()
        assert [dagger.ask(expert, obs) for obs in seen] == wanted and len(set(map(int, wanted))) == 2


@pytest.mark.parametrize(("given", "said"), [
    ({"expert": "dqn-cartpol"}, "key 'expert': .*did you mean 'dqn-cartpole'.*or the directory of a run"),
    ({"helper": "OfflineHelper"}, "another helper than OfflineHelper"),
    ({"env.vector": 2}, "expected env.vector=0")])
def test_a_robot_without_an_expert_or_agents_that_could_ask_it_is_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        dagger.build(resolve(dagger.Config, {}, given))


def test_a_checkpoint_is_refused_with_rows_of_another_expert():
    def learner(n):
        return ComputationTask(GAIL(MLPImitator(OBS, TWO, (8,)), data(n=n), epochs=1, minibatches=1))

    task = learner(64)
    task.learn(rows())
    saved = task.state_dict()
    learner(64).load_state_dict(saved)
    with pytest.raises(ValueError, match=r"GAIL: the checkpoint learned from rows with the sha256 .*put those rows back, or give "
                                         r"data="):
        learner(32).load_state_dict(saved)
