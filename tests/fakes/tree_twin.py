"""The augmented MDP's tree of one environment in plain Python: slow, obvious, and what the tests of `tree.Tree` trust.

Written as the rules are told: every node keeps the list of the rollout returns through it, and the path of each; a correction
looks up every path that holds the changed node. `Tree` keeps none of this and must agree all the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parl_like.envs.thinker.layout import ENCODED, Layout


class Node:
    """A state of the tree: `action` leads to it with reward `r`; `v` is its value; `logits` are the priors of the edges out of
    it."""

    def __init__(self, action: int, n_actions: int, parent: Node | None = None) -> None:
        self.action, self.parent = action, parent
        self.r = self.v = 0.0
        self.t = -1  # the number of real steps when it was last expanded; -1: never
        self.done = self.visited = False
        self.logits = np.zeros(n_actions)
        self.children: list[Node | None] = [None] * n_actions
        self.returns: list[float] = []  # of every rollout that passes here, valued from here: this node's own r included
        self.paths: list[list[Node]] = []  # for each return the nodes from its leaf up to this one
        self.n = 0  # traversals of the edge into this node
        self.trail_r, self.trail_d, self.rollout = 0.0, 1.0, 0.0
        self.data: Any = None  # whatever the caller keeps for a node: a hidden state, a snapshot

    def visit(self, gamma: float) -> None:
        self.trail_r, self.trail_d = 0.0, 1.0
        self.n += 1
        y: Node | None = self
        path: list[Node] = []
        while y is not None:
            path.append(y)
            y.trail_r += y.trail_d * self.r
            y.trail_d *= gamma
            y.rollout = y.trail_r + y.trail_d * self.v
            if not self.visited:
                y.returns.append(y.rollout)
                y.paths.append(list(path))
            y = y.parent
        self.visited = True

    def set(self, r: float, v: float, done: bool, logits: Any, t: int, gamma: float) -> None:
        """What the model says about this node; a node that had been expanded before has its returns, and its ancestors',
        corrected."""
        if self.visited:
            p: Node | None = self
            d = 0
            while p is not None:
                for j, path in enumerate(p.paths):
                    if len(path) > d and path[-1 - d] is self:
                        p.returns[j] += gamma**d * (r - self.r) + (gamma ** (d + 1) * (v - self.v) if path[0] is self else 0.0)
                p, d = p.parent, d + 1
        self.r, self.v, self.done, self.t, self.logits = r, v, done, t, np.array(logits, np.float64)


class ReferenceTree:
    """`Tree` for one environment, phase included; the options are those of `Tree`.

        out = tree.begin(v, logits)
        plan = tree.select(primary, reset)       # {"real": bool, "expand": None or (parent Node, child Node, action)}
        out = tree.update(expanded=(r, v, done, logits) or None, real=(reward, done, v, logits) or None)

    `out` is a dict with the names of `TreeState`; `root` and `cur` are nodes, `cur` the one that is shown. The caller keeps its
    data in `Node.data`. After `select` of a real step, `root` of the next `out` is where the new data belongs.
    """

    def __init__(
        self, n_actions: int, K: int, *, max_depth: int = 5, discounting: float = 0.97, layout: str = "G1",
        tree_carry: bool = True, reset_mode: int = 0, stat_mask_type: int = 0, has_action_seq: bool = True, perfect: bool = False,
        test_K: int | None = None, enc_type: int = 0, enc_f_type: int = 0, faithful: bool = False, phase: int = 0,
    ) -> None:
        self.n_actions, self.stage, self.max_depth, self.gamma = n_actions, test_K or K, max_depth, discounting
        self.newer, self.tree_carry, self.reset_mode, self.mask = layout == "G2", tree_carry, reset_mode, stat_mask_type
        self.perfect, self.faithful, self.phase = perfect, faithful, phase
        self.layout = Layout(n_actions, K, max_depth, layout, has_action_seq=has_action_seq, reset_mode=reset_mode,
                             enc_type=enc_type, enc_f_type=enc_f_type)

    def begin(self, v: float, logits: Any) -> dict[str, Any]:
        self.cur_t, self.depth, self.deepest, self.total_step, self.baseline = self.phase, 0, 0, 0, 0.0
        self.root = self.cur = Node(0, self.n_actions)
        self.root.set(0.0, v, False, logits, 0, self.gamma)
        self.root.visit(self.gamma)
        self.max_q = 0.0 if self.faithful else v  # the original records it before the first node has a return
        return self.output(self.root, 0, True, 0.0, False, False, real=True)

    def select(self, primary: int, reset: int) -> dict[str, Any]:
        self.primary, self.real, self.chosen = primary, self.cur_t >= self.stage - 1, bool(reset)
        self.child, self.status = self.cur.children[primary], 1
        if self.real:
            return {"real": True, "expand": None}
        too_deep = 0 < self.max_depth <= self.depth + 1
        self.reset = self.chosen or too_deep or (self.reset_mode == 1 and self.cur_t + 1 == self.stage - 1)
        if self.reset and self.reset_mode == 1:
            self.status = 5
            return {"real": False, "expand": None}
        if self.child is not None and (self.perfect or self.child.t >= self.total_step):
            self.status = 2
        else:
            self.status = 3 if self.cur.done else 4
            self.child = self.child or Node(primary, self.n_actions, self.cur)
        return {"real": False, "expand": (self.cur, self.child, primary) if self.status == 4 else None}

    def update(self, expanded: Any = None, real: Any = None) -> dict[str, Any]:
        deepest = self.deepest  # as it was before this step
        if self.real:
            return self.real_step(deepest, *real)
        self.cur_t, self.depth = self.cur_t + 1, self.depth + 1
        self.deepest = max(self.deepest, self.depth)
        if self.status == 5:
            self.depth, self.cur = 0, self.root
        else:
            assert self.child is not None
            if self.status == 4:
                r, v, done, logits = expanded
                self.child.set(r, 0.0 if done else v, done, logits, self.total_step, self.gamma)
            elif self.status == 3:
                self.child.set(0.0, 0.0, True, self.cur.logits, self.total_step, self.gamma)
            self.cur.children[self.primary] = self.cur = self.child
        self.cur.visit(self.gamma)
        im_reward, self.max_q = self.best(self.root) - self.max_q, self.best(self.root)
        if self.newer or not self.perfect:
            im_reward = max(0.0, im_reward)
        if self.reset and self.newer and self.faithful:
            im_reward = 0.0  # the original loses it, though the maximum moves on
        out = self.output(self.cur, deepest, self.reset, im_reward, self.reset, self.reset and not self.chosen)
        if self.reset:
            self.depth, self.cur = 0, self.root
            self.root.visit(self.gamma)
        return out

    def real_step(self, deepest: int, reward: float, done: bool, v: float, logits: Any) -> dict[str, Any]:
        old = self.root
        self.baseline = (float(np.mean(old.returns)) - old.r) / self.gamma
        self.cur_t = self.depth = self.deepest = 0
        self.total_step += 1
        kept = old.children[self.primary] if self.tree_carry and not done else None
        self.root = self.cur = kept or Node(0 if done else self.primary, self.n_actions)
        self.root.parent = None
        r = reward if self.newer and not (done and not self.faithful) else 0.0
        self.root.set(r, v, False, logits, self.total_step, self.gamma)
        self.root.visit(self.gamma)
        self.max_q = self.best(self.root)
        return self.output(self.root, deepest, True, 0.0, False, False, real=True)

    def path(self, node: Node) -> list[Node]:
        return [node] if node.parent is None else [node, *self.path(node.parent)]

    def best(self, node: Node) -> float:
        return (max(node.returns) - node.r) / self.gamma

    def output(
        self, shown: Node, deepest: int, flag: bool, im_reward: float, reset: bool, forced: bool, real: bool = False,
    ) -> dict[str, Any]:
        last = self.cur_t >= self.stage - 1  # the next action is real
        status = (3 if last and not (self.faithful and self.stage == 1) else 0) if real else 2 if last else 1
        return {
            "features": self.features(shown, flag), "step_status": status, "im_reward": im_reward, "baseline": self.baseline,
            "max_rollout_depth": deepest, "root": self.root, "cur": shown, "current_done": shown.done, "reset": reset,
            "forced": forced,
        }

    def features(self, cur: Node, flag: bool) -> np.ndarray[Any, Any]:
        one_hot = np.eye(self.n_actions)
        root, layout = self.root, self.layout
        values: dict[str, Any] = {}
        for name, node in (("root", root), ("cur", cur)):
            kids = [child.returns if child is not None else [] for child in node.children]
            values[f"{name}_action"], values[f"{name}_r"], values[f"{name}_v"] = one_hot[node.action], node.r, node.v
            values[f"{name}_d"] = float(node.done)
            values[f"{name}_logits"] = values[f"{name}_policy"] = node.logits
            values[f"{name}_qs_mean"] = [np.mean(q) if q else 0.0 for q in kids]
            values[f"{name}_qs_max"] = [max(q) if q else 0.0 for q in kids]
            counts = [0 if child is None else child.n if self.newer else len(child.returns) for child in node.children]
            values[f"{name}_ns"] = np.array(counts) / self.stage
        values["root_trail_r"] = (root.trail_r - root.r) / self.gamma
        values["root_trail_q"] = values["rollout_return"] = (root.rollout - root.r) / self.gamma
        values["root_max_v"] = values["max_rollout_return"] = self.best(root)
        values["reset"] = values["cur_reset"] = float(flag)
        values["time"] = values["k"] = np.arange(layout.K) == self.cur_t
        values["derec"] = values["deprec"] = self.gamma**self.depth
        values["action_seq"] = np.zeros((layout.seq_slots, self.n_actions))
        for slot, node in enumerate(reversed(self.path(cur)) if layout.seq_slots else ()):
            values["action_seq"][slot] = one_hot[node.action]
        kids_of = {"root", "cur"} if self.mask in (1, 2) else {"cur"} if self.mask == 5 else set()
        hidden = {f"{name}_{stat}" for name in kids_of for stat in ("qs_mean", "qs_max", "ns")}
        if self.mask in (1, 2, 4):
            hidden |= {"root_trail_r", "root_trail_q", "rollout_return", "root_max_v", "max_rollout_return"}
        if self.mask == 2:
            hidden |= {f"{name}_{prior}" for name in ("root", "cur") for prior in ("v", "logits", "policy")}
        if self.mask == 4:
            hidden |= {"root_qs_max", "cur_qs_max"}
        out = np.zeros(layout.size)
        for name, where in layout.slices.items():
            if self.mask != 3 and name not in hidden:
                value = np.asarray(values[name], np.float64)
                out[where] = (layout.encoded(value) if name in ENCODED else value).reshape(-1)
        return out
