"""Snapshots of sources: what a run was made by, kept in its directory, and run again as it was.

`sources/HASH.tar.gz` has every Python source of parl_like and of the user's own packages that the run had imported when it
began, by module name. HASH is that of names and contents, however they are packed.

A run directory is not trusted, so sources in it are run only where the user has run these very ones before: the hashes are kept
in the user's own directory, beside those of configurations. Otherwise the user gives the hash (`--trust`). They are run in a
process of their own, from memory: nothing is unpacked anywhere.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import inspect
import io
import logging
import os
import re
import shlex
import subprocess
import sys
import tarfile
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from parl_like.data.storage.safe_files import names_in, read_named, replace_file
from parl_like.lab import experiment as experiments
from parl_like.lab import snapshot_importer, user_experiments
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.yaml_text import UsageError
from parl_like.values.user_calls import is_users

FOLDER = "sources"
MOST_FILES, MOST_BYTES = 5_000, 32 << 20
"""Files of a snapshot, and their bytes when they are unpacked."""
KEPT = 8
"""Packed snapshots that are kept for later runs of the same sources."""
_within: list[str] = []
"""The run whose sources this process runs, if there is one."""
_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"(?:[^\W\d]\w*/)*[^\W\d]\w*\.py")


def keep(run: RunDir) -> Callable[[], None]:
    """Keep in a run directory the sources that this process has imported, and remember that the user runs them. Return a function
    that waits until they are written: the end of a run is when all of it is there."""
    files = imported()
    if sum(map(len, files.values())) > MOST_BYTES:
        _LOG.warning(f"your own packages have over {MOST_BYTES} bytes of sources; {run.path} keeps only those of parl_like")
        files = {name: text for name, text in files.items() if name.startswith("parl_like/")}
    digest = hash_of(files)
    user_experiments.remember_sources(digest)
    run.update(sources=digest)
    name, cached = _file_of(digest), _cache() / f"{digest}.tar.gz"
    with suppress(OSError):
        run.outbox.replace(name, read_named(cached, limit=MOST_BYTES))
        return lambda: None

    def pack() -> None:  # beside the beginning of training, for it takes a twentieth of a second
        data = packed(files)
        with suppress(UsageError):  # the directory is gone: others will say so
            run.outbox.replace(name, data)
        with suppress(OSError):
            _cache().mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(cached, data)
            for old in sorted((_cache() / one for one in names_in(_cache(), limit=1_000)), key=os.path.getmtime)[:-KEPT]:
                old.unlink()

    packing = threading.Thread(target=pack, name="snapshot")
    packing.start()
    return packing.join


def imported() -> dict[str, bytes]:
    """Return the sources of the modules of parl_like and of the user that this process has imported: name of the file by that of
    the module → its content."""
    found = {}
    users: dict[str, bool] = {}  # by folder, for there are a thousand modules
    for name, module in sorted(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None) or ""
        if spec is None or spec.name != name or not origin.endswith(".py"):
            continue
        folder = os.path.dirname(origin)
        if folder not in users:
            users[folder] = is_users(origin)
        if name.partition(".")[0] == "parl_like" or users[folder]:
            end = "/__init__.py" if spec.submodule_search_locations is not None else ".py"
            with suppress(OSError):
                found[name.replace(".", "/") + end] = read_named(origin, limit=MOST_BYTES)
    return {name: text for name, text in found.items() if _NAME.fullmatch(name) and _fits(name)}


def _fits(name: str) -> bool:
    """Return whether a header of a tar file has room for this name: some 250 bytes of UTF-8."""
    try:
        return bool(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT, "utf-8"))
    except ValueError:
        return False


def hash_of(files: Mapping[str, bytes]) -> str:
    """SHA-256, in hexadecimal, of names and contents."""
    digest = hashlib.sha256()
    for name, text in sorted(files.items()):
        digest.update(f"{name}\0{len(text)}\0".encode())
        digest.update(text)
    return digest.hexdigest()


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return sources as a tar file, compressed; equal ones give equal bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT, encoding="utf-8") as tar:
        for name, text in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    return gzip.compress(out.getvalue(), 4, mtime=0)  # 6 takes twice the time for a twentieth less


def unpacked(data: bytes, file: object) -> dict[str, bytes]:
    """Return the sources of a packed snapshot.

    Raises:
        UsageError: it is none: damaged, too large, or with links or other names in it; `file` is named.
    """
    def refuse(why: str) -> UsageError:
        return UsageError(f"{file}: expected the sources of a run, got {why}; put the file back as the run wrote it")

    inflate = zlib.decompressobj(31)
    try:
        whole = inflate.decompress(data, 2 * MOST_BYTES)
        if inflate.unconsumed_tail or not inflate.eof or inflate.unused_data:
            raise refuse("more bytes than it may have, or fewer than it says")
        files: dict[str, bytes] = {}
        begin, block = 0, tarfile.BLOCKSIZE
        # Header by header, for tarfile follows extensions that nobody writes here: sparse files of any size, sizes below 0.
        while any(header := whole[begin : begin + block]):
            entry = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
            begin += block
            if len(files) == MOST_FILES:
                raise refuse(f"over {MOST_FILES} files")
            if entry.type != tarfile.REGTYPE or not _NAME.fullmatch(entry.name) or entry.name in files or not (
                    0 <= entry.size <= len(whole) - begin):
                raise refuse(f"an entry {entry.name!r:.80} of {entry.size} bytes")
            files[entry.name] = whole[begin : begin + entry.size]
            begin += -(-entry.size // block) * block
    except (zlib.error, tarfile.TarError, EOFError, UnicodeError) as error:
        raise refuse(f"what is no tar file: {error}") from None
    return files


def kept(run: RunDir) -> dict[str, bytes]:
    """Return the sources that a run directory keeps, by name; none where it keeps none. Raises UsageError: they are damaged, or
    others than its hash says."""
    said = run.info().sources
    if not said:
        return {}
    name = _file_of(said)
    files = unpacked(run.read(name, MOST_BYTES), run.path / name)
    if (digest := hash_of(files)) != said:
        raise UsageError(f"{run.path / name}: expected sources with the hash {said}, got {digest}; they were changed")
    return files


def _file_of(digest: str) -> str:
    return f"{FOLDER}/{digest[:16]}.tar.gz"


def run_again(run: RunDir, words: Sequence[str], trusted: str) -> int | None:
    """Run a command line with the sources of a run, in a process of its own, and return its exit code; None: this is that one.

    Args:
        words: Behind `parl-like`.
        trusted: The hash of sources that the user trusts; empty: those that the user has run.

    Raises:
        UsageError: the run has no sources, others than its hash says, or such as the user has not run.
    """
    if _within:
        return None
    digest = run.info().sources
    if not digest:
        raise UsageError(f"{run.path} keeps no sources; it was trained with --no-snapshot, or by an older parl_like")
    name, files = _file_of(digest), kept(run)
    if trusted != digest and not user_experiments.has_run_sources(digest):
        raise UsageError(f"{run.path} was made by sources that you have not run; look at them (tar -xzf {shlex.quote(name)} in "
                         f"an empty directory), and if you trust them, give --trust {digest}")
    if (source := run.info().source) is not None:
        module = source.module or Path(source.file).stem
        if not {f"{module.replace('.', '/')}{end}" for end in (".py", "/__init__.py")} & files.keys():
            raise UsageError(f"{run.path} says that the module {module!r:.80} registers its experiment, which its sources do not "
                             "have, so nothing was imported; go without --snapshot, and give --from FILE, if you trust it")
    return _in_a_process(files, run.path.resolve(), name, words)


def _in_a_process(files: Mapping[str, bytes], run: Path, name: str, words: Sequence[str]) -> int:
    """Run what was looked at: it goes to the process as it is in memory."""
    sys.stdout.flush()
    descriptor = os.memfd_create("sources")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(packed(files))
        os.lseek(descriptor, 0, os.SEEK_SET)
        program = inspect.getsource(snapshot_importer)
        command = [sys.executable, "-P", "-c", program, str(descriptor), str(run / name), str(run), *words]
        return subprocess.run(command, pass_fds=(descriptor,), check=False).returncode
    finally:
        os.close(descriptor)


def as_it_was(run: str, words: Sequence[str]) -> int:
    """Run a command line in this process, whose modules are those of the run's snapshot; its experiment, where that is the user's
    own, is the one in there, too."""
    _within.append(run)
    source = RunDir.open(run).info().source
    if source is not None:
        name = source.module or Path(source.file).stem
        experiments.bring(lambda: importlib.import_module(name), source)
    return importlib.import_module("parl_like.lab.cli").main(list(words))  # type: ignore[no-any-return]  # which imports this module


def _cache() -> Path:
    return user_experiments.state_folder() / "sources"
