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


def rude(seed, n=3, steps=14, back=False):
    """A random AEC environment, and its log: whose turn comes next, who gets what, who joins and who leaves is drawn by chance.

    The same player may move several times in a row, rewards come at any time to anybody who is there, players join in the middle
    and leave before others, by a true end or cut off; with `back` they may join again. Observations are numbers that come once.
    `turns` has (player, observation, action or None, sum of all that it got before, terminated, truncated) of every turn. Skips
    without PettingZoo.
    """
    pettingzoo = pytest.importorskip("pettingzoo")
    names = [f"p{i}" for i in range(n)]
    seen, chosen = gym.spaces.Box(-1, 1e6, (1,), np.float32), gym.spaces.Discrete(3)

    class Rude(pettingzoo.AECEnv):
        metadata = {"name": "rude", "is_parallelizable": False}
        possible_agents = names

        def __init__(self):
            super().__init__()
            self.turns, self.count, self.games = [], 0, 0

        def observation_space(self, agent):
            return seen

        def action_space(self, agent):
            return chosen

        def reset(self, seed=None, options=None):
            self.rng = np.random.default_rng([self.games, rng_seed])
            self.games += 1
            self.left, self.got = steps, dict.fromkeys(names, 0.0)
            self.agents = [name for name in names if self.rng.random() < 0.6] or [names[0]]
            self.waiting = [name for name in names if name not in self.agents]
            for field, value in (("rewards", 0.0), ("_cumulative_rewards", 0.0), ("terminations", False), ("truncations", False)):
                setattr(self, field, dict.fromkeys(self.agents, value))
            self.infos = {name: {} for name in self.agents}
            self._skip_agent_selection = None
            self.turns.append("reset")
            self._give()
            self._next()

        def _give(self):
            for name in self.agents:
                self.rewards[name] = float(self.rng.integers(-2, 3)) if self.rng.random() < 0.7 else 0.0
                self.got[name] += self.rewards[name]
            self._accumulate_rewards()

        def _next(self):
            self.count += 1
            alive = [a for a in self.agents if not (self.terminations[a] or self.truncations[a])]
            if alive:
                self.agent_selection = alive[self.rng.integers(len(alive))]
            if len(alive) < len(self.agents):
                self._deads_step_first()

        def observe(self, agent):
            return np.array([self.count], np.float32)

        def step(self, action):
            player = self.agent_selection
            done = self.terminations[player], self.truncations[player]
            self.turns.append((player, float(self.count), action, self.got[player], *done))
            if any(done):
                self._was_dead_step(action)
                if back:
                    self.waiting.append(player)
                return
            self._cumulative_rewards[player] = 0.0
            self._clear_rewards()
            self.left -= 1
            if self.waiting and self.rng.random() < 0.2:
                name = self.waiting.pop()
                self.agents.append(name)
                self.rewards[name] = self._cumulative_rewards[name] = 0.0
                self.terminations[name] = self.truncations[name] = False
                self.infos[name] = {}
            self._give()
            for name in self.agents:
                if not self.left or self.rng.random() < 0.06:
                    kind = self.terminations if self.rng.random() < 0.5 else self.truncations
                    kind[name] = True
            self._next()

    rng_seed = seed
    return Rude()


def rows_of_turns(turns, player):
    """The rows of one player, by the log of `rude`: [obs, act, reward until its next turn, obs_next, terminated, truncated]."""
    rows, before, got = [], None, 0.0
    for turn in turns:
        if turn == "reset":
            before, got = None, 0.0
        elif turn[0] == player:
            _, obs, act, total, terminated, truncated = turn
            if before is not None:
                rows.append([*before, total - got, obs, terminated, truncated])
                got = total
            if terminated or truncated:  # what it got without a row of its own belongs to none
                before, got = None, total
            else:
                before = obs, act
    return rows
