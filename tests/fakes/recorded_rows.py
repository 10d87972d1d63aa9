"""Small recorded data sets for experiments that learn from rows."""

import functools
import tempfile
from contextlib import closing

import gymnasium as gym
import numpy as np

from parl_like.data.datasets import from_episodes
from parl_like.lab import experiment as experiments
from parl_like.lab.recording import at_random


@functools.cache
def small_data(env_id, episodes=12):
    """The directory of some episodes of random actions, made once in a process."""
    with closing(gym.make(env_id)) as env:
        played = at_random(env_id, episodes, np.random.default_rng(0))
        buffer = from_episodes(played, env.observation_space, env.action_space)
    folder = tempfile.mkdtemp(prefix="small_data_")
    buffer.save(f"{folder}/rows")
    return f"{folder}/rows"


def offline(name):
    """Return the overrides of a short run of an experiment that learns from recorded rows; {} of another."""
    config = experiments.get(name).config
    if "data" not in config:
        return {}
    env = config["env"] if isinstance(config["env"], str) else config["env"]["id"]
    few = {"OfflineHelper": {"total_steps": 40, "batch_size": 16, "n_agents": 1, "eval_score": "mean_return"},
           "WarmStartHelper": {"total_steps": 160, "batch_size": 16, "warmup": 32, "offline_updates": 5, "n_agents": 2,
                               "eval_score": "mean_return"}}
    agents = {"n_agents": 4, "total_steps": 800, "unroll": 32}
    return {**few.get(config.get("helper"), agents), "data": small_data(env)}
