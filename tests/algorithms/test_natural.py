"""NPG and TRPO: conjugate gradients against a dense solve, a step by hand, the divergence that it keeps, what moves what."""

import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from wander import OBS, TWO, Wander

from parl_like import ComputationTask, OnPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import NPG, PPO, TRPO
from parl_like.algorithms.natural import conjugate_gradients, divided
from parl_like.drivers.workers.processes import Processes
from parl_like.learning.model import Model
from parl_like.models import CategoricalHead, ConvActorCritic, MLPActorCritic, RecurrentActorCritic

BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
MASKED = gym.spaces.Dict({"x": OBS, "mask": gym.spaces.MultiBinary(2)})


def rows(n=64, seed=0, act=TWO, **fields):
    rng = np.random.default_rng(seed)
    obs, obs_next = rng.uniform(-1, 1, (2, n, 3)).astype(np.float32)
    acts = rng.integers(2, size=n) if act is TWO else rng.uniform(-1, 1, (n, 2)).astype(np.float32)
    last = np.arange(n) % 8 == 7
    made = {"obs": obs, "act": acts, "rew": rng.normal(size=n), "terminated": last, "truncated": np.zeros(n, bool),
            "obs_next": obs_next, "last": last}
    return made | fields


def task_of(kind=TRPO, act=TWO, obs=OBS, model=None, **options):
    torch.manual_seed(0)
    model = model or MLPActorCritic(obs, act, hidden=[8])
    return ComputationTask(kind(model, **{"value_epochs": 1, "value_minibatches": 2, **options}))


# ----------------------------------------------------------------------------------------------------------- linear algebra


@pytest.mark.parametrize("n", [1, 7, 50])
def test_conjugate_gradients_solve_what_a_dense_solver_does(n):
    rng = np.random.default_rng(n)
    root = rng.normal(size=(n, n))
    matrix, b = torch.from_numpy(root @ root.T + 0.1 * np.eye(n)), torch.from_numpy(rng.normal(size=n))
    x = conjugate_gradients(lambda v: matrix @ v, b, 10 * n, 1e-24)
    np.testing.assert_allclose(x, np.linalg.solve(matrix, b), rtol=1e-5, atol=1e-8)
    assert not conjugate_gradients(lambda v: matrix @ v, 0 * b, 5).any()


def test_a_step_is_that_of_the_dense_fisher_matrix():
    """F written out: mean over rows and actions of π ∇log π ∇log πᵀ, the Hessian of the divergence at π_old."""
    task = task_of(NPG, damping=0.05, cg_steps=100, delta=0.02, normalize=False)
    algorithm = task.algorithm
    with torch.no_grad():
        batch = algorithm.process(task.runner.sent(rows(16)))
    out, _ = algorithm.model.policy(batch.obs)
    log_p, size = algorithm.model.head.log_probs(out), sum(p.numel() for p in algorithm.moves)
    fisher, gradient = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    for i in range(16):
        for act in range(2):
            slope = torch.cat([g.reshape(-1) for g in torch.autograd.grad(log_p[i, act], algorithm.moves, retain_graph=True)])
            fisher += log_p[i, act].exp().item() / 16 * torch.outer(slope.double(), slope.double())
            if act == batch.act[i]:
                gradient += batch.advantage[i].item() / 16 * slope.double()
    fisher += 0.05 * torch.eye(size, dtype=torch.float64)
    x = torch.linalg.solve(fisher, gradient)
    expected = torch.sqrt(2 * 0.02 / (x @ fisher @ x)) * x
    step, _ = algorithm.direction(batch)
    np.testing.assert_allclose(step.detach(), expected, rtol=1e-3, atol=1e-5)


class Bias(Model):
    """A policy of two logits and a value, whatever is seen."""

    def __init__(self, shared=False):
        super().__init__(OBS, TWO)
        self.logits, self.v = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))
        self.head = CategoricalHead(1, 2)
        self.head.linear.requires_grad_(False)
        self.shared = shared

    def policy(self, obs, state=None):
        return {"logits": self.logits.expand(len(obs), 2)}, {}

    def value(self, obs, state=None):
        return (self.logits.sum() if self.shared else self.v).expand(len(obs))

    def evaluate(self, obs, state=None, first=None):
        return self.policy(obs)[0], self.value(obs)


def test_a_step_by_hand():
    """π = (½, ½), rewards 1 and 0 for the two actions, one step each, so A = 1, 0 and g = ½ (½, −½). F = ¼ ((1, −1), (−1, 1)) has
    the eigenvalue ½ along g: x = 2 g, xᵀ F x = ¼, and the step √(2 δ / ¼) x = √(8 δ) (½, −½), for δ 0.005 (0.1, −0.1)."""
    two = rows(2, act=TWO, rew=np.array([1.0, 0.0]))
    task = task_of(NPG, model=Bias(), delta=0.005, damping=0.0, normalize=False, lr=0.125, value_minibatches=1)
    result = task.learn(two | {"act": np.array([0, 1]), "last": np.ones(2, bool), "terminated": np.ones(2, bool)})
    model = task.algorithm.model
    np.testing.assert_allclose(model.logits.detach(), [0.1, -0.1], rtol=1e-5)
    # KL(½, ½ ‖ π') = −½ ln(4 p (1 − p)), p = 1 / (1 + exp −0.2)
    assert result["kl"] == pytest.approx(-0.5 * np.log(4 * 0.549834 * 0.450166), rel=1e-4) and result["share"] == 1.0
    assert model.v.item() == pytest.approx(0.125, rel=1e-4)  # Adam's first step towards the mean return, ½
    assert task.version == task.algorithm.updates == 1


# -------------------------------------------------------------------------------------------------------------- trust region


def test_the_divergence_of_several_numbers_is_the_sum_over_them():
    """Of three numbers, of which each is moved by one standard deviation: 3 · ½, that of the joint distribution."""
    space = gym.spaces.Box(-1, 1, (3,), np.float32)
    head = MLPActorCritic(OBS, space, hidden=[8]).head
    out = {"mean": torch.zeros(1, 3), "log_std": torch.zeros(1, 3)}
    assert head.kl(out, out | {"mean": torch.ones(1, 3)}).tolist() == [1.5]


def kl_after(task, given, before):
    """The divergence from the policy of before, of the same rows, by a copy."""
    model = task.algorithm.model
    with torch.no_grad():
        out, old = (m.policy(torch.from_numpy(given["obs"]))[0] for m in (model, before))
        return model.head.kl(old, out).mean().item()


@pytest.mark.parametrize("act", [TWO, BOX], ids=["discrete", "box"])
@pytest.mark.parametrize("distribution", ["gaussian", "squashed", "beta", "gsde"])
def test_the_divergence_stays_within_its_bound(act, distribution):
    if act is TWO and distribution != "gaussian":
        pytest.skip("of a Box")
    torch.manual_seed(0)
    task = task_of(TRPO, act, model=MLPActorCritic(OBS, act, hidden=[8], distribution=distribution), damping=1e-3, delta=0.05)
    shares = []
    for step in range(10):
        given, before = rows(seed=step, act=act), task.algorithm.model.clone()
        result = task.learn(given)
        kl = kl_after(task, given, before)
        assert kl <= 0.05 + 1e-6 and result["kl"] == pytest.approx(kl, abs=1e-5)
        assert (result["improvement"] > 0) is (result["share"] > 0)
        shares.append(result["share"])
    assert max(shares) > 0


def test_the_step_is_shortened_as_long_as_it_must_be_and_left_out_where_nothing_helps():
    """A quadratic that is far off: with damping 0 and large δ the first steps go too far."""
    given = rows(32)
    task = task_of(TRPO, damping=0.0, delta=3.0, backtracks=30, cg_steps=20)
    result = task.learn(given)
    assert result["share"] < 1 and result["share"] == pytest.approx(0.8 ** round(np.log(result["share"]) / np.log(0.8)))
    task = task_of(TRPO, damping=0.0, delta=3.0, backtracks=0, cg_steps=20)
    before = task.algorithm.model.clone()
    assert task.learn(given)["share"] == 0 and kl_after(task, given, before) == 0 and task.version == 1


def test_a_step_without_a_gain_is_left_out_however_short():
    """Downhill."""
    task = task_of(TRPO)
    algorithm = task.algorithm
    with torch.no_grad():
        batch = algorithm.process(task.runner.sent(rows()))
    step, before = algorithm.direction(batch)
    weights = algorithm.model.weights_hash()
    assert algorithm.move(batch, -0.1 * step, before) == 0.0 and algorithm.model.weights_hash() == weights
    assert algorithm.move(batch, 0.1 * step, before) == 1.0


def test_trpo_without_line_search_is_npg():
    tasks = [task_of(NPG, delta=0.05), task_of(TRPO, backtracks=None, delta=0.05), task_of(TRPO, delta=1e-5)]
    for step in range(20):
        npg, trpo, _ = (task.learn(rows(seed=step)) for task in tasks)
        assert npg == trpo
    weights = [task.algorithm.model.weights_hash() for task in tasks]
    assert weights[0] == weights[1] != weights[2]


def test_old_rows_count_by_their_ratio():
    """The surrogate begins at mean(ρ A), not at mean(A)."""
    task = task_of(NPG)
    given = rows()
    with torch.no_grad():
        batch = task.algorithm.process(task.runner.sent(given | {"policy.log_prob": np.full(64, -3.0, np.float32)}))
        expected = ((task.algorithm.model.head.log_prob(batch.out, batch.act) + 3.0).exp() * batch.advantage).mean()
    assert task.algorithm.direction(batch)[1] == pytest.approx(expected.item(), rel=1e-5)


# ------------------------------------------------------------------------------------------------------------ what moves what


def test_policy_and_values_move_their_own_parameters_of_the_tensors_that_hold_both():
    task = task_of(TRPO)
    model = task.algorithm.model
    moves, values = divided(model)
    assert set(moves) & set(values) == {"own.weight0", "own.bias0"}
    assert set(moves) ^ set(values) == {"head.linear.weight", "head.linear.bias", "value_head.weight", "value_head.bias"}
    before = model.clone()
    obs = torch.from_numpy(rows()["obs"])
    task.algorithm.move = lambda batch, step, start: 0.0
    task.learn(rows())
    assert torch.equal(model.policy(obs)[0]["logits"], before.policy(obs)[0]["logits"])
    assert not torch.equal(model.value(obs), before.value(obs))


def test_a_trunk_that_both_read_follows_the_policy():
    image = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    for model in (MLPActorCritic(OBS, TWO, hidden=[8], shared=True), MLPActorCritic(MASKED, TWO, hidden=[8], shared=True),
                  ConvActorCritic(image, TWO, hidden=[4], features=8)):
        moves, values = divided(model)
        trunk = [name for name, _ in model.named_parameters() if name.startswith(("body", "perception"))]
        assert trunk and set(trunk) <= set(moves) and not set(trunk) & set(values) and values


def test_models_that_cannot_be_are_refused():
    with pytest.raises(TypeError, match="RecurrentActorCritic has a memory"):
        NPG(RecurrentActorCritic(OBS, TWO))
    with pytest.raises(ValueError, match="TRPO: the policy of Bias reads all parameters that its values read"):
        TRPO(Bias(shared=True))
    for options in (dict(delta=0.0), dict(cg_steps=0), dict(damping=-1.0), dict(backtracks=-1), dict(shrink=1.0)):
        with pytest.raises(ValueError, match="expected"):
            TRPO(MLPActorCritic(OBS, TWO), **options)


def test_an_update_of_numbers_that_are_not_finite_moves_nothing_and_a_restored_task_goes_on_alike():
    task, other = task_of(TRPO), task_of(TRPO)
    for step in range(3):
        task.learn(rows(seed=step))
    before = task.algorithm.model.weights_hash()
    bad = rows()
    bad["rew"][3] = np.nan
    task.learn(bad)
    assert (task.algorithm.model.weights_hash(), task.version, task.skipped) == (before, 3, 1)
    other.load_state_dict(task.state_dict())
    for one in (task, other):
        one.learn(rows(seed=9))
    assert task.algorithm.model.weights_hash() == other.algorithm.model.weights_hash() != before


def test_a_shared_trunk_is_moved_by_both_tasks_that_use_it():
    torch.manual_seed(0)
    trunk = torch.nn.Linear(3, 8)
    trunk.out_size = 8
    npg = ComputationTask(NPG(MLPActorCritic(OBS, TWO, hidden=[8], trunk=trunk), value_epochs=1))
    ppo = ComputationTask(PPO(MLPActorCritic(OBS, TWO, hidden=[8], trunk=trunk), epochs=1))
    assert npg.lock is ppo.lock
    for task in (npg, ppo):
        before = trunk.weight.detach().clone()
        version = npg.version, ppo.version
        task.learn(rows())
        assert not torch.equal(trunk.weight, before) and npg.version > version[0] and ppo.version > version[1]


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
def test_replicas_in_workers_follow_what_the_algorithm_changes_itself():
    """Then a run there is the one in a single process."""
    found = []
    for driver, serve in (("cooperative", "central"), (Processes(workers=2), "replica")):
        func = create_algorithm_func(MLPActorCritic, dict(obs=OBS, act=TWO, hidden=[8]), TRPO, dict(value_minibatches=2))
        task = ComputationTask(func, lambda: OnPolicyHelper(unroll=8), serve=serve)
        with Robot(Wander, tasks={"RL": task}, n_agents=4, seed=3, driver=driver) as robot:
            for _ in range(4):
                robot.train_iter()
            found.append((task.algorithm.model.weights_hash(), task.version))
    assert found[0] == found[1] and found[0][1] == 4
