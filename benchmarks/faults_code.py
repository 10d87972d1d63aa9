"""The line of the score card about code that runs what it reads."""

from __future__ import annotations

import ast
from typing import Any

from benchmarks.faults_common import ROOT, Line

READERS = ("pickle", "_pickle", "marshal", "cloudpickle", "dill", "joblib")
SINKS = {
    *(f"{module}.{name}" for module in READERS for name in ("load", "loads", "Unpickler")),
    "eval", "exec", "builtins.eval", "builtins.exec", "os.system", "os.popen", "shelve.open",
    "yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load", "yaml.full_load_all",
}  # fmt: skip
"""Wherever these are named, called or not."""


def _constant(call: ast.Call, name: str) -> Any:
    """The plain value of a keyword; None where it is not given, or is computed."""
    return next((word.value.value for word in call.keywords if word.arg == name and isinstance(word.value, ast.Constant)), None)


def unsafe_calls_in(source: str) -> list[tuple[int, str]]:
    """Line and name of everything in a module that runs what it reads."""
    tree = ast.parse(source)
    real: dict[str, str] = {}  # name in this module → its dotted name
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            real |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            real |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}

    def dotted(node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return f"{dotted(node.value)}.{node.attr}"
        return real.get(node.id, node.id) if isinstance(node, ast.Name) else "?"

    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load) and (name := dotted(node)) in SINKS:
            found.append((node.lineno, name))
        elif isinstance(node, ast.Call):
            name, shell = dotted(node.func), next((word.value for word in node.keywords if word.arg == "shell"), None)
            loaders = [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "Loader")]
            if name in ("yaml.load", "yaml.load_all") and not any(dotted(loader).endswith("SafeLoader") for loader in loaders):
                found.append((node.lineno, f"{name} without SafeLoader"))
            elif name == "torch.load" and _constant(node, "weights_only") is not True:
                found.append((node.lineno, "torch.load without weights_only=True"))
            elif name == "numpy.load" and _constant(node, "allow_pickle"):
                found.append((node.lineno, "numpy.load(allow_pickle=True)"))
            elif shell is not None and not (isinstance(shell, ast.Constant) and not shell.value):
                found.append((node.lineno, f"{name}(shell=…)"))
    return sorted(found)


OWN_PIPE = {"parl_like/drivers/workers/worker.py": "the robot's recipe, by the parent's own pipe",
            "envs/vector/group.py": "the parent's own factory",
            "envs/vector/hosts.py": "orders of the parent and answers of its own workers, by their own socket pair",
            "parl_like/drivers/ray/connection.py": "what the robot gives to its actors, among arguments that Ray itself pickles",
            "parl_like/lab/user_experiments.py": "a file that the user names, or has named before with this content"}
"""Files that read what the user has written, or a process of theirs that this one started, or that started this one."""


def unsafe_calls(options: Any) -> Line:
    where = {}
    for room in ("parl_like", "robots", "algorithms", "models", "envs"):
        for file in sorted((ROOT / room).rglob("*.py")):
            name = str(file.relative_to(ROOT))
            area = name.split("/")[1] if name.startswith("parl_like/") else ""
            if area in ("robots", "algorithms", "models", "envs") and file.resolve() != file:
                continue  # a link to a room beside
            where |= {f"{name}:{line}": what for line, what in unsafe_calls_in(file.read_text(encoding="utf-8"))}
    own = {place: OWN_PIPE[place.split(":")[0]] for place in where if place.split(":")[0] in OWN_PIPE}
    others = where.keys() - own
    said = "; ".join(f"{place} {what}{f' ({own[place]})' if place in own else ''}" for place, what in where.items())
    return Line(f"{len(where)}, of which {len(others)} read what another may have written" + (f": {said}" if said else ""),
                not where, {"where": where, "own_pipe": own})
