"""Monte Carlo tree search (Coulom 2006) in n trees at once: where to look next, and what comes of it.

A node s counts the returns through it, N(s), and their mean V(s) for the player who moves there; its own evaluation is the first.
An edge a from s to s' has the reward r for who moves in s:

    Q(s, a) = r + γ · σ · V(s')     σ = 1 where the same player moves in s and s', else −1: what one wins, the other loses
    N(s, a) = N(s')

so one player with rewards and a discount, and two players that move in turn, or one of them twice, are one rule. A simulation
goes down from the root to an edge that has no node yet, by the action with the highest score, the first of equal ones:

    PUCT (Rosin 2011; Silver et al. 2017)    Q̃(s, a) + (c + ln((N(s) + b + 1) / b)) · P(a|s) · √N(s) / (1 + N(s, a))
    UCT (Kocsis & Szepesvári 2006)           Q̃(s, a) + c · √(ln N(s) / N(s, a));  actions without a node come first

Q̃ is Q, 0 where there is no node; with `normalize` it is (Q − min) / (max − min) over all edges of the tree so far, so that c has
the same meaning whatever the rewards are (Schrittwieser et al. 2020). The new node's value goes back up along the way:

    G(s) = r + γ · σ · G(s')
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from parl_like.algorithms.search._tree import Kernel
from parl_like.values.spec import Array


@dataclass(frozen=True)
class SearchRule:
    """The way in which a tree is searched; the letters are those of the formulas above.

    Attributes:
        selection: Which score.
        exploration: c. base: b, from which number of visits on exploration grows.
        gamma: γ.
        normalize: See above.

    Raises:
        ValueError: one of them is out of its range.
    """

    selection: Literal["puct", "uct"] = "puct"
    exploration: float = 1.25
    base: float = 19_652.0
    gamma: float = 1.0
    normalize: bool = False

    def __post_init__(self) -> None:
        if self.selection not in ("puct", "uct"):
            raise ValueError(f"SearchRule: selection is {self.selection!r}; expected 'puct' or 'uct'")
        if not (self.exploration >= 0 and self.base > 0 and math.isfinite(self.exploration + self.base) and 0 <= self.gamma <= 1):
            raise ValueError(f"SearchRule: exploration is {self.exploration}, base {self.base} and gamma {self.gamma}; expected "
                             "at least 0, above 0, and a number in [0, 1]")


STANDARD = SearchRule()
"""PUCT for values in [−1, 1], as those of games."""


class Leaves(NamedTuple):
    """Edges without a node, one of each tree whose simulation does not end in a state that is over.

    Attributes:
        tree, parent, action, node: [m] int64: the tree, the node from which the edge goes (0 is the root), its action, and the
            number that its node will have there.
    """

    tree: Array
    parent: Array
    action: Array
    node: Array


class Evaluation(NamedTuple):
    """Judgements of what the edges of m leaves lead to.

    Attributes:
        reward: [m], for who moved.
        done: [m] bool, whether nothing comes after it; its value and actions are not read then.
        value: [m], for who moves next.
        logits: [m, A], of who moves next; the prior is their softmax over legal actions.
        player: [m] int, who moves next; None: there is one player.
        legal: [m, A] bool, which actions there are; None: all.
    """

    reward: Array
    done: Array
    value: Array
    logits: Array
    player: Array | None = None
    legal: Array | None = None


class Found(NamedTuple):
    """The result of a search at the roots.

    Attributes:
        visits: [n, A] int64, N(root, a). q: [n, A], Q(root, a), 0 where there are no visits. value: [n], V(root).
    """

    visits: Array
    q: Array
    value: Array


class Trees(Protocol):
    """The trees themselves: the compiled `Kernel`, or `plain.PlainTrees`."""

    def begin(self, logits: Array, legal: Array, value: Array, player: Array, noise: Array, share: float, /) -> None: ...

    def select(self, found: Array, /) -> int: ...

    def expand(self, found: Array, *, reward: Array, done: Array, player: Array, logits: Array, legal: Array,
               value: Array) -> None: ...

    def result(self, visits: Array, q: Array, value: Array, /) -> None: ...


class SearchTree:
    """n trees that are searched in step: each call is about all of them.

        tree.begin(logits, value)
        found = tree.run(50, evaluate)          # or select() and expand(), as often as you like
        found.visits

    Differences:
        - N(s) counts the node's own evaluation; the papers' formula has Σ_b N(s, b), which is one less.
        - New nodes are judged by whoever searches; the paper of UCT plays on at random from them.
        - One simulation at a time goes through a tree; the program of Silver et al. has several, kept apart by virtual losses.

    Args:
        n: Trees.
        n_actions: A, actions of each state, 0 to A − 1.
        capacity: Simulations of each search, at most.
        rule: How they are searched.
        kernel: What computes them; `plain.PlainTrees` is the same in plain Python.

    Raises:
        ValueError: a number is below 1.
    """

    def __init__(self, n: int, n_actions: int, capacity: int, rule: SearchRule = STANDARD,
                 kernel: Callable[..., Trees] = Kernel) -> None:
        if min(n, n_actions, capacity) < 1:
            raise ValueError(f"SearchTree: n is {n}, n_actions {n_actions} and capacity {capacity}; expected at least 1 each")
        self.n, self.n_actions, self.capacity, self.rule = n, n_actions, capacity, rule
        self._trees = kernel(n, n_actions, capacity + 1, exploration=rule.exploration, base=rule.base, gamma=rule.gamma,
                             uct=rule.selection == "uct", normalize=rule.normalize)
        self._found = np.zeros((4, n), np.int64)
        self._open: int | None = None  # leaves that `select` has found, and `expand` has not had
        self._left = 0

    def begin(self, logits: Array, value: Array, *, player: Array | None = None, legal: Array | None = None,
              noise: Array | None = None, share: float = 0.25) -> None:
        """Throw all trees away, and plant new ones.

        Args:
            logits, value, player, legal: Of the roots, as in `Evaluation`, n rows. A root is never over.
            noise: [n, A], 0 for illegal actions, see `root_noise`: the prior is (1 − share) · P + share · noise. None: P alone.
            share: See there.

        Raises:
            ValueError: shapes differ, a number is not finite, or a root has no legal action.
        """
        rows = self._rows("begin", self.n, logits, value, player=player, legal=legal, done=np.zeros(self.n, bool))
        mixed = np.zeros((self.n, self.n_actions)) if noise is None else self._numbers("begin", "noise", noise, self.n, True)
        self._trees.begin(*rows, mixed, 0.0 if noise is None else float(share))
        self._open, self._left = 0, self.capacity

    def select(self) -> Leaves:
        """Go down all trees, and return where they end. Of trees that end in a state that is over, a return is counted at once.

        Raises:
            ValueError: no tree was begun, leaves of before were not expanded, or there were as many as `capacity`.
        """
        if self._open is None or self._open or not self._left:
            why = ("begin() comes first" if self._open is None else f"{self._open} leaves wait for expand()" if self._open
                   else f"the trees hold {self.capacity} simulations; begin() anew, or make them larger")
            raise ValueError(f"SearchTree: select: {why}")
        self._open, self._left = self._trees.select(self._found), self._left - 1
        return Leaves(*self._found[:, : self._open].copy())

    def expand(self, leaves: Evaluation) -> None:
        """Add the nodes of the leaves that `select` returned, in its order.

        Raises:
            ValueError: there are none; else as `begin`.
        """
        if not self._open:
            raise ValueError("SearchTree: expand: no leaves wait; select() comes first")
        done = np.ascontiguousarray(leaves.done, np.uint8)
        logits, legal, value, player = self._rows("expand", self._open, leaves.logits, leaves.value,
                                                  player=leaves.player, legal=leaves.legal, done=done)
        reward = self._numbers("expand", "reward", leaves.reward, self._open)
        self._trees.expand(self._found, reward=reward, done=done, player=player, logits=logits, legal=legal, value=value)
        self._open = 0

    def run(self, simulations: int, evaluate: Callable[[Leaves], Evaluation]) -> Found:
        """Go through so many simulations, each of which asks for all its leaves at once, and return what was found."""
        for _ in range(simulations):
            leaves = self.select()
            if len(leaves.tree):
                self.expand(evaluate(leaves))
        return self.found()

    def found(self) -> Found:
        """Return what all simulations so far have found. Raises ValueError: no tree was begun."""
        shape = self.n, self.n_actions
        found = Found(np.zeros(shape, np.int64), np.zeros(shape), np.zeros(self.n))
        if self._open is None:
            raise ValueError("SearchTree: found: begin() comes first")
        self._trees.result(*found)
        return found

    def _rows(self, call: str, m: int, logits: Array, value: Array, *, player: Array | None, legal: Array | None,
              done: Array) -> tuple[Array, Array, Array, Array]:
        """Return logits, legal actions, values and players of m states as the kernel takes them."""
        numbers, values = self._numbers(call, "logits", logits, m, True), self._numbers(call, "value", value, m)
        players = np.zeros(m, np.int64) if player is None else np.ascontiguousarray(player, np.int64)
        shape = m, self.n_actions
        actions = np.ones(shape, np.uint8) if legal is None else np.ascontiguousarray(legal, np.uint8)
        if players.shape != (m,) or actions.shape != shape or done.shape != (m,):
            raise ValueError(f"SearchTree: {call}: player has shape {players.shape}, legal {actions.shape} and done "
                             f"{done.shape}; expected {(m,)}, {shape} and {(m,)}")
        if legal is not None and not (actions.any(1) | (done != 0)).all():
            raise ValueError(f"SearchTree: {call}: a state that is not over has no legal action")
        return numbers, actions, values, players

    def _numbers(self, call: str, name: str, value: Array, m: int, each: bool = False) -> Array:
        """Return finite float64 numbers [m], or [m, A] for `each` action."""
        numbers, shape = np.ascontiguousarray(value, np.float64), (m, self.n_actions) if each else (m,)
        if numbers.shape != shape or not np.isfinite(numbers).all():
            what = "holds numbers that are not finite" if numbers.shape == shape else f"has shape {numbers.shape}"
            raise ValueError(f"SearchTree: {call}: {name} {what}; expected finite numbers {shape}")
        return numbers


def root_noise(rng: np.random.Generator, legal: Array, alpha: float) -> Array:
    """Return [n, A] noise for roots: in each row a draw from the Dirichlet distribution over its legal actions, 0 for others.

    Args:
        legal: [n, A] bool.
        alpha: Of the distribution; the smaller, the more of it goes to few actions.
    """
    noise = rng.standard_gamma(alpha, legal.shape) * legal
    total = noise.sum(1, keepdims=True)
    # Gamma draws of a small alpha may all be 0; then every legal action is as likely.
    mixed: Array = np.where(total > 0, noise, legal) / np.where(total > 0, total, legal.sum(1, keepdims=True))
    return mixed


def visit_policy(visits: Array, temperature: float = 1.0) -> Array:
    """Return [n, A] probabilities ∝ N(root, a)^(1 / temperature); at temperature 0 all goes to the first of the most visited.

    Raises:
        ValueError: the temperature is below 0.
    """
    if not temperature >= 0:
        raise ValueError(f"visit_policy: temperature is {temperature}; expected at least 0")
    if temperature == 0:
        best: Array = np.eye(visits.shape[1])[visits.argmax(1)]
        return best
    odds: Array = (visits / visits.max(1, keepdims=True)) ** (1.0 / temperature)
    odds /= odds.sum(1, keepdims=True)
    return odds
