"""Episodes that are counted: what a collection or an evaluation saw, and the crew that evaluates."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from parl_like.agent import Agent
from parl_like.crew import Crew
from parl_like.spec import SpecError, leaves, specs_of
from parl_like.stages import Hook


@dataclass(repr=False)
class Episodes:
    """What a collection or an evaluation saw. Returns and lengths are of finished episodes, agent by agent.

    Attributes:
        returns: Undiscounted return of each episode, a number or, where rewards are vectors, an array. lengths: Its actions.
        idxs: Where the rows of each episode begin in the buffer of the first task that stores: position, or −1 without a buffer.
        n_steps: Environment steps, unfinished episodes included.
        seconds: Wall time.
        mean_return, std_return, min_return, max_return: Over the episodes: a number, of vectors one per component; NaN without
            episodes.
    """

    returns: list[Any] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    idxs: list[int] = field(default_factory=list)
    n_steps: int = 0
    seconds: float = 0.0

    def __repr__(self) -> str:
        both = (self.mean_return, self.std_return)
        mean, std = (np.array2string(np.asarray(x), precision=4) if np.ndim(x) else f"{x:.4g}" for x in both)
        return f"Episodes({self.n_episodes}: return {mean} ± {std}, {self.n_steps} steps, {self.seconds:.1f} s)"

    def _over(self, function: Callable[..., Any]) -> Any:
        if not self.returns:
            return float("nan")
        value = function(np.asarray(self.returns, np.float64), axis=0)
        return value if np.ndim(value) else float(value)

    n_episodes = property(lambda self: len(self.returns))
    mean_return = property(lambda self: self._over(np.mean))
    std_return = property(lambda self: self._over(np.std))
    min_return = property(lambda self: self._over(np.min))
    max_return = property(lambda self: self._over(np.max))
    mean_length = property(lambda self: float(np.mean(self.lengths)) if self.lengths else float("nan"))

    def numbers(self) -> dict[str, float]:
        """Flat and ready to save: `n_steps`, `episodes` and, where there are any, `mean_return`, `std_return` (of the
        population), `min_return`, `max_return`, `mean_length`. A return of several components counts as their mean."""
        plain = Episodes([float(np.mean(value)) for value in self.returns], self.lengths)
        names = ("mean_return", "std_return", "min_return", "max_return", "mean_length") if self.returns else ()
        return {"n_steps": self.n_steps, "episodes": len(self.returns), **{name: getattr(plain, name) for name in names}}


class Quotas(Hook):
    """Notes the finished episodes of every agent, and counts down how many each is to play."""

    def __init__(self, agents: list[Agent]) -> None:
        self.seen: dict[int, list[tuple[Any, int, int]]] = {agent.index: [] for agent in agents}  # return, length, first row

    def post_episode(self, agent: Agent, interrupted: bool) -> None:
        if interrupted or agent.quota_episodes == 0:
            return
        stored = ((h.buffer, h.lanes[agent.env.env_index]) for h in agent.helpers.values() if h.buffer is not None)
        first_row = next((buffer.episode_start(lane) for buffer, lane in stored), -1)
        self.seen[agent.index].append((agent.env.episode_return, agent.env.episode_length, first_row))
        if agent.quota_episodes is not None:
            agent.quota_episodes -= 1


def gather(crew: Crew, n_step: int | None, n_episode: int | None, *hooks: Hook) -> Episodes:
    """Runs every agent for its own share of steps or episodes (exactly one is given), and reports the episodes that ended.

    Each agent has a quota of its own, so that agents whose episodes happen to be short do not fill the statistics.
    """
    agents = crew.agents
    crew._driver.refuse_agents()
    with crew._one_thread():
        begin, steps_before = perf_counter(), crew.env_steps
        quotas = Quotas(agents)
        if n_episode is not None:
            share, rest = divmod(n_episode, len(agents))
            for i, agent in enumerate(agents):
                agent.quota_episodes = share + (i < rest)
        else:
            assert n_step is not None
            n = sum(agent.n_envs for agent in agents)
            share = -(-n_step // n)
            if n_step % n:
                warnings.warn(f"collect: n_step {n_step} is not a multiple of {n} environments; collecting {share * n}",
                              stacklevel=3)
            for agent in agents:
                agent.quota_steps = share * agent.n_envs
        crew._observe(quotas, *hooks)
        try:
            while crew._advance():
                pass
        finally:
            for agent in agents:
                agent.quota_steps = agent.quota_episodes = None
            crew._observe()
        seen = [episode for agent in agents for episode in quotas.seen[agent.index]]
        returns, lengths, idxs = ([episode[i] for episode in seen] for i in range(3))
        return Episodes(returns, lengths, idxs, crew.env_steps - steps_before, perf_counter() - begin)


def greedy_action(crew: Crew, name: str, obs: Any) -> Any:
    """The best action of a crew's task for an observation, or for n of them, stacked; see `Robot.act`."""
    task, transforms, queue = crew.tasks[name], crew.transforms[name], crew.wrappers[name].predictions
    inputs = task.algorithm.model.inputs()
    if any(key.startswith("state") for key in inputs) or transforms.behind:
        raise ValueError(f"act: task {name!r} looks back at earlier observations; use watch or evaluate, which play whole "
                         "episodes")
    given = dict(leaves(obs, "obs"))
    specs = {key: spec.owned_by(f"task {name!r}") for key, spec in inputs.items()}
    raw = getattr(crew.agents[0].env, "observation_space", None) if len(transforms) else None  # transforms make others of them
    expected = specs if raw is None else specs_of(raw, "obs")
    one = next((np.ndim(value) == len(expected[key].shape) for key, value in given.items() if key in expected), True)
    if one:
        given = {key: np.asarray(value)[None] for key, value in given.items()}
    if len(transforms):
        rows = len(next(iter(given.values()))) if given else 0
        given = transforms.for_helper(rows, "test").observe({key: np.asarray(value) for key, value in given.items()})
    if given.keys() != specs.keys():
        raise SpecError(f"act: task {name!r}, field 'obs': expected {', '.join(specs)}, got {', '.join(given) or 'nothing'}")
    rows_in = {key: spec.convert(given[key], rows=True) for key, spec in specs.items()}
    out = task.predict(rows_in, "test")
    n, explorer = len(next(iter(rows_in.values()))), queue.explorer
    if explorer is not None:
        noise = None if explorer.noise is None else np.array([explorer.greedy()] * n, explorer.noise.dtype)
        out |= explorer.act(out, noise)
    if "act" not in out:
        raise ValueError(f"act: task {name!r} gives {', '.join(out)} and no action")
    act = out["act"] if queue.to_env is None else queue.to_env(out["act"])
    return act if not one else act[0].item() if act.ndim == 1 and act.dtype.kind != "f" else act[0, ...]
