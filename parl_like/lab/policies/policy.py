"""Policy: what a trained run has learned, or an algorithm does, as a function from observations to actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import gymnasium as gym
import numpy as np

from parl_like.lab.policies import policy_files
from parl_like.lab.policies.computing import PolicyParts, parts_of_algorithm
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.explorers import Explorer, Noise
from parl_like.values.action_codec import ActionCodec
from parl_like.values.batch import Batch
from parl_like.values.copying import copied
from parl_like.values.spec import PAIR, Array, SpecError, as_space, is_pair, leaf_spaces, leaves, specs_of


class Policy:
    """A function from an observation, or from n stacked ones, to the action of the environment: an exported policy, or an
    algorithm without a robot.

        policy = Policy.load("exported/ppo-cartpole")     # written by `parl-like export RUN`
        policy = Policy(algorithm)                        # acts by what the algorithm has learned so far
        act = policy(obs)
        policy(batch).act                                 # of rows: reads `obs`, gives `act` and `policy`, what was predicted
        policy.reset()                                    # where an episode begins, if it remembers

    Args:
        algorithm: An `Algorithm`, or a function that makes one (`create_algorithm_func`), whose weights are drawn by `seed`. Or
            what the files of an exported policy say; what a helper does with observations (transforms) is in these alone.
        drawn: Draw actions as training does, in place of the best ones.
        seed: Of what is drawn.
        explorer: Makes actions of predictions, in place of the algorithm's own one.

    Raises:
        TypeError: `algorithm` is none. ValueError: it predicts no action; or actions shall be drawn, and a graph does not give
            that of which they are.

    Attributes:
        description: Its manifest: names, shapes, dtypes and ranges of what goes in and out.
        observation_space, action_space: As the environment of its run had them; of an algorithm those of its model.
        remembers: Whether it looks back at earlier observations of the episode, so that `reset` must be called where one begins.
    """

    def __init__(self, algorithm: Algorithm | Callable[[], Algorithm] | PolicyParts, *, drawn: bool = False, seed: int = 0,
                 explorer: Explorer | None = None) -> None:
        parts = algorithm if isinstance(algorithm, PolicyParts) else parts_of_algorithm(algorithm, explorer, seed)
        description, obs, act, explorer, computation = parts
        if drawn and computation.makes_actions and (explorer is None or explorer.noise is None or explorer.given is not None):
            raise ValueError("policy: drawn=True: this graph gives the best actions alone, for its network itself explores, or "
                             "must be told what was drawn; export it with --to safetensors, or load it with drawn=False")
        if drawn and not description.drawn:  # evaluations that draw have a network that does not explore
            computation.explore()
        self.description, self.observation_space, self.action_space = description, obs, act
        self.explorer, self.drawn = explorer, drawn
        self._computation, self._codec, self._specs = computation, ActionCodec(act), specs_of(obs, "obs")
        self._kinds = dict(leaf_spaces(act, "act"))
        kept = explorer is not None and explorer.kept is not None and drawn
        self.remembers = computation.remembers or kept
        self._rng = np.random.default_rng(seed)
        self._rows = 0
        self._noise: Noise | None = None

    @classmethod
    def load(cls, path: str | Path, *, drawn: bool | None = None, seed: int = 0) -> Self:
        """Read what `parl-like export` has written, of either kind. Nothing in it is run or imported.

        Args:
            path: The directory.
            drawn: Draw actions as training does, in place of the best ones, also where the network itself explores (noise in
                weights is that of the run's last update); None: as evaluations of its run do.
            seed: Of what is drawn.

        Raises:
            ArchiveError: there is no such directory, or it is not exactly what was written; the message says what is wrong.
            UsageError: a graph needs onnxruntime, of the extra `export`. ValueError: `drawn`, and the graph cannot.
        """
        found = policy_files.read(Path(path))
        return cls(found, drawn=found.description.drawn if drawn is None else drawn, seed=seed)

    def __repr__(self) -> str:
        one = self.description
        step = f", step {one.step}" if one.step else ""
        return f"Policy({one.experiment or one.task!r}{step}: {self.observation_space} -> {self.action_space})"

    def reset(self, rows: Array | None = None) -> None:
        """Let episodes begin with the next observations: everywhere, with any number of rows; or in these rows.

        Args:
            rows: [n] bool, such as `terminated | truncated` of a vector environment, or numbers of rows.

        Raises:
            ValueError: there is not one for each observation, or a number is of no row.
        """
        if rows is None or not self._rows:
            self._rows = 0
            return
        chosen = np.asarray(rows)
        if chosen.dtype == bool and chosen.shape != (self._rows,):
            raise ValueError(f"reset: rows has the shape {chosen.shape}; expected ({self._rows},), one for each observation")
        numbers = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.ravel()
        if numbers.size and (numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() >= self._rows):
            raise ValueError(f"reset: rows is {numbers[:8].tolist()} of {numbers.dtype}; expected bool, one for each observation"
                             f", or numbers of rows below {self._rows}")
        for row in numbers:
            self._computation.restart(int(row))
            if self._noise is not None:
                self._noise.begin(int(row))

    def earned(self, rew: float | Array) -> None:
        """Tell it the reward of its newest action, or [n] of them: for one that goes by what it has collected so far
        (`description.earns`); others do not mind."""
        if self.description.earns and self._rows:
            self._computation.earn(self.description.earns, np.broadcast_to(np.asarray(rew, np.float32), (self._rows,)))

    def __call__(self, obs: Any) -> Any:
        """Return the action for an observation as the environment gives it, or n stacked actions for n stacked ones.

        A `Batch` with the field `obs` is rows: then a `Batch` comes back, of `act`, as the environment takes it, by the flat
        names of its parts where it is nested, and `policy`, the outputs of the prediction.

        Raises:
            SpecError: the observation does not fit. ValueError: a policy that remembers gets another number of rows than before.
        """
        rows = isinstance(obs, Batch) and "obs" in obs and "obs.obs" not in self._specs
        acts, out = self._act(*self._converted(obs["obs"] if rows else obs))
        if not rows:
            return acts
        predicted = {f"policy.{name}": value for name, value in out.items() if name.partition(".")[0] != "act"}
        return Batch.nest({**dict(leaves(acts, "act")), **predicted})

    def _converted(self, obs: Any) -> tuple[dict[str, Array], int, bool]:
        """Return flat observations [n, …], their number, and whether it is one that came without the axis of rows."""
        given = dict(leaves(obs, "obs"))
        if given.keys() != self._specs.keys():
            got = f"the pair (observation, info); {PAIR}" if is_pair(obs) else ", ".join(given) or "nothing"
            raise SpecError(f"policy, field 'obs': expected {', '.join(self._specs)}, got {got}")
        one = all(np.ndim(given[key]) == len(spec.shape) for key, spec in self._specs.items())
        rows = {key: spec.convert(given[key])[None] if one else spec.convert(given[key], rows=True)
                for key, spec in self._specs.items()}
        numbers = {len(value) for value in rows.values()}
        if len(numbers) > 1:
            raise SpecError(f"policy, field 'obs': expected as many rows of each part, got {sorted(numbers)}")
        if numbers == {0}:
            raise SpecError("policy, field 'obs': expected at least one row, got none")
        for key, spec in self._specs.items():
            spec.check_bounds(rows[key])
        return rows, numbers.pop(), one

    def _act(self, rows: dict[str, Array], n: int, one: bool) -> tuple[Any, dict[str, Array]]:
        """Return the actions, and the outputs of the prediction; of `one` without the axis of rows."""
        if n != self._rows:
            self._begin(n)
        explorer, given = self.explorer, dict[str, Array]()
        best = self._computation.makes_actions and not self.drawn
        noise = None if self._noise is None or best else self._noise.rows(n)
        if explorer is not None and explorer.given is not None and noise is not None:
            given = {explorer.given: noise}
        out = self._computation.outputs(rows, given)
        predicted = {name: value[0, ...] for name, value in out.items()} if one else dict(out)
        if best:
            return self._nested(out, one), predicted
        if explorer is not None:
            out |= explorer.act(out, noise)
        if one:
            acts: Any = self._codec.listed(out)
            return acts[0], predicted
        return copied(self._codec.to_env(out)), predicted

    def _begin(self, n: int) -> None:
        if self._rows and self.remembers:
            raise ValueError(f"policy: got {n} observations, and before {self._rows}; it remembers what it has seen, so call "
                             "reset() where episodes begin")
        self._rows = n
        self._computation.begin(n)
        if self.explorer is not None and self.explorer.noise is not None:
            self._noise = Noise(self.explorer, self._rng, self.drawn, n)

    def _nested(self, acts: Mapping[str, Array], one: bool) -> Any:
        """Actions that a graph made, as `ActionCodec` nests them."""
        def row(name: str, value: Array) -> Any:
            first = value[0, ...]
            return first.item() if not first.ndim and not isinstance(self._kinds[name], gym.spaces.Box) else first

        flat = {name: row(name, acts[name]) if one else acts[name] for name in self._codec.names}
        return as_space(self.action_space, flat, "act")


