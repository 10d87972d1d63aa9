"""The files beside the package that a reader or a host looks for: citation and security."""

import re
from pathlib import Path

import pytest
import yaml

import parl_like

pytestmark = pytest.mark.checkout
ROOT = Path(__file__).resolve().parents[1]


def test_the_citation_is_that_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0" and cited["type"] == "software"
    assert {"message", "title", "authors", "version", "license"} <= cited.keys()
    assert cited["version"] == parl_like.__version__ and cited["license"] == "Apache-2.0"
    assert [list(author) for author in cited["authors"]] == [["name"]]


def test_links_of_the_security_page_hold():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert all((ROOT / target).exists() for target in re.findall(r"\]\((?!http)([^)#]+)", text))


def test_links_to_the_web_are_well_formed():
    """By their text alone: nothing is asked for."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\((http[^)\s]*)", text):
            assert re.fullmatch(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(/[\w./~%#?=&+@:-]*)?", link), (page.name, link)
