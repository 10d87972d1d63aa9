"""PPO's options by hand, divergences and entropies of the heads, and that PPO with one step is A2C."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import distributions

from parl_like import ComputationTask, OnPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import A2C, IMPALA, PPO
from parl_like.algorithms.unrolls import cut_into
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.learning.model_check import ContractError
from parl_like.models import (
    BetaHead,
    CategoricalHead,
    GaussianHead,
    MLPActorCritic,
    RecurrentActorCritic,
    SquashedGaussianHead,
    make_head,
)
from parl_like.values.batch import Batch

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
BOTH = gym.spaces.Dict({"arm": BOX, "grip": gym.spaces.Discrete(3)})
SPACES = {"discrete": gym.spaces.Discrete(4), "joint": gym.spaces.MultiDiscrete([2, 3]), "both": BOTH}
DISTRIBUTIONS = ["gaussian", "squashed", "gsde", "beta"]


# ------------------------------------------------------------------------------------------------- divergences and entropies


def test_divergences_are_those_of_torch():
    torch.manual_seed(0)
    a, b = torch.randn(2, 5, 4), torch.randn(2, 5, 4)
    head = CategoricalHead(2, 4)
    expected = distributions.kl_divergence(distributions.Categorical(logits=a[0]), distributions.Categorical(logits=a[1]))
    torch.testing.assert_close(head.kl({"logits": a[0]}, {"logits": a[1]}), expected, atol=1e-5, rtol=1e-4)
    normal = distributions.kl_divergence(distributions.Normal(a[0], b[0].exp()), distributions.Normal(a[1], b[1].exp())).sum(1)
    outs = [{"mean": mean, "log_std": log_std} for mean, log_std in zip(a, b, strict=True)]
    for kind in (GaussianHead, SquashedGaussianHead):
        torch.testing.assert_close(kind(2, 4).kl(*outs), normal, atol=1e-5, rtol=1e-4)
    alphas = 1.0 + a.exp(), 1.0 + b.exp()
    beta = distributions.kl_divergence(*(distributions.Beta(*pair) for pair in zip(*alphas, strict=True))).sum(1)
    outs = [{"alpha": alpha, "beta": beta} for alpha, beta in zip(*alphas, strict=True)]
    torch.testing.assert_close(BetaHead(2, 4).kl(*outs), beta, atol=1e-4, rtol=1e-4)


def test_illegal_actions_and_parts_of_an_action_in_a_divergence():
    """Masked: (3/4, 1/4, –) to (1/2, 1/2, –) is ¾ ln 1.5 + ¼ ln 0.5 = 0.130812. Parts add up."""
    mask = torch.tensor([[1, 1, 0]])
    outs = [{"logits": torch.tensor([[x, 0.0, 7.0]], requires_grad=True), "mask": mask} for x in (np.log(3.0), 0.0)]
    kl = CategoricalHead(2, 3).kl(*outs)
    assert kl.item() == pytest.approx(0.130812, abs=1e-6)
    kl.backward()
    assert torch.isfinite(outs[0]["logits"].grad).all() and outs[1]["logits"].grad[0, 2] == 0
    torch.manual_seed(0)
    head = make_head(3, BOTH, gain=None)
    out, other = head(torch.randn(5, 3)), head(torch.randn(5, 3))
    parts = dict(head.parts)
    pick = [{k.split(".")[0]: v for k, v in o.items() if k.endswith(name)} for name in ("arm", "grip") for o in (out, other)]
    torch.testing.assert_close(head.kl(out, other), parts["arm"].kl(*pick[:2]) + parts["grip"].kl(*pick[2:]))


@pytest.mark.parametrize(("log_std", "tolerance"), [(-3.0, 1e-5), (0.0, 1e-5), (0.5, 1e-4), (1.0, 2e-3), (2.0, 0.1)])
def test_a_squashed_gaussians_entropy_is_its_integral(log_std, tolerance):
    """Against −∫ p log p over actions −1 … 1, as a sum over 4·10⁶ values of the number before the tanh; and its slopes."""
    e = np.linspace(-10, 10, 400_001)
    p = np.exp(-0.5 * e**2) / np.sqrt(2 * np.pi)
    for mean in (0.0, -0.4, 1.5):
        u = mean + np.exp(log_std) * e
        log_slope = 2 * (np.log(2) - u - np.logaddexp(0, -2 * u))
        step = e[1] - e[0]
        expected = 0.5 * np.log(2 * np.pi * np.e) + log_std + (p * log_slope).sum() * step
        slope = (p * -2 * np.tanh(u)).sum() * step  # of the entropy along the mean
        out = {"mean": torch.tensor([[mean]], requires_grad=True), "log_std": torch.tensor([[log_std]])}
        entropy = SquashedGaussianHead(2, 1).entropy(out)
        entropy.sum().backward()
        assert entropy.item() == pytest.approx(expected, abs=tolerance)
        assert out["mean"].grad.item() == pytest.approx(slope, abs=10 * tolerance)


def test_the_entropy_is_minus_the_mean_log_probability_of_draws_and_adds_up_over_numbers():
    out = {"mean": torch.tensor([[0.3, -1.0]]).expand(20_000, 2), "log_std": torch.tensor([[-0.2, 0.4]]).expand(20_000, 2)}
    head = SquashedGaussianHead(2, 2)
    _, log_prob = head.draw(out, torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0)))
    assert head.entropy(out)[0].item() == pytest.approx(-log_prob.mean().item(), abs=4 * log_prob.std().item() / np.sqrt(20_000))


@pytest.mark.parametrize("kind", [A2C, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (PPO, IMPALA))])
def test_actor_critics_take_a_squashed_gaussian_and_its_entropy_moves_it(kind):
    """A bonus alone widens a narrow policy, and brings one at the border back."""
    torch.manual_seed(0)
    model = MLPActorCritic(OBS, BOX, hidden=[8], distribution="squashed", log_std_init=-2.0)
    task = ComputationTask(kind(model, entropy=1.0, lr=0.02))
    model.head.linear.bias.data.fill_(2.0)
    rows = rows_of(BOX, task.algorithm)
    rows["rew"][:] = 0
    before = task.learn(rows)["entropy"]
    for _ in range(50):
        task.learn(rows)
    assert task.learn(rows)["entropy"] > before + 1.0
    assert (model.head.linear.bias < 1.9).all()


def test_only_bounded_boxes_are_squashed():
    with pytest.raises(ValueError, match="'squashed' is for a Box with finite bounds"):
        make_head(4, gym.spaces.Box(-np.inf, np.inf, (2,)), distribution="squashed")


# ---------------------------------------------------------------------------------------------------------------------- hand


def fixed(ratio=(1.0,), value=(0.0,), **options):
    """PPO whose policy is uniform over two actions, with these ratios and values; and rows for it, A = −1, −1, 2."""
    algorithm = PPO(MLPActorCritic(OBS, gym.spaces.Discrete(2), hidden=[4]), normalize=False, value_weight=1.0, **options)
    n = max(len(ratio), len(value))
    out = {"logits": torch.zeros(n, 2, requires_grad=True)}
    algorithm.evaluate = lambda batch: (out, torch.tensor(value).expand(n))
    batch = Batch(act=torch.zeros(n, dtype=torch.int64), advantage=torch.tensor([-1.0, -1.0, 2.0][:n]), returns=torch.ones(n),
                  log_prob=-np.log(2) - torch.tensor(ratio).expand(n).log(), value=torch.zeros(n))
    return algorithm, batch, out["logits"]


@pytest.mark.parametrize(("dual_clip", "expected"), [(None, (3.0 + 0.8 - 2.2) / 3), (2.0, (2.0 + 0.8 - 2.2) / 3)])
def test_dual_clip(dual_clip, expected):
    """ρ A = −3, −½, 2.2; clipped at 0.8 and 1.2 from above: −3, −0.8, 2.2; from below at 2 · A: −2, −0.8, 2.2."""
    algorithm, batch, logits = fixed(ratio=(3.0, 0.5, 1.1), dual_clip=dual_clip)
    result = algorithm.learn(batch)
    assert result["policy_loss"].item() == pytest.approx(expected, abs=1e-6)
    result["loss"].backward()
    assert bool(logits.grad[0].any()) is (dual_clip is None) and logits.grad[2].any()


def test_value_clip():
    """G = 1, V_old = 0, V = 1, −0.1, 2, clipped to ½, −0.1, ½: the larger squares are ¼, 1.21, 1."""
    algorithm, batch, _ = fixed(value=(1.0, -0.1, 2.0), value_clip=0.5)
    assert algorithm.learn(batch)["value_loss"].item() == pytest.approx((0.25 + 1.21 + 1.0) / 3)


def test_kl_penalty():
    """From (¾, ¼) to (½, ½) the divergence is 0.130812; its slope along the logits is π − π_old = (−¼, ¼)."""
    algorithm, batch, logits = fixed(kl_weight=3.0, clip=1e9)
    batch.out = Batch(logits=torch.tensor([[np.log(3.0), 0.0]]).float())
    batch.advantage[:] = 0
    result = algorithm.learn(batch)
    assert result["loss"].item() - result["value_loss"].item() == pytest.approx(3 * 0.130812, abs=1e-5)
    result["loss"].backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[-0.75, 0.75]]))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_policy_of_before_stays_what_it_was_while_parameters_change(distribution):
    """Also where what the head reads are parameters themselves, as a Gaussian's log_std."""
    task = task_of(PPO, BOX, distribution=distribution, kl_weight=1.0)
    with torch.no_grad():
        batch = task.algorithm.process(task.runner.sent(rows_of(BOX, task.algorithm)))
        before = {name: part.clone() for name, part in batch.out.items()}
        for parameter in task.algorithm.model.parameters():
            parameter += 0.1
    assert all(torch.equal(batch.out[name], part) for name, part in before.items())
    assert (task.algorithm.model.head.kl(batch.out, task.algorithm.evaluate(batch)[0]) > 0).all()


@pytest.mark.parametrize(("target", "expected"), [(0.08, 2.0), (0.1, 1.0), (0.19, 1.0), (0.2, 0.5)])
def test_the_penalty_adapts_to_how_far_the_policy_has_moved(target, expected):
    """0.130812 is 1.63, 1.31, 0.69 and 0.65 times these."""
    algorithm, batch, _ = fixed(kl_weight=1.0, adaptive_kl=target)
    batch.out = Batch(logits=torch.tensor([[np.log(3.0), 0.0]]).float())
    with torch.no_grad():
        algorithm.post_process(batch)
    assert algorithm.kl_weight == expected


# -------------------------------------------------------------------------------------------------------- pieces of an unroll


def starts(last):
    return [0, *(i + 1 for i in range(len(last) - 1) if last[i])]


def test_two_environments_of_twelve_steps_are_eight_pieces_of_three():
    """Steps 7 to 18 of environments 0 and 1: pieces begin at 7, 10, 13 and 16 of each."""
    envs, steps = np.repeat([0, 1], 12), np.tile(np.arange(7, 19), 2)
    last = torch.from_numpy(steps == 18)
    pieces = starts(cut_into(last, 3))
    assert envs[pieces].tolist() == [0, 0, 0, 0, 1, 1, 1, 1] and steps[pieces].tolist() == [7, 10, 13, 16] * 2
    assert steps[starts(cut_into(last, 5))].tolist() == [7, 12, 17] * 2, "the last piece is shorter, and none is dropped"
    ends = last.clone()
    ends[[1, 4]] = True  # a piece never goes beyond a cut
    assert steps[starts(cut_into(ends, 3))].tolist() == [7, 9, 12, 15, 18, 7, 10, 13, 16]
    assert torch.equal(cut_into(last, 12), last) and bool(cut_into(last, 1).all())


def passed(options, n=24, recurrent=False, rows=()):
    """The row numbers of the minibatches of one update, whose segments have 12 rows."""
    model = (RecurrentActorCritic if recurrent else MLPActorCritic)(OBS, gym.spaces.Discrete(2), hidden=[4])
    algorithm = PPO(model, **options)
    last = torch.arange(n) % 12 == 11
    numbers = {name: torch.arange(n) for name in ("act", "advantage", "returns", "log_prob")}
    batch = Batch(obs=torch.zeros(n, 3), last=last, **numbers)
    if recurrent:
        batch.state = Batch({name: torch.zeros(n, *spec.shape) for name, spec in model.state_specs().items()})
    return [{name: one[name].tolist() for name in ("act", *rows)} for one in algorithm.minibatches(batch)]


@pytest.mark.parametrize("recurrent", [False, True])
def test_each_pass_shuffles_pieces_and_keeps_time_inside_them(recurrent):
    seen = passed(dict(sequence=3, minibatches=4, epochs=2), recurrent=recurrent, rows=["last"] * recurrent)
    assert len(seen) == 2 * 4, "updates × ⌊pieces / size⌋ optimiser steps"
    for once in (seen[:4], seen[4:]):
        firsts = [row for one in once for row in one["act"][::3]]
        assert sorted(firsts) == [0, 3, 6, 9, 12, 15, 18, 21] and firsts != sorted(firsts)
        assert all(one["act"] == [row + k for row in one["act"][::3] for k in range(3)] for one in once)
        assert not recurrent or all(one["last"] == [False, False, True] * 2 for one in once), "a memory begins at each"


def test_minibatches_grow_so_that_no_piece_is_dropped():
    """264 pieces of 2 rows, 32 pieces in a minibatch: 8 minibatches of 33."""
    seen = passed(dict(sequence=2, minibatch_rows=64, epochs=1), n=528)
    assert [len(one["act"]) for one in seen] == [66] * 8


@pytest.mark.parametrize("sequence", [4, 5])
def test_pieces_of_a_memory_begin_as_it_was_there(sequence):
    """With the parameters of then, the values of the rows are those of the whole unroll, wherever it is cut."""
    spaces = dict(obs=gym.make("CartPole-v1").observation_space, act=gym.spaces.Discrete(2))
    func = create_algorithm_func(RecurrentActorCritic, {**spaces, "hidden": [8], "size": 8}, PPO, dict(sequence=sequence, lr=0.0))
    batches = []
    with Robot("CartPole-v1", tasks={"RL": ComputationTask(func, lambda: OnPolicyHelper(unroll=16))}, seed=0) as robot:
        algorithm = robot.tasks["RL"].algorithm
        process = algorithm.process
        algorithm.process = lambda batch: batches.append(process(batch)) or batches[-1]
        robot.run(StopAfterSteps(32))
    for batch in batches:
        batch.advantage = torch.arange(16)
        seen = []
        for one in algorithm.minibatches(batch):
            torch.testing.assert_close(algorithm.evaluate(one)[1], batch.value[one.advantage], atol=1e-5, rtol=1e-5)
            seen += one.advantage.tolist()
        assert sorted(seen) == sorted([*range(16)] * 4), "four passes"


def test_a_short_minibatch_counts_by_its_rows():
    """Three rows where four are nominal: ¾ of the loss, and of its slope."""
    found = []
    for options in ({"minibatch_rows": 4}, {"minibatch_rows": 4, "weigh_rows": True}, {"minibatch_rows": 3, "weigh_rows": True}):
        algorithm, batch, logits = fixed(ratio=(1.0, 1.0, 1.0), **options)
        loss = algorithm.learn(batch)["loss"]
        loss.backward()
        found.append((loss.item(), logits.grad.clone()))
    assert found[1][0] == pytest.approx(0.75 * found[0][0]) and found[2][0] == pytest.approx(found[0][0])
    torch.testing.assert_close(found[1][1], 0.75 * found[0][1])
    with pytest.raises(ValueError, match="PPO: weigh_rows counts a minibatch by its rows / minibatch_rows, which is None"):
        PPO(MLPActorCritic(OBS, gym.spaces.Discrete(2)), weigh_rows=True)


@pytest.mark.parametrize("weighs", [False, True])
def test_loops_that_are_written_out_leave_weights_to_torch(weighs):
    task = task_of(PPO, SPACES["discrete"], minibatch_rows=48, epochs=1, weigh_rows=weighs)
    with torch.no_grad():
        batch = task.algorithm.process(task.runner.sent(rows_of(SPACES["discrete"], task.algorithm)))
    assert (task.algorithm.native_learn(batch) is None) is weighs


def test_options_that_cannot_be_are_refused():
    model = MLPActorCritic(OBS, gym.spaces.Discrete(2), hidden=[4])
    for options in (dict(dual_clip=1.0), dict(value_clip=0.0), dict(kl_weight=-1.0), dict(adaptive_kl=0.01)):
        with pytest.raises(ValueError, match="expected"):
            PPO(model, **options)
    model.head = NoDivergence(4, 2)
    ComputationTask(PPO(model))
    with pytest.raises(ContractError, match=r"head.kl: expected kl\(out, other\)"):
        ComputationTask(PPO(model, kl_weight=1.0))


class NoDivergence(CategoricalHead):
    @property
    def kl(self):
        raise AttributeError("kl")


# ---------------------------------------------------------------------------------------------------------------- identities


def rows_of(space, algorithm, n=24, seed=0):
    rng = np.random.default_rng(seed)
    last = np.zeros(n, bool)
    last[[5, 11, n - 1]] = True
    terminated = np.zeros(n, bool)
    terminated[5] = True
    obs, obs_next = rng.uniform(-1, 1, (2, n, 3)).astype(np.float32)
    box = rng.uniform(-0.9, 0.9, (n, 2)).astype(np.float32)
    acts = {"discrete": {"act": rng.integers(4, size=n)}, "joint": {"act": rng.integers([2, 3], size=(n, 2))},
            "both": {"act.arm": box, "act.grip": rng.integers(3, size=n)}}
    act = next((acts[name] for name, one in SPACES.items() if one is space), {"act": box})
    return {"obs": obs, **act, "rew": rng.normal(size=n), "terminated": terminated, "truncated": last & ~terminated,
            "obs_next": obs_next, "last": last}


def task_of(kind, space, **options):
    model = {"distribution": options.pop("distribution", "gaussian")}
    torch.manual_seed(1)
    return ComputationTask(kind(MLPActorCritic(OBS, space, hidden=[8], **model), lr=3e-3, entropy=0.01, **options))


@pytest.mark.parametrize(("space", "distribution"),
                         [*((one, "gaussian") for one in SPACES.values()), *((BOX, name) for name in DISTRIBUTIONS)])
def test_ppo_with_one_epoch_of_one_minibatch_is_a2c(space, distribution):
    """In another order of rows. Also with a divergence from itself as a penalty, and with bounds that nothing reaches."""
    a2c = task_of(A2C, space, distribution=distribution)
    others = [task_of(PPO, space, distribution=distribution, epochs=1, minibatches=1, **options)
              for options in ({}, dict(dual_clip=3.0, value_clip=1.0, kl_weight=1.0, adaptive_kl=0.01))]
    for step in range(20):
        rows = rows_of(space, a2c.algorithm, seed=step)
        for task in (a2c, *others):
            task.learn(rows)
    for task in others:
        for mine, theirs in zip(task.algorithm.model.parameters(), a2c.algorithm.model.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_an_adapted_penalty_is_saved_and_resumed():
    def robot():
        spaces = dict(obs=OBS, act=gym.spaces.Discrete(2))
        func = create_algorithm_func(MLPActorCritic, {**spaces, "hidden": [8]}, PPO,
                                     dict(kl_weight=0.5, adaptive_kl=1e-3, lr=1e-2, minibatches=2))
        return Robot(Line, tasks={"RL": ComputationTask(func, lambda: OnPolicyHelper(unroll=16))}, n_agents=2, seed=3, trace=True)

    with robot() as whole, robot() as part:
        whole.run(StopAfterSteps(100))
        whole.checkpoint_boundary()
        state, weight = whole.state_dict(), whole.tasks["RL"].algorithm.kl_weight
        assert weight != 0.5
        whole.run(StopAfterSteps(200))
        part.load_state_dict(state)
        assert part.tasks["RL"].algorithm.kl_weight == weight
        part.run(StopAfterSteps(200))
        assert part.trace_hash() == whole.trace_hash()


class Line(gym.Env):
    """Three numbers that wander; action 1 is rewarded where the first is above 0."""

    observation_space, action_space = OBS, gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.t = self.np_random.uniform(-1, 1, 3).astype(np.float32), 0
        return self.at, {}

    def step(self, act):
        rew = float(act == (self.at[0] > 0))
        self.at, self.t = self.np_random.uniform(-1, 1, 3).astype(np.float32), self.t + 1
        return self.at, rew, False, self.t == 10, {}
