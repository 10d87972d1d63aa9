"""The robot's ends of the sockets to its workers: nothing goes twice, and nothing that a worker has sent is lost."""

import os
import signal
import socket

import pytest

from parl_like.drivers.frame_stream import FrameStream
from parl_like.drivers.ray import cluster
from parl_like.drivers.workers.handle import WorkerHandle
from parl_like.drivers.workers.streams import Streams
from parl_like.process.child import RestartBudget


class Struck:
    """A socket; Ctrl-C strikes as soon as something was sent, once it is `on`."""

    def __init__(self, connection):
        self.connection, self.on = connection, False

    def fileno(self):
        return self.connection.fileno()

    def close(self):
        self.connection.close()

    def recv(self, *arguments):
        return self.connection.recv(*arguments)

    def sendmsg(self, *arguments):
        sent = self.connection.sendmsg(*arguments)
        if self.on:
            os.kill(os.getpid(), signal.SIGINT)
        return sent


@pytest.fixture
def sockets():
    pair = socket.socketpair()
    yield pair
    for one in pair:
        one.close()


@pytest.fixture
def streams():
    streams = Streams()
    yield streams
    streams.close()


def worker():
    return WorkerHandle(0, [], RestartBudget())


@pytest.mark.parametrize("way", ["receive", "flush"])
def test_ctrl_c_while_the_rest_of_a_message_goes_sends_no_byte_twice(sockets, streams, way):
    ours, theirs = sockets
    handle, other = worker(), FrameStream(theirs, waits=True)
    ours = Struck(ours)
    streams.add(handle, ours)
    frames, came, struck = [b"head", bytes(range(256)) * (1 << 13), b"tail"], [], 0
    go_on = streams.receive if way == "receive" else lambda: streams.flush(handle, 0.0)
    streams.send(handle, frames)
    ours.on = True
    while not came:
        came += other.receive()
        try:
            go_on()
        except KeyboardInterrupt:
            struck += 1
        assert struck < 200
    assert struck > 1
    same = [bytes(frame) for frame in came[0]] == frames
    assert same  # pytest would be a minute at work to show the difference


def test_all_that_an_ended_worker_had_sent_is_read_at_once(sockets, streams):
    ours, theirs = sockets
    streams.add(worker(), ours)
    other = FrameStream(theirs, waits=True)
    for i in range(3):
        other.send([bytes([i]) * 60_000])
    other.close()
    assert [frames[0][0] for _, frames in streams.receive()] == [0, 1, 2]
    assert streams.receive() == []


def test_a_socket_of_another_user_is_not_taken(monkeypatch):
    """A worker on the robot's node connects to a name that others can read; both ends ask whose process the other is."""
    name = f"parl_like-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen(2)
        with cluster._connected(name) as ours, listener.accept()[0] as theirs:
            assert cluster._is_ours(ours) and cluster._is_ours(theirs)
        monkeypatch.setattr(cluster.os, "geteuid", lambda: os.getuid() + 1)
        assert cluster._connected(name) is None
    assert cluster._connected("parl_like-nobody") is None
