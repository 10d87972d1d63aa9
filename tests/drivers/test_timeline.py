"""A timeline is a trace that Perfetto reads: its format, what it shows of each driver, and that it changes nothing."""

import errno
import json
import os
import threading
from collections import Counter, defaultdict
from functools import partial

import gymnasium as gym
import numpy as np
import pytest

from parl_like import Robot, VectorAgent
from parl_like.data.storage import trace_events
from parl_like.data.storage.trace_events import Recorder, args_of, read_events
from parl_like.drivers.timeline import Timeline
from parl_like.environment.hooks import EpisodeStats
from parl_like.lab.cli import main

WHOLE = 1e5  # seconds of a window that does not close


class Slow(gym.Env):
    """Ten steps an episode; the observation counts them. `at`: a step of the process at which `what` is called."""

    observation_space, action_space = gym.spaces.Box(0, 10, (1,), np.float32), gym.spaces.Discrete(2)
    at, what, steps = 0, None, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n = 0
        return np.zeros(1, np.float32), {}

    def step(self, act):
        self.n += 1
        type(self).steps += 1
        if self.steps == self.at:
            type(self).what()
        return np.full(1, self.n, np.float32), 1.0, self.n == 10, False, {}


def robot(driver="cooperative", agents=4, **options):
    return Robot.of("PPO", Slow, n_agents=agents, unroll=10, hidden=[4], seed=1, driver=driver, epochs=1, **options)


def checked(events):
    """The spans of a trace by lane; every event is as the format has it, and spans of a lane lie one in the other."""
    lanes, spans, open_ones, named = {}, defaultdict(list), {}, set()
    for event in events:
        kind, pid, tid = event["ph"], event["pid"], event["tid"]
        assert isinstance(event["name"], str) and event["name"] and isinstance(pid, int) and isinstance(tid, int)
        if kind == "M":
            if event["name"] == "thread_name":
                lanes[pid, tid] = event["args"]["name"]
            elif event["name"] == "process_name":
                lanes[pid, 0] = event["args"]["name"]
            named.add(event["name"])
            continue
        assert event["ts"] >= 0 and (pid, tid) in lanes  # a lane has its name before its first event
        if kind == "X":
            assert event["dur"] >= 0
            spans[lanes[pid, 0], lanes[pid, tid]].append(event)
        elif kind == "b":
            assert event["id"] not in open_ones and event["cat"]
            open_ones[event["id"]] = event
        elif kind == "e":
            begun = open_ones.pop(event["id"])
            assert begun["name"] == event["name"] and begun["ts"] <= event["ts"]
        elif kind == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
        else:
            assert kind == "i" and event["s"] == "t"
    assert not open_ones and {"process_name", "process_sort_index", "thread_name", "thread_sort_index"} <= named
    for of_lane in spans.values():
        around = []
        for span in sorted(of_lane, key=lambda one: (one["ts"], -one["dur"])):
            begin, end = round(span["ts"] * 1000), round((span["ts"] + span["dur"]) * 1000)
            while around and around[-1] <= begin:
                around.pop()
            assert not around or end <= around[-1], f"{span} begins in another span and ends after it"
            around.append(end)
    return spans


def traced(tmp_path, steps=240, agents=4, seconds=WHOLE, **options):
    timeline = Timeline(tmp_path / "timeline.json", seconds)
    with robot(agents=agents, **options) as one:
        one.run(steps, hooks=timeline)
        return one, checked(read_events(timeline.path))


def test_everything_that_agents_and_tasks_did_is_there(tmp_path):
    one, spans = traced(tmp_path)
    agents = [spans["agents", f"agent {i}"] for i in range(4)]
    for of_agent in agents:
        counts = Counter(span["name"] for span in of_agent)
        assert counts["step"] == 60 and counts["waits for RL predictions"] >= 60 and counts["waits for RL updates"] == 6
        assert [span["args"] for span in of_agent if span["name"] == "episode"][:6] == [
            {"steps": 10, "interrupted": False}] * 6
    predictions, updates = spans["tasks", "RL predictions"], spans["tasks", "RL updates"]
    assert sum(span["args"]["rows"] for span in predictions) == one.wrappers["RL"].predictions.counters.rows
    assert len(updates) == one.wrappers["RL"].trainings.counters.batches == 6
    assert {span["args"]["rows"] for span in updates} == {40}
    assert [span["args"] for span in spans["robot", "run"]] == [{"env_steps": 240}]
    # The clock is one: every step lies between the predictions that all agents waited for.
    served = [(span["ts"], span["ts"] + span["dur"]) for span in predictions + updates]
    steps = [(span["ts"], span["ts"] + span["dur"]) for of_agent in agents for span in of_agent if span["name"] == "step"]
    assert not [step for step in steps for batch in served if step[0] < batch[1] and batch[0] < step[1]]


@pytest.mark.parametrize("driver", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_other_drivers(tmp_path, driver):
    one, spans = traced(tmp_path, driver=driver)
    assert sum(span["args"]["rows"] for span in spans["tasks", "RL updates"]) == 40 * len(spans["tasks", "RL updates"]) > 0
    if driver == "threads":
        assert sum(span["name"] == "step" for lane, of in spans.items() if lane[0] == "agents" for span in of) == one.env_steps
        return
    events = read_events(tmp_path / "timeline.json")
    turns = [span for lane, of in spans.items() if lane[0] == "workers" for span in of]
    assert {span["name"] for span in turns} == {"turn"} and sum(span["args"]["steps"] for span in turns) == one.env_steps
    assert {"starting", "ready", "running"} <= {event["name"] for event in events if event["ph"] == "i"}
    labels = [event["args"]["labels"] for event in events if event["name"] == "process_labels"]
    assert len(labels) == 1 and "another process" in labels[0]


def test_a_vector_agent_has_lanes_for_its_environments(tmp_path):
    agent = partial(VectorAgent, 3)
    with Robot.of("PPO", Slow, agent=agent, n_agents=1, unroll=10, hidden=[4], seed=1) as one:
        one.run(90, hooks=(timeline := Timeline(tmp_path / "t.json", WHOLE)))
    spans = checked(read_events(timeline.path))
    assert Counter(span["name"] for span in spans["agents", "agent 0"])["step"] == 30
    for env in range(3):
        assert [span["args"]["steps"] for span in spans["agents", f"agent 0, environment {env}"][:2]] == [10, 10]


def test_it_changes_nothing_and_leaves_nothing(tmp_path):
    hashes, heard = [], []
    for hooks in ([], [Timeline(tmp_path / "t.json", 0.002)]):
        with robot(trace=True) as one:
            stats = EpisodeStats()
            one.run(400, hooks=[*hooks, stats])
            hashes.append(one.trace_hash())
            heard.append(stats.lengths)
            for wrapper in one.wrappers.values():
                for queue in (wrapper.predictions, wrapper.trainings):
                    assert not {"put", "work"} & vars(queue).keys()
            assert one.pool.hooks.last == ()
    assert hashes[0] == hashes[1] and heard[0] == heard[1]


def test_windows(tmp_path):
    _, spans = traced(tmp_path, steps=4_000, seconds=0.005)
    begins = [span["ts"] / 5e3 for span in spans["robot", "recorded"]]  # in lengths of a window
    assert len(begins) >= 3 and begins[0] < 4
    assert all(begin >= 2 ** (n + 2) for n, begin in enumerate(begins[1:], 1))
    steps = [span for lane, of in spans.items() if lane[0] == "agents" for span in of if span["name"] == "step"]
    recorded = [(span["ts"], span["ts"] + span["dur"]) for span in spans["robot", "recorded"]]
    assert steps and all(any(low <= span["ts"] <= high for low, high in recorded) for span in steps)


def test_evaluations_and_checkpoints_between_runs_and_in_them(tmp_path):
    timeline = Timeline(tmp_path / "t.json", 1e-6)
    with robot(hooks=timeline) as one:
        for _ in one.iterate(80):
            one.evaluate(1)
        one.save(tmp_path / "saved")
        one.run(40)
    spans = checked(read_events(timeline.path))["robot", "run"]
    assert Counter(span["name"] for span in spans) == {
        "run": 2, "evaluation": 2, "checkpoint: episodes end": 1, "checkpoint: state": 1}


def test_it_never_grows_beyond_its_size(tmp_path):
    timeline = Timeline(tmp_path / "t.json", WHOLE, max_bytes=1 << 16)
    with robot() as one:
        one.run(2_000, hooks=timeline)
        one.run(2_000, hooks=timeline)
    assert os.path.getsize(timeline.path) <= 1 << 16
    assert checked(json.loads(timeline.path.read_text()))


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
def test_ctrl_c_leaves_it_complete(tmp_path, driver, monkeypatch):
    def struck():
        raise KeyboardInterrupt

    for name, value in {"at": 100, "what": staticmethod(struck), "steps": 0}.items():
        monkeypatch.setattr(Slow, name, value)
    timeline = Timeline(tmp_path / "t.json", WHOLE)
    with robot(driver) as one, pytest.raises(KeyboardInterrupt):
        one.run(1_000, hooks=timeline)
    spans = checked(json.loads(timeline.path.read_text()))
    assert 90 <= sum(span["name"] == "step" for lane, of in spans.items() if lane[0] == "agents" for span in of) < 110


def test_threads_write_one_after_the_other(tmp_path, monkeypatch):
    """A thread that writes lets go of the interpreter, and others go on meanwhile."""
    recorder, real = Recorder(tmp_path / "t.json", 1 << 24), os.pwrite

    def slow(file, data, at):
        threading.Event().wait(0.001)
        return real(file, data, at)

    def act(index):
        head = recorder.lane("agents", f"agent {index}").head("step")
        for n in range(50):
            begin = recorder._origin + 10 * n
            recorder.add((head, begin, begin + 5, args_of(number=50 * index + n)))
            if n % 5 == 4:
                recorder.write()

    monkeypatch.setattr(trace_events.os, "pwrite", slow)
    threads = [threading.Thread(target=act, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.write()
    events = json.loads((tmp_path / "t.json").read_text())
    assert sorted(event["args"]["number"] for event in events if event["ph"] == "X") == [*range(200)]


def test_what_a_killed_process_leaves_can_be_read(tmp_path):
    recorder = Recorder(tmp_path / "t.json", 1 << 20)
    for n in range(20):
        begin = recorder._origin + 10 * n
        recorder.add((recorder.lane("agents", "agent 0").head("step"), begin, begin + 5, args_of(number=n)))
        recorder.write()
        assert json.loads((tmp_path / "t.json").read_bytes())[-1]["args"] == {"number": n}  # complete after each write
    whole = (tmp_path / "t.json").read_bytes()
    every = json.loads(whole)
    for size in range(1, len(whole), 11):
        (tmp_path / "torn.json").write_bytes(whole[:size])
        events = read_events(tmp_path / "torn.json")
        assert events == every[: len(events)] and len(events) >= whole[:size].count(b"\n") - 2


def test_a_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="no array of trace events"):
        read_events(tmp_path / "other.json")
    (tmp_path / "bad.json").write_text('[\nno JSON,\n{"ph": "M"}\n]\n')
    with pytest.raises(ValueError):
        read_events(tmp_path / "bad.json")


def test_a_file_that_is_there_is_kept(tmp_path):
    (tmp_path / "t.json").write_text("mine")
    os.symlink(tmp_path / "elsewhere", tmp_path / "t_2.json")
    timeline = Timeline(tmp_path / "t.json")
    with robot() as one:
        one.run(40, hooks=timeline)
    assert (tmp_path / "t.json").read_text() == "mine" and not (tmp_path / "elsewhere").exists()
    assert timeline.path == tmp_path / "t_3.json" and checked(read_events(timeline.path))


@pytest.mark.parametrize("taken", [0, 40, None])
def test_a_full_disk_ends_the_timeline_and_not_the_run(tmp_path, monkeypatch, caplog, taken):
    """`taken`: bytes of an event that it takes; None: it is gone, and takes nothing at all any more."""
    timeline, real = Timeline(tmp_path / "t.json", WHOLE), os.pwrite

    def full(file, data, at):
        if taken is not None and len(data) < 10:  # the end of the array
            return real(file, data, at)
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[:taken], at)

    with robot() as one:
        one.run(40, hooks=timeline)
        size = os.path.getsize(timeline.path)
        monkeypatch.setattr(trace_events.os, "pwrite", full)
        one.run(400, hooks=timeline)
        assert one.env_steps == 440
    assert "gets no more events" in caplog.text
    assert os.path.getsize(timeline.path) == size - 3 * (taken is None)
    assert checked(read_events(timeline.path))


def test_the_command_line_writes_it_in_the_run_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["total_steps=600", "n_agents=2", "eval_episodes=1", "checkpoint_every=200", "tensorboard=false"]
    assert main(["train", "ppo-cartpole", "run_dir=run", "--timeline", "OnPolicyHelper.unroll=20", *words]) == 0
    assert "timeline: run/timeline.json" in capsys.readouterr().out
    assert main(["resume", "run", "total_steps=700", "--timeline"]) == 0
    for name, runs in (("timeline.json", 3), ("timeline_2.json", 1)):
        spans = checked(json.loads((tmp_path / "run" / name).read_text()))["robot", "run"]
        counts = Counter(span["name"] for span in spans)
        assert counts["run"] == runs and counts["evaluation"] == 1 and counts["checkpoint: state"] >= runs


def test_what_it_refuses(tmp_path):
    for options in ({"seconds": 0.0}, {"seconds": float("nan")}, {"max_bytes": 10}):
        with pytest.raises(ValueError, match="Timeline: seconds is"):
            Timeline(tmp_path / "t.json", **options)
    timeline = Timeline(tmp_path / "t.json")
    with robot(hooks=timeline) as one, robot(hooks=timeline) as other:
        first, second = one.iterate(1_000), other.iterate(1_000)
        next(first)
        with pytest.raises(ValueError, match="looks on at a run already"):
            next(second)
        first.close()
    with pytest.raises(FileNotFoundError), robot() as one:
        one.run(40, hooks=Timeline(tmp_path / "nowhere" / "t.json"))


def test_an_agent_that_waits_for_nothing_has_no_span_across_its_steps(tmp_path):
    """An off-policy helper sends updates and goes on: these are spans of the task alone."""
    with Robot.of("DQN", Slow, n_agents=2, hidden=[4], seed=1, warmup=20, learn_every=1, batch_size=8) as one:
        one.run(200, hooks=(timeline := Timeline(tmp_path / "t.json", WHOLE)))
    spans = checked(read_events(timeline.path))
    assert len(spans["tasks", "RL updates"]) > 50
    assert Counter(span["name"] for span in spans["agents", "agent 0"])["step"] == 100
