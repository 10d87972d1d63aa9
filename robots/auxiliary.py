"""A policy task and an auxiliary task on one trunk. `auxiliary=false` is the same robot without the second task.

The environment's own numbers come with more that mean nothing (`NoisyObservation`). The auxiliary task learns from the same
steps, from a buffer and at a pace of its own, to predict the next observation and the action between two, which only the real
numbers help with. For CartPole no setting was found that does without it at this budget; with more steps or less noise the gap
closes. For SAC on Pendulum it is no help (scores of both: docs/robots.md).
"""

from __future__ import annotations

from typing import Any, Literal

from parl_like.agents.off_policy import OffPolicyHelper
from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.dynamics import DynamicsLearner
from parl_like.algorithms.sac import SAC
from parl_like.learning.factory import Shared, create_algorithm_func
from parl_like.learning.span import Span
from parl_like.models.actor_q import MLPActorQ
from parl_like.models.dynamics import Dynamics, Trunk
from parl_like.models.mlp import MLPQ
from parl_like.robots.settings import Parts
from parl_like.robots.spaces import Env, PartsConfig, env_of, made_anew, probed, robot_with
from parl_like.run.robot import Robot
from parl_like.tasks.task import ComputationTask


class Config(PartsConfig, frozen=True, kw_only=True):
    """A policy on the trunk, and what the environment does next on the same trunk. Everything else are arguments of what the
    robot is built of: `NoisyObservation.n`, `robot.tasks.auxiliary.OffPolicyHelper.learn_every`, ….

    Attributes:
        algorithm: Of the policy, DQN or SAC.
        auxiliary: Whether there is the second task.
    """

    algorithm: Literal["DQN", "SAC"] = "DQN"
    auxiliary: bool = True
    env: Env = Env(wrappers=("NoisyObservation",))


DEFAULTS = {"NoisyObservation.n": 200, "Trunk.hidden": [64]}
DECAY = {"start": 1e-3, "end": 1e-4}
POLICIES: dict[str, tuple[Any, Any, int, dict[str, Any]]] = {
    "DQN": (MLPQ, DQN, 2, {"n_step": 3, "target_period": 200, "epsilon": {"start": 1.0, "end": 0.05, "share": 0.3}, "lr": DECAY}),
    "SAC": (MLPActorQ, SAC, 1, {"lr": 1e-3}),
}
"""Algorithm → model, class, `learn_every`, and its arguments for whoever says nothing."""


def build(config: Config) -> Robot:
    parts = Parts(config.parts, DEFAULTS, config.__struct_fields__, Span(config.total_steps))
    source = env_of(config.env, parts)
    spaces, agent = probed(source)
    parts.act = spaces["act"]
    steps = config.total_steps

    def task(where: str, model: type, algorithm: type, learn_every: int, **defaults: Any) -> ComputationTask:
        def updates(options: Any) -> Any:
            return steps * options["updates"] // (options["learn_every"] or 1)

        acts = steps / config.n_agents
        helper = parts.args(where, OffPolicyHelper, acts=acts, updates=updates, size=50_000, warmup=1_000,
                            learn_every=learn_every)
        count = updates(parts.of(where, OffPolicyHelper))
        func = create_algorithm_func(model, {**spaces, "trunk": trunk, **parts.args(where, model, hidden=[64])},
                                     algorithm, parts.args(where, algorithm, acts=acts, updates=count, **defaults))
        return ComputationTask(func, made_anew(OffPolicyHelper, helper), device=config.device,
                               **parts.args(where, ComputationTask, skip=("device",)))

    trunk = Shared(Trunk, spaces["obs"], **parts.args("", Trunk))
    model, algorithm, learn_every, defaults = POLICIES[config.algorithm]
    tasks = {"RL": task("tasks.RL", model, algorithm, learn_every, **defaults),
             "auxiliary": task("tasks.auxiliary", Dynamics, DynamicsLearner, 1, forward=0.05, inverse=1.0, lr=DECAY)}
    if not config.auxiliary:  # settings of it may be given all the same
        del tasks["auxiliary"]
    return robot_with(config, source, tasks, agent, parts=parts)
