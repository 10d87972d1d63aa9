"""The page: the files that it is made of, and one file of it all, which needs no server."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from parl_like.data.storage.safe_files import read_named

FOLDER = Path(__file__).with_name("static")
LIMIT = 1 << 20
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
NAMES = ("index.html", "uplot.css", "dashboard.css", "uplot.js", "elements.js", "source.js", "table.js", "curves.js", "robot.js",
         "details.js", "dashboard.js")
"""Ours, and uPlot 1.6.32 of Leon Sorokin (MIT: `static/uplot.LICENSE.txt`)."""


def read_files() -> Mapping[str, tuple[str, bytes]]:
    """Address → type and bytes."""
    files = {f"/{name}": (TYPES[Path(name).suffix], read_named(FOLDER / name, limit=LIMIT)) for name in NAMES}
    return {"/": files.pop("/index.html"), **files}


def whole_page(data: object) -> bytes:
    """The page as one file with these data inside. Its policy lets these scripts and styles run, known by their hashes, and
    nothing else; it can ask nobody for anything."""
    files = read_files()
    text, hashes = files["/"][1].decode(), {"style": list[str](), "script": list[str]()}

    def put(tag: str, address: str) -> str:
        body = files[address][1].decode().replace("</script", "<\\/script")
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        hashes[tag].append(f"'sha256-{digest}'")
        return f"<{tag}>{body}</{tag}>"

    text = re.sub(r'<link rel="stylesheet" href="([^"]+)">', lambda found: put("style", found[1]), text)
    head, script, rest = text.partition("<script")
    scripts = re.sub(r'<script src="([^"]+)" defer></script>', lambda found: put("script", found[1]), script + rest)
    # JSON in a page: no text in it may end its element.
    inside = msgspec.json.encode(data).decode().replace("<", "\\u003c")
    policy = (f"default-src 'none'; img-src data:; media-src data:; style-src {' '.join(hashes['style'])}; "
              f"script-src {' '.join(hashes['script'])}; base-uri 'none'; form-action 'none'")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<meta name="referrer" content="no-referrer">\n'
    head = head.replace('<meta name="viewport"', f'{meta}<meta name="viewport"', 1)
    return f'{head}<script type="application/json" id="data">{inside}</script>\n{scripts}'.encode()
