"""FrameStacker: the newest frames as one observation."""

from __future__ import annotations

from typing import Self

import gymnasium as gym
import numpy as np

from parl_like.data.buffers.reading import first_stack, next_stack
from parl_like.data.transforms.chain import Fields, Flat, Source, Tier, Transform, leaf_of, map_space, next_name, obs_names
from parl_like.values.spec import specs_of


class FrameStacker(Transform):
    """The newest `stack` frames of an observation as one [stack, …], oldest first. Mnih et al. 2015.

    Frames of two episodes never meet: an episode's first frame stands for those before it, on replay also the oldest stored frame
    where earlier ones have been overwritten. Replay reads earlier frames from the buffer; rollout remembers them.

    Args:
        stack: Frames, at least 1.
        fields: The observation's leaves to stack.
    """

    tier = Tier.BUFFER
    only_one = "FrameStacker"

    def __init__(self, stack: int, fields: Fields = ("obs",)) -> None:
        self.stack, self.fields = stack, obs_names(self, fields)
        self._forget(1)

    @property
    def behind(self) -> int:  # type: ignore[override]
        return self.stack - 1

    def _forget(self, n_envs: int) -> None:
        self._frames: Flat = {}
        self._first = np.ones(n_envs, bool)  # environments whose next observation opens an episode

    def space(self, space: gym.Space[object]) -> gym.Space[object]:
        return map_space(self, space, self._stacked)

    def _stacked(self, name: str, space: gym.Space[object]) -> gym.Space[object]:
        spec = specs_of(space, name)[name]
        low, high = (0, 1) if spec.low is None else (spec.low, spec.high)
        return gym.spaces.Box(*(first_stack(np.full((1, *spec.shape), x, spec.dtype), self.stack)[0] for x in (low, high)),
                              dtype=spec.dtype.type)

    def for_helper(self, n_envs: int) -> Self:
        other = super().for_helper(n_envs)
        other._forget(n_envs)
        return other

    def begin(self, env_index: int) -> None:
        self._first[env_index] = True

    def observe(self, obs: Flat) -> Flat:
        for name in self.fields:
            newest = leaf_of(self, obs, name)
            if len(newest) != len(self._first):
                raise self.error(name, f"{len(self._first)} rows, one per environment of this helper", len(newest))
            frames = first_stack(newest, self.stack)
            if name in self._frames:
                frames[~self._first] = next_stack(self._frames[name][~self._first], newest[~self._first])
            self._frames[name] = frames
        self._first[:] = False
        return obs | self._frames

    def replay(self, rows: Flat, source: Source) -> Flat:
        out = dict(rows)
        names = [name for name in self.fields if name in rows or next_name(name) in rows]
        frames = late = source.buffer.stacked(source.indices, names, self.stack)
        if not np.array_equal(source.last_index, source.indices):
            late = source.buffer.stacked(source.last_index, names, self.stack)
        for name in names:
            if (after := next_name(name)) in rows:
                out[after] = next_stack(late[name], rows[after])
            if name in rows:
                out[name] = frames[name]
                out[name][:, -1] = rows[name]
            if name in source.relabelled:  # for the whole episode: earlier frames show the new value too
                new = source.relabelled[name]
                for key in {name, after} & rows.keys():
                    out[key][new, :-1] = out[key][new, -1:]
        return out
