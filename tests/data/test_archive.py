"""Archives: what is written comes back exactly; what is damaged, crafted or newer never loads."""

import collections
import errno
import hashlib
import json
import math
import os
import pickle
import random
import re
import shutil
import socket
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from parl_like.data.rng import rng_state, set_rng_state, set_torch_rng_state, torch_rng_state
from parl_like.data.storage import archive, tree_encoding
from parl_like.data.storage.archive import ArchiveError, read_archive, read_components, read_manifest, write_archive
from parl_like.data.storage.safe_files import clean_partial, remove_folder, replace_file, set_aside
from parl_like.data.storage.tree_encoding import decode, encode

FROZEN = Path(__file__).parent / "frozen_format_1"
NUMPY_DTYPES = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]
TORCH_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip


def tiny():
    """A tree of three files, small enough to damage thousands of times."""
    return {
        "task.RL": {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "on": np.array([True, False]), "lr": 0.5, "note": "ab"},
        "counters": {"steps": 7, "big": 2**100},
    }


def frozen_tree():
    """What `frozen_format_1` holds. It was made with `write_archive(FROZEN, frozen_tree(), {"step": 7, "score": -math.inf})`.

    Those bytes never change; when FORMAT rises, a directory `frozen_format_2` is added beside it.
    """
    return {
        "task.RL": {
            "model": {"fc_0.w": torch.arange(6, dtype=torch.float32).reshape(2, 3) / 4,
                      "half": torch.ones(3, dtype=torch.bfloat16)},
            "optimiser": {"state": {"0": {"step": torch.tensor(3.0)}}, "lr": 1e-3},
        },
        "buffer.RL": {"obs": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "done": np.array([True, False]),
                      "empty": np.zeros((0, 2))},
        "counters": {"steps": 2**70, "nan": math.nan, "inf": math.inf, "$odd": {"$array": "text"}, "list": [1, [2.5, None, True]],
                     "ä": "\ud800"},
    }  # fmt: skip


def same(a, b):
    """Equal in type, shape, dtype and every bit; a NaN equals itself; a tuple counts as a list."""
    if isinstance(a, (list, tuple)):
        return type(b) is list and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.contiguous().view(-1).view(torch.uint8),
                                                                         b.view(-1).view(torch.uint8))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return repr(a) == repr(b) if isinstance(a, float) else a == b  # repr tells -0.0 from 0.0 and finds nan equal to itself


def round_trip(path, tree):
    write_archive(path, tree)
    return read_archive(path)[0]


def listing(folder):
    return sorted(os.listdir(folder))


# ------------------------------------------------------------------------------------------------ round trip


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (5,), (2, 3, 4)])
def test_arrays_come_back_bit_by_bit(tmp_path, dtype, shape):
    raw = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, (*shape, np.dtype(dtype).itemsize), dtype=np.uint8)
    array = raw.view(dtype).reshape(shape)
    back = round_trip(tmp_path / "a", {"x": array})["x"]
    assert same(array, back)
    assert back.flags.writeable and back.flags.aligned and back.flags.c_contiguous


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 2), (3,), (2, 3)])
def test_tensors_come_back_bit_by_bit(tmp_path, dtype, shape):
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    assert same(tensor, round_trip(tmp_path / "a", {"x": {"y": tensor}})["x"]["y"])


def test_arrays_that_are_not_plain_memory(tmp_path):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    gradient = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    tree = {
        "numpy": {
            "transposed": base.T, "strided": base[::2, ::-3], "fortran": np.asfortranarray(base),
            "broadcast": np.broadcast_to(base[0], (3, 6)),
            "big_endian": base.astype(">f4"), "offset": np.frombuffer(b"x" + base.tobytes(), np.float32, offset=1),
        },
        "torch": {"transposed": gradient.T, "parameter": gradient, "bf16": torch.ones(4, 2, dtype=torch.bfloat16).T[::2],
                  "expanded": torch.ones(1).expand(3)},
    }  # fmt: skip
    back = round_trip(tmp_path / "a", tree)
    for name, array in tree["numpy"].items():
        assert same(np.ascontiguousarray(array, "<f4"), back["numpy"][name]), name
    for name, tensor in tree["torch"].items():
        assert same(tensor.detach().clone(), back["torch"][name]), name
        assert not back["torch"][name].requires_grad


def test_plain_values_come_back(tmp_path):
    values = {
        "none": None, "bools": [True, False], "ints": [0, -1, 2**63 - 1, -(2**63), 2**63, -(2**127), 10**5000],
        "floats": [0.0, -0.0, 5.0, 1e300, 5e-324, 0.1, math.nan, math.inf, -math.inf],
        "text": ["", "ä", "\x00\n", "\ud800", "$int"],
        "nested": [[], {}, (1, (2,)), {"$array": "x"}, {"$": 1, "$$": 2, "a.b": 3}, {"$float": "nan", "other": 1},
                   {"$$int": "0x1"}],
    }  # fmt: skip
    back = round_trip(tmp_path / "a", {"values": values, "leaf": 3, "nothing": {}})
    assert same(values, back["values"]) and (back["leaf"], back["nothing"]) == (3, {})
    scalars = {"a": np.int64(3), "b": np.float32(0.5), "c": np.bool_(True), "d": np.float64("inf"),
               "e": collections.OrderedDict(x=1)}
    assert same({"a": 3, "b": 0.5, "c": True, "d": math.inf, "e": {"x": 1}}, round_trip(tmp_path / "b", {"s": scalars})["s"])


def test_an_empty_tree_comes_back(tmp_path):
    assert round_trip(tmp_path / "a", {}) == {}


def test_names_that_look_alike_stay_apart(tmp_path):
    tree = {"a": {"b.c": np.array(1), "b": {"c": np.array(2), "c-2": np.array(3)}, "ä": np.array(4), "ö": np.array(5),
                  "__metadata__": np.array(6)},
            "b": np.array(7), "c": {".": np.array(8), "": np.array(9), "x" * 500: np.array(10), "l": [np.array(11)]}}  # fmt: skip
    assert same(tree, round_trip(tmp_path / "a", tree))
    assert sorted(safetensors.numpy.load_file(tmp_path / "a" / "a.safetensors").values()) == [1, 2, 3, 4, 5, 6]


def test_the_manifest_says_what_is_there(tmp_path):
    write_archive(tmp_path / "a", tiny(), {"step": 7, "score": math.nan})
    manifest = read_manifest(tmp_path / "a")
    assert manifest.format == 1 and set(manifest.versions) == {"parl_like", "numpy", "python", "torch"}
    assert manifest.versions["numpy"] == np.__version__
    assert manifest.meta["step"] == 7 and math.isnan(manifest.meta["score"])
    assert [component.name for component in manifest.components] == ["task.RL", "counters"]
    files = manifest.components[0].files
    assert [file.name for file in files] == ["task.RL.json", "task.RL.safetensors"]
    assert [(t.name, t.dtype, t.shape) for t in files[1].tensors] == [("w", "F32", [2, 3]), ("on", "BOOL", [2])]
    for file in files:
        content = (tmp_path / "a" / file.name).read_bytes()
        assert (file.size, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert read_archive(tmp_path / "a")[1].components == manifest.components
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


def test_other_programs_read_the_array_files(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "BIG", 64)
    tree = {"x": {"small": np.arange(3, dtype=np.int16), "empty": np.zeros((2, 0)), "scalar": np.array(2.5),
                  "flag": np.array([True]),
                  "big": np.arange(24.0).reshape(2, 3, 4), "line": np.arange(100, dtype=np.uint8)}}  # fmt: skip
    write_archive(tmp_path / "a", tree)
    assert listing(tmp_path / "a") == ["manifest.json", "x.0.npy", "x.1.npy", "x.json", "x.safetensors"]
    library = safetensors.numpy.load_file(tmp_path / "a" / "x.safetensors")
    assert all(same(tree["x"][name], library[name]) for name in ("small", "empty", "scalar", "flag")) and len(library) == 4
    assert same(tree["x"]["big"], np.load(tmp_path / "a" / "x.0.npy", allow_pickle=False))
    assert same(tree["x"]["line"], np.load(tmp_path / "a" / "x.1.npy", allow_pickle=False))
    assert same(tree, read_archive(tmp_path / "a")[0])


@pytest.mark.parametrize("make", [lambda: np.zeros((1000, 8192), np.uint8), lambda: np.zeros((1000, 8192), np.uint8).T,
                                  lambda: torch.zeros(8_192_000, dtype=torch.uint8)])  # fmt: skip
@pytest.mark.parametrize("big", [1 << 20, 1 << 30])
def test_large_arrays_are_not_copied(tmp_path, monkeypatch, make, big):
    monkeypatch.setattr(archive, "BIG", big)
    array = make()
    grown, read = [], []
    for name in "ab":  # twice, for a table of the interpreter that happens to grow meanwhile (4 MB at once) is no copy
        tracemalloc.start()
        write_archive(tmp_path / name, {"x": array})
        grown.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()
        read_archive(tmp_path / name)
        read.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert min(grown) < 3e6, "8 MB were to be written from where they are"
    assert min(read) < 8.192e6 + 3e6, "8 MB were to be read to where they stay"


def test_nothing_is_ever_unpickled(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("unpickled")

    for name in ("loads", "load", "Unpickler", "dumps", "dump", "Pickler"):
        monkeypatch.setattr(pickle, name, refuse)
    tree = frozen_tree()
    assert same(tree, round_trip(tmp_path / "a", tree))


# ------------------------------------------------------------------------------------------------ refused at writing


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"x": {"y": object()}}, "'x.y': expected an array.*got object"),
        ({"x": {1: 2}}, r"str keys, got 1 \(int\)"),
        ({"x": np.array([object()])}, "got ndarray of object"),
        ({"x": np.zeros(2, "c8")}, "got ndarray of complex64"),
        ({"x": np.zeros(2, "M8[s]")}, "got ndarray of datetime64"),
        ({"x": np.zeros(2, [("a", "f4")])}, "got ndarray of"),
        ({"x": np.ma.masked_array([1, 2])}, "got MaskedArray"),
        ({"x": np.longdouble(1)}, "got longdouble"),
        ({"x": torch.zeros(2, dtype=torch.complex64)}, "got Tensor of torch.complex64"),
        ({"x": torch.zeros(2, dtype=torch.float8_e4m3fn)}, "got Tensor of torch.float8"),
        ({"x": torch.eye(2).to_sparse()}, "strided"),
        ({"x": torch.empty(2, device="meta")}, "strided"),
        ({"x": {"y": {1, 2}}}, "got set"),
        ({"x": b"bytes"}, "got bytes"),
        ({"../x": 1}, "component names"),
        ({".x": 1}, "component names"),
        ({"": 1}, "component names"),
        ({"a/b": 1}, "component names"),
        ({"a" * 181: 1}, "component names"),
        ({"x\n": 1}, "component names"),
        ({"manifest": 1}, "none of them 'manifest'"),
        ({"A": 1, "a": 2}, "more than case"),
        ({1: 2}, "component names"),
    ],
)  # fmt: skip
def test_what_cannot_be_stored_is_refused_before_anything_is_written(tmp_path, tree, expected):
    with pytest.raises(ArchiveError, match=expected):
        write_archive(tmp_path / "a", tree)
    assert listing(tmp_path) == []


def test_plain_values_have_a_number_before_memory_is_taken(tmp_path, monkeypatch):
    """Two bytes of JSON may be a dictionary of sixty; components count together."""
    tree = {"a": [[]] * 4000, "b": [{}] * 4000}
    write_archive(tmp_path / "x", tree)
    monkeypatch.setattr(tree_encoding, "MAX_PARTS", 10_000)
    with pytest.raises(ArchiveError, match=r"b\.json: expected at most 10000 plain values, got 16000; put long lists into"):
        read_archive(tmp_path / "x")
    with pytest.raises(ArchiveError, match=r"y: expected at most 10000 plain values, got 16000"):
        write_archive(tmp_path / "y", tree)
    assert not (tmp_path / "y").exists()


def test_meta_holds_plain_values_only(tmp_path):
    with pytest.raises(ArchiveError, match="'meta.x': expected plain values, got ndarray"):
        write_archive(tmp_path / "a", {}, {"x": np.zeros(2)})
    assert listing(tmp_path) == []


def test_limits_hold_at_writing_too(tmp_path, monkeypatch):
    loop = []
    loop.append(loop)
    with pytest.raises(ArchiveError, match="at most 64 levels"):
        write_archive(tmp_path / "a", {"x": loop})
    deepest = value = []
    for _ in range(63):
        deepest.append([])
        deepest = deepest[0]
    assert same(value, round_trip(tmp_path / "deep", {"x": value})["x"])
    monkeypatch.setattr(tree_encoding, "MAX_VALUES", 100)
    with pytest.raises(ArchiveError, match="at most 100 bytes of plain values.*into arrays"):
        write_archive(tmp_path / "a", {"x": list(range(100))})
    monkeypatch.setattr(archive, "MAX_MANIFEST", 100)
    with pytest.raises(ArchiveError, match="manifest.json: expected at most 100 bytes"):
        write_archive(tmp_path / "a", {"x": 1})
    assert listing(tmp_path) == ["deep"]


# ------------------------------------------------------------------------------------------------ in its place, or not at all


def test_an_archive_is_replaced_and_nothing_else(tmp_path):
    write_archive(tmp_path / "new" / "parents" / "a", {"x": 1, "old": 2})
    write_archive(tmp_path / "new" / "parents" / "a", {"x": 3})
    assert read_archive(tmp_path / "new" / "parents" / "a")[0] == {"x": 3}
    assert listing(tmp_path / "new" / "parents") == ["a"]
    (tmp_path / "empty").mkdir()
    assert round_trip(tmp_path / "empty", {"x": 1}) == {"x": 1}
    work = {"file": "text", "folder/thesis.tex": "text", "almost/manifest.json": "{}", "almost/index.html": "text",
            "arrays/x.npy": "text"}
    for name, text in work.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for name in ("file", "folder", "almost", "arrays", "link"):
        with pytest.raises(ArchiveError, match="expected a new name or an archive to replace"):
            write_archive(tmp_path / name, {"x": 1})
    assert {name: (tmp_path / name).read_text() for name in work} == work
    assert read_archive(tmp_path / "empty")[0] == {"x": 1}


STEPS = ("mkdir", "write", "fsync", "rename")


def fail_at(monkeypatch, k, error):
    """The k-th system call of a writer raises; returns a list with the names of the calls so far."""
    calls = []
    for name, function in [(name, getattr(os, name)) for name in STEPS]:
        def call(*args, name=name, real=function, **kwargs):
            if name == "mkdir" and ".partial." not in os.fspath(args[0]):
                return real(*args, **kwargs)  # pathlib asks for the parent, which is there
            calls.append(name)
            if len(calls) == k:
                raise error
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)
    return calls


@pytest.mark.parametrize("error", [
    OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EROFS, "Read-only file system"),
    OSError(errno.EACCES, "Permission denied"),
    OSError(errno.EDQUOT, "Disk quota exceeded"), OSError(errno.EIO, "Input/output error"), KeyboardInterrupt(),
], ids=repr)  # fmt: skip
@pytest.mark.parametrize("replacing", [False, True])
def test_an_error_at_any_step_leaves_the_old_archive(tmp_path, monkeypatch, error, replacing):
    if replacing:
        write_archive(tmp_path / "a", {"x": np.array(1)})
    for k in range(1, 100):
        with monkeypatch.context() as patch:
            calls = fail_at(patch, k, error)
            try:
                write_archive(tmp_path / "a", {"x": np.array(2)})
            except (OSError, KeyboardInterrupt) as raised:
                assert raised is error
            else:
                break
        try:
            kept = read_archive(tmp_path / "a")[0]["x"]
        except ArchiveError:
            assert not replacing
            assert listing(tmp_path) == []
        else:
            assert kept == 2 and calls.count("fsync") == 5 or replacing and kept == 1, "only the last fsync is after the rename"
            if kept == 2:
                remove_folder(tmp_path / "a")
                clean_partial(tmp_path)
                if replacing:
                    write_archive(tmp_path / "a", {"x": np.array(1)})
    else:
        pytest.fail("the writer never got through")
    # mkdir; safetensors: header and number, values, manifest; each file, the directory and its parent; the renames
    assert calls == ["mkdir", "write", "fsync", "write", "write", "fsync", "write", "fsync", "fsync",
                     *["rename"] * (1 + replacing), "fsync"]
    assert listing(tmp_path) == ["a"]
    assert read_archive(tmp_path / "a")[0]["x"] == 2


def test_a_file_system_without_directory_fsync_serves_too(tmp_path, monkeypatch):
    def fsync(file, real=os.fsync):
        if os.path.isdir(f"/proc/self/fd/{file}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    assert round_trip(tmp_path / "a", {"x": 1}) == {"x": 1}


def test_short_writes_are_continued(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "write", lambda file, data, real=os.write: real(file, data[:7]))
    assert same(tiny(), round_trip(tmp_path / "a", tiny()))


def test_what_an_interrupted_writer_left_is_removed_or_put_back(tmp_path):
    write_archive(tmp_path / "kept", {"x": 1})
    write_archive(tmp_path / "lost", {"x": 2})
    write_archive(tmp_path / "done", {"x": 3})
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    shutil.copytree(tmp_path / "done", tmp_path / ".replaced.done.0123abcd")
    (tmp_path / ".partial.kept.01234567").mkdir()
    (tmp_path / ".partial.kept.01234567" / "x.json").write_text("half")
    (tmp_path / ".partial.LATEST.89abcdef").write_text("half")
    (tmp_path / ".partial.link.89abcdef").symlink_to(outside)
    (tmp_path / ".partial").write_text("not ours")
    (tmp_path / ".partial.kept.tmp").write_text("not ours")
    aside = set_aside(tmp_path / "lost")
    assert not (tmp_path / "lost").exists()
    assert read_archive(tmp_path / "lost")[0] == {"x": 2}, "found beside its place"
    assert len(clean_partial(tmp_path)) == 5
    assert listing(tmp_path) == [".partial", ".partial.kept.tmp", "done", "kept", "lost", "outside"]
    assert [read_archive(tmp_path / name)[0]["x"] for name in ("kept", "lost", "done")] == [1, 2, 3]
    assert (outside / "file").read_text() == "mine"
    assert clean_partial(tmp_path) == []
    assert not aside.exists()


def test_removing_does_not_follow_links(tmp_path):
    outside = tmp_path / "outside"
    write_archive(outside, {"x": 1})
    write_archive(tmp_path / "a", {"x": 1})
    (tmp_path / "a" / "link").symlink_to(outside)
    (tmp_path / "b").symlink_to(outside)
    remove_folder(tmp_path / "a")
    remove_folder(tmp_path / "b")
    assert listing(tmp_path) == ["outside"]
    assert read_archive(outside)[0] == {"x": 1}


def test_a_small_file_is_replaced_in_one_step(tmp_path, monkeypatch):
    (tmp_path / "target").write_text("far")
    (tmp_path / "file").symlink_to(tmp_path / "target")
    replace_file(tmp_path / "file", b"one")
    assert (tmp_path / "file").read_text() == "one" and (tmp_path / "target").read_text() == "far"
    for k in (1, 2, 3):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
            fail_at(patch, k, OSError(errno.ENOSPC, "full"))
            replace_file(tmp_path / "file", b"two")
        assert (tmp_path / "file").read_text() == "one"
    assert listing(tmp_path) == ["file", "target"]


# ------------------------------------------------------------------------------------------------ damage (F37)


def damages(content, rng):
    """2,200 ways to change a directory {name: bytes}, each as (what, new directory)."""
    names = sorted(content)
    for _ in range(900):
        name = rng.choice(names)
        data = bytearray(content[name])
        for _ in range(rng.choice((1, 1, 1, 8))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        yield f"flip in {name}", content | {name: bytes(data)}
    for _ in range(400):
        name = rng.choice(names)
        yield f"truncated {name}", content | {name: content[name][: rng.randrange(len(content[name]))]}
    for _ in range(200):
        name = rng.choice(names)
        yield f"longer {name}", content | {name: content[name] + rng.randbytes(rng.randrange(1, 20))}
    for _ in range(100):
        gone = set(rng.sample(names, rng.randrange(1, len(names) + 1)))
        yield f"missing {gone}", {name: data for name, data in content.items() if name not in gone}
    for _ in range(100):
        extra = rng.choice(["x", ".hidden", "task.RL.0.npy", "counters.safetensors", "manifest.json.bak",
                            "z.json"]) + str(rng.randrange(9))
        yield f"extra {extra}", content | {extra: rng.choice(list(content.values()))}
    for _ in range(100):
        a, b = rng.sample(names, 2)
        yield f"{a} and {b} exchanged", content | {a: content[b], b: content[a]}
    text = content["manifest.json"].decode()
    words = [match.span() for match in re.finditer(r"[A-Za-z0-9._]+", text)]
    for _ in range(400):  # edits that leave good JSON
        start, end = rng.choice(words)
        word = text[start:end]
        new = str(rng.randrange(10 ** len(word))) if word.isdigit() else "".join(rng.sample(word, len(word)))
        yield f"manifest edited: {word} -> {new}", content | {"manifest.json": (text[:start] + new + text[end:]).encode()}


def become(folder, old, new):
    """Changes a directory of the files `old` into one of the files `new`."""
    for name in old.keys() | new.keys():
        if old.get(name) != new.get(name):
            (folder / name).unlink(missing_ok=True)  # a new file, for writing over one waits for the disk
            if name in new:
                (folder / name).write_bytes(new[name])


def test_no_damaged_copy_loads(tmp_path):
    folder = tmp_path / "a"
    write_archive(folder, tiny(), {"step": 100, "score": 0.5})
    content = {name: (folder / name).read_bytes() for name in listing(folder)}
    assert len(content) == 4
    on_disk, tried, loaded = dict(content), 0, []
    for what, new in damages(content, random.Random(0)):
        if new == content:
            continue
        become(folder, on_disk, new)
        on_disk, tried = new, tried + 1
        try:
            read_archive(folder)
        except ArchiveError:
            continue
        loaded.append(what)
    assert loaded == []
    assert tried >= 2000
    become(folder, on_disk, content)
    assert same(tiny(), read_archive(folder)[0]), "the damage was the reason"


def test_the_message_names_the_file_and_the_way_out(tmp_path):
    write_archive(tmp_path / "a", tiny())
    file = tmp_path / "a" / "task.RL.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    want, got = (hashlib.sha256(bytes(data[:-1]) + bytes([data[-1] ^ flip])).hexdigest() for flip in (1, 0))
    with pytest.raises(ArchiveError) as caught:
        read_archive(tmp_path / "a")
    mend = "the archive is damaged or was changed: use an earlier one"
    assert str(caught.value) == f"{file}: expected sha256 {want}, got {got}; {mend}"
    with pytest.raises(ArchiveError, match="nowhere: expected the directory of an archive, .*got nothing: there is no such"):
        read_archive(tmp_path / "nowhere")


# ------------------------------------------------------------------------------------------------ malice (F38)


class Forgery:
    """An archive whose author is bad but careful: sizes, sha256 and seal are right, so only the content can give it away."""

    def __init__(self, folder):
        self.folder = folder
        write_archive(folder, tiny(), {"step": 100})
        self.body = json.loads((folder / "manifest.json").read_text())
        del self.body["sha256"]
        self.files = {file["name"]: file for component in self.body["components"] for file in component["files"]}
        self.task, self.counters = self.body["components"]
        self.arrays, self.values = self.files["task.RL.safetensors"], self.files["task.RL.json"]

    def put(self, name, data, rename=None):
        """New bytes for a file of the manifest."""
        (self.folder / name).unlink()
        (self.folder / (rename or name)).write_bytes(data)
        self.files[name].update(name=rename or name, size=len(data), sha256=hashlib.sha256(data).hexdigest())

    def link(self, name, target):
        (self.folder / name).unlink()
        (self.folder / name).symlink_to(target)

    def seal(self, text=None):
        head = (json.dumps(self.body, indent=1) if text is None else text).removesuffix("\n}").encode()
        seal = hashlib.sha256(head).hexdigest().encode()
        (self.folder / "manifest.json").write_bytes(head + b',\n "sha256": "' + seal + b'"\n}\n')

    def retell(self, **changes):
        """Changes the first array's entry and makes its file agree as far as a file can."""
        self.arrays["tensors"][0].update(changes)
        data = b"\x00" * 64
        try:
            header = archive._header("x.safetensors", [archive.StoredArray(**t) for t in self.arrays["tensors"]])
        except KeyError:
            header = b""
        self.put("task.RL.safetensors", header + data)

    def npy(self, data):
        data += b"\0" * (128 - len(data)) if len(data) < 128 else b"\0" * (-len(data) % 8)
        self.arrays["tensors"] = [{"name": "w", "dtype": "F64", "shape": [(len(data) - 128) // 8]}]
        self.put("task.RL.safetensors", data, rename="task.RL.0.npy")

    def structure(self, text):
        self.put("task.RL.json", text)


class Boom:
    def __reduce__(self):
        return os.system, ("touch was_here",)


def pickled_npy(path):
    np.save(path, np.array([Boom()]), allow_pickle=True)
    return path.read_bytes()


ARRAYS = b'[{"$array": "w"}, {"$array": "on"}, %s]'  # values that use every array, and one thing more


def nested(depth):
    return b"[" * depth + b"]" * depth


FORGERIES = {
    "pickle inside npy": lambda f: f.npy(pickled_npy(f.folder.parent / "p.npy")),
    "npy that declares more than the manifest": lambda f: f.npy(archive._header("x.npy",
                                                                                [archive.StoredArray("w", "F64", [2**30])])),
    "npy cut after its magic": lambda f: f.npy(b"\x93NUMPY\x01\x00"),
    "pickle as values": lambda f: f.structure(pickle.dumps(Boom())),
    "component above": lambda f: f.task.update(name="../evil"),
    "component absolute": lambda f: f.task.update(name="/etc/passwd"),
    "component hidden": lambda f: f.counters.update(name=".counters"),
    "component with a newline": lambda f: f.counters.update(name="counters\n"),
    "component with a zero byte": lambda f: f.counters.update(name="counters\0"),
    "component named manifest": lambda f: manifest_as_component(f),
    "file above": lambda f: f.values.update(name="../secret"),
    "file absolute": lambda f: f.values.update(name=str(f.folder.parent / "secret")),
    "file of another component": lambda f: f.values.update(name="counters.json"),
    "file listed twice": lambda f: f.task["files"].append(dict(f.arrays)),
    "component listed twice": lambda f: f.body["components"].append(dict(f.task)),
    "array listed twice": lambda f: listed_twice(f),
    "file of another name": lambda f: f.put("task.RL.safetensors", (f.folder / "task.RL.safetensors").read_bytes(),
                                            rename="more.safetensors"),
    "key twice in the manifest": lambda f: json.dumps(f.body, indent=1).replace('"format": 1', '"format": 1,\n "format": 1'),
    "huge shape": lambda f: f.retell(dtype="F64", shape=[2**40]),
    "shape that overflows": lambda f: f.retell(dtype="F64", shape=[2**62, 2**62, 2**62]),
    "shape beyond 64 bits": lambda f: f.retell(dtype="F64", shape=[2**64]),
    "empty array of impossible shape": lambda f: empty_giant(f),
    "negative shape": lambda f: f.retell(shape=[-2, -3]),
    "33 dimensions": lambda f: f.retell(shape=[1] * 33),
    "shape of floats": lambda f: f.retell(shape=[2.0, 3.0]),
    "dtype object": lambda f: f.retell(dtype="O"),
    "dtype complex": lambda f: f.retell(dtype="C64"),
    "dtype as numpy writes it": lambda f: f.retell(dtype="<f4"),
    "size that differs from the shape": lambda f: f.put("task.RL.safetensors",
                                                        (f.folder / "task.RL.safetensors").read_bytes() + b"\0"),
    "safetensors header of its own": lambda f: overlapping(f),
    "1 GB of values": lambda f: sparse(f, "task.RL.json", 2**30),
    "1 TB declared": lambda f: f.arrays.update(size=2**40),
    "link to a file outside": lambda f: f.link("task.RL.json", f.folder.parent / "same.json"),
    "link inside": lambda f: (shutil.copy(f.folder / "task.RL.json", f.folder.parent / "x"),
                              f.link("task.RL.json", "counters.json")),
    "pipe": lambda f: ((f.folder / "counters.json").unlink(), os.mkfifo(f.folder / "counters.json")),
    "socket": lambda f: ((f.folder / "counters.json").unlink(), bind(f.folder / "counters.json")),
    "directory for a file": lambda f: ((f.folder / "counters.json").unlink(), (f.folder / "counters.json").mkdir()),
    "directory more": lambda f: (f.folder / "more").mkdir(),
    "manifest over 4 MB": lambda f: f.body["meta"].update(x="x" * 2**22),
    "deep manifest": lambda f: f.body["meta"].update(x=[]) or json.dumps(f.body, indent=1).replace("[]", nested(50_000).decode(),
                                                                                                   1),
    "deep meta": lambda f: f.body["meta"].update(x=json.loads(nested(70))),
    "deep values": lambda f: f.structure(ARRAYS % nested(100_000)),
    "values 70 levels deep": lambda f: f.structure(ARRAYS % nested(70)),
    "NaN in values": lambda f: f.structure(ARRAYS % b"NaN"),
    "overflow in values": lambda f: f.structure(ARRAYS % b"1e999"),
    "number of 5,000 digits": lambda f: f.structure(ARRAYS % (b"9" * 5000)),
    "key twice in values": lambda f: f.structure(ARRAYS % b'{"lr": 1, "lr": 2}'),
    "values in UTF-16": lambda f: f.structure((ARRAYS % b"1").decode().encode("utf-16")),
    "array used twice": lambda f: f.structure(ARRAYS % b'{"$array": "w"}'),
    "array not used": lambda f: f.structure(b'[{"$array": "w"}]'),
    "array of another component": lambda f: f.structure(ARRAYS % b'{"$array": "task.RL"}'),
    "unknown kind of value": lambda f: f.structure(ARRAYS % b'{"$class": "os.system"}'),
    "key with a bare dollar": lambda f: f.structure(ARRAYS % b'{"$a": 1, "$b": 2}'),
    "$int that is none": lambda f: f.structure(ARRAYS % b'{"$int": "__import__"}'),
    "$float that is none": lambda f: f.structure(ARRAYS % b'{"$float": "1_0"}'),
    "a bool that is 2": lambda f: f.put("task.RL.safetensors",
                                        (f.folder / "task.RL.safetensors").read_bytes()[:-2] + b"\x02\x00"),
    "class path in the manifest": lambda f: f.body.update(class_path="os.system"),
    "class path in a file's entry": lambda f: f.arrays.update(loader="pickle"),
    "array in meta": lambda f: f.body["meta"].update(x={"$array": "w"}),
    "format as text": lambda f: f.body.update(format="1"),
    "format true": lambda f: f.body.update(format=True),
    "format 1.0": lambda f: f.body.update(format=1.0),
    "no format": lambda f: f.body.pop("format") and None,
    "components as object": lambda f: f.body.update(components={}),
    "YAML with a tag": lambda f: "format: 1\nmeta: !!python/object/apply:os.system ['touch was_here']",
    "a list for a manifest": lambda f: (f.folder / "manifest.json").write_text("[1]") and False,
    "no manifest": lambda f: (f.folder / "manifest.json").unlink() or False,
    "manifest a directory": lambda f: (f.folder / "manifest.json").unlink() or (f.folder / "manifest.json").mkdir() or False,
    "manifest a pipe": lambda f: (f.folder / "manifest.json").unlink() or os.mkfifo(f.folder / "manifest.json") or False,
}  # fmt: skip


def listed_twice(f):
    f.arrays["tensors"].insert(0, dict(f.arrays["tensors"][0]))
    tensors = [archive.StoredArray(**tensor) for tensor in f.arrays["tensors"]]
    f.put("task.RL.safetensors", archive._header("x.safetensors", tensors) + b"\0" * sum(tensor.nbytes for tensor in tensors))


def manifest_as_component(f):
    f.counters.update(name="manifest")
    f.files["counters.json"].update(name="manifest.json")
    (f.folder / "counters.json").unlink()


def empty_giant(f):
    f.arrays["tensors"] = [{"name": "w", "dtype": "F64", "shape": [0, 2**62, 2**62]}]
    f.put("task.RL.safetensors", archive._header("x.safetensors", [archive.StoredArray("w", "F64", [0, 2**62, 2**62])]))


def overlapping(f):
    data = (f.folder / "task.RL.safetensors").read_bytes()
    assert b"[24,26]" in data
    f.put("task.RL.safetensors", data.replace(b"[24,26]", b"[22,24]"))


def sparse(f, name, size):
    with open(f.folder / name, "r+b") as file:
        file.truncate(size)
    f.files[name].update(size=size, sha256="0" * 64)


def bind(path):
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket may be at most 107 bytes long
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize("what", FORGERIES)
def test_no_crafted_directory_loads(tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)  # where code in a forgery would leave its trace
    (tmp_path / "secret").write_text("1")
    forgery = Forgery(tmp_path / "a")
    shutil.copy(tmp_path / "a" / "task.RL.json", tmp_path / "same.json")
    text = FORGERIES[what](forgery)
    if text is not False:
        forgery.seal(text if isinstance(text, str) else None)
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    opened = []

    def watch(name, flags, *args, real=os.open, **kwargs):
        opened.append((os.fspath(name), kwargs.get("dir_fd")))
        return real(name, flags, *args, **kwargs)

    descriptors = len(os.listdir("/proc/self/fd"))  # of which some of another test's may be closed meanwhile
    tracemalloc.start()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", watch)
        with pytest.raises(ArchiveError):
            read_archive(tmp_path / "a")
    grown = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert grown < 50e6
    assert opened[0] == (str(tmp_path / "a"), None)
    assert all("/" not in name and folder is not None for name, folder in opened[1:]), "everything else is opened inside it"
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_a_forgery_without_malice_loads(tmp_path):
    """The forger's tools are right: what the cases above change is why they are refused."""
    forgery = Forgery(tmp_path / "a")
    forgery.put("task.RL.json", (tmp_path / "a" / "task.RL.json").read_bytes().replace(b"0.5", b"0.25"))
    forgery.seal()
    assert read_archive(tmp_path / "a")[0]["task.RL"]["lr"] == 0.25
    forgery.structure(ARRAYS % b'{"$$class": ["os.system", 1e30]}')
    forgery.seal()
    assert read_archive(tmp_path / "a")[0]["task.RL"][2] == {"$class": ["os.system", 1e30]}, "text stays text"


@pytest.mark.parametrize("name", ["a", "manifest.json"])
def test_a_linked_archive_or_manifest_is_refused(tmp_path, name):
    write_archive(tmp_path / "real", {"x": 1})
    if name == "a":
        (tmp_path / "a").symlink_to(tmp_path / "real")
    else:
        shutil.copytree(tmp_path / "real", tmp_path / "a")
        (tmp_path / "a" / name).unlink()
        (tmp_path / "a" / name).symlink_to(tmp_path / "real" / name)
    with pytest.raises(ArchiveError, match="not a link"):
        read_archive(tmp_path / "a")


# ------------------------------------------------------------------------------------------------ what may be missing


@pytest.mark.parametrize("harm", ["flip", "cut", "remove", "link", "values"])
def test_a_spared_component_is_reported_and_the_others_are_read(tmp_path, harm):
    tree = {"a": {"x": np.arange(9)}, "b": {"x": np.arange(5.0)}, "c": [1, 2]}
    write_archive(tmp_path / "a", tree, {"step": 3})
    file = tmp_path / "a" / ("b.json" if harm == "values" else "b.safetensors")
    data = file.read_bytes()
    file.unlink()
    if harm == "link":
        file.symlink_to("a.safetensors")
    elif harm == "cut":
        file.write_bytes(data[:-1])
    elif harm != "remove":
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    asked = []

    def spare(name):
        asked.append(name)
        return name == "b"

    got, manifest, bad = read_components(tmp_path / "a", spare)
    assert same(got, {"a": tree["a"], "c": [1, 2]}) and manifest.meta == {"step": 3}
    assert asked == ["b"] and list(bad) == ["b"] and file.name in bad["b"]
    for refuse in (read_archive, lambda path: read_components(path, lambda name: name != "b")):
        with pytest.raises(ArchiveError, match=file.name):
            refuse(tmp_path / "a")


def test_nothing_but_components_can_be_spared(tmp_path):
    write_archive(tmp_path / "a", tiny())
    (tmp_path / "a" / "more").write_text("")
    with pytest.raises(ArchiveError, match="expected no such file"):
        read_components(tmp_path / "a", lambda name: True)
    (tmp_path / "a" / "more").unlink()
    (tmp_path / "a" / "manifest.json").write_text("{}")
    with pytest.raises(ArchiveError, match=r"manifest\.json"):
        read_components(tmp_path / "a", lambda name: True)


def test_encode_and_decode_are_inverse(tmp_path):
    value = {"$x": [np.arange(3), {"y": np.float32([1, 2])}], "n": 2**70, "nan": math.inf}
    text, arrays = encode(tmp_path, "part", value)
    labelled = {label: (tree_encoding.CODES[array.dtype], array) for label, array in arrays.items()}
    assert same(decode(tmp_path, text, dict(labelled)), value)
    with pytest.raises(ArchiveError, match="a place for array 'more'"):
        decode(tmp_path, text, labelled | {"more": ("I64", np.arange(3))})


# ------------------------------------------------------------------------------------------------ formats (F40)


def test_format_1_is_read_forever():
    tree, manifest = read_archive(FROZEN)
    assert same(frozen_tree(), tree)
    assert (manifest.format, manifest.meta) == (1, {"step": 7, "score": -math.inf})


def test_format_1_is_still_written(tmp_path):
    """The bytes of every data file are those of the frozen archive; change FORMAT when they must change."""
    write_archive(tmp_path / "a", frozen_tree(), {"step": 7, "score": -math.inf})
    assert listing(tmp_path / "a") == listing(FROZEN)
    for name in set(listing(FROZEN)) - {"manifest.json"}:
        assert (tmp_path / "a" / name).read_bytes() == (FROZEN / name).read_bytes(), name


@pytest.mark.parametrize("number", [2, 3, 10**9])
def test_a_newer_format_is_refused_by_its_number(tmp_path, number):
    write_archive(tmp_path / "a", tiny())
    body = {"format": number, "whatever": "format 2 will hold"}
    (tmp_path / "a" / "manifest.json").write_text(json.dumps(body))
    with pytest.raises(ArchiveError, match=f"expected format 1, got format {number}, written by a newer parl_like; upgrade "
                                           "parl_like"):
        read_archive(tmp_path / "a")


@pytest.mark.parametrize("number", [0, -1])
def test_a_format_that_never_was_is_refused(tmp_path, number):
    forgery = Forgery(tmp_path / "a")
    forgery.body["format"] = number
    forgery.seal()
    with pytest.raises(ArchiveError, match=f"expected format 1, got format {number}"):
        read_archive(tmp_path / "a")


# ------------------------------------------------------------------------------------------------ random generators


def test_a_generator_continues_where_it_was(tmp_path):
    generator, other = np.random.default_rng(5), np.random.default_rng(6)
    generator.integers(0, 100, dtype=np.uint32)  # leaves half of a 64-bit draw behind
    state = rng_state(generator)
    assert list(state) == ["kind", "state", "inc", "has_uint32", "uinteger"] and state["has_uint32"] == 1
    set_rng_state(other, round_trip(tmp_path / "a", {"rng": state})["rng"])
    assert same(generator.integers(0, 100, 50, dtype=np.uint32), other.integers(0, 100, 50, dtype=np.uint32))
    assert same(generator.normal(size=50), other.normal(size=50))


@pytest.mark.parametrize("change", [
    {"kind": "MT19937"}, {"state": -1}, {"state": 2**128}, {"state": 1.0}, {"state": True}, {"inc": 2}, {"has_uint32": 2},
    {"uinteger": 2**32},
    {"more": 1},
])  # fmt: skip
def test_a_state_that_is_none_is_refused(change):
    generator = np.random.default_rng(0)
    state = rng_state(generator)
    with pytest.raises(ArchiveError, match="random state: expected kind 'PCG64'"):
        set_rng_state(generator, state | change)
    with pytest.raises(ArchiveError):
        set_rng_state(generator, {key: value for key, value in state.items() if key != "inc"})
    assert rng_state(generator) == state


def test_other_bit_generators_are_refused():
    other = np.random.Generator(np.random.MT19937(0))
    with pytest.raises(TypeError, match="expected a generator over PCG64, got MT19937; use numpy.random.default_rng"):
        rng_state(other)
    with pytest.raises(TypeError):
        set_rng_state(other, rng_state(np.random.default_rng(0)))


def test_a_torch_generator_continues_where_it_was(tmp_path):
    generator, other = torch.Generator().manual_seed(5), torch.Generator().manual_seed(6)
    torch.randn(3, generator=generator)
    state = torch_rng_state(generator)
    assert (state.dtype, state.shape) == (np.uint8, (5056,))
    set_torch_rng_state(other, round_trip(tmp_path / "a", {"rng": state})["rng"])
    assert torch.equal(torch.randn(100, generator=generator), torch.randn(100, generator=other))


def test_a_state_of_another_device_becomes_a_seed_and_is_told(caplog):
    """A checkpoint of a GPU is evaluated, and goes on, where there is none."""
    drawn = []
    for state in (np.arange(16, dtype=np.uint8), np.arange(16, dtype=np.uint8), np.zeros(16, np.uint8)):
        generator = torch.Generator()
        set_torch_rng_state(generator, state)
        drawn.append(torch.randn(4, generator=generator).tolist())
    assert drawn[0] == drawn[1] != drawn[2]
    assert "that of another device than cpu" in caplog.text


@pytest.mark.parametrize("state",
                         [np.zeros(17, np.uint8), np.zeros(5056, np.int8), np.zeros((1, 5056), np.uint8), [0] * 5056,
                          np.full(5056, 255, np.uint8)])
def test_a_torch_state_that_is_none_is_refused(state):
    generator = torch.Generator().manual_seed(5)
    before = torch_rng_state(generator)
    with pytest.raises(ArchiveError, match=r"expected uint8 \(5056,\)"):
        set_torch_rng_state(generator, state)
    assert same(before, torch_rng_state(generator))
