"""Steps per second of GAE and V-trace over [T, B] float32, beside the NumPy loop and the kernels of other libraries.

Every contestant gets what it takes, made beforehand: Tianshou flat arrays (its kernel is compiled by numba), TorchRL tensors of
its own layout, on one thread. Which of TorchRL's is fastest depends on the shape: all run. A library that is not installed is
skipped, with a word. All results are compared with the NumPy loop's before anything is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common import compare, machine, ratio, report
from parl_like.data.returns import gae, vtrace

SHAPES = [(128, 64), (20, 256)]
GAMMA, LAM, MILLISECONDS = 0.99, 0.95, 100.0


class RandomUnroll:
    """Rows of [steps, lanes]; the chain is cut at about one in fifty. No row terminates, so that V counts at each cut.

    V of the next observation is that of the next row inside a segment, as in a real unroll: TorchRL's V-trace takes it from
    there.
    """

    def __init__(self, steps: int, lanes: int) -> None:
        rng = np.random.default_rng([steps, lanes])
        shape = steps, lanes
        self.rew, self.value, value_next, self.log_pi, self.log_mu = rng.normal(size=(5, *shape)).astype(np.float32)
        self.last = rng.random(shape) < 0.02
        self.last[-1] = True
        self.value_next = np.where(self.last, value_next, np.roll(self.value, -1, axis=0))
        self.discount = np.full(shape, GAMMA, np.float32)


def gae_loop(x: RandomUnroll) -> Any:
    delta = x.rew + x.discount * x.value_next - x.value
    out, advantage = np.zeros_like(delta), np.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        advantage = out[t] = delta[t] + x.discount[t] * LAM * np.where(x.last[t], 0.0, advantage)
    return out


def vtrace_loop(x: RandomUnroll) -> Any:
    rho = c = np.minimum(1.0, np.exp(x.log_pi - x.log_mu))
    delta = rho * (x.rew + x.discount * x.value_next - x.value)
    targets, advantages, after = np.zeros_like(delta), np.zeros_like(delta), np.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        after = np.where(x.last[t], 0.0, after)
        advantages[t] = rho[t] * (x.rew[t] + x.discount[t] * (x.value_next[t] + after) - x.value[t])
        after = delta[t] + x.discount[t] * c[t] * after
        targets[t] = x.value[t] + after
    return targets, advantages


def of_gae(x: RandomUnroll) -> dict[str, Callable[[], Any]]:
    return {
        "ours": lambda: gae(x.rew, x.discount, x.value, x.value_next, x.last, LAM),
        "numpy": lambda: gae_loop(x),
    }


def of_vtrace(x: RandomUnroll) -> dict[str, Callable[[], Any]]:
    return {
        "ours": lambda: vtrace(x.rew, x.discount, x.value, x.value_next, x.log_pi - x.log_mu, x.last),
        "numpy": lambda: vtrace_loop(x),
    }


def tianshou_gae(x: RandomUnroll) -> dict[str, Callable[[], Any]]:
    try:
        from tianshou.algorithm.algorithm_base import _gae as kernel  # 2.x
    except ImportError:
        from tianshou.policy.base import _gae_return as kernel  # 1.x and before
    value, value_next, rew, last = (field.T.ravel() for field in (x.value, x.value_next, x.rew, x.last))  # segment behind segment
    return {"tianshou": lambda: kernel(value, value_next, rew, last, GAMMA, LAM).reshape(x.rew.shape[::-1]).T}


def tensors(x: RandomUnroll) -> dict[str, Any]:
    import torch

    names = {"state_value": x.value, "next_state_value": x.value_next, "reward": x.rew, "done": x.last}
    terminated = torch.zeros(x.last.shape, dtype=torch.bool)
    return {name: torch.from_numpy(field) for name, field in names.items()} | {"terminated": terminated}


def torchrl_gae(x: RandomUnroll) -> dict[str, Callable[[], Any]]:
    from torchrl.objectives.value.functional import generalized_advantage_estimate as loop
    from torchrl.objectives.value.functional import vec_generalized_advantage_estimate as vec

    wide = tensors(x)  # [T, F]: time before the last axis, and lanes as features, is its own layout
    tall = {name: field.T.contiguous().unsqueeze(-1) for name, field in wide.items()}  # [B, T, 1]
    return {
        "torchrl loop": lambda: loop(GAMMA, LAM, **wide)[0].numpy(),
        "torchrl vec": lambda: vec(GAMMA, LAM, **tall)[0].squeeze(-1).T.numpy(),
    }


def torchrl_vtrace(x: RandomUnroll) -> dict[str, Callable[[], Any]]:
    import torch
    from torchrl.objectives.value.functional import vtrace_advantage_estimate as loop

    wide = {**tensors(x), "log_pi": torch.from_numpy(x.log_pi), "log_mu": torch.from_numpy(x.log_mu)}

    def run() -> tuple[Any, Any]:
        advantage, target = loop(GAMMA, **wide)
        return target.numpy(), advantage.numpy()

    return {"torchrl loop": run}


CASES: dict[str, tuple[Callable[[RandomUnroll], dict[str, Callable[[], Any]]],
                       list[Callable[[RandomUnroll], dict[str, Callable[[], Any]]]]]] = {
    "gae": (of_gae, [tianshou_gae, torchrl_gae]),
    "vtrace": (of_vtrace, [torchrl_vtrace]),
}


def rate(call: Callable[[], Any], rows: int, milliseconds: float) -> float:
    """Rows per second of about so many milliseconds of calls."""
    begin = perf_counter()
    call()
    calls = max(int(milliseconds / 1000 / (perf_counter() - begin)), 1)
    begin = perf_counter()
    for _ in range(calls):
        call()
    return calls * rows / (perf_counter() - begin)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench returns", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the calls, for a quick look")
    options = parser.parse_args(argv)
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result, lines = measure(options.rounds, MILLISECONDS * options.scale)
    finally:
        torch.set_num_threads(threads)
    report(result, options.json, lines)
    return 0


def measure(rounds: int, milliseconds: float) -> tuple[dict[str, Any], list[str]]:
    result: dict[str, Any] = {"bench": "returns", "unit": "rows/s", "machine": machine(), "skipped": {}, "cases": {}}
    lines = []
    for steps, lanes in SHAPES:
        for case, (own, peers) in CASES.items():
            unroll = RandomUnroll(steps, lanes)
            calls = own(unroll)
            for peer in peers:
                try:
                    calls |= peer(unroll)
                except ImportError as error:
                    result["skipped"][peer.__name__] = f"not installed: {error}"
            expected = calls["numpy"]()
            for name, call in calls.items():  # numba compiles here
                np.testing.assert_allclose(call(), expected, rtol=1e-3, atol=1e-3, err_msg=f"{case} of {name} differs")
            rates = compare({name: lambda call=call: rate(call, steps * lanes, milliseconds) for name, call in calls.items()},
                            rounds)
            ratios = {f"vs {name}": ratio(rates["ours"], rates[name]) for name in rates if name != "ours"}
            result["cases"][f"{case} [{steps}, {lanes}]"] = {"rates": rates, "ratios": ratios}
            took = ", ".join(f"{name} {steps * lanes / r['median'] * 1e6:,.1f} µs" for name, r in rates.items())
            lines.append(f"{case} [{steps}, {lanes}]: {took}; " + ", ".join(f"{name} {r:.1f}×" for name, r in ratios.items()))
    lines += [f"skipped {name}: {why}" for name, why in result["skipped"].items()]
    return result, lines


if __name__ == "__main__":
    raise SystemExit(main())
