"""EpisodeBuffer: whole episodes, of any number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parl_like.data.buffers.base import Buffer, Random
from parl_like.data.buffers.by_episode import FEW, ByEpisode
from parl_like.data.buffers.fields import FLAGS, Positions, in_words, is_part
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.rng import rng_state, set_rng_state
from parl_like.values import plain
from parl_like.values.batch import Batch
from parl_like.values.plain import State
from parl_like.values.spec import Array, Spec


class FinishedEpisodes:
    """Bounds of finished episodes among all rows that finished ones ever had, oldest first.

    Every call but `lengths` takes the same time, however many there are.

    Args:
        lengths: Rows of each, [n].
    """

    def __init__(self, lengths: Sequence[int] | Positions = ()) -> None:
        self._bounds: list[int] = [0, *np.cumsum(lengths, dtype=np.int64).tolist()]  # episode i: from its bound to the next one
        self._gone = 0  # bounds in front whose episodes were dropped; they are removed now and then, many at once

    def __len__(self) -> int:
        return len(self._bounds) - self._gone - 1

    def append(self, n: int) -> None:
        """Add an episode of n rows, the newest."""
        self._bounds.append(self._bounds[-1] + n)

    def pop(self) -> int:
        """Drop the oldest episode and return its number of rows."""
        n = self._bounds[self._gone + 1] - self._bounds[self._gone]
        self._gone += 1
        if self._gone > len(self._bounds) // 2 + 100:
            del self._bounds[: self._gone]
            self._gone = 0
        return n

    def rows(self, index: int) -> slice:
        """Return the rows of an episode, 0 the oldest, counted from the first row of the oldest."""
        first, at = self._bounds[self._gone], self._gone + index
        return slice(self._bounds[at] - first, self._bounds[at + 1] - first)

    def lengths(self) -> Positions:
        """Return the rows of each, [n] int64."""
        bounds: Positions = np.array(self._bounds[self._gone :], np.int64)
        return bounds[1:] - bounds[:-1]


class EpisodeBuffer(ByEpisode, Buffer):
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
        self._finished = FinishedEpisodes()

    @property
    def rew_dtype(self) -> np.dtype[Any]:
        """As given."""
        return self._kept.rew_dtype

    # ---- writing

    def _keep(self, lane: int, values: tuple[Array, ...], n: int) -> tuple[int, int]:
        while len(self._finished) and (
            (self.max_rows is not None and len(self) + n > self.max_rows)
            or (self.max_episodes is not None and self.n_episodes >= self.max_episodes)
        ):
            self._drop()
        if len(self._kept) + n > self._kept.capacity:
            self._kept, self._first = self._packed(max(FEW, 2 * (len(self) + n)), self._kept.specs), 0
        start = self.dropped + len(self)
        self._kept.push_rows(np.zeros(n, np.int64), values)
        self._finished.append(n)
        return start, start + n - 1

    def _now(self, places: Positions) -> Positions:
        return np.asarray(np.maximum(places - self.dropped, -1))

    def _drop(self) -> None:
        n = self._finished.pop()
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
        return len(self._finished)

    def episode(self, index: int) -> Batch:
        """A finished episode, 0 the oldest and −1 the newest: read-only views [T, …] that never change, whatever is written
        later.

        Raises:
            IndexError: no such episode.
        """
        if not -self.n_episodes <= index < self.n_episodes:
            raise IndexError(f"{self!r}: there is no finished episode {index}; ask n_episodes")
        rows = self._finished.rows(index % self.n_episodes)
        slots = slice(self._first + rows.start, self._first + rows.stop)
        flat = {name: column[slots] for name, column in self._kept.columns.items()}
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
        if n > 0 and not self.n_episodes:
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

    def state_dict(self) -> State:
        """Everything that the rows to come depend on: plain nested dicts of JSON values, and arrays under "lengths" and
        "columns"."""
        return {
            "max_rows": self.max_rows, "max_episodes": self.max_episodes, "n_lanes": self.n_lanes, "dropped": self.dropped,
            "lengths": self._finished.lengths(), "rows": self._packed(max(len(self), 1), self._kept.specs).state_dict(),
            "open": self._saved_open(), "rng": rng_state(self.rng),
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        """Takes over what `state_dict` gave. This buffer may have no fields yet, or the first of those saved.

        Raises:
            ValueError: other bounds, number of lanes or fields, or none of these; the buffer is as before. KeyError, TypeError:
                it is no state.
        """
        own = {"max_rows": self.max_rows, "max_episodes": self.max_episodes, "n_lanes": self.n_lanes}
        rows, dropped = plain.entries(state["rows"]), plain.whole(state["dropped"])
        opened = self._loaded_open(state, rows, own)
        kept = ReplayBuffer(plain.whole(rows["size"]), rew_dtype=self._kept.rew_dtype)
        kept.load_state_dict(rows)
        n, lengths = len(kept), np.asarray(state["lengths"])  # older files have a list
        ends = np.flatnonzero(kept.done[:n]) + 1 if kept.specs else np.zeros(0)
        in_order = kept.next_position(0) == n % kept.capacity  # it never went round
        if lengths.sum() != n or not in_order or lengths.shape != ends.shape or not np.array_equal(ends, np.cumsum(lengths)):
            raise ValueError(f"{self!r}: the saved lengths of episodes make {lengths.sum()} rows, but {n} are there, or they end "
                             "elsewhere; the file is damaged")
        if not 0 <= dropped < 2**62:
            raise ValueError(f"{self!r}: the saved number of dropped rows is {dropped}; the file is damaged")
        if len(lengths) > (self.max_episodes or len(lengths)) or (n > (self.max_rows or n) and len(lengths) > 1):
            raise ValueError(f"{self!r}: {len(lengths)} episodes of {n} rows were saved, more than it keeps; the file is damaged")
        self._set_open(opened)
        self._kept, self._first, self.dropped = kept, 0, dropped
        self._finished = FinishedEpisodes(lengths.astype(np.int64))
        set_rng_state(self.rng, state["rng"])
