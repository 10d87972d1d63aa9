"""MADDPG: deterministic policies of several players, each with a critic that knows what all of them do (Lowe et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import torch
from torch import Tensor

from parl_like.algorithms.actor_q import actor_and_critics, critic_terms
from parl_like.algorithms.targets import rewards_and_discount
from parl_like.learning.algorithm import Algorithm, Schedule, Window
from parl_like.learning.explorers import Explorer, Noisy
from parl_like.learning.fixed_settings import explorers_have
from parl_like.learning.model import Model
from parl_like.learning.model_check import answer, check_shape
from parl_like.values.batch import Batch


class MADDPG(Algorithm):
    """y_i = r_i + γ (1 − terminated) · Q⁻_i(s', π⁻_1(o'_1), …, π⁻_n(o'_n)),

    critic loss = Σ_i mean (Q_i(s, a_1, …, a_n) − y_i)²,   actor loss = −Σ_i mean Q_i(s, a_1, …, π_i(o_i), …, a_n),

    for players i that act by their own observation o_i; the critics alone know the state s of all and everyone's action. After
    each update the target copies π⁻, Q⁻ ← (1 − τ) · target + τ · network. A truncated episode bootstraps. A row with a
    `duration` d is discounted by γᵈ. Rows of a prioritised buffer count by their `weight`, and get max_i |Q_i − y_i| as priority.
    With critics that know one player alone (`MLPTeamActorQ(central=False)`) the players are independent DDPGs.

    Where players end before the others, let the helper store who has: `store_info={"ended": np.zeros(players, bool)}`, which
    `Joint` says. Then y_i = r_i for them.

    Differences:
        - Actions are numbers in a Box alone; the paper also has discrete actions, by a Gumbel-softmax.
        - The critics' targets read the other players' own target policies; the paper can also infer these (4.2), and train
          ensembles of policies (4.3).
        - All players learn from the same rows of an update; the paper draws a minibatch for each.

    Args:
        model: Offers `act(obs) -> [N, players, n]` in [−1, 1]; `q(obs, act) -> [players, N]`, which also takes a joint action for
            each critic, [players, N, players, n]; and `actor`, the module of the policies' layers.
        gamma: Discount γ per step.
        tau: τ.
        noise: Standard deviation of what is added to actions in acting, a number or a schedule over a helper's acting steps.
        lr: Adam's learning rate, of the critics and, where `actor_lr` is None, of the actors; numbers or schedules over updates.

    Rewards are one number for the team [N], or one for each player [N, players].
    """

    calls = {"act": "act(obs) -> [N, players, n], the actions in [−1, 1],",
             "q": "q(obs, act) -> [players, N], the value for each player,",
             "actor": "actor, the module of the policies' layers,"}
    fitting_models = "MLPTeamActorQ"
    window = Window(in_order=False)

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.95, tau: float = 0.01, noise: float | Schedule = 0.1,
        lr: float | Schedule = 1e-2, actor_lr: float | Schedule | None = None, max_grad_norm: float | None = 0.5,
    ) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        self.gamma, self.tau, self.noise, self.actor_lr = gamma, tau, noise, actor_lr
        self.target = self.model.clone()
        self.losses = actor_and_critics(self)

    def networks(self) -> dict[str, torch.nn.Module]:
        return {"model": self.model, "target": self.target}

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), "noise": explorers_have("std")}

    def check_model(self, inputs: Batch) -> None:
        shape = self.model.act_space.shape
        act = answer(self, "act", inputs.obs)
        check_shape(self, "act", act, (2, *shape))
        for joint in (act, act.expand(shape[0], *act.shape)):
            check_shape(self, "q", answer(self, "q", inputs.obs, joint), (shape[0], 2))

    def explorer(self) -> Explorer:
        return Noisy(self.model.act_space.shape, self.noise)

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        return {"mean": self.model.act(inputs.obs)}

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [players, N].

        Raises:
            ValueError: a reward is neither one number nor one for each player.
        """
        rew, discount = rewards_and_discount(batch, (1.0, self.gamma))
        then = self.target.q(batch.obs_next, self.target.act(batch.obs_next))
        if "info" in batch and "ended" in batch.info:
            then = torch.where(batch.info.ended.T.bool(), 0.0, then)
        if rew.ndim > 1 and rew.shape != then.T.shape:
            raise ValueError(f"MADDPG: rewards have the shape {tuple(rew.shape[1:])}; expected one number, or one for each of "
                             f"{len(then)} players")
        batch.target = (rew if rew.ndim == 1 else rew.T) + discount * then
        return batch

    def learn(self, batch: Batch) -> Generator[Mapping[str, Any], None, None]:
        yield critic_terms(self.model.q(batch.obs, batch.act) - batch.target, batch)
        q = self.model.q(batch.obs, self.each_by_itself(batch)).mean(1)
        yield {"actor": -q.sum(), "q": q.detach().mean()}

    def each_by_itself(self, batch: Batch) -> Tensor:
        """Return for each player i the joint action in which i alone acts by its policy, [players, N, players, n]."""
        policy, taken = self.model.act(batch.obs), batch.act.float()
        own = torch.eye(policy.shape[1], dtype=torch.bool, device=policy.device)
        return torch.where(own[:, None, :, None], policy, taken)

    def post_process(self, batch: Batch) -> None:
        self.update_target(self.target, tau=self.tau, period=1)
