"""What lies between two runs of one robot: agents wait where they are, and go on there."""

import gc
import logging
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like.agents.agent import Agent
from parl_like.agents.episodic import EpisodicHelper
from parl_like.agents.off_policy import OffPolicyHelper
from parl_like.agents.on_policy import OnPolicyHelper
from parl_like.agents.vector_agent import VectorAgent
from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.ppo import PPO
from parl_like.environment.hooks import Hook, TimePerStep
from parl_like.learning.factory import create_algorithm_func
from parl_like.models.mlp import MLPQ, MLPActorCritic
from parl_like.run.robot import Robot
from parl_like.tasks.task import ComputationTask

DRIVERS = ["cooperative", "threads", "processes"]


class Lottery(gym.Env):
    """Episodes of 3 steps pay 10, those of 37 nothing; seven of ten are long. Its state cannot be cloned."""

    observation_space = gym.spaces.Box(0, 40, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.end, self.t = (37 if self.np_random.random() < 0.7 else 3), 0
        return self.obs(), {}

    def obs(self):
        return np.array([self.t, self.end == 37], np.float32)

    def step(self, action):
        self.t += 1
        over = self.t == self.end
        return self.obs(), 10.0 * (over and self.end == 3), over, False, {}


class Recounter(Agent):
    """An agent with control flow of its own."""

    def run_one_episode(self):
        obs, _ = self.env.reset()
        for t in range(1000):
            act = self.helpers["RL"].predict(obs)
            obs_next, rew, terminated, truncated, info = self.env.step(act)
            assert obs_next[0] == t + 1
            self.helpers["RL"].store(obs, act, rew, obs_next, terminated, truncated, info)
            obs = obs_next
            if terminated or truncated:
                return


SPACES = dict(obs=Lottery.observation_space, act=Lottery.action_space, hidden=[4])
TASKS = {
    "unroll": lambda: ComputationTask(create_algorithm_func(MLPActorCritic, SPACES, PPO, dict(epochs=1, minibatches=1)),
                                      lambda: OnPolicyHelper(unroll=5)),
    "episodes": lambda: ComputationTask(create_algorithm_func(MLPActorCritic, SPACES, PPO, dict(epochs=1, minibatches=1)),
                                        lambda: EpisodicHelper(episodes=2)),
    "replay": lambda: ComputationTask(create_algorithm_func(MLPQ, SPACES, DQN, {}),
                                      lambda: OffPolicyHelper(size=400, batch_size=8, learn_every=4, updates=2)),
}


def lottery(task="unroll", **options):
    torch.set_num_threads(1)
    return Robot(Lottery, **{"tasks": {"RL": TASKS[task]()}, "seed": 3, "trace": True, **options})


def told(robot):
    return robot.trace_hash(), robot.counters(), list(robot.recent_returns), robot.metrics()["RL/learn/batches"]


# ------------------------------------------------------------------------------------------------------ many runs are one


@pytest.mark.parametrize("options", [dict(), dict(n_agents=3), dict(n_agents=4, agent=Recounter),
                                     dict(agent=lambda: VectorAgent(3)), dict(n_agents=2, agent=lambda: VectorAgent(2))],
                         ids=["one", "three", "own", "vector", "vectors"])
@pytest.mark.parametrize("task", TASKS)
def test_many_runs_are_one_run(task, options):
    """The same steps, rows, batches and weights, wherever the runs are divided."""
    found = []
    for parts in ([360], [36] * 10, [7, 101, 1, 1, 250]):
        with lottery(task, **options) as robot:
            steps = 0
            for part in parts:
                steps += part
                if steps > robot.env_steps:
                    robot.run(steps - robot.env_steps)
            found.append(told(robot))
            assert robot.episodes_cut == 0
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("n_agents", [1, 3])
def test_the_mean_return_is_true_however_short_the_runs_are(driver, mode, n_agents):
    with lottery(driver=driver, mode=mode, n_agents=n_agents) as robot:
        for _ in range(36):
            robot.run(20)
        lengths = {length: 10.0 if length == 3 else 0.0 for length in (3, 37)}
        assert [lengths[length] for length in robot.recent_lengths] == list(robot.recent_returns)
        assert robot.episodes_cut == 0 and 2.0 <= np.mean(robot.recent_returns) <= 6.0
        assert sum(robot.recent_lengths) > robot.env_steps - 37 * n_agents - 1  # no step is lost
        assert robot.tasks["RL"].rows_learned >= robot.env_steps - 6 * n_agents


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_training_requests_that_are_open_at_the_end_are_served(driver, mode):
    with lottery(driver=driver, mode=mode) as robot:
        robot.run(20)
        assert robot.tasks["RL"].learns == 4 or driver == "processes" and mode == "async"  # which may be on its way


def test_a_request_that_waits_for_other_agents_waits_with_them():
    with lottery(n_agents=2) as robot:
        robot.run(9)
        assert robot.tasks["RL"].learns == 0
        robot.run(1)
        assert robot.tasks["RL"].learns == 1 and robot.tasks["RL"].rows_learned == 10


def test_a_robot_that_is_stopped_from_elsewhere_goes_on():
    with lottery(n_agents=3) as robot:
        timer = threading.Timer(0.05, robot.request_stop)
        timer.start()
        robot.run()
        timer.join()
        steps, lengths = robot.env_steps, len(robot.recent_lengths)
        robot.run(200)
        assert robot.env_steps == steps + 200 and set(robot.recent_lengths) <= {3, 37} and len(robot.recent_lengths) >= lengths


# --------------------------------------------------------------------------------------------------------- what lies between


def test_what_is_done_between_runs_leaves_agents_where_they_are():
    with lottery(n_agents=2) as robot:
        for _ in range(10):
            robot.run(30)
            robot.evaluate(1)
            robot.act(np.zeros(2, np.float32))
            robot.train_iter()
            robot.collect(n_step=4)
        assert robot.episodes_cut == 0 and set(robot.recent_lengths) <= {3, 37}


@pytest.mark.parametrize("do", [lambda robot, path: robot.save(path), lambda robot, path: robot.add_agents(),
                                lambda robot, path: robot.collect(n_episode=2)], ids=["save", "add_agents", "collect"])
def test_episodes_that_are_cut_between_runs_are_counted_and_told_of(do, tmp_path, caplog):
    with caplog.at_level(logging.WARNING), lottery("replay", n_agents=2) as robot:
        for i in range(12):
            robot.run(20)
            open_ones = sum(agent.env.n_open() for agent in robot.agents)
            before = robot.episodes_cut
            do(robot, tmp_path / str(i))
            assert robot.episodes_cut == before + open_ones
        assert robot.episodes_cut >= 12
        assert len([r for r in caplog.records if "could not wait for the next run" in r.message]) == 1


def test_a_state_that_is_loaded_ends_the_agents_that_wait(tmp_path):
    with lottery() as robot:
        robot.run(50)
        robot.save(tmp_path / "state")
        robot.run(50)
        robot.load(tmp_path / "state")
        assert robot.env_steps == 50
        robot.run(100)
        assert robot.env_steps == 150 and set(robot.recent_lengths) <= {3, 37}


def test_an_error_ends_the_agents_and_their_episodes_are_counted():
    class Bad(Hook):
        def post_act(self, agent):
            if agent.robot.env_steps == 100:
                raise ArithmeticError("bad")

    with lottery(n_agents=3) as robot:
        robot.run(70)
        with pytest.raises(Exception, match="bad"):
            robot.run(70, Bad())
        assert robot.episodes_cut in (1, 2) and robot.env_steps == 100  # those of the two others, if they were open
        robot.run(70)
        assert robot.env_steps == 170 and set(robot.recent_lengths) <= {3, 37}


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
def test_ctrl_c_in_a_later_run_ends_the_agents(driver):
    class Strikes(Hook):
        def post_act(self, agent):
            raise KeyboardInterrupt

    with lottery(n_agents=2, driver=driver) as robot:
        robot.run(20)
        with pytest.raises(KeyboardInterrupt):
            robot.run(20, Strikes())
        robot.run(200)
        assert set(robot.recent_lengths) <= {3, 37}


# ------------------------------------------------------------------------------------------------------------------------- hooks


class Sums(Hook):
    """Adds up rewards from an episode's beginning."""

    def __init__(self):
        self.sums, self.ended, self.experiments = {}, [], 0

    def pre_episode(self, agent):
        self.sums[agent.index] = 0.0

    def post_act(self, agent):
        self.sums[agent.index] += float(np.sum(agent.env.last[2]))

    def post_episode(self, agent, interrupted):
        self.ended.append((interrupted, self.sums.pop(agent.index)))

    def post_experiment(self, robot):
        self.experiments += 1


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
def test_one_hook_of_many_runs_hears_each_episode_once(driver):
    with lottery(n_agents=2, driver=driver) as robot:
        hook = Sums()
        for _ in range(10):
            robot.run(30, hook)
        assert [total for _, total in hook.ended] == list(robot.recent_returns)
        assert not any(interrupted for interrupted, _ in hook.ended) and hook.experiments == 10


@pytest.mark.parametrize("agent", [Agent, lambda: VectorAgent(2)], ids=["single", "vector"])
def test_a_hook_that_is_new_hears_that_an_episode_goes_on(agent):
    with lottery(agent=agent) as robot:
        robot.run(20)
        for _ in range(5):
            hooks = [Sums(), TimePerStep()]
            robot.run(20, hooks)
            assert hooks[0].sums or hooks[0].ended
            assert len(hooks[1].seconds) == 20 // robot.agents[0].n_envs  # none is missed, and none heard afterwards


# ------------------------------------------------------------------------------------------------------------- threads and ends


def test_a_run_in_another_thread_leaves_nothing_behind(caplog):
    """Greenlets cannot change threads: outside of the main thread episodes end with the run, and are counted."""
    with caplog.at_level(logging.WARNING), lottery(n_agents=2) as robot:
        for _ in range(20):
            thread = threading.Thread(target=robot.run, args=(20,))
            thread.start()
            thread.join()
        assert robot.env_steps == 400 and robot.episodes_cut > 20
        assert "could not wait for the next run" in caplog.text


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
def test_agents_that_wait_in_one_thread_may_be_gone_on_with_in_another(driver):
    with lottery(n_agents=2, driver=driver) as robot:
        robot.run(100)
        cut = driver == "cooperative"
        open_ones = cut * sum(agent.env.n_open() for agent in robot.agents)
        thread = threading.Thread(target=robot.evaluate, args=(1,))
        thread.start()
        thread.join()
        thread = threading.Thread(target=robot.run, args=(100,))
        thread.start()
        thread.join()
        assert robot.env_steps == 200 and robot.episodes_cut >= open_ones and set(robot.recent_lengths) <= {3, 37}
        robot.run(100)
        assert robot.env_steps == 300 and set(robot.recent_lengths) <= {3, 37}


@pytest.mark.parametrize("options", [dict(), dict(driver="threads"), dict(driver="threads", mode="async"),
                                     dict(agent=lambda: VectorAgent(2))], ids=["cooperative", "threads", "async", "vector"])
def test_a_robot_that_nobody_closes_is_freed(options):
    """Of what waiting greenlets and threads hold no garbage collector knows."""
    threads = threading.active_count()
    robot = lottery(n_agents=2, **options)
    robot.run(30)
    robot.run(30)
    found = [weakref.ref(robot), *(weakref.ref(agent) for agent in robot.agents), weakref.ref(robot.agents[0].env)]
    del robot
    for _ in range(200):
        gc.collect()
        if not any(ref() for ref in found) and threading.active_count() <= threads:
            return
        threading.Event().wait(0.01)
    raise AssertionError([ref() for ref in found] + threading.enumerate())


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_program_ends_while_agents_wait(driver):
    program = f"""
from test_runs import lottery
if __name__ == "__main__":
    robot = lottery(n_agents=2, driver={driver!r})
    robot.run(20)
    print("ran", robot.env_steps >= 20)
"""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100,
                          env={**os.environ, "PYTHONPATH": path})
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran True\n", "")
