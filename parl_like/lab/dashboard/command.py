"""The command `parl-like dashboard`."""

from __future__ import annotations

import importlib.util
import os
import sys
import webbrowser
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from parl_like.lab.dashboard.export import export
from parl_like.lab.yaml_text import UsageError

MISSING = "the dashboard needs Starlette and uvicorn; `pip install 'parl_like[dashboard]'`"


def show(runs: Sequence[str], host: str, port: int | None, browse: bool, out: str,
         say: Callable[[object, Iterable[str]], None]) -> None:
    """Serves the page until Ctrl-C, or writes it as one file.

    Args:
        runs: Run directories, or folders with such.
        host, port: Where to listen; None: at a port that is free.
        browse: Open the browser.
        out: The file to write; empty: serve.
        say: Called with what a machine, and with what people are told.

    Raises:
        UsageError: there is no such directory, the extra is missing, or it cannot listen or write there.
    """
    paths = _paths(runs)
    if out:
        found = export(paths, Path(out))
        say(found, [f"{found['page']}: {found['runs']} runs, {found['metrics']} metrics, {found['bytes']:,} bytes"])
        return
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise UsageError(MISSING)
    from parl_like.lab.dashboard.server import serve

    def opened(address: str, first: bool) -> None:
        text = f"{', '.join(map(str, paths))}: {address}  (Ctrl-C ends)" if first else f"for another browser: {address}"
        say({"address": address}, [text])
        sys.stdout.flush()
        if first and browse:
            webbrowser.open(address)

    serve(paths, host, port, opened)


def _paths(runs: Sequence[str]) -> list[Path]:
    """The directories that a command names; a name alone is also looked for below `runs/`."""
    found = []
    for run in runs:
        path = next((one for one in (Path(run), Path("runs") / run) if os.path.isdir(one)), None)
        if path is None:
            raise UsageError(f"{run}: there is no such directory; give run directories, or a folder with such")
        found.append(path)
    return found
