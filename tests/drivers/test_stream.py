"""The stream of a session, over a link that loses, doubles, swaps and delays, on a clock that the tests move (faults F16 to F20)."""

import heapq
import itertools
import random

import pytest

from parl_like.drivers.stream import BEAT_EVERY, FIRST_WAIT, MAGIC, WINDOW, Stream
from parl_like.wire import WireError

TICK = 0.01


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Link:
    """One direction of a bad link.

    Args:
        lost: Share of the messages that vanish.
        doubled: Every so manyeth comes twice.
        swapped, delayed: Share of those that take 3 ticks, and of those that take up to 2 s, far beyond the time-out.
    """

    def __init__(self, clock, seed, lost=0.0, doubled=0, swapped=0.0, delayed=0.0):
        self.clock, self.random = clock, random.Random(seed)
        self.lost, self.doubled, self.swapped, self.delayed = lost, doubled, swapped, delayed
        self.way, self.order, self.put = [], itertools.count(), 0
        self.broken = False

    def send(self, frames):
        self.put += 1
        for _ in range(2 if self.doubled and self.put % self.doubled == 0 else 1):
            if self.broken or self.random.random() < self.lost:
                continue
            late = TICK / 2
            late += 3 * TICK if self.random.random() < self.swapped else 0.0
            late += self.random.uniform(0.5, 2.0) if self.random.random() < self.delayed else 0.0
            heapq.heappush(self.way, (self.clock.now + late, next(self.order), frames))

    def arrived(self):
        while self.way and self.way[0][0] <= self.clock.now:
            yield heapq.heappop(self.way)[2]


class Peer:
    """A stream, its outgoing link, and what its application was given."""

    def __init__(self, clock, link):
        self.stream, self.link, self.taken = Stream(7, clock), link, []

    def say(self, number):
        self.link.send(self.stream.send([number.to_bytes(4, "little"), bytes(20)]))

    def tick(self, incoming):
        for frames in incoming.arrived():
            self.taken += [int.from_bytes(message[0], "little") for message in self.stream.receive(frames)]
        self.stream.acknowledge()
        for frames in self.stream.due():
            self.link.send(frames)


def make_pair(**faults):
    clock = Clock()
    return clock, Peer(clock, Link(clock, 1, **faults)), Peer(clock, Link(clock, 2, **faults))


def tick(clock, a, b, n=1):
    for _ in range(n):
        clock.now += TICK
        b.tick(a.link)
        a.tick(b.link)


def exchange(n, most=32, clock=None, **faults):
    """Both sides say 0 … n − 1, with at most `most` of them unacknowledged."""
    clock, a, b = make_pair(**faults)
    said = [0, 0]
    for _ in range(100 * n):
        for i, peer in enumerate((a, b)):
            while said[i] < n and peer.stream.unacknowledged < most:
                peer.say(said[i])
                said[i] += 1
        tick(clock, a, b)
        if said == [n, n] and not a.stream.unacknowledged and not b.stream.unacknowledged:
            return a, b
    raise AssertionError(f"of {n} only {len(a.taken)} and {len(b.taken)} have arrived")


@pytest.mark.parametrize("faults", [
    {},
    {"lost": 0.01},
    {"lost": 0.1},
    {"doubled": 5},
    {"swapped": 0.3},
    {"delayed": 0.05},
    {"lost": 0.1, "doubled": 5, "swapped": 0.2, "delayed": 0.05},
], ids=str)
def test_every_message_arrives_once_and_in_order(faults):
    for peer in exchange(2_000, **faults):
        assert peer.taken == list(range(2_000))
        assert peer.stream.unacknowledged == peer.stream.unacknowledged_bytes == 0


def test_twenty_thousand_records_with_every_fault_at_once():
    for peer in exchange(20_000, lost=0.1, doubled=5, swapped=0.1, delayed=0.01):
        assert peer.taken == list(range(20_000))


@pytest.mark.parametrize("lost", [0.01, 0.1])
def test_rate_falls_less_than_three_times_the_loss(lost):
    """In messages on the link per record: without loss a record costs one message, and its acknowledgement part of one."""
    n = 2_000
    cost = sum(peer.link.put for peer in exchange(n)) / n
    lossy = sum(peer.link.put for peer in exchange(n, lost=lost)) / n
    assert cost / lossy > 1 - 3 * lost


def test_nothing_is_sent_twice_on_a_good_link():
    a, b = exchange(2_000)
    assert a.stream.resent == b.stream.resent == a.stream.doubled == b.stream.doubled == 0


def test_what_has_arrived_early_is_not_sent_again():
    clock, a, b = make_pair()
    a.link.broken = True
    a.say(0)
    a.link.broken = False
    for i in range(1, 60):
        a.say(i)
    tick(clock, a, b, int(2 * FIRST_WAIT / TICK))
    assert b.taken == list(range(60))
    assert a.stream.resent == 1


def test_link_broken_and_made_again():
    clock, a, b = make_pair()
    for i in range(10):
        a.say(i)
    tick(clock, a, b, 10)
    a.link.broken = b.link.broken = True
    for i in range(10, 30):
        a.say(i)
    tick(clock, a, b, int(20 / TICK))  # long enough for the longest pause between two tries
    assert b.taken == list(range(10)) and b.stream.silent > 19.0
    a.link.broken = b.link.broken = False
    a.stream.remade()
    tick(clock, a, b, 2)
    assert b.taken == list(range(30)) and b.stream.silent < 1.0
    tick(clock, a, b, 10)
    assert a.stream.unacknowledged == 0


def test_a_broken_link_is_not_flooded():
    clock, a, b = make_pair()
    a.link.broken = True
    a.say(0)
    before = a.link.put
    tick(clock, a, b, int(60 / TICK))
    assert 60 / 4.0 - 5 < a.stream.resent < 60 / 4.0 + 10  # at most every 4 s once it has doubled up to that
    assert a.link.put - before < 60 / BEAT_EVERY + 25


def test_acknowledged_is_what_the_application_has():
    clock = Clock()
    sender, receiver = Stream(1, clock), Stream(1, clock)
    (message,) = receiver.receive(sender.send([b"record"]))
    assert message == [b"record"]
    for frames in receiver.due():  # received, but not yet in its place
        sender.receive(frames)
    assert sender.unacknowledged == 1 and sender.unacknowledged_bytes == 6
    clock.now += 100.0
    assert sender.due() and sender.resent == 0  # a beat: it need not come again
    receiver.due()
    receiver.acknowledge()
    for frames in receiver.due():
        sender.receive(frames)
    assert sender.unacknowledged == sender.unacknowledged_bytes == 0


def test_beats_show_who_is_there():
    clock, a, b = make_pair()
    tick(clock, a, b, int(30 / TICK))
    assert a.stream.silent < 2 * BEAT_EVERY and b.stream.silent < 2 * BEAT_EVERY
    assert a.link.put < 40
    a.link.broken = True
    tick(clock, a, b, int(10 / TICK))
    assert b.stream.silent > 8.0 and a.stream.silent < 2 * BEAT_EVERY


def test_another_session_is_dropped_and_counted():
    old, new = Stream(1), Stream(2)
    assert new.receive(old.send([b"late"])) == []
    assert new.foreign == 1
    assert new.receive(Stream(2).send([b"first"])) == [[b"first"]]


def test_a_peer_cannot_make_the_other_keep_more_than_its_share():
    clock = Clock()
    sender, receiver = Stream(1, clock), Stream(1, clock, early_bytes=1_000)
    first, *others = [sender.send([bytes(100)]) for _ in range(WINDOW + 20)]
    for frames in reversed(others):
        assert receiver.receive(frames) == []
    assert sum(len(frames[0]) for frames in receiver._early.values()) <= 1_000
    assert len(receiver.receive(first)) == 1
    got = 1
    while got < WINDOW + 20:  # what was dropped comes again
        clock.now += 5.0
        for frames in sender.due():
            got += len(receiver.receive(frames))


def test_what_is_sent_again_is_what_was_sent_first():
    clock = Clock()
    sender, receiver = Stream(1, clock), Stream(1, clock)
    block = bytearray(b"before")
    sender.send([memoryview(block)])
    block[:] = b"after!"
    clock.now += 1.0
    (frames,) = sender.due()
    assert receiver.receive(frames) == [[b"before"]]


@pytest.mark.parametrize("spoil", [
    lambda frames: [],
    lambda frames: [b""],
    lambda frames: [frames[0][:-1], *frames[1:]],
    lambda frames: [frames[0] + b"x", *frames[1:]],
    lambda frames: [b"XXX" + frames[0][3:], *frames[1:]],
    lambda frames: [MAGIC + b"\x09" + frames[0][4:], *frames[1:]],
    lambda frames: [MAGIC + b"\x02" + frames[0][4:], *frames[1:]],  # a beat with a number
    lambda frames: frames[:1],  # a message without frames
    lambda frames: [frames[0][:12] + bytes(8) + frames[0][20:], *frames[1:]],  # without a number
    lambda frames: [frames[0][:20] + b"\xff" * 8 + frames[0][28:], *frames[1:]],  # acknowledges what was never sent
])
def test_malformed_heads_are_refused_and_change_nothing(spoil):
    sender, receiver = Stream(1), Stream(1)
    good = sender.send([b"record"])
    with pytest.raises(WireError, match="stream: expected"):
        receiver.receive(spoil(good))
    assert receiver.receive(good) == [[b"record"]]


def test_random_heads_raise_nothing_else():
    rng = random.Random(0)
    receiver = Stream(1)
    good = Stream(1).send([b"record"])
    for _ in range(20_000):
        head = bytearray(good[0])
        for _ in range(rng.randint(1, 4)):
            head[rng.randrange(len(head))] = rng.randrange(256)
        try:
            receiver.receive([bytes(head), b"x"][: rng.randint(1, 2)])
        except WireError:
            pass
        receiver.due()
