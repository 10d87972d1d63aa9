"""StoredRows: reading what lanes hold, with frames stacked and next observations looked up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from parl_like.data.frames import frame_positions, next_stack
from parl_like.data.lanes import Lanes, Positions
from parl_like.data.row_specs import FLAGS, is_part
from parl_like.data.stored_fields import FinalObservations, StoredFields
from parl_like.spec import Array


class StoredRows(Lanes):
    """Rows of lanes as flat arrays: as they are stored (`take`, `lane_rows`), or as they are learned from (`gather`,
    `n_step`)."""

    _plan: StoredFields
    _finals: FinalObservations | None

    def take(self, positions: Positions, names: Sequence[str] | None = None) -> dict[str, Array]:
        """Rows as they are stored, flat: dotted name -> [N, …], a copy. Positions are not checked; `names` None is every stored
        field."""
        columns = self.columns
        return {name: columns[name].take(positions, axis=0) for name in (columns if names is None else names)}

    def gather(self, positions: Positions, last: Positions | None = None, names: Sequence[str] | None = None) -> dict[str, Array]:
        """Rows as they are learned from, flat: dotted name -> [N, …], copies, with frames stacked and obs_next looked up.

        Args:
            positions: [N] positions of rows; not checked.
            last: [N] rows whose obs_next, terminated and truncated are wanted, of n steps the last; None: the same rows.
            names: Fields; None: all.
        """
        plan, stack = self._plan, self.stack_num
        if plan.as_stored and last is None and names is None:
            return self.take(positions)
        late = positions if last is None else last
        wanted = plan.readable if names is None else names
        obs = [name for name in wanted if is_part(name, "obs")]
        nexts = [name for name in wanted if is_part(name, "obs_next")]
        then = [name for name in wanted if name in FLAGS or (name in nexts and name in plan.number)]
        now = [name for name in wanted if name not in then and name not in nexts and (stack == 1 or name not in obs)]
        out = self.take(positions, now) | self.take(late, then)
        if stack > 1:
            out |= self._stacked(positions, obs, stack)
        if nexts and not plan.as_stored:
            out |= self._nexts(late, nexts, out, stack)
        return {name: out[name] for name in wanted}

    def _stacked(self, positions: Positions, names: Sequence[str], stack: int) -> dict[str, Array]:
        """Fields [N, stack, …], the newest frame last; [N, …] for a stack of one."""
        if stack == 1:
            return self.take(positions, names)
        return self.take(frame_positions(self, positions, stack), names)

    def _nexts(self, positions: Positions, names: Sequence[str], stored: Mapping[str, Array], stack: int) -> dict[str, Array]:
        """obs_next of the rows, by its names; `stored` has its newest frames where they are stored."""
        own = ["obs" + name[len("obs_next") :] for name in names]
        if self._finals is None:  # only the frames before it are to be fetched
            frames = self._stacked(positions, own, stack)
            return {name: next_stack(frames[theirs], stored[name]) for name, theirs in zip(names, own, strict=True)}
        following = self._ring.next(positions)
        frames = self._stacked(following, own, stack)
        out = {name: frames[theirs] for name, theirs in zip(names, own, strict=True)}
        newest = self._newest()
        for i in np.flatnonzero((following == positions) & ~self.columns["terminated"][positions]).tolist():
            final = self._finals.find(int(positions[i]), newest)
            for name in final if final is not None else ():
                assert final is not None
                array = out[name]
                array[i] = final[name] if stack == 1 else next_stack(array[i : i + 1], final[name][None])[0]
        return out

    def read_shape(self, name: str) -> tuple[int, ...]:
        """Shape of one row of a stored field as `gather` gives it, frames included."""
        shape = self.columns[name].shape[1:]
        return (self.stack_num, *shape) if self.stack_num > 1 and is_part(name, "obs") else shape

    def _one_by_one(self, positions: Positions) -> dict[str, Array]:
        """Rows with obs_next, but of single frames."""
        flat = self.take(positions)
        if self._finals is not None:
            flat |= self._nexts(positions, self._plan.next_names, {}, 1)
        return flat

    def lane_rows(self, lane: int) -> dict[str, Array]:
        """The rows of a lane in time order, flat as from `take`. Perhaps views: copy what must outlive the next write."""
        first, count = lane * self.lane_size, int(self._ring.count[lane])
        if count < self.lane_size or self._ring.cursor[lane] == first:
            return {name: column[first : first + count] for name, column in self.columns.items()}
        return self.take(self.lane_positions(lane))

    def n_step(self, indices: Positions, n: int) -> dict[str, Array]:
        """The next n rewards of each row, inside its episode and lane.

        Args:
            indices: [N] positions of rows, as `sample_indices` gives them; not checked.
            n: At least 1.

        Returns:
            rew [N, n] (vector reward [N, n, …]): rew[i, k] of the k-th row from `indices[i]`, 0 after the end.
            valid [N] int: rows followed, this one included; fewer than n where the episode or the lane ended.
            last_index [N]: position of the last of them, whose obs_next is the state to bootstrap from.
        """
        if n < 1:
            raise ValueError(f"n_step: n is {n}; expected at least 1")
        if "rew" not in self.columns:
            raise ValueError(f"{self!r}: n_step needs the field 'rew'")
        if n == 1:
            return {"rew": self.columns["rew"][indices][:, None], "valid": np.ones(len(indices), np.int64), "last_index": indices}
        return self._ring.n_step(indices, n, self._plan.number["rew"])
