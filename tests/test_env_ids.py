"""Ids that code registers with gymnasium by a class or a function are known where an environment is sent to."""

import pickle
import subprocess
import sys
import threading
from types import ModuleType

import cloudpickle
import gymnasium as gym
import pytest

import parl_like.envs  # noqa: F401  # makes its ids known
from parl_like import Robot
from parl_like.env_source import for_elsewhere


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
    ("ALE/Pong-v5", "ale_py", "atari"), ("PongNoFrameskip-v4", "ale_py", "atari"),
    ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"), ("BabyAI-GoToObj-v0", "minigrid", "minigrid"),
    ("HalfCheetah-v5", "mujoco", "mujoco"), ("InvertedDoublePendulum-v5", "mujoco", "mujoco"),
    ("LunarLander-v3", "Box2D", "box2d"),
])
def test_an_id_of_a_package_that_is_missing_names_the_extra(id, module, extra, monkeypatch):
    from parl_like import env_ids
    from parl_like.envs.make import make_env

    monkeypatch.setitem(sys.modules, module, None)
    if module in ("ale_py", "minigrid"):
        gym.registry.pop(id, None)
    for make in (env_ids.make, make_env, lambda id: Robot.of("PPO", id)):
        says = rf"{id}' needs the package {module}: pip install 'parl_like\[{extra}\]'"
        with pytest.raises((ImportError, ValueError), match=says):  # the latter of Robot.of, which names its argument
            make(id)


@pytest.mark.parametrize(("id", "module"), [("ALE/Pong-v5", "ale_py"), ("PongNoFrameskip-v4", "ale_py"),
                                            ("MiniGrid-Empty-5x5-v0", "minigrid")])
def test_an_id_of_a_package_that_is_installed_is_known_without_an_import(id, module):
    pytest.importorskip(module)
    code = f"from parl_like.envs.make import make_env; print(make_env({id!r}).reset(seed=0)[1] is not None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split()[-1:] == ["True"], done.stderr
