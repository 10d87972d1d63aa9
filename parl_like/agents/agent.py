"""Agent: the acting loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from parl_like.agents.agent_parts import Claims, EnvFaults
from parl_like.agents.helpers import Helpers
from parl_like.data.rng import rng_state, set_rng_state
from parl_like.environment.face import EnvFace
from parl_like.environment.factory import several_players
from parl_like.environment.player_view import has_players
from parl_like.environment.players_face import PlayersFace
from parl_like.environment.process_guard import watched
from parl_like.interfaces import LearnerProgress, PoolPort
from parl_like.values import plain
from parl_like.values.agent_orders import NEXT, AgentSignal, Quota
from parl_like.values.errors import AgentFailed, Interrupted, unknown
from parl_like.values.parts import part
from parl_like.values.plain import State
from parl_like.values.spec import Array, SpecError
from parl_like.values.user_calls import Guarded, add_way_out

STUCK = 1000
"""Calls of `run_one_episode` in a row that did nothing, after which an agent is declared stuck."""


class Agent(Guarded):
    """Runs episodes in one environment as plain sequential code. Override `run_one_episode` for your own control flow.

    Args:
        on_bad_value: See below; None: what the class says. A subclass may set it in its body instead.

    Attributes:
        index: Its number. first_env: the number of its (first) environment, among those of all agents.
        env: The environment behind its face.
        helpers: Task name → helper; (task name, role) → helper where it has roles of the task.
        roles: Task → names of the players that it has there, each with a helper, lanes, memory and generator of its own. Tasks
            that are not named have one helper. None: of an environment of several players these, at every task.
        rng: Its own generator.
        steps: Actions taken. The environment's own steps, of which an action may take several
            (`parl_like.envs.wrappers.ActionRepeat`), are `env.time_steps`.
        learned_at: What `steps` was at its last update.
        last_progress: What `count_progress` gave between two of its steps, for who asks from another thread; None: nobody does.
        on_bad_value: What becomes of an observation or reward that is not finite, outside of the declared bounds, or of another
            shape or dtype. 'raise': whoever takes it refuses what it cannot use (NaN, shape, dtype, an integer outside), and the
            run ends. 'drop': the episode ends before that step, like an interrupted one, and another begins, newly seeded.
            'replace': numbers that are not finite become 0, others the nearest legal ones; shapes and dtypes raise. Actions that
            are impossible always raise.
        bad_values: Steps and resets with values that were dropped or replaced.
        needs: Task name → rows that the agent has claimed of it.
        signal: What it shall do before its next step; None: go on. Set by `tell`, `go_on` and `has_obeyed` alone.
        quota: How much it still does before it parks.
        learns: Whether a helper of it learns.
        needs_seed: Whether the next reset is seeded.
        process_changes: What of the process its environment has changed, by name.
    """

    on_bad_value: Literal["raise", "drop", "replace"] = "raise"
    n_envs = 1
    first_env = 0
    vector = False
    roles: Mapping[str, Sequence[str]] | None = None
    env: EnvFace = None  # type: ignore[assignment]  # a robot without environments has none, and only learns
    bad_values: int = part("faults.bad_values")
    needs: dict[str, int] = part("claims.needs")

    def __init__(self, *, on_bad_value: Literal["raise", "drop", "replace"] | None = None) -> None:
        if on_bad_value is not None:
            self.on_bad_value = on_bad_value

    def bind(self, pool: PoolPort, index: int, rng: np.random.Generator, label: str = "agent") -> None:
        """Called once, before anything else, by the pool that it belongs to: the robot, that of an evaluation, or that of a
        worker process.

        Raises:
            ValueError: the agent has an option that is the environment's, or `on_bad_value` is none.
        """
        if name := next((name for name in ("action_repeat", "max_episode_steps") if hasattr(self, name)), ""):  # options once
            raise ValueError(f"{type(self).__name__}: {name} is the environment's business; give the robot a factory of "
                             "parl_like.envs.wrappers.ActionRepeat(env, n) or gymnasium.wrappers.TimeLimit(env, steps)")
        if self.on_bad_value not in ("raise", "drop", "replace") or (self.vector and self.on_bad_value != "raise"):
            rest = " of an agent with a vector environment; wrap the single ones" if self.vector else ", 'drop' or 'replace'"
            raise ValueError(f"{type(self).__name__}: on_bad_value is {self.on_bad_value!r}; expected 'raise'{rest}")
        self.agent_pool, self.robot, self.index, self.rng = pool, pool.robot, index, rng
        self._label = f"{label} {index}"
        self.helpers = Helpers(self._label)
        self.steps = self.learned_at = 0
        self.last_progress: LearnerProgress | None = None
        self.needs_seed, self.learns = True, False
        self.signal: AgentSignal | None = None
        self.quota, self.claims, self.faults = Quota(), Claims(), EnvFaults()
        self.process_changes: set[str] = set()

    def __str__(self) -> str:
        return self._label

    def join(self, make: Callable[[], Any]) -> None:
        """Make the agent's environment.

        Args:
            make: Zero-argument function that gives a gymnasium environment.

        Raises:
            What `make` raises.
        """
        with watched(self, "made"):
            env = make()
        self.env = self.face_of(env)

    def face_of(self, env: Any) -> EnvFace:
        """Return the environment behind its face. Raises TypeError for one of several players, where `run_one_episode` is that
        of one."""
        if not has_players(env):
            return EnvFace(env, self)
        if type(self).run_one_episode is Agent.run_one_episode:
            raise several_players(env)
        return PlayersFace(env, self)

    def roles_of(self, task: str) -> tuple[str, ...]:
        """Return the roles that the agent has at a task, () where it has one helper of it: see `roles`."""
        if self.roles is None:
            return self.env.players if isinstance(self.env, PlayersFace) else ()
        return tuple(self.roles.get(task, ()))

    def check_roles(self, tasks: Sequence[str]) -> None:
        """Raise ValueError or TypeError for `roles` that are none."""
        for task, roles in (self.roles or {}).items():
            if task not in tasks:
                raise ValueError(f"{self}: roles: {unknown('task', task, tasks)}")
            if isinstance(roles, str) or not all(isinstance(role, str) and role for role in roles):
                raise TypeError(f"{self}: roles of task {task!r} are {roles!r}; expected names, such as ('white', 'black')")
            if len(set(roles)) < len(roles):
                raise ValueError(f"{self}: roles of task {task!r} are {', '.join(roles)}; expected each once")

    def claim(self, task: str, n: int) -> int:
        """Return the first of `n` rows of those that a task keeps for its agents (`RowSlots`). They are this agent's until it
        claims anew or closes its environment. For `join`: where agents are in workers, their rows are set aside before."""
        return self.claims.claim(self.agent_pool.tasks, task, n)

    def count_progress(self) -> LearnerProgress:
        """Return the steps since its last update, and whether a schedule has one due: what updates of others ask (`Rounds`)."""
        due = False
        for helper in self.helpers.values():  # hot: each step under threads; `any` takes 0.3 µs more
            due = due or helper.due()
        return LearnerProgress(self.steps - self.learned_at, due)

    def progress(self) -> LearnerProgress:
        """Return `count_progress`, for who asks from any thread."""
        return self.last_progress or self.count_progress()

    def count_bad(self, text: str) -> None:
        """Count a value that was dropped or replaced; `text` says for the log which, and where."""
        self.faults.bad_values += 1
        self.agent_pool.statistics.count_bad(text)

    # ------------------------------------------------------------------------------------------------------ what users write

    def run_one_episode(self) -> None:
        """Acts until the episode ends: the first task acts, and the helpers of all tasks store every step.

        Raises:
            AgentFailed: the robot has no task.
        """
        helpers = list(self.helpers.values())
        if not helpers:
            raise AgentFailed(f"{self}: the robot has no task that could act; give it one, or write run_one_episode")
        if self.env is None:
            pool = self.agent_pool
            pool.statistics.env_steps += 1  # a round of learning counts as a step, so that stop conditions work
            if pool.should_stop is not None and pool.should_stop(self.robot):
                pool.request_stop()
            del pool  # an agent that waits must not hold it
            for helper in helpers:
                if helper.learns:
                    helper.learn()
            return
        obs, _ = self.env.reset()
        predict, step, stores = helpers[0].predict, self.env.step, [helper.store for helper in helpers]
        done = False
        while not done:
            act = predict(obs)
            obs_next, rew, terminated, truncated, info = step(act)
            for store in stores:
                store(obs, act, rew, obs_next, terminated, truncated, info)
            obs, done = obs_next, terminated or truncated

    def caption(self) -> str:
        """Return what is written below a picture of a film of this agent, such as its goal; empty: nothing."""
        return ""

    def thread(self, function: Callable[[], object]) -> None:
        """Runs `function()` in a thread of its own, under driver='threads'. It may ask this agent's helpers, above all `learn`,
        while the agent acts: the third way to learn of PARL's document. Where that function runs already, nothing happens, so
        `run_one_episode` may begin with it.

        Between two runs, and while episodes end for a checkpoint, what it asks waits. When the robot stops, its next request
        raises Stopped, which it may leave uncaught. What else it raises ends the run, as if the agent had raised it.

        Raises:
            WrongCaller: another driver; use driver='threads', or mode='async'.
        """
        self.agent_pool.driver.start_thread(self, function)

    # ---------------------------------------------------------------------------------------------------------- its signal

    def tell(self, signal: AgentSignal) -> None:
        """Give the agent a signal, from any thread; where a stronger one waits to be obeyed, that one stays (`NEXT`)."""
        if signal in NEXT[self.signal]:  # no call within: threads change between calls
            self.signal = signal

    def go_on(self) -> None:
        """Take back whatever signal the agent has."""
        self.signal = None

    def has_obeyed(self, signal: AgentSignal) -> bool:
        """Take this signal back, which the agent obeys now; return False where it has another."""
        if self.signal == signal:  # no call within, or one that comes meanwhile were lost
            self.signal = None
            return True
        return False

    # ------------------------------------------------------------------------------------------------------- called by drivers

    def run(self) -> None:
        """The driver's loop: episodes until stopped; an interruption ends an episode and, unless the run stops, starts another.

        Raises:
            What `run_one_episode` raised, after POST_EPISODE.
            AgentFailed: `run_one_episode` keeps returning without having done anything, so the loop would never end.
        """
        done, idle = self._doings(), 0
        while True:
            try:
                self.before_episode()
                given: object = self.run_one_episode()  # type: ignore[func-returns-value]
                if given is not None:
                    self._refuse_unrun(given)
                if self.env is not None:
                    self.env.end_episode()
            except Interrupted:
                self.interrupt(carry=self.signal == AgentSignal.INTERRUPT)
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                add_way_out(error)
                if isinstance(error, SpecError) and self.env is not None:
                    error.add_note(f"{self}: its environment (seed {self.env.seed}), after {self.env.episode_length} steps of "
                                   "the episode")
                if isinstance(error, TypeError) and isinstance(self.env, PlayersFace) and not self.env.parallel:
                    error.add_note(f"{self}: where players act by turns, step() returns nothing; env.last() tells what came of "
                                   f"it. Where code for one player raised this: {several_players(self.env.unwrapped)}")
                try:
                    self.interrupt()
                except Exception as second:  # noqa: BLE001 - whatever a hook raises now, the first error is the one to report
                    error.add_note(f"afterwards POST_EPISODE of {self} raised {type(second).__name__}: {second}")
                raise
            if self.signal == AgentSignal.STOP:
                return
            if self.has_obeyed(AgentSignal.INTERRUPT):
                self.agent_pool.driver.park(self)
            before, done = done, self._doings()
            idle = idle + 1 if before == done else 0
            if idle == STUCK and self.env is not None:
                raise AgentFailed(
                    f"{self}: run_one_episode returned {STUCK} times without an environment step or a request; "
                    "it should begin with self.env.reset() and step until the episode ends"
                ) from self.faults.last

    def _refuse_unrun(self, given: object) -> None:
        """Raises AgentFailed where `run_one_episode` is a generator or a coroutine: a call of it runs nothing."""
        if isinstance(given, (Generator, Coroutine)):
            given.close()
        elif not isinstance(given, AsyncGenerator):
            return
        what = "a generator, for it has a `yield`" if isinstance(given, Generator) else "asynchronous (`async def`)"
        raise AgentFailed(f"{self}: run_one_episode is {what}, so a call of it runs nothing; write it as a plain method, which "
                          "calls self.env.reset() and self.env.step(action) until the episode ends")

    def _doings(self) -> int:
        """Steps and requests so far, also other agents'."""
        wrappers = self.agent_pool.wrappers.values()
        return self.steps + sum(int(queue.counters.requests) for w in wrappers for queue in (w.predictions, w.trainings))

    def interrupt(self, carry: bool = False) -> None:
        """End the open episode here: its rows get a cut, and the next reset is seeded.

        Args:
            carry: Where the environment can clone its state, the next reset goes on with the episode.
        """
        self.needs_seed = True
        if self.env is not None:
            cut = self.env.carry() if carry else self.env.n_open() if self.signal == AgentSignal.STOP else 0
            self.agent_pool.statistics.episodes_cut += cut  # no call within: threads change between calls
            if not self.env.n_open():  # perhaps not all helpers have stored the last row: their rows end with a cut
                self.cut()
            self.env.end_episode()

    def cut(self, rows: Array | None = None) -> None:
        """Mark the newest row of every helper as the last one of its episode.

        Args:
            rows: Numbers [k] of the environments of a vector environment that this is about; None: all.
        """
        for helper in self.helpers.values():
            helper.interrupt(rows)

    def obey(self) -> None:
        """Act on the signal, at a point where the agent's data is complete.

        Raises:
            Interrupted: the episode ends here. WrongCaller: this code may not wait for the agent.
        """
        self.agent_pool.driver.check_caller(self)
        if self.agent_pool.driver.is_beside():  # which ends by its requests
            return
        while self.signal is not None:
            if not self.has_obeyed(AgentSignal.PARK):
                raise Interrupted
            self.agent_pool.driver.park(self)

    def before_episode(self) -> None:
        """Park while the agent has no episode left of its quota. Raises Interrupted as `obey` does."""
        self.obey()
        while self.quota.episodes is not None and self.quota.episodes <= 0:
            self.agent_pool.driver.park(self)
            self.obey()

    def state_dict(self) -> State:
        """Return counters, generator, the episode that is carried over, and the states of the helpers: arrays and JSON
        values."""
        time_steps = 0 if self.env is None else self.env.time_steps
        return {"steps": self.steps, "learned_at": self.learned_at, "time_steps": time_steps, "bad_values": self.bad_values,
                "rng": rng_state(self.rng), "carried": None if self.env is None else self.env.carried.held,
                "helpers": self.helpers.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave. Its environment and its helpers have been made.

        Raises:
            KeyError: it lacks a helper, or a counter. SpecError, ValueError: a helper cannot take its state.
        """
        self.steps, self.bad_values = plain.whole(state["steps"]), plain.whole(state.get("bad_values", 0))
        self.learned_at = plain.whole(state.get("learned_at", self.steps))
        if self.env is not None:
            self.env.time_steps = plain.whole(state["time_steps"])
            self.env.put_back(None if (held := state.get("carried")) is None else plain.entries(held))
        set_rng_state(self.rng, state["rng"])
        self.helpers.load_state_dict(plain.entries(state["helpers"]))
