"""Atari: order of the preparation on a console that shows the number of its frame, pictures, and the real games."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from parl_like.envs.atari import RESTARTS, Ale, Atari, area_resize, luminance, rom_name

try:
    import ale_py  # noqa: F401
    HAS_ALE = True
except ImportError:
    HAS_ALE = False
needs_ale = pytest.mark.skipif(not HAS_ALE, reason="needs the extra `atari`")


class Console:
    """Its screen shows how many frames it ever ran, in every pixel. A script says when lives are lost and games are over."""

    def __init__(self, actions=("NOOP", "RIGHT"), shape=(4, 3), lives=3, lose=(), over=(), points=1.0, flicker=False):
        self.actions, self.shape = list(actions), shape
        self.start, self.lose, self.end, self.points, self.flicker = lives, set(lose), set(over), points, flicker
        self.log, self.games, self.t, self.shown = [], 0, 0, 0

    def seed(self, seed):
        self.log.append("seed")
        self.shown = 0

    def reset(self):
        self.games, self.t, self.left, self.done = self.games + 1, 0, self.start, False
        self.log.append("reset")

    def act(self, action):
        assert not self.done, "acted in a game that is over"
        self.t, self.shown = self.t + 1, self.shown + 1
        self.left -= self.t in self.lose
        self.done = self.t in self.end
        self.log.append(self.actions[action])
        return self.points

    def over(self):
        return self.done

    def lives(self):
        return self.left

    def screen(self, out):
        out[:] = 0 if self.flicker and self.t % 2 == 0 else self.shown % 256

    def clone(self):
        return np.array([self.games, self.t, self.left, self.done, self.shown], np.int64)

    def restore(self, state):
        self.games, self.t, self.left, self.done, self.shown = (int(x) for x in state)


def atari(console, **options):
    return Atari(console, **{"size": None, "noop_max": 0, "grey": True} | options)


def numbers(obs):
    assert obs.dtype == np.uint8 and (obs == obs[:, :1, :1]).all()
    return obs[:, 0, 0].tolist()


# ------------------------------------------------------------------------------------------------------------------- order


def test_a_stack_never_shows_an_older_episode():
    # Golden `frame_stack`: after the reset the first frame repeats, and the frames before it never come back.
    console = Console(over=[4])
    env = atari(console, frame_skip=1)
    outputs = [numbers(env.reset()[0])]
    while len(outputs) < 5:
        obs, _, terminated, _, _ = env.step(0)
        outputs.append(numbers(obs))
    assert terminated and outputs == [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4]]
    console.shown = 5
    outputs += [numbers(env.reset()[0]), numbers(env.step(0)[0]), numbers(env.step(0)[0])]
    assert outputs[3:] == [[0, 1, 2, 3], [1, 2, 3, 4], [5, 5, 5, 5], [5, 5, 5, 6], [5, 5, 6, 7]]


def test_an_action_is_held_and_the_last_two_frames_are_pooled():
    console = Console(flicker=True)  # every second frame is black
    env = atari(console, stack=2)
    env.reset()
    obs, reward, *_ = env.step(1)
    assert console.log == ["reset", *["RIGHT"] * 4] and reward == 4.0 and numbers(obs) == [0, 3]
    assert numbers(atari(Console(flicker=True), stack=1, frame_skip=2).reset()[0]) == [0]


def test_what_an_older_repetition_left_is_not_pooled():
    class Dimming(Console):
        def screen(self, out):
            out[:] = 200 - self.t

    env = atari(Dimming(over=[9]), stack=1)
    env.reset()
    assert [numbers(env.step(0)[0]) for _ in range(3)] == [[197], [193], [191]]  # the last repetition has one frame


def test_the_maximum_is_of_colours_and_comes_before_luminance():
    class Colours(Console):
        def screen(self, out):
            out[:] = (255, 0, 0) if self.t % 2 else (0, 0, 255)

    env = atari(Colours(), stack=1, frame_skip=2)
    env.reset()
    assert numbers(env.step(0)[0]) == [round(255 * (0.299 + 0.114))]
    env = atari(Colours(), stack=2, grey=False, size=(2, 3))
    env.reset()
    assert env.observation_space.shape == (6, 2, 3)
    assert env.step(0)[0][:, 0, 0].tolist() == [0, 0, 255, 255, 0, 255]


def test_a_game_begins_with_no_ops_then_fire():
    counts = set()
    console = Console(actions=("NOOP", "FIRE", "UP"))
    env = atari(console, noop_max=5)
    env.reset(seed=1)
    for _ in range(60):
        console.log.clear()
        _, info = env.reset()
        log = console.log
        assert log[0] == "reset" and log[-4:] == ["FIRE"] * 4 and set(log[1:-4]) == {"NOOP"} and info["frames"] == len(log) - 1
        counts.add(len(log) - 5)
    assert counts == {1, 2, 3, 4, 5}
    console.log.clear()
    atari(console, fire=False).reset()
    assert console.log == ["reset"]


def test_a_lost_life_ends_the_episode_and_not_the_game():
    console = Console(actions=("NOOP", "FIRE"), lose=[8], over=[20])
    env = atari(console)
    env.reset()  # frames 1 … 4: FIRE
    obs, reward, terminated, truncated, info = env.step(0)
    assert (reward, terminated, truncated) == (4.0, True, False)
    assert info == {"lives": 2, "frames": 8, "raw_reward": 4.0, "real_done": False}
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    console.log.clear()
    obs, info = env.reset()
    assert (
        console.log == ["NOOP"] * 4 + ["FIRE"] * 4
        and numbers(obs) == [16] * 4
        and info == {"real_done": False, "lives": 2, "frames": 16}
    )
    _, reward, terminated, _, info = env.step(0)
    # All 20 points, also those of no-ops and FIRE.
    assert terminated and reward == 4 and info == {"lives": 2, "frames": 20, "raw_reward": 4.0, "real_done": True,
                                                   "real_return": 20.0, "real_length": 2}
    console.log.clear()
    env.reset()
    assert console.log[0] == "reset"
    env = atari(Console(lose=[4], over=[8]), life_loss=False)
    env.reset()
    assert env.step(0)[2] is False and env.step(0)[2] is True


def test_no_lives_for_a_moment_are_no_end():
    env = atari(Console(lives=1, lose=[4], over=[8]))
    env.reset()
    assert env.step(0)[2] is False
    assert env.step(0)[4]["real_return"] == 8.0


@pytest.mark.parametrize("options", [{"seed": 3}, {"options": {"real": True}}], ids=str)
def test_after_a_lost_life_a_seed_or_an_option_asks_for_a_new_game(options):
    console = Console(lose=[4])
    env = atari(console)
    env.reset()
    assert env.step(0)[2]
    env.reset(**options)
    assert console.games == 2


def test_an_episode_that_is_left_early_restarts_the_game():
    console = Console(lose=[50])
    env = atari(console)
    env.reset()
    env.step(0)
    env.reset()
    assert console.games == 2 and console.left == 3


def test_a_game_that_ends_inside_of_a_reset_is_told_there():
    console = Console(lose=[4], over=[6])
    env = atari(console)
    env.reset()
    env.step(0)
    obs, info = env.reset()  # its no-op ends the game
    assert info == {"real_done": True, "real_return": 6.0, "real_length": 1, "lives": 3, "frames": 0} and console.games == 2
    assert numbers(obs) == [6] * 4
    console = Console(actions=("NOOP", "FIRE"), over=[2])
    with pytest.raises(RuntimeError, match=f"over {RESTARTS} times"):
        atari(console).reset()
    console = Console(over=[2])
    assert atari(console, noop_max=9).reset(seed=0)[1]["frames"] in (0, 1) and console.games > 1


def test_the_limit_counts_raw_frames_and_cuts_a_repetition():
    console = Console(flicker=True)
    env = atari(console, max_frames=11)
    env.reset()
    for _ in range(2):
        assert env.step(0)[3] is False
    obs, reward, terminated, truncated, info = env.step(0)
    assert (reward, terminated, truncated) == (3.0, False, True)
    assert numbers(obs)[-1] == 11  # of frames 10 and 11: both were looked at, although the repetition was cut
    assert info["real_done"] and info["real_return"] == 11.0 and info["frames"] == 11
    env.reset()
    assert console.games == 2
    env = atari(Console(lose=[11]), max_frames=11)
    env.reset()
    *_, last = [env.step(0) for _ in range(3)]
    assert last[2] is True and last[3] is True and last[4]["real_done"]  # life and limit at once: the next game is a new one
    assert env.reset()[1]["real_done"] is False and env.emulator.games == 2  # that end was told already


def test_clipping_keeps_the_raw_reward_and_the_return():
    env = atari(Console(points=-3.0, over=[8]), clip_reward=1.0)
    env.reset()
    _, reward, _, _, info = env.step(0)
    assert reward == -1.0 and info["raw_reward"] == -12.0
    assert env.step(0)[4]["real_return"] == -24.0


def test_sticky_actions_hold_raw_frames():
    console = Console()
    env = atari(console, sticky=0.25)
    env.reset(seed=0)
    held, frames = 0, 0
    rng = np.random.default_rng(0)
    for _ in range(2000):
        before = console.log[-1] if frames else "NOOP"
        console.log.clear()
        action = int(rng.integers(2))
        env.step(action)
        for name in console.log:
            held, frames = held + (name != console.actions[action]), frames + 1
        # Once the new action is taken, what sticks is the new action.
        changed = [name == console.actions[action] for name in console.log]
        assert changed == sorted(changed) and (before != console.actions[action] or all(changed))
    # Half of the steps ask for another action; frame k of them still shows the old one with probability 0.25^k.
    expected = 0.5 * (0.25 + 0.25**2 + 0.25**3 + 0.25**4) / 4
    assert held / frames == pytest.approx(expected, abs=0.006)


# ---------------------------------------------------------------------------------------------------------------- pictures


def slow_area(image, size):
    rows, columns = image.shape[1:]
    out = np.zeros((len(image), *size))
    fine = image.repeat(size[0], 1).repeat(size[1], 2).astype(np.int64)  # every new pixel covers whole fine ones
    for i in range(size[0]):
        for j in range(size[1]):
            out[:, i, j] = fine[:, i * rows : (i + 1) * rows, j * columns : (j + 1) * columns].mean((1, 2))
    return np.rint(out).astype(np.uint8)


@pytest.mark.parametrize("shape, size",
                         [((3, 12, 9), (5, 4)), ((1, 10, 8), (4, 8)), ((2, 6, 5), (9, 7)), ((1, 7, 6), (7, 6)),
                          ((3, 5, 8), (1, 1))])
def test_pictures_are_means_of_areas(shape, size):
    image = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    out = area_resize(image, size)
    assert np.array_equal(out, slow_area(image, size)) and out.flags.c_contiguous and out.flags.owndata
    assert not np.shares_memory(out, image)


def test_a_large_picture_is_exact_too():
    image = np.full((1, 300, 400), 255, np.uint8)
    image[0, ::2] = 254
    assert (area_resize(image, (150, 100)) == 254).all()  # 254.5 to the even number
    image[0, 0, 0] = 255
    assert area_resize(image, (1, 1)).item() == 255  # 254.5 and a bit, which float32 cannot hold


def test_luminance():
    image = np.array([[[255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255], [0, 0, 0]]], np.uint8)
    assert luminance(image).tolist() == [[255, 76, 150, 29, 0]]


# ------------------------------------------------------------------------------------------------------------------- state


def trace(env, rng, steps):
    rows = []
    for _ in range(steps):
        obs, reward, terminated, truncated, info = env.step(int(rng.integers(env.action_space.n)))
        rows.append((obs.tobytes(), reward, terminated, truncated, sorted(info.items())))
        if terminated or truncated:
            obs, info = env.reset()
            rows.append((obs.tobytes(), sorted(info.items())))
    return rows


@pytest.mark.parametrize("before", [1, 7, 12, 13, 30])
def test_a_restored_state_goes_on_alike(before):
    def make():
        return atari(Console(actions=("NOOP", "FIRE", "UP"), lose=[25, 60], over=[90], flicker=True), noop_max=8, sticky=0.3,
                     max_frames=200)

    env = make()
    env.reset(seed=4)
    trace(env, np.random.default_rng(0), before)
    state = env.clone_state()
    first = trace(env, np.random.default_rng(1), 80)
    env.restore_state(state)
    assert trace(env, np.random.default_rng(1), 80) == first
    other = make()
    other.reset(seed=77)
    other.restore_state(state)
    assert trace(other, np.random.default_rng(1), 80) == first


def test_a_state_just_after_a_lost_life_still_knows_it():
    console = Console(lose=[4])
    env = atari(console)
    env.reset()
    env.step(0)
    state = env.clone_state()
    env.reset(options={"real": True})
    env.restore_state(state)
    env.reset()
    assert console.games == 1


def test_a_state_of_other_pictures_is_refused():
    env = atari(Console())
    with pytest.raises(gym.error.ResetNeeded, match="clone_state"):
        env.clone_state()
    env.reset()
    with pytest.raises(ValueError, match=r"frames \(4, 1, 4, 3\).*expected \(2, 1, 4, 3\)"):
        atari(Console(), stack=2).restore_state(env.clone_state())


# ------------------------------------------------------------------------------------------------------------- bad arguments


@pytest.mark.parametrize("options, message", [
    ({"stack": 0}, "stack is 0"), ({"frame_skip": 0}, "frame_skip is 0"), ({"noop_max": -1}, "noop_max is -1"),
    ({"sticky": 1.0}, "sticky is 1.0"),
    ({"clip_reward": 0}, "clip_reward is 0"), ({"max_frames": 4}, "max_frames is 4"),
    ({"render_mode": "human"}, "render_mode is 'human'"),
    ({"full_actions": True}, "this emulator is there already"), ({"size": 0}, "size is 0"),
], ids=str)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        atari(Console(), **options)


def test_bad_calls_are_named():
    env = atari(Console())
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    with pytest.raises(ValueError, match="no option 'level'"):
        env.reset(options={"level": 1})
    env.reset()
    with pytest.raises(ValueError, match="action is 2; expected 0 … 1"):
        env.step(2)


def test_names_of_games():
    for name in ("space_invaders", "SpaceInvaders", "ALE/SpaceInvaders-v5", "SpaceInvadersNoFrameskip-v4",
                 "SpaceInvadersDeterministic-v0"):
        assert rom_name(name) == "space_invaders"
    assert rom_name("ALE/Qbert-v5") == "qbert" and rom_name("Atlantis2") == "atlantis2"


# -------------------------------------------------------------------------------------------------------------- real games


def test_the_checker_on_the_console():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(atari(Console(), noop_max=3, render_mode="rgb_array"), skip_render_check=True)  # that one wants a registered id


@needs_ale
@pytest.mark.parametrize("options", [{}, {"size": 84, "grey": True, "clip_reward": 1.0, "sticky": 0.25}], ids=str)
def test_the_checker_on_a_game(options):
    env = Atari("ALE/Breakout-v5", render_mode="rgb_array", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)
    assert env.observation_space.shape == ((4, 84, 84) if options else (12, 96, 96))
    assert env.action_space.n == 4 and env.render().shape == (210, 160, 3)


@needs_ale
@pytest.mark.parametrize("game", ["breakout", *(pytest.param(game, marks=pytest.mark.slow) for game in ("pong", "qbert"))])
def test_a_restored_game_goes_on_alike(game):
    # Sticky pong: the console's own stickiness is not in its state. Q*bert: a console fresh from its reset takes a state up
    # badly.
    options = {"size": 42, "grey": True, "sticky": 0.25, "max_frames": 2000}
    env = Atari(game, render_mode="rgb_array", **options)
    env.reset(seed=5)
    trace(env, np.random.default_rng(0), 60)
    state = env.clone_state()
    picture = env.render()
    first = trace(env, np.random.default_rng(1), 500)
    env.restore_state(state)
    assert np.array_equal(env.render(), picture) and trace(env, np.random.default_rng(1), 500) == first
    fresh = Atari(game, **options)
    fresh.emulator.reset()
    fresh.restore_state(state)
    assert trace(fresh, np.random.default_rng(1), 500) == first
    never = Atari(game, **options)
    never.restore_state(state)
    assert trace(never, np.random.default_rng(1), 500) == first
    assert any(row[2] is True or row[3] is True for row in first if len(row) == 5)


@needs_ale
def test_seeds_repeat_and_differ():
    a, b, c = (Atari("breakout", size=42, grey=True, sticky=0.25) for _ in range(3))
    for env, seed in ((a, 1), (b, 1), (c, 2)):
        env.reset(seed=seed)
    rows = [trace(env, np.random.default_rng(0), 100) for env in (a, b, c)]
    assert rows[0] == rows[1] != rows[2]


@needs_ale
def test_without_sticky_actions_a_game_is_what_its_actions_make_it():
    a, b = Ale("breakout"), Ale("breakout")
    screens = np.zeros((2, 210, 160, 3), np.uint8)
    for console, seed, out in ((a, 1, screens[0]), (b, 2, screens[1])):
        console.seed(seed)
        console.reset()
        for i in range(300):
            console.act(i * i % 7 % 4)
        console.screen(out)
    assert np.array_equal(*screens)


@needs_ale
def test_unknown_games_and_variants_are_named():
    with pytest.raises(ValueError, match="no game 'brekout'; did you mean 'breakout'"):
        Atari("Brekout")
    assert Atari("pong", full_actions=True).action_space.n == 18


# ------------------------------------------------------------------------------------------------ beside ale_py's own vector one

BESIDE = {"size": 84, "grey": True, "clip_reward": 1.0, "noop_max": 0, "fire": False}


def both(game, ours, theirs):
    """Our environment and theirs, both reset, with neither no-ops nor FIRE: these are drawn and held in other ways there."""
    vector = pytest.importorskip("ale_py.vector_env")
    envs = vector.AtariVectorEnv(game, 1, noop_max=0, use_fire_reset=False, num_threads=1, **theirs)
    env = Atari(game, **BESIDE | ours)
    return env, envs, env.reset(seed=0)[0], envs.reset(seed=0)[0][0]


def beside(env, envs, steps):
    """The steps of both with the same actions: our values, then theirs."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        act = int(rng.integers(env.action_space.n))
        obs, rew, terminated, truncated, _ = envs.step(np.array([act]))
        yield env.step(act)[:4], (obs[0], rew[0], terminated[0], truncated[0])


@needs_ale
@pytest.mark.parametrize("game", ["breakout", "ms_pacman"])
def test_single_frames_are_those_of_ales_vector_environment(game):
    env, envs, first, other = both(game, {"frame_skip": 1, "life_loss": False, "stack": 1},
                                   {"frameskip": 1, "maxpool": False, "stack_num": 1})
    assert (first == other).all()
    for ours, theirs in beside(env, envs, 150):
        assert np.abs(ours[0].astype(int) - theirs[0]).max() <= 1 and ours[1:] == theirs[1:]  # rounded once more there


@needs_ale
def test_the_maximum_is_of_colours_here_and_of_greys_there_and_a_stack_begins_with_its_frame_or_with_nothing():
    env, envs, first, other = both("pong", {"life_loss": False}, {})
    assert (first[-1] == other[-1]).all() and (first[:-1] == first[-1]).all() and not other[:-1].any()
    differ = 0
    for t, (ours, theirs) in enumerate(beside(env, envs, 150)):
        assert ours[1:] == theirs[1:], "the game is the same"
        if t >= 3 and (ours[0] != theirs[0]).any():
            differ += 1
            assert (ours[0] != theirs[0]).mean() < 0.02  # where something moves
    assert differ


@needs_ale
def test_after_a_lost_life_the_games_go_apart():
    env, envs, *_ = both("breakout", {}, {"episodic_life": True})
    for ours, theirs in beside(env, envs, 400):
        assert ours[1:] == theirs[1:]
        if ours[2]:
            break
    else:
        raise AssertionError("no life was lost")
    obs, (other, *_) = env.reset()[0], envs.step(np.array([0]))
    assert (obs[-1] != other[0, -1]).any(), "a no-op passes here, as in Mnih et al. 2015"
