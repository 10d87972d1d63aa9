"""What an agent is told: signals take each other's place by a table, and are set in one place."""

import ast
import sys
from pathlib import Path

import pytest
from agent_fakes import Recorder, robot_of

from parl_like import OffPolicyHelper
from parl_like.values.agent_orders import NEXT, AgentSignal
from parl_like.values.errors import Interrupted

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def agent():
    with robot_of(Recorder(), lambda: OffPolicyHelper(size=100, batch_size=2)) as robot:
        yield robot.agents[0]


def test_every_signal_has_its_row_in_the_table():
    assert set(NEXT) == {None, *AgentSignal}


@pytest.mark.parametrize("before", NEXT)
@pytest.mark.parametrize("signal", AgentSignal)
def test_a_signal_takes_the_place_of_weaker_ones_alone(agent, before, signal):
    order = [None, *AgentSignal]  # from the weakest on
    if before is not None:
        agent.tell(before)
    agent.tell(signal)
    assert agent.signal is max(before, signal, key=order.index)
    agent.go_on()
    assert agent.signal is None


def test_a_signal_that_was_obeyed_is_gone_and_another_stays(agent):
    agent.tell(AgentSignal.INTERRUPT)
    assert not agent.has_obeyed(AgentSignal.PARK) and agent.signal is AgentSignal.INTERRUPT
    with pytest.raises(Interrupted):
        agent.obey()
    assert agent.has_obeyed(AgentSignal.INTERRUPT) and agent.signal is None and not agent.has_obeyed(AgentSignal.INTERRUPT)


def test_no_thread_has_its_turn_while_a_signal_is_looked_up_and_set(agent):
    """A call of Python code in between could let another thread set a stronger signal, which were lost."""
    calls = []
    sys.setprofile(lambda frame, event, arg: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        agent.tell(AgentSignal.PARK)
        agent.has_obeyed(AgentSignal.PARK)
    finally:
        sys.setprofile(None)
    assert calls == ["tell", "has_obeyed"]


def test_signals_are_set_in_one_place():
    for path in sorted((ROOT / "parl_like").rglob("*.py")):
        stores = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Attribute)
                  and node.attr == "signal" and isinstance(node.ctx, ast.Store)]
        assert not stores or path.name == "agent.py", path


def test_signals_are_plain_text_where_they_travel():
    assert [str(signal) for signal in AgentSignal] == ["park", "interrupt", "stop"] and AgentSignal.STOP == "stop"
