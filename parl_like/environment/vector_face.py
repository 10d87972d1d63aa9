"""VectorFace: the one way between an agent and a vector environment."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from parl_like.data.timestep import TimeStep, first_step, next_step
from parl_like.environment.action_check import row_of
from parl_like.environment.face import NONE, RUNNING, EnvFace
from parl_like.environment.hooks import Hook
from parl_like.environment.resumed_episode import PASSED
from parl_like.interfaces import ActingAgent
from parl_like.values.copying import copied, read_only
from parl_like.values.errors import AgentFailed
from parl_like.values.spec import Array, Info, leaves

ALIKE = 3
"""Episodes after which final observations that are those of the next beginnings are no chance."""


class FinalObservationsCheck:
    """The check of final observations, which warns once where they are those of the next episode's beginning: so they are of
    environments that write into one array again and again, for the vector environment resets them before it gives these away.

    Attributes:
        judged: Whether it has come to an end, with a warning or without one.
    """

    def __init__(self, owner: object) -> None:
        self._owner, self._alike, self.judged = owner, 0, False

    def look(self, before: object, final: Any, obs: Any, done: Array) -> None:
        """Compare where episodes have ended.

        Args:
            before: The observations before the step, [n, ...]; what is no array ends the look.
            final: [n, ...], what the actions led to. obs: [n, ...], what to act on next. done: [n] bool.
        """
        if not isinstance(before, np.ndarray):
            self.judged = True
            return
        for i in np.flatnonzero(done).tolist():
            if not np.array_equal(final[i], obs[i]):
                self.judged = True
                return
            self._alike += not np.array_equal(before[i], obs[i])  # it had moved away from there, and is said to be back
        if self._alike >= ALIKE:
            self.judged = True
            warnings.warn(f"{self._owner}: final observations of its vector environment (SAME_STEP) are the first ones of the "
                          "next episodes: its environments reuse their arrays, so what an episode led to is lost; let step and "
                          "reset return copies", RuntimeWarning, stacklevel=4)


class VectorEpisodes:
    """The episodes of n environments that are stepped together.

    Attributes:
        returns, lengths: [n] float64 and int64, of the running or just finished episodes; lengths count actions.
        running: [n] bool, between PRE_EPISODE and POST_EPISODE. done: [n] bool, what the environment said of the last step.
        ended: [n] bool, whose POST_EPISODE is still to come. lost: [n] bool, dropped by the environment, POST_EPISODE likewise.
        reset_now: [n] bool, which the last step has reset.
    """

    def __init__(self, n: int) -> None:
        self.returns, self.lengths, self.running = np.zeros(n), np.zeros(n, np.int64), np.zeros(n, bool)
        self.reset_now = np.zeros(n, bool)
        self.forget_ends()

    def forget_ends(self) -> None:
        """A reset of all has taken place."""
        self.done = self.ended = self.lost = np.zeros(len(self.running), bool)

    def take_ends(self, done: Array, dropped: object, wanted: Array, late: bool) -> Array:
        """Note what ended.

        Args:
            done: [n] bool. dropped: the same, None: none is.
            wanted: [n] bool, whose rows are wanted. It is changed in place, and returned.
            late: The step that was made has reset what the one before ended.

        Returns:
            [n] bool, rows that are real transitions and wanted.
        """
        valid, self.reset_now = wanted, done
        if late:
            self.reset_now = self.done
            valid &= ~self.done
        if dropped is not None:
            self.lost = np.asarray(dropped, bool) & self.running
            valid &= ~self.lost
        self.done, self.ended = done, done & valid
        return valid


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

    def __init__(self, env: VectorEnv[Any, Any, Any], agent: ActingAgent) -> None:
        super().__init__(env, agent)  # type: ignore[arg-type]
        self.n = int(env.num_envs)
        # The attribute first: metadata belongs to the class in some libraries, and then tells the mode of whatever was made last.
        mode = getattr(env.unwrapped, "autoreset_mode", None) or env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._mode = AutoresetMode(mode)
        # gymnasium's own word for it: the observations are copies already, of megabytes where they are images.
        self._gives_copies = getattr(env, "copy", False) is True
        # Whether arrays are new in every step, of the right types and sizes: a word of the class itself, for one that is made of
        # it may do otherwise.
        self._together = "new_arrays" in vars(type(env)) and self._gives_copies and self._mode is AutoresetMode.SAME_STEP
        self._all_go_on = False  # in the last step
        self._everyone = read_only(np.ones(self.n, bool))
        self.quotas: Array | None = None
        self.obs_next: Any = None
        self.valid = np.ones(self.n, bool)
        self._episodes = VectorEpisodes(self.n)
        self._begins = False  # hooks hear of the beginning of episodes
        self._limit: int | None = None
        # The environments of these give copies (`VectorAgent.join`), or have columns of their own for what ended.
        kept = type(env.unwrapped) is SyncVectorEnv or type(env.unwrapped).__module__.startswith("parl_like.")
        self._final = FinalObservationsCheck(agent) if self._mode is AutoresetMode.SAME_STEP and not kept else None

    @property
    def episode_lengths(self) -> Array:
        """[n] int64, the actions so far of each running episode."""
        return self._episodes.lengths

    def limit(self, steps: int) -> None:
        """As of `EnvFace`, in steps of each environment; where an episode is cut off, the next one begins with a reset of all."""
        self._limit = steps

    def n_open(self) -> int:
        return int(self._episodes.running.sum())

    def _observed(self) -> object:
        if self._episodes.ended.any() or self._episodes.lost.any():
            raise TypeError("the agent was interrupted before it stored its last step")
        return self.last_step[0]

    def _counted(self) -> Any:
        episodes = self._episodes
        return episodes.returns, episodes.lengths, episodes.done

    def _count_on(self, returns: Array, lengths: Array, done: Array) -> None:  # type: ignore[override]
        episodes = self._episodes
        episodes.returns, episodes.lengths, episodes.done = returns, lengths, done

    def _wanted(self) -> Array:
        return self._everyone if self.quotas is None else self.quotas > 0

    def _begin(self, obs: object, info: dict[str, object]) -> None:
        self.last_step = (obs, None, np.zeros(self.n), np.zeros(self.n, bool), np.zeros(self.n, bool), info)
        self._episodes.forget_ends()
        self._begin_rows(self._wanted())

    def _begin_rows(self, rows: Array) -> None:
        """PRE_EPISODE for each of these environments."""
        self._begins, episodes = True, self._episodes
        for i in rows.nonzero()[0].tolist():
            self.env_index, episodes.running[i] = i, True
            episodes.returns[i], episodes.lengths[i] = 0.0, 0
            for call in self._observers.pre_episode:
                call(self._agent)
        self._begins = False

    def connect_hooks(self, hooks: list[Hook]) -> None:
        self._begins = True
        for i in self._episodes.running.nonzero()[0].tolist():
            self.env_index = i
            self._observers.catch_up(hooks)
        self._begins = False

    def _end(self, i: int, interrupted: bool) -> None:
        """POST_EPISODE for one environment."""
        episodes = self._episodes
        self.env_index, episodes.running[i] = i, False
        self.episode_return, self.episode_length = float(episodes.returns[i]), int(episodes.lengths[i])
        for call in self._observers.post_episode:
            call(self._agent, interrupted)

    def step(self, act: Any) -> tuple[Any, Any, Any, Any, Info]:
        """Take one step in all environments.

        Args:
            act: [n, ...] in each part of the action space; the environment gets a copy.

        Returns:
            What to act on next, [n, ...], while `obs_next` is what the actions led to; rewards, terminated, truncated, [n] each;
            info, a dict.

        Raises:
            AgentFailed: there was no reset, an action is none of the space, the environment raised, or it returned something else
                than gymnasium promises. Interrupted: the run stops.
        """
        agent = self._agent
        if agent.signal is not None:
            agent.obey()
        if agent.last_progress is not None:
            agent.last_progress = agent.count_progress()
        if self._phase is not RUNNING:
            raise AgentFailed(f"{agent}: step() before reset(); call reset() first")
        env_step, _, _, _, pre_act, post_act, keeps = self._for_step
        self._actions.rows(act, self.n)
        for call in pre_act:
            call(agent, act)
        try:
            obs, rew, terminated, truncated, info = env_step(copied(act))  # the environment may clip its copy in place
            done = np.logical_or(terminated, truncated)
            if not self._together:
                rew, terminated, truncated = copied(rew), copied(terminated), copied(truncated)
            obs = obs if self._gives_copies else copied(obs)
            self.obs_next, some = obs, bool(done.any())
            if self._mode is AutoresetMode.SAME_STEP and some:
                self.obs_next = _with_rows(obs, info["final_obs"], np.flatnonzero(done))
                if self._final is not None and not self._final.judged:
                    self._final.look(self.last_step[0], self.obs_next, obs, done)
            elif self._mode is AutoresetMode.DISABLED and some:
                obs, _ = self._env_reset.call(options={"reset_mask": done})
                obs = obs if self._gives_copies else copied(obs)
        except PASSED:
            raise
        except Exception as error:
            raise self._failed(f" (seed {self.seed}) raised in step()", error) from error
        if info.__class__ is not dict:
            self._checked(f"step() of its {self._name} (seed {self.seed})", self._output.info, info)
        if keeps:
            info = copied(info)
        if np.shape(done) != (self.n,):
            self._checked(f"its {self._name}", self._output.flag_rows, terminated, truncated, self.n)
        episodes = self._episodes
        # A step of all environments, in which none has ended, is the rule: it is counted in two additions.
        special = info.get("dropped") is not None or "imagined" in info
        self._all_go_on = self._together and not some and self.quotas is None and not special
        if self._all_go_on:
            self.valid = self._everyone
            episodes.done = episodes.ended = episodes.reset_now = done
            episodes.returns += rew
            episodes.lengths += 1
            k = self.n
        else:
            k, terminated, truncated = self._counted_rows(rew, terminated, truncated, done, info)
        self.last_step = (obs, act, rew, terminated, truncated, info)
        statistics = agent.agent_pool.statistics
        agent.steps += k
        self.time_steps += k
        statistics.env_steps += k
        if not self._all_go_on:
            self._count_ended(statistics, info)
        for call in post_act:
            call(agent)
        self._ask_to_go_on(k)
        return obs, rew, terminated, truncated, info

    def _counted_rows(self, rew: Any, terminated: Any, truncated: Any, done: Array, info: dict[str, Any]) -> tuple[int, Any, Any]:
        """Add a step to the episodes of its environments; return how many steps of environments it was, and the flags, in which
        those are truncated that have reached the limit."""
        episodes = self._episodes
        late = self._mode is AutoresetMode.NEXT_STEP
        self.valid = valid = episodes.take_ends(done, info.get("dropped"), self._wanted().copy(), late)
        if np.shape(rew) != (self.n,):
            self._checked(f"its {self._name}", self._output.reward_rows, rew, self.n)
        try:
            episodes.returns += np.where(valid, np.asarray(rew, np.float64), 0.0)
        except (TypeError, ValueError):
            self._checked(f"its {self._name} (seed {self.seed})", self._output.reward_rows, rew, self.n)
        counted = valid & ~info["imagined"] if "imagined" in info else valid
        episodes.lengths += counted
        if self._limit is not None and self.quotas is not None:
            over = episodes.running & valid & ~done & (episodes.lengths >= self._limit)
            if over.any():  # the environment goes on there, and is asked for nothing more until it is reset
                truncated, episodes.ended = np.asarray(truncated, bool) | over, episodes.ended | over
                self.cut_short += int(over.sum())
                self.quotas[over] = 1
        return int(counted.sum()), terminated, truncated

    def _count_ended(self, statistics: Any, info: dict[str, Any]) -> None:
        """Add the episodes that have just ended to the statistics."""
        episodes, first = self._episodes, self._agent.first_env
        final_info = info.get("final_info", info) if episodes.ended.any() else {}
        for i in episodes.ended.nonzero()[0].tolist():
            parts = final_info["return_parts"][i] if isinstance(final_info, dict) and "return_parts" in final_info else ()
            statistics.count_episode(first + i, float(episodes.returns[i]), int(episodes.lengths[i]), parts)

    def end_episodes(self) -> None:
        """To be called when the rows of a step have been stored: POST_EPISODE for each environment whose episode it ended, then
        PRE_EPISODE for each that it reset."""
        if self._all_go_on:
            return
        self._finish()
        if self._episodes.reset_now.any():
            self._begin_rows(self._episodes.reset_now & self._wanted())

    def _finish(self) -> None:
        episodes = self._episodes
        if episodes.lost.any():  # dropped by the environment
            lost, episodes.lost = episodes.lost.nonzero()[0], np.zeros(self.n, bool)
            self._agent.cut(lost)
            for i in lost.tolist():
                self._end(i, True)
        for i in episodes.ended.nonzero()[0].tolist():
            episodes.ended[i] = False
            if self.quotas is not None:
                self.quotas[i] -= 1
            self._end(i, False)

    def end_episode(self) -> None:
        """Ends what runs in every environment, with cuts in the buffer; see `EnvFace.end_episode`."""
        if self._phase is NONE:
            return
        self._phase = NONE
        self._finish()
        if (running := self._episodes.running).any():
            self._agent.cut()
            for i in running.nonzero()[0].tolist():
                self._end(i, True)

    @property
    def time_step(self) -> TimeStep:
        """The last step of environment `env_index`: LAST with the true final observation; FIRST of the next episode in
        PRE_EPISODE, and in the step that does nothing but reset (NEXT_STEP)."""
        i = self.env_index
        obs, act, rew, terminated, truncated, info = self.last_step
        begins = act is None or self._begins or (self._mode is AutoresetMode.NEXT_STEP and bool(self._episodes.reset_now[i]))
        row = row_of(obs if begins else self.obs_next, i, None, "obs")
        info = copied(info)
        if begins:
            return first_step(row, i, info)
        return next_step(row, rew[i], terminated[i], truncated[i], row_of(act, i, self.action_space, "act"), i, info)


def _with_rows(obs: object, final: Any, rows: Array) -> object:
    """A copy of the stacked observations with the final ones of `rows` in place; `final` is an array of n observations."""
    out = copied(obs)
    targets = dict(leaves(out, "o"))
    for i in rows.tolist():
        for name, leaf in leaves(final[i], "o"):
            targets[name][i] = leaf
    return out
