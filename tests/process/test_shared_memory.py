"""Arrays side by side in one block: where they lie, and that two maps of one file are the same memory."""

import os

import numpy as np
import pytest

from parl_like.process.shared_memory import map_file, nameless_file, offsets, size_of, views

COLUMNS = [((3, 2), np.float32), ((5,), np.bool_), ((4, 0), np.int64), ((), np.float64), ((2, 84, 84), np.uint8)]


def test_each_array_begins_on_a_cache_line_of_its_own():
    assert offsets([24, 5, 0, 8, 64, 65]) == ([0, 64, 128, 128, 192, 256], 384)
    assert offsets([]) == ([], 0)
    assert size_of(COLUMNS) == offsets([24, 5, 0, 8, 2 * 84 * 84])[1]


def test_no_array_writes_into_another():
    memory = np.zeros(size_of(COLUMNS), np.uint8)
    arrays = views(memory, COLUMNS)
    for i, (array, (shape, dtype)) in enumerate(zip(arrays, COLUMNS, strict=True)):
        assert array.shape == shape and array.dtype == dtype and array.flags.c_contiguous
        array[...] = i + 1
    assert [np.unique(array).tolist() for array in arrays] == [[1], [True], [], [4], [5]]
    with pytest.raises(TypeError):
        views(memory[: -64 * 200], COLUMNS)


def test_two_maps_of_a_file_without_a_name_are_one_memory():
    fd = nameless_file("test")
    try:
        size = size_of(COLUMNS)
        mine, theirs = views(map_file(fd, size), COLUMNS), views(map_file(fd, size), COLUMNS)
        mine[0][1, 1] = 7.0
        assert theirs[0].tolist() == [[0, 0], [0, 7], [0, 0]]
    finally:
        os.close(fd)
