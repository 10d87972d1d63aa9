"""`thinker.make`: n environments with a search tree and a world model, behind the interface of Thinker's own package (arXiv 2307.14993).

    from parl_like.envs import thinker

    env = thinker.make("Sokoban-v0", env_n=16)
    state = env.reset()                                                     # state["tree_reps"] [16, 79], state["real_states"] [16, 3, 80, 80]
    state, reward, done, info = env.step(primary_action, reset_action)      # the policy is yours; the model learns inside of step

Behind it is a robot with the one task `model`; its agent does not run, for the caller's loop acts in its place. The model learns inside of
step (mode 1), in a thread beside it (mode 2: `parallel=True`), or is shared with others (mode 3: `ray_obj=thinker.ray_init()`).
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium as gym
import msgspec
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from msgspec import Meta

from parl_like.agent_helper import AgentHelper
from parl_like.algorithms.world_model import WorldModel
from parl_like.computation_task import ComputationTask
from parl_like.data.archive import clean_partial, replace_file, write_archive
from parl_like.envs.make import make_env
from parl_like.envs.thinker.augmented import AugmentedEnv, check_envs
from parl_like.envs.thinker.layout import Layout
from parl_like.envs.vector import EnvFailed, make_vector_env
from parl_like.errors import unknown
from parl_like.lab.config import ConfigError, dump_yaml, load_yaml_file, resolve, to_dict
from parl_like.models.thinker_net import ThinkerNet
from parl_like.robot import Robot
from parl_like.robots.thinker import Config, ThinkerAgent, make_envs, replaying
from parl_like.robots.thinker_ray import SharedModel, SharedTask, ray_init, seeds
from parl_like.spec import Array

Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Weight = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]

CHECKPOINT_S = 600.0
"""Seconds between two checkpoints of a run that keeps any; another is made when it is closed."""

ENCODINGS = {0: "scalar", 2: "two_hot", 3: "two_hot_biased"}
RENAMED = {"model_logits_loss_cost": "model_policy_loss_cost"}
"""Names of version 1.1 → those of 1.2, which are used here. For `model_img_type` see `_published`."""

UNBUILT: dict[str, Any] = {
    "model_optimizer": "adam", "model_sgd_momentum": 0.9, "model_sgd_weight_decay": 1e-4, "buffer_traj_len": 50, "model_mem_unroll_len": 0,
    "model_noise_loss_cost": 0, "fea_loss_inf_bn": False, "img_fea_cos": False, "model_has_memory": False, "model_ordinal": False,
    "vp_fix_bootstrap": False, "discrete_k": -1, "obs_norm": False, "obs_clip": -1, "reward_norm": False, "se_query_size": 20,
    "se_td_lambda": 0.9, "se_query_cur": 2, "se_buffer_n": 20, "se_tree_carry": True, "se_manual_stat": False, "sample_n": -1,
    "sample_temp": 4, "sample_replace": True, "cur_enable": False, "cur_reward_cost": 0, "cur_v_cost": 0, "cur_enc_cost": 0,
    "cur_done_gate": False, "noise_enable": False, "noise_n": 16, "noise_d": 10, "noise_alpha": 0.8, "noise_mlp": False, "atari": False,
    "grayscale": False, "repeat_action_n": 0, "rand_action_eps": 0, "dm_rgb": False, "profile": False, "project": "", "ray_mem": -1,
    "ray_gpu": -1, "ray_cpu": -1, "gpu_learn": 0.5,
}  # fmt: skip
"""Published options that have no effect here → their defaults, the only values that are taken."""

WAYS_OUT = {
    "discrete_k": "wrap the environment in parl_like.envs.wrappers.Discretize and give it as env_fn",
    "atari": "give env_fn=lambda: parl_like.envs.atari.Atari(game)", "grayscale": "give env_fn=lambda: parl_like.envs.atari.Atari(game, …)",
    "project": "give savedir and xpid",
    **dict.fromkeys(("obs_norm", "obs_clip", "reward_norm", "repeat_action_n", "rand_action_eps"), "wrap the environment and give it as env_fn"),
    **dict.fromkeys(("ray_mem", "ray_gpu", "ray_cpu", "gpu_learn"), "give it to thinker.ray_init"),
}
FREE = {
    "ckp", "savedir", "xpid", "parallel", "train_model", "total_steps", "model_learning_rate", "test_rec_t", "return_h", "return_x", "return_double",
}  # fmt: skip
"""Options that may change where a run goes on: nothing in a checkpoint depends on them."""
OWN = {"ckp", "savedir", "xpid", "preload", "parallel"}
"""Options in which makers of one shared model may differ."""

__all__ = ["LearningEnv", "ThinkerEnv", "ThinkerOptions", "make", "ray_init"]


class ThinkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The published options by their names; where the two versions differ in a default, that of 1.2. `layout` is ours.

    Learned steps per real step are exactly `max_replay_ratio`: learning is part of the rhythm of real steps, so it cannot fall behind
    `min_replay_ratio`, which is only checked. Faults of the original are not repeated (see `Tree`, `model_targets`).
    """

    layout: Literal["G1", "G2"] = "G1"  # of tree_reps: version 1.1 (79 entries for Sokoban) or 1.2 (111)
    wrapper_type: int = 0  # 0: learned model; 1: the real environment, no tree; 2: transitions from the environment itself
    has_model: bool = True
    train_model: bool = True
    parallel: bool = False  # learn in a thread, beside the steps
    require_prob: bool = False  # the model's policy target is a distribution, so `step` needs action_prob
    total_steps: Positive = 50_000_000  # real steps after which learning ends; the learning rate falls to 0 until then
    base_seed: Count = 1
    rec_t: Positive = 20  # K, steps of a stage
    test_rec_t: int = -1  # stage length in place of rec_t; below 1: rec_t
    max_depth: int = 5
    tree_carry: bool = True
    reset_mode: Annotated[int, Meta(ge=0, le=1)] = 0
    has_action_seq: bool = True
    stat_mask_type: Annotated[int, Meta(ge=0, le=5)] = 0
    discounting: Annotated[float, Meta(gt=0, le=1)] = 0.97
    reward_clip: float = -1.0  # below 0 or 0: none
    im_enable: bool = True  # whether info holds im_reward and im_episode_return
    return_h: bool = True
    return_x: bool = False
    return_double: bool = False
    sokoban_pomdp: bool = False
    dual_net: bool = True
    float16: bool = False
    model_decoder_depth: Annotated[int, Meta(ge=0, le=4)] = 0
    model_enc_type: int = 0
    model_enc_f_type: Annotated[int, Meta(ge=0, le=1)] = 0
    model_size_nn: Positive = 1
    model_downscale_c: Annotated[int, Meta(ge=1, le=64)] = 2
    model_downscale_c_vp: Annotated[int, Meta(ge=0, le=64)] = 0  # 0: as model_downscale_c
    model_disable_bn: bool = True
    model_zero_init: bool = True
    model_batch_size: Positive = 128
    model_learning_rate: Annotated[float, Meta(gt=0)] = 1e-4
    model_grad_norm_clipping: float = 0.0  # 0 or below: none
    min_replay_ratio: Weight = 4.0
    max_replay_ratio: Annotated[float, Meta(gt=0)] = 5.0
    priority_alpha: Weight = 0.6
    priority_beta: Share = 0.4
    model_unroll_len: Positive = 5
    model_return_n: Positive = 5
    model_warm_up_n: Count = 10_000
    model_buffer_n: Positive = 200_000
    model_policy_loss_cost: Weight = 0.5
    model_vs_loss_cost: Weight = 0.25
    model_rs_loss_cost: Weight = 1.0
    model_done_loss_cost: Weight = 1.0  # 0: ends are not predicted
    model_img_loss_cost: Weight = 0.0
    model_fea_loss_cost: Weight = 10.0
    model_reg_loss_cost: Weight = 0.0
    xpid: str = ""
    savedir: str = "logs"
    ckp: bool = False
    preload: str = ""  # folder of a run, whose weights this one begins with

    def __post_init__(self) -> None:
        steps = self.model_batch_size * self.model_unroll_len
        learns = self.has_model and self.train_model and self.wrapper_type != 1
        images = self.wrapper_type != 0 or (self.dual_net and self.model_decoder_depth == 0)
        ratio, size, warm = self.max_replay_ratio, self.model_buffer_n, max(self.model_warm_up_n, self.model_batch_size)
        for wrong, message in (
            (self.wrapper_type not in (0, 1, 2), f"wrapper_type is {self.wrapper_type}; expected 0 (learned model), 1 (no tree) or 2 (the "
                                                 "environment as model); 3 and 4 were announced and never published"),
            (not self.has_model and self.wrapper_type != 1,
             f"has_model is false, but wrapper_type {self.wrapper_type} plans with a model; use wrapper_type=1"),
            (self.model_enc_type not in ENCODINGS, f"model_enc_type is {self.model_enc_type}; expected 0 (numbers), 2 or 3 (two-hot)"),
            (self.return_x and not images, "return_x shows imagined images; it needs dual_net=true and model_decoder_depth=0"),
            (self.model_img_loss_cost and not images, "model_img_loss_cost is for decoded images; it needs dual_net=true and model_decoder_depth=0"),
            (any(128 // (c or 2) % 2 for c in (self.model_downscale_c, self.model_downscale_c_vp)),
             "128 // model_downscale_c and 128 // model_downscale_c_vp are numbers of channels; expected even ones"),
            (self.reward_clip > 0 and self.discounting == 1,
             "reward_clip bounds values by reward_clip / (1 - discounting); expected discounting below 1"),
            (learns and self.min_replay_ratio > ratio, f"min_replay_ratio {self.min_replay_ratio} is above max_replay_ratio {ratio}"),
            (learns and ratio > steps, f"max_replay_ratio is {ratio}; expected at most model_batch_size · model_unroll_len ({steps})"),
            (learns and warm > size, f"model_buffer_n is {size}; expected at least model_warm_up_n ({self.model_warm_up_n}) and model_batch_size "
                                     f"({self.model_batch_size})"),
            (self.ckp and not self.xpid, "ckp=true goes on with a run; give its xpid (and savedir)"),
            (self.ckp and self.preload, "ckp takes all of a run, preload the weights of another; give one of them"),
        ):  # fmt: skip
            if wrong:
                raise ValueError(message)


def make(
    name: str | None = None, env_fn: Callable[[], Any] | None = None, env_n: int | None = None, gpu: bool | None = None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None, ray_obj: SharedModel | None = None, **options: Any,
) -> ThinkerEnv:
    """n environments seen through a search tree. See `ThinkerEnv` for what they do, `ThinkerOptions` for the options.

    Files are written only if `xpid` or `savedir` is given (and the model learns): savedir/xpid holds `config_c.yaml`, all options, and
    `checkpoint`: networks, optimiser, replay, counters, generators; no code, and nothing of the machine. It is saved every 10 minutes,
    when the environment is closed, and when the interpreter ends. `ckp=True` goes on with such a run: options that are not given are then
    the run's, and episodes and trees begin anew. `ckp=True, train_model=False` takes its networks only.

    Args:
        name: gymnasium id, such as "Sokoban-v0".
        env_fn: Makes one environment, in place of `name`: observations Box (C, H, W) or (N,) with finite limits, Discrete actions, `step` of
            five or of four values. Its `frame_stack_n`, if any, says how many frames are stacked along C, of which the model imagines the
            newest. For wrapper_type 2 it must clone its state (`parl_like.envs.wrappers.clone_state`).
        env_n: Environments; None: 1, or those of the run that goes on.
        gpu: Whether the model computes, and tensors are returned, on CUDA; None: if there is any.
        config: YAML file of options, or a mapping.
        ray_obj: What `ray_init` gave, for a model that several makers share: it computes where `ray_init` said. None: a model of its own.
        options: Options by name, before those of `config`.

    Raises:
        ConfigError: an option is unknown (the nearest name is said), not built, out of its range, or not that of the checkpoint; an
            environment does not fit; it is not that of the shared model.
    """
    layer = {} if config is None else dict(config) if isinstance(config, Mapping) else load_yaml_file(Path(config))
    own = {key: layer.pop(key, None) for key in ("name", "env_n", "spaces")}  # of a `config_c.yaml`
    given = {**_published(layer), **_published(options)}
    saved: dict[str, Any] = {}
    if given.get("ckp") and given.get("xpid"):
        saved = _saved(Path(given.get("savedir", "logs"), given["xpid"]))
    run: dict[str, Any] = {"name": own["name"] if name is None else name, "env_n": own["env_n"] if env_n is None else env_n}
    kept = {key: value for key, value in saved.items() if key not in ("name", "env_n", "spaces", "preload")}
    o = resolve(ThinkerOptions, kept, given)  # type: ignore[type-var]  # any struct will do
    for key in given:
        if key in kept and key not in FREE and to_dict(o)[key] != kept[key]:
            raise ConfigError(_differs(o, key, kept[key], to_dict(o)[key]))
    for key, value in run.items():
        if saved and value not in (None, saved[key]):
            raise ConfigError(_differs(o, key, saved[key], value))
        run[key] = saved.get(key) if value is None else value
    n = 1 if run["env_n"] is None else run["env_n"]
    if not isinstance(n, int) or n < 1:
        raise ConfigError(f"thinker.make: env_n is {n!r}; expected a number of environments, at least 1")
    if o.wrapper_type == 1 and any(given.get(key) for key in ("has_model", "train_model")):
        raise ConfigError("thinker.make: wrapper_type 1 has no tree, and no model is learned beside it; leave has_model and train_model out")
    if gpu and not torch.cuda.is_available():
        raise ConfigError("thinker.make: gpu is True, but torch sees no CUDA device; use gpu=False, or leave it out")
    if ray_obj is not None and o.wrapper_type == 1:
        raise ConfigError("thinker.make: wrapper_type 1 has no model to share; leave ray_obj out")
    maker = None if ray_obj is None else _Maker(ray_obj, o)
    try:
        return _make(o, run, n, env_fn, gpu, given, saved, maker)
    except BaseException:
        if maker is not None:
            maker.leave()
        raise


class _Maker:
    """One maker's place at a shared model.

    Raises:
        ConfigError: the first maker had other options.
    """

    def __init__(self, model: SharedModel, o: ThinkerOptions) -> None:
        self.model = model
        mine = {key: value for key, value in to_dict(o).items() if key not in OWN}
        self.rank, first = model.enter(mine)
        for key, value in mine.items():
            if value != first[key]:
                self.leave()
                raise ConfigError(f"thinker.make: the shared model's first maker has {key} {first[key]!r}, not {value!r}; makers of one model have the same options")

    def share(self, task: ComputationTask, o: ThinkerOptions, envs: VectorEnv[Any, Any, Any]) -> SharedTask:
        """The task as it is shared; built now, if this maker is the first to."""
        task.name = "model"
        shared = SharedTask(task, self.model, self.rank)
        shared.build(seeds(o.base_seed, self.rank)[1])
        for kind, there, here in (("observations", shared.algorithm.model.obs_space, envs.single_observation_space),
                                  ("actions", shared.algorithm.model.act_space, envs.single_action_space)):
            if there != here:
                raise ConfigError(f"thinker.make: the shared model has {kind} {there}, these environments {here}; makers of one model have the same")
        return shared

    def leave(self) -> None:
        self.model.leave(self.rank)


def _make(
    o: ThinkerOptions, run: dict[str, Any], n: int, env_fn: Callable[[], Any] | None, gpu: bool | None, given: Mapping[str, Any],
    saved: Mapping[str, Any], maker: _Maker | None,
) -> ThinkerEnv:
    learns = o.train_model and o.wrapper_type != 1
    folder = None
    if learns and given.keys() & {"xpid", "savedir"} and (maker is None or maker.rank == 0):
        folder = Path(o.savedir, o.xpid or f"thinker-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    if folder is not None and not o.ckp and _holds_run(folder):
        raise ConfigError(f"thinker.make: there is a run in {folder}; ckp=True goes on with it, another xpid begins a new one")
    device = torch.device("cuda" if gpu or (gpu is None and torch.cuda.is_available()) else "cpu")
    stacks: list[int] = []

    def one() -> Any:
        env = env_fn()  # type: ignore[misc]  # only called where there is one
        stacks.append(int(getattr(env, "frame_stack_n", 1)))
        return env

    again = partial(_environments, run["name"], None if env_fn is None else one, n, o)
    envs = again()
    try:
        spaces = f"{envs.single_observation_space}, {envs.single_action_space}"
        if saved and saved["spaces"] != spaces:
            raise ConfigError(_differs(o, "name" if env_fn is None else "env_fn", saved["spaces"], spaces))
        robot = None if o.wrapper_type == 1 else _robot(o, envs, again, device, n, stacks[0] if stacks else 1, maker)
        vector = LearningEnv(envs if robot is None else robot, o, folder, maker)
    except BaseException:
        envs.close()
        raise
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        clean_partial(folder)
        text = dump_yaml({**run, "env_n": n, "spaces": spaces, **to_dict(o)})
        replace_file(folder / "config_c.yaml", text.encode())
    return ThinkerEnv(vector, o, device)


def _published(given: Mapping[str, Any]) -> dict[str, Any]:
    """One layer of options by the names of `ThinkerOptions`: those of version 1.1 translated, those that are not built checked and left out."""
    known = {*ThinkerOptions.__struct_fields__, *UNBUILT, *RENAMED, "model_img_type"}
    out: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            raise ConfigError("thinker.make: " + unknown("option", key, known | {"name", "env_fn", "env_n", "gpu", "config"}))
        if key in UNBUILT:
            if value != UNBUILT[key] or isinstance(value, bool) != isinstance(UNBUILT[key], bool):
                raise ConfigError(f"thinker.make: option {key!r} is published, but not built here; it can only be {UNBUILT[key]!r}, got {value!r}; "
                                  f"{WAYS_OUT.get(key, 'leave it out')}")
        elif RENAMED.get(key) in given:
            raise ConfigError(f"thinker.make: {key!r} and {RENAMED[key]!r} are one option; give one of them")
        else:
            out[RENAMED.get(key, key)] = value
    if "model_img_type" in out:  # version 1.1: which of the two losses has the weight model_img_loss_cost
        kind = out.pop("model_img_type")
        if kind not in (0, 1) or "model_fea_loss_cost" in out:
            raise ConfigError(f"thinker.make: 'model_img_type' is {kind!r}; expected 0 (pixels) or 1 (features), and no 'model_fea_loss_cost'")
        cost = out.pop("model_img_loss_cost", 10.0)
        out |= {"model_img_loss_cost": 0.0 if kind else cost, "model_fea_loss_cost": cost if kind else 0.0}
    return out


def _holds_run(folder: Path) -> bool:
    """Whether there is a checkpoint, be it one that was just being replaced when the process was killed."""
    return (folder / "checkpoint").exists() or any(folder.glob(".replaced.checkpoint.*"))


def _saved(folder: Path) -> dict[str, Any]:
    if not (folder / "config_c.yaml").exists() or not _holds_run(folder):
        raise ConfigError(f"thinker.make: ckp=True, but there is no checkpoint in {folder}; give savedir and xpid of the run, or leave ckp out")
    return load_yaml_file(folder / "config_c.yaml")


def _differs(o: ThinkerOptions, key: str, there: Any, here: Any) -> str:
    return (f"thinker.make: the checkpoint in {Path(o.savedir, o.xpid)} was made with {key} {there!r}, not {here!r}; leave {key} as it was, or "
            "begin a new run with another xpid and ckp=False")


def _environments(name: str | None, env_fn: Callable[[], Any] | None, n: int, o: ThinkerOptions) -> VectorEnv[Any, Any, Any]:
    which = "name" if env_fn is None else "env_fn"
    if env_fn is None and name is None:
        raise ConfigError("thinker.make: there is no environment; give name (a gymnasium id) or env_fn (a function that makes one)")
    if o.sokoban_pomdp and not (env_fn is None and str(name).startswith("Sokoban-")):
        raise ConfigError(f"thinker.make: sokoban_pomdp is for the names Sokoban-…; leave it out for {which}")
    try:
        if env_fn is not None:
            envs = make_vector_env(partial(make_env, env_fn), n, "sync", autoreset=AutoresetMode.SAME_STEP)
        else:
            envs = make_envs(Config(env=str(name), env_options={"pomdp": True} if o.sokoban_pomdp else {}), n, {})
    except (EnvFailed, gym.error.Error, ValueError, TypeError) as error:
        raise ConfigError(f"thinker.make: {which}: {str(error).splitlines()[0]}") from error
    try:
        check_envs(envs)
        box: Any = envs.single_observation_space
        if o.wrapper_type != 1 and not (np.abs([box.low, box.high]) < 1e30).all():
            raise ValueError(f"the observation space is {box}; the model needs finite limits, by which it normalises; wrap the environment "
                             "(gymnasium.wrappers.RescaleObservation, TransformObservation)")
    except (TypeError, ValueError) as error:
        envs.close()
        raise ConfigError(f"thinker.make: {which}: {str(error).removeprefix('AugmentedEnv: ')}") from None
    return envs


def _network(o: ThinkerOptions, obs: gym.Space[Any], act: gym.Space[Any], frame_stack: int) -> Callable[[], ThinkerNet]:
    kind: Literal["dual", "single", "perfect"] = "perfect" if o.wrapper_type == 2 else "dual" if o.dual_net else "single"
    return partial(
        ThinkerNet, obs, act, net=kind, blocks=o.model_size_nn, channels=128 // o.model_downscale_c,
        vp_channels=128 // (o.model_downscale_c_vp or o.model_downscale_c), frame_stack=frame_stack,
        decoder_depth=o.model_decoder_depth if kind == "dual" else 0, value_encoding=ENCODINGS[o.model_enc_type],
        squash="log" if o.model_enc_f_type else "sqrt", predict_done=o.model_done_loss_cost > 0, recurrent_norm=not o.model_disable_bn,
        zero_init=o.model_zero_init, reward_clip=o.reward_clip if o.reward_clip > 0 else None, gamma=o.discounting, half=o.float16,
    )  # fmt: skip


def _task(o: ThinkerOptions, net: Callable[[], ThinkerNet], device: torch.device) -> ComputationTask:
    def algorithm() -> WorldModel:
        return WorldModel(
            net, unroll=o.model_unroll_len, return_n=o.model_return_n, gamma=o.discounting, reward=o.model_rs_loss_cost,
            done=o.model_done_loss_cost, image=0.0 if o.wrapper_type == 2 else o.model_img_loss_cost, feature=o.model_fea_loss_cost,
            value=o.model_vs_loss_cost, policy=o.model_policy_loss_cost, reg=o.model_reg_loss_cost, lr=o.model_learning_rate,
            total_steps=o.total_steps, return_h=o.return_h, return_x=o.return_x,
            max_grad_norm=o.model_grad_norm_clipping if o.model_grad_norm_clipping > 0 else None)  # fmt: skip

    if not o.train_model:
        return ComputationTask(algorithm, AgentHelper, device=device, train=False)
    # A lesson that fails in its thread is told by the next step that teaches, so nothing is stopped for it.
    return replaying(algorithm, net, batch=o.model_batch_size, unroll=o.model_unroll_len, ratio=o.max_replay_ratio, size=o.model_buffer_n,
                     warmup=o.model_warm_up_n, total_steps=o.total_steps, alpha=o.priority_alpha, beta=o.priority_beta, device=device,
                     on_error="fail_batch")


class _Caller(ThinkerAgent):
    """The agent of a loop that is not its own."""

    def run(self) -> None:
        """Leaves the stage to the caller of `thinker.make`, who acts with this agent's environment and helpers."""


def _robot(
    o: ThinkerOptions, envs: VectorEnv[Any, Any, Any], again: Callable[[], Any], device: torch.device, n: int, frame_stack: int,
    maker: _Maker | None,
) -> Robot:
    rows = o.model_unroll_len + o.model_return_n + 3
    if o.train_model and o.model_buffer_n // n < rows:
        raise ConfigError(f"thinker.make: model_buffer_n is {o.model_buffer_n}; expected at least {rows * n}: {n} environments, and what "
                          "model_unroll_len and model_return_n look at")
    net = _network(o, envs.single_observation_space, envs.single_action_space, frame_stack)
    with torch.device("meta"):
        shapes = net()
    planning = {
        "K": o.rec_t, "test_K": o.test_rec_t if o.test_rec_t > 0 else None, "max_depth": o.max_depth, "discounting": o.discounting,
        "layout": o.layout, "tree_carry": o.tree_carry, "reset_mode": o.reset_mode, "stat_mask_type": o.stat_mask_type,
        "has_action_seq": o.has_action_seq, "enc_type": o.model_enc_type, "enc_f_type": o.model_enc_f_type, "return_double": o.return_double,
        "reward_clip": o.reward_clip if o.reward_clip > 0 else None, "h_shape": shapes.hs_shape if o.return_h else None,
        "x_shape": shapes.x_shape if o.return_x else None,
    }  # fmt: skip
    made = [envs]
    task, seed = _task(o, net, device if maker is None else torch.device(maker.model.device)), o.base_seed
    if maker is not None:
        task, seed = maker.share(task, o, envs), seeds(o.base_seed, maker.rank)[0]
    try:
        robot = Robot(
            lambda: made.pop() if made else again(), tasks={"model": task}, seed=seed,
            agent=partial(_Caller, n, perfect=o.wrapper_type == 2, planning=planning), driver="threads" if o.parallel else "cooperative",
            mode="async" if o.parallel else "sync")  # fmt: skip
    except TypeError as error:
        if o.wrapper_type != 2:
            raise
        raise ConfigError(f"thinker.make: wrapper_type=2: {str(error).removeprefix('perfect model: ')}") from error
    if (o.ckp or o.preload) and (maker is None or maker.rank == 0):
        folder = Path(o.savedir, o.xpid) if o.ckp else Path(o.preload)
        left_out = robot.load(folder / "checkpoint", partial=not (o.ckp and o.train_model))
        if left_out:
            raise ConfigError(f"thinker.make: {'ckp' if o.ckp else 'preload'}: the weights in {folder} are those of another network; "
                              f"{', '.join(left_out[:3])} differ")
        robot.agents[0].cut()  # the episodes that were open then do not go on
    if o.parallel:
        for _ in robot.iterate(robot.env_steps + 1):  # starts the task's threads; there is no agent to run
            pass
    return robot


class LearningEnv(VectorWrapper[Any, Any, Any, Any, Any]):
    """The augmented environments of `thinker.make` as a vector environment of gymnasium; what really happened is learned from inside of `step`.

    Observations, rewards and infos are those of `AugmentedEnv`, arrays. wrapper_type 1: stages of one step, and a tree with nothing in it.

    Args:
        source: The robot, or for wrapper_type 1 the environments.
        options: The options.
        folder: Where checkpoints go; None: nowhere.
        maker: Its place at a shared model.
    """

    def __init__(self, source: Robot | VectorEnv[Any, Any, Any], options: ThinkerOptions, folder: Path | None, maker: _Maker | None = None) -> None:
        self.options, self.folder, self._maker, self._ended = options, folder, maker, False
        self.robot = source if isinstance(source, Robot) else None
        self._saved_at, self._first = time.monotonic(), True
        if isinstance(source, Robot):
            agent: Any = source.agents[0]
            self._agent, self._helper = agent, agent.helpers["model"]
            super().__init__(agent.augmented)
        else:
            n_actions = int(source.single_action_space.n)  # type: ignore[attr-defined]
            clip = options.reward_clip if options.reward_clip > 0 else None
            super().__init__(AugmentedEnv(source, partial(_nothing, n_actions), K=1, max_depth=0, discounting=options.discounting, reward_clip=clip))
        if folder is not None:
            atexit.register(self.close)

    @property
    def learns(self) -> bool:
        return self.robot is not None and self.options.train_model

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Array], dict[str, Any]]:
        """Begins episodes and trees; without `seed` the first time with one from `base_seed`, later with none."""
        self._check_open()
        if self.robot is not None:
            self._obs, info = self._agent.env.reset(seed=seed, options=options)
        else:
            seed = self.options.base_seed if seed is None and self._first else seed
            self._obs, info = self.env.reset(seed=seed, options=options)
        self._first = False
        return self._obs, info

    def step(self, actions: Any, action_prob: Array | None = None) -> tuple[dict[str, Array], Array, Array, Array, dict[str, Any]]:
        """One augmented step, and what there is to learn then.

        Args:
            actions: [n, 2] integers, see `AugmentedEnv.step`.
            action_prob: [n, A] float, the distributions that the primary actions were drawn from; None: they count as certain.

        Raises:
            TaskFailed: learning failed, with parallel=True an earlier lesson. AgentFailed: an environment or the model raised.
        """
        self._check_open()
        if self._first:
            raise gym.error.ResetNeeded("thinker: step() before reset()")
        if self.robot is None:
            return self.env.step(actions)
        face, helper = self._agent.env, self._helper
        before, acts = self._obs, np.asarray(actions)
        if self.learns and self.options.require_prob and action_prob is None and (before["step_status"] >= 2).any():
            raise ValueError("thinker: require_prob is true, and this real step has no action_prob [n, A]; give it, or make with require_prob=False")
        self._obs, rew, terminated, truncated, info = face.step(acts)
        if self.learns:
            real = not info["imagined"].all()
            prob = np.eye(self._agent.augmented.n_actions, dtype=np.float32)[acts[:, 0]] if action_prob is None else action_prob
            helper.collecting = self.real_steps >= self.options.total_steps  # the learning rate is 0 from there on
            try:
                with np.errstate(divide="ignore"):
                    self._agent.remember_real(before, acts, rew, terminated, truncated, info, np.log(np.asarray(prob, np.float32)))
            finally:
                face.end_episodes()
            if real and self.folder is not None and time.monotonic() - self._saved_at > CHECKPOINT_S:
                self.save()
        else:
            face.end_episodes()
        return self._obs, rew, terminated, truncated, info

    @property
    def real_steps(self) -> int:
        """So far, with those of the other makers of a shared model, of which its last reply told."""
        if self.robot is None:
            return 0
        task = self.robot.tasks["model"]
        return self.robot.env_steps + (task.others if isinstance(task, SharedTask) else 0)

    def status(self) -> dict[str, Any]:
        """`processed_n` real steps so far, `warm_up_n` before the first lesson, whether learning is `running` or has come to its `finish`, and
        `replay_ratio`, steps learned from per real step after the warm-up. Of a shared model: of all its makers."""
        o, n, task = self.options, self.real_steps, None if self.robot is None else self.robot.tasks["model"]
        updates = 0 if task is None else task.algorithm.updates
        warm, finish = self._helper.warmup if self.learns else o.model_warm_up_n, n >= o.total_steps
        warm *= task.makers if isinstance(task, SharedTask) else 1
        ratio = updates * o.model_batch_size * o.model_unroll_len / max(n - warm + 1, 1)
        return {"processed_n": n, "warm_up_n": warm, "running": self.learns and n >= warm and not finish, "finish": finish, "replay_ratio": ratio}

    def save(self) -> Path:
        """Writes the checkpoint of the run; episodes go on. A lesson that is open is waited for.

        Raises:
            ValueError: there is no folder. OSError: the disk refuses; the checkpoint before is intact. TaskFailed: the open lesson failed.
        """
        if self.folder is None or self.robot is None:
            raise ValueError("thinker: there is no place for a checkpoint; make with xpid (and savedir), and a model that learns")
        self._helper.settle()
        write_archive(self.folder / "checkpoint", self.robot.state_dict())
        self._saved_at = time.monotonic()
        return self.folder / "checkpoint"

    def close(self, **kwargs: Any) -> None:
        """Saves, ends threads, closes the environments. May be called twice."""
        if self._ended:
            return
        self._ended = True
        atexit.unregister(self.close)
        try:
            if self.folder is not None:
                self.save()
        finally:
            if self.robot is not None:
                self.robot.close()
            self.env.close(**kwargs)
            if self._maker is not None:
                self._maker.leave()

    def _check_open(self) -> None:
        if self._ended:
            raise gym.error.ClosedEnvironmentError("thinker: the environment is closed; make another one (ckp=True goes on with a run)")


def _nothing(n_actions: int, rows: Mapping[str, Array]) -> dict[str, Array]:
    """A model that knows nothing, for stages of one step."""
    zeros = np.zeros(len(rows["op"]), np.float32)
    return {"r": zeros, "done": zeros, "v": zeros, "logits": np.zeros((len(zeros), n_actions), np.float32)}


class ThinkerEnv:
    """n environments with Thinker's own interface: torch tensors, and the four values of the classic `step`.

    State: `tree_reps` [n, D] float32, `real_states` [n, ...] as the environment's; with return_h `hs`, with return_x `xs`, float32. With
    wrapper_type 1 real_states only. Made by `make`; a context manager.

    Attributes:
        env_n: Environments, n. num_actions: A.
        vector: The same object for gymnasium, see `LearningEnv`; both may be used by turns. layout: Of tree_reps.
        action_space, observation_space: As the original has them.
        robot: Whose task `model` learns; None with wrapper_type 1.
        options, device: As they are.
    """

    def __init__(self, vector: LearningEnv, options: ThinkerOptions, device: torch.device) -> None:
        self.vector, self.options, self.device, self.robot = vector, options, device, vector.robot
        augmented: Any = vector.env
        self.env_n, self.num_actions = int(augmented.num_envs), int(augmented.n_actions)
        self.layout: Layout = augmented.tree.layout
        self._keys = [key for key in ("tree_reps", "real_states", "hs", "xs") if key in augmented.single_observation_space.spaces]
        if self.robot is None:
            self._keys = ["real_states"]
        choices = (gym.spaces.Tuple([gym.spaces.Discrete(k)] * self.env_n) for k in (self.num_actions, 2))
        self.action_space = gym.spaces.Tuple(tuple(choices))
        self.observation_space = gym.spaces.Dict({key: augmented.observation_space[key] for key in self._keys})

    def reset(self, seed: int | None = None) -> dict[str, torch.Tensor]:
        """Begins episodes and trees in all environments; see `LearningEnv.reset`."""
        return self._state(self.vector.reset(seed=seed)[0])

    def step(
        self, primary_action: Any, reset_action: Any = None, action_prob: Any = None,
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, dict[str, Any]]:
        """One augmented step.

        Args:
            primary_action: [n] integers 0 … A − 1, imagined or, in the last step of a stage, taken.
            reset_action: [n] 0 or 1: back to the root after an imaginary step. May be left out with wrapper_type 1, where it means nothing.
            action_prob: [n, A] what the primary actions were drawn from: the target of the model's policy. None: the actions themselves.

        Returns:
            State; reward [n] float32; done [n] bool, terminated or truncated; and info, [n] each: real_done, truncated_done, cost bool;
            step_status, max_rollout_depth, episode_step int64; baseline, im_reward, im_episode_return, episode_return float32;
            real_states_np, array; model_status, see `LearningEnv.status`; initial_per_state, {} (no model here has a memory).

        Raises:
            ValueError: an argument does not fit; nothing has happened then. Else as `LearningEnv.step`.
        """
        if reset_action is None and self.robot is not None:
            raise ValueError("thinker: step: reset_action is missing; expected [n] 0 or 1, zeros for no reset")
        primary = self._choices("primary_action", primary_action, self.num_actions)
        resets = self._choices("reset_action", np.zeros(self.env_n, np.int64) if reset_action is None else reset_action, 2)
        prob = None if action_prob is None else self._probabilities(action_prob)
        obs, rew, terminated, truncated, seen = self.vector.step(np.stack([primary, resets], 1), prob)
        state = self._state(obs)
        keys = ["real_done", "truncated_done", "cost", "step_status", "max_rollout_depth", "baseline", "episode_return", "episode_step"]
        keys += ["im_reward", "im_episode_return"] if self.options.im_enable else []
        info: dict[str, Any] = {key: self._tensor(seen[key]) for key in keys}
        info |= {"model_status": self.vector.status(), "real_states_np": np.array(obs["real_states"]), "initial_per_state": {}}
        return state, self._tensor(rew.astype(np.float32)), self._tensor(np.logical_or(terminated, truncated)), info

    def decode_tree_reps(self, tree_reps: Any) -> dict[str, Any]:
        """The entries of tree_reps [..., D] by name, see `Layout.decode`."""
        return self.layout.decode(tree_reps)

    def render(self) -> Any:
        return self.vector.render()

    def save(self) -> Path:
        """See `LearningEnv.save`."""
        return self.vector.save()

    def close(self) -> None:
        """See `LearningEnv.close`."""
        self.vector.close()

    def __enter__(self) -> ThinkerEnv:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _tensor(self, array: Array) -> torch.Tensor:
        return torch.tensor(array, device=self.device)  # copies: whatever is done to a state, the environment does not see it

    def _state(self, obs: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        return {key: self._tensor(obs[key]) for key in self._keys}

    def _choices(self, name: str, value: Any, n: int) -> Array:
        array = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
        fits = array.shape == (self.env_n,) and array.dtype.kind in "iub"
        if not fits or array.min() < 0 or array.max() >= n:
            got = f"{array.min()} … {array.max()}" if fits else f"shape {array.shape} {array.dtype}"
            raise ValueError(f"thinker: step: {name} has {got}; expected ({self.env_n},) integers, 0 … {n - 1}, one for each of env_n environments")
        return array.astype(np.int64)

    def _probabilities(self, value: Any) -> Array:
        array = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value, np.float64)
        shape = (self.env_n, self.num_actions)
        if array.shape != shape or not (array >= 0).all() or not np.allclose(array.sum(1), 1.0, atol=1e-3):
            got = f"shape {array.shape}"
            if array.shape == shape:
                got = f"rows that sum to {array.sum(1).min():g} … {array.sum(1).max():g}, the least number {array.min():g}"
            raise ValueError(f"thinker: step: action_prob has {got}; expected {shape}, rows of probabilities that sum to 1")
        return array
