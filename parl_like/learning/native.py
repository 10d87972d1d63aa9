"""Native networks: what dense layers of our own modules compute, in compiled loops instead of torch's graph.

A module whose class has `native_layers` describes its layers, and a model whose class has `native_networks` the networks that it
consists of, by name. Only the class that has the method itself is meant: a subclass may compute something else. What has hooks,
other types of numbers, another device, or attributes changed since is left to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from parl_like.interfaces import TrainedAlgorithm
from parl_like.learning._native import ACTIVATIONS, hooked
from parl_like.learning._native import Network as Network
from parl_like.learning._native import Pass as Pass
from parl_like.learning._native import learnable as learnable
from parl_like.learning._native import plain as plain
from parl_like.learning._native import watched as watched
from parl_like.learning._written import within
from parl_like.learning.layers import ACTIVATIONS as FUNCTIONS
from parl_like.values.spec import Array

NAMES = {function: name for name, function in FUNCTIONS.items() if name in ACTIVATIONS}


class NotNative(Exception):
    """The reason why torch has to compute a network."""


@dataclass(frozen=True, eq=False)
class Dense:
    """One layer: y = activation(norm(x w + b)).

    Attributes:
        source: The number of the layer whose output is its input; −1: the network's input.
        weight: [out, in] as a Linear has it; with `member` [n, in, out]. bias: As many as outputs, n times.
        activation: One of `ACTIVATIONS`.
        member: Which of n layers that lie in the same parameters.
        norm: Scale and shift of a layer norm.
    """

    source: int
    weight: Tensor
    bias: Tensor | None
    activation: str = "identity"
    member: int | None = None
    norm: tuple[Tensor, Tensor] | None = None

    @property
    def n_in(self) -> int:
        return self.weight.shape[1]

    @property
    def n_out(self) -> int:
        return self.weight.shape[0 if self.member is None else 2]


@dataclass(eq=False)
class NetworkLayers:
    """The description of a network.

    Attributes:
        n_in: Numbers in a row of its input.
        dense: The layers, each behind that which it reads.
        outputs: Name → number of the layer that gives it out.
        modules: Whose attributes and hooks must stay as they are.
        taken: Parameters of the layers by `id`, each with its member.
    """

    n_in: int
    dense: list[Dense] = field(default_factory=list)
    outputs: dict[str, int] = field(default_factory=dict)
    modules: list[nn.Module] = field(default_factory=list)
    taken: set[tuple[int, int | None]] = field(default_factory=set)

    def watch(self, module: nn.Module, kind: type[nn.Module] | None = None, method: str = "native_layers") -> None:
        """Note that the network is one of this module. Raises NotNative where it has hooks, or its class is not `kind`, or (None)
        lacks the method."""
        name = type(module).__name__
        if type(module) is not kind if kind else method not in vars(type(module)):
            raise NotNative(f"{name} does not describe its layers")
        if any(value for key, value in vars(module).items() if key.endswith("_hooks")):
            raise NotNative(f"{name} has hooks")
        if "forward" in vars(module):
            raise NotNative(f"{name} has a forward of its own")
        self.modules.append(module)

    def add(self, module: nn.Module, source: int = -1) -> Any:
        """Add the layers of a module that reads layer `source`; return what its `native_layers` does: the number of the last, or
        several. Raises NotNative."""
        self.watch(module)
        return module.native_layers(self, source)  # type: ignore[operator]

    def dense_layer(self, source: int, weight: Tensor, bias: Tensor | None, function: object = None,
                    member: int | None = None, norm: tuple[Tensor, Tensor] | None = None) -> int:
        """Add one layer, with an activation of `layers.ACTIVATIONS` or none; return its number. Raises NotNative."""
        if function is not None and function not in NAMES:
            raise NotNative(f"the activation {getattr(function, '__name__', function)}")
        for tensor in (weight, bias, *(norm or ())):
            if tensor is not None:
                check(tensor)
        own = [(id(tensor), member) for tensor in (weight, bias, *(norm or ())) if tensor is not None]
        if len(set(own)) < len(own) or not self.taken.isdisjoint(own):
            raise NotNative("two layers share a parameter")  # each would write the gradient of its own
        self.taken.update(own)
        layer: Any = Dense(source, weight, bias, "identity" if function is None else NAMES[function], member, norm)
        if layer.n_in != (self.n_in if source < 0 else self.dense[source].n_out):
            raise NotNative(f"a layer of {layer.n_in} inputs")
        self.dense.append(layer)
        return len(self.dense) - 1

    def only(self, *names: str) -> NetworkLayers:
        """Return the network of some of the outputs, without the layers that only others need."""
        needed: set[int] = set()
        for at in (self.outputs[name] for name in names):
            while at >= 0 and at not in needed:
                needed.add(at)
                at = self.dense[at].source
        places = {-1: -1, **{old: new for new, old in enumerate(sorted(needed))}}
        dense = [Dense(places[one.source], one.weight, one.bias, one.activation, one.member, one.norm)
                 for i, one in enumerate(self.dense) if i in needed]
        return NetworkLayers(self.n_in, dense, {name: places[self.outputs[name]] for name in names}, self.modules)


def check(tensor: Tensor) -> None:
    """Raise NotNative for a parameter [out, in], [n, in, out] or [out] that only torch can compute with."""
    if type(tensor) is not nn.Parameter or is_lazy(tensor) or not plain(tensor):
        raise NotNative(f"a parameter of {tensor.dtype} on {tensor.device}, or one that is no plain parameter")
    if hooked(tensor):
        raise NotNative("a parameter has hooks")


def float32_of(tensor: Tensor) -> Array:
    """Return the numbers of a tensor as written losses read them: float32, in order, without a gradient."""
    return tensor.detach().float().contiguous().numpy()


class WrittenLoss:
    """A loss whose gradient an algorithm has written out: it stands for a scalar tensor with a gradient.

    Args:
        value: The loss, which float32 has to hold, as a tensor's.
        write: Makes the gradients, and puts them into the parameters.
    """

    requires_grad, shape = True, ()

    def __init__(self, value: float, write: Callable[[], None]) -> None:
        self.value, self.write = within(value), write

    def item(self) -> float:
        """Return the loss."""
        return self.value

    def numel(self) -> int:
        """Return 1, as of any scalar."""
        return 1

    def backward(self, inputs: object = None, retain_graph: bool = False) -> None:
        """Put the gradients into the parameters; the arguments are those of a tensor's."""
        self.write()


def written_product(parameter: nn.Parameter, factor: float) -> WrittenLoss | Tensor:
    """Return the loss parameter · factor of one number; by autograd where its gradient cannot just be put there."""
    if watched() or not (learnable(parameter) and plain(parameter)):
        return parameter * factor

    def write() -> None:
        parameter.grad = torch.full_like(parameter, factor, requires_grad=False)

    return WrittenLoss(float(parameter.detach()) * factor, write)


class WrittenEvaluation:
    """Log-probabilities, entropy and values of some rows, with gradients that are written out.

    Attributes:
        policy: Has log π(act) [N] as `log_prob` and the mean `entropy`. value: [N, 1].
    """

    def __init__(self, network: Network, kept: Pass, policy: Any, value: Array, own: nn.Parameter | None = None) -> None:
        self.network, self.kept, self.policy, self.value, self.own = network, kept, policy, value, own

    def backward(self, d_log_prob: Array, d_entropy: float, d_value: Array) -> None:
        """Put the gradients into the parameters, from those of `log_prob` [N], `entropy` and `value` [N, 1]."""
        self.network.write(self.kept, [self.policy.gradient(d_log_prob, d_entropy), d_value])
        if self.own is not None:
            self.own.grad = torch.from_numpy(self.policy.d_parameter)


def twin_of(*methods: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a `native_learn` as the twin of `learn` and of the methods that this calls, all of which it stands for."""
    def mark(native_learn: Any) -> Any:
        native_learn.twins = tuple((one.__name__, one) for one in methods)
        return native_learn
    return mark


def has_native_learn(algorithm: object) -> bool:
    """Return whether an algorithm learns as its class's own `native_learn` does: a class made from it, or an assignment, may have
    changed a method that this stands for."""
    kind, own = type(algorithm), vars(algorithm)
    twins: Any = getattr(vars(kind).get("native_learn"), "twins", ())
    return bool(twins) and "native_learn" not in own and all(name not in own and getattr(kind, name, None) is method
                                                             for name, method in twins)


class NetworkNode(torch.autograd.Function):
    """A native network as one node of torch's graph."""

    @staticmethod
    def forward(ctx: Any, network: Network, x: Tensor, *parameters: Tensor) -> Any:
        outputs, ctx.kept = network.keep(x.detach().numpy())
        ctx.save_for_backward(x, *parameters)
        ctx.network, ctx.versions = network, [parameter._version for parameter in parameters]
        return tuple(torch.from_numpy(one) for one in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the gradients. Raises RuntimeError where a parameter has been changed in between."""
        network = ctx.network
        if torch.is_grad_enabled():  # of which there will be gradients again: these torch has to compute
            inputs: Any = [one for one, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[1:], strict=True) if needed]
            outputs = by_torch(network.description, ctx.saved_tensors[0])
            found = iter(torch.autograd.grad(outputs, inputs, gradients, create_graph=True, allow_unused=True))
            return None, *(next(found) if needed else None for needed in ctx.needs_input_grad[1:])
        if [parameter._version for parameter in network.parameters] != ctx.versions:
            raise RuntimeError("a parameter was changed between the forward and the backward pass of a native network")
        flat = np.zeros(network.size, np.float32)  # of several layers in one parameter, some may be no part of this network
        dx = network.backward(ctx.kept, [one.contiguous().numpy() for one in gradients], flat, to_input=ctx.needs_input_grad[1])
        return None, None if dx is None else torch.from_numpy(dx), *parts(network, flat)


def by_torch(layers: NetworkLayers, x: Tensor) -> tuple[Tensor, ...]:
    """Return the outputs for rows [N, n_in] by torch's own functions."""
    values: list[Tensor] = []
    for one in layers.dense:
        weight, bias = (None if p is None else p if one.member is None else p[one.member] for p in (one.weight, one.bias))
        assert weight is not None
        z = (x if one.source < 0 else values[one.source]) @ (weight.t() if one.member is None else weight)
        z = z if bias is None else z + bias
        if one.norm is not None:
            scale, shift = (p[one.member] for p in one.norm)
            z = F.layer_norm(z, z.shape[-1:]) * scale + shift
        values.append(z if one.activation == "identity" else getattr(F, one.activation)(z))
    return tuple(values[at] for at in layers.outputs.values())


def parts(network: Network, flat: Array) -> list[Tensor]:
    """Return the gradient of each parameter, as a view of the flat array of all."""
    whole = torch.from_numpy(flat)
    return [whole[begin : begin + parameter.numel()].view(parameter.shape)
            for begin, parameter in zip(network.starts, network.parameters, strict=True)]


def compute(network: Network, x: Tensor) -> tuple[Tensor, ...] | None:
    """Return the outputs of a network that is ready for rows [N, n_in], with a gradient where torch keeps one; None: torch has to
    compute them itself."""
    if type(x) is not Tensor or x.ndim != 2 or x.dtype is not torch.float32 or not x.is_cpu:
        return None
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return None
    if torch.is_grad_enabled():
        return NetworkNode.apply(network, x.contiguous(), *network.parameters)  # type: ignore[no-any-return, no-untyped-call]
    return tuple(torch.from_numpy(one) for one in network.forward(x.contiguous().numpy()))


def describe(model: nn.Module) -> Mapping[str, NetworkLayers]:
    """Return the networks of a model by name. Raises NotNative, with the reason, where it has none."""
    if "native_networks" not in vars(type(model)):
        raise NotNative(f"{type(model).__name__} does not describe its networks")
    networks: Mapping[str, NetworkLayers] = model.native_networks()  # type: ignore[operator]
    for layers in networks.values():
        layers.watch(model, method="native_networks")
    return networks


def networks_of(model: nn.Module) -> dict[str, Network]:
    """Return the native networks of a model by name. Raises NotNative."""
    return {name: Network(layers) for name, layers in describe(model).items()}


def choose(algorithm: TrainedAlgorithm, native: bool) -> str:
    """Let the networks of an algorithm be computed natively as far as they can, or all by torch; return in words what computes
    them."""
    reasons: dict[str, str] = {}
    convolves = False
    networks: dict[str, Any] = {**algorithm.networks()}
    for network in networks.values():
        for part in network.modules():
            if hasattr(type(part), "compiled"):  # a layer with compiled loops of its own (models/small_images.py)
                part.compiled = convolves = native
        if not isinstance(getattr(network, "native", None), Mapping):  # no model of ours
            continue
        network.native = {}
        if native:
            try:
                network.native = networks_of(network)
                for one in network.native.values():
                    one.ready()  # so that it knows what its modules are like
            except NotNative as reason:
                reasons[str(reason)] = ""
    if not native:
        return "torch"
    if reasons:
        return f"torch ({'; '.join(reasons)}), native {'convolutions of small images and ' if convolves else ''}optimiser steps"
    return "native, losses too" if has_native_learn(algorithm) else "native layers, losses by torch"


# ---- the twin of the kernels in NumPy, for tests


def forward_twin(layers: NetworkLayers, x: Array) -> list[dict[str, Array]]:
    """Return of each layer `x` [N, n_in], its input; `z` and `y` [N, n_out], before and after the activation; `h` and `slope` of
    its norm."""
    values: list[dict[str, Array]] = []
    for one in layers.dense:
        x_in = x.astype(np.float64) if one.source < 0 else values[one.source]["y"]
        weight, bias = (None if p is None else member_of(one, p) for p in (one.weight, one.bias))
        assert weight is not None
        value = {"x": x_in, "z": x_in @ (weight.T if one.member is None else weight) + (0.0 if bias is None else bias)}
        if one.norm is not None:
            scale, shift = (member_of(one, p) for p in one.norm)
            centred = value["z"] - value["z"].mean(1, keepdims=True)
            value["slope"] = 1.0 / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
            value["h"] = centred * value["slope"]
            value["z"] = value["h"] * scale + shift
        z = value["z"]
        value["y"] = {"identity": lambda z=z: z, "tanh": lambda z=z: np.tanh(z), "relu": lambda z=z: np.maximum(z, 0.0),
                      "silu": lambda z=z: z / (1.0 + np.exp(-z))}[one.activation]()
        values.append(value)
    return values


def backward_twin(layers: NetworkLayers, values: list[dict[str, Array]], gradients: Mapping[str, Array]
                  ) -> tuple[Array, dict[int, Array]]:
    """Return the gradient of the input [N, n_in], and those of the parameters by their ids."""
    wanted: list[Any] = [0.0] * len(values)
    dx: Any = 0.0
    into = {id(p): np.zeros(p.shape) for one in layers.dense for p in (one.weight, one.bias, *(one.norm or ())) if p is not None}
    for name, gradient in gradients.items():
        wanted[layers.outputs[name]] = wanted[layers.outputs[name]] + gradient
    for one, value, dy in reversed(list(zip(layers.dense, values, range(len(values)), strict=True))):
        z, y = value["z"], value["y"]
        s = 1.0 / (1.0 + np.exp(-z))
        d = wanted[dy] * {"identity": 1.0, "tanh": 1.0 - y**2, "relu": z > 0.0, "silu": s * (1.0 + z * (1.0 - s))}[one.activation]
        place: Any = slice(None) if one.member is None else one.member
        if one.norm is not None:
            scale, shift = one.norm
            into[id(scale)][place] += (d * value["h"]).sum(0)
            into[id(shift)][place] += d.sum(0)
            d = d * member_of(one, scale)
            d = value["slope"] * (d - d.mean(1, keepdims=True) - value["h"] * (d * value["h"]).mean(1, keepdims=True))
        weight = member_of(one, one.weight)
        into[id(one.weight)][place] += d.T @ value["x"] if one.member is None else value["x"].T @ d
        if one.bias is not None:
            into[id(one.bias)][place] += d.sum(0)
        back = d @ (weight if one.member is None else weight.T)
        if one.source < 0:
            dx = dx + back
        else:
            wanted[one.source] = wanted[one.source] + back
    return dx, into


def member_of(layer: Dense, parameter: Tensor) -> Array:
    """The numbers of this layer, of n that lie in one parameter."""
    value: Array = parameter.detach().numpy().astype(np.float64)
    return value if layer.member is None else value[layer.member]
