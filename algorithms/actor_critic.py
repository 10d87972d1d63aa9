"""A2C and PPO: advantage actor-critic on the rows of one unroll, for discrete and continuous actions, with or without memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F

from parl_like.action_map import stored_specs
from parl_like.algorithm import Algorithm, Schedule, Window, check_shares, value_of
from parl_like.batch import Batch
from parl_like.contract import answer, check_shape, refuse
from parl_like.data.returns import gae, next_values
from parl_like.explorer import (
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
from parl_like.model import Model, one_step
from parl_like.spec import Array, leaf_spaces, nest


class ActorCritic(Algorithm):
    """What A2C and PPO share: acting with the policy head alone, and advantages for the rows of an unroll.

    Rows come flat: segments of all agents one after the other, time order inside, `last` marking each cut. Values and
    log-probabilities are computed here, for the whole batch at once, not while acting.

    Args:
        model: Offers `policy`, `value`, `evaluate` and `head`, see `parl_like.model`.
        gamma: Discount per step. lam: λ of GAE (Schulman et al. 2016).
        entropy: Weight of the entropy bonus, a number or a schedule over optimiser steps. value_weight: Weight of the value loss.
        normalize: Advantages of a learning batch (PPO: of a minibatch) to mean 0 and standard deviation 1.
        reward_scale: Rewards are multiplied by it before anything else.
    """

    window = Window(in_order=True)
    one_reward = True
    adam_eps = 1e-5  # as the published PPO has it (Huang et al. 2022)
    normalizes_minibatches = False  # whether advantages are normalised in each minibatch, not once in the lesson
    compares = False  # whether `learn` reads what the policy gave out when the lesson began, `batch.out`
    calls = {
        "policy": "policy(obs, state) -> (out, state): out is {'logits': [N, A]} or {'mean', 'log_std'},",
        "value": "value(obs, state) -> [N]", "evaluate": "evaluate(obs, state, first) -> (out, value): as policy, and value [N],",
        "head": "head: log_prob(out, act) -> [N], entropy(out) -> [N], explorer ('categorical' …),",
    }
    fitting_models = "MLPActorCritic, ConvActorCritic and RecurrentActorCritic"

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, lam: float = 0.95, entropy: float | Schedule = 0.0,
        value_weight: float = 0.5, normalize: bool = True, reward_scale: float = 1.0, lr: float | Schedule = 3e-4,
        max_grad_norm: float | None = 0.5,
    ) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        check_shares(self, gamma=gamma, lam=lam)
        self.gamma, self.lam, self.entropy, self.value_weight = gamma, lam, entropy, value_weight
        self.normalize, self.reward_scale = normalize, reward_scale
        self.recurrent = bool(self.model.state_specs())

    def value_shapes(self, n: int) -> tuple[tuple[int, ...], ...]:
        """What `value` of n rows may look like."""
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
        if set(after) != set(model.state_specs()):
            raise refuse(self, "policy", f"the state {sorted(model.state_specs())} of state_specs()",
                         f"the state {sorted(after)}")
        if "value" in self.calls:
            check_shape(self, "value", answer(self, "value", obs, state), *self.value_shapes(n))
        if "evaluate" in self.calls:
            learned = answer(self, "evaluate", one_step(obs) if self.recurrent else obs, state)
            out, value = self._checked_pair("evaluate", learned, expected, torch.Tensor)
            check_shape(self, "evaluate", value, *self.value_shapes(n), part="value")
        act = {spec.name: torch.from_numpy(spec.zeros(n)) for spec in stored_specs(model.act_space, model.act_specs)}
        check_shape(self, "head.log_prob", model.head.log_prob(out, Batch(nest(act)).act), (n,))
        check_shape(self, "head.entropy", model.head.entropy(out), (n,))

    def check_kl(self, inputs: Batch) -> None:
        """Of algorithms that read it: that the head has `kl(out, other) -> [N]`."""
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

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        out, state = self.model.policy(inputs.obs, inputs.get("state"))
        return {**out, "state": state} if state else out

    def evaluate(self, batch: Batch) -> tuple[Mapping[str, torch.Tensor], torch.Tensor]:
        """Policy outputs and values for every row, in row order."""
        if not self.recurrent:
            return self.model.evaluate(batch.obs)  # type: ignore[no-any-return]
        index, rows = sequences(batch.last)
        obs = batch.obs[index]  # a nested observation is a Batch, which takes the same index
        state = {key: value[index[0]] for key, value in batch.state.items()}
        out, value = self.model.evaluate(obs, state)
        return {key: part[rows] for key, part in out.items()}, value[rows]

    def process(self, batch: Batch) -> Batch:
        """Adds `advantage`, `returns` (targets of the values), `log_prob` and `value` [N], and to compare with `out`, what the
        head reads."""
        last = batch.last
        if self.recurrent:
            out, value = self.evaluate(batch)
            _, state = self.model.policy(batch.obs[last], {k: v[last] for k, v in batch.state.items()})
            boot = self.model.value(batch.obs_next[last], state)
        else:
            both = _concatenate(batch.obs, batch.obs_next[last])
            out, values = self.model.evaluate(both)
            n = len(last)
            value, boot = values[:n], values[n:]
            out = {k: v[:n] if len(v) == len(values) else v for k, v in out.items()}
        # Rows of an asynchronous run carry the log-probability they were taken with; in a synchronous run it is this one.
        batch.log_prob = batch.policy.log_prob if "policy" in batch else self.model.head.log_prob(out, batch.act)
        batch.advantage, batch.returns = self.estimates(batch, out, value, boot)
        if self.normalize and not self.normalizes_minibatches:
            batch.advantage = normalized(batch.advantage)
        batch.value = value
        if self.compares:  # copies: a Gaussian's log_std is a view of the parameter, which changes under the lesson
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

    def value_and_entropy(self, out: Mapping[str, torch.Tensor], value: torch.Tensor, batch: Batch) -> tuple[torch.Tensor,
                                                                                                             torch.Tensor]:
        with torch.set_grad_enabled(bool(value_of(self.entropy, self.updates))):  # with weight 0 a metric, no gradient to pay for
            entropy = self.model.head.entropy(out).mean()
        return F.mse_loss(value, batch.returns), entropy


class A2C(ActorCritic):
    """One optimiser step per unroll (Mnih et al. 2016, synchronous):

    loss = −mean(log π(a|s) · A) + value_weight · mean((G − V)²) − entropy · mean(H),   A from GAE, G = A + V.
    """

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        out, value = self.evaluate(batch)
        policy_loss = -(self.model.head.log_prob(out, batch.act) * batch.advantage).mean()
        value_loss, entropy = self.value_and_entropy(out, value, batch)
        loss = self.total_loss(policy_loss, value_loss, entropy)
        return {"loss": loss, "policy_loss": policy_loss.detach(), "value_loss": value_loss.detach(), "entropy": entropy.detach()}


class PPO(ActorCritic):
    """Several epochs of minibatches with a clipped ratio (Schulman et al. 2017):

    ρ = π(a|s) / π_old(a|s),
    loss = −mean(min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)) + value_weight · mean((G − V)²) − entropy · mean(H) + β · mean(KL(π_old ‖ π)).

    Args:
        clip: ε. Large (1e9) for a penalty alone.
        epochs: Passes over the unroll.
        minibatches: Optimiser steps per pass; rows are dealt out evenly, so none is dropped.
        minibatch_rows: Instead of `minibatches`: rows of one step, as far as they divide.
        target_kl: Passes end early when the approximate KL divergence of one's last minibatch exceeds this; None: never.
        dual_clip: c > 1: where A < 0 a row's part is at least c A, however large ρ is (Ye et al. 2020); None: not.
        value_clip: Values within this of V_old count, too: max((G − V)², (G − clip(V, V_old ± value_clip))²); None: not.
        kl_weight: β.
        adaptive_kl: β is doubled after a lesson that has moved the policy by a KL divergence above 1.5 times this, and halved
            where it is below this / 1.5; None: β stays.
        The rest: see `ActorCritic`.
    """

    normalizes_minibatches = True

    def __init__(
        self, model: Model | Callable[[], Model], *, clip: float = 0.2, epochs: int = 4, minibatches: int = 4,
        minibatch_rows: int | None = None, target_kl: float | None = None, dual_clip: float | None = None,
        value_clip: float | None = None, kl_weight: float = 0.0, adaptive_kl: float | None = None, gamma: float = 0.99,
        lam: float = 0.95,
        entropy: float | Schedule = 0.0, value_weight: float = 0.5, normalize: bool = True, reward_scale: float = 1.0,
        lr: float | Schedule = 3e-4, max_grad_norm: float | None = 0.5,
    ) -> None:
        super().__init__(model, gamma=gamma, lam=lam, entropy=entropy, value_weight=value_weight, normalize=normalize,
                         reward_scale=reward_scale, lr=lr, max_grad_norm=max_grad_norm)
        if epochs < 1 or minibatches < 1:
            raise ValueError(f"PPO: epochs is {epochs} and minibatches {minibatches}; expected at least 1 each")
        if dual_clip is not None and not dual_clip > 1.0 or value_clip is not None and not value_clip > 0.0:
            raise ValueError(f"PPO: dual_clip is {dual_clip} and value_clip {value_clip}; expected above 1 and above 0, or None")
        if kl_weight < 0.0 or adaptive_kl is not None and not (adaptive_kl > 0.0 and kl_weight):
            raise ValueError(f"PPO: kl_weight is {kl_weight} and adaptive_kl {adaptive_kl}; expected a weight of at least 0, "
                             "above 0 where it adapts, and adaptive_kl above 0 or None")
        self.clip, self.epochs, self.n_minibatches = clip, epochs, minibatches
        self.minibatch_rows, self.target_kl = minibatch_rows, target_kl
        self.dual_clip, self.value_clip, self.kl_weight, self.adaptive_kl = dual_clip, value_clip, kl_weight, adaptive_kl
        self.compares = kl_weight > 0.0
        self._kl = 0.0

    def check_model(self, inputs: Batch) -> None:
        super().check_model(inputs)
        if self.kl_weight:
            self.check_kl(inputs)

    def minibatches(self, batch: Batch) -> Iterable[Batch]:
        n = len(batch.last)
        parts = min(self.n_minibatches if self.minibatch_rows is None else max(n // self.minibatch_rows, 1), n)  # none is empty
        names = ["obs", "act", "advantage", "returns", "log_prob", *(("last", "state") if self.recurrent else ())]
        names += ["value"] * (self.value_clip is not None) + ["out"] * self.compares
        fields = Batch({name: batch[name] for name in names})
        for _ in range(self.epochs):
            yield from dealt(fields, batch.last, parts, self.rng, self.recurrent)
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
        return {"loss": loss, **result}

    def post_process(self, batch: Batch) -> None:
        if self.adaptive_kl is not None:
            moved = float(self.model.head.kl(batch.out, self.evaluate(batch)[0]).mean()) / self.adaptive_kl
            factor = 2.0 if moved > 1.5 else 0.5 if moved < 1.0 / 1.5 else 1.0
            self.kl_weight = min(max(factor * self.kl_weight, 1e-6), 1e6)  # so that it always finds back


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


def discounts(batch: Batch, gamma: float, goes_on: torch.Tensor) -> Array:
    """γ [N], γᵈ of a row with a `duration` d, 0 where nothing goes on; float32."""
    each: Any = np.float32(gamma)
    if "duration" in batch:  # rows of actions that take several steps, such as goals
        each = each ** batch.duration.cpu().numpy().astype(np.float32)
    return np.where(goes_on.cpu().numpy(), each, np.float32(0))


def normalized(x: torch.Tensor) -> torch.Tensor:
    """Mean 0, standard deviation 1; a single row stays as it is."""
    if len(x) < 2:
        return x
    std, mean = torch.std_mean(x)
    return (x - mean) / (std + 1e-8)


def dealt(fields: Batch, last: torch.Tensor, parts: int, rng: np.random.Generator, whole: bool) -> Iterable[Batch]:
    """One pass over the rows of a lesson, in random minibatches.

    Args:
        last: [N] bool, where the segments end.
        parts: How many minibatches, at most as many as rows; rows are dealt out evenly, so none is dropped.
        whole: Segments stay whole, and there are no more parts than these: a memory is replayed from their first rows.
    """
    n = len(last)
    if not whole:
        shuffled = fields[torch.from_numpy(rng.permutation(n))]
        for k in range(parts):
            yield shuffled[n * k // parts : n * (k + 1) // parts]
        return
    ends = np.flatnonzero(last.cpu().numpy()) + 1
    starts = np.concatenate([[0], ends[:-1]])
    for group in np.array_split(rng.permutation(len(ends)), min(parts, len(ends))):
        yield fields[torch.from_numpy(np.concatenate([np.arange(starts[i], ends[i]) for i in group]))]


def sequences(last: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat segments → padded sequences.

    Args:
        last: [N] bool, True at the last row of each segment, the final row included.

    Returns:
        index: [T, B] row numbers, T the longest segment; a shorter one is padded with its own last row.
        rows: [N] positions of the rows in the flattened [T · B], so that flat[rows] is in row order again.
    """
    ends = torch.nonzero(last).squeeze(1)
    starts = torch.cat([ends.new_zeros(1), ends[:-1] + 1])
    lengths = ends - starts + 1
    steps = torch.arange(int(lengths.max()), device=last.device).unsqueeze(1)
    index = torch.minimum(starts + steps, ends)
    segment = torch.repeat_interleave(torch.arange(len(ends), device=last.device), lengths)
    within = torch.arange(len(last), device=last.device) - starts[segment]
    return index, within * len(ends) + segment


def _concatenate(first: Any, second: Any) -> Any:
    if isinstance(first, torch.Tensor):
        return torch.cat([first, second])
    return Batch({key: _concatenate(first[key], second[key]) for key in first.keys()})
