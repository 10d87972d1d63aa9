"""True PettingZoo environments of several players, small enough to know all of them."""

import gymnasium as gym
import numpy as np
import pytest


def aec_of(game):
    """A game of ours with all its players. Skips without PettingZoo."""
    pytest.importorskip("pettingzoo")
    from parl_like.envs.games.players import GameAEC

    return GameAEC(game, render_mode="ansi")


def leaving(*lives, masks=False, cut=(), box=False):
    """A parallel environment whose player i leaves after `lives[i]` steps, of its own or, where i is in `cut`, cut off.

    Player i sees i + 1 numbers, each the number of the step, of those with `box` all see two; chooses one of i + 2 actions, of
    which with `masks` the last is not legal; and gets 10 i + its action. Skips without PettingZoo.
    """
    pettingzoo = pytest.importorskip("pettingzoo")
    names = [f"p{i}" for i in range(len(lives))]
    seen = {}
    for i, name in enumerate(names):
        seen[name] = gym.spaces.Box(0, 99, (2 if box else i + 1,), np.float32)
        if masks:
            seen[name] = gym.spaces.Dict({"observation": seen[name], "action_mask": gym.spaces.Box(0, 1, (i + 2,), np.int8)})
    chosen = {name: gym.spaces.Discrete(i + 2) for i, name in enumerate(names)}

    class Leaving(pettingzoo.ParallelEnv):
        metadata = {"name": "leaving"}
        possible_agents = names
        state_space = gym.spaces.Box(0, 99, (1,), np.float32)

        def observation_space(self, agent):
            return seen[agent]

        def action_space(self, agent):
            return chosen[agent]

        def state(self):
            return np.array([self.t])

        def reset(self, seed=None, options=None):
            self.t, self.agents = 0, [name for name, life in zip(names, lives, strict=True) if life]
            return self.look(self.agents), {name: {} for name in self.agents}

        def look(self, agents):
            out = {}
            for name in agents:
                i = names.index(name)
                out[name] = np.full(2 if box else i + 1, self.t, np.float32)
                if masks:
                    out[name] = {"observation": out[name], "action_mask": (np.arange(i + 2) <= i).astype(np.int8)}
            return out

        def step(self, actions):
            assert set(actions) == set(self.agents), (actions, self.agents)
            assert all(chosen[name].contains(act) for name, act in actions.items())
            self.t, acting = self.t + 1, list(self.agents)
            over = {name: self.t >= lives[names.index(name)] for name in acting}
            self.agents = [name for name in acting if not over[name]]
            rewards = {name: 10.0 * names.index(name) + actions[name] for name in acting}
            cuts = {name: over[name] and names.index(name) in cut for name in acting}
            ends = {name: over[name] and not cuts[name] for name in acting}
            return self.look(acting), rewards, ends, cuts, {name: {"t": self.t} for name in acting}

    return Leaving()
