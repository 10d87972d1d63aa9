"""A2C, advantage actor-critic on the rows of one unroll, and what other policy gradients share with it; for discrete and
continuous actions, with or without memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F

from parl_like.algorithms.unrolls import discounts, in_chunks, normalized, rows_at_once, sequences, sequences_in_chunks
from parl_like.data.returns import gae, next_values
from parl_like.learning._written import squared, within
from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Algorithm, Schedule, Window, value_of
from parl_like.learning.array_prediction import gives
from parl_like.learning.explorers import (
    GSDE,
    Beta,
    Categorical,
    Explorer,
    Gaussian,
    MultiCategorical,
    SquashedGaussian,
    StructuredExplorer,
    n_logits,
)
from parl_like.learning.model import Model, one_step
from parl_like.learning.model_check import answer, check_shape, refuse
from parl_like.learning.module_modes import declares_modes
from parl_like.learning.native import WrittenEvaluation, WrittenLoss, float32_of, twin_of
from parl_like.values.action_codec import ActionCodec
from parl_like.values.batch import Batch
from parl_like.values.spec import Array, leaf_spaces, nest


def keeps_values(model: Model) -> bool:
    """Return whether values that `evaluate` of a model gives while it acts serve for learning. Not those of a class made from one
    with `keeps_values` that acts in its own way, nor of a network that does something else while it learns."""
    kind = type(model)
    says = next(one for one in kind.__mro__ if "keeps_values" in vars(one))
    return kind.keeps_values and not declares_modes(model) and all(
        name not in vars(model) and getattr(kind, name) is getattr(says, name) for name in ("policy", "evaluate"))


class ActorCritic(Algorithm):
    """The base of A2C, PPO and others: acting with the policy head alone, and advantages for the rows of an unroll.

    Rows come flat: segments of all agents one after the other, time order inside, `last` marking each cut. Values and
    log-probabilities are computed here, for the whole batch at once, not while acting. A model whose policy and value share
    most of their work (`keeps_values`) gives out both while acting; rows that are as old as the parameters need no second pass.

    Differences:
        None: it is a base, and no algorithm of a paper. The classes made from it say what differs.

    Args:
        model: Offers `policy`, `value`, `evaluate` and `head`, see `parl_like.learning.model`.
        gamma: Discount per step. lam: λ of GAE (Schulman et al. 2016).
        entropy: Weight of the entropy bonus, a number or a schedule over optimiser steps. value_weight: Weight of the value loss.
        normalize: Advantages of a learning batch (PPO: of a minibatch) to mean 0 and standard deviation 1.
        reward_scale: Rewards are multiplied by it before anything else.
    """

    window = Window(in_order=True)
    one_reward = True
    adam_eps = 1e-5  # as the published PPO has it (Huang et al. 2022)
    normalizes_minibatches = False  # whether advantages are normalised in each minibatch, not once in the update
    compares = False  # whether `learn` reads what the policy gave out when the update began, `batch.out`
    calls = {
        "policy": "policy(obs, state) -> (out, state): out is {'logits': [N, A]} or {'mean', 'log_std'},",
        "value": "value(obs, state) -> [N]", "evaluate": "evaluate(obs, state, first) -> (out, value): as policy, and value [N],",
        "head": "head: log_prob(out, act) -> [N], entropy(out) -> [N], explorer ('categorical' …),",
    }
    fitting_models = "MLPActorCritic, ConvActorCritic and RecurrentActorCritic"
    takes: Takes | None = Takes(memory="yes")

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, lam: float = 0.95, entropy: float | Schedule = 0.0,
        value_weight: float = 0.5, normalize: bool = True, reward_scale: float = 1.0, lr: float | Schedule = 3e-4,
        max_grad_norm: float | None = 0.5,
    ) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        self.gamma, self.lam, self.entropy, self.value_weight = gamma, lam, entropy, value_weight
        self.normalize, self.reward_scale = normalize, reward_scale
        self.recurrent = bool(self.model.state_specs())
        self.keeps = keeps_values(self.model) and not self.recurrent and type(self).process is ActorCritic.process

    def value_shapes(self, n: int) -> tuple[tuple[int, ...], ...]:
        """Return the shapes that `value` of n rows may have."""
        return ((n,),)

    def check_model(self, inputs: Batch) -> None:
        model, obs, state, n = self.model, inputs.obs, inputs.get("state"), 2
        explorer = getattr(model.head, "explorer", None)
        if explorer not in ("categorical", "multi_categorical", "gaussian", "squashed_gaussian", "gsde", "beta", "structured"):
            raise refuse(self, "head.explorer", "one of these names", repr(explorer))
        heads = dict(model.head.parts) if explorer == "structured" else {"": model.head}
        expected: dict[str, tuple[int, ...]] = {}
        for name, space in leaf_spaces(model.act_space, ""):
            kinds: tuple[str, ...] = ("logits",)
            numbers = n_logits(space)
            if not numbers:
                numbers, kinds = math.prod(space.shape or ()), getattr(heads.get(name[1:]), "outputs", ("mean", "log_std"))
            expected |= {f"{kind}{name}": (n, numbers) for kind in kinds}
        out, after = self._checked_pair("policy", answer(self, "policy", obs, state), expected, (Mapping, Batch))
        if set(after.keys()) != set(model.state_specs()):
            raise refuse(self, "policy", f"the state {sorted(model.state_specs())} of state_specs()",
                         f"the state {sorted(after.keys())}")
        if "value" in self.calls:
            check_shape(self, "value", answer(self, "value", obs, state), *self.value_shapes(n))
        if "evaluate" in self.calls:
            learned = answer(self, "evaluate", one_step(obs) if self.recurrent else obs, state)
            out, value = self._checked_pair("evaluate", learned, expected, torch.Tensor)
            check_shape(self, "evaluate", value, *self.value_shapes(n), part="value")
        act = {spec.name: torch.from_numpy(spec.zeros(n)) for spec in ActionCodec(model.act_space).specs}
        check_shape(self, "head.log_prob", model.head.log_prob(out, Batch(nest(act)).act), (n,))
        check_shape(self, "head.entropy", model.head.entropy(out), (n,))

    def check_kl(self, inputs: Batch) -> None:
        """Check that the head has `kl(out, other) -> [N]`, for algorithms that read it."""
        head = self.model.head
        if not hasattr(head, "kl"):
            raise refuse(self, "head.kl", "kl(out, other) -> [N], the KL divergence", f"none of {type(head).__name__}")
        out, _ = self.model.policy(inputs.obs, inputs.get("state"))
        check_shape(self, "head.kl", head.kl(out, out), (2,))

    def _checked_pair(self, name: str, value: Any, expected: Mapping[str, tuple[int, ...]], second: Any) -> tuple[Any, Any]:
        """`value` where it is (outputs for the head, a `second`), as the model's method `name` should return."""
        parts = value if isinstance(value, tuple) else (value,)
        if len(parts) != 2 or not isinstance(parts[0], (Mapping, Batch)) or not isinstance(parts[1], second):
            raise refuse(self, name, "that pair", ", ".join(type(part).__name__ for part in parts))
        for field, shape in expected.items():
            if field not in parts[0]:
                raise refuse(self, name, f"{field!r} in it", ", ".join(parts[0].keys()) or "nothing")
            check_shape(self, name, parts[0][field], shape, part=field)
        return parts

    def explorer(self) -> Explorer:
        return explorer_of(self.model.head, self.model.act_space)

    @gives("policy")
    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        if self.keeps:
            out, value = self.model.evaluate(inputs.obs)
            # 0 is left for rows of which nothing was kept: those of actions that were not predicted here.
            return {**out, "kept": {**out, "value": value, "updates": torch.full(value.shape, self.updates + 1)}}
        out, state = self.model.policy(inputs.obs, inputs.get("state"))
        return {**out, "state": state} if state else out

    def kept(self, batch: Batch) -> tuple[Mapping[str, torch.Tensor], torch.Tensor] | None:
        """Return what `evaluate` gives for the rows, kept from acting; None: not all have it from the parameters of now."""
        if "kept" not in batch or not bool((batch.kept.updates == self.updates + 1).all()):
            return None
        return {name: part for name, part in batch.kept.items() if name not in ("value", "updates")}, batch.kept.value

    def evaluate(self, batch: Batch) -> tuple[Mapping[str, torch.Tensor], torch.Tensor]:
        """Policy outputs and values for every row, in row order."""
        if not self.recurrent:
            if torch.is_grad_enabled():
                return self.model.evaluate(batch.obs)  # type: ignore[no-any-return]
            return in_chunks(self.model.evaluate, batch.obs)  # type: ignore[no-any-return]
        index, rows = sequences(batch.last)
        at_once = index.numel() if torch.is_grad_enabled() else rows_at_once(batch.obs)
        out, value = sequences_in_chunks(lambda at: self.model.evaluate(
            batch.obs[at], {key: part[at[0]] for key, part in batch.state.items()}), index, at_once)
        return {key: part[rows] for key, part in out.items()}, value[rows]

    def process(self, batch: Batch) -> Batch:
        """Adds `advantage`, `returns` (targets of the values), `log_prob` and `value` [N], and to compare with `out`, what the
        head reads."""
        last = batch.last
        if self.recurrent:
            out, value = self.evaluate(batch)
            _, state = self.model.policy(batch.obs[last], {k: v[last] for k, v in batch.state.items()})
            boot = self.model.value(batch.obs_next[last], state)
        elif (kept := self.kept(batch)) is not None:
            out, value = kept
            boot = in_chunks(self.model.value, batch.obs_next[last])
        else:
            out, values = in_chunks(self.model.evaluate, batch.obs, batch.obs_next[last])
            n = len(last)
            value, boot = values[:n], values[n:]
            out = {k: v[:n] if len(v) == len(values) else v for k, v in out.items()}
        # Rows of an asynchronous run carry the log-probability they were taken with; in a synchronous run it is this one.
        batch.log_prob = batch.policy.log_prob if has_log_prob(batch) else self.model.head.log_prob(out, batch.act)
        batch.advantage, batch.returns = self.estimates(batch, out, value, boot)
        if self.normalize and not self.normalizes_minibatches:
            batch.advantage = normalized(batch.advantage)
        batch.value = value
        if self.compares:  # copies: a Gaussian's log_std is a view of the parameter, which changes under the update
            batch.out = Batch({name: part.clone() for name, part in out.items()})
        return batch

    def estimates(self, batch: Batch, out: Mapping[str, torch.Tensor], value: torch.Tensor,
                  boot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Advantages and targets of the values, both [N]: GAE. `boot`: the values of what follows each cut."""
        rew, discount, cuts, now, then = self.columns(batch, value, boot)
        advantage = torch.from_numpy(gae(rew, discount, now, then, cuts, self.lam)).to(value.device)
        return advantage, advantage + value

    def columns(self, batch: Batch, value: torch.Tensor, boot: torch.Tensor) -> tuple[Array, ...]:
        """Scaled rewards, discounts, cuts, V(s) and V(s') of the rows, as `parl_like.data.returns` reads them, [N] each."""
        cuts, now = batch.last.cpu().numpy(), value.cpu().numpy()
        rew = (batch.rew.cpu().numpy() * self.reward_scale).astype(np.float32)
        return rew, discounts(batch, self.gamma, ~batch.terminated), cuts, now, next_values(now, cuts, boot.cpu().numpy())

    def total_loss(self, policy_loss: torch.Tensor, value_loss: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        """policy_loss + value_weight · value_loss − weight of the entropy · entropy."""
        loss, weight = policy_loss + self.value_weight * value_loss, value_of(self.entropy, self.updates)
        return loss - weight * entropy if weight else loss

    def written(self, batch: Batch) -> WrittenEvaluation | None:
        """Return what the model says of the rows, with gradients that are written out; None: it has none."""
        written = getattr(self.model, "written", None)
        return None if self.recurrent or written is None else written(batch.obs, batch.act)

    def written_loss(self, written: WrittenEvaluation, batch: Batch, policy_loss: float, d_log_prob: Array,
                     value_clip: float | None = None) -> dict[str, Any]:
        """Return what `learn` does, of the policy's loss and its gradient by log π [N]."""
        weight, entropy = value_of(self.entropy, self.updates), written.policy.entropy
        old = None if value_clip is None else float32_of(batch.value)
        d_value, value_loss = squared(written.value, float32_of(batch.returns), self.value_weight, old, value_clip or 0.0)
        loss = policy_loss + self.value_weight * value_loss - (weight * entropy if weight else 0.0)
        return {"loss": WrittenLoss(loss, lambda: written.backward(d_log_prob, -weight, d_value)), "policy_loss": policy_loss,
                "value_loss": value_loss, "entropy": entropy}

    def value_and_entropy(self, out: Mapping[str, torch.Tensor], value: torch.Tensor, batch: Batch) -> tuple[torch.Tensor,
                                                                                                             torch.Tensor]:
        with torch.set_grad_enabled(bool(value_of(self.entropy, self.updates))):  # with weight 0 a metric, no gradient to pay for
            entropy = self.model.head.entropy(out).mean()
        return F.mse_loss(value, batch.returns), entropy


class A2C(ActorCritic):
    """One optimiser step per unroll (Mnih et al. 2016, synchronous):

    loss = −mean(log π(a|s) · A) + value_weight · mean((G − V)²) − entropy · mean(H),   A from GAE, G = A + V.

    Differences:
        - All agents' rows make one step together; the threads of the paper's A3C change shared parameters without waiting for
          each other.
        - Advantages are those of GAE with λ = 0.95; the paper has n-step returns, which `lam=1` gives.
        - Adam, with gradients cut to a norm of 0.5; the paper has RMSProp.
        - `normalize` is on in the class, and off in robots of `Robot.of`; the paper does not normalise advantages.
    """

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        out, value = self.evaluate(batch)
        policy_loss = -(self.model.head.log_prob(out, batch.act) * batch.advantage).mean()
        value_loss, entropy = self.value_and_entropy(out, value, batch)
        loss = self.total_loss(policy_loss, value_loss, entropy)
        return {"loss": loss, "policy_loss": policy_loss.detach(), "value_loss": value_loss.detach(), "entropy": entropy.detach()}

    @twin_of(learn, ActorCritic.evaluate, ActorCritic.value_and_entropy, ActorCritic.total_loss)
    def native_learn(self, batch: Batch) -> Mapping[str, Any] | None:
        if (written := self.written(batch)) is None:
            return None
        advantage = float32_of(batch.advantage)
        with np.errstate(over="ignore", invalid="ignore"):
            loss = within(-float(np.dot(written.policy.log_prob, advantage)) / len(advantage))
        return self.written_loss(written, batch, loss, advantage / -len(advantage))


def has_log_prob(batch: Batch) -> bool:
    """Return whether the rows have the log-probability that they were taken with; `policy` may have other outputs of `predict`,
    too."""
    return "policy" in batch and "log_prob" in batch.policy


def explorer_of(head: Any, act: gym.Space[Any]) -> Explorer:
    """The explorer that draws from a head's distribution."""
    if head.explorer == "structured":
        spaces = dict(leaf_spaces(act, "act"))
        return StructuredExplorer({name: explorer_of(part, spaces[f"act.{name}"]) for name, part in head.parts})
    if head.explorer == "categorical":
        return Categorical()
    if head.explorer == "multi_categorical":
        return MultiCategorical(head.nvec)
    shape: Any = act.shape
    if head.explorer == "gsde":
        return GSDE(shape, head.in_size)
    return {"beta": Beta, "gaussian": Gaussian, "squashed_gaussian": SquashedGaussian}[head.explorer](shape)
