"""Acting by values of states, which TD and Monte Carlo learn at their stages; and DQN as a Q-learner with two parts replaced."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest

from parl_like import ComputationTask, EpisodicHelper, OffPolicyHelper, Robot, create_algorithm_func
from parl_like.agents.online import OnlineHelper
from parl_like.algorithms import DQN, TD, MonteCarloPrediction, QLearning
from parl_like.environment.hooks import Hook
from parl_like.envs.tabular import RandomWalk, TableEnv
from parl_like.models import MLPQ, QTable, VTable
from parl_like.robots.value_agent import ValueAgent

WALK = RandomWalk(7, (-1.0, 1.0))
SPACES = dict(obs=WALK.observation_space, act=WALK.action_space)


class Discounting(ValueAgent):
    """Without a discount all states are worth as much, and it need not go on."""

    gamma = 0.9


def robot(kind, helper, model=None, **options):
    func = create_algorithm_func(VTable, {**SPACES, **(model or {})}, kind, dict(policy=None, gamma=0.9, **options))
    return Robot(RandomWalk, agent=Discounting, tasks={"RL": ComputationTask(func, helper)}, seed=1, trace=True)


@pytest.mark.parametrize(("kind", "helper", "model", "options"), [
    (TD, OnlineHelper, {}, dict(lr=0.1)), (TD, OnlineHelper, {}, dict(lr=0.1, lam=0.8)),
    (MonteCarloPrediction, EpisodicHelper, dict(prior=0.0), {}),
], ids=["td0", "td_lambda", "monte_carlo"])
def test_an_agent_acts_by_values_of_the_states_that_it_could_reach(kind, helper, model, options, tmp_path):
    with robot(kind, helper, model, **options) as made, robot(kind, helper, model, **options) as half:
        made.run(300)
        made.save(tmp_path / "half")
        made.run(300)
        half.load(tmp_path / "half")
        half.run(300)
        assert made.trace_hash() == half.trace_hash()
        values = made.tasks["RL"].algorithm.model.table
        assert (values[3:6] > 0.3).all() and made.evaluate(3, env=RandomWalk).returns == [1.0] * 3
        assert made.tasks["RL"].rows_learned >= 580  # every update goes to the learner; of the last episode perhaps not yet


COIN = [[[(0.5, 0, 1.0, True), (0.5, 0, 0.0, True)], [(0.5, 0, 0.0, True), (0.5, 0, 1.0, True)]]]


class NoTable(gym.Wrapper):
    """A table that shows neither its table nor, by `unwrapped`, itself; it has the states of the one inside."""

    unwrapped = property(lambda self: self)
    np_random = property(lambda self: self.env.np_random)

    def clone_state(self):
        return self.env.clone_state()

    def restore_state(self, state):
        self.env.restore_state(state)


def trained(make):
    env = make()
    func = create_algorithm_func(VTable, dict(obs=env.observation_space, act=env.action_space), TD, {"policy": None})
    return Robot(make, agent=Discounting, tasks={"RL": ComputationTask(func, OnlineHelper)}, seed=1)


def test_an_agent_does_not_see_what_the_real_step_will_draw():
    """Heads or tails of a fair coin: whatever is chosen, half of the games are won."""
    with trained(lambda: TableEnv.from_outcomes(COIN)) as made:
        assert 0.35 < made.evaluate(200, env=lambda: TableEnv.from_outcomes(COIN)).mean_return < 0.65


def test_an_environment_without_a_table_is_tried_unless_it_draws():
    with trained(lambda: NoTable(RandomWalk())) as made:
        made.run(300)
        assert made.evaluate(3, env=lambda: NoTable(RandomWalk())).returns == [1.0] * 3
    with trained(lambda: NoTable(TableEnv.from_outcomes(COIN))) as made, pytest.raises(Exception, match="draws random numbers"):
        made.run(20)


def test_values_of_actions_are_expected_ones():
    agent = object.__new__(Discounting)
    agent.env = TableEnv.from_outcomes([[[(0.25, 1, 4.0, False), (0.75, 0, 0.0, False)], [(1.0, 1, 2.0, True)]],
                                        [[(1.0, 1, 0.0, True)], [(1.0, 1, 0.0, True)]]])
    # 0.25 · 4 + 0.9 · (0.25 · v(1) + 0.75 · v(0)) with v = (1, 2) is 2.125; 2 is sure, and ends it.
    assert agent._expected(agent.model, 0, lambda state: [1.0, 2.0][state]).tolist() == pytest.approx([2.125, 2.0])


class Updates(Hook):
    """The updates that there are after each step and after each episode."""

    def __init__(self):
        self.after_steps, self.after_episodes = [], []

    def post_act(self, agent):
        self.after_steps.append(agent.robot.tasks["RL"].learns)

    def post_episode(self, agent, interrupted):
        self.after_episodes.append(agent.robot.tasks["RL"].learns)


def test_td_learns_at_each_step_and_monte_carlo_at_the_end_of_an_episode():
    for kind, helper in ((TD, OnlineHelper), (MonteCarloPrediction, EpisodicHelper)):
        with robot(kind, helper) as made:
            hook = Updates()
            made.run(60, hook)
            if kind is TD:
                assert made.tasks["RL"].learns == 60 and len(set(hook.after_steps)) >= 59
            else:
                assert made.tasks["RL"].learns == made.episodes and hook.after_episodes[-1] == made.episodes


# ------------------------------------------------------------------------------------------ the article's two substitutions


def learner(model, algorithm, helper, **options):
    """The robot of a Q-learner; its table and its helper are what is replaced."""
    func = create_algorithm_func(model, SPACES | options.pop("network", {}), algorithm, dict(gamma=0.9, epsilon=0.2, **options))
    return Robot(RandomWalk, tasks={"RL": ComputationTask(func, helper)}, n_agents=2, seed=1)


def test_a_basic_dqn_is_the_tabular_q_learner_with_two_parts_replaced():
    """ReinforcementLearning.jl's article: a network in the table's place, and replay in that of the row just seen. The same robot
    and the same environment learn the same policy, and values that agree where the greedy path leads."""
    replay = partial(OffPolicyHelper, size=1000, batch_size=32, warmup=100)
    found = {}
    for name, made in (("table", learner(QTable, QLearning, OnlineHelper, lr=0.2)),
                       ("network", learner(MLPQ, DQN, replay, lr=3e-3, target_period=0, double=False, network={"hidden": [32]}))):
        with made:
            made.run(1_500)
            assert made.evaluate(3, env=RandomWalk).returns == [1.0] * 3, name
            model = made.tasks["RL"].algorithm.model
            rows = np.arange(3, 6)
            q = model.q(rows) if name == "table" else model.q(_tensor(rows)).detach().numpy()
            assert q.argmax(1).tolist() == [1, 1, 1]
            found[name] = q[:, 1]
    np.testing.assert_allclose(found["table"], [0.81, 0.9, 1.0], atol=0.05)
    np.testing.assert_allclose(found["network"], found["table"], atol=0.1)


def _tensor(rows):
    import torch

    return torch.from_numpy(rows)
