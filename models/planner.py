"""The actor-critic that plans: it acts in the augmented MDP of Thinker (Chung et al. 2023), or in the raw one.

The augmented environment imagines K − 1 steps, then takes a real one; an action is a pair (primary action, whether to go back to
the root). Its observation is a Dict:

    tree_reps    Box (D,) float            What the search tree knows of its root and of the node one stands at.
    hs           Box (C, h, w) or (N,)     The world model's hidden state at that node.                                      see_h
    xs           Box (C, H, W) or (N,)     The observation that it imagines there, in [0, 1].                                see_x
    real_states  Box (C, H, W) or (N,)     That of the real environment; integers are divided by their bound.     see_real_state
    last_act     MultiDiscrete [A, 2]      The last primary action, and the last reset; zeros at the beginning.
    last_rew     Box (2,) float            What the last step gave, real and planning reward; seen clamped to ±1.
    step_status  Discrete 4                0: the last step was real; 1: imagined; 2: imagined, the next is real; 3: both real.

Keys that are not looked at may be missing, and others may be there (`done`, say: that memory starts anew is told by `first`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parl_like.learning.model import Model
from parl_like.models.heads import ILLEGAL, CategoricalHead, MultiCategoricalHead, OrthogonalLinear
from parl_like.models.lstm_attention import LSTMAttention
from parl_like.models.mlp import MLP
from parl_like.models.small_images import Conv2d, flat
from parl_like.models.thinker_parts import channels_last
from parl_like.values.spec import Spec

LARGE = 32
"""Images of at least so many pixels a side are halved four times; smaller ones (grids, planes) keep every cell."""


class PlanningHead(MultiCategoricalHead):
    """Joint policy over (primary action, reset), by whether the next step is imagined.

    Imagined: primary action by the imaginary head, reset by the reset head. Real: primary action by the real head, and no reset,
    with certainty: its logits are [0, −1e9], so it adds 0 to log-probability, entropy and gradient, and any explorer of several
    choices samples the pair rightly.

    Args:
        in_size: Number of features.
        n: Primary actions A.
        separate: A head of its own for imagined steps; False: the real head serves both.
    """

    never: Tensor

    def __init__(self, in_size: int, n: int, separate: bool = True) -> None:
        super().__init__(in_size, [n, 2], None)
        self.imagined = OrthogonalLinear(in_size, n, None) if separate else None
        self.register_buffer("never", torch.tensor([0.0, ILLEGAL]), persistent=False)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Features [N, in_size] and `mask` [N] bool, True where the next step is imagined (None: everywhere).

        Returns:
            `logits` [N, A + 2], and `reset_logits` [N, 2], the reset head's own, also where it does not count.
        """
        primary, reset = torch.split(self.linear.forward(features), self.nvec, 1)
        imagines = features.new_ones(features.shape[0], 1, dtype=torch.bool) if mask is None else mask[:, None]
        if self.imagined is not None:
            primary = torch.where(imagines, self.imagined.forward(features), primary)
        return {"logits": torch.cat([primary, torch.where(imagines, reset, self.never)], 1), "reset_logits": reset}


class ImageTrunk(nn.Module):
    """Image [N, C, H, W] → [N, 256]: three groups of a 3×3 convolution and two residual pairs, then a linear layer.

    A residual pair is x + conv(ReLU(conv(ReLU(x)))). With `halve`, a convolution of stride 2 stands before them, and 3×3/2
    max-pooling after each group's first convolution (Espeholt et al. 2018).

    Args:
        shape: (C, H, W).
        widths: Channels of the groups.
        halve: Number of channels of the first convolution; 0: nothing is halved.
    """

    def __init__(self, shape: tuple[int, ...], widths: Sequence[int] = (64, 64, 32), halve: int = 0) -> None:
        super().__init__()
        channels, height, width = shape
        self.first = nn.Conv2d(channels, halve, 3, 2, 1) if halve else None
        channels = halve or channels
        self.groups = nn.ModuleList()
        for out in widths:
            self.groups.append(nn.ModuleList(Conv2d(n, out, 3, padding=1) for n in (channels, out, out, out, out)))
            channels = out
        for _ in range(1 + len(widths) if halve else 0):
            height, width = (height + 1) // 2, (width + 1) // 2
        self.out_size = 256
        self.linear = nn.Linear(channels * height * width, self.out_size)

    def forward(self, x: Tensor) -> Tensor:
        if self.first is not None:
            x = F.relu(self.first(x))
        for group in self.groups:
            convs: Any = group
            x = convs[0](x)
            if self.first is not None:
                x = F.max_pool2d(x, 3, 2, 1)
            for one, two in (convs[1:3], convs[3:5]):
                x = x + two(F.relu(one(F.relu(x))))
        return F.relu(self.linear(F.relu(flat(x))))


class SkipMLP(nn.Module):
    """Fully connected layers, each with ReLU, that all see the input beside what comes from below: [..., in_size] → [...,
    sizes[-1]]."""

    def __init__(self, in_size: int, sizes: Sequence[int] = (200, 200, 200, 100)) -> None:
        super().__init__()
        below = [0, *sizes[:-1]]
        self.layers = nn.ModuleList(nn.Linear(in_size + b, size) for b, size in zip(below, sizes, strict=True))
        self.out_size = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        y = x[..., :0]
        for layer in self.layers:
            y = F.relu(layer(torch.cat([y, x], -1)))
        return y


class Planner(Model):
    """Encoders of what is seen, side by side with the last action and rewards; on them linear heads for policy and baselines.

    Without `see_tree_rep` and with a Discrete action it plays the raw MDP with the same encoders: one policy head, one baseline,
    no reset; `obs` is then `real_states` itself or the Dict, and `last_act` (Discrete) and `last_rew` are seen if they are there.

    Args:
        obs: See the module's text.
        act: MultiDiscrete([A, 2]): primary action and reset; Discrete(A): the raw MDP.
        see_tree_rep, see_h, see_x, see_real_state: What is seen.
        tree: 'mlp': four layers with skips; 'lstm': `LSTMAttention` between two linear layers. The author's ablation finds the
            MLP as good; an update of 100 steps of 16 environments takes 0.07 s with it and 2.5 s with the memory (one core, no
            images), which also adds 126 KB to each stored row.
        separate: A policy head of its own for imagined steps.
        widths, halved_widths: Channels of the image encoders' groups: of hidden states and small images, and of images of `LARGE`
            pixels.
        value_bound: Baselines are clamped to ±value_bound, as goes with clipped rewards: clip / (1 − γ).
        lstm: Arguments of `LSTMAttention`.

    Raises:
        TypeError: another action space. ValueError: a key of the observation is missing or has a wrong shape, or nothing is seen.
    """

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], *, see_tree_rep: bool = True, see_h: bool = True, see_x: bool = False,
        see_real_state: bool = False, tree: Literal["mlp", "lstm"] = "mlp", separate: bool = True,
        widths: Sequence[int] = (64, 64, 32), halved_widths: Sequence[int] = (16, 32, 32), value_bound: float | None = None,
        lstm: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(obs, act)
        self.augmented = isinstance(act, gym.spaces.MultiDiscrete)
        pair = self.augmented and act.shape == (2,) and act.nvec[1] == 2  # type: ignore[attr-defined]
        if not (isinstance(act, gym.spaces.Discrete) or pair):
            raise TypeError(f"Planner: act is {act}; expected MultiDiscrete([A, 2]), primary action and reset, or Discrete(A) "
                            "for the raw MDP")
        if tree not in ("mlp", "lstm"):
            raise ValueError(f"Planner: tree is {tree!r}; expected 'mlp' or 'lstm'")
        self.n = int(act.nvec[0] if self.augmented else act.n)  # type: ignore[attr-defined]
        self.bare = not isinstance(obs, gym.spaces.Dict)
        self.value_bound, self.start = value_bound, int(getattr(act, "start", 0)) if not self.augmented else 0
        seen = {"tree_reps": see_tree_rep, "hs": see_h, "xs": see_x, "real_states": see_real_state, "step_status": self.augmented}
        shapes = {name.removeprefix("obs.") if not self.bare else "real_states": s.shape for name, s in self.obs_specs.items()}
        missing = [name for name, is_seen in seen.items() if is_seen and name not in shapes]
        if missing or not any(list(seen.values())[:4]):
            raise ValueError(f"Planner: the observation has {', '.join(shapes)}; expected "
                             f"{', '.join(missing) or 'something to see'}; add it to the "
                             "space, or set see_tree_rep, see_h, see_x and see_real_state to what is there")
        self.tree = SkipMLP(shapes["tree_reps"][0]) if see_tree_rep and tree == "mlp" else None
        self.memory: LSTMAttention | None = None
        sizes = [0 if self.tree is None else self.tree.out_size]
        if see_tree_rep and tree == "lstm":
            self.memory = LSTMAttention(**(lstm or {}))
            self.tree_in, self.tree_out = (nn.Linear(n, self.memory.size) for n in (shapes["tree_reps"][0], self.memory.size))
            sizes = [self.memory.size]
        self.encoders = nn.ModuleDict({name: _encoder(name, shapes[name], widths, halved_widths)
                                       for name in ("hs", "xs", "real_states") if seen[name]})
        self.scales = {name: _scale(self.obs_specs["obs" if self.bare else f"obs.{name}"]) for name in self.encoders}
        sizes += [int(encoder.out_size) for encoder in self.encoders.values()]  # type: ignore[arg-type]
        for name, allowed in {"last_act": [(2,)] if self.augmented else [()],
                              "last_rew": [(2,), (3,)] if self.augmented else [(1,), ()]}.items():
            if name in shapes and shapes[name] not in allowed:
                raise ValueError(f"Planner: observation {name!r} has shape {shapes[name]}; expected "
                                 f"{' or '.join(map(str, allowed))}")
        self.sees_act, self.sees_rew = "last_act" in shapes, "last_rew" in shapes
        self.n_rewards = shapes.get("last_rew", (2,))[0] if self.augmented else 1
        sizes += [self.sees_act * (self.n + 2 * self.augmented), self.sees_rew * self.n_rewards]
        self.head = PlanningHead(sum(sizes), self.n, separate) if self.augmented else CategoricalHead(sum(sizes), self.n, None)
        self.baseline = OrthogonalLinear(sum(sizes), self.n_rewards, 0.0)  # from zero

    def state_specs(self) -> dict[str, Spec]:
        return {} if self.memory is None else self.memory.state_specs()

    # ------------------------------------------------------------------------------------------------------------------ pieces

    def _features(self, obs: Any, state: Any, first: Tensor | None) -> tuple[Tensor, Tensor | None, Any]:
        """Rows of features [N, F], which of them imagine next [N] bool, and the memory after. obs [N, ...] or [T, B, ...]."""
        if self.bare:
            obs = {"real_states": obs}
        parts = []
        if self.tree is not None:
            parts.append(self.tree(obs["tree_reps"].float()).flatten(0, -2))
        elif self.memory is not None:
            x, state = self.memory(F.relu(self.tree_in(obs["tree_reps"].float())), state, first)
            parts.append(F.relu(self.tree_out(x)).flatten(0, -2))
        for name in self.encoders:
            shape = self.obs_specs["obs" if self.bare else f"obs.{name}"].shape
            x = obs[name].reshape(-1, *shape)
            if name == "real_states" and self.augmented:  # the same in all rows of a stage, which follow one another
                new = F.pad((x[1:] != x[:-1]).flatten(1).any(1), (1, 0), value=True)
                parts.append(self._encoded(name, x[new])[new.cumsum(0) - 1])
            else:
                parts.append(self._encoded(name, x))
        if self.sees_act:
            last = obs["last_act"].long()
            choices = [(last[..., 0], self.n), (last[..., 1], 2)] if self.augmented else [(last - self.start, self.n)]
            parts += [F.one_hot(index.reshape(-1), n).float() for index, n in choices]
        if self.sees_rew:
            parts.append(obs["last_rew"].float().reshape(-1, self.n_rewards).clamp(-1.0, 1.0))
        imagined = (obs["step_status"] <= 1).reshape(-1) if self.augmented else None
        return torch.cat(parts, 1), imagined, {} if state is None else state

    def _encoded(self, name: str, x: Tensor) -> Tensor:
        features: Tensor = self.encoders[name](channels_last(x.float() if self.scales[name] == 1.0 else x * self.scales[name]))
        return features

    def _value(self, features: Tensor) -> Tensor:
        value = self.baseline.forward(features)
        if self.value_bound is not None:
            value = value.clamp(-self.value_bound, self.value_bound)
        return value if self.augmented else value.squeeze(-1)

    # ------------------------------------------------------------------------------------------------------ what algorithms call

    def policy(self, obs: Any, state: Any = None) -> tuple[dict[str, Tensor], Any]:
        """`logits` [N, A + 2] of the joint action, [N, A] in the raw MDP; and the memory after this step."""
        features, imagined, after = self._features(obs, state, None)
        return {"logits": self.head(features, imagined)["logits"]}, after

    def value(self, obs: Any, state: Any = None) -> Tensor:
        """Baselines of the real and the planning reward, and of curiosity where `last_rew` has it, [N, 2 or 3]; [N] in the raw
        MDP."""
        return self._value(self._features(obs, state, None)[0])

    def evaluate(self, obs: Any, state: Any = None, first: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor]:
        """Also `reg` [N], which keeps features and logits small: ½ (1e-6 ‖features‖² + 1e-3 ‖logits‖² + 1e-3 ‖reset logits‖²).

        The logits are those of the head that acts; the reset head's count in real steps, too.
        """
        features, imagined, _ = self._features(obs, state, first)
        out: dict[str, Tensor] = self.head(features, imagined)
        primary = out["logits"][:, : self.n].square().sum(1)
        reset = out.pop("reset_logits").square().sum(1) if self.augmented else 0.0
        out["reg"] = 0.5 * (1e-6 * features.square().sum(1) + 1e-3 * primary + 1e-3 * reset)
        return out, self._value(features)


def _encoder(name: str, shape: tuple[int, ...], widths: Sequence[int], halved_widths: Sequence[int]) -> nn.Module:
    if len(shape) == 1:
        return MLP([shape[0], 256, 256], activate_last=True)
    if len(shape) != 3:
        raise ValueError(f"Planner: observation {name!r} has shape {shape}; expected (C, H, W), or (N,) for plain numbers")
    large = name != "hs" and min(shape[1:]) >= LARGE
    return ImageTrunk(shape, halved_widths if large else widths, 16 if large else 0)


def _scale(spec: Spec) -> float:
    return 1.0 / max(int(np.max(spec.high, initial=1)), 1) if spec.dtype.kind in "ui" else 1.0
