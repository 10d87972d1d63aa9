"""Stop conditions that look at environments are asked where these are, under every driver."""

import sys
from functools import partial
from importlib.util import find_spec

import gymnasium as gym
import numpy as np
import pytest

from parl_like import Hook, Robot, VectorAgent
from parl_like.environment.stop_conditions import StopAfterSteps, StopWhen, StopWhenAgent
from parl_like.envs import make_vector_env


class Walk(gym.Env):
    """Every action goes one step on, to place 50; it can be cloned."""

    observation_space, action_space = gym.spaces.Box(0, 100, (1,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self.seen(), {}

    def seen(self):
        return np.array([self.place], np.float32)

    def step(self, act):
        self.place += 1
        return self.seen(), 1.0, self.place == 50, False, {"place": self.place}

    def clone_state(self):
        return {"place": self.place}

    def restore_state(self, state):
        self.place = state["place"]


linux = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked")
DRIVERS = ["cooperative", "threads", pytest.param("processes", marks=linux), pytest.param("ray", marks=[
    pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.skipif(find_spec("ray") is None, reason="no Ray")])]


def made(driver, **options):
    workers = {} if driver in ("cooperative", "threads") else {"workers.count": 2}
    return Robot.of("PPO", Walk, n_agents=4, seed=0, driver=driver, unroll=16, **workers, **options)


def at(place):
    return StopWhenAgent(lambda agent: agent.env.unwrapped.place == place)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_run_ends_where_an_environment_says_so(driver):
    """Exactly after the act where agents take turns; after a turn of all four where they are in workers."""
    with made(driver, serve="central") as robot:
        robot.run(at(7))
        first = robot.env_steps
        assert first in ({"cooperative": [25], "threads": range(7, 50)}.get(driver, [28]))
        robot.run(at(9) & StopAfterSteps(1))  # another function: agents go on in the middle of their episodes
        assert first < robot.env_steps <= 50 and robot.episodes == 0 and "episodes_cut" not in robot.metrics()
        before = robot.env_steps
        robot.run(at(1000) | StopAfterSteps(20))
        assert before + 20 <= robot.env_steps <= before + 24
        robot.run(20)  # nothing is asked any more
        with pytest.raises(Exception, match="no_such_place"):
            robot.run(StopWhenAgent(lambda agent: agent.env.unwrapped.no_such_place))


@pytest.mark.parametrize("driver", DRIVERS[:3])
def test_a_condition_may_stand_twice_in_a_composition(driver):
    """All who ask after an act hear the same, and the function is asked once."""
    asked = []

    def is_there(agent):
        asked.append(agent.env.unwrapped.place)
        return agent.env.unwrapped.place == 7

    there = StopWhenAgent(is_there)
    late = StopAfterSteps(160)
    for stop in (there & there, (there & late) | (there & (there | late)), there | there):
        asked.clear()
        with made(driver, serve="central") as robot:
            robot.run(stop | late)
            if driver == "cooperative":
                assert robot.env_steps == 25 == len(asked)
            assert robot.env_steps < 160


@linux
def test_the_function_may_look_at_the_last_step_and_come_in_every_run():
    """The workers stay where the function is the same."""
    stop = StopWhenAgent(lambda agent: agent.env.last[5].get("place") == 20)
    with made("processes") as robot:
        for n in (1, 2):
            robot.run(stop)
            robot.run(3 * 4)
            assert robot.pool.driver.workers[0].incarnation == 0 and robot.episodes == 4 * (n - 1)
        with pytest.raises(Exception, match=r"env.place: agent 0's environment is in a worker process; .*StopWhenAgent\(lambda"):
            robot.run(StopWhen(lambda robot: robot.agents[0].env.place == 3))


@linux
def test_workers_that_are_replaced_for_another_function_take_over_everything(tmp_path):
    """The run goes on as one that was saved there."""
    digests = []
    for new in (False, True):
        with made("processes", trace=True) as robot:
            robot.run(at(10))
            if new:
                robot.run(at(30) | StopAfterSteps(40))
                assert robot.pool.driver.workers[0].incarnation == 1
            else:
                robot.save(tmp_path / "here")
                robot.run(40)
            robot.run(100)
            digests.append((robot.trace_hash(), robot.counters(), robot.pool.driver.restarts))
    assert digests[0] == digests[1]


@linux
def test_a_function_that_cannot_be_sent_is_refused_and_nothing_is_lost():
    lock = __import__("threading").Lock()
    with made("processes") as robot:
        robot.run(12)
        with pytest.raises(TypeError, match=r"a function of StopWhenAgent cannot be sent to worker processes: .*lock"):
            robot.run(StopWhenAgent(lambda agent: lock.locked()))
        robot.run(12)
        assert robot.env_steps == 24 and "episodes_cut" not in robot.metrics()


@linux
def test_a_loaded_robot_with_workers_cuts_no_episode_at_the_end_of_its_run(tmp_path):
    with made("processes") as robot:
        robot.run(20)
        robot.save(tmp_path / "here")
    with made("processes") as robot:
        robot.load(tmp_path / "here")
        robot.run(8)
        robot.run(8)
        assert "episodes_cut" not in robot.metrics()
        robot.run(4 * 50 - 36)
        assert robot.episodes == 4


def test_of_a_vector_agent_it_sees_all_environments():
    places = StopWhenAgent(lambda agent: agent.env.last[0].max() >= 5)
    with Robot(lambda: make_vector_env(partial(Walk), 3), agent=VectorAgent, tasks={}, seed=0) as robot:
        robot.agents[0].run_one_episode = partial(walk, robot.agents[0])
        robot.run(places)
        assert robot.env_steps == 15


def walk(agent):
    agent.env.reset()
    while True:
        agent.env.step(np.zeros(3, int))


def test_evaluations_end_by_it_and_hooks_hear_before():
    heard = []

    class Hears(Hook):
        def post_act(self, agent):
            heard.append(agent.env.unwrapped.place)

    with made("cooperative") as robot:
        assert robot.evaluate(8, stop=at(3)).n_steps == 9
        robot.run(at(2), Hears())
        assert heard == [1] * 4 + [2]
