"""One environment, from an id, a factory or an environment of another style to what an agent can use: layers 1 to 4 of six."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from parl_like.environment.factory import one_player
from parl_like.values import env_ids
from parl_like.values.action_codec import Unclipped
from parl_like.values.errors import unknown


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= 1)


class TimeLimit(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Truncates episodes after `max_steps` steps of the environment below. `terminated` stays: a true end exactly on the limit is
    an end.

    Args:
        env: Environment.
        max_steps: At least 1.

    Raises:
        ValueError: max_steps is no whole number of at least 1.
    """

    def __init__(self, env: gym.Env[Any, Any], max_steps: int) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, max_steps=max_steps)
        super().__init__(env)
        if not _is_count(max_steps):
            raise ValueError(f"TimeLimit: max_steps is {max_steps!r}; expected a number of steps, at least 1")
        self.max_steps = int(max_steps)
        self.elapsed: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.elapsed = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps the environment below, and truncates at the limit.

        Raises:
            ResetNeeded: there was no reset.
        """
        if self.elapsed is None:
            raise gym.error.ResetNeeded("TimeLimit: step() before reset()")
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.elapsed += 1
        return obs, reward, terminated, truncated or self.elapsed >= self.max_steps, info


class ActionBounds(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Clips continuous actions to their bounds, and lets agents act in [−1, 1] where the environment's bounds are others.

    Every Box of the action space, also inside of Dict and Tuple; integer Boxes are clipped only, unbounded components left alone.
    The action space stays bounded, for algorithms want to know the bounds.

    Args:
        env: Environment.
        clip: Actions outside of the bounds are set to the nearest bound; else they reach the environment as they are.
        rescale: Bounded components are [−1, 1] outside and [low, high] inside.
    """

    def __init__(self, env: gym.Env[Any, Any], clip: bool = True, rescale: bool = True) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, clip=clip, rescale=rescale)
        super().__init__(env)
        self.clip, self.rescale = clip, rescale
        self.action_space, inward = _bounded(env.action_space, clip, rescale)
        self._inward: Callable[[Any], Any] = inward or (lambda action: action)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self.env.step(self._inward(action))

    @staticmethod
    def changes(space: gym.Space[Any], clip: bool = True, rescale: bool = True) -> bool:
        """Return whether the wrapper would do anything to actions of `space`."""
        return _bounded(space, clip, rescale)[1] is not None


def _bounded(space: gym.Space[Any], clip: bool, rescale: bool) -> tuple[gym.Space[Any], Callable[[Any], Any] | None]:
    """The space outside, and the way of an action inwards; None: as it is."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        subs: Any = list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))
        parts = {name: _bounded(sub, clip, rescale) for name, sub in subs}
        ways = {name: way for name, (_, way) in parts.items() if way is not None}
        if not ways and all(part is sub for (part, _), (_, sub) in zip(parts.values(), subs, strict=True)):
            return space, None
        outer: Any = (spaces.Dict({name: sub for name, (sub, _) in parts.items()}) if isinstance(space, spaces.Dict) else
                      spaces.Tuple([sub for sub, _ in parts.values()]))
        if not ways:
            return outer, None
        if isinstance(space, spaces.Dict):
            return (outer,
                    lambda action: {name: ways[name](value) if name in ways else value for name, value in action.items()})
        return (outer,
                lambda action: tuple(ways[i](value) if i in ways else value for i, value in enumerate(action)))
    if not isinstance(space, spaces.Box):
        return space, None
    low, high, dtype = space.low, space.high, space.dtype
    bounded = np.isfinite(low) & np.isfinite(high) & (low < high)  # one value only is left alone
    scaled = np.zeros(low.shape, bool)
    if rescale and np.issubdtype(space.dtype, np.floating):
        scaled = bounded & ~((low == -1) & (high == 1))
    if not scaled.any():
        if not (np.isfinite(low) | np.isfinite(high)).any() or not clip and not np.issubdtype(space.dtype, np.floating):
            return space, None
        if not clip:
            return space if isinstance(space, Unclipped) else Unclipped(space), None
        return space, lambda action: np.clip(np.asarray(action), low, high).astype(dtype, copy=False)
    outside: spaces.Box = spaces.Box(np.where(scaled, -1, low), np.where(scaled, 1, high), space.shape, dtype)
    if not clip:
        outside = Unclipped(outside)
    # In float64, and from the middle outwards: −1, 0 and 1 are then exactly low, middle and high.
    safe_low, safe_high = np.where(bounded, low, 0.0).astype(np.float64), np.where(bounded, high, 0.0).astype(np.float64)
    middle, half = (safe_low + safe_high) / 2, (safe_high - safe_low) / 2
    outer_low, outer_high = outside.low, outside.high

    def inward(action: Any) -> Any:
        action = np.asarray(action)
        if clip:
            action = np.clip(action, outer_low, outer_high)
        action = np.where(scaled, middle + half * action, action).astype(dtype)
        return np.clip(action, low, high) if clip else action  # rounding may have left the bounds by a bit

    return outside, inward


class OldStyle(gym.Env[Any, Any]):
    """An environment of the API before gymnasium, as one of today's; each of its habits is translated only where it has it.

    `step` may return four values, see `five_values`.
    `reset` may return the observation alone, and know neither `seed` (then `env.seed(seed)` is called, if there is one) nor
    `options`. Spaces may be those of the package `gym`.

    Args:
        env: Anything with `reset`, `step`, `observation_space` and `action_space`.

    Raises:
        TypeError: `env` lacks one of these.
    """

    def __init__(self, env: Any) -> None:
        self.old = env
        missing = [name for name in ("reset", "step", "observation_space", "action_space") if not hasattr(env, name)]
        if missing:
            raise TypeError(f"OldStyle: {env!r} has no {', '.join(missing)}; expected an environment with reset, step and both "
                            "spaces")
        self.observation_space, self.action_space = _space(env.observation_space), _space(env.action_space)
        self.metadata = dict(getattr(env, "metadata", None) or {})
        for old, new in (("render.modes", "render_modes"), ("video.frames_per_second", "render_fps")):
            if old in self.metadata:
                self.metadata.setdefault(new, self.metadata.pop(old))
        self.render_mode = getattr(env, "render_mode", None)
        # Wrappers of the package gym take any keyword, for whatever they wrap.
        self._takes = _takes(env.reset) & _takes(getattr(env, "unwrapped", env).reset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("old", "seed"):  # `seed`, because it is `reset` that seeds now
            raise AttributeError(name)
        return getattr(self.old, name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        given: dict[str, Any] = {}
        if seed is not None:
            if "seed" in self._takes:
                given["seed"] = seed
            elif hasattr(self.old, "seed") and callable(self.old.seed):
                self.old.seed(seed)
        if options is not None and "options" in self._takes:
            given["options"] = options
        out = self.old.reset(**given)
        pair = isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], dict)
        if pair and not (isinstance(self.observation_space, spaces.Tuple) and self.observation_space.contains(out)):
            return out[0], out[1]
        return out, {}  # also where the pair is itself an observation

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return five_values(self.old.step(action))

    def render(self) -> Any:
        takes_mode = self.render_mode and "mode" in _takes(self.old.render)
        return self.old.render(mode=self.render_mode) if takes_mode else self.old.render()

    def close(self) -> None:
        if hasattr(self.old, "close"):
            self.old.close()


class FiveValues(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Passes five values on from an environment of gymnasium whose `step` may return four, see `five_values`."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return five_values(self.env.step(action))


CUT = ("TimeLimit.truncated", "truncated_done")
"""Keys of the info of an old environment's step: the episode was cut off, not ended."""


def five_values(out: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
    """Return the five values of gymnasium's `step` for its five, or for the four (obs, reward, done, info) before it.

    Of four, `done` becomes `truncated` where the info says so under one of `CUT`, else `terminated`.

    Raises:
        ValueError: there are neither four nor five.
    """
    if len(out) == 5:
        obs, reward, terminated, truncated, info = out
        return obs, reward, bool(terminated), bool(truncated), info
    if len(out) != 4:
        raise ValueError(f"OldStyle: step returned {len(out)} values; expected 4 (obs, reward, done, info) or 5")
    obs, reward, done, info = out
    # Unlike a limit of ours, the old wrapper's tells only that the limit was what ended the episode.
    cut = any(bool(info.get(key, False)) for key in CUT)
    return obs, reward, bool(done) and not cut, bool(done) and cut, info


def _parameters(function: Any) -> list[inspect.Parameter]:
    """Return the parameters of a function; none of an id, which is no function, and none where they cannot be seen."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def _takes(method: Any) -> set[str]:
    """Return which of `seed`, `options`, `mode` a method takes as keyword; of one that takes any, the first two."""
    parameters = _parameters(method)
    named = {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY} & {"seed", "options", "mode"}
    return named | {"seed", "options"} if any(p.kind is p.VAR_KEYWORD for p in parameters) else named


def _space(space: Any) -> gym.Space[Any]:
    """A space of the package `gym` as one of gymnasium; that one itself."""
    if isinstance(space, gym.Space):
        return space
    kind = type(space).__name__
    if kind == "Box":
        return spaces.Box(space.low, space.high, space.shape, space.dtype)
    if kind == "Discrete":
        return spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(space.nvec)
    if kind == "MultiBinary":
        return spaces.MultiBinary(space.n)
    if kind == "Dict":
        return spaces.Dict({name: _space(sub) for name, sub in space.spaces.items()})
    if kind == "Tuple":
        return spaces.Tuple([_space(sub) for sub in space.spaces])
    raise TypeError(f"OldStyle: the space {space!r}; expected Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple")


class DmEnv(gym.Env[Any, Any]):
    """An environment of dm_env's as one of gymnasium's. Those of dm_control go through shimmy instead, which can seed and draw
    them.

    An end with discount 0 is `terminated`, any other `truncated`. Info of every step: `discount`. A seed reaches the environment
    only where it has a method `seed`, for dm_env knows of none.

    Args:
        env: Anything with `reset`, `step`, `observation_spec` and `action_spec`; its specs may be in dicts and tuples.
    """

    def __init__(self, env: Any) -> None:
        self.dm = env
        self.observation_space, self.action_space = _spec_space(env.observation_spec()), _spec_space(env.action_spec())
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None and callable(getattr(self.dm, "seed", None)):
            self.dm.seed(seed)
        self._over = False
        return _arrays(self.observation_space, self.dm.reset().observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes an action.

        Raises:
            ResetNeeded: no episode is open.
        """
        if self._over:  # it would begin an episode, and the action be lost
            raise gym.error.ResetNeeded("DmEnv: step() without an open episode; call reset() first")
        now = self.dm.step(action)
        self._over, discount = bool(now.last()), float(now.discount)
        ends = self._over and discount == 0
        obs = _arrays(self.observation_space, now.observation)
        return obs, float(now.reward), ends, self._over and not ends, {"discount": discount}

    def close(self) -> None:
        if hasattr(self.dm, "close"):
            self.dm.close()


def _spec_space(spec: Any) -> gym.Space[Any]:
    if isinstance(spec, Mapping):
        return spaces.Dict({name: _spec_space(sub) for name, sub in spec.items()})
    if isinstance(spec, (tuple, list)):
        return spaces.Tuple([_spec_space(sub) for sub in spec])
    if hasattr(spec, "num_values"):
        return spaces.Discrete(int(spec.num_values))
    dtype = np.dtype(getattr(spec, "dtype", object))
    if dtype.kind == "b":
        return spaces.Box(0, 1, spec.shape, np.uint8)
    if dtype.kind not in "iuf":
        raise TypeError(f"DmEnv: the spec {spec!r}; expected numbers, or dicts and tuples of such specs")
    if hasattr(spec, "minimum"):
        return spaces.Box(np.broadcast_to(spec.minimum, spec.shape), np.broadcast_to(spec.maximum, spec.shape), spec.shape,
                          dtype.type)
    low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(low, high, spec.shape, dtype.type)


def _arrays(space: gym.Space[Any], obs: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _arrays(sub, obs[name]) for name, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_arrays(sub, part) for sub, part in zip(space.spaces, obs, strict=True))
    return np.asarray(obs, space.dtype)


def load(id_or_factory: str | Callable[..., Any] | Any, **options: Any) -> tuple[Any, int | None]:
    """Layer 1: the environment as others made it, without gymnasium's time limit, and the limit that it was registered with.

    Args:
        id_or_factory: A gymnasium id, also `module:id`; an `EnvSpec`; a factory, called with `options`; or an environment.
        options: For its constructor.

    Raises:
        TypeError: None of these, or options for an environment that is there already.
    """
    if isinstance(id_or_factory, (str, gym.envs.registration.EnvSpec)):
        make: Any = env_ids.make if isinstance(id_or_factory, str) else gym.make
        env: Any = make(id_or_factory, max_episode_steps=-1, disable_env_checker=True, **options)
        while isinstance(env, gym.wrappers.OrderEnforcing):
            env = env.env  # costs a call per step
        if isinstance(id_or_factory, str):
            spec = env.unwrapped.spec
            return env, gym.spec(spec.id).max_episode_steps if spec is not None else None
        return env, id_or_factory.max_episode_steps
    if isinstance(id_or_factory, type) or callable(id_or_factory) and not hasattr(id_or_factory, "step"):
        return id_or_factory(**options), None
    if not hasattr(id_or_factory, "step"):
        raise TypeError(f"make_env: {id_or_factory!r}; expected a gymnasium id, a factory or an environment")
    if options:
        raise TypeError(f"make_env: the options {sorted(options)} come too late for {id_or_factory!r}; give its class or a "
                        "factory")
    return id_or_factory, None


def adapt(env: Any) -> gym.Env[Any, Any]:
    """Layer 3, the boundary: what came as gymnasium speaks; from there on, only (obs, reward, terminated, truncated, info)
    passes.

    An environment of gymnasium's is returned as it is. One whose `reset` takes no `seed`, or which is none of gymnasium's, is put
    into `OldStyle`; one of dm_env's into `DmEnv`, or shimmy's own class if it is dm_control's.

    Raises:
        ImportError: dm_control without shimmy.
        TypeError: It is no environment at all.
    """
    one_player(env)
    if isinstance(env, gym.vector.VectorEnv):
        raise TypeError(f"make_env: {env} already is many environments; give it to make_vector_env")
    if not isinstance(env, gym.Env) and hasattr(env, "action_spec") and hasattr(env, "observation_spec"):
        if not hasattr(env, "physics"):
            return DmEnv(env)
        try:
            shimmy = importlib.import_module("shimmy")
        except ImportError as error:
            raise ImportError(f"make_env: {env!r} is of dm_control, and shimmy does not import: {error}; install the extra for "
                              "it: pip install 'parl_like[dm-control]'") from None
        adapted: gym.Env[Any, Any] = shimmy.DmControlCompatibilityV0(env)
        return adapted
    if isinstance(env, gym.Env) and "seed" in _takes(env.unwrapped.reset):
        return env
    return OldStyle(env)


def limit(env: gym.Env[Any, Any], max_steps: int | None) -> gym.Env[Any, Any]:
    """Layer 4, steps in time: our own limit, on the bare environment, so that no wrapper changes what is counted."""
    return env if max_steps is None else TimeLimit(env, max_steps)


def wrap(env: gym.Env[Any, Any], clip: bool, rescale: bool,
         wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]]) -> gym.Env[Any, Any]:
    """Layer 2, wrappers of the environment: bounds of actions, where there are any, then the caller's, the last one outermost."""
    if ActionBounds.changes(env.action_space, clip, rescale):
        env = ActionBounds(env, clip, rescale)
    elif not clip and (space := _bounded(env.action_space, clip, rescale)[0]) is not env.action_space:
        env.action_space = space  # which says that nobody else is to clip, either
    for wrapper in wrappers:
        env = wrapper(env)
    return env


@dataclass(frozen=True)
class Layers:
    """The six steps from somebody's environment to what an agent drives, in this order (numbers as in ALF's list); each may be
    replaced by a function of your own.

    Attributes:
        load: 1. Id, factory or environment, and options → (environment, its registered time limit or None).
        adapt: 3. Environment → gymnasium environment.
        limit: 4. (environment, steps or None) → environment with a time limit.
        wrap: 2. (environment, clip, rescale, wrappers) → wrapped environment.
        host: 5. Where environments live: a kind of `make_vector_env`, or a `parl_like.envs.vector.hosts.Host`.
        stack: 6. (env_fn, n, kind, **options) → vector environment. None: `make_vector_env`.
    """

    load: Callable[..., tuple[Any, int | None]] = load
    adapt: Callable[[Any], gym.Env[Any, Any]] = adapt
    limit: Callable[[gym.Env[Any, Any], int | None], gym.Env[Any, Any]] = limit
    wrap: Callable[..., gym.Env[Any, Any]] = wrap
    host: Any = "process"
    stack: Callable[..., Any] | None = None


def make_env(
    id_or_factory: Any, *, time_limit: int | None = None, clip_actions: bool = True, rescale_actions: bool = True,
    wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]] = (), render_mode: str | None = None,
    layers: Layers | None = None, **options: Any,
) -> gym.Env[Any, Any]:
    """One environment, ready for an agent.

    Args:
        id_or_factory: A gymnasium id or `EnvSpec`, a factory, or an environment; also of the old gym API or dm_env.
        time_limit: Steps of the bare environment after which an episode is truncated. None: the registered limit, where there is
            one; −1: no limit.
        clip_actions: Continuous actions are clipped to their bounds. It helps early in training, and may hurt the final result.
            False: nobody clips them; the action space is then `Unclipped`, which agents and explorers' maps know.
        rescale_actions: Bounded continuous actions are [−1, 1] outside.
        wrappers: Put around it in turn, each a function of an environment.
        render_mode: For the constructor; None is not passed on.
        layers: Replacements for steps of this.
        options: For the constructor.

    Raises:
        ValueError: A time limit that is none.
        TypeError: An option that the constructor does not take, or that is nearly one of the above; the way around the latter is
            a factory. Else, and ImportError: see `load` and `adapt`.
    """
    layers = layers or Layers()
    if time_limit not in (None, -1) and not _is_count(time_limit):
        raise ValueError(f"make_env: time_limit is {time_limit!r}; expected at least 1, None for the registered limit, or -1 "
                         "for none")
    own = [name for name, parameter in inspect.signature(make_env).parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
    taken = {parameter.name for parameter in _parameters(id_or_factory)}
    for name in options:
        if name not in taken and get_close_matches(name, own, 1, 0.85):  # a constructor that takes any keyword would not complain
            raise TypeError(f"make_env: {unknown('option', name, own)} To the constructor it goes by a factory, as "
                            "functools.partial makes them.")
    if render_mode is not None:
        options["render_mode"] = render_mode
    try:
        raw, registered = layers.load(id_or_factory, **options)
    except TypeError as error:
        refused = re.search(r"(?:unexpected|multiple values for) (?:keyword )?argument '(\w+)'", str(error))
        if refused is None or refused[1] not in options:
            raise
        hint = f"of ours there are {', '.join(map(repr, own))}"
        if refused[1] == "max_episode_steps":
            hint = "did you mean 'time_limit'?"
        raise TypeError(f"make_env: the constructor of {id_or_factory!r} takes no option {refused[1]!r}; {hint}") from error
    steps = registered if time_limit is None else None if time_limit == -1 else time_limit
    env = layers.limit(layers.adapt(raw), steps)
    return layers.wrap(env, clip_actions, rescale_actions, tuple(wrappers))
