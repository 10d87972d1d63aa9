"""Option-critic: the formulas by hand, what it is with one option and with options of one step, and who follows them."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

from parl_like import ComputationTask, OffPolicyHelper, OnPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import OptionCritic, QLearning
from parl_like.envs.four_rooms import FourRooms
from parl_like.lab import config as configs
from parl_like.lab import experiment as experiments
from parl_like.models import OptionTable, QTable
from parl_like.robots import options as robot_of_options
from parl_like.robots.options import OptionAgent
from parl_like.values.batch import Batch

STATES, ACTIONS = gym.spaces.Discrete(4), gym.spaces.Discrete(2)


def learner(options=2, **more):
    return OptionCritic(OptionTable(STATES, ACTIONS, options), **{"gamma": 0.5, "temperature": 1.0, **more})


def row(s, act, rew, after, terminated=False):
    return Batch(obs=np.int64(s), act=np.array(act), rew=rew, obs_next=np.int64(after), terminated=np.bool_(terminated))


def test_a_step_by_hand():
    """β is ½ where ϑ is 0: y = 1 + ½ (½ · 2 + ½ · 4) = 2.5. Then Q moves by ½ · (2.5 − 1), and Q_U by ½ · 2.5."""
    one = learner(lr=0.5, policy_lr=0.25, end_lr=0.4, deliberation_cost=0.5)
    one.model.table[0, 1], one.model.table[2] = 1.0, (4.0, 2.0)
    assert one.learn(row(0, (1, 0), 1.0, 2)) == {"td": 1.5}
    assert one.model.table[0].tolist() == [0.0, 1.75] and one.model.inside[0, 1].tolist() == [1.25, 0.0]
    # π is even: ∇ log π = (½, −½), times α_π (Q_U − Q) = ¼ (1.25 − 1.75)
    np.testing.assert_allclose(one.model.theta[0, 1], [-0.0625, 0.0625])
    # ϑ falls by 0.4 · ½ · ½ · (2 − 4 + ½)
    np.testing.assert_allclose(one.model.ending[2], [0.0, 0.15])
    assert not one.model.theta[0, 0].any() and not one.model.ending[[0, 1, 3]].any()


def test_random_rows_of_the_past_are_refused():
    """The policies of options learn from what they have done; old rows were done by others."""
    func = create_algorithm_func(OptionTable, {"obs": gym.spaces.Discrete(104), "act": gym.spaces.Discrete(4)}, OptionCritic, {})
    with pytest.raises(ValueError, match="OptionCritic learns from rows in order"):
        Robot(FourRooms, agent=OptionAgent, tasks={"RL": ComputationTask(func, OffPolicyHelper)}).run(10)


def test_an_end_has_no_future_and_ends_no_option():
    one = learner(lr=1.0)
    one.model.table[2] = 9.0
    one.learn(row(0, (0, 1), 3.0, 2, terminated=True))
    assert one.model.table[0].tolist() == [3.0, 0.0] and not one.model.ending.any()


def random_rows(n=60, options=1):
    rng = np.random.default_rng(0)
    return [row(rng.integers(4), (rng.integers(options), rng.integers(2)), float(rng.normal()), rng.integers(4),
                rng.random() < 0.2) for _ in range(n)]


def test_one_option_is_an_actor_critic():
    """A value of each state by TD(0), values of actions with the same targets, and a softmax that follows their difference."""
    one = learner(1, lr=0.3, policy_lr=0.2, deliberation_cost=0.7)
    v, q, theta = np.zeros(4), np.zeros((4, 2)), np.zeros((4, 2))
    for each in random_rows():
        one.learn(each)
        s, a, after = int(each.obs), int(each.act[1]), int(each.obs_next)
        y = each.rew + (0.0 if each.terminated else 0.5 * v[after])
        v[s] += 0.3 * (y - v[s])
        q[s, a] += 0.3 * (y - q[s, a])
        pi = np.exp(theta[s] - theta[s].max())
        theta[s] += 0.2 * (q[s, a] - v[s]) * (np.eye(2)[a] - pi / pi.sum())
    np.testing.assert_allclose(one.model.table[:, 0], v, rtol=1e-12)
    np.testing.assert_allclose(one.model.inside[:, 0], q, rtol=1e-12)
    np.testing.assert_allclose(one.model.theta[:, 0], theta, rtol=1e-10)


def test_options_that_end_at_once_are_the_actions_of_q_learning():
    one, q = learner(2, lr=0.3, end_lr=0.0), QLearning(QTable(STATES, gym.spaces.Discrete(2)), lr=0.3, gamma=0.5)
    one.model.ending[:] = 1e3
    for each in random_rows(options=2):
        one.learn(each)
        q.learn(Batch({**each, "act": each.act[0]}))
    assert np.array_equal(one.model.table, q.model.table)


def test_predictions_are_probabilities_of_options_ends_and_actions():
    one = learner(2, epsilon=0.2)
    one.model.table[1], one.model.ending[1], one.model.theta[1, 0] = (1.0, 3.0), (0.0, np.log(3.0)), (np.log(4.0), 0.0)
    out = one.predict(Batch(obs=np.array([1, 0])))
    np.testing.assert_allclose(out["choice"], [[0.1, 0.9], [0.5, 0.5]])
    np.testing.assert_allclose(out["end"], [[0.5, 0.75], [0.5, 0.5]])
    np.testing.assert_allclose(out["policy"][0], [[0.8, 0.2], [0.5, 0.5]])


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"deliberation_cost": -1.0}, {"epsilon": 1.5}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        learner(**wrong)


def test_an_option_is_followed_until_it_ends():
    """With β = 0 an episode has one option, with β = 1 each step has a new one."""
    for ending, many in ((-1e3, False), (1e3, True)):
        with Robot(lambda: gym.wrappers.TimeLimit(FourRooms(), 40), seed=1, agent=OptionAgent, tasks={"RL": ComputationTask(
                create_algorithm_func(OptionTable, dict(obs=gym.spaces.Discrete(104), act=gym.spaces.Discrete(4)), OptionCritic,
                                      dict(lr=0.0, policy_lr=0.0, end_lr=0.0)), lambda: OnPolicyHelper(unroll=1))}) as robot:
            robot.tasks["RL"].algorithm.model.ending[:] = ending
            robot.tasks["RL"].train = False
            seen = []
            robot.agents[0].helpers["RL"].store = lambda obs, act, *rest, seen=seen: seen.append(int(act[0]))
            robot.run(200)
        changes = sum(a != b for a, b in zip(seen, seen[1:], strict=False))
        assert changes > 100 if many else changes <= 8


def test_rows_of_a_batch_are_learned_in_their_order():
    one, other = learner(), learner()
    rows = random_rows(8, options=2)
    for each in rows:
        one.learn(each)
    other.learn(Batch({name: np.stack([each[name] for each in rows]) for name in rows[0].keys()}))
    assert all(np.array_equal(getattr(one.model, name), getattr(other.model, name))
               for name in ("table", "inside", "theta", "ending"))


def test_it_asks_for_numbered_states():
    box = gym.spaces.Box(-1, 1, (2,), np.float32)
    for spaces in ((box, ACTIONS), (STATES, box), (gym.spaces.Discrete(3, start=1), ACTIONS)):
        with pytest.raises(ValueError, match="OptionTable: spaces are .*; expected Discrete"):
            OptionTable(*spaces)
    with pytest.raises(ValueError, match="options is 0"):
        OptionTable(STATES, ACTIONS, 0)


@pytest.mark.slow
def test_after_the_goal_has_moved_options_recover_faster():
    """Seed 0: mean steps to the new goal, of 50 evaluation episodes, 20,000 steps after it has moved."""
    scores = SimpleNamespace()
    for name, options in (("flat", 1), ("options", 4)):
        experiment = experiments.get("optioncritic-fourrooms")
        config = configs.resolve(robot_of_options.Config, experiment.config, {"options": options})
        with robot_of_options.build(config) as robot:
            robot.run(config.total_steps)
            setattr(scores, name, robot.evaluate(50).mean_length)
    assert scores.options < scores.flat
