"""Statistics: what the agents of a pool have done, counted, and the numbers that a log gets of it."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

import numpy as np

from parl_like.agents.row_counts import RowCounts, cut_remark
from parl_like.values import plain
from parl_like.values.parts import view
from parl_like.values.plain import State
from parl_like.values.spec import Array

log = logging.getLogger(__name__)


class Statistics:
    """Counters of a pool, and the newest 100 episodes.

    Agents' threads add to these without a lock: CPython changes threads only after calls and jumps, never within a `+=`.
    The value of a call (next() of a counter) could be stored late, over a larger one.

    Attributes:
        env_steps, episodes, iterations: See `Robot.counters`.
        bad_values: Steps and resets with values that were dropped or replaced.
        episodes_cut: Episodes that interruptions have cut off.
        ended_once: Numbers of the environments that have ended an episode.
        departed_time_steps: Time steps of environments whose agents have left.
        recent_parts: Sums of the rewards that a weighted one is made of, by episode.
        rows: Rows of on-policy tasks.
        players: Names of the players of the environments, whose returns are vectors in this order; (): each has one.

    Args:
        warns: Whether the log has a warning when many rows are dropped. (Of a worker process the robot warns.)
    """

    def __init__(self, warns: bool = True) -> None:
        self.env_steps = self.episodes = self.iterations = self.bad_values = self.episodes_cut = self.departed_time_steps = 0
        self.ended_once: set[int] = set()
        self.recent_returns: deque[Any] = deque(maxlen=100)
        self.recent_lengths: deque[int] = deque(maxlen=100)
        self.recent_parts: deque[Any] = deque(maxlen=100)
        self.rows = RowCounts(warns)
        self.players: tuple[str, ...] = ()
        self._bad_logged = 0  # a worker's `bad_values` are counted off
        self._warned_of_cuts = False

    def count_episode(self, env: int, episode_return: object, length: int, parts: Any = ()) -> None:
        """Count an episode that has ended in the environment of this number (`Agent.first_env`); `parts` are the sums of the
        rewards that a weighted one is made of."""
        self.ended_once.add(env)
        if len(parts):
            self.recent_parts.append(np.array(parts, np.float64))
        self.recent_returns.append(episode_return)
        self.recent_lengths.append(length)
        self.episodes += 1

    def count_bad(self, text: str) -> None:
        """Count a value of an environment that was dropped or replaced; the log has the 1st, 2nd, 4th, 8th …, so that it stays
        small."""
        self.bad_values += 1
        self._bad_logged += 1
        if not self._bad_logged & (self._bad_logged - 1):
            log.warning("%s; bad values so far: %d", text, self._bad_logged)

    def count_rows(self, task: str, learned: int, dropped: int) -> None:
        """Count rows that an on-policy task has learned from, and those that were too old by then."""
        self.rows.count(task, learned, dropped)

    def warn_of_cuts(self) -> None:
        """Warn, once, where so many episodes were cut off that the returns say little."""
        if not self._warned_of_cuts and (text := cut_remark(self.episodes_cut, self.episodes)):
            self._warned_of_cuts = True
            log.warning(text)

    def remarks(self) -> list[str]:
        """Return sentences that a user should read at the end of a run; usually none."""
        cuts = cut_remark(self.episodes_cut, self.episodes)
        return [*self.rows.remarks(), *[cuts] * bool(cuts)]

    def metrics(self, n_envs: int) -> dict[str, float]:
        """Return what `Robot.metrics` says of episodes and bad values.

        Args:
            n_envs: Environments of all agents.
        """
        out: dict[str, float] = {}
        if self.recent_returns:
            returns = np.asarray(self.recent_returns, dtype=np.float64)
            out |= {"return/mean": float(returns.mean()), "return/max": float(returns.max()),
                    "return/last": float(returns[-1].mean()), "episode/length": float(np.mean(self.recent_lengths))}
        parts = np.asarray(self.recent_parts or [r for r in self.recent_returns if np.ndim(r)], np.float64)
        names = self.players or [f"part_{i}" for i in range(parts.shape[-1])]
        out |= {f"return/{name}": float(mean) for name, mean in zip(names, parts.mean(0), strict=False)} if len(parts) else {}
        if self.bad_values:
            out["bad_values"] = float(self.bad_values)
        if self.episodes_cut:
            out["episodes_cut"] = float(self.episodes_cut)
        if first_open := n_envs - len(self.ended_once):
            out["episode/first_open"] = float(max(first_open, 0))
        return out

    def state_dict(self) -> State:
        """Return the counters as JSON values, under the keys of checkpoints."""
        return {
            "env_steps": self.env_steps, "episodes": self.episodes, "iterations": self.iterations,
            "returns": [np.asarray(r, np.float64).tolist() for r in self.recent_returns], "lengths": list(self.recent_lengths),
            "parts": [parts.tolist() for parts in self.recent_parts], "rows": self.rows.state_dict(),
            "episodes_cut": self.episodes_cut, "ended_once": sorted(self.ended_once),
            "departed_time_steps": self.departed_time_steps,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore `state_dict()`. Raises ValueError where returns have different lengths."""
        counts = [plain.whole(state[key]) for key in ("env_steps", "episodes", "iterations")]
        returns = plain.listed(state["returns"])
        np.array(returns, np.float64)  # refuses those of different lengths
        self.env_steps, self.episodes, self.iterations = counts
        self.recent_returns = deque((np.asarray(r) if isinstance(r, list) else r for r in returns), maxlen=100)
        self.recent_lengths = deque(plain.wholes(state["lengths"]), maxlen=100)
        self.recent_parts = deque(map(np.asarray, plain.listed(state["parts"])), maxlen=100)
        self.rows.load_state_dict({task: plain.wholes(counts) for task, counts in plain.entries(state["rows"]).items()})
        self.ended_once, self.episodes_cut = set(plain.wholes(state["ended_once"])), plain.whole(state["episodes_cut"])
        self.departed_time_steps = plain.whole(state["departed_time_steps"])


class Counted:
    """A view of a pool's statistics, by the names that stop conditions, hooks and agents use."""

    statistics: Statistics
    env_steps: int = view("statistics.env_steps", "The agents' actions.")
    episodes: int = view("statistics.episodes", "Episodes that have ended by themselves.")
    iterations: int = view("statistics.iterations", "Iterations of the run.")
    bad_values: int = view("statistics.bad_values", "Steps and resets with values that were dropped or replaced.")
    episodes_cut: int = view("statistics.episodes_cut", "Episodes that interruptions have cut off.")
    recent_returns: deque[float | Array] = view("statistics.recent_returns", "Returns of the newest 100 episodes.")
    recent_lengths: deque[int] = view("statistics.recent_lengths", "Lengths of the newest 100 episodes, in steps.")
    players: tuple[str, ...] = view(
        "statistics.players", "Names of the environments' players, in the order of returns; () where each has one.")
