"""Each algorithm of the catalogue keeps the laws of `parl-like probe` that tests/data/probe_laws.json says; a change is a
decision, see `probe_table`."""

import probe_table
import pytest

pytestmark = pytest.mark.checkout
KEPT = probe_table.kept()

def test_every_member_has_a_line_and_no_law_is_broken():
    assert list(KEPT) == probe_table.members()
    assert [(name, law) for name, laws in KEPT.items() for law, state in laws.items() if state == "BROKEN"] == []


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (len(laws) > 1)) for name, laws in KEPT.items()])
def test_a_member_keeps_the_laws_that_the_table_says(name):
    assert probe_table.laws_of(name) == KEPT[name]
