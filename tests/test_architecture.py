"""The picture of the rooms is that of the code."""

import architecture
import pytest

pytestmark = pytest.mark.checkout


def test_the_picture_and_the_table_are_current():
    found = architecture.arrows()
    assert architecture.SVG.read_text(encoding="utf-8") == architecture.svg(found), "run `make architecture`"
    page = architecture.PAGE.read_text(encoding="utf-8")
    assert page == architecture.page(page, found), "run `make architecture`"
    assert architecture.table(found) in page


def test_an_arrow_that_follows_from_others_is_left_out():
    found = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert architecture.direct(found) == {("a", "b"), ("b", "c")}


def test_a_new_arrow_shows_in_both():
    found = architecture.arrows()
    more = found | {"lab": found["lab"] | {"envs"}}
    assert architecture.svg(more) != architecture.svg(found) and architecture.table(more) != architecture.table(found)


def test_a_new_room_needs_a_place():
    with pytest.raises(SystemExit, match=r"\['cellar'\]; add them to ROOMS"):
        architecture.svg(architecture.arrows() | {"cellar": set()})
