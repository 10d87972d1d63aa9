"""Evolution strategies, the cross-entropy method and augmented random search: a search among parameters, without gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from parl_like.algorithms.actor_critic import ActorCritic, explorer_of
from parl_like.algorithms.natural import divided
from parl_like.learning.algorithm import Algorithm, Loss, Schedule, Window, value_of
from parl_like.learning.explorers import Candidates, Explorer
from parl_like.learning.model import Model
from parl_like.learning.model_check import ContractError
from parl_like.values.batch import Batch


class Population(nn.Module):
    """The candidates of a generation: `table` [n + 1, numbers], the parameters of each and, as the last row, of their centre."""

    table: Tensor
    std: Tensor

    def __init__(self, n: int, center: Tensor, std: float) -> None:
        super().__init__()
        self.register_buffer("table", center.repeat(n + 1, 1))
        self.register_buffer("std", torch.full_like(center, std))

    def sync_from(self, other: Any, decay: float = 0.0) -> None:
        """As `Model.sync_from`."""
        for mine, theirs in zip(self.buffers(), other.buffers(), strict=True):
            mine.lerp_(theirs, 1.0 - decay)


class Evolution(ActorCritic):
    """The base of ES, CEM and ARS: θ are the parameters that the model's policy reads; candidates are numbers around it, each of
    which acts greedily for whole episodes (`PopulationHelper`), and a prediction computes all candidates of its batch at once.

    All candidates are held, so a generation takes `population` times the memory of the policy.

    Args:
        model: Offers `policy` and `head`, see `parl_like.learning.model`; maybe with memory.
        population: Candidates of a generation. pairs: whether they come as θ + ε and θ − ε.
        std: Standard deviation of ε at the beginning.

    Raises:
        ValueError: population is below 2, or odd although candidates come in pairs; or std is not above 0.
    """

    transient, takes_rewards = ("_places",), False
    window, calls = Window(), {name: ActorCritic.calls[name] for name in ("policy", "head")}

    def __init__(self, model: Model | Callable[[], Model], population: int, pairs: bool, std: float,
                 lr: float | Schedule) -> None:
        super().__init__(model, lr=lr)
        if population < 2 or pairs and population % 2 or not std > 0.0:
            raise ValueError(f"{type(self).__name__}: population is {population} and std {std}; expected at least 2"
                             f"{', an even number,' * pairs} and a std above 0")
        self.population, self.pairs, self.std = population, pairs, std
        # Where each number of θ is kept: a parameter that several modules share is kept by all of them.
        self._places = [[(part._parameters, key) for part in self.model.modules() for key, p in part._parameters.items()
                         if p is parameter] for parameter in divided(self.model)[0].values()]
        self._candidates = Population(population, self.center().detach(), std)
        self.draw(None)

    def fixed_settings(self) -> dict[str, str]:
        fixed = dict.fromkeys(("population", "std"), "the candidates were drawn by it; build a new algorithm with another")
        return {**super().fixed_settings(), **fixed}

    def networks(self) -> dict[str, nn.Module]:
        return {"model": self.model, "candidates": self._candidates}

    def clone(self, copy: bool = True) -> Algorithm:
        other: Any = super().clone(copy)
        if not copy:
            other._candidates.std.fill_(self.std)
            other.draw(None)
        return other  # type: ignore[no-any-return]

    def searched(self) -> list[nn.Parameter]:
        """The parameters that are θ."""
        return [held[key] for (held, key), *_ in self._places]

    def center(self) -> Tensor:
        """θ, [numbers]."""
        return torch.cat([parameter.reshape(-1) for parameter in self.searched()])

    @torch.no_grad()
    def draw(self, generator: torch.Generator | None) -> None:
        """The candidates of the next generation, around θ as it is now."""
        table, n = self._candidates.table, self.population
        table[n] = self.center()
        noise = torch.randn(n // 2 if self.pairs else n, table.shape[1], generator=generator, device=table.device)
        noise *= self._candidates.std
        table[:n] = table[n] + (torch.cat([noise, -noise]) if self.pairs else noise)

    @torch.no_grad()
    def move(self, theta: Tensor) -> None:
        """θ becomes this."""
        begin = 0
        for parameter in self.searched():
            parameter.copy_(theta[begin : begin + parameter.numel()].view_as(parameter))
            begin += parameter.numel()

    def explorer(self) -> Explorer:
        return Candidates(explorer_of(self.model.head, self.model.act_space))

    def check_model(self, inputs: Batch) -> None:
        super().check_model(inputs)
        try:
            self.outputs(inputs, torch.zeros(2, dtype=torch.int64))
        except RuntimeError as error:
            raise ContractError(f"{type(self).__name__} computes the policies of several candidates at once (torch.vmap), and "
                                f"{type(self.model).__name__}.policy raised {error}") from error

    def outputs(self, inputs: Batch, which: Tensor) -> tuple[dict[str, Tensor], Any]:
        """Return the policy's outputs for each row, computed with the parameters of its candidate [N]."""
        own = self.searched()
        rows = torch.split(self._candidates.table[which], [parameter.numel() for parameter in own], 1)
        parameters = [part.reshape(len(part), *parameter.shape) for part, parameter in zip(rows, own, strict=True)]

        def hold(parameters: Iterable[Tensor]) -> None:
            for places, parameter in zip(self._places, parameters, strict=True):
                for held, key in places:
                    held[key] = parameter

        def one(parameters: Any, obs: Any, state: Any) -> Any:
            hold(parameters)  # what torch.func.functional_call does, which takes as long as the policy to find the places
            try:
                out, after = self.model.policy(_each(obs, 0), _each(state, 0) or None)
            finally:
                hold(own)
            return _each(out, None), _each(after, None)

        given = _plain(inputs.obs), _plain(inputs.get("state", {}))
        return torch.vmap(one)(parameters, *given)  # type: ignore[no-any-return]

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        if "candidate" not in inputs:
            return super().predict(inputs)
        out, state = self.outputs(inputs, inputs.candidate)
        return {**out, "state": state} if state else out

    def process(self, batch: Batch) -> Batch:
        """Rows in any order → `scores` [population], means over the episodes of each candidate; NaN where any is missing."""
        n = int(batch.episodes[0])
        scores = torch.full((self.population, n), math.nan, dtype=batch.score.dtype, device=batch.score.device)
        scores[batch.candidate, batch.episode] = batch.score
        return Batch(scores=scores.mean(1))

    def minibatches(self, batch: Batch) -> Iterable[Batch]:
        """None where a run ended, or a checkpoint was made, while some agents waited for the others: they come again."""
        if not batch.scores.isnan().any():
            yield batch

    def results(self, scores: Tensor) -> dict[str, Tensor]:
        return {"score": scores.mean(), "best_score": scores.max()}


class ES(Evolution):
    """Evolution strategies (Salimans et al. 2017), with pairs θ ± ε and ranks r of the returns, from −½ to ½, in their place:

        g = (1 / (n σ²)) Σ_i r_i ε_i,    a step of Adam along g, which estimates the slope of the mean rank.

    Differences:
        - θ does not decay; the paper's agents let it.
        - Candidates are rows of a table, and a prediction computes all of them; the paper's workers make them from shared seeds.

    Args:
        model: Offers `policy` and `head`, see `parl_like.learning.model`; maybe with memory.
        population: Candidates of a generation, an even number.
        std: σ.
        lr: Of Adam.
    """

    def __init__(self, model: Model | Callable[[], Model], *, population: int = 32, std: float = 0.1,
                 lr: float | Schedule = 0.03) -> None:
        super().__init__(model, population, True, std, lr)
        self.losses = {"policy": Loss(self.model, "lr")}

    def learn(self, batch: Batch) -> Generator[Mapping[str, Any], None, None]:
        table = self._candidates.table
        slope = ranks(batch.scores) @ (table[:-1] - table[-1]) / (self.population * self.std**2)
        yield {"policy": -(self.center() @ slope), "slope": slope.norm(), **self.results(batch.scores)}
        self.draw(self.torch_rng)


class CEM(Evolution):
    """The cross-entropy method (Rubinstein 1999; Szita & Lörincz 2006): the next generation is normal with mean and standard
    deviation, number by number, of the best candidates; `extra` is added to the variance, so that it does not shrink too early:

        θ_i ~ N(μ, σ²),   μ ← mean of the best θ_i,   σ² ← their variance + extra.

    Differences:
        A generation has 50 candidates, the best 20 % count, and `extra` is 0; Szita & Lörincz have 100, 10 %, and an `extra` that
        falls.

    Args:
        model, population: As for `ES`; any number.
        std: At the beginning.
        elite: Share of the candidates that are the best.
        extra: A number or a schedule over the generations.

    Raises:
        ValueError: elite is less than two candidates, or all of them.
    """

    losses = {}

    def __init__(self, model: Model | Callable[[], Model], *, population: int = 50, std: float = 1.0, elite: float = 0.2,
                 extra: float | Schedule = 0.0) -> None:
        super().__init__(model, population, False, std, 0.0)
        self.n_elite, self.extra = round(elite * population), extra
        if not 1 < self.n_elite < population:
            raise ValueError(f"CEM: elite is {elite} of {population}; expected a share of at least 2 candidates, and not of all")

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        table = self._candidates.table
        best = table[batch.scores.argsort(descending=True, stable=True)[: self.n_elite]]
        variance, mean = torch.var_mean(best, 0, correction=0)
        self.move(mean + (self.center() - table[-1]))  # what other tasks have changed meanwhile; else 0, so exactly the mean
        self._candidates.std.copy_((variance + value_of(self.extra, self.updates)).sqrt())
        self.draw(self.torch_rng)
        return {"std": self._candidates.std.mean(), **self.results(batch.scores)}


class ARS(Evolution):
    """Augmented random search (Mania et al. 2018): of pairs θ ± ε those b with the largest max(s₊, s₋) count,

        θ ← θ + lr / (b σ_R) Σ (s₊ − s₋) ε / std,        σ_R the standard deviation of their 2 b returns.

    V1 of the paper, with a linear policy: `hidden: []`; V2 with a transform that normalises observations.

    Differences:
        - The linear policy has a bias, and begins with small random weights; the paper's has none, and begins at 0.
        - All pairs count by default; the paper chooses their number for each environment (`top`).

    Args:
        model, population: As for `ES`.
        std: Of ε.
        lr: A number or a schedule over the generations.
        top: Share of the pairs that count.

    Raises:
        ValueError: top is less than one pair, or more than all.
    """

    losses = {}

    def __init__(self, model: Model | Callable[[], Model], *, population: int = 32, std: float = 0.05,
                 lr: float | Schedule = 0.02, top: float = 1.0) -> None:
        super().__init__(model, population, True, std, lr)
        self.n_top = round(top * population / 2)
        if not 1 <= self.n_top <= population // 2:
            raise ValueError(f"ARS: top is {top} of {population // 2} pairs; expected a share of at least one, at most 1")

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        table = self._candidates.table
        both = batch.scores.view(2, -1)
        best = both.amax(0).argsort(descending=True, stable=True)[: self.n_top]
        used = both[:, best]
        gains = ((used[0] - used[1]) / (used.std(correction=0) + 1e-8)).to(table.dtype)
        step = gains @ (table[best] - table[-1]) / (self.n_top * self.std)
        self.move(self.center() + value_of(self.lr, self.updates) * step)
        self.draw(self.torch_rng)
        return self.results(batch.scores)


def ranks(scores: Tensor) -> Tensor:
    """Places [N] among the scores, evenly from −½ to ½; equal scores have the mean of their places."""
    below, equal = (scores[:, None] > scores).sum(1), (scores[:, None] == scores).sum(1)
    return (below + (equal - 1) / 2) / (len(scores) - 1) - 0.5


def _plain(nested: Any) -> Any:
    """Batches as dicts, which torch.vmap knows."""
    return {key: _plain(part) for key, part in nested.items()} if isinstance(nested, (Mapping, Batch)) else nested


def _each(nested: Any, axis: int | None) -> Any:
    """Tensors of one row with an axis of rows (0), or without it (None)."""
    if isinstance(nested, (Mapping, Batch)):
        return {key: _each(part, axis) for key, part in nested.items()}
    return nested[0] if axis is None else nested[None]
