"""PPO on CartPole-v1: 1,024 rows per iteration, 4 epochs × 4 minibatches, 2×64 tanh; 8 and 64 environments."""

from __future__ import annotations

from benchmarks.training import ppo_by_hand, ppo_ours, ppo_sb3, run

STEPS = 40 * 1024


def main(argv: list[str] | None = None) -> int:
    cases = {f"{n} environments": {"parl_like": lambda n=n: ppo_ours(n, STEPS), "by hand": lambda n=n: ppo_by_hand(n, STEPS),
                                   "stable-baselines3": lambda n=n: ppo_sb3(n, STEPS)} for n in (8, 64)}
    return run("ppo-cartpole", cases, argv)


if __name__ == "__main__":
    raise SystemExit(main())
