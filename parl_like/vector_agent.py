"""VectorAgent: one agent that drives a gymnasium vector environment with one request of n rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from parl_like.agent import Agent, EnvFace
from parl_like.errors import AgentFailed
from parl_like.spec import Array, leaves, nest


class VectorFace(EnvFace):
    """`EnvFace` of n environments that are stepped together. Episode ends are reported per environment.

    Works with every autoreset mode of gymnasium. The row that NEXT_STEP inserts after each episode (its action is ignored) is
    marked invalid, so that rows are real transitions only; the final observation of an episode is never lost.

    Attributes:
        n: Environments.
        obs_next: Observation after the last actions, the true final one where an episode ended.
        valid: [n] bool, rows of the last step that are real transitions.
        env_index: The environment whose episode end a hook hears of; `episode_return` and `episode_length` are that episode's.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], agent: Agent) -> None:
        self.n = int(env.num_envs)
        super().__init__(env, agent)  # type: ignore[arg-type]
        self.action_space, self.observation_space = env.single_action_space, env.single_observation_space
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._mode = AutoresetMode(mode)
        self.valid: Array = np.ones(self.n, bool)
        self.obs_next: Any = None
        self.env_index = 0
        self._ended: Array = np.zeros(self.n, bool)
        self._returns: Array = np.zeros(self.n)
        self._lengths: Array = np.zeros(self.n, np.int64)
        self.quotas: Array | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        agent = self._agent
        if seed is None and agent.fresh:
            seed = int(agent.rng.integers(2**31))
        agent.fresh = False
        self.seed = seed
        try:
            obs, info = self._reset(seed=seed, options=options)
        except Exception as error:
            raise AgentFailed(f"{agent}: its vector environment raised in reset(seed={seed}): {type(error).__name__}: {error}") from error
        self.last = (obs, None, np.zeros(self.n), np.zeros(self.n, bool), np.zeros(self.n, bool), info)
        self._returns[:], self._lengths[:], self._ended[:] = 0, 0, False
        self._open, self._over = True, False
        for self.env_index in range(self.n):
            for call in self._pre_episode:
                call(agent)
        return obs, info

    def step(self, act: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of all environments; `obs` is what to act on next, `self.obs_next` what the actions led to."""
        agent = self._agent
        if agent.signal is not None:
            agent.obey()
        for call in self._pre_act:
            call(agent, act)
        try:
            obs, rew, terminated, truncated, info = self._step(act)
        except Exception as error:
            raise AgentFailed(f"{agent}: its vector environment (seed {self.seed}) raised in step(): {type(error).__name__}: {error}") from error
        done = np.logical_or(terminated, truncated)
        self.valid = ~self._ended if self._mode is AutoresetMode.NEXT_STEP else np.ones(self.n, bool)
        self.obs_next = obs
        if self._mode is AutoresetMode.SAME_STEP and done.any():
            self.obs_next = _with_rows(obs, info["final_obs"], np.flatnonzero(done))
        elif self._mode is AutoresetMode.DISABLED and done.any():
            self.obs_next = _copied(obs)  # the environment may write its next observations over these
            obs, _ = self._reset(options={"reset_mask": done})
        self._ended = done
        self._returns += np.where(self.valid, rew, 0.0)
        self._lengths += self.valid
        self.last = (obs, act, rew, terminated, truncated, info)
        robot, k = agent.robot, int(self.valid.sum())
        agent.steps += k
        self.time_steps += k
        for _ in range(k):
            robot.env_steps = next(robot._step_counter)
        for i in np.flatnonzero(done & self.valid):
            robot.count_episode(float(self._returns[i]), int(self._lengths[i]))
        for call in self._post_act:
            call(agent)
        stop = robot._stop
        if stop is not None and stop(robot):
            robot.request_stop()
        agent.after_step(k)
        return obs, rew, terminated, truncated, info

    def end_episodes(self) -> None:
        """After the rows of the last step were stored: POST_EPISODE, and PRE_EPISODE of the next one, for each that ended."""
        for i in np.flatnonzero(self._ended & self.valid):
            self.env_index = int(i)
            self.episode_return, self.episode_length = float(self._returns[i]), int(self._lengths[i])
            self._returns[i], self._lengths[i] = 0.0, 0
            if self.quotas is None or self.quotas[i] > 0:
                for call in self._post_episode:
                    call(self._agent, False)
                if self.quotas is not None:
                    self.quotas[i] -= 1
            for call in self._pre_episode:
                call(self._agent)

    def end_episode(self, interrupted: bool = False) -> None:
        if self._open and interrupted:
            for i in np.flatnonzero(self._lengths):
                self.env_index = int(i)
                self.episode_return, self.episode_length = float(self._returns[i]), int(self._lengths[i])
                for call in self._post_episode:
                    call(self._agent, True)
        self._open, self._over = False, True


class VectorAgent(Agent):
    """Acts in n environments at once. The robot's `env` may be a vector environment, or a single one, of which `n_envs` are made.

    PRE_EPISODE and POST_EPISODE fire per environment; `run_one_episode` itself runs until the robot stops, or until every
    environment has had its share of the episodes that a collection or an evaluation asks for.
    """

    vector = True

    def __init__(self, n_envs: int = 8) -> None:
        if n_envs < 1:
            raise ValueError(f"VectorAgent: n_envs is {n_envs}; expected at least 1")
        self.n_envs = n_envs

    def join(self, make: Any) -> None:
        env = make()
        if not isinstance(env, VectorEnv):
            first = [env]
            env = SyncVectorEnv([lambda: first.pop() if first else make()] * self.n_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        self.n_envs = int(env.num_envs)
        self.env = VectorFace(env, self)

    def after_step(self, steps: int = 1) -> None:
        super().after_step(steps)

    def run_one_episode(self) -> None:
        env, helpers = self.env, list(self.helpers.values())
        if self.quota_episodes is not None:
            share, rest = divmod(self.quota_episodes, env.n)
            env.quotas = np.array([share + (i < rest) for i in range(env.n)])
        obs, _ = env.reset()
        while env.quotas is None or env.quotas.any():
            act = helpers[0].predict(obs)
            obs_next, rew, terminated, truncated, info = env.step(act)
            for helper in helpers:
                helper.store(obs, act, rew, env.obs_next, terminated, truncated, info, env.valid)
            env.end_episodes()
            obs = obs_next
        env.quotas = None


def _copied(obs: Any) -> Any:
    return nest({name: np.array(leaf) for name, leaf in leaves(obs, "o")})["o"]


def _with_rows(obs: Any, final: Any, rows: Array) -> Any:
    """A copy of the stacked observations with the final ones of `rows` in place."""
    out = _copied(obs)
    for i in rows:
        one = final[i] if not isinstance(final, dict) else {k: v[i] for k, v in final.items()}
        targets = dict(leaves(out, "o"))
        for name, leaf in leaves(one, "o"):
            targets[name][i] = leaf
    return out


