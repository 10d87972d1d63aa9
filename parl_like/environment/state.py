"""The state of an environment, through a stack of wrappers, and what a checkpoint holds of an open episode."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym

from parl_like.values.batch_leaf import same

if TYPE_CHECKING:
    from parl_like.environment.factory import AnyEnv

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
    _WRAPPERS + "stateful_observation.FrameStackObservation": ("obs_queue",),
    _OURS + "make.TimeLimit": ("elapsed",), _OURS + "make.ActionBounds": (), _OURS + "make.FiveValues": (),
    "parl_like.agents.vector_agent._Owning": (),
    **{f"{_OURS}wrappers.{name}": () for name in (
        "NormalizeObservation", "ActionRepeat", "Discretize", "MultiDiscreteToDiscrete", "TruncatedAsTerminated",
        "ObservationSubset", "ImageChannelFirst", "PreviousStep")},
}
_SYNC = ("gymnasium.vector.sync_vector_env.SyncVectorEnv", "parl_like.environment.together.EnvsTogether")
REFUSED = {"ale_py.env.AtariEnv": "its state lacks the action that sticks; use parl_like.envs.atari.Atari"}


def clone_state(env: AnyEnv) -> dict[str, object]:
    """Everything in an environment and its wrappers that what comes next depends on: restore it, take the same actions, and
    observations, rewards, ends and later episodes are the same. It stays as it is whatever the environment does, and may be
    restored many times.

    A bare environment, also a vector environment, takes part by `clone_state()` and `restore_state(state)`, a wrapper by
    `own_state()` and `restore_own(state)`, which are about the wrapper alone; those in `BARE` and `WRAPPERS` and gymnasium's
    SyncVectorEnv are known. Not in the
    state: statistics of normalisation, which are learned and shared (freeze them for equal numbers), and `action_space.sample()`.

    Returns:
        `layers`: (class, state) from the outermost wrapper to the bare environment.

    Raises:
        TypeError: a layer is not known, by name. gymnasium.error.ResetNeeded: it was never reset.
    """
    return {"layers": [(_name(layer), _part(layer)) for layer in layers_of(env)]}


def restore_state(env: AnyEnv, state: Mapping[str, Any]) -> None:
    """Goes back to a state, also one of another environment that was made alike.

    Raises:
        ValueError: it is another environment: the state is of other layers, then nothing is changed; or a layer refuses its part,
            by a ValueError of its own.
    """
    layers = list(layers_of(env))
    names, saved = [_name(layer) for layer in layers], [name for name, _ in state["layers"]]
    if names != saved:
        raise ValueError(f"restore_state: the state is of {_chain(saved)}; expected {_chain(names)}: make the environment as it "
                         "was")
    for layer, (name, part) in zip(reversed(layers), reversed(state["layers"]), strict=True):
        if name in _SYNC:
            if len(part["envs"]) != layer.num_envs:
                raise ValueError(f"restore_state: the state is of {len(part['envs'])} environments; expected {layer.num_envs}")
            for one, state_of_one in zip(layer.envs, part["envs"], strict=True):
                restore_state(one, state_of_one)
            layer._autoreset_envs = part["autoreset"].copy()
        elif isinstance(layer, gym.Wrapper) and name not in WRAPPERS:
            cast(Any, layer).restore_own(part)
        elif name not in BARE and name not in WRAPPERS:
            cast(Any, layer).restore_state(part)
        else:
            if set(part["values"]) != (known := {*BARE.get(name, ()), *WRAPPERS.get(name, ())}):  # and no other attribute
                raise ValueError(f"restore_state: the state of {name} has {sorted(part['values'])}; expected {sorted(known)}")
            for key, value in copy.deepcopy(part["values"]).items():
                now = getattr(layer, key, None)  # a checkpoint knows no longest length
                setattr(layer, key, deque(value, now.maxlen) if isinstance(now, deque) else value)
            if name in BARE:
                layer.np_random.bit_generator.state = part["rng"]
                layer._np_random_seed = part["seed"]


def layers_of(env: object) -> Iterator[Any]:
    """The outermost wrapper first, the bare environment last."""
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


def _name(layer: object) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


def _chain(names: Sequence[str]) -> str:
    return " → ".join(name.rpartition(".")[2] for name in names)


def _part(layer: Any) -> object:
    name = _name(layer)
    if name in _SYNC:
        return {"envs": [clone_state(one) for one in layer.envs], "autoreset": layer._autoreset_envs.copy()}
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


def hold(value: object) -> Any:
    """A copy of plain values and arrays that a checkpoint can hold; `unhold` gives them back. Raises TypeError for others."""
    from parl_like.learning.saved_state import pack, unpack  # imports torch, which workers of environments do without

    packed = pack(value, "state")
    if not same(unpack(packed, None, "state"), value):
        raise TypeError(f"{type(value).__name__} is nothing that a checkpoint can hold")
    return packed


def can_hold(value: object) -> bool:
    """Return whether `hold` takes the value."""
    try:
        hold(value)
    except TypeError:
        return False
    return True


def unhold(packed: object) -> Any:
    """Return what was given to `hold`. Raises ValueError: `packed` is nothing that it returned."""
    from parl_like.learning.saved_state import unpack

    return unpack(packed, None, "state of an environment")
