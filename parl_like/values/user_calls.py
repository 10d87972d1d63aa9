"""The border between a user's code and ours: what a wrong call is told, and how much of a traceback is shown."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from parl_like.values.errors import GYMNASIUM, OTHERWISE, Told, nearest, our_name, unknown
from parl_like.values.ranges import check_arguments

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

WHOLE = "PARL_LIKE_TRACEBACK"
"""The environment variable that has tracebacks shown whole, where it is neither empty nor 0."""

LINES = 10
"""Lines before the last one of a traceback, at most: of a call from the top of a script."""

_HERE = f"<parl_like; {WHOLE}=1 shows all of it>"  # no file has this name, so its frames are one line each
_ROOTS = tuple({os.path.realpath(os.path.join(os.path.dirname(os.path.dirname(__file__)), room)) + os.sep
                for room in (".", "algorithms", "models", "envs", "robots")})
_LIBRARIES = tuple({os.path.realpath(path) + os.sep for name, path in sysconfig.get_paths().items() if "lib" in name})
_PLAIN = {"int": int, "float": (int, float), "bool": bool, "str": str}
_SEVERAL = {f"Sequence[{kind}]": kind for kind in _PLAIN}
_FRAME = re.compile(r'  File "(.*)", line \d+, in ')
_TWICE = re.compile(r"got multiple values for keyword argument '(\w+)'")
_TRACE = "Traceback (most recent call last):\n"


def whole() -> bool:
    """Return whether tracebacks are to be shown whole."""
    return os.environ.get(WHOLE, "") not in ("", "0")


def is_users(file: str) -> bool:
    """Return whether a file of a traceback is the user's: neither ours nor of a library."""
    path = os.path.realpath(file)
    installed = {"site-packages", "dist-packages"} & set(path.split(os.sep))
    return not file.startswith("<") and not installed and not path.startswith((*_ROOTS, *_LIBRARIES))


def trim(error: BaseException) -> BaseException:
    """Leaves of the traceback of an error, and of what caused it, the user's own frames, in so many lines as `LINES` allows.

    Those of causes are put behind the error's own. Where there is none, and the error is a library's, the last one stays. A cause
    that the error's message tells (`Told`), and one of a cause, are not shown.
    """
    causes = _causes(error)
    frames = [frame for one in causes for frame in _frames(one.__traceback__)]
    own = [frame for frame in frames if is_users(frame.tb_frame.f_code.co_filename)]
    if not own and frames and not os.path.realpath(frames[-1].tb_frame.f_code.co_filename).startswith(_ROOTS):
        own = frames[-1:]
    told = False  # whether its message has the frames
    for one in causes:
        one.__traceback__, one.__suppress_context__ = None, True
        has_frames = len(one.args) == 1 and isinstance(one.args[0], str) and _TRACE in one.args[0]
        if has_frames:
            one.args = (_shortened(one.args[0], one is not error),)
            told = told or one is error
        if isinstance(error, Told) and one is not error and (told or not has_frames):
            error.hide_cause()
    for one in causes[1:]:
        one.__cause__ = None
    # Header, caller and this border have four lines, a frame up to three; that there is a cause is another four.
    shows_cause = error.shows_cause if isinstance(error, Told) else error.__cause__ is not None
    room = max((LINES - 4 - 4 * shows_cause) // 3, 1)
    trace = None
    for frame in () if told else reversed(own[-room:]):
        trace = types.TracebackType(trace, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return error.with_traceback(trace)


def users_lines(error: BaseException) -> list[str]:
    """Return where an error was raised, for people: the user's last frames, its causes' included, as a traceback has them;
    perhaps none."""
    found: list[tuple[Any, int]] = []
    text = ""
    for one in _causes(error):
        found += [(frame.tb_frame, frame.tb_lineno) for frame in _frames(one.__traceback__)
                  if is_users(frame.tb_frame.f_code.co_filename)]
        text = str(one) if _TRACE in str(one) else text
    lines = "".join(traceback.StackSummary.extract(found[-(LINES // 3) :]).format()).splitlines()
    if not lines and text:
        lines = _shortened(text, one_line=False).partition(_TRACE)[2].splitlines()[:-1]
    return ["your own lines, most recent call last:", *lines] if lines else []


def _causes(error: BaseException) -> list[BaseException]:
    """An error, what caused it, and so on: each once, for causes may go in a circle."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
    return causes


def _frames(trace: types.TracebackType | None) -> Iterator[types.TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _shortened(text: str, one_line: bool) -> str:
    """A message with the traceback of another thread or process in it, of which the user's last frame stays."""
    head, _, trace = text.partition(_TRACE)
    lines, kept = trace.splitlines(), list[str]()
    for i, line in enumerate(lines):
        if (found := _FRAME.match(line)) and is_users(found[1]):
            kept = lines[i : i + 2]
    if one_line:
        return " ".join([head.rstrip(), ": ".join(map(str.strip, kept or lines[-1:]))])
    return "\n".join([head + _TRACE.rstrip(), *kept, *lines[-1:]])


def add_way_out(error: BaseException) -> None:
    """Add to the text of an error what was probably meant: an attribute of another name, as many values as environments give."""
    owner, trace = getattr(error, "obj", None), list(_frames(error.__traceback__))
    if isinstance(error, AttributeError) and error.name and owner is not None and "did you mean" not in str(error):
        if near := nearest(error.name, [one for one in dir(owner) if not one.startswith("_")]):
            error.args = (f"{error}; did you mean {near!r}?",)
    elif isinstance(error, ValueError) and "values to unpack" in str(error):
        if trace and is_users(trace[-1].tb_frame.f_code.co_filename):
            error.args = (f"{error}; {GYMNASIUM}",)


def missing_arguments(made: Callable[..., object]) -> list[str]:
    """Return the names of arguments without which a class or function cannot be called; none where that cannot be seen."""
    try:
        return _needed(inspect.signature(made).parameters.values())
    except (TypeError, ValueError):
        return []


def _needed(parameters: Iterable[inspect.Parameter]) -> list[str]:
    return [one.name for one in parameters if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]


def explained(error: TypeError, name: str, made: Callable[..., object], kinds: tuple[type, ...], args: tuple[object, ...],
              options: Mapping[str, object]) -> TypeError | None:
    """Return what to say instead of a TypeError that Python raised for the arguments of a call: the option that there is not,
    with the nearest that there is, or the argument of a wrong type. None: it was neither.

    Args:
        kinds: Classes whose constructors an unknown option may be handed on to; none: of a function.
    """
    makers = [vars(kind)["__init__"] for kind in kinds if "__init__" in vars(kind)] or [made]
    first = list(inspect.signature(makers[0]).parameters.values())
    bound = bool(kinds) or first[:1] != [] and first[0].name in ("self", "cls")  # whose first parameter is none of the caller's
    if bound:
        first, args = first[1:], args if kinds else args[1:]
    known: dict[str, inspect.Parameter] = {}
    anything = True  # whether it takes any option
    for maker in makers:
        parameters = list(inspect.signature(maker).parameters.values())[bound:]
        known |= {one.name: one for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
                  and one.name not in known}
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            anything = False
            break
    if kinds and (twice := _TWICE.search(str(error))):
        return TypeError(f"{name}: {twice[1]} cannot be set, for a constructor that hands its options on gives it itself; its "
                         f"class says so by given_on = ({twice[1]!r},)")
    for option in options:
        if option not in known and not anything:
            if option in OTHERWISE:
                return TypeError(f"{name}: no option {option!r}; {OTHERWISE[option]}")
            own = our_name(option, known)
            return TypeError(f"{name}: {unknown('option', option, known)}{', as it is called here' if own else ''}")
    if (many := _too_many(name, first, args)) is not None:
        return many
    positional = [one.name for one in known.values() if one.kind is not one.KEYWORD_ONLY]
    for option, value in {**dict(zip(positional, args, strict=False)), **options}.items():
        expected = [part.strip() for part in str(known[option].annotation).split("|")] if option in known else []
        if f"{option} is " in str(error):
            return None  # which says it better
        if expected and not any(_may_be(value, part) for part in expected):
            return TypeError(f"{name}: {option} is {value!r:.60} ({type(value).__name__}); expected {' or '.join(expected)}")
    return _too_few(name, first, args, options)


def _too_many(name: str, parameters: Sequence[inspect.Parameter], args: Sequence[object]) -> TypeError | None:
    """Return the error for a call with more values without a name than there may be; None: it is none."""
    positional = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if len(args) <= len(positional) or any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return None
    others = [f"{one.name}=…" for one in parameters if one.kind is one.KEYWORD_ONLY]
    return TypeError(f"{name}: got {len(args)} values without a name; expected at most {len(positional)}"
                     f"{'; others are given by name' if others else ''}: {name}({', '.join([*positional, *others[:3]])})")


def _too_few(name: str, parameters: Sequence[inspect.Parameter], args: Sequence[object],
             options: Mapping[str, object]) -> TypeError | None:
    """Return the error for a call that leaves out what has no default; None: it is none."""
    positional = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needed = _needed(parameters)
    missing = [one for one in needed if one not in {*positional[: len(args)], *options}]
    if not missing:
        return None
    every = [one.name if one.name in positional else f"{one.name}=…" for one in parameters
             if one.name in needed or one.kind is one.KEYWORD_ONLY]
    call = f"{name}({', '.join(every[:5] + ['…'] * (len(every) > 5))})"
    return TypeError(f"{name}: {' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing; expected {call}")


def _may_be(value: Any, kind: str) -> bool:
    """Return whether a value may be of this annotation; yes where it is none that we know."""
    if kind == "None":
        return value is None
    if kind == "Schedule":
        return callable(value)
    if kind in _SEVERAL:
        several = isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes))
        return several and all(_may_be(one, _SEVERAL[kind]) for one in value)
    if kind not in _PLAIN:
        return True
    number = hasattr(value, "__index__") or hasattr(value, "__float__") and kind != "int"  # NumPy's numbers are numbers
    return isinstance(value, _PLAIN[kind]) or number and kind != "str"  # type: ignore[arg-type]


def guarded(kind: C) -> C:
    """A class whose constructor names an option that it does not have, one of a wrong type and, where the class is ours, a number
    that is out of its range (`parl_like.values.ranges`)."""
    made = vars(kind).get("__init__")
    if not inspect.isfunction(made):
        return kind
    ours = kind.__module__.partition(".")[0] == "parl_like"

    def __init__(self: object, *args: object, **options: object) -> None:  # noqa: N807
        try:
            if ours:
                check_arguments(type(self).__name__, made, args, options)
            made(self, *args, **options)
        except TypeError as error:
            kinds = type(self).__mro__
            above = kinds[kinds.index(kind) :] if kind in kinds else kinds  # whose constructors see these arguments
            if (told := explained(error, type(self).__name__, made, above, args, options)) is not None:
                raise told from None
            raise

    kind.__init__ = _bordering(__init__, made)  # type: ignore[misc]
    return kind


class Guarded:
    """A class whose constructor, and whose subclasses' constructors, are `guarded`."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        guarded(cls)


def border(call: F) -> F:
    """A function or method that the user's code calls: what it raises there has a traceback of the user's own frames
    (`trim`), unless `PARL_LIKE_TRACEBACK=1`. Among our own modules nothing changes."""
    name = call.__qualname__ if next(iter(inspect.signature(call).parameters), "") == "cls" else call.__name__

    def called(*args: object, **options: object) -> Any:
        try:
            result = call(*args, **options)
            return _going_on(result) if isinstance(result, types.GeneratorType) else result
        except (Exception, KeyboardInterrupt) as error:
            if _inside():
                raise
            told = explained(error, name, call, (), args, options) if type(error) is TypeError and name != "__init__" else None
            shown = _shown(error if told is None else told)
        raise shown  # here, for else the error would have itself as its context

    return _bordering(called, call)  # type: ignore[no-any-return]


def _going_on(generator: Any) -> Iterator[object]:
    try:
        yield from generator
        return
    except (Exception, KeyboardInterrupt) as error:
        if _inside():
            raise
        shown = _shown(error)
    raise shown


def _inside() -> bool:
    """Return whether the caller of the calling function is one of our own modules."""
    frame = sys._getframe(2)
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "parl_like"


def _shown(error: BaseException) -> BaseException:
    return error if whole() else trim(error)


def _bordering(around: Any, call: Any) -> Any:
    """The wrapper in place of what it calls; in tracebacks it is one line."""
    code = around.__code__
    around.__code__ = code.replace(co_filename=_HERE, co_name=call.__name__, co_qualname=call.__qualname__, co_firstlineno=1)
    return functools.wraps(call)(around)


def public(kind: C) -> C:
    """A class whose public methods are a `border`, and whose constructor is `guarded`, too."""
    guarded(kind)
    for name, value in list(vars(kind).items()):
        if inspect.isfunction(value) and (name == "__init__" or not name.startswith("_")):
            setattr(kind, name, border(value))
        elif isinstance(value, classmethod):
            setattr(kind, name, classmethod(border(value.__func__)))
    return kind
