"""What the documents show is run, what they link is there, and what they say a block prints is what it prints."""

import inspect
import pkgutil
import re
import shlex
import sys
from pathlib import Path

import prose
import pytest
import torch

from parl_like import Robot
from parl_like.lab import cli, config, experiment, user_experiments

ROOT = Path(__file__).resolve().parent.parent
PAGES = prose.pages()
BLOCK = re.compile(r"(?P<slow><!-- slow -->\n+)?```python\n(?P<code>.*?)```(?:\n+```text\n(?P<shown>.*?)```)?", re.DOTALL)
"""A block of Python and what it prints; a comment `<!-- slow -->` above it puts it among the slow tests."""
BLOCKS = [pytest.param(match["code"], match["shown"], id=f"{page.relative_to(ROOT)}-{number}",
                       marks=[pytest.mark.slow] * bool(match["slow"]))
          for page in PAGES for number, match in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8")))]


@pytest.mark.parametrize(("code", "shown"), BLOCKS)
def test_python_blocks_run(code, shown, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # what they save stays out of the checkout
    threads = torch.get_num_threads()
    try:
        exec(compile(code, "a block of the documents", "exec"), {"__name__": "documents"})
    finally:
        torch.set_num_threads(threads)
    out = capsys.readouterr().out
    if shown is not None:
        assert out == shown
    elif "mean_return" in code:
        limit = 0.8 if "class Hall" in code else 15.0  # what the robot that it trains has learned; CartPole at random: 9 to 22
        assert float(out.split()[-1]) > limit


def test_the_first_screen_is_one_screen():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) < 80
    for block in BLOCK.finditer(readme):
        assert len([line for line in block["code"].splitlines() if line]) <= 22


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_exist(page):
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")):
        file = page.parent / target if target else page
        assert file.exists() and (not anchor or anchor in anchors(file)), (target, anchor)


def anchors(page):
    """The places that links to a page may name: its headings, as GitHub writes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def inline(page):
    """The text of a page without its blocks."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_that_pages_name_have_what_is_said_to_be_there(page):
    text = inline(page)
    for dotted in set(re.findall(r"`(parl_like(?:\.\w+)+)`", text)):
        assert pkgutil.resolve_name(dotted) is not None
    for name, dotted in set(re.findall(r"`(\w+)(?:\([^`]*\))?` (?:of|\()\s*`(parl_like(?:\.\w+)+)`", text)):
        assert hasattr(pkgutil.resolve_name(dotted), name), (name, dotted)


NAMESPACES = ("parl_like", *(f"parl_like.{end}" for end in (
    "algorithms", "models", "data.transforms", "envs", "envs.wrappers", "environment.hooks", "environment.stop_conditions",
    "drivers.workers.processes", "drivers.ray.cluster", "agents.players", "robots.self_play")))
OTHERS = [page for page in PAGES if page.parent.name == "coming-from"]
"""Pages with calls of other libraries."""


@pytest.mark.parametrize("page", [one for one in PAGES if one not in OTHERS], ids=lambda page: str(page.relative_to(ROOT)))
def test_arguments_that_pages_name_are_taken(page):
    found = [pkgutil.resolve_name(name) for name in NAMESPACES]
    for name, given in re.findall(r"`(?:[^`]*?\W)?([A-Za-z_]\w*)\(([^()`]*)\)[^`]*`", inline(page)):
        made = next((getattr(module, name) for module in found if callable(getattr(module, name, None))), None)
        if made is None or made is Robot or not getattr(made, "__module__", "").startswith("parl_like"):
            continue
        takes = inspect.signature(made).parameters
        if not any(one.kind is one.VAR_KEYWORD for one in takes.values()):
            assert set(re.findall(r"(?:^|, ?)(\w+)=", given)) <= set(takes), (name, given)


def test_options_of_commands_that_pages_name_are_taken():
    """Thinker's page has those of the original; `ray`, `pip` and files of tests have some of their own."""
    files = [*(ROOT / "parl_like" / "lab").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    theirs = {"--no-deps", "--no-build-isolation", "--write", "--generate", "--head", "--port", "--address", "--help",
              "--version", "--pythons", "--twice"}
    named = {option for page in PAGES if not page.name.startswith("thinker")
             for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", page.read_text(encoding="utf-8"))}
    assert {option for option in named - theirs if f'"{option}"' not in source} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_pages_name_exist(page):
    folders = "parl_like|algorithms|models|envs|robots|tests|benchmarks|docs"
    for name in re.findall(rf"`((?:{folders})/[\w./-]*)`", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists() or (ROOT / "tests" / name).exists(), name


def test_every_page_is_a_link_or_two_from_the_readme():
    """Each page is linked by the README or by a page that the README links; the site's navigation has all (test_site)."""
    near = linked(ROOT / "README.md") | {ROOT / "README.md"}
    reached = near.union(*(linked(page) for page in near if page.suffix == ".md" and page.is_file()))
    assert not [str(page.relative_to(ROOT)) for page in PAGES if page not in reached and page.parent.name != "decisions"]


def linked(page):
    """The files that a page links."""
    return {(page.parent / target).resolve() for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8"))}


def test_the_command_lines_shown_are_taken(monkeypatch, tmp_path):
    """With their options; experiments and keys are known, benchmarks are there. The reader has a package and a file."""
    (code,) = [block.values[0] for block in BLOCKS if "# my_robot.py" in block.values[0]]
    (tmp_path / "my_package").mkdir()
    for name in ("my_robot.py", "my_package/robots.py", "my_package/mine.py"):
        (tmp_path / name).write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    lines = re.findall(r"^parl-like (.+?)(?:  +#.*)?$|`parl-like ([^`]+)`", text, re.MULTILINE)
    for line in sorted({one or two for one, two in lines}):
        words = ["ppo-cartpole" if word == "NAME" else word if "=" in word else word.strip("[]") for word in shlex.split(line)]
        args = cli._parse(words)
        if words[0] == "train":
            for kept in ("_registered", "_modules", "_brought"):
                monkeypatch.setattr(experiment, kept, {})
            for name in ("my_robot", "my_package", "my_package.robots", "my_package.mine"):
                sys.modules.pop(name, None)
            chosen = user_experiments.chosen(args.experiment)
            config.resolve(chosen.module().Config, chosen.config, args.overrides)
        elif words[0] == "bench":
            assert (ROOT / "benchmarks" / f"{args.name.replace('-', '_')}.py").exists(), line


def test_the_verbs_and_targets_shown_exist(capsys):
    from parl_like.lab.cli import main

    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for verb in set(re.findall(r"^parl-like (\w+)", text, re.MULTILINE)):
        assert verb in shown
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE)) <= set(targets)
