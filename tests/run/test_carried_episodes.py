"""Checkpoints in the middle of episodes: carried over where the environment can clone its state, else cut off and counted."""

import logging

import gymnasium as gym
import numpy as np
import pytest
from agent_fakes import a2c, ppo
from transport_fakes import OVER_RAY, connected, one_ray  # noqa: F401 - fixtures

from parl_like import Agent, ComputationTask, Hook, OnPolicyHelper, Robot, VectorAgent, create_algorithm_func
from parl_like.algorithms import A2C
from parl_like.data.transforms import FrameStacker, Transforms
from parl_like.drivers.workers.processes import Processes
from parl_like.models import MLPActorCritic, RecurrentActorCritic


class Lottery(gym.Env):
    """Each episode has a length of its own, 2 or 30 steps, drawn at the reset: reward 1 at the end of a short one, −1 at each
    step of a long one. It writes its observations into one array."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)

    def __init__(self):
        self.shown = np.zeros(2, np.float32)

    def obs(self):
        self.shown[:] = self.left / 30, self.np_random.uniform(-1, 1)
        return self.shown

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.long = bool(self.np_random.random() < 0.5)
        self.left = 30 if self.long else 2
        return self.obs(), {"step": 0}

    def step(self, act):
        self.left -= 1
        rew = -1.0 if self.long else float(self.left == 0)
        return self.obs(), rew, self.left == 0, False, {"step": self.left, "odd": object()}


class Clonable(Lottery):
    def clone_state(self):
        return {"long": self.long, "left": self.left, "rng": self.np_random.bit_generator.state, "tuple": (1, (2, 3))}

    def restore_state(self, state):
        self.long, self.left = state["long"], state["left"]
        self.np_random.bit_generator.state = state["rng"]
        assert state["tuple"] == (1, (2, 3))


def robot_of(env=Clonable, task=None, **options):
    task = task or ComputationTask(a2c(env), lambda: OnPolicyHelper(unroll=7))
    return Robot(env, tasks={"RL": task}, seed=3, trace=True, **{"n_agents": 2, **options})


def vector(env):
    return lambda: gym.vector.SyncVectorEnv([env] * 3, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


def memory_task(env):
    func = create_algorithm_func(RecurrentActorCritic, dict(obs=env.observation_space, act=env.action_space, hidden=[4], size=4),
                                 A2C, {})
    return ComputationTask(func, lambda: OnPolicyHelper(unroll=7))


CASES = {
    "single": dict(), "threads": dict(driver="threads"), "processes": dict(driver=Processes(workers=2)),
    "vector": dict(agent=lambda: VectorAgent(n_envs=3)), "memory": dict(task=memory_task(Clonable)),
    "ray": dict(driver=OVER_RAY.values[0]), "limit": dict(env=lambda: gym.wrappers.TimeLimit(Clonable(), 9)),
}


@pytest.mark.parametrize("case", [pytest.param(case, marks=OVER_RAY.marks if case == "ray" else ()) for case in CASES])
def test_an_episode_goes_on_after_a_checkpoint_and_a_resume_is_exact(case, tmp_path):
    """Whole: checkpoints every 14 steps of an agent, in a long episode nearly always."""
    def build():
        return robot_of(**{key: memory_task(Clonable) if key == "task" else value for key, value in CASES[case].items()})

    with build() as whole, build() as part:
        for i in range(6):
            for _ in range(2):
                whole.train_iter()
            whole.save(tmp_path / str(i))
        part.load(tmp_path / "3")
        for i in (4, 5):
            for _ in range(2):
                part.train_iter()
            part.save(tmp_path / f"again{i}")
        if case != "threads":  # whose batches depend on the machine
            assert part.trace_hash() == whole.trace_hash()
            assert part.metrics()["return/mean"] == whole.metrics()["return/mean"]
        assert whole.episodes_cut == part.episodes_cut == 0
        lengths = set(whole.recent_lengths)
        assert lengths <= ({2, 9} if case == "limit" else {2, 30}) and len(lengths) == 2, lengths
        assert set(whole.recent_returns) <= ({1.0, -9.0} if case == "limit" else {1.0, -30.0})


@pytest.mark.parametrize("options", [dict(), dict(env=vector(Clonable), agent=VectorAgent, n_agents=1,
                                                   task=ComputationTask(a2c(Clonable), lambda: OnPolicyHelper(unroll=7)))])
def test_the_mean_return_is_true_where_episodes_are_carried(options):
    """Half of the episodes are short ones of return 1, half long ones of −30; saved every 14 steps of an agent."""
    means = []
    for saves in (False, True):
        with robot_of(**options) as robot:
            for _ in range(120):
                robot.train_iter()
                robot.train_iter()
                if saves:
                    robot.checkpoint_boundary()
            means.append(np.mean(robot.recent_returns))
            assert robot.episodes_cut == 0
    assert all(-21 < mean < -9 for mean in means), means


@pytest.mark.parametrize("driver", ["cooperative", Processes(workers=2), OVER_RAY])
def test_episodes_that_cannot_be_carried_are_cut_counted_and_told_of(driver, caplog):
    with caplog.at_level(logging.WARNING), robot_of(Lottery, driver=driver) as robot:
        for _ in range(60):
            robot.train_iter()
            robot.train_iter()
            robot.checkpoint_boundary()
        metrics = robot.metrics()
        assert metrics["return/mean"] == 1.0  # what is left are the short ones, and so says the warning
        assert metrics["episodes_cut"] > 30 and set(robot.recent_returns) == {1.0}
        told = [record.message for record in caplog.records if "cut off by checkpoints" in record.message]
        assert len(told) == 1 and "give the environment clone_state" in told[0]
        assert [r for r in robot.remarks() if "cut off by checkpoints" in r]


def test_the_count_of_cut_episodes_is_saved(tmp_path):
    with robot_of(Lottery) as robot, robot_of(Lottery) as other:
        robot.train_iter()
        robot.save(tmp_path / "c")
        assert robot.episodes_cut == robot.metrics()["episodes_cut"] > 0
        other.load(tmp_path / "c")
        assert other.episodes_cut == robot.episodes_cut


def test_gymnasiums_own_environments_are_carried():
    """CartPole through gym.make's wrappers, and a stack of frames."""
    for make in (lambda: gym.make("CartPole-v1"), lambda: gym.wrappers.FrameStackObservation(gym.make("CartPole-v1"), 2)):
        with Robot(make, tasks={"RL": ComputationTask(ppo(make), lambda: OnPolicyHelper(unroll=5))}, seed=0) as robot:
            for _ in range(20):
                robot.train_iter()
                robot.checkpoint_boundary()
            assert robot.episodes_cut == 0 and robot.episodes and min(robot.recent_lengths) >= 8


class Numbered(gym.Env):
    """Observations are numbered through, from 1 in each episode of 30 steps."""

    observation_space, action_space = gym.spaces.Box(0, 99, (1,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n = 1
        return np.float32([1]), {}

    def step(self, act):
        self.n += 1
        return np.float32([self.n]), 1.0, self.n == 31, False, {}

    def clone_state(self):
        return {"n": self.n}

    def restore_state(self, state):
        self.n = state["n"]


class Seen(A2C):
    """Notes the stacks that it acts and learns by, newest frame last."""

    acted, learned = [], []

    def predict(self, inputs):
        self.acted.extend(np.asarray(inputs.obs)[..., 0].tolist())
        return super().predict(inputs)

    def learn(self, batch):
        self.learned.extend(np.asarray(batch.obs)[..., 0].reshape(-1, 3).tolist())
        return super().learn(batch)


@pytest.mark.parametrize("several", [False, True])
def test_acting_sees_the_stacks_of_frames_that_replay_sees_also_after_a_checkpoint(several, tmp_path):
    space = Transforms([FrameStacker(3)]).space(Numbered.observation_space)
    func = create_algorithm_func(MLPActorCritic, {"obs": space, "act": Numbered.action_space, "hidden": [4]}, Seen, {})

    def build():
        task = ComputationTask(func, lambda: OnPolicyHelper(unroll=7, transforms=[FrameStacker(3)]))
        return robot_of(vector(Numbered), task, agent=VectorAgent, n_agents=1) if several else robot_of(Numbered, task)

    Seen.acted, Seen.learned = [], []
    with build() as whole, build() as part:
        for i in range(8):
            whole.train_iter()
            whole.save(tmp_path / str(i))
        part.load(tmp_path / "5")
        for i in (6, 7):
            part.train_iter()
            part.save(tmp_path / f"again{i}")
        assert part.trace_hash() == whole.trace_hash() and whole.episodes_cut == 0
    acted, learned = ({tuple(stack) for stack in seen if any(stack)} for seen in (Seen.acted, Seen.learned))
    assert (8, 8, 8) in learned and (8, 9, 10) in learned  # the cut in the buffer begins a stack anew
    assert learned <= acted


def test_hooks_hear_of_a_cut_and_of_whole_returns():
    class Log(Hook):
        def __init__(self):
            self.ends = []

        def post_episode(self, agent, interrupted):
            self.ends.append((interrupted, agent.env.episode_length))

    heard = Log()
    with robot_of(n_agents=1) as robot:
        with robot.pool.hooks.during([heard]):
            for _ in range(20):
                robot.train_iter()
                robot.checkpoint_boundary()
    assert {length for interrupted, length in heard.ends if not interrupted} == {2, 30}
    assert any(interrupted for interrupted, _ in heard.ends)


def test_a_reset_with_a_seed_or_options_begins_a_new_episode():
    class Seeded(Agent):
        begun = 0

        def run_one_episode(self):
            obs, info = self.env.reset(seed=self.begun)
            self.begun += 1
            assert info == {"step": 0}
            while not self.env.is_over:
                act = self.helpers["RL"].predict(obs)
                obs_next, *rest = self.env.step(act)
                self.helpers["RL"].store(obs, act, rest[0], obs_next, *rest[1:3])
                obs = obs_next

    with robot_of(agent=Seeded, n_agents=1) as robot:
        for _ in range(10):
            robot.train_iter()
            robot.checkpoint_boundary()
        assert robot.agents[0].begun >= 10


def test_whole_episodes_are_collected_after_a_checkpoint():
    with robot_of(task=ComputationTask(a2c(Clonable), lambda: OnPolicyHelper(unroll=64))) as robot:
        robot.collect(n_step=8)
        robot.checkpoint_boundary()
        assert set(robot.collect(n_episode=2).lengths) <= {2, 30}


def test_an_episode_of_another_environment_is_cut_off_and_told_of(tmp_path, caplog):
    with robot_of() as robot, Robot(lambda: gym.wrappers.TimeLimit(Clonable(), 40), seed=3, trace=True, n_agents=2, tasks={
            "RL": ComputationTask(a2c(Clonable), lambda: OnPolicyHelper(unroll=7))}) as other:
        robot.train_iter()
        robot.save(tmp_path / "c")
        other.load(tmp_path / "c")
        assert "is cut off, for it cannot go on here: restore_state: the state is of Clonable; expected TimeLimit → Clonable" in (
            caplog.text)
        other.train_iter()
        assert other.agents[0].env.episode_length <= 7  # begun anew
