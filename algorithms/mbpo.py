"""MBPO (Janner et al. 2019): an ensemble that learns what the environment does, and SAC on rows that it imagines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parl_like.algorithms.actor_q import TargetEntropy
from parl_like.algorithms.sac import SAC
from parl_like.learning.algorithm import Algorithm, Schedule, Window
from parl_like.learning.model import Model
from parl_like.values.batch import Batch
from parl_like.values.spec import leaves, nest


class EnsembleLearner(Algorithm):
    """Maximum likelihood of the next observation, the reward and the end of the episode, for each member of an ensemble of
    probabilistic networks (Chua et al. 2018): with the number y of a row, its mean μ and log variance v,

        loss = mean Σ_y [(y − μ)² exp(−v) + v] − 2 · mean log p(terminated) + 0.01 · Σ (v_max − v_min).

    Members differ by their initial weights, and each learns from rows of its own, drawn with replacement from the update's. A
    prediction is a draw from one member for each row, each being as likely, and none asked for more rows than its share, rounded
    up: what they do not agree on comes out differently each time.

    Differences:
        - An update is one step; the paper's steps go on until the loss of rows that were held out no longer falls.
        - All members are asked; the paper asks the best five of seven.
        - The end of an episode is learned, too; the authors' program knows when each of its environments ends.
        - There is no weight decay, which the authors' program has.

    Args:
        model: Offers `each(x)`, see `parl_like.models.dynamics.EnsembleDynamics`.
    """

    window, one_reward, takes_priorities = Window(), True, False
    calls = {"features": "features(obs, act) -> [N, in]", "each": "each(features [members, K, in]) -> (mean, log_var, end)",
             "targets": "targets(obs, obs_next, rew) -> [N, out]", "drawn": "drawn(obs, y) -> (obs_next, rew)"}
    fitting_models = "EnsembleDynamics"

    def __init__(self, model: Model | Callable[[], Model], *, lr: float | Schedule = 1e-3,
                 max_grad_norm: float | None = None) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        """`obs_next` [N, …], `rew` [N] and `terminated` [N] of `obs` and `act`, in the policy's units."""
        x = self.model.features(inputs.obs, inputs.act)
        n, members = len(x), self.model.members
        share = -(-n // members)
        # Each member has so many places, over which all rows are spread; where places are left over, some rows stand again.
        order = torch.randperm(share * members, generator=self.torch_rng, device=x.device)
        place = order.argsort()[:n]
        mean, log_var, end = (part.flatten(0, 1)[place] for part in self.model.each(x[order.view(members, share) % n]))
        y = mean + torch.exp(0.5 * log_var) * torch.randn(mean.shape, generator=self.torch_rng, device=x.device)
        ends = torch.rand(n, generator=self.torch_rng, device=x.device) < torch.sigmoid(end)
        obs_next, rew = self.model.drawn(inputs.obs, y)
        return {"obs_next": obs_next, "rew": rew, "terminated": ends}

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        model = self.model
        with torch.no_grad():
            model.observe(batch.obs, batch.act, batch.obs_next, batch.rew)
            x, y = model.features(batch.obs, batch.act), model.targets(batch.obs, batch.obs_next, batch.rew)
        rows = torch.randint(len(x), (model.members, len(x)), generator=self.torch_rng, device=x.device)
        mean, log_var, end = model.each(x[rows])
        error = (y[rows] - mean).square()
        likelihood = (error * torch.exp(-log_var) + log_var).sum(-1).mean()
        ends = F.binary_cross_entropy_with_logits(end, batch.terminated[rows].float())
        loss = likelihood + 2.0 * ends + 0.01 * (model.max_log_var - model.min_log_var).sum()
        return {"loss": loss, "error": error.detach().mean(), "log_var": log_var.detach().mean()}


class MBPO(SAC):
    """Model-based policy optimisation (Janner et al. 2019): SAC, most of whose rows are imagined. It asks another task what the
    environment would do.

    In every `imagine_every`-th update the policy acts on from each observation of the update's rows, for `horizon` steps in which
    the model takes the place of the environment; these rows are kept, the newest `imagined_size` of them. Of an update's rows all
    but a share `real` are then replaced by rows drawn from these. Observations and rewards are those that the transforms of the
    tasks' helpers make, so give both tasks the same, and none that gathers statistics.

    Differences:
        - `horizon` stays the same; the paper's grows in the run for some environments.
        - A path is imagined every so many updates (`imagine_every`); the authors' program counts steps of the environment.
        - The entropy that is wanted is that of `SAC`; the authors' program has a number for each environment.

    Args:
        model: As for SAC.
        model_task: Name of the task that is asked, an `EnsembleLearner`; the task that learns this declares it (`asks`).
        horizon: Steps of an imagined path.
        real: Share of real rows, 0.05 as published; 1: nothing is imagined, as for SAC.
        The others: see `SAC`. How many updates there are for each step of the environment is the helper's `updates`.

    Raises:
        ValueError: horizon, imagine_every or imagined_size is below 1, or real is not in [0, 1].
    """

    takes = None  # it needs a second task

    def __init__(
        self, model: Model | Callable[[], Model], *, model_task: str = "model", horizon: int = 1, real: float = 0.05,
        imagine_every: int = 10, imagined_size: int = 50_000, gamma: float = 0.99, tau: float = 0.005, alpha: float = 1.0,
        learn_alpha: bool = True, target_entropy: TargetEntropy = None, lr: float | Schedule = 3e-4,
        actor_lr: float | Schedule | None = None, alpha_lr: float | Schedule | None = None, max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, gamma=gamma, tau=tau, alpha=alpha, learn_alpha=learn_alpha, target_entropy=target_entropy, lr=lr,
                         actor_lr=actor_lr, alpha_lr=alpha_lr, max_grad_norm=max_grad_norm)
        if min(horizon, imagine_every, imagined_size) < 1 or not 0.0 <= real <= 1.0:
            raise ValueError(f"MBPO: horizon is {horizon}, imagine_every {imagine_every}, imagined_size {imagined_size} and real "
                             f"{real}; expected at least 1 each, and a share")
        self.model_task, self.horizon, self.real = model_task, horizon, real
        self.takes_priorities = self.takes_rewards = real == 1.0  # they are about real rows, and most rows are not
        self.imagine_every, self.imagined_size = imagine_every, imagined_size
        self.imagined: dict[str, Tensor] = {}  # columns of rows, of which the first `_kept` are there
        self._kept = self._at = self._updates = 0

    def fixed_settings(self) -> dict[str, str]:
        fixed = dict.fromkeys(("real", "imagined_size"), "the rows that are kept were laid out by it; build a new algorithm with "
                              "another")
        return {**super().fixed_settings(), **fixed, "model_task": "the tasks were connected by that name (asks=…)"}

    def process(self, batch: Batch) -> Batch:
        """The update's rows, all but a few replaced by imagined ones, with their targets.

        Raises:
            ValueError: the rows have durations.
        """
        if self.real == 1.0:
            return super().process(batch)
        if "duration" in batch:
            raise ValueError("MBPO: rows with durations, of actions that take several steps, cannot be imagined; use SAC")
        if self._updates % self.imagine_every == 0:
            self.imagine(batch.obs)
        self._updates += 1
        n = len(batch.obs)
        n_real = round(self.real * n)
        index = torch.randint(self._kept, (n - n_real,), generator=self.torch_rng, device=batch.rew.device)
        real = dict(leaves(batch, ""))
        mixed = {name: torch.cat([real[name][:n_real].to(kept.dtype), kept[index]]) for name, kept in self.imagined.items()}
        return super().process(Batch(nest(mixed)))

    def imagine(self, obs: Any) -> None:
        """Short paths from these observations, under the policy and the model as they are now."""
        for _ in range(self.horizon):
            out = self.model.policy(obs)
            if self.discrete:
                act = torch.multinomial(self.model.head.log_probs(out).exp(), 1, generator=self.torch_rng).squeeze(1)
            else:
                act = self.drawn(out)[0].reshape(len(obs), *self.model.act_space.shape)
            answer = self.ask(self.model_task, obs=obs, act=act)
            self.keep(dict(leaves({"obs": obs, "act": act, **answer}, "")))
            obs = answer.obs_next[~answer.terminated]
            if not len(obs):
                return

    def keep(self, rows: Mapping[str, Tensor]) -> None:
        """In place of the oldest."""
        n, size = len(rows["rew"]), self.imagined_size
        first = max(n - size, 0)  # of more than there is room for the newest
        for name, column in rows.items():
            if name not in self.imagined:
                self.imagined[name] = column.new_zeros(size, *column.shape[1:])
            places = torch.arange(self._at + first, self._at + n, device=column.device) % size
            self.imagined[name][places] = column[first:]
        self._at, self._kept = (self._at + n) % size, min(self._kept + n, size)
