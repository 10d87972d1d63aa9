"""Dynamic programming: exact values and best policies of a known model, by policy evaluation, value iteration, policy iteration.

    v_π(s) = Σ_a π(a|s) (R(s, a) + γ Σ_s' P(s'|s, a) v_π(s'))            policy evaluation, a system of linear equations
    v(s)   ← max_a q(s, a),   q(s, a) = R(s, a) + γ Σ_s' P(s'|s, a) v(s')                              value iteration
    π(s)   ← argmax_a q(s, a) of v_π, until nothing changes                                           policy iteration

Bellman 1957, Howard 1960; Sutton & Barto (2018), chapter 4. P leaves out the ends: what follows a terminal step is worth 0.
Functions without a robot: nobody acts here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parl_like.data.chains import endless
from parl_like.values.limits import check_array
from parl_like.values.spec import Array


@dataclass(frozen=True)
class FiniteModel:
    """The transitions and rewards of an environment of S states and A actions.

    Attributes:
        moves: [S, A, S] float64, probability of each next state without the episode ending there.
        rewards: [S, A] float64, expected reward.
        start: [S] float64, probability of each first state.
    """

    moves: Array
    rewards: Array
    start: Array

    def q(self, values: Array, gamma: float) -> Array:
        """Return [S, A]: what each action is worth where the next state is worth `values` [S]."""
        return self.rewards + gamma * (self.moves @ values)


@dataclass(frozen=True)
class Optimum:
    """A policy with its values.

    Attributes:
        values: [S] float64. policy: [S] int64; of equally good actions value iteration takes the first, and policy iteration
            keeps the one that it had.
        start_value: The mean value of the first states.
        sweeps: Sweeps of value iteration, or policies of policy iteration, that it took.
    """

    values: Array
    policy: Array
    start_value: float
    sweeps: int


def model_of(env: Any) -> FiniteModel:
    """Return the model of one of our tables (`parl_like.envs.tabular`), of gymnasium's toy texts, or of whatever has `P` as
    these, `P[state][action]`: a list of (probability, next state, reward, terminated). Episodes begin as `initial_state_distrib`
    [S] says, or in state 0. Limits of wrappers, such as FrozenLake's 100 steps, are not part of it.

    Differences:
        - None: it reads what an environment says of itself, and no paper is behind it.

    Raises:
        TypeError: it has no such table. ValueError: it is larger than `parl_like.values.limits` allows.
    """
    if isinstance(env, FiniteModel):
        return env
    bare = getattr(env, "unwrapped", env)
    if all(hasattr(bare, name) for name in ("goes_on", "R", "start")):
        return FiniteModel(bare.goes_on, bare.R, bare.start)
    table = getattr(bare, "P", None)
    if not isinstance(table, Mapping):
        raise TypeError(f"{bare} has no table P; expected a TableEnv, one of gymnasium's toy texts (FrozenLake, CliffWalking, "
                        "Taxi), or P[state][action] = [(probability, next state, reward, terminated), ...]")
    n, n_actions = len(table), len(table[0])
    check_array(f"{bare}: {n} states, {n_actions} actions", n, n_actions, n, dtype=np.float64, lower="the number of states")
    moves, rewards = np.zeros((n, n_actions, n)), np.zeros((n, n_actions))
    for s in range(n):
        for a in range(n_actions):
            for p, after, reward, terminated in table[s][a]:
                rewards[s, a] += p * reward
                moves[s, a, after] += 0.0 if terminated else p
    first = np.asarray(getattr(bare, "initial_state_distrib", np.arange(n) == 0), np.float64)
    return FiniteModel(moves, rewards, first / first.sum())


def policy_evaluation(env: Any, policy: Any = None, gamma: float = 1.0) -> Array:
    """Exact values of a policy, by its linear equations.

    Differences:
        - The equations are solved at once; the book (4.1) sweeps over the states until their values settle.

    Args:
        env: Whatever `model_of` knows.
        policy: [S] actions, [S, A] probabilities, or None: uniform.
        gamma: Discount, 0 to 1.

    Returns:
        [S] float64; with gamma 1 nan where the episode may go on for ever.

    Raises:
        ValueError: policy has another shape, a negative number, or probabilities whose sum is not 1.
    """
    model = model_of(env)
    n, n_actions = model.rewards.shape
    _check(gamma)
    pi = np.full((n, n_actions), 1.0 / n_actions) if policy is None else np.asarray(policy)
    if pi.shape == (n,) and pi.dtype.kind in "iu" and ((pi >= 0) & (pi < n_actions)).all():
        pi = np.eye(n_actions)[pi]
    if pi.shape != (n, n_actions) or (pi < 0).any() or not np.allclose(pi.sum(1), 1.0):
        raise ValueError(f"policy has shape {pi.shape}; expected {n} actions or probabilities {(n, n_actions)}")
    moves, rewards = (pi[:, None] @ model.moves)[:, 0], (pi * model.rewards).sum(1)
    values = np.full(n, np.nan)
    kept = np.flatnonzero(~endless(moves)) if gamma == 1.0 else np.arange(n)
    values[kept] = np.linalg.solve(np.eye(len(kept)) - gamma * moves[np.ix_(kept, kept)], rewards[kept])
    return values


def value_iteration(env: Any, gamma: float = 0.99, *, tolerance: float = 1e-14, max_sweeps: int = 1_000_000) -> Optimum:
    """Best policy by sweeps over all states, until the values change by less than `tolerance` of the largest.

    Below 1 the values are then wrong by γ / (1 − γ) times that at most. With gamma 1 it begins at 0, and is right where every
    policy ends, or all rewards have the same sign.

    Differences:
        - A sweep changes all values at once; the book's program (4.4) changes them one after the other.
        - It ends by the largest change relative to the largest value; the book's bound is absolute.

    Raises:
        ArithmeticError: not within `max_sweeps`, as where values grow without a bound.
    """
    model = model_of(env)
    _check(gamma)
    values = np.zeros(len(model.start))
    for sweep in range(1, max_sweeps + 1):
        q = model.q(values, gamma)
        new = q.max(1)
        if np.abs(new - values).max() <= tolerance * max(1.0, float(np.abs(new).max())):
            return _optimum(model, new, _greedy(q), sweep)
        values = new
    raise ArithmeticError(f"value_iteration: values did not converge in {max_sweeps} sweeps; use gamma < 1, or a larger "
                          "tolerance")


def policy_iteration(env: Any, gamma: float = 0.99) -> Optimum:
    """Best policy by evaluating a policy and improving it, until nothing improves; exact up to rounding.

    Differences:
        - Policies are evaluated by their equations, as Howard's are; the book's program (4.3) sweeps.
        - An action gives way only to one that is better by more than rounding; the book's program may swap equal ones for ever.

    Args:
        gamma: Below 1: without a discount a policy that never ends has no value, and the first one may be such.

    Raises:
        ValueError: gamma is not in [0, 1).
    """
    model = model_of(env)
    if not 0.0 <= gamma < 1.0:
        raise ValueError(f"policy_iteration: gamma is {gamma}; expected a number in [0, 1), or use value_iteration")
    policy, n, improves = np.zeros(len(model.start), np.int64), 0, True
    while improves:
        values, n = policy_evaluation(model, policy, gamma), n + 1
        q = model.q(values, gamma)
        better = q.max(1) > values + 1e-12 * (1.0 + np.abs(values))  # rounding must not swap two equal actions for ever
        policy, improves = np.where(better, q.argmax(1), policy), better.any()
    return _optimum(model, values, policy, n)


def _optimum(model: FiniteModel, values: Array, policy: Array, sweeps: int) -> Optimum:
    return Optimum(values, policy, float(model.start @ values), sweeps)


def _greedy(q: Array) -> Array:
    """[S] the first best action; values within 1e-9 of the largest are equal."""
    return (q >= q.max(1, keepdims=True) - 1e-9 * (1.0 + np.abs(q).max())).argmax(1)  # type: ignore[no-any-return]


def _check(gamma: float) -> None:
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma is {gamma}; expected a number in [0, 1]")
