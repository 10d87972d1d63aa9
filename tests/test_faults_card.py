"""The score card of `parl-like bench faults`: what it makes of a table, of tests that ran, of records and of source code."""

import importlib
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).resolve().parent.parent

TABLE = """\
| | fault | what happens | state | tests |
|---|---|---|---|---|
| F01 | raises | ends | holds | `a/test_one.py`: first, second[big] |
| F02 | text with F07 in it | – | in part: no flag | second |
| F03–F05, F07 | many | – | holds for the format; no limit | `test_two.py` (200,000 mutations; a million as `slow`) |
| F06 | two files | – | holds | `a/test_one.py`, `test_two.py`: third; fourth |
| F08 | none | – | open | – |
"""
FUNCTIONS = {"a/test_one.py": ["test_the_first", "test_a_second_one"],
             "test_two.py": ["test_a_second_one", "test_third", "test_fourth"]}


@pytest.fixture
def card(monkeypatch):
    """The repository's own folder, whatever other tests have imported under that name."""
    monkeypatch.syspath_prepend(str(ROOT))
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("benchmarks.faults")


def test_a_table_is_read(card):
    one, two, many, files, none = card.table.rows_of(TABLE)
    assert (one.faults, one.state, one.tests) == (["F01"], "holds",
                                                  [("a/test_one.py", "first"), ("a/test_one.py", "second[big]")])
    assert (two.faults, two.tests) == (["F02"], [("", "second")])
    assert (many.faults, many.tests) == (["F03", "F04", "F05", "F07"], [("test_two.py", "")])
    assert files.tests == [("test_two.py", "third"), ("a/test_one.py", ""), ("", "fourth")]
    assert (none.faults, none.tests) == (["F08"], [])
    assert [row.holds for row in (one, two, many, files, none)] == [True, False, False, True, False]


def test_a_word_means_functions(card):
    assert card.table.targets("a/test_one.py", "first", FUNCTIONS) == ["a/test_one.py::test_the_first"]
    assert card.table.targets("", "second", FUNCTIONS) == ["a/test_one.py::test_a_second_one", "test_two.py::test_a_second_one"]
    assert card.table.targets("", "second",
                              {**FUNCTIONS, card.table.COMMON: ["test_the_second"]}) == [f"{card.table.COMMON}::test_the_second"]
    assert card.table.targets("test_two.py", "", FUNCTIONS) == ["test_two.py"]
    assert card.table.targets("test_two.py", "first", FUNCTIONS) == card.table.targets("test_three.py", "", FUNCTIONS) == []


@pytest.mark.parametrize(("results", "why"), [
    ({}, ""),
    ({"a/test_one.py::test_the_first": "failure"}, "failed: a/test_one.py::test_the_first"),
    ({"a/test_one.py::test_the_first": "error"}, "failed: a/test_one.py::test_the_first"),
    ({"a/test_one.py::test_the_first": "skipped"}, "`a/test_one.py first`: no test ran"),
    ({"a/test_one.py::test_a_second_one[big-1]": None}, "`a/test_one.py second[big]`: no test ran"),
    ({"a/test_one.py::test_a_second_one[small]": "failure"}, ""),  # of another parameter
])
def test_a_fault_counts_if_all_its_tests_passed(card, results, why):
    ran = dict.fromkeys(["a/test_one.py::test_the_first", "a/test_one.py::test_a_second_one[big-1]",
                         "a/test_one.py::test_a_second_one[small]"], "passed")
    outcomes = [card.table.Outcome(node, result, 0.1) for node, result in (ran | results).items() if result is not None]
    row = card.table.rows_of(TABLE)[0]
    assert card.table.judged(row, FUNCTIONS, outcomes)[1] == why


def test_a_fault_does_not_count_where_the_table_is_doubtful_or_names_nothing(card):
    passed = [card.table.Outcome(f"{file}::{name}", "passed", 0.1) for file, names in FUNCTIONS.items() for name in names]
    reasons = [card.table.judged(row, FUNCTIONS, passed)[1] for row in card.table.rows_of(TABLE)]
    assert reasons == ["`a/test_one.py second[big]`: no test ran", "in part: no flag", "holds for the format; no limit", "",
                       "open"]
    assert card.table.judged(card.table.Row(["F09"], "holds", []), FUNCTIONS, passed)[1] == "no tests named"
    assert card.table.judged(card.table.Row(["F09"], "holds", [("", "gone")]), FUNCTIONS, passed)[1] == "` gone`: no such test"


def test_every_fault_is_in_our_table_once_and_its_tests_exist(card):
    rows = card.table.rows_of((ROOT / "docs" / "reliability.md").read_text(encoding="utf-8"))
    faults = [fault for row in rows for fault in row.faults]
    assert sorted(fault for fault in faults if fault[-1].isdigit()) == [f"F{number:02}" for number in range(1, 45)]
    assert len(set(faults)) == len(faults)
    functions = card.table.functions_of(ROOT / "tests")
    assert [(row.faults, file, word) for row in rows for file,
            word in row.tests if not card.table.targets(file, word, functions)] == []


def test_pytest_is_run_and_read(card):
    nodes = ["test_faults_card.py::test_a_table_is_read", "test_faults_card.py::test_a_fault_counts_if_all_its_tests_passed"]
    outcomes = card.table.run_tests(nodes)
    assert [outcome.node.partition("[")[0] for outcome in outcomes] == [nodes[0], *[nodes[1]] * 6]
    assert {outcome.result for outcome in outcomes} == {"passed"} and all(outcome.seconds > 0 for outcome in outcomes)


def test_records_are_compared(card):
    def learned(*records):
        return np.array([[agent, pid, number, card.running.check_of(agent, pid, number)] for agent, pid, number in records],
                        np.int64)

    heard = {(0, 7): 2, (1, 8): 1}
    exact = learned((0, 7, 0), (0, 7, 1), (1, 8, 0))
    assert card.running.tally(exact, heard) == {"learned": 3, "acknowledged": 3, "lost": 0, "duplicated": 0, "corrupted": 0}
    assert card.running.tally(learned((0, 7, 0), (0, 7, 1), (1, 8, 0), (1, 8, 1)),
                      heard)["lost"] == 0, "learned from, and its sender was killed before it heard of it"
    assert card.running.tally(exact[:2], heard)["lost"] == 1
    assert card.running.tally(np.concatenate([exact, exact[:1]]), heard)["duplicated"] == 1
    exact[2, 2] += 1
    assert [card.running.tally(exact, heard)[what] for what in ("lost", "corrupted")] == [1, 1]


def test_unsafe_calls_are_found_under_any_name(card):
    source = """
import pickle, yaml, torch as t, numpy as np
import cloudpickle as cp
from marshal import loads as read
from yaml import load, SafeLoader
pickle.loads(x); cp.load(f); map(read, xs)
eval(x); model.eval(); pickle.dumps(x)
load(x, SafeLoader); load(x); yaml.load(x, Loader=yaml.SafeLoader); yaml.load(x, Loader=yaml.Loader); yaml.unsafe_load(x)
t.load(f, weights_only=True); t.load(f, weights_only=False); t.load(f)
np.load(f); np.load(f, allow_pickle=True)
run(x, shell=False); run(x, shell=True); run(x, shell=y)
"""
    found = card.code.unsafe_calls_in(source)
    assert [line for line, _ in found] == [6, 6, 6, 7, 8, 8, 8, 9, 9, 10, 11, 11]
    assert {name for line, name in found if line == 6} == {"pickle.loads", "cloudpickle.load", "marshal.loads"}


def test_nothing_that_another_may_have_written_is_unpickled_or_run(card):
    line = card.code.unsafe_calls(None)
    assert line.details["where"].keys() == line.details["own_pipe"].keys(), "unsafe outside of what this process's family wrote"
    assert {place.partition(":")[0] for place in line.details["own_pipe"]} == {*card.code.OWN_PIPE}
    rooms = [path for room in ("parl_like", "robots", "algorithms", "models", "envs") for path in (ROOT / room).rglob("*.py")]
    assert [path for path in rooms if "recv_pyobj" in path.read_text(encoding="utf-8")] == []


def test_a_line_that_fails_or_hangs_says_so_and_the_others_are_measured(card, monkeypatch, capsys):
    def hangs(options):
        card.running.until(lambda: False, 60.0)

    def fails(options):
        raise OSError("no disk")

    lines = {"one": hangs, "two": fails, "three": lambda options: card.Line("7", True)}
    monkeypatch.setattr(card, "CARD", {name: (work, "0", "nobody") for name, work in lines.items()})
    assert card.measured("one", Namespace(), 0.05).value == "not measured: not done after 0.05 s; something hangs"
    assert card.main(["--only", "two", "three"]) == 0
    out = capsys.readouterr().out
    assert "two: not measured: OSError: no disk\n    goal 0: ?" in out and "three: 7\n    goal 0: yes" in out
    assert "1 of 2 goals reached" in out
