"""The functions that Thinker's own package has in `thinker.util`."""

from __future__ import annotations

from typing import Any

from parl_like.envs.thinker.layout import Layout


def decode_tree_reps(tree_reps: Any, num_actions: int, *, max_depth: int = 5, **layout: Any) -> dict[str, Any]:
    """The entries of feature vectors by name, see `Layout.decode`; K is what their length says.

    An environment's own `decode_tree_reps` knows its layout; here whatever is not as by default has to be said.

    Args:
        tree_reps: [..., D] floats, NumPy or torch.
        num_actions: Actions of the real environment.
        max_depth, layout: Options of `Layout`: generation ("G1", "G2"), has_action_seq, reset_mode, enc_type, enc_f_type.

    Raises:
        ValueError: no such vector is D long.
    """
    size = int(tree_reps.shape[-1])
    K = size - Layout(num_actions, 1, max_depth, **layout).size + 1
    if K < 1:
        raise ValueError(f"decode_tree_reps: tree_reps has {size} entries; expected at least {size - K + 1} for {num_actions} "
                         "actions, the layout's others and the steps of a stage")
    return Layout(num_actions, K, max_depth, **layout).decode(tree_reps)
