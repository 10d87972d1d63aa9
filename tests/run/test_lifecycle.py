"""Lifecycle: the phases of a pool's agents, and that they follow each other as the table says."""

import threading

import pytest
from agent_fakes import Corridor, Recorder, robot_of

from parl_like import OffPolicyHelper
from parl_like.run.lifecycle import NEXT, Lifecycle, Phase
from parl_like.values.errors import AgentFailed


class Watched(Lifecycle):
    """Notes the phases it passes through."""

    def __init__(self, pool):
        super().__init__(pool)
        self.passed = [self.phase]

    def _move(self, phase):
        super()._move(phase)
        self.passed.append(phase)


def robot(**options):
    made = robot_of(Recorder(), lambda: OffPolicyHelper(size=100, batch_size=2, learn_every=2), **{"n_agents": 2, **options})
    made.pool.lifecycle = Watched(made.pool)
    return made, made.pool.lifecycle


def since(lifecycle):
    passed, lifecycle.passed = lifecycle.passed, [lifecycle.phase]
    return [phase.name for phase in passed]


each_driver = pytest.mark.parametrize("driver", ["cooperative", "threads"])


@each_driver
def test_runs_iterations_checkpoints_and_the_end(driver, tmp_path):
    made, life = robot(driver=driver)
    made.train_iter()
    assert since(life) == ["IDLE", "BUSY", "BETWEEN"]
    made.checkpoint_boundary()
    assert since(life) == ["BETWEEN", "BUSY", "BETWEEN"]
    made.run(4)
    assert set(since(life)) == {"BETWEEN", "BUSY", "WAITING"} and life.phase is Phase.WAITING
    made.save(tmp_path)
    assert since(life) == ["WAITING", "BUSY", "PAUSED"]
    made.checkpoint_boundary()
    assert since(life) == ["PAUSED", "BUSY", "PAUSED"]
    made.train_iter()
    assert since(life) == ["PAUSED", "BUSY", "BETWEEN"]
    made.load(tmp_path)
    assert since(life) == ["BETWEEN", "BUSY", "IDLE"]
    made.checkpoint_boundary()
    assert since(life) == ["IDLE"]
    made.close()
    assert since(life) == ["IDLE", "CLOSED"]
    made.close()
    made.checkpoint_boundary()
    assert since(life) == ["CLOSED"] and made.closed
    with pytest.raises(RuntimeError, match="this robot was closed"):
        made.run(4)


@each_driver
def test_after_ctrl_c_the_next_call_ends_all_agents_first(driver, monkeypatch):
    made, life = robot(driver=driver)

    def strike(*args, **kwargs):
        raise KeyboardInterrupt

    with made:
        made.train_iter()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(made.pool.driver, "iterate", strike)
            made.train_iter()
        assert life.phase is Phase.BUSY
        since(life)
        made.train_iter()
        assert since(life) == ["BUSY", "IDLE", "BUSY", "BETWEEN"]


def test_agents_that_wait_in_another_thread_are_given_up():
    made, life = robot()
    began, tried = threading.Event(), threading.Event()

    def go_on():
        made.train_iter()
        began.set()
        tried.wait()
        made.close()

    made.run(4)
    since(life)
    thread = threading.Thread(target=go_on)
    thread.start()
    began.wait()
    try:
        assert since(life) == ["WAITING", "IDLE", "BUSY", "BETWEEN"]
        with pytest.raises(RuntimeError, match="greenlets cannot change threads"):
            made.train_iter()
    finally:
        tried.set()
        thread.join()
    assert since(life) == ["BETWEEN", "BUSY", "IDLE", "CLOSED"]


@each_driver
def test_an_environment_that_raises_leaves_no_agent(driver):
    class Fails(Corridor):
        def step(self, action):
            raise OSError("broken")

    made, life = robot(driver=driver, env=Fails)
    with made, pytest.raises(AgentFailed, match="raised in step.*OSError: broken"):
        made.run(4)
    assert life.passed[-2:] == [Phase.IDLE, Phase.CLOSED] and Phase.WAITING not in life.passed


@each_driver
def test_agents_that_went_on_are_under_way_whatever_the_iteration_raises(driver, monkeypatch):
    made, life = robot(driver=driver)
    with made:
        made.run(4)
        assert life.phase is Phase.WAITING
        went_on, go_on = [], made.pool.driver.go_on
        monkeypatch.setattr(made.pool.driver, "go_on", lambda: went_on.append(go_on()))
        with monkeypatch.context() as broken:
            broken.setattr(made.pool.driver, "iterate", lambda: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                life.advance()
        assert life.phase is Phase.BETWEEN
        life.advance()
        assert len(went_on) == 1 and life.phase is Phase.BETWEEN


def test_what_the_table_does_not_allow_is_refused():
    made, life = robot()
    with made:
        for here in Phase:
            for there in Phase:
                life.phase = here
                if there in NEXT[here]:
                    life._move(there)
                    assert life.phase is there
                else:
                    with pytest.raises(RuntimeError, match=f"cannot go from {here.name} to {there.name}; after"):
                        life._move(there)
                    assert life.phase is here
        life.phase = Phase.IDLE
    assert set(NEXT) == set(Phase) and Phase.CLOSED in NEXT[Phase.IDLE] and NEXT[Phase.CLOSED] == ()
