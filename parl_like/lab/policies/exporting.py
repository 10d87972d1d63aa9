"""Exporting: the acting policy of a robot, written so that it needs none any more."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import gymnasium as gym

from parl_like.data.storage.tree_encoding import versions
from parl_like.data.transforms import Transform, Transforms
from parl_like.environment.factory import make_one
from parl_like.lab import runner
from parl_like.lab.policies import policy_files
from parl_like.lab.policies.description import Description, fields_of, fields_of_space
from parl_like.lab.policies.parts import NotExported, described, space_tree
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.writing import written
from parl_like.lab.yaml_text import UsageError
from parl_like.learning.explorers import Explorer
from parl_like.tasks.task import ComputationTask
from parl_like.values.errors import unknown
from parl_like.values.spec import Spec

if TYPE_CHECKING:
    from parl_like.run.robot import Robot

Kind = Literal["safetensors", "onnx"]
KINDS: tuple[Kind, ...] = ("safetensors", "onnx")
POLICIES_DIR = "policies"
"""The directory, below the working one, of policies that were exported without `--out`."""


class ActingPart(NamedTuple):
    """The part of a robot that makes actions of observations.

    Attributes:
        task: Whose algorithm predicts. explorer: What makes actions of that; None: it predicts them.
        transforms: With the statistics of the run. obs: The space of what they are given.
    """

    task: ComputationTask
    explorer: Explorer | None
    transforms: Transforms
    obs: gym.Space[Any]


def export(run_dir: str | Path, to: Kind = "safetensors", out: str | Path = "", *, task: str = "", checkpoint: str = "latest",
           source: str = "", overrides: Mapping[str, Any] | None = None) -> tuple[Path, Description]:
    """Write the policy of a run, and return where it is and what it is.

    Args:
        to: `safetensors`: weights, which `Policy.load` puts into the classes that the run was made of. `onnx`: a graph, which
            needs neither these nor torch.
        out: The directory to make; empty: `policies/RUN_safetensors`.
        task: The one that acts, where the agent's own code makes its actions of several.
        checkpoint, source, overrides: As for `parl_like.lab.runner.load_run`.

    Raises:
        UsageError: there is no such run or checkpoint; its actions cannot be exported; or nothing can be written at `out`.
    """
    run = RunDir.open(run_dir)
    path = Path(out) if out else Path(POLICIES_DIR, f"{run.path.resolve().name}_{to}")
    with closing(runner.load_run(run.path, checkpoint=checkpoint, source=source, **dict(overrides or {}))) as robot:
        try:
            with written(f"the policy to {path}", "--out"):
                return path, write(robot, path, to, task=task, experiment=run.info().experiment, **_environment(run))
        except NotExported as error:
            raise UsageError(f"{run.path}: {error}") from None


def write(robot: Robot, path: str | Path, to: Kind = "safetensors", *, task: str = "", experiment: str = "", env: str = "",
          wrappers: list[str] | None = None) -> Description:
    """Write the policy of a robot as it is now; see `export`. The last three stand in its manifest alone.

    Raises:
        NotExported: its actions cannot be exported; the message says why, and the way out.
        ValueError: `to` is neither kind.
    """
    if to not in KINDS:
        raise ValueError(unknown("kind of export", to, KINDS))
    one = acting_part(robot, task)
    model = one.task.algorithm.model
    description = Description(
        experiment=experiment, task=one.task.name, step=robot.env_steps, env=env, wrappers=wrappers or [],
        drawn=robot.eval_explore, earns=model.reward_state, observations=fields_of_space(one.obs, "obs"),
        actions=fields_of_space(model.act_space, "act"), versions=versions(),
        state=fields_of(Spec(name, spec.shape, spec.dtype) for name, spec in model.inputs().items() if name.startswith("state")))
    if to == "safetensors":
        tree = policy_files.network_tree(one.task, one.transforms, one.explorer, one.obs, _acts(robot))
        policy_files.write_network(Path(path), description, tree)
        return description
    from parl_like.lab.policies import graph

    draws = None if graph.explores(one.task) else _explorer_tree(one, robot)
    if robot.eval_explore and draws is None:
        raise NotExported("its evaluations draw actions, and what a graph gives does not say of what they are drawn; export with "
                          "--to safetensors")
    made = graph.exported(one.task, one.explorer, one.transforms, one.obs, description)
    spaces = {"obs": space_tree(one.obs), "act": space_tree(model.act_space), "explorer": draws}
    policy_files.write_graph(Path(path), made.description, spaces, made.graph)
    return made.description


def acting_part(robot: Robot, name: str = "") -> ActingPart:
    """Return what makes a robot's actions.

    Args:
        name: The task; empty: the one that acts.

    Raises:
        NotExported: its agents are no plain ones, so their code may make others of what tasks predict, and no task is named.
    """
    agent, tasks = robot.agents[0], list(robot.tasks)
    own = type(agent).__module__
    if name and name not in tasks:
        raise NotExported(unknown("task", name, tasks))
    if not name and not own.startswith("parl_like.agents."):
        raise NotExported(f"its agent {type(agent).__name__} has code of its own, such as a search, a plan or several tasks by "
                          "turns, which no export holds; name the task whose own answers are wanted: "
                          f"{' or '.join(f'--task {one}' for one in tasks)}; or use the robot itself, with load_run")
    helpers = [helper for helper in agent.helpers.values() if name in ("", helper.name)]
    acting = {helper.name for helper in helpers if helper.role is not None}
    if not helpers:
        raise NotExported("the robot has no task that acts")
    if not name and len(acting) > 1:
        raise NotExported(f"its players have tasks of their own; name one: {' or '.join(f'--task {one}' for one in acting)}")
    helper = helpers[0]
    task, explorer = robot.tasks[helper.name], robot.wrappers[helper.name].predictions.explorer
    for part, method in ((task, "predict"), (task, "act"), *([] if name else [(helper, "predict")])):
        if not (owner := _owner(part, method)).__module__.startswith("parl_like."):
            raise NotExported(f"{owner.__name__}.{method} is code of your own, which no export holds; put it into the algorithm, "
                              "an explorer or a transform, or use the robot itself, with load_run")
    if task.algorithm.model.act_space is None or not _acts_in(task, explorer):
        raise NotExported(f"task {task.name!r} predicts {', '.join(task.output_shapes)} and no action")
    # Without those of rewards and of replay, for a policy has neither.
    transforms = Transforms(one for one in robot.transforms[helper.name] if type(one).observe is not Transform.observe)
    obs = task.algorithm.model.obs_space
    if len(transforms):
        given: Any = helper.options.obs_space or helper.acting.context.env_space
        if given is None:
            with closing(make_one(robot.evaluator.source(None))) as env:
                given = env.observation_space
        obs = given
    return ActingPart(task, explorer, transforms, obs)


def _owner(part: object, method: str) -> type:
    """The class whose method of this name an object has."""
    return next(one for one in type(part).__mro__ if method in vars(one))


def _acts_in(task: ComputationTask, explorer: Explorer | None) -> bool:
    if explorer is None or type(explorer) is Explorer:
        return any(name.split(".")[0] == "act" for name in task.output_shapes)
    names = {*([] if explorer.reads is None else [explorer.reads]), *explorer.needs}
    return names <= {*task.output_shapes}


def _acts(robot: Robot) -> int:
    """Acts of one helper so far, at which schedules of exploration stand still."""
    return robot.env_steps // max(len(robot.agents), 1)


def _explorer_tree(one: ActingPart, robot: Robot) -> dict[str, Any] | None:
    """The explorer by name, for whoever wants to draw from the graph's outputs; None where it has none, or where the network
    must be told what was drawn."""
    if one.explorer is None or one.explorer.noise is None or one.explorer.given is not None:
        return None
    try:
        return described(one.explorer, Explorer, "its explorer", _acts(robot))
    except NotExported:
        return None


def _environment(run: RunDir) -> dict[str, Any]:
    """Return what the configuration of a run says of its environment, for the manifest."""
    env = run.config().get("env")
    if isinstance(env, str):
        return {"env": env}
    if not isinstance(env, Mapping):
        return {}
    wrappers = env.get("wrappers") or []
    return {"env": str(env.get("id", "")), "wrappers": [str(one) for one in wrappers] if isinstance(wrappers, list) else []}
