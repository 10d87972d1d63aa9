"""The site names every page once, its reference every public name, and it builds without a warning."""

import importlib
import re
import tomllib
from urllib.parse import urlsplit
from xml.etree import ElementTree

import algorithm_page
import evidence
import pytest
import site_links
import site_pages
import site_pictures
from docstring_text import flowing, rst

import parl_like
from parl_like.robots.thinker import ray as thinker_ray

pytestmark = pytest.mark.checkout


def test_the_navigation_names_every_page_once():
    named = [page for pages in site_pages.navigation().values() for page in pages]
    made = {page for page in site_pages.MADE if not (site_pages.ROOT / f"{page}.md").exists()}
    assert sorted(named) == sorted({*site_pages.written(), *made})


def test_the_reference_has_every_public_name_and_each_is_described():
    rooms = site_pages.rooms()
    assert rooms["parl_like"] == list(parl_like.__all__)
    assert {"parl_like.algorithms", "parl_like.models", "parl_like.environment.hooks"} <= rooms.keys()
    for module, names in rooms.items():
        page = site_pages.reference(module, names)
        for name in names:
            assert hasattr(importlib.import_module(module), name)
            assert f":: {module}.{name}\n" in page and f"## {name}\n" in page


def test_the_reference_shows_the_text_below_a_value_not_that_of_its_type():
    assert "| Rows of noise drawn at a time.\n" in site_pages.reference("parl_like.learning.explorers", ["NOISE_BLOCK"])


def test_an_algorithm_has_a_page_with_its_light_scores_command_and_docstring():
    members = {one.__name__: one for there in algorithm_page.members().values() for one in there}
    pages = site_pages.algorithm_pages()
    assert pages.keys() == members.keys()
    dqn = pages["DQN"]
    assert site_pages.shown(members["DQN"]) in dqn
    assert "| DQN | " in dqn and "parl-like train dqn-cartpole\n" in dqn and "steps, " in dqn


def test_a_page_of_an_algorithm_says_what_it_takes_who_is_beside_it_and_what_its_paper_has():
    page = site_pages.algorithm_pages()["CrossQ"]
    assert "Beside it: [CrossQ, Pendulum-v1, 10,000 steps](../benchmarks.md)." in page
    assert "actions: Discrete, Box;" in page and page.count("The actor has no batch norm") == 1
    assert "## What differs from the paper\n" in page


def test_a_page_of_an_algorithm_has_the_formulas_of_its_family():
    """Where its own docstring says: see the text of this module."""
    pages = site_pages.algorithm_pages()
    assert "N(s, a) / Σ_b N(s, b)" in pages["AlphaZero"] and "## What its family has in common\n" in pages["AlphaZero"]
    assert "reward_weight · 1/K Σ_{k=1..K} l(r̂_k, r_{t+k})" in pages["MuZero"]
    assert algorithm_page.family("muzero").startswith("Two tasks learn it together.\n\nThe agent searches")


def test_a_robot_has_a_page_with_its_picture_experiments_and_keys():
    pages = site_pages.robot_pages()
    assert pages.keys() == {algorithm_page.experiments.get(path.stem).robot for path in algorithm_page.EXPERIMENTS.glob("*.yaml")}
    assert all("![" in page for page in pages.values())
    assert "![The parts of mbpo-pendulum](../robots/mbpo.svg)" in pages["mbpo"]
    assert "](../doorkey.gif)" in pages["hierarchy"] and "| `hierarchy-doorkey` | " in pages["hierarchy"]
    assert "**horizon**: Steps after which a goal is given up." in pages["hierarchy"]


def test_the_parts_of_a_robot_are_drawn_from_the_robot():
    picture = ElementTree.fromstring(site_pages.parts_of("mbpo-pendulum"))
    said = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"1 agent", "Pendulum-v1", "EnsembleLearner", "asks: obs, act", "10 updates every step", "is asked"} <= set(said)


@pytest.mark.slow  # its model is large
def test_the_parts_of_a_robot_whose_model_is_shared_are_drawn_without_a_cluster(monkeypatch):
    monkeypatch.setattr(thinker_ray, "the_ray", lambda: 1 / 0)
    said = site_pages.parts_of("thinker-sokoban-shared")
    assert {">WorldModel<", ">environments ask it<", ">learns from its clients<", ">IMPALA<"} <= set(re.findall(r">[^<]+<", said))


def test_the_size_that_the_page_of_comparisons_gives_is_near_that_of_the_package():
    text = (site_pages.ROOT / "docs" / "results" / "compare.md").read_text(encoding="utf-8")
    folders = [site_pages.ROOT / name for name in ("parl_like", "algorithms", "models", "envs", "robots")]
    lines = {ends: sum(len(path.read_bytes().splitlines()) for folder in folders for path in folder.rglob("*")
                       if path.suffix in ends) for ends in ((".py",), (".pyx", ".cpp", ".h"))}
    said = re.search(r"\| here \| ([\d,]+), and ([\d,]+) of compiled code \| (\d+) \|", text)
    python, compiled, needed = (int(one.replace(",", "")) for one in said.groups())
    assert [python, compiled] == pytest.approx([*lines.values()], rel=0.03)
    project = tomllib.loads((site_pages.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert needed == len(project["dependencies"])
    own = len((site_pages.ROOT / "algorithms" / "dqn.py").read_text(encoding="utf-8").splitlines())
    assert f"algorithms/dqn.py) here ({own} lines)" in text and f"here it is {own} lines upon" in text


LONG = "a word " * 15


@pytest.mark.parametrize("written, joined", [
    (f"{LONG}\nb.\n\n    y = r,  {LONG}\n    z = y\n```", f"{LONG} b.\n\n    y = r,  {LONG}\n    z = y\n```"),
    (f"loss = {LONG}\nb = 2\n\nQ = {LONG}r,\nb = 2\n", f"loss = {LONG} b = 2\n\nQ = {LONG}r,\nb = 2"),
    (f"Args:\n    one: {LONG}\n        more.\n    two, three: Short,\n        or not.\n    The others: {LONG}\n",
     f"Args:\n    one: {LONG} more.\n    two, three: Short, or not.\n    The others: {LONG}"),
    (f"Returns:\n    {LONG}\n    b.\n\nEnd.\n- {LONG}\n  c\n- d\n", f"Returns:\n    {LONG} b.\n\nEnd.\n- {LONG} c\n- d"),
    (f"Returns:\n    {LONG}\nEnd\n    table {LONG}\n    row", f"Returns:\n    {LONG}\nEnd\n    table {LONG}\n    row"),
], ids=["paragraph", "formulas", "arguments", "list", "table"])
def test_wrapped_lines_of_a_docstring_are_joined_and_all_else_keeps_its_lines(written, joined):
    assert flowing(written) == joined


def test_a_docstring_is_prose_with_names_in_bold_and_its_formulas_in_blocks():
    assert rst("Take `x`s of a_b*:\n\n    y = `r`\n\nArgs:\n    one_two, b: Of [N].\n    The others: see A.\n\nEnd `.") == """\
.. container:: docstring

   | Take \\ ``x``\\ s of a\\_b\\*:

   .. code-block:: text

          y = `r`

   | Args:
   |     **one\\_two, b**: Of [N].
   |     **The others**: see A.

   | End \\`.
"""


def test_lights_are_words_with_a_dot_before_them():
    page = f"one\n\n{evidence.COLUMNS}\n| A | yes | – | missed | yes |\n\nyes | – |\n"
    assert evidence.dots(page) == page.replace("| yes | – | missed | yes |", (
        '| <span class="light yes">yes</span> | <span class="light none">–</span> | <span class="light missed">missed</span> '
        '| <span class="light yes">yes</span> |'))
    assert evidence.dots("no table | yes |\n") == "no table | yes |\n"


def test_links_of_the_checkout_hold_on_the_site(tmp_path):
    page = site_pages.ROOT / "docs" / "benchmarks.md"
    text = ("[a](algorithms.md#trpo) [b](../robots/) [c](decisions/) [d](evidence.yaml) [e](own/environment.md#masks) [f](https://x.org)\n"
            "[g](notebooks/thinker.ipynb#one)\n```python\nrows[0](robots/)\n```\n")
    assert site_pages.links(text, page, tmp_path) == (
        "[a](algorithms/TRPO.md) b [c](decisions.md) [d](evidence.yaml) [e](own/environment.md#masks) [f](https://x.org)\n"
        "[g](notebooks/thinker.md#one)\n```python\nrows[0](robots/)\n```\n")
    assert (tmp_path / "docs" / "evidence.yaml").is_file()
    assert site_pages.moved_down("[e](own/environment.md#masks)") == "[e](../own/environment.md#masks)"


def test_links_of_a_built_site_that_lead_nowhere_are_named(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a b.html").write_text('<p id="one"> <a href="#one"> <a href="#two"> <a class="x" href="../index.html">')
    (tmp_path / "index.html").write_text('<a href="docs/a%20b.html#one"> <a href="docs/a%20b.html#3"> <img src="a.png"> <a href="https://x.org">')
    assert site_links.broken(tmp_path) == ["docs/a b.html: no such anchor: #two", "index.html: no such file: a.png",
                                           "index.html: no such anchor: docs/a%20b.html#3"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_site_builds_without_a_warning_and_fits_a_phone(tmp_path):
    pytest.importorskip("myst_parser")
    assert site_pages.build(tmp_path / "site") == 0
    reference = (tmp_path / "site/html/docs/reference/parl_like.html").read_text(encoding="utf-8")
    assert "batch == buffer[indices]" in re.sub("<[^>]*>", "", reference)
    if site_pictures.PROGRAM:
        with site_pictures.Browser() as browser:
            assert list(site_pictures.too_wide(browser, tmp_path / "site/html")) == []
            assert not browser.errors and {urlsplit(one).scheme for one in browser.asked} <= {"file", "data"}
