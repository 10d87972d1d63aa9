"""SegmentTree: sums or minima of weights by position. (The tests hold it against a slow twin, `tests/data/twins.py`.)"""

from parl_like.data._segment_tree import SegmentTree

__all__ = ["SegmentTree"]
