"""ComputationTask: one algorithm with its optimiser, device, lock, counters and state. No gradient crosses its border."""

from __future__ import annotations

import logging
import math
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from parl_like.acting import ActingCopies, tensors_of
from parl_like.algorithm import Algorithm
from parl_like.batch import Batch
from parl_like.data.archive import rng_state, set_rng_state, set_torch_rng_state, torch_rng_state
from parl_like.errors import Diverged
from parl_like.lesson import ROW, Returns, to_numpy
from parl_like.spec import Array, Spec, nest
from parl_like.task_state import (
    attribute_parameters,
    check_network,
    checked_optimizer,
    clones,
    counters_of,
    differing,
    optimizer_state,
)
from parl_like.transfer import fetch, send

if TYPE_CHECKING:
    from parl_like.agent_helper import AgentHelper

Mode = Literal["collect", "update", "test"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BatchRule:
    """When a queue closes a batch: at `min_rows` waiting rows, or `max_wait` seconds after the first, or when nobody is left
    who could still come; never with more than `max_rows` rows (one request that is larger makes a batch of its own).

    Attributes:
        min_rows: None: wait for everybody who could come.
        max_rows: None: no bound.
        max_wait: None: as long as it takes. The cooperative driver looks at the clock for training in async mode only: else a batch
            closes the moment nobody else can run, and a clock would make two runs differ.
        max_queued: Waiting rows from which a training queue is full; None: no bound. (Each agent waits for its predictions, so their
            queue is bounded by the agents.)
        when_full: What a full training queue does with one more request: 'block' takes it, and its sender waits until it is served;
            'drop_oldest' answers the oldest with `Dropped`, and counts its rows.
    """

    min_rows: int | None = None
    max_rows: int | None = None
    max_wait: float | None = None
    max_queued: int | None = None
    when_full: Literal["block", "drop_oldest"] = "block"

    def __post_init__(self) -> None:
        if self.when_full not in ("block", "drop_oldest"):
            raise ValueError(f"BatchRule: when_full is {self.when_full!r}; expected 'block' or 'drop_oldest'")
        for name in ("min_rows", "max_rows", "max_queued"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"BatchRule: {name} is {value}; expected at least 1, or None")
        if self.max_wait is not None and not self.max_wait >= 0:
            raise ValueError(f"BatchRule: max_wait is {self.max_wait}; expected seconds ≥ 0, or None")
        if self.min_rows and self.max_rows and self.min_rows > self.max_rows:
            raise ValueError(f"BatchRule: min_rows ({self.min_rows}) is above max_rows ({self.max_rows}); no batch could close")
        if self.min_rows and self.max_queued and self.min_rows > self.max_queued:
            raise ValueError(f"BatchRule: min_rows ({self.min_rows}) is above max_queued ({self.max_queued}); the queue would never hold enough")


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
        max_skips: Lessons in a row that may pass without an optimiser step, because the loss or the gradient was no finite number
            (`learn`); the next one raises `Diverged`. 0: the first such step raises.
        bisect: A prediction that fails for several requests is tried again in halves, so that only those agents hear of the failure
            whose own rows fail. False: all members of the batch do.
        train: False: this task never learns (its helpers predict only).
        serve: Where worker processes get their predictions: 'central' from the robot's process, all workers' rows in one batch, or
            'replica' from networks of their own, which get the parameters after every `sync_every` optimiser steps (and when the agents
            start). Training is central. Where agents are in the robot's process, they are always served by the task itself.

    Attributes:
        name: The robot's name for it.
        version: Optimiser steps that changed its parameters, its own and those of tasks that share some.
        acting: Copies of the networks for predictions while learning runs beside them; None: predictions use the networks that learn.
        skipped: Optimiser steps that were left out so far. skips: Lessons in a row, up to now, in which all were.
    """

    def __init__(
        self,
        algorithm: Algorithm | Callable[[], Algorithm],
        helper: Callable[[], AgentHelper] | None = None,
        *,
        device: str | torch.device = "cpu",
        predict_rule: BatchRule | None = None,
        training_rule: BatchRule | None = None,
        on_error: Literal["stop", "fail_batch"] = "stop",
        max_skips: int = 10,
        bisect: bool = False,
        train: bool = True,
        serve: Literal["central", "replica"] = "central",
        sync_every: int = 1,
    ) -> None:
        if serve not in ("central", "replica"):
            raise ValueError(f"ComputationTask: serve is {serve!r}; expected 'central' or 'replica'")
        if sync_every < 1:
            raise ValueError(f"ComputationTask: sync_every is {sync_every}; expected at least 1 optimiser step")
        if serve == "replica" and isinstance(algorithm, Algorithm):
            raise TypeError("ComputationTask: serve='replica' needs a function that builds the algorithm, such as create_algorithm_func(...): every worker "
                            f"builds its own; got {type(algorithm).__name__}")
        if on_error not in ("stop", "fail_batch"):
            raise ValueError(f"ComputationTask: on_error is {on_error!r}; expected 'stop' or 'fail_batch'")
        if max_skips < 0:
            raise ValueError(f"ComputationTask: max_skips is {max_skips}; expected at least 0 (0: the first loss that is no number raises)")
        if helper is not None and not callable(helper):
            raise TypeError(f"ComputationTask: helper is {helper!r}; expected a function that makes one: helper=lambda: {type(helper).__name__}(...)")
        self.name = "task"
        self.helper = helper
        try:
            self.device = torch.device(device)
        except RuntimeError as error:
            raise ValueError(f"ComputationTask: device is {device!r}; expected 'cpu', 'cuda' or 'cuda:<number>'") from error
        if self.device.type == "meta":
            raise ValueError("ComputationTask: device is 'meta', which holds no numbers; expected 'cpu', 'cuda' or 'cuda:<number>'")
        self.predict_rule, self.training_rule = predict_rule, training_rule
        self.on_error = on_error
        self.max_skips, self.bisect = max_skips, bisect
        self.train = train
        self.serve, self.sync_every = serve, sync_every
        self.acting: ActingCopies | None = None  # what predictions use while learning runs beside them
        self.lock: Any = threading.RLock()
        self.version = 0
        self.learns = 0
        self.rows_learned = 0
        self.skipped = self.skips = 0
        self.output_shapes: dict[str, tuple[int, ...]] = {}  # of one row of each output of predict
        self._source = algorithm
        self._algorithm: Algorithm | None = None
        self._sharers: weakref.WeakSet[ComputationTask] = weakref.WeakSet()
        if isinstance(algorithm, Algorithm):
            self._adopt(algorithm)

    # ------------------------------------------------------------------------------------------------------- construction

    @property
    def algorithm(self) -> Algorithm:
        if self._algorithm is None:
            self.build()
        assert self._algorithm is not None
        return self._algorithm

    def build(self, seed: np.random.SeedSequence | None = None) -> None:
        """Builds the algorithm, unless it exists, with parameters drawn from `seed`; the global generators stay untouched."""
        seed = np.random.SeedSequence(0) if seed is None else seed
        algorithm_seed, torch_seed, numpy_seed = seed.generate_state(3)
        if self._algorithm is None:
            with torch.random.fork_rng(devices=[]):
                torch.random.manual_seed(int(algorithm_seed))
                algorithm = self._source()  # type: ignore[operator]
                if not isinstance(algorithm, Algorithm):
                    raise TypeError(f"task {self.name!r}: the algorithm function gave {type(algorithm).__name__}; expected an Algorithm")
                self._adopt(algorithm)
        self.algorithm.rng = np.random.default_rng(int(numpy_seed))
        self.algorithm.torch_rng = torch.Generator(device=self.device)
        self.algorithm.torch_rng.manual_seed(int(torch_seed))

    def _adopt(self, algorithm: Algorithm) -> None:
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"task {self.name!r}: device is {str(self.device)!r}, but torch sees no CUDA device; use device='cpu'")
        self._algorithm = algorithm
        self._try_out()
        for network in algorithm.networks().values():
            network.to(self.device).eval()
        for parameter in attribute_parameters(algorithm).values():
            parameter.data = parameter.data.to(self.device)
        self._has_modes = any(_has_modes(type(m)) for n in algorithm.networks().values() for m in n.modules())  # type: ignore[arg-type]
        algorithm.watch(f"task {self.name!r}")
        self.claim()

    def _try_out(self) -> None:
        """One prediction on two rows of zeros (of legal values, where 0 is none): makes parameters of lazy layers, and finds a model that does not fit at once."""
        inputs = self.algorithm.model.inputs()
        if not inputs or type(self.algorithm).predict is Algorithm.predict:
            return
        rows = {name: torch.from_numpy(spec.legal(2)) for name, spec in inputs.items()}
        with torch.no_grad():
            out = self._flat(self.algorithm.predict(Batch(nest(rows))))
        self.check_output({name: to_numpy(value) for name, value in out.items()}, 2)
        self.output_shapes = {name: tuple(value.shape[1:]) for name, value in out.items()}

    def claim(self) -> None:
        """Makes the optimiser over the parameters that no other living task owns, and finds the owners of the rest.

        Two optimisers on one tensor would each keep moments for half of its gradients, so a shared parameter has one owner: the
        task that claimed it first. Its sharers step the owner's optimiser for it.
        """
        mine, owners = [], []
        for parameter in self.algorithm.parameters():
            reference = getattr(parameter, "_parl_like_owner", None)
            owner = reference() if reference is not None else None
            if owner is None or owner is self:
                parameter._parl_like_owner = weakref.ref(self)  # type: ignore[attr-defined]
                mine.append(parameter)
            elif owner not in owners:
                owners.append(owner)
        self._parameters = list(self.algorithm.parameters())
        buffers = [buffer for network in self.algorithm.networks().values() for buffer in network.buffers()]
        self._buffers = [buffer for buffer in buffers if not torch.nn.parameter.is_lazy(buffer)]
        self.optimizer = self.algorithm.optimizer(mine) if mine else None
        self._shares = self._shares_of_rate()
        self._optimizers = [t.optimizer for t in (self, *owners) if t.optimizer is not None]
        if owners:
            tensors = {id(p) for p in self._parameters}
            for other in {*owners, *(sharer for owner in owners for sharer in owner._sharers)} - {self}:
                if any(id(p) in tensors for p in other._parameters):
                    other._sharers.add(self)
                    self._sharers.add(other)
            for task in self._related():
                task.lock = owners[0].lock  # one lock for everybody who reads or writes the shared tensors
        self._report_unheld()

    def _shares_of_rate(self) -> list[float]:
        """Learning rate of each group of parameters, as a share of the schedule's; so groups keep rates of their own."""
        schedule = self.algorithm.lr
        if self.optimizer is None or not callable(schedule):
            return []
        first, rates = schedule(0), [group["lr"] for group in self.optimizer.param_groups]
        if not first and any(rates):
            raise ValueError(f"task {self.name!r}: the schedule of the learning rate begins at 0, and a group of parameters at {max(rates)}, which "
                             "is no share of it; begin above 0, or give all groups the schedule's rate")
        return [rate / first if first else 1.0 for rate in rates]

    def _report_unheld(self) -> None:
        """Warns of parameters that should learn and that no optimiser holds."""
        algorithm = self.algorithm
        if not self.train or type(algorithm).learn is Algorithm.learn:
            return
        kept = [value for value in vars(algorithm).values() if isinstance(value, torch.optim.Optimizer)]
        optimizers = [optimizer for optimizer in (self.optimizer, *kept) if optimizer is not None]
        held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
        parameters = dict(attribute_parameters(algorithm))
        for name, network in algorithm.networks().items():
            if not name.startswith("target"):  # a copy that follows
                parameters |= {f"{name}.{key}": parameter for key, parameter in network.named_parameters()}
        for parameter in self._parameters:
            owner = getattr(parameter, "_parl_like_owner", lambda: None)()
            held |= {id(parameter)} if owner not in (None, self) else set()
        unheld = [name for name, parameter in parameters.items() if parameter.requires_grad and id(parameter) not in held]
        if unheld:
            warnings.warn(f"task {self.name!r}: no optimiser holds {', '.join(unheld[:8])}{' …' * (len(unheld) > 8)}; yield them from parameters() of "
                          f"{type(algorithm).__name__}, or freeze them (requires_grad_(False)) if they are not to learn", RuntimeWarning, stacklevel=2)

    def _related(self) -> list[ComputationTask]:
        """This task, those that share parameters with it, those that share with these, and so on."""
        found = [self]
        for task in found:
            found += [sharer for sharer in task._sharers if sharer not in found]
        return found

    # ---------------------------------------------------------------------------------------------------------- prediction

    def _flat(self, out: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        flat: dict[str, torch.Tensor] = {}
        for name, value in out.items():
            if isinstance(value, (Mapping, Batch)):
                flat |= {f"{name}.{key}": part for key, part in self._flat(dict(value.items())).items()}
            else:
                flat[name] = value
        return flat

    def check_output(self, out: Mapping[str, Array], rows: int) -> None:
        for name, value in out.items():
            if not value.ndim or len(value) != rows:
                spec = Spec(name, value.shape[1:], value.dtype, owner=f"task {self.name!r}, output of predict")
                raise spec.error(f"{value.shape} {value.dtype}", f"the batch has {rows} rows; return one row for each", True)

    def predict(self, inputs: Mapping[str, Array], mode: Mode = "collect") -> dict[str, Array]:
        """Serves one packed batch.

        Args:
            inputs: Flat field name → [N, ...] array, by the names of `Model.inputs()`.
            mode: 'collect' or 'test'.

        Returns:
            Flat output name → [N, ...] NumPy array; never a tensor, so no gradient leaves the task.
        """
        if self.acting is not None:
            return self.act(inputs, mode)[0]
        with self.lock:
            return self._forward(self.algorithm, inputs, mode)

    def act(self, inputs: Mapping[str, Array], mode: Mode = "collect") -> tuple[dict[str, Array], int]:
        """`predict`, and the version of the parameters that it used: of the acting copies, where there are some."""
        if self.acting is None:
            with self.lock:  # no optimiser step between the version and the forward pass
                version = self.version
                return self.predict(inputs, mode), version
        copy = self.acting.front
        with copy.lock:
            return self._forward(copy.algorithm, inputs, mode), copy.version

    def _forward(self, algorithm: Algorithm, inputs: Mapping[str, Array], mode: Mode) -> dict[str, Array]:
        cpu = self.device.type == "cpu"
        tensors = {name: torch.from_numpy(value) for name, value in inputs.items()} if cpu else send(inputs, self.device)
        with torch.inference_mode():
            before, algorithm.mode = algorithm.mode, mode
            try:
                if self._has_modes and algorithm is self._algorithm:  # acting copies never learn
                    self._switch(False)
                out = self._flat(algorithm.predict(Batch.nest(tensors)))
            finally:
                algorithm.mode = before
            # What was not made in here is a view of a parameter (a Gaussian's log_std) or of the inputs (an identity), and both
            # change under the reply: the next optimiser step, the next batch. Copied while the lock holds them still.
            if cpu:
                arrays = {n: v.numpy() if type(v) is torch.Tensor and v.is_inference() else _copied(v) for n, v in out.items()}
            else:
                arrays = fetch({n: torch.as_tensor(v, device=self.device) for n, v in out.items()})
        self.check_output(arrays, len(next(iter(inputs.values()))))
        return arrays

    def publish(self) -> None:
        """Gives the parameters as they are now to the acting copies, which are made where there are none."""
        if self.acting is None:
            self.acting = ActingCopies(self.algorithm.clone(), self.version)
            return
        with self.lock:
            self.acting.publish(tensors_of(self.networks_state()), self.version, self.algorithm.updates)

    def networks_state(self) -> dict[str, dict[str, Any]]:
        """The state dicts of all networks, not copied."""
        return {name: network.state_dict() for name, network in self.algorithm.networks().items()}

    # ------------------------------------------------------------------------------------------------------------ learning

    def _updating(self) -> _Updating:
        return _Updating(self)

    def _switch(self, training: bool) -> None:
        for network in self.algorithm.networks().values():
            _set_mode(network, training)

    def learn(self, rows: Mapping[str, Array]) -> dict[str, Any]:
        """One training request: process → minibatches × (learn, optimiser step) → post_process.

        A step whose loss or gradient is no finite number is left out: parameters, optimiser, and what the forward pass had put into the
        networks' own statistics are as before it, bit for bit. It is counted (`skipped`) and logged, and the lesson goes on.

        Args:
            rows: Flat field name → [N, ...] array.

        Returns:
            Means of the scalars that `learn` returned, as floats; and arrays with N rows, put together where the lesson had several
            minibatches (of several passes the last counts). Of the steps that were taken; where none was, of those that were left out,
            with 0 for what is no number in their arrays (such as priorities of rows).

        Raises:
            Diverged: no step could be taken, as in the `max_skips` lessons before.
        """
        algorithm = self.algorithm
        n = len(next(iter(rows.values())))
        batch = Batch.nest(send(rows, self.device))
        divided = type(algorithm).minibatches is not Algorithm.minibatches
        if divided:
            batch[ROW] = torch.arange(n, device=self.device)
        with self._updating(), torch.no_grad():
            batch = algorithm.process(batch)
        if divided and ROW not in batch and len(batch) == n:
            batch[ROW] = torch.arange(n, device=self.device)
        returns = Returns(f"task {self.name!r}", n)
        fault: Diverged | None = None
        for minibatch in algorithm.minibatches(batch):
            # The lock is taken per step, so that predictions come between the steps and each sees one version only.
            with self._updating():
                before = [buffer.clone() for buffer in self._buffers]
                out = algorithm.learn(minibatch)
                try:
                    loss = self.step(self._loss(out))
                except Diverged as error:
                    self._skip(error, before)
                    returns.add_left_out(out, minibatch)
                    fault = error
                    continue
            returns.add(out, minibatch, loss)
        if returns.steps:
            self.skips = 0
        elif fault is not None:
            self.skips += 1
            if self.skips > self.max_skips:
                raise Diverged(f"{fault} ({self.skips} lessons in a row without a step)")
        with self._updating(), torch.no_grad():
            algorithm.post_process(batch)
        self.learns += 1
        self.rows_learned += n
        return returns.result()

    def _loss(self, out: Mapping[str, Any]) -> torch.Tensor:
        loss = out.get("loss")
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            what = f"keys {sorted(out)}" if loss is None else "a loss without a gradient"
            raise ValueError(f"task {self.name!r}: learn returned {what}; expected 'loss', a scalar tensor with a gradient (not detached)")
        return loss

    def step(self, loss: torch.Tensor) -> float:
        """Backward pass and one optimiser step; the caller holds the lock. Returns the loss.

        Raises:
            Diverged: the loss or the norm of the gradient is not a finite number. The parameters are untouched.
        """
        value = float(loss.detach())
        self._check_finite("loss", value)
        algorithm = self.algorithm
        optimizers = self._optimizers
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        # Also where nothing is clipped, for a finite loss may have an infinite slope: 13 µs of 590 for a 2×64 network.
        norm = clip_gradients(self._parameters, algorithm.max_grad_norm)
        self._check_finite("norm of the gradient", norm)
        if not norm and all(parameter.grad is None for parameter in self._parameters):
            raise ValueError(f"task {self.name!r}: the loss of {type(algorithm).__name__} reaches none of the task's parameters, so nothing would be learned; "
                             "compute it with the algorithm's own model, without detach() or no_grad()")
        if self.optimizer is not None and callable(algorithm.lr):
            rate = algorithm.lr(algorithm.updates)
            for group, share in zip(self.optimizer.param_groups, self._shares, strict=False):
                group["lr"] = rate * share
        # An owner's optimiser steps only what has a gradient here: the shared parameters.
        for optimizer in optimizers:
            optimizer.step()
        algorithm.updates += 1
        self._new_version()
        return value

    def _skip(self, fault: Diverged, buffers: list[torch.Tensor]) -> None:
        """Leaves one step out; raises `fault` where the task does not put up with that."""
        with torch.no_grad():
            for buffer, value in zip(self._buffers, buffers, strict=True):
                buffer.copy_(value)
        if not self.max_skips:
            raise fault
        self.skipped += 1
        if not self.skipped & (self.skipped - 1):  # 1, 2, 4, 8 …: a task that goes on like that shall not fill the disk
            log.warning("%s (left out; steps left out so far: %d)", fault, self.skipped)

    def _new_version(self) -> None:
        self.version += 1
        for sharer in self._sharers:
            sharer.version += 1

    def _check_finite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise Diverged(
                f"task {self.name!r}: {what} is {value} at optimiser step {self.algorithm.updates}; the weights are unchanged. "
                "Lower the learning rate, set max_grad_norm, or look for extreme rewards"
            )

    # --------------------------------------------------------------------------------------------------------------- state

    def sync_from(self, other: ComputationTask, decay: float = 0.0) -> None:
        """Every network of this task ← decay · own + (1 − decay) · other's."""
        first, second = sorted((self.lock, other.lock), key=id)  # in one order, so that two tasks may follow each other
        with first, second:
            theirs = other.algorithm.networks()
            for name, network in self.algorithm.networks().items():
                network.sync_from(theirs[name], decay)  # type: ignore[operator]
            self._new_version()

    def state_dict(self) -> dict[str, Any]:
        """Everything that learning depends on: networks, optimiser, counters, generators, and what else of the algorithm has changed.

        Copies, so that later learning leaves it as it is.
        """
        algorithm = self.algorithm
        with self.lock:
            return {
                "networks": {name: clones(network.state_dict()) for name, network in algorithm.networks().items()},
                "optimizer": optimizer_state(self.optimizer),
                "counters": {"updates": algorithm.updates, "version": self.version, "learns": self.learns, "rows": self.rows_learned,
                             "skipped": self.skipped, "skips": self.skips},
                "rng": rng_state(algorithm.rng),
                "torch_rng": torch_rng_state(algorithm.torch_rng),
                "algorithm": algorithm.state_dict(),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`.

        Raises:
            ValueError: it is of another model (with the names of all tensors that differ), has wrong types, or weights that are no
                numbers; nothing has been changed.
        """
        owner, algorithm, networks = f"task {self.name!r}", self.algorithm, self.algorithm.networks()
        parts = ("networks", "optimizer", "counters", "rng", "torch_rng")
        if not isinstance(state, Mapping) or not all(part in state for part in parts) or not isinstance(state["networks"], Mapping):
            raise ValueError(f"{owner}: expected the state of a task with {', '.join(parts)}, got {str(state):.80}")
        with self.lock:
            for name, network in networks.items():
                check_network(f"{owner}, network {name!r}", network, state["networks"].get(name))
            load_optimizer = checked_optimizer(f"{owner}, optimizer", self.optimizer, state["optimizer"])
            counters = counters_of(owner, state["counters"], ("updates", "version", "learns", "rows", "skipped", "skips"), ("skipped", "skips"))
            set_rng_state(np.random.default_rng(0), state["rng"])
            set_torch_rng_state(torch.Generator(algorithm.torch_rng.device), state["torch_rng"])
            algorithm.load_state_dict(state.get("algorithm", {}))  # a checkpoint of before has none
            for name, network in networks.items():
                network.load_state_dict(dict(state["networks"][name]))
            load_optimizer()
            algorithm.updates, self.version, self.learns, self.rows_learned, self.skipped, self.skips = counters.values()
            set_rng_state(algorithm.rng, state["rng"])
            set_torch_rng_state(algorithm.torch_rng, state["torch_rng"])

    def load_fitting(self, state: Mapping[str, Any]) -> list[str]:
        """Takes over those tensors of the networks of `state_dict()` that have the same name and shape, and nothing else.

        Returns:
            What was left out, 'network tensor' each.
        """
        left_out = []
        with self.lock:
            for name, network in self.algorithm.networks().items():
                saved = state["networks"].get(name, {})
                unlike = differing(network, saved)
                left_out += [f"{name} {key}" for key in unlike]
                network.load_state_dict({key: value for key, value in saved.items() if key not in unlike}, strict=False)
            self._new_version()
        return left_out


class _Updating:
    """The task's lock, and mode 'update' for one call, restored also after an exception."""

    __slots__ = ("task", "before", "lent")

    def __init__(self, task: ComputationTask) -> None:
        self.task = task
        self.lent: torch.Tensor | None = None

    def __enter__(self) -> None:
        task = self.task
        task.lock.acquire()
        self.before, task.algorithm.mode = task.algorithm.mode, "update"
        try:
            if task._has_modes:
                task._switch(True)
                if task.device.type == "cpu":
                    # Dropout knows only torch's global generator: it is lent the task's state, and gets its own back.
                    self.lent = torch.get_rng_state()
                    torch.set_rng_state(task.algorithm.torch_rng.get_state())
        except BaseException:
            self.__exit__()  # a lock that is never released would stop everybody
            raise

    def __exit__(self, *exception: object) -> None:
        task = self.task
        task.algorithm.mode = self.before
        try:
            if task._has_modes:
                task._switch(False)
                if self.lent is not None:
                    task.algorithm.torch_rng.set_state(torch.get_rng_state())
                    torch.set_rng_state(self.lent)
                    self.lent = None
        finally:
            task.lock.release()


def _set_mode(network: torch.nn.Module, training: bool) -> None:
    """`network.train(training)`, without `Module.__setattr__`: its checks cost 2 µs a module, and every prediction comes through here.

    All modules are walked each time: who keeps a list, or remembers the mode, misses a layer replaced or a mode set by others since.
    """
    waiting: list[torch.nn.Module | None] = [network]
    for module in waiting:  # grows meanwhile
        if module is None:
            continue
        own = module.__dict__
        if _changes_mode_plainly(type(module)) and "train" not in own:  # type: ignore[arg-type]
            own["training"] = training
            waiting += own["_modules"].values()
        else:
            module.train(training)


@cache
def _changes_mode_plainly(kind: type[torch.nn.Module]) -> bool:
    """Whether `train` of this class does no more than torch's, and attributes are kept where torch keeps them (torch.jit's are not)."""
    return kind.train is torch.nn.Module.train and kind.__setattr__ is torch.nn.Module.__setattr__


@cache
def _has_modes(kind: type[torch.nn.Module]) -> bool:
    """Whether modules of this class do something else while they learn: whether one of its methods reads `training`, or is `train`."""
    methods = [value for base in kind.__mro__ if issubclass(base, torch.nn.Module) and base is not torch.nn.Module for value in vars(base).items()]
    return any(name == "train" or "training" in getattr(getattr(value, "__code__", None), "co_names", ()) for name, value in methods)


def clip_gradients(parameters: list[torch.nn.Parameter], max_norm: float | None) -> float:
    """Scales all gradients by min(1, max_norm / norm), norm over all of them; None: not at all. Returns the norm before."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return 0.0
    norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
    if max_norm is not None and not norm <= max_norm:  # also where it is no number
        torch._foreach_mul_(gradients, max_norm / (norm + 1e-6))
    return norm


def _copied(value: Any) -> Array:
    """An array that shares memory with no tensor outside of inference mode; the caller is in it."""
    if not isinstance(value, torch.Tensor):
        return np.array(value)
    value = value.detach().cpu()
    array: Array = (value if value.is_inference() else value.clone()).numpy()
    return array
