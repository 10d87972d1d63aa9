"""A robot that does nothing but count and draw, so that every doubled, lost or reordered step shows in its numbers."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from parl_like.environment.stop_conditions import StopCondition
from parl_like.lab.config import ExperimentConfig
from parl_like.lab.experiment import Experiment
from parl_like.lab.yaml_text import ConfigError
from parl_like.run.evaluation import Episodes
from parl_like.values import names

EPISODE = 10  # steps
WARM_UP = 60  # steps before it learns, and knows its loss


class Config(ExperimentConfig, frozen=True, kw_only=True):
    lr: Annotated[float, msgspec.Meta(gt=0)] = 0.5
    hidden: tuple[int, ...] = (4, 4)
    refuse: bool = False
    env: str = "Fake-v0"
    options: dict[str, Any] = {}


class Evaluation(Episodes):
    """The statistics of every evaluation, and one of its own."""

    def numbers(self) -> dict[str, float]:
        return {**super().numbers(), "regret": 0.25}


class FakeRobot:
    """`weight` sums pseudo-random draws of a state that is saved; a boundary cuts the episode and consumes a draw of its own.

    Attributes:
        at_step: Class attribute: env step → what happens there (raise, send a signal); tests set it.
        on_save: Class attribute: called inside `state_dict`.
    """

    at_step: ClassVar[dict[int, Callable[[], Any]]] = {}
    on_save: ClassVar[Callable[[], Any] | None] = None
    closed: ClassVar[int] = 0
    parts = None

    tasks: dict = {}

    def __init__(self, config: Config) -> None:
        for name in (config.env, *config.options.get("inner", ())):
            if ":" in name:
                names.check(name)  # as whoever looks up a name does, before a module is imported for it
        if config.refuse:
            raise ConfigError("Config: key 'refuse' must be false; set refuse=false")
        self.config = config
        self.weight = 0.0
        self.noise = config.seed + 1
        self.env_steps = self.iterations = self.episodes = self.position = self.boundaries = 0
        self.trace = hashlib.sha256(b"start").digest()

    def draw(self) -> float:
        self.noise = (self.noise * 6364136223846793005 + 1442695040888963407) % 2**62
        return self.noise / 2**62

    def iterate(self, stop_steps: int) -> Iterator[int]:
        while self.env_steps < stop_steps:
            for _ in range(self.config.n_agents):
                self.weight += self.config.lr * self.draw()
                self.env_steps += 1
                self.position += 1
                if self.position == EPISODE:
                    self.position = 0
                    self.episodes += 1
                self.trace = hashlib.sha256(self.trace + repr(self.weight).encode()).digest()
                if self.env_steps in self.at_step:
                    self.at_step[self.env_steps]()
            self.iterations += 1
            yield self.iterations

    def counters(self) -> dict[str, int]:
        updates = max(0, self.env_steps - WARM_UP)
        return {"env_steps": self.env_steps, "episodes": self.episodes, "iterations": self.iterations, "updates/RL": updates}

    def metrics(self) -> dict[str, float]:
        out = {"RL/predict/mean_batch": 1.0}
        if self.episodes:
            out |= {"return/mean": self.weight / self.env_steps, "return/last": self.weight}
        if self.env_steps > WARM_UP:
            out |= {"RL/loss": self.noise / 2**62}
        return out

    def describe(self) -> dict[str, Any]:
        return {"n_agents": self.config.n_agents, "tasks": [{"name": "RL"}]}

    def checkpoint_boundary(self) -> None:
        self.position = 0
        self.boundaries += 1
        self.draw()

    def state_dict(self) -> dict[str, Any]:
        if self.on_save is not None:
            type(self).on_save()
        counts = [self.noise, self.env_steps, self.iterations, self.episodes, self.boundaries]
        return {"RL": {"weight": np.array([self.weight])}, "counts": np.array(counts, np.int64),
                "trace": np.frombuffer(self.trace, np.uint8)}

    def load_state_dict(self, tree: dict[str, Any]) -> None:
        self.weight = float(tree["RL"]["weight"][0])
        self.noise, self.env_steps, self.iterations, self.episodes, self.boundaries = map(int, tree["counts"])
        self.trace = bytes(np.asarray(tree["trace"], np.uint8))

    def evaluate(self, *, episodes: int, seed: int, stop: StopCondition | None = None) -> Evaluation:
        episodes = next((each for each in range(episodes) if stop is not None and stop(self)), episodes)
        seen = Evaluation([self.weight + (seed + each) % 7 for each in range(episodes)], [EPISODE] * episodes)
        seen.score = seen.mean_return if episodes else None
        return seen

    def play(self, path: Path, *, seed: int, max_steps: int = 0) -> float:
        path.write_bytes(b"GIF89a")
        return self.weight + seed % 7

    def never_learned(self) -> dict[str, str]:
        return {"RL": "too few rows"} if self.env_steps <= WARM_UP else {}

    notes = ()
    sync = True

    def acting_state(self) -> dict[str, Any]:
        return self.state_dict()

    def remarks(self) -> list[str]:
        return [f"task {name!r} never learned: {why}" for name, why in self.never_learned().items()]

    def trace_hash(self) -> str | None:
        return self.trace.hex() if self.config.trace else None

    def close(self) -> None:
        type(self).closed += 1


def build(config: Config) -> FakeRobot:
    return FakeRobot(config)


def experiment(**fields: Any) -> Experiment:
    """Small and quick: 2 agents, 400 steps, a checkpoint each 100, a row each 50."""
    base = {"total_steps": 400, "n_agents": 2, "checkpoint_every": 100, "metrics_every": 50, "tensorboard": False, "trace": True}
    return Experiment(**{"name": "fake", "robot": "fake", "description": "counts", "expect": {"mean_return": 50.0, "episodes": 5},
                         "config": base, **fields})


MODULE = sys.modules[__name__]


def signal_here(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)
