"""Wrappers of one environment, and its state: `clone_state(env)` and `restore_state(env, state)` through a stack of wrappers."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from parl_like.data.transforms import Moments
from parl_like.env_source import write_gif
from parl_like.spec import Array

MAX_ACTIONS = 100_000  # of a discretised space


class _Normalizer(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """What the two below share: statistics, when they change, how they are saved."""

    def __init__(self, env: gym.Env[Any, Any], clip: float | None, moments: Moments | None, update: bool, **more: Any) -> None:
        RecordConstructorArgs.__init__(self, clip=clip, moments=moments, update=update, **more)
        super().__init__(env)
        if clip is not None and not clip > 0:
            raise ValueError(f"{type(self).__name__}: clip is {clip}; expected above 0, or None")
        self.clip, self.update = clip, update
        self.moments = Moments() if moments is None else moments

    @property
    def spec(self) -> Any:  # type: ignore[override]  # as gymnasium's own wrappers do
        """With statistics that change, the same seed does not give the same numbers again, and the specification says so."""
        spec = super().spec
        if spec is not None and self.update:
            spec = copy.copy(spec)
            spec.nondeterministic = True
        return spec

    def state_dict(self) -> dict[str, Any]:
        """The statistics."""
        return self.moments.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over saved statistics. Raises ValueError: moments of another kind."""
        self.moments.load_state_dict(state)


class NormalizeObservation(_Normalizer):
    """Observations in standard deviations from their mean, number by number, float32 [*shape]. An observation counts before it is
    changed.

    For models that are trained with helpers there is `ObservationNormalizer`, which leaves raw rows in the buffer; this is for
    whoever wants a normalised environment.

    Args:
        env: Its observations are a Box.
        clip: Results are cut to ± clip; None: not at all.
        moments: The statistics; give several environments the same object and they share it. None: new ones.
        update: Whether they change; False in evaluation.

    Raises:
        ValueError: no Box, or `clip` is not above 0. In reset and step: an observation is not finite.
    """

    def __init__(
        self, env: gym.Env[Any, Any], clip: float | None = 10.0, moments: Moments | None = None, update: bool = True,
    ) -> None:
        super().__init__(env, clip, moments, update)
        bound = math.inf if clip is None else clip
        shape = _box(self, env.observation_space, "observations").shape
        self.observation_space = gym.spaces.Box(-bound, bound, shape, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._normal(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, *rest = self.env.step(action)
        return self._normal(obs), *rest

    def _normal(self, obs: Any) -> Any:
        rows = np.asarray(obs)[None]
        if self.update:
            self.moments.update(rows)
        return self.moments.normalize(rows, self.clip)[0].astype(np.float32)


class NormalizeReward(_Normalizer):
    """Rewards divided by the standard deviation of the discounted return so far, Engstrom et al. 2020. Their sign stays.

    The return counts before the reward is changed; it begins at 0 with each episode. Info `raw_reward`: the reward before this,
    or before the innermost wrapper that tells it.

    Args:
        env: Environment.
        discount: Of the return, in [0, 1].
        clip, moments, update: As in `NormalizeObservation`.

    Raises:
        ValueError: an argument does not fit. In step: the reward is not finite.
    """

    def __init__(
        self, env: gym.Env[Any, Any], discount: float = 0.99, clip: float | None = 10.0, moments: Moments | None = None,
        update: bool = True
    ) -> None:
        super().__init__(env, clip, moments, update, discount=discount)
        if not 0 <= discount <= 1:
            raise ValueError(f"NormalizeReward: discount is {discount}; expected a number in [0, 1]")
        self.discount, self._return = discount, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._return = 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, raw, terminated, truncated, info = self.env.step(action)
        self._return = self._return * self.discount + float(raw)
        if self.update:
            self.moments.update(np.array([self._return]))
        reward = float(self.moments.normalize(np.array([float(raw)]), self.clip, center=False)[0])
        return obs, reward, terminated, truncated, {"raw_reward": float(raw)} | info


class ActionRepeat(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Takes each action `n` times, less where the episode ends. Rewards are summed; observation and info are those of the last
    time.

    Info `repeats`: how often it was taken.

    Raises:
        ValueError: `n` is below 1.
    """

    def __init__(self, env: gym.Env[Any, Any], n: int) -> None:
        RecordConstructorArgs.__init__(self, n=n)
        super().__init__(env)
        if n < 1:
            raise ValueError(f"ActionRepeat: n is {n}; expected at least 1")
        self.n = n

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        total: Any = 0.0
        repeats, terminated, truncated = 0, False, False
        while repeats < self.n and not (terminated or truncated):
            # Copies: the environment may change the action in place, and write its next reward into the same array.
            obs, reward, terminated, truncated, info = self.env.step(copy.copy(action))
            total, repeats = total + reward, repeats + 1  # a vector reward adds up, too
        return obs, total, terminated, truncated, info | {"repeats": repeats}


class FrameStack(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """The last `n` observations, oldest first: [n, *shape]. An episode begins with its first observation repeated.

    Args:
        env: Its observations are a Box.
        n: At least 1.

    Raises:
        ValueError: no Box, or `n` is below 1.
    """

    def __init__(self, env: gym.Env[Any, Any], n: int = 4) -> None:
        RecordConstructorArgs.__init__(self, n=n)
        super().__init__(env)
        space = _box(self, env.observation_space, "observations")
        if n < 1:
            raise ValueError(f"FrameStack: n is {n}; expected at least 1")
        self.n = n
        low, high = (np.repeat(x[None], n, 0) for x in (space.low, space.high))
        self.observation_space = gym.spaces.Box(low, high, dtype=cast(Any, space.dtype))
        self._frames: deque[Array] = deque(maxlen=n)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._frames.extend([np.array(obs)] * self.n)  # a copy: the environment may write into its own array again
        return np.stack(self._frames), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._frames.append(np.array(obs))
        return np.stack(self._frames), reward, terminated, truncated, info

    def own_state(self) -> dict[str, Any]:
        if not self._frames:
            raise gym.error.ResetNeeded("FrameStack: reset before clone_state")
        return {"frames": tuple(self._frames)}  # never written to, so they may be shared

    def restore_own(self, state: Mapping[str, Any]) -> None:
        if len(state["frames"]) != self.n:
            raise ValueError(f"FrameStack: the state holds {len(state['frames'])} frames; expected {self.n}: make the "
                             "environment as it was")
        self._frames.extend(state["frames"])


class Discretize(gym.ActionWrapper[Any, Any, Any], RecordConstructorArgs):
    """A Box of actions as a choice among evenly spaced values, both bounds among them; of one value only, the middle.

    Args:
        env: Its actions are a Box with finite bounds.
        bins: Values of each number, or a list with one entry for each, in the order of the flat action.
        joint: One choice of all combinations, Discrete(∏ bins), the last number changing fastest; False: MultiDiscrete(bins).

    Raises:
        ValueError: no such Box, a number of bins below 1 or too few of them, or more than 100,000 combinations.
    """

    def __init__(self, env: gym.Env[Any, Any], bins: int | Sequence[int] = 3, joint: bool = True) -> None:
        RecordConstructorArgs.__init__(self, bins=bins, joint=joint)
        super().__init__(env)
        space = _box(self, env.action_space, "actions")
        low, high = space.low.ravel().astype(np.float64), space.high.ravel().astype(np.float64)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ValueError(f"Discretize: the actions of {env} are {space}; expected finite bounds")
        counts = [int(bins)] * low.size if isinstance(bins, (int, np.integer)) else [int(n) for n in bins]
        if len(counts) != low.size or min(counts, default=0) < 1:
            raise ValueError(f"Discretize: bins is {bins!r}; expected {low.size} numbers of at least 1")
        if joint and math.prod(counts) > MAX_ACTIONS:
            raise ValueError(f"Discretize: {math.prod(counts)} combinations; expected at most {MAX_ACTIONS}: fewer bins, or "
                             "joint=False")
        self._counts, self._shape, self._dtype = counts, space.shape, space.dtype
        self._values = [np.linspace(a, b, n) if n > 1 else np.array([(a + b) / 2])
                        for a, b, n in zip(low, high, counts, strict=True)]
        self._joint = joint
        self.action_space = gym.spaces.Discrete(math.prod(counts)) if joint else gym.spaces.MultiDiscrete(counts)

    def action(self, action: Any) -> Array:
        """The environment's own action of a choice."""
        if not self.action_space.contains(action):
            raise ValueError(f"Discretize: action is {action!r}; expected one of {self.action_space}")
        choices = np.unravel_index(int(action), self._counts) if self._joint else action
        return np.array([values[i] for values,
                         i in zip(self._values, choices, strict=True)]).reshape(self._shape).astype(self._dtype)


class NoisyObservation(gym.ObservationWrapper[Any, Any, Any], RecordConstructorArgs):
    """Appends `n` fresh standard normal numbers, from the environment's own generator, to every observation vector."""

    def __init__(self, env: gym.Env[Any, Any], n: int) -> None:
        RecordConstructorArgs.__init__(self, n=n)
        super().__init__(env)
        if n < 0 or len(env.observation_space.shape or ()) != 1:
            raise ValueError(f"NoisyObservation: n is {n}, observations {env.observation_space}; expected n ≥ 0 and a vector")
        self.n = n
        size = env.observation_space.shape[0]  # type: ignore[index]
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size + n,), np.float32)

    def observation(self, observation: Any) -> Any:
        return np.concatenate([observation, self.unwrapped.np_random.standard_normal(self.n)]).astype(np.float32)

    def own_state(self) -> dict[str, Any]:
        """The generator: environments whose own chance comes from elsewhere do not have it in their state."""
        return {"rng": self.unwrapped.np_random.bit_generator.state}

    def restore_own(self, state: Mapping[str, Any]) -> None:
        self.unwrapped.np_random.bit_generator.state = state["rng"]


class RecordVideo(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Writes episodes as GIF files, `folder/name-000012.gif` for the 12th reset, counted from 0. Frames are held until the
    episode ends.

    An episode that is left early is written at the next reset or at `close`. A restored state is simply the next frame.

    Args:
        env: Its render mode is "rgb_array".
        folder: Is made if it is not there; files of the same name are replaced.
        when: Number of the episode → whether it is recorded. None: all.
        name: How the file names begin.
        fps: Frames per second; a GIF counts in 1/100 s. None: the environment's `render_fps`, else 30.
        max_frames: No more of an episode are kept.

    Raises:
        ValueError: another render mode, or a number that is not above 0.
    """

    def __init__(
        self, env: gym.Env[Any, Any], folder: str | Path, when: Callable[[int], bool] | None = None, name: str = "episode",
        fps: float | None = None, max_frames: int = 10_000,
    ) -> None:  # fmt: skip
        RecordConstructorArgs.__init__(self, folder=folder, when=when, name=name, fps=fps, max_frames=max_frames)
        super().__init__(env)
        fps = float(env.metadata.get("render_fps") or 30) if fps is None else fps
        if env.render_mode != "rgb_array":
            raise ValueError(f"RecordVideo: the render mode of {env} is {env.render_mode!r}; make it with "
                             "render_mode='rgb_array'")
        if not fps > 0 or max_frames < 1:
            raise ValueError(f"RecordVideo: fps is {fps}, max_frames {max_frames}; expected both above 0")
        self.folder, self.when, self.name, self.fps, self.max_frames = Path(folder), when, name, fps, max_frames
        self.episode = -1
        self._images: list[Any] = []
        self._recording = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._write()
        out = self.env.reset(seed=seed, options=options)
        self.episode += 1
        self._recording = self.when is None or bool(self.when(self.episode))
        self._film()
        return out

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        out = self.env.step(action)
        self._film()
        if out[2] or out[3]:
            self._write()
        return out

    def close(self) -> None:
        try:
            self._write()
        finally:
            self.env.close()

    def _film(self) -> None:
        if self._recording and len(self._images) < self.max_frames:
            self._images.append(np.array(self.env.render(), np.uint8))

    def _write(self) -> None:
        images, self._images, self._recording = self._images, [], False
        if images:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_gif(self.folder / f"{self.name}-{self.episode:06d}.gif", images, self.fps)


# ---- state

# What layers remember, by class: exactly these classes, for a subclass may remember more. () is: nothing.
_CONTROL, _TEXT, _WRAPPERS = "gymnasium.envs.classic_control.", "gymnasium.envs.toy_text.", "gymnasium.wrappers."
_OURS = "parl_like.envs."
BARE = {
    _CONTROL + "cartpole.CartPoleEnv": ("state", "steps_beyond_terminated"),
    _CONTROL + "mountain_car.MountainCarEnv": ("state",),
    _CONTROL + "continuous_mountain_car.Continuous_MountainCarEnv": ("state",),
    _CONTROL + "acrobot.AcrobotEnv": ("state",),
    _CONTROL + "pendulum.PendulumEnv": ("state", "last_u"),
    _TEXT + "frozen_lake.FrozenLakeEnv": ("s", "lastaction"),
    _TEXT + "cliffwalking.CliffWalkingEnv": ("s", "lastaction"),
    _TEXT + "taxi.TaxiEnv": ("s", "lastaction", "fickle_step", "taxi_orientation"),
}
WRAPPERS = {
    _WRAPPERS + "common.TimeLimit": ("_elapsed_steps",),
    _WRAPPERS + "common.OrderEnforcing": ("_has_reset",),
    _WRAPPERS + "common.Autoreset": ("autoreset",),
    _WRAPPERS + "common.PassiveEnvChecker": ("checked_reset", "checked_step", "checked_data_reuse", "_previous_data"),
    _WRAPPERS + "common.RecordEpisodeStatistics": ("episode_count", "episode_returns", "episode_lengths", "episode_start_time"),
    _WRAPPERS + "transform_action.ClipAction": (),
    _WRAPPERS + "transform_action.RescaleAction": (),
    _WRAPPERS + "transform_reward.ClipReward": (),
    _WRAPPERS + "transform_observation.FlattenObservation": (),
    _OURS + "make.TimeLimit": ("elapsed",), _OURS + "make.ActionBounds": (), _OURS + "wrappers.NormalizeReward": ("_return",),
    **{f"{_OURS}wrappers.{name}": () for name in ("NormalizeObservation", "ActionRepeat", "Discretize", "RecordVideo")},
}
REFUSED = {"ale_py.env.AtariEnv": "its state lacks the action that sticks; use parl_like.envs.atari.Atari"}


def clone_state(env: gym.Env[Any, Any]) -> dict[str, Any]:
    """Everything in an environment and its wrappers that what comes next depends on: restore it, take the same actions, and
    observations, rewards, ends and later episodes are the same. It stays as it is whatever the environment does, and may be
    restored many times.

    A bare environment takes part by `clone_state()` and `restore_state(state)`, a wrapper by `own_state()` and
    `restore_own(state)`, which are about the wrapper alone; those in `BARE` and `WRAPPERS` are known. Not in the
    state: statistics of normalisation, which are learned and shared (freeze them for equal numbers), `action_space.sample()`, and
    what was recorded.

    Returns:
        `layers`: (class, state) from the outermost wrapper to the bare environment.

    Raises:
        TypeError: a layer is not known, by name. gymnasium.error.ResetNeeded: it was never reset.
    """
    return {"layers": [(_name(layer), _part(layer)) for layer in _layers(env)]}


def restore_state(env: gym.Env[Any, Any], state: Mapping[str, Any]) -> None:
    """Goes back to a state, also one of another environment that was made alike.

    Raises:
        ValueError: the state is of other layers, then nothing is changed; or a layer refuses its part.
    """
    layers = list(_layers(env))
    names, saved = [_name(layer) for layer in layers], [name for name, _ in state["layers"]]
    if names != saved:
        raise ValueError(f"restore_state: the state is of {_chain(saved)}; expected {_chain(names)}: make the environment as it "
                         "was")
    for layer, (name, part) in zip(reversed(layers), reversed(state["layers"]), strict=True):
        if isinstance(layer, gym.Wrapper) and name not in WRAPPERS:
            cast(Any, layer).restore_own(part)
        elif name not in BARE and name not in WRAPPERS:
            cast(Any, layer).restore_state(part)
        else:
            for key, value in copy.deepcopy(part["values"]).items():
                setattr(layer, key, value)
            if name in BARE:
                layer.np_random.bit_generator.state = part["rng"]
                layer._np_random_seed = part["seed"]


def _layers(env: Any) -> Iterator[Any]:
    """The outermost wrapper first, the bare environment last."""
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


def _name(layer: Any) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


def _chain(names: Sequence[str]) -> str:
    return " → ".join(name.rpartition(".")[2] for name in names)


def _part(layer: Any) -> Any:
    name = _name(layer)
    keys = BARE.get(name, WRAPPERS.get(name))
    if keys is not None:
        # The first that a bare environment remembers is None until its reset, or not there.
        first = keys[0] if name in BARE else None
        if missing := [key for key in keys if not hasattr(layer, key) or key == first and getattr(layer, key) is None]:
            raise gym.error.ResetNeeded(f"clone_state: {name} has no {', '.join(missing)} yet; reset it first")
        part: dict[str, Any] = {"values": {key: copy.deepcopy(getattr(layer, key)) for key in keys}}
        if name in BARE:
            part |= {"rng": layer.np_random.bit_generator.state, "seed": layer.np_random_seed}
        return part
    pair = ("own_state", "restore_own") if isinstance(layer, gym.Wrapper) else ("clone_state", "restore_state")
    if name in REFUSED or not all(callable(getattr(layer, method, None)) for method in pair):
        why = REFUSED.get(name, f"give it the methods {pair[0]} and {pair[1]}")
        raise TypeError(f"clone_state: what {name} remembers is not known; {why}")
    return getattr(layer, pair[0])()


def _box(wrapper: gym.Env[Any, Any], space: gym.Space[Any], what: str) -> gym.spaces.Box:
    if not isinstance(space, gym.spaces.Box):
        raise ValueError(f"{type(wrapper).__name__}: {what} are {space}; expected a Box")
    return space
