"""Messages: what is packed comes back as it was; of what anybody else made, nothing but a WireError comes out."""

import io
import marshal
import math
import pickle
import random
import re
import struct
import sys
import tracemalloc

import msgspec
import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from parl_like.drivers.messages import (
    DTYPES,
    INLINE_LIMIT,
    MAGIC,
    PREFIX,
    VERSION,
    Kind,
    Message,
    WireError,
    pack,
    pack_error,
    pack_state,
    text_of,
    unpack,
    unpack_state,
)
from parl_like.values.spec import Spec

MUTATED = 50_000  # messages in every run; a million in the score card (`parl-like bench faults`)
SPECS = [
    Spec("obs.goal", (4,), np.dtype("f4")),
    Spec("action", (), np.dtype("i8"), 0, 3),
    Spec("done", (), np.dtype("b1")),
]


def rows(n=3):
    obs = np.arange(4 * n, dtype="f4").reshape(n, 4)
    return {"obs.goal": obs, "action": np.arange(n) % 4, "done": np.arange(n) % 2 == 1}


def sent(*args, large=False, **kwargs):
    """The frames as they leave the wire: plain bytes; `large`: as if they did not fit into one."""
    with pytest.MonkeyPatch.context() as patch:
        if large:
            patch.setattr("parl_like.drivers.messages.INLINE_LIMIT", 0)
        return [bytes(frame) for frame in pack(*args, **kwargs)]


def framed(header):
    """A first frame with this header."""
    return PREFIX + struct.pack("<I", len(header)) + header


def header(*fields, kind=3, task="RL", request=0, rows=0, notes=None, more=()):
    return framed(msgspec.msgpack.encode([kind, task, request, rows, list(fields), notes or {}, *more]))


def refused(frames, text):
    with pytest.raises(WireError, match=re.escape(text)):
        unpack(frames)


# ------------------------------------------------------------------------------------------------ round trips


@given(st.data())
def test_every_dtype_shape_and_layout_comes_back(data):
    arrays = {}
    for name in data.draw(st.lists(st.text(max_size=20), unique=True, max_size=4)):
        dtype = np.dtype("<" + data.draw(st.sampled_from(DTYPES)))
        array = data.draw(npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=8, min_side=0, max_side=3)))
        if data.draw(st.booleans()):
            array = array.T
        if array.ndim and data.draw(st.booleans()):
            array = array[::-2]
        arrays[name] = array
    notes = data.draw(
        st.dictionaries(
            st.text(max_size=9),
            st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=9)
            | st.lists(st.integers(-(2**63), 2**64 - 1), max_size=3),
            max_size=4,
        )
    )  # fmt: skip
    kind, request, n = data.draw(st.sampled_from(Kind)), data.draw(st.integers(0, 2**63)), data.draw(st.integers(0, 2**63))
    task, large = data.draw(st.text(max_size=20)), data.draw(st.booleans())
    message = unpack(sent(kind, task=task, request=request, rows=n, arrays=arrays, notes=notes, large=large))
    assert (message.kind, message.task, message.request, message.rows, message.notes) == (kind, task, request, n, notes)
    assert type(message.kind) is Kind and list(message.arrays) == list(arrays)
    assert [type(value) for value in message.notes.values()] == [type(value) for value in notes.values()]
    for name, array in arrays.items():
        got = message.arrays[name]
        assert got.shape == array.shape and got.dtype == array.dtype and got.tobytes() == array.tobytes()
        assert not got.flags.writeable


def test_nothing_but_a_kind_is_a_message():
    message = unpack(pack(Kind.HELLO))
    assert (message.kind, message.task, message.request, message.rows, message.arrays, message.notes) == (
        Kind.HELLO,
        "",
        0,
        0,
        {},
        {},
    )


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,) * 8, (2,) * 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_scalars_and_empty_arrays(shape, dtype):
    array = np.ones(shape, dtype)
    got = unpack(pack(Kind.REPLY, arrays={"a": array})).arrays["a"]
    assert got.shape == shape and got.dtype == array.dtype and (got == array).all()


def test_large_arrays_are_sent_and_read_where_they_lie():
    array, turned = np.zeros((2, 9000)), np.arange(18_000.0).reshape(2, 9000).T
    frames = pack(Kind.PREDICT, arrays={"a": array, "turned": turned})
    assert np.shares_memory(np.frombuffer(frames[1], "u1"), array)
    assert not np.shares_memory(np.frombuffer(frames[2], "u1"), turned)
    got = [bytes(frame) for frame in frames]
    message = unpack(got)
    assert np.shares_memory(message.arrays["a"], np.frombuffer(got[1], "u1"))
    assert (message.arrays["turned"] == turned).all()
    with pytest.raises(ValueError, match="read-only"):
        message.arrays["a"][0] = 1


@pytest.mark.parametrize("n", [0, 1, 3, 70_000])
def test_small_messages_travel_as_one_frame_and_large_ones_as_they_are(n):
    frames = sent(Kind.PREDICT, task="RL", request=4, rows=n, arrays=rows(n), notes={"turn": 2})
    assert len(frames) == (1 if n < 70_000 else 4) and (n == 70_000) == (sum(a.nbytes for a in rows(n).values()) > INLINE_LIMIT)
    message = unpack(frames)
    assert (message.task, message.request, message.rows, message.notes) == ("RL", 4, n, {"turn": 2})
    for name, array in rows(n).items():
        np.testing.assert_array_equal(message.arrays[name], array, strict=True)
        assert message.arrays[name].flags.aligned or n == 70_000


# ------------------------------------------------------------------------------------------------ what is not sent


@pytest.mark.parametrize(
    "parts, text",
    [
        ({"arrays": {"a": np.zeros(2, ">f4")}}, "dtype: expected one of u1, u2"),
        ({"arrays": {"a": np.array([None])}}, "for 'a', got object; convert it with astype"),
        ({"arrays": {"a": np.array(["x"])}}, "got <U1"),
        ({"arrays": {"a": np.zeros(2, "M8[s]")}}, "got datetime64[s]"),
        ({"arrays": {"a": np.zeros(2, "c8")}}, "got complex64"),
        ({"arrays": {"a": np.zeros(2, "f4,i4")}}, "for 'a', got ["),
        ({"notes": {"a": object()}}, "header: expected plain values, got Encoding objects of type object"),
        ({"notes": {"a": 2**64}}, "got can't serialize ints"),
        ({"task": "\ud800"}, "surrogates not allowed"),
        ({"rows": np.int64(1)}, "got Encoding objects of type numpy.int64"),
    ],
)
def test_the_sender_hears_of_what_cannot_be_sent(parts, text):
    with pytest.raises(WireError, match=re.escape(text)) as caught:
        pack(**{"kind": Kind.PREDICT} | parts)
    assert "expected" in str(caught.value)


# ------------------------------------------------------------------------------------------------ what is refused


def test_refusals_of_the_envelope():
    good = sent(Kind.PREDICT, arrays=rows())
    refused([], "expected what parl_like.drivers.messages.pack makes")
    for head in (b"", b"P", PREFIX[:3], b"GET / HTTP/1.1", b"plk\x01" + good[0][4:]):
        refused([head, *good[1:]], "magic: expected a message that begins with b'PLK', got ")
    for head in (PREFIX, PREFIX + b"\xff\xff\xff\xff", good[0][:20], good[0][:-8], good[0] + bytes(8)):
        refused([head], "expected ")


@pytest.mark.parametrize("theirs, who", [(0, "at the peer"), (VERSION + 1, "here"), (255, "here")])
def test_both_directions_of_a_version_skew_are_refused_with_both_versions(theirs, who):
    for rest in (sent(Kind.HELLO)[0][4:], b"?"):  # whatever comes after the version: it may mean something else there
        with pytest.raises(WireError, match=f"^version: expected protocol {VERSION}, got protocol {theirs}; upgrade "
                                            f"parl_like {who}, "):
            unpack([MAGIC + bytes((theirs,)) + rest])


@pytest.mark.parametrize(
    "head, text",
    [
        (framed(b"\xc1"), "expected what parl_like.drivers.messages.pack makes, got "),
        (header(more=[1]), "length 6, got 7"),
        (framed(msgspec.msgpack.encode({"kind": 1})), "something else (Expected `array`, got `object`"),
        (framed(msgspec.msgpack.encode([1, "", 0, 0, []])), "length 6, got 5"),
        (header(kind=12), "Invalid enum value 12"),
        (header(kind="PREDICT"), "something else (Expected `int`, got `str`"),
        (header(task=b"RL"), "something else (Expected `str`, got `bytes`"),
        (header().replace(b"\xa2RL", b"\xa2\xff\xff"), "utf-8"),
        (header(rows=1.5), "something else (Expected `int`, got `float`"),
        (header([1, "u1", []]), "something else (Expected `str`, got `int`"),
        (header(["a", "O8", [1]]), "Invalid enum value 'O8'"),
        (header(["a", "|O", [1]]), "Invalid enum value '|O'"),
        (header(["a", ">f4", [1]]), "Invalid enum value '>f4'"),
        (header(["a", "M8", [1]]), "Invalid enum value 'M8'"),
        (header(["a", "u1", [-1]]), "expected "),
        (header(["a", "u1", [2**64 - 1]]), "expected "),
        (header(["a", "u1", [1.0]]), "something else (Expected `int`, got `float`"),
        (header(["a", "u1", 1]), "something else (Expected `array`, got `int`"),
        (header(["a", "u1", [1], 0]), "length 3, got 4"),
        (header(notes={"a": {"b": 1}}), "something else (Expected"),
        (header(notes={"a": b"1"}), "something else (Expected"),
        (header(notes={"a": msgspec.msgpack.Ext(1, b"1")}), "something else (Expected"),
        (framed(b"\x91" * 4000), "got "),
        (framed(b"\x96\x03\xa0\x00\x00\x90\xdf\xff\xff\xff\xff"), "got "),
    ],
)
def test_refusals_of_the_header(head, text):
    refused([head, b"\0"], text)


def test_refusals_of_the_frames():
    a = ["a", "f4", [2, 3]]
    refused([header(a), bytes(24), b""], "frames: expected 2, the header's fields and itself, got 3")
    for size in (0, 23, 25, 48):
        refused([header(a), bytes(size)], f"size: expected 24 bytes for 'a', (2, 3) f4, got {size} bytes")
        padded = header(a) + bytes(-len(header(a)) % 8)
        refused([padded + bytes(size)], "expected ")
    refused([header(a, a), bytes(24), bytes(24)], "fields: expected names that occur once")
    assert unpack([header(a), bytes(24)]).arrays["a"].shape == (2, 3)
    # 2**64 and 2**320 bytes are no 0, and dimensions that NumPy cannot have are no array though it would be empty
    refused([header(["a", "f8", [2**40, 2**21]]), b""], f"expected {2**64} bytes")
    refused([header(["a", "u1", [2**40] * 8]), b""], f"expected {2**320} bytes")
    refused([header(["a", "u1", [0] + [2**40] * 7]), b""], "expected ")


def test_declared_sizes_allocate_nothing():
    frames = [
        [header(["a", "f8", [2**40]]), bytes(8)],
        [header(["a", "f8", [2**27]])],  # 1 GB
        [header(["a", "u1", [0] + [2**40] * 7]), b""],
        [header(*[[f"{i}", "f8", [2**40] * 8] for i in range(40)]), *[b""] * 40],
        [framed(b"\xdd\xff\xff\xff\xff")],
        [framed(b"\x96\x03\xdb\xff\xff\xff\xff")],
        [framed(b"\x96\x03\xa0\x00\x00\x90\xdf\xff\xff\xff\xff")],
        [bytes(1 << 24)],
    ]
    tracemalloc.start()
    try:
        for message in frames:
            with pytest.raises(WireError):
                unpack(message)
        assert tracemalloc.get_traced_memory()[1] < 12 << 20  # no copy of the last; a table of the interpreter may grow by 4 MB
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------------------------------------ hostile bytes


def well_typed(message, frames):
    """Whatever was accepted is a message as `pack` makes them."""
    assert type(message) is Message and type(message.kind) is Kind
    assert type(message.task) is str and type(message.request) is int and type(message.rows) is int
    assert sum(array.nbytes for array in message.arrays.values()) <= sum(map(len, frames))
    for name, array in message.arrays.items():
        assert type(name) is str and array.dtype.str[1:] in DTYPES and array.dtype.isnative
        assert not array.flags.writeable
    for key, value in message.notes.items():
        assert type(key) is str and type(value) in (int, float, str, bool, type(None), list)
        assert type(value) is not list or all(type(part) is int for part in value)


def plain(value):
    """Whether a state holds nothing but what `pack_state` takes."""
    if isinstance(value, (dict, list)):
        return all(map(plain, value.values() if isinstance(value, dict) else value))
    return type(value) in (int, float, str, bool, type(None), np.ndarray, torch.Tensor)


HOSTILE = [
    -1, 0, 1, 12, 2**31, 2**40, 2**40 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), None, True, 1.5, math.nan, "", "a", "x" * 129,
    "x" * 3000,
    "O8", "V4", "<f4", "f4", "b1", "c8", "../x", "a\n", "__class__", b"x", [], [[]], {}, {"a": 1}, {1: [None]}, [2**40] * 8,
    [0] * 9,
    [0, 2**40, 2**40], ["a", "f4", [1]], [["a", "u1", []]], msgspec.msgpack.Ext(5, b"abc"), msgspec.Raw(b"\xc1"),
    msgspec.Raw(b"\x91" * 200 + b"\xc0"), msgspec.Raw(b"\xdd\xff\xff\xff\xff"),
]  # fmt: skip


def seed_messages():
    frames = [
        message
        for large in (False, True)
        for message in (
            sent(Kind.PREDICT, task="RL", request=5, rows=3, arrays=rows(), large=large),
            sent(Kind.LEARN, task="t", rows=2, arrays=rows(2), large=large,
                 notes={"seeds": [1, 2], "text": "abc", "lr": 0.5, "on": True, "none": None}),
            sent(Kind.HELLO),
            sent(Kind.REPLY, large=large,
                 arrays={"s": np.array(2.0), "e": np.zeros((0, 3), "i2"), "m": np.zeros((1,) * 8, "f2")}),
            sent(Kind.STATE, arrays=pack_state({"w": np.arange(3.0), "n": {"big": 2**70, "ok": np.array([True])}}), large=large),
        )
    ]
    ends = [8 + int.from_bytes(message[0][4:8], "little") for message in frames]
    return [(message, msgspec.msgpack.decode(message[0][8:end])) for message, end in zip(frames, ends, strict=True)]


def replaced(rng, node, value):
    """`node` with `value` at a random place in it, or under one more key."""
    if isinstance(node, list) and node and rng.random() < 0.8:
        node = list(node)
        i = rng.randrange(len(node))
        node[i] = replaced(rng, node[i], value)
        return node
    if isinstance(node, dict) and rng.random() < 0.8:
        return node | {rng.choice([*node, "new", "x" * 129, 1]): value}
    return value


def damaged(rng, data):
    """Bytes turned over, cut, added, or moved."""
    data = bytearray(data)
    how, at = rng.random(), rng.randrange(len(data) + 1)
    if how < 0.6 and data:
        for _ in range(rng.choice((1, 1, 2, 8))):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0x90, 0xC1, 0xDB, 0xDD, 0xFF, rng.randrange(256)))
    elif how < 0.75:
        del data[at:]
    elif how < 0.9:
        data[at:at] = rng.randbytes(rng.choice((1, 2, 8, 40)))
    else:
        data[at:] = data[rng.randrange(len(data) + 1) :]
    return bytes(data)


def mutant(rng, seeds):
    frames, content = rng.choice(seeds)
    frames = list(frames)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        how = rng.random()
        if how < 0.45:
            content = replaced(rng, content, rng.choice(HOSTILE))
            frames[:1] = [framed(msgspec.msgpack.encode(content))]
        elif how < 0.7 and frames:
            frames[0] = damaged(rng, frames[0])
        elif how < 0.85 and frames:
            i = rng.randrange(len(frames))
            frames[i] = damaged(rng, frames[i])
        else:
            other = rng.choice(seeds)[0]
            i, j = rng.randrange(len(frames) + 1), rng.randrange(len(other))
            if how < 0.95:
                frames[i : i + rng.randrange(2)] = [other[j]]
            else:
                del frames[i:]
    return frames


def fuzz(count, seed):
    """Feeds mutated messages to all that reads them; returns how many got how far."""
    rng, seeds = random.Random(seed), seed_messages()
    refusals, accepted, states = 0, 0, 0
    for i in range(count):
        frames = mutant(rng, seeds)
        try:
            message = unpack(frames)
            accepted += 1
            well_typed(message, frames)
            if message.kind is Kind.STATE:
                assert plain(unpack_state(message.arrays))
                states += 1
        except WireError:
            refusals += 1
        except BaseException:
            print(f"message {i} of seed {seed}: {frames}", file=sys.stderr)
            raise
    return refusals, accepted, states


@pytest.mark.timeout(300)
def test_only_a_wire_error_comes_of_mutated_messages():
    refusals, accepted, states = fuzz(MUTATED, 1)
    assert min(accepted, refusals) > MUTATED / 50 and states > MUTATED / 1000


@given(st.lists(st.binary(max_size=60), max_size=4), st.sampled_from([b"", MAGIC, PREFIX, PREFIX + b"\5\0\0\0\x96\x03\xa0\0\0"]))
def test_only_a_wire_error_comes_of_raw_bytes(frames, start):
    frames[:1] = [start + frame for frame in frames[:1]]
    try:
        well_typed(unpack(frames), frames)
    except WireError:
        pass


@given(st.binary(max_size=80) | st.text(st.sampled_from('[]{}",:$arytensofl01 \n\\u'), max_size=60).map(str.encode),
       st.binary(max_size=16), st.sampled_from(["F32 a", "BF16 a", " ", "U8 b"]))
def test_only_a_wire_error_comes_of_raw_bytes_as_a_state(text, data, name):
    try:
        assert plain(unpack_state({"json": np.frombuffer(text, "u1"), name: np.frombuffer(data, "u1")}))
    except WireError:
        pass


# ------------------------------------------------------------------------------------------------ payloads


class Bomb:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return eval, (self.command,)


def payloads(marker):
    """What makes a mark where somebody unpickles, evaluates, imports, formats or follows it."""
    code = f"open({str(marker)!r}, 'w')"
    bomb = Bomb(code)
    npy, npz, pt = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(npy, np.array([bomb], object), allow_pickle=True)
    np.savez(npz, a=np.array([bomb], object))
    torch.save(bomb, pt)
    return [
        *(pickle.dumps(bomb, protocol) for protocol in range(6)),
        f"c__builtin__\neval\n(S{code!r}\ntR.".encode(),
        f"cos\nsystem\n(S'touch {marker}'\ntR.".encode(),
        npy.getvalue(),
        npz.getvalue(),
        pt.getvalue(),
        marshal.dumps(compile(code, "x", "eval")),
        f"!!python/object/apply:os.system ['touch {marker}']".encode(),
        f"!!python/object/new:eval [\"{code}\"]".encode(),
        b"!!python/module:antigravity",
        b"&a [*a, *a, *a]",
        code.encode(),
        f"__import__('os').system('touch {marker}')".encode(),
        f"$(touch {marker}); `touch {marker}` | touch {marker}".encode(),
        b"{0.__class__.__mro__} %n%s ${7*7} {{7*7}}",
        b"../../../../tmp/x",
        str(marker).encode(),
        b"file:///etc/passwd\0.json",
        b"..",
        b'{"$array": "../../x", "__reduce__": "os.system", "__class__": "Bomb"}',
        msgspec.msgpack.encode(msgspec.msgpack.Ext(-1, bytes(12))),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(42, pickle.dumps(bomb))),
    ]


def test_payloads_are_never_executed(tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    found = payloads(marker)
    eval(found[16])  # the payload works …
    assert marker.exists()
    marker.unlink()
    pickle.loads(found[2])
    assert marker.exists()
    marker.unlink()

    def never(*args, **kwargs):
        raise AssertionError("a payload was given to somebody who would execute it")

    for module, names in ((pickle, ("load", "loads", "Unpickler", "_load", "_loads")),
                          (yaml, ("load", "load_all", "unsafe_load", "full_load")),
                          (np, ("load",)), (torch, ("load",))):  # fmt: skip
        for name in names:
            monkeypatch.setattr(module, name, never)
    monkeypatch.chdir(tmp_path)
    accepted = 0
    for payload in found:
        text = payload.decode("latin-1")
        field = ["a", "u1", [len(payload)]]
        u1 = np.frombuffer(payload, "u1")
        messages = [
            [payload],
            [payload, payload],
            [MAGIC + payload],
            [framed(payload)],
            [header(field), payload],
            [header(["a", "f8", [len(payload) // 8]]), payload],
            [header(["a", "O8", [len(payload) // 8]]), payload],
            [header(field, task=text), payload],
            [header([text, "u1", [len(payload)]]), payload],
            [header(["a", text, [len(payload)]]), payload],
            [header(["a", "u1", payload]), payload],
            [header(field, kind=text), payload],
            [header(field, notes={text: text}), payload],
            [header(field, notes={"a": payload}), payload],
        ]
        for frames in messages:
            try:
                message = unpack(frames)
            except WireError:
                continue
            well_typed(message, frames)
            accepted += 1
            if message.arrays:
                assert next(iter(message.arrays.values())).tobytes() == payload  # bytes, and no more
            with pytest.raises(WireError):
                unpack_state(message.arrays)
        for arrays in (
            {"json": u1},
            {"json": u1, "U8 a": u1},
            {"json": np.frombuffer(b'{"a":{"$tensor":"a"}}', "u1"), f"{text} a": u1},
        ):
            try:
                assert plain(unpack_state(arrays))
            except WireError:
                pass
        loaded = unpack_state(pack_state({"text": text, "a": u1}))
        assert loaded["text"] == text and (loaded["a"] == u1).all()
    assert accepted > 2 * len(found)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------ states


def same(a, b):
    """Equal in type, shape, dtype and every bit; a tuple counts as a list."""
    if isinstance(a, (list, tuple)):
        return type(b) is list and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor):
        bits = torch.int16 if a.dtype is torch.bfloat16 else a.dtype
        alike = type(b) is torch.Tensor and a.dtype == b.dtype and a.shape == b.shape
        return alike and bool((a.view(bits) == b.view(bits)).all())
    if isinstance(a, np.ndarray):
        return type(b) is np.ndarray and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and (a == b or a != a and b != b)


def test_a_state_comes_back_through_a_message():
    generator = np.random.default_rng(1)
    tree = {
        "model": {"w": torch.arange(6.0).reshape(2, 3).T, "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
                  "n": torch.tensor(3),
                  "b": torch.zeros(0, 2, dtype=torch.bfloat16), "on": torch.tensor([True, False]),
                  "i": torch.tensor([1], dtype=torch.int32)},
        "buffer": {"f4": np.arange(4, dtype="f4"), "f8": np.arange(6.0).reshape(2, 3)[:, ::2], "b": np.array([[True], [False]]),
                   "u1": np.arange(5, dtype="u1"), "u2": np.array(7, "u2"), "empty": np.zeros((0, 3), "i4"),
                   "turned": np.zeros((2, 3), "f2").T},
        "rng": generator.bit_generator.state, "big": [2**64, -(2**200), 2**63, 2**63 - 1],
        "plain": {"none": None, "yes": True, "no": False, "int": -5, "float": 0.1, "nan": math.nan, "inf": -math.inf,
                  "text": "ä\n\ud800\0"},
        "tuple": (1, (2.0, "y")), "dict": {}, "list": [],
        "nested": {"a": {"b": {}}},
        "$array": {"$tensor": "x", "$$": 1, "": 2, "a.b": np.ones(1), "a_b": np.zeros(1)},
    }  # fmt: skip
    frames = sent(Kind.STATE, arrays=pack_state(tree))
    loaded = unpack_state(unpack(frames).arrays)
    assert same(tree, loaded)
    loaded["buffer"]["f4"][0] = 9  # its own memory
    loaded["model"]["w"][0] = 9
    again = np.random.default_rng(2)
    again.bit_generator.state = loaded["rng"]
    assert again.random() == generator.random()


@pytest.mark.parametrize("value",
                         [{}, [], None, 3, "x", np.arange(3), torch.arange(3), [{}, [[]]], np.zeros(2, ">i4"),
                          np.float32(2)], ids=str)
def test_any_value_is_a_state(value):
    expected = value.astype("<i4") if isinstance(value, np.ndarray) and value.dtype == ">i4" else value
    expected = 2.0 if isinstance(value, np.float32) else expected
    assert same(expected, unpack_state(pack_state(value)))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
        | st.sampled_from(DTYPES).flatmap(lambda code: npst.arrays("<" + code,
                                                                   npst.array_shapes(min_dims=0, min_side=0, max_side=3)))
        | npst.arrays("f4", 3).map(torch.from_numpy).map(torch.Tensor.bfloat16),
        lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=3), part, max_size=3),
        max_leaves=12,
    )
)  # fmt: skip
def test_every_nested_state_comes_back(value):
    assert same(value, unpack_state(pack_state(value)))


def test_a_state_is_a_copy_of_its_moment():
    weights = np.zeros(3)
    arrays = pack_state({"w": weights})
    weights += 1
    assert unpack_state(arrays)["w"].tolist() == [0, 0, 0]


def endless():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value, text",
    [
        (lambda: {"a": {"b": object()}}, "state, 'state.a.b': expected an array, tensor, None, bool, int, float, str, list or "
                                         "dict, got object"),
        (lambda: {"a": np.array([None])}, "got ndarray of object"),
        (lambda: {"a": np.zeros(1, "c8")}, "got ndarray of complex64"),
        (lambda: {"a": torch.zeros(1, device="meta")}, "got Tensor of torch.float32"),
        (lambda: {"a": torch.zeros(1, dtype=torch.complex64)}, "got Tensor of torch.complex64"),
        (lambda: {1: 2}, "expected str keys, got 1 (int)"),
        (lambda: {"a": {1, 2}}, "got set"),
        (lambda: {"a": bytearray(2)}, "got bytearray"),
        (endless, "at most 64 levels"),
        (lambda: {"a": b"x"}, "got bytes"),
    ],
)
def test_the_sender_hears_of_a_state_that_cannot_be_sent(value, text):
    with pytest.raises(WireError, match=re.escape(text)):
        pack_state(value())


VALUES = '{"a":{"$array":"a"},"b":{"$tensor":"b"}}'


def state(values, **arrays):
    return {"json": np.frombuffer(values.encode(), "u1"), **{name.replace("_", " "): array for name, array in arrays.items()}}


@pytest.mark.parametrize(
    "arrays, text",
    [
        ({}, "'json'"),
        (state("[" * 100_000), "the JSON that was written, got "),
        (state("[" * 70 + "]" * 70), "at most 64 levels"),
        (state(""), "the JSON that was written, got "),
        (state("NaN"), "not finite"),
        (state('{"a":1,"a":2}'), "a key is given twice"),
        (state('{"$int":"9"}'), "got $int '9'"),
        (state('{"$array":"a"}'), "an array used once, got $array 'a'"),
        (state("9" * 5000), "the JSON that was written, got "),
        (state(VALUES.replace('"b"}', '"a"}'), F32_a=np.zeros(2, "f4")), "an array used once, got $tensor 'a'"),
        (state('{"a":{"$array":"a"}}', F32_a=np.zeros(2, "f4"), BF16_b=np.zeros(1, "u2")), "a place for array 'b', got none"),
        (state('{"$array":"a"}', BF16_a=np.zeros(1, "u2")), "an array used once, got $array 'a'"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_damaged_state_is_refused(arrays, text):
    assert unpack_state(state(VALUES, F32_a=np.zeros(2, "f4"), BF16_b=np.zeros(1, "u2")))["b"].dtype == torch.bfloat16
    with pytest.raises(WireError, match=re.escape(text)) as caught:
        unpack_state(arrays)
    assert "archive" not in str(caught.value)


def test_long_texts_of_errors_are_cut_by_their_sender():
    error = ValueError("begin" + "x" * 20_000_000 + "end")
    frames = pack(Kind.FAILED, arrays=pack_error(error))
    assert sum(len(bytes(frame)) for frame in frames) < 60_000
    message = unpack([bytes(frame) for frame in frames])
    for name in ("text", "trace"):
        said = text_of(message, name)
        assert said.endswith("end" if name == "text" else "end\n") and "characters left out" in said and len(said) < 21_000
    assert text_of(message).startswith("begin")
