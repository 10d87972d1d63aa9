"""Publisher: when replicas in the workers get the parameters of their task, and by which way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parl_like.acting import tensors_of
from parl_like.drivers.shared import LARGE, Parameters, task_file
from parl_like.spec import Array
from parl_like.wire import pack_state

Publication = tuple[str, dict[str, Any], dict[str, Array]]
"""Name of the task, notes and arrays of a message."""


class Publisher:
    """The parameters that were given to replicas, by task."""

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
                    out.append((task.name, notes, pack_state(task.networks_state())))
                else:
                    self._numbers += 1
                    area.write(tensors_of(task.networks_state()), self._numbers)
                    out.append((task.name, {**notes, "number": self._numbers}, {}))
        return out

    def _area(self, task: Any, folder: str) -> Parameters | None:
        """Shared memory for its parameters; None: they go in messages, for they are small, or there is no such memory."""
        if task.name not in self._areas:
            like = tensors_of(task.networks_state())
            large = sum(tensor.numel() * tensor.element_size() for tensor in like.values()) >= LARGE
            try:
                self._areas[task.name] = Parameters(Path(folder, task_file(task.name)), like) if large and folder else None
            except OSError:  # no room
                self._areas[task.name] = None
        return self._areas[task.name]

    def close(self) -> None:
        """The folder goes."""
        self._areas.clear()
