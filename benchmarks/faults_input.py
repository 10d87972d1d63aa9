"""Lines of the score card about bad input: messages, archives, buffers, configurations, and saves that are killed."""

from __future__ import annotations

import io
import itertools
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from benchmarks.faults_common import Line, folder, module_of


def bad_messages(options: Any) -> Line:
    """An escape is anything but a WireError, or what `well_typed` refuses; `fuzz` ends at the first."""
    wire = module_of("drivers/test_messages.py")
    wanted = 10_000 if options.quick else 1_000_000
    tried, escapes = 0, []
    for seed in range(10):
        said = io.StringIO()
        try:
            with redirect_stderr(said):
                wire.fuzz(wanted // 10, 100 + seed)
        except Exception as error:  # noqa: BLE001  that is what is looked for
            escapes.append(f"{type(error).__name__}: {error}; {said.getvalue()[:300]}")
        tried += wanted // 10
    return Line(f"{tried:,} messages / {len(escapes)}", not escapes, {"messages": tried, "escapes": escapes})


def bad_files(options: Any) -> Line:
    """Damaged and crafted archives and buffers, bad configurations: how many load, or fail otherwise than they should."""
    from parl_like.data.storage.archive import ArchiveError, read_archive, write_archive
    from parl_like.lab.config import resolve
    from parl_like.lab.yaml_text import ConfigError, load_yaml

    made, configs = module_of("data/test_archive.py"), module_of("lab/test_config.py")
    tried: Counter[str] = Counter()
    wrong: list[str] = []

    def attempt(kind: str, what: str, load: Callable[[], Any], error: type[Exception]) -> None:
        tried[kind] += 1
        try:
            load()
        except error:
            return
        except Exception as other:  # noqa: BLE001  refused, but not as promised
            wrong.append(f"{kind}, {what}: {type(other).__name__}: {other}")
            return
        wrong.append(f"{kind}, {what}: was loaded")

    with folder() as path:
        write_archive(path / "a", made.tiny(), {"step": 100, "score": 0.5})
        content = {name: (path / "a" / name).read_bytes() for name in os.listdir(path / "a")}
        now = dict(content)
        damaged = [(what, new) for what, new in made.damages(content, random.Random(1)) if new != content]
        for what, new in damaged[:: 20 if options.quick else 1]:
            made.become(path / "a", now, new)
            now = new
            attempt("damaged checkpoints", what, lambda: read_archive(path / "a"), ArchiveError)
        here = os.getcwd()
        for i, (what, craft) in enumerate(made.FORGERIES.items()):
            place = path / f"forged{i}"
            place.mkdir()
            (place / "secret").write_text("1")
            forgery = made.Forgery(place / "a")
            shutil.copy(place / "a" / "task.RL.json", place / "same.json")
            text = craft(forgery)
            if text is not False:
                forgery.seal(text if isinstance(text, str) else None)
            os.chdir(place)  # where code in a forgery would leave its trace
            try:
                attempt("crafted checkpoints", what, lambda place=place: read_archive(place / "a"), ArchiveError)
            finally:
                os.chdir(here)
            if (place / "was_here").exists():
                wrong.append(f"crafted checkpoints, {what}: its code was run")
        damaged_buffers(path, 5 if options.quick else 100, attempt)
    for text, key in configs.bad_configs():
        attempt("configurations", key, lambda text=text: resolve(configs.Config, load_yaml(text)), ConfigError)
    return Line(f"{', '.join(f'{n:,} {kind}' for kind, n in tried.items())} / {len(wrong)}", not wrong,
                {"tried": dict(tried), "wrong": wrong[:20]})


def damaged_buffers(path: Path, n: int, attempt: Callable[[str, str, Callable[[], Any], type[Exception]], None]) -> None:
    """Replay buffers on disk with one byte changed; they have one part only, so nothing of them may be spared."""
    from parl_like.data.buffers.saving import load_buffer, save_buffer
    from parl_like.data.storage.archive import ArchiveError

    made, rng = module_of("data/test_files.py"), random.Random(2)
    save_buffer(made.filled(n=20), path / "buffer")
    files = sorted((path / "buffer").iterdir())
    for _ in range(n):
        file = rng.choice(files)
        at = rng.randrange(file.stat().st_size)
        made.flip(file, at)
        attempt("damaged replays", f"{file.name} at {at}", lambda: load_buffer(path / "buffer"), ArchiveError)
        made.flip(file, at)


def checkpoint_bytes(options: Any) -> Line:
    """The program of `lab/test_checkpoint.py` that kills a saving process at each of its system calls, and looks what loads."""
    script = module_of("lab/test_checkpoint.py").KILL
    points, failed = 0, []
    for variant, when in itertools.product(("new",) if options.quick else ("new", "again", "damaged"), ("before", "half")):
        with folder() as path:
            done = subprocess.run([sys.executable, "-c", script, str(path), variant, when], capture_output=True, text=True,
                                  timeout=300, check=False)
        if done.returncode:
            failed.append(f"{variant}, {when}: {done.stderr[-500:]}")
        else:
            points += int(done.stdout)
    value = f"0 after {points} kills at {points} moments of a save" if not failed else f"lost: {failed}"
    return Line(value, not failed, {"kills": points, "failed": failed})
