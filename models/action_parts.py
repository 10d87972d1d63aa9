"""The parts of a structured action as critics and soft actors see them: real numbers, and choices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from parl_like.learning.action_spaces import nvec_of
from parl_like.learning.explorers import legal, part_of
from parl_like.models.heads import Head, StructuredHead, inside
from parl_like.values.spec import leaf_spaces


class ActionParts(nn.Module):
    """The arrays of an action that is MultiDiscrete, MultiBinary, or a Dict or Tuple of these, Discrete and Boxes.

    A critic reads all real numbers x side by side, and gives one number for each alternative of each choice. The value of an
    action is their sum over what was chosen, Q(s, a) = Σ_d q_d(s, x, a_d); without a choice it is the one number q(s, x). So the
    expectation over independent choices is exact, and takes one pass of the critic (Delalleau et al. 2019 for one choice, Seyde
    et al. 2023 for several).

    Args:
        act: The space. head: Of the policy, one for each array.

    Attributes:
        names: Of the arrays, without `act`: `arm.grip`; '' for an action that is one array.
        size: How many real numbers there are. outputs: Numbers of a critic.
    """

    offsets: Tensor

    def __init__(self, act: gym.Space[Any], head: Head) -> None:
        super().__init__()
        leaves: Any = [(name.removeprefix("act").removeprefix("."), space) for name, space in leaf_spaces(act, "act")]
        self.names = [name for name, _ in leaves]
        self.sizes = [math.prod(space.shape) if isinstance(space, gym.spaces.Box) else 0 for _, space in leaves]
        self.nvecs = [nvec_of(space) for _, space in leaves]
        self.size, nvec = sum(self.sizes), [n for one in self.nvecs for n in one]
        self.outputs = sum(nvec) or 1
        self.heads: list[Any] = list(head.heads) if isinstance(head, StructuredHead) else [head]
        self.register_buffer("offsets", torch.tensor([0, *nvec[:-1]]).cumsum(0), persistent=False)

    def forward(self, out: Mapping[str, Tensor], noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draws what the policy does by standard normal `noise` [N, size]: the real numbers [N, size], π of every alternative of
        every choice [N, outputs] (without a choice ones), and log π of each array [arrays, N], for choices its expectation."""
        numbers, p, log_p, begin = [noise[:, :0]], [], [], 0
        for name, head, size in zip(self.names, self.heads, self.sizes, strict=True):
            own = part_of(out, name) if name else out
            if size:
                act, of_act = head.draw(own, noise[:, begin : begin + size])
                numbers.append(act)
                log_p.append(of_act)
                begin += size
            else:
                logs = head.log_probs(own)
                p.append(logs.exp())
                log_p.append((p[-1] * logs).sum(-1))
        return torch.cat(numbers, -1), torch.cat(p, -1) if p else noise.new_ones(len(noise), 1), torch.stack(log_p)

    def numbers(self, act: Any) -> Tensor:
        """The real numbers [N, size] of stored actions, as float32."""
        first = inside(act, self.names[0])
        found = [inside(act, name).reshape(len(first), -1).float() for name, size in zip(self.names, self.sizes, strict=True)
                 if size]
        return torch.cat(found, -1) if found else torch.zeros(len(first), 0, device=first.device)

    def chosen(self, values: Tensor, act: Any) -> Tensor:
        """[critics, N, outputs] → [critics, N], of stored actions."""
        choices = [inside(act, name) for name, nvec in zip(self.names, self.nvecs, strict=True) if nvec]
        if not choices:
            return values.squeeze(-1)
        at = torch.cat([one.reshape(len(one), -1).long() for one in choices], -1) + self.offsets
        return values.gather(-1, at.expand(len(values), *at.shape)).sum(-1)

    def entropies(self, obs: Any) -> Tensor:
        """The entropy of each array that SAC wants, [arrays] in nats: −(its numbers); of choices 0.98 Σ log n, n
        the legal alternatives, averaged over the rows."""
        mask = None if isinstance(obs, Tensor) or "mask" not in obs else obs["mask"]
        wanted = []
        for name, size, nvec in zip(self.names, self.sizes, self.nvecs, strict=True):
            own = inside(mask, name)
            if size or own is None:
                wanted.append(-float(size) if size else 0.98 * sum(map(math.log, nvec)))
                continue
            blocks = torch.split(legal(own.reshape(own.shape[0], -1), nvec), nvec, -1)
            wanted.append(0.98 * float(sum(block.sum(-1).float().log().mean() for block in blocks)))
        return self.offsets.new_tensor(wanted, dtype=torch.float32)
