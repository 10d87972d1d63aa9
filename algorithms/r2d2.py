"""R2D2: DQN with a memory, on sequences from the replay buffer (Kapturowski, Ostrovski, Quan, Munos and Dabney 2019)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import Tensor

from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.targets import along, powers, rescale, rescale_inverse
from parl_like.learning.action_spaces import Takes, taken_by
from parl_like.learning.algorithm import Schedule, Window
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
    noise and exploring are as in `DQN`; on a model that forgets everything, with n = 1 and without h, it is DQN. Sequence,
    burn-in, n, ε and η are those of the paper, whose γ is 0.997; its sequences begin at every 40th row, its loss is the squared
    error, its memory also reads the last action and reward.

    Args:
        model: Offers `q(obs, state) -> (q [N, A], state)`, also for steps in a row, obs [T, N, …] -> q [T, N, A].
        sequence, burn_in: Rows that are learned from, at least 2, and rows before them. n_step: n.
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
        eps: float | None = 1e-3, eta: float = 0.9, target_period: int = 500, tau: float | None = None, double: bool = True,
        epsilon: float | Schedule = 0.1, lr: float | Schedule = 1e-3, max_grad_norm: float | None = 10.0, adam_eps: float = 1e-5,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, target_period=target_period, tau=tau, double=double,
                         epsilon=epsilon, lr=lr, max_grad_norm=max_grad_norm, adam_eps=adam_eps)
        if sequence < 2 or (eps is not None and not eps >= 0.0) or not 0.0 <= eta <= 1.0:
            raise ValueError(f"R2D2: sequence is {sequence}, eps {eps} and eta {eta}; expected sequence ≥ 2, eps ≥ 0 or None, "
                             "eta in [0, 1]")
        self.window = Window(in_order=False, sequence=sequence, burn_in=burn_in)
        self.discounts = powers(gamma, 1)
        self.n_step, self.eps, self.eta = n_step, eps, eta

    def fixed_settings(self) -> dict[str, str]:
        fixed = dict.fromkeys(("sequence", "burn_in"), "the helpers' rows come by it; build a new algorithm with another")
        return {**super().fixed_settings(), **fixed}

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

    def warmed(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        """The network's memory after the rows before the sequence; the stored one where the episode has none."""
        state = dict(batch.state.items())
        for t in range(self.window.burn_in):
            _, after = network.q(batch.obs[:, t], state)
            real = batch.valid[:, t]  # parts of a memory have any number of axes behind that of the rows
            state = {name: torch.where(real.reshape(-1, *(1,) * (before.ndim - 1)), after[name], before)
                     for name, before in state.items()}
        return state

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N, L], and the network's memory before the first row of each sequence, `memory`."""
        rew, discount = self.begin(batch)
        skip, valid = self.window.burn_in, batch.valid
        batch.memory = Batch(self.warmed(self.model, batch))
        # Observations of the L rows and of what follows the last real one: there its nearest row stands, which led to it.
        seen = each(lambda obs, after: shown(obs, after, valid, skip), batch.obs, batch.obs_next)
        q_next = self.target.q(seen, self.warmed(self.target, batch))[0]
        best = self.model.q(seen, dict(batch.memory.items()))[0] if self.double and self.target is not self.model else q_next
        q_next = q_next.gather(2, best.argmax(2, keepdim=True)).squeeze(2).T
        total, factor, then = along(rew[:, skip:], discount[:, skip:], valid[:, skip:], self.n_step)
        if self.eps is None:
            batch.target = total + factor * q_next.gather(1, then)
        else:
            batch.target = rescale(total + factor * rescale_inverse(q_next, self.eps).gather(1, then), self.eps)
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        skip = self.window.burn_in
        obs = each(lambda obs: obs[:, skip:].transpose(0, 1), batch.obs)
        q = self.model.q(obs, dict(batch.memory.items()))[0]
        q = q.gather(2, batch.act[:, skip:].T.unsqueeze(2)).squeeze(2).T
        real = batch.valid[:, skip:]
        losses = torch.where(real, F.smooth_l1_loss(q, batch.target, reduction="none"), 0.0)
        errors, rows = torch.where(real, (q.detach() - batch.target).abs(), 0.0), real.sum(1)
        priority = self.eta * errors.amax(1) + (1.0 - self.eta) * errors.sum(1) / rows
        weighted = losses.sum(1) * batch.weight if "weight" in batch else losses.sum(1)
        return {"loss": weighted.sum() / rows.sum(), "priority": priority, "q": (q.detach() * real).sum() / rows.sum()}


def each(function: Callable[..., Tensor], *parts: Any) -> Any:
    """The function of the tensors at the same place of observations, nested or not."""
    if isinstance(parts[0], Tensor):
        return function(*parts)
    return Batch({key: each(function, *(part[key] for part in parts)) for key in parts[0].keys()})  # noqa: SIM118


def shown(obs: Tensor, obs_next: Tensor, valid: Tensor, skip: int) -> Tensor:
    """[N, skip + L, …], and valid [N, skip + L] → [L + 1, N, …]: of each real row its obs, then what the last one led to."""
    real = valid[:, skip:].reshape(*valid[:, skip:].shape, *(1,) * (obs.ndim - 2))
    rows = torch.where(real, obs[:, skip:], obs_next[:, skip:])
    return torch.cat([rows, obs_next[:, -1:]], 1).transpose(0, 1)
