"""BDQ: its targets by hand, its network, exploring several choices, and that one choice is DQN."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from value_rows import ACT, MASKED, OBS, batch_of, hand_rows, rows

from parl_like import ComputationTask, OffPolicyHelper, PrioritizedReplayBuffer, Robot, VectorAgent, create_algorithm_func
from parl_like.algorithms import BDQ, DQN
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.learning.explorers import MultiEpsilonGreedy
from parl_like.learning.factory import Shared
from parl_like.learning.model_check import ContractError
from parl_like.models import MLPQ, MLPBranchingQ
from parl_like.models.dynamics import Trunk

TWO = gym.spaces.MultiDiscrete([2, 3])


class Table(MLPBranchingQ):
    """Its values are those of the table, whatever it sees."""

    def __init__(self, table):
        super().__init__(gym.spaces.Box(-1, 1, (1,), np.float32), TWO, ())
        self.table = torch.nn.Parameter(torch.tensor(table))

    def q(self, obs):
        return self.table.expand(len(obs), -1)


def test_targets_loss_and_priorities_by_hand():
    """γ ½. The network prefers alternatives 1 and 0, worth 4 and 8 to the target copy: y = 1 + ½ · 6. Without double 6 and 10."""
    learner = BDQ(Table([0.0, 1.0, 5.0, 2.0, 3.0]), gamma=0.5)
    learner.target.table.data = torch.tensor([6.0, 4.0, 8.0, 10.0, 0.0])
    fields = hand_rows([[0, 2], [1, 1]], [1.0, 2.5], [False, True])
    with torch.no_grad():
        batch = learner.process(batch_of(fields))
        learner.double = False
        assert learner.process(batch_of(fields)).target.tolist() == [5.0, 2.5]
    assert batch.target.tolist() == [4.0, 2.5]
    out = learner.learn(batch)
    # |y − q|: 4 and 1; 1.5 and 0.5
    assert out["priority"].tolist() == [5.0, 2.0]
    assert out["loss"].item() == pytest.approx(((3.5 + 0.5) / 2 + (1.0 + 0.125) / 2) / 2)


class One(MLPQ):
    """One choice, as a MultiDiscrete action."""

    def __init__(self, obs):
        super().__init__(obs, ACT, (8, 8), dueling=True)
        self.act_space = gym.spaces.MultiDiscrete([4])


@pytest.mark.parametrize("obs", [OBS, MASKED])
def test_with_one_choice_it_is_dqn(obs):
    """Whose dueling network the branching one is, too."""
    model, one = MLPQ(obs, ACT, (8, 8), dueling=True), One(obs)
    one.load_state_dict(model.state_dict())
    branching = MLPBranchingQ(obs, one.act_space, (8, 8))
    with torch.no_grad():
        for ours, theirs in ((branching.body, model.body), (branching.v, model.v)):
            ours.load_state_dict(theirs.state_dict())
        for (weight, bias), layer in zip(branching.net.layers(), model.net.layers, strict=True):
            weight[0], bias[0, 0] = layer.weight.T, layer.bias
    tasks = [ComputationTask(DQN(model, target_period=5, n_step=2)), ComputationTask(BDQ(one, target_period=5, n_step=2)),
             ComputationTask(BDQ(branching, target_period=5, n_step=2))]
    before = copy.deepcopy(model.state_dict())
    x = {"x": torch.randn(5, 3), "mask": torch.tensor([[1, 0, 1, 1]] * 5)}
    for seed in range(20):
        flat = rows(seed, n_step=2, masked=obs is MASKED, weight=np.linspace(0.5, 1.0, 8, dtype=np.float32))
        for task in tasks:
            task.learn(flat if task is tasks[0] else {**flat, "act": flat["act"][:, None]})
    q = [task.algorithm.model.q(x if obs is MASKED else x["x"]) for task in tasks]
    torch.testing.assert_close(q[0], q[1])
    torch.testing.assert_close(q[0], q[2], atol=1e-5, rtol=1e-4)
    assert not any(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_values_of_each_choice_vary_around_the_common_one():
    model = MLPBranchingQ(OBS, gym.spaces.MultiDiscrete([2, 3, 1]), (8, 6))
    x = torch.randn(4, 3)
    q = model.q(x)
    assert q.shape == (4, 6) and len(list(model.parameters())) == 2 + 4 + 4
    v = model.v(model.body(x))
    for block in q.split([2, 3, 1], 1):
        torch.testing.assert_close(block.mean(1, keepdim=True), v)
    assert q.std(1).min() > 0 and model.q(x.expand(2, 4, 3)).shape == (2, 4, 6)


def test_all_choices_are_random_or_none():
    explorer, n = MultiEpsilonGreedy([2, 3], 0.3), 20_000
    q = np.tile(np.array([1.0, 2.0, 9.0, 3.0, 4.0], np.float32), (n, 1))
    mask = np.tile(np.array([1, 1, 0, 1, 1], np.int8), (n, 1))
    noise = explorer.draw(np.random.default_rng(0), 0, n)
    random = noise[:, 0] >= 0
    assert (random == (noise[:, 1] >= 0)).all() and abs(random.mean() - 0.3) < 4 * np.sqrt(0.21 / n)
    act = explorer.act({"q": q, "mask": mask}, noise)["act"]
    assert (act[~random] == (1, 2)).all()
    for choice, legal in ((0, [0, 1]), (1, [1, 2])):
        counts = np.bincount(act[random, choice], minlength=3)[legal]
        assert counts.sum() == random.sum() and abs(counts[0] / counts.sum() - 0.5) < 4 * 0.5 / np.sqrt(random.sum())
    greedy = explorer.act({"q": q[:1]}, explorer.greedy()[None])["act"]
    assert greedy.tolist() == [[1, 0]] and explorer.act_one({"q": q[0]}, explorer.greedy()).tolist() == [1, 0]


class Chords(gym.Env):
    """Reward ½ for each of two choices that is the one shown."""

    observation_space = gym.spaces.MultiDiscrete([2, 3])
    action_space = gym.spaces.MultiDiscrete([2, 3], start=[0, 5])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.shown(), {}

    def shown(self):
        self.obs = self.np_random.integers([2, 3])
        return self.obs

    def step(self, act):
        rew, self.steps = float((act - (0, 5) == self.obs).mean()), self.steps + 1
        return self.shown(), rew, False, self.steps == 10, {}


@pytest.mark.parametrize("driver", ["cooperative", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_robot_learns_both_choices(driver):
    """Random ones earn 4.2 of 10."""
    func = create_algorithm_func(MLPBranchingQ, dict(obs=Chords.observation_space, act=Chords.action_space, hidden=(16, 16)),
                                 BDQ, dict(lr=0.01, gamma=0.5, target_period=20, epsilon=0.3))
    tasks = {"RL": ComputationTask(func, lambda: OffPolicyHelper(size=500, batch_size=32, learn_every=2))}
    with Robot(Chords, tasks=tasks, n_agents=2, seed=0, driver=driver) as robot:
        robot.run(StopAfterSteps(500))
        assert robot.evaluate(5, seed=1).mean_return > 9.0


class Legal(gym.Env):
    """The reward is what is shown of each choice; one alternative of each is not legal, and in the last state none is."""

    observation_space = gym.spaces.Dict({"worth": gym.spaces.Box(0, 1, (5,), np.float32), "mask": gym.spaces.MultiBinary(5)})
    action_space = TWO

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.shown(), {}

    def shown(self):
        self.obs = {"worth": self.np_random.random(5, np.float32), "mask": np.full(5, self.steps < 20, np.int8)}
        self.obs["mask"][[self.np_random.integers(2), 2 + self.np_random.integers(3)]] = 0
        return self.obs

    def step(self, act):
        chosen = act + (0, 2)
        assert self.obs["mask"][chosen].all()
        rew, self.steps = float(self.obs["worth"][chosen].sum()), self.steps + 1
        return self.shown(), rew, False, self.steps == 20, {}


def test_it_learns_under_masks_from_many_environments_beside_another_task():
    """Legal actions at random earn 20, the best ones 23.3. The other task is one of its kind, on the same encoder."""
    spaces = dict(obs=Legal.observation_space, act=TWO)
    trunk = Shared(Trunk, Legal.observation_space, (16,))
    tasks = {name: ComputationTask(
        create_algorithm_func(MLPBranchingQ, {**spaces, "hidden": (16, 16), "trunk": trunk}, BDQ,
                              dict(lr=0.01, gamma=0.2, tau=0.1, n_step=2)),
        lambda: OffPolicyHelper(size=2_000, batch_size=32, learn_every=2, random_steps=40, buffer=PrioritizedReplayBuffer))
        for name in ("RL", "other")}
    with Robot(lambda: gym.vector.SyncVectorEnv([Legal] * 4), agent=VectorAgent, tasks=tasks, seed=0) as robot:
        robot.run(StopAfterSteps(800))
        assert robot.tasks["RL"].algorithm.model.perception is robot.tasks["other"].algorithm.model.perception
        assert robot.evaluate(5, seed=1).mean_return > 21.5


@pytest.mark.parametrize(("make", "message"), [
    (lambda: BDQ(MLPQ(OBS, ACT)), "needs several choices"), (lambda: DQN(MLPBranchingQ(OBS, TWO)), "needs Discrete"),
    (lambda: MLPBranchingQ(OBS, ACT), "expected several choices"),
])
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises((ContractError, TypeError), match=message):
        ComputationTask(make())
