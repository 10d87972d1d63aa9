"""ActionCheck: whether an action is one of the environment's space, before the environment gets it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.environment.value_check import contains
from parl_like.values.batch import Batch
from parl_like.values.errors import AgentFailed
from parl_like.values.spec import as_space, leaf_spaces, leaves, nest, parts_of


class ActionCheck:
    """The check of one agent's actions.

    Args:
        owner: The agent, for messages.
        space: Of one action; None: the environment declares none, and anything passes.

    Attributes:
        n, start: Of a Discrete space, of which an int in [start, start + n) needs no other check; n is -1 for all others.
    """

    def __init__(self, owner: object, space: gym.Space[object] | None) -> None:
        self._owner, self.space = owner, space
        self.n, self.start = -1, 0
        if isinstance(space, gym.spaces.Discrete):
            self.n, self.start = int(space.n), int(space.start)

    def one(self, act: object) -> None:
        """Raise AgentFailed where `act` is not an action of the space."""
        space = self.space
        if space is None:
            return
        try:
            fits = contains(space, act)
        except Exception:  # noqa: BLE001 - a space may choke on what is not even nearly an action; that is an answer, too
            fits = False
        if not fits and isinstance(act, Batch):
            raise AgentFailed(f"{self._owner}: the task gave {sorted(act.keys())} and no action; write explorer() of its "
                              "algorithm, or give its helper explorer=, so that predictions become actions")
        if not fits:
            raise AgentFailed(f"{self._owner}: action outside the space: expected {space}, got {act!r}; look at the output of "
                              "the task that made it, or at the model's action space")

    def rows(self, act: object, n: int) -> None:
        """Raise AgentFailed where `act` is not n actions, [n, ...] in each part. All rows are looked at at once where the space
        allows it; a wrong one is then named by `one`."""
        space = self.space
        if space is not None and parts_of(space) is not None:
            shapes = {name: np.shape(part)[:1] for name, part in leaves(act, "act")}
            if shapes != dict.fromkeys((name for name, _ in leaf_spaces(space, "act")), (n,)):
                raise AgentFailed(f"{self._owner}: actions {act!r:.200}; expected rows for {n} environments in each part of "
                                  f"{space}")
            for i in range(n):
                self.one(row_of(act, i, space, "act"))
            return
        rows = np.asarray(act)
        if rows.shape[:1] != (n,):
            raise AgentFailed(f"{self._owner}: actions of shape {rows.shape}; expected one row for each of {n} environments")
        if isinstance(space, gym.spaces.Discrete) and rows.ndim == 1 and rows.dtype.kind in "iu":
            fits = bool(((rows >= self.start) & (rows < self.start + self.n)).all())
        elif isinstance(space, gym.spaces.Box) and rows.shape == (n, *space.shape):
            fits = bool(((rows >= space.low) & (rows <= space.high)).all())
        elif isinstance(space, gym.spaces.MultiDiscrete) and rows.shape == (n, *space.shape) and rows.dtype.kind in "iu":
            fits = bool(((rows >= space.start) & (rows < space.start + space.nvec)).all())
        else:
            fits = False
        if not fits:
            for row in rows:
                self.one(row)


def row_of(stacked: object, i: int, space: gym.Space[object] | None, name: str) -> Any:
    """Return environment i's part of stacked observations or actions, [n, ...] in each part; with a `space` nested as that
    nests them. `name` begins the names of the parts."""
    flat = {leaf: value[i] for leaf, value in leaves(stacked, name)}
    return nest(flat)[name] if space is None else as_space(space, flat, name)
