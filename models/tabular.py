"""Tables: models of arrays, one number or row for each state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.learning.action_spaces import taken_by
from parl_like.learning.model import ArrayModel
from parl_like.values.limits import check_array
from parl_like.values.spec import Array


class StateTable(ArrayModel):
    """The base of tables: one array for the states of a finite problem, numbered from 0, how it is moved, and arrays that
    algorithms keep beside it.

    Args:
        obs, act: Discrete spaces of S states, from 0, and A actions.
        shape: Of the table, by S and A.
        start: Value before anything is learned.
        prior: None: an update moves an entry by its rate. Else by its rate / (n + prior), where it is the entry's n-th update.
            So with the rate 1 an entry is the mean of its targets (prior 0), or one that counts the start once (prior 1).

    Attributes:
        table: float64. visits: How often each entry was updated, float64, where there is a prior.
        n_states, n_actions: S, A.

    Raises:
        ValueError: a space is another one, the prior is negative, or the table would be too large (`keep`).
    """

    table: Array
    visits: Array

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], shape: Callable[[int, int], tuple[int, ...]], start: float = 0.0,
                 prior: float | None = None) -> None:
        super().__init__(obs, act)
        if not (isinstance(obs, gym.spaces.Discrete) and isinstance(act, gym.spaces.Discrete)) or obs.start:
            raise ValueError(f"{type(self).__name__}: spaces are {obs} and {act}; expected Discrete ones, of states from 0 on. "
                             "Number the states of your environment (gymnasium.wrappers.TransformObservation)"
                             f"{'' if isinstance(act, gym.spaces.Discrete) else taken_by(act)}")
        if prior is not None and not prior >= 0.0:
            raise ValueError(f"{type(self).__name__}: prior is {prior}; expected a number of at least 0, or None")
        self.n_states, self.n_actions = int(obs.n), int(act.n)
        self.start, self.prior = start, prior
        self._starts: dict[str, float] = {}
        self.keep("table", shape(self.n_states, self.n_actions), start)
        if prior is not None:
            self.keep("visits", self.table.shape)

    def keep(self, name: str, shape: tuple[int, ...], start: float = 0.0) -> Array:
        """Return the array of that name, float64, made full of `start` where there is none yet; algorithms ask for theirs.

        Raises:
            TooLarge: a ValueError: it would be larger than `parl_like.values.limits` lets one array be.
        """
        if name not in self._starts:
            check_array(f"{type(self).__name__}: {name!r} of {self.n_states} states and {self.n_actions} actions", *shape,
                        dtype=np.float64, lower="the number of states")
            self._starts[name] = start
            self.add_array(name, np.full(shape, start, np.float64))
        array: Array = getattr(self, name)
        return array

    def add(self, where: Any, error: Any, rate: float) -> None:
        """Move the entries `where`, indices of the table, by `rate` · `error`, and see `prior`; an entry that comes twice is
        moved by both."""
        step = rate * error
        if self.prior is None and not np.ndim(step):
            self.table[where] += step
            return
        if self.prior is not None:
            np.add.at(self.visits, where, 1.0)
            step = step / (self.visits[where] + self.prior)
        np.add.at(self.table, where, step)

    def reset_parameters(self) -> None:
        for name, start in self._starts.items():
            getattr(self, name).fill(start)


class QTable(StateTable):
    """The value of every action in every state of a finite problem.

    Args:
        obs, act: Discrete spaces of S states, from 0, and A actions.
        start: Value before anything is learned; above all real ones it makes the learner try everything.
        prior: How updates count, see `StateTable`.

    Attributes:
        table: [S, A] float64.
        q_is_row: What `q` gives for a state is that row of the table, so compiled code may read it itself. Not inherited: a
            subclass may have another `q`.

    Raises:
        ValueError: a space is another one.
    """

    q_is_row = True

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], start: float = 0.0, prior: float | None = None) -> None:
        super().__init__(obs, act, lambda states, actions: (states, actions), start, prior)

    def q(self, obs: Any) -> Array:
        """The values of all actions in states [N] or in one: [N, A] or [A]; of one a view."""
        values: Array = self.table[obs]
        return values


class VTable(StateTable):
    """The value of every state of a finite problem.

    Args:
        obs, act: Discrete spaces of S states, from 0, and A actions.
        start: Value before anything is learned.
        prior: How updates count, see `StateTable`.

    Attributes:
        table: [S] float64.

    Raises:
        ValueError: a space is another one.
    """

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], start: float = 0.0, prior: float | None = None) -> None:
        super().__init__(obs, act, lambda states, actions: (states,), start, prior)

    def v(self, obs: Any) -> Array:
        """The values of states [N], or of one."""
        values: Array = self.table[obs]
        return values


class OptionTable(ArrayModel):
    """Options of a finite problem: their values, their policies, and when each ends; all 0 before anything is learned.

    Args:
        obs, act: Discrete spaces of S states, from 0, and A actions.
        options: O.

    Attributes:
        table: [S, O] float64, Q. inside: [S, O, A], Q_U. theta: [S, O, A], logits of the policies. ending: [S, O], ϑ.
        act_space: MultiDiscrete: what a row's `act` is, (option, action).

    Raises:
        ValueError: a space is another one, `options` is below 1, or an array would be too large.
    """

    table: Array
    inside: Array
    theta: Array
    ending: Array

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], options: int = 4) -> None:
        if not (isinstance(obs, gym.spaces.Discrete) and isinstance(act, gym.spaces.Discrete)) or obs.start or act.start:
            raise ValueError(f"OptionTable: spaces are {obs} and {act}; expected Discrete ones, of states and actions from 0 on")
        if options < 1:
            raise ValueError(f"OptionTable: options is {options}; expected at least 1")
        n, n_actions = int(obs.n), int(act.n)
        super().__init__(obs, gym.spaces.MultiDiscrete([options, n_actions]))
        for name, shape in (("table", (n, options)), ("inside", (n, options, n_actions)), ("theta", (n, options, n_actions)),
                            ("ending", (n, options))):
            check_array(f"OptionTable: {name!r} of {n} states, {options} options and {n_actions} actions", *shape,
                        dtype=np.float64, lower="the number of states")
            self.add_array(name, np.zeros(shape))

    def q(self, obs: Any) -> Array:
        """The values of all options in states [N], or in one: [N, O] or [O]; of one a view."""
        values: Array = self.table[obs]
        return values

    def logits(self, obs: Any) -> Array:
        """θ in states [N], or in one: [N, O, A] or [O, A]; of one a view."""
        logits: Array = self.theta[obs]
        return logits

    def end(self, obs: Any) -> Array:
        """β in states [N], or in one: [N, O] or [O]."""
        return np.asarray(0.5 * (1.0 + np.tanh(0.5 * self.ending[obs])))

    def reset_parameters(self) -> None:
        for name in ("table", "inside", "theta", "ending"):
            getattr(self, name).fill(0.0)
