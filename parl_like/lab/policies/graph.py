"""A policy as one ONNX graph: transforms of observations, prediction, best action, and the map to the environment's actions.

Each rule here is the twin in torch of one that is written for NumPy, by the class that defines it; a class with a rule of its own
that has no twin is refused by name. Before a graph is written it is run, and its actions are held against those of the robot.
"""

from __future__ import annotations

import io
import itertools
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from typing import Any, NamedTuple

import gymnasium as gym
import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from parl_like.data.transforms import (
    FrameStacker,
    ImageScale,
    ObservationCast,
    ObservationClip,
    ObservationNormalizer,
    ObservationTransform,
    Transform,
    Transforms,
)
from parl_like.lab.policies.computing import NetworkComputation
from parl_like.lab.policies.description import Description, fields_of
from parl_like.lab.policies.parts import NotExported
from parl_like.lab.yaml_text import UsageError
from parl_like.learning import explorers
from parl_like.learning.explorers import Explorer, StructuredExplorer, legal, part_of
from parl_like.learning.model import ArrayModel
from parl_like.learning.model_check import flat_outputs
from parl_like.learning.native import choose
from parl_like.tasks.task import ComputationTask
from parl_like.values.action_codec import ActionCodec, ActionMap
from parl_like.values.batch import Batch
from parl_like.values.spec import Spec, specs_of

Outputs = Mapping[str, Tensor]
Flat = dict[str, Tensor]

NEEDED = "onnx", "onnxscript", "onnxruntime"
MOST_STATES = 1_000_000
"""Observations of a table that become rows of a graph."""
LEFT_OUT = ("kept",)
"""Outputs of a prediction that are only for learning."""
TRIED = 1, 2, 7
"""Numbers of rows with which a graph is tried out."""
NEAR = 1e-5
"""The largest difference of real actions from the robot's, over their range or themselves: single precision, summed in another
order."""


class Exported(NamedTuple):
    """A graph, and what it is."""

    graph: bytes
    description: Description


def runtime(name: str) -> Any:
    """Return a module of the extra `export`. Raises UsageError without it."""
    try:
        return import_module(name)
    except ImportError:
        raise UsageError(f"graphs need the package {name}, which is not installed; pip install 'parl_like[export]'") from None


def session(graph: bytes) -> Any:
    """Return the `InferenceSession` of a graph, on one core, which can open no file: the folder of what a graph keeps outside of
    itself is none. Raises UsageError without onnxruntime, and whatever that raises for what is no graph."""
    onnxruntime = runtime("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def exported(task: ComputationTask, explorer: Explorer | None, transforms: Transforms, obs: gym.Space[Any],
             description: Description) -> Exported:
    """Return the policy of a task as a graph, with its description: what it remembers of frames, and what it predicts.

    Raises:
        NotExported: something of it has no twin here, or torch cannot make a graph of it; or what the graph does is not the same.
        UsageError: the extra `export` is missing.
    """
    for package in NEEDED:
        runtime(package)
    specs = specs_of(obs, "obs")
    acting = ActingGraph(task, explorer, transforms, specs)
    inputs = acting.inputs()
    example = tuple(torch.from_numpy(_drawn(spec, 3, np.random.default_rng(0))) for spec in inputs)
    with torch.no_grad():
        made = acting(*example)
    names = acting.names()
    outputs = [Spec(name, tuple(value.shape[1:]), value.numpy().dtype)
               for name, value in zip(acting.outputs, made[len(names) - len(acting.outputs):], strict=True)]
    described = msgspec.structs.replace(description, state=fields_of(acting.state.values()), outputs=fields_of(outputs))
    graph = _graph(acting, example, [spec.name for spec in inputs], names)
    _compare(graph, acting, task, transforms)
    return Exported(graph, described)


def explores(task: ComputationTask) -> bool:
    """Return whether the algorithm itself explores: what it predicts in training is not what it predicts in tests."""
    rng = np.random.default_rng(2)
    inputs = {name: _drawn(spec, 4, rng) for name, spec in task.algorithm.model.inputs().items()}
    tests, trains = (task.predict(dict(inputs), mode) for mode in ("test", "collect"))
    return any(not np.array_equal(tests[name], trains[name], equal_nan=tests[name].dtype.kind == "f") for name in tests)


class ActingGraph(nn.Module):
    """Raw observations and states → actions, next states, outputs, each [N, …], in the order of their names.

    Args:
        task, explorer, transforms: Of the robot; they stay as they are.
        specs: Of the raw observations.

    Attributes:
        explorer, specs: As above.
        state: The specs of what it remembers: `state.h` of a network, `state.frames.obs` and `state.begun` of stacked frames.
        outputs: Names of what the network predicts, known once it was called.
        codec: The map to the environment's actions.
    """

    def __init__(self, task: ComputationTask, explorer: Explorer | None, transforms: Transforms, specs: Mapping[str, Spec]
                 ) -> None:
        super().__init__()
        self.explorer, self.transforms, self.specs = explorer, list(transforms), dict(specs)
        self.codec = ActionCodec(task.algorithm.model.act_space)
        self.outputs: list[str] = []
        inputs: Mapping[str, Spec] = task.algorithm.model.inputs()
        self._inputs = [name for name in inputs if name.startswith("obs")]
        self._memory = {name: spec for name, spec in inputs.items() if name.startswith("state")}
        self.state = {**self._memory, **_frames_of(transforms, specs)}
        if isinstance(task.algorithm.model, ArrayModel):
            self.predicts: Any = _Table(task, {name: inputs[name] for name in self._inputs})
        else:
            algorithm = task.algorithm.clone()
            algorithm.mode = "test"
            choose(algorithm, False)
            for network in algorithm.networks().values():
                network.eval().cpu()
            self.networks = nn.ModuleDict({name: network for name, network in algorithm.networks().items()})
            self.predicts = lambda inputs: algorithm.predict(Batch.nest(inputs))

    def inputs(self) -> list[Spec]:
        """Return the specs of what goes in."""
        return [*self.specs.values(), *self.state.values()]

    def names(self) -> list[str]:
        """Return the names of what comes out, once it was called."""
        return [*self.codec.names, *(f"next_{name}" for name in self.state), *(f"policy.{name}" for name in self.outputs)]

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip([*self.specs, *self.state], values, strict=True))
        obs, frames = {name: given[name] for name in self.specs}, dict[str, Tensor]()
        for transform in self.transforms:
            obs, more = _observed(transform, obs, given)
            frames |= more
        inputs = {**{name: obs[name] for name in self._inputs}, **{name: given[name] for name in self._memory}}
        out: Any = flat_outputs(self.predicts(inputs))
        state = {name: out.pop(name) for name in self._memory} | frames
        out = {name: value for name, value in out.items() if name.split(".")[0] not in LEFT_OUT}
        acts = {**out, **best(self.explorer, out)}
        maps = self.codec.maps
        actions = [_to_env(maps[name], acts[name]) for name in self.codec.names]
        self.outputs = [name for name in out if name.split(".")[0] != "act"]
        # What comes in is copied on its way out: an output of a graph is no input of it.
        return tuple([*actions, *(state[name] for name in self.state), *(out[name].clone() for name in self.outputs)])


class _Table:
    """The predictions of a table for all observations, of which each row takes its own."""

    def __init__(self, task: ComputationTask, specs: Mapping[str, Spec]) -> None:
        self._low, sizes = {}, []
        for name, spec in specs.items():
            if spec.dtype.kind not in "iu" or spec.low is None or spec.high is None:
                raise NotExported(f"task {task.name!r} has a table of {name!r}, which has no whole numbers with bounds; export "
                                  "with --to safetensors")
            low, high = (np.broadcast_to(np.asarray(bound), spec.shape).ravel().astype(int) for bound in (spec.low, spec.high))
            self._low[name] = torch.from_numpy(low)
            sizes.append((high - low + 1).tolist())
        whole = [n for part in sizes for n in part]
        if math.prod(whole) > MOST_STATES:
            raise NotExported(f"task {task.name!r} has a table of {math.prod(whole)} observations; a graph holds {MOST_STATES}; "
                              "export with --to safetensors")
        rows = np.array(list(itertools.product(*map(range, whole))), np.int64).reshape(-1, len(whole))
        columns, begin = {}, 0
        for (name, spec), part in zip(specs.items(), sizes, strict=True):
            values = rows[:, begin : begin + len(part)] + self._low[name].numpy()
            columns[name], begin = values.reshape(len(rows), *spec.shape).astype(spec.dtype), begin + len(part)
        self._rows = {name: torch.from_numpy(value) for name, value in task.predict(columns, "test").items()}
        strides = torch.from_numpy(np.cumprod([1, *whole[::-1]])[:-1][::-1].copy())
        self._strides = dict(zip(specs, torch.split(strides, [len(part) for part in sizes]), strict=True))

    def __call__(self, inputs: Outputs) -> Flat:
        places: Any = sum(((inputs[name].long().reshape(inputs[name].shape[0], -1) - low) * self._strides[name]).sum(1)
                          for name, low in self._low.items())
        return {name: value[places] for name, value in self._rows.items()}


# ------------------------------------------------------------------------------------------------ transforms


def _owner(kind: type, method: str) -> type:
    """The class whose method of this name an object of `kind` has."""
    return next(one for one in kind.__mro__ if method in vars(one))


def _frames_of(transforms: Transforms, specs: Mapping[str, Spec]) -> dict[str, Spec]:
    """Return the specs of what stacked frames need: those before the newest, and whether there are any."""
    found: dict[str, Spec] = {}
    for one in transforms:
        if isinstance(one, FrameStacker):
            found |= {f"state.frames.{name}": Spec(f"state.frames.{name}", (one.stack, *specs[name].shape), specs[name].dtype)
                      for name in one.fields}
            found["state.begun"] = Spec("state.begun", (), np.dtype(bool))
    return found


def _observed(transform: Transform, obs: Flat, given: Outputs) -> tuple[Flat, Flat]:
    """`Transform.observe`, and what it remembers."""
    owner = _owner(type(transform), "observe")
    if owner is Transform:  # it does something to rewards, or on replay
        return obs, {}
    if owner is FrameStacker and isinstance(transform, FrameStacker):
        frames = {name: _stacked(given[f"state.frames.{name}"], given["state.begun"], obs[name]) for name in transform.fields}
        begun = torch.ones_like(given["state.begun"])
        return obs | frames, {**{f"state.frames.{name}": value.clone() for name, value in frames.items()}, "state.begun": begun}
    rule = APPLIED.get(_owner(type(transform), "apply")) if owner in (ObservationTransform, ObservationNormalizer) else None
    if rule is None:
        raise NotExported(f"the transform {transform!r} is written in NumPy, and no graph computes it; export with --to "
                          "safetensors, or do it in the environment")
    return obs | {name: rule(transform, name, obs[name]) for name in getattr(transform, "fields", ())}, {}


def _stacked(frames: Tensor, begun: Tensor, newest: Tensor) -> Tensor:
    first = newest.unsqueeze(1).expand_as(frames)
    later = torch.cat([frames[:, 1:], newest.unsqueeze(1)], 1)
    return torch.where(begun.reshape(-1, *(1,) * (frames.dim() - 1)), later, first)


def _normalized(one: Any, name: str, x: Tensor) -> Tensor:
    mean, std = (torch.from_numpy(np.array(value, np.float64)) for value in (one.moments[name].mean, one.moments[name].std))
    out = (x.double() - mean) / std
    return (out if one.clip is None else out.clamp(-one.clip, one.clip)).float()


def _dtype(dtype: Any) -> torch.dtype:
    return torch.from_numpy(np.zeros(1, dtype)).dtype


APPLIED: Mapping[type, Callable[[Any, str, Tensor], Tensor]] = {
    ImageScale: lambda one, name, x: x.float() / torch.tensor(255 / (1 - one.low), dtype=torch.float32) + float(one.low),
    ObservationClip: lambda one, name, x: x.clamp(one.low, one.high).to(x.dtype),
    ObservationCast: lambda one, name, x: x.to(_dtype(one.dtype)),
    ObservationNormalizer: _normalized,
}
"""Class that defines `apply` → the same in torch."""


# ------------------------------------------------------------------------------------------------ the best action


def best(explorer: Explorer | None, out: Outputs) -> Flat:
    """Return `Explorer.act` of predictions, where the noise stands for the best action. Raises NotExported."""
    if explorer is None:
        return {}
    owner = _owner(type(explorer), "act")
    if owner not in BEST:
        raise NotExported(f"the explorer {owner.__name__} makes actions in NumPy, and no graph computes it; export with --to "
                          "safetensors, or give the helper another one")
    return BEST[owner](explorer, out)


def _masked(values: Tensor, out: Outputs, nvec: Sequence[int] | None = None) -> Tensor:
    if "mask" not in out:
        return values
    return torch.where(_legal(out["mask"], nvec), values, torch.tensor(-math.inf, dtype=values.dtype))


def _legal(mask: Tensor, nvec: Sequence[int] | None) -> Tensor:
    """`legal`, which writes in place, by parts."""
    return torch.cat([legal(part) for part in torch.split(mask, list(nvec or [mask.shape[-1]]), -1)], -1)


def _of(name: str) -> Callable[[Any, Outputs], Flat]:
    return lambda one, out: {"act": _masked(out[name], out).argmax(1)}


def _each(name: str) -> Callable[[Any, Outputs], Flat]:
    """The best of each of several choices, side by side."""
    def act(one: Any, out: Outputs) -> Flat:
        blocks = torch.split(_masked(out[name], out, one.nvec), list(one.nvec), 1)
        return {"act": torch.stack([block.argmax(1) for block in blocks], 1)}

    return act


def _nested(one: explorers.NestedEpsilonGreedy, out: Outputs) -> Flat:
    begin, made = 0, {}
    for name, nvec, is_one in one.arrays:
        q = out["q"][:, begin : begin + sum(nvec)]
        mask = out.get(name.replace("act", "mask", 1))
        blocks = torch.split(_masked(q, {} if mask is None else {"mask": mask}, nvec), list(nvec), 1)
        chosen = torch.stack([block.argmax(1) for block in blocks], 1)
        made[name], begin = chosen[:, 0] if is_one else chosen, begin + sum(nvec)
    return made


def _structured(one: StructuredExplorer, out: Outputs) -> Flat:
    return {f"act.{name}": best(part, part_of(out, name))["act"] for name, part in one.parts.items()}


def _weighted(one: Any, out: Outputs) -> Flat:
    weights = out["weights"]
    allowed = legal(out["mask"]) if "mask" in out else torch.ones_like(weights, dtype=torch.bool)
    weights = torch.where(allowed, weights, torch.zeros_like(weights))
    nothing = ~(weights != 0).any(1, keepdim=True)
    return {"act": torch.where(nothing, allowed.to(weights.dtype), weights).argmax(1)}


def _shaped(one: Any, act: Tensor) -> Flat:
    return {"act": act.reshape(-1, *one.shape)}


BEST: Mapping[type, Callable[[Any, Outputs], Flat]] = {
    Explorer: lambda one, out: {},
    explorers.EpsilonGreedy: _of("q"), explorers.UCB: _of("q"), explorers.Thompson: _of("q"), explorers.Softmax: _of("q"),
    explorers.BootstrappedHeads: _of("q"), explorers.Categorical: _of("logits"), explorers.GumbelSoftmax: _of("logits"),
    explorers.MultiEpsilonGreedy: _each("q"), explorers.MultiCategorical: _each("logits"),
    explorers.NestedEpsilonGreedy: _nested, StructuredExplorer: _structured, explorers.Weighted: _weighted,
    explorers.Candidates: lambda one, out: best(one.best, out),
    explorers.Gaussian: lambda one, out: _shaped(one, out["mean"]), explorers.GSDE: lambda one, out: _shaped(one, out["mean"]),
    explorers.SquashedGaussian: lambda one, out: _shaped(one, torch.tanh(out["mean"])),
    explorers.Noisy: lambda one, out: _shaped(one, out["mean"].clamp(-1.0, 1.0)),
    explorers.Beta: lambda one, out: _shaped(one, (2.0 * (out["alpha"].double() / (out["alpha"].double() + out["beta"].double()))
                                                   - 1.0).float()),
}
"""Class that defines `act` → the same in torch, of the best action."""


def _to_env(one: ActionMap, act: Tensor) -> Tensor:
    """`ActionCodec.to_env` of one array."""
    act = act.reshape(-1, *one.shape)
    if one.raw.kind != "f":
        return (act if one.shift is None else act + torch.from_numpy(np.array(one.shift, np.int64))).to(_dtype(one.dtype))
    act = act.to(_dtype(one.raw))
    if one.middle is not None and one.half is not None:
        act = torch.from_numpy(np.array(one.middle, one.raw)) + act * torch.from_numpy(np.array(one.half, one.raw))
    if one.low is None or one.high is None:
        return act.to(_dtype(one.dtype))
    whole = one.dtype.kind != "f"
    act = torch.round(act).double() if whole else act
    low, high = (torch.from_numpy(np.array(bound, np.float64 if whole else one.raw)) for bound in (one.low, one.high))
    return torch.minimum(torch.maximum(act, low), high).to(_dtype(one.dtype))


# ------------------------------------------------------------------------------------------------ to ONNX


@contextmanager
def _quietly() -> Iterator[None]:
    """The exporter tells of its steps."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _graph(acting: ActingGraph, example: tuple[Tensor, ...], inputs: list[str], outputs: list[str]) -> bytes:
    rows = torch.export.Dim.DYNAMIC
    try:
        with _quietly(), torch.no_grad():
            program = torch.onnx.export(
                acting, example, input_names=inputs, output_names=outputs, dynamic_shapes={"values": ({0: rows},) * len(example)},
                dynamo=True, verbose=False)
            graph: bytes = program.model_proto.SerializeToString()
    except NotExported:
        raise
    except Exception as error:  # noqa: BLE001  whatever the exporter stumbles on
        cause = error.__cause__ or error
        said = " ".join(str(cause).split()) or type(cause).__name__
        raise NotExported(f"torch makes no graph of its network: {said[:300]}; export with --to safetensors") from error
    return graph


def _compare(graph: bytes, acting: ActingGraph, task: ComputationTask, transforms: Transforms) -> None:
    """Runs the graph beside the robot's own way for a few steps of a few rows. Raises NotExported where actions differ."""
    ran = session(graph)
    rng, explorer, names = np.random.default_rng(1), acting.explorer, acting.names()
    for n in TRIED:
        network = NetworkComputation(task, transforms)
        network.begin(n)
        state = {name: spec.zeros(n) for name, spec in acting.state.items()}
        for _ in range(3):
            obs = {name: _drawn(spec, n, rng) for name, spec in acting.specs.items()}
            try:
                found = dict(zip(names, ran.run(names, obs | state), strict=True))
            except Exception as error:  # noqa: BLE001  of onnxruntime
                raise NotExported(f"the graph of {n} rows does not run: {' '.join(str(error).split())[:200]}; export with --to "
                                  "safetensors") from error
            state = {name: found[f"next_{name}"] for name in state}
            out = network.outputs(obs, _given(explorer, n))
            expected = out | ({} if explorer is None else explorer.act(out, _noise(explorer, n)))
            acts = acting.codec.env_columns(expected)
            for name, own in acts.items():
                _check(name, np.asarray(own), found[name], acting.codec.maps[name])


def _check(name: str, own: Any, other: Any, one: ActionMap) -> None:
    alike = own.shape == other.shape and np.can_cast(own.dtype, other.dtype)  # robots give float32 to spaces of float64
    if alike and one.raw.kind == "f":
        reach = np.maximum(1.0, np.abs(own.astype(np.float64)))
        if one.half is not None:
            reach = np.maximum(reach, np.abs(one.half))
        alike = bool((np.abs(own.astype(np.float64) - other.astype(np.float64)) <= NEAR * reach + (own.dtype.kind != "f")).all())
    elif alike:
        alike = bool((own == other).all())
    if not alike:
        raise NotExported(f"the graph gives other actions {name!r} than the robot: {other.ravel()[:4]} and {own.ravel()[:4]}; "
                          "export with --to safetensors")


def _noise(explorer: Explorer, n: int) -> Any:
    return None if explorer.noise is None else np.array([explorer.greedy()] * n, explorer.noise.dtype)


def _given(explorer: Explorer | None, n: int) -> Any:
    return {} if explorer is None or explorer.given is None else {explorer.given: _noise(explorer, n)}


def _drawn(spec: Spec, n: int, rng: np.random.Generator) -> Any:
    """Rows [n, *shape] that the spec allows, at random."""
    if spec.dtype.kind == "b":
        return np.zeros((n, *spec.shape), bool)
    shape = (n, *spec.shape)
    if spec.dtype.kind == "f":
        drawn = rng.standard_normal(shape)
        return (drawn if spec.low is None else np.clip(drawn, spec.low, spec.high)).astype(spec.dtype)
    low, high = (0, 1) if spec.low is None or spec.high is None else (spec.low, spec.high)
    return rng.integers(np.asarray(low, np.int64), np.asarray(high, np.int64), shape, endpoint=True).astype(spec.dtype)
