"""Monte Carlo CFR: estimates without bias, published bounds, a distribution beside OpenSpiel's."""

import numpy as np
import pytest

from parl_like.algorithms.games import CFR, ExternalSampling, OutcomeSampling, nash_conv
from parl_like.algorithms.games.game_tree import GameTree
from parl_like.envs.games import Kuhn, Leduc, Traits

each_solver = pytest.mark.parametrize("solver", [ExternalSampling, OutcomeSampling])


@each_solver
def test_one_iteration_estimates_the_regrets_of_cfr(solver):
    """The mean over many first iterations, for all players at once: from even policies R of MCCFR is that of CFR."""
    exact, n = CFR(Kuhn(), alternating=False), 3000
    exact.learn()
    mean, square = np.zeros((2, 24))
    for seed in range(n):
        one = solver(Kuhn(), seed=seed)
        one._sample(Kuhn().start(), seed % 2)
        found = np.zeros(24)
        for i, key in enumerate(exact.tree.keys):
            if key in one.rows and exact.tree.players[i] == seed % 2:
                found[2 * i:2 * i + 2] = one.rows[key][0]
        mean += found / (n / 2)
        square += found ** 2 / (n / 2)
    error = np.sqrt((square - mean ** 2) / (n / 2))
    np.testing.assert_array_less(abs(mean - exact.regrets), 4 * error + 1e-9)


@pytest.mark.parametrize(("solver", "n"), [(ExternalSampling, 4000), (OutcomeSampling, 15_000)])
def test_one_iteration_from_an_uneven_policy_estimates_both_sums_of_cfr(solver, n):
    """R, and S: that of CFR adds what a player does to get to each state, those of samples by how often chance deals it, 1/6."""
    game, exact = Kuhn(), CFR(Kuhn(), alternating=False)
    weights = np.random.default_rng(0).uniform(0.5, 3.0, 24)
    exact._policy = exact.tree.normalised(weights)
    exact.learn()
    expected = np.stack([exact.regrets, exact.sums / 6])
    one, start = solver(game, seed=1), {key: weights[2 * i:2 * i + 2] for i, key in enumerate(exact.tree.keys)}
    one._legal, (mean, square) = dict.fromkeys(start, (0, 1)), np.zeros((2, 2, 24))
    for _ in range(n):
        found = np.zeros((2, 24))
        for player in (0, 1):
            one.rows = {key: (row.tolist(), [0.0, 0.0]) for key, row in start.items()}
            one._sample(game.start(), player)
            found += np.array([one.rows[key] for key in exact.tree.keys]).transpose(1, 0, 2).reshape(2, 24)
            found[0] -= weights
        mean += found / n
        square += found ** 2 / n
    error = np.sqrt((square - mean ** 2) / n)
    np.testing.assert_array_less(abs(mean - expected), 4.5 * error + 1e-9)


def test_averages_of_three_players_do_not_depend_on_what_the_third_does():
    """The sums of a set are, for each player, what it does itself to get there, by how often chance deals the card and an even
    choice of the others leads there: whatever the others' policies are, also where they never go there."""
    game, n = Kuhn(3), 12_000
    tree = GameTree(game)
    rng = np.random.default_rng(0)
    regrets = rng.uniform(0.5, 3.0, len(tree.sets))
    regrets[tree.own[2].start:tree.own[2].stop:4] = 0.0  # what the third player never does
    policy = tree.normalised(regrets)
    even = tree.uniform()
    expected = np.zeros(len(tree.sets))
    for player in range(3):
        mixed = np.where(tree.players[tree.sets] == player, 1.0, even)
        mixed[tree.own[player]] = policy[tree.own[player]]
        reach = np.prod(tree.reach(tree.probabilities(mixed)), 0)  # chance, the player by its policy, the others evenly
        moves = tree.moves[player]
        np.add.at(expected, tree.via[moves], reach[tree.parent[moves]] * policy[tree.via[moves]])
    start = {key: regrets[own] for key, own in zip(tree.keys, tree._slots(), strict=True)}
    one = ExternalSampling(game, seed=1)
    one._legal, (mean, square) = dict.fromkeys(start, (0, 1)), np.zeros((2, len(tree.sets)))
    for _ in range(n):
        one.rows = {key: (row.tolist(), [0.0, 0.0]) for key, row in start.items()}
        for player in range(3):
            one._average(game.start(), player)
        found = np.concatenate([one.rows[key][1] for key in tree.keys])
        mean += found / n
        square += found ** 2 / n
    np.testing.assert_array_less(abs(mean - expected), 4.5 * np.sqrt((square - mean ** 2) / n) + 1e-9)


def test_external_sampling_of_three_players_comes_near_an_equilibrium():
    one = ExternalSampling(Kuhn(3), seed=0)
    one.learn(1500)
    assert nash_conv(Kuhn(3), one.average_policy()) < 0.2


@pytest.mark.parametrize(("game", "bound"), [(Kuhn(), 0.17), (Kuhn(3), 0.22)], ids=str)
def test_outcome_sampling_after_ten_thousand_iterations(game, bound):
    one = OutcomeSampling(game, seed=1)
    one.learn(10_000)
    assert nash_conv(game, one.average_policy()) < bound


def test_outcome_sampling_on_leduc():
    one = OutcomeSampling(Leduc(), seed=0)
    one.learn(10_000)
    assert nash_conv(Leduc(), one.average_policy()) < 3.07


def test_external_sampling_on_kuhn():
    tree, found = GameTree(Kuhn()), []
    for seed in range(3):
        one = ExternalSampling(Kuhn(), seed=seed)
        for iterations in (100, 1000, 5000):
            one.learn(iterations - one.iterations)
            found.append(nash_conv(tree, one.average_policy()))
    means = np.reshape(found, (3, 3)).mean(0)
    assert 0.1 < means[0] < 0.3 and 0.025 < means[1] < 0.1 and means[2] < 0.04


@pytest.mark.slow
@pytest.mark.parametrize(("solver", "module", "name"), [
    (ExternalSampling, "external_sampling_mccfr", "ExternalSamplingSolver"),
    (OutcomeSampling, "outcome_sampling_mccfr", "OutcomeSamplingSolver"),
])
def test_means_are_openspiels(solver, module, name):
    pyspiel = pytest.importorskip("pyspiel")
    module = pytest.importorskip(f"open_spiel.python.algorithms.{module}")
    game, tree, gains = pyspiel.load_game("kuhn_poker"), GameTree(Kuhn()), []
    for seed in range(30):
        np.random.seed(seed)
        theirs, ours = getattr(module, name)(game), solver(Kuhn(), seed=seed)
        for _ in range(1000):
            theirs.iteration()
        ours.learn(1000)
        policy = theirs.average_policy()
        table = {}
        for key, history in zip(tree.keys, tree.histories, strict=True):
            state = game.new_initial_state()
            for action in history:
                state.apply_action(action)
            table[key] = np.array([policy.action_probabilities(state)[a] for a in (0, 1)])
        gains.append((nash_conv(tree, lambda state, table=table: table[state.key()]), nash_conv(tree, ours.average_policy())))
    difference = np.subtract(*np.transpose(gains))
    assert abs(difference.mean()) < 3.5 * difference.std() / np.sqrt(len(gains))


@each_solver
def test_the_seed_says_all(solver):
    tables = []
    for seed in (3, 3, 4):
        one = solver(Kuhn(), seed=seed)
        one.learn(40)
        one.learn(10)
        tables.append({key: row.tolist() for key, row in one.average_policy().table.items()})
        assert one.iterations == 50
    assert tables[0] == tables[1] != tables[2]


@each_solver
def test_what_it_refuses(solver):
    game = Kuhn()
    game.traits = Traits(n_players=2, dynamics="simultaneous")
    with pytest.raises(ValueError, match=f"{solver.__name__} cannot play this game: it needs dynamics 'sequential'"):
        solver(game)
    with pytest.raises(ValueError, match="epsilon is 0; expected above 0, at most 1"):
        OutcomeSampling(Kuhn(), epsilon=0)
