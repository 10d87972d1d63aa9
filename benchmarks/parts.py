"""Measures what each part of Rainbow and each detail of PPO is worth: the experiment whole, and with one of them left out at a
time.

Every variant is trained with the same seeds, as `parl-like marks` trains, and scored by the evaluation at the end of training.
The tables are written to `docs/parts.md`, the runs behind them to `docs/parts.json`; runs of the same code and settings are kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import machine, report
from parl_like.lab.reports.marks import Mark, measure
from parl_like.lab.reports.plots import bootstrap_interval, iqm

DOCS = Path(__file__).resolve().parents[1] / "docs"
DISTRIBUTION: dict[str, Any] = {"v_min": 0.0, "v_max": 100.0}
NO_NOISE = {"noisy": 0.0, "epsilon": {"start": 1.0, "end": 0.05, "share": 0.2}}
UNIFORM = {"buffer": "ReplayBuffer"}
VALUES = {"model": "MLPQ"}

CASES: dict[str, tuple[str, dict[str, Any], dict[str, dict[str, Any]]]] = {
    # name → (experiment, what all variants have, variant → what it has besides)
    "rainbow": ("dqn-cartpole", {"algorithm": "Rainbow", "total_steps": 20_000, "n_step": 3}, {
        "whole": DISTRIBUTION,
        "one step instead of three": {**DISTRIBUTION, "n_step": 1},
        "no double estimate": {**DISTRIBUTION, "double": False},
        "no dueling streams": {**DISTRIBUTION, "dueling": False},
        "uniform replay instead of priorities": {**DISTRIBUTION, **UNIFORM},
        "random actions instead of noisy layers": {**DISTRIBUTION, **NO_NOISE},
        "values instead of distributions": VALUES,
        "none of the six (DQN)": {**VALUES, **NO_NOISE, **UNIFORM, "n_step": 1, "double": False, "dueling": False},
    }),
    "ppo": ("ppo-pendulum", {"total_steps": 100_000}, {
        "whole": {},
        "advantages not normalised": {"normalize": False},
        "ratio not clipped": {"clip": 1e9},
        "gradients not clipped": {"max_grad_norm": None},
        "constant learning rate": {"lr": 1e-3},
        "rewards not scaled": {"reward_scale": 1.0},
        "one epoch instead of ten": {"epochs": 1},
        "one minibatch instead of 16": {"minibatches": 1},
        "λ = 1 (no bootstrapping in advantages)": {"lam": 1.0},
        "λ = 0 (one step)": {"lam": 0.0},
        "unrolls of 64 of 32 agents instead of 256 of 8": {"n_agents": 32, "unroll": 64},
        "discount 0.99 instead of 0.9": {"gamma": 0.99},
        "with values clipped (0.2)": {"value_clip": 0.2},
        "with the dual clip (3)": {"dual_clip": 3.0},
        "a KL penalty (1) instead of the clip": {"clip": 1e9, "kl_weight": 1.0},
        "an adaptive KL penalty (to 0.01) instead of the clip": {"clip": 1e9, "kl_weight": 1.0, "adaptive_kl": 0.01},
        "stopped at a KL divergence of 0.02": {"target_kl": 0.02},
        "with entropy bonus (0.01)": {"entropy": 0.01},
        "squashed normal distributions": {"distribution": "squashed"},
        "Beta distributions": {"distribution": "beta"},
        "with observations normalised": {"transforms": ["ObservationNormalizer"]},
    }),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench parts", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--only", nargs="+", metavar="VARIANT", help="default: all variants of the cases")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the steps, to try the command itself")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=DOCS / "parts.json")
    parser.add_argument("--runs", type=Path, default=Path("runs/parts"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    cases: dict[str, dict[str, list[Mark]]] = {}
    for name in args.case:
        experiment, shared, variants = CASES[name]
        shared = {**shared, "total_steps": round(shared["total_steps"] * args.scale)}
        cases[name] = {variant: measure([experiment], args.seeds, {**shared, **differs}, file=args.out, runs=args.runs,
                                        jobs=args.jobs, say=lambda line, what=variant: args.json or print(f"{what}: {line}"))
                       for variant, differs in variants.items() if not args.only or variant in args.only}
    page = ["# Parts", "", "Made by `parl-like bench parts`. " + __doc__.partition("\n\n")[0], ""]
    for name, variants in cases.items():
        experiment, shared, _ = CASES[name]
        what = " ".join([experiment, *(f"{key}={value}" for key, value in shared.items() if key != "total_steps")])
        page += [*table(f"`{what}`", variants), ""]
    if not args.only and args.scale == 1.0:
        args.out.with_suffix(".md").write_text("\n".join(page).rstrip() + "\n")
    result = {"bench": "parts", "machine": machine(), "cases": {
        name: {variant: [mark.score for mark in marks] for variant, marks in case.items()} for name, case in cases.items()}}
    report(result, args.json, page)
    return 0


def table(what: str, variants: Mapping[str, Sequence[Mark]]) -> list[str]:
    """Lines of Markdown for one case."""
    some = next(iter(variants.values()))[0]
    lines = [f"## {what}, {some.env_steps:,} steps", "",
             "| variant | scores of seeds 0, 1, … | median | interquartile mean | 95 % interval |", "|---|---|---|---|---|"]
    for variant, marks in variants.items():
        scores = [mark.score for mark in marks]
        low, high = bootstrap_interval(scores, np.random.default_rng(0))
        lines.append(f"| {variant} | {' '.join(f'{score:.0f}' for score in scores)} | {median(scores):.0f} | {iqm(scores):.0f} "
                     f"| {low:.0f} to {high:.0f} |")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
