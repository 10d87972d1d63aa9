"""The probe of a class that a user has named: an algorithm, an environment or a buffer."""

from __future__ import annotations

from collections.abc import Mapping

import gymnasium as gym

from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.lab.probes.algorithm import probe_algorithm
from parl_like.lab.probes.buffer import probe_buffer
from parl_like.lab.probes.env import probe_env
from parl_like.lab.probes.laws import Findings
from parl_like.lab.user_experiments import named_in
from parl_like.lab.yaml_text import UsageError
from parl_like.learning.algorithm import Algorithm
from parl_like.values.errors import unknown


def probe(name: str, options: Mapping[str, object]) -> Findings:
    """Probe the class of `FILE.py:Name` or `module:Name`, which is imported.

    Raises:
        UsageError: there is none, it is of no kind that can be probed, or it is no algorithm and there are options.
    """
    if ":" not in name:
        raise UsageError(f"probe: {name!r} names no class; write FILE.py:Name or module:Name, as in mine.py:MyAlgorithm")
    inside, there = named_in(name)
    kind = there.get(inside)
    if isinstance(kind, type) and issubclass(kind, Algorithm):
        return probe_algorithm(kind, **dict(options))  # type: ignore[arg-type]
    if options:
        raise UsageError(f"probe: {next(iter(options))}= is for algorithms, and {name} is none")
    if isinstance(kind, type) and issubclass(kind, gym.Env):
        return probe_env(kind)
    if isinstance(kind, type) and issubclass(kind, ReplayBuffer):
        return probe_buffer(kind)
    can = [key for key, one in there.items() if isinstance(one, type) and issubclass(one, (Algorithm, gym.Env, ReplayBuffer))]
    if kind is None:
        raise UsageError(f"probe: {name.rpartition(':')[0]}: {unknown('class', inside, can)}")
    raise UsageError(f"probe: {name} is no class of an Algorithm, a gymnasium.Env or a ReplayBuffer; found {kind!r:.60}")
