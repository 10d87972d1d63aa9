"""DDPG, TD3 and SAC: losses by hand, which parameters each moves, the squashed Gaussian, exploration, that they learn, and that
they do so beside another task on the same encoder, under every driver."""

import copy
import math
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from masked_pick import Pick

from parl_like import ComputationTask, OffPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import DDPG, MPO, OAC, QRSAC, REDQ, SAC, TD3, TQC, CrossQ, DroQ
from parl_like.algorithms.dynamics import DynamicsLearner
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.learning._written import least
from parl_like.learning.explorers import Noisy, SquashedGaussian
from parl_like.learning.factory import Shared
from parl_like.learning.model import Model
from parl_like.models import MLPActorQ, MLPCrossQ, SquashedGaussianHead
from parl_like.models.dynamics import Dynamics, Trunk
from parl_like.values.batch import Batch
from parl_like.values.batch_leaf import same

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACT = gym.spaces.Box(-1, 1, (2,), np.float32)


class Plain(Model):
    """π(s) = w, Q_i(s, a) = c_i · (s + a), one number each."""

    def __init__(self, critics=2):
        super().__init__(gym.spaces.Box(-9, 9, (1,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32))
        self.actor = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor([0.5]))])
        self.c = torch.nn.Parameter(torch.tensor([1.0, 2.0])[:critics])

    def act(self, obs):
        return self.actor[0].expand(len(obs), 1)

    def q(self, obs, act):
        return self.c[:, None] * (obs + act)[:, 0]


def rows(n=4, seed=0, dim=2, **more):
    rng = np.random.default_rng(seed)
    return {"obs": rng.normal(size=(n, 3)).astype(np.float32), "obs_next": rng.normal(size=(n, 3)).astype(np.float32),
            "act": rng.uniform(-1, 1, (n, dim)).astype(np.float32), "rew": rng.normal(size=n).astype(np.float32),
            "terminated": np.arange(n) % 3 == 0, "truncated": np.zeros(n, bool), **more}


def hand_rows():
    one = np.ones((2, 1), np.float32)
    return {"obs": one, "obs_next": 2 * one, "act": 0 * one, "rew": np.array([1.0, 3.0], np.float32),
            "terminated": np.array([False, True]), "truncated": np.array([False, False])}


def test_the_losses_of_td3_worked_out_by_hand():
    """π⁻(s') = 0.5, min_i Q⁻_i(2, 0.5) = 2.5: y = 1 + 0.5 · 2.5 = 2.25 and, at the end, 3. Q(1, 0) = 1 and 2."""
    algorithm = TD3(Plain, gamma=0.5, smoothing=0.0, delay=1, lr=0.0, tau=0.25)
    task = ComputationTask(algorithm)
    out = task.learn(hand_rows())
    errors = np.array([[1 - 2.25, 1 - 3], [2 - 2.25, 2 - 3]])
    assert out["critic"] == pytest.approx((errors**2).mean(1).sum())
    np.testing.assert_allclose(out["priority"], [1.25, 2.0])
    assert out["actor"] == pytest.approx(-1.5)  # Q_1(1, 0.5)


def test_td3_bootstraps_from_the_copies_and_its_actor_goes_by_the_first_critic():
    """Copies: π⁻ = 0.25, c⁻ = 3, 2: y = 1 + 0.5 · 2 · 2.25 = 3.25. The network: Q_1(1, 0.5) = 3, Q_2 is 1.5."""
    algorithm = TD3(Plain, gamma=0.5, smoothing=0.0, delay=1, lr=0.0)
    algorithm.model.c.data = torch.tensor([2.0, 1.0])
    algorithm.target.c.data, algorithm.target.actor[0].data = torch.tensor([3.0, 2.0]), torch.tensor([0.25])
    out = ComputationTask(algorithm).learn(hand_rows())
    errors = np.array([[2 - 3.25, 2 - 3], [1 - 3.25, 1 - 3]])
    assert out["critic"] == pytest.approx((errors**2).mean(1).sum()) and out["actor"] == pytest.approx(-3.0)
    np.testing.assert_allclose(out["priority"], [2.25, 2.0])


def test_the_targets_action_is_smoothed_within_bounds():
    algorithm = TD3(Plain, gamma=1.0, smoothing=10.0, smoothing_clip=0.25)
    batch = Batch({name: torch.from_numpy(np.repeat(value, 500, 0)) for name, value in hand_rows().items()})
    batch.terminated[:] = False
    algorithm.model.requires_grad_(False)
    algorithm.target.requires_grad_(False)
    noise = algorithm.process(batch).target - batch.rew - 2.5  # Q_1 = 2 + 0.5 + ε, the smaller one
    assert noise.abs().max() == pytest.approx(0.25, abs=1e-6) and len(noise.unique()) > 2 and abs(float(noise.mean())) < 0.05
    algorithm.smoothing_clip = 10.0
    assert (algorithm.process(batch).target - batch.rew).max() <= 3.0 + 1e-6  # actions end at 1


def test_the_actor_learns_every_second_time_and_the_targets_follow_then():
    task = ComputationTask(TD3(Plain, lr=0.1, tau=0.5))
    c, w = task.algorithm.model.c.tolist(), task.algorithm.model.actor[0].item()
    task.learn(hand_rows())
    assert task.algorithm.model.actor[0].item() == w and task.algorithm.target.c.tolist() == c != task.algorithm.model.c.tolist()
    task.learn(hand_rows())
    assert task.algorithm.model.actor[0].item() > w
    np.testing.assert_allclose(task.algorithm.target.c.detach(), (torch.tensor(c) + task.algorithm.model.c.detach()) / 2)


def test_td3_without_its_novelties_is_ddpg():
    torch.manual_seed(0)
    model = MLPActorQ(OBS, ACT, (8,), critics=1, policy="deterministic")
    tasks = [ComputationTask(TD3(copy.deepcopy(model), delay=1, smoothing=0.0)), ComputationTask(DDPG(copy.deepcopy(model)))]
    for seed in range(20):
        for task in tasks:
            task.learn(rows(seed=seed))
    assert len({task.algorithm.model.weights_hash() for task in tasks}) == 1 != tasks[0].algorithm.model.weights_hash()


@pytest.mark.parametrize("make", [
    lambda: TD3(MLPActorQ(OBS, ACT, (8,), policy="deterministic"), delay=1), lambda: SAC(MLPActorQ(OBS, ACT, (8,))),
    lambda: SAC(MLPActorQ(OBS, gym.spaces.Discrete(3), (8,))), lambda: MPO(MLPActorQ(OBS, ACT, (8,)), n_step=1),
])  # fmt: skip
def test_each_loss_moves_its_own_parameters_only(make, monkeypatch):
    task = ComputationTask(make())
    model, moved = task.algorithm.model, {}
    for name, stepper in task.learned.optimization.steppers.items():
        def step(updates, name=name, plain=stepper.step):
            before = {key: value.clone() for key, value in model.state_dict().items()}
            plain(updates)
            moved[name] = {key.split(".")[0] for key, value in model.state_dict().items() if not torch.equal(before[key], value)}
        monkeypatch.setattr(stepper, "step", step)
    discrete = isinstance(model.act_space, gym.spaces.Discrete)
    task.learn(rows(act=np.array([0, 2, 1, 0])) if discrete else rows())
    assert moved.pop("critic") == {"critics"}
    assert moved.pop("actor") == {"actor", "body", "head"}
    assert all(not names for names in moved.values())


def test_sac_on_discrete_actions_worked_out_by_hand():
    """π = ½, ¼, ¼ everywhere, min Q = 0, 4, 8 everywhere: V = 3 − α Σ π log π = 3 + 1.5 α log 2."""

    class Table(Model):
        def __init__(self):
            super().__init__(OBS, gym.spaces.Discrete(3))
            self.actor = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor([math.log(2.0), 0.0, 0.0]))])
            self.values = torch.nn.Parameter(torch.tensor([[0.0, 4.0, 9.0], [1.0, 5.0, 8.0]]))
            self.head = SimpleNamespace(log_probs=lambda out: torch.log_softmax(out["logits"], -1))

        def policy(self, obs):
            return {"logits": self.actor[0].expand(len(obs), -1)}

        def log_probs(self, out):
            return torch.log_softmax(out["logits"], -1)

        def q(self, obs):
            return self.values[:, None].expand(-1, len(obs), -1)

    algorithm = SAC(Table, gamma=0.5, alpha=2.0, lr=0.0)
    task = ComputationTask(algorithm)
    batch = rows(2, act=np.array([0, 2]))
    out = task.learn(batch)
    value = 3 + 1.5 * 2 * math.log(2)
    target = batch["rew"] + 0.5 * np.array([0, 1]) * value
    errors = np.array([[0, 9], [1, 8]]) - target
    assert out["critic"] == pytest.approx((errors**2).mean(1).sum(), rel=1e-5)
    np.testing.assert_allclose(out["priority"], np.abs(errors).max(0), rtol=1e-5)
    assert out["actor"] == pytest.approx(-value, rel=1e-5) and out["entropy"] == pytest.approx(1.5 * math.log(2))
    assert out["temperature"] == pytest.approx(-math.log(2) * (0.98 * math.log(3) - 1.5 * math.log(2)), rel=1e-4)


def test_the_temperature_falls_where_there_is_more_entropy_than_wanted():
    for target, sign in ((-5.0, -1), (5.0, 1)):
        task = ComputationTask(SAC(MLPActorQ(OBS, ACT, (8,)), target_entropy=target))
        for _ in range(3):
            task.learn(rows())
        assert np.sign(task.algorithm.log_alpha.item()) == sign
    fixed = ComputationTask(SAC(MLPActorQ(OBS, ACT, (8,)), alpha=0.25, learn_alpha=False))
    assert "temperature" not in fixed.learn(rows()) and fixed.algorithm.log_alpha.exp().item() == pytest.approx(0.25)


def test_the_entropy_that_is_wanted_is_that_of_the_legal_actions():
    """One, two, and, where none is legal, all three of the actions: 0.98 · (log 2 + log 3) / 3 on average. A policy that is even
    has more, so α falls; before, it rose for ever where masks leave less entropy than 0.98 log 3."""
    obs = gym.spaces.Dict(mask=gym.spaces.MultiBinary(3), x=OBS)
    mask = np.array([[0, 1, 0], [1, 0, 1], [0, 0, 0]], np.int8)
    plain = rows(3, act=np.array([1, 0, 2]))
    given = {f"{name}.x": plain.pop(name) for name in ("obs", "obs_next")} | {"obs.mask": mask, "obs_next.mask": mask} | plain
    model = MLPActorQ(obs, gym.spaces.Discrete(3), (8,))
    for parameter in model.head.parameters():
        parameter.data.zero_()
    told = ComputationTask(SAC(copy.deepcopy(model), alpha=2.0, lr=0.0)).learn(given)
    even = (math.log(2) + math.log(3)) / 3
    assert told["entropy"] == pytest.approx(even, rel=1e-5)
    assert told["temperature"] == pytest.approx(-math.log(2) * (0.98 - 1) * even, rel=1e-3)
    told = ComputationTask(SAC(copy.deepcopy(model), alpha=2.0, lr=0.0, target_entropy=0.5)).learn(given)
    assert told["temperature"] == pytest.approx(-math.log(2) * (0.5 - even), rel=1e-3)


def test_the_squashed_density_integrates_to_one_and_is_that_of_its_draws():
    head, out = SquashedGaussianHead(2, 1), {"mean": torch.tensor([[0.7]]), "log_std": torch.tensor([[-0.3]])}
    act = torch.linspace(-1 + 1e-6, 1 - 1e-6, 200_001, dtype=torch.float64)[:, None]
    wide = {name: value.double() for name, value in out.items()}
    density = head.log_prob({name: value.expand(len(act), 1) for name, value in wide.items()}, act).exp()
    assert float(torch.trapezoid(density, act[:, 0])) == pytest.approx(1.0, abs=1e-4)
    drawn, log_prob = head.draw({name: value.expand(50, 1) for name, value in out.items()}, torch.linspace(-2, 2, 50)[:, None])
    torch.testing.assert_close(head.log_prob({name: value.expand(50, 1) for name, value in out.items()}, drawn), log_prob,
                               rtol=1e-3, atol=1e-3)


def test_the_squashed_density_has_numbers_at_the_borders():
    head, out = SquashedGaussianHead(2, 1), {"mean": torch.tensor([[40.0], [-40.0]]), "log_std": torch.zeros(2, 1)}
    act, log_prob = head.draw(out, torch.zeros(2, 1))
    assert act.tolist() == [[1.0], [-1.0]] and log_prob.tolist() == pytest.approx([78.6137 - 0.9189 * 1] * 2, abs=0.01)
    assert torch.isfinite(head.log_prob(out, act)).all()


def test_explorers():
    out = {"mean": np.array([[0.5], [-3.0]], np.float32), "log_std": np.full((2, 1), -1.0, np.float32)}
    noise = np.array([[0.3], [-0.4]], np.float32)
    squashed = SquashedGaussian(1, log_prob=True).act(out, noise)
    act, log_prob = SquashedGaussianHead(2, 1).draw({key: torch.from_numpy(value) for key, value in out.items()},
                                                    torch.from_numpy(noise))
    np.testing.assert_allclose(squashed["act"], act, rtol=1e-6)
    np.testing.assert_allclose(squashed["log_prob"], log_prob, rtol=1e-5)
    noisy = Noisy(1, lambda step: 0.1 * step)
    assert noisy.act(out, noise)["act"].tolist() == [[pytest.approx(0.8)], [-1.0]]
    drawn = [noisy.draw(np.random.default_rng(0), step, 2) for step in (0, 1)]
    np.testing.assert_allclose(drawn[1] / drawn[0], [[2.0], [1.5]], rtol=1e-5)
    assert noisy.greedy() == 0


class Aim(gym.Env):
    """The reward falls with the distance of the action from what is shown; bounds of their own in each number."""

    observation_space = gym.spaces.Dict({"aim": gym.spaces.Box(-1, 1, (2,), np.float32), "kind": gym.spaces.Discrete(2)})
    action_space = gym.spaces.Box(np.array([[-2.0], [0.0]], np.float32), np.array([[2.0], [1.0]], np.float32))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.aim = 0, self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"aim": self.aim, "kind": 0}, {}

    def step(self, act):
        assert self.action_space.contains(act)
        wanted = np.array([[2 * self.aim[0]], [(1 + self.aim[1]) / 2]])
        rew = -float(np.abs(act - wanted).sum())
        self.steps, self.aim = self.steps + 1, self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"aim": self.aim, "kind": 0}, rew, False, self.steps == 20, {}


@pytest.mark.parametrize("tau", [-0.1, 1.1, float("nan")])
@pytest.mark.parametrize(("algorithm", "policy"), [(TD3, "deterministic"), (SAC, "squashed")])
def test_the_share_of_a_soft_target_is_checked_when_it_is_built(algorithm, policy, tau):
    with pytest.raises(ValueError, match=rf"{algorithm.__name__}: tau is {tau}; expected a number in \[0, 1\]"):
        algorithm(MLPActorQ(OBS, ACT, (8,), policy=policy), tau=tau)


@pytest.mark.parametrize(("algorithm", "policy"), [(TD3, "deterministic"), (SAC, "squashed")])
def test_they_learn_actions_of_any_shape_and_bounds(algorithm, policy):
    func = create_algorithm_func(MLPActorQ, dict(obs=Aim.observation_space, act=Aim.action_space, hidden=(32, 32), policy=policy),
                                 algorithm, dict(lr=3e-3, gamma=0.0))
    task = ComputationTask(func, lambda: OffPolicyHelper(size=5_000, batch_size=64, learn_every=2, warmup=64))
    with Robot(Aim, tasks={"RL": task}, n_agents=2, seed=0) as robot:
        before = robot.evaluate(5, seed=1).mean_return
        for _ in robot.iterate(1_000):
            pass
        after = robot.evaluate(5, seed=1).mean_return
    assert before < -20 and after > -4, (before, after)


@pytest.mark.parametrize("make", [
    lambda: TD3(MLPActorQ(OBS, ACT, (8,), policy="deterministic")), lambda: SAC(MLPActorQ(OBS, ACT, (8,))),
    lambda: MPO(MLPActorQ(OBS, ACT, (8,)), n_step=1, target_period=2),
])  # fmt: skip
def test_a_checkpoint_holds_all_of_them(make):
    """Targets, every optimiser, the temperature and the generator: the same updates lead to the same numbers, bit for bit."""
    task, other = ComputationTask(make()), ComputationTask(make())
    for seed in range(3):
        task.learn(rows(seed=seed))
    other.load_state_dict(task.state_dict())
    told = [[one.learn(rows(seed=seed)) for seed in range(3, 6)] for one in (task, other)]
    assert all(same(*pair) for pair in zip(*told, strict=True))
    assert same(task.state_dict(), other.state_dict())


# ------------------------------------------------------------------------------------------- beside another task, everywhere


MEMBERS = {
    "SAC": (Aim, SAC, {}), "discrete SAC": (Pick, SAC, {}), "TD3": (Aim, TD3, {"policy": "deterministic"}),
    "DDPG": (Aim, DDPG, {"policy": "deterministic", "critics": 1}), "MPO": (Aim, MPO, {}), "discrete MPO": (Pick, MPO, {}),
    "REDQ": (Aim, REDQ, {"critics": 3}), "discrete REDQ": (Pick, REDQ, {"critics": 3}),
    "DroQ": (Aim, DroQ, {"dropout": 0.1, "layer_norm": True}),
    "TQC": (Aim, TQC, {"heads": 5}), "QRSAC": (Aim, QRSAC, {"heads": 5}), "OAC": (Aim, OAC, {}),
    "CrossQ": (Aim, CrossQ, {"critic_hidden": (16,)}), "discrete CrossQ": (Pick, CrossQ, {"critic_hidden": (16,)}),
}
"""Name → environment with observations of several arrays, algorithm, and what its network is."""


@pytest.mark.parametrize("n_step", [1, 2])
@pytest.mark.parametrize("name", MEMBERS)
def test_a_time_limit_is_no_end_to_what_follows(name, n_step):
    """All critics and their copies say 4, γ = ½, the reward is 1: y = 1 + ½ · 4 = 3 whether the episode is cut there or not, and
    1 where it terminates, also at its limit. Of two steps there is only one."""
    env, algorithm, network = MEMBERS[name]
    act = ACT if env is Aim else env.action_space
    model = (MLPCrossQ if algorithm is CrossQ else MLPActorQ)(OBS, act, (8,), **network)
    for key, parameter in model.critics.named_parameters():
        parameter.data.fill_(4.0 if key == "bias1" else 0.0)
    options = {"alpha": 1e-9, "learn_alpha": False} if issubclass(algorithm, SAC) else {}
    task = ComputationTask(algorithm(model, gamma=0.5, n_step=n_step, **options))
    ends = np.array([[False, False], [False, True], [True, False], [True, True]])
    given = rows(rew=np.ones(4, np.float32), terminated=ends[:, 0], truncated=ends[:, 1])
    if n_step == 2:
        given |= {"rew": np.tile(np.array([1, 0], np.float32), (4, 1)), "valid": np.ones(4, np.int64)}
    told = task.learn(given if act is ACT else given | {"act": np.arange(4) % 3})
    np.testing.assert_allclose(told["priority"], [4 - 3, 4 - 3, 4 - 1, 4 - 1], atol=1e-5)


def beside(name, **options):
    """A robot with a member, and a task that learns what the environment does, on one encoder."""
    env, algorithm, network = MEMBERS[name]
    spaces = dict(obs=env.observation_space, act=env.action_space, trunk=Shared(Trunk, env.observation_space, (8,)), hidden=(8,))
    serve = options.pop("serve", "central")
    tasks = {task: ComputationTask(
        create_algorithm_func(model, {**spaces, **more}, learner, dict(lr=0.01)),
        lambda every=every: OffPolicyHelper(size=500, batch_size=16, learn_every=every), serve=serve)
        for task, model, learner, more, every in (
            ("RL", MLPCrossQ if algorithm is CrossQ else MLPActorQ, algorithm, network, 4),
            ("dynamics", Dynamics, DynamicsLearner, {}, 8))}
    return Robot(env, tasks=tasks, n_agents=2, seed=0, trace=True, **options)


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
PLACES = [("cooperative", "central"), ("processes", "replica")]
OTHERS = [("threads", "central"), ("processes", "central")]


def everywhere(places):
    """Each member in each of the places; of those that differ from SAC in formulas alone, most are slow tests."""
    plain, quick = ("SAC", "TD3"), ("discrete SAC", "DDPG", "DroQ", "TQC", "CrossQ", "OAC", "MPO")
    return [pytest.param(name, driver, serve, marks=[LINUX] * (driver == "processes") + [pytest.mark.slow] * (
        name not in plain and (driver != "cooperative" or name not in quick))) for driver, serve in places for name in MEMBERS]


@pytest.mark.parametrize(("name", "driver", "serve"), everywhere(OTHERS + PLACES[1:]))
def test_they_share_an_encoder_with_another_task_under_every_driver(name, driver, serve):
    with beside(name, driver=Processes(workers=2) if driver == "processes" else driver, serve=serve) as robot:
        tasks = robot.tasks
        encoder = tasks["RL"].algorithm.model.perception
        assert encoder is tasks["dynamics"].algorithm.model.trunk
        before = [parameter.clone() for parameter in encoder.parameters()]
        robot.run(StopAfterSteps(160))
        updates = [task.algorithm.updates for task in tasks.values()]
        assert updates[0] > updates[1] > 5 and {task.version for task in tasks.values()} == {sum(updates)}
        assert not any(torch.equal(*pair) for pair in zip(before, encoder.parameters(), strict=True))
        assert np.isfinite(robot.evaluate(2, seed=1).mean_return)


@pytest.mark.parametrize(("name", "driver", "serve"), everywhere(PLACES))
def test_a_resumed_run_is_the_one_that_was_not_interrupted(name, driver, serve, tmp_path):
    def robot():
        return beside(name, driver=Processes(workers=1) if driver == "processes" else driver, serve=serve)

    with robot() as whole, robot() as part:
        encoder = whole.tasks["RL"].algorithm.model.perception
        assert encoder is whole.tasks["dynamics"].algorithm.model.trunk
        whole.run(StopAfterSteps(100))
        whole.save(tmp_path / "state")
        part.load(tmp_path / "state")
        for one in (whole, part):
            one.run(StopAfterSteps(100))
        assert whole.trace_hash() == part.trace_hash() and whole.counters() == part.counters()
        assert whole.tasks["RL"].algorithm.updates > 20
        assert same(*({name: task.state_dict() for name, task in one.tasks.items()} for one in (whole, part)))


@pytest.mark.parametrize("critics", [1, 2, 3])
def test_the_least_of_critics_and_its_gradient_are_those_of_autograd_where_some_are_equal_or_no_number(critics):
    torch.manual_seed(0)
    q = torch.randint(0, 3, (critics, 50, 1)).float()
    q[torch.rand(q.shape) < 0.1], q[torch.rand(q.shape) < 0.1], q[torch.rand(q.shape) < 0.1] = torch.nan, torch.inf, -torch.inf
    expected = q.requires_grad_().amin(0)
    (3.0 * expected.sum()).backward()
    low, gradients = least([*q.detach().numpy()], 3.0)
    np.testing.assert_array_equal(low, expected.detach().numpy()[:, 0])
    np.testing.assert_allclose(np.stack(gradients), q.grad.numpy(), rtol=1e-6)
    assert least([*q.detach().numpy()], 0.0)[1] == []
    with pytest.raises(ValueError, match="expected 50 × 1"):
        least([q[0].detach().numpy(), np.zeros((7, 1), np.float32)], 1.0)
