"""`make train` installs what its run needs, `make test` the rest."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.checkout

BLOCK = """
import sys
sys.modules.update(dict.fromkeys({modules}))  # None: it cannot be imported, and is not found
from parl_like.lab.cli import main
for command in {commands}:
    if code := main(command):
        sys.exit(code)
"""


def extras(stage):
    """The extras that a stage of the Makefile installs."""
    text = (ROOT / "Makefile").read_text().replace("$(comma)", ",")
    recipe = re.search(rf"^\$\(VENV\)/\.{stage}:.*\n((?:\t.*\n)+)", text, re.MULTILINE)[1]
    return set(re.search(r"'(?:\.|parl_like)\[([\w,]+)\]'", recipe)[1].split(","))


def test_the_second_stage_stands_on_the_first_and_train_needs_the_first_only():
    text = (ROOT / "Makefile").read_text()
    assert extras("light") == {"plot", "grid"} and extras("light") < extras("installed")
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras("installed") <= known.keys()
    needs = dict(re.findall(r"^([\w$()/.-]+): (.*)$", text, re.MULTILINE))
    assert needs["train"] == "$(VENV)/.light" and needs["$(VENV)/.installed"] == "$(VENV)/.light"
    assert {needs[name] for name in ("test", "lint", "types", "figures", "bench")} == {"$(VENV)/.installed"}


@pytest.mark.parametrize(("experiment", "words"), [
    ("hierarchy-doorkey", ["total_steps=200", "n_agents=2"]),
    pytest.param("thinker-sokoban-mini", ["total_steps=200", "env_n=2", "n_agents=1", "model_batch_size=8", "model_warm_up_n=50"],
                 marks=pytest.mark.slow),
])
def test_what_make_trains_needs_no_package_of_the_second_stage(tmp_path, experiment, words):
    modules = {"ray", "minari", "ale_py", "pettingzoo", "tensorboard", "google", "h5py", "minatar", "pytest",
               "hypothesis", "mypy"}
    run = str(tmp_path / "run")
    commands = [["train", experiment, f"run_dir={run}", "eval_episodes=1", *words], ["play", run, "--steps", "5"]]
    code = BLOCK.format(modules=sorted(modules), commands=commands)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
