"""Auxiliary tasks on a shared trunk: each loss by hand, and with weight 0 a policy that is what it would be alone."""

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from parl_like.algorithms import PPO, SPR, FeatureControl, RewardPrediction, ValueReplay
from parl_like.lab.config import resolve
from parl_like.lab.yaml_text import ConfigError
from parl_like.models import CellQ, FeatureModel, MLPActorCritic, RewardClasses
from parl_like.models.dynamics import Trunk
from parl_like.robots.auxiliary import Config, build
from parl_like.values.batch import Batch

OBS, ACT = gym.spaces.Box(-9, 9, (3,), np.float32), gym.spaces.Discrete(2)


def model(kind, obs=OBS, **more):
    torch.manual_seed(0)
    return kind(obs, ACT, Trunk(obs, (8,)), (4,), **more)


def rows(n=6):
    generator = torch.Generator().manual_seed(1)
    obs = torch.randn(2, n, 3, generator=generator)
    return Batch(obs=obs[0], obs_next=obs[1], act=torch.arange(n) % 2, rew=torch.tensor([0.0, 2.0, 0.0, -1.0, 0.0, 0.0][:n]),
                 terminated=torch.arange(n) == 1, truncated=torch.zeros(n, dtype=torch.bool))


def test_reward_prediction_counts_rows_with_and_without_reward_alike():
    one, batch = RewardPrediction(model(RewardClasses)), rows()
    chances = torch.softmax(one.model.classes(one.model.trunk(batch.obs)), 1)
    zero = -chances[[0, 2, 4, 5], 1].log().mean()
    other = -(chances[1, 2].log() + chances[3, 0].log()) / 2
    torch.testing.assert_close(one.learn(batch)["loss"], (zero + other) / 2)
    alone = batch[torch.tensor([0, 2])]
    torch.testing.assert_close(one.learn(alone)["loss"], -chances[[0, 2], 1].log().mean())


def test_feature_control_is_q_learning_of_changes():
    one, batch = FeatureControl(model(CellQ), gamma=0.5), rows()
    future = one.target.q(one.target.trunk(batch.obs_next)).max(1).values
    future[1] = 0.0  # the episode ended
    expected = (batch.obs_next - batch.obs).abs() + 0.5 * future
    q = one.model.q(one.model.trunk(batch.obs))[range(6), batch.act]
    torch.testing.assert_close(one.learn(one.process(batch))["loss"], (q - expected).square().mean())


@pytest.mark.parametrize("channels_last", [True, False])
def test_the_change_of_an_image_is_the_mean_over_pixels_and_channels_of_each_square(channels_last):
    space = gym.spaces.Box(0, 255, (4, 6, 2) if channels_last else (2, 4, 6), np.uint8)
    one = CellQ(space, ACT, Trunk(space, (8,)), (4,))
    before, after = np.zeros((2, 2, 4, 6), np.uint8)
    before[0, 1, 3] = after[0, 0, 2] = 255  # it moves within square 1 of the first row
    before[1, 2, 0] = after[0, 2, 0] = 255  # and from one channel to the other in the first square of the second row
    given = [torch.from_numpy(np.moveaxis(image, 0, -1).copy() if channels_last else image)[None] for image in (before, after)]
    assert one.change(*given).tolist() == [[0.0, 0.25, 0.0, 0.25, 0.0, 0.0]]
    assert one.q(one.trunk(given[0])).shape == (1, 2, 6)
    with pytest.raises(ValueError, match="cell is 5"):
        CellQ(space, ACT, Trunk(space, (8,)), cell=5)


def test_value_replay_learns_the_policy_s_own_values():
    policy = MLPActorCritic(OBS, ACT, hidden=[8])
    one, batch = ValueReplay(policy, gamma=0.5, weight=2.0), rows()
    y = batch.rew + 0.5 * policy.value(batch.obs_next).detach() * (~batch.terminated)
    torch.testing.assert_close(one.learn(one.process(batch))["loss"], 2.0 * (policy.value(batch.obs) - y).square().mean())


def test_rows_of_several_steps_are_discounted_by_their_duration():
    policy, batch = MLPActorCritic(OBS, ACT, hidden=[8]), rows()
    batch.duration = torch.arange(1, 7)
    discount = 0.5**batch.duration * (~batch.terminated)
    with torch.no_grad():
        values = ValueReplay(policy, gamma=0.5).process(batch).target
        torch.testing.assert_close(values, batch.rew + discount * policy.value(batch.obs_next))
        one = FeatureControl(model(CellQ), gamma=0.5)
        future = one.target.q(one.target.trunk(batch.obs_next)).amax(1)
        expected = (batch.obs_next - batch.obs).abs() + discount.unsqueeze(1) * future
        torch.testing.assert_close(one.process(batch).target, expected)


def test_spr_turns_what_is_expected_towards_the_next_features():
    one, batch = SPR(model(FeatureModel)), rows()
    z, after = one.model.trunk(batch.obs), one.target.trunk(batch.obs_next)
    ahead = one.model.predictor(one.model.project(one.model.step(torch.cat([z, F.one_hot(batch.act, 2).float()], 1))))
    target = one.target.project(after)
    cosine = (ahead * target).sum(1) / (ahead.norm(dim=1) * target.norm(dim=1))
    with torch.no_grad():
        made = one.process(batch)
    torch.testing.assert_close(one.learn(made)["loss"], 1.0 - cosine.mean())


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_the_weight_scales_what_goes_into_the_trunk_alone(weight):
    def gradients(weight):
        one = RewardPrediction(model(RewardClasses), weight=weight)
        one.learn(rows())["loss"].backward()
        return [part.grad for part in one.model.trunk.parameters()], [part.grad for part in one.model.head.parameters()]

    (trunk, head), (whole, same) = gradients(weight), gradients(1.0)
    torch.testing.assert_close(head, same)
    assert all(part is None for part in trunk) if not weight else True
    if weight:
        torch.testing.assert_close(trunk, [weight * part for part in whole])


def trained(algorithm, steps=320, **options):
    """The weights of the policy, and the returns of episodes, after a short run."""
    tasks = ["RL"] * (algorithm == "DQN") + ["auxiliary"] * options.get("auxiliary", True)
    few = {f"tasks.{task}.OffPolicyHelper.{key}": value for task in tasks for key, value in (("warmup", 64), ("batch_size", 32))}
    few |= {"OnPolicyHelper.unroll": 32, "OnPolicyHelper.store_policy": True,
            "tasks.RL.ComputationTask.native": False} if algorithm == "PPO" else {}
    with build(resolve(Config, {"algorithm": algorithm, "total_steps": steps, "n_agents": 2, "NoisyObservation.n": 3, "seed": 3,
                                **few, **options})) as robot:
        for _ in robot.iterate(steps):
            pass
        assert all(task.learns for task in robot.tasks.values())
        return robot.tasks["RL"].algorithm.model.weights_hash()


@pytest.mark.parametrize(("algorithm", "learner"), [("DQN", "SPR"), ("DQN", "RewardPrediction"), ("PPO", "FeatureControl")])
def test_with_weight_0_the_policy_is_what_it_would_be_alone(algorithm, learner):
    alone = trained(algorithm, auxiliary=False)
    assert trained(algorithm, learners=[learner], **{f"{learner}.weight": 0.0}) == alone
    assert trained(algorithm, learners=[learner]) != alone


def test_unreal_is_three_tasks_beside_an_actor_critic():
    """Value replay learns the model of the policy itself, so it has no network of its own."""
    options = {"algorithm": "PPO", "learners": ["RewardPrediction", "FeatureControl", "ValueReplay"], "NoisyObservation.n": 3}
    with build(resolve(Config, {"total_steps": 400, "n_agents": 2, **options})) as robot:
        assert list(robot.tasks) == ["RL", "auxiliary", "auxiliary2", "auxiliary3"]
        policy = robot.tasks["RL"].algorithm
        assert isinstance(policy, PPO) and robot.tasks["auxiliary3"].algorithm.model is policy.model
        assert policy.model.perception is robot.tasks["auxiliary"].algorithm.model.trunk
    with pytest.raises(ConfigError, match="ValueReplay needs a policy that learns values of states"):
        build(resolve(Config, {"learners": ["ValueReplay"]}))


def test_value_replay_learns_the_policy_s_own_returns():
    """Two discounts, or two scales of rewards, would pull one critic to and fro."""
    options = {"algorithm": "PPO", "learners": ["ValueReplay"], "total_steps": 400, "NoisyObservation.n": 3}
    scaled = {"tasks.RL.OnPolicyHelper.transforms": ["RewardNormalizer"]}
    with build(resolve(Config, {**options, **scaled, "PPO.gamma": 0.9})) as robot:
        assert robot.tasks["auxiliary"].algorithm.gamma == 0.9
        for helper in robot.agents[0].helpers.values():
            assert [type(one).__name__ for one in helper.transforms] == ["RewardNormalizer"]
    with build(resolve(Config, {**options, "PPO.gamma": 0.9, "ValueReplay.gamma": 0.8})) as robot:
        assert robot.tasks["auxiliary"].algorithm.gamma == 0.8


@pytest.mark.parametrize("kind", [RewardPrediction, SPR])
def test_a_negative_weight_is_refused(kind):
    with pytest.raises(ValueError, match="weight is -1.0"):
        kind(model(FeatureModel if kind is SPR else RewardClasses), weight=-1.0)
