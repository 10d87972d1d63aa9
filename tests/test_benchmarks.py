"""The benchmarks run and report what they say; how fast is not a matter for tests."""

import ast
import importlib
import json
import multiprocessing
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

from parl_like import Robot
from parl_like.data.datasets import from_arrays

pytestmark = pytest.mark.checkout


@pytest.fixture(autouse=True)
def ours(monkeypatch):
    """The repository's own folder, whatever other tests have imported under that name."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parent.parent))
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(("name", "argv"), [
    pytest.param("transport", ["--agents", "4", "--rounds", "1"], marks=pytest.mark.slow),
    ("transport", ["--driver", "processes", "--part", "weights", "--part", "recovery", "--rounds", "1", "--scale", "0.02"]),
    ("central", ["--driver", "processes", "--rounds", "1", "--scale", "0.02"]),
    pytest.param("memory", ["--agents", "8", "--steps", "2000"], marks=pytest.mark.slow),
    ("replay", ["--rounds", "1", "--scale", "0.01", "--alone"]),
    ("returns", ["--rounds", "1", "--scale", "0.01"]),
    pytest.param("pixels", ["--rounds", "1", "--scale", "0.01", "--case", "PPO"], marks=pytest.mark.slow),
    pytest.param("start", ["--rounds", "1"], marks=pytest.mark.slow),
    ("acting", ["--rounds", "1", "--scale", "0.002"]),
    ("envs", ["--rounds", "1", "--scale", "0.01"]),
    ("timeline", ["--rounds", "1", "--scale", "0.001"]),
    ("gym_envs", ["--rounds", "1", "--scale", "0.001"]),
    pytest.param("heavy_envs", ["--rounds", "1", "--seconds", "0.1", "--case", "sleep 200", "--of", "parl_like, async",
                                "--of", "Sample Factory"], marks=pytest.mark.slow),
    ("tabular", ["--rounds", "1", "--scale", "0.01"]),
    ("games", ["--scale", "0.005"]),
    pytest.param("thinker", ["--rounds", "1", "--scale", "0.05", "--net", "small", "--threads", "1"], marks=pytest.mark.slow),
    pytest.param("thinker_hours", ["--set", "n_agents=1", "--set", "env_n=1", "--set", "model_batch_size=2",
                                   "--set", "actor_unroll_len=41"], marks=pytest.mark.slow),
    pytest.param("thinker_workers", ["--rounds", "1", "--steps", "32", "--warmup", "64", "--all",
                                     "model_downscale_c=32 widths=[4,4,4] rec_t=2 env_n=4 model_batch_size=16"],
                 marks=pytest.mark.slow),
    ("faults", ["--quick", "--only", "bad", "unsafe"]),
    ("ppo_cartpole", ["--rounds", "1", "--scale", "0.02", "--case", "64 environments"]),
    ("dqn_cartpole", ["--rounds", "1", "--scale", "0.02", "--case", "learn every 4"]),
    ("sac_pendulum", ["--rounds", "1", "--scale", "0.02"]),
    ("native_update", ["--rounds", "1", "--scale", "0.05", "--case", "DQN, 64 rows"]),
    pytest.param("scale", ["--rounds", "1", "--seconds", "0.1", "--no-ray", "--workers", "1"], marks=pytest.mark.slow),
    ("learning", ["--seeds", "2", "--scale", "0.0052", "--episodes", "1", "--points", "2", "--case", "sac pendulum"]),
])
def test_json_out(name, argv, capsys):
    if name == "games":
        pytest.importorskip("pyspiel")
    assert importlib.import_module(f"benchmarks.{name}").main([*argv, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["bench"] == name.replace("_", "-") and result["machine"]["cores"]
    if name == "memory":
        assert result["robot_mib"] < 1024 and not result["import"]["loads_torch"] and result["import"]["untouched"]
    elif name == "replay":
        names = {"insert 1 row", "insert 64 lanes", "sample 256", "sample 256 images", "sample 256 n-step",
                 "sample 256 prioritised"}
        assert set(result["cases"]) == names and result["cases"]["insert 1 row"]["ratios"]["push vs dict of arrays"] > 0
        assert result["atari_bytes_per_row"] < 7_200 * 1.1  # of a small buffer; a large one is measured by the command
        assert result["prioritised_growth"] > 0
    elif name == "central":
        assert set(result["rates"]) == set(result["cpu_s_per_million"]) == {"processes", "processes, replicas"}
        assert all(seconds > 0 for found in result["p99_s"].values() for seconds in found)
    elif name == "games":
        cases = result["cases"]
        for case in ("CFR kuhn", "CFRPlus kuhn", "CFR leduc", "CFRPlus leduc"):
            gains = {who: [*one["nash_conv"].values()] for who, one in cases[case].items()}
            assert gains["ours"][:len(gains["Python"])] == pytest.approx(gains["Python"]) and gains["ours"] == pytest.approx(
                gains["C++"]), "the same policies"
        assert {"external sampling kuhn", "outcome sampling kuhn", "nash_conv leduc"} <= cases.keys()
    elif name == "acting":
        assert len(result["predict"]) == 15 and all(case["ratio"] > 0 for case in result["predict"].values())
        assert set(result["agents"]) == {"8", "8, PPO learns", "64", "64, PPO learns"} and set(result["many"]) == {"64"}
    elif name == "pixels":
        assert all(result["cases"]["PPO"][what]["parl_like"]["median"] > 0 for what in ("steps_per_cpu_s", "peak_mb"))
    elif name == "returns":
        assert set(result["cases"]) == {f"{kind} {shape}" for kind in ("gae", "vtrace") for shape in ("[128, 64]", "[20, 256]")}
        assert all(case["ratios"]["vs numpy"] > 0 for case in result["cases"].values())
    elif name == "heavy_envs":
        (run,) = result["cases"]["sleep 200"]["runs"]["parl_like, async"]
        assert run["steps_per_s"] > 0 and run["cores"] > 0
    elif name == "tabular":
        places = {"", ", FrozenLake", ", table"}
        loops = {f"{one}{where}" for one in ("loop", "robot") for where in places}
        assert set(result["us_per_step"]) == {*loops, "choice and update", "helper"}
    elif name == "timeline":
        assert all({*one["cpu_s"]} == {"none", "windows", "inside"} for one in result["costs"].values())
    elif name == "envs":
        assert set(result["sokoban"]) == set(result["reset_us"]) == {"16", "64"} and len(result["sokoban"]["64"]) == 8
        assert all(rate["median"] > 0 for rate in result["levels_per_s"].values())
    elif name == "gym_envs":
        assert {"CartPole-v1 × 8", "CartPole-v1 × 64", "FrozenLake-v1 × 64"} <= result["cases"].keys()
        assert result["cases"]["CartPole-v1 × 8"]["ratios"].keys() == {"vs loop", "vs SyncVectorEnv", "vs CartPoleVectorEnv"}
    elif name == "thinker":
        assert set(result["tree"]) == set(result["acting"]["small"]) == {"16",
                                                                         "64"} and result["learning"]["small"]["over_bare"] > 0
        assert all(case["decoding"]["over_bare"] > 0 and case["latent_vs_decoding"] > 0
                   for case in result["acting"]["small"].values())
        assert {"decoding, channels_last", "latent, bfloat16", "decoding, compiled"} <= result["variants"]["small"].keys()
        assert {n: one["ratio"] > 0 for n, one in result["original"]["small"].items()} == {"16": True, "64": True}
        assert result["memory"]["growth"] < 0.1
    elif name == "thinker_hours":
        case = result["thinker-sokoban"]
        gflop = {part: counted[0] for part, counted in case["work"].items()}
        assert gflop["initial"] == pytest.approx(1.320, abs=0.001) and gflop["recurrent"] == pytest.approx(1.285, abs=0.001)
        assert gflop["model update"] / 2 == pytest.approx(35.2, rel=0.1)  # the original learns with one pass more
        assert gflop["planner update"] == pytest.approx(42 * 3 * gflop["planner"], rel=0.15)  # forward, and twice that back
        acting = case["acting_s_per_1000"]
        assert acting["all"] == pytest.approx(acting["in plan"] + acting["in model"] + acting["rest"])
        seconds = sum(case["s_per_real_step"].values())
        assert case["hours_here"] == pytest.approx(50_000_000 * seconds / 3600)
        assert all(by["0.4"] <= by["0.12"] for by in case["hours_on_paper"].values())
    elif name == "thinker_workers":
        assert result["driver=processes"]["vs cooperative"] > 0 and result["driver=processes"]["cpu"][1] > 0
    elif name == "faults":
        assert {name.split()[0] for name in result["card"]} == {"bad", "unsafe"} and len(result["card"]) == 3
        assert all(line["reached"] for name, line in result["card"].items() if name.startswith("bad")), result["card"]
    elif name.endswith("cartpole"):
        (case,) = result["cases"].values()
        assert {"parl_like", "by hand", "by hand, tuned"} <= case["rates"].keys()
        assert all(value > 0 for value in case["ratios"].values())
    elif name == "sac_pendulum":
        assert result["cases"]["an update per step"]["rates"]["parl_like"]["median"] > 0
    elif name == "native_update":
        assert result["cases"]["DQN, 64 rows"]["ratios"]["vs by torch"] > 0
    elif name == "scale":
        failed = [one["failed"] for one in result["checks"] if "failed" in one]
        assert not failed
        assert all(one["steps_per_s"] > 0 and one["predicted"] > 0 for one in result["checks"]) and len(result["fitted"]) == 17
    elif name == "learning":
        case = result["cases"]["sac pendulum"]
        assert all(len(curve) == 2 and curve[-1][0] >= case["steps"] == 104 for curve in case["parl_like"]["curves"])
        assert case["parl_like"]["scores"] == [curve[-1][2] for curve in case["parl_like"]["curves"]]
    elif name == "start":
        assert {"import torch", "train total_steps=1"} < result["cases"].keys()
        assert all(one["seconds"] > 0 and one["mib"] > 0 for one in result["cases"].values())
    elif "processes" in argv:
        assert all(0 < seconds < 60 for seconds in result["processes"]["recovery"]["seconds"])
        assert result["processes"]["weights"]["with"]["publications"] > 0
    else:
        case = result["agents"]["4"]
        rates = case["rates"]
        assert case["ratios"]["threads vs plain queues"] == rates["threads"]["median"] / rates["plain queues"]["median"]
        assert set(case["ratios"]) == {"cooperative vs bare greenlets", "threads vs plain queues", "threads vs simple queues"}


def test_learning_sums_up_seeds():
    """Scores are those at the end; a run that never was at the mark is later than all others, and its place stays empty."""
    from benchmarks.learning import summary

    curves = [[(10, 1.0, 400.0), (20, 2.0, 480.0)], [(10, 1.5, 490.0), (20, 3.0, 100.0)], [(10, 1.0, 0.0), (20, 2.5, 0.0)]]
    seen = summary(curves, mark=475)
    assert seen["scores"] == [480.0, 100.0, 0.0] and seen["iqm"] == pytest.approx(580 / 3)
    assert seen["to_mark"] == [2.0, 1.5, None] and seen["steps_to_mark"] == [20, 10, None] and seen["median_to_mark"] == 2.0
    assert seen["interval"][0] >= 0.0 and seen["interval"][1] <= 480.0 and seen["seconds"] == 2.5
    assert summary(curves[2:], mark=475)["median_to_mark"] is None


def test_learning_keeps_its_runs_in_a_file(tmp_path, monkeypatch, capsys):
    from benchmarks import learning

    trained = []

    def train(case, steps, seed, stops, episodes):
        if seed == 2:
            raise KeyboardInterrupt
        trained.append(seed)
        return [[steps, 1.0, 100.0 + seed]]

    monkeypatch.setattr(learning, "train_ours", train)
    monkeypatch.setattr(learning, "find_spec", lambda name: None)
    ask = ["--case", "a2c cartpole", "--out", str(tmp_path / "runs.json")]
    with pytest.raises(KeyboardInterrupt):
        learning.main([*ask, "--seeds", "3"])
    assert trained == [0, 1]
    learning.main([*ask, "--seeds", "2"])
    assert trained == [0, 1] and "parl_like: 100, 101;" in capsys.readouterr().out
    learning.main([*ask, "--seeds", "1", "--episodes", "7"])
    assert trained == [0, 1, 0]  # of other evaluations
    monkeypatch.setitem(learning.CASES, "a2c cartpole", replace(learning.CASES["a2c cartpole"], changes={"gamma": 0.9}))
    learning.main([*ask, "--seeds", "1"])
    assert trained == [0, 1, 0, 0]  # with other settings


def test_a_case_whose_data_is_not_there_is_skipped_and_says_how_to_make_it(tmp_path, monkeypatch, capsys):
    from benchmarks import learning

    monkeypatch.chdir(tmp_path)
    assert learning.main(["--case", "gail pendulum"]) == 0
    assert "gail pendulum: skipped: " in (told := capsys.readouterr().out) and "`parl-like record pendulum-expert`" in told


def test_a_run_of_the_peer_is_kept_for_its_settings_alone():
    from benchmarks.learning import CASES
    from benchmarks.learning_peers import LinearDecay

    def numbers(name, **changes):
        case = CASES[name]
        return [replace(case, peer=replace(case.peer, **one)).peer_settings() for one in ({}, changes)]

    before, after = numbers("iqn cartpole", updates=1)
    assert before != after and len(before) == 8
    before, after = numbers("iqn cartpole", build=CASES["c51 cartpole"].peer.build)
    assert before != after
    same, other = numbers("ppo cartpole", settings={**CASES["ppo cartpole"].peer.settings, "learning_rate": LinearDecay(2e-3)})
    assert same != other == numbers("ppo cartpole", settings={**CASES["ppo cartpole"].peer.settings,
                                                              "learning_rate": LinearDecay(2e-3)})[1]


def test_other_settings_of_the_peer_are_run_anew(tmp_path, monkeypatch):
    from benchmarks import learning

    trained = []

    def train(who):
        return lambda case, steps, seed, stops, episodes: trained.append(who) or [[steps, 1.0, 100.0]]

    monkeypatch.setattr(learning, "train_ours", train("ours"))
    monkeypatch.setattr(learning, "train_peer", train("theirs"))
    monkeypatch.setattr(learning, "find_spec", lambda name: True)
    ask = ["--case", "iqn cartpole", "--seeds", "1", "--out", str(tmp_path / "runs.json")]
    learning.main(ask)
    learning.main(ask)
    assert trained == ["ours", "theirs"]
    case = learning.CASES["iqn cartpole"]
    monkeypatch.setitem(learning.CASES, "iqn cartpole", replace(case, peer=replace(case.peer, updates=1)))
    learning.main(ask)
    assert trained == ["ours", "theirs", "theirs"]


def test_out_of_the_box_is_what_robot_of_makes_where_nobody_says_anything():
    from benchmarks.learning import CASES

    case = CASES["dqn acrobot, out of the box"]
    with case.robot(1000, 7) as ours, Robot.of("DQN", "Acrobot-v1", total_steps=1000, seed=7) as plain:
        assert ours.parts.complete() == plain.parts.complete() and (ours.seed, ours.span.steps) == (7, 1000)
    assert (case.peer.name, dict(case.peer.settings), CASES["qrdqn cartpole, out of the box"].peer.module) == (
        "DQN", {}, "sb3_contrib")


def test_ours_is_evaluated_in_the_episodes_of_the_peers():
    """An environment for each, so that the first states of stable-baselines3's are those of these seeds, too."""
    from benchmarks.learning import starts
    from benchmarks.learning_peers import first_start

    class Noted(gym.Wrapper):
        def reset(self, **options):
            obs, info = self.env.reset(**options)
            seen.append(obs.tolist())
            return obs, info

    seen = []
    with Robot.of("PPO", "Pendulum-v1", n_agents=2) as robot:
        make = starts("Pendulum-v1", first_start(3))
        robot.evaluate(5, seed=3, n_agents=5, env=lambda: Noted(make()))
    assert sorted(seen) == sorted(gym.make("Pendulum-v1").reset(seed=first_start(3) + k)[0].tolist() for k in range(5))


def test_ours_and_the_peer_have_the_same_task(tmp_path, monkeypatch):
    """Every case whose environment is installed: its robot can be built, and its spaces fit the environment of the peer."""
    from benchmarks.learning import CASES, starts

    monkeypatch.chdir(tmp_path)
    obs = np.zeros((2, 3), np.float32)
    from_arrays(obs=obs, act=np.zeros((2, 1), np.float32), rew=np.zeros(2), obs_next=obs, terminated=np.zeros(2, bool),
                truncated=np.ones(2, bool), action_space=gym.make("Pendulum-v1").action_space).save("data/pendulum-expert")
    found = 0
    for name, case in CASES.items():
        try:
            peers = starts(case.env, 0)()
        except (gym.error.Error, ImportError):
            continue
        with case.robot(10_000, 0) as robot:
            for task in robot.tasks.values():
                task.build()
                model = task.algorithm.model
                assert model.obs_space.shape == peers.observation_space.shape and model.act_space == peers.action_space, name
        peers.close()
        found += 1
    assert found > 15


def test_compare_takes_turns_and_the_ratio_is_that_of_neighbours():
    from benchmarks.common import compare, ratio

    order = []
    rates = compare({"a": lambda: order.append("a") or 1.0, "b": lambda: order.append("b") or len(order)}, rounds=3)
    assert order == ["a", "b"] * 3
    assert rates["b"] == {"median": 4, "best": 6, "spread": 1.0, "rounds": [2, 4, 6]}
    assert ratio({"rounds": [1, 2, 12]}, {"rounds": [1, 1, 4]}) == 2


@pytest.mark.parametrize("work", ["bare_copy", "queues"])
def test_the_clock_starts_when_all_processes_are_there(work, monkeypatch):
    """Starting 64 processes would otherwise be most of what is measured of them, and ours are warm."""
    from benchmarks import processes

    there = []

    def clock():
        there.append(len(set(multiprocessing.active_children()) - before))
        return float(len(there))

    before = set(multiprocessing.active_children())
    monkeypatch.setattr(processes, "AGENTS", 4)
    monkeypatch.setattr(processes, "perf_counter", clock)
    assert getattr(processes, work)(5) > 0
    assert len(there) == 2 and there[0] == {"bare_copy": 1, "queues": 4}[work]


def test_the_tuned_loop_learns_what_the_other_does():
    """Both are one algorithm: rows per second may differ, the number of rows and of optimiser steps may not."""
    from benchmarks import training

    steps = []
    original = training.torch.optim.Adam.step

    def counted(self, *args, **options):
        steps.append(self)
        return original(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.torch.optim.Adam, "step", counted)
        for way in (training.ppo_by_hand, training.ppo_careful):
            steps.clear()
            assert way(64, 2 * training.BATCH) > 0 and len(steps) == 3 * 16  # the first iteration comes before the clock


def test_figures_are_tables_of_what_the_benchmarks_say(monkeypatch, capsys, tmp_path):
    from benchmarks import figures

    shown = {"bench": "memory", "agents": 8, "robot_mib": 200.4, "torch_alone_mib": 100.0}
    monkeypatch.setattr(figures.subprocess, "run", lambda command, **_: SimpleNamespace(returncode=0, stdout=json.dumps(shown)))
    assert figures.main(["memory", "--quick", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "figures mean nothing" in out and "8 agents with CartPole in one process take 200 MiB, 100 of them torch" in out
    assert json.loads((tmp_path / "memory.json").read_text()) == shown
    rates = {"parl_like": {"median": 2000.0, "spread": 0.02}, "by hand": {"median": 1000.0, "spread": 0.3}}
    case = {"bench": "ppo-cartpole", "cases": {"8 environments": {"rates": rates, "ratios": {"vs by hand": 2.0}}}}
    assert figures.training(case) == ["| PPO, 8 environments | 2,000 | 1,000 (2.00×) | – | – | busy: 0.30"]


def test_a_part_that_fails_is_said(monkeypatch, capsys):
    from benchmarks import figures

    monkeypatch.setattr(figures.subprocess, "run", lambda command, **_: SimpleNamespace(returncode=3, stdout=""))
    assert figures.main(["memory"]) == 1 and "memory: failed with code 3" in capsys.readouterr().err


def test_solvers_are_measured_beside_experiments(capsys, tmp_path):
    from benchmarks import solvers

    file = tmp_path / "marks.json"
    for words in (["cfr-kuhn", "outcomesampling-kuhn", "--seeds", "2"], ["cfr-kuhn"]):
        rows = {name: row._replace(iterations=min(row.iterations, 300)) for name, row in solvers.ROWS.items()}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(solvers, "ROWS", rows)
            assert solvers.main([*words, "--out", str(file), "--json"]) == 0
    assert [one["experiment"] for one in json.loads(capsys.readouterr().out.splitlines()[1])] == ["cfr-kuhn"]
    kept = [(mark.experiment, mark.seed, mark.env_steps, mark.solved) for mark in solvers.marks.load(file)]
    assert kept[0] == ("cfr-kuhn", 0, 300, True), "it draws nothing, so it has one seed"
    assert [one[:3] for one in kept[1:]] == [("outcomesampling-kuhn", 0, 300), ("outcomesampling-kuhn", 1, 300)]
    first, second, third = solvers.marks.load(file)
    assert round(first.score, 6) == -0.006068 and second.score != third.score
    assert first.evaluation["return of player 0"] == pytest.approx(-1 / 18, abs=0.002)
    assert "| `cfr-kuhn` | 300 |" in file.with_suffix(".md").read_text()
    with pytest.raises(SystemExit):
        solvers.main(["cfr-chess"])


def test_every_row_of_solvers_has_its_marks():
    from benchmarks import solvers

    kept = {mark.key for mark in solvers.marks.load(Path(__file__).resolve().parents[1] / "docs" / "marks.json")}
    assert not [name for name in solvers.ROWS if (solvers.configuration(name), 0) not in kept]


def test_searches_are_measured(capsys):
    from benchmarks import search

    assert not search.main(["--trees", "2", "--simulations", "4"])
    assert "times as long" in capsys.readouterr().out
    assert not search.main(["--json"])
    assert json.loads(capsys.readouterr().out)["plain_s"] > 0


def test_the_verb_can_run_every_benchmark():
    """It calls `main` with words."""
    folder = Path(__file__).resolve().parents[1] / "benchmarks"
    made = {path.name: one for path in folder.glob("*.py") for one in ast.parse(path.read_text()).body
            if isinstance(one, ast.FunctionDef) and one.name == "main"}
    assert len(made) > 20 and not [name for name, one in made.items() if len(one.args.args) != 1]
