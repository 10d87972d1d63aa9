"""Small Markov decision processes given by their tables, with exact values by dynamic programming, and the random walk.

The cliff of Sutton & Barto (2018), example 6.6, and FrozenLake are gymnasium's `CliffWalking-v1` and `FrozenLake-v1`; their
tables agree with the exact numbers that this project is held to, so there is none of our own. `TableEnv.from_gymnasium` takes
such an environment's table over, for its values and for a twin whose state can be cloned.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.data.chains import endless
from parl_like.data.rng import rng_state, set_rng_state
from parl_like.values.limits import check_array
from parl_like.values.spec import Array

Outcome = tuple[float, int, float, bool]
"""Probability, next state, reward, whether the episode ends with it."""

CONVERGED = 1e-13
"""Change of the values, as a share of the largest, at which value iteration without a discount stops."""
MAX_SWEEPS = 1_000_000


class TableEnv(gym.Env[Any, Any]):
    """A Markov decision process of S states and A actions, given by its tables.

    Observation: the state, an int 0 … S − 1. An episode begins in a state of `start` and terminates on arriving in a terminal
    one; a step after that raises. Deterministic entries draw no random number.

    Args:
        P: Where an action leads: [S, A] integers, the next state; or [S, A, S] probabilities.
        R: Reward of a state and action [S, A], or also of the next state [S, A, S].
        terminal: States that end an episode. What P and R say of them is not used.
        start: The first state, or the probability of each [S].
        render_mode: "ansi": the state as text.

    Attributes:
        P: [S, A, S] float64, probability of each next state.
        R: [S, A] float64, expected reward.
        goes_on: [S, A, S] float64, probability of each next state without the episode ending there.
        start: [S] float64, probability of each first state.
        n_states, n_actions: S, A.
        state: The state now.

    Raises:
        ValueError: tables of other shapes, not finite, or rows that are no probabilities; states that do not exist; so many
            that P would be larger than `parl_like.values.limits` allows.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}

    def __init__(self, P: Any, R: Any, *, terminal: Iterable[int] = (), start: Any = 0, render_mode: str | None = None) -> None:
        P, R, ends = np.asarray(P), np.asarray(R, np.float64), {operator.index(s) for s in terminal}
        if P.ndim not in (2, 3) or 0 in P.shape or P.ndim == 3 and P.shape[0] != P.shape[2]:
            raise ValueError(f"TableEnv: P has shape {P.shape}; expected [S, A] next states or [S, A, S] probabilities")
        n, n_actions = P.shape[:2]
        if R.shape not in ((n, n_actions), (n, n_actions, n)):
            raise ValueError(f"TableEnv: R has shape {R.shape}; expected {(n, n_actions)} or {(n, n_actions, n)}")
        if P.ndim == 2 and P.dtype.kind not in "iu":
            raise ValueError(f"TableEnv: P of shape [S, A] holds {P.dtype}; expected integers, the next states")
        if wrong := ends - set(range(n)):
            raise ValueError(f"TableEnv: terminal state {min(wrong)} does not exist; there are {n}")

        def outcomes(s: int, a: int) -> list[Outcome]:
            if s in ends:
                return [(1.0, s, 0.0, True)]
            nexts = [(1.0, int(P[s, a]))] if P.ndim == 2 else [(float(P[s, a, t]), int(t)) for t in np.flatnonzero(P[s, a])]
            return [(p, t, float(R[s, a] if R.ndim == 2 else R[s, a, t % n]), t in ends) for p, t in nexts]

        self._build([[outcomes(s, a) for a in range(n_actions)] for s in range(n)], start, render_mode)

    @classmethod
    def from_outcomes(cls, outcomes: Any, start: Any = 0, *, render_mode: str | None = None) -> TableEnv:
        """From `outcomes[state][action]`, a list of (probability, next state, reward, terminated), as gymnasium's toy texts have
        it."""
        env = TableEnv.__new__(TableEnv)
        env._build([[list(outcomes[s][a]) for a in range(len(outcomes[s]))] for s in range(len(outcomes))], start, render_mode)
        return env

    @classmethod
    def from_gymnasium(cls, env: gym.Env[Any, Any]) -> TableEnv:
        """The table of one of gymnasium's toy texts (FrozenLake, CliffWalking, Taxi): its `P` and `initial_state_distrib`.

        Limits of wrappers, such as FrozenLake's 100 steps, are not part of it.

        Raises:
            TypeError: it has no such table.
        """
        bare: Any = env.unwrapped
        if not isinstance(getattr(bare, "P", None), Mapping) or not hasattr(bare, "initial_state_distrib"):
            raise TypeError(f"{bare} has no table P and initial_state_distrib; only gymnasium's toy texts have them")
        return cls.from_outcomes(bare.P, bare.initial_state_distrib)

    def _build(self, outcomes: Sequence[Sequence[Sequence[Outcome]]], start: Any, render_mode: str | None) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"TableEnv: render_mode is {render_mode!r}; expected 'ansi' or None")
        self.n_states = n = len(outcomes)
        self.n_actions = n_actions = len(outcomes[0])
        check_array(f"{type(self).__name__}: {n} states, {n_actions} actions", n, n_actions, n, dtype=np.float64,
                    lower="the number of states")
        self.P, self.R, self.goes_on = np.zeros((n, n_actions, n)), np.zeros((n, n_actions)), np.zeros((n, n_actions, n))
        # What step needs: per state and action the summed probabilities but the last, and what follows.
        self._bounds: list[list[list[float]]] = []
        self._nexts: list[list[list[tuple[int, float, bool]]]] = []
        for s, rows in enumerate(outcomes):
            if len(rows) != n_actions:
                raise ValueError(f"TableEnv: state {s} has {len(rows)} actions, state 0 has {n_actions}")
            self._bounds.append([])
            self._nexts.append([])
            for a, row in enumerate(rows):
                chances = np.array([p for p, *_ in row], np.float64)
                if not (np.isfinite(chances).all() and (chances >= 0).all() and abs(chances.sum() - 1.0) <= 1e-9):
                    raise ValueError(f"TableEnv: state {s}, action {a}: probabilities {chances.tolist()} do not sum to 1")
                follows = [(operator.index(t), float(r), bool(done)) for _, t, r, done in row]
                for p, (t, r, done) in zip(chances, follows, strict=True):
                    if not (0 <= t < n and np.isfinite(r)):
                        raise ValueError(f"TableEnv: state {s}, action {a}: next state {t} and reward {r}; expected a state of "
                                         f"{n} and a finite number")
                    self.P[s, a, t] += p
                    self.R[s, a] += p * r
                    self.goes_on[s, a, t] += 0.0 if done else p
                self._bounds[s].append(np.cumsum(chances)[:-1].tolist())
                self._nexts[s].append(follows)
        first = np.asarray(start, np.float64)
        if first.ndim == 0:
            first = np.eye(n)[self._existing(start, "start state")]
        if first.shape != (n,) or not (first >= 0).all() or abs(first.sum() - 1.0) > 1e-9:
            raise ValueError(f"TableEnv: start is {start!r}; expected a state or {n} probabilities")
        self.start = first
        self._firsts = np.flatnonzero(first).tolist()
        self._first_bounds = np.cumsum(first[self._firsts])[:-1].tolist()
        self.observation_space = gym.spaces.Discrete(n)
        self.action_space = gym.spaces.Discrete(n_actions)
        self.render_mode = render_mode
        self.state = int(self._firsts[0])
        self._over = True

    # ----------------------------------------------------------------------------------------------------------- acting

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Begins an episode; the option `state` says where, instead of `start`.

        Raises:
            ValueError: there is another option.
        """
        super().reset(seed=seed)
        if unknown := set(options or {}) - {"state"}:
            raise ValueError(f"{type(self).__name__}: reset has no option {', '.join(map(repr, sorted(unknown)))}; there is "
                             "'state'")
        if options:
            self.state = self._existing(options["state"], "state")
        else:
            self.state = self._firsts[self._draw(self._first_bounds)]
        self._over = False
        return self.state, {}

    def _existing(self, state: Any, what: str, where: str = "") -> int:
        s = operator.index(state)
        if not 0 <= s < self.n_states:
            raise ValueError(f"{type(self).__name__}: {what} {s} does not exist{where}; there are {self.n_states}")
        return s

    def _draw(self, bounds: list[float]) -> int:
        return bisect_right(bounds, self.np_random.random()) if bounds else 0

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Takes an action: the next state is drawn from the table.

        Raises:
            ResetNeeded: no episode is open.
            ValueError: action is not in 0 … A − 1.
        """
        if self._over:
            raise gym.error.ResetNeeded(f"{type(self).__name__}: step() without an open episode; call reset() first")
        a = operator.index(action)
        if not 0 <= a < self.n_actions:
            raise ValueError(f"{type(self).__name__}: action is {a}; expected 0 to {self.n_actions - 1}")
        s = self.state
        self.state, reward, self._over = self._nexts[s][a][self._draw(self._bounds[s][a])]
        return self.state, reward, self._over, False, {}

    def render(self) -> Any:
        return f"state {self.state} of {self.n_states}\n" if self.render_mode == "ansi" else None

    def clone_state(self) -> dict[str, Any]:
        """Everything that what comes next depends on: state, whether the episode is over, generator. Plain values."""
        return {"state": self.state, "over": self._over, "rng": rng_state(self.np_random)}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to a cloned state, also one of another environment with the same tables."""
        self.state = self._existing(state["state"], "cloned state", " here")
        set_rng_state(self.np_random, state["rng"])
        self._over = state["over"]

    # ------------------------------------------------------------------------------------------------------ exact values

    def uniform(self) -> Array:
        """[S, A] float64: every action with the same probability."""
        return np.full((self.n_states, self.n_actions), 1.0 / self.n_actions)

    def values(self, policy: Any = None, gamma: float = 1.0, horizon: int | None = None) -> Array:
        """Exact value of every state under a policy, by solving the linear equations.

        Args:
            policy: [S, A] probabilities; [S] integers, the action taken; None: uniform.
            gamma: Discount, 0 to 1.
            horizon: Steps after which an episode is cut off and counts no further; None: never.

        Returns:
            [S] float64. Terminal states have 0. With gamma 1 and no horizon, nan where the episode may go on for ever.
        """
        self._check_gamma(gamma)
        pi = self._probabilities(policy)
        rewards, moves = np.einsum("sa,sa->s", pi, self.R), np.einsum("sa,sat->st", pi, self.goes_on)
        if horizon is not None:
            v = np.zeros(self.n_states)
            for _ in range(horizon):
                v = rewards + gamma * (moves @ v)
            return v
        v = np.full(self.n_states, np.nan)
        kept = np.flatnonzero(~endless(moves)) if gamma == 1.0 else np.arange(self.n_states)
        v[kept] = np.linalg.solve(np.eye(len(kept)) - gamma * moves[np.ix_(kept, kept)], rewards[kept])
        return v

    def q_values(self, values: Any, gamma: float = 1.0) -> Array:
        """[S, A] float64: what each action is worth where the next state is worth `values` [S]."""
        return np.asarray(self.R + gamma * (self.goes_on @ np.asarray(values, np.float64)))

    def optimal(self, gamma: float = 1.0, horizon: int | None = None) -> Array:
        """Exact value [S] float64 of every state under the best policy; `greedy(q_values(...))` is such a policy.

        Below 1 by policy iteration, exact up to rounding. With gamma 1 by value iteration from 0 until nothing changes; that is
        right where every reward has the same sign or every policy ends. With a horizon the policy may depend on the steps left.

        Raises:
            ArithmeticError: the values with gamma 1 grow without a bound.
        """
        self._check_gamma(gamma)
        v: Array = np.zeros(self.n_states)
        if horizon is not None:
            for _ in range(horizon):
                v = self.q_values(v, gamma).max(1)
            return v
        if gamma < 1.0:
            policy = np.zeros(self.n_states, np.int64)
            while True:
                v = self.values(policy, gamma)
                q = self.q_values(v, gamma)
                better = q.max(1) > v + 1e-12 * (1.0 + np.abs(v))  # rounding must not swap two equal actions for ever
                if not better.any():
                    return v
                policy = np.where(better, q.argmax(1), policy)
        for _ in range(MAX_SWEEPS):
            new: Array = self.q_values(v, gamma).max(1)
            if np.abs(new - v).max() <= CONVERGED * max(1.0, float(np.abs(new).max())):
                return new
            v = new
        raise ArithmeticError(f"{type(self).__name__}: values without a discount did not converge in {MAX_SWEEPS} sweeps; use "
                              "gamma < 1 or a horizon")

    @staticmethod
    def greedy(q: Any) -> Array:
        """[S] int64: the first best action of each row of q [S, A]; values within 1e-9 are equal."""
        q = np.asarray(q)
        return np.asarray((q >= q.max(1, keepdims=True) - 1e-9).argmax(1))

    def _check_gamma(self, gamma: float) -> None:
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"{type(self).__name__}: gamma is {gamma}; expected a number in [0, 1]")

    def _probabilities(self, policy: Any) -> Array:
        if policy is None:
            return self.uniform()
        pi = np.asarray(policy)
        if pi.shape == (self.n_states,) and pi.dtype.kind in "iu" and ((pi >= 0) & (pi < self.n_actions)).all():
            return np.asarray(np.eye(self.n_actions)[pi])
        pi = pi.astype(np.float64)
        if pi.shape != (self.n_states, self.n_actions) or not ((pi >= 0).all() and np.allclose(pi.sum(1), 1.0, atol=1e-9)):
            raise ValueError(f"{type(self).__name__}: policy of shape {pi.shape}; expected {self.n_states} actions or "
                             f"probabilities {(self.n_states, self.n_actions)}")
        return pi


class RandomWalk(TableEnv):
    """States in a row, both ends terminal, a step left or right; starts in the middle.

    With 7 states and rewards (0, 1) this is example 6.2 of Sutton & Barto (2018); with (−1, 1) the usual test of value
    prediction.

    Actions: 0 left, 1 right. The reward is that of the end which is reached, else 0.

    Args:
        n: States, both ends included; 3 to 2,048. Of an even number the left one of the two in the middle is the start.
        rewards: At the left and the right end.
        render_mode: "ansi": the row with the walker as text.

    Raises:
        ValueError: n is below 3.
    """

    def __init__(self, n: int = 7, rewards: tuple[float, float] = (-1.0, 1.0), *, render_mode: str | None = None) -> None:
        if n < 3:
            raise ValueError(f"RandomWalk: n is {n}; expected at least 3, two ends and a state between")
        check_array(f"RandomWalk: n is {n}", n, 2, n, dtype=np.float64)
        self.rewards = rewards
        here = np.arange(n)
        R = np.zeros((n, 2))
        R[1, 0], R[n - 2, 1] = rewards
        P = np.stack([np.maximum(here - 1, 0), np.minimum(here + 1, n - 1)], 1)
        super().__init__(P, R, terminal=(0, n - 1), start=(n - 1) // 2, render_mode=render_mode)

    def render(self) -> Any:
        if self.render_mode != "ansi":
            return None
        return "".join("*" if s == self.state else "." for s in range(self.n_states)) + "\n"
