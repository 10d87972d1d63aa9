"""Multi-layer perceptrons, and the values, policies and actor-critics that are made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parl_like.learning.action_spaces import taken_by
from parl_like.learning.array_prediction import NativeReader
from parl_like.learning.layers import Brief, orthogonal_
from parl_like.learning.layers import activation as activation_named
from parl_like.learning.model import Model
from parl_like.learning.native import NetworkLayers, NotNative, WrittenEvaluation, learnable, plain
from parl_like.learning.noisy import NoisyLinear
from parl_like.models.flat_obs import hands_on, perception
from parl_like.models.heads import Distribution, OrthogonalLinear, make_head, mask_key, masked
from parl_like.values.spec import Array

RELU_GAIN = math.sqrt(2.0)


MAX_LAYERS = 1000


def _pairs(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Inputs and outputs of each layer."""
    if len(sizes) > MAX_LAYERS + 1:
        raise ValueError(f"a perceptron of {len(sizes) - 1} layers; expected at most {MAX_LAYERS}: give fewer in hidden=")
    return list(pairwise(sizes))


class MLP(nn.Module, metaclass=Brief):
    """Linear layers of the given sizes with an activation between them: [..., sizes[0]] → [..., sizes[-1]].

    Args:
        sizes: Size of the input, of each layer, and of the output. One size alone: the identity.
        activation: Name, see `layers.ACTIVATIONS`.
        activate_last: Whether the activation also follows the last layer.
        orthogonal: Orthogonal weights and zero biases instead of torch's default.
        gain, last_gain: Gains of the orthogonal weights; `last_gain` is that of the last layer and defaults to `gain`.
        noisy: Above 0, the layers are `NoisyLinear` with this σ₀.
    """

    def __init__(
        self, sizes: Sequence[int], activation: str = "relu", activate_last: bool = False, *, orthogonal: bool = False,
        gain: float = RELU_GAIN, last_gain: float | None = None, noisy: float = 0.0,
    ) -> None:
        super().__init__()
        self.activation = activation_named(activation)
        self.activate_last, self.orthogonal = activate_last, orthogonal
        self.gain, self.last_gain = gain, gain if last_gain is None else last_gain
        self.out_size = sizes[-1]
        self.noisy = noisy
        self.layers = nn.ModuleList(NoisyLinear(*pair, noisy) if noisy else nn.Linear(*pair) for pair in _pairs(sizes))
        # The dicts in which torch keeps each layer's parameters, looked up directly: a forward of 2 × 64 with 8 rows takes 14 µs
        # instead of the 24 µs through each Linear, and 27 µs through nn.Sequential. Hooks on the single layers do not run.
        self._weights = [layer._parameters for layer in self.layers]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """New initial values; without `orthogonal`, each Linear's own."""
        for layer in self.layers:
            assert isinstance(layer, (nn.Linear, NoisyLinear))
            if not self.orthogonal:
                layer.reset_parameters()
                continue
            orthogonal_(layer.weight, self.last_gain if layer is self.layers[-1] else self.gain)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        weights, activate, shape = self._weights, self.activation, x.shape
        if len(shape) > 2:  # F.linear would give a view; where activations change that in place, autograd copies all of it
            x = x.flatten(0, -2)
        last = len(weights) - (not self.activate_last)
        for i, layer in enumerate(weights):
            x = self.layers[i](x) if self.noisy else F.linear(x, layer["weight"], layer["bias"])  # type: ignore[arg-type]
            if i < last:
                x = activate(x)
        return x.view(*shape[:-1], x.shape[-1]) if len(shape) > 2 else x

    def native_layers(self, network: NetworkLayers, source: int) -> int:
        """Add its layers behind layer `source`; return the number of the last. Raises NotNative where they are noisy."""
        if self.noisy:
            raise NotNative("noisy layers")
        last = len(self._weights) - (not self.activate_last)
        for i, layer in enumerate(self.layers):
            network.watch(layer, nn.Linear)
            assert isinstance(layer, nn.Linear)
            source = network.dense_layer(source, layer.weight, layer.bias, self.activation if i < last else None)
        return source


class EnsembleMLP(nn.Module, metaclass=Brief):
    """n MLPs of the same sizes on the same input, side by side: one batched product per layer instead of n.

    An update of a 2×64 actor and critic with 256 rows takes 17 % less than with two `MLP`s. Initial values are those of `MLP`,
    for each of them.

    Args:
        sizes, activation, orthogonal: As for `MLP`.
        activate_last: Whether the activation also follows the last layer.
    """

    def __init__(self, n: int, sizes: Sequence[int], activation: str = "relu", orthogonal: bool = False,
                 activate_last: bool = True) -> None:
        super().__init__()
        self.n, self.activation = n, activation_named(activation)
        self.orthogonal, self.activate_last = orthogonal, activate_last
        self.out_size = sizes[-1]
        for i, (n_in, n_out) in enumerate(_pairs(sizes)):
            self.register_parameter(f"weight{i}", nn.Parameter(torch.empty(n, n_in, n_out)))
            self.register_parameter(f"bias{i}", nn.Parameter(torch.empty(n, 1, n_out)))
        self.reset_parameters()

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weight [n, in, out] and bias [n, 1, out] of each layer."""
        parameters: list[Any] = list(self._parameters.values())
        return list(zip(parameters[::2], parameters[1::2], strict=True))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for weight, bias in self.layers():
            for i in range(self.n):
                layer = nn.Linear(weight.shape[1], weight.shape[2])  # for torch's initial values
                if self.orthogonal:
                    orthogonal_(layer.weight, RELU_GAIN)
                    layer.bias.zero_()
                weight[i] = layer.weight.T
                bias[i] = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., sizes[0]] → [n, ..., sizes[-1]]."""
        if x.ndim == 2:  # a reshape that changes nothing costs 2 µs, and again in the backward pass
            return self.each(x.expand(self.n, -1, -1))
        h = self.each(x.reshape(-1, x.shape[-1]).expand(self.n, -1, -1))
        return h.reshape(self.n, *x.shape[:-1], self.out_size)

    def each(self, x: Tensor) -> Tensor:
        """Rows of its own for each network: [n, N, sizes[0]] → [n, N, sizes[-1]]."""
        layers = self.layers()
        for i, (weight, bias) in enumerate(layers, 1):
            x = torch.baddbmm(bias, x, weight)
            if self.activate_last or i < len(layers):
                x = self.activation(x)
        return x

    def one(self, i: int, x: Tensor) -> Tensor:
        """Return the outputs of network `i` alone."""
        h = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
        layers = self.layers()
        for k, (weight, bias) in enumerate(layers, 1):
            h = torch.addmm(bias[i], h, weight[i])
            if self.activate_last or k < len(layers):
                h = self.activation(h)
        return h if x.ndim == 2 else h.reshape(*x.shape[:-1], self.out_size)

    def native_layers(self, network: NetworkLayers, source: int) -> list[int]:
        """Add the layers of each network behind layer `source`; return the number of its last."""
        layers = self.layers()
        ends = [source] * self.n
        for k, (weight, bias) in enumerate(layers, 1):
            function = self.activation if self.activate_last or k < len(layers) else None
            for i in range(self.n):
                ends[i] = network.dense_layer(ends[i], weight, bias, function, member=i)
        return ends


class DropoutEnsembleMLP(EnsembleMLP):
    """`EnsembleMLP` whose hidden layers are product, dropout, layer norm, activation (Hiraoka et al. 2022); none follow the last.

    Args:
        dropout: Share of the numbers that are 0 while it learns, in [0, 1).
        layer_norm: h ← (h − mean) / √(var + 10⁻⁵) · scale + shift over each row of each network; else h stays.

    Raises:
        ValueError: dropout is not in [0, 1).
    """

    def __init__(self, n: int, sizes: Sequence[int], activation: str = "relu", dropout: float = 0.0,
                 layer_norm: bool = True) -> None:
        super().__init__(n, sizes, activation, activate_last=False)
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"{type(self).__name__}: dropout is {dropout}; expected a number in [0, 1)")
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.norms = nn.ModuleList(_LayerNorms(n, size) if layer_norm else nn.Identity() for size in sizes[1:-1])

    def forward(self, x: Tensor) -> Tensor:
        h = x.reshape(-1, x.shape[-1]).expand(self.n, -1, -1)
        *hidden, (weight, bias) = self.layers()
        for layer, norm in zip(hidden, self.norms, strict=True):
            h = self.activation(norm(self.dropout(torch.baddbmm(layer[1], h, layer[0]))))
        return torch.baddbmm(bias, h, weight).reshape(self.n, *x.shape[:-1], self.out_size)

    def one(self, i: int, x: Tensor) -> Tensor:
        return self(x)[i]  # type: ignore[no-any-return]

    def native_layers(self, network: NetworkLayers, source: int) -> list[int]:
        """As `EnsembleMLP`. Raises NotNative with dropout."""
        if type(self.dropout) is not nn.Identity:
            raise NotNative("dropout")
        *hidden, (weight, bias) = self.layers()
        ends = [source] * self.n
        for (w, b), norm in zip(hidden, self.norms, strict=True):
            normed = None
            if isinstance(norm, _LayerNorms):
                network.watch(norm, _LayerNorms)
                normed = norm.scale, norm.shift
            ends = [network.dense_layer(end, w, b, self.activation, i, normed) for i, end in enumerate(ends)]
        return [network.dense_layer(end, weight, bias, None, i) for i, end in enumerate(ends)]


class NormedMLP(DropoutEnsembleMLP):
    """One network [..., sizes[0]] → [..., sizes[-1]] with layer norm behind each hidden layer, before its activation.

    Args:
        sizes, activation: As for `MLP`.
    """

    def __init__(self, sizes: Sequence[int], activation: str = "relu") -> None:
        super().__init__(1, sizes, activation)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]

    def native_layers(self, network: NetworkLayers, source: int) -> int:  # type: ignore[override]  # it is one network
        """Add its layers behind layer `source`; return the number of the last."""
        return super().native_layers(network, source)[0]


class _LayerNorms(nn.Module):
    """Layer norm [n, N, size] → [n, N, size] with weights of each of n networks."""

    def __init__(self, n: int, size: int) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.empty(n, 1, size)) for _ in range(2))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.scale.fill_(1.0)
        self.shift.zero_()

    def forward(self, h: Tensor) -> Tensor:
        return torch.addcmul(self.shift, F.layer_norm(h, h.shape[-1:]), self.scale)


class MLPQ(Model):
    """q(obs) -> [N, A], the mean of `values(obs) -> [N, A, heads]`, by one network for all actions.

    Args:
        obs, act: Spaces; `act` is Discrete. A Dict observation may hold `mask` [A]: 1 for the legal actions.
        hidden: Sizes of the hidden layers.
        dueling: values = v + a − mean(a), each from a last hidden layer of its own (Wang et al. 2016).
        noisy: Above 0, there is noise in the weights of all these layers, with this σ₀ (0.5 as published; see `NoisyLinear`).
        layer_norm: Layer norm behind each hidden layer, before its activation, as `PQN` needs it.
        heads: Numbers for each action, such as quantiles of its return.
        trunk: A perception with `out_size`, perhaps shared with another task's model; None: the flat observation.

    Raises:
        TypeError: `act` is not Discrete. ValueError: layer norm together with dueling or noise.
    """

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64, 64), *, activation: str = "relu",
        dueling: bool = False, noisy: float = 0.0, layer_norm: bool = False, heads: int = 1, trunk: nn.Module | None = None,
    ) -> None:
        super().__init__(obs, act)
        if not isinstance(act, gym.spaces.Discrete):
            raise TypeError(f"{type(self).__name__}: act is {act}; expected Discrete, for one value per action (use an "
                            f"actor-critic, or BDQ with MLPBranchingQ){taken_by(act)}")
        if layer_norm and (dueling or noisy):
            raise ValueError(f"{type(self).__name__}: layer_norm goes with neither dueling nor noisy; give one of them")
        self.dueling, self.out_shape = dueling, (int(act.n), heads)
        self.plain = type(self) is MLPQ and heads == 1 and not dueling
        self.mask = mask_key(obs, act)
        self.perception = perception(obs, act, trunk)
        size: Any = self.perception.out_size
        common = self.common(len(hidden))
        self.body = MLP([size, *hidden[:common]], activation, activate_last=True, noisy=noisy) if common else None
        size = size if self.body is None else self.body.out_size
        if dueling:
            self.v = MLP([size, *hidden[common:], heads], activation, noisy=noisy)
        sizes = [size, *hidden[common:], int(act.n) * heads]
        self.net = NormedMLP(sizes, activation) if layer_norm else MLP(sizes, activation, noisy=noisy)

    def common(self, layers: int) -> int:
        """Return how many of the hidden layers come before the streams of a dueling network."""
        return max(layers - 1, 0) if self.dueling else 0

    def features(self, obs: Any) -> Tensor:
        """[..., size] of the layers before those of the values."""
        features: Tensor = self.perception(obs)
        return features if self.body is None else self.body(features)

    def values_of(self, features: Tensor) -> Tensor:
        """[..., size] → [..., A, heads]."""
        values: Tensor = self.net(features)
        values = values.unsqueeze(-1) if self.out_shape[1] == 1 else values.unflatten(-1, self.out_shape)  # type: ignore
        if not self.dueling:
            return values
        v: Tensor = self.v(features)
        return v.unsqueeze(-2) + values - values.mean(-2, keepdim=True)

    def values(self, obs: Any) -> Tensor:
        """[..., A, heads], of illegal actions too."""
        return self.values_of(self.features(obs))

    def mean(self, values: Tensor) -> Tensor:
        """[..., A, heads] → [..., A]: what to go by."""
        return values.squeeze(-1) if values.shape[-1] == 1 else values.mean(-1)

    def q(self, obs: Any) -> Tensor:
        # One number per action needs no axis of heads; with it a step of DQN would take some per cent longer.
        if self.plain:
            features = self.perception(obs)
            out = self.natively("q", features)
            q = self.net(features) if out is None else out[0]
        else:
            q = self.mean(self.values(obs))
        return q if self.mask is None else masked(q, obs[self.mask])

    def written(self, obs: Any) -> tuple[Array, Callable[[Array], None]] | None:
        """Return `q`, and what puts its gradient [N, A] into the parameters; None: torch has to compute it."""
        network = self.native.get("q")
        if network is None or not network.learns() or (features := self.features_to_write(obs)) is None:
            return None
        (q,), kept = network.keep(features)
        if self.mask is not None:
            q = masked(torch.from_numpy(q), obs[self.mask]).numpy()
        return q, lambda gradient: network.write(kept, [gradient])

    def native_networks(self) -> dict[str, NetworkLayers]:
        """`q`, from the features of the perception. Raises NotNative with dueling, or several numbers for an action."""
        if not self.plain:
            raise NotNative("dueling, or several numbers for an action")
        layers = NetworkLayers(int(self.perception.out_size))  # type: ignore[arg-type]
        layers.outputs["q"] = layers.add(self.net)
        return {"q": layers}

    def native_reader(self, method: str) -> NativeReader | None:
        """Return how `q` is computed of plain vectors; None: it is not."""
        if method != "q" or not hands_on(self.perception):
            return None
        return NativeReader("q", lambda q: {"q": q}, self.perception)


class MLPActorCritic(Model):
    """Policy and value, by two networks on one perception.

    Args:
        obs, act: Spaces; `act` is Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of these. A Dict observation may
            hold `mask`, see `parl_like.models.heads`: 1 for legal.
        hidden: Sizes of the hidden layers, of each network.
        shared: One network of these sizes with two linear heads, instead of two networks.
        orthogonal: Orthogonal weights with gain √2, 0.01 at the policy's head and 1 at the value's; zero biases.
        log_std_init, state_dependent_std: See `GaussianHead`; for Box actions.
        distribution: Of Box actions: 'gaussian', 'gsde' (`GSDEHead`) or, with finite bounds, 'squashed' (`SquashedGaussianHead`)
            and 'beta' (`BetaHead`).
        trunk: A perception with `out_size`, perhaps shared with another task's model; None: the flat observation.
        auxiliary: A second value that reads the policy's features, for `PPG`.

    Attributes:
        head: Its `log_prob` and `entropy` read what `policy` and `evaluate` give out.
    """

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64, 64), *, activation: str = "tanh",
        shared: bool = False, orthogonal: bool = True, log_std_init: float = 0.0, state_dependent_std: bool = False,
        trunk: nn.Module | None = None, distribution: Distribution = "gaussian", auxiliary: bool = False,
    ) -> None:
        super().__init__(obs, act)
        self.mask = mask_key(obs, act)
        self.perception = perception(obs, act, trunk)
        common, own = (tuple(hidden), ()) if shared else ((), tuple(hidden))
        size: Any = self.perception.out_size
        self.body = MLP([size, *common], activation, activate_last=True, orthogonal=orthogonal)
        size = self.body.out_size
        self.shared = shared
        self.own = EnsembleMLP(2, [size, *own], activation, orthogonal)  # the actor's layers, then the critic's
        gain, value_gain = (0.01, 1.0) if orthogonal else (None, None)
        self.head = make_head(self.own.out_size, act, gain, log_std_init, state_dependent_std, distribution)
        self.value_head = OrthogonalLinear(self.own.out_size, 1, value_gain)
        self.second_value = OrthogonalLinear(self.own.out_size, 1, value_gain) if auxiliary else None

    def _features(self, features: Tensor) -> Tensor:
        return self.body(features) if self.shared else features

    def _mask(self, obs: Any) -> Any:
        return None if self.mask is None else obs[self.mask]

    def _out(self, obs: Any, features: Tensor) -> dict[str, Tensor]:
        out: dict[str, Tensor] = self.head(features, self._mask(obs))
        return out

    def _read(self, numbers: Tensor, obs: Any) -> dict[str, Tensor]:
        head: Any = self.head
        out: dict[str, Tensor] = head.read(numbers, self._mask(obs))
        return out

    def policy(self, obs: Any, state: Any = None) -> tuple[dict[str, Tensor], Any]:
        state = {} if state is None else state
        features = self.perception(obs)
        if (native := self.natively("policy", features)) is not None:
            return self._read(native[0], obs), state
        return self._out(obs, self.own.one(0, self._features(features))), state

    def value(self, obs: Any, state: Any = None) -> Tensor:
        features = self.perception(obs)
        if (native := self.natively("value", features)) is not None:
            return native[0].squeeze(-1)
        return self.value_head.forward(self.own.one(1, self._features(features))).squeeze(-1)

    def evaluate(self, obs: Any, state: Any = None, first: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor]:
        features = self.perception(obs)
        if (native := self.natively("evaluate", features)) is not None:
            return self._read(native[0], obs), native[1].squeeze(-1)
        actor, critic = self.own(self._features(features)).unbind()
        return self._out(obs, actor), self.value_head.forward(critic).squeeze(-1)

    def written(self, obs: Any, act: Tensor) -> WrittenEvaluation | None:
        """Return `evaluate`, log π(act) and the entropy, with gradients that are written out; None: torch has to compute them."""
        network, head = self.native.get("evaluate"), self.head
        own = getattr(head, "log_std", None)
        if network is None or "written" not in vars(type(head)) or not network.learns():
            return None
        if own is not None and not (learnable(own) and plain(own) and own.numel() == head.dim):
            return None
        if (features := self.features_to_write(obs)) is None:
            return None
        (numbers, value), kept = network.keep(features)
        return WrittenEvaluation(network, kept, head.written(numbers, act, self._mask(obs)), value, own)  # type: ignore

    def native_networks(self) -> dict[str, NetworkLayers]:
        """`evaluate`, `policy` and `value`, from the features of the perception: what the head makes its outputs of, and V."""
        layers = NetworkLayers(int(self.perception.out_size))  # type: ignore[arg-type]
        actor, critic = layers.add(self.own, layers.add(self.body) if self.shared else -1)
        layers.outputs = {"policy": layers.add(self.head, actor), "value": layers.add(self.value_head, critic)}
        return {"evaluate": layers, "policy": layers.only("policy"), "value": layers.only("value")}

    def native_reader(self, method: str) -> NativeReader | None:
        """Return how `policy` is computed of plain vectors; None: it is not."""
        read = getattr(self.head, "read_array", None)
        fits = method == "policy" and read is not None and hands_on(self.perception)
        return NativeReader("policy", read, self.perception) if fits else None  # type: ignore[arg-type]

    def auxiliary(self, obs: Any) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """As `evaluate`, and the value [N] that reads the policy's features.

        Raises:
            TypeError: the model was built without `auxiliary=True`.
        """
        if self.second_value is None:
            raise TypeError(f"{type(self).__name__} has no second value; build it with auxiliary=True")
        actor, critic = self.own(self._features(self.perception(obs))).unbind()
        return self._out(obs, actor), self.value_head.forward(critic).squeeze(-1), self.second_value.forward(actor).squeeze(-1)
