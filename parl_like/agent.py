"""Agent: the acting loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from parl_like.agent_helper import Helpers
from parl_like.data.generators import rng_state, set_rng_state
from parl_like.env_face import EnvFace, watched
from parl_like.errors import AgentFailed, Interrupted
from parl_like.spec import Array, SpecError

STUCK = 1000
"""Calls of `run_one_episode` in a row that did nothing, after which an agent is declared stuck."""


class Agent:
    """Runs episodes in one environment as plain sequential code. Override `run_one_episode` for your own control flow.

    Args:
        max_episode_steps, action_repeat, repeat_discount, keep_frames, on_bad_value: See below; None: what the class says. A
            subclass may set them in its body instead.

    Attributes:
        index: Its number.
        env: The environment behind its face.
        helpers: Task name → helper.
        rng: Its own generator.
        steps: Actions taken. The environment's own steps, of which an action may take several, are `env.time_steps`.
        action_repeat: Environment steps per action (K), read at each step, so an action may choose it; `repeat_discount` scales
            the reward of the k-th, from 0, by its k-th power; `keep_frames` puts the K observations into `info["frames"]`.
        max_episode_steps: Actions after which an episode is truncated; None: the environment's own limit only.
        on_bad_value: What becomes of an observation or reward that is not finite, outside of the declared bounds, or of another
            shape or dtype. 'raise': whoever takes it refuses what it cannot use (NaN, shape, dtype, an integer outside), and the
            run ends. 'drop': the episode ends before that step, like an interrupted one, and another begins, newly seeded.
            'replace': numbers that are not finite become 0, others the nearest legal ones; shapes and dtypes raise. Actions that
            are impossible always raise.
        bad_values: Steps and resets with values that were dropped or replaced.
    """

    action_repeat = 1
    repeat_discount = 1.0
    keep_frames = False
    max_episode_steps: int | None = None
    on_bad_value: Literal["raise", "drop", "replace"] = "raise"
    n_envs = 1
    vector = False
    env: Any = None

    def __init__(
        self, *, max_episode_steps: int | None = None, action_repeat: int | None = None, repeat_discount: float | None = None,
        keep_frames: bool | None = None, on_bad_value: Literal["raise", "drop", "replace"] | None = None,
    ) -> None:
        for name, value in (("max_episode_steps", max_episode_steps), ("action_repeat", action_repeat),
                            ("repeat_discount", repeat_discount), ("keep_frames", keep_frames), ("on_bad_value", on_bad_value)):
            if value is not None:
                setattr(self, name, value)

    def bind(self, robot: Any, index: int, rng: np.random.Generator, label: str = "agent") -> None:
        """Called once, before anything else, by the crew that it belongs to: the robot, that of an evaluation, or that of a
        worker process."""
        for name in ("action_repeat", "max_episode_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{type(self).__name__}: {name} is {value}; expected at least 1")
        if self.on_bad_value not in ("raise", "drop", "replace") or (self.vector and self.on_bad_value != "raise"):
            rest = " of an agent with a vector environment; wrap the single ones" if self.vector else ", 'drop' or 'replace'"
            raise ValueError(f"{type(self).__name__}: on_bad_value is {self.on_bad_value!r}; expected 'raise'{rest}")
        self.robot, self.index, self.rng = robot, index, rng
        self._label = f"{label} {index}"
        self.helpers = Helpers(self._label)
        self.steps = self.bad_values = 0
        self.fresh = True  # the next reset is seeded
        self.signal: str | None = None
        self.quota_steps: int | None = None
        self.quota_episodes: int | None = None
        self.learns = False
        self.fault: SpecError | None = None  # why an episode was dropped last
        self.told: set[str] = set()  # what of the process its environment has changed

    def __str__(self) -> str:
        return self._label

    def join(self, make: Callable[[], Any]) -> None:
        """Makes the agent's environment."""
        with watched(self, "made"):
            env = make()
        self.env = EnvFace(env, self)

    def count_bad(self, text: str) -> None:
        """Counts a value that was dropped or replaced."""
        self.bad_values += 1
        self.robot.count_bad(text)

    # ------------------------------------------------------------------------------------------------------ what users write

    def run_one_episode(self) -> None:
        """Acts until the episode ends: the first task acts, and the helpers of all tasks store every step."""
        robot, helpers = self.robot, list(self.helpers.values())
        if not helpers:
            raise AgentFailed(f"{self}: the robot has no task that could act; give it one, or write run_one_episode")
        if self.env is None:
            robot.env_steps += 1  # a round of learning counts as a step, so that stop conditions work
            if robot._stop is not None and robot._stop(robot):
                robot.request_stop()
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
                    error.add_note(f"{self}: its environment (seed {self.env.seed}), after {self.env.episode_length} steps of "
                                   "the episode")
                try:
                    self.interrupt()
                except Exception as second:  # noqa: BLE001 - whatever a hook raises now, the first error is the one to report
                    error.add_note(f"afterwards POST_EPISODE of {self} raised {type(second).__name__}: {second}")
                raise
            if self.signal == "stop":
                return
            if self.signal == "interrupt":
                self.signal = None
                self.robot._driver.park(self)
            before, done = done, self._doings()
            idle = idle + 1 if before == done else 0
            if idle == STUCK and self.env is not None:
                raise AgentFailed(
                    f"{self}: run_one_episode returned {STUCK} times without an environment step or a request; "
                    "it should begin with self.env.reset() and step until the episode ends"
                ) from self.fault

    def _doings(self) -> int:
        """Steps and requests so far, also other agents'."""
        wrappers = self.robot.wrappers.values()
        return self.steps + sum(int(queue.counters.requests) for w in wrappers for queue in (w.predictions, w.trainings))

    def interrupt(self) -> None:
        """The open episode ends here; its rows get a seam, and the next reset is seeded."""
        self.fresh = True
        if self.env is not None:
            self.env.end_episode()

    def cut(self, rows: Array | None = None) -> None:
        """Marks the newest row of every helper as the last one of its episode; of a vector environment in the environments
        `rows`."""
        for helper in self.helpers.values():
            helper.interrupt(rows)

    def obey(self) -> None:
        """Acts on the signal, at a point where the agent's data is complete."""
        while self.signal is not None:
            if self.signal != "park":
                raise Interrupted
            self.signal = None
            self.robot._driver.park(self)

    def before_episode(self) -> None:
        """Parks while the agent has no episode left of its quota."""
        self.obey()
        while self.quota_episodes is not None and self.quota_episodes <= 0:
            self.robot._driver.park(self)
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
