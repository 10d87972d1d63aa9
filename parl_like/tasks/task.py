"""ComputationTask: one algorithm with its optimiser, device, lock, counters and state. No gradient crosses its border."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, Literal

import numpy as np
import torch

from parl_like.data.extra_fields import policy_specs
from parl_like.data.rng import torch_seed
from parl_like.interfaces import Mode as Mode
from parl_like.interfaces import RunPort
from parl_like.learning.algorithm import Algorithm, Window
from parl_like.learning.model import ArrayModel
from parl_like.learning.model_check import ContractError, try_out
from parl_like.learning.native import choose
from parl_like.learning.optimizer_steps import ROW, Step, update_return
from parl_like.learning.parameter_owners import LearnedParameters
from parl_like.learning.saved_state import load_task_state, load_what_fits, task_state
from parl_like.learning.span import move_ends
from parl_like.tasks.acting_copies import ActingCopies, acting_state, tensors_of
from parl_like.tasks.algorithm_runner import AlgorithmRunner, UpdateMode
from parl_like.tasks.asked_tasks import AskedTasks
from parl_like.tasks.batch_rule import BatchRule
from parl_like.tasks.learning_counts import LearningCounts
from parl_like.tasks.row_slots import RowSlots
from parl_like.tasks.task_options import TaskOptions, device_of
from parl_like.values import plain
from parl_like.values.errors import Diverged, unknown
from parl_like.values.parts import part
from parl_like.values.plain import State
from parl_like.values.spec import Array, Spec
from parl_like.values.user_calls import guarded, missing_arguments


@guarded
class ComputationTask:
    """One relatively independent computation of a robot.

    Args:
        algorithm: An `Algorithm`, or a zero-argument function that builds one (`create_algorithm_func`). A function is called by
            the robot, under the robot's seed.
        helper: Zero-argument function that makes one agent's helper for this task. None: a helper that only predicts.
        device: Where the networks live, e.g. 'cpu' or 'cuda'.
        predict_rule, training_rule: When the two queues close a batch; None: the helper's own default for training, everybody
            who is waiting for prediction.
        on_error: What a failure of `learn` means: 'stop' ends the run, 'fail_batch' only raises in the agents that were served.
            A failure of `predict` always raises in the agents that were served.
        max_skips: Updates in a row that may pass without an optimiser step, because the loss or the gradient was no finite number
            (`learn`); the next one raises `Diverged`. 0: the first such step raises.
        bisect: A prediction that fails for several requests is tried again in halves, so that only those agents hear of the
            failure whose own rows fail. False: all members of the batch do.
        train: False: this task never learns (its helpers predict only).
        serve: Where worker processes get their predictions: 'central' from the robot's process, all workers' rows in one batch,
            or 'replica' from networks of their own, which get the parameters after every `sync_every` optimiser steps (and when
            the agents start). 'auto': the driver chooses when it makes the agents, replicas where predictions are one small
            compiled network (`parl_like.drivers.workers.replica_rule`), and the robot's notes say so. Training is central.
            Agents in the robot's process are always served by the task itself.
        native: Compiled loops of our own compute what they can: networks of dense layers, losses whose gradient is written out,
            and optimiser steps, in float32 on the CPU (docs/native.md). False: torch computes all.
        asks: Names of the tasks that this one asks while it learns (`Algorithm.ask`). Not in a circle. Tasks that ask each other
            take turns with their optimiser steps, for they have one lock, as tasks that share parameters do.
        rewards: Task → weight. To the reward of each row that it learns from, the weighted `reward` is added that the task of
            this name predicts for it now: it is asked once in each update, before `Algorithm.process`, for all fields that its
            model's `inputs()` name (`obs`, `act`, `obs_next`, `lane`, …). 'env': the weight of the environment's own reward, 1
            where it is not named. For rows of single steps. Episode returns stay the environment's.

    Attributes:
        name: The robot's name for it.
        source: What it was made with: an algorithm, or a function that builds one.
        options: The other arguments, which are attributes of the task, too.
        serve: How workers get their predictions; where it was told 'auto', as the driver has chosen.
        learned: The parameters that its learning changes, with their optimisers, lock and version.
        version: How many optimiser steps have changed these, its own and those of tasks that share some. Where each row is
            learned alone, a row is a step.
        counts: What it counts while it learns: `learns`, updates given, and `rows_learned`, their rows; `skipped`, optimiser
            steps that were left out so far, and `skips`, updates in a row, up to now, in which all were.
        computes: What computes its networks and losses, in words: native or torch, and why.
        acting: Copies of the networks for predictions while learning runs beside them; None: predictions use the networks that
            learn.
        row_slots: Which rows of what it remembers belong to which agent.
        output_shapes: Of one row of each output of `predict`. policy_specs: those of `policy` and `kept`, which helpers
            store.

    Raises:
        TypeError: replicas are asked for, and `algorithm` is no function. ValueError: there is no such device.
    """

    helper: Callable[[], Any] | None = part("options.helper")
    device: torch.device = part("options.device")
    predict_rule: BatchRule | None = part("options.predict_rule")
    training_rule: BatchRule | None = part("options.training_rule")
    on_error: Literal["stop", "fail_batch"] = part("options.on_error")
    max_skips: int = part("options.max_skips")
    bisect: bool = part("options.bisect")
    train: bool = part("options.train")
    sync_every: int = part("options.sync_every")
    asks: tuple[str, ...] = part("options.asks")
    rewards: dict[str, float] = part("options.rewards")
    native: bool = part("options.native")
    version: int = part("learned.version")
    lock: Any = part("learned.lock")
    optimizers: dict[str, torch.optim.Optimizer] = part("learned.optimizers")
    rates: dict[str, float] = part("learned.rates")
    learns: int = part("counts.learns")
    rows_learned: int = part("counts.rows_learned")
    skipped: int = part("counts.skipped")
    skips: int = part("counts.skips")

    def __init__(
        self, algorithm: Algorithm | Callable[[], Algorithm], helper: Callable[[], object] | None = None, *,
        device: str | torch.device = "cpu", predict_rule: BatchRule | None = None, training_rule: BatchRule | None = None,
        on_error: Literal["stop", "fail_batch"] = "stop", max_skips: int = 10, bisect: bool = False, train: bool = True,
        serve: Literal["auto", "central", "replica"] = "auto", sync_every: int = 1, asks: Sequence[str] = (),
        native: bool = True, rewards: Mapping[str, float] | None = None,
    ) -> None:
        if isinstance(algorithm, type) and issubclass(algorithm, Algorithm) and missing_arguments(algorithm):
            raise TypeError(f"ComputationTask: algorithm is the class {algorithm.__name__}; expected a function that makes one "
                            f"with its model: create_algorithm_func(MyModel, dict(obs=…, act=…), {algorithm.__name__}, {{}})")
        self.name, self.source, self.serve = "task", algorithm, serve
        self.options = TaskOptions(helper, device_of(device), predict_rule, training_rule, on_error, max_skips, bisect, train,
                                   serve, sync_every, tuple(asks), native, dict(rewards or {}))
        if serve == "replica" and isinstance(algorithm, Algorithm):
            raise TypeError("ComputationTask: serve='replica' needs a function that builds the algorithm, such as "
                            f"create_algorithm_func(...): every worker builds its own; got {type(algorithm).__name__}")
        self.learned, self.counts, self.row_slots = LearnedParameters(self.owner), LearningCounts(), RowSlots()
        self.computes = "torch"
        self.acting: ActingCopies | None = None
        self.asked: AskedTasks | None = None
        self.reward_fields: tuple[str, ...] = ()
        self.output_shapes: dict[str, tuple[int, ...]] = {}
        self.policy_specs: tuple[Spec, ...] = ()
        self._robot: Callable[[], Any] = lambda: None
        self._runner: AlgorithmRunner | None = None
        if isinstance(algorithm, Algorithm):
            self._adopt(algorithm)

    @property
    def robot(self) -> RunPort | None:
        """The robot that has this task and is not closed; None: there is none."""
        if self._robot() is not None and not self._robot().closed:
            gc.collect()  # one that was only forgotten goes with this, for it is part of circles
        robot = self._robot()
        return None if robot is None or robot.closed else robot

    @robot.setter
    def robot(self, robot: RunPort) -> None:
        self._robot = weakref.ref(robot)

    def owner(self) -> str:
        """Return its name in messages."""
        return f"task {self.name!r}"

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm, which is built where it was not."""
        return self.runner.algorithm

    @property
    def runner(self) -> AlgorithmRunner:
        """The part that calls the algorithm, which is built where it was not."""
        if self._runner is None:
            self.build()
        assert self._runner is not None
        return self._runner

    @property
    def is_built(self) -> bool:
        """Return whether the algorithm exists."""
        return self._runner is not None

    def build(self, seed: np.random.SeedSequence | None = None) -> None:
        """Builds the algorithm, unless it exists, with parameters drawn from `seed`; the global generators stay untouched.

        Raises:
            ContractError: the model does not offer what the algorithm calls. TypeError: the function gave no algorithm.
        """
        seed = np.random.SeedSequence(0) if seed is None else seed
        initial, torch_draws, numpy_draws = seed.generate_state(3)
        if self._runner is None:
            with torch_seed(int(initial)):
                try:
                    algorithm = self.source()  # type: ignore[operator]
                except ContractError as error:
                    raise ContractError(f"{self.owner()}: {error}") from None
                if not isinstance(algorithm, Algorithm):
                    raise TypeError(f"{self.owner()}: the algorithm function gave {type(algorithm).__name__}; expected an "
                                    "Algorithm")
                self._adopt(algorithm)
        self.algorithm.rng = np.random.default_rng(int(numpy_draws))
        self.algorithm.torch_rng = torch.Generator(device=self.device)
        self.algorithm.torch_rng.manual_seed(int(torch_draws))

    def _adopt(self, algorithm: Algorithm) -> None:
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"{self.owner()}: device is {str(self.device)!r}, but torch sees no CUDA device; use device='cpu'")
        if isinstance(algorithm.model, ArrayModel) and self.device.type != "cpu":
            raise ValueError(f"{self.owner()}: device is {str(self.device)!r}, and {type(algorithm.model).__name__} is a model "
                             "of NumPy arrays; use device='cpu'")
        try:
            tried, mode_readers = try_out(self.owner, algorithm)
            self.output_shapes, self.policy_specs = {n: value.shape[1:] for n, value in tried.items()}, policy_specs(tried)
        except ContractError as error:
            raise ContractError(f"{self.owner()}: {error}") from error.__cause__
        self._runner = AlgorithmRunner(algorithm, self.device, self.owner, mode_readers)
        self.computes = choose(algorithm, self.native and self.device.type == "cpu")
        algorithm.watch(self.owner)
        self.claim()

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """That of the one loss, for the parameters which this task owns; None: it owns none, or there are several losses."""
        return self.optimizers.get("loss")

    def optimized(self) -> list[torch.Tensor]:
        """Return the parameters that its learning changes, also those that another task owns."""
        return self.learned.optimized()

    def claim(self) -> None:
        """Makes the optimisers over the parameters that no other living task owns, see `LearnedParameters`."""
        optimization = self.learned.claim(self.algorithm, self.native)
        if self.train and type(self.algorithm).learn is not Algorithm.learn:
            optimization.report_unheld(self.learned.is_others)

    def predict(self, inputs: Mapping[str, Array], mode: Mode = "collect") -> dict[str, Array]:
        """Serves one packed batch.

        Args:
            inputs: Flat field name → [N, ...] array, by the names of `Model.inputs()`.
            mode: 'collect', 'test', or 'update' for another task's update.

        Returns:
            Flat output name → [N, ...] NumPy array; never a tensor, so no gradient leaves the task.
        """
        return self.act(inputs, mode)[0]

    def act(self, inputs: Mapping[str, Array], mode: Mode = "collect") -> tuple[dict[str, Array], int]:
        """`predict`, and the version of the parameters that it used: of the acting copies, where there are some, unless a task
        asks that learns from the answer (mode 'update')."""
        runner = self._runner or self.runner
        if self.acting is None or mode == "update":
            learned = self.learned
            with learned.lock:  # no optimiser step between the forward pass and the version
                return runner.predict(runner.algorithm, inputs, mode, runner.inference, runner.on_rows), learned.version
        copy = self.acting.front
        with copy.lock:
            return runner.predict(copy.algorithm, inputs, mode, copy.inference, copy.on_rows), copy.version

    def connect(self, asked: Mapping[str, ComputationTask]) -> None:
        """Take the tasks that this one `asks`; the robot calls it."""
        self.asked = AskedTasks(self.owner, self.runner, asked, self.rewards)
        self.algorithm.connect_asked(self.asked.ask)
        self.reward_fields = self.asked.fields

    @property
    def window(self) -> Window:
        """Which rows its updates need: those of the algorithm, with the fields that tasks read to give a reward."""
        return self.algorithm.window.reading(self.reward_fields)

    def publish(self) -> None:
        """Gives the parameters as they are now to the acting copies, which are made where there are none."""
        if self.acting is None:
            self.acting = ActingCopies(self.algorithm.acting_copy(), self.version)
        else:
            with self.lock:
                self.acting.publish(tensors_of(self.networks_state(acting=True)), self.version, self.algorithm.updates)

    def networks_state(self, acting: bool = False, copied: bool = False) -> dict[str, dict[str, object]]:
        """The state dicts of all networks, or what predictions may use (`acting_state`)."""
        with self.lock:
            states = acting_state(self.algorithm) if acting else {
                name: network.state_dict() for name, network in self.algorithm.networks().items()}
            return deepcopy(states) if copied else states

    def follow(self, env_steps: int) -> None:
        """Tells the algorithm of the steps that the environments have made, see `Algorithm.follow`."""
        self.algorithm.follow(env_steps)

    def move_ends(self, key: str, ends: Sequence[int]) -> None:
        """Tells a task that is in another process where schedules end (`parl_like.learning.span`)."""
        move_ends(key, ends)

    def learn(self, rows: Mapping[str, Array]) -> dict[str, Any]:
        """One training request: process → minibatches × (learn, optimiser step) → post_process.

        A step whose loss or gradient is no finite number is left out: parameters, optimiser, and what the forward pass had put
        into the networks' own statistics are as before it, bit for bit. It is counted (`skipped`) and logged; the update goes on.

        Args:
            rows: Flat field name → [N, ...] array.

        Returns:
            Means of the scalars that `learn` returned, as floats; and arrays with N rows, put together where the update had
            several minibatches (of several passes the last counts). Of the steps that were taken; where none was, of those that
            were left out, with 0 for what is no number in their arrays (such as priorities of rows). `left_out`: how many were,
            if any. `version/x`: that of the parameters with which task x, which was asked, answered last. `reward/x`: the mean
            of the rewards that it gave.

        Raises:
            Diverged: no step could be taken, as in the `max_skips` updates before.
        """
        runner, learned, counts = self.runner, self.learned, self.counts
        algorithm, optimization = runner.algorithm, learned.optimization
        assert optimization is not None
        n = len(next(iter(rows.values())))
        batch = runner.sent(rows)
        divided = type(algorithm).minibatches is not Algorithm.minibatches
        if divided:
            batch[ROW] = places = np.arange(n) if runner.on_arrays else torch.arange(n, device=self.device)
        algorithm.updates_before = algorithm.updates
        with learned.lock, UpdateMode(runner), torch.no_grad():
            if self.asked is not None:
                batch = self.asked.pay(batch)
            batch = algorithm.process(batch)
        if divided and ROW not in batch and len(batch) == n:
            batch[ROW] = places
        taken: list[Step] = []
        left_out: list[Step] = []
        fault: Diverged | None = None
        for minibatch in algorithm.minibatches(batch):
            # The lock is taken per step, so that predictions come between the steps and each sees one version only.
            with learned.lock, UpdateMode(runner):
                values, changed, lost, error = optimization.update(minibatch)
                if changed:
                    learned.new_version()
                if error is not None:
                    counts.count_skip(error, self.max_skips)
            fault = error or fault
            if changed:
                taken.append((values, minibatch.get(ROW)))
            if error is not None:
                left_out.append((lost, minibatch.get(ROW)))
        counts.note_steps(bool(taken), fault, self.max_skips)
        if taken or not left_out:
            with learned.lock, UpdateMode(runner), torch.no_grad():
                algorithm.post_process(batch)
            if not taken and type(algorithm).post_process is not Algorithm.post_process:
                with learned.lock:
                    learned.new_version()  # no step has: what it may have changed shall act elsewhere, too
        if taken or left_out:  # an algorithm may find that it cannot learn from these rows yet
            counts.count_update(n)
        return {**update_return(self.owner(), n, taken, left_out), **({} if self.asked is None else self.asked.take_report())}

    def close(self) -> None:
        """Ends what the task has in other processes: nothing, where its algorithm is here."""

    def sync_from(self, other: ComputationTask, decay: float = 0.0) -> None:
        """Every network of this task ← decay · own + (1 − decay) · other's."""
        first, second = sorted((self.lock, other.lock), key=id)  # in one order, so that two tasks may follow each other
        with first, second:
            theirs = other.algorithm.networks()
            for name, network in self.algorithm.networks().items():
                network.sync_from(theirs[name], decay)  # type: ignore[operator]
            self.learned.new_version()

    def state_dict(self) -> State:
        """Copies of all that learning depends on: networks, optimiser, counters, generators, and what else of the algorithm has
        changed."""
        with self.lock:
            return task_state(self)

    def load_state_dict(self, state: State) -> None:
        """Restores `state_dict()`.

        Raises:
            ValueError: it is of another model (with the names of the tensors that differ), has wrong types, or weights that are
                no numbers; nothing has been changed.
        """
        with self.lock:
            before = task_state(self)
            try:
                load_task_state(self, state)
            except Exception:
                with suppress(Exception):
                    load_task_state(self, before)
                raise

    def load_fitting(self, state: State) -> list[str]:
        """Takes over those tensors of the networks of `state_dict()` that have the same name and shape, and nothing else.

        Returns:
            What was left out, 'network tensor' each.
        """
        saved = plain.entries(state["networks"])
        with self.lock:
            left_out = [f"{name} {key}" for name, network in self.algorithm.networks().items()
                        for key in load_what_fits(network, plain.entries(saved.get(name, {})))]
            self.learned.new_version()
        return left_out


def connect_tasks(tasks: Mapping[str, ComputationTask]) -> None:
    """Connect the tasks of a robot with those that they ask while they learn.

    All that ask each other get one lock: two locks, each held by an update that waits for the other, cannot be.

    Raises:
        KeyError: a task asks one that is not there. ValueError: tasks ask in a circle.
    """
    def follow(path: list[str]) -> None:
        for name in tasks[path[-1]].asks:
            if name not in tasks:
                raise KeyError(f"task {path[-1]!r} asks: {unknown('task', name, tasks)}")
            if name in path:
                raise ValueError(f"Robot: tasks ask in a circle, {' → '.join([*path, name])}, and could wait for each other; "
                                 "leave one of them out of asks=…")
            follow([*path, name])

    for name in tasks:
        follow([name])
    for task in tasks.values():
        if task.asks or task.rewards:
            task.connect({name: tasks[name] for name in task.asks})
        for name in task.asks:
            old, new = tasks[name].learned.lock, task.learned.lock
            for one in {known for task in tasks.values() for known in (task.learned, *task.learned.sharers)}:
                one.lock = new if one.lock is old else one.lock
