"""Tables: models of arrays, one number or row for each state."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.learning.action_spaces import taken_by
from parl_like.learning.model import ArrayModel
from parl_like.values.spec import Array


class QTable(ArrayModel):
    """The value of every action in every state of a finite problem.

    Args:
        obs, act: Discrete spaces of S states, from 0, and A actions.
        start: Value before anything is learned; above all real ones it makes the learner try everything.

    Attributes:
        table: [S, A] float64.
        q_is_row: What `q` gives for a state is that row of the table, so compiled code may read it itself. Not inherited: a
            subclass may have another `q`.

    Raises:
        ValueError: a space is another one.
    """

    table: Array
    q_is_row = True

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], start: float = 0.0) -> None:
        super().__init__(obs, act)
        if not (isinstance(obs, gym.spaces.Discrete) and isinstance(act, gym.spaces.Discrete)) or obs.start:
            raise ValueError(f"QTable: spaces are {obs} and {act}; expected Discrete ones, of states from 0 on. Number the "
                             "states of your environment (gymnasium.wrappers.TransformObservation)"
                             f"{'' if isinstance(act, gym.spaces.Discrete) else taken_by(act)}")
        self.start = start
        self.add_array("table", np.full((int(obs.n), int(act.n)), start))

    def q(self, obs: Any) -> Array:
        """The values of all actions in states [N] or in one: [N, A] or [A]; of one a view."""
        values: Array = self.table[obs]
        return values

    def reset_parameters(self) -> None:
        self.table.fill(self.start)
