"""Rows of one update belong together: one set of statistics, none lost without a word, none changed behind the buffer's back."""

import logging
import sys
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_fakes import ACT, POSITION, Corridor, Noisy, Recorder, dqn, ppo, robot_of

from parl_like import (
    Agent,
    ComputationTask,
    EpisodicHelper,
    OffPolicyHelper,
    OnPolicyHelper,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    Robot,
    VectorAgent,
    create_algorithm_func,
)
from parl_like.algorithms import DQN, PPO
from parl_like.data.buffers.cached import CachedReplayBuffer
from parl_like.data.buffers.episodes import EpisodeBuffer
from parl_like.data.buffers.prioritized import PrioritizedReplayBuffer as Prioritized
from parl_like.data.buffers.reservoir import ReservoirBuffer
from parl_like.data.experience import experience
from parl_like.data.timestep import first_step, next_step
from parl_like.data.transforms import FrameStacker, ObservationNormalizer, RewardNormalizer, Transforms, UntransformedTimeStep
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.envs import make_vector_env
from parl_like.models import MLPQ, MLPActorCritic
from parl_like.values.errors import AgentFailed
from parl_like.values.spec import Spec

# ------------------------------------------------------------------------------------------- statistics of one update


class Ratios(PPO):
    """Keeps, of every update, what the policy says now about the actions next to what it said when they were taken."""

    updates_seen = None

    def process(self, batch):
        with torch.no_grad():
            out, _ = self.evaluate(batch)
        now = self.model.head.log_prob(out, batch.act)
        self.updates_seen = [*(self.updates_seen or ()), (batch.obs.clone(), now.numpy(), batch.policy.log_prob.numpy())]
        return super().process(batch)


def normalised(update_on, n_agents, driver="cooperative", agent=Agent, unroll=16):
    func = create_algorithm_func(MLPActorCritic, dict(obs=Noisy.observation_space, act=ACT, hidden=[8]), Ratios,
                                 dict(epochs=2, minibatches=2, lr=0.01))

    def helper():
        return OnPolicyHelper(unroll=unroll, store_policy=True, transforms=[ObservationNormalizer(update_on=update_on)])

    return robot_of(func, helper, env=Noisy, n_agents=n_agents, driver=driver, agent=agent, seed=3)


@pytest.mark.parametrize("update_on", ["replay", "rollout"])
@pytest.mark.parametrize("driver", ["cooperative", "threads"])
@pytest.mark.parametrize("vector", [False, True])
def test_what_the_policy_says_of_an_action_is_the_same_when_it_acts_and_when_it_learns(update_on, driver, vector):
    """The ratio of PPO begins at 1 in a synchronous run: statistics stand still from the first action of an unroll to the end of
    its update."""
    with normalised(update_on, 2, driver, (lambda: VectorAgent(2)) if vector else Agent) as robot:
        robot.run(StopAfterSteps(16 * 2 * (2 if vector else 1) * 6))
        updates = robot.tasks["RL"].algorithm.updates_seen
        assert len(updates) >= 5  # threads leave the last one to the next run
        for _, now, then in updates:
            np.testing.assert_allclose(now, then, rtol=0, atol=2e-6)
        moments = next(iter(robot.transforms["RL"])).moments["obs"]
        assert not np.allclose(moments.mean, 0, atol=1e-3)  # and they do change, from update to update


def counting(env, **options):
    """A robot whose transforms keep statistics."""
    obs = gym.spaces.Box(-10, 10, (4,), np.float32)
    func = create_algorithm_func(MLPActorCritic, dict(obs=obs, act=ACT, hidden=[8]), PPO, {})
    task = ComputationTask(func, lambda: OnPolicyHelper(unroll=8, transforms=[ObservationNormalizer(), RewardNormalizer()]))
    return Robot(env, tasks={"RL": task}, seed=0, trace=True, **options)


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
def test_statistics_of_environments_in_processes_are_those_of_one_place(tmp_path):
    """Workers that act would count each for itself: refused. Environments alone may be elsewhere, also over a resume."""
    with pytest.raises(ValueError, match=r"'RL' keep statistics.*make_vector_env\(ID, 8, 'process'\) with agent=VectorAgent"):
        counting("CartPole-v1", n_agents=2, driver="processes")

    def trace(kind, resumed):
        make = partial(counting, lambda: make_vector_env("CartPole-v1", 4, kind), agent=VectorAgent)
        with make() as first, make() as second:
            first.run(StopAfterSteps(160))
            first.save(tmp_path / kind)
            robot = second if resumed else first
            if resumed:
                robot.load(tmp_path / kind)
            robot.run(StopAfterSteps(160))
            return robot.trace_hash(), next(iter(robot.transforms["RL"])).moments["obs"].mean.tolist()

    assert trace("sync", False) == trace("process", False) == trace("process", True)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("helper", [OnPolicyHelper, EpisodicHelper])
def test_all_rows_of_an_update_are_normalised_alike(helper, mode):
    """Every agent sees other numbers, so its rows have other moments; 0 is in all of them."""

    class Steps(gym.Env):
        observation_space, action_space = gym.spaces.Box(-99, 99, (1,), np.float32), ACT
        made = 0

        def __init__(self):
            Steps.made += 1
            self.width, self.t = Steps.made, 0

        def reset(self, *, seed=None, options=None):
            self.t = 0
            return np.zeros(1, np.float32), {}

        def step(self, act):
            self.t += 1
            return np.array([self.t % 3 * self.width], np.float32), float(self.t % 3 * self.width), self.t == 6, False, {}

    options = {"unroll": 6} if helper is OnPolicyHelper else {"max_steps": 6}
    chain = [UntransformedTimeStep(), ObservationNormalizer(), RewardNormalizer()]
    with robot_of(Recorder(), lambda: helper(**options, transforms=chain), env=Steps, n_agents=3, mode=mode) as robot:
        robot.run(StopAfterSteps(3 * 6 * 4))
        updates = robot.tasks["RL"].algorithm.updates_seen
        assert len(updates) >= 3
        for update in updates:
            for name in ("obs", "rew"):
                raw = update[f"untransformed.{name}"].ravel()
                for value in np.unique(raw):
                    assert len(np.unique(update[name].ravel()[raw == value])) == 1


def test_a_task_that_only_learns_keeps_one_set_of_statistics_per_update_and_renews_it():
    class Second(Agent):
        def run_one_episode(self):
            obs, _ = self.env.reset()
            done = False
            while not done:
                obs_next, rew, terminated, truncated, _ = self.env.step(0)
                self.helpers["RL"].store(obs, 0, rew, obs_next, terminated, truncated)
                obs, done = obs_next, terminated or truncated

    with robot_of(Recorder(), lambda: OnPolicyHelper(unroll=4, transforms=[ObservationNormalizer()]), env=lambda: Corridor(100),
                  n_agents=2, agent=Second) as robot:
        robot.run(StopAfterSteps(24))
        updates = [update["obs"][:, 0] for update in robot.tasks["RL"].algorithm.updates_seen]
        assert len(updates) == 3
        for update in updates:
            np.testing.assert_array_equal(update[:4], update[4:])
        assert len({round(float(np.diff(update)[0]), 5) for update in updates}) == 3


def test_off_policy_rows_count_before_they_are_learned_from():
    with robot_of(Recorder(),
                  lambda: OffPolicyHelper(size=100, batch_size=8, learn_every=8, transforms=[ObservationNormalizer()]),
                  env=lambda: Corridor(50)) as robot:
        robot.run(StopAfterSteps(8))
        (update,) = robot.tasks["RL"].algorithm.updates_seen
        assert abs(update["obs"].mean()) < 1e-6 and update["obs"].std() == pytest.approx(1, abs=1e-5)


def test_statistics_that_wait_for_their_update_are_saved():
    def build():
        return normalised("replay", 2)

    with build() as straight, build() as first, build() as second:
        for robot in (straight, first):
            for _ in range(3):
                robot.train_iter()
            robot.checkpoint_boundary()
        second.load_state_dict(first.state_dict())
        for robot in (straight, second):
            for _ in range(3):
                robot.train_iter()
        a, b = (robot.tasks["RL"].algorithm.model.weights_hash() for robot in (straight, second))
        assert a == b
        a, b = ([rows.tolist() for rows, _, _ in robot.tasks["RL"].algorithm.updates_seen[-3:]] for robot in (straight, second))
        assert a == b


# ------------------------------------------------------------------------------------------------------- rows that get old


class AtTwoPaces(Agent):
    """Task 'slow' takes a row now and then, so the agents wait for its updates at different steps, and 'fast' learns with some of
    them."""

    def run_one_episode(self):
        obs, _ = self.env.reset()
        done = False
        while not done:
            now = {"fast", *(["slow"] if self.rng.random() < 0.2 else [])}
            acts = {name: self.helpers[name].predict(obs) for name in self.helpers if name in now}
            obs_next, rew, terminated, truncated, _ = self.env.step(acts["fast"])
            for name, act in acts.items():
                self.helpers[name].store(obs, act, rew, obs_next, terminated, truncated)
            obs, done = obs_next, terminated or truncated


def two_paces(store_policy=None, **options):
    unrolls = {"slow": 2, "fast": 32}
    tasks = {name: ComputationTask(ppo(Noisy, epochs=1, minibatches=1),
                                   lambda unroll=unroll: OnPolicyHelper(unroll=unroll, store_policy=store_policy))
             for name, unroll in unrolls.items()}
    return Robot(Noisy, tasks=tasks, agent=AtTwoPaces, n_agents=6, **options)


def test_no_row_is_lost_where_several_tasks_learn():
    with two_paces() as robot:
        robot.run(StopAfterSteps(3000))
        assert robot.metrics()["fast/dropped"] == robot.metrics()["slow/dropped"] == 0 and robot.remarks() == []
        assert all("policy.log_prob" in robot.buffers[name].columns for name in ("slow", "fast"))
        assert robot.tasks["fast"].rows_learned >= 3000 - 6 * 32


def test_a_warning_says_once_and_plainly_that_rows_are_lost(caplog):
    with caplog.at_level(logging.WARNING), two_paces(store_policy=False) as robot:
        robot.run(StopAfterSteps(3000))
        lost = robot.metrics()["fast/dropped"]
        (remark,) = robot.remarks()
        saved = robot.state_dict()
    assert lost > 300 and robot.tasks["fast"].rows_learned + lost >= 3000 - 6 * 32
    (text,) = [record.getMessage() for record in caplog.records if "store_policy" in record.getMessage()]
    for said in (text, remark):
        assert said.startswith("task 'fast': ") and "% of its rows" in said and "Give its helper store_policy=True" in said
    assert f"({int(lost):,} of" in remark
    with two_paces(store_policy=False) as robot:
        robot.load_state_dict(saved)
        assert robot.metrics()["fast/dropped"] == lost


def test_what_was_lost_in_worker_processes_is_counted_and_said(caplog):
    with caplog.at_level(logging.WARNING), two_paces(store_policy=False, driver="processes") as robot:
        robot.run(StopAfterSteps(3000))
        assert robot.metrics()["fast/dropped"] > 300
    assert sum("store_policy=True" in record.getMessage() for record in caplog.records) == 1


def test_helpers_of_one_task_with_a_longer_unroll_than_the_first_are_refused():
    unrolls = iter([2, 6])
    with pytest.raises(ValueError, match=r"agent 1, task 'RL': unroll is 6, .* lanes of 3 rows"):
        robot_of(Recorder(), lambda: OnPolicyHelper(unroll=next(unrolls)), n_agents=2)


@pytest.mark.parametrize(("options", "stored"), [
    (dict(), False),
    (dict(mode="async"), True),
])
def test_one_task_stores_the_policy_only_where_it_may_learn_meanwhile(options, stored):
    with robot_of(ppo(), lambda: OnPolicyHelper(unroll=4), **options) as robot:
        robot.run(StopAfterSteps(8))
        assert ("policy.log_prob" in robot.buffers["RL"].columns) == stored


def test_an_explorer_without_log_probabilities_stores_none_by_itself():
    tasks = {name: ComputationTask(Recorder(), lambda: OnPolicyHelper(unroll=4)) for name in "ab"}
    with Robot(Corridor, tasks=tasks) as robot:
        robot.run(StopAfterSteps(8))
        assert "policy.log_prob" not in robot.buffers["a"].columns


def test_a_task_that_learns_from_the_actions_of_another_keeps_to_what_it_can_know():
    """The default agent acts with its first task, and all of them store: the second has no log-probability of these actions."""
    tasks = {name: ComputationTask(ppo(), lambda: OnPolicyHelper(unroll=4)) for name in ("acts", "watches")}
    with Robot(Corridor, tasks=tasks, n_agents=2) as robot:
        robot.run(StopAfterSteps(40))
        assert all(task.learns == 5 for task in tasks.values())
        assert robot.agents[0].helpers["acts"].store_policy and not robot.agents[1].helpers["watches"].store_policy


# --------------------------------------------------------------------------------------------- algorithms and schedules


def test_an_algorithm_that_wants_random_rows_is_refused_by_helpers_that_send_segments():
    for helper in (OnPolicyHelper, EpisodicHelper):
        with pytest.raises(ValueError, match=rf"task 'RL': DQN learns from random rows .*{helper.__name__} sends .*use "
                                             r"OffPolicyHelper"):
            robot_of(dqn(), helper)
    with pytest.raises(ValueError, match=r"PPO learns from rows in order .*use OnPolicyHelper or EpisodicHelper"):
        robot_of(ppo(), lambda: OffPolicyHelper(size=100, batch_size=4))


def test_every_drawn_row_gets_its_own_priority_from_an_update_of_several_minibatches():
    """Each row says what its priority shall be: its position, plus 1. (Corridor: the observation is the position.)"""

    class Split(Recorder):
        def minibatches(self, batch):
            order = torch.from_numpy(self.rng.permutation(len(batch.obs)))
            yield from (batch[order[:3]], batch[order[3:]])

        def learn(self, batch):
            return {**super().learn(batch), "priority": batch.obs[:, 0] + 1}

    def helper():
        return OffPolicyHelper(size=32, batch_size=8, learn_every=8, buffer=PrioritizedReplayBuffer)

    with robot_of(Split(), helper, env=lambda: Corridor(100)) as robot:
        robot.run(StopAfterSteps(32))
        buffer, task = robot.buffers["RL"], robot.tasks["RL"]
        drawn = {int(x) for update in task.algorithm.updates_seen for x in update["obs"][:, 0]}
        assert task.learns == 4 and len(drawn) > 8
        for position in drawn:
            assert buffer._sum[position] == pytest.approx((position + 1) ** buffer.alpha, rel=1e-5)


# ------------------------------------------------------------------------------------- arrays that somebody changes later


SPECS = [Spec("obs", (3,), np.dtype(np.float32)), Spec("act", (), np.dtype(np.int64)), Spec("rew", (), np.dtype(np.float64)),
         Spec("terminated", (), np.dtype(bool)), Spec("truncated", (), np.dtype(bool)),
         Spec("obs_next", (3,), np.dtype(np.float32))]


@pytest.mark.parametrize("make", [
    lambda: ReplayBuffer(8), lambda: ReplayBuffer(8, ignore_obs_next=True), lambda: ReplayBuffer(8, stack_num=2),
    lambda: Prioritized(8),
    lambda: PrioritizedReplayBuffer(8), lambda: EpisodeBuffer(8), lambda: CachedReplayBuffer(ReplayBuffer(8), 1),
])
@pytest.mark.parametrize("how", ["push", "push_rows", "add"])
def test_buffers_keep_copies_of_what_they_are_given(make, how):
    buffer, obs, obs_next = make(), np.zeros(3, np.float32), np.zeros(3, np.float32)
    buffer.allocate(SPECS)
    for t in range(3):
        obs[:], obs_next[:] = t, t + 1
        values = (obs, t, 1.0, t == 2, False, obs_next)
        if how == "push":
            buffer.push(0, values)
        elif how == "push_rows":
            columns = tuple(np.asarray(v)[None] if isinstance(v, np.ndarray) else np.array([v]) for v in values)
            buffer.push_rows([0], columns)
            columns[0][:] = columns[5][:] = -1
        else:
            buffer.add(dict(zip((spec.name for spec in SPECS), values, strict=True)))
        obs[:] = obs_next[:] = -1
    rows = buffer[buffer.sample_indices(0)]
    newest = rows.obs[:, -1] if rows.obs.ndim == 3 else rows.obs
    assert newest[:, 0].tolist() == [0, 1, 2]


def test_a_reservoir_keeps_copies():
    buffer, obs = ReservoirBuffer(4), np.zeros(3, np.float32)
    for t in range(4):
        obs[:] = t
        buffer.add({"obs": obs})
    obs[:] = -1
    assert buffer.columns["obs"][:, 0].tolist() == [0, 1, 2, 3]


def test_time_steps_and_experience_keep_observations_that_are_changed_in_place():
    obs = {"image": np.zeros(2, np.uint8), "parts": (np.zeros(1), 3)}
    first = first_step(obs)
    obs["image"][:] = 1
    obs["parts"][0][:] = 1
    second = next_step(obs, 1.0, False, False, 0)
    row = experience(first, second)
    obs["image"][:] = 2
    obs["parts"][0][:] = 2
    assert row.obs["image"].tolist() == [0, 0] and row.obs_next["image"].tolist() == [1, 1]
    assert row.obs["parts"][0].tolist() == [0] and row.obs_next["parts"][0].tolist() == [1] and row.obs["parts"][1] == 3


def test_frames_that_are_stacked_on_rollout_are_copies():
    chain, obs = Transforms([FrameStacker(2)]).for_helper(1), np.zeros((1, 1), np.float32)
    chain.observe({"obs": obs})
    kept = chain.observe({"obs": obs + 1})["obs"]
    obs[:] = 9
    assert kept[0, :, 0].tolist() == [0, 1] and POSITION.shape == (1,)


@pytest.mark.parametrize("ends", [True, False])
def test_an_error_between_the_stores_of_two_tasks_leaves_no_lane_open(ends):
    """One player, two tasks: the second has not got the last row, after which the next episode's rows would stand as one."""
    class Torn(Agent):
        def run_one_episode(self):
            first, second = self.helpers.values()
            (obs, _), over = self.env.reset(), False
            while not over:
                act = first.predict(obs)
                after, rew, terminated, truncated, info = self.env.step(act)
                over = terminated or truncated
                first.store(obs, act, rew, after, terminated, truncated, info)
                if over == ends and self.steps > 30:
                    raise ArithmeticError("between two stores")
                second.store(obs, act, rew, after, terminated, truncated, info)
                obs = after

    spaces = dict(obs=gym.make("CartPole-v1").observation_space, act=gym.spaces.Discrete(2))
    tasks = {name: ComputationTask(create_algorithm_func(MLPQ, {**spaces, "hidden": (4,)}, DQN, {}),
                                   lambda: OffPolicyHelper(size=200, warmup=150)) for name in "AB"}
    with Robot("CartPole-v1", tasks=tasks, agent=Torn) as robot:
        with pytest.raises(AgentFailed, match="between two stores"):
            robot.run(200)
        for name in "AB":
            buffer = robot.buffers[name]
            newest = buffer.newest()[0]
            assert buffer.get(newest, "terminated") or buffer.get(newest, "truncated"), name
