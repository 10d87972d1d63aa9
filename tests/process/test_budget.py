"""RestartBudget: how many restarts are allowed, and how long they wait."""

import time

import pytest

from parl_like.process.child import PERIOD, RestartBudget


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_old_restarts_are_forgiven(clock):
    budget = RestartBudget()
    assert [budget.spend() for _ in range(3)] == pytest.approx([0.0, 0.05, 0.1])
    clock[0] = PERIOD
    assert [budget.spend() for _ in range(11)] == [0.0, *([pytest.approx(min(0.05 * 2**k, 1.0)) for k in range(9)]), None]


def test_limit_period_and_pauses_are_the_owners(clock):
    budget = RestartBudget(2, 5.0, pause=0.0)
    assert [budget.spend() for _ in range(3)] == [0.0, 0.0, None]
    clock[0] = 5.0  # a restart that was refused does not count
    assert [budget.spend() for _ in range(3)] == [0.0, 0.0, None]
    budget.clear()
    assert budget.spend() == 0.0
    assert RestartBudget(0).spend() is None
    slow = RestartBudget(9, pause=0.1, max_pause=0.3)
    assert [slow.spend() for _ in range(4)] == pytest.approx([0.0, 0.1, 0.2, 0.3])
