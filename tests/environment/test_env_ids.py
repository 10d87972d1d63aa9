"""Ids that code registers with gymnasium by a class or a function are known where an environment is sent to."""

import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from urllib.error import URLError

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest

import parl_like.envs  # noqa: F401  # makes its ids known
from parl_like import ComputationTask, OnPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import PPO
from parl_like.environment import factory
from parl_like.environment.factory import for_elsewhere
from parl_like.envs.atari import Atari
from parl_like.envs.make import make_env
from parl_like.lab.cli import main
from parl_like.models import MLPActorCritic
from parl_like.values import env_ids

for module in ("ale_py", "minigrid"):  # their ids are registered once
    with suppress(ImportError):
        import_module(module)


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    monkeypatch.setattr(gym.envs.registration, "registry", known := dict(gym.registry))
    monkeypatch.setattr(gym, "registry", known)
    return known


def elsewhere(source, registry, *forgotten):
    """As in another process, which has not registered these."""
    payload = cloudpickle.dumps(for_elsewhere(source))
    for id in forgotten:
        del registry[id]
    return pickle.loads(payload)


def test_an_id_of_a_class_or_function_is_known_there(registry):
    class Mine(gym.Env):
        observation_space = action_space = gym.spaces.Discrete(3)

    gym.register("Mine-v0", entry_point=Mine, kwargs={})
    gym.register("Made-v0", entry_point=lambda: Mine())
    assert type(elsewhere("Mine-v0", registry, "Mine-v0")().unwrapped).__name__ == "Mine"
    gym.register("Mine-v0", entry_point=Mine)
    assert elsewhere(lambda: gym.make("Made-v0"), registry, "Mine-v0", "Made-v0")().action_space == gym.spaces.Discrete(3)
    assert {"Mine-v0", "Made-v0"} <= registry.keys()


def test_an_id_of_a_named_module_is_known_there(registry):
    gym.register("Named-v0", entry_point="parl_like.envs.recall:Recall")
    assert type(elsewhere("Named-v0", registry, "Named-v0")().unwrapped).__name__ == "Recall"


@pytest.mark.parametrize("source", ["Recall-v0", lambda: gym.make("Recall-v0")])
def test_our_ids_are_known_in_workers(source):
    with Robot.of("PPO", source, driver="processes", n_agents=2, workers={"count": 1}) as robot:
        robot.collect(n_step=32)
        assert robot.env_steps >= 32


def test_ids_that_nobody_asks_for_do_no_harm(registry, monkeypatch):
    """One of a module that is not to be found there, and one that cannot be sent."""
    ghost = ModuleType("ghost_module")
    exec("import gymnasium\nclass Ghost(gymnasium.Env): pass", vars(ghost))
    monkeypatch.setitem(sys.modules, "ghost_module", ghost)
    lock = threading.Lock()
    gym.register("Ghost-v0", entry_point=ghost.Ghost)
    gym.register("Locked-v0", entry_point=lambda: lock)
    made = elsewhere("CartPole-v1", registry, "Ghost-v0", "Locked-v0")
    monkeypatch.delitem(sys.modules, "ghost_module")
    assert made().spec.id == "CartPole-v1" and "Locked-v0" not in registry
    with pytest.raises(ModuleNotFoundError, match="ghost_module"):
        gym.make("Ghost-v0")


def test_a_source_is_as_it_was_where_there_is_nothing_to_say(registry):
    for id in [id for id, spec in registry.items() if not isinstance(spec.entry_point, str)]:
        if not registry[id].entry_point.__module__.startswith("gymnasium"):
            del registry[id]
    assert for_elsewhere("CartPole-v1") == "CartPole-v1" and for_elsewhere(None) is None


@pytest.mark.parametrize(("id", "module", "extra"), [
    ("ALE/Pong-v5", "ale_py", "atari"), ("PongNoFrameskip-v4", "ale_py", "atari"), ("Pong-v4", "ale_py", "atari"),
    ("Pong-v0", "ale_py", "atari"), ("MsPacman-v4", "ale_py", "atari"),
    ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"), ("BabyAI-GoToObj-v0", "minigrid", "minigrid"),
    ("HalfCheetah-v5", "mujoco", "mujoco"), ("InvertedDoublePendulum-v5", "mujoco", "mujoco"),
    ("LunarLander-v3", "Box2D", "box2d"),
    ("MinAtar/Breakout-v1", "minatar", ""), ("bsuite/catch/0", "bsuite", ""),
])
def test_an_id_of_a_package_that_is_missing_says_what_to_install(id, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    if module in ("ale_py", "minigrid"):
        gym.registry.pop(id, None)
    for make in (env_ids.make, make_env, lambda id: Robot.of("PPO", id)):
        install = rf"'parl_like\[{extra}\]'" if extra else rf"(--no-deps )?{module}"
        says = rf"{id}' needs the package {module}: pip install {install}"
        with pytest.raises((ImportError, ValueError), match=says):  # the latter of Robot.of, which names its argument
            make(id)


@pytest.mark.parametrize(("id", "module"), [("ALE/Pong-v5", "ale_py"), ("PongNoFrameskip-v4", "ale_py"),
                                            ("MiniGrid-Empty-5x5-v0", "minigrid")])
def test_an_id_of_a_package_that_is_installed_is_known_without_an_import(id, module):
    pytest.importorskip(module)
    code = f"from parl_like.envs.make import make_env; print(make_env({id!r}).reset(seed=0)[1] is not None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split()[-1:] == ["True"], done.stderr


def closed(env):
    env.close()
    return env


@pytest.mark.parametrize(("id", "sticky"), [("ALE/Pong-v5", 0.25), ("PongNoFrameskip-v4", 0.0), ("PongDeterministic-v4", 0.0),
                                            ("Pong-v4", 0.0), ("Pong-v0", 0.25)])
def test_an_id_of_an_atari_game_gets_the_preparation_everywhere(id, sticky):
    pytest.importorskip("ale_py")
    for env in (make_env(id), env_ids.make(id)):
        game = closed(env).unwrapped
        assert (type(game), game.sticky, game.emulator.rom.stem) == (Atari, sticky, "pong")
        assert env.observation_space == gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    assert closed(make_env(id, grey=False, stack=2, life_loss=False)).observation_space.shape == (6, 84, 84)
    with pytest.raises(ValueError, match="names a game, and so does the option game='breakout'"):
        make_env(id, game="breakout")


def test_every_game_with_an_old_id_is_known_before_its_package_is_imported(registry):
    pytest.importorskip("ale_py")
    old = {id.removesuffix("-v4") for id in registry if id.endswith("-v4") and "NoFrameskip" not in id
           and str(registry[id].entry_point).startswith("ale_py.")}
    assert old == {*env_ids.GAMES}


def test_a_robot_of_a_game_sees_frames_and_evaluates_whole_games():
    pytest.importorskip("ale_py")
    with Robot.of("DQN", "PongNoFrameskip-v4", n_agents=1, size=64, warmup=8, batch_size=4, convs=((4, 8, 8),)) as robot:
        robot.run(16)
        assert type(robot.tasks["RL"].algorithm.model).__name__ == "ConvQ"
        game = robot.agents[0].env.unwrapped
        assert (game.life_loss, game.clip_reward) == (True, 1.0)
        played = closed(factory.make_one(robot.eval_env)).unwrapped
        assert (type(played), played.life_loss, played.clip_reward, played.size) == (Atari, False, None, (84, 84))


@pytest.mark.parametrize("id", ["MiniGrid-Empty-5x5-v0", "BabyAI-GoToObj-v0"])
@pytest.mark.parametrize("n_agents", [1, 2])
def test_a_grid_world_is_learned_from_by_its_id(id, n_agents):
    pytest.importorskip("minigrid")
    with Robot.of("PPO", id, n_agents=n_agents, unroll=16, epochs=1, minibatches=2) as robot:
        robot.run(64)
        assert robot.tasks["RL"].learns > 0
        assert type(robot.tasks["RL"].algorithm.model).__name__ == "ConvActorCritic"
        assert robot.agents[0].env.observation_space == gym.spaces.Dict({
            "direction": gym.spaces.Discrete(4), "image": gym.spaces.Box(0, 10, (7, 7, 3), np.uint8)})
        robot.evaluate(1)


def test_codes_of_a_grid_world_stay_below_their_bound():
    pytest.importorskip("minigrid")
    with env_ids.make("BabyAI-BossLevel-v0") as env:
        for seed in range(20):
            assert env.observation_space.contains(env.reset(seed=seed)[0])


@pytest.mark.parametrize(("id", "n"), [("MinAtar/Breakout-v1", 3), ("MinAtar/SpaceInvaders-v0", 6)])
def test_an_id_of_minatar_makes_the_game_without_its_display(id, n):
    pytest.importorskip("minatar")
    with Robot.of("DQN", id, n_agents=1, warmup=8, batch_size=4) as robot:
        robot.run(16)
        assert type(robot.agents[0].env.unwrapped).__name__ == "MinAtar"
        assert type(robot.tasks["RL"].algorithm.model).__name__ == "ConvQ"
    assert closed(make_env(id, sticky=0.0)).action_space == gym.spaces.Discrete(n)


class Catch:
    """As bsuite's, of the interface of dm_env."""

    def reset(self):
        self.steps = 0
        return self.now()

    def step(self, action):
        self.steps += 1
        return self.now()

    def now(self):
        last = self.steps == 9
        return SimpleNamespace(observation=np.zeros((10, 5), np.float32), reward=float(last), discount=1.0 - last,
                               last=lambda: last)

    def observation_spec(self):
        return SimpleNamespace(shape=(10, 5), dtype=np.float32, minimum=0.0, maximum=1.0)

    def action_spec(self):
        return SimpleNamespace(num_values=3, dtype=np.int64, shape=())


def test_an_id_of_bsuite_is_an_experiment_of_its_own(monkeypatch):
    asked = []
    module = ModuleType("bsuite")
    module.__spec__ = ModuleSpec("bsuite", None)
    module.sweep = SimpleNamespace(SETTINGS={"catch/0": {}, "catch/1": {}})
    module.load_from_id = lambda id: asked.append(id) or Catch()
    monkeypatch.setitem(sys.modules, "bsuite", module)
    with Robot.of("DQN", "bsuite/catch/0", n_agents=1, warmup=8, batch_size=4) as robot:
        robot.run(27)
        assert robot.evaluate(2).returns == [1.0, 1.0]
    assert set(asked) == {"catch/0"}
    for make in (env_ids.make, make_env):
        with pytest.raises(gym.error.NameNotFound, match=r"bsuite: no experiment 'cach/0'; did you mean 'catch/0'\?"):
            make("bsuite/cach/0")


def test_an_environment_that_its_package_cannot_make_says_what_was_asked(monkeypatch, tmp_path, capsys):
    """It may want a file from the network: the error is that of its code, in words."""
    def load(name):
        raise URLError("no such host")

    package = ModuleType("bsuite")
    package.__spec__, package.load_from_id = ModuleSpec("bsuite", None), load
    package.sweep = SimpleNamespace(SETTINGS={"mnist/0": {}})
    monkeypatch.setitem(sys.modules, "bsuite", package)
    said = "environment 'bsuite/mnist/0' could not be made: URLError: <urlopen error no such host>; look at its options, and"
    with pytest.raises(env_ids.NotMade, match=said):
        env_ids.make("bsuite/mnist/0")
    monkeypatch.chdir(tmp_path)
    assert main(["train", "dqn-cartpole", "env=bsuite/mnist/0"]) == 2
    assert f"error: Config: key 'env': {said}" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [
    (["env.id=FrozenLake-v1", "env.options={map_name: 7x7}"], "could not be made with map_name='7x7': KeyError: '7x7'; look"),
    (["env.id=FrozenLake-v1", "env.options={desc: 5}"], "'FrozenLake-v1' could not be made with desc=5: ValueError: not enough"),
    (["env.wrappers=[StickyAction]", "StickyAction.repeat_action_probability=2.0"], "should be in the interval [0,1)"),
    (["device=privateuseone:0"], "device is 'privateuseone:0'; expected 'cpu', 'cuda' or 'cuda:<number>'"),
])
def test_options_that_an_environment_refuses_are_named(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "dqn-cartpole", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: Config: ") and said in error and "Traceback" not in error


def test_what_code_of_the_user_s_raises_in_an_environment_stays_as_it_is():
    def fails():
        raise KeyError("mine")

    gym.register("Mine-v0", fails)
    with pytest.raises(KeyError, match="mine"):
        env_ids.make("Mine-v0")


def test_players_of_pettingzoo_are_led_to_the_environment_of_one():
    for kind, turns in (("ParallelEnv", False), ("AECEnv", True)):
        players = type("Players", (), {"possible_agents": ["a", "b"], "step": None, "reset": None, "metadata": {}})()
        if turns:
            players.agent_iter = None
        inner = "env" if turns else r"pettingzoo.utils.parallel_to_aec\(env\)"
        says = rf"{kind} of PettingZoo.*parl_like.envs.pettingzoo.AECPlayer\({inner}, player=0"
        for env in (players, lambda: players):
            with pytest.raises(ValueError, match=says):
                Robot.of("PPO", env)
        with pytest.raises(Exception, match=says):
            spaces = {"obs": gym.spaces.Box(0, 1, (2,)), "act": gym.spaces.Discrete(2)}
            func = create_algorithm_func(MLPActorCritic, spaces, PPO, {})
            Robot(players, tasks={"RL": ComputationTask(func, helper=OnPolicyHelper)})
        with pytest.raises(TypeError, match=says):
            make_env(players)


def test_a_mujoco_id_is_learned_from():
    pytest.importorskip("mujoco")
    with Robot.of("SAC", "HalfCheetah-v5", seed=0, warmup=100, batch_size=8, hidden=[16]) as robot:
        robot.run(200)
        assert robot.tasks["RL"].learns > 50


def test_the_mission_of_a_grid_world_is_told_in_codes_of_its_words():
    pytest.importorskip("minigrid")
    from parl_like.envs.prepared import WORDS

    with env_ids.make("BabyAI-GoToObj-v0", words=6) as env, env_ids.make("BabyAI-GoToObj-v0", words=2) as short:
        obs, _ = env.reset(seed=0)
        assert [WORDS[code - 1] for code in obs["mission"] if code] == env.unwrapped.mission.split()
        assert env.observation_space.contains(obs) and obs["mission"].shape == (6,) and obs["mission"][-1] == 0
        with pytest.raises(ValueError, match="has 5 words, and words=2; give words=5 or more"):
            short.reset(seed=0)
    with Robot.of("PPO", lambda: env_ids.make("MiniGrid-GoToDoor-5x5-v0", words=6), n_agents=2, unroll=16, epochs=1,
                  minibatches=2) as robot:
        robot.run(64)
        assert robot.tasks["RL"].learns > 0
    with pytest.raises(ValueError, match="words is -1"):
        env_ids.make("BabyAI-GoToObj-v0", words=-1)


def test_words_of_missions_are_known():
    pytest.importorskip("minigrid")
    for id in ("BabyAI-BossLevel-v0", "MiniGrid-Fetch-8x8-N3-v0", "MiniGrid-LavaGapS5-v0", "MiniGrid-PutNear-8x8-N3-v0",
               "MiniGrid-BlockedUnlockPickup-v0", "MiniGrid-MemoryS7-v0", "BabyAI-PutNextS5N2-v0"):
        with env_ids.make(id, words=60) as env:
            for seed in range(3):
                assert env.observation_space.contains(env.reset(seed=seed)[0])
