"""Parts that ready-made robots share: the spaces of an environment, a network that fits them, the robot around it all."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, ClassVar

import gymnasium as gym
import msgspec
import numpy as np
from gymnasium.vector import VectorEnv
from msgspec import Meta

from parl_like.agents.agent import Agent
from parl_like.agents.players import SimultaneousAgent, TurnAgent
from parl_like.agents.vector_agent import VectorAgent
from parl_like.environment.factory import EnvSource, factory_of, is_made, make_one, several_players
from parl_like.environment.hooks import Hook, hooks_of
from parl_like.environment.player_view import PlayerView, has_players, takes_turns
from parl_like.envs.vector import make_vector_env
from parl_like.lab import foreign
from parl_like.lab.config import ExperimentConfig
from parl_like.lab.user_experiments import candidates
from parl_like.lab.yaml_text import ConfigError
from parl_like.learning.span import Span
from parl_like.robots.arguments import arguments_of
from parl_like.robots.settings import Parts, named
from parl_like.run.robot import Robot
from parl_like.tasks.task import ComputationTask
from parl_like.values.limits import check_array
from parl_like.values.spec import specs_of

Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Weight = Annotated[float, Meta(ge=0)]
Rate = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]

SMALLEST_IMAGE = 4
"""Pixels of the shorter side from which on three axes are an image, and not a table."""


def spaces_of(env: EnvSource) -> dict[str, Any]:
    """`{"obs": space, "act": space}` of an environment, of a vector environment those of one in it.

    Raises:
        ConfigError: gymnasium does not know the id, or a package that it needs is missing.
    """
    return probed(env)[0]


def probed(source: EnvSource, key: str = "env") -> tuple[dict[str, Any], type[Agent]]:
    """Spaces as `spaces_of`, and the kind of agent: one that drives a vector environment whole, one that lets several players act
    by turns or at once, or a plain one.

    Raises:
        ConfigError: the environment cannot be made, or has no spaces.
    """
    try:
        env = make_one(source)
    except (gym.error.Error, ImportError) as error:
        if not (isinstance(source, str) or isinstance(source, partial) and source.func in (wrapped, several)):
            raise  # of the user's own factory
        own = " One of your own is written module:ID." if isinstance(error, gym.error.NameNotFound) else ""
        raise ConfigError(f"Config: key {key!r}: {str(error).splitlines()[0]}{own}") from None
    if has_players(env):
        return _of_players(env, key), TurnAgent if takes_turns(env) else SimultaneousAgent
    many = isinstance(env, VectorEnv)
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), gym.Space):
            raise ConfigError(f"Config: {key} gives {env!r}, which has no {name}; expected an environment of gymnasium, its id, "
                              "or a function that makes one")
    obs, act = ((env.single_observation_space, env.single_action_space) if many else (env.observation_space, env.action_space))
    if not is_made(source) and hasattr(env, "close"):
        env.close()
    return {"obs": obs, "act": act}, VectorAgent if many else Agent


def _of_players(env: Any, key: str) -> dict[str, Any]:
    """Return the spaces of each player, which share one task. Raises ConfigError where they differ, TypeError without any."""
    try:
        views = [PlayerView(env, player) for player in env.possible_agents]
    except AttributeError:
        raise several_players(env) from None
    if any((view.observation_space, view.action_space) != (views[0].observation_space, views[0].action_space) for view in views):
        raise ConfigError(f"Config: {key} gives {env}, whose players see or do different things; write a Robot with a task for "
                          "each (roles of parl_like.agents.players), or join them in parl_like.envs.joint.Joint")
    return {"obs": views[0].observation_space, "act": views[0].action_space}


def check_eval_env(source: EnvSource, spaces: Mapping[str, Any]) -> None:
    """Before training, not at its end: evaluations can be made in this environment. Raises ConfigError."""
    for name, space in probed(source, "eval_env")[0].items():
        if specs_of(space, name) != specs_of(spaces[name], name):
            raise ConfigError(f"Config: key 'eval_env': its {'observations' if name == 'obs' else 'actions'} are {space}, in "
                              f"training {spaces[name]}; evaluations need the same shapes and types")


def has_image(obs: gym.Space[Any]) -> bool:
    """Return whether an observation has one image."""
    images = [spec for spec in specs_of(obs, "obs").values() if len(spec.shape) == 3]
    return len(images) == 1 and sorted(images[0].shape)[1] >= SMALLEST_IMAGE


class Env(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An environment by name; a text alone is its `id`.

    Attributes:
        id: Of gymnasium.
        options: Its own options; of another id they are not.
        wrappers: Classes of `parl_like.envs.wrappers` or `gymnasium.wrappers`, the innermost first; their arguments are settings
            (`NoisyObservation.n`).
        vector: Environments that each agent drives at once, as one vector environment; 0: a single one.
    """

    short: ClassVar[str] = "id"
    of_short: ClassVar[tuple[str, ...]] = ("options",)
    id: Annotated[str, Meta(min_length=1)] = "CartPole-v1"
    options: dict[str, Any] = {}
    wrappers: tuple[str, ...] = ()
    vector: Count = 0


class EvalEnv(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The environment of evaluations, instead of the training's `Env`; a text alone is its `id`.

    Attributes:
        id: Empty: the same.
        options: Those that differ; of another id all.
        wrappers: None: the same.
    """

    short: ClassVar[str] = "id"
    of_short: ClassVar[tuple[str, ...]] = ("options",)
    id: str = ""
    options: dict[str, Any] = {}
    wrappers: tuple[str, ...] | None = None

    def over(self, env: Env) -> Env:
        """The whole of it."""
        options = {**env.options, **self.options} if self.id in ("", env.id) else self.options
        return msgspec.structs.replace(env, id=self.id or env.id, options=options,
                                       wrappers=env.wrappers if self.wrappers is None else self.wrappers)


class PartsConfig(ExperimentConfig, frozen=True, kw_only=True):
    """The configuration of robots whose parts have settings (`parl_like.robots.settings`).

    Attributes:
        hooks: Classes of `parl_like.environment.hooks`, or your own; their arguments are settings (`TimePerStep.keep`).
        parts: Name or end of a name → value.
    """

    hooks: tuple[str, ...] = ()
    parts: dict[str, Any] = {}


def hooks_of_config(names: Iterable[str], parts: Parts | None = None) -> list[Hook]:
    """The hooks that a configuration names; without `parts` their arguments are what they are by default.

    Raises:
        ConfigError: there is no such hook, or one needs what plain data cannot give.
    """
    parts = parts or Parts({}, {}, (), Span(1))
    return [one(**parts.args("hooks", one, whole=True)) for one in (named("Hook", name) for name in names)]


def env_of(env: Env, parts: Parts, key: str = "env") -> EnvSource:
    """The id alone where that says it all, so that whoever makes the environment knows it; else a factory.

    Raises:
        ConfigError: the id is not known, or may not be looked for; `key` is that of the configuration.
    """
    import_module_in(env.id)
    if (rule := foreign.rule()) is not None:
        rule.check_options(f"{key}.options", env.id, env.options)
    wrappers = [named("Wrapper", name) for name in env.wrappers]
    made = [partial(one, **parts.args("env", one, skip=list(arguments_of(one))[:1], whole=True)) for one in wrappers]
    if not (env.options or made or env.vector):
        return env.id
    one = partial(wrapped, env.id, env.options, made)
    return partial(several, one, env.vector) if env.vector else one


def import_module_in(id: str) -> None:
    """Import the module of `module:Id`; gymnasium would not look for it in the working directory. Raises ConfigError: there is
    none, or it may not be imported."""
    if ":" in id:
        candidates(id)


def wrapped(id: str, options: Mapping[str, Any], wrappers: Sequence[Callable[[Any], Any]], **more: Any) -> Any:
    """The environment of an id, in its wrappers."""
    env = factory_of(id)(**options, **more)
    for wrapper in wrappers:
        check_size(env, wrapper)
        env = wrapper(env)
    return env


HOLDS = {"FrameStackObservation": "stack_size", "DelayObservation": "delay", "DiscretizeObservation": "bins",
         "DiscretizeAction": "bins"}
"""Wrappers of gymnasium's that hold as many observations, or arrays of their size, as this argument says."""
DRAWS = {"ResizeObservation": "shape", "AtariPreprocessing": "screen_size"}
"""Wrappers of gymnasium's that make pictures of this size."""


def check_size(env: Any, made: Callable[[Any], Any]) -> None:
    """Raise ValueError where a wrapper of gymnasium's would hold more than an environment may (`check_array`); nothing has been
    allocated then. Our own wrappers ask themselves.

    Args:
        env: The environment that is to be wrapped. made: The wrapper, a `partial` with its arguments.
    """
    kind, given = getattr(made, "func", made), getattr(made, "keywords", {})
    if kind not in (getattr(gym.wrappers, name, None) for name in (*HOLDS, *DRAWS)):
        return
    name = {**HOLDS, **DRAWS}[kind.__name__]
    value = given.get(name, 1)
    numbers = [n for n in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(n, int)] or [1]
    said = f"{kind.__name__}: {name} is {value!r:.60}"
    if kind.__name__ in DRAWS:
        check_array(said, *(numbers if len(numbers) > 1 else 2 * numbers), 3, dtype=np.uint8)
    else:
        with suppress(TypeError):  # texts and the like have no size
            specs = specs_of(env.observation_space, "obs").values()
            check_array(said, max(numbers), sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs), dtype=np.uint8)


def several(one: Callable[..., Any], n: int, **more: Any) -> VectorEnv[Any, Any, Any]:
    """`n` environments of a factory as one; `more` for each of them, such as its render mode."""
    return make_vector_env(partial(one, **more), n)


def made_anew(owner: Callable[..., Any], args: Mapping[str, Any]) -> Callable[[], Any]:
    """A function that makes one helper after the other, each with transforms and an explorer of its own."""
    return lambda: owner(**copy.deepcopy(dict(args)))


GIVEN = ("env", "n_agents", "driver", "seed", "trace", "score", "eval_env", "hooks")
"""Arguments of a Robot that a configuration has under keys of its own."""


def robot_with(config: PartsConfig, env: EnvSource, tasks: Mapping[str, ComputationTask], agent: Callable[[], Agent],
               *, parts: Parts, eval_env: EnvSource = None, score: Any = "mean_return",
               hooks: Hook | Iterable[Hook] = ()) -> Robot:
    """The robot that a configuration says, with these tasks and hooks, then those that it names itself; it keeps its `parts`, and
    says who has the last word.

    Raises:
        ConfigError: something was given that no part has.
    """
    options, own = parts.args("", Robot, skip=GIVEN), hooks_of_config(config.hooks, parts)
    parts.check()
    driver = config.robot_driver()
    for name in getattr(driver, "tasks", ()):  # they are in actors of their own, which do not say what they read
        parts.reads.forget(f"robot.tasks.{name}.")
    robot = Robot(env, tasks=tasks, agent=agent, n_agents=config.n_agents, driver=driver, seed=config.seed,
                  trace=config.trace, eval_env=eval_env, score=score, hooks=[*hooks_of(hooks, "Robot"), *own], **options)
    robot.parts, robot.span, robot.pool.reads = parts, parts.span, parts.reads
    lanes = config.n_agents * max(getattr(getattr(config, "env", None), "vector", 0), 1)
    robot.notes += [*parts.notes(), *(robot.diagnosis.too_short(config.total_steps, lanes) if parts.span.given else [])]
    return robot
