"""The trees of `tree.SearchTree` in plain Python, as its formulas say: what the compiled ones are compared with."""

from __future__ import annotations

import math

from parl_like.values.spec import Array


class PlainNode:
    """A state. Attributes: see `_tree.pyx`."""

    def __init__(self, parent: PlainNode | None, reward: float, done: bool, player: int, logits: list[float],
                 legal: list[int]) -> None:
        self.parent, self.reward, self.done, self.player = parent, reward, done, player
        self.total, self.visits = 0.0, 0
        self.children: dict[int, PlainNode] = {}
        actions = [a for a, there in enumerate(legal) if there]
        top = max((logits[a] for a in actions), default=0.0)
        odds = {a: math.exp(logits[a] - top) for a in actions}
        total = 0.0
        for one in odds.values():
            total += one
        self.prior = {a: one / total for a, one in odds.items()}
        self.number = 0

    @property
    def sign(self) -> float:
        """Return 1 where the player moves who has moved before, else −1."""
        return 1.0 if self.parent is None or self.player == self.parent.player else -1.0


class PlainTrees:
    """n trees. Arguments and methods are those of the compiled `Kernel`."""

    def __init__(self, n: int, n_actions: int, capacity: int, *, exploration: float, base: float, gamma: float, uct: bool,
                 normalize: bool) -> None:
        self.n, self.n_actions, self.capacity = n, n_actions, capacity
        self.exploration, self.base, self.gamma, self.uct, self.normalize = exploration, base, gamma, uct, normalize
        self.nodes: list[list[PlainNode]] = []
        self.limits: list[tuple[float, float]] = []

    def q(self, node: PlainNode) -> float:
        """Return the value of the edge into a node, for who moved there."""
        return node.reward + self.gamma * node.sign * (node.total / node.visits)

    def back(self, tree: int, node: PlainNode, value: float) -> None:
        """Count a return that ends at a node with this value."""
        at: PlainNode | None = node
        while at is not None:
            at.total += value
            at.visits += 1
            if at.parent is not None:
                low, high = self.limits[tree]
                self.limits[tree] = min(low, self.q(at)), max(high, self.q(at))
                value = at.reward + self.gamma * at.sign * value
            at = at.parent

    def best(self, tree: int, node: PlainNode) -> int:
        """Return the action with the highest score, the first of these."""
        low, high = self.limits[tree]
        scores: dict[int, float] = {}
        for a, prior in node.prior.items():
            child = node.children.get(a)
            q = 0.0 if child is None else self.q(child)
            if child is not None and self.normalize and high > low:
                q = (q - low) / (high - low)
            if self.uct and child is None:
                return a
            if self.uct and child is not None:
                scores[a] = q + self.exploration * math.sqrt(math.log(node.visits) / child.visits)
            else:
                factor = self.exploration + math.log((node.visits + self.base + 1.0) / self.base)
                scores[a] = q + factor * math.sqrt(node.visits) * prior / (1.0 + (0 if child is None else child.visits))
        return max(scores, key=lambda a: scores[a])

    def begin(self, logits: Array, legal: Array, value: Array, player: Array, noise: Array, share: float, /) -> None:
        """Plant the roots."""
        self.nodes, self.limits = [], [(math.inf, -math.inf)] * self.n
        for tree in range(self.n):
            root = PlainNode(None, 0.0, False, int(player[tree]), logits[tree].tolist(), legal[tree].tolist())
            if share > 0:
                root.prior = {a: (1.0 - share) * prior + share * float(noise[tree, a]) for a, prior in root.prior.items()}
            self.nodes.append([root])
            self.back(tree, root, float(value[tree]))

    def select(self, found: Array, /) -> int:
        """Write where the trees end, and return how many do."""
        m = 0
        for tree in range(self.n):
            node = self.nodes[tree][0]
            while True:
                action = self.best(tree, node)
                if action not in node.children:
                    found[:, m] = tree, node.number, action, len(self.nodes[tree])
                    m += 1
                    break
                node = node.children[action]
                if node.done:
                    self.back(tree, node, 0.0)
                    break
        return m

    def expand(self, found: Array, *, reward: Array, done: Array, player: Array, logits: Array, legal: Array,
               value: Array) -> None:
        """Add the leaves."""
        for i in range(len(reward)):
            tree, parent, action, number = map(int, found[:, i])
            nodes = self.nodes[tree]
            node = PlainNode(
                nodes[parent], float(reward[i]), bool(done[i]), int(player[i]), logits[i].tolist(), legal[i].tolist())
            node.number = number
            nodes[parent].children[action] = node
            nodes.append(node)
            self.back(tree, node, 0.0 if done[i] else float(value[i]))

    def result(self, visits: Array, q: Array, value: Array, /) -> None:
        """Write the visits and values of the roots' actions, and the roots' values."""
        for tree, (root, *_) in enumerate(self.nodes):
            value[tree] = root.total / root.visits
            for a, child in root.children.items():
                visits[tree, a], q[tree, a] = child.visits, self.q(child)
