"""Golden runs: short runs of a dozen robots give the traces, rows, weights and metrics that `data/golden_runs.json` holds.

A change that is meant to leave behaviour as it is leaves this file as it is. After one that is meant to change numbers, write it
anew, and say in the commit message which robots changed and why:

    python tests/test_golden_runs.py --write ppo mbpo     # these robots, or all that run here

Drivers: `cooperative`, for every robot; `processes` with two workers, for on-policy runs of a single and a vector agent, which
docs/drivers.md promises to be those of greenlets bit for bit.

Bytes depend on the machine's kernels. So they are compared where libraries are those of the file and a probe of the kernels gives
the same bytes; elsewhere sums, norms and weighted sums of everything agree within a tolerance.
"""

import json
import math
import re
import sys
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest.mock import patch

import gymnasium
import numpy as np
import pytest
import torch

from parl_like import Hook
from parl_like.algorithms import QLearning
from parl_like.lab import config as configs
from parl_like.lab import experiment as experiments
from parl_like.tasks.task_options import TaskOptions

FILE = Path(__file__).parent / "data" / "golden_runs.json"
TOLERANCE = 1e-3
"""Of numbers of another machine, relative to the norm of what they are of."""


class Case(NamedTuple):
    """A shipped experiment made small, with the environment steps of each half of its run."""

    experiment: str
    half: int
    options: Mapping = {}
    drivers: tuple = ()
    offline: bool = False
    native: bool = False  # whether compiled loops of our own compute what they can, or torch all


FEW = {"OffPolicyHelper.warmup": 64, "OffPolicyHelper.batch_size": 32}


def few(*tasks):
    """`FEW` for each of several tasks."""
    return {f"{task}.{key}": value for task in tasks for key, value in FEW.items()}


TREE = dict(env_n=3, actor_unroll_len=12, widths=[4, 4, 4], model_downscale_c=32, model_batch_size=4, model_unroll_len=2,
            model_return_n=1, model_warm_up_n=60, model_buffer_n=240, max_replay_ratio=0.2, n_agents=2)
VECTOR = {"n_agents": 2, "env.id": "CartPole-v1", "env.vector": 3}
WORKERS = ("processes",)

CASES = {
    "dqn": Case("dqn-cartpole", 160, {**FEW, "n_agents": 4}),
    "sac": Case("sac-pendulum", 120, {**FEW, "n_agents": 2, "random_steps": 16}),
    "ppo": Case("ppo-cartpole", 512, dict(n_agents=4, unroll=32, epochs=2), WORKERS),
    "memory": Case("ppo-recall", 512, dict(n_agents=4, unroll=32, epochs=2)),
    "r2d2": Case("r2d2-recall", 400, {**FEW, "n_agents": 4}),
    "hindsight": Case("her-bitflip", 160, {**FEW, "n_agents": 4}),
    "prioritized": Case("rainbow-cartpole", 160, {**FEW, "n_agents": 4, "random_steps": 16}),
    "table": Case("qlearning-frozenlake", 1024, dict(n_agents=2)),
    "evolution": Case("es-cartpole", 1500, dict(n_agents=4)),
    "hierarchy": Case("hierarchy-doorkey", 512, dict(n_agents=4)),
    "shared trunk": Case("auxiliary-cartpole", 100, {**few("RL", "auxiliary"), "DQN.target_period": 9, "n_agents": 4}),
    "mbpo": Case("mbpo-pendulum", 120, {**few("RL", "model"), "RL.OffPolicyHelper.updates": 1, "n_agents": 2}),
    "impala": Case("impala-cartpole", 480, dict(n_agents=4)),
    "thinker": Case("thinker-sokoban-mini", 120, {**TREE, "rec_t": 3}),
    "thinker, raw": Case("raw-sokoban-mini", 120, TREE),
    "vector": Case("ppo-cartpole", 576, {**VECTOR, "unroll": 32, "epochs": 2}, WORKERS),
    "vector, off-policy": Case("dqn-cartpole", 240, {**FEW, **VECTOR}),
    "offline": Case("dqn-cartpole", 60, {"helper": "OfflineHelper", "OfflineHelper.batch_size": 32}, offline=True),
}
CASES |= {f"{name}, native": CASES[name]._replace(native=True) for name in ("ppo", "dqn", "sac", "vector", "mbpo", "thinker")}
CLOCKED = re.compile(r"_s$")
CLOCKED_IN_WORKERS = re.compile(r"_s$|/(predict|learn)/|iterations$|episodes_cut$")
"""Metrics that the clock decides: seconds, and how requests of workers meet."""
RUNS = [(name, driver) for name, case in CASES.items() for driver in ("cooperative", *case.drivers)]
RESUMED = {"dqn", "ppo", "hierarchy", "shared trunk", "thinker", "thinker, raw", "mbpo"}
"""Robots whose like tests/robots/test_experiments.py resumes each time, or that take long: here they are resumed among the slow
tests, as all with native loops are."""


def seldom(name, driver):
    """Whether a run is resumed among the slow tests alone."""
    return driver == "cooperative" and name in RESUMED or CASES[name].native or (name, driver) == ("vector", "processes")


# ------------------------------------------------------------------------------------------------------------ what is recorded


def leaves(tree):
    """Arrays of a tree of mappings, batches and sequences, in the order of names."""
    if hasattr(tree, "items"):
        return [leaf for _, value in sorted(tree.items()) for leaf in leaves(value)]
    if isinstance(tree, (tuple, list)):
        return [leaf for value in tree for leaf in leaves(value)]
    return [] if tree is None else [np.asarray(tree)]


class Trace(Hook):
    """Everything that agents see and do, in the order of events: observation, action, reward and ends."""

    def __init__(self, before=None):
        self.digest = before.digest if before else b""
        self.seen = {kind: list(before.seen[kind]) if before else [] for kind in ("obs", "act", "rew", "end")}

    def post_act(self, agent):
        obs, act, rew, terminated, truncated, _ = agent.env.last
        event = blake2b(self.digest + bytes([agent.index]), digest_size=16)
        for kind, tree in zip(self.seen, (obs, act, rew, (terminated, truncated)), strict=True):
            for leaf in leaves(tree):
                event.update(np.ascontiguousarray(leaf).tobytes())
                self.seen[kind].append(np.asarray(leaf, np.float64).ravel())
        self.digest = event.digest()

    pre_episode = post_act


def short(arrays):
    """How many numbers, their sum, their norm, and their sum with weights that rise from 0 to 1."""
    flat = np.concatenate([np.asarray(a, np.float64).ravel() for a in arrays] or [np.zeros(0)])
    flat = np.where(np.isfinite(flat), flat, 0)
    numbers = (flat.sum(), np.linalg.norm(flat), flat @ np.linspace(0, 1, len(flat)))
    return [len(flat), *(float(f"{number:.5g}") for number in numbers)]


def digest(arrays):
    """Of the bytes of all arrays."""
    out = blake2b(digest_size=16)
    for array in arrays:
        out.update(np.ascontiguousarray(array).tobytes())
    return out.hexdigest()


def record(robot, trace):
    """Hashes of a robot's run, and its numbers in short."""
    networks = {f"{task_name}/{name}": network for task_name, task in robot.tasks.items()
                for name, network in sorted(task.algorithm.networks().items())}
    tensors = {name: {key: tensor.detach().cpu().numpy() for key, tensor in sorted(network.state_dict().items())}
               for name, network in networks.items()}
    clocked = CLOCKED if robot.driver_name == "cooperative" else CLOCKED_IN_WORKERS
    metrics = {key: value for key, value in sorted(robot.metrics().items()) if not clocked.search(key)}
    hashes = {"trace": robot.trace_hash(), "weights": digest(one for some in tensors.values() for one in some.values())}
    numbers = {f"weights {name}": short(some.values()) for name, some in tensors.items()}
    if robot.driver_name == "cooperative":
        rows = {name: leaves(buffer[:]) for name, buffer in robot.buffers.items() if buffer is not None}
        hashes |= {"events": trace.digest.hex(), "rows": digest(row for some in rows.values() for row in some)}
        numbers |= {f"events {kind}": short(seen) for kind, seen in trace.seen.items()}
        numbers |= {f"rows {name}": short(some) for name, some in rows.items()}
    return {"hashes": hashes, "metrics": metrics, "numbers": numbers}


def kernels():
    """The libraries, and what their kernels make of fixed numbers: forwards, backwards, and functions of the C library."""
    torch.manual_seed(0)
    x, image = torch.randn(32, 64, requires_grad=True), torch.randn(4, 3, 12, 12)
    net = torch.nn.Sequential(torch.nn.Linear(64, 33), torch.nn.Tanh(), torch.nn.LayerNorm(33), torch.nn.Linear(33, 7))
    memory, conv = torch.nn.LSTM(64, 16), torch.nn.Conv2d(3, 8, 3)
    out = [torch.log_softmax(net(x), 1).exp(), memory(x)[0], conv(image).sigmoid(), torch.nn.functional.softplus(x)]
    sum(one.square().mean() for one in out).backward()
    parts = [x, *net.parameters(), *memory.parameters(), *conv.parameters()]
    angles = np.linspace(-3, 3, 1001)
    c = [f(angle) for f in (math.sin, math.cos, math.exp) for angle in angles.tolist()]
    probe = digest([*(one.detach().numpy() for one in out), *(p.grad.numpy() for p in parts), np.sin(angles),
                    np.exp(angles, dtype=np.float32), np.tanh(angles), np.array(c)])
    return {"torch": torch.__version__, "numpy": np.__version__, "gymnasium": gymnasium.__version__,
            "cpu": torch.backends.cpu.get_cpu_capability(), "probe": probe}


# ------------------------------------------------------------------------------------------------------------------- the runs


def built(name, driver, folder, seed, **more):
    """The robot of a case, with `more` options."""
    case = CASES[name]
    experiment = experiments.get(case.experiment)
    options = {**case.options, **more, "trace": True, "seed": seed, "total_steps": 2 * case.half, "driver": driver}
    if driver not in ("cooperative", "threads"):
        options["workers"] = {"count": 2}
    if case.offline:
        options |= {"OfflineHelper.data": str(folder / "rows")}
        if not (folder / "rows").exists():
            with built("dqn", "cooperative", folder, 7) as other:
                other.collect(n_step=400, random=True)
                other.buffers["RL"].save(folder / "rows")
    config = experiment.config
    if case.offline:
        config = {key: value for key, value in config.items() if key not in ("size", "learn_every", "batch_size", "n_agents")}
    module, check = experiment.module(), TaskOptions.__post_init__

    def chosen(task_options):
        check(task_options)
        task_options.native = case.native

    with patch.object(TaskOptions, "__post_init__", chosen):
        return module.build(configs.resolve(module.Config, config, options))


def run(name, driver, folder, resumed=True, **more):
    """Records of a run that is saved in the middle, and of another robot that goes on from there, or None."""
    half = CASES[name].half
    trace = Trace()
    local = [trace] if driver == "cooperative" else []
    with built(name, driver, folder, 5, **more) as robot:
        robot.run(half, local)
        robot.save(folder / "middle")
        middle = Trace(trace)
        before = {task: one.algorithm.updates for task, one in robot.tasks.items()}
        robot.run(half, local)
        for task, one in robot.tasks.items():
            assert before[task] < one.algorithm.updates, f"task {task} learns in the second half"
        whole = record(robot, trace)
    if not resumed:
        return whole, None
    with built(name, driver, folder, 6, **more) as robot:
        robot.load(folder / "middle")
        robot.run(half, [middle] if driver == "cooperative" else [])
        return whole, record(robot, middle)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """With another number of threads sums have another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def golden():
    return json.loads(FILE.read_text())


@pytest.fixture(scope="module")
def exact(golden):
    """Whether bytes of this machine are those of the file."""
    return kernels() == golden["kernels"]


def check(found, golden, exact):
    """Of a run: what differs from the file; nothing where all agrees. A metric that the file does not have is no difference."""
    if exact:
        return {key: (found[part].get(key), value) for part in golden for key, value in golden[part].items()
                if found[part].get(key) != value}
    pairs = {key: (found["numbers"].get(key, [0] * 4), value) for key, value in golden["numbers"].items()}
    out = {key: pair for key, pair in pairs.items() if not alike(*pair)}
    pairs = {key: (found["metrics"].get(key), value) for key, value in golden["metrics"].items()}
    return out | {key: pair for key, pair in pairs.items() if pair[0] != pytest.approx(pair[1], rel=0.01, abs=1e-3, nan_ok=True)}


def alike(found, golden):
    """Whether what `short` returned agrees; sums may be near zero, so they are seen beside the norm."""
    (n, total, norm, rising), (n_golden, *others) = found, golden
    room = TOLERANCE * (abs(others[1]) + 1e-6)
    return n == n_golden and all(abs(a - b) <= room * r for a, b, r in zip((total, norm, rising), others, (n**0.5, 1, n**0.5),
                                                                            strict=True))


@pytest.mark.parametrize(("resumed", "name", "driver"), [
    *((False, *one) for one in RUNS if seldom(*one)),
    *(pytest.param(True, *one, marks=[pytest.mark.slow] * seldom(*one)) for one in RUNS)])
def test_a_run_and_one_that_is_resumed_give_what_the_file_holds(resumed, name, driver, golden, exact, tmp_path):
    if name.startswith("hierarchy"):
        pytest.importorskip("minigrid")
    if driver == "processes" and sys.platform != "linux":
        pytest.skip("workers are forked")
    whole, other = run(name, driver, tmp_path, resumed)
    assert other == (whole if resumed else None), "a run that goes on from its middle"
    assert check(whole, golden["runs"][f"{name} {driver}"], exact) == {}


def test_on_policy_runs_of_workers_are_those_of_greenlets(golden):
    ppo, vector = ([golden["runs"][f"{name} {driver}"]["hashes"] for driver in ("cooperative", "processes")]
                   for name in ("ppo", "vector"))
    assert all(one["weights"] == other["weights"] for one, other in (ppo, vector))
    assert ppo[0]["trace"] == ppo[1]["trace"]


@pytest.mark.parametrize("name", ["dqn", *(
    pytest.param(name, marks=pytest.mark.slow) for name in ("ppo", "vector, off-policy", "sac", "prioritized", "mbpo"))])
def test_one_agent_in_a_thread_does_what_it_does_in_a_greenlet(name, tmp_path):
    """With nobody beside it no order is left to chance: neither of requests nor of updates."""
    (tmp_path / "threads").mkdir()
    thread, greenlet = (run(name, driver, tmp_path / place, n_agents=1) for driver, place in (("threads", "threads"),
                                                                                              ("cooperative", "")))
    assert thread[0] == thread[1], "a run that goes on from its middle"
    assert thread[0]["hashes"].items() <= greenlet[0]["hashes"].items()


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked")
def test_environments_that_ask_the_robots_process_go_on_where_they_were(tmp_path):
    """Thinker's trees ask the model, which is in another process and answers within an agent's run alone."""
    whole, resumed = run("thinker", "processes", tmp_path, mode="sync", serve="central")
    assert whole == resumed


def test_q_learning_without_its_compiled_row_gives_what_the_file_holds(golden, exact, tmp_path, monkeypatch):
    monkeypatch.setattr(QLearning, "row_learner", lambda self: None)
    whole, resumed = run("table", "cooperative", tmp_path)
    assert resumed == whole and check(whole, golden["runs"]["table cooperative"], exact) == {}


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["ppo", "vector"])
def test_on_policy_runs_of_rays_actors_are_those_of_workers(name, golden, exact, tmp_path):
    pytest.importorskip("ray")
    whole, resumed = run(name, "ray", tmp_path, **{"ComputationTask.native": False})
    assert resumed == whole, "a run that goes on from its middle"
    assert check(whole, golden["runs"][f"{name} processes"], exact) == {}


def write(names):
    """Writes the file anew: all of it, or these robots."""
    torch.set_num_threads(1)
    old = json.loads(FILE.read_text()) if FILE.exists() else {"runs": {}}
    if old.get("kernels") != kernels() and names and FILE.exists():
        raise SystemExit("this machine's kernels are not those of the file: write all robots, without a name")
    runs = {}
    for name, driver in RUNS:
        key = f"{name} {driver}"
        if names and name not in names:
            runs |= {key: old["runs"][key]} if key in old["runs"] else {}
            continue
        with TemporaryDirectory() as folder:
            whole, resumed = run(name, driver, Path(folder))
        if differs := check(resumed, whole, True):
            raise SystemExit(f"{key}: the resumed run differs, nothing is written: {differs}")
        print(key, "as before" if old["runs"].get(key) == whole else "written", flush=True)
        runs[key] = whole
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in runs.items())
    FILE.write_text(f'{{"kernels": {json.dumps(kernels())},\n "runs": {{\n{lines}\n }}}}\n')


if __name__ == "__main__":
    if sys.argv[1:2] != ["--write"]:
        raise SystemExit(__doc__)
    write(sys.argv[2:])
