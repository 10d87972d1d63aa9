"""NFSP: who stores what, the environment of all players, its score, and that it improves."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like.algorithms.games import nash_conv
from parl_like.envs.games import Kuhn, Leduc, LiarsDice, RockPaperScissors
from parl_like.envs.games.all_seats import AllSeats
from parl_like.lab import config as configs
from parl_like.robots import nfsp

SHORT = {"n_agents": 2, "total_steps": 400, "best.OffPolicyHelper.warmup": 32, "best.OffPolicyHelper.batch_size": 16,
         "average.ReservoirHelper.batch_size": 8, "average.ReservoirHelper.warmup": 8}


def build(**overrides):
    return nfsp.build(configs.resolve(nfsp.Config, {}, {**SHORT, **overrides}))


@pytest.mark.parametrize("game", [Kuhn(), Kuhn(3), Leduc(), LiarsDice(3)], ids=str)
def test_all_players_of_a_game(game):
    env, rng = AllSeats(game, render_mode="ansi"), np.random.default_rng(0)
    obs, info = env.reset(seed=3)
    for _ in range(30):
        total, done = 0.0, False
        while not done:
            assert obs in env.observation_space and info["player"] == env.state.player
            np.testing.assert_array_equal(obs["obs"], env.state.tensor(info["player"]))
            copy, action = env.clone_state(), int(rng.choice(np.flatnonzero(obs["mask"])))
            obs, rew, done, truncated, info = env.step(action)
            env.restore_state(copy)
            again = env.step(action)
            assert again[1:] == (rew, done, truncated, info) and not truncated
            total += rew
        assert not obs["mask"].any() and total == info["returns"][0] and sum(info["returns"]) == 0
        obs, info = env.reset()
    with pytest.raises(ValueError, match="AllSeats cannot play this game: it needs dynamics 'sequential'"):
        AllSeats(RockPaperScissors())


def test_no_move_of_chance_is_an_agents():
    env = AllSeats(Kuhn())
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    for action in (0, 0):
        *_, done, _, _ = env.step(action)
    assert done
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    with pytest.raises(ValueError, match="AllSeats: render_mode is 'human'; expected 'ansi' or None"):
        AllSeats(Kuhn(), render_mode="human")


def test_every_turn_is_a_row_and_what_best_responses_do_is_kept():
    with build(eta=0.25, **{"total_steps": 1200}) as robot:
        robot.run(1200)
        stored, kept = (sum(agent.helpers[name].steps for agent in robot.agents) for name in ("best", "average"))
        assert robot.env_steps - 4 <= stored <= robot.env_steps, "all but those of open games"
        assert 0.2 * stored < kept < 0.3 * stored
        rows = robot.buffers["best"]
        rewards, ends = rows.columns["rew"][:len(rows)], rows.columns["terminated"][:len(rows)]
        assert not rewards[~ends].any() and set(abs(rewards[ends])) == {0.25, 0.5}, "of 1 and 2, in a range of 4"
        seats = rows.columns["obs.obs"][:len(rows), :2]
        of_end = [rewards[ends & (seats[:, player] == 1)] for player in (0, 1)]
        assert of_end[0].sum() == pytest.approx(-of_end[1].sum()), "what one wins the other loses"


def test_a_row_leads_to_the_next_turn_of_the_same_player():
    with build(eta=0.5) as robot:
        robot.run(300)
        rows = robot.buffers["best"]
        going_on = ~rows.columns["terminated"][:len(rows)]
        before, after = (rows.columns[name][:len(rows)][going_on] for name in ("obs.obs", "obs_next.obs"))
        assert going_on.any() and (before[:, :5] == after[:, :5]).all(), "player and card"


def test_the_score_is_that_of_the_average_policy():
    with build(players=3) as robot:
        robot.run(200)
        numbers = robot.evaluate(4, seed=0)
        policy = nfsp.average_policy(robot)
        assert numbers.score == -nash_conv(Kuhn(3), policy) and abs(sum(policy(Kuhn(3).replay([0, 1, 2]))) - 1) < 1e-6
        state = torch.get_rng_state()
        nfsp.average_policy(robot)
        assert torch.equal(state, torch.get_rng_state())


def test_other_games():
    with build(game="leduc") as robot:
        robot.run(100)
        assert robot.evaluate(2, seed=0).score < 0
