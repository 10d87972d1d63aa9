"""The three levels of `robots/hierarchy.py`: what counts as a cell that was reached."""

import numpy as np
import pytest

from parl_like.robots.hierarchy import CellAgent


def seen(key: bool, door: bool) -> np.ndarray:
    """Return an observation that heads east; key and door as they are then."""
    obs = np.zeros(17, np.float32)
    obs[0], obs[9], obs[10] = 1, key, door
    return obs


@pytest.mark.parametrize(("before", "after", "reached"), [
    ((False, False), (True, False), True),  # took the key
    ((True, False), (True, True), True),  # opened the door
    ((True, True), (True, False), False),  # shut it again
    ((True, True), (True, True), False),
])
def test_a_door_that_is_shut_again_reaches_no_cell(before: tuple[bool, bool], after: tuple[bool, bool], reached: bool) -> None:
    agent = CellAgent(8, 5)
    agent.start = seen(*before)
    assert agent.goal_achieved(seen(*after), 0) is reached
    assert not agent.goal_achieved(seen(*after), 1), "it heads east"
