"""The page of algorithms is that of the code, and `parl-like list` has the same families."""

import re

import algorithm_page
import pytest

from parl_like.lab import experiment as experiments
from parl_like.lab import families, marks

pytestmark = pytest.mark.checkout


def test_the_page_is_current():
    assert algorithm_page.PAGE.read_text(encoding="utf-8") == algorithm_page.page(), "run `make algorithms`"


def test_experiments_are_of_the_family_of_their_algorithm_or_robot():
    shipped = [path.stem for path in (algorithm_page.ROOT / "robots" / "experiments").glob("*.yaml")]
    of = {name: families.family(experiments.get(name)) for name in shipped}
    assert {of[name] for name in ("ppo-cartpole", "a2c-cartpole")} == {"actor_critic"}
    assert of["auxiliary-pendulum"] == "auxiliary" and of["raw-sokoban-mini"] == "thinker"
    assert "single" not in of.values(), "its experiments are of their algorithms' families"
    assert families.title("ddpg") == "Deterministic policy gradients: DDPG (Lillicrap et al. 2016) and TD3 (Fujimoto et al. 2018)"
    assert families.title("auxiliary") == "A policy task and an auxiliary task on one trunk"
    assert families.title("somebody_elses") == ""


def test_scores_beside_experiments_are_those_of_the_marks():
    """In docs/robots.md a row with a score for each of the first five seeds says what the file says."""
    docs, rounded = algorithm_page.ROOT / "docs", {}
    for mark in marks.load(docs / "marks.json"):
        if not mark.differs:
            rounded.setdefault(mark.experiment, {})[mark.seed] = round(mark.score)
    row = re.compile(r"^\| `([\w-]+)` \| [\d,]+ \| ((?:−?\d+ ){4}−?\d+)(?= [|(])", re.MULTILINE)
    rows = row.findall((docs / "robots.md").read_text(encoding="utf-8"))
    told = {name: [int(score.replace("−", "-")) for score in scores.split()] for name, scores in rows}
    compared = [name for name in told if name in rounded]
    assert {"sac-pendulum", "dqn-cartpole"} <= set(compared)
    for name in compared:
        assert told[name] == [rounded[name][seed] for seed in range(5)], name
