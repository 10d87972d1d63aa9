"""Episodes that are counted: what a collection or an evaluation saw, what it is worth, evaluations by turns with training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from parl_like.agents.agent import Agent
from parl_like.data.storage.archive import write_archive
from parl_like.environment.factory import EnvSource, again, factory_of, is_made
from parl_like.environment.hooks import Hook, final_info, overridden
from parl_like.environment.stop_conditions import StopCondition, question
from parl_like.interfaces import AgentPort
from parl_like.learning.span import follow_run
from parl_like.run.agent_pool import AgentPool
from parl_like.run.diagnosis import refuse_divergence
from parl_like.run.pool_options import PoolOptions
from parl_like.run.port import RobotPort
from parl_like.values.copying import copied
from parl_like.values.spec import PAIR, Info, SpecError, is_pair, leaves, specs_of

SCORES = ("mean_return", "min_return", "max_return", "mean_length", "success_rate", "normalized_score")
"""Numbers of an evaluation that a robot's score may be, by name."""
MEAN_OF = "mean_return/"
"""The names of the mean returns of single players begin so."""


EPISODE_LIMIT, FILM_LIMIT = 100_000, 10_000
"""Steps after which an episode of an evaluation, or one that is filmed, is cut off: policies may stand still for ever."""


@dataclass(repr=False)
class Episodes:
    """The episodes of a collection or an evaluation. Returns and lengths are of finished episodes, agent by agent.

    Attributes:
        returns: Undiscounted return of each episode, a number or, where rewards are vectors, an array. lengths: Its actions.
        idxs: Where the rows of each episode begin in the buffer of the first task that stores: position, or −1 without a buffer.
        n_steps: Environment steps, unfinished episodes included.
        seconds: Wall time.
        infos: Of an evaluation: what the environment said with the last step of each episode.
        players: Names of the players, where each return is a vector of theirs, in this order.
        cut: Of an evaluation: how many of the episodes were truncated by its limit of steps, not by the environment.
        reference: The mean returns that count as 0 and as 100 for `normalized_score`; None: they are not known.
        score: What the robot's `score` makes of them; None: they are of no evaluation, or there are none.
        mean_return, std_return, min_return, max_return: Over the episodes: a number, of vectors one per component; NaN without
            episodes.
        success_rate: Share of the episodes whose last info has a true `is_success`; NaN where no info has one.
    """

    returns: list[Any] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    idxs: list[int] = field(default_factory=list)
    n_steps: int = 0
    seconds: float = 0.0
    infos: list[Info] = field(default_factory=list)
    score: float | None = None
    reference: tuple[float, float] | None = None
    cut: int = 0
    players: tuple[str, ...] = ()

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

    @property
    def success_rate(self) -> float:
        told = any("is_success" in info for info in self.infos)
        return float(np.mean([bool(info.get("is_success", False)) for info in self.infos])) if told else float("nan")

    def numbers(self) -> dict[str, float]:
        """Flat and ready to save: `n_steps`, `episodes` and, where there are any, `mean_return`, `std_return` (of the
        population), `min_return`, `max_return`, `mean_length`, `success_rate`, `normalized_score` and `score` if they are known.
        A return of several components counts as their mean; of several players there is also the mean of each,
        `mean_return/white`."""
        plain = Episodes([float(np.mean(value)) for value in self.returns], self.lengths)
        names = ("mean_return", "std_return", "min_return", "max_return", "mean_length") if self.returns else ()
        out = {"n_steps": self.n_steps, "episodes": len(self.returns), **{name: getattr(plain, name) for name in names}}
        if self.returns and self.players:
            out |= {f"{MEAN_OF}{player}": float(mean) for player, mean in zip(self.players, self.mean_return, strict=True)}
        if self.returns and self.reference is not None and self.reference[0] != self.reference[1]:
            low, high = self.reference
            out["normalized_score"] = 100.0 * (plain.mean_return - low) / (high - low)
        more = {"success_rate": self.success_rate, "score": self.score, "episodes_cut": self.cut or None}
        return out | {name: value for name, value in more.items() if value is not None and (name == "score" or value == value)}


class Quotas(Hook):
    """Notes the finished episodes of every agent, and counts down how many each is to play.

    Args:
        infos: Whether last infos are noted, too, which takes agents of this process.
    """

    def __init__(self, agents: list[Agent], infos: bool) -> None:
        self._infos = infos
        # Return, length, first row and last info.
        self._seen: dict[int, list[tuple[Any, ...]]] = {agent.index: [] for agent in agents}

    def post_episode(self, agent: AgentPort, interrupted: bool) -> None:
        if interrupted or agent.quota.episodes == 0:
            return
        stored = ((h.buffer, h.lanes[agent.env.env_index]) for h in agent.helpers.values() if h.buffer is not None)
        first_row = next((buffer.episode_start(lane) for buffer, lane in stored), -1)
        info = final_info(agent.env) if self._infos else {}
        self._seen[agent.index].append((agent.env.episode_return, agent.env.episode_length, first_row, info))
        if agent.quota.episodes is not None:
            agent.quota.episodes -= 1

    def episodes(self, n_steps: int, seconds: float, cut: int = 0) -> Episodes:
        """Return what was noted, agent by agent. The other numbers are those of `Episodes`; `seconds` are those that it took."""
        seen = [episode for _, of_agent in sorted(self._seen.items()) for episode in of_agent]
        returns, lengths, idxs, infos = ([episode[i] for episode in seen] for i in range(4))
        return Episodes(returns, lengths, idxs, n_steps, seconds, infos, cut=cut)


def gather(pool: AgentPool, n_step: int | None, n_episode: int | None, *hooks: Hook) -> Episodes:
    """Runs every agent for its own share of steps or episodes (exactly one is given), and reports the episodes that ended.

    Each agent has a quota of its own, so that agents whose episodes happen to be short do not fill the statistics.
    """
    agents = pool.agents
    pool.driver.refuse_agents()
    with pool.lifecycle.one_thread:
        begin, steps_before = perf_counter(), pool.env_steps
        quotas = Quotas(agents, infos=pool.mode == "test")  # agents that train may be in another process
        if n_episode is not None:
            share, rest = divmod(n_episode, len(agents))
            for i, agent in enumerate(agents):
                agent.quota.episodes = share + (i < rest)
        else:
            assert n_step is not None
            n = sum(agent.n_envs for agent in agents)
            share = -(-n_step // n)
            if n_step % n:
                warnings.warn(f"collect: n_step {n_step} is not a multiple of {n} environments; collecting {share * n}",
                              stacklevel=3)
            for agent in agents:
                agent.quota.steps = share * agent.n_envs
        pool.hooks.tell_agents(quotas, *hooks)
        try:
            while pool.lifecycle.advance():
                pass
        finally:
            for agent in agents:
                agent.quota.lift()
            pool.hooks.tell_agents()
        cut = sum(getattr(agent.env, "cut_short", 0) for agent in agents)
        seen = quotas.episodes(pool.env_steps - steps_before, perf_counter() - begin, cut)
        if cut:
            warnings.warn(f"{cut} of {seen.n_episodes} episodes did not end within max_episode_steps, and were truncated there; "
                          "give the environment a time limit (gymnasium.wrappers.TimeLimit), or the evaluation another bound",
                          RuntimeWarning, stacklevel=3)
        seen.players = pool.statistics.players
        return seen


def hold_still(robot: RobotPort) -> None:
    """Let nothing learn from here to the robot's next iteration, so an evaluation is of one policy: in sync mode, and under
    cooperative, that is so between any two iterations; else all agents leave their episodes, as at a checkpoint."""
    if not (robot.sync or robot.driver_name == "cooperative"):
        robot.checkpoint_boundary()


class Evaluator:
    """Evaluates a robot, between two of its iterations, by episodes in test mode."""

    def __init__(self, robot: RobotPort) -> None:
        self._robot = robot

    def source(self, env: EnvSource) -> Any:
        """Return the source of evaluations' environments: a factory, or an environment of the caller that is theirs for the
        time.

        Raises:
            ValueError: neither `env` nor the robot gives one.
        """
        if env is not None:
            return factory_of(env)
        source = self._robot.pool.options.env if self._robot.eval_env is None else self._robot.eval_env
        if source is None:
            raise ValueError("evaluate: this robot has no environment; give one as env=")
        # The training environment itself is in the middle of an episode.
        return again(source) if is_made(source) else factory_of(source)

    def pool(self, n: int, seed: int | None, source: EnvSource, stop: StopCondition | None, limit: int | None) -> AgentPool:
        """Make agents, environments and queues of their own, which play the robot's tasks in test mode. An environment of the
        caller (`source`) is used by one agent, and not closed. Episodes of more than `limit` steps are cut off.

        Raises:
            ValueError: limit is below 1.
        """
        robot = self._robot
        if limit is not None and limit < 1:
            raise ValueError(f"evaluate: max_episode_steps is {limit}; expected at least 1, or None for no bound")
        root = robot.evaluation_seed if seed is None else np.random.SeedSequence(seed)
        # A copy: spawn() counts its calls, and every evaluation shall see the same seeds.
        root = np.random.SeedSequence(entropy=root.entropy, spawn_key=root.spawn_key)
        given = robot.pool.options
        pool = AgentPool(PoolOptions(robot.tasks, source, given.agent, root, mode="test", label="evaluator",
                                     transforms=robot.transforms, warned=robot.pool.warned))
        pool.borrowed = is_made(source)
        pool.fill(1 if pool.borrowed else n)
        robot.notes += [note for note in (f"evaluation: {text}" for text in pool.maker.notes if text not in robot.notes)
                        if note not in robot.notes]
        if stop is not None:
            pool.end_when(question(stop))
            stop.begin(pool)
        for agent in pool.agents:
            if limit is not None and agent.env is not None:
                agent.env.limit(limit)
            if robot.eval_explore:
                for helper in agent.helpers.values():
                    helper.acting.explore()
        return pool

    def scored(self, seen: Episodes) -> Episodes:
        """Return the episodes of an evaluation, with what they are worth by the robot's `score`; nothing without episodes.

        Raises:
            ValueError: the score is a number that these episodes do not have, or its function gave none.
        """
        if seen.returns:
            seen.reference = self._robot.reference
            given, numbers = self._robot.score, seen.numbers()
            if not callable(given) and given not in numbers:
                way = (f"there is no such player; there are {', '.join(seen.players) or 'none'}" if given.startswith(MEAN_OF) else
                       "nobody said which returns count as 0 and as 100; learn from a data set of `parl-like record`, or set "
                       "robot.reference" if given == "normalized_score" else
                       "no episode's last info has 'is_success'; let the environment give one, or the robot another score= "
                       "(eval_score= of a run)")
                raise ValueError(f"evaluate: the score is {given!r}, but {way}")
            value = given(self._robot, seen) if callable(given) else numbers[given]
            try:
                seen.score = float(value)
            except (TypeError, ValueError):
                raise ValueError(f"evaluate: the score function {getattr(given, '__name__', given)} gave {value!r}; expected a "
                                 "number") from None
        return seen

    def epochs(
        self, n_epochs: int, steps_per_epoch: int, episodes: int, *, seed: int | None, stop: Callable[[float], bool] | None,
        best: str | Path | None, hooks: Sequence[Hook],
    ) -> Iterator[tuple[int, dict[str, float], dict[str, object]]]:
        """Yield what `Robot.epochs` yields.

        Raises:
            ValueError: `n_epochs` or `steps_per_epoch` is below 1. TypeError: `stop` is no function.
        """
        robot = self._robot
        if stop is not None and not callable(stop):
            raise TypeError(f"epochs: stop is {stop!r}; expected a function, such as lambda score: score >= {stop!r}")
        if n_epochs < 1 or steps_per_epoch < 1:
            raise ValueError(f"epochs: n_epochs is {n_epochs} and steps_per_epoch {steps_per_epoch}; expected at least 1 each")
        begin, info = perf_counter(), {"best_score": float("-inf"), "best_epoch": 0}
        follow_run(robot, n_epochs * steps_per_epoch)
        try:
            for call in overridden(hooks, "pre_experiment"):
                call(robot)
            for epoch in range(n_epochs + 1):
                with robot.pool.hooks.during(hooks):
                    for _ in robot.iterate(robot.env_steps + steps_per_epoch * bool(epoch)):
                        pass
                hold_still(robot)
                numbers = robot.evaluate(episodes, seed=seed).numbers()
                if numbers["score"] > info["best_score"]:
                    info |= {"best_score": numbers["score"], "best_epoch": epoch}
                    if best is not None:
                        write_archive(Path(best), robot.acting_state())
                if epoch:
                    info |= {"env_steps": robot.env_steps, "seconds": perf_counter() - begin}
                    yield epoch, {**robot.metrics(), **{f"eval/{key}": value for key, value in numbers.items()}}, dict(info)
                if stop is not None and stop(numbers["score"]):
                    break
            if epoch:
                robot.tell_idle()
                refuse_divergence(robot.tasks)
        finally:
            for call in overridden(hooks, "post_experiment"):
                call(robot)


def _raw_space(agent: Agent, task: str) -> Any:
    """Return the space of what an agent's environment shows, of several players to the first that has a role at the task; None:
    it is not known here."""
    env: Any = agent.env
    space = getattr(env, "observation_space", None)
    if not callable(space):
        return space
    roles = [helper.role for helper in agent.helpers.values() if helper.name == task]
    return space(next((role for role in roles if role in env.players), env.players[0]))


def greedy_action(pool: AgentPool, name: str, obs: object) -> Any:
    """The best action of a pool's task for an observation, or for n of them, stacked; see `Robot.act`.

    Raises:
        ValueError: the task looks back at earlier observations. SpecError: the observation does not fit the model.
    """
    task, transforms, queue = pool.tasks[name], pool.transforms[name], pool.wrappers[name].predictions
    inputs = task.algorithm.model.inputs()
    if any(key.startswith("state") for key in inputs) or transforms.behind:
        raise ValueError(f"act: task {name!r} looks back at earlier observations; use watch or evaluate, which play whole "
                         "episodes")
    given = dict(leaves(obs, "obs"))
    specs = {key: spec.owned_by(f"task {name!r}") for key, spec in inputs.items()}
    raw = _raw_space(pool.agents[0], name) if len(transforms) else None  # transforms make others of them
    expected = specs if raw is None else specs_of(raw, "obs")
    one = next((np.ndim(value) == len(expected[key].shape) for key, value in given.items() if key in expected), True)
    given = {key: value if hasattr(value, "dtype") or key not in expected
             else expected[key].owned_by(f"task {name!r}").convert(value, rows=not one) for key, value in given.items()}
    if one:
        given = {key: np.asarray(value)[None] for key, value in given.items()}
    if len(transforms):
        rows = len(next(iter(given.values()))) if given else 0
        given = transforms.for_helper(rows, "test").observe({key: np.asarray(value) for key, value in given.items()})
    if given.keys() != specs.keys():
        got = f"the pair (observation, info); {PAIR}" if is_pair(obs) else ", ".join(given) or "nothing"
        raise SpecError(f"act: task {name!r}, field 'obs': expected {', '.join(specs)}, got {got}")
    rows_in = {key: spec.convert(given[key], rows=True) for key, spec in specs.items()}
    out = task.predict(rows_in, "test")
    n, explorer = len(next(iter(rows_in.values()))), queue.explorer
    if explorer is not None:
        noise = None if explorer.noise is None else np.array([explorer.greedy()] * n, explorer.noise.dtype)
        out |= explorer.act(out, noise)
    acts = queue.codec.listed(out)
    if acts is None:
        raise ValueError(f"act: task {name!r} gives {', '.join(out)} and no action")
    return acts[0] if one else copied(queue.codec.to_env(out))
