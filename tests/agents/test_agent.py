"""Agent and the face of its environment: records, ends, repetition, limits, interruptions, randomness."""

import threading

import gymnasium as gym
import numpy as np
import pytest
from agent_fakes import Corridor, Log, Noisy, Plain, Recorder, dqn, robot_of, rows

from parl_like import Agent, OffPolicyHelper
from parl_like.data.experience import as_alf, as_parl_record
from parl_like.data.timestep import StepType
from parl_like.environment.stop_conditions import StopAfterEpisodes, StopAfterSteps
from parl_like.envs.wrappers import ActionRepeat
from parl_like.values.errors import AgentFailed


def keep(size=100, **options):
    """A helper that stores and never learns."""
    return lambda: OffPolicyHelper(size=size, batch_size=1, learn_every=10**9, **options)


# ------------------------------------------------------------------------------------------------------------------ records


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_two_episodes_are_stored_with_their_ends(end):
    with robot_of(Recorder(), keep(), env=lambda: Corridor(3, end)) as robot:
        robot.run(StopAfterEpisodes(2))
        stored = rows(robot)
        assert stored["obs"][:, 0].tolist() == [0, 1, 2, 0, 1, 2]
        assert stored["obs_next"][:, 0].tolist() == [1, 2, 3, 1, 2, 3]
        assert stored["rew"].tolist() == [1.0] * 6
        assert stored[end].tolist() == [False, False, True] * 2
        assert not stored["truncated" if end == "terminated" else "terminated"].any()
        # T actions make T + 1 records in PARL's and ALF's layouts; what follows a record is its "next".
        record = as_parl_record(robot.buffers["RL"][:])
        assert record.inputs[:, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
        assert record.game_over.tolist() == [0, 0, 0, 1 if end == "terminated" else 2] * 2
        assert as_alf(robot.buffers["RL"][:]).discount.tolist() == [1, 1, 1, 0 if end == "terminated" else 1] * 2


def test_environment_agent_helper_and_robot_count_the_same_steps():
    with robot_of(Recorder(), keep(1000), env=lambda: Corridor(7), n_agents=3) as robot:
        robot.run(StopAfterSteps(100))
        for agent in robot.agents:
            actions = [entry for entry in agent.env.log if not isinstance(entry, tuple)]
            assert len(actions) == agent.steps == agent.helpers["RL"].steps == agent.env.time_steps == len(rows(robot,
                                                                                                                lane=agent.index)["rew"])
        assert sum(agent.steps for agent in robot.agents) == robot.env_steps == 100


def test_termination_ends_the_target_and_truncation_does_not():
    """y = 1 + γ · Q, where Q = 10 everywhere: 6 on the way and at a time limit, 1 at a true end, also one on the limit."""
    def last_target(end):
        with robot_of(dqn(gamma=0.5), keep(), env=lambda: Corridor(2, end)) as robot:
            net = robot.tasks["RL"].algorithm
            for network in (net.model, net.target):
                for name, value in network.state_dict().items():
                    value.fill_(10.0 if name.endswith("layers.1.bias") else 0.0)
            robot.run(StopAfterEpisodes(1))
            batch = robot.buffers["RL"][:]
            return net.process(batch.to_torch()).target.tolist()

    assert last_target("terminated") == [6.0, 1.0]
    assert last_target("truncated") == [6.0, 6.0]
    assert last_target("both") == [6.0, 1.0]


def test_only_the_first_task_acts_and_all_store():
    from parl_like import ComputationTask, Robot

    first, second = Recorder(), Recorder()
    with Robot(Corridor, tasks={"a": ComputationTask(first, keep()), "b": ComputationTask(second, keep())}) as robot:
        robot.run(StopAfterEpisodes(1))
        assert len(robot.buffers["a"]) == len(robot.buffers["b"]) == 5
        assert len(first.modes) > len(second.modes)


# ---------------------------------------------------------------------------------------------------------------- repetition


def test_an_action_that_is_repeated_five_times():
    class Repeating(Agent):
        def run_one_episode(self):
            self.infos = []
            obs, _ = self.env.reset()
            done = False
            while not done:
                obs_next, rew, terminated, truncated, info = self.env.step(0)
                self.helpers["RL"].store(obs, 0, rew, obs_next, terminated, truncated, info)
                self.infos.append(info)
                obs, done = obs_next, terminated or truncated

    with robot_of(Recorder(), keep(), env=lambda: ActionRepeat(Corridor(12), 5, keep_frames=True),
                  agent=Repeating) as robot:
        robot.run(StopAfterEpisodes(1))
        agent, stored = robot.agents[0], rows(robot)
        assert stored["rew"].tolist() == [5.0, 5.0, 2.0]
        assert stored["obs"][:, 0].tolist() == [0, 5, 10] and stored["obs_next"][:, 0].tolist() == [5, 10, 12]
        assert (agent.steps, agent.env.episode_length, agent.env.time_steps, agent.env.episode_return) == (3, 3, 12, 12.0)
        assert robot.counters()["env_steps"] == 3 and robot.counters()["time_steps"] == 12
        frames = [[float(frame[0]) for frame in info["frames"]] for info in agent.infos]
        assert frames == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12]]


def test_repeated_rewards_may_be_discounted():
    with robot_of(Recorder(), keep(), env=lambda: ActionRepeat(Corridor(3), 2, discount=0.5)) as robot:
        robot.run(StopAfterEpisodes(1))
        assert rows(robot)["rew"].tolist() == [1.5, 1.0]


# -------------------------------------------------------------------------------------------------------------------- limits


def test_a_limit_of_steps_truncates():
    with robot_of(Recorder(), keep(), env=lambda: gym.wrappers.TimeLimit(Corridor(end=None), 3)) as robot:
        robot.run(StopAfterEpisodes(2))
        stored = rows(robot)
        assert stored["truncated"].tolist() == [False, False, True] * 2 and not stored["terminated"].any()
        assert stored["obs_next"][2, 0] == 3


def test_a_true_end_on_the_limit_is_a_true_end():
    with robot_of(Recorder(), keep(), env=lambda: gym.wrappers.TimeLimit(Corridor(5), 5)) as robot:
        robot.run(StopAfterEpisodes(1))
        assert rows(robot)["terminated"].tolist() == [False] * 4 + [True]
        step = robot.agents[0].env.time_step
        assert (step.step_type, step.discount, step.reward, step.prev_action) == (StepType.LAST, 0.0, 1.0, 0)
        assert not step.bootstraps


@pytest.mark.parametrize(("option", "wrapper"), [({"max_episode_steps": 3}, "TimeLimit"), ({"action_repeat": 2}, "ActionRepeat")])
def test_options_that_agents_had_once_say_what_has_taken_their_place(option, wrapper):
    with pytest.raises(ValueError, match=f"{next(iter(option))} is the environment's business.*{wrapper}"):
        robot_of(Recorder(), agent=type("Mine", (Agent,), option))


def test_a_continuing_task_is_never_reset():
    with robot_of(Recorder(), keep(), env=lambda: Corridor(end=None)) as robot:
        robot.run(StopAfterSteps(50))
        assert sum(isinstance(entry, tuple) for entry in robot.agents[0].env.log) == 1
        assert robot.episodes == 0


# ------------------------------------------------------------------------------------------------------------------ the face


def test_the_face_shows_the_environment():
    with robot_of(Recorder(), env=lambda: Corridor(4)) as robot:
        env = robot.agents[0].env
        assert env.length == 4 and env.unwrapped.length == 4 and env.action_space == gym.spaces.Discrete(2)
        with pytest.raises(AttributeError, match="nothing_like_it"):
            _ = env.nothing_like_it


class Careless(Agent):
    def run_one_episode(self):
        self.play(self.env)


@pytest.mark.parametrize(("play", "message"), [
    (lambda env: env.step(0), r"agent 0: step\(\) after the end of an episode; call reset\(\) first"),
    (lambda env: [env.reset(), *(env.step(0) for _ in range(6))], r"agent 0: step\(\) after the end"),
    (lambda env: [env.reset(), env.step(2)], r"agent 0: action outside the space: expected Discrete\(2\), got 2"),
    (lambda env: [env.reset(), env.step(np.int64(-1))], r"action outside the space"),
    (lambda env: [env.reset(), env.step(None)], r"action outside the space"),
])
def test_misuse_is_named(play, message):
    agent = type("A", (Careless,), {"play": staticmethod(play)})
    with robot_of(Recorder(), agent=agent) as robot, pytest.raises(AgentFailed, match=message):
        robot.run(StopAfterEpisodes(2))


def test_a_loop_that_does_nothing_is_found():
    class Idle(Agent):
        def run_one_episode(self):
            self.calls = getattr(self, "calls", 0) + 1

    with robot_of(Recorder(), agent=Idle) as robot:
        with pytest.raises(AgentFailed, match="agent 0: run_one_episode returned 1000 times without an environment step or a "
                                              "request"):
            robot.run(StopAfterSteps(1))
        assert robot.agents[0].calls == 1000


def test_episodes_may_be_longer_than_the_guard_without_steps_by_others():
    """Only doing nothing counts: an agent that asks and never steps is no idler."""
    class Asking(Agent):
        def run_one_episode(self):
            self.helpers["RL"].predict(np.zeros(1, np.float32))
            self.n = getattr(self, "n", 0) + 1
            if self.n == 1500:
                self.robot.request_stop()

    with robot_of(Recorder(), agent=Asking) as robot:
        robot.run()
        assert robot.agents[0].n == 1500


# ------------------------------------------------------------------------------------------------------------- interruptions


def test_an_abandoned_episode_is_interrupted_and_gets_a_cut():
    class Restless(Agent):
        def run_one_episode(self):
            for n in (2, 5):  # the first is left in the middle by a reset, the second reaches its end
                obs, _ = self.env.reset()
                for _ in range(n):
                    obs_next, rew, terminated, truncated, info = self.env.step(0)
                    self.helpers["RL"].store(obs, 0, rew, obs_next, terminated, truncated, info)
                    obs = obs_next
            obs, _ = self.env.reset()
            obs_next, rew, *_ = self.env.step(0)
            self.helpers["RL"].store(obs, 0, rew, obs_next, False, False)  # and the third is left by returning

    log = Log()
    with robot_of(Recorder(), keep(), agent=Restless) as robot:
        robot.run(StopAfterSteps(8), log)
        assert [e[2] for e in log.events if e[1] == "POST_EPISODE"] == [True, False, True]
        assert rows(robot)["truncated"].tolist() == [False, True, False, False, False, False, False, True]
        assert robot.episodes == 1


def test_a_save_ends_every_open_episode_with_a_cut(tmp_path):
    log = Log()
    with robot_of(Recorder(), keep(), env=lambda: Corridor(100), n_agents=3) as robot:
        log.post_act = lambda agent: agent.robot.request_save(tmp_path / "state") if agent.robot.env_steps == 20 else None
        robot.run(StopAfterSteps(20), log)
        assert log.count("PRE_EPISODE") == log.count("POST_EPISODE", True) == 3 and log.count("POST_EPISODE", False) == 0
        for lane in range(3):
            assert rows(robot, lane=lane)["truncated"].tolist()[-1] is True


def test_an_agents_own_except_does_not_swallow_the_stop():
    class Stubborn(Agent):
        def run_one_episode(self):
            try:
                super().run_one_episode()
            except Exception:
                self.swallowed = True

    with robot_of(Recorder(), agent=Stubborn) as robot:
        robot.run(StopAfterSteps(3))
        assert not hasattr(robot.agents[0], "swallowed")


# ---------------------------------------------------------------------------------------------------------------- randomness


def test_the_first_reset_after_a_start_is_seeded_and_the_others_are_not():
    def seeds(seed):
        with robot_of(Recorder(), keep(), seed=seed, n_agents=2) as robot:
            robot.run(StopAfterEpisodes(6))
            robot.checkpoint_boundary()
            robot.run(StopAfterEpisodes(6))
            return [[entry[1] for entry in agent.env.log if isinstance(entry, tuple)] for agent in robot.agents]

    first = seeds(0)
    for log in first:
        assert log[0] is not None and sum(seed is not None for seed in log) == 2  # one per start
    assert first[0][0] != first[1][0]
    assert seeds(0) == first and seeds(1)[0][0] != first[0][0]


def test_an_agents_seed_can_be_given():
    class Seeded(Agent):
        def run_one_episode(self):
            self.env.reset(seed=7)
            self.env.step(0)
            self.robot.request_stop()

    with robot_of(Recorder(), env=Noisy, agent=Seeded) as robot:
        robot.run()
        assert robot.agents[0].env.seed == 7


def test_everything_happens_in_the_calling_thread():
    """A breakpoint in a model or an environment works: no other thread, no child, no second environment."""
    seen, made = set(), []

    class Watching(Corridor):
        def __init__(self):
            super().__init__()
            made.append(self)

        def step(self, act):
            seen.add(threading.get_ident())
            return super().step(act)

    def rule(obs):
        seen.add(threading.get_ident())
        return obs[:, 0].long() * 0

    before = set(threading.enumerate())  # of which some of another test's may end meanwhile
    with robot_of(Recorder(Plain(), rule), keep(), env=Watching) as robot:
        robot.run(StopAfterSteps(20))
        assert seen == {threading.get_ident()} and set(threading.enumerate()) <= before and len(made) == 1


def test_an_agent_may_have_a_pool_of_its_own():
    class Collecting(Agent):
        def __init__(self):
            super().__init__()
            self.pool = []

        def run_one_episode(self):
            obs, _ = self.env.reset()
            done = False
            while not done:
                self.pool.append(obs)
                obs, _, terminated, truncated, _ = self.env.step(self.helpers["RL"].predict(obs))
                done = terminated or truncated

    with robot_of(Recorder(), agent=Collecting) as robot:
        robot.run(StopAfterSteps(12))
        assert len(robot.agents[0].pool) >= 12
