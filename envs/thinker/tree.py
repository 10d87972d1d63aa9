"""Tree: the augmented MDP of Thinker without network and environment: the tree says what has to be expanded, and counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from parl_like.envs.thinker._tree import Kernel
from parl_like.envs.thinker.layout import Layout
from parl_like.values.limits import check_array
from parl_like.values.spec import Array

Rows = Sequence[Any]  # columns of one length
EXPANDED, STEPPED = ("r", "v", "done", "logits"), ("reward", "done", "v", "logits")  # their names, by what they tell of


class Plan(NamedTuple):
    """The needs of an action from outside. Rows are in the order of environments; slots are rows of the caller's table of states.

    Attributes:
        real: [n] bool. These environments take their real step now, with their primary action.
        expand: int64 [m]. Environments that need one call of the model; m may be 0.
        parent_slot, child_slot: int64 [m]. Where the state to start from lies, where the new one goes.
        action: int64 [m]. The action to imagine.
        root_slot: int64 [k], one for each true entry of `real`. Where the state of the initial inference on the new observation
            goes.
    """

    real: Array
    expand: Array
    parent_slot: Array
    child_slot: Array
    action: Array
    root_slot: Array


class TreeState(NamedTuple):
    """The outcome of an action. All arrays are new in every step.

    Attributes:
        features: float32 [n, D]: the tree as `tree.layout` describes it, seen from the node that was reached, before a reset
            takes the pointer back to the root.
        step_status: int64 [n]. 0: after a real step; 1: after an imaginary one; 2: the same, and the next is real; 3: after a
            real step, and the next is real.
        im_reward: float32 [n]. Planning reward: growth of the root's best rollout return; 0 on real steps.
        baseline: float32 [n]. Mean rollout return of the root that the last real step left; 0 before the first.
        max_rollout_depth: int64 [n]. Greatest depth of the stage so far, before this step: on a real step, of the stage that it
            ends.
        root_slot, current_slot: int64 [n]. Slots of the root and of the node that is shown.
        current_done: [n] bool. The node shown is an end, which has no state of its own: zeros stand for it, and its slot holds
            nothing.
        reset: [n] bool. This imaginary step ended with a reset, chosen or forced; the next starts at the root.
        forced: [n] bool. It did so without being chosen.
    """

    features: Array
    step_status: Array
    im_reward: Array
    baseline: Array
    max_rollout_depth: Array
    root_slot: Array
    current_slot: Array
    current_done: Array
    reset: Array
    forced: Array


class Tree:
    """Trees of n environments that share a stage length: K − 1 imaginary steps, then a real one (arXiv 2307.14993).

        tree = Tree(n, n_actions, K)
        states = table(n * capacity)                                # tree.n * tree.capacity rows, the caller's
        v, logits, h = initial(obs, zeros)
        state = tree.begin(v, logits);  states[state.root_slot] = h
        while True:
            plan = tree.select(primary, reset)
            r, v, done, logits, h = recurrent(states[plan.parent_slot], plan.action);  states[plan.child_slot] = h
            ...                        # environments step where plan.real, initial inference: v0, logits0, h0
            states[plan.root_slot] = h0
            state = tree.update(expanded=(r, v, done, logits), real=(reward, over, v0, logits0))

    An imaginary action goes to the child of the current node: "revisit" if it was expanded in this stage, "absorbing" if the
    current node is an end (reward 0, value 0, the priors of the end; no model call), else "expand", which also renews a node of
    an earlier stage and corrects all returns that pass it. A real action makes its child the new root if `tree_carry`, the
    episode goes on and the child exists; its statistics stay, its siblings go. Otherwise a new root is made. After an end, `v`,
    `logits` and the state are those of the new episode's first observation.

    Memory does not grow: every environment has `capacity` slots, enough whatever is done (56 for K=20, L=5, A=5; K without
    `tree_carry`). A slot keeps its node as long as the node lives. Nothing is locked: threads that share a tree need a lock.

    Faults of the original that are mended, unless `faithful`:
        - The planning reward of a step with a reset is paid; G2 sets it to 0 and loses it, for the maximum moves on.
        - The first planning reward of a run starts from the root's value; the original starts from 0.
        - Stages of one step report status 3 ("real, and the next is real too"); the original reports 0.
        - G2's `root_r` is 0 in a new episode, like its action; the original shows the last reward of the episode before.
        - Arrays of one step are never written by the next one (always; `faithful` too).
    In the perfect mode of G1 the planning reward is not cut at 0; without the second fault it cannot be negative anyway.

    Args:
        n: Environments.
        n_actions: A, primary actions.
        K: Steps of a stage, the real one included.
        max_depth: L: at this depth a reset is forced; 0 or less: never.
        discounting: γ in (0, 1].
        layout: "G1" or "G2": features, counts (G1: expansions below a child; G2: traversals of its edge) and the root's reward
            (G1: 0).
        tree_carry: Keep the part of the tree that the real step leads to.
        reset_mode: 0: a step with a reset shows the leaf it reached. 1: it drops the imaginary action and shows the root, and the
            last imaginary step of a stage is always such a one.
        stat_mask_type: Features set to 0. 1: statistics of all children, and trail, rollout, and maximum of the root. 2: values
            and priors as well. 3: all features. 4: maxima, trail, and rollout. 5: statistics of the current node's children.
        has_action_seq: G2: the path's actions are part of the features.
        perfect: Transitions come from the real environment (slots then address snapshots): nodes that were kept are not expanded
            again.
        test_K: Stage length in place of K, while the features keep K slots for the time; None: K.
        enc_type: Not 0: rewards, values and returns in the features go through the scalar transform `enc_f_type` (layout.encode).
        faithful: Repeat the faults above.
        phase: int [n], 0 … stage length − 1: imaginary steps that each environment's first stage is short of, so that real steps
            need not coincide. None: 0.

    Attributes:
        n, n_actions, discounting, perfect: As given.
        stage: Steps of a stage: `test_K` or K.
        layout: The `Layout` of the features; `layout.size` is D.
        capacity: Slots per environment; those of environment e are e · capacity … (e + 1) · capacity − 1.

    Raises:
        ValueError: an option is out of its range.
    """

    def __init__(
        self, n: int, n_actions: int, K: int, *, max_depth: int = 5, discounting: float = 0.97, layout: str = "G1",
        tree_carry: bool = True, reset_mode: int = 0, stat_mask_type: int = 0, has_action_seq: bool = True, perfect: bool = False,
        test_K: int | None = None, enc_type: int = 0, enc_f_type: int = 0, faithful: bool = False, phase: Any = None,
    ) -> None:
        for name, value, ok, expected in (
            ("n", n, n >= 1, "at least 1"),
            ("discounting", discounting, 0.0 < discounting <= 1.0, "a number in (0, 1]"),
            ("stat_mask_type", stat_mask_type, stat_mask_type in range(6), "0 to 5"),
            ("test_K", test_K, test_K is None or test_K >= 1, "None (as K) or at least 1"),
        ):
            if not ok:
                raise ValueError(f"Tree: {name} is {value!r}; expected {expected}")
        steps = max(K, test_K or 0, 1)
        longest = max(min(max_depth, steps) if max_depth > 0 else steps, max_depth if layout == "G2" else 0)
        check_array(f"Tree: n is {n}, K {K}, test_K {test_K}, max_depth {max_depth}, n_actions {n_actions}",
                    n, steps, longest, max(n_actions, 1), lower="n, K or max_depth")
        self.layout = Layout(n_actions, K, max_depth, layout, has_action_seq=has_action_seq, reset_mode=reset_mode,
                             enc_type=enc_type, enc_f_type=enc_f_type)
        self.n, self.n_actions, self.discounting, self.perfect = n, n_actions, float(discounting), bool(perfect)
        self.stage = K if test_K is None else test_K
        self.capacity = _capacity(n_actions, self.stage, max_depth, bool(tree_carry))
        phases = np.zeros(n, np.int64) if phase is None else self._integers("Tree: phase", phase, "iu").copy()
        if phases.min() < 0 or phases.max() >= self.stage:
            raise ValueError(f"Tree: phase holds {phases.min()} to {phases.max()}; expected 0 to {self.stage - 1}, less than a "
                             "stage is long")
        hidden = np.zeros(self.layout.size, np.uint8)
        for name, where in self.layout.slices.items():
            hidden[where] = _hides(stat_mask_type, name)
        self._kernel = Kernel(n, self.layout, self.stage, max_depth, self.discounting, bool(tree_carry), bool(reset_mode),
                              self.perfect, bool(faithful), self.capacity, hidden, phases)
        self._begun = False
        self._plan: tuple[int, int] | None = None  # rows that the open plan asks for: expansions, real steps
        none = np.empty(0, np.float32)
        none_of: dict[str, Array] = {"done": np.empty(0, np.uint8), "logits": np.empty((0, n_actions), np.float32)}
        self._no_rows: dict[tuple[str, ...], list[Array]] = {
            names: [none_of.get(name, none) for name in names] for names in (EXPANDED, STEPPED)}

    def __repr__(self) -> str:
        return f"Tree(n={self.n}, stage={self.stage}, capacity={self.capacity}, {self.layout!r})"

    def begin(self, v: Any, logits: Any) -> TreeState:
        """Plants all trees, in place of any there were.

        Args:
            v: [n] float32. Values of the first observations, from the initial inference with action 0.
            logits: [n, A] float32. Their priors.

        Returns:
            The first `TreeState`; the roots are the first slots of their environments.

        Raises:
            ValueError: a shape is wrong, or a value is not finite. The tree is as before.
        """
        v = self._floats("begin: v", v, self.n, "one row for each environment")
        logits = self._floats("begin: logits", logits, self.n, "one row for each environment", (self.n_actions,))
        if not np.isfinite(v).all():
            raise ValueError(f"Tree.begin: v holds {v[~np.isfinite(v)][0]}; expected finite numbers")
        state, *memory = self._state()
        self._kernel.begin(v, logits, *memory)
        self._begun, self._plan = True, None
        return state

    def select(self, primary: Any, reset: Any) -> Plan:
        """Says what an action needs. The tree does not change; a second `select` takes the place of the first.

        Args:
            primary: [n] integers in 0 … A − 1. The action to imagine or, in a real step, to take.
            reset: [n] integers 0 or 1, or bool. 1: go back to the root after this imaginary step; ignored in a real one.

        Raises:
            ValueError: a shape, type or number is wrong.
            RuntimeError: `begin` was not called.
        """
        if not self._begun:
            raise RuntimeError("Tree.select: the tree has no roots yet; call begin(v, logits) first")
        self._plan = None
        primary = self._integers("Tree.select: primary", primary, "iu")
        reset = self._integers("Tree.select: reset", reset, "iub")
        real, rows = np.empty(self.n, np.bool_), np.empty((5, self.n), np.int64)
        m, k = self._kernel.select(primary, reset, real.view(np.uint8), rows)
        if m < 0:
            e = -1 - m
            if k == 0:
                raise ValueError(f"Tree.select: primary[{e}] is {primary[e]}; expected an action from 0 to {self.n_actions - 1}")
            raise ValueError(f"Tree.select: reset[{e}] is {reset[e]}; expected 0 (go on) or 1 (back to the root)")
        self._plan = m, k
        return Plan(real, rows[0, :m], rows[1, :m], rows[2, :m], rows[3, :m], rows[4, :k])

    def update(self, expanded: Rows | None = None, real: Rows | None = None) -> TreeState:
        """Carries the plan of the last `select` out.

        Args:
            expanded: (r, v, done, logits), [m], [m], [m], [m, A], one row for each of `plan.expand`: what the model says about
                the children. A done child's value is taken as 0. None if m is 0.
            real: (reward, done, v, logits), [k], [k], [k], [k, A], one row for each true entry of `plan.real`: what the
                environments returned, and the initial inference on the observations that they now show. None if k is 0.

        Raises:
            ValueError: rows are missing or too many, a shape is wrong, or a number is not finite. The tree is as before, the plan
                stays.
            RuntimeError: there is no plan: `select` comes first.
        """
        if self._plan is None:
            raise RuntimeError("Tree.update: there is no plan to carry out; call select(primary, reset) before each update")
        m, k = self._plan
        r, v, done, logits = self._rows("expanded", EXPANDED, expanded, m, "plan.expand")
        reward, over, root_v, root_logits = self._rows("real", STEPPED, real, k, "plan.real")
        state, *memory = self._state()
        bad = self._kernel.update(r, v, done, logits, reward, over, root_v, root_logits, *memory)
        if bad >= 0:
            name, column = (("expanded r", r), ("expanded v", v), ("real reward", reward), ("real v", root_v))[bad]
            row = int(np.flatnonzero(~np.isfinite(column))[0])
            raise ValueError(f"Tree.update: {name}[{row}] is {column[row]}; expected finite numbers: has the network diverged?")
        self._plan = None
        return state

    def state_dict(self) -> dict[str, Array]:
        """All nodes and pointers, as copies; by name, of nodes [n · capacity, ...] or of environments [n, ...]."""
        return {name: array.copy() for name, array in self._kernel.arrays.items()}

    # ---- what comes in

    def _state(self) -> tuple[TreeState, Array, Array, Array, Array]:
        """An empty state, and its memory as the kernel takes it: features, integers, floats, flags."""
        n = self.n
        features, floats = np.empty((n, self.layout.size), np.float32), np.empty((2, n), np.float32)
        ints, flags = np.empty((4, n), np.int64), np.empty((3, n), np.bool_)
        status, deepest, root, current = ints
        state = TreeState(features, status, floats[0], floats[1], deepest, root, current, *flags)
        return state, features, ints, floats, flags.view(np.uint8)

    def _rows(self, kind: str, names: tuple[str, ...], rows: Rows | None, m: int, of: str) -> list[Array]:
        """The columns `names`, checked."""
        if rows is None and m == 0:
            return self._no_rows[names]
        if rows is None or len(rows) != 4:
            got = "None" if rows is None else f"{len(rows)} columns"
            raise ValueError(f"Tree.update: {kind} is {got}; expected ({', '.join(names)}) with {m} rows, one for each "
                             f"environment of {of}")
        why, out = f"one row for each environment of {of}", []
        for name, column in zip(names, rows, strict=True):
            if name == "done":
                flags = np.asarray(column)
                if flags.shape != (m,) or flags.dtype.kind not in "biu":
                    raise ValueError(f"Tree.update: {kind} done is {flags.shape} {flags.dtype}; expected ({m},) bool, {why}")
                out.append(np.ascontiguousarray(flags, np.bool_).view(np.uint8))
            else:
                width = (self.n_actions,) if name == "logits" else ()
                out.append(self._floats(f"update: {kind} {name}", column, m, why, width))
        return out

    def _floats(self, name: str, column: Any, m: int, why: str, width: tuple[int, ...] = ()) -> Array:
        array = np.ascontiguousarray(column, np.float32)
        if array.shape != (m, *width):
            raise ValueError(f"Tree.{name} has shape {np.shape(column)}; expected {(m, *width)}, {why}"
                             f"{', by actions' if width else ''}")
        return array

    def _integers(self, name: str, values: Any, kinds: str) -> Array:
        array = np.asarray(values)
        if array.shape != (self.n,) or array.dtype.kind not in kinds:
            raise ValueError(f"{name} is {array.shape} {array.dtype}; expected ({self.n},) integers, one for each environment")
        return np.ascontiguousarray(array, np.int64)


def _capacity(n_actions: int, stage: int, max_depth: int, carry: bool) -> int:
    """The most nodes that can live at once.

    Every real step that keeps a node takes one off its depth. So of the nodes made j stages ago only those live, beside the root,
    that were made at depth j + 1 or more. Of the stage's steps fewest are lost to lesser depths if all its rollouts but the last
    are as long as they can be, D = min(L, stage − 1) steps: a rollout of l steps makes at most l − j of such nodes. Never more
    than a full tree has.
    """
    steps = stage - 1
    if steps == 0:
        return 1
    longest = min(max_depth, steps) if max_depth > 0 else steps
    rollouts, rest = divmod(steps, longest)
    most = 1 + sum(rollouts * (longest - j) + max(0, rest - j) for j in range(longest if carry else 1))
    full = level = 1
    for _ in range(longest):
        level *= n_actions
        full += level
        if full >= most:
            return most
    return full


def _hides(mask: int, name: str) -> bool:
    """Return whether a `stat_mask_type` sets this entry to 0."""
    rollout = name in ("root_trail_r", "root_trail_q", "root_max_v", "rollout_return", "max_rollout_return")
    child = name.endswith(("_qs_mean", "_qs_max", "_ns"))
    prior = name.endswith(("_v", "_logits", "_policy"))
    return (False, child or rollout, child or rollout or prior, True, rollout or name.endswith("_qs_max"),
            child and name.startswith("cur"))[mask]
