"""Keys, the allow-list, and what comes through to a listening socket (faults F22, F23, F26, F29)."""

import logging
import random
import socket as sockets
from contextlib import contextmanager, suppress
from time import monotonic

import pytest
import zmq

from parl_like.drivers.keys import (
    AllowList,
    Authenticator,
    Keys,
    RareLog,
    SetupError,
    bind,
    client_socket,
    is_local,
    make_keys,
    read_keys,
    read_public,
    server_socket,
    user_of,
)

ANY = "tcp://127.0.0.1:*"
MAX_BYTES = 1 << 20
PATIENCE = 20_000  # milliseconds; a safety net


class Server:
    def __init__(self, context, keys, allowed, address=ANY):
        self.socket = server_socket(context, address, keys, MAX_BYTES)
        self.authenticator = None if allowed is None else Authenticator(context, allowed, self.socket)
        self.address = bind(self.socket, address)
        self.peers = []

    def get(self, milliseconds=PATIENCE):
        """User and payload of the next message; None after so long without one."""
        if not self.socket.poll(milliseconds):
            return None
        identity, *_, payload = self.socket.recv_multipart(copy=False)  # garbage may have any number of frames
        self.last = identity.bytes
        return user_of(payload), payload.bytes

    def close(self):
        if self.authenticator is not None:
            self.authenticator.close()
        self.socket.close()


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def pairs(tmp_path):
    """The keys of a robot, of 'ann', whom it allows, and of 'bob', whom it does not; and the allow-list."""
    for name in ("robot", "ann", "bob"):
        make_keys(tmp_path / "made", name)
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed" / "ann.public").write_bytes((tmp_path / "made" / "ann.public").read_bytes())
    keys = {name: read_keys(tmp_path / "made" / f"{name}.secret") for name in ("robot", "ann", "bob")}
    return keys, AllowList(tmp_path / "allowed")


@contextmanager
def serving(context, keys=None, allowed=None, address=ANY):
    server = Server(context, keys, allowed, address)
    try:
        yield server
    finally:
        server.close()


def ask(context, server, keys=None, robot=None, payload=b"hello"):
    """Connects, and sends one message."""
    client = client_socket(context, server.address, keys, robot)
    client.connect(server.address)
    with suppress(zmq.Again):  # a peer that has been refused by now has nobody to send to
        client.send(payload, zmq.NOBLOCK)
    server.peers.append(client)  # what is collected is closed
    return client


def refusals(caplog, text):
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


# ------------------------------------------------------------------------------------------------------------------ who comes in


def test_allowed_key_is_delivered_with_its_name(context, pairs):
    keys, allowed = pairs
    with serving(context, keys["robot"], allowed) as server:
        client = ask(context, server, keys["ann"], keys["robot"].public)
        user, payload = server.get()
        assert payload == b"hello" and user == keys["ann"].public
        assert allowed.name_of(user) == "ann"
        server.socket.send_multipart([server.last, b"welcome"])
        assert client.poll(PATIENCE) and client.recv() == b"welcome"


def strangers(context, server, keys):
    """Nobody of these may come: an unknown key, no key at all, the wrong key of the robot, a name that is allowed with a key that is not."""
    yield "unknown", ask(context, server, keys["bob"], keys["robot"].public)
    none = context.socket(zmq.DEALER)
    none.connect(server.address)
    none.send(b"hello")
    yield "none", none
    yield "wrong server", ask(context, server, keys["ann"], keys["bob"].public)
    alias = keys["bob"]._replace(name="ann")
    yield "alias", ask(context, server, alias, keys["robot"].public)


def test_strangers_are_refused_before_the_first_byte(context, pairs, caplog):
    keys, allowed = pairs
    with serving(context, keys["robot"], allowed) as server:
        clients = [client for _, client in strangers(context, server, keys)]
        end = monotonic() + 20
        while server.authenticator.refused < 2 or not refusals(caplog, "showed no key"):  # bob, twice
            assert server.get(50) is None, "a stranger's message came through"
            assert monotonic() < end
        ask(context, server, keys["ann"], keys["robot"].public, b"good")
        assert server.get() == (keys["ann"].public, b"good")
        assert server.get(200) is None
        assert any(keys["bob"].public.decode() in text for text in refusals(caplog, "is not in"))
        assert not any(client.poll(0) for client in clients)


def test_revoked_key_is_refused_afterwards(context, pairs):
    keys, allowed = pairs
    with serving(context, keys["robot"], allowed) as server:
        client = ask(context, server, keys["ann"], keys["robot"].public)
        user, _ = server.get()
        assert allowed.name_of(user) == "ann"
        (allowed.folder / "ann.public").unlink()
        end = monotonic() + 10
        while allowed.name_of(user) is not None:  # the connection that it has is told by its user id
            assert monotonic() < end
        client.send(b"still here")
        assert server.get() == (user, b"still here") and allowed.name_of(user) is None
        ask(context, server, keys["ann"], keys["robot"].public)  # a new connection is not even made
        while not server.authenticator.refused:
            assert server.get(50) is None
            assert monotonic() < end + 10


def test_a_key_without_an_authenticator_lets_nobody_in(context, pairs):
    """CURVE by itself takes any self-made key; the domain is enforced, so that without anyone to ask the answer is no."""
    keys, _ = pairs
    with serving(context, keys["robot"]) as server:
        ask(context, server, keys["ann"], keys["robot"].public)
        assert server.get(500) is None


def test_allow_list_follows_its_folder(pairs, tmp_path):
    keys, _ = pairs
    now = [0.0]
    allowed = AllowList(tmp_path / "allowed", lambda: now[0])
    assert allowed.names() == ["ann"]
    (tmp_path / "allowed" / "bob.public").write_bytes((tmp_path / "made" / "bob.public").read_bytes())
    (tmp_path / "allowed" / "bad.public").write_text("public nothing\n")
    (tmp_path / "allowed" / "readme.txt").write_text("who may come")
    now[0] += 1.0
    assert allowed.names() == ["ann", "bob"] and allowed.name_of(keys["bob"].public) == "bob"
    (tmp_path / "allowed" / "ann.public").write_bytes((tmp_path / "made" / "robot.public").read_bytes())  # a new key under an old name
    now[0] += 1.0
    assert allowed.name_of(keys["ann"].public) is None and allowed.name_of(keys["robot"].public) == "ann"


# --------------------------------------------------------------------------------------------------------------------- garbage


@pytest.mark.parametrize("with_keys", [True, False])
def test_garbage_connections(context, pairs, caplog, with_keys):
    keys, allowed = pairs
    robot, ann = (keys["robot"], keys["ann"]) if with_keys else (None, None)
    with serving(context, robot, allowed if with_keys else None) as server:
        good = ask(context, server, ann, robot.public if robot else None, b"before")
        assert server.get()[1] == b"before"
        host, port = server.address.removeprefix("tcp://").split(":")
        rng = random.Random(0)
        surfaced = 0
        for _ in range(2_000):
            with suppress(OSError), sockets.create_connection((host, int(port)), timeout=5) as connection:
                connection.sendall(rng.randbytes(300))
            while server.socket.poll(0):
                server.socket.recv_multipart()
                surfaced += 1
        good.send(b"after")
        while (message := server.get()) is not None and message[1] != b"after":
            surfaced += 1
        assert message is not None, "the good peer is not served any more"
        if with_keys:
            assert surfaced == 0
            assert len(caplog.records) < 60  # one a second


def test_oversize_message_ends_the_connection_and_nobody_elses(context, pairs):
    keys, allowed = pairs
    with serving(context, keys["robot"], allowed) as server:
        large = ask(context, server, keys["ann"], keys["robot"].public, bytes(2 * MAX_BYTES))
        other = ask(context, server, keys["ann"], keys["robot"].public, b"small")
        assert server.get() == (keys["ann"].public, b"small")
        other.send(bytes(MAX_BYTES // 2))
        assert len(server.get()[1]) == MAX_BYTES // 2
        assert server.get(200) is None and not large.poll(0)


# ---------------------------------------------------------------------------------------------------------- one-line refusals


def assert_one_line(error, *words):
    text = str(error.value)
    assert "\n" not in text and all(word in text for word in words), text


def test_port_that_is_taken(context):
    with serving(context) as server:
        with pytest.raises(SetupError) as error:
            Server(context, None, None, server.address)
        assert_one_line(error, server.address, "taken")


@pytest.mark.parametrize("address", ["", "foo", "tcp://127.0.0.1", "tcp://127.0.0.1:99999", "tcp://127.0.0.1:x", "udp://127.0.0.1:5", "tcp://:5"])
def test_addresses_that_are_none(context, address):
    with pytest.raises(SetupError) as error:
        server_socket(context, address, None, 100)
    assert_one_line(error, "tcp://HOST:PORT")
    with pytest.raises(SetupError):
        client_socket(context, address, None, None)


def test_an_address_of_another_machine(context, pairs):
    keys, allowed = pairs
    with pytest.raises(SetupError) as error:
        with serving(context, keys["robot"], None, "tcp://192.0.2.1:*"):
            pass
    assert_one_line(error, "192.0.2.1", "no such address")


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:5000", "tcp://*:5000", "tcp://192.0.2.1:5000", "tcp://[::]:5000", "tcp://127.0.0.1.example.org:5000"])
def test_nothing_listens_beyond_this_machine_without_keys(context, pairs, address):
    keys, _ = pairs
    assert not is_local(address)
    with pytest.raises(SetupError) as error:
        server_socket(context, address, None, 100)
    assert_one_line(error, "parl-like keys", "127.0.0.1")
    with pytest.raises(SetupError):
        client_socket(context, address, None, None)
    with pytest.raises(SetupError):
        client_socket(context, address, keys["ann"], None)
    server_socket(context, address, keys["robot"], 100).close()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:5000", "tcp://localhost:5000", "tcp://[::1]:5000", "ipc:///tmp/somewhere"])
def test_this_machine(address):
    assert is_local(address)


def test_a_pair_is_made_and_read(tmp_path):
    secret, public = make_keys(tmp_path / "new", "worker-1")
    keys = read_keys(secret)
    assert keys.name == "worker-1" and keys.public == read_public(public) == zmq.curve_public(keys.secret)
    assert secret.stat().st_mode & 0o777 == 0o600
    assert keys.secret not in public.read_bytes() and keys.secret.decode() not in repr(keys)
    assert make_keys(tmp_path / "new", "worker-2")[0] != secret
    before = secret.read_bytes()
    with pytest.raises(SetupError) as error:
        make_keys(tmp_path / "new", "worker-1")
    assert_one_line(error, "worker-1", "already")
    assert secret.read_bytes() == before


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a" * 65, "a b", "ä", "a\n"])
def test_names_that_are_no_file_names(tmp_path, name):
    with pytest.raises(SetupError, match="letters, digits"):
        make_keys(tmp_path, name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_secret_that_others_may_read_is_refused(tmp_path, mode):
    secret, _ = make_keys(tmp_path, "ann")
    secret.chmod(mode)
    with pytest.raises(SetupError) as error:
        read_keys(secret)
    assert_one_line(error, str(secret), f"{mode:04o}", "chmod 600")


@pytest.mark.parametrize("content", [
    b"", b"public \nsecret \n", b"# nothing else\n", b"secret " + b"a" * 39, bytes(range(256)), b"public " + b"#" * 40 + b"\nsecret " + b"#" * 40,
    b"public " + b"\xff" * 40, b"\n" * 10_000,
])
def test_damaged_keys_are_refused(tmp_path, content):
    path = tmp_path / "ann.secret"
    path.touch(0o600)
    path.write_bytes(content)
    for read in (read_keys, read_public):
        with pytest.raises(SetupError) as error:
            read(path)
        assert_one_line(error, str(path), "parl-like keys")


def test_halves_of_two_pairs_are_refused(tmp_path):
    a, _ = make_keys(tmp_path, "a")
    b, _ = make_keys(tmp_path, "b")
    a.write_text(a.read_text().splitlines()[1] + "\n" + b.read_text().splitlines()[2])
    with pytest.raises(SetupError, match="does not belong"):
        read_keys(a)


def test_keys_that_are_not_there(tmp_path):
    for read in (read_keys, read_public):
        for path in (tmp_path / "none.secret", tmp_path):
            with pytest.raises(SetupError) as error:
                read(path)
            assert_one_line(error, str(path), "parl-like keys")
    with pytest.raises(SetupError) as error:
        AllowList(tmp_path / "none")
    assert_one_line(error, "none", "folder")


def test_one_line_a_second(caplog):
    caplog.set_level(logging.WARNING)
    now = [0.0]
    say = RareLog(lambda: now[0])
    for _ in range(1_000):
        say("key", "refused")
    say("other", "something else")
    now[0] = 1.5
    say("key", "refused")
    assert [record.getMessage() for record in caplog.records] == ["refused", "something else", "refused (999 more of this sort were not logged)"]


def test_keys_are_named_tuples_that_hide_their_secret():
    assert "s" * 40 not in str(Keys("a", b"p" * 40, b"s" * 40))
