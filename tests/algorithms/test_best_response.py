"""Best responses and what follows from them: against their definition, on games of every kind, and beside OpenSpiel."""

import math
from collections import defaultdict
from functools import cache

import numpy as np
import pytest

from parl_like.algorithms.games import best_response, expected_returns, exploitability, nash_conv
from parl_like.algorithms.games.game_tree import GameTree
from parl_like.envs.games import CHANCE, TERMINAL, Game, Kuhn, Leduc, State, TablePolicy, TicTacToe, Traits, uniform


def mean_by_definition(state, policy):
    """[n_players]: expected utility of going on from a state, by a walk over all that can happen."""
    player = state.player
    if player == TERMINAL:
        return np.array(state.returns())
    moves = state.chance() if player == CHANCE else [(a, float(policy(state)[a])) for a in state.legal()]
    total = np.zeros(state.game.n_players)
    for action, chance in moves:
        state.apply(action)
        total += chance * mean_by_definition(state, policy)
        state.undo()
    return total


def best_by_definition(game, policy, player):
    """Key → best action, and the value, of one player against a policy."""
    nodes, state = defaultdict(list), game.start()

    def moves(at):
        if at.is_terminal or at.player == CHANCE:
            return at.chance() if not at.is_terminal else []
        chances = [1.0] * game.n_actions if at.player == player else policy(at)
        return [(a, float(chances[a])) for a in at.legal()]

    def collect(reach):
        if state.player == player:
            nodes[state.key()].append((tuple(state.history), reach))
        for action, chance in moves(state):
            state.apply(action)
            collect(reach * chance)
            state.undo()

    collect(1.0)

    @cache
    def action(key):
        return max(game.replay(nodes[key][0][0]).legal(), key=lambda a: math.fsum(r * value((*h, a)) for h, r in nodes[key]))

    @cache
    def value(history):
        at = game.replay(history)
        if at.is_terminal:
            return at.returns()[player]
        if at.player == player:
            return value((*history, action(at.key())))
        return math.fsum(chance * value((*history, a)) for a, chance in moves(at))

    total = value(())
    return {key: action(key) for key in nodes}, total


def random_policy(tree, seed):
    """A policy with some actions that it never takes."""
    rng = np.random.default_rng(seed)
    return tree.policy_of(tree.normalised(rng.random(len(tree.sets)) * (rng.random(len(tree.sets)) < 0.7)))


class Uneven(Game):
    """A game whose information sets lie at different depths: chance says whether player 1 moves first, unseen by player 0; player
    0 then guesses what chance did, and may guess again where it was wrong."""

    def __init__(self):
        self.n_players, self.n_actions, self.tensor_size, self.max_moves = 2, 3, 1, 3
        self.traits, self.utility_range = Traits(n_players=2, utility="general"), (-2.0, 5.0)

    def start(self):
        return UnevenState(self)


class UnevenState(State):
    @property
    def player(self):
        if not self.history:
            return CHANCE
        moved = self.history[1:]
        if self.history[0] == 1 and not moved:
            return 1
        own = moved[self.history[0]:]
        return 0 if not own or (len(own) == 1 and own[0] != self.history[0] and own[0] < 2) else TERMINAL

    def legal(self):
        return {CHANCE: (0, 1), 1: (0, 1), 0: (0, 1, 2), TERMINAL: ()}[self.player]

    def chance(self):
        return [(0, 0.25), (1, 0.75)]

    def returns(self):
        own = self.history[1 + self.history[0]:] if self.player == TERMINAL else []
        right = bool(own) and own[-1] == self.history[0]
        first = self.history[1] if self.history[0] else 0
        return (right * (3.0 + first) - len(own) + 0.5 * own.count(2), right * 5.0 - 2.0 * first) if own else (0.0, 0.0)

    def key(self, player=None):
        own = self.history[1 + self.history[0]:] if self.history and self.player == 0 else []
        return f"{self._viewer(player)}{f'after {own[0]}' if own else 'first'}"

    tensor = None


@pytest.mark.parametrize("game", [Kuhn(), Kuhn(3), Leduc(), Uneven()], ids=lambda game: type(game).__name__)
@pytest.mark.parametrize("seed", range(3))
def test_values_and_actions_are_those_of_the_definition(game, seed):
    tree = GameTree(game)
    policy = uniform if seed == 0 else random_policy(tree, seed)
    np.testing.assert_allclose(expected_returns(tree, policy), mean_by_definition(game.start(), policy), atol=1e-13)
    for player in range(game.n_players):
        found, (actions, value) = best_response(tree, policy, player), best_by_definition(game, policy, player)
        assert found.value == pytest.approx(value, abs=1e-13)
        assert found.actions == actions
        seats = [found if p == player else policy for p in range(game.n_players)]
        assert expected_returns(tree, seats)[player] == pytest.approx(value, abs=1e-13), "it is a policy that gets so much"


def test_exploitability_is_a_share_of_nash_conv():
    assert exploitability(Kuhn(), uniform) == pytest.approx(11 / 24, abs=1e-12)
    assert exploitability(Leduc(), uniform) == pytest.approx(2.373611, abs=5e-7)
    assert exploitability(Kuhn(3), uniform) == pytest.approx(2.0625 / 3, abs=1e-12)


@pytest.mark.slow
def test_a_game_without_cards():
    """A draw by perfect play, so whoever always takes the first free cell loses as x or o against the best."""
    tree = GameTree(TicTacToe())
    assert len(tree.parent) == 549_946 and len(tree.keys) == 4_520  # positions by history; boards with a free cell and no line

    def first(state):
        return np.eye(9)[state.legal()[0]]

    assert [best_response(tree, first, player).value for player in (0, 1)] == [1.0, 1.0]
    assert expected_returns(tree, uniform)[0] == pytest.approx(0.296825, abs=1e-6)


@pytest.mark.parametrize(("game", "name"), [(Kuhn(), "kuhn_poker"), (Leduc(suits=True), "leduc_poker")], ids=str)
def test_the_same_as_openspiel(game, name):
    pyspiel = pytest.importorskip("pyspiel")
    theirs = pyspiel.load_game(name)
    assert nash_conv(game, uniform) == pytest.approx(pyspiel.nash_conv(theirs, pyspiel.UniformRandomPolicy(theirs)), abs=1e-12)


def test_bad_policies_and_players():
    for wrong in ([1.0], [0.5, 0.6], [1.5, -0.5], [np.nan, 1.0]):
        for policy in (lambda state, wrong=wrong: wrong, TablePolicy({"0": np.array(wrong)})):
            with pytest.raises(ValueError, match="the policy of player . gave"):
                nash_conv(Kuhn(), policy)
    with pytest.raises(ValueError, match="player is 2; expected 0 to 1"):
        best_response(Kuhn(), uniform, 2)
    with pytest.raises(ValueError, match=r"3 policies; expected one, or 2 for Kuhn\(n_players=2\)"):
        expected_returns(Kuhn(), [uniform] * 3)


@pytest.mark.parametrize("call", [lambda game: best_response(game, uniform, 0), lambda game: nash_conv(game, uniform),
                                  lambda game: exploitability(game, uniform), lambda game: expected_returns(game, uniform)])
def test_missing_traits_are_named(call):
    game = Kuhn()
    game.traits = Traits(n_players=2, dynamics="simultaneous", chance="sampled")
    with pytest.raises(ValueError, match="cannot play this game: it needs dynamics 'sequential' .it has 'simultaneous'., chance "
                                         "'explicit' or 'deterministic' .it has 'sampled'."):
        call(game)


class Confused(Kuhn):
    """Keys of a player that does not see whose turn it was, or that forgets whether it has moved."""

    def __init__(self, key):
        super().__init__()
        self.key_of = key

    def start(self):
        state = super().start()
        state.key = lambda player=None: self.key_of(state)
        return state


def test_states_that_share_a_key_wrongly():
    with pytest.raises(ValueError, match="states with the key 'me' differ in who moves or in what is legal"):
        GameTree(Confused(lambda state: "me"))
    forgetful = Confused(lambda state: f"player {state.player}")
    with pytest.raises(ValueError, match="key 'player 0' come after different moves of player 0; a best response"):
        best_response(forgetful, uniform, 0)
    assert set(best_response(forgetful, uniform, 1).actions) == {"player 1"}


def test_a_player_that_forgets_what_it_did_is_refused():
    """After as many moves, but other ones: where it would not know where it is, an exact best response is another problem."""
    class Twice(Game):
        """One player moves twice, and forgets its first move at its second one."""

        n_players, n_actions, tensor_size, max_moves, utility_range = 2, 2, 1, 2, (-10.0, 5.0)
        traits = Traits(n_players=2, chance="deterministic")

        def __init__(self):
            """Everything is said above."""

        def start(self):
            return Second(self)

    class Second(State):
        player = property(lambda self: TERMINAL if len(self.history) == 2 else 0)

        def legal(self):
            return () if self.player == TERMINAL else (0, 1)

        def chance(self):
            return []

        def tensor(self, player=None):
            return np.zeros(1, np.float32)

        def returns(self):
            own = [[5.0, 0.0], [-10.0, 0.0]][self.history[0]][self.history[1]] if len(self.history) == 2 else 0.0
            return own, -own

        def key(self, player=None):
            return str(len(self.history))

    with pytest.raises(ValueError, match="key '1' come after different moves of player 0; a best response needs a player that"):
        nash_conv(Twice(), uniform)
