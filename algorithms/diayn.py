"""DIAYN, diversity is all you need (Eysenbach et al. 2019): skills that are told apart by where they lead, without a reward."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch.nn.functional as F

from parl_like.algorithms.unrolls import minibatches_of
from parl_like.learning.algorithm import Algorithm, Schedule, Window
from parl_like.learning.model import Model
from parl_like.values.batch import Batch

RECENT = 0.05
"""Share of the newest update in the accuracy that is reported."""


class Discriminator(Algorithm):
    """The task beside a policy (the authors take SAC) that acts by the observation s and the number of a skill z:

        reward of the policy r = log q(z | s') − log p(z),   p even among the skills,      loss = −mean log q(z | s')

    So a skill earns by going where no other goes. With one skill all rewards are 0. The policy's task takes them by
    `rewards={"discriminator": 1.0, "env": 0.0}`. Each row is learned once, in order; `accuracy` is about rows before they are.

    Differences:
        - It learns from the newest rows, in 4 passes; the authors' code learns from random rows of the policy's buffer.
        - In the robot SAC adapts its temperature; the paper holds it at 0.1.
        - The robot has 8 skills; the paper mostly has 50.

    Args:
        model: `SkillClassifier`.
        epochs, minibatches: Passes over an update, and their parts.

    Attributes:
        accuracy: How often the likeliest skill is the one that was followed, a running mean over updates.
    """

    calls = {"logits": "logits(obs) -> [N, skills],"}
    fitting_models = "SkillClassifier"
    takes_priorities = takes_rewards = False
    window = Window(in_order=True)

    def __init__(self, model: Model | Callable[[], Model], *, epochs: int = 4, minibatches: int = 4, lr: float | Schedule = 1e-3,
                 max_grad_norm: float | None = None) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        self.epochs, self.parts = epochs, minibatches
        self.accuracy = 1.0 / self.model.skills

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        known = F.log_softmax(self.model.logits(inputs.obs_next.obs), 1)
        skill = inputs.obs.skill.long().unsqueeze(1)
        return {"reward": known.gather(1, skill).squeeze(1) + math.log(self.model.skills)}

    def process(self, batch: Batch) -> Batch:
        """Count whether the skills of these rows are told apart, before anything is learned from them."""
        told = (self.model.logits(batch.obs_next.obs).argmax(1) == batch.obs.skill).float().mean()
        self.accuracy += RECENT * (float(told) - self.accuracy)
        return batch

    def minibatches(self, batch: Batch) -> Iterable[Batch]:
        rows = Batch(obs=batch.obs, obs_next=batch.obs_next)
        for _ in range(self.epochs):
            yield from minibatches_of(rows, batch.last, min(self.parts, len(batch.last)), self.rng, False)

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        return {"loss": F.cross_entropy(self.model.logits(batch.obs_next.obs), batch.obs.skill.long()), "accuracy": self.accuracy}
