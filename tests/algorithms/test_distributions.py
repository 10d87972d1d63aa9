"""C51, Rainbow, QR-DQN, IQN and FQF: projections and quantile losses by hand, laws, and what they are without their novelties."""

import copy
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from value_rows import ACT, MASKED, OBS, Fixed, after_updates, batch_of, hand_rows, rows

from parl_like import ComputationTask
from parl_like.algorithms import C51, DQN, FQF, IQN, QRDQN, Rainbow
from parl_like.algorithms.distributions import midpoints, of_actions, project, quantile_huber
from parl_like.learning.model_check import ContractError
from parl_like.models import MLPQ, MLPCategoricalQ, MLPFractionQ, MLPImplicitQ

# --------------------------------------------------------------------------------------------------------------- functions


def test_a_shifted_distribution_worked_out_by_hand():
    """On 0, 1, 2, 3: 0.5 at 0.25 gives ¾ and ¼ of itself; 0.25 at 2 stays; −1 and 7 are beyond the ends."""
    returns = torch.tensor([[0.25, 2.0, 7.0], [-1.0, 3.0, 2.5]])
    p = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]])
    expected = [[0.375, 0.125, 0.25, 0.25], [0.5, 0.0, 0.125, 0.375]]
    assert project(returns, p, torch.arange(4.0)).tolist() == expected


def test_a_projection_keeps_mass_and_mean_within_the_support():
    generator = torch.Generator().manual_seed(0)
    returns, p = torch.rand(20, 7, generator=generator) * 8 - 4, torch.softmax(torch.randn(20, 7, generator=generator), -1)
    support = torch.linspace(-5.0, 5.0, 11)
    out = project(returns, p, support)
    torch.testing.assert_close(out.sum(1), torch.ones(20))
    torch.testing.assert_close(out @ support, (p * returns).sum(1))
    torch.testing.assert_close(project(support.expand(3, -1), torch.eye(11)[:3], support), torch.eye(11)[:3])


def test_the_quantile_huber_loss_worked_out_by_hand():
    """θ = 1, 4 at τ = ¼, ¾; y = 0, 3. Row θ = 1: u = −1, 2 with weights ¾, ¼ and H = 0.5, 1.5: mean 0.375. Row θ = 4: u = −4, −1
    with weight ¼ each and H = 3.5, 0.5: mean 0.5."""
    loss = quantile_huber(torch.tensor([[1.0, 4.0]]), torch.tensor([[0.0, 3.0]]), midpoints(2), 1.0)
    assert midpoints(2).tolist() == [0.25, 0.75] and loss.tolist() == [0.875]
    plain = quantile_huber(torch.tensor([[1.0, 4.0]]), torch.tensor([[0.0, 3.0]]), torch.tensor([[0.25, 0.75]]), 0.0)
    assert plain.tolist() == [(0.75 * 1 + 0.25 * 2) / 2 + (0.25 * 4 + 0.25 * 1) / 2]  # κ = 0: |u| itself


def test_the_loss_is_least_at_the_quantiles():
    y = torch.rand(1, 400, generator=torch.Generator().manual_seed(1)) * 10
    theta = torch.full((1, 4), 5.0, requires_grad=True)
    optimizer = torch.optim.Adam([theta], lr=0.05)
    for _ in range(400):
        optimizer.zero_grad()
        quantile_huber(theta, y, midpoints(4), 0.0).sum().backward()
        optimizer.step()
    np.testing.assert_allclose(theta[0].detach(), np.quantile(y[0], [0.125, 0.375, 0.625, 0.875]), atol=0.15)


# --------------------------------------------------------------------------------------------------------------------- C51


class Atoms(Fixed):
    """On the support 0, 1, 2."""

    support = torch.arange(3.0)

    def logits(self, obs):
        return self.values(obs)

    def mean(self, values):
        return torch.softmax(values, -1) @ self.support


def test_c51_worked_out_by_hand():
    """Means 1.25 and 0.75, so action 0 is the best: p = ¼, ¼, ½. Half of r + ½ z for r = 0: 0, ½, 1 → p' = 0.375, 0.625, 0;
    at the end r = 1.5: 0, ½, ½; γ² after three steps."""
    logs = np.log([[0.25, 0.25, 0.5], [0.5, 0.25, 0.25]])
    algorithm = C51(Atoms(logs), gamma=0.5)
    batch = algorithm.process(batch_of(hand_rows([0, 1], [0.0, 1.5], [False, True])))
    np.testing.assert_allclose(batch.target.detach(), [[0.375, 0.625, 0.0], [0.0, 0.5, 0.5]], atol=1e-6)
    out = algorithm.learn(batch)
    crossed = np.array([-(0.375 * math.log(0.25) + 0.625 * math.log(0.25)), -math.log(0.25)])
    entropy = np.array([-(0.375 * math.log(0.375) + 0.625 * math.log(0.625)), math.log(2.0)])
    assert out["loss"].item() == pytest.approx(crossed.mean(), rel=1e-5) and out["q"].item() == pytest.approx(1.0)
    np.testing.assert_allclose(out["priority"].detach(), crossed - entropy, rtol=1e-5)
    batch = algorithm.process(batch_of(hand_rows([0, 1], [0.0, 1.5], [False, True], duration=np.array([2, 2]))))
    np.testing.assert_allclose(batch.target[0].detach(), [0.25 + 0.25 * 0.75 + 0.5 * 0.5, 0.25 * 0.25 + 0.5 * 0.5, 0], atol=1e-6)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_the_means_of_c51_obey_the_bellman_equation(double, masked):
    """Its targets have the means that are DQN's targets, of the same values, with masks and n steps."""
    model = MLPCategoricalQ(MASKED if masked else OBS, ACT, (8,), v_min=-60.0, v_max=60.0)
    one, other = (kind(copy.deepcopy(model), n_step=3, double=double) for kind in (C51, DQN))
    for algorithm in (one, other):  # little at the ends of the support
        algorithm.model.net.layers[-1].bias.data -= model.support.abs().repeat(4)
        algorithm.target.net.layers[-1].bias.data -= (model.support - 3.0).abs().repeat(4)
    fields = rows(masked=masked, n_step=3)
    target = one.process(batch_of(fields)).target
    torch.testing.assert_close(target @ model.support, other.process(batch_of(fields)).target, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(target.sum(1), torch.ones(len(target)))


def test_rainbow_is_c51_with_its_parts_and_dqn_without_all_of_them():
    """Double choice and n steps by default; noise, dueling streams and the distribution are the model's, weights the buffer's."""
    torch.manual_seed(0)
    model = MLPCategoricalQ(OBS, ACT, (8,), noisy=0.5, dueling=True)
    weight = np.linspace(0.5, 1.0, 8).astype(np.float32)
    one, other = after_updates(Rainbow(copy.deepcopy(model), target_period=5), C51(model, n_step=3, target_period=5), n_step=3,
                               weight=weight)
    assert one == other
    model = MLPQ(OBS, ACT, (8,))
    off = {"n_step": 1, "double": False, "target_period": 5}
    one, other = after_updates(Rainbow(copy.deepcopy(model), **off), DQN(model, **off))
    assert one == other


# ------------------------------------------------------------------------------------------------------------------ quantiles


def test_qr_dqn_worked_out_by_hand():
    """θ = (0, 2) and (1, 5), the second is better: y = r + ½ (1, 5), or r at the end. For action 0, τ = ¼, ¾, y = 1.5, 3.5:
    weights ¼ for θ = 0: (1 + 3) / 8; for θ = 2: u = −½ (weight ¼, H ⅛), 1.5 (¾, 1): (1/32 + ¾) / 2."""
    algorithm = QRDQN(Fixed([[0.0, 2.0], [1.0, 5.0]]), gamma=0.5)
    batch = algorithm.process(batch_of(hand_rows([0, 0], [1.0, 7.0], [False, True])))
    assert batch.target.tolist() == [[1.5, 3.5], [7.0, 7.0]]
    out = algorithm.learn(batch)
    first, second = 0.5 + (1 / 32 + 0.75) / 2, 0.25 * 6.5 + 0.75 * 4.5
    assert out["loss"].item() == pytest.approx((first + second) / 2)
    assert out["priority"].tolist() == [2.5, 7.0] and out["q"].item() == 1.0


def test_qr_dqn_with_one_quantile_is_dqn():
    """At the median both errors weigh ½: so its rows count twice."""
    model = MLPQ(OBS, ACT, (8,))
    one, = after_updates(QRDQN(copy.deepcopy(model), target_period=5), weight=np.full(8, 2.0, np.float32))
    other, = after_updates(DQN(copy.deepcopy(model), target_period=5), weight=np.ones(8, np.float32))
    third, = after_updates(QRDQN(model, target_period=5), weight=np.ones(8, np.float32))
    assert one == other != third


def test_iqn_at_fixed_midpoints_is_qr_dqn():
    class Implicit(MLPQ):
        def quantiles(self, obs, fractions):
            assert torch.equal(fractions, midpoints(5).expand(8, 5))
            return self.values(obs)

    class AtMidpoints(IQN):
        def check_model(self, inputs):
            pass

        def draw(self, rows, n, device):
            return midpoints(n).expand(rows, n)

    torch.manual_seed(0)
    model = Implicit(OBS, ACT, (8,), heads=5)
    one, other = after_updates(AtMidpoints(copy.deepcopy(model), n=5, n_target=5, target_period=5), QRDQN(model, target_period=5))
    assert one == other


def test_iqn_draws_fractions_for_each_row_from_its_own_generator():
    seen = []

    class Watched(MLPImplicitQ):
        def quantiles(self, obs, fractions):
            seen.append(fractions)
            return super().quantiles(obs, fractions)

    task = ComputationTask(IQN(Watched(OBS, ACT, (8,)), n=3, n_target=5))
    before = torch.get_rng_state()
    for seed in range(2):
        task.learn(rows(seed))
    assert torch.equal(torch.get_rng_state(), before)
    drawn = seen[1:]  # the first was a trial
    assert [tuple(one.shape) for one in drawn] == [(8, 5), (8, 3)] * 2
    every = torch.cat([one.flatten() for one in drawn])
    assert len(every.unique()) == 2 * 8 * 8 and 0 <= every.min() < 0.1 and 0.9 < every.max() < 1


def test_the_implicit_network_worked_out_by_hand():
    """One feature x = 2, cosines 1 and cos πτ, φ(τ) = relu(1 + 4 cos πτ): 1 + 4 cos ¼π at τ = ¼, 0 at ¾; q_a = (x φ) a + ½."""
    model = MLPImplicitQ(gym.spaces.Box(-9, 9, (1,), np.float32), gym.spaces.Discrete(2), (), cosines=2, points=2)
    values = {"net.layers.0.weight": [[1], [2]], "net.layers.0.bias": [0.5, 0.5], "embedding.layers.0.weight": [[0, 4]],
              "embedding.layers.0.bias": [1]}
    model.load_state_dict({name: torch.tensor(value, dtype=torch.float32) for name, value in values.items()})
    x, phi = torch.tensor([[2.0]]), 1 + 4 * math.cos(math.pi / 4)
    expected = torch.tensor([[[2 * phi + 0.5, 0.5], [4 * phi + 0.5, 0.5]]])
    torch.testing.assert_close(model.quantiles(x, torch.tensor([[0.25, 0.75]])), expected)
    torch.testing.assert_close(model.q(x), expected.mean(-1))
    torch.testing.assert_close(model.values(x.expand(3, 1)), expected.expand(3, 2, 2))


class Fractions(MLPQ):
    """Edges 0, softmax, 1; its quantile at τ is 8 τ² of action 0, and 0 of action 1."""

    def __init__(self, logits):
        super().__init__(gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2), ())
        self.proposal = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor(logits))])
        self.slope = torch.nn.Parameter(torch.tensor(8.0))

    def edges(self, obs):
        inner = torch.softmax(self.proposal[0], -1).cumsum(-1)
        return torch.cat([torch.zeros(1), inner[:-1], torch.ones(1)]).expand(len(obs), -1)

    def quantiles(self, obs, fractions):
        return torch.stack([self.slope * fractions**2, 0 * fractions], 1)

    def q(self, obs):
        edges = self.edges(obs)
        return (self.quantiles(obs, (edges[:, 1:] + edges[:, :-1]) / 2) * edges.diff()[:, None]).sum(-1)


def test_fqf_worked_out_by_hand():
    """Edges 0, ¼, ½, 1, middles ⅛, ⅜, ¾: θ = ⅛, 9/8, 9/2. At the inner edges 2 · ½ − ⅛ − 9/8 = −¼ and
    2 · 2 − 9/8 − 9/2 = −13/8."""
    algorithm = FQF(Fractions(np.log([0.25, 0.25, 0.5]).astype(np.float32)), gamma=0.5, entropy=0.5)
    batch = algorithm.process(batch_of(hand_rows([0, 0], [1.0, 2.0], [False, True])))
    np.testing.assert_allclose(batch.target.detach(), [[1 + 1 / 16, 1 + 9 / 16, 1 + 9 / 4], [2, 2, 2]])
    batch.target = batch.target.detach()
    out = algorithm.learn(batch)
    entropy = 0.5 * math.log(2) + 0.5 * math.log(4)
    assert out["fractions"].item() == pytest.approx(-0.25 * 0.25 - 0.5 * 13 / 8 - 0.5 * entropy) and out["entropy"].item() == (
        pytest.approx(entropy))
    theta, tau = torch.tensor([[1 / 8, 9 / 8, 9 / 2]]), torch.tensor([1 / 8, 3 / 8, 3 / 4])
    assert out["loss"].item() == pytest.approx(quantile_huber(theta.expand(2, -1), batch.target, tau, 1.0).mean().item())


def test_weights_of_rows_count_in_the_fraction_loss():
    """Action 0 has the brackets above, all quantiles of action 1 are 0; both have the entropy."""
    algorithm = FQF(Fractions(np.log([0.25, 0.25, 0.5]).astype(np.float32)), entropy=0.5)
    batch = batch_of(hand_rows([0, 1], [0.0, 0.0], [True, True], weight=np.array([3.0, 0.5], np.float32)))
    batch.target = torch.zeros(2, 3)
    entropy = 0.5 * math.log(2) + 0.5 * math.log(4)
    first, second = -0.25 * 0.25 - 0.5 * 13 / 8 - 0.5 * entropy, -0.5 * entropy
    assert algorithm.learn(batch)["fractions"].item() == pytest.approx((3 * first + 0.5 * second) / 2)


@pytest.mark.parametrize(("kappa", "expected"), [
    (1.0, {"QRDQN": (1 + 2) / 4, "IQN": (1 + 2) / 4, "FQF": (15 / 8 - 1 / 2) / 8 + 3 / 8 * 49 / 128 + 2 / 4}),
    (2.0, {"QRDQN": (9 / 16 + 3 / 2) / 4, "IQN": (9 / 16 + 3 / 2) / 4, "FQF": 225 / 256 / 8 + 3 / 8 * 49 / 256 + 3 / 2 / 4})])
def test_kappa_counts(kappa, expected):
    """Targets are 2. θ = ½, 9/2 at ¼, ¾: u = 3/2, −5/2, each weighed ¼. FQF: θ = ⅛, 9/8, 9/2 at ⅛, ⅜, ¾: u = 15/8, 7/8, −5/2,
    weighed ⅛, ⅜, ¼. H(u) = |u| − κ/2, or u² / 2κ up to κ."""
    edges = np.log([0.25, 0.25, 0.5]).astype(np.float32)
    learners = [QRDQN(Fixed([[0.5, 4.5], [0.0, 0.0]]), kappa=kappa), IQN(Fractions(edges), kappa=kappa),
                FQF(Fractions(edges), kappa=kappa)]
    learners[1].draw = lambda rows, n, device: midpoints(2).expand(rows, n)
    learners[1].n = learners[1].n_target = 2
    for learner in learners:
        with torch.no_grad():
            batch = learner.process(batch_of(hand_rows([0], [2.0], [True])))
        assert learner.learn(batch)["loss"].item() == pytest.approx(expected[type(learner).__name__])


def test_what_fqf_goes_by_counts_each_quantile_by_its_step():
    model = MLPFractionQ(OBS, ACT, (8,), points=4)
    model.proposal.weight.data.normal_()
    x = torch.randn(5, 3)
    edges = model.edges(x)
    steps, middles = edges.diff(), (edges[:, 1:] + edges[:, :-1]) / 2
    assert steps.std(1).min() > 0.01
    expected = sum(steps[:, i, None] * model.quantiles(x, middles)[:, :, i] for i in range(4))
    torch.testing.assert_close(model.q(x), expected)


def test_a_step_between_fractions_that_rounds_to_nothing_learns_on():
    """Edges 0, ½, 1, 1 with brackets −1 and 7/2: slopes −¼ and ¼ of the first two logits, none of the third, whose share of the
    entropy is 0 · log 0."""
    algorithm = FQF(Fractions([0.0, 0.0, -40.0]), entropy=0.5)
    batch = batch_of(hand_rows([0], [0.0], [True]))
    batch.target = torch.zeros(1, 3)
    out = algorithm.learn(batch)
    out["fractions"].backward()
    np.testing.assert_allclose(algorithm.model.proposal[0].grad, [-0.25, 0.25, 0.0], atol=1e-6)
    assert out["entropy"].item() == pytest.approx(math.log(2))


def test_fqf_brings_the_quantiles_nearer_to_the_distribution():
    """∂W₁/∂τ by the formula is what a fine sum over the quantile function says; a step against it makes the distance less."""
    algorithm = FQF(Fractions([0.0, 0.0, 0.0]), gamma=0.0, entropy=0.0)
    fine = torch.linspace(0, 1, 20_001)

    def distance(inner):
        edges = torch.cat([torch.zeros(1), inner, torch.ones(1)])
        middles = (edges[1:] + edges[:-1]) / 2
        at = torch.bucketize(fine, edges[1:-1])
        return (8 * fine**2 - 8 * middles[at] ** 2).abs().mean()

    inner = algorithm.model.edges(torch.zeros(1, 1))[0, 1:-1].detach().requires_grad_()
    algorithm.model.edges = lambda obs: torch.cat([torch.zeros(1), inner, torch.ones(1)]).expand(len(obs), -1)
    batch = batch_of(hand_rows([0], [0.0], [True]))
    batch.target = torch.zeros(1, 3)
    algorithm.learn(batch)["fractions"].backward()
    for i in range(2):
        step = torch.zeros(2)
        step[i] = 1e-2
        numeric = (distance(inner.detach() + step) - distance(inner.detach() - step)) / 2e-2
        assert inner.grad[i].item() == pytest.approx(numeric.item(), abs=0.02)


def test_fqf_with_even_fractions_is_iqn_at_midpoints():
    class AtMidpoints(IQN):
        def draw(self, rows, n, device):
            return midpoints(n).expand(rows, n)

    torch.manual_seed(0)
    model = MLPFractionQ(OBS, ACT, (8,), points=4)
    model.proposal.weight.data.zero_()
    fixed = AtMidpoints(copy.deepcopy(model), n=4, n_target=4, target_period=5, max_grad_norm=None)
    fixed.model.proposal.requires_grad_(False)
    one, other = after_updates(FQF(model, fraction_lr=0.0, entropy=0.0, target_period=5, max_grad_norm=None), fixed)
    assert one == other


def test_the_two_losses_of_fqf_touch_only_their_own_parameters():
    task = ComputationTask(FQF(MLPFractionQ(OBS, ACT, (8,)), lr=0.0, fraction_lr=0.1))
    before = {key: value.clone() for key, value in task.algorithm.model.state_dict().items()}
    task.learn(rows())
    moved = {key.split(".")[0] for key, value in task.algorithm.model.state_dict().items() if not torch.equal(before[key], value)}
    assert moved == {"proposal"}
    edges = task.algorithm.model.edges(torch.randn(50, 3)).detach()
    assert (edges[:, 0] == 0).all() and (edges[:, -1] == 1).all() and (edges.diff() > 0).all()


# -------------------------------------------------------------------------------------------------------------------- all


MEMBERS = {"C51": (C51, MLPCategoricalQ), "QRDQN": (QRDQN, MLPQ), "IQN": (IQN, MLPImplicitQ),
           "FQF": (FQF, MLPFractionQ)}


@pytest.mark.parametrize("name", MEMBERS)
def test_weights_of_rows_count(name):
    """Rows of weight 0 are as if they were not there, and rows of weight 2 as if there were two."""
    algorithm, model = MEMBERS[name]
    torch.manual_seed(0)
    learner = algorithm(model(OBS, ACT, (8,), **({"heads": 5} if name == "QRDQN" else {})))
    if name == "IQN":
        learner.draw = lambda rows, n, device: midpoints(n).expand(rows, n)
    fields = rows(n=4)

    def loss(weight, places):
        part = {key: value[places] for key, value in fields.items()}
        return learner.learn(learner.process(batch_of({**part, "weight": np.array(weight, np.float32)})))["loss"].item()

    assert loss([2, 0, 1, 1], [0, 1, 2, 3]) == pytest.approx(loss([1, 1, 1, 1], [0, 0, 2, 3]))


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", ["QRDQN", "IQN", "FQF"])
def test_the_next_action_is_the_best_of_the_legal_ones(name, double):
    """By the network, or without `double` by its copy, which says what it is worth: without rewards and with γ 1 the mean of the
    targets is that. Where a mask allows nothing, all are legal."""
    algorithm, model = MEMBERS[name]
    torch.manual_seed(0)
    learner = algorithm(model(MASKED, ACT, (8,), **{"heads" if name == "QRDQN" else "points": 5}), gamma=1.0, double=double)
    for parameter in learner.target.net.layers[-1].parameters():  # what one prefers is the worst to the other
        parameter.data.neg_()
    if name == "IQN":
        learner.draw = lambda rows, n, device: midpoints(5).expand(rows, 5)
    if name == "FQF":  # with even steps what it goes by is the mean of its quantiles
        for network in (learner.model, learner.target):
            network.proposal.weight.data.zero_()
    fields = rows(n=64, masked=True, terminated=np.zeros(64, bool), rew=np.zeros(64, np.float32))
    free = batch_of({**fields, "obs_next.mask": np.ones((64, 4), np.int8)}).obs_next
    legal = (fields["obs_next.mask"] | ~fields["obs_next.mask"].any(1, keepdims=True)) == 1
    with torch.no_grad():
        target = learner.process(batch_of(fields)).target
        q, worth = learner.model.q(free).numpy(), learner.target.q(free).numpy()
    by = q if double else worth
    best = np.where(legal, by, -np.inf).argmax(1)
    assert (best != by.argmax(1)).sum() > 10
    np.testing.assert_allclose(target.mean(1), worth[np.arange(64), best], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: C51(MLPQ(OBS, ACT)), "C51 calls logits.*MLPCategoricalQ"),
    (lambda: IQN(MLPQ(OBS, ACT)), "IQN calls quantiles.*MLPImplicitQ"),
    (lambda: QRDQN(MLPQ(OBS, ACT), kappa=-1.0), "kappa is -1"), (lambda: IQN(MLPImplicitQ(OBS, ACT), n=0), "n is 0"),
    (lambda: MLPCategoricalQ(OBS, ACT, v_min=1.0, v_max=1.0), "v_min < v_max"),
    (lambda: MLPCategoricalQ(OBS, ACT, atoms=1), "at least 2"),
    (lambda: MLPImplicitQ(OBS, ACT, points=0), "points is 0"),
])  # fmt: skip
def test_what_does_not_fit_is_named(make, message):
    with pytest.raises((ContractError, ValueError), match=message):
        ComputationTask(make())


def test_of_actions():
    assert of_actions(torch.arange(12.0).reshape(2, 3, 2), torch.tensor([2, 0])).tolist() == [[4, 5], [6, 7]]
