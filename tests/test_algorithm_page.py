"""The page of algorithms is that of the code, and `parl-like list` has the same families."""

import importlib

import algorithm_page
import pytest

from parl_like import Algorithm
from parl_like.lab import experiment as experiments
from parl_like.lab import families

pytestmark = pytest.mark.checkout


def test_the_page_is_current():
    assert algorithm_page.PAGE.read_text(encoding="utf-8") == algorithm_page.page(), "run `make algorithms`"
    assert families.TABLE.read_text(encoding="utf-8") == algorithm_page.families_table(), "run `make algorithms`"


def test_no_algorithm_and_no_experiment_is_missing():
    """Every file of algorithms/ that has a public algorithm, and every shipped experiment with something measured, or a page."""
    page = algorithm_page.PAGE.read_text(encoding="utf-8")
    for path in (algorithm_page.ROOT / "algorithms").glob("*.py"):
        module = importlib.import_module(f"parl_like.algorithms.{path.stem}") if path.stem != "__init__" else None
        own = [one for one in vars(module or object).values() if isinstance(one, type) and issubclass(one, Algorithm)
               and one.__module__ == module.__name__ and one.learn is not Algorithm.learn]
        assert not own or f"(../algorithms/{path.name})" in page, path.name
    for path in (algorithm_page.ROOT / "robots" / "experiments").glob("*.yaml"):
        assert f"`{path.stem}`: " in page, path.stem


def test_experiments_are_of_the_family_of_their_algorithm_or_robot():
    shipped = [path.stem for path in (algorithm_page.ROOT / "robots" / "experiments").glob("*.yaml")]
    of = {name: families.family(experiments.get(name)) for name in shipped}
    assert {of[name] for name in ("ppo-cartpole", "ppo-recall")} == {"ppo"}
    assert of["auxiliary-pendulum"] == "auxiliary" and of["raw-sokoban-mini"] == "thinker"
    assert "single" not in of.values(), "its experiments are of their algorithms' families"
    assert families.title("ddpg") == "Deterministic policy gradients: DDPG (Lillicrap et al. 2016) and TD3 (Fujimoto et al. 2018)"
    assert families.title("auxiliary") == "A policy task and an auxiliary task on one trunk"
    assert families.title("single").startswith("A robot with one task that learns by any algorithm"), "of users' own algorithms"
    assert all(families.title(one) for one in {experiments.get(name).robot for name in shipped})
    assert families.title("somebody_elses") == ""
