"""AlgorithmRunner: how a task calls its algorithm: on which device, in which mode, with or without gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from types import TracebackType

import torch

from parl_like.data.rng import Borrowed
from parl_like.interfaces import Mode
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.array_prediction import ArrayPrediction
from parl_like.learning.device_copy import fetch, send
from parl_like.learning.model import ArrayModel
from parl_like.learning.model_check import check_rows, flat_outputs
from parl_like.learning.module_modes import has_modes, set_mode
from parl_like.learning.optimizer_steps import own_parameters
from parl_like.values.batch import Batch
from parl_like.values.spec import Array


class AlgorithmRunner:
    """An algorithm on its device, and the calls of it.

    Where modules have modes, they are in eval mode but in updates. Else all are in training mode for good, as a fresh module of
    torch is, and no call sets it. Networks that are always in test mode (`Algorithm.always_test`) are in eval mode at all times.

    Args:
        algorithm: Its model has been tried out, so that lazy layers have parameters.
        device: Where its networks are from now on.
        owner: Gives the task's name for messages.
        mode_readers: Classes of modules that read `training` in a prediction.

    Attributes:
        on_arrays: Whether its model is made of NumPy arrays, so that batches are, too.
        has_modes: Whether a module does something else while it learns.
        inference: For predictions under the task's lock: making one would take 1 µs.
        on_rows: Predictions of the algorithm from arrays to arrays, where it has such.
    """

    def __init__(self, algorithm: Algorithm, device: torch.device, owner: Callable[[], str],
                 mode_readers: Collection[type] = ()) -> None:
        self.algorithm, self.device, self.owner = algorithm, device, owner
        networks = algorithm.networks()
        for network in networks.values():
            network.to(device)
        for parameter in own_parameters(algorithm).values():
            parameter.data = parameter.data.to(device)
        self.on_arrays = isinstance(algorithm.model, ArrayModel)
        self.has_modes = has_modes(networks, mode_readers)
        if not self.has_modes:
            self.set_update_modes()
        self._on_cpu = device.type == "cpu"
        self.inference, self.on_rows = torch.inference_mode(), ArrayPrediction(algorithm)

    def sent(self, rows: Mapping[str, Array]) -> Batch:
        """Return rows as the algorithm gets them: tensors on its device, or arrays where the model is made of these."""
        return Batch.nest(rows if self.on_arrays else send(rows, self.device))

    def predict(
        self, algorithm: Algorithm, inputs: Mapping[str, Array], mode: Mode, inference: torch.inference_mode,
        on_rows: ArrayPrediction,
    ) -> dict[str, Array]:
        """Return the outputs of one prediction, flat output name → [N, ...], which share memory with nothing else.

        Args:
            algorithm: The task's, or an acting copy of it, whose lock the caller holds. inference: That lock's. on_rows: The
                algorithm's.
            inputs: Flat field name → [N, ...].
        """
        if (made := on_rows(inputs)) is not None:
            return made
        tensors: Mapping[str, object] = inputs
        if not self.on_arrays:
            tensors = ({name: torch.from_numpy(value) for name, value in inputs.items()} if self._on_cpu
                       else send(inputs, self.device))
        try:
            with inference:
                attributes = algorithm.__dict__  # past `__setattr__`: this is in every prediction
                before, attributes["mode"] = algorithm.mode, mode
                try:
                    if self.has_modes and algorithm is self.algorithm:  # acting copies never learn
                        set_mode(algorithm.networks().values(), False)
                    out = flat_outputs(algorithm.predict(Batch.nest(tensors)))
                finally:
                    attributes["mode"] = before
                # What was not made in here is a view of a parameter (a Gaussian's log_std) or of the inputs (an identity), and
                # both change under the reply: the next optimiser step, the next batch. Copied while the lock holds them still.
                arrays = fetch(out)
        except KeyboardInterrupt:
            with suppress(AttributeError):  # it may have struck as inference mode began or ended; twice does no harm
                inference.__exit__(None, None, None)
            raise
        check_rows(self.owner, arrays, len(next(iter(inputs.values()))))
        return arrays

    def set_update_modes(self) -> None:
        """Put all modules into training mode, but for those of networks that are always in test mode."""
        networks = self.algorithm.networks()
        for learns in (True, False):
            set_mode([part for name, part in networks.items() if (name not in self.algorithm.always_test) is learns], learns)


class UpdateMode:
    """A part of an update: the mode is 'update', modules that have modes are in training mode, and torch keeps gradients,
    whatever the code around it, or that of an agent that waits, has set. Afterwards all is as before.

    It is entered once, with the lock of the parameters held. A `with` of its own takes that, for Ctrl-C may strike in here. (A
    class, and no generator: this is in every optimiser step, and costs a third.)
    """

    __slots__ = ("_runner", "_before", "_lent", "_gradients")

    def __init__(self, runner: AlgorithmRunner) -> None:
        self._runner, self._before = runner, runner.algorithm.mode
        self._lent: torch.Tensor | None = None
        self._gradients = torch.is_grad_enabled()

    def __enter__(self) -> None:
        runner = self._runner
        try:
            runner.algorithm.mode = "update"
            if not self._gradients:
                torch.set_grad_enabled(True)
            if runner.has_modes:
                runner.set_update_modes()
                if runner.device.type == "cpu":
                    # Dropout knows only torch's global generator: it is lent a seed of the task's own one, from which the
                    # algorithm itself goes on drawing, and gets its state back.
                    Borrowed.begun += 1
                    self._lent = torch.get_rng_state()
                    torch.default_generator.manual_seed(
                        int(torch.randint(2**62, (), generator=runner.algorithm.torch_rng)))
        except BaseException:
            self._leave()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leave()

    def _leave(self) -> None:
        runner = self._runner
        runner.algorithm.mode = self._before
        if torch.is_grad_enabled() is not self._gradients:  # also where Ctrl-C struck as a `no_grad` within began or ended
            torch.set_grad_enabled(self._gradients)
        if self._lent is not None:
            torch.set_rng_state(self._lent)
            Borrowed.ended += 1
        if runner.has_modes:
            set_mode(runner.algorithm.networks().values(), False)
