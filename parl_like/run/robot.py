"""Robot: tasks + agents + environments + the run loop."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from parl_like.agents.agent import Agent
from parl_like.data.storage.archive import read_archive, write_archive
from parl_like.environment.factory import EnvSource, is_made, known
from parl_like.environment.hooks import Hook, TraceHash, hooks_of
from parl_like.environment.stop_conditions import StopAfterSteps, StopCondition
from parl_like.run.agent_pool import AgentPool
from parl_like.run.custom_loop import collecting, update_by_hand
from parl_like.run.description import describe
from parl_like.run.diagnosis import Diagnosis
from parl_like.run.evaluation import EPISODE_LIMIT, FILM_LIMIT, Episodes, Evaluator, gather, greedy_action
from parl_like.run.film import filmed
from parl_like.run.lifecycle import Phase
from parl_like.run.pool_options import DriverOptions, PoolOptions
from parl_like.run.robot_checks import check_arguments, check_film, check_tasks
from parl_like.run.robot_metrics import RobotMetrics
from parl_like.run.robot_state import RobotState
from parl_like.run.run_loop import RunLoop
from parl_like.run.statistics import Counted
from parl_like.tasks.task import ComputationTask, connect_tasks
from parl_like.values import plain
from parl_like.values.errors import absent, unknown
from parl_like.values.parts import view
from parl_like.values.plain import State
from parl_like.values.user_calls import public

log = logging.getLogger(__name__)


@public
class Robot(Counted):
    """Several computation tasks, many agents, one run loop.

    Args:
        env: A gymnasium id, a factory, or (with one agent) an environment. None: the agents only learn (offline data).
        tasks: Name → `ComputationTask`, in the order that breaks ties.
        agent: Zero-argument function that makes an agent, e.g. its class.
        n_agents: Agents, each with an environment of its own.
        driver: 'cooperative' (greenlets, deterministic), 'threads', 'processes' (workers on all cores, each
            with a block of the agents; their options: `parl_like.drivers.workers.processes.Processes`), or 'ray'
            (`parl_like.drivers.ray.cluster.Ray`).
        mode: 'sync': all agents unroll, then the tasks train, one `train_iter` after the other. 'async': agents never wait for
            training.
        seed: Decides everything random: one `SeedSequence` spawns the generators of tasks, agents, helpers and buffers.
        trace: Keep a `TraceHash`; costs about 2 µs a step.
        eval_env: What `evaluate` and `play` use, such as held-out levels; None: as `env`.
        eval_explore: Evaluations draw actions as training does, instead of taking the best ones: for policies that are meant to
            be drawn from, and may run in circles otherwise. (A schedule of exploration, such as ε, begins anew.)
        score: What an evaluation is worth, more is better: one of its numbers ('mean_return', 'success_rate', …), or a function
            of the robot and the finished `Episodes`, such as minus an exploitability.
        hooks: Those that belong to the robot: they hear of all that its agents do, before the hooks of a run, and of no
            evaluation. For them every `run` and `iterate` is an experiment, also where `epochs` or a session of the lab calls it.

    Attributes:
        pool: Its agents and their driver. `agents`, `wrappers`, `buffers`, `transforms` and `statistics` are the pool's.
        evaluator: Makes the pools of evaluations.
        diagnosis: Tells why tasks do not learn.
        notes: What environments say of themselves.
    """

    span: Any = None
    """The `Span` of those of its schedules that end with the run."""
    parts: Any = None
    """The parts that it is built of with all their settings, where it was built by `parl_like.robots.settings`."""
    reference: tuple[float, float] | None = None
    """The mean returns that count as 0 and as 100 where evaluations give a `normalized_score`: those of random actions and of an
    expert, of the data set that it learns from; None: there is no such score."""
    driver_name: str = view("pool.driver_name", "'cooperative', 'threads', 'processes' or 'ray'.")
    sync: bool = view("pool.sync", "True: all agents unroll, then the tasks train.")
    mode: str = view("pool.mode", "'collect'; of an evaluation 'test'.")
    trace: TraceHash | None = view("pool.trace", "A digest of what happens to every agent; None without `trace=True`.")
    n_agents: int = view("pool.n_agents", "The number of its agents.")
    stop_requested: bool = view("pool.stop_requested", "True while the run is about to end.")

    def __init__(
        self, env: EnvSource = None, *, tasks: Mapping[str, ComputationTask], agent: Callable[[], Agent] = Agent,
        n_agents: int = 1, driver: str | DriverOptions = "cooperative", mode: Literal["sync", "async"] = "sync", seed: int = 0,
        trace: bool = False, eval_env: EnvSource = None, eval_explore: bool = False,
        score: str | Callable[[Robot, Episodes], float] = "mean_return", hooks: Hook | Iterable[Hook] = (),
    ) -> None:
        check_arguments(env, agent, n_agents, mode, score)
        own = hooks_of(hooks, "Robot")
        check_tasks(tasks)
        given = tasks
        if not isinstance(driver, str):
            tasks = driver.place(tasks)
        self.seed, self.eval_env, self.eval_explore, self.score = seed, known(eval_env), eval_explore, score
        root = np.random.SeedSequence(seed)
        task_seed, agent_seed, self.evaluation_seed = root.spawn(3)
        try:
            for (name, task), child in zip(tasks.items(), task_seed.spawn(len(tasks)), strict=True):
                task.name = name
                task.build(child)
            connect_tasks(tasks)
            self.pool = pool = AgentPool(PoolOptions(tasks, env, agent, agent_seed, driver, mode == "sync",
                                                     trace=TraceHash() if trace else None, hooks=own), weakref.ref(self))
            self.statistics, self.tasks, self.agents = pool.statistics, pool.tasks, pool.agents
            self.wrappers, self.buffers, self.transforms = pool.wrappers, pool.buffers, pool.transforms
            self.notes = pool.maker.notes
            self.diagnosis = Diagnosis(self)
            self.evaluator, self._state = Evaluator(self), RobotState(self)
            self._loop, self._metrics = RunLoop(self, self.diagnosis), RobotMetrics(self, self.diagnosis)
            pool.fill(n_agents)
            for task in given.values():
                task.robot = self
        except BaseException:
            for name, task in tasks.items():
                if task is not given[name]:
                    task.close()
            raise

    @classmethod
    def of(cls, algorithm: str | type, env: EnvSource, **options: Any) -> Robot:
        """A robot with one task 'RL' that learns by a known algorithm; helper, model and sizes have defaults.

            robot = Robot.of("PPO", "CartPole-v1", seed=1)
            robot.run(50_000)
            print(robot.evaluate(20), robot.act(obs))

        Args:
            algorithm: The name of one of `docs/algorithms.md` ("DQN", "PPO", …), or a class: one of those, or one of your own
                that is made from one.
            env: As for `Robot`; also a factory of vector environments. Observations with an image get a convolutional model.
            options: Keys of the configuration of `parl_like.robots.single`, and arguments of whatever the robot is built of, such
                as n_agents=16, lr=1e-3, hidden=(64, 64), model='Conv', driver='processes'. Schedules (of ε, of a learning rate
                `lr={"start": 1e-3, "end": 0.0}`) end at total_steps, or else with the first run.
                Also `agent`, `score` and `hooks`, as for `Robot`.

        Raises:
            ValueError: an unknown algorithm or option, the nearest is named; an environment that is not there, or whose actions
                do not fit.
        """
        robot: Robot = import_module("parl_like.robots.single").of(algorithm, env, options)
        return robot

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if hasattr(type(self), name):  # there, but it raised: once more, for its own error
                return object.__getattribute__(self, name)
            raise absent(self, name)

    def add_agents(self, n: int = 1) -> list[Agent]:
        """Lets `n` more agents join, between two iterations. Open episodes end here, as at a checkpoint, and everybody goes on.

        Buffers grow by the lanes of the new agents. A robot that loads a checkpoint of this one needs as many agents.

        Raises:
            ValueError: the robot was given an environment itself, of which there is only one; n is below 1.
        """
        if n < 1:
            raise ValueError(f"add_agents: n is {n}; expected at least 1")
        if is_made(self.pool.options.env):
            raise ValueError("add_agents: the agents cannot share one environment; give the robot a factory (`lambda: "
                             "gym.make(...)`) or an id")
        self.pool.lifecycle.refuse_closed("add_agents")
        self._end_episodes_for("add_agents")
        return self.pool.add(n)

    def remove_agent(self, agent: Agent) -> None:
        """Lets an agent leave, between two iterations, and closes its environment. Open episodes end as with `add_agents`; what
        the agent stored stays.

        Raises:
            ValueError: it is no agent of this robot, or the only one.
        """
        if agent not in self.agents or len(self.agents) == 1:
            raise ValueError(f"remove_agent: {agent} is {'the only' if agent in self.agents else 'no'} agent of this robot; "
                             f"there are {', '.join(map(str, self.agents))}")
        self._end_episodes_for("remove_agent")
        self.pool.remove(agent)

    def _end_episodes_for(self, what: str) -> None:
        why = "the agents are divided over the workers once; make the robot with as many as are needed"
        self.pool.driver.need_local(what, why)
        self._loop.leave_episodes()

    # ------------------------------------------------------------------------------------------------------------ the pool's

    @property
    def closed(self) -> bool:
        """True once `close` was called: it acts no more, and its tasks are free for another robot."""
        return self.pool.lifecycle.phase is Phase.CLOSED

    def request_stop(self) -> None:
        """Ends the run: no agent takes another step, each waits where it is."""
        self.pool.request_stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self, drain: bool = False) -> None:
        """Stops the agents and closes their environments, see `AgentPool.close`. May be called twice."""
        self.pool.close(drain)

    # ------------------------------------------------------------------------------------------------------------- running

    def run(self, stop: StopCondition | int | None = None, hooks: Hook | Iterable[Hook] = (), *, progress: bool = False) -> None:
        """Runs until `stop` says so, or for that many environment steps; without it, until interrupted.

        At the end the agents wait where they are, in the middle of their episodes, and go on there in the next run: `run(40)`
        sixty times is `run(2400)`. So leave their environments alone in between. Training requests that are open at the end are
        still served: with `OnPolicyHelper(unroll=5)`, 20 steps are learned from in 4 updates. Those that wait for other agents
        wait with them.

        Agents cannot wait where an error or Ctrl-C has ended a run, and under the cooperative driver outside of the main thread
        (greenlets cannot change threads). Their open episodes end as at a checkpoint, see `checkpoint_boundary`.

        Args:
            hooks: Those that were not hooks of the run before hear PRE_EPISODE of the episodes that go on.
            progress: Show how far it is: a live table on a terminal, a line that changes in a notebook, else a line every ten
                seconds.

        Raises:
            TypeError: `stop` is no number of steps and no StopCondition.
            What an agent, an environment or a task raised, named. POST_EXPERIMENT fires all the same.
        """
        if isinstance(stop, int) and not isinstance(stop, bool):
            stop = StopAfterSteps(stop)
        if stop is not None and not isinstance(stop, StopCondition):
            raise TypeError(f"Robot.run: stop is {stop!r}; expected a number of steps or a StopCondition, e.g. "
                            "StopAfterSteps(1000) of parl_like.environment.stop_conditions")
        shown = [import_module("parl_like.lab.progress_hook").ProgressHook(stop)] if progress else []
        self._loop.run(stop, [*hooks_of(hooks), *shown])

    def tell_idle(self) -> None:
        """A warning for each task that never learned."""
        for name, why in self.never_learned().items():
            log.warning("task %r never learned: %s", name, why)

    def never_learned(self) -> dict[str, str]:
        """Tasks that could learn, but have not done a single optimiser step since they were built or loaded: name → why."""
        return self.diagnosis.never_learned()

    def train_iter(self) -> dict[str, float]:
        """One iteration of a sync robot: every learning agent unrolls with unchanged parameters, then the tasks train.

        Returns:
            The metrics of the training, by 'task/metric'.

        Raises:
            ValueError: the robot is async, or no helper of it learns.
            AgentFailed: helpers learn only by `learn()`, and each agent has taken 100,000 steps without calling it.
        """
        if not self.sync:
            raise ValueError("train_iter: this robot is async, where an iteration is not defined; use run(stop) or mode='sync'")
        if not any(agent.learns for agent in self.agents):
            raise ValueError("train_iter: no helper of this robot learns; use collect() or evaluate()")
        self._loop.iterate_once()
        return {f"{name}/{key}": value for name, w in self.wrappers.items() for key, value in w.trainings.last_result.items()}

    def iterate(self, stop_steps: int) -> Iterator[int]:
        """Iterations until `env_steps` has reached `stop_steps`, so up to one iteration beyond; the agents stay where they
        are."""
        return self._loop.iterate(stop_steps)

    def epochs(
        self, n_epochs: int, steps_per_epoch: int, *, evaluate_episodes: int = 10, seed: int | None = None,
        stop: Callable[[float], bool] | None = None, best: str | Path | None = None, hooks: Hook | Iterable[Hook] = (),
    ) -> Iterator[tuple[int, dict[str, float], dict[str, Any]]]:
        """`for epoch, stats, info in robot.epochs(...)`: train for `steps_per_epoch` environment steps, then evaluate.

        The robot is evaluated once before the first epoch. Several robots may be advanced together with `zip`; nothing is shared
        between them.

        Args:
            evaluate_episodes, seed: Of each evaluation, see `evaluate`; one seed gives the same start states every time.
            stop: Asked with the score of every evaluation, also of the one before the first epoch; ends the iteration.
            best: Directory for what acts (`acting_state`) with the best score so far; `load` takes it.
            hooks: As for `run`, of the training; PRE_EXPERIMENT comes before the first evaluation.

        Yields:
            epoch from 1; stats: `metrics()` and 'eval/score', 'eval/mean_return', …; info: 'best_score', 'best_epoch' (0: before
            the first), 'env_steps', 'seconds'.
        """
        return self.evaluator.epochs(n_epochs, steps_per_epoch, evaluate_episodes, seed=seed, stop=stop, best=best,
                                     hooks=hooks_of(hooks))

    def collect(self, *, n_step: int | None = None, n_episode: int | None = None, random: bool = False) -> Episodes:
        """Acts and stores without learning: exactly one of `n_step` (all agents together) and `n_episode`.

        `n_step` goes on where the agents are, and leaves them in mid-episode; `n_episode` counts whole episodes from a reset.

        Args:
            random: Actions are drawn evenly from the action space instead, legal ones where the observation has a `mask`.

        Raises:
            ValueError: both or none of `n_step` and `n_episode` are given, one is below 1, or there is no environment.
        """
        if (n_step is None) == (n_episode is None):
            raise ValueError(f"collect: give exactly one of n_step and n_episode; got n_step={n_step}, n_episode={n_episode}")
        name, n = ("n_step", n_step) if n_episode is None else ("n_episode", n_episode)
        if n is not None and n < 1:
            raise ValueError(f"collect: {name} is {n}; expected at least 1")
        self.pool.lifecycle.refuse_closed("collect")
        if any(agent.env is None for agent in self.agents):
            raise ValueError("collect: this robot has no environment")
        if n_episode is not None and self.pool.lifecycle.begun:
            self.checkpoint_boundary()
        with collecting(self.pool, "random" if random else True):
            return gather(self.pool, n_step, n_episode)

    def update(self, task: str, batch_size: int = 0) -> dict[str, Any]:
        """One training request by hand, from what is stored: a custom loop is `collect()` and `update()` by turns.

        Args:
            task: Its name.
            batch_size: Random rows of an off-policy task; 0: all rows of the buffer. An on-policy task learns from all rows since
                the last time, and forgets them.

        Returns:
            The training return; {} where nothing is stored.

        Raises:
            KeyError: there is no such task. ValueError: the rows are in worker processes, or as the task learns from them.
            NotEnoughRows: the buffer has fewer rows than `batch_size`, or no whole episode where those are learned from.
        """
        if task not in self.tasks:
            raise KeyError(unknown("task", task, self.tasks))
        self.pool.driver.need_local("update", "the rows are in worker processes; use train_iter() or run(), or another driver")
        return update_by_hand(self.pool, task, batch_size)

    def act(self, obs: object, task: str | None = None) -> Any:
        """The greedy action in a state, outside of a run: nothing is stored or counted.

        Args:
            obs: One observation as the environment gives it, or n of them, stacked (each leaf of a dict).
            task: Which task acts; None: the first.

        Returns:
            One action as the environment takes it, or n of them, stacked.

        Raises:
            ValueError: the task remembers what it saw before (a recurrent model, stacked frames), so a single observation is not
                enough; or the robot has no task. KeyError: there is no such task. SpecError: the observation does not fit.
        """
        if not self.tasks:
            raise ValueError("act: this robot has no task that could act")
        name = next(iter(self.tasks)) if task is None else task
        if name not in self.tasks:
            raise KeyError(unknown("task", name, self.tasks))
        return greedy_action(self.pool, name, obs)

    def evaluate(self, episodes: int = 10, *, seed: int | None = None, env: EnvSource = None,
                 n_agents: int | None = None, stop: StopCondition | None = None,
                 max_episode_steps: int | None = EPISODE_LIMIT) -> Episodes:
        """Episodes in test mode, greedy unless `eval_explore`, with agents, environments and queues of their own; nothing is
        stored or counted.

        Args:
            episodes: How many, spread evenly over the evaluating agents.
            seed: Seeds the environments; None: the robot's seed. Two calls with one seed see the same start states.
            env: Another environment than the training one. An environment itself (not a factory) is used by one agent, and not
                closed.
            n_agents: How many evaluate at once; None: as many as train, at most `episodes`.
            stop: Asked after every act; ends the evaluation at once, with the episodes that are over by then.
            max_episode_steps: Steps after which an episode is truncated that does not end by itself, with a warning; `cut` of
                what is returned counts those. None: no bound.

        Raises:
            ValueError: there is no environment, or the robot was given one that cannot be made a second time.
        """
        if episodes < 1:
            raise ValueError(f"evaluate: episodes is {episodes}; expected at least 1")
        n = min(n_agents or len(self.agents), episodes)
        with self.evaluator.pool(n, seed, self.evaluator.source(env), stop, max_episode_steps) as pool:
            return self.evaluator.scored(gather(pool, None, episodes, *([] if stop is None else stop.watchers())))

    def watch(self, hook: Hook, *, seed: int | None = None, env: EnvSource = None, max_steps: int = 0,
              max_episode_steps: int | None = EPISODE_LIMIT) -> float:
        """One episode as `evaluate` plays them, before the eyes of a hook, with an agent and environment of its own; returns its
        return.

        Args:
            seed, env, max_episode_steps: As for `evaluate`.
            max_steps: Environment steps after which it stops, with the return so far; 0: at the end of the episode.
        """
        stop = StopAfterSteps(max_steps) if max_steps else None
        with self.evaluator.pool(1, seed, self.evaluator.source(env), stop, max_episode_steps) as pool:
            seen = gather(pool, None, 1, hook)
            total = seen.returns[0] if seen.returns else pool.agents[0].env.episode_return
            return total if np.ndim(total) else float(total)

    def play(self, path: str | Path, *, seed: int | None = None, env: EnvSource = None, max_steps: int = 0,
             max_episode_steps: int | None = FILM_LIMIT) -> float:
        """One episode as `evaluate` plays them, as an animated GIF (or PNG, WebP) at `path`; returns its return. It
        has the environment's `render_fps`, takes 3 s at least, and says step, return and the agent's `caption` below.

        The factory is called as for `evaluate`, with `render_mode="rgb_array"` where it takes a render mode; an environment that
        was made for another mode is switched to this one.

        Args:
            seed, env, max_steps, max_episode_steps: As for `watch`. An environment itself must draw pictures already.

        Raises:
            ValueError: the environment does not draw itself, or there is none.
        """
        check_film(path)
        return filmed(path, self.evaluator.source(env), lambda film, drawn: self.watch(
            film, seed=seed, env=drawn, max_steps=max_steps, max_episode_steps=max_episode_steps))

    # ----------------------------------------------------------------------------------------------------------- observing

    def counters(self) -> dict[str, int]:
        """'env_steps' (the agents' actions), 'time_steps' (the environments' own steps, more where actions are repeated),
        'episodes', 'iterations', and per task 'updates/RL' (optimiser steps) and 'rows/RL' (rows learned from)."""
        return self._metrics.counters()

    def metrics(self) -> dict[str, float]:
        """Flat and ready to log: 'return/mean' over the last 100 episodes, 'RL/loss', 'RL/predict/mean_batch', 'RL/dropped' (rows
        that were too old for an on-policy task), … As long as there are any, 'episode/first_open': environments whose first
        episode has not ended, so that returns are those of short ones."""
        return self._metrics.metrics()

    def describe(self) -> State:
        """Return who takes part: driver, agents, tasks with queues and buffers, workers (`parl_like.run.description`)."""
        return describe(self)

    def remarks(self) -> list[str]:
        """Return what a user should know at the end of a run and may not have seen: a sentence each; usually none."""
        return self._metrics.remarks()

    def trace_hash(self) -> str | None:
        """Digest of every agent's trace and of all weights; None without `trace=True`."""
        return self._metrics.trace_hash()

    def __repr__(self) -> str:
        tasks = ", ".join(self.tasks) or "none"
        return f"Robot({len(self.agents)} agents, tasks {tasks}, {self.driver_name}, {self.env_steps} steps)"

    # --------------------------------------------------------------------------------------------------------------- state

    def checkpoint_boundary(self) -> None:
        """All agents leave their episodes, with cuts in the buffers, so that nothing outside `state_dict` is alive: a Python
        frame cannot be saved. So `run_one_episode` begins anew at every checkpoint, whether the run is interrupted there or not.

        Where environments can clone their state (`parl_like.environment.state`) their episodes are carried over: the next `reset`
        gives what was to be acted on next, and return, length and a recurrent memory go on. Others are cut off and seeded anew
        from the agents' generators; they count in 'episodes_cut', not in the returns.
        """
        self.pool.lifecycle.cut()
        self.statistics.warn_of_cuts()

    def state_dict(self, buffers: bool = True) -> State:
        """Everything a resumed run needs, as arrays and JSON values; call `checkpoint_boundary` first. `buffers` False:
        replay buffers begin empty then, which costs a warmup; recorded rows and reservoirs stay."""
        return self._state.whole(buffers)

    def acting_state(self) -> State:
        """The part of `state_dict` that decides how the robot acts: tasks, statistics of transforms, and counters. It may be
        taken between any two iterations, and loaded like the whole: agents then begin anew, and buffers stay as they are."""
        return self._state.acting()

    def load_state_dict(self, state: State) -> None:
        """Restores `state_dict()` or `acting_state()` into a robot that was built the same way.

        Raises:
            ValueError: tasks, agents, buffers or shapes differ; the message names the first difference.
        """
        self._state.load(state)

    def save(self, path: str | Path, *, buffers: bool = True) -> None:
        """Writes a checkpoint directory, atomically, without code in it. Episodes restart, see `checkpoint_boundary`.
        `buffers`: as of `state_dict`."""
        self.checkpoint_boundary()
        write_archive(Path(path), self.state_dict(buffers))

    def request_save(self, path: str | Path) -> None:
        """`save` at the end of the running iteration, for hooks and agents, which cannot save at once: they would wait for
        themselves. Where the disk refuses, there is a warning and the run goes on."""
        self._loop.request_save(Path(path))

    def load(self, path: str | Path, *, partial: bool = False) -> list[str]:
        """Takes over what `save` wrote.

        Args:
            partial: Only the statistics of transforms, and those tensors of the networks, that fit: for another number of agents,
                or a model or environment that has changed since. Optimisers, buffers and counters stay as they are.

        Returns:
            With `partial` what stays as it was, 'task network tensor', 'task transforms', or 'task' each; else nothing.
        """
        state = read_archive(Path(path))[0]
        if not partial:
            self.load_state_dict(state)
            return []
        known = {name: state[f"task.{name}"] for name in self.tasks if f"task.{name}" in state}
        left = [name for name in self.tasks if name not in known]
        left += [f"{name} {one}" for name, saved in known.items() for one in self.tasks[name].load_fitting(plain.entries(saved))]
        chains = {name: state.get(f"transforms.{name}", {}) for name in self.transforms}
        return left + [f"{name} transforms" for name, saved in chains.items()
                       if not self.transforms[name].load_fitting(plain.entries(saved))]
