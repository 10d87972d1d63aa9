"""Model: the problem-dependent part of a computation. What it sees, what it gives out, and its parameters.

What algorithms call, by the kind of model. `obs` is a tensor [N, ...], or a nested mapping of them for Dict spaces, in the dtypes
of the space: Discrete int64 [N], images uint8 as they are stored. The model itself scales, embeds and flattens them.

value-based
    q(obs) -> [N, A]                                Value of every action. Illegal ones (observation `mask`) −1e9.
    values(obs) -> [N, A, K]                        Several of each, such as quantiles, with q their mean (QR-DQN, REM).
    logits(obs) -> [N, A, K], support [K]           Of the returns `support`, with q their mean (C51, Rainbow).
    quantiles(obs, fractions [N, K]) -> [N, A, K]   Quantiles of the return, at any fractions (IQN, FQF).
    q(obs, state) -> (q, state)                     With a memory: q [N, A], or [T, N, A] of T steps in a row (R2D2).

actor-critic
    policy(obs, state=None) -> (out, state)         For acting: computes no value. `out`: what the explorer reads, each [N, ...]
                                                    (`logits`, or `mean` and `log_std`). `state`: the memory after this step.
    value(obs, state=None) -> [N]                   V(obs); `state` is the memory before it.
    evaluate(obs, state=None, first=None) -> (out, value)
                                                    For learning. Feed-forward: rows [N, ...]. Recurrent: obs [T, B, ...], `state`
                                                    [B, ...] before the first step, `first` [T, B] bool marks rows that start an
                                                    episode; returned flat, [T · B, ...] in time-major order.
    head                                            `log_prob(out, act) -> [N]`, `entropy(out) -> [N]`, `explorer` (a name).

Any other task calls whatever its own model offers.
"""

from __future__ import annotations

import copy as copying
import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

import gymnasium as gym
import torch
from torch import nn

from parl_like.learning.fixed_settings import Alias
from parl_like.learning.layers import Brief, UnbuiltError, has_unbuilt, require_built
from parl_like.learning.layers import sync as sync
from parl_like.learning.native import Network, compute, float32_of, watched
from parl_like.values.batch import Batch
from parl_like.values.spec import Array, Spec, nest, specs_of
from parl_like.values.user_calls import guarded


class Model(nn.Module, metaclass=Brief):
    """Base class of all models. A subclass writes what its algorithm calls, all on [N, …] tensors (the module's text says more):

        q(obs) -> [N, A]                                for values of actions (DQN)
        policy(obs, state=None) -> (out, state)         to act: {'logits': [N, A]} or {'mean', 'log_std'}; state {} without memory
        value(obs, state=None) -> [N]                   and `evaluate`, `head`, see `MLPActorCritic` (A2C, PPO)

    Args:
        obs, act: Observation and action space.

    Attributes:
        obs_space, act_space: The spaces.
        obs_specs, act_specs: Their arrays by flat name: `obs` or `obs.goal`, `act`.
        native: Networks of it that compiled loops compute, by name (`parl_like.learning.native`); {}: torch computes all.
        reward_state: Name of the part of the memory, [] float32, that counts the rewards of the episode: helpers add the reward
            of each step to it; empty: none does.
        keeps_values: Whether `evaluate` costs hardly more than `policy`, so that actor-critics compute values while they act and
            keep them for learning. Of a class without dropout and the like.

    Raises:
        TypeError: obs or act is no gymnasium space.

    The keys of `state_dict()` are module paths, the same in every process that builds the same model; checkpoints rely on them.
    """

    native: Mapping[str, Network] = {}
    keeps_values = False
    reward_state = ""

    def __init_subclass__(cls, **options: object) -> None:
        """Builds a model's lazily sized layers when its outermost constructor has returned: a model is never half there."""
        super().__init_subclass__(**options)
        guarded(cls)
        construct = cls.__init__

        @functools.wraps(construct)
        def construct_and_build(self: Model, *args: Any, **kwargs: Any) -> None:
            construct(self, *args, **kwargs)
            if type(self) is cls:
                self.build()

        cls.__init__ = construct_and_build  # type: ignore[method-assign]

    def __init__(self, obs: gym.Space[object], act: gym.Space[object]) -> None:
        super().__init__()
        for name, space in (("obs", obs), ("act", act)):
            if not isinstance(space, gym.Space):
                raise TypeError(f"{type(self).__name__}: {name} is {type(space).__name__}; expected a gymnasium space "
                                "(env.observation_space, env.action_space)")
        self.obs_space, self.act_space = obs, act
        self.obs_specs, self.act_specs = specs_of(obs, "obs"), specs_of(act, "act")

    def natively(self, name: str, features: torch.Tensor, *more: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        """Return what one of its native networks gives out for features and `more` beside them, [N, …] each; None: there is
        none, or torch has to compute it."""
        network = self.native.get(name)
        if network is None or watched() or not network.ready():
            return None
        return compute(network, torch.cat([features, *more], -1) if more else features)

    def features_to_write(self, obs: Any) -> Array | None:
        """Return the features [N, size] of observations, float32, for gradients that are written out. None: the perception may
        learn, count or draw, or is watched, and runs in `learn` alone."""
        perception: Any = self.perception
        own = vars(perception)
        watched = "forward" in own or own["_forward_hooks"] or own["_forward_pre_hooks"]
        if watched or "only_arranges" not in vars(type(perception)):
            return None
        features: torch.Tensor = perception(obs)
        return float32_of(features) if features.ndim == 2 and not features.requires_grad else None

    get_input_specs, get_state_specs = Alias("inputs"), Alias("state_specs")

    def get_action_specs(self) -> dict[str, Spec]:
        """Return `act_specs`, as PARL's document reads them."""
        return self.act_specs

    def state_specs(self) -> dict[str, Spec]:
        """The recurrent memory of one row, by name (`h`); empty for a feed-forward model."""
        return {}

    def inputs(self) -> dict[str, Spec]:
        """Everything that prediction needs, by flat name: `obs` or `obs.*`, then `state.*`."""
        states = {f"state.{name}": replace(spec, name=f"state.{name}") for name, spec in self.state_specs().items()}
        return {**self.obs_specs, **states}

    def build(self) -> None:
        """Sizes the lazy layers by one pass of a row of zeros through `q`, `policy`, `value` and `evaluate`, where they exist.

        Runs by itself after construction. A model whose layers are used elsewhere overrides this, or gives its layers sizes.
        """
        if not has_unbuilt(self):
            return
        rows = nest({name: torch.from_numpy(spec.legal(1)) for name, spec in self.inputs().items()})
        obs, state = rows["obs"], rows.get("state")
        passes: dict[str, tuple[object, ...]] = {"q": (obs,), "policy": (obs, state), "value": (obs, state), "evaluate": (obs,)}
        if state is not None:
            passes["evaluate"] = (one_step(obs), state, torch.ones(1, 1, dtype=torch.bool))
        with torch.no_grad():
            for name, arguments in passes.items():
                method: Any = getattr(self, name, None)
                if method is not None:
                    method(*arguments)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield names and parameters, as torch does. Raises UnbuiltError: a layer waits for its first input."""
        try:
            require_built(self)  # an optimiser over the layers that happen to exist would leave the others untrained
        except UnbuiltError as error:
            name = type(self).__name__
            raise UnbuiltError(f"{name}: {error}. Neither q, policy, value or evaluate of {name} nor predict of its algorithm "
                               "calls it") from None
        return super().named_parameters(*args, **kwargs)

    # Torch finds a part of a model by a Python method, which costs 0.6 µs a look (its forward pass of 2 × 64 takes 8), and every
    # prediction looks; so parts are plain attributes, too.
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in self.__dict__.get("_modules", ()):
            self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self.__dict__.pop(name, None)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        super().add_module(name, module)
        self.__dict__[name] = module

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(nn.Module)})  # type: ignore[no-untyped-call]

    def parameter_count(self) -> int:
        """Numbers in all parameters; shared ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def weights_hash(self) -> str:
        """SHA-256, in hexadecimal, over the bytes of the state dict's tensors, sorted by key."""
        digest = hashlib.sha256()
        for _, value in sorted(self.state_dict().items()):
            digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def sync_from(self, other: nn.Module, decay: float = 0.0) -> None:
        """self ← decay · self + (1 − decay) · other, see `sync`."""
        sync(self, other, decay)

    def clone(self, copy: bool = True) -> Self:
        """A model with storage of its own: equal values, or without `copy` newly initialised, see `reinitialise`."""
        other = copying.deepcopy(self)
        if not copy:
            reinitialise(other)
        return other


class ArrayModel(Model):
    """A model of NumPy arrays, such as a table: its algorithm predicts and learns on arrays, without torch.

        class Values(ArrayModel):
            def __init__(self, obs, act):
                super().__init__(obs, act)
                self.add_array("v", np.zeros(obs.n))

        class TD0(Algorithm):                             # learn changes the arrays in place, and returns numbers to report
            def learn(self, batch):
                v, s = self.model.v, batch.obs
                ...

    Its task makes no optimiser. Whatever else holds for networks holds for the arrays: checkpoints, versions, replicas, sharing;
    an update that leaves a number in them that is not finite is taken back.
    """

    def add_array(self, name: str, value: Array) -> None:
        """Makes `value` the attribute `name`, and a part of the model. To be changed in place: `model.v[:] = 0`."""
        self.register_buffer(name, torch.from_numpy(value))  # the same memory, for whoever saves or sends networks
        self.__dict__[name] = value

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self.__dict__.get("_buffers", ()) or isinstance(value, torch.Tensor):
            super().__setattr__(name, value)
        elif value is not self.__dict__[name]:  # as it is after `+=`
            raise TypeError(f"cannot assign {type(self).__name__}.{name}, an array of the model, which checkpoints and copies "
                            f"know; change it in place: {name}[...] = …")

    def __setstate__(self, state: dict[str, object]) -> None:
        """Take the state of a copy: array and tensor are one memory again."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        for name in self._buffers.keys() & self.__dict__.keys():
            self._buffers[name] = torch.from_numpy(self.__dict__[name])

    def reset_parameters(self) -> None:
        """Give all arrays new initial values. Raises TypeError where a class does not define it."""
        raise TypeError(f"{type(self).__name__} has no reset_parameters(); write it, so that the model can be drawn anew")


def one_step(obs: Any) -> Any:
    """Observations [N, ...] as one step of a sequence, [1, N, ...]."""
    return {key: one_step(part) for key, part in obs.items()} if isinstance(obs, (Mapping, Batch)) else obs[None]


def reinitialise(module: nn.Module) -> None:
    """Draws new initial values for every parameter, from torch's current generator.

    Calls each submodule's `reset_parameters`, children first: a container's own rule (a small last layer) has the last word.

    Raises:
        TypeError: a submodule holds parameters but has no `reset_parameters`.
    """
    # Checked first: a network is drawn anew as a whole or left as it is.
    resettable = set()
    for name, part in module.named_modules():
        if callable(getattr(part, "reset_parameters", None)):
            resettable.add(id(part))
        elif part._parameters:
            raise TypeError(f"{type(module).__name__}: part {name or 'itself'!r} ({type(part).__name__}) has parameters "
                            f"({', '.join(part._parameters)}) but no reset_parameters(); write it, so that the model can be "
                            "drawn anew")
    module.apply(lambda part: part.reset_parameters() if id(part) in resettable else None)  # type: ignore[operator]
