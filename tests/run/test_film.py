"""`Robot.play` films the robot's own environment, however it is made."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from agent_fakes import ACT, POSITION, Corridor, Recorder, robot_of

from parl_like import Agent, Hook, Robot, VectorAgent
from parl_like.environment import factory
from parl_like.environment.factory import Film, write_gif


def frames(path):
    from PIL import Image

    return Image.open(path).n_frames


def heavy():
    """A pole that falls faster, and an episode that is over sooner: neither is in the environment's registration."""
    env = gym.make("CartPole-v1")
    env.unwrapped.gravity, env.unwrapped.theta_threshold_radians = 50.0, 0.06
    return env


class Brighter(gym.Wrapper):
    """A wrapper that gymnasium could not make again: it does not record its arguments."""

    def __init__(self, env, by=100):
        super().__init__(env)
        self.by = by

    def render(self):
        return self.env.render() + np.uint8(self.by)


def wrapped(render_mode=None):
    return Brighter(Corridor(3, render_mode=render_mode))


def test_what_is_filmed_is_what_is_watched_and_evaluated(tmp_path):
    with robot_of(Recorder(model_for(heavy)), env=heavy) as robot:
        assert robot.play(tmp_path / "film.gif", seed=1) == robot.evaluate(1, seed=1).returns[0] < 6


def model_for(make):
    env = make()
    return type(Recorder().model)(env.observation_space, env.action_space)


@pytest.mark.parametrize("env",
                         [Corridor, lambda: Corridor(5), wrapped, partial(Corridor, 5), lambda **options: Corridor(5, **options),
                                 lambda **options: Corridor(5, end="terminated",
                                                            **{k: v for k, v in options.items() if k == "length"})])
@pytest.mark.parametrize("agent", [Agent, lambda: VectorAgent(2)], ids=["single", "vector"])
def test_factories_classes_and_wrappers_are_filmed(env, agent, tmp_path):
    with robot_of(Recorder(), env=env, agent=agent) as robot:
        total = robot.play(tmp_path / "film.gif")
        assert total == (3.0 if env is wrapped else 5.0) and frames(tmp_path / "film.gif") == total + 1


def test_a_factory_is_told_the_render_mode_where_it_takes_one(tmp_path):
    told = []

    def make(render_mode=None):
        told.append(render_mode)
        return Corridor(render_mode=render_mode)

    with robot_of(Recorder(), env=make) as robot:
        robot.play(tmp_path / "film.gif")
        assert told == [None, "rgb_array"]


def test_a_vector_environment_of_a_configuration_is_filmed(tmp_path):
    env = {"id": "CartPole-v1", "vector": 2, "wrappers": ["ActionRepeat"]}
    with Robot.of("PPO", env, seed=0, **{"ActionRepeat.n": 2}) as robot:
        steps = robot.watch(Hook(), seed=1)
        assert robot.play(tmp_path / "film.gif", seed=1) == steps
        assert 2 < frames(tmp_path / "film.gif") <= steps + 1


class Blind(Corridor):
    metadata = {"render_modes": ["ansi"]}

    def render(self):
        return "a corridor"


class Broken(Corridor):
    def render(self):
        raise OSError("no screen")


class NoRender:
    observation_space, action_space = POSITION, ACT

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, act):
        return np.zeros(1, np.float32), 1.0, True, False, {}


@pytest.mark.parametrize(("env", "message"), [
    (Blind, r"Blind.* cannot be drawn: expected render\(\) to give a picture .* got str \(its render_mode is 'rgb_array'\); "
            r"give play an environment"),
    (Broken, r"Broken.* cannot be drawn, its render\(\) raised OSError: no screen; give play an environment that renders "
             r"'rgb_array'"),
    (NoRender, r"NoRender.* cannot be drawn, its render\(\) raised AttributeError: .*factory that takes the mode"),
])
def test_what_cannot_be_drawn_is_named(env, message, tmp_path):
    with robot_of(Recorder(), env=env) as robot, pytest.raises(ValueError, match=message):
        robot.play(tmp_path / "film.gif")
    assert not (tmp_path / "film.gif").exists()


def test_an_environment_that_is_lent_is_filmed_itself(tmp_path):
    env = Corridor(3, render_mode="rgb_array")
    with robot_of(Recorder()) as robot:
        assert robot.play(tmp_path / "film.gif", env=env) == 3.0 and env.closed == 0
        assert robot.play(tmp_path / "again.gif", env=lambda: Corridor(2)) == 2.0


def test_a_wrapped_environment_itself_cannot_be_made_again(tmp_path):
    with robot_of(Recorder(model_for(heavy)), env=Brighter(heavy())) as robot, pytest.raises(ValueError,
                                                                                             match="give the robot a factory"):
        robot.play(tmp_path / "film.gif")


def test_a_gif_keeps_its_pace(tmp_path):
    from PIL import Image

    pictures = [np.full((4, 4, 3), 10 * i, np.uint8) for i in range(3)]
    for rate, milliseconds in ((10, 100), (30, 30), (1000, 20)):
        write_gif(tmp_path / "film.gif", pictures, rate)
        film = Image.open(tmp_path / "film.gif")
        assert film.n_frames == 3 and film.info["duration"] == milliseconds and film.info["loop"] == 0


def test_a_film_takes_three_seconds_at_the_environments_rate(tmp_path):
    from PIL import Image, ImageSequence

    class Slow(Corridor):
        metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    with robot_of(Recorder(), env=Slow) as robot:
        robot.play(tmp_path / "film.gif")
    times = [one.info["duration"] for one in ImageSequence.Iterator(Image.open(tmp_path / "film.gif"))]
    assert times == [100] * 5 + [2500]


def test_words_below_say_step_return_and_what_the_agent_says(tmp_path):
    from PIL import Image

    class Says(Agent):
        def caption(self):
            return f"goal: {self.steps}\nby task 'RL'"

    film = Film()
    with robot_of(Recorder(), env=lambda: Corridor(3, render_mode="rgb_array"), agent=Says) as robot:
        robot.watch(film)
        assert film.texts[0] == ["step 0   return 0.0", "goal: 0", "by task 'RL'"]
        assert film.texts[-1] == ["step 3   return 3.0", "goal: 3", "by task 'RL'"]
        robot.play(tmp_path / "film.gif")
    page = Image.open(tmp_path / "film.gif").convert("RGB")
    assert page.size[0] >= 320 and page.size[1] > 320
    assert len(set(page.crop((0, 320, *page.size)).getdata())) > 1, "there are words below"


def test_a_long_film_leaves_pictures_out_and_lasts_as_long(monkeypatch):
    monkeypatch.setattr(factory, "FILM_PIXELS", 10 * 320 * 320)
    for steps in (5, 9, 10, 19, 20, 33, 64, 100):
        film = Film()
        with robot_of(Recorder(), env=lambda n=steps: Corridor(n, render_mode="rgb_array")) as robot:
            robot.watch(film)
        shown = [int(text[0].split()[1]) for text in film.texts]
        every = shown[1]
        assert shown[:-1] == list(range(0, shown[-1], every)) and shown[-1] == steps, "begin and end are there"
        assert len(film.pictures) == len(shown) <= 10 and (every == 1) == (steps < 10)
        assert film.rate * every == Film().rate
