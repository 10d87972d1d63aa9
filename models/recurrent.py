"""Networks with a memory: an actor-critic, and values of actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
from torch import Tensor, nn

from parl_like.learning.action_spaces import taken_by
from parl_like.learning.layers import gru, lstm
from parl_like.learning.model import Model
from parl_like.models.action_parts import ActionParts
from parl_like.models.actor_q import MLPActorQ
from parl_like.models.flat_obs import perception
from parl_like.models.heads import Distribution, make_head, mask_key, masked
from parl_like.models.lstm_attention import LSTMAttention
from parl_like.models.mlp import MLP
from parl_like.values.batch import Batch
from parl_like.values.spec import Spec

Memory = Literal["gru", "lstm", "attention"]


class Recurrent(Model):
    """Perception → hidden layers → memory: what the models here begin with.

    Args:
        obs, act: Spaces.
        hidden: Sizes of the layers before the memory.
        memory: 'gru' (state `h`), 'lstm' (states `h` and `c`), or 'attention': one layer of LSTM cells with 4 heads that look at
            the last 40 steps, see `LSTMAttention`.
        size: Numbers in each state. keep: How strongly a GRU or LSTM begins as one that keeps, see `lstm`; 3 for delays of 20
            steps.
        trunk: A perception with `out_size`; None: the flat observation.

    Raises:
        ValueError: memory is none of these.
    """

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int], *, memory: Memory, size: int,
        keep: float, activation: str, orthogonal: bool, trunk: nn.Module | None,
    ) -> None:
        super().__init__(obs, act)
        if memory not in get_args(Memory):
            raise ValueError(f"{type(self).__name__}: memory is {memory!r}; expected 'gru', 'lstm' or 'attention'")
        self.size = size
        self.mask = mask_key(obs, act)
        self.perception = perception(obs, act, trunk)
        features: Any = self.perception.out_size
        self.body = MLP([features, *hidden], activation, activate_last=True, orthogonal=orthogonal)
        self.to_memory: nn.Module = nn.Identity()
        if memory == "attention":
            self.to_memory = nn.Linear(self.body.out_size, size)
            self.memory: Any = LSTMAttention(size, layers=1, heads=4)
            self.states = self.memory.state_specs()
        else:
            self.memory = (gru if memory == "gru" else lstm)(size, self.body.out_size, keep=keep)
            self.states = {name: Spec(name, (size,), np.dtype(np.float32)) for name in ("h", "c")[: 1 + (memory == "lstm")]}

    def state_specs(self) -> dict[str, Spec]:
        return self.states

    def _remember(self, obs: Any, state: Any, first: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        y, after = self.memory(self.to_memory(self.body(self.perception(obs))), state, first)
        return y, after


class RecurrentQ(Recurrent):
    """q(obs, state) -> (q [..., A], state after): values of actions behind a memory, for `R2D2`.

    obs [N, …] is one step, obs [T, N, …] are T of one episode each.

    Args:
        obs, act: Spaces, as for `MLPQ`.
        hidden, memory, size, keep, trunk: See `Recurrent`.
        dueling: q = v + a − mean(a) (Wang et al. 2016), each linear in the memory.

    Raises:
        TypeError: `act` is not Discrete.
    """

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64,), memory: Memory = "gru",
        *, size: int = 64, keep: float = 0.0, activation: str = "relu", dueling: bool = False, trunk: nn.Module | None = None,
    ) -> None:
        super().__init__(obs, act, hidden, memory=memory, size=size, keep=keep, activation=activation, orthogonal=False,
                         trunk=trunk)
        if not isinstance(act, gym.spaces.Discrete):
            raise TypeError(f"RecurrentQ: act is {act}; expected Discrete, for one value per action (use "
                            f"RecurrentActorCritic){taken_by(act)}")
        self.v = MLP([size, 1]) if dueling else None
        self.net = MLP([size, int(act.n)])

    def q(self, obs: Any, state: Mapping[str, Tensor] | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        y, after = self._remember(obs, state)
        q: Tensor = self.net(y)
        if self.v is not None:
            q = self.v(y) + q - q.mean(-1, keepdim=True)
        return q if self.mask is None else masked(q, obs[self.mask]), after


class RecurrentActorCritic(Recurrent):
    """Perception → hidden layers → memory, on which policy and value each have a linear head.

    Args:
        obs, act: Spaces, as for `MLPActorCritic`.
        hidden, memory, size, keep, trunk: See `Recurrent`.
        distribution: As for `MLPActorCritic`.
    """

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64,), memory: Memory = "gru",
        *, size: int = 64, keep: float = 0.0, activation: str = "tanh", orthogonal: bool = True, log_std_init: float = 0.0,
        state_dependent_std: bool = False, trunk: nn.Module | None = None, distribution: Distribution = "gaussian",
    ) -> None:
        super().__init__(obs, act, hidden, memory=memory, size=size, keep=keep, activation=activation, orthogonal=orthogonal,
                         trunk=trunk)
        self.critic = MLP([size, 1], orthogonal=orthogonal, last_gain=1.0)
        self.head = make_head(size, act, 0.01 if orthogonal else None, log_std_init, state_dependent_std, distribution)

    def _out(self, obs: Any, y: Tensor) -> dict[str, Tensor]:
        out: dict[str, Tensor] = self.head(y, None if self.mask is None else obs[self.mask])
        return out

    def policy(self, obs: Any, state: Mapping[str, Tensor] | None = None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        y, after = self._remember(obs, state)
        return self._out(obs, y), after

    def value(self, obs: Any, state: Mapping[str, Tensor] | None = None) -> Tensor:
        y, _ = self._remember(obs, state)
        value: Tensor = self.critic(y)
        return value.squeeze(-1)

    def evaluate(
        self, obs: Any, state: Mapping[str, Tensor] | None = None, first: Tensor | None = None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Rows of obs [T, B, ...], flat in time-major order; also obs [N, ...], which is one step."""
        y, _ = self._remember(obs, state, first)
        y = y.reshape(-1, self.size)
        return self._out(obs, y), self.critic(y).squeeze(-1)


class RecurrentActorQ(Recurrent):
    """A memory with the policy and critics of `MLPActorQ`, which read what it says, y [N, size], in place of observations; for
    `RSAC` and `RTD3`.

    Args:
        obs, act: Spaces, as for `MLPActorQ`.
        hidden, memory, size, keep, trunk: See `Recurrent`.
        actor_hidden: Sizes of the hidden layers of the policy and of each critic, behind the memory.
        critics, policy: As for `MLPActorQ`.

    Attributes:
        behind: Policy and critics.
    """

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64,), memory: Memory = "gru",
        *, size: int = 64, keep: float = 0.0, activation: str = "relu", actor_hidden: Sequence[int] = (64,), critics: int = 2,
        policy: Literal["squashed", "deterministic"] = "squashed", trunk: nn.Module | None = None,
    ) -> None:
        super().__init__(obs, act, hidden, memory=memory, size=size, keep=keep, activation=activation, orthogonal=False,
                         trunk=trunk)
        y: Any = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        seen = gym.spaces.Dict({"mask": obs["mask"], "y": y}) if self.mask and isinstance(obs, gym.spaces.Dict) else y
        self.behind = MLPActorQ(seen, act, actor_hidden, activation=activation, critics=critics, policy=policy)

    @property
    def actor(self) -> nn.Module:
        return self.behind.actor

    @property
    def head(self) -> Any:
        return self.behind.head

    @property
    def parts(self) -> ActionParts | None:
        return self.behind.parts

    def features(self, obs: Any, state: Mapping[str, Tensor] | None = None) -> tuple[Any, dict[str, Tensor]]:
        """Return what the memory says of one step, obs [N, …], or of T steps of one episode each, [T, N, …], as the heads read
        it: y [N, size] or [T, N, size], with masks beside it; and the memory after them."""
        y, after = self._remember(obs, state)
        return y if self.mask is None else Batch({"mask": obs[self.mask], "y": y}), after

    def policy(self, y: Any) -> dict[str, Tensor]:
        """As `MLPActorQ.policy`."""
        return self.behind.policy(y)

    def act(self, y: Any) -> Tensor:
        """As `MLPActorQ.act`."""
        return self.behind.act(y)

    def q(self, y: Any, act: Any = None) -> Tensor:
        """As `MLPActorQ.q`."""
        return self.behind.q(y, act)

    def expected_q(self, y: Any, numbers: Tensor, p: Tensor) -> Tensor:
        """As `MLPActorQ.expected_q`."""
        return self.behind.expected_q(y, numbers, p)
