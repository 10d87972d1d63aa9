"""A policy task and an auxiliary task on one trunk. `auxiliary=false` is the same robot without the second task.

The environment's own numbers come with more that mean nothing (`NoisyObservation`). The auxiliary task learns from the same
steps, from a buffer and at a pace of its own, to predict the next observation and the action between two, which only the real
numbers help with. For CartPole no setting was found that does without it at this budget; with more steps or less noise the gap
closes. For SAC on Pendulum it is no help (scores of both: docs/robots.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from parl_like.agents.off_policy import OffPolicyHelper
from parl_like.agents.on_policy import OnPolicyHelper
from parl_like.algorithms.auxiliary_tasks import SPR, FeatureControl, RewardPrediction, ValueReplay
from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.dynamics import DynamicsLearner
from parl_like.algorithms.ppo import PPO
from parl_like.algorithms.sac import SAC
from parl_like.lab.yaml_text import ConfigError
from parl_like.learning.factory import Shared, create_algorithm_func
from parl_like.learning.span import Span
from parl_like.models.actor_q import MLPActorQ
from parl_like.models.auxiliary_heads import CellQ, FeatureModel, RewardClasses
from parl_like.models.dynamics import Dynamics, Trunk
from parl_like.models.mlp import MLPQ, MLPActorCritic
from parl_like.robots.settings import Parts, optimiser_steps
from parl_like.robots.spaces import Env, PartsConfig, env_of, made_anew, probed, robot_with
from parl_like.run.robot import Robot
from parl_like.tasks.task import ComputationTask


class Config(PartsConfig, frozen=True, kw_only=True):
    """A policy on the trunk, and what other tasks learn on the same trunk. Everything else are arguments of what the robot is
    built of: `NoisyObservation.n`, `robot.tasks.auxiliary.OffPolicyHelper.learn_every`, ….

    Attributes:
        algorithm: Of the policy.
        auxiliary: Whether there are other tasks.
        learners: Their algorithms; tasks are `auxiliary`, `auxiliary2`, …. `ValueReplay` is for PPO.
    """

    algorithm: Literal["DQN", "SAC", "PPO"] = "DQN"
    auxiliary: bool = True
    learners: tuple[Literal["DynamicsLearner", "SPR", "RewardPrediction", "FeatureControl", "ValueReplay"], ...] = (
        "DynamicsLearner",)
    env: Env = Env(wrappers=("NoisyObservation",))


DEFAULTS = {"NoisyObservation.n": 200, "Trunk.hidden": [64]}
DECAY = {"start": 1e-3, "end": 1e-4}
POLICIES: dict[str, tuple[Any, Any, int, dict[str, Any]]] = {
    "DQN": (MLPQ, DQN, 2, {"n_step": 3, "target_period": 200, "epsilon": {"start": 1.0, "end": 0.05, "share": 0.3}, "lr": DECAY}),
    "SAC": (MLPActorQ, SAC, 1, {"lr": 1e-3}),
    "PPO": (MLPActorCritic, PPO, 1, {"lr": DECAY}),
}
"""Algorithm → model, class, `learn_every`, and its arguments for whoever says nothing."""
LEARNERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "DynamicsLearner": (Dynamics, DynamicsLearner, {"forward": 0.05, "inverse": 1.0}),
    "SPR": (FeatureModel, SPR, {}),
    "RewardPrediction": (RewardClasses, RewardPrediction, {}),
    "FeatureControl": (CellQ, FeatureControl, {}),
    "ValueReplay": (None, ValueReplay, {}),
}
"""Algorithm of an auxiliary task → its model, class, and its arguments for whoever says nothing; None: the policy's own model."""


def build(config: Config) -> Robot:
    """Return the robot of a configuration.

    Raises:
        ConfigError: `ValueReplay` is there, and the policy learns no values of states.
    """
    parts = Parts(config.parts, DEFAULTS, config.__struct_fields__, Span(config.total_steps))
    source = env_of(config.env, parts)
    spaces, agent = probed(source)
    parts.act = spaces["act"]
    steps, acts = config.total_steps, config.total_steps / config.n_agents
    trunk = Shared(Trunk, spaces["obs"], **parts.args("", Trunk))

    def network(where: str, model: type) -> tuple[Any, dict[str, Any]]:
        return model, {**spaces, "trunk": trunk, **parts.args(where, model, hidden=[64])}

    def task(where: str, model: tuple[Any, dict[str, Any]], algorithm: type, learn_every: int,
             sent: Mapping[str, Any] | None = None, **defaults: Any) -> ComputationTask:
        on_policy = algorithm is PPO
        kind: Any = OnPolicyHelper if on_policy else OffPolicyHelper

        def updates(options: Any) -> Any:
            return steps * options["updates"] // (options["learn_every"] or 1)

        if on_policy:
            helper = parts.args(where, kind, unroll=128)
            rows = config.n_agents * parts.of(where, kind)["unroll"]
            count: Any = partial(optimiser_steps, steps / rows, rows)
        else:
            helper = parts.args(where, kind, acts=acts, updates=updates, size=50_000, warmup=1_000, learn_every=learn_every,
                                **(sent or {}))
            count = updates(parts.of(where, kind))
        func = create_algorithm_func(*model, algorithm, parts.args(where, algorithm, acts=acts, updates=count, **defaults))
        return ComputationTask(func, made_anew(kind, helper), device=config.device,
                               **parts.args(where, ComputationTask, skip=("device",)))

    model, algorithm, learn_every, defaults = POLICIES[config.algorithm]
    policy = network("tasks.RL", model)
    if "ValueReplay" in config.learners:
        policy = Shared(_built, *policy), {}
    tasks = {"RL": task("tasks.RL", policy, algorithm, learn_every, **defaults)}
    for i, name in enumerate(config.learners):
        key = f"auxiliary{i + 1 if i else ''}"
        head, learner, options = LEARNERS[name]
        if head is None and config.algorithm != "PPO":
            raise ConfigError(f"Config: key 'learners': {name} needs a policy that learns values of states; expected "
                              f"algorithm=PPO, got {config.algorithm}")
        if head is None:  # values of the policy's own returns
            sent = {"transforms": parts.of("tasks.RL", OnPolicyHelper)["transforms"]}
            gamma = parts.of("tasks.RL", algorithm)["gamma"]
            tasks[key] = task(f"tasks.{key}", policy, learner, 1, sent, lr=DECAY, gamma=gamma, **options)
        else:
            tasks[key] = task(f"tasks.{key}", network(f"tasks.{key}", head), learner, 1, lr=DECAY, **options)
    if not config.auxiliary:  # settings of them may be given all the same
        tasks = {"RL": tasks["RL"]}
    return robot_with(config, source, tasks, agent, parts=parts)


def _built(model: type, args: dict[str, Any]) -> Any:
    """Return the model of these arguments, on the shared trunk."""
    return model(**{**args, "trunk": args["trunk"]()})
