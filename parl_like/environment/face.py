"""EnvFace: the one way between an agent and its environment. It fires the stages, counts, checks, keeps what comes in from
changing, and watches what the environment's code does to the process."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.data.timestep import TimeStep, first_step, next_step
from parl_like.environment.action_check import ActionCheck
from parl_like.environment.env_reset import EnvReset
from parl_like.environment.factory import step_of
from parl_like.environment.hooks import Hook
from parl_like.environment.observers import Observers
from parl_like.environment.resumed_episode import PASSED, CarriedEpisode
from parl_like.environment.value_check import OLD_GYM, BadOutput, OutputCheck
from parl_like.interfaces import ActingAgent
from parl_like.tasks.no_progress import Resets
from parl_like.values.agent_orders import AgentSignal
from parl_like.values.copying import copied
from parl_like.values.errors import AgentFailed, Interrupted
from parl_like.values.plain import State
from parl_like.values.spec import Env, Info, SpecError

_VECTORS = (np.ndarray, list, tuple)


class EpisodePhase(Enum):
    """The state of an episode: none was begun, one runs, or one has ended and POST_EPISODE is still to come."""

    NONE = "none"
    RUNNING = "running"
    ENDED = "ended"


NONE, RUNNING, ENDED = EpisodePhase


class EnvFace:
    """The user's gymnasium environment behind a face that everything passes. `reset` and `step` return what gymnasium returns;
    any other attribute is the environment's own.

    Attributes:
        last_step: (observation, action, reward, terminated, truncated, info) of the last step; action None after a reset. `last`
            is the same, but of several players, see `PlayersFace`.
        episode_return, episode_length: Of the running or just finished episode; the length counts actions.
        time_steps: The environment's own steps: of an action as many as info says in 'repeats', as `ActionRepeat` does, else one.
        carried: The episode that a checkpoint interrupted, if any.
        env_index: 0, for this is the agent's only environment; see `VectorFace`.
    """

    env_index = 0
    cut_short = 0  # episodes that `limit` has ended
    owes_rows = False  # whether several rows follow a step, so that an agent may only leave before its next one
    _name, _of_one = "environment", ""  # what the environment is called, and how the names of one's spaces begin

    def __init__(self, env: Env, agent: ActingAgent) -> None:
        self._env, self._agent = env, agent
        self._step: Any = step_of(env)
        self._resets, self._env_reset = Resets(), EnvReset(env, agent)
        self._output, self._observers = OutputCheck(env, agent.on_bad_value), Observers(agent)
        # Spaces are for tasks; a plain function can act in anything with reset and step.
        self.observation_space = getattr(env, f"{self._of_one}observation_space", None)
        self.action_space: gym.Space[object] | None = getattr(env, f"{self._of_one}action_space", None)
        self._actions = ActionCheck(agent, self.action_space)
        self.last_step: tuple[Any, ...] = ()
        self.episode_return: Any = 0.0
        self.episode_length = self.time_steps = 0
        self.carried = CarriedEpisode(env, agent, self._failed)
        self._phase = NONE
        self.observe([])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_env"], name)

    @property
    def last(self) -> Any:
        """The last step: (observation, action, reward, terminated, truncated, info); action None after a reset."""
        return self.last_step

    @property
    def unwrapped(self) -> Env:
        """The user's environment without its wrappers."""
        return getattr(self._env, "unwrapped", self._env)

    @property
    def seed(self) -> int | None:
        """The seed that the environment was last reset with; None: with none yet."""
        return self._env_reset.seed

    def observe(self, hooks: list[Hook]) -> None:
        """Sets who hears of the stages: the agent's helpers, then `hooks`."""
        observers, actions = self._observers, self._actions
        observers.renew(hooks)
        # What `step` reads, in one look: a class with `__getattr__` pays 30 ns more for each.
        judged = self._output if self._output.judges else None
        self._for_step = (self._step, actions.n, actions.start, judged, observers.pre_act, observers.post_act,
                          observers.keep_info)

    def limit(self, steps: int) -> None:
        """From now on an episode that does not end within `steps` actions, at least 1, is truncated there; `cut_short` counts
        those."""
        step = self._step

        def limited(act: object) -> Any:
            out = step(act)
            if self.episode_length + 1 < steps or len(out) != 5 or out[2] or out[3]:
                return out
            self.cut_short += 1
            return (*out[:3], True, out[4])

        self._step = limited
        self._for_step = limited, *self._for_step[1:]

    def connect_hooks(self, hooks: list[Hook]) -> None:
        """Hooks that come in the middle of an episode hear that it has begun."""
        if self.n_open():
            self._observers.catch_up(hooks)

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Any, Info]:
        """Starts an episode, or goes on with the one that was `carried` over a checkpoint, where neither seed nor options are
        given. The first reset after a start or an interruption is seeded from the agent's generator,
        later ones are not seeded, unless a helper says so.

        Returns:
            Observation, as the environment gives it, but a copy; info, a dict.

        Raises:
            AgentFailed: the environment raised, or returned no such pair. Interrupted: the run stops.
        """
        agent = self._agent
        self.end_episode()
        self._resets.look(agent)
        agent.before_episode()
        seed = self._env_reset.asked_seed(seed)
        carried = self.carried
        if agent.quota.episodes is not None:  # whole episodes are collected; the one that is held goes on afterwards
            carried.left = carried.left or carried.held is not None
        elif (given := carried.take()) is not None and seed is None and options is None and carried.fits(given, self._counted()):
            return self._go_on(carried.rest_of(given))
        seed = self._env_reset.due_seed(seed)
        try:
            given = self._env_reset.call(seed=seed, options=options)
        except PASSED:
            raise
        except Exception as error:
            raise self._failed(f" raised in reset(seed={seed})", error) from error
        obs, info = self._checked(f"reset() of its {self._name}", self._output.pair, given)
        if info.__class__ is not dict:
            self._checked(f"reset() of its {self._name} (seed {self.seed})", self._output.info, info)
        obs = copied(obs)
        if self._output.judges:
            obs, _ = self._accepted(obs, 0.0, "reset")
        self._phase = RUNNING
        self._begin(obs, info)
        return obs, info

    def carry(self) -> int:
        """Holds the open episode, with the memory of the agent's helpers, where the environment's state can be cloned.

        Returns:
            Episodes that are open and cannot be held: they will be cut.
        """
        n = self.n_open()
        if not n:
            return 0  # and what was held before is still to be gone on with
        return 0 if self.carried.hold(self.last_step[5], lambda: (self._observed(), self._counted())) else n

    def n_open(self) -> int:
        """Episodes that are running."""
        return int(self._phase is RUNNING)

    def _observed(self) -> object:
        """Return the observation to act on next."""
        return self.last_step[0]

    def _counted(self) -> tuple[object, ...]:
        return self.episode_return, self.episode_length

    def put_back(self, held: State | None) -> None:
        """Make the next reset go on with an episode that was held, see `CarriedEpisode.put_back`; None: with none."""
        self.carried.put_back(held, self._counted())

    def _go_on(self, rest: tuple[Any, ...]) -> tuple[object, dict[str, object]]:
        obs, info, memory, counted, waiting = rest
        obs, info = self._again(obs, info)
        self._agent.needs_seed = False
        self._env_reset.known, self._phase = True, RUNNING
        self._begin(obs, info)
        for helper in self._agent.helpers.values():
            helper.memory = tuple(memory[helper.title])
        self._count_on(*counted)
        self.carried.waiting.take(waiting)
        return obs, info

    def _again(self, obs: object, info: dict[str, object]) -> tuple[object, dict[str, object]]:
        """Return what is shown where a carried episode goes on, of which these were shown last."""
        return obs, info

    def _count_on(self, episode_return: object, length: int) -> None:
        self.episode_return, self.episode_length = episode_return, length

    def _begin(self, obs: object, info: dict[str, object]) -> None:
        self.episode_return, self.episode_length = 0.0, 0
        self.last_step = (obs, None, 0.0, False, False, info)
        for call in self._observers.pre_episode:
            call(self._agent)

    def _failed(self, doing: str, error: Exception) -> AgentFailed:
        old_style = isinstance(error, (ValueError, TypeError)) and "unpack" in str(error)
        way_out = OLD_GYM if old_style else ""
        return AgentFailed(f"{self._agent}: its {self._name}{doing}: {type(error).__name__}: {error}{way_out}")

    def step(self, act: Any) -> tuple[Any, Any, bool, bool, Info]:
        """Take one action.

        Args:
            act: Of the action space; the environment gets a copy.

        Returns:
            Observation, as the environment gives it, but a copy; reward; terminated, truncated; info, a dict.

        Raises:
            AgentFailed: no episode is running, the action is none of the space, the environment raised, or it returned something
                else than gymnasium promises. Interrupted: the run stops, or the step was dropped (`Agent.on_bad_value`).
            SpecError: a bad value cannot be replaced.
        """
        agent = self._agent
        if agent.signal is not None:
            agent.obey()
        env_step, n, start, judged, pre_act, post_act, keeps = self._for_step  # after a wait perhaps those of another run
        if agent.last_progress is not None:
            agent.last_progress = agent.count_progress()
        if not (act.__class__ is int and 0 <= act - start < n):
            self._actions.one(act)
        if self._phase is not RUNNING:
            raise AgentFailed(f"{agent}: step() after the end of an episode; call reset() first")
        for call in pre_act:
            call(agent, act)
        try:
            # The action's copy is the environment's: it may clip it in place.
            obs, rew, terminated, truncated, info = env_step(act if act.__class__ is int else copied(act))
        except PASSED:
            raise
        except Exception as error:
            raise self._failed(f" (seed {self.seed}) raised in step({act!r}), step {self.episode_length} of the episode",
                               error) from error
        if info.__class__ is not dict:
            self._checked(f"step({act!r}), step {self.episode_length} of the episode, of its {self._name} (seed {self.seed})",
                          self._output.info, info)
        if keeps:
            info = copied(info)
        self.time_steps += info.get("repeats", 1) if info else 1
        obs = copied(obs)
        if rew.__class__ is not float:
            rew = copied(rew)
            if (rew is None or rew.__class__ in _VECTORS) and judged is None:  # which has its own way with bad values
                self._checked(self._so_far(), self._output.reward, rew)
        if judged is not None:
            obs, rew = self._accepted(obs, rew, "")
        try:
            self.episode_return += rew
            ended = True if terminated or truncated else False  # noqa: SIM210  a call of bool costs more
        except (TypeError, ValueError):
            self._checked(self._so_far(), self._output.outcome, rew, terminated, truncated)
        self.episode_length += 1
        self.last_step = (obs, act, rew, terminated, truncated, info)
        agent.steps += 1
        pool = agent.agent_pool
        pool.statistics.env_steps += 1
        if ended:
            self._phase = ENDED
            total = self.episode_return
            pool.statistics.count_episode(agent.first_env, float(total) if np.ndim(total) == 0 else total, self.episode_length,
                                info.get("return_parts", ()))
        for call in post_act:
            call(agent)
        stop = pool.should_stop
        if stop is not None and stop(agent.robot):
            pool.request_stop()
        if agent.quota.steps is not None:
            self._count_quota(1)
        return obs, rew, terminated, truncated, info

    def _checked(self, where: str, rule: Callable[..., object], *given: object) -> Any:
        """Return what a rule of the output check returns; its refusal names the agent and the place."""
        try:
            return rule(*given)
        except BadOutput as error:
            raise AgentFailed(f"{self._agent}: {where} {error}") from None

    def _so_far(self) -> str:
        return f"its {self._name} (seed {self.seed}), after {self.episode_length} steps of the episode,"

    def _ask_to_go_on(self, steps: int) -> None:
        """After so many actions the run may be over, or the agent's share of a collection."""
        pool = self._agent.agent_pool
        if pool.should_stop is not None and pool.should_stop(self._agent.robot):
            pool.request_stop()
        if self._agent.quota.steps is not None:
            self._count_quota(steps)

    def _count_quota(self, steps: int) -> None:
        agent = self._agent
        left = agent.quota.steps = (agent.quota.steps or 0) - steps
        if left <= 0:
            agent.tell(AgentSignal.PARK)  # before its next step

    def _accepted(self, obs: object, rew: object, moment: str) -> tuple[object, object]:
        """Return what the environment gave, as the agent gets it (`Agent.on_bad_value`).

        Raises:
            SpecError: it cannot be mended. Interrupted: the episode is dropped.
        """
        agent, output = self._agent, self._output
        where = f"{agent}: its environment (seed {self.seed}), {moment or f'step {self.episode_length} of the episode'}"
        try:
            good_obs, good_rew = output.observation(obs), output.value(output.rewards, rew)
        except SpecError as error:
            fault = SpecError(f"{where}: {error}")
            if output.mends:
                raise fault from None
            agent.count_bad(f"{fault} (episode dropped)")
            agent.faults.last = fault
            if not moment:  # a step counts, so that a run of nothing else ends, too
                agent.steps += 1
                agent.agent_pool.statistics.env_steps += 1
                self._ask_to_go_on(1)
            raise Interrupted from None
        if good_obs is not obs or good_rew is not rew:
            agent.count_bad(f"{where}: replaced {obs!r:.60}, reward {rew!r:.20} by {good_obs!r:.60}, {good_rew!r:.20}")
        return good_obs, good_rew

    def end_episode(self) -> None:
        """Fires POST_EPISODE once for the episode that is open, if any: `interrupted` unless the environment had ended it.

        The rows of an interrupted episode get a cut, so that nothing looks from them into the next one.
        """
        if self._phase is NONE:
            return
        interrupted = self._phase is RUNNING
        self._phase = NONE
        if interrupted:
            self._agent.cut()
        for call in self._observers.post_episode:
            call(self._agent, interrupted)

    @property
    def is_over(self) -> bool:
        """True where no episode is running: `step` would raise, and `reset` comes next."""
        return self._phase is not RUNNING

    @property
    def time_step(self) -> TimeStep:
        """The last step as a `TimeStep`: discount 0 iff terminated, reward of the action before."""
        obs, act, rew, terminated, truncated, info = self.last_step
        info = copied(info)
        if act is None:
            return first_step(obs, self._agent.index, info)
        return next_step(obs, rew, terminated, truncated, act, self._agent.index, info)

    def close(self) -> None:
        """Close the environment, and give back the rows that the agent has claimed of tasks."""
        self._agent.claims.owners.clear()
        if hasattr(self._env, "close"):
            self._env.close()
