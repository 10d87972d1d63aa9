"""Networks of tasks that reward a policy for what is new to them: random network distillation, a model of one's own actions, and
none, for counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from parl_like.learning.layers import Brief
from parl_like.learning.model import Model
from parl_like.models.conv import ConvTrunk
from parl_like.models.dynamics import Dynamics, Trunk
from parl_like.models.flat_obs import FlatObs
from parl_like.models.mlp import MLP
from parl_like.values.action_codec import ActionCodec
from parl_like.values.batch import Batch
from parl_like.values.spec import Spec, specs_of

ORIGINS = {"first": Spec("first", (), np.dtype(bool)),
           **{name: Spec(name, (), np.dtype(np.int64)) for name in ("lane", "episode", "step")}}


def read_fields(model: Model, fields: Sequence[str]) -> dict[str, Spec]:
    """Return the specs of fields of a row, by flat name: of 'obs', 'act', 'obs_next' and `ORIGINS`."""
    known = {"obs": model.obs_specs, "obs_next": specs_of(model.obs_space, "obs_next"),
             "act": {spec.name: spec for spec in ActionCodec(model.act_space).specs},
             **{name: {name: spec} for name, spec in ORIGINS.items()}}
    return {name: spec for field in fields for name, spec in known[field].items()}


class Novel(Model):
    """A model of any spaces without layers, for counts of its observations.

    Attributes:
        reads: The fields of a row that a reward is given for, beside `obs` and `obs_next`; the algorithm sets it.
        flat: Observations as rows of numbers.
    """

    reads: tuple[str, ...] = ()

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any]) -> None:
        super().__init__(obs, act)
        self.flat = FlatObs(obs)

    def inputs(self) -> dict[str, Spec]:
        return read_fields(self, ("obs", "obs_next", *self.reads))


class NumberTrunk(nn.Module, metaclass=Brief):
    """Numbers of an observation, as `FlatObs` has them → features [N, out_size]: by fully connected layers, or by convolutions of
    the one leaf with three axes, beside which the others join before the last layer.

    Args:
        obs: The observation space. hidden: Sizes of the layers before the last; of images there is one.
        out_size: Features.
    """

    def __init__(self, obs: gym.Space[Any], hidden: Sequence[int], out_size: int, *, flat: FlatObs) -> None:
        super().__init__()
        self.sizes = [part.size for part in flat.parts]
        shapes = [spec.shape for spec in specs_of(obs, "obs").values()]
        images = [i for i, shape in enumerate(shapes) if len(shape) == 3]
        self.image = images[0] if len(images) == 1 else None
        if self.image is None:
            self.net: nn.Module = MLP([flat.out_size, *hidden, out_size], orthogonal=True)
            return
        self.shape = shapes[self.image]
        rest = flat.out_size - self.sizes[self.image]
        spaces = {"image": self.shape, **({"rest": (rest,)} if rest else {})}
        boxes: dict[str, gym.Space[Any]] = {name: gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
                                            for name, shape in spaces.items()}
        size: int = [*hidden, out_size][0]
        self.net = ConvTrunk(gym.spaces.Dict(boxes), out_size=size, orthogonal=True)
        self.last = MLP([size, *hidden[1:], out_size], orthogonal=True)

    def forward(self, numbers: Tensor) -> Tensor:
        out: Tensor
        if self.image is None:
            out = self.net(numbers)
            return out
        parts = list(torch.split(numbers, self.sizes, 1))
        image = parts.pop(self.image).reshape(-1, *self.shape)
        out = self.last(self.net(Batch(image=image, rest=torch.cat(parts, 1)) if parts else Batch(image=image)))
        return out


class RNDNet(Novel):
    """A target network that stays as it was drawn, and a predictor of what it says, with one layer more; any observation.

    Args:
        obs, act: Spaces; `act` is any.
        hidden: Sizes of the hidden layers of both. features: How many numbers the target says.
    """

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (128,), features: int = 64) -> None:
        super().__init__(obs, act)
        self.target = NumberTrunk(obs, hidden, features, flat=self.flat)
        self.predictor = NumberTrunk(obs, [*hidden, hidden[-1] if hidden else features], features, flat=self.flat)
        self.target.requires_grad_(False)

    def error(self, numbers: Tensor) -> Tensor:
        """Normalised numbers [N, size] → the mean squared error of the predictor, [N]."""
        out: Tensor = (self.predictor(numbers) - self.target(numbers)).square().mean(1)
        return out


class ICMNet(Dynamics):
    """Features φ(s), and on them what they become by an action, and which action was between two. Discrete or Box actions; any
    observation, an image through convolutions.

    Args:
        hidden: Sizes of the layers of φ, the last one is the number of features; the heads have one hidden layer of that size.
            Of an image all but the last one are left out.
    """

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64, 64)) -> None:
        image = sum(len(spec.shape) == 3 for spec in specs_of(obs, "obs").values()) == 1
        trunk: Any = ConvTrunk(obs, out_size=hidden[-1]) if image else Trunk(obs, hidden)
        if image:
            trunk.in_size = trunk.out_size
        super().__init__(obs, act, trunk, hidden[-1:])
        self.forward_head = MLP([trunk.out_size + self.n, hidden[-1], trunk.out_size])

    def inputs(self) -> dict[str, Spec]:
        return read_fields(self, ("obs", "act", "obs_next"))

    def forward_error(self, features: Tensor, act: Tensor, features_next: Tensor) -> Tensor:
        """½ ‖φ̂(s') − φ(s')‖² of each row, [N]."""
        return 0.5 * (self.next_obs(features, act) - features_next).square().sum(1)
