"""Each algorithm of the catalogue keeps the laws of `parl-like probe` that tests/data/probe_laws.json says; a change is a
decision, see `probe_table`."""

import probe_table
import pytest

pytestmark = pytest.mark.checkout
KEPT = probe_table.kept()
NO_LINE = """
CQL CrossQ DroQ FQF OAC PLAS QRSAC REDQ RSAC RTD3 TQC
""".split()
"""Members that were not probed yet. Each takes ten seconds to some minutes; one that gets a line leaves this list."""

UNSETTLED = """BCQ CRR DDPG DecisionTransformer DiscreteCQL IQL MPO R2D2 TD3""".split()
"""Members of which a probe with its defaults says that a law is broken, and it is not known whose fault that is. DDPG, MPO and
TD3 keep all of them with hidden=[32, 32]; the others but R2D2 are for recorded rows, and stay near the actions of these."""


def test_every_member_has_a_line_and_no_law_is_broken():
    assert sorted([*KEPT, *NO_LINE, *UNSETTLED]) == probe_table.members()
    assert [(name, law) for name, laws in KEPT.items() for law, state in laws.items() if state == "BROKEN"] == []


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (len(laws) > 1)) for name, laws in KEPT.items()])
def test_a_member_keeps_the_laws_that_the_table_says(name):
    assert probe_table.laws_of(name) == KEPT[name]
