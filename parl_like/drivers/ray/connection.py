"""This process's one connection to Ray; and the code that its actors are sent: recipes of workers, functions that build
algorithms.

Placement and delivery are Ray's, and whoever may connect to a cluster may run code in it; an instance that is started here
listens to this machine alone.
"""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import cloudpickle
import torch

from parl_like.learning.factory import Shared

STORE = 256 << 20
"""Bytes of the object store of a local instance; what does not fit is written to disk by Ray."""

KNOCK_SECONDS = 5.0
"""Seconds in which a cluster has to answer."""


def the_ray() -> Any:
    """The module `ray`.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ImportError("Ray is not installed; pip install 'parl_like[ray]'") from None


@contextmanager
def _loopback() -> Iterator[None]:
    """An instance of Ray that is started meanwhile listens on 127.0.0.1 only.

    Ray has one switch for this, meant for systems whose firewall asks the user about every port. The instance's own processes
    read it from the environment, this one has read it when Ray was imported; clusters need it as it was.
    """
    constants: Any = import_module("ray._private.ray_constants")
    switch = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    before, enabled = os.environ.get(switch), constants.ENABLE_RAY_CLUSTER
    os.environ[switch], constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = enabled
        del os.environ[switch]
        if before is not None:
            os.environ[switch] = before


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Keep the handler of SIGTERM: Ray puts in a handler of its own, which ends the process."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():  # elsewhere Ray has put in none
            signal.signal(signal.SIGTERM, before)


def _join_cluster(address: str) -> None:
    """Connects to a cluster. Where nobody answers, Ray itself would take two minutes, and end the process."""
    try:
        if address != "auto":
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS).close()
        the_ray().init(address=address, logging_level="WARNING")
    except (OSError, ValueError) as error:
        raise ConnectionError(
            f"Ray: there is no cluster at {address} ({error}); start one with `ray start --head --port=6379`, and give the "
            "address "
            "that it prints. If it asks for a token: RAY_AUTH_MODE=token, and its ~/.ray/auth_token, on every machine") from error


class _Connection:
    """This process's one connection to Ray: opened by its first user, closed by its last, unless it was there before."""

    def __init__(self) -> None:
        self.users = 0
        self._ours = self._local = False  # it was made here; to an instance that was started here, too

    def open(self, address: str | None = None, *, num_cpus: int | None = None, num_gpus: int | None = None,
             object_store_memory: int = STORE) -> None:
        """Connects, once: to a cluster, or without an address as this process is connected already, or to a local instance.

        Args:
            num_cpus, num_gpus: What a local instance may use; None: what there is.
            object_store_memory: Its bytes.

        Raises:
            ImportError: Ray is not installed. ConnectionError: there is no cluster at the address.
            ValueError: this process is connected to another cluster.
        """
        ray = the_ray()
        if not self.users:
            self._ours = not ray.is_initialized()
            self._local = self._ours and address is None
        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            with _sigterm_kept():
                if address is not None:
                    _join_cluster(address)
                else:
                    with _loopback():  # 'local': a new instance also where the environment variable RAY_ADDRESS names a cluster
                        ray.init(address="local", include_dashboard=False, logging_level="WARNING", num_cpus=num_cpus,
                                 num_gpus=num_gpus, object_store_memory=object_store_memory)
        elif address not in (None, "auto", here := ray.get_runtime_context().gcs_address):
            raise ValueError(f"Ray: address is {address!r}, but this process is connected to {here}; close what uses that, or "
                             "leave address out")
        self.users += 1

    def cpus(self, asked: float) -> float:
        """Return the CPUs that an actor asks for: in a local instance of ours nothing, for nobody shall wait there."""
        return 0 if self._local else asked

    def close(self) -> None:
        self.users -= 1
        if not self.users and self._ours:
            the_ray().shutdown()


CONNECTION = _Connection()


def said_by_ray(error: BaseException) -> str:
    """Return what Ray says, without its colours."""
    return re.sub(r"\x1b\[\d+m", "", str(error))


def packed(what: str, value: object) -> bytes:
    """Something for another process, with the path of this one's modules, for `unpacked`.

    Raises:
        TypeError: it cannot be pickled, or holds a network that is here.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(value)
    except Exception as error:
        raise TypeError(f"{what} cannot be sent to a Ray actor: {type(error).__name__}: {error}") from error
    return cloudpickle.dumps((sys.path, buffer.getvalue()))  # type: ignore[no-any-return]


def unpacked(payload: bytes) -> Any:
    """Return what `packed` was given; the modules of the sender's path can be imported then."""
    path, value = cloudpickle.loads(payload)
    sys.path += [folder for folder in path if folder not in sys.path]
    return cloudpickle.loads(value)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Refuses networks: a copy of one that others share would learn by itself, unnoticed."""

    def reducer_override(self, obj: object) -> object:
        if isinstance(obj, torch.nn.Module | torch.nn.Parameter):
            raise TypeError(f"it holds a {type(obj).__name__} that is here already; build it inside of the function")
        if isinstance(obj, Shared):
            raise TypeError("it holds a Shared, whose copies would learn each by itself; leave the tasks that share it in the "
                            "robot's process")
        return super().reducer_override(obj)
