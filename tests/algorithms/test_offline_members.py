"""Algorithms for data without an environment: losses by hand, the simpler algorithm where the novelty is off, and that each
learns what is good of rows whose actions are drawn at random, which cloning cannot."""

import copy
import math
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import ComputationTask, OfflineHelper, Robot, create_algorithm_func
from parl_like.algorithms import (
    BC,
    BCQ,
    CQL,
    CRR,
    DQN,
    IQL,
    MARWIL,
    PLAS,
    SAC,
    TD3,
    TD3BC,
    DiscreteBCQ,
    DiscreteCQL,
)
from parl_like.data.datasets import from_arrays
from parl_like.learning.model import Model
from parl_like.models import MLPQ, MLPActorCritic, MLPActorQ, MLPImitationQ, MLPLatentActorQ
from parl_like.models.heads import CategoricalHead
from parl_like.values.batch import Batch

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACT = gym.spaces.Box(-1, 1, (2,), np.float32)
THREE = gym.spaces.Discrete(3)


def rows(n=8, seed=0, discrete=False):
    rng = np.random.default_rng(seed)
    act = rng.integers(3, size=n) if discrete else rng.uniform(-1, 1, (n, 2)).astype(np.float32)
    return {"obs": rng.normal(size=(n, 3)).astype(np.float32), "obs_next": rng.normal(size=(n, 3)).astype(np.float32),
            "act": act, "rew": rng.normal(size=n).astype(np.float32), "terminated": np.arange(n) % 3 == 0,
            "truncated": np.zeros(n, bool)}


def tensors(**columns):
    return Batch({name: torch.tensor(value) for name, value in columns.items()})


def same_after(first, second, discrete, updates=20):
    """Whether both have the same parameters after the same updates, the second's names alone; and have moved."""
    torch.manual_seed(0)
    tasks = [ComputationTask(make(), native=False) for make in (first, second)]
    mine, others = (task.algorithm.model.state_dict() for task in tasks)
    for name in others:
        mine[name].copy_(others[name])
    for task in tasks:
        task.algorithm.target.load_state_dict(task.algorithm.model.state_dict())
        task.algorithm.torch_rng.manual_seed(1)
    before = {name: value.clone() for name, value in others.items()}
    for seed in range(updates):
        for task in tasks:
            task.learn(rows(seed=seed, discrete=discrete))
    assert not all(torch.equal(before[name], others[name]) for name in others)
    return all(torch.equal(mine[name], others[name]) for name in others)


# ------------------------------------------------------------------------------------------------ identities


def box(**more):
    return MLPActorQ(OBS, ACT, (8,), **more)


IDENTITIES = {
    "CQL": (lambda: CQL(box(), conservative=0.0), lambda: SAC(box()), False),
    "DiscreteCQL": (lambda: DiscreteCQL(MLPQ(OBS, THREE), conservative=0.0), lambda: DQN(MLPQ(OBS, THREE)), True),
    "TD3BC": (lambda: TD3BC(box(policy="deterministic"), bc=0.0), lambda: TD3(box(policy="deterministic"), lr=3e-4), False),
    "DiscreteBCQ": (lambda: DiscreteBCQ(MLPImitationQ(OBS, THREE), threshold=0.0, max_grad_norm=None),
                    lambda: DQN(MLPQ(OBS, THREE), max_grad_norm=None), True),
}
NOVEL = {
    "CQL": lambda: CQL(box(), conservative=0.5, samples=2),
    "DiscreteCQL": lambda: DiscreteCQL(MLPQ(OBS, THREE), conservative=0.5),
    "TD3BC": lambda: TD3BC(box(policy="deterministic")),
    "DiscreteBCQ": lambda: DiscreteBCQ(MLPImitationQ(OBS, THREE), threshold=0.9, max_grad_norm=None),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_without_its_novelty_it_is_the_simpler_one(name):
    first, second, discrete = IDENTITIES[name]
    assert same_after(first, second, discrete) and not same_after(NOVEL[name], second, discrete)


class Undecoded(MLPLatentActorQ):
    """Codes are actions."""

    def decode(self, obs, code):
        return code


def test_a_policy_over_codes_that_are_actions_is_td3():
    def plas():
        return PLAS(Undecoded(OBS, ACT, (8,), latent=2, bound=1.0), behavior_updates=0)

    torch.manual_seed(0)
    one, other = plas(), TD3(box(policy="deterministic"))
    for name in ("body", "head", "critics"):
        getattr(other.model, name).load_state_dict(getattr(one.model, name).state_dict())
    other.target.load_state_dict(other.model.state_dict())
    tasks = [ComputationTask(one, native=False), ComputationTask(other, native=False)]
    for task in tasks:
        task.algorithm.torch_rng.manual_seed(1)
    for seed in range(20):
        for task in tasks:
            task.learn(rows(seed=seed))
    mine = one.model.state_dict()
    assert all(torch.equal(mine[name], value) for name, value in other.model.state_dict().items())


class Cloner(MLPActorQ):
    """The policy as `BC` asks for it."""

    def policy(self, obs, state=None):
        return super().policy(obs), {}


@pytest.mark.parametrize("discrete", [False, True])
def test_crr_without_a_filter_has_the_gradient_of_cloning(discrete):
    """β → ∞, so that every row weighs 1; with a small β it is another one."""
    spaces = OBS, THREE if discrete else ACT, (8,)
    model, cloner = MLPActorQ(*spaces), Cloner(*spaces)
    cloner.load_state_dict(model.state_dict())
    batch = tensors(**rows(32, discrete=discrete))

    def gradient(beta):
        model.zero_grad()
        algorithm = CRR(model, beta=beta)
        steps = algorithm.learn(algorithm.process(Batch(dict(batch.items()))))
        next(steps)
        next(steps)["actor"].backward()
        return [parameter.grad.clone() for parameter in model.actor.parameters()]

    BC(cloner).learn(batch)["loss"].backward()
    cloned = [parameter.grad for parameter in cloner.actor.parameters()]
    assert all(map(torch.equal, gradient(1e30), cloned)) and not any(map(torch.equal, gradient(0.1), cloned))


class OneAction(MLPLatentActorQ):
    """Every code is the same action."""

    def decode(self, obs, code):
        return obs[:, :2].tanh()


class FixedPolicy(MLPActorQ):
    def act(self, obs):
        return obs[:, :2].tanh()


@pytest.mark.parametrize("reach", [0.0, 0.5])
def test_bcq_without_changes_evaluates_what_the_data_s_policy_does(reach):
    """With one action in each state, and nothing added to it, its critics are those of a TD3 whose policy stays."""
    torch.manual_seed(0)
    one = BCQ(OneAction(OBS, ACT, (8,), perturbs=True), reach=reach, samples=3, behavior_updates=0, least=1.0)
    other = TD3(FixedPolicy(OBS, ACT, (8,), policy="deterministic"), smoothing=0.0, delay=1)
    other.losses = {"critic": other.losses["critic"]}
    other.due = lambda loss: False
    other.model.actor.requires_grad_(False)
    other.model.critics.load_state_dict(one.model.critics.state_dict())
    other.target.load_state_dict(other.model.state_dict())
    one.target.load_state_dict(one.model.state_dict())
    tasks = [ComputationTask(each, native=False) for each in (one, other)]
    for seed in range(20):
        for task in tasks:
            task.learn(rows(seed=seed))
    mine, others = one.model.critics.state_dict(), other.model.critics.state_dict()
    assert all(torch.allclose(mine[name], others[name], atol=1e-6) for name in mine) is (reach == 0.0)


def test_marwil_without_beta_and_values_is_cloning():
    torch.manual_seed(0)
    model = MLPActorCritic(OBS, ACT, (8,))
    tasks = [ComputationTask(MARWIL(copy.deepcopy(model), beta=0.0, value_weight=0.0, max_grad_norm=None), native=False),
             ComputationTask(BC(copy.deepcopy(model)), native=False)]
    for seed in range(20):
        for task in tasks:
            task.learn({**rows(seed=seed), "last": np.arange(8) == 7})
    one, other = (task.algorithm.model for task in tasks)
    for name in ("own", "head"):
        for mine, others in zip(getattr(one, name).parameters(), getattr(other, name).parameters(), strict=True):
            torch.testing.assert_close(mine, others, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("tau", "still"), [(0.5, 5 / 3), (0.9, 3.7 / 1.1), (0.1, 0.5 / 1.1)])
def test_the_half_expectile_is_the_mean(tau, still):
    """Of what its actions are worth, 0, 1 and 4: there the loss of IQL's value has no slope with τ = ½, and has one with others,
    which rest where τ · (sum above) = (1 − τ) · (sum below)."""
    for v, rests in ((still, True), (5 / 3, tau == 0.5)):
        algorithm = IQL(Values(v=v), expectile=tau)
        batch = Batch(obs=torch.zeros(3, 3), act=torch.arange(3), worth=torch.tensor([0.0, 1.0, 4.0]), target=torch.zeros(3))
        (slope,) = torch.autograd.grad(next(algorithm.learn(batch))["value"], list(algorithm.model.v.parameters()))
        assert (abs(float(slope)) < 1e-6) == rests


# ------------------------------------------------------------------------------------------------ by hand


class Values(Model):
    """Q_i = q_i in every state, three actions; the policy's and the imitation's logits are log 2, 0, 0; V = v."""

    def __init__(self, q=((0.0, 0.0, 0.0),), v=0.0):
        super().__init__(OBS, THREE)
        self.values = torch.nn.Parameter(torch.tensor(q))
        self.head = CategoricalHead(3, 3)
        with torch.no_grad():
            self.head.linear.weight.zero_()
            self.head.linear.bias.copy_(torch.tensor([math.log(2.0), 0.0, 0.0]))
        self.actor = torch.nn.ModuleList([self.head])
        self.v = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor(v))])

    def policy(self, obs):
        return self.head(torch.zeros(len(obs), 3))

    def q(self, obs):
        return self.values[:, None].expand(-1, len(obs), 3)

    def value(self, obs):
        return self.v[0].expand(len(obs))


class OneValue(Values):
    """As for DQN."""

    def q(self, obs):
        return self.values[0].expand(len(obs), 3)

    def imitation_logits(self, obs):
        return self.policy(obs)["logits"]


def hand_rows(act, rew, terminated):
    n = len(act)
    return {"obs": np.zeros((n, 3), np.float32), "obs_next": np.zeros((n, 3), np.float32), "act": np.array(act),
            "rew": np.array(rew, np.float32), "terminated": np.array(terminated), "truncated": np.zeros(n, bool)}


LOG2 = math.log(2.0)


def test_discrete_cql_by_hand():
    """Q = log 2, 0, 0: log Σ exp Q = log 4. Both rows end, with errors ½ and 0."""
    algorithm = DiscreteCQL(OneValue(((LOG2, 0.0, 0.0),)), conservative=3.0, lr=0.0)
    out = ComputationTask(algorithm).learn(hand_rows([0, 1], [LOG2 + 0.5, 0.0], [True, True]))
    assert out["gap"] == pytest.approx(1.5 * LOG2) and out["loss"] == pytest.approx(0.125 / 2 + 3.0 * 1.5 * LOG2)


def test_discrete_bcq_by_hand():
    """G = ½, ¼, ¼: with threshold 0.6 the first action alone is likely enough, with 0.5 all are. Q = 1, 5, 3."""
    for threshold, best in ((0.6, 1.0), (0.5, 5.0)):
        algorithm = DiscreteBCQ(OneValue(((1.0, 5.0, 3.0),)), threshold=threshold, penalty=0.1, gamma=0.5, lr=0.0)
        task = ComputationTask(algorithm)
        out = task.learn(hand_rows([0, 2], [1.0, 3.0], [False, True]))
        error = 1.0 + 0.5 * best - 1.0  # of the first row
        huber = 0.5 * error**2 if error < 1 else error - 0.5
        cloning = (LOG2 + 2 * LOG2) / 2 + 0.1 * LOG2**2 / 3
        assert out["loss"] == pytest.approx(huber / 2 + cloning)
        assert task.predict({"obs": np.zeros((1, 3), np.float32)})["q"].argmax() == (0 if threshold > 0.5 else 1)


class Line(Model):
    """Q_i(s, a) = c_i a, one number."""

    def __init__(self):
        super().__init__(OBS, gym.spaces.Box(-1, 1, (1,), np.float32))
        self.c = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        self.actor = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(1))])
        self.head = SimpleNamespace(draw=lambda out, noise: (torch.tanh(noise), torch.zeros(len(noise))))

    def policy(self, obs):
        mean = self.actor[0].expand(len(obs), 1)
        return {"mean": mean, "log_std": mean}

    def q(self, obs, act):
        return self.c[:, None] * act[:, 0]


def test_cql_by_hand(monkeypatch):
    """Candidates −1 and 1 of density ½: log ½ (e^c / ½ + e^−c / ½) = log (e^c + e^−c). The rows' a are 0.5 and 1."""
    pair = torch.tensor([-1.0, 1.0]).reshape(2, 1, 1).expand(2, 2, 1)
    monkeypatch.setattr(CQL, "candidates", lambda self, batch: (pair, torch.full((2, 2), -LOG2)))
    algorithm = CQL(Line(), conservative=2.0)
    batch = tensors(obs=np.zeros((2, 3), np.float32), act=np.array([[0.5], [1.0]], np.float32), target=np.zeros(2, np.float32))
    out = algorithm.critic_update(batch)
    soft = sum(math.log(math.exp(c) + math.exp(-c)) - 0.75 * c for c in (1.0, -2.0))
    squares = sum((0.25 + 1.0) / 2 * c**2 for c in (1.0, -2.0))
    assert float(out["gap"]) == pytest.approx(soft) and float(out["critic"].detach()) == pytest.approx(squares + 2.0 * soft)


def test_cql_s_candidates_estimate_the_integral_over_all_actions():
    """Over [−1, 1]² of exp(a_1 + a_2): (e − 1/e)²; with 3 · 8,000 draws within 3 %."""
    torch.manual_seed(0)
    algorithm = CQL(box(), samples=8_000)
    acts, log_density = algorithm.candidates(Batch({name: torch.from_numpy(value) for name, value in rows(1).items()}))
    found = torch.exp(acts.sum(-1) - log_density).mean()
    assert acts.shape == (24_000, 1, 2) and float(found) == pytest.approx((math.e - 1 / math.e) ** 2, rel=0.03)


class Fixed(Model):
    """π(s) = w, Q_i(s, a) = c_i · (s + a), one number each."""

    def __init__(self):
        super().__init__(gym.spaces.Box(-9, 9, (1,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32))
        self.actor = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor([0.5]))])
        self.c = torch.nn.Parameter(torch.tensor([-2.0, 1.0]))

    def act(self, obs):
        return self.actor[0].expand(len(obs), 1)

    def q(self, obs, act):
        return self.c[:, None] * (obs + act)[:, 0]


def test_the_actor_of_td3_bc_by_hand():
    """Q_1(1, 0.5) = −3: λ = 2.5 / 3, and −λ Q = 2.5; π is 0.5 and 1.5 away from the rows' actions."""
    task = ComputationTask(TD3BC(Fixed(), delay=1, lr=0.0, bc=2.0))
    out = task.learn({"obs": np.ones((2, 1), np.float32), "obs_next": np.ones((2, 1), np.float32),
                      "act": np.array([[0.0], [-1.0]], np.float32), "rew": np.zeros(2, np.float32),
                      "terminated": np.ones(2, bool), "truncated": np.zeros(2, bool)})
    assert out["cloning"] == pytest.approx(1.25) and out["actor"] == pytest.approx(2.5 + 2.0 * 1.25)


def test_iql_by_hand():
    """Q = (1, 3, 0) and (2, 2, 2), V = 1.5: least values of the rows' actions 0 and 1 are 1 and 2, so u = −½ and ½. The first
    row ends; the second's y = 1 + ½ · 1.5."""
    algorithm = IQL(Values(((1.0, 3.0, 0.0), (2.0, 2.0, 2.0)), 1.5), expectile=0.9, beta=2.0, gamma=0.5, lr=0.0)
    out = ComputationTask(algorithm).learn(hand_rows([0, 1], [2.0, 1.0], [True, False]))
    assert out["value"] == pytest.approx((0.1 * 0.25 + 0.9 * 0.25) / 2)
    assert out["critic"] == pytest.approx((1 + (3 - 1.75) ** 2) / 2 + (0 + (2 - 1.75) ** 2) / 2)
    assert out["actor"] == pytest.approx((math.exp(-1.0) * LOG2 + math.exp(1.0) * 2 * LOG2) / 2)
    capped = IQL(Values(((1.0, 3.0, 0.0), (2.0, 2.0, 2.0)), 1.5), beta=2.0, weight_max=1.5, lr=0.0)
    out = ComputationTask(capped).learn(hand_rows([0, 1], [2.0, 1.0], [True, False]))
    assert out["actor"] == pytest.approx((math.exp(-1.0) * LOG2 + 1.5 * 2 * LOG2) / 2)


@pytest.mark.parametrize("kind", ["exp", "binary"])
def test_crr_by_hand(kind):
    """π = ½, ¼, ¼; the least values are 1, 2, 0: E = 1. Of the rows' actions 0, 1, 2 A = 0, 1, −1. The first row's y is 2 + ½."""
    algorithm = CRR(Values(((1.0, 3.0, 0.0), (2.0, 2.0, 2.0))), weight=kind, beta=0.5, weight_max=5.0, gamma=0.5, lr=0.0)
    out = ComputationTask(algorithm).learn(hand_rows([0, 1, 2], [2.0, 1.0, 0.0], [False, True, True]))
    weights = (1.0, 5.0, math.exp(-2.0)) if kind == "exp" else (0.0, 1.0, 0.0)
    assert out["actor"] == pytest.approx(np.dot(weights, [LOG2, 2 * LOG2, 2 * LOG2]) / 3)
    assert out["critic"] == pytest.approx((1.5**2 + 2**2 + 0) / 3 + (0.5**2 + 1 + 4) / 3)


class Clone(Model):
    """As `Values`, for on-policy rows."""

    def __init__(self):
        super().__init__(OBS, THREE)
        self.inner = Values(v=0.5)
        self.head = self.inner.head

    def policy(self, obs, state=None):
        return self.inner.policy(obs), {}

    def value(self, obs, state=None):
        return self.inner.value(obs)

    def evaluate(self, obs, state=None, first=None):
        return self.inner.policy(obs), self.inner.value(obs)


def test_marwil_by_hand():
    """V = ½, γ = ½: the second row ends with reward 2, G = 2 and 0 + ½ · 2 = 1; A = ½ and 1½; c² = 1 + ½ (1.25 − 1)."""
    algorithm = MARWIL(Clone(), beta=2.0, rate=0.5, gamma=0.5, weight_max=10.0, value_weight=3.0, lr=0.0)
    out = ComputationTask(algorithm).learn({**hand_rows([0, 1], [0.0, 2.0], [False, True]), "last": np.array([False, True])})
    c = math.sqrt(1.125)
    weights = [math.exp(1.0 / c), min(math.exp(3.0 / c), 10.0)]
    assert out["policy_loss"] == pytest.approx(np.dot(weights, [LOG2, 2 * LOG2]) / 2, rel=1e-5)
    assert out["value_loss"] == pytest.approx((0.25 + 2.25) / 2) and float(algorithm.square) == pytest.approx(1.125)
    assert out["loss"] == pytest.approx(out["policy_loss"] + 3.0 * out["value_loss"], rel=1e-5)


def test_the_autoencoder_s_loss_by_hand(monkeypatch):
    """Codes N(1, ½²) of two numbers: KL / 2 numbers = ½ (1 + ¼ − 1 + 2 log 2); the decoder gives out 0."""
    algorithm = PLAS(MLPLatentActorQ(OBS, ACT, (8,), latent=2))
    monkeypatch.setattr(MLPLatentActorQ, "encode", lambda self, obs, act: (torch.ones(2, 2), torch.full((2, 2), -LOG2)))
    monkeypatch.setattr(MLPLatentActorQ, "decode", lambda self, obs, code: torch.zeros(2, 2))
    loss = algorithm.behavior_loss(tensors(obs=np.zeros((2, 3), np.float32), act=np.array([[1, 0], [1, -1]], np.float32)))
    assert float(loss) == pytest.approx(1.5 + 0.5 * 0.5 * (0.25 + 2 * LOG2))


def test_bcq_s_targets_are_those_of_the_best_candidate(monkeypatch):
    """Q_i = −2 (s + a) and s + a. Candidates 0 and 0.5, s' = 1: ¾ min + ¼ max = ¾ · −2 + ¼ · 1 and ¾ · −3 + ¼ · 1.5."""
    model = MLPLatentActorQ(gym.spaces.Box(-9, 9, (1,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32), (4,), perturbs=True)
    algorithm = BCQ(model, samples=2)
    acts = iter([torch.zeros(1, 1), torch.full((1, 1), 0.5)])
    monkeypatch.setattr(BCQ, "candidate", lambda self, network, obs, n: next(acts))
    algorithm.target = Fixed()
    with torch.no_grad():
        found = float(algorithm.value_next(torch.ones(1, 1)))
    assert found == pytest.approx(max(-1.5 + 0.25, -2.25 + 0.375))


# ------------------------------------------------------------------------------------------------ they learn


class Pick(gym.Env):
    """An episode is one step: −Σ|a − s|, or 1 for the choice whose number is the largest."""

    def __init__(self, act):
        self.observation_space, self.action_space = OBS, act

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.obs = self.np_random.uniform(-0.8, 0.8, 3).astype(np.float32)
        return self.obs, {}

    def step(self, act):
        return self.obs, reward(self.obs[None], np.asarray(act)[None])[0], True, False, {}


def reward(obs, act):
    return (obs.argmax(1) == act).astype(float) if act.ndim == 1 else -np.abs(act - obs[:, :2]).sum(1)


@pytest.fixture(scope="module")
def data():
    """1,000 rows of random actions, of each kind."""
    rng = np.random.default_rng(0)
    obs = rng.uniform(-0.8, 0.8, (1000, 3)).astype(np.float32)
    acts = {"box": rng.uniform(-1, 1, (1000, 2)).astype(np.float32), "discrete": rng.integers(3, size=1000)}
    return {kind: from_arrays(obs=obs, act=act, rew=reward(obs, act), terminated=np.ones(1000, bool), obs_next=obs,
                              action_space=THREE if kind == "discrete" else ACT) for kind, act in acts.items()}


LEARNERS = {
    "DiscreteCQL": (DiscreteCQL, MLPQ, {}, dict(conservative=0.1)), "DiscreteBCQ": (DiscreteBCQ, MLPImitationQ, {}, {}),
    "CQL": (CQL, MLPActorQ, {}, dict(conservative=0.1, samples=2, alpha=0.1)),
    "TD3BC": (TD3BC, MLPActorQ, dict(policy="deterministic"), dict(bc=0.1)),
    "IQL": (IQL, MLPActorQ, dict(value=True), dict(beta=10.0)),
    "discrete IQL": (IQL, MLPActorQ, dict(value=True), dict(beta=10.0)),
    "CRR": (CRR, MLPActorQ, {}, dict(beta=0.1)), "discrete CRR": (CRR, MLPActorQ, {}, dict(beta=0.1)),
    "MARWIL": (MARWIL, MLPActorCritic, {}, dict(beta=3.0)), "discrete MARWIL": (MARWIL, MLPActorCritic, {}, dict(beta=3.0)),
    "PLAS": (PLAS, MLPLatentActorQ, {}, dict(behavior_updates=100)),
    "BCQ": (BCQ, MLPLatentActorQ, dict(perturbs=True), dict(behavior_updates=100, samples=2, reach=0.2)),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_it_learns_what_is_good_from_random_actions(name, data):
    """Cloning would do as well as chance: −1.4 for the boxes, and one in three."""
    algorithm, model, network, options = LEARNERS[name]
    discrete = name.startswith(("discrete", "Discrete"))
    spaces = dict(obs=OBS, act=THREE if discrete else ACT, hidden=(32,), **network)
    func = create_algorithm_func(model, spaces, algorithm, {"lr": 5e-3, **options})
    recorded = data["discrete" if discrete else "box"]
    with Robot(tasks={"RL": ComputationTask(func, lambda: OfflineHelper(recorded, batch_size=64))}, seed=0) as robot:
        robot.run(300)
        assert robot.tasks["RL"].learns == 300 and not robot.tasks["RL"].skipped
        score = robot.evaluate(100, env=lambda: Pick(spaces["act"]), seed=1).mean_return
    assert score > (0.7 if discrete else -0.7), score


@pytest.mark.parametrize(("make", "message"), [
    (lambda: CQL(box(), conservative=-1.0), "CQL: conservative is -1.0"), (lambda: CQL(box(), samples=0), "samples is 0"),
    (lambda: TD3BC(box(policy="deterministic"), alpha=0.0), "TD3BC: alpha is 0.0"),
    (lambda: IQL(box(value=True), expectile=1.0), "IQL: expectile is 1.0"),
    (lambda: CRR(box(), weight="max"), "CRR: weight is 'max'"), (lambda: CRR(box(), beta=0.0), "CRR: beta is 0.0"),
    (lambda: DiscreteBCQ(MLPImitationQ(OBS, THREE), threshold=2.0), "threshold is 2.0"),
    (lambda: PLAS(MLPLatentActorQ(OBS, ACT), least=2.0), "PLAS: least is 2.0"),
    (lambda: MARWIL(MLPActorCritic(OBS, ACT), rate=2.0), "MARWIL: rate is 2.0"),
])
def test_settings_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
