"""Monte Carlo CFR: estimates without bias, published bounds, a distribution beside OpenSpiel's."""

from functools import partial

import numpy as np
import pytest

from parl_like.algorithms.games import CFR, ExternalSampling, OutcomeSampling, mccfr, nash_conv
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


def expected(run, monkeypatch):
    """What a function that draws comes to on average, exactly: it is called once for each way that its draws can go."""
    total, script = 0.0, []
    while True:
        taken, chance = [], 1.0

        def choose(moves, rng):
            nonlocal chance
            possible = [(action, p) for action, p in moves if p > 0]
            i = script[len(taken)] if len(taken) < len(script) else 0
            taken.append((i, len(possible)))
            chance *= possible[i][1]
            return possible[i][0]

        monkeypatch.setattr(mccfr, "draw", choose)
        total = total + run() * chance
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return total
        script = [i for i, _ in taken[:-1]] + [taken[-1][0] + 1]


def sums_by_hand(tree, policy):
    """What one iteration adds to the average, in the mean: what a player does itself to get to a set, times its policy there, by
    how often chance leads there; with three players also by how often an even choice of the others does."""
    out, n = np.zeros(len(tree.sets)), tree.game.n_players
    others = np.ones(len(tree.sets)) if n == 2 else tree.uniform()
    for player in range(n):
        mixed = others.copy()
        mixed[tree.own[player]] = policy[tree.own[player]]
        reach = np.prod(tree.reach(tree.probabilities(mixed)), 0)
        moves = tree.moves[player]
        np.add.at(out, tree.via[moves], reach[tree.parent[moves]] * policy[tree.via[moves]])
    return out


@each_solver
@pytest.mark.parametrize("zeros", ["none", "own", "others", "many"])
@pytest.mark.parametrize("n_players", [2, 3])
def test_one_iteration_estimates_both_sums_of_cfr_without_bias(solver, n_players, zeros, monkeypatch):
    """Exactly, over all that may be drawn: also of actions that some player never takes, and of what comes after them."""
    game = Kuhn(n_players)
    exact = CFR(game, alternating=False)
    tree, rng = exact.tree, np.random.default_rng(0)
    regrets = rng.uniform(0.5, 3.0, len(tree.sets))
    for player in {"none": (), "own": (0,), "others": range(1, n_players), "many": range(n_players)}[zeros]:
        own = regrets[tree.own[player]]
        own[(rng.random(len(own)) < 0.6)] = 0.0 if zeros == "many" else own[0]
        own[rng.integers(2)::4] = 0.0
    exact._policy = policy = tree.normalised(regrets)
    exact.learn()
    one, slots = solver(game), list(zip(tree.keys, tree._slots(), strict=True))
    one._legal = dict.fromkeys(tree.keys, (0, 1))

    def found(sample, column):
        one.rows = {key: (regrets[own].tolist(), [0.0, 0.0]) for key, own in slots}
        sample()
        return np.concatenate([one.rows[key][column] for key in tree.keys])

    for player in range(n_players):
        mean = expected(lambda: found(partial(one._sample, game.start(), player), 0) - regrets, monkeypatch)
        np.testing.assert_allclose(mean[tree.own[player]], exact.regrets[tree.own[player]], atol=1e-12)
        assert np.count_nonzero(mean) == np.count_nonzero(mean[tree.own[player]]), "nobody else learns"
    average = one._sample if n_players == 2 else one._average
    mean = sum(expected(lambda: found(partial(average, game.start(), player), 1), monkeypatch) for player in range(n_players))
    np.testing.assert_allclose(mean, sums_by_hand(tree, policy), atol=1e-12)


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
