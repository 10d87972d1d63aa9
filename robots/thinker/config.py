"""The settings of Thinker: `Config` is the robot's, `ThinkerOptions` that of `thinker.make`, and both share `PlanningConfig`.
Names are those of the published options, where there is one; `published` translates those of version 1.1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from parl_like.lab.config import ExperimentConfig, to_dict
from parl_like.lab.yaml_text import ConfigError, load_yaml_file, show
from parl_like.robots.spaces import Count, Positive, Rate, Share, Weight
from parl_like.values.errors import unknown

Stride = Annotated[int, Meta(ge=1, le=2)]

ENCODINGS = {0: "scalar", 2: "two_hot", 3: "two_hot_biased"}


class PlanningConfig(ExperimentConfig, frozen=True, kw_only=True):
    """The tree and the world model."""

    layout: Literal["G1", "G2"] = "G1"  # of the tree's features, as in version 1.1 (79 entries for Sokoban) or 1.2 (111)
    rec_t: Positive = 20  # K, steps from one real action to the next
    max_depth: int = 5  # imaginary steps after which a reset is forced; 0: never
    tree_carry: bool = True  # keep the chosen subtree
    reset_mode: Annotated[int, Meta(ge=0, le=1)] = 0  # this and the next two: see `Tree`
    has_action_seq: bool = True
    stat_mask_type: Annotated[int, Meta(ge=0, le=5)] = 0
    return_double: bool = False  # see `AugmentedEnv`
    discounting: Annotated[float, Meta(gt=0, le=1)] = 0.97  # γ
    reward_clip: float = -1.0  # rewards are kept within ± this; 0 or below: as they are
    dual_net: bool = True  # imagine with one network and judge with another; false: one for both, which makes no images
    float16: bool = False  # plan and learn the model in 16 bits
    model_size_nn: Positive = 1  # blocks of the world model
    model_downscale_c: Annotated[int, Meta(ge=1, le=64)] = 2  # 128 // this are its channels
    model_downscale_c_vp: Annotated[int, Meta(ge=0, le=64)] = 0  # those of the network that judges; 0: the same
    model_decoder_depth: Annotated[int, Meta(ge=0, le=4)] = 0  # stages of the decoder that are left out
    model_enc_type: int = 0  # how values are encoded: 0 numbers, 2 or 3 two-hot
    model_enc_f_type: Annotated[int, Meta(ge=0, le=1)] = 0  # 0 √, 1 logarithm
    model_disable_bn: bool = True  # no batch normalisation in the recurrent blocks
    model_zero_init: bool = True  # first predictions are 0 and uniform
    model_batch_size: Positive = 128  # sequences per update
    model_learning_rate: Rate = 1e-4
    model_grad_norm_clipping: float = 0.0  # 0 or below: none
    max_replay_ratio: Rate = 5.0  # learned steps per real step
    priority_alpha: Rate = 0.6  # of prioritised replay, as is the next
    priority_beta: Share = 0.4
    model_unroll_len: Positive = 5  # steps of a sequence
    model_return_n: Positive = 5  # steps of a return
    model_warm_up_n: Count = 10_000  # rows before learning
    model_buffer_n: Positive = 200_000  # rows kept
    model_policy_loss_cost: Weight = 0.5  # weights of losses: of the policy
    model_vs_loss_cost: Weight = 0.25  # of values
    model_rs_loss_cost: Weight = 1.0  # of rewards
    model_done_loss_cost: Weight = 1.0  # of ends; 0: they are not predicted
    model_img_loss_cost: Weight = 0.0  # of images
    model_fea_loss_cost: Weight = 10.0  # of features of images
    model_reg_loss_cost: Weight = 0.0  # of squared features
    cur_reward_cost: Weight = 0.0  # weights of curiosity (see `AugmentedEnv`): about rewards
    cur_v_cost: Weight = 0.0  # about values
    cur_enc_cost: Weight = 0.0  # about features of observations
    cur_done_gate: bool = False  # none where an episode ends, or was to end

    @property
    def clip(self) -> float | None:
        """`reward_clip` where there is one."""
        return self.reward_clip if self.reward_clip > 0 else None

    def channels(self) -> tuple[int, int]:
        """Return the channels of the network that imagines, and of the one that judges."""
        return 128 // self.model_downscale_c, 128 // (self.model_downscale_c_vp or self.model_downscale_c)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(
            (self.model_enc_type not in ENCODINGS,
             f"model_enc_type is {self.model_enc_type}; expected 0 (numbers), 2 or 3 (two-hot)"),
            (any(n % 2 for n in self.channels()),
             "128 // model_downscale_c and 128 // model_downscale_c_vp are numbers of channels; expected even ones"),
            (self.clip is not None and self.discounting == 1,
             "reward_clip bounds values by reward_clip / (1 - discounting); with discounting=1 set reward_clip=0"),
            (self.cur_enc_cost > 0 and not self.dual_net,
             "cur_enc_cost is about features of what is imagined; it needs dual_net=true"),
        )


def refuse(*rules: tuple[bool, str]) -> None:
    """Raises the ValueError of the first rule that is broken."""
    for broken, message in rules:
        if broken:
            raise ValueError(message)


class Config(PlanningConfig, frozen=True, kw_only=True):
    """The configuration of the robot. Steps are real steps; each of `n_agents` agents drives `env_n` environments."""

    env: str = "Sokoban-v0"  # gymnasium id
    env_options: dict[str, Any] = {}  # for its constructor
    eval_options: dict[str, Any] = {}  # what differs where the robot is evaluated
    eval_explore: bool = True  # it is evaluated with drawn actions, not the best ones
    env_n: Positive = 16
    hooks: tuple[str, ...] = ()  # classes of `parl_like.environment.hooks`, or your own, that need no arguments
    # agents that wait for updates act in step with them; auto: they do not where they are in workers, which is faster there
    mode: Literal["auto", "sync", "async"] = "auto"
    # where workers ask: networks of their own, with hidden states of their own, or those of the robot's process
    serve: Literal["replica", "central"] = "replica"
    # with a world model; with the environments themselves (they must clone their state); the same actor-critic without a tree
    planning: Literal["learned", "perfect", "none"] = "learned"  # (wrapper_type 0, 2, 1)
    see_h: bool = True  # what the planner sees beside the tree: hidden states, imagined observations, real ones
    see_x: bool = False
    see_real_state: bool = False
    tree_rep_rnn: bool = False  # the tree goes through an LSTM with attention; false: an MLP
    widths: tuple[Positive, ...] = (64, 64, 32)  # channels of the planner's image encoders
    actor_unroll_len: Positive = 201  # augmented steps of each environment between two updates of the planner
    actor_batch_size: Positive = 16  # environments of one update: those of as many whole agents as fit
    actor_learning_rate: Rate = 6e-4
    lr_decay: Share = 1.0  # share of it that is gone by the end of the run
    actor_grad_norm_clipping: Rate = 1200.0
    actor_adam_eps: Rate = 1e-8
    im_cost: Weight = 1.0  # of the planning reward, falling to 0 by the end of the run
    cur_cost: Weight = 0.0  # of curiosity, whose own weights are cur_reward_cost, cur_v_cost and cur_enc_cost
    cur_cost_anneal: bool = True  # it falls to 0 by the end of the run
    entropy_cost: Weight = 1e-3  # of real actions
    im_entropy_cost: Weight = 1e-4  # of imaginary actions
    baseline_cost: Weight = 0.5  # of values
    reg_cost: Weight = 1e-3  # of large features and logits
    return_norm: Literal["targets", "advantages", "batch", "none"] = "none"  # see `IMPALA`
    # frames in an observation, of which the model predicts the newest; where the environment says it itself, that counts
    frame_stack_n: Positive = 1
    model_strides: tuple[Stride, Stride, Stride, Stride] = (2, 2, 2, 2)  # of its encoder; these are the published ones
    latent: bool = False  # imagine without decoding images
    model_sigmoid: bool = False  # for planes of 0 and 1, with model_img_loss_cost above 0; this and the next: see `ThinkerNet`
    model_residual: bool = False  # only what changes is learned
    model_markov: bool = False  # each imagined image is a new start

    def updates(self) -> tuple[int, int]:
        """Environments in one update of the planner, and its updates in the whole run."""
        agents = min(self.actor_batch_size // self.env_n, self.n_agents)
        steps = self.n_agents * self.env_n * self.actor_unroll_len / (1 if self.planning == "none" else self.rec_t)
        return agents * self.env_n, max(int(self.total_steps / steps * -(-self.n_agents // agents)), 1)

    def without_effect(self) -> set[str]:
        """Return the settings that nothing reads in a robot that plans as this one does."""
        decoding = {"model_sigmoid", "model_residual", "model_markov"}
        if self.planning == "none":
            every = {*PlanningConfig.__struct_fields__} - {*ExperimentConfig.__struct_fields__, "discounting", "reward_clip"}
            return every | decoding | {"model_strides", "latent", "tree_rep_rnn", "im_cost", "im_entropy_cost",
                                       "cur_cost_anneal"}
        found = set[str]() if self.cur_cost else {"cur_reward_cost", "cur_v_cost", "cur_enc_cost", "cur_done_gate",
                                                  "cur_cost_anneal"}
        if self.planning == "perfect":
            return found | decoding | {"model_decoder_depth", "model_img_loss_cost"}
        return found if self.dual_net else found | {"model_decoder_depth"}

    def notes(self) -> list[str]:
        """Return a line for each setting that is not as by default, and has no effect."""
        standard = {field.name: field.default for field in msgspec.structs.fields(type(self))}
        given = {name: getattr(self, name) for name in sorted(self.without_effect())}
        return [f"{name}={show(value)} has no effect in this robot, whose planning is {self.planning!r}"
                for name, value in given.items() if value != standard[name]]

    def robot_mode(self) -> Literal["sync", "async"]:
        if self.mode == "auto":
            return "async" if self.driver in ("processes", "ray") else "sync"
        return self.mode

    def robot_driver(self) -> Any:
        """See `ExperimentConfig`. Where updates are given all the time they have a core, and the workers the others."""
        driver = super().robot_driver()
        if isinstance(driver, str) or driver.workers or self.robot_mode() == "sync":
            return driver
        return replace(driver, workers=max((os.cpu_count() or 1) - 1, 1))

    def __post_init__(self) -> None:
        super().__post_init__()
        none = self.planning == "none"
        refuse((none and not self.see_real_state, "planning 'none' leaves the actor nothing to see; set see_real_state=true"),
               (self.cur_cost > 0 and self.planning != "learned",
                "cur_cost is about what a learned model did not expect; it needs planning=learned"),
               (self.cur_cost > 0 and not self.cur_reward_cost + self.cur_v_cost + self.cur_enc_cost,
                "cur_cost is the weight of a reward that is 0; set cur_reward_cost, cur_v_cost or cur_enc_cost"),
               (none and self.see_x, "planning 'none' imagines nothing; set see_x=false"),
               (self.env_n > self.actor_batch_size,
                f"actor_batch_size ({self.actor_batch_size}) is below env_n ({self.env_n}), and the unrolls of one agent stay "
                "together; raise it, or have more agents (n_agents) with fewer environments each"))
        if none:
            return
        depth, starts = self.model_decoder_depth, self.model_residual or self.model_markov
        images = self.dual_net and not depth
        rows, lanes = min(self.model_buffer_n, self.total_steps), self.n_agents * self.env_n
        sequence = self.model_unroll_len + self.model_return_n + 2
        refuse(
            (self.latent and self.see_x,
             "see_x shows imagined observations, and latent planning makes none; set one of them to false"),
            (self.planning == "perfect" and (self.latent or depth > 0),
             "planning 'perfect' asks the environments, so no image is decoded; leave latent and model_decoder_depth out"),
            (bool(depth) and self.see_x,
             f"model_decoder_depth {depth} imagines features, no observations; set see_x=false or model_decoder_depth=0"),
            (not self.dual_net and self.planning == "learned" and (self.see_x or self.latent or bool(self.model_img_loss_cost)),
             "see_x, latent and model_img_loss_cost are about decoded images, which dual_net=false does not make; leave them "
             "out"),
            (self.planning == "learned" and ((not images and (starts or self.model_sigmoid)) or (self.latent and starts)),
             "model_sigmoid, model_residual and model_markov are about decoded images; set model_decoder_depth=0 and "
             "dual_net=true, and with the latter two latent=false"),
            (depth == 4 and self.latent,
             "model_decoder_depth 4 decodes nothing, so there is nothing for latent planning to leave out; set latent=false"),
            (max(self.model_warm_up_n, self.model_batch_size) > rows,
             f"model_warm_up_n ({self.model_warm_up_n}) or model_batch_size ({self.model_batch_size}) is above {rows}, the "
             "smaller of model_buffer_n and total_steps; the model would never learn"),
            (sequence * lanes > rows,
             f"the model learns from {sequence} steps in a row (model_unroll_len + model_return_n + 2), and of the {rows} rows, "
             f"the smaller of "
             f"model_buffer_n and total_steps, each of {lanes} environments has {rows // lanes}; raise them, or lower env_n"),
        )


class ThinkerOptions(PlanningConfig, frozen=True, kw_only=True):
    """The options of `thinker.make`; where the two published versions differ in a default, that of 1.2, except for `layout`.

    Learned steps per real step are exactly `max_replay_ratio`: learning is part of the rhythm of real steps, so it cannot fall
    behind `min_replay_ratio`, which is only checked. Faults of the original are not repeated (see `Tree`, `model_targets`).
    """

    name: str = ""  # gymnasium id; empty: the environments are those of env_fn
    game: str = ""  # of Atari-v0
    frame_stack_n: Positive = 1  # frames in an observation; where the environment says it itself, that counts
    env_n: Positive = 1
    wrapper_type: int = 0  # 0: learned model; 1: the real environment, no tree; 2: transitions from the environment itself
    has_model: bool = True
    train_model: bool = True
    parallel: bool = False  # learn in a thread beside the steps; with one of the four below in a Ray actor, if there is Ray
    gpu_learn: Weight = 0.5  # share of a GPU for that actor
    ray_mem: float = -1.0  # gigabytes of an instance of Ray that is begun; this and the next two below 0: as `ray_init` chooses
    ray_gpu: int = -1
    ray_cpu: int = -1
    require_prob: bool = False  # the model's policy target is a distribution, so `step` needs action_prob
    total_steps: Positive = 50_000_000  # real steps after which learning ends; the learning rate falls to 0 until then
    base_seed: Count = 1
    test_rec_t: int = -1  # stage length in place of rec_t; below 1: rec_t
    im_enable: bool = True  # whether info holds im_reward and im_episode_return
    cur_enable: bool = False  # whether it holds cur_reward and cur_episode_return, see `AugmentedEnv`
    return_h: bool = True
    return_x: bool = False
    sokoban_pomdp: bool = False
    min_replay_ratio: Weight = 4.0
    buffer_traj_len: Positive = 1  # steps of each environment that come into use together; updates come in as large pieces
    profile: bool = False  # print where the time of the steps went, when the environment is closed
    xpid: str = ""  # name of the run; empty: thinker-DATE-TIME, which is printed
    savedir: str = "logs"  # the run's files are in savedir/xpid; empty: there are none
    ckp: bool = False
    preload: str = ""  # folder of a run, whose weights this one begins with

    @property
    def learns(self) -> bool:
        return self.has_model and self.train_model and self.wrapper_type != 1

    def __post_init__(self) -> None:
        super().__post_init__()
        images = self.wrapper_type != 0 or (self.dual_net and self.model_decoder_depth == 0)
        steps, ratio = self.model_batch_size * self.model_unroll_len, self.max_replay_ratio
        refuse(
            (self.wrapper_type not in (0, 1, 2),
             f"wrapper_type is {self.wrapper_type}; expected 0 (learned model), 1 (no tree) or 2 (the environment as model); 3 "
             "and 4 were announced and never published"),
            (not self.has_model and self.wrapper_type != 1,
             f"has_model is false, but wrapper_type {self.wrapper_type} plans with a model; use wrapper_type=1"),
            (self.return_x and not images, "return_x shows imagined images; it needs dual_net=true and model_decoder_depth=0"),
            (bool(self.model_img_loss_cost) and not images,
             "model_img_loss_cost is for decoded images; it needs dual_net=true and model_decoder_depth=0"),
            (self.learns and self.min_replay_ratio > ratio,
             f"min_replay_ratio {self.min_replay_ratio} is above max_replay_ratio {ratio}"),
            (self.learns and ratio > steps,
             f"max_replay_ratio is {ratio}; expected at most model_batch_size · model_unroll_len ({steps})"),
            (self.learns and max(self.model_warm_up_n, self.model_batch_size) > self.model_buffer_n,
             f"model_buffer_n is {self.model_buffer_n}; expected at least model_warm_up_n ({self.model_warm_up_n}) and "
             f"model_batch_size ({self.model_batch_size})"),
            (self.ckp and not (self.xpid and self.savedir), "ckp=true goes on with a run; give its xpid (and savedir)"),
            (self.cur_enable and self.wrapper_type != 0,
             "cur_enable is about what a learned model did not expect; it needs wrapper_type=0"),
            (bool(self.game) and self.name != "Atari-v0",
             f"game is {self.game!r}; it is for the name 'Atari-v0', other names of games say it themselves"),
            (self.ckp and bool(self.preload), "ckp takes all of a run, preload the weights of another; give one of them"),
        )

    def given(self) -> dict[str, Any]:
        """Every option by its name."""
        return {key: value for key, value in to_dict(self).items() if key in OPTIONS}


OPTIONS = {*ThinkerOptions.__struct_fields__} - {*ExperimentConfig.__struct_fields__} | {"total_steps"}
"""The options that `thinker.make` takes: no word of the lab's about drivers, run directories and the like."""

RENAMED = {"model_logits_loss_cost": "model_policy_loss_cost", "ray_GPU": "ray_gpu", "ray_CPU": "ray_cpu"}
"""Other published names, of version 1.1 and of its README → those that are used here. For `model_img_type` see `published`."""

CLUSTER = ("gpu_learn", "ray_mem", "ray_gpu", "ray_cpu")
"""Options for Ray, which `ray_init` obeys."""

UNBUILT: dict[str, Any] = {
    "model_optimizer": "adam", "model_sgd_momentum": 0.9, "model_sgd_weight_decay": 1e-4, "model_mem_unroll_len": 0,
    "model_has_memory": False, "model_noise_loss_cost": 0, "noise_enable": False, "noise_n": 16, "noise_d": 10,
    "noise_alpha": 0.8, "noise_mlp": False, "fea_loss_inf_bn": False, "img_fea_cos": False, "model_ordinal": False,
    "vp_fix_bootstrap": False, "sample_n": -1, "sample_temp": 4, "sample_replace": True, "discrete_k": -1, "obs_norm": False,
    "obs_clip": -1, "reward_norm": False, "repeat_action_n": 0, "rand_action_eps": 0, "atari": False, "grayscale": False,
    "dm_rgb": False, "se_query_size": 20, "se_td_lambda": 0.9, "se_query_cur": 2, "se_buffer_n": 20, "se_tree_carry": True,
    "se_manual_stat": False, "project": "",
}  # fmt: skip
"""Options of version 1.2 that are not built, and their published values, with which they may be given: they mean what is done
here. docs/thinker.md says why, and the ways out."""


def layer(config: str | os.PathLike[str] | Mapping[str, Any] | None) -> dict[str, Any]:
    """Options of a YAML file, or of a mapping."""
    return {} if config is None else dict(config) if isinstance(config, Mapping) else load_yaml_file(Path(config))


def published(given: Mapping[str, Any]) -> dict[str, Any]:
    """One layer of options by the names of `ThinkerOptions`.

    Raises:
        ConfigError: an option is unknown, or not built and has another than its published value; all that are so are named.
    """
    known = {*OPTIONS, *RENAMED, "model_img_type"}
    changed = [f"{key}={value!r} (published: {UNBUILT[key]!r})" for key, value in given.items()
               if key in UNBUILT and value != UNBUILT[key]]
    if changed:
        raise ConfigError(f"thinker.make: not built: {', '.join(changed)}; leave out, or see docs/thinker.md for the reasons and "
                          "the ways out")
    out: dict[str, Any] = {}
    for key, value in given.items():
        if key in UNBUILT:
            continue
        if key not in known:
            words = {"env_fn", "gpu", "config", "ray_obj"}
            raise ConfigError(f"thinker.make: {key!r} is an argument of make, and no option" if key in words else
                              f"thinker.make: {unknown('option', key, known | words)}")
        if RENAMED.get(key) in given:
            raise ConfigError(f"thinker.make: {key!r} and {RENAMED[key]!r} are one option; give one of them")
        out[RENAMED.get(key, key)] = value
    if "model_img_type" in out:  # version 1.1: which of the two losses has the weight model_img_loss_cost
        kind = out.pop("model_img_type")
        if kind not in (0, 1) or "model_fea_loss_cost" in out:
            raise ConfigError(f"thinker.make: 'model_img_type' is {kind!r}; expected 0 (pixels) or 1 (features), and no "
                              f"'model_fea_loss_cost'")
        cost = out.pop("model_img_loss_cost", 10.0)
        out |= {"model_img_loss_cost": 0.0 if kind else cost, "model_fea_loss_cost": cost if kind else 0.0}
    return out
