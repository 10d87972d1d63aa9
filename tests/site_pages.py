"""Lays out the pages of the site and builds it: `make docs`. The pages of docs/ as they are, one page per algorithm and
the reference made from docstrings; nothing made here is kept in the checkout."""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import algorithm_page
import curves
import evidence
import notebooks
import site_links
import structure
from docstring_text import divided, rst, rst_list

import parl_like
from parl_like.lab import config as configs
from parl_like.lab import foreign
from parl_like.lab.reports.marks import Mark
from parl_like.lab.yaml_text import load_yaml_file

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "docs" / "site"
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?!\w+:)(?P<target>[^)#\s]*)(?P<anchor>#[^)\s]+)?\)")
BLOCK = re.compile(r"(```.*?\n```|`[^`\n]+`)", re.DOTALL)
MADE = {"docs/algorithms", "docs/reference", "docs/decisions", "docs/robots"}
"""Pages with pages of their own below them, in a folder of their name."""
EXTRA_ROOMS = ("parl_like.environment.hooks", "parl_like.environment.stop_conditions")
"""Public modules without an `__all__`, which pages name."""


def navigation() -> dict[str, list[str]]:
    """Return heading → pages, as paths from the root of the checkout, without `.md`."""
    return load_yaml_file(SITE / "navigation.yaml")


def written() -> list[str]:
    """Return every page that is written, or made and kept, but the README (the first page) and the decisions; notebooks, too."""
    files = [*sorted((ROOT / "docs").rglob("*.md")), *notebooks.books()]
    found = [str(page.relative_to(ROOT).with_suffix("")) for page in files]
    own = ["design", "CHANGELOG", "CONTRIBUTING", "AGENTS", "SECURITY"]
    return [*own, *(page for page in found if not page.startswith("docs/decisions/"))]


def rooms() -> dict[str, list[str]]:
    """Return public module → the public names that are at home in it or offered by it, each under one module only."""
    found = {"parl_like": list(parl_like.__all__)}
    for one in pkgutil.walk_packages(parl_like.__path__, "parl_like."):
        if one.ispkg and not one.name.rpartition(".")[2].startswith("_"):
            if offered := getattr(import_module(one.name), "__all__", None):
                found[one.name] = list(offered)
    for name in EXTRA_ROOMS:
        module = import_module(name)
        found[name] = [key for key, value in vars(module).items() if not key.startswith("_") and isinstance(value, type)
                       and value.__module__ == name]
    return found


def toctree(pages: list[str], caption: str = "", hidden: bool = False) -> str:
    """Return a list of pages that Sphinx puts into the navigation."""
    options = [f":caption: {caption}"] * bool(caption) + [":hidden:"] * hidden + [":maxdepth: 1"]
    return "\n".join(["```{toctree}", *options, "", *pages, "```"])


@functools.cache
@functools.cache
def algorithm_pages() -> dict[str, str]:
    """Return class → its page: what shows that it is right, what it takes, its experiments and scores, its docstring, what
    differs from its paper, and the docstring of its file."""
    trained, groups = algorithm_page.trained(), algorithm_page.groups()
    pages = {}
    for file, there in algorithm_page.members().items():
        for one in there:
            name = one.__name__
            light = [evidence.COLUMNS, evidence.row(name, groups[name])] if name in groups else []
            takes, beside = algorithm_page.takes(one), evidence.beside(name) if name in groups else ""
            every = "[all of them](start/which-algorithm.md#which-algorithm-takes-what)"
            parts = [f"# {name}",
                     f"{algorithm_page.first_sentence(file)}. Source: [algorithms/{file}.py](../algorithms/{file}.py).",
                     "\n".join(light), beside,
                     f"Takes, with networks of ours: {takes} ({every})." if takes else "",
                     *algorithm_page.about(one, trained)[:-1], shown(one)]
            if commands := algorithm_page.commands(one):
                parts.append("```bash\n" + "\n".join(commands) + "\n```")
            if script := algorithm_page.script(one):
                parts.append(f"```python\n{script}\n```")
            parts += [f"![Curves of `{named}`: {of_seeds(seen)}](curves/{named}.svg)" for named, seen in curves_of(one).items()]
            parts.append(differs(one))
            if family := algorithm_page.family(file):
                parts.append("## What its family has in common\n\n" + as_block(family))
            pages[name] = moved_down("\n\n".join(filter(None, parts)) + "\n")
    return pages


@functools.cache
def with_curves() -> dict[str, list[Mark]]:
    """Return experiment → those of its marks that have a curve to draw, where there are any."""
    drawn = {name: [mark for mark in seen if len(mark.curve) > 1] for name, seen in algorithm_page.scores().items()}
    return {name: seen for name, seen in drawn.items() if seen}


def of_seeds(seen: Sequence[Mark]) -> str:
    """Return whose curves are drawn, in words."""
    seeds = ", ".join(str(mark.seed) for mark in seen)
    return f"seed{'s' * (len(seen) > 1)} {seeds}"


def curves_of(one: Any) -> dict[str, list[Mark]]:
    """Return those of `with_curves` that train an algorithm."""
    by, drawn = algorithm_page.experiments_of(), with_curves()
    return {name: drawn[name] for key in algorithm_page.keys(one.__name__) for name in by[key] if name in drawn}


PICTURES = {"hierarchy": ("doorkey.gif", "hierarchy-doorkey.png"), "thinker": ("thinker-mini.png",),
            "thinker_shared": ("sokoban.png",), "single": ("multiroom.png",)}
"""Robot → pictures of docs/ that show it. Others have the curves of their marks, as far as marks keep them."""
DRAWN = {"alphazero": "alphazero-tictactoe", "auxiliary": "auxiliary-cartpole", "hierarchy": "hierarchy-doorkey",
         "muzero": "muzero-cartpole", "prediction": "td-walk", "single": "counts-multiroom", "thinker": "thinker-sokoban-mini"}
"""Robot → the experiment whose parts are drawn, where it has several."""


def drawn(robot: str, names: Sequence[str]) -> str:
    """Return the experiment of a robot whose parts are drawn."""
    return DRAWN.get(robot, names[0])


def parts_of(name: str) -> str:
    """Return the picture of an experiment's robot, which is built for it, as one that is only looked at: without a cluster."""
    one = algorithm_page.experiments.get(name)
    config = configs.resolve(one.module().Config, one.config, {"driver": "cooperative"})
    env = getattr(config, "env", "") or getattr(config, "game", "")
    with foreign.Foreign(Path(name), {}, [one.config], ran=True, alone=True).in_force():
        robot = one.module().build(config)
    with robot:
        return structure.svg(f"The parts of {name}", robot, getattr(env, "id", env))


def robot_pages() -> dict[str, str]:
    """Return module of robots/ that has experiments → its page: its docstring, pictures, its experiments with their scores, and
    the keys of its configuration."""
    scores, pages = algorithm_page.scores(), {}
    for robot, names in sorted(algorithm_page.experiments_of_robots().items()):
        module = import_module(f"parl_like.robots.{robot}")
        pictures = PICTURES.get(robot) or [f"algorithms/curves/{name}.svg" for name in names if name in with_curves()]
        source = f"robots/{robot}/" if hasattr(module, "__path__") else f"robots/{robot}.py"
        rows = [f"| `{name}` | {algorithm_page.experiments.get(name).description} "
                f"| {algorithm_page.told(scores[name], name) or '–'} |" for name in names]
        parts = [f"# {robot}", f"Source: [{source}](../{source}).", shown(module),
                 f"![The parts of {drawn(robot, names)}](robots/{robot}.svg)",
                 *(f"![{Path(picture).stem}]({picture})" for picture in pictures),
                 "\n".join(["| experiment | what | score |", "|---|---|---|", *rows]),
                 "`parl-like train NAME` trains one of them.", differs(module),
                 f"## Configuration\n\n{shown(module.Config)}" if inspect.getdoc(module.Config) else ""]
        pages[robot] = moved_down("\n\n".join(filter(None, parts)) + "\n")
    return pages


def shown(one: object) -> str:
    """Return the docstring of a class or module as a block of a page, without what `differs` shows."""
    return as_block(divided(inspect.getdoc(one) or "", "Differences")[0])


def differs(one: object) -> str:
    """Return what a class or module does otherwise than its paper, as a part of a page; empty: it does not say."""
    items = algorithm_page.differences(one)
    return f"## What differs from the paper\n\n```{{eval-rst}}\n{rst_list(items)}```" if items else ""


def as_block(text: str) -> str:
    """Return text as in a docstring as a block of a page."""
    return f"```{{eval-rst}}\n{rst(text)}```"


def moved_down(text: str) -> str:
    """Return a page of docs/ as one of a folder there: its links start one folder higher."""
    return outside_blocks(text, lambda part: LINK.sub(
        lambda link: f"[{link['text']}](../{link['target']}{link['anchor'] or ''})", part))


def outside_blocks(text: str, change: Any) -> str:
    """Return a page with its prose changed, and its code as it is."""
    return "".join(part if number % 2 else change(part) for number, part in enumerate(BLOCK.split(text)))


def reference(module: str, names: list[str]) -> str:
    """Return the page of a public module: every name with its signature and docstring."""
    parts = [f"# {module}"]
    for name in names:
        value = getattr(import_module(module), name)
        if isinstance(value, type):
            said = f".. autoclass:: {module}.{name}\n   :members:\n   :show-inheritance:\n"
            said += inherited(value) if module == "parl_like" else ""
        elif inspect.ismodule(value):
            said = f".. automodule:: {module}.{name}\n   :members:\n"
        elif inspect.isroutine(value):
            said = f".. autofunction:: {module}.{name}\n"
        else:
            said = f".. py:data:: {module}.{name}\n\n{textwrap.indent(rst(text_of_data(module, name)), '   ')}"
        parts.append(f"## {name}\n\n```{{eval-rst}}\n{said}```")
    return "\n\n".join(parts) + "\n"


def inherited(one: type) -> str:
    """Return the option by which a class shows what it has of bases of ours that no page is about; empty: it has no such base."""
    public = {getattr(import_module(module), name) for module, names in rooms().items() for name in names
              if isinstance(getattr(import_module(module), name), type)}
    elsewhere = [base for base in one.__mro__[1:] if base in public or not base.__module__.startswith("parl_like.")]
    return f"   :inherited-members: {', '.join(base.__name__ for base in elsewhere)}\n" * (len(elsewhere) < len(one.__mro__) - 1)


def text_of_data(module: str, name: str) -> str:
    """Return the text below a value of a module, or of the module that it is imported from. Raises KeyError: there is none."""
    lines = ast.parse(inspect.getsource(import_module(module))).body
    for line, after in zip(lines, [*lines[1:], None], strict=True):
        if isinstance(line, ast.ImportFrom) and line.module and name in {alias.name for alias in line.names}:
            return text_of_data(line.module, name)
        targets = line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
        if name in map(ast.unparse, targets) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            return inspect.cleandoc(after.value.value)
    raise KeyError(f"{module}.{name} has no text below it")


@functools.cache
def slugs() -> dict[str, str]:
    """Return the anchor of an algorithm on docs/algorithms.md → its page's name."""
    return {one.__name__.lower(): one.__name__ for there in algorithm_page.members().values() for one in there}


def links(text: str, page: Path, stage: Path) -> str:
    """Return a page whose links hold on the site: those to folders lead to their page, or are text; files are laid beside."""

    def mended(link: re.Match[str]) -> str:
        target, anchor = link["target"], link["anchor"] or ""
        if target.endswith("algorithms.md") and anchor[1:] in slugs():
            return f"[{link['text']}]({target.removesuffix('.md')}/{slugs()[anchor[1:]]}.md)"
        if not target or target.endswith(".md"):
            return link[0]
        if target.endswith(".ipynb"):
            return f"[{link['text']}]({target.removesuffix('.ipynb')}.md{anchor})"
        place = (page.parent / target).resolve()
        name = place.relative_to(ROOT)
        if place.is_dir():
            return f"[{link['text']}]({target.rstrip('/')}.md)" if str(name) in MADE else link["text"]
        if place.exists():  # else it is drawn for the site
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place, stage / name)
        return link[0]

    return outside_blocks(text, lambda part: LINK.sub(mended, part))


def lay_out(stage: Path) -> None:
    """Write all that Sphinx reads into a folder."""
    shutil.copytree(SITE, stage)
    (stage / "navigation.yaml").unlink()

    def lay(name: str, text: str) -> None:
        (stage / f"{name}.md").parent.mkdir(parents=True, exist_ok=True)
        (stage / f"{name}.md").write_text(links(text, ROOT / f"{name}.md", stage), encoding="utf-8")

    contents = [toctree(pages, heading, hidden=True) for heading, pages in navigation().items()]
    lay("index", (ROOT / "README.md").read_text(encoding="utf-8") + "\n" + "\n\n".join(contents) + "\n")
    books = {str(book.relative_to(ROOT).with_suffix("")): book for book in notebooks.books()}
    for name in {*written()} - MADE - books.keys():
        lay(name, (ROOT / f"{name}.md").read_text(encoding="utf-8"))
    for name, book in books.items():  # whose pictures are in the file, so its links are mended cell by cell
        beside = (stage / name).parent
        beside.mkdir(parents=True, exist_ok=True)
        (stage / f"{name}.md").write_text(notebooks.page(book, lambda text, book=book: links(text, book, stage), beside),
                                          encoding="utf-8")
    robots = (ROOT / "docs" / "robots.md").read_text(encoding="utf-8")
    below = {"docs/algorithms": (evidence.dots(algorithm_page.front()),
                                 {name: evidence.dots(text) for name, text in algorithm_pages().items()}),
             "docs/robots": (f"{robots}\n## A page for each\n", robot_pages()),
             "docs/reference": ("# Reference\n\nEvery public name, as its docstring says it: shapes, types, units, errors.",
                                {module: reference(module, names) for module, names in rooms().items()}),
             "docs/decisions": ("# Decisions\n\nOne a page: context, decision, what was rejected, consequences.",
                                {page.stem: page.read_text(encoding="utf-8")
                                 for page in sorted((ROOT / "docs" / "decisions").glob("*.md"))})}
    for name, (head, pages) in below.items():
        lay(name, f"{head}\n\n{toctree([f'{Path(name).name}/{page}' for page in pages])}\n")
        for page, text in pages.items():
            lay(f"{name}/{page}", text)
    for robot, names in algorithm_page.experiments_of_robots().items():
        (stage / "docs" / "robots" / f"{robot}.svg").write_text(parts_of(drawn(robot, names)), encoding="utf-8")
    for name, seen in with_curves().items():
        picture = stage / "docs" / "algorithms" / "curves" / f"{name}.svg"
        picture.parent.mkdir(exist_ok=True)
        picture.write_text(curves.svg(f"{name}, {of_seeds(seen)}", seen), encoding="utf-8")


def build(folder: Path) -> int:
    """Build the site in a folder; return 0, or 1 where Sphinx has an error or a warning, or a link leads nowhere."""
    shutil.rmtree(folder, ignore_errors=True)
    lay_out(folder / "source")
    code = subprocess.run([sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html",
                           str(folder / "source"), str(folder / "html")], env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
                          check=False).returncode
    nowhere = site_links.broken(folder / "html")
    print("\n".join(nowhere), end="\n" * bool(nowhere))
    return 1 if code or nowhere else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "site")
    to = parser.parse_args().folder
    code = build(to)
    print("the site has faults, see above" if code else to / "html" / "index.html")
    sys.exit(code)
