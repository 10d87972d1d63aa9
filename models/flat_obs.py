"""FlatObs: the perception that makes any observation a flat row of features, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parl_like.learning.layers import Brief
from parl_like.models.heads import mask_names
from parl_like.values.spec import leaf_spaces, nest


class FlatObs(nn.Module, metaclass=Brief):
    """Perception without parameters: an observation of any space → [..., out_size] float32, its leaves side by side.

    Box: flattened; uint8 divided by the largest legal value (255 for images). Discrete, MultiDiscrete: one-hot. Everything keeps
    its leading axes, [N] or [T, B].

    Args:
        obs: The observation space.
        skip: Flat names of leaves that are no features (`obs.mask`).

    Raises:
        ValueError: nothing is left of the observation.
    """

    only_arranges = True
    """It neither learns nor counts nor draws, so that it may be asked twice (`Model.features_to_write`)."""

    def __init__(self, obs: gym.Space[Any], skip: Sequence[str] = ()) -> None:
        super().__init__()
        self.parts = [_Leaf(name, space) for name, space in leaf_spaces(obs, "obs") if name not in skip]
        if not self.parts:
            raise ValueError(f"FlatObs: nothing is left of the observation space {obs} without {list(skip)}")
        self.out_size = sum(part.size for part in self.parts)
        first = self.parts[0]
        self.is_vector = not first.path and first.is_vector

    def forward(self, obs: Any) -> Tensor:
        if self.is_vector:
            vector: Tensor = obs
            return vector if vector.dtype is torch.float32 else vector.float()
        flat = [part(obs) for part in self.parts]
        return flat[0] if len(flat) == 1 else torch.cat(flat, -1)

    def inverse(self, flat: Tensor) -> Any:
        """[..., out_size] → the observation of the space whose numbers are nearest, with the same leading axes. Of leaves that
        were left out there is none."""
        parts = zip(self.parts, torch.split(flat, [part.size for part in self.parts], -1), strict=True)
        return nest({part.name: part.inverse(x) for part, x in parts})["obs"]


def hands_on(perception: nn.Module) -> bool:
    """Return whether a perception gives vectors as they are, as float32."""
    return type(perception) is FlatObs and perception.is_vector and "forward" not in vars(perception)


class _Leaf:
    """The way from one array of the observation to features, and from numbers back to an array."""

    def __init__(self, name: str, space: gym.Space[Any]) -> None:
        self.name, self.path, self.space = name, name.split(".")[1:], space
        self.n_axes = len(space.shape or ())
        self.scale = 1.0
        self.choices: list[tuple[int, int]] = []  # of each discrete number: how many values, and the first of them
        if isinstance(space, gym.spaces.Discrete):
            self.choices = [(int(space.n), int(space.start))]
        elif isinstance(space, gym.spaces.MultiDiscrete):
            starts = np.broadcast_to(space.start, space.nvec.shape).ravel()
            self.choices = [(int(n), int(start)) for n, start in zip(space.nvec.ravel(), starts, strict=True)]
        elif isinstance(space, gym.spaces.Box) and space.dtype == np.uint8:
            self.scale = 1.0 / max(int(space.high.max(initial=1)), 1)
        self.size = sum(n for n, _ in self.choices) or math.prod(space.shape or ())
        self.is_vector = self.n_axes == 1 and self.scale == 1.0 and not self.choices

    def __call__(self, obs: Any) -> Tensor:
        for key in self.path:
            obs = obs[key]
        x: Tensor = obs.flatten(-self.n_axes) if self.n_axes else obs.unsqueeze(-1)
        if self.choices:
            hot = [F.one_hot(x[..., i].long() - start, n) for i, (n, start) in enumerate(self.choices)]
            return torch.cat(hot, -1).float()
        return x.float() if self.scale == 1.0 else x * self.scale

    def inverse(self, x: Tensor) -> Tensor:
        space: Any = self.space
        if self.choices:
            parts = torch.split(x, [n for n, _ in self.choices], -1)
            x = torch.stack([part.argmax(-1) + first for part, (_, first) in zip(parts, self.choices, strict=True)], -1)
        else:
            bounds = (space.low, space.high) if isinstance(space, gym.spaces.Box) else np.array([[0], [1]])
            x = x if space.dtype.kind == "f" else (x.double() / self.scale).round()
            x = x.clamp(*(torch.as_tensor(bound.ravel(), dtype=x.dtype, device=x.device) for bound in bounds))
        return x.reshape((*x.shape[:-1], *space.shape)).to(torch.from_numpy(np.empty(0, space.dtype)).dtype)


def perception(obs: gym.Space[Any], act: gym.Space[Any], trunk: nn.Module | None) -> nn.Module:
    """`trunk`, or the flat observation without its legal mask.

    Raises:
        TypeError: the trunk does not say how many features it gives.
    """
    if trunk is None:
        return FlatObs(obs, skip=mask_names(obs, act))
    if not isinstance(getattr(trunk, "out_size", None), int):
        raise TypeError(f"trunk {type(trunk).__name__} has no `out_size`; set it to the number of features that forward(obs) "
                        "returns")
    return trunk
