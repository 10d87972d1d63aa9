"""Metrics while training, over keys of infos and by environment, and numbers that a hook of one's own adds."""

from functools import partial

import pytest
from agent_fakes import Corridor, Recorder, robot_of

from parl_like import Hook, OffPolicyHelper, VectorAgent
from parl_like.environment.hooks import EpisodeMetrics, EveryNEpisodes
from parl_like.lab.cli import main
from parl_like.lab.runs.metrics import read_metrics
from parl_like.lab.runs.rundir import RunDir


class Lives(Corridor):
    """Of length 3, 4, 5, … by the order in which they are made; the last info says so."""

    made = 0

    def __init__(self):
        super().__init__(3 + Lives.made)
        Lives.made += 1

    def step(self, act):
        *step, info = super().step(act)
        return *step, {**info, "position": self.at, **({"is_success": self.length > 3} if self.at == self.length else {})}


@pytest.fixture(autouse=True)
def anew():
    Lives.made = 0


def off():
    return OffPolicyHelper(size=200, batch_size=4)


@pytest.mark.parametrize("options", [{"n_agents": 3}, {"n_agents": 3, "driver": "threads"},
                                     {"n_agents": 2, "agent": partial(VectorAgent, 2)}], ids=str)
def test_numbers_of_environments_are_distinct_and_of_infos_their_means(options):
    metrics = EpisodeMetrics(info=["position", "is_success", "nothing"], by_env=True)
    n = 4 if "agent" in options else 3
    with robot_of(Recorder(), off, Lives, hooks=[metrics], **options) as robot:
        made = Lives.made
        robot.collect(n_episode=3 * n)
        robot.run(1)
        found = robot.metrics()
    lengths = {f"return/env_{i}": float(3 + made - n + i) for i in range(n)}
    assert {name: value for name, value in found.items() if name.startswith("return/env_")} == lengths
    assert {name: value for name, value in found.items() if name.startswith("info/position/")} == {
        f"info/position/{name.rpartition('/')[2]}": value for name, value in lengths.items()}
    assert found["info/is_success"] == pytest.approx(sum(value > 3 for value in lengths.values()) / n, abs=0.05)
    assert not any("nothing" in name for name in found)


def test_only_the_newest_episodes_count():
    hook = EpisodeMetrics(info=["x"], keep=2)
    for value in (9.0, True, 0.5):
        hook._add(["info/x"], value)
    assert hook.metrics() == {"info/x": 0.75}
    with pytest.raises(ValueError, match="EpisodeMetrics: keep is 0; expected at least 1"):
        EpisodeMetrics(keep=0)
    with pytest.raises(ValueError, match="EpisodeMetrics: info/x is 'high'; expected a number"):
        hook._add(["info/x"], "high")


class Mine(Hook):
    """Adds a number; one that the robot has, too, stays the robot's."""

    def metrics(self):
        return {"mine": 3, "episodes": -1.0}


def test_a_hook_of_ones_own_adds_numbers():
    with robot_of(Recorder(), off, Corridor, hooks=Mine()) as robot:
        robot.run(20)
        assert robot.metrics()["mine"] == 3.0 and robot.metrics()["episodes"] == 4.0
    with robot_of(Recorder(), off, Corridor) as robot:
        assert "mine" not in robot.metrics()
        robot.run(20, Mine())
        assert robot.metrics()["mine"] == 3.0, "also of the last run"


def test_a_run_has_them_as_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "qlearning-frozenlake", "total_steps=4000", "eval_episodes=1", "hooks=[EpisodeMetrics]",
                 "EpisodeMetrics.info=[prob]", "EpisodeMetrics.by_env=true", "metrics_every=1000"]) == 0
    run = RunDir.open(next((tmp_path / "runs").iterdir()))
    rows = read_metrics(run)
    assert 0.3 < rows["info/prob"][-1] < 1.0 and rows["return/env_0"][-1] == pytest.approx(rows["return/mean"][-1])


def test_environments_of_worker_processes_are_numbered_and_keep_their_infos():
    with robot_of(Recorder(), off, Corridor, hooks=[EpisodeMetrics(by_env=True)], n_agents=3, driver="processes") as robot:
        robot.run(60)
        assert {name for name in robot.metrics() if "/env_" in name} == {f"return/env_{i}" for i in range(3)}
    with robot_of(Recorder(), off, Corridor, hooks=[EpisodeMetrics(info=["x"])], driver="processes") as robot:
        with pytest.raises(ValueError, match=r"EpisodeMetrics: info is \['x'\], and infos stay in the worker processes"):
            robot.run(60)


def test_a_checkpoint_keeps_what_hooks_have_counted(tmp_path):
    def build():
        hooks = [EpisodeMetrics(["position"], by_env=True), EveryNEpisodes(3, lambda robot: None)]
        return robot_of(Recorder(), off, Lives, hooks=hooks, n_agents=2)

    def counted(robot):
        numbers = {name: value for name, value in robot.metrics().items() if "info/" in name or "/env_" in name}
        return numbers, robot.pool.hooks.own[1]._seen

    with build() as robot:
        robot.run(40)
        robot.save(tmp_path / "at")
        expected = counted(robot)
    assert "info/position/env_1" in expected[0] and expected[1] > 3
    with build() as robot:
        robot.load(tmp_path / "at")
        assert counted(robot) == expected
        state = robot.state_dict()
        state["counters"]["hooks"]["EpisodeMetrics"][0]["seen"] = {"info/position": ["far"]}
        with pytest.raises(ValueError, match="nothing was changed.*expected a number, got 'far'"):
            robot.load_state_dict(state)
        assert counted(robot) == expected
