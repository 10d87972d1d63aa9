"""The verbs of `parl-like`: what docs/commands.md says of them is what their help says, and typical mistakes are told with the
way out."""

import re
from pathlib import Path

import pytest

import parl_like
from parl_like.lab import cli, pretrained

pytestmark = pytest.mark.checkout
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \|(.*)\|(.*)\|$", PAGE, re.MULTILINE)
VERBS = {verb.name: verb for verb in cli.VERBS}
COMMON = {"--help", "--json", "--traceback", "--debug", "--version"}


def written(name, how):
    """An argument as the table has it."""
    meta, many = how.get("metavar"), how.get("nargs")
    if name.startswith("--"):
        return f"`{name}{f' {meta}' if meta else ''}`"
    return {"*": f"[{meta} …]", "+": f"{meta} …", "?": f"[{meta}]", None: meta}.get(many, f"[{meta} …]")


def test_the_table_has_every_verb_word_and_option_and_no_other():
    assert [name for name, *_ in ROWS] == list(VERBS)
    for name, words, options in ROWS:
        told = [written(*one) for one in VERBS[name].options]
        assert [one for one in told if not one.startswith("`--")] == re.findall(r"\[[^\]]+\]|\w+(?: …)?", words), name
        assert sorted(one for one in told if one.startswith("`--")) == sorted(re.findall(r"`--[^`]+`", options)), name


def test_options_that_the_page_names_exist():
    known = {option for verb in cli.VERBS for option, _ in verb.options if option.startswith("--")} | COMMON
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE)) - known == set()


@pytest.mark.parametrize("name", VERBS)
def test_help_explains_every_argument(name, capsys):
    assert cli.main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "".join(VERBS[name].help.split()) in "".join(shown.split())
    for option, how in VERBS[name].options:
        assert how["help"], f"{name} {option} says nothing"
        assert (option if option.startswith("--") else how["metavar"]) in shown


@pytest.mark.parametrize(("line", "message"), [
    ("", "required: VERB; see `parl-like --help`"), ("tran ppo-cartpole", "no verb 'tran'; did you mean 'train'?"),
    ("evaluate runs/x", "no verb 'evaluate'; did you mean 'eval'?"), ("ls", "no verb 'ls'; did you mean 'list'?"),
    ("train", "required: EXPERIMENT; see `parl-like train --help`"), ("train ppo-cartpol", "did you mean 'ppo-cartpole'?"),
    ("train ppo-cartpole --seed 1", "written key=value, e.g. total_steps=2000; here: seed=1"),
    ("train ppo-cartpole seed = 3", "expected key=value, got 'seed'; write for example seed=3"),
    ("train ppo-cartpole --config no.yaml", "cannot read no.yaml: No such file"),
    ("eval runs/none", "no run directory (it has no run.json); `parl-like list` shows the runs"),
    ("play runs/x --episodes 0", "--episodes: expected a whole number from 1, got '0'"),
    ("plot", "required: RUN"),
    ("xyz", "no verb 'xyz'; there are 'bench', "), ("list --from no.py", "no.py: No such file"),
    ("list --spaces --from mine.py", "--spaces leaves nothing to --from; leave one of them out"),
    ("dashboard --export page.html --port 8000", "--export leaves nothing to --port; leave one of them out"),
    ("dashboard --export page.html --host 127.0.0.1", "--export leaves nothing to --host; leave one of them out"),
    ("marks ppo-cartpole --keep --seeds 5", "--keep leaves nothing to --seeds; leave one of them out"),
    ("list --spaces --runs runs", "--spaces leaves nothing to --runs; leave one of them out"),
    ("record cartpole-expert --episodes 20", "is made as robots/datasets.yaml says; leave out --episodes, or record a run"),
    ("record cartpole-expert --from mine.py", "leave out --from, or record a run"),
    ("record cartpole-expert seed=3", "leave out key=value, or record a run"),
    ("eval runs/x --checkpoint latest --best", "--best: not allowed with argument --checkpoint"),
    ("resume runs/x --exact --checkpoint newest", "--checkpoint: not allowed with argument --exact"),
    ("export runs/x --to torchscript", "argument --to: invalid choice: 'torchscript' (choose from "),
    ("dashboard . --host 0.0.0.0", "--host 0.0.0.0 is every address of this machine, and the page has one name; give one"),
    ("marks ppo-cartpole --keep lr=1e-3", "--keep leaves nothing to key=value; leave one of them out"),
    ("marks --keep", "--keep: name the experiments"),
    ("sweep ppo-cartpole --random 2 --optuna 2", "--random leaves nothing to --optuna; leave one of them out"),
    ("sweep ppo-cartpole --address 10.0.0.1:6379", "is that of a Ray cluster; give --ray, too")])
def test_typical_mistakes_are_one_line_with_the_way_out(line, message, capsys):
    assert cli.main(line.split()) == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith("error: ") and message in told and "\n" not in told


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """A working directory with the run of a policy that ships, a file and a folder of somebody's."""
    folder = tmp_path_factory.mktemp("shipped")
    (folder / "file").write_text("mine")
    (folder / "full").mkdir()
    (folder / "full" / "mine").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return folder, str(pretrained.run_of("ppo-cartpole"))


@pytest.mark.parametrize("place", ["file/x", "/proc/x/x"])
@pytest.mark.parametrize("line", ["export {run} --out {out}", "record {run} --policy random --episodes 1 --out {out}",
                                  "report {run} --out {out}", "dashboard {run} --export {out}",
                                  "sweep ppo-cartpole total_steps=1 --out {out}", "marks ppo-cartpole --seeds 1 --out {out}",
                                  "train ppo-cartpole run_dir={out}"])
def test_a_place_that_cannot_be_written_to_is_bad_usage(line, place, shipped, monkeypatch, capsys):
    folder, run = shipped
    monkeypatch.chdir(folder)
    assert cli.main(line.format(run=run, out=place).split()) == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert told.startswith("error: cannot ") and place in told and "; give another " in told and "Error" not in told


@pytest.mark.parametrize("place", ["file", "full"])
@pytest.mark.parametrize("line", ["export {run} --out {out}", "record {run} --policy random --episodes 1 --out {out}"])
def test_what_is_somebodys_is_not_written_over(line, place, shipped, monkeypatch, capsys):
    folder, run = shipped
    monkeypatch.chdir(folder)
    assert cli.main(line.format(run=run, out=place).split()) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: --out ") and "expected a new name or an archive to replace, got something else" in told
    assert (folder / "file").read_text() == "mine" and (folder / "full" / "mine").exists()


def test_an_unknown_benchmark_is_answered_with_those_there_are(capsys):
    """Or, by an installed package, with where they are."""
    assert cli.main(["bench", "nosuch"]) == 2
    told = capsys.readouterr().err
    assert "no benchmark 'nosuch'; there are " in told or "benchmarks live in the repository" in told


def test_help_and_version_are_where_people_look(capsys):
    for words in (["help"], ["--help"], ["-h"]):
        assert cli.main(words) == 0
        assert all(name in capsys.readouterr().out for name in VERBS) or words
    assert cli.main(["help", "train"]) == 0 and "EXPERIMENT" in capsys.readouterr().out
    assert cli.main(["--version"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"parl-like {parl_like.__version__} (python ") and said.count("\n") == 1
    assert all(f", {package} " in said for package in ("torch", "numpy", "gymnasium"))
