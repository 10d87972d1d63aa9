"""The two tasks of Thinker, and the robot that they make; `thinker.make` builds its one task and its trees with the same
functions."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import gymnasium as gym
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from parl_like.agents.helper import AgentHelper
from parl_like.agents.off_policy import OffPolicyHelper
from parl_like.agents.on_policy import OnPolicyHelper
from parl_like.agents.vector_agent import VectorAgent
from parl_like.algorithms.impala import IMPALA, thinker_streams
from parl_like.algorithms.world_model import WorldModel
from parl_like.data.buffers.prioritized import PrioritizedReplayBuffer
from parl_like.data.transforms import RewardClipping
from parl_like.envs.atari import Atari, named_by, with_game
from parl_like.envs.make import FiveValues, Layers, adapt, make_env
from parl_like.envs.thinker.augmented import Curiosity, augmented_spaces, check_envs
from parl_like.envs.thinker.tree import Tree
from parl_like.envs.vector import make_vector_env
from parl_like.envs.vector.make import EnvFailed
from parl_like.lab import foreign
from parl_like.lab.yaml_text import ConfigError
from parl_like.learning.algorithm import Linear
from parl_like.learning.factory import create_algorithm_func
from parl_like.models.planner import Planner
from parl_like.models.thinker_net import ThinkerNet
from parl_like.robots.spaces import hooks_of_config, import_module_in
from parl_like.robots.thinker.agent import ThinkerAgent
from parl_like.robots.thinker.config import ENCODINGS, Config, PlanningConfig
from parl_like.run.robot import Robot
from parl_like.tasks.batch_rule import BatchRule
from parl_like.tasks.task import ComputationTask
from parl_like.values import env_ids

log = logging.getLogger(__name__)
REFUSALS = (gym.error.Error, EnvFailed, OSError, ImportError, TypeError, ValueError)
"""The errors with which an environment, or what looks for it, refuses its name or its options."""


def same_step_envs(env: Any, n: int, **options: Any) -> VectorEnv[Any, Any, Any]:
    """n environments of an id or a factory: Sokoban is batched already, others are put together. Ids of Atari games get the
    published preparation, `parl_like.envs.atari.Atari`; `options` go before what their ids say, but for the game. The `step` of
    a factory's environments may return four values (`five_values`)."""
    if isinstance(env, str) and env.startswith("Sokoban-"):
        return gym.make_vec(env_ids.known(env), n, vectorization_mode="vector_entry_point",
                            autoreset_mode=AutoresetMode.SAME_STEP, **options)
    if isinstance(env, str) and (game := named_by(env)):
        env, options = Atari, with_game(env, game, options)
    if not isinstance(env, str) and env is not Atari:
        options["layers"] = Layers(adapt=_adapt_old)
    return make_vector_env(partial(make_env, env, **options), n, "sync", autoreset=AutoresetMode.SAME_STEP)


def _adapt_old(env: Any) -> gym.Env[Any, Any]:
    """Adapt an environment as `make_env` does; one of gymnasium may also return the four values of the API before it."""
    adapted = adapt(env)
    return FiveValues(adapted) if adapted is env else adapted


def frames_of(envs: VectorEnv[Any, Any, Any], default: int = 1) -> int:
    """Return how many frames these environments stack along the first axis of an observation: their `frame_stack_n`, under
    whatever wrappers; else `default`.

    Raises:
        ValueError: observations are no whole number of such frames.
    """
    try:
        frames = int(envs.get_attr("frame_stack_n")[0])  # type: ignore[attr-defined]
    except (AttributeError, EnvFailed):
        frames = default
    shape: Any = envs.single_observation_space.shape
    if frames < 1 or shape[0] % frames:
        raise ValueError(f"frame_stack_n is {frames}; expected a divisor of {shape[0]}, the first axis of observations {shape}")
    return frames


def note_on_frames(frames: int) -> str:
    """Return what people are told of stacked frames, as the original tells them; empty: nothing."""
    return f"Detected frame stacking with {frames} counts" if frames > 1 else ""


def make_envs(config: Config, n: int, options: Mapping[str, Any]) -> VectorEnv[Any, Any, Any]:
    """The configuration's environments; `options` go before its own.

    Raises:
        ConfigError: there is no such environment, or it refuses its options.
    """
    try:
        return same_step_envs(config.env, n, **{**config.env_options, **options})
    except REFUSALS as error:
        keys = "'env', 'env_options' and 'eval_options'" if options else "'env' and 'env_options'"
        said = str(error).splitlines()
        raise ConfigError(f"Config: keys {keys}: {said[0] if said else type(error).__name__}") from error


def tree_options(config: PlanningConfig) -> dict[str, Any]:
    """Options of `Tree`."""
    return {"K": config.rec_t, "max_depth": config.max_depth, "discounting": config.discounting, "layout": config.layout,
            "tree_carry": config.tree_carry, "reset_mode": config.reset_mode, "stat_mask_type": config.stat_mask_type,
            "has_action_seq": config.has_action_seq, "enc_type": config.model_enc_type, "enc_f_type": config.model_enc_f_type}


def world_model(
    config: PlanningConfig, obs: gym.Space[Any], act: gym.Space[Any], *, perfect: bool, return_h: bool, return_x: bool,
    frame_stack: int, net: Mapping[str, Any] | None = None, learns: bool = True, piece: int = 1, curious: bool = False,
    buffers: int = 1, **options: Any,
) -> tuple[ComputationTask, dict[str, Any]]:
    """The task `model`, and the arguments of `AugmentedEnv` that go with it. It learns from prioritised replay,
    `max_replay_ratio` learned steps for each real one. `perfect`: it only judges. `net`: more arguments of `ThinkerNet`; `piece`:
    rows that at least come between two times of learning; `curious`: there is curiosity; `buffers`: that replay is divided over;
    `options`: of the task."""
    channels, vp_channels = config.channels()
    dual = config.dual_net and not perfect
    network = partial(
        ThinkerNet, obs, act, net="perfect" if perfect else "dual" if dual else "single", channels=channels,
        vp_channels=vp_channels, blocks=config.model_size_nn, decoder_depth=config.model_decoder_depth if dual else 0,
        predict_done=config.model_done_loss_cost > 0, value_encoding=ENCODINGS[config.model_enc_type],
        squash="log" if config.model_enc_f_type else "sqrt", frame_stack=frame_stack, recurrent_norm=not config.model_disable_bn,
        zero_init=config.model_zero_init, half=config.float16, gamma=config.discounting, reward_clip=config.clip, **(net or {}))
    algorithm = partial(
        WorldModel, network, unroll=config.model_unroll_len, return_n=config.model_return_n, gamma=config.discounting,
        lr=config.model_learning_rate, reward=config.model_rs_loss_cost, done=config.model_done_loss_cost,
        image=0.0 if perfect else config.model_img_loss_cost, feature=config.model_fea_loss_cost, value=config.model_vs_loss_cost,
        policy=config.model_policy_loss_cost, reg=config.model_reg_loss_cost, total_steps=config.total_steps, return_h=return_h,
        return_x=return_x, return_z=curious and config.cur_enc_cost > 0,
        max_grad_norm=config.model_grad_norm_clipping if config.model_grad_norm_clipping > 0 else None)
    with torch.device("meta"):
        shapes = algorithm()
    env = {**tree_options(config), "return_double": config.return_double, "reward_clip": config.clip,
           "curiosity": Curiosity(config.cur_reward_cost, config.cur_v_cost, config.cur_enc_cost,
                                  config.cur_done_gate) if curious else None,
           "h_shape": shapes.model.hs_shape if return_h else None, "x_shape": shapes.model.x_shape if return_x else None}
    if not learns:
        return ComputationTask(algorithm, AgentHelper, train=False, **options), env
    batch, warmup, steps, beta = config.model_batch_size, config.model_warm_up_n, config.total_steps, config.priority_beta
    learn_every = max(round(batch * config.model_unroll_len / config.max_replay_ratio), 1)
    updates = max((steps - warmup) // learn_every, 1)
    first = beta + (1.0 - beta) * min(warmup / steps, 1.0)  # β follows real steps, and rises in the warmup, too
    pieces = max(-(-piece // learn_every), 1)
    buffer = partial(PrioritizedReplayBuffer, alpha=config.priority_alpha, beta=Linear(first, 1.0, -(-updates // buffers)),
                     ignore_obs_next=True)
    helper = partial(OffPolicyHelper, size=config.model_buffer_n // buffers, batch_size=batch, learn_every=learn_every * pieces,
                     updates=pieces, warmup=warmup // buffers, buffer=buffer, extras=shapes.extras())
    return ComputationTask(algorithm, helper, training_rule=BatchRule(max_rows=batch), **options), env


def actor(config: Config, spaces: Mapping[str, gym.Space[Any]]) -> ComputationTask:
    """The task `plan`."""
    raw = config.planning == "none"
    batch, updates = config.updates()
    curiosity = Linear(config.cur_cost, 0.0 if config.cur_cost_anneal else config.cur_cost, updates) if config.cur_cost else None
    streams = None if raw else thinker_streams(config.discounting, config.rec_t, Linear(config.im_cost, 0.0, updates),
                                               config.im_entropy_cost, curiosity)
    seen = {"see_tree_rep": not raw, "see_h": config.see_h and not raw, "see_x": config.see_x and not raw,
            "see_real_state": config.see_real_state}
    bound = None if config.clip is None else config.clip / (1.0 - config.discounting)
    func = create_algorithm_func(
        Planner, dict(**spaces, **seen, tree="lstm" if config.tree_rep_rnn else "mlp", widths=config.widths, value_bound=bound),
        IMPALA,
        dict(streams=streams, gamma=config.discounting, entropy=config.entropy_cost, value_weight=config.baseline_cost,
             reg=config.reg_cost, reduction="sum", return_norm=None if config.return_norm == "none" else config.return_norm,
             max_grad_norm=config.actor_grad_norm_clipping, adam_eps=config.actor_adam_eps,
             lr=Linear(config.actor_learning_rate, config.actor_learning_rate * (1.0 - config.lr_decay), updates)))

    def helper() -> OnPolicyHelper:
        clip = [] if config.clip is None else [RewardClipping(-config.clip, config.clip)]
        return OnPolicyHelper(unroll=config.actor_unroll_len, store_policy=True, transforms=clip)

    return ComputationTask(func, helper, training_rule=BatchRule(max_rows=batch * config.actor_unroll_len), device=config.device,
                           serve=config.serve)


def build(config: Config) -> Robot:
    """The robot of a configuration.

    Raises:
        ConfigError: the environment does not exist, or does not fit.
    """
    spaces, frames = spaces_of(config, {})
    # not to be found out when training is over
    if config.eval_options and (evaluated := spaces_of(config, config.eval_options)[0]) != spaces:
        raise ConfigError(f"Config: key 'eval_options': the robot learns with {spaces[0]} and {spaces[1]}, and would be "
                          f"evaluated with {' and '.join(map(str, evaluated))}")
    obs, act = spaces[0], cast(Any, spaces[1])
    driver = config.robot_driver()  # each worker has a buffer of its own
    common: dict[str, Any] = {
        "n_agents": config.n_agents, "driver": driver, "seed": config.seed, "trace": config.trace,
        "mode": config.robot_mode(), "eval_explore": config.eval_explore, "env": lambda: make_envs(config, config.env_n, {}),
        "eval_env": lambda: make_envs(config, config.env_n, config.eval_options), "hooks": hooks_of_config(config.hooks),
    }
    if config.planning == "none":
        robot = Robot(tasks={"plan": actor(config, {"obs": obs, "act": act})}, agent=partial(VectorAgent, config.env_n), **common)
        robot.notes += config.notes()
        return robot
    perfect = config.planning == "perfect"
    net: dict[str, Any] = {"strides": config.model_strides, "latent_planning": config.latent}
    if not perfect:  # how images are decoded
        net |= {"sigmoid": config.model_sigmoid, "residual": config.model_residual, "markov": config.model_markov}
    # the tree counts actions from 0
    model, planning = world_model(config, obs, gym.spaces.Discrete(act.n), perfect=perfect, return_h=config.see_h,
                                  return_x=config.see_x, frame_stack=frames, net=net, curious=config.cur_cost > 0,
                                  device=config.device, serve=config.serve,
                                  buffers=1 if isinstance(driver, str) else driver.count(config.n_agents))
    layout = Tree(1, int(act.n), **tree_options(config)).layout
    seen, acts = augmented_spaces(obs, layout, planning["h_shape"], planning["x_shape"], config.return_double,
                                  curious=config.cur_cost > 0)
    robot = Robot(tasks={"plan": actor(config, {"obs": seen, "act": acts}), "model": model},
                  agent=partial(ThinkerAgent, config.env_n, perfect=perfect, planning=planning), **common)
    robot.notes += [*config.notes(), *[note for note in [note_on_frames(frames)] if note]]
    return robot


def check_env(config: Config) -> None:
    """Raises ConfigError where a run directory names an environment, or options of one, that the user has to name himself."""
    import_module_in(config.env)
    if (rule := foreign.rule()) is not None:
        rule.check_options("env_options", config.env, config.env_options)
        rule.check_options("eval_options", config.env, config.eval_options)


def spaces_of(config: Config, options: Mapping[str, Any]) -> tuple[tuple[gym.Space[Any], gym.Space[Any]], int]:
    """Observations and actions of one environment, and how many frames it stacks.

    Raises:
        ConfigError: there is no such environment; no tree fits on it; its observations are no whole number of frames.
    """
    check_env(config)
    probe = make_envs(config, 1, options)
    try:
        if config.planning != "none":
            check_envs(probe)
        frames = frames_of(probe, config.frame_stack_n)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Config: key 'env': {str(error).removeprefix('AugmentedEnv: ')}") from None
    finally:
        probe.close()
    return (probe.single_observation_space, probe.single_action_space), frames
