"""Bandits on the testbed of the textbook, and posterior sampling of worlds."""

import gymnasium as gym
import numpy as np
import pytest

from parl_like import ComputationTask, OnPolicyHelper, Robot, VectorAgent, create_algorithm_func
from parl_like.agents.online import OnlineHelper
from parl_like.algorithms import PSRL, DoubleQLearning, EpsilonGreedyBandit, GradientBandit, QLearning, ThompsonBandit, UCBBandit
from parl_like.algorithms.tables.psrl import best_values
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.envs.textbook import NChain, RiverSwim, Testbed
from parl_like.learning.explorers import Thompson
from parl_like.learning.schedule import Linear
from parl_like.models import QTable
from parl_like.values.batch import Batch

ARMS = 10


def shares(kind, problems_n=2000, steps=1000, prior=0.0, shift=0.0, **options):
    """The share of problems whose best arm is pulled, at the last pulls."""
    env, rng = Testbed(problems_n, ARMS), np.random.default_rng(1)
    algorithm = kind(QTable(env.observation_space, env.action_space, prior=prior), **options)
    explorer, problems, best = algorithm.explorer(), np.arange(problems_n), []
    for step in range(steps):
        act = explorer.act(algorithm.predict(Batch(obs=problems)), explorer.draw(rng, step, problems_n))["act"]
        rew = env.means[problems, act] + shift + rng.normal(size=problems_n)
        algorithm.learn(Batch(obs=problems, act=act, rew=rew))
        best.append((act == env.best).mean())
    return np.mean(best[-20:])


@pytest.mark.parametrize(("problems", "room"), [(400, 0.04), pytest.param(2000, 0.02, marks=pytest.mark.slow)])
def test_the_testbed(problems, room):
    """Sutton & Barto (2018), figures 2.2 and 2.4: after 1,000 pulls of 2,000 problems; fewer have a larger standard error."""
    assert shares(EpsilonGreedyBandit, problems, epsilon=0.1) == pytest.approx(0.80, abs=room)
    assert shares(UCBBandit, problems, c=2.0) == pytest.approx(0.83, abs=room + 0.01)
    assert shares(EpsilonGreedyBandit, problems, epsilon=0.0) < 0.45  # figure 2.2
    assert shares(ThompsonBandit, problems) > 0.85


@pytest.mark.slow
def test_the_baseline_of_the_gradient_bandit_counts_where_rewards_are_far_from_0():
    """Sutton & Barto (2018), figure 2.5: means are around 4."""
    with_it, without = (shares(GradientBandit, prior=None, shift=4.0, lr=0.1, baseline=one) for one in (True, False))
    assert with_it == pytest.approx(0.83, abs=0.04) and without < 0.65


def bandit(kind, prior=0.0, **options):
    return kind(QTable(gym.spaces.Discrete(1), gym.spaces.Discrete(2), prior=prior), **options)


def test_values_and_preferences_by_hand():
    rows = [Batch(obs=0, act=0, rew=3.0), Batch(obs=0, act=0, rew=6.0), Batch(obs=0, act=1, rew=1.0)]
    one, two = bandit(EpsilonGreedyBandit), bandit(EpsilonGreedyBandit, None, lr=0.5)
    for row in rows:
        one.learn(row)
        two.learn(row)
    assert one.model.table.tolist() == [[4.5, 1.0]] and two.model.table.tolist() == [[3.75, 0.5]]
    # Two rewards of arm 0 with the mean 4.5, and a belief that weighs as one reward of 0; deviations 1/√3 and 1/√2.
    thompson = bandit(ThompsonBandit)
    for row in rows:
        thompson.learn(row)
    out = thompson.predict(Batch(obs=np.array([0])))
    np.testing.assert_allclose(out["q"], [[3.0, 0.5]])
    np.testing.assert_allclose(out["std"], [[3**-0.5, 2**-0.5]])
    # π is ½, ½; the reward 3 is 3 better than nothing so far: ±½ · 3 · ½. Then π of 1.5: 1/(1 + e^-1.5).
    gradient = bandit(GradientBandit, None, lr=0.5)
    gradient.learn(rows[0])
    assert gradient.model.table.tolist() == [[0.75, -0.75]]
    gradient.learn(rows[1])
    step = 0.5 * 3.0 * (1 - 1 / (1 + np.exp(-1.5)))
    np.testing.assert_allclose(gradient.model.table, [[0.75 + step, -0.75 - step]])
    assert gradient.model.mean_reward.tolist() == [4.5]


def test_thompson_draws_and_tests_take_the_mean():
    explorer, out = Thompson(2), {"q": np.tile([1.0, 0.0], (4000, 1)), "std": np.tile([1.0, 1.0], (4000, 1))}
    chosen = explorer.act(out, explorer.draw(np.random.default_rng(0), 0, 4000))["act"]
    assert (chosen == 0).mean() == pytest.approx(0.760, abs=0.03)  # Φ(1/√2)
    assert not explorer.act({name: part[:1] for name, part in out.items()}, explorer.greedy()[None])["act"].any()


@pytest.mark.parametrize("kind", [EpsilonGreedyBandit, UCBBandit, ThompsonBandit, GradientBandit])
@pytest.mark.parametrize("bad", [np.nan, np.inf, np.array([1.0, -np.inf])], ids=str)
def test_bandits_refuse_rewards_that_are_not_finite_and_count_nothing_of_them(kind, bad):
    made = bandit(kind, None if kind is GradientBandit else 0.0)
    before = {name: part.clone() for name, part in made.model.named_buffers()}
    zeros = np.zeros(np.shape(bad), int)
    with pytest.raises(ValueError, match=f"{kind.__name__}: rewards are .*; expected finite numbers"):
        made.learn(Batch(obs=zeros, act=zeros, rew=bad))
    assert all(part.equal(before[name]) for name, part in made.model.named_buffers())


@pytest.mark.parametrize("kind", [UCBBandit, ThompsonBandit])
def test_pulls_are_counted_or_the_bandit_is_refused(kind):
    with pytest.raises(ValueError, match="the table has no prior, so nobody counts pulls"):
        bandit(kind, None)


@pytest.mark.parametrize("kind", [DoubleQLearning, PSRL, GradientBandit])
def test_a_prior_that_would_not_count_is_refused(kind):
    with pytest.raises(ValueError, match=f"{kind.__name__}: the table has the prior 1.0.*leave the prior out"):
        bandit(kind, 1.0)


def test_thompson_sampling_refuses_values_that_are_no_means():
    for prior, lr in ((1.0, 1.0), (0.0, 0.5), (0.0, Linear(1.0, 0.0, 10))):
        with pytest.raises(ValueError, match=f"ThompsonBandit: the table has the prior {prior}, lr is .*; expected 0 and 1"):
            bandit(ThompsonBandit, prior, lr=lr)
    with pytest.raises(AttributeError, match="the posterior needs means of rewards"):
        ComputationTask(lambda: bandit(ThompsonBandit)).algorithm.lr = 0.5


@pytest.mark.parametrize("kind", [EpsilonGreedyBandit, UCBBandit, ThompsonBandit, GradientBandit])
@pytest.mark.parametrize("helper", [OnlineHelper, lambda: OnPolicyHelper(unroll=1)], ids=["online", "rows"])
def test_a_bandit_is_a_task_and_a_resumed_run_is_the_same(kind, helper, tmp_path):
    def make():
        env = Testbed(5)
        model = dict(obs=env.observation_space, act=env.action_space, prior=None if kind is GradientBandit else 0.0)
        return Robot(lambda: Testbed(5), tasks={"RL": ComputationTask(create_algorithm_func(QTable, model, kind, {}), helper)},
                     n_agents=2, seed=3, trace=True)

    with make() as whole, make() as half:
        whole.run(StopAfterSteps(300))
        whole.save(tmp_path / "half")
        whole.run(StopAfterSteps(300))
        half.load(tmp_path / "half")
        half.run(StopAfterSteps(300))
        assert whole.trace_hash() == half.trace_hash()
        # A new evaluation asks the first problems again.
        assert whole.evaluate(5, env=lambda: Testbed(5)).mean_return > 0.5


# ------------------------------------------------------------------------------------------------------------------- PSRL


def test_the_values_of_a_world_by_hand():
    # State 0 ends by its first action and pays 3; the second one pays 1 and stays, so 10 with γ 0.9.
    weights = np.array([[[0.0, 1.0], [2.0, 0.0]]])
    found = best_values(weights, np.array([[3.0, 1.0]]), 0.9, np.zeros((1, 2)), 1e-10)
    np.testing.assert_allclose(found, [[3.0, 10.0]], atol=1e-8)


def test_counts_and_the_mean_world_by_hand():
    algorithm = bandit(PSRL, None, gamma=0.5, every=100)
    algorithm.learn(Batch(obs=np.array([0, 0, 0]), act=np.array([0, 0, 1]), rew=np.array([3.0, 6.0, 1.0]),
                          obs_next=np.zeros(3, int), terminated=np.array([False, False, True]), truncated=np.zeros(3, bool)))
    assert algorithm.model.transitions.tolist() == [[[2.0, 0.0], [0.0, 1.0]]]
    assert algorithm.model.reward_sum.tolist() == [[9.0, 1.0]]
    # Mean rewards 9/3 and ½; it goes on with (2 + ½)/3 and ½/2 (the prior of 1 is divided by two): v = 3 + ½ · 5/6 · v.
    v = 3.0 / (1 - 0.5 * 5 / 6)
    np.testing.assert_allclose(algorithm.model.expected, [[v, 0.5 + 0.5 * 0.25 * v]], atol=1e-3)
    algorithm.mode = "test"
    assert algorithm.predict(Batch(obs=0))["q"].tolist() == algorithm.model.expected[0].tolist()


def counted_world(**options):
    """Two states and two actions, with rows of (0, 0) alone: twice to 1, three times to the end; they earn 10 together."""
    made = PSRL(QTable(gym.spaces.Discrete(2), gym.spaces.Discrete(2)), every=100, **options)
    rows = [(1, 3.0, False), (1, 1.0, False), (0, 2.0, True), (0, 2.0, True), (0, 2.0, True)]
    after, rew, ended = (np.array(one) for one in zip(*rows, strict=True))
    zero = np.zeros(5, int)
    made.learn(Batch(obs=zero, act=zero, rew=rew, obs_next=after, terminated=ended, truncated=zero.astype(bool)))
    return made


def test_a_world_is_drawn_from_what_is_believed():
    """Means and variances of 20,000 draws: Dirichlet(0.5, 2.5, 3.5) and N(12/6, 3²/6); untried Dirichlet(½, …) and N(2, 3²)."""
    made, n = counted_world(dirichlet=1.5, reward_mean=2.0, reward_std=3.0), 20_000
    worlds = [made.world() for _ in range(n)]
    weights, rewards = (np.array(one) for one in zip(*worlds, strict=True))
    chances = weights / weights.sum(-1, keepdims=True)
    for where, alpha, mean, variance in (((0, 0), [0.5, 2.5, 3.5], 2.0, 1.5), ((1, 0), [0.5, 0.5, 0.5], 2.0, 9.0)):
        alpha = np.array(alpha)
        share, total, own = alpha / alpha.sum(), alpha.sum(), chances[:, *where]
        spread = share * (1 - share) / (total + 1)
        np.testing.assert_allclose(own.mean(0), share, atol=5 * np.sqrt(spread.max() / n))
        np.testing.assert_allclose(own.var(0), spread, rtol=0.06)
        assert rewards[:, *where].mean() == pytest.approx(mean, abs=5 * np.sqrt(variance / n))
        assert rewards[:, *where].var() == pytest.approx(variance, rel=0.06)
    assert abs(np.corrcoef(rewards[:, 0, 0], rewards[:, 1, 0])[0, 1]) < 0.04, "each pair has its own"


def test_the_table_is_the_best_of_the_world_that_was_drawn():
    made = counted_world(gamma=0.5)
    made.rng = np.random.default_rng(3)
    made.draw()
    made.rng = np.random.default_rng(3)
    np.testing.assert_allclose(made.model.table, best_values(*made.world(), 0.5, np.zeros((2, 2)), 1e-10), atol=1e-3)


def test_the_first_episode_has_a_world_of_its_own():
    tables = []
    for seed in (1, 1, 2):
        task = ComputationTask(lambda: bandit(PSRL, None))
        task.build(np.random.SeedSequence(seed))
        tables.append(task.algorithm.model.table.tolist())
    assert tables[0] == tables[1] != tables[2] and len(set(tables[0][0])) == 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_posterior_sampling_refuses_rewards_that_are_not_finite_and_counts_nothing_of_them(bad):
    made = bandit(PSRL, None, every=1)
    with pytest.raises(ValueError, match="PSRL: rewards are .*; expected finite numbers"):
        made.learn(Batch(obs=0, act=0, rew=bad, obs_next=0, terminated=False, truncated=False))
    assert not made.model.transitions.any() and not made.model.reward_sum.any()
    with pytest.raises(ValueError, match="best_values: gamma is 0.9, rewards are between"):
        best_values(np.ones((1, 1, 2)), np.array([[bad]]), 0.9, np.zeros((1, 1)))
    made.gamma = 1.0
    with pytest.raises(ValueError, match="best_values: gamma is 1.0"):
        made.learn(Batch(obs=0, act=0, rew=1.0, obs_next=0, terminated=False, truncated=False))


@pytest.mark.parametrize("options", [dict(n_agents=2), dict(env=lambda: gym.make_vec("FrozenLake-v1", 2), agent=VectorAgent)],
                         ids=["agents", "vector"])
def test_a_world_is_that_of_one_environment(options):
    """With two the end of an episode of one would draw a new world in the middle of the other's."""
    spaces = dict(obs=gym.spaces.Discrete(16), act=gym.spaces.Discrete(4))
    task = ComputationTask(create_algorithm_func(QTable, spaces, PSRL, {}), lambda: OnPolicyHelper(unroll=1))
    with pytest.raises(ValueError, match="its algorithm learns from one environment alone, and there are more; set n_agents=1"):
        Robot(**{"env": "FrozenLake-v1", **options}, tasks={"RL": task})


def test_a_world_is_followed_in_a_worker_too():
    spaces = dict(obs=gym.spaces.Discrete(16), act=gym.spaces.Discrete(4))
    task = ComputationTask(create_algorithm_func(QTable, spaces, PSRL, {}), lambda: OnPolicyHelper(unroll=1))
    with Robot("FrozenLake-v1", tasks={"RL": task}, n_agents=1, driver=Processes(workers=1)) as robot:
        robot.run(30)
        assert robot.tasks["RL"].version >= 30
    task = ComputationTask(create_algorithm_func(QTable, spaces, PSRL, {}), lambda: OnPolicyHelper(unroll=1))
    with Robot("FrozenLake-v1", tasks={"RL": task}, n_agents=2, driver=Processes(workers=2)) as robot:
        with pytest.raises(Exception, match="its algorithm learns from one environment alone"):
            robot.run(30)


def played(kind, env, steps, seed, **options):
    one = env()
    func = create_algorithm_func(QTable, dict(obs=one.observation_space, act=one.action_space), kind, options)
    with Robot(env, tasks={"RL": ComputationTask(func, OnlineHelper)}, seed=seed) as robot:
        robot.run(StopAfterSteps(steps))
        return robot.evaluate(10, seed=1).mean_return


def river():
    return gym.wrappers.TimeLimit(RiverSwim(), 20)


@pytest.mark.parametrize(("seed", "steps"), [
    (0, 2_000), *[pytest.param(seed, 6_000, marks=pytest.mark.slow) for seed in range(3)]])
def test_posterior_sampling_swims_up_the_river_and_random_actions_do_not(seed, steps):
    """The best policy earns 3.40 in 20 steps from the first state, going with the stream 0.1."""
    assert played(PSRL, river, steps, seed) > 2.5
    assert played(QLearning, river, steps, seed, lr=0.1, epsilon=0.1) < 0.5


def test_posterior_sampling_solves_the_chain():
    """At least 3,400 of 3,666 after 5,000 steps, as in the tests of Tianshou."""
    chain = lambda: gym.wrappers.TimeLimit(NChain(), 1000)  # noqa: E731
    assert played(PSRL, chain, 5_000, 0) >= 3_400
