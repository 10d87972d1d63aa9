"""Behaviour cloning: a policy learns to do what the rows did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from parl_like.algorithms.actor_critic import ActorCritic
from parl_like.algorithms.sequences import each
from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Schedule, Window, value_of
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class BC(ActorCritic):
    """Maximum likelihood of the actions in the rows (Pomerleau 1991), for all action spaces that have a policy head:

    loss = −mean(log π(a|s)) − entropy · mean(H)

    Rows may come from anywhere: an `OfflineHelper` with recorded data (`parl_like.data.datasets`), or a buffer. Of each row only
    `obs` and `act` are read. `learn` takes the policy's actions, as helpers store them; an `OfflineHelper` makes them of an
    environment's. The model needs no value.

    A model with a memory learns from sequences of rows, as in `R2D2`. Its memory is empty before the first of them, whether the
    episode begins there or not, and `burn_in` rows before it are remembered without being cloned.

    Differences:
        - It is the likelihood of any policy's actions; the paper fits output units to a hill around the steering direction, by
          squared errors.
        - No rows are made up; the paper adds images that are shifted and turned, with the direction that fits them.

    Args:
        model: Offers `policy` and `head`, see `parl_like.learning.model`; with a memory `evaluate`, too.
        entropy: Weight of the entropy bonus, a number or a schedule over optimiser steps.
        sequence, burn_in: Rows that are cloned, and rows before them, of a model with a memory.
        lr, max_grad_norm: Of Adam, and the norm above which gradients are scaled down; None: never.

    Raises:
        ValueError: a model with a memory is given sequences of one row.
    """

    fitting_models = "MLPActorCritic and ConvActorCritic"
    takes = Takes(memory="yes")
    window, one_reward, takes_priorities, takes_rewards, improves = Window(), False, False, False, False
    calls = {name: ActorCritic.calls[name] for name in ("policy", "head")}

    def __init__(self, model: Model | Callable[[], Model], *, entropy: float | Schedule = 0.0, sequence: int = 32,
                 burn_in: int = 0, lr: float | Schedule = 1e-3, max_grad_norm: float | None = None) -> None:
        super().__init__(model, entropy=entropy, lr=lr, max_grad_norm=max_grad_norm)
        self.burn_in = burn_in
        if self.recurrent:
            if sequence + burn_in < 2:
                raise ValueError(f"BC: sequence is {sequence} and burn_in {burn_in}, and {type(self.model).__name__} has a "
                                 "memory; expected at least two rows together")
            self.calls = {name: ActorCritic.calls[name] for name in ("policy", "evaluate", "head")}
            self.window = Window(in_order=False, sequence=sequence, burn_in=burn_in, memory=False)

    def fixed_settings(self) -> dict[str, str]:
        fixed = dict.fromkeys(("sequence", "burn_in"), "the helpers' rows come by it; build a new algorithm with another")
        return {**super().fixed_settings(), **fixed}

    def process(self, batch: Batch) -> Batch:
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        head, act = self.model.head, batch.act
        if self.recurrent:
            out, act = self.remembered(batch)
        else:
            out, _ = self.model.policy(batch.obs)
        log_prob, entropy = head.log_prob(out, act).mean(), head.entropy(out).mean()
        loss = -log_prob - value_of(self.entropy, self.updates) * entropy
        return {"loss": loss, "log_prob": log_prob.detach(), "entropy": entropy.detach()}

    def remembered(self, batch: Batch) -> tuple[dict[str, Any], Any]:
        """Return what the policy gives out for the rows that are cloned, and their actions, flat in time-major order."""
        valid = batch.valid.T
        first = torch.cat([torch.ones_like(valid[:1]), valid[1:] & ~valid[:-1]])  # rows that stand for none come before
        out, _ = self.model.evaluate(each(lambda part: part.transpose(0, 1), batch.obs), None, first)
        cloned = valid.clone()
        cloned[: self.burn_in] = False
        rows = cloned.flatten()
        return {name: value[rows] for name, value in out.items()}, each(lambda part: part.transpose(0, 1)[cloned], batch.act)
