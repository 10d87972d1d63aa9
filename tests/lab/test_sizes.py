"""Numbers in a configuration that no machine has room for: refused before memory is taken, by name."""

import resource
import shutil
import tracemalloc
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch
from lab_fakes import MODULE, Config

from parl_like.lab import runner, sizes
from parl_like.lab.cli import main
from parl_like.lab.config import resolve
from parl_like.lab.sizes import bounded, check, in_words
from parl_like.lab.yaml_text import ConfigError, dump_yaml, load_yaml

HUGE = 10_000_000_000
MOST = 2**31


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "run"
    assert main(["train", "dqn-cartpole", f"run_dir={path}", "total_steps=40", "eval_episodes=1", "n_agents=1",
                 "tensorboard=false"]) == 0  # fmt: skip
    return path


def changed(run, path, key, value):
    shutil.copytree(run, path)
    file = path / "config.yaml"
    tree = inside = load_yaml(file.read_text())
    *above, last = [int(name) if name.isdigit() else name for name in key.split(".")]
    for name in above:
        inside = inside[name]
    assert last in inside or isinstance(inside, list)
    inside[last] = value
    file.write_text(dump_yaml(tree))


SIZES = {("n_agents", HUGE): "key 'n_agents' is 10000000000; expected at most",
         ("torch_threads", HUGE): "key 'torch_threads' is 10000000000; expected",
         ("env.vector", HUGE): "env.vector=10000000000 are 10000000000 environments; expected at most",
         ("robot.tasks.RL.OffPolicyHelper.size", HUGE): "robot.tasks.RL.OffPolicyHelper.size=10000000000",
         # Larger than constructors take, and the largest that they do:
         ("robot.tasks.RL.ReplayBuffer.stack_num", HUGE):
             "stack_num is 10000000000; expected at least 1 and below 2147483648; lower it",
         ("robot.tasks.RL.ReplayBuffer.stack_num", MOST - 1): "smaller than a stack of 2147483647 frames",
         ("robot.tasks.RL.DQN.n_step", HUGE): "n_step is 10000000000; expected at least 1 and below 2147483648; lower it",
         ("robot.tasks.RL.DQN.n_step", MOST - 1): "n_step 2147483647; expected",
         ("robot.tasks.RL.MLPQ.hidden.0", HUGE): "expected numbers, each at least 1 and below 16777216; lower them",
         ("robot.tasks.RL.MLPQ.hidden.0", 2**24 - 1): "hidden[0]=16777215",
         ("robot.tasks.RL.MLPQ.heads", HUGE): "MLPQ: heads is 10000000000; expected at least 1 and below 2147483648; lower it",
         ("robot.tasks.RL.MLPQ.heads", MOST - 1): "MLPQ.heads=2147483647"}


@pytest.mark.parametrize("verb", ["eval", "play", "resume", "load_run"])
@pytest.mark.parametrize(("key", "value"), SIZES, ids=str)
def test_a_run_directory_takes_no_more_than_there_is(key, value, verb, run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changed(run, tmp_path / "run", key, value)
    limits, threads = resource.getrlimit(resource.RLIMIT_DATA), torch.get_num_threads()
    before = psutil.Process().memory_info().rss
    capsys.readouterr()
    if verb == "load_run":
        with pytest.raises(ConfigError) as error:
            runner.load_run("run")
        said = str(error.value)
    else:
        assert main([verb, "run"] + ["total_steps=80"] * (verb == "resume")) == 2
        said = capsys.readouterr().err
    assert SIZES[key, value] in said
    assert psutil.Process().memory_info().rss - before < 500e6
    assert resource.getrlimit(resource.RLIMIT_DATA) == limits and torch.get_num_threads() == threads


def test_a_run_directory_asks_for_few_episodes(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "MOST_EPISODES", 2)
    changed(run, tmp_path / "run", "eval_episodes", 3)
    capsys.readouterr()
    assert main(["eval", "run"]) == 2
    assert ("run/config.yaml: eval_episodes=3: expected at most 2 episodes of a run that was not trained here; give --episodes"
            in capsys.readouterr().err)
    assert main(["eval", "run", "--episodes", "3"]) == 0


@pytest.mark.parametrize("word", ["n_agents=10_000_000_000", "torch_threads=10_000_000_000", "env.vector=10_000_000_000",
                                  "MLPQ.hidden=[10_000_000_000]", "size=10_000_000_000",
                                  "driver=processes workers.count=10_000_000_000 n_agents=16384"])
def test_the_user_s_own_configuration_is_told_the_same(word, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sizes, "WORKER_BYTES", 1 << 32)
    assert main(["train", "dqn-cartpole", *word.split(), "run_dir=new"]) == 2
    error = capsys.readouterr().err
    assert "lower" in error or "give" in error
    assert not Path("new").exists()


def test_a_run_of_a_larger_machine_is_looked_at_with_fewer_threads(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changed(run, tmp_path / "run", "torch_threads", 5000)
    assert main(["eval", "run"]) == 2 and "give torch_threads=1" in capsys.readouterr().err
    assert main(["eval", "run", "torch_threads=1"]) == 0


def test_usual_sizes_are_no_matter():
    check(Config(n_agents=256, torch_threads=64))
    check(Config(n_agents=8192))
    with bounded(Config()):
        assert np.zeros(1 << 20).sum() == 0


def test_a_smaller_machine_has_smaller_limits(monkeypatch):
    config = resolve(MODULE.Config, {"n_agents": 1000})
    check(config)
    monkeypatch.setattr(sizes, "machine_memory", lambda: 8 << 20)
    with pytest.raises(ConfigError, match=r"n_agents=1000 are 1000 environments; expected at most 512, .* 16 KiB of the 8 MiB"):
        check(config)
    monkeypatch.setattr(sizes, "AGENTS_PER_CORE", 100)
    monkeypatch.setattr(sizes, "machine_cores", lambda: 2)
    with pytest.raises(ConfigError, match=r"'n_agents' is 1000; expected at most 200 on this machine of 2 cores; lower it"):
        check(config)


@pytest.mark.parametrize("name", ["env.vector=100_000 n_agents=1", "env.vector=1000 n_agents=100"])
def test_environments_that_would_take_long_to_make_are_too_many(name, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sizes, "machine_cores", lambda: 2)
    assert main(["train", "dqn-cartpole", *name.split(), "run_dir=new"]) == 2
    assert "are 100000 environments; expected at most 16384 on this machine of 2 cores; lower them" in capsys.readouterr().err
    assert not Path("new").exists()


@pytest.mark.parametrize(("key", "value"), [("env", {"id": "DeepSea-v0", "options": {"size": 20_000}}),
                                            ("env", {"id": "Recall-v0", "options": {"cues": 10**9}}),
                                            ("env", {"id": "BitFlip-v0", "options": {"n": 10**9}})], ids=str)
def test_an_environment_of_a_run_directory_is_refused_before_it_takes_memory(key, value, run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changed(run, tmp_path / "run", key, value)
    capsys.readouterr()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert main(["eval", "run"]) == 2
    assert "expected at most 64 MiB; lower it" in capsys.readouterr().err
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB


@pytest.mark.parametrize(("wrapper", "argument", "value"), [
    ("FrameStackObservation", "stack_size", 20_000_000), ("FrameStackObservation", "stack_size", HUGE),
    ("DelayObservation", "delay", HUGE), ("DiscretizeObservation", "bins", HUGE),
    ("ResizeObservation", "shape", [30_000, 30_000]),
    ("NoisyObservation", "n", HUGE)])
def test_a_wrapper_of_a_run_directory_is_refused_before_it_takes_memory(wrapper, argument, value, run, tmp_path, capsys,
                                                                        monkeypatch):
    monkeypatch.chdir(tmp_path)
    changed(run, tmp_path / "run", "env", {"id": "CartPole-v1", "wrappers": [wrapper]})
    tree = load_yaml((tmp_path / "run" / "config.yaml").read_text())
    tree["robot"]["env"] = {wrapper: {argument: value}}
    (tmp_path / "run" / "config.yaml").write_text(dump_yaml(tree))
    capsys.readouterr()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert main(["eval", "run"]) == 2
    error = capsys.readouterr().err
    assert f"{wrapper}: {argument} is " in error and "expected at most 64 MiB; lower it" in error
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB


class Hoard(gym.Env):
    """An environment of others, which takes memory without end while it is built."""

    observation_space, action_space = gym.spaces.Box(-9, 9, (4,), np.float32), gym.spaces.Discrete(2)
    held = []

    def __init__(self):
        while len(self.held) < 4000:
            self.held.append(bytearray(1 << 20))


class Broad(gym.Env):
    """An environment of others, whose observation is small, and whose replay buffer is not."""

    observation_space, action_space = gym.spaces.Box(-9, 9, (4096,), np.float32), gym.spaces.Discrete(2)


@pytest.mark.parametrize(("kind", "size"), [(Hoard, 20_000), (Broad, 2**30)])
def test_an_environment_of_others_gets_no_more_than_is_free(kind, size, run, tmp_path, capsys, monkeypatch):
    """What its own code takes is bounded by the system alone, together with the buffer that its space makes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sizes, "machine_memory", lambda: 400 << 20)
    monkeypatch.setitem(gym.registry, "Others-v0", gym.envs.registration.EnvSpec("Others-v0", entry_point=kind))
    changed(run, tmp_path / "run", "env", {"id": "Others-v0"})
    changed_again = load_yaml((tmp_path / "run" / "config.yaml").read_text())
    changed_again["robot"]["tasks"]["RL"]["OffPolicyHelper"]["size"] = size
    (tmp_path / "run" / "config.yaml").write_text(dump_yaml(changed_again))
    capsys.readouterr()
    try:
        assert main(["eval", "run"]) == 2
        assert "this robot takes more than the 400 MiB of memory that are free here" in capsys.readouterr().err
        assert len(Hoard.held) < 800
    finally:
        Hoard.held.clear()


def test_what_grows_slowly_ends_too(monkeypatch):
    """Many small pieces: none of them is large."""
    monkeypatch.setattr(sizes, "machine_memory", lambda: 200 << 20)
    held = []
    with pytest.raises(ConfigError, match="more than twice the 200 MiB of memory of this machine; its largest numbers are"):
        with bounded(resolve(MODULE.Config, {"options": {"n": 5000}})):
            while len(held) < 2000:
                held.append(bytearray(1 << 20))
    assert len(held) < 800
    del held
    assert np.zeros(300 << 17).nbytes, "afterwards there is no limit"


def test_tensors_are_no_exception(monkeypatch):
    monkeypatch.setattr(sizes, "machine_memory", lambda: 200 << 20)
    tracemalloc.start()
    with pytest.raises(ConfigError, match="this robot takes more than 50 MiB in tensors, a quarter"), bounded(Config()):
        torch.nn.Linear(20_000, 20_000)
    tracemalloc.stop()


def test_other_errors_are_as_they_were():
    with pytest.raises(RuntimeError, match="^mine$"), bounded(Config()):
        raise RuntimeError("mine")


@pytest.mark.parametrize(("size", "text"), [(1, "1 bytes"), (1024, "1 KiB"), (24 << 30, "24 GiB"), (1 << 60, "1.049e+06 TiB")])
def test_bytes_in_words(size, text):
    assert in_words(size) == text


@pytest.mark.parametrize(("key", "value"), [("robot.tasks.RL.MLPQ.hidden.0", 2_000_000), ("robot.tasks.RL.MLPQ.heads", 500_000)])
def test_networks_are_not_far_larger_than_those_of_the_checkpoint(key, value, run, tmp_path, capsys, monkeypatch):
    """They would fit into the memory: 1 GB."""
    monkeypatch.chdir(tmp_path)
    changed(run, tmp_path / "run", key, value)
    before = psutil.Process().memory_info().rss
    assert main(["eval", "run"]) == 2
    error = capsys.readouterr().err
    assert f"in tensors, which its checkpoints are far below; its largest numbers are {key.replace('.0', '[0]')}={value}" in error
    assert psutil.Process().memory_info().rss - before < 200e6


def test_a_perceptron_has_a_number_of_layers(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changed(run, tmp_path / "run", "robot.tasks.RL.MLPQ.hidden", [1] * 10_000)
    assert main(["eval", "run"]) == 2
    assert "expected at most 1000: give fewer in hidden=" in capsys.readouterr().err


def test_tensors_are_counted_before_they_take_memory():
    with bounded(Config(), 4 * 1000):
        torch.empty(10, 100)
    with pytest.raises(ConfigError, match=r"more than 3.902 KiB in tensors"), bounded(Config(), 4 * 999):
        torch.empty(10, 100)
    with pytest.raises(ConfigError, match="in tensors"), bounded(Config(), 1000):
        for _ in range(100):
            torch.nn.Linear(2, 2)


@pytest.mark.parametrize("make", [
    lambda: torch.rand(30, 4), lambda: torch.randn((30, 4), dtype=torch.float64), lambda: torch.eye(30), lambda: torch.eye(30, 4),
    lambda: torch.eye(n=30, m=7, dtype=torch.int8), lambda: torch.arange(30), lambda: torch.arange(3, 30, 4),
    lambda: torch.arange(end=30, dtype=torch.float32), lambda: torch.arange(0.0, 3.1, 0.3), lambda: torch.arange(3, -30, -2),
    lambda: torch.full((30, 4), 2), lambda: torch.ones(30),
])
def test_every_maker_of_tensors_is_counted_as_large_as_it_is(make):
    size = make().nbytes
    with bounded(Config(), size):
        assert make().nbytes == size
    with pytest.raises(ConfigError, match="in tensors"), bounded(Config(), size - 1):
        make()
