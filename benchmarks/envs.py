"""Environment steps per second: Sokoban in one thread, generated levels, worker processes, and what passing through costs.

Sokoban, Boxoban's size (10×10, 4 boxes), random actions, automatic reset with the same step: `fresh` draws whole images into a
new array, `in place` only what changes into the same array, `planes` are symbolic; `boards` is the bare engine, `vector env`
gymnasium's interface on top, which is what a run uses; those of other libraries, where they are installed, beside the latter. A
reset is of all boards, observations included. Actions are drawn beforehand.

Uneven: environments that wait 1 ms a step, and one in four 10 ms: many agents on one task (driver "threads", whoever answers
first is served first) against one VectorAgent in lock-step (kind="thread"); environment steps/s of `Robot.run`.

kind="process": `burn` is an environment whose step takes 1 ms of CPU, counted in useful cores (steps/s × 1 ms); CartPole against
gymnasium's AsyncVectorEnv. Pass-through: whether `make_vector_env` puts anything around a vector environment.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import cycle
from time import perf_counter, sleep, thread_time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from benchmarks.common import compare, machine, ratio, report
from benchmarks.envs_peers import PEERS
from parl_like import ComputationTask, Robot, VectorAgent, create_algorithm_func
from parl_like.algorithms import DQN
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.envs.sokoban import SPRITES, Boards, Levels, SokobanVectorEnv
from parl_like.envs.vector import make_vector_env
from parl_like.models import MLPQ

COUNTS, MILLISECONDS, ACTIONS = (16, 64), 200.0, 512
GENERATED = ((7, 2), (10, 4))
BURN, BURNING, CARTPOLES = 0.001, 16, 64
WAITING, UNEVEN_STEPS = 8, 1200


def rate(call: Callable[[int], Any], per_call: int, milliseconds: float) -> float:
    """Units per second of at least so many milliseconds of calls, the first of them not counted. `call` gets its number."""
    call(0)
    calls, begin = 0, perf_counter()
    while True:
        for _ in range(16):
            call(calls)
            calls += 1
        seconds = perf_counter() - begin
        if seconds * 1000 >= milliseconds:
            return calls * per_call / seconds


def steps_of(n: int, levels: Levels, planes: bool, in_place: bool) -> Callable[[int], Any]:
    boards = Boards(n, levels.size, levels.packed, SPRITES, autoreset=2, planes=planes)
    rew, terminated, truncated = np.empty(n, np.float32), np.empty(n, np.bool_), np.empty(n, np.bool_)
    own = np.empty((n, *boards.obs_shape), np.uint8)
    actions = np.random.default_rng(n).integers(0, 5, (ACTIONS, n))

    def step(k: int) -> None:
        obs = own if in_place else np.empty_like(own)
        boards.step(actions[k % ACTIONS], rew, terminated, truncated, obs, None, in_place)

    return step


def vector_of(n: int, levels: Levels, obs: str, copy: bool) -> Callable[[int], Any]:
    envs = SokobanVectorEnv(n, levels, obs=obs, copy=copy, autoreset_mode="SameStep")
    envs.reset(seed=0)
    actions = np.random.default_rng(n).integers(0, 5, (ACTIONS, n))
    return lambda k: envs.step(actions[k % ACTIONS])


def resets_of(n: int, levels: Levels, planes: bool) -> Callable[[int], Any]:
    boards = Boards(n, levels.size, levels.packed, SPRITES, planes=planes)
    obs = np.empty((n, *boards.obs_shape), np.uint8)

    def reset(k: int) -> None:
        boards.reset()
        boards.observe(obs, True)

    return reset


def making(size: int, n_boxes: int) -> Callable[[int], Any]:
    return lambda k: Levels.generate(20, size, n_boxes, seed=1, first=20 * k)


class Burn(gym.Env[Any, Any]):
    """Each step takes `BURN` seconds of CPU; episodes of 1,000 steps."""

    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        end = thread_time() + BURN
        while thread_time() < end:
            pass
        self.t += 1
        return np.zeros(4, np.float32), 1.0, False, self.t == 1000, {}


class WaitingEnv(Burn):
    """Each step waits for `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        sleep(self.seconds)
        self.t += 1
        return np.zeros(4, np.float32), 1.0, False, self.t == 1000, {}


def uneven(rounds: int, steps: int) -> tuple[dict[str, Any], list[str]]:
    """Environments of different pace: apart, and in lock-step."""
    def robot(**options: Any) -> Robot:
        pace = cycle([0.010, 0.001, 0.001, 0.001])
        q = create_algorithm_func(MLPQ, {"obs": Burn.observation_space, "act": Burn.action_space, "hidden": [8]}, DQN, {})
        if options["driver"] == "threads":
            return Robot(env=lambda: WaitingEnv(next(pace)), n_agents=WAITING, tasks={"RL": ComputationTask(q)}, seed=0,
                         **options)
        envs = make_vector_env(lambda: WaitingEnv(next(pace)), WAITING, "thread")
        return Robot(env=lambda: envs, tasks={"RL": ComputationTask(q)}, seed=0, **options)

    def pace_of(**options: Any) -> float:
        with robot(**options) as one:
            one.run(StopAfterSteps(WAITING))
            begin, before = perf_counter(), one.env_steps
            one.run(StopAfterSteps(steps))
            return (one.env_steps - before) / (perf_counter() - begin)

    rates = compare({"agents apart": lambda: pace_of(driver="threads"),
                     "lock-step": lambda: pace_of(driver="cooperative", agent=VectorAgent)}, rounds)
    share = 1 / ratio(rates["agents apart"], rates["lock-step"])
    line = f"uneven environments: {share:.2f} of the wall time of lock-step (goal: below {6 / 7:.2f})"
    return {**rates, "time_share": share}, [line]


def stepping(envs: Any, n: int, n_actions: int) -> Callable[[int], Any]:
    envs.reset(seed=0)
    actions = np.random.default_rng(n).integers(0, n_actions, (ACTIONS, n))
    return lambda k: envs.step(actions[k % ACTIONS])


def workers(rounds: int, milliseconds: float, burning: int, cartpoles: int) -> tuple[dict[str, Any], list[str]]:
    """Worker processes: cores that a heavy environment uses, and a light one against gymnasium's."""
    burn = make_vector_env(Burn, burning, "process")
    cartpole = partial(gym.make, "CartPole-v1")
    ours = make_vector_env(cartpole, cartpoles, "process")
    theirs = AsyncVectorEnv([cartpole] * cartpoles, autoreset_mode=AutoresetMode.SAME_STEP)
    try:
        step = stepping(burn, burning, 2)
        cores = compare({"free": lambda: rate(step, burning, 5 * milliseconds) * BURN}, rounds)
        sides = {"ours": stepping(ours, cartpoles, 2), "AsyncVectorEnv": stepping(theirs, cartpoles, 2)}
        rates = compare({name: lambda call=call: rate(call, cartpoles, milliseconds) for name, call in sides.items()}, rounds)
    finally:
        for envs in (burn, ours, theirs):
            envs.close()
    faster = ratio(rates["ours"], rates["AsyncVectorEnv"])
    lines = [f"process, {burning} environments of 1 ms CPU a step: {cores['free']['median']:.2f} cores used (spread "
             f"{cores['free']['spread']:.2f})",
             f"process, CartPole, {cartpoles} environments: {rates['ours']['median']:,.0f} steps/s, {faster:.2f} x "
             f"AsyncVectorEnv ({rates['AsyncVectorEnv']['median']:,.0f})"]
    return {"cores_used": cores, "cartpole": {**rates, "ratio": faster}}, lines


def passing(levels: Levels) -> tuple[dict[str, Any], list[str]]:
    """Measure what passing through `make_vector_env` costs: it returns the very same object, so there is nothing to time."""
    bare = SokobanVectorEnv(COUNTS[-1], levels, autoreset_mode="SameStep")
    same = make_vector_env(bare) is bare
    between = "the same object, nothing in between" if same else "something in between"
    return {"same_object": same}, [f"passed through make_vector_env: {between}"]


def peers(levels: Levels, rounds: int, milliseconds: float) -> tuple[dict[str, Any], list[str]]:
    """Sokoban of other libraries, those that are installed, each beside ours behind gymnasium's vector interface."""
    result: dict[str, Any] = {}
    lines = []
    for name, make in PEERS.items():
        for n in COUNTS:
            try:
                step, per_call = make(n)
            except ImportError as error:
                result[name] = {"skipped": str(error)}
                lines.append(f"Sokoban, {name}: skipped ({error})")
                break
            ours = vector_of(n, levels, "planes", True)
            rates = compare({name: partial(rate, step, per_call, milliseconds),
                             "ours": partial(rate, ours, n, milliseconds)}, rounds)
            faster = ratio(rates["ours"], rates[name])
            result.setdefault(name, {})[str(n)] = {"rates": rates, "ours_vs": faster}
            lines.append(f"Sokoban, {name}, {n} boards: {rates[name]['median']:,.0f} steps/s (spread "
                         f"{rates[name]['spread']:.2f}); ours through gymnasium's vector interface, fresh planes: {faster:.2f} x")
    return result, lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench envs", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the calls, for a quick look")
    parser.add_argument("--levels", default=None,
                        help="a Boxoban file or folder; without it: the levels that ship with the package")
    options = parser.parse_args(argv)
    levels = Levels.load(options.levels) if options.levels else Levels.shipped(10, 4)
    result, lines = measure(levels, options.rounds, MILLISECONDS * options.scale)
    report(result, options.json, lines)
    return 0


def measure(levels: Levels, rounds: int, milliseconds: float) -> tuple[dict[str, Any], list[str]]:
    result: dict[str, Any] = {"bench": "envs", "unit": "steps/s", "machine": machine(), "sokoban": {}, "reset_us": {},
                              "levels_per_s": {}}
    lines = []
    few = 1 if milliseconds >= 0.1 * MILLISECONDS else 8  # a quick look: an eighth of the processes
    for n in COUNTS:
        calls = {
            "boards, fresh": steps_of(n, levels, False, False), "boards, in place": steps_of(n, levels, False, True),
            "boards, planes fresh": steps_of(n, levels, True, False), "boards, planes in place": steps_of(n, levels, True, True),
            "vector env, fresh": vector_of(n, levels, "image", True),
            "vector env, in place": vector_of(n, levels, "image", False),
            "vector env, planes fresh": vector_of(n, levels, "planes", True),
            "vector env, planes in place": vector_of(n, levels, "planes", False),
        }
        rates = compare({name: lambda call=call: rate(call, n, milliseconds) for name, call in calls.items()}, rounds)
        result["sokoban"][str(n)] = rates
        lines += [f"Sokoban, {n} boards, {name}: {r['median']:,.0f} steps/s (spread {r['spread']:.2f})"
                  for name, r in rates.items()]
        resets = {"image": resets_of(n, levels, False), "planes": resets_of(n, levels, True)}
        rates = compare({name: lambda call=call: rate(call, n, milliseconds) for name, call in resets.items()}, rounds)
        result["reset_us"][str(n)] = {name: 1e6 / r["median"] for name, r in rates.items()}
        lines += [f"Sokoban, {n} boards, reset, {name}: {1e6 / r['median']:.2f} µs (spread {r['spread']:.2f})"
                  for name, r in rates.items()]
    rates = compare({f"{size}x{size}, {boxes} boxes": partial(rate, making(size, boxes), 20, milliseconds)
                     for size, boxes in GENERATED}, rounds)
    result["levels_per_s"] = rates
    lines += [f"Sokoban generator, {name}: {r['median']:,.0f} solvable levels/s (spread {r['spread']:.2f})"
              for name, r in rates.items()]
    for key, part in (("passed_through", passing(levels)), ("peers", peers(levels, rounds, milliseconds)),
                      ("uneven", uneven(rounds, UNEVEN_STEPS // few)),
                      ("process", workers(rounds, milliseconds, BURNING // few, CARTPOLES // few))):
        result[key], more = part
        lines += more
    return result, lines


if __name__ == "__main__":
    raise SystemExit(main())
