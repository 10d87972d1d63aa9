"""Every public algorithm says what shows that it is right, and all that is said is there."""

import algorithm_page
import evidence
import pytest

pytestmark = pytest.mark.checkout
SAID = [(name, kind, where) for name, one in evidence.load().items() for kind, where in one.items()]


def test_every_algorithm_has_an_entry_and_every_entry_an_algorithm():
    assert sorted(evidence.load()) == sorted(algorithm_page.names())


@pytest.mark.parametrize(("name", "kind", "where"), SAID, ids=lambda value: value[:40])
def test_what_is_said_is_there(name, kind, where):
    assert kind in evidence.KINDS and evidence.exists(where), f"{name}: {where}"


def test_what_is_not_there_is_found():
    assert not evidence.exists("tests/test_evidence.py::test_nothing") and not evidence.exists("tests/no.py::test_x")
    assert not evidence.exists("docs/benchmarks.md: nobody's row") and not evidence.exists("docs/benchmarks.md: ")


class Mark:
    def __init__(self, solved):
        self.solved = solved


def test_a_mark_is_green_where_most_seeds_of_all_experiments_reach_it():
    reached, missed = [Mark(True), Mark(True), Mark(False)], [Mark(True), Mark(False)]
    assert evidence.of_marks([reached, []]) == evidence.GREEN and evidence.of_marks([reached, missed]) == evidence.YELLOW
    assert evidence.of_marks([]) == evidence.of_marks([[]]) == evidence.NONE
