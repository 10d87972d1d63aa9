"""Runs the notebooks of docs/notebooks/ and keeps their output in them: `make notebooks`. The site shows them as pages.

    python tests/notebooks.py                  all of them
    python tests/notebooks.py first-robot      this one

Running needs the extra `notebooks`; a page of the site is made from the file alone.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
LARGEST = 300_000
"""Bytes of a notebook, pictures included."""
SECONDS = 600
"""Of a cell."""


def books() -> list[Path]:
    """Return the notebooks, in the order of their names."""
    return sorted(FOLDER.glob("*.ipynb"))


def cells(book: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook, each with its text as one string in `source`."""
    return [{**cell, "source": "".join(cell["source"])} for cell in json.loads(book.read_text(encoding="utf-8"))["cells"]]


def prose(book: Path) -> str:
    """Return the text between the code, as one page of Markdown."""
    return "\n\n".join(cell["source"] for cell in cells(book) if cell["cell_type"] == "markdown") + "\n"


def executed(book: Path, folder: Path) -> Any:
    """Run a notebook from its first cell on, in an empty folder; return it with its output. Raises
    nbclient.exceptions.CellExecutionError where a cell raises."""
    import nbclient
    import nbformat

    made = nbformat.read(book, as_version=4)
    nbclient.NotebookClient(made, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(folder)}},
                            record_timing=False).execute(env=os.environ | {"XDG_RUNTIME_DIR": str(folder)})  # where screens are
    return made


def kept(made: Any) -> str:
    """Return the text of a notebook that was run: what two runs have alike, and no word of the machine."""
    made.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                     "language_info": {"name": "python"}}
    for cell in made.cells:
        for output in cell.get("outputs", ()):
            if "data" in output and "image/png" in output.data:
                output.data = {"image/png": output.data["image/png"].strip(), "text/plain": cell.metadata.get("alt", "a picture")}
                output.metadata = {}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def shown(cell: dict[str, Any]) -> tuple[str, list[bytes]]:
    """Return what a cell has printed, and its pictures; PNG files."""
    texts, pictures = [], []
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            pictures.append(base64.b64decode("".join(data["image/png"])))
        else:
            texts.append("".join(output.get("text", data.get("text/plain", ""))))
    return "".join(text if text.endswith("\n") else text + "\n" for text in texts), pictures


def page(book: Path, mended: Callable[[str], str], beside: Path) -> str:
    """Return a notebook as a page of Markdown; its pictures are written into the folder `beside`.

    Args:
        mended: Called with the text of each cell that is no code.
    """
    parts, number = [], 0
    for cell in cells(book):
        if cell["cell_type"] == "markdown":
            parts.append(mended(cell["source"]))
            continue
        parts.append(f"```python\n{cell['source']}\n```")
        text, pictures = shown(cell)
        if text:
            parts.append(f"```text\n{text}```")
        for picture in pictures:
            number += 1
            beside.mkdir(parents=True, exist_ok=True)
            (beside / f"{book.stem}-{number}.png").write_bytes(picture)
            parts.append(f"![{re.sub(r'[][]', '', cell['metadata'].get('alt', 'a picture'))}]({book.stem}-{number}.png)")
    return "\n\n".join(parts) + "\n"


def main(names: Sequence[str]) -> int:
    for book in [FOLDER / f"{Path(name).stem}.ipynb" for name in names] or books():
        with tempfile.TemporaryDirectory() as folder:
            text = kept(executed(book, Path(folder)))
        book.write_text(text, encoding="utf-8")
        print(f"{book.name}: {len(text):,} bytes of at most {LARGEST:,}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
