"""An extra that is missing is named where it is needed; each one, installed alone, brings all that it is for (slow)."""

import sys
import tomllib
from pathlib import Path

import extras
import pytest
from numpy import float32

from parl_like import ReplayBuffer, Robot, make_env
from parl_like.algorithms.games.sequence_form import game_value
from parl_like.data.buffers.saving import save_buffer
from parl_like.data.datasets import from_minari
from parl_like.envs.doorkey import DoorKey
from parl_like.envs.games import Kuhn, OpenSpielGame, RockPaperScissors, TicTacToe
from parl_like.envs.games.players import GameAEC, GameParallel
from parl_like.lab.cli import main
from parl_like.lab.following import MLflowHook, TrackioHook, WandbHook
from parl_like.lab.policies import graph
from parl_like.lab.reports import plots

TOOLS = {"dev", "docs", "peers", "notebooks"}
"""Extras of tools around the library, which no feature of it needs."""


class Control:
    """An environment of dm_control, as far as it is looked at."""

    physics = None

    def action_spec(self): ...

    def observation_spec(self): ...


def on_ray():
    with Robot.of("PPO", "CartPole-v1", driver="ray") as robot:
        robot.run(1)


def filled():
    buffer = ReplayBuffer(4)
    buffer.add({"obs": float32(0), "act": 0, "rew": 0.0, "obs_next": float32(0), "terminated": False, "truncated": False})
    return buffer


NEEDED = [
    ("plot", "matplotlib", lambda: plots.learning_curve([], Path("curve.png"))),
    ("tb", "tensorboard", lambda: main(["train", "ppo-cartpole", "total_steps=1", "tensorboard=true", "run_dir=run"])),
    ("grid", "minigrid", lambda: DoorKey(8, 100)),
    ("minigrid", "minigrid", lambda: make_env("MiniGrid-Empty-5x5-v0")),
    ("mujoco", "mujoco", lambda: make_env("HalfCheetah-v5")),
    ("hdf5", "h5py", lambda: save_buffer(filled(), "rows.h5")),
    ("atari", "ale_py", lambda: make_env("ALE/Pong-v5")),
    ("box2d", "Box2D", lambda: make_env("LunarLander-v3")),
    ("dm-control", "shimmy", lambda: make_env(Control)),
    ("pettingzoo", "pettingzoo", lambda: GameAEC(TicTacToe())),
    ("pettingzoo", "pettingzoo", lambda: GameParallel(RockPaperScissors())),
    ("mpe", "mpe2", lambda: make_env("mpe2/simple_spread_v3")),
    ("games", "pyspiel", lambda: OpenSpielGame("kuhn_poker")),
    ("games", "scipy", lambda: game_value(Kuhn())),
    ("minari", "minari", lambda: from_minari("mine/all-v0")),
    ("ray", "ray", on_ray),
    ("sweep", "optuna", lambda: main(["sweep", "ppo-cartpole", "lr=1e-4..1e-3", "seed=0", "--optuna", "1", "--out", "sweep"])),
    ("wandb", "wandb", lambda: WandbHook().check()),
    ("trackio", "trackio", lambda: TrackioHook().check()),
    ("mlflow", "mlflow", lambda: MLflowHook().check()),
    ("export", "onnxruntime", lambda: graph.session(b"")),
    ("dashboard", "uvicorn", lambda: main(["dashboard", "."])),
]
"""Extra, module that it brings, use of a feature that needs it."""


@pytest.mark.parametrize(("extra", "module", "use"), NEEDED, ids=[f"{each[0]}-{each[1]}-{n}" for n, each in enumerate(NEEDED)])
def test_an_extra_that_is_missing_is_named(extra, module, use, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    for name in [module, *(name for name in sys.modules if name.startswith(f"{module}."))]:
        monkeypatch.setitem(sys.modules, name, None)  # it cannot be imported, and is not found
    try:
        use()
        said = "".join(capsys.readouterr())
    except Exception as error:
        said = str(error)
    assert f"pip install 'parl_like[{extra}]'" in said


@pytest.mark.checkout
def test_every_extra_has_a_feature_that_names_it_and_a_use():
    known = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    assert {extra for extra, _, _ in NEEDED} == known - TOOLS
    assert extras.USES.keys() == known


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return extras.built(tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
@pytest.mark.checkout
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("extra", extras.USES)
def test_an_extra_alone_brings_what_it_is_for(extra, wheel, tmp_path):
    assert extras.tried(wheel, extra, tmp_path) == ""
