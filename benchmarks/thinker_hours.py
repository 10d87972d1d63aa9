"""Measures what a run with the published settings of Thinker costs: updates of planner and model, 1,000 augmented steps, 5·10⁷
real ones.

Times are CPU times of this process, so other work on the machine matters little; with --threads above 1 they add up all threads'.
Parts that compute on a GPU (--device cuda) take wall time instead.

acting    `--stages` stages of all environments, as `Robot.collect` steps them, after one that is not counted: within the two
          tasks' predictions, and the rest (trees, environments, rows).
updates   `ComputationTask.learn` of a batch of the published size: random rows for the model; for the planner the rows of the
          stages, repeated up to 201 per environment.
GFLOP     Counted for a row or a sequence, and scaled to the batch; a multiplication and an addition are two. And the operations
          of PyTorch that are no views, each of which is at least one kernel on a GPU.
hours     Of one thread here: the times. On paper for a GPU: each part takes what its arithmetic takes at `share` of the GPU's
          float32 peak, or LAUNCH_S for each operation, whichever is more; and the rest of acting as here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.common import machine, report
from parl_like import ComputationTask
from parl_like.lab import config as configs
from parl_like.lab import experiment as experiments
from parl_like.values.batch import Batch

FRAMES = 50_000_000
LAUNCH_S = 5e-6  # from one operation to the next, where the GPU waits for Python: an assumption
TFLOPS = {"A100": 19.5, "RTX 3090": 35.6, "H100": 67.0}  # float32, without tensor cores, as their makers say
SHARES = (0.12, 0.4)  # of it: what the published runs reached on two A100 (4.5 of 39 TFLOP/s), and what large convolutions do


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what is computed, views left out."""

    n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n += not func.is_view
        return func(*args, **(kwargs or {}))


def counted(work: Callable[[], Any]) -> tuple[float, int]:
    """GFLOP and operations of `work`."""
    with FlopCounterMode(display=False) as flops, Operations() as operations:  # type: ignore[no-untyped-call]
        work()
    return flops.get_total_flops() / 1e9, operations.n


class Published:
    """The robot of an experiment, and its parts one by one."""

    def __init__(self, name: str, device: str, overrides: Mapping[str, Any]) -> None:
        experiment = experiments.get(name)
        module = experiment.module()
        self.config = configs.resolve(module.Config, experiment.config, {"device": device, **overrides})
        self.robot = module.build(self.config)
        self.tasks: dict[str, ComputationTask] = self.robot.tasks
        self.plan, self.model = (self.tasks[name].algorithm for name in ("plan", "model"))
        agent = self.robot.agents[0]
        self.unrolls, self.replay = agent.helpers["plan"], agent.helpers["model"]
        for column in self.robot.buffers["plan"].columns.values():
            column[:] = 0  # so that it has its memory, as after the first unroll
        self.lanes, self.K = self.config.n_agents * self.config.env_n, self.config.rec_t
        self.clock = perf_counter if device.startswith("cuda") else process_time
        self.within = dict.fromkeys(self.tasks, 0.0)
        for task_name, task in self.tasks.items():
            task.act = self.timed(task_name, task.act)

    def timed(self, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def timed_act(*args: Any) -> Any:
            begin = self.clock()
            out = act(*args)
            self.within[name] += self.clock() - begin
            return out

        return timed_act

    def act(self, stages: int) -> dict[str, float]:
        """Seconds per 1,000 augmented steps of an environment, all and by part."""
        self.within = dict.fromkeys(self.within, 0.0)
        begin = self.clock()
        self.robot.collect(n_step=stages * self.lanes)
        whole = self.clock() - begin
        per = 1000 / (stages * self.K * self.lanes)
        parts = {f"in {name}": seconds * per for name, seconds in self.within.items()}
        return {"all": whole * per, **parts, "rest": (whole - sum(self.within.values())) * per}

    def draw(self, sequences: int) -> dict[str, np.ndarray]:
        """Rows as replay gives them, of random numbers."""
        rng, window = np.random.default_rng(0), self.replay.window
        rows: dict[str, np.ndarray] = {}
        for name, column in self.robot.buffers["model"].columns.items():
            shape, dtype = (sequences, window.burn_in + window.sequence, *column.shape[1:]), column.dtype
            numbers = rng.random(shape) if dtype.kind == "f" else rng.integers(0, 1 if dtype.kind == "b" else 2, shape)
            rows[name] = numbers.astype(dtype)
        return {**rows, "valid": np.ones(rows["rew"].shape, bool), "weight": np.ones(sequences, np.float32)}

    def unroll(self) -> dict[str, np.ndarray]:
        """One agent's rows since it was last asked, repeated to a whole unroll of each environment."""
        rows, steps = self.unrolls.take(), self.config.actor_unroll_len
        have = len(rows["rew"]) // self.config.env_n
        at = (np.arange(self.config.env_n)[:, None] * have + np.arange(steps) % have).ravel()
        rows = {name: column[at] for name, column in rows.items()}
        return {**rows, "last": np.arange(len(at)) % steps == steps - 1}

    def seconds(self, task: str, rows: Mapping[str, np.ndarray], rounds: int) -> float:
        """Return the seconds of one update, the least of the rounds."""
        times = []
        for _ in range(rounds):
            begin = self.clock()
            self.tasks[task].learn(rows)
            if self.clock is perf_counter:
                torch.cuda.synchronize()
            times.append(self.clock() - begin)
        return min(times)

    def arithmetic(self, unroll: Mapping[str, np.ndarray]) -> dict[str, tuple[float, int]]:
        """Part → (GFLOP, operations): of one row where it acts, of a whole update where it learns."""
        net, device = self.model.acting, self.tasks["model"].device
        one = {name: torch.from_numpy(np.array(column[:1])).to(device) for name, column in unroll.items()}
        obs, act = one["obs.real_states"], torch.zeros(1, dtype=torch.int64, device=device)
        planner = Batch.nest({name: column for name, column in one.items() if name.partition(".")[0] in ("obs", "state")})
        with torch.inference_mode():
            state = net.initial(obs, act)[2]
            out = {"initial": counted(lambda: net.initial(obs, act)),
                   "recurrent": counted(lambda: net.recurrent(state, act, decode=False)),
                   "planner": counted(lambda: self.plan.predict(planner))}

        def learn(task: str, rows: Mapping[str, np.ndarray]) -> tuple[float, int]:
            algorithm = self.tasks[task].algorithm
            batch = Batch.nest({name: torch.from_numpy(column).to(device) for name, column in rows.items()})
            for network in algorithm.networks().values():
                network.train()
            with torch.no_grad():
                batch = algorithm.process(batch)

            def update() -> None:
                loss = algorithm.learn(batch)["loss"]
                (sum(loss) if isinstance(loss, tuple) else loss).backward()

            return counted(update)

        gflop, n = learn("model", self.draw(1))
        out["model update"] = gflop * self.config.model_batch_size, n
        steps = self.config.actor_unroll_len
        gflop, n = learn("plan", {name: column[:steps] for name, column in unroll.items()})
        out["planner update"] = gflop * self.config.env_n, n
        return out


def hours_on_paper(work: Mapping[str, tuple[float, int]], config: Any, every: int, rest: float, flops: float) -> Any:
    """Return the hours of `FRAMES` real steps. `flops`: what a GPU does in a second; `rest`: seconds of acting outside of tasks
    per real step."""
    lanes, updates = config.n_agents * config.env_n, config.updates()
    per_frame = {"initial": 1, "recurrent": config.rec_t - 1, "planner": config.rec_t}

    def part(name: str, rows: int) -> float:
        gflop, operations = work[name]
        return max(rows * gflop * 1e9 / flops, operations * LAUNCH_S)

    acting = sum(calls * part(name, lanes) / lanes for name, calls in per_frame.items())
    learning = part("model update", 1) / every + part("planner update", 1) * updates[1] / config.total_steps
    return FRAMES * (acting + learning + rest) / 3600


def measure(name: str, device: str, stages: int, rounds: int, overrides: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    case = Published(name, device, overrides)
    config, every = case.config, case.replay.learn_every
    with case.robot:
        case.act(1)  # which makes the table of hidden states, and more that is made once
        acting = case.act(stages)
        unroll = case.unroll()
        updates = {"planner": case.seconds("plan", unroll, rounds),
                   "model": case.seconds("model", case.draw(config.model_batch_size), rounds)}
        work = case.arithmetic(unroll)
    planner_every = config.total_steps / config.updates()[1]
    per_step = {"acting": acting["all"] * config.rec_t / 1000, "model": updates["model"] / every,
                "planner": updates["planner"] / planner_every}
    gflop = {"acting": work["initial"][0] + (config.rec_t - 1) * work["recurrent"][0] + config.rec_t * work["planner"][0],
             "model": work["model update"][0] / every, "planner": work["planner update"][0] / planner_every}
    here = FRAMES * sum(per_step.values()) / 3600
    rest = acting["rest"] * config.rec_t / 1000
    paper = {gpu: {str(share): hours_on_paper(work, config, every, rest, tflops * share * 1e12) for share in SHARES}
             for gpu, tflops in TFLOPS.items()}
    result = {"acting_s_per_1000": acting, "update_s": updates, "work": work, "s_per_real_step": per_step,
              "gflop_per_real_step": gflop, "hours_here": here, "hours_on_paper": paper}
    lines = [f"{name}: 1,000 augmented steps take {acting['all']:.2f} s: " + ", ".join(
                 f"{part} {seconds:.2f}" for part, seconds in acting.items() if part != "all"),
             f"{name}: an update takes {updates['model']:.1f} s (model), {updates['planner']:.1f} s (planner)"]
    lines += [f"{name}: {part}: {g:,.2f} GFLOP, {n:,} operations" for part, (g, n) in work.items()]
    lines += [f"{name}: a real step takes {sum(per_step.values()):.3f} s, {sum(gflop.values()):.1f} GFLOP: " + ", ".join(
                  f"{part} {per_step[part]:.3f} s {gflop[part]:.1f} GFLOP" for part in per_step),
              f"{name}: {FRAMES:,} real steps take {here:,.0f} h here"]
    lines += [f"{name}: on paper, {gpu}: " + ", ".join(f"{hours:,.0f} h at {float(share):.0%} of its peak"
                                                      for share, hours in by.items()) for gpu, by in paper.items()]
    return result, lines


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench thinker-hours", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--experiment", action="append", help="thinker-sokoban (the default), thinker-atari, or their -g2")
    parser.add_argument("--stages", type=int, default=1, help="of K augmented steps of all environments, at most 9")
    parser.add_argument("--rounds", type=int, default=1, help="of each update; the least time counts")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the configuration, for a quick look")
    options = parser.parse_args(argv)
    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        result: dict[str, Any] = {"bench": "thinker-hours", "machine": machine()}
        lines: list[str] = []
        for name in options.experiment or ["thinker-sokoban"]:
            result[name], more = measure(name, options.device, options.stages, options.rounds,
                                         configs.parse_assignments(options.set))
            lines += more
    finally:
        torch.set_num_threads(threads)
    report(result, options.json, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
