"""Two tasks on one trunk: one storage, one owner of its optimiser state, and either can be left out."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like.algorithms.dynamics import DynamicsLearner
from parl_like.envs.wrappers import NoisyObservation
from parl_like.lab.config import parse_assignments, resolve
from parl_like.models.dynamics import Dynamics, Trunk
from parl_like.robots.auxiliary import Config, build
from parl_like.values.batch import Batch


def small(**options):
    tasks = ["RL"] + ["auxiliary"] * options.get("auxiliary", True)
    helpers = {f"{task}.OffPolicyHelper.{key}": value for task in tasks for key, value in (("warmup", 64), ("batch_size", 32))}
    return build(resolve(Config, {"total_steps": 2000, "n_agents": 2, "NoisyObservation.n": 3, **helpers, **options}))


def rows(robot, n=32):
    rng = np.random.default_rng(0)
    return {"obs": rng.normal(size=(n, 7)).astype(np.float32), "act": rng.integers(0, 2, n),
            "obs_next": rng.normal(size=(n, 7)).astype(np.float32),
            "rew": np.ones(n), "terminated": np.zeros(n, bool), "truncated": np.zeros(n, bool)}


def test_the_trunk_is_one_storage_with_one_owner():
    robot = small()
    policy, auxiliary = robot.tasks["RL"], robot.tasks["auxiliary"]
    assert policy.algorithm.model.perception is auxiliary.algorithm.model.trunk
    trunk = {p.data_ptr() for p in policy.algorithm.model.perception.parameters()}
    owned = [{p.data_ptr() for group in task.optimizer.param_groups for p in group["params"]} for task in (policy, auxiliary)]
    assert trunk <= owned[0] and not trunk & owned[1]
    assert policy.lock is auxiliary.lock


def test_a_part_may_begin_with_the_name_of_a_key_on_the_command_line():
    """The key `auxiliary` says whether the task of that name is there."""
    assert resolve(Config, parse_assignments(["auxiliary.OffPolicyHelper.learn_every=2"])).parts == {
        "auxiliary.OffPolicyHelper.learn_every": 2}


@pytest.mark.parametrize("learner", ["RL", "auxiliary"])
def test_what_one_learns_changes_the_other(learner):
    robot = small()
    obs = {"obs": rows(robot)["obs"]}
    q = robot.tasks["RL"].predict(obs)["q"]
    model = robot.tasks["auxiliary"].algorithm.model
    trunk = model.trunk(torch.from_numpy(obs["obs"])).detach()
    robot.tasks[learner].learn({**rows(robot),
                                **({"valid": np.ones(32, np.int64), "rew": np.ones((32, 3))} if learner == "RL" else {})})
    assert not np.array_equal(robot.tasks["RL"].predict(obs)["q"], q)
    assert not torch.equal(model.trunk(torch.from_numpy(obs["obs"])), trunk)
    assert robot.tasks["RL"].version == robot.tasks["auxiliary"].version == 1


def test_an_auxiliary_step_leaves_the_head_of_the_policy_alone():
    robot = small()
    before = {k: v.clone() for k, v in robot.tasks["RL"].algorithm.model.state_dict().items()}
    robot.tasks["auxiliary"].learn(rows(robot))
    changed = {k for k, v in robot.tasks["RL"].algorithm.model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed and all(key.startswith("perception.") for key in changed)


def test_without_the_auxiliary_task_the_policy_learns_as_ever():
    with small(auxiliary=False) as robot:
        assert list(robot.tasks) == ["RL"]
        for _ in robot.iterate(300):
            pass
        assert robot.counters()["updates/RL"] > 0


def test_both_tasks_learn_at_their_own_pace():
    with small(**{"auxiliary.OffPolicyHelper.learn_every": 2, "RL.OffPolicyHelper.learn_every": 8}) as robot:
        for _ in robot.iterate(464):
            pass
        updates = robot.counters()
        assert updates["updates/auxiliary"] == pytest.approx(4 * updates["updates/RL"], abs=4) and updates["updates/RL"] >= 48


def test_the_loss_is_that_of_the_formula():
    env = NoisyObservation(gym.make("CartPole-v1"), 2)
    model = Dynamics(env.observation_space, env.action_space, Trunk(env.observation_space, (8,)), (8,))
    batch = Batch(obs=torch.randn(5, 6), obs_next=torch.randn(5, 6), act=torch.tensor([0, 1, 1, 0, 1]))
    out = DynamicsLearner(model, forward=0.5, inverse=2.0).learn(batch)
    features, after = model.trunk(batch.obs), model.trunk(batch.obs_next)
    error = ((model.next_obs(features, batch.act) - batch.obs_next) ** 2).sum(1).mean()
    chosen = torch.softmax(model.between(features, after), 1)[torch.arange(5), batch.act]
    assert float(out["loss"].detach()) == pytest.approx(float((0.5 * error - 2.0 * chosen.log().mean()).detach()), rel=1e-5)
    with pytest.raises(ValueError, match="forward"):
        DynamicsLearner(model, forward=0.0, inverse=0.0)


def test_the_loss_of_continuous_actions_is_that_of_the_formula():
    box = gym.spaces.Box(-1, 1, (2, 1), np.float32)
    obs = gym.spaces.Box(-9, 9, (4,), np.float32)
    model = Dynamics(obs, box, Trunk(obs, (8,)), (8,))
    batch = Batch(obs=torch.randn(5, 4), obs_next=torch.randn(5, 4), act=torch.rand(5, 2, 1))
    out = DynamicsLearner(model).learn(batch)
    features, after = model.trunk(batch.obs), model.trunk(batch.obs_next)
    error = ((model.forward_head(torch.cat([features, batch.act[:, :, 0]], 1)) - batch.obs_next) ** 2).sum(1).mean()
    guess = model.inverse_head(torch.cat([features, after], 1))
    assert float(out["loss"].detach()) == pytest.approx(
        float((error + 0.5 * ((guess - batch.act[:, :, 0]) ** 2).sum(1).mean()).detach()), rel=1e-5)
    with pytest.raises(TypeError, match="Dynamics: act is MultiDiscrete.*; expected Discrete or Box"):
        Dynamics(obs, gym.spaces.MultiDiscrete([2, 2]), model.trunk)


def test_the_policy_may_be_sac():
    options = {"algorithm": "SAC", "env": {"id": "Pendulum-v1", "wrappers": ["NoisyObservation"]}, "mixed": True}
    with small(**options) as robot:
        for _ in robot.iterate(200):
            pass
        assert min(task.algorithm.updates for task in robot.tasks.values()) > 50
        assert robot.tasks["RL"].algorithm.model.perception is robot.tasks["auxiliary"].algorithm.model.trunk


def test_noise_comes_from_the_environments_own_generator():
    first, second = (NoisyObservation(gym.make("CartPole-v1"), 3).reset(seed=7)[0] for _ in range(2))
    assert first.shape == (7,) and first.dtype == np.float32
    np.testing.assert_array_equal(first, second)
    with pytest.raises(ValueError, match="vector"):
        NoisyObservation(gym.make("FrozenLake-v1"), 3)
