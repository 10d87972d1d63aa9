"""Which skill was followed, from where it led: the network of a discriminator of skills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from torch import Tensor

from parl_like.learning.model import Model
from parl_like.models.flat_obs import FlatObs
from parl_like.models.mlp import MLP
from parl_like.values.spec import Spec, specs_of


class SkillClassifier(Model):
    """Logits of the skills, by an observation.

    Args:
        obs: Dict of `obs`, any space, and `skill`, Discrete from 0 on. act: Any.
        hidden: Sizes of the hidden layers.

    Attributes:
        skills: How many there are.

    Raises:
        TypeError: obs is another space.
    """

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64, 64)) -> None:
        super().__init__(obs, act)
        parts = obs.spaces if isinstance(obs, gym.spaces.Dict) else {}
        skill = parts.get("skill")
        if set(parts) != {"obs", "skill"} or not isinstance(skill, gym.spaces.Discrete) or skill.start:
            raise TypeError(f"SkillClassifier: obs is {obs}; expected Dict(obs=…, skill=Discrete(n))")
        self.skills = int(skill.n)
        self.flat = FlatObs(parts["obs"])
        self.net = MLP([self.flat.out_size, *hidden, self.skills])

    def inputs(self) -> dict[str, Spec]:
        """Return what a reward is given for: an observation with its skill, and the next one."""
        return {**self.obs_specs, **specs_of(self.obs_space, "obs_next")}

    def logits(self, obs: Any) -> Tensor:
        """Return the logits [N, skills] of observations without their skill."""
        out: Tensor = self.net(self.flat(obs))
        return out
