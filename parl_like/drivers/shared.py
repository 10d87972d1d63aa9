"""Shared memory: large observations reach the robot's process, and large networks its workers, without passing through a socket.

A worker gathers the rows of its agents in a block anyway; if that is large, its columns lie in a file of /dev/shm that both
processes map, and the message says which block it is. The robot copies the rows into its own batch before it answers, and the
worker writes into the block again only after the answer; so neither has to ask the other.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from parl_like.acting import tensors_of
from parl_like.data._rows import RowBlock
from parl_like.process.shared_memory import offsets, size_of, views
from parl_like.spec import Array, Spec
from parl_like.wire import pack_state

LARGE = 1 << 18
"""Bytes of a block from which on it is shared. (Measured: 32 rows of 2 KB take as long by socket.)"""


def folder() -> str | None:
    """Where such files can be: in /dev/shm, or where the environment's PARL_LIKE_SHM says (empty: nowhere); None where there is
    no such place."""
    path = os.environ.get("PARL_LIKE_SHM", "/dev/shm")
    return path if path and os.access(path, os.W_OK) else None


def _size(specs: Sequence[Spec], capacity: int) -> int:
    return size_of([((capacity, *spec.shape), spec.dtype) for spec in specs])


def _columns(memory: mmap.mmap, specs: Sequence[Spec], capacity: int) -> dict[str, Array]:
    columns = views(memory, [((capacity, *spec.shape), spec.dtype) for spec in specs])
    return {spec.name: column for spec, column in zip(specs, columns, strict=True)}


class Blocks:
    """A worker's shared blocks, in the folder `where`, under its own name there."""

    def __init__(self, where: str, owner: str) -> None:
        self._where, self._owner = Path(where), owner
        self._blocks: list[RowBlock] = []

    def make(self, specs: Sequence[Spec], capacity: int) -> RowBlock:
        """A block, which is shared if it is large and there is room."""
        size = _size(specs, capacity)
        if size < LARGE:
            return RowBlock(specs, capacity)
        path = self._where / f"{self._owner}.{len(self._blocks)}"
        try:
            with open(path, "x+b") as file:
                os.posix_fallocate(file.fileno(), 0, size)  # else the first write to a full /dev/shm would end the process
                block = RowBlock(specs, capacity, _columns(mmap.mmap(file.fileno(), size), specs, capacity))
        except OSError:
            path.unlink(missing_ok=True)
            return RowBlock(specs, capacity)
        self._blocks.append(block)
        return block

    def number_of(self, block: RowBlock) -> int | None:
        """Its number; None: it is not shared."""
        return next((number for number, shared in enumerate(self._blocks) if shared is block), None)


class Reader:
    """The robot's view of its workers' blocks."""

    def __init__(self, where: str) -> None:
        self._where = Path(where)
        self._columns: dict[tuple[str, int], dict[str, Array]] = {}

    def rows(self, owner: str, number: int, specs: Sequence[Spec], capacity: int, n: int) -> dict[str, Array]:
        """The first `n` rows of a block, as read-only views."""
        columns = self._columns.get((owner, number))
        if columns is None:
            path = self._where / f"{owner}.{number}"
            size = _size(specs, capacity)
            with open(path, "rb") as file:
                columns = _columns(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), specs, capacity)
            path.unlink()  # the memory stays for who has mapped it
            self._columns[owner, number] = columns
        return {name: column[:n] for name, column in columns.items()}

    def forget(self, owner: str) -> None:
        self._columns = {key: columns for key, columns in self._columns.items() if key[0] != owner}


class Parameters:
    """The parameters of one task, in two slots by turns, which the robot writes and its workers read.

    A slot begins with the number of the publication that it holds, 0 while it is being written: who has copied it looks again,
    and throws away what two publications were written over meanwhile; the second of them is on its way.

    Args:
        where: The folder of their file, which is made where it is missing; that is the robot's to do first.
        task: The task's name, which may have any characters.
        like: Tensors of the shapes and dtypes that will be published, by network and name; both sides have the same.
    """

    def __init__(self, where: str, task: str, like: Mapping[tuple[str, str], torch.Tensor]) -> None:
        path = Path(where, f"task.{task.encode().hex()[:100]}")
        sizes = [tensor.numel() * tensor.element_size() for tensor in like.values()]
        (_, *begins), end = offsets([8, *sizes])  # the publication's number comes first
        with open(path, "a+b") as file:
            os.posix_fallocate(file.fileno(), 0, 2 * end)
            self._memory = mmap.mmap(file.fileno(), 2 * end)
        self._size = end

        def view(tensor: torch.Tensor, at: int) -> torch.Tensor:
            return torch.frombuffer(self._memory, dtype=tensor.dtype, count=tensor.numel(), offset=at).view(tensor.shape)

        named = [(key, tensor, begin) for (key, tensor), begin in zip(like.items(), begins, strict=True) if tensor.numel()]
        self.slots = [{key: view(tensor, slot * end + begin) for key, tensor, begin in named} for slot in (0, 1)]

    def write(self, tensors: Mapping[tuple[str, str], torch.Tensor], number: int) -> None:
        """Publication `number`, from 1, goes into its slot."""
        slot = self.slots[number % 2]
        struct.pack_into("<q", self._memory, number % 2 * self._size, 0)
        with torch.no_grad():
            torch._foreach_copy_(list(slot.values()), [tensors[key].detach() for key in slot])
        struct.pack_into("<q", self._memory, number % 2 * self._size, number)

    def holds(self, number: int) -> bool:
        """Whether its slot has not been written over."""
        return bool(struct.unpack_from("<q", self._memory, number % 2 * self._size)[0] == number)


Publication = tuple[str, dict[str, Any], dict[str, Array]]
"""Name of the task, notes and arrays of a message."""


class Publisher:
    """When replicas in the workers get the parameters of their task, and by which way."""

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}
        self._areas: dict[str, Parameters | None] = {}
        self._numbers = 0

    def due(self, tasks: Sequence[Any], folder: str, always: bool = False, to_all: bool = True) -> list[Publication]:
        """What is to be sent of tasks whose replicas are `sync_every` optimiser steps behind.

        Args:
            folder: Where memory lies that the workers share; empty: they share none.
            always: Also of those that are not.
            to_all: All workers are to get it; else only some, and the others are as far behind as they were.
        """
        out: list[Publication] = []
        for task in tasks:
            if task.serve != "replica" or not (always or task.version - self._versions.get(task.name, 0) >= task.sync_every):
                continue
            with task.lock:
                if to_all:
                    self._versions[task.name] = task.version
                notes = {"version": task.version, "updates": task.algorithm.updates}
                area = self._area(task, folder)
                if area is None:
                    out.append((task.name, notes, pack_state(task.networks_state(acting=True))))
                else:
                    self._numbers += 1
                    area.write(tensors_of(task.networks_state(acting=True)), self._numbers)
                    out.append((task.name, {**notes, "number": self._numbers}, {}))
        return out

    def _area(self, task: Any, folder: str) -> Parameters | None:
        """Shared memory for its parameters; None: they go in messages, for they are small, or there is no such memory."""
        if task.name not in self._areas:
            like = tensors_of(task.networks_state(acting=True))
            large = sum(tensor.numel() * tensor.element_size() for tensor in like.values()) >= LARGE
            try:
                self._areas[task.name] = Parameters(folder, task.name, like) if large and folder else None
            except OSError:  # no room
                self._areas[task.name] = None
        return self._areas[task.name]
