"""States of solvers: one that is loaded makes the same iterates, and what is no state of it is refused."""

from functools import partial

import numpy as np
import pytest

from parl_like.algorithms.games import (
    CFR,
    CFRPlus,
    DeepCFR,
    ExploitabilityDescent,
    ExternalSampling,
    FictitiousPlay,
    OutcomeSampling,
)
from parl_like.envs.games import Kuhn, Leduc, TurnBased
from parl_like.envs.games.simultaneous import RockPaperScissors

SOLVERS = {
    "CFR": CFR, "simultaneous CFR": partial(CFR, alternating=False, delay=3), "CFR+": CFRPlus,
    "ExternalSampling": ExternalSampling, "OutcomeSampling": partial(OutcomeSampling, epsilon=0.3),
    "FictitiousPlay": FictitiousPlay, "ExploitabilityDescent": ExploitabilityDescent,
    "DeepCFR": partial(DeepCFR, hidden=(8,), traversals=3, steps=3, policy_steps=3, batch_size=8, memory=40),
}
each = pytest.mark.parametrize("make", SOLVERS.values(), ids=SOLVERS)


def chances(solver, game):
    """What its average policy does in a few positions."""
    policy, found = solver.average_policy(), []
    for history in ([0, 1], [0, 2, 1], [2, 1, 0, 1]):
        found += np.asarray(policy(game.replay(history))).tolist()
    return found


@each
def test_a_solver_that_is_loaded_goes_on_exactly(make, tmp_path):
    game = Kuhn()
    whole, half, other = make(game), make(game), make(game)
    whole.learn(13)
    half.learn(6)
    half.save(tmp_path / "half")
    other.learn(2)  # it has a past of its own
    other.load(tmp_path / "half")
    assert other.iterations == 6
    half.learn(7)  # the state was a copy
    other.learn(7)
    assert chances(whole, game) == chances(half, game) == chances(other, game)
    new = make(game)
    new.save(tmp_path / "new")
    other.load(tmp_path / "new")  # nothing is learned yet
    other.learn(13)
    assert other.iterations == 13 and chances(make_and_learn(make, game, 13), game) == chances(other, game)


def make_and_learn(make, game, n):
    solver = make(game)
    solver.learn(n)
    return solver


@each
def test_the_state_of_another_game_or_solver_is_refused_and_nothing_changes(make):
    one = make_and_learn(make, Kuhn(), 3)
    before, other = chances(one, Kuhn()) if not isinstance(one, DeepCFR) else None, make_and_learn(make, Leduc(), 1).state_dict()
    state = one.state_dict()
    for wrong, said in [(other, "is that of 'Leduc.*; expected 'Kuhn"), ({**state, "solver": "Other"}, "is that of 'Other'"),
                        ({**state, "iterations": -1}, "iterations: expected a whole number"), ({}, "the state has no")]:
        with pytest.raises(ValueError, match=said):
            one.load_state_dict(wrong)
    assert one.iterations == 3 and (before is None or chances(one, Kuhn()) == before)


@pytest.mark.parametrize("make", [SOLVERS[name] for name in ("CFR", "ExternalSampling", "FictitiousPlay", "DeepCFR")])
@pytest.mark.parametrize("bad", [np.nan, "short"])
def test_damaged_numbers_are_refused(make, bad):
    one = make_and_learn(make, Kuhn(), 2)
    state = one.state_dict()
    parts = state["learned"]["networks"]["0"] if "networks" in state["learned"] else state["learned"]
    name = next(name for name in ("sums", "0.weight") if name in parts)
    if bad == "short":
        parts[name] = parts[name][:-1]
    else:
        parts[name].reshape(-1)[0] = bad
    with pytest.raises(ValueError, match="expected (finite numbers|hidden)"):
        one.load_state_dict(state)


def test_games_that_are_led_to_turns_have_states_too(tmp_path):
    one, other = (FictitiousPlay(TurnBased(RockPaperScissors())) for _ in range(2))
    one.learn(5)
    one.save(tmp_path / "rps")
    other.load(tmp_path / "rps")
    assert other.sums.tolist() == one.sums.tolist() and other.sums.any()
