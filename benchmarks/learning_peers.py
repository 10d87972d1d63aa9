"""stable-baselines3 and sb3-contrib in the learning benchmark, each trained as its own users would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from time import process_time
from typing import Any

import gymnasium as gym
import numpy as np

Point = tuple[int, float, float]
"""Environment steps, seconds of training until then, mean return of the evaluation."""


def first_start(seed: int) -> int:
    """Seed of the first episode of an evaluation, the next ones follow: far from those of training, and from other runs'."""
    return 1_000_000 + 1000 * seed


@dataclass(frozen=True)
class LinearDecay:
    """From `start` to 0: a schedule as stable-baselines3 has them, of the share of the run that is left."""

    start: float

    def __call__(self, left: float) -> float:
        return self.start * left


@dataclass(frozen=True, kw_only=True)
class Sb3:
    """An algorithm of stable-baselines3, or of sb3-contrib.

    Attributes:
        name: Its class. policy: Name of its network. n_envs: Its environments. settings: Its arguments.
        normalize: Whether observations and rewards are divided by their running deviation; evaluations have the rewards.
        images: Whether its network is the one that MinAtar was published with.
    """

    name: str
    library: str = "stable-baselines3"
    policy: str = "MlpPolicy"
    n_envs: int = 1
    normalize: bool = False
    images: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def module(self) -> str:
        return {"stable-baselines3": "stable_baselines3", "sb3-contrib": "sb3_contrib"}[self.library]

    def train(self, env_id: str, steps: int, seed: int, stops: list[int], episodes: int) -> list[Point]:
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.evaluation import evaluate_policy
        from stable_baselines3.common.noise import NormalActionNoise
        from stable_baselines3.common.vec_env import VecNormalize

        options = dict(self.settings)
        curve: list[Point] = []
        env = make_vec_env(env_id, self.n_envs, seed=seed)
        if self.normalize:
            env = VecNormalize(env, gamma=options.get("gamma", 0.99))
        noise = options.pop("noise", None)
        if noise is not None:
            size = env.action_space.shape
            options["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, noise))
        if self.images:
            options["policy_kwargs"] = {"features_extractor_class": minatar_features(), "net_arch": []}
        model = getattr(import_module(self.module), self.name)(self.policy, env, seed=seed, device="cpu", **options)

        class Watch(BaseCallback):  # type: ignore[misc]
            """Evaluates beside the run, which goes on as if nothing had been."""

            paused, begin = 0.0, 0.0

            def _on_training_start(self) -> None:
                self.begin = process_time()

            def _on_step(self) -> bool:
                while len(curve) < len(stops) - 1 and self.num_timesteps >= stops[len(curve)]:  # the last comes after the updates
                    self.look()
                return True

            def look(self) -> None:
                now = process_time()
                envs = make_vec_env(env_id, episodes, seed=first_start(seed))
                if isinstance(env, VecNormalize):
                    envs = VecNormalize(envs, training=False, norm_reward=False)
                    envs.obs_rms = env.obs_rms
                score, _ = evaluate_policy(model, envs, episodes)
                curve.append((self.num_timesteps, now - self.begin - self.paused, float(score)))
                self.paused += process_time() - now

        watch = Watch()
        model.learn(steps, callback=watch)
        watch.look()
        return curve


def minatar_features() -> type:
    """16 filters of 3 × 3, then 128 units (Young and Tian 2019), on images whose channels come last."""
    import torch
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Features(BaseFeaturesExtractor):  # type: ignore[misc]
        def __init__(self, space: gym.spaces.Box) -> None:
            super().__init__(space, 128)
            height, width, channels = space.shape
            self.conv = torch.nn.Conv2d(channels, 16, 3)
            self.linear = torch.nn.Linear(16 * (height - 2) * (width - 2), 128)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen = torch.relu(self.conv(images.permute(0, 3, 1, 2)))
            return torch.relu(self.linear(seen.flatten(1)))

    return Features
