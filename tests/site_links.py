"""Finds links of a built site that lead nowhere: to files that are not there, or to anchors that a page lacks. Offline."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

LINK = re.compile(r'\s(?:href|src)="([^"]*)"')
ANCHOR = re.compile(r'\sid="([^"]*)"')


def broken(site: Path) -> list[str]:
    """Return a line for each link, of a page to another file of the site, that leads nowhere."""
    files = {file.resolve() for file in site.rglob("*")}
    pages = {file: file.read_text(encoding="utf-8") for file in sorted(files) if file.suffix == ".html"}
    anchors = {file: set(map(unescape, ANCHOR.findall(text))) for file, text in pages.items()}
    found = []
    for file, text in pages.items():
        for link in sorted(set(map(unescape, LINK.findall(text)))):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            to = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            missing = "file" if to not in files else "anchor" if unquote(parts.fragment) not in {"", *anchors.get(to, ())} else ""
            if missing:
                found.append(f"{file.relative_to(site.resolve())}: no such {missing}: {link}")
    return found
