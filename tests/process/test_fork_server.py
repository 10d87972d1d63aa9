"""ForkServer: what a child has of its parent, how its end is told, and that nothing stays."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from parl_like.process import fork_server
from parl_like.process.fork_server import ForkServer

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd")]

WORK = """
import os, subprocess, sys, time
def work(payload, *fds):
    exec(payload.decode(), {"fds": fds})
"""


@pytest.fixture
def server(tmp_path, monkeypatch):
    (tmp_path / "forked_work.py").write_text(WORK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = ForkServer("forked_work:work")
    yield made
    made.close()


def test_a_child_has_the_path_the_environment_the_directory_and_the_output_of_now(server, tmp_path, monkeypatch, capfd):
    assert server.start(b"pass").wait(60)
    monkeypatch.setenv("PARL_LIKE_TEST", "später")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/nowhere")
    child = server.start(b"import os, sys; print(os.environ['PARL_LIKE_TEST'], os.getcwd(), sys.path[0])")
    assert child.wait(60) and child.code == 0
    assert capfd.readouterr().out.split() == ["später", str(tmp_path), "/nowhere"]


def test_what_is_imported_before_children_need_it(server, capfd):
    """`wave` is of the standard library, and nothing else here imports it."""
    look = b"import sys; print('wave' in sys.modules)"
    assert server.start(look).wait(60)
    server.close()
    server.preload = ("wave",)
    assert server.start(look).wait(60)
    assert capfd.readouterr().out.split() == ["False", "True"]


def test_a_child_gets_its_file_descriptors_and_no_others(server):
    ours, theirs = os.pipe()
    server.start(b"import time; time.sleep(30)")  # whose pidfd is the server's alone
    child = server.start(b"import os; os.write(fds[0], ' '.join(sorted(os.listdir('/proc/self/fd'))).encode())", [theirs])
    os.close(theirs)
    assert child.wait(60)
    with open(ours, "rb") as pipe:
        seen = pipe.read().split()
    assert len(seen) == 5  # input, output, errors, the pipe, and the folder that is being listed
    child.forget()


@pytest.mark.parametrize("code, expected",
                         [(b"pass", 0), (b"raise SystemExit(7)", 7), (b"1 / 0", 1), (b"import os; os.kill(os.getpid(), 9)", -9)])
def test_how_a_child_ended(server, code, expected, capfd):
    child = server.start(code)
    assert child.wait(60) and child.code == expected
    assert ("ZeroDivisionError" in capfd.readouterr().err) == (expected == 1)
    child.kill()  # nothing happens any more
    child.forget()


def test_what_a_child_has_started_ends_with_it_and_it_may_be_interrupted(server):
    ours, theirs = os.pipe()
    child = server.start(b"import os, subprocess, time; p = subprocess.Popen(['sleep', '60']); os.write(fds[0], b'%d' % p.pid); "
                         b"time.sleep(60)", [theirs])
    os.close(theirs)
    helper = psutil.Process(int(os.read(ours, 100)))
    os.close(ours)
    child.send_signal(signal.SIGINT)  # Ctrl-C is not for it
    assert not child.wait(0.2)
    child.kill()
    assert child.wait(60) and child.code == -signal.SIGKILL
    end = time.monotonic() + 60
    while helper.is_running() and helper.status() != psutil.STATUS_ZOMBIE:  # it has the signal, and needs a moment
        assert time.monotonic() < end
        time.sleep(0.01)


def test_children_end_with_their_server_and_the_next_start_makes_another(server):
    child = server.start(b"import time; time.sleep(60)")
    os.kill(server.pid, signal.SIGKILL)
    assert child.wait(60) and child.code == -signal.SIGKILL
    assert server.start(b"pass").wait(60)


def test_two_children_draw_different_numbers_from_the_global_generators(server):
    ours, theirs = os.pipe()
    code = b"import os, random, numpy; os.write(fds[0], b'%f %f\\n' % (random.random(), numpy.random.rand()))"
    server.start(b"import numpy")
    for _ in range(2):
        assert server.start(code, [theirs]).wait(60)
    os.close(theirs)
    with open(ours) as pipe:
        first, second = (line.split() for line in pipe.read().splitlines())
    assert first[0] != second[0] and first[1] != second[1]


def test_a_server_that_cannot_begin_says_so(capfd):
    with pytest.raises(OSError, match="ends at once"):
        ForkServer("there_is_no_such_module:work").start(b"")
    assert "there_is_no_such_module" in capfd.readouterr().err


def test_folders_are_removed_when_the_parent_ends_and_outlive_a_server(server, tmp_path):
    where = tmp_path / "folders"
    where.mkdir()
    one, two = server.make_folder(str(where)), server.make_folder(str(where))
    assert os.stat(one).st_mode & 0o777 == 0o700
    os.kill(server.pid, signal.SIGKILL)
    server.start(b"pass").wait(60)  # by another server, which is told of the folders
    server.remove_folder(two)
    assert os.listdir(where) == [os.path.basename(one)]
    server.close()
    assert os.listdir(where) == []
    with pytest.raises(OSError):
        server.make_folder(str(where / "nowhere"))


PARENT = """
import os, sys
from parl_like.process.fork_server import ForkServer
server = ForkServer("forked_work:work")
server.make_folder(sys.argv[1])
if sys.argv[2] == "forked" and not os.fork():
    import time; time.sleep(60)
child = server.start(b"import time; time.sleep(60)") if sys.argv[2] != "at once" else None
print(server.pid, child and child.pid, flush=True)
sys.stdin.read()
"""


def lives(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("when", ["at once", "later", "forked"])
def test_a_parent_that_is_killed_leaves_neither_processes_nor_folders(server, tmp_path, when):
    """At once: while the server imports. Forked: a copy of the parent, which goes on, holds the server's socket."""
    where = tmp_path / "folders"
    where.mkdir()
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    words = [sys.executable, "-c", PARENT, str(where), when]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path},
                          text=True) as parent:
        pids = [int(word) for word in parent.stdout.readline().split() if word != "None"]
        copies = psutil.Process(parent.pid).children()
        parent.kill()
    try:
        end = time.monotonic() + 60
        while (left := [pid for pid in pids if lives(pid)]) or os.listdir(where):
            assert time.monotonic() < end, (left, os.listdir(where))
            time.sleep(0.01)
    finally:
        for copy in copies:
            if copy.is_running():
                copy.kill()


def test_a_server_without_children_ends_after_a_while(server):
    assert server.idle == fork_server.IDLE == 30.0
    server.idle = 0.2
    first = server.start(b"pass")
    process = server._process
    assert first.wait(60) and process.wait(60) == 0 and server.pid is None
    assert server.start(b"pass").wait(60) and server._process is not process
