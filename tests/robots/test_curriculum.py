"""A curriculum as a task: its formula by hand, what it is with one level, and a lock that is not opened without it."""

import gymnasium as gym
import numpy as np
import pytest

from parl_like import Hook
from parl_like.algorithms import LearningProgress
from parl_like.envs.combination_lock import CombinationLock
from parl_like.envs.multitask import Multitask
from parl_like.lab import config as configs
from parl_like.lab import experiment as experiments
from parl_like.lab.yaml_text import ConfigError
from parl_like.models import QTable
from parl_like.robots import curriculum
from parl_like.values.batch import Batch


def build(**overrides):
    return curriculum.build(configs.resolve(curriculum.Config, experiments.get("curriculum-lock").config, overrides))


def learner(levels=3, **more):
    return LearningProgress(QTable(gym.spaces.Discrete(1), gym.spaces.Discrete(levels)), **more)


def rows(*played):
    levels, scores = zip(*played, strict=True)
    return Batch(obs=np.zeros(len(levels), np.int64), act=np.array(levels), rew=np.array(scores, float))


def test_levels_are_worth_how_much_their_scores_change():
    one = learner(lr=0.5)
    assert one.learn(rows((1, 1.0), (2, -2.0)))["change"] == 1.5
    assert one.model.table.tolist() == [[0.0, 0.5, -1.0]]
    one.learn(rows((1, 1.0)))  # as before: nothing is learned there any more
    assert one.model.table.tolist() == [[0.0, 0.25, -1.0]]
    assert one.predict(Batch(obs=np.zeros(1, np.int64)))["q"].tolist() == [[0.0, 0.25, 1.0]]  # what is forgotten counts, too
    one.learn(Batch(obs=np.int64(0), act=np.int64(0), rew=4.0))
    assert one.model.table[0, 0] == 2.0 and one.model.newest.tolist() == [[4.0, 1.0, -2.0]]


def test_a_score_that_is_not_finite_and_a_prior_are_refused():
    one = learner()
    with pytest.raises(ValueError, match="rewards are"):
        one.learn(rows((0, np.nan)))
    assert not one.model.newest.any()
    with pytest.raises(ValueError, match="prior"):
        LearningProgress(QTable(gym.spaces.Discrete(1), gym.spaces.Discrete(2), prior=1.0))


def test_with_one_level_the_policy_is_what_it_would_be_alone():
    tables = []
    for options in ({"levels": [0]}, {"curriculum": False}):
        with build(seed=4, **options, env={"id": "CombinationLock-v0", "options": {"n": 3}}) as robot:
            robot.run(600)
            tables.append(robot.tasks["RL"].algorithm.model.table.copy())
    assert np.array_equal(*tables) and tables[0].any()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_lock_is_opened_with_a_curriculum_and_not_without(seed):
    scores = []
    for with_it in (True, False):
        with build(seed=seed, curriculum=with_it) as robot:
            robot.run(20_000)
            scores.append(robot.evaluate(5, seed=0).mean_return)
    assert scores == [1.0, 0.0]


def test_evaluations_play_the_environment_as_it_is():
    """From the first turn, whatever the levels; and they teach the teacher nothing."""
    with build(levels=[19]) as robot:
        robot.run(300)
        before = robot.tasks["curriculum"].learns
        robot.tasks["RL"].algorithm.model.table[:20] = CombinationLock().P[:20, :, 1:21].sum(2)  # who knows the lock
        assert before and robot.evaluate(3, seed=0).lengths == [20] * 3 and robot.tasks["curriculum"].learns == before


def test_it_chooses_the_tasks_of_an_environment_of_several():
    id = "LocksOfTest-v0"
    gym.register(id, lambda: Multitask([lambda: CombinationLock(2), lambda: CombinationLock(2)], shows_task=False))
    played = []

    class Notes(Hook):
        def pre_episode(self, agent):
            played.append(agent.env.last_step[5]["task"])

    try:
        with build(levels=[1], option="task", env=id) as robot:
            robot.run(60, hooks=Notes())
            assert robot.tasks["curriculum"].learns and set(played) == {1}
    finally:
        del gym.registry[id]


def test_what_it_refuses():
    with pytest.raises(ConfigError, match="0 levels"):
        build(levels=[])


def test_the_lock():
    env = CombinationLock(3, combination=1)
    right = [int(env.P[s, 1, s + 1]) for s in range(3)]
    assert env.values([*right, 0, 0], 1.0).tolist() == [1.0, 1.0, 1.0, 0.0, 0.0] and env.values()[0] == 1 / 8
    obs, _ = env.reset(seed=0, options={"state": 2})
    assert obs == 2 and env.step(right[2])[:3] == (3, 1.0, True)
    env.reset()
    assert env.step(1 - right[0])[:3] == (4, 0.0, True)
    with pytest.raises(ValueError, match="n is 0"):
        CombinationLock(0)
