"""Saved states of wrong types and values: refused in words when they are loaded, or harmless; never half taken over."""

import copy
import logging
import random
import types

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import Robot
from parl_like.data.storage.archive import read_archive
from parl_like.data.storage.state_check import check_alike
from parl_like.environment.stop_conditions import StopWhen
from parl_like.learning.saved_state import _load_optimizer, _optimizer_state, pack
from parl_like.values.errors import AgentFailed

MAKE = {
    "replay": lambda: Robot.of("DQN", "FrozenLake-v1", total_steps=4000, n_agents=2, warmup=20),
    "unroll": lambda: Robot.of("PPO", "CartPole-v1", total_steps=4000, n_agents=2, unroll=16, minibatch_rows=16, epochs=1),
    "memory": lambda: Robot.of("R2D2", "CartPole-v1", total_steps=4000, n_agents=1, warmup=20),
    "noise": lambda: Robot.of("TD3", "Pendulum-v1", total_steps=4000, n_agents=1, warmup=20, random_steps=10),
}
PLAIN = [None, True, -1, 10**6, 10**30, 1.5, float("nan"), "text", [], ["x"], {}, {"a": 1}, np.zeros(3), torch.zeros(2)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints in the middle of episodes, by robot."""
    out = {}
    for name, make in MAKE.items():
        path = tmp_path_factory.mktemp(name) / "checkpoint"

        def stop(robot, path=path, asked=[]):  # noqa: B006  a list of its own for each function
            if robot.env_steps >= 113 and path not in asked:
                asked.append(path)
                robot.request_save(path)
            return robot.env_steps >= 140

        with make() as robot:
            robot.run(StopWhen(stop))
        out[name] = read_archive(path)[0]
    return out


def leaves(tree, path=()):
    yield path, tree
    for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from leaves(part, (*path, key))


def put(tree, path, value):
    if not path:
        return value
    out = copy.copy(tree)
    out[path[0]] = put(out[path[0]], path[1:], value)
    return out


def wrong(value):
    if isinstance(value, np.ndarray):
        return [*PLAIN, value.astype(np.float16), value[:-1] if value.ndim else value[None], value[None], -value - 1
                if value.dtype.kind in "if" else value, np.full_like(value, 100)]
    if isinstance(value, torch.Tensor):
        return [*PLAIN, value.double(), value.flatten()[:1], value[None], -value - 1]
    return PLAIN


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (np.ndarray, torch.Tensor)):
        return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)
    return a == b


def refused(make, tree):
    """The message; None where it was taken and the robot runs on."""
    with make() as robot:
        before = robot.state_dict()
        try:
            robot.load_state_dict(tree)
        except (ValueError, AgentFailed) as error:  # the latter of `restore_state`
            assert same(robot.state_dict(), before), "half taken over"
            return str(error)
        robot.run(40)
        robot.evaluate(episodes=1)
        robot.metrics()
    return None


def try_all(saved, share):
    logging.disable(logging.CRITICAL)
    try:
        for name, tree in saved.items():
            chosen = [(path, value) for path, leaf in leaves(tree) for value in wrong(leaf)]
            for path, value in chosen:
                if random.Random(f"{name}{path}{value!r}").random() < share:
                    try:
                        refused(MAKE[name], put(tree, path, value))
                    except Exception as error:
                        raise AssertionError(f"{name}: {path} = {value!r:.100}") from error
    finally:
        logging.disable(logging.NOTSET)


def test_some_wrong_values_are_refused_or_harmless(saved):
    try_all(saved, 0.002)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_wrong_values_are_refused_or_harmless(saved):
    try_all(saved, 0.2)


@pytest.mark.parametrize(("robot", "path", "value", "says"), [
    ("replay", ("agents", "0", "helpers", "RL", "steps"), None, "agents, 0, helpers, RL, steps: expected a whole number of at "
                                                                "least 0, got NoneType None"),
    ("replay", ("agents", "1", "helpers", "RL", "since"), -1, "since: expected a whole number of at least 0, got int -1"),
    ("replay", ("agents", "0", "steps"), float("nan"), "agents, 0, steps: expected a whole number"),
    ("replay", ("agents", "0", "time_steps"), True, "time_steps: expected a whole number of at least 0, got bool True"),
    ("replay", ("counters", "env_steps"), "7", r"Expected `int`, got `str` - at `\$.env_steps`"),
    ("replay", ("counters", "lengths"), [3, -1], r"Expected `int` >= 0 - at `\$.lengths\[1\]`"),
    ("replay", ("counters", "wrappers", "RL", "learn", "rows"), 1.5, "Expected `int`"),
    ("replay", ("buffer.RL", "cursor"), "text", "buffer.RL, cursor: expected a list, got str 'text'"),
    ("replay", ("buffer.RL", "count"), [1, None], "buffer.RL, count, 1: expected a whole number"),
    ("replay", ("task.RL", "optimizer", "state", "0", "exp_avg"), 7, "optimizer, state: none that FusedAdam can go on from"),
    ("replay", ("task.RL", "optimizer", "groups"), [{"fused": 7}], "fused: expected true or false, got int 7"),
    ("unroll", ("agents", "0", "helpers", "RL", "renewed"), [0, "x"], "renewed, 1: expected a whole number"),
    ("noise", ("agents", "0", "helpers", "RL", "noise_rng", "state"), [], "noise_rng, state: expected a whole number"),
])
def test_what_a_message_says(saved, robot, path, value, says):
    import re

    message = refused(MAKE[robot], put(saved[robot], path, value))
    assert message and re.search(says, message), message


@pytest.mark.parametrize("renewed", [[0, 10**6], [5, 3], [10**6, 10**6]])
def test_rows_that_were_not_stored_yet_cannot_be_renewed(saved, renewed):
    wrong = put(saved["unroll"], ("agents", "0", "helpers", "RL", "renewed"), renewed)
    with MAKE["unroll"]() as robot, pytest.raises(ValueError, match="renewed is .* rising counts"):
        robot.load_state_dict(wrong)


@pytest.mark.parametrize("value", [None, "text", 7, {"steps": 10**30, "settled": True}, {"steps": 0, "settled": True}])
def test_a_saved_span_that_is_none_is_refused_by_name(saved, value):
    assert "the saved span is" in refused(MAKE["replay"], put(saved["replay"], ("counters", "span"), value))


@pytest.mark.parametrize("value", [None, [], [1.0], "1.0", True])
def test_an_open_episode_whose_return_is_no_number_is_cut_off(saved, value, caplog):
    from parl_like.environment.state import hold, unhold

    obs, info, memory, counted = unhold(saved["replay"]["agents"]["0"]["carried"]["rest"])
    rest = hold((obs, info, memory, (value, *counted[1:])))
    assert refused(MAKE["replay"], put(saved["replay"], ("agents", "0", "carried", "rest"), rest)) is None
    assert "return: expected a number" in caplog.text


@pytest.mark.parametrize(("column", "n"), [("act", 4), ("obs", 16), ("obs_next", 16)])
def test_a_choice_that_there_is_not_is_refused(saved, column, n):
    path = ("buffer.RL", "columns", column)
    rows = saved["replay"]["buffer.RL"]["columns"][column].copy()
    rows[3] = 10**6
    message = refused(MAKE["replay"], put(saved["replay"], path, rows))
    assert message.startswith(f"task 'RL', saved rows, field {column.removesuffix('_next')!r}")
    assert f"stay within [0, {n - 1}]" in message


@pytest.mark.parametrize("change", [
    lambda env: put(env, ("layers", -1, 1, "values", "s"), 10**6),
    lambda env: put(env, ("layers", -1, 1, "values", "s"), "text"),
], ids=["no such state", "text"])
def test_an_episode_that_cannot_go_on_is_cut_off_with_a_warning(saved, change, caplog):
    from parl_like.environment.state import hold, unhold

    tree = saved["replay"]
    held = unhold(tree["agents"]["0"]["carried"]["env"])
    held["layers"] = [list(one) for one in held["layers"]]
    tree = put(tree, ("agents", "0", "carried", "env"), hold(change(held)))
    assert refused(MAKE["replay"], tree) is None
    assert "agent 0: the episode that the checkpoint holds is cut off" in caplog.text
    caplog.clear()
    assert refused(MAKE["replay"], saved["replay"]) is None and "cut off" not in caplog.text, "the true one goes on"


def test_states_are_alike_where_their_types_are():
    own = {"n": 0, "rate": 0.5, "on": True, "name": "a", "list": [1, 2], "none": None, "empty": [], "rows": np.zeros((0, 3))}
    check_alike({**own, "n": 7, "rate": 1, "list": [], "none": "x", "empty": ["?"], "rows": np.ones((5, 3)), "more": 1}, own, "")
    for name, value in {"n": 1.0, "rate": True, "on": 1, "name": 3, "list": [1, "2"], "rows": np.zeros((2, 4))}.items():
        with pytest.raises(ValueError, match=f"^here, {name}"):
            check_alike({name: value}, own, "here")
    with pytest.raises(ValueError, match="^here, rate: expected a number"):
        check_alike({"rate": 10**400}, own, "here")  # no float is so large


def test_dicts_whose_keys_come_and_go_are_alike_where_they_have_the_same():
    """Such as the info of a vector environment, which has other keys where an episode has ended."""
    own, saved = pack({"lost": True, "player": np.zeros(3, np.int64)}, "info"), pack({"player": np.ones(3, np.int64)}, "info")
    check_alike(saved, own, "here")
    check_alike(own, saved, "here")
    with pytest.raises(ValueError, match=r"^here, player: expected an array \('n',\) int64, got ndarray \(3,\) bool"):
        check_alike(pack({"player": np.ones(3, bool)}, "info"), own, "here")


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop, torch.optim.AdamW, torch.optim.Adagrad])
def test_the_state_of_any_optimizer_comes_back_and_a_wrong_one_changes_nothing(kind):
    def made():
        torch.manual_seed(0)
        layer = torch.nn.Linear(2, 2)
        return layer, kind(layer.parameters(), lr=0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))

    def update(layer, optimizer):
        optimizer.zero_grad()
        layer(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    layer, optimizer = made()
    update(layer, optimizer)
    state, weights = _optimizer_state(optimizer), layer.state_dict()
    again, other = made()
    again.load_state_dict(weights)
    name = next(key for key, value in state["state"]["0"].items() if getattr(value, "ndim", 0))
    with pytest.raises(ValueError, match="optimizer, state"):
        _load_optimizer(other, put(state, ("state", "0", name), "text"))
    assert same(_optimizer_state(other), _optimizer_state(made()[1]))
    _load_optimizer(other, state)
    update(layer, optimizer), update(again, other)
    assert all(torch.equal(a, b) for a, b in zip(layer.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_moments_of_another_size_are_refused_before_a_fused_step_writes_past_their_end(kind):
    layer = torch.nn.Linear(300, 300)
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(layer.parameters(), lr=0.1, fused=True, **options)
    layer(torch.ones(1, 300)).sum().backward()
    optimizer.step()
    state = _optimizer_state(optimizer)
    for name, value in state["state"]["0"].items():
        for other in (torch.zeros(1), torch.zeros(()) if value.ndim else torch.zeros(300, 300), torch.zeros(0)):
            with pytest.raises(ValueError, match=rf"optimizer, state 0, {name}: expected"):
                _load_optimizer(optimizer, put(state, ("state", "0", name), other))


def test_a_part_that_fails_while_it_is_loaded_leaves_all_as_it_was(saved, monkeypatch):
    with MAKE["replay"]() as robot:
        before = robot.state_dict()
        taken = robot.wrappers["RL"].load_state_dict
        monkeypatch.setattr(robot, "wrappers", {"RL": types.SimpleNamespace(
            state_dict=robot.wrappers["RL"].state_dict, load_state_dict=lambda state: taken(state["?"]))})
        with pytest.raises(ValueError, match="the saved state does not fit, and nothing was changed: KeyError"):
            robot.load_state_dict(saved["replay"])
        assert same(robot.state_dict(), before)


def test_an_environment_of_ones_own_is_tried_out(caplog):
    class Counted(gym.Env):
        observation_space, action_space = gym.spaces.Box(0, 9, (1,), np.float32), gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.at = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.at += 1
            return np.full(1, self.at % 10, np.float32), 0.0, False, self.at >= 50, {}

        def clone_state(self):
            return {"at": self.at}

        def restore_state(self, state):
            self.at = state["at"]

    def made():
        return Robot.of("DQN", Counted, total_steps=4000, n_agents=1, warmup=20)

    from parl_like.environment.state import hold

    kept = {}
    with made() as robot:
        robot.run(StopWhen(lambda robot: robot.env_steps >= 30 and (kept.update(robot.state_dict()) or True)))
        kept = robot.state_dict()
    kept["agents"]["0"]["carried"] = None
    for at, cut in ((7, False), ("x", True)):
        caplog.clear()
        rest = hold((np.zeros(1, np.float32), {}, {"RL": []}, (0.0, 7)))
        tree = put(kept, ("agents", "0", "carried"), {"env": hold({"layers": [(f"{__name__}.x", {})]}), "rest": rest,
                                                              "waiting": hold(None)})
        with made() as robot:
            layers = robot.agents[0].env
            layers.reset()
            from parl_like.environment.state import clone_state

            held = clone_state(layers._env)
        held["layers"] = [(name, {"at": at} if "at" in part else part) for name, part in held["layers"]]
        tree = put(tree, ("agents", "0", "carried", "env"), hold(held))
        assert refused(made, tree) is None
        assert ("cut off" in caplog.text) is cut
