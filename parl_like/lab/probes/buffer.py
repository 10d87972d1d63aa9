"""The probe of a buffer: rows come out as they went in, in order, round after round, and from a saved state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parl_like.data.buffers.prioritized import PrioritizedReplayBuffer
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.lab.probes.laws import Broken, DoesNotApply, Findings, Law, tried
from parl_like.values.spec import leaves

SIZE, LANES = 20, 2
"""Rows of a lane and lanes of the buffers that are probed."""

SHAPES: dict[str, Callable[[Any], Any]] = {
    "of shape ()": lambda number: number,
    "of shape (1,)": lambda number: number[:, None],
    "of shape (2, 3, 4)": lambda number: number[:, None, None, None] + np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "that are a Dict": lambda number: {"one": number, "inner": {"two": np.stack([number, -number], 1)}},
}
"""Observations that are probed → what makes those of all lanes from a number of each."""

Maker = Callable[[int, int, np.random.Generator], Any]


def row(i: int, end: str = "") -> dict[str, Any]:
    """Return row `i` of both lanes: lane 1 counts from 1,000."""
    number = np.array([i, 1_000 + i], np.float32)
    return {"obs": np.stack([number, -number], 1), "act": number.astype(np.int64), "rew": number.astype(np.float64),
            "terminated": np.array([end == "terminated"] * LANES), "truncated": np.array([end == "truncated"] * LANES),
            "obs_next": np.stack([number + 1, -number - 1], 1)}


class BufferProbe:
    """The laws of the buffers that `make(size, lanes, rng)` gives."""

    def __init__(self, make: Maker) -> None:
        self.make = make

    def filled(self, n: int, ends: int = 0) -> Any:
        """Return a buffer with `n` rows in each lane, each `ends`-th of them terminated."""
        buffer = self.make(SIZE * LANES, LANES, np.random.default_rng(1))
        for i in range(n):
            buffer.add(row(i, "terminated" if ends and i % ends == ends - 1 else ""))
        return buffer

    def rows(self) -> None:
        """Put rows in, change the arrays, and read them."""
        buffer = self.make(SIZE * LANES, LANES, np.random.default_rng(1))
        for i in range(6):
            given = row(i)
            buffer.add(given)
            for name in ("obs", "act", "rew", "obs_next"):
                given[name][...] = -7
        self.equal(buffer, range(6))

    def shapes(self) -> None:
        """Put observations of all shapes in, with a reward that never changes, and read them.

        Raises:
            Broken: what comes out is not what went in.
        """
        for kind, made in SHAPES.items():
            buffer, number = self.make(SIZE * LANES, LANES, np.random.default_rng(1)), np.array([0, 1_000], np.float32)
            for i in range(3):
                buffer.add({**row(i), "rew": np.ones(LANES), "obs": made(number + i), "obs_next": made(number + i + 1)})
            found = buffer[buffer.sample_indices(0)]
            for name, ahead in (("obs", 0), ("obs_next", 1)):
                wanted = made(np.concatenate([lane + ahead + np.arange(3, dtype=np.float32) for lane in number]))
                got, expected = dict(leaves(getattr(found, name), name)), dict(leaves(wanted, name))
                if got.keys() != expected.keys() or not all(np.array_equal(got[key], expected[key]) for key in got):
                    raise Broken(f"{name} {kind} came out as {_shapes(got)}; expected {_shapes(expected)} with the numbers that "
                                 "went in")
            if np.asarray(found.rew).tolist() != [1.0] * 3 * LANES:
                raise Broken(f"beside observations {kind} rew came out as {np.asarray(found.rew).tolist()}; expected ones")

    def equal(self, buffer: Any, numbers: range) -> None:
        """Raise `Broken` where the buffer does not hold just these rows, in time order."""
        found = buffer[buffer.sample_indices(0)]
        wanted = [number for lane in range(LANES) for number in (1_000 * lane + i for i in numbers)]
        for name, factor in (("act", 1), ("rew", 1)):
            if np.asarray(getattr(found, name)).tolist() != [factor * number for number in wanted]:
                raise Broken(f"{name} came out as {np.asarray(getattr(found, name)).tolist()}; expected {wanted}")
        for name, ahead in (("obs", 0), ("obs_next", 1)):
            column = np.asarray(getattr(found, name))
            if column.tolist() != [[number + ahead, -number - ahead] for number in wanted]:
                raise Broken(f"{name} came out as {column.tolist()!r:.120}; expected {wanted} plus {ahead}, and less than that")

    def wraps(self) -> None:
        """Fill it beyond its size."""
        self.equal(self.filled(SIZE + 7), range(7, SIZE + 7))

    def neighbours(self) -> None:
        """Look at sums of rewards over ends and the newest row. Raises Broken where the law is broken."""
        buffer = self.filled(SIZE + 7, ends=5)
        positions = buffer.sample_indices(0)
        numbers = np.asarray(buffer[positions].act)
        ahead = buffer.n_step(positions, 3)
        for i, number in enumerate(numbers.tolist()):
            lane, at = divmod(number, 1_000)
            wanted = [at]
            while len(wanted) < 3 and wanted[-1] % 5 != 4 and wanted[-1] + 1 < SIZE + 7:
                wanted.append(wanted[-1] + 1)
            rewards = [float(1_000 * lane + one) for one in wanted] + [0.0] * (3 - len(wanted))
            if ahead["rew"][i].tolist() != rewards or ahead["valid"][i] != len(wanted):
                raise Broken(f"the 3 rewards from row {number} on are {ahead['rew'][i].tolist()}, {ahead['valid'][i]} real; "
                             f"expected {rewards} and {len(wanted)}")

    def drawn(self) -> None:
        """Draw rows. Raises Broken where the law is broken."""
        buffer = self.filled(SIZE)
        drawn = buffer.sample_indices(4_000)
        there = buffer.sample_indices(0)
        if not set(drawn.tolist()) <= set(there.tolist()):
            raise Broken("it draws positions that hold no row")
        if missing := len(set(there.tolist()) - set(drawn.tolist())):
            raise Broken(f"of {len(there)} rows {missing} never come in 4,000 draws")

    def priorities(self) -> None:
        """Draw rows by their priorities. Raises Broken where the law is broken, DoesNotApply where it is not about this."""
        buffer = self.filled(SIZE)
        if not isinstance(buffer, PrioritizedReplayBuffer):
            raise DoesNotApply("it is no PrioritizedReplayBuffer")
        there = buffer.sample_indices(0)
        buffer.update_weight(there, np.where(np.arange(len(there)) == 3, 1_000.0, 1e-6))
        share = float(np.mean(buffer.sample_indices(2_000) == there[3]))
        if share < 0.5:
            raise Broken(f"a row with a priority 10⁹ times that of the others is {share:.0%} of what is drawn; expected most")

    def state(self) -> None:
        """Save a full buffer, load it into another, and go on with both. Raises Broken where the law is broken."""
        one, two = self.filled(SIZE + 7, ends=5), self.make(SIZE * LANES, LANES, np.random.default_rng(9))
        two.load_state_dict(one.state_dict())
        self.equal(two, range(7, SIZE + 7))
        for buffer in (one, two):
            buffer.add(row(SIZE + 7))
        self.equal(two, range(8, SIZE + 8))
        if one.sample_indices(50).tolist() != two.sample_indices(50).tolist():
            raise Broken("from a saved state it draws other rows")


def _shapes(found: dict[str, Any]) -> str:
    return ", ".join(f"{name} {np.shape(one)}" for name, one in found.items())


def probe_buffer(buffer: Maker | type[ReplayBuffer]) -> Findings:
    """Try whether a buffer keeps the laws that helpers and learners rely on.

    Args:
        buffer: Its class, or a function that makes one, called as helpers do: `buffer(size, lanes, rng)`.
    """
    probe = BufferProbe(buffer)
    return tried(getattr(buffer, "__name__", str(buffer)), [
        Law("rows come out as they went in", "add and __getitem__; arrays that are kept without a copy", probe.rows),
        Law("keeps shapes of observations", "add and __getitem__: shape (), Dict, several axes", probe.shapes),
        Law("wraps around", "where the row after the last position goes", probe.wraps),
        Law("follows rewards to the end", "n_step: ends of episodes, the newest row, the edge of a lane", probe.neighbours),
        Law("draws every row", "sample_indices", probe.drawn),
        Law("draws by priority", "update_weight and _draw", probe.priorities),
        Law("goes on from a saved state", "state_dict and load_state_dict", probe.state),
    ])
