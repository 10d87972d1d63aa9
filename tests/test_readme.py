"""What the README shows is run."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_python_blocks_run(code, capsys):
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    out = capsys.readouterr().out
    if "thinker.make" in code:
        assert out == "torch.Size([16, 79]) torch.Size([16, 3, 80, 80])\n"
    else:
        assert float(out.split()[-1]) > 8  # the return of the robot that it trains


def test_links_and_pictures_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_verbs_shown_exist(capsys):
    from parl_like.lab.cli import main

    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for verb in set(re.findall(r"^parl-like (\w+)", README, re.MULTILINE)):
        assert verb in shown
