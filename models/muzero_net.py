"""MuZeroNet: the networks of MuZero (Schrittwieser et al. 2020), for observations and latent states that are vectors.

    s_0 = h(o)                    representation
    s_{k+1}, r_{k+1} = g(s_k, a)  dynamics
    p_k, v_k = f(s_k)             prediction

A latent state means nothing by itself. It is scaled to [0, 1], the range of the one-hot action beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parl_like.learning.action_spaces import taken_by
from parl_like.learning.layers import Brief
from parl_like.learning.model import Model
from parl_like.models.encodings import Squash, make_encoding
from parl_like.models.flat_obs import FlatObs
from parl_like.models.heads import mask_names
from parl_like.models.mlp import MLP
from parl_like.values.spec import Spec

FLAT: Any = {"orthogonal": True, "last_gain": 0.0}
"""Networks that say the same of all states in the beginning: a search that normalises values makes much of any difference."""


def scaled(state: Tensor) -> Tensor:
    """Return latent states [N, size] in [0, 1], (s − min) / (max − min) of each row; a row of equal numbers becomes 0."""
    low, high = state.amin(-1, keepdim=True), state.amax(-1, keepdim=True)
    return (state - low) / (high - low).clamp(min=1e-5)


class LatentWorld(nn.Module, metaclass=Brief):
    """h, and the part of g that gives the next state; several tasks learn it (`Shared`).

    Args:
        obs, act: Spaces; `act` is Discrete. The legal `mask` of a Dict observation is no feature.
        size: Numbers of a latent state.
        hidden: Sizes of the hidden layers, of each of the two networks.

    Raises:
        TypeError: act is not Discrete.
    """

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], size: int = 64, hidden: Sequence[int] = (128,)) -> None:
        super().__init__()
        if not isinstance(act, gym.spaces.Discrete):
            raise TypeError(f"LatentWorld: act is {act}; expected Discrete, for search has one edge for each action"
                            f"{taken_by(act)}")
        self.flat = FlatObs(obs, skip=mask_names(obs, act))
        self.n, self.out_size = int(act.n), size
        self.representation = MLP([self.flat.out_size, *hidden, size])
        self.transition = MLP([size + self.n, *hidden, size])

    def forward(self, obs: Any) -> Tensor:
        """Observations → latent states [N, size]."""
        return scaled(self.representation(self.flat(obs)))

    def step(self, state: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        """Latent states [N, size] and actions [N] int64 from 0 → the next latent states, and what they were made of."""
        both = torch.cat([state, F.one_hot(act, self.n).float()], -1)
        return scaled(state + self.transition(both)), both


class LatentPrediction(nn.Module, metaclass=Brief):
    """f: latent states [N, size] → logits [N, A], and the value as its encoding has it, [N, v].

    Args:
        size: Numbers of a latent state. n_actions: A.
        hidden: Sizes of its hidden layers.
        encoding, squash: Of the value, see `parl_like.models.encodings`.
    """

    def __init__(self, size: int, n_actions: int, hidden: Sequence[int] = (128,),
                 encoding: Literal["scalar", "two_hot", "two_hot_biased"] = "scalar", squash: Squash = "log") -> None:
        super().__init__()
        self.code = make_encoding(encoding, squash)
        self.n = n_actions
        self.net = MLP([size, *hidden, n_actions + self.code.size], **FLAT)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        out: Tensor = self.net(state)
        return out[..., : self.n], out[..., self.n :]


class MuZeroNet(Model):
    """The networks of one of MuZero's two tasks: the world model has `reward`, and both have the rest in common.

    Args:
        obs, act: Spaces, as `LatentWorld` takes them.
        world, prediction: The parts that the tasks share.
        reward: Sizes of the hidden layers of the reward; None: this task has none.
        encoding, squash: Of the reward, see `parl_like.models.encodings`.
    """

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], world: LatentWorld, prediction: LatentPrediction, *,
                 reward: Sequence[int] | None = (64,), encoding: Literal["scalar", "two_hot", "two_hot_biased"] = "scalar",
                 squash: Squash = "log") -> None:
        super().__init__(obs, act)
        self.world, self.prediction = world, prediction
        self.code = make_encoding(encoding, squash)
        self.reward = None if reward is None else MLP([world.out_size + world.n, *reward, self.code.size], **FLAT)

    @property
    def state_size(self) -> int:
        """Numbers of a latent state."""
        return self.world.out_size

    def inputs(self) -> dict[str, Spec]:
        """A request of search: `op`, 0 to represent `obs`, 1 to go on from the latent state at `parent` by `act`, which counts
        from 0; the new latent state is kept at `node`. As `ThinkerNet.inputs`."""
        places = {name: Spec(name, (), np.dtype(np.int64), 0) for name in ("parent", "node")}
        op, act = (Spec(name, (), np.dtype(np.int64), 0, high) for name, high in (("op", 1), ("act", self.world.n - 1)))
        return {**self.obs_specs, "op": op, "act": act, **places}

    def represent(self, obs: Any) -> Tensor:
        """h: observations → latent states [N, size]."""
        state: Tensor = self.world(obs)
        return state

    def advance(self, state: Tensor, act: Tensor) -> tuple[Tensor, Tensor | None]:
        """g: latent states [N, size] and actions [N] int64 → the next ones, and rewards as encoded [N, r]; None: it has none."""
        after, both = self.world.step(state, act)
        return after, None if self.reward is None else self.reward(both)

    def predict(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """f: latent states [N, size] → logits [N, A], and values as encoded [N, v]."""
        out: tuple[Tensor, Tensor] = self.prediction(state)
        return out
