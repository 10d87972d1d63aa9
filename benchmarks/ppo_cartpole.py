"""PPO on CartPole-v1: 1,024 rows per iteration, 4 epochs × 4 minibatches, 2×64 tanh; 8 and 64 environments. And with the RL
Zoo's settings: 8 × 32 rows, 20 epochs, minibatches of 64."""

from __future__ import annotations

from benchmarks.training import BATCH, ZOO, ppo_by_hand, ppo_careful, ppo_ours, ppo_sb3, run

ITERATIONS = 40


def main(argv: list[str] | None = None) -> int:
    ways = {"parl_like": ppo_ours, "by hand": ppo_by_hand, "by hand, tuned": ppo_careful, "stable-baselines3": ppo_sb3}
    cases = {f"{n} environments": {name: lambda scale, n=n, way=way: way(n, max(round(ITERATIONS * scale), 1) * BATCH)
                                   for name, way in ways.items()} for n in (8, 64)}
    cases["the Zoo's settings"] = {name: lambda scale, way=way: way(8, max(round(ITERATIONS * scale), 1) * ZOO["batch"], **ZOO)
                                   for name, way in ways.items() if name != "by hand"}
    return run("ppo-cartpole", cases, argv)


if __name__ == "__main__":
    raise SystemExit(main())
