"""Every figure of the documents, measured on this machine, as the tables of docs/benchmarks.md.

    python -m benchmarks.figures                  all of it: a quarter of an hour on two cores that do nothing else
    python -m benchmarks.figures --quick          whether everything runs: minutes; the figures mean nothing
    python -m benchmarks.figures ppo workers      some of it
    make figures ARGS="--out figures"             the JSON of every part, too

Each part is a process of its own, one after the other. Ratios are of neighbouring runs in one process. A spread above 0.1 (best
less worst, over the median) means that the machine was busy; such lines end in "busy: …".
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

Result = dict[str, Any]


def rate(found: Result) -> str:
    return f"{found['median']:,.0f}"


def spreads(rates: Iterable[Result]) -> str:
    """Return what is to be said about the machine; empty: nothing."""
    worst = max(found["spread"] for found in rates)
    return f" busy: {worst:.2f}" if worst > 0.1 else ""


def training(result: Result) -> list[str]:
    names = ["by hand", "by hand, tuned", "stable-baselines3"]
    lines = []
    for case, found in result["cases"].items():
        cells = [f"{rate(found['rates'][name])} ({found['ratios'][f'vs {name}']:.2f}×)" if name in found["rates"] else "–"
                 for name in names]
        lines.append(f"| {result['bench'].split('-')[0].upper()}, {case} | {rate(found['rates']['parl_like'])} | "
                     f"{' | '.join(cells)} |"
                     + spreads(found["rates"].values()))
    return lines


def requests(result: Result) -> list[str]:
    return [f"| {n} agents | " + " | ".join(rate(found["rates"][name])
                                            for name in found["rates"]) + " |" + spreads(found["rates"].values())
            for n, found in result["agents"].items()]


def workers(result: Result) -> list[str]:
    found = result["processes"]
    small, images, busy = found["small"], found["images"], found["busy"]
    given, without = found["weights"]["with"], found["weights"]["without"]
    lines = [
        f"- requests/s with 2 workers of 32 agents: {rate(small['rates']['processes'])} served centrally, "
        f"{rate(small['rates']['replicas'])} with replicas, {rate(small['rates']['cooperative'])} with greenlets of one process; "
        "a process per agent on `multiprocessing.Queue` "
        f"{rate(small['rates']['multiprocessing.Queue'])}" + spreads(small["rates"].values()),
        f"- images of 28 KB: {images['bytes_per_s']['processes']['median'] / 1e9:.2f} GB/s, {images['vs bare copy']:.2f} of a "
        "bare copy between two "
        f"processes ({images['bytes_per_s']['bare copy']['median'] / 1e9:.1f})" + spreads(images["bytes_per_s"].values()),
        *(f"- environments of 200 µs of CPU, {name}: {part['vs cooperative']:.2f} times the steps of greenlets, "
          f"{part['replicas vs cooperative']:.2f} "
          f"with replicas" + spreads(part["steps_per_s"].values()) for name, part in busy.items()),
        f"- new parameters of 26.6 MB act in the workers after {1e3 * given['delay_s']:.0f} ms; longest pause of an agent "
        f"{1e3 * given['longest_pause_s']:.0f} ms ({1e3 * without['longest_pause_s']:.0f} without)",
        f"- a killed worker is replaced in {' '.join(f'{s:.2f}' for s in found['recovery']['seconds'])} s"]
    if "ray" in result:
        rates = result["ray"]["rates"]
        lines.append(f"- Ray actors: {rate(rates['ray'])} requests/s, {rate(rates['ray, replicas'])} with replicas; 16 plain "
                     "actors that call one "
                     f"{rate(rates['plain ray calls'])}" + spreads(rates.values()))
    return lines


def heavy(result: Result) -> list[str]:
    lines = []
    for case, found in result["cases"].items():
        spend, us = case.split()
        cells = []
        for name, one in found["rates"].items():
            against = [f"{ratio:.2f}×" for pair, ratio in found["ratios"].items() if pair.endswith(f" vs {name}")]
            cost = min(run["cpu_us_per_step"] for run in found["runs"][name])
            cells.append(f"{name} {rate(one)}{' (' + ', '.join(against) + ')' if against else ''}, {cost:,.0f} µs")
        lines.append(f"| {int(us):,} µs of {'the processor' if spend == 'spin' else 'waiting'} | {' | '.join(cells)} |"
                     + spreads(found["rates"].values()))
    return lines


def central(result: Result) -> list[str]:
    lines = [f"- {name}: {rate(found)} requests/s, p99 {1e3 * median(result['p99_s'][name]):.2f} ms, "
             f"{median(result['cpu_s_per_million'][name]):.1f} CPU s per million" + spreads([found])
             for name, found in result["rates"].items()]
    return lines + [f"- Ray, {kind.removeprefix(', ')}: {found:.2f} times processes"
                    for kind, found in result.get("ray vs processes", {}).items()]


def replay(result: Result) -> list[str]:
    lines = []
    for case, found in result["cases"].items():
        cells = " | ".join(f"{name} {r['median'] / 1e6:.3g}" for name, r in found["rates"].items())
        lines.append(f"| {case}, million rows/s | {cells} |" + spreads(found["rates"].values()))
    return [*lines, f"- an Atari transition takes {result['atari_bytes_per_row']:,.0f} bytes"]


def sokoban(result: Result) -> list[str]:
    found = result["sokoban"]["64"]
    lines = [f"- Sokoban, 64 boards, {name}: {r['median'] / 1e6:.2f} million steps/s" + spreads([r]) for name, r in found.items()]
    for name, part in result["peers"].items():
        lines += [f"- {name}: skipped ({part['skipped']})"] if "skipped" in part else [
            f"- {name}, {n} boards: {one['rates'][name]['median'] / 1e6:.2f} million steps/s; ours through gymnasium "
            f"{one['ours_vs']:.2f}×"
            for n, one in part.items()]
    return lines


def memory(result: Result) -> list[str]:
    return [f"- {result['agents']} agents with CartPole in one process take {result['robot_mib']:.0f} MiB, "
            f"{result['torch_alone_mib']:.0f} of them torch"]


def pixels(result: Result) -> list[str]:
    lines = []
    for case, found in result["cases"].items():
        parts = [f"{what} {' : '.join(rate(one) for one in found[what].values())}"
                 + (f" ({found['ratios'][what]:.2f}×)" if found["ratios"] else "") for what in ("steps_per_s", "peak_mb")]
        lines.append(f"- {case} on 84 × 84 × 4 frames, ours : stable-baselines3: {', '.join(parts)}"
                     + spreads(found["steps_per_s"].values()))
    return lines


def thinker(result: Result) -> list[str]:
    lines = [f"- tree, {n} environments: {one['us']:.2f} µs per environment and step" for n, one in result["tree"].items()]
    for kind, cases in result["acting"].items():
        lines += [f"- acting, {kind} network, {n} environments, {name}: {one['over_bare']:.2f} times the bare network's time"
                  for n, case in cases.items() for name, one in case.items() if isinstance(one, dict)]
    lines += [f"- the original's way, {kind} network, {n} environments: ours is {one['ratio']:.2f} times as fast"
              for kind, cases in result["original"].items() for n, one in cases.items()]
    return lines + [f"- learning, {kind} network: {one['over_bare']:.2f} times the bare update's time"
                    for kind, one in result["learning"].items()]


# part: (the benchmark and its words, its words for a quick look, what becomes of its JSON)
PARTS: dict[str, tuple[list[str], list[str], Callable[[Result], list[str]]]] = {
    "ppo": (["ppo_cartpole"], ["--rounds", "1", "--scale", "0.05"], training),
    "dqn": (["dqn_cartpole"], ["--rounds", "1", "--scale", "0.05"], training),
    "requests": (["transport", "--agents", "64"], ["--rounds", "1", "--scale", "0.05"], requests),
    "workers": (["transport", "--driver", "processes", "--driver", "ray"], ["--rounds", "1", "--scale", "0.05"], workers),
    "heavy": (["heavy_envs"], ["--rounds", "1", "--seconds", "0.5", "--case", "sleep 200", "--of", "parl_like"], heavy),
    "central": (["central"], ["--rounds", "1", "--scale", "0.02"], central),
    "replay": (["replay"], ["--rounds", "1", "--scale", "0.01"], replay),
    "sokoban": (["envs"], ["--rounds", "1", "--scale", "0.01"], sokoban),
    "pixels": (["pixels"], ["--rounds", "1", "--scale", "0.01"], pixels),
    "memory": (["memory"], ["--agents", "8", "--steps", "2000"], memory),
    "thinker": (["thinker"], ["--rounds", "1", "--scale", "0.05", "--net", "small", "--threads", "1"], thinker),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="whether everything runs; the figures mean nothing")
    parser.add_argument("--out", type=Path, help="folder for the JSON of every part")
    parser.add_argument("--json", action="store_true", help="all results as one JSON object")
    options = parser.parse_args(argv)
    results: Result = {}
    failed = False
    for part in options.parts or PARTS:
        words, quick, lines_of = PARTS[part]
        command = [sys.executable, "-m", f"benchmarks.{words[0]}", *words[1:], *(quick if options.quick else []), "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parent.parent)
        if done.returncode:
            print(f"{part}: failed with code {done.returncode}: {' '.join(command[1:])}", file=sys.stderr)
            failed = True
            continue
        results[part] = json.loads(done.stdout.splitlines()[-1])
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / f"{part}.json").write_text(json.dumps(results[part], indent=1) + "\n")
        if not options.json:
            print("\n".join([f"\n## {part}{' (a quick look: figures mean nothing)' if options.quick else ''}",
                             *lines_of(results[part])]), flush=True)
    if options.json:
        print(json.dumps(results))
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
