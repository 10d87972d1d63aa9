"""The decision transformer (Chen et al. 2021): a policy that is told what to earn, cloned from what others earned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Algorithm, Schedule, Window
from parl_like.learning.model import Model
from parl_like.learning.model_check import ContractError
from parl_like.values.batch import Batch


class DecisionTransformer(Algorithm):
    """â_t = f(R_{t−K+1}, s_{t−K+1}, a_{t−K+1}, …, R_t, s_t),   R_t = Σ_{k≥t} r_k / scale,

    loss = mean −log softmax(â_t)[a_t] for Discrete actions, mean (â_t − a_t)² for a Box, over all steps of sequences of K rows,
    which begin at any row; each step knows those of its sequence before it. R is that of the rest of the row's episode, not
    discounted; of one that is not over, as far as it is stored.

    Acting, R begins with `target_return` and falls by each reward; the last K steps are the memory. It takes the best action, for
    the memory has what it takes: give it no steps at random. With K = 1 it is the cloning of rows by observation and return.

    Differences:
        - Places in the context stand for the time in the episode of the paper.
        - Adam without weight decay and warm-up; the paper has AdamW with both, and dropout in its layers.

    Args:
        model: Offers `actions`, `next_action`, `numbers`, `legal` and `perception`, see `CausalTransformer`; its `context` is K.
        target_return: What an episode shall earn: about the best return of the data. return_scale: The scale.
        lr, max_grad_norm: 10⁻⁴ and 0.25 as published.

    Raises:
        ContractError: the model has no memory.
    """

    one_reward, takes_priorities, takes_rewards = True, False, False
    calls = {"actions": "actions(to_go, features, act) -> [N, T, A], the actions of T steps,",
             "next_action": "next_action(obs, state, target, scale) -> (act, state),"}
    fitting_models = "CausalTransformer"
    takes = Takes(("Discrete", "Box"), images=False, memory="always")

    def __init__(self, model: Model | Callable[[], Model], *, target_return: float = 0.0, return_scale: float = 1.0,
                 lr: float | Schedule = 1e-4, max_grad_norm: float | None = 0.25) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        if not self.model.state_specs():
            raise ContractError("DecisionTransformer needs a memory of the last steps, as CausalTransformer has it; "
                                f"{type(self.model).__name__} has none")
        self.target_return, self.return_scale = target_return, return_scale
        self.window = Window(in_order=False, sequence=self.model.context, fields=("to_go",), memory=False)

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        act, state = self.model.next_action(inputs.obs, inputs.state, self.target_return, self.return_scale)
        return {"act": act, "state": state}

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        model = self.model
        to_go = (batch.to_go / self.return_scale).float()
        features, act = model.perception(batch.obs), model.numbers(batch.act)
        out = model.actions(to_go.reshape(len(batch), -1), *(part.reshape(len(batch), -1, part.shape[-1])
                                                             for part in (features, act)))
        out = model.legal(out.reshape(*to_go.shape, -1), batch.obs)
        real = batch.valid if to_go.ndim > 1 else torch.ones_like(to_go, dtype=torch.bool)  # a sequence of one row is a row
        return {"loss": F.cross_entropy(out[real], batch.act[real]) if model.discrete else F.mse_loss(out[real], act[real])}
