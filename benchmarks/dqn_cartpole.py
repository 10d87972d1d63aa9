"""DQN on CartPole-v1: batch 64, 2×64 relu, one environment; learning at every step and at every fourth."""

from __future__ import annotations

from benchmarks.training import dqn_by_hand, dqn_ours, dqn_sb3, run


def main(argv: list[str] | None = None) -> int:
    cases = {f"learn every {k}": {"parl_like": lambda k=k: dqn_ours(k, 3000 * k), "by hand": lambda k=k: dqn_by_hand(k, 3000 * k),
                                  "stable-baselines3": lambda k=k: dqn_sb3(k, 3000 * k)} for k in (1, 4)}
    return run("dqn-cartpole", cases, argv)


if __name__ == "__main__":
    raise SystemExit(main())
