"""A robot with one task that learns by any algorithm: environment, network, helper, and what these are built of, by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from parl_like import algorithms
from parl_like.agents.agent import Agent
from parl_like.agents.episodic import EpisodicHelper
from parl_like.agents.offline import OfflineHelper
from parl_like.agents.on_policy import OnPolicyHelper
from parl_like.agents.population import PopulationHelper
from parl_like.data.transforms import Transforms
from parl_like.environment.factory import EnvSource, is_made
from parl_like.environment.hooks import Hook
from parl_like.envs.prepared import whole_games
from parl_like.lab import config as configs
from parl_like.lab import recorded
from parl_like.lab.yaml_text import ConfigError, UnknownKey
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.factory import create_algorithm_func
from parl_like.learning.span import Span
from parl_like.robots.curiosity import CURIOSITY, check_can_be_curious, curiosity_task, rewarded
from parl_like.robots.settings import Parts, named, optimiser_steps
from parl_like.robots.spaces import (
    GIVEN,
    Env,
    EvalEnv,
    PartsConfig,
    check_eval_env,
    env_of,
    has_image,
    made_anew,
    probed,
    robot_with,
)
from parl_like.run.robot import Robot
from parl_like.tasks.task import ComputationTask
from parl_like.values.errors import unknown

_log = logging.getLogger(__name__)

ON_POLICY = {"models": ("MLPActorCritic", "ConvActorCritic", "RecurrentActorCritic"), "helper": "OnPolicyHelper"}
OFF_POLICY = {"models": ("MLPActorQ",), "helper": "OffPolicyHelper", "OffPolicyHelper.batch_size": 256,
              "OffPolicyHelper.learn_every": 1, "total_steps": 20_000,
              # before the first update the policy alone explores little, a deterministic one hardly
              "OffPolicyHelper.warmup": 256, "OffPolicyHelper.random_steps": 256}

RECURRENT = {**OFF_POLICY, "models": ("RecurrentActorQ",), "OffPolicyHelper.batch_size": 32, "OffPolicyHelper.learn_every": 2}

NATURAL = {**ON_POLICY, "n_agents": 8, "OnPolicyHelper.unroll": 128}
TABLE: dict[str, Any] = {"models": ("QTable",), "helper": "OnlineHelper", "n_agents": 1}
STATES = {**TABLE, "models": ("VTable",)}
MEANS = {**TABLE, "QTable.prior": 0.0}
EVOLUTION = {**ON_POLICY, "helper": "PopulationHelper", "n_agents": 32, "MLPActorCritic.hidden": [16]}

def values_of(name: str, mlp: str = "MLPQ", conv: str = "ConvQ", **more: Any) -> dict[str, Any]:
    """Return the parts of an algorithm that learns values of discrete actions; `more` are arguments of its class."""
    own = {"n_step": 3, "target_period": 200, "epsilon": {"start": 1.0, "end": 0.05, "share": 0.2}, **more}
    return {"models": (mlp, conv), "helper": "OffPolicyHelper", "n_agents": 8, "total_steps": 50_000,
            **{f"{name}.{key}": value for key, value in own.items()},
            f"{mlp}.hidden": [128, 128], "OffPolicyHelper.size": 20_000, "OffPolicyHelper.learn_every": 2,
            "OffPolicyHelper.warmup": 1_000, "PrioritizedReplayBuffer.beta": {"start": 0.4, "end": 1.0}}


DEFAULTS: dict[str, dict[str, Any]] = {
    "DQN": values_of("DQN"),
    "BasicDQN": {"models": ("MLPQ", "ConvQ"), "helper": "OffPolicyHelper", "total_steps": 10_000, "n_agents": 1,
                 "MLPQ.hidden": [128, 128], "OffPolicyHelper.size": 1_000, "OffPolicyHelper.batch_size": 32,
                 "OffPolicyHelper.learn_every": 1, "OffPolicyHelper.warmup": 100,
                 "BasicDQN.epsilon": {"start": 1.0, "end": 0.01, "decay": 500}},
    "PQN": {**ON_POLICY, "models": ("MLPQ", "ConvQ"), "n_agents": 16, "OnPolicyHelper.unroll": 32, "total_steps": 500_000,
            "MLPQ.hidden": [120, 84], "MLPQ.layer_norm": True, "PQN.epsilon": {"start": 1.0, "end": 0.05, "share": 0.5}},
    "MDQN": values_of("MDQN"),
    "C51": values_of("C51", "MLPCategoricalQ", "ConvCategoricalQ"),
    "QRDQN": {**values_of("QRDQN"), "MLPQ.heads": 25, "ConvQ.heads": 200},
    "REM": {**values_of("REM"), "MLPQ.heads": 16, "ConvQ.heads": 200},
    "IQN": {**values_of("IQN", "MLPImplicitQ", "ConvImplicitQ"), "MLPImplicitQ.hidden": [64, 64]},
    "FQF": {**values_of("FQF", "MLPFractionQ", "ConvFractionQ"), "MLPFractionQ.hidden": [64, 64], "MLPFractionQ.points": 16},
    "Rainbow": {**values_of("Rainbow", "MLPCategoricalQ", "ConvCategoricalQ", epsilon=0.0), "MLPQ.hidden": [128, 128],
                **{f"{model}.{key}": value for model in ("MLPCategoricalQ", "ConvCategoricalQ", "MLPQ", "ConvQ")
                   for key, value in (("dueling", True), ("noisy", 0.5))},
                "OffPolicyHelper.buffer": "PrioritizedReplayBuffer", "OffPolicyHelper.random_steps": 1_000},
    "BDQ": {**values_of("BDQ", "MLPBranchingQ", "MLPBranchingQ", n_step=1), "n_agents": 2, "total_steps": 30_000,
            "OffPolicyHelper.learn_every": 1},
    "VDN": values_of("VDN", "MLPTeamQ", "MLPTeamQ", n_step=1), "QMIX": values_of("QMIX", "MLPTeamMix", "MLPTeamMix", n_step=1),
    "MADDPG": {**OFF_POLICY, "models": ("MLPTeamActorQ",), "n_agents": 4, "total_steps": 200_000,
               "OffPolicyHelper.size": 200_000, "OffPolicyHelper.batch_size": 1024, "OffPolicyHelper.learn_every": 100,
               "OffPolicyHelper.warmup": 5_000, "OffPolicyHelper.random_steps": 1_250},
    "R2D2": {**values_of("R2D2", "RecurrentQ", "RecurrentQ", n_step=5), "RecurrentQ.hidden": [], "RecurrentQ.dueling": True,
             "OffPolicyHelper.buffer": "PrioritizedReplayBuffer", "PrioritizedReplayBuffer.alpha": 0.9,
             "PrioritizedReplayBuffer.beta": 0.6},
    "BootstrappedDQN": {"models": ("MLPBootstrappedQ",), "helper": "OffPolicyHelper", "n_agents": 2,
                        "OffPolicyHelper.learn_every": 2, "OffPolicyHelper.batch_size": 32, "OffPolicyHelper.warmup": 128,
                        # with single steps, or a faster target, values of short truncated tasks grow on their own errors
                        "BootstrappedDQN.n_step": 3, "BootstrappedDQN.target_period": 200},
    "PPO": {**ON_POLICY, "n_agents": 8, "OnPolicyHelper.unroll": 128, "PPO.epochs": 10, "PPO.minibatches": 16},
    "PPG": {**ON_POLICY, "n_agents": 8, "OnPolicyHelper.unroll": 128, "PPG.policy_updates": 8, "MLPActorCritic.auxiliary": True,
            "ConvActorCritic.auxiliary": True},
    "MAPPO": {**ON_POLICY, "models": ("MLPCentralActorCritic",), "n_agents": 8, "OnPolicyHelper.unroll": 128,
              "MAPPO.epochs": 10, "MAPPO.minibatches": 16},
    "A2C": {**ON_POLICY, "n_agents": 16, "OnPolicyHelper.unroll": 16, "A2C.lr": 1e-3, "A2C.entropy": 0.01,
            "A2C.normalize": False},
    "REINFORCE": {**ON_POLICY, "helper": "EpisodicHelper", "n_agents": 8, "REINFORCE.lr": 3e-3},
    "NPG": NATURAL, "TRPO": NATURAL,
    "VMPO": {**ON_POLICY, "n_agents": 8, "OnPolicyHelper.unroll": 128, "VMPO.epochs": 4},
    # an update has the unrolls of 8 agents; those of the others are then of an older policy
    "IMPALA": {**ON_POLICY, "n_agents": 16, "OnPolicyHelper.unroll": 20, "OnPolicyHelper.store_policy": True, "IMPALA.lr": 1e-3,
               "IMPALA.max_grad_norm": 0.5, "ComputationTask.training_rule": {"max_rows": 160}},
    "APPO": {**ON_POLICY, "n_agents": 16, "OnPolicyHelper.unroll": 32, "OnPolicyHelper.store_policy": True,
             "ComputationTask.training_rule": {"max_rows": 256}},
    "SAC": {**OFF_POLICY, "SAC.lr": 1e-3},
    "RSAC": {**RECURRENT, "RSAC.lr": 1e-3},
    "RTD3": {**RECURRENT, "RecurrentActorQ.policy": "deterministic", "OffPolicyHelper.warmup": 1_000,
             "OffPolicyHelper.random_steps": 1_000},
    "REDQ": {**OFF_POLICY, "MLPActorQ.critics": 10, "OffPolicyHelper.updates": 20, "total_steps": 5_000},
    "DroQ": {**OFF_POLICY, "MLPActorQ.dropout": 0.01, "MLPActorQ.layer_norm": True, "OffPolicyHelper.updates": 20,
             "total_steps": 5_000},
    "TQC": {**OFF_POLICY, "TQC.lr": 1e-3, "MLPActorQ.critics": 5, "MLPActorQ.heads": 25},
    "QRSAC": {**OFF_POLICY, "QRSAC.lr": 1e-3, "MLPActorQ.heads": 32},
    "CrossQ": {**OFF_POLICY, "models": ("MLPCrossQ",)},
    "OAC": {**OFF_POLICY, "OAC.lr": 1e-3},
    "MPO": {**OFF_POLICY, "MPO.lr": 1e-3, "MLPActorQ.critics": 1},
    "TD3": {**OFF_POLICY, "MLPActorQ.policy": "deterministic", "OffPolicyHelper.warmup": 1_000,
            "OffPolicyHelper.random_steps": 1_000},
    "DDPG": {**OFF_POLICY, "MLPActorQ.policy": "deterministic", "MLPActorQ.critics": 1},
    "DiscreteCQL": values_of("DiscreteCQL"), "DiscreteBCQ": values_of("DiscreteBCQ", "MLPImitationQ", "MLPImitationQ"),
    "DecisionTransformer": {"models": ("CausalTransformer",), "helper": "OffPolicyHelper"},
    "CQL": OFF_POLICY, "CRR": OFF_POLICY, "IQL": {**OFF_POLICY, "MLPActorQ.value": True},
    "TD3BC": {**OFF_POLICY, "MLPActorQ.policy": "deterministic"},
    "PLAS": {**OFF_POLICY, "models": ("MLPLatentActorQ",)},
    "BCQ": {**OFF_POLICY, "models": ("MLPLatentActorQ",), "MLPLatentActorQ.perturbs": True},
    "MARWIL": {**ON_POLICY, "n_agents": 8, "OnPolicyHelper.unroll": 128},
    "ES": EVOLUTION, "CEM": EVOLUTION, "ARS": {**EVOLUTION, "MLPActorCritic.hidden": []},
    **dict.fromkeys(("QLearning", "SARSA", "ExpectedSARSA", "DoubleQLearning", "SARSALambda", "QLambda", "NStepQ", "DynaQ",
                     "PrioritizedSweeping", "PSRL", "GradientBandit"), TABLE),
    **dict.fromkeys(("EpsilonGreedyBandit", "UCBBandit", "ThompsonBandit"), MEANS), "TD": STATES, "NStepTD": STATES,
    "MonteCarlo": {**MEANS, "helper": "EpisodicHelper"},
    "MonteCarloPrediction": {**STATES, "VTable.prior": 0.0, "helper": "EpisodicHelper"},
    "BC": {**ON_POLICY, "helper": "OffPolicyHelper"},
}
"""Algorithm → the networks that fit it, the first one for plain numbers and the second for images, and what is not as the classes
have it, for whoever says nothing."""


class Config(PartsConfig, frozen=True, kw_only=True):
    """Beside these keys, everything that the robot is built of: `DQN.tau`, `OffPolicyHelper.batch_size`, `MLPQ.hidden`, ….

    Attributes:
        algorithm: Its class, or `module:Class`, one of your own.
        env: Its id, or more: see `parl_like.robots.spaces.Env`. With an `OfflineHelper` nobody acts in it but evaluations.
        eval_env: What evaluations have instead, as far as it is said.
        model: Class of the network, or how the names of those that fit begin: `MLP`, `Conv`. Empty: what fits the observations.
        helper: Class of the helper. Empty: what fits the algorithm.
        curiosity: A second task, from whose rewards the first learns, too (`parl_like.algorithms.curiosity`); their weight is
            `rewards.curiosity`. Empty: there is none.
    """

    algorithm: str = "PPO"
    env: Env = Env()
    eval_env: EvalEnv | None = None
    model: str = ""
    helper: str = ""
    curiosity: Literal["", "Counts", "ICM", "RND"] = ""

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        defaults = defaults_of(named("Algorithm", given.get("algorithm", cls().algorithm)))
        return {key: defaults[key] for key in ("n_agents", "total_steps") if key in defaults}


def nearest_to(algorithm: type) -> str:
    """The name in DEFAULTS of a class, or of the nearest one that it is made from; empty: there is none."""
    return next((one.__name__ for one in algorithm.__mro__ if one.__name__ in DEFAULTS), "")


def defaults_of(algorithm: type) -> Mapping[str, Any]:
    """The entry of DEFAULTS for a class, or for the nearest one that it is made from, whose arguments it has then; of a class
    made from none what fits the rows that it learns from."""
    nearest = nearest_to(algorithm)
    draws = issubclass(algorithm, Algorithm) and algorithm.window.in_order is False
    defaults = DEFAULTS.get(nearest, values_of("") if draws else ON_POLICY)
    return {key.replace(f"{nearest}.", f"{algorithm.__name__}.", 1) if nearest else key: value for key, value in defaults.items()}


def build(config: Config, env: EnvSource = None, eval_env: EnvSource = None, *, algorithm: type | None = None,
          score: Any = "mean_return", span: Span | None = None, model: type | None = None, helper: type | None = None,
          hooks: Hook | Iterable[Hook] = (), agent: Callable[[], Agent] | None = None) -> Robot:
    """The robot of a configuration; `env` in place of its own: a factory, or an environment for one agent. So `eval_env`,
    `agent`, and `algorithm`, `model` and `helper`, classes. `score`, `hooks`: as for `Robot`. `span`: None: that of its
    `total_steps`."""
    algorithm = named("Algorithm", config.algorithm) if algorithm is None else algorithm
    defaults = defaults_of(algorithm)
    span = span or Span(config.total_steps)
    if config.curiosity:
        defaults = rewarded(algorithm, defaults)
    parts = Parts(config.parts, defaults, config.__struct_fields__, span)
    source = env_of(config.env, parts) if env is None else env
    spaces, fitting_agent = probed(source)
    agent = fitting_agent if agent is None else agent
    elsewhere = config.eval_env
    if elsewhere is None and env is None and (whole := whole_games(config.env.id)):
        elsewhere = EvalEnv(options=whole)
    if eval_env is None and elsewhere is not None:
        eval_env = env_of(elsewhere.over(config.env), parts, "eval_env")
    if eval_env is not None:
        check_eval_env(eval_env, spaces)
    parts.act = spaces["act"]
    helper_class = helper or named("AgentHelper", config.helper or defaults["helper"])
    if config.curiosity:
        check_can_be_curious(fitting_agent, helper_class)
    lanes = config.n_agents * max(config.env.vector, 1)

    def acts(_: Mapping[str, Any]) -> float:
        return span.steps / config.n_agents

    def rows_of(options: Mapping[str, Any]) -> int:
        """Return the rows of an update, where agents send unrolls; else 1."""
        rule = parts.of(where, ComputationTask)["training_rule"] or {}
        return min(rows := lanes * options["unroll"], rule.get("max_rows") or rows) if "unroll" in options else 1

    def n_updates(options: Mapping[str, Any]) -> Any:
        """Return the updates of a run, which are the optimiser steps of an off-policy one; None where each takes whole
        episodes."""
        if issubclass(helper_class, (EpisodicHelper, PopulationHelper)):
            return None
        if issubclass(helper_class, OfflineHelper):
            return span.steps  # nobody acts: each step is an update, whatever `learn_every` is
        before = options.get("offline_updates", 0)
        return before + span.steps * options.get("updates", 1) // (options.get("learn_every") or 1) // rows_of(options)

    def updates(learner: Mapping[str, Any]) -> Any:
        helper = parts.of(where, helper_class)
        return None if (n := n_updates(helper)) is None else optimiser_steps(n, rows_of(helper), learner)

    where = "tasks.RL"
    paid: dict[str, Any] = {"rewards": {CURIOSITY: 1.0}} if config.curiosity else {}
    task = parts.args(where, ComputationTask, skip=("device",), **paid)
    if config.curiosity:  # other weights than its own may be given alone
        task["rewards"] = {CURIOSITY: 1.0, **(task.get("rewards") or {})}
    # Both tasks learn at the same steps, so that no row is of an older policy, as with one task.
    same_steps = (bool(config.curiosity) and issubclass(helper_class, OnPolicyHelper) and task.get("sync_every", 1) == 1
                  and parts.args("", Robot, skip=GIVEN).get("mode", "sync") == "sync")
    keeps: dict[str, Any] = {"store_policy": False} if same_steps else {}
    of_helper = parts.args(where, helper_class, acts=acts, updates=n_updates, **keeps)
    reference = _located(of_helper)
    spaces["obs"] = Transforms(of_helper.get("transforms", ())).space(spaces["obs"])
    fitting = defaults["models"]
    if model is not None:
        pass
    elif config.model:
        model = named("Model", next((one for one in fitting if one.startswith(config.model)), config.model))
    else:
        model = named("Model", fitting[min(1, len(fitting) - 1) if has_image(spaces["obs"]) else 0])
    learner = parts.args(where, algorithm, acts=acts, updates=updates)
    reference = _located(learner) or reference
    func = create_algorithm_func(model, {**spaces, **parts.args(where, model)}, algorithm, learner)
    tasks = {"RL": ComputationTask(func, made_anew(helper_class, of_helper), device=config.device, **task)}
    if issubclass(helper_class, OfflineHelper):
        source, agent, eval_env = None, Agent, source if eval_env is None else eval_env
    if config.curiosity:
        tasks[CURIOSITY] = curiosity_task(config.curiosity, parts, spaces, of_helper, lanes=lanes, device=config.device)
    robot = robot_with(config, source, tasks, agent, parts=parts, eval_env=eval_env, score=score, hooks=hooks)
    robot.reference = reference
    return robot


def _located(args: dict[str, Any]) -> tuple[float, float] | None:
    """Puts the directory of a data set in the place of its name, in the arguments of what reads it. Returns the mean returns
    between which its scores are normalised, where it says them."""
    if not isinstance(data := args.get("data"), str):
        return None
    args["data"] = recorded.directory_of(data)
    known = recorded.provenance_of(args["data"])
    return None if known is None else known.reference


RUN_OPTIONS = ("run_dir", "checkpoint_every", "checkpoint_buffers", "keep_checkpoints", "metrics_every", "log_every_s",
               "eval_episodes", "eval_every", "stop_score", "eval_score", "torch_threads", "tensorboard")
"""Keys of a configuration that are about a run directory, of which there is none in `Robot.of`."""


def _class(key: str, kind: str, value: Any) -> type:
    """An option that may be a class; raises ValueError where it is another thing."""
    if isinstance(value, type) and kind in [one.__name__ for one in value.__mro__]:
        return value
    raise ValueError(f"Robot.of: {key} is {value!r:.60}; expected the name of a {kind}, or a class made from it")


def of(algorithm: str | type, env: EnvSource, options: Mapping[str, Any]) -> Robot:
    """See `Robot.of`.

    Raises:
        ValueError: there is no environment, no such algorithm, or an option is none of a robot or does not fit.
    """
    way = "build its tasks: Robot(env, tasks={...})"
    if isinstance(algorithm, str):
        nearest = {one.lower(): one for one in DEFAULTS}.get(algorithm.lower(), "")
        if not nearest and algorithm in algorithms.__all__:
            raise ValueError(f"Robot.of: {algorithm} does not learn by one task alone, or has no default network; {way}")
        if not nearest and isinstance(env, str) and env.lower() in {one.lower() for one in DEFAULTS}:
            raise ValueError(f"Robot.of: got {algorithm!r} as algorithm and {env!r} as environment; the algorithm comes first: "
                             f"Robot.of({env!r}, {algorithm!r})")
        if not nearest:
            raise ValueError(f"Robot.of: {unknown('algorithm', algorithm, DEFAULTS)}; for another {way}")
    else:
        nearest = nearest_to(algorithm) if isinstance(algorithm, type) else ""
        if not nearest:
            raise ValueError(f"Robot.of: {getattr(algorithm, '__name__', algorithm)} is no algorithm of those that it knows, nor "
                             f"made from one; {way}")
    if env is None:
        raise ValueError("Robot.of: env is None; expected an id, a factory or an environment")
    instead = {"env": "; give the environment itself", "eval_score": "; give score="}
    for key in ("env", "algorithm", *RUN_OPTIONS):
        if key in options:
            raise ValueError(f"Robot.of: {key} is no option of a robot{instead.get(key, '')}")
    if not isinstance(driver := options.get("driver", ""), str):
        raise ValueError(f"Robot.of: driver is {driver!r:.60}; expected a name, whose options are `workers`: driver='processes', "
                         "workers={'count': 4}")
    one = {"n_agents": 1} if is_made(env) else {}
    made = {key: source for key, source in (("env", env), ("eval_env", options.get("eval_env")))
            if not isinstance(source, (str, Mapping))}
    classes = {key: _class(key, kind, options[key]) for key, kind in (("model", "Model"), ("helper", "AgentHelper"))
             if not isinstance(options.get(key, ""), str)}
    try:
        named_env = {"env.id" if isinstance(env, str) else "env": env}
        given = {key: value.item() if isinstance(value, np.generic) else value
                 for key, value in {**options, **named_env}.items() if key not in (*made, *classes, "score", "hooks", "agent")}
        config = configs.resolve(Config, {"algorithm": nearest}, one, given)
        robot = build(config, **made, model=classes.get("model"), helper=classes.get("helper"),
                      algorithm=algorithm if isinstance(algorithm, type) else None,
                      score=options.get("score", "mean_return"), hooks=options.get("hooks", ()), agent=options.get("agent"),
                      span=Span(config.total_steps, "total_steps" in options))
    except UnknownKey as error:
        raise ValueError(f"Robot.of: {error.as_option}") from error
    except (ConfigError, TypeError, ValueError) as error:
        raise ValueError(f"Robot.of: {str(error).removeprefix('Config: ')}") from error
    for note in robot.parts.notes():
        _log.warning(note)
    return robot
