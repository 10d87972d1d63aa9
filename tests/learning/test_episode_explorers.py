"""Explorers that hear of episodes, and those of distributions: closed forms, float64 references, and what is saved."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_fakes import ACT, Noisy, Recorder, robot_of, same, spaces_of, weights

from parl_like import Agent, ComputationTask, OffPolicyHelper, OnPolicyHelper, Robot, VectorAgent, create_algorithm_func
from parl_like.algorithms import DQN, PPO, SAC, TD3
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.learning.explorers import (
    GSDE,
    UCB,
    Beta,
    BootstrappedHeads,
    EpsilonGreedy,
    GumbelSoftmax,
    Noise,
    OrnsteinUhlenbeck,
    Softmax,
    SquashedGaussian,
    StructuredExplorer,
    Weighted,
)
from parl_like.learning.explorers import Noisy as NoisyExplorer
from parl_like.models import MLPQ, BetaHead, GSDEHead, MLPActorCritic, MLPActorQ, SquashedGaussianHead, make_head

N = 20_000
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


def noise_of(explorer, lanes, seed=0, drawn=True):
    return Noise(explorer, np.random.default_rng(seed), drawn, lanes)


def rows_of(n=N, **columns):
    return {name: np.repeat(np.asarray(column)[None], n, 0) for name, column in columns.items()}


# ------------------------------------------------------------------------------------------------------------ closed forms


def test_ornstein_uhlenbeck_noise_has_the_variance_and_correlation_of_its_formula():
    """θ 0.25, dt 0.4, σ 0.5: a = 0.9. After t steps the variance is 0.25 · 0.4 (1 − 0.81ᵗ) / 0.19, and x_{t+1} = 0.9 x_t + …"""
    noise = noise_of(OrnsteinUhlenbeck(1, std=0.5, theta=0.25, dt=0.4), N)
    x = np.stack([noise.rows(N)[:, 0] for _ in range(30)])
    for t, expected in ((1, 0.1), (2, 0.1 * 1.81), (30, 0.1 * (1 - 0.81**30) / 0.19)):
        assert abs(x[t - 1].var() / expected - 1) < 4 * np.sqrt(2 / N)  # a variance's relative standard error
        assert abs(x[t - 1].mean()) < 4 * np.sqrt(expected / N)
    assert np.corrcoef(x[28], x[29])[0, 1] == pytest.approx(0.9, abs=4 * 0.19 / np.sqrt(N))
    act = noise.explorer.act({"mean": np.zeros((N, 1), np.float32)}, noise.explorer.memory)["act"]
    np.testing.assert_array_equal(act, np.clip(noise.explorer.memory, -1, 1))


def test_correlated_noise_is_standard_normal_at_every_step_and_goes_on():
    """ρ 0.9: x_t has variance 1, x_t and x_{t+1} the correlation 0.9, x_t and x_{t+3} 0.9³; an episode begins with new noise."""
    noise = noise_of(SquashedGaussian(1, correlation=0.9), N)
    x = np.stack([noise.rows(N)[:, 0] for _ in range(8)])
    for t in (0, 3, 7):
        assert abs(x[t].var() - 1) < 4 * np.sqrt(2 / N) and abs(x[t].mean()) < 4 / np.sqrt(N)
    assert np.corrcoef(x[3], x[4])[0, 1] == pytest.approx(0.9, abs=4 * 0.19 / np.sqrt(N))
    assert np.corrcoef(x[3], x[6])[0, 1] == pytest.approx(0.729, abs=4 * 0.47 / np.sqrt(N))
    last = noise.explorer.memory.copy()
    noise.begin(3)
    assert not np.array_equal(noise.explorer.memory[3], last[3]) and np.array_equal(noise.explorer.memory[4:], last[4:])
    out = {"mean": np.full((1, 1), 0.5, np.float32), "log_std": np.zeros((1, 1), np.float32)}
    assert noise.explorer.act(out, noise.explorer.greedy()[None])["act"].item() == pytest.approx(np.tanh(0.5))
    plain, also = noise_of(SquashedGaussian(1), 4), noise_of(SquashedGaussian(1, correlation=0.0), 4)
    np.testing.assert_array_equal(plain.rows(4), also.rows(4))
    with pytest.raises(ValueError, match="correlation is 1.0"):
        SquashedGaussian(1, correlation=1.0)


def test_gsde_noise_is_a_function_of_the_state_with_the_variance_of_the_formula():
    """φ = (1, 2), σ of the only action (0.5, 0.25): variance 1 · 0.25 + 4 · 0.0625 = 0.5, drawn over many episodes."""
    head = GSDEHead(2, 1)
    head.log_std.data = torch.log(torch.tensor([[0.5], [0.25]]))
    out = {k: v.detach().numpy() for k, v in head(torch.tensor([[1.0, 2.0]])).items()}
    assert np.exp(2 * out["log_std"]).item() == pytest.approx(0.5, rel=1e-5)
    noise = noise_of(GSDE(1, 2, log_prob=True), N)
    many = {name: np.repeat(value, N, 0) for name, value in out.items()}
    made = noise.explorer.act(many, noise.rows(N))
    deviation = made["act"] - out["mean"]
    assert abs(deviation.var() / 0.5 - 1) < 4 * np.sqrt(2 / N) and abs(deviation.mean()) < 4 * np.sqrt(0.5 / N)
    np.testing.assert_array_equal(made["act"], noise.explorer.act(many, noise.rows(N))["act"])  # until an episode begins
    tensors = {name: torch.from_numpy(value) for name, value in many.items()}
    np.testing.assert_allclose(made["log_prob"], head.log_prob(tensors, torch.from_numpy(made["act"])).detach(), atol=2e-4)
    kept = noise.explorer.memory.copy()
    noise.begin(3)
    assert not np.array_equal(noise.explorer.memory[3], kept[3]) and np.array_equal(noise.explorer.memory[4:], kept[4:])
    greedy = noise.explorer.act(out, noise.explorer.greedy()[None])["act"]
    np.testing.assert_allclose(greedy, out["mean"])


def test_gsde_may_draw_anew_within_an_episode():
    noise = noise_of(GSDE(1, 2, period=2), 3)
    rows = [noise.rows(3) for _ in range(4)]
    assert np.array_equal(rows[0], rows[1]) and np.array_equal(rows[2], rows[3]) and not (rows[1] == rows[2]).any()
    with pytest.raises(ValueError, match="period is 0"):
        GSDE(1, 2, period=0)


def test_a_ladder_of_epsilons_may_be_an_array_and_is_not_empty():
    ladder = EpsilonGreedy(0.4 ** np.linspace(1.0, 8.0, 4))
    assert set(ladder.begin(np.random.default_rng(0), 100).round(6)) == set((0.4 ** np.linspace(1.0, 8.0, 4)).round(6))
    for wrong, message in (([], "epsilon is empty"), (np.array([0.5, 1.5]), r"epsilon is array\(\[0.5, 1.5\]\)")):
        with pytest.raises(ValueError, match=message):
            EpsilonGreedy(wrong)


def test_each_lane_keeps_the_epsilon_that_its_episode_drew():
    noise = noise_of(EpsilonGreedy([0.0, 1.0]), 400)
    explores = np.array([noise.rows(400) >= 0 for _ in range(20)])
    assert (explores == explores[0]).all() and abs(explores[0].mean() - 0.5) < 4 * 0.5 / 20  # ε is 0 or 1, each in half of them
    before = noise.explorer.memory.copy()
    for lane in range(200):
        noise.begin(lane)
    assert (noise.explorer.memory[200:] == before[200:]).all() and (noise.explorer.memory[:200] != before[:200]).any()
    with pytest.raises(ValueError, match=r"epsilon is \[0.1, 2\]; expected numbers, each in \[0, 1\]"):
        EpsilonGreedy([0.1, 2])


def test_ucb_by_hand():
    """q 1, 0.9, 0 after 8, 1, 1 times of 10, c 0.5: 1 + 0.5 √(2.3026/8) = 1.268, 0.9 + 0.5 · 1.5174 = 1.659, 0.759."""
    explorer, out = UCB(0.5), {"q": np.array([[1.0, 0.9, 0.0]]), "counts": np.array([[8, 1, 1]])}
    assert explorer.act(out, np.array([0.3]))["act"].tolist() == [1]
    assert explorer.act(out, np.array([explorer.greedy()]))["act"].tolist() == [0]
    assert explorer.act({**out, "mask": np.array([[1, 0, 1]])}, np.array([0.3]))["act"].tolist() == [0]
    new = {"q": np.array([[1.0, 0.9, 0.0, 0.0]]), "counts": np.array([[8, 1, 0, 0]])}
    assert [int(explorer.act(new, np.array([u]))["act"][0]) for u in (0.1, 0.9)] == [2, 3]  # those never taken, by chance
    assert explorer.act({"q": np.zeros((1, 2)), "counts": np.zeros((1, 2))}, np.array([0.6]))["act"].tolist() == [1]


def close(found, expected):
    expected = np.asarray(expected)
    return bool((np.abs(found - expected) <= 4 * np.sqrt(expected * (1 - expected) / N) + 1e-12).all())


@pytest.mark.parametrize(("explorer", "out", "expected"), [
    (Softmax(0.5), dict(q=0.5 * np.log([0.1, 0.2, 0.7])), [0.1, 0.2, 0.7]),
    (Weighted(), dict(weights=[1.0, 3.0, 0.0]), [0.25, 0.75, 0.0]),
    (Weighted(), dict(weights=[1.0, 3.0, 1.0], mask=[1, 0, 1]), [0.5, 0.0, 0.5]),
    (Weighted(), dict(weights=[0.0, 3.0, 0.0], mask=[1, 0, 1]), [0.5, 0.0, 0.5]),
    (GumbelSoftmax(3), dict(logits=np.log([0.1, 0.2, 0.7])), [0.1, 0.2, 0.7]),
    (GumbelSoftmax(3), dict(logits=np.log([0.1, 0.2, 0.7]), mask=[1, 1, 0]), [1 / 3, 2 / 3, 0.0]),
], ids=["softmax", "weighted", "masked", "only illegal weights", "gumbel", "masked gumbel"])
def test_frequencies(explorer, out, expected):
    act = explorer.act(rows_of(**out), explorer.draw(np.random.default_rng(1), 0, N))["act"]
    assert close(np.bincount(act, minlength=3) / N, expected)
    best = explorer.act(rows_of(1, **out), np.array([explorer.greedy()]))["act"]
    assert best.tolist() == [int(np.argmax(expected))]


# -------------------------------------------------------------------------------------------------------------------- beta


def test_beta_head_is_the_distribution_of_torch():
    """Of the action 2 x − 1 the density is half that of x."""
    torch.manual_seed(0)
    head = BetaHead(3, 2, gain=None)
    out = head(5 * torch.randn(50, 3))
    x = torch.rand(50, 2) * 0.98 + 0.01
    reference = torch.distributions.Beta(out["alpha"].double(), out["beta"].double())
    assert (out["alpha"] > 1).all() and (out["beta"] > 1).all()
    expected = (reference.log_prob(x.double()) - np.log(2)).sum(1)
    torch.testing.assert_close(head.log_prob(out, 2 * x - 1).double(), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(head.entropy(out).double(), (reference.entropy() + np.log(2)).sum(1), atol=1e-4, rtol=1e-4)
    hand = {"alpha": torch.tensor([[2.0]]), "beta": torch.tensor([[3.0]])}  # density 12 x (1 − x)², at x = 0.25: 1.6875
    assert head.log_prob(hand, torch.tensor([[-0.5]])).item() == pytest.approx(np.log(1.6875 / 2), abs=1e-6)
    assert torch.isfinite(head.log_prob(hand, torch.tensor([[1.0]]))).all()


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (2.0, 5.0), (30.0, 1.5)])
def test_beta_actions_have_its_moments_and_density(alpha, beta):
    explorer = Beta(1, log_prob=True)
    out = rows_of(alpha=np.array([alpha], np.float32), beta=np.array([beta], np.float32))
    made = explorer.act(out, explorer.draw(np.random.default_rng(0), 0, N))
    x, total = (made["act"][:, 0].astype(np.float64) + 1) / 2, alpha + beta
    mean, var = alpha / total, alpha * beta / (total**2 * (total + 1))
    assert abs(x.mean() - mean) < 4 * np.sqrt(var / N) and abs(x.var() / var - 1) < 0.06
    grid = (np.arange(200_000) + 0.5) / 200_000  # the share below each decile, against the integral of the density
    density = np.exp(torch.distributions.Beta(alpha, beta).log_prob(torch.from_numpy(grid)).numpy())
    below = np.array([(x < q).mean() for q in np.linspace(0.1, 0.9, 9)])
    assert close(below, [min(density[grid < q].mean() * (grid < q).mean(), 1.0) for q in np.linspace(0.1, 0.9, 9)])
    tensors = {name: torch.from_numpy(value) for name, value in out.items()}
    np.testing.assert_allclose(made["log_prob"], BetaHead(1, 1).log_prob(tensors, torch.from_numpy(made["act"])), atol=1e-4)
    best = explorer.act({name: value[:1] for name, value in out.items()}, explorer.greedy()[None])["act"]
    assert best.item() == pytest.approx(2 * mean - 1, abs=1e-6)


def test_beta_needs_finite_bounds_and_distributions_have_names():
    with pytest.raises(ValueError, match="finite bounds"):
        make_head(4, gym.spaces.Box(-np.inf, np.inf, (2,)), distribution="beta")
    with pytest.raises(ValueError, match="'gaussian', 'squashed', 'gsde', 'beta'"):
        make_head(4, BOX, distribution="betta")


# ----------------------------------------------------------------------------------------------------- borders, in float64


def test_squashed_gaussian_is_stable_at_the_borders():
    """Of u up to ±30 the log-probability of the drawn action is that of float64 arithmetic, and the action is inside [−1, 1].

    What is stored with an action is what the head says of it when it is learned from, or ratios of the two would not be 1 where
    nothing has changed: of actions near the borders float32 knows u no more."""
    u = np.linspace(-30, 30, 601)
    log_std = np.full((601, 1), -1.0)
    z = np.linspace(-3, 3, 601)[:, None]
    mean = u[:, None] - np.exp(log_std) * z
    made = SquashedGaussian(1, log_prob=True).act({"mean": mean.astype(np.float32), "log_std": log_std.astype(np.float32)},
                                                  z.astype(np.float32))
    # log(1 − tanh² u) = −2 log cosh u
    exact = -0.5 * z[:, 0] ** 2 + 1.0 - 0.5 * np.log(2 * np.pi) + 2 * (np.abs(u) + np.log1p(np.exp(-2 * np.abs(u))) - np.log(2))
    assert (np.abs(made["act"]) <= 1).all()
    head = SquashedGaussianHead(1, 1)
    out = {"mean": torch.from_numpy(mean).float(), "log_std": torch.from_numpy(log_std).float()}
    act, log_prob = head.draw(out, torch.from_numpy(z).float())
    np.testing.assert_allclose(log_prob, exact, rtol=2e-6, atol=2e-5)
    inside = np.abs(u) < 3
    np.testing.assert_allclose(head.log_prob(out, act)[inside], exact[inside], atol=1e-3)
    np.testing.assert_array_equal(head.log_prob(out, torch.from_numpy(made["act"])), made["log_prob"])
    for bound in (-1.0, 1.0):
        assert torch.isfinite(head.log_prob(out, torch.full((601, 1), bound))).all()


def test_noisy_actions_stay_within_the_bounds_and_are_exact_inside():
    explorer = NoisyExplorer(2, std=0.5)
    mean = np.array([[1.0, -1.0]] * 1000, np.float32)
    noise = explorer.draw(np.random.default_rng(0), 0, 1000)
    act = explorer.act({"mean": mean}, noise)["act"]
    exact = np.clip(mean.astype(np.float64) + noise, -1, 1)
    np.testing.assert_allclose(act, exact, atol=1e-7)
    assert np.isfinite(act).all() and (act[:, 0] == 1).mean() == pytest.approx(0.5, abs=0.07)


# ----------------------------------------------------------------------------------------------------- agents and episodes


class Heads(DQN):
    """Two heads: the first likes action 0, the second action 1; together, action 0."""

    def explorer(self):
        return BootstrappedHeads(2)

    def predict(self, inputs):
        n = len(inputs.obs)
        head = inputs.get("head", torch.full((n,), -1))
        self.heads = [*getattr(self, "heads", ()), *head.tolist()]
        return {"q": torch.nn.functional.one_hot((head > 0).long(), 2).float()}


def heads():
    return create_algorithm_func(MLPQ, dict(**spaces_of(Noisy()), hidden=[4]), Heads, {})


def off(**options):
    return lambda: OffPolicyHelper(**{"size": 2000, "batch_size": 8, "learn_every": 8, **options})


@pytest.mark.parametrize("agent", [Agent, lambda: VectorAgent(3)], ids=["single", "vector"])
def test_an_episode_follows_one_head_which_the_model_is_given(agent):
    with robot_of(heads(), off(learn_every=None), env=Noisy, agent=agent, n_agents=2, seed=4) as robot:
        robot.run(StopAfterSteps(600))
        buffer, seen = robot.buffers["RL"], set()
        for lane in range(buffer.n_lanes):
            rows = buffer.lane_rows(lane)
            ends = np.flatnonzero(rows["terminated"] | rows["truncated"])
            for episode in filter(len, np.split(rows["act"], ends + 1)):
                assert len(set(episode.tolist())) == 1  # one head from the first to the last act
                seen.add((lane, int(episode[0])))
        assert seen == {(lane, act) for lane in range(buffer.n_lanes) for act in (0, 1)}
        algorithm = robot.tasks["RL"].algorithm
        algorithm.heads = []
        assert robot.act(np.zeros(2, np.float32)) == 0 and algorithm.heads == [-1]
        robot.evaluate(2)
        assert set(algorithm.heads) == {-1}  # all heads together
    with pytest.raises(ValueError, match="n is 0"):
        BootstrappedHeads(0)


def model(kind, act, **options):
    return create_algorithm_func(kind, dict(obs=Noisy.observation_space, act=act, hidden=[8], **options), *{
        MLPActorQ: (TD3 if options else SAC, {}), MLPQ: (DQN, {}), MLPActorCritic: (PPO, dict(epochs=1))}[kind])


CASES = {
    "ornstein-uhlenbeck": (lambda: model(MLPActorQ, BOX, policy="deterministic"), off(explorer=OrnsteinUhlenbeck(2))),
    "correlated": (lambda: model(MLPActorQ, BOX), off(explorer=SquashedGaussian(2, correlation=0.8))),
    "epsilon of the episode": (lambda: model(MLPQ, ACT), off(explorer=EpsilonGreedy([0.1, 0.5, 0.9]))),
    "heads": (heads, off()),
    "gsde": (lambda: model(MLPActorCritic, BOX, distribution="gsde"), lambda: OnPolicyHelper(unroll=8)),
    "beta": (lambda: model(MLPActorCritic, BOX, distribution="beta"), lambda: OnPolicyHelper(unroll=8)),
}


def robot_for(case, serve="central", **options):
    func, helper = CASES[case]
    box = case in ("ornstein-uhlenbeck", "correlated", "gsde", "beta")
    return Robot((lambda: Noisy(BOX)) if box else Noisy, tasks={"RL": ComputationTask(func(), helper, serve=serve)}, seed=7,
                 trace=True, **options)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("agent", [Agent, lambda: VectorAgent(2)], ids=["single", "vector"])
def test_a_resumed_run_is_the_one_that_went_on(case, agent):
    """What explorers remember of open episodes is carried over with them, and saved."""
    with robot_for(case, agent=agent, n_agents=2) as robot:
        robot.run(StopAfterSteps(75))
        robot.checkpoint_boundary()
        state = robot.state_dict()
        robot.run(StopAfterSteps(150))
        expected = robot.trace_hash(), weights(robot)
        memories = [helper.memory for agent in robot.agents for helper in agent.helpers.values()]
    with robot_for(case, agent=agent, n_agents=2) as again:
        again.load_state_dict(state)
        again.run(StopAfterSteps(150))
        assert (again.trace_hash(), weights(again)) == expected
        found = [helper.memory for agent in again.agents for helper in agent.helpers.values()]
        assert all(same(dict(enumerate(a)), dict(enumerate(b))) for a, b in zip(found, memories, strict=True))
        assert all(memories) is (case != "beta")


@pytest.mark.parametrize(("case", "serve"), [("gsde", "central"), ("heads", "replica")])
def test_workers_agents_have_memories_of_their_own(case, serve):
    """Of two workers with two agents each, every agent does what it does in one process."""
    digests = []
    for driver in ("cooperative", "processes"):
        with robot_for(case, serve if driver == "processes" else "central", n_agents=4, driver=driver) as robot:
            robot.run(StopAfterSteps(4 * 8 * 2))
            robot.trace_hash()
            digests.append(dict(robot.trace.digests))
    assert digests[0] == digests[1] and len(digests[0]) == 4


def test_one_explorer_given_to_all_helpers_has_a_memory_in_each():
    with robot_for("ornstein-uhlenbeck", n_agents=2) as robot:
        robot.run(StopAfterSteps(20))
        first, second = (agent.helpers["RL"].explorer.memory for agent in robot.agents)
        assert not np.array_equal(first, second)


def test_parts_of_an_action_cannot_remember():
    with pytest.raises(ValueError, match="GSDE of 'arm' remembers its episode"):
        StructuredExplorer({"arm": GSDE(1, 2)})


def test_an_environment_that_ends_at_once_and_one_without_a_reset_are_no_trouble():
    """Episodes of one step, each with noise of its own."""

    class Short(Noisy):
        def step(self, act):
            return (*super().step(act)[:2], True, False, {})

    func, helper = CASES["ornstein-uhlenbeck"]
    with robot_of(func(), helper, env=lambda: Short(BOX), seed=1) as robot:
        robot.run(StopAfterSteps(50))
        assert robot.episodes == 50

    algorithm = Recorder()
    algorithm.predict = lambda inputs: {"q": torch.zeros(len(inputs.obs), 2)}
    with robot_of(algorithm, off(explorer=BootstrappedHeads(3)), env=None) as robot:
        assert robot.agents[0].helpers["RL"].memory[0].shape == (1,)


def test_ppo_learns_the_borders_with_a_beta_policy():
    """The best action lies on the bound 1: after 30 updates the mean is beyond 0.4 (it begins near 0)."""

    class Bound(gym.Env):
        observation_space, action_space = gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(1, np.float32), {}

        def step(self, act):
            return np.zeros(1, np.float32), float(act[0]), True, False, {}

    func = create_algorithm_func(MLPActorCritic, dict(**spaces_of(Bound()), hidden=[16], distribution="beta"), PPO, dict(lr=3e-2))
    with robot_of(func, lambda: OnPolicyHelper(unroll=16), env=Bound, n_agents=4, seed=0) as robot:
        assert abs(robot.act(np.zeros(1, np.float32))[0]) < 0.1
        robot.run(StopAfterSteps(30 * 64))
        assert robot.act(np.zeros(1, np.float32))[0] > 0.4
        assert robot.evaluate(4).mean_return > 0.4

