"""Large observations in shared memory: what the robot reads is what the worker wrote, and nothing of it stays."""

import errno
import os
import signal
import sys
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import OnPolicyHelper, Robot
from parl_like.drivers.workers import shared_parameters, shared_rows
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.hooks import Hook
from parl_like.environment.stop_conditions import StopAfterSteps, StopWhen
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.explorers import Categorical
from parl_like.learning.model import Model
from parl_like.tasks.acting_copies import ActingCopies, tensors_of
from parl_like.tasks.task import ComputationTask
from parl_like.values.spec import Spec

pytestmark = [pytest.mark.skipif(shared_rows.folder() is None or sys.platform != "linux", reason="needs /dev/shm")]

IMAGE = Spec("obs", (4, 84, 84), np.dtype(np.uint8))
SPECS = [Spec("noise", (), np.dtype(np.float64)), IMAGE, Spec("flag", (), np.dtype(bool))]


def entries():
    return sorted(os.listdir(shared_rows.folder()))


def test_a_block_is_read_as_it_was_written(tmp_path):
    rng = np.random.default_rng(0)
    blocks, reader = shared_rows.Blocks(str(tmp_path), "0.0"), shared_rows.Reader(str(tmp_path))
    first, second = blocks.make(SPECS, 32), blocks.make(SPECS, 64)
    assert (blocks.number_of(first), blocks.number_of(second)) == (0, 1)
    for _ in range(2):  # written again after it was read
        rows = [(rng.random(), rng.integers(0, 256, IMAGE.shape, np.uint8), bool(rng.integers(2))) for _ in range(5)]
        for i, row in enumerate(rows):
            second.write(i, row)
        seen = reader.rows("0.0", 1, SPECS, 64, 5)
        assert list(seen) == ["noise", "obs", "flag"] and not seen["obs"].flags.writeable
        for i, row in enumerate(rows):
            assert seen["noise"][i] == row[0] and np.array_equal(seen["obs"][i], row[1]) and seen["flag"][i] == row[2]
    assert os.listdir(tmp_path) == ["0.0.0"], "one that was read once needs no name any more"
    reader.forget("0.0")


def test_small_blocks_and_those_that_there_is_no_room_for_are_plain(tmp_path, monkeypatch):
    blocks = shared_rows.Blocks(str(tmp_path), "0.0")
    assert blocks.number_of(blocks.make([SPECS[0]], 64)) is None

    def full(fd, offset, size):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "posix_fallocate", full)
    block = blocks.make(SPECS, 64)
    block.write(63, (0.5, np.ones(IMAGE.shape, np.uint8), True))
    assert blocks.number_of(block) is None and os.listdir(tmp_path) == []


def test_parameters_that_are_written_over_while_they_are_copied_are_not_used(tmp_path):
    learner, actor = Looks(), Looks()
    like = tensors_of({"model": learner.model.state_dict()})
    ours, theirs = (shared_parameters.Parameters(str(tmp_path), "task", like) for _ in range(2))
    copies = ActingCopies(actor, 0)
    key = next(iter(like))
    for number in (1, 2, 3):
        ours.write({key: torch.full((3,), float(number))}, number)
        assert theirs.holds(number)
        copies.publish(theirs.slots[number % 2], number, 0, partial(theirs.holds, number))
        assert copies.version == number and copies.front.algorithm.model.w.tolist() == [number] * 3
    ours.write({key: torch.full((3,), 4.0)}, 4)
    ours.write({key: torch.full((3,), 5.0)}, 5)
    assert theirs.holds(4) and not theirs.holds(3)
    ours.write({key: torch.full((3,), 6.0)}, 6)  # over 4
    copies.publish(theirs.slots[0], 4, 0, partial(theirs.holds, 4))
    assert copies.version == 3 and copies.front.algorithm.model.w.tolist() == [3] * 3


class Pictures(gym.Env):
    """The observation is a picture that the actions change."""

    observation_space = gym.spaces.Box(0, 255, IMAGE.shape, np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.picture, self.t = self.np_random.integers(0, 256, IMAGE.shape, np.uint8), 0
        return self.picture.copy(), {}

    def step(self, act):
        self.picture[self.t % 4] += np.uint8(act + 1)
        self.t += 1
        return self.picture.copy(), float(self.picture[0, 0, 0]), False, self.t == 20, {}


class Looks(Algorithm):
    """Logits are numbers of the picture: exact in every row, whatever the batch."""

    def __init__(self):
        model = Model(Pictures.observation_space, Pictures.action_space)
        model.w = torch.nn.Parameter(torch.ones(3))
        super().__init__(model)

    def predict(self, inputs):
        return {"logits": inputs.obs[:, 3, 83, 81:].float() / 64 * self.model.w}

    def explorer(self):
        return Categorical()

    def learn(self, batch):
        return {"loss": 1e-3 * (batch.obs[:, 3, 83, 81:].float() * self.model.w).mean()}


def robot(driver, n_agents=14, **options):
    task = ComputationTask(Looks, partial(OnPolicyHelper, unroll=4))
    return Robot(Pictures, tasks={"RL": task}, n_agents=n_agents, driver=driver, trace=True, **options)


def test_a_run_with_pictures_is_that_of_greenlets_and_leaves_nothing(monkeypatch):
    read = []
    rows = shared_rows.Reader.rows
    monkeypatch.setattr(shared_rows.Reader, "rows", lambda self, *asked: read.append(asked[-1]) or rows(self, *asked))

    def trace(driver):
        with robot(driver) as made:
            made.run(StopAfterSteps(14 * 4 * 5))
            return made.trace_hash(), made.env_steps

    before = entries()
    assert trace(Processes(workers=2)) == trace("cooperative")
    assert read and set(read) == {7}
    assert entries() == before


def test_stops_and_killed_workers_leave_no_memory_behind():
    """A worker has at most as many blocks as batches that may be on their way, each of which has an agent of its own. A stop
    takes them back, so that no start needs new ones; a new worker has its own."""
    before = entries()
    with robot(Processes(workers=2), n_agents=4, mode="async") as made:
        driver = made.pool.driver
        for _ in range(8):
            made.run(StopAfterSteps(100))
            made.pool.lifecycle.halt()
        numbers = {key: set() for key in ("0.0", "1.0")}
        for owner, number in driver.link._reader._columns:
            numbers[owner].add(number)
        assert all(used and used <= {0, 1} for used in numbers.values()), numbers
        killed = []

        class Kill(Hook):
            def post_episode(self, agent, interrupted):
                if not killed:
                    killed.append(driver.link.pid(driver.workers[0]))
                    os.kill(killed[0], signal.SIGKILL)

        made.run(StopWhen(lambda robot: driver.restarts == 1 and ("0.1", 0) in driver.link._reader._columns), Kill())
        assert ("0.0", 0) not in driver.link._reader._columns
    assert entries() == before
