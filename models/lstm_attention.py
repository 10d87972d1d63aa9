"""LSTM whose cells also read an attention over their last steps (Chung et al. 2023, "Thinker: Learning to Plan and Act")."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parl_like.learning.layers import Brief
from parl_like.values.spec import Spec

State = dict[str, Tensor]


class _Cell(nn.Module):
    """The parameters of one layer; `LSTMAttention` says what is done with them."""

    def __init__(self, size: int, heads: int, memory: int) -> None:
        super().__init__()
        self.gates = nn.Linear(3 * size, 5 * size)  # of [x, below, h] → i, f, o, g, a
        self.project = nn.Linear(2 * size, 3 * size)  # of [x, below] → for each head its k, q and v
        self.out = nn.Linear(size, size)
        self.norm = nn.LayerNorm(size)
        self.slot_key = nn.Parameter(torch.empty(memory, size))
        self.slot_bias = nn.Parameter(torch.empty(memory, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """New initial values of the slots; the layers have their own rules."""
        nn.init.xavier_uniform_(self.slot_key)
        nn.init.uniform_(self.slot_bias, -0.1, 0.1)


class LSTMAttention(nn.Module, metaclass=Brief):
    """Layers of LSTM cells with a fifth gate, for what an attention over the last `memory` steps of the episode found:

        u = [x, h of the layer below at this step; for the first layer, of the last layer at the step before]
        i, f, o, a = σ(…), σ(…), σ(…), σ(…);   g = tanh(…);   each … linear in [u, h]
        c ← f c + i g + a tanh(r),   h ← o tanh(c),   r = LayerNorm(x + linear(Σ_s w[s] v[s]))
        w = softmax_s(q · (k[s] + slot_key[s]) / √d + slot_bias[s] + 5 · (s is this step)),   k, q, v linear in u, for each head

    Slots are the last `memory` steps, this one at the end; those before the episode's beginning are not there. The same input x
    goes to every layer, and has the size of the memory. Time is walked through step by step, so a long unroll is slow: T = 200
    steps of 3 layers are 600 small products one after the other.

    `layer(x, state=None, first=None) -> (y, state)`, as `layers.lstm`: x [N, size] for one step or [T, N, size] for T; None =
    zeros, which is how an episode begins; first [N] or [T, N] bool: the row starts an episode, so its memory is empty *before*
    the step. y is h of the last layer, [N, size] or [T, N, size]. The state belongs after the last step: `h`, `c` [N, layers,
    size], `keys`, `values` [N, layers, heads, memory, size / heads] and `filled` [N] int64, the slots that are there.

    Args:
        size: Numbers in x, and in h and c of each layer.
        layers, heads, memory: How many layers, heads of each, and slots.
        current_bias: The 5 above.
        accumulate: As the original code does, k[s] keeps the `slot_key` that is added to it at every step, so it adds up; for
            comparisons with its numbers only.

    Raises:
        ValueError: `size` is no multiple of `heads`, a number is below 1, or x has another size or number of axes.
    """

    def __init__(
        self, size: int = 128, layers: int = 3, heads: int = 8, memory: int = 40, current_bias: float = 5.0,
        accumulate: bool = False
    ) -> None:
        super().__init__()
        if min(size, layers, heads, memory) < 1 or size % heads:
            raise ValueError(f"LSTMAttention: size is {size}, layers {layers}, heads {heads}, memory {memory}; expected at "
                             "least 1 each, and a size that the heads divide")
        self.size, self.heads, self.memory = size, heads, memory
        self.current_bias, self.accumulate = current_bias, accumulate
        self.cells = nn.ModuleList(_Cell(size, heads, memory) for _ in range(layers))

    def state_specs(self) -> dict[str, Spec]:
        """The memory of one row, by name; 126 KB with the defaults."""
        cell, f32 = (len(self.cells), self.size), np.dtype(np.float32)
        slots = (len(self.cells), self.heads, self.memory, self.size // self.heads)
        shapes = {"h": cell, "c": cell, "keys": slots, "values": slots}
        return {**{name: Spec(name, shape, f32) for name, shape in shapes.items()},
                "filled": Spec("filled", (), np.dtype(np.int64))}

    def forward(self, x: Tensor, state: Mapping[str, Tensor] | None = None, first: Tensor | None = None) -> tuple[Tensor, State]:
        """Return the outputs [N, size], of T steps [T, N, size], and the states after them.

        Raises:
            ValueError: `x` has another shape.
        """
        if x.ndim not in (2, 3) or x.shape[-1] != self.size:
            raise ValueError(f"LSTMAttention: input has shape {tuple(x.shape)}; expected [N, {self.size}], or [T, N, "
                             f"{self.size}] for T steps")
        xs = x if x.ndim == 3 else x[None]
        n = xs.shape[1]
        if state is None:
            state = {name: torch.zeros((n, *s.shape), dtype=xs.dtype if s.dtype.kind == "f" else torch.int64, device=xs.device)
                     for name, s in self.state_specs().items()}
        h, c, keys, values = (list(state[name].unbind(1)) for name in ("h", "c", "keys", "values"))
        filled = state["filled"]
        if first is not None:
            first = first.reshape(len(xs), n, 1)
            resets = first.flatten(1).any(1).tolist()  # one look spares most steps the masking
        # What x gives to gates and projections is known for all steps at once, and so are each layer's constants.
        from_x = [(F.linear(xs, cell.gates.weight[:, : self.size], cell.gates.bias).unbind(0),
                   F.linear(xs, cell.project.weight[:, : self.size], cell.project.bias).unbind(0)) for cell in self._cells()]
        current = torch.zeros(self.memory, device=xs.device, dtype=xs.dtype)
        current[-1] = self.current_bias
        slot_keys = [cell.slot_key.view(self.memory, self.heads, -1).transpose(0, 1) for cell in self._cells()]
        slot_bias = [cell.slot_bias.T + current for cell in self._cells()]
        slot = torch.arange(self.memory, 0, -1, device=xs.device)  # how many slots must be filled for each to be there
        outputs = []
        for t, x_t in enumerate(xs.unbind(0)):
            if first is not None and resets[t]:
                h, c = [part.masked_fill(first[t], 0.0) for part in h], [part.masked_fill(first[t], 0.0) for part in c]
                filled = filled.masked_fill(first[t, :, 0], 0)
            filled = (filled + 1).clamp(max=self.memory)
            absent = (slot > filled[:, None])[:, None]  # [N, 1, memory]
            below = h[-1]
            for i, cell in enumerate(self._cells()):
                projected = from_x[i][1][t] + F.linear(below, cell.project.weight[:, self.size :])
                k, q, v = projected.view(n, self.heads, 3, self.size // self.heads).unbind(2)
                keys[i] = torch.cat([keys[i][:, :, 1:], k[:, :, None]], 2)
                values[i] = torch.cat([values[i][:, :, 1:], v[:, :, None]], 2)
                placed = keys[i] + slot_keys[i]
                scores = (placed @ q[..., None]).squeeze(-1) / math.sqrt(q.shape[-1]) + slot_bias[i]
                weights = torch.softmax(scores.masked_fill(absent, -math.inf), -1)
                found = (weights[:, :, None] @ values[i]).reshape(n, self.size)
                recalled = cell.norm(x_t + cell.out(found))
                gates = from_x[i][0][t] + F.linear(torch.cat([below, h[i]], 1), cell.gates.weight[:, self.size :])
                ins, forget, out, new, attend = gates.chunk(5, 1)
                kept, added = torch.sigmoid(forget) * c[i], torch.sigmoid(ins) * torch.tanh(new)
                c[i] = kept + added + torch.sigmoid(attend) * torch.tanh(recalled)
                below = h[i] = torch.sigmoid(out) * torch.tanh(c[i])
                if self.accumulate:
                    keys[i] = placed
            outputs.append(below)
        y = torch.stack(outputs) if x.ndim == 3 else outputs[0]
        after = {"h": h, "c": c, "keys": keys, "values": values}
        return y, {**{name: torch.stack(parts, 1) for name, parts in after.items()}, "filled": filled}

    def _cells(self) -> list[Any]:
        return list(self.cells)
