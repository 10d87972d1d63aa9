"""Workers over tcp: what the robot's link takes, what `join` does, and whole robots with both (faults F16 to F20, F25 to F29)."""

import logging
import multiprocessing
import os
import pickle
import secrets
import signal
import socket as sockets
import sys
import threading
from contextlib import contextmanager
from functools import partial
from time import monotonic, sleep

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch
import zmq
from drivers.transport_fakes import Drift, Elementwise, Programmed, echo_task, no_nursery_stays, row, until  # noqa: F401 - the fixture is for this module, too

import parl_like
from parl_like import OnPolicyHelper, Robot
from parl_like.algorithm import Algorithm
from parl_like.computation_task import ComputationTask
from parl_like.computation_wrapper import ComputationWrapper
from parl_like.drivers.keys import SetupError, make_keys, read_keys, read_public
from parl_like.drivers.links import LocalLink
from parl_like.drivers.processes import Processes, ProcessesDriver
from parl_like.drivers.remote import JoinError, RemoteLink, check_said, join, schema_of
from parl_like.drivers.stream import Stream, session_of
from parl_like.drivers.worker import Recipe, TaskCard
from parl_like.model import Model
from parl_like.stages import StopAfterSteps
from parl_like.wire import Kind, Message, WireError, pack, pack_state, split, unpack, unpack_state
from parl_like.wire import join as one_frame

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux"), pytest.mark.timeout(90)]

ANY = "tcp://127.0.0.1:*"
LIMIT = 1 << 20


class Clock:
    """Real time, and what the test adds."""

    ahead = 0.0

    def __call__(self):
        return monotonic() + self.ahead


class FakeAgent:
    def __init__(self, index):
        self.index = index


class FakeSeat:
    def __init__(self, number, n_agents=2):
        self.number, self.incarnation, self.sent, self.heard = number, 0, 5, 0.0
        self.agents = [FakeAgent(number * n_agents + i) for i in range(n_agents)]


class Desk:
    """A robot's link and tasks, without a driver."""

    def __init__(self, n_seats=1, address=ANY, **options):
        self.wrappers = {"echo": ComputationWrapper(echo_task_named())}
        self.clock = Clock()
        self.link = RemoteLink(address, lambda: self.wrappers, clock=self.clock, origin=lambda: ("drift", {"size": 3, "deep": {"lr": 0.5}}), **options)
        self.link.open()
        self.seats = [FakeSeat(number) for number in range(n_seats)]
        for seat in self.seats:
            self.begin(seat)
        self.got = []

    def begin(self, seat):
        cards = {name: TaskCard(wrapper.task) for name, wrapper in self.wrappers.items()}
        seats = [(agent.index, 2**100 + 1, (agent.index, 7)) for agent in seat.agents]
        self.link.begin(seat, Recipe(seat.number, seat.incarnation, cards, None, None, "agent", "collect", True, seats, (5, (1, 2)), True, 3))

    def pump(self):
        self.got += [(seat.number, [bytes(frame) for frame in frames]) for seat, frames in self.link.receive()]
        return True

    def replace(self, seat):
        """As the driver does with a worker that is lost."""
        self.link.forget(seat)
        seat.incarnation += 1
        self.begin(seat)


def echo_task_named():
    task = echo_task()
    task.name = "echo"
    return task


@pytest.fixture
def desk():
    desks = []

    def make(*args, **options):
        desks.append(Desk(*args, **options))
        return desks[-1]

    yield make
    for one in desks:
        one.link.close()


class Guest:
    """A worker's side of the protocol, by hand."""

    def __init__(self, desk, context, name="ann", keys=None, server=None):
        self.desk, self.context, self.name, self.keys, self.server = desk, context, name, keys, server
        self.nonce = secrets.randbits(62)
        self.connect()
        self.stream = None
        self.taken = []  # messages of the session
        self.heard = []  # those outside of it

    def connect(self):
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        if self.keys is not None:
            self.socket.curve_publickey, self.socket.curve_secretkey, self.socket.curve_serverkey = self.keys.public, self.keys.secret, self.server
        self.socket.connect(self.desk.link.address)

    def break_link(self):
        self.socket.close()
        self.connect()

    def hello(self, **notes):
        schema = schema_of({name: wrapper.task for name, wrapper in self.desk.wrappers.items()})
        said = {"nonce": self.nonce, "name": self.name, "package": parl_like.__version__, "schema": schema} | notes
        self.socket.send_multipart(one_frame(pack(Kind.HELLO, notes=said)))

    def pump(self):
        self.desk.pump()
        while self.socket.poll(1):
            frames = self.socket.recv_multipart()
            if session_of(frames) is None:
                self.heard.append(unpack(split(frames), LIMIT))
            elif self.stream is not None:
                self.taken += self.stream.receive(frames)
        if self.stream is not None:
            self.stream.acknowledge()
            for frames in self.stream.due():
                self.socket.send_multipart(frames)

    def hear(self, kind):
        """The next message of a kind outside of the session."""
        until(lambda: self.pump() or any(message.kind is kind for message in self.heard), 10, kind.name)
        found = next(message for message in self.heard if message.kind is kind)
        self.heard.remove(found)
        return found

    def come(self):
        """Registers, and says that its worker is up."""
        self.hello()
        welcome = self.hear(Kind.WELCOME)
        self.stream = Stream(welcome.notes["session"], self.desk.clock)
        self.say(Kind.HELLO, notes={"pid": 1})
        self.until_got(1)
        return welcome

    def say(self, kind, **parts):
        self.socket.send_multipart(self.stream.send(one_frame(pack(kind, **parts))))

    def until_got(self, n):
        until(lambda: self.pump() or len(self.desk.got) >= n, 10, f"{n} messages")


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


def event(i):
    return {"kind": Kind.EVENT, "notes": {"turn": 0}, "arrays": {"count.return": np.array([float(i)]), "count.length": np.array([i], np.int64)}}


def numbers(desk):
    return [int(unpack(split(frames), LIMIT).arrays["count.length"][0]) for _, frames in desk.got[1:]]


# ------------------------------------------------------------------------------------------------------ the robot's link, alone


def test_a_worker_is_told_what_to_build_and_then_given_a_seat(desk, context):
    desk = desk()
    guest = Guest(desk, context)
    assert not desk.link.has_begun(desk.seats[0])
    guest.hello(schema="")
    order = guest.hear(Kind.ORDER)
    assert unpack_state(order.arrays) == {"experiment": "drift", "config": {"size": 3, "deep": {"lr": 0.5}}}
    assert order.notes["nonce"] == guest.nonce and order.notes["package"] == parl_like.__version__
    welcome = guest.come()
    told = unpack_state(welcome.arrays)
    assert told["seats"] == [[0, 2**100 + 1, [0, 7]], [1, 2**100 + 1, [1, 7]]] and told["seed"] == [5, [1, 2]]
    assert (told["worker"], told["incarnation"], told["sync"], told["mode"], told["trace"], told["agent_restarts"]) == (0, 0, True, "collect", True, 3)
    assert desk.link.has_begun(desk.seats[0]) and monotonic() - desk.seats[0].heard < 30
    for i in range(50):
        guest.say(**event(i))
    guest.until_got(51)
    assert numbers(desk) == list(range(50))
    for i in range(50):
        desk.link.send(desk.seats[0], [b"%d" % i, bytes(10)])
    until(lambda: guest.pump() or len(guest.taken) == 50)
    assert [int(frames[0]) for frames in guest.taken] == list(range(50))
    guest.hello()  # repeated, since its answer might have been lost
    assert guest.hear(Kind.WELCOME).notes["session"] == welcome.notes["session"]


def test_messages_survive_a_connection_that_breaks(desk, context):
    desk = desk()
    guest = Guest(desk, context)
    guest.come()
    for i in range(60):
        if i % 20 == 10:
            guest.break_link()
        guest.say(**event(i))
        desk.link.send(desk.seats[0], [b"%d" % i])
        guest.pump()
    until(lambda: guest.pump() or (len(desk.got) == 61 and len(guest.taken) == 60), 20, "all messages")
    assert numbers(desk) == list(range(60))
    assert [int(frames[0]) for frames in guest.taken] == list(range(60))


def test_versions_and_schemas_that_differ_are_refused_and_both_named(desk, context, caplog):
    desk = desk()
    mine = schema_of({name: wrapper.task for name, wrapper in desk.wrappers.items()})
    for notes, theirs, ours in (({"package": "0.0.9"}, "0.0.9", parl_like.__version__), ({"schema": "0123456789abcdef"}, "0123456789abcdef", mine)):
        guest = Guest(desk, context)
        guest.hello(**notes)
        bye = guest.hear(Kind.BYE)
        assert bye.notes["what"] == "refused" and theirs in bye.notes["why"] and ours in bye.notes["why"]
    guest = Guest(desk, context)
    (frame,) = one_frame(pack(Kind.HELLO, notes={"nonce": 1}))
    guest.socket.send(frame.replace(b"PLK\x01", b"PLK\x09"))
    bye = guest.hear(Kind.BYE)
    assert bye.notes["what"] == "refused" and "protocol 1" in bye.notes["why"] and "protocol 9" in bye.notes["why"]
    assert not desk.link.has_begun(desk.seats[0])
    assert "0.0.9" in caplog.text and "protocol 9" in caplog.text


def test_a_name_is_taken_until_its_worker_is_dead_and_then_nothing_of_the_old_session_counts(desk, context):
    desk = desk(2)
    old = Guest(desk, context)
    first = old.come()
    other = Guest(desk, context)
    other.hello()
    bye = other.hear(Kind.BYE)
    assert bye.notes["what"] == "taken" and "'ann'" in bye.notes["why"]
    desk.clock.ahead += 2.0
    desk.pump()
    assert not desk.link.ended()
    desk.clock.ahead += 1.5
    desk.pump()
    ((seat, how),) = desk.link.ended()
    assert seat is desk.seats[0] and "'ann'" in how and "3 s" in how
    desk.replace(seat)
    desk.got.clear()
    assert other.come().notes["session"] != first.notes["session"]
    old.say(**event(1))  # it was only frozen
    old.stream = None
    bye = old.hear(Kind.BYE)
    assert bye.notes["what"] == "again" and bye.notes["session"] == first.notes["session"]
    other.say(**event(2))
    other.until_got(2)
    assert numbers(desk) == [2]


def test_nothing_more_is_taken_from_a_worker_that_was_given_up(desk, context):
    desk = desk()
    guest = Guest(desk, context)
    session = guest.come().notes["session"]
    guest.say(**event(1))
    guest.until_got(2)
    desk.link.kill(desk.seats[0])
    desk.replace(desk.seats[0])
    assert guest.hear(Kind.BYE).notes["session"] == session
    guest.say(**event(2))
    guest.stream = None
    assert guest.hear(Kind.BYE).notes["session"] == session
    assert numbers(desk) == [1]


def test_without_a_free_seat_one_waits(desk, context):
    desk = desk()
    Guest(desk, context).come()
    spare = Guest(desk, context, "bob")
    spare.hello()
    assert spare.hear(Kind.BYE).notes["what"] == "wait"
    desk.clock.ahead += 4.0
    desk.pump()
    desk.replace(desk.link.ended()[0][0])
    spare.come()


def test_beats_keep_a_quiet_worker_alive(desk, context):
    desk = desk()
    guest = Guest(desk, context)
    guest.come()
    for _ in range(10):
        desk.clock.ahead += 1.1
        peer = desk.link._peers[desk.seats[0]]
        until(lambda: guest.pump() or peer.stream.silent < 1.0)
        assert not desk.link.ended()


def test_a_worker_that_takes_its_leave(desk, context):
    desk = desk()
    guest = Guest(desk, context)
    session = guest.come().notes["session"]
    guest.say(**event(1))
    guest.socket.send_multipart(one_frame(pack(Kind.BYE, notes={"session": session, "why": "exit code 3"})))
    assert desk.link.wait(desk.seats[0], 10)
    ((_, how),) = desk.link.ended()
    assert "exit code 3" in how
    guest.until_got(2)  # what it had said before is not lost
    assert numbers(desk) == [1]


def test_a_message_that_cannot_be_used_ends_the_session_and_ten_end_the_peer(desk, context):
    desk = desk(2)
    good = Guest(desk, context, "good")
    good.come()
    bad = Guest(desk, context, "bad")
    for i in range(10):
        bad.nonce, bad.stream = i + 1, None
        bad.hello()
        bad.stream = Stream(bad.hear(Kind.WELCOME).notes["session"], desk.clock)
        bad.say(Kind.EVENT, arrays={"alive": np.array([77], np.int32), "parked": np.zeros(0, np.int32)})
        assert bad.hear(Kind.BYE).notes["what"] == "again"
        ((seat, how),) = desk.link.ended()
        assert "'bad'" in how and "the seat's own agents" in how
        desk.replace(seat)
    bad.nonce = 100
    bad.hello()
    bye = bad.hear(Kind.BYE)
    assert bye.notes["what"] == "refused" and "10 bad messages" in bye.notes["why"]
    good.say(**event(1))
    good.until_got(2)
    assert numbers(desk) == [1] and not desk.link.ended()


def test_nine_malformed_frames_are_dropped_and_the_tenth_ends_the_session(desk, context):
    desk = desk()
    guest = Guest(desk, context)
    session = guest.come().notes["session"]
    nonsense = Stream(session).send([b""])[0][:12] + b"\xff" * 24
    for _ in range(9):
        guest.socket.send(nonsense)
    Guest(desk, context).socket.send(b"garbage")  # somebody else's
    guest.say(**event(1))
    guest.until_got(2)
    assert numbers(desk) == [1]
    assert not desk.link.ended()
    guest.socket.send(nonsense)
    until(lambda: guest.pump() or desk.link.ended(), 10)
    assert "10 messages" in desk.link.ended()[0][1] and guest.hear(Kind.BYE).notes["what"] == "refused"


def test_a_robot_that_is_started_again_knows_no_old_session(desk, context):
    desk = desk()
    guest = Guest(desk, context)
    session = guest.come().notes["session"]
    desk.link.listen = desk.link.address  # the same port
    desk.link.forget(desk.seats[0])
    desk.link._context.destroy(linger=0)  # killed: no farewell
    desk.link.open()
    desk.begin(desk.seats[0])
    guest.say(**event(1))
    until(lambda: guest.pump() or any(m.kind is Kind.BYE for m in guest.heard), 20)
    bye = guest.hear(Kind.BYE)
    assert bye.notes["what"] == "again" and bye.notes["session"] == session
    guest.stream, guest.nonce = None, 1
    desk.got.clear()
    assert guest.come().notes["session"] != session


# ------------------------------------------------------------------------------------------------------------------------- keys


@pytest.fixture
def folders(tmp_path):
    """Options of a link with keys, and the pairs of 'ann' and 'bob', both allowed."""
    (tmp_path / "allowed").mkdir()
    for name in ("robot", "ann", "bob"):
        _, public = make_keys(tmp_path / "made", name)
        if name != "robot":
            (tmp_path / "allowed" / public.name).write_bytes(public.read_bytes())
    return {"key": tmp_path / "made" / "robot.secret", "allow": tmp_path / "allowed"}


def with_keys(desk, context, folders, name):
    made = folders["key"].parent
    return Guest(desk, context, "somebody else", read_keys(made / f"{name}.secret"), read_public(made / "robot.public"))


def test_a_worker_has_the_name_of_its_key_and_no_other(desk, context, folders):
    desk = desk(2, **folders)
    ann, bob = (with_keys(desk, context, folders, name) for name in ("ann", "bob"))
    session = ann.come().notes["session"]
    assert [peer.name for peer in desk.link._peers.values()] == ["ann"]
    bob.stream = Stream(session, desk.clock)  # it has got to know the number
    bob.say(**event(66))
    bob.stream = None
    assert bob.hear(Kind.BYE).notes["what"] == "again"
    bob.socket.send_multipart(one_frame(pack(Kind.BYE, notes={"session": session, "why": "I say so"})))
    desk.got.append(None)
    bob.come()
    ann.say(**event(1))
    ann.until_got(4)
    assert 66 not in [int(unpack(split(m[1]), LIMIT).arrays["count.length"][0]) for m in desk.got if m and b"count" in m[1][0]]
    assert not desk.link.ended()


def test_a_worker_whose_key_is_taken_out_is_ended(desk, context, folders):
    desk = desk(**folders)
    ann = with_keys(desk, context, folders, "ann")
    ann.come()
    (folders["allow"] / "ann.public").unlink()
    until(lambda: ann.pump() or desk.link.ended(), 10)
    assert "not allowed any more" in desk.link.ended()[0][1]
    assert ann.hear(Kind.BYE).notes["what"] == "refused"
    desk.replace(desk.seats[0])
    before = len(desk.got)
    ann.say(**event(1))
    ann.hello()
    for _ in range(20):
        ann.pump()
    assert len(desk.got) == before and not ann.heard and not desk.link.has_begun(desk.seats[0])


def test_nothing_listens_where_it_should_not(folders, tmp_path):
    def fails(address=ANY, **options):
        link = RemoteLink(address, dict, **options)
        threads = threading.active_count()
        with pytest.raises(SetupError) as error:
            link.open()
        assert "\n" not in str(error.value) and threading.active_count() == threads
        return str(error.value)

    assert "complete set of keys" in fails("tcp://0.0.0.0:5000")
    assert "one of them only" in fails(key=folders["key"])
    assert "one of them only" in fails(allow=folders["allow"])
    assert "cannot be read" in fails(key=tmp_path / "none", allow=folders["allow"])
    assert "folder" in fails(key=folders["key"], allow=tmp_path / "none")
    assert "tcp://HOST:PORT" in fails("127.0.0.1")
    with sockets.create_server(("127.0.0.1", 0)) as taken:
        assert "taken" in fails(f"tcp://127.0.0.1:{taken.getsockname()[1]}", **folders)
    link = RemoteLink(ANY, dict, **folders)
    for _ in range(3):  # open and close leave nothing behind
        link.open()
        link.close()


# ------------------------------------------------------------------------------------------------------- what a worker may say

OBS, OK = np.zeros((2, 2)), {"n": 2, "turn": 3}


class Choice(Model):
    def __init__(self):
        super().__init__(gym.spaces.Dict({"where": gym.spaces.Box(-1, 1, (2,), np.float32), "what": gym.spaces.Discrete(5)}), gym.spaces.Discrete(3))
        self.w = torch.nn.Parameter(torch.ones(1))


class Zero(Algorithm):
    def __init__(self):
        super().__init__(Choice())

    def predict(self, inputs):
        return {"act": torch.zeros(len(inputs.obs.what), dtype=torch.int64)}


def lesson(**other):
    arrays = {"obs.where": np.zeros((2, 2), np.float32), "obs.what": np.array([0, 4]), "obs_next.what": np.array([1, 2]), "act": np.array([0, 2]),
              "rew": np.zeros(2), "policy.logits": np.full((2, 3), -np.inf, np.float32)}
    return {name: value for name, value in (arrays | other).items() if value is not None}


def request(kind=Kind.PREDICT, rows=2, task="choice", notes=None, **arrays):
    return Message(kind, task, 1, rows, arrays, OK if notes is None else notes)


def asked(**other):
    arrays = {"obs.where": np.zeros((2, 2), np.float32), "obs.what": np.array([0, 4])} | other
    return {name: value for name, value in arrays.items() if value is not None}


I4 = partial(np.array, dtype=np.int32)
TEXT = {"text": np.zeros(3, np.uint8), "trace": np.zeros(0, np.uint8)}
FAILED = {"agent": 4, "type": "ValueError", "again": False}
EPISODE = {"episode.agent": I4([4, 5]), "episode.env": I4([0, 0]), "episode.return": np.zeros(2), "episode.length": np.array([3, 3])}
SAID = [
    request(Kind.HELLO, 0, "", {"pid": 5}),
    request(**asked()),
    request(Kind.LEARN, **lesson()),
    request(Kind.LEARN, **lesson(**{"obs.where": np.zeros((2, 7, 2), np.float32), "act": np.zeros((2, 7), np.int64)})),
    request(Kind.EVENT, 0, "", {"turn": 5, "steps": 3, "time": 3, "late": True, "late.predict.choice": 1, "paused": True, "bad": 2, "served.rows.choice": 4}),
    request(Kind.EVENT, 0, "", {}, alive=I4([4]), parked=I4([]), steps=np.array([3, 4]), **EPISODE),
    request(Kind.FAILED, 0, "", FAILED, **TEXT),
    request(Kind.FAILED, 0, "", FAILED | {"agent": -1}, **TEXT),
    request(Kind.STATE, 0, "", {}, **pack_state({"a": np.zeros(3)})),
]
NEVER = [
    request(Kind.ORDER, 0, "", {"order": "end"}),
    request(Kind.REPLY, 0, "", {}),
    request(Kind.HELLO, 0, "", {"pid": "5"}),
    request(Kind.HELLO, 0, "", {}, more=OBS),
    request(task="other", **asked()),
    request(**asked(**{"obs.what": None})),
    request(**asked(more=OBS)),
    request(**asked(**{"obs.what": np.array([0, 5])})),
    request(**asked(**{"obs.what": np.array([0, -1])})),
    request(**asked(**{"obs.where": np.full((2, 2), np.nan, np.float32)})),
    request(**asked(**{"obs.where": np.zeros((2, 2))})),
    request(**asked(**{"obs.where": np.zeros((2, 3), np.float32)})),
    request(rows=3, **asked()),
    request(notes={"n": 3}, **asked()),
    request(notes={"n": 0}, **asked()),
    request(notes={}, **asked()),
    request(notes=OK | {"turn": 6}, **asked()),
    request(notes=OK | {"turn": -1}, **asked()),
    request(notes=OK | {"turn": True}, **asked()),
    request(notes=OK | {"turn": [1]}, **asked()),
    request(notes=OK | {"steps": 3}, **asked()),
    request(notes=OK | {"odd": 3}, **asked()),
    request(notes=OK | {"late.predict.choice": -3}, **asked()),
    request(Kind.LEARN),
    request(Kind.LEARN, **lesson(act=np.array([0, 3]))),
    request(Kind.LEARN, **lesson(rew=np.array([0.0, np.inf]))),
    request(Kind.LEARN, **lesson(rew=np.zeros(3))),
    request(Kind.LEARN, **lesson(rew=np.zeros(()))),
    request(Kind.LEARN, **lesson(**{"policy.logits": np.full((2, 3), np.nan)})),
    request(Kind.LEARN, **lesson(**{"obs_next.what": np.array([0, 9])})),
    request(Kind.LEARN, **lesson(**{"obs.where": np.zeros((2, 5), np.float32)})),
    request(Kind.EVENT, 0, "", {}, odd=OBS),
    request(Kind.EVENT, 0, "", {}, alive=I4([4])),
    request(Kind.EVENT, 0, "", {}, alive=I4([6]), parked=I4([])),
    request(Kind.EVENT, 0, "", {}, alive=np.array([4]), parked=I4([])),
    request(Kind.EVENT, 0, "", {}, steps=np.array([3])),
    request(Kind.EVENT, 0, "", {}, **EPISODE | {"episode.agent": I4([4, 3])}),
    request(Kind.EVENT, 0, "", {}, **EPISODE | {"episode.env": I4([0])}),
    request(Kind.EVENT, 0, "", {}, **EPISODE | {"episode.return": np.array([0.0, np.nan])}),
    request(Kind.EVENT, 0, "", {}, **{name: value for name, value in EPISODE.items() if name != "episode.length"}),
    request(Kind.FAILED, 0, "", {}, **TEXT),
    request(Kind.FAILED, 0, "", FAILED | {"agent": 7}, **TEXT),
    request(Kind.FAILED, 0, "", FAILED | {"agent": -2}, **TEXT),
    request(Kind.FAILED, 0, "", FAILED),
    request(Kind.FAILED, 0, "", FAILED, text=OBS, trace=OBS),
    request(Kind.STATE, 0, "", {}, json=np.zeros(3, np.uint8), data=np.zeros(0, np.uint8)),
]


@pytest.fixture(scope="module")
def choice():
    task = ComputationTask(Zero())
    task.name = "choice"
    return {"choice": ComputationWrapper(task)}


@pytest.mark.parametrize("message", SAID, ids=range(len(SAID)))
def test_what_workers_say_is_taken(choice, message):
    check_said(message, FakeSeat(2).agents, 5, choice)


@pytest.mark.parametrize("message", NEVER, ids=range(len(NEVER)))
def test_what_workers_never_say_is_refused(choice, message):
    with pytest.raises(WireError):
        check_said(message, FakeSeat(2).agents, 5, choice)


# ------------------------------------------------------------------------------------------------------- the worker's side, alone


class FakeProcess:
    """A link to a worker's own process that is none: a function answers."""

    made = []

    def __init__(self):
        self.out, self.how, self.killed = [], [], False
        self.got = []
        FakeProcess.made.append(self)

    def open(self):
        pass

    def begin(self, seat, recipe):
        self.seat, self.recipe = seat, recipe
        self.out.append((seat, one_frame(pack(Kind.HELLO, notes={"pid": len(FakeProcess.made)}))))

    def send(self, seat, frames):
        self.got.append([bytes(frame) for frame in frames])
        if frames[0] == b"end":
            self.out.append((seat, one_frame(pack(**event(99)))))
            self.how.append((seat, "ended with exit code 7"))

    def receive(self):
        out, self.out = self.out, []
        return out

    def ended(self):
        return self.how

    def descriptors(self):
        return []

    def kill(self, seat):
        self.killed = True

    def forget(self, seat):
        pass

    def close(self):
        pass


def build_echo(name, config):
    assert (name, config) in (("drift", {"size": 3, "deep": {"lr": 0.5}}), (None, {}))
    return Robot(tasks={"echo": echo_task()}, agent=partial(Programmed, asking), n_agents=1)


class Joined:
    """`join` in a thread."""

    def __init__(self, address, build=build_echo, **options):
        self.error = None
        self.thread = threading.Thread(target=self._run, args=(address, build), kwargs=options, daemon=True)
        self.thread.start()

    def _run(self, *args, **options):
        try:
            join(*args, **options)
        except BaseException as error:  # noqa: BLE001
            self.error = error

    def ended(self, desk=None):
        def over():
            if desk is not None:
                desk.pump()
            return not self.thread.is_alive()

        until(over, 20, "the end of join")
        return self.error


@pytest.fixture
def fakes():
    FakeProcess.made = []
    return FakeProcess.made


def test_join_builds_begins_and_leaves(desk, fakes):
    desk = desk()
    (seat,) = desk.seats
    joined = Joined(desk.link.address, local=FakeProcess, name="ann")
    until(lambda: desk.pump() and desk.got, 20)
    (process,) = fakes
    recipe = process.recipe
    assert recipe.seats == [(0, 2**100 + 1, (0, 7)), (1, 2**100 + 1, (1, 7))] and recipe.seed == (5, (1, 2)) and recipe.identity == b"0.0"
    assert (recipe.label, recipe.mode, recipe.sync, recipe.trace, recipe.agent_restarts) == ("agent", "collect", True, True, 3)
    assert set(recipe.tasks) == {"echo"} and recipe.agent().program is asking
    desk.link.send(seat, [b"hi"])
    until(lambda: desk.pump() and process.got == [[b"hi"]])

    desk.link.send(seat, [b"end"])  # the process ends: its last words come, and then another takes the seat
    until(lambda: desk.pump() and desk.link.ended(), 20)
    assert "exit code 7" in desk.link.ended()[0][1] and numbers(desk) == [99] and not process.killed
    desk.got.clear()
    desk.replace(seat)
    until(lambda: desk.pump() and desk.got, 20)
    assert len(fakes) == 2 and fakes[1].recipe.identity == b"0.1"

    desk.link.kill(seat)  # the robot gives it up
    desk.replace(seat)
    desk.got.clear()
    until(lambda: desk.pump() and desk.got, 20)
    assert fakes[1].killed and len(fakes) == 3

    desk.link.close()
    assert joined.ended() is None and fakes[2].killed
    desk.link.open()  # for the fixture


@pytest.mark.parametrize("own", ["package", "tasks", "robot"])
def test_join_says_why_it_is_refused(desk, fakes, monkeypatch, own):
    desk = desk()
    if own == "package":
        monkeypatch.setattr(desk.link, "_answer", lambda route, user, message: desk.link._refuse(route, message.notes["nonce"], "0.0.9 is not 0.1.0"))
        build = build_echo
    elif own == "robot":  # which does not mind
        register = desk.link._register
        monkeypatch.setattr(desk.link, "_register", lambda route, user, name, nonce, schema: register(route, user, name, nonce, "f" * 16))
        build = build_echo
    else:
        def build(name, config):
            return Robot(Drift, tasks={"echo": ComputationTask(Elementwise())})
    error = Joined(desk.link.address, build, local=FakeProcess).ended(desk)
    assert isinstance(error, JoinError) and "\n" not in str(error)
    assert "0.0.9 is not 0.1.0" in str(error) if own == "package" else "schema" in str(error)
    assert not fakes


def test_join_gives_up_without_a_robot(fakes, tmp_path):
    with sockets.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    error = Joined(f"tcp://127.0.0.1:{port}", patience=0.3, local=FakeProcess).ended()
    assert isinstance(error, JoinError) and "no robot" in str(error) and "0.3 s" in str(error) and "\n" not in str(error)
    assert isinstance(Joined("tcp://192.0.2.1:5000", local=FakeProcess).ended(), SetupError)
    assert isinstance(Joined(ANY.replace("*", "1"), key=tmp_path / "none", server=tmp_path / "none", local=FakeProcess).ended(), SetupError)


def test_join_gives_up_where_its_key_or_its_name_is_not_wanted(desk, context, folders, fakes):
    desk = desk(2, **folders)
    made = folders["key"].parent
    make_keys(made, "stranger")
    error = Joined(desk.link.address, key=made / "stranger.secret", server=made / "robot.public", patience=1.0, local=FakeProcess).ended(desk)
    assert isinstance(error, JoinError) and "does not know this worker's key" in str(error)
    guest = with_keys(desk, context, folders, "ann")
    guest.come()
    joined = Joined(desk.link.address, key=made / "ann.secret", server=made / "robot.public", patience=1.0, local=FakeProcess)
    until(lambda: guest.pump() or not joined.thread.is_alive(), 20)
    assert isinstance(joined.error, JoinError) and "'ann' is here already" in str(joined.error)


def test_a_key_that_is_allowed_later_comes_in(desk, folders, fakes):
    desk = desk(**folders)
    made = folders["key"].parent
    _, public = make_keys(made, "late")
    joined = Joined(desk.link.address, key=made / "late.secret", server=made / "robot.public", local=FakeProcess)
    until(lambda: desk.pump() and desk.link._authenticator.refused, 20)
    (folders["allow"] / public.name).write_bytes(public.read_bytes())
    until(lambda: desk.pump() and desk.got, 20)
    desk.link.close()
    assert joined.ended() is None
    desk.link.open()  # for the fixture


def test_a_robot_of_another_version_is_refused(context, fakes):
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    joined = Joined(f"tcp://127.0.0.1:{port}", local=FakeProcess)
    route, hello = router.recv_multipart()
    assert unpack(split([hello]), LIMIT).notes["package"] == parl_like.__version__
    (frame,) = one_frame(pack(Kind.WELCOME, notes={"nonce": 1}))
    router.send_multipart([route, frame.replace(b"PLK\x01", b"PLK\x09")])
    error = joined.ended()
    assert isinstance(error, JoinError) and "protocol 1" in str(error) and "protocol 9" in str(error)


# ------------------------------------------------------------------------------------------------------------------ whole robots


def drifting(driver="cooperative"):
    helper = partial(OnPolicyHelper, unroll=8)
    return Robot(Drift, tasks={"RL": ComputationTask(Elementwise(), helper)}, n_agents=5, driver=driver, trace=True)


def build_drifting(name, config):
    return drifting()


N = 60


def asking(agent, n=N):
    comm = agent.helpers["echo"].comm
    for i in range(n):
        ticket = comm.predict(row(agent, i))
        assert ticket.out["echo"][ticket.start].tolist() == [agent.index, i]


@pytest.fixture
def linked(monkeypatch):
    """Lets the last `n` seats of robots wait for workers from elsewhere; the links that were made."""
    made = []

    def use(n=1, **options):
        def make_links(driver, seats):
            made.append(RemoteLink(options.pop("address", ANY), lambda: driver.crew.wrappers, **options))
            return [LocalLink()] * (seats - n) + [made[-1]] * n

        monkeypatch.setattr(ProcessesDriver, "_make_links", make_links)
        return made

    return use


def test_remote_workers_give_the_same_trace_as_none(linked):
    with drifting() as robot:
        robot.run(StopAfterSteps(600))
        expected = robot.trace_hash(), robot.env_steps, robot.episodes, robot.tasks["RL"].learns
    made = linked(2)
    with drifting(Processes(workers=3)) as robot:
        robot._driver._open()
        workers = [Joined(made[0].address, build_drifting, name=name) for name in ("ann", "bob")]
        robot.run(StopAfterSteps(600))
        assert (robot.trace_hash(), robot.env_steps, robot.episodes, robot.tasks["RL"].learns) == expected
    assert [worker.ended() for worker in workers] == [None, None]


def test_nothing_is_unpickled_in_the_robots_process(linked, folders, monkeypatch):
    made = linked(**folders)
    keys = folders["key"].parent

    def refuse(*args, **options):
        raise AssertionError("something was unpickled")

    for module in (pickle, cloudpickle):
        monkeypatch.setattr(module, "loads", refuse)
        monkeypatch.setattr(module, "load", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    task = echo_task()
    with Robot(tasks={"echo": task}, agent=partial(Programmed, asking), n_agents=4, driver=Processes(workers=2)) as robot:
        robot._driver._open()
        worker = Joined(made[0].address, key=keys / "ann.secret", server=keys / "robot.public")
        robot.run()
    assert worker.ended() is None
    assert len(task.algorithm.served()) == 4 * N and set(task.algorithm.served().values()) == {1}


class BadWay(threading.Thread):
    """Between a robot and its workers: loses and doubles messages, swaps neighbours, and is gone for a moment now and then."""

    def __init__(self, lost, seed=0):
        super().__init__(daemon=True)
        self.lost, self.random = lost, np.random.default_rng(seed)
        self.context = zmq.Context()
        self.front, self.backs = self.context.socket(zmq.ROUTER), {}
        self.port = self.front.bind_to_random_port("tcp://127.0.0.1")
        self.address, self.robot = f"tcp://127.0.0.1:{self.port}", ""
        self.cuts = self.moved = 0
        self.stopping = threading.Event()

    def run(self):
        while not self.stopping.is_set():
            moved = []
            while self.front.poll(0 if moved else 1):
                route, *frames = self.front.recv_multipart()
                if route not in self.backs and self.robot:
                    self.backs[route] = self.context.socket(zmq.DEALER)
                    self.backs[route].connect(self.robot)
                if route in self.backs:
                    moved.append((self.backs[route], frames))
            for route, back in self.backs.items():
                while back.poll(0):
                    moved.append((self.front, [route, *back.recv_multipart()]))
            if self.random.random() < 0.1:
                moved.reverse()
            for socket, frames in moved:
                self.moved += 1
                for _ in range(2 if self.moved % 5 == 0 else 1):
                    if self.random.random() >= self.lost:
                        socket.send_multipart(frames)
            if self.moved > 100 * (self.cuts + 1):  # everything under way is lost, and all connections are new
                self.cuts += 1
                for socket in (self.front, *self.backs.values()):
                    socket.close(linger=0)
                self.backs = {}
                self.front = self.context.socket(zmq.ROUTER)
                until(self._bound, 10)
        self.context.destroy(linger=0)

    def _bound(self):
        try:
            self.front.bind(self.address)
        except zmq.ZMQError:
            return False
        return True


def test_over_a_bad_way_every_request_is_served_once(linked):
    made = linked()
    way = BadWay(lost=0.1)
    task = echo_task()
    with Robot(tasks={"echo": task}, agent=partial(Programmed, asking), n_agents=4, driver=Processes(workers=2)) as robot:
        robot._driver._open()
        way.robot = made[0].address
        way.start()
        worker = Joined(way.address)
        robot.run()
        assert robot._driver.restarts == 0 and way.cuts >= 1
        way.lost = 0.0  # for the farewell, which is said only once
    assert worker.ended() is None
    way.stopping.set()
    way.join(10)
    assert task.algorithm.served() == {(float(agent), float(i)): 1 for agent in range(4) for i in range(N)}


@contextmanager
def elsewhere(address, name):
    """`join` in a process of its own, which imports nothing anew; to be made before this one has threads."""
    process = multiprocessing.get_context("fork").Process(target=join, args=(address, build_waiting), kwargs={"name": name, "patience": 40})
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def waiting(agent):
    """Asks now and then until it is told to end."""
    while agent.signal is None:
        asking(agent, 1)
        sleep(0.002)


def build_waiting(name, config):
    return Robot(tasks={"echo": echo_task()}, agent=partial(Programmed, waiting), n_agents=1)


def test_a_frozen_worker_is_lost_and_comes_again_and_so_is_a_killed_one(linked, caplog):
    caplog.set_level(logging.INFO)
    with sockets.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    linked(address=address)
    robot = Robot(tasks={"echo": echo_task()}, agent=partial(Programmed, waiting), n_agents=2, driver=Processes(workers=2), mode="async")
    failures = []

    def up(times):
        came = sum("remote worker 'ann' takes the seat" in record.getMessage() for record in caplog.records)
        return came == times and robot._driver.workers[1].running

    def others_go_on():
        before = robot.wrappers["echo"].predictions.counters.requests
        until(lambda: robot.wrappers["echo"].predictions.counters.requests > before + 20, 20, "requests of the other worker")

    def drill():
        try:
            until(lambda: up(1), 40, "the worker")
            os.kill(worker.pid, signal.SIGSTOP)
            others_go_on()
            until(lambda: robot._driver.restarts == 1, 20, "its loss")
            until(lambda: "not heard for 3 s" in caplog.text, what="its reason")
            os.kill(worker.pid, signal.SIGCONT)  # it is told that its session is over
            until(lambda: up(2), 40, "the worker, again")
            others_go_on()
            os.kill(worker.pid, signal.SIGKILL)
            others_go_on()
            until(lambda: robot._driver.restarts == 2, 20, "its loss")
        except BaseException as error:  # noqa: BLE001
            failures.append(error)
        finally:
            robot.request_stop()

    with elsewhere(address, "ann") as worker, robot:
        thread = threading.Thread(target=drill)
        thread.start()
        robot.run()
        thread.join(60)
    if failures:
        raise failures[0]
