"""parl_like: reinforcement-learning robots made of computation tasks that many agents share."""

from importlib.util import find_spec as _find_spec

if _find_spec("parl_like.data._rows") is None:
    raise ImportError("parl_like's compiled modules are missing here: run `pip install -e .` at the repository root (it needs a C compiler)")

__version__ = "0.1.0"
