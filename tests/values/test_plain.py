"""The readers of saved states: each takes its kind and refuses the others by what came."""

from collections import deque

import numpy as np
import pytest
import torch

from parl_like.values import plain

KINDS = {
    "none": None, "bool": True, "whole": 3, "numpy whole": np.int64(3), "number": 0.5, "numpy number": np.float32(0.5),
    "text": "abc", "array": np.zeros(2), "tensor": torch.zeros(2), "list": [1, 2], "tuple": (1, 2), "mapping": {"a": 1},
    "deque": deque([1]),
}
TAKEN = {
    plain.whole: {"whole", "numpy whole"}, plain.number: {"whole", "numpy whole", "number", "numpy number"},
    plain.array: {"array"}, plain.entries: {"mapping"}, plain.listed: {"list", "tuple"}, plain.wholes: {"list", "tuple"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", TAKEN, ids=lambda reader: reader.__name__)
def test_a_reader_takes_its_kind_alone(reader, kind):
    value = KINDS[kind]
    if kind not in TAKEN[reader]:
        with pytest.raises(TypeError, match=rf"a saved state: expected .*, got .* \({type(value).__name__}\); use an"):
            reader(value)
        return
    read = reader(value)
    if reader in (plain.whole, plain.number):
        assert read == value and type(read) is (int if reader is plain.whole else float)
    elif reader is plain.wholes:
        assert read == [1, 2]
    else:
        assert read is value


@pytest.mark.parametrize("value", [[1, 0.5], [True], [None], ["1"]])
def test_a_list_of_whole_numbers_has_no_other_values(value):
    with pytest.raises(TypeError, match="expected a whole number"):
        plain.wholes(value)
