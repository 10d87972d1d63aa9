"""HostPool: the hosts of one vector environment, which run one operation at once, and are made anew where they are lost."""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import cloudpickle

from parl_like.environment.factory import for_elsewhere
from parl_like.envs.vector.columns import ColumnLayout, Columns, Status
from parl_like.envs.vector.group import EnvFailed, GroupOptions, Reply, faults, seed_after
from parl_like.envs.vector.hosts import CLOSE_TIMEOUT, Host
from parl_like.process.child import RestartBudget
from parl_like.process.shared_memory import nameless_file


class HostPool:
    """The hosts of n environments, one for each group.

    Args:
        env_fn: Makes one environment.
        host: Class of the hosts.
        options: One of each group, in the order of their numbers.

    Attributes:
        hosts: One for each group; none after `close`.
        rows: The environments of each. everywhere: the numbers of all hosts, each with no arguments.
        seeds: [n] that the environments were last given; None: none yet.
        generation: How often each host was made anew, as keys of fresh seeds.
        lost: By number, those that a call found lost, and what happened there. They cannot tell of episodes that were dropped, so
            the next step or reset makes them anew.
    """

    def __init__(self, env_fn: Callable[[], Any], host: type[Host], options: Sequence[GroupOptions]) -> None:
        self._options = options[0]
        self._env_fn = _pickled(env_fn) if host.pickles else env_fn
        self._memory = nameless_file("columns") if host.pickles else -1
        self._status = Status(len(options), self._memory)
        self.rows = [slice(one.lo, one.hi) for one in options]
        self.hosts = [host(one, self._status, self._memory) for one in options]
        self.everywhere: dict[int, tuple[Any, ...]] = dict.fromkeys(range(len(options)), ())
        self.seeds: list[int | None] = [None] * self._options.n
        self.lost: dict[int, EnvFailed] = {}
        self._budgets, self.generation = [RestartBudget() for _ in options], [0] * len(options)
        self._bound: tuple[Columns | None] = (None,)
        self._shut = weakref.finalize(self, _shut, self.hosts, os.getpid(), self._memory)

    def start(self) -> list[tuple[Any, ...]]:
        """Start all hosts and make their environments; return what `Group.build` returns of each."""
        for each in self.hosts:
            each.start(0)
        return self.asked("build", dict.fromkeys(self.everywhere, (self._env_fn, None)))

    def bind(self, obs: ColumnLayout, act: ColumnLayout) -> Columns:
        """Return the columns that all environments write from now on."""
        columns = Columns(obs, act, self._options.n, len(self.hosts), self._memory)
        self._bound = (None if self._memory >= 0 else columns,)
        self.asked("bind", dict.fromkeys(self.everywhere, self._bound))
        return columns

    def ask(self, op: str, args: dict[int, tuple[Any, ...]]) -> list[Any]:
        """Run an operation in these hosts (number → arguments) at once; return what those return that are not lost.

        Raises:
            EnvFailed: An environment failed, and is not to be rebuilt or was too often.
        """
        lost, status = self.lost, self._status
        limit = self._options.start_timeout if op == "build" else self._options.step_timeout
        for g, given in args.items():
            if g not in lost:
                status.deadline[g] = time.monotonic() + limit
                self.hosts[g].send(op, *given)
        replies: list[Any] = []
        errors: list[Exception] = []
        for g in args:
            if g in lost:
                continue
            try:
                replies.append(self.hosts[g].receive())
            except EnvFailed as failed:
                if failed.lost:
                    failed.seed = self.seeds[failed.index]
                    lost[g] = failed
                else:
                    errors.append(failed)
            except Exception as error:  # noqa: BLE001 - the other answers are to be taken first, or they would be the next call's
                errors.append(error)
            if errors and op == "build":  # all ends with that, so nobody waits for those that are still being made
                break
        if errors:
            _raise(errors[0])
        return replies

    def asked(self, op: str, args: dict[int, tuple[Any, ...]]) -> list[Any]:
        """`ask` where no host may be lost."""
        replies = self.ask(op, args)
        for failed in self.lost.values():
            _raise(failed)
        return replies

    def run(self, op: str, args: dict[int, tuple[Any, ...]]) -> Reply:
        """Return the notes of a step or reset in these hosts, but for what those have to say that are lost now."""
        notes = Reply({}, {})
        for reply in self.ask(op, args):
            self._note(reply, notes)
        return notes

    def _note(self, reply: Reply | None, notes: Reply) -> None:
        if reply is not None:
            notes.infos.update(reply.infos)
            for i, (text, seed, dropped) in reply.rebuilt.items():
                notes.add_rebuilt(i, text, seed, dropped)
                self.seeds[i] = seed

    def revive(self, g: int, notes: Reply, dropped: list[bool], begins: list[bool], options: dict[str, Any]) -> None:
        """Make a lost host and its environments anew, until it is not lost again.

        Args:
            g: Number of the host. notes: Get what happened to its environments.
            dropped: Of each of its environments, whether an open episode ends with that.
            begins: Whether an episode begins in it now, by a reset with `options`.

        Raises:
            EnvFailed: That is not wanted, or was too often.
        """
        slots, host = self.rows[g], self.hosts[g]
        rows = range(slots.start, slots.stop)
        while (failed := self.lost.pop(g, None)) is not None:
            if not self._options.restart:
                _raise(failed)
            if delay := failed.spend(self._budgets[g]):
                time.sleep(delay)
            self.generation[g] += 1
            for i, was_open in zip(rows, dropped, strict=True):
                with_it = f"environment {i} was lost with environment {failed.index}, whose worker it shared: "
                self.seeds[i] = seed = seed_after(self.seeds[i], i, self.generation[g], 0)
                notes.add_rebuilt(i, f"{'' if i == failed.index else with_it}{failed}", seed, was_open)
            host.start(self.generation[g])
            self.ask("build", {g: (self._env_fn, self.seeds[slots])})
            for reply in self.ask("bind", {g: self._bound}):
                self._note(reply, notes)
            if any(begins):
                for reply in self.ask("reset", {g: ([None] * len(rows), begins, options)}):
                    self._note(reply, notes)

    def give_up(self, g: int) -> NoReturn:
        """Raise the EnvFailed of a lost host."""
        _raise(self.lost.pop(g))

    def kill(self) -> None:
        """End all hosts at once."""
        for host in self.hosts:
            with suppress(Exception):  # the error that is being raised says why; a second one would hide it
                host.kill()

    def close(self) -> None:
        """End all hosts; called once. Environments that raise there are named in a warning."""
        try:
            self._shut()
        finally:  # their memory counts as an open file; views that somebody still holds keep it by themselves
            self.hosts = []
            for name in ("_bound", "_status"):
                self.__dict__.pop(name, None)


def _shut(hosts: list[Host], pid: int, memory: int) -> None:
    """End hosts; also when the vector environment is forgotten, or Python ends. Not in a forked process, whose they are not."""
    if os.getpid() != pid:
        return
    errors = []
    try:
        for host in hosts:  # all close at the same time
            host.status.deadline[host.options.number] = time.monotonic() + CLOSE_TIMEOUT
            host.send("close")
        for host in hosts:
            try:
                host.close()
            except faults() as error:  # the others are to be closed, too
                errors.append(f"environments {host.options.lo} to {host.options.hi - 1} raised in close: "
                              f"{type(error).__name__}: {error}")
    finally:
        for host in hosts:
            host.kill()  # where an interruption left one; else there is nothing to do
        if memory >= 0:
            os.close(memory)
    if errors:
        warnings.warn("; ".join(errors), stacklevel=2)


def _raise(error: Exception) -> NoReturn:
    if isinstance(error, EnvFailed):
        raise error from error.cause
    raise error


def _pickled(env_fn: Callable[[], Any]) -> bytes:
    try:
        return bytes(cloudpickle.dumps(for_elsewhere(env_fn)))
    except Exception as error:
        raise ValueError(f"make_vector_env: the factory {env_fn!r} cannot be sent to a worker process ({type(error).__name__}: "
                         f"{error}); build what it needs inside of it, or use kind='thread'") from error
