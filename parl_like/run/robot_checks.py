"""The checks of a robot when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from parl_like.environment.factory import EnvSource, is_made
from parl_like.run.evaluation import MEAN_OF, SCORES
from parl_like.tasks.task import ComputationTask
from parl_like.values.errors import unknown

FILMS = (".gif", ".png", ".webp")
"""The endings of films' names: Pillow writes these, animated."""


def check_arguments(env: EnvSource, agent: object, n_agents: int, mode: str, score: object) -> None:
    """Raises ValueError or TypeError for what no robot can be made of."""
    if n_agents < 1:
        raise ValueError(f"Robot: n_agents is {n_agents}; expected at least 1")
    if mode not in ("sync", "async"):
        raise ValueError(f"Robot: mode is {mode!r}; expected 'sync' or 'async'")
    if not callable(agent):
        raise TypeError(f"Robot: agent is {type(agent).__name__}; expected a function that makes one, such as its class")
    if is_made(env) and n_agents > 1:
        raise ValueError(f"Robot: {n_agents} agents cannot share one environment; give a factory (`lambda: gym.make(...)`) "
                         "or an id")
    if not callable(score) and score not in SCORES and not str(score).startswith(MEAN_OF):
        raise ValueError(f"Robot: {unknown('score', score, SCORES)}; or give a function of the robot and its Episodes")


def check_tasks(tasks: object) -> None:
    """Raises TypeError for what are no tasks by name, ValueError where a task stands twice or belongs to another robot."""
    if not isinstance(tasks, Mapping):
        raise TypeError(f"Robot: tasks is {type(tasks).__name__}; expected a dict from names to tasks: "
                        "tasks={'RL': ComputationTask(…)}")
    names: dict[int, str] = {}
    for name, task in tasks.items():
        if not isinstance(task, ComputationTask):
            raise TypeError(f"Robot: task {name!r} is {type(task).__name__}; expected ComputationTask(algorithm or "
                            "function, helper=…)")
        twin = names.setdefault(id(task), name)
        if twin != name:
            raise ValueError(f"Robot: tasks {twin!r} and {name!r} are one ComputationTask; make one for each (`Shared` lets "
                             "tasks have one network)")
        if task.robot is not None:
            raise ValueError(f"Robot: task {name!r} is that of another robot, {task.robot!r}, whose generators and parameters "
                             "this one would change; make a ComputationTask for each robot, or close() the other one first")


def check_film(path: str | Path) -> None:
    """Raises ValueError for a name that is no film's, FileNotFoundError where its folder is not there: before an episode is
    played."""
    if Path(path).suffix.lower() not in FILMS:
        raise ValueError(f"play: {str(path)!r} is to be written; expected a name that ends in {', '.join(FILMS[:-1])} or "
                         f"{FILMS[-1]} (`ffmpeg -i a.gif a.mp4` makes other formats of it)")
    if not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"play: the folder {str(Path(path).parent)!r} of {str(path)!r} is not there; make it first")
