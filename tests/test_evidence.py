"""Every public algorithm says what shows that it is right, and all that is said is there."""

import re

import algorithm_page
import evidence
import pytest

from parl_like.lab import experiment as experiments

pytestmark = pytest.mark.checkout
SAID = [(name, kind, where) for name, one in evidence.load().items() for kind, where in one.items() if kind != "published"]


def test_every_algorithm_has_an_entry_and_every_entry_an_algorithm():
    assert sorted(evidence.load()) == sorted(algorithm_page.names())


@pytest.mark.parametrize(("name", "kind", "where"), SAID, ids=lambda value: value[:40])
def test_what_is_said_is_there(name, kind, where):
    assert kind in evidence.KINDS and evidence.exists(where), f"{name}: {where}"


def test_what_is_not_there_is_found():
    assert not evidence.exists("tests/test_evidence.py::test_nothing") and not evidence.exists("tests/no.py::test_x")
    assert not evidence.exists("docs/benchmarks.md: nobody's row") and not evidence.exists("docs/benchmarks.md: ")


def environments(name):
    """The environments of a member's experiments that others know by the same name: as they are, or without velocities."""
    for experiment in (one for key in algorithm_page.keys(name) for one in algorithm_page.experiments_of()[key]):
        if experiment in algorithm_page.solvers.ROWS:
            yield experiment.partition("-")[2]
            continue
        config = experiments.get(experiment).config
        env = config.get("env", config.get("game"))
        env = {"id": env} if isinstance(env, str) else env or {}
        changes = {*env.get("wrappers", []), *env.get("options", {}), *config.get("env_options", {})} - {"GridCells"}
        if env and changes <= {"ObservationSubset"}:
            yield env["id"] + " without velocities" * bool(changes)


def test_what_others_have_published_is_of_an_environment_of_an_experiment():
    figures = [(name, one) for name, said in evidence.load().items() for one in said.get("published", [])]
    assert len(figures) > 30
    for name, one in figures:
        source, _, rest = one.partition(": ")
        env, budget, score = rest.split(", ")
        assert source and budget and re.search(r"\d", score), one
        assert env in environments(name), f"{name}: {env} is none of {sorted({*environments(name)})}"
    assert [*environments("BasicDQN")] == [], "its CartPole ends after 200 steps"


def test_a_page_says_what_stands_beside_its_score_or_that_nothing_does():
    assert evidence.beside("TD3").startswith("Beside it: [TD3, Pendulum-v1, 20,000 steps](benchmarks.md).\n\nPublished by others")
    assert evidence.beside("PQN").startswith("Published by others, not run here:\n\n- CleanRL: CartPole-v1, 500,000 steps, 495")
    assert evidence.beside("MuZero").startswith("Beside it: nothing. No other library was run")


class Mark:
    def __init__(self, solved):
        self.solved = solved


def test_a_mark_is_green_where_most_seeds_of_all_experiments_reach_it():
    reached, missed = [Mark(True), Mark(True), Mark(False)], [Mark(True), Mark(False)]
    assert evidence.of_marks([reached, []]) == evidence.GREEN and evidence.of_marks([reached, missed]) == evidence.YELLOW
    assert evidence.of_marks([]) == evidence.of_marks([[]]) == evidence.NONE
    without_a_goal = [Mark(None)]
    assert evidence.of_marks([without_a_goal]) == evidence.NONE and evidence.of_marks([reached, without_a_goal]) == evidence.GREEN
