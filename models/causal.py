"""A causal transformer over the last steps of an episode, for the decision transformer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parl_like.learning.action_spaces import taken_by
from parl_like.learning.layers import Brief
from parl_like.learning.model import Model
from parl_like.models.flat_obs import perception
from parl_like.models.heads import mask_key, masked
from parl_like.values.spec import Spec


class CausalBlock(nn.Module, metaclass=Brief):
    """x ← x + attention(LayerNorm(x)),   x ← x + linear(GELU(linear(LayerNorm(x)))), for tokens [N, T, size]; a token attends to
    itself and to those before it.

    Args:
        size: Numbers of a token. heads: Of the attention, which divide it.
    """

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(size), nn.LayerNorm(size)
        self.project, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.wide, self.narrow = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        n, t, size = x.shape
        q, k, v = self.project(self.first(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(n, t, size))
        return x + self.narrow(F.gelu(self.wide(self.second(x))))  # type: ignore[no-any-return]


class CausalTransformer(Model):
    """Actions of the last `context` steps, each of what came before it: three tokens a step, what is still to be earned, the
    observation and the action, each linear in its numbers plus what was learned for the place of its step in the context. The
    action of a step is linear in what its observation has become after the blocks (tanh of that for a Box).

    The memory is those steps: `obs`, `act` [context, numbers] and `before` [context], what had been earned before each; `filled`,
    how many there are, the oldest first; and `earned`, to which helpers add the rewards.

    Args:
        obs, act: Spaces; `act` is Discrete or a Box with finite bounds, whose actions are in [−1, 1] here. A Dict observation may
            hold `mask` [A], 1 for the legal actions.
        context: Steps; K in the paper, which has 20. size: Numbers of a token; 128 there. blocks, heads: 3 and 1 there.

    Raises:
        TypeError: `act` is another space. ValueError: the heads do not divide the size.
    """

    reward_state = "earned"

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], *, context: int = 20, size: int = 128, blocks: int = 3,
                 heads: int = 1) -> None:
        super().__init__(obs, act)
        self.discrete = isinstance(act, gym.spaces.Discrete)
        if not self.discrete and not (isinstance(act, gym.spaces.Box) and np.isfinite([act.low, act.high]).all()):
            raise TypeError(f"CausalTransformer: act is {act}; expected Discrete, or a Box with finite bounds{taken_by(act)}")
        if size % heads:
            raise ValueError(f"CausalTransformer: size is {size} and heads {heads}; expected a size that the heads divide")
        self.context, self.mask = context, mask_key(obs, act)
        self.perception = perception(obs, act, None)
        size_of: Any = self.perception.out_size
        self.n_obs = int(size_of)
        self.dim = int(act.n) if isinstance(act, gym.spaces.Discrete) else math.prod(act.shape or ())
        self.to_go, self.see, self.did = nn.Linear(1, size), nn.Linear(self.n_obs, size), nn.Linear(self.dim, size)
        self.place = nn.Parameter(0.02 * torch.randn(context, 1, size))
        self.enter, self.leave = nn.LayerNorm(size), nn.LayerNorm(size)
        self.blocks = nn.ModuleList(CausalBlock(size, heads) for _ in range(blocks))
        self.out = nn.Linear(size, self.dim)

    def state_specs(self) -> dict[str, Spec]:
        f32, k = np.dtype(np.float32), self.context
        shapes = {"obs": (k, self.n_obs), "act": (k, self.dim), "before": (k,), "earned": ()}
        return {**{name: Spec(name, shape, f32) for name, shape in shapes.items()},
                "filled": Spec("filled", (), np.dtype(np.int64))}

    def numbers(self, act: Tensor) -> Tensor:
        """Actions [..., *shape] as the tokens read them, [..., numbers]: one-hot, or flat."""
        if self.discrete:
            return F.one_hot(act.long(), self.dim).float()
        shape = self.act_specs["act"].shape
        return act.reshape(*act.shape[: act.ndim - len(shape)], self.dim).float()

    def actions(self, to_go: Tensor, features: Tensor, act: Tensor) -> Tensor:
        """The actions of T ≤ `context` steps, [N, T, numbers]: logits, or numbers in [−1, 1].

        Args:
            to_go: [N, T], what is still to be earned. features: Of the observations, [N, T, numbers]. act: As `numbers` gives
                them, [N, T, numbers]; those of a step do not count for it.
        """
        n, t = to_go.shape
        tokens = torch.stack([self.to_go(to_go.unsqueeze(-1)), self.see(features), self.did(act)], 2) + self.place[:t]
        x = self.enter(tokens.flatten(1, 2))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.out(self.leave(x.view(n, t, 3, -1)[:, :, 1]))
        return out if self.discrete else torch.tanh(out)

    def legal(self, logits: Tensor, obs: Any) -> Tensor:
        """Logits [..., A], −1e9 for illegal actions."""
        return logits if self.mask is None else masked(logits, obs[self.mask])

    def with_step(self, obs: Any, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the memory [N, …] with one more step, of which the action is not known yet."""
        features, filled = self.perception(obs), state["filled"]
        full = filled == self.context
        at = torch.where(full, filled - 1, filled)
        rows = torch.arange(at.shape[0], device=at.device)
        after = {"filled": at + 1, "earned": state["earned"]}
        for name, new in (("obs", features), ("act", 0.0), ("before", state["earned"])):
            part = state[name]
            part = torch.where(full.reshape(-1, *(1,) * (part.ndim - 1)), part.roll(-1, 1), part)
            part[rows, at] = new  # a new tensor
            after[name] = part
        return after

    def next_action(self, obs: Any, state: Mapping[str, Tensor], target: Any, scale: float) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the best actions [N, *shape], and the memory after them.

        Args:
            obs: [N, …]. state: The memory before. target: What an episode shall earn; divided by `scale` as all rewards are.
        """
        after = self.with_step(obs, state)
        rows, at = torch.arange(after["filled"].shape[0], device=after["filled"].device), after["filled"] - 1
        out = self.actions((target - after["before"]) / scale, after["obs"], after["act"])[rows, at]
        act = self.legal(out, obs).argmax(1) if self.discrete else out.reshape(out.shape[0], *self.act_specs["act"].shape)
        after["act"][rows, at] = self.numbers(act)
        return act, after
