"""Transfer: a batch of named rows to a device and back, each way in one copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parl_like.process.shared_memory import offsets
from parl_like.spec import Array


def send(arrays: Mapping[str, Array], device: torch.device) -> dict[str, torch.Tensor]:
    """Arrays of any shapes and dtypes as tensors on `device`.

    On the CPU they share memory with the arrays. To another device the bytes of all go side by side into one block of pinned
    memory and are copied at once, without waiting: a copy of its own would cost every field some 10 µs.
    """
    whole = {name: np.ascontiguousarray(value).reshape(np.shape(value)) for name, value in arrays.items()}
    if device.type == "cpu":
        return {name: torch.from_numpy(value) for name, value in whole.items()}
    return _unpack(_pack(whole, pin=device.type == "cuda").to(device, non_blocking=True), whole)


def fetch(values: Mapping[str, Any]) -> dict[str, Array]:
    """Tensors (and arrays) of any shapes and dtypes as arrays of their own; from another device than the CPU in one copy.

    They share memory with nothing that outlives the call: not with a parameter, nor with an array that a request lay in. Only tensors
    that were made under `inference_mode` are not copied again.
    """
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    if any(value.device.type != "cpu" for value in tensors.values()):
        moved = {name: value.detach() for name, value in tensors.items() if value.device.type != "cpu"}
        values = {**values, **_split(_join(moved).cpu(), moved)}
    return {name: _own(value) if isinstance(value, torch.Tensor) or name not in tensors else value for name, value in values.items()}


def _own(value: Any) -> Array:
    if not isinstance(value, torch.Tensor):
        return np.array(value)
    array: Array = value.numpy() if value.is_inference() else value.detach().clone().numpy()
    return array


def _order(values: Mapping[str, torch.Tensor]) -> list[str]:
    """Wide numbers first, which keeps all of them aligned."""
    return sorted(values, key=lambda name: -values[name].element_size())


def _join(values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([values[name].contiguous().reshape(-1).view(torch.uint8) for name in _order(values)])


def _split(block: torch.Tensor, values: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    out, start = {}, 0
    for name in _order(values):
        value = values[name]
        end = start + value.numel() * value.element_size()
        out[name] = block[start:end].view(value.dtype).reshape(value.shape).numpy()
        start = end
    return {name: out[name] for name in values}


def _pack(arrays: Mapping[str, Array], pin: bool) -> torch.Tensor:
    begins, end = offsets(array.nbytes for array in arrays.values())
    block = torch.empty(end, dtype=torch.uint8, pin_memory=pin)
    memory = block.numpy()
    for array, begin in zip(arrays.values(), begins, strict=True):
        memory[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
    return block


def _unpack(block: torch.Tensor, arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    begins, _ = offsets(array.nbytes for array in arrays.values())
    return {name: block[begin : begin + array.nbytes].view(torch.from_numpy(np.empty(0, array.dtype)).dtype).reshape(array.shape)
            for (name, array), begin in zip(arrays.items(), begins, strict=True)}
