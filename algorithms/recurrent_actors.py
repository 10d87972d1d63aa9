"""SAC and TD3 with a memory, on sequences from the replay buffer: RSAC and RTD3 (Ni et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import torch
from torch import Tensor

from parl_like.algorithms.actor_q import TargetEntropy, check_actor_q, critic_terms
from parl_like.algorithms.ddpg import TD3
from parl_like.algorithms.sac import SAC
from parl_like.algorithms.sequences import Sequences, each
from parl_like.algorithms.targets import rewards_and_discount
from parl_like.learning.action_spaces import BOX, CHOICES, NESTED, NESTED_CHOICES, Takes
from parl_like.learning.algorithm import Schedule
from parl_like.learning.model import Model
from parl_like.learning.model_check import ContractError, answer, refuse
from parl_like.values.batch import Batch

FEATURES = "features(obs, state) -> (y, state), what the memory says [N, …] of one step, [T, N, …] of T of them,"


class RSAC(SAC):
    """SAC whose policy and critics read a memory y of the episode, for each row of a sequence:

    y_t = r_t + γ (1 − terminated) · E_{a'~π(y')} [min_i Q⁻_i(y'⁻, a') − α log π(a'|y')],   losses as in `SAC`, by row.

    The critics' loss moves the memory, the actor's does not. The target copy remembers for itself, y'⁻. Sequences, burn-in and
    their priorities are as in `R2D2`. On a model that forgets everything it is SAC.

    Differences:
        - One memory serves policy and critics, and the critics' loss alone moves it; the paper has one for each.
        - Sequences begin with the stored memory and a burn-in, as in `R2D2`; the paper's begin with zeros.
        - The memory reads observations; the paper's also reads the last action and reward.

    Args:
        model: Offers `features(obs, state) -> (y, state)`, and what `SAC` wants of a model, for y in place of observations.
        sequence, burn_in: Rows that are learned from, at least 2, and rows before them.
        stored_state: Whether a sequence begins with the memory with which its agent acted there; else with zeros.
        eta: η of the priorities.
        The others: As for `SAC`.

    Raises:
        ValueError: sequence is below 2, or eta is not in [0, 1].
    """

    calls = {"features": FEATURES, **SAC.calls}
    fitting_models = "RecurrentActorQ"
    takes: Takes | None = Takes((*CHOICES, BOX, NESTED_CHOICES, NESTED), images=False, memory="always")

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, sequence: int = 20, burn_in: int = 10,
        stored_state: bool = True, eta: float = 0.9, tau: float = 0.005, alpha: float = 1.0, learn_alpha: bool = True,
        target_entropy: TargetEntropy = None, delay: int = 1, lr: float | Schedule = 3e-4,
        actor_lr: float | Schedule | None = None, alpha_lr: float | Schedule | None = None, max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, gamma=gamma, tau=tau, alpha=alpha, learn_alpha=learn_alpha, target_entropy=target_entropy,
                         delay=delay, lr=lr, actor_lr=actor_lr, alpha_lr=alpha_lr, max_grad_norm=max_grad_norm)
        self.sequences = Sequences(type(self).__name__, sequence, burn_in, stored_state, eta)
        self.window = self.sequences.window

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), **self.sequences.fixed_settings()}

    def check_model(self, inputs: Batch) -> None:
        check_actor_q(self, Batch(obs=remembered(self, inputs)), "log_probs" if self.discrete else "draw")

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        y, state = self.model.features(inputs.obs, inputs.state)
        return {**self.model.policy(y), "state": state}

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N, L], and the network's memory before the first row of each sequence, `memory`."""
        own, of_target = memories(self, batch)
        q, log_p = self.soft(own, self.target, of_target)
        batch.target = along_sequences(self, batch, q - self.cost(self.log_alpha.exp(), log_p))
        return batch

    def learn(self, batch: Batch) -> Generator[Mapping[str, Any], None, None]:
        rows = learned_rows(self, batch)
        out = self.critic_update(rows)
        yield {**out, "priority": self.sequences.priorities(out["priority"], rows, batch)}
        rows.obs = each(Tensor.detach, rows.obs)
        yield from self.actor_updates(rows)


class RTD3(TD3):
    """TD3 whose policy and critics read a memory y of the episode; what was said of `RSAC` holds. On a model that forgets
    everything it is TD3.

    Differences:
        - Those of `RSAC`.

    Args:
        model: Offers `features(obs, state) -> (y, state)`, and what `TD3` wants of a model, for y in place of observations.
        sequence, burn_in, stored_state, eta: As for `RSAC`.
        The others: As for `TD3`.
    """

    calls = {"features": FEATURES, **TD3.calls}
    fitting_models = "RecurrentActorQ with policy='deterministic'"
    takes = Takes(("Box",), images=False, masks=False, memory="always")

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, sequence: int = 20, burn_in: int = 10,
        stored_state: bool = True, eta: float = 0.9, tau: float = 0.005, noise: float | Schedule = 0.1, delay: int = 2,
        smoothing: float = 0.2, smoothing_clip: float = 0.5, lr: float | Schedule = 1e-3,
        actor_lr: float | Schedule | None = None, max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, gamma=gamma, tau=tau, noise=noise, delay=delay, smoothing=smoothing,
                         smoothing_clip=smoothing_clip, lr=lr, actor_lr=actor_lr, max_grad_norm=max_grad_norm)
        self.sequences = Sequences(type(self).__name__, sequence, burn_in, stored_state, eta)
        self.window = self.sequences.window

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), **self.sequences.fixed_settings()}

    def check_model(self, inputs: Batch) -> None:
        super().check_model(Batch(obs=remembered(self, inputs)))

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        y, state = self.model.features(inputs.obs, inputs.state)
        return {"mean": self.model.act(y), "state": state}

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N, L], and the network's memory before the first row of each sequence, `memory`."""
        _, y = memories(self, batch)
        batch.target = along_sequences(self, batch, self.target.q(y, self.smoothed(self.target.act(y))).amin(0))
        return batch

    def learn(self, batch: Batch) -> Generator[Mapping[str, Any], None, None]:
        rows = learned_rows(self, batch)
        out = critic_terms(self.model.q(rows.obs, rows.act) - rows.target, rows)
        yield {**out, "priority": self.sequences.priorities(out["priority"], rows, batch)}
        rows.obs = each(Tensor.detach, rows.obs)
        yield from self.actor_updates(rows)


def remembered(algorithm: RSAC | RTD3, inputs: Batch) -> Any:
    """Check what the memory says of two rows, and return it, y [2, …]; raises ContractError."""
    specs = algorithm.model.state_specs()
    if not specs:
        raise ContractError(f"{type(algorithm).__name__} needs a memory; {type(algorithm.model).__name__} has no state; "
                            "RecurrentActorQ has one")
    for obs in (each(lambda obs: torch.stack([obs] * 3), inputs.obs), inputs.obs):
        out = answer(algorithm, "features", obs, inputs.state)
        if not (isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], (Mapping, Batch))
                and set(out[1].keys()) == set(specs)):
            raise refuse(algorithm, "features", f"a pair with the state {sorted(specs)}", type(out).__name__)
    return out[0]


def memories(algorithm: RSAC | RTD3, batch: Batch) -> tuple[Any, Any]:
    """Return what the memories of network and target say of the state after each row, y [L · N, …], one after the other. The
    network's memory before the first row is kept as `batch.memory`."""
    sequences, model, target = algorithm.sequences, algorithm.model, algorithm.target
    batch.memory = Batch(sequences.warmed(model.features, batch))
    seen = sequences.seen(batch)
    own = model.features(seen, dict(batch.memory.items()))[0]
    of_target = target.features(seen, sequences.warmed(target.features, batch))[0]
    return each(lambda y: y[1:].flatten(0, 1), own), each(lambda y: y[1:].flatten(0, 1), of_target)


def along_sequences(algorithm: RSAC | RTD3, batch: Batch, value: Tensor) -> Tensor:
    """The targets [N, L] of the values [L · N] of what follows each row."""
    rew, discount = (part[:, algorithm.sequences.skip :] for part in rewards_and_discount(batch, algorithm.discounts))
    return rew + discount * value.view(rew.shape[1], rew.shape[0]).T


def learned_rows(algorithm: RSAC | RTD3, batch: Batch) -> Batch:
    """The rows that are learned from, with the memory's y, which has its gradient, as their observations."""
    y, _ = algorithm.model.features(algorithm.sequences.learned(batch), dict(batch.memory.items()))
    return algorithm.sequences.rows(y, batch)
