"""IMPALA: actor-critic whose rows an older policy may have taken, corrected by V-trace; for one kind of reward or for several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from parl_like.algorithms.actor_critic import ActorCritic, has_log_prob
from parl_like.algorithms.unrolls import discounts, normalized, sequences
from parl_like.data.returns import next_values, vtrace
from parl_like.learning.algorithm import Schedule, value_of
from parl_like.learning.model import Model, sync
from parl_like.values.batch import Batch

Read = Callable[[Batch], tuple[Tensor, Tensor, Tensor]]
"""Rows → reward [N]; goes_on [N] bool, whether anything follows the row; counts [N] bool, the rows that this reward teaches."""


def env_reward(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The environment's reward (the first of several, for streams of several), until it terminates; every row counts."""
    return batch.rew if batch.rew.ndim == 1 else batch.rew[:, 0], ~batch.terminated, torch.ones_like(batch.terminated)


def planning_reward(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The reward of imagining: the second of two rewards, else the second `last_rew` of the observation that follows.

    Rows that imagined (`step_status` of their observation is 0 or 1) count. An episode of this reward is one stage: it ends with
    the last imagined step, after which `step_status` is 2 or 3. So rows that acted for real do not matter to those that count,
    either.
    """
    rew = batch.obs_next["last_rew"][:, 1] if batch.rew.ndim == 1 else batch.rew[:, 1]
    return rew, batch.obs_next["step_status"] < 2, batch.obs["step_status"] < 2


def curiosity_reward(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The surprise of a real step, which the world model had not expected: the third `last_rew` of the observation that follows,
    until the environment terminates; every row counts."""
    return batch.obs_next["last_rew"][:, 2], ~batch.terminated, torch.ones_like(batch.terminated)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One kind of reward. The model has a baseline for each: `value` is [N], or [N, S] in the order of the streams.

    Attributes:
        gamma: Discount per row.
        read: Finds reward, ends, and the rows that count in a batch. A function of a module, so that it can be pickled.
        cost: Weight of its policy and value loss, a number or a schedule over optimiser steps.
        entropy: For the rows that it counts, the weight of the entropy bonus in place of the algorithm's; None: that one.
        name: For metrics.
    """

    gamma: float
    read: Read = env_reward
    cost: float | Schedule = 1.0
    entropy: float | Schedule | None = None
    name: str = "real"

    def __post_init__(self) -> None:
        if not 0.0 <= self.gamma <= 1.0:
            raise ValueError(f"Stream {self.name!r}: gamma is {self.gamma}; expected a number in [0, 1]")


def thinker_streams(
    gamma: float, stage: int, cost: float | Schedule = 1.0, entropy: float | Schedule = 1e-4,
    curiosity: float | Schedule | None = None,
) -> tuple[Stream, ...]:
    """The real and the planning reward of the augmented MDP, and maybe curiosity, for rows that are augmented steps.

    Args:
        gamma: Discount per real step; each of the `stage` rows of a stage gets γ^(1/stage).
        cost: Of the planning reward. The original anneals it: `Linear(1.0, 0.0, updates of the run)`.
        entropy: Weight of the entropy of primary action and reset in imagined steps.
        curiosity: Cost of that reward (`curiosity_reward`), discounted and ended as the real one; None: there is none.

    Raises:
        ValueError: stage is below 1.
    """
    if stage < 1:
        raise ValueError(f"thinker_streams: stage is {stage}; expected at least 1 step")
    per_row = gamma ** (1.0 / stage)
    streams = Stream(gamma=per_row), Stream(gamma=per_row, read=planning_reward, cost=cost, entropy=entropy, name="planning")
    if curiosity is None:
        return streams
    return *streams, Stream(gamma=per_row, read=curiosity_reward, cost=curiosity, name="curiosity")


class IMPALA(ActorCritic):
    """One optimiser step per batch, however old its rows (Espeholt et al. 2018):

        ρ = π(a|s) / μ(a|s),  δ_t = min(ρ̄, ρ)(r + d V(s') − V),  v_t = V + δ_t + d λ min(c̄, ρ)(v_{t+1} − V_{t+1})
        A = min(ρ̄, ρ)(r + d v_{t+1} − V)                              with d = γ, or 0 where nothing goes on
        loss = Σ_streams cost · Σ_rows (−A log π(a|s) + value_weight · (v − V)²) − entropy · Σ_rows H + reg · Σ_rows reg

    Rows come flat, segments one after the other, `last` at each cut, as for A2C. μ is `policy.log_prob`, which helpers with
    `store_policy=True` keep; rows without it count as π's own. A model with a memory is run anew over each segment and the
    observation after it, from the `state` stored with its first row.

    *Rows of the Thinker original.* Its row t has the observation, and reward, end and step status of the action before; so it
    unrolls one row more, pairs action t with the outputs of row t − 1, and bootstraps with its last baseline. Ours holds the
    observation, its own action and what came of it (`rew`, `terminated`, `obs_next`): the same terms without shifting, and
    V(obs_next) at the cut is that baseline. Behind a time limit the original stops as if the episode had terminated, and throws
    the final observation away; here V of the true final observation stands for the rest.

    Differences:
        - Adam; the paper has RMSProp.
        - Losses are means over the rows by default; the paper sums them (`reduction='sum'`).
        - Several rewards and scaled advantages are additions (`streams`, `return_norm`).

    Args:
        model: As for A2C; `evaluate` may give `reg` [N] beside what the head reads.
        streams: The rewards; None: the environment's alone, discounted by `gamma`.
        gamma: Of that one stream. lam: λ. rho_bar, c_bar: ρ̄ ≥ c̄.
        entropy, value_weight, reward_scale: As for A2C.
        reg: Weight of `reg`.
        reduction: 'mean' over the rows of a batch, or 'sum', the original's; its learning rate and `max_grad_norm` (1200) go with
            sums.
        return_norm: Divides advantages by max(norm_floor, distance from the 5th to the 95th percentile) of the last 100,000
            'targets' or 'advantages' of the stream; 'batch': mean 0 and standard deviation 1 in the batch; None. (Original: 0, 1,
            2, −1.)
        faithful: A time limit ends the episode, as in the original.
        lr, adam_eps: Of Adam (the original's ε is 1e-8).

    Raises:
        ValueError: c_bar is below 0 or above rho_bar; reduction or return_norm is none of those above; or there is no stream,
            or two have one name.
    """

    def __init__(
        self, model: Model | Callable[[], Model], *, streams: Sequence[Stream] | None = None, gamma: float = 0.99,
        lam: float = 1.0,
        rho_bar: float = 1.0, c_bar: float = 1.0, entropy: float | Schedule = 0.01, value_weight: float = 0.5, reg: float = 0.0,
        reward_scale: float = 1.0, reduction: Literal["mean", "sum"] = "mean", norm_floor: float = 1.0,
        return_norm: Literal["targets", "advantages", "batch"] | None = None, faithful: bool = False, lr: float | Schedule = 6e-4,
        max_grad_norm: float | None = 40.0, adam_eps: float = 1e-5,
    ) -> None:
        super().__init__(model, gamma=gamma, lam=lam, entropy=entropy, value_weight=value_weight, normalize=False,
                         reward_scale=reward_scale, lr=lr, max_grad_norm=max_grad_norm)
        if not 0.0 <= c_bar <= rho_bar:
            raise ValueError(f"IMPALA: c_bar is {c_bar} and rho_bar {rho_bar}; expected 0 ≤ c_bar ≤ rho_bar")
        if reduction not in ("mean", "sum") or return_norm not in ("targets", "advantages", "batch", None):
            raise ValueError(f"IMPALA: reduction is {reduction!r} and return_norm {return_norm!r}; expected 'mean' or 'sum', "
                             "and 'targets', 'advantages', 'batch' or None")
        self.one_reward = streams is None
        self.streams = (Stream(gamma=gamma),) if streams is None else tuple(streams)
        if not self.streams or len({stream.name for stream in self.streams}) < len(self.streams):
            raise ValueError(f"IMPALA: streams are {[stream.name for stream in self.streams]}; expected at least one, and names "
                             "that differ")
        self.rho_bar, self.c_bar, self.reg, self.reduction = rho_bar, c_bar, reg, reduction
        self.return_norm, self.norm_floor, self.faithful, self.adam_eps = return_norm, norm_floor, faithful, adam_eps
        self.recent = Recent(len(self.streams)) if return_norm in ("targets", "advantages") else None

    def value_shapes(self, n: int) -> tuple[tuple[int, ...], ...]:
        streams = len(self.streams)
        return ((n,), (n, 1)) if streams == 1 else ((n, streams),)

    def fixed_settings(self) -> dict[str, str]:
        again = "build a new algorithm with another"
        fixed = {"streams": f"model and statistics are made for these; {again}", "gamma": f"the streams have it; {again}"}
        if not self.reg:
            fixed["reg"] = f"it was built without; {again}"
        if self.recent is None and self.return_norm is None:
            fixed["return_norm"] = f"it was built without the statistics; {again}"
        return {**super().fixed_settings(), **fixed}

    def networks(self) -> dict[str, torch.nn.Module]:
        return super().networks() | ({} if self.recent is None else {"recent": self.recent})

    def process(self, batch: Batch) -> Batch:
        """Everything is computed in `learn`, by the one pass that has gradients."""
        if self.faithful:
            batch.terminated = batch.terminated | batch.truncated
        return batch

    def unroll(self, batch: Batch) -> tuple[Mapping[str, Tensor], Tensor, Tensor]:
        """Return what the head reads of every row, the baselines [N, S], and those after each `last` row [cuts, S], in one
        pass.

        Raises:
            ValueError: the model has not one baseline for each stream.
        """
        rows: Any
        cuts: Any
        n = len(batch.last)
        both = Batch.cat([Batch(obs=batch.obs), Batch(obs=batch.obs_next[batch.last])]).obs
        if not self.recurrent:
            out, value = self.model.evaluate(both)
            rows, cuts = slice(0, n), slice(n, None)
        else:
            index, rows = sequences(batch.last)  # [T, B]; one step more holds, behind its end, each segment's next observation
            cuts = rows[batch.last] + index.shape[1]
            steps = torch.cat([index, index[-1:]]).flatten()
            steps[cuts] = torch.arange(n, n + index.shape[1], device=steps.device)
            state = {key: part[index[0]] for key, part in batch.state.items()}
            out, value = self.model.evaluate(both[steps.view(-1, index.shape[1])], state)
        value = value.reshape(len(value), -1)
        if value.shape[1] != len(self.streams):
            raise ValueError(f"IMPALA: the model has {value.shape[1]} baselines, and there are {len(self.streams)} streams "
                             f"({', '.join(s.name for s in self.streams)}); give it one for each")
        return {key: part[rows] for key, part in out.items()}, value[rows], value[cuts].detach()

    def targets(self, i: int, batch: Batch, value: Tensor, boot: Tensor, log_ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """v, A and whether the row counts, each [N], of stream `i`. value, log_ratio [N]; boot: V after each `last` row."""
        stream = self.streams[i]
        rew, goes_on, counts = stream.read(batch)
        discount = discounts(batch, stream.gamma, goes_on)
        last, now, then, ratios = (np.ascontiguousarray(x.cpu().numpy()) for x in (batch.last, value, boot, log_ratio))
        rewards = (rew.cpu().numpy() * self.reward_scale).astype(np.float32)
        v, a = vtrace(rewards, discount, now, next_values(now, last, then), ratios, last,
                      rho_bar=self.rho_bar, c_bar=self.c_bar, lam=self.lam)
        return torch.from_numpy(v).to(value.device), torch.from_numpy(a).to(value.device), counts

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        out, value, boot = self.unroll(batch)
        log_prob = self.model.head.log_prob(out, batch.act)
        log_ratio = log_prob.detach() - batch.policy.log_prob if has_log_prob(batch) else torch.zeros_like(log_prob)
        share = 1.0 / len(log_prob) if self.reduction == "mean" else 1.0
        weights = torch.full_like(log_ratio, value_of(self.entropy, self.updates))
        loss = log_prob.new_zeros(())
        results: dict[str, Any] = {}
        for i, stream in enumerate(self.streams):
            target, advantage, counts = self.targets(i, batch, value[:, i].detach(), boot[:, i], log_ratio)
            target, advantage = target[counts], advantage[counts]
            policy_loss = -(self.scaled(i, target, advantage) * log_prob[counts]).sum() * share
            value_loss = (target - value[counts, i]).square().sum() * share
            loss = loss + value_of(stream.cost, self.updates) * (policy_loss + self.value_weight * value_loss)
            if stream.entropy is not None:
                weights[counts] = value_of(stream.entropy, self.updates)
            prefix = "" if len(self.streams) == 1 else f"{stream.name}_"
            results |= {f"{prefix}policy_loss": policy_loss.detach(), f"{prefix}value_loss": value_loss.detach()}
        entropy = self.model.head.entropy(out)
        loss = loss - (weights * entropy).sum() * share
        if self.reg:
            loss = loss + self.reg * out["reg"].sum() * share
        return {"loss": loss, **results, "entropy": entropy.detach().mean(),
                "rho": log_ratio.exp().clamp(max=self.rho_bar).mean()}

    def scaled(self, i: int, target: Tensor, advantage: Tensor) -> Tensor:
        """Advantages of stream `i` after `return_norm`."""
        if self.return_norm == "batch":
            return normalized(advantage)
        if self.recent is None:
            return advantage
        return advantage / self.recent.spread(i,
                                              target if self.return_norm == "targets" else advantage).clamp(min=self.norm_floor)


class Recent(torch.nn.Module):
    """The newest numbers of each stream, saved with the networks, and the distance between their 5th and 95th percentile."""

    numbers: Tensor
    count: Tensor

    def __init__(self, n_streams: int, size: int = 100_000) -> None:
        super().__init__()
        self.register_buffer("numbers", torch.zeros(n_streams, size))
        self.register_buffer("count", torch.zeros(n_streams, dtype=torch.int64))

    def spread(self, i: int, new: Tensor) -> Tensor:
        """Takes in `new` [N] of stream `i`; then the distance, a scalar (0 before the first number)."""
        size = self.numbers.shape[1]
        new = new[-size:]
        self.numbers[i, (self.count[i] + torch.arange(len(new), device=new.device)) % size] = new
        self.count[i] += len(new)
        held = self.numbers[i, : min(int(self.count[i]), size)]
        if not len(held):
            return held.new_zeros(())
        quantiles = torch.quantile(held, held.new_tensor([0.05, 0.95]))
        return quantiles[1] - quantiles[0]

    def sync_from(self, other: torch.nn.Module, decay: float = 0.0) -> None:
        sync(self, other, decay)
