"""The blocks of the pages on other libraries that need these: run where the library is installed, one after the other."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = {"stable-baselines3": "stable_baselines3", "tianshou": "tianshou"}


@pytest.mark.checkout
@pytest.mark.slow
@pytest.mark.parametrize("page", LIBRARIES)
def test_what_is_carried_over_arrives(page, tmp_path, monkeypatch, capsys):
    pytest.importorskip(LIBRARIES[page])
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "documents"}
    blocks = re.findall(r"```py\n(.*?)```", (ROOT / "docs" / "coming-from" / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    for block in blocks:
        exec(compile(block, f"a block of {page}", "exec"), names)
    assert len(blocks) >= 2 and len(names["rows"]) > 0 and (tmp_path / "rows").is_dir()
    if page == "stable-baselines3":
        same_actions(names["robot"], tmp_path / "sb3.safetensors")


def same_actions(robot, path):
    """The weights that were taken give the actions of the policy that they are from; `robot` has learned on since."""
    import numpy as np
    from safetensors.torch import load_file
    from stable_baselines3 import PPO

    import parl_like

    names: dict = {}
    text = (ROOT / "docs" / "coming-from" / "stable-baselines3.md").read_text(encoding="utf-8")
    exec(re.search(r"```py\n(import torch.*?)\n\nrobot = ", text, re.DOTALL)[1], names)
    theirs = PPO("MlpPolicy", "CartPole-v1")
    theirs.policy.load_state_dict(load_file(path))
    obs = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    with parl_like.Robot.of("PPO", "CartPole-v1", hidden=(64, 64)) as ours:
        names["take"](ours.tasks["RL"].algorithm.model, load_file(path))
        assert np.array_equal(ours.act(obs), theirs.predict(obs, deterministic=True)[0])
