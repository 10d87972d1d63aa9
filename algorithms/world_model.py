"""Learning of the world model that Thinker plans with (Chung et al. 2023, arXiv 2307.14993), and its side of planning.

A sequence is a start, an action that led there, and k steps. The published row t is (s_t, a_{t−1}, r_t, d_t, baseline of
s_{t−1}): the action comes before what it led to. A row of ours is (s, a, r of that a, d, baseline of s). With the row before the
start as well (`burn_in`), our row t − 1 beside our observation of row t *is* the published row t; `WorldModel.process` reads them
so, and nothing else has to be shifted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from parl_like.data.returns import n_step_return
from parl_like.learning.algorithm import Algorithm, Window
from parl_like.learning.model import Model, sync
from parl_like.learning.model_check import check_methods
from parl_like.values.batch import Batch
from parl_like.values.spec import Spec

IMAGINES = {"reward", "done", "image", "feature"}
"""Losses of SR; the others are of VP."""


class Targets(NamedTuple):
    """The targets of k steps; t counts from 0, the start.

    Attributes:
        value: [N, k + 1] y_t, generation 1 [N, k]. 0 after an end.
        reward: [N, k] r_1 … r_k. 0 after an end.
        done: [N, k] float, for t = 1 … k: an episode has terminated by then (it stays so).
        mask: [N, k + 1] bool: no episode has ended by t.
        truncated: [N, k + 1] bool: one was truncated by t.
        row: [N, k + 1] int64, generation 1 [N, k]: the row whose action was taken in s_t; after an end, the row before, again.
    """

    value: Tensor
    reward: Tensor
    done: Tensor
    mask: Tensor
    truncated: Tensor
    row: Tensor


def model_targets(reward: Tensor, baseline: Tensor, done: Tensor, truncated: Tensor, *, k: int, n: int, gamma: float,
                  generation: int = 2) -> Targets:
    """Targets of a world model from published rows (see the text of this module).

        y_j = Σ_{i=1..n} γ^{i−1} r_{j+i} + γⁿ baseline_{j+n+1}

    where baseline_{t+1} is the estimate of s_t. A terminated step ends the sum; a truncated one replaces it, reward and all, by
    the estimate of the state before. Generation 1 (Thinker 1.1) takes both estimates one step earlier, has n = k, and no target
    for the last step.

    Args:
        reward, baseline: [N, T] float, T ≥ k + n + 2 (generation 1: 2k).
        done, truncated: [N, T] bool: the step into row t ended an episode, either way; it was cut off. Truncated implies done.

    Raises:
        ValueError: shapes differ or are too short; generation is neither 1 nor 2, or 1 with n ≠ k.
    """
    fields = {"reward": reward, "baseline": baseline, "done": done, "truncated": truncated}
    if generation not in (1, 2) or (generation == 1 and n != k):
        raise ValueError(f"model_targets: generation is {generation} with k {k} and n {n}; expected 2, or 1 with n = k")
    if k < 1 or n < 1:
        raise ValueError(f"model_targets: k is {k}, n {n}; expected at least 1 each")
    needed = 2 * k if generation == 1 else k + n + 2
    if any(v.shape != reward.shape for v in fields.values()) or reward.ndim != 2 or reward.shape[1] < needed:
        shapes = {name: tuple(value.shape) for name, value in fields.items()}
        raise ValueError(f"model_targets: shapes are {shapes}; expected [N, T] all, T ≥ {needed}")
    lag, columns = (1, k) if generation == 1 else (0, k + 1)
    steps_into = slice(1, columns + n)  # rows whose steps are counted
    earned = torch.where(truncated[:, steps_into], baseline[:, 1 - lag :][:, : columns + n - 1], reward[:, steps_into])
    goes_on = gamma * (~done[:, steps_into]).to(reward.dtype)
    total, factor = n_step_return(earned.unfold(1, n, 1), goes_on.unfold(1, n, 1))
    y = total + torch.where(factor > 0, factor * baseline[:, n + 1 - lag :][:, :columns], 0.0)
    before = torch.zeros_like(done[:, :1])
    ended = torch.cat([before, done[:, 1 : k + 1].cumsum(1) > 0], 1)
    cut = torch.cat([before, truncated[:, 1 : k + 1].cumsum(1) > 0], 1)
    mask = ~ended
    steps = torch.arange(1, columns + 1, device=reward.device)
    row = torch.minimum(steps, mask.sum(1, keepdim=True))
    return Targets(y * mask[:, :columns], reward[:, 1 : k + 1] * mask[:, :-1], (ended & ~cut)[:, 1:].to(reward.dtype), mask, cut,
                   row)


@dataclass
class Remaining:
    """start · (1 − real_steps / total), not below 0: a learning rate that follows the environment, not the optimiser."""

    start: float
    total: int
    real_steps: int = 0

    def __call__(self, updates: int) -> float:
        return self.start * max(1.0 - self.real_steps / self.total, 0.0)

    def state_dict(self) -> dict[str, int]:
        return {"real_steps": self.real_steps}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.real_steps = state["real_steps"]


class WorldModel(Algorithm):
    """Learns a `ThinkerNet` from sequences of real steps, and serves planning from a copy of it.

    Learning. loss = Σ over sequences, weight · Σ over losses and time, weight of the loss · mask · loss; sums, as published. With
    m_t 1 until an episode ends, T_t 1 from a truncation on, y_t of `model_targets` and g the encoder of VP, which this loss
    leaves as it is:

        SR  reward   (r̂_t − r_t)², or cross-entropy      t = 1 … k    m_{t−1}
            done     binary cross-entropy                t = 1 … k    1 − T_{t−1}
            image    mean (x̂_t − s_t)²                    t = 1 … k    m_t          newest frame; cross-entropy with `sigmoid`
            feature  mean (g(x̂_t, a) − g(s_t, a))²        t = 1 … k    m_t
        VP  value    (v̂_t − y_t)², or cross-entropy      t = 0 … k    m_t
            policy   cross-entropy with π_t              t = 0 … k    m_t
            latent   mean (z_t − g(x̂_t, a))²              t = 1 … k    m_t          `latent_planning`: imitates encode(decode(h))
            reg      mean z_t²                           t = 1 … k    m_t

    SR and VP share neither parameters nor gradients, so one Adam is two. Where ends are not predicted, what follows a terminated
    step is a black image with reward and value 0, and only truncation masks. Rows carry `baseline` and `action_prob`, see
    `extras`; priority of a sequence is |v̂_0 − y_0|.

    Planning. `predict` takes requests (`ThinkerNet.inputs`) of many agents, mixed. Hidden states stay on the device, in one
    table; agents claim rows of it (`Agent.claim`), and a request names its `parent` and the `node` that it makes.

    Differences:
        - `generation=2`, the default, has the targets of version 1.2 of the authors' program; generation 1 has those of version
          1.1, the paper's.
        - The learning rate stays unless `total_steps` is given; the published one falls to 0 over the run. All settings are
          beside the published ones in docs/thinker-published.md.

    Args:
        model: A `ThinkerNet`.
        unroll: k (model_unroll_len). return_n: n (model_return_n). gamma: γ (discounting).
        reward, done, image, feature, latent, value, policy, reg: Weights (model_*_loss_cost; value is vs, reward rs, feature
            fea).
        soft_policy: π_t is the distribution that the actor had (require_prob); else its action.
        generation: Of the targets, 2 or 1, see `model_targets`.
        lr: Start of the learning rate; total_steps: real steps after which it is 0, see `real_steps`; None: it stays.
        sync_every: Updates between two copies of the model to the one that plans.
        nodes: Rows of the table in the beginning; it doubles when a larger number is named.
        return_h, return_x, return_z: Whether predictions hold hidden states `hs`; observations `x`, normalised; and features `z`
            of what is seen or imagined (net='dual'), those that the feature loss compares.

    Attributes:
        acting: The copy that plans, always in eval mode there.
        table: State name → [nodes, ...] float32.

    Raises:
        ValueError: a count is below 1, a weight is negative, or gamma is not in [0, 1]; generation 1 comes with return_n other
            than unroll; or a loss, or what predictions return, needs what the model lacks.
    """

    calls = {"initial": "initial(obs, act) -> (value, logits, state)",
             "recurrent": "recurrent(state, act, decode) -> (reward, done, value, logits, state, x)",
             "unroll": "unroll(obs, acts) -> Unroll", "state_shapes": "state_shapes() -> shapes by name"}
    fitting_models = "ThinkerNet"
    remembers = ("table",)
    acts_with = ("acting",)

    def __init__(
        self, model: Model | Callable[[], Model], *, unroll: int = 5, return_n: int = 5, gamma: float = 0.97, reward: float = 1.0,
        done: float = 1.0, image: float = 0.0, feature: float = 10.0, latent: float = 10.0, value: float = 0.25,
        policy: float = 0.5,
        reg: float = 0.0, soft_policy: bool = True, generation: int = 2, lr: float = 1e-4, total_steps: int | None = None,
        sync_every: int = 1, nodes: int = 1024, return_h: bool = True, return_x: bool = False, return_z: bool = False,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, lr=lr if total_steps is None else Remaining(lr, total_steps), max_grad_norm=max_grad_norm)
        check_methods(self)  # before they are used below
        self.weights = {"reward": reward, "done": done, "image": image, "feature": feature, "latent": latent, "value": value,
                        "policy": policy, "reg": reg}
        for name, number in self.weights.items():
            if not number >= 0:
                raise ValueError(f"WorldModel: weight {name} is {number}; expected a number ≥ 0")
        if min(unroll, return_n, sync_every, nodes) < 1 or not 0 <= gamma <= 1:
            raise ValueError(f"WorldModel: unroll {unroll}, return_n {return_n}, sync_every {sync_every}, nodes {nodes}, gamma "
                             f"{gamma}; expected at least 1 each, and gamma in [0, 1]")
        if generation not in (1, 2) or (generation == 1 and return_n != unroll):
            raise ValueError(f"WorldModel: generation is {generation} with unroll {unroll} and return_n {return_n}; expected 2, "
                             "or 1 with both equal")
        if total_steps is not None and total_steps < 1:
            raise ValueError(f"WorldModel: total_steps is {total_steps}; expected at least 1, or None for a constant learning "
                             "rate")
        if image and not (self.model.dual and self.model.depth == 0):
            raise ValueError(f"WorldModel: image is {image}, but this model decodes no image; set image=0, or build it with "
                             "net='dual', decoder_depth=0")
        if self.model.predict_done and not done:
            raise ValueError("WorldModel: done is 0, but the model predicts ends; build it with predict_done=False, or give a "
                             "weight above 0")
        if return_x and (self.model.net == "single" or self.model.depth):
            raise ValueError("WorldModel: return_x shows images; build the model with decoder_depth=0 and net='dual' or "
                             "'perfect', or set return_x=False")
        self.k, self.n, self.gamma, self.generation, self.soft_policy = unroll, return_n, gamma, generation, soft_policy
        self.sync_every, self.capacity, self.return_h, self.return_x = sync_every, nodes, return_h, return_x
        self.return_z = return_z
        self.window = Window(sequence=unroll + 1 + return_n, burn_in=1)
        # Convolutions that learn nothing are some 15 % faster so; an optimiser would need its moments in the same format, after
        # loading too.
        self.acting = self.model.clone().eval().requires_grad_(False).to(memory_format=torch.channels_last)
        self.table: dict[str, Tensor] = {}

    def fixed_settings(self) -> dict[str, str]:
        names = ("generation", "soft_policy", "return_h", "return_x", "return_z")
        fixed = dict.fromkeys(names, "the helpers' rows and what planning gets go by it; build a new algorithm with another")
        weights = {name: f"it is kept in `weights`; assign weights[{name!r}]" for name in self.weights}
        return {**super().fixed_settings(), **fixed, **weights}

    @property
    def version(self) -> int:
        """Return how often `acting` was synchronised."""
        return self.updates // self.sync_every

    @property
    def real_steps(self) -> int:
        """Steps of the environments so far, for the learning rate: as `follow` was told, or a field `real_steps` of learning rows
        says."""
        return self.lr.real_steps if isinstance(self.lr, Remaining) else 0

    @real_steps.setter
    def real_steps(self, steps: int) -> None:
        if isinstance(self.lr, Remaining):
            self.lr.real_steps = steps

    def follow(self, env_steps: int) -> None:
        self.real_steps = env_steps

    def extras(self) -> tuple[Spec, ...]:
        """Columns for `AgentHelper(extras=…)`: the planner's estimate of the value of `obs`, and the distribution that `act` is
        from."""
        probabilities = (Spec("action_prob", (self.model.n,), np.dtype(np.float32)),) if self.soft_policy else ()
        return (Spec("baseline", (), np.dtype(np.float32)), *probabilities)

    def networks(self) -> dict[str, torch.nn.Module]:
        return {"model": self.model, "acting": self.acting}

    def clone(self, copy: bool = True) -> Algorithm:
        other: Any = super().clone(copy)
        if not copy:
            sync(other.acting, other.model)
        return other  # type: ignore[no-any-return]

    # ---------------------------------------------------------------------------------------------------------------- planning

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        """Serves planning requests, initial ones in one call of the model and recurrent ones in another.

        Args:
            inputs: [N] rows as in `ThinkerNet.inputs`.

        Returns:
            r, done, v [N], logits [N, A], float32; r and done are 0 for initial requests. By option hs and x.
        """
        op, places = inputs.op, torch.maximum(inputs.node, inputs.parent)
        self._reserve(int(places.max()) + 1, op.device)
        initial, recurrent = (op == 0).nonzero().squeeze(1), (op != 0).nonzero().squeeze(1)
        parts = [serve(inputs, rows) for rows, serve in ((initial, self._initial), (recurrent, self._recurrent)) if len(rows)]
        if len(parts) == 1:
            return parts[0]
        back = torch.cat([initial, recurrent]).argsort()
        return {name: torch.cat([part[name] for part in parts])[back] for name in parts[0]}

    def _initial(self, inputs: Batch, rows: Tensor) -> dict[str, Tensor]:
        obs = inputs.obs[rows]
        v, logits, state = self.acting.initial(obs, inputs.act[rows])
        x = self.acting.normalize(obs) if self.return_x else None
        if x is not None and self.acting.latent:
            x = x[:, -self.acting.frame :]  # like what latent planning decodes
        nothing = torch.zeros_like(v)
        out = self._reply(inputs.node[rows], r=nothing, done=nothing.clone(), v=v, logits=logits, state=state, x=x)
        if self.return_z:
            out["z"] = self.acting.held_feature(self.acting.normalize(obs), inputs.act[rows])
        return out

    def _recurrent(self, inputs: Batch, rows: Tensor) -> dict[str, Tensor]:
        parent = inputs.parent[rows]
        state = {name: values.index_select(0, parent) for name, values in self.table.items()}
        r, done, v, logits, state, x = self.acting.recurrent(state, inputs.act[rows], decode=self.return_x or self.return_z)
        out = self._reply(inputs.node[rows], r=r, done=done, v=v, logits=logits, state=state, x=x if self.return_x else None)
        if self.return_z:
            assert x is not None
            out["z"] = self.acting.held_feature(x, inputs.act[rows], self.acting.depth)
        return out

    def _reply(
        self, node: Tensor, *, r: Tensor, done: Tensor, v: Tensor, logits: Tensor, state: Mapping[str, Tensor], x: Tensor | None,
    ) -> dict[str, Tensor]:
        for name, values in state.items():
            self.table[name][node] = values
        out = {"r": r, "done": done, "v": v, "logits": logits}
        if self.return_h:
            out["hs"] = self.acting.hs(state)
        return out if x is None else {**out, "x": x}

    def _reserve(self, nodes: int, device: torch.device) -> None:
        """Makes the table hold `nodes` rows, on the device of the requests."""
        for name, shape in self.acting.state_shapes().items():
            old = self.table.get(name)
            if old is not None and len(old) >= nodes and old.device == device:
                continue
            size = self.capacity if old is None else len(old)
            while size < nodes:
                size *= 2
            with torch.inference_mode(False), torch.no_grad():  # a table made in inference mode could not be copied outside of it
                new = torch.zeros(size, *shape, device=device)
                if old is not None:
                    new[: len(old)] = old
            self.table[name] = new

    # ---------------------------------------------------------------------------------------------------------------- learning

    def process(self, batch: Batch) -> Batch:
        """Rows [N, 1 + k + 1 + n, ...] → observations and actions of the sequences, and their targets.

        Raises:
            ValueError: a row lacks one of `extras`.
        """
        missing = [spec.name for spec in self.extras() if spec.name not in batch]
        if missing:
            raise ValueError(f"WorldModel: learning rows have no {missing}; give the helper extras=algorithm.extras(), and "
                             "store their values")
        if "real_steps" in batch:
            self.real_steps = int(batch.real_steps.max())
        k, clip = self.k, self.model.reward_clip
        act = batch.act  # from 0, whatever number the environment's actions begin with
        act = torch.cat([act[:, :1] * batch.valid[:, :1], act[:, 1:]],
                        1)  # the first step of an episode follows no action: 0, as in planning
        reward = batch.rew.float()
        reward = reward if clip is None else reward.clamp(-clip, clip)
        # A true end that falls on the time limit is an end. (Rows after an end repeat the row that has it, and are masked.)
        truncated = batch.truncated & ~batch.terminated
        targets = model_targets(reward, batch.baseline.float(), batch.terminated | truncated, truncated, k=k, n=self.n,
                                gamma=self.gamma, generation=self.generation)
        policy = batch.action_prob.float() if self.soft_policy else F.one_hot(act, self.model.n).float()
        rows = targets.row.unsqueeze(-1).expand(-1, -1, policy.shape[-1])
        fields = {"obs": batch.obs[:, 1 : k + 2], "act": act[:, : k + 1], "policy": policy.gather(1, rows), **targets._asdict()}
        return Batch({**fields, **({"weight": batch.weight} if "weight" in batch else {})})

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        out = self.model.unroll(batch.obs, batch.act)
        losses = self.terms(out, batch)
        weight = batch.weight.unsqueeze(1) if "weight" in batch else 1.0
        weighted = {name: weight * loss for name, loss in losses.items()}
        error = self.model.code.decode(out.value[:, 0].detach()) - batch.value[:, 0]
        parts: dict[bool, Any] = {}  # of two networks, which share nothing
        for name, loss in weighted.items():
            imagines = self.model.dual and name in IMAGINES
            parts[imagines] = parts.get(imagines, 0.0) + self.weights[name] * loss.sum()
        return {
            "loss": tuple(parts.values()),
            **{f"{name}_loss": loss.detach().mean() for name, loss in weighted.items()},
            "priority": error.abs().clamp(min=1e-8),
        }  # fmt: skip

    def terms(self, out: Any, batch: Batch) -> dict[str, Tensor]:
        """Masked losses by name, [N, T] each, of an unroll; those with weight 0 are left out."""
        model, columns = self.model, batch.value.shape[1]
        ended = ~batch.mask if model.predict_done or model.net == "perfect" else batch.truncated
        m = (~ended).float()
        log_p = F.log_softmax(out.logits[:, :columns], -1)
        losses = {
            "value": model.code.loss(out.value[:, :columns], batch.value) * m[:, :columns],
            "policy": -(batch.policy * log_p).sum(-1) * m[:, :columns],
        }
        if out.reward is not None:
            losses["reward"] = model.code.loss(out.reward, batch.reward) * m[:, :-1]
        if out.done is not None:
            losses["done"] = F.binary_cross_entropy_with_logits(out.done, batch.done, reduction="none") * ~batch.truncated[:, :-1]
        if out.z is not None:
            losses |= {name: loss * m[:, 1:] for name, loss in self._image_losses(out, batch).items()}
        return {name: loss for name, loss in losses.items() if self.weights[name]}

    def _image_losses(self, out: Any, batch: Batch) -> dict[str, Tensor]:
        """image, feature, latent and reg, [N, k] each."""
        model, on = self.model, self.weights
        seen = model.normalize(batch.obs[:, 1:])
        if not model.predict_done:  # what comes after an end is black
            seen = seen * batch.mask[:, 1:].reshape(*batch.mask[:, 1:].shape, *(1,) * (seen.ndim - 2))
        losses = {"reg": out.z.square().flatten(2).mean(2)} if on["reg"] else {}
        if on["image"]:
            made, true = out.x[:, :, -model.frame :], seen[:, :, -model.frame :]
            loss = F.binary_cross_entropy(made.clamp(1e-6, 1 - 1e-6), true,
                                          reduction="none") if model.sigmoid else (made - true).square()
            losses["image"] = loss.flatten(2).mean(2)
        errors: dict[str, list[Tensor]] = {"feature": [], "latent": []}
        # Step by step, so that batch normalisation sees the statistics of one step, as in the unroll.
        for t in range(self.k if on["feature"] or (model.latent and on["latent"]) else 0):
            act, z = batch.act[:, t + 1], out.z[:, t]
            imagined = model.held_feature(out.x[:, t], act, model.depth) if model.dual else z
            if model.latent:
                errors["latent"].append((z - imagined.detach()).square().flatten(1).mean(1))
            with torch.no_grad():
                real = model.held_feature(seen[:, t], act)
            errors["feature"].append((imagined - real).square().flatten(1).mean(1))
        return losses | {name: torch.stack(steps, 1) for name, steps in errors.items() if steps}

    def post_process(self, batch: Batch) -> None:
        self.update_target(self.acting, period=self.sync_every)
