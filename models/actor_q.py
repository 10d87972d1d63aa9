"""A policy and an ensemble of action values, for the actor-critics that learn off-policy (DDPG, TD3, SAC and its relatives)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import gymnasium as gym
import torch
from torch import Tensor, nn

from parl_like.learning.action_spaces import BOX, CHOICES, kind_of, taken_by
from parl_like.learning.array_prediction import NativeReader
from parl_like.learning.model import Model
from parl_like.learning.native import NetworkLayers, NotNative
from parl_like.models.action_parts import ActionParts
from parl_like.models.flat_obs import hands_on, perception
from parl_like.models.heads import CategoricalHead, OrthogonalLinear, SquashedGaussianHead, make_head, mask_key
from parl_like.models.mlp import MLP, DropoutEnsembleMLP, EnsembleMLP
from parl_like.values.spec import Array, leaf_spaces


class MLPActorQ(Model):
    """A policy, and several critics that are one batched product per layer.

    Args:
        obs, act: Spaces; `act` is a Box with finite bounds, whose actions are in [−1, 1] here, or Discrete: then the critics give
            one value per action, and a Dict observation may hold `mask` [A]: 1 for the legal ones. Of a MultiDiscrete,
            MultiBinary, Dict or Tuple see `ActionParts`.
        hidden: Sizes of the hidden layers of the policy and of each critic.
        critics: How many.
        heads: Numbers of each critic for each action, such as quantiles of its return; `q` is their mean.
        dropout, layer_norm: Of the critics' hidden layers, see `DropoutEnsembleMLP`.
        policy: 'squashed' draws (tanh of a normal distribution; Discrete: categorical), 'deterministic' has one action (`act`).
        trunk: A perception with `out_size`, perhaps shared with another task's model; None: the flat observation. It is moved by
            the critics' loss alone.
        value: Whether there is a value of states, too, by one more network of these sizes.

    Attributes:
        actor: The policy's own layers.
        head: Draws actions, and knows their log-probabilities.
        v: The value's own layers, if it has one.
        parts: Of a structured action; None: it is Discrete or a Box.

    Raises:
        TypeError: a Box of `act` has an infinite bound, or a deterministic policy is asked for anything but a Box.
        ValueError: policy is none of these, or heads is below 1.
    """

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (256, 256), *, activation: str = "relu",
        critics: int = 2, heads: int = 1, dropout: float = 0.0, layer_norm: bool = False,
        policy: Literal["squashed", "deterministic"] = "squashed", trunk: nn.Module | None = None,
        value: bool = False,
    ) -> None:
        super().__init__(obs, act)
        if policy not in ("squashed", "deterministic"):
            raise ValueError(f"MLPActorQ: policy is {policy!r}; expected 'squashed' or 'deterministic'")
        self.discrete = isinstance(act, gym.spaces.Discrete)
        box = isinstance(act, gym.spaces.Box)
        for name, part in leaf_spaces(act, "act"):
            if kind_of(part) not in (*CHOICES, BOX):
                raise TypeError(f"MLPActorQ: {name} is {part}; expected Discrete, a Box with finite bounds, or what is made of "
                                f"these{taken_by(part)}")
        if not box and policy == "deterministic":
            raise TypeError(f"MLPActorQ: act is {act}; a deterministic policy needs a Box{taken_by(act)}")
        if heads < 1:
            raise ValueError(f"MLPActorQ: heads is {heads}; expected at least 1")
        if heads > 1 and not (box or self.discrete):
            raise ValueError(f"MLPActorQ: heads is {heads}; expected 1 for actions in {act}{taken_by(act)}")
        self.heads, self.mask = heads, mask_key(obs, act)
        self.perception = perception(obs, act, trunk)
        size: Any = self.perception.out_size
        self.dim = int(act.n) if isinstance(act, gym.spaces.Discrete) else math.prod(act.shape or ())
        body = MLP([size, *hidden], activation, activate_last=True)
        last: Any
        if self.discrete:
            last = CategoricalHead(body.out_size, self.dim)
        elif not box:
            last = make_head(body.out_size, act, state_dependent_std=True, distribution="squashed")
        elif policy == "deterministic":
            last = OrthogonalLinear(body.out_size, self.dim, None)
        else:
            last = SquashedGaussianHead(body.out_size, self.dim)
        self.body, self.head = body, last
        self.actor = nn.ModuleList([body, last])
        self.parts = None if box or self.discrete else ActionParts(act, last)
        if self.parts is not None:
            self.dim = self.parts.size
        inputs, outputs = (size, self.dim) if self.discrete else (size + self.dim, self.parts.outputs if self.parts else 1)
        sizes = [inputs, *hidden, outputs * heads]
        self.critics = (DropoutEnsembleMLP(critics, sizes, activation, dropout, layer_norm) if dropout or layer_norm else
                        EnsembleMLP(critics, sizes, activation, activate_last=False))
        if value:
            self.v = MLP([size, *hidden, 1], activation)

    def native_networks(self) -> dict[str, NetworkLayers]:
        """`actor`, of the features of the perception: what the head makes its outputs of; of these and actions `critics`, and
        `first critic` alone. Raises NotNative for structured actions."""
        if self.parts is not None:
            raise NotNative("actions of several parts")
        actor = NetworkLayers(int(self.perception.out_size))  # type: ignore[arg-type]
        actor.outputs["actor"] = actor.add(self.head, actor.add(self.body))
        critics = NetworkLayers(actor.n_in if self.discrete else actor.n_in + self.dim)
        critics.outputs = {f"critic {i}": end for i, end in enumerate(critics.add(self.critics))}
        return {"actor": actor, "critics": critics, "first critic": critics.only("critic 0")}

    def native_reader(self, method: str) -> NativeReader | None:
        """Return how `policy` or `act` is computed of plain vectors; None: it is not."""
        read = {"policy": getattr(self.head, "read_array", None), "act": self._read_act}.get(method)
        return NativeReader("actor", read, self.perception) if read and self.parts is None and hands_on(self.perception) else None

    def _read_act(self, numbers: Array) -> dict[str, Array]:
        return {"mean": torch.tanh(torch.from_numpy(numbers)).numpy().reshape(len(numbers), *self.act_specs["act"].shape)}

    def policy(self, obs: Any) -> dict[str, Tensor]:
        """Return what the head reads, [N, …]."""
        features = self.perception(obs)
        if (native := self.natively("actor", features)) is not None:
            return self.head.read(native[0], None if self.mask is None else obs[self.mask])  # type: ignore[no-any-return]
        return self.head(self.body(features), None if self.mask is None else obs[self.mask])  # type: ignore[no-any-return]

    def act(self, obs: Any) -> Tensor:
        """The deterministic policy's actions in [−1, 1], [N, *shape].

        Raises:
            TypeError: the policy is a distribution.
        """
        if not isinstance(self.head, OrthogonalLinear):
            raise TypeError("the policy is a distribution, which draws actions; build the model with policy='deterministic'")
        features = self.perception(obs)
        native = self.natively("actor", features)
        flat = torch.tanh(self.head(self.body(features)) if native is None else native[0])
        return flat.reshape(flat.shape[0], *self.act_specs["act"].shape)

    def critic_inputs(self, features: Tensor, act: Tensor | None) -> Tensor:
        """Return what the critics see, [N, size]."""
        if self.discrete:
            return features
        assert act is not None
        return torch.cat([features, act.reshape(act.shape[0], -1).to(features.dtype)], -1)  # of a Box of float64: float64

    def values(self, obs: Any, act: Tensor | None = None) -> Tensor:
        """Return the values of actions [N, …] in [−1, 1]: [critics, N, heads]; for Discrete of all actions: [critics, N, A,
        heads]."""
        x = self.critic_inputs(self.perception(obs), act)
        native = self.natively("critics", x)
        values: Tensor = self.critics(x) if native is None else torch.stack(native)
        return values.reshape(*values.shape[:-1], self.dim, self.heads) if self.discrete else values

    def value(self, obs: Any) -> Tensor:
        """The value of states, [N], of a model with `value`."""
        return self.v(self.perception(obs)).squeeze(-1)  # type: ignore[no-any-return]

    def q(self, obs: Any, act: Tensor | None = None) -> Tensor:
        """The means over the heads: [critics, N], or [critics, N, A]; of a structured action the sums over its choices,
        [critics, N]."""
        if self.parts is not None:
            return self.parts.chosen(self.values(obs, self.parts.numbers(act)), act)
        values = self.values(obs, act)
        return values.squeeze(-1) if self.heads == 1 else values.mean(-1)

    def expected_q(self, obs: Any, numbers: Tensor, p: Tensor) -> Tensor:
        """The expectation of `q` [critics, N] over the choices of a structured action, by the probabilities p [N, outputs], for
        these real numbers [N, size]."""
        return (self.values(obs, numbers) * p).sum(-1)
