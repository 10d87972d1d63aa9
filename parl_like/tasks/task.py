"""ComputationTask: one algorithm with its optimiser, device, lock, counters and state. No gradient crosses its border."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from math import isfinite
from typing import Any, Literal

import numpy as np
import torch

from parl_like.data.extra_fields import policy_specs
from parl_like.data.rng import Borrowed
from parl_like.interfaces import RunPort
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.device_copy import fetch, send
from parl_like.learning.model import ArrayModel
from parl_like.learning.model_check import ContractError, check_rows, flat_outputs, try_out
from parl_like.learning.optimizer_steps import (
    ROW,
    Optimization,
    Step,
    Stepper,
    has_modes,
    own_parameters,
    set_mode,
    update_return,
)
from parl_like.learning.parameter_owners import claim
from parl_like.learning.saved_state import load_task_state, load_what_fits, task_state
from parl_like.learning.span import move_ends
from parl_like.tasks.acting_copies import ActingCopies, acting_state, tensors_of
from parl_like.tasks.batch_rule import BatchRule
from parl_like.tasks.row_slots import Places
from parl_like.values.batch import Batch
from parl_like.values.errors import Diverged, unknown
from parl_like.values.spec import Array, Spec, SpecError, leaves
from parl_like.values.user_calls import guarded

Mode = Literal["collect", "update", "test"]

log = logging.getLogger(__name__)


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
            the agents start). Training is central. Agents in the robot's process are always served by the task itself.
        asks: Names of the tasks that this one asks while it learns (`Algorithm.ask`). Not in a circle. Tasks that ask each other
            take turns with their optimiser steps, for they have one lock, as tasks that share parameters do.

    Attributes:
        name: The robot's name for it.
        version: Updates that changed its parameters, its own and those of tasks that share some.
        acting: Copies of the networks for predictions while learning runs beside them; None: predictions use the networks that
            learn.
        learns: Updates given. rows_learned: Their rows.
        skipped: Optimiser steps that were left out so far. skips: Updates in a row, up to now, in which all were.
        output_shapes: Of one row of each output of `predict`. policy_specs: those of `policy`, which helpers store.
        sharers: The tasks that share parameters with this one.
    """

    def __init__(
        self, algorithm: Algorithm | Callable[[], Algorithm], helper: Callable[[], Any] | None = None, *,
        device: str | torch.device = "cpu", predict_rule: BatchRule | None = None, training_rule: BatchRule | None = None,
        on_error: Literal["stop", "fail_batch"] = "stop", max_skips: int = 10, bisect: bool = False, train: bool = True,
        serve: Literal["central", "replica"] = "central", sync_every: int = 1, asks: Sequence[str] = (),
    ) -> None:
        for option, value, known in (("serve", serve, ("central", "replica")), ("on_error", on_error, ("stop", "fail_batch"))):
            if value not in known:
                raise ValueError(f"ComputationTask: {option} is {value!r}; expected {known[0]!r} or {known[1]!r}")
        if sync_every < 1:
            raise ValueError(f"ComputationTask: sync_every is {sync_every}; expected at least 1 optimiser step")
        if max_skips < 0:
            raise ValueError(f"ComputationTask: max_skips is {max_skips}; expected at least 0 (0: the first loss that is no "
                             "number raises)")
        if serve == "replica" and isinstance(algorithm, Algorithm):
            raise TypeError("ComputationTask: serve='replica' needs a function that builds the algorithm, such as "
                            f"create_algorithm_func(...): every worker builds its own; got {type(algorithm).__name__}")
        if helper is not None and not callable(helper):
            raise TypeError(f"ComputationTask: helper is {helper!r}; expected a function that makes one: helper=lambda: "
                            f"{helper if isinstance(helper, str) else type(helper).__name__}(…)")
        try:
            self.device = torch.device(device)
        except RuntimeError as error:
            raise ValueError(f"ComputationTask: device is {device!r}; expected 'cpu', 'cuda' or 'cuda:<number>'") from error
        if self.device.type == "meta":
            raise ValueError("ComputationTask: device is 'meta', which holds no numbers; expected 'cpu', 'cuda' or "
                             "'cuda:<number>'")
        self.name, self.helper, self.train = "task", helper, train
        self.predict_rule, self.training_rule, self.on_error = predict_rule, training_rule, on_error
        self.max_skips, self.bisect, self.serve, self.sync_every = max_skips, bisect, serve, sync_every
        self.asks, self.asked = tuple(asks), dict[str, ComputationTask]()
        self._heard: dict[str, int] = {}  # the versions of those that this update has asked
        self.acting: ActingCopies | None = None
        self._inference = torch.inference_mode()  # one for each lock that is held under it: making one would take 1 µs
        self.places = Places()
        self.lock: Any = threading.RLock()
        self.fault = ""  # of the last step that was left out
        self.version = self.learns = self.rows_learned = self.skipped = self.skips = 0
        self.output_shapes: dict[str, tuple[int, ...]] = {}
        self.policy_specs: tuple[Spec, ...] = ()
        self._source = algorithm
        self._robot: Callable[[], Any] = lambda: None
        self._algorithm: Algorithm | None = None
        self._optimization: Optimization | None = None
        self.sharers: weakref.WeakSet[ComputationTask] = weakref.WeakSet()
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
        if self._algorithm is None:
            self.build()
        return self._algorithm  # type: ignore[return-value]

    def build(self, seed: np.random.SeedSequence | None = None) -> None:
        """Builds the algorithm, unless it exists, with parameters drawn from `seed`; the global generators stay untouched."""
        seed = np.random.SeedSequence(0) if seed is None else seed
        algorithm_seed, torch_seed, numpy_seed = seed.generate_state(3)
        if self._algorithm is None:
            with torch.random.fork_rng(devices=[]):
                torch.random.manual_seed(int(algorithm_seed))
                try:
                    algorithm = self._source()  # type: ignore[operator]
                except ContractError as error:
                    raise ContractError(f"{self.owner()}: {error}") from None
                if not isinstance(algorithm, Algorithm):
                    raise TypeError(f"{self.owner()}: the algorithm function gave {type(algorithm).__name__}; expected an "
                                    "Algorithm")
                self._adopt(algorithm)
        self.algorithm.rng = np.random.default_rng(int(numpy_seed))
        self.algorithm.torch_rng = torch.Generator(device=self.device)
        self.algorithm.torch_rng.manual_seed(int(torch_seed))

    def _adopt(self, algorithm: Algorithm) -> None:
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"{self.owner()}: device is {str(self.device)!r}, but torch sees no CUDA device; use device='cpu'")
        self._algorithm, networks = algorithm, algorithm.networks()
        self._on_arrays = isinstance(algorithm.model, ArrayModel)
        if self._on_arrays and self.device.type != "cpu":
            raise ValueError(f"{self.owner()}: device is {str(self.device)!r}, and {type(algorithm.model).__name__} is a model "
                             "of NumPy arrays; use device='cpu'")
        try:
            tried = try_out(self.name, algorithm)
            self.output_shapes, self.policy_specs = {n: value.shape[1:] for n, value in tried.items()}, policy_specs(tried)
        except ContractError as error:
            raise ContractError(f"{self.owner()}: {error}") from error.__cause__
        for network in networks.values():
            network.to(self.device)
        for parameter in own_parameters(algorithm).values():
            parameter.data = parameter.data.to(self.device)
        self.has_modes = has_modes(networks)
        algorithm.watch(self.owner)
        self.claim()

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """That of the one loss, for the parameters which this task owns; None: it owns none, or there are several losses."""
        return self.optimizers.get("loss")

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Loss → the optimiser of those of its parameters which this task owns."""
        return {} if self._optimization is None else self._optimization.optimizers

    def steppers(self) -> list[Stepper]:
        """Return the steppers that have an optimiser."""
        steppers = () if self._optimization is None else self._optimization.steppers.values()
        return [stepper for stepper in steppers if stepper.optimizer is not None]

    @property
    def rates(self) -> dict[str, float]:
        """Loss → the learning rate that its optimiser's groups were set by, where it is a number."""
        steppers = {} if self._optimization is None else self._optimization.steppers
        return {name: float(stepper.rate) for name, stepper in steppers.items() if stepper.rate is not None}

    @rates.setter
    def rates(self, value: Any) -> None:
        if not isinstance(value, Mapping) or not all(isinstance(rate, float) for rate in value.values()):
            raise ValueError(f"{self.owner()}, rates: expected numbers by the names of losses, got {value!s:.80}")
        for name, stepper in () if self._optimization is None else self._optimization.steppers.items():
            stepper.rate = value.get(name)  # a rate of this robot that differs is written at its next step

    def optimized(self) -> list[torch.Tensor]:
        """The parameters that its learning changes, also those that another task owns."""
        return [] if self._optimization is None else self._optimization.parameters

    def claim(self) -> None:
        """Makes the optimisers over the parameters that no other living task owns, see
        `parl_like.learning.parameter_owners.claim`."""
        self._optimization = claim(self)
        if self.train and type(self.algorithm).learn is not Algorithm.learn:
            self._optimization.report_unheld()

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
        if self.acting is None or mode == "update":
            with self.lock:  # no optimiser step between the forward pass and the version
                return self._forward(self.algorithm, inputs, mode, self._inference), self.version
        copy = self.acting.front
        with copy.lock:
            return self._forward(copy.algorithm, inputs, mode, copy.inference), copy.version

    def _forward(
        self, algorithm: Algorithm, inputs: Mapping[str, Array], mode: Mode, inference: torch.inference_mode,
    ) -> dict[str, Array]:
        tensors: Mapping[str, Any] = inputs
        if not self._on_arrays:
            on_cpu = self.device.type == "cpu"
            tensors = {name: torch.from_numpy(value) for name, value in inputs.items()} if on_cpu else send(inputs, self.device)
        with inference:
            attributes = algorithm.__dict__  # past `__setattr__`: this is in every prediction
            before, attributes["mode"] = algorithm.mode, mode
            try:
                if self.has_modes and algorithm is self._algorithm:  # acting copies never learn
                    set_mode(algorithm.networks().values(), False)
                out = flat_outputs(algorithm.predict(Batch.nest(tensors)))
            finally:
                attributes["mode"] = before
            # What was not made in here is a view of a parameter (a Gaussian's log_std) or of the inputs (an identity), and both
            # change under the reply: the next optimiser step, the next batch. Copied while the lock holds them still.
            arrays = fetch(out)
        check_rows(self.name, arrays, len(next(iter(inputs.values()))))
        return arrays

    def connect(self, asked: Mapping[str, ComputationTask]) -> None:
        """Take the tasks that this one `asks`; the robot calls it."""
        self.asked = dict(asked)
        self.algorithm._asks = self._ask

    def _ask(self, name: str, inputs: Mapping[str, Any]) -> Batch:
        """See `Algorithm.ask`."""
        if name not in self.asked:
            raise ValueError(f"{self.owner()} asks {name!r}, which it does not declare (asks={list(self.asks)})")
        rows = fetch(dict(leaf for field, value in inputs.items() for leaf in leaves(value, field)))
        specs = self.asked[name].algorithm.model.inputs()
        got = {field: value.shape[1:] for field, value in rows.items()}
        if got != (expected := {field: spec.shape for field, spec in specs.items()}):
            raise SpecError(f"{self.owner()} asks {name!r}: expected rows of {expected}, got {got}")
        out, self._heard[name] = self.asked[name].act(rows, "update")
        if self.has_modes:
            self._set_modes_of_update()  # again, where a network is of both
        # Those from a Ray actor are read-only, and tensors are made of these.
        return self._sent({field: np.require(value, requirements="W") for field, value in out.items()})

    def publish(self) -> None:
        """Gives the parameters as they are now to the acting copies, which are made where there are none."""
        if self.acting is None:
            self.acting = ActingCopies(self.algorithm.acting_copy(), self.version)
        else:
            with self.lock:
                self.acting.publish(tensors_of(self.networks_state(acting=True)), self.version, self.algorithm.updates)

    def networks_state(self, acting: bool = False, copied: bool = False) -> dict[str, dict[str, Any]]:
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
            if any. `version/x`: that of the parameters with which task x, which was asked, answered last.

        Raises:
            Diverged: no step could be taken, as in the `max_skips` updates before.
        """
        algorithm, optimization = self.algorithm, self._optimization
        assert optimization is not None
        n = len(next(iter(rows.values())))
        batch = self._sent(rows)
        divided = type(algorithm).minibatches is not Algorithm.minibatches
        if divided:
            batch[ROW] = places = np.arange(n) if self._on_arrays else torch.arange(n, device=self.device)
        algorithm.updates_before = algorithm.updates
        batch = self._in_update_mode(algorithm.process, batch)
        if divided and ROW not in batch and len(batch) == n:
            batch[ROW] = places
        taken: list[Step] = []
        left_out: list[Step] = []
        fault: Diverged | None = None
        for minibatch in algorithm.minibatches(batch):
            # The lock is taken per step, so that predictions come between the steps and each sees one version only.
            values, changed, lost, error = self._in_update_mode(self._step, minibatch, gradients=True)
            fault = error or fault
            if changed:
                taken.append((values, minibatch.get(ROW)))
            if error is not None:
                left_out.append((lost, minibatch.get(ROW)))
        if taken:
            self.skips = 0
        elif left_out:
            self.skips += 1
            if self.skips > self.max_skips:
                raise Diverged(f"{fault} ({self.skips} updates in a row without a step)")
        if taken or not left_out:
            self._in_update_mode(algorithm.post_process, batch)
            if not taken and type(algorithm).post_process is not Algorithm.post_process:
                with self.lock:
                    self._new_version()  # no step has: what it may have changed shall act elsewhere, too
        if taken or left_out:  # an algorithm may find that it cannot learn from these rows yet
            self.learns += 1
            self.rows_learned += n
        heard, self._heard = self._heard, {}
        return {**update_return(self.owner(), n, taken, left_out), **{f"version/{name}": v for name, v in heard.items()}}

    def learn_row(self, row: Batch) -> Mapping[str, Any]:
        """An update of one row without its axis, for a model of arrays: `process`, `learn`, `post_process`, and nothing beside.

        Returns:
            What `learn` returned.

        Raises:
            Diverged: a number in that is not finite. The arrays are as `learn` left them, for there is no copy of before.
        """
        algorithm = self._algorithm
        assert algorithm is not None
        attributes = algorithm.__dict__  # past `__setattr__`: this is in every step of an environment
        with self.lock:
            before, attributes["mode"] = algorithm.mode, "update"
            try:
                given: Any = algorithm.learn(algorithm.process(row))
                attributes["updates_before"] = attributes["updates"]
                attributes["updates"] += 1
                algorithm.post_process(row)
            finally:
                attributes["mode"] = before
            self._count_row()
        if given is None:
            return {}
        out: Mapping[str, Any] = given
        try:
            for name, value in out.items():
                if not isfinite(value):
                    raise self._diverged(name, value)
        except (AttributeError, TypeError):
            what = f"{out!r:.80}" if isinstance(out, Mapping) else type(out).__name__
            raise TypeError(f"{self.owner()}: learn of {type(algorithm).__name__} gives {what} for a row; expected a mapping of "
                            "numbers, or None") from None
        return out

    def learn_numbers(self, learner: Any, *row: Any) -> float:
        """The same by the algorithm's `row_learner`, for a row of numbers; what that returned."""
        with self.lock:
            out: float = learner.learn(*row)
            self._count_row()
        if not isfinite(out):
            raise self._diverged(learner.reports, out)
        return out

    def _count_row(self) -> None:
        self.learns += 1
        self.rows_learned += 1
        self._new_version()

    def _diverged(self, name: str, value: float) -> Diverged:
        return Diverged(f"{self.owner()}: {name} is {value} at update {self.algorithm.updates}, and has been learned from; lower "
                        "the learning rate, or look for extreme rewards")

    def _sent(self, rows: Mapping[str, Array]) -> Batch:
        """Rows as the algorithm gets them: tensors on its device, or arrays where the model is made of these."""
        return Batch.nest(rows if self._on_arrays else send(rows, self.device))

    def _step(self, minibatch: Batch) -> tuple[dict[str, Any], bool, dict[str, Any], Diverged | None]:
        """`Optimization.update`, counted."""
        assert self._optimization is not None
        values, changed, lost, error = self._optimization.update(minibatch)
        if changed:
            self._new_version()
        if error is not None:
            self._count_skip(error)
        return values, changed, lost, error

    def _set_modes_of_update(self) -> None:
        networks = self.algorithm.networks()
        for learns in (True, False):
            set_mode([part for name, part in networks.items() if (name not in self.algorithm.always_test) is learns], learns)

    def _in_update_mode(self, call: Callable[[Batch], Any], batch: Batch, gradients: bool = False) -> Any:
        """`call(batch)` under the lock in mode 'update', in which modules that have modes are in training mode."""
        algorithm, lent = self.algorithm, None
        with self.lock:
            before, algorithm.mode = algorithm.mode, "update"
            try:
                if self.has_modes:
                    self._set_modes_of_update()
                    if self.device.type == "cpu":
                        # Dropout knows only torch's global generator: it is lent a seed of the task's own one, from which the
                        # algorithm itself goes on drawing, and gets its state back.
                        Borrowed.begun += 1
                        lent = torch.get_rng_state()
                        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=algorithm.torch_rng)))
                if gradients:
                    return call(batch)
                with torch.no_grad():
                    return call(batch)
            finally:
                algorithm.mode = before
                if lent is not None:
                    torch.set_rng_state(lent)
                    Borrowed.ended += 1
                if self.has_modes:
                    set_mode(algorithm.networks().values(), False)

    def _count_skip(self, fault: Diverged) -> None:
        """Count a step that was left out; raise `fault` where the task does not put up with that."""
        if not self.max_skips:
            raise fault
        self.skipped += 1
        self.fault = str(fault)
        if not self.skipped & (self.skipped - 1):  # 1, 2, 4, 8 …: a task that goes on like that shall not fill the disk
            log.warning("%s (left out; steps left out so far: %d)", fault, self.skipped)

    def _new_version(self) -> None:
        self.version += 1
        if self.sharers.data:  # type: ignore[attr-defined]  # the length of a WeakSet costs 1 µs
            for sharer in self.sharers:
                sharer.version += 1

    def close(self) -> None:
        """Ends what the task has in other processes: nothing, where its algorithm is here."""

    def sync_from(self, other: ComputationTask, decay: float = 0.0) -> None:
        """Every network of this task ← decay · own + (1 − decay) · other's."""
        first, second = sorted((self.lock, other.lock), key=id)  # in one order, so that two tasks may follow each other
        with first, second:
            theirs = other.algorithm.networks()
            for name, network in self.algorithm.networks().items():
                network.sync_from(theirs[name], decay)  # type: ignore[operator]
            self._new_version()

    def state_dict(self) -> dict[str, Any]:
        """Copies of all that learning depends on: networks, optimiser, counters, generators, and what else of the algorithm has
        changed."""
        with self.lock:
            return task_state(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
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

    def load_fitting(self, state: Mapping[str, Any]) -> list[str]:
        """Takes over those tensors of the networks of `state_dict()` that have the same name and shape, and nothing else.

        Returns:
            What was left out, 'network tensor' each.
        """
        with self.lock:
            left_out = [f"{name} {key}" for name, network in self.algorithm.networks().items()
                        for key in load_what_fits(network, state["networks"].get(name, {}))]
            self._new_version()
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
        if task.asks:
            task.connect({name: tasks[name] for name in task.asks})
        for other in task.asked.values():
            old = other.lock
            for one in {*tasks.values(), *(sharer for known in tasks.values() for sharer in known.sharers)}:
                one.lock = task.lock if one.lock is old else one.lock
