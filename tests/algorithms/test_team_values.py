"""VDN and QMIX: targets by hand, one player or a sum, exploration apart, and the game that a sum cannot say."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from value_rows import batch_of

from parl_like import ComputationTask, OffPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import BDQ, QMIX, VDN
from parl_like.learning.explorers import MultiEpsilonGreedy
from parl_like.learning.model_check import ContractError
from parl_like.models import MLPTeamMix, MLPTeamQ

TEAM = gym.spaces.Dict(obs=gym.spaces.Box(-1, 1, (2, 3), np.float32), state=gym.spaces.Box(-1, 1, (4,), np.float32))
ACT = gym.spaces.MultiDiscrete([2, 3])


def rows(seed=0, n=8, players=2, act=(2, 3)):
    rng = np.random.default_rng(seed)
    made = {"act": np.stack([rng.integers(k, size=n) for k in act], 1), "rew": rng.normal(size=n).astype(np.float32) * 0.1,
            "terminated": np.arange(n) % 3 == 0, "truncated": np.arange(n) % 3 == 1}
    for name in ("obs", "obs_next"):
        made |= {f"{name}.obs": rng.normal(size=(n, players, 3)).astype(np.float32),
                 f"{name}.state": rng.normal(size=(n, 4)).astype(np.float32)}
    return made


class Table(MLPTeamMix):
    """Its values are those of the table; it mixes by (v₁ + 1)(v₂ + 1)."""

    def __init__(self, table):
        super().__init__(TEAM, ACT, ())
        self.table = torch.nn.Parameter(torch.tensor(table))

    def q(self, obs):
        return self.table.expand(len(obs["obs"]), -1)

    def mix(self, values, obs):
        return (values + 1.0).prod(1)


def test_targets_losses_and_priorities_by_hand():
    """γ ½. The network prefers actions 1 and 0, worth 4 and 8 to the target copy: a sum of 12, mixed 45. Q_tot of the actions
    taken: 0 + 3 and 1 + 2, mixed (0 + 1)(3 + 1) and (1 + 1)(2 + 1)."""
    fields = {**rows(n=2), "act": np.array([[0, 2], [1, 1]]), "rew": np.array([1.0, 2.5], np.float32),
              "terminated": np.array([False, True])}
    for kind, targets, values in ((VDN, [7.0, 2.5], [3.0, 3.0]), (QMIX, [23.5, 2.5], [4.0, 6.0])):
        learner = kind(Table([0.0, 1.0, 5.0, 2.0, 3.0]), gamma=0.5)
        learner.target.table.data = torch.tensor([6.0, 4.0, 8.0, 10.0, 0.0])
        with torch.no_grad():
            batch = learner.process(batch_of(fields))
        assert batch.target.tolist() == targets
        out = learner.learn(batch)
        assert out["priority"].tolist() == [abs(y - q) for y, q in zip(targets, values, strict=True)]
        assert out["loss"].item() == pytest.approx(np.mean([0.5 * (y - q) ** 2 for y, q in zip(targets, values, strict=True)]))


def weights_after(algorithm, updates=20, **options):
    task = ComputationTask(algorithm)
    before = task.algorithm.model.weights_hash()
    for seed in range(updates):
        task.learn(rows(seed, **options))
    assert task.algorithm.model.weights_hash() != before
    return task.algorithm.model.weights_hash()


def test_with_one_player_and_small_errors_vdn_is_bdq():
    """So DQN: below 1 the Huber loss is half the squared error."""
    one, act = gym.spaces.Dict(obs=gym.spaces.Box(-1, 1, (1, 3), np.float32)), gym.spaces.MultiDiscrete([4])
    fields = {"n": 8, "players": 1, "act": (4,)}
    torch.manual_seed(0)
    first, second = MLPTeamQ(one, act, (8,)), MLPTeamQ(one, act, (8,))
    second.load_state_dict(first.state_dict())
    for model in (first, second):  # values near 0, like the rewards: no error reaches 1
        model.net.layers[-1].weight.data *= 0.1
    assert weights_after(lambda: VDN(first), **fields) == weights_after(lambda: BDQ(second), **fields)


class Sum(MLPTeamMix):
    def mix(self, values, obs):
        return values.sum(1)


def test_qmix_that_sums_is_vdn():
    made = [Sum(TEAM, ACT, (8,)) for _ in range(2)]
    made[1].load_state_dict(made[0].state_dict())
    assert weights_after(lambda: QMIX(made[0])) == weights_after(lambda: VDN(made[1]))


@pytest.mark.parametrize("seed", range(5))
def test_the_mixed_value_never_falls_in_a_players_value(seed):
    torch.manual_seed(seed)
    model = MLPTeamMix(TEAM, ACT, (8,), mixing=5)
    obs = {"obs": torch.randn(50, 2, 3), "state": 3.0 * torch.randn(50, 4)}
    values = (5.0 * torch.randn(50, 2)).requires_grad_()
    slope, = torch.autograd.grad(model.mix(values, obs).sum(), values)
    assert (slope >= 0).all() and (slope > 0).any()
    higher = values + torch.tensor([0.5, 0.0])
    assert (model.mix(higher, obs) >= model.mix(values, obs)).all()


@pytest.mark.parametrize("shared", [True, False])
def test_a_player_acts_by_what_it_sees_alone(shared):
    model = MLPTeamQ(TEAM, ACT, (8,), shared=shared)
    obs = {"obs": torch.randn(6, 2, 3), "state": torch.randn(6, 4)}
    other = {"obs": torch.cat([obs["obs"][:, :1], torch.randn(6, 1, 3)], 1), "state": torch.randn(6, 4)}
    assert torch.equal(model.q(obs)[:, :2], model.q(other)[:, :2])
    assert not torch.equal(model.q(obs)[:, 2:], model.q(other)[:, 2:])


def test_a_mask_forbids_each_players_actions():
    masked = gym.spaces.Dict({**TEAM.spaces, "mask": gym.spaces.MultiBinary(5)})
    model = MLPTeamQ(masked, ACT, (8,))
    mask = torch.tensor([[1, 0, 0, 1, 1]])
    q = model.q({"obs": torch.randn(1, 2, 3), "state": torch.randn(1, 4), "mask": mask})
    assert (q < -1e8).int().tolist() == [[0, 1, 1, 0, 0]]


def test_players_explore_each_by_itself():
    together, each = (MultiEpsilonGreedy([2, 2], 0.5, each=apart).draw(np.random.default_rng(0), 0, 4000)
                      for apart in (False, True))
    assert ((together >= 0).all(1) == (together >= 0).any(1)).all()
    assert np.mean((each >= 0).sum(1) == 1) == pytest.approx(0.5, abs=0.03)


def test_observations_that_are_no_teams_are_refused_by_name():
    with pytest.raises(TypeError, match=r"MLPTeamQ: the observation is Box.*expected a Dict whose `obs` is a Box \[2, n\]"):
        MLPTeamQ(gym.spaces.Box(-1, 1, (3,)), ACT)
    with pytest.raises(TypeError, match="MLPTeamQ: act is Discrete.*expected MultiDiscrete"):
        MLPTeamQ(TEAM, gym.spaces.Discrete(3))


class TwoStep(gym.Env):
    """The two-step game of the QMIX paper: player 1 chooses the game that both then play. In one everything earns 7, in the other
    0, 1, 1 or 8."""

    observation_space = gym.spaces.Dict(obs=gym.spaces.Box(0, 1, (2, 3), np.float32),
                                        state=gym.spaces.Box(0, 1, (3,), np.float32))
    action_space = gym.spaces.MultiDiscrete([2, 2])

    def look(self):
        state = np.eye(3, dtype=np.float32)[self.at]
        return {"obs": np.stack([state, state]), "state": state}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.look(), {}

    def step(self, act):
        if self.at == 0:
            self.at = 1 + int(act[0])
            return self.look(), 0.0, False, False, {}
        return self.look(), 7.0 if self.at == 1 else float([[0, 1], [1, 8]][act[0]][act[1]]), True, False, {}


def test_qmix_refuses_a_network_that_cannot_mix():
    func = create_algorithm_func(MLPTeamQ, dict(obs=TwoStep.observation_space, act=TwoStep.action_space), QMIX, {})
    with pytest.raises(ContractError, match="QMIX calls mix"):
        Robot(TwoStep, tasks={"RL": ComputationTask(func, lambda: OffPolicyHelper(size=500, batch_size=32))})


@pytest.mark.parametrize(("algorithm", "model", "score"), [(VDN, MLPTeamQ, 7.0), (QMIX, MLPTeamMix, 8.0)])
def test_the_two_step_game(algorithm, model, score):
    """VDN ends with 7, QMIX with 8, as in the paper, by random play (ε 1)."""
    func = create_algorithm_func(model, dict(obs=TwoStep.observation_space, act=TwoStep.action_space), algorithm,
                                 dict(epsilon=1.0, lr=5e-3, target_period=50))
    task = ComputationTask(func, lambda: OffPolicyHelper(size=500, batch_size=32, warmup=32, learn_every=2))
    with Robot(TwoStep, tasks={"RL": task}, n_agents=1, seed=1) as robot:
        robot.run(1_000)
        assert robot.evaluate(1).mean_return == score
