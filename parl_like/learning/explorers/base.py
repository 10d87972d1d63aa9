"""The base of all explorers; Noise: what an explorer draws for one agent, and how that is saved."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium as gym
import numpy as np

from parl_like.data.rng import rng_state, set_rng_state
from parl_like.learning.action_spaces import nvec_of
from parl_like.learning.schedule import value_of
from parl_like.values import plain
from parl_like.values.plain import State
from parl_like.values.ranges import setting_of
from parl_like.values.spec import Array, Spec
from parl_like.values.user_calls import Guarded

if TYPE_CHECKING:
    import torch

Rows = TypeVar("Rows", Array, "torch.Tensor")

GREEDY = -1.0
"""Noise of a row that takes the best action, for explorers whose noise is a number in [0, 1)."""

NOISE_BLOCK = 64
"""Rows of noise drawn at a time."""


class Explorer(Guarded):
    """Base class; also the explorer of a task whose `predict` returns `act` itself.

    Attributes:
        noise: Spec of the noise of one row, or None.
        reads: Output of `predict` that has one number per action of a Discrete space; None: there is none.
        needs: Further outputs of `predict` that `act` cannot do without.
        given: Name under which the algorithm's `predict` gets the noise as one more input; None: it does not see it.
        settings: Names of the attributes that `act` depends on.
        kept: Spec of what is remembered of an episode; None: nothing.
        memory: [lanes, *shape], in a helper with `kept`: that of the episode in each of its lanes, which `draw` may change. It is
            saved with the helper, and carried over a checkpoint with its episode.
    """

    noise: Spec | None = None
    reads: str | None = None
    needs: tuple[str, ...] = ()
    given: str | None = None
    settings: tuple[str, ...] = ()
    kept: Spec | None = None
    memory: Array
    _drawn: Noise | None = None  # of the helper that it belongs to

    def __setattr__(self, name: str, value: object) -> None:
        if self._drawn is not None and name != "memory":
            if why := self.refuses(name, value) or ("" if name in vars(self) else _built_of(type(self)).get(name, "")):
                raise AttributeError(f"{type(self).__name__}.{name} cannot be assigned once its helper has joined the task, "
                                     f"{why}; build the helpers with explorer=")
            if (known := setting_of(type(self), name)) is not None:
                known.check(type(self).__name__, value)
            self._drawn.forget()
        object.__setattr__(self, name, value)

    def rates_now(self) -> dict[str, float]:
        """The numbers by which its helper's next act explores, by name: `epsilon`, `std` and `temperature`, as far as it has
        them."""
        step = 1 if self._drawn is None else self._drawn.acts() + 1
        found = {name: getattr(self, name, None) for name in ("epsilon", "std", "temperature")}
        return {name: float(value_of(one, step)) for name, one in found.items()
                if callable(one) or isinstance(one, (int, float))}

    def refuses(self, name: str, value: object) -> str:
        """Return why an attribute cannot be assigned once the helper has joined its task; empty: it can."""
        return "whose agents explore in one batch" if name in self.settings else ""

    def begin(self, rng: np.random.Generator, n: int) -> Array:
        """The `memory` [n, *shape] with which n episodes begin; asked of explorers with `kept`."""
        assert self.kept is not None
        return self.kept.zeros(n)

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        """Noise [n, *shape] of the next `n` rows of one helper, whose acting steps are `step` … `step` + n − 1. With `kept` they
        are a row of each lane, in the order of `memory`.

        Raises:
            TypeError: the class has a noise spec, and does not define it.
        """
        raise TypeError(f"{type(self).__name__} has a noise spec but no draw()")

    def greedy(self) -> float | Array:
        """Return the noise of one row that takes the best action: a number, or an array of the shape of `noise`."""
        return np.full(self.noise.shape, GREEDY) if self.noise and self.noise.shape else GREEDY

    def act(self, out: Mapping[str, Array], noise: Any) -> dict[str, Array]:
        """Predictions and noise with N rows each → {'act': [N, ...], maybe 'log_prob': [N]}. Without a noise spec it is None."""
        return {}

    def act_one(self, out: Mapping[str, object], noise: Any) -> Any:
        """The action of one row, whose prediction and noise have no axis of rows: what `act` gives for a batch of it alone."""
        rows = {name: np.asarray(value)[None] for name, value in out.items()}
        act = {**rows, **self.act(rows, None if noise is None else np.asarray(noise)[None])}["act"][0]
        return act if act.ndim else act.item()

    def kind(self) -> tuple[object, ...]:
        """Two explorers with equal kinds may serve one batch."""
        return (type(self), *(getattr(self, name) for name in self.settings))


def _built_of(kind: type) -> Mapping[str, str]:
    """Return the constructor's arguments, which say nothing where they were not kept."""
    return dict.fromkeys(inspect.signature(kind).parameters, "for it went into what was built, and is read no more")


def read(out: Mapping[str, Array], name: str, explorer: Explorer) -> Array:
    """Return an output of the prediction, [N, …]. Raises ValueError where it has none of this name."""
    if name not in out:
        raise ValueError(lacks(explorer, name, out))
    return out[name]


def lacks(explorer: Explorer, name: str, out: Iterable[str]) -> str:
    """Return what is said where the outputs `out` lack one that the explorer reads."""
    return (f"{type(explorer).__name__} reads {name!r} of the prediction, which has {', '.join(out) or 'nothing'}; return it "
            "from the algorithm's predict, or give the helper another explorer")


def n_logits(act: gym.Space[object]) -> int:
    """Logits of a discrete action space: A, or the sum over the parts of a joint action. 0 for a continuous one."""
    return sum(nvec_of(act))


def legal(mask: Rows, nvec: Sequence[int] | None = None) -> Rows:
    """Which actions count as legal, a new bool array or tensor of the mask's shape: the one rule wherever masks are used.

    A row that allows nothing allows everything: a time limit may fall on a state without an action, which is still to be valued.

    Args:
        mask: [..., A], an array or a tensor, of any numbers; 0 is illegal.
        nvec: Alternatives of each of several choices, which stand side by side in the mask; the rule is each choice's own.
    """
    allowed: Any = mask != 0  # arrays and tensors share what is called here
    out: Rows = allowed
    begin = 0
    for n in nvec or (allowed.shape[-1],):
        choice = allowed[..., begin : begin + n]
        choice |= ~choice.any(-1, keepdims=True)
        begin += n
    return out


KINDS = ("logits", "mask", "mean", "log_std", "alpha", "beta")
"""The parts of a prediction that explorers and heads read; of a structured action `logits.arm.grip`, … for each of its arrays."""


def part_of(out: Mapping[str, object], name: str) -> dict[str, Any]:
    """Return what a prediction for a structured action says of the array `name` (`arm.grip`), as that of an action of its own."""
    return {kind: out[f"{kind}.{name}"] for kind in KINDS if f"{kind}.{name}" in out}


class StructuredExplorer(Explorer):
    """The arrays of a Dict or Tuple, each by an explorer of its own with noise of its own; log-probabilities are summed.

    Args:
        parts: Name of the array without `act`, such as `arm.grip` → its explorer: one with noise and a `log_prob`.
        log_prob: Whether rows get the log-probability of the whole action, [N] float.

    Raises:
        ValueError: the explorer of a part remembers its episode.
    """

    settings = ("kinds",)

    def __init__(self, parts: Mapping[str, Explorer], log_prob: bool = False) -> None:
        self.parts = dict(parts)
        for name, part in self.parts.items():
            if part.kept is not None:
                raise ValueError(f"StructuredExplorer: {type(part).__name__} of {name!r} remembers its episode, which parts of "
                                 "an action cannot; give that part another one")
        self.log_prob = log_prob
        shapes = [part.noise.shape for part in self.parts.values() if part.noise is not None]
        self.noise = Spec("noise", (sum(map(math.prod, shapes)),), np.dtype(np.float64))

    @property
    def log_prob(self) -> bool:
        return self._log_prob

    @log_prob.setter
    def log_prob(self, value: bool) -> None:
        self._log_prob = value
        for part in self.parts.values():
            part.log_prob = value

    @property
    def kinds(self) -> tuple[object, ...]:
        return tuple((name, part.kind()) for name, part in self.parts.items())

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        return np.concatenate([part.draw(rng, step, n).reshape(n, -1) for part in self.parts.values()], 1, dtype=np.float64)

    def greedy(self) -> float | Array:
        return np.concatenate([np.ravel(part.greedy()) for part in self.parts.values()], dtype=np.float64)

    def act(self, out: Mapping[str, Array], noise: Array) -> dict[str, Array]:
        made: dict[str, Array] = {}
        total, begin = np.zeros(len(noise), np.float32), 0
        for name, part in self.parts.items():
            assert part.noise is not None
            end = begin + math.prod(part.noise.shape)
            own = np.ascontiguousarray(noise[:, begin:end], part.noise.dtype).reshape(-1, *part.noise.shape)
            chosen = part.act(part_of(out, name), own)
            made[f"act.{name}"], begin = chosen["act"], end
            if self.log_prob:
                total += chosen["log_prob"]
        return {**made, "log_prob": total} if self.log_prob else made


class Noise:
    """The noise of one helper's rows, in order.

    Args:
        explorer: Draws it; its `noise` is not None. It belongs to this helper alone.
        rng: The helper's generator, of which nobody else takes numbers while a block is open.
        n_lanes: Environments of the helper.

    Attributes:
        left: Noise of the next rows, that of the next one last; when nothing is left, `draw` makes more.
        drawn: Whether it is drawn; else every row has what stands for the best action.
    """

    def __init__(self, explorer: Explorer, rng: np.random.Generator, drawn: bool, n_lanes: int) -> None:
        self.explorer, self.rng, self.drawn = explorer, rng, drawn
        self.left: list[Any] = []
        self._acted = 0
        self._before = rng_state(rng)  # the generator's state when the block was drawn
        for one in (explorer, *getattr(explorer, "parts", {}).values()):
            one._drawn = self
        if explorer.kept is not None:
            explorer.memory = explorer.begin(rng, n_lanes)

    @property
    def memory(self) -> tuple[Array, ...]:
        """Memory of the explorer for the open episodes, one array [n_lanes, …]; () if it has none.

        Raises:
            ValueError: it is given an array of another shape.
        """
        return () if self.explorer.kept is None else (self.explorer.memory,)

    @memory.setter
    def memory(self, value: Sequence[Array]) -> None:
        if (kept := self.explorer.kept) is not None and value:
            memory = np.array(value[0], kept.dtype)
            if memory.shape != self.explorer.memory.shape:
                raise ValueError(f"{type(self.explorer).__name__}: expected a memory of {self.explorer.memory.shape}, got "
                                 f"{memory.shape}")
            self.explorer.memory = memory

    def acts(self) -> int:
        """The rows for which noise was used."""
        return self._acted - len(self.left) * self.drawn

    def begin(self, lane: int) -> None:
        """An episode begins there."""
        if self.explorer.kept is not None:
            self.explorer.memory[lane] = self.explorer.begin(self.rng, 1)[0]

    def forget(self) -> None:
        """A setting of the explorer is another from now on: the rest of the block is not used."""
        self._acted = self.acts()
        self.left = []

    def rows(self, n: int) -> Array:
        """[n, …], not from a block."""
        if not self.drawn:
            return np.array([self.explorer.greedy()] * n, self.explorer.noise.dtype)  # type: ignore[union-attr]
        self._acted += n
        return self.explorer.draw(self.rng, self._acted - n, n)

    def draw(self) -> Any:
        """A new block: returns the noise of its first row, and leaves the others."""
        size = NOISE_BLOCK if self.explorer.kept is None else 1  # an episode may begin before the next row
        if self.drawn:
            self._before = rng_state(self.rng)
            block = self.explorer.draw(self.rng, self._acted, size)
            self.left = block[::-1].tolist() if block.ndim == 1 else list(block[::-1])
            self._acted += size
        else:
            self.left = [self.explorer.greedy()] * size
        return self.left.pop()

    def state_dict(self) -> State:
        """The unused part of the block, as the generator's state before it and a position; how many rows there were; and the
        explorer's memory."""
        size = NOISE_BLOCK if self.left else 0
        return {"acted": self._acted, "noise_at": NOISE_BLOCK - len(self.left), "noise_size": size, "noise_rng": self._before,
                "explorer_memory": [part.copy() for part in self.memory]}

    def load_state_dict(self, state: State) -> None:
        """Draws the block again; the caller sets the generator afterwards."""
        self.left = []
        set_rng_state(self.rng, state["noise_rng"])
        self._before = rng_state(self.rng)
        if state["noise_size"] and self.drawn:
            self._acted = plain.whole(state["acted"]) - NOISE_BLOCK
            self.draw()
            del self.left[NOISE_BLOCK - plain.whole(state["noise_at"]) :]
        self._acted = plain.whole(state["acted"])
        self.memory = tuple(map(plain.array, plain.listed(state.get("explorer_memory", ()))))
