"""The peers of the learning benchmark: stable-baselines3, sb3-contrib and Tianshou, each trained as its own users would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def linear(start: float) -> Callable[[float], float]:
    """Of the share of the run that is left, as stable-baselines3's schedules are."""
    return lambda left: start * left


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


@dataclass(frozen=True, kw_only=True)
class Tianshou:
    """An algorithm of Tianshou 2.

    Attributes:
        build: Its algorithm for an environment. n_envs: Its environments.
        collect: Steps, or for `whole` episodes, between two lessons. batch: Rows of a lesson (on-policy: of a minibatch).
        warmup: Steps before the first lesson. size: Rows of the buffer. repeat: Passes of an on-policy lesson; 0: off-policy.
    """

    build: Callable[[gym.Env[Any, Any]], Any]
    n_envs: int = 8
    collect: int = 8
    batch: int | None = 64
    warmup: int = 512
    size: int = 20_000
    repeat: int = 0
    whole: bool = False
    library: str = "tianshou"
    module: str = "tianshou"

    def train(self, env_id: str, steps: int, seed: int, stops: list[int], episodes: int) -> list[Point]:
        import torch
        from tianshou.algorithm.algorithm_base import policy_within_training_step
        from tianshou.data import Collector, VectorReplayBuffer
        from tianshou.env import DummyVectorEnv

        np.random.seed(seed)
        torch.manual_seed(seed)
        envs, others = (DummyVectorEnv([lambda: gym.make(env_id)] * n) for n in (self.n_envs, episodes))
        envs.seed(seed)
        algorithm = self.build(gym.make(env_id))
        buffer = VectorReplayBuffer(self.size, self.n_envs)
        collector = Collector(algorithm, envs, buffer, exploration_noise=True)
        tests = Collector(algorithm, others)
        collector.reset()
        curve: list[Point] = []
        done, seconds = 0, 0.0
        while len(curve) < len(stops):
            begin = process_time()
            with policy_within_training_step(algorithm.policy):
                wanted = {"n_episode": self.collect} if self.whole else {
                    "n_step": self.warmup if not done and not self.repeat else self.collect}
                done += collector.collect(**wanted).n_collected_steps
                if self.repeat:
                    algorithm.update(buffer, self.batch, self.repeat)
                    collector.reset_buffer(keep_statistics=True)
                else:
                    algorithm.update(buffer, self.batch)
            seconds += process_time() - begin
            while len(curve) < len(stops) and done >= stops[len(curve)]:
                others.seed(first_start(seed))
                tests.reset()
                curve.append((done, seconds, float(tests.collect(n_episode=episodes).returns.mean())))
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


def tianshou_c51(env: gym.Env[Any, Any]) -> Any:
    """With the settings of its own CartPole example, but for the support and the discount of this benchmark's task."""
    from tianshou.algorithm import C51
    from tianshou.algorithm.modelfree.c51 import C51Policy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net

    space: Any = env.action_space
    net = Net(state_shape=env.observation_space.shape, action_shape=space.n, hidden_sizes=[128] * 4, softmax=True, num_atoms=51)
    policy = C51Policy(model=net, action_space=space, observation_space=env.observation_space, v_min=0.0, v_max=100.0,
                       eps_training=0.1)
    return C51(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=0.99, n_step_return_horizon=3, target_update_freq=320)


def tianshou_iqn(env: gym.Env[Any, Any]) -> Any:
    """With the settings of its own CartPole example, but for the discount of this benchmark's task."""
    from tianshou.algorithm import IQN
    from tianshou.algorithm.modelfree.iqn import IQNPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import ImplicitQuantileNetwork

    space: Any = env.action_space
    features = Net(state_shape=env.observation_space.shape, action_shape=64, hidden_sizes=[64, 64, 64])
    net = ImplicitQuantileNetwork(preprocess_net=features, action_shape=space.n)
    policy = IQNPolicy(model=net, action_space=space, observation_space=env.observation_space, eps_training=0.1)
    return IQN(policy=policy, optim=AdamOptimizerFactory(lr=3e-3), gamma=0.99, n_step_return_horizon=3, target_update_freq=320)


def tianshou_reinforce(env: gym.Env[Any, Any]) -> Any:
    """With the settings of its own CartPole example."""
    from tianshou.algorithm import Reinforce
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor

    space: Any = env.action_space
    features = Net(state_shape=env.observation_space.shape, hidden_sizes=[64, 64])
    actor = DiscreteActor(preprocess_net=features, action_shape=space.n, softmax_output=False)
    policy = DiscreteActorPolicy(actor=actor, action_space=space, observation_space=env.observation_space,
                                 deterministic_eval=True)
    return Reinforce(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=0.99, return_standardization=True)
