"""A link whose workers run in this process, slowly and by turns that a seed draws: the order of events of a busy machine, without
a clock. Whatever the seed, a run that is promised to repeat itself does."""

import os
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import cloudpickle

from parl_like.drivers.workers.processes import Processes
from parl_like.drivers.workers.supervisor import Link
from parl_like.drivers.workers.worker import Worker


class Life:
    """One worker: what `work` does, a little at a time.

    Attributes:
        arrived, coming: Messages of the robot that the worker may read, and those that are on their way.
        leaving: Messages to the robot that are on their way.
    """

    def __init__(self, recipe):
        self.arrived, self.coming, self.leaving = deque(), deque(), deque()
        self.over = False
        self._worker = Worker(recipe, lambda frames: self.leaving.append([bytes(frame) for frame in frames]), halves=True)
        self._steps = self._live()

    def advance(self):
        self.over = self.over or next(self._steps, "over") == "over"

    def _live(self) -> Iterator[None]:
        going = self._worker.begin()
        while going:
            yield
            if not self._worker.turn():
                while not self.arrived:
                    yield
                going = self._worker.take(self.arrived.popleft())
            yield
            while going and self.arrived:
                going = self._worker.take(self.arrived.popleft())


class ShuffledLink(Link):
    """See above.

    Args:
        seed: Of the order of events.
    """

    def __init__(self, seed):
        self._rng, self._lives = random.Random(seed), {}

    def open(self):
        self._always = os.eventfd(1)  # readable, so nobody waits

    def close(self):
        os.close(self._always)

    def begin(self, worker, recipe):
        self._lives[worker] = Life(cloudpickle.loads(cloudpickle.dumps(recipe)))

    def send(self, worker, frames):
        self._lives[worker].coming.append([bytes(frame) for frame in frames])

    def receive(self):
        out = []
        for worker, life in self._lives.items():
            for _ in range(self._rng.choice((0, 1, 1, 2, 8))):
                if life.coming and self._rng.random() < 0.5:
                    life.arrived.append(life.coming.popleft())
                life.advance()
            while life.leaving and self._rng.random() < 0.7:
                out.append((worker, life.leaving.popleft()))
        return out

    def descriptors(self):
        return [self._always]

    def ended(self):
        return ()

    def kill(self, worker):
        self._lives[worker].over = True

    def wait(self, worker, seconds):
        life = self._lives[worker]
        while not life.over:
            life.arrived += life.coming
            life.coming.clear()
            life.advance()
        return True

    def forget(self, worker):
        del self._lives[worker]


@dataclass(frozen=True, kw_only=True)
class Shuffled(Processes):
    """The driver `processes` over such a link."""

    seed: int = 0

    def make_link(self):
        return ShuffledLink(self.seed)
