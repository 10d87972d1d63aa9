"""Trained policies that ship: kept by `parl-like marks NAME --keep` in robots/pretrained, and copied into a run directory for
`play`, `eval` and `export` with `--pretrained`.

Each has `run.json`, `config.yaml` and `result.json` of its run, and in the archive `policy` what acts, without the optimisers'
moments and the target networks, which the copy has from their models. It is that of seed 0, none chosen. `index.json` has the
score and the sha256 of every file; a file that has another hash is not used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import msgspec

from parl_like.data.storage.archive import read_archive, write_archive
from parl_like.data.storage.safe_files import read_file, read_named, replace_file, replacing, write_new
from parl_like.lab import runner
from parl_like.lab.runs.checkpoint import Checkpoints
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.runs.trained import train_to_the_end
from parl_like.lab.yaml_text import UsageError
from parl_like.values.errors import unknown

INDEX = "index.json"
MOST_BYTES = 200_000
"""Bytes of all files of one."""
RUNS = Path("runs", "pretrained")
"""The directory, below the working one, that they are copied to."""
POLICY = "policy"
COPIED = "run.json", "config.yaml"
"""Files of a copy that nothing but training changes."""


class Shipped(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One policy that ships.

    Attributes:
        step, score, episodes: Env steps of its training, and its evaluation: by the experiment's score, over so many episodes.
        files: Path below its directory → sha256.
    """

    step: int
    score: float
    episodes: int
    files: dict[str, Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]]


def shipped() -> dict[str, Shipped]:
    """Return the policies that ship, by experiment; none where the index is missing."""
    try:
        return msgspec.json.decode(read_named(_folder() / INDEX, limit=1_000_000), type=dict[str, Shipped])
    except FileNotFoundError:
        return {}


def run_of(name: str) -> Path:
    """Return a run directory with the policy of an experiment: `runs/pretrained/NAME`, which is made where it is not there.

    Raises:
        UsageError: none ships for it; or a file is not the one that shipped, here or there.
    """
    known = shipped()
    if name not in known:
        raise UsageError(f"--pretrained: {unknown('policy that ships', name, known)}; `parl-like train` makes others")
    found, target = _files(_folder() / name, known[name]), RUNS / name
    tree, manifest = read_archive(_folder() / name / POLICY)
    if os.path.lexists(target):
        for path in COPIED:
            _check(target, path, known[name].files[path])
        Checkpoints(target / "checkpoints").save(known[name].step, with_targets(tree), manifest.meta, known[name].score)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as unfinished:
        unfinished.mkdir(mode=0o700)
        for path in (*COPIED, "result.json"):
            write_new(unfinished / path, [found[path]])
        Checkpoints(unfinished / "checkpoints").save(known[name].step, with_targets(tree), manifest.meta, known[name].score)
    return target


def make(name: str, runs: Path, say: Callable[[str], object] = print) -> Shipped:
    """Train seed 0 of an experiment as it ships, unless that is done, and `keep` its policy."""
    run = runs / f"{name}_kept"
    say(f"{name}: its policy is that of {run}, which is trained first unless it is there ...")
    train_to_the_end(name, 0, run)
    return keep(run)


def keep(run_dir: Path) -> Shipped:
    """Keep the policy of a finished run in robots/pretrained, and return what the index says of it.

    Raises:
        UsageError: the run has not finished, or its policy takes more than `MOST_BYTES`.
    """
    run = RunDir.open(run_dir)
    result, info = run.result(), run.info()
    if result is None or info.state != "finished":
        raise UsageError(f"{run_dir} has not finished; continue it with `parl-like resume {run.typed}`")
    evaluation: Any = result["evaluation"]
    with closing(runner.load_run(run.path)) as robot, tempfile.TemporaryDirectory() as place:
        made = RunDir(Path(place, info.experiment))
        made.path.mkdir()
        config = {**run.config(), "run_dir": ""}
        made.save_config(config)
        made.save_result({key: value for key, value in result.items() if key not in ("notes", "remarks", "counters")})
        kept = msgspec.structs.replace(info, name=info.experiment, pid=0, process_started=0.0, command=[], resumed=0, sources="")
        made.outbox.replace("run.json", msgspec.json.format(msgspec.json.encode(kept)) + b"\n")
        made.outbox.flush()
        meta = {"experiment": info.experiment, "seconds": result["seconds"], "config": config, "interrupted": False,
                "failed": False}
        write_archive(made.path / POLICY, without_rest(robot.acting_state()), meta)
        files = {path.relative_to(made.path).as_posix(): path.read_bytes() for path in sorted(made.path.rglob("*"))
                 if path.is_file()}
        if (size := sum(map(len, files.values()))) > MOST_BYTES:
            raise UsageError(f"{run_dir}: its policy takes {size} bytes; expected at most {MOST_BYTES} of one that ships")
        one = Shipped(step=robot.env_steps, score=evaluation["score"], episodes=int(evaluation["episodes"]),
                      files={path: hashlib.sha256(data).hexdigest() for path, data in files.items()})
        target = _folder() / info.experiment
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(made.path, target)
    index = {**shipped(), info.experiment: one}
    text = json.dumps({name: msgspec.to_builtins(index[name]) for name in sorted(index)}, indent=1)
    replace_file(_folder() / INDEX, text.encode("ascii") + b"\n")
    return one


def without_rest(tree: Any) -> Any:
    """Return a state whose optimisers begin anew, and whose target networks are the names of what they follow."""
    if not isinstance(tree, Mapping):
        return tree
    if tree.keys() == {"state", "groups"}:
        return {**tree, "state": {}}
    out = {key: without_rest(value) for key, value in tree.items()}
    if isinstance(networks := out.get("networks"), dict):
        for name in networks:
            model = name.removeprefix("target").removeprefix("_") or "model"
            if name.startswith("target") and model in networks and networks[model].keys() == networks[name].keys():
                networks[name] = model
    return out


def with_targets(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state with the target networks as they are when they have just followed."""
    out = dict(tree)
    for key, part in tree.items():
        if isinstance(part, Mapping) and isinstance(networks := part.get("networks"), Mapping):
            whole = {name: networks[state] if isinstance(state, str) else state for name, state in networks.items()}
            out[key] = {**part, "networks": whole}
    return out


def _files(folder: Path, one: Shipped) -> dict[str, bytes]:
    """The files of a policy that ships. Raises UsageError where one is another."""
    return {path: _check(folder, path, digest) for path, digest in one.files.items()}


def _check(folder: Path, path: str, digest: str) -> bytes:
    """A file's content, which has this sha256."""
    mend = "install parl_like again" if _folder() in folder.parents else f"move {folder} away, and it is made anew"
    try:
        data = read_file(folder / path, base=folder, limit=MOST_BYTES)
    except OSError as error:
        raise UsageError(f"{folder / path}: expected a file that shipped, got: {error.strerror}; {mend}") from None
    if (got := hashlib.sha256(data).hexdigest()) != digest:
        raise UsageError(f"{folder / path}: expected the file that shipped, with the sha256 {digest}, got {got}; {mend}")
    return data


def _folder() -> Path:
    spec = find_spec("parl_like.robots")
    assert spec is not None and spec.submodule_search_locations
    return Path(list(spec.submodule_search_locations)[0]) / "pretrained"
