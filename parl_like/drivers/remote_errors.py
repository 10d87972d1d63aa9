"""Errors on their way between processes: their type where it is one of ours, their text and traceback."""

from __future__ import annotations

import traceback

import numpy as np

from parl_like.errors import AgentFailed, Dropped, NotEnoughRows, Stopped, TaskFailed
from parl_like.spec import Array, SpecError
from parl_like.wire import Message

ERRORS: dict[str, type[Exception]] = {
    e.__name__: e for e in (AgentFailed, Dropped, NotEnoughRows, SpecError, Stopped, TaskFailed, ValueError)
}
"""Errors that keep their type between processes; others arrive as `AgentFailed` or `TaskFailed`, with a traceback in the text."""


class RemoteError(Exception):
    """The traceback of an error in another process; the `__cause__` of what is raised here."""


def as_text(error: BaseException) -> Array:
    """What an error says, as the array of a message."""
    said = error.args[0] if isinstance(error, KeyError) and error.args else error
    return np.frombuffer(str(said).encode(errors="replace"), np.uint8)


def as_trace(error: BaseException) -> Array:
    """Its traceback."""
    return np.frombuffer("".join(traceback.format_exception(error)).encode(errors="replace"), np.uint8)


def text_of(message: Message, name: str = "text") -> str:
    """What `as_text` ("text") or `as_trace` ("trace") had."""
    return message.arrays[name].tobytes().decode(errors="replace")
