"""Tries each extra alone: the wheel with it in a clean venv, without a compiler, and one use: `make extras`.

    python tests/extras.py                  all of them
    python tests/extras.py plot ray         these

Needs uv, which keeps what it has fetched, so that a second time takes seconds an extra.
"""

from __future__ import annotations

import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

import release

TRAIN = """
from parl_like.lab.cli import main
def train(*words):
    assert main(["train", "ppo-cartpole", "total_steps=600", "n_agents=2", "run_dir=run", *words]) == 0
"""


def after_training(code: str, *words: str) -> str:
    """Return code that trains a run and goes on."""
    return f"{TRAIN}\ntrain({', '.join(map(repr, words))})\nfrom pathlib import Path\n{textwrap.dedent(code)}"


IMPORTS = "import importlib\nfor name in {}:\n    importlib.import_module(name)\n"
STEP = """
from parl_like import make_env
env = make_env("{}")
env.reset(seed=0)
assert len(env.step(env.action_space.sample())) == 5
"""
USES = {
    "plot": after_training("""
        assert main(["plot", "run", "--out", "curve.png"]) == 0 and open("curve.png", "rb").read(4)[1:] == b"PNG"
    """),
    "tb": after_training("""
        assert list(Path("run").rglob("*tfevents*"))
    """, "tensorboard=true"),
    "grid": """
        from parl_like.envs.doorkey import DoorKey
        env = DoorKey(8, 100)
        assert env.reset(seed=0)[0].shape == (17,) and len(env.step(0)) == 5
    """,
    "minigrid": STEP.format("MiniGrid-Empty-5x5-v0"),
    "mujoco": STEP.format("InvertedPendulum-v5"),
    "hdf5": """
        import numpy as np
        from parl_like import ReplayBuffer
        from parl_like.data.buffers.saving import load_buffer, save_buffer
        buffer = ReplayBuffer(4)
        ends = {"terminated": False, "truncated": False}
        buffer.add({"obs": np.float32(0), "act": 1, "rew": 2.0, "obs_next": np.float32(0), **ends})
        save_buffer(buffer, "rows.h5")
        assert load_buffer("rows.h5")[0].rew == 2.0
    """,
    "atari": STEP.format("ALE/Pong-v5"),
    "box2d": STEP.format("LunarLander-v3"),
    "dm-control": """
        from dm_control import suite
        from parl_like import make_env
        env = make_env(lambda: suite.load("cartpole", "balance"))
        env.reset(seed=0)
        assert len(env.step(env.action_space.sample())) == 5
    """,
    "pettingzoo": """
        from pettingzoo.test import api_test
        from parl_like.envs.games import TicTacToe
        from parl_like.envs.games.players import GameAEC
        api_test(GameAEC(TicTacToe()), 20)
    """,
    "mpe": STEP.format("mpe2/simple_spread_v3"),
    "games": """
        from parl_like.algorithms.games.sequence_form import game_value
        from parl_like.envs.games import OpenSpielGame
        assert abs(game_value(OpenSpielGame("kuhn_poker")) + 1 / 18) < 1e-8
    """,
    "minari": """
        import os
        os.environ["MINARI_DATASETS_PATH"] = os.getcwd()
        from parl_like.data.datasets import from_minari, to_minari
        from parl_like import Robot
        with Robot.of("DQN", "CartPole-v1", n_agents=1, seed=0) as robot:
            robot.run(200)
            (buffer,) = robot.buffers.values()
            to_minari(buffer, "cartpole/mine-v0", env="CartPole-v1")
        assert len(from_minari("cartpole/mine-v0")) == 200
    """,
    "ray": """
        from parl_like import Robot
        with Robot.of("PPO", "CartPole-v1", n_agents=2, driver="ray", workers={"count": 1}, seed=0) as robot:
            robot.run(200)
            assert robot.env_steps >= 200
    """,
    "sweep": """
        from parl_like.lab.cli import main
        small = "seed=0 total_steps=400 n_agents=2 eval_every=200 eval_episodes=1"
        assert main(f"sweep ppo-cartpole lr=1e-4..1e-3 {small} --optuna 2 --out tuned".split()) == 0
    """,
    "wandb": after_training("assert list(Path('run/wandb').iterdir())", "hooks=[WandbHook]"),
    "trackio": "import os; os.environ['TRACKIO_DIR'] = 'kept'\n" + after_training(
        "assert list(Path('kept').iterdir())", "hooks=[TrackioHook]"),
    "mlflow": after_training("assert list(Path('run/mlruns').iterdir())", "hooks=[MLflowHook]"),
    "export": after_training("""
        assert main(["export", "run", "--to", "onnx", "--out", "policy"]) == 0
        import gymnasium
        from parl_like import Policy
        assert Policy.load("policy")(gymnasium.make("CartPole-v1").reset(seed=0)[0]) in (0, 1)
    """),
    "dashboard": after_training("""
        import re, subprocess, sys, urllib.request
        command = [sys.executable, "-m", "parl_like", "dashboard", "run", "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as page:
            try:
                address = next(found[0] for line in page.stdout if (found := re.search(r"http://\\S+", line)))
                assert "<html" in urllib.request.urlopen(address, timeout=60).read().decode()
            finally:
                page.terminate()
    """),
    "peers": IMPORTS.format(("stable_baselines3", "sb3_contrib", "tianshou", "torchrl", "cpprb")),
    "notebooks": """
        import nbclient, nbformat
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import parl_like; print(parl_like.__version__)")])
        nbclient.NotebookClient(book, kernel_name="python3", timeout=300).execute()
        assert book.cells[0].outputs[0].text.strip()[0].isdigit()
    """,
    "docs": IMPORTS.format(("sphinx", "myst_parser", "furo")),
    "dev": IMPORTS.format(("pytest", "pytest_timeout", "xdist", "hypothesis", "mypy", "build", "Cython")),
}
"""Extra → a use of what it brings."""

LOOSE = {"trackio": ("pillow",)}
"""Extra → packages of which it wants another version than constraints.txt has."""


def built(to: Path) -> Path:
    """Build the wheel of this Python into a folder; return its file."""
    return release.build([Path(sys.executable)], to)[1]


def tried(wheel: Path, extra: str, folder: Path) -> str:
    """Install the wheel with an extra into a new venv and use it; return in words what went wrong, empty: nothing."""
    try:
        inside = release.installed(wheel, Path(sys.executable), folder / "venv", extra, loose=LOOSE.get(extra, ()))
        (folder / "empty").mkdir()
        env = release.environment(XDG_STATE_HOME=str(folder / "state"), OMP_NUM_THREADS="1")
        release.run([inside, "-W", "ignore", "-c", textwrap.dedent(USES[extra])], env, folder / "empty")
    except SystemExit as error:
        return str(error)
    return ""


def main(argv: Sequence[str]) -> int:
    chosen = list(argv) or list(USES)
    if unknown := [extra for extra in chosen if extra not in USES]:
        sys.exit(f"no extra {', '.join(unknown)}; there are {', '.join(USES)}")
    broken = 0
    with tempfile.TemporaryDirectory() as folder:
        wheel = built(Path(folder))
        for extra in chosen:
            with tempfile.TemporaryDirectory() as inside:
                said = tried(wheel, extra, Path(inside))
            broken += bool(said)
            print(f"{extra:12} {said or 'good'}", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
