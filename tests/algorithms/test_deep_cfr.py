"""Deep CFR: its memories by hand, its first policy, its mark, and that a seed says all."""

import numpy as np
import pytest
import torch

from parl_like.algorithms.games import DeepCFR, nash_conv
from parl_like.algorithms.games.deep_cfr import NetworkPolicy
from parl_like.algorithms.games.game_tree import GameTree
from parl_like.envs.games import Kuhn, MatrixGame, RockPaperScissors, Traits, TurnBased

SMALL = {"hidden": (16,), "traversals": 5, "steps": 20, "policy_steps": 50, "batch_size": 32}


def test_the_rows_of_one_walk_by_hand():
    """Before the first update both players act evenly. In [[2, −1], [−1, 1]] a walk of player 0 stores u(a) − ½ Σ u of both its
    actions, each against one that player 1 draws, and that player 1 acts evenly."""
    one = DeepCFR(TurnBased(MatrixGame([[2, -1], [-1, 1]])), **SMALL)
    one.iterations = 1
    for _ in range(40):
        one._walk(one.game.start(), 0)
    rows = one.advantages[0].take(np.arange(len(one.advantages[0])))
    assert len(rows["target"]) == 40 and set(rows["iteration"].tolist()) == {1.0}
    found = {tuple(values) for values in rows["target"].tolist()}
    assert found == {(1.5, -1.5), (0.5, -0.5), (0.0, 0.0), (-1.0, 1.0)}, "2 or −1 for the first, −1 or 1 for the second"
    seen = one.strategies.take(np.arange(len(one.strategies)))
    assert len(seen["target"]) == 80 and (seen["target"] == 0.5).all() and len(one.advantages[1]) == 0, "player 1 came by twice"


def test_all_walks_before_the_first_training_are_even():
    """Also those after the first rows came, for no network has seen these."""
    one = DeepCFR(Kuhn(), **SMALL)
    one.iterations = 1
    for player in (0, 1):
        for _ in range(40):
            one._walk(one.game.start(), player)
    assert len(one._known[0]) == len(one._known[1]) == 6
    assert all(chances == [0.5, 0.5] for known in one._known for chances in known.values())
    targets = one.strategies.take(np.arange(len(one.strategies)))["target"]
    assert len(targets) and (targets == 0.5).all()


def test_a_network_fits_what_is_in_its_memory():
    one = DeepCFR(Kuhn(), **{**SMALL, "steps": 300, "hidden": (32,), "batch_size": 512}, lr=1e-2)
    one.iterations = 2
    targets = {}
    for card in range(3):
        state = Kuhn().replay([card, (card + 1) % 3])
        for iteration, target in ((1, [0.0, 0.0]), (2, [card - 1.0, 1.0 - card])):
            one.iterations = iteration
            one._remember(one.advantages[0], state, target)
        targets[card] = np.array([card - 1.0, 1.0 - card]) * 2 / 3  # the newer row counts twice
    one.networks[0] = one._trained(one.advantages[0], one.steps, policy=False)
    for card, expected in targets.items():
        state = Kuhn().replay([card, (card + 1) % 3])
        np.testing.assert_allclose(one._numbers(one.networks[0], state), expected, atol=0.1)
    one._known[0].clear()
    assert one._chances(Kuhn().replay([0, 1])) == pytest.approx([0.0, 1.0], abs=0.1)


def test_the_average_policy_fits_the_strategy_memory():
    one = DeepCFR(Kuhn(), **{**SMALL, "policy_steps": 400, "hidden": (32,)}, lr=1e-2)
    with pytest.raises(ValueError, match="no average policy before the first iteration"):
        one.average_policy()
    for one.iterations, target in ((1, [0.1, 0.9]), (3, [0.9, 0.1])):
        one._remember(one.strategies, Kuhn().replay([0, 1]), target)
    assert one.average_policy()(Kuhn().replay([0, 1])) == pytest.approx([0.7, 0.3], abs=0.03), "(0.1 + 3 · 0.9) / 4"


def test_it_improves_and_its_seed_says_all():
    tree, gains, global_state = GameTree(Kuhn()), [], torch.get_rng_state()
    for seed in (0, 0, 1):
        one = DeepCFR(Kuhn(), hidden=(32,), traversals=15, steps=60, policy_steps=300, batch_size=64, seed=seed)
        one.learn(8)
        gains.append(nash_conv(tree, one.average_policy()))
    assert gains[0] == gains[1] != gains[2] and max(gains) < 0.6, "even play gives 0.917 away"
    assert torch.equal(torch.get_rng_state(), global_state), "nothing is drawn from the global generator"


def test_three_players():
    one = DeepCFR(Kuhn(3), **SMALL)
    one.learn()
    assert len(one.average_policy()(Kuhn(3).replay([0, 1, 2]))) == 2 and all(len(memory) for memory in one.advantages)


@pytest.mark.slow
def test_kuhn_after_a_hundred_iterations():
    one = DeepCFR(Kuhn())
    one.learn(100)
    assert nash_conv(Kuhn(), one.average_policy()) <= 0.10


def test_what_it_refuses():
    with pytest.raises(ValueError, match="DeepCFR cannot play this game: it needs dynamics 'sequential'"):
        DeepCFR(RockPaperScissors())
    game = Kuhn()
    game.traits = Traits(n_players=2, styles=("key",))
    with pytest.raises(ValueError, match=r"it needs styles \['key', 'tensor'\]"):
        DeepCFR(game)


def test_illegal_actions_have_no_probability():
    network = torch.nn.Linear(11, 2)
    state = Kuhn().replay([0, 1])
    state.mask = lambda: np.array([0, 1], np.int8)
    assert NetworkPolicy(network)(state).tolist() == [0.0, 1.0]
