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


class EnvSnapshots:
    """Snapshots of the single environments `envs`, one after the other; `sim` is one made as they were, in which planning steps.

    Raises:
        TypeError: a layer of them cannot clone its state.
    """

    def __init__(self, envs: Sequence[gym.Env[Any, Any]], slots: int, sim: gym.Env[Any, Any]) -> None:
        self.envs, self.sim = envs, sim
        self.sim.reset(seed=0)
        try:
            clone_state(self.sim)
        except TypeError as error:
            raise TypeError(f"perfect model: {error}; or use a learned model (wrapper_type=0)") from error
        self._kept: list[Any] = [None] * slots

    def take(self, slots: Array) -> None:
        """Store the state of environment i in `slots[i]`, [n] int64."""
        for env, slot in zip(self.envs, slots.tolist(), strict=True):
            self._kept[slot] = clone_state(env)

    def step(self, parent: Array, child: Array, action: Array) -> tuple[Array, Array, Array]:
        """Step from the states in slots `parent` [m] by actions [m] int64 of the environment's numbers, and store where that
        leads in slots `child` [m].

        Returns:
            Observations [m, ...], rewards [m] float64, whether the episode has ended [m] bool.
        """
        seen, gained, over = [], [], []
        for old, new, act in zip(parent.tolist(), child.tolist(), action.tolist(), strict=True):
            restore_state(self.sim, self._kept[old])
            obs, rew, terminated, truncated, _ = self.sim.step(act)
            self._kept[new] = clone_state(self.sim)
            seen.append(np.array(obs))  # a copy: the environment may draw its next observation into the same array
            gained.append(float(rew))
            over.append(bool(terminated or truncated))
        return np.stack(seen), np.array(gained), np.array(over)

    def close(self) -> None:
        """Close the environments that planning steps, not the real ones."""
        self.sim.close()


class CopiedEnvs:
    """Snapshots of single environments that cannot clone their state: deep copies of the whole of them. It is slower, and what an
    environment keeps outside of Python is not copied with it."""

    def __init__(self, envs: Sequence[gym.Env[Any, Any]], slots: int) -> None:
        self.envs = envs
        self._kept: list[Any] = [None] * slots

    def take(self, slots: Array) -> None:
        """Store a copy of environment i in `slots[i]`, [n] int64."""
        for env, slot in zip(self.envs, slots.tolist(), strict=True):
            self._kept[slot] = copy.deepcopy(env)

    def step(self, parent: Array, child: Array, action: Array) -> tuple[Array, Array, Array]:
        """Step copies of the environments in slots `parent` [m], see `EnvSnapshots.step`."""
        seen, gained, over = [], [], []
        for old, new, act in zip(parent.tolist(), child.tolist(), action.tolist(), strict=True):
            env = self._kept[new] = copy.deepcopy(self._kept[old])
            obs, rew, terminated, truncated, _ = env.step(act)
            seen.append(np.array(obs))
            gained.append(float(rew))
            over.append(bool(terminated or truncated))
        return np.stack(seen), np.array(gained), np.array(over)

    def close(self) -> None:
        """Forget the copies."""
        self._kept = []
