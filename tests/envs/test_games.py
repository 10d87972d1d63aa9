"""Games: rules against published counts and values, trees walked both ways, one player's environment, PettingZoo."""

import json
import math
import warnings

import gymnasium as gym
import numpy as np
import pytest
from aec_fakes import aec_of
from gymnasium.utils.env_checker import check_env

from parl_like.algorithms.games import best_response, expected_returns, nash_conv
from parl_like.envs.games import (
    CHANCE,
    SIMULTANEOUS,
    TERMINAL,
    ConnectFour,
    Game,
    GameEnv,
    Kuhn,
    KuhnState,
    Leduc,
    LiarsDice,
    MatrixGame,
    RockPaperScissors,
    State,
    TicTacToe,
    Traits,
    TurnBased,
    draw,
    uniform,
)
from parl_like.envs.pettingzoo import AECPlayer, random_choice

GAMES = {"kuhn": Kuhn, "kuhn3": lambda: Kuhn(3), "leduc": Leduc,
         "tic-tac-toe": TicTacToe}
MORE = {"liar's dice": LiarsDice, "connect four": ConnectFour, "rps": lambda: TurnBased(RockPaperScissors())}
each_game = pytest.mark.parametrize("make", GAMES.values(), ids=GAMES)


def information_sets(game):
    """Key → (player, legal actions) of every information state in which somebody decides, in the order of a walk."""
    sets, state = {}, game.start()

    def walk():
        if state.player >= 0:
            sets.setdefault(state.key(), (state.player, tuple(state.legal())))
        for action in tuple(state.legal()):
            state.apply(action)
            walk()
            state.undo()

    walk()
    return sets


def play_out(game, rng):
    """A state of a random finished game."""
    state = game.start()
    while not state.is_terminal:
        state.apply(int(rng.choice(state.legal())))
    return state


def look(state):
    """All that can be asked of a state."""
    views = [(state.key(p), state.tensor(p).tolist()) for p in range(state.game.n_players)]
    chance = state.chance() if state.player == CHANCE else None
    seen = state.player, list(state.legal()), chance, state.mask().tolist()
    return *seen, state.returns(), views, list(state.history), str(state)


# ---------------------------------------------------------------------------------------------------------------- every game


@pytest.mark.parametrize("make", {**GAMES, **MORE}.values(), ids={**GAMES, **MORE})
def test_taking_back_restores_everything(make):
    rng = np.random.default_rng(0)
    for _ in range(30):
        state, seen = make().start(), []
        while not state.is_terminal:
            seen.append(look(state))
            state.apply(int(rng.choice(state.legal())))
        assert look(state.clone()) == look(state)
        while seen:
            state.undo()
            assert look(state) == seen.pop() == look(state.clone())
        with pytest.raises(IndexError, match="there is no move to take back"):
            state.undo()


@pytest.mark.parametrize("make", {**GAMES, **MORE}.values(), ids={**GAMES, **MORE})
def test_the_shape_of_a_game(make):
    game, rng, lowest, highest, longest = make(), np.random.default_rng(1), 0.0, 0.0, 0
    assert game.traits.n_players == game.n_players
    for _ in range(400):
        end = play_out(game, rng)
        state, moves = game.start(), 0
        for action in end.history:
            assert state.returns() == (0.0,) * game.n_players
            if state.player == CHANCE:
                assert sum(p for _, p in state.chance()) == pytest.approx(1.0) and [a for a, _ in state.chance()] == list(
                    state.legal()
                )
                assert not state.mask().any()
            else:
                assert state.tensor().shape == (game.tensor_size,) and state.tensor().dtype == np.float32
                assert set(state.tensor().tolist()) <= {0.0, 1.0}
                assert np.flatnonzero(state.mask()).tolist() == list(state.legal()) and state.mask().shape == (game.n_actions,)
                assert game.traits.actions == "full" or state.mask().all()
                moves += 1
            state.apply(action)
        assert state.player == TERMINAL and not state.legal() and not state.mask().any()
        assert sum(state.returns()) == 0.0
        lowest, highest, longest = min(lowest, *state.returns()), max(highest, *state.returns()), max(longest, moves)
    assert longest <= game.max_moves
    assert game.utility_range[0] <= lowest and highest <= game.utility_range[1]
    if game.n_players == 2 and not isinstance(game, (Leduc, LiarsDice, ConnectFour)):  # which random play hardly ever fills
        assert (lowest, highest, longest) == (*game.utility_range, game.max_moves)


def test_the_longest_and_dearest_hand_of_leduc():
    end = Leduc().replay([2, 1, 1, 2, 2, 1, 2, 1, 2, 2, 1])
    assert end.returns() == (13.0, -13.0) and end.key(1) == "1:crrc|2:crrc" and end.is_terminal
    assert len(end.history) - 3 == Leduc().max_moves


@pytest.mark.parametrize("game", [Kuhn(), Kuhn(3), Leduc(), Leduc(suits=True), LiarsDice(3), TurnBased(RockPaperScissors())],
                         ids=str)
def test_tensors_tell_apart_what_keys_tell_apart(game):
    state, tensors, keys = game.start(), {}, {}

    def walk():
        if state.player >= 0:
            key, tensor = state.key(), state.tensor().tobytes()
            assert tensors.setdefault(key, tensor) == tensor and keys.setdefault(tensor, key) == key
        for action in tuple(state.legal()):
            state.apply(action)
            walk()
            state.undo()

    walk()
    assert len(keys) == len(information_sets(game))


@pytest.mark.parametrize("game", [Kuhn(), Kuhn(3), Leduc(), Leduc(suits=True), LiarsDice(3)], ids=str)
def test_who_is_asked_and_what_is_legal_follow_from_what_is_known(game):
    sets, state = information_sets(game), game.start()

    def walk(own):
        player, key = state.player, None
        if player >= 0:
            key = state.key()
            assert sets[key] == (player, tuple(state.legal()))
            assert recall.setdefault(key, own[player]) == own[player]  # perfect recall: a player knows what it knew and did
        for action in tuple(state.legal()):
            state.apply(action)
            walk(own if key is None else {**own, player: (*own[player], key, action)})
            state.undo()

    recall = {}
    walk({player: () for player in range(game.n_players)})


@pytest.mark.parametrize(("game", "sets"), [(Kuhn(), 12), (Kuhn(3), 48), (Leduc(), 288), (Leduc(suits=True), 936),
                                              (LiarsDice(3), 192), (TurnBased(RockPaperScissors()), 2)], ids=str)
def test_the_number_of_information_sets(game, sets):
    assert len(information_sets(game)) == sets


def test_illegal_moves_and_views():
    state = Kuhn().start()
    state.apply(1)
    with pytest.raises(ValueError, match=r"Kuhn\(n_players=2\): move 1 of chance after \[1\] is not legal; legal are 0, 2"):
        state.apply(1)
    with pytest.raises(ValueError, match="no player's turn but that of chance; say whose view is meant"):
        state.key()
    assert (state.key(0), state.key(1)) == ("1", "?") and "chance to move" in str(state)
    with pytest.raises(ValueError, match="there is no player 2; there are 2"):
        state.tensor(2)
    end = TicTacToe().replay([0, 3, 1, 4, 2])
    with pytest.raises(ValueError, match="move 8 of nobody .* the game is over"):
        end.apply(8)
    with pytest.raises(ValueError, match=r"move 0 of player 0 after \[0, 0\] is not legal; legal are 1, 2"):
        Leduc().replay([0, 0, 0])
    with pytest.raises(ValueError, match="n_players is 1; expected 2 to 9"):
        Kuhn(1)


# -------------------------------------------------------------------------------------------------------------------- traits


def test_an_algorithm_names_the_traits_that_are_missing():
    for make in (Kuhn, Leduc):
        make().traits.require("CFR", dynamics="sequential", reward="terminal", chance=("explicit", "deterministic"),
                              styles=("key",), n_players=2)
    with pytest.raises(ValueError) as caught:
        TicTacToe().traits.require("Bluffer", information="imperfect", chance=("explicit", "sampled"), utility="zero_sum",
                                   styles=("key", "image"))
    assert str(caught.value) == (
        "Bluffer cannot play this game: it needs information 'imperfect' (it has 'perfect'), chance 'explicit' or 'sampled' (it "
        "has "
        "'deterministic'), styles ['key', 'image'] (it has ('history', 'key', 'tensor'))")
    with pytest.raises(TypeError, match="there is no trait 'luck'; there are actions, chance,"):
        Traits(n_players=2).require("x", luck=1)


# ---------------------------------------------------------------------------------------------------------------------- Kuhn


@pytest.mark.parametrize(("bets", "returns"), [
    ("pp", (-1, 1)), ("pbp", (1 - 2, 1)), ("pbb", (-2, 2)), ("bp", (1, -1)), ("bb", (-2, 2)),
])
def test_the_pot_of_kuhn(bets, returns):
    state = Kuhn().replay([0, 2, *("pb".index(b) for b in bets)])
    assert state.is_terminal and state.returns() == returns


@pytest.mark.parametrize(("cards", "bets", "returns"), [
    ((0, 1, 3), "ppp", (-1, -1, 2)), ((0, 1, 3), "bpp", (2, -1, -1)), ((0, 2, 1), "bbp", (-2, 3, -1)),
    ((0, 1, 3), "pbpp", (-1, 2, -1)),
    ((0, 1, 3), "pbbb", (-2, -2, 4)), ((2, 1, 3), "pbpb", (3, -2, -1)), ((0, 1, 3), "ppbpp", (-1, -1, 2)),
    ((3, 1, 0), "ppbbb", (4, -2, -2)),
])
def test_the_pot_of_three(cards, bets, returns):
    state = Kuhn(3).replay([*cards, *("pb".index(b) for b in bets)])
    assert state.is_terminal and state.returns() == returns


def equilibrium(alpha):
    """Kuhn's family: the first player bluffs the lowest card with probability alpha, 0 to 1/3; the second has one strategy
    only."""
    bet = {
        "0": alpha, "1": 0.0, "2": min(3 * alpha, 1.0), "0pb": 0.0, "1pb": alpha + 1 / 3, "2pb": 1.0,
        "0b": 0.0, "1b": 1 / 3, "2b": 1.0, "0p": 1 / 3, "1p": 0.0, "2p": 1.0,
    }
    return lambda state: (1 - bet[state.key()], bet[state.key()])


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1 / 6, 1 / 3])
def test_kuhns_equilibria_are_worth_minus_one_eighteenth(alpha):
    policy = equilibrium(alpha)
    np.testing.assert_allclose(expected_returns(Kuhn(), policy), [-1 / 18, 1 / 18], atol=1e-14)
    assert nash_conv(Kuhn(), policy) == pytest.approx(0.0, abs=1e-14)


def test_beyond_the_family_there_is_something_to_win():
    assert nash_conv(Kuhn(), equilibrium(0.33 + 0.01)) > 0.001


@pytest.mark.parametrize(("game", "value", "gain"), [
    (Kuhn(), 0.125, 11 / 12), (Kuhn(3), None, 2.0625), (Kuhn(4), None, 3.476042),
    (Leduc(), -0.078125, 4.747222), (Leduc(suits=True), -0.078125, 4.747222),
], ids=str)
def test_the_uniform_policy(game, value, gain):
    returns = expected_returns(game, uniform)
    if value is not None:
        np.testing.assert_allclose(returns, [value, -value], atol=1e-12)
    assert returns.sum() == pytest.approx(0.0, abs=1e-12)
    assert nash_conv(game, uniform) == pytest.approx(gain, abs=6e-7)


def test_best_answers_to_uniform_play_in_kuhn():
    first, second = (best_response(Kuhn(), uniform, player).actions for player in (0, 1))
    assert [first[f"{card}"] for card in range(3)] == [1, 1, 0]
    assert [first[f"{card}pb"] for card in range(3)] == [0, 1, 1]
    assert [second[f"{card}b"] for card in range(3)] == [0, 1, 1]
    assert [second[f"{card}p"] for card in range(3)] == [1, 1, 1]


# --------------------------------------------------------------------------------------------------------------------- Leduc


@pytest.mark.parametrize(("cards", "first", "second", "returns"), [
    ((0, 2, 1), "cc", "cc", (-1, 1)), ((0, 2, 0), "cc", "cc", (1, -1)), ((2, 2, 0), "rrc", "rrc", (0, 0)),
    ((0, 2, None), "rf", "", (1, -1)),
    ((0, 2, None), "crf", "", (-1, 1)), ((0, 2, None), "rrf", "", (-3, 3)), ((0, 2, 1), "rc", "rf", (3, -3)),
    ((0, 2, 1), "rc", "rc", (-7, 7)),
    ((1, 0, 1), "rrc", "crrf", (9, -9)), ((1, 0, 1), "rrc", "crf", (-5, 5)), ((1, 0, 1), "rrc", "rrc", (13, -13)),
])
def test_the_pot_of_leduc(cards, first, second, returns):
    acts = [["fcr".index(a) for a in text] for text in (first, second)]
    state = Leduc().replay([*cards[:2], *acts[0], *(card for card in cards[2:] if card is not None), *acts[1]])
    assert state.is_terminal and state.returns() == returns


def test_the_tensor_of_leduc():
    # Private 0 and 1; check, raise, raise, call; public 0; raise.
    state = Leduc().replay([0, 1, 1, 2, 2, 1, 0, 2])
    first, second = [1, 0, 0, 1, 0, 1, 1, 0], [0, 1, 0, 0, 0, 0, 0, 0]
    assert state.tensor(0).tolist() == [1, 0, 1, 0, 0, 1, 0, 0, *first, *second]
    assert state.tensor(1).tolist() == [0, 1, 0, 1, 0, 1, 0, 0, *first, *second]


def test_what_is_legal_in_leduc():
    state = Leduc().replay([0, 0])
    legal = []
    for action in (1, 2, 2, 1):
        legal.append(tuple(state.legal()))
        state.apply(action)
    assert legal == [(1, 2), (1, 2), (0, 1, 2), (0, 1)]
    assert state.chance() == [(1, 0.5), (2, 0.5)]  # both cards of rank 0 are gone
    state.apply(1)
    assert state.player == 0 and state.key() == "0:crrc|1:" and state.legal() == (1, 2)
    assert Leduc().replay([2]).chance() == [(0, 0.4), (1, 0.4), (2, 0.2)]


# --------------------------------------------------------------------------------------------------------------- tic-tac-toe


RANDOM_X = 0.296825
"""What player 0 wins on average where both play at random."""


def test_all_games_of_tic_tac_toe():
    state, known = TicTacToe().start(), {}

    def walk():
        """Games from here, (won by x, by o, drawn) of them, and the values for x of best and of random play."""
        key = state.key()
        if key not in known:
            if state.is_terminal:
                won = int(state.returns()[0])
                known[key] = np.array([won == 1, won == -1, won == 0]).astype(int), won, won
            else:
                below, mover = [], state.player
                for action in state.legal():
                    state.apply(action)
                    below.append(walk())
                    state.undo()
                games, best, by_chance = zip(*below, strict=True)
                known[key] = sum(games), (min if mover else max)(best), sum(by_chance) / len(below)
        return known[key]

    games, best, by_chance = walk()
    assert games.tolist() == [131_184, 77_904, 46_080] and games.sum() == 255_168
    assert len(known) == 5_478
    assert best == 0 and by_chance == pytest.approx(RANDOM_X, abs=1e-6)


def test_the_view_of_tic_tac_toe():
    state = TicTacToe().replay([4, 0])
    assert state.key() == "o...x...." and str(state) == "o..\n.x.\n...\n" and state.player == 0
    own, other = state.tensor().reshape(2, 9)
    assert np.flatnonzero(own).tolist() == [4] and np.flatnonzero(other).tolist() == [0]
    np.testing.assert_array_equal(state.tensor(1).reshape(2, 9), [other, own])
    assert TicTacToe().replay([0, 3, 1, 4, 8, 5]).returns() == (-1.0, 1.0)


# --------------------------------------------------------------------------------------------- liar's dice and connect four


@pytest.mark.parametrize(("dice", "bids", "returns"), [
    ((0, 0), (0, 12), (1, -1)), ((0, 1), (6, 12), (-1, 1)), ((0, 5), (6, 12), (1, -1)), ((5, 5), (6, 7, 12), (-1, 1)),
    ((1, 2), (0, 12), (-1, 1)), ((1, 2), (0, 1, 12), (-1, 1)), ((1, 3), (0, 2, 12), (1, -1)), ((5, 2), (3, 12), (1, -1)),
])
def test_who_is_a_liar(dice, bids, returns):
    """Faces count from 0, and the 5 is every face: 6 says two zeros, 12 doubts."""
    state = LiarsDice().replay([*dice, *bids])
    assert state.is_terminal and state.returns() == returns


def test_bids_rise():
    state = LiarsDice().replay([3, 5])
    assert list(state.legal()) == list(range(12)), "there is nothing to doubt yet"
    state.apply(9)
    assert list(state.legal()) == [10, 11, 12] and (state.key(), state.key(0)) == ("5:9", "3:9")
    assert np.flatnonzero(state.tensor()).tolist() == [1, 2 + 5, 8 + 9]
    with pytest.raises(ValueError, match="faces is 1; expected 2 to 9"):
        LiarsDice(1)


@pytest.mark.parametrize(("moves", "returns"), [
    ([0, 1, 0, 1, 0, 1, 0], (1, -1)), ([0, 1, 0, 1, 0, 1, 6, 1], (-1, 1)), ([0, 0, 1, 1, 2, 2, 3], (1, -1)),
    ([0, 1, 1, 2, 2, 3, 2, 3, 3, 6, 3], (1, -1)), ([3, 2, 2, 1, 1, 0, 1, 0, 0, 6, 0], (1, -1)),
])
def test_four_in_a_line(moves, returns):
    state = ConnectFour().replay(moves[:-1])
    assert not state.is_terminal
    state.apply(moves[-1])
    assert state.is_terminal and state.returns() == returns and not state.legal()


def test_the_board_of_connect_four():
    state = ConnectFour().replay([3, 3, 0])
    assert state.key().startswith("x..x...|...o...|.......") and str(state).endswith("...o...\nx..x...\n")
    own, other = state.tensor().reshape(2, 42)
    assert np.flatnonzero(own).tolist() == [10] and np.flatnonzero(other).tolist() == [0, 3]
    full = ConnectFour().replay([2] * 6)
    assert list(full.legal()) == [0, 1, 3, 4, 5, 6]


# ----------------------------------------------------------------------------------------------------------- all at once


def test_moves_at_once():
    game = RockPaperScissors()
    state = game.start()
    assert state.player == SIMULTANEOUS and game.traits.dynamics == "simultaneous" and "all to move" in str(state)
    assert [list(state.legal_of(player)) for player in (0, 1)] == [[0, 1, 2]] * 2 and len(state.legal()) == 9
    state.apply(game.joint([1, 0]))
    assert state.is_terminal and state.returns() == (1.0, -1.0) and not state.legal_of(0)
    state.undo()
    assert state.player == SIMULTANEOUS and not state.mask().any()
    with pytest.raises(ValueError, match="GameEnv cannot play this game: it needs dynamics 'sequential'"):
        GameEnv(game)


def test_a_matrix_for_three_of_different_sizes():
    payoffs = np.random.default_rng(0).normal(size=(2, 3, 1, 3))
    game = MatrixGame(payoffs)
    assert (game.n_players, game.n_actions, game.traits.utility, game.traits.actions) == (3, 3, "general", "full")
    turns, state = TurnBased(game), game.start()
    assert len(state.legal()) == 6 and [len(state.legal_of(p)) for p in range(3)] == [2, 3, 1]
    for actions in ((0, 0, 0), (1, 2, 0)):
        assert game.replay([game.joint(actions)]).returns() == turns.replay(actions).returns() == tuple(payoffs[actions])
    with pytest.raises(ValueError, match="is not legal"):
        state.apply(game.joint([2, 0, 0]))
    assert MatrixGame([[[1, 1], [2, 2]]]).traits.utility == "identical"


@pytest.mark.parametrize("payoffs", [[1, 2], [[1, np.nan]], [[[1, 2, 3]]], np.zeros((0, 2)), 3.0])
def test_what_is_no_matrix_game(payoffs):
    with pytest.raises(ValueError, match="MatrixGame: payoffs have the shape .*; expected finite numbers"):
        MatrixGame(payoffs)


def test_in_turn_nobody_sees_what_was_chosen():
    turns = TurnBased(RockPaperScissors())
    assert turns.traits.dynamics == "sequential" and [turns.replay([a]).key() for a in range(3)] == ["1"] * 3
    assert expected_returns(turns, [lambda state: np.eye(3)[1], lambda state: np.eye(3)[0]]).tolist() == [1.0, -1.0]
    with pytest.raises(ValueError, match="TurnBased cannot play this game: it needs dynamics 'simultaneous'"):
        TurnBased(Kuhn())


# ----------------------------------------------------------------------------------------------------- one player's environment


def random_step(env, obs, rng):
    return env.step(int(rng.choice(np.flatnonzero(obs["mask"]))))


@each_game
@pytest.mark.parametrize("player", [0, 1, None])
def test_gymnasiums_own_checker(make, player):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*spec")  # made by hand, not by gymnasium.make
        check_env(GameEnv(make(), player=player, illegal=-1.0, render_mode="ansi"), skip_render_check=True)


@each_game
@pytest.mark.parametrize("player", [0, 1])
def test_returns_of_play_have_the_exact_mean(make, player):
    game, rng, returns = make(), np.random.default_rng(3), []
    env = GameEnv(game, player=player)
    for k in range(1500):
        obs, info = env.reset(seed=7 if k == 0 else None)
        assert info == {"player": player}
        total, over = 0.0, False
        while not over:
            assert obs in env.observation_space and obs["mask"].any()
            assert env.state.player == player
            obs, reward, over, truncated, info = random_step(env, obs, rng)
            total += reward
            assert not truncated and info == {} and (over or reward == 0.0)
        assert not obs["mask"].any() and obs in env.observation_space
        returns.append(total)
    by_chance = RANDOM_X * (1 - 2 * player)  # the tree of tic-tac-toe is too large for a plain walk
    mean = by_chance if isinstance(game, TicTacToe) else expected_returns(game, uniform)[player]
    assert abs(np.mean(returns) - mean) < 4 * np.std(returns) / math.sqrt(len(returns))


def test_a_policy_for_each_seat_and_a_random_seat():
    def first(state):
        return np.eye(9)[state.legal()[0]]

    env = GameEnv(TicTacToe(), [first, first], player=None, render_mode="ansi")
    seats = [env.reset(seed=1 if k == 0 else None)[1]["player"] for k in range(40)]
    assert 8 < sum(seats) < 32
    obs, info = env.reset(options={"player": 1})
    assert info == {"player": 1} and env.render() == "x..\n...\n...\n" and obs["mask"].tolist() == [0] + [1] * 8
    assert obs["obs"].tolist() == [0.0] * 9 + [1.0] + [0.0] * 8
    assert [env.step(a)[1:3] for a in (8, 7)] == [(0.0, False), (-1.0, True)]


def test_the_reward_is_the_change_of_the_utility(monkeypatch):
    after = KuhnState.returns
    monkeypatch.setattr(KuhnState, "returns", lambda self: after(self) if self.is_terminal else (-1.0, -1.0))  # the ante, at once
    env = GameEnv(Kuhn(), policy=lambda state: [0.0, 1.0], player=0)
    env.reset(seed=0)
    assert env.step(0)[1:3] == (0.0, False)  # the other bets
    assert env.step(0)[1:3] == (0.0, True)  # folded: −1 as before


@pytest.mark.parametrize("number", [0.0, 0.25, 0.75, 1 - 2**-53])
def test_what_cannot_happen_is_not_drawn(number):
    class Fixed:
        def random(self):
            return number

    for total in (1.0, 1 + 1e-9, 1 - 1e-9, 0.1 + 0.2, 3.0):
        assert draw([(0, 0.0), (1, total / 2), (2, 0.0), (3, total / 2), (4, 0.0)], Fixed()) == (1 if number < 0.5 else 3)


def test_winning_and_losing_are_paid_to_the_right_seat():
    def first(state):
        return np.eye(9)[state.legal()[0]]

    env = GameEnv(TicTacToe(), first, player=1)
    env.reset()
    assert [env.step(a)[1:3] for a in (8, 7)] == [(0.0, False), (-1.0, True)]
    env.reset(options={"player": 0})
    assert [env.step(a)[1:3] for a in (4, 2, 6)] == [(0.0, False), (0.0, False), (1.0, True)]
    with pytest.raises(gym.error.ResetNeeded, match="without an open game"):
        env.step(8)


def test_illegal_actions():
    env = GameEnv(Leduc())
    env.reset(seed=0)
    with pytest.raises(ValueError, match="move 0 of player 0 .* is not legal; legal are 1, 2"):
        env.step(0)
    env = GameEnv(Leduc(), illegal=-13.0)
    env.reset(seed=0)
    obs, *rest = env.step(0)
    assert rest == [-13.0, True, False, {}] and not obs["mask"].any()
    with pytest.raises(gym.error.ResetNeeded):
        env.step(1)


def test_bad_arguments():
    with pytest.raises(ValueError, match="3 policies; expected one, or 2"):
        GameEnv(Kuhn(), [uniform] * 3)
    with pytest.raises(ValueError, match="player is 2; expected 0 to 1"):
        GameEnv(Kuhn(), player=2)
    with pytest.raises(ValueError, match="render_mode is 'human'"):
        GameEnv(Kuhn(), render_mode="human")
    env = GameEnv(Kuhn())
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    for options, message in (({"seat": 1}, "no option 'seat'; there is 'player'"), ({"player": -1}, "player is -1")):
        with pytest.raises(ValueError, match=message):
            env.reset(options=options)
    for wrong in ([1.0], [0.5, 0.6], [1.5, -0.5], [[1.0], [0.0]], [np.nan, 1.0]):
        with pytest.raises(ValueError, match="the policy of player 0 gave"):
            GameEnv(Kuhn(), lambda state, wrong=wrong: wrong, player=1).reset(seed=0)


class Alone(Game):
    """Player 1 never has a turn."""

    def __init__(self):
        self.n_players, self.n_actions, self.tensor_size, self.max_moves = 2, 1, 1, 1
        self.traits, self.utility_range = Traits(n_players=2, chance="deterministic"), (0.0, 0.0)

    def start(self):
        class Only(State):
            player = property(lambda self: TERMINAL if self.history else 0)

            def legal(self):
                return () if self.history else (0,)

            def tensor(self, player=None):
                return np.zeros(1, np.float32)

            def returns(self):
                return (0.0, 0.0)

            chance = key = lambda self, *_: None

        return Only(self)


def test_a_player_that_never_has_a_turn():
    with pytest.raises(RuntimeError, match="player 1 of Alone.* had no turn in 1000 games"):
        GameEnv(Alone(), player=1).reset(seed=0)


@each_game
@pytest.mark.parametrize("player", [1, None])
def test_a_restored_state_gives_the_same_trace(make, player):
    def play(env, obs, n=60):
        trace, rng = [], np.random.default_rng(4)
        for _ in range(n):
            obs, *rest = random_step(env, obs, rng)
            trace.append((obs["obs"].tolist(), obs["mask"].tolist(), *rest))
            if rest[1]:
                obs, info = env.reset()
                trace.append((obs["obs"].tolist(), info))
        return trace

    env = GameEnv(make(), player=player)
    obs, _ = env.reset(seed=5)
    after, _, over, _, _ = random_step(env, obs, np.random.default_rng(0))
    obs = env.reset()[0] if over else after
    state = json.loads(json.dumps(env.clone_state()))
    trace = play(env, obs)
    env.restore_state(state)
    assert play(env, obs) == trace
    other = GameEnv(make(), player=player)
    other.restore_state(state)
    assert play(other, obs) == trace


def test_the_end_is_part_of_the_state():
    env = GameEnv(Leduc(), illegal=-1.0)
    env.reset(seed=0)
    env.step(0)
    other = GameEnv(Leduc(), illegal=-1.0)
    other.restore_state(env.clone_state())
    with pytest.raises(gym.error.ResetNeeded):
        other.step(1)


# ---------------------------------------------------------------------------------------------------------------- PettingZoo


class Dice:
    """A small AEC environment without masks: two agents, two rounds; both are paid at every move, and `b` moves first.

    The agent that moves gets its action; the other gets ten times as much.
    """

    possible_agents = ["a", "b"]
    render_mode = None

    def __init__(self, infos=False, short=False):
        self.infos_masked, self.short = infos, short

    def observation_space(self, agent):
        return gym.spaces.Box(0, 9, (1,), np.float32)

    def action_space(self, agent):
        return gym.spaces.Discrete(3, start=1)

    def reset(self, seed=None, options=None):
        self.agents, self.moves, self.total = ["a", "b"], [], {"a": 0.0, "b": 0.0}
        self.agent_selection, self.seed, self.done = "b", seed, False

    def agent_iter(self):
        raise NotImplementedError

    def observe(self, agent):
        return np.array([len(self.moves)], np.float32)

    def last(self):
        agent = self.agent_selection
        info = {"action_mask": np.array([0, 1, 1], bool)} if self.infos_masked else {"turn": len(self.moves)}
        return self.observe(agent), self.total[agent], False, self.done, info

    def step(self, action):
        agent = self.agent_selection
        other = "ab"[agent == "a"]
        if self.done:
            assert action is None
            self.agents.remove(agent)
            self.agent_selection = other
            return
        assert self.action_space(agent).contains(action)
        self.moves.append(action)
        self.total[agent] = float(action)
        self.total[other] += 10.0 * action
        self.agent_selection, self.done = other, len(self.moves) == (1 if self.short else 4)

    def render(self):
        return "dice"

    def close(self):
        self.agents = []


def test_rewards_and_turns_of_one_player():
    env = AECPlayer(Dice(), "a", lambda obs, rng: 2)
    obs, info = env.reset(seed=0)
    assert obs.tolist() == [1.0] and info == {"turn": 1}
    steps = [env.step(1), env.step(3)]
    assert [(obs.tolist(), *rest) for obs, *rest in steps] == [
        ([3.0], 20 + 1 + 20, False, False, {"turn": 3}),
        ([4.0], 3.0, False, True, {"turn": 4}),
    ]
    with pytest.raises(gym.error.ResetNeeded):
        env.step(1)
    env = AECPlayer(Dice(), 1, {"a": lambda obs, rng: 1})
    env.reset()
    assert [env.step(3)[1] for _ in range(2)] == [13.0, 13.0] and env.render() == "dice"


def test_masks_from_infos_and_random_others():
    env = AECPlayer(Dice(infos=True), "a", mask=True)
    seen = set()
    for k in range(30):
        obs, _ = env.reset(seed=0 if k == 0 else None)
        assert obs in env.observation_space and obs["mask"].tolist() == [0, 1, 1]
        assert not env.step(2)[3]
        obs, _, _, truncated, _ = env.step(2)
        assert truncated and obs["mask"].tolist() == [0, 1, 1]  # a game that was only cut has a future, and what is legal in it
        seen |= set(env.env.moves[::2])
    assert seen == {2, 3}
    moves = []
    for _ in range(2):
        env.reset(seed=5)
        env.step(2)
        moves.append(env.env.moves)
    assert moves[0] == moves[1]


def test_rewards_on_the_way_are_paid_once(monkeypatch):
    pytest.importorskip("pettingzoo")
    monkeypatch.setattr(KuhnState, "returns", lambda self: (float(len(self.history)), 0.0))
    env = AECPlayer(aec_of(Kuhn()), 0, lambda obs, rng: 1)
    env.reset(seed=0)
    assert env.step(0)[1:3] == (2.0, False) and env.step(0)[1:3] == (1.0, True)  # two moves until the next turn, then one
    env = AECPlayer(aec_of(Kuhn()), 0, lambda obs, rng: 1)
    assert env.metadata["render_modes"] == ["ansi"] and env.metadata["render_fps"] > 0


def test_random_actions_come_from_the_given_generator():
    for space in (gym.spaces.Box(-1, 1, (2,)), gym.spaces.MultiDiscrete([50, 50]), gym.spaces.Discrete(1000, start=5)):
        drawn = [
            [random_choice(space)(None, rng) for _ in range(3)] for rng in (np.random.default_rng(1), np.random.default_rng(1))
        ]
        np.testing.assert_array_equal(*drawn)
        assert all(action in space for action in drawn[0]) and len({str(action) for action in drawn[0]}) == 3


def test_what_is_no_aec_environment():
    with pytest.raises(TypeError, match="CartPoleEnv is no AEC environment, it has no agent_iter, last"):
        AECPlayer(gym.make("CartPole-v1").unwrapped)
    for player, others in (("c", None), (0, {"c": None})):
        with pytest.raises(ValueError, match="there is no agent 'c'; there are a, b"):
            AECPlayer(Dice(), player, others)
    with pytest.raises(ValueError, match="player is 2; expected 0 to 1"):
        AECPlayer(Dice(), 2)
    with pytest.raises(RuntimeError, match="a had no turn in 1000 games"):
        env = AECPlayer(Dice(short=True), "a")
        env.reset(seed=3)
    assert env.env.seed is None  # the same seed would give the same game again

    class Continuous(Dice):
        def action_space(self, agent):
            return gym.spaces.Box(0, 1)

    with pytest.raises(TypeError, match="a mask of legal actions needs Discrete actions"):
        AECPlayer(Continuous(), mask=True)

    class Hasty(Dice):
        def step(self, action):
            super().step(action)
            self.agents = [] if self.done else self.agents

    env = AECPlayer(Hasty(), "b", lambda obs, rng: 1)
    env.reset()
    env.step(1)
    with pytest.raises(RuntimeError, match="ended without a last turn of b"):
        env.step(1)


@each_game
def test_there_and_back_again(make):
    """One player of a game through PettingZoo sees and gets what it does in `GameEnv`, where nothing is random."""
    pytest.importorskip("pettingzoo")
    game = make()

    class Dealt(GameEnv):
        """Takes the cards that the other one dealt."""

        def _others(self):
            while (turn := self.state.player) not in (self.player, TERMINAL):
                history = via.env.state_now.history
                self.state.apply(history[len(self.state.history)] if turn == CHANCE else int(self.state.legal()[0]))

    rng = np.random.default_rng(0)
    for player in range(game.n_players):
        via, direct = AECPlayer(aec_of(game), player, lambda obs, rng: int(obs["mask"].argmax())), Dealt(game, player=player)
        assert via.observation_space == direct.observation_space and via.action_space == direct.action_space
        for k in range(40):
            theirs, over = via.reset(seed=k)[0], False
            ours = direct.reset(seed=k)[0]
            while not over:
                np.testing.assert_equal(theirs, ours)
                action = int(rng.choice(np.flatnonzero(ours["mask"])))
                theirs, *rest = via.step(action)
                ours, *expected = direct.step(action)
                assert rest == expected
                over = rest[1]
            np.testing.assert_equal(theirs, ours)
            assert via.env.state_now.is_terminal


def test_the_checker_through_pettingzoo():
    pytest.importorskip("pettingzoo")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*spec")
        check_env(AECPlayer(aec_of(Kuhn()), 1), skip_render_check=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pettingzoos_tic_tac_toe():
    pytest.importorskip("pettingzoo")
    classic = pytest.importorskip("pettingzoo.classic.tictactoe_v3", reason="PettingZoo's tic-tac-toe needs pygame")
    wins = []
    for player in (0, 1):
        env, rng, returns = AECPlayer(classic.env(), player), np.random.default_rng(1), []
        for k in range(250):
            obs, over, total = env.reset(seed=k)[0], False, 0.0
            while not over:
                assert obs in env.observation_space and obs["mask"].any()
                obs, reward, over, truncated, _ = env.step(int(rng.choice(np.flatnonzero(obs["mask"]))))
                total += reward
            returns.append(total)
        wins.append(np.mean(returns))
        env.close()
    np.testing.assert_allclose(wins, [RANDOM_X, -RANDOM_X], atol=0.22)
