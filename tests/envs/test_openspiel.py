"""OpenSpiel's games as ours, and ours beside theirs."""

import subprocess
import sys

import numpy as np
import pytest

from parl_like.algorithms.games import expected_returns, nash_conv
from parl_like.envs.games import (
    CHANCE,
    ConnectFour,
    GameEnv,
    Kuhn,
    Leduc,
    LiarsDice,
    OpenSpielGame,
    RockPaperScissors,
    TicTacToe,
    TurnBased,
    uniform,
)


def test_without_openspiel_the_error_names_the_extra():
    code = ("import sys; sys.modules['pyspiel'] = None\nfrom parl_like.envs.games import Kuhn, OpenSpielGame\nKuhn()\n"
            "try: OpenSpielGame('kuhn_poker')\nexcept ImportError as error: print(error)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "OpenSpielGame needs OpenSpiel; install the extra: pip install 'parl_like[games]'\n"


pyspiel = pytest.importorskip("pyspiel")


@pytest.mark.parametrize(("ours", "theirs"), [
    (Kuhn(3), OpenSpielGame("kuhn_poker", players=3)), (Leduc(suits=True), OpenSpielGame("leduc_poker")),
    (LiarsDice(4), OpenSpielGame("liars_dice", dice_sides=4)), (LiarsDice(), OpenSpielGame("liars_dice")),
    (TicTacToe(), OpenSpielGame("tic_tac_toe")), (ConnectFour(), OpenSpielGame("connect_four")),
    (TurnBased(RockPaperScissors()), OpenSpielGame("matrix_rps")),
], ids=lambda game: repr(game))
def test_random_games_go_the_same_way(ours, theirs):
    rng = np.random.default_rng(0)
    for name in ("n_players", "n_actions", "utility_range"):
        assert getattr(ours, name) == getattr(theirs, name)
    for name in ("information", "chance", "reward", "utility"):
        assert getattr(ours.traits, name) == getattr(theirs.traits, name) or isinstance(ours, TurnBased)
    for _ in range(40):
        one, other = ours.start(), theirs.start()
        while not one.is_terminal:
            assert one.player == other.player and list(one.legal()) == list(other.legal())
            if one.player == CHANCE:
                assert one.chance() == pytest.approx(other.chance())
            action = int(rng.choice(one.legal()))
            one.apply(action)
            other.apply(action)
        assert other.is_terminal and one.returns() == other.returns()
        assert look(other.clone()) == look(other)
        for _ in range(2):
            one.undo()
            other.undo()
            assert list(one.legal()) == list(other.legal())
            if other.player >= 0 and "tensor" in theirs.traits.styles:
                assert other.tensor().shape == (theirs.tensor_size,) and other.tensor().dtype == np.float32


def look(state):
    return state.player, state.returns(), state.history, str(state), [state.key(p) for p in range(state.game.n_players)]


def test_solvers_take_it():
    game = OpenSpielGame("kuhn_poker")
    assert nash_conv(game, uniform) == pytest.approx(11 / 12) and expected_returns(game, uniform)[0] == pytest.approx(0.125)
    dice = OpenSpielGame("liars_dice", dice_sides=3)
    assert nash_conv(dice, uniform) == pytest.approx(nash_conv(LiarsDice(3), uniform), abs=1e-12)


def test_one_player_of_it_is_an_environment():
    env = GameEnv(OpenSpielGame("leduc_poker"), player=1)
    obs, info = env.reset(seed=0)
    assert info == {"player": 1} and obs["obs"].shape == (30,)
    copy = env.clone_state()
    steps = [env.step(int(obs["mask"].argmax()))[1:3]]
    env.restore_state(copy)
    assert [env.step(int(obs["mask"].argmax()))[1:3]] == steps
    assert str(OpenSpielGame("kuhn_poker", players=3)) == "OpenSpielGame('kuhn_poker', players=3)"


def test_what_is_no_game():
    with pytest.raises(ValueError, match="OpenSpielGame: .*no_such_game"):
        OpenSpielGame("no_such_game")
    with pytest.raises(ValueError, match="OpenSpielGame: .*plyers"):
        OpenSpielGame("kuhn_poker", plyers=3)
    with pytest.raises(ValueError, match="mfg_crowd_modelling is a game of mean_field dynamics"):
        OpenSpielGame("mfg_crowd_modelling")
