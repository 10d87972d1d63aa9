"""Environments of other packages by their ids, prepared for learning; `parl_like.values.env_ids` has the table of ids.

Options are those of the environment named here, and of `gymnasium.make`. Who wants one as its package makes it gives a factory:
`lambda: gym.make(ID)`.
"""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from typing import Any, Literal

import gymnasium as gym
import numpy as np

import parl_like.envs  # noqa: F401  it registers Atari-v0 and MinAtar-v0
from parl_like.envs.atari import named_by, with_game
from parl_like.envs.central_state import CentralState
from parl_like.envs.joint import Joint
from parl_like.envs.make import adapt
from parl_like.values.env_ids import package_of
from parl_like.values.errors import nearest, unknown
from parl_like.values.limits import check_array

DQN = {"size": 84, "grey": True, "clip_reward": 1.0}
"""Options of `Atari` that are not as Thinker has them but as Mnih et al. 2015 do: 4 frames [84, 84] in one observation."""
WHOLE_GAMES = {"life_loss": False, "clip_reward": None}
"""Options of evaluations: an episode is a game, and its return the points."""


def atari(id: str, **options: Any) -> gym.Env[Any, Any]:
    """A game in `parl_like.envs.atari.Atari`, [4, 84, 84] uint8, rewards cut to ±1, an episode for each life."""
    if (game := named_by(id)) is None:
        return gym.make(id, **options)
    return gym.make("Atari-v0", **{**DQN, **with_game(id, game, options)})


def whole_games(id: str) -> dict[str, Any]:
    """Options for evaluations in an environment of this id: `WHOLE_GAMES` for a game that `atari` prepares, else none."""
    package = package_of(id)
    return dict(WHOLE_GAMES) if package is not None and package.prepared == "atari" and named_by(id) else {}


WORDS = """a after and at avoid ball behind blue box door end fetch find from front get go goal green grey hallway in key lava
left matching must near next object of on open opening pick purple put reach red right room rooms square the then to traverse
unlock up use yellow you your""".split()
"""The words of missions in MiniGrid and BabyAI; the code of one is its place here, from 1 on."""


def word_codes(mission: str, n: int) -> list[int]:
    """Return the codes of a mission's words, and zeros up to `n`.

    Raises:
        ValueError: it has more words, or one that is not in WORDS.
    """
    words = re.findall(r"[a-z]+", mission.lower())
    if strange := [word for word in words if word not in WORDS]:
        raise ValueError(f"the mission {mission!r} has the word {strange[0]!r}; expected those of parl_like.envs.prepared.WORDS")
    if len(words) > n:
        raise ValueError(f"the mission {mission!r} has {len(words)} words, and words={n}; give words={len(words)} or more")
    return [WORDS.index(word) + 1 for word in words] + [0] * (n - len(words))


class GridView(gym.ObservationWrapper[Any, Any, Any], gym.utils.RecordConstructorArgs):
    """A MiniGrid world as numbers: what it observes but texts, as [H, W, 3] uint8 with the largest code that there is as bound,
    by which networks divide.

    Args:
        env: With an observation `image` of codes (object, colour, state).
        words: Of `mission`, which is told by so many codes of words, in their order; 0: it is left out.

    Raises:
        ValueError: there is no mission to tell; in reset and step: it has more words.
    """

    def __init__(self, env: gym.Env[Any, Any], words: int = 0) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, words=words)
        super().__init__(env)
        if words < 0 or words and "mission" not in env.observation_space.spaces:  # type: ignore[attr-defined]
            raise ValueError(f"GridView: words is {words}, observations {env.observation_space}; expected at least 0, and a "
                             "mission to tell")
        check_array(f"GridView: words is {words}", words, len(WORDS) + 1, dtype=np.float32)
        codes = import_module("minigrid.core.constants")
        largest = max(max(table.values()) for table in (codes.OBJECT_TO_IDX, codes.COLOR_TO_IDX, codes.STATE_TO_IDX))
        seen: Any = env.observation_space
        image = seen["image"]
        kept = {name: space for name, space in seen.spaces.items() if not _is_text(space)}
        self.observation_space = gym.spaces.Dict({**kept, "image": gym.spaces.Box(0, largest, image.shape, np.uint8)})
        self.kept, self.words = tuple(kept), words
        if words:
            self.observation_space = gym.spaces.Dict({**self.observation_space.spaces,
                                                      "mission": gym.spaces.MultiDiscrete([len(WORDS) + 1] * words)})

    def observation(self, observation: Any) -> Any:
        seen = {name: observation[name] for name in self.kept}
        return seen | {"mission": np.array(word_codes(observation["mission"], self.words))} if self.words else seen


def _is_text(space: gym.Space[Any]) -> bool:
    return isinstance(space, gym.spaces.Text) or np.dtype(space.dtype or object).kind in "OUS" and not space.shape


def minigrid(id: str, *, words: int = 0, **options: Any) -> gym.Env[Any, Any]:
    """A world of MiniGrid's or BabyAI's in `GridView`; the text `mission` is left out, or told in `words` codes. One that
    observes no Dict stays as it is."""
    env = gym.make(id, **options)
    seen = env.observation_space
    return GridView(env, words) if isinstance(seen, gym.spaces.Dict) and "image" in seen.spaces else env


def minatar(id: str, **options: Any) -> gym.Env[Any, Any]:
    """A game in `parl_like.envs.minatar.MinAtar`: -v1 has the actions that the game knows, -v0 all six."""
    name, version = id.removeprefix("MinAtar/").rsplit("-v", 1)
    game = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return gym.make("MinAtar-v0", **with_game(id, {"game": game, "full_actions": version == "0"}, options))


def bsuite(id: str, *, max_episode_steps: int = -1, disable_env_checker: bool = True) -> gym.Env[Any, Any]:
    """An experiment of bsuite's, "bsuite/catch/0", in `parl_like.envs.make.DmEnv`. It ends episodes itself, and the seeds are
    those of its settings.

    Raises:
        gymnasium.error.NameNotFound: bsuite has no such experiment.
    """
    name, package = id.removeprefix("bsuite/"), import_module("bsuite")
    if name not in package.sweep.SETTINGS:
        near = nearest(name, package.sweep.SETTINGS)
        way = f"did you mean {near!r}?" if near else "bsuite.sweep.SETTINGS names all"
        raise gym.error.NameNotFound(f"bsuite: no experiment {name!r}; {way}")
    return adapt(package.load_from_id(name))


def mpe2(id: str, *, players: Literal["joint", "own", "central"] = "joint", reward: Literal["sum", "mean", "each"] | None = None,
         max_episode_steps: int = -1, disable_env_checker: bool = True, **options: Any) -> Joint | CentralState:
    """An environment of mpe2, "mpe2/simple_spread_v3". It ends episodes itself, after `max_cycles` steps.

    Args:
        id: Of the environment.
        players: "joint": all players as one (`parl_like.envs.joint.Joint`). "own": each has a role, sees its own and who it is
            (`CentralState(state=False, alike=True)`), so that all share one task. "central": it also sees the state of all, as
            `MAPPO` needs it.
        reward: Of the joint player, "mean" where it is None.
        options: Those of the environment, such as `N` and `max_cycles`.

    Raises:
        gymnasium.error.NameNotFound: mpe2 has no such environment.
        ValueError: there is no such `players`, or a `reward` for players who get their own.
    """
    name, package = id.removeprefix("mpe2/"), import_module("mpe2")
    names = [module.name for module in pkgutil.iter_modules(package.__path__) if module.name.startswith("simple")]
    if name not in names:
        raise gym.error.NameNotFound(f"mpe2: {unknown('environment', name, names)}")
    if players not in ("joint", "own", "central"):
        raise ValueError(f"{id}: {unknown('players', players, ('joint', 'own', 'central'))}")
    if players != "joint" and reward is not None:
        raise ValueError(f"{id}: reward={reward!r} is for players='joint'; with players={players!r} each gets its own reward")
    env = import_module(f"mpe2.{name}").parallel_env(**options)
    if players == "joint":
        return Joint(env, reward=reward or "mean")
    return CentralState(env, state=players == "central", alike=True)
