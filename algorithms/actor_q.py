"""The base of algorithms whose model is a policy and critics, see `parl_like.models.actor_q`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from parl_like.algorithms.targets import legal_actions, row_mean
from parl_like.learning._written import critics
from parl_like.learning.action_spaces import kind_of, taken_by
from parl_like.learning.algorithm import Algorithm, Loss
from parl_like.learning.model_check import ContractError, answer, check_methods, check_shape
from parl_like.learning.native import Network, Pass, WrittenLoss, float32_of, watched
from parl_like.values.action_codec import ActionCodec
from parl_like.values.batch import Batch
from parl_like.values.spec import Array, nest

TargetEntropy = float | Sequence[float] | None
"""The entropy that SAC and its relatives want, in nats; of a structured action a number for each array."""


def actor_and_critics(algorithm: Algorithm, delay: int | str = 1, **others: torch.nn.Module) -> dict[str, Loss]:
    """The losses of an actor and of its critics, who move all that is not the actor's own, by the algorithm's `lr`, `actor_lr`
    and `max_grad_norm`.

    Args:
        delay: The actor learns in every so many updates, or the name of the attribute that says so.
        others: Losses of parts of the model that are neither the actor's nor the critics', by `lr` and `max_grad_norm`, too.
    """
    check_methods(algorithm)  # the parts of the model that this reads, among them
    own = {id(parameter) for part in (algorithm.model.actor, *others.values()) for parameter in part.parameters()}
    rest = [parameter for parameter in algorithm.model.parameters() if id(parameter) not in own]
    return {"critic": Loss(rest, "lr", "max_grad_norm"),
            **{name: Loss(part, "lr", "max_grad_norm") for name, part in others.items()},
            "actor": Loss(algorithm.model.actor, "actor_lr", "max_grad_norm", delay)}


def check_actor_q(algorithm: Algorithm, inputs: Batch, *wanted: str) -> None:
    """That the model's head has these methods, and `q` the right shape, for Discrete actions or a Box; raises ContractError."""
    act, name = algorithm.model.act_space, type(algorithm).__name__
    if algorithm.takes is not None and kind_of(act) not in algorithm.takes.actions:
        raise ContractError(f"{name}: actions are {act}; expected {' or '.join(algorithm.takes.actions)}{taken_by(act)}")
    if getattr(algorithm.model, "parts", None) is not None:
        check_shape(algorithm, "q", q := answer(algorithm, "q", inputs.obs, any_action(act)), (len(q), 2))
        return
    for one in wanted:
        if not hasattr(algorithm.model.head, one):
            raise ContractError(f"{name} reads head.{one} for {act}; {type(algorithm.model.head).__name__} has none")
    discrete = isinstance(act, gym.spaces.Discrete)
    q = answer(algorithm, "q", inputs.obs, *(() if discrete else (any_action(act),)))
    check_shape(algorithm, "q", q, (len(q), 2, int(act.n)) if discrete else (len(q), 2))


def any_action(act: gym.Space[Any]) -> Any:
    """Two rows of an action in a policy's units, zeros, nested as the space is."""
    return Batch(nest({spec.name: torch.from_numpy(spec.zeros(2)) for spec in ActionCodec(act).specs})).act


class WrittenActorQ:
    """Policy and critics of `MLPActorQ` for the features [N, size] of some rows, with gradients that are written out."""

    def __init__(self, actor: Network, critics: Network, features: Array) -> None:
        self.actor, self.critics, self.features = actor, critics, features

    def values(self, act: Array) -> tuple[list[Array], Pass]:
        """Return the critics' values of actions [N, dim], [N, 1] each, and what their gradients need."""
        self.critics.ready()
        return self.critics.keep(np.concatenate([self.features, act], 1))

    def without_gradients(self, act: Array) -> list[Array]:
        """Return the critics' values of actions [N, dim], [N, 1] each."""
        return self.critics.forward(np.concatenate([self.features, act], 1))

    def policy(self) -> tuple[Array, Pass]:
        """Return what the policy's last layer gives out, [N, numbers], and what its gradient needs."""
        (numbers,), kept = self.actor.keep(self.features)
        return numbers, kept

    def critic_terms(self, batch: Batch) -> dict[str, object]:
        """As `critic_terms`, of the critics' values of the rows' actions."""
        values, kept = self.values(float32_of(batch.act).reshape(len(batch.act), -1))
        weight = float32_of(batch.weight) if "weight" in batch else None
        gradients, loss, priority = critics(values, float32_of(batch.target), weight)
        return {"critic": WrittenLoss(loss, lambda: self.critics.write(kept, gradients)), "priority": torch.from_numpy(priority)}

    def by_act(self, kept: Pass, gradients: list[Any]) -> Array:
        """Return the gradient of the actions [N, dim], from those of the values."""
        whole = self.critics.backward(kept, gradients, None, to_input=True, last=True)
        assert whole is not None
        return whole[:, self.features.shape[1] :]

    def write_policy(self, kept: Pass, gradient: Array) -> None:
        """Put the gradients into the policy's parameters, from that of what its last layer gives out."""
        self.actor.write(kept, [np.ascontiguousarray(gradient)])


def written_actor_q(model: Any, obs: Any) -> WrittenActorQ | None:
    """Return policy and critics for these observations, where compiled loops compute both, with one number of each critic; else
    None."""
    native = getattr(model, "native", {})
    actor, of_critics = native.get("actor"), native.get("critics")
    if actor is None or of_critics is None or model.heads != 1 or not (actor.learns() and of_critics.learns()):
        return None
    features = model.features_to_write(obs)
    return None if features is None else WrittenActorQ(actor, of_critics, features)


def evaluated_actor_q(actor_of: Any, critics_of: Any, obs: Any) -> WrittenActorQ | None:
    """As `written_actor_q`, without gradients: the policy of one model and the critics of another, as targets have them."""
    actor, of_critics = getattr(actor_of, "native", {}).get("actor"), getattr(critics_of, "native", {}).get("critics")
    if actor is None or of_critics is None or critics_of.heads != 1 or watched() or not (actor.ready() and of_critics.ready()):
        return None
    features, again = actor_of.features_to_write(obs), critics_of.features_to_write(obs)
    return None if features is None or again is None else WrittenActorQ(actor, of_critics, features)


def box_only(algorithm: Algorithm) -> None:
    """That actions are a Box; raises TypeError."""
    act = algorithm.model.act_space
    if not isinstance(act, gym.spaces.Box):
        raise TypeError(f"{type(algorithm).__name__}: actions are {act}; expected a Box{taken_by(act)}")


def critic_terms(error: Tensor, batch: Batch) -> dict[str, Tensor]:
    """The squared errors [critics, N] of critics as their loss, and the largest of each row as its priority."""
    return {"critic": row_mean(error.square(), batch).sum(), "priority": error.detach().abs().amax(0)}


def expected(log_p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """E q and E log π, both [N], over Discrete actions with log π [N, A] and the values q [N, A]."""
    p = log_p.exp()
    return (p * q).sum(-1), (p * log_p).sum(-1)


def default_entropy(act: gym.Space[Any], obs: Any) -> Any:
    """The entropy that SAC wants of a policy, in nats: −(numbers of an action) for a Box; for Discrete 0.98 · log A, with A the
    legal actions, averaged over the rows of `obs`."""
    if not isinstance(act, gym.spaces.Discrete):
        return -float(math.prod(act.shape or ()))
    legal = legal_actions(obs)
    return 0.98 * (math.log(act.n) if legal is None else legal.sum(-1).log().mean())
