"""Environments that return their own arrays and change them in place: what was kept of a step stays what it was."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_fakes import ACT, POSITION, Corridor, Recorder, dqn, robot_of, rows, spaces_of
from gymnasium.vector import AutoresetMode, VectorEnv

from parl_like import Agent, OffPolicyHelper, VectorAgent, create_algorithm_func
from parl_like.algorithms import DQN
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.envs.wrappers import ActionRepeat
from parl_like.models import MLPQ
from parl_like.values.copying import copied


def keep():
    return OffPolicyHelper(size=1000, batch_size=1, learn_every=10**9)


class InPlace(Corridor):
    """A corridor that draws every observation into the same array."""

    def __init__(self, length=4, end="truncated", **options):
        super().__init__(length, end, **options)
        self.mine = np.zeros(1, np.float32)

    def obs(self):
        self.mine[:] = self.at
        return self.mine


class Named(InPlace):
    """The same, as one dict whose arrays never change places."""

    def __init__(self):
        super().__init__()
        self.whole = {"at": self.mine, "deep": {"twice": np.zeros(2, np.float32)}}
        twice = gym.spaces.Box(0.0, 1000.0, (2,), np.float32)
        self.observation_space = gym.spaces.Dict({"at": POSITION, "deep": gym.spaces.Dict({"twice": twice})})

    def obs(self):
        super().obs()
        self.whole["deep"]["twice"][:] = 2 * self.at
        return self.whole


class Pair(InPlace):
    def __init__(self):
        super().__init__()
        self.observation_space = gym.spaces.Tuple((POSITION, POSITION))

    def obs(self):
        return super().obs(), self.mine


class Image(InPlace):
    """Pictures, of which each is a view of a part of one large array, or of memory that belongs to no array."""

    def __init__(self, memory="array"):
        super().__init__()
        self.observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.film = np.zeros((2, 64, 64, 3), np.uint8) if memory == "array" else bytearray(2 * 64 * 64 * 3)

    def obs(self):
        picture = np.frombuffer(self.film, np.uint8).reshape(2, 64, 64, 3)[1]
        picture[:] = self.at
        return picture


def assert_four_steps(stored, name, first=lambda column: column.reshape(len(column), -1)[:, 0], factor=1):
    assert (first(stored["obs" + name]) / factor).tolist() == [0, 1, 2, 3] * 2
    assert (first(stored["obs_next" + name]) / factor).tolist() == [1, 2, 3, 4] * 2


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
@pytest.mark.parametrize("repeat", [1, 2])
def test_rows_are_what_the_agent_saw(driver, repeat):
    with robot_of(Recorder(), keep, env=lambda: ActionRepeat(InPlace(4 * repeat), repeat), driver=driver) as robot:
        robot.collect(n_episode=2)
        assert_four_steps(rows(robot), "", factor=repeat)


def test_rows_are_what_the_agent_saw_in_worker_processes():
    with robot_of(dqn(InPlace, lr=1e-3), keep, env=InPlace, driver="processes") as robot:
        robot.collect(n_episode=2)
        (state,) = robot.state_dict()["workers"].values()
        buffer = state["buffers"]["RL"]
        columns = buffer["columns"] if "columns" in buffer else buffer
        assert columns["obs"][:8].ravel().tolist() == [0, 1, 2, 3] * 2
        assert columns["obs_next"][:8].ravel().tolist() == [1, 2, 3, 4] * 2


def test_every_leaf_of_a_nested_observation_is_kept():
    with robot_of(dqn(Named), keep, env=Named) as robot:
        robot.collect(n_episode=2)
        assert_four_steps(rows(robot), ".at")
        assert_four_steps(rows(robot), ".deep.twice", factor=2)
    with robot_of(dqn(Pair), keep, env=Pair) as robot:
        robot.collect(n_episode=2)
        assert_four_steps(rows(robot), ".0")
        assert_four_steps(rows(robot), ".1")


@pytest.mark.parametrize("memory", ["array", "bytes"])
def test_views_of_the_environments_memory_are_kept(memory):
    with robot_of(dqn(lambda: Image(memory)), keep, env=lambda: Image(memory)) as robot:
        robot.collect(n_episode=2)
        assert_four_steps(rows(robot), "")


class Late(Agent):
    """Remembers a whole episode, and stores it when it is over."""

    def run_one_episode(self):
        steps, over = [], False
        obs, _ = self.env.reset()
        while not over:
            act = self.helpers["RL"].predict(obs)
            obs_next, *rest = self.env.step(act)
            steps.append((obs, act, rest[0], obs_next, *rest[1:]))
            obs, over = obs_next, rest[1] or rest[2]
        for step in steps:
            self.helpers["RL"].store(*step)


@pytest.mark.parametrize("env", [InPlace, Named])
def test_rows_may_be_stored_later(env):
    with robot_of(dqn(env), keep, env=env, agent=Late) as robot:
        robot.collect(n_episode=2)
        assert_four_steps(rows(robot), ".at" if env is Named else "")


def test_rewards_of_several_kinds_are_kept():
    class Purse(InPlace):
        reward_space = gym.spaces.Box(-10.0, 10.0, (2,), np.float64)

        def step(self, act):
            obs, _, *rest = super().step(act)
            self.purse = getattr(self, "purse", np.zeros(2))
            self.purse[:] = self.at, -self.at
            return obs, self.purse, *rest

    class Sums(DQN):  # its own affair what it does with several rewards
        one_reward = False

    func = create_algorithm_func(MLPQ, spaces_of(Purse()), Sums, {})
    with robot_of(func, keep, env=Purse, agent=Late) as robot:
        seen = robot.collect(n_episode=2)
        assert rows(robot)["rew"][:, 0].tolist() == [1, 2, 3, 4] * 2
        assert [r.tolist() for r in seen.returns] == [[10.0, -10.0]] * 2


class Steps(Agent):
    def run_one_episode(self):
        self.seen = []
        self.env.reset()
        self.seen.append(self.env.time_step)
        while not self.env.is_over:
            self.env.step(0)
            self.seen.append(self.env.time_step)


def test_time_steps_are_kept_with_what_the_info_said():
    class Told(InPlace):
        told = {"at": np.zeros(1), "count": 0}

        def reset(self, **options):
            return super().reset(**options)[0], self.tell()

        def step(self, act):
            return *super().step(act)[:-1], self.tell()

        def tell(self):
            self.told["at"][:] = self.told["count"] = self.at
            return self.told

    with robot_of(Recorder(), keep, env=Told, agent=Steps) as robot:
        robot.run(StopAfterSteps(4))
        seen = robot.agents[0].seen
        assert [s.observation.tolist() for s in seen] == [[0], [1], [2], [3], [4]]
        assert [(s.env_info["count"], s.env_info["at"].tolist()) for s in seen] == [(i, [i]) for i in range(5)]


def test_an_environment_may_change_the_action_it_was_given():
    class Clips(Corridor):
        def step(self, act):
            act[:] = 0.0
            return super().step(act)

    space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    env = lambda: Clips(4, act=space)  # noqa: E731
    model = type(Recorder().model)(POSITION, space)
    with robot_of(Recorder(model, lambda obs: torch.ones(len(obs), 2)), keep, env=env) as robot:
        robot.collect(n_episode=1)
        assert rows(robot)["act"].tolist() == [[1.0, 1.0]] * 4


@pytest.mark.parametrize("agent", [Late, Agent], ids=["late", "at once"])
def test_what_the_info_said_is_stored_as_it_was(agent):
    class Told(InPlace):
        told = {"where": np.zeros(2, np.float32)}

        def step(self, act):
            *rest, _ = super().step(act)
            self.told["where"][:] = self.at, -self.at
            return *rest, self.told

    class Stores(agent):
        def run_one_episode(self):
            if agent is Agent:
                return super().run_one_episode()
            steps, over = [], False
            obs, _ = self.env.reset()
            while not over:
                act = self.helpers["RL"].predict(obs)
                obs_next, *rest = self.env.step(act)
                steps.append((obs, act, rest[0], obs_next, *rest[1:]))
                obs, over = obs_next, rest[2]
            for step in steps:
                self.helpers["RL"].store(*step)

    def helper():
        return OffPolicyHelper(size=100, batch_size=1, learn_every=10**9, store_info={"where": np.zeros(2, np.float32)})

    with robot_of(Recorder(), helper, env=Told, agent=Stores) as robot:
        robot.collect(n_episode=1)
        assert rows(robot)["info.where"].tolist() == [[i, -i] for i in (1, 2, 3, 4)]


BOX = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
ACTIONS = {
    "bounded": BOX, "unbounded": gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), "choices": gym.spaces.MultiDiscrete([3, 3]),
    "offset": gym.spaces.MultiDiscrete([3, 3], start=[1, 1]), "number": gym.spaces.Box(-2.0, 2.0, (), np.float32),
    "nested": gym.spaces.Dict({"arm": BOX, "hand": gym.spaces.Tuple((gym.spaces.Discrete(2), BOX))})}


class Free(Corridor):
    """A corridor whose actions are of any space; it keeps what it was given."""

    given: list = []

    def __init__(self, space):
        super().__init__(4, act=space)

    def step(self, act):
        self.given.append(act)
        return super().step(act)


def edits(act):
    """Every way to change an action in place."""
    if isinstance(act, dict):
        yield lambda: act.update(arm=0)
        yield lambda: act.__setitem__("arm", 0)
        yield lambda: act.pop("arm")
        for part in act.values():
            yield from edits(part)
    elif isinstance(act, tuple):
        for part in act:
            yield from edits(part)
    elif isinstance(act, np.ndarray):
        yield lambda: act.__setitem__(..., 0)
        yield lambda: act.__iadd__(act)
        yield lambda: np.clip(act, 0, 1, out=act)


def edited(act):
    """Another action, half of this one, or one less."""
    if isinstance(act, dict):
        return {key: edited(part) for key, part in act.items()}
    if isinstance(act, tuple):
        return tuple(map(edited, act))
    return act * np.float32(0.5) if np.asarray(act).dtype.kind == "f" else act


def box_policy(space):
    class Policy(Recorder):
        def predict(self, inputs):
            n = len(inputs.obs)
            if isinstance(space, gym.spaces.Dict):
                half = torch.full((n, 2), 0.5)
                return {"act": {"arm": half, "hand": {"0": torch.ones(n, dtype=torch.int64), "1": half}}}
            real = space.dtype.kind == "f"
            return {"act": torch.full((n, *space.shape), 0.5) if real else torch.ones((n, 2), dtype=torch.int64)}

    return Policy(type(Recorder().model)(POSITION, space))


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("kind", [Agent, VectorAgent])
def test_an_action_that_was_predicted_is_not_changed_in_place_and_another_is_stored_as_it_is(kind, name):
    """Else the row would have the action, and its log-probability, that the policy gave, and the environment another one."""
    space, refused = ACTIONS[name], []

    class Meddles(kind):
        def run_one_episode(self):
            helper = self.helpers["RL"]
            obs, _ = self.env.reset()
            for _ in range(4):
                act = helper.predict(obs)
                for edit in edits(act):
                    with pytest.raises((ValueError, TypeError), match="read-only|cannot be changed"):
                        edit()
                    refused.append(edit)
                for value in helper.outputs.values():
                    if np.ndim(value):
                        with pytest.raises(ValueError, match="read-only"):
                            value[...] = 0
                act = edited(act)
                obs_next, rew, terminated, truncated, info = self.env.step(act)
                if kind is VectorAgent:
                    self.remember(obs, act, rew, terminated, truncated, info)
                else:
                    helper.store(obs, act, rew, obs_next, terminated, truncated, info)
                obs = obs_next
            self.env.end_episode()

    options = {} if kind is Agent else {"n_envs": 2}
    with robot_of(box_policy(space), keep, env=lambda: Free(space), agent=lambda: Meddles(**options)) as robot:
        robot.collect(n_episode=1 if kind is Agent else 2)
        stored = {key: column for key, column in rows(robot).items() if key.startswith("act")}
    assert refused
    for key, column in stored.items():
        real = column.dtype.kind == "f"
        assert (column[:4] == (0.25 if real else 1)).all(), (key, column)


# ------------------------------------------------------------------------------------------------------------------- vectors


class Together(VectorEnv):
    """Two corridors of length 3, in one set of arrays that every call writes into."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
    num_envs, single_observation_space, single_action_space = 2, POSITION, ACT

    def __init__(self, mode):
        self.metadata = {"autoreset_mode": mode}
        self.mode = mode
        self.at, self.seen, self.final = np.zeros(2, np.int64), np.zeros((2, 1), np.float32), np.zeros((2, 1), np.float32)
        self.rew, self.terminated, self.truncated = np.zeros(2), np.zeros(2, bool), np.zeros(2, bool)

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask", np.ones(2, bool))
        self.at[mask] = 0
        self.seen[:, 0] = self.at
        return self.seen, {}

    def step(self, act):
        over = self.truncated.copy()
        info = {}
        self.at += 1
        if self.mode is AutoresetMode.NEXT_STEP:
            self.at[over] = 0
        self.rew[:], self.truncated[:] = self.at, self.at == 3
        self.final[:, 0] = self.seen[:, 0] = self.at
        if self.mode is AutoresetMode.SAME_STEP and self.truncated.any():
            info = {"final_obs": self.final}
            self.at[self.truncated] = 0
            self.seen[:, 0] = self.at
        return self.seen, self.rew, self.terminated, self.truncated, info


class LateVector(VectorAgent):
    """Stores each step one step later."""

    def run_one_episode(self):
        waiting = None
        obs, _ = self.env.reset()
        for _ in range(9):
            act = self.helpers["RL"].predict(obs)
            obs_next, rew, terminated, truncated, info = self.env.step(act)
            if waiting is not None:
                self.helpers["RL"].store(*waiting)
            waiting = obs, act, rew, self.env.obs_next, terminated, truncated, info, self.env.valid
            obs = obs_next
        self.helpers["RL"].store(*waiting)
        self.env.end_episode()


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("agent", [VectorAgent, LateVector])
def test_rows_of_a_vector_environment_are_what_the_agent_saw(mode, agent):
    with robot_of(Recorder(), keep, env=lambda: Together(mode), agent=agent) as robot:
        robot.run(StopAfterSteps(12))
        for lane in range(2):
            stored = rows(robot, lane=lane)
            n = len(stored["rew"]) // 3 * 3
            assert n >= 3 and stored["obs"][:n, 0].tolist() == [0, 1, 2] * (n // 3)
            assert stored["obs_next"][:n, 0].tolist() == stored["rew"][:n].tolist() == [1, 2, 3] * (n // 3)
            assert stored["truncated"][:n].tolist() == [False, False, True] * (n // 3)


def test_final_observations_of_environments_that_are_made_into_a_vector():
    with robot_of(Recorder(), keep, env=lambda: InPlace(3), agent=lambda: VectorAgent(2)) as robot:
        robot.collect(n_episode=4)
        assert rows(robot, lane=1)["obs_next"][:, 0].tolist() == [1, 2, 3] * 2


class Declared(Together):
    """Says, as gymnasium's vector environments do, that its observations are copies."""

    copy = True

    def reset(self, **options):
        obs, info = super().reset(**options)
        return obs.copy(), info

    def step(self, act):
        obs, *rest = super().step(act)
        self.given = obs.copy()
        return self.given, *rest


@pytest.mark.parametrize(("kind", "copies"), [(Together, True), (Declared, False)])
def test_observations_are_copied_unless_a_vector_environment_says_that_it_gives_copies(kind, copies):
    class Looking(VectorAgent):
        def run_one_episode(self):
            self.env.reset()
            obs = self.env.step(np.zeros(2, np.int64))[0]
            inside = self.env.unwrapped
            assert np.shares_memory(obs, getattr(inside, "given", inside.seen)) is not copies
            self.robot.request_stop()

    with robot_of(Recorder(), keep, env=lambda: kind(AutoresetMode.NEXT_STEP), agent=Looking) as robot:
        robot.run()


def test_plain_values_stay_as_they_are_and_arrays_do_not():
    for plain in (3, 2.5, "text", None, np.float32(1)):
        assert copied(plain) is plain
    picture = np.zeros((64, 64, 3), np.uint8)
    assert not np.shares_memory(copied(picture), picture) and not np.shares_memory(copied({"o": [picture]})["o"][0], picture)
