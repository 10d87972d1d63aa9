"""Helpers: those of one agent, by task, or by task and role."""

from __future__ import annotations

from collections.abc import Iterable

from parl_like.agents.helper import AgentHelper
from parl_like.interfaces import HelperKey
from parl_like.values import plain
from parl_like.values.errors import unknown
from parl_like.values.plain import State


class Helpers(dict[HelperKey, AgentHelper]):
    """An agent's helpers by task name, `helpers["RL"]`; of a task where the agent has roles by both names,
    `helpers["RL", "white"]`. An unknown name is answered with the nearest known one."""

    def __init__(self, agent: str, items: Iterable[tuple[HelperKey, AgentHelper]] = ()) -> None:
        super().__init__(items)
        self._agent = agent

    def __missing__(self, key: HelperKey) -> AgentHelper:
        task, role = (key, None) if isinstance(key, str) else key
        known: dict[str, list[str]] = {}
        for one in self:
            known.setdefault(one if isinstance(one, str) else one[0], []).extend([] if isinstance(one, str) else [one[1]])
        roles = known.get(task, [])
        if task not in known:
            raise KeyError(f"{self._agent}: " + unknown("task", task, known))
        if not roles:
            raise KeyError(f"{self._agent}: task {task!r} has no roles here; write helpers[{task!r}], or say `roles` in the "
                           "agent's class")
        if role is None:
            raise KeyError(f"{self._agent}: task {task!r} has the roles {', '.join(roles)}; write helpers[{task!r}, "
                           f"{roles[0]!r}]")
        raise KeyError(f"{self._agent}: task {task!r}: " + unknown("role", role, roles))

    def state_dict(self) -> State:
        """Return the state of each, by its title."""
        return {helper.title: helper.state_dict() for helper in self.values()}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave."""
        for helper in self.values():
            helper.load_state_dict(plain.entries(state[helper.title]))
