"""What people read: terminals get no control codes, pages no markup, tables no formulas, whatever names and values hold."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import unicodedata
from html.parser import HTMLParser
from pathlib import Path

import pytest
from lab_fakes import MODULE, FakeRobot

from parl_like.lab import experiment as experiments
from parl_like.lab import runner, text
from parl_like.lab.cli import main
from parl_like.lab.config import resolve
from parl_like.lab.progress import Progress, show
from parl_like.lab.reports import marks, plots
from parl_like.lab.reports.report import markdown, page
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.text import Printer, escaped, for_csv, for_markdown, for_picture, printer
from parl_like.lab.yaml_text import dump_yaml, load_yaml

ODD = "\x1b]0;owned\x07\x1b[2J\r\x08\x9b31m\x85\u202e\u2066\u200b\u2028\ufeff\x7fend"


@pytest.fixture(autouse=True)
def clean(fake_experiment, monkeypatch):
    monkeypatch.setattr(plots, "matplotlib_missing", lambda: True)


def odd(shown, keep="\n\t"):
    """The characters that no text for people has."""
    return [one for one in shown if one not in keep and unicodedata.category(one) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")]


def train(run_dir, **overrides):
    one = experiments.get("fake")
    assert runner.train(one, resolve(MODULE.Config, one.config, {"run_dir": run_dir, "eval_every": 100, **overrides})) == 0
    return RunDir(Path(run_dir))


def test_a_line_of_a_table_fits_its_terminal():
    assert text.fitted("abcd", 4) == "abcd" and text.fitted("abcde", 4) == "abc…"
    assert text.fitted("字字", 4) == "字字" and text.fitted("字字字", 4) == "字 …", "these take two columns"
    assert not odd(text.fitted(ODD, 40), "")


def test_a_line_for_people_has_a_length(capsys):
    """Whoever prints it: an error, a warning of a library, the progress of a run."""
    with text.printing():
        print(f"first{'x' * 100_000}last\nshort", file=sys.stderr)
        show(sys.stdout, f"first{'y' * 100_000}last")
        print("z" * 5_000)  # a result
    out, err = capsys.readouterr()
    assert err.startswith("first") and err.endswith("last\nshort\n") and len(err) < 2_100
    assert out.startswith("first") and len(out.split("\n")[0]) < 2_000 and "z" * 5_000 in out


# ---- one text


@pytest.mark.parametrize("one", ["\x00", "\x07", "\x1b", "\r", "\n", "\t", "\x7f", "\x80", "\x9b", "\xad", "\u061c",
    "\u200b", "\u200e",
                                 "\u2028", "\u2029", "\u202a", "\u202e", "\u2066", "\u2069", "\ufeff", "\ufff9", "\udcff",
                                 "\ue000",
                                 "\U000e0041"], ids=ascii)
def test_what_a_terminal_would_obey_is_an_escape(one):
    shown = escaped(f"a{one}b")
    assert shown == f"a{one.encode('unicode_escape').decode()}b" and shown.isprintable()
    assert escaped(shown) == shown, "nothing is escaped twice"


@pytest.mark.parametrize("written", ["", "runs/2026-11-21_ppo_s0", "größer ≥ 0 · – ∞", "日本語", "🎲", "a\u00a0b", r"C:\x1b"])
def test_what_people_write_stays(written):
    assert escaped(written) == text.lines(written) == written


def test_a_stream_is_escaped_whoever_writes_to_it():
    """In a process of its own: pytest takes warnings and log records for itself."""
    code = f"""if True:
        import logging, sys, threading, traceback, warnings
        from parl_like.lab import text
        odd, before = {ODD!r}, sys.stdout
        with text.printing():
            print(odd)
            print("\\x1b[33mcolour\\x1b[0m", file=sys.stderr)
            warnings.warn(odd)
            logging.getLogger("of.nobody").warning("logged %s", odd)
            sys.stdout.writelines(["a\\n\\tb\\n", "\\x07"])
            thread = threading.Thread(target=lambda: {{}}[odd + "x"])
            thread.start()
            thread.join()
            try:
                raise ValueError(odd)
            except ValueError:
                traceback.print_exc()
        assert sys.stdout is before
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not odd(done.stdout) and not odd(done.stderr)
    assert done.stderr.startswith("colour\n") and done.stdout.endswith("a\n\tb\n\\x07")
    for said in ("UserWarning: ", "logged ", "KeyError: ", "ValueError: "):
        assert f"{said}\\x1b]0;owned" in done.stderr.replace("'", "").replace("\\\\", "\\"), said


def test_a_stream_gets_characters_that_it_has(tmp_path):
    with open(tmp_path / "out", "w", encoding="ascii") as file:
        print("größer\udcff", file=printer(file))
    assert (tmp_path / "out").read_text() == "gr\\xf6\\xdfer\\udcff\n"
    assert printer(printer(file)) is not printer(file) and isinstance(printer(printer(file)).stream, type(file))


# ---- every command


def spoiled(run):
    """A run directory with odd characters in all that is read of it."""
    rows = (run / "metrics.csv").read_text().splitlines()
    (run / "metrics.csv").write_text("\n".join([rows[0] + f',"{ODD}"', *(f"{row},1" for row in rows[1:])]) + "\n", newline="\n")
    for name, keys in (("run.json", ("exit_reason", "name")), ("result.json", ("experiment",))):
        tree = json.loads((run / name).read_text())
        tree.update(dict.fromkeys(keys, ODD))
        if name == "run.json":
            tree["differs"] = {ODD: ODD}
            tree["command"] = [ODD]
        (run / name).write_text(json.dumps(tree))
    file = run / "config.yaml"
    file.write_text(dump_yaml({**load_yaml(file.read_text()), "options": {ODD: ODD}}))


COMMANDS = [
    ["list", "--runs", "."], ["eval", "RUN"], ["eval", "RUN", "--checkpoint", ODD], ["play", "RUN"], ["resume", "RUN",
    "total_steps=420"],
    ["resume", "RUN", f"lr={ODD}"], ["plot", "RUN", "--metric", ODD + "x"], ["plot", "RUN"], ["report", "RUN", "other"],
    ["report", "RUN", "--out", ODD], ["verify", "RUN"], ["diff", "RUN", "other"],
    ["train", ODD], ["train", "fake", f"{ODD}=1"], ["train", "fake",
    f"lr={ODD}"],
    ["train", "fake", f"run_dir={ODD}new"], ["train", "fake", f"run_dir={ODD}"], ["train", "fake", "--show-config", f"env={ODD}"],
    ["train", "fake", "--config", ODD], ["train", "fake", "seed=1", "seed=2", f"env={ODD}", f"env={ODD}a"], [ODD], ["eval", ODD],
    ["train", "fake", f"--{ODD}"], ["marks", ODD], ["bench", ODD], ["list", "--from", ODD], ["train", f"{ODD}.py"], ["train",
    f"{ODD}:a"],
]  # fmt: skip


@pytest.mark.parametrize("json_too", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: ascii(" ".join(words)).replace(ascii(ODD)[1:-1], "ODD"))
def test_no_command_prints_control_codes(command, json_too, capsys):
    train(ODD, options={"a": 1})
    train("other")
    spoiled(Path(ODD))
    capsys.readouterr()
    main([word if word != "RUN" else ODD for word in command] + ["--debug"] * (not json_too) + ["--json"] * json_too)
    out, err = capsys.readouterr()
    assert not odd(out) and not odd(err) and out + err
    assert "x1b]0;owned" in (out + err).replace("\\]", "]") or "x1b" not in out + err
    for file in ("log.txt", "config.yaml"):
        assert not odd((Path(ODD) / file).read_text()), file


def test_what_a_robot_says_is_escaped_in_terminal_and_log(monkeypatch, capsys):
    monkeypatch.setattr(FakeRobot, "notes", [f"note {ODD}"], raising=False)
    monkeypatch.setattr(FakeRobot, "at_step", {55: lambda: (_ for _ in ()).throw(RuntimeError(f"raised {ODD}\nsecond"))})
    assert main(["train", "fake", "run_dir=run", "--debug"]) == 1
    out, err = capsys.readouterr()
    log = Path("run/log.txt").read_text()
    for shown in (out + err, log):
        assert not odd(shown) and "note \\x1b]0;owned" in shown and "raised \\x1b]0;owned" in shown


def test_the_live_table_escapes_names(tmp_path):
    class Terminal:
        encoding = "utf-8"

        def __init__(self):
            self.texts = []

        def write(self, text):
            self.texts.append(text)

        def flush(self):
            pass

        def isatty(self):
            return True

    stream = Terminal()
    now = iter(range(1000))
    progress = Progress(f"{ODD}, [red]x[/red]", 100, 0, 10.0, printer(stream), lambda: float(next(now)))
    before = sys.stdout
    print(ODD)
    assert isinstance(before, Printer)
    progress.tick(10, lambda: {f"RL/{ODD}": 1.0, "RL/[b]": 2.0})
    progress.close()
    shown = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", "".join(stream.texts))  # of the table itself
    assert not odd(shown, "\n\r") and shown.count("\\x1b]0;owned") >= 3 and "[red]x[/red]" in shown and "[b]" in shown
    assert not isinstance(sys.stdout, Printer)


# ---- names that are no UTF-8

LATIN = os.fsdecode(b"gr\xfc\xdfe")


@pytest.mark.parametrize("command", [["list", "--runs", "."], ["eval", "RUN"], ["play", "RUN"], ["plot", "RUN"], ["verify",
    "RUN"],
                                     ["report", "RUN", "--out", "out"], ["resume", "RUN", "total_steps=420"]],
                                     ids=lambda words: words[0])
@pytest.mark.parametrize("json_too", [False, True])
def test_a_directory_whose_name_is_no_utf_8_is_one_like_others(command, json_too, capfd, tmp_path):
    """In bytes, as a terminal gets them."""
    run = train("run")
    os.rename(run.path, LATIN)
    capfd.readouterr()
    code = main([word if word != "RUN" else LATIN for word in command] + ["--json"] * json_too)
    out, err = capfd.readouterr()
    assert code == (2 if command[0] == "plot" else 0), err
    if json_too and command[0] != "plot":
        assert escaped(LATIN) in json.dumps(json.loads(out)).replace("\\\\", "\\"), "text that every reader of JSON takes"
    elif command[0] == "list":
        assert "gr\\udcfc\\udcdfe" in out
    if command[0] == "report":
        for name in ("report.md", "report.html", "runs.csv"):
            (tmp_path / "out" / name).read_text(encoding="utf-8")


def test_a_run_can_be_trained_in_a_directory_whose_name_is_no_utf_8(capsys):
    assert main(["train", "fake", f"run_dir={LATIN}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == escaped(LATIN)
    run = RunDir.open(LATIN)
    assert run.config()["run_dir"] == LATIN and escaped(LATIN) in " ".join(run.info().command)
    assert main(["eval", LATIN]) == main(["resume", LATIN, "total_steps=420"]) == 0


def test_a_terminal_without_utf_8_shows_a_list(tmp_path):
    train("run")
    env = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
    shutil.move("run", "größe ∞")
    done = subprocess.run([sys.executable, "-m", "parl_like", "list", "--runs", "."], capture_output=True, env=env, check=False)
    assert done.returncode == 0 and done.stderr == b"" and b"gr" in done.stdout


# ---- pages and tables

EVIL = ["<script>alert(1)</script>", "[x](javascript:alert(1))", "<javascript:alert(1)>", "![x](http://evil/x.png)", "a|b",
    "`code`",
        "**bold**", "[x]: javascript:alert(1)", "<img src=x onerror=alert(1)>", "&lt;b&gt;", "http://evil.example/x",
        "www.evil.example",
        "# head", "~~gone~~", "\\[x](y)", "a\n\n<b>b</b>", "_em_", "a\r\n| c | d |"]  # fmt: skip


@pytest.mark.parametrize("evil", EVIL)
def test_a_name_is_no_markup_in_a_report(evil):
    group = {"group": evil, "runs": 1, "scores": [1.0], "env_steps": [1, 1], "iqm": 1.0, "interval": None, "median": 1.0,
        "mean": 1.0,
             "best": 1.0, "mark": None, "optimality_gap": None, "seconds": None, "evaluated": 0, "reached": None,
             "steps_to_mark": None}
    found = {"groups": [group], "runs": [], "notes": [f"{evil} is stopped."],
             "improvements": [{"a": evil, "b": evil, "probability": 0.5, "interval": None}]}
    shown = markdown(found)
    assert not re.search(r"<[A-Za-z/!]|(?<!\\)\]\(|(?<!\\)\]:|(?<!\\)`|(?<!\\)\*|://|www\.", shown)
    tables = [line for line in shown.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in tables} == {13, 4}
    tags = set()
    reader = HTMLParser()
    reader.handle_starttag = lambda tag, attrs: tags.add((tag, tuple(name for name, _ in attrs)))
    reader.feed(page(found))
    assert {tag for tag, _ in tags} <= {"html", "head", "meta", "title", "style", "body", "h1", "table", "tr", "th", "td",
        "ul", "li"}


def test_usual_names_stay_readable_in_markdown():
    assert for_markdown("ppo-cartpole lr=0.001 runs/2026-11-21_x_s0") == "ppo-cartpole lr=0.001 runs/2026-11-21_x_s0"


@pytest.mark.parametrize("evil", ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "＝1",
    "=cmd|' /C calc'!A0", "--1"])
def test_a_text_is_no_formula(evil):
    cell = for_csv(evil)
    assert cell[0] in "'\\" and not re.match(r"[\s]*[=+\-@]", cell) and evil.strip() in cell


@pytest.mark.parametrize(("value", "cell"), [
    (-1.5, "-1.5"), (-3, "-3"), (1e-05, "1e-05"), (None, ""), (True, "True"), ([-1.5, 2.0], "-1.5 2.0"), ("-2", "-2"),
    (float("-inf"), "-inf"), ("ppo-cartpole", "ppo-cartpole"), ((), ""), (["=1", 2], "'=1 2"),
])  # fmt: skip
def test_numbers_stay_numbers(value, cell):
    assert for_csv(value) == cell


def test_cells_of_a_report_are_no_formulas(tmp_path, capsys):
    for name in ("=cmd", "@x", "+1+1"):
        train(name)
        file = Path(name, "config.yaml")
        tree = {**load_yaml(file.read_text()), "options": {name: name}}
        file.write_text(dump_yaml({**tree, "seed": name}))
        assert main(["report", name]) == 2 and "$.seed" in capsys.readouterr().err
        file.write_text(dump_yaml(tree))
    assert main(["report", "=cmd", "@x", "+1+1", "--out", "out"]) == 0
    for file in ("runs.csv", "report.csv"):
        for row in csv.reader(Path("out", file).open(newline="")):
            for cell in row:
                assert not re.match(r"\s*[=+\-@]", cell) or for_csv(float(cell)) == cell
    rows = list(csv.DictReader(Path("out/runs.csv").open(newline="")))
    assert all(float(row["score"]) and int(row["env_steps"]) for row in rows)


def test_a_mark_s_table_has_no_markup():
    one = marks.Mark(experiment="fake", seed=0, differs={"env": "<b>|[x](javascript:1)"}, env_steps=1, score=1.0, evaluation={},
                     expect={"<i>": (1.0, None)}, solved=None, seconds=1.0, configuration="", code="", versions={}, git=None)
    shown = "\n".join(marks.table([one]))
    assert "<b>" not in shown and "<i>" not in shown and "](" not in shown.replace("\\](", "")


@pytest.mark.parametrize("name", ["$x_1$", r"$\frac{$", "_hidden", "a$b", ODD, LATIN])
def test_a_picture_shows_names_as_they_are(name, tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], label=for_picture(name))
    out = plots.finish(figure, axes, "steps", name, tmp_path / "a.svg", [])
    assert out.stat().st_size
    (label,) = axes.get_legend().get_texts()
    assert label.get_text().strip().replace(r"\$", "$") == escaped(name)
    assert label._preprocess_math(label.get_text())[1] in (False, "TeX")
    assert label._preprocess_math(label.get_text())[0].strip() == escaped(name)
