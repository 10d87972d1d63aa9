"""States of real environments by number ("slots"): what planning with a perfect model stands on.

All kinds have `take(slots)`, which stores the state of environment i in `slots[i]`, and `step(parent, child, action)` [m] each,
which steps from the states in `parent`, stores where that leads in `child`, and returns observations, rewards and ends.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.environment.value_check import ExactCheck
from parl_like.envs.sokoban.vector import SokobanVectorEnv
from parl_like.envs.vector.make import GroupVectorEnv, InlineHost
from parl_like.envs.wrappers import clone_state, restore_state
from parl_like.values.spec import Array


def snapshots_of(envs: Any, slots: int, make: Callable[[], Any]) -> Any:
    """The snapshots for `envs`.

    Args:
        envs: A `SokobanVectorEnv`, or one whose environments live in this process and can clone their state
            (`parl_like.envs.wrappers`).
        slots: How many there can be.
        make: Makes more of the same, of which planning steps one; not called for Sokoban.

    Raises:
        TypeError: the environments cannot clone their state, or are in worker processes; the message says how to go on.
    """
    if isinstance(envs.unwrapped, SokobanVectorEnv):
        return SokobanSnapshots(envs.unwrapped, slots)
    real, more = _singles(envs), make()
    sim, *spare = _singles(more) if isinstance(more, gym.vector.VectorEnv) else [more]
    if any(sim is env for env in real):
        raise TypeError("perfect model: planning needs an environment of its own to step, and there is only this one; give a "
                        "factory or an id")
    for env in spare:
        env.close()
    return EnvSnapshots(real, slots, sim)


def _singles(envs: Any) -> Sequence[gym.Env[Any, Any]]:
    """The environments of a vector environment that holds them itself."""
    bare = envs.unwrapped
    if isinstance(bare, GroupVectorEnv) and isinstance(bare.hosts[0], InlineHost) and bare.hosts[0].group is not None:
        return bare.hosts[0].group.envs
    if isinstance(bare, gym.vector.SyncVectorEnv):
        return bare.envs
    raise TypeError(f"perfect model: {envs!r} keeps its environments out of reach; put them together with kind 'sync', or plan "
                    "with a learned model")


class SokobanSnapshots:
    """Snapshots of all games of a Sokoban vector environment, taken, stepped and kept as arrays."""

    def __init__(self, envs: SokobanVectorEnv, slots: int) -> None:
        self.envs = envs
        self.sim = SokobanVectorEnv(envs.num_envs, envs.levels, autoreset_mode="Disabled", **envs.options)
        self.sim.reset(seed=0)
        self._acts = np.zeros(envs.num_envs, np.int64)
        self._kept = {name: np.zeros((slots, *part.shape[1:]), part.dtype) for name, part in self.sim.clone_state().items()}

    def take(self, slots: Array) -> None:
        """Store the state of environment i in `slots[i]`, [n] int64."""
        self._keep(slots, self.envs.clone_state())

    def step(self, parent: Array, child: Array, action: Array) -> tuple[Array, Array, Array]:
        """Step from the states in slots `parent` [m] by actions [m] int64 of the environment's numbers, and store where that
        leads in slots `child` [m].

        Returns:
            Observations [m, ...], rewards [m] float64, whether the episode has ended [m] bool.
        """
        m = len(parent)
        self.sim.restore_state({name: part[parent] for name, part in self._kept.items()}, np.arange(m))
        self._acts[:m] = action
        obs, rew, terminated, truncated, _ = self.sim.step(self._acts)
        self._keep(child, self.sim.clone_state(np.arange(m)))
        return obs[:m], rew[:m], (terminated | truncated)[:m]

    def _keep(self, slots: Array, state: dict[str, Array]) -> None:
        for name, part in state.items():
            self._kept[name][slots] = part

    def close(self) -> None:
        """Close the environments that planning steps, not the real ones."""
        self.sim.close()


class _SingleEnvs:
    """Snapshots of single environments, one after the other. A subclass says how they are kept."""

    def __init__(self, envs: Sequence[gym.Env[Any, Any]], slots: int) -> None:
        self.envs = envs
        self._kept: list[Any] = [None] * slots

    def take(self, slots: Array) -> None:
        """Store the state of environment i in `slots[i]`, [n] int64."""
        for env, slot in zip(self.envs, slots.tolist(), strict=True):
            self._kept[slot] = self._state_of(env)

    def gone(self, parent: int, child: int, action: int) -> tuple[Any, float, bool]:
        """Step from the state in slot `parent` by an action of the environment's numbers, and store where that leads in slot
        `child`.

        Returns:
            The observation as the environment gave it, the reward, and whether the episode has ended.

        Raises:
            BadOutput: the environment gives anything but five values, or a reward that is not one finite number.
        """
        env = self._at(parent)
        given = env.step(action)
        try:
            obs, rew, terminated, truncated, _ = given
        except (TypeError, ValueError):
            ExactCheck.five(given)
        gained = ExactCheck.number(rew)
        ExactCheck.finite(gained)
        self._kept[child] = self._left(env)
        return obs, gained, bool(terminated or truncated)

    def step(self, parent: Array, child: Array, action: Array) -> tuple[Array, Array, Array]:
        """Step from the states in slots `parent` [m] by actions [m] int64 of the environment's numbers, and store where that
        leads in slots `child` [m].

        Returns:
            Observations [m, ...], rewards [m] float64, whether the episode has ended [m] bool.
        """
        seen, gained, over = [], [], []
        for old, new, act in zip(parent.tolist(), child.tolist(), action.tolist(), strict=True):
            obs, rew, done = self.gone(old, new, act)
            seen.append(np.array(obs))  # a copy: the environment may draw its next observation into the same array
            gained.append(rew)
            over.append(done)
        return np.stack(seen), np.array(gained), np.array(over)

    def _state_of(self, env: gym.Env[Any, Any]) -> Any:
        """Return what is kept of an environment."""
        raise NotImplementedError

    def _at(self, slot: int) -> gym.Env[Any, Any]:
        """Return an environment in the state of a slot, which may be stepped."""
        raise NotImplementedError

    def _left(self, env: gym.Env[Any, Any]) -> Any:
        """Return what is kept of the environment that `_at` gave, and that was stepped."""
        return self._state_of(env)

    def close(self) -> None:
        """Close what planning steps, not the real environments."""
        self._kept = []


class EnvSnapshots(_SingleEnvs):
    """Snapshots of environments that can clone their state; `sim` is one made as they were, in which planning steps.

    Raises:
        TypeError: a layer of them cannot clone its state.
    """

    def __init__(self, envs: Sequence[gym.Env[Any, Any]], slots: int, sim: gym.Env[Any, Any]) -> None:
        super().__init__(envs, slots)
        self.sim = sim
        self.sim.reset(seed=0)
        try:
            clone_state(self.sim)
        except TypeError as error:
            raise TypeError(f"perfect model: {error}; or use a learned model (wrapper_type=0)") from error

    def _state_of(self, env: gym.Env[Any, Any]) -> Any:
        return clone_state(env)

    def _at(self, slot: int) -> gym.Env[Any, Any]:
        restore_state(self.sim, self._kept[slot])
        return self.sim

    def close(self) -> None:
        """Close the environments that planning steps, not the real ones."""
        super().close()
        self.sim.close()


class CopiedEnvs(_SingleEnvs):
    """Snapshots of environments that cannot clone their state: deep copies of the whole of them. It is slower, and what an
    environment keeps outside of Python is not copied with it."""

    def _state_of(self, env: gym.Env[Any, Any]) -> Any:
        return copied_env(env)

    def _at(self, slot: int) -> gym.Env[Any, Any]:
        return copied_env(self._kept[slot])

    def _left(self, env: gym.Env[Any, Any]) -> Any:
        return env


def copied_env(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Return a deep copy of an environment.

    Raises:
        TypeError: it has parts that cannot be copied.
    """
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise TypeError(f"{env} cannot clone its state, and it cannot be copied ({type(error).__name__}: {error}); write its "
                        "clone_state() and restore_state(state), see docs/own/environment.md, or leave out of it what cannot "
                        "be copied (__deepcopy__)") from error
