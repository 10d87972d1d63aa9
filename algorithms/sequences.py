"""Sequences: rows in a row from replay, as networks with a memory learn from them off-policy (Kapturowski et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parl_like.learning.algorithm import Window
from parl_like.values.batch import Batch

Step = Callable[[Any, Any], tuple[Any, Mapping[str, Tensor]]]


@dataclass(frozen=True)
class Sequences:
    """Reads batches of sequences [N, skip + length, …] for a learner with a memory.

    The memory before the first row that is learned from is that with which its agent acted there, or with `stored=False` zeros,
    brought up to date by the `skip` rows before it, the burn-in.

    Args:
        owner: Class of the algorithm, for messages.
        length: Rows that are learned from, at least 2. skip: Rows before them.
        stored: Whether sequences begin with the stored memory. eta: Share of the largest error in the priority of a sequence, η.

    Raises:
        ValueError: length is below 2, or eta is not in [0, 1].
    """

    owner: str
    length: int
    skip: int
    stored: bool
    eta: float

    def __post_init__(self) -> None:
        if self.length < 2 or not 0.0 <= self.eta <= 1.0:
            raise ValueError(f"{self.owner}: sequence is {self.length} and eta {self.eta}; expected sequence ≥ 2, and eta in "
                             "[0, 1]")

    @property
    def window(self) -> Window:
        return Window(in_order=False, sequence=self.length, burn_in=self.skip)

    def fixed_settings(self) -> dict[str, str]:
        """The settings that went into it, and why they stay."""
        why = "the helpers' rows come by it; build a new algorithm with another"
        return dict.fromkeys(("sequence", "burn_in", "stored_state", "eta"), why)

    def warmed(self, step: Step, batch: Batch) -> dict[str, Tensor]:
        """The memory after the rows before the sequence, by a network's `step(obs, state) -> (…, state)`; where the episode has
        no such rows, the one with which the sequence begins."""
        state = {name: part if self.stored else torch.zeros_like(part) for name, part in batch.state.items()}
        for t in range(self.skip):
            _, after = step(each(lambda obs: obs[:, t], batch.obs), state)  # noqa: B023  # called at once
            real = batch.valid[:, t]  # parts of a memory have any number of axes behind that of the rows
            state = {name: torch.where(real.reshape(-1, *(1,) * (before.ndim - 1)), after[name], before)
                     for name, before in state.items()}
        return state

    def seen(self, batch: Batch) -> Any:
        """Observations [length + 1, N, …]: of each row what it saw, then what the last real one led to."""
        return each(lambda obs, after: shown(obs, after, batch.valid, self.skip), batch.obs, batch.obs_next)

    def learned(self, batch: Batch) -> Any:
        """Observations [length, N, …] of the rows that are learned from."""
        return each(lambda obs: obs[:, self.skip :].transpose(0, 1), batch.obs)

    def priority(self, errors: Tensor, rows: Tensor) -> Tensor:
        """η max_t e_t + (1 − η) mean_t e_t [N] of errors [N, length] that are 0 behind the first so many `rows` [N]."""
        return self.eta * errors.amax(1) + (1.0 - self.eta) * errors.sum(1) / rows

    def rows(self, y: Any, batch: Batch) -> Batch:
        """The real rows that are learned from, one after the other: `obs` is what y [length, N, …] says of them; with `act`,
        `target` and `weight`, and `at`, their places among all of [length, N]."""
        at = batch.valid[:, self.skip :].T.flatten().nonzero().squeeze(1)
        rows = Batch({"obs": each(lambda part: part.flatten(0, 1)[at], y), "at": at, "target": batch.target.T.flatten()[at],
                      "act": each(lambda part: part[:, self.skip :].transpose(0, 1).flatten(0, 1)[at], batch.act)})
        if "weight" in batch:
            rows.weight = batch.weight.repeat(batch.target.shape[1])[at]
        return rows

    def priorities(self, errors: Tensor, rows: Batch, batch: Batch) -> Tensor:
        """`priority` [N] of the errors of `rows`."""
        n, length = batch.target.shape
        each_row = errors.new_zeros(n * length).index_put_((rows.at,), errors).view(length, n).T
        return self.priority(each_row, batch.valid[:, self.skip :].sum(1))


def each(function: Callable[..., Tensor], *parts: Any) -> Any:
    """The function of the tensors at the same place of observations, nested or not."""
    if isinstance(parts[0], Tensor):
        return function(*parts)
    return Batch({key: each(function, *(part[key] for part in parts)) for key in parts[0].keys()})  # noqa: SIM118


def shown(obs: Tensor, obs_next: Tensor, valid: Tensor, skip: int) -> Tensor:
    """[N, skip + L, …], and valid [N, skip + L] → [L + 1, N, …]: of each real row its obs, then what the last one led to."""
    real = valid[:, skip:].reshape(*valid[:, skip:].shape, *(1,) * (obs.ndim - 2))
    rows = torch.where(real, obs[:, skip:], obs_next[:, skip:])
    return torch.cat([rows, obs_next[:, -1:]], 1).transpose(0, 1)
