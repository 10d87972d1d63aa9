"""Algorithm: the problem-independent part of a computation (how to predict, how to learn), and the factories that build one."""

from __future__ import annotations

import copy as copying
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from parl_like.interfaces import RowLearner
from parl_like.learning.action_spaces import Takes
from parl_like.learning.adam import FusedAdam
from parl_like.learning.explorers import Explorer
from parl_like.learning.fixed_settings import check, check_rates, guarded, setting
from parl_like.learning.loss import Loss as Loss
from parl_like.learning.model import Model, reinitialise, sync
from parl_like.learning.saved_state import Attributes
from parl_like.learning.schedule import Exponential as Exponential
from parl_like.learning.schedule import Linear as Linear
from parl_like.learning.schedule import Schedule as Schedule
from parl_like.learning.schedule import value_of as value_of
from parl_like.values.batch import Batch
from parl_like.values.errors import unknown
from parl_like.values.plain import State
from parl_like.values.user_calls import Guarded

FIELDS = ("first", "lane", "episode", "step", "next_act", "number", "to_go")
"""The names that `Window.fields` may have."""


@dataclass(frozen=True)
class Window:
    """Which rows around a sampled one learning needs. Rows after an episode end are never followed.

    Attributes:
        n_step: Rewards that one row looks ahead. `rew` of a learning batch is [N] for 1, else [N, n_step], zero after the end;
            `valid` [N] counts the rewards that are real; `obs_next` and `terminated` belong to the last of them.
        in_order: True: the algorithm needs whole segments, rows in time order with `last` marking each cut (on-policy). False: it
            needs random rows of all that is remembered (off-policy). None: it takes rows however they come.
        sequence: Rows of a learning example, from the sampled one on. Above 1 all fields are [N, burn_in + sequence, …], and
            `valid` [N, burn_in + sequence] is False where the episode has no such row (its nearest one stands there); `state` [N,
            …] is the memory that was stored with the first of them. n-step returns are then the algorithm's own, along the
            sequence.
        burn_in: Rows before the sampled one, on which a recurrent memory warms up (Kapturowski et al. 2019).
        fields: More of each row, by name. `first`: whether it begins an episode, or goes on behind a cut; `lane`: the number of
            its environment among those of all agents; `episode`: the number of its episode there, cuts counted; `step`: the
            number of its act among those of its helper, from 1, by which explorers read schedules. `next_act`: the
            action after it (of n steps: after the last), with `has_next`, False and zeros where the episode ended or goes on in a
            row that is not there yet. `number`: the same whenever a row is drawn, and no other row's of its buffer. `to_go`: the
            sum of the rewards from it to the end of its episode, as far as that is there; float64.
        whole: Whether learning needs whole episodes, each once (`EpisodicHelper`).
        memory: Whether rows have the model's memory as it was before them, where it has one. False: sequences begin without.
        one_lane: Whether one environment alone may be acted in, for each of its episodes is acted by what was learned before it.
    """

    n_step: int = 1
    in_order: bool | None = None
    sequence: int = 1
    burn_in: int = 0
    fields: tuple[str, ...] = ()
    whole: bool = False
    one_lane: bool = False
    memory: bool = True

    def __post_init__(self) -> None:
        for name in self.fields:
            if name not in FIELDS:
                raise ValueError(f"Window: {unknown('field', name, FIELDS)}")
        if self.n_step < 1 or self.sequence < 1 or self.burn_in < 0:
            raise ValueError(f"{self}: expected n_step ≥ 1, sequence ≥ 1 and burn_in ≥ 0")
        if (self.sequence > 1 or self.burn_in) and (self.n_step > 1 or self.in_order):
            raise ValueError(f"{self}: a sequence goes with neither n_step nor in_order; take n-step returns along the sequence")

    def reading(self, fields: Sequence[str]) -> Window:
        """Return this window with more `fields`."""
        return replace(self, fields=tuple(dict.fromkeys((*self.fields, *fields)))) if fields else self

    @property
    def rows(self) -> int:
        """Rows in a row that one example looks at, at most."""
        return max(self.n_step, self.burn_in + self.sequence)


class Algorithm(Guarded):
    """Prediction and learning for any model that offers what the algorithm calls.

    A subclass sets `window`, and writes `predict` and `learn`; `process` and `post_process` are optional. The computation task
    calls them, always one at a time, and does `zero_grad`, `backward`, clipping and the optimiser step around `learn`. With
    several losses, such as those of an actor and a critic, a subclass names them in `losses`.

    Once its task is built, settings that are read as it goes may be assigned (`task.algorithm.lr = 1e-4`, PPO's `clip`), and the
    next update or prediction goes by them. Those that went into what was built (`n_step`, whose rows the helpers send) raise
    AttributeError. Attributes that a user's own class defines are assigned as ever.

    Args:
        model: The model, or a zero-argument factory of one.
        lr: Learning rate, a number or a schedule over optimiser steps; read before every step.
        max_grad_norm: Global gradient norm above which gradients are scaled down; None: never.

    Attributes:
        mode: 'collect', 'update' or 'test': why the running call was made. 'test' between calls.
        updates: Minibatches learned from: optimiser steps, where there is one loss.
        updates_before: How many there were when the training request began.
        losses: Name → `Loss`, to be set in the constructor, for several losses with an optimiser each. None: there is one,
            `loss`, which moves `parameters()` with `lr` and `max_grad_norm`. {}: no optimiser; `learn` itself changes the
            parameters.
        moves: Parameters that `learn` itself changes beside `losses`, say by a line search. It works on the graph of the model
            (`torch.autograd.grad`) and writes under `torch.no_grad()`; versions, sharing and numbers that are not finite are the
            task's business, as for those of losses.
        rng: Generator for minibatches and the like; the task gives it its own.
        torch_rng: The same for torch.
        calls: What the algorithm calls of its model: name → signature, and what it returns. A model without it is refused when
            the task is built. fitting_models: Which have it, for that message.
        takes: Which spaces it learns with; None: it does not say, or is no algorithm of a task that learns alone.
        one_reward: Whether each row has one number as its reward; where an environment gives several, the robot is refused.
        takes_priorities: Whether its rows may come from a `PrioritizedReplayBuffer`: they count by their `weight`, and `learn`
            returns their `priority`. If not, the robot is refused.
        takes_rewards: Whether `rewards` of other tasks may be added to those of its rows. If not, because it learns from other
            numbers than these, the robot is refused.
        improves: Whether its agents come to earn more by what it learns from their own steps; not where they act by a policy that
            is given, or where it clones actions.
        pays_in_order: Whether the `reward` that it predicts is one for rows in the order in which they were stored, each once.
        own_settings: Names of attributes that a user's class has for itself, though a constructor of ours has such an argument:
            they are assigned as ever.
        transient: Names of attributes that a checkpoint leaves out: caches, and what belongs to this process.
        remembers: Names of attributes with rows that it keeps for its agents between their requests (`RowSlots`). A checkpoint
            leaves them out, for episodes begin anew there; copies that predict in its place have them in common.
        always_test: Names of `networks` that are in test mode in updates, too: copies that follow another network.
        adam_eps: ε of Adam, where no loss brings another optimiser.
        acts_with: Names of the `networks`, and of attributes that are parameters, that `predict` uses, if not of all: only these
            are sent to what predicts elsewhere (replicas, copies that act while this one learns). Attributes of other kinds stay
            there as they were built: what learning changes and `predict` reads is a parameter, or a buffer of a network.
    """

    window = Window()
    own_settings: tuple[str, ...] = ()
    transient: tuple[str, ...] = ()
    remembers: tuple[str, ...] = ()
    one_reward = False
    takes_priorities = True
    takes_rewards = True
    improves = True
    pays_in_order = False
    always_test: tuple[str, ...] = ("target",)
    adam_eps = 1e-8
    acts_with: tuple[str, ...] = ()
    calls: Mapping[str, str] = {}
    fitting_models = ""
    takes: Takes | None = None
    losses: Mapping[str, Loss] | None = None
    moves: Sequence[torch.nn.Parameter] = ()
    _guarded: frozenset[str] = frozenset()  # settings, once the task is built

    def __setattr__(self, name: str, value: object) -> None:
        if name in self._guarded:
            check(self, name, value)
        object.__setattr__(self, name, value)

    def __init__(self, model: Model | Callable[[], Model], *, lr: float | Schedule = 1e-3, max_grad_norm: float | None = None):
        if not isinstance(model, torch.nn.Module) and not callable(model):
            raise TypeError(f"{type(self).__name__}: model is {model!r:.60}; expected a Model, or a function that makes one: "
                            f"{type(self).__name__}(MyModel(env.observation_space, env.action_space))")
        self.model: Any = model if isinstance(model, torch.nn.Module) else model()
        check_rates(type(self).__name__, lr, max_grad_norm)
        self.lr = lr
        self.max_grad_norm = max_grad_norm
        self.mode = "test"
        self.updates = self.updates_before = 0
        self.rng = np.random.default_rng(0)
        self.torch_rng = torch.Generator()
        self._attributes: Attributes | None = None  # what it was when its task was built
        self._asks: Callable[[str, Mapping[str, object]], Batch] | None = None

    def predict(self, inputs: Batch) -> Mapping[str, object]:
        """Forward pass for a batch of requests; runs under `torch.inference_mode`.

        Args:
            inputs: `obs` (tensor [N, ...] or a nested Batch of them) and, for a recurrent model, `state`.

        Returns:
            Tensors with N rows: what the explorer reads (`q`, `logits`, or `mean` and `log_std`) or `act` itself, and
            `state` (a mapping) for a recurrent model. Anything else goes back to the agent's helper as it is.

        Raises:
            TypeError: the class does not define it, or (ContractError) the model lacks what it calls.
        """
        raise TypeError(f"{type(self).__name__} has no predict(inputs): write it to act or compute with this algorithm")

    def check_model(self, inputs: Batch) -> None:
        """Calls the model on two rows of `inputs`, in eval mode; raises `ContractError` where an answer has the wrong shape."""

    def process(self, batch: Batch) -> Batch:
        """Whole learning batch → what `learn` reads. Runs without gradients; targets and advantages are made here."""
        return batch

    def minibatches(self, batch: Batch) -> Iterable[Batch]:
        """The batches of the optimiser steps, in order. Default: the whole batch, once."""
        yield batch

    def learn(self, batch: Batch) -> Mapping[str, object] | Generator[Mapping[str, object], None, Mapping[str, object] | None]:
        """The loss of one update.

        Returns:
            `loss`: scalar tensor with a gradient; or a tuple of such, whose sum is meant, and which depend on no parameter in
            common: where updates are given beside the agents (async), their backward passes go on at the same time. Other
            scalars are reported as metrics; an array with one entry per row is sent back to the helpers that sent the rows
            (priorities, say).

        With `losses` it may be a generator, which yields the losses by name in the order of their steps: each step is taken at
        its `yield`, so what is computed after it sees the new parameters. Losses of one mapping are stepped together::

            def learn(self, batch):
                yield {"critic": F.mse_loss(self.critic(batch.obs, batch.act), batch.target)}
                if self.due("actor"):
                    yield {"actor": -self.critic(batch.obs, self.model(batch.obs)).mean()}

        Raises:
            TypeError: the class does not define it.
        """
        raise TypeError(f"{type(self).__name__} has no learn(batch): write it, or give the task a helper that never learns")

    def native_learn(self, batch: Batch) -> Any:
        """`learn` with gradients that are written out, for networks that compiled loops compute (`parl_like.learning.native`):
        the same, with a `WrittenLoss` for each loss. None: these settings, or this model, are for `learn`.

        It is for one class exactly, and marked as the twin of its `learn` (`twin_of`).
        """
        return None

    def due(self, loss: str) -> bool:
        """Return whether this update is one of those in which that loss is stepped: every `every`-th.

        Raises:
            ValueError: `losses` has no such loss.
        """
        losses = self.losses or {}
        if loss not in losses:
            raise ValueError(f"{type(self).__name__}: due({loss!r}): {unknown('loss', loss, losses)}")
        return (self.updates + 1) % setting(self, losses[loss].every) == 0  # type: ignore[no-any-return]

    def fixed_settings(self) -> dict[str, str]:
        """Settings that cannot be assigned once the task is built → why, and the way out. Constructor arguments that the
        algorithm does not keep under their name need not be here."""
        return {
            "model": "its optimiser and the agents' helpers hold this one; change its parameters in place "
                     "(model.load_state_dict, model.sync_from)",
            "window": "the helpers' buffers were laid out for it; set it in the constructor",
            "losses": "the optimisers were made of them; let a Loss name an attribute (lr='critic_lr') and assign that",
            "moves": "whoever shares parameters knows of these; set it in the constructor",
            "adam_eps": "it is the optimiser's; assign `eps` of its groups: task.optimizer.param_groups",
        }

    def post_process(self, batch: Batch) -> None:
        """After the optimiser steps of one training request: target networks and the like. `updates` has been counted."""

    def update_target(self, target: Any, *, tau: float | None = None, period: int = 1) -> None:
        """Let a copy of `model` follow it; to be called in `post_process`.

            target ← (1 − tau) · target + tau · model,    once for every `period` optimiser steps

        A training request may have taken several steps, or none: the copy follows as often as a period ended in it.

        Args:
            target: The copy, with `sync_from`. Where it is `model` itself, nothing happens.
            tau: In [0, 1]; None: 1, a whole copy.
            period: 0: never.
        """
        if target is self.model or not period:
            return
        if times := self.updates // period - self.updates_before // period:
            target.sync_from(self.model, decay=0.0 if tau is None else (1.0 - tau) ** times)

    def ask(self, task: str, **inputs: object) -> Batch:
        """Return what another task predicts with its newest parameters, for `process` and `learn`: `self.ask("RND",
        obs=batch.obs)`.

        So a reward that a discriminator or a curiosity model gives is that of today, and not of when the row was stored. The
        task that learns declares whom it asks: `ComputationTask(..., asks=["RND"])`.

        Args:
            task: Its name in the robot.
            inputs: What its model's `inputs()` name (`obs`, `state`), tensors or nested mappings of them, [N, …].

        Returns:
            Its outputs, [N, …], where this algorithm's own rows are. No gradient goes through.

        Raises:
            ValueError: it is not declared, or nothing is learned at this moment: rows to act on go through a helper.
            SpecError: the inputs are not those of its model.
        """
        if self._asks is None or self.mode != "update":
            raise ValueError(f"{type(self).__name__}: ask({task!r}) is for process and learn of a task in a robot, which "
                             f"declares it: ComputationTask(..., asks=[{task!r}])")
        return self._asks(task, inputs)

    def connect_asked(self, ask: Callable[[str, Mapping[str, object]], Batch]) -> None:
        """Let `ask` go through this function of a task's name and its inputs; the task calls it."""
        self._asks = ask

    def follow(self, env_steps: int) -> None:
        """Note, before each update, how many steps the robot's environments have made, for schedules that go by them."""

    def row_learner(self) -> RowLearner | None:
        """For `OnlineHelper`: a compiled twin of this algorithm for single rows of numbers, made anew. None: there is none, and
        `predict` and `learn` are called.

        It has `act(obs, noise)`, what `EpsilonGreedy` makes of `predict`; `learn(obs, act, rew, obs_next, terminated,
        next_act)` (−1: none is asked for, or there is none), which counts `updates` and returns one number, whose name is its
        `reports`. It is for one class exactly: a subclass may have
        written `learn` anew.
        """
        return None

    def explorer(self) -> Explorer | None:
        """The default explorer of helpers that do not bring their own. None: `predict` returns `act` or no action at all."""
        return None

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The parameters that the one loss moves, where there are no `losses`."""
        return iter(self.model.parameters())

    def optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The optimiser of the one loss, over `parameters`; its learning rate is set from `lr` before every step."""
        return FusedAdam(parameters, lr=value_of(self.lr, 0), eps=self.adam_eps)

    def networks(self) -> dict[str, torch.nn.Module]:
        """Everything that has state to save and a device to live on, by name: the model and, say, its target copy."""
        return {"model": self.model}

    def watch(self, owner: Callable[[], str]) -> None:
        """From now on `state_dict` gives what has changed, and settings that nothing reads any more cannot be assigned; called
        when the task is built, before anything is learned.

        Raises:
            TypeError: an attribute cannot be saved, and this class has no `state_dict` of its own.
        """
        if isinstance(self.moves, Iterator):  # as `parameters()` gives them
            self.moves = list(self.moves)
        self._attributes = Attributes(self, owner, strict=type(self).state_dict is Algorithm.state_dict)
        self._guarded = guarded(self)

    def state_dict(self) -> State:
        """Return what a checkpoint holds of this algorithm beside `networks()`, `updates` and the two generators.

        By default every attribute that has changed since the task was built: numbers, text, arrays, tensors and parameters,
        generators, optimisers, objects of plain Python or with a `state_dict`, and collections of these; but for those that
        `transient` names.
        """
        return {} if self._attributes is None else self._attributes.changed(self)

    def load_state_dict(self, state: State) -> None:
        """Restores `state_dict()`; attributes that are not in it become what they were when the task was built.

        Raises:
            ValueError: something does not fit; nothing has been changed.
        """
        if self._attributes is not None:
            self._attributes.load(self, state)

    def clone(self, copy: bool = True) -> Algorithm:
        """A second algorithm with parameters of its own, equal in value (`copy=True`) or newly initialised.

        What is one object inside this algorithm is one in the clone. Newly initialised, a network `target` (`target_x`) is again
        a copy of `model` (`x`).
        """
        other = copying.copy(self)
        other._attributes = other._asks = None
        other._guarded = frozenset()
        memo: dict[int, Any] = {id(self): other}
        for value in vars(self).values():
            if isinstance(value, torch.Generator):  # deepcopy knows no generators
                memo[id(value)] = torch.Generator(device=value.device)
                memo[id(value)].set_state(value.get_state())
        other.__dict__.update(copying.deepcopy(vars(other), memo))
        if copy:
            return other
        networks = other.networks()
        targets = [name for name in networks if name.startswith("target")]
        followed = {name: name.removeprefix("target").removeprefix("_") or "model" for name in targets}
        for network in {id(n): n for name, n in networks.items() if followed.get(name) not in networks}.values():
            reinitialise(network)
        for name, source in followed.items():
            if source in networks and networks[name] is not networks[source]:
                sync(networks[name], networks[source])
        return other

    def acting_copy(self) -> Algorithm:
        """A clone that predicts in place of this one: what they remember of agents is one thing."""
        other = self.clone()
        other.__dict__.update({name: getattr(self, name) for name in self.remembers})
        return other
