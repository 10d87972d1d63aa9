"""Shared memory for parameters: networks reach the workers without passing through a socket."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from parl_like.drivers.messages import pack_state
from parl_like.process.shared_memory import offsets
from parl_like.tasks.acting_copies import tensors_of
from parl_like.tasks.task import ComputationTask
from parl_like.values.spec import Array

ASIDE = 1 << 20
"""Bytes of parameters from which on a worker copies them in a thread, while its agents act (async). Copying less costs less than
a thread."""


class Parameters:
    """The parameters of one task, in two slots by turns, which the robot writes and its workers read.

    A slot begins with the number of the publication that it holds, 0 while it is being written: who has copied it looks again,
    and throws away what two publications were written over meanwhile; the second of them is on its way.

    Args:
        where: The folder of their file, which is made where it is missing; that is the robot's to do first.
        task: The task's name, which may have any characters.
        like: Tensors of the shapes and dtypes that will be published, by network and name; both sides have the same.

    Attributes:
        aside: Whether they are so many that copying them goes on beside predictions.
    """

    def __init__(self, where: str, task: str, like: Mapping[tuple[str, str], torch.Tensor]) -> None:
        path = Path(where, f"task.{task.encode().hex()[:100]}")
        sizes = [tensor.numel() * tensor.element_size() for tensor in like.values()]
        (_, *begins), end = offsets([8, *sizes])  # the publication's number comes first
        with open(path, "a+b") as file:
            os.posix_fallocate(file.fileno(), 0, 2 * end)
            self._memory = mmap.mmap(file.fileno(), 2 * end)
        self._size = end
        self.aside = end >= ASIDE

        def view(tensor: torch.Tensor, at: int) -> torch.Tensor:
            return torch.frombuffer(self._memory, dtype=tensor.dtype, count=tensor.numel(), offset=at).view(tensor.shape)

        named = [(key, tensor, begin) for (key, tensor), begin in zip(like.items(), begins, strict=True) if tensor.numel()]
        self.slots = [{key: view(tensor, slot * end + begin) for key, tensor, begin in named} for slot in (0, 1)]

    def write(self, tensors: Mapping[tuple[str, str], torch.Tensor], number: int) -> None:
        """Publication `number`, from 1, goes into its slot."""
        slot = self.slots[number % 2]
        struct.pack_into("<q", self._memory, number % 2 * self._size, 0)
        if slot:
            with torch.no_grad():
                torch._foreach_copy_(list(slot.values()), [tensors[key].detach() for key in slot])
        struct.pack_into("<q", self._memory, number % 2 * self._size, number)

    def holds(self, number: int) -> bool:
        """Return whether its slot has not been written over."""
        return bool(struct.unpack_from("<q", self._memory, number % 2 * self._size)[0] == number)


Publication = tuple[str, dict[str, int], dict[str, Array]]
"""Name of the task, notes and arrays of a message."""


class Publisher:
    """When replicas in the workers get the parameters of their task, and by which way.

    Args:
        tasks: Of the robot.
        folder: Where memory lies that the workers share; empty: they share none.
    """

    def __init__(self, tasks: Sequence[ComputationTask], folder: str) -> None:
        self._tasks, self._folder = tasks, folder
        self._versions: dict[str, int] = {}
        self._areas: dict[str, Parameters | None] = {}
        self._numbers = 0

    def due(self, always: bool = False, to_all: bool = True) -> list[Publication]:
        """Return what is to be sent of tasks whose replicas are `sync_every` optimiser steps behind.

        Args:
            always: Also of those that are not.
            to_all: All workers are to get it; else only some, and the others are as far behind as they were.
        """
        out: list[Publication] = []
        for task in self._tasks:
            if task.serve != "replica" or not (always or task.version - self._versions.get(task.name, 0) >= task.sync_every):
                continue
            with task.lock:
                if to_all:
                    self._versions[task.name] = task.version
                notes = {"version": task.version, "updates": task.algorithm.updates}
                area = self._area(task)
                if area is None:
                    out.append((task.name, notes, pack_state(task.networks_state(acting=True))))
                else:
                    self._numbers += 1
                    area.write(tensors_of(task.networks_state(acting=True)), self._numbers)
                    out.append((task.name, {**notes, "number": self._numbers}, {}))
        return out

    def follows_every_step(self) -> bool:
        """Return whether every task's replicas get the parameters of every optimiser step."""
        return all(task.sync_every == 1 for task in self._tasks)

    def _area(self, task: ComputationTask) -> Parameters | None:
        """Shared memory for its parameters; None: they go in messages, for there is no such memory."""
        if task.name not in self._areas:
            like = tensors_of(task.networks_state(acting=True))
            try:
                self._areas[task.name] = Parameters(self._folder, task.name, like) if self._folder else None
            except OSError:  # no room
                self._areas[task.name] = None
        return self._areas[task.name]
