"""PPO, proximal policy optimisation (Schulman et al. 2017): several epochs of minibatches on the rows of one unroll, which may
move the policy only so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from parl_like.algorithms.actor_critic import ActorCritic
from parl_like.algorithms.unrolls import cut_into, minibatches_of, normalized, parts_of
from parl_like.learning._written import clipped
from parl_like.learning.algorithm import Schedule
from parl_like.learning.model import Model
from parl_like.learning.native import float32_of, twin_of
from parl_like.values.batch import Batch


class PPO(ActorCritic):
    """Several epochs of minibatches with a clipped ratio (Schulman et al. 2017):

    ρ = π(a|s) / π_old(a|s),
    loss = −mean(min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)) + value_weight · mean((G − V)²) − entropy · mean(H) + β · mean(KL(π_old ‖ π)).

    Differences:
        - Advantages are normalised in each minibatch, gradients are clipped at a norm of 0.5, and Adam's ε is 10⁻⁵; the authors'
          program does so, and the paper does not say it.
        - There are 4 epochs of 4 minibatches by default; the paper has 10 epochs for MuJoCo, 3 for Atari.
        - Learning rate and `clip` stay, unless you give a schedule for the rate; the paper lowers both to 0 for Atari.
        - `dual_clip`, `value_clip` and `target_kl` are no part of the paper, and are off by default.

    Args:
        clip: ε. Large (1e9) for a penalty alone.
        epochs: Passes over the unroll.
        minibatches: Optimiser steps per pass; rows are divided evenly, so none is dropped.
        minibatch_rows: Instead of `minibatches`: rows of one step, as far as they divide.
        weigh_rows: The loss of a minibatch counts by its rows / `minibatch_rows`, so that few rows move the policy less.
        sequence: Rows of the pieces that the segments are cut into, in order of time, before these are shuffled; a memory begins
            each as it was there. None: single rows are shuffled, or where the model has a memory whole segments.
        target_kl: Passes end early when the approximate KL divergence of one's last minibatch exceeds this; None: never.
        dual_clip: c > 1: where A < 0 a row's part is at least c A, however large ρ is (Ye et al. 2020); None: not.
        value_clip: Values within this of V_old count, too: max((G − V)², (G − clip(V, V_old ± value_clip))²); None: not.
        kl_weight: β.
        adaptive_kl: β is doubled after an update that has moved the policy by a KL divergence above 1.5 times this, and halved
            where it is below this / 1.5; None: β stays.
        The rest: see `ActorCritic`.

    Raises:
        ValueError: kl_weight is negative, adaptive_kl is not above 0, or kl_weight is 0 although it is to adapt; weigh_rows
            without `minibatch_rows`.
    """

    normalizes_minibatches = True

    def __init__(
        self, model: Model | Callable[[], Model], *, clip: float = 0.2, epochs: int = 4, minibatches: int = 4,
        minibatch_rows: int | None = None, target_kl: float | None = None, dual_clip: float | None = None,
        value_clip: float | None = None, kl_weight: float = 0.0, adaptive_kl: float | None = None, gamma: float = 0.99,
        lam: float = 0.95,
        entropy: float | Schedule = 0.0, value_weight: float = 0.5, normalize: bool = True, reward_scale: float = 1.0,
        lr: float | Schedule = 3e-4, max_grad_norm: float | None = 0.5, weigh_rows: bool = False, sequence: int | None = None,
    ) -> None:
        super().__init__(model, gamma=gamma, lam=lam, entropy=entropy, value_weight=value_weight, normalize=normalize,
                         reward_scale=reward_scale, lr=lr, max_grad_norm=max_grad_norm)
        if kl_weight < 0.0 or adaptive_kl is not None and not (adaptive_kl > 0.0 and kl_weight):
            raise ValueError(f"PPO: kl_weight is {kl_weight} and adaptive_kl {adaptive_kl}; expected a weight of at least 0, "
                             "above 0 where it adapts, and adaptive_kl above 0 or None")
        if weigh_rows and not minibatch_rows:
            raise ValueError("PPO: weigh_rows counts a minibatch by its rows / minibatch_rows, which is None; give it")
        self.weigh_rows, self.sequence = weigh_rows, sequence
        self.clip, self.epochs, self.n_minibatches = clip, epochs, minibatches
        self.minibatch_rows, self.target_kl = minibatch_rows, target_kl
        self.dual_clip, self.value_clip, self.kl_weight, self.adaptive_kl = dual_clip, value_clip, kl_weight, adaptive_kl
        self.compares = kl_weight > 0.0
        self._kl = 0.0

    def fixed_settings(self) -> dict[str, str]:
        fixed = {**super().fixed_settings(), "minibatches": "it is kept as `n_minibatches`; assign that"}
        if not self.minibatch_rows:
            fixed["weigh_rows"] = "it counts by `minibatch_rows`, which it was built without; build it with both"
        alone = dict.fromkeys(("kl_weight", "adaptive_kl"), "it was built without the divergence; give kl_weight above 0")
        return fixed if self.compares else {**fixed, **alone}

    def check_model(self, inputs: Batch) -> None:
        super().check_model(inputs)
        if self.kl_weight:
            self.check_kl(inputs)

    def minibatches(self, batch: Batch) -> Iterable[Batch]:
        by_rows = self.minibatch_rows or 0
        parts = parts_of(self, len(batch.last), self.n_minibatches, "minibatch_rows" if by_rows else "minibatches", by_rows)
        names = ["obs", "act", "advantage", "returns", "log_prob", *(("last", "state") if self.recurrent else ())]
        names += ["value"] * (self.value_clip is not None) + ["out"] * self.compares
        fields, last = Batch({name: batch[name] for name in names}), batch.last
        if self.sequence is not None:
            last = cut_into(last, self.sequence)
            if self.recurrent:
                fields.last = last
        for _ in range(self.epochs):
            yield from minibatches_of(fields, last, parts, self.rng, self.recurrent or self.sequence is not None)
            if self.target_kl is not None and self._kl > self.target_kl:
                return

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        out, value = self.evaluate(batch)
        advantage = normalized(batch.advantage) if self.normalize else batch.advantage
        log_ratio = self.model.head.log_prob(out, batch.act) - batch.log_prob
        ratio = log_ratio.exp()
        # min(ρ A, clip(ρ) A): only one of the two bounds can be the smaller, which one is the sign of A.
        bound = torch.where(advantage >= 0, 1.0 + self.clip, 1.0 - self.clip)
        gain = torch.minimum(ratio * advantage, bound * advantage)
        if self.dual_clip is not None:
            gain = torch.where(advantage < 0, torch.maximum(gain, self.dual_clip * advantage), gain)
        policy_loss = -gain.mean()
        value_loss, entropy = self.value_and_entropy(out, value, batch)
        if self.value_clip is not None:
            near = batch.value + (value - batch.value).clamp(-self.value_clip, self.value_clip)
            value_loss = torch.maximum((value - batch.returns).square(), (near - batch.returns).square()).mean()
        loss = self.total_loss(policy_loss, value_loss, entropy)
        with torch.no_grad():
            kl = (ratio - 1.0 - log_ratio).mean()
        if self.target_kl is not None:
            self._kl = float(kl)
        result = {"policy_loss": policy_loss.detach(), "value_loss": value_loss.detach(), "entropy": entropy.detach(), "kl": kl}
        if self.kl_weight:
            loss = loss + self.kl_weight * self.model.head.kl(batch.out, out).mean()
            result["kl_weight"] = self.kl_weight
        if self.weigh_rows and self.minibatch_rows:
            loss = loss * (len(batch.log_prob) / self.minibatch_rows)
        return {"loss": loss, **result}

    @twin_of(learn, ActorCritic.evaluate, ActorCritic.value_and_entropy, ActorCritic.total_loss)
    def native_learn(self, batch: Batch) -> Mapping[str, Any] | None:
        if self.kl_weight or self.weigh_rows or (written := self.written(batch)) is None:
            return None
        d_log_prob, policy_loss, kl = clipped(written.policy.log_prob, float32_of(batch.log_prob), float32_of(batch.advantage),
                                              self.normalize, self.clip, self.dual_clip or 0.0)
        if self.target_kl is not None:
            self._kl = kl
        return {**self.written_loss(written, batch, policy_loss, d_log_prob, self.value_clip), "kl": kl}

    def post_process(self, batch: Batch) -> None:
        if self.adaptive_kl is not None:
            moved = float(self.model.head.kl(batch.out, self.evaluate(batch)[0]).mean()) / self.adaptive_kl
            factor = 2.0 if moved > 1.5 else 0.5 if moved < 1.0 / 1.5 else 1.0
            self.kl_weight = min(max(factor * self.kl_weight, 1e-6), 1e6)  # so that it always finds back
