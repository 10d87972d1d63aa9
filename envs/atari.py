"""Atari games, prepared for learning, with the whole state to clone (extra `atari`: ale-py; the ROMs come with it).

The preparation of Mnih et al. 2015 with the protocol of Machado et al. 2018. From the game outwards: sticky actions, limit on raw
frames, no-ops at the start, repetition of the action with the sum of rewards and the maximum over the last two frames, the loss
of a life as an end, FIRE at the start, luminance, size, stack, clipped reward.
"""

from __future__ import annotations

import functools
import operator
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.values.errors import unknown
from parl_like.values.limits import check_array
from parl_like.values.spec import Array

MISSING = "Atari needs ale-py; install the extra: pip install 'parl_like[atari]'"
RESTARTS = 20  # of one reset; a game that is over sooner than it can begin, this often in a row, is not going to begin


class Ale:
    """A game of the Arcade Learning Environment, and what `Atari` asks of an emulator.

    Args:
        game: "space_invaders", "SpaceInvaders", "ALE/SpaceInvaders-v5" or "SpaceInvadersNoFrameskip-v4".
        full_actions: All 18 actions, not only those that the game knows.

    Attributes:
        actions: What each action means: "NOOP", "FIRE", ….
        shape: Rows and columns of a screen.

    Raises:
        ImportError: ale-py is not installed. ValueError: unknown game.
    """

    def __init__(self, game: str, full_actions: bool = False) -> None:
        try:
            import ale_py
        except ImportError:
            raise ImportError(MISSING) from None
        name = rom_name(game)
        known = ale_py.roms.get_all_rom_ids()
        if name not in known:
            raise ValueError("Atari: " + unknown("game", name, known))
        self.rom = ale_py.roms.get_rom_path(name)
        self._state_of = ale_py.ALEState
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale: Any = ale_py.ALEInterface()
        # Stickiness and the frame limit are ours: the action that sticks is not in the emulator's state.
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.seed(0)
        self._actions: Any = self.ale.getLegalActionSet() if full_actions else self.ale.getMinimalActionSet()
        self.actions: Sequence[str] = [action.name for action in self._actions]
        rows, columns = self.ale.getScreenDims()
        self.shape = (int(rows), int(columns))

    def seed(self, seed: int) -> None:
        """Seeds what is random in the console, 0 ≤ seed < 2³¹; a `reset` follows."""
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(self.rom)  # the seed is read only here

    def reset(self) -> None:
        """Starts a game."""
        self.ale.reset_game()

    def act(self, action: int) -> float:
        """Holds an action, an index of `actions`, for one raw frame, 1/60 s; returns the points."""
        return float(self.ale.act(self._actions[action]))

    def over(self) -> bool:
        """Return whether the game is over; its frame limit is not asked."""
        return bool(self.ale.game_over(with_truncation=False))

    def lives(self) -> int:
        """Return how many lives are left; 0 in games that know none."""
        return int(self.ale.lives())

    def screen(self, out: Array) -> None:
        """Writes the screen into [rows, columns, 3] uint8."""
        self.ale.getScreenRGB(out)

    def clone(self) -> Array:
        """Everything that later frames depend on, [n] uint8. The screen need not be in it."""
        return np.frombuffer(self.ale.cloneState(include_rng=True).serialize(), np.uint8).copy()

    def restore(self, state: Array) -> None:
        """Go back to a state, [n] uint8, that `clone` returned; the screen is drawn by the next frame."""
        # An emulator that has not run a frame since its reset goes on differently after a restore (seen in Q*bert).
        self.ale.act(self._actions[0])
        self.ale.restoreState(self._state_of(state.tobytes()))


@dataclass
class GameProgress:
    """The progress of a game, beside the emulator's own.

    Attributes:
        open: An episode is running. life_lost: The last one ended by this, and the game goes on.
        held: The action that the console holds, an index. lives: Left after the last step.
        frames: Raw frames of this game so far. length: Its steps. points: Their sum.
    """

    open: bool = False
    life_lost: bool = False
    held: int = 0
    lives: int = 0
    frames: int = 0
    length: int = 0
    points: float = 0.0

    def begin(self, held: int) -> None:
        """A new game begins, with this action held."""
        self.held, self.frames, self.length, self.points = held, 0, 0, 0.0


class Pictures:
    """The newest screens of a console, and what is made of them.

    Args:
        shape: Rows and columns of a screen. size: Of a picture. grey: See `Atari`.

    Attributes:
        screens: [2, rows, columns, 3] uint8, the newest first. channels: Of a picture, 1 or 3.
    """

    def __init__(self, shape: tuple[int, int], size: tuple[int, int], grey: bool) -> None:
        self.size, self.grey, self.channels = size, grey, 1 if grey else 3
        self.screens = np.zeros((2, *shape, 3), np.uint8)
        self._maximum = np.empty((*shape, 3), np.uint8)

    def newest(self) -> Array:
        """Return the picture of the newest screen, [channels, *size] uint8, in memory of its own."""
        return self._of(self.screens[0])

    def maximum(self) -> Array:
        """Return the picture of the maximum of both screens; see `newest`."""
        return self._of(np.maximum(self.screens[0], self.screens[1], out=self._maximum))

    def _of(self, screen: Array) -> Array:
        return area_resize((luminance(screen) if self.grey else screen).reshape(*screen.shape[:2], -1).transpose(2, 0, 1),
                           self.size)


class Atari(gym.Env[Any, Any]):
    """A game whose observation is a stack of small pictures.

    Observation [stack · channels, rows, columns] uint8, oldest frame first, channels 3 (red, green, blue) or 1; an array of its
    own each time. At the start of an episode, also after a lost life, the stack is the first frame repeated: no frame of an older
    episode.

    `terminated`: the game is over or, with `life_loss`, a life was lost. `truncated`: `max_frames` raw frames since the game
    began. After a lost life `reset` does not start the game again: it lets one no-op pass (then FIRE). It starts a new one if the
    no-op ended the game, if it is given a seed or the option `real=True`, or if the episode was left before its end.

    Info of every reset and step: `real_done`, the game is over or truncated, in a reset: one ended inside of it; `lives`;
    `frames`, raw ones of this game so far. Of every step: `raw_reward`, the points before clipping. With `real_done`:
    `real_return` and `real_length` (steps) of the whole game, all lives together; points made inside of resets are in it.

    Args:
        game: Name or id, see `Ale`; or an emulator, with the methods and attributes of `Ale`.
        size: Rows and columns, or one number for both; pictures are averaged over areas. None: as the console has them.
        grey: Luminance, after the maximum of colours, instead of colours.
        stack: Frames in an observation.
        frame_skip: Raw frames for which an action is held. With 2 or more the picture is the maximum over the last two of them.
        noop_max: A game begins with 1 … `noop_max` raw frames of no-ops, uniform; 0: none.
        fire: Press FIRE for one step at the start of an episode, where the game knows it.
        life_loss: A lost life ends the episode.
        sticky: Probability, for each raw frame, that the console holds on to the action of the frame before. Machado et al.:
            0.25.
        clip_reward: Rewards are cut to ± this; None: not at all.
        max_frames: Raw frames after which a game is truncated, no-ops included; None: never. 108,000 are half an hour.
        full_actions: See `Ale`; only with a name.
        render_mode: "rgb_array": the newest raw screen [rows, columns, 3] uint8.

    The defaults are Thinker's (Chung et al. 2023). DQN's: size=84, grey=True, clip_reward=1.

    Raises:
        ImportError: ale-py is not installed. ValueError: an argument does not fit.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(
        self, game: str | Any, size: int | tuple[int, int] | None = 96, *, grey: bool = False, stack: int = 4,
        frame_skip: int = 4, noop_max: int = 30, fire: bool = True, life_loss: bool = True, sticky: float = 0.0,
        clip_reward: float | None = None, max_frames: int | None = 108_000, full_actions: bool = False,
        render_mode: str | None = None,
    ) -> None:  # fmt: skip
        for name, value, least in (("stack", stack, 1), ("frame_skip", frame_skip, 1), ("noop_max", noop_max, 0)):
            if operator.index(value) < least:
                raise ValueError(f"Atari: {name} is {value}; expected at least {least}")
        if not 0 <= sticky < 1:
            raise ValueError(f"Atari: sticky is {sticky}; expected a probability below 1")
        if clip_reward is not None and not clip_reward > 0:
            raise ValueError(f"Atari: clip_reward is {clip_reward}; expected above 0, or None")
        if max_frames is not None and max_frames <= noop_max + frame_skip:
            raise ValueError(f"Atari: max_frames is {max_frames}; expected more than the {noop_max + frame_skip} that a start "
                             "may take")
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"Atari: render_mode is {render_mode!r}; expected 'rgb_array' or None")
        if not isinstance(game, str) and full_actions:
            raise ValueError("Atari: full_actions is for a game's name; this emulator is there already")
        self.emulator: Ale = Ale(game, full_actions) if isinstance(game, str) else game
        rows, columns = self.emulator.shape
        self.size = (rows, columns) if size is None else (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
        if min(self.size) < 1:
            raise ValueError(f"Atari: size is {size}; expected at least 1")
        check_array(f"Atari: stack is {stack}, size {size}", stack, 1 if grey else 3, *self.size, dtype=np.uint8)
        actions = list(self.emulator.actions)
        self._noop = actions.index("NOOP")
        self._fire = actions.index("FIRE") if fire and "FIRE" in actions else None
        self.frame_skip, self.noop_max, self.life_loss = frame_skip, noop_max, life_loss
        self.sticky, self.clip_reward, self.max_frames = sticky, clip_reward, max_frames
        self.frame_stack_n = stack
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": max(1, 60 // frame_skip)}
        self.action_space = gym.spaces.Discrete(len(actions))
        self._pictures = Pictures((rows, columns), self.size, grey)
        self.observation_space = gym.spaces.Box(0, 255, (stack * self._pictures.channels, *self.size), np.uint8)
        self._stack: deque[Array] = deque(maxlen=stack)
        self._game = GameProgress(held=self._noop)

    @property
    def grey(self) -> bool:
        """True where pictures are luminance alone."""
        return self._pictures.grey

    # ---- one episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode. A seed also seeds the emulator, which loads the game again.

        Raises:
            ValueError: unknown option. RuntimeError: the game ends again and again before it can begin.
        """
        super().reset(seed=seed)
        options = dict(options or {})
        new = bool(options.pop("real", False)) or seed is not None or not self._game.life_lost
        if options:
            raise ValueError(f"Atari: reset has no option {', '.join(map(repr, options))}; there is 'real'")
        if seed is not None:
            self.emulator.seed(int(self.np_random.integers(2**31)))
        info: dict[str, Any] = {"real_done": False}
        if not new:
            picture, new = self._press(self._noop, info)
        for _ in range(RESTARTS):
            if new:
                picture, new = self._new_game(), False
            if self._fire is not None:
                picture, new = self._press(self._fire, info)
            if not new:
                break
        else:
            raise RuntimeError(f"Atari: the game was over {RESTARTS} times in a row before it could begin")
        game = self._game
        game.lives, game.open, game.life_lost = self.emulator.lives(), True, False
        self._stack.extend([picture] * self.frame_stack_n)
        return np.concatenate(self._stack), info | {"lives": game.lives, "frames": game.frames}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Holds an action for `frame_skip` raw frames.

        Raises:
            ResetNeeded: no episode is open.
            ValueError: the action is none of the game's.
        """
        game = self._game
        if not game.open:
            raise gym.error.ResetNeeded("Atari: reset before the first step, and after an episode's end")
        action = operator.index(action)
        if not 0 <= action < len(self.emulator.actions):
            raise ValueError(f"Atari: action is {action}; expected 0 … {len(self.emulator.actions) - 1}")
        points, picture = self._repeat(action)
        game.length += 1
        self._stack.append(picture)
        over, truncated, lives = self.emulator.over(), self._at_limit(), self.emulator.lives()
        # Some games show no lives for some frames before they are over; the end that counts comes then.
        lost = self.life_loss and 0 < lives < game.lives
        game.lives = lives
        real_done = over or truncated
        game.life_lost = lost and not real_done
        game.open = not (lost or real_done)
        info = {"lives": lives, "frames": game.frames, "raw_reward": points, "real_done": real_done}
        if real_done:
            info |= {"real_return": game.points, "real_length": game.length}
        reward = points if self.clip_reward is None else min(max(points, -self.clip_reward), self.clip_reward)
        return np.concatenate(self._stack), reward, over or lost, truncated, info

    def render(self) -> Any:
        return self._pictures.screens[0].copy() if self.render_mode == "rgb_array" else None

    # ---- inside

    def _new_game(self) -> Array:
        """A game after its no-ops: the picture of the last of them."""
        self._begin()
        if self.noop_max:
            for _ in range(int(self.np_random.integers(1, self.noop_max + 1))):
                self._game.points += self._frame(self._noop)
                if self.emulator.over():
                    self._begin()
        self.emulator.screen(self._pictures.screens[0])
        return self._pictures.newest()

    def _begin(self) -> None:
        self.emulator.reset()
        self._game.begin(self._noop)

    def _press(self, action: int, info: dict[str, Any]) -> tuple[Array, bool]:
        """Repeats an action inside of a reset: the picture, and whether that ended the game, which `info` then says."""
        picture = self._repeat(action)[1]
        done = self.emulator.over() or self._at_limit()
        if done:
            info |= {"real_done": True, "real_return": self._game.points, "real_length": self._game.length}
        return picture, done

    def _repeat(self, action: int) -> tuple[float, Array]:
        """Holds an action for `frame_skip` raw frames, less where the game ends: the points, and the picture."""
        n = self.frame_skip if self.max_frames is None else min(self.frame_skip, self.max_frames - self._game.frames)
        points, seen, screens = 0.0, 0, self._pictures.screens
        for i in range(n):
            points += self._frame(action)
            over = self.emulator.over()
            if i >= n - 2 or over:
                screens[1], seen = screens[0], seen + 1
                self.emulator.screen(screens[0])
            if over:
                break
        self._game.points += points
        # Of this repetition only: what an older one left is no part of the maximum.
        return points, self._pictures.newest() if seen < 2 else self._pictures.maximum()

    def _frame(self, action: int) -> float:
        if not self.sticky or self.np_random.random() >= self.sticky:
            self._game.held = action
        self._game.frames += 1
        return self.emulator.act(self._game.held)

    def _at_limit(self) -> bool:
        return self.max_frames is not None and self._game.frames >= self.max_frames

    # ---- state

    def clone_state(self) -> dict[str, Any]:
        """Everything that what comes next depends on, in arrays and plain values: emulator and its generator, the generator of
        no-ops and sticky actions, frames of the stack, held action, lives, counters, and the newest screen.

        Raises:
            gymnasium.error.ResetNeeded: nothing has begun yet.
        """
        if not self._stack:
            raise gym.error.ResetNeeded("Atari: reset before clone_state")
        return {
            "emulator": self.emulator.clone(), "screen": self._pictures.screens[0].copy(), "stack": np.stack(self._stack),
            "rng": self.np_random.bit_generator.state, "seed": self.np_random_seed,
            "counters": asdict(self._game),
        }  # fmt: skip

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to a cloned state, also one of another environment with the same game and arguments.

        Raises:
            ValueError: the state is of other pictures.
        """
        expected = (self.frame_stack_n, self._pictures.channels, *self.size)
        if state["stack"].shape != expected or state["screen"].shape != self._pictures.screens.shape[1:]:
            raise ValueError(f"Atari: the state holds frames {state['stack'].shape}, screen {state['screen'].shape}; "
                             f"expected {expected} and {self._pictures.screens.shape[1:]}: make the environment as it was")
        self.emulator.restore(state["emulator"])
        self._pictures.screens[0] = state["screen"]
        self._stack.extend(state["stack"].copy())
        self.np_random.bit_generator.state = state["rng"]
        self._np_random_seed = state["seed"]
        self._game = GameProgress(**state["counters"])


def named_by(env_id: str) -> dict[str, Any] | None:
    """Options of `Atari` for an id that ale-py registers: "BreakoutNoFrameskip-v4", "ALE/Seaquest-v5", …; also for one
    like "PongDeterministic-v4", which newer versions of it leave out. None: it is no such id.

    Game, action set and stickiness (0.25 for -v0 and -v5) are the id's. How often it repeats actions does not count, for `Atari`
    has its own preparation.

    Raises:
        ImportError: it plainly is a game's id, and ale-py, which has the games, is not installed.
    """
    env_id = re.sub(r"(?<=\w)Deterministic(-v\d+)$", r"NoFrameskip\1", env_id.removeprefix("ale_py:"))
    if env_id not in gym.registry and ":" not in env_id:
        try:
            import ale_py  # noqa: F401  it registers its ids
        except ImportError:
            if re.search(r"^ALE/|NoFrameskip-v\d+$", env_id):
                raise ImportError(MISSING) from None
    spec = gym.registry.get(env_id)
    if spec is None or not str(spec.entry_point).startswith("ale_py."):
        return None
    known = spec.kwargs
    return {"game": known["game"], "sticky": known.get("repeat_action_probability", 0.0),
            "full_actions": known.get("full_action_space", False)}


def with_game(env_id: str, game: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an id says of its game (`named_by`), with the user's options in front.

    Raises:
        ValueError: both name a game.
    """
    if "game" in options:
        raise ValueError(f"{env_id!r} names a game, and so does the option game={options['game']!r}; leave one out, or write "
                         "Atari-v0 for the id")
    return {**game, **options}


def rom_name(game: str) -> str:
    """ "ALE/SpaceInvaders-v5", "SpaceInvadersNoFrameskip-v4", "SpaceInvaders" → "space_invaders"."""
    name = re.sub(r"(NoFrameskip|Deterministic)?-v\d+$", "", game.removeprefix("ALE/"))
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


# ---- pictures. Sums of whole numbers that float32 holds exactly: no rounding before the last step, so every machine gives the
# same bytes.


def luminance(image: Array) -> Array:
    """0.299 red + 0.587 green + 0.114 blue (ITU-R BT.601), rounded: [rows, columns, 3] uint8 → [rows, columns] uint8."""
    sums = image.astype(np.float32) @ np.array([299, 587, 114], np.float32)
    out: Array = np.rint(sums / np.float32(1000)).astype(np.uint8)
    return out


def area_resize(image: Array, size: tuple[int, int]) -> Array:
    """Each new pixel is the mean of the area that it covers, parts of pixels included, rounded: [channels, rows, columns] uint8 →
    [channels, *size] uint8, always newly allocated. Enlarged pictures show blocks."""
    rows, columns = image.shape[1:]
    if (rows, columns) == size:
        return np.array(image, order="C")
    dtype: Any = np.float32 if 255 * rows * columns < 2**24 else np.float64
    out: Any = np.ascontiguousarray(image.transpose(1, 2, 0), dtype)  # rows first: whole rows are gathered
    for axis, (length, wanted) in enumerate(zip((rows, columns), size, strict=True)):
        index, weights = _cover(length, wanted)
        out = sum(out[at] * weight.astype(dtype)[:, None, None] for at, weight in zip(index, weights, strict=True))
        if axis == 0:
            out = np.ascontiguousarray(out.transpose(1, 0, 2))
    return np.ascontiguousarray(np.rint(out.transpose(2, 1, 0) / dtype(rows * columns)).astype(np.uint8))


@functools.lru_cache(maxsize=64)
def _cover(length: int, wanted: int) -> tuple[Array, Array]:
    """Which of `length` pixels each of `wanted` new ones covers, and by how many parts, of which a pixel has `wanted`: [k,
    wanted]."""
    start = np.arange(wanted) * length
    index = start // wanted + np.arange(-(-length // wanted) + 1)[:, None]
    overlap = np.minimum((index + 1) * wanted, start + length) - np.maximum(index * wanted, start)
    return np.minimum(index, length - 1), np.maximum(overlap, 0)
