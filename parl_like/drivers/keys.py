"""Who may talk to a robot over a network: key pairs in files, the list of those allowed, and the sockets that ask for them.

A pair is two files, `NAME.secret` (mode 0600; stays where it was made) and `NAME.public` (to be given away). The robot's allow-list is
a folder of public files: who is in it may come, under the file's name, and who is taken out of it is no longer served. The transport is
ZeroMQ's CURVE, which hides what is sent and proves who sent it.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

DOMAIN = "parl_like"
RELOAD = 0.5
"""Seconds for which the allow-list is taken to be as it was read."""
BUDGET = 64 << 20
"""Bytes that may wait in one direction of a peer's connection, where messages are as large as they may be."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}")
_FILE_LIMIT = 4096
_ADDRESS = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.\-]+|\*):([0-9]{1,5}|\*)")
_log = logging.getLogger("parl_like.remote")


class SetupError(ValueError):
    """A key, a folder or an address that cannot be used. One line, with what to do about it."""


class RareLog:
    """Warnings, at most one per second of each cause, so that nobody can fill a log. For one thread."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}
        self._held: dict[str, int] = {}

    def __call__(self, cause: str, text: str) -> None:
        """
        Args:
            cause: One of a few words; nothing of a peer's choice.
        """
        now = self._clock()
        if now - self._last.get(cause, -1.0) < 1.0:
            self._held[cause] = self._held.get(cause, 0) + 1
            return
        self._last[cause] = now
        held = self._held.pop(cause, 0)
        _log.warning("%s%s", text, f" ({held} more of this sort were not logged)" if held else "")


# ----------------------------------------------------------------------------------------------------------------------- files


class Keys(NamedTuple):
    """A key pair. `public` and `secret` are 40 characters (Z85), as ZeroMQ takes them."""

    name: str
    public: bytes
    secret: bytes

    def __repr__(self) -> str:  # the secret is not for logs
        return f"Keys({self.name!r}, {self.public.decode()})"


def make_keys(folder: str | Path, name: str) -> tuple[Path, Path]:
    """Writes a new pair.

    Returns:
        The secret and the public file. Give the public one to the other side.

    Raises:
        SetupError: a name that cannot be a file's, files that exist already, a folder that cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise SetupError(f"name of a key: expected 1 … 64 letters, digits, '_', '.' and '-', got {name!r:.80}")
    folder = Path(folder)
    secret, public = folder / f"{name}.secret", folder / f"{name}.public"
    public_key, secret_key = (key.decode() for key in zmq.curve_keypair())
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in (secret, public):
            if path.exists():
                raise SetupError(f"{path}: there is such a key already; choose another name, or remove both of its files first")
        _write_new(secret, f"# Secret key of {name!r} for parl-like. Keep it where only you can read it.\npublic {public_key}\nsecret {secret_key}\n", 0o600)
        _write_new(public, f"# Public key of {name!r} for parl-like. Whoever lists it lets {name!r} in.\npublic {public_key}\n", 0o644)
    except OSError as error:
        raise SetupError(f"{folder}: the keys cannot be written: {error.strerror or error}") from None
    return secret, public


def read_keys(path: str | Path) -> Keys:
    """The pair of a secret file; its name is the file's.

    Raises:
        SetupError: no such file, one that others than its owner may read, or no key in it.
    """
    path = Path(path)
    found, mode = _read(path)
    if mode & 0o077:
        raise SetupError(f"{path}: others may read this secret key (mode {mode:04o}); expected mode 0600: chmod 600 {path}, or make a new pair if they might have")
    public, secret = _key(path, found, "public"), _key(path, found, "secret")
    if zmq.curve_public(secret) != public:
        raise SetupError(f"{path}: its public key does not belong to its secret one; make a new pair with `parl-like keys NAME`")
    return Keys(path.stem, public, secret)


def read_public(path: str | Path) -> bytes:
    """The key of a public file.

    Raises:
        SetupError: no such file, or no key in it.
    """
    path = Path(path)
    return _key(path, _read(path)[0], "public")


def _write_new(path: Path, text: str, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)


def _read(path: Path) -> tuple[dict[str, bytes], int]:
    """The words of a key file, and its mode, both of the same file."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(_FILE_LIMIT)
    except OSError as error:
        raise SetupError(f"{path}: the key cannot be read: {error.strerror or error}; make a pair with `parl-like keys NAME`") from None
    lines = [line.split() for line in text.splitlines() if not line.startswith(b"#")]
    return {words[0].decode(errors="replace"): words[1] for words in lines if len(words) == 2}, mode


def _key(path: Path, found: dict[str, bytes], which: str) -> bytes:
    key = found.get(which, b"")
    try:
        if len(key) == 40 and z85.decode(key):
            return key
    except (ValueError, KeyError, struct.error):
        pass
    raise SetupError(f"{path}: expected a line '{which}' and 40 characters, got {'another one' if key else 'none'}; make a pair with `parl-like keys NAME`")


# ------------------------------------------------------------------------------------------------------------------ who may come


class AllowList:
    """The public keys of a folder, read anew every half second. Threads may share it.

    Args:
        folder: With files `NAME.public`. Others are not looked at, and a damaged one lets nobody in.

    Raises:
        SetupError: no such folder.
    """

    def __init__(self, folder: str | Path, clock: Callable[[], float] = monotonic) -> None:
        self.folder = Path(folder)
        self._clock = clock
        self._lock = threading.Lock()
        self._rare = RareLog(clock)
        self._names: dict[bytes, str] = {}
        self._read_at = -RELOAD
        if not self.folder.is_dir():
            raise SetupError(f"{self.folder}: expected a folder with the public keys of those who may come; make it, and copy their NAME.public files there")
        if not self.names():
            _log.warning("%s holds no public key, so nobody may come yet", self.folder)

    def name_of(self, key: bytes) -> str | None:
        """Who has this public key (40 characters), by the folder as it is now; None: nobody who may come."""
        return self._load().get(key)

    def names(self) -> list[str]:
        return sorted(self._load().values())

    def _load(self) -> dict[bytes, str]:
        with self._lock:
            now = self._clock()
            if now - self._read_at >= RELOAD:
                names = {}
                for path in sorted(self.folder.glob("*.public")):  # none, where the folder is gone
                    try:
                        names[read_public(path)] = path.stem
                    except SetupError as error:
                        self._rare("allow-list", str(error))
                self._names, self._read_at = names, now
            return self._names


class Authenticator:
    """Answers libzmq's question whether a peer may connect (ZAP): only with CURVE, in our domain, and with a key of the list.

    The key becomes the peer's user id, which comes with each of its messages and which it cannot choose; see `user_of`. It has a
    thread of its own, so that peers can connect while the robot learns.

    Args:
        context: Of the sockets that it is for; only one at a time.
        server: The socket whose failed handshakes are logged.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], allowed: AllowList, server: zmq.Socket[bytes]) -> None:
        self.allowed = allowed
        self.refused = 0  # peers whose key was not taken, of which there may be many
        self._questions = context.socket(zmq.REP)
        self._questions.linger = 0
        self._questions.bind("inproc://zeromq.zap.01")
        self._failures = server.get_monitor_socket(zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL)
        self._rare = RareLog()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="parl_like keys", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._questions, zmq.POLLIN)
        poller.register(self._failures, zmq.POLLIN)
        while not self._stopping.is_set():
            for socket, _ in poller.poll(100):
                if socket is self._questions:
                    self._answer(self._questions.recv_multipart())
                else:
                    recv_monitor_message(self._failures)
                    self._rare("handshake", "a peer was refused: it showed no key, or speaks something else")
        self._questions.close()

    def _answer(self, question: list[bytes]) -> None:
        version, request, domain, address, _, mechanism, *credentials = question  # libzmq's own words
        key = z85.encode(credentials[0]) if mechanism == b"CURVE" and credentials else b""
        name = self.allowed.name_of(key) if domain == DOMAIN.encode() else None
        if name is None:
            self.refused += 1
            self._rare("key", f"a peer at {address.decode(errors='replace')} was refused: its key {key.decode()!r} is not in {self.allowed.folder}")
        answer = [b"200", b"OK", key] if name is not None else [b"400", b"this key is not allowed", b""]
        self._questions.send_multipart([version, request, *answer, b""])

    def close(self) -> None:
        """Before the server's socket is closed."""
        self._stopping.set()
        self._thread.join()


def user_of(frame: zmq.Frame) -> bytes:
    """The public key that the sender of a received frame has proved to have; empty where none was asked for."""
    try:
        return str(frame.get("User-Id")).encode()
    except zmq.ZMQError:
        return b""


# --------------------------------------------------------------------------------------------------------------------- sockets


def is_local(address: str) -> bool:
    """Whether only processes of this machine can reach it."""
    return address.startswith("ipc://") or bool(re.match(r"tcp://(127\.[0-9.]+|localhost|\[::1\]):", address))


def server_socket(context: zmq.Context[zmq.Socket[bytes]], address: str, keys: Keys | None, max_bytes: int) -> zmq.Socket[bytes]:
    """A ROUTER that listens. With keys it lets in only whom the `Authenticator` of its context allows: make that before `bind`.

    Args:
        address: `tcp://HOST:PORT`; port `*`: any free one, see LAST_ENDPOINT.
        keys: None: for addresses of this machine only.
        max_bytes: Of a frame; a peer that sends a larger one loses its connection.

    Raises:
        SetupError: no such address, one that is in use, or one that others can reach and no keys.
    """
    _check(address, keys, "listen", "give keys (made by `parl-like keys NAME`) and a folder of allowed ones, or listen at tcp://127.0.0.1:PORT")
    socket = context.socket(zmq.ROUTER)
    _set_options(socket, address, max_bytes)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN.encode())
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    return socket


def bind(socket: zmq.Socket[bytes], address: str) -> str:
    """Listens, and returns the address with the port that was found.

    Raises:
        SetupError: the port is taken, or this machine has no such address.
    """
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        mend = {errno.EADDRINUSE: "the port is taken; choose another one, or end the program that has it",
                errno.EACCES: "ports below 1024 are the administrator's; choose a higher one"}
        why = mend.get(error.errno or 0, f"this machine has no such address ({error.strerror}); give one of its own, or * for all")
        raise SetupError(f"cannot listen at {address}: {why}") from None
    return socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")


def client_socket(context: zmq.Context[zmq.Socket[bytes]], address: str, keys: Keys | None, server: bytes | None, max_bytes: int = -1) -> zmq.Socket[bytes]:
    """A DEALER for `address`, not yet connected, which connects anew for as long as it takes.

    Args:
        keys, server: Its own pair, and the public key of the robot; both or none, and none for addresses of this machine only.

    Raises:
        SetupError: no such address, half of the keys, or none for another machine.
    """
    if (keys is None) != (server is None):
        raise SetupError(f"to connect to {address}: expected a key of one's own and the robot's public key, got {'the robot' if keys is None else 'one'}'s only")
    _check(address, keys, "connect", "give your key and the robot's public one")
    socket = context.socket(zmq.DEALER)
    _set_options(socket, address, max_bytes)
    for option, value in ((zmq.RECONNECT_IVL, 100), (zmq.RECONNECT_IVL_MAX, 5000), (zmq.CONNECT_TIMEOUT, 5000)):
        socket.setsockopt(option, value)
    if keys is not None and server is not None:
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        socket.setsockopt(zmq.CURVE_SERVERKEY, server)
    return socket


def _check(address: str, keys: Keys | None, what: str, mend: str) -> None:
    found = _ADDRESS.fullmatch(address)
    if not address.startswith("ipc://") and (found is None or (found[2] != "*" and int(found[2]) > 65535)):
        raise SetupError(f"cannot {what} at {address!r:.200}: expected tcp://HOST:PORT, with a port up to 65535 (IPv6: tcp://[ADDRESS]:PORT)")
    if keys is None and not is_local(address):
        raise SetupError(f"cannot {what} at {address}, which is not this machine alone, without a complete set of keys; {mend}")


def _set_options(socket: zmq.Socket[bytes], address: str, max_bytes: int) -> None:
    waiting = 64 if max_bytes < 1 else min(max(BUDGET // max_bytes, 16), 1000)
    for option, value in (
        (zmq.LINGER, 0), (zmq.HANDSHAKE_IVL, 5000), (zmq.HEARTBEAT_IVL, 1000), (zmq.HEARTBEAT_TIMEOUT, 3000), (zmq.HEARTBEAT_TTL, 3000),
        (zmq.MAXMSGSIZE, max_bytes), (zmq.SNDHWM, waiting), (zmq.RCVHWM, waiting), (zmq.IPV6, int("[" in address)),
    ):
        socket.setsockopt(option, value)
