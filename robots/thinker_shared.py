"""IMPALA over a shared world model, by Thinker's public interface (its mode 3). Every agent makes environments with trees of its
own, `thinker.make(…, ray_obj=…)`, in whatever process it is; all of them plan with, and teach, the one model of
`thinker.ray_init(…)`.

`robots.thinker` has the same two tasks in one robot, and resumes exactly. Here the model's replays are its clients'; checkpoints
hold its networks, optimiser and counters, and after a resume the replays are filled anew. Evaluations plan with the model and
teach it nothing. Where a run is only looked at, the model is in this process, and there is no Ray.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from parl_like.agents.helper import AgentHelper
from parl_like.agents.vector_agent import VectorAgent
from parl_like.drivers.ray.tasks import RayTask
from parl_like.envs.make import make_env
from parl_like.envs.thinker import make, ray_init
from parl_like.lab import foreign
from parl_like.lab.config import to_dict
from parl_like.learning.algorithm import Algorithm
from parl_like.robots import thinker
from parl_like.robots.spaces import Weight, hooks_of_config
from parl_like.robots.thinker.build import actor, check_env
from parl_like.robots.thinker.config import OPTIONS, refuse
from parl_like.robots.thinker.ray import NOBODY, SharedModel, model_here
from parl_like.run.robot import Robot
from parl_like.tasks.task import ComputationTask
from parl_like.values.spec import Array

INSIDE = ("latent", "model_strides", "model_sigmoid", "model_residual", "model_markov")
"""Options that `thinker.make` has not."""


class Config(thinker.Config, frozen=True, kw_only=True):
    """As `robots.thinker`; `workers.address` names the cluster. Each agent makes `env_n` environments, with replay and a rhythm
    of updates of its own: `model_warm_up_n` and `model_buffer_n` are per agent. `device` is the planner's."""

    gpu_learn: Weight = 0.5  # share of a GPU for the model, if the cluster has any

    def __post_init__(self) -> None:
        super().__post_init__()
        default = {field.name: field.default for field in msgspec.structs.fields(Config)}
        refuse((self.planning == "none", "planning 'none' has no model to share; use the robot 'thinker'"),
               *((getattr(self, name) != default[name], f"{name} is no option of thinker.make; use the robot 'thinker'")
                 for name in INSIDE))

    def options(self) -> dict[str, Any]:
        """For `thinker.ray_init`."""
        same = {key: value for key, value in to_dict(self).items() if key in OPTIONS and key != "env_n"}
        return {**same, "wrapper_type": 2 if self.planning == "perfect" else 0, "require_prob": True, "return_h": self.see_h,
                "return_x": self.see_x, "base_seed": self.seed, "min_replay_ratio": 0.0, "savedir": ""}


class ClientEnvs(VectorWrapper[Any, Any, Any, Any, Any]):
    """A client's environments; tells them what the agent's actions were drawn from."""

    def __init__(self, env: VectorEnv[Any, Any, Any], agent: VectorAgent) -> None:
        super().__init__(env)
        self.agent = agent

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        env: Any = self.env
        logits = self.agent.helpers["plan"].outputs["logits"][:, : env.env.n_actions]
        odds = np.exp(logits - logits.max(1, keepdims=True))
        return env.step(actions, odds / odds.sum(1, keepdims=True))  # type: ignore[no-any-return]


class MakerAgent(VectorAgent):
    """Acts in a client's environments; the client stores for the model, the agent for the planner."""

    def join(self, make: Any) -> None:
        super().join(lambda: ClientEnvs(make(), self))

    def remember(self, obs: Any, act: Any, rew: Any, terminated: Any, truncated: Any, info: dict[str, Any]) -> None:
        self.helpers["plan"].store(obs, act, rew, self.env.obs_next, terminated, truncated, info, self.env.valid)


def _built_already() -> Algorithm:
    raise RuntimeError("the first client builds the model")


class SharedModelTask(RayTask):
    """The shared model as the robot sees it: it saves it, counts its updates, and ends it. It is none of its clients."""

    def __init__(self, shared: SharedModel) -> None:
        super().__init__(ComputationTask(_built_already, AgentHelper, train=False), shared.actor)
        self._shared = shared

    @property
    def algorithm(self) -> Any:
        proxy = super().algorithm
        if self._actor is not None:
            self._note(self._get(self._actor.facts.remote()))
        return proxy

    def _send(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._actor.serve.remote(NOBODY, 0, method, arguments, options)

    def close(self) -> None:
        super().close()
        self._shared.close()


def build(config: Config) -> Robot:
    """The robot of a configuration.

    Raises:
        ConfigError: the environment does not exist, or does not fit. ImportError: Ray is not installed.
    """
    check_env(config)
    rule = foreign.rule()
    if rule is not None and rule.alone:
        shared = model_here(config.device, **config.options())
    else:
        shared = ray_init(config.workers.address or None, **config.options())

    def envs(options: dict[str, Any], **more: Any) -> VectorEnv[Any, Any, Any]:
        known = {**config.env_options, **options}
        which: dict[str, Any] = {"env_fn": partial(make_env, config.env, **known)} if known else {"name": config.env}
        made: VectorEnv[Any, Any, Any] = make(**which, env_n=config.env_n, ray_obj=shared, **more).vector
        return made

    try:
        first = envs({})  # builds the model
        spaces = {"obs": first.single_observation_space, "act": first.single_action_space}
        first.close()
        return Robot(
            tasks={"plan": actor(config, spaces), "model": SharedModelTask(shared)}, agent=partial(MakerAgent, config.env_n),
            env=lambda: envs({}), eval_env=lambda: envs(config.eval_options, train_model=False), n_agents=config.n_agents,
            driver=config.robot_driver(), mode=config.robot_mode(), seed=config.seed, trace=config.trace,
            eval_explore=config.eval_explore, hooks=hooks_of_config(config.hooks))
    except BaseException:
        shared.close()
        raise
