"""A robot with one task that learns a policy by IMPALA: from rows that need not be the newest policy's."""

from __future__ import annotations

from parl_like.algorithms.impala import IMPALA
from parl_like.computation_task import BatchRule
from parl_like.env_source import EnvSource
from parl_like.robot import Robot
from parl_like.robots.spaces import PolicyConfig, Positive, Rate, Share, Weight


class Config(PolicyConfig, frozen=True, kw_only=True):
    """One learning batch has `batch` × `unroll` rows; of `n_agents` / `batch` batches one after the other all but the first are
    off-policy.

    Attributes:
        batch: Requests of one optimiser step, at most `n_agents`.
        The rest: see `parl_like.robots.spaces.PolicyConfig`.
    """

    unroll: Positive = 20
    batch: Positive = 8
    lam: Share = 1.0
    lr: Rate = 1e-3
    entropy: Weight = 0.01


def build(config: Config, env: EnvSource = None) -> Robot:
    """The robot of a configuration; `env` in place of its id: a factory, or an environment for one agent."""
    rows = min(config.batch, config.n_agents) * config.unroll
    return config.robot(env, IMPALA, config.total_steps // rows, {"store_policy": True},
                        {"training_rule": BatchRule(max_rows=rows)})
