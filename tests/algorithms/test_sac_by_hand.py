"""SAC with continuous actions beside a plain one: the same weights, rows and noise give the same five updates."""

import copy
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.distributions import Normal

from parl_like import ComputationTask
from parl_like.algorithms import SAC
from parl_like.models import MLPActorQ

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACT = gym.spaces.Box(-1, 1, (2,), np.float32)


class PlainSAC:
    """Written from the papers alone (Haarnoja et al. 2018a, 2018b): `nets` holds tensors, which are multiplied here."""

    def __init__(self, nets, alpha, lr, gamma, tau, generator):
        self.nets = {name: value.clone().requires_grad_() for name, value in nets.items()}
        self.late = {name: value.clone() for name, value in nets.items()}
        self.log_alpha = torch.tensor(math.log(alpha), requires_grad=True)
        self.gamma, self.tau, self.generator = gamma, tau, generator
        critics = [value for name, value in self.nets.items() if name.startswith("critics")]
        policy = [value for name, value in self.nets.items() if not name.startswith("critics")]
        self.critic, self.actor, self.temperature = (
            torch.optim.Adam(moved, lr, eps=1e-8) for moved in (critics, policy, [self.log_alpha]))

    def draw(self, obs):
        """Actions and their log π by torch's normal distribution and the derivative of tanh."""
        n = self.nets
        hidden = torch.relu(obs @ n["body.layers.0.weight"].T + n["body.layers.0.bias"])
        mean, log_std = (hidden @ n["head.linear.weight"].T + n["head.linear.bias"]).chunk(2, -1)
        normal = Normal(mean, log_std.exp())
        u = mean + log_std.exp() * torch.randn(mean.shape, generator=self.generator)
        act = torch.tanh(u)
        return act, (normal.log_prob(u) - torch.log(1.0 - act**2)).sum(-1)

    @staticmethod
    def q(nets, obs, act, i):
        hidden = torch.relu(torch.cat([obs, act], -1) @ nets["critics.weight0"][i] + nets["critics.bias0"][i])
        return (hidden @ nets["critics.weight1"][i] + nets["critics.bias1"][i])[:, 0]

    def least(self, nets, obs, act):
        return torch.minimum(self.q(nets, obs, act, 0), self.q(nets, obs, act, 1))

    def update(self, obs, act, rew, obs_next, terminated):
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            act_next, log_p = self.draw(obs_next)
            target = rew + self.gamma * (1.0 - terminated.float()) * (self.least(self.late, obs_next, act_next) - alpha * log_p)
        self.step(self.critic, sum(((self.q(self.nets, obs, act, i) - target) ** 2).mean() for i in (0, 1)))
        drawn, log_p = self.draw(obs)
        self.step(self.actor, (alpha * log_p - self.least(self.nets, obs, drawn)).mean())
        # The target entropy is −dim A = −2.
        self.step(self.temperature, -(self.log_alpha * (log_p.detach() - 2.0)).mean())
        for name, value in self.late.items():
            value.mul_(1.0 - self.tau).add_(self.tau * self.nets[name].detach())

    def step(self, optimizer, loss):
        for one in (self.critic, self.actor, self.temperature):
            one.zero_grad()
        loss.backward()
        optimizer.step()


def batch(rng, n=8):
    """Some rows end by themselves, some at a time limit, which is no end to a value."""
    return {"obs": rng.normal(size=(n, 3)).astype(np.float32), "act": rng.uniform(-1, 1, (n, 2)).astype(np.float32),
            "rew": rng.normal(size=n).astype(np.float32), "obs_next": rng.normal(size=(n, 3)).astype(np.float32),
            "terminated": np.arange(n) % 3 == 0, "truncated": np.arange(n) % 2 == 0}


@pytest.mark.parametrize("alpha", [0.5, 0.05])
def test_five_updates_are_those_of_a_plain_sac(alpha):
    torch.manual_seed(0)
    algorithm = SAC(MLPActorQ(OBS, ACT, (16,)), lr=1e-2, alpha=alpha, gamma=0.9, tau=0.1)
    task = ComputationTask(algorithm)
    generator = torch.Generator()
    generator.set_state(algorithm.torch_rng.get_state())
    before = copy.deepcopy(dict(algorithm.model.named_parameters()))
    plain = PlainSAC({name: value.detach() for name, value in before.items()}, alpha, 1e-2, 0.9, 0.1, generator)
    rng = np.random.default_rng(0)
    for _ in range(5):
        rows = batch(rng)
        task.learn(rows)
        plain.update(*[torch.from_numpy(rows[name]) for name in ("obs", "act", "rew", "obs_next", "terminated")])
    for name, value in algorithm.model.named_parameters():
        torch.testing.assert_close(value, plain.nets[name], rtol=0, atol=1e-6)
        assert (value - before[name]).abs().max() > 0.01
    for name, value in algorithm.target.named_parameters():
        torch.testing.assert_close(value, plain.late[name], rtol=0, atol=1e-6)
    torch.testing.assert_close(algorithm.log_alpha, plain.log_alpha, rtol=0, atol=1e-6)
    assert abs(algorithm.log_alpha.item() - math.log(alpha)) > 0.01
