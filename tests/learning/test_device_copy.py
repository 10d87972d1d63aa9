"""Transfers between NumPy and a device. Without a second device the packing is tested on the CPU, where `send` and `fetch` skip
it."""

import numpy as np
import pytest
import torch

from parl_like.learning.device_copy import _join, _split, fetch, send

CPU = torch.device("cpu")
DEVICES = [CPU] + ([torch.device("cuda")] if torch.cuda.is_available() else [])


def rows(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "terminated": rng.random(5) < 0.5, "obs": rng.integers(0, 255, (5, 3, 7), np.uint8), "rew": rng.normal(size=5),
        "act": rng.integers(0, 9, 5), "log_prob": rng.normal(size=(5, 1)).astype(np.float32), "half": np.ones((5, 3), np.float16),
        "none": np.zeros((5, 0), np.float32), "turned": rng.normal(size=(3, 5)).T, "one": np.float32(2.5),
    }


def same(left, right):
    assert list(left) == list(right)
    for name, value in left.items():
        assert value.dtype == np.asarray(right[name]).dtype and value.shape == np.shape(right[name])
        np.testing.assert_array_equal(value, right[name])


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_rows_go_there_and_back(device):
    sent = send(rows(), device)
    assert all(value.device.type == device.type for value in sent.values())
    same(fetch(sent), rows())


def test_tensors_are_joined_and_split():
    values = {name: torch.as_tensor(value) for name, value in rows().items()}
    values["spread"] = torch.ones(3).expand(5, 3)
    values["single"] = torch.arange(8.0).reshape(2, 4)[:1, 2]  # of stride 4, and contiguous all the same
    joined = _join(values)
    split = _split(joined, values)
    same({name: value.numpy() for name, value in split.items()}, {name: value.numpy() for name, value in values.items()})
    assert all(value.untyped_storage().data_ptr() == joined.untyped_storage().data_ptr() for value in split.values())


def test_tensors_are_joined_where_they_are():
    """`meta` stands for a device of its own: what is fetched from a GPU is joined there and copied once."""
    afar = {name: torch.zeros(3, dtype=kind, device="meta") for name, kind in (("act", torch.int64), ("q", torch.float32))}
    assert _join(afar).device.type == "meta" and _join(afar).shape == (36,)


def test_on_the_cpu_nothing_is_copied_in_and_nothing_is_shared_out():
    arrays = rows()
    sent = send(arrays, CPU)
    arrays["rew"][0] = 7.0
    assert sent["rew"][0] == 7.0
    back = fetch(sent)
    arrays["rew"][0] = 8.0
    assert back["rew"][0] == 7.0
