"""MAPPO: that its critic alone reads the state, that it is PPO otherwise, and the environment that shows the state."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from aec_fakes import leaving

from parl_like import ComputationTask, OnPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import MAPPO, PPO
from parl_like.environment.state import clone_state, restore_state
from parl_like.envs.central_state import CentralState
from parl_like.envs.joint import Joint
from parl_like.envs.two_step import TwoStep
from parl_like.learning.model_check import ContractError
from parl_like.models import MLPActorCritic, MLPCentralActorCritic
from parl_like.values.batch import Batch

BOX = gym.spaces.Box(-1, 1, (3,), np.float32)
OBS = gym.spaces.Dict(obs=BOX, state=gym.spaces.Box(-1, 1, (4,), np.float32), mask=gym.spaces.MultiBinary(2))
ACT = gym.spaces.Discrete(2)


def seen(n=6, **more):
    return {"obs": torch.randn(n, 3), "state": torch.randn(n, 4), "mask": torch.ones(n, 2), **more}


def test_the_policy_does_not_read_the_state_and_the_value_does():
    model = MLPCentralActorCritic(OBS, ACT, (8,))
    obs = seen()
    other = {**obs, "state": torch.randn(6, 4)}
    assert torch.equal(model.policy(obs)[0]["logits"], model.policy(other)[0]["logits"])
    assert not torch.equal(model.value(obs), model.value(other))
    out, value = model.evaluate(obs)
    assert torch.equal(out["logits"], model.policy(obs)[0]["logits"]) and torch.equal(value, model.value(obs))
    masked = {**obs, "mask": torch.tensor([[1, 0]] * 6)}
    assert (model.policy(masked)[0]["logits"][:, 1] < -1e8).all() and torch.equal(model.value(masked), value)


def rows(seed, n=16):
    rng = np.random.default_rng(seed)
    terminated, truncated = np.arange(n) % 5 == 4, np.arange(n) % 7 == 6
    made = {"act": rng.integers(2, size=n), "rew": rng.normal(size=n), "terminated": terminated, "truncated": truncated,
            "last": terminated | truncated | (np.arange(n) == n - 1)}
    for name in ("obs", "obs_next"):
        made |= {f"{name}.obs": rng.normal(size=(n, 3)).astype(np.float32),
                 f"{name}.state": rng.normal(size=(n, 4)).astype(np.float32), f"{name}.mask": np.ones((n, 2), np.int8)}
    return made


class Alone:
    """CartPole as a parallel environment of one player."""

    def __init__(self):
        self.env, self.possible_agents = gym.make("CartPole-v1"), ["one"]

    def observation_space(self, agent):
        return self.env.observation_space

    def action_space(self, agent):
        return self.env.action_space

    def reset(self, seed=None, options=None):
        self.agents = ["one"]
        obs, info = self.env.reset(seed=seed)
        return {"one": obs}, {"one": info}

    def step(self, acts):
        out = [{"one": value} for value in self.env.step(int(acts["one"]))]
        self.agents = [] if out[2]["one"] or out[3]["one"] else ["one"]
        return out

    def close(self):
        self.env.close()


class SeesAll(gym.ObservationWrapper):
    """CartPole as one player of it sees it who is told the state of all."""

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))
        self.observation_space = CentralState(Alone()).observation_space("one")

    def observation(self, obs):
        return {"obs": obs, "who": np.ones(1, np.float32), "state": np.array(obs, np.float32)}


def test_of_one_player_it_is_ppo_to_the_digits():
    """By roles, dicts by player and the central state, and by a plain agent in a plain environment: the same rows and weights."""
    left = []
    for algorithm, env in ((MAPPO, lambda: CentralState(Alone())), (PPO, SeesAll)):
        with Robot.of(algorithm, env, model=MLPCentralActorCritic, hidden=[8], n_agents=2, unroll=16, minibatches=2, epochs=2,
                      seed=3) as robot:
            for agent in robot.agents:
                for helper in agent.helpers.values():
                    helper.rng.bit_generator.state = np.random.default_rng(agent.index).bit_generator.state
            task = robot.tasks["RL"]
            task.algorithm.rng = np.random.default_rng(0)
            robot.run(200)
            left.append((task.version, task.algorithm.model.weights_hash(), [float(np.sum(one)) for one in robot.recent_returns]))
    assert left[0] == left[1] and left[0][0] >= 6


def test_advantages_come_from_the_values_of_the_state_by_hand():
    """γ = λ = ½, V(s) twice the state's first number, whatever the players see themselves. Two players, whose rows stand one
    after the other: the first is cut off behind its second row, the other one's game ends."""

    class Told(MLPCentralActorCritic):
        def evaluate(self, obs, state=None, first=None):
            return self.policy(obs)[0], 2.0 * obs["state"][:, 0] + 0.0 * self.value(obs)

    task = ComputationTask(lambda: MAPPO(Told(OBS, ACT, (8,)), gamma=0.5, lam=0.5, normalize=False))
    task.build()
    made = rows(0, 4)
    made |= {"rew": np.array([1.0, 2.0, 3.0, 4.0]), "terminated": np.array([False, False, False, True]),
             "truncated": np.array([False, True, False, False]), "last": np.array([False, True, False, True])}
    made["obs.state"][:, 0], made["obs_next.state"][:, 0] = [1, 2, 3, 4], [2, 5, 4, 100]
    with torch.no_grad():
        batch = task.algorithm.process(Batch.nest({name: torch.from_numpy(value) for name, value in made.items()}))
    # δ = 2 + ½ · 10 − 4 = 3 and 1 + ½ · 4 − 2 = 1, so 1 + ¼ · 3; δ = 4 − 8 = −4 and 3 + ½ · 8 − 6 = 1, so 1 + ¼ · −4.
    assert batch.advantage.tolist() == [1.75, 3.0, 0.0, -4.0]
    assert batch.returns.tolist() == [3.75, 7.0, 6.0, 4.0]


def test_observations_without_a_state_are_refused():
    with pytest.raises(TypeError, match="expected a Dict with `state`, such as CentralState"):
        MLPCentralActorCritic(BOX, ACT)

    class Plain(gym.Env):
        observation_space, action_space = BOX, ACT

    func = create_algorithm_func(MLPActorCritic, dict(obs=BOX, act=ACT), MAPPO, {})
    with pytest.raises(ContractError, match="MAPPO needs observations with a `state`"):
        Robot(Plain, tasks={"RL": ComputationTask(func, lambda: OnPolicyHelper(unroll=8))})


def test_players_see_the_environments_state_and_who_they_are():
    env = CentralState(TwoStep())
    obs, _ = env.reset(seed=0)
    assert [one["who"].tolist() for one in obs.values()] == [[1, 0], [0, 1]]
    assert all(one["state"].tolist() == [1, 0, 0] for one in obs.values())
    obs, rew, terminated, _, _ = env.step({"player_0": 1, "player_1": 0})
    assert all(one["state"].tolist() == [0, 0, 1] and env.observation_space(player).contains(one) for player, one in obs.items())
    state = clone_state(env)
    assert env.step({"player_0": 1, "player_1": 1})[1] == {"player_0": 8.0, "player_1": 8.0}
    restore_state(env, state)
    assert env.step({"player_0": 1, "player_1": 0})[1] == {"player_0": 1.0, "player_1": 1.0}


def test_without_a_state_it_is_what_all_see_with_zeros_for_who_is_gone():
    inner = leaving(1, 3, masks=True)
    del type(inner).state_space
    env = CentralState(inner)
    obs, _ = env.reset()
    assert env.observation_space("p1")["state"].shape == (3,) and obs["p1"]["mask"].tolist() == [1, 1, 0]
    seen = []
    while env.agents:
        obs, *_ = env.step(dict.fromkeys(env.agents, 0))
        seen.append({player: one["state"].tolist() for player, one in obs.items()})
        assert all(env.observation_space(player).contains(one) for player, one in obs.items())
    assert seen == [{"p0": [1, 1, 1], "p1": [1, 1, 1]}, {"p1": [0, 2, 2]}, {"p1": [0, 3, 3]}]


def test_its_state_is_what_players_see_also_for_the_joint_view():
    inner = leaving(1, 3, box=True)
    del type(inner).state_space, type(inner).state
    env = Joint(CentralState(inner))
    obs, _ = env.reset()
    assert env.observation_space["state"].shape == obs["state"].shape == (4,)
    assert env.step([0, 0])[0]["state"].tolist() == [1, 1, 1, 1] and env.step([0, 0])[0]["state"].tolist() == [0, 0, 2, 2]


def test_players_of_different_kinds_are_brought_to_one_size():
    env = CentralState(leaving(1, 3, cut=(1,)), state=False, alike=True)
    obs, _ = env.reset()
    assert env.observation_space("p0") == env.observation_space("p1") and set(obs["p0"]) == {"obs", "who", "mask"}
    assert env.action_space("p0") == env.action_space("p1") == gym.spaces.Discrete(3)
    assert [one["mask"].tolist() for one in obs.values()] == [[1, 1, 0], [1, 1, 1]]
    obs, rewards, *_ = env.step({"p0": 1, "p1": 2})
    assert rewards == {"p0": 1.0, "p1": 12.0} and [one["obs"].tolist() for one in obs.values()] == [[1, 0], [1, 1]]
    assert [one["mask"].tolist() for one in obs.values()] == [[0, 0, 0], [1, 1, 1]]  # nothing comes after a true end
    env.step({"p1": 0})
    assert env.step({"p1": 0})[0]["p1"]["mask"].tolist() == [1, 1, 1]  # a cut end has a value
    masked = CentralState(leaving(1, 3, masks=True), alike=True)
    assert [one["mask"].tolist() for one in masked.reset()[0].values()] == [[1, 0, 0], [1, 1, 0]]
    alike = CentralState(TwoStep(), alike=True)
    assert alike.observation_space("player_0") == CentralState(TwoStep()).observation_space("player_0")


def test_numbers_that_a_player_does_not_have_are_left_aside():
    inner = leaving(2, 2)
    boxes = {"p0": gym.spaces.Box(0, 1, (1,), np.float32), "p1": gym.spaces.Box(-2, 2, (2,), np.float32)}
    taken = []
    type(inner).action_space = lambda self, agent: boxes[agent]
    type(inner).step = lambda self, acts: taken.append(acts) or ({}, {}, {}, {}, {})
    env = CentralState(inner, alike=True)
    env.reset()
    assert env.action_space("p0") == env.action_space("p1") == gym.spaces.Box(-2, 2, (2,), np.float32)
    env.step({"p0": np.array([1.5, 9.0], np.float32), "p1": np.array([1.5, -1.5], np.float32)})
    assert {player: act.tolist() for player, act in taken[0].items()} == {"p0": [1.0], "p1": [1.5, -1.5]}
    boxes["p0"] = gym.spaces.Discrete(2)
    with pytest.raises(TypeError, match="alike=True brings actions to one size that are all Discrete, or Boxes"):
        CentralState(inner, alike=True)


@pytest.mark.parametrize("algorithm, players", [("MAPPO", "central"), ("PPO", "own"), ("DQN", "own")])
@pytest.mark.parametrize("name", ["simple_spread_v3", "simple_speaker_listener_v4"])
def test_players_of_mpe2_are_roles_of_one_task_by_an_option(algorithm, players, name):
    pytest.importorskip("mpe2")
    sizes = {"warmup": 10, "batch_size": 8} if algorithm == "DQN" else {"unroll": 10, "minibatches": 1, "epochs": 1}
    env = {"id": f"mpe2/{name}", "options": {"players": players, "max_cycles": 10}}
    with Robot.of(algorithm, env, n_agents=2, hidden=[8], **sizes) as robot:
        robot.run(40)
        assert robot.tasks["RL"].version > 0 and len(robot.agents[0].helpers) == len(robot.agents[0].env.players) > 1


def test_options_of_mpe2_that_do_not_fit_are_refused():
    pytest.importorskip("mpe2")
    for options, message in [({"players": "centrl"}, "no players 'centrl'; did you mean 'central'"),
                             ({"players": "own", "reward": "sum"}, "reward='sum' is for players='joint'")]:
        with pytest.raises(ValueError, match=message):
            Robot.of("PPO", {"id": "mpe2/simple_spread_v3", "options": options})


def test_what_is_no_parallel_environment_is_refused():
    with pytest.raises(TypeError, match="CentralState: expected a parallel environment of PettingZoo's, got CartPole"):
        CentralState(gym.make("CartPole-v1").unwrapped)
