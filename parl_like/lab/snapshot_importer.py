"""The program of a process that runs the sources of a snapshot: they are imported from memory, before all others.

It is given to Python as a text, and imports nothing of parl_like itself. Where a snapshot lacks a module, such as a compiled one,
the installed one is taken, and so are files that are no modules.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import tarfile
from collections.abc import Mapping, Sequence
from types import ModuleType


class SourceFinder(importlib.abc.MetaPathFinder, importlib.abc.ExecutionLoader):
    """A finder and loader of modules whose sources are in memory.

    Args:
        sources: Name of the file by that of the module (`parl_like/lab/cli.py`) → its content.
        label: The directory that modules say they are from.
    """

    def __init__(self, sources: Mapping[str, bytes], label: str) -> None:
        self.sources, self.label = sources, label

    def _file(self, name: str) -> str:
        """The file of a module; empty: it has none here."""
        path = name.replace(".", "/")
        return next((one for one in (f"{path}/__init__.py", f"{path}.py") if one in self.sources), "")

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
                  ) -> importlib.machinery.ModuleSpec | None:
        """Return the module of this name, where it is in the snapshot."""
        if not self._file(fullname):
            return None
        spec = importlib.util.spec_from_loader(fullname, self)
        if spec is not None and self.is_package(fullname):
            # By any other finder: an editable installation has one of its own.
            others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
            installed = next(filter(None, others), None)
            spec.submodule_search_locations = list((installed and installed.submodule_search_locations) or [])
        return spec

    def is_package(self, fullname: str) -> bool:
        return self._file(fullname).endswith("/__init__.py")

    def get_filename(self, fullname: str) -> str:
        return os.path.join(self.label, self._file(fullname))

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self.sources[self._file(fullname)])


def main(words: Sequence[str]) -> int:
    """Run a command line with the sources of a tar file.

    Args:
        words: A descriptor of that file, its name, the run directory, and the words behind `parl-like`.
    """
    descriptor, label, run, *rest = words
    with open(int(descriptor), "rb") as file, tarfile.open(fileobj=file, mode="r:gz") as tar:
        sources = {one.name: opened.read() for one in tar if (opened := tar.extractfile(one)) is not None}
    sys.meta_path.insert(0, SourceFinder(sources, label))
    sys.argv = ["parl-like", *rest]
    code: int = importlib.import_module("parl_like.lab.snapshot").as_it_was(run, rest)
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
