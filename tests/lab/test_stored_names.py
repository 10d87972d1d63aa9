"""What the texts of a run directory may name: what is known already. Nothing is imported for them, whatever they look like, and
nothing outside of the robot is done, unless the user has typed them again."""

import contextlib
import sys
from pathlib import Path

import gymnasium as gym
import pytest

from parl_like import Robot, load_run
from parl_like.envs import thinker
from parl_like.lab import experiment as experiments
from parl_like.lab import foreign
from parl_like.lab.cli import main
from parl_like.lab.foreign import Foreign
from parl_like.lab.yaml_text import ConfigError, UsageError, dump_yaml, load_yaml
from parl_like.values import env_ids, names

SMALL = ["total_steps=20", "n_agents=1", "eval_episodes=1", "tensorboard=false"]
TRACE = "open({!r}, 'a').write(__name__)\n"
MODULES = ["evil", "evil-mod", "1evil", "évil", "evil mod", "evil\u200b", " evil", "evil ", "ｅｖｉｌ", "Sokoban-evil", "-evil",
           "e\tvil"]
IN_PACKAGE = ["pack.evil", "pack.deep.evil"]
PLACES = {
    "algorithm": "DQN", "model": "MLPQ", "helper": "OffPolicyHelper", "env.id": "CartPole-v1", "env.wrappers": ["Wrapper"],
    "eval_env.id": "CartPole-v1", "eval_env.wrappers": ["Wrapper"], "eval_score": "score",
    "OffPolicyHelper.buffer": "ReplayBuffer", "OffPolicyHelper.transforms": ["ObservationClip"],
    "OffPolicyHelper.explorer": "EpsilonGreedy",
}


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """The modules of a stranger's, where Python finds them, and what they have left when they were imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", [*sys.path, "", str(tmp_path), str(tmp_path / "site")])
    trace = tmp_path / "imported"
    for folder in (tmp_path, tmp_path / "site"):
        folder.mkdir(exist_ok=True)
        for name in MODULES:
            (folder / f"{name}.py").write_text(TRACE.format(str(trace)))
    for package in ("pack", "pack/deep"):
        (tmp_path / "site" / package).mkdir()
        for name in ("__init__", "evil"):
            (tmp_path / "site" / package / f"{name}.py").write_text(TRACE.format(str(trace)))
    yield lambda: trace.read_text() if trace.exists() else ""
    for name in [*MODULES, "pack", *IN_PACKAGE]:
        sys.modules.pop(name, None)


def change(key, value, run="run"):
    """Puts a value at a dotted key, of a part below `robot.tasks.RL`."""
    file = Path(run) / "config.yaml"
    config = inside = load_yaml(file.read_text())
    *path, last = (["robot", "tasks", "RL"] if key[0].isupper() else []) + key.split(".")
    for name in path:
        if not isinstance(inside.get(name), dict):
            inside[name] = {}
        inside = inside[name]
    inside[last] = value
    file.write_text(dump_yaml(config))


@pytest.fixture
def run(imported):
    assert main(["train", "dqn-cartpole", *SMALL, "run_dir=run"]) == 0
    return imported


def refused(capsys, imported, verbs=("eval", "play", "resume", "load_run")):
    """By every verb, in words, and nothing was imported. What was said."""
    said = []
    for verb in verbs:
        capsys.readouterr()
        if verb == "load_run":
            with pytest.raises(UsageError) as error:
                load_run("run").close()
            said.append(str(error.value))
        else:
            assert main([verb, "run", *(["total_steps=40"] if verb == "resume" else [])]) == 2, verb
            said.append(capsys.readouterr().err)
        assert not imported(), (verb, imported())
    return said


@pytest.mark.parametrize("place", PLACES)
def test_no_name_of_a_run_directory_is_imported_wherever_it_stands(place, run, capsys):
    good = PLACES[place]
    before = (Path("run") / "config.yaml").read_text()
    last = good[0] if isinstance(good, list) else good
    for text in [*(f"{name}:{last}" for name in (*MODULES, *IN_PACKAGE)), "evil", "pack.evil", f"pack.evil.{last}",
                 f"pack:evil:{last}", f":evil:{last}", f"evil:{last}:", "evil:", f"evil\uff1a{last}"]:
        (Path("run") / "config.yaml").write_text(before)
        change(place, [text] if isinstance(good, list) else text)
        verbs = ("eval",) if text != "evil-mod:" + last else ("eval", "play", "resume", "load_run")
        for said in refused(capsys, run, verbs):
            if text == f"evil-mod:{last}" and place != "eval_env.id":
                assert "would import a module, which a run directory may not ask for; if you trust it, give" in said


def test_what_is_typed_again_is_imported_and_nothing_else(run, capsys):
    more = "from parl_like.algorithms import DQN\nclass Mine(DQN): pass\n"
    for file in (Path("evil-mod.py"), Path("site", "evil-mod.py")):
        file.write_text(file.read_text() + more)
    change("algorithm", "evil-mod:Mine")
    change("OffPolicyHelper.buffer", "evil:Buffer")
    assert main(["eval", "run", "algorithm=evil-mod:Mine"]) == 2
    assert "OffPolicyHelper.buffer='evil:Buffer' would import a module" in capsys.readouterr().err
    assert run() == "evil-mod"
    assert "evil" not in sys.modules


def test_modules_of_the_working_directory_are_not_found_unless_the_user_s_own_code_is_there(run, monkeypatch):
    Path("only_here.py").write_text("")
    rule = Foreign(Path("config.yaml"), {}, [], False)
    before = list(sys.path)
    with rule.in_force():
        assert "" not in sys.path and str(Path.cwd()) not in sys.path
        with pytest.raises(ModuleNotFoundError):
            __import__("only_here")
        sys.path.append("added")
    assert sys.path == [*before, "added"]
    mine = type(sys)("mine")
    mine.__file__ = str(Path.cwd() / "mine.py")
    monkeypatch.setattr(experiments, "users_modules", lambda: [mine])
    with rule.in_force():
        assert "" in sys.path


def test_code_of_others_imports_nothing_for_a_text_either(imported):
    """A robot of the user's that gives a text to gymnasium, or to an environment that imports what it is told."""
    tree = {"env": "evil-mod:Id-v0", "options": {"inner": [{"id": "pack.evil:Id"}], "évil:Key": 1}, "note": "12:30"}
    with Foreign(Path("run/config.yaml"), tree, [{"env": "ok:Id"}], False).in_force():
        with pytest.raises(ConfigError, match="run/config.yaml: env='evil-mod:Id-v0' would import a module"):
            gym.make("evil-mod:Id-v0")
        with pytest.raises(ConfigError, match=r"options.inner\[0\].id='pack.evil:Id' would import a module"):
            __import__("pack.evil")
        with pytest.raises(ConfigError, match="would import"):
            __import__("évil")
        with pytest.raises(ValueError, match="would import"):
            Robot.of("DQN", "evil-mod:Id-v0")
        with pytest.raises(ConfigError, match="would import"):
            env_ids.make("Sokoban-evil:X")
        import this  # noqa: F401  what no text names
    assert not imported() and names.rule() is None
    gym.register("Known-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv")
    __import__("evil")
    assert imported() == "evil", "and afterwards everything is as it was"
    sys.modules.pop("this", None)


@pytest.mark.parametrize("id", ["CartPole-v1", "CartPole", "Sokoban-v0"])
def test_registered_ids_are_made(id):
    with Foreign(Path("config.yaml"), {"env": id}, [], False).in_force():
        assert env_ids.known(id) == id


@pytest.mark.parametrize("id", ["CartPole-v77", "Nowhere-v0", "evil", "", "a b", "evil/Cart-v0", "CartPole-v1 ", "ＣartPole-v1"])
def test_other_ids_are_refused_as_gymnasium_does(id, imported):
    with Foreign(Path("config.yaml"), {"env": id}, [], False).in_force(), pytest.raises(gym.error.Error):
        env_ids.known(id)
    assert not imported()


# ---- what has effects outside of the robot


def test_options_for_the_code_of_others_are_typed_again(run, capsys, monkeypatch):
    seen = []

    def maker(**options):
        seen.append(options)
        return gym.make("CartPole-v1").unwrapped

    gym.register("Theirs-v0", entry_point=maker)
    change("env.id", "Theirs-v0")
    change("env.options", {"port": 8080, "command": "rm"})
    said = refused(capsys, run)
    assert all("env.options.port=8080 goes to the code of Theirs-v0, which a run directory may not ask for; if you trust it, "
               "give env.options.port=8080 again" in one for one in said) and not seen
    assert main(["eval", "run", "env.options.port=8080"]) == 2 and "env.options.command" in capsys.readouterr().err
    assert main(["eval", "run", "env.options.port=8080", "env.options.command=rm"]) == 0 and seen
    assert main(["train", "dqn-cartpole", *SMALL, "run_dir=own", "env.id=Theirs-v0", "env.options.port=8080"]) == 0
    assert main(["eval", "own"]) == 0, "who has run it himself knows it"
    change("env.options.port", 9090, "own")
    assert main(["eval", "own"]) == 2


def test_gymnasium_s_environments_take_numbers_but_no_texts(run, capsys):
    change("env.options", {"sutton_barto_reward": True})
    assert main(["eval", "run"]) == 0
    change("env.options", {"render_mode": "human"})
    assert "env.options.render_mode='human' goes to the code of CartPole-v1" in refused(capsys, run)[0]
    for id, options, free in (("DeepSea-v0", {"render_mode": "human"}, False), ("Atari-v0", {"game": "pong"}, True),
                              ("FrozenLake-v1", {"desc": ["SFFF", "FHFH"]}, False),
                              ("FrozenLake-v1", {"is_slippery": False}, True)):
        rule = Foreign(Path("config.yaml"), {}, [], False)
        with contextlib.nullcontext() if free else pytest.raises(ConfigError, match=f"goes to the code of {id}"):
            rule.check_options("env.options", id, options)
        Foreign(Path("config.yaml"), {}, [{"env": {"options": options}}], False).check_options("env.options", id, options)
        Foreign(Path("config.yaml"), {}, [], True).check_options("env.options", id, options)


@pytest.mark.parametrize("wrapper", sorted(foreign.OUTWARD))
def test_wrappers_with_effects_are_typed_again(wrapper, run, capsys, tmp_path):
    change("env.wrappers", [wrapper])
    change("robot.env.RecordVideo.video_folder", str(tmp_path / "elsewhere"))
    for said in refused(capsys, run):
        assert f"{wrapper}' would write files or open a window" in said and f"give env.wrappers=[{wrapper}] again" in said
    assert not (tmp_path / "elsewhere").exists()


# ---- Thinker


def test_what_thinker_s_robot_is_told_by_a_directory_is_looked_up_too(imported, capsys):
    words = ["env_options={size: 5, n_boxes: 1, obs: planes, max_steps: 8}", "env_n=1", "planning=none", "see_real_state=true",
             "actor_unroll_len=4", "actor_batch_size=1", "widths=[2,2,2]", "eval_options={}"]
    assert main(["train", "thinker-sokoban-mini", *SMALL, *words, "see_h=false", "run_dir=run"]) == 0
    for id in ("evil-mod:Sokoban-v0", "Sokoban-evil:X", "evil:X", "pack.evil:X"):
        change("env", id)
        for said in refused(capsys, imported):
            assert f"env='{id}' would import a module" in said


def test_thinker_make_goes_on_with_the_networks_of_a_run_not_with_its_places(imported, tmp_path, monkeypatch):
    options = {"env_n": 1, "rec_t": 2, "max_depth": 1, "model_downscale_c": 64, "model_warm_up_n": 10, "model_batch_size": 1,
               "model_unroll_len": 1, "model_return_n": 1, "model_buffer_n": 100, "max_replay_ratio": 1.0,
               "min_replay_ratio": 0.0}
    thinker.make("Sokoban-v0", gpu=False, savedir="logs", xpid="a", **options).close()
    file = Path("logs/a/config_c.yaml")
    before = load_yaml(file.read_text())
    file.write_text(dump_yaml({**before, "savedir": str(tmp_path / "elsewhere"), "xpid": "b", "ray_mem": 1.0, "gpu_learn": 3.0}))
    with thinker.make(gpu=False, savedir="logs", xpid="a", ckp=True) as env:
        assert (env.options.savedir, env.options.xpid, env.options.ray_mem, env.options.gpu_learn) == ("logs", "a", -1.0, 0.5)
    assert not (tmp_path / "elsewhere").exists()
    for id in ("evil-mod:Id-v0", "Sokoban-evil:X"):
        file.write_text(dump_yaml({**before, "name": id}))
        with pytest.raises(ConfigError, match="would import a module, which a run directory may not ask for"):
            thinker.make(gpu=False, savedir="logs", xpid="a", ckp=True)
    assert not imported()


def test_evaluations_of_a_loaded_run_import_nothing(run):
    """They make their environments later."""
    change("eval_env", {"id": "evil-mod:CartPole-v1"})
    with pytest.raises(ConfigError, match="would import"):
        load_run("run")
    with Foreign(Path("config.yaml"), {}, [], False).in_force(), pytest.raises(ConfigError, match="would import"):
        Robot("CartPole-v1", tasks={}, eval_env="evil-mod:X")
    assert not run()
