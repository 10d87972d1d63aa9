"""Writes docs/algorithms.md, the table of docs/start/which-algorithm.md, the families of experiments and the leaderboard, from
docstrings of algorithms/ and robots/, the experiments and docs/marks.json: `make algorithms`."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import evidence
import leaderboard
import with_without
from docstring_text import divided

from parl_like import Algorithm, algorithms
from parl_like.lab import experiment as experiments
from parl_like.lab import families
from parl_like.lab.reports import marks
from parl_like.lab.yaml_text import dump_yaml
from parl_like.learning import action_spaces
from parl_like.robots import single

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # behind everything: the package is the installed one
solvers = import_module("benchmarks.solvers")
PAGE = ROOT / "docs" / "algorithms.md"
EXPERIMENTS = ROOT / "robots" / "experiments"
HEAD = """# Algorithms

The algorithms of [algorithms/](../algorithms/), a file a family. `make algorithms` makes this page of the docstrings
and of [marks](marks.md). [Which algorithm should I use?](start/which-algorithm.md) has a table of problems,
and one of the spaces that each takes. `parl-like train NAME` trains an experiment; the arguments of the class are settings of it
(`parl-like train sac-pendulum SAC.alpha=0.1 hidden=[256,256]`). Scores are medians, over all seeds, of the
evaluation after training. Where there is no mark, a link leads to the page with the results. Solvers of games have rows
of `python -m benchmarks.solvers`, whose scores are −`nash_conv`."""

ROBOTS = {"BC": ["nfsp", "dagger"], "DQN": ["self_play"], "DynamicsLearner": ["auxiliary"],
          "WorldModel": ["thinker", "thinker_shared"], "PPO": ["hierarchy"], "OptionCritic": ["options"],
          "LearningProgress": ["curriculum"], "Discriminator": ["skills"], "EnsembleLearner": ["mbpo"], "MuZeroModel": ["muzero"]}
"""Class → the robots of several tasks that it is part of, where these have other names."""

WITHOUT = {
    "FQE": "it values the policy of another run, from that run's rows, see [offline](recipes/offline.md#what-is-a-policy-worth)",
    "SPR": "no mark has been measured, and another experiment takes it, `parl-like train auxiliary-cartpole learners=[SPR]`, "
           "see [skills](skills.md)",
}
"""Algorithm → why no experiment is its own, and what trains it."""


def of_games(name: str, call: str, parts: str) -> str:
    return f"from parl_like.algorithms.games import {name}\nfrom parl_like.envs.games import {parts}\n\nprint({name}{call})"


def of_tables(name: str, call: str) -> str:
    return (f"import gymnasium as gym\n\nfrom parl_like.algorithms.tables import {name}\n\n"
            f'lake = gym.make("FrozenLake-v1")\nprint({name}{call})')


SCRIPTS = {
    **{name: of_games(name, "(Kuhn(), uniform)", "Kuhn, uniform")
       for name in ("expected_returns", "exploitability", "nash_conv")},
    **{name: of_games(name, "(TicTacToe(), table=True)", "TicTacToe") for name in ("alpha_beta", "minimax")},
    "best_response": of_games("best_response", "(Kuhn(), uniform, player=0)", "Kuhn, uniform"),
    "game_value": of_games("game_value", "(Kuhn())", "Kuhn"),
    **{name: of_tables(name, "(lake, gamma=0.95)") for name in ("policy_evaluation", "policy_iteration", "value_iteration")},
    "model_of": of_tables("model_of", "(lake).rewards"),
    "importance_sampling": """import numpy as np

from parl_like.algorithms.estimates import importance_sampling

rewards, ratios, last = np.array([1.0, 2.0, 3.0]), np.array([2.0, 0.5, 3.0]), np.array([False, True, True])
print(importance_sampling(rewards, np.log(ratios), last, gamma=0.5))""",
    "FQE": """import gymnasium as gym
import numpy as np
import torch

from parl_like import ComputationTask
from parl_like.algorithms.estimates import FQE
from parl_like.models import MLPQ

obs, act = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)
task = ComputationTask(FQE(MLPQ(obs, act), lambda seen: torch.full((len(seen), 2), 0.5), lr=0.01))
seen = np.random.default_rng(0).uniform(-1, 1, (256, 2)).astype(np.float32)
rows = {"obs": seen, "act": np.arange(256) % 2, "rew": seen[:, 0], "obs_next": seen, "terminated": np.ones(256, bool),
        "truncated": np.zeros(256, bool)}
for _ in range(100):
    task.learn(rows)
print(task.predict({"obs": seen[:3]})["value"], seen[:3, 0])""",
    "SearchTree": """import numpy as np

from parl_like.algorithms.search import SearchTree
from parl_like.algorithms.search.tree import Evaluation


def evaluate(leaves):
    n = len(leaves.tree)
    return Evaluation(reward=1.0 * (leaves.action == 1), done=np.ones(n, bool), value=np.zeros(n), logits=np.zeros((n, 2)))


tree = SearchTree(n=1, n_actions=2, capacity=50)
tree.begin(logits=np.zeros((1, 2)), value=np.zeros(1))
print(tree.run(50, evaluate).visits)""",
    "ActorCritic": """from parl_like import Robot

with Robot.of("A2C", "CartPole-v1") as robot:  # the one that adds least to it
    robot.run(10_000)""",
}
"""Member that nothing trains by a command → a script that runs it."""


WHICH = ROOT / "docs" / "start" / "which-algorithm.md"
MADE = "<!-- Made by `make algorithms` from here on. -->\n"
"""The line of that page behind which the table stands."""

SPACES = """
## Which algorithm takes what

The table is made from the code (`parl-like list --spaces`), and holds with our networks that fit the algorithm; a test builds
every combination. It has the algorithms that learn by one task alone.

- *Box* has finite bounds. *any* is that, an unbounded Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these
  (*of choices*: without a Box).
- *images*: a convolutional network reads observations that have one; else an image is one long row of numbers.
- *masks*: the observation's `mask` says which choices are legal, see [masks](../own/environment.md#masks).
- *memory*: with a recurrent network (`model=Recurrent`), or always.
- *learns from*: what its default helper sends. That is the newest *steps* of all agents, random rows of a *buffer*, whole
  *episodes*, *each step* at once, or the returns of *candidates*. With an `OfflineHelper` those of a buffer learn from recorded
  rows, too.

VDN, QMIX and MADDPG take the joint rows of a team (`parl_like.envs.joint.Joint`), MAPPO players that see a `state`
(`parl_like.envs.central_state.CentralState`).
"""

SENDS = {"OnPolicyHelper": "steps", "OffPolicyHelper": "buffer", "EpisodicHelper": "episodes", "OnlineHelper": "each step",
         "PopulationHelper": "candidates"}
"""Helper → what it sends to be learned from."""


WHOLE = {"NFSP": "nfsp", "SelfPlay": "self_play"}
"""Members that are no algorithm but a robot, by its name."""


@functools.cache
def members() -> dict[str, list[Any]]:
    """File of `algorithms/` → its public algorithms, and what the faces of folders there offer, in the order in which they stand
    in it."""
    offered = [getattr(algorithms, name) for name in algorithms.__all__]
    public = {one: one.__module__ for one in offered if issubclass(one, Algorithm)}
    for face in sorted((ROOT / "algorithms").glob("*/__init__.py")):
        folder = import_module(f"parl_like.algorithms.{face.parent.name}")
        public |= {one: one.__module__ for one in (getattr(folder, name) for name in folder.__all__)}
    found = defaultdict(list)
    for one, module in public.items():
        found[module.removeprefix("parl_like.algorithms.").replace(".", "/")].append(one)
    return {file: sorted(there, key=lambda one: inspect.getsourcelines(one)[1]) for file, there in sorted(found.items())}


def names() -> list[str]:
    """Every member but the bases of others, which learn nothing; also those that are robots of several tasks."""
    learners = [one for there in members().values() for one in there if getattr(one, "learn", None) is not Algorithm.learn]
    return [*(one.__name__ for one in learners), *WHOLE]


def is_algorithm(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, Algorithm)


def families_table() -> str:
    """What `parl-like list` says of families: the files of `algorithms/`, and the robots; `single` heads experiments of
    users' own algorithms."""
    known: dict[str, Any] = {}
    for file, there in members().items():
        if learners := [one.__name__ for one in there if is_algorithm(one)]:
            known[file] = {"title": first_sentence(file), "algorithms": learners}
    for robot in sorted({experiments.get(path.stem).robot for path in EXPERIMENTS.glob("*.yaml")} - {*known}):
        known[robot] = {"title": first_sentence(robot, "robots")}
    return "# Made by `make algorithms`.\n" + dump_yaml(dict(sorted(known.items())))


def first_sentence(file: str, folder: str = "algorithms") -> str:
    """The first sentence of a file's docstring, in one line."""
    module = import_module(f"parl_like.{folder}.{file.replace('/', '.')}")
    return re.split(r"\.\s+(?=[A-Z`])|\.?$", " ".join((module.__doc__ or "").split("\n\n")[0].split()))[0]


def family(file: str) -> str:
    """Return what the docstring of a file of `algorithms/` says behind its first sentence; empty: nothing."""
    text = inspect.getdoc(import_module(f"parl_like.algorithms.{file.replace('/', '.')}")) or ""
    head, _, tail = text.partition("\n\n")
    end = re.search(r"\.\s+(?=[A-Z`])", head)
    return "\n\n".join(filter(None, [head[end.end():] if end else "", tail]))


def scores() -> dict[str, list[marks.Mark]]:
    """Experiment → its marks, as it is."""
    found = defaultdict(list)
    for mark in marks.load(ROOT / "docs" / "marks.json"):
        if not mark.differs:
            found[mark.experiment].append(mark)
    return found


@functools.cache
def experiments_of() -> dict[str, list[str]]:
    """Class in small letters, or robot of several tasks → the experiments that train it, and the rows of a solver."""
    found = defaultdict(list)
    for path in sorted(EXPERIMENTS.glob("*.yaml")):
        one = experiments.get(path.stem)
        keys = [one.config["algorithm"]] if one.robot in families.OF_ONE else one.config.get("learners", [one.robot])
        for key in (*keys, *filter(None, [one.config.get("curiosity")])):
            found[key.lower()].append(one.name)
    for name, row in solvers.ROWS.items():
        found[row.solver.__name__.lower()].append(name)
    return found


def experiments_of_robots() -> dict[str, list[str]]:
    """Robot, by its module → its experiments."""
    found = defaultdict(list)
    for path in sorted(EXPERIMENTS.glob("*.yaml")):
        found[experiments.get(path.stem).robot].append(path.stem)
    return found


def keys(name: str) -> tuple[str, ...]:
    """What a member is known by among the experiments."""
    return (WHOLE.get(name, name.lower()), *ROBOTS.get(name, ()))


def groups() -> dict[str, list[list[marks.Mark]]]:
    """Member → the marks of each of its experiments."""
    seen, by = scores(), experiments_of()
    return {name: [seen[experiment] for key in keys(name) for experiment in by[key]] for name in names()}


def commands(one: Any) -> list[str]:
    """Lines that train each of its experiments, or solve each of its rows; where there is none, the line of `WITHOUT`."""
    by = experiments_of()
    named = [name for key in keys(one.__name__) for name in by[key]]
    return [f"{'python -m benchmarks.solvers' if name in solvers.ROWS else 'parl-like train'} {name}" for name in named] or [
        line for line in code_of(one) if line.startswith("parl-like")]


def code_of(one: Any) -> list[str]:
    """Pieces of code in the text of `WITHOUT` about a member."""
    return re.findall(r"`([^`]+)`", WITHOUT.get(one.__name__, ""))


def script(one: Any) -> str:
    """Python that runs a member for which there is no command; empty: there is one."""
    robots = [line for line in code_of(one) if line.startswith("Robot.of")]
    return SCRIPTS.get(one.__name__) or "".join(
        f"from parl_like import Robot\n\nwith {line} as robot:\n    robot.run(10_000)" for line in robots)


def lights() -> str:
    """What shows that each member is right."""
    return evidence.table(groups())


def trained() -> dict[str, list[str]]:
    """Class in small letters, or robot of several tasks → lines about the experiments that train it."""
    found, lines = scores(), defaultdict(list)
    for key, trained in experiments_of().items():
        for name in trained:
            after = told(found[name], name)
            lines[key].append(f"`{name}`: {after}" if after else f"`{name}`")
    return lines


def told(seen: list[marks.Mark], name: str) -> str:
    """Return the score of an experiment, or of the row of a solver, in words; where nothing is measured a link to the page that
    has results of it."""
    if seen:
        score, unit = median(mark.score for mark in seen), "iterations" if name in solvers.ROWS else "steps"
        return f"{score:.4g} after {seen[0].env_steps:,} {unit}, {len(seen)} seed{'s' * (len(seen) > 1)}"
    pages = [page for page in ("robots.md", "curiosity.md", "games.md", "recipes/planning.md", "recipes/offline.md", "skills.md",
                               "thinker.md", "thinker-published.md")
             if f"`{name}`" in (PAGE.parent / page).read_text(encoding="utf-8")]
    return f"see [{pages[0]}]({pages[0]})" if pages else ""


def spaces() -> str:
    """Which algorithm takes what, and from what it learns."""
    rows = [{**row, "algorithm": f"[{name}](../algorithms.md#{name.lower()})",
             "learns from": SENDS[single.defaults_of(getattr(algorithms, name))["helper"]]}
            for row in action_spaces.in_words() for name in [row["algorithm"]]]
    lines = ["| " + " | ".join(row.values()) + " |" for row in rows]
    return "\n".join([SPACES, "| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|", *lines]) + "\n"


def which() -> str:
    """The page on which algorithm to use: what is written by hand, and the table of spaces."""
    return WHICH.read_text(encoding="utf-8").partition(MADE)[0] + MADE + spaces()


def front() -> str:
    """The page without its members: what shows that they are right."""
    return "\n\n".join([HEAD, lights()])


def about(one: Any, seen: dict[str, list[str]]) -> list[str]:
    """What is said of one member: networks that fit, experiments with their scores, its docstring."""
    lines = [f"- {line}" for name in keys(one.__name__) for line in seen[name]]
    models = getattr(one, "fitting_models", "")
    why = f"No experiment: {WITHOUT[one.__name__]}." if one.__name__ in WITHOUT else ""
    return [f"Models: {models}." if models else "", "\n".join(["Experiments:", "", *lines]) if lines else why,
            f"```text\n{inspect.getdoc(one)}\n```"]


def page() -> str:
    parts, seen = [front()], trained()
    for file, there in members().items():
        parts.append(f"## {first_sentence(file)}\n\n[algorithms/{file}.py](../algorithms/{file}.py)")
        parts += ["\n\n".join(filter(None, [f"### {one.__name__}", *about(one, seen)])) for one in there]
    return "\n\n".join(parts) + "\n"


def takes(one: Any) -> str:
    """Return the row of `spaces` that is about one member; empty: there is none."""
    row = next((row for row in action_spaces.in_words() if row["algorithm"] == one.__name__), {})
    return "; ".join(f"{name}: {value}" for name, value in row.items() if name != "algorithm" and value)


INHERITED = re.compile(r"Those of `(\w+)`\.")
"""An item of a section `Differences:` that stands for all of another member's."""


def differences(one: Any) -> list[str]:
    """Return what a class, function or module does otherwise than its paper: the items of `Differences:` in its own docstring.
    Those of another member are named as its own, and not taken over where nothing says so."""
    found = []
    for item in divided(inspect.cleandoc(one.__doc__ or ""), "Differences")[1]:
        other = INHERITED.fullmatch(item)
        found += [f"As `{other[1]}`: {said}" for said in differences(described()[other[1]])] if other else [item]
    return found


@functools.cache
def described() -> dict[str, Any]:
    """Return member → what has its docstring: a class, a function, or the module of a robot."""
    of_algorithms = {one.__name__: one for there in members().values() for one in there}
    return of_algorithms | {name: import_module(f"parl_like.robots.{robot}") for name, robot in WHOLE.items()}


if __name__ == "__main__":
    families.TABLE.write_text(families_table(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    leaderboard.PAGE.write_text(leaderboard.page(), encoding="utf-8")
    with_without.draw()
    WHICH.write_text(which(), encoding="utf-8")
    print(PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE)
