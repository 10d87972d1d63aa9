"""`Robot.run(progress=True)`: a table on a terminal, a line that changes in a notebook, else lines; and notebooks of the lab."""

import io
import re
import sys
from types import SimpleNamespace

import pytest

from parl_like import Robot
from parl_like.environment.hooks import EpisodeStats
from parl_like.lab import progress, progress_hook
from parl_like.lab.notebook import in_notebook
from parl_like.lab.progress import Progress
from parl_like.lab.text import printer


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def kernel(monkeypatch):
    """What IPython looks like in a kernel of Jupyter."""
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    return shell


def shown(text):
    """What a notebook shows of an output: of each line what was written over it last."""
    return [line.rpartition("\r")[2].rstrip() for line in text.split("\n")]


def play(monkeypatch, stream, driver="cooperative", hooks=(), steps=400, **options):
    monkeypatch.setattr(sys, "stdout", stream)
    with Robot.of("PPO", "CartPole-v1", n_agents=2, unroll=20, hidden=[4], driver=driver) as robot:
        robot.run(steps, hooks=hooks, **options)
    return stream.getvalue()


@pytest.mark.parametrize("driver", ["cooperative", "threads", "processes"])
def test_plain_lines(monkeypatch, driver):
    monkeypatch.setattr(progress_hook, "LINE_S", 1e-9)
    monkeypatch.setattr(progress, "REFRESH_S", (0.0, 0.0))
    stats = EpisodeStats()
    lines = play(monkeypatch, io.StringIO(), driver, stats, progress=True).splitlines()
    assert len(lines) > 3 and all(re.match(r"step=\d+ ", line) for line in lines) and stats.lengths
    last = re.match(r"step=(\d+) return/mean=\S+ .*left=0s$", lines[-1])
    assert last and int(last[1]) >= 400


def test_without_it_nothing_is_printed(monkeypatch):
    assert play(monkeypatch, io.StringIO()) == ""


def test_a_table_on_a_terminal(monkeypatch):
    stream = Terminal()
    text = play(monkeypatch, stream, progress=True)
    assert "run of 2 agents" in text and "of 400 env steps" in text
    assert sys.stdout is stream, "it is given back"


def test_a_run_without_an_end(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    with Robot.of("PPO", "CartPole-v1", n_agents=2, unroll=20, hidden=[4]) as robot:
        class Stops(EpisodeStats):
            def post_act(self, agent):
                if robot.env_steps >= 100:
                    robot.request_stop()

        robot.run(hooks=Stops(), progress=True)
    assert " env steps" in stream.getvalue() and "left=?" in stream.getvalue() and "inf" not in stream.getvalue()


def test_a_line_that_changes_in_a_notebook(monkeypatch, kernel):
    monkeypatch.setattr(progress, "REFRESH_S", (0.0, 0.0))
    text = play(monkeypatch, io.StringIO(), progress=True)
    assert text.count("\r") > 5
    (line, nothing) = shown(text)
    assert nothing == "" and re.match(r"step=\d+ .* left=0s$", line)


def test_what_hooks_print_is_above_the_line_of_a_notebook(monkeypatch, kernel):
    class Says(EpisodeStats):
        def post_episode(self, agent, interrupted):
            print(f"episode of {agent.env.episode_length}", end="\n" if agent.robot.env_steps < 300 else "")

    monkeypatch.setattr(progress, "REFRESH_S", (0.0, 0.0))
    stream = io.StringIO()
    *said, last, nothing = shown(play(monkeypatch, stream, hooks=Says(), progress=True))
    assert sys.stdout is stream and len(said) > 5 and nothing == "" and last.startswith("step=")
    assert all(re.fullmatch(r"(episode of \d+)+", line) for line in said)


def test_an_error_leaves_the_line_as_it_is(monkeypatch, kernel):
    class Breaks(EpisodeStats):
        def post_episode(self, agent, interrupted):
            raise RuntimeError("mine")

    stream = io.StringIO()
    with pytest.raises(Exception, match="mine"):
        play(monkeypatch, stream, hooks=Breaks(), progress=True)
    assert stream.getvalue().endswith("\n")


def test_lines_are_printed_above_the_one_that_changes(monkeypatch, kernel):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    clock = SimpleNamespace(now=0.0)
    one = Progress("run", 100, 0, 1e9, printer(stream), lambda: clock.now)
    for step in (10, 20):
        clock.now += 5.0
        one.tick(step, lambda: {"return/mean": float(step)})
    one.say("evaluated")
    clock.now += 5.0
    one.tick(30, dict)
    one.close()
    one.say("done")
    assert shown(stream.getvalue()) == ["evaluated", "step=30 steps_per_s=2 left=35s", "done", ""]


def test_what_is_no_notebook(monkeypatch, kernel):
    assert in_notebook(sys.stdout) and in_notebook(printer(sys.stderr))
    assert not in_notebook(io.StringIO()), "a file of the user's"
    kernel.kernel = None
    assert not in_notebook(sys.stdout), "IPython in a terminal"
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not in_notebook(sys.stdout)
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_notebook(sys.stdout) and "IPython" not in sys.modules
