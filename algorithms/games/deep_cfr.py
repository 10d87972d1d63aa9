"""Deep CFR (Brown et al. 2019): counterfactual regret minimisation with networks in the place of tables.

In iteration t, for each player p, `traversals` walks with external sampling (see `parl_like.algorithms.games.mccfr`) store rows

    (I, t, r(I, ·))   of p's information sets, r(I, a) = u(ha) − Σ_b π(b|I) u(hb),      in the advantage memory of p
    (I, t, π(·|I))    of the sets of the others that come by,                           in the strategy memory

and p's advantage network is trained from scratch on its memory, an even sample of all iterations (`ReservoirBuffer`):

    loss = Σ t / T · (A_p(I, ·) − r(I, ·))²  over legal actions,       π(a|I) in proportion to max(A_p(I, a), 0);
                                                                       of the largest A_p where no A_p is above 0;
                                                                       even before the first training

The average policy is a network of its own, trained in the same way on the strategy memory: loss = Σ t / T · (softmax(I) −
π(·|I))².
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from parl_like.algorithms.games.solver import Solver
from parl_like.data.buffers.reservoir import ReservoirBuffer
from parl_like.data.rng import rng_state, set_rng_state, torch_seed
from parl_like.envs.games.env import draw
from parl_like.envs.games.game import CHANCE, TERMINAL, Game
from parl_like.envs.games.game import State as Position
from parl_like.values import plain
from parl_like.values.batch import Batch
from parl_like.values.plain import State
from parl_like.values.spec import Array


class DeepCFR(Solver):
    """Advantage networks of all players, and a network of their average policy.

    Differences:
        - Gradients are not cut; the paper cuts their norm to 1.
        - Sizes are for small games, such as 40 walks and 200 steps of 256 rows; the paper's, for poker, are far larger.

    Args:
        game: Players move one after another, chance is known, payment comes at the end, states have keys and tensors.
        hidden: Sizes of the hidden layers of all networks.
        traversals: Walks of each player in an iteration.
        steps: Optimiser steps on an advantage network in an iteration. policy_steps: Of the average policy, each time that it is
            asked for.
        batch_size, lr: Rows and Adam's learning rate of these steps.
        memory: Rows that each memory keeps.
        seed: Of all that is drawn.

    Attributes:
        iterations: How many are done.

    Raises:
        ValueError: the game lacks a trait.
    """

    def __init__(self, game: Game, *, hidden: Sequence[int] = (64, 64), traversals: int = 40, steps: int = 200,
                 policy_steps: int = 2000, batch_size: int = 256, lr: float = 3e-3, memory: int = 100_000, seed: int = 0) -> None:
        game.traits.require("DeepCFR", dynamics="sequential", chance=("explicit", "deterministic"), reward="terminal",
                            styles=("key", "tensor"))
        self.game, self.hidden, self.traversals, self.steps = game, tuple(hidden), traversals, steps
        self.policy_steps, self.batch_size, self.lr = policy_steps, batch_size, lr
        self.iterations = 0
        self.rng = np.random.default_rng(seed)
        self.advantages = [ReservoirBuffer(memory, self.rng) for _ in range(game.n_players)]
        self.strategies = ReservoirBuffer(memory, self.rng)
        self.networks: list[nn.Module | None] = [None] * game.n_players  # until they are trained, players act evenly
        self._known: list[dict[str, list[float]]] = [{} for _ in range(game.n_players)]  # π by key, until a network changes

    def _network(self) -> nn.Sequential:
        with torch_seed(int(self.rng.integers(2**31))):
            return self._layers()

    def _layers(self) -> nn.Sequential:
        sizes = [self.game.tensor_size, *self.hidden, self.game.n_actions]
        layers = [layer for ins, outs in zip(sizes, sizes[1:], strict=False) for layer in (nn.Linear(ins, outs), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    def learn(self, iterations: int = 1) -> None:
        """Goes through so many iterations."""
        for _ in range(iterations):
            self.iterations += 1
            for player in range(self.game.n_players):
                for _ in range(self.traversals):
                    self._walk(self.game.start(), player)
                if len(self.advantages[player]):
                    self.networks[player] = self._trained(self.advantages[player], self.steps, policy=False)
                    self._known[player] = {}

    def _walk(self, state: Position, player: int) -> float:
        mover = state.player
        if mover == TERMINAL:
            return state.returns()[player]
        walk = partial(self._walk, state, player)
        if mover == CHANCE:
            return state.after(draw(state.chance(), self.rng), walk)
        legal, chances = state.legal(), self._chances(state)
        if mover != player:
            self._remember(self.strategies, state, chances)
            return state.after(draw([(action, chances[action]) for action in legal], self.rng), walk)
        values = {action: state.after(action, walk) for action in legal}
        value = sum(chances[action] * one for action, one in values.items())
        self._remember(self.advantages[player], state, [values.get(a, value) - value for a in range(self.game.n_actions)])
        return value

    def _remember(self, memory: ReservoirBuffer, state: Position, target: Sequence[float]) -> None:
        memory.add(Batch(obs=state.tensor(), mask=state.mask(), iteration=np.float32(self.iterations),
                         target=np.array(target, np.float32)))

    def _chances(self, state: Position) -> list[float]:
        """π of all actions, by the advantage network of who is to move."""
        known, key = self._known[state.player], state.key()
        if key not in known:
            network = self.networks[state.player]
            advantages = np.zeros(self.game.n_actions) if network is None else self._numbers(network, state)
            chances = np.maximum(advantages, 0.0) * state.mask()
            if not chances.any():
                legal = list(state.legal())
                chances[legal] = advantages[legal] == advantages[legal].max()
            known[key] = (chances / chances.sum()).tolist()
        return known[key]

    @torch.no_grad()
    def _numbers(self, network: nn.Module, state: Position) -> Array:
        return network(torch.from_numpy(state.tensor())).double().numpy()  # type: ignore[no-any-return]

    def _trained(self, memory: ReservoirBuffer, steps: int, *, policy: bool) -> nn.Sequential:
        """A new network that fits a memory."""
        network = self._network()
        optimizer = torch.optim.Adam(network.parameters(), lr=self.lr)
        rows: dict[str, Any] = {name: torch.from_numpy(column) for name, column in memory.take(np.arange(len(memory))).items()}
        weight, legal = rows["iteration"][:, None] / self.iterations, rows["mask"].bool()
        for _ in range(steps):
            i = torch.from_numpy(self.rng.integers(len(memory), size=self.batch_size))
            out = network(rows["obs"][i])
            out = out.masked_fill(~legal[i], -torch.inf).softmax(-1) if policy else out * legal[i]
            loss = (weight[i] * (out - rows["target"][i]) ** 2).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return network

    def _learned(self) -> State:
        networks = {str(player): {name: part.clone() for name, part in network.state_dict().items()}
                    for player, network in enumerate(self.networks) if network is not None}
        return {"advantages": {str(player): memory.state_dict() for player, memory in enumerate(self.advantages)},
                "strategies": self.strategies.state_dict(), "networks": networks, "rng": rng_state(self.rng)}

    def _take(self, learned: State) -> None:
        rng, size, saved = np.random.default_rng(), self.strategies.size, plain.entries(learned["advantages"])
        advantages, strategies = [ReservoirBuffer(size, rng) for _ in self.advantages], ReservoirBuffer(size, rng)
        for player, memory in enumerate(advantages):
            memory.load_state_dict(plain.entries(saved[str(player)]))
        strategies.load_state_dict(plain.entries(learned["strategies"]))
        networks: list[nn.Module | None] = []
        for player in range(self.game.n_players):
            parts: Any = plain.entries(learned["networks"]).get(str(player))
            with torch.random.fork_rng(devices=[]):
                network = None if parts is None else self._layers()
            if network is not None:
                own = network.state_dict()
                if parts.keys() != own.keys() or any(parts[name].shape != part.shape or not parts[name].isfinite().all()
                                                     for name, part in own.items()):
                    raise ValueError(f"DeepCFR: the state's network of player {player} has other layers, or numbers that are not "
                                     f"finite; expected hidden={self.hidden}")
                network.load_state_dict(parts)
            networks.append(network)
        set_rng_state(rng, learned["rng"])
        self.advantages, self.strategies, self.networks, self.rng = advantages, strategies, networks, rng
        self._known = [{} for _ in networks]

    def average_policy(self) -> NetworkPolicy:
        """The average of all iterations, trained now: what acts, and what is evaluated.

        Raises:
            ValueError: there was no iteration yet.
        """
        if not len(self.strategies):
            raise ValueError("DeepCFR: there is no average policy before the first iteration; call learn() first")
        return NetworkPolicy(self._trained(self.strategies, self.policy_steps, policy=True))


class NetworkPolicy:
    """A policy of tensors: the softmax of a network over legal actions.

    Attributes:
        network: [N, tensor_size] → [N, n_actions].
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    @torch.no_grad()
    def __call__(self, state: Position) -> Array:
        out = self.network(torch.from_numpy(state.tensor())).double().numpy()
        chances: Array = np.where(state.mask(), np.exp(out - out.max()), 0.0)
        chances /= chances.sum()
        return chances
