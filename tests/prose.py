"""Reads the sentences of the documents and the first words of docstrings: `python tests/prose.py [PAGE …]` lists long ones."""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("parl_like", "algorithms", "models", "envs", "robots", "benchmarks")
LIMIT = 30

NO_SUBJECT = re.compile(r"(Of|What|Whether|Who|How|Where|Those)\b")
OLD_WORDS = re.compile(r"\b(lessons?|crews?|shelf|shelves|seams?|dealt|house)\b", re.IGNORECASE)
"""Private words of earlier versions; docs/glossary.md has the words that took their place."""

OLD_NAMES = {"lesson", "lessons", "crew", "crews", "shelf", "shelves", "seam", "seams", "card", "cards", "dealt", "introduce",
             "meet", "usual", "fresh"}
"""Words that no name of the package may have in it."""
CARDS = {"card", "cards", "dealt"}
"""Those that games of cards have."""

_FENCE = re.compile(r"^[ ]*```.*?^[ ]*```[ ]*$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
_SKIPPED = ("|", "#", "![", "Code: ")  # tables, headings, pictures, and the commits below the table of marks
_END = re.compile(r"(?<=[.!?])[)\"”*]*\s+(?=[^a-z])|(?<=[.!?]\*\*)\s+|(?<=[.!?]\))\s+")


def pages() -> list[Path]:
    """The documents that a reader meets; CHANGELOG.md has rules of its own."""
    top = ("README.md", "design.md", "CONTRIBUTING.md", "AGENTS.md")
    return [*(ROOT / name for name in top), *sorted((ROOT / "docs").rglob("*.md"))]


def paragraphs(text: str) -> Iterator[str]:
    """Yield the running text, a paragraph or a list item at a time, without code blocks, tables, headings and pictures."""
    lines: list[str] = []
    for line in [*_COMMENT.sub("", _FENCE.sub("", text)).splitlines(), ""]:
        skipped = not line.strip() or line.lstrip().startswith(_SKIPPED)
        if lines and (skipped or _ITEM.match(line)):
            yield " ".join(lines)
            lines = []
        if not skipped:
            lines.append(_ITEM.sub("", line).strip())


def plain(paragraph: str) -> str:
    """Return the text with the words of its links, and one word in the place of each piece of code."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "CODE", paragraph))


def sentences(text: str) -> list[str]:
    """Return the sentences of a page; an abbreviation before a capital counts as an end, which errs on the side of the writer."""
    return [sentence for paragraph in paragraphs(text) for sentence in _END.split(plain(paragraph)) if sentence.strip()]


def length(sentence: str) -> int:
    """Return how many words a sentence has: pieces with two letters, or one; numbers and signs are none."""
    return sum(bool(re.search(r"[^\W\d_]", word)) for word in sentence.split())


def too_long(text: str) -> list[tuple[int, str]]:
    """Return (words, sentence) for each sentence above the limit."""
    return [(length(one), one) for one in sentences(text) if length(one) > LIMIT]


def without_subject(text: str) -> list[str]:
    """Return the sentences of a page that begin with Of, What, Whether, Who or Those; questions may."""
    begins = re.compile(r"\W*(Of|What|Whether|Who|Those)\b")
    return [one for one in sentences(text) if begins.match(one) and not one.rstrip().endswith("?")]


def old_words(text: str) -> list[str]:
    """Return the old words of a page, tables and headings included, code not."""
    return sorted({match[0].lower() for match in OLD_WORDS.finditer(plain(_FENCE.sub("", text)))})


def sources() -> list[Path]:
    """Return the Python files of the package and of the folders beside it."""
    return sorted(path for top in SOURCES for path in (ROOT / top).rglob("*.py") if not path.is_symlink())


def docstrings_without_subject() -> list[str]:
    """Return "file: line" of each docstring that begins with a word of `NO_SUBJECT`."""
    return [f"{path.relative_to(ROOT)}: {text.splitlines()[0]}" for path in sources()
            for text in _docstrings(ast.parse(path.read_text(encoding="utf-8"))) if NO_SUBJECT.match(text)]


def old_names() -> list[str]:
    """Return "file: name" of each name of the package that has a word of `OLD_NAMES`, split at underscores and capitals."""
    found = set()
    for path in sources():
        top, *below = path.relative_to(ROOT).parts
        if top == "benchmarks":
            continue  # its cards are those of scores
        refused = OLD_NAMES | {"told"} if top == "envs" else OLD_NAMES
        if below[0] in ("games", "textbook.py"):
            refused = refused - CARDS
        with path.open("rb") as file:
            names = {one.string for one in tokenize.tokenize(file.readline) if one.type == tokenize.NAME}
        found |= {f"{path.relative_to(ROOT)}: {name}" for name in names if refused & set(words_of(name))}
    return sorted(found)


def words_of(name: str) -> list[str]:
    """Return the words of a name, in small letters: `_TaskCard` → task, card."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def old_words_in_code() -> list[str]:
    """Return "file: word" of each word of `OLD_WORDS` in a docstring or a comment."""
    found = set()
    for path in sources():
        with path.open("rb") as file:
            comments = [one.string for one in tokenize.tokenize(file.readline) if one.type == tokenize.COMMENT]
        texts = [*_docstrings(ast.parse(path.read_text(encoding="utf-8"))), *comments]
        found |= {f"{path.relative_to(ROOT)}: {word}" for text in texts for word in old_words(text)}
    return sorted(found)


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of modules, classes and functions, and the texts below attributes."""
    for node in ast.walk(tree):
        for one in getattr(node, "body", []) if isinstance(getattr(node, "body", None), list) else []:
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                yield one.value.value.lstrip()


if __name__ == "__main__":
    for page in [Path(name) for name in sys.argv[1:]] or pages():
        text = page.read_text(encoding="utf-8")
        print(f"{page}: {len(too_long(text))} too long", *old_words(text))
        for words, sentence in too_long(text) if sys.argv[1:] else []:
            print(f"  {words}: {sentence}")
