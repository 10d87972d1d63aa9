"""VectorAgent: one agent that drives a gymnasium vector environment with one request of n rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from parl_like.agents.agent import Agent
from parl_like.data.timestep import TimeStep, first_step, next_step
from parl_like.environment.face import EnvFace
from parl_like.environment.factory import REWARD_WEIGHTS, reward_shape
from parl_like.environment.hooks import Hook, overridden
from parl_like.environment.process_guard import watched
from parl_like.environment.resumed_episode import PASSED
from parl_like.values.copying import copied
from parl_like.values.errors import AgentFailed
from parl_like.values.spec import Array, as_space, leaf_spaces, leaves, nest, parts_of

ALIKE = 3
"""Episodes after which final observations that are those of the next beginnings are no chance."""


class VectorFace(EnvFace):
    """`EnvFace` of n environments that are stepped together. Episode ends are reported per environment.

    Works with every autoreset mode of gymnasium. The row that NEXT_STEP inserts after each episode (its action is ignored) is
    marked invalid, so that rows are real transitions only; the final observation of an episode is never lost. Where an
    environment failed and was rebuilt (`restart=True`), its row is invalid, too: the episode is cut off before it, as an
    interrupted one. Steps that the info calls `imagined` are rows like all others, but no steps of the environment: they are not
    counted.

    Attributes:
        n: Environments.
        obs_next: Observation after the last actions, the true final one where an episode ended. Where none did it is the array
            that `step` returned: change neither of them in place.
        valid: [n] bool, rows of the last step that are real transitions and wanted; only they are counted.
        env_index: The environment whose episode end a hook hears of; `episode_return` and `episode_length` are that episode's.
        quotas: [n] episodes that each environment still has to play in a collection; one with 0 is stepped, but no longer
            counted. None: no bound.
    """

    _name, _of_one = "vector environment", "single_"

    def __init__(self, env: VectorEnv[Any, Any, Any], agent: Agent) -> None:
        super().__init__(env, agent)  # type: ignore[arg-type]
        self.n = int(env.num_envs)
        # The attribute first: metadata belongs to the class in some libraries, and then tells the mode of whatever was made last.
        mode = getattr(env.unwrapped, "autoreset_mode", None) or env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._mode = AutoresetMode(mode)
        # gymnasium's own word for it: the observations are copies already, of megabytes where they are images.
        self._gives_copies = getattr(env, "copy", False) is True
        self.quotas: Array | None = None
        self.obs_next: Any = None
        self.valid = np.ones(self.n, bool)
        self._running = np.zeros(self.n, bool)  # between PRE_EPISODE and POST_EPISODE
        self._done = self._ended = self._lost = np.zeros(self.n, bool)  # see `step`
        self._reset_now = np.zeros(self.n, bool)  # reset by the last step
        self._begins = False  # hooks hear of the beginning of episodes
        self._returns, self._lengths = np.zeros(self.n), np.zeros(self.n, np.int64)
        self._limit: int | None = None
        # The environments of these give copies (`_owning`), or have columns of their own for what ended.
        kept = type(env.unwrapped) is SyncVectorEnv or type(env.unwrapped).__module__.startswith("parl_like.")
        self._ends_alike: int | None = 0 if self._mode is AutoresetMode.SAME_STEP and not kept else None  # see `_look_at_ends`

    def limit(self, steps: int) -> None:
        """As of `EnvFace`; where an episode is cut off, the next one begins with a reset of all."""
        self._limit = steps

    def _look_at_ends(self, obs: Any, done: Array) -> None:
        """A warning where final observations are those of the next episode's beginning: so they are of environments that write
        into one array again and again, for the vector environment resets them before it gives these away."""
        before, alike = self.last[0], self._ends_alike
        self._ends_alike = None
        if alike is None or not isinstance(before, np.ndarray):
            return
        for i in np.flatnonzero(done).tolist():
            if not np.array_equal(self.obs_next[i], obs[i]):
                return
            alike += not np.array_equal(before[i], obs[i])  # it had moved away from there, and is said to be back
        if alike < ALIKE:
            self._ends_alike = alike
        else:
            warnings.warn(f"{self._agent}: final observations of its vector environment (SAME_STEP) are the first ones of the "
                          "next episodes: its environments reuse their arrays, so what an episode led to is lost; let step and "
                          "reset return copies", RuntimeWarning, stacklevel=4)

    def n_open(self) -> int:
        return int(self._running.sum())

    def _observed(self) -> Any:
        if self._ended.any() or self._lost.any():
            raise TypeError("the agent was interrupted before it stored its last step")
        return self.last[0]

    def _counted(self) -> Any:
        return self._returns, self._lengths, self._done

    def _count_on(self, returns: Array, lengths: Array, done: Array) -> None:  # type: ignore[override]
        self._returns, self._lengths, self._done = returns, lengths, done

    def _wanted(self) -> Array:
        return np.ones(self.n, bool) if self.quotas is None else self.quotas > 0

    def _begin(self, obs: object, info: dict[str, object]) -> None:
        self.last = (obs, None, np.zeros(self.n), np.zeros(self.n, bool), np.zeros(self.n, bool), info)
        self._done = self._ended = self._lost = np.zeros(self.n, bool)
        self._begin_rows(self._wanted())

    def _begin_rows(self, rows: Array) -> None:
        """PRE_EPISODE for each of these environments."""
        self._begins = True
        for i in np.flatnonzero(rows).tolist():
            self.env_index, self._running[i] = i, True
            self._returns[i], self._lengths[i] = 0.0, 0
            for call in self._pre_episode:
                call(self._agent)
        self._begins = False

    def connect_hooks(self, hooks: list[Hook]) -> None:
        self._begins = True
        for i in np.flatnonzero(self._running).tolist():
            self.env_index = i
            for call in map(self._agent.agent_pool.in_turn, overridden(hooks, "pre_episode")):
                call(self._agent)
        self._begins = False

    def _end(self, i: int, interrupted: bool) -> None:
        """POST_EPISODE for one environment."""
        self.env_index, self._running[i] = i, False
        self.episode_return, self.episode_length = float(self._returns[i]), int(self._lengths[i])
        for call in self._post_episode:
            call(self._agent, interrupted)

    def step(self, act: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of all environments; `obs` is what to act on next, `self.obs_next` what the actions led to."""
        agent = self._agent
        if agent.signal is not None:
            agent.obey()
        if agent.last_progress is not None:
            agent.last_progress = agent.count_progress()
        if self._over:
            raise AgentFailed(f"{agent}: step() before reset(); call reset() first")
        self._check_actions(act)
        for call in self._pre_act:
            call(agent, act)
        try:
            obs, rew, terminated, truncated, info = self._step(copied(act))  # the environment may clip its copy in place
            done = np.logical_or(terminated, truncated)
            rew, terminated, truncated = copied(rew), copied(terminated), copied(truncated)
            obs = obs if self._gives_copies else copied(obs)
            self.obs_next = obs
            if self._mode is AutoresetMode.SAME_STEP and done.any():
                self.obs_next = _with_rows(obs, info["final_obs"], np.flatnonzero(done))
                if self._ends_alike is not None:
                    self._look_at_ends(obs, done)
            elif self._mode is AutoresetMode.DISABLED and done.any():
                obs, _ = self._reset(options={"reset_mask": done})
                obs = obs if self._gives_copies else copied(obs)
        except PASSED:
            raise
        except Exception as error:
            raise self._failed(f" (seed {self.seed}) raised in step()", error) from error
        self._reset_now, self.valid = done, self._wanted()
        if self._mode is AutoresetMode.NEXT_STEP:  # this step has reset what ended before it
            self._reset_now = self._done
            self.valid &= ~self._done
        if info.__class__ is not dict:
            self._checked(f"step() of its {self._name} (seed {self.seed})", self._output.info, info)
        if self._keeps:
            info = copied(info)
        if np.shape(done) != (self.n,):
            self._checked(f"its {self._name}", self._output.flag_rows, terminated, truncated, self.n)
        if "dropped" in info:
            self._lost = np.asarray(info["dropped"], bool) & self._running
            self.valid &= ~self._lost
        self._done, self._ended = done, done & self.valid  # told by the environment; those whose POST_EPISODE is still to come
        if np.shape(rew) != (self.n,):
            self._checked(f"its {self._name}", self._output.reward_rows, rew, self.n)
        try:
            self._returns += np.where(self.valid, np.asarray(rew, np.float64), 0.0)
        except (TypeError, ValueError):
            self._checked(f"its {self._name} (seed {self.seed})", self._output.reward_rows, rew, self.n)
        counted = self.valid & ~info["imagined"] if "imagined" in info else self.valid
        self._lengths += counted
        if self._limit is not None and self.quotas is not None:
            over = self._running & self.valid & ~done & (self._lengths >= self._limit)
            if over.any():  # the environment goes on there, and is asked for nothing more until it is reset
                truncated, self._ended = np.asarray(truncated, bool) | over, self._ended | over
                self.cut_short += int(over.sum())
                self.quotas[over] = 1
        self.last = (obs, act, rew, terminated, truncated, info)
        statistics, k = agent.agent_pool.statistics, int(counted.sum())
        agent.steps += k
        self.time_steps += k
        statistics.env_steps += k
        told = info.get("final_info", info) if self._ended.any() else {}
        for i in np.flatnonzero(self._ended).tolist():
            parts = told["return_parts"][i] if isinstance(told, dict) and "return_parts" in told else ()
            statistics.count_episode(agent.first_env + i, float(self._returns[i]), int(self._lengths[i]), parts)
        for call in self._post_act:
            call(agent)
        self._ask_to_go_on(k)
        return obs, rew, terminated, truncated, info

    def _check_actions(self, act: object) -> None:
        """All rows at once where the space allows it; a wrong one is then named by `_check_action`."""
        space = self.action_space
        if space is not None and parts_of(space) is not None:
            shapes = {name: np.shape(part)[:1] for name, part in leaves(act, "act")}
            if shapes != dict.fromkeys((name for name, _ in leaf_spaces(space, "act")), (self.n,)):
                raise AgentFailed(f"{self._agent}: actions {act!r:.200}; expected rows for {self.n} environments in each part of "
                                  f"{space}")
            for i in range(self.n):
                self._check_action(_row(act, i, space, "act"))
            return
        rows = np.asarray(act)
        if rows.shape[:1] != (self.n,):
            raise AgentFailed(f"{self._agent}: actions of shape {rows.shape}; expected one row for each of {self.n} environments")
        if isinstance(space, gym.spaces.Discrete) and rows.ndim == 1 and rows.dtype.kind in "iu":
            fits = bool(((rows >= self._start) & (rows < self._start + self._n)).all())
        elif isinstance(space, gym.spaces.Box) and rows.shape == (self.n, *space.shape):
            fits = bool(((rows >= space.low) & (rows <= space.high)).all())
        elif isinstance(space, gym.spaces.MultiDiscrete) and rows.shape == (self.n, *space.shape) and rows.dtype.kind in "iu":
            fits = bool(((rows >= space.start) & (rows < space.start + space.nvec)).all())
        else:
            fits = False
        if not fits:
            for row in rows:
                self._check_action(row)

    def end_episodes(self) -> None:
        """To be called when the rows of a step have been stored: POST_EPISODE for each environment whose episode it ended, then
        PRE_EPISODE for each that it reset."""
        self._finish()
        if self._reset_now.any():
            self._begin_rows(self._reset_now & self._wanted())

    def _finish(self) -> None:
        if self._lost.any():  # dropped by the environment
            lost, self._lost = np.flatnonzero(self._lost), np.zeros(self.n, bool)
            self._agent.cut(lost)
            for i in lost.tolist():
                self._end(i, True)
        for i in np.flatnonzero(self._ended).tolist():
            self._ended[i] = False
            if self.quotas is not None:
                self.quotas[i] -= 1
            self._end(i, False)

    def end_episode(self) -> None:
        """Ends what runs in every environment, with cuts in the buffer; see `EnvFace.end_episode`."""
        if not self._open:
            return
        self._open, self._over = False, True
        self._finish()
        if self._running.any():
            self._agent.cut()
            for i in np.flatnonzero(self._running).tolist():
                self._end(i, True)

    @property
    def time_step(self) -> TimeStep:
        """The last step of environment `env_index`: LAST with the true final observation; FIRST of the next episode in
        PRE_EPISODE, and in the step that does nothing but reset (NEXT_STEP)."""
        i = self.env_index
        obs, act, rew, terminated, truncated, info = self.last
        begins = act is None or self._begins or (self._mode is AutoresetMode.NEXT_STEP and bool(self._reset_now[i]))
        row = _row(obs if begins else self.obs_next, i, None, "obs")
        info = copied(info)
        if begins:
            return first_step(row, i, info)
        return next_step(row, rew[i], terminated[i], truncated[i], _row(act, i, self.action_space, "act"), i, info)


class VectorAgent(Agent):
    """Acts in n environments at once. The robot's `env` may be a vector environment, or a single one, of which `n_envs` are made.

    PRE_EPISODE and POST_EPISODE fire per environment; `run_one_episode` itself runs until the robot stops, or until every
    environment has had its share of the episodes that a collection or an evaluation asks for.

    Args:
        n_envs: Environments that are made of a single one.
    """

    vector = True
    env: VectorFace

    def __init__(self, n_envs: int = 8) -> None:
        super().__init__()
        if n_envs < 1:
            raise ValueError(f"VectorAgent: n_envs is {n_envs}; expected at least 1")
        self.n_envs = n_envs

    def join(self, make: Callable[[], object]) -> None:
        with watched(self, "made"):
            env = make()
        if not isinstance(env, VectorEnv):
            env = self._copies(env, make)
        inner: object = env.unwrapped
        if isinstance(inner, SyncVectorEnv) and inner.metadata.get("autoreset_mode") is AutoresetMode.SAME_STEP:
            inner.envs = [_owning(one) for one in inner.envs]
        self.n_envs = int(env.num_envs)
        self.env = VectorFace(env, self)

    def _copies(self, first: object, make: Callable[[], object]) -> SyncVectorEnv:
        envs = [first, *(make() for _ in range(self.n_envs - 1))]
        if len({id(env) for env in envs}) < len(envs):
            raise ValueError(f"{self}: {self.n_envs} environments are needed, and the robot has one; give it a factory or an id")
        if shape := reward_shape(first):
            raise ValueError(f"{self}: its environments give rewards of shape {shape}, and a vector environment takes numbers; "
                             f"{REWARD_WEIGHTS}")
        return SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=AutoresetMode.SAME_STEP)  # type: ignore[misc]

    def run_one_episode(self) -> None:
        env, helpers = self.env, list(self.helpers.values())
        if not helpers:
            raise AgentFailed(f"{self}: the robot has no task that could act; give it one, or write run_one_episode")
        env.quotas = None
        if self.quota_episodes is not None:
            share, rest = divmod(self.quota_episodes, env.n)
            env.quotas = np.array([share + (i < rest) for i in range(env.n)])
        obs, _ = env.reset()
        while env.quotas is None or env.quotas.any():
            act = helpers[0].predict(obs)
            obs_next, rew, terminated, truncated, info = env.step(act)
            self.remember(obs, act, rew, terminated, truncated, info)
            env.end_episodes()
            obs = obs_next

    def remember(self, obs: Any, act: Any, rew: Any, terminated: Any, truncated: Any, info: dict[str, Any]) -> None:
        """Stores the step that `env.step` has just made, [n, ...] each; by default in the helpers of all tasks."""
        for helper in self.helpers.values():
            helper.store(obs, act, rew, self.env.obs_next, terminated, truncated, info, self.env.valid)


def _owning(env: object) -> Any:
    """gymnasium keeps final observations as they come, and resets the environment before it gives them away."""
    return _Owning(env) if isinstance(env, gym.Env) and not isinstance(env, _Owning) else env


class _Owning(gym.Wrapper[Any, Any, Any, Any]):
    """Gives observations that the environment does not change later."""

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[object, dict[str, object]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return copied(obs), info

    def step(self, action: object) -> tuple[object, Any, bool, bool, dict[str, object]]:
        obs, *rest = self.env.step(action)
        return copied(obs), *rest


def _row(stacked: object, i: int, space: gym.Space[object] | None, name: str) -> Any:
    """Environment i's part of stacked observations or actions; with a `space` nested as that nests them."""
    flat = {leaf: value[i] for leaf, value in leaves(stacked, name)}
    return nest(flat)[name] if space is None else as_space(space, flat, name)


def _with_rows(obs: object, final: Any, rows: Array) -> Any:
    """A copy of the stacked observations with the final ones of `rows` in place; `final` is an array of n observations."""
    out = copied(obs)
    targets = dict(leaves(out, "o"))
    for i in rows.tolist():
        for name, leaf in leaves(final[i], "o"):
            targets[name][i] = leaf
    return out
