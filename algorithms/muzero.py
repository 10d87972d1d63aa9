"""MuZero (Schrittwieser et al. 2020): search in a model that is learned for nothing else. Two tasks learn it together.

The agent searches before each action (`parl_like.algorithms.search.latent`), and stores what it found: the policy π of the root's
visits, and the root's value ν. From a row t the model is unrolled along the actions that were taken, K of them:

    s_0 = h(o_t)        s_{k+1}, r̂_{k+1} = g(s_k, a_{t+k})        p_k, v_k = f(s_k)
    z_t = Σ_{i<n} γ^i σ_{t,i} r_{t+i+1} + γ^n σ_{t,n} ν_{t+n}        σ_{t,i} = 1 if one player moves in t and t + i, else −1

    world model     loss_t = reward_weight · 1/K Σ_{k=1..K} l(r̂_k, r_{t+k})
    prediction      loss_t = m_0 + 1/K Σ_{k=1..K} m_k        m_k = value_weight · l(v_k, z_{t+k}) − Σ_a π_{t+k}(a) log p_k(a)

l is the squared error, or the cross-entropy of a categorical encoding. At the start of each g the gradient is halved. h and g,
which both tasks share, have one Adam. After the end of an episode rewards and values are 0, whatever is done, and no policy is
learned. What comes after a row at which an episode was cut off is not known: z ends with ν of that row, and what is behind it
does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from parl_like.learning.algorithm import Algorithm, Schedule, Window
from parl_like.learning.model import Model
from parl_like.values.batch import Batch
from parl_like.values.spec import Spec


class UnrolledTargets(NamedTuple):
    """Targets of an unroll of K steps.

    Attributes:
        value: [N, K + 1] z. known: [N, K + 1] float, 1 where z is known. real: [N, K + 1] bool, the episode has this row.
    """

    value: Tensor
    known: Tensor
    real: Tensor


def unrolled_targets(rew: Tensor, root_value: Tensor, player: Tensor, terminated: Tensor, *, valid: Tensor, k: int, n: int,
                     gamma: float) -> UnrolledTargets:
    """Targets of the values of k + 1 rows in a row, see the text of this module.

    Args:
        rew: [N, T] float, T ≥ k + n + 1, of who moves. root_value: [N, T] float, ν. player: [N, T] int, who moves.
        terminated: [N, T] bool. valid: [N, T] bool, False behind an episode's last row, which stands there again.

    Raises:
        ValueError: shapes differ, or are too short.
    """
    shapes = {tuple(one.shape) for one in (rew, root_value, player, terminated, valid)}
    if len(shapes) > 1 or rew.ndim != 2 or rew.shape[1] < k + n + 1:
        raise ValueError(f"unrolled_targets: shapes are {sorted(shapes)}; expected one [N, T] with T ≥ {k + n + 1}")
    last = valid & ~torch.cat([valid[:, 1:], torch.ones_like(valid[:, :1])], 1)  # of the very last row that is not known
    cut = last & ~terminated
    earned = torch.where(cut, root_value, rew)
    alive, mover = valid[:, : k + 1], player[:, : k + 1]
    value, factor = torch.zeros_like(rew[:, : k + 1]), 1.0
    for i in range(n + 1):
        rows = slice(i, i + k + 1)
        sign = 1 - 2 * (player[:, rows] != mover).to(rew.dtype)
        value = value + factor * sign * (earned if i < n else root_value)[:, rows] * alive
        alive, factor = alive & ~last[:, rows], factor * gamma
    real = valid[:, : k + 1]
    return UnrolledTargets(value, (real | terminated[:, : k + 1]).float(), real)


def half(state: Tensor) -> Tensor:
    """Return the same numbers, which pass half of their gradient on."""
    return 0.5 * state + 0.5 * state.detach()


class _Unrolled(Algorithm):
    """Base of both tasks, which unroll the model along rows, weigh and sum. A subclass says its losses, and which rows it needs.

    Args:
        unroll: K. lr, max_grad_norm: As for `Algorithm`.

    Raises:
        ValueError: unroll is below 1.
    """

    calls = {"represent": "represent(obs) -> [N, size]", "advance": "advance(state, act) -> (state, reward)",
             "predict": "predict(state) -> (logits, value)"}
    fitting_models = "MuZeroNet"
    one_reward = True

    def __init__(self, model: Model | Callable[[], Model], *, unroll: int, lr: float | Schedule,
                 max_grad_norm: float | None) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        if unroll < 1:
            raise ValueError(f"{type(self).__name__}: unroll is {unroll}; expected at least 1")
        self.k = unroll

    def actions(self, batch: Batch) -> Tensor:
        """Return the actions [N, K] that were taken; behind the end of an episode drawn ones, for there nothing follows from
        them."""
        taken, valid = batch.act[:, : self.k], batch.valid[:, : self.k]
        drawn = torch.randint(self.model.world.n, taken.shape, generator=self.torch_rng, device=taken.device)
        return torch.where(valid, taken, drawn)

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        losses, error = self.terms(batch)
        total = torch.stack([self.weight_of(name) * loss for name, loss in losses.items()]).sum(0)
        if "weight" in batch:
            total = batch.weight * total
        return {"loss": total.mean(), **{f"{name}_loss": loss.detach().mean() for name, loss in losses.items()},
                "priority": error.detach().abs().clamp(min=1e-8)}

    def terms(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Return the losses of rows by name, [N] each, and the error [N] by which rows are drawn again."""
        raise NotImplementedError

    def weight_of(self, name: str) -> float:
        """Return the weight of a loss."""
        raise NotImplementedError


class MuZeroModel(_Unrolled):
    """The world model: learns rewards, and with them h and g. It also serves search, for which it has f of the other task: a
    simulation of all agents is one prediction. Latent states stay on its device, in one table; agents claim rows of it
    (`Agent.claim`), and a request names its `parent`, and the `node` that it makes.

    Differences:
        - Rewards are learned in steps of their own, on rows of their own; the paper sums all losses in one step.
        - The optimiser is Adam without weight decay; the paper has SGD with momentum, and a penalty on weights.
        - `reward_weight` is a setting; the paper has 1.
        - Rows are drawn again by the error of the predicted rewards; the paper goes by the value of the search.

    Args:
        model: A `MuZeroNet` with `reward`.
        unroll: K.
        reward_weight: See the text of this module. Where rewards are rare it must be larger than 1, for h and g take steps of
            one size, of which the larger gradient has the larger share.
        nodes: Rows of the table in the beginning; it doubles when a larger number is named.
        lr, max_grad_norm: Of Adam, and the norm above which gradients are scaled down; None: never.

    Attributes:
        table: [nodes, size] float32.

    Raises:
        ValueError: nodes is below 1, or reward_weight below 0.
    """

    remembers = ("table",)

    def __init__(self, model: Model | Callable[[], Model], *, unroll: int = 5, reward_weight: float = 1.0, nodes: int = 1024,
                 lr: float | Schedule = 1e-3, max_grad_norm: float | None = 10.0) -> None:
        super().__init__(model, unroll=unroll, lr=lr, max_grad_norm=max_grad_norm)
        if nodes < 1 or not reward_weight >= 0:
            raise ValueError(f"MuZeroModel: nodes is {nodes} and reward_weight {reward_weight}; expected at least 1 and at least "
                             "0")
        self.reward_weight = reward_weight
        self.window = Window(sequence=unroll + 1)
        self.table = torch.zeros(nodes, self.model.state_size)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Return those of h, g and the reward; f is learned by the other task."""
        yield from self.model.world.parameters()
        yield from self.model.reward.parameters()

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        """Serves search, see `MuZeroNet.inputs`.

        Returns:
            reward, value [N], logits [N, A], float32; rewards of represented observations are 0.
        """
        recurrent = inputs.op != 0
        places = torch.maximum(inputs.node, inputs.parent)
        self._reserve(int(places.max()) + 1, recurrent.device)
        initial, steps = ((~recurrent).nonzero().squeeze(1), recurrent.nonzero().squeeze(1))
        state = self.table.new_zeros(len(recurrent), self.table.shape[1])
        reward = state.new_zeros(len(recurrent))
        if len(initial):
            state[initial] = self.model.represent(inputs.obs if not len(steps) else inputs.obs[initial])
        if len(steps):
            after, gained = self.model.advance(self.table[inputs.parent[steps]], inputs.act[steps])
            state[steps], reward[steps] = after, self.model.code.decode(gained).float()
        self.table[inputs.node] = state
        logits, value = self.model.predict(state)
        return {"reward": reward, "value": self.model.prediction.code.decode(value).float(), "logits": logits}

    def _reserve(self, nodes: int, device: torch.device) -> None:
        """Make the table hold so many rows, on the device of the requests."""
        size = len(self.table)
        if size >= nodes and self.table.device == device:
            return
        while size < nodes:
            size *= 2
        with torch.inference_mode(False), torch.no_grad():  # a table made in inference mode could not be copied outside of it
            table = torch.zeros(size, self.table.shape[1], device=device)
            table[: len(self.table)] = self.table
        self.table = table

    def process(self, batch: Batch) -> Batch:
        """Make of rows [N, K + 1, …] first observations, actions [N, K], rewards [N, K] and which of these are known."""
        real = batch.valid[:, : self.k]
        known = (real | batch.terminated[:, : self.k]).float()
        return Batch({"obs": batch.obs[:, 0], "act": self.actions(batch), "rew": batch.rew[:, : self.k].float() * real,
                      "known": known, **({"weight": batch.weight} if "weight" in batch else {})})

    def terms(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        state, code = self.model.represent(batch.obs), self.model.code
        losses, errors = [], []
        for i in range(self.k):
            state, reward = self.model.advance(half(state), batch.act[:, i])
            losses.append(batch.known[:, i] * code.loss(reward, batch.rew[:, i]))
            errors.append(batch.known[:, i] * (code.decode(reward.detach()) - batch.rew[:, i]).abs())
        return {"reward": torch.stack(losses).mean(0)}, torch.stack(errors).mean(0)

    def weight_of(self, name: str) -> float:
        """Return the weight of the one loss."""
        return self.reward_weight


class MuZero(_Unrolled):
    """Policy and value: learns f, and with it h and g of the world model, from what search has found.

    Differences:
        - Values and policies are learned in steps of their own, on rows of their own; the paper sums all losses in one step.
        - The optimiser is Adam without weight decay; the paper has SGD with momentum, and a penalty on weights.
        - Rows are drawn again by |v̂ − z| of the network's value; the paper's priority is that of the search's value, |ν − z|.
        - Games have returns of `n_step` steps, too, by default 10; those of the paper's board games reach the end.

    Args:
        model: A `MuZeroNet` whose `world` and `prediction` are those of the world model's.
        unroll: K. n_step: n. gamma: γ.
        value_weight: See the text of this module.
        lr, max_grad_norm: As for `MuZeroModel`.

    Raises:
        ValueError: a number is out of its range.
    """

    def __init__(self, model: Model | Callable[[], Model], *, unroll: int = 5, n_step: int = 10, gamma: float = 0.997,
                 value_weight: float = 0.25, lr: float | Schedule = 1e-3, max_grad_norm: float | None = 10.0) -> None:
        super().__init__(model, unroll=unroll, lr=lr, max_grad_norm=max_grad_norm)
        if n_step < 1 or not value_weight >= 0:
            raise ValueError(f"MuZero: n_step is {n_step} and value_weight {value_weight}; expected at least 1 and at least 0")
        self.n, self.gamma, self.value_weight = n_step, gamma, value_weight
        self.window = Window(sequence=unroll + n_step + 1)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Return those of h, g and f; a reward, if there is one, is learned by the other task."""
        yield from self.model.world.parameters()
        yield from self.model.prediction.parameters()

    def extras(self) -> tuple[Spec, ...]:
        """Return the columns for `AgentHelper(extras=…)`, see `search_columns`."""
        return search_columns(self.model.world.n)

    def process(self, batch: Batch) -> Batch:
        """Make of rows [N, K + n + 1, …] first observations, actions [N, K], and targets [N, K + 1, …]."""
        targets = unrolled_targets(batch.rew.float(), batch.root_value.float(), batch.player, batch.terminated,
                                   valid=batch.valid, k=self.k, n=self.n, gamma=self.gamma)
        return Batch({"obs": batch.obs[:, 0], "act": self.actions(batch), **targets._asdict(),
                      "policy": batch.search_policy[:, : self.k + 1],
                      **({"weight": batch.weight} if "weight" in batch else {})})

    def terms(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        state, code = self.model.represent(batch.obs), self.model.prediction.code
        losses: dict[str, list[Tensor]] = {"value": [], "policy": []}
        errors = []
        for i in range(self.k + 1):
            logits, value = self.model.predict(state)
            losses["value"].append(batch.known[:, i] * code.loss(value, batch.value[:, i]))
            losses["policy"].append(-batch.real[:, i].float() * (batch.policy[:, i] * F.log_softmax(logits, -1)).sum(-1))
            errors.append(code.decode(value.detach()) - batch.value[:, i])
            if i < self.k:
                state = self.model.advance(half(state), batch.act[:, i])[0]
        return {name: first + torch.stack(rest).mean(0) for name, (first, *rest) in losses.items()}, errors[0]

    def weight_of(self, name: str) -> float:
        """Return the weight of a loss."""
        return self.value_weight if name == "value" else 1.0



def search_columns(n_actions: int) -> tuple[Spec, ...]:
    """Return the columns of what search found in a row: π, ν, and who moves."""
    return (Spec("search_policy", (n_actions,), np.dtype(np.float32)), Spec("root_value", (), np.dtype(np.float32)),
            Spec("player", (), np.dtype(np.int64), 0, 1))
