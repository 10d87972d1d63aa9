"""BDQ, branching dueling Q-learning: a DQN for several choices at once (Tavakoli, Pardo and Kormushev 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.targets import row_mean
from parl_like.learning.action_spaces import NESTED_CHOICES, Takes, kind_of, nvec_of, taken_by
from parl_like.learning.explorers import Explorer, MultiEpsilonGreedy, NestedEpsilonGreedy
from parl_like.learning.model_check import ContractError, answer, check_shape
from parl_like.values.batch import Batch
from parl_like.values.spec import leaf_spaces, leaves


class BDQ(DQN):
    """y = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · (1/D) Σ_d Q⁻_d(s', a*_d),   loss = (1/D) Σ_d huber(y − Q_d(s, a_d)),

    for the D choices of an action that is MultiDiscrete, MultiBinary, or a Dict or Tuple of these and Discrete, each with values
    of its own: as many numbers as there are alternatives, not combinations. a*_d = argmax Q_d(s', ·), or without `double` argmax
    Q⁻_d(s', ·). Priority of a row: Σ_d |y − Q_d(s, a_d)|. Ends, `duration`, weights, target copy and noise are as in `DQN`; with
    one choice it is DQN. With probability ε all choices are drawn.

    Differences:
        - The loss is Huber's; the paper's is the squared error.
        - Gradients of the common layers are not divided by D + 1, which Adam does not see where nothing is clipped.
        - Rows are drawn evenly by default; the paper draws them by priority (`PrioritizedReplayBuffer`).

    Args:
        model: Offers `q(obs) -> [N, Σ nvec]`, the values of the alternatives of each choice side by side.
        The others: As for `DQN`.
    """

    calls = {"q": "q(obs) -> [N, Σ nvec], the value of every alternative of every choice,"}
    fitting_models = "MLPBranchingQ"
    takes = Takes(("MultiDiscrete", "MultiBinary", NESTED_CHOICES), images=False)

    def check_model(self, inputs: Batch) -> None:
        act = self.model.act_space
        if kind_of(act) not in BDQ.takes.actions:
            raise ContractError(f"{type(self).__name__} needs several choices; {type(self.model).__name__} has {act}"
                                f"{taken_by(act)}")
        check_shape(self, "q", answer(self, "q", inputs.obs), (2, sum(self.nvec)))

    @property
    def parts(self) -> dict[str, list[int]]:
        """The alternatives of the choices in each array of the action, by flat name."""
        return {name: nvec_of(space) for name, space in leaf_spaces(self.model.act_space, "act")}

    @property
    def nvec(self) -> list[int]:
        return [n for nvec in self.parts.values() for n in nvec]

    def explorer(self) -> Explorer:
        if self.parts.keys() == {"act"}:
            return MultiEpsilonGreedy(self.nvec, self.epsilon)
        return NestedEpsilonGreedy(self.model.act_space, self.epsilon)

    def choices(self, act: Any) -> Tensor:
        """The choices of stored actions, side by side, [N, D]."""
        flat = dict(leaves(act, "act"))
        return torch.cat([flat[name].reshape(len(flat[name]), -1) for name in self.parts], 1)

    def branches(self, q: Tensor) -> Tensor:
        """[N, Σ nvec] → [N, D, max nvec], −∞ where a choice has fewer alternatives."""
        parts = torch.split(q, self.nvec, 1)
        return torch.nn.utils.rnn.pad_sequence([part.T for part in parts], padding_value=-torch.inf).permute(2, 1, 0)

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N]."""
        rew, discount = self.begin(batch)
        values = self.branches(self.target.q(batch.obs_next))
        by = self.branches(self.model.q(batch.obs_next)) if self.double and self.target is not self.model else values
        batch.target = rew + discount * values.gather(2, by.argmax(2, keepdim=True)).squeeze(2).mean(1)
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        q = self.branches(self.model.q(batch.obs)).gather(2, self.choices(batch.act).unsqueeze(2)).squeeze(2)
        target = batch.target[:, None].expand_as(q)
        losses = torch.nn.functional.smooth_l1_loss(q, target, reduction="none")
        return {"loss": row_mean(losses.mean(1), batch), "q": q.detach().mean(),
                "priority": (q - target).detach().abs().sum(1)}
