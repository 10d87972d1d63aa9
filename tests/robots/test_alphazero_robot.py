"""AlphaZero's robot: whose rows say what, one batch for all agents, its score, and what is refused."""

import numpy as np
import pytest

from parl_like.envs.games import TicTacToe, uniform
from parl_like.lab import config as configs
from parl_like.robots import alphazero

SHORT = {"n_agents": 4, "total_steps": 400, "simulations": 6, "eval_games": 5, "warmup": 64, "batch_size": 32}


def build(**overrides):
    return alphazero.build(configs.resolve(alphazero.Config, {}, {**SHORT, **overrides}))


def test_every_position_of_a_game_is_a_row_with_what_search_found_and_who_won():
    with build(n_agents=1) as robot:
        robot.run(120)
        assert robot.tasks["RL"].learns > 0
        rows = robot.buffers["RL"]
        obs, mask, policy, z = (rows.columns[name][:len(rows)] for name in ("obs.obs", "obs.mask", "search_policy", "rew"))
        assert rows.columns["terminated"][:len(rows)].all() and set(z) <= {-1.0, 0.0, 1.0}
        assert policy.sum(1) == pytest.approx(1) and not policy[mask == 0].any()
        assert np.allclose((policy * 6).round(), policy * 6, atol=1e-5), "shares of 6 visits"
        stored = sum(agent.helpers["RL"].steps for agent in robot.agents)
        assert robot.env_steps - 9 <= stored <= robot.env_steps, "all but those of the open game"
        first = obs.sum(1) == 0  # of each game one row
        assert first.sum() == robot.episodes


def test_a_row_has_the_result_of_who_moved():
    """In each game that somebody won, the player of the last row has won, and the signs of rows alternate."""
    with build(n_agents=1) as robot:
        robot.run(80)
        agent = robot.agents[0]
        rows = robot.buffers["RL"]
        n = len(rows)
        starts = np.flatnonzero(rows.columns["obs.obs"][:n].sum(1) == 0).tolist() + [n]
        games = [rows.columns["rew"][a:b] for a, b in zip(starts, starts[1:], strict=False)]
        assert len(games) == robot.episodes and agent.helpers["RL"].steps == n
        for z in games:
            assert z[-1] == 1 and (z[1:] == -z[:-1]).all() or not z.any() and len(z) == 9


def test_predictions_of_all_agents_are_one_batch():
    with build(n_agents=8, total_steps=4000) as robot:
        robot.run(100)
        counters = robot.wrappers["RL"].predictions.counters
        assert counters.requests / counters.batches > 5


def test_the_score():
    with build() as robot:
        robot.run(60)
        first, again = (robot.evaluate(1, seed=0).score for _ in range(2))
        assert 0 <= first <= 1 and first == again
    with build(eval_simulations=0, opponent=10) as robot:
        robot.run(60)
        assert 0 <= robot.evaluate(1, seed=0).score <= 1


def test_games_that_are_not_lost():
    """The first free cell wins from the first seat of itself, which is over after seven moves, and loses from the second."""
    game = TicTacToe()
    first = lambda states: [min(state.legal()) for state in states]  # noqa: E731
    same = lambda state: np.eye(9)[min(state.legal())]  # noqa: E731
    assert alphazero.not_lost(game, first, same, 3, seed=0) == 0.5
    assert 0.2 < alphazero.not_lost(game, first, uniform, 100, seed=0) < 0.95


def test_what_is_refused():
    for name, value in (("simulations", 0), ("alpha", 0.0), ("share", 1.5), ("drawn_moves", -1)):
        with pytest.raises(ValueError, match=f"{name}"):
            alphazero.AlphaZeroAgent(**{name: value})
