"""The parts of an augmented environment that go on from step to step: real episodes, the stage, the answers of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from parl_like.values.spec import Array

Ask = Callable[[dict[str, Array]], Mapping[str, Array]]
"""Requests to the world model, N rows of `op` (0 initial, 1 recurrent), `obs`, `act` (0 … A − 1), `parent`, `node` (places of
hidden states), to replies `r`, `done` (a probability), `v` [N], `logits` [N, A], and where they are wanted `hs` and `x`."""


class RealEpisodes:
    """The running episodes of n real environments.

    Attributes:
        begun: Whether there are any.
        obs: [n, ...], the newest real observations.
        returns: [n] float64, sums of real rewards. steps: [n] int64, augmented or real ones, as the tree's layout counts.
        surprises: [n] float32, sums of the rewards of curiosity.
    """

    def __init__(self, n: int) -> None:
        self.begun, self.obs = False, np.zeros((n, 0))
        self._clear(n)

    def _clear(self, n: int) -> None:
        self.returns, self.steps, self.surprises = np.zeros(n), np.zeros(n, np.int64), np.zeros(n, np.float32)

    def begin(self, obs: Array) -> None:
        """Begin episodes in all environments."""
        self.begun, self.obs = True, obs
        self._clear(len(self.steps))

    def state_dict(self) -> dict[str, Array]:
        """Return copies of everything."""
        return {"obs": self.obs.copy(), "returns": self.returns.copy(), "steps": self.steps.copy(),
                "surprises": self.surprises.copy()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go back to what `state_dict` returned."""
        self.begun, self.obs, self.returns = True, state["obs"].copy(), state["returns"].copy()
        self.steps, self.surprises = state["steps"].copy(), state["surprises"].copy()


class PlanningStage:
    """The running stage of n environments: imaginary steps, then a real one.

    Attributes:
        roots: [n] int64, slots of the trees' roots.
        im_returns: [n] float32, sums of planning rewards since the last real step. surprise: [n] float32, of that step.
        act: [n, 2] int64, rew: [n, 2] float32, with curiosity [n, 3]: the last action and its rewards, as the agent sees them.
    """

    def __init__(self, roots: Array, curious: bool) -> None:
        n = len(roots)
        self.roots, self.im_returns, self.surprise = roots, np.zeros(n, np.float32), np.zeros(n, np.float32)
        self.act, self.rew = np.zeros((n, 2), np.int64), np.zeros((n, 2 + curious), np.float32)


class NodeAnswers:
    """The answers of the world model on nodes, by slot, and what is shown of them.

    Args:
        n_nodes: Slots.
        h_shape, x_shape: Of one node's `hs` and `x`, which are then kept as `hs` and `xs`; None: are not.

    Attributes:
        ask: The world model.
        nodes: First of the `n_nodes` places that belong to these slots in the world model's table.
        kept: Name → [n_nodes, ...] float32.
    """

    def __init__(self, ask: Ask, n_nodes: int, nodes: int, h_shape: tuple[int, ...] | None, x_shape: tuple[int, ...] | None):
        self.ask, self.nodes, self.n_nodes = ask, nodes, n_nodes
        self.kept = {name: np.zeros((n_nodes, *shape), np.float32)
                     for name, shape in (("hs", h_shape), ("xs", x_shape)) if shape is not None}

    def of(self, op: int, obs: Array, act: Array, parent: Array, node: Array) -> Mapping[str, Array]:
        """Return the replies to N requests of one kind; what is shown of the nodes is kept.

        Args:
            op: 0 initial, 1 recurrent. obs: [N, ...], read by initial ones. act: [N] int64, 0 … A − 1.
            parent, node: [N] int64, slots.

        Raises:
            ValueError: something is wanted that the world model does not return.
        """
        reply = self.ask({"obs": obs, "op": np.full(len(node), op), "act": act, "parent": parent + self.nodes,
                          "node": node + self.nodes})
        for name, column in self.kept.items():
            there = "hs" if name == "hs" else "x"
            if there not in reply:
                raise ValueError(f"AugmentedEnv: {name} is wanted, and the world model returns no {there!r}; build it with "
                                 f"return_{name[0]}=True")
            column[node] = reply[there]
        return reply
