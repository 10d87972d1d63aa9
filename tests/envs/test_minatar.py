"""The MinAtar games: scores of random play, sticky actions, seeds, and states that can be cloned."""

import sys
import textwrap
from importlib.util import find_spec

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import parl_like.envs  # noqa: F401  # makes its id known
from parl_like.envs.minatar import MinAtar

REAL = pytest.mark.skipif(find_spec("minatar") is None, reason="minatar is not installed")
GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
ECHO = """
    import numpy as np

    class Env:
        def __init__(self, ramping=True):
            self.ramping, self.seen = ramping, []
            self.random = np.random.RandomState()

        def act(self, a):
            self.seen.append(a)
            return self.random.randint(3) + self.random.rand(), len(self.seen) == 12

        def state(self):
            out = np.zeros((10, 10, 2), bool)
            out[len(self.seen) % 10, self.seen[-1] if self.seen else 9, 1] = True
            return out

        def reset(self):
            self.seen, self.kinds = [], self.random.randint(low=0, high=2, size=3)

        def state_shape(self):
            return [10, 10, 2]

        def minimal_action_set(self):
            return [0, 3, 5]
"""


@pytest.fixture
def echo(tmp_path, monkeypatch):
    """A package of the same form with one game, which repeats what it is told; what it draws with is missing."""
    (tmp_path / "minatar" / "environments").mkdir(parents=True)
    (tmp_path / "minatar" / "__init__.py").write_text("raise ImportError('no display')")
    (tmp_path / "minatar" / "environments" / "echo.py").write_text(textwrap.dedent(ECHO))
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "minatar"]:  # another test has imported the real one
        monkeypatch.delitem(sys.modules, name)
    return lambda **options: MinAtar("echo", **options)


def play(env, acts):
    out = []
    for act in acts:
        obs, *rest = env.step(act)
        out.append((obs.tolist(), *rest))
        if rest[1]:
            out.append(env.reset()[0].tolist())
    return out


def test_actions_are_those_that_the_game_knows_and_stick_as_often_as_asked(echo):
    env = echo(sticky=0.0)
    obs, _ = env.reset(seed=1)
    assert env.action_space.n == 3 and (obs.shape, obs.dtype) == ((10, 10, 2), np.uint8) and env.observation_space.contains(obs)
    play(env, [0, 1, 2])
    assert env.game.seen == [0, 3, 5]
    env = echo(sticky=1.0)
    env.reset(seed=1)
    play(env, [2, 1, 2])
    assert env.game.seen == [0, 0, 0]  # nothing but the no-op of the beginning
    env, stuck = echo(sticky=0.25), 0
    env.reset(seed=1)
    for k in range(2000):
        before, act = env.last_action, env.action_space.start + k % 3
        over = env.step(act)[2]
        stuck += env.last_action == before != env.actions[act]
        if over:
            env.reset()
            assert env.last_action == 0
    assert 0.19 < stuck / 2000 < 0.29


def test_what_does_not_fit_is_refused(echo, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="sticky is 1.5"):
        echo(sticky=1.5)
    with pytest.raises(ValueError, match="game 'pong'.*echo"):
        MinAtar("pong")
    env = echo()
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action is 3"):
        env.step(3)
    play(env, [0] * 11)
    assert env.step(0)[2]
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    monkeypatch.setattr("parl_like.envs.minatar.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install --no-deps minatar"):
        MinAtar()


def check_clone(env, other):
    acts = np.random.default_rng(3).integers(env.action_space.n, size=300)
    env.reset(seed=4)
    play(env, acts[:7])
    state = env.clone_state()
    other.restore_state(state)
    seen = play(env, acts)
    assert play(other, acts) == seen
    other.restore_state(state)  # what was played since has not changed it
    assert play(other, acts) == seen
    env.reset(seed=4)
    env.step(acts[0])
    again = env.clone_state()
    other.reset(seed=4)
    other.step(acts[0])
    assert again["rng"] == other.clone_state()["rng"] and again["rng"] != state["rng"]


def test_a_cloned_state_goes_on_alike(echo):
    check_clone(echo(), echo())


@REAL
@pytest.mark.parametrize("game", GAMES)
def test_the_games_are_environments_whose_states_can_be_cloned(game):
    env = gym.make("MinAtar-v0", game=game)
    check_env(env.unwrapped, skip_render_check=True)
    check_clone(MinAtar(game), MinAtar(game))


@REAL
@pytest.mark.parametrize(("game", "episodes", "score", "error"), [
    ("breakout", 1000, 0.470, 0.06), ("space_invaders", 200, 2.933, 0.4)])
def test_random_play_scores_what_is_known(game, episodes, score, error):
    """Of all six actions, of which a game may know fewer; the known ones are as likely then."""
    env, rng, returns = MinAtar(game), np.random.default_rng(0), []
    env.reset(seed=0)
    every = {action: index for index, action in enumerate(env.actions)}
    for _ in range(episodes):
        env.reset()
        total, over = 0.0, False
        while not over:
            _, rew, over, *_ = env.step(every.get(int(rng.integers(6)), 0))
            total += rew
        returns.append(total)
    assert np.mean(returns) == pytest.approx(score, abs=error)
