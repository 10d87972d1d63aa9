"""Wrappers of one environment. Its state, `clone_state(env)` and `restore_state(env, state)`, is in
`parl_like.environment.state`."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from parl_like.data.transforms import Moments
from parl_like.environment.state import clone_state as clone_state
from parl_like.environment.state import restore_state as restore_state
from parl_like.values.copying import copied
from parl_like.values.limits import check_array
from parl_like.values.plain import State
from parl_like.values.spec import Array

MAX_ACTIONS = 100_000  # of a discretised space


class NormalizeObservation(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
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
        RecordConstructorArgs.__init__(self, clip=clip, moments=moments, update=update)
        super().__init__(env)
        if clip is not None and not clip > 0:
            raise ValueError(f"NormalizeObservation: clip is {clip}; expected above 0, or None")
        self.clip, self.update = clip, update
        self.moments = Moments() if moments is None else moments
        bound = math.inf if clip is None else clip
        shape = _box(self, env.observation_space, "observations").shape
        self.observation_space = gym.spaces.Box(-bound, bound, shape, np.float32)

    @property
    def spec(self) -> Any:  # type: ignore[override]  # as gymnasium's own wrappers do
        """With statistics that change, the same seed does not give the same numbers again, and the specification says so."""
        spec = super().spec
        if spec is not None and self.update:
            spec = copy.copy(spec)
            spec.nondeterministic = True
        return spec

    def state_dict(self) -> State:
        """The statistics."""
        return self.moments.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Takes over saved statistics. Raises ValueError: moments of another kind."""
        self.moments.load_state_dict(state)

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


class RewardWeights(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """One number of a vector of rewards [k], as environments of several objectives give it: Σ weights · rewards.

    Info `reward_parts`: the vector; at the end of an episode also `return_parts`, the sums, which a robot's metrics show as
    `return/part_0`, … .

    Args:
        weights: A number for each reward.

    Raises:
        ValueError: they are no list of finite numbers; or, in step, there are more or fewer rewards.
    """

    def __init__(self, env: gym.Env[Any, Any], weights: Sequence[float]) -> None:
        RecordConstructorArgs.__init__(self, weights=weights)
        super().__init__(env)
        self.weights = np.asarray(weights, np.float64)
        if self.weights.ndim != 1 or not self.weights.size or not np.isfinite(self.weights).all():
            raise ValueError(f"RewardWeights: weights are {weights!r}; expected a finite number for each kind of reward")
        self.reward_space = gym.spaces.Box(-np.inf, np.inf, (), np.float64)
        self._sums = np.zeros(len(self.weights))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._sums = np.zeros(len(self.weights))
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, raw, terminated, truncated, info = self.env.step(action)
        parts = np.array(raw, np.float64)  # a copy: the environment may write its next rewards into the same array
        if parts.shape != self.weights.shape:
            raise ValueError(f"RewardWeights: the reward has shape {parts.shape}; expected {self.weights.shape}, one for each of "
                             f"the weights {self.weights.tolist()}")
        self._sums = self._sums + parts
        info = info | {"reward_parts": parts}
        if terminated or truncated:
            info["return_parts"] = self._sums
        return obs, float(self.weights @ parts), terminated, truncated, info

    def own_state(self) -> dict[str, Any]:
        """Return the sums of the running episode's rewards, one of each part."""
        return {"sums": self._sums.copy()}

    def restore_own(self, state: Mapping[str, Any]) -> None:
        """Go back to what `own_state` returned."""
        self._sums = state["sums"]


class ActionRepeat(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Takes each action `n` times, less where the episode ends. Rewards are summed; observation and info are those of the last
    time.

    Info `repeats`: how often it was taken, which a robot counts as its 'time_steps'.

    Args:
        n: Read at each step, so that what chooses the action may choose it: `env.set_wrapper_attr("n", 4)`.
        discount: The reward of the k-th time, from 0, is scaled by its k-th power.
        keep_frames: Puts the observations of all times into info `frames`.

    Raises:
        ValueError: `n` is below 1.
    """

    def __init__(self, env: gym.Env[Any, Any], n: int, discount: float = 1.0, keep_frames: bool = False) -> None:
        RecordConstructorArgs.__init__(self, n=n, discount=discount, keep_frames=keep_frames)
        super().__init__(env)
        if n < 1:
            raise ValueError(f"ActionRepeat: n is {n}; expected at least 1")
        self.n, self.discount, self.keep_frames = n, discount, keep_frames

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        total: Any = 0.0
        repeats, terminated, truncated, frames = 0, False, False, []
        while repeats < self.n and not (terminated or truncated):
            # Copies: the environment may change the action in place, and write its next reward into the same array.
            obs, reward, terminated, truncated, info = self.env.step(copied(action))
            total, repeats = total + self.discount**repeats * reward, repeats + 1  # type: ignore[operator]  # a vector adds up, too
            if self.keep_frames:
                frames.append(copied(obs))
        return obs, total, terminated, truncated, info | {"repeats": repeats} | ({"frames": frames} if self.keep_frames else {})


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
        check_array(f"Discretize: bins is {bins!r:.60}", sum(counts), dtype=np.float64)
        self._counts, self._shape, self._dtype = counts, space.shape, space.dtype
        self._values = [np.linspace(a, b, n) if n > 1 else np.array([(a + b) / 2])
                        for a, b, n in zip(low, high, counts, strict=True)]
        self._joint = joint
        self.action_space = gym.spaces.Discrete(math.prod(counts)) if joint else gym.spaces.MultiDiscrete(counts)

    def action(self, action: Any) -> Array:
        """The environment's own action of a choice.

        Raises:
            ValueError: action is none of the choices.
        """
        if not self.action_space.contains(action):
            raise ValueError(f"Discretize: action is {action!r}; expected one of {self.action_space}")
        choices = np.unravel_index(int(action), self._counts) if self._joint else action
        return np.array([values[i] for values,
                         i in zip(self._values, choices, strict=True)]).reshape(self._shape).astype(self._dtype)


class MultiDiscreteToDiscrete(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Several choices at once as one choice among all combinations, Discrete(∏ nvec), the last choice changing fastest.

    The part `mask` of a Dict observation, the alternatives of all choices side by side, becomes one of combinations: legal where
    each choice is. A choice that allows nothing allows everything, as elsewhere.

    Args:
        env: Its actions are MultiDiscrete.

    Raises:
        ValueError: no such space, more than 100,000 combinations, or a mask of another shape; in step, no such choice.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        space = env.action_space
        if not isinstance(space, gym.spaces.MultiDiscrete):
            raise ValueError(f"MultiDiscreteToDiscrete: actions are {space}; expected a MultiDiscrete")
        self._counts = [int(n) for n in space.nvec.ravel()]
        self._inner, n = space, math.prod(self._counts)
        if n > MAX_ACTIONS:
            raise ValueError(f"MultiDiscreteToDiscrete: {n} combinations; expected at most {MAX_ACTIONS}: take an algorithm for "
                             "several choices (`parl-like list --spaces`)")
        self.action_space = gym.spaces.Discrete(n)
        seen = env.observation_space
        self._masked = isinstance(seen, gym.spaces.Dict) and "mask" in seen.spaces
        if isinstance(seen, gym.spaces.Dict) and self._masked:
            if seen["mask"].shape != (sum(self._counts),):
                raise ValueError(f"MultiDiscreteToDiscrete: the mask is {seen['mask']}; expected shape ({sum(self._counts)},), "
                                 "the alternatives of all choices side by side")
            self.observation_space = gym.spaces.Dict({**seen.spaces, "mask": gym.spaces.MultiBinary(n)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._seen(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, *rest = self.env.step(self.action(action))
        return self._seen(obs), *rest

    def action(self, action: Any) -> Array:
        """The environment's own action of a choice.

        Raises:
            ValueError: action is none of the choices.
        """
        if not self.action_space.contains(action):
            raise ValueError(f"MultiDiscreteToDiscrete: action is {action!r}; expected one of {self.action_space}")
        space = self._inner
        choices = np.array(np.unravel_index(int(action), self._counts)).reshape(space.nvec.shape)
        return (choices + space.start).astype(space.dtype)

    def _seen(self, obs: Any) -> Any:
        if not self._masked:
            return obs
        parts = np.split(np.asarray(obs["mask"], bool), np.cumsum(self._counts)[:-1])
        legal = np.ones((), bool)
        for part in parts:
            legal = np.logical_and.outer(legal, part if part.any() else ~part)
        return {**obs, "mask": legal.ravel().astype(np.int8)}


class TruncatedAsTerminated(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Every end is a true one: where the environment truncates, it says `terminated`, and learning does not bootstrap.

    For a time limit that belongs to the task, which the agent should see in its observation, and for comparing with those who do
    not tell the two apart. Info `truncated`: whether the end was a truncation.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        ends = bool(terminated or truncated)
        return obs, reward, ends, False, info | {"truncated": bool(truncated)} if ends else info


class ObservationSubset(gym.ObservationWrapper[Any, Any, Any], RecordConstructorArgs):
    """Some numbers of an observation vector, in this order, such as those that are no velocities: what is left out has to be
    remembered.

    Args:
        env: Its observations are a Box [n].
        indices: Places of the numbers that stay, from 0.

    Raises:
        ValueError: observations are no vectors, or indices is empty or names a place twice or one that is not there.
    """

    def __init__(self, env: gym.Env[Any, Any], indices: Sequence[int]) -> None:
        RecordConstructorArgs.__init__(self, indices=indices)
        super().__init__(env)
        space = _box(self, env.observation_space, "observations")
        self.indices = [int(i) for i in indices]
        if len(space.shape) != 1 or not self.indices or len(set(self.indices)) < len(self.indices) or not (
                0 <= min(self.indices) and max(self.indices) < space.shape[0]):
            raise ValueError(f"ObservationSubset: indices is {indices!r}, observations {space}; expected different places of a "
                             "vector")
        self.observation_space = gym.spaces.Box(space.low[self.indices], space.high[self.indices], dtype=space.dtype)

    def observation(self, observation: Any) -> Any:
        return np.asarray(observation)[self.indices]


class ImageChannelFirst(gym.ObservationWrapper[Any, Any, Any], RecordConstructorArgs):
    """Images [H, W, C] as [C, H, W], as networks compute them; which axis has the channels need not be guessed then.

    Args:
        env: Its observations are an image, or a Dict with one.
        key: Of the image in the Dict.

    Raises:
        ValueError: there is no Box of three axes.
    """

    def __init__(self, env: gym.Env[Any, Any], key: str | None = None) -> None:
        RecordConstructorArgs.__init__(self, key=key)
        super().__init__(env)
        seen: Any = env.observation_space
        space = seen if key is None else seen.spaces.get(key) if isinstance(seen, gym.spaces.Dict) else None
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 3:
            raise ValueError(f"ImageChannelFirst: key is {key!r}, observations are {seen}; expected an image [H, W, C] there")
        self.key = key
        image = gym.spaces.Box(*(np.moveaxis(bound, -1, 0) for bound in (space.low, space.high)), dtype=space.dtype)  # type: ignore
        self.observation_space = image if key is None else gym.spaces.Dict({**seen.spaces, key: image})

    def observation(self, observation: Any) -> Any:
        if self.key is None:
            return np.ascontiguousarray(np.moveaxis(observation, -1, 0))
        return {**observation, self.key: np.ascontiguousarray(np.moveaxis(observation[self.key], -1, 0))}


class PreviousStep(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Shows what was done and earned before each observation beside it, in acting, in the buffer and in learning alike, for
    models with a memory or without.

    Observations become a Dict, or stay one: `obs`, `prev_act`, the environment's own action, `prev_rew` [1] float32, and `first`
    [1]: whether the episode begins, where the action is one of zeros and the reward 0.

    Raises:
        ValueError: the observation has a part of such a name already.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        seen = env.observation_space
        parts = dict(seen.spaces) if isinstance(seen, gym.spaces.Dict) else {"obs": seen}
        more = {"prev_act": env.action_space, "prev_rew": gym.spaces.Box(-np.inf, np.inf, (1,), np.float32),
                "first": gym.spaces.MultiBinary(1)}
        if taken := parts.keys() & more.keys():
            raise ValueError(f"PreviousStep: observations are {seen}; they have {', '.join(sorted(taken))} already")
        self._nested = isinstance(seen, gym.spaces.Dict)
        self.observation_space = gym.spaces.Dict({**parts, **more})
        self._zero = _zeros(env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._beside(obs, copied(self._zero), 0.0, True), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        done = copied(action)  # the environment may change the action in place
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._beside(obs, done, float(reward), False), reward, terminated, truncated, info

    def _beside(self, obs: Any, act: Any, rew: float, first: bool) -> dict[str, Any]:
        parts = dict(obs) if self._nested else {"obs": obs}
        return {**parts, "prev_act": act, "prev_rew": np.array([rew], np.float32), "first": np.array([first], np.int8)}


def _zeros(space: gym.Space[Any]) -> Any:
    """Return an action whose numbers are the nearest to 0 that there are."""
    if isinstance(space, gym.spaces.Dict):
        return {name: _zeros(part) for name, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_zeros(part) for part in space.spaces)
    if isinstance(space, gym.spaces.Discrete):
        return int(space.start)
    if isinstance(space, gym.spaces.Box):
        return np.clip(np.zeros(space.shape), space.low, space.high).astype(space.dtype)
    return np.zeros(space.shape or (), space.dtype) + getattr(space, "start", 0)


class NoisyObservation(gym.ObservationWrapper[Any, Any, Any], RecordConstructorArgs):
    """Appends `n` fresh standard normal numbers, from the environment's own generator, to every observation vector.

    Args:
        mixed: Turn the whole vector by one fixed random rotation, so that no number of it is one of the environment's.

    Raises:
        ValueError: n is negative, or observations are no vectors.
    """

    def __init__(self, env: gym.Env[Any, Any], n: int, mixed: bool = False) -> None:
        RecordConstructorArgs.__init__(self, n=n, mixed=mixed)
        super().__init__(env)
        if n < 0 or len(env.observation_space.shape or ()) != 1:
            raise ValueError(f"NoisyObservation: n is {n}, observations {env.observation_space}; expected n ≥ 0 and a vector")
        self.n = n
        size = env.observation_space.shape[0]  # type: ignore[index]
        check_array(f"NoisyObservation: n is {n}", size + n, *[size + n] * mixed, dtype=np.float64)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size + n,), np.float32)
        self._rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(size + n, size + n)))[0] if mixed else None

    def observation(self, observation: Any) -> Any:
        vector = np.concatenate([observation, self.unwrapped.np_random.standard_normal(self.n)])
        return (vector if self._rotation is None else self._rotation @ vector).astype(np.float32)

    def own_state(self) -> dict[str, Any]:
        """The generator: environments whose own chance comes from elsewhere do not have it in their state."""
        return {"rng": self.unwrapped.np_random.bit_generator.state}

    def restore_own(self, state: Mapping[str, Any]) -> None:
        """Go back to what `own_state` returned."""
        self.unwrapped.np_random.bit_generator.state = state["rng"]


class SomeActions(gym.ActionWrapper[Any, Any, Any], RecordConstructorArgs):
    """Takes only some of the choices of a Discrete action, numbered from 0 on in this order.

    Args:
        actions: Those choices, as the environment has them.

    Raises:
        ValueError: actions are no Discrete, or there are none, one twice, or one that it does not have.
    """

    def __init__(self, env: gym.Env[Any, Any], actions: Sequence[int]) -> None:
        RecordConstructorArgs.__init__(self, actions=actions)
        super().__init__(env)
        space = env.action_space
        chosen = [int(one) for one in actions]
        if not isinstance(space, gym.spaces.Discrete) or not chosen or len({*chosen}) < len(chosen) or not all(
                one in space for one in chosen):
            raise ValueError(f"SomeActions: actions are {actions!r:.80} of {space}; expected choices of a Discrete, each once")
        self.actions = chosen
        self.action_space = gym.spaces.Discrete(len(chosen))

    def action(self, action: Any) -> int:
        return self.actions[int(action)]


class GridCells(gym.ObservationWrapper[Any, Any, Any], RecordConstructorArgs):
    """A MiniGrid or BabyAI world as what each cell of the agent's view is, [H, W, 13] uint8, one 1 in each: MiniGrid's eleven
    objects by their code, a door of which is an open one, then a closed and a locked door. Colours, the direction, and what a
    text says are left out.

    Args:
        env: Observes a Dict with `image`, codes (object, colour, state).

    Raises:
        ValueError: it observes something else.
    """

    DOOR, KINDS = 4, 13

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        seen = env.observation_space
        image = seen.spaces.get("image") if isinstance(seen, gym.spaces.Dict) else None
        if image is None or len(image.shape or ()) != 3 or image.shape[2] != 3:  # type: ignore[index]
            raise ValueError(f"GridCells: observations are {seen}; expected a Dict with an `image` of codes [H, W, 3], as "
                             "MiniGrid has them")
        height, width, _ = image.shape  # type: ignore[misc]
        self.observation_space: Any = gym.spaces.Box(0, 1, (height, width, self.KINDS), np.uint8)
        self._rows = np.eye(self.KINDS, dtype=np.uint8)

    def observation(self, observation: Any) -> Any:
        kind, state = observation["image"][..., 0], observation["image"][..., 2]
        return self._rows[np.where((kind == self.DOOR) & (state > 0), self.KINDS - 3 + state, kind)]


def _box(wrapper: gym.Env[Any, Any], space: gym.Space[Any], what: str) -> gym.spaces.Box:
    if not isinstance(space, gym.spaces.Box):
        raise ValueError(f"{type(wrapper).__name__}: {what} are {space}; expected a Box")
    return space
