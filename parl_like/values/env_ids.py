"""Environments by their ids: every text of which gymnasium makes one comes through here."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import find_highest_version, parse_env_id

from parl_like.values.names import rule as rule_in_force


class Package(NamedTuple):
    """Ids of one kind, and what they need.

    Attributes:
        ids: Pattern of the whole id.
        module: That registers or plays them.
        install: What pip is given to have it.
        prepared: The function of `parl_like.envs.prepared` that makes them ready for learning; empty: they are as gymnasium makes
            them.
    """

    ids: str
    module: str
    install: str
    prepared: str = ""


GAMES = (
    "Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider Berzerk Bowling "
    "Boxing Breakout Carnival Centipede ChopperCommand CrazyClimber Defender DemonAttack DoubleDunk ElevatorAction "
    "Enduro FishingDerby Freeway Frostbite Gopher Gravitar Hero IceHockey Jamesbond JourneyEscape Kangaroo Krull "
    "KungFuMaster MontezumaRevenge MsPacman NameThisGame Phoenix Pitfall Pong Pooyan PrivateEye Qbert Riverraid "
    "RoadRunner Robotank Seaquest Skiing Solaris SpaceInvaders StarGunner Tennis TimePilot Tutankham UpNDown Venture "
    "VideoPinball WizardOfWor YarsRevenge Zaxxon"
).split()
"""Games that ale-py registers under old ids, too, such as Pong-v4 and PongNoFrameskip-v4: their names alone look like any."""

PACKAGES = (
    Package(rf"ALE/[\w-]+|\w+(NoFrameskip|Deterministic)-v\d+|({'|'.join(GAMES)})-v[04]", "ale_py",
            "'parl_like[atari]'", "atari"),
    Package(r"(MiniGrid|BabyAI)-[\w.-]+", "minigrid", "'parl_like[minigrid]'", "minigrid"),
    Package(r"MinAtar/(Asterix|Breakout|Freeway|Seaquest|SpaceInvaders)-v[01]", "minatar", "--no-deps minatar", "minatar"),
    Package(r"bsuite/\w+/\d+", "bsuite", "bsuite", "bsuite"),
    Package(r"mpe2/simple\w*_v\d+", "mpe2", "'parl_like[mpe]'", "mpe2"),
    Package(r"(Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|Inverted(Double)?Pendulum|Pusher|Reacher|Swimmer|Walker2d)-v[45]",
            "mujoco", "'parl_like[mujoco]'"),
    Package(r"(LunarLander|LunarLanderContinuous|BipedalWalker|BipedalWalkerHardcore|CarRacing)-v\d", "Box2D",
            "'parl_like[box2d]'"),
)
"""The packages of ids that need more than gymnasium."""


def package_of(id: str) -> Package | None:
    """The entry of `PACKAGES` for an id, also for one that begins with the module itself; None: there is none, or code of the
    user's has registered this id."""
    for package in PACKAGES:
        bare = id.removeprefix(f"{package.module}:")
        if re.fullmatch(package.ids, bare):
            spec = gym.registry.get(bare)
            theirs = spec is None or str(spec.entry_point).startswith(("gymnasium.", f"{package.module}."))
            return package if theirs else None
    return None


def registered(id: str) -> bool:
    """Return whether gymnasium makes this id, a version or the newest one, of what is registered now, and imports nothing for it.

    Raises:
        gymnasium.error.Error: it is no id at all.
    """
    if ":" in id:  # gymnasium imports the module before it
        return False
    if id in gym.registry:
        return True
    space, name, version = parse_env_id(id)
    return version is None and find_highest_version(space, name) is not None


def known(id: str) -> str:
    """The id, if an environment may be made of it: where a rule is in force (`parl_like.values.names`), it was typed or is
    registered.

    Raises:
        ImportError: its package, one of `PACKAGES`, is not installed.
        gymnasium.error.Error: it is not registered, and may not be looked for. Else the refusal of the rule.
    """
    rule = rule_in_force()
    package = package_of(id)
    if package is not None and ":" not in id:
        if find_spec(package.module) is None:
            raise ImportError(f"environment {id!r} needs the package {package.module}: pip install {package.install}")
        if id not in gym.registry:
            import_module(package.module)
    if rule is None or rule.typed(id) or package is not None and package.prepared and ":" not in id or registered(id):
        return id
    if ":" in id:
        raise rule.refusal(id)
    gym.spec(id)  # raises, with the nearest id
    return id


class NotMade(gym.error.Error, ValueError):
    """Code of an installed package raised while it made an environment. The message names the id, the options, and the error."""


def make(id: str, **options: Any) -> Any:
    """An environment of an id, by `gymnasium.make` with these options, or prepared for learning as its package has it.

    Raises:
        NotMade: its package could not make it; what code of the user's raises stays as it is.
    """
    package = package_of(known(id))
    try:
        if package is None or not package.prepared:
            return gym.make(id, **options)
        prepared = getattr(import_module("parl_like.envs.prepared"), package.prepared)
        return prepared(id.removeprefix(f"{package.module}:"), **options)
    except (gym.error.Error, ImportError, TypeError):  # which name what is wrong
        raise
    except Exception as error:
        spec = gym.registry.get(id)
        theirs = package is not None or str(getattr(spec, "entry_point", "")).startswith("gymnasium.")
        if not theirs or isinstance(error, ValueError) and package is not None:  # a ValueError of ours says all
            raise
        given = ", ".join(f"{key}={value!r}" for key, value in options.items() if key != "disable_env_checker")
        said = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(": ")
        raise NotMade(f"environment {id!r} could not be made{f' with {given}' if given else ''}: {said}; look at its options, "
                      "and at what its package needs (files that it loads or downloads)") from error
