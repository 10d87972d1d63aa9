"""The page about games: its script runs, and its tables name what there is."""

import re
from pathlib import Path

import pytest

from parl_like.algorithms import games as solvers
from parl_like.envs import games

pytestmark = pytest.mark.checkout
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "games.md").read_text(encoding="utf-8")


def test_the_script_runs_and_says_what_it_should(capsys):
    exec(compile(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], "docs/games.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == [
        "even play gives away 0.916667", "CFR+ gives away 0.000867", "player 0 gets -0.0556, the value of the game is -0.0556",
        "with the highest card player 0 bets with probability 0.61",
        "the best answer to that of player 1 with the lowest card after a bet: 0"]


def test_it_names_all_solvers_and_games():
    for name in solvers.__all__:
        assert f"`{name}`" in PAGE, name
    for name, one in vars(games).items():
        if isinstance(one, type) and issubclass(one, games.Game) and one is not games.Game:
            assert f"`{name}(" in PAGE, name
