"""Tasks that remember something of their agents between requests, whose agents are in workers: rows are theirs alone."""

import sys

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import Agent, ComputationTask, Robot
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopWhen
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.model import Model
from parl_like.values.errors import AgentFailed

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")]

TWO = Processes(workers=2)
ROWS = 3


class Notes(Algorithm):
    """Writes a tag into the row that a request names, and answers with what stood there. Learning takes its time, and changes
    nothing that is remembered."""

    remembers = ("notes",)

    def __init__(self):
        model = Model(gym.spaces.Box(-1, 2**40, (2,), np.int64), gym.spaces.Discrete(2))
        model.weight = torch.nn.Parameter(torch.zeros(1))
        super().__init__(model)
        self.notes = {}

    def predict(self, inputs):
        rows = inputs.obs.tolist()
        before = [self.notes.get(row, -1) for row, _ in rows]
        self.notes.update(dict(rows))
        return {"before": torch.tensor(before)}

    def learn(self, batch):
        return {"loss": (self.model.weight * batch.obs.float()).sum()}


class Still(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 1, (1,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, act):
        return np.zeros(1, np.float32), 0.0, False, False, {}


class Keeper(Agent):
    """Looks into its rows for what it wrote last."""

    rows = ROWS

    def join(self, make):
        super().join(make)
        self.first = self.claim("notes", self.rows)

    def run_one_episode(self):
        self.env.reset()
        comm, known, tag = self.helpers["notes"].comm, {}, self.rng.integers(2**20) * 2**20
        while True:
            row, tag = self.first + int(tag % self.rows), tag + 1
            ticket = comm.predict((np.array([row, tag]),))
            found = int(ticket.out["before"][ticket.start])
            if known.get(row, found) != found:
                raise LookupError(f"row {row} has {found}, not {known[row]}")
            known[row] = tag
            if tag % 20 == 0:
                comm.learn({"obs": np.array([[row, tag]])})
            self.env.step(0)


def keeping(n_agents=5, driver=TWO, agent=Keeper, **options):
    return Robot(Still, tasks={"notes": ComputationTask(Notes, **options)}, agent=agent, n_agents=n_agents, driver=driver,
                 mode="async")


def taken(robot):
    """Where what is claimed lies: first row and number of rows."""
    return sorted(claim[:2] for claim in robot.tasks["notes"].row_slots._claims if claim[2]() is not None)


@pytest.mark.parametrize("serve", ["central", "replica"])
def test_rows_of_agents_in_workers_are_theirs_alone(serve):
    """Predictions come from copies of the algorithm, which change places after every update."""
    with keeping(serve=serve) as robot:
        robot.run(StopWhen(lambda robot: robot.env_steps > 1500 and robot.tasks["notes"].learns > 10))
        assert taken(robot) == ([(0, 3 * ROWS), (3 * ROWS, 2 * ROWS)] if serve == "central" else [])


def test_a_workers_rows_are_free_when_nothing_of_it_waits_any_more():
    """Late requests of a dead worker write into rows that nobody has; its successors get them when they have been served."""
    with keeping(n_agents=4) as robot:
        driver, queue = robot.pool.driver, robot.wrappers["notes"].predictions
        row_slots, waited, deaths = robot.tasks["notes"].row_slots, [], [200, 400, 600, 800]
        lost, serve = driver._lost, driver._serve

        def loses(worker, why=""):
            lost(worker, why)
            late = [batch.block.arrays["obs"][t.start, 0] for batch in queue.batches for t in batch.tickets if t.abandoned]
            waited.extend(late)
            (first, n), = [claim[:2] for claim in row_slots._claims if claim[2]() is worker.owner]
            assert not any(first <= row < first + n for row in late)

        def serves(queue):
            if deaths and queue.kind == "predict" and robot.env_steps > deaths[0]:
                worker = next(batch.tickets[0].agent for batch in queue.batches)
                deaths.pop(0)
                restarts = driver.restarts
                driver.link.kill(worker)
                while driver.restarts == restarts:
                    driver._pump(0.1)
            serve(queue)

        driver._lost, driver._serve = loses, serves
        robot.run(StopWhen(lambda robot: robot.env_steps > 1200 and not deaths))
        assert driver.restarts == 4 and len(waited) >= 4
        ends = [first + n for first, n in taken(robot)]
        assert len(ends) == 2 and max(ends) <= 6 * ROWS  # two workers with two agents each, and one that has gone


def test_an_agent_that_begins_anew_has_its_rows_again():
    class Clumsy(Keeper):
        def run_one_episode(self):
            if not self.steps and self.index == 1:
                self.steps = 1
                raise OSError("a slip")
            super().run_one_episode()

    with keeping(n_agents=2, driver=Processes(workers=1, agent_restarts=1), agent=Clumsy) as robot:
        robot.run(StopWhen(lambda robot: robot.env_steps > 300))
        assert robot.pool.driver.agent_restarts == 1


def test_an_agent_that_needs_more_than_the_first_is_named():
    class Greedy(Keeper):
        @property
        def rows(self):
            return ROWS * (2 + self.index)

    with keeping(n_agents=1, agent=Greedy) as robot, pytest.raises(
        AgentFailed, match=r"building its agents raised ValueError: 6 rows are wanted where 3 were set aside",
    ):
        robot.run(StopWhen(lambda robot: robot.env_steps > 300))
