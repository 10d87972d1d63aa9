"""The page in Debian's Chromium: what it shows, by keyboard alone, in light and dark, 400 and 1280 pixels wide; and that texts of
runs stay texts. `PARL_LIKE_PICTURES=docs` has it take the pictures of the documentation."""

import json
import os
import re
import time
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import chromium
from dashboards import DESCRIPTION, Served, make_run, row

from parl_like.lab.dashboard import board as boards
from parl_like.lab.dashboard.export import export
from parl_like.lab.runs.metrics import METRICS, as_csv
from parl_like.lab.runs.rundir import RunDir

pytestmark = pytest.mark.skipif(chromium.PROGRAM is None, reason=chromium.MISSING)
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
WHOLE = "document.documentElement.dataset.whole === 'true'"


@pytest.fixture(scope="module")
def browser():
    with chromium.Browser() as one:
        yield one


@pytest.fixture
def folder(tmp_path):
    for lr in ("0.001", "0.0003"):
        for seed in range(3):
            make_run(
                tmp_path,
                f"lr{lr}_s{seed}",
                seed=seed + (lr == "0.001") * 4,
                rows=60,
                differs={"lr": float(lr)},
                config={"lr": float(lr)},
            )
    run = make_run(tmp_path, "now", rows=20, state="running", experiment="fake-two")
    run.videos.mkdir()
    from PIL import Image

    Image.new("RGB", (64, 48), (90, 140, 200)).save(run.videos / "episode_7.gif")
    return tmp_path


@pytest.fixture
def site(folder):
    with Served(folder) as one:
        yield one


def opened(browser, site, width=1280, dark=False, view=""):
    browser.call("Page.navigate", url="about:blank")  # what another test has shown asks nothing any more
    browser.size(width, 900, dark=dark)
    browser.errors.clear()
    browser.asked.clear()
    browser.open(site.addresses[-1] + view, WHOLE)
    return browser


def texts(browser, selector):
    return browser.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.textContent)")


def press(browser, *keys):
    for key in keys:
        browser.key(key)


def test_it_shows_runs_curves_robot_events_settings_differences_and_pictures(browser, site):
    opened(browser, site)
    assert texts(browser, "#status") == ["7 runs, 1 running"]
    assert {*texts(browser, "#table .run")} == {"now", *(f"lr{lr}_s{seed}" for lr in ("0.001", "0.0003") for seed in range(3))}
    assert texts(browser, ".chart h3") == ["return/mean", "RL/loss"]
    assert browser.evaluate("document.querySelectorAll('.chart canvas').length") == 2
    assert any("IQM of 3 runs" in one for one in texts(browser, "#legend li"))
    browser.wait("document.querySelector('svg.robot')")
    said = " | ".join(texts(browser, "svg.robot text"))
    for one in (
        "4 agents",
        "processes · sync",
        "worker 0 running",
        "↻ 2",
        "batch 4 of 8",
        "batch 64 of 64",
        "depth 3",
        "waits 2 ms",
        "task RL",
        "version 80",
        "640 rows/s",
        "buffer 900 of 2,000 rows",
    ):
        assert one in said, (one, said)
    for tab, words in (
        ("events", "worker 0 was replaced"),
        ("settings", "total_steps"),
        ("differences", "setting lr"),
        ("pictures", "episode_7.gif"),
    ):
        browser.evaluate(f"document.getElementById('tab-{tab}').click()")
        browser.wait(f"document.getElementById('panel').textContent.includes({json.dumps(words)})")
    browser.wait("document.querySelector('.pictures img').naturalWidth === 64")
    assert browser.errors == []
    origin = f"http://localhost:{site.port}/"
    assert [one for one in browser.asked if not one.startswith((origin, "data:"))] == []
    assert "token" not in browser.evaluate("location.href")


@pytest.mark.slow
def test_numbers_move_while_a_run_goes_on(browser, folder, site):
    opened(browser, site)
    browser.wait("document.querySelector('svg.robot')")
    run = RunDir(folder / "now")
    run.outbox.append(METRICS, as_csv([[str(one) for one in row(i)] for i in range(20, 45)]))
    run.save_description({**DESCRIPTION, "tasks": [{**DESCRIPTION["tasks"][0], "version": 4321}]})
    browser.wait("[...document.querySelectorAll('svg.robot text')].some((one) => one.textContent === 'version 4,321')")
    browser.wait("[...document.querySelectorAll('#table tr.focus td')].some((one) => one.textContent === '4,400')")
    assert browser.errors == []


@pytest.mark.slow
@pytest.mark.parametrize(("later", "draws"), [(0, {1}), (1000, {3, 4})])
def test_curves_are_drawn_seldom_while_more_is_to_come(browser, site, monkeypatch, later, draws):
    """Seven answers bring a curve each. `later`: ms that the page's clock goes on at each look at it, so for a drawing,
    too, after which four times as long is waited."""
    opened(browser, site)
    browser.wait("document.querySelectorAll('.chart canvas').length === 2")
    monkeypatch.setattr(boards, "TURN_S", 0.0)
    browser.evaluate("document.documentElement.dataset.whole = ''")
    browser.evaluate(
        "(() => { const draw = lab.curves.draw; let now = performance.now(); lab.drawn = 0;"
        f"performance.now = () => (now += {later}); lab.curves.draw = () => {{ lab.drawn += 1; draw(); }};"
        "lab.view.set({ metrics: 'updates/RL' }); lab.poll(); })()"
    )
    browser.wait("lab.known.curves.has('updates/RL') && lab.known.curves.get('updates/RL').of.size === 7")
    browser.wait(WHOLE)
    assert browser.evaluate("lab.drawn") in draws
    assert browser.evaluate("document.querySelectorAll('.chart canvas').length") == 1 and browser.errors == []


@pytest.mark.slow
def test_sort_filter_and_group_are_kept_in_the_address(browser, site):
    opened(browser, site)
    browser.evaluate("document.querySelector('[data-sort=score]').click()")
    browser.evaluate("const f = document.getElementById('filter'); f.value = 'lr=0.001'; f.oninput()")
    assert texts(browser, "#table .run") == ["lr0.001_s2", "lr0.001_s1", "lr0.001_s0"]
    browser.evaluate("const g = document.getElementById('group'); g.value = 'none'; g.onchange()")
    browser.evaluate("document.querySelector('[data-run]').click()")
    browser.evaluate("document.getElementById('tab-settings').click()")
    view = browser.evaluate("location.hash")
    browser.call("Page.navigate", url="about:blank")
    browser.open(f"http://localhost:{site.port}/{view}", WHOLE)
    assert texts(browser, "#table .run") == ["lr0.001_s2", "lr0.001_s1", "lr0.001_s0"] and texts(browser, "#focus-title") == [
        "lr0.001_s2"
    ]
    assert browser.evaluate("document.getElementById('tab-settings').getAttribute('aria-selected')") == "true"


@pytest.mark.slow
def test_log_axis_seconds_smoothing_and_bands(browser, site):
    opened(browser, site, view="#x=seconds&y=log&smooth=5&band=range&metrics=RL/loss")
    assert texts(browser, ".chart h3") == ["RL/loss"]
    assert "over seconds" in browser.evaluate("document.querySelector('.plot').getAttribute('aria-label')")
    assert browser.evaluate("document.getElementById('up').value") == "log"
    assert browser.errors == []


@pytest.mark.slow
def test_the_arithmetic_of_curves(browser, site):
    """The page's interquartile mean, interpolation and smoothing are those of the reports."""
    import numpy as np

    from parl_like.lab.reports.plots import bootstrap_interval, iqm

    opened(browser, site)
    rows = np.random.default_rng(0).normal(size=(5, 7)).round(3)
    found = browser.evaluate(f"lab.statistics.summary({rows.tolist()}, 'interval')")
    np.testing.assert_allclose(found["middle"], iqm(rows))
    low, high = bootstrap_interval(rows, np.random.default_rng(0))
    np.testing.assert_allclose(found["low"], low, atol=0.5)
    np.testing.assert_allclose(found["high"], high, atol=0.5)
    assert (np.array(found["low"]) <= found["middle"]).all() and (np.array(found["middle"]) <= found["high"]).all()
    assert browser.evaluate("lab.statistics.summary([[1, 5], [3, 5], [8, 5]], 'range')") == {
        "middle": [4, 5],
        "low": [1, 5],
        "high": [8, 5],
    }
    assert browser.evaluate("lab.statistics.between([0, 2, 4], [0, 10, 0], [-1, 0, 1, 2, 3, 4, 5])") == [
        None,
        0,
        5,
        10,
        5,
        0,
        None,
    ]
    assert browser.evaluate("[0.00011, 0.0000761, 0.002].map(lab.seconds)") == ["110 µs", "76 µs", "2 ms"]
    assert browser.evaluate("lab.statistics.smooth([0, 3, 0, 3, 0, 3, 0, 3], 10)") == [0, 1, 2, 1, 2, 1, 2, 3]


@pytest.mark.slow
def test_by_keyboard_alone(browser, site):
    opened(browser, site)
    press(browser, "Tab")
    assert browser.evaluate("document.activeElement.id") == "skip"
    press(browser, "/")
    assert browser.evaluate("document.activeElement.id") == "filter"
    press(browser, "n", "o", "w")
    assert texts(browser, "#table .run") == ["now"]
    press(browser, "Tab")
    assert browser.evaluate("document.activeElement.id") == "group"
    for _ in range(13):
        press(browser, "Tab")
        if browser.evaluate("document.activeElement.type === 'checkbox'"):
            break
    press(browser, " ")
    browser.wait("[...document.querySelectorAll('.plot')].every((one) => one.textContent === 'no value yet')")
    press(browser, " ")
    browser.wait("document.querySelectorAll('.chart canvas').length === 2")
    seen = set()
    for _ in range(60):
        press(browser, "Tab")
        here = browser.evaluate("document.activeElement.id || document.activeElement.className || document.activeElement.tagName")
        seen.add(here)
        if here == "plot":
            press(browser, "ArrowRight", "ArrowRight")
            browser.wait("document.querySelector('.readout').textContent.startsWith('step')")
        if here == "tab-robot":
            press(browser, "ArrowRight")
            assert browser.evaluate("document.activeElement.id") == "tab-events"
            break
    assert {"metric", "across", "up", "smooth", "band", "plot", "tab-robot"} <= seen
    browser.wait("document.getElementById('panel').textContent.includes('worker 0 was replaced')")
    assert browser.errors == []


def luminance(colour):
    parts = [int(one) / 255 for one in re.findall(r"\d+", colour)[:3]]
    return sum(
        weight * (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4)
        for weight, one in zip((0.2126, 0.7152, 0.0722), parts, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1280])
def test_light_and_dark_narrow_and_wide(browser, site, width, dark):
    opened(browser, site, width, dark)
    browser.wait("document.querySelector('svg.robot')")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(
        "(() => { const b = document.querySelector('svg.robot').getBoundingClientRect();"
        "return [...document.querySelectorAll('svg.robot text')].map((one) => one.getBoundingClientRect())"
        ".every((a) => a.right <= b.right + 1 && a.left >= b.left - 1); })()"
    )
    back, ink, soft = (
        luminance(browser.evaluate(f"getComputedStyle(document.querySelector('{where}')).{what}"))
        for where, what in (("section", "backgroundColor"), ("section", "color"), ("label", "color"))
    )
    assert (back < 0.1) == dark
    for one in (ink, soft):  # as WCAG AA wants it
        assert (max(one, back) + 0.05) / (min(one, back) + 0.05) >= 4.5
    assert browser.evaluate(
        "[...document.querySelectorAll('button, input, select')]"
        ".every((one) => one.textContent || one.labels?.length || one.getAttribute('aria-label'))"
    )
    assert browser.errors == []


@pytest.mark.slow
def test_texts_of_runs_stay_texts(browser, tmp_path):
    name = EVIL.replace("/", "")
    make_run(
        tmp_path,
        name,
        config={EVIL: EVIL},
        differs={"lr": EVIL},
        experiment="fake",
        columns=["step", "elapsed_s", EVIL],
        table=as_csv([["step", "elapsed_s", EVIL], ["1", "1", "2"], ["2", "2", "3"]]),
        description={
            **DESCRIPTION,
            "driver": EVIL,
            "tasks": [{"name": EVIL, "algorithm": EVIL, "helper": EVIL}],
            "workers": [{"worker": EVIL, "status": EVIL, "restarts": EVIL, "agents": EVIL}],
        },
    ).event(EVIL, text=EVIL)
    with Served(tmp_path) as site:
        opened(browser, site)
        browser.call("Page.addScriptToEvaluateOnNewDocument", source="window.alert = () => { window.hurt = true; }")
        for tab in ("robot", "events", "settings", "differences", "pictures"):
            browser.evaluate(f"document.getElementById('tab-{tab}').click()")
            time.sleep(0.05)
            assert browser.evaluate("!window.hurt && document.querySelectorAll('section img, section script').length === 0")
        assert "onerror" in " ".join(texts(browser, "#table"))
    page = tmp_path / "page.html"
    export([tmp_path], page)
    browser.open(page.as_uri(), WHOLE)
    assert browser.evaluate("!window.hurt && document.querySelectorAll('section img, section script').length === 0")


@pytest.mark.slow
def test_a_server_that_is_gone_is_said(browser, site):
    opened(browser, site)
    site.server.should_exit = site.server.force_exit = True
    browser.wait("document.getElementById('status').textContent.includes('does not answer')")
    assert len(texts(browser, "#table .run")) == 7


@pytest.mark.slow
def test_an_exported_page_needs_no_server(browser, folder, tmp_path):
    page = tmp_path / "page.html"
    assert export([folder], page)["runs"] == 7
    browser.call("Page.navigate", url="about:blank")
    browser.size(1280, 900)
    browser.errors.clear()
    browser.asked.clear()
    browser.open(page.as_uri(), WHOLE)
    assert len(texts(browser, "#table .run")) == 7 and browser.evaluate("document.querySelectorAll('.chart canvas').length") == 2
    browser.evaluate("[...document.querySelectorAll('[data-run]')].find((one) => one.textContent === 'now').click()")
    browser.evaluate("document.getElementById('tab-pictures').click()")
    browser.wait("document.querySelector('.pictures img').naturalWidth === 64")
    assert browser.errors == [] and {one.partition(":")[0] for one in browser.asked} <= {"file", "data"}


PICTURES = {"dashboard.png": (1280, False), "dashboard-dark.png": (1280, True), "dashboard-narrow.png": (400, False)}


@pytest.mark.skipif("PARL_LIKE_PICTURES" not in os.environ, reason="set PARL_LIKE_PICTURES=docs to take them")
def test_pictures_for_the_documentation(browser):
    """Of the runs in PARL_LIKE_RUNS."""
    out = Path(os.environ["PARL_LIKE_PICTURES"])
    with Served(os.environ["PARL_LIKE_RUNS"]) as site:
        for name, (width, dark) in PICTURES.items():
            opened(browser, site, width, dark, view=os.environ.get("PARL_LIKE_VIEW", ""))
            browser.wait("document.querySelector('svg.robot')")
            browser.size(width, browser.evaluate("document.documentElement.scrollHeight"), dark=dark)
            time.sleep(0.5)
            browser.picture(out / name)
            assert (out / name).stat().st_size < 200_000
