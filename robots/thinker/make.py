"""`thinker.make`: n environments with a search tree and a world model, behind the interface of Thinker's own package (arXiv
2307.14993).

    from parl_like.envs import thinker

    env = thinker.make("Sokoban-v0", env_n=16)
    state = env.reset()             # state["tree_reps"] [16, 79], state["real_states"] [16, 3, 80, 80]
    state, reward, done, info = env.step(primary_action, reset_action)      # the policy is yours; the model learns inside of step

Behind it is a robot with the one task `model`; its agent does not run, for the caller's loop acts in its place. The model learns
inside of step (mode 1), beside it in a thread or a Ray actor (mode 2: `parallel=True`), or is shared with others (mode 3:
`ray_obj=thinker.ray_init(…)`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from gymnasium.vector import VectorEnv

from parl_like.data.storage.archive import read_manifest
from parl_like.data.storage.safe_files import clean_partial, replace_file
from parl_like.envs.thinker.augmented import check_envs
from parl_like.lab.config import resolve
from parl_like.lab.foreign import Foreign
from parl_like.lab.sizes import STATE_FACTOR, STATE_ROOM, bounded, check
from parl_like.lab.text import printer
from parl_like.lab.yaml_text import ConfigError, dump_yaml
from parl_like.robots.thinker.agent import ThinkerAgent
from parl_like.robots.thinker.build import REFUSALS, frames_of, log, note_on_frames, same_step_envs, world_model
from parl_like.robots.thinker.config import CLUSTER, ThinkerOptions, layer, published
from parl_like.robots.thinker.env import LearningEnv, ThinkerEnv
from parl_like.robots.thinker.ray import Client, SharedModel, ray_init, seeds
from parl_like.run.robot import Robot

__all__ = ["LearningEnv", "ThinkerEnv", "ThinkerOptions", "make", "ray_init"]
FREE = {
    "ckp", "savedir", "xpid", "parallel", "train_model", "total_steps", "model_learning_rate", "test_rec_t", "return_h",
    "return_x", "return_double", "profile", "buffer_traj_len", "cur_enable", "cur_reward_cost",
    "cur_v_cost", "cur_enc_cost", "cur_done_gate", *CLUSTER,
}  # fmt: skip
"""Options that may change where a run goes on: nothing in a checkpoint depends on them."""
PLACES = {"savedir", "xpid", "ckp", "preload", *CLUSTER}
"""Options that are about files and machines: a run's own are not taken from its directory, for whoever made that may have chosen
them."""


def make(
    name: str | None = None, env_fn: Callable[[], Any] | None = None, ray_obj: SharedModel | None = None,
    env_n: int | None = None, gpu: bool | None = None, config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    **options: Any,
) -> ThinkerEnv:
    """n environments seen through a search tree. See `ThinkerEnv` for what they do, `ThinkerOptions` for the options.

    A model that learns leaves files in savedir/xpid: `config_c.yaml`, all options; `logs_model.csv`, a row about its learning
    every 5 s; and `checkpoint`: networks, optimiser, replay, counters, generators; no code, and nothing of the machine. It is
    saved every 10 minutes, when the environment is closed, and when the interpreter ends. savedir/latest is a link to the newest
    run, and the name of a run that was given none is printed. `ckp=True` goes on with a run: options that are not given are then
    the run's, and episodes and trees begin anew. `ckp=True, train_model=False` takes its networks only.

    Args:
        name: gymnasium id, such as "Sokoban-v0". Atari games ("BreakoutNoFrameskip-v4", "ALE/Seaquest-v5") have the published
            preparation, see `parl_like.envs.atari.Atari`.
        env_fn: Makes one environment, in place of `name`: observations Box (C, H, W) or (N,) with finite limits, Discrete
            actions, `step` of five or of four values. Its `frame_stack_n`, if any, says how many frames are stacked along C, of
            which the model imagines the newest. For wrapper_type 2 it must clone its state
            (`parl_like.envs.wrappers.clone_state`).
        ray_obj: What `ray_init` gave, for a model that several clients share: it computes where `ray_init` said, and has the
            options that `ray_init` took. None: a model of its own.
        env_n: Environments; None: 1, or those of the run that goes on.
        gpu: Whether the model computes, and tensors are returned, on CUDA; None: if there is any.
        config: YAML file of options, or a mapping.
        options: Options by name, before those of `config`.

    Raises:
        ConfigError: an option is unknown (the nearest name is said), out of its range, or not that of the checkpoint; an
            environment does not fit; it is not that of the shared model.
    """
    words = {key: value for key, value in (("name", name), ("env_n", env_n)) if value is not None}
    given = {**({} if ray_obj is None else ray_obj.options), **published(_plain(layer(config))), **published(options), **words}
    saved = _saved(Path(given.get("savedir", "logs"), given["xpid"])) if given.get("ckp") and given.get("xpid") else {}
    kept = {key: value for key, value in _plain(saved).items() if key not in PLACES}
    o = resolve(ThinkerOptions, kept, given)
    for key in given:
        if key in kept and key not in FREE and (value := getattr(o, key)) != kept[key]:
            raise ConfigError(_differs(o, key, kept[key], value))
    if o.wrapper_type == 1 and any(given.get(key) for key in ("has_model", "train_model")):
        raise ConfigError("thinker.make: wrapper_type 1 has no tree, and no model is learned beside it; leave has_model and "
                          "train_model out")
    if gpu and not torch.cuda.is_available():
        raise ConfigError("thinker.make: gpu is True, but torch sees no CUDA device; use gpu=False, or leave it out")
    if ray_obj is not None and o.wrapper_type == 1:
        raise ConfigError("thinker.make: wrapper_type 1 has no model to share; leave ray_obj out")
    device = torch.device("cuda" if gpu or (gpu is None and torch.cuda.is_available()) else "cpu")
    with ExitStack() as undo:
        own = None  # mode 2 in a Ray actor is mode 3 with one client
        if ray_obj is None and o.parallel and o.wrapper_type != 1 and given.keys() & {*CLUSTER}:
            try:
                own = undo.enter_context(ray_init(**{key: getattr(o, key) for key in CLUSTER}))
            except ImportError as error:
                log.warning("thinker.make: the model learns in a thread, and %s mean nothing: %s", ", ".join(CLUSTER), error)
        client = None if (shared := ray_obj or own) is None else Client(shared, o, own)
        if client is not None:
            undo.callback(client.leave)
        writes = o.learns and bool(o.savedir) and (client is None or client.rank == 0)
        if writes and o.xpid and not o.ckp and _holds_run(Path(o.savedir, o.xpid)):
            raise ConfigError(f"thinker.make: there is a run in {Path(o.savedir, o.xpid)}; ckp=True goes on with it, another "
                              "xpid begins a new one")
        again = partial(_environments, o, env_fn)
        check(o)
        rule, most = None, None  # by which a run's own options are taken, which may be somebody else's
        if saved:
            rule = Foreign(Path(o.savedir, o.xpid, "config_c.yaml"), kept, [given], False)
            size = sum(read_manifest(Path(o.savedir, o.xpid, "checkpoint")).sizes().values())
            most = STATE_FACTOR * size + STATE_ROOM
        with rule.in_force() if rule else nullcontext(), bounded(o):
            envs = again()
        undo.callback(envs.close)
        spaces = f"{envs.single_observation_space}, {envs.single_action_space}"
        if saved and saved.get("spaces") != spaces:
            raise ConfigError(_differs(o, "name" if env_fn is None else "env_fn", saved.get("spaces"), spaces))
        with rule.in_force() if rule else nullcontext(), bounded(o, most):
            source = envs if o.wrapper_type == 1 else _robot(o, envs, again, device, client)
        folder = _folder(o) if writes else None
        if folder is not None:
            o = msgspec.structs.replace(o, xpid=folder.name)
            clean_partial(folder)
            replace_file(folder / "config_c.yaml", dump_yaml({"spaces": spaces, **o.given()}).encode())
        vector = LearningEnv(source, o, folder, client)
        undo.pop_all()
    return ThinkerEnv(vector, o, device)


def _folder(o: ThinkerOptions) -> Path:
    """The run's folder, made if need be. A run without a name gets one by the clock, which is printed."""
    folder, names = Path(o.savedir, o.xpid), time.strftime("thinker-%Y%m%d-%H%M%S")
    for k in count():
        try:
            if not o.xpid:
                folder = Path(o.savedir, f"{names}-{k}" if k else names)
            folder.mkdir(parents=True, exist_ok=bool(o.xpid))
            break
        except FileExistsError:  # another one's, of the same second
            continue
    if not o.xpid:
        print(f"thinker.make: xpid={folder.name!r}, files in {folder}", file=printer(sys.stdout))
    with suppress(OSError):  # not every file system has links
        link = folder.with_name(f".latest.{folder.name}")
        link.symlink_to(folder.name)
        link.replace(folder.with_name("latest"))
    return folder


def _plain(layer: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a `config_c.yaml` without what was only noted."""
    return {key: value for key, value in layer.items() if key != "spaces" and not (key == "env_n" and value is None)}


def _holds_run(folder: Path) -> bool:
    """Return whether there is a checkpoint, be it one that was just being replaced when the process was killed."""
    return (folder / "checkpoint").exists() or any(folder.glob(".replaced.checkpoint.*"))


def _saved(folder: Path) -> dict[str, Any]:
    if not (folder / "config_c.yaml").exists() or not _holds_run(folder):
        raise ConfigError(f"thinker.make: ckp=True, but there is no checkpoint in {folder}; give savedir and xpid of the run, or "
                          f"leave ckp out")
    return layer(folder / "config_c.yaml")


def _differs(o: ThinkerOptions, key: str, there: Any, here: Any) -> str:
    return (f"thinker.make: the checkpoint in {Path(o.savedir, o.xpid)} was made with {key} {there!r}, not {here!r}; leave {key} "
            "as it was, or begin a new run with another xpid and ckp=False")


def _environments(o: ThinkerOptions, env_fn: Callable[[], Any] | None) -> VectorEnv[Any, Any, Any]:
    which = "name" if env_fn is None else "env_fn"
    if env_fn is None and not o.name:
        raise ConfigError("thinker.make: there is no environment; give name (a gymnasium id) or env_fn (a function that makes "
                          "one)")
    if o.sokoban_pomdp and not (env_fn is None and o.name.startswith("Sokoban-")):
        raise ConfigError(f"thinker.make: sokoban_pomdp is for the names Sokoban-…; leave it out for {which}")
    options = {key: value for key, value in (("pomdp", o.sokoban_pomdp), ("game", o.game)) if value}
    try:
        envs = same_step_envs(o.name if env_fn is None else env_fn, o.env_n, **options)
    except REFUSALS as error:
        raise ConfigError(f"thinker.make: {which}: {str(error).splitlines()[0]}") from error
    try:
        check_envs(envs)
        box: Any = envs.single_observation_space
        if o.wrapper_type != 1 and not (np.abs([box.low, box.high]) < 1e30).all():
            raise ValueError(f"the observation space is {box}; the model needs finite limits, by which it normalises; wrap the "
                             "environment (gymnasium.wrappers.RescaleObservation, TransformObservation)")
    except (TypeError, ValueError) as error:
        envs.close()
        raise ConfigError(f"thinker.make: {which}: {str(error).removeprefix('AugmentedEnv: ')}") from None
    return envs


class _Caller(ThinkerAgent):
    """The agent of a loop that is not its own."""

    def run(self) -> None:
        """Leaves the stage to the caller of `thinker.make`, who acts with this agent's environment and helpers."""


def _robot(
    o: ThinkerOptions, envs: VectorEnv[Any, Any, Any], again: Callable[[], Any], device: torch.device, client: Client | None,
) -> Robot:
    n, rows, perfect = o.env_n, o.model_unroll_len + o.model_return_n + 3, o.wrapper_type == 2
    if o.train_model and o.model_buffer_n // n < rows:
        raise ConfigError(f"thinker.make: model_buffer_n is {o.model_buffer_n}; expected at least {rows * n}: {n} environments, "
                          "and what model_unroll_len and model_return_n look at")
    try:
        frames = frames_of(envs, o.frame_stack_n)
    except ValueError as error:
        raise ConfigError(f"thinker.make: {error}") from None
    if note := note_on_frames(frames):
        print(note)
    # An update that fails in its thread is told by the next step that teaches, so nothing is stopped for it.
    task, planning = world_model(
        o, envs.single_observation_space, envs.single_action_space, perfect=perfect, return_h=o.return_h, return_x=o.return_x,
        frame_stack=frames, learns=o.train_model, on_error="fail_batch", piece=o.buffer_traj_len * n,
        curious=o.cur_enable,
        device=device if client is None else torch.device(client.model.device))
    planning["test_K"] = o.test_rec_t if o.test_rec_t > 0 else None
    seed, made = o.base_seed, [envs]
    if client is not None:
        task, seed = client.share(task, o, envs), seeds(o.base_seed, client.rank)[0]
    try:
        robot = Robot(
            lambda: made.pop() if made else again(), tasks={"model": task}, seed=seed,
            agent=partial(_Caller, n, perfect=perfect, planning=planning), driver="threads" if o.parallel else "cooperative",
            mode="async" if o.parallel else "sync")  # fmt: skip
    except TypeError as error:
        if not perfect:
            raise
        raise ConfigError(f"thinker.make: wrapper_type=2: {str(error).removeprefix('perfect model: ')}") from error
    if (o.ckp or o.preload) and (client is None or client.rank == 0):
        folder = Path(o.savedir, o.xpid) if o.ckp else Path(o.preload)
        left_out = robot.load(folder / "checkpoint", partial=not (o.ckp and o.train_model))
        if left_out:
            raise ConfigError(f"thinker.make: {'ckp' if o.ckp else 'preload'}: the weights in {folder} are those of another "
                              f"network; {', '.join(left_out[:3])} differ")
        robot.agents[0].cut()  # the episodes that were open then do not go on
    if o.parallel:
        for _ in robot.iterate(robot.env_steps + 1):  # starts the task's threads; there is no agent to run
            pass
    return robot
