"""Takes pictures of the built site in Debian's Chromium, 400 and 1280 pixels wide, light and dark, after `make docs`.

    python tests/site_pictures.py                                   some pages of each kind, into build/site/pictures/
    python tests/site_pictures.py docs/start/concepts docs/marks    these pages
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "fakes"))

from chromium import MISSING, PROGRAM, Browser  # noqa: E402

BUILT = ROOT / "build" / "site"
PAGES = ("index", "docs/start/concepts", "docs/start/which-algorithm", "docs/algorithms/DQN", "docs/robots/hierarchy",
         "docs/benchmarks", "docs/reference/parl_like.learning.explorers", "docs/notebooks/hierarchy")
WIDTHS = (400, 1280)
LOADED = "document.readyState === 'complete' && [...document.images].every(image => image.complete)"
ALL_LOADED = "[...document.images].forEach(image => image.loading = 'eager')"
WIDE = """[...document.querySelectorAll('article *')].filter(one => {
    const box = one.getBoundingClientRect();
    if (!box.width || box.right <= document.documentElement.clientWidth + 1) return false;
    let up = one.parentElement;
    while (up.localName !== 'article' && getComputedStyle(up).overflowX === 'visible') up = up.parentElement;
    return up.localName === 'article';
}).map(one => `${one.tagName.toLowerCase()}.${one.className} "${one.textContent.trim().slice(0, 40)}"`)"""
"""Elements that stick out of the window, and lie in no box that scrolls."""


def shown(browser: Browser, site: Path, page: str, width: int, dark: bool = False) -> None:
    """Open a page of the site."""
    browser.size(width, 900, dark=dark)
    browser.open((site / f"{page}.html").as_uri(), until=LOADED)
    browser.evaluate(ALL_LOADED)
    browser.wait(LOADED)


def too_wide(browser: Browser, site: Path, width: int = WIDTHS[0]) -> Iterator[str]:
    """Yield a line for each page of the site that is wider than the window, or has something that is."""
    for file in sorted(site.rglob("*.html")):
        page = str(file.relative_to(site).with_suffix(""))
        shown(browser, site, page, width)
        if out := browser.evaluate(WIDE):
            yield f"{page}: {'; '.join(out[:3])}"


def main(pages: Sequence[str]) -> int:
    if PROGRAM is None:
        sys.exit(MISSING)
    to = BUILT / "pictures"
    to.mkdir(parents=True, exist_ok=True)
    with Browser() as browser:
        for page in pages or PAGES:
            for width in WIDTHS:
                for dark in (False, True):
                    shown(browser, BUILT / "html", page, width, dark)
                    tall = min(browser.evaluate("document.documentElement.scrollHeight"), 6000)
                    file = to / f"{page.replace('/', '_')}-{width}-{'dark' if dark else 'light'}.png"
                    browser.picture(file, clip=(0, 0, width, tall))
                    print(file, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
