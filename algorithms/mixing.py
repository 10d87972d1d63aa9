"""Values of a team: VDN (Sunehag et al. 2018) and QMIX (Rashid et al. 2018), for players that share one reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from parl_like.algorithms.branching import BDQ
from parl_like.algorithms.targets import row_mean
from parl_like.learning.action_spaces import Takes
from parl_like.learning.explorers import Explorer, MultiEpsilonGreedy
from parl_like.learning.model_check import answer, check_shape
from parl_like.values.batch import Batch


class VDN(BDQ):
    """Q_tot(s, a) = Σ_i Q_i(o_i, a_i),   y = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · Q⁻_tot(s', a*),
    loss = ½ (y − Q_tot)²,

    for the players i of a team. Player i sees its own observation o_i alone, so it can act without the others; the reward teaches
    their sum. a*_i = argmax Q_i(o'_i, ·), or without `double` argmax Q⁻_i(o'_i, ·): the best of each is the best of the team,
    because Q_tot grows with every Q_i. Each player explores by itself with probability ε. Ends, `duration`, weights, target copy
    and noise are as in `DQN`. Priority of a row: |y − Q_tot|.

    The loss is squared, as published. The Huber loss of `DQN` fits a sum to medians: where no sum fits, it learns other values.

    Differences:
        - Single rows are drawn, of players without memory; the paper's players are recurrent and learn from sequences.
        - With `double`, the default, the network chooses the next actions; without it the target copy does.

    Args:
        model: Offers `q(obs) -> [N, Σ nvec]`, the values of the actions of each player side by side.
        The others: As for `DQN`.
    """

    calls = {"q": "q(obs) -> [N, Σ nvec], the value of every action of every player,"}
    fitting_models = "MLPTeamQ"
    takes: Takes | None = None  # type: ignore[assignment]  # observations are those of a team, see `parl_like.models.team`

    def explorer(self) -> Explorer:
        return MultiEpsilonGreedy(self.model.act_space.nvec.ravel().tolist(), self.epsilon, each=True)

    def total(self, network: Any, values: Tensor, obs: Any) -> Tensor:
        """Q_tot [N] of the values [N, players] of the chosen actions; `network`: the model or its target copy."""
        return values.sum(1)

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N]."""
        rew, discount = self.begin(batch)
        values = self.branches(self.target.q(batch.obs_next))
        by = self.branches(self.model.q(batch.obs_next)) if self.double and self.target is not self.model else values
        best = values.gather(2, by.argmax(2, keepdim=True)).squeeze(2)
        batch.target = rew + discount * self.total(self.target, best, batch.obs_next)
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        values = self.branches(self.model.q(batch.obs)).gather(2, batch.act.unsqueeze(2)).squeeze(2)
        q = self.total(self.model, values, batch.obs)
        error = q - batch.target
        return {"loss": row_mean(0.5 * error.square(), batch), "q": q.detach().mean(), "priority": error.detach().abs()}


class QMIX(VDN):
    """Q_tot(s, a) = f(Q_1, …, Q_n; s), a network that never falls in any Q_i; all else as in `VDN`.

    Its weights come from networks that read the state s of the whole team, which nobody needs to see in order to act. f can say
    that one player's action is worth more after another's, which no sum can.

    Differences:
        - Single rows are drawn, of players without memory; the paper's players are recurrent and learn from whole episodes.
        - With `double`, the default, the network chooses the next actions; in the paper the target copy does.
        - The optimiser is Adam; the paper's is RMSProp.

    Args:
        model: Offers `q` as for `VDN`, and `mix(values, obs) -> [N]`, f of the values [N, players].
        The others: As for `DQN`.
    """

    calls = {**VDN.calls, "mix": "mix(values, obs) -> [N], the value of the team,"}
    fitting_models = "MLPTeamMix"

    def check_model(self, inputs: Batch) -> None:
        super().check_model(inputs)
        values = torch.zeros(2, len(self.model.act_space.nvec.ravel()))
        check_shape(self, "mix", answer(self, "mix", values, inputs.obs), (2,))

    def total(self, network: Any, values: Tensor, obs: Any) -> Tensor:
        return network.mix(values, obs)  # type: ignore[no-any-return]
