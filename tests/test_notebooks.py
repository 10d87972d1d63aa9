"""The notebooks run from their first cell on, show what they showed when they were kept, and are pages of the site."""

import json
import re

import notebooks
import prose
import pytest

pytestmark = pytest.mark.checkout
BOOKS = notebooks.books()
SLOW = {"hierarchy", "thinker"}
"""Those that train for a minute."""


def named(book):
    return book.stem


def test_there_are_three():
    assert [book.stem for book in BOOKS] == ["first-robot", "hierarchy", "thinker"]


@pytest.mark.parametrize("book", [
    pytest.param(book, marks=[pytest.mark.slow] * (book.stem in SLOW)) for book in BOOKS], ids=named)
def test_a_notebook_runs(book, tmp_path):
    pytest.importorskip("nbclient", reason="pip install 'parl_like[notebooks]'")
    pytest.importorskip("ipykernel", reason="pip install 'parl_like[notebooks]'")
    made = notebooks.executed(book, tmp_path)
    assert [len(notebooks.shown(cell)[1]) for cell in made.cells if cell.cell_type == "code"] == [
        len(notebooks.shown(cell)[1]) for cell in notebooks.cells(book) if cell["cell_type"] == "code"]


@pytest.mark.parametrize("book", BOOKS, ids=named)
def test_a_notebook_is_small_and_has_its_output_and_no_path(book):
    text = book.read_text(encoding="utf-8")
    assert len(text.encode()) < notebooks.LARGEST
    code = [cell for cell in notebooks.cells(book) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    shown = [notebooks.shown(cell) for cell in code]
    pictures = sum((pictures for _, pictures in shown), [])
    assert len(pictures) >= 2 and all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert all(cell["metadata"].get("alt") for cell, (_, pictures) in zip(code, shown, strict=True) if pictures)
    printed = "".join(printed for printed, _ in shown)
    assert not re.search(r"/(work|root|home|tmp|usr)/|Error|Warning", printed)
    assert not [output for cell in code for output in cell["outputs"] if output.get("name") == "stderr"]


@pytest.mark.parametrize("book", BOOKS, ids=named)
def test_the_prose_of_a_notebook_is_read_once(book):
    text = notebooks.prose(book)
    assert text.startswith("# ")
    assert prose.too_long(text) == [] and prose.old_words(text) == [] and prose.without_subject(text) == []
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (book.parent / target).exists(), target


def test_a_notebook_becomes_a_page(tmp_path):
    book = tmp_path / "one.ipynb"
    book.write_text(json.dumps({"cells": [
        {"cell_type": "markdown", "source": ["# One\n", "a [link](two.md)"]},
        {"cell_type": "code", "source": "print(1)", "metadata": {"alt": "a [dot]"}, "outputs": [
            {"output_type": "stream", "name": "stdout", "text": ["1\n"]},
            {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo=", "text/plain": ["<Figure>"]}}]},
        {"cell_type": "code", "source": "2", "metadata": {}, "outputs": [
            {"output_type": "execute_result", "data": {"text/plain": ["2"]}}]}]}))
    assert notebooks.page(book, lambda text: text.replace("two", "2"), tmp_path / "pictures") == (
        "# One\na [link](2.md)\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n![a dot](one-1.png)\n\n"
        "```python\n2\n```\n\n```text\n2\n```\n")
    assert (tmp_path / "pictures" / "one-1.png").read_bytes().startswith(b"\x89PNG")
