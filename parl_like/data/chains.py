"""Markov chains of states: where they can end."""

from __future__ import annotations

from parl_like.values.spec import Array


def endless(moves: Array) -> Array:
    """[S] bool: from here the chain may go on for ever, if it goes from s to t with probability moves[s, t] [S, S] and ends with
    the rest."""
    step = moves > 0
    ends: Array = moves.sum(1) < 1.0 - 1e-12  # where an end can be reached at all …
    while (more := ends | (step & ends).any(1)).sum() > ends.sum():
        ends = more
    never: Array = ~ends  # … and from where one can get to where it cannot
    while (more := never | (step & never).any(1)).sum() > never.sum():
        never = more
    return never
