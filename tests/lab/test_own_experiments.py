"""Experiments of a user's own, by file, module and installed package; and that a run directory has nothing imported but what the
user has given before, as it was."""

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import cloudpickle
import gymnasium as gym
import pytest

from parl_like import load_run
from parl_like.envs import make_vector_env
from parl_like.lab import experiment as experiments
from parl_like.lab import runner, user_experiments
from parl_like.lab.cli import main
from parl_like.lab.reports import marks
from parl_like.lab.runs.metrics import evaluations
from parl_like.lab.runs.rundir import RunDir, runs_in
from parl_like.lab.yaml_text import UsageError

FILE = '''"""A robot of one's own."""
import gymnasium as gym
import numpy as np
from parl_like import Experiment, register
from parl_like.algorithms import DQN
from parl_like.models import MLPQ

open("imported", "a").write("x")


class Bandit(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)
    metadata, render_mode = {"render_modes": ["rgb_array"], "render_fps": 1}, "rgb_array"

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, act):
        return np.zeros(2, np.float32), float(act), True, False, {"is_success": bool(act)}


class MyDQN(DQN):
    pass


class MyQ(MLPQ):
    pass


def plain(robot, episodes):
    return 7.0


gym.register("Bandit-v0", entry_point=Bandit)
config = dict(algorithm="MyDQN", model="MyQ", env="Bandit-v0", hidden=[8], total_steps=40, n_agents=2, warmup=8, batch_size=8,
              eval_episodes=2, tensorboard=False, checkpoint_every=20)
register(Experiment(name="my-bandit", robot="single", description="two arms", config=config))
'''
TWO = FILE + 'register(Experiment(name="my-other", robot="single", config={**config, "total_steps": 60}))\n'


def forget():
    """As in a new process."""
    for name, one in experiments._brought.items():
        if one.module.__name__ in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.unregister_pickle_by_value(one.module)
        sys.modules.pop(name, None)
    for kept in (experiments._registered, experiments._modules, experiments._brought):
        kept.clear()
    Path("imported").unlink(missing_ok=True)


def forget_mine():
    """As in a new process, of what is no experiment's module."""
    for name in ("mine", "run", "run.mine", "run.deep"):
        sys.modules.pop(name, None)
    gym.registry.pop("Mine-v0", None)
    forget()


@pytest.fixture(autouse=True)
def clean(tmp_path, monkeypatch):
    forget_mine()  # what tests of other files have left
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for kept in ("_registered", "_modules", "_brought"):
        monkeypatch.setattr(experiments, kept, {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("my_robot.py").write_text(FILE)
    yield
    forget_mine()


def train(*words):
    code = main(["train", *words, "run_dir=run"])
    forget()
    return code


def imported():
    return Path("imported").exists()


# ---- where experiments come from


def test_a_file_s_experiment_is_trained_and_found_again_by_every_verb(capsys):
    assert train("./my_robot.py", "total_steps=20") == 0
    info = RunDir.open("run").info()
    assert (info.experiment, info.source.file, info.source.sha256) == ("my-bandit", os.path.realpath("my_robot.py"),
                                                                       sha("my_robot.py"))
    assert info.differs == {"total_steps": 20}, "the file's values are the experiment's"
    for words in (["eval", "run", "--json"], ["resume", "run", "total_steps=40"], ["list", "--runs", ".", "--json"],
                  ["verify", "run"]):
        capsys.readouterr()
        assert main(words) == 0, words
        assert imported() == (words[0] in ("eval", "resume")), words
        forget()
    with load_run("run") as robot:
        task = robot.tasks["RL"]
        assert type(task.algorithm).__name__ == "MyDQN" and type(task.algorithm.model).__name__ == "MyQ"
        assert robot.env_steps == 40 and task.algorithm.window.n_step == 3, "what is usual for DQN, is for one's own"
        assert runner.evaluate("run")["episodes"] == 2, "and again in the same process"


def test_several_experiments_of_a_file_have_names(capsys):
    Path("my_robot.py").write_text(TWO)
    assert main(["train", "my_robot.py"]) == 2
    assert "my_robot.py has the experiments my-bandit, my-other; write my_robot.py:my-bandit" in capsys.readouterr().err
    assert main(["train", "my_robot.py:mine"]) == 2
    assert "my_robot.py: no experiment 'mine'" in capsys.readouterr().err
    forget()
    assert train("my_robot.py:my-other") == 0
    with load_run("run") as robot:
        assert robot.env_steps == 60
    forget()
    assert main(["list", "--from", "my_robot.py"]) == 0 and "my-other" in capsys.readouterr().out
    assert main(["eval", "run", "--from", "my_robot.py:my-bandit"]) == 2
    assert "the run is of experiment 'my-other'" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "file", "message"), [
    ("x = 1\n", "empty.py", "empty.py registers no experiment; expected parl_like.register"),
    (FILE, "json.py", "there is another module 'json'; rename the file"),
    (FILE, "my-robot.py", "expected a name that a module can have"),
    (None, "none.py", "cannot read .*none.py: No such file"),
    ("1 +", "broken.py", "SyntaxError"),
    (FILE.replace("my-bandit", "dqn-cartpole"), "taken.py", "'dqn-cartpole' exists already"),
])
def test_what_is_wrong_with_a_file_is_said(content, file, message, capsys):
    if content is not None:
        Path(file).write_text(content)
    assert main(["train", file]) in (1, 2)
    assert re.search(message, capsys.readouterr().err)


def test_a_module_is_found_below_the_working_directory_and_must_be_given_again(capsys):
    Path("my_package").mkdir()
    Path("my_package/__init__.py").write_text("")
    Path("my_package/robots.py").write_text(FILE)
    assert main(["train", "my_package.nothing:x"]) == 2
    assert "there is no module 'my_package.nothing'" in capsys.readouterr().err
    assert train("my_package.robots:my-bandit", "algorithm=my_package.robots:MyDQN") == 0
    sys.modules.pop("my_package", None)
    assert main(["eval", "run"]) == 2
    assert "--from my_package.robots" in capsys.readouterr().err and not imported()
    assert main(["eval", "run", "--from", "my_package.robots"]) == 0
    sys.modules.pop("my_package", None)


MINE = """
import gymnasium as gym
from parl_like import OffPolicyHelper
from parl_like.algorithms import DQN
from parl_like.learning.explorers import EpsilonGreedy
from parl_like.models import MLPQ

open("imported", "a").write("x")
MyDQN, MyQ, MyHelper = type("MyDQN", (DQN,), {}), type("MyQ", (MLPQ,), {}), type("MyHelper", (OffPolicyHelper,), {})
MyExplorer, MyWrapper = type("MyExplorer", (EpsilonGreedy,), {}), type("MyWrapper", (gym.Wrapper,), {})
gym.register("Mine-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=20)
"""


@pytest.mark.parametrize("words", [
    ["algorithm=mine:MyDQN"], ["model=mine:MyQ"], ["helper=mine:MyHelper"], ["explorer=mine:MyExplorer"],
    ["env.wrappers=[mine:MyWrapper]"], ["env=mine:Mine-v0"],
], ids=str)
def test_parts_of_a_module_are_found_below_the_working_directory_and_must_be_given_again(words, capsys):
    Path("mine.py").write_text(MINE)
    assert train("dqn-cartpole", "total_steps=20", "eval_episodes=1", "tensorboard=false", *words) == 0
    forget_mine()
    assert main(["eval", "run"]) == 2 and not imported()
    again = capsys.readouterr().err.partition("if you trust it, give ")[2].partition(" again")[0]
    for given in ([again], words):
        assert main(["eval", "run", *given]) == 0 and imported(), given
        forget_mine()


def test_a_package_here_registers_an_experiment_under_its_own_name(tmp_path):
    Path("whole").mkdir()
    Path("whole/__init__.py").write_text(FILE)
    assert user_experiments.chosen("whole:my-bandit").name == "my-bandit"


@pytest.mark.parametrize("name", ["run.mine", "run.deep.mine", "run"])
def test_no_module_in_a_run_directory_is_imported_even_if_it_is_given(name, capsys):
    assert train("dqn-cartpole", "total_steps=20", "eval_episodes=1", "tensorboard=false") == 0
    for file in ("mine.py", "deep/mine.py", "__init__.py")[:3 if name == "run" else 2]:
        Path("run", file).parent.mkdir(exist_ok=True)
        Path("run", file).write_text(FILE)
    for words in ([f"{name}:my-bandit"], ["dqn-cartpole", f"algorithm={name}:MyDQN"], ["dqn-cartpole", f"env={name}:Bandit-v0"]):
        assert main(["train", *words]) == 2
        assert "is in the run directory" in capsys.readouterr().err, words
    os.chdir("run")
    for words in (["mine:my-bandit"], ["dqn-cartpole", "algorithm=mine:MyDQN"], ["dqn-cartpole", "env=mine:Bandit-v0"]):
        assert main(["train", *words]) == 2, words
    assert not imported() and not Path("../imported").exists()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """An installed package with an entry point."""
    site = tmp_path / "site"
    (site / "their_package-1.dist-info").mkdir(parents=True)
    (site / "their_package-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: their_package\nVersion: 1\n")
    (site / "their_package-1.dist-info" / "entry_points.txt").write_text(
        "[parl_like.experiments]\nmy-bandit = their_robots\nmy-missing = their_robots\n")
    (site / "their_robots.py").write_text(FILE)
    monkeypatch.syspath_prepend(str(site))


def test_installed_packages_bring_experiments_by_entry_points(installed, capsys):
    assert [point.name for point in metadata.entry_points(group="parl_like.experiments")] == ["my-bandit", "my-missing"]
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert "my-bandit" in shown and "their_robots" in shown and not imported(), "a list imports nothing"
    assert train("my-bandit") == 0
    assert RunDir.open("run").info().source is None
    assert main(["eval", "run"]) == 0 and imported()
    assert main(["train", "my-missing"]) == 2
    assert "their_robots is its entry point, but does not register it" in capsys.readouterr().err


# ---- what a run directory may have imported


def changed(**source):
    path = Path("run/run.json")
    info = json.loads(path.read_text())
    info["source"] = {**(info["source"] or {}), **source}
    path.write_text(json.dumps(info))


def refused(message, where="run"):
    """By every verb, before anything is imported."""
    forget()
    verbs = [lambda: runner.evaluate(where), lambda: runner.play(where), lambda: runner.resume(where, {"total_steps": 80}),
             lambda: load_run(where).close()]
    for verb in verbs:
        with pytest.raises(UsageError, match=message):
            verb()
    assert not imported()


def sha(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_a_file_that_has_changed_or_moved_is_given_again(tmp_path, monkeypatch):
    assert train("my_robot.py") == 0
    Path("my_robot.py").write_text(FILE + "# changed\n")
    refused(r"'my-bandit' of run was registered by '.*my_robot.py', which has changed since; give --from my_robot.py")
    assert runner.evaluate("run", source="my_robot.py")["episodes"] == 2
    refused("which has changed since")  # an evaluation does not change what the run remembers
    assert runner.resume("run", {"total_steps": 60}, source="my_robot.py") == 0
    forget()
    assert runner.evaluate("run")["episodes"] == 2
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    refused(r"which is not below .*elsewhere; give --from \.\./here/my_robot.py", "../here/run")
    monkeypatch.chdir(tmp_path / "here")
    Path("my_robot.py").rename("other.py")
    refused("which is not there; give --from FILE")


def test_a_stranger_s_file_is_not_imported_wherever_it_lies(tmp_path):
    """A run directory that came from somebody else, with a file beside it, below the working directory, and the right hash."""
    assert train("my_robot.py") == 0
    evil = "open('imported', 'w')\n" + FILE
    for place in ("evil.py", "run/evil.py", "run/../evil2.py", "other/evil.py"):
        Path(place).parent.mkdir(exist_ok=True)
        Path(place).write_text(evil)
        changed(file=os.path.realpath(place), sha256=sha(place))
        refused("in the run directory" if place.startswith("run/evil") else "which you have not given to parl-like yet")
    Path("copy").mkdir()
    Path("copy/my_robot.py").write_text(FILE)  # the user's own, but beside modules of a stranger's
    Path("copy/parl_like_extra.py").write_text(evil)
    changed(file=os.path.realpath("copy/my_robot.py"), sha256=sha("my_robot.py"))
    refused("which you have not given to parl-like yet")


def test_links_lead_nowhere(tmp_path):
    assert train("my_robot.py") == 0
    evil = tmp_path / "evil.py"
    evil.write_text(FILE + "# evil\n")
    for name, make in (("soft.py", os.symlink), ("hard.py", os.link)):
        make(evil, name)
        changed(file=os.path.abspath(name), sha256=sha(name))
        refused("which is not there" if name == "soft.py" else "which you have not given to parl-like yet")
    os.symlink(tmp_path, "up")
    changed(file=os.path.abspath("up/evil.py"), sha256=sha(evil))
    refused("which is not there")
    Path("my_robot.py").unlink()
    os.link(evil, "my_robot.py")  # at the place of the user's own
    changed(file=os.path.realpath("my_robot.py"), sha256=sha("my_robot.py"))
    refused("which you have not given to parl-like yet")


@pytest.mark.parametrize("source", [{"file": "my_robot.py"}, {"file": "/dev/zero"}, {"file": "\0"}, {"file": "/"},
                                    {"module": "this"}, {"module": "my_robot"}, {"module": "antigravity"}], ids=str)
def test_other_words_of_a_changed_run_import_nothing(source):
    assert train("my_robot.py") == 0
    changed(**{"file": "", "sha256": "", **source})
    refused("--from")
    assert "antigravity" not in sys.modules and "this" not in sys.modules


def test_nothing_in_a_run_directory_is_imported_even_if_it_is_given(capsys):
    assert train("my_robot.py") == 0
    Path("run/mine.py").write_text(FILE)
    assert main(["train", "run/mine.py"]) == 2
    assert "is in the run directory" in capsys.readouterr().err
    assert main(["eval", "run", "--from", "run/mine.py"]) == 2
    Path("link.py").symlink_to("run/mine.py")
    assert main(["eval", "run", "--from", "link.py"]) == 2
    assert not imported()


def test_a_run_names_no_other_things_of_the_user_s_module():
    """Only classes of the kind that is asked for, and functions that are scores."""
    Path("my_robot.py").write_text(FILE + "from subprocess import Popen\nfrom os import system\n")
    assert train("my_robot.py") == 0
    path = Path("run/config.yaml")
    text = path.read_text()
    for old, new in (("algorithm: MyDQN", "algorithm: my_robot:Popen"), ("model: MyQ", "model: Popen"),
                     ('eval_score: ""', "eval_score: my_robot:system")):
        assert old in text
        path.write_text(text.replace(old, new))
        with pytest.raises(UsageError, match="no (Algorithm|Model|score) '(my_robot:)?(Popen|system)'"):
            runner.evaluate("run")


def test_the_state_directory_may_refuse(tmp_path, capsys):
    """Then each command is told which file to take."""
    (tmp_path / "state").write_text("no directory")
    assert train("my_robot.py") == 0
    assert main(["eval", "run"]) == 2 and "--from my_robot.py" in capsys.readouterr().err
    assert main(["eval", "run", "--from", "my_robot.py"]) == 0


# ---- in other processes


@pytest.mark.parametrize("driver", ["processes", pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.xdist_group("ray")])])
def test_workers_get_what_the_file_defines(driver):
    """Environment, agent and ids that the file registers; the worker does not import the file."""
    if driver == "ray":
        pytest.importorskip("ray")
    words = ["my_robot.py", f"driver={driver}", "workers.count=2"]
    Path("my_robot.py").write_text(FILE + '''
from parl_like import Agent, ComputationTask, OffPolicyHelper, Robot, create_algorithm_func
from parl_like.lab.config import ExperimentConfig as Config


class Mine(Agent):
    def run_one_episode(self):
        obs, _ = self.env.reset()
        act = self.helpers["RL"].predict(obs)
        nxt, rew, terminated, truncated, info = self.env.step(act)
        self.helpers["RL"].store(obs, act, rew, nxt, terminated, truncated, info)


def build(config):
    spaces = {"obs": Bandit.observation_space, "act": Bandit.action_space}
    func = create_algorithm_func(MyQ, {**spaces, "hidden": [8]}, MyDQN, {})
    task = ComputationTask(func, lambda: OffPolicyHelper(size=100, batch_size=4))
    return Robot(lambda: gym.make("Bandit-v0"), tasks={"RL": task}, agent=Mine, n_agents=config.n_agents,
                 driver=config.robot_driver(), seed=config.seed)


import sys
register(Experiment(name="my-robot", robot="mine", config=dict(total_steps=40, n_agents=2, eval_episodes=2, tensorboard=False)),
         module=sys.modules[__name__])
''')
    for name in ("my-bandit", "my-robot"):
        assert main(["train", f"my_robot.py:{name}", *words[1:], f"run_dir={name}"]) == 0
        assert Path("imported").read_text() == "x", "once, in this process"
    forget()
    with load_run("my-robot") as robot:
        assert robot.env_steps >= 40


def test_environment_processes_know_ids_that_were_registered_by_a_class():
    user_experiments.chosen("my_robot.py")
    with contextlib.closing(make_vector_env(lambda: gym.make("Bandit-v0"), 2, kind="process", workers=1)) as envs:
        assert envs.reset(seed=0)[0].shape == (2, 2)


@pytest.mark.slow
def test_the_command_itself_in_a_new_process():
    def command(*words):
        return subprocess.run([sys.executable, "-m", "parl_like", *words], capture_output=True, text=True, check=False)

    assert command("train", "./my_robot.py", "run_dir=run", "total_steps=20").returncode == 0
    done = command("eval", "run", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["experiment"] == "my-bandit", done.stderr


def test_marks_are_made_of_one_s_own():
    made = []

    def train(words):
        made.append(words[0])
        return main(words)

    def measure(word):
        return marks.measure([word], 1, {"total_steps": 20}, file=Path("marks.json"), runs=Path("marks"), train=train)

    (mark,) = measure("my_robot.py")
    assert (mark.experiment, mark.score) == ("my-bandit", 1.0) and user_experiments.registered("my_robot.py") == ["my-bandit"]
    assert measure("my_robot.py") == [mark] and made == ["train"]
    forget()
    Path("my_robot.py").write_text(FILE + "# changed\n")
    assert measure("my_robot.py") != [mark] and made == ["train", "train"], "other code, another mark"
    forget()
    Path("my_module.py").write_text(FILE + "# as a module\n")
    measure("my_module:my-bandit")
    (last,) = [run for run in runs_in(Path("marks")) if run.info().source.module]
    last.update(state="stopped")
    Path("marks.json").unlink()
    measure("my_module:my-bandit")
    assert made == ["train", "train", "train", "resume"], "a module is named again"


def test_a_script_that_trained_by_itself_is_named_later():
    Path("my_robot.py").write_text(FILE.replace('"MyDQN"', '"DQN"').replace('"MyQ"', '"MLPQ"'))
    user_experiments.chosen("my_robot.py")
    experiments._brought.clear()  # as if it was run
    one = experiments.get("my-bandit")
    config = runner.configs.resolve(one.module().Config, one.config, {"run_dir": "run"})
    assert runner.train(one, config) == 0 and RunDir.open("run").info().source is None
    sys.modules.pop("my_robot")
    refused("no experiment 'my-bandit'; .*for one of your own give --from FILE")
    assert runner.evaluate("run", source="my_robot.py")["episodes"] == 2


# ---- a score of one's own

POKER = '''
import itertools
import gymnasium as gym
import numpy as np
from parl_like import Experiment, register
from parl_like.envs.games import CHANCE, TERMINAL, GameEnv, Kuhn, uniform


def value(state, policies, seat):
    """Expected utility of a seat: the sum over the tree."""
    if state.player == TERMINAL:
        return state.returns()[seat]
    moves = state.chance() if state.player == CHANCE else enumerate(policies[state.player](state))
    total = 0.0
    for move, chance in [(move, chance) for move, chance in moves if chance]:
        state.apply(move)
        total += chance * value(state, policies, seat)
        state.undo()
    return total


def nash_conv(policy):
    """Summed over both players: the most that one wins who knows the other's policy; over all 64 ways to play 6 situations."""
    total = 0.0
    for seat in (0, 1):
        best = -2.0
        for bets in itertools.product((0, 1), repeat=6):
            def answer(state):
                return np.eye(2)[bets[state.history[seat] + 3 * (1 in state.bets)]]  # his card, and whether the other has bet
            policies = [policy, policy]
            policies[seat] = answer
            best = max(best, value(Kuhn().start(), policies, seat))
        total += best
    return total


def exploitability(robot, episodes):
    answers = {}

    def policy(state):
        if state.key() not in answers:
            obs = {"mask": state.mask(), "obs": state.tensor()}
            answers[state.key()] = np.eye(2)[int(robot.act(obs))]
        return answers[state.key()]

    return -nash_conv(policy) / 2


gym.register("Kuhn-v0", entry_point=lambda **options: GameEnv(Kuhn(), player=None, **options))
register(Experiment(name="kuhn", robot="single", config=dict(
    algorithm="DQN", env="Kuhn-v0", hidden=[16], n_agents=2, total_steps=300, warmup=32, batch_size=16, target_period=20,
    eval_every=100, eval_episodes=4, eval_score="exploitability", tensorboard=False)))
'''


def test_a_run_is_evaluated_by_the_exploitability_of_its_policy(capsys):
    Path("poker.py").write_text(POKER)
    assert main(["train", "poker.py", "run_dir=run"]) == 0
    poker = sys.modules["poker"]
    assert poker.nash_conv(poker.uniform) == pytest.approx(11 / 12)
    assert poker.nash_conv(lambda state: [1.0, 0.0]) == pytest.approx(2.0), "who always passes loses his stake"
    seen = dict(evaluations(RunDir.open("run")))
    with load_run("run") as robot:
        assert robot.evaluate(4).score == poker.exploitability(robot, None) == list(seen.values())[-1]

    def command(*words):
        capsys.readouterr()
        assert main(["eval", "run", "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)

    best = max(seen, key=lambda step: (seen[step], -step))
    for words in (["--best"], ["--checkpoint", "best"]):
        told = command(*words)
        assert (told["step"], told["score"]) == (best, seen[best]), words
    assert command()["step"] == max(seen) and command("--checkpoint", str(max(seen)))["score"] == seen[max(seen)]
    other = command("eval_score=min_return", "--best")
    assert other["score"] == other["min_return"]
    forget()
    assert command("--best")["score"] == seen[best], "the file is imported for that"


@pytest.mark.parametrize("verb", ["play", "resume"])
def test_the_best_is_played_but_not_gone_on_from(verb, capsys):
    assert train("my_robot.py", "eval_every=20", "eval_score=success_rate") == 0
    best = RunDir.open("run").info().evaluated["best_step"]
    words = {"play": ["--best"], "resume": ["--checkpoint", "best", "total_steps=80"]}[verb]
    assert main([verb, "run", *words]) == (0 if verb == "play" else 2)
    assert verb == "play" or "has what acts, but neither buffers nor agents" in capsys.readouterr().err
    with load_run("run", checkpoint="best") as robot:
        assert robot.env_steps == best and robot.score == "success_rate"


@pytest.mark.parametrize(("score", "message"), [
    ("plane", "no score 'plane'; did you mean 'plain'"), ("MyDQN", "no score 'MyDQN'"), ("my_robot:MyDQN", "no score 'my_robot:"),
    ("mean_retur", "did you mean 'mean_return'"), ("nothing:x", "No module named 'nothing'"),
])
def test_a_score_that_is_none_is_refused(score, message):
    experiment = user_experiments.chosen("my_robot.py")
    config = runner.configs.resolve(experiment.module().Config, experiment.config, {"eval_score": score})
    with pytest.raises(UsageError, match=message):
        runner.train(experiment, config)


# ---- hooks


HOOKS = '''
from parl_like import Hook
from parl_like.environment.hooks import EveryNSteps


class Diary(Hook):
    """Writes down what it hears of."""

    def __init__(self, file: str = "diary", every: int = 1):
        self.file, self.every, self.heard = file, every, 0

    def note(self, word):
        with open(self.file, "a") as out:
            out.write(word)

    def pre_experiment(self, robot):
        self.note("(")

    def post_episode(self, agent, interrupted):
        self.heard += 1
        if not interrupted and not self.heard % self.every:
            self.note(".")

    def post_experiment(self, robot):
        self.note(")")


class CalmDown(EveryNSteps):
    def __init__(self, n: int = 10, lr: float = 1e-5):
        super().__init__(n, lambda robot: setattr(robot.tasks["RL"].algorithm, "lr", lr))
'''


@pytest.mark.parametrize("driver", ["cooperative", "processes"])
def test_hooks_are_given_by_name_with_their_arguments(driver):
    Path("my_robot.py").write_text(FILE + HOOKS)
    assert train("my_robot.py", "hooks=[Diary,CalmDown,LossLog]", "Diary.every=2", "CalmDown.lr=3e-7", "checkpoint_every=0",
                 f"driver={driver}") == 0
    heard = Path("diary").read_text()
    assert heard.startswith("(") and 19 <= heard.count(".") <= 21, "every second of 40 episodes of one step"
    assert heard.count("(") == heard.count(")") == 1
    kept = RunDir.open("run").config()
    assert kept["hooks"] == ["Diary", "CalmDown", "LossLog"] and kept["robot"]["hooks"]["Diary"] == {"every": 2, "file": "diary"}
    with load_run("run", source="my_robot.py") as robot:
        assert robot.tasks["RL"].algorithm.lr == 3e-7
        robot.evaluate(3)
    assert Path("diary").read_text() == heard, "nothing of evaluations"
    assert main(["resume", "run", "total_steps=80"]) == 0
    assert Path("diary").read_text().count("(") == 2, "a run that goes on has them, too"


@pytest.mark.parametrize(("words", "message"), [
    (["hooks=[Dairy]"], "no Hook 'Dairy'; did you mean 'Diary'"), (["hooks=[MyDQN]"], "no Hook 'MyDQN'"),
    (["hooks=[EveryNSteps]"], "EveryNSteps.n is needed|EveryNSteps is not built from a configuration"),
    (["hooks=[Diary]", "Diary.evry=2"], "did you mean 'Diary.every'"), (["hooks=Diary"], "a list"),
    (["hooks=[CalmDown]", "CalmDown.n=0"], "n is 0; expected at least 1"), (["Diary.every=2"], "no key 'Diary.every'"),
])
def test_a_hook_that_is_none_is_refused_before_training(words, message, capsys):
    Path("my_robot.py").write_text(FILE + HOOKS)
    assert train("my_robot.py", *words) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not Path("run").exists() and not Path("diary").exists()


def test_a_run_directory_has_no_hook_of_a_stranger_imported():
    Path("my_robot.py").write_text(FILE + HOOKS)
    assert train("my_robot.py") == 0
    path = Path("run/config.yaml")
    path.write_text(path.read_text().replace("hooks: []", "hooks: ['this:Hook']"))
    with pytest.raises(UsageError, match="would import a module|which a run directory may not"):
        runner.evaluate("run", source="my_robot.py")
    assert "this" not in sys.modules
