"""CarriedEpisode: an open episode that a checkpoint holds. It is tried out before an environment goes on with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from parl_like.data.storage.state_check import check_count
from parl_like.environment.factory import AnyEnv
from parl_like.environment.state import can_hold, clone_state, hold, restore_state, unhold
from parl_like.interfaces import ActingAgent
from parl_like.learning.explorers.uniform import masks_in, random_actions, random_legal
from parl_like.values.action_codec import ActionCodec
from parl_like.values.errors import AgentFailed, Stopped, TaskFailed, WrongCaller
from parl_like.values.plain import State
from parl_like.values.spec import Spec, as_space, leaves, specs_of

log = logging.getLogger(__name__)

PASSED = (Stopped, TaskFailed)
"""Errors that an environment which asks a task (`AgentHelper.ask`) may get from it: no failure of its own."""


class NothingWaits:
    """The rows of which an action is taken, and not yet all that came of it: one player has none."""

    def held(self) -> object:
        """Return the rows, as plain values and arrays."""
        return None

    def check(self, rows: Any) -> None:
        """Raise ValueError for what is nothing that `held` gives here."""
        if rows is not None:
            raise ValueError(f"rows that wait: expected none, got {rows!r:.60}")

    def take(self, rows: Any) -> None:
        """Take back what `held` gave, which has been checked."""


class CarriedEpisode:
    """An episode that a checkpoint interrupted, for the environment's next reset to go on with it.

    Args:
        env: The agent's, bare.
        failed: Returns the error for what the environment raised, from where it did so and the exception.

    Attributes:
        held: `env`, the environment's state; `rest`, what the agent's side goes on with; `waiting`, rows that wait; None: there
            is no such episode.
        left: Whether other episodes were played since it was held.
        waiting: The rows that wait for the rest of their step.
    """

    def __init__(self, env: AnyEnv, agent: ActingAgent, failed: Callable[[str, Exception], AgentFailed]) -> None:
        self._env, self._agent, self._failed = env, agent, failed
        self.waiting = NothingWaits()
        self.held: State | None = None
        self.left = False
        self._untried = False  # it could not be tried out yet

    def hold(self, info: dict[str, object], seen: Callable[[], tuple[object, object]]) -> bool:
        """Hold the open episode, with the memory of the agent's helpers; return whether its state can be cloned.

        Args:
            info: What came with the last step.
            seen: Returns the observation to act on next, and what was counted; TypeError: there is none.
        """
        self.held, self.left = None, False
        try:
            kept = {key: value for key, value in info.items() if can_hold(value)}
            env = hold(clone_state(self._env))
            obs, counted = seen()
            self.held = {"env": env, "rest": hold((obs, kept, self._memory(), counted)), "waiting": hold(self.waiting.held())}
        except (TypeError, gym.error.ResetNeeded):
            return False
        except Exception as error:
            raise self._failed(" raised in clone_state", error) from error
        return True

    def put_back(self, held: State | None, counted: tuple[object, ...]) -> None:
        """Make the environment what it was when the episode was held; the next reset goes on with it. Where it is another
        environment now (`restore_state` raises ValueError), or none can go on from there, the log says so and the next reset
        begins an episode, as it does with None.

        Raises:
            AgentFailed: the environment raised something else.
        """
        self.held = None
        if held is None:
            return
        try:
            self._try_out(held, counted)
        except TaskFailed as error:
            if not isinstance(error.__cause__, WrongCaller):
                raise self._failed(" raised in restore_state", error) from error
            # The environment asks a task that is in another process, which answers while the agent runs: at its next reset.
            self._untried = True
        except ValueError as error:
            self._cut_off(error)
            return
        self.held = held

    def take(self) -> State | None:
        """Return what is held, which is held no more."""
        held, self.held = self.held, None
        return held

    def fits(self, held: State, counted: tuple[object, ...]) -> bool:
        """Return whether the episode can go on; it is tried out now where `put_back` could not."""
        untried, self._untried = self._untried, False
        if untried:
            try:
                self._try_out(held, counted)
            except ValueError as error:
                self._cut_off(error)
                return False
        return True

    def rest_of(self, held: State) -> Any:
        """Return observation, info, memory and counts, after the environment's state where others were played since."""
        if self.left:
            self.left = False
            try:
                restore_state(self._env, unhold(held["env"]))
            except Exception as error:
                raise self._failed(" raised in restore_state", error) from error
        return *unhold(held["rest"]), unhold(held["waiting"])

    def _try_out(self, held: State, counted: tuple[object, ...]) -> None:
        try:
            with _refused():
                self.waiting.check(unhold(held["waiting"]))
            try_out(self._env, held, self._memory(), counted)
            restore_state(self._env, unhold(held["env"]))
        except (ValueError, *PASSED):
            raise
        except Exception as error:
            raise self._failed(" raised in restore_state", error) from error

    def _memory(self) -> dict[str, list[object]]:
        return {helper.title: list(helper.memory) for helper in self._agent.helpers.values()}

    def _cut_off(self, error: ValueError) -> None:
        log.warning("%s: the episode that the checkpoint holds is cut off, for it cannot go on here: %s", self._agent, error)


def try_out(env: Any, carried: Any, memory: dict[str, list[object]], counted: tuple[object, ...]) -> None:
    """Resets the environment, puts it back to where the episode was, and makes a step from there; the caller puts it back again.

    Args:
        env: The agent's, bare.
        carried: `env` and `rest`, as `CarriedEpisode` holds them.
        memory: What the agent's helpers remember now, by task. counted: what its environment's face counts.

    Raises:
        ValueError: this environment, or these helpers, have given nothing of the kind; or they cannot go on from there. What
            `restore_state` raises passes.
    """
    with _refused():
        state, (obs, info, remembered, counts) = unhold(carried["env"]), unhold(carried["rest"])
        _check_memory(remembered, memory)
        if not isinstance(info, dict) or len(counts) != len(counted):
            raise ValueError(f"expected an info and {len(counted)} counts, got {info!s:.60} and {counts!s:.60}")
        _check_counts(counts, counted)
    began = env.reset(seed=0)[0]  # some know their state only then
    restore_state(env, state)
    with _refused():
        expected = _specs(env, "observation_space", "obs")
        if not _fits(expected, began):  # an environment that does not keep to what it declares
            expected = {}
        _check(expected, obs)
        if specs := _specs(env, "action_space", "act"):
            _check(expected, env.step(_some_action(env, obs, specs))[0])


@contextmanager
def _refused() -> Iterator[None]:
    """Turn what goes wrong in the block into a ValueError."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _check_memory(saved: Mapping[str, list[Any]], own: Mapping[str, list[Any]]) -> None:
    for name in saved.keys() | own.keys():
        if len(saved[name]) != len(own[name]):
            raise ValueError(f"memory of task {name!r}: expected {len(own[name])} arrays, got {len(saved[name])}")
        for mine, theirs in zip(own[name], saved[name], strict=True):
            Spec(name, np.shape(mine), np.asarray(mine).dtype).convert(theirs)


def _check_counts(saved: tuple[object, ...], own: tuple[Any, ...]) -> None:
    """Returns, of which each may be several numbers, lengths, and of several environments which of them are done."""
    if isinstance(saved[0], bool) or not isinstance(saved[0], (Real, np.ndarray)):
        raise ValueError(f"return: expected a number or an array of them, got {saved[0]!s:.60}")
    returns = np.asarray(saved[0], np.float64)
    if returns.shape[: np.ndim(own[0])] != np.shape(own[0]):
        raise ValueError(f"return: expected {np.shape(own[0])}, got {returns.shape}")
    for mine, theirs in zip(own[1:], saved[1:], strict=True):
        if not isinstance(mine, np.ndarray):
            check_count(theirs, "length")
        elif not isinstance(theirs, np.ndarray) or (theirs.shape, theirs.dtype) != (mine.shape, mine.dtype):
            raise ValueError(f"lengths and ends: expected {mine.shape} {mine.dtype}, got {theirs!s:.60}")


def _some_action(env: Any, obs: object, specs: Mapping[str, Spec]) -> object:
    """Return an action of those that the observation's `mask` allows, if it has one; of a vector environment one for each."""
    if not (masks := masks_in(obs)):
        return as_space(env.action_space, {name: spec.legal(1)[0] for name, spec in specs.items()}, "act")
    rng = np.random.default_rng(0)
    if not isinstance(env, VectorEnv):
        return random_legal(env.action_space, rng, obs)
    space = env.single_action_space
    return ActionCodec(space).to_env(random_actions(space, rng, env.num_envs, masks))


def _specs(env: object, space: str, name: str) -> dict[str, Spec]:
    """Return the specs of what the environment declares; {} where it declares nothing, or something of no fixed shape."""
    try:
        return specs_of(getattr(env, space), name)
    except (AttributeError, TypeError):
        return {}


def _check(specs: dict[str, Spec], obs: object) -> None:
    found = dict(leaves(obs, "obs")) if specs else {}
    if found.keys() != specs.keys():
        raise ValueError(f"observation: expected {', '.join(specs)}, got {', '.join(found)}")
    for name, spec in specs.items():
        spec.check_bounds(spec.convert(found[name]))


def check_observation(env: object, obs: object) -> None:
    """Raise ValueError for what is no observation of an environment, or of a view of it, by its space."""
    _check(_specs(env, "observation_space", "obs"), obs)


def _fits(specs: dict[str, Spec], obs: object) -> bool:
    """Return whether the environment keeps to what it declares."""
    try:
        _check(specs, obs)
    except ValueError:
        return False
    return True
