"""R2D2: DQN with a memory, on sequences from the replay buffer (Kapturowski, Ostrovski, Quan, Munos and Dabney 2019)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import torch
import torch.nn.functional as F

from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.sequences import Sequences, each
from parl_like.algorithms.targets import along, powers, rescale, rescale_inverse
from parl_like.learning.action_spaces import Takes, taken_by
from parl_like.learning.algorithm import Schedule
from parl_like.learning.model import Model
from parl_like.learning.model_check import ContractError, answer, check_shape, refuse
from parl_like.values.batch import Batch


class R2D2(DQN):
    """y_t = h(Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · h⁻¹(Q⁻(s_{t+m}, a*))),   loss = mean over t of huber(y_t − Q(s_t, a_t)),

    for each row t of a sequence, m ≤ n rewards until the end of it; h(x) = sign(x) (√(|x| + 1) − 1) + ε x. A sequence ends with
    its episode, and begins at any row. The memory with which it begins is the one with which its agent acted there, brought up
    to date by `burn_in` rows before it: these move the memory of network and target, each its own, and teach nothing. a* is the
    best action by the network, or without `double` by the target.

    With a prioritised buffer sequences are drawn by η max_t |y_t − Q| + (1 − η) mean_t |y_t − Q|. Ends, `duration`, target copy,
    noise and exploring are as in `DQN`; on a model that forgets everything, with n = 1 and without h, it is DQN.

    Differences:
        - The loss is Huber's; the paper's is the squared error.
        - γ is 0.99; the paper's is 0.997. Sequence, burn-in, n, ε and η are the paper's.
        - A sequence begins at any row; the paper's begin at every 40th.
        - The memory reads observations; the paper's also reads the last action and reward.

    Args:
        model: Offers `q(obs, state) -> (q [N, A], state)`, also for steps in a row, obs [T, N, …] -> q [T, N, A].
        sequence, burn_in: Rows that are learned from, at least 2, and rows before them. n_step: n.
        stored_state: Whether a sequence begins with the memory with which its agent acted there; else with zeros.
        eps: ε; None: without h.
        eta: η in [0, 1].
        The others: As for `DQN`.

    Raises:
        ValueError: sequence is below 2, eps is negative, or eta is not in [0, 1].
    """

    calls = {"q": "q(obs, state) -> (q [N, A], state), the value of every action and the memory after it,"}
    fitting_models = "RecurrentQ"
    takes = Takes(("Discrete",), images=False, memory="always")

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, n_step: int = 5, sequence: int = 80, burn_in: int = 40,
        stored_state: bool = True, eps: float | None = 1e-3, eta: float = 0.9, target_period: int = 500,
        tau: float | None = None, double: bool = True,
        epsilon: float | Schedule = 0.1, lr: float | Schedule = 1e-3, max_grad_norm: float | None = 10.0, adam_eps: float = 1e-5,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, target_period=target_period, tau=tau, double=double,
                         epsilon=epsilon, lr=lr, max_grad_norm=max_grad_norm, adam_eps=adam_eps)
        if eps is not None and not eps >= 0.0:
            raise ValueError(f"R2D2: eps is {eps}; expected eps ≥ 0, or None")
        self.sequences = Sequences("R2D2", sequence, burn_in, stored_state, eta)
        self.window = self.sequences.window
        self.discounts = powers(gamma, 1)
        self.n_step, self.eps = n_step, eps

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), **self.sequences.fixed_settings()}

    def check_model(self, inputs: Batch) -> None:
        act, specs = self.model.act_space, self.model.state_specs()
        if not isinstance(act, gym.spaces.Discrete) or not specs:
            raise ContractError(f"R2D2 needs a memory and Discrete actions, one value each; {type(self.model).__name__} has "
                                f"{', '.join(specs) or 'no state'} and {act}; RecurrentQ has one"
                                f"{'' if isinstance(act, gym.spaces.Discrete) else taken_by(act)}")
        for obs, shape in ((inputs.obs, (2,)), (each(lambda obs: torch.stack([obs] * 3), inputs.obs), (3, 2))):
            out = answer(self, "q", obs, inputs.state)
            pair = isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], (Mapping, Batch))
            if not pair or set(out[1].keys()) != set(specs):
                raise refuse(self, "q", f"a pair with the state {sorted(specs)}", type(out).__name__)
            check_shape(self, "q", out[0], (*shape, int(act.n)))

    def acts_by(self, inputs: Batch) -> dict[str, Any]:
        q, state = self.model.q(inputs.obs, inputs.state)
        return {"q": q, "state": state}

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N, L], and the network's memory before the first row of each sequence, `memory`."""
        rew, discount = self.begin(batch)
        skip, valid = self.sequences.skip, batch.valid
        batch.memory = Batch(self.sequences.warmed(self.model.q, batch))
        seen = self.sequences.seen(batch)
        q_next = self.target.q(seen, self.sequences.warmed(self.target.q, batch))[0]
        best = self.model.q(seen, dict(batch.memory.items()))[0] if self.double and self.target is not self.model else q_next
        q_next = q_next.gather(2, best.argmax(2, keepdim=True)).squeeze(2).T
        total, factor, then = along(rew[:, skip:], discount[:, skip:], valid[:, skip:], self.n_step)
        if self.eps is None:
            batch.target = total + factor * q_next.gather(1, then)
        else:
            batch.target = rescale(total + factor * rescale_inverse(q_next, self.eps).gather(1, then), self.eps)
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        skip = self.sequences.skip
        q = self.model.q(self.sequences.learned(batch), dict(batch.memory.items()))[0]
        q = q.gather(2, batch.act[:, skip:].T.unsqueeze(2)).squeeze(2).T
        real = batch.valid[:, skip:]
        losses = torch.where(real, F.smooth_l1_loss(q, batch.target, reduction="none"), 0.0)
        errors, rows = torch.where(real, (q.detach() - batch.target).abs(), 0.0), real.sum(1)
        priority = self.sequences.priority(errors, rows)
        weighted = losses.sum(1) * batch.weight if "weight" in batch else losses.sum(1)
        return {"loss": weighted.sum() / rows.sum(), "priority": priority, "q": (q.detach() * real).sum() / rows.sum()}
