"""Saved buffers: what is written goes on as if nothing had happened; what is damaged costs its rows or is refused, never more."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parl_like.data.buffers import saving
from parl_like.data.buffers.cached import CachedReplayBuffer
from parl_like.data.buffers.episodes import EpisodeBuffer
from parl_like.data.buffers.prioritized import PrioritizedReplayBuffer
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.buffers.reservoir import ReservoirBuffer
from parl_like.data.buffers.saving import Savable, load_buffer, save_buffer
from parl_like.data.storage import archive, hdf5, safe_files
from parl_like.data.storage.archive import ArchiveError, read_archive, write_archive

h5py = pytest.importorskip("h5py")

FORMS = ("saved", "saved.h5")


def row(i, k=None, ends=0, cut=0):
    """Row number i, whose every field says so; with k, one for each of k lanes."""
    values = {"obs": {"a": np.array([i, -i], np.float32), "b": np.int64(i)}, "act": np.int64(3 * i), "rew": float(i),
              "terminated": bool(ends),
              "truncated": bool(cut), "obs_next": {"a": np.array([i + 1, -i - 1], np.float32), "b": np.int64(i + 1)}}  # fmt: skip
    if k is None:
        return values

    def lanes(value, step):
        return {key: lanes(part, step) for key, part in value.items()} if isinstance(value,
                                                                                     dict) else np.stack([np.asarray(value)] * k)

    return lanes(values, 0)


def filled(kind=ReplayBuffer, size=40, n=60, every=7, **options):
    buffer = kind(size, **options)
    lanes = options.get("n_lanes", 1)
    for i in range(n):
        buffer.add(row(i, lanes if lanes > 1 else None, i % every == every - 1, i % every == every // 2))
    return buffer


def filled_cache(main, n=60, every=7):
    """Two environments; the second one's newest rows are of an open episode."""
    buffer = CachedReplayBuffer(main, 2)
    for i in range(n):
        buffer.add(row(i, 2, i % every == every - 1))
    buffer.truncate_open(0)
    return buffer


def filled_episodes(n=60, every=7, **options):
    buffer = EpisodeBuffer(n_lanes=2, **options)
    for i in range(n):
        buffer.add(row(i, 2, i % every == every - 1))
    return buffer


def same(a, b):
    """Two trees of a state are equal, exactly."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    return a == b


def go_on_alike(a, b):
    """Both draw the same rows, before and after more were written."""
    for i in range(3):
        if len(a):
            (rows_a, index_a), (rows_b, index_b) = a.sample(16), b.sample(16)
            assert np.array_equal(index_a, index_b) and rows_a == rows_b
        if isinstance(a, ReservoirBuffer):
            for k in range(5):
                assert a.add({"x": float(100 + 5 * i + k)}) == b.add({"x": float(100 + 5 * i + k)})
        elif not a.specs or "obs.a" in {spec.name for spec in a.specs}:
            k = a.n_lanes if a.n_lanes > 1 else None
            results = [buffer.add(row(100 + i, k, ends=i == 1)) for buffer in (a, b)]
            assert all(np.array_equal(x, y) for x, y in zip(*results, strict=True))
    assert same(a.state_dict(), b.state_dict())


# ------------------------------------------------------------------------------------------------ what is written comes back


@pytest.mark.parametrize("form", FORMS)
def test_the_seed_buffer_has_three_rows_again(tmp_path, form):
    buffer = ReplayBuffer(20)  # T31
    for i in range(3):
        buffer.add({"obs": i, "act": i, "rew": i, "terminated": 0, "truncated": 0, "obs_next": i + 1, "info": {}})
    save_buffer(buffer, tmp_path / form)
    loaded = load_buffer(tmp_path / form)
    assert len(loaded) == 3 and loaded[:] == buffer[:] and loaded.capacity == 20
    go_on_alike(buffer, loaded)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_kind_goes_on_as_the_saved_one(tmp_path, data):
    lanes, size, n = data.draw(st.integers(1, 3)), data.draw(st.integers(6, 20)), data.draw(st.integers(0, 30))
    form, chunk = data.draw(st.sampled_from(FORMS)), data.draw(st.sampled_from([None, 1, 3, 7]))
    kind = data.draw(st.sampled_from([ReplayBuffer, PrioritizedReplayBuffer]))
    options = {"n_lanes": lanes, "stack_num": data.draw(st.integers(1, 2)), "ignore_obs_next": data.draw(st.booleans()),
               "sample_avail": data.draw(st.booleans()), "rng": data.draw(st.integers(0, 9)),
               "rew_dtype": data.draw(st.sampled_from("fd"))}  # fmt: skip
    if kind is PrioritizedReplayBuffer:
        options |= {"alpha": 0.7, "beta": 0.5, "weight_norm": data.draw(st.booleans())}
    buffer = filled(kind, size, n, data.draw(st.integers(3, 6)), **options)
    if kind is PrioritizedReplayBuffer and n:
        buffer.update_weight(buffer.sample_indices(0), np.arange(len(buffer.sample_indices(0))) / 7)
    if n and data.draw(st.booleans()):
        buffer.clear_lane(0)
    buffer.rng.random(data.draw(st.integers(0, 3)))
    if not len(buffer.sample_indices(0)):
        options["sample_avail"] = buffer.sample_avail = False
    save_buffer(buffer, tmp_path / form, rows_per_chunk=chunk)
    loaded = load_buffer(tmp_path / form)
    assert same(loaded.state_dict(), buffer.state_dict()) and loaded.rew_dtype == buffer.rew_dtype
    if len(buffer) and lanes * 3 <= len(buffer.sample_indices(0)):
        go_on_alike(buffer, loaded)


@st.composite
def buffers_of_episodes(draw):
    """How to make an empty EpisodeBuffer or CachedReplayBuffer, of any options but the seed."""
    lanes, rew_dtype = draw(st.integers(1, 3)), draw(st.sampled_from("fd"))
    if draw(st.booleans()):
        max_rows, max_episodes = draw(st.sampled_from([None, 5, 40])), draw(st.sampled_from([None, 1, 4]))
        return lambda rng: EpisodeBuffer(max_rows, max_episodes, lanes, rng, rew_dtype=rew_dtype)
    kind = draw(st.sampled_from([ReplayBuffer, PrioritizedReplayBuffer]))
    main_lanes, size = draw(st.sampled_from([1, lanes])), draw(st.integers(9, 20))
    options = {"stack_num": draw(st.integers(1, 2)), "ignore_obs_next": draw(st.booleans()), "rew_dtype": rew_dtype}
    if kind is PrioritizedReplayBuffer:
        options |= {"alpha": 0.7, "beta": 0.5, "weight_norm": draw(st.booleans())}
    longest = draw(st.sampled_from([None, 8, 9]))
    return lambda rng: CachedReplayBuffer(kind(size * main_lanes, main_lanes, rng, **options), lanes, longest)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(make=buffers_of_episodes(), n=st.integers(0, 40), every=st.integers(3, 6), form=st.sampled_from(FORMS),
       chunk=st.sampled_from([None, 1, 3, 7]))
def test_whole_and_open_episodes_go_on_as_the_saved_ones(tmp_path, make, n, every, form, chunk):
    buffer = make(5)
    k = buffer.n_lanes
    for i in range(n):  # lanes are out of step, so some are in mid-episode
        lanes = [lane for lane in range(k) if (i + lane) % 4] or [0]
        buffer.add(row(i, len(lanes), i % every == every - 1, i % every == every // 2), lanes)
    save_buffer(buffer, tmp_path / form, rows_per_chunk=chunk)
    loaded = type(buffer).load(tmp_path / form)
    assert type(loaded) is type(buffer) and same(loaded.state_dict(), buffer.state_dict())
    assert (len(loaded), loaded.rew_dtype) == (len(buffer), buffer.rew_dtype)
    assert loaded.open_rows.tolist() == buffer.open_rows.tolist()
    if isinstance(buffer, EpisodeBuffer):
        assert loaded.episodes == buffer.episodes and loaded.dropped == buffer.dropped
        assert (loaded.max_rows, loaded.max_episodes) == (buffer.max_rows, buffer.max_episodes)
    else:
        assert type(loaded.main) is type(buffer.main) and repr(loaded) == repr(buffer)
        assert loaded.main._options() == buffer.main._options()
    go_on_alike(buffer, loaded)
    assert same(loaded.pop_all() if isinstance(buffer, EpisodeBuffer) else loaded[:],
                buffer.pop_all() if isinstance(buffer, EpisodeBuffer) else buffer[:])


@pytest.mark.parametrize("form", FORMS)
def test_options_of_a_cached_buffer_are_those_of_its_main(tmp_path, form):
    def schedule(n):
        return 0.4 + 0.1 * n

    buffer = filled_cache(PrioritizedReplayBuffer(40, beta=schedule))
    buffer.sample(4)
    buffer.save(tmp_path / form)
    with pytest.raises(ValueError, match=r"'beta' was a function.*load_buffer\(path, beta="):
        CachedReplayBuffer.load(tmp_path / form)
    loaded = CachedReplayBuffer.load(tmp_path / form, beta=schedule, threadsafe=True)
    assert loaded.beta == buffer.beta == 0.5 and "push" in vars(loaded.main)
    with pytest.raises(TypeError, match="ReplayBuffer.load: .* holds a CachedReplayBuffer"):
        ReplayBuffer.load(tmp_path / form, beta=schedule)
    with pytest.raises(TypeError, match="got Own"):
        save_buffer(CachedReplayBuffer(type("Own", (ReplayBuffer,), {})(9), 1), tmp_path / "b")
    if form == "saved":
        assert archive.read_manifest(tmp_path / form).meta["kind"] == "CachedReplayBuffer"


@pytest.mark.parametrize("form", FORMS)
def test_a_field_may_be_called_rng(tmp_path, form):
    buffer = ReservoirBuffer(3)
    buffer.add({"rng": 1.5})
    save_buffer(buffer, tmp_path / form)
    assert load_buffer(tmp_path / form).columns["rng"][0] == 1.5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [0, 3, 50])
def test_a_reservoir_goes_on_keeping_and_drawing(tmp_path, form, n):
    buffer = ReservoirBuffer(8, rng=3)
    for i in range(n):
        buffer.add({"x": float(i)})
    save_buffer(buffer, tmp_path / form)
    loaded = load_buffer(tmp_path / form)
    assert loaded.seen == n
    go_on_alike(buffer, loaded)


@pytest.mark.parametrize("form", FORMS)
def test_stored_frames_come_back_single(tmp_path, form):
    buffer = ReplayBuffer(9, stack_num=3, ignore_obs_next=True, save_only_last_obs=True)
    for i in range(12):
        frames = np.arange(i - 2, i + 1, dtype=np.float32)[:, None]
        buffer.add({"obs": frames, "act": i, "rew": i, "terminated": i == 4, "truncated": i == 8, "obs_next": frames + 1})
    save_buffer(buffer, tmp_path / form)
    loaded = load_buffer(tmp_path / form)
    assert loaded[:] == buffer[:] and loaded.columns["obs"].shape == (9, 1)


@pytest.mark.parametrize("form", FORMS)
def test_a_schedule_is_given_again(tmp_path, form):
    def schedule(n):
        return 0.4 + 0.1 * n

    buffer = filled(PrioritizedReplayBuffer, beta=schedule)
    buffer.sample(4)
    save_buffer(buffer, tmp_path / form)
    with pytest.raises(ValueError, match=r"'beta' was a function.*load_buffer\(path, beta="):
        load_buffer(tmp_path / form)
    assert load_buffer(tmp_path / form, beta=schedule).beta == buffer.beta == 0.5
    assert load_buffer(tmp_path / form, beta=1.0).beta == 1.0


def test_options_can_be_given(tmp_path):
    save_buffer(filled(), tmp_path / "a")
    assert "push" in vars(load_buffer(tmp_path / "a", threadsafe=True))
    with pytest.raises(ValueError, match="ignore_obs_next"):
        load_buffer(tmp_path / "a", ignore_obs_next=True)


def test_what_no_file_holds_is_refused_before_anything_is_written(tmp_path):
    Own = type("ReplayBuffer", (ReplayBuffer,), {})  # by another name it is not found at all
    for buffer, expected in ((Own(3), "got ReplayBuffer"), ([], "got list"),
                             (ReplayBuffer(3, rng=np.random.Generator(np.random.MT19937(0))), "MT19937")):
        for form in FORMS:
            with pytest.raises(TypeError, match=expected):
                save_buffer(buffer, tmp_path / form)
    with pytest.raises(ValueError, match="rows_per_chunk is 0"):
        save_buffer(filled(), tmp_path / "a", rows_per_chunk=0)
    assert not os.listdir(tmp_path)


def test_a_file_names_no_code(tmp_path):
    save_buffer(filled(), tmp_path / "a")
    tree, manifest = read_archive(tmp_path / "a")
    for kind in ("os.system", "parl_like.data.buffers.reservoir", "Ring", ""):
        write_archive(tmp_path / "b", tree | {"buffer": tree["buffer"] | {"kind": kind}}, manifest.meta)
        with pytest.raises(ArchiveError, match="expected a ReplayBuffer"):
            load_buffer(tmp_path / "b")


# ------------------------------------------------------------------------------------------------ crafted states


def test_states_that_do_not_fit_are_refused_whole(tmp_path):
    """Each is a well-formed archive with right checksums; loading may not crash, write outside the memory, or half succeed."""
    buffer = filled(PrioritizedReplayBuffer, n_lanes=2, ignore_obs_next=True)
    save_buffer(buffer, tmp_path / "a")
    tree, manifest = read_archive(tmp_path / "a")
    head, state, chunk = tree["buffer"], tree["buffer"]["state"], tree["rows.0000"]
    finals, specs = state["finals"], state["specs"]
    states = [
        {"size": 2**47}, {"size": 37}, {"size": "40"}, {"size": 10**9}, {"n_lanes": 3}, {"count": [20]}, {"count": [21, 19]},
        {"count": [20, -1]},
        {"count": [5, 20]}, {"cursor": [0, 10**9]}, {"cursor": [0, 19]}, {"written": [1, 1]}, {"open": {}}, {"rng": {}},
        {"empty_keys": 3},
        {"open": {**state["open"], "start": [99, 20]}}, {"open": {**state["open"], "return": [[1], [1, 2]]}},
        {"max_priority": float("nan")},
        {"batches_drawn": -1}, {"specs": [{**specs[0], "dtype": "|O"}, *specs[1:]]},
        {"specs": [{**specs[0], "shape": [2**40]}, *specs[1:]]},
        {"specs": [specs[0], *specs]}, {"specs": specs[1:]}, {"specs": [{**specs[0], "shape": [3]}, *specs[1:]]},
        {"finals": {}}, {"finals": {**finals, "fresh": finals["fresh"][:1]}},
        {"finals": {**finals, "positions": finals["positions"] + 40}},
        {"finals": {**finals, "pending": {}}}, {"finals": {**finals, "rows": {n: c[:1] for n, c in finals["rows"].items()}}},
        {"weights": chunk["weights"]}, {"rng": {**state["rng"], "inc": 2}},
    ]  # fmt: skip
    trees = [tree | {"buffer": head | {"state": state | change}} for change in states]
    trees += [tree | {"buffer": {**head,
                                 "state": {k: v for k, v in state.items() if k != key}}} for key in state if key != "options"]
    trees += [tree | {"buffer": head | change} for change in (
        {"rows": 39}, {"rows": 2**40}, {"rows": -1}, {"chunk": 0}, {"chunk": 1}, {"options": {"stack_num": "x"}},
        {"options": {"rng": 1}},
        {"options": head["options"] | {"rew_dtype": "O"}}, {"more": 1}, {"code": 3}, {"kind": "ReservoirBuffer"})]  # fmt: skip
    trees += [tree | {"rows.0000": chunk | change} for change in (
        {"first": 1}, {"weights": chunk["weights"][:-1]}, {"weights": -chunk["weights"]}, {"columns": {}},
        {"more": chunk["weights"]},
        {"columns": {**chunk["columns"], "rew": chunk["columns"]["rew"][:, None]}}, {"columns": 3})]  # fmt: skip
    trees += [{"buffer": head}, tree | {"rows.0001": chunk}, tree | {"x": 1}, {"rows.0000": chunk}, {}]
    for i, crafted in enumerate(trees):
        write_archive(tmp_path / "b", crafted, manifest.meta)
        with pytest.raises(ValueError):
            load_buffer(tmp_path / "b")
            raise AssertionError(f"number {i} loaded")


def refused(tmp_path, trees, meta):
    """No tree loads."""
    for i, crafted in enumerate(trees):
        write_archive(tmp_path / "b", crafted, meta)
        with pytest.raises(ArchiveError):
            load_buffer(tmp_path / "b")
            raise AssertionError(f"number {i} loaded")


def test_states_of_episodes_that_do_not_fit_are_refused_whole(tmp_path):
    buffer = filled_episodes(max_rows=200, max_episodes=50)  # 16 episodes of 7 rows; 4 open rows in each of 2 lanes
    save_buffer(buffer, tmp_path / "a")
    tree, manifest = read_archive(tmp_path / "a")
    head, state, chunk = tree["buffer"], tree["buffer"]["state"], tree["rows.0000"]
    kept, opened, lengths = state["rows"], state["open"], state["lengths"]
    flags, open_flags = chunk["columns"]["terminated"], opened["columns"]["terminated"]
    states = [
        {"max_rows": 0}, {"max_rows": "9"}, {"max_rows": 111}, {"max_episodes": 15}, {"n_lanes": 1}, {"n_lanes": 2**40},
        {"dropped": -1}, {"dropped": 2**70},
        {"lengths": lengths[1:]}, {"lengths": []}, {"lengths": [8, 6, *lengths[2:]]}, {"lengths": [14, *lengths[2:]]},
        {"lengths": [0, *lengths]},
        {"lengths": [-7, 14, *lengths[1:]]}, {"lengths": [2**48, *lengths]}, {"lengths": 3}, {"rng": {}},
        {"rng": {**state["rng"], "inc": 2}},
        {"rows": {}}, {"rows": 3}, {"rows": {**kept, "n_lanes": 2}}, {"rows": {**kept, "size": 113}},
        {"rows": {**kept, "size": 2**47}},
        {"rows": {**kept, "cursor": [5]}}, {"rows": {**kept, "count": [111]}}, {"rows": {**kept, "specs": kept["specs"][1:]}},
        {"rows": {**kept, "options": {**kept["options"], "ignore_obs_next": True}}},
        {"rows": {**kept, "columns": chunk["columns"]}},
        {"open": {}}, {"open": {**opened, "n_lanes": 1}}, {"open": {**opened, "size": 2**47}}, {"open": {**opened, "size": 6}},
        {"open": {**opened, "rng": {}}},
        {"open": {**opened, "count": [4, 40]}}, {"open": {**opened, "cursor": [3, 20]}},
        {"open": {**opened, "specs": opened["specs"][::-1]}},
        {"open": {**opened, "columns": {**opened["columns"], "terminated": ~open_flags}}}, {"open": {**opened, "columns": {}}},
        {"open": {**opened, "options": {**opened["options"], "save_only_last_obs": True}}},
    ]  # fmt: skip
    trees = [tree | {"buffer": head | {"state": state | change}} for change in states]
    trees += [tree | {"buffer": {**head, "state": {k: v for k, v in state.items() if k != key}}} for key in state]
    trees += [tree | {"buffer": head | change} for change in ({"rows": 111}, {"options": {"rew_dtype": "O"}},
                                                              {"kind": "ReplayBuffer"}, {"cache": {}},
                                                             {"cache": {"n_lanes": 2, "max_episode_length": 9,
                                                                        "open": opened}})]  # fmt: skip
    trees += [tree | {"rows.0000": chunk | {"columns": {**chunk["columns"], name: value}}} for name, value in (
        ("terminated", np.zeros_like(flags)), ("terminated", ~flags), ("truncated", ~flags), ("terminated", flags[:, None]),
        ("truncated", flags * 1.0))]
    open_end, numbers = flags.copy(), [{**field,
                                        "dtype": "<f8"} if field["name"] == "terminated" else field for field in kept["specs"]]
    open_end[-1] = False
    for change, column in (({"lengths": lengths[:-1]}, open_end), ({"rows": {**kept, "specs": numbers}}, flags * 1.0)):
        trees += [tree | {"buffer": head | {"state": state | change},
                          "rows.0000": chunk | {"columns": {**chunk["columns"], "terminated": column}}}]
    refused(tmp_path, trees, manifest.meta)
    write_archive(tmp_path / "b", tree, manifest.meta)
    assert same(load_buffer(tmp_path / "b").state_dict(), buffer.state_dict())


def test_caches_that_do_not_fit_are_refused_whole(tmp_path):
    buffer = filled_cache(PrioritizedReplayBuffer(40, 2))
    buffer.add(row(99, 1), [1])
    save_buffer(buffer, tmp_path / "a")
    tree, manifest = read_archive(tmp_path / "a")
    head, cache = tree["buffer"], tree["buffer"]["cache"]
    opened, main = cache["open"], head["state"]
    caches = [cache | change for change in (
        {"n_lanes": 3}, {"n_lanes": 0}, {"n_lanes": 2**40}, {"max_episode_length": 21}, {"max_episode_length": 0},
        {"max_episode_length": 15}, {"more": 1},
        {"main": main}, {"open": {}}, {"open": {**opened, "n_lanes": 1}}, {"open": {**opened, "size": 2**47}},
        {"open": {**opened, "size": 42}},
        {"open": {**opened, "cursor": [0, 10**9]}}, {"open": {**opened, "count": [0, 6]}},
        {"open": {**opened, "specs": opened["specs"][:0]}},
        {"open": {**opened, "specs": [{**opened["specs"][0], "shape": [3]}, *opened["specs"][1:]]}},
        {"open": {**opened, "rng": {"inc": 2}}},
        {"open": {**opened, "columns": {**opened["columns"], "truncated": ~opened["columns"]["truncated"]}}})]  # fmt: skip
    for lanes in (1, 3):  # one that is right in itself
        other = CachedReplayBuffer(PrioritizedReplayBuffer(40), lanes, 9)
        save_buffer(other, tmp_path / "c")
        caches += [read_archive(tmp_path / "c")[0]["buffer"]["cache"]]
    caches += [cache | {"open": {**opened, "n_lanes": 1, "count": [4], "cursor": [4], "written": [4],
                                 "open": {k: v[:1] for k, v in opened["open"].items()},
                                 "columns": {name: np.repeat(c[:1], 4, 0) for name,
                                             c in opened["columns"].items()}}}]  # fmt: skip
    trees = [tree | {"buffer": head | {"cache": crafted}} for crafted in (*caches, 3, {})]
    trees += [tree | {"buffer": head | {"state": main | change}} for change in ({"size": 2**47}, {"count": [20]}, {"n_lanes": 1})]
    trees += [tree | {"buffer": head | {"kind": kind}} for kind in ("CachedReplayBuffer", "ReplayBuffer", "ReservoirBuffer")]
    refused(tmp_path, trees, manifest.meta)
    write_archive(tmp_path / "b", tree, manifest.meta)
    assert same(load_buffer(tmp_path / "b").state_dict(), buffer.state_dict())


def test_rows_without_fields_are_refused(tmp_path):
    """They cost nothing to claim; memory and time for them are not taken."""
    save_buffer(ReplayBuffer(40), tmp_path / "a")
    tree, manifest = read_archive(tmp_path / "a")
    head, state = tree["buffer"], tree["buffer"]["state"]
    five = head | {"state": state | {"count": [5], "cursor": [5], "written": [5]}}
    claims = [{"buffer": five, "rows.0000": tree["rows.0000"]}, tree | {"buffer": head | {"rows": 2**40, "chunk": 2**40}}]
    claims += [{"buffer": head | {"rows": 2**40, "chunk": 2**39}, "rows.0000": tree["rows.0000"]}]  # half is missing
    refused(tmp_path, claims, manifest.meta)


def test_a_size_that_no_machine_holds_is_refused_before_it_is_taken(tmp_path):
    save_buffer(filled(n=20), tmp_path / "a")
    tree, manifest = read_archive(tmp_path / "a")
    head = tree["buffer"]
    for size in (2**40, 2**47):
        write_archive(tmp_path / "b", tree | {"buffer": head | {"state": head["state"] | {"size": size}}}, manifest.meta)
        with pytest.raises(ArchiveError, match=f"fits into .* bytes of memory, got {size + 1} rows"):
            load_buffer(tmp_path / "b")
    for number in (0, True, "1", None):
        write_archive(tmp_path / "b", tree, manifest.meta | {"replay": number})
        with pytest.raises(ArchiveError, match="expected a saved buffer"):
            load_buffer(tmp_path / "b")


@pytest.mark.parametrize("form", FORMS)
def test_newer_formats_are_refused_by_number(tmp_path, form, monkeypatch):
    for module in (saving, hdf5):
        monkeypatch.setattr(module, "FORMAT", 2)
    save_buffer(filled(), tmp_path / form)
    for module in (saving, hdf5):
        monkeypatch.setattr(module, "FORMAT", 1)
    with pytest.raises(ArchiveError, match="expected format 1, got format 2.*upgrade"):
        load_buffer(tmp_path / form)


# ------------------------------------------------------------------------------------------------ damage


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


def damage_chunk(path, name):
    """Flips a byte among the numbers of one part."""
    if path.is_dir():
        flip(path / f"{name}.safetensors", os.path.getsize(path / f"{name}.safetensors") - 3)
    else:
        with h5py.File(path, "r") as file:
            offset = file[f"{name}/columns.act"].id.get_offset()
        flip(path, offset + 1)


def loads_quietly(path):
    """The buffer, or None where it is refused; chunks that are dropped give a warning, which is an error here."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return load_buffer(path)
        except (ArchiveError, UserWarning):
            return None


@pytest.mark.parametrize("form", FORMS)
def test_one_chunk_of_ten_is_too_much(tmp_path, form):
    save_buffer(filled(size=40), tmp_path / form, rows_per_chunk=4)
    damage_chunk(tmp_path / form, "rows.0003")
    with pytest.raises(ArchiveError, match="at most 5% of them to be lost, got 4 in damaged parts.*rows.0003.*earlier file"):
        load_buffer(tmp_path / form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("chunk, missing", [
    (0, False), (39, True),
    *[pytest.param(*one, marks=pytest.mark.slow) for one in ((0, True), (17, False), (17, True), (39, False))],
])  # fmt: skip
def test_one_chunk_of_forty_costs_its_rows(tmp_path, form, kind, lanes, chunk, missing):
    buffer = filled(kind, 160, 200 // lanes + 11, 50, n_lanes=lanes)
    before, states = buffer[:], buffer.state_dict()
    save_buffer(buffer, tmp_path / form, rows_per_chunk=4)
    name = f"rows.{chunk:04}"
    if not missing:
        damage_chunk(tmp_path / form, name)
    elif form == "saved":
        os.unlink(tmp_path / form / f"{name}.json")
    else:
        with h5py.File(tmp_path / form, "r+") as file:
            del file[name]
    with pytest.warns(UserWarning, match=f"4 of 160 rows were dropped.*{name}.*{'' if missing else 'sha256'}"):
        loaded = load_buffer(tmp_path / form)
    lost = np.zeros(160, bool)
    lost[4 * chunk : 4 * chunk + 4] = True
    kept = ~lost[buffer.sample_indices(0)]  # full lanes: storage order is the order of positions
    cut = np.flatnonzero(kept[:-1] & ~kept[1:] & (np.arange(159) % (160 // lanes) != 160 // lanes - 1) & ~before.done[:-1])
    before.truncated[cut] = True
    before.done[cut] = True
    expected = before[kept]
    assert len(cut) <= 1
    if kind is PrioritizedReplayBuffer:
        expected.pop("weight")
        expected.weight = loaded[:].weight
        assert np.array_equal(np.sort(loaded.state_dict()["weights"]), np.sort(states["weights"][~lost]))
    assert loaded[:] == expected
    drawn = loaded.sample(500)[0].obs.b
    assert set(drawn.tolist()) <= set(expected.obs.b.tolist())
    steps = loaded.n_step(loaded.sample_indices(0), 3)
    assert all(set(np.diff(r[:v]).tolist()) <= {1.0} for r,
               v in zip(steps["rew"], steps["valid"], strict=True))  # nothing looks across
    for i in range(200):  # goes on writing
        loaded.add(row(1000 + i, lanes if lanes > 1 else None))
    assert len(loaded) == 160


@pytest.mark.parametrize("options", [{"ignore_obs_next": True}, {"stack_num": 3}, {"stack_num": 2, "ignore_obs_next": True}])
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("chunk", [pytest.param(0, marks=pytest.mark.slow), 20, pytest.param(60, marks=pytest.mark.slow), 79])
def test_rows_that_need_their_neighbours_go_with_their_episode(tmp_path, options, lanes, chunk):
    buffer = filled(ReplayBuffer, 320, 400, 6, n_lanes=lanes, **options)
    save_buffer(buffer, tmp_path / "a", rows_per_chunk=4)
    damage_chunk(tmp_path / "a", f"rows.{chunk:04}")
    with pytest.warns(UserWarning, match="of 320 rows were dropped"):
        loaded = load_buffer(tmp_path / "a")
    assert 302 <= len(loaded) <= 316
    names = [f"{key}.{part}" for key in ("obs", "obs_next") for part in "ab"] + ["act", "rew", "terminated", "truncated"]

    def contents(source, positions):
        rows = source.gather(positions, names=names)
        return {tuple(np.concatenate([column[i].ravel() for column in rows.values()])) for i in range(len(positions))}

    assert contents(loaded, loaded.sample_indices(0)) <= contents(buffer, buffer.sample_indices(0))
    # What could not be drawn before, since its frames were overwritten, cannot be drawn now.
    assert contents(loaded, loaded.sample_indices(8000)) <= contents(buffer, buffer.sample_indices(8000))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [ReservoirBuffer, EpisodeBuffer])
def test_some_kinds_lose_nothing(tmp_path, form, kind):
    buffer = kind(100)
    for i in range(100):
        buffer.add({"act": float(i)} if kind is ReservoirBuffer else row(i, ends=i % 5 == 4))
    save_buffer(buffer, tmp_path / form, rows_per_chunk=1)
    damage_chunk(tmp_path / form, "rows.0050")
    with pytest.raises(ArchiveError, match=f"a {kind.__name__} must not lose some, got 1 in damaged parts"):
        load_buffer(tmp_path / form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_a_cached_buffer_loses_rows_of_its_main_only(tmp_path, form, kind):
    buffer = filled_cache(kind(160), 101)
    buffer.add(row(500, 1), [1])
    save_buffer(buffer, tmp_path / form, rows_per_chunk=4)
    damage_chunk(tmp_path / form, "rows.0017")
    with pytest.warns(UserWarning, match="4 of 160 rows were dropped"):
        loaded = load_buffer(tmp_path / form)
    assert len(loaded) == 156 and not len(loaded.unfinished_index())
    assert loaded.open_rows.tolist() == buffer.open_rows.tolist() and same(loaded.state_dict()["open"],
                                                                           buffer.state_dict()["open"])
    for i in range(20):
        loaded.add(row(600 + i, 2, i % 7 == 6))
    assert len(loaded) == 160


def test_any_flipped_byte_of_a_directory_is_seen(tmp_path):
    buffer = filled(n=20)
    save_buffer(buffer, tmp_path / "a")
    for name in sorted(os.listdir(tmp_path / "a")):
        file = tmp_path / "a" / name
        for offset in range(0, file.stat().st_size, 7):
            flip(file, offset)
            assert loads_quietly(tmp_path / "a") is None, (name, offset)
            flip(file, offset)
    assert loads_quietly(tmp_path / "a") is not None


@pytest.mark.parametrize("step", [211, pytest.param(13, marks=pytest.mark.slow)])
def test_any_flipped_byte_of_a_file_is_seen_or_does_no_harm(tmp_path, step):
    """HDF5 leaves gaps, which nothing reads: there a byte may change."""
    buffer = filled(n=20)
    save_buffer(buffer, tmp_path / "a.h5")
    size, harmless = os.path.getsize(tmp_path / "a.h5"), 0
    for offset in range(0, size, step):
        flip(tmp_path / "a.h5", offset)
        loaded = loads_quietly(tmp_path / "a.h5")
        if loaded is not None:
            harmless += 1
            assert same(loaded.state_dict(), buffer.state_dict())
        flip(tmp_path / "a.h5", offset)
    assert harmless < size / step / 2


@pytest.mark.parametrize("form", FORMS)
def test_truncated_removed_and_added_parts(tmp_path, form):
    buffer = filled(n=20)
    path = tmp_path / form
    save_buffer(buffer, path)
    whole = tmp_path / "whole"
    (shutil.copytree if path.is_dir() else shutil.copy)(path, whole)

    def again():
        if path.is_dir():
            shutil.rmtree(path)
            shutil.copytree(whole, path)
        else:
            shutil.copy(whole, path)

    if path.is_dir():
        for name in os.listdir(path):
            for change in (os.unlink, lambda file: os.truncate(file, os.path.getsize(file) - 1),
                           lambda file: os.truncate(file, 0)):
                change(path / name)
                assert loads_quietly(path) is None, name
                again()
        (path / "more.json").write_text("{}")
        assert loads_quietly(path) is None
        again()
    else:
        for size in [*range(0, os.path.getsize(path), 499), os.path.getsize(path) - 1]:
            os.truncate(path, size)
            assert loads_quietly(path) is None, size
            again()
        with h5py.File(path, "r") as file:
            names = [f"{group}/{name}" for group in file for name in file[group]] + list(file)
        for name in names:
            with h5py.File(path, "r+") as file:
                del file[name]
            assert loads_quietly(path) is None, name
            again()
        for name in ("more", "buffer/more", "rows.0000/more", "rows.0001"):
            with h5py.File(path, "r+") as file:
                file[name] = np.zeros(3)
                file[name].attrs["sha256"] = hdf5._digest(*name.split("/"), np.zeros(3)) if "/" in name else ""
            assert loads_quietly(path) is None, name
            again()
    assert loads_quietly(path) is not None


def test_foreign_files(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["obs"] = np.zeros(3)
    with pytest.raises(ArchiveError, match="format None, as of another file"):
        load_buffer(tmp_path / "a.h5")
    write_archive(tmp_path / "a", {"weights": np.zeros(3)})
    (tmp_path / "b.h5").write_bytes(pickle.dumps(ReplayBuffer(3)))
    (tmp_path / "c.h5").mkdir()
    save_buffer(filled(), tmp_path / "good.h5")
    os.symlink(tmp_path / "good.h5", tmp_path / "d.h5")
    for name in ("a", "b.h5", "c.h5", "d.h5", "none", "none.h5"):
        with pytest.raises(ArchiveError, match="a plain file, not a link" if name in ("c.h5", "d.h5") else None):
            load_buffer(tmp_path / name)
    for name in ("a.h5", "b.h5", "c.h5", "d.h5"):  # nor is somebody's work replaced
        with pytest.raises(ArchiveError, match="choose another path"):
            save_buffer(filled(), tmp_path / name)


@pytest.mark.parametrize(
    ("craft", "expected"),
    [("soft", "a Dataset at"), ("external", "a Dataset at"), ("object", "a dtype among"), ("outside", "in one piece"),
     ("virtual", "in one piece"),
     ("compressed", "in one piece"), ("huge", "within the size of the file"), ("group", "a Dataset at"), ("type", "a Dataset at"),
     ("text", "a dtype among")],
)  # fmt: skip
def test_hdf5_that_reaches_further_is_refused(tmp_path, craft, expected):
    """Each stands in the place of the head, where nothing may be missing, and of a chunk."""
    save_buffer(filled(n=20), tmp_path / "good.h5")
    for target in ("buffer/$values", "rows.0000/columns.act"):
        path = tmp_path / "a.h5"
        shutil.copy(tmp_path / "good.h5", path)
        with h5py.File(path, "r+") as file:
            data, sha = file[target][:], file[target].attrs["sha256"]
            file["aside"] = data
            del file[target]
            if craft == "soft":
                file[target] = h5py.SoftLink("/aside")
            elif craft == "external":
                file[target] = h5py.ExternalLink(str(tmp_path / "good.h5"), f"/{target}")
            elif craft == "object":
                file.create_dataset(target, (1,), h5py.vlen_dtype(np.uint8))
            elif craft == "outside":
                (tmp_path / "raw").write_bytes(data.tobytes())
                file.create_dataset(target, data.shape, data.dtype, external=[(str(tmp_path / "raw"), 0, data.nbytes)])
            elif craft == "virtual":
                layout = h5py.VirtualLayout(data.shape, data.dtype)
                layout[:] = h5py.VirtualSource(str(tmp_path / "good.h5"), target, data.shape)
                file.create_virtual_dataset(target, layout)
            elif craft == "compressed":
                file.create_dataset(target, data=data, compression="gzip")
            elif craft == "huge":
                file.create_dataset(target, (2**50,), data.dtype)
            elif craft == "group":
                file.create_group(target)
            elif craft == "type":
                file[target] = np.dtype("f8")
            else:
                file[target] = "text"
            if craft not in ("soft", "external", "type"):
                file[target].attrs["sha256"] = sha
            del file["aside"]
        with pytest.raises(ArchiveError, match=expected):
            load_buffer(path)


# ------------------------------------------------------------------------------------------------ writing


@pytest.mark.parametrize("form", FORMS)
def test_a_failed_write_leaves_the_good_file(tmp_path, form, monkeypatch):
    good = filled()
    save_buffer(good, tmp_path / form)
    calls = ["fsync", "rename", "open", "write"] if form == "saved" else ["fsync", "rename", "open"]
    for name in calls:
        for number in range(3):
            count, real = [0], getattr(os, name)

            def failing(*args, real=real, count=count, number=number, **kwargs):
                count[0] += 1
                if count[0] == number + 1:
                    raise OSError(28, "No space left on device")
                return real(*args, **kwargs)

            with monkeypatch.context() as patch:
                patch.setattr(os, name, failing)
                try:
                    save_buffer(filled(n=13), tmp_path / form)
                except OSError:
                    pass
            assert os.listdir(tmp_path) == [form], name
            loaded = loads_quietly(tmp_path / form)
            assert same(loaded.state_dict(), good.state_dict()) or len(loaded) == 13
            save_buffer(good, tmp_path / form)


def test_a_write_that_fails_inside_hdf5_leaves_the_good_file(tmp_path, monkeypatch):
    good = filled()
    save_buffer(good, tmp_path / "a.h5")
    real, count = hdf5._digest, [0]

    def failing(*args):
        count[0] += 1
        if count[0] == 5:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(hdf5, "_digest", failing)
    with pytest.raises(KeyboardInterrupt):
        save_buffer(filled(n=13), tmp_path / "a.h5")
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["a.h5"] and same(load_buffer(tmp_path / "a.h5").state_dict(), good.state_dict())


KILLED = """
import os, signal, sys
sys.path[:0] = [{root!r}, {tests!r}]
import test_files as t
number, count = int(sys.argv[1]), [0]
def hooked(real):
    def call(*args, **kwargs):
        count[0] += 1
        if count[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    return call
buffer = t.filled(n=13)
for module, name in ((os, "fsync"), (os, "rename"), (t.hdf5, "_digest"), (t.archive, "write_new")):
    setattr(module, name, hooked(getattr(module, name)))
t.save_buffer(buffer, sys.argv[2])
"""


@pytest.mark.parametrize("numbers", [(2, 11, 40), pytest.param((1, 4, 7, 10, 12, 13, 14, 40), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_a_killed_writer_leaves_the_good_file(tmp_path, form, numbers):
    good = filled()
    save_buffer(good, tmp_path / form)
    code = KILLED.format(root=str(Path(__file__).parents[2]), tests=str(Path(__file__).parent))
    outcomes = set()
    for number in numbers:
        done = subprocess.run([sys.executable, "-c", code, str(number), str(tmp_path / form)], capture_output=True, text=True,
                              timeout=100)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        rows = len(load_buffer(tmp_path / form))
        assert rows in (40, 13) and (done.returncode or rows == 13)
        outcomes.add((done.returncode, rows))
        safe_files.clean_partial(tmp_path)
        assert os.listdir(tmp_path) == [form]
        save_buffer(good, tmp_path / form)
    assert {(0, 13), (-signal.SIGKILL, 40)} <= outcomes


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    for call in (lambda: save_buffer(filled(), tmp_path / "a.h5"), lambda: load_buffer(tmp_path / "a.hdf5")):
        with pytest.raises(ImportError, match=r"pip install 'parl_like\[hdf5\]'"):
            call()
    save_buffer(filled(), tmp_path / "a")  # needs none


def test_hdf5_can_be_read_by_others(tmp_path):
    buffer = filled(n=20)
    save_buffer(buffer, tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r") as file:
        assert np.array_equal(file["rows.0000/columns.rew"], np.arange(20.0))
        head = json.loads(file["buffer/$values"][:].tobytes())
        assert file.attrs["parl_like replay format"] == 1
    assert head["kind"] == "ReplayBuffer" and "numpy" in head["versions"]


@pytest.mark.parametrize("name", ["saved", "saved.h5"])
def test_buffers_save_and_load_themselves(name, tmp_path):
    buffer = ReplayBuffer(20)
    for i in range(3):
        buffer.add(dict(obs=i, act=i, rew=i, terminated=False, truncated=False, obs_next=i + 1))
    buffer.save(tmp_path / name)
    loaded = ReplayBuffer.load(tmp_path / name)
    assert len(loaded) == 3 and loaded[:] == buffer[:]
    with pytest.raises(TypeError, match=r"PrioritizedReplayBuffer.load: .* holds a ReplayBuffer; load it with that class"):
        PrioritizedReplayBuffer.load(tmp_path / name)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", [lambda: filled_episodes(), lambda: filled_cache(ReplayBuffer(40)), lambda: ReservoirBuffer(3)])
def test_every_kind_saves_and_loads_itself(form, make, tmp_path):
    buffer = make()
    assert isinstance(buffer, Savable)
    buffer.save(tmp_path / form)
    loaded = type(buffer).load(tmp_path / form)
    assert type(loaded) is type(buffer) and same(loaded.state_dict(), buffer.state_dict())
    for other in {EpisodeBuffer, CachedReplayBuffer, ReservoirBuffer} - {type(buffer)}:
        with pytest.raises(TypeError,
                           match=f"{other.__name__}.load: .* holds a {type(buffer).__name__}; load it with that class"):
            other.load(tmp_path / form)
