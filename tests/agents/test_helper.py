"""Helpers: predicting, storing, memory, action maps, and the schedules that say when to learn."""


import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_fakes import ACT, POSITION, Corridor, Noisy, Plain, Recorder, dqn, ppo, robot_of, rows, weights
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from hypothesis import given
from hypothesis import strategies as st

from parl_like import (
    Agent,
    ComputationTask,
    EpisodicHelper,
    OfflineHelper,
    OffPolicyHelper,
    OnPolicyHelper,
    Robot,
    VectorAgent,
    create_algorithm_func,
)
from parl_like.agents.row_format import DURATION
from parl_like.algorithms import PPO
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.environment.stop_conditions import StopAfterEpisodes, StopAfterIterations, StopAfterSteps
from parl_like.learning.explorers import NOISE_BLOCK, EpsilonGreedy
from parl_like.models import MLPQ, MLPActorCritic
from parl_like.tasks.batch_rule import BatchRule
from parl_like.values.action_codec import ActionCodec
from parl_like.values.errors import NotEnoughRows
from parl_like.values.spec import Spec, SpecError


def off(**options):
    return lambda: OffPolicyHelper(**{"size": 1000, "batch_size": 4, "learn_every": 4, **options})


# ---------------------------------------------------------------------------------------------------------------- schedules


@pytest.mark.parametrize(("steps", "options", "expected"), [
    (100, dict(learn_every=4), 25),  # rows 4, 8, … 100; batch_size 4 is there at once
    (100, dict(learn_every=1), 97),  # from the fourth row on
    (100, dict(learn_every=10, updates=3), 30),
    (100, dict(learn_every=4, warmup=50), 13),  # 52, 56, … 100
    (100, dict(learn_every=7), 14),
])
def test_off_policy_updates_are_exact(steps, options, expected):
    with robot_of(Recorder(), off(**options)) as robot:
        robot.run(StopAfterSteps(steps))
        task = robot.tasks["RL"]
        assert task.learns == expected == task.algorithm.updates
        assert all(len(update["rew"]) == 4 for update in task.algorithm.updates_seen)


def test_many_agents_learn_as_often_per_step_as_one():
    with robot_of(Recorder(), off(), n_agents=5) as robot:
        robot.run(StopAfterSteps(400))
        assert robot.tasks["RL"].learns == 100


@pytest.mark.parametrize(("steps", "unroll"), [(20, 5), (22, 5), (20, 32), (7, 1)])
def test_on_policy_updates_are_exact_and_every_row_is_learned_once(steps, unroll):
    with robot_of(Recorder(), lambda: OnPolicyHelper(unroll=unroll), env=lambda: Corridor(3)) as robot:
        robot.run(StopAfterSteps(steps))
        updates = robot.tasks["RL"].algorithm.updates_seen
        assert len(updates) == steps // unroll
        positions = [p for update in updates for p in update["obs"][:, 0].tolist()]
        assert positions == [t % 3 for t in range(steps // unroll * unroll)]
        # cuts: at the ends of the episodes, and at the last row of each update
        for update in updates:
            cuts = update["terminated"] | update["truncated"]
            cuts[-1] = True
            assert update["last"].tolist() == cuts.tolist()
        assert len(rows(robot)["rew"]) == steps % unroll  # the rest waits for the next run


def test_the_rest_of_an_unroll_is_learned_from_in_the_next_run():
    with robot_of(Recorder(), lambda: OnPolicyHelper(unroll=8), env=lambda: Corridor(100)) as robot:
        robot.run(StopAfterSteps(5))
        robot.run(StopAfterSteps(3))
        (update,) = robot.tasks["RL"].algorithm.updates_seen
        assert update["obs"][:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]  # the agent went on where it was
        assert update["truncated"].tolist() == [False] * 8 and update["last"].tolist() == [False] * 7 + [True]


def test_on_policy_rows_of_a_round_are_one_batch_with_a_cut_between_agents():
    with robot_of(Recorder(), lambda: OnPolicyHelper(unroll=4), env=lambda: Corridor(100), n_agents=3) as robot:
        robot.train_iter()
        (update,) = robot.tasks["RL"].algorithm.updates_seen
        assert update["obs"][:, 0].tolist() == [0, 1, 2, 3] * 3
        assert update["last"].tolist() == [False, False, False, True] * 3


def test_episodic_updates_are_whole_episodes():
    with robot_of(Recorder(), lambda: EpisodicHelper(episodes=2), env=lambda: Corridor(3)) as robot:
        robot.run(StopAfterSteps(17))
        updates = robot.tasks["RL"].algorithm.updates_seen
        assert [update["obs"][:, 0].tolist() for update in updates] == [[0, 1, 2, 0, 1, 2]] * 2
        assert len(rows(robot)["rew"]) == 5


def test_a_long_episode_is_cut_where_the_episodic_helper_is_full():
    with robot_of(Recorder(), lambda: EpisodicHelper(max_steps=4), env=lambda: Corridor(6)) as robot:
        robot.run(StopAfterSteps(12))
        updates = robot.tasks["RL"].algorithm.updates_seen
        assert [update["obs"][:, 0].tolist() for update in updates] == [[0, 1, 2, 3], [4, 5], [0, 1, 2, 3], [4, 5]]
        assert [update["terminated"][-1] for update in updates] == [False, True, False, True]


def test_open_episodes_of_other_environments_wait_for_the_next_episodic_update():
    lengths = iter([2, 5])
    with robot_of(Recorder(), lambda: EpisodicHelper(episodes=1), env=lambda: Corridor(next(lengths)),
                  agent=lambda: VectorAgent(2)) as robot:
        robot.run(StopAfterSteps(12))
        updates = robot.tasks["RL"].algorithm.updates_seen
        assert [update["obs"][:, 0].tolist() for update in updates] == [[0, 1], [0, 1], [0, 1, 2, 3, 4], [0, 1]]
        assert all(update["terminated"][-1] for update in updates)


def test_environments_that_end_together_count_as_two_episodes():
    with robot_of(Recorder(), lambda: EpisodicHelper(episodes=4), env=lambda: Corridor(3), agent=lambda: VectorAgent(2)) as robot:
        robot.run(StopAfterSteps(24))
        assert [len(update["rew"]) for update in robot.tasks["RL"].algorithm.updates_seen] == [12, 12]


def test_episodes_counted_before_a_checkpoint_count_after_it():
    def build():
        return robot_of(Recorder(), lambda: EpisodicHelper(episodes=3), env=lambda: Corridor(2))

    with build() as first, build() as second:
        first.run(StopAfterEpisodes(2))
        second.load_state_dict(first.state_dict())
        second.run(StopAfterEpisodes(1))
        assert [len(update["rew"]) for update in second.tasks["RL"].algorithm.updates_seen] == [6]


@pytest.mark.parametrize("store_policy", [False, True])
def test_on_policy_rows_that_two_updates_made_old_are_dropped_and_counted(store_policy):
    class Two(Agent):
        """Task 'clock' makes both agents wait at every step. Agent 1, whose unroll is 2, updates 'RL' meanwhile; agent 0's is
        6."""

        def run_one_episode(self):
            obs, _ = self.env.reset()
            done = False
            while not done:
                act = self.helpers["RL"].predict(obs)
                obs_next, rew, terminated, truncated, _ = self.env.step(act)
                for name in ("RL", "clock"):
                    self.helpers[name].store(obs, act, rew, obs_next, terminated, truncated)
                obs, done = obs_next, terminated or truncated

    updates = []

    class Recording(PPO):
        def process(self, batch):
            updates.append(batch.obs[:, 0].tolist())
            return super().process(batch)

    unrolls = iter([6, 2])
    func = create_algorithm_func(MLPActorCritic, dict(obs=POSITION, act=ACT, hidden=[4]), Recording,
                                 dict(epochs=1, minibatches=1))
    tasks = {"RL": ComputationTask(func, lambda: OnPolicyHelper(unroll=next(unrolls), store_policy=store_policy)),
             "clock": ComputationTask(Recorder(), off(learn_every=1, batch_size=1))}
    with Robot(lambda: Corridor(100), tasks=tasks, agent=Two, n_agents=2) as robot:
        robot.run(StopAfterSteps(12))
        # Agent 1 learned after its rows 2, 4 and 6. Agent 0's rows 0 and 1 are then two updates old, 2 and 3 one, 4 and 5 none.
        # With their log-probabilities, they may be as old as they like.
        of_agent_0 = [0, 1, 2, 3, 4, 5] if store_policy else [2, 3, 4, 5]
        assert max(updates, key=len)[: len(of_agent_0)] == of_agent_0
        assert [agent.helpers["RL"].dropped for agent in robot.agents] == [0 if store_policy else 2, 0]
        assert robot.metrics()["RL/dropped"] == (0 if store_policy else 2) and "clock/dropped" not in robot.metrics()


def test_offline_learning_leaves_its_data_alone():
    data = ReplayBuffer(20)
    for t in range(10):
        data.add({"info": {"cost": t}, "obs": np.array([t], np.float32), "act": t % 2, "rew": 1.0, "terminated": t == 9,
                  "truncated": False, "obs_next": np.array([t + 1], np.float32)})
    before = data.state_dict()["columns"]
    tasks = {"RL": ComputationTask(Recorder(), lambda: OfflineHelper(data, batch_size=4))}
    with Robot(tasks=tasks, n_agents=2, seed=3) as robot:
        for _ in range(3):
            robot.train_iter()
        robot.run(StopAfterSteps(4))
        updates = tasks["RL"].algorithm.updates_seen
        assert len(updates) == 2 * 3 + 4 and robot.env_steps == 10  # one step of an offline robot is one update
        assert all(set(update["obs"][:, 0]) <= set(range(10)) and "info.cost" in update for update in updates)
        assert len(robot.evaluate(2, env=lambda: Corridor(4)).returns) == 2
        for name, column in data.state_dict()["columns"].items():
            np.testing.assert_array_equal(column, before[name])


def test_agents_that_act_beside_offline_data_leave_it_alone_too():
    data = ReplayBuffer(20)
    for t in range(10):
        data.add({"obs": np.array([t], np.float32), "act": 0, "rew": 1.0, "terminated": False, "truncated": False})
    with robot_of(Recorder(), lambda: OfflineHelper(data, batch_size=4)) as robot:
        robot.run(StopAfterSteps(7))
        assert len(data) == 10 and not data.truncated.any()


@pytest.mark.parametrize(("row", "message"), [
    ({"obs": np.zeros(2, np.float32), "act": 0}, r"task 'RL', field 'obs': expected \('N', 1\) float32, got \('N', 2\) float32"),
    ({"obs": np.zeros(1, np.float64), "act": 0}, r"field 'obs': expected \('N', 1\) float32, got \('N', 1\) float64"),
    ({"obs": np.zeros(1, np.float32), "act": np.int32(0)}, r"field 'act': expected \('N',\) int64, got \('N',\) int32"),
])
def test_offline_data_is_checked_against_the_model(row, message):
    data = ReplayBuffer(4)
    for _ in range(4):
        data.add({**row, "rew": 1.0, "terminated": False, "truncated": False})
    with pytest.raises(SpecError, match=message):
        Robot(tasks={"RL": ComputationTask(Recorder(), lambda: OfflineHelper(data, batch_size=4))})


@pytest.mark.parametrize(("make", "message"), [
    (lambda: OffPolicyHelper(updates=0), "updates is 0; expected at least 1"),
    (lambda: OffPolicyHelper(learn_every=0), "learn_every is 0; expected at least 1"),
    (lambda: OffPolicyHelper(size=10, batch_size=11), r"batch_size \(11\) is above size \(10\); learning could never begin"),
    (lambda: OffPolicyHelper(size=10, batch_size=1, warmup=11), r"warmup \(11\)"),
    (lambda: OnPolicyHelper(unroll=0), "unroll is 0; expected at least 1"),
    (lambda: EpisodicHelper(episodes=0), "episodes is 0; expected at least 1"),
    (lambda: OfflineHelper(ReplayBuffer(4), batch_size=2), "batch_size is 2, the data has 0 rows"),
])
def test_options_that_cannot_work_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --------------------------------------------------------------------------------------------------------------- learn by hand


class ByHand(Agent):
    def run_one_episode(self):
        helper = self.helpers["RL"]
        obs, _ = self.env.reset()
        self.results = getattr(self, "results", [])
        for t in range(5):
            obs_next, rew, terminated, truncated, _ = self.env.step(0)
            helper.store(obs, 0, rew, obs_next, terminated, truncated)
            obs = obs_next
            if t >= self.first:
                self.results.append(helper.learn())


def test_learning_by_hand_returns_the_training_return():
    agent = type("A", (ByHand,), {"first": 3})
    with robot_of(Recorder(), off(learn_every=10**9), agent=agent) as robot:
        robot.run(StopAfterSteps(6))
        assert len(robot.agents[0].results) == 2 and robot.agents[0].results[0] == {"loss": 1.0}


@pytest.mark.parametrize(("helper", "first"), [
    (off(learn_every=None), 4), (off(learn_every=None, warmup=5), 5), (lambda: OnPolicyHelper(unroll=9), 3),
    (lambda: EpisodicHelper(episodes=9), 5), (lambda: EpisodicHelper(), None),
], ids=["four rows are a batch", "warmup", "on-policy", "whole episodes", "learned by the schedule already"])
def test_learning_by_hand_before_there_are_rows_is_answered_with_none(helper, first):
    """An episode of 5 steps, `learn()` from the third on until it gives something."""
    class Trying(Agent):
        first = None

        def run_one_episode(self):
            helper = self.helpers["RL"]
            obs, _ = self.env.reset()
            for step in range(1, 6):
                obs_next, rew, terminated, truncated, _ = self.env.step(0)
                helper.store(obs, 0, rew, obs_next, terminated, truncated)
                obs = obs_next
                if step > 2 and self.first is None and helper.learn() is not None:
                    self.first = step
            self.robot.request_stop()

    with robot_of(Recorder(), helper, agent=Trying) as robot:
        robot.run()
        assert robot.agents[0].first == first


def test_a_helper_that_keeps_no_rows_has_none_to_learn_from():
    agent = type("A", (ByHand,), {"first": 1})
    with robot_of(Recorder(), None, agent=agent) as robot, pytest.raises(
            NotEnoughRows, match="agent 0, task 'RL': AgentHelper keeps no rows; use OnPolicyHelper or OffPolicyHelper"):
        robot.run(StopAfterEpisodes(1))


def test_a_task_that_does_not_learn_answers_none():
    agent = type("A", (ByHand,), {"first": 1})
    with Robot(Corridor, tasks={"RL": ComputationTask(Recorder(), off(learn_every=None), train=False)}, agent=agent) as robot:
        robot.run(StopAfterEpisodes(1))
        assert robot.agents[0].results == [None] * 4


def test_a_full_lane_that_alone_makes_no_batch_is_not_enough():
    """Four agents share 40 rows, so each has a lane of 10; only agent 0 stores, and a batch has 30."""
    class One(Agent):
        def run_one_episode(self):
            obs, _ = self.env.reset()
            while not self.env.is_over:
                act = self.helpers["RL"].predict(obs)
                obs_next, rew, terminated, truncated, _ = self.env.step(act)
                if self.index == 0:
                    self.helpers["RL"].store(obs, act, rew, obs_next, terminated, truncated)
                obs = obs_next

    with robot_of(Recorder(), off(size=40, batch_size=30, learn_every=1), agent=One, n_agents=4) as robot:
        robot.run(StopAfterSteps(200))
        assert robot.tasks["RL"].learns == 0 and len(robot.buffers["RL"]) == 10


def test_a_test_mode_helper_neither_stores_nor_learns():
    agent = type("A", (ByHand,), {"first": 3})
    with robot_of(Recorder(), off(learn_every=1), agent=agent) as robot:
        robot.evaluate(2)
        assert robot.tasks["RL"].learns == 0 and len(robot.buffers["RL"]) == 0


# ------------------------------------------------------------------------------------------------------------------- spaces


class Shaped(gym.Env):
    """Gives samples of its observation space; takes three steps per episode; remembers its actions."""

    def __init__(self, obs=POSITION, act=ACT):
        self.observation_space, self.action_space, self.actions = obs, act, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, act):
        self.actions.append(act)
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t == 3, False, {}


NESTED = Dict({"image": Box(0, 255, (3, 2), np.uint8),
               "place": Dict({"at": Box(-1, 1, (2,), np.float32), "room": Discrete(3, start=5)})})


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("kind", ["dqn", "ppo"])
def test_nested_observations_travel_to_the_model_the_buffer_and_the_update(kind, vector):
    func = (dqn if kind == "dqn" else ppo)(lambda: Shaped(NESTED))
    helper = off() if kind == "dqn" else lambda: OnPolicyHelper(unroll=8)
    agent = (lambda: VectorAgent(2)) if vector else Agent
    with robot_of(func, helper, env=lambda: Shaped(NESTED), agent=agent) as robot:
        before = weights(robot)
        robot.run(StopAfterSteps(64))
        assert robot.tasks["RL"].learns >= 4 and weights(robot) != before
        assert {"obs.image", "obs.place.at", "obs.place.room", "obs_next.image",
                "obs_next.place.at"} <= robot.buffers["RL"].columns.keys()
        assert robot.evaluate(2).lengths == [3, 3]


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("space", [Discrete(3, start=-1), Discrete(2, start=1000)])
def test_discrete_actions_that_do_not_start_at_zero(space, vector):
    agent = (lambda: VectorAgent(2)) if vector else Agent
    envs = []

    def make():
        envs.append(Shaped(act=space))
        return envs[-1]

    with robot_of(dqn(make, epsilon=1.0), off(), env=make, agent=agent) as robot:
        robot.run(StopAfterSteps(60))
        taken = [int(act) for env in envs for act in env.actions]
        raw = robot.buffers["RL"].act[robot.buffers["RL"].sample_indices(0)]
        assert set(taken) == set(range(space.start, space.start + space.n)) and set(raw.tolist()) == set(range(space.n))
        assert sorted(raw + space.start) == sorted(taken)


@pytest.mark.parametrize("space", [
    MultiDiscrete([2, 3], start=[5, 0]), MultiDiscrete([[2, 2], [3, 2]]), MultiBinary(3), MultiBinary((2, 2)),
])
@pytest.mark.parametrize("vector", [False, True])
def test_several_choices_at_once(space, vector):
    agent = (lambda: VectorAgent(2)) if vector else Agent
    with robot_of(ppo(lambda: Shaped(act=space)), lambda: OnPolicyHelper(unroll=8), env=lambda: Shaped(act=space),
                  agent=agent) as robot:
        robot.run(StopAfterSteps(48))
        assert robot.tasks["RL"].learns >= 3 and robot.evaluate(1).lengths == [3]


# A Box is reached by clip to [−1, 1] and scale: low + (a + 1) / 2 · (high − low).
SCALED = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))


def test_box_actions_are_clipped_and_scaled_and_stored_raw():
    raw = torch.tensor([[0.5, -3.0]])
    envs = []

    def make():
        envs.append(Shaped(act=SCALED))
        return envs[-1]

    task = Recorder(Plain(act=SCALED), lambda obs: raw.expand(len(obs), 2))
    with robot_of(task, off(), env=make) as robot:
        robot.run(StopAfterSteps(3))
        np.testing.assert_array_equal(envs[0].actions[0], np.array([1.0, 0.0], np.float32))
        np.testing.assert_array_equal(rows(robot)["act"], raw.expand(3, 2).numpy())


def test_an_action_from_elsewhere_is_stored_in_the_policys_units():
    class Warming(Agent):
        def run_one_episode(self):
            obs, _ = self.env.reset()
            act = np.array([1.0, 2.5], np.float32)
            obs_next, rew, terminated, truncated, _ = self.env.step(act)
            self.helpers["RL"].store(obs, act, rew, obs_next, terminated, truncated)

    with robot_of(Recorder(Plain(act=SCALED), lambda obs: torch.zeros(len(obs), 2)), off(), env=lambda: Shaped(act=SCALED),
                  agent=Warming) as robot:
        robot.run(StopAfterSteps(1))
        np.testing.assert_array_equal(rows(robot)["act"], [[0.5, -0.5]])


@given(low=st.floats(-1e6, 1e6, width=32), width=st.floats(0, 1e6, width=32, allow_subnormal=False),
       raw=st.floats(-3, 3, width=32), dtype=st.sampled_from([np.float32, np.float64]))
def test_scaled_actions_stay_inside_whatever_the_bounds(low, width, raw, dtype):
    """0.1 · 3 and the like round to above their bound in float32."""
    space = Box(np.array([low], dtype), np.array([low + width], dtype), dtype=dtype)
    codec = ActionCodec(space)

    def to_env(act):
        return codec.to_env({"act": act})

    for value in (raw, -1.0, 1.0):
        act = to_env(np.array([[value]], np.float32))
        assert space.contains(act[0])
    assert (
        to_env(np.array([[-1e30]], np.float32))[0] == space.low
        and to_env(np.array([[1e30]], np.float32))[0] == space.high
        or not width
    )
    back = codec.to_policy(to_env(np.array([[1.0]], np.float32))[0])[0]
    assert back.shape == (1,) and np.isfinite(back).all()


def test_integer_and_half_open_boxes():
    bytes_ = ActionCodec(Box(0, 255, (1,), np.uint8))
    assert bytes_.to_env({"act": np.array([[-1.0], [0.0], [1.0], [0.5]], np.float32)}).tolist() == [[0], [128], [255], [191]]
    half = ActionCodec(Box(np.array([0.0], np.float32), np.array([np.inf], np.float32)))
    assert half.to_env({"act": np.array([[-2.0], [5.0]], np.float32)}).tolist() == [[0.0], [5.0]]
    assert ActionCodec(Box(-np.inf, np.inf, (1,))).identity and ActionCodec(Discrete(3)).identity


# ------------------------------------------------------------------------------------------------------------------- memory


class Remember(Plain):
    """Has a memory: how many observations it has seen since the state was zero."""

    def state_specs(self):
        return {"seen": Spec("seen", (), np.dtype(np.float32))}


class CountingTask(Recorder):
    def predict(self, inputs):
        seen = inputs.state.seen + 1.0
        return {"act": torch.zeros(len(seen), dtype=torch.int64), "state": {"seen": seen}}


@pytest.mark.parametrize("store", [True, False])
def test_memory_is_fed_back_stored_and_reset_at_the_start_of_every_episode(store):
    with robot_of(CountingTask(Remember()), off() if store else None, env=lambda: Corridor(3), n_agents=2) as robot:
        robot.run(StopAfterSteps(14))
        helper = robot.agents[0].helpers["RL"]
        if store:
            assert rows(robot)["state.seen"].tolist() == [0, 1, 2, 0, 1, 2, 0]  # before the action
        assert helper.acting.state[0] in (1.0, 2.0)
        robot.run(StopAfterSteps(2))  # each goes on where it was
        if store:
            assert rows(robot)["state.seen"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
        robot.checkpoint_boundary()
        robot.run(StopAfterSteps(2))  # the interrupted episode does not go on
        if store:
            assert rows(robot)["state.seen"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 0]


@pytest.mark.parametrize("mode", gym.vector.AutoresetMode)
def test_memory_of_a_vector_agent_is_reset_for_the_environment_that_ended(mode):
    env = lambda: gym.vector.SyncVectorEnv([lambda: Corridor(2), lambda: Corridor(3)], autoreset_mode=mode)  # noqa: E731
    with robot_of(CountingTask(Remember()), off(), env=env, agent=VectorAgent) as robot:
        robot.run(StopAfterSteps(14))
        assert rows(robot, lane=0)["state.seen"].tolist()[:6] == [0, 1, 0, 1, 0, 1]
        assert rows(robot, lane=1)["state.seen"].tolist()[:6] == [0, 1, 2, 0, 1, 2]


def test_a_row_stored_without_a_prediction_has_the_memory_of_a_beginning():
    class Warming(Agent):
        def run_one_episode(self):
            obs, _ = self.env.reset()
            obs_next, rew, terminated, truncated, _ = self.env.step(1)
            self.helpers["RL"].store(obs, 1, rew, obs_next, terminated, truncated)

    with robot_of(CountingTask(Remember()), off(), agent=Warming) as robot:
        robot.run(StopAfterSteps(2))
        assert rows(robot)["state.seen"].tolist() == [0, 0]


def test_memory_is_also_reset_in_an_evaluation_of_many_environments():
    """There, nothing is stored, and nothing else tells the helper of an end."""
    seen = []

    class Watching(CountingTask):
        def predict(self, inputs):
            seen.append(inputs.state.seen.tolist())
            return super().predict(inputs)

    with robot_of(Watching(Remember()), env=lambda: Corridor(3), agent=lambda: VectorAgent(2)) as robot:
        seen.clear()
        robot.evaluate(4, n_agents=1)
        assert seen == [[0, 0], [1, 1], [2, 2]] * 2


def test_a_recurrent_robot_learns_from_its_stored_memory():
    with robot_of(ppo(Noisy, recurrent=True), lambda: OnPolicyHelper(unroll=16), env=Noisy, n_agents=2) as robot:
        before = weights(robot)
        robot.run(StopAfterIterations(2))
        assert weights(robot) != before and robot.tasks["RL"].learns == 2


# ------------------------------------------------------------------------------------------------------------ further columns


def test_extras_are_stored_by_name():
    level = Spec("level", (2,), np.dtype(np.float32))

    class Extra(Agent):
        def run_one_episode(self):
            obs, _ = self.env.reset()
            obs_next, *_ = self.env.step(0)
            self.helpers["RL"].store(obs, 0, 1.0, obs_next, False, False, extra=self.extra)

    def run(extra):
        helper = off(extras=(DURATION, level))
        agent = type("A", (Extra,), {"extra": extra})
        with robot_of(Recorder(), helper, agent=agent) as robot:
            robot.run(StopAfterSteps(2))
            return rows(robot)

    stored = run({"duration": 3, "level": np.ones(2, np.float32)})
    assert stored["duration"].tolist() == [3, 3] and stored["level"].tolist() == [[1, 1], [1, 1]]
    with pytest.raises(Exception, match=r"agent 0, task 'RL': store got extra \['duration'\]; expected \['duration', 'level'\]"):
        run({"duration": 3})
    with pytest.raises(Exception, match=r"store got extra \[\]; expected \['duration', 'level'\]"):
        run(None)
    with pytest.raises(SpecError, match=r"agent 0: task 'RL', field 'level': expected \(2,\) float32, got \(3,\)"):
        run({"duration": 3, "level": np.ones(3, np.float32)})


def test_dqn_discounts_by_duration():
    """y = rew + γ^d · Q, Q = 8 everywhere, γ = 1/2: 1 + 4 for one step, 1 + 1 for three, 1 at the end."""
    with robot_of(dqn(gamma=0.5), off(extras=(DURATION,))) as robot:
        net = robot.tasks["RL"].algorithm
        for network in (net.model, net.target):
            for name, value in network.state_dict().items():
                value.fill_(8.0 if name.endswith("layers.1.bias") else 0.0)
        obs = np.zeros(1, np.float32)
        for duration, terminated in ((1, False), (3, False), (2, True)):
            robot.buffers["RL"].push(0, (obs, 0, 1.0, terminated, False, obs, duration))
        assert net.process(robot.buffers["RL"][:].to_torch()).target.tolist() == [5.0, 2.0, 1.0]


def test_actor_critic_discounts_by_duration():
    """V = 8 everywhere, γ = 1/2, λ = 0: advantage = rew + γ^d · 8 − 8."""
    with robot_of(ppo(gamma=0.5, lam=0.0), lambda: OnPolicyHelper(extras=(DURATION,))) as robot:
        algorithm = robot.tasks["RL"].algorithm
        head = algorithm.model.value_head
        head.weight.data.zero_()
        head.bias.data.fill_(8.0)
        obs = np.zeros(1, np.float32)
        for duration, terminated in ((1, False), (3, False), (2, True)):
            robot.buffers["RL"].push(0, (obs, 0, 1.0, terminated, False, obs, duration))
        batch = robot.buffers["RL"][:].to_torch()
        batch.last = torch.tensor([False, False, True])
        with torch.no_grad():
            assert algorithm.process(batch).advantage.tolist() == [-3.0, -6.0, -7.0]


def test_durations_and_n_step_returns_exclude_each_other():
    with pytest.raises(ValueError, match="rows with durations look n steps ahead already; set n_step=1, got 3"):
        robot_of(dqn(n_step=3), off(extras=(DURATION,)))


def test_the_log_probability_is_stored_with_the_action_it_belongs_to():
    with robot_of(ppo(), lambda: OnPolicyHelper(unroll=1000, store_policy=True)) as robot:
        robot.run(StopAfterSteps(20))
        stored = rows(robot)
        algorithm = robot.tasks["RL"].algorithm
        with torch.no_grad():
            out, _ = algorithm.model.evaluate(torch.from_numpy(stored["obs"]))
            expected = algorithm.model.head.log_prob(out, torch.from_numpy(stored["act"]))
        np.testing.assert_allclose(stored["policy.log_prob"], expected.numpy(), atol=1e-6)


def test_the_log_probability_of_another_action_is_not_made_up():
    class Other(Agent):
        def run_one_episode(self):
            obs, _ = self.env.reset()
            self.helpers["RL"].predict(obs)
            self.helpers["RL"].store(obs, np.int64(1), 1.0, obs, False, False)

    with robot_of(ppo(), lambda: OnPolicyHelper(store_policy=True), agent=Other) as robot:
        with pytest.raises(Exception, match="store_policy keeps the log-probability of what predict returned last"):
            robot.run(StopAfterSteps(1))
    with pytest.raises(ValueError, match="store_policy needs an explorer with log-probabilities"):
        robot_of(dqn(), off(store_policy=True))


# ------------------------------------------------------------------------------------------------------------------ exploring


def test_noise_is_the_helpers_own_whoever_shares_its_batches():
    """Agent 0 takes the same actions alone and among others: its draws come from its own generator, in its own order."""
    def actions(n_agents):
        with robot_of(dqn(epsilon=0.5), off(learn_every=10**9), env=lambda: Corridor(end=None), n_agents=n_agents) as robot:
            robot.run(StopAfterSteps(200 * n_agents))
            return [entry for entry in robot.agents[0].env.log if not isinstance(entry, tuple)][: 3 * NOISE_BLOCK]

    assert actions(1) == actions(5)


def test_the_schedule_of_epsilon_counts_acts():
    """ε is 1 for the first 100 acts and 0 after them: the later actions are all the greedy one."""
    explorer = lambda: EpsilonGreedy(lambda count: float(count <= 100))  # noqa: E731
    with robot_of(dqn(), off(learn_every=10**9, explorer=explorer()), env=lambda: Corridor(end=None)) as robot:
        robot.run(StopAfterSteps(300))
        acts = np.array([entry for entry in robot.agents[0].env.log if not isinstance(entry, tuple)])
        assert 25 < acts[:100].sum() < 75 and len(set(acts[100:].tolist())) == 1


@pytest.mark.parametrize("kind", ["dqn", "ppo"])
def test_no_agent_takes_an_illegal_action(kind):
    """Observation `mask` names the legal ones; also the random actions keep to it."""
    class Masked(gym.Env):
        observation_space = Dict({"x": Box(-1, 1, (1,), np.float32), "mask": MultiBinary(5)})
        action_space = Discrete(5)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.taken = []
            return self.obs(), {}

        def obs(self):
            self.mask = np.zeros(5, np.int8)
            self.mask[self.np_random.choice(5, self.np_random.integers(1, 4), replace=False)] = 1
            return {"x": np.zeros(1, np.float32), "mask": self.mask}

        def step(self, act):
            assert self.mask[act], "illegal"
            return self.obs(), 0.0, False, False, {}

    func, helper = (dqn(Masked, epsilon=0.9), off()) if kind == "dqn" else (ppo(Masked), lambda: OnPolicyHelper(unroll=50))
    with robot_of(func, helper, env=Masked) as robot:
        robot.run(StopAfterSteps(500))
        raw = robot.buffers["RL"].act
        assert kind == "ppo" or set(raw[:500].tolist()) == set(range(5))


def test_a_task_without_actions_gives_a_batch():
    class Describing(Recorder):
        def predict(self, inputs):
            return {"twice": 2 * inputs.obs, "parts": {"one": inputs.obs[:, 0]}}

    class Asking(Agent):
        def run_one_episode(self):
            obs, _ = self.env.reset()
            self.answer = self.helpers["RL"].predict(obs + 3)
            self.robot.request_stop()

    with robot_of(Describing(), agent=Asking) as robot:
        robot.run()
        answer = robot.agents[0].answer
        assert answer.twice.tolist() == [6.0] and float(answer.parts.one) == 3.0


def test_models_of_the_house_take_masked_and_nested_spaces():
    """A guard for the parametrised tests above: they use what these models make of the spaces."""
    assert MLPQ(NESTED, ACT).perception.out_size == 6 + 2 + 3
    assert MLPActorCritic(NESTED, ACT).perception.out_size == 11


def test_half_a_step_is_no_unroll():
    with pytest.raises(TypeError, match=r"OnPolicyHelper: unroll is 2.5 \(float\); expected int"):
        OnPolicyHelper(unroll=2.5)


def test_rows_of_an_open_episode_do_not_move_over_those_that_are_learned():
    with robot_of(ppo(), lambda: EpisodicHelper(episodes=9), n_agents=2) as robot:
        obs = np.zeros(1, np.float32)
        for rew, terminated in ((1.0, False), (2.0, True), (3.0, False)):
            robot.buffers["RL"].push(0, (obs, 0, rew, terminated, False, obs))
        helper = robot.agents[0].helpers["RL"]
        assert helper.take(copy=False)["rew"].tolist() == [1.0, 2.0]
        assert robot.buffers["RL"].lane_rows(0)["rew"].tolist() == [3.0]


# ------------------------------------------------------------------------------------------------------------ asking, and outputs


class Twice(Recorder):
    """Replies with double of what it is asked, and remembers the sizes of its batches."""

    def predict(self, inputs):
        self.modes.append(len(inputs.obs))
        return {"act": torch.zeros(len(inputs.obs), dtype=torch.int64), "twice": 2 * inputs.obs}


class Asker(Agent):
    """Asks for as many rows as its number says, and tells the reply; when all three have, they stop."""

    def run_one_episode(self):
        helper, n = self.helpers["RL"], self.index + 2
        self.env.reset()
        rows = np.arange(n, dtype=np.float32)[:, None] + 100 * self.index
        reply = helper.ask({"obs": rows})
        np.testing.assert_array_equal(reply["twice"], 2 * rows)
        self.robot.heard[self.index] = reply["act"].shape
        while len(self.robot.heard) < 3:
            self.agent_pool.driver.rest(self)
        self.robot.request_stop()


@pytest.mark.parametrize("limit", [None, 3])
def test_an_agent_asks_for_any_number_of_rows(limit):
    """Those of several agents are one batch; more than a batch holds are split, and the reply is whole."""
    task = ComputationTask(Twice(), predict_rule=BatchRule(max_rows=limit))
    with Robot(Corridor, tasks={"RL": task}, agent=Asker, n_agents=3) as robot:
        robot.heard = {}
        robot.run(StopAfterIterations(1))
        assert robot.heard == {0: (2,), 1: (3,), 2: (4,)}
        sizes = task.algorithm.modes[1:]  # after the trial of two rows
        assert sum(sizes) == 9 and (sizes == [9] if limit is None else max(sizes) <= 3)


def test_what_is_asked_for_wrongly_is_named():
    class Wrong(Agent):
        def run_one_episode(self):
            self.env.reset()
            self.helpers["RL"].ask(self.robot.rows)

    for wrong, message in [({"observation": np.zeros((2, 1))}, "agent 0: task 'RL', ask: expected obs, got observation"),
                           ({"obs": np.zeros((2, 3), np.float32)}, "agent 0: .*'obs'"),
                           ({"obs": np.zeros((0, 1), np.float32)}, "prediction of 0 rows")]:
        with robot_of(Twice(), agent=Wrong) as robot:
            robot.rows = wrong
            with pytest.raises((SpecError, RuntimeError), match=message):
                robot.run(StopAfterSteps(1))


@pytest.mark.parametrize("n", [1, 3])
def test_outputs_are_everything_that_the_last_prediction_gave(n):
    class Looking(VectorAgent if n > 1 else Agent):
        def run_one_episode(self):
            helper = self.helpers["RL"]
            with pytest.raises(NotEnoughRows, match="nothing was predicted yet"):
                _ = helper.outputs
            obs, _ = self.env.reset()
            for _ in range(3):
                act = helper.predict(obs)
                np.testing.assert_array_equal(helper.outputs["twice"], 2 * obs)
                obs = self.env.step(act)[0]
            self.robot.request_stop()

    with robot_of(Twice(), env=Corridor, agent=(lambda: Looking(n)) if n > 1 else Looking, n_agents=2) as robot:
        robot.run()
        assert robot.env_steps >= 3 * n
