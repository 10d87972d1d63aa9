"""The rule for the texts of a run directory, which somebody else may have made: they may name what is known already, and nothing
else.

`Foreign` is the rule by which names are resolved while such a directory is in use. Names of classes, functions and environments
are looked up among what this process has registered; a module is imported for one only where the user has typed it again. That
holds for whatever code asks for an import, also for that of environments and of the user's robots: the rule stands before
Python's finders of modules, too. What goes to code that is neither ours nor gymnasium's is typed again as well, unless the user
has run this very configuration before.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym

from parl_like.lab import config as configs
from parl_like.lab import experiment as experiments
from parl_like.lab import yaml_text
from parl_like.lab.config import ExperimentConfig
from parl_like.lab.yaml_text import ConfigError
from parl_like.values import names

CHECKED = frozenset(ExperimentConfig.__struct_fields__) - {"eval_score"}
"""Keys whose texts have types of their own, and name nothing that could be imported."""

OUTWARD = frozenset({"RecordVideo", "HumanRendering"})
"""Wrappers of gymnasium's that write files where they are told to, or open a window."""

_OURS = "parl_like"
_KNOWN = ("gymnasium", "ale_py")  # whose environments do no more with a number than count by it


class Foreign:
    """The rule for one run directory.

    Args:
        file: Its configuration, for messages. tree: What that holds.
        given: Layers of values that the user has typed, or whose module was imported by their order.
        ran: The user has run this configuration before.
        alone: The run is only looked at, so its robot needs no other process.
    """

    def __init__(self, file: Path, tree: Mapping[str, object], given: Sequence[Mapping[str, object]], ran: bool,
                 alone: bool = False) -> None:
        self.file, self.ran, self.alone = file, ran, alone
        tree = {key: value for key, value in tree.items() if key not in CHECKED}
        self._every, self._whole = configs.flat(tree), configs.flat(tree, lists=False)
        self._given = [(key, value) for layer in given for key, value in configs.flat(layer).items()]
        self._typed = {value for _, value in self._given if isinstance(value, str)}
        texts = {value for value in self._every.values() if isinstance(value, str)}
        texts |= {end for key in self._every if ":" in key for end in _ends(key)}
        self._texts = {text.strip(): text for text in texts - self._typed}

    def typed(self, name: str) -> bool:
        return name in self._typed

    def refusal(self, name: str) -> ConfigError:
        key = next((key for key, value in self._every.items() if value == name), "")
        return self._refusal(key, name, "would import a module")

    def check_options(self, key: str, id: str, options: Mapping[str, object]) -> None:
        """Raises ConfigError for options of an environment that its code could do anything with, if the user does not know them.

        Our own environments check theirs, but for the render mode, with which gymnasium opens windows.
        """
        maker = _maker(id)
        for name, value in () if self.ran else configs.flat(options, key).items():
            end = f"options.{name.removeprefix(f'{key}.')}"
            free = maker == _OURS and end != "options.render_mode" or maker in _KNOWN and not isinstance(value, str)
            if not free and not any(value == again and given.endswith(end) for given, again in self._given):
                raise self._refusal(name, value, f"goes to the code of {id}")

    def check_outward(self, name: str, part: type) -> None:
        """Raises ConfigError for a wrapper or hook that has, or inherits, effects outside of the robot, if the user does not know
        it."""
        outward = getattr(part, "outward", False) or any(
            base.__name__ in OUTWARD and base.__module__.startswith("gymnasium.") for base in part.__mro__)
        if outward and not self.ran and name not in self._typed:
            raise self._refusal(next((key for key, value in self._every.items() if value == name), ""), name,
                                "would write files or open a window, or send what it sees")

    def _refusal(self, key: str, value: object, what: str) -> ConfigError:
        name = next((one for one in self._whole if key == one or key.startswith(f"{one}[")), key)
        again = f"{name}={yaml_text.show(self._whole.get(name, value))}" if key else "it"
        return ConfigError(f"{self.file}: {f'{key}=' if key else ''}{value!r} {what}, which a run directory may not ask for; if "
                           f"you trust it, give {again} again")

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """As a finder of modules, before all others: refuses one that is not there yet, if a text of the directory names it."""
        if name.partition(".")[0] not in (_OURS, *_KNOWN):
            begins = f"{name}.", f"{name}:"
            for bare, text in self._texts.items():
                if bare == name or bare.startswith(begins):
                    raise self.refusal(text)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """While this lasts the working directory is not searched for modules, unless the user's own code is there."""
        before = list(sys.path)
        here, keep = os.path.realpath("."), {os.path.realpath(folder) for folder in map(_folder_of, _users_modules()) if folder}
        if here not in keep:
            sys.path[:] = [folder for folder in before if os.path.realpath(folder or ".") != here]
        finder: Any = self
        sys.meta_path.insert(0, finder)
        try:
            with names.under(self):
                yield
        finally:
            sys.meta_path.remove(finder)
            sys.path[:] = [*before, *(folder for folder in sys.path if folder not in before)]


def imported(config: ExperimentConfig) -> dict[str, object]:
    """Return key → value, a list as a whole, of what names a module of the user's that was imported here: who uses the run
    directory in another process gives it again."""
    tree = {key: value for key, value in configs.to_dict(config).items() if key not in CHECKED}
    return {key: value for key, value in configs.flat(tree, lists=False).items()
            if any(map(_names_a_users_module, configs.flat(value).values()))}


def _names_a_users_module(value: object) -> bool:
    """Return whether this is a text `module:name` of a module that was imported here, and is neither ours nor gymnasium's."""
    module = value.rpartition(":")[0] if isinstance(value, str) else ""
    return module in sys.modules and module.partition(".")[0] not in (_OURS, *_KNOWN)


def named(run: Path, config: ExperimentConfig, experiment: experiments.Experiment) -> str:
    """Return the words by which another command goes on with a run: its directory, and what has to be given again."""
    typed = configs.flat(experiment.config).values()
    again = [f"{key}={value if isinstance(value, str) else yaml_text.show(value)}"
             for key, value in imported(config).items() if value not in typed]
    return " ".join(map(shlex.quote, [str(run), *again]))


def rule() -> Foreign | None:
    """The rule of the run directory that is in use, if one is."""
    one = names.rule()
    return one if isinstance(one, Foreign) else None


def _ends(key: str) -> list[str]:
    """`a.b.c` → `a.b.c`, `b.c`, `c`."""
    parts = key.split(".")[-yaml_text.MAX_DEPTH :]
    return [".".join(parts[n:]) for n in range(len(parts))]


def _maker(id: str) -> str:
    """The package whose code makes an environment of this id."""
    spec = gym.registry.get(id)
    entry = getattr(spec, "entry_point", None)
    return (entry if isinstance(entry, str) else getattr(entry, "__module__", "")).partition(":")[0].partition(".")[0]


def _users_modules() -> list[ModuleType]:
    """The user's own modules: the script that runs, those that have registered experiments, and this package."""
    return [sys.modules["__main__"], sys.modules[_OURS], *experiments.users_modules()]


def _folder_of(module: ModuleType) -> str:
    """Return the folder where the module, or the package that it is in, was found; empty: nowhere."""
    top = sys.modules.get(module.__name__.partition(".")[0], module)
    file = getattr(top, "__file__", None) or ""
    return os.path.dirname(os.path.dirname(file) if hasattr(top, "__path__") else file)
