"""EpisodeBuffer: whole episodes, of any number. CachedReplayBuffer: a ReplayBuffer that only takes whole episodes."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from parl_like.data.buffers.fields import FLAGS, check_saved, in_words, is_part
from parl_like.data.buffers.reading import Buffer, Positions, Random
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.buffers.saving import Savable
from parl_like.data.rng import rng_state, set_rng_state
from parl_like.values.batch import Batch
from parl_like.values.spec import Array, Spec

FEW = 16
"""Rows that memory which grows begins with."""


class _ByEpisode(Savable):
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

    def _finish(self, lane: int) -> tuple[Any, int, int, int]:
        """Moves the episode of a lane to the finished ones; returns its return, its length, and where its first and last row
        are."""
        rows, self._open[lane] = self._open[lane], []
        columns = _columns(rows, self._kept.specs)
        first, last = self._keep(lane, tuple(columns.values()), len(rows))
        return columns["rew"].sum(0, np.float64) if "rew" in columns else 0.0, len(rows), first, last

    def _saved_open(self) -> dict[str, object]:
        """The open episodes, as a ReplayBuffer whose lanes they are would save them."""
        opened = ReplayBuffer(self.n_lanes * max(min(FEW, self._longest or FEW), *map(len, self._open)), self.n_lanes)
        opened.use_fields(self._specs, self._kept.empty_keys)
        for lane, rows in enumerate(self._open):
            if rows:
                opened.push_rows(np.full(len(rows), lane), tuple(_columns(rows, self._specs).values()))
        return opened.state_dict()

    def _loaded_open(self, state: Mapping[str, Any], kept: Mapping[str, Any], own: Mapping[str, object]) -> ReplayBuffer:
        """Checks a saved state, in which the finished episodes are `kept`, against what this buffer was built with, and returns
        its open episodes; nothing has changed yet."""
        check_saved(self, state, own)
        opened = ReplayBuffer(state["open"]["size"], self.n_lanes)
        opened.load_state_dict(state["open"])
        ended, fields = opened.specs and opened.done.any(), state["open"]["specs"]
        if ended or opened.lane_size > (self._longest or opened.lane_size) or fields != kept["specs"][: len(fields)]:
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


class EpisodeBuffer(_ByEpisode, Buffer):
    """Whole episodes, oldest first, as many as there are or as the bounds allow.

    Rows are written as into a ReplayBuffer. Those of an open episode wait in their lane, unseen; with its last row an episode
    joins the finished ones. Where a bound would be passed, the oldest episodes go, whole; the newest one stays however long it
    is.

    A *position* is the place of a row among the rows of finished episodes, 0 … len(buffer) − 1, oldest first; it holds until the
    next write or pop. Nothing is locked.

    Args:
        max_rows: Rows of finished episodes; None: any number.
        max_episodes: Finished episodes; None: any number.
        n_lanes: Environments that write here, each with an open episode of its own.
        rng: Generator, or what seeds one; None seeds with 0, so that runs repeat.
        rew_dtype: Of the reward where `add` infers the specs.

    Attributes:
        dropped: Rows of finished episodes that are here no longer.

    Raises:
        ValueError: a number is below 1.
    """

    _nothing = "without a finished episode; ask n_episodes first"

    def __init__(
        self, max_rows: int | None = None, max_episodes: int | None = None, n_lanes: int = 1, rng: Random = None,
        *, rew_dtype: npt.DTypeLike = np.float64,
    ) -> None:  # fmt: skip
        if min(n_lanes, *(bound for bound in (max_rows, max_episodes, 1) if bound is not None)) < 1:
            raise ValueError(f"EpisodeBuffer: max_rows is {max_rows}, max_episodes {max_episodes}, n_lanes {n_lanes}; expected "
                             "all at least 1")
        # Slots before _first held episodes that are gone. A slot is written once: full memory is left for another, so views last.
        super().__init__(ReplayBuffer(FEW, rew_dtype=rew_dtype), n_lanes, None)
        self._first = 0
        self.max_rows, self.max_episodes = max_rows, max_episodes
        self.rng = np.random.default_rng(0 if rng is None else rng)
        self.dropped = 0
        self._lengths: deque[int] = deque()  # of the finished episodes

    @property
    def rew_dtype(self) -> np.dtype[Any]:
        """As given."""
        return self._kept.rew_dtype

    # ---- writing

    def _keep(self, lane: int, values: tuple[Array, ...], n: int) -> tuple[int, int]:
        while self._lengths and (
            (self.max_rows is not None and len(self) + n > self.max_rows)
            or (self.max_episodes is not None and self.n_episodes >= self.max_episodes)
        ):
            self._drop()
        if len(self._kept) + n > self._kept.capacity:
            self._kept, self._first = self._packed(max(FEW, 2 * (len(self) + n)), self._kept.specs), 0
        start = self.dropped + len(self)
        self._kept.push_rows(np.zeros(n, np.int64), values)
        self._lengths.append(n)
        return start, start + n - 1

    def _now(self, places: Positions) -> Positions:
        return np.asarray(np.maximum(places - self.dropped, -1))

    def _drop(self) -> None:
        n = self._lengths.popleft()
        self.dropped, self._first = self.dropped + n, self._first + n

    def _packed(self, size: int, specs: Sequence[Spec]) -> ReplayBuffer:
        """The finished rows in new memory."""
        packed = ReplayBuffer(size, rew_dtype=self._kept.rew_dtype)
        packed.use_fields(specs, self._kept.empty_keys)
        if len(self):
            old, rows = self._kept.columns, slice(self._first, self._first + len(self))
            packed.push_rows(np.zeros(len(self), np.int64), [old[spec.name][rows] for spec in specs])
        return packed

    def pop(self) -> Batch:
        """Removes the oldest episode and returns it, as `episode` does.

        Raises:
            IndexError: there is none.
        """
        oldest = self.episode(0)
        self._drop()
        return oldest

    def pop_all(self) -> list[Batch]:
        """Removes all finished episodes and returns them, oldest first, as `episode` does. Open ones go on."""
        return [self.pop() for _ in range(self.n_episodes)]

    def reset(self) -> None:
        """Drops all episodes, open ones too; the fields and the generator stay."""
        self.pop_all()
        self._open = [[] for _ in range(self.n_lanes)]

    def remove(self, name: str) -> None:
        """Removes a field, or a group of nested ones, from all rows.

        Raises:
            KeyError: no such field. ValueError: it is `terminated` or `truncated`, which episodes are told by.
        """
        if name in FLAGS:
            raise ValueError(f"{self!r}: {name!r} cannot be removed; episodes are told apart by it")
        stay = [i for i, spec in enumerate(self.specs) if not is_part(spec.name, name)]
        if len(stay) == len(self.specs):
            raise KeyError(f"{self!r} has no field {name!r}")
        self._specs = tuple(self.specs[i] for i in stay)
        self._kept, self._first = self._packed(self._kept.capacity, self._specs), 0
        self._open = [[tuple(row[i] for i in stay if i < len(row)) for row in rows] for rows in self._open]

    # ---- reading

    def __len__(self) -> int:
        """Rows of finished episodes."""
        return len(self._kept) - self._first

    @property
    def n_episodes(self) -> int:
        """Finished episodes."""
        return len(self._lengths)

    def episode(self, index: int) -> Batch:
        """A finished episode, 0 the oldest and −1 the newest: read-only views [T, …] that never change, whatever is written
        later.

        Raises:
            IndexError: no such episode.
        """
        if not -self.n_episodes <= index < self.n_episodes:
            raise IndexError(f"{self!r}: there is no finished episode {index}; ask n_episodes")
        index %= self.n_episodes
        start = self._first + sum(list(self._lengths)[:index])
        flat = {name: column[start : start + self._lengths[index]] for name, column in self._kept.columns.items()}
        flat["done"] = flat["terminated"] | flat["truncated"]
        for view in flat.values():
            view.flags.writeable = False
        return self._kept.nested(flat)

    @property
    def episodes(self) -> list[Batch]:
        """The finished episodes, oldest first, each as from `episode`."""
        return [self.episode(i) for i in range(self.n_episodes)]

    def __getitem__(self, index: object) -> Any:
        """Rows as a Batch, copies: a slice, an integer, integers of any shape or a mask [len(buffer)]. A name: that column.

        Raises:
            IndexError: a position that holds no row. KeyError: no such field.
        """
        return self.get(slice(None), index) if isinstance(index, str) else self._kept[self._slots(index)]

    def get(self, index: object, key: str) -> Any:
        """`buffer[index].key`, without building the rest: an array, or a Batch if the field is nested. Dotted keys are fine."""
        return self._kept.get(self._slots(index), key)

    def sample_episodes(self, n: int, rng: np.random.Generator | None = None) -> list[Batch]:
        """n episodes, each of them as likely as any other whatever its length, with replacement; as from `episode`.

        Raises:
            ValueError: n > 0 and there is no finished episode.
        """
        if n > 0 and not self._lengths:
            raise ValueError(f"{self!r}: cannot sample {n} episodes {self._nothing}")
        drawn = (self.rng if rng is None else rng).random(n) * self.n_episodes
        return [self.episode(int(i)) for i in drawn]

    def _draw(self, n: int, rng: np.random.Generator) -> Positions:
        drawn: Positions = (rng.random(n) * len(self)).astype(np.int64)  # as ReplayBuffer draws
        return drawn

    def _batch(self, positions: Positions) -> Batch:
        return self._kept[positions + self._first]

    def _slots(self, index: object) -> Positions:
        if isinstance(index, slice):
            return np.arange(len(self))[index] + self._first
        array = np.asarray(index)
        if array.dtype == np.bool_ and array.shape == (len(self),):
            array = np.flatnonzero(array)
        if array.size and array.dtype.kind not in "iu":
            raise IndexError(f"{self!r}: index {index!r}; expected a slice, integers, a mask of {len(self)} bools, or a name")
        wrong = array[(array < 0) | (array >= len(self))]
        if wrong.size:
            raise IndexError(f"{self!r}: position {wrong.flat[0]} holds no row; positions are 0 to {len(self) - 1}")
        return array.astype(np.int64) + self._first

    def __repr__(self) -> str:
        return (f"EpisodeBuffer(episodes={self.n_episodes} of {self.max_episodes or 'any'}, rows={len(self)} of "
                f"{self.max_rows or 'any'}, open={sum(map(bool, self._open))} in {self.n_lanes} lanes, "
                f"fields={in_words(self.specs)})")

    # ---- saving

    def state_dict(self) -> dict[str, object]:
        """Everything that the rows to come depend on: plain nested dicts of JSON values, and under "columns" arrays."""
        return {
            "max_rows": self.max_rows, "max_episodes": self.max_episodes, "n_lanes": self.n_lanes, "dropped": self.dropped,
            "lengths": list(self._lengths), "rows": self._packed(max(len(self), 1), self._kept.specs).state_dict(),
            "open": self._saved_open(), "rng": rng_state(self.rng),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave. This buffer may have no fields yet, or the first of those saved.

        Raises:
            ValueError: other bounds, number of lanes or fields, or none of these; the buffer is as before. KeyError, TypeError:
                it is no state.
        """
        own = {"max_rows": self.max_rows, "max_episodes": self.max_episodes, "n_lanes": self.n_lanes}
        opened = self._loaded_open(state, state["rows"], own)
        kept = ReplayBuffer(state["rows"]["size"], rew_dtype=self._kept.rew_dtype)
        kept.load_state_dict(state["rows"])
        n, lengths = len(kept), [int(length) for length in state["lengths"]]
        ends = np.flatnonzero(kept.done[:n]) + 1 if kept.specs else np.zeros(0)
        in_order = kept.next_position(0) == n % kept.capacity  # it never went round
        if sum(lengths) != n or not in_order or not np.array_equal(ends, np.cumsum(lengths, dtype=np.int64)):
            raise ValueError(f"{self!r}: the saved lengths of episodes make {sum(lengths)} rows, but {n} are there, or they end "
                             "elsewhere; the file is damaged")
        if not 0 <= state["dropped"] < 2**62:
            raise ValueError(f"{self!r}: the saved number of dropped rows is {state['dropped']}; the file is damaged")
        if len(lengths) > (self.max_episodes or len(lengths)) or (n > (self.max_rows or n) and len(lengths) > 1):
            raise ValueError(f"{self!r}: {len(lengths)} episodes of {n} rows were saved, more than it keeps; the file is damaged")
        self._set_open(opened)
        self._kept, self._first, self.dropped, self._lengths = kept, 0, state["dropped"], deque(lengths)
        set_rng_state(self.rng, state["rng"])


class CachedReplayBuffer(_ByEpisode):
    """A ReplayBuffer whose episodes lie whole: rows wait in a cache of their own until their episode ends, then go to `main` as
    one.

    So one lane of `main` serves many environments, and no episode is drawn from before it is over. Whatever is not defined here
    is `main`'s: sampling, reading, priorities.

    An episode may not have more than `max_episode_length` rows: the row after them is refused and the episode stays as it is. It
    is not cut in silence, because a cut is a truncation that no environment reported; `truncate_open` makes one where it is
    wanted.

    Args:
        main: Any ReplayBuffer, with one lane for all, or with `n_lanes` lanes, one for each environment. It may hold rows, but no
            open episode.
        n_lanes: Environments that write here.
        max_episode_length: At least 1 and at most `main.lane_size`, which None stands for. The cache grows as episodes need it.

    Raises:
        ValueError: another number of lanes, a length out of its bounds, or `main` has an open episode.
    """

    def __init__(self, main: ReplayBuffer, n_lanes: int, max_episode_length: int | None = None) -> None:
        longest = main.lane_size if max_episode_length is None else max_episode_length
        if n_lanes < 1 or main.n_lanes not in (1, n_lanes):
            raise ValueError(f"CachedReplayBuffer: {n_lanes} lanes cannot go into {main!r}; give main one lane, or as many as "
                             "here")
        if not 1 <= longest <= main.lane_size:
            raise ValueError(f"CachedReplayBuffer: max_episode_length is {longest}; expected 1 to {main.lane_size}, the rows of "
                             "a lane of main")
        unfinished = main.unfinished_index()
        if len(unfinished):
            lane = int(unfinished[0]) // main.lane_size
            raise ValueError(f"CachedReplayBuffer: lane {lane} of {main!r} has an open episode; end it first: "
                             f"main.truncate_open({lane})")
        super().__init__(main, n_lanes, longest)
        self.max_episode_length = longest

    @property
    def main(self) -> ReplayBuffer:
        return self._kept

    @property
    def act_space(self) -> gym.Space[object] | None:
        """Return the action space of `main`."""
        return self.main.act_space

    @act_space.setter
    def act_space(self, space: gym.Space[object] | None) -> None:
        self.main.act_space = space

    def _keep(self, lane: int, values: tuple[Array, ...], n: int) -> tuple[int, int]:
        positions = self.main.push_rows(np.full(n, lane if self.main.n_lanes > 1 else 0), values)
        return int(positions[0]), int(positions[-1])

    def add_lanes(self, n: int) -> None:
        super().add_lanes(n)
        if self.main.n_lanes > 1:
            self.main.add_lanes(n)

    def reset(self) -> None:
        """Drops all rows, also of `main`; the fields and the generator stay."""
        self.main.reset()
        self._open = [[] for _ in range(self.n_lanes)]

    def __len__(self) -> int:
        return len(self.main)

    def __getitem__(self, index: object) -> Batch:
        return self.main[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also what pickle asks for before there is a main
            raise AttributeError(f"CachedReplayBuffer has no {name!r}")
        return getattr(self._kept, name)

    def __repr__(self) -> str:
        return f"CachedReplayBuffer(open={sum(map(bool, self._open))} in {self.n_lanes} lanes, main={self.main!r})"

    def state_dict(self) -> dict[str, object]:
        """Everything that the rows to come depend on: plain nested dicts of JSON values, and under "columns" arrays."""
        return {"n_lanes": self.n_lanes, "max_episode_length": self.max_episode_length, "main": self.main.state_dict(),
                "open": self._saved_open()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave.

        Raises:
            ValueError: another number of lanes or longest episode, or `main` refuses its part; the buffer is as before.
        """
        own = {"n_lanes": self.n_lanes, "max_episode_length": self.max_episode_length}
        opened = self._loaded_open(state, state["main"], own)
        self.main.load_state_dict(state["main"])
        self._set_open(opened)
