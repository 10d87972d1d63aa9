"""Agent: the acting loop, and the thin face of its environment that fires the stages, counts, and carries the stop signal."""

from __future__ import annotations

import copy
import logging
import math
import os
import random
import signal as signals
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import gymnasium as gym
import numpy as np
import torch

from parl_like.agent_helper import Helpers
from parl_like.batch import Batch
from parl_like.data.archive import rng_state, set_rng_state
from parl_like.data.timestep import TimeStep, first_step, next_step
from parl_like.errors import AgentFailed, Interrupted
from parl_like.spec import Array, Spec, SpecError, leaves, nest, specs_of
from parl_like.stages import Hook

if TYPE_CHECKING:
    from parl_like.robot import Robot

log = logging.getLogger(__name__)

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


DIRECTORY, CTRL_C = "the working directory", "the handler of Ctrl-C"
_PUT_BACK, _SHARED = "put back", "not put back: other threads share it"
_LEFT = "left so: nothing of the framework draws from it, but then reset(seed=...) does not decide what the environment does"


@contextmanager
def watched(agent: Agent, doing: str, generators: bool = True) -> Iterator[None]:
    """Around code of an environment: tells, once per agent and thing, what it changed that belongs to the whole process.

    The working directory and the handler of Ctrl-C are put back, except in a thread beside others that may rely on them. The global
    random generators are left as they are: an environment that draws from them would else repeat itself in every episode. Ours
    never do, so whatever happens to them, what we draw stays the same.

    Args:
        doing: What the environment is doing, for the warning.
        generators: Whether to look at the generators too, which costs 0.1 ms instead of 10 µs.
    """
    alone = threading.current_thread() is threading.main_thread()
    before = _belongings(alone, generators)
    try:
        yield
    finally:
        after = _belongings(alone, generators)
        changed = {name for name, value in before.items() if value is not None and value != after[name]}
        if changed and alone:
            if DIRECTORY in changed:
                os.chdir(before[DIRECTORY])
            if CTRL_C in changed:
                signals.signal(signals.SIGINT, before[CTRL_C])
        new = sorted(changed - agent.told)
        if new:
            agent.told.update(new)
            hints = [f"{name} ({_PUT_BACK if alone else _SHARED})" if name in (DIRECTORY, CTRL_C) else f"{name} ({_LEFT})" for name in new]
            warnings.warn(f"{agent}: while its environment was {doing}, something changed {' and '.join(hints)}", RuntimeWarning, stacklevel=4)


def _belongings(alone: bool, generators: bool) -> dict[str, Any]:
    """What environments shall not change, by name; None where it cannot be told.

    Args:
        alone: This is the main thread. In another one, handlers and torch's generator tell nothing: the main thread holds Ctrl-C off at
            times, and lessons with dropout borrow the generator.
        generators: As for `watched`.
    """
    try:
        out: dict[str, Any] = {DIRECTORY: os.getcwd()}
    except OSError:  # it was deleted
        out = {DIRECTORY: None}
    if alone:
        out[CTRL_C] = signals.getsignal(signals.SIGINT)
    if generators:
        numbers = np.random.get_state(legacy=False)["state"]
        out["the global generator of random"] = random.getstate()
        out["the global generator of numpy"] = numbers["pos"], numbers["key"].tobytes()
        if alone:
            out["the global generator of torch"] = torch.get_rng_state().numpy().tobytes()
    return out


class Acceptance:
    """What an environment's observations and rewards must be like, and what can be mended.

    Args:
        env: Its `observation_space` and, where rewards are vectors, `reward_space` are what is declared. What has no fixed shape is not
            looked at.
        mend: Numbers that are not finite become 0, and those outside the bounds the nearest legal ones. Else they are refused.
    """

    def __init__(self, env: Any, mend: bool) -> None:
        self.mend = mend
        try:
            self.specs = specs_of(env.observation_space, "obs")
        except (AttributeError, TypeError):
            self.specs = {}
        rewards = getattr(getattr(env, "unwrapped", env), "reward_space", None)
        self.reward = Spec("rew", rewards.shape if isinstance(rewards, gym.spaces.Box) else (), np.dtype(np.float64))

    def observation(self, obs: Any) -> Any:
        """`obs` itself where it is as declared, else mended.

        Raises:
            SpecError: what it is not.
        """
        if not self.specs:
            return obs
        flat = dict(leaves(obs, "obs"))
        if flat.keys() != self.specs.keys():
            raise SpecError(f"field 'obs': expected {', '.join(self.specs)}, got {', '.join(flat) or 'nothing'}; give the keys of the space")
        mended = {name: self.value(spec, flat[name]) for name, spec in self.specs.items()}
        return obs if all(mended[name] is flat[name] for name in flat) else nest(mended)["obs"]

    def value(self, spec: Spec, value: Any) -> Any:
        """The same for one array."""
        if type(value) is float and math.isfinite(value) and spec is self.reward and not spec.shape:
            return value  # what nearly all rewards are
        array = value
        try:
            numbers = np.asarray(value)
        except (TypeError, ValueError):
            numbers = spec.convert(value)  # which says what is wrong with it
        if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
            if not self.mend:
                raise spec.error(f"{value!r:.60}", "give finite numbers")
            array = np.where(np.isfinite(numbers), numbers, 0).astype(numbers.dtype)
        row = spec.convert(array)
        if spec.low is not None and not ((row >= spec.low) & (row <= spec.high)).all():
            if not self.mend:
                raise spec.error(f"{value!r:.60}", "stay within the bounds of the space")
            array = np.clip(row, spec.low, spec.high).astype(row.dtype)
        return array


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
        self._step = env.step
        self._known = False  # whether it was reset once
        self._accepts = None if agent.on_bad_value == "raise" else Acceptance(env, agent.on_bad_value == "replace")
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
        self.episode_return, self.episode_length = 0.0, 0
        if self._accepts is not None:
            obs, _ = self._accepted(self._accepts, obs, 0.0, False)
        self.last = (obs, None, 0.0, False, False, info)
        self._open, self._over = True, False
        for call in self._pre_episode:
            call(agent)
        return obs, info

    def _reset(self, **options: Any) -> Any:
        """The environment's own reset. It is watched the first time, and always where the environment has changed something before."""
        if self._known and not self._agent.told:
            return self._env.reset(**options)
        with watched(self._agent, "reset", not self._known):
            self._known = True
            return self._env.reset(**options)

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
        if self._accepts is not None:
            obs, rew = self._accepted(self._accepts, obs, rew, True)
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

    def _accepted(self, accepts: Acceptance, obs: Any, rew: Any, stepped: bool) -> tuple[Any, Any]:
        """What the environment gave, as the agent gets it (`Agent.on_bad_value`).

        Raises:
            SpecError: it cannot be mended. Interrupted: the episode is dropped.
        """
        agent = self._agent
        where = f"{agent}: its environment (seed {self.seed}), {f'step {self.episode_length} of the episode' if stepped else 'reset'}"
        try:
            good_obs, good_rew = accepts.observation(obs), accepts.value(accepts.reward, rew)
        except SpecError as error:
            fault = SpecError(f"{where}: {error}")
            if accepts.mend:
                raise fault from None
            agent.count_bad(f"{fault} (episode dropped)")
            self._drop(fault, stepped)
        if good_obs is not obs or good_rew is not rew:
            agent.count_bad(f"{where}: replaced {obs!r:.60}, reward {rew!r:.20} by {good_obs!r:.60}, {good_rew!r:.20}")
        return good_obs, good_rew

    def _drop(self, fault: SpecError, stepped: bool) -> NoReturn:
        """Ends the episode before the step that gave bad values. The step counts, so that a run of nothing else ends, too."""
        agent = self._agent
        agent.fault = fault
        if stepped:
            agent.steps += 1
            robot = agent.robot
            robot.env_steps += 1
            if robot._stop is not None and robot._stop(robot):
                robot.request_stop()
            agent.after_step()
        raise Interrupted

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
        max_episode_steps, action_repeat, repeat_discount, keep_frames, on_bad_value: See below; None: what the class says. A subclass may set
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
        on_bad_value: What becomes of an observation or reward that is not finite, outside of the declared bounds, or of another shape or
            dtype. 'raise': whoever takes it refuses what it cannot use (NaN, shape, dtype, an integer outside), and the run ends. 'drop':
            the episode ends before that step, like an interrupted one, and another begins, newly seeded. 'replace': numbers that are not
            finite become 0, others the nearest legal ones; shapes and dtypes raise. Actions that are impossible always raise.
        bad_values: Steps and resets with values that were dropped or replaced.
    """

    action_repeat = 1
    repeat_discount = 1.0
    keep_frames = False
    max_episode_steps: int | None = None
    on_bad_value: Literal["raise", "drop", "replace"] = "raise"
    n_envs = 1
    vector = False

    def __init__(
        self, *, max_episode_steps: int | None = None, action_repeat: int | None = None, repeat_discount: float | None = None,
        keep_frames: bool | None = None, on_bad_value: Literal["raise", "drop", "replace"] | None = None,
    ) -> None:
        options = {"max_episode_steps": max_episode_steps, "action_repeat": action_repeat, "repeat_discount": repeat_discount,
                   "keep_frames": keep_frames, "on_bad_value": on_bad_value}
        for name, value in options.items():
            if value is not None:
                setattr(self, name, value)

    def bind(self, robot: Robot, index: int, rng: np.random.Generator, label: str = "agent") -> None:
        """Called once, by the robot, before anything else."""
        for name in ("action_repeat", "max_episode_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{type(self).__name__}: {name} is {value}; expected at least 1")
        if self.on_bad_value not in ("raise", "drop", "replace") or (self.vector and self.on_bad_value != "raise"):
            raise ValueError(f"{type(self).__name__}: on_bad_value is {self.on_bad_value!r}; expected 'raise'"
                             + (" of an agent with a vector environment; wrap the single ones" if self.vector else ", 'drop' or 'replace'"))
        self.robot, self.index, self.rng = robot, index, rng
        self._label = f"{label} {index}"
        self.helpers = Helpers(self._label)
        self.steps = 0
        self.fresh = True
        self.signal: str | None = None
        self.quota_steps: int | None = None
        self.quota_episodes: int | None = None
        self.learns = False
        self.bad_values = 0
        self.fault: SpecError | None = None  # why an episode was dropped last
        self.told: set[str] = set()  # what of the process its environment changed, and a warning has said so

    def __str__(self) -> str:
        return self._label

    def join(self, make: Callable[[], Any]) -> None:
        """Makes the agent's environment."""
        with watched(self, "made"):
            env = make()
        self.env: Any = EnvFace(env, self)

    def count_bad(self, text: str) -> None:
        """Counts a value that was dropped or replaced; the log has the 1st, 2nd, 4th, 8th …, so that it stays small."""
        self.bad_values += 1
        self.robot.bad_values += 1
        if not self.bad_values & (self.bad_values - 1):
            log.warning("%s; bad values so far: %d", text, self.bad_values)

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
                if isinstance(error, SpecError) and self.env is not None:
                    error.add_note(f"{self}: its environment (seed {self.env.seed}), after {self.env.episode_length} steps of the episode")
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
                ) from self.fault

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
        return {"steps": self.steps, "time_steps": time_steps, "bad_values": self.bad_values, "rng": rng_state(self.rng),
                "helpers": {name: helper.state_dict() for name, helper in self.helpers.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps, self.bad_values = state["steps"], state.get("bad_values", 0)
        if self.env is not None:
            self.env.time_steps = state["time_steps"]
        set_rng_state(self.rng, state["rng"])
        for name, helper in self.helpers.items():
            helper.load_state_dict(state["helpers"][name])
