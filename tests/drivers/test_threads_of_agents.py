"""A thread that an agent registers may ask its helpers: the third way to learn of PARL's document."""

import threading

import numpy as np
import pytest
import torch
from test_runs import SPACES, Lottery, lottery

from parl_like.agents.agent import Agent
from parl_like.agents.off_policy import OffPolicyHelper
from parl_like.algorithms.dqn import DQN
from parl_like.learning.factory import create_algorithm_func
from parl_like.models.mlp import MLPQ
from parl_like.run.robot import Robot
from parl_like.tasks.task import ComputationTask
from parl_like.values.errors import AgentFailed, Stopped


def replay():
    return ComputationTask(create_algorithm_func(MLPQ, SPACES, DQN, {}),
                           lambda: OffPolicyHelper(size=400, batch_size=8, learn_every=None))


class Learns(Agent):
    """The document's ExpReplayHelper: the agent acts and stores, a thread samples and learns."""

    ended = None

    def run_one_episode(self):
        if self.helpers["RL"].mode != "test":  # evaluations are cooperative
            self.thread(self.learn_for_ever)
        super().run_one_episode()

    def learn_for_ever(self):
        try:
            while True:
                if self.helpers["RL"].learn() is None:
                    threading.Event().wait(0.001)  # not enough rows yet
        except Stopped:
            self.ended = threading.current_thread()
            raise


def robot_of(agent=Learns, **options):
    torch.set_num_threads(1)
    return Robot(Lottery, tasks={"RL": replay()}, agent=agent, driver="threads", seed=1, **options)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("n_agents", [1, 3])
def test_an_agent_acts_while_a_thread_of_its_own_learns(mode, n_agents):
    with robot_of(mode=mode, n_agents=n_agents) as robot:
        for _ in range(10):
            robot.run(60)
        assert robot.env_steps == 600 and robot.tasks["RL"].learns >= n_agents
        assert set(robot.recent_lengths) <= {3, 37} and robot.episodes_cut == 0
        learned = robot.tasks["RL"].learns
        robot.evaluate(1)
        assert robot.tasks["RL"].learns == learned  # between two runs it waits
        agents = robot.agents
    assert all(agent.ended is not None and not agent.ended.is_alive() for agent in agents)


def test_it_waits_while_a_checkpoint_is_made_and_goes_on(tmp_path):
    with robot_of(mode="async", n_agents=2) as robot:
        for i in range(3):
            robot.run(60)
            robot.save(tmp_path / str(i))
        learned = robot.tasks["RL"].learns
        robot.run(200)
        assert robot.tasks["RL"].learns > learned


def test_its_error_is_the_agents_and_ends_the_run():
    class Fails(Agent):
        def run_one_episode(self):
            self.thread(self.fail)
            super().run_one_episode()

        def fail(self):
            raise ArithmeticError("a slip")

    with robot_of(Fails) as robot, pytest.raises(AgentFailed, match="agent 0: its thread 'agent 0, fail' raised ArithmeticError: "
                                                                    "a slip"):
        robot.run(100_000)


def test_it_may_predict_beside_its_agent():
    class Asks(Agent):
        asked = 0

        def run_one_episode(self):
            self.thread(self.ask)
            super().run_one_episode()

        def ask(self):
            while True:
                rows = {"obs": np.zeros((3, 2), np.float32), "noise": np.zeros(3, np.float32)}
                assert len(self.helpers["RL"].ask(rows)["act"]) == 3
                Asks.asked += 1

    with robot_of(Asks, n_agents=2) as robot:
        robot.run(400)
        assert Asks.asked > 2 and set(robot.recent_lengths) <= {3, 37}


@pytest.mark.parametrize("driver", ["cooperative", "processes"])
def test_under_other_drivers_the_error_says_what_to_use(driver):
    with lottery("replay", agent=Learns, driver=driver) as robot:
        with pytest.raises(Exception, match="under driver='threads' alone; .* mode='async'"):
            robot.run(20)
