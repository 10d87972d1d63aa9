"""What holds for all members of a kind, whatever rows they get: actions of double precision, one reward a step, actions that
do not start at 0."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import (
    Algorithm,
    ComputationTask,
    OffPolicyHelper,
    PrioritizedReplayBuffer,
    Robot,
    algorithms,
    create_algorithm_func,
)
from parl_like.algorithms import BC, DDPG, MPO, OAC, QRSAC, REDQ, SAC, TD3, TQC, CrossQ, DroQ, EnsembleLearner, QLearning
from parl_like.algorithms.dynamics import DynamicsLearner
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.models import MLPActorCritic, MLPActorQ, MLPCrossQ, QTable
from parl_like.models.dynamics import Dynamics, EnsembleDynamics, Trunk

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
MEMBERS = {
    SAC: {}, MPO: {}, REDQ: {}, OAC: {}, TQC: {"heads": 5}, QRSAC: {"heads": 5}, DroQ: {"layer_norm": True},
    CrossQ: {"critic_hidden": (8,)}, TD3: {"policy": "deterministic"}, DDPG: {"policy": "deterministic", "critics": 1},
}
each = pytest.mark.parametrize("algorithm", MEMBERS, ids=lambda one: one.__name__)
SEVERAL = {"BC", "Counts", "Discriminator", "DynamicsLearner", "FeatureControl", "ICM", "MADDPG", "RND", "SPR", "WorldModel"}
"""Those that have no use for the reward, or take several: MADDPG one for each player."""


def rows(dtype, shape, n=6):
    rng = np.random.default_rng(0)
    obs, obs_next = rng.normal(size=(2, n, 3)).astype(np.float32)
    act = rng.uniform(-1, 1, (n, *shape)).astype(np.float32)  # the same numbers for both
    return {"obs": obs, "obs_next": obs_next, "act": act.astype(dtype), "rew": rng.normal(size=n).astype(dtype),
            "terminated": np.arange(n) % 2 == 0, "truncated": np.zeros(n, bool)}


@each
@pytest.mark.parametrize("shape", [(), (2, 2)], ids=str)
def test_actions_of_double_precision_are_those_of_single_precision(algorithm, shape):
    """Helpers store actions as the space has them; the Box of many environments is float64."""
    left = []
    for dtype in (np.float32, np.float64):
        torch.manual_seed(0)
        act = gym.spaces.Box(-1, 3, shape, dtype)
        model = (MLPCrossQ if algorithm is CrossQ else MLPActorQ)(OBS, act, (8,), **MEMBERS[algorithm])
        task = ComputationTask(algorithm(model, **({"n_step": 1} if algorithm is MPO else {}), lr=0.01))
        task.build()
        for _ in range(2):
            task.learn(rows(dtype, shape))
        left.append(model.weights_hash())
    assert left[0] == left[1]


@each
def test_rows_of_a_prioritised_buffer_count_by_their_weights(algorithm):
    """The critics' loss is the mean of weight times what the row would give alone, at the same noise."""
    torch.manual_seed(0)
    model = (MLPCrossQ if algorithm is CrossQ else MLPActorQ)(OBS, gym.spaces.Box(-1, 1, (2,), np.float32), (8,),
                                                              **MEMBERS[algorithm])
    task = ComputationTask(algorithm(model, **({"n_step": 1} if algorithm is MPO else {})))
    given = rows(np.float32, (2,))

    def critic(weight):
        task.algorithm.torch_rng.manual_seed(0)
        batch = task.algorithm.process(task.runner.sent({**given, "weight": np.array(weight, np.float32)}))
        return next(iter(task.algorithm.learn(batch)))["critic"].item()

    with torch.no_grad():
        single = [critic(np.eye(6)[i]) for i in range(6)]
        assert min(single) > 0 and critic(np.arange(6)) == pytest.approx(np.dot(np.arange(6), single), rel=1e-4)


def test_all_learn_from_one_reward_a_step_or_say_otherwise():
    kinds = {name: kind for name in algorithms.__all__ if issubclass(kind := getattr(algorithms, name), Algorithm)}
    assert {name for name, kind in kinds.items() if not kind.one_reward} == SEVERAL


class Count(gym.Env):
    observation_space, action_space = gym.spaces.Discrete(3), gym.spaces.Discrete(2)


def test_a_learner_without_priorities_refuses_a_prioritised_buffer_when_the_robot_is_built():
    """Before, its first update did."""
    spaces = dict(obs=Count.observation_space, act=Count.action_space)
    for algorithm, model in ((QLearning, QTable), (BC, MLPActorCritic)):
        task = ComputationTask(create_algorithm_func(model, spaces, algorithm, {}),
                               lambda: OffPolicyHelper(size=100, batch_size=2, buffer=PrioritizedReplayBuffer))
        with pytest.raises(ValueError, match=f"{algorithm.__name__} has no priorities for its rows; use a ReplayBuffer"):
            Robot(Count, tasks={"RL": task})


class TwoRewards(gym.Env):
    observation_space, action_space = OBS, gym.spaces.Box(-1, 1, (2,), np.float32)
    reward_space = gym.spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize("algorithm", [SAC, MPO])
def test_several_rewards_are_refused_when_the_robot_is_built(algorithm):
    """Two rows of two rewards each would else have been taken for something, without a word."""
    func = create_algorithm_func(MLPActorQ, dict(obs=OBS, act=TwoRewards.action_space, hidden=(8,)), algorithm, {})
    task = ComputationTask(func, lambda: OffPolicyHelper(size=100, batch_size=2))
    with pytest.raises(ValueError, match=rf"rewards of shape \(2,\), and {algorithm.__name__} learns from one number a step"):
        Robot(TwoRewards, tasks={"RL": task})


class Steps(gym.Env):
    """Actions 5, 6 and 7; the observation is the last of them, less 6."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(3, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, act):
        self.t += 1
        return np.array([act - 6], np.float32), 0.0, False, self.t == 8, {}


@pytest.mark.parametrize("learner", [DynamicsLearner, EnsembleLearner])
def test_models_of_the_environment_get_actions_from_0_wherever_these_start(learner):
    spaces = dict(obs=Steps.observation_space, act=Steps.action_space)
    if learner is DynamicsLearner:
        func = create_algorithm_func(Dynamics, {**spaces, "trunk": Trunk(spaces["obs"], (8,))}, learner, {"lr": 0.03})
    else:
        func = create_algorithm_func(EnsembleDynamics, {**spaces, "hidden": (8,), "members": 2}, learner, {"lr": 0.03})
    policy = create_algorithm_func(MLPActorQ, {**spaces, "hidden": (8,)}, SAC, {})
    tasks = {name: ComputationTask(one, lambda: OffPolicyHelper(size=200, batch_size=16, learn_every=2))
             for name, one in (("RL", policy), ("model", func))}
    with Robot(Steps, tasks=tasks, seed=0) as robot:
        robot.run(StopAfterSteps(200))
        model = robot.tasks["model"].algorithm.model
        obs, act = torch.zeros(3, 1), torch.arange(3)
        with torch.no_grad():
            if learner is DynamicsLearner:
                after = model.next_obs(model.trunk(obs), act)
            else:
                x = model.features(obs, act)
                after = model.drawn(obs, model.each(x.expand(2, -1, -1))[0].mean(0))[0]
        np.testing.assert_allclose(after[:, 0], [-1, 0, 1], atol=0.3)
