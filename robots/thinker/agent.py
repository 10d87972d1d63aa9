"""The agent that plans: it steps n environments in their augmented MDP, and stores what each of the two tasks learns from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from parl_like.agents.vector_agent import VectorAgent
from parl_like.environment.vector_face import VectorFace
from parl_like.envs.thinker.augmented import AugmentedEnv
from parl_like.envs.thinker.snapshots import snapshots_of
from parl_like.values.spec import Array


class _PlanningFace(VectorFace):
    """A carried episode goes on with a new stage; see `AugmentedEnv.clone_state`."""

    def _again(self, obs: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        out: tuple[Any, dict[str, Any]] = self.plant()
        return out


class ThinkerAgent(VectorAgent):
    """Plans in n environments at once: each step of the helper `plan` is an augmented one, whose model calls go through the
    helper `model`.

    Real steps are stored for the model, all augmented ones for the planner; only real ones are counted.

    Args:
        n_envs: Environments that are made where the robot's are single ones.
        perfect: Transitions of the tree come from the environments; the model says what they are worth.
        planning: Arguments of `AugmentedEnv`.
    """

    def __init__(self, n_envs: int = 16, *, perfect: bool = False, planning: Mapping[str, Any] | None = None) -> None:
        super().__init__(n_envs)
        self.perfect, self.planning = perfect, dict(planning or {})

    def join(self, make: Callable[[], Any]) -> None:
        first = [make()]
        made = first[0] if isinstance(first[0], VectorEnv) else self._copies(first, make)
        if getattr(made, "copy", True) is False:
            raise ValueError(f"{self}: the environments overwrite their observations, which are remembered until a stage is "
                             f"over; make them with copy=True")
        self.n_envs = int(made.num_envs)
        perfect = partial(snapshots_of, made, make=make) if self.perfect else None
        self.augmented = AugmentedEnv(made, self._ask, perfect=perfect, **self.planning)
        self.env = _PlanningFace(self.augmented, self)
        answers = self.augmented.answers
        answers.nodes = self.claim("model", answers.n_nodes)

    def _ask(self, rows: dict[str, Array]) -> Mapping[str, Array]:
        return self.helpers["model"].ask(rows)

    def remember(self, obs: Any, act: Any, rew: Any, terminated: Any, truncated: Any, info: dict[str, Any]) -> None:
        plan = self.helpers["plan"]
        self.remember_real(obs, act, rew, terminated, truncated=truncated, info=info,
                           logits=plan.outputs["logits"][:, : self.augmented.n_actions])
        plan.store(obs, act, rew, self.env.obs_next, terminated, truncated, info, self.env.valid)

    def remember_real(
        self, obs: Any, act: Any, rew: Any, terminated: Any, *, truncated: Any, info: dict[str, Any], logits: Array,
    ) -> None:
        """Stores the real steps among the last ones for the world model; `logits` [n, A] are what the primary actions were drawn
        from."""
        env, model = self.env, self.helpers["model"]
        real = env.valid & ~info["imagined"]
        if real.any() and model.mode != "test":  # an evaluation leaves no trace, also not in the learning rate
            odds = np.exp(logits - logits.max(1, keepdims=True))
            extra = {"baseline": info["baseline"], "action_prob": odds / odds.sum(1, keepdims=True)}
            model.store(obs["real_states"], model.context.codec.to_env({"act": act[:, 0]}), rew, env.obs_next["real_states"],
                        terminated, truncated, info, real, extra)
