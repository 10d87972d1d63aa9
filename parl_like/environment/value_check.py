"""The check of what an environment returns, and what is done with values that are not finite or not of its space.

`OutputCheck` is for the environments of agents, `PlayersOutput` beside it for the form of several players', `ExactCheck` for
environments whose outputs are written into arrays of fixed dtypes. No other place judges what `reset` and `step` have returned;
who asks adds which environment it was.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Literal, NoReturn

import gymnasium as gym
import numpy as np

from parl_like.environment.factory import REWARD_WEIGHTS, reward_shape
from parl_like.values.action_codec import Unclipped
from parl_like.values.errors import GYMNASIUM
from parl_like.values.spec import Spec, SpecError, leaves, nest, specs_of

OLD = "; make environments of the old gym API with parl_like.envs.make.make_env, or wrap them in its OldStyle"
OLD_GYM = f"; {GYMNASIUM}{OLD}"


class BadOutput(Exception):
    """An environment returned something else than its spaces and gymnasium promise: what, and what was expected, in words."""


def contains(space: gym.Space[object], act: Any) -> bool:
    """As `space.contains`, but a number is an array of shape (), and only shape and bounds of arrays count."""
    if isinstance(space, gym.spaces.Box):
        value = np.asarray(act)
        return value.shape == space.shape and (isinstance(space, Unclipped) or bool(
            (value >= space.low).all() and (value <= space.high).all()))
    if isinstance(space, gym.spaces.Dict):
        return act.keys() == space.spaces.keys() and all(contains(part, act[name]) for name, part in space.spaces.items())
    if isinstance(space, gym.spaces.Tuple):
        return isinstance(act, (tuple, list)) and len(act) == len(space.spaces) and all(map(contains, space.spaces, act))
    return bool(space.contains(act))


def described(value: object) -> str:
    """A value as messages show it: arrays by their shape, text quoted, anything long cut short."""
    if isinstance(value, np.ndarray) and value.size > 1:
        return f"an array of shape {value.shape}"
    if isinstance(value, (tuple, list)):
        return f"{len(value)} values, a {type(value).__name__} ({', '.join(type(one).__name__ for one in value[:5])})"
    return f"the text {value!r:.60}" if isinstance(value, str) else "None" if value is None else f"{value!r:.60}"


class OutputCheck:
    """The check of an agent's environment, single or vector. What works as a number, a flag or a mapping passes.

    Observations and rewards of the right form are looked at here where bad values are dropped or replaced; else tasks and buffers
    refuse what does not fit them.

    Args:
        env: Its `observation_space` and, where rewards are vectors, `reward_space` are what is declared. What has no fixed shape
            is not looked at.
        on_bad_value: 'replace': numbers that are not finite become 0, and those outside the bounds the nearest legal ones.
            'drop': they are refused. 'raise': nobody asks here.

    Attributes:
        judges: Whether values are looked at. mends: Whether they are replaced.
    """

    def __init__(self, env: Any, on_bad_value: Literal["raise", "drop", "replace"]) -> None:
        self._env, self.judges, self.mends = env, on_bad_value != "raise", on_bad_value == "replace"

    @cached_property
    def specs(self) -> dict[str, Spec]:
        """The specs of an observation, by flat name; none of a space without a fixed shape."""
        try:
            return specs_of(self._env.observation_space, "obs")
        except (AttributeError, TypeError):
            return {}

    @cached_property
    def rewards(self) -> Spec:
        """The spec of a reward."""
        return Spec("rew", reward_shape(self._env), np.dtype(np.float64))

    # ------------------------------------------------------------------------------------------------------------------- form

    def pair(self, given: object) -> tuple[object, object]:
        """Return what a reset gave. Raises BadOutput where it is no pair."""
        if isinstance(given, (tuple, list)) and len(given) == 2:
            return given[0], given[1]
        raise BadOutput(f"gave {described(given)}; expected the pair (observation, info), info a dict: `return obs, {{}}`"
                        f"{OLD_GYM}")

    def info(self, info: object) -> None:
        """Raise BadOutput for an info that is no mapping. A dict is not asked for: wrappers have kinds of their own."""
        if not isinstance(info, Mapping):
            raise BadOutput(f"gave the info {described(info)}; expected a dict, {{}} where there is nothing to say")

    def reward(self, rew: Any) -> None:
        """Raise BadOutput for a reward that is None, or of another shape than declared."""
        if rew is None:
            raise BadOutput("gave the reward None; expected a number")
        if np.size(rew) > 1 and np.shape(rew) != self.rewards.shape:
            raise BadOutput(f"gave a reward of shape {np.shape(rew)}, and declares {self.rewards.shape or 'a number'}; "
                            f"{REWARD_WEIGHTS} and give it a `reward_space`")

    def outcome(self, rew: object, terminated: Any, truncated: Any) -> NoReturn:
        """Raise BadOutput for a reward that could not be added up, or flags that are neither true nor false."""
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if np.ndim(flag):
                raise BadOutput(f"gave {name} = {described(flag)}; expected True or False")
        raise BadOutput(f"gave the reward {described(rew)}; expected a number")

    def flag_rows(self, terminated: Any, truncated: Any, n: int) -> None:
        """Raise BadOutput where flags of n environments are not one each."""
        if np.shape(np.logical_or(terminated, truncated)) != (n,):
            raise BadOutput(f"gave terminated and truncated of shapes {np.shape(terminated)} and {np.shape(truncated)}; expected "
                            f"({n},), a flag for each environment")

    def reward_rows(self, rew: Any, n: int) -> None:
        """Raise BadOutput where rewards of n environments are not one each, or could not be added up."""
        if np.shape(rew) != (n,):
            raise BadOutput(f"gave rewards of shape {np.shape(rew)}; expected ({n},), a number for each environment: "
                            f"{REWARD_WEIGHTS}")
        raise BadOutput(f"gave the rewards {rew!r:.100}; expected a number for each environment")

    # ------------------------------------------------------------------------------------------------------------------ values

    def observation(self, obs: object) -> Any:
        """`obs` itself where it is as declared, else mended.

        Raises:
            SpecError: what it is not.
        """
        if not self.specs:
            return obs
        flat = dict(leaves(obs, "obs"))
        if flat.keys() != self.specs.keys():
            raise SpecError(f"field 'obs': expected {', '.join(self.specs)}, got {', '.join(flat) or 'nothing'}; give the keys "
                            "of the space")
        mended = {name: self.value(spec, flat[name]) for name, spec in self.specs.items()}
        return obs if all(mended[name] is flat[name] for name in flat) else nest(mended)["obs"]

    def value(self, spec: Spec, value: object) -> Any:
        """The same for one array."""
        if type(value) is float and math.isfinite(value) and spec is self.rewards and not spec.shape:
            return value  # what nearly all rewards are
        array = value
        try:
            numbers = np.asarray(value)
        except (TypeError, ValueError):
            numbers = spec.convert(value)  # which says what is wrong with it
        if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
            if not self.mends:
                raise spec.error(f"{value!r:.60}", "give finite numbers")
            array = np.nan_to_num(numbers, nan=0, posinf=0, neginf=0)
        row = spec.convert(array)
        if spec.low is not None and not ((row >= spec.low) & (row <= spec.high)).all():
            if not self.mends:
                raise spec.error(f"{value!r:.60}", "stay within the bounds of the space")
            array = np.clip(row, spec.low, spec.high).astype(row.dtype)
        return array


class ExactCheck:
    """The check of an environment whose outputs are written into arrays: flags are bools, an info is a dict, and a reward is one
    finite number. (Observations: `ColumnLayout.checked` and `nan`, which know the arrays.)"""

    @staticmethod
    def pair(given: object) -> tuple[object, dict[str, object]]:
        """Return what a reset gave. Raises BadOutput where it is no observation with an info dict."""
        if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[1], dict):
            raise BadOutput("reset must return (observation, info dict)" + OLD)
        return given

    @staticmethod
    def five(given: object) -> NoReturn:
        """Raise BadOutput for what a step gave and could not be divided in five."""
        got = f"{len(given)} values" if isinstance(given, (tuple, list)) else type(given).__name__
        raise BadOutput(f"step must return (observation, reward, terminated, truncated, info), not {got}{OLD}") from None

    @staticmethod
    def flags(terminated: object, truncated: object) -> None:
        """Raise BadOutput where one is no bool."""
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, (bool, np.bool_)):
                raise BadOutput(f"{name} is {flag!r}, a {type(flag).__name__}; expected a bool")

    @staticmethod
    def number(rew: Any) -> float:
        """Return the reward. Raises BadOutput where it is not one number."""
        is_number = isinstance(rew, (int, float, np.number, np.bool_))
        if is_number or (isinstance(rew, np.ndarray) and rew.ndim == 0 and rew.dtype.kind in "buif"):
            return float(rew)
        shape = f" of shape {rew.shape}" if isinstance(rew, np.ndarray) else ""
        raise BadOutput(f"the reward is a {type(rew).__name__}{shape}; expected one number")

    @staticmethod
    def finite(rew: float) -> None:
        """Raise BadOutput for a reward that is not finite."""
        if not math.isfinite(rew):
            raise BadOutput(f"the reward is {rew}; expected a finite number")

    @staticmethod
    def info(info: object) -> None:
        """Raise BadOutput for an info that is no dict."""
        if not isinstance(info, dict):
            raise BadOutput(f"info is a {type(info).__name__}; expected a dict")


def takes_option(function: Callable[..., object], name: str) -> bool:
    """Return whether the function can be called with this keyword, as far as its signature is known."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    return name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


class PlayersOutput:
    """The check of an environment of several players, as PettingZoo defines them: who is there, and that everybody is told."""

    @staticmethod
    def pair(given: object) -> tuple[Any, Any]:
        """Return what the reset of a parallel environment gave. Raises BadOutput where it is no pair."""
        if isinstance(given, tuple) and len(given) == 2:
            return given
        raise BadOutput(f"gave {described(given)} in reset; expected the pair (observations, infos), two dicts by player")

    @staticmethod
    def known(there: Iterable[str], possible: Iterable[str]) -> None:
        """Raise BadOutput for players who are there and not among those that may be."""
        if strange := [player for player in there if player not in possible]:
            raise BadOutput(f"has the players {', '.join(map(repr, strange))}, who are not among its possible_agents "
                            f"{', '.join(possible)}")

    @staticmethod
    def told(what: str, players: Iterable[str], *given: Mapping[str, object]) -> None:
        """Raise BadOutput where one of these players is missing in a dict by player."""
        if missing := [player for player in players if not all(player in one for one in given)]:
            raise BadOutput(f"gave no {what} for {', '.join(map(repr, missing))}, who is there")

    @staticmethod
    def number(player: str, rew: Any) -> float:
        """Return a player's reward. Raises BadOutput where it is not one number."""
        try:
            return float(rew)
        except (TypeError, ValueError):
            raise BadOutput(f"gave player {player!r} the reward {described(rew)}; expected a number") from None

    @staticmethod
    def flagged(acted: Iterable[str], there: Iterable[str], *flags: Mapping[str, object]) -> None:
        """Raise BadOutput where a player that acted in a parallel environment is gone, and none of its flags says so."""
        if gone := [player for player in acted if player not in there and not any(one[player] for one in flags)]:
            raise BadOutput(f"has let {', '.join(gone)} go without terminated or truncated, so how the episode ended is unknown; "
                            "a player that leaves `agents` needs one of the two")

    @staticmethod
    def stepped(before: Iterable[str], after: Iterable[str], last_turn: str | None = None) -> None:
        """Raise BadOutput where a step of an AEC environment let others go than the player who took its last turn in it, or kept
        that one."""
        there = set(after)
        if last_turn in there:
            raise BadOutput(f"keeps {last_turn!r} after its last turn; agents that are done must leave `agents` with their step "
                            "of None")
        if gone := sorted(set(before) - there - {last_turn or ""}):
            raise BadOutput(f"has let {', '.join(gone)} go without a last turn, so their last rewards are unknown; agents that "
                            "are done must be stepped once more, with None")
