"""Checkpoints: the newest good one loads whatever happened; a full disk is survived; one process per run directory."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import psutil
import pytest

from parl_like.data.storage.archive import ArchiveError, read_archive, read_manifest
from parl_like.lab.runs import checkpoint
from parl_like.lab.runs.checkpoint import Checkpoints, verify
from parl_like.lab.runs.lock import RunLock, RunLocked
from parl_like.lab.yaml_text import UsageError


def state(step):
    return {"task.RL": {"w": np.full(8, step, np.float32)}, "counters": {"steps": step}}


def step_of(loaded):
    """The step of a loaded checkpoint, after a look at every value in it."""
    step = loaded.tree["counters"]["steps"]
    assert loaded.tree["task.RL"]["w"].tolist() == [step] * 8
    assert loaded.manifest.meta["step"] == step and loaded.path.name == f"{step:09d}"
    return step


def filled(root, steps, scores=None, **options):
    """Checkpoints of these steps, and the list that takes their warnings."""
    warnings = []
    checkpoints = Checkpoints(root, warn=warnings.append, **options)
    for i, step in enumerate(steps):
        assert checkpoints.save(step, state(step), score=scores[i] if scores else None) == root / f"{step:09d}"
    assert warnings == []
    return checkpoints, warnings


def damage(root, step):
    file = root / f"{step:09d}" / "task.RL.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def listing(root):
    return sorted(os.listdir(root))


# ------------------------------------------------------------------------------------------------ save, load, prune


def test_a_run_saves_and_loads(tmp_path):
    root = tmp_path / "run" / "checkpoints"
    checkpoints, warnings = filled(root, [100, 250])
    assert listing(root) == ["000000100", "000000250", "LATEST"]
    assert (root / "LATEST").read_text() == "000000250\n"
    assert root.stat().st_mode & 0o777 == 0o700
    assert step_of(checkpoints.load()) == 250
    assert step_of(checkpoints.load("latest")) == 250
    assert step_of(checkpoints.load(root / "000000100")) == 100
    assert checkpoints.load().skipped == warnings == []
    assert (checkpoints.latest(), checkpoints.best()) == (root / "000000250", None)
    assert verify(root) == [("000000100", True, ""), ("000000250", True, "")]


def test_the_meta_says_where_a_checkpoint_comes_from(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(100, state(100), {"experiment": "fake", "config": {"seed": 0}}, score=1.5)
    checkpoints.save(200, state(200))
    assert read_manifest(tmp_path / "000000100").meta == {
        "experiment": "fake", "config": {"seed": 0}, "step": 100, "score": 1.5, "parent": None}  # fmt: skip
    assert read_manifest(tmp_path / "000000200").meta == {"step": 200, "score": None, "parent": "000000100"}


def test_a_root_that_others_could_read_is_closed(tmp_path):
    tmp_path.chmod(0o755)
    Checkpoints(tmp_path).load  # noqa: B018  looking changes nothing
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    Checkpoints(tmp_path).save(0, state(0))
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_the_oldest_are_removed_but_never_best_and_latest(tmp_path):
    scores = [1.0, 9.0, 2.0, 3.0, 9.0, math.nan, None, -math.inf]
    filled(tmp_path, range(100, 900, 100), scores, keep=3)
    # the newest three, and 200, the first of the two best
    assert listing(tmp_path) == ["000000200", "000000600", "000000700", "000000800", "BEST", "LATEST"]
    assert (tmp_path / "BEST").read_text() == "000000200\n"
    again = Checkpoints(tmp_path, keep=1)  # a resumed run knows the best score from the disk
    again.save(900, state(900), score=8.0)
    assert listing(tmp_path) == ["000000200", "000000900", "BEST", "LATEST"]
    again.save(1000, state(1000), score=9.5)
    assert listing(tmp_path) == ["000001000", "BEST", "LATEST"]
    assert step_of(again.load("best")) == 1000


def test_scores_that_are_no_numbers_never_become_best(tmp_path):
    checkpoints, _ = filled(tmp_path, [1, 2], [math.nan, None])
    assert checkpoints.best() is None
    checkpoints.save(3, state(3), score=-5.0)
    assert checkpoints.best() == tmp_path / "000000003"


def test_steps_count_as_numbers(tmp_path):
    checkpoints, _ = filled(tmp_path, [999_999_999, 1_000_000_000, 10**17], keep=2)
    assert listing(tmp_path) == ["1000000000", "100000000000000000", "LATEST"]
    assert checkpoints.load().tree["counters"]["steps"] == 10**17
    for step in (-1, 10**18):
        with pytest.raises(ValueError, match=f"`step` is {step}; expected 0 or more"):
            checkpoints.save(step, {})


def test_pruning_does_not_follow_links(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    filled(root, [5])
    for name in ("000000001", "000000002", "notes", ".partial.x.01234567"):
        (root / name).symlink_to(outside)
    (root / "000000005" / "link").symlink_to(outside)
    (root / "mine").mkdir()
    filled(root, [6, 7], keep=1)
    assert listing(root) == ["000000001", "000000002", "000000007", "LATEST", "mine", "notes"]
    assert listing(outside) == ["file"]


def test_what_cannot_be_stored_is_the_programs_fault(tmp_path):
    checkpoints, warnings = filled(tmp_path, [1])
    with pytest.raises(ArchiveError, match="got object"):
        checkpoints.save(2, {"x": object()})
    assert (step_of(checkpoints.load()), warnings) == (1, [])


# ------------------------------------------------------------------------------------------------ damage (F37)


def test_the_previous_good_one_is_loaded_and_named(tmp_path):
    checkpoints, warnings = filled(tmp_path, [100, 200, 300, 400])
    damage(tmp_path, 400)
    (tmp_path / "000000300" / "manifest.json").unlink()
    loaded = checkpoints.load()
    assert step_of(loaded) == 200
    assert [name for name, _ in loaded.skipped] == ["000000400", "000000300"]
    assert [name in line and "loaded 000000200 instead" in line
            for name, line in zip(["000000400", "000000300"], warnings, strict=True)] == [True] * 2
    assert "sha256" in loaded.skipped[0][1] and "manifest.json" in loaded.skipped[1][1]
    assert [(name, ok) for name, ok, _ in verify(tmp_path)] == [
        ("000000100", True), ("000000200", True), ("000000300", False), ("000000400", False)]  # fmt: skip


def large_state():
    rows = np.arange(9 << 20, dtype=np.int64)  # 72 MB, a file of its own
    return {"task.RL": {"w": np.ones(8, np.float32), "list": [1, "two", 2**70]},
            "buffer": {"rows": rows, "small": rows[: 3 << 20], "flags": np.ones(5 << 20, bool)}}


def test_verify_reads_every_byte_and_holds_none_of_them(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(100, large_state())
    tracemalloc.start()
    try:
        assert verify(tmp_path) == [("000000100", True, "")]
        assert tracemalloc.get_traced_memory()[1] < 10 << 20  # of 100 MB
    finally:
        tracemalloc.stop()
    monkeypatch.setattr(os, "sysconf", lambda name: 1000)  # a machine of 1 MB, on which `load` refuses it
    assert verify(tmp_path) == [("000000100", True, "")]
    with pytest.raises(ArchiveError, match="arrays that fit into 1000000 bytes of memory"):
        checkpoints.load()


@pytest.mark.parametrize("file, at", [
    ("buffer.0.npy", 50 << 20), ("buffer.0.npy", 3), ("buffer.0.npy", -1), ("buffer.safetensors", 20 << 20),
    ("buffer.safetensors", 20), ("task.RL.json", 5)])
def test_verify_finds_what_loading_finds_in_the_same_words(tmp_path, file, at):
    Checkpoints(tmp_path).save(100, large_state())
    path = tmp_path / "000000100" / file
    with open(path, "r+b") as stream:
        stream.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 1]))
    (_, good, problem), = verify(tmp_path)
    assert not good and f"{file}: expected sha256" in problem
    with pytest.raises(ArchiveError) as caught:
        read_archive(tmp_path / "000000100")
    assert str(caught.value) == problem


def test_older_ones_come_before_a_later_step(tmp_path):
    checkpoints, _ = filled(tmp_path, [100, 200, 300, 400])
    (tmp_path / "LATEST").write_text("000000300\n")
    assert step_of(checkpoints.load()) == 300
    damage(tmp_path, 300)
    assert step_of(checkpoints.load()) == 200
    damage(tmp_path, 200)
    damage(tmp_path, 100)
    assert step_of(checkpoints.load()) == 400


def test_never_silently_from_scratch(tmp_path):
    checkpoints, _ = filled(tmp_path, [100, 200])
    damage(tmp_path, 100)
    damage(tmp_path, 200)
    with pytest.raises(ArchiveError, match=r"expected a good checkpoint, got none \(000000200: .*; 000000100: .*\); give the "
                                           r"path"):
        checkpoints.load()
    with pytest.raises(ArchiveError, match="000000200/task.RL.safetensors"):
        checkpoints.load(tmp_path / "000000200")
    for which in ("latest", "best"):
        with pytest.raises(ArchiveError, match="got none .*LATEST: No such file"):
            Checkpoints(tmp_path / "nothing").load(which)
    assert Checkpoints(tmp_path / "nothing").latest() is None
    assert not (tmp_path / "nothing").exists()
    assert checkpoints.latest() == tmp_path / "000000200", "there is something, though nothing good"


@pytest.mark.parametrize("text",
                         ["", "garbage", "../../etc", "/etc/passwd", "000000900\n", "1\n", "000000100\n\n", "x" * 5000, None])
def test_a_pointer_that_names_nothing(tmp_path, text):
    checkpoints, warnings = filled(tmp_path, [100, 200])
    (tmp_path / "LATEST").unlink()
    if text is not None:
        (tmp_path / "LATEST").write_text(text)
    loaded = checkpoints.load()
    assert (step_of(loaded), len(loaded.skipped), len(warnings)) == (200, 1, 1)
    assert checkpoints.latest() in (tmp_path / "000000200", tmp_path / "000000900")
    assert [(name, ok) for name, ok, _ in verify(tmp_path)][2:] == ([] if text is None else [("LATEST", False)])


def test_a_linked_pointer_or_checkpoint_is_not_followed(tmp_path):
    root = tmp_path / "root"
    checkpoints, _ = filled(root, [100, 200])
    filled(tmp_path / "other", [300])
    (root / "000000300").symlink_to(tmp_path / "other" / "000000300")
    (tmp_path / "pointer").write_text("000000100\n")
    (root / "LATEST").unlink()
    (root / "LATEST").symlink_to(tmp_path / "pointer")
    loaded = checkpoints.load()
    assert (step_of(loaded), [name for name, _ in loaded.skipped]) == (200, ["LATEST"])


def test_a_damaged_best_gives_way_to_latest(tmp_path):
    checkpoints, warnings = filled(tmp_path, [100, 200, 300], [1.0, 5.0, 2.0])
    assert step_of(checkpoints.load("best")) == 200
    damage(tmp_path, 200)
    assert step_of(checkpoints.load("best")) == 300
    assert len(warnings) == 1 and "000000200" in warnings[0]
    (tmp_path / "000000200" / "manifest.json").unlink()
    checkpoints.save(400, state(400), score=0.0)
    assert checkpoints.best() == tmp_path / "000000400"
    assert "BEST is not usable" in warnings[1]


def test_a_run_that_resumed_earlier_replaces_what_it_passed_over(tmp_path):
    checkpoints, warnings = filled(tmp_path, [100, 200, 300, 400], keep=4)
    damage(tmp_path, 400)
    (tmp_path / "000000300" / "manifest.json").unlink()
    (tmp_path / "000000300" / "extra").mkdir()
    assert step_of(checkpoints.load()) == 200
    warnings.clear()
    for step in (300, 350):
        assert checkpoints.save(step, state(step))
    assert step_of(checkpoints.load()) == 350
    assert warnings == []
    # 400 went first: it belongs to a future that was given up
    assert listing(tmp_path) == ["000000100", "000000200", "000000300", "000000350", "LATEST"]
    assert all(ok for _, ok, _ in verify(tmp_path))


def test_pointers_are_replaced_not_rewritten(tmp_path):
    checkpoints, _ = filled(tmp_path, [100], [1.0])
    for name in ("LATEST", "BEST"):
        os.link(tmp_path / name, tmp_path / f"old {name}")
    checkpoints.save(200, state(200), score=2.0)
    assert [(tmp_path / name).read_text() for name in ("LATEST", "BEST")] == ["000000200\n"] * 2
    assert [(tmp_path / f"old {name}").read_text() for name in ("LATEST", "BEST")] == ["000000100\n"] * 2


def test_a_step_is_saved_again(tmp_path):
    checkpoints, _ = filled(tmp_path, [100])
    tree = state(100)
    tree["counters"]["more"] = 1
    checkpoints.save(100, tree)
    assert checkpoints.load().tree["counters"] == {"steps": 100, "more": 1}
    assert listing(tmp_path) == ["000000100", "LATEST"]


# ------------------------------------------------------------------------------------------------ a disk that refuses (F36)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["mkdir", "write", "fsync", "rename"])
def test_a_disk_that_refuses_is_survived(tmp_path, monkeypatch, number, call):
    checkpoints, warnings = filled(tmp_path, [100, 200])

    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        assert checkpoints.save(300, state(300)) is None
    assert len(warnings) == checkpoints.failures == 1
    assert os.strerror(number) in warnings[0] and "000000300" in warnings[0] and "training goes on" in warnings[0]
    assert step_of(checkpoints.load()) == 200
    assert all(ok for _, ok, _ in verify(tmp_path))
    assert checkpoints.save(400, state(400)) == tmp_path / "000000400"
    assert (step_of(checkpoints.load()), checkpoints.failures) == (400, 0)


def test_it_gives_up_after_failures_in_a_row(tmp_path, monkeypatch):
    checkpoints, warnings = filled(tmp_path, [100])
    full = [True] * 2 + [False] + [True] * 3

    def fsync(file, real=os.fsync):
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    for step in (200, 300, 400, 500, 600):  # two fail, one succeeds, two fail
        assert (checkpoints.save(step, state(step)) is None) == full.pop(0)
    with pytest.raises(OSError, match="000000700 could not be saved .No space.*3 failures in a row: free space") as caught:
        checkpoints.save(700, state(700))
    assert caught.value.errno == errno.ENOSPC
    assert len(warnings) == 4
    assert step_of(checkpoints.load()) == 400
    patient = Checkpoints(tmp_path, give_up_s=1e9, warn=warnings.append)
    assert [patient.save(step, state(step)) for step in range(20)] == [None] * 20


def test_an_old_checkpoint_that_stays_is_no_failure(tmp_path, monkeypatch):
    checkpoints, warnings = filled(tmp_path, [100], keep=1)

    def refuse(path):
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(checkpoint, "remove_folder", refuse)
    assert checkpoints.save(200, state(200)) == tmp_path / "000000200"
    assert warnings == [f"an old checkpoint in {tmp_path} could not be removed (Permission denied)"]
    assert checkpoints.failures == 0


# ------------------------------------------------------------------------------------------------ killed while saving (F35)

KILL = """
import os, shutil, signal, sys
from pathlib import Path
import numpy as np
from parl_like.lab.runs.checkpoint import Checkpoints, verify

base, variant, half = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "half"
NEW = {"new": 300, "again": 200, "damaged": 200}[variant]

def state(step, mark):
    return {"task.RL": {"w": np.full(8, step)}, "counters": {"steps": step, "mark": mark}}

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def kill_at(k):
    count = 0
    for name in ("mkdir", "write", "fsync", "rename", "unlink", "rmdir"):
        def call(*args, name=name, real=getattr(os, name), **kwargs):
            nonlocal count
            count += 1
            if count == k:
                if half and name == "write":
                    real(args[0], args[1][: len(args[1]) // 2])
                elif half:
                    try:
                        real(*args, **kwargs)
                    finally:
                        die()
                die()
            return real(*args, **kwargs)
        setattr(os, name, call)

def prepared(root):
    checkpoints = Checkpoints(root, keep=2)
    for step in (100, 200):
        checkpoints.save(step, state(step, 0), score=1)
    if variant == "damaged":
        (root / "000000200" / "manifest.json").unlink()

template = base / "template"
prepared(template)
k = 0
while True:
    k += 1
    root = base / str(k)
    shutil.copytree(template, root)
    child = os.fork()
    if child == 0:
        kill_at(k)
        Checkpoints(root, keep=2).save(NEW, state(NEW, 1), score=2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or status == 0, status

    def check(old_is_good):
        warnings = []
        checkpoints = Checkpoints(root, keep=2, warn=warnings.append)
        tree, manifest, path, skipped, _ = checkpoints.load()
        step, mark = tree["counters"]["steps"], tree["counters"]["mark"]
        assert tree["task.RL"]["w"].tolist() == [step] * 8 and manifest.meta["step"] == step
        if old_is_good:
            assert not skipped and not warnings, (k, skipped)
            assert (step, mark) in ((200, 0), (NEW, 1)), (k, step, mark)
            checkpoints.load("best")
            assert all(ok for _, ok, _ in verify(root)), (k, verify(root))
        else:
            assert (step, mark) in ((100, 0), (200, 1)), (k, step, mark)
        return step, mark

    good = variant != "damaged"
    check(good)                                         # before anybody cleans up
    Checkpoints(root, keep=2)._start()                  # the next start
    left = [name for name in os.listdir(root) if name.startswith(".")]
    assert not left, (k, left)
    found = check(good)
    assert killed or found == (NEW, 1)
    later = Checkpoints(root, keep=2)
    assert later.save(400, state(400, 2), score=0)
    assert later.load().tree["counters"]["steps"] == 400
    assert len([name for name in os.listdir(root) if name.isdigit()]) <= 4
    if not killed:
        break
print(k - 1)
"""


@pytest.mark.parametrize("variant", ["new", "again", "damaged"])
@pytest.mark.parametrize("when", ["before", "half"])
def test_a_kill_at_any_step_leaves_a_good_one(tmp_path, variant, when):
    """`before` each system call of a save that also replaces or prunes; `half`: half of a write done, or the call just done."""
    words = [sys.executable, "-c", KILL, str(tmp_path), variant, when]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    # files: 4 writes, 4 fsyncs; their directory: mkdir, 2 fsyncs, rename; BEST and LATEST: 2 × (write, 2 fsyncs, rename); and
    # what is old
    assert int(done.stdout) > 20


# ------------------------------------------------------------------------------------------------ one process per run (F42)

HOLD = """
import sys, time
from parl_like.lab.runs.lock import RunLock
lock = RunLock(sys.argv[1])
print(lock.acquire(), flush=True)
sys.stdin.read()
"""


def hold(run_dir):
    """Another process with the lock, as soon as it has it."""
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(run_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "False\n"
    return other


def end(other):
    other.kill()
    other.wait()
    other.stdin.close()
    other.stdout.close()


def test_a_second_start_is_refused(tmp_path):
    run = tmp_path / "run"
    with RunLock(run) as lock:
        assert run.stat().st_mode & 0o777 == 0o700
        holder = json.loads((run / "run.lock").read_text())
        assert holder["pid"] == os.getpid() and holder["host"] == os.uname().nodename
        with pytest.raises(RunLocked, match=f"{run} is in use by process {os.getpid()}; stop it, or give another run directory"):
            RunLock(run).acquire()
        assert issubclass(RunLocked, UsageError)
        with RunLock(tmp_path / "other"):
            pass
    assert not lock.held
    assert RunLock(run).acquire() is False, "given back, so nothing was taken over"


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path):
    other = hold(tmp_path)
    try:
        with pytest.raises(RunLocked, match=f"in use by process {other.pid}"):
            RunLock(tmp_path).acquire()
        os.kill(other.pid, signal.SIGSTOP)
        with pytest.raises(RunLocked, match=f"in use by process {other.pid}"):
            RunLock(tmp_path).acquire()
        os.kill(other.pid, signal.SIGKILL)  # not waited for: a zombie still has its pid
        while psutil.Process(other.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        lock = RunLock(tmp_path)
        assert lock.acquire() is True, "taken over"
        lock.release()
    finally:
        end(other)


def test_a_pid_that_was_given_to_another_process_holds_nothing(tmp_path):
    lock = RunLock(tmp_path)
    lock.acquire()
    holder = json.loads(lock.path.read_text())
    lock.path.write_text(json.dumps(holder | {"started": holder["started"] - 100}))
    assert RunLock(tmp_path).acquire() is True


@pytest.mark.parametrize("text",
                         ["", "{", "\x00" * 50, "[]", '{"pid": "x"}', '{"pid": -1, "started": 0, "host": "h"}', "9" * 5000])
def test_a_half_written_lock_holds_nothing(tmp_path, text):
    (tmp_path / "run.lock").write_text(text)
    assert RunLock(tmp_path).acquire() is False


def test_another_machine_cannot_be_asked(tmp_path):
    (tmp_path / "run.lock").write_text(json.dumps({"pid": 1, "started": 0.5, "host": "far"}))
    with pytest.raises(RunLocked, match=f"process 1 on machine 'far'; if that run has ended, delete {tmp_path / 'run.lock'}"):
        RunLock(tmp_path).acquire()


def test_a_linked_lock_is_not_followed(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.lock").symlink_to(tmp_path / "file")
    with pytest.raises(UsageError, match="it is a link, which is not followed"):
        RunLock(tmp_path / "run").acquire()
    assert (tmp_path / "file").read_text() == "mine"


def test_a_child_does_not_give_back_what_its_parent_holds(tmp_path):
    with RunLock(tmp_path) as lock:
        child = os.fork()
        if child == 0:
            lock.release()
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(RunLocked):
            RunLock(tmp_path).acquire()


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_jump_of_the_clock_changes_nothing(tmp_path, monkeypatch, jump):
    other = hold(tmp_path / "run")
    try:
        checkpoints, warnings = filled(tmp_path / "checkpoints", [100])
        shifted = time.time() + jump
        monkeypatch.setattr(time, "time", lambda: shifted)
        # What Linux reports after the clock was set: another time of boot, from which psutil counts the start of every process.
        boot = psutil._pslinux.boot_time() + jump
        monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: boot)
        with pytest.raises(RunLocked, match=f"in use by process {other.pid}"):
            RunLock(tmp_path / "run").acquire()
        checkpoints.save(200, state(200))
        os.utime(tmp_path / "checkpoints" / "000000200", (0, 0))
        assert (step_of(checkpoints.load()), warnings) == (200, [])
    finally:
        end(other)


def test_of_many_at_once_one_gets_it(tmp_path):
    (tmp_path / "run.lock").write_text(json.dumps({"pid": 2**31 - 1, "started": 0.0, "host": os.uname().nodename}))  # stale
    go, ready, tried = os.pipe(), os.pipe(), os.pipe()
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            os.close(go[1])
            os.write(ready[1], b"x")
            os.read(go[0], 1)  # until the parent closes its end
            code = 0
            try:
                RunLock(tmp_path).acquire()
            except RunLocked:
                code = 1
            os.write(tried[1], b"x")
            while code == 0 and not (tmp_path / "all have tried").exists():  # hold it as long
                time.sleep(0.01)
            os._exit(code)
        children.append(child)
    for _ in children:
        os.read(ready[0], 1)
    os.close(go[1])
    for _ in children:
        os.read(tried[0], 1)
    (tmp_path / "all have tried").touch()
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(codes) == [0] + [1] * 7


def test_a_run_goes_on_from_the_newest_that_no_failure_made(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(100, state(100))
    checkpoints.save(136, state(136), {"interrupted": True})
    assert checkpoints.newest() == 136 == step_of(checkpoints.load("newest"))
    assert step_of(checkpoints.load("exact")) == 100
    checkpoints.save(150, state(150), {"interrupted": True, "failed": True})
    assert checkpoints.newest() == 136 == step_of(checkpoints.load("newest"))  # and it was kept
    assert step_of(checkpoints.load("latest")) == 150 and step_of(checkpoints.load("exact")) == 100


def test_an_exact_resume_falls_back_along_the_schedule(tmp_path):
    """The newest is an interruption's; of the scheduled ones the newest has a damaged array, which its manifest does not show."""
    checkpoints, warnings = filled(tmp_path, [100, 200, 300])
    checkpoints.save(350, state(350), {"interrupted": True})
    assert checkpoints.exact() == (300, 350) and step_of(checkpoints.load("exact")) == 300
    damage(tmp_path, 300)
    assert step_of(checkpoints.load("exact")) == 200
    assert len(warnings) == 1 and "000000300 is not usable" in warnings[0]
    for step in (200, 100):
        damage(tmp_path, step)
    assert step_of(checkpoints.load("exact")) == 350
    damage(tmp_path, 350)
    with pytest.raises(ArchiveError, match="expected a good checkpoint, got none"):
        checkpoints.load("exact")
