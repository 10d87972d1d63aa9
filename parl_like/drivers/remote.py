"""Workers on other machines: the link of the driver `processes` that they come to over tcp, and the program that brings them there.

A session is the life of one remote worker: a number that the robot draws, a `Stream` at each end, and between them two programs.

    robot: ProcessesDriver - RemoteLink  ===== tcp, CURVE =====  join - LocalLink - process of the worker

`join` is all that speaks to the network there. The worker behind it is the same process as on the robot's own machine; it ends with its
session, and the next session has a new one. So a worker that hangs in an environment does not keep `join` from saying that it is
there, and nothing of an old session can come into a new one.

Only data is sent, never code: the robot names its experiment and what configures it, and the other side builds its own.

    worker                                              robot
    HELLO nonce, name, package, schema ''       ->
                                                <-      ORDER 'build' nonce, package, schema; experiment, config
    HELLO nonce, name, package, schema          ->
                                                <-      WELCOME nonce, session; seats, seeds, modes
    (the streams of the session)               <->
    BYE session, why                            ->
                                                <-      BYE session or nonce, what: again | wait | taken | refused | end; why

HELLOs are repeated until they are answered, and answered as often as they come.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import socket as sockets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import zmq
from zmq.utils.monitor import recv_monitor_message

import parl_like
from parl_like.drivers.keys import (
    AllowList,
    Authenticator,
    RareLog,
    SetupError,
    bind,
    client_socket,
    read_keys,
    read_public,
    server_socket,
    user_of,
)
from parl_like.drivers.links import LocalLink
from parl_like.drivers.nursery import readable
from parl_like.drivers.stream import Stream, session_of
from parl_like.drivers.worker import Recipe, TaskCard
from parl_like.spec import Array, Spec, SpecError
from parl_like.wire import (
    ErrorBudget,
    Kind,
    Message,
    VersionError,
    WireError,
    check_rows,
    pack,
    pack_state,
    split,
    unpack,
    unpack_state,
)
from parl_like.wire import join as one_frame

if TYPE_CHECKING:
    from parl_like.computation_wrapper import ComputationWrapper
    from parl_like.drivers.processes import Seat
    from parl_like.robot import Robot

LIVENESS = 3.0
"""Seconds without a sign of life after which a remote worker is lost. Its `join` gives one every second."""
HELLO_EVERY = 0.5
RETRY_EVERY = 1.0
"""Seconds after a refused connection until the next one."""
HANDSHAKE_LIMIT = 1 << 20
"""Bytes of the messages outside of sessions."""
MAX_BYTES = 1 << 28
"""Bytes of one message in a session."""
AT_ONCE = 1000
"""Messages that are taken in before other things have their turn; each peer gets its share of them."""

_log = logging.getLogger("parl_like.remote")


def schema_of(tasks: Mapping[str, Any]) -> str:
    """What must be equal on both sides: names of the tasks, and of each the names, shapes and dtypes of what is asked and answered.

    Args:
        tasks: Name -> `ComputationTask`.

    Returns:
        16 characters.
    """
    def row(spec: Spec) -> list[Any]:
        return [spec.name, list(spec.shape), spec.dtype.str]

    plain = {}
    for name, task in tasks.items():
        model = task.algorithm.model
        plain[name] = [[row(spec) for spec in specs.values()] for specs in (model.inputs(), model.act_specs)]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


# ------------------------------------------------------------------------------------------------- what a worker may say

_NOTES: dict[str, type] = {
    "turn": int, "steps": int, "time": int, "stop": bool, "paused": bool, "bad": int, "late": bool, "n": int, "learner": bool, "pid": int, "answer": int, "agent": int, "type": str, "again": bool,
}
_EVENTS = {
    "parked": "<i4", "alive": "<i4", "steps": "<i8", "episode.agent": "<i4", "episode.env": "<i4", "episode.return": "<f8", "episode.length": "<i8",
    "count.return": "<f8", "count.length": "<i8",
}


def check_said(message: Message, agents: Sequence[Any], sent: int, wrappers: Mapping[str, ComputationWrapper]) -> None:
    """Holds what a remote worker says against what it can have to say: the driver takes what its own workers say for granted.

    Args:
        agents: Those of its seat.
        sent: Messages that it was sent.
        wrappers: Name of a task -> the robot's own end of it.

    Raises:
        WireError: another kind, task, agent, field, shape or number than there is; NaN; an integer out of bounds.
    """
    arrays, notes, kind = message.arrays, message.notes, message.kind
    for key, value in notes.items():
        expected = int if key.startswith(("late.", "served.")) else _NOTES.get(key)
        if type(value) is not expected or (expected is int and int(value) < -(key == "agent")):  # type: ignore[arg-type]
            raise _refusal("notes", f"{', '.join(_NOTES)} of their types", f"{key!r:.60}: {value!r:.60}")
    _expect(("steps" in notes) == ("time" in notes), "notes", "steps and time together", "one of them")
    _expect(int(notes.get("turn", 0)) <= sent, "notes", f"a turn up to {sent}", notes.get("turn"))  # type: ignore[arg-type]
    if kind is Kind.HELLO:
        _expect(not arrays, "fields", "none", ", ".join(arrays))
    elif kind in (Kind.PREDICT, Kind.LEARN):
        _expect(1 <= int(notes.get("n", 0)) <= min(len(agents), message.rows), "notes", f"n, of up to {len(agents)} agents and as many rows", notes.get("n"))  # type: ignore[arg-type]
        wrapper = wrappers.get(message.task)
        if wrapper is None:
            raise _refusal("task", ", ".join(wrappers), f"{message.task!r:.60}")
        if kind is Kind.PREDICT:
            check_rows(message, wrapper.request_specs)
        else:
            _check_lesson(message, wrapper.task.algorithm.model)
    elif kind is Kind.EVENT:
        _check_events(arrays, agents)
    elif kind is Kind.FAILED:
        fits = {"agent", "type", "again"} <= notes.keys() and (notes["agent"] == -1 or notes["agent"] in {agent.index for agent in agents})
        _expect(fits, "notes", "agent, type and again", "others")
        _expect(set(arrays) == {"text", "trace"} and all(a.ndim == 1 and a.dtype == np.uint8 for a in arrays.values()), "fields", "text and trace", list(arrays))
    elif kind is Kind.STATE:
        unpack_state(arrays)
    else:
        raise _refusal("kind", "what workers say", kind.name)


def _check_lesson(message: Message, model: Any) -> None:
    """Rows to learn from: their fields are the helpers' choice, but where the model knows a field, what it says of it holds."""
    specs: dict[str, Spec] = {**model.inputs(), **model.act_specs}
    _expect(bool(message.arrays), "fields", "at least one", "none")
    for name, array in message.arrays.items():
        _expect(array.ndim > 0 and len(array) == message.rows, "rows", f"{message.rows} rows of {name!r}", array.shape)
        _expect(array.dtype.kind != "f" or not np.isnan(array).any(), "values", f"numbers in {name!r}", "NaN")
        _expect(name.partition(".")[0] != "rew" or bool(np.isfinite(array).all()), "values", f"finite numbers in {name!r}", "an infinite one")
        spec = specs.get(name.replace("obs_next", "obs", 1))
        if spec is not None and array.dtype.kind == spec.dtype.kind:
            n = len(spec.shape)
            _expect(array.ndim > n and array.shape[array.ndim - n :] == spec.shape, "rows", f"(N, …, {spec.shape}) for {name!r}", array.shape)
            try:
                spec.check_bounds(array.reshape(-1, *spec.shape))
            except SpecError as error:
                raise _refusal("values", f"{name!r} in its bounds", error) from None


def _check_events(arrays: Mapping[str, Array], agents: Sequence[Any]) -> None:
    for name, array in arrays.items():
        _expect(name in _EVENTS, "fields", ", ".join(_EVENTS), f"{name!r:.60}")
        fits = array.dtype.str == _EVENTS[name] and (array.ndim == 1 or (array.ndim == 2 and name.endswith("return")))
        _expect(fits, "rows", f"a row of {_EVENTS[name]} for {name!r}", f"{array.shape} {array.dtype.str}")
    groups = [["parked"], ["alive"], ["steps"], [name for name in _EVENTS if "episode." in name], [name for name in _EVENTS if "count." in name]]
    for group in groups:
        there = [arrays[name] for name in group if name in arrays]
        _expect(not there or (len(there) == len(group) and len({len(array) for array in there}) == 1), "fields", f"{', '.join(group)} of one length", "others")
    _expect(("parked" in arrays) == ("alive" in arrays), "fields", "parked and alive together", "one of them")
    _expect(len(arrays.get("steps", agents)) == len(agents), "rows", f"steps of {len(agents)} agents", "of others")
    indices = {agent.index for agent in agents}
    for name in ("parked", "alive", "episode.agent"):
        _expect(name not in arrays or set(arrays[name].tolist()) <= indices, "values", f"the seat's own agents in {name!r}", "others")
    for name in ("episode.return", "count.return"):
        _expect(name not in arrays or bool(np.isfinite(arrays[name]).all()), "values", f"finite numbers in {name!r}", "others")


def _expect(holds: bool, cause: str, expected: str, got: object) -> None:
    if not holds:
        raise _refusal(cause, expected, got)


def _refusal(cause: str, expected: str, got: object) -> WireError:
    error = WireError(f"{cause}: expected {expected}, got {got}; send what a worker of this version of parl_like sends")
    error.cause = cause
    return error


# ------------------------------------------------------------------------------------------------------------ the robot's side


@dataclass
class _Peer:
    """A session, as the robot sees it."""

    name: str
    user: bytes  # the key that it has proved to have
    route: bytes  # where its last message came from
    nonce: int
    seat: Seat
    stream: Stream
    welcome: list[Any]
    up: bool = False  # its worker has said something
    over: str = ""  # why, once it is

    def __str__(self) -> str:
        return f"remote worker {self.name!r}"


class RemoteLink:
    """See `parl_like.drivers.links.Link`. One serves all seats whose workers come from elsewhere.

    Args:
        address: Where to listen, `tcp://HOST:PORT`; see `self.address` for the port that `*` has become.
        wrappers: Gives the robot's ends of its tasks, by name, once they are there.
        key, allow: File of the robot's secret key, and folder of the public keys of those who may come. Without both, only
            addresses of this machine, and anyone there may come.
        origin: Tells, when a worker asks, what it is to build: the name of a registered experiment, and plain values; None: workers bring
            their robot's file.
        max_bytes: Of a message.
    """

    folder = ""

    def __init__(
        self, address: str, wrappers: Callable[[], Mapping[str, ComputationWrapper]], *, key: str | Path | None = None, allow: str | Path | None = None,
        origin: Callable[[], tuple[str, Mapping[str, Any]] | None] = lambda: None, max_bytes: int = MAX_BYTES, clock: Callable[[], float] = monotonic,
    ) -> None:
        self.listen = self.address = address
        self._wrappers, self._key, self._allow = wrappers, key, allow
        self._origin = origin
        self._max_bytes, self._clock = max_bytes, clock
        self._waiting: dict[Seat, Recipe] = {}
        self._peers: dict[Seat, _Peer] = {}

    def open(self) -> None:
        if (self._key is None) != (self._allow is None):
            raise SetupError(f"to listen at {self.listen}: expected a key and a folder of allowed keys, got one of them only; give both, or none and tcp://127.0.0.1:PORT")
        keys = None if self._key is None else read_keys(self._key)
        self._allowed = None if self._allow is None else AllowList(self._allow)
        self._authenticator: Authenticator | None = None
        self._sessions: dict[int, _Peer] = {}
        self._routes: dict[str, bytes] = {}  # of all who have been answered, for the last word
        self._held: list[tuple[Seat, list[Any]]] = []
        self._budget = ErrorBudget()
        self._rare = RareLog()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._socket = server_socket(self._context, self.listen, keys, self._max_bytes)
            if self._allowed is not None:
                self._authenticator = Authenticator(self._context, self._allowed, self._socket)
            self.address = bind(self._socket, self.listen)
        except BaseException:
            self._close_sockets(0)
            raise
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        _log.info("remote workers may come to %s", self.address)

    # ------------------------------------------------------------------------------------------------------ for the driver

    def begin(self, seat: Seat, recipe: Recipe) -> None:
        self._waiting[seat] = recipe

    def has_begun(self, seat: Seat) -> bool:
        return seat in self._peers

    def send(self, seat: Seat, frames: list[Any]) -> None:
        peer = self._peers.get(seat)
        if peer is not None and not peer.over:
            peer.stream.acknowledge()
            self._put(peer.route, peer.stream.send(frames))

    def receive(self) -> Sequence[tuple[Seat, list[Any]]]:
        # What was returned at the last call is in the robot's hands.
        for peer in self._peers.values():
            peer.stream.acknowledge()
            for frames in peer.stream.due():
                self._put(peer.route, frames)
        self._take_in()
        out, self._held = self._held, []
        return out

    def descriptors(self) -> Sequence[int]:
        return [self._descriptor]

    def ended(self) -> Sequence[tuple[Seat, str]]:
        for peer in self._peers.values():
            # Where nobody is up yet a process is being made, and the driver's start_limit counts.
            if not peer.over and peer.up and peer.stream.silent > LIVENESS:
                peer.over = f"was not heard for {LIVENESS:g} s"
            elif not peer.over and self._name(peer.user, peer.name) is None:
                peer.over = "has a key that is not allowed any more"
                self._bye(peer.route, "refused", peer.over, session=peer.stream.session)
        return [(seat, f"({peer}) {peer.over}") for seat, peer in self._peers.items() if peer.over]

    def kill(self, seat: Seat) -> None:
        peer = self._peers.get(seat)
        if peer is not None:
            self._bye(peer.route, "again", "the robot has given it up", session=peer.stream.session)

    def wait(self, seat: Seat, seconds: float) -> bool:
        end = self._clock() + seconds
        while (peer := self._peers.get(seat)) is not None and not peer.over:
            left = end - self._clock()
            if left <= 0:
                return False
            self._held = list(self.receive())  # for the next call
            self._socket.poll(int(min(left, 0.05) * 1000))
        return True

    def forget(self, seat: Seat) -> None:
        self._waiting.pop(seat, None)
        peer = self._peers.pop(seat, None)
        if peer is not None:
            self._sessions.pop(peer.stream.session, None)
            self._held = [(other, frames) for other, frames in self._held if other is not seat]

    def memory(self, seat: Seat) -> int:
        return 0

    def rows(self, seat: Seat, specs: Sequence[Spec], block: tuple[int, int], n: int) -> dict[str, Array]:
        raise WireError("rows in shared memory, from a worker that shares none")

    def close(self) -> None:
        for name, route in self._routes.items():
            self._bye(route, "end", f"the robot has ended, {name!r} is not needed any more")
        self._close_sockets(500)

    def _close_sockets(self, linger: int) -> None:
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.destroy(linger=linger)

    # ---------------------------------------------------------------------------------------------------------------- inside

    def _take_in(self) -> None:
        for _ in range(AT_ONCE):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            user = user_of(frames[-1])
            route, *body = (frame.bytes for frame in frames)
            self._hear(route, user, body)

    def _name(self, user: bytes, said: str) -> str | None:
        """Who that is: by the key that it has proved to have, as the folder is now; or, where no keys are asked for, who it says it is."""
        return said if self._allowed is None else self._allowed.name_of(user)

    def _hear(self, route: bytes, user: bytes, frames: list[bytes]) -> None:
        name = self._name(user, "")
        if name is None:
            self._rare("revoked", f"a message was dropped: the key {user.decode()!r} is not allowed any more")
            return
        try:
            session = session_of(frames)
            if session is None:
                self._answer(route, user, unpack(split(frames), HANDSHAKE_LIMIT))
                return
            peer = self._sessions.get(session)
            if peer is None or peer.user != user or peer.over:
                self._bye(route, "again", "there is no such session (any more)", session=session)
                return
            if peer.route != route:  # its connection was broken and made again
                peer.route = self._routes[peer.name] = route
                peer.stream.remade()
            for message in peer.stream.receive(frames):
                try:
                    check_said(unpack(split(message), self._max_bytes), peer.seat.agents, peer.seat.sent, self._wrappers())
                except WireError as error:
                    # Its agents would wait for an answer for ever, so the session is over; after ten of these its worker may not come again.
                    self._budget.spend(peer.name, error)
                    peer.over = f"sent a message that cannot be used: {error}"
                    self._bye(route, "again", peer.over, session=session)
                    return
                peer.up = True
                self._held.append((peer.seat, message))
        except VersionError as error:
            self._rare("version", f"a worker was refused: {error}")
            self._bye(route, "refused", str(error))  # of our version, which it will not read either, but understand
        except WireError as error:
            self._bad(route, name, error)

    def _bad(self, route: bytes, name: str, error: WireError) -> None:
        peer = next((peer for peer in self._peers.values() if peer.route == route), None)
        if self._budget.spend(name or (peer.name if peer else "someone"), error) and peer is not None:
            peer.over = f"sent {self._budget.limit} messages that cannot be what they should be, the last one: {error}"
            self._bye(peer.route, "refused", peer.over, session=peer.stream.session)

    def _answer(self, route: bytes, user: bytes, message: Message) -> None:
        """To a message outside of a session."""
        notes = message.notes
        if message.kind is Kind.BYE:
            peer = self._sessions.get(_whole(notes, "session"))
            if peer is not None and peer.user == user:
                peer.over = peer.over or f"ended: {str(notes.get('why', ''))[:500]}"
            return
        if message.kind is not Kind.HELLO:
            raise _refusal("kind", "HELLO, BYE or a stream's frames", message.kind.name)
        nonce, package, schema = _whole(notes, "nonce"), str(notes.get("package"))[:50], str(notes.get("schema"))[:50]
        name = self._name(user, str(notes.get("name"))[:100])
        assert name is not None  # else it would not be heard
        self._routes[name] = route
        wrappers = self._wrappers()
        mine = schema_of({task: wrapper.task for task, wrapper in wrappers.items()})
        peer = next((peer for peer in self._peers.values() if peer.name == name), None)
        if package != parl_like.__version__:
            self._refuse(route, nonce, f"{name!r} has parl_like {package}, the robot {parl_like.__version__}; install the same on both sides")
        elif self._budget.counts.get(name, 0) >= self._budget.limit:
            self._refuse(route, nonce, f"{name!r} has sent {self._budget.limit} bad messages; look for the reason, and start the robot again")
        elif not schema:
            experiment, config = self._origin() or (None, {})
            about = {"experiment": experiment, "config": dict(config)}
            self._put(route, one_frame(pack(Kind.ORDER, arrays=pack_state(about), notes={"order": "build", "nonce": nonce, "package": package, "schema": mine})))
        elif schema != mine:
            self._refuse(route, nonce, f"{name!r} has tasks and fields with the schema {schema}, the robot {mine}; give both the same robot and configuration")
        elif peer is not None and peer.nonce == nonce:
            self._put(route, peer.welcome)  # the first one was lost
        elif peer is not None:
            self._bye(route, "taken", f"a worker of the name {name!r} is here already", nonce=nonce)
        elif not self._waiting:
            self._bye(route, "wait", "no seat is free", nonce=nonce)
        else:
            self._register(route, user, name, nonce, mine)

    def _register(self, route: bytes, user: bytes, name: str, nonce: int, schema: str) -> None:
        seat = next(iter(self._waiting))
        recipe = self._waiting.pop(seat)
        session = secrets.randbits(62)
        told = {
            "worker": recipe.worker, "incarnation": recipe.incarnation, "label": recipe.label, "mode": recipe.mode, "sync": recipe.sync,
            "seats": recipe.seats, "seed": recipe.seed, "trace": recipe.trace, "agent_restarts": recipe.agent_restarts,
            "tasks": {task: [card.version, card.learns] for task, card in recipe.tasks.items()},
        }
        notes: dict[str, Any] = {"session": session, "nonce": nonce, "package": parl_like.__version__, "schema": schema}
        welcome = one_frame(pack(Kind.WELCOME, arrays=pack_state(told), notes=notes))
        peer = _Peer(name, user, route, nonce, seat, Stream(session, self._clock), welcome)
        self._peers[seat] = self._sessions[session] = peer
        seat.heard = monotonic()  # the driver's start_limit counts from now, however long the seat was free
        _log.info("%s takes the seat of %s", peer, seat)
        self._put(route, peer.welcome)

    def _refuse(self, route: bytes, nonce: int, why: str) -> None:
        self._rare("refused", f"a worker was refused: {why}")
        self._bye(route, "refused", why, nonce=nonce)

    def _bye(self, route: bytes, what: str, why: str, session: int = 0, nonce: int = 0) -> None:
        self._put(route, one_frame(pack(Kind.BYE, notes={"what": what, "why": why[:1000], "session": session, "nonce": nonce})))

    def _put(self, route: bytes, frames: list[Any]) -> None:
        # Nobody at the other end any more, or one who does not read: what matters is sent again.
        with suppress(zmq.Again):
            try:
                self._socket.send_multipart([route, *frames], zmq.NOBLOCK, copy=False)
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise


def _whole(notes: Mapping[str, Any], name: str) -> int:
    value = notes.get(name)
    if type(value) is not int or value < 0:
        raise _refusal("notes", f"a number {name!r}", f"{value!r:.60}")
    return value


# ----------------------------------------------------------------------------------------------------------- the worker's side


class JoinError(RuntimeError):
    """There is no robot to work for, or it does not want this worker. One line."""


class _Over(Exception):
    """The robot has ended."""


class _LocalSeat:
    """What a `LocalLink` asks of a seat."""

    def __init__(self, identity: bytes) -> None:
        self.identity = identity


def join(
    address: str, build: Callable[[str | None, dict[str, Any]], Robot], *, key: str | Path | None = None, server: str | Path | None = None,
    name: str = "", patience: float = 60.0, local: Callable[[], Any] = LocalLink,
) -> None:
    """Works for the robot at `address`, session after session, until it has ended.

    Args:
        build: Makes the robot from the name of its experiment and its configuration, which are the robot's word: look the name up, and
            import nothing by it. What is needed of it is its environments, its agents and its tasks' descriptions; it is closed, and never run.
        key, server: File of this worker's secret key, and of the robot's public one; without both only an address of this machine.
        name: Where there are no keys, by which it would be known.
        patience: Seconds that it goes on without a robot, or with one that knows another worker of this name.
        local: Makes the link to the worker's own process.

    Raises:
        SetupError: a key or an address that cannot be used.
        JoinError: there is no robot, or it refuses this worker.
    """
    keys = None if key is None else read_keys(key)
    client = _Client(address, build, patience, local)
    client.connect(keys, None if server is None else read_public(server), keys.name if keys is not None else name or sockets.gethostname())
    try:
        while True:
            session, recipe = client.register()
            client.work(session, recipe)
    except _Over:
        return
    except WireError as error:
        raise JoinError(f"the robot at {address} cannot be understood: {error}") from None
    finally:
        client.close()


class _Client:
    def __init__(self, address: str, build: Callable[[str | None, dict[str, Any]], Robot], patience: float, local: Callable[[], Any]) -> None:
        self.address, self.build, self.patience, self._local = address, build, patience, local
        self.session = self.nonce = 0
        self.built: tuple[Any, Recipe] | None = None  # what it was built from, and a recipe without the seat
        self.schema = ""
        self.connected = False
        self.trouble = ""  # what was last heard of the connection, or why there is no seat
        self.turned_away = False
        self.retry_at = inf
        self.well = monotonic()  # when there last was a robot

    def connect(self, keys: Any, server: bytes | None, name: str) -> None:
        self.name = name
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self.socket = client_socket(self.context, self.address, keys, server)
        except BaseException:
            self.context.destroy(linger=0)
            raise
        event = zmq.Event
        self.monitor = self.socket.get_monitor_socket(
            event.HANDSHAKE_SUCCEEDED | event.DISCONNECTED | event.HANDSHAKE_FAILED_AUTH | event.HANDSHAKE_FAILED_PROTOCOL | event.HANDSHAKE_FAILED_NO_DETAIL)
        self.socket.connect(self.address)
        self.descriptors = [int(self.socket.getsockopt(zmq.FD)), int(self.monitor.getsockopt(zmq.FD))]

    def close(self) -> None:
        self.socket.disable_monitor()
        self.context.destroy(linger=500)

    # ------------------------------------------------------------------------------------------------------------ a session

    def register(self) -> tuple[int, Recipe]:
        """Asks for a seat until there is one."""
        self.session, self.nonce, self.schema = 0, secrets.randbits(62), ""
        next_hello = 0.0
        while True:
            if monotonic() >= next_hello:
                next_hello = monotonic() + HELLO_EVERY
                self._say(Kind.HELLO, nonce=self.nonce, name=self.name, package=parl_like.__version__, schema=self.schema)
            messages = self.hear()
            for message in messages:
                if not isinstance(message, Message) or message.notes.get("nonce") != self.nonce:
                    continue
                self.turned_away, next_hello = False, 0.0
                if message.kind is Kind.ORDER and not self.schema:
                    self._build(message)
                elif message.kind is Kind.WELCOME:
                    return self._welcome(message)
            if not messages:
                self.wait([])

    def work(self, session: int, recipe: Recipe) -> None:
        """Carries messages between the robot and a new process, until one of them ends the session."""
        self.session = session
        stream, seat, link = Stream(session), _LocalSeat(recipe.identity), self._local()
        how, until = "", 0.0  # how the process ended, and how long what it said last may take to arrive
        link.open()
        try:
            link.begin(seat, recipe)
            try:
                while self.session:
                    moved = False
                    for frames in stream.due():
                        self._put(frames)
                    for frames in self.hear():
                        if not isinstance(frames, Message):
                            moved = True
                            for message in stream.receive(frames):
                                if not how:
                                    link.send(seat, message)
                    stream.acknowledge()
                    for _, message in link.receive():
                        moved = True
                        self._put(stream.send(message))
                    if not how and (ended := link.ended()):
                        how, until, moved = ended[0][1], monotonic() + LIVENESS, True
                    if how and not moved and (not stream.unacknowledged or monotonic() > until):
                        self.session = 0
                    elif not moved:
                        self.wait([] if how else link.descriptors())
            finally:
                self._say(Kind.BYE, session=session, why=how or "its program was ended")
                if not how:
                    link.kill(seat)
                link.forget(seat)
        finally:
            link.close()

    def _build(self, message: Message) -> None:
        about = unpack_state(message.arrays)
        if self.built is None or self.built[0] != about:
            with self.build(about["experiment"], about["config"]) as robot:
                cards = {name: TaskCard(task) for name, task in robot.tasks.items()}
                recipe = Recipe(0, 0, cards, robot._env, robot._make_agent, "", "collect", False, [], (0, ()), False, 0)
                self.built, self._built_schema = (about, recipe), schema_of(robot.tasks)
        self.schema = self._built_schema

    def _welcome(self, message: Message) -> tuple[int, Recipe]:
        notes = message.notes
        if notes["schema"] != self.schema:
            raise JoinError(f"the robot has tasks and fields with the schema {notes['schema']}, this worker {self.schema}; give both the same robot and configuration")
        assert self.built is not None
        told, recipe = unpack_state(message.arrays), self.built[1]
        for task, (version, learns) in told["tasks"].items():
            recipe.tasks[task].version, recipe.tasks[task].learns = version, learns
        for name in ("worker", "incarnation", "label", "mode", "sync", "trace", "agent_restarts"):
            setattr(recipe, name, told[name])
        recipe.seats = [(index, entropy, tuple(path)) for index, entropy, path in told["seats"]]
        recipe.seed = told["seed"][0], tuple(told["seed"][1])
        _log.info("%r is worker %d of the robot at %s, with %d agents", self.name, recipe.worker, self.address, len(recipe.seats))
        return int(notes["session"]), recipe  # type: ignore[arg-type]

    # ------------------------------------------------------------------------------------------------------------- messages

    def _say(self, kind: Kind, **notes: Any) -> None:
        self._put(one_frame(pack(kind, notes=notes)))

    def _put(self, frames: list[Any]) -> None:
        with suppress(zmq.Again):  # the robot does not read, or is not there; what matters is sent again
            self.socket.send_multipart(frames, zmq.NOBLOCK, copy=False)

    def hear(self) -> list[Any]:
        """What has come: frames of the session's stream, and messages outside of it; those that end the session have done so."""
        out: list[Any] = []
        self._watch()
        for _ in range(AT_ONCE):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if session_of(frames) is not None:
                out.append(frames)
                continue
            message = unpack(split(frames), HANDSHAKE_LIMIT)
            if message.kind is Kind.BYE:
                self._bye(message.notes)
            else:
                out.append(message)
        return out

    def _bye(self, notes: Mapping[str, Any]) -> None:
        what, why = notes.get("what"), str(notes.get("why"))
        if what == "end":
            _log.info("%s", why)
            raise _Over
        if notes.get("session") != self.session and notes.get("nonce") != self.nonce:  # of an earlier one
            return
        if what == "refused":
            raise JoinError(f"the robot at {self.address} refuses this worker: {why}")
        if what in ("wait", "taken"):
            if why != self.trouble:
                _log.warning("waiting: %s", why)
            self.trouble, self.turned_away = why, what == "taken"
        elif self.session:
            _log.warning("the session is over (%s); registering anew", why)
            self.session = 0

    def _watch(self) -> None:
        """What has happened to the connection; whether there still is a robot."""
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)["event"]
            self.connected = event == zmq.Event.HANDSHAKE_SUCCEEDED
            if self.connected:
                self.trouble, self.retry_at = "", inf
            elif event != zmq.Event.DISCONNECTED:
                known = event != zmq.Event.HANDSHAKE_FAILED_AUTH
                self.trouble = "the keys do not fit, or that is no robot" if known else "the robot does not know this worker's key"
                self.retry_at = monotonic() + RETRY_EVERY
        if monotonic() >= self.retry_at:  # ZeroMQ itself gives up after a handshake that failed
            self.retry_at = inf
            with suppress(zmq.ZMQError):
                self.socket.disconnect(self.address)
            self.socket.connect(self.address)
        if self.connected and not self.turned_away:
            self.well = monotonic()
        elif monotonic() - self.well > self.patience:
            raise JoinError(f"no robot to work for at {self.address} for {self.patience:g} s{f': {self.trouble}' if self.trouble else ''}")

    def wait(self, descriptors: Sequence[int]) -> None:
        """For the next message, from wherever; for a short while, since streams have things to do."""
        readable([*self.descriptors, *descriptors], 0.05)
