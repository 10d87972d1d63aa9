"""The loss of AlphaZero by hand, and what its search asks the network."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import Batch
from parl_like.algorithms.alphazero import AlphaZero
from parl_like.models import MLPActorCritic

OBS = gym.spaces.Dict({"mask": gym.spaces.MultiBinary(3), "obs": gym.spaces.Box(0, 1, (2,), np.float32)})


class Fixed(MLPActorCritic):
    """Logits ln(1, 2, 1) of legal actions, and the value 0.5, whatever it sees."""

    def evaluate(self, obs, state=None, first=None):
        logits = torch.tensor([1.0, 2.0, 1.0]).log() + torch.where(obs["mask"] > 0, 0.0, -1e9)
        return {"logits": logits + 0 * self.value_head.bias}, self.value_head.bias.expand(len(logits)) * 0 + 0.5


def test_the_loss_by_hand():
    batch = Batch(obs={"mask": torch.tensor([[1, 1, 1], [1, 1, 0]]), "obs": torch.zeros(2, 2)},
                  search_policy=torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), rew=torch.tensor([1.0, -1.0]))
    algorithm = AlphaZero(lambda: Fixed(OBS, gym.spaces.Discrete(3)), value_weight=2.0)
    out = algorithm.learn(batch)
    policy = -(0.5 * np.log(1 / 4) + 0.5 * np.log(1 / 2) + np.log(1 / 3)) / 2  # an illegal action counts nothing
    assert float(out["policy_loss"]) == pytest.approx(policy, rel=1e-6)
    assert float(out["value_loss"]) == pytest.approx((0.25 + 2.25) / 2)
    assert out["loss"].item() == pytest.approx(policy + 2.0 * 1.25)


def test_it_predicts_what_search_reads():
    out = AlphaZero(lambda: MLPActorCritic(OBS, gym.spaces.Discrete(3))).predict(
        Batch(obs={"mask": torch.tensor([[1, 0, 1]]), "obs": torch.zeros(1, 2)}))
    assert out["logits"].shape == (1, 3) and out["logits"][0, 1] < -1e8 and out["value"].shape == (1,)
    with pytest.raises(ValueError, match="value_weight is -1"):
        AlphaZero(lambda: MLPActorCritic(OBS, gym.spaces.Discrete(3)), value_weight=-1)
