"""Documents are read once: short sentences, the field's words, limits on their size; docstrings have a subject."""

import re

import prose
import pytest

pytestmark = pytest.mark.checkout
PAGES = prose.pages()
FROM_CODE = ("docs/parts.md",)
"""Pages whose sentences a benchmark writes."""


def named(page):
    return str(page.relative_to(prose.ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_sentences_have_thirty_words_at_most(page):
    assert prose.too_long(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", [*PAGES, prose.ROOT / "CHANGELOG.md"], ids=named)
def test_old_words_are_not_used(page):
    assert prose.old_words(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", [page for page in PAGES if named(page) not in FROM_CODE], ids=named)
def test_sentences_have_a_subject(page):
    assert prose.without_subject(page.read_text(encoding="utf-8")) == []


def test_the_changelog_of_a_first_release_is_one_page():
    text = (prose.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert text.startswith("# Changelog\n\n## 0.1.0 (unreleased)\n") and text.count("\n## ") == 1
    assert len(text.splitlines()) <= 40 + 2
    assert prose.too_long(text) == []


def test_the_design_is_short_and_links_every_decision():
    text = (prose.ROOT / "design.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    decisions = sorted((prose.ROOT / "docs" / "decisions").glob("*.md"))
    assert [page.name[:3] for page in decisions] == [f"{number:03}" for number in range(1, len(decisions) + 1)]
    for page in decisions:
        title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        assert f"- [{title}](docs/decisions/{page.name})" in text


@pytest.mark.parametrize("page", sorted((prose.ROOT / "docs" / "decisions").glob("*.md")), ids=named)
def test_a_decision_is_one_short_page_of_four_parts(page):
    text = page.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == ["Context", "Decision", "Rejected", "Consequences"]


def test_the_glossary_is_one_page_and_its_places_exist():
    rows = [line.strip("|").split("|") for line in (prose.ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
            if line.startswith("| ")][1:]
    assert 20 <= len(rows) <= 40
    for term, meaning, where in rows:
        assert prose.length(meaning) <= prose.LIMIT
        assert (prose.ROOT / where.strip(" `")).exists(), f"{term.strip()}: {where}"


def test_docstrings_begin_with_a_verb_or_a_noun():
    assert prose.docstrings_without_subject() == []


def test_old_words_are_in_no_name_of_the_package():
    assert prose.old_names() == []


def test_old_words_are_in_no_docstring_and_no_comment():
    assert prose.old_words_in_code() == []


# ------------------------------------------------------------------------------------------------------ the reader itself


def test_a_page_is_divided_into_sentences():
    text = """# A heading is none
One sentence with `code of three words`, and [a link](page.md). Another (in brackets.) A third
over two lines!

- an item
- another, with a number, 0.05, and 1,234
  on its second line

| a table | is none |
```python
nor.is_code()
```
![nor a picture](of.png)
"""
    assert prose.sentences(text) == [
        "One sentence with CODE, and a link.", "Another (in brackets.", "A third over two lines!", "an item",
        "another, with a number, 0.05, and 1,234 on its second line"]
    assert prose.length("a `b` 0.05 — 143 116 γ, x²") == 4


def test_a_long_sentence_and_an_old_word_are_found():
    assert prose.too_long(" ".join(["word"] * 30) + ".") == []
    assert prose.too_long(" ".join(["word"] * 31) + ".") == [(31, " ".join(["word"] * 31) + ".")]
    assert prose.old_words("A lesson of the crew; `Lessons` is code.\n\n| a seam |\n") == ["crew", "lesson", "seam"]
    text = "What it is. Of two one. Is it so? Who asks?\n\n- Where it is so, it is.\n"
    assert prose.without_subject(text) == ["What it is.", "Of two one."]


def test_a_name_is_divided_into_words():
    assert prose.words_of("_TaskCard") == ["task", "card"] and prose.words_of("is_USUAL2") == ["is", "usual"]
    assert prose.words_of("discard") == ["discard"] and prose.words_of("MLPActorQ") == ["mlp", "actor", "q"]
