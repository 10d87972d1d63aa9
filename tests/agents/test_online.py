"""Fields that an algorithm asks for where each row is learned from at once: those that a buffer has."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest

from parl_like import Agent, ComputationTask, OffPolicyHelper, Robot, create_algorithm_func
from parl_like.agents.online import TURN, OnlineHelper
from parl_like.algorithms import QLearning
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.envs.tabular import RandomWalk
from parl_like.learning.algorithm import Window
from parl_like.models import QTable

SPACES = dict(obs=gym.spaces.Discrete(7), act=gym.spaces.Discrete(2))
MARKS = ("first", "lane", "episode")
BUFFER = partial(OffPolicyHelper, size=5000, batch_size=8, warmup=5000)


def walk():
    """Some episodes end at the sixth step, some before by themselves."""
    return gym.wrappers.TimeLimit(RandomWalk(7, (0.0, 1.0)), 6)


def robot_of(kind, helper=OnlineHelper, n_agents=2, **options):
    func = create_algorithm_func(QTable, SPACES, kind, {"lr": 0.5, "gamma": 0.5, "epsilon": 0.3})
    return Robot(walk, n_agents=n_agents, seed=3, tasks={"RL": ComputationTask(func, helper)}, **options)


def keeping(*fields):
    class Keeps(QLearning):
        """Learns nothing, and keeps its rows."""

        window = Window(fields=fields)
        rows = []

        def learn(self, batch):
            self.rows.append({name: batch[name] for name in ("rew", *fields)})
            return {"td": 0.0}

    return Keeps


def play(robot):
    """The same for every robot: two agents by turns, each with episodes that end, reach a time limit or are cut off, and some
    rows that are not learned from. The reward is the number of the row."""
    rng, helpers = np.random.default_rng(0), [agent.helpers["RL"] for agent in robot.agents]
    for i in range(300):
        helper = helpers[int(rng.integers(2))]
        helper.collecting = 100 <= i < 150
        ends = [bool(end) for end in rng.random(2) < 0.15]
        helper.store(i % 7, i % 2, float(i), (i + 1) % 7, *ends)
        if rng.random() < 0.1:
            helper.interrupt()
        if any(ends):
            helper.pre_episode(helper.agent)


@pytest.mark.parametrize("more", [(), ("next_act",)])
def test_the_fields_of_rows_are_those_of_a_buffer(more):
    kind = keeping(*MARKS, *more)
    with robot_of(kind) as online, robot_of(keeping(*MARKS, *more), BUFFER) as stored:
        play(online)
        play(stored)
        lanes = [stored.buffers["RL"].lane_rows(lane) for lane in range(2)]
        online.agents[0].cut()
        online.agents[1].cut()
    expected = {int(rew): [rows[name][i].item() for name in MARKS] for rows in lanes for i, rew in enumerate(rows["rew"])}
    found = {int(row["rew"]): [row[name].item() for name in MARKS] for row in kind.rows}
    assert found == {i: row for i, row in expected.items() if not 100 <= i < 150} and len(found) == len(kind.rows) == 250
    assert expected[299][2] > 30 and {lane for _, lane, _ in found.values()} == {0, 1}


def test_a_robot_that_is_resumed_counts_on(tmp_path):
    kind = keeping("first", "episode")
    with robot_of(kind, n_agents=1) as whole, robot_of(kind, n_agents=1) as half:
        whole.run(StopAfterSteps(101))
        whole.save(tmp_path / "half")
        kind.rows.clear()
        whole.run(StopAfterSteps(101))
        expected = list(kind.rows)
        kind.rows.clear()
        half.load(tmp_path / "half")
        half.run(StopAfterSteps(101))
        assert kind.rows == expected and expected[0]["episode"] > 10


def test_what_was_asked_for_is_there_and_nothing_else():
    kind = keeping("episode")
    with robot_of(kind) as robot:
        robot.run(StopAfterSteps(20))
        assert not {"first", "lane", "next_act"} & set(robot.agents[0].helpers["RL"]._row.keys())
        assert [row["episode"] for row in kind.rows][0] == 0
    with pytest.raises(ValueError, match="OnlineHelper learns .* there is the field 'number' of a Window; .* without it"):
        robot_of(keeping("number"))


class Traces(QLearning):
    """Naive Q(λ): eligibility traces of each lane, anew with each episode. `tables` are those after each update."""

    window = Window(fields=("first", "lane"))

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.traces, self.tables = {}, []

    def learn(self, batch):
        if batch.first:
            self.traces[int(batch.lane)] = np.zeros_like(self.model.table)
        trace, td = self.traces[int(batch.lane)], self.error(batch)
        trace *= self.gamma * 0.8
        trace[batch.obs, batch.act] += 1.0
        self.model.table[:] += self.lr * td * trace
        self.tables.append(self.model.table.copy())
        return {"td": abs(td)}


class SarsaTraces(Traces):
    """SARSA(λ): each row waits for its next action. A time limit is an end here."""

    window = Window(fields=("first", "lane", "next_act"))

    def error(self, batch):
        value = self.model.q(batch.obs_next)[batch.next_act] if batch.has_next and not batch.truncated else 0.0
        return batch.rew + self.gamma * value - self.model.table[batch.obs, batch.act]


@pytest.mark.parametrize("kind", [Traces, SarsaTraces])
@pytest.mark.parametrize("n_agents", [1, 2])
def test_eligibility_traces_of_two_agents_are_those_of_a_plain_loop(kind, n_agents):
    class Seen(Agent):
        rows = []

        def run_one_episode(self):
            (obs, _), done = self.env.reset(), False
            while not done:
                act = self.helpers["RL"].predict(obs)
                obs_next, rew, terminated, truncated, info = self.env.step(act)
                self.rows.append((self.index, obs, act, rew, obs_next, terminated, truncated))
                self.helpers["RL"].store(obs, act, rew, obs_next, terminated, truncated, info)
                obs, done = obs_next, terminated or truncated

    q, traces, waits = np.zeros((7, 2)), {}, {}

    def learn(agent, s, a, rew, value):
        td = rew + 0.5 * value - q[s, a]
        traces[agent] *= 0.5 * 0.8
        traces[agent][s, a] += 1.0
        q[:] += 0.5 * td * traces[agent]

    with robot_of(kind, n_agents=n_agents, agent=Seen) as robot:
        robot.run(StopAfterSteps(2 * TURN + 20))
        robot.checkpoint_boundary()  # rows that wait for the action after them are learned from without it
        for agent, s, a, rew, s_next, terminated, truncated in Seen.rows:
            begins = agent not in waits
            if kind is Traces:
                if begins:
                    traces[agent] = np.zeros_like(q)
                learn(agent, s, a, rew, 0.0 if terminated else q[s_next].max())
                waits[agent] = None
            else:
                if not begins:
                    learn(agent, *waits[agent], q[s, a])
                else:
                    traces[agent] = np.zeros_like(q)
                waits[agent] = s, a, rew
                if terminated or truncated:
                    learn(agent, s, a, rew, 0.0)
            if terminated or truncated:
                del waits[agent]
        tables, cut_off = robot.tasks["RL"].algorithm.tables, sum(row is not None for row in waits.values())  # by the run's end
        assert q.any() and len(tables) == len(Seen.rows) and tables[-1 - cut_off].tobytes() == q.tobytes()
