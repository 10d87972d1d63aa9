"""metrics.csv; the curves and statistics that are read from it; the lines that people read meanwhile."""

import csv
import io
import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as drawn_with
from hypothesis import strategies as st

from parl_like.lab.config import ExperimentConfig, to_dict
from parl_like.lab.progress import Progress, wrapped
from parl_like.lab.reports import plots
from parl_like.lab.reports.plots import (
    PlotError,
    bootstrap_interval,
    curves,
    iqm,
    learning_curve,
    on_common_steps,
    settings,
    thinned,
)
from parl_like.lab.runs import metrics, rundir
from parl_like.lab.runs.metrics import (
    MetricsLog,
    Table,
    each_evaluation,
    evaluations,
    last_evaluation,
    last_row,
    read_metrics,
    truncate,
)
from parl_like.lab.runs.outbox import RunError
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.screen import Screen, can_draw

NAN = math.nan


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return RunDir.create("cartpole", to_dict(ExperimentConfig(run_dir="run")))


def test_a_metric_that_appears_later_adds_a_column(run):
    log = MetricsLog(run)
    log.write({"step": 1000, "return/mean": NAN, "RL/loss": 0.5})
    log.write({"step": 2000, "return/mean": 12.5, "RL/loss": 1e-7, "late": 3.0})
    log.write({"step": 3000, "late": 4.0, "RL/loss": np.float32(2), "later": NAN})
    log.write({"step": 4000, "return/mean": 1.0})
    assert run.metrics_file.read_text() == ("step,return/mean,RL/loss,late,later\n1000,,0.5,,\n2000,12.5,1e-07,3,\n"
                                            "3000,,2,4,\n4000,1,,,\n")
    columns = read_metrics(run)
    assert list(columns) == ["step", "return/mean", "RL/loss", "late", "later"]
    np.testing.assert_array_equal(columns["late"], [NAN, 3, 4, NAN])
    assert last_row(run)["step"] == 4000


def test_a_second_process_goes_on_with_the_columns_of_the_first(run):
    MetricsLog(run).write({"step": 1, "a": 1.0, "b": 2.0})
    MetricsLog(run).write({"step": 2, "b": 3.0, "c": 4.0})
    assert run.metrics_file.read_text() == "step,a,b,c\n1,1,2,\n2,,3,4\n"


def test_numbers_come_back_exactly(run):
    values = [0.1, 1e-300, -2.5, 1e17, 123456789.125, 3.0, float("inf")]
    for step, value in enumerate(values):
        MetricsLog(run).write({"step": step, "a, \"b\"": value})
    assert read_metrics(run) == {"step": list(map(float, range(7))), "a, \"b\"": values}
    assert last_row(run) == {"step": 6.0, "a, \"b\"": math.inf}


def test_truncate_drops_what_came_after_the_checkpoint(run):
    log = MetricsLog(run)
    for step in (1000, 2000, 3000):
        log.write({"step": step, "a": 1.0} | ({"late": 5.0} if step > 1000 else {}))
    with open(run.metrics_file, "a") as file:
        file.write("1500,1")  # of 1500,123: the crash came in the middle of the line
    truncate(run, 2000)
    assert run.metrics_file.read_text() == "step,a,late\n1000,1,\n2000,1,5\n"
    truncate(run, 0)
    assert run.metrics_file.read_text() == "step,a,late\n", "the header stays the one of this run"


def test_truncate_of_nothing_and_of_a_torn_header(run):
    truncate(run, 5)
    assert not run.metrics_file.exists()
    run.metrics_file.write_text("step,retu")
    truncate(run, 5)
    assert not run.metrics_file.exists()
    assert (read_metrics(run), last_row(run)) == ({}, {})


def test_last_row_of_a_long_file_and_of_a_torn_one(run):
    run.metrics_file.write_text("step,a\n" + "".join(f"{step},{step / 2}\n" for step in range(20_000)) + "20000,1")
    assert last_row(run) == {"step": 19_999.0, "a": 9_999.5}
    run.metrics_file.write_text("step,a\n")
    assert last_row(run) == {}


def test_the_last_row_is_found_in_a_file_of_any_size(run, monkeypatch):
    for module in (metrics, rundir):
        monkeypatch.setattr(module, "MAX_TABLE_BYTES", 1_000)
    run.metrics_file.write_text("step,a\n" + "".join(f"{step},{step / 2}\n" for step in range(20_000)))
    assert last_row(run) == {"step": 19_999.0, "a": 9_999.5}
    run.metrics_file.write_text("step," * 19_000 + "a\n" + "\n" * (1 << 18))  # each line would cost one look at the header
    assert last_row(run) == {}


@pytest.mark.parametrize(("limit", "value"), [("ROWS", 100), ("BYTES", 1_000)])
def test_the_table_of_a_long_run_keeps_what_its_readers_take(limit, value, run, monkeypatch, caplog):
    """Rows from 0 to 999; an evaluation each tenth row, which all fit; a column that comes late."""
    monkeypatch.setattr(metrics, f"OWN_{limit}", value)
    monkeypatch.setattr(metrics, f"MAX_{'ROWS' if limit == 'ROWS' else 'TABLE_BYTES'}", 2 * value)
    log, most = MetricsLog(run), 0
    for step in range(1_000):
        if step == 500:
            log = MetricsLog(run)  # resumed
        log.write({"step": step, "a": 1.0} | ({"late": 2.0} if step >= 995 else {}))
        if step % 100 == 0:
            log.write({"step": step, "eval/score": step / 2, "eval/episodes": 5})
        text = run.metrics_file.read_bytes()
        most = max(most, text.count(b"\n") if limit == "ROWS" else len(text))
        assert text.splitlines()[-1].startswith(b"%d," % step), "the last row is always there"
    assert value / 2 < most <= value
    columns = read_metrics(run)
    assert list(columns) == ["step", "a", "eval/score", "eval/episodes", "late"] and columns["step"] == sorted(columns["step"])
    assert columns["late"][-1] == 2 and last_evaluation(run) == ({"score": 450.0, "episodes": 5.0}, False)
    if limit == "ROWS":
        assert evaluations(run) == [(step, step / 2) for step in range(0, 1_000, 100)], "evaluations are few, so all stay"
    assert ["metrics.csv is full" in record.getMessage() for record in caplog.records] == [True, True], "once in each process"
    truncate(run, 700)
    assert read_metrics(run)["step"][-1] <= 700


def test_of_rows_that_are_all_evaluations_every_second_stays(run, monkeypatch):
    monkeypatch.setattr(metrics, "OWN_ROWS", 10)
    log = MetricsLog(run)
    for step in range(1_000):
        log.write({"step": step, "eval/score": 1, "eval/episodes": 5})
        log.write({"step": step, "a": 1})
        assert run.metrics_file.read_text().count("\n") <= 10
    kinds = read_metrics(run)["a"]
    assert evaluations(run)[-1] == (999, 1) and kinds[-1] == 1 and 0 < np.isnan(kinds).sum() < len(kinds)


@pytest.mark.parametrize("names", [[f"x/{i}" for i in range(25_000)], ["n" * 200_000], ["\n" * 65], ["\udce4"],
                                   [f"{i:09}{'n' * 99_991}" for i in range(12)]],
                         ids=["many", "long", "lines", "no text", "long together"])
def test_a_column_that_readers_would_refuse_is_left_out(names, run, caplog):
    log = MetricsLog(run)
    for step in range(2):
        log.write({"step": step, "a": 1.0} | dict.fromkeys(names, 2.0) | {"z": 3.0})
    log.write({"step": 2, "a": 1.0, names[0]: 2.0})
    columns = read_metrics(run)
    assert columns["step"] == [0, 1, 2] == read_metrics(run)["step"] and columns["a"] == [1, 1, 1]
    assert len([one for one in caplog.records if "has no room for column" in one.getMessage()]) == 1


def test_a_table_that_somebody_has_changed_meanwhile_ends_no_run(run, caplog):
    log = MetricsLog(run)
    log.write({"step": 1, "a": 1.0})
    changed = "step,a\n" + "\n" * 2_000_001
    run.metrics_file.write_text(changed)
    for step in (2, 3):
        log.write({"step": step, "a": 1.0, "late": 2.0})
    assert log.header == ["step", "a"] and run.metrics_file.read_text() == f"{changed}2,1\n3,1\n"
    assert ["no new column" in record.getMessage() for record in caplog.records] == [True]
    run.metrics_file.write_text("step,a\n1,1\n")
    log.write({"step": 4, "a": 1.0, "late": 2.0})
    assert run.metrics_file.read_text() == "step,a,late\n1,1,\n4,1,2\n"


def plainly(data):
    """Header and rows as the module `csv` reads the whole text at once."""
    header, *rows = list(csv.reader(io.StringIO(data[: data.rfind(b"\n") + 1].decode(), newline=""))) or [[]]
    return header, [row for row in rows if row and len(row) == len(header)]


@pytest.mark.parametrize("piece", [1, 7, 1 << 18])
@given(text=st.text(st.sampled_from('a7,,,"\n\n\ré '), max_size=60))
@example(text='step,"a, ""b""",c\n1,2,3\n\n4,,\r\n"5\n",6,7\r8,9\n8,9,1e3\n1,2')
@example(text="step\n\n1\n,\n2\r3\r\r4\r\n5")
@drawn_with(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_table_is_read_row_by_row_as_it_would_be_whole(run, piece, text):
    data = text.encode()
    table = Table(run, [data[at : at + piece] for at in range(0, len(data), piece)])
    assert (table.header, list(table.rows())) == plainly(data)
    table = Table(run, [data])
    if len(set(table.header)) > 1:
        names = list(dict.fromkeys(table.header))[:2]
        places = [len(table.header) - 1 - table.header[::-1].index(name) for name in names]  # of equal names the last
        assert list(table.cells(names)) == [tuple(row[at] for at in places) for row in plainly(data)[1]]


def test_a_table_is_read_with_what_waits_to_be_written(run, monkeypatch):
    run.metrics_file.write_bytes(b"step,a\n1,2\n")
    monkeypatch.setattr(run.outbox, "_write", lambda: None)  # the disk is full
    MetricsLog(run).write({"step": 2, "a": 3.0})
    assert read_metrics(run) == {"step": [1, 2], "a": [2, 3]}
    MetricsLog(run).write({"step": 3, "b": 4.0})
    np.testing.assert_array_equal(read_metrics(run)["b"], [NAN, NAN, 4])


def test_a_line_without_an_end_is_refused_before_it_takes_memory(run):
    run.metrics_file.write_bytes(b"step,return/mean\n" + b"1" * (2 << 20))
    for read in (read_metrics, lambda run: curves(run, "return/mean")):
        with pytest.raises(RunError, match="is no table that a run wrote: it has a line of over 1048576 bytes"):
            read(run)


@pytest.mark.parametrize(("text", "said"), [
    (b"step,return/mean\n" + b"\n" * 2_000_001, "it has over 2000000 lines"),
    (b"step,return/mean\n" + b'"\n' * 2_000_001, "it has over 2000000 lines"),
    (b"step,return/mean" + b"," * 20_000 + b"\n", "it has 20002 columns, over 20000"),
], ids=["lines", "quotes", "columns"])
def test_a_table_without_end_is_refused(text, said, run):
    run.metrics_file.write_bytes(text)
    for read in (read_metrics, lambda run: curves(run, "return/mean"), lambda run: truncate(run, 5)):
        with pytest.raises(RunError, match=f"is no table that a run wrote: {said}; move it away, and a resumed run begins"):
            read(run)
    assert run.metrics_file.read_bytes() == text


def test_numbers_that_no_picture_has_room_for_are_drawn_at_its_edge(run, tmp_path):
    run.metrics_file.write_text("step,return/mean\n1,1e308\n2,-1e308\n1e308,3\n")
    assert curves(run, "return/mean")["return/mean"][1].tolist() == [1e150, -1e150, 3]
    if not plots.matplotlib_missing():
        assert plots.learning_curve([run], tmp_path / "curve.png").stat().st_size


def test_a_wide_table_takes_little_memory(run):
    """10 MB of 504 columns, of which what is asked for is kept: 20,000 points at most of a curve, no row of other columns."""
    evals = [f"eval/{name}" for name in ("score", "episodes", "mean_return")]
    names = ["step", "return/mean", *(f"x/{i}" for i in range(498)), *evals]
    ends = [",".join(["1.25"] * 498) + ",,,", "," * 497 + ",7.5,10,8"]
    rows = (f"{i},{i / 2},{ends[i % 50 == 0]}\n" for i in range(4_000))
    run.metrics_file.write_text("".join([",".join(names), "\n", *rows]))
    tracemalloc.start()
    try:
        found = curves(run, "return/mean", ["eval/mean_return"])
        assert len(list(each_evaluation(run))) == 80
        assert last_evaluation(run)[0] == {"score": 7.5, "episodes": 10, "mean_return": 8}
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found["return/mean"][1], np.arange(4_000) / 2)
    np.testing.assert_array_equal(found["eval/mean_return"], [np.arange(0, 4_000, 50), np.full(80, 8.0)])
    assert run.metrics_file.stat().st_size > 9e6 and peak < 4e6


def test_evaluations_at_steps_that_are_no_numbers_do_not_count(run):
    run.metrics_file.write_text("step,eval/score,eval/episodes\n0,1,5\n,2,5\ninf,3,5\n10,4,x\n20,5,5\n")
    assert evaluations(run) == [(0, 1), (20, 5)]


def test_tensorboard_gets_the_same_numbers(run):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog(run, tensorboard=True)
    log.write({"step": 1000, "return/mean": 1.5, "RL/loss": NAN})
    log.write({"step": 2000, "return/mean": 2.5, "RL/loss": 3.0})
    log = MetricsLog(run, tensorboard=True, start_step=1000)  # resumed at 1000: what came after it does not count
    log.write({"step": 1500, "return/mean": 9.0})
    events = EventAccumulator(str(run.tensorboard)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("return/mean")] == [(1000, 1.5), (1500, 9.0)]
    assert "RL/loss" not in events.Tags()["scalars"] or not events.Scalars("RL/loss")


# ---- statistics and pictures


def test_iqm_by_hand():
    assert iqm([1.0, 2.0, 3.0, 4.0, 100.0]) == 3.0  # floor(5/4) = 1 at each end: mean of 2, 3, 4
    assert iqm([8.0, 1.0, 3.0, 2.0]) == 2.5  # 1 and 8 go
    assert iqm([0.0, 3.0, 9.0]) == 4.0  # nothing goes below four
    np.testing.assert_array_equal(iqm([[1, 9], [2, 0], [3, 1], [50, 2]]), [2.5, 1.5])  # each column by itself


def test_bootstrap_interval():
    rows = np.random.default_rng(1).normal(5.0, 1.0, size=(30, 2))
    low, high = bootstrap_interval(rows, np.random.default_rng(0))
    again = bootstrap_interval(rows, np.random.default_rng(0))
    np.testing.assert_array_equal((low, high), again)
    assert (low < iqm(rows)).all()
    assert (iqm(rows) < high).all()
    # The mean of two rows 0 and 1 is 0, ½, ½ or 1 with equal chance.
    assert bootstrap_interval([0.0, 1.0], np.random.default_rng(0)) == (0.0, 1.0)
    five = np.array([0.0, 1.0, 4.0, 9.0, 16.0])
    all_of_them = [iqm(five[list(drawn)]) for drawn in itertools.product(range(5), repeat=5)]  # all 5⁵, each as likely
    exact = np.quantile(all_of_them, [0.025, 0.975])
    np.testing.assert_allclose(bootstrap_interval(five, np.random.default_rng(0)), exact, atol=0.4)
    np.testing.assert_array_equal(bootstrap_interval([[7.0]] * 5, np.random.default_rng(0)), [[7.0], [7.0]])


def test_curves_meet_on_the_steps_that_all_cover():
    steps, rows = on_common_steps([(np.array([0.0, 10.0]), np.array([0.0, 10.0])),
                                   (np.array([2.0, 4.0, 8.0]), np.array([1.0, 3.0, 3.0]))])
    assert (steps[0], steps[-1]) == (2.0, 8.0)
    np.testing.assert_allclose(rows[0], steps)
    np.testing.assert_allclose(rows[1], np.minimum(steps - 1.0, 3.0))
    with pytest.raises(PlotError, match="no environment steps in common"):
        on_common_steps([(np.array([0.0]), np.array([0.0])), (np.array([1.0]), np.array([0.0]))])


def test_a_long_curve_is_thinned_out_to_what_a_picture_shows(run):
    rows, peaks = 100_000, {0: 3.0, 12_345: 99.0, 54_321: -99.0, 99_999: 5.0}
    run.metrics_file.write_text("step,a,b\n" + "".join(f"{i},{peaks.get(i, i % 2)},{i}\n" for i in range(rows)))
    found = curves(run, "a", ["b"])
    steps, values = found["a"]
    assert plots.POINTS / 2 <= len(steps) <= 2 * plots.POINTS and (np.diff(steps) > 0).all()
    assert peaks.items() <= dict(zip(steps, values, strict=True)).items(), "ends and peaks stay"
    assert (np.diff(steps) < 64).all(), "as close everywhere"
    np.testing.assert_array_equal(*found["b"])


@pytest.mark.parametrize("n", [0, 1, 4, 5, 16_384])
def test_a_curve_that_a_picture_can_show_is_left_whole(run, n):
    run.metrics_file.write_text("step,a,b\n0,0,\n" + "".join(f"{i},{-i},{i % 3}\n" for i in range(1, n)))
    steps, values = curves(run, "a", ["b"])["a"]
    np.testing.assert_array_equal((steps, -values), (np.arange(max(n, 1)),) * 2)


def test_of_a_curve_each_four_neighbours_keep_their_least_and_greatest():
    values = np.array([5.0, 1, 9, 2, 4, 4, 4, 4, 7, 8, 8, 9, 0, 6])
    np.testing.assert_array_equal(thinned(np.stack([np.arange(14.0), values])),
                                  [[0, 1, 2, 4, 7, 8, 11, 12, 13], [5, 1, 9, 4, 4, 7, 9, 0, 6]])


def test_every_column_of_evaluations_can_be_drawn(run, tmp_path, monkeypatch):
    """Also one that has a single value, whose name a formula could stand in, or of which something is expected."""
    pytest.importorskip("matplotlib")
    run.update(experiment="dqn-cartpole")
    log = MetricsLog(run)
    log.write({"step": 0, "return/mean": 1.0})
    log.write({"step": 10, "eval/score": 1.0, "eval/episodes": 5, "eval/mean_return": 2.0, "eval/$\\frac": 3.0})
    drawn = []
    finish = plots.finish
    monkeypatch.setattr(plots, "finish", lambda figure, axes, *rest: drawn.append(axes) or finish(figure, axes, *rest))
    for name in [name for name in read_metrics(run) if name != "step"]:
        learning_curve([run], tmp_path / "x.png", metric=name)
    shown = [[(line.get_marker(), line.get_label()) for line in axes.get_lines()] for axes in drawn]
    assert shown[0][:2] == [("None", "run"), (".", "run, evaluated")]
    assert all(lines[0] == (".", "run") for lines in shown[1:]), "one point is no line"
    expected = [lines[1:] for lines in shown[1:]]
    assert expected == [[], [], [("None", "dqn-cartpole: expected 400")], []]
    with pytest.raises(PlotError, match="no metric 'mean_return'; did you mean 'eval/mean_return'"):
        learning_curve([run], tmp_path / "x.png", metric="mean_return")


def make_run(name, values):
    run = RunDir.create("cartpole", to_dict(ExperimentConfig(run_dir=name)))
    for step, value in enumerate(values):
        MetricsLog(run).write({"step": step * 100, "return/mean": value, "never": NAN})
    return run


def test_runs_of_one_experiment_are_told_apart_by_what_differs_in_their_configuration(tmp_path):
    def configured(name, experiment, **config):
        return RunDir.create(experiment, {**to_dict(ExperimentConfig(run_dir=str(tmp_path / name))), **config})

    runs = [configured("a", "x", seed=0, goals=True), configured("b", "x", seed=1, goals=True, trace=True),
            configured("c", "x", goals=False, lr=0.1), configured("d", "y", goals=False)]
    assert settings(runs[:2] + runs[3:]) == ["x", "x", "y"]
    assert settings(runs) == ["x goals=True", "x goals=True", "x goals=False", "y"]


def test_of_nested_configuration_only_what_differs_is_named(tmp_path):
    def configured(name, **config):
        return RunDir.create("x", {**to_dict(ExperimentConfig(run_dir=str(tmp_path / name))), **config})

    def sac(lr):
        return {"tasks": {"RL": {"SAC": {"lr": lr, "hidden": [64, 64]}}}}

    a, b = configured("a", algorithm="SAC", robot=sac(0.1)), configured("b", algorithm="SAC", robot=sac(0.2))
    c = configured("c", algorithm="TD3", robot={"tasks": {"RL": {"TD3": {"lr": 0.1}}}})
    assert settings([a, b]) == ["x robot.tasks.RL.SAC.lr=0.1", "x robot.tasks.RL.SAC.lr=0.2"]
    assert settings([a, c]) == ["x algorithm=SAC", "x algorithm=TD3"]
    d, e = configured("d", options={}), configured("e", options={"goals": True})
    assert settings([d, e]) == ["x options={}", "x options.goals=True"], "they are not alike"


def test_pictures_of_one_and_of_several_runs(run, tmp_path):
    pytest.importorskip("matplotlib")
    runs = [make_run(f"r{seed}", [NAN, 1.0 + seed, 2.0 + seed, 5.0]) for seed in range(3)]
    one = learning_curve(runs[:1], tmp_path / "new" / "one.png")
    assert one.read_bytes().startswith(b"\x89PNG")
    several = learning_curve(runs, tmp_path / "several.svg").read_text()
    assert "<svg" in several
    assert several.count("clip-path") > learning_curve(runs[:1], tmp_path / "one.svg").read_text().count("clip-path")
    with pytest.raises(PlotError, match="no metric 'loss'; it has return/mean, never"):
        learning_curve(runs, tmp_path / "x.png", metric="loss")
    with pytest.raises(PlotError, match="has no value yet"):
        learning_curve(runs, tmp_path / "x.png", metric="never")
    with pytest.raises(PlotError, match="it has no rows yet"):
        learning_curve([run], tmp_path / "x.png")
    with pytest.raises(PlotError, match="cannot write the picture"):
        learning_curve(runs, tmp_path / "x.doc")


def test_without_matplotlib_one_line_says_so(run, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "matplotlib_missing", lambda: True)
    with pytest.raises(PlotError, match=r"matplotlib is not installed; `pip install 'parl_like\[plot\]'`"):
        learning_curve([run], tmp_path / "x.png")


# ---- progress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


METRICS = {"return/mean": 12.345678, "return/last": NAN, "episode/length": 20.0, "RL/lr": 0.1, "RL/loss": 1e-7,
           "RL/predict/mean_batch": 63.5, "RL/predict/queue_depth": 0.0}


def test_a_plain_line_every_few_seconds():
    clock, stream = Clock(), io.StringIO()
    progress = Progress("run", 1_000, 0, 10.0, stream, clock)
    for second in range(1, 21):
        clock.now = 100.0 + second
        progress.tick(second * 10, lambda: METRICS)
    first, second = stream.getvalue().splitlines()
    assert first == "step=100 return/mean=12.35 episode/length=20 RL/loss=1e-07 steps_per_s=10 left=1m30s"
    assert second.startswith("step=200 ")


def test_a_plain_line_has_at_most_120_columns_and_learning_comes_first():
    progress = Progress("run", 1_000_000, 0, 10.0, io.StringIO(), Clock())
    many = OF_A_HIERARCHY | {"evaluation/last": 0.5, "evaluation/best": 0.75, **{f"task{i}/loss": 1.0 for i in range(50)}}
    line = progress.line(250_000, many)
    assert len(line) <= 120 and line.startswith("step=250000 return/mean=0.8123 evaluation/last=0.5 evaluation/best=0.75 ")
    assert line.endswith(" left=?") and all("=" in word for word in line.split())


def test_long_texts_are_wrapped_between_words():
    path = "runs/" + "x" * 130
    text = f"train hierarchy-doorkey (robot hierarchy, 16 agents, cooperative, seed 0): 100,000 env steps -> {path}"
    lines = wrapped(text).split("\n")
    assert " ".join(" ".join(lines).split()) == text and len(lines) == 2 and len(lines[0]) <= 120


def test_of_nothing_learned_no_counter_is_shown():
    progress = Progress("run", 1_000, 0, 1e9, io.StringIO(), Clock())
    shown = progress.drawn(10, {"updates/goal": 0.0, "rows/goal": 0.0, "updates/RL": 3.0, "episodes": 0.0}, 80)
    assert "updates/goal" not in " ".join(shown) and "rows/goal" not in " ".join(shown) and "updates/RL 3" in " ".join(shown)


def test_returns_and_evaluations_come_first_and_a_queue_has_one_line():
    progress = Progress("run", 100_000, 0, 1e9, io.StringIO(), Clock())
    lines = progress.drawn(10, OF_A_HIERARCHY | {"evaluation/last": 0.5, "evaluation/best": 0.75}, 80)
    begins = [line.split()[0] for line in lines]
    assert begins[:2] == ["return", "evaluation"] and begins.index("RL") < begins.index("run") < begins.index("goal/predict")
    assert all(begins.count(name) <= 1 for name in begins if "/" in name) and max(map(len, lines)) <= 80


def test_a_screen_writes_what_has_changed_and_begins_anew_at_another_size(monkeypatch):
    stream, size = Terminal(), [(40, 10)]
    monkeypatch.setattr(Screen, "size", lambda self: size[0])
    screen = Screen(stream)
    try:
        screen.draw(["one", "two", "three"])
        stream.seek(0), stream.truncate()
        screen.draw(["one", "TWO", "three"])
        assert "TWO" in stream.getvalue() and "one" not in stream.getvalue() and stream.getvalue().startswith("\x1b[3A")
        print("from an environment")
        assert "from an environment" in stream.getvalue().split("TWO")[1]
        stream.seek(0), stream.truncate()
        size[0] = (20, 3)
        screen.draw(["one", "x" * 30, "three"])
        assert stream.getvalue().startswith("\x1b[2J\x1b[H") and "one" in stream.getvalue()
        assert "x" * 18 + "…" in stream.getvalue() and "x" * 19 not in stream.getvalue() and "three" not in stream.getvalue()
    finally:
        screen.close()


def test_what_comes_in_the_middle_of_a_drawing_is_printed_at_its_end():
    """As the handler of a signal does, in the very thread that draws."""

    class Struck(Terminal):
        struck = False

        def write(self, text):
            if "one" in text and not self.struck:
                self.struck = True
                screen.above("SIGINT: stopping")
                super().write("[in the middle]")
            return super().write(text)

    stream = Struck()
    screen = Screen(stream)
    try:
        screen.draw(["one", "two"])
        shown = stream.getvalue()
        assert shown.index("[in the middle]") < shown.index("one") < shown.index("SIGINT: stopping\none\ntwo\n")
    finally:
        screen.close()


@pytest.mark.parametrize(("term", "draws"), [("xterm", True), ("dumb", False), ("", False)])
def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(term, draws, monkeypatch):
    monkeypatch.setenv("TERM", term)
    assert can_draw(Terminal()) is draws and not can_draw(io.StringIO())


def test_the_rate_is_that_of_the_last_ten_seconds():
    clock = Clock()
    progress = Progress("run", 100_000, 5_000, 1e9, io.StringIO(), clock)
    assert math.isnan(progress.steps_per_s())
    for second in range(1, 101):
        clock.now = 100.0 + second
        progress.tick(5_000 + min(second, 50) * 100, dict)
    assert progress.steps_per_s() == 0.0
    assert math.isnan(progress.seconds_left(10_000))


def test_beyond_the_last_step_nothing_is_left():
    clock = Clock()
    progress = Progress("run", 1_000, 0, 1e9, io.StringIO(), clock)
    clock.now += 100
    progress.tick(3_000, dict)
    assert progress.line(3_000, {}) == "step=3000 steps_per_s=30 left=0s"


def test_metrics_are_asked_for_only_when_shown():
    clock = Clock()
    progress = Progress("run", 1_000, 0, 10.0, io.StringIO(), clock)

    def never():
        raise AssertionError("asked too early")

    for step in range(1000):
        clock.now += 0.001
        progress.tick(step, never)


def test_the_table_is_drawn_less_often_in_a_long_run(monkeypatch):
    drawn = []
    monkeypatch.setattr(Screen, "draw", lambda self, lines: drawn.append(clock.now - 100.0))
    clock = Clock()
    progress = Progress("run", 1_000, 0, 1e9, Terminal(), clock)
    for tenth in range(1, 4_000):
        clock.now = 100.0 + tenth / 8
        progress.tick(1, dict)
    progress.close()
    assert len([at for at in drawn if at <= 50]) == 100
    assert 60 <= len([at for at in drawn if 50 < at <= 200]) <= 150
    late = [at for at in drawn if at > 202]
    assert {later - at for at, later in zip(late, late[1:], strict=False)} == {2.0}


def test_a_terminal_gets_a_table_of_at_most_twelve_lines():
    clock, stream = Clock(), Terminal()
    progress = Progress("run", 1_000, 0, 10.0, stream, clock)
    clock.now += 1.0
    progress.tick(250, lambda: METRICS | {f"task{i}/loss": 1.0 for i in range(50)})
    progress.close()
    progress.close()
    shown = stream.getvalue()
    assert "250 of 1,000 env steps" in shown
    assert "mean 12.35" in shown
    assert "loss 1e-07  lr 0.1" in shown, "what matters most comes first, for a narrow terminal cuts the end"
    assert progress._table(250, METRICS | {f"task{i}/loss": 1.0 for i in range(50)}).row_count == 12


OF_A_HIERARCHY = {
    "return/mean": 0.8123, "return/max": 1.0, "return/last": 1.0, "episode/length": 61.25, "bad_values": 0.0,
    **{f"{task}/{name}": -0.0225 for task in ("goal", "RL") for name in ("policy_loss", "value_loss", "entropy", "kl", "loss")},
    **{f"{task}/{queue}/{name}": 123.456 for task in ("goal", "RL") for queue in ("predict", "learn")
       for name in ("requests", "rows", "batches", "mean_batch", "queue_depth", "wait_p50_s", "wait_p99_s", "compute_p50_s",
                    "compute_p99_s")},
    **{f"{task}/{queue}/{name}": 0.0 for task in ("goal", "RL") for queue in ("predict", "learn") for name in ("errors", "late",
                                                                                                               "dropped")},
    "time_steps": 99_840.0, "episodes": 1234.0, "iterations": 780.0, "updates/goal": 1234.0, "rows/goal": 12_345.0,
    "updates/RL": 31_200.0,
    "rows/RL": 99_840.0,
}  # fmt: skip


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("trouble", [False, True])
def test_the_screen_fits_and_shows_what_matters_first(width, trouble):
    from rich.console import Console

    clock, title = Clock(), "hierarchy-doorkey (robot hierarchy, 32 agents, cooperative, seed 0)"
    progress = Progress(title, 100_000, 0, 1e9, None, clock)
    clock.now += 3725.0
    progress.tick(99_840, dict)
    metrics = OF_A_HIERARCHY | ({"RL/predict/errors": 3.0, "goal/dropped": 128.0, "bad_values": 2.0} if trouble else {})
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False, color_system=None).print(progress._table(99_840, metrics, width))
    lines = out.getvalue().splitlines()
    assert len(lines) <= 12 and max(map(len, lines)) <= width
    assert "…" not in out.getvalue(), "nothing is cut"
    text = " ".join(" ".join(lines).split())
    assert f"run {title} steps 99,840 of 100,000 env steps, 26.8/s, 1h02m gone, 5s left" in text
    for shown in ("mean 0.8123", "last 1", "episode length 61.25", "goal loss -0.0225 policy_loss -0.0225", "RL loss -0.0225",
                  "updates/RL 31200"):
        assert shown in text, shown
    queues = ["goal/predict mean_batch"] * (width > 80 or not trouble)
    order = [text.index(word) for word in ("return mean", "goal loss", "RL loss", "counts", *queues)]
    assert order == sorted(order), "returns and losses before counters of queues"
    assert ("RL/predict/errors 3" in text, "goal/dropped 128" in text, "bad_values 2" in text) == (trouble,) * 3
    assert trouble or not any(word in text for word in ("errors", "late", "dropped", "bad_values", "wrong"))


def test_a_row_that_has_no_room_is_left_out_whole():
    out, clock = io.StringIO(), Clock()
    from rich.console import Console

    progress = Progress("a-very-long-name-" * 5, 1_000, 0, 1e9, None, clock)
    Console(file=out, width=80).print(progress._table(250, METRICS | {f"task{i}/loss": 1.0 for i in range(50)}))
    assert len(out.getvalue().splitlines()) == 12 and "task4 " in out.getvalue() and "task40" not in out.getvalue()


def test_a_curve_of_returns_begins_when_each_environment_has_ended_an_episode(tmp_path):
    """However many episodes one of them has ended by then."""
    run = RunDir.create("fake", {"n_agents": 4, "run_dir": str(tmp_path / "run")}, [])
    rows = "step,return/mean,episodes,episode/first_open\n10,9,1,3\n20,8,30,1\n30,1,31,\n40,2,39,\n"
    (run.path / "metrics.csv").write_text(rows)
    assert plots.curves(run, "return/mean")["return/mean"][0].tolist() == [30, 40]
    assert plots.curves(run, "episodes")["episodes"][0].tolist() == [10, 20, 30, 40]
    (run.path / "metrics.csv").write_text("step,return/mean,episodes,episode/first_open\n10,9,1,3\n20,8,3,1\n")
    assert plots.curves(run, "return/mean")["return/mean"][1].tolist() == [9, 8], "a short run shows what it has"
