"""The places in the tree's feature vector: one table that the tree writes by and everybody else reads by."""

from __future__ import annotations

from typing import Any

import numpy as np

# Entries that carry a value, a reward or a return: with enc_type ≠ 0 they are seen through the scalar transform.
ENCODED = frozenset({
    "root_r", "root_v", "root_qs_mean", "root_qs_max", "root_trail_r", "root_trail_q", "root_max_v", "rollout_return",
    "max_rollout_return", "cur_r", "cur_v", "cur_qs_mean", "cur_qs_max",
})


def encode(x: Any, f_type: int = 0) -> Any:
    """The scalar transform, elementwise, of a NumPy array or a torch tensor of floats.

        f_type 0:  f(x) = sign(x) · (√(|x| + 1) − 1) + 0.001 x
        f_type 1:  f(x) = sign(x) · ln(|x| + 1)
    """
    lib = _library(x)
    size = abs(x)
    return lib.sign(x) * (lib.sqrt(size + 1.0) - 1.0) + 0.001 * x if f_type == 0 else lib.sign(x) * lib.log1p(size)


def decode(y: Any, f_type: int = 0) -> Any:
    """The inverse of `encode`. For f_type 0, with s = √(|x| + 1), y = s − 1 + ε(s² − 1) is solved for s in the form without
    cancellation."""
    lib = _library(y)
    size = abs(y)
    if f_type == 1:
        return lib.sign(y) * lib.expm1(size)
    eps = 0.001
    c = 1.0 + eps + size
    root = 2.0 * c / (1.0 + lib.sqrt(1.0 + 4.0 * eps * c))
    return lib.sign(y) * (root * root - 1.0)


def _library(x: Any) -> Any:
    """numpy for arrays, torch for tensors; torch is not imported for an array."""
    if isinstance(x, np.ndarray | np.generic):
        return np
    import torch

    return torch


# The entries in order, by their names in G2; the kernel counts them so.
NODE = ("action", "r", "d", "v", "policy", "qs_mean", "qs_max", "ns")
ENTRIES = (*(f"root_{part}" for part in NODE), "root_trail_r", "rollout_return", "max_rollout_return",
           *(f"cur_{part}" for part in NODE), "cur_reset", "k", "deprec", "action_seq")
OLDER = {"root_d": "", "root_policy": "root_logits", "rollout_return": "root_trail_q", "max_rollout_return": "root_max_v",
         "cur_d": "", "cur_policy": "cur_logits", "cur_reset": "reset", "k": "time", "deprec": "derec", "action_seq": ""}
"""Our names → those of G1, where they differ; '': G1 has none."""


class Layout:
    """The entries of the feature vector by name, in order, for A = `n_actions` primary actions and stages of K steps.

    G1 (version 1.1.0) has 10A + K + 9 entries, G2 (version 1.2.1) 10A + 11 + K + S, where S = A·(L + 1), or A·L with `reset_mode`
    1, or 0 for unlimited depth and without `has_action_seq`. Sokoban (A=5, K=20, L=5): 79 and 111. Names and order are those of
    the two generations' own decoders: what G1 calls `root_logits`, `root_trail_q`, `root_max_v`, `reset`, `time`, `derec` is
    `root_policy`, `rollout_return`, `max_rollout_return`, `cur_reset`, `k`, `deprec` in G2.

        layout = Layout(5, 20, 5, "G2")
        layout.size                                    # 111
        layout.slices["root_ns"]                       # slice(23, 28, None)
        layout.decode(tree_reps)["root_ns"]            # [..., 5]

    Args:
        n_actions: A, at least 1.
        K: Steps of a stage, at least 1: slots of the one-hot of the step in the stage.
        max_depth: L; 0 or less: unlimited.
        generation: "G1" or "G2".
        has_action_seq: G2 only: the actions on the path from root to current node are part of the vector.
        reset_mode: 0 or 1; with 1 no node lies at depth L, so the action sequence is one slot shorter.
        enc_type: 0: values and rewards stand as they are. Else (1 to 3): through `encode`; `decode` undoes it.
        enc_f_type: Which transform: 0 the root, 1 the logarithm.

    Attributes:
        size: Length of the vector.
        slices: Name → slice, in order; they cover the vector without gaps.
        starts: [23] int64, where each entry of either generation begins; −1: not in this one.
        seq_slots: Slots of the action sequence: one for the root, one for each depth that a node can have.

    Raises:
        ValueError: an option is out of its range.
    """

    def __init__(
        self, n_actions: int, K: int, max_depth: int, generation: str = "G1", *, has_action_seq: bool = True, reset_mode: int = 0,
        enc_type: int = 0, enc_f_type: int = 0,
    ) -> None:
        for name, value, ok, expected in (
            ("n_actions", n_actions, n_actions >= 1, "at least 1"), ("K", K, K >= 1, "at least 1"),
            ("generation", generation, generation in ("G1", "G2"), "'G1' (79 entries for Sokoban) or 'G2' (111)"),
            ("reset_mode", reset_mode, reset_mode in (0, 1), "0 or 1"),
            ("enc_type", enc_type, enc_type in (0, 1, 2, 3), "0, 1, 2 or 3"),
            ("enc_f_type", enc_f_type, enc_f_type in (0, 1), "0 or 1"),
        ):
            if not ok:
                raise ValueError(f"Layout: {name} is {value!r}; expected {expected}")
        self.n_actions, self.K, self.max_depth, self.generation = n_actions, K, max_depth, generation
        self.enc_type, self.enc_f_type = enc_type, enc_f_type
        newer = generation == "G2"
        self.seq_slots = max_depth + 1 - reset_mode if newer and has_action_seq and max_depth > 0 else 0
        widths = {"k": K, "action_seq": n_actions * self.seq_slots}
        self.slices: dict[str, slice] = {}
        self.size, starts = 0, []
        for entry in ENTRIES:
            name = entry if newer else OLDER.get(entry, entry)
            per_action = entry.endswith(("_action", "_policy", "_qs_mean", "_qs_max", "_ns"))
            width = widths.get(entry, n_actions if per_action else 1) if name else 0
            starts.append(self.size if width else -1)
            if width:
                self.slices[name] = slice(self.size, self.size + width)
            self.size += width
        self.starts = np.array(starts, np.int64)

    def __repr__(self) -> str:
        return f"Layout({self.generation}, A={self.n_actions}, K={self.K}, L={self.max_depth}, size={self.size})"

    def encoded(self, x: Any) -> Any:
        """Values or rewards as this layout shows them: through `encode`, if enc_type says so. An array or tensor of any shape."""
        return encode(x, self.enc_f_type) if self.enc_type else x

    def decode(self, tree_reps: Any) -> dict[str, Any]:
        """Splits feature vectors into their entries, with the scalar transform undone.

        Args:
            tree_reps: [..., size] floats, NumPy or torch.

        Returns:
            Name → [..., width], width 1 for single numbers; and `raw`, the whole vector as it came. Views, where nothing was to
            be undone.

        Raises:
            ValueError: the last axis is not `size` long.
        """
        if not tree_reps.shape or tree_reps.shape[-1] != self.size:
            raise ValueError(f"Layout.decode: tree_reps has shape {tuple(tree_reps.shape)}; expected (..., {self.size}), which "
                             f"is {self!r}")
        entries = {name: tree_reps[..., where] for name, where in self.slices.items()}
        if self.enc_type:
            entries |= {name: decode(entry, self.enc_f_type) for name, entry in entries.items() if name in ENCODED}
        return entries | {"raw": tree_reps}
