"""RowBlock and Ring: the compiled memory of rows. (The tests hold them against slow twins, `tests/data/twins.py`.)"""

from parl_like.data._rows import Ring, RowBlock

__all__ = ["Ring", "RowBlock"]
