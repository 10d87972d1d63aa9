"""The user's experiments: a file, or a module of a package, that registers some; and which of them a run directory may
have imported again.

A run directory is not trusted, so its run.json can name a file and that file's hash, but neither says that the file is the
user's: whoever made the one may have made the other. What does is that the user has named this file, with this content, on a
command line before. The hashes of these are kept in the user's own directory (`$XDG_STATE_HOME/parl_like/imported`), and beside
them those of the configurations that the user has run (`ran`).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import cloudpickle

from parl_like.data.storage.safe_files import read_named, replace_file
from parl_like.lab import experiment as experiments
from parl_like.lab.experiment import Experiment, ExperimentError, ExperimentSource
from parl_like.lab.yaml_text import ConfigError
from parl_like.values import names
from parl_like.values.errors import unknown

MAX_BYTES = 10_000_000  # of a file that is imported


def chosen(word: str, name: str = "") -> Experiment:
    """The experiment that a word of the user's means; what it names is imported.

    Args:
        word: A name of `parl-like list`; `FILE.py` or `package.module`, which register one; with `:NAME` behind it, or several.
        name: Which of several, where the word does not say.

    Raises:
        ExperimentError: there is no such experiment or file, or several; a file is in a run directory, or has the name of a
            module that is there.
    """
    origin, colon, inside = word.partition(":")
    path = os.sep in origin or not colon and os.path.lexists(origin)  # `package:NAME` may be a folder here
    if path and not origin.endswith(".py") and not experiments.is_known(origin):
        there = "a directory" if os.path.isdir(origin) else "a file" if os.path.lexists(origin) else "the path of nothing"
        if os.path.isfile(os.path.join(origin, "run.json")):
            there = f"a run directory, which goes on with `parl-like resume {shlex.quote(origin)}`"
        settings = f"; settings in YAML go with an experiment: NAME --config {shlex.quote(origin)}"
        raise ExperimentError(f"{origin} is {there}; expected an experiment: a name of `parl-like list`, or one of your own as "
                              f"FILE.py, FILE.py:NAME or package.module:NAME{settings * origin.endswith(('.yaml', '.yml'))}")
    if not (colon or "." in origin):
        return experiments.get(word)
    if inside and name not in ("", inside):
        raise ExperimentError(f"the run is of experiment {name!r}, and {word} names another; leave out :{inside}")
    found = registered(origin)
    wanted = inside or name or (found[0] if len(found) == 1 else "")
    if not found:
        raise ExperimentError(f"{origin} registers no experiment; expected parl_like.register(Experiment(name=…, robot=…, …))")
    if not wanted:
        raise ExperimentError(f"{origin} has the experiments {', '.join(found)}; write {origin}:{found[0]}")
    if wanted not in found:
        raise ExperimentError(f"{origin}: {unknown('experiment', wanted, found)}")
    return experiments.get(wanted)


def registered(origin: str) -> list[str]:
    """Names of the experiments that `FILE.py` or `package.module` registers, which is imported."""
    return _of_file(Path(origin)) if origin.endswith(".py") else _of_module(origin)


def of_run(run: Path, name: str, source: ExperimentSource | None, given: str = "") -> Experiment:
    """The experiment of a run directory, imported again only where nothing speaks against it.

    Args:
        run: The directory. name, source: What its run.json says.
        given: Where to take it from, as the user says.

    Raises:
        ExperimentError: it is not known, or may not be imported; the message says what to give.
    """
    if given:
        return chosen(given if ":" in given else f"{given}:{name}", name)
    known = experiments.source_of(name)
    if source is None and not experiments.is_known(name):
        raise ExperimentError(f"{unknown('experiment', name, experiments.names())}; for one of your own give --from FILE "
                              "(load_run: source=)")
    if source is None or known == source or (known is None and experiments.is_registered(name)):
        return experiments.get(name)
    if source.module and (point := experiments.installed().get(name)) is not None and point.module == source.module:
        return experiments.get(name)
    if why := _refusal(source, run):
        word = os.path.relpath(source.file) if os.path.isfile(source.file) else source.module or "FILE"
        raise ExperimentError(f"the experiment {name!r} of {run} was registered by {source.file or source.module!r}, {why}; give "
                              f"--from {shlex.quote(word)} (load_run: source=), if you trust it")
    return chosen(source.file, name)


def named_in(word: str) -> tuple[str, dict[str, object]]:
    """Return what `FILE.py:Name` or `module:Name` on a command line may mean, as `candidates` does; a file is imported like one
    that registers experiments.

    Raises:
        ExperimentError: the file cannot be read, is in a run directory, or has the name of a module that is there.
        ConfigError: the module cannot be imported.
    """
    origin, _, inside = word.rpartition(":")
    if not origin.endswith(".py"):
        return candidates(word)
    _of_file(Path(origin))
    return inside, vars(sys.modules[Path(origin).stem])


def candidates(name: str, catalogue: Sequence[str] = ()) -> tuple[str, dict[str, object]]:
    """Return what `module:Name`, or a plain name, may mean: its last part, and what is in that module (see `module_of`); or what
    is in the modules of the user's experiments, and in these.

    Raises:
        ConfigError: the module cannot be imported, or may not (`parl_like.values.names`).
    """
    module, colon, inside = name.rpartition(":")
    if colon and not is_users(module):
        names.check(name)
    try:
        modules = [module_of(module)] if colon else [importlib.import_module(one) for one in catalogue]
    except ImportError as error:
        raise ConfigError(f"Config: {name!r}: {error}") from None
    found: dict[str, object] = {}
    for one in [*([] if colon else experiments.users_modules()), *modules]:
        found = {**vars(one), **found}
    return inside, found


def module_of(name: str) -> ModuleType:
    """The module of this name, which is also looked for in the working directory.

    Raises:
        ExperimentError: it is in a run directory.
        ImportError: there is none, or it does not import.
    """
    if name in sys.modules:
        return sys.modules[name]
    here, path = os.getcwd(), name.split(".")
    if not all(path):
        raise ImportError(f"expected a module before the colon, got {name!r}")
    if here not in sys.path and not _run_around(os.path.join(here, name)):
        sys.path.append(here)  # last, so that it takes no other module's place
    for depth in range(1, len(path) + 1):
        spec = importlib.util.find_spec(".".join(path[:depth]))  # imports the package around it, which has been looked at
        places = [] if spec is None else [spec.origin or "", *(f"{one}/x" for one in spec.submodule_search_locations or ())]
        if inside := next(filter(None, (_run_around(os.path.realpath(place)) for place in places)), None):
            raise ExperimentError(f"{name} is in the run directory {inside}, and nothing in one is imported; copy it elsewhere")
    return importlib.import_module(name)


def code_hash(name: str, ours: str) -> str:
    """A hash of our sources, with the module that has registered an experiment, where that is the user's own."""
    module = next((one.module for one in experiments.brought().values() if name in one.names), None)
    if module is None or not module.__file__:
        return ours
    return hashlib.sha256(ours.encode() + _content(module.__file__)).hexdigest()[: len(ours)]


def is_users(module: str) -> bool:
    """Return whether a module has been imported, and belongs to the user's experiments."""
    roots = {one.__name__.partition(".")[0] for one in experiments.users_modules()}
    return module in sys.modules and module.partition(".")[0] in roots


# ------------------------------------------------------------------------------------------------ importing


def _of_module(name: str) -> list[str]:
    """Names of the experiments of a module."""
    try:
        return experiments.bring(lambda: module_of(name), ExperimentSource(module=name))
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists; something that it needs does not
        raise ExperimentError(f"there is no module {name!r}, neither installed nor below {os.getcwd()}") from None


def _of_file(file: Path) -> list[str]:
    """Names of the experiments of a file, which is remembered as one of the user's."""
    path = os.path.realpath(file)
    content, name = _content(path), Path(path).stem
    source = ExperimentSource(file=path, sha256=hashlib.sha256(content).hexdigest())
    if inside := _run_around(path):
        raise ExperimentError(f"{file} is in the run directory {inside}, and nothing in one is imported; copy it elsewhere")
    here = experiments.brought().get(name)
    before = here.source if here is not None else None
    if before is None and not name.isidentifier():
        raise ExperimentError(f"{file}: expected a name that a module can have (letters, digits and _), got {name!r}; rename it")
    if before is None and (name in sys.modules or getattr(importlib.util.find_spec(name), "origin", path) != path):
        raise ExperimentError(f"{file}: there is another module {name!r}; rename the file")
    if here is not None and before == source:
        return here.names
    if before is not None:
        what = "has changed since this process imported it" if before.file == path else f"has the name of {before.file}"
        raise ExperimentError(f"{file} {what}; use a new process")
    names = experiments.bring(lambda: _imported(name, path, content), source)
    _remember(path, content)
    return names


def _imported(name: str, path: str, content: bytes) -> ModuleType:
    """The module of this content: what was looked at is what is run, and no compiled file beside it."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    if (folder := os.path.dirname(path)) not in sys.path:
        sys.path.append(folder)  # for files beside it; last, so that they take no other module's place
    try:
        exec(compile(content, path, "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    cloudpickle.register_pickle_by_value(module)  # workers, of other machines too, get its classes and functions with the robot
    return module


def _content(path: str) -> bytes:
    try:
        return read_named(path, limit=MAX_BYTES)
    except OSError as error:
        raise ExperimentError(f"cannot read {path}: {error.strerror}") from None


# ------------------------------------------------------------------------------------------------ what the user has run


MAX_RUNS = 10_000  # of which hashes are kept, the newest


def remember_run(config: bytes) -> None:
    """The user runs this configuration, `config.yaml` of a run directory."""
    _keep("ran", hashlib.sha256(config).hexdigest())


def remember_sources(digest: str) -> None:
    """The user runs the sources of this hash (`parl_like.lab.snapshot`)."""
    _keep("sources_ran", digest)


def has_run_sources(digest: str) -> bool:
    """Return whether the user has run the sources of this hash before."""
    return digest in _marks("sources_ran")


def _keep(kind: str, mark: str) -> None:
    marks = _marks(kind)
    if mark not in marks:
        _add(kind, mark, marks[-MAX_RUNS // 2 :] if len(marks) >= MAX_RUNS else [])


def has_run(config: bytes) -> bool:
    """Return whether the user has run this configuration before."""
    return hashlib.sha256(config).hexdigest() in _marks("ran")


# ------------------------------------------------------------------------------------------------ importing again


def _refusal(source: ExperimentSource, run: Path) -> str:
    """Why what a run directory says of its experiment's source is not enough to import it; empty: it is."""
    path, here = source.file, os.path.realpath(".")
    if not path:
        return "a module which no installed package names as an entry point `parl_like.experiments`"
    if not os.path.isfile(path) or os.path.realpath(path) != path:
        return "which is not there"
    if os.path.commonpath([path, here]) != here:
        return f"which is not below {here}"
    if inside := _run_around(path):
        return f"which is in the run directory {inside}"
    content = _content(path)
    if hashlib.sha256(content).hexdigest() != source.sha256:
        return "which has changed since"
    return "" if _mark(path, content) in _marks("imported") else "which you have not given to parl-like yet"


def _run_around(path: str) -> Path | None:
    """The run directory that a file is in, if it is in one."""
    return next((one for one in Path(path).parents if (one / "run.json").exists() and (one / "config.yaml").exists()), None)


def _mark(path: str, content: bytes) -> str:
    return hashlib.sha256(os.fsencode(path) + b"\0" + content).hexdigest()


def _marks(kind: str) -> list[str]:
    """Hashes that are kept in the user's directory: of files `imported`, of configurations that the user `ran`."""
    with suppress(OSError, ValueError):
        return read_named(state_folder() / kind, limit=MAX_BYTES).decode("ascii").split()
    return []


def _remember(path: str, content: bytes) -> None:
    if (mark := _mark(path, content)) not in _marks("imported"):
        _add("imported", mark)


def _add(kind: str, mark: str, instead: Sequence[str] = ()) -> None:
    """Adds a hash; `instead`: the others that stay."""
    with suppress(OSError):  # without it, later commands ask for what it stands for
        state_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        if instead:
            replace_file(state_folder() / kind, "".join(f"{one}\n" for one in instead).encode("ascii"))
        with open(state_folder() / kind, "a", encoding="ascii", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(mark + "\n")


def state_folder() -> Path:
    """Return the directory where the user's own hashes are kept; it may not be there yet."""
    return Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")) / "parl_like"
