"""True PettingZoo AEC environments, small enough to know all of them."""

import operator

import gymnasium as gym
import numpy as np
import pytest

from parl_like.envs.games import CHANCE, draw


def aec_of(game):
    """A game of ours; observations have a mask of legal actions, rewards are changes of utility. Skips without PettingZoo."""
    pettingzoo = pytest.importorskip("pettingzoo")

    class AECGame(pettingzoo.AECEnv):
        metadata = {"render_modes": ["ansi"], "is_parallelizable": False}
        render_mode = "ansi"

        def __init__(self):
            super().__init__()
            self.possible_agents = [f"player_{i}" for i in range(game.n_players)]
            space = gym.spaces.Dict({"observation": gym.spaces.Box(0.0, 1.0, (game.tensor_size,), np.float32),
                                     "action_mask": gym.spaces.Box(0, 1, (game.n_actions,), np.int8)})
            self.observation_spaces = dict.fromkeys(self.possible_agents, space)
            self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(game.n_actions))
            self.observation_space, self.action_space = self.observation_spaces.__getitem__, self.action_spaces.__getitem__
            self.np_random = np.random.default_rng()
            self.agents = []

        def reset(self, seed=None, options=None):
            if seed is not None:
                self.np_random = np.random.default_rng(seed)
            self.agents = self.possible_agents[:]
            self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, 0.0)
            self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
            self.infos = {agent: {} for agent in self.agents}
            self._skip_agent_selection = None
            self.state_now = game.start()
            self.move_on(self.possible_agents[0])

        def move_on(self, mover):
            state = self.state_now
            while state.player == CHANCE:
                state.apply(draw(state.chance(), self.np_random))
            if state.is_terminal:
                self.terminations = dict.fromkeys(self.agents, True)
                self.agent_selection = self.agents[(self.agents.index(mover) + 1) % len(self.agents)]
            else:
                self.agent_selection = self.possible_agents[state.player]

        def step(self, action):
            agent = self.agent_selection
            if self.terminations[agent]:
                self._was_dead_step(action)
                return
            before = self.state_now.returns()
            self.state_now.apply(operator.index(action))
            self._cumulative_rewards[agent] = 0.0
            self.move_on(agent)
            gains = np.subtract(self.state_now.returns(), before).tolist()
            self.rewards = dict(zip(self.possible_agents, gains, strict=True))
            self._accumulate_rewards()

        def observe(self, agent):
            player, state = self.possible_agents.index(agent), self.state_now
            mask = state.mask() if state.player == player else np.zeros(game.n_actions, np.int8)
            return {"observation": state.tensor(player), "action_mask": mask}

        def render(self):
            return str(self.state_now)

        def close(self):
            pass

    return AECGame()
