"""Tianshou 2 in the learning benchmark, with the settings of its own examples, but for what a function here says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.learning_peers import Point, first_start
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.datasets import to_arrays
from parl_like.lab.recorded import directory_of

COLUMNS = ("obs", "act", "rew", "terminated", "truncated", "obs_next")
"""The columns of a recorded row, which Tianshou names as we do."""


@dataclass(frozen=True, kw_only=True)
class Tianshou:
    """An algorithm of Tianshou 2.

    Attributes:
        build: Its algorithm for an environment. n_envs: Its environments.
        collect: Steps, or for `whole` episodes, between two updates. batch: Rows of an update (on-policy: of a minibatch).
        warmup: Steps before the first update, with even chances for all actions if `random`. size: Rows of the buffer.
        repeat: Passes of an on-policy update; 0: off-policy. updates: Off-policy, so many at a time.
        epsilon: Share of random actions after so many steps.
    """

    build: Callable[[gym.Env[Any, Any]], Any]
    n_envs: int = 8
    collect: int = 8
    batch: int | None = 64
    warmup: int = 512
    random: bool = False
    size: int = 20_000
    repeat: int = 0
    updates: int = 1
    whole: bool = False
    epsilon: Callable[[int], float] | None = None
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
                if self.epsilon is not None:
                    algorithm.policy.set_eps_training(self.epsilon(done))
                first = not done and not self.repeat
                wanted = {"n_episode": self.collect} if self.whole else {"n_step": self.warmup if first else self.collect}
                done += collector.collect(**wanted, random=first and self.random).n_collected_steps
                if self.repeat:
                    algorithm.update(buffer, self.batch, self.repeat)
                    collector.reset_buffer(keep_statistics=True)
                else:
                    for _ in range(self.updates):
                        algorithm.update(buffer, self.batch)
            seconds += process_time() - begin
            while len(curve) < len(stops) and done >= stops[len(curve)]:
                others.seed(first_start(seed))
                tests.reset()
                curve.append((done, seconds, float(tests.collect(n_episode=episodes).returns.mean())))
        return curve


def c51(env: gym.Env[Any, Any]) -> Any:
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


def iqn(env: gym.Env[Any, Any]) -> Any:
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


def reinforce(env: gym.Env[Any, Any]) -> Any:
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


def fqf(env: gym.Env[Any, Any]) -> Any:
    """With the settings of its own CartPole example, but for the discount of this benchmark's task."""
    from tianshou.algorithm import FQF
    from tianshou.algorithm.modelfree.fqf import FQFPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory, RMSpropOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import FractionProposalNetwork, FullQuantileFunction

    space: Any = env.action_space
    features = Net(state_shape=env.observation_space.shape, action_shape=64, hidden_sizes=[64, 64])
    net = FullQuantileFunction(preprocess_net=features, action_shape=space.n, hidden_sizes=[64, 64, 64])
    fractions = FractionProposalNetwork(32, net.input_dim)
    policy = FQFPolicy(model=net, fraction_model=fractions, action_space=space, observation_space=env.observation_space,
                       eps_training=0.1)
    return FQF(policy=policy, optim=AdamOptimizerFactory(lr=3e-3), fraction_optim=RMSpropOptimizerFactory(lr=2.5e-9), gamma=0.99,
               ent_coef=10.0, n_step_return_horizon=3, target_update_freq=320)


def discrete_sac(env: gym.Env[Any, Any]) -> Any:
    """With the settings of its own CartPole example, but for the discount of this benchmark's task."""
    from tianshou.algorithm import DiscreteSAC
    from tianshou.algorithm.modelfree.discrete_sac import DiscreteSACPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

    space: Any = env.action_space
    actor, *critics = (Net(state_shape=env.observation_space.shape, hidden_sizes=[64, 64]) for _ in range(3))
    policy = DiscreteSACPolicy(actor=DiscreteActor(preprocess_net=actor, action_shape=space.n, softmax_output=False),
                               action_space=space, observation_space=env.observation_space)
    first, second = (DiscreteCritic(preprocess_net=critic, last_size=space.n) for critic in critics)
    return DiscreteSAC(policy=policy, policy_optim=AdamOptimizerFactory(lr=1e-4), critic=first,
                       critic_optim=AdamOptimizerFactory(lr=1e-3), critic2=second, critic2_optim=AdamOptimizerFactory(lr=1e-3),
                       gamma=0.99, alpha=0.05, n_step_return_horizon=3)


def bdq(env: gym.Env[Any, Any]) -> Any:
    """With the settings of its own Pendulum example, but for the number of torques and of updates (one each step)."""
    from tianshou.algorithm import BDQN
    from tianshou.algorithm.modelfree.bdqn import BDQNPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import BranchingNet

    space: Any = env.action_space
    net = BranchingNet(state_shape=env.observation_space.shape, num_branches=len(space.nvec), action_per_branch=space.nvec[0],
                       common_hidden_sizes=[64, 64], value_hidden_sizes=[64], action_hidden_sizes=[64])
    policy = BDQNPolicy(model=net, action_space=space, observation_space=env.observation_space)
    return BDQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=0.9, target_update_freq=200)


def redq(env: gym.Env[Any, Any]) -> Any:
    """With the settings of its own Pendulum example."""
    from tianshou.algorithm import REDQ
    from tianshou.algorithm.modelfree.redq import REDQPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import EnsembleLinear, Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from torch import nn

    space: Any = env.action_space
    shape = env.observation_space.shape

    def linear(inputs: int, outputs: int) -> nn.Module:
        return EnsembleLinear(4, inputs, outputs)

    actor = ContinuousActorProbabilistic(preprocess_net=Net(state_shape=shape, hidden_sizes=[64, 64]), action_shape=space.shape,
                                         unbounded=True, conditioned_sigma=True)
    values = Net(state_shape=shape, action_shape=space.shape, hidden_sizes=[64, 64], concat=True, linear_layer=linear)
    critic = ContinuousCritic(preprocess_net=values, linear_layer=linear, flatten_input=False)
    return REDQ(policy=REDQPolicy(actor=actor, action_space=space, observation_space=env.observation_space),
                policy_optim=AdamOptimizerFactory(lr=1e-4), critic=critic, critic_optim=AdamOptimizerFactory(lr=1e-3),
                ensemble_size=4, actor_delay=3)


def npg(env: gym.Env[Any, Any]) -> Any:
    """With the settings of its own Pendulum example."""
    from tianshou.algorithm import NPG
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from torch import nn
    from torch.distributions import Independent, Normal

    space: Any = env.action_space
    of_actor, of_critic = (Net(state_shape=env.observation_space.shape, hidden_sizes=[64, 64], activation=nn.Tanh)
                           for _ in range(2))
    actor = ContinuousActorProbabilistic(preprocess_net=of_actor, action_shape=space.shape, unbounded=True)
    critic = ContinuousCritic(preprocess_net=of_critic)
    for net in (actor, critic):
        orthogonal(net)
    policy = ProbabilisticActorPolicy(actor=actor, dist_fn=lambda both: Independent(Normal(*both), 1), deterministic_eval=True,
                                      action_space=space, observation_space=env.observation_space)
    return NPG(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=1e-3), gamma=0.95, return_scaling=True)


def buffer_of(rows: dict[str, Any]) -> Any:
    """Tianshou's buffer of these `COLUMNS`."""
    from tianshou.data import Batch
    from tianshou.data import ReplayBuffer as Buffer

    buffer = Buffer(len(rows["rew"]))
    for i in range(len(rows["rew"])):
        buffer.add(Batch(**{name: rows[name][i] for name in COLUMNS}, info={}))
    return buffer


def gail(env: gym.Env[Any, Any]) -> Any:
    """With the settings of its own Pendulum example, but for the expert's rows: those of our `pendulum-expert`."""
    from tianshou.algorithm import GAIL
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from torch import nn
    from torch.distributions import Independent, Normal

    space: Any = env.action_space
    shape = env.observation_space.shape
    of_actor, of_critic = (Net(state_shape=shape, hidden_sizes=[64, 64]) for _ in range(2))
    actor = ContinuousActorProbabilistic(preprocess_net=of_actor, action_shape=space.shape, max_action=float(space.high[0]))
    critic = ContinuousCritic(preprocess_net=of_critic)
    judge = ContinuousCritic(preprocess_net=Net(state_shape=shape, action_shape=space.shape, hidden_sizes=[64, 64],
                                                activation=nn.Tanh, concat=True))
    for net, gain in ((actor, 1.0), (critic, 1.0), (judge, 2.0 ** 0.5)):
        orthogonal(net, gain)
    policy = ProbabilisticActorPolicy(actor=actor, dist_fn=lambda both: Independent(Normal(*both), 1), action_space=space,
                                      deterministic_eval=True)
    rows = to_arrays(ReplayBuffer.load(directory_of("pendulum-expert")))
    rows["act"] = policy.map_action_inverse(rows["act"])
    return GAIL(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=1e-3), expert_buffer=buffer_of(rows), disc_net=judge,
                disc_optim=AdamOptimizerFactory(lr=5e-4), disc_update_num=2, gamma=0.95, max_grad_norm=0.5, vf_coef=0.25,
                ent_coef=0.0, return_scaling=True, value_clip=True)


def orthogonal(net: Any, gain: float = 1.0) -> None:
    """Draws the weights anew, as its examples do."""
    from torch import nn

    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)


def ppo(env: gym.Env[Any, Any]) -> Any:
    """With the settings of its own CartPole example of curiosity, which this leaves out."""
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import ActorCritic, Net
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
    from torch.distributions import Categorical

    space: Any = env.action_space
    features = Net(state_shape=env.observation_space.shape, hidden_sizes=[64, 64])
    actor = DiscreteActor(preprocess_net=features, action_shape=space.n)
    critic = DiscreteCritic(preprocess_net=features)
    orthogonal(ActorCritic(actor, critic))
    policy = ProbabilisticActorPolicy(actor=actor, dist_fn=Categorical, action_scaling=False, action_space=space,
                                      deterministic_eval=True)
    return PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=3e-4), gamma=0.99, max_grad_norm=0.5, vf_coef=0.5,
               ent_coef=0.0, gae_lambda=0.95, advantage_normalization=False)


def icm(env: gym.Env[Any, Any]) -> Any:
    """`ppo` with curiosity, with the settings of the same example."""
    from tianshou.algorithm.modelbased.icm import ICMOnPolicyWrapper
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import MLP
    from tianshou.utils.net.discrete import IntrinsicCuriosityModule

    space: Any = env.action_space
    features = MLP(input_dim=int(np.prod(env.observation_space.shape or ())), output_dim=64, hidden_sizes=[64])
    model = IntrinsicCuriosityModule(feature_net=features, feature_dim=64, action_dim=space.n, hidden_sizes=[64])
    return ICMOnPolicyWrapper(wrapped_algorithm=ppo(env), model=model, optim=AdamOptimizerFactory(lr=3e-4), lr_scale=1.0,
                              reward_scale=0.01, forward_loss_weight=0.2)
