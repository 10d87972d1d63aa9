"""DAgger, dataset aggregation (Ross, Gordon and Bagnell 2011): an agent goes where its policy leads, and stores what an expert
would do there.

    parl-like train dagger-cartpole expert=runs/expert decay=0

    robot = Robot.of("BC", "CartPole-v1", agent=lambda: DAggerAgent(expert))    # any function of an observation

So the rows of the task's buffer are of states that the policy comes to, and none of these is new to what clones them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from parl_like.agents.agent import Agent
from parl_like.lab import pretrained
from parl_like.lab.policies.policy import Policy
from parl_like.lab.runner import load_run
from parl_like.lab.yaml_text import ConfigError
from parl_like.robots import single
from parl_like.robots.spaces import Share
from parl_like.run.robot import Robot
from parl_like.values import plain
from parl_like.values.errors import unknown
from parl_like.values.plain import State

Expert = Callable[[Any], Any]
"""Observation → the expert's action, both as the environment has them; such as `load_run("runs/expert").act`."""


class Config(single.Config, frozen=True, kw_only=True):
    """As of `single`; each step of an agent is one answer of the expert.

    Attributes:
        expert: Name of an experiment whose policy ships (`parl-like eval NAME --pretrained`), or the directory of a run or of an
            exported policy.
        decay: As for `DAggerAgent`.
    """

    algorithm: str = "BC"
    expert: Annotated[str, Meta(min_length=1)] = "dqn-cartpole"
    decay: Share = 0.5


class DAggerAgent(Agent):
    """Acts by its first task, and stores with each observation the action of an expert, in place of its own.

    In its i-th episode from 0 on the expert itself acts with probability β_i = decay^i in each step: in the first one always, as
    published. Evaluations have no expert.

    Args:
        expert: See above.
        decay: In [0, 1]; 0: the expert acts in the first episode alone.

    Raises:
        ValueError: decay is not in [0, 1].
    """

    def __init__(self, expert: Expert, decay: float = 0.5) -> None:
        super().__init__()
        if not 0.0 <= decay <= 1.0:
            raise ValueError(f"DAggerAgent: decay is {decay}; expected a number in [0, 1]")
        self.expert, self.decay, self.begun = expert, decay, 0

    def run_one_episode(self) -> None:
        helper = next(iter(self.helpers.values()))
        if helper.mode == "test":
            super().run_one_episode()
            return
        share, self.begun = self.decay**self.begun, self.begun + 1
        obs, _ = self.env.reset()
        over = False
        while not over:
            act, wanted = helper.predict(obs), self.expert(obs)
            after, rew, terminated, truncated, info = self.env.step(wanted if self.rng.random() < share else act)
            helper.store(obs, wanted, rew, after, terminated, truncated, info)
            obs, over = after, terminated or truncated

    def state_dict(self) -> State:
        """Return the state of an `Agent`, and how many episodes it has begun."""
        return {**super().state_dict(), "begun": self.begun}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave; raises as `Agent.load_state_dict`."""
        super().load_state_dict(state)
        self.begun = plain.whole(state["begun"])


@cache
def policy_of(expert: str) -> Expert:
    """Return what an expert does that has a name or a directory, see `Config`.

    Raises:
        UsageError, ArchiveError: a file of it is not as it was written. ValueError: it looks back at earlier observations.
    """
    run = pretrained.run_of(expert) if expert in pretrained.shipped() else Path(expert)
    if (run / "run.json").exists():
        robot: Robot = load_run(run)
        return robot.act
    policy = Policy.load(expert, drawn=False)
    if policy.remembers:
        raise ValueError(f"DAgger: the policy in {expert} remembers what it saw before; expected a function of one observation")
    return policy


def ask(expert: str, obs: Any) -> Any:
    """Return what an expert would do, which is read at the first question: evaluations have none."""
    return policy_of(expert)(obs)


def build(config: Config) -> Robot:
    """Return the robot of a configuration.

    Raises:
        ConfigError: as of `single`; there is no such expert; or no agent acts in an environment of its own.
    """
    if not Path(config.expert).is_dir() and config.expert not in (known := pretrained.shipped()):
        raise ConfigError(f"Config: key 'expert': {unknown('policy that ships', config.expert, known)}; or the directory of a "
                          "run or of an exported policy")
    if config.env.vector or config.helper == "OfflineHelper":
        raise ConfigError("Config: with an expert each agent acts in one environment; expected env.vector=0, and another helper "
                          "than OfflineHelper")
    return single.build(config, agent=partial(DAggerAgent, partial(ask, config.expert), config.decay))
