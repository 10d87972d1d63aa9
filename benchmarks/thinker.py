"""Thinker: the tree alone, augmented steps and model updates against the bare network, what variants of the network give, memory.

tree      µs of `Tree.select` and `update` with features (A = 5, K = 20, L = 5) per environment and step: random actions, resets
          with one step in two, recorded replies.
acting    A stage of `AugmentedEnv.step` on Sokoban through `ComputationTask.predict`, hidden states shown. After each step the
          bare network (the task's own) does the same number of initial inferences and expansions, in the same batches: time
          ratio, sums over the stage. One augmented step in two goes back to the root, as the original's
          untrained agent does ("decoding" and "latent"); "one reset in ten" is an agent that plans deep.
original  The same stage, beside one whose network is called as the original calls it: images channels first, batch normalisation
          as a layer of its own, states that lie in a dict for each node, are put together for each call and taken apart after
          it. Trees and environments are ours, so the original itself, whose own take 28 to 39 µs per environment and step, is
          slower than that.
variants  The bare network's imaginary step at 16 rows, in other formats and precisions, against float32 as it is.
learning  `helper.update` (a prioritised buffer of real steps), `ComputationTask.learn`, priorities back, against zero_grad,
          forward, losses, backward and Adam on the same batch, ready.
memory    Resident memory of a process after N and 10 N augmented steps with a fake model.

Networks: `published`, (3, 80, 80), 6.6 million parameters; `small`, 10 × 10 planes, 16 channels, strides (1, 1, 2, 1).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import compare, machine, ratio, report
from benchmarks.envs import rate
from parl_like import ComputationTask, OffPolicyHelper, Robot, VectorAgent
from parl_like.algorithms.world_model import WorldModel
from parl_like.data.buffers.prioritized import PrioritizedReplayBuffer
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.envs.sokoban import Levels, SokobanVectorEnv
from parl_like.envs.thinker.augmented import AugmentedEnv
from parl_like.envs.thinker.tree import Tree
from parl_like.models import thinker_parts
from parl_like.models.thinker_net import ThinkerNet
from parl_like.values.batch import Batch

ACTIONS, STAGE, DEPTH = 5, 20, 5
TREE_GOALS = {64: 2.0, 16: 3.0}  # µs
NETS: dict[str, dict[str, Any]] = {"published": {}, "small": {"channels": 16, "strides": (1, 1, 2, 1)}}
OBS = {"published": "image", "small": "planes"}
SEQUENCES = {"published": 4, "small": 16}
COUNTS = (16, 64)

MEMORY = """
import json, sys, psutil
import numpy as np
from parl_like.envs.sokoban import Levels, SokobanVectorEnv
from parl_like.envs.thinker.augmented import AugmentedEnv
n, first = int(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(0)
replies = {"r": rng.random(n) - 0.5, "done": rng.random(n) < 0.02, "v": rng.random(n), "logits": rng.random((n, 5)),
           "hs": np.zeros((n, 8, 2, 2))}
replies = {name: value.astype(np.float32) for name, value in replies.items()}
def ask(rows):
    return {name: value[np.arange(len(rows["op"])) % n] for name, value in replies.items()}
env = AugmentedEnv(SokobanVectorEnv(n, Levels.shipped(10, 4), obs="planes", autoreset_mode="SameStep"), ask, h_shape=(8, 2, 2))
env.reset(seed=0)
actions = np.stack([rng.integers(0, 5, (64, n)), rng.integers(0, 2, (64, n))], 2)
taken, found = 0, {}
for steps in (first, 10 * first):
    while taken < steps:
        env.step(actions[taken // n % 64])
        taken += n
    found[str(steps)] = psutil.Process().memory_info().rss / 2**20
print(json.dumps(found))
"""


# ----------------------------------------------------------------------------------------------------------------------- tree


def tree_steps(n: int) -> Callable[[int], None]:
    rng = np.random.default_rng(n)
    tree = Tree(n, ACTIONS, STAGE, max_depth=DEPTH)
    tree.begin(rng.random(n), rng.random((n, ACTIONS)))
    count = 16 * STAGE
    primary, reset = rng.integers(0, ACTIONS, (count, n)), rng.integers(0, 2, (count, n))
    columns = [(rng.random(n, np.float32), rng.random(n, np.float32), rng.random(n) < 0.02, rng.random((n, ACTIONS), np.float32))
               for _ in range(count)]

    def step(k: int) -> None:
        plan = tree.select(primary[k % count], reset[k % count])
        r, v, done, logits = columns[k % count]
        m, ends = len(plan.expand), len(plan.root_slot)
        tree.update((r[:m], v[:m], done[:m], logits[:m]), (r[:ends], done[:ends], v[:ends], logits[:ends]))

    return step


def trees(rounds: int, scale: float) -> tuple[dict[str, Any], list[str]]:
    calls = {str(n): (tree_steps(n), n) for n in TREE_GOALS}
    rates = compare({name: lambda call=call, n=n: rate(call, n, 300 * scale) for name, (call, n) in calls.items()}, rounds)
    result = {name: {"us": 1e6 / r["median"], "best_us": 1e6 / r["best"], "spread": r["spread"]} for name, r in rates.items()}
    return result, [f"tree, {name} environments: {r['us']:.2f} µs per environment and step, best {r['best_us']:.2f} (goal: ≤ "
                    f"{TREE_GOALS[int(name)]:g}; spread {r['spread']:.2f})" for name, r in result.items()]


# --------------------------------------------------------------------------------------------------------------------- acting


def make_envs(kind: str, n: int) -> SokobanVectorEnv:
    return SokobanVectorEnv(n, Levels.shipped(10, 4), obs=OBS[kind], autoreset_mode="SameStep")


def make_net(kind: str, **options: Any) -> ThinkerNet:
    probe = make_envs(kind, 1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = ThinkerNet(probe.single_observation_space, probe.single_action_space, zero_init=False, **NETS[kind], **options)
    # ends are rare for one that has learned; nothing is expanded behind them
    torch.nn.init.constant_(net.sr_heads.linear["done"].bias, -10.0)
    return net


class ActingSpeed:
    """An augmented environment with a task, and, if wanted, the bare network `beside` it."""

    def __init__(self, kind: str, n: int, resets: float = 0.5, beside: bool = True, **options: Any) -> None:
        self.n, self.resets, self.beside = n, resets, beside
        net = make_net(kind, **options)
        self.task = ComputationTask(WorldModel(net))
        self.envs = AugmentedEnv(make_envs(kind, n), self.ask, K=STAGE, max_depth=DEPTH, h_shape=net.hs_shape)
        self.rng = np.random.default_rng(0)
        self.asked: list[tuple[int, int]] = []
        self.bare: list[float] = []  # per round: environment steps/s
        self.asking: list[float] = []  # per round: share of the time within `predict`
        algorithm: Any = self.task.algorithm
        self.net = algorithm.acting
        self.envs.reset(seed=0)
        self.obs = torch.from_numpy(np.array(self.envs._episodes.obs))
        self.act = torch.zeros(n, dtype=torch.int64)
        with torch.inference_mode():
            self.state = self.net.initial(self.obs, self.act)[2]

    def ask(self, rows: dict[str, Any]) -> Any:
        recurrent = int(np.count_nonzero(rows["op"]))
        self.asked.append((len(rows["op"]) - recurrent, recurrent))
        begin = perf_counter()
        reply = self.task.predict(rows)
        self.seconds += perf_counter() - begin
        return reply

    seconds = 0.0

    @torch.inference_mode()
    def alone(self) -> None:
        for initial, recurrent in self.asked:
            while initial:  # an end by a time limit asks for more rows than there are environments
                m = min(initial, self.n)
                self.net.initial(self.obs[:m], self.act[:m])
                initial -= m
            if recurrent:
                self.net.recurrent({name: value[:recurrent] for name, value in self.state.items()}, self.act[:recurrent],
                                   decode=False)

    def stage(self, steps: int) -> float:
        """Environment steps per second of so many augmented steps."""
        ours = theirs = self.seconds = 0.0
        for _ in range(steps):
            self.asked.clear()
            actions = np.stack([self.rng.integers(0, ACTIONS, self.n), self.rng.random(self.n) < self.resets], 1)
            begin = perf_counter()
            self.envs.step(actions)
            middle = perf_counter()
            if self.beside:
                self.alone()
            ours, theirs = ours + middle - begin, theirs + perf_counter() - middle
        self.bare.append(self.n * steps / theirs)
        self.asking.append(self.seconds / ours)
        return self.n * steps / ours


def acting(kinds: Sequence[str], rounds: int, scale: float) -> tuple[dict[str, Any], list[str]]:
    result: dict[str, Any] = {}
    lines = []
    for kind in kinds:
        for n in COUNTS:
            sides = {"decoding": ActingSpeed(kind, n), "latent": ActingSpeed(kind, n, latent_planning=True),
                     "one reset in ten": ActingSpeed(kind, n, resets=0.1)}
            steps = max(round(STAGE * scale), 2)
            for side in sides.values():
                side.stage(1)
                side.bare.clear(), side.asking.clear()
            rates = compare({name: partial(side.stage, steps) for name, side in sides.items()}, rounds)
            found: dict[str, Any] = {
                name: {"steps_per_s": rates[name]["median"], "spread": rates[name]["spread"],
                       "predict_share": median(side.asking),
                       "over_bare": median(b / r for b, r in zip(side.bare, rates[name]["rounds"], strict=True))}
                       for name, side in sides.items()}
            found["latent_vs_decoding"] = ratio(rates["latent"], rates["decoding"])
            result.setdefault(kind, {})[str(n)] = found
            goal, faster = (" (goal: ≤ 1.10)", " (goal: ≥ 5)") if kind == "published" else ("", "")
            lines += [f"acting, {kind}, {n} environments, {name}: {f['steps_per_s']:,.1f} augmented steps/s, "
                      f"{f['over_bare']:.3f} x the bare network's time{goal if name == 'decoding' else ''}, "
                      f"{1 - f['predict_share']:.3f} outside of predict (spread {f['spread']:.2f})"
                      for name, f in found.items() if name in sides]
            lines.append(f"acting, {kind}, {n} environments: latent planning {found['latent_vs_decoding']:.2f} x "
                         f"decoding{faster}")
    return result, lines


class OriginalSpeed(ActingSpeed):
    """An augmented environment whose network is called as the original calls it."""

    def __init__(self, kind: str, n: int) -> None:
        self.states: dict[int, dict[str, Tensor]] = {}
        self.plain = make_net(kind).eval()
        super().__init__(kind, n, beside=False)

    @torch.no_grad()
    def ask(self, rows: dict[str, Any]) -> Any:
        act = torch.from_numpy(rows["act"])
        with patch.object(thinker_parts, "channels_last", lambda x: x):
            if rows["op"][0] == 0:
                v, logits, state = self.plain.initial(torch.from_numpy(rows["obs"]), act)
                r = done = torch.zeros_like(v)
            else:
                before = [self.states[node] for node in rows["parent"].tolist()]
                state = {name: torch.cat([one[name] for one in before]) for name in before[0]}
                r, done, v, logits, state, _ = self.plain.recurrent(state, act)
        for i, node in enumerate(rows["node"].tolist()):
            self.states[node] = {name: values[[i]] for name, values in state.items()}
        reply = {"r": r, "done": done, "v": v, "logits": logits, "hs": self.plain.hs(state)}
        return {name: value.numpy() for name, value in reply.items()}


def original(kinds: Sequence[str], rounds: int, scale: float) -> tuple[dict[str, Any], list[str]]:
    result: dict[str, Any] = {}
    lines = []
    for kind in kinds:
        for n in COUNTS:
            sides: dict[str, ActingSpeed] = {"ours": ActingSpeed(kind, n, beside=False), "original": OriginalSpeed(kind, n)}
            steps = max(round(STAGE * scale), 2)
            for side in sides.values():
                side.stage(1)
            rates = compare({name: partial(side.stage, steps) for name, side in sides.items()}, rounds)
            found = result.setdefault(kind, {})[str(n)] = {**rates, "ratio": ratio(rates["ours"], rates["original"])}
            goal = " (goal: ≥ 1.00)" if kind == "published" else ""
            lines.append(f"original's way, {kind}, {n} environments: {rates['ours']['median']:,.1f} augmented steps/s, "
                         f"{found['ratio']:.2f} x the original's way{goal}; spreads {rates['ours']['spread']:.2f} and "
                         f"{rates['original']['spread']:.2f}")
    return result, lines


# ------------------------------------------------------------------------------------------------------------------- variants


def imagining(net: ThinkerNet, call: Callable[..., Any], rows: int, form: torch.memory_format, latent: bool,
              ) -> Callable[[], float]:
    """A function that says how many imaginary steps/s the network makes."""
    act = torch.zeros(rows, dtype=torch.int64)
    with torch.inference_mode():
        state = {name: torch.rand(rows, *shape).contiguous(memory_format=form) for name, shape in net.state_shapes().items()}
        call(state, act, decode=False)

    @torch.inference_mode()
    def work() -> float:
        times = 8 if latent else 1
        begin = perf_counter()
        for _ in range(times):
            call(state, act, decode=False)
        return rows * times / (perf_counter() - begin)

    return work


def variants(kinds: Sequence[str], rounds: int, scale: float) -> tuple[dict[str, Any], list[str]]:
    result: dict[str, Any] = {}
    lines = []
    for kind in kinds:
        contestants: dict[str, Callable[[], float]] = {}
        skipped: dict[str, str] = {}
        for latent in (False, True):
            def net(kind: str = kind, latent: bool = latent, **options: Any) -> ThinkerNet:
                return make_net(kind, latent_planning=latent, **options).eval()

            way = "latent" if latent else "decoding"
            plain, last = torch.contiguous_format, torch.channels_last
            made = {"float32": (net(), plain), "channels_last": (net().to(memory_format=last), last),
                    "bfloat16": (net(half=True), plain)}
            for name, (one, form) in made.items():
                contestants[f"{way}, {name}"] = imagining(one, one.recurrent, COUNTS[0], form, latent)
            if scale < 1:
                skipped[f"{way}, compiled"] = "a quick look"
                continue
            try:
                one = net()
                contestants[f"{way}, compiled"] = imagining(one, torch.compile(one.recurrent), COUNTS[0], plain, latent)
            except Exception as error:  # whatever the compiler of this machine says
                skipped[f"{way}, compiled"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        rates = compare(contestants, rounds)
        result[kind] = {name: {"steps_per_s": r["median"], "spread": r["spread"],
                               "ratio": ratio(r, rates[f"{name.split(',')[0]}, float32"])}
                        for name, r in rates.items()} | {name: {"skipped": why} for name, why in skipped.items()}
        lines += [f"bare network, {kind}, {name}: " + (f"skipped ({r['skipped']})" if "skipped" in r else
                  f"{r['steps_per_s']:,.1f} imaginary steps/s, {r['ratio']:.2f} x float32 (spread {r['spread']:.2f})")
                  for name, r in result[kind].items()]
    return result, lines


# ------------------------------------------------------------------------------------------------------------------- learning


class Feeder(VectorAgent):
    """Random actions; stores what a planner would."""

    def run_one_episode(self) -> None:
        env, helper, rng = self.env, self.helpers["model"], np.random.default_rng(0)
        n = env.n
        obs, _ = env.reset()
        while True:
            act = rng.integers(0, ACTIONS, n)
            after, rew, terminated, truncated, info = env.step(act)
            extra = {"baseline": np.zeros(n, np.float32), "action_prob": np.full((n, ACTIONS), 1 / ACTIONS, np.float32)}
            helper.store(obs, act, rew, env.obs_next, terminated, truncated, info, env.valid, extra)
            env.end_episodes()
            obs = after


class Learning:
    """A task with a helper and a full enough buffer, and the bare work of the same update."""

    def __init__(self, kind: str, sequences: int, rows: int) -> None:
        self.sequences = sequences
        self.task = ComputationTask(WorldModel(make_net(kind)), lambda: OffPolicyHelper(
            size=4 * rows, batch_size=sequences, learn_every=rows, warmup=4 * rows, extras=WorldModel(make_net(kind)).extras(),
            buffer=partial(PrioritizedReplayBuffer, alpha=0.6, beta=0.4, ignore_obs_next=True)))
        self.robot = Robot(lambda: make_envs(kind, 16), agent=Feeder, tasks={"model": self.task}, seed=0)
        self.robot.run(StopAfterSteps(rows))
        self.helper: Any = self.robot.agents[0].helpers["model"]
        self.other: Any = self.task.algorithm.clone()
        self.adam = self.other.optimizer(list(self.other.model.parameters()))
        self.other.model.train()
        self.theirs: list[float] = []

    def update(self) -> float:
        """Updates per second: ours is returned, theirs kept."""
        begin = perf_counter()
        rows, feed_back = self.helper.draw(self.sequences)
        result = self.task.learn(rows)
        if feed_back is not None:
            feed_back(result)
        seconds = perf_counter() - begin
        with torch.no_grad():
            batch = self.other.process(Batch({name: torch.from_numpy(value) for name, value in rows.items()}))
        begin = perf_counter()
        self.adam.zero_grad()
        sum(self.other.learn(batch)["loss"]).backward()
        self.adam.step()
        self.theirs.append(1 / (perf_counter() - begin))
        return 1 / seconds


def learning(kinds: Sequence[str], rounds: int, scale: float) -> tuple[dict[str, Any], list[str]]:
    result: dict[str, Any] = {}
    lines = []
    for kind in kinds:
        case = Learning(kind, SEQUENCES[kind], max(round(4000 * scale), 400))
        with case.robot:
            case.update()
            case.theirs.clear()
            times = rounds if kind == "published" else max(round(4 * rounds * scale), 1)
            ours = compare({"ours": case.update}, times)["ours"]
        over = median(b / a for a, b in zip(ours["rounds"], case.theirs, strict=True))
        result[kind] = {"sequences": case.sequences, "updates_per_s": ours["median"], "spread": ours["spread"], "over_bare": over}
        lines.append(f"learning, {kind}, {case.sequences} sequences: {ours['median']:.2f} updates/s, {over:.3f} x the time of "
                     f"the bare update (goal: ≤ 1.15; spread {ours['spread']:.2f})")
    return result, lines


# --------------------------------------------------------------------------------------------------------------------- memory


def memory(steps: int) -> tuple[dict[str, Any], list[str]]:
    out = subprocess.run([sys.executable, "-c", MEMORY, "64", str(steps)], capture_output=True, text=True, check=True)
    mib = json.loads(out.stdout.splitlines()[-1])
    first, last = mib.values()
    result = {"mib": mib, "growth": last / first - 1}
    return result, [f"memory: {first:.1f} MiB after {steps:,} augmented steps, {last:.1f} MiB after {10 * steps:,}: "
                    f"{result['growth']:+.2%} (goal: < 2 %)"]


PARTS = ("tree", "acting", "original", "variants", "learning", "memory")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench thinker", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0,
                        help="share of the work, for a quick look; below 1 nothing is compiled")
    parser.add_argument("--net", choices=tuple(NETS), action="append", help="one network only")
    parser.add_argument("--part", choices=PARTS, action="append", help="one part only")
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    parser.add_argument("--full", action="store_true", help="memory after 10^5 and 10^6 steps")
    options = parser.parse_args(argv)
    kinds, chosen, rounds, scale = options.net or tuple(NETS), options.part or PARTS, options.rounds, options.scale
    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        parts: dict[str, Callable[[], tuple[dict[str, Any], list[str]]]] = {
            "tree": lambda: trees(rounds, scale), "acting": lambda: acting(kinds, rounds, scale),
            "original": lambda: original(kinds, rounds, scale),
            "variants": lambda: variants(kinds, rounds, scale), "learning": lambda: learning(kinds, rounds, scale),
            "memory": lambda: memory(100_000 if options.full else max(round(20_000 * scale), 1000))}
        result: dict[str, Any] = {"bench": "thinker", "machine": machine()}
        lines: list[str] = []
        for name in PARTS:
            if name in chosen:
                result[name], more = parts[name]()
                lines += more
    finally:
        torch.set_num_threads(threads)
    report(result, options.json, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
