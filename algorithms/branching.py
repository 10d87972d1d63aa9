"""BDQ, branching dueling Q-learning: a DQN for several choices at once (Tavakoli, Pardo and Kormushev 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.targets import row_mean
from parl_like.learning.action_spaces import Takes, taken_by
from parl_like.learning.explorers import Explorer, MultiEpsilonGreedy
from parl_like.learning.model_check import ContractError, answer, check_shape
from parl_like.values.batch import Batch


class BDQ(DQN):
    """y = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · (1/D) Σ_d Q⁻_d(s', a*_d),   loss = (1/D) Σ_d huber(y − Q_d(s, a_d)),

    for the D choices of a MultiDiscrete action, each with values of its own: as many numbers as there are alternatives, not
    combinations. a*_d = argmax Q_d(s', ·), or without `double` argmax Q⁻_d(s', ·). Priority of a row: Σ_d |y − Q_d(s, a_d)|.
    Ends, `duration`, weights, target copy and noise are as in `DQN`; with one choice it is DQN. With probability ε all choices
    are drawn. Published are the squared error, and gradients of the common layers divided by D + 1, which Adam does not see where
    nothing is clipped.

    Args:
        model: Offers `q(obs) -> [N, Σ nvec]`, the values of the alternatives of each choice side by side.
        The others: As for `DQN`.
    """

    calls = {"q": "q(obs) -> [N, Σ nvec], the value of every alternative of every choice,"}
    fitting_models = "MLPBranchingQ"
    takes = Takes(("MultiDiscrete",), images=False)

    def check_model(self, inputs: Batch) -> None:
        act = self.model.act_space
        if not isinstance(act, gym.spaces.MultiDiscrete):
            raise ContractError(f"BDQ needs MultiDiscrete actions; {type(self.model).__name__} has {act}"
                                f"{taken_by(act)}")
        check_shape(self, "q", answer(self, "q", inputs.obs), (2, int(act.nvec.sum())))

    def explorer(self) -> Explorer:
        return MultiEpsilonGreedy(self.model.act_space.nvec.ravel().tolist(), self.epsilon)

    def branches(self, q: Tensor) -> Tensor:
        """[N, Σ nvec] → [N, D, max nvec], −∞ where a choice has fewer alternatives."""
        parts = torch.split(q, self.model.act_space.nvec.ravel().tolist(), 1)
        return torch.nn.utils.rnn.pad_sequence([part.T for part in parts], padding_value=-torch.inf).permute(2, 1, 0)

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N]."""
        rew, discount = self.begin(batch)
        values = self.branches(self.target.q(batch.obs_next))
        by = self.branches(self.model.q(batch.obs_next)) if self.double and self.target is not self.model else values
        batch.target = rew + discount * values.gather(2, by.argmax(2, keepdim=True)).squeeze(2).mean(1)
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        q = self.branches(self.model.q(batch.obs)).gather(2, batch.act.unsqueeze(2)).squeeze(2)
        target = batch.target[:, None].expand_as(q)
        losses = torch.nn.functional.smooth_l1_loss(q, target, reduction="none")
        return {"loss": row_mean(losses.mean(1), batch), "q": q.detach().mean(),
                "priority": (q - target).detach().abs().sum(1)}
