"""Thinker: a robot that learns a world model and learns to plan with it (Chung et al. 2023, arXiv 2307.14993).

Two tasks. `plan` is an actor-critic that acts in the augmented MDP: it looks at a search tree, and chooses what to imagine next, when to
go back to the root, and what to do. `model` imagines, learns from what the environments really do, and serves the trees of all agents.
`planning: perfect` lets the environments themselves say where an action leads; `planning: none` is the same actor-critic without a tree.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from msgspec import Meta

from parl_like.agent_helper import OffPolicyHelper, OnPolicyHelper
from parl_like.algorithm import Linear, create_algorithm_func
from parl_like.algorithms.impala import IMPALA, thinker_streams
from parl_like.algorithms.world_model import WorldModel
from parl_like.computation_task import BatchRule, ComputationTask
from parl_like.data.prioritized import PrioritizedReplayBuffer
from parl_like.data.transforms import RewardClipping
from parl_like.envs.make import make_env
from parl_like.envs.thinker.augmented import AugmentedEnv, augmented_spaces
from parl_like.envs.thinker.layout import Layout
from parl_like.envs.thinker.snapshots import snapshots_of
from parl_like.envs.vector import EnvFailed, make_vector_env
from parl_like.lab.config import ConfigError, ExperimentConfig
from parl_like.models.planner import Planner
from parl_like.models.thinker_net import ThinkerNet
from parl_like.robot import Robot
from parl_like.robots.thinker_view import play  # noqa: F401  `parl-like play` finds it here
from parl_like.spec import Array
from parl_like.vector_agent import VectorAgent, VectorFace

Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Stride = Annotated[int, Meta(ge=1, le=2)]
Weight = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Places:
    """Owns nodes in the table of hidden states, as long as it lives."""


class ThinkerFace(VectorFace):
    """Gives its nodes back when it is closed: agent and environment refer to each other, so they themselves live until Python looks for such."""

    def __init__(self, env: AugmentedEnv, agent: ThinkerAgent) -> None:
        super().__init__(env, agent)
        self.places: Places | None = Places()

    def close(self) -> None:
        super().close()
        self.places = None
        snapshots = getattr(self._env, "perfect", None)
        if snapshots is not None:
            snapshots.close()


class ThinkerAgent(VectorAgent):
    """Plans in n environments at once: each step of the helper `plan` is an augmented one, whose model calls go through the helper `model`.

    Real steps are stored for the model, all augmented ones for the planner; only real ones are counted.

    Args:
        n_envs: Environments that are made where the robot's are single ones.
        perfect: Transitions of the tree come from the environments; the model says what they are worth.
        planning: Arguments of `AugmentedEnv`.
    """

    def __init__(self, n_envs: int = 16, *, perfect: bool = False, planning: Mapping[str, Any] | None = None) -> None:
        super().__init__(n_envs)
        self.perfect, self.planning = perfect, dict(planning or {})

    def join(self, make: Callable[[], Any]) -> None:
        env = make()
        made = env if isinstance(env, VectorEnv) else self._copies(env, make)
        self.n_envs = int(made.num_envs)
        algorithm: Any = self.robot.tasks["model"].algorithm
        if getattr(made, "copy", True) is False:
            raise ValueError(f"{self}: the environments overwrite their observations, which are remembered until a stage is over; make them with copy=True")
        perfect = partial(snapshots_of, made, make=make) if self.perfect else None
        augmented = AugmentedEnv(made, self._ask, perfect=perfect, **self.planning)
        # Hidden states of all agents lie in one table of the task; an agent whose environments are closed leaves its part to others.
        face = ThinkerFace(augmented, self)
        augmented.nodes = algorithm.claim_nodes(face.places, augmented.n_nodes)
        self.augmented = augmented
        self._algorithm: Any = weakref.proxy(algorithm)
        self.env = face

    def _ask(self, rows: dict[str, Array]) -> Mapping[str, Array]:
        return self.helpers["model"].ask(rows)

    def remember(self, obs: Any, act: Any, rew: Any, terminated: Any, truncated: Any, info: dict[str, Any]) -> None:
        plan = self.helpers["plan"]
        logits = plan.outputs["logits"][:, : self.augmented.n_actions]
        self.remember_real(obs, act, rew, terminated, truncated, info, logits)
        plan.store(obs, act, rew, self.env.obs_next, terminated, truncated, info, self.env.valid)

    def remember_real(
        self, obs: Any, act: Any, rew: Any, terminated: Any, truncated: Any, info: dict[str, Any], logits: Array,
    ) -> None:
        """Stores the real steps among the last ones for the world model; `logits` [n, A] are what the primary actions were drawn from."""
        env, model = self.env, self.helpers["model"]
        real = env.valid & ~info["imagined"]
        if real.any() and model.mode != "test":  # an evaluation leaves no trace, also not in the learning rate
            odds = np.exp(logits - logits.max(1, keepdims=True))
            extra = {"baseline": info["baseline"], "action_prob": odds / odds.sum(1, keepdims=True)}
            self._algorithm.real_steps = self.robot.env_steps
            model.store(obs["real_states"], act[:, 0] + int(model.model.act_space.start), rew, env.obs_next["real_states"], terminated, truncated,
                        info, real, extra)


class Config(ExperimentConfig, frozen=True, kw_only=True):
    """Steps are real steps; each of `n_agents` agents drives `n_envs` environments. In brackets the names of the original.

    Attributes:
        env: gymnasium id; env_options: for its constructor. eval_options: what differs where the robot is evaluated. eval_explore: it is
            evaluated with drawn actions, not the best ones.
        planning: "learned": with a world model. "perfect": with the environments themselves (they must clone their state). "none": the
            same actor-critic without a tree.
        stage: K, steps from one real action to the next [rec_t]. depth: imaginary steps after which a reset is forced, 0: none [max_depth].
        layout: Of the tree's features, "G1" or "G2". carry: keep the chosen subtree [tree_carry]. reward_clip: 0: none.
        see_h, see_x, see_real_state: What the planner sees beside the tree. tree: "mlp" or "lstm" [tree_rep_rnn]. widths: channels of the
            planner's image encoders.
        unroll: Augmented steps of each environment between two updates of the planner [actor_unroll_len].
        lr, lr_decay: Of the planner [actor_learning_rate]. im_cost: weight of the planning reward, falling to 0 by the end of the run.
        entropy, im_entropy: Of real and of imaginary actions. reg: of large features and logits. return_norm: see `IMPALA`.
        model_*: Of the world model: channels [128 // model_downscale_c] (VP's, if others), blocks [model_size_nn], strides (published: 2, 2,
            2, 2), decoder depth, learning rate, sequences per update, steps of an unroll [model_unroll_len] and of a return
            [model_return_n], rows kept [model_buffer_n], rows before learning [model_warm_up_n], weights of what rewards, images and
            features of images cost [model_rs_loss_cost, model_img_loss_cost, model_fea_loss_cost], learned steps per real step
            [min/max_replay_ratio].
        latent: Imagine without decoding images. frame_stack: frames in an observation, of which the model predicts the newest. model_norm:
            batch normalisation in the recurrent blocks, too [not model_disable_bn]. model_sigmoid: for planes of 0 and 1, with model_image
            above 0; model_residual: only what changes is learned; model_markov: each imagined image is a new start; see `ThinkerNet`.
            half: plan and learn the model in 16 bits [float16].
    """

    env: str = "Sokoban-v0"
    env_options: dict[str, Any] = {}
    eval_options: dict[str, Any] = {}
    eval_explore: bool = True
    n_envs: Positive = 16
    planning: Literal["learned", "perfect", "none"] = "learned"
    stage: Positive = 20
    depth: Count = 5
    gamma: Annotated[float, Meta(gt=0, le=1)] = 0.97
    layout: Literal["G1", "G2"] = "G1"
    carry: bool = True
    reward_clip: Weight = 0.0
    see_h: bool = True
    see_x: bool = False
    see_real_state: bool = False
    tree: Literal["mlp", "lstm"] = "mlp"
    widths: tuple[Positive, ...] = (64, 64, 32)
    unroll: Positive = 200
    lr: Annotated[float, Meta(gt=0)] = 6e-4
    lr_decay: Share = 1.0
    max_grad_norm: Annotated[float, Meta(gt=0)] = 1200.0
    im_cost: Weight = 1.0
    entropy: Weight = 1e-3
    im_entropy: Weight = 1e-4
    value_weight: Weight = 0.5
    reg: Weight = 1e-3
    return_norm: Literal["targets", "advantages", "batch", "none"] = "none"
    model_channels: Positive = 64
    model_vp_channels: Count = 0
    model_blocks: Positive = 1
    model_strides: tuple[Stride, Stride, Stride, Stride] = (2, 2, 2, 2)
    model_depth: Annotated[int, Meta(ge=0, le=4)] = 0
    model_lr: Annotated[float, Meta(gt=0)] = 1e-4
    model_batch: Positive = 128
    model_unroll: Positive = 5
    model_return_n: Positive = 5
    model_buffer: Positive = 200_000
    model_warmup: Positive = 10_000
    model_done: bool = True
    model_reward: Weight = 1.0
    model_image: Weight = 0.0
    model_feature: Weight = 10.0
    replay_ratio: Annotated[float, Meta(gt=0)] = 5.0
    alpha: Annotated[float, Meta(gt=0)] = 0.6
    beta: Share = 0.4
    latent: bool = False
    frame_stack: Positive = 1
    model_norm: bool = False
    model_sigmoid: bool = False
    model_residual: bool = False
    model_markov: bool = False
    half: bool = False

    def __post_init__(self) -> None:
        if self.planning == "none":
            if not self.see_real_state:
                raise ValueError("planning 'none' leaves the actor nothing to see; set see_real_state=true")
            if self.see_x:
                raise ValueError("planning 'none' imagines nothing; set see_x=false")
            return
        if self.latent and self.see_x:
            raise ValueError("see_x shows imagined observations, and latent planning makes none; set one of them to false")
        if self.planning == "perfect" and (self.latent or self.model_depth):
            raise ValueError("planning 'perfect' asks the environments, so no image is decoded; leave latent and model_depth out")
        if self.model_depth and self.see_x:
            raise ValueError(f"model_depth {self.model_depth} imagines features, no observations; set see_x=false or model_depth=0")
        starts = self.model_residual or self.model_markov
        if self.planning == "learned" and ((self.model_depth and (starts or self.model_sigmoid)) or (self.latent and starts)):
            raise ValueError("model_sigmoid, model_residual and model_markov are about decoded images; set model_depth=0, and with the latter two "
                             "latent=false")
        if self.model_depth == 4 and self.latent:
            raise ValueError("model_depth 4 decodes nothing, so there is nothing for latent planning to leave out; set latent=false")
        if self.model_channels % 2 or self.model_vp_channels % 2:
            raise ValueError(f"model_channels is {self.model_channels}, model_vp_channels {self.model_vp_channels}; expected even numbers")
        if self.reward_clip and self.gamma == 1:
            raise ValueError("reward_clip bounds values by reward_clip / (1 - gamma); with gamma=1 set reward_clip=0")
        rows, lanes, sequence = min(self.model_buffer, self.total_steps), self.n_agents * self.n_envs, self.model_unroll + self.model_return_n + 2
        if max(self.model_warmup, self.model_batch) > rows:
            raise ValueError(f"model_warmup ({self.model_warmup}) or model_batch ({self.model_batch}) is above {rows}, the smaller of model_buffer and "
                             "total_steps; the model would never learn")
        if sequence * lanes > rows:
            raise ValueError(f"the model learns from {sequence} steps in a row (model_unroll + model_return_n + 2), and of the {rows} rows, the smaller "
                             f"of model_buffer and total_steps, each of {lanes} environments has {rows // lanes}; raise them, or lower n_envs")


def make_envs(config: Config, n: int, options: Mapping[str, Any]) -> VectorEnv[Any, Any, Any]:
    """n environments: Sokoban is batched already, others are put together. `options` go before those of the configuration.

    Raises:
        ConfigError: there is no such environment, or it refuses its options.
    """
    kwargs = {**config.env_options, **options}
    try:
        if config.env.startswith("Sokoban-"):
            return gym.make_vec(config.env, n, vectorization_mode="vector_entry_point", autoreset_mode=AutoresetMode.SAME_STEP, **kwargs)
        return make_vector_env(partial(make_env, config.env, **kwargs), n, "sync", autoreset=AutoresetMode.SAME_STEP)
    except (gym.error.Error, EnvFailed, OSError, ImportError, TypeError, ValueError) as error:
        keys = "'env', 'env_options' and 'eval_options'" if options else "'env' and 'env_options'"
        said = str(error).splitlines()
        raise ConfigError(f"Config: keys {keys}: {said[0] if said else type(error).__name__}") from error


def network(config: Config, obs: gym.Space[Any], act: gym.Space[Any]) -> Callable[[], ThinkerNet]:
    """What makes the world model."""
    learned = config.planning == "learned"  # only then are images decoded
    return partial(
        ThinkerNet, obs, act, net="perfect" if config.planning == "perfect" else "dual", channels=config.model_channels,
        vp_channels=config.model_vp_channels or None, blocks=config.model_blocks, strides=config.model_strides,
        decoder_depth=config.model_depth, predict_done=config.model_done, frame_stack=config.frame_stack, recurrent_norm=config.model_norm,
        sigmoid=config.model_sigmoid and learned, residual=config.model_residual and learned, markov=config.model_markov and learned,
        half=config.half, latent_planning=config.latent, gamma=config.gamma, reward_clip=config.reward_clip or None,
    )  # fmt: skip


def actor(config: Config, spaces: Mapping[str, gym.Space[Any]]) -> ComputationTask:
    """The task `plan`."""
    raw = config.planning == "none"
    per_update = config.n_agents * config.n_envs * config.unroll / (1 if raw else config.stage)
    updates = max(int(config.total_steps / per_update), 1)
    streams = None if raw else thinker_streams(config.gamma, config.stage, Linear(config.im_cost, 0.0, updates), config.im_entropy)
    seen = {"see_tree_rep": not raw, "see_h": config.see_h and not raw, "see_x": config.see_x and not raw, "see_real_state": config.see_real_state}
    bound = config.reward_clip / (1.0 - config.gamma) if config.reward_clip and config.gamma < 1 else None
    func = create_algorithm_func(
        Planner, dict(**spaces, **seen, tree=config.tree, widths=config.widths, value_bound=bound), IMPALA,
        dict(streams=streams, gamma=config.gamma, entropy=config.entropy, value_weight=config.value_weight, reg=config.reg, reduction="sum",
             return_norm=None if config.return_norm == "none" else config.return_norm, max_grad_norm=config.max_grad_norm,
             lr=Linear(config.lr, config.lr * (1.0 - config.lr_decay), updates)))

    def helper() -> OnPolicyHelper:
        clip = [RewardClipping(-config.reward_clip, config.reward_clip)] if config.reward_clip else []
        return OnPolicyHelper(unroll=config.unroll, store_policy=True, transforms=clip)

    return ComputationTask(func, helper, device=config.device)


def modeller(config: Config, net: Callable[[], ThinkerNet]) -> ComputationTask:
    """The task `model`."""
    def algorithm() -> WorldModel:
        return WorldModel(net, unroll=config.model_unroll, return_n=config.model_return_n, gamma=config.gamma, lr=config.model_lr,
                          done=float(config.model_done), reward=config.model_reward, image=config.model_image,
                          feature=config.model_feature, total_steps=config.total_steps, return_h=config.see_h, return_x=config.see_x)

    return replaying(algorithm, net, batch=config.model_batch, unroll=config.model_unroll, ratio=config.replay_ratio, size=config.model_buffer,
                     warmup=config.model_warmup, total_steps=config.total_steps, alpha=config.alpha, beta=config.beta, device=config.device)


def replaying(
    algorithm: Callable[[], WorldModel], net: Callable[[], ThinkerNet], *, batch: int, unroll: int, ratio: float, size: int, warmup: int,
    total_steps: int, alpha: float, beta: float, **options: Any,
) -> ComputationTask:
    """A world model that learns from prioritised replay, `ratio` learned steps for each real one; `options` are the task's."""
    learn_every = max(round(batch * unroll / ratio), 1)
    lessons = max((total_steps - warmup) // learn_every, 1)
    first = beta + (1.0 - beta) * min(warmup / total_steps, 1.0)  # β follows real steps, and rises in the warmup, too
    with torch.device("meta"):
        extras = WorldModel(net).extras()
    buffer = partial(PrioritizedReplayBuffer, alpha=alpha, beta=Linear(first, 1.0, lessons), ignore_obs_next=True)
    return ComputationTask(
        algorithm, lambda: OffPolicyHelper(size=size, batch_size=batch, learn_every=learn_every, warmup=warmup, buffer=buffer, extras=extras),
        training_rule=BatchRule(max_rows=batch), **options)


def build(config: Config) -> Robot:
    probe = make_envs(config, 1, {})
    obs, act = probe.single_observation_space, probe.single_action_space
    probe.close()
    if config.eval_options:  # not to be found out when training is over
        probe = make_envs(config, 1, config.eval_options)
        evaluated = probe.single_observation_space, probe.single_action_space
        probe.close()
        if evaluated != (obs, act):
            raise ConfigError(f"Config: key 'eval_options': the robot learns with {obs} and {act}, and would be evaluated with {' and '.join(map(str, evaluated))}")
    common: dict[str, Any] = {
        "n_agents": config.n_agents, "driver": config.robot_driver(), "seed": config.seed, "trace": config.trace,
        "eval_explore": config.eval_explore, "env": lambda: make_envs(config, config.n_envs, {}), "eval_env": lambda: make_envs(config, config.n_envs, config.eval_options),
    }
    if config.planning == "none":
        return Robot(tasks={"plan": actor(config, {"obs": obs, "act": act})}, agent=partial(VectorAgent, config.n_envs), **common)
    if not isinstance(act, gym.spaces.Discrete):
        raise ConfigError(f"Config: key 'env': the actions of {config.env} are {act}; expected Discrete: a tree has a branch for each")
    net = network(config, obs, gym.spaces.Discrete(act.n))  # the tree counts its branches from 0
    with torch.device("meta"):
        h_shape, x_shape = net().hs_shape, net().x_shape
    seen: dict[str, Any] = {"h_shape": h_shape if config.see_h else None, "x_shape": x_shape if config.see_x else None}
    n_actions = int(act.n)
    spaces = augmented_spaces(obs, n_actions, Layout(n_actions, config.stage, config.depth, config.layout), **seen)
    planning = {"K": config.stage, "max_depth": config.depth, "discounting": config.gamma, "layout": config.layout, "tree_carry": config.carry,
                "reward_clip": config.reward_clip or None, **seen}
    tasks = {"plan": actor(config, {"obs": spaces[0], "act": spaces[1]}), "model": modeller(config, net)}
    return Robot(tasks=tasks, agent=partial(ThinkerAgent, config.n_envs, perfect=config.planning == "perfect", planning=planning), **common)
