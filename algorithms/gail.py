"""GAIL, generative adversarial imitation learning (Ho and Ermon 2016): PPO whose rewards say how much its steps look like an
expert's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from parl_like.algorithms.ppo import PPO
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.datasets import rows_hash
from parl_like.learning.algorithm import Loss, Schedule
from parl_like.learning.model import Model
from parl_like.learning.model_check import answer, check_methods, check_shape
from parl_like.values.batch import Batch
from parl_like.values.plain import State

EXPERT = "expert_rows"
"""The key of a saved state that says which rows are the expert's."""


class GAIL(PPO):
    """A discriminator D(s, a) = σ(g(s, a)) learns to tell the expert's rows from the policy's,

    discriminator loss = −mean over the expert's [log D] − mean over the policy's [log (1 − D)],

    and the policy learns as in `PPO`, with the reward −log (1 − D(s, a)) in place of the environment's, of the discriminator
    before the update. That is above 0, so longer episodes are worth more; where the task is to come to an end, 'log_odds' takes
    log D − log (1 − D) = g, which may be of either sign (Fu, Luo and Levine 2018). Each minibatch has as many of the expert's
    rows, drawn with replacement. Of a state that an episode has ended in nothing is asked: its value is 0.

    Differences:
        - The policy learns by PPO; the paper's by TRPO.
        - The discriminator learns in each minibatch of PPO; the paper's once in an update.
        - D is the probability of an expert's row; in the paper that of a policy's.

    Args:
        model: As for `PPO`, and it offers `discriminate(obs, act) -> [N]`, g, by the module `discriminator`.
        data: The expert's rows: a buffer, or the directory of one; see the verb `record`.
        reward: 'positive' or 'log_odds'.
        discriminator_lr: Of its Adam; None: `lr`.
        The others: As for `PPO`.

    Raises:
        ValueError: reward is another word, or the data has no rows.
    """

    calls = {**PPO.calls, "discriminate": "discriminate(obs, act) -> [N], the log odds that a row is the expert's,",
             "discriminator": "discriminator, the module of its layers,"}
    fitting_models = "MLPImitator"
    takes, takes_rewards = None, False
    transient = ("expert", "expert_sha256")

    def __init__(
        self, model: Model | Callable[[], Model], data: ReplayBuffer | str, *,
        reward: Literal["positive", "log_odds"] = "positive", discriminator_lr: float | Schedule | None = None, clip: float = 0.2,
        epochs: int = 4, minibatches: int = 4, gamma: float = 0.99, lam: float = 0.95, entropy: float | Schedule = 0.0,
        value_weight: float = 0.5, normalize: bool = True, lr: float | Schedule = 3e-4, max_grad_norm: float | None = 0.5,
    ) -> None:
        super().__init__(model, clip=clip, epochs=epochs, minibatches=minibatches, gamma=gamma, lam=lam, entropy=entropy,
                         value_weight=value_weight, normalize=normalize, lr=lr, max_grad_norm=max_grad_norm)
        if reward not in ("positive", "log_odds"):
            raise ValueError(f"GAIL: reward is {reward!r}; expected 'positive' or 'log_odds'")
        self.reward, self.discriminator_lr = reward, discriminator_lr
        check_methods(self)
        own = {id(one) for one in self.model.discriminator.parameters()}
        self.losses = {"policy": Loss([one for one in self.model.parameters() if id(one) not in own], "lr", "max_grad_norm"),
                       "discriminator": Loss(self.model.discriminator, "discriminator_lr")}
        self.expert, self.expert_sha256 = expert_rows(data, self.model)

    def check_model(self, inputs: Batch) -> None:
        super().check_model(inputs)
        rows = self.expert[torch.zeros(2, dtype=torch.long)]
        check_shape(self, "discriminate", answer(self, "discriminate", rows.obs, rows.act), (2,))

    def state_dict(self) -> State:
        """Return what `PPO` does, and which rows are the expert's."""
        return {**super().state_dict(), EXPERT: self.expert_sha256}

    def load_state_dict(self, state: State) -> None:
        """Restores `state_dict()`; raises as that of `Algorithm`, and ValueError where the expert's rows are others."""
        if (saved := state.get(EXPERT, self.expert_sha256)) != self.expert_sha256:
            raise ValueError(f"GAIL: the checkpoint learned from rows with the sha256 {str(saved)[:12]}…, and the data has "
                             f"others ({self.expert_sha256[:12]}…) now; put those rows back, or give data= the directory that "
                             "has them")
        super().load_state_dict({name: part for name, part in state.items() if name != EXPERT})

    def reward_of(self, obs: Any, act: Any) -> Tensor:
        """The policy's rewards [N]."""
        odds: Tensor = self.model.discriminate(obs, act)
        return F.softplus(odds) if self.reward == "positive" else odds

    def process(self, batch: Batch) -> Batch:
        """Puts the discriminator's rewards in the place of the environment's, and adds what `PPO.process` does."""
        batch.rew = self.reward_of(batch.obs, batch.act)
        return super().process(batch)

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        out = dict(super().learn(batch))
        n = len(batch.advantage)
        drawn = torch.from_numpy(self.rng.integers(len(self.expert.act), size=n))
        chosen = self.expert[drawn].to_torch(device=batch.advantage.device)
        experts, own = self.model.discriminate(chosen.obs, chosen.act), self.model.discriminate(batch.obs, batch.act)
        told = ((experts > 0.0).float().mean() + (own < 0.0).float().mean()) / 2
        return {**out, "policy": out.pop("loss"), "discriminator": F.softplus(-experts).mean() + F.softplus(own).mean(),
                "told_apart": told.detach()}


def expert_rows(data: ReplayBuffer | str, model: Model) -> tuple[Batch, str]:
    """Return `obs` and `act` of all rows, in the policy's units, and the sha256 of the rows as they were recorded. Raises
    ValueError where there are none."""
    buffer = ReplayBuffer.load(data) if isinstance(data, str) else data
    if not len(buffer):
        raise ValueError(f"{data!r:.60} has no rows; record an expert's episodes")
    rows = buffer.in_policy_units(model.act_space)[:]
    return Batch(obs=rows.obs, act=rows.act).to_torch(), rows_hash(buffer)
