"""CFR and CFR+: published figures, OpenSpiel's to the last bit, a plain recursion, and arguments."""

from collections import defaultdict

import numpy as np
import pytest

from parl_like.algorithms.games import CFR, CFRPlus, best_response, expected_returns, game_tree, nash_conv
from parl_like.algorithms.games.game_tree import GameTree
from parl_like.envs.games import CHANCE, TERMINAL, Kuhn, Leduc, TicTacToe, Traits
from parl_like.values import limits


@pytest.mark.parametrize(("game", "solver", "figures"), [
    (Kuhn(), CFR, {10: 0.137398, 100: 0.016452, 300: 0.006068, 1000: 0.001875}),
    (Kuhn(), CFRPlus, {10: 0.065374, 100: 0.002389, 300: 0.000867, 1000: 0.000175}),
    (Leduc(), CFR, {10: 1.777158, 100: 0.191433, 300: 0.071048}),
    (Leduc(), CFRPlus, {10: 1.220878, 100: 0.026832}),
    (Leduc(suits=True), CFRPlus, {10: 1.220878, 100: 0.026832, 300: 0.004581}),
], ids=str)
def test_the_published_figures(game, solver, figures):
    tree = GameTree(game)
    one = solver(tree)
    for iterations, figure in figures.items():
        one.learn(iterations - one.iterations)
        assert nash_conv(tree, one.average_policy()) == pytest.approx(figure, abs=5.1e-7)


def test_the_value_of_kuhn_and_leduc():
    """CFR+ on Leduc after about 110 iterations multiplies what was rounded, so its later digits are those of an order of sums;
    without suits there are other sums."""
    kuhn, leduc = CFR(Kuhn()), CFRPlus(Leduc())
    kuhn.learn(1000)
    assert expected_returns(kuhn.tree, kuhn.average_policy())[0] == pytest.approx(-1 / 18, abs=0.002)
    leduc.learn(300)
    assert expected_returns(leduc.tree, leduc.average_policy())[0] == pytest.approx(-0.085493, abs=3e-6)
    assert nash_conv(leduc.tree, leduc.average_policy()) == pytest.approx(0.004581, rel=0.05)


@pytest.mark.parametrize(("game", "name", "iterations"), [(Kuhn(), "kuhn_poker", 100), (Leduc(suits=True), "leduc_poker", 12)],
                         ids=str)
@pytest.mark.parametrize("solver", [CFR, CFRPlus])
def test_every_bit_is_openspiels(game, name, iterations, solver):
    pyspiel = pytest.importorskip("pyspiel")
    theirs = getattr(pyspiel, f"{solver.__name__}Solver")(pyspiel.load_game(name))
    ours = solver(game)
    for _ in range(iterations):
        theirs.evaluate_and_update_policy()
    ours.learn(iterations)
    for tables in ((ours.policy(), theirs.current_policy()), (ours.average_policy(), theirs.average_policy())):
        for key, history in zip(ours.tree.keys, ours.tree.histories, strict=True):
            state = pyspiel.load_game(name).new_initial_state()
            for action in history:
                state.apply_action(action)
            assert {a: tables[0].table[key][a] for a in state.legal_actions()} == dict(tables[1].action_probabilities(state)), key


def plain_cfr(game, iterations, *, plus=False, linear=False, delay=0, alternating=True):
    """Key → average policy, by a walk over the tree for each update."""
    regrets, sums = defaultdict(lambda: np.zeros(game.n_actions)), defaultdict(lambda: np.zeros(game.n_actions))

    def normalised(weights, legal):
        positive = np.maximum(weights[list(legal)], 0.0)
        out = np.zeros(game.n_actions)
        out[list(legal)] = positive / positive.sum() if positive.sum() > 0 else 1.0 / len(legal)
        return out

    def walk(state, reach, updated, now, weight):
        if state.player == TERMINAL:
            return np.array(state.returns())
        if state.player == CHANCE:
            chances = dict(state.chance())
        else:
            me, key, legal = state.player, state.key(), tuple(state.legal())
            chances = {a: now.setdefault(key, normalised(regrets[key], legal))[a] for a in legal}
        mover, below = state.player, {}
        for action, chance in chances.items():
            further = reach.copy()
            further[mover] *= chance  # of chance: the last
            state.apply(action)
            below[action] = walk(state, further, updated, now, weight)
            state.undo()
        value = sum(chances[action] * one for action, one in below.items())
        if mover in updated:
            for action, one in below.items():
                change[key][action] += np.delete(reach, me).prod() * (one[me] - value[me])
                sums[key][action] += weight * reach[me] * chances[action]
            legals[key] = legal
        return value

    legals, change = {}, defaultdict(lambda: np.zeros(game.n_actions))
    for t in range(1, iterations + 1):
        for updated in [{p} for p in range(game.n_players)] if alternating else [set(range(game.n_players))]:
            change.clear()
            walk(game.start(), np.ones(game.n_players + 1), updated, {}, max(t - delay, 0) if linear else float(t > delay))
            for key, one in change.items():
                regrets[key] = np.maximum(regrets[key] + one, 0.0) if plus else regrets[key] + one
    return {key: normalised(sums[key], legal) for key, legal in legals.items()}


@pytest.mark.parametrize("options", [
    {}, {"plus": True}, {"linear": True, "delay": 3}, {"delay": 2}, {"alternating": False},
    {"plus": True, "linear": True, "alternating": False},
], ids=str)
@pytest.mark.parametrize("game", [Kuhn(), Kuhn(3)], ids=str)
def test_it_is_the_plain_recursion(game, options):
    ours = CFR(game, **options)
    ours.learn(9)
    table, expected = ours.average_policy().table, plain_cfr(game, 9, **options)
    assert table.keys() == expected.keys()
    for key, one in expected.items():
        np.testing.assert_allclose(table[key], one, atol=1e-12, err_msg=key)


def test_cfr_plus_is_cfr_with_its_two_options():
    one, other = CFRPlus(Kuhn()), CFR(Kuhn(), plus=True, linear=True)
    one.learn(20)
    other.learn(20)
    np.testing.assert_array_equal([one.regrets, one.sums], [other.regrets, other.sums])
    one, other = CFRPlus(Kuhn(), plus=False, linear=False), CFR(Kuhn())
    one.learn(20)
    other.learn(20)
    np.testing.assert_array_equal([one.regrets, one.sums], [other.regrets, other.sums])


def test_before_the_first_iteration_everything_is_even():
    one = CFR(Kuhn(), delay=5)
    one.learn(5)
    assert nash_conv(one.tree, one.average_policy()) == pytest.approx(11 / 12), "nothing counts yet"
    assert nash_conv(one.tree, one.policy()) != pytest.approx(11 / 12)
    assert nash_conv(CFR(Kuhn()).tree, CFR(Kuhn()).policy()) == pytest.approx(11 / 12)


def test_three_players_come_near_an_equilibrium():
    one = CFRPlus(Kuhn(3))
    one.learn(300)
    assert nash_conv(one.tree, one.average_policy()) < 0.02


def test_what_it_refuses():
    with pytest.raises(ValueError, match="CFR: delay is -1; expected at least 0"):
        CFR(Kuhn(), delay=-1)
    game = TicTacToe()
    game.traits = Traits(n_players=2, reward="step", styles=("tensor",))
    with pytest.raises(ValueError, match=r"CFRPlus cannot play this game: it needs reward 'terminal' \(it has 'step'\), styles "
                                         r"\['key'\] \(it has \('tensor',\)\)"):
        CFRPlus(game)


def test_the_average_is_a_policy_of_states():
    one = CFR(Kuhn())
    one.learn(50)
    state = Kuhn().replay([2, 0])
    assert one.average_policy()(state).tolist() == one.average_policy().table["2"].tolist()
    assert best_response(Kuhn(), one.average_policy(), 0).value >= expected_returns(Kuhn(), one.average_policy())[0]


def test_a_tree_that_is_too_large_is_refused_while_it_is_walked(monkeypatch):
    n = len(GameTree(Kuhn()).parent)
    for module in (game_tree, limits):
        monkeypatch.setattr(module, "MOST_BYTES", 8 * 3 * (n - 1))
    with pytest.raises(limits.TooLarge, match=rf"CFR: Kuhn.* has more than {n - 1} positions; .* lower the size of the game, or "
                                              "take ExternalSampling"):
        CFR(Kuhn())
    for module in (game_tree, limits):
        monkeypatch.setattr(module, "MOST_BYTES", 8 * 3 * n)
    CFR(Kuhn())
