"""DQN on CartPole-v1: batch 64, 2×64 relu, one environment; learning at every step and at every fourth."""

from __future__ import annotations

from benchmarks.training import dqn_by_hand, dqn_careful, dqn_ours, dqn_sb3, run


def main(argv: list[str] | None = None) -> int:
    ways = {"parl_like": dqn_ours, "by hand": dqn_by_hand, "by hand, tuned": dqn_careful, "stable-baselines3": dqn_sb3}
    cases = {f"learn every {k}": {name: lambda scale, k=k, way=way: way(k, max(round(3000 * scale), 100) * k)
                                  for name, way in ways.items()}
             for k in (1, 4)}
    return run("dqn-cartpole", cases, argv)


if __name__ == "__main__":
    raise SystemExit(main())
