"""The probe of an environment: gymnasium's own checker, and what agents rely on beyond it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env

from parl_like.environment.factory import make_one
from parl_like.environment.state import clone_state, restore_state
from parl_like.lab.probes.laws import Broken, DoesNotApply, Findings, Law, tried
from parl_like.learning.explorers.uniform import masks_in, random_legal
from parl_like.values.copying import copied
from parl_like.values.spec import leaves

HARMLESS = "|".join([
    "is different from the unwrapped version",  # it says so of every wrapper
    "Not able to test alternative render modes",  # and so of all that gymnasium.make has not made
    r"observation space (min|max)imum value is -?infin",  # normal numbers have no bounds
    "observation space maximum and minimum values are equal",  # one that never changes
])


ADVICE = "we recommend"
"""Words of what gymnasium only recommends; our own environments follow it."""


def check_gymnasium(env: gym.Env[Any, Any], skip_render: bool = False, harmless: str = HARMLESS) -> None:
    """Run gymnasium's own checker, with its warnings as errors but for those that harm nobody."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=f".*({harmless})")
        check_env(env, skip_render_check=skip_render)


def drawn(space: gym.Space[Any], obs: Any) -> Any:
    """Return a random action; where the observation has a `mask`, a legal one."""
    return random_legal(space, space.np_random, obs) if masks_in(obs) else space.sample()


def may_have_masks(env: gym.Env[Any, Any]) -> bool:
    """Return whether the observations of an environment have the key `mask`."""
    return isinstance(env.observation_space, gym.spaces.Dict) and "mask" in env.observation_space.keys()


class OnlyLegal(gym.Wrapper[Any, Any, Any, Any]):
    """Takes a legal action in place of each one, for a checker that does not know masks. It is the same one in the same state."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.obs, info = self.env.reset(seed=seed, options=options)
        return self.obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        act = random_legal(self.action_space, np.random.default_rng(0), self.obs)
        self.obs, *rest = self.env.step(act)
        return self.obs, *rest


class EnvProbe:
    """The laws of the environments that `make()` gives."""

    def __init__(self, make: Callable[[], Any], steps: int) -> None:
        self.make, self.steps = make, steps

    def played(self, env: Any, n: int, seed: int | None = 3) -> list[tuple[Any, ...]]:
        """Return what `n` random legal actions gave: copies, one per step, with resets between episodes."""
        env.action_space.seed(3)
        obs, _ = env.reset(seed=seed)
        out: list[tuple[Any, ...]] = [(copied(obs),)]
        for _ in range(n):
            obs, rew, terminated, truncated, _ = env.step(drawn(env.action_space, obs))
            out.append((copied(obs), rew, bool(terminated), bool(truncated)))
            if terminated or truncated:
                obs, _ = env.reset()
                out.append((copied(obs),))
        return out

    def gymnasiums(self) -> None:
        """Run gymnasium's checker."""
        env = self.make()
        try:
            check_gymnasium(OnlyLegal(env) if may_have_masks(env) else env, skip_render=True, harmless=f"{HARMLESS}|{ADVICE}")
        finally:
            env.close()

    def space(self) -> None:
        """Look at each observation and reward of a play. Raises Broken where the law is broken."""
        env = self.make()
        for i, (obs, *rest) in enumerate(self.played(env, self.steps)):
            if not env.observation_space.contains(obs):
                raise Broken(f"observation {i} is not of observation_space {env.observation_space}: {obs!r:.100}")
            if rest and not np.isfinite(np.asarray(rest[0], np.float64)).all():
                raise Broken(f"the reward before observation {i} is {rest[0]!r:.60}; expected a finite number")

    def seeds(self) -> None:
        """Play twice with one seed. Raises Broken where the law is broken."""
        first, second = (self.played(self.make(), self.steps) for _ in range(2))
        for i, (one, two) in enumerate(zip(first, second, strict=True)):
            if not alike(one, two):
                raise Broken(f"two environments with the same seed and actions differ at output {i}: {one!r:.90} and {two!r:.90}")

    def actions(self) -> None:
        """Look at given actions. Raises Broken where the law is broken, DoesNotApply where it is not about this."""
        env = self.make()
        if not isinstance(env.action_space, gym.spaces.Box):
            raise DoesNotApply("its actions are no Box, so no array could be changed")
        env.reset(seed=3)
        env.action_space.seed(3)
        act = env.action_space.sample()
        given = act.copy()
        env.step(act)
        if not np.array_equal(act, given):
            raise Broken(f"step changes the array of the action: {given} became {act}")

    def arrays(self) -> None:
        """Look at an earlier observation after a later step. Raises Broken where the law is broken."""
        env = self.make()
        env.action_space.seed(3)
        obs, _ = env.reset(seed=3)
        kept = now = copied(obs)
        for _ in range(min(self.steps, 5)):
            now, _, terminated, truncated, _ = env.step(drawn(env.action_space, now))
            if not alike((obs,), (kept,)):
                raise Broken("an observation changes with the next step: helpers copy it, scripts of yours may not")
            if terminated or truncated:
                return

    def state(self) -> None:
        """Go on twice from one state. Raises Broken where the law is broken, DoesNotApply where it is not about this."""
        env = self.make()
        obs = self.played(env, min(self.steps, 5))[-1][0]
        try:
            kept = clone_state(env)
        except TypeError as error:
            raise DoesNotApply(f"its state cannot be cloned: {error}") from None
        futures = []
        for _ in range(2):
            restore_state(env, kept)
            env.action_space.seed(4)
            futures.append(copied(env.step(drawn(env.action_space, obs))[:4]))
        if not alike(*futures):
            raise Broken(f"one state and one action have two outcomes: {futures[0]!r:.90} and {futures[1]!r:.90}")


def alike(one: tuple[Any, ...], two: tuple[Any, ...]) -> bool:
    """Return whether two outputs of an environment have equal leaves."""
    first, second = (dict(leaves({str(i): part for i, part in enumerate(given)}, "out")) for given in (one, two))
    return first.keys() == second.keys() and all(np.array_equal(first[key], second[key], equal_nan=False) for key in first)


def probe_env(env: Any, *, steps: int = 200) -> Findings:
    """Try whether an environment keeps the laws that agents rely on.

    Args:
        env: Its class, a factory, or a registered id.
        steps: Random steps of each law.

    Raises:
        TypeError: it is an environment itself; each law needs a new one.
    """
    if hasattr(env, "step") and not isinstance(env, type):
        raise TypeError("probe_env: got an environment; expected a class, a factory or an id, for each law needs a new one")
    probe = EnvProbe(lambda: make_one(env), steps)
    return tried(getattr(env, "__name__", str(env)), [
        Law("passes gymnasium's checker", "reset and step, as gymnasium documents them", probe.gymnasiums),
        Law("gives what its spaces say", "observation_space, and shapes and dtypes of observations", probe.space),
        Law("repeats with the same seed", "super().reset(seed=seed); random numbers not of self.np_random", probe.seeds),
        Law("leaves actions as they are", "step: `act = act * 2` in place of `act *= 2`", probe.actions),
        Law("gives arrays of its own", "return a copy of the observation", probe.arrays),
        Law("goes on from its state", "clone_state and restore_state: generators are part of the state", probe.state),
    ])
