"""The model of `parl-like bench scale`: its kernel in numbers that a reader can redo, its fits on made-up measurements."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent))  # behind everything: the package is the installed one
from benchmarks import scale, scaling_tables
from benchmarks.scaling_model import CoreCosts, NetworkCosts, Work, fit_core, fit_network, least_squares, period

pytestmark = pytest.mark.checkout

CORE = CoreCosts(loop=2.0, step=1.0, step_byte=0.5, turn=3.0, asked_row=0.25, unroll_row=0.125, sent_byte=0.25, given=5.0,
                 weight_byte=0.5, round=7.0)
ACTS = NetworkCosts(predict=2.0, predict_row=0.5)
LEARNS = NetworkCosts(update=4.0, update_row=0.25, learn=6.0, learn_row=0.5)
TWO = Work(workers=2, agents=4, unroll=3, env_s=10.0, epochs=2, minibatches=2, obs_bytes=2, weight_bytes=8)


def test_a_period_with_replicas():
    """2 agents in each of 2 workers, 3 steps, so 12 rows."""
    took = period(TWO, CORE, ACTS, LEARNS)
    assert took.parts == {
        "environments": 3 * 2 * 10.0,
        "agents": 3 * (2.0 + 2 * (1.0 + 2 * 0.5)),
        "predictions": 3 * (2.0 + 2 * 0.5),
        "messages": 0.0,
        "rows": 7.0 + 12 * (0.125 + 2 * 0.25),
        "update": 6.0 + 12 * 0.5 + 2 * (2 * 4.0 + 12 * 0.25),
        "parameters": 2 * 5.0 + 2 * 8 * 0.5,
        "network": 0.0}
    assert took.seconds == 60 + 18 + 9 + 14.5 + 34 + 18 and took.rows == 12 and took.steps_per_s == 12 / 153.5
    assert took.bottleneck == "environments"


def test_a_period_with_central_serving():
    """The learner's process predicts for all 4 agents, and hears 2 workers at each of 3 steps."""
    took = period(replace(TWO, serve="central"), CORE, ACTS, LEARNS)
    assert took.parts["predictions"] == 3 * (2.0 + 4 * 0.5) and took.parts["messages"] == 3 * (2 * 3.0 + 4 * (0.25 + 2 * 0.25))
    assert took.parts["parameters"] == 10.0
    assert took.seconds == 60 + 18 + 12 + 27 + 14.5 + 34 + 10


def test_a_period_without_workers():
    """All 4 agents are in one process: nothing is sent, whoever serves."""
    took = period(replace(TWO, workers=0), CORE, ACTS, LEARNS)
    assert took.seconds == 3 * (2 + 4 * (10 + 2)) + 3 * (2 + 4 * 0.5) + 7 + 12 * 0.125 + 34
    assert took == period(replace(TWO, workers=0, serve="central"), CORE, ACTS, LEARNS)


def test_async_the_slower_side_counts():
    """Acting takes 60 + 18 + 9 = 87, the learner's process 14.5 + 34 + 18 = 66.5."""
    both = replace(TWO, mode="async")
    took = period(both, CORE, ACTS, LEARNS)
    assert took.seconds == 87 and set(took.parts) == {"environments", "agents", "predictions"}
    took = period(replace(both, env_s=0.0), CORE, ACTS, LEARNS)
    assert took.seconds == 66.5 and took.bottleneck == "update"


def test_async_agents_that_are_served_centrally_ask_in_halves_where_they_act_for_long():
    """Each worker sends two messages a step then, and no agent of the acting half waits."""
    work = replace(TWO, serve="central", mode="async")
    assert period(work, CORE, ACTS, LEARNS).seconds == 12 + (27 + 3 * 2 * 3) + 14.5 + 34 + 10
    assert period(replace(work, env_s=1000.0), CORE, ACTS, LEARNS).seconds == 6000 + 18
    few = CoreCosts(step=0.2e-3, turn=0.05e-3)  # 2 agents act for 0.4 ms
    took = period(replace(work, env_s=0.0), few, NetworkCosts(predict=0.1e-3), NetworkCosts())
    assert took.seconds == pytest.approx(3 * (0.4e-3 + 0.1e-3 + 2 * 0.05e-3)), "the acting agents wait for answers, too"


def test_async_on_too_few_cores_all_work_is_divided_by_them():
    took = period(replace(TWO, mode="async", cores=2), CORE, ACTS, LEARNS)
    assert took.seconds == (2 * 87 + 66.5) / 2
    assert period(replace(TWO, mode="async", cores=3), CORE, ACTS, LEARNS).seconds == 87


def test_machines_and_learners():
    """Half of the workers are on another machine: 100 bytes per second, 0.5 s of latency."""
    far = replace(TWO, machines=2, latency_s=0.5, bytes_per_s=100.0)
    assert period(far, CORE, ACTS, LEARNS).parts["network"] == pytest.approx(2 * 0.5 + 0.5 * (12 * (2 + 32) + 2 * 8) / 100)
    asked = period(replace(far, serve="central"), CORE, ACTS, LEARNS).parts["network"]
    assert asked == pytest.approx(2 * 0.5 * (1 + 3) + 0.5 * (2 * 12 * (2 + 32)) / 100)
    shared = period(replace(TWO, learners=2, latency_s=0.5, bytes_per_s=100.0), CORE, ACTS, LEARNS).parts
    assert shared["update"] == 6 + 12 * 0.5 / 2 + 2 * (2 * 4 + 12 * 0.25 / 2)
    assert shared["network"] == pytest.approx(2 * 2 * 2 * (0.5 + 2 * 8 / 100)), "4 optimiser steps, there and back"


def test_sync_workers_share_too_few_cores():
    took = period(replace(TWO, cores=1), CORE, ACTS, LEARNS)
    assert took.seconds == 2 * (60 + 18 + 9) + 14.5 + 34 + 18
    assert period(replace(TWO, cores=2), CORE, ACTS, LEARNS).seconds == 153.5


def test_an_agent_for_every_worker_at_least():
    with pytest.raises(ValueError, match="1 agents for 2 workers; expected at least one each"):
        period(replace(TWO, agents=1), CORE, ACTS, LEARNS)


TRUE = CoreCosts(loop=90e-6, step=20e-6, step_byte=2e-10, turn=150e-6, asked_row=3e-6, unroll_row=4e-6, sent_byte=5e-10,
                 given=300e-6, weight_byte=1e-10, round=400e-6)
NET = NetworkCosts(predict=8e-6, predict_row=1e-6, update=80e-6, update_row=1.5e-6, learn=150e-6, learn_row=1e-6)


def fitted(noise, most):
    rng = np.random.default_rng(0)

    seen = [(work, NET, period(work, TRUE, NET, NET).seconds * rng.uniform(1 - noise, 1 + noise))
            for _, work in scale.fit_settings(most)]
    return fit_core(seen, CoreCosts(weight_byte=1e-10), scale.FITTED)


@pytest.mark.parametrize("most", [2, 4])
def test_the_settings_of_the_benchmark_tell_all_constants_apart(most):
    assert asdict(fitted(0.0, most)) == pytest.approx(asdict(TRUE), rel=1e-6)


def test_noise_of_a_hundredth_leaves_predictions_within_a_twentieth():
    core = fitted(0.01, 4)
    for _, work in scale.check_settings([1, 2, 4]):
        expected = period(work, TRUE, NET, NET).seconds
        assert period(work, core, NET, NET).seconds == pytest.approx(expected, rel=0.05), work


def test_a_network_is_fitted_from_batches_and_updates():
    predicted = [(n, 2.0 + 0.5 * n) for n in (1, 8, 64)]
    learned = [(n, e, m, 6.0 + 0.5 * n + e * (m * 4.0 + n * 0.25)) for n, e, m in ((4, 1, 1), (16, 1, 1), (4, 3, 1), (16, 3, 1),
                                                                                   (4, 1, 4), (16, 3, 4))]
    assert asdict(fit_network(predicted, learned)) == pytest.approx(asdict(replace(LEARNS, predict=2.0, predict_row=0.5)))


def test_a_constant_that_would_be_negative_is_zero():
    """The line through (1, 1) and (2, 3) begins at −1; the best one from 0 is least squares of relative errors: 6/5 · n, for
    (1.2 − 1)² + (2.4/3 − 1)² is least there."""
    found = least_squares(np.array([[1.0, 1.0], [1.0, 2.0]]), np.array([1.0, 3.0]), ["start", "row"])
    assert found["start"] == 0 and found["row"] == pytest.approx((1 + 2 / 3) / (1 + 4 / 9))


def test_what_measurements_cannot_tell_apart_is_said():
    alone = [(Work(workers=0, agents=n), NET, 1.0) for n in (8, 16, 64)]
    with pytest.raises(ValueError, match="3 measurements do not tell step, unroll_row apart"):
        fit_core(alone, CoreCosts(), ["step", "unroll_row"])
    with pytest.raises(ValueError, match="'async'"):
        fit_core([(Work(workers=1, agents=1, mode="async"), NET, 1.0)], CoreCosts(), ["step"])


@pytest.fixture
def as_the_model_says(monkeypatch):
    """A machine that does exactly what the model says."""
    monkeypatch.setattr(scale, "measure_network", lambda network, device, seconds: NET)
    monkeypatch.setattr(scale, "timed", lambda work, seconds: (8 << 20) * 1e-10)

    def run(work, network, driver, rounds, seconds, device="cpu"):
        if work.workers == 9:
            raise RuntimeError("a worker was lost")
        return scale.Measured(*2 * [period(work, TRUE, NET, NET).seconds])

    monkeypatch.setattr(scale, "whole_run", run)


def test_a_machine_that_does_what_the_model_says_has_no_errors(as_the_model_says, capsys, tmp_path):
    assert scale.main(["--json", "--no-ray", "--workers", "1,2,9"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["core"]["processes"] == pytest.approx(asdict(TRUE), rel=1e-6)
    checks = [one for one in result["checks"] if "failed" not in one]
    assert result["median_error"] == pytest.approx(0, abs=1e-9) and max(abs(one["error"]) for one in checks) < 1e-9
    assert {one["failed"] for one in result["checks"] if "failed" in one} == {"RuntimeError: a worker was lost"}
    modes = {(one["work"]["mode"], one["work"]["serve"], one["work"]["workers"], one["work"]["env_s"]) for one in checks}
    assert {("sync", "replica", 1, 2e-4), ("async", "replica", 2, 2e-4), ("sync", "central", 2, 2e-4),
            ("sync", "replica", 2, 1e-3)} <= modes
    (tmp_path / "one.json").write_text(json.dumps(result))
    (tmp_path / "scaling.md").write_text(f"# Scaling\n\n{scaling_tables.MARKER}\nold")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scaling_tables, "DOCS", tmp_path)
        lines = scaling_tables.write_page([tmp_path / "one.json"], tmp_path)
    text = (tmp_path / "scaling.md").read_text()
    assert text.startswith("# Scaling\n\n<!-- made") and "old" not in text and "\n".join(lines) in text
    assert "| 1 worker, 8 agents, environment 200 µs, replicas, sync |" in text
    assert len([line for line in lines if line.startswith("| Nature CNN | CPU | 5 ms |")]) == 2


def test_one_whole_run_is_measured():
    work = Work(workers=0, agents=2, unroll=4, epochs=1, minibatches=1)
    found = scale.whole_run(work, scale.MLP, "cooperative", 2, 0.002)
    assert 0 < found.seconds <= found.median < 60
    costs = scale.measure_network(scale.MLP, "cpu", 0.0)
    assert costs.predict + costs.predict_row > 0 and costs.update_row + costs.update > 0


def test_the_page_is_made_of_its_figures():
    """After a change of tables or figures: parl-like bench scale --tables."""
    results = json.loads((scaling_tables.DOCS / "scaling.json").read_text(encoding="utf-8"))
    text = (scaling_tables.DOCS / "scaling.md").read_text(encoding="utf-8")
    assert text.endswith("\n".join(scaling_tables.page(results)))


def test_more_cores_help_until_the_learner_is_full():
    """Environments of 5 ms keep 1,024 cores busy longer than those of 20 µs."""
    results = json.loads((scaling_tables.DOCS / "scaling.json").read_text(encoding="utf-8"))
    said = scaling_tables.Extrapolation(results, next(iter(results.values())))
    gains = []
    for env_s in (20e-6, 5e-3):
        few, many = (said.best(cores, "2 × 64", "cpu", env_s, "sync")[0].steps_per_s for cores in (8, 64))
        gains.append(many / few)
    assert gains[0] < gains[1] <= 8
