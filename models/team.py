"""Networks for the players of a team, each of whom sees its own part of a joint observation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from parl_like.learning.action_spaces import taken_by
from parl_like.learning.model import Model
from parl_like.models.flat_obs import FlatObs
from parl_like.models.heads import Distribution, OrthogonalLinear, make_head, mask_key, mask_names, masked
from parl_like.models.mlp import MLP, EnsembleMLP
from parl_like.values.spec import leaf_spaces


def team_of(name: str, obs: gym.Space[Any], players: int) -> tuple[int, int]:
    """Return the numbers that each player sees, and those of the state of the team: `state`, or all that the players see.

    Args:
        name: Of the network, for messages.
        obs: The joint observation: a Dict with `obs`, a Box [players, n], and perhaps `state`, a Box [m].

    Raises:
        TypeError: it is another space.
    """
    own = obs.spaces.get("obs") if isinstance(obs, gym.spaces.Dict) else None
    if not isinstance(own, gym.spaces.Box) or len(own.shape) != 2 or own.shape[0] != players:
        raise TypeError(f"{name}: the observation is {obs}; expected a Dict whose `obs` is a Box [{players}, n], a row for each "
                        "player, such as Joint(env) has")
    state = obs.spaces.get("state")  # type: ignore[attr-defined]  # a Dict, as the line above says
    if state is not None and not (isinstance(state, gym.spaces.Box) and len(state.shape) == 1):
        raise TypeError(f"{name}: `state` of the observation is {state}; expected a Box [n]")
    return own.shape[1], own.shape[0] * own.shape[1] if state is None else state.shape[0]


def state_of(obs: Any) -> Tensor:
    """Return the state of the team [N, n] that `team_of` describes, float32."""
    state: Tensor = obs["state"] if "state" in obs else obs["obs"].flatten(1)
    return state.float()


class MLPTeamQ(Model):
    """q(obs) -> [N, Σ nvec], the values of the actions of each player side by side, each from what that player sees.

    Args:
        obs: The joint observation, see `team_of`. It may hold `mask` [Σ nvec]: 1 for legal.
        act: MultiDiscrete, one number for each player.
        hidden: Sizes of the hidden layers.
        shared: One network for all players, which also sees whose turn it is as a one-hot vector; else one for each of them.

    Raises:
        TypeError: `act` is not MultiDiscrete.
    """

    real: Tensor
    who: Tensor

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64, 64), *, activation: str = "relu",
                 shared: bool = True) -> None:
        super().__init__(obs, act)
        name = type(self).__name__
        if not isinstance(act, gym.spaces.MultiDiscrete):
            raise TypeError(f"{name}: act is {act}; expected MultiDiscrete, a number for each player{taken_by(act)}")
        self.nvec: list[int] = act.nvec.ravel().tolist()
        self.players, self.shared = len(self.nvec), shared
        self.seen, self.state_size = team_of(name, obs, self.players)
        self.mask = mask_key(obs, act)
        out = max(self.nvec)
        self.net: Any = (
            MLP([self.seen + self.players, *hidden, out], activation) if shared
            else EnsembleMLP(self.players, [self.seen, *hidden, out], activation, activate_last=False))
        real = torch.arange(out) < torch.tensor(self.nvec)[:, None]
        self.register_buffer("real", real, persistent=False)  # [players, max nvec]: of what is computed, what there is
        self.register_buffer("who", torch.eye(self.players), persistent=False)

    def q(self, obs: Any) -> Tensor:
        seen: Tensor = obs["obs"].float()
        if self.shared:
            values = self.net(torch.cat([seen, self.who.expand(seen.shape[0], -1, -1)], -1))
        else:
            values = self.net.each(seen.transpose(0, 1)).transpose(0, 1)
        q: Tensor = values[:, self.real]
        return q if self.mask is None else masked(q, obs[self.mask], self.nvec)


class MLPTeamMix(MLPTeamQ):
    """mix(values, obs) -> [N] besides: |W₂(s)| elu(|W₁(s)| values + b₁(s)) + b₂(s), which never falls in any of the values
    (Rashid et al. 2018). W₁, b₁ and W₂ are linear in the state s, b₂ has one hidden layer.

    Args:
        mixing: Size of the hidden layer.
        The others: As for `MLPTeamQ`.

    Raises:
        ValueError: mixing is below 1.
    """

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64, 64), *, activation: str = "relu",
                 shared: bool = True, mixing: int = 32) -> None:
        super().__init__(obs, act, hidden, activation=activation, shared=shared)
        if mixing < 1:
            raise ValueError(f"MLPTeamMix: mixing is {mixing}; expected at least 1")
        self.mixing = mixing
        self.weights = nn.Linear(self.state_size, (self.players + 1) * mixing)  # W₁ and W₂
        self.first_bias = nn.Linear(self.state_size, mixing)
        self.last_bias = MLP([self.state_size, mixing, 1], "relu")

    def mix(self, values: Tensor, obs: Any) -> Tensor:
        state = state_of(obs)
        weights = self.weights(state).abs().unflatten(1, (self.players + 1, self.mixing))
        hidden = nn.functional.elu((values.unsqueeze(1) @ weights[:, :-1]).squeeze(1) + self.first_bias(state))
        mixed: Tensor = (hidden * weights[:, -1]).sum(1) + self.last_bias(state).squeeze(1)
        return mixed


class MLPTeamActorQ(Model):
    """A deterministic policy and a critic for each player: act(obs) -> [N, players, n] in [−1, 1], from what each sees, and
    q(obs, act) -> [players, N].

    Args:
        obs: The joint observation, see `team_of`.
        act: A Box [players, n] with finite bounds, a row for each player.
        hidden: Sizes of the hidden layers of each policy and critic.
        central: Each critic reads the state of the team and the actions of all players; else what its player sees and does.

    Attributes:
        actor: The policies' layers.

    Raises:
        TypeError: `act` is no such Box.
    """

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64, 64), *, activation: str = "relu",
                 central: bool = True) -> None:
        super().__init__(obs, act)
        if not (isinstance(act, gym.spaces.Box) and len(act.shape) == 2 and np.isfinite([act.low, act.high]).all()):
            raise TypeError(f"MLPTeamActorQ: act is {act}; expected a Box [players, n] with finite bounds, a row for each player"
                            f"{taken_by(act)}")
        self.players, self.numbers = act.shape
        seen, state = team_of("MLPTeamActorQ", obs, self.players)
        self.central = central
        self.actor = EnsembleMLP(self.players, [seen, *hidden, self.numbers], activation, activate_last=False)
        known = state + self.players * self.numbers if central else seen + self.numbers
        self.critics = EnsembleMLP(self.players, [known, *hidden, 1], activation, activate_last=False)

    def act(self, obs: Any) -> Tensor:
        seen: Tensor = obs["obs"].float()
        return torch.tanh(self.actor.each(seen.transpose(0, 1))).transpose(0, 1)

    def q(self, obs: Any, act: Tensor) -> Tensor:
        """The critics' values [players, N] of joint actions, [N, players, n]; or of one for each critic, [players, N, players,
        n]."""
        act = act.float()
        if act.ndim == 3:
            act = act.expand(self.players, -1, -1, -1)
        if self.central:
            known = torch.cat([state_of(obs).expand(self.players, -1, -1), act.flatten(2)], -1)
        else:
            own = act.diagonal(dim1=0, dim2=2).movedim(-1, 0)  # [players, N, n]
            known = torch.cat([obs["obs"].float().transpose(0, 1), own], -1)
        values: Tensor = self.critics.each(known)
        return values.squeeze(-1)


class MLPCentralActorCritic(Model):
    """A policy that reads an observation without its `state`, and a value that reads all of it (Yu et al. 2022).

    So a player acts by what it sees, while its critic also knows what the others see, as long as it learns.

    Args:
        obs: A Dict with `state`, such as `CentralState(env)` gives each player. It may hold `mask`, see `parl_like.models.heads`.
        act: Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of these.
        hidden: Sizes of the hidden layers, of each network.
        orthogonal: Orthogonal weights with gain √2, 0.01 at the policy's head and 1 at the value's; zero biases.
        log_std_init, state_dependent_std, distribution: As for `MLPActorCritic`.

    Attributes:
        head: Its `log_prob` and `entropy` read what `policy` and `evaluate` give out.

    Raises:
        TypeError: `obs` is no Dict with `state`.
    """

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64, 64), *, activation: str = "tanh",
        orthogonal: bool = True, log_std_init: float = 0.0, state_dependent_std: bool = False,
        distribution: Distribution = "gaussian",
    ) -> None:
        super().__init__(obs, act)
        if not isinstance(obs, gym.spaces.Dict) or "state" not in obs.spaces:
            raise TypeError(f"MLPCentralActorCritic: the observation is {obs}; expected a Dict with `state`, such as "
                            "CentralState(env) gives each player")
        self.mask = mask_key(obs, act)
        masks = mask_names(obs, act)
        states = [name for name, _ in leaf_spaces(obs.spaces["state"], "obs.state")]
        self.seen, self.known = FlatObs(obs, skip=[*masks, *states]), FlatObs(obs, skip=masks)
        self.actor = MLP([self.seen.out_size, *hidden], activation, activate_last=True, orthogonal=orthogonal)
        self.critic = MLP([self.known.out_size, *hidden], activation, activate_last=True, orthogonal=orthogonal)
        gain, value_gain = (0.01, 1.0) if orthogonal else (None, None)
        self.head = make_head(self.actor.out_size, act, gain, log_std_init, state_dependent_std, distribution)
        self.value_head = OrthogonalLinear(self.critic.out_size, 1, value_gain)

    def policy(self, obs: Any, state: Any = None) -> tuple[dict[str, Tensor], Any]:
        mask = None if self.mask is None else obs[self.mask]
        out: dict[str, Tensor] = self.head(self.actor(self.seen(obs)), mask)
        return out, {} if state is None else state

    def value(self, obs: Any, state: Any = None) -> Tensor:
        value: Tensor = self.value_head(self.critic(self.known(obs)))
        return value.squeeze(-1)

    def evaluate(self, obs: Any, state: Any = None, first: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor]:
        return self.policy(obs)[0], self.value(obs)
