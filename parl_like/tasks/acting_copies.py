"""Acting copies: parameters that predictions use while the task's own are being learned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from parl_like.learning.algorithm import Algorithm
from parl_like.learning.array_prediction import ArrayPrediction
from parl_like.learning.optimizer_steps import own_parameters


class _Copy:
    def __init__(self, algorithm: Algorithm, version: int, lock: threading.Lock) -> None:
        self.algorithm, self.version, self.lock = algorithm, version, lock
        self.inference, self.on_rows = torch.inference_mode(), ArrayPrediction(algorithm)
        self.tensors = tensors_of(acting_state(algorithm))


class ActingCopies:
    """Two copies of an algorithm: predictions use one, new parameters are written into the other, and then the two change places.

    So a prediction never waits for an optimiser step or for the copying, and never sees parameters of two versions. (Where the
    algorithm remembers something of its agents, which only one prediction at a time may change, it waits for the copying.)

    Args:
        first: What predictions use until something is published. The second is its copy.
    """

    def __init__(self, first: Algorithm, version: int) -> None:
        lock = threading.Lock()
        self.front = _Copy(first, version, lock)
        self._back = _Copy(first.acting_copy(), version, lock if first.remembers else threading.Lock())

    @property
    def version(self) -> int:
        """Return the version of the parameters that predictions use."""
        return self.front.version

    def publish(self, tensors: Mapping[tuple[str, str], torch.Tensor], version: int, updates: int,
                whole: Callable[[], bool] = lambda: True) -> None:
        """From now on predictions use these parameters. Called by one thread at a time.

        Args:
            tensors: By network and name, see `tensors_of`.
            updates: `Algorithm.updates` that goes with them.
            whole: Asked when they have been copied: whether they were all of one version; else nothing changes.
        """
        back = self._back
        with back.lock:  # a prediction that began two versions ago may still use it
            if back.tensors:
                with torch.no_grad():
                    torch._foreach_copy_(list(back.tensors.values()), [tensors[key] for key in back.tensors])
            if not whole():
                return
            back.version, back.algorithm.updates = version, updates
        self.front, self._back = back, self.front

    @property
    def tensors(self) -> dict[tuple[str, str], torch.Tensor]:
        """Return the tensors of one of the copies: what `publish` takes."""
        return self.front.tensors


def acting_state(algorithm: Algorithm) -> dict[str, dict[str, Any]]:
    """Return what predictions may use, not copied: state dicts of the networks that act (`Algorithm.acts_with`), and parameters
    that are attributes of the algorithm, such as a temperature."""
    states = {name: {"value": parameter.detach()} for name, parameter in own_parameters(algorithm).items()}
    states |= {name: network.state_dict() for name, network in algorithm.networks().items()}
    names = algorithm.acts_with
    return {name: state for name, state in states.items() if not names or name in names}


def tensors_of(networks: Mapping[str, Mapping[str, object]]) -> dict[tuple[str, str], torch.Tensor]:
    """Every tensor of the networks' state dicts, by network and name."""
    return {(name, key): value for name, state in networks.items() for key,
            value in state.items() if isinstance(value, torch.Tensor)}
