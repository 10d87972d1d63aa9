"""Files that others may have made: opened only where they are plain, and replaced in one step.

Inside a directory that is not trusted no link is followed (`open_file`, `read_file`); a file that a setting or a command names
may be behind one (`open_named`, `read_named`).
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import re
import shutil
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

LARGE = 64 << 20  # bytes from which a file that is mostly holes is refused
MAX_RATIO = 64  # size of such a file over what it takes on the disk; compressing file systems reach less

_PIECE = 1 << 20  # bytes that are read at a time
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_HIDDEN = re.compile(r"\.(partial|replaced)\.(.+)\.[0-9a-f]{8}")  # names of `_hidden`


def open_folder(path: Path, base: Path | None = None) -> int:
    """A descriptor of the directory `path`, for the caller to close. Raises OSError: there is none, or (NotADirectoryError) a
    link is on the way.

    `base`: a directory above it (or itself) that the user has named, and that may be a link; below it none is followed. None:
    `path` itself must not be one.
    """
    folder, parts = (None, [path]) if base is None else (os.open(base, _FOLDER), list(path.relative_to(base).parts))
    for part in parts:
        outer = folder
        try:
            folder = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=outer)
        except NotADirectoryError:
            raise NotADirectoryError(errno.ENOTDIR, "it is a link or no directory", str(path)) from None
        finally:
            if outer is not None:
                os.close(outer)
    assert folder is not None
    return folder


def open_at(folder: int, name: str, flags: int = os.O_RDONLY, *, limit: int = 2**62) -> int:
    """A descriptor of the plain file `name` in the directory `folder`. A link is not followed, and a pipe does not block.

    A new file is readable by its owner alone. Raises OSError: it is something else, larger than `limit` bytes, or nearly empty
    for its size; or it is to be written and has a second name.
    """
    try:
        file = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a link, which is not followed", name) from None
    try:
        check_plain(os.fstat(file), name, writing=flags & os.O_ACCMODE != os.O_RDONLY, limit=limit)
    except BaseException:
        os.close(file)
        raise
    return file


def check_plain(info: os.stat_result, name: str, *, writing: bool = False, limit: int = 2**62) -> None:
    """Refuses with an OSError what `open_at` refuses."""
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "it is not a plain file", name)
    if writing and info.st_nlink > 1:
        raise OSError(errno.EMLINK, "it has a second name, perhaps elsewhere", name)
    if info.st_size > limit:
        raise OSError(errno.EFBIG, f"it has {info.st_size} bytes; expected at most {limit}", name)
    if info.st_size > LARGE and info.st_blocks * 512 * MAX_RATIO < info.st_size:
        raise OSError(errno.EINVAL, f"it claims {info.st_size} bytes, but is mostly holes", name)


def open_file(path: Path, flags: int = os.O_RDONLY, *, base: Path | None = None, limit: int = 2**62) -> int:
    """`open_at` by path. `base`: as `open_folder`, but by default the file's directory may be a link."""
    folder = open_folder(path.parent, base or path.parent)
    try:
        return open_at(folder, path.name, flags, limit=limit)
    finally:
        os.close(folder)


def read_file(path: Path, *, base: Path | None = None, limit: int) -> bytes:
    """All bytes of a plain file, of which it may have `limit`. Raises OSError; see `open_file`."""
    with open(open_file(path, base=base, limit=limit), "rb") as file:
        return _read(file, limit, path)


def open_named(path: str | os.PathLike[str], *, limit: int = 2**62) -> int:
    """A descriptor of the plain file that a setting or a command names, which may have `limit` bytes, for the caller to close.

    Links are followed, since the user's data may be behind one; what is at their end is looked at. Raises OSError: it is missing,
    a pipe, a device or a socket, larger, or nearly empty for its size.
    """
    name = os.fspath(path)
    check_plain(os.stat(name), name, limit=limit)  # opening a device may already do something
    file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        check_plain(os.fstat(file), name, limit=limit)  # what the name means now
    except BaseException:
        os.close(file)
        raise
    return file


def check_named(text: str) -> None:
    """Refuses with an OSError what a text names, if that is neither a directory nor a plain file: for texts that code of others
    may open."""
    with suppress(ValueError, FileNotFoundError, NotADirectoryError, PermissionError):
        try:
            info = os.stat(text)
        except OSError as error:
            if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
                return  # nobody can open that
            raise
        if not stat.S_ISDIR(info.st_mode):
            check_plain(info, text)


def read_named(path: str | os.PathLike[str], *, limit: int, unpacked: int | None = None) -> bytes:
    """All bytes of a file that a setting or a command names.

    Args:
        limit: Bytes that it may have.
        unpacked: It is packed by gzip, and may have so many bytes when it is unpacked.

    Raises:
        OSError: see `open_named`; it is no whole gzip file.
    """
    with open(open_named(path, limit=limit), "rb") as file:
        data = _read(file, limit, path)
    if unpacked is None:
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            return _read(packed, unpacked, path)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise OSError(errno.EINVAL, f"not a whole gzip file: {error}", os.fspath(path)) from None


def _read(file: IO[bytes] | gzip.GzipFile, limit: int, path: str | os.PathLike[str]) -> bytes:
    """Read the rest of a file, a piece at a time: no memory is taken for what is not there."""
    pieces, size = [], 0
    while piece := file.read(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise OSError(errno.EFBIG, f"it has over {limit} bytes", os.fspath(path))
    return b"".join(pieces)


def names_in(folder: str | os.PathLike[str], *, limit: int) -> list[str]:
    """The names in a directory that a setting names, sorted. Raises OSError: it is none, or has more than `limit`."""
    names: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if len(names) == limit:
                raise OSError(errno.EFBIG, f"it has over {limit} entries", os.fspath(folder))
            names.append(entry.name)
    return sorted(names)


def write_new(path: Path, pieces: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """A new file with these bytes, fsynced. Returns its size and sha256."""
    digest, size = hashlib.sha256(), 0
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        for piece in pieces:
            digest.update(piece)
            rest = memoryview(piece)
            size += len(rest)
            while rest:
                rest = rest[os.write(file, rest) :]
        os.fsync(file)
    finally:
        os.close(file)
    return size, digest.hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A hidden name beside `path`, where the block makes a file or a directory. When the block has ended, that takes its place,
    durably; where it fails, what was at `path` is still there, and nothing else."""
    partial = _hidden(path, "partial")
    try:
        yield partial
        # A directory cannot be renamed onto a full one; between the two renames `place_of` finds the old one.
        aside = set_aside(path) if partial.is_dir() and os.path.lexists(path) else None
        try:
            os.rename(partial, path)
        except BaseException:
            if aside is not None:
                with suppress(OSError):
                    os.rename(aside, path)
            raise
    except BaseException:
        with suppress(OSError):
            remove(partial)
        raise
    sync_folder(path.parent)
    if aside is not None:
        with suppress(OSError):  # the new one is in place; `clean_partial` will try again
            remove(aside)


def replace_file(path: Path, data: bytes, *, base: Path | None = None) -> None:
    """Makes `data` the content of the file `path`, durably and in one step: whoever reads it, or crashes meanwhile, finds the old
    bytes or the new ones. A link at `path` is replaced, not followed. `base`: as `open_file`."""
    os.close(open_folder(path.parent, base or path.parent))
    with replacing(path) as partial:
        write_new(partial, [data])


def _hidden(path: Path, kind: str) -> Path:
    return path.with_name(f".{kind}.{path.name}.{os.urandom(4).hex()}")


def set_aside(path: Path) -> Path:
    """Frees the name `path`, and returns the hidden name beside it. `clean_partial` deletes that, or puts it back if `path` is
    still free."""
    aside = _hidden(path, "replaced")
    os.rename(path, aside)
    return aside


def place_of(path: Path) -> Path:
    """`path`; or, where nothing is there, the hidden name of what an interrupted replacement has set aside. Raises OSError."""
    if not os.path.lexists(path):
        for entry in sorted(os.listdir(path.parent)):
            found = _HIDDEN.fullmatch(entry)
            if found and found[1] == "replaced" and found[2] == path.name:
                return path.with_name(entry)
    return path


def clean_partial(parent: Path) -> list[str]:
    """Removes what an interrupted writer left in `parent`, puts back what it had set aside and not replaced; returns names.

    For the one process that writes there: it cannot tell what another one is writing at this moment.
    """
    found = []
    for entry in sorted(os.listdir(parent)):
        hidden = _HIDDEN.fullmatch(entry)
        if not hidden:
            continue
        if hidden[1] == "replaced" and not os.path.lexists(parent / hidden[2]):
            os.rename(parent / entry, parent / hidden[2])
        else:
            remove(parent / entry)
        found.append(entry)
    if found:
        sync_folder(parent)
    return found


def remove_folder(path: Path) -> None:
    """Deletes a directory so that at every moment it is either whole or gone; links are deleted, never followed."""
    doomed = _hidden(path, "partial")
    os.rename(path, doomed)
    remove(doomed)


def sync_folder(path: Path) -> None:
    """Makes the names in a directory durable, where its file system can."""
    folder = os.open(path, _FOLDER)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(folder)


def remove(path: Path) -> None:
    """Deletes a file, or a directory with all that is in it; a link is deleted, never followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        os.unlink(path)
