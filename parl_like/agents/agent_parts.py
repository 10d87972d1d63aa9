"""Small parts of an agent: the rows that it has claimed of tasks, and what its environment has given that it could not use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parl_like.interfaces import TaskPort
from parl_like.tasks.row_slots import Owner
from parl_like.values.spec import SpecError


@dataclass
class Claims:
    """Rows that an agent has claimed of what tasks remember for their agents (`RowSlots`).

    Attributes:
        needs: Task name → number of rows.
        owners: Task name → who owns them; they are free when it is gone.
    """

    needs: dict[str, int] = field(default_factory=dict)
    owners: dict[str, Owner] = field(default_factory=dict)

    def claim(self, tasks: Mapping[str, TaskPort], name: str, n: int) -> int:
        """Return the first of `n` rows of the task `name`, which are claimed from now on; those claimed before are free."""
        owner = self.owners[name] = Owner()
        self.needs[name] = n
        return int(tasks[name].row_slots.claim(owner, n))


@dataclass
class EnvFaults:
    """Values of an agent's environment that it could not use.

    Attributes:
        bad_values: Steps and resets with values that were dropped or replaced.
        last: Why an episode was dropped last; None: none was.
    """

    bad_values: int = 0
    last: SpecError | None = None
