"""parl_like.algorithms: one readable file per family."""

if __name__ != "parl_like.algorithms":
    raise ImportError(f"this folder is the package parl_like.algorithms; it was imported as {__name__!r}")

from parl_like.algorithms.actor_critic import A2C, PPO, ActorCritic
from parl_like.algorithms.dqn import DQN

__all__ = ["A2C", "DQN", "PPO", "ActorCritic"]
