"""Frames over a stream socket: whole, in order, once, whatever the pieces in which they come."""

import random
import socket
import struct

import numpy as np
import pytest

from parl_like.drivers.frame_stream import FrameStream
from parl_like.drivers.messages import INLINE_LIMIT, Kind, WireError, pack, unpack


@pytest.fixture
def ends():
    """Two ends, of which the first never waits, as the robot's."""
    one, two = socket.socketpair()
    streams = FrameStream(one, waits=False), FrameStream(two, waits=True)
    yield streams
    for stream in streams:
        stream.close()


def as_bytes(messages):
    return [[bytes(frame) for frame in frames] for frames in messages]


def test_messages_arrive_as_they_were_sent(ends):
    arrays = {"empty": np.zeros((0, 2)), "one": np.array(1.5), "long": np.arange(9_000)}
    for robot, worker in (ends, ends[::-1]):
        for number in range(3):
            robot.send(pack(Kind.LEARN, task="RL", request=number, rows=3, arrays=arrays if number < 2 else {}))
        messages = []
        while len(messages) < 3:
            messages += worker.receive(wait=True)
        assert [unpack(frames).request for frames in messages] == [0, 1, 2]
        for name, array in arrays.items():
            got = unpack(messages[1]).arrays[name]
            np.testing.assert_array_equal(got, array, strict=True)
            assert not got.flags.writeable
        assert worker.receive() == []


@pytest.mark.parametrize("seed", range(5))
def test_pieces_of_any_size_make_the_same_messages(seed):
    rng = random.Random(seed)
    sizes = (0, 1, 7, 300, INLINE_LIMIT - 1, INLINE_LIMIT + 1, 3 * INLINE_LIMIT)
    sent = [[rng.randbytes(rng.choice(sizes)) for _ in range(rng.randint(1, 5))] for _ in range(12)]
    raw, end = socket.socketpair()
    data = b"".join(struct.pack(f"<I{len(frames)}Q", len(frames), *map(len, frames)) + b"".join(frames) for frames in sent)
    stream, came = FrameStream(end, waits=True), []
    with raw:
        while data:
            n = rng.choice((1, 3, 11, 12, 13, 100, 70_000, 150_000))
            raw.sendall(data[:n])
            data = data[n:]
            came += as_bytes(stream.receive())
        assert came == sent
        raw.shutdown(socket.SHUT_RDWR)
        with pytest.raises(EOFError):
            stream.receive()
    stream.close()


def test_who_serves_many_does_not_wait_for_one_that_does_not_read(ends):
    robot, worker = ends
    frames = [b"head", bytes(5 << 20), b"tail"]
    assert not robot.send(frames)
    assert not robot.send([b"later"])
    came = []
    while not robot.flush():
        came += as_bytes(worker.receive())
    while len(came) < 2:
        came += as_bytes(worker.receive())
    assert came == [frames, [b"later"]]


def test_what_was_sent_before_the_end_is_read(ends):
    robot, worker = ends
    worker.send([b"last words"])
    worker.close()
    assert as_bytes(robot.receive()) == [[b"last words"]]
    with pytest.raises(EOFError):
        robot.receive()
    assert robot.send([b"to nobody"])  # nothing happens


@pytest.mark.parametrize("garbage", [struct.pack("<IQ", 0, 0), struct.pack("<IQ", 1 << 30, 5), b"\xff" * 100])
def test_garbage_becomes_a_message_that_cannot_be_read(garbage):
    raw, end = socket.socketpair()
    stream = FrameStream(end, waits=False)
    with raw:
        raw.sendall(garbage)
        (frames,) = stream.receive()
        with pytest.raises(WireError):
            unpack(frames)
    stream.close()


def test_a_size_that_never_comes_takes_no_memory():
    raw, end = socket.socketpair()
    stream = FrameStream(end, waits=False)
    with raw:
        raw.sendall(struct.pack("<IQ", 1, 1 << 60) + b"x")
        assert stream.receive() == []
    stream.close()
