"""The base of algorithms whose model is a policy and critics, see `parl_like.models.actor_q`."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from parl_like.algorithms.targets import legal_actions, row_mean
from parl_like.learning.action_spaces import taken_by
from parl_like.learning.algorithm import Algorithm, Loss
from parl_like.learning.model_check import ContractError, answer, check_methods, check_shape
from parl_like.values.batch import Batch


def actor_and_critics(algorithm: Algorithm, delay: int | str = 1) -> dict[str, Loss]:
    """The losses of an actor and of its critics, who move all that is not the actor's own, by the algorithm's `lr`, `actor_lr`
    and `max_grad_norm`.

    Args:
        delay: The actor learns in every so many updates, or the name of the attribute that says so.
    """
    check_methods(algorithm)  # the parts of the model that this reads, among them
    own = {id(parameter) for parameter in algorithm.model.actor.parameters()}
    rest = [parameter for parameter in algorithm.model.parameters() if id(parameter) not in own]
    return {"critic": Loss(rest, "lr", "max_grad_norm"),
            "actor": Loss(algorithm.model.actor, "actor_lr", "max_grad_norm", delay)}


def check_actor_q(algorithm: Algorithm, inputs: Batch, *wanted: str) -> None:
    """That the model's head has these methods, and `q` the right shape, for Discrete actions or a Box; raises ContractError."""
    act, name = algorithm.model.act_space, type(algorithm).__name__
    for one in wanted:
        if not hasattr(algorithm.model.head, one):
            raise ContractError(f"{name} reads head.{one} for {act}; {type(algorithm.model.head).__name__} has none")
    discrete = isinstance(act, gym.spaces.Discrete)
    q = answer(algorithm, "q", inputs.obs, *(() if discrete else (torch.zeros(2, *act.shape),)))
    check_shape(algorithm, "q", q, (len(q), 2, int(act.n)) if discrete else (len(q), 2))


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
