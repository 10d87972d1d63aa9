"""Tables: Q-learning by hand and beside a plain NumPy loop, and that a model of arrays is a model like another."""

import sys
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import Agent, ComputationTask, OffPolicyHelper, Robot, create_algorithm_func
from parl_like.agents.online import TURN, OnlineHelper
from parl_like.algorithms import SARSA, QLearning
from parl_like.data.storage.archive import read_archive
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.envs.tabular import RandomWalk
from parl_like.learning.algorithm import Algorithm, Linear
from parl_like.learning.explorers import UCB, Categorical, EpsilonGreedy, Noisy
from parl_like.learning.factory import Shared
from parl_like.learning.model import ArrayModel
from parl_like.models import MLPQ, QTable
from parl_like.values.batch import Batch
from parl_like.values.errors import Diverged
from parl_like.values.spec import SpecError

WALK = RandomWalk(7, (0.0, 1.0))
SPACES = dict(obs=WALK.observation_space, act=WALK.action_space)


def walk():
    return RandomWalk(7, (0.0, 1.0))


def q_func(model=QTable, **options):
    return create_algorithm_func(model, SPACES, QLearning, {"lr": 0.5, "gamma": 0.5, **options})


def table(robot, task="RL"):
    return robot.tasks[task].algorithm.model.table


def rows(*transitions):
    obs, act, rew, obs_next, ends = map(np.array, zip(*transitions, strict=True))
    return {"obs": obs, "act": act, "rew": rew.astype(np.float64), "obs_next": obs_next, "terminated": ends.astype(bool)}


def test_values_worked_out_by_hand():
    task = ComputationTask(q_func())
    out = task.learn(rows((5, 1, 1, 6, True), (4, 1, 0, 5, False)))
    # Both targets are those before the update: 1, and ½ · 0.
    assert task.algorithm.model.table[4:6, 1].tolist() == [0.0, 0.5] and out["td"].tolist() == [1.0, 0.0]
    task.learn(rows((4, 1, 0, 5, False), (4, 1, 0, 5, False)))
    # ½ · (½ · ½ − 0) = ⅛, and that twice. Nothing else has changed.
    assert task.algorithm.model.table[4, 1] == 0.25 and task.algorithm.model.table.sum() == 0.75
    assert (task.version, task.algorithm.updates, task.learns, task.rows_learned) == (2, 2, 2, 4)


class Seen(Agent):
    """Keeps what it stores."""

    rows = []

    def run_one_episode(self):
        obs, _ = self.env.reset()
        done = False
        while not done:
            act = self.helpers["RL"].predict(obs)
            obs_next, rew, terminated, truncated, info = self.env.step(act)
            self.rows.append((self.index, obs, act, rew, obs_next, terminated))
            self.helpers["RL"].store(obs, act, rew, obs_next, terminated, truncated, info)
            obs, done = obs_next, terminated or truncated


@pytest.mark.parametrize("n_agents", [1, 3])
def test_each_step_is_learned_from_at_once_bit_for_bit_as_by_a_plain_loop(n_agents):
    class Here(Seen):
        rows = []

    task = ComputationTask(q_func(lr=Linear(0.5, 0.1, 500), epsilon=0.3), OnlineHelper)
    with Robot(walk, agent=Here, n_agents=n_agents, tasks={"RL": task}) as robot:
        robot.run(StopAfterSteps(3 * TURN + 20))
        q = np.zeros((7, 2))
        for i, (_, s, a, r, s_next, ends) in enumerate(Here.rows):
            q[s, a] += Linear(0.5, 0.1, 500)(i) * (r + 0.5 * (1.0 - ends) * q[s_next].max() - q[s, a])
        assert q.tobytes() == table(robot).tobytes() and q[5, 1] > 0.9
        assert task.algorithm.updates == task.version == task.learns == len(Here.rows)
        assert {row[0] for row in Here.rows} == set(range(n_agents))
        assert robot.wrappers["RL"].trainings.counters.requests == 0 and "RL/td" in robot.metrics()


class InPython(QLearning):
    """The same, without a compiled twin."""


def test_the_compiled_row_is_learn_and_the_explorer_bit_for_bit():
    rng = np.random.default_rng(0)
    spaces = dict(obs=gym.spaces.Discrete(5), act=gym.spaces.Discrete(4))
    plain, compiled = (kind(QTable(**spaces), lr=Linear(0.5, 0.1, 100), gamma=0.9) for kind in (InPython, QLearning))
    explorer, row = EpsilonGreedy(0.3, random_ties=True), compiled.row_learner()
    assert plain.row_learner() is None is QLearning(type("Other", (QTable,), {})(**spaces)).row_learner()
    for noise in explorer.draw(rng, 0, 500):
        (s, s_next), a, rew, ends = rng.integers(5, size=2).tolist(), int(rng.integers(4)), rng.normal(), bool(rng.random() < 0.2)
        if rng.random() < 0.1:  # equal values, also of no size
            plain.model.table[s] = compiled.model.table[s] = rng.integers(0, 2, 4)
        q = plain.predict(Batch(obs=s))
        assert row.act(s, noise) == explorer.act_one(q, noise) and row.act(s, -1.0) == EpsilonGreedy().act_one(q, -1.0)
        out = plain.learn(Batch._of(dict(obs=s, act=a, rew=rew, obs_next=s_next, terminated=ends)))
        assert row.learn(s, a, rew, s_next, ends) == out["td"]
        plain.updates += 1
        assert plain.model.table.tobytes() == compiled.model.table.tobytes() and plain.updates == compiled.updates
    compiled.model.table[1, 2], before = np.nan, compiled.updates
    assert np.isnan(row.learn(0, 0, 0.0, 1, False))
    for numbers in ((5, 0, 0.0, 1), (0, 4, 0.0, 1), (0, -1, 0.0, 1), (0, 0, 0.0, 5)):
        with pytest.raises(IndexError, match=r"state \d, action -?\d of a table of 5 states and 4 actions"):
            row.learn(*numbers, False)
    assert compiled.updates == before + 1


def test_a_robot_without_the_compiled_row_makes_the_same_steps():
    def run(kind):
        func = create_algorithm_func(QTable, SPACES, kind, dict(lr=0.5, gamma=0.5, epsilon=0.3))
        with Robot(walk, n_agents=2, tasks={"RL": ComputationTask(func, OnlineHelper)}, trace=True) as robot:
            robot.run(StopAfterSteps(700))
            return robot.trace_hash(), table(robot).tobytes(), robot.counters(), robot.metrics()["RL/td"]

    assert run(QLearning) == run(InPython)


# ---------------------------------------------------------------------------------------------------------------- SARSA


def sarsa_func(kind=SARSA, **options):
    return create_algorithm_func(QTable, SPACES, kind, {"lr": 0.5, "gamma": 0.5, **options})


class SarsaInPython(SARSA):
    """The same, without a compiled twin."""


def test_sarsa_worked_out_by_hand():
    task = ComputationTask(sarsa_func())
    q = task.algorithm.model.table
    q[4], q[5] = (2.0, 8.0), (4.0, 1.0)
    one = {**rows((3, 1, 1, 4, False), (4, 0, 1, 5, True), (5, 0, 1, 4, False)), "next_act": np.array([0, 1, 1]),
           "has_next": np.array([True, False, False])}
    out = task.learn(one)
    # Targets: 1 + ½·2 (not the best, 8); 1, for it ended; of the last row nothing follows that is known.
    assert out["td"].tolist() == [2.0, 1.0, 0.0] and q[3:6].tolist() == [[0.0, 1.0], [1.5, 8.0], [4.0, 1.0]]


@pytest.mark.parametrize("kind", [SARSA, SarsaInPython])
@pytest.mark.parametrize("n_agents", [1, 3])
def test_sarsa_learns_with_the_next_action_bit_for_bit_as_a_plain_loop(kind, n_agents):
    class Here(Seen):
        rows = []

    task = ComputationTask(sarsa_func(kind, epsilon=0.3), OnlineHelper)
    with Robot(walk, agent=Here, n_agents=n_agents, tasks={"RL": task}) as robot:
        robot.run(StopAfterSteps(3 * TURN + 20))
        robot.checkpoint_boundary()  # the last row waits for the action after it
        q, before = np.zeros((7, 2)), {}
        for agent, s, a, r, _, ends in Here.rows:
            if agent in before:
                s0, a0, r0 = before.pop(agent)
                q[s0, a0] += 0.5 * (r0 + 0.5 * q[s, a] - q[s0, a0])
            if ends:
                q[s, a] += 0.5 * (r - q[s, a])
            else:
                before[agent] = s, a, r
        assert task.learns == len(Here.rows)  # those that were open when the run ended have been learned from, too
        now = table(robot).copy()
        for s, a, _ in before.values():
            now[s, a] = q[s, a] = 0
        assert now.tobytes() == q.tobytes() and q[5, 1] > 0.9


def test_a_row_at_a_time_limit_or_a_cut_gets_an_action_of_its_own():
    with Robot(walk, tasks={"RL": ComputationTask(sarsa_func(epsilon=0.0), OnlineHelper)}) as robot:
        helper, task, q = robot.agents[0].helpers["RL"], robot.tasks["RL"], table(robot)
        q[4] = 2.0, 8.0
        helper.store(3, 1, 1.0, 4, False, False)
        assert not q[3].any() and not task.version
        helper.store(4, 0, 1.0, 3, False, True)  # 1 + ½ · 2: what was done, not the best. Then 1 + ½ · 1, the best of 3
        assert q[3].tolist() == [0.0, 1.0] and q[4].tolist() == [1.75, 8.0] and task.version == 2
        helper.store(3, 0, 1.0, 4, False, False)
        helper.store(2, 0, 0.0, 1, False, False)  # which does not follow: 1 + ½ · 8
        assert q[3, 0] == 2.5 and task.version == 3
        helper.interrupt()
        helper.interrupt()
        assert task.version == 4


def test_sarsa_that_is_resumed_is_the_same(tmp_path):
    def robot():
        return Robot(walk, n_agents=2, seed=3, trace=True, tasks={"RL": ComputationTask(sarsa_func(epsilon=0.3), OnlineHelper)})

    with robot() as whole, robot() as half:
        whole.run(StopAfterSteps(500))
        whole.save(tmp_path / "half")
        whole.run(StopAfterSteps(500))
        half.load(tmp_path / "half")
        half.run(StopAfterSteps(500))
        assert whole.trace_hash() == half.trace_hash() and table(whole).tobytes() == table(half).tobytes()


def test_sarsa_from_a_buffer():
    task = ComputationTask(sarsa_func(), partial(OffPolicyHelper, size=200, batch_size=8))
    with Robot(walk, tasks={"RL": task}) as robot:
        robot.run(StopAfterSteps(800))
        assert table(robot)[3:6].argmax(1).tolist() == [1] * 3


@pytest.mark.parametrize("random_ties", [False, True])
def test_one_action_is_that_of_a_batch(random_ties):
    explorer, rng = EpsilonGreedy(0.3, random_ties), np.random.default_rng(0)
    for noise in explorer.draw(rng, 0, 200):
        q = rng.integers(0, 3, 4).astype(np.float64)
        batch = {"q": q[None]}
        expected = explorer.act(batch, np.array([noise]))["act"][0]
        assert explorer.act_one({"q": q}, noise) == expected == super(EpsilonGreedy, explorer).act_one({"q": q}, noise)
        mask = np.array([True, False, True, False])
        expected = explorer.act({**batch, "mask": mask[None]}, np.array([noise]))["act"][0]
        assert explorer.act_one({"q": q, "mask": mask}, noise) == expected


def test_the_greedy_walk_goes_right_and_a_run_that_is_resumed_is_the_same(tmp_path):
    def robot():
        return Robot(walk, n_agents=2, seed=3, trace=True, tasks={"RL": ComputationTask(q_func(), OnlineHelper)})

    with robot() as whole, robot() as half:
        whole.run(StopAfterSteps(1000))
        whole.save(tmp_path / "half")
        whole.run(StopAfterSteps(1000))
        half.load(tmp_path / "half")
        half.run(StopAfterSteps(1000))
        assert whole.trace_hash() == half.trace_hash() and whole.counters() == half.counters()
        assert table(whole)[3:6].argmax(1).tolist() == [1] * 3
        before = table(whole).copy()
        assert whole.evaluate(3, env=walk).returns == [1.0] * 3 and (table(whole) == before).all()
        assert whole.act(3) == 1
        saved = read_archive(tmp_path / "half")[0]["task.RL"]["networks"]["model"]["table"]
        assert tuple(saved.shape) == (7, 2) and saved.dtype == torch.float64


def test_iterations_end_though_nobody_waits_and_a_hook_may_save(tmp_path):
    with Robot(walk, n_agents=2, tasks={"RL": ComputationTask(q_func(), OnlineHelper)}) as robot:
        robot.train_iter()
        assert robot.env_steps == 2 * TURN and robot.iterations == 1
        robot.request_save(tmp_path / "asked")
        robot.train_iter()
        assert (tmp_path / "asked").exists()
        robot.collect(n_step=100)
        assert robot.tasks["RL"].learns == 4 * TURN


def test_beside_a_task_with_a_queue_both_learn():
    tasks = {"RL": ComputationTask(q_func(), OnlineHelper),
             "replay": ComputationTask(q_func(), partial(OffPolicyHelper, size=500, batch_size=8))}
    with Robot(walk, n_agents=2, tasks=tasks) as robot:
        robot.run(StopAfterSteps(1500))
        assert tasks["RL"].learns > 1400 and tasks["replay"].learns > 300
        assert table(robot, "replay")[3:6].argmax(1).tolist() == [1] * 3


@pytest.mark.parametrize(("options", "said"), [
    (dict(driver="threads"), "there is driver 'threads'; use driver='cooperative'"),
    (dict(model=MLPQ), "there is MLPQ; give the algorithm an ArrayModel"),
])
def test_where_it_cannot_learn_online_is_said(options, said):
    func = q_func() if "model" not in options else create_algorithm_func(MLPQ, SPACES, NoTable, {})
    with pytest.raises(ValueError, match=rf"agent 0, task 'RL': OnlineHelper learns .* {said}, or learn with OffPolicyHelper"):
        Robot(walk, tasks={"RL": ComputationTask(func, OnlineHelper)}, driver=options.get("driver", "cooperative"))


def test_actions_of_several_arrays_are_refused_online():
    class Two(ArrayModel):
        def __init__(self):
            super().__init__(WALK.observation_space, gym.spaces.Dict(a=WALK.action_space, b=WALK.action_space))

    class Silent(Algorithm):
        def predict(self, inputs):
            return {}

    with pytest.raises(ValueError, match=r"there is an action of Dict.*; take one array as the action, or learn with Off"):
        Robot(walk, tasks={"RL": ComputationTask(Silent(Two()), OnlineHelper)})


@pytest.mark.parametrize("helper", [OnlineHelper, partial(OffPolicyHelper, size=50, batch_size=8)])
@pytest.mark.parametrize(("explorer", "name"), [(UCB(), "counts"), (Categorical(), "logits"), (Noisy(1), "mean")])
def test_an_explorer_that_reads_what_nothing_predicts_is_refused_before_anybody_acts(helper, explorer, name):
    said = rf"agent 0, task 'RL': \w+ reads '{name}' of the prediction, which has q; return it from the algorithm's predict"
    with pytest.raises(ValueError, match=said):
        Robot(walk, tasks={"RL": ComputationTask(q_func(), partial(helper, explorer=explorer))})


def test_ucb_with_counts_of_ones_own_tries_every_action():
    class Counted(QTable):
        def __init__(self, obs, act):
            super().__init__(obs, act)
            self.add_array("counts", np.zeros((obs.n, act.n)))

    class Counting(QLearning):
        def predict(self, inputs):
            return {**super().predict(inputs), "counts": self.model.counts[inputs.obs]}

        def learn(self, batch):
            np.add.at(self.model.counts, (batch.obs, batch.act), 1)
            return super().learn(batch)

    func = create_algorithm_func(Counted, SPACES, Counting, dict(lr=0.5, gamma=0.5))
    with Robot(walk, tasks={"RL": ComputationTask(func, partial(OnlineHelper, explorer=UCB(0.5)))}) as robot:
        robot.run(StopAfterSteps(1000))
        counts = robot.tasks["RL"].algorithm.model.counts
        assert counts.sum() == 1000 and (counts[1:6] > 0).all() and table(robot)[3:6].argmax(1).tolist() == [1] * 3


class NoTable(Algorithm):
    def predict(self, inputs):
        return {"q": self.model.q(inputs.obs)}


def test_what_does_not_fit_is_refused_and_nothing_is_learned():
    with Robot(walk, tasks={"RL": ComputationTask(q_func(), OnlineHelper)}) as robot:
        helper = robot.agents[0].helpers["RL"]
        for obs in (7, -1, 2.5, np.int64(9)):
            with pytest.raises(SpecError, match="agent 0, task 'RL', field 'obs'"):
                helper.store(obs, 1, 0.0, 3, False, False)
        with pytest.raises(SpecError, match="agent 0, task 'RL': state 2, action 2 of a table of 7 states and 2 actions"):
            helper.store(2, 2, 0.0, 3, False, False)
        with pytest.raises(SpecError, match="agent 0, task 'RL', field 'rew': expected a finite number, got nan"):
            helper.store(2, 1, float("nan"), 3, False, False)
        assert not table(robot).any() and robot.tasks["RL"].version == 0
        helper.store(np.int64(2), 1, 1, np.int64(3), False, False)
        assert table(robot)[2, 1] == 0.5
        table(robot)[3] = 1e308
        with np.errstate(over="ignore"), pytest.raises(Diverged, match="task 'RL': td is inf at update 2, and has been learned"):
            helper.store(2, 1, 1.7e308, 3, False, False)


# ------------------------------------------------------------------------------------------------- a model like another


def test_an_update_that_leaves_no_numbers_is_taken_back():
    task = ComputationTask(q_func())
    task.learn(rows((5, 1, 1, 6, True)))
    before = task.algorithm.model.table.copy()
    task.learn(rows((5, 1, np.nan, 6, True), (4, 1, 1, 5, False)))
    assert task.algorithm.model.table.tobytes() == before.tobytes() and (task.version, task.skipped) == (1, 1)


@pytest.mark.parametrize(("told", "message"), [
    (lambda: None, ""), (lambda: {}, ""),
    (lambda: 1.0, r"task 'RL': learn of Says gives float for a row; expected a mapping of numbers, or None"),
    (lambda: iter(()), "learn of Says gives .*iterator for a row; expected a mapping of numbers"),
    (lambda: {"td": np.zeros(2)}, "learn of Says gives {'td': array.* for a row; expected a mapping of numbers"),
])  # fmt: skip
def test_what_learn_says_of_a_row_is_numbers_or_nothing(told, message):
    class Says(InPython):
        def learn(self, batch):
            super().learn(batch)
            return told()

    func = create_algorithm_func(QTable, SPACES, Says, {})
    with Robot(walk, tasks={"RL": ComputationTask(func, OnlineHelper)}, seed=0) as robot:
        if message:
            with pytest.raises(Exception, match=message):
                robot.run(StopAfterSteps(5))
        else:
            robot.run(StopAfterSteps(5))
            assert robot.tasks["RL"].algorithm.updates == 5


def test_an_array_is_changed_in_place_and_not_exchanged():
    model = QTable(**SPACES)
    model.table += 2.0
    assert (model.state_dict()["table"] == 2.0).all()
    with pytest.raises(TypeError, match=r"cannot assign QTable.table, an array .*; change it in place: table\[\.\.\.\] = "):
        model.table = model.table + 1.0


def test_copies_have_arrays_of_their_own_which_checkpoints_and_followers_reach():
    task, other = ComputationTask(q_func()), ComputationTask(q_func())
    task.publish()
    task.learn(rows((5, 1, 1, 6, True)))
    assert not task.predict({"obs": np.array([5])})["q"].any()
    task.publish()
    assert task.predict({"obs": np.array([5])})["q"].tolist() == [[0.0, 0.5]]
    other.load_state_dict(task.state_dict())
    assert other.algorithm.model.table[5, 1] == 0.5 and other.version == 1
    other.learn(rows((5, 1, 1, 6, True)))
    assert task.algorithm.model.table[5, 1] == 0.5
    task.sync_from(other)
    assert task.algorithm.model.table[5, 1] == 0.75
    assert not task.algorithm.clone(copy=False).model.table.any()
    with pytest.raises(ValueError, match="'table' is .* the same model to load it"):
        ComputationTask(create_algorithm_func(QTable, {**SPACES, "obs": gym.spaces.Discrete(3)}, QLearning, {})).load_state_dict(
            task.state_dict())


def test_a_table_of_two_tasks_has_one_lock_and_one_history():
    shared = Shared(QTable, **SPACES)
    first, second = (ComputationTask(create_algorithm_func(shared, {}, QLearning, dict(lr=0.5))) for _ in range(2))
    first.build()
    second.build()
    second.learn(rows((5, 1, 1, 6, True)))
    assert first.algorithm.model.table[5, 1] == 0.5 and first.version == second.version == 1 and first.lock is second.lock


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
def test_replicas_of_a_table_act_as_the_centre_does():
    def traced(**options):
        task = ComputationTask(q_func(), partial(OffPolicyHelper, size=500, batch_size=8), **options)
        with Robot(walk, n_agents=2, tasks={"RL": task}, driver=Processes(workers=1), trace=True) as robot:
            robot.run(StopAfterSteps(200))
            return robot.trace_hash(), task.version

    assert traced(serve="replica") == traced(serve="central")


def test_a_table_is_for_numbered_states():
    for obs in (gym.spaces.Box(0, 1, (2,)), gym.spaces.Discrete(3, start=1)):
        with pytest.raises(ValueError, match="QTable: spaces are .*; expected Discrete ones, of states from 0 on"):
            QTable(obs, gym.spaces.Discrete(2))
    with pytest.raises(TypeError, match="cannot assign"):
        QTable(**SPACES).table = np.zeros(3)
