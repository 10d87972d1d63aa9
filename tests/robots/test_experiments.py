"""Every experiment that ships: its configuration, a short run, the same trace twice, and an exact resume through the command
line."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import metrics_page
import pytest
from recorded_rows import offline

from parl_like.lab import config as configs
from parl_like.lab import experiment as experiments
from parl_like.lab import yaml_text
from parl_like.lab.cli import main
from parl_like.lab.runs.checkpoint import Checkpoints
from parl_like.lab.runs.metrics import evaluations
from parl_like.lab.runs.rundir import RunDir
from parl_like.robots import single
from parl_like.run.robot import Robot
from parl_like.values.batch_leaf import same

known = functools.cache(experiments.get)
# That of shared models is in test_thinker_shared.py: a cluster gives no trace.
NAMES = [name for name in experiments.names() if known(name).robot not in ("fake", "thinker_shared")]


def build(name, **overrides):
    experiment = known(name)
    if needed := {"hierarchy": "minigrid", "self_play": "pettingzoo"}.get(experiment.robot):
        pytest.importorskip(needed)
    if "MiniGrid" in str(experiment.config.get("env")):
        pytest.importorskip("minigrid")
    if name.endswith("-lander"):
        pytest.importorskip("Box2D")
    if name in ("maddpg-speaker", "mappo-spread"):
        pytest.importorskip("mpe2")
    module = experiment.module()
    return module.build(configs.resolve(module.Config, experiment.config, overrides))


def test_these_ship():
    assert {"dqn-cartpole", "ppo-cartpole", "a2c-cartpole", "ppo-pendulum", "hierarchy-doorkey", "impala-cartpole",
            "thinker-sokoban", "thinker-sokoban-g2",
            "thinker-atari", "thinker-atari-g2", "thinker-sokoban-mini", "thinker-perfect-mini", "raw-sokoban-mini"} <= set(NAMES)
    assert any(name.startswith("auxiliary-") for name in NAMES)


THINKER = {"n_agents": 2, "env_n": 3, "total_steps": 240, "actor_unroll_len": 12, "widths": [4, 4, 4], "model_downscale_c": 32,
           "model_batch_size": 4,
           "model_unroll_len": 2, "model_return_n": 1, "model_warm_up_n": 60, "model_buffer_n": 240, "max_replay_ratio": 0.2}


def off_policy(name):
    """Of those that learn from a buffer: few rows of it, and the run as short as that allows."""
    experiment = known(name)
    defaults = single.DEFAULTS.get(experiment.config.get("algorithm"), {}) if experiment.robot == "single" else {}
    two = {"mbpo": ["RL.", "model."], "nfsp": ["best."], "self_play": ["RL."]}
    tasks = two.get(experiment.robot, [""] * (defaults.get("helper") == "OffPolicyHelper"))
    if experiment.robot == "auxiliary":  # by its whole name: PPO's model has an argument `auxiliary`
        more = range(2, len(experiment.config.get("learners", ())) + 1)
        tasks = [*["tasks.RL."] * (experiment.config.get("algorithm") != "PPO"), "tasks.auxiliary.",
                 *(f"tasks.auxiliary{i}." for i in more)]
    few = {f"{task}OffPolicyHelper.{key}": value for task in tasks for key, value in (("warmup", 64), ("batch_size", 32))}
    often = {"mbpo": "RL.OffPolicyHelper.updates", "single": "OffPolicyHelper.updates"}.get(experiment.robot, "")
    few |= {often: 1} if experiment.robot == "mbpo" or often in defaults else {}
    at_random = {**defaults, **experiment.config}.keys() & {"random_steps", "OffPolicyHelper.random_steps"}
    few |= {"OffPolicyHelper.random_steps": 32} if at_random else {}  # the policy acts, too
    return few and {**few, "total_steps": 160}


def in_pieces(name):
    """Of those that act long before they pause: so much that there is a pause, and as much again behind it."""
    config = known(name).config
    defaults = single.DEFAULTS.get(config.get("algorithm"), {})
    if defaults.get("helper") == "OnlineHelper" or known(name).robot in ("options", "curriculum"):
        return {"total_steps": 4096}  # each agent takes 256 steps at a time
    if known(name).robot == "auxiliary" and config.get("algorithm") == "PPO":
        return {"OnPolicyHelper.unroll": 16}
    if config.get("levels") == 3:
        return {"horizon": 8}  # short goals, for rows of which the highest level learns
    return {"unroll": 32} if config.get("unroll", 0) > 100 else {}


def short(name):
    """Overrides for a run of seconds, in which all learn."""
    if recorded := offline(name):
        return recorded
    if known(name).robot == "self_play":
        return {"n_agents": 4, **off_policy(name), "every": 4, "total_steps": 400}
    if known(name).robot == "nfsp":
        average = {f"average.ReservoirHelper.{key}": 8 for key in ("warmup", "batch_size")}
        return {"n_agents": 4, **off_policy(name), **average, "eta": 0.5, "total_steps": 640}
    if known(name).robot == "skills":
        few = {"warmup": 64, "batch_size": 32, "random_steps": 32}
        return {"n_agents": 2, "OnPolicyHelper.unroll": 16, **{f"RL.OffPolicyHelper.{key}": few[key] for key in few},
                "total_steps": 320}
    if known(name).robot == "alphazero":
        return {"n_agents": 4, "warmup": 64, "batch_size": 32, "simulations": 4, "eval_games": 2, "eval_simulations": 2,
                "total_steps": 320}
    if known(name).robot == "muzero":
        return {"n_agents": 2, "n_envs": 4, "simulations": 4, "n_step": 4, "LatentWorld.size": 8, "total_steps": 640} | (
            {} if "cartpole" in name else {"eval_games": 2}) | {
                f"{task}.OffPolicyHelper.{key}": value for task in ("model", "prediction")
                for key, value in (("warmup", 64), ("batch_size", 16), ("learn_every", 16))}
    if known(name).robot == "mcts":
        return {"n_agents": 2, "simulations": 30, "depth": 30, "total_steps": 60}  # so few that seeds differ
    if name.startswith("thinker-atari"):
        pytest.importorskip("ale_py")
    if known(name).robot != "thinker":
        env = known(name).config.get("env")
        several = isinstance(env, dict) and "vector" in env  # environments in each agent
        alone = known(name).config.get("algorithm") == "PSRL"  # its world is that of one episode at a time
        return {"n_agents": 1 if several or alone else 4, "total_steps": 800} | in_pieces(name) | off_policy(name)
    if not name.endswith("mini"):  # large pictures
        options = {"max_frames": 60} if "atari" in name else {"max_steps": 8}
        return {**THINKER, "rec_t": 3, "total_steps": 60, "actor_unroll_len": 6, "model_warm_up_n": 4, "model_buffer_n": 36,
                "max_replay_ratio": 1.0, "env_options": options}
    return THINKER if name.startswith("raw") else {**THINKER, "rec_t": 3}


# Kinds of robot, and of state that a run goes on with, that tests/test_golden_runs.py does not resume.
# Members have tests of their own, too.
OFTEN = {"dqn-cartpole", "ppo-cartpole", "reinforce-cartpole", "auxiliary-cartpole", "hierarchy-doorkey", "bootstrapped-deepsea",
         "nfsp-kuhn", "dqn-selfplay-tictactoe", "thinker-sokoban-mini"}
FROZEN = {"old0", "old1", "old2", "old3"}  # tasks that do not learn themselves: older selves


@pytest.mark.parametrize("name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in NAMES])
def test_two_short_runs_and_one_that_is_resumed_are_the_same(name, tmp_path):
    """The second is evaluated before, and while it trains: that changes nothing. The third has another seed, up to the checkpoint
    of the first that it loads. Before that, and after it, all of them act, and all their tasks learn. Every number that they log
    is explained in docs/running/debugging.md."""
    overrides = short(name)
    half, left = overrides["total_steps"] // 2, []
    for run, seed in enumerate((5, 5, 6)):
        with build(name, **overrides, trace=True, seed=seed) as robot:
            done = []
            for stop in (0, half, 2 * half):
                for _ in robot.iterate(stop):
                    pass
                assert run != 1 or stop > half or robot.evaluate(2, seed=1).n_episodes == 2
                if stop == half:
                    robot.save(tmp_path / f"{run}")
                    before = robot.trace_hash()
                    if run == 2:
                        robot.load(tmp_path / "0")
                done.append([robot.env_steps, *(task.learns for task in robot.tasks.values())])
            assert all(begin < middle < end or (begin, end) == (0, 0) and name in FROZEN
                       for name, begin, middle, end in zip(("steps", *robot.tasks), *done, strict=True)), done
            assert metrics_page.unexplained(robot.metrics().keys() - {"env_steps"}) == []
            left.append((before, robot.trace_hash(), {name: task.state_dict() for name, task in robot.tasks.items()}))
    assert same(left[0], left[1]) and left[2][0] != left[0][0] and same(left[2][1:], left[0][1:])


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in {"r2d2-recall", "bootstrapped-deepsea", "qlearning-frozenlake"}))
    for name in NAMES if known(name).robot != "thinker"])  # test_thinker_processes.py has that
def test_it_acts_and_learns_in_a_worker_or_is_refused_by_name(name):
    try:
        with build(name, **short(name), driver="processes", workers={"count": 1}) as robot:
            for _ in robot.iterate(short(name)["total_steps"]):
                pass
            assert all(task.learns for key, task in robot.tasks.items() if key not in FROZEN)
    except (TypeError, ValueError) as error:
        assert re.search(r"process|workers", str(error)), error


def test_the_robot_without_goals_has_one_task():
    assert list(build("hierarchy-doorkey", hierarchy=False, n_agents=2).tasks) == ["RL"]


def test_an_unknown_environment_is_a_config_error():
    with pytest.raises(yaml_text.ConfigError, match="CartPoll"):
        build("ppo-cartpole", env="CartPoll-v1")


ARGS = ["ppo-cartpole", "n_agents=4", "unroll=32", "total_steps=1536", "checkpoint_every=512", "trace=true", "tensorboard=false",
        "eval_episodes=1", "eval_every=700"]


def trace(run):
    """And what the evaluations found, the best of which is kept."""
    result = json.loads((run / "result.json").read_text())
    best = Checkpoints(run / "checkpoints").load("best").meta
    assert (best.step, best.score) == (result["best"]["best_step"], result["best"]["best"])
    return result["trace_hash"], result["evaluation"], result["best"], evaluations(RunDir(run))


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """The run that nothing interrupts."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert main(["train", *ARGS, f"run_dir={run}"]) == 0
    return run


@pytest.fixture(scope="module")
def whole(whole_run):
    """Its trace."""
    return trace(whole_run)


def test_every_column_of_the_metrics_is_explained(whole_run):
    header = (whole_run / "metrics.csv").read_text().partition("\n")[0].split(",")
    assert {"step", "eval/score", "RL/loss", "RL/learn/grad_norm"} <= set(header)
    assert metrics_page.unexplained(header) == []


def test_evaluations_while_training_change_nothing_of_it(whole, tmp_path):
    """Neither here nor in workers, to which on-policy agents may move without a change."""
    assert [step for step, _ in whole[3]] == [0, 768, 1408, 1536]
    common = ["train", *ARGS, "eval_every=0", f"run_dir={tmp_path / 'without'}"]
    assert main(common) == 0
    result = json.loads((tmp_path / "without" / "result.json").read_text())
    assert (result["trace_hash"], result["evaluation"]) == whole[:2] and "best" not in result
    assert main(["train", *ARGS, "driver=processes", "workers.count=2", f"run_dir={tmp_path / 'workers'}"]) == 0
    assert trace(tmp_path / "workers") == whole


@pytest.mark.parametrize("keep", [1, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("number", "checkpoint"), [  # before the first of the schedule, or with two of them there
    (signal.SIGKILL, "000000000"), (signal.SIGTERM, "000001024"),
    *(pytest.param(*one, marks=pytest.mark.slow) for one in ((signal.SIGTERM, "000000000"), (signal.SIGKILL, "000001024")))])
def test_an_interrupted_and_resumed_run_equals_an_uninterrupted_one(tmp_path, whole, number, checkpoint, keep):
    run, here, go = tmp_path / "cut", tmp_path / "here", tmp_path / "go"
    # 300 steps after the checkpoint it waits, to be killed, or to go on after the signal.
    code = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from parl_like.environment.hooks import TraceHash
        from parl_like.lab.cli import main

        add, steps = TraceHash.post_act, 0
        checkpoint, here, go = Path({str(run / "checkpoints" / checkpoint)!r}), Path({str(here)!r}), Path({str(go)!r})

        def wait(self, agent):
            global steps
            steps += checkpoint.exists()
            if steps == 300:
                here.touch()
                while not go.exists():
                    time.sleep(0.01)
            add(self, agent)

        TraceHash.post_act = wait
        raise SystemExit(main({["train", *ARGS, f"run_dir={run}", f"keep_checkpoints={keep}"]!r}))
    """)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not here.exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, number)
    go.touch()
    assert process.wait() == (3 if number == signal.SIGTERM else -signal.SIGKILL)
    assert not (run / "result.json").exists()
    assert main(["resume", str(run), "--exact"]) == 0
    assert trace(run) == whole


@pytest.mark.parametrize("workers", [
    pytest.param([], id="cooperative"),
    pytest.param(["driver=processes", "workers.count=2"], id="processes", marks=pytest.mark.slow)])
def test_two_resumes_of_one_stop_are_equal_and_so_are_two_stops_at_one_step(tmp_path, monkeypatch, whole, workers):
    """From the stop itself. The run that was never stopped is another one: its episodes went on there."""
    iterate, stop_at = Robot.iterate, 896

    def struck(self, stop_steps):
        for each in iterate(self, stop_steps):
            if self.env_steps == stop_at:
                os.kill(os.getpid(), signal.SIGINT)
            yield each

    def found(run):
        result = json.loads((run / "result.json").read_text())
        events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
        return [e["step"] for e in events if e["event"] == "resumed"], result["trace_hash"], result["evaluation"]

    stopped, again, copied, exact = (tmp_path / name for name in ("stopped", "again", "copied", "exact"))
    with monkeypatch.context() as patched:
        patched.setattr(Robot, "iterate", struck)
        for run in (stopped, again):
            assert main(["train", *ARGS, "eval_every=0", *workers, f"run_dir={run}"]) == 3
    for other in (copied, exact):
        shutil.copytree(stopped, other)
    for run in (stopped, again, copied):
        assert main(["resume", str(run)]) == 0
    assert found(stopped) == found(copied) == found(again)
    assert found(stopped)[0] == [stop_at] and found(stopped)[1] != whole[0]
    assert main(["resume", str(exact), "--exact"]) == 0
    assert found(exact) == ([512], *whole[:2])


def test_eval_prints_one_line_of_json(tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", *ARGS[:-5], "total_steps=512", "tensorboard=false", "eval_episodes=1", "metrics_every=128",
                 f"run_dir={run}"]) == 0
    capsys.readouterr()
    assert main(["eval", str(run), "--episodes", "3", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    numbers = json.loads(line)
    assert numbers["episodes"] == 3
    assert numbers["min_return"] <= numbers["mean_return"] <= numbers["max_return"] and numbers["std_return"] >= 0
    assert (run / "plots" / "learning_curve.png").stat().st_size > 1000


def test_a_bad_environment_ends_with_code_1_a_checkpoint_and_the_metrics(tmp_path, monkeypatch, capsys):
    import gymnasium as gym

    from parl_like.robots import spaces

    class Broken(gym.Wrapper):
        steps = 0

        def step(self, action):
            Broken.steps += 1
            if Broken.steps == 2000:
                raise RuntimeError("the motor is on fire")
            return super().step(action)

    real = spaces.Robot
    monkeypatch.setattr(spaces, "Robot", lambda env, **options: real(lambda: Broken(gym.make(env)), **options))
    run = tmp_path / "run"
    assert main(["train", *ARGS, "metrics_every=128", f"run_dir={run}"]) == 1
    shown = "".join(capsys.readouterr())
    assert "the motor is on fire" in shown and "agent" in shown
    assert any((run / "checkpoints").glob("0*")) and len((run / "metrics.csv").read_text().splitlines()) > 3
    assert json.loads((run / "run.json").read_text())["state"] == "failed"


@pytest.mark.parametrize("words",
                         [["device=cuda:99"], ["warmup=100", "size=50"], ["gamma=1.5"], ["hiden=[3]"], ["driver=rockets"]])
def test_a_configuration_that_does_not_fit_ends_with_code_2_and_one_line(tmp_path, capsys, words):
    assert main(["train", "dqn-cartpole", "total_steps=100", f"run_dir={tmp_path / 'run'}", *words]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(lines) == 1


SAID = {name: re.findall(r"[(\s]([\w.]+=\w+)", known(name).description) for name in NAMES if "thinker" not in name}


@pytest.mark.parametrize("name", [name for name, words in SAID.items() if words])
def test_what_a_description_offers_can_be_built(name):
    build(name, **configs.parse_assignments(SAID[name])).close()


@pytest.mark.parametrize("name", NAMES)
def test_every_robot_runs_on_a_gpu_where_there_is_one(name):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    overrides = short(name)
    try:
        robot = build(name, **overrides, device="cuda")
    except ValueError as refused:
        assert "is a model of NumPy arrays; use device='cpu'" in str(refused)
        return
    with robot:
        for _ in robot.iterate(overrides["total_steps"]):
            pass
        assert all(p.is_cuda for t in robot.tasks.values() for p in t.algorithm.model.parameters())
        assert robot.evaluate(2, seed=1).n_episodes == 2


@pytest.mark.parametrize("name", ["dqn-cartpole", "auxiliary-cartpole"])
def test_replay_may_be_prioritised_and_is_resumed(name, tmp_path):
    from parl_like import PrioritizedReplayBuffer

    options = {"n_agents": 2, "total_steps": 600, "RL.OffPolicyHelper.warmup": 100, "trace": True,
               "RL.OffPolicyHelper.buffer": "PrioritizedReplayBuffer", "beta": {"start": 0.4, "end": 1.0}}
    with build(name, **options) as whole, build(name, **options) as part:
        assert isinstance(whole.buffers["RL"], PrioritizedReplayBuffer) and whole.buffers["RL"].beta == pytest.approx(0.4)
        for stop in (300, 600):
            for _ in whole.iterate(stop):
                pass
            if stop == 300:
                whole.save(tmp_path / "state")
            else:
                whole.checkpoint_boundary()
        assert whole.buffers["RL"].beta > 0.5 and whole.tasks["RL"].learns > 50
        part.load(tmp_path / "state")
        for _ in part.iterate(600):
            pass
        part.checkpoint_boundary()
        assert part.trace_hash() == whole.trace_hash()
