"""The result of `thinker.make`: `LearningEnv`, the augmented environments as gymnasium knows vector environments, and around it
`ThinkerEnv`, the interface of Thinker's own package. The world model learns from inside of `step`.
"""

from __future__ import annotations

import atexit
import cProfile
import csv
import errno
import os
import pstats
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import VectorEnv, VectorWrapper

from parl_like.data.storage.archive import write_archive
from parl_like.data.storage.safe_files import open_file, read_file
from parl_like.envs.thinker.augmented import AugmentedEnv
from parl_like.envs.thinker.layout import Layout
from parl_like.robots.thinker.config import ThinkerOptions
from parl_like.robots.thinker.ray import Client
from parl_like.run.robot import Robot
from parl_like.values.spec import Array

LOG_BYTES = 1 << 28  # of `logs_model.csv`: a month
CHECKPOINT_S = 600.0
"""Seconds between two checkpoints of a run that keeps any; another is made when it is closed."""


class LearningEnv(VectorWrapper[Any, Any, Any, Any, Any]):
    """The augmented environments of `thinker.make` as a vector environment of gymnasium; what really happened is learned from
    inside of `step`.

    Observations, rewards and infos are those of `AugmentedEnv`, arrays; rewards are within ± `reward_clip`, where there is one.
    wrapper_type 1: stages of one step, and a tree with nothing in it.

    Args:
        source: The robot, or for wrapper_type 1 the environments.
        options: The options.
        folder: Where the run's files go; None: there are none.
        client: Its place at a shared model.
    """

    def __init__(self, source: Robot | VectorEnv[Any, Any, Any], options: ThinkerOptions, folder: Path | None,
                 client: Client | None = None) -> None:
        self.options, self.folder, self._client, self._saved_at = options, folder, client, time.monotonic()
        self.robot = source if isinstance(source, Robot) else None
        self._obs: Any = None  # what was shown last
        if isinstance(source, Robot):
            acting: Any = source.agents[0]
            self._agent, self._task = acting, source.tasks["model"]
            super().__init__(acting.augmented)
        else:
            n_actions = int(source.single_action_space.n)  # type: ignore[attr-defined]
            super().__init__(AugmentedEnv(source, partial(_nothing, n_actions), K=1, max_depth=0, discounting=options.discounting,
                                          reward_clip=options.clip))
        if folder is not None:
            self._log = ModelLog(folder / "logs_model.csv")
            atexit.register(self.close)
        self._profile = cProfile.Profile() if options.profile else None
        if self._profile is not None:
            self.step = partial(self._profile.runcall, self.step)  # type: ignore[method-assign, call-arg]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Array], dict[str, Any]]:
        """Begins episodes and trees; without `seed` the first time with one from `base_seed`, later with none."""
        self._check_open()
        env = self.env if self.robot is None else self._agent.env
        if self.robot is None and self._obs is None and seed is None:
            seed = self.options.base_seed
        self._obs, info = env.reset(seed=seed, options=options)
        return self._obs, info

    def step(
        self, actions: Any, action_prob: Array | None = None,
    ) -> tuple[dict[str, Array], Array, Array, Array, dict[str, Any]]:
        """One augmented step, and what there is to learn then.

        Args:
            actions: [n, 2] integers, see `AugmentedEnv.step`.
            action_prob: [n, A] float, the distributions that the primary actions were drawn from, which are the target of the
                model's policy with require_prob; without it the actions are, and this is not read.

        Raises:
            TaskFailed: learning failed, with parallel=True an earlier update. AgentFailed: an environment or the model raised.
            ResetNeeded: there was no reset.
            ValueError: require_prob is true, and a real step has no action_prob.
        """
        self._check_open()
        if self._obs is None:
            raise gym.error.ResetNeeded("thinker: step() before reset()")
        if self.robot is None:
            self._obs, rew, terminated, truncated, info = self.env.step(actions)
            return self._obs, self._clipped(rew), terminated, truncated, info
        face, before, acts, o = self._agent.env, self._obs, np.asarray(actions), self.options
        if o.learns and o.require_prob and action_prob is None and (before["step_status"] >= 2).any():
            raise ValueError("thinker: require_prob is true, and this real step has no action_prob [n, A]; give it, or make with "
                             "require_prob=False")
        self._obs, rew, terminated, truncated, info = face.step(acts)
        try:
            if o.learns:
                self._task.follow(self.robot.env_steps)  # also while nothing is learned yet, for who shares the model
                if not o.require_prob or action_prob is None:
                    action_prob = np.eye(self._agent.augmented.n_actions)[acts[:, 0]]
                self._agent.helpers["model"].collecting = self.real_steps >= o.total_steps  # its learning rate is 0 from there on
                with np.errstate(divide="ignore"):
                    self._agent.remember_real(before, acts, rew, terminated, truncated=truncated, info=info,
                                              logits=np.log(np.asarray(action_prob, np.float32)))
        finally:
            face.end_episodes()
        if self.folder is not None and not info["imagined"].all():
            self._log.write(self)
            if time.monotonic() - self._saved_at > CHECKPOINT_S:
                self.save()
        return self._obs, self._clipped(rew), terminated, truncated, info

    def _clipped(self, rew: Array) -> Array:
        clip = self.options.clip
        return rew if clip is None else rew.clip(-clip, clip)

    @property
    def real_steps(self) -> int:
        """So far, with those of the other clients of a shared model, of which its last reply told."""
        return 0 if self.robot is None else self.robot.env_steps + getattr(self._task, "others", 0)

    def status(self) -> dict[str, Any]:
        """`processed_n` real steps so far, `model_warm_up_n` before the first update (also as `warm_up_n`), whether learning is
        `running` or has come to its `finish`, and `replay_ratio`, steps learned from per real step after the warm-up. Of a shared
        model: of all its clients."""
        o, n, warm, updates = self.options, self.real_steps, self.options.model_warm_up_n, 0
        if self.robot is not None:
            warm = self._agent.helpers["model"].warmup if o.learns else warm
            warm, updates = warm * getattr(self._task, "clients", 1), self._task.algorithm.updates
        finish = n >= o.total_steps
        ratio = updates * o.model_batch_size * o.model_unroll_len / max(n - warm + 1, 1)
        return {"processed_n": n, "warm_up_n": warm, "model_warm_up_n": warm, "running": o.learns and n >= warm and not finish,
                "finish": finish, "replay_ratio": ratio}

    def save(self) -> Path:
        """Writes the checkpoint of the run; episodes go on. An update that is open is waited for.

        Raises:
            ValueError: there is no folder. OSError: the disk refuses; the checkpoint before is intact. TaskFailed: the open
                update failed.
        """
        if self.folder is None or self.robot is None:
            raise ValueError("thinker: there is no place for a checkpoint; make with xpid (and savedir), and a model that learns")
        self._agent.helpers["model"].settle()
        write_archive(self.folder / "checkpoint", self.robot.state_dict())
        self._saved_at = time.monotonic()
        if self.status()["finish"]:
            with suppress(OSError):  # a link, or a pipe: whoever put it there gets no mark
                os.close(open_file(self.folder / "finish", os.O_WRONLY | os.O_CREAT))
        return self.folder / "checkpoint"

    def close(self, **kwargs: Any) -> None:
        """Saves, ends threads, closes the environments; prints the profile, where there is one. May be called twice."""
        if self.env.closed:
            return
        atexit.unregister(self.close)
        try:
            if self._profile is not None:
                pstats.Stats(self._profile).sort_stats("cumulative").print_stats(30)
            if self.folder is not None:
                self._log.write(self, 0.0)
                self.save()
        finally:
            if self.robot is not None:
                self.robot.close()
            self.env.close(**kwargs)
            if self._client is not None:
                self._client.leave()

    def _check_open(self) -> None:
        if self.env.closed:
            raise gym.error.ClosedEnvironmentError("thinker: the environment is closed; make another one (ckp=True goes on with "
                                                   "a run)")


class ModelLog:
    """`logs_model.csv`: how the learning of the world model goes, a row every `EVERY_S` seconds.

    Columns: `_tick`, the row; `_time`, seconds since 1970; `step`, updates of the model; `real_step`; then the metrics of the
    last update as `model/…`.

    Raises:
        OSError: the file is there, and no table that a run wrote.
    """

    EVERY_S = 5.0

    def __init__(self, path: Path) -> None:
        self.path, self._at, self._columns = path, time.monotonic(), list[str]()
        if os.path.lexists(path):  # a run that goes on
            try:
                lines = read_file(path, limit=LOG_BYTES).decode().splitlines()
                self._columns, self._tick = next(csv.reader(lines[:1]), []), len(lines) - 1
            except (UnicodeDecodeError, csv.Error) as error:
                raise OSError(errno.EINVAL, f"it is no table that a run wrote ({error}); remove it", os.fspath(path)) from None

    def write(self, env: LearningEnv, every: float = EVERY_S) -> None:
        if time.monotonic() - self._at < every or not (status := env.status())["running"]:
            return
        assert env.robot is not None
        self._at = time.monotonic()
        row = {"_time": time.time(), "step": env.robot.tasks["model"].algorithm.updates, "real_step": status["processed_n"],
               **{key: value for key, value in env.robot.metrics().items() if key.startswith("model/")}}
        opened = open_file(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with open(opened, "a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if not self._columns:
                self._columns, self._tick = ["_tick", *row], 0
                writer.writerow(self._columns)
            writer.writerow([{**row, "_tick": self._tick}.get(name, "") for name in self._columns])
        self._tick += 1


def _nothing(n_actions: int, rows: Mapping[str, Array]) -> dict[str, Array]:
    """A model that knows nothing, for stages of one step."""
    zeros = np.zeros(len(rows["op"]), np.float32)
    return {"v": zeros, "logits": np.zeros((len(zeros), n_actions), np.float32)}


INFO = ("real_done", "truncated_done", "cost", "step_status", "max_rollout_depth", "baseline", "episode_return", "episode_step")
PLANNING_INFO = ("im_reward", "im_episode_return")
CURIOSITY_INFO = ("cur_reward", "cur_episode_return")


class ThinkerEnv:
    """n environments with Thinker's own interface: torch tensors, and the four values of the classic `step`.

    State: `tree_reps` [n, D] float32, `real_states` [n, ...] as the environment's; with return_h `hs`, with return_x `xs`,
    float32. With wrapper_type 1 real_states only. Made by `make`; a context manager.

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
        seen = {"tree_reps", "real_states", "hs", "xs"} if self.robot is not None else {"real_states"}
        self.observation_space = gym.spaces.Dict(
            {key: space for key, space in augmented.observation_space.items() if key in seen})
        choices = (gym.spaces.Tuple([gym.spaces.Discrete(k)] * self.env_n) for k in (self.num_actions, 2))
        self.action_space = gym.spaces.Tuple(tuple(choices))
        self._info = INFO + PLANNING_INFO * options.im_enable + CURIOSITY_INFO * options.cur_enable

    def reset(self, seed: int | None = None) -> dict[str, torch.Tensor]:
        """Begins episodes and trees in all environments; see `LearningEnv.reset`."""
        return self._state(self.vector.reset(seed=seed)[0])

    def step(
        self, primary_action: Any, reset_action: Any = None, action_prob: Any = None,
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, dict[str, Any]]:
        """One augmented step.

        Args:
            primary_action: [n] integers 0 … A − 1, imagined or, in the last step of a stage, taken.
            reset_action: [n] 0 or 1: back to the root after an imaginary step. May be left out with wrapper_type 1, where it
                means nothing.
            action_prob: [n, A] what the primary actions were drawn from: the target of the model's policy with require_prob,
                which needs it in a real step. Without require_prob the actions are the target, and this is not read.

        Returns:
            State; reward [n] float32, within ± reward_clip; done [n] bool, terminated or truncated; and info, [n] each:
            real_done, truncated_done, cost bool; step_status, max_rollout_depth, episode_step int64; float32 baseline, im_reward,
            im_episode_return, episode_return (of rewards as they were before they were clipped), with cur_enable cur_reward and
            cur_episode_return; real_states_np, array; model_status, see `LearningEnv.status`; initial_per_state, {} (no model
            here has a memory).

        Raises:
            ValueError: an argument does not fit; nothing has happened then. Else as `LearningEnv.step`.
        """
        if reset_action is None and self.robot is not None:
            raise ValueError("thinker: step: reset_action is missing; expected [n] 0 or 1, zeros for no reset")
        primary = self._choices("primary_action", primary_action, self.num_actions)
        resets = self._choices("reset_action", np.zeros(self.env_n, np.int64) if reset_action is None else reset_action, 2)
        prob = None if action_prob is None or not self.options.require_prob else self._probabilities(action_prob)
        obs, rew, terminated, truncated, seen = self.vector.step(np.stack([primary, resets], 1), prob)
        info = {key: self._tensor(seen[key]) for key in self._info}
        more = {"model_status": self.vector.status(), "real_states_np": np.array(obs["real_states"]), "initial_per_state": {}}
        done = self._tensor(np.logical_or(terminated, truncated))
        return self._state(obs), self._tensor(rew.astype(np.float32)), done, {**info, **more}

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
        return {key: self._tensor(obs[key]) for key in self.observation_space}

    def _choices(self, name: str, value: Any, n: int) -> Array:
        array = _numpy(value)
        fits = array.shape == (self.env_n,) and array.dtype.kind in "iub"
        if not fits or array.min() < 0 or array.max() >= n:
            got = f"{array.min()} … {array.max()}" if fits else f"shape {array.shape} {array.dtype}"
            raise ValueError(f"thinker: step: {name} has {got}; expected ({self.env_n},) integers, 0 … {n - 1}, one for each of "
                             f"env_n environments")
        return array.astype(np.int64)

    def _probabilities(self, value: Any) -> Array:
        array, shape = _numpy(value).astype(np.float64), (self.env_n, self.num_actions)
        if array.shape != shape or not (array >= 0).all() or not np.allclose(array.sum(1), 1.0, atol=1e-3):
            got = f"shape {array.shape}"
            if array.shape == shape:
                got = f"rows that sum to {array.sum(1).min():g} … {array.sum(1).max():g}, the least number {array.min():g}"
            raise ValueError(f"thinker: step: action_prob has {got}; expected {shape}, rows of probabilities that sum to 1")
        return array


def _numpy(value: Any) -> Array:
    return np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
