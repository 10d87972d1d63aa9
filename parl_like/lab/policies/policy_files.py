"""The files of an exported policy, and the reader of them.

    exported/ppo-cartpole/           --to safetensors: an archive (parl_like.data.storage.archive)
      manifest.json                  description, sizes and sha256 of the others
      policy.json                    registered names and settings of model, algorithm, explorer, transforms
      policy.safetensors             weights and statistics

    exported/ppo-cartpole/           --to onnx
      manifest.json                  description, spaces, size and sha256 of the graph
      policy.onnx
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import gymnasium as gym
import msgspec
import numpy as np
import torch

from parl_like.data.storage.archive import MANIFEST, MAX_MANIFEST, read_archive, write_archive
from parl_like.data.storage.safe_files import names_in, read_file, replacing, sync_folder, write_new
from parl_like.data.storage.tree_encoding import EncodedComponent, decode_value, parse, refusal
from parl_like.data.transforms import Transform, Transforms
from parl_like.lab import sizes
from parl_like.lab.config import ExperimentConfig
from parl_like.lab.policies.computing import GraphComputation, NetworkComputation, PolicyParts
from parl_like.lab.policies.description import Description, Dtype, fields_of_space
from parl_like.lab.policies.parts import (
    NotExported,
    Tree,
    built,
    described,
    dtype_of,
    explorer_of,
    found,
    made,
    named,
    refused,
    space_of,
    space_tree,
)
from parl_like.lab.yaml_text import ConfigError, UsageError
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.explorers import Explorer
from parl_like.learning.factory import AlgorithmFactory
from parl_like.learning.model import Model
from parl_like.learning.optimizer_steps import own_parameters
from parl_like.tasks.acting_copies import acting_state
from parl_like.tasks.task import ComputationTask
from parl_like.values.limits import check_array

GRAPH = "policy.onnx"
MAX_GRAPH = 2 << 30
"""Bytes of a graph: what a protocol buffer may have."""
TYPES = {**{name: f"tensor({name})" for name in get_args(Dtype)}, "float32": "tensor(float)", "float64": "tensor(double)"}
"""NumPy's names of dtypes → onnxruntime's."""
COMPONENT = "policy"
OUR_KEYS = frozenset({"obs", "act", "model", "algorithm", "explorer", "transforms", "statistics", "networks"})


class GraphManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `manifest.json` beside a graph.

    Attributes:
        spaces: `obs` and `act`, and `explorer`, see `parl_like.lab.policies.parts`.
    """

    onnx: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1
    policy: Description
    spaces: dict[str, Any]
    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_GRAPH)]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


# ------------------------------------------------------------------------------------------------ writing


def network_tree(task: ComputationTask, transforms: Transforms, explorer: Explorer | None, obs: gym.Space[Any],
                 acts: int) -> Tree:
    """Return all that a policy of weights is made of.

    Args:
        acts: Of one helper, at which schedules of exploration stand still.

    Raises:
        NotExported: something of it has no registered name, or is no plain value.
    """
    where, func = f"task {task.name!r}", task.source
    if not isinstance(func, AlgorithmFactory):
        raise NotExported(f"{where} was given a {type(func).__name__}, which does not say what it was built of; build it with "
                          "create_algorithm_func(Model, {...}, Algorithm, {...}), or export with --to onnx")
    return {
        "obs": space_tree(obs), "act": space_tree(task.algorithm.model.act_space),
        "algorithm": named(func.algorithm, Algorithm, func.algorithm_args, f"{where}: its algorithm"),
        "model": named(func.model, Model, func.model_args, f"{where}: its model"),
        "explorer": None if explorer is None else described(explorer, Explorer, f"{where}: its explorer", acts),
        "transforms": [described(one, Transform, f"{where}: its transform") for one in transforms],
        "statistics": transforms.state_dict(), "networks": acting_state(task.algorithm),
    }


def write_network(path: Path, description: Description, tree: Mapping[str, Any]) -> None:
    """Write a policy of weights. Raises ArchiveError: something else is at `path`."""
    write_archive(path, {COMPONENT: tree}, {"policy": msgspec.to_builtins(description)})


def write_graph(path: Path, description: Description, spaces: Mapping[str, Any], graph: bytes) -> None:
    """Write a policy as a graph. Raises ArchiveError: something else is at `path`."""
    path = Path(os.path.abspath(path))
    there = path.is_dir() and not path.is_symlink()
    names = names_in(path, limit=100) if there else ["no directory"] if os.path.lexists(path) else []
    if names and names != [MANIFEST, GRAPH]:
        raise refusal(path, "a new name or a graph to replace", "something else", "choose another path")
    path.parent.mkdir(parents=True, exist_ok=True)
    one = GraphManifest(policy=description, spaces=EncodedComponent(path, "spaces", _listed(spaces), arrays=False).values,  # type: ignore[arg-type]
                        size=len(graph), sha256=hashlib.sha256(graph).hexdigest())
    with replacing(path) as unfinished:
        os.mkdir(unfinished, 0o700)
        write_new(unfinished / GRAPH, [graph])
        write_new(unfinished / MANIFEST, [json.dumps(msgspec.to_builtins(one), indent=1, allow_nan=False).encode("ascii")])
        sync_folder(unfinished)


def _listed(tree: Any) -> Any:
    """The same with lists in the place of arrays, which JSON has not."""
    if isinstance(tree, Mapping):
        return {key: _listed(value) for key, value in tree.items()}
    if isinstance(tree, np.ndarray):
        return {"array": tree.tolist(), "dtype": str(tree.dtype)}
    return [_listed(value) for value in tree] if isinstance(tree, (list, tuple)) else tree


def _unlisted(tree: Any, file: Path) -> Any:
    if isinstance(tree, dict):
        if tree.keys() == {"array", "dtype"}:
            return made(lambda: np.array(tree["array"], dtype_of(tree["dtype"])), "an array", file)
        return {key: _unlisted(value, file) for key, value in tree.items()}
    return [_unlisted(value, file) for value in tree] if isinstance(tree, list) else tree


# ------------------------------------------------------------------------------------------------ reading


def read(path: Path) -> PolicyParts:
    """Read a policy of either kind; see `Policy.load`."""
    path = Path(os.path.abspath(path))
    if not (path / GRAPH).exists():
        return _read_network(path)
    return _read_graph(path)


def _read_network(path: Path) -> PolicyParts:
    tree, manifest = read_archive(path, lambda one: _check_kind(path, one.meta, one.sizes()))
    file = path / f"{COMPONENT}.json"
    description = _description(path / MANIFEST, manifest.meta["policy"])
    parts: Any = tree[COMPONENT]
    if not isinstance(parts, dict) or parts.keys() != OUR_KEYS:
        raise refused(file, f"the fields {', '.join(sorted(OUR_KEYS))}", f"{list(parts)[:12]!s:.200}")
    most = sizes.STATE_FACTOR * sum(manifest.sizes().values()) + sizes.STATE_ROOM
    try:
        with sizes.bounded(ExperimentConfig(), most):
            return _of_parts(file, description, parts)
    except (ConfigError, MemoryError):
        raise refused(file, f"a network of at most {most} bytes, for its weights have far fewer", "a larger one") from None


def _check_kind(path: Path, meta: Mapping[str, Any], components: Mapping[str, int]) -> None:
    if components.keys() != {COMPONENT} or meta.keys() != {"policy"}:
        what = "a checkpoint of a run" if "experiment" in meta else "another archive"
        raise refusal(path, "an exported policy", what, "write one with `parl-like export RUN`")


def _of_parts(file: Path, description: Description, parts: Mapping[str, Any]) -> PolicyParts:
    obs, act = space_of(parts["obs"], file), space_of(parts["act"], file)
    model, algorithm = found(parts["model"], Model, file), found(parts["algorithm"], Algorithm, file)
    explorer = explorer_of(parts["explorer"], file)
    if not isinstance(parts["transforms"], list) or not isinstance(parts["statistics"], dict):
        raise refused(file, "transforms and their statistics", "something else")
    transforms = made(lambda: Transforms([built(one, Transform, file) for one in parts["transforms"]]), "Transforms", file)
    made(lambda: transforms.load_state_dict(parts["statistics"]), "its statistics", file)
    if model[1].get("obs", transforms.space(obs)) != made(lambda: transforms.space(obs), "Transforms", file):
        raise refused(file, "a model for what the transforms make of observations", "one for others")
    task = ComputationTask(AlgorithmFactory(model[0], model[1], algorithm[0], algorithm[1]), train=False)
    task.name = description.task or "policy"
    made(task.build, f"{algorithm[0].__name__}({model[0].__name__}(…))", file)
    if task.algorithm.model.act_space != act:
        raise refused(file, f"a model of the actions {act}", str(task.algorithm.model.act_space))
    _load(task.algorithm, parts["networks"], file)
    computation = NetworkComputation(task, transforms)
    _check_fields(file, description, obs, act)
    return PolicyParts(description, obs, act, explorer, computation)


def _load(algorithm: Algorithm, saved: Any, file: Path) -> None:
    """Puts the weights into the algorithm, which have its names, shapes and dtypes."""
    own: Mapping[str, Mapping[str, Any]] = acting_state(algorithm)
    if not isinstance(saved, dict) or saved.keys() != own.keys():
        raise refused(file, f"the networks {', '.join(own)}", f"{list(saved)[:8]!s:.200}")
    networks, parameters = algorithm.networks(), own_parameters(algorithm)
    for name, state in saved.items():
        if not isinstance(state, dict) or state.keys() != own[name].keys():
            raise refused(file, f"the weights of {type(networks.get(name)).__name__} ({len(own[name])} arrays)", "others")
        for key, value in state.items():
            mine = own[name][key]
            if not isinstance(mine, torch.Tensor):
                continue
            if not isinstance(value, torch.Tensor) or (value.shape, value.dtype) != (mine.shape, mine.dtype):
                got = f"{tuple(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
                raise refused(file, f"{name}.{key} of {tuple(mine.shape)} {mine.dtype}", got)
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise refused(file, f"finite numbers in {name}.{key}", "others")
        if name in networks:
            made(lambda name=name, state=state: networks[name].load_state_dict(state), name, file)  # type: ignore[misc]
        else:
            parameters[name].data.copy_(state["value"])


def _read_graph(path: Path) -> PolicyParts:
    file = path / MANIFEST
    try:
        text = read_file(file, base=path.parent, limit=MAX_MANIFEST)
        one = msgspec.convert(parse(file, text), GraphManifest)
        graph = read_file(path / GRAPH, base=path.parent, limit=one.size)
    except msgspec.ValidationError as error:
        raise refused(file, "the manifest of a policy", str(error)) from None
    except OSError as error:
        raise refusal(path, "a readable policy, not a link", error.strerror or error, "export the policy again") from None
    if len(graph) != one.size or hashlib.sha256(graph).hexdigest() != one.sha256:
        raise refused(path / GRAPH, f"{one.size} bytes with the sha256 {one.sha256}", f"{len(graph)} other bytes")
    spaces = _unlisted(decode_value(file, one.spaces, {}, 0), file)
    if not isinstance(spaces, dict) or spaces.keys() != {"obs", "act", "explorer"}:
        raise refused(file, "the spaces obs, act and explorer", "others")
    obs, act = space_of(spaces["obs"], file), space_of(spaces["act"], file)
    explorer = explorer_of(spaces["explorer"], file)
    for part in one.policy.state:
        made(lambda part=part: check_array(f"its state {part.name}", *part.shape, dtype=np.dtype(part.dtype)),  # type: ignore[misc]
             "a session", file)
    _check_fields(file, one.policy, obs, act)
    return PolicyParts(one.policy, obs, act, explorer, _session(path / GRAPH, graph, one.policy))


def _session(file: Path, graph: bytes, description: Description) -> GraphComputation:
    from parl_like.lab.policies import graph as graphs

    try:
        session = graphs.session(graph)
    except UsageError:
        raise  # onnxruntime is missing
    except Exception as error:  # noqa: BLE001  onnxruntime has an error class of its own for each fault
        raise refused(file, "a graph that onnxruntime runs", " ".join(str(error).split())[:300]) from None
    state, names = {one.name: one.spec for one in description.state}, [one.name for one in description.outputs]
    expected = {one.name: (list(one.shape), TYPES.get(one.dtype)) for one in [*description.observations, *description.state]}
    inputs = {one.name: (one.shape[1:], one.type) for one in session.get_inputs()}
    if expected != inputs:
        raise refused(file, f"the inputs {', '.join(expected)} of its manifest", ", ".join(f"{key} {kind} {shape}" for key, (
            shape, kind) in inputs.items()))
    actions = [one.name for one in description.actions]
    outputs = [*actions, *(f"next_{name}" for name in state), *(f"policy.{name}" for name in names)]
    if [one.name for one in session.get_outputs()] != outputs:
        raise refused(file, f"the outputs {', '.join(outputs)} of its manifest", "others")
    return GraphComputation(session, state, actions, names)


def _description(file: Path, tree: Any) -> Description:
    try:
        return msgspec.convert(tree, Description)
    except msgspec.ValidationError as error:
        raise refused(file, "the description of a policy", str(error)) from None


def _check_fields(file: Path, description: Description, obs: gym.Space[Any], act: gym.Space[Any]) -> None:
    for name, space, fields in (("obs", obs, description.observations), ("act", act, description.actions)):
        if [(one.name, one.shape, one.dtype) for one in fields] != [
                (one.name, one.shape, one.dtype) for one in made(lambda s=space, n=name: fields_of_space(s, n), name, file)]:  # type: ignore[misc]
            raise refused(file, f"a description that fits the space {space}", "another")


