"""Transfer: a batch of named rows to a device and back, each way in one copy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from parl_like.values.spec import Array


def send(arrays: Mapping[str, Array], device: torch.device) -> dict[str, torch.Tensor]:
    """Arrays of any shapes and dtypes as tensors on `device`.

    On the CPU they share memory with the arrays. To another device the bytes of all go side by side into one block of pinned
    memory and are copied at once, without waiting: a copy of its own would cost every field some 10 µs.
    """
    tensors = {name: torch.from_numpy(np.asarray(value, order="C")) for name, value in arrays.items()}
    if device.type == "cpu":
        return tensors
    return _split(_join(tensors, pin=device.type == "cuda").to(device, non_blocking=True), tensors)


def fetch(values: Mapping[str, object]) -> dict[str, Array]:
    """Tensors (and arrays) of any shapes and dtypes as arrays of their own; from another device than the CPU in one copy.

    They share memory with nothing that outlives the call: not with a parameter, nor with an array that a request lay in. Only
    tensors that were made under `inference_mode` are not copied again.
    """
    out, afar = {}, {}
    for name, value in values.items():
        if type(value) is torch.Tensor and value.is_cpu and value.is_inference():
            out[name] = value.numpy()
        elif not isinstance(value, torch.Tensor):
            out[name] = np.array(value)
        elif value.is_cpu:
            out[name] = value.detach().clone().numpy()
        else:
            afar[name] = value.detach()
    if not afar:
        return out
    out |= {name: value.numpy() for name, value in _split(_join(afar).cpu(), afar).items()}
    return {name: out[name] for name in values}


def _order(values: Mapping[str, torch.Tensor]) -> list[str]:
    """Wide numbers first, which keeps all of them aligned."""
    return sorted(values, key=lambda name: -values[name].element_size())


def _join(values: Mapping[str, torch.Tensor], pin: bool = False) -> torch.Tensor:
    """The bytes of all values side by side."""
    rows = [values[name].contiguous().reshape(-1) for name in _order(values)]
    # A single number is contiguous whatever its stride is; to be seen as bytes it needs one of 1.
    parts = [(row if row.stride(0) == 1 else row.clone(memory_format=torch.contiguous_format)).view(torch.uint8) for row in rows]
    return torch.cat(parts, out=torch.empty(sum(map(len, parts)), dtype=torch.uint8, device=parts[0].device, pin_memory=pin))


def _split(block: torch.Tensor, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what `_join` made of tensors like `values`, as views of `block`."""
    out, start = {}, 0
    for name in _order(values):
        value = values[name]
        end = start + value.numel() * value.element_size()
        out[name] = block[start:end].view(value.dtype).reshape(value.shape)
        start = end
    return {name: out[name] for name in values}
