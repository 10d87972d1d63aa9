"""Policies of algorithms that have no robot: they act as a robot does, give batches for batches, and leave training as it is."""

import gymnasium as gym
import numpy as np
import pytest
from policy_cases import CASES, NUMBERS, PARTS, robot_of
from test_policies import acts_as, many

from parl_like import Batch, ComputationTask, Policy, create_algorithm_func
from parl_like.algorithms import DQN, PPO, SAC
from parl_like.algorithms.dynamics import DynamicsLearner
from parl_like.learning.explorers import EpsilonGreedy, Gaussian
from parl_like.models import MLPQ, MLPActorCritic, MLPActorQ
from parl_like.models.dynamics import Dynamics, Trunk
from parl_like.values.batch_leaf import same
from parl_like.values.spec import SpecError, leaves

QUICK = ("MLP, one choice", "masks in a Dict", "squashed Gaussian", "Dict observations and actions", "recurrent", "a table",
         "dueling with noise in the weights", "several heads")
ALONE = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
         for name, (*_, options) in CASES.items() if "transforms" not in options]
CHOICE = gym.spaces.Discrete(3, start=2)
Q = create_algorithm_func(MLPQ, dict(obs=NUMBERS, act=CHOICE, hidden=(8,)), DQN, dict(lr=0.1, gamma=0.9))


@pytest.mark.parametrize("name", ALONE)
def test_an_algorithm_acts_as_its_robot(name):
    with robot_of(name) as robot:
        acts_as(robot, Policy(robot.tasks["RL"].algorithm))


def test_a_batch_for_a_batch():
    policy = Policy(create_algorithm_func(MLPActorCritic, dict(obs=NUMBERS, act=PARTS, hidden=(8,)), PPO, {}))
    obs = many(policy.observation_space, 5)["obs"]
    found, acts = policy(Batch(obs=obs, rew=np.zeros(5))), policy(obs)
    assert {*found.keys()} == {"act", "policy"} and len(found) == 5
    for name, value in leaves(acts, "act"):
        assert np.array_equal(dict(leaves(found.act, "act"))[name], value)
    policy.reset()
    single = policy(Batch(obs=obs[2]))
    assert {name: np.shape(value) for name, value in leaves(single.policy, "policy")} == {
        name: np.shape(value)[1:] for name, value in leaves(found.policy, "policy")}
    assert int(single.act["a"]) == int(found.act["a"][2])
    with pytest.raises(SpecError, match="expected obs"):
        policy(Batch(rew=np.zeros(5)))


def test_the_values_are_those_of_the_network_and_the_best_one_is_taken():
    algorithm = Q()
    obs = many(NUMBERS, 6)["obs"]
    found = Policy(algorithm)(Batch(obs=obs))
    assert np.array_equal(found.act, found.policy.q.argmax(1) + 2), "choices as the environment counts them"


def test_an_observation_that_is_a_batch_with_a_part_of_this_name():
    space = gym.spaces.Dict({"obs": NUMBERS, "more": NUMBERS})
    policy = Policy(create_algorithm_func(MLPQ, dict(obs=space, act=CHOICE, hidden=(8,)), DQN, {}))
    assert policy(Batch(space.sample())) in CHOICE


def test_training_goes_on_as_if_there_were_no_policy():
    """Neither optimiser nor lock is the policy's, and it acts by what has been learned so far."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(2, 16, 3)).astype(np.float32)
    rows = {"obs": obs[0], "obs_next": obs[1], "act": rng.integers(0, 3, 16), "rew": np.arange(16.0, dtype=np.float32),
            "terminated": np.zeros(16, bool)}
    left = []
    for watched in (False, True):
        task = ComputationTask(Q)
        task.build()
        policy = Policy(task.algorithm) if watched else None
        before = policy(Batch(obs=obs[0])).policy.q if watched else None
        for _ in range(3):
            task.learn(dict(rows))
            if watched:
                policy(obs[0])
        left.append(task.state_dict())
        assert not watched or np.abs(policy(Batch(obs=obs[0])).policy.q - before).max() > 0.01
    assert same(*left)


def test_a_policy_may_come_first():
    algorithm = Q()
    policy = Policy(algorithm)
    task = ComputationTask(algorithm)
    assert task.optimizer is not None and len(task.optimizer.param_groups[0]["params"]) == len(task.optimized())
    assert policy(np.zeros(3, np.float32)) in CHOICE


def test_actions_may_be_drawn_by_a_seed_and_another_explorer():
    obs = np.zeros((200, 3), np.float32)
    drawn = [Policy(Q, drawn=True, seed=seed, explorer=EpsilonGreedy(0.9))(obs).tolist() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2] and {*drawn[0]} == {2, 3, 4}
    assert len({*Policy(Q, explorer=EpsilonGreedy(0.9))(obs).tolist()}) == 1


def test_what_gives_no_policy():
    with pytest.raises(TypeError, match=r"^Policy: got 'runs/x'; expected an Algorithm.*Policy.load"):
        Policy("runs/x")
    with pytest.raises(TypeError, match=r"^Policy: got 3; expected an Algorithm"):
        Policy(lambda: 3)
    with pytest.raises(ValueError, match="Policy: Gaussian reads 'mean' of the prediction, which has q"):
        Policy(Q, explorer=Gaussian(1))
    dynamics = create_algorithm_func(Dynamics, dict(obs=NUMBERS, act=CHOICE, trunk=Trunk(NUMBERS)), DynamicsLearner, {})
    with pytest.raises(ValueError, match="Policy: DynamicsLearner predicts .*, and no action"):
        Policy(dynamics)
    sac = create_algorithm_func(MLPActorQ, dict(obs=NUMBERS, act=gym.spaces.Box(-2, 2, (1,)), hidden=(8,)), SAC, {})
    assert Policy(sac)(np.zeros(3, np.float32)).shape == (1,) and "SAC" in repr(Policy(sac))
