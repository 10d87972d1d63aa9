"""CachedReplayBuffer: a ReplayBuffer that only takes whole episodes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.data.buffers.by_episode import ByEpisode
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.values import plain
from parl_like.values.batch import Batch
from parl_like.values.plain import State
from parl_like.values.spec import Array


class CachedReplayBuffer(ByEpisode):
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

    def state_dict(self) -> State:
        """Everything that the rows to come depend on: plain nested dicts of JSON values, and under "columns" arrays."""
        return {"n_lanes": self.n_lanes, "max_episode_length": self.max_episode_length, "main": self.main.state_dict(),
                "open": self._saved_open()}

    def load_state_dict(self, state: State) -> None:
        """Takes over what `state_dict` gave.

        Raises:
            ValueError: another number of lanes or longest episode, or `main` refuses its part; the buffer is as before.
        """
        own = {"n_lanes": self.n_lanes, "max_episode_length": self.max_episode_length}
        main = plain.entries(state["main"])
        opened = self._loaded_open(state, main, own)
        self.main.load_state_dict(main)
        self._set_open(opened)
