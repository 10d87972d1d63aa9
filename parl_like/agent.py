"""Agent: the acting loop, and the thin face of its environment that fires the stages, counts, and carries the stop signal."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from parl_like.agent_helper import Helpers
from parl_like.batch import Batch
from parl_like.data.archive import rng_state, set_rng_state
from parl_like.data.timestep import TimeStep, first_step, next_step
from parl_like.errors import AgentFailed, Interrupted
from parl_like.spec import Array
from parl_like.stages import Hook

if TYPE_CHECKING:
    from parl_like.robot import Robot


STUCK = 1000
"""Calls of `run_one_episode` in a row that did nothing, after which an agent is declared stuck."""


def overridden(observers: Sequence[Any], name: str) -> list[Callable[..., None]]:
    """The bound methods `name` of those observers that have one and do more than `Hook` at this stage."""
    base = getattr(Hook, name)
    methods = [getattr(o, name) for o in observers if hasattr(o, name)]
    return [m for m in methods if getattr(m, "__func__", m) is not base]


def _old_style(error: Exception) -> str:
    """What to say to one who gives us an environment of the time before gymnasium; '' where that is not what happened."""
    wrong = isinstance(error, ValueError) and "values to unpack" in str(error)
    return ("; gymnasium's step returns (obs, reward, terminated, truncated, info) and its reset (obs, info); an old gym environment needs "
            "a wrapper such as shimmy's GymV21CompatibilityV0") if wrong else ""


class EnvFace:
    """The agent's environment: the user's gymnasium one behind a face that everything passes.

    `reset` and `step` return what gymnasium returns. Any other attribute is the environment's own.

    Attributes:
        last: (observation, action, reward, terminated, truncated, info) of the last step; action None after a reset.
        episode_return, episode_length: Of the running or just finished episode; the length counts actions.
        time_steps: Environment steps below action repetition.
        env_index: 0, for this is the agent's only environment; see `VectorFace`.
    """

    env_index = 0

    def __init__(self, env: gym.Env[Any, Any], agent: Agent) -> None:
        self._env, self._agent = env, agent
        self._reset, self._step = env.reset, env.step
        # Spaces are for tasks; a plain function can act in anything with reset and step.
        self.observation_space = getattr(env, "observation_space", None)
        self._use(getattr(env, "action_space", None))
        self.last: tuple[Any, ...] = ()
        self.episode_return: Any = 0.0
        self.episode_length = 0
        self.time_steps = 0
        self.seed: int | None = None
        self._open = False  # an episode is running, or ended without its POST_EPISODE yet
        self._over = True
        self.observe([])

    def _use(self, action_space: gym.Space[Any] | None) -> None:
        """Sets the space of one action. `_n` and `_start` let `step` check a Discrete one without asking the space."""
        self.action_space: Any = action_space
        self._n, self._start = -1, 0
        if isinstance(action_space, gym.spaces.Discrete):
            self._n, self._start = int(action_space.n), int(action_space.start)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_env"], name)

    @property
    def unwrapped(self) -> gym.Env[Any, Any]:
        return self._env.unwrapped

    def observe(self, hooks: list[Hook]) -> None:
        """Sets who hears of the stages: the agent's helpers, then `hooks`."""
        observers = [*self._agent.helpers.values(), *hooks]
        self._pre_episode, self._post_episode = overridden(observers, "pre_episode"), overridden(observers, "post_episode")
        self._pre_act, self._post_act = overridden(observers, "pre_act"), overridden(observers, "post_act")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode. The first reset of a run is seeded from the agent's generator, later ones are not seeded."""
        agent = self._agent
        self.end_episode()
        agent.before_episode()
        seed = self._seed(seed)
        try:
            obs, info = self._reset(seed=seed, options=options)
        except Exception as error:
            raise AgentFailed(f"{agent}: its environment raised in reset(seed={seed}): {type(error).__name__}: {error}{_old_style(error)}") from error
        self.last = (obs, None, 0.0, False, False, info)
        self.episode_return, self.episode_length = 0.0, 0
        self._open, self._over = True, False
        for call in self._pre_episode:
            call(agent)
        return obs, info

    def _seed(self, seed: int | None) -> int | None:
        """The seed of the next reset: the caller's, or at the first one after a start or an interruption the agent's."""
        agent = self._agent
        if seed is None and agent.fresh:
            seed = int(agent.rng.integers(2**31))
        agent.fresh = False
        if seed is not None:
            self.seed = seed
        return seed

    def step(self, act: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Takes one action, `agent.action_repeat` times or until the episode ends; rewards are summed, the last observation counts."""
        agent = self._agent
        if agent.signal is not None:
            agent.obey()
        if not (act.__class__ is int and 0 <= act - self._start < self._n):
            self._check_action(act)
        if self._over:
            raise AgentFailed(f"{agent}: step() after the end of an episode; call reset() first")
        for call in self._pre_act:
            call(agent, act)
        try:
            if agent.action_repeat == 1:
                obs, rew, terminated, truncated, info = self._step(act)
                self.time_steps += 1
            else:
                obs, rew, terminated, truncated, info = self._repeat(act)
        except Exception as error:
            raise AgentFailed(f"{agent}: its environment (seed {self.seed}) raised in step({act!r}), step {self.episode_length} of the "
                              f"episode: {type(error).__name__}: {error}{_old_style(error)}") from error
        self.episode_return += rew
        self.episode_length += 1
        if self.episode_length == agent.max_episode_steps:
            truncated = True  # `terminated` stays what it is: a true end exactly on the limit is an end
        self.last = (obs, act, rew, terminated, truncated, info)
        agent.steps += 1
        robot = agent.robot
        robot.env_steps += 1
        if terminated or truncated:
            self._over = True
            robot.count_episode(float(self.episode_return) if np.ndim(self.episode_return) == 0 else self.episode_return, self.episode_length)
        for call in self._post_act:
            call(agent)
        stop = robot._stop
        if stop is not None and stop(robot):
            robot.request_stop()
        if agent.quota_steps is not None:
            agent.after_step()
        return obs, rew, terminated, truncated, info

    def _repeat(self, act: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        total: Any = 0.0
        frames = []
        scale = 1.0
        for _ in range(self._agent.action_repeat):
            obs, rew, terminated, truncated, info = self._step(act)
            self.time_steps += 1
            if self._agent.keep_frames:
                frames.append(copy.deepcopy(obs))  # the environment may draw its next observation into the same array
            total = total + scale * rew  # type: ignore[operator]  # gymnasium says SupportsFloat; vectors are fine, too
            scale *= self._agent.repeat_discount
            if terminated or truncated:
                break
        if self._agent.keep_frames:
            info = {**info, "frames": frames}
        return obs, total, bool(terminated), bool(truncated), info

    def _check_action(self, act: Any) -> None:
        space = self.action_space
        if space is None:
            return
        fits = False
        try:
            if isinstance(space, gym.spaces.Box):
                value = np.asarray(act)
                fits = value.shape == space.shape and bool((value >= space.low).all() and (value <= space.high).all())
            else:
                fits = bool(space.contains(act))
        except Exception:  # noqa: BLE001 - a space may choke on what is not even nearly an action; that is an answer, too
            fits = False
        if not fits and isinstance(act, Batch):
            raise AgentFailed(f"{self._agent}: the task gave {sorted(act.keys())} and no action; write explorer() of its algorithm, or give its "
                              "helper explorer=, so that predictions become actions")
        if not fits:
            raise AgentFailed(
                f"{self._agent}: action outside the space: expected {space}, got {act!r}; look at the output of the task that made "
                "it, or at the model's action space"
            )

    def end_episode(self) -> None:
        """Fires POST_EPISODE once for the episode that is open, if any: `interrupted` unless the environment had ended it.

        The rows of an interrupted episode get a seam, so that nothing looks from them into the next one.
        """
        if not self._open:
            return
        interrupted = not self._over
        self._open, self._over = False, True
        if interrupted:
            self._agent.cut()
        for call in self._post_episode:
            call(self._agent, interrupted)

    @property
    def is_over(self) -> bool:
        return self._over

    @property
    def time_step(self) -> TimeStep:
        """The last step as a `TimeStep`: discount 0 iff terminated, reward of the action before."""
        obs, act, rew, terminated, truncated, info = self.last
        if act is None:
            return first_step(obs, self._agent.index, info)
        return next_step(obs, rew, terminated, truncated, act, self._agent.index, info)

    def close(self) -> None:
        if hasattr(self._env, "close"):
            self._env.close()


class Agent:
    """Runs episodes in one environment as plain sequential code. Override `run_one_episode` for your own control flow.

    Args:
        max_episode_steps, action_repeat, repeat_discount, keep_frames: See below; None: what the class says. A subclass may set
            them in its body instead.

    Attributes:
        index: Its number.
        env: The environment behind its face.
        helpers: Task name → helper.
        rng: Its own generator.
        steps: Actions taken. The environment's own steps, of which an action may take several, are `env.time_steps`.
        action_repeat: Environment steps per action (K), read at each step, so an action may choose it; `repeat_discount` scales the reward of the k-th, from 0, by its k-th
            power; `keep_frames` puts the K observations into `info["frames"]`.
        max_episode_steps: Actions after which an episode is truncated; None: the environment's own limit only.
    """

    action_repeat = 1
    repeat_discount = 1.0
    keep_frames = False
    max_episode_steps: int | None = None
    n_envs = 1
    vector = False

    def __init__(
        self, *, max_episode_steps: int | None = None, action_repeat: int | None = None, repeat_discount: float | None = None,
        keep_frames: bool | None = None,
    ) -> None:
        options = {"max_episode_steps": max_episode_steps, "action_repeat": action_repeat, "repeat_discount": repeat_discount,
                   "keep_frames": keep_frames}
        for name, value in options.items():
            if value is not None:
                setattr(self, name, value)

    def bind(self, robot: Robot, index: int, rng: np.random.Generator, label: str = "agent") -> None:
        """Called once, by the robot, before anything else."""
        for name in ("action_repeat", "max_episode_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{type(self).__name__}: {name} is {value}; expected at least 1")
        self.robot, self.index, self.rng = robot, index, rng
        self._label = f"{label} {index}"
        self.helpers = Helpers(self._label)
        self.steps = 0
        self.fresh = True
        self.signal: str | None = None
        self.quota_steps: int | None = None
        self.quota_episodes: int | None = None
        self.learns = False

    def __str__(self) -> str:
        return self._label

    def join(self, make: Callable[[], Any]) -> None:
        """Makes the agent's environment."""
        self.env: Any = EnvFace(make(), self)

    # ------------------------------------------------------------------------------------------------------ what users write

    def run_one_episode(self) -> None:
        """Acts until the episode ends: the first task acts, and the helpers of all tasks store every step."""
        helpers = list(self.helpers.values())
        if not helpers:
            raise AgentFailed(f"{self}: the robot has no task that could act; give it one, or write run_one_episode")
        if self.env is None:
            self.robot.count_offline_step()
            for helper in helpers:
                if helper.learns:
                    helper.learn()
            return
        first = helpers[0]
        obs, _ = self.env.reset()
        done = False
        while not done:
            act = first.predict(obs)
            obs_next, rew, terminated, truncated, info = self.env.step(act)
            for helper in helpers:
                helper.store(obs, act, rew, obs_next, terminated, truncated, info)
            obs, done = obs_next, terminated or truncated

    # ------------------------------------------------------------------------------------------------------- called by drivers

    def run(self) -> None:
        """The driver's loop: episodes until stopped; an interruption ends an episode and, unless the run stops, starts another.

        Raises:
            What `run_one_episode` raised, after POST_EPISODE.
            AgentFailed: `run_one_episode` keeps returning without having done anything, so the loop would never end.
        """
        driver = self.robot.driver_of(self)
        done, idle = self._doings(), 0
        while True:
            try:
                self.before_episode()
                self.run_one_episode()
                if self.env is not None:
                    self.env.end_episode()
            except Interrupted:
                self.interrupt()
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                try:
                    self.interrupt()
                except Exception as second:  # noqa: BLE001 - whatever a hook raises now, the first error is the one to report
                    error.add_note(f"afterwards POST_EPISODE of {self} raised {type(second).__name__}: {second}")
                raise
            if self.signal == "stop":
                return
            if self.signal == "interrupt":
                self.signal = None
                driver.park(self)
            before, done = done, self._doings()
            idle = idle + 1 if before == done else 0
            if idle == STUCK and self.env is not None:
                raise AgentFailed(
                    f"{self}: run_one_episode returned {STUCK} times without an environment step or a request; "
                    "it should begin with self.env.reset() and step until the episode ends"
                )

    def _doings(self) -> int:
        """Steps and requests so far, also other agents'."""
        queues = [q for w in self.robot.wrappers.values() for q in (w.predictions, w.trainings)]
        return self.steps + sum(queue.counters.requests for queue in queues)

    def interrupt(self) -> None:
        """The open episode ends here; its rows get a seam, and the next reset is seeded."""
        self.fresh = True
        if self.env is not None:
            self.env.end_episode()

    def cut(self, rows: Array | None = None) -> None:
        """Marks the newest row of every helper as the last one of its episode; of a vector environment in the environments `rows`."""
        for helper in self.helpers.values():
            helper.interrupt(rows)

    def obey(self) -> None:
        """Acts on the signal, at a point where the agent's data is complete."""
        if self.signal in ("stop", "interrupt"):
            raise Interrupted
        if self.signal == "park":
            self.signal = None
            self.robot.driver_of(self).park(self)
            if self.signal is not None:
                self.obey()

    def after_step(self, steps: int = 1) -> None:
        """Counts down the quota of a collection; the agent parks before its next step."""
        if self.quota_steps is not None:
            self.quota_steps -= steps
            if self.quota_steps <= 0 and self.signal is None:
                self.signal = "park"

    def before_episode(self) -> None:
        """Parks while the agent has no episode left of its quota."""
        if self.signal is not None:
            self.obey()
        while self.quota_episodes is not None and self.quota_episodes <= 0:
            self.robot.driver_of(self).park(self)
            if self.signal is not None:
                self.obey()

    def state_dict(self) -> dict[str, Any]:
        time_steps = 0 if self.env is None else self.env.time_steps
        return {"steps": self.steps, "time_steps": time_steps, "rng": rng_state(self.rng),
                "helpers": {name: helper.state_dict() for name, helper in self.helpers.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]
        if self.env is not None:
            self.env.time_steps = state["time_steps"]
        set_rng_state(self.rng, state["rng"])
        for name, helper in self.helpers.items():
            helper.load_state_dict(state["helpers"][name])
