"""Files that a command writes where the user says; a place that refuses them is bad usage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from parl_like.data.storage.tree_encoding import ArchiveError
from parl_like.lab.yaml_text import UsageError


@contextmanager
def written(what: object, option: str) -> Iterator[None]:
    """Turn what the block raises where it writes, an OSError or an ArchiveError, into a UsageError that names the option.

    Args:
        what: What is written, with its place.
        option: Which gives the place.
    """
    try:
        yield
    except ArchiveError as error:
        raise UsageError(f"{option} {error}") from None
    except OSError as error:
        raise UsageError(f"cannot write {what}: {error.strerror or error}; give another {option}") from None
