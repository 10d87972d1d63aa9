"""One draw for all the updates of a time (`draw_once`): how many there are, of which rows, and whose priorities come back."""

from functools import partial

import pytest
from agent_fakes import Corridor, Recorder, robot_of

from parl_like import OfflineHelper, OffPolicyHelper, PrioritizedReplayBuffer, ReplayBuffer, VectorAgent
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.learning.algorithm import Window


class Told(Recorder):
    """Priority of a row: its position, plus 1."""

    takes_priorities = True

    def learn(self, batch):
        return {**super().learn(batch), "priority": batch.obs.reshape(len(batch.obs), -1)[:, 0] + 1}


def once(buffer=ReplayBuffer, **options):
    return lambda: OffPolicyHelper(**{"size": 100, "batch_size": 4, "learn_every": 10, "updates": 3, "draw_once": True,
                                      "buffer": buffer, **options})


@pytest.fixture
def draws(monkeypatch):
    """The positions of every draw from a buffer."""
    seen = []
    sample = ReplayBuffer.sample_indices

    def watched(self, n, *args, **options):
        seen.append(sample(self, n, *args, **options))
        return seen[-1]

    monkeypatch.setattr(ReplayBuffer, "sample_indices", watched)
    return seen


@pytest.mark.parametrize("options", [{}, {"agent": partial(VectorAgent, 2)}, {"mode": "async"}], ids=str)
def test_so_many_updates_of_one_draw_which_they_share(draws, options):
    """Steps 10 to 50 of 50: at the first the buffer has 10 rows, fewer than 3 · 4, so there are four times."""
    algorithm = Recorder()
    with robot_of(algorithm, once(), partial(Corridor, 1000), **options) as robot:
        robot.run(StopAfterSteps(50))
    assert all(len(drawn) == 12 for drawn in draws) and len(algorithm.updates_seen) == 3 * len(draws)
    assert len(draws) == 4
    shuffled = 0
    for i, drawn in enumerate(draws):
        updates = [rows["obs"][:, 0].tolist() for rows in algorithm.updates_seen[3 * i : 3 * i + 3]]
        there = [at % 50 for at in drawn.tolist()]
        assert [len(one) for one in updates] == [4, 4, 4] and sorted(sum(updates, [])) == sorted(there)
        shuffled += sum(updates, []) != there
    assert shuffled


@pytest.mark.parametrize("window", [Window(), Window(n_step=2), Window(sequence=3)], ids=str)
def test_each_row_gets_its_own_priority(window):
    algorithm = Told()
    algorithm.window = window
    with robot_of(algorithm, once(partial(PrioritizedReplayBuffer, alpha=1.0)), partial(Corridor, 1000)) as robot:
        robot.run(StopAfterSteps(80))
        buffer = robot.buffers["RL"]
        seen = {int(at) for rows in algorithm.updates_seen for at in rows["obs"].reshape(4, -1)[:, 0]}
        for at in seen:
            assert float(buffer.state_dict()["weights"][at]) == pytest.approx(at + 1.0, rel=1e-4)
    assert len(seen) > 20


def test_it_is_resumed_exactly(tmp_path):
    left = []
    for run in range(2):
        with robot_of(Recorder(), once(), partial(Corridor, 1000), seed=3, trace=True) as robot:
            if run:
                robot.load(tmp_path / "half")
            else:
                robot.run(StopAfterSteps(35))
                robot.save(tmp_path / "half")
            robot.run(StopAfterSteps(40))
            left.append((robot.trace_hash(), robot.tasks["RL"].algorithm.updates_seen[-1]["obs"].tolist()))
    assert left[0] == left[1]


def test_what_cannot_be():
    with pytest.raises(ValueError, match=r"warmup \(0\) or batch_size · updates \(120, draw_once\) is above size \(100\)"):
        once(batch_size=40)()
    with robot_of(Recorder(), once()) as robot:
        robot.collect(n_step=40)
        data = robot.buffers["RL"]
        with pytest.raises(ValueError, match="draw_once shuffles rows, and this helper sends them in order"):
            robot_of(Recorder(), lambda: OfflineHelper(data, batch_size=4, updates=2, draw_once=True, in_order=True)).close()
