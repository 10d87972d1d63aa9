"""The command `parl-like`. Verbs import what they need when they run: so `--help` loads no library, and `list` no torch."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import parl_like
from parl_like.lab import text
from parl_like.lab.commands import many_runs, one_run, tools
from parl_like.lab.commands.options import ERROR, INTERRUPTED, USAGE, add_options, complete
from parl_like.lab.commands.printing import print_json
from parl_like.values.errors import shortened, unknown, without_trace

MAX_LINE = text.LONGEST - 200  # characters of an error
_ASSIGNMENT = re.compile(r"[A-Za-z_][\w.]*=")

EPILOG = """Exit codes: 0 done, 1 error, 2 bad usage or configuration, 3 stopped by a signal after a clean save,
4 training diverged.
First run: parl-like list; parl-like train NAME; parl-like play RUN
`parl-like VERB --help` explains the words and options of a verb."""

VERBS = (*one_run.VERBS, *many_runs.VERBS, *tools.VERBS)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (default: that of the process) and returns its exit code."""
    with text.printing():
        return _run(list(sys.argv[1:] if argv is None else argv), last=argv is None)


def _run(words: list[str], last: bool) -> int:
    """`last`: the process ends with this command."""
    try:
        args = _parse(words)
        code: int = args.verb.do(args) or 0
        sys.stdout.flush()
        if last:  # from here on Python shuts down, and is not to show tracebacks of that
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        return code
    except SystemExit as error:  # argparse: help was printed, or the usage was wrong
        return error.code if isinstance(error.code, int) else 0
    except KeyboardInterrupt:
        if last:  # this process ends now; the next Ctrl-C ends it at once, without tracebacks of what is being cleaned up
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    except Exception as error:  # noqa: BLE001  the last border: whatever it is, it becomes one line and an exit code
        from parl_like.lab.yaml_text import UsageError
        from parl_like.values.user_calls import users_lines, whole

        ours, debug = isinstance(error, UsageError), whole() or not {"--debug", "--traceback"}.isdisjoint(words)
        if debug:
            traceback.print_exc()
        elif not ours:
            print("".join(f"{line}\n" for line in users_lines(error)), end="", file=sys.stderr)
        name, hint = "" if ours else f"{type(error).__name__}: ", "" if debug or ours else " (`--traceback` shows where)"
        print(f"error: {name}{shortened(' '.join(without_trace(error).split()), MAX_LINE)}{hint}", file=sys.stderr)
        return USAGE if ours else ERROR


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"error: {message}; see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(USAGE)


class _Version(argparse.Action):
    """Prints the release, and the versions that a bug report needs; nothing is loaded for it where it is not asked for."""

    def __call__(self, *args: object) -> NoReturn:
        from parl_like.data.storage.tree_encoding import versions

        others = ", ".join(f"{name} {number}" for name, number in versions("torch", "numpy", "gymnasium").items())
        print(f"parl-like {parl_like.__version__} ({others})")
        raise SystemExit(0)


def _parser() -> _Parser:
    common = _Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="JSON on standard output, for machines; the rest on standard error")
    common.add_argument("--traceback", "--debug", dest="debug", action="store_true",
                        help="show the whole traceback of an error, as PARL_LIKE_TRACEBACK=1 does")
    parser = _Parser(prog="parl-like", description="Train robots made of computation tasks that many agents share.",
                     epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    verbs = parser.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)
    for verb in VERBS:
        one = verbs.add_parser(verb.name, parents=[common], help=verb.help, description=verb.help)
        one.set_defaults(verb=verb, parser=one)
        add_options(one, verb.options)
    return parser


def _parse(words: list[str]) -> argparse.Namespace:
    """Return the arguments of a verb; exits where help was asked for, or the usage was wrong."""
    parser, verbs = _parser(), [verb.name for verb in VERBS]
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if words and not words[0].startswith("-") and words[0] not in verbs:
        parser.error(unknown("verb", words[0], verbs))
    # argparse cannot take key=value words from behind an option, so they are taken out beforehand.
    split = bool(words) and words[0] in ("train", "resume", "eval", "play", "record", "export", "marks", "sweep", "probe")
    assignments = [word for word in words if split and _ASSIGNMENT.match(word)]
    args, unread = parser.parse_known_args([word for word in words if word not in assignments])
    if unread:
        hint = f"; configuration is written key=value, e.g. total_steps=2000; here: {_as_assignments(unread)}"
        parser.error(f"unrecognized arguments: {' '.join(unread)}{hint if unread[0].startswith('--') else ''}")
    if assignments:
        args.assignments = [*assignments, *getattr(args, "assignments", [])]
    complete(args, args.verb, args.parser)
    # Where people read along: not where the machine reads, and nowhere where nobody wants to.
    args.stream = sys.stderr if args.json or getattr(args, "show_config", False) else sys.stdout
    if getattr(args, "quiet", False):
        args.stream = None
    from parl_like.values.user_calls import whole

    if split and words[0] != "sweep":  # whose words stand for several values
        from parl_like.lab import config, progress

        args.overrides = config.parse_assignments(args.assignments, lambda line: progress.show(args.stream, line))
    args.words, args.debug = ["parl-like", *words], args.debug or whole()
    args.report = print_json if args.json else None
    return args


def _as_assignments(words: Sequence[str]) -> str:
    """Return `--key value`, `--key=value` and `--flag` as the words `key=value` that say the same."""
    pairs: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            pairs.append([*word[2:].split("=", 1)])
        elif pairs and len(pairs[-1]) == 1:
            pairs[-1].append(word)
    return " ".join(f"{key.replace('-', '_')}={value[0] if value else 'true'}" for key, *value in pairs)
