"""MPO and V-MPO: the duals by hand, the losses by hand, what they are without their novelties, and that V-MPO runs where the
others do; test_off_policy_actors.py says so of MPO."""

import copy
import math
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from wander import OBS, TWO, Wander

from parl_like import ComputationTask, OnPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import BC, MPO, SAC, VMPO
from parl_like.algorithms.mpo import kl_penalty, one_by_one, reweighted
from parl_like.drivers.workers.processes import Processes
from parl_like.learning.model import Model
from parl_like.learning.model_check import ContractError
from parl_like.models import MLPActorCritic, MLPActorQ, RecurrentActorCritic
from parl_like.models.heads import GaussianHead
from parl_like.values.batch import Batch

BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
MASKED = gym.spaces.Dict({"x": OBS, "mask": gym.spaces.MultiBinary(2)})


def rows(n=32, seed=0, act=TWO, obs=OBS, **fields):
    rng = np.random.default_rng(seed)
    seen, after = rng.uniform(-1, 1, (2, n, 3)).astype(np.float32)
    acts = np.zeros(n, np.int64) if obs is MASKED else rng.integers(2, size=n) if act is TWO else rng.uniform(-1, 1, (n, 2))
    last = np.arange(n) % 8 == 7
    made = {"act": acts if act is TWO else acts.astype(np.float32), "rew": rng.normal(size=n), "terminated": last,
            "truncated": np.zeros(n, bool), "last": last}
    mask = np.tile(np.array([1, 0], np.int8), (n, 1))
    views = {"obs": seen, "obs_next": after}
    if obs is MASKED:
        views = {f"{name}.{part}": value for name, x in views.items() for part, value in (("x", x), ("mask", mask))}
    return made | views | fields


def task_of(model=None, kind=VMPO, **options):
    torch.manual_seed(0)
    task = ComputationTask(kind(model or MLPActorCritic(OBS, TWO, hidden=[8]), **options))
    task.build()
    return task


# --------------------------------------------------------------------------------------------------------------------- duals


def test_weights_and_the_loss_of_the_temperature_by_hand():
    """x = 0, ln 3 and η = 1: ψ = ¼, ¾, g = ε + ln ((1 + 3) / 2). dg / d log η = η (ε − KL(ψ ‖ ½, ½)) = 0.1 − 0.130812. With p =
    ¾, ¼: ψ = ½, ½ and g = ε + ln 1.5. η = 2 halves the exponents."""
    x, log_eta = torch.tensor([0.0, math.log(3.0)]), torch.zeros((), requires_grad=True)
    weights, loss = reweighted(x, log_eta, 0.1)
    assert weights.tolist() == pytest.approx([0.25, 0.75]) and loss.item() == pytest.approx(0.1 + math.log(2.0))
    loss.backward()
    assert log_eta.grad.item() == pytest.approx(0.1 - 0.130812, abs=1e-6)
    weights, loss = reweighted(x, log_eta, 0.1, torch.tensor([0.75, 0.25]).log())
    assert weights.tolist() == pytest.approx([0.5, 0.5]) and loss.item() == pytest.approx(0.1 + math.log(1.5))
    weights, loss = reweighted(2 * x.expand(3, 2), log_eta.detach() + math.log(2.0), 0.1)
    assert weights.tolist() == [pytest.approx([0.25, 0.75])] * 3 and loss.item() == pytest.approx(2 * (0.1 + math.log(2.0)))


def test_the_temperature_ends_where_the_weights_diverge_as_far_as_they_may():
    x, log_eta = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 8))).float(), torch.nn.Parameter(torch.tensor(1.0))
    log_p = torch.log_softmax(torch.linspace(0, 2, 8), 0)
    for _ in range(100):
        weights, loss = reweighted(x, log_eta, 0.3, log_p)
        with torch.no_grad():
            log_eta -= torch.autograd.grad(loss, log_eta)[0]
    assert (weights * (weights.log() - log_p)).sum(-1).mean().item() == pytest.approx(0.3, abs=1e-3)


def test_means_and_standard_deviations_are_held_apart():
    """From N(0, 1) to N(1, 2): ½ · 1² of the mean, ln 2 + ½ (¼ − 1) of the standard deviation."""
    head, log_alpha = GaussianHead(3, 1), torch.nn.Parameter(torch.tensor([2.0, 4.0]).log())
    old = {"mean": torch.zeros(2, 1), "log_std": torch.zeros(2, 1)}
    new = {"mean": torch.ones(2, 1).requires_grad_(), "log_std": torch.full((2, 1), math.log(2.0)).requires_grad_()}
    spread = math.log(2.0) - 0.375
    penalty, prices, kl = kl_penalty(head, old, new, log_alpha, (0.1, 0.2))
    assert kl.tolist() == pytest.approx([0.5, spread])
    assert penalty.item() == pytest.approx(2 * 0.5 + 4 * spread)
    assert prices.item() == pytest.approx(math.log(2) * (0.1 - 0.5) + math.log(4) * (0.2 - spread))
    penalty.backward()
    # of each row ½ · α · d KL: of the mean 1, of log σ 1 − σ⁻² = ¾
    assert new["mean"].grad.tolist() == [[1.0], [1.0]] and new["log_std"].grad.tolist() == [pytest.approx([1.5])] * 2
    assert log_alpha.grad is None
    prices.backward()
    assert log_alpha.grad.tolist() == pytest.approx([0.1 - 0.5, 0.2 - spread])


def test_other_distributions_are_held_as_a_whole():
    head = MLPActorCritic(OBS, TWO, hidden=[8]).head
    old, new = {"logits": torch.zeros(1, 2)}, {"logits": torch.tensor([[math.log(3.0), 0.0]])}
    assert one_by_one(old, new) == (new,)
    penalty, prices, kl = kl_penalty(head, old, new, torch.tensor([2.0, 9.0]).log(), (0.1, 0.2))
    expected = -0.5 * math.log(4 * 0.75 * 0.25)
    assert kl.tolist() == pytest.approx([expected]) and penalty.item() == pytest.approx(2 * expected)
    assert prices.item() == pytest.approx(math.log(2) * (0.1 - expected))


# --------------------------------------------------------------------------------------------------------------------- V-MPO


def test_the_losses_of_vmpo_by_hand():
    """A = 0, ln 3, −1, −2: the first two count by ¼ and ¾, whose log π are ln ½ each under the new policy, which diverges by
    KL((¾, ¼) ‖ (½, ½)) = 0.130812 from the old one. V = 1 and G = 1, 2, 1, 1."""
    algorithm = VMPO(MLPActorCritic(OBS, TWO, hidden=[8]), alpha=2.0, epsilon_eta=0.1, epsilon_alpha=0.2, value_weight=4.0)
    algorithm.evaluate = lambda batch: ({"logits": torch.zeros(4, 2, requires_grad=True)}, torch.ones(4))
    batch = Batch(act=torch.tensor([0, 1, 1, 0]), advantage=torch.tensor([0.0, math.log(3.0), -1.0, -2.0]),
                  returns=torch.tensor([1.0, 2.0, 1.0, 1.0]),
                  out=Batch(logits=torch.tensor([[math.log(3.0), 0.0]] * 4)))
    losses, = algorithm.learn(batch)
    assert losses["policy_loss"].item() == pytest.approx(math.log(2.0))
    assert losses["policy"].item() == pytest.approx(math.log(2.0) + 2 * 0.130812 + 4 * 0.25, abs=1e-5)
    assert losses["dual"].item() == pytest.approx(0.1 + math.log(2.0) + math.log(2.0) * (0.2 - 0.130812), abs=1e-5)
    assert (losses["kl"].item(), losses["eta"].item(), losses["alpha"].item()) == pytest.approx((0.130812, 1.0, 2.0), abs=1e-5)
    assert "kl_std" not in losses


def test_all_rows_of_vmpo_are_held_and_not_only_the_better_half():
    """The two rows that count have the policy of before, (½, ½); of the others one had (¾, ¼), and one (¼, ¾): the divergence is
    (0 + 0 + 0.130812 + 0.130812) / 4 = 0.065406. V = G."""
    algorithm = VMPO(MLPActorCritic(OBS, TWO, hidden=[8]), alpha=2.0, epsilon_eta=0.1, epsilon_alpha=0.2)
    algorithm.evaluate = lambda batch: ({"logits": torch.zeros(4, 2, requires_grad=True)}, torch.ones(4))
    before = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0], [0.0, math.log(3.0)], [0.0, 0.0]])
    losses, = algorithm.learn(Batch(act=torch.tensor([0, 1, 1, 0]), advantage=torch.tensor([-1.0, 0.0, -2.0, math.log(3.0)]),
                                    returns=torch.ones(4), out=Batch(logits=before)))
    assert losses["kl"].item() == pytest.approx(0.065406, abs=1e-6)
    assert losses["policy"].item() == pytest.approx(math.log(2.0) + 2 * 0.065406, abs=1e-5)
    assert losses["dual"].item() == pytest.approx(0.1 + math.log(2.0) + math.log(2.0) * (0.2 - 0.065406), abs=1e-5)


def test_without_temperature_and_constraint_it_clones_the_better_half():
    """Rows of one step each, whose advantages are r − V(s), with values that do not learn."""
    torch.manual_seed(0)
    model = MLPActorCritic(OBS, TWO, hidden=[8])
    other = model.clone()
    vmpo = task_of(model, eta=1e9, alpha=1e-9, dual_lr=0.0, value_weight=0.0, minibatches=1, lr=0.01, max_grad_norm=None)
    clone, ends = task_of(other, BC, lr=0.01), np.ones(16, bool)
    for step in range(20):
        given = rows(16, step, last=ends, terminated=ends)
        with torch.no_grad():
            gain = given["rew"] - model.value(torch.from_numpy(given["obs"])).numpy()
        best = np.argsort(-gain)[:8]
        vmpo.learn(given)
        clone.learn({name: given[name][best] for name in given if name != "last"})
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)


def test_the_policy_stays_near_where_it_was():
    options = dict(epochs=10, minibatches=1, lr=0.03, epsilon_alpha=0.003)
    held_back, free = task_of(dual_lr=0.2, **options), task_of(dual_lr=0.0, alpha=1e-6, **options)
    moved, unbound = (np.mean([one.learn(rows())["kl"] for _ in range(4)]) for one in (held_back, free))
    assert moved < 0.006 < 0.03 < unbound


@pytest.mark.parametrize("model", [
    lambda: MLPActorCritic(MASKED, TWO, hidden=[8]), lambda: RecurrentActorCritic(OBS, TWO, hidden=[8]),
    *(lambda d=d: MLPActorCritic(OBS, BOX, hidden=[8], distribution=d) for d in ("gaussian", "squashed", "beta", "gsde"))])
def test_it_learns_with_masks_memories_and_every_distribution(model):
    task = task_of(model := model())
    given = rows(act=model.act_space, obs=model.obs_space)
    if model.state_specs():
        given |= {f"state.{name}": spec.zeros(32) for name, spec in model.state_specs().items()}
    result = task.learn(given)
    assert task.algorithm.updates == 4 and all(math.isfinite(value) for value in result.values())
    assert ("kl_std" in result) is any(name == "log_std" for name in model.policy(*inputs(task))[0])


def inputs(task):
    obs = task.runner.sent(rows(2, obs=task.algorithm.model.obs_space)).obs
    model = task.algorithm.model
    return obs, {name: torch.from_numpy(spec.zeros(2)) for name, spec in model.state_specs().items()}


def test_a_restored_task_goes_on_alike():
    task, other = task_of(), task_of()
    for step in range(3):
        task.learn(rows(seed=step))
    other.load_state_dict(task.state_dict())
    for one in (task, other):
        one.learn(rows(seed=9))
    assert task.algorithm.model.weights_hash() == other.algorithm.model.weights_hash()
    assert torch.equal(task.algorithm.log_eta, other.algorithm.log_eta) and task.algorithm.log_eta.item() != 0.0


@pytest.mark.parametrize("options", [dict(epsilon_eta=0.0), dict(eta=0.0), dict(alpha=-1.0), dict(minibatches=0)])
def test_numbers_that_cannot_be_are_refused(options):
    with pytest.raises(ValueError, match="expected"):
        VMPO(MLPActorCritic(OBS, TWO), **options)


# ----------------------------------------------------------------------------------------------------------------------- MPO


THREE = gym.spaces.Discrete(3)


class Table(Model):
    """π = ½, ¼, ¼ and Q = 0, 4, 8 or more everywhere."""

    def __init__(self):
        super().__init__(OBS, THREE)
        self.actor = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor([math.log(2.0), 0.0, 0.0]))])
        self.values = torch.nn.Parameter(torch.tensor([[0.0, 4.0, 9.0], [1.0, 5.0, 8.0]]))
        self.head = MLPActorQ(OBS, THREE, ()).head

    def policy(self, obs):
        return {"logits": self.actor[0].expand(len(obs), -1)}

    def q(self, obs):
        return self.values[:, None].expand(-1, len(obs), -1)


def replayed(n=4, act=THREE, seed=0, **fields):
    rng = np.random.default_rng(seed)
    acts = rng.integers(3, size=n) if act is THREE else rng.uniform(-1, 1, (n, 2)).astype(np.float32)
    ends, rew = np.arange(n) % 3 == 0, rng.normal(size=n).astype(np.float32)
    return {**rows(n, seed), "act": acts, "terminated": ends, "rew": rew, **fields}


def test_the_losses_of_mpo_by_hand():
    """V = ½ · 0 + ¼ · 4 + ¼ · 8 = 3. With η = 4 / ln 2 the exponentials are 1, 2, 4, times p ½, ½, 1: ψ = ¼, ¼, ½, and log 2 that
    of their sum. The policy is still the old one: −Σ ψ log π = (¼ + ½ + 1) log 2, and no divergence."""
    eta = 4 / math.log(2.0)
    task = ComputationTask(MPO(Table, gamma=0.5, n_step=1, eta=eta, alpha=math.e, epsilon_eta=0.1, epsilon_alpha=0.2, lr=0.0))
    batch = replayed(2) | {"act": np.array([0, 2])}
    out = task.learn(batch)
    target = batch["rew"] + 0.5 * np.array([0, 1]) * 3
    assert out["critic"] == pytest.approx(((np.array([[0, 9], [1, 8]]) - target) ** 2).mean(1).sum(), rel=1e-5)
    np.testing.assert_allclose(out["priority"], np.abs(np.array([[0, 9], [1, 8]]) - target).max(0), rtol=1e-5)
    assert out["actor"] == pytest.approx(1.75 * math.log(2.0), rel=1e-5)
    assert out["dual"] == pytest.approx(eta * (0.1 + math.log(2.0)) + 0.2, rel=1e-5)
    assert (out["kl"], out["eta"], out["alpha"]) == pytest.approx((0.0, eta, math.e), abs=1e-5)


def test_values_and_weights_are_those_of_the_copies_by_hand():
    """π⁻ and Q⁻ as above, so V = 3 and ψ = ¼, ¼, ½. The network has other values, and π = ¼, ¼, ½: −Σ ψ log π = (½ + ½ + ½)
    log 2, KL(π⁻ ‖ π) = (½ − ¼) log 2."""
    eta = 4 / math.log(2.0)
    algorithm = MPO(Table, gamma=0.5, n_step=1, eta=eta, alpha=math.e, epsilon_eta=0.1, epsilon_alpha=0.2, lr=0.0)
    algorithm.model.values.data = torch.tensor([[7.0, 3.0, -2.0], [9.0, 1.0, -1.0]])
    algorithm.model.actor[0].data = torch.tensor([0.0, 0.0, math.log(2.0)])
    batch = replayed(2) | {"act": np.array([0, 2])}
    out = ComputationTask(algorithm).learn(batch)
    error = np.array([[7, -2], [9, -1]]) - (batch["rew"] + 0.5 * np.array([0, 1]) * 3)
    assert out["critic"] == pytest.approx((error**2).mean(1).sum(), rel=1e-5)
    np.testing.assert_allclose(out["priority"], np.abs(error).max(0), rtol=1e-5)
    assert out["kl"] == pytest.approx(0.25 * math.log(2.0), rel=1e-5)
    assert out["actor"] == pytest.approx((1.5 + 0.25 * math.e) * math.log(2.0), rel=1e-5)
    assert out["dual"] == pytest.approx(eta * (0.1 + math.log(2.0)) + 0.2 - 0.25 * math.log(2.0), rel=1e-5)


def test_of_a_box_values_and_weights_are_those_of_the_copies_by_hand():
    """The copies say 4 of every action, the network 1: y = r + ½ · 4, or r at the end; all actions weigh alike, and the
    temperature costs η (ε + 4 / η) = 0.1 + 4."""
    algorithm = MPO(MLPActorQ(OBS, BOX, (8,)), gamma=0.5, n_step=1, epsilon_eta=0.1, lr=0.0)
    for model, value in ((algorithm.model, 1.0), (algorithm.target, 4.0)):
        for name, parameter in model.critics.named_parameters():
            parameter.data.fill_(value if name == "bias1" else 0.0)
    batch = replayed(4, act=BOX)
    out = ComputationTask(algorithm).learn(batch)
    np.testing.assert_allclose(out["priority"], np.abs(1 - batch["rew"] - 0.5 * 4 * np.array([0, 1, 1, 0])), rtol=1e-5)
    assert out["dual"] == pytest.approx(0.1 + 4.0, rel=1e-5)  # α = 1, whose logarithm is 0


def test_the_policy_ends_at_the_one_whose_weights_it_was_given():
    """ψ = ¼, ¼, ½ of above, where nothing holds it."""
    eta = 4 / math.log(2.0)
    task = ComputationTask(MPO(Table, gamma=0.0, n_step=1, eta=eta, alpha=1e-9, dual_lr=0.0, lr=0.0, actor_lr=0.05))
    for seed in range(99):
        task.learn(replayed(seed=seed))
    model, before = task.algorithm.model, task.algorithm.target
    assert torch.softmax(model.actor[0], 0).tolist() == pytest.approx([0.25, 0.25, 0.5], abs=2e-3)
    assert torch.softmax(before.actor[0], 0).tolist() == pytest.approx([0.5, 0.25, 0.25])
    task.learn(replayed())
    assert torch.equal(model.actor[0], before.actor[0])  # the 100th update


def test_of_a_box_the_parts_of_the_policy_are_fitted_apart():
    """Against torch's own distributions, before the tanh; π and Q have moved away from π⁻ and Q⁻."""
    torch.manual_seed(0)
    task = ComputationTask(MPO(MLPActorQ(OBS, BOX, (8,)), n_step=1, samples=7, alpha=1e-9))
    algorithm = task.algorithm
    with torch.no_grad():
        for parameter in algorithm.model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
        batch = algorithm.process(task.runner.sent(replayed(act=BOX)))
    old, out = batch.old, algorithm.model.policy(batch.obs)
    assert old.act.shape == (4, 7, 2) and old.log_p.exp().sum(1).tolist() == pytest.approx([1.0] * 4)
    _, losses = algorithm.learn(batch)
    psi = torch.softmax(old.value / algorithm.log_eta.exp(), 1).detach()
    expected, u = 0.0, torch.atanh(old.act)
    for mean, log_std in ((out["mean"], old.out.log_std), (old.out.mean, out["log_std"])):
        normal = torch.distributions.Normal(mean[:, None], log_std.exp()[:, None])
        expected -= (psi * (normal.log_prob(u) - torch.log1p(-old.act.square())).sum(-1)).sum(1).mean()
    assert losses["actor"].item() == pytest.approx(expected.item(), rel=1e-4)
    torch.testing.assert_close(old.value[1, 3], algorithm.target.q(batch.obs[1:2], old.act[1:2, 3]).amin().detach())


def test_with_a_policy_that_stays_its_critics_are_those_of_sac_without_entropy():
    torch.manual_seed(0)
    model = MLPActorQ(OBS, THREE, (8,))
    common = dict(gamma=0.9, n_step=1, lr=0.01, actor_lr=0.0)
    tasks = [ComputationTask(MPO(copy.deepcopy(model), target_period=1, **common)),
             ComputationTask(SAC(copy.deepcopy(model), tau=1.0, alpha=1e-12, learn_alpha=False, **common))]
    for seed in range(20):
        told = [task.learn(replayed(8, seed=seed)) for task in tasks]
        assert told[0]["critic"] == pytest.approx(told[1]["critic"], rel=1e-4)
    critics = [list(task.algorithm.model.critics.parameters()) for task in tasks]
    for one, two, start in zip(*critics, model.critics.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)
        assert not torch.equal(one, start)


def test_what_mpo_cannot_do_is_refused():
    with pytest.raises(ContractError, match="MPO reads head.kl"):
        ComputationTask(MPO(MLPActorQ(OBS, BOX, policy="deterministic")))
    for options in (dict(epsilon_std=0.0), dict(samples=0), dict(target_period=0)):
        with pytest.raises(ValueError, match="expected"):
            MPO(MLPActorQ(OBS, BOX), **options)


# ---------------------------------------------------------------------------------------------------------------- in workers


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
def test_in_workers_vmpo_is_the_one_in_a_single_process():
    found = []
    for driver, serve in (("cooperative", "central"), (Processes(workers=2), "replica")):
        func = create_algorithm_func(MLPActorCritic, dict(obs=OBS, act=TWO, hidden=[8]), VMPO, {})
        task = ComputationTask(func, lambda: OnPolicyHelper(unroll=8), serve=serve)
        with Robot(Wander, tasks={"RL": task}, n_agents=4, seed=3, driver=driver) as robot:
            for _ in range(4):
                robot.train_iter()
            found.append((task.algorithm.model.weights_hash(), task.algorithm.log_eta.item()))
    assert found[0] == found[1]
