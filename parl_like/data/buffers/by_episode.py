"""ByEpisode: rows wait, lane by lane, for the end of their episode."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from parl_like.data.buffers.fields import FLAGS, Positions, check_saved, in_words
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.buffers.saving import Savable
from parl_like.values import plain
from parl_like.values.batch import Batch
from parl_like.values.plain import State
from parl_like.values.spec import Array, Spec
from parl_like.values.user_calls import border

FEW = 16
"""Rows that memory which grows begins with."""


class ByEpisode(Savable):
    """The writing calls of ReplayBuffer, for a buffer that takes an episode as a whole: its rows wait, lane by lane, for its end.

    Args:
        kept: Takes the finished episodes, and knows the fields.
        n_lanes: Environments that write here.
        longest: Rows of an episode at most; None: any number.
    """

    def __init__(self, kept: ReplayBuffer, n_lanes: int, longest: int | None) -> None:
        self.n_lanes, self._kept, self._longest = n_lanes, kept, longest
        self._specs = kept.specs
        # The rows of each lane's open episode: values of `_specs`, of which those that were not known yet are missing.
        self._open: list[list[tuple[object, ...]]] = [[] for _ in range(n_lanes)]

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The fields, in the order in which `push` takes their values; () before the first row."""
        return self._specs

    @property
    def open_rows(self) -> Positions:
        """[n_lanes] int64: rows of each lane's open episode."""
        return np.array([len(rows) for rows in self._open], np.int64)

    def allocate(self, specs: Sequence[Spec]) -> None:
        """Declares the fields, see `ReplayBuffer.allocate`."""
        self._kept.allocate(specs)
        self._specs = tuple(specs)

    def push(self, lane: int, values: tuple[object, ...]) -> int:
        """Writes one row: `values` in the order of `specs`. Returns its position if it ends its episode, else −1.

        Raises:
            SpecError: a value does not fit. ValueError: no such lane, `allocate` was not called, or the episode is too long. The
                buffer is as before.
        """
        staged = self._staged(1)
        staged.push(0, values)
        return int(self._now(self._write(self._lanes([lane]), staged)[0])[0])

    def push_rows(self, lanes: Sequence[int] | Positions, values: Sequence[object]) -> Positions:
        """Writes row i into lane `lanes[i]`: `values` are arrays [k, …] in the order of `specs`. Returns positions [k], as
        `push`.

        Raises:
            SpecError, ValueError: as `push`; nothing is written.
        """
        into = self._lanes(lanes)
        staged = self._staged(len(into))
        staged.push_rows(np.arange(len(into)), values)
        return self._now(self._write(into, staged)[0])

    @border
    def add(
        self, batch: Batch | Mapping[str, object], lanes: Sequence[int] | Positions | None = None
    ) -> tuple[Positions, Array, Positions, Positions]:
        """Writes rows as `ReplayBuffer.add` does: fields are inferred, late and missing ones are zero.

        Returns:
            Position of the row, return and length of its episode, and position of the episode's first row where the row ends its
            episode; −1, 0, 0 and −1 where it waits. Each [k], the return of a vector reward [k, …]. Return and length count all
            rows of the episode, however they were written.

        Raises:
            SpecError: a value does not fit its field, or is no number.
            ValueError: a required field is missing, no such lane, wrong number of rows, or the episode is too long. The buffer is
                as before.
        """
        into = np.arange(self.n_lanes) if lanes is None else self._lanes(lanes)
        self._specs = self._kept.specs  # perhaps it has learned some from somebody else
        staged = self._staged(len(into))
        staged.add(batch, None if lanes is None and self.n_lanes == 1 else np.arange(len(into)))
        positions, returns, lengths, starts = self._write(into, staged)
        return self._now(positions), returns, lengths, self._now(starts)

    def truncate_open(self, lane: int) -> bool:
        """Ends the open episode of a lane: its newest row becomes truncated. Returns whether there was one.

        Raises:
            ValueError: no such lane.
        """
        self._lanes([lane])
        if not self._open[lane]:
            return False
        newest, at = list(self._open[lane][-1]), [spec.name for spec in self._specs].index(FLAGS[1])
        newest[at] = np.True_
        self._open[lane][-1] = tuple(newest)
        self._finish(lane)
        return True

    def clear_lane(self, lane: int) -> None:
        """Drops the open episode of a lane; finished ones belong to no lane, and stay.

        Raises:
            ValueError: no such lane.
        """
        self._lanes([lane])
        self._open[lane] = []

    def add_lanes(self, n: int) -> None:
        """`n` more lanes without an open episode."""
        self.n_lanes += n
        self._open += [[] for _ in range(n)]

    # ---- inside

    @abstractmethod
    def _keep(self, lane: int, values: tuple[Array, ...], n: int) -> tuple[int, int]:
        """Takes a finished episode of n rows, `values` in the order of `_kept.specs`; returns where its first and last row
        are."""

    def _now(self, places: Positions) -> Positions:
        """Positions that rows have now, of what `_keep` returned earlier in the same call."""
        return places

    def _lanes(self, lanes: Sequence[int] | Positions) -> Positions:
        array = np.asarray(lanes, np.int64)
        wrong = array[(array < 0) | (array >= self.n_lanes)]
        if len(wrong):
            raise ValueError(f"{self!r}: there is no lane {wrong[0]}; lanes are 0 to {self.n_lanes - 1}, set by n_lanes")
        return array

    def _staged(self, k: int) -> ReplayBuffer:
        """k lanes of one row, in which rows are checked and converted before anything changes here."""
        staged = ReplayBuffer(max(k, 1), max(k, 1), rew_dtype=self._kept.rew_dtype)
        staged.use_fields(self._specs)
        return staged

    def _write(self, lanes: Positions, staged: ReplayBuffer) -> tuple[Positions, Array, Positions, Positions]:
        """`add` of staged rows, one by one; all of them, or none. Positions are those of `_keep`."""
        lengths, done = self.open_rows, staged.done
        for lane, ends in zip(lanes.tolist(), done.tolist(), strict=False):
            if lengths[lane] == self._longest:
                raise ValueError(f"{self!r}: the open episode of lane {lane} has {self._longest} rows, as many as it may; build "
                                 f"the buffer with a larger max_episode_length, or end the episode first: truncate_open({lane})")
            lengths[lane] = 0 if ends else lengths[lane] + 1
        self._kept.use_fields(staged.specs, staged.empty_keys)
        self._specs = staged.specs
        shape = next((spec.shape for spec in self.specs if spec.name == "rew"), ())
        returns, lengths = np.zeros((len(lanes), *shape)), np.zeros(len(lanes), np.int64)
        starts, positions = np.full((2, len(lanes)), -1, np.int64)
        columns = [staged.columns[spec.name] for spec in self.specs]
        for i, lane in enumerate(lanes.tolist()):
            self._open[lane].append(tuple([column[i] for column in columns]))
            if done[i]:
                returns[i], lengths[i], starts[i], positions[i] = self._finish(lane)
        return positions, returns, lengths, starts

    def _finish(self, lane: int) -> tuple[Array | float, int, int, int]:
        """Moves the episode of a lane to the finished ones; returns its return, its length, and where its first and last row
        are."""
        rows, self._open[lane] = self._open[lane], []
        columns = _columns(rows, self._kept.specs)
        first, last = self._keep(lane, tuple(columns.values()), len(rows))
        return columns["rew"].sum(0, np.float64) if "rew" in columns else 0.0, len(rows), first, last

    def _saved_open(self) -> State:
        """The open episodes, as a ReplayBuffer whose lanes they are would save them."""
        opened = ReplayBuffer(self.n_lanes * max(min(FEW, self._longest or FEW), *map(len, self._open)), self.n_lanes)
        opened.use_fields(self._specs, self._kept.empty_keys)
        for lane, rows in enumerate(self._open):
            if rows:
                opened.push_rows(np.full(len(rows), lane), tuple(_columns(rows, self._specs).values()))
        return opened.state_dict()

    def _loaded_open(self, state: State, kept: State, own: Mapping[str, object]) -> ReplayBuffer:
        """Checks a saved state, in which the finished episodes are `kept`, against what this buffer was built with, and returns
        its open episodes; nothing has changed yet."""
        check_saved(self, state, own)
        saved = plain.entries(state["open"])
        opened = ReplayBuffer(plain.whole(saved["size"]), self.n_lanes)
        opened.load_state_dict(saved)
        ended, fields = opened.specs and opened.done.any(), plain.listed(saved["specs"])
        others = fields != plain.listed(kept["specs"])[: len(fields)]
        if ended or opened.lane_size > (self._longest or opened.lane_size) or others:
            raise ValueError(f"{self!r}: the saved open episodes are over, too long, or of other fields than finished ones; the "
                             "file is damaged")
        if opened.specs[: len(self.specs)] != self.specs:
            raise ValueError(f"{self!r}: the saved fields are {in_words(opened.specs)}, this buffer's {in_words(self.specs)}; "
                             "load into a new one")
        return opened

    def _set_open(self, opened: ReplayBuffer) -> None:
        self._specs = opened.specs
        self._open = [list(zip(*opened.take(opened.lane_positions(lane)).values(), strict=True)) for lane in range(self.n_lanes)]


def _columns(rows: list[tuple[object, ...]], specs: Sequence[Spec]) -> dict[str, Array]:
    """Rows as columns [n, …]; what a row lacks is zero."""
    zeros = tuple(spec.zeros(1)[0] for spec in specs)
    return {spec.name: np.array([(*row, *zeros[len(row) :])[i] for row in rows], spec.dtype) for i, spec in enumerate(specs)}
