"""The page of algorithms is that of the code, and `parl-like list` has the same families."""

import importlib
import re

import algorithm_page
import curves
import leaderboard
import metrics_page
import prose
import pytest
import site_pages
import with_without

from parl_like import Algorithm
from parl_like.lab import experiment as experiments
from parl_like.lab import families
from parl_like.lab.cli import main

pytestmark = pytest.mark.checkout


def test_the_page_is_current():
    assert algorithm_page.PAGE.read_text(encoding="utf-8") == algorithm_page.page(), "run `make algorithms`"
    assert algorithm_page.WHICH.read_text(encoding="utf-8") == algorithm_page.which(), "run `make algorithms`"
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
        assert f"`{path.stem}`: " in page, f"no mark of it: parl-like marks {path.stem} --seeds 5, then make algorithms"


def test_every_algorithm_has_an_experiment_or_the_page_says_why_not():
    """Solvers of games have rows of their benchmark; functions, and the tree that a search grows, are no algorithms."""
    learners = [one.__name__ for there in algorithm_page.members().values() for one in there
                if algorithm_page.is_algorithm(one) and one.learn is not Algorithm.learn]
    solved = [row.solver.__name__ for row in algorithm_page.solvers.ROWS.values()]
    by = algorithm_page.experiments_of()
    missing = {name for name in {*learners, *algorithm_page.WHOLE, *solved}
               if not any(by[key] for key in algorithm_page.keys(name))}
    assert len(learners) > 80 and missing == algorithm_page.WITHOUT.keys()
    page = algorithm_page.PAGE.read_text(encoding="utf-8")
    assert all(f"No experiment: {why}." in page for why in algorithm_page.WITHOUT.values())


def test_every_member_has_commands_or_a_script_that_runs_it():
    for one in (one for there in algorithm_page.members().values() for one in there):
        assert bool(algorithm_page.commands(one)) != bool(algorithm_page.script(one)), one.__name__


@pytest.mark.parametrize("name", algorithm_page.SCRIPTS)
def test_scripts_run(name, capsys):
    if name == "game_value":
        pytest.importorskip("scipy")
    known = {}
    exec(algorithm_page.script(algorithm_page.described()[name]).replace("10_000", "8"), known)  # noqa: S102
    if "robot" in known:
        learners = [type(task.algorithm) for task in known["robot"].tasks.values()]
        assert any(issubclass(one, algorithm_page.described()[name]) for one in learners)
    else:
        assert capsys.readouterr().out


def test_the_command_for_spr_is_one(capsys):
    (line,) = algorithm_page.commands(algorithm_page.described()["SPR"])
    assert main([*line.split()[1:], "--show-config"]) == 0 and "SPR" in capsys.readouterr().out


def test_the_command_of_a_solver_is_that_of_its_row():
    (line, _) = algorithm_page.commands(algorithm_page.described()["CFR"])
    assert line == "python -m benchmarks.solvers cfr-kuhn"


def test_every_member_is_on_the_page_that_helps_to_choose_one():
    """The table has those of one task; tools and parts of other robots are among the problems."""
    known = set(re.findall(r"\w+", algorithm_page.WHICH.read_text(encoding="utf-8")))
    assert not {*algorithm_page.names()} - known


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


def test_the_leaderboard_is_that_of_the_marks():
    assert leaderboard.PAGE.read_text(encoding="utf-8") == leaderboard.page(), "run `make algorithms`"


def test_the_quickest_stands_first_and_what_misses_its_mark_not_at_all():
    marks = [mark for mark in leaderboard.reports.load(leaderboard.MARKS) if not mark.differs]
    found = leaderboard.reached(marks)
    pole = [leaderboard.median(mark.seconds for mark in same) for same in found["CartPole-v1"]]
    assert len(pole) > 10 and pole == sorted(pole)
    listed = {same[0].experiment for there in found.values() for same in there}
    assert "ppo-cartpole" in listed and not {"qlambda-cliffwalking", "plas-pendulum", "cfr-kuhn"} & listed


def test_seconds_to_the_mark_are_those_of_the_first_point_there():
    class Mark:
        expect = {"mean_return": (100.0, None)}
        curve = [(10, 1.0, 20.0), (20, 2.5, 100.0), (30, 4.0, 90.0)]

    assert leaderboard.to_the_mark(Mark) == 2.5
    Mark.expect = {"mean_return": (101.0, None)}
    assert leaderboard.to_the_mark(Mark) is None
    Mark.expect = {"score": (1.0, None)}
    assert leaderboard.to_the_mark(Mark) is None


def test_scores_with_and_without_are_drawn_where_they_belong(monkeypatch):
    marks = with_without.reports.load(with_without.MARKS)
    assert with_without.PICTURE.read_text(encoding="utf-8") == with_without.svg(marks), "run `make algorithms`"
    monkeypatch.setattr(with_without, "PAIRS", [pair for pair in with_without.PAIRS if "curriculum" in pair.text])
    drawn = with_without.svg(marks)
    assert drawn.count(f'class="with" cx="{with_without.RIGHT:.1f}"') == 5  # all are opened with it,
    assert drawn.count(f'class="without" cx="{with_without.LEFT:.1f}"') == 5  # and none without
    with pytest.raises(ValueError, match="curriculum-lock .* has 4 seeds; expected five"):
        with_without.svg([mark for mark in marks if mark.seed or mark.experiment != "curriculum-lock"])


def test_a_curve_is_drawn_in_its_frame_with_a_line_for_each_seed():
    class Mark:
        expect, evaluation = {"mean_return": (475.0, None)}, {"score": 500.0}
        curve = [(0, 0.5, 20.0), (1000, 2.5, 500.0)]

    class OfASolver(Mark):
        expect, evaluation = {"score": (-0.1, None)}, {"nash_conv": 0.05}
        curve = [(1, 0.0, -0.9), (300, 0.1, -0.05)]

    drawn = curves.svg("kuhn", [OfASolver])
    assert "300 iterations" in drawn and "stroke-dasharray" in drawn
    drawn = curves.svg("a < b", [Mark, Mark])
    assert "1,000 steps" in drawn
    assert drawn.count("<polyline") == 2 and "a &lt; b" in drawn and "stroke-dasharray" in drawn
    assert f'points="{curves.LEFT:.1f},{curves.HEIGHT - curves.BELOW:.1f} {curves.WIDTH - 10:.1f},10.0"' in drawn
    Mark.curve = []
    with pytest.raises(ValueError, match="no curve"):
        curves.svg("empty", [Mark])


def test_every_member_says_what_differs_from_its_paper():
    """In a section of its own docstring, above that of its arguments; `None: …` where nothing does."""
    for name, one in algorithm_page.described().items():
        assert algorithm_page.differences(one), f"{name}: add a section Differences to its docstring"
        before, found, _ = (one.__doc__ or "").partition("Differences:\n")
        sections = re.search(r"^ *(Args|Attributes|Returns|Raises):$", before, re.MULTILINE)
        assert not (found and sections), f"{name}: Differences come first"
        assert [long for said in algorithm_page.differences(one) for long in prose.too_long(said)] == [], name


def test_what_differs_is_that_of_another_member_only_where_it_says_so():
    class Base:
        """Learn.

        Differences:
            - No weights.
            - A long item that goes on
              in a second line.

        Args:
            a: One.
        """

    class Heir(Base):
        pass

    class Other:
        """Learn otherwise.

        Differences:
            - Those of `CrossQ`.
            - More.
        """

    assert algorithm_page.differences(Base) == ["No weights.", "A long item that goes on in a second line."]
    assert site_pages.differs(Base).endswith("   - No weights.\n   - A long item that goes on in a second line.\n```")
    assert "No weights" not in site_pages.shown(Base) and "**a**: One." in site_pages.shown(Base)
    assert algorithm_page.differences(Heir) == [] and site_pages.differs(Heir) == ""
    *those, own = algorithm_page.differences(Other)
    of_crossq = algorithm_page.differences(algorithm_page.described()["CrossQ"])
    assert own == "More." and those == [f"As `CrossQ`: {said}" for said in of_crossq] != []


def test_every_number_that_an_algorithm_gives_is_explained():
    """By its code; tests/robots/test_experiments.py has the numbers of every experiment's run."""
    given = set(metrics_page.given())
    assert len(given) > 100 and ("algorithms/ppo.py", "kl") in given
    assert [(file, name) for file, name in given if metrics_page.unexplained([f"RL/{name}"])] == []


def test_no_metric_is_explained_that_nothing_gives():
    text = "".join(path.read_text(encoding="utf-8") for top in ("parl_like", "algorithms", "robots")
                   for path in (algorithm_page.ROOT / top).rglob("*.py"))
    words = {word for name in metrics_page.names() for word in algorithm_page.re.split(r"[/._]", name)} - {*metrics_page.PLACES}
    assert sorted(word for word in words if not algorithm_page.re.search(rf"[\W_]{word}[\W_]", text)) == []
    known = ["RL/loss", "return/white", "RL/predict/rows", "info/x/env_3"]
    assert metrics_page.unexplained([*known, "RL/nonsense", "RL/guess/rows"]) == ["RL/nonsense", "RL/guess/rows"]
