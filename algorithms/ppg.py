"""PPG: PPO whose policy network now and then learns values, too, held where it is by a divergence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from parl_like.algorithms.ppo import PPO
from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Schedule
from parl_like.learning.model import Model
from parl_like.learning.model_check import answer, check_shape
from parl_like.values.batch import Batch
from parl_like.values.batch_leaf import to_numpy
from parl_like.values.spec import leaves, nest


class PPG(PPO):
    """Phasic policy gradient (Cobbe et al. 2021). A policy phase has `policy_updates` updates of PPO. An auxiliary phase follows,
    `aux_epochs` passes of minibatches over the rows of all of them, with a second value V' that reads the policy's features, and
    π_old the policy at its beginning:

        loss = ½ mean((G − V')²) + clone · mean(KL(π_old ‖ π)) + ½ mean((G − V)²)

    Differences:
        - Published networks of policy and values share nothing. What they share here, such as the trunk of ConvActorCritic, is
          moved by the values' loss in policy phases, too, which PPG is to avoid.
        - Policy and values learn from the same minibatches of a policy phase; the paper's E_π and E_V are both `epochs`.
        - Advantages are normalised in each minibatch, and gradients are clipped; the authors' program normalises over an update,
          its rewards too, and clips nothing.
        - `entropy` is 0 by default; 0.01 is published.

    Args:
        model: As for PPO, without memory, and `auxiliary(obs) -> (out, value, second value)`: `MLPActorCritic(auxiliary=True)`.
        policy_updates, aux_epochs, clone: See above. The observations of so many updates are kept, and saved.
        aux_minibatches: Optimiser steps per pass.
        epochs: Of PPO, 1 as published.
        The rest: see `PPO`.

    Raises:
        TypeError: the model has a memory.
        ValueError: a count is below 1, or clone is negative.
    """

    calls = {**PPO.calls, "auxiliary": "auxiliary(obs) -> (out, value, second): as evaluate, and one more value [N],"}
    fitting_models = "MLPActorCritic and ConvActorCritic with auxiliary=True"
    takes = Takes()

    def __init__(
        self, model: Model | Callable[[], Model], *, policy_updates: int = 32, aux_epochs: int = 6, aux_minibatches: int = 16,
        clone: float = 1.0, epochs: int = 1, clip: float = 0.2, minibatches: int = 4,
        minibatch_rows: int | None = None, target_kl: float | None = None, dual_clip: float | None = None,
        value_clip: float | None = None, kl_weight: float = 0.0, adaptive_kl: float | None = None, gamma: float = 0.99,
        lam: float = 0.95, entropy: float | Schedule = 0.0, value_weight: float = 0.5, normalize: bool = True,
        reward_scale: float = 1.0, lr: float | Schedule = 3e-4, max_grad_norm: float | None = 0.5,
    ) -> None:
        super().__init__(model, clip=clip, epochs=epochs, minibatches=minibatches, minibatch_rows=minibatch_rows,
                         target_kl=target_kl, dual_clip=dual_clip, value_clip=value_clip, kl_weight=kl_weight,
                         adaptive_kl=adaptive_kl, gamma=gamma, lam=lam, entropy=entropy, value_weight=value_weight,
                         normalize=normalize, reward_scale=reward_scale, lr=lr, max_grad_norm=max_grad_norm)
        if self.recurrent:
            raise TypeError(f"PPG: {type(self.model).__name__} has a memory; use a model without one, such as MLPActorCritic")
        if min(policy_updates, aux_epochs, aux_minibatches) < 1 or clone < 0.0:
            raise ValueError(f"PPG: policy_updates is {policy_updates}, aux_epochs {aux_epochs}, aux_minibatches "
                             f"{aux_minibatches} and clone {clone}; expected at least 1 each, and 0")
        self.policy_updates, self.aux_epochs, self.aux_minibatches = policy_updates, aux_epochs, aux_minibatches
        self.clone_weight = clone
        self._kept: list[dict[str, Any]] = []  # flat observations and returns of the updates of the phase, as arrays
        self._phase: Batch | None = None  # all of them, while the auxiliary phase goes on

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), "clone": "it is kept as `clone_weight`; assign that"}

    def check_model(self, inputs: Batch) -> None:
        super().check_model(inputs)
        self.check_kl(inputs)
        _, value, second = answer(self, "auxiliary", inputs.obs)
        for name, part in (("value", value), ("second", second)):
            check_shape(self, "auxiliary", part, (2,), part=name)

    def minibatches(self, batch: Batch) -> Iterable[Batch]:
        yield from super().minibatches(batch)
        rows = {**dict(leaves(batch.obs, "obs")), "returns": batch.returns}
        self._kept.append({name: to_numpy(part).copy() for name, part in rows.items()})
        if len(self._kept) < self.policy_updates:
            return
        kept, self._kept = self._kept, []
        columns = {name: torch.from_numpy(np.concatenate([rows[name] for rows in kept])) for name in kept[0]}
        self._phase = Batch(nest({name: column.to(batch.returns.device) for name, column in columns.items()}))
        n = len(self._phase.returns)
        parts = min(self.aux_minibatches, n)
        for _ in range(self.aux_epochs):
            order = torch.from_numpy(self.rng.permutation(n))
            for k in range(parts):
                yield Batch(index=order[n * k // parts : n * (k + 1) // parts])
        self._phase = None

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        if "index" not in batch:
            return super().learn(batch)
        phase = self._phase
        assert phase is not None
        if "out" not in phase:  # its first step
            with torch.no_grad():
                phase.out = Batch({name: part.clone() for name, part in self.model.policy(phase.obs)[0].items()})
        rows = phase[batch.index]
        out, value, second = self.model.auxiliary(rows.obs)
        aux_loss, kl = 0.5 * (rows.returns - second).square().mean(), self.model.head.kl(rows.out, out).mean()
        loss = aux_loss + self.clone_weight * kl + 0.5 * (rows.returns - value).square().mean()
        return {"loss": loss, "aux_loss": aux_loss.detach(), "clone_kl": kl.detach()}
