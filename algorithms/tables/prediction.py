"""Values of a given policy, in a table: TD(λ) with eligibility traces, and TD of n steps.

Monte Carlo prediction, with importance sampling, is in `monte_carlo`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Algorithm, Schedule, Window, value_of
from parl_like.learning.explorers import Categorical, Explorer
from parl_like.learning.model import Model
from parl_like.learning.model_check import check_methods
from parl_like.values.batch import Batch
from parl_like.values.spec import Array

FIELDS = ("lane", "first", "obs", "act", "rew", "obs_next", "terminated", "truncated")


def each_row(batch: Batch, *more: str) -> Iterator[tuple[Any, ...]]:
    """Yield `FIELDS` and `more` of each row in order, of a batch or of one row without the axis of rows."""
    columns = [getattr(batch, name) for name in (*FIELDS, *more)]
    if np.ndim(batch.rew):
        yield from zip(*(column.tolist() for column in columns), strict=True)
    else:
        yield tuple(columns)


class ValuePrediction(Algorithm):
    """The base of methods that learn what states are worth under a policy, and act by that policy.

    Args:
        model: With `v(obs)`, the array `table` [S] and `add`, such as `VTable`.
        policy: [S, A] probabilities of actions; "uniform"; None: the agent acts by itself, and `predict` gives values alone.
        lr: α, a number or a schedule over the updates.
        gamma: γ, discount per step, 0 to 1.
    """

    calls = {"v": "v(obs) -> [N], the value of every state,", "table": "the array [S] that it reads,",
             "add": "add(where, error, rate), which moves entries of it,", "keep": "keep(name, shape), which gives it arrays,"}
    fitting_models = "VTable"
    takes = Takes(("Discrete",), ("Discrete",), images=False, masks=False)
    one_reward, takes_priorities, improves = True, False, False
    window = Window(in_order=True, fields=("first", "lane"))

    def __init__(self, model: Model | Callable[[], Model], *, policy: Array | str | None = "uniform",
                 lr: float | Schedule = 0.1, gamma: float = 0.99) -> None:
        super().__init__(model, lr=lr)
        check_methods(self)
        self.gamma, self.policy = gamma, policy
        self.behaviour = None if policy is None else probabilities(policy, self.model, type(self).__name__)

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), "policy": "agents act by it; build a new algorithm with another"}

    def explorer(self) -> Explorer | None:
        return None if self.behaviour is None else Categorical()

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        out = {"v": self.model.v(inputs.obs)}
        if self.behaviour is not None:
            with np.errstate(divide="ignore"):
                out["logits"] = np.log(self.behaviour[inputs.obs], dtype=np.float32)
        return out


def probabilities(policy: Array | str, model: Any, owner: str) -> Array:
    """Return [S, A] float64; raises ValueError where `policy` is neither "uniform" nor rows of probabilities."""
    n, n_actions = model.n_states, model.n_actions
    if isinstance(policy, str) and policy == "uniform":
        return np.full((n, n_actions), 1.0 / n_actions)
    pi = np.asarray(policy)
    if pi.dtype.kind not in "biuf" or pi.shape != (n, n_actions) or (pi < 0).any() or not np.allclose(pi.sum(1), 1.0):
        raise ValueError(f"{owner}: policy is {policy!r:.60}; expected 'uniform', None, or probabilities {(n, n_actions)}, which "
                         "sum to 1 in each row")
    return pi.astype(np.float64)


class Traces:
    """Eligibility of the entries of a table, for each lane: how much each is moved by the errors that follow.

        accumulating   z ← γλ z,  z[s] ← z[s] + 1,           table ← table + α δ z
        replacing      z ← γλ z,  z[s] ← 1,                  table ← table + α δ z
        dutch          z ← γλ z,  z[s] ← z[s] + 1 − α z[s],  table ← table + α (δ + v − v_old) z,  table[s] − α (v − v_old)

    The last is true online TD(λ) (van Seijen and Sutton 2014; Sutton & Barto 2018, 12.5): v is the value of s, v_old what it was
    worth when the step before bootstrapped from it.

    Attributes:
        z: Lane → an array of the shape of the table. old: Lane → v_old.
    """

    KINDS = ("accumulating", "replacing", "dutch")

    def __init__(self) -> None:
        self.z: dict[str, Array] = {}
        self.old: dict[str, float] = {}

    def clear(self, lane: int) -> None:
        if (z := self.z.get(str(lane))) is not None:
            z.fill(0.0)
        self.old[str(lane)] = 0.0

    def move(self, lane: int, table: Array, where: Any, delta: float, *, value: float, after: float, rate: float, decay: float,
             kind: str) -> None:
        """Move `table` by the error `delta` of the entry `where`, which is worth `value`, and what follows `after`."""
        if (z := self.z.get(str(lane))) is None:
            z = self.z[str(lane)] = np.zeros_like(table)
        z *= decay
        if kind == "dutch":
            changed = value - self.old.get(str(lane), 0.0)
            z[where] += 1.0 - rate * z[where]
            table += rate * (delta + changed) * z
            table[where] -= rate * changed
            self.old[str(lane)] = after
        else:
            z[where] = 1.0 if kind == "replacing" else z[where] + 1.0
            table += rate * delta * z

    def state_dict(self) -> dict[str, object]:
        return copy.deepcopy({"z": self.z, "old": self.old})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.z, self.old = copy.deepcopy((dict(state["z"]), dict(state["old"])))


def check_traces(owner: str, lam: float, trace: str, prior: float | None) -> None:
    """Raises ValueError for a λ outside [0, 1], an unknown trace, or a table whose entries count their updates."""
    if not 0.0 <= lam <= 1.0 or trace not in Traces.KINDS:
        raise ValueError(f"{owner}: lam is {lam}, trace {trace!r}; expected a number in [0, 1], and one of "
                         f"{', '.join(Traces.KINDS)}")
    if prior is not None:
        raise ValueError(f"{owner}: the table has a prior, by which updates of single entries count, and a trace moves many; "
                         "leave the prior out, or take a method of n steps")


class TD(ValuePrediction):
    """TD(λ) (Sutton 1988; Sutton & Barto 2018, 6.1 and 12.2): each error moves all states by how lately they were visited.

        δ = r + γ · V(s') − V(s)          V(s') is 0 where the episode terminated; for z and V see `Traces`

    λ = 0 is TD(0). With `offline` nothing is moved before an episode ends: then it is the λ-return algorithm, the forward view,
    and with λ = 1 Monte Carlo of every visit.

    Differences:
        - None: with a table it is the book's TD(λ) (12.2), by default with accumulating traces and λ = 0.

    Args:
        lam: λ, 0 to 1.
        trace: "accumulating", "replacing" or "dutch", which is the online λ-return algorithm.
        offline: Whether the table is moved at the ends of episodes only.
        The others: As for `ValuePrediction`.

    Raises:
        ValueError: offline goes with the dutch trace.
    """

    def __init__(self, model: Model | Callable[[], Model], *, policy: Array | str | None = "uniform",
                 lr: float | Schedule = 0.1, gamma: float = 0.99, lam: float = 0.0, trace: str = "accumulating",
                 offline: bool = False) -> None:
        super().__init__(model, policy=policy, lr=lr, gamma=gamma)
        check_traces("TD", lam, trace, self.model.prior)
        if offline and trace == "dutch":
            raise ValueError("TD: offline goes with no dutch trace, which is for values that change at once; take 'accumulating'")
        self.lam, self.trace, self.offline = lam, trace, offline
        self.traces = Traces()
        self.waiting: dict[str, Array] = {}

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), "offline": "what waits for the end of an episode is kept elsewhere; build a new one",
                "trace": "traces of the other kind are under way; build a new one"}

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        table, rate, errors = self.model.table, value_of(self.lr, self.updates), []
        for lane, first, s, _, rew, after, terminated, truncated in each_row(batch):
            moved = self.waiting.setdefault(str(lane), np.zeros_like(table)) if self.offline else table
            if first:
                self._end(lane)
            value, following = float(table[s]), 0.0 if terminated else float(table[after])
            delta = rew + self.gamma * following - value
            self.traces.move(lane, moved, s, delta, value=value, after=following, rate=rate, decay=self.gamma * self.lam,
                             kind=self.trace)
            if terminated or truncated:
                self._end(lane)
            errors.append(abs(delta))
        return {"td": float(np.mean(errors))}

    def _end(self, lane: int) -> None:
        self.traces.clear(lane)
        if (waiting := self.waiting.get(str(lane))) is not None:
            self.model.table += waiting
            waiting.fill(0.0)


class NStepTD(ValuePrediction):
    """TD of n steps (Sutton & Barto 2018, 7.1); with n = 1 it is TD(0).

        V(s_t) ← V(s_t) + α · (r_{t+1} + γ r_{t+2} + … + γⁿ · V(s_{t+n}) − V(s_t))          fewer steps at an end

    Differences:
        - None: it is the book's algorithm (7.1). Where a time limit cuts an episode, the value of the last state follows.

    Args:
        n: Steps.
        The others: As for `ValuePrediction`.
    """

    def __init__(self, model: Model | Callable[[], Model], *, policy: Array | str | None = "uniform",
                 lr: float | Schedule = 0.1, gamma: float = 0.99, n: int = 1) -> None:
        super().__init__(model, policy=policy, lr=lr, gamma=gamma)
        self.n, self.steps = n, LastSteps(n, "NStepTD")

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), "n": "rows that wait were counted by it; build a new algorithm with another"}

    def value(self, state: int) -> float:
        """Return what follows, where the episode goes on in this state."""
        return float(self.model.table[state])

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        model, rate, errors = self.model, value_of(self.lr, self.updates), []
        for lane, first, s, _, rew, after, terminated, truncated in each_row(batch):
            for where, target in self.steps.targets(lane, s, rew, partial(self.value, after), first=first, terminated=terminated,
                                                    truncated=truncated, gamma=self.gamma):
                error = target - float(model.table[where])
                model.add(where, error, rate)
                errors.append(abs(error))
        return {"td": float(np.mean(errors))} if errors else {}


class LastSteps:
    """The last n steps of each lane, which wait for their targets.

    Args:
        n: At least 1.
        owner: For the error.

    Raises:
        ValueError: n is no whole number of at least 1.
    """

    def __init__(self, n: int, owner: str) -> None:
        if n < 1 or n != int(n):
            raise ValueError(f"{owner}: n is {n}; expected a whole number of at least 1")
        self.n = int(n)
        self.lanes: dict[str, list[list[Any]]] = {}

    def targets(self, lane: int, where: Any, rew: float, after: Callable[[], float], *, first: bool, terminated: bool,
                truncated: bool, gamma: float) -> Iterator[tuple[Any, float]]:
        """Add a step to its lane, and yield the entries that have got their targets, with these: one entry n steps later, and all
        that wait where the episode ends. Steps before a cut are dropped: what followed is not known.

        Args:
            after: The value of what follows this step, asked for each target anew.
        """
        steps = self.lanes.setdefault(str(lane), [])
        if first:
            steps.clear()
        steps.append([list(where) if isinstance(where, tuple) else where, float(rew)])
        while steps and (terminated or truncated or len(steps) >= self.n):
            total = 0.0 if terminated else after()
            for _, one in reversed(steps):
                total = one + gamma * total
            done = steps.pop(0)[0]
            yield tuple(done) if isinstance(done, list) else done, total

    def state_dict(self) -> dict[str, object]:
        return copy.deepcopy({"lanes": self.lanes})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.lanes = copy.deepcopy(dict(state["lanes"]))
