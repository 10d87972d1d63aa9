"""The sources of a robot's environments, a registered id, a factory, or an environment itself; and how they are drawn."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

import cloudpickle
import gymnasium as gym
import numpy as np

from parl_like.environment.hooks import Hook
from parl_like.environment.player_view import has_players, takes_turns
from parl_like.interfaces import ActingAgent, AgentPort
from parl_like.values import env_ids
from parl_like.values.spec import Array, Env
from parl_like.values.user_calls import missing_arguments

E = TypeVar("E")

AnyEnv = Env | gym.vector.VectorEnv[Any, Any, Any]
EnvSource = str | AnyEnv | Callable[[], Any] | None

OURS = "parl_like.envs"
"""The module that registers the ids of our own environments."""

DRAWN = "rgb_array"
"""The render mode of environments that give pictures."""

WAY_OUT = ("give play an environment that renders 'rgb_array' (env=), or the robot a factory that takes the mode: "
           "`def make(render_mode=None): return MyEnv(render_mode=render_mode)`")


def is_made(env: object) -> bool:
    """Return whether this is an environment itself, of which there is only one."""
    return isinstance(env, (gym.Env, gym.vector.VectorEnv)) or (hasattr(env, "step") and not isinstance(env, type))


def factory_of(source: Any) -> Callable[..., object]:
    """Ids are made without gymnasium's checker: ours checks each step."""
    return partial(env_ids.make, source, disable_env_checker=True) if isinstance(source, str) else source


def known(source: EnvSource) -> EnvSource:
    """A source that may be made later: an id is looked at now, by the rule that is in force now (`env_ids.known`)."""
    return env_ids.known(source) if isinstance(source, str) else source


def make_one(source: EnvSource) -> Any:
    """An environment of a source, an environment itself as it is. Raises TypeError where a factory needs arguments."""
    if is_made(source) or not callable(factory := factory_of(source)):
        return source
    try:
        return factory()
    except TypeError as error:
        if not (missing := missing_arguments(factory)):
            raise
        name = getattr(source, "__name__", repr(source))
        raise TypeError(f"env: {name} cannot be made without {', '.join(missing)}; give a function that makes one: "
                        f"lambda: {name}({', '.join(f'{one}=…' for one in missing)})") from error


def step_of(env: Any) -> Callable[[Any], Any]:
    """Return what steps an environment: its own `step`, or for gymnasium's CartPole what does the same in a compiled loop."""
    if type(getattr(env, "unwrapped", None)).__module__ != "gymnasium.envs.classic_control.cartpole":
        return env.step  # type: ignore[no-any-return]
    step: Callable[[Any], Any] = import_module("parl_like.envs.vector.compiled").one_step(env)
    return step


def one_player(env: E) -> E:
    """The environment itself. Raises TypeError for one of PettingZoo's, which has several players."""
    if has_players(env):
        raise several_players(env)
    return env


def several_players(env: object) -> TypeError:
    """Return the error for an environment with several players, where one is needed."""
    turns = takes_turns(env)
    inner = "env" if turns else "pettingzoo.utils.parallel_to_aec(env)"
    ready = "TurnAgent" if turns else "SimultaneousAgent"
    return TypeError(f"{env} is {'an AECEnv' if turns else 'a ParallelEnv'} of PettingZoo, with several players; let all of them "
                     f"act, agent={ready} of parl_like.agents.players; or give an environment of one of them, "
                     f"parl_like.envs.pettingzoo.AECPlayer({inner}, player=0, others=…), in which the others act by rules")


def for_elsewhere(source: EnvSource) -> EnvSource:
    """A source for another process, which takes along the ids that code of this one has registered with gymnasium by a class or a
    function. Those that were registered by the name of a module are registered there when it is imported: ours, and that of an id
    which is the source itself."""
    own, by_value = {}, {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    modules = [OURS] if callable(source) and OURS in sys.modules else []
    for id, spec in gym.registry.items():
        if isinstance(spec.entry_point, str) or (module := spec.entry_point.__module__).partition(".")[0] == "gymnasium":
            continue
        name = getattr(spec.entry_point, "__qualname__", "")
        if module not in by_value and name.isidentifier():  # imported there, if it is asked for
            spec = copy.copy(spec)
            spec.entry_point = f"{module}:{name}"
        with suppress(Exception):  # one that cannot be sent may not be asked for
            cloudpickle.dumps(spec)
            own[id] = spec
    named = gym.registry.get(source) if isinstance(source, str) else None
    if named is not None and isinstance(named.entry_point, str) and not named.entry_point.startswith("gymnasium."):
        modules.append(named.entry_point.partition(":")[0])
        own[named.id] = named
    return partial(_knowing, own, modules, source) if (own or modules) and source is not None else source


def _knowing(ids: Mapping[str, Any], modules: Sequence[str], source: object, **options: object) -> Any:
    for module in modules:
        with suppress(ImportError):
            import_module(module)
    for id, spec in ids.items():
        gym.registry.setdefault(id, spec)
    return factory_of(source)(**options)


def note_of(env: object) -> str:
    """The attribute `note` of an environment: a sentence about it for the record of a run. Wrappers are looked through, and of
    several environments in this process the first is asked, unless they say a text together; empty: it says nothing."""
    for _ in range(8):
        env = getattr(env, "unwrapped", env)
        if isinstance(note := getattr(env, "note", None), str):
            return note
        env = getattr(env, "envs", None)
        env = env[0] if isinstance(env, (list, tuple)) and env else env
    return ""


REWARD_WEIGHTS = ("wrap the single environments in parl_like.envs.wrappers.RewardWeights(env, weights), one weight for each, or "
                  "learn by an algorithm that combines them (streams of IMPALA, or one of yours with `one_reward = False`)")
"""The way out for rewards that are vectors."""


def reward_shape(env: Any) -> tuple[int, ...]:
    """Shape of one reward, by the `reward_space` that an environment or one of its wrappers declares; () where there is none."""
    has = getattr(env, "has_wrapper_attr", None)
    space = (env.get_wrapper_attr("reward_space") if has is not None and has("reward_space")
             else getattr(getattr(env, "unwrapped", env), "reward_space", None))
    return space.shape if isinstance(space, gym.spaces.Box) else ()


def again(env: object) -> Callable[..., object]:
    """A factory of environments like this one, arguments and registered wrappers included.

    Raises:
        ValueError: gymnasium does not know how it was made.
    """
    spec = None
    if isinstance(env, gym.Env):
        with suppress(gym.error.Error, ValueError):
            spec = copy.deepcopy(env.spec)
    if spec is None or any(wrapper.kwargs is None for wrapper in spec.additional_wrappers):
        why = "is not registered with gymnasium" if spec is None else "has a wrapper that does not say how it was made"
        raise ValueError(f"the robot's environment {why}, so it cannot be made a second time; give the robot a factory "
                         "(`lambda: MyEnv()`), or this call an environment of its own (env=)")
    spec.disable_env_checker = True
    return partial(gym.make, spec)


def drawable(factory: Callable[..., E]) -> Callable[[], E]:
    """A factory of the same environments that draws them, as far as that can be asked for: `render_mode="rgb_array"` where the
    factory takes a render mode; else what it gives is switched to that mode, if it knows it."""

    def make() -> E:
        try:
            inspect.signature(factory).bind(render_mode=DRAWN)
        except (TypeError, ValueError):  # it takes no such option, or has no signature
            return _switched(factory())
        with suppress(TypeError):  # it may hand its options on to something that has no such option
            return factory(render_mode=DRAWN)
        return _switched(factory())

    return make


def _switched(env: E) -> E:
    """An environment that was made for another mode, told to draw: environments look at `render_mode` when they render."""
    for one in getattr(env, "envs", None) or [env]:
        metadata = getattr(one, "metadata", None) or {}
        if getattr(one, "render_mode", None) != DRAWN and DRAWN in metadata.get("render_modes", ()):
            getattr(one, "unwrapped", one).render_mode = DRAWN
    return env


DEFAULT_RATE = 30.0
"""Pictures per second of environments that declare none."""
FILM_S = 3.0
"""Seconds that a film takes at least."""


FILM_WIDTH = 320
"""Pixels that a picture has at least in a film; smaller ones are enlarged by a whole factor, so that words fit below."""
FILM_PIXELS = 150_000_000
"""Pixels of all pictures of a film together; each takes three bytes, twice for a moment."""


class Reel:
    """The pictures of a film, in the order in which they came. Where they have too many pixels, each second one is left out,
    again and again; the first and the last are always there.

    Attributes:
        shown: What was added, as far as it was kept: pictures of any kind.
        every: How many pictures each of them stands for, for how long it is to be shown.
    """

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.every, self._added = 1, 0

    def add(self, picture: object, pixels: int) -> None:
        """Add a picture; `pixels`: its height × width in the film."""
        if (self._added - 1) % self.every:  # the last one was there only because it was
            self.shown.pop()
        self._added += 1
        self.shown.append(picture)
        if len(self.shown) * pixels > FILM_PIXELS and len(self.shown) > 2:
            self.shown[:-1] = self.shown[:-1:2]
            self.every *= 2


class NotDrawable(ValueError):
    """An environment does not draw itself."""


class Film(Hook):
    """An episode from its reset on; of a vector environment that of its first one. Of a long one pictures are left out, see
    `Reel`, and the others are shown longer.

    Attributes:
        pictures: [H, W, 3] or [H, W] uint8 each.
        texts: Of each picture the lines below it: step and return, and what the agent says of itself (`Agent.caption`).
        rate: Pictures per second, so that a film lasts as long as the environment declares (`render_fps`).
    """

    def __init__(self) -> None:
        self._reel, self._steps, self._declared = Reel(), 0, DEFAULT_RATE

    @property
    def pictures(self) -> list[Array]:
        """The pictures that were kept; a new list."""
        return [picture for picture, _ in self._reel.shown]

    @property
    def texts(self) -> list[list[str]]:
        """The lines below each of them; a new list."""
        return [text for _, text in self._reel.shown]

    @property
    def rate(self) -> float:
        """Pictures per second."""
        return self._declared / self._reel.every

    def post_act(self, agent: AgentPort) -> None:
        """Keep a picture and its texts. Raises NotDrawable where the environment gives no picture."""
        env = agent.env
        try:
            given = env.render()
        except Exception as error:
            raise NotDrawable(f"{env.unwrapped} cannot be drawn, its render() raised {type(error).__name__}: {error}; "
                              f"{WAY_OUT}") from error
        if isinstance(given, (tuple, list)) and given:
            given = given[0]
        if not isinstance(given, np.ndarray) or given.dtype != np.uint8 or given.ndim not in (2, 3):
            what = f"{given.shape} {given.dtype}" if isinstance(given, np.ndarray) else type(given).__name__
            raise NotDrawable(f"{env.unwrapped} cannot be drawn: expected render() to give a picture (height, width, 3) uint8, "
                              f"got {what} (its render_mode is {getattr(env, 'render_mode', None)!r}); {WAY_OUT}")
        total = "" if agent.vector else f"   return {np.round(env.episode_return, 3)}"
        self._add(given.copy(), [f"step {self._steps}{total}", *filter(None, cast(ActingAgent, agent).caption().splitlines())])
        declared = (getattr(env, "metadata", None) or {}).get("render_fps")
        if isinstance(declared, (int, float)) and declared > 0:
            self._declared = float(declared)

    pre_episode = post_act

    def _add(self, picture: Array, text: list[str]) -> None:
        self._steps += 1
        factor = -(-FILM_WIDTH // max(1, picture.shape[1]))
        self._reel.add((picture, text), picture.shape[0] * picture.shape[1] * factor**2)


def write_gif(path: str | Path, pictures: Sequence[Any], frames_per_second: float, at_least: float = 0.0) -> None:
    """Writes an animated GIF that repeats for ever.

    Args:
        pictures: At least one: arrays [H, W, 3] or [H, W] uint8, or images of Pillow.
        frames_per_second: A GIF counts hundredths of a second, and viewers slow down what is below two, so 50 is the most.
        at_least: Seconds that it takes: the last picture is held for so long.
    """
    from PIL import Image

    first, *rest = [Image.fromarray(p) if isinstance(p, np.ndarray) else p for p in pictures]
    each = 10 * max(2, round(100 / frames_per_second))
    last = max(each, round(1000 * at_least) - each * len(rest))
    durations: object = each if last == each else [*[each] * len(rest), last]
    first.save(path, save_all=True, append_images=rest, duration=durations, loop=0)
