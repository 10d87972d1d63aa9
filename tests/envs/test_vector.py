"""make_vector_env: one suite for all kinds. Trajectories, autoreset modes, spaces, and what happens when an environment fails."""

import contextlib
import gc
import inspect
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import agent_fakes
import cloudpickle
import gymnasium as gym
import numpy as np
import psutil
import pytest
from agent_fakes import Corridor, Recorder, robot_of, rows
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from transport_fakes import living

from parl_like import OffPolicyHelper, VectorAgent
from parl_like.drivers.workers import processes
from parl_like.envs.vector import create_env, make_vector_env
from parl_like.envs.vector.hosts import FORK_SERVER, Channel, ThreadHost
from parl_like.envs.vector.make import EnvFailed, GroupVectorEnv

KINDS = ["sync", "thread", "process"]
MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]
N = 3


def walk(fault=None, on_seed=None, at=3, spaces="box", length=6):
    """A factory of walks shaken by the environment's generator. The one seeded with `on_seed` does `fault` at step `at` of its
    first episode.

    The class is made here, so that it travels to a worker by value: there, importing this module would import torch, too.
    """

    class Walk(gym.Env):
        def __init__(self):
            box = gym.spaces.Box(-100.0, 100.0, (2,), np.float32)
            self.observation_space = box if spaces == "box" else gym.spaces.Dict({
                "at": box, "deep": gym.spaces.Tuple([gym.spaces.Discrete(1000), gym.spaces.MultiBinary(2)]),
                "many": gym.spaces.MultiDiscrete([1000, 5])})
            self.action_space = gym.spaces.Discrete(2) if spaces == "box" else gym.spaces.Dict({
                "go": gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (2,), np.float32)]),
                "side": gym.spaces.MultiDiscrete([2, 3])})
            self.kept, self.seeded, self.episodes = [], None, 0

        def obs(self):
            at = np.array([self.x, self.t], np.float32)
            return at if spaces == "box" else {"at": at, "deep": (self.t, np.array([self.t % 2, 1], np.int8)),
                                               "many": np.array([self.t, 2])}

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            if seed is not None:
                self.seeded, self.episodes = seed, 0
            self.episodes += 1
            if fault == "reset" and self.seeded == on_seed and self.episodes == 2:
                raise OSError("no floor")
            self.x, self.t = float(self.np_random.normal()), 0
            return self.obs(), {"began": self.episodes} if not options else {"options": options["x"]}

        def step(self, action):
            self.kept.append(action)  # an environment may keep what it is given
            parts = [action] if spaces == "box" else [action["go"][0], action["go"][1].sum(), action["side"].sum()]
            push = sum(map(float, parts))
            self.x += push + float(self.np_random.normal())
            self.t += 1
            bad = self.seeded == on_seed and self.episodes == 1 and self.t == at
            obs, reward, end, cut, info = self.obs(), self.x, self.x > 4, self.t == length, {"t": self.t} if self.t % 2 else {}
            if bad and fault == "raise":
                raise OSError("a hole in the floor")
            if bad and fault == "exit":
                raise SystemExit(3)
            if bad and fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if bad and fault == "hang":
                import threading
                threading.Event().wait(30)
            if bad and fault == "shape":
                obs = np.zeros(3, np.float32)
            if bad and fault == "dtype":
                obs = np.array(["a", "b"])
            if bad and fault == "nan":
                obs[1] = np.nan
            if bad and fault == "nan at the end":
                obs[0], cut = np.nan, True
            if bad and fault == "nan reward":
                reward = np.nan
            if bad and fault == "two rewards":
                reward = np.zeros(2)
            if bad and fault == "flag":
                end = 0
            if bad and fault == "four":
                return obs, reward, end, info
            if bad and fault == "info":
                info = None
            return obs, reward, end, cut, info

        def close(self):
            self.closed = True

    return Walk


def acts(space, steps, seed=5):
    space.seed(seed)
    return [space.sample() for _ in range(steps)]


def equal(a, b, where=""):
    """Nested values that are the same, in structure and dtype, too."""
    if isinstance(a, dict):
        assert isinstance(b, dict) and set(a) == set(b), f"{where}: {sorted(a)} and {sorted(b)}"
        for name in a:
            equal(a[name], b[name], f"{where}.{name}")
    elif isinstance(a, tuple) or (isinstance(a, np.ndarray) and a.dtype == object):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            equal(x, y, f"{where}.{i}")
    elif a is None or b is None:
        assert a is b, where
    else:
        assert np.asarray(a).dtype == np.asarray(b).dtype, f"{where}: {np.asarray(a).dtype} and {np.asarray(b).dtype}"
        np.testing.assert_array_equal(a, b, where)


def play(env, actions, seed=100):
    """Everything that an environment answers; with autoreset disabled, it is reset by a mask."""
    seen = [env.reset(seed=seed)]
    for action in actions:
        out = env.step(action)
        seen.append(out)
        over = out[2] | out[3]
        if env.metadata["autoreset_mode"] is AutoresetMode.DISABLED and over.any():
            seen.append(env.reset(options={"reset_mask": over, "x": 1}))
    return seen


def children():
    servers = FORK_SERVER.pid, processes.FORK_SERVER.pid  # stay for a while
    return [p for p in psutil.Process().children(recursive=True) if p.pid not in servers and p.status() != psutil.STATUS_ZOMBIE]


def open_files():
    """What this process holds open, as far as it can tell: (number, target); but for the fork server's socket, another one after
    each time that it was idle for half a minute and has ended."""
    out = set()
    for fd in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError):
            out.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return {(fd, target) for fd, target in out if FORK_SERVER.pid is None or int(fd) != FORK_SERVER._control.fileno()}


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = open_files()
    yield
    assert not children()
    if open_files() - before:  # what a cycle keeps
        gc.collect()
    assert open_files() - before == set()


# ------------------------------------------------------------------------------------------------------------- trajectories


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spaces", ["box", "nested"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_answers_as_gymnasium_does(kind, spaces, mode):
    theirs = SyncVectorEnv([walk(spaces=spaces)] * 5, autoreset_mode=mode)
    ours = make_vector_env(walk(spaces=spaces), 5, kind, autoreset=mode, workers=None if kind == "sync" else 2)
    assert isinstance(ours, GroupVectorEnv) and ours.num_envs == 5 and ours.metadata["autoreset_mode"] is mode
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space
    actions = acts(theirs.action_space, 40)
    expected, got = play(theirs, actions), play(ours, actions)
    ours.close()
    assert len(expected) == len(got)
    for i, (a, b) in enumerate(zip(expected, got, strict=True)):
        if spaces == "box":  # gymnasium gives the environment's own object as final_obs, whose ints have no dtype
            equal(a, b, f"call {i}")
        else:
            equal(a[:-1], b[:-1], f"call {i}")
            assert set(a[-1]) == set(b[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seeds_play_as_single_environments_do(kind):
    singles = [walk()() for _ in range(N)]
    with_rows = [[env.reset(seed=100 + i)[0]] for i, env in enumerate(singles)]
    env = make_vector_env(walk(), N, kind, seed=100)
    obs, _ = env.reset()
    ends = 0
    for action in acts(env.action_space, 30):
        for i in range(N):
            np.testing.assert_array_equal(obs[i], with_rows[i][-1])
        obs, rew, terminated, truncated, infos = env.step(action)
        for i, single in enumerate(singles):
            row, reward, end, cut, _ = single.step(action[i])
            assert (reward, end, cut) == (rew[i], terminated[i], truncated[i])
            if end or cut:
                ends += 1
                np.testing.assert_array_equal(infos["final_obs"][i], row)
                row = single.reset()[0]
            with_rows[i].append(row)
    assert ends > 5
    env.close()


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_masks_and_options_of_a_reset(kind):
    env = make_vector_env(walk(), N, kind, seed=7)
    first, _ = env.reset()
    again, _ = env.reset(seed=7)
    np.testing.assert_array_equal(first, again)
    third, _ = env.reset()
    assert (third != again).any()  # the seed of construction counts once; then generators go on
    listed, _ = env.reset(seed=[9, 8, 7])
    np.testing.assert_array_equal(listed[2], first[0])
    assert env.np_random_seed == (9, 8, 7)
    options = {"x": 4, "reset_mask": np.array([True, False, True])}
    obs, infos = env.reset(seed=[1, 2, 7], options=options)
    np.testing.assert_array_equal(obs[1], listed[1])
    np.testing.assert_array_equal(obs[2], first[0])
    assert infos["options"].tolist() == [4, 0, 4] and infos["_options"].tolist() == [True, False, True]
    assert "reset_mask" in options  # the caller's dict is the caller's
    for wrong in ({"reset_mask": [True] * N}, {"reset_mask": np.zeros(N, bool)}, {"reset_mask": np.ones(2, bool)}):
        with pytest.raises(ValueError, match="reset_mask.*expected"):
            env.reset(options=wrong)
    with pytest.raises(ValueError, match="2 seeds; expected 3"):
        env.reset(seed=[1, 2])
    env.close()


@pytest.mark.parametrize("kind", KINDS)
def test_observations_are_copies_unless_views_are_wanted(kind):
    for copy in (True, False):
        env = make_vector_env(walk(), N, kind, copy=copy)
        first, _ = env.reset(seed=1)
        before = first.copy()
        second = env.step(np.ones(N, np.int64))[0]
        assert np.array_equal(first, before) is copy
        assert np.shares_memory(first, second) is not copy
        env.close()


@pytest.mark.parametrize("kind", KINDS)
def test_actions_belong_to_the_environment_that_got_them(kind):
    env = make_vector_env(walk(spaces="nested"), N, kind)
    env.reset(seed=1)
    given = acts(env.action_space, 2)
    for action in given:
        env.step(action)
    for i, kept in enumerate(env.get_attr("kept")):
        for step in range(2):
            np.testing.assert_array_equal(kept[step]["go"][1], given[step]["go"][1][i])
            assert kept[step]["go"][0] == given[step]["go"][0][i]
    env.close()


@pytest.mark.parametrize("kind", KINDS)
def test_attributes_calls_and_wrong_use(kind):
    env = make_vector_env(walk(), N, kind)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros(N, np.int64))
    env.reset(seed=1)
    env.set_attr("mark", [1, 2, 3])
    assert env.get_attr("mark") == (1, 2, 3)
    env.set_attr("mark", "all")
    assert env.call("__getattribute__", "mark") == ("all",) * N
    with pytest.raises(ValueError, match="2 values; expected 3"):
        env.set_attr("mark", [1, 2])
    with pytest.raises(EnvFailed, match="environment 0 .*nothing_such"):
        env.call("nothing_such")
    assert env.get_attr("mark") == ("all",) * N  # every answer was taken
    for wrong in (np.zeros(2, np.int64), np.zeros(N), np.zeros((N, 1), np.int64)):
        with pytest.raises(ValueError, match=r"expected \(3,\) int64"):
            env.step(wrong)
    env.step([0, 1, 1])
    env.close()
    env.close()
    with pytest.raises(gym.error.ClosedEnvironmentError):
        env.step(np.zeros(N, np.int64))


def test_a_finished_episode_is_not_stepped_on_with_autoreset_disabled():
    env = make_vector_env(walk(length=1), N, autoreset="Disabled")
    env.reset(seed=1)
    env.step(np.zeros(N, np.int64))
    with pytest.raises(gym.error.ResetNeeded, match="reset_mask"):
        env.step(np.zeros(N, np.int64))
    env.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_a_vector_environment_already_is_passed_through(kind):
    ready = SyncVectorEnv([walk()] * 2)
    assert make_vector_env(ready, kind=kind) is ready and make_vector_env(ready, 2, kind) is ready
    with pytest.raises(ValueError, match="already is 2"):
        make_vector_env(ready, 3, kind)
    ready.close()
    Walk = walk()
    made = make_vector_env(lambda: SyncVectorEnv([Walk] * 2), 2, kind)
    assert type(made) is SyncVectorEnv
    made.close()


def test_options_that_do_not_go_together():
    for options, words in [
        ({"n": 0}, "n is 0; expected at least 1"), ({"n": 2, "kind": "procces"}, "expected one of"),
        ({"n": 2, "workers": 3}, "expected 1 to 2"),
        ({"n": 2, "step_timeout": 1.0}, "kind 'process' or"), ({"n": 2, "kind": "thread", "step_timeout": 0.0}, "more than 0"),
    ]:
        with pytest.raises(ValueError, match=words):
            make_vector_env(walk(), **options)
    with pytest.raises(ValueError, match="makes no environment"):
        make_vector_env(3, 2)

    class Words(walk()):
        def __init__(self):
            super().__init__()
            self.observation_space = gym.spaces.Text(3)

    with pytest.raises(TypeError, match="fixed size"):
        make_vector_env(Words, 2)
    lock = threading.Lock()
    with pytest.raises(ValueError, match="build what it needs inside"):
        make_vector_env(lambda: lock, 2, "process")


@pytest.mark.parametrize("kind", KINDS)
def test_environments_that_differ_are_refused(kind):
    class Odd(walk()):
        def __init__(self):
            super().__init__()
            self.action_space = gym.spaces.Discrete(2 + int.from_bytes(os.urandom(4)))

    with pytest.raises(ValueError, match="expected equal ones"):
        make_vector_env(Odd, 2, kind)


def test_inline_makes_no_process_no_thread_and_no_second_copy():
    made = []

    def one():
        made.append(os.getpid())
        return walk()()

    before = set(threading.enumerate())  # of which some of another test's may end meanwhile
    env = make_vector_env(one, 2, "process", inline=True, step_timeout=1.0)
    env.reset(seed=1)
    assert made == [os.getpid()] * 2 and set(threading.enumerate()) <= before and not children()
    env.close()


def test_all_six_layers_by_id():
    env = create_env("Pendulum-v1", 2, time_limit=4, seed=3, vector_options={"autoreset": AutoresetMode.NEXT_STEP})
    assert env.single_action_space == gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    env.reset()
    for step in range(4):
        assert not env.step(np.zeros((2, 1), np.float32))[3].any() or step == 3
    assert env.step(np.zeros((2, 1), np.float32))[1].tolist() == [0, 0]
    env.close()


@pytest.fixture
def by_value():
    """Environments of agent_fakes travel to workers by value: importing that module there would import torch, too."""
    cloudpickle.register_pickle_by_value(agent_fakes)
    yield
    cloudpickle.unregister_pickle_by_value(agent_fakes)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_vector_agent_stores_the_same_rows_with_every_kind(kind, mode, by_value):
    keep = lambda: OffPolicyHelper(size=1000, batch_size=1, learn_every=10**9)  # noqa: E731
    stored = {}
    for name in ("gymnasium", kind):
        env = (lambda: SyncVectorEnv([Corridor] * 2, autoreset_mode=mode)) if name == "gymnasium" else (
            lambda: make_vector_env(Corridor, 2, kind, autoreset=mode))
        with robot_of(Recorder(rule=lambda obs: obs[:, 0].long() % 2), keep, env=env, agent=VectorAgent) as robot:
            robot.collect(n_episode=4)
            stored[name] = [rows(robot, lane=lane) for lane in range(2)]
    for a, b in zip(*stored.values(), strict=True):
        equal(a, b)


# ------------------------------------------------------------------------------------------------------------------- faults

FAULTS = {
    "raise": ("raised", "a hole in the floor"), "exit": ("raised", "SystemExit: 3"),
    "shape": ("output", r"shape \(3,\); expected \(2,\)"),
    "dtype": ("output", "<U1; expected"), "nan": ("output", r"NaN in the observation at \(1,\)"),
    "nan at the end": ("output", r"NaN in the observation at \(0,\)"), "nan reward": ("output", "reward is nan"),
    "two rewards": ("output", "reward is a ndarray of shape"), "flag": ("output", "terminated is 0, a int"),
    "four": ("output", "not 4 values.*make_env"),
    "info": ("output", "info is a NoneType"), "reset": ("raised", "no floor"),
}
LOSSES = {"kill": ("died", "SIGKILL"), "hang": ("hung", "took more than")}


def test_every_fault_of_the_fake_is_tried():
    named = set(re.findall(r'fault == "([^"]+)"', inspect.getsource(walk)))
    assert named == {*FAULTS, *LOSSES}


def cases():
    yield from (("sync", fault) for fault in FAULTS)
    # What an environment returns is judged by the same code in every kind; a process takes half a second to start.
    yield from (("thread", fault) for fault in ("raise", "exit", "nan", "reset"))
    yield from (("process", fault) for fault in ("raise", "exit", "nan", "reset"))
    yield "process", "kill"
    yield "process", "hang"
    yield "thread", "hang"


def options_for(kind, fault):
    return {"step_timeout": 1.0} if fault == "hang" else {}


@pytest.mark.parametrize("kind, fault", list(cases()))
def test_a_fault_is_reported_with_everything_and_ends_all(kind, fault):
    env = make_vector_env(walk(fault, 101), N, kind, **options_for(kind, fault))
    env.reset(seed=100)
    with pytest.raises(EnvFailed) as caught:
        for _ in range(20):
            env.step(np.zeros(N, np.int64))
    error = caught.value
    name, words = {**FAULTS, **LOSSES}[fault]
    assert (error.index, error.seed, error.fault) == (1, 101, name)
    assert "environment 1 (seed 101)" in str(error)
    assert re.search(words, str(error)), str(error)
    if name in ("raised", "hung"):
        assert ", in step" in error.trace or "in reset" in error.trace or "in wait" in error.trace, error.trace
        assert "test_vector.py" in error.trace or "threading.py" in error.trace
    if name == "raised":
        assert type(error.__cause__) in (OSError, SystemExit)
    assert not children()
    with pytest.raises(gym.error.ClosedEnvironmentError, match="the error before"):
        env.step(np.zeros(N, np.int64))
    env.close()


@pytest.mark.parametrize(
    "kind, fault, mode",
    [
        (kind, fault, mode)
        for kind, fault in cases()
        for mode in MODES
        if mode is AutoresetMode.SAME_STEP
        or (kind == "sync" and fault in ("raise", "nan", "nan at the end", "reset"))
        or fault in LOSSES
    ],
)
def test_with_restart_the_others_never_notice(kind, fault, mode):
    calm = make_vector_env(walk(), N, autoreset=mode)
    wild = make_vector_env(walk(fault, 101), N, kind, autoreset=mode, restart=True, **options_for(kind, fault))
    calm.reset(seed=100)
    last, _ = wild.reset(seed=100)
    restarted = []
    for t, action in enumerate(acts(calm.action_space, 25)):
        a, b = calm.step(action), wild.step(action)
        for x, y in zip(a[:4], b[:4], strict=True):
            np.testing.assert_array_equal(x[[0, 2]], y[[0, 2]])
        if "restarted" in b[4]:
            assert b[4]["restarted"].tolist() == [False, True, False] == b[4]["_restarted"].tolist()
            assert "environment 1 (seed 101)" in b[4]["fault"][1]
            restarted.append(t)
            if fault != "reset":  # a reset that fails drops no episode
                assert t == 2 and b[1][1] == 0.0 and not b[2][1] and b[3][1]
                np.testing.assert_array_equal(b[4]["final_obs"][1] if mode is AutoresetMode.SAME_STEP else b[0][1], last[1])
                if mode is AutoresetMode.SAME_STEP:
                    assert b[0][1][1] == 0  # the next episode's first observation: t is 0
        last = b[0]
        assert np.isfinite(b[0]).all() and np.isfinite(b[1]).all()
        if mode is AutoresetMode.DISABLED:
            mask = a[2] | a[3], b[2] | b[3]
            if mask[0].any():
                calm.reset(options={"reset_mask": mask[0]})
            if mask[1].any():
                last, infos = wild.reset(options={"reset_mask": mask[1]})
                restarted += [t] * ("restarted" in infos)
    assert len(restarted) == 1
    assert wild.np_random_seed[1] != 101 and wild.np_random_seed[::2] == (100, 102)
    calm.close()
    wild.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_restarted_run_can_be_repeated(kind):
    seen = []
    for _ in range(2):
        env = make_vector_env(walk("raise", 101), N, kind, restart=True)
        env.reset(seed=100)
        seen.append([env.step(action)[:4] for action in acts(env.action_space, 20)])
        env.close()
    equal(tuple(seen[0]), tuple(seen[1]))


def test_environments_that_share_a_process_are_lost_together_and_say_so():
    env = make_vector_env(walk("kill", 101), 4, "process", restart=True, workers=2)
    env.reset(seed=100)
    outs = [env.step(np.zeros(4, np.int64)) for _ in range(3)]
    assert outs[2][3].tolist() == [True, True, False, False] == outs[2][4]["restarted"].tolist()
    assert "worker it shared" in outs[2][4]["fault"][0] and "SIGKILL" in outs[2][4]["fault"][1]
    env.step(np.zeros(4, np.int64))
    env.close()


def test_a_worker_that_is_killed_between_steps():
    env = make_vector_env(walk(), 2, "process", restart=True)
    env.reset(seed=1)
    os.kill(env.hosts[1].process.pid, signal.SIGKILL)
    _, _, _, truncated, infos = env.step(np.zeros(2, np.int64))
    assert truncated.tolist() == [False, True] and "SIGKILL" in infos["fault"][1]
    os.kill(env.hosts[0].process.pid, signal.SIGKILL)
    assert env.reset(seed=1)[1]["restarted"].tolist() == [True, False]
    env.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_factory_that_raises(kind):
    def broken():
        raise OSError("no simulator")

    with pytest.raises(EnvFailed, match="environment 0 .*factory: OSError: no simulator") as caught:
        make_vector_env(broken, 2, kind)
    assert "in broken" in caught.value.trace


@pytest.mark.parametrize("kind", KINDS)
def test_an_environment_that_always_fails_is_given_up(kind, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    here = os.getpid()

    class Hopeless(walk()):
        def __init__(self):
            super().__init__()
            if os.getpid() != here:  # in a worker, which is to pause as little as this process
                import time
                time.sleep = lambda seconds: None

        def step(self, action):
            raise OSError("again")

    env = make_vector_env(Hopeless, 1, kind, restart=True)
    env.reset(seed=1)
    steps = 0
    with pytest.raises(EnvFailed, match="rebuilt 10 times.*again"):
        while True:
            env.step(np.zeros(1, np.int64))
            steps += 1
    assert steps == 10


def test_an_exception_that_cannot_be_pickled_still_arrives():
    class Odd(walk()):
        def step(self, action):
            class Local(Exception):
                def __reduce__(self):
                    raise TypeError("not me")
            raise Local("the message")

    env = make_vector_env(Odd, 1, "process")
    env.reset(seed=1)
    with pytest.raises(EnvFailed, match="Local: the message"):
        env.step(np.zeros(1, np.int64))


def test_an_info_that_cannot_be_pickled_arrives_as_text():
    class Odd(walk()):
        def step(self, action):
            import threading
            *out, _ = super().step(action)
            return *out, {"lock": threading.Lock(), "fine": 3}

    env = make_vector_env(Odd, 1, "process")
    env.reset(seed=1)
    infos = env.step(np.zeros(1, np.int64))[4]
    assert "lock" in infos["lock"][0] and infos["fine"][0] == 3
    env.close()


@pytest.mark.parametrize("kind", KINDS)
def test_environments_are_closed_even_after_one_that_raises(kind, tmp_path):
    class Closing(walk()):
        def close(self):
            name = len(os.listdir(tmp_path))
            (tmp_path / str(name)).touch()
            if name == 0:
                raise OSError("stuck")

    env = make_vector_env(Closing, 2, kind, workers=1)
    with pytest.warns(UserWarning, match="OSError: stuck"):
        env.close()
    env.close()
    assert len(os.listdir(tmp_path)) == 2


# --------------------------------------------------------------------------------------------------- faults at awkward moments


class Plain(gym.Env):
    """Nothing happens. Tells in its infos how it was reset."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeded = seed
        return np.zeros(2, np.float32), {"seed": -1 if seed is None else seed}

    def step(self, action):
        return np.ones(2, np.float32), 1.0, False, False, {}


@pytest.fixture(autouse=True)
def plain_by_value():
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_spaces_without_any_leaf():
    class Empty(Plain):
        observation_space, action_space = gym.spaces.Dict({}), gym.spaces.Tuple(())

        def reset(self, *, seed=None, options=None):
            return {}, {}

        def step(self, action):
            return {}, 1.0, False, False, {"action": action}

    env = make_vector_env(Empty, 2)
    assert env.reset()[0] == {}
    obs, rew, _, _, infos = env.step(())
    assert obs == {} and rew.tolist() == [1, 1] and infos["action"].tolist() == [(), ()]
    env.close()


@pytest.mark.parametrize("space",
                         [gym.spaces.Box(0, 1, (0,)), gym.spaces.MultiDiscrete([]),
                          gym.spaces.Dict({"a": gym.spaces.Box(0, 1, (2, 0))})], ids=str)
@pytest.mark.parametrize("which", ["observation_space", "action_space"])
def test_a_space_of_size_0_is_refused_by_name(which, space):
    class Nothing(Plain):
        def __init__(self):
            setattr(self, which, space)

    with pytest.raises(ValueError, match="make_vector_env: the space .*holds no number"):
        make_vector_env(Nothing, 2)


@pytest.mark.parametrize("kind", ["sync", "thread"])
def test_environments_made_before_a_factory_raises_are_closed(kind):
    log = []

    class Second(Plain):
        def __init__(self):
            if log:
                raise OSError("no second")
            log.append("made")

        def close(self):
            log.append("closed")

    with pytest.raises(EnvFailed, match="environment 1 .*no second"):
        make_vector_env(Second, 2, kind, workers=1)
    assert log == ["made", "closed"]


def test_an_environment_that_is_made_too_late_is_closed_by_its_thread(monkeypatch):
    go, closed, made, kill = threading.Event(), threading.Event(), [], ThreadHost.kill

    def kill_and_go(host):
        kill(host)
        if host.options.number == 1:
            go.set()

    class Late(Plain):
        def __init__(self):
            made.append(self)
            if threading.current_thread().name == "environments 0 to 0":  # answers are read in their order
                raise OSError("no first")
            go.wait(30)

        def close(self):
            closed.set()

    monkeypatch.setattr(ThreadHost, "kill", kill_and_go)
    with pytest.raises(EnvFailed, match="no first"):
        make_vector_env(Late, 2, "thread")
    assert go.is_set()
    assert len(made) == 1 or closed.wait(60)


def test_threads_have_closed_their_environments_when_the_error_arrives():
    closed = []

    class Closing(Plain):
        def step(self, action):
            if self.seeded == 1:
                raise OSError("a hole")
            return super().step(action)

        def close(self):
            threading.Event().wait(0.1)
            closed.append(self.seeded)

    env = make_vector_env(Closing, 3, "thread")
    env.reset(seed=0)
    with pytest.raises(EnvFailed, match="a hole"):
        env.step([0, 0, 0])
    assert sorted(closed) == [0, 1, 2]


def test_a_thread_that_raises_after_it_was_given_up_changes_nothing():
    """What hangs often ends in an exception, of a connection that timed out: it must not be taken for the new environment's."""
    go = threading.Event()

    class Timeout(Plain):
        def step(self, action):
            if self.seeded == 1:
                go.wait(60)
                raise OSError("timed out")
            return super().step(action)

    env = make_vector_env(Timeout, 2, "thread", restart=True, step_timeout=1.0)
    env.reset(seed=0)
    old = env.hosts[1].thread
    assert env.step([0, 0])[3].tolist() == [False, True]
    env.step([0, 0])
    go.set()
    old.join(60)
    assert not old.is_alive()
    assert env._columns.rew.tolist() == [1, 1] and env._columns.truncated.tolist() == [False, False]
    env.close()


def test_a_worker_that_dies_in_the_reset_of_a_next_step_drops_no_episode():
    class Short(Plain):
        resets = 0

        def reset(self, *, seed=None, options=None):
            self.resets += 1
            if self.resets == 2 and self.seeded == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().reset(seed=seed)

        def step(self, action):
            return np.ones(2, np.float32), 1.0, self.seeded == 1, False, {}

    env = make_vector_env(Short, 2, "process", restart=True, autoreset="NextStep", workers=2)
    env.reset(seed=0)
    assert env.step([0, 0])[2].tolist() == [False, True]
    obs, rew, terminated, truncated, infos = env.step([0, 0])
    assert obs.tolist() == [[1, 1], [0, 0]] and rew.tolist() == [1, 0]
    assert not terminated.any() and not truncated.any() and infos["restarted"].tolist() == [False, True]
    assert env.step([0, 0])[1].tolist() == [1, 1]  # it goes on where the reset left it
    env.close()


def test_seeds_are_judged_before_anything_is_done_with_them():
    env = make_vector_env(Plain, 2, seed=7, restart=True)
    for wrong, words in (([1, 2, 3], "3 seeds; expected 2"), (-3, "-3; expected"), ([0, -1], "-1; expected"), (1.5, "1.5"),
                         ([0.5, 1], "0.5; expected")):
        with pytest.raises(ValueError, match=words):
            env.reset(seed=wrong)
    assert env.reset()[1]["seed"].tolist() == [7, 8]  # the seed of construction is still there
    assert env.reset(seed=np.arange(2))[1]["seed"].tolist() == [0, 1]
    assert env.reset(seed=np.uint8(255))[1]["seed"].tolist() == [255, 256]
    assert env.reset(seed=np.arange(2))[1]["seed"].tolist() == [0, 1]
    assert env.np_random_seed == (0, 1) and type(env.np_random_seed[1]) is int
    env.close()


def test_the_seed_of_construction_waits_for_each_environments_first_reset():
    env = make_vector_env(Plain, 2, seed=7)
    assert env.reset(options={"reset_mask": np.array([True, False])})[1]["seed"].tolist() == [7, 0]
    assert env.reset(options={"reset_mask": np.array([True, True])})[1]["seed"].tolist() == [-1, 8]
    env.close()


@pytest.mark.parametrize("kind", KINDS)
def test_spaces_and_attributes_that_raise_are_reported_like_steps(kind):
    class NoSpace(Plain):
        @property
        def observation_space(self):
            raise OSError("no space")

    with pytest.raises(EnvFailed, match="environment 0 .*observation_space: OSError: no space") as caught:
        make_vector_env(NoSpace, 2, kind)
    assert "in observation_space" in caught.value.trace

    class ReadOnly(Plain):
        @property
        def fixed(self):
            return 1

        @fixed.setter
        def fixed(self, value):
            raise OSError(f"not {value}")

    env = make_vector_env(ReadOnly, 2, kind)
    env.reset(seed=4)
    with pytest.raises(EnvFailed, match=r"environment 0 \(seed 4\) raised in set_attr\('fixed'\): OSError: not 3"):
        env.set_attr("fixed", 3)
    env.close()


def test_the_time_limit_is_the_environments_not_that_of_its_answer():
    class Heavy:
        def __reduce__(self):
            import time
            time.sleep(1.5)
            return Heavy, ()

    class Slow(Plain):
        def step(self, action):
            return *super().step(action)[:4], {"heavy": Heavy()}

    env = make_vector_env(Slow, 1, "process", step_timeout=1.0)
    env.reset(seed=1)
    assert type(env.step([0])[4]["heavy"][0]).__name__ == "Heavy"
    env.close()


def test_an_info_that_cannot_be_read_here_is_a_fault():
    def unreadable():
        raise OSError("cannot be read")

    class Odd:
        def __reduce__(self):
            return unreadable, ()

    class Env(Plain):
        def step(self, action):
            return *super().step(action)[:4], {"odd": Odd()}

    env = make_vector_env(Env, 1, "process")
    env.reset(seed=1)
    with pytest.raises(EnvFailed, match="cannot be read .*plain values") as caught:
        env.step([0])
    assert caught.value.fault == "output" and "in unreadable" in caught.value.trace


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_task_is_an_exception_like_others(kind):
    class Cancelled(Plain):
        def step(self, action):
            import asyncio
            raise asyncio.CancelledError("stop")

    env = make_vector_env(Cancelled, 1, kind, restart=True)
    env.reset(seed=1)
    assert "CancelledError: stop" in env.step([0])[4]["fault"][0]
    env.close()


def test_an_environments_own_info_may_be_called_fault():
    class Own(Plain):
        def step(self, action):
            if self.seeded == 1:
                raise OSError("a hole")
            return *super().step(action)[:4], {"fault": 0}

    env = make_vector_env(Own, 2, restart=True)
    env.reset(seed=0)
    infos = env.step([0, 0])[4]
    assert infos["fault"][0] == 0 and "a hole" in infos["fault"][1] and infos["restarted"].tolist() == [False, True]
    env.close()


def test_two_faults_in_one_step_are_both_told():
    class Twice(Plain):
        made = []

        def __init__(self):
            self.made.append(self)

        def reset(self, *, seed=None, options=None):
            if len(self.made) == 2:
                raise OSError("the second")
            return super().reset(seed=seed)

        def step(self, action):
            raise OSError("the first")

    env = make_vector_env(Twice, 1, restart=True)
    env.reset(seed=1)
    obs, rew, terminated, truncated, infos = env.step([0])
    assert re.search(r"\(seed 1\) raised in step.*the first.*raised in reset.*the second", infos["fault"][0], re.DOTALL)
    assert (rew[0], terminated[0], truncated[0]) == (0, False, True) and len(Twice.made) == 3
    env.close()


@pytest.mark.parametrize("mode", MODES)
def test_what_a_step_with_nan_told_is_forgotten(mode):
    class Nan(Plain):
        def step(self, action):
            bad = self.seeded == 1
            return np.full(2, np.nan if bad else 1, np.float32), 5.0, False, False, {"told": 3}

    env = make_vector_env(Nan, 2, restart=True, autoreset=mode)
    env.reset(seed=0)
    obs, rew, terminated, truncated, infos = env.step([0, 0])
    assert infos["_told"].tolist() == [True, False] and rew.tolist() == [5, 0]
    assert truncated.tolist() == [False, True] and not terminated.any() and np.isfinite(obs).all()
    assert "NaN in the observation at (0,)" in infos["fault"][1] and "in step 0 of its episode" in infos["fault"][1]
    if mode is AutoresetMode.SAME_STEP:
        assert infos["_seed"].tolist() == [False, True]  # of the new episode
        np.testing.assert_array_equal(infos["final_obs"][1], [0, 0])
    env.close()


def test_nan_in_the_reset_of_a_same_step():
    class Nan(Plain):
        def reset(self, *, seed=None, options=None):
            again = hasattr(self, "seeded") and self.seeded == 1
            obs, info = super().reset(seed=seed)
            return (obs * np.nan if again else obs), info

        def step(self, action):
            return np.full(2, 4, np.float32), 5.0, True, False, {"told": 3}

    env = make_vector_env(Nan, 2, restart=True)
    env.reset(seed=0)
    obs, rew, terminated, truncated, infos = env.step([0, 0])
    assert rew.tolist() == [5, 5] and terminated.all() and not truncated.any() and obs.tolist() == [[0, 0], [0, 0]]
    assert infos["restarted"].tolist() == [False, True] and infos["final_info"]["told"].tolist() == [3, 3]
    assert [row.tolist() for row in infos["final_obs"]] == [[4, 4], [4, 4]]
    env.close()


# ------------------------------------------------------------------------------------------------------------------- rebuilds


def test_rebuilds_of_one_environment_wait_longer_and_longer(monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)

    class Hopeless(Plain):
        def step(self, action):
            raise OSError("again")

    env = make_vector_env(Hopeless, 2, restart=True)
    env.reset(seed=1)
    for _ in range(10):
        env.step([0, 0])
    one = [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0]
    assert waits[::2] == pytest.approx(one) and waits[1::2] == pytest.approx(one)
    env.close()


def test_workers_that_are_killed_again_and_again_are_rebuilt_with_pauses_too(monkeypatch):
    waits, sleep = [], time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: waits.append(seconds) if seconds >= 0.05 else sleep(seconds))
    env = make_vector_env(Plain, 1, "process", restart=True)
    env.reset(seed=1)
    for _ in range(3):
        os.kill(env.hosts[0].process.pid, signal.SIGKILL)
        assert env.step([0])[3].all()
    assert waits == pytest.approx([0.05, 0.1])
    env.close()


def test_a_slow_factory_is_no_hang_when_an_environment_is_rebuilt():
    class Slow(Plain):
        def __init__(self):
            import time
            time.sleep(1.2)

        def step(self, action):
            if self.seeded == 1:
                raise OSError("a hole")
            return super().step(action)

    for kind in ("thread", "process"):
        env = make_vector_env(Slow, 1, kind, restart=True, step_timeout=1.0)
        env.reset(seed=1)
        fault = env.step([0])[4]["fault"][0]
        assert "a hole" in fault and "hung" not in fault
        env.step([0])
        env.close()


def test_a_factory_that_raises_once_while_a_lost_worker_is_rebuilt(tmp_path):
    class Port(Plain):
        def __init__(self):
            k = len(os.listdir(tmp_path))
            (tmp_path / str(k)).touch()
            if k == 1:
                raise OSError("the port is still in use")

    env = make_vector_env(Port, 1, "process", restart=True)
    env.reset(seed=1)
    os.kill(env.hosts[0].process.pid, signal.SIGKILL)
    _, _, _, truncated, infos = env.step([0])
    assert truncated.all() and re.search("SIGKILL.*port is still", infos["fault"][0], re.DOTALL)
    assert not env.step([0])[3].any()
    env.close()


def test_a_worker_found_dead_by_a_call_is_rebuilt_by_the_next_step():
    env = make_vector_env(Plain, 2, "process", restart=True, workers=2)
    env.reset(seed=1)
    os.kill(env.hosts[0].process.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(EnvFailed, match=r"environment 0 \(seed 1\).*SIGKILL"):
            env.get_attr("seeded")
    _, rew, _, truncated, infos = env.step([0, 0])
    assert rew.tolist() == [0, 1] and truncated.tolist() == [True, False] and "SIGKILL" in infos["fault"][0]
    assert env.get_attr("seeded")[1] == 2
    env.close()
    env = make_vector_env(Plain, 2, "process", workers=2)
    env.reset(seed=1)
    os.kill(env.hosts[0].process.pid, signal.SIGKILL)
    with pytest.raises(EnvFailed, match="SIGKILL"):
        env.get_attr("seeded")
    assert env.closed and not children()


# -------------------------------------------------------------------------------------------------------------------- making


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_factory_that_hangs(kind, tmp_path):
    go = tmp_path / "go"

    class Hang(Plain):
        def __init__(self):
            import time
            while not go.exists():
                time.sleep(0.01)

    make_vector_env(Plain, 1, kind).close()  # what starts the processes is there from now on
    with pytest.raises(EnvFailed, match="environment 0 .*hung.*more than 2.5 s.*start_timeout") as caught:
        make_vector_env(Hang, 2, kind, start_timeout=2.5, workers=2)
    go.touch()
    assert caught.value.fault == "hung" and "in __init__" in caught.value.trace
    assert not children()


def test_a_factory_that_hangs_while_an_environment_is_rebuilt(tmp_path):
    class Hang(Plain):
        def __init__(self):
            import time
            k = len(os.listdir(tmp_path))
            (tmp_path / str(k)).touch()
            while k == 1:
                time.sleep(0.01)

        def step(self, action):
            if self.seeded == 1:
                raise OSError("a hole")
            return super().step(action)

    make_vector_env(Plain, 1, "process").close()  # what starts the processes is there from now on
    env = make_vector_env(Hang, 1, "process", restart=True, start_timeout=2.5)  # a step may take any time
    env.reset(seed=1)
    _, _, _, truncated, infos = env.step([0])
    assert truncated.all() and "start_timeout" in infos["fault"][0]
    assert not env.step([0])[3].any()
    env.close()


def test_time_limits_that_make_no_sense_or_never_end():
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="start_timeout is .*expected more than 0"):
            make_vector_env(Plain, 1, "thread", start_timeout=wrong)
    env = make_vector_env(Plain, 1, "thread", step_timeout=float("inf"), start_timeout=None)
    env.reset()
    env.step([0])
    env.close()


@pytest.mark.parametrize("factory", ["class", "function"])
def test_a_batch_of_the_wrong_size_is_closed_where_it_was_made_here(factory):
    closed = []

    class Ready(SyncVectorEnv):
        def __init__(self):
            super().__init__([Plain] * 2)

        def close_extras(self, **kwargs):
            closed.append(self)

    with pytest.raises(ValueError, match="already is 2"):
        make_vector_env(Ready if factory == "class" else lambda: Ready(), 3)
    assert len(closed) == (1 if factory == "class" else 2)


def test_as_many_workers_as_cores_also_where_affinity_is_unknown(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    env = make_vector_env(Plain, 2, "process")
    assert len(env.hosts) == 1
    env.close()


# --------------------------------------------------------------------------------------------------------------------- closing


def test_all_workers_close_at_once(tmp_path):
    """Environment 0 closes only after environment 1 has: told one after another, it would be ended first."""
    class Ordered(Plain):
        def close(self):
            import time
            while self.seeded == 0 and not (tmp_path / "1").exists():
                time.sleep(0.01)
            (tmp_path / str(self.seeded)).touch()

    env = make_vector_env(Ordered, 2, "process", workers=2)
    env.reset(seed=0)
    env.close()
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]


def test_warnings_that_are_errors_keep_no_worker_alive():
    class Stuck(Plain):
        def close(self):
            raise OSError("stuck")

    env = make_vector_env(Stuck, 2, "process", workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="stuck"):
            env.close()
    assert env.closed and not children()


def test_a_worker_whose_caller_hangs_up_ends_without_a_word(capfd):
    env = make_vector_env(Plain, 1, "process")
    env.hosts[0].channel.sock.shutdown(socket.SHUT_RDWR)
    assert env.hosts[0].process.wait(60) and env.hosts[0].process.code == 0
    assert capfd.readouterr().err == ""
    env.close()


def test_an_interruption_before_a_thread_is_started(monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyboardInterrupt):
            make_vector_env(Plain, 2, "thread")


def test_an_environments_own_child_can_be_interrupted():
    """Ctrl-C is the caller's, and ends no worker; but what an environment starts must not inherit that it is deaf to it."""
    class Simulator(Plain):
        def __init__(self):
            self.child = subprocess.Popen(["sleep", "60"])

        def stop(self):
            os.kill(os.getpid(), signal.SIGINT)  # the worker itself goes on
            self.child.send_signal(signal.SIGINT)
            return self.child.wait(60)

    env = make_vector_env(Simulator, 1, "process")
    assert env.call("stop") == (-signal.SIGINT,)
    env.close()


def test_a_long_message_is_sent_whole():
    ours, theirs = (Channel(sock) for sock in socket.socketpair())
    got = []

    def read():
        threading.Event().wait(0.2)
        got.append(theirs.receive())

    thread = threading.Thread(target=read)
    thread.start()
    try:
        ours.send(bytes(5_000_000))
    finally:
        ours.sock.close()
        thread.join(60)
        theirs.sock.close()
    assert got == [bytes(5_000_000)]


# ------------------------------------------------------------------------------------------------------------------ orphans

PROGRAM = """
import gymnasium as gym, numpy as np, os, sys, time, subprocess
from parl_like.envs.vector import make_vector_env

class Slow(gym.Env):  # of __main__, in a script without a guard: nothing is imported anew
    observation_space, action_space = gym.spaces.Box(0, 1, (1,)), gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        return np.zeros(1, np.float32), {"pid": os.getpid(), "helper": self.helper.pid}
    def step(self, action):
        if WHAT == "error":
            raise OSError("a hole")
        if WHAT == "SIGKILL in C":
            import ctypes
            ctypes.PyDLL(None).sleep(60)  # holds the GIL: no thread of the worker runs
        time.sleep(60)
env = make_vector_env(Slow, 2, "process", workers=2)
_, infos = env.reset(seed=1)
print(*infos["pid"], *infos["helper"], flush=True)
env.step(np.zeros(2, np.int64)) if WHAT != "exit" else None
"""


@pytest.mark.parametrize("what", ["error", "SIGINT", "SIGTERM", "SIGKILL", "SIGKILL in C", "exit"])
def test_no_process_is_left(what, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"WHAT = {what!r}\n" + textwrap.dedent(PROGRAM))
    path = os.pathsep.join(p for p in sys.path if p)
    program = subprocess.Popen([sys.executable, "-W", "always", str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True,
                               env={**os.environ, "PYTHONPATH": path})
    pids = [int(word) for word in program.stdout.readline().split()]
    assert len(pids) == 4, program.stderr.read()
    watched = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):  # the program may be at its end already
            watched.append(psutil.Process(pid))
    if what.startswith("SIG"):
        if what == "SIGKILL in C":
            time.sleep(0.5)  # else it may be killed before the workers are in C, which shows nothing
        program.send_signal(getattr(signal, what.split()[0]))
    # Not communicate(): a process that is left would hold the pipes open.
    program.wait(120)
    end = time.monotonic() + 60
    while (alive := living(watched)) and time.monotonic() < end:
        time.sleep(0.02)
    for process in alive:
        process.kill()
    errors = program.stderr.read()
    program.stdout.close()
    program.stderr.close()
    assert not alive
    assert "leaked" not in errors and "ResourceWarning" not in errors, errors
    if what == "error":
        assert "environment 0 (seed 1) raised in step" in errors and "a hole" in errors
    elif what == "SIGINT":
        assert errors.count("KeyboardInterrupt") == 1, errors


def test_a_forked_copy_leaves_the_workers_alone():
    env = make_vector_env(walk(), 2, "process")
    env.reset(seed=1)
    child = os.fork()
    if child == 0:
        env.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    env.step(np.zeros(2, np.int64))
    env.close()


def test_a_forgotten_environment_ends_its_workers():
    env = make_vector_env(walk(), 2, "process", workers=2)
    assert len(children()) == 2
    del env
    gc.collect()
    assert not children()
