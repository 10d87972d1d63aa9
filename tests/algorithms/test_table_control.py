"""Control with tables: targets by hand, identities, the cliff and the lake, planning, and tasks under every driver."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest

from parl_like import ComputationTask, EpisodicHelper, OnPolicyHelper, Robot, create_algorithm_func
from parl_like.agents.online import OnlineHelper
from parl_like.algorithms import (
    SARSA,
    DoubleQLearning,
    DynaQ,
    ExpectedSARSA,
    MonteCarlo,
    MonteCarloPrediction,
    NStepQ,
    PrioritizedSweeping,
    QLambda,
    QLearning,
    SARSALambda,
)
from parl_like.algorithms.tables import value_iteration
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopAfterEpisodes
from parl_like.envs.tabular import RandomWalk, TableEnv
from parl_like.envs.textbook import Maze
from parl_like.learning.algorithm import Exponential
from parl_like.learning.schedule import Linear
from parl_like.models import QTable, VTable
from parl_like.values.batch import Batch

WALK = RandomWalk(7, (0.0, 1.0))
SPACES = dict(obs=WALK.observation_space, act=WALK.action_space)


def walk():
    return gym.wrappers.TimeLimit(RandomWalk(7, (0.0, 1.0)), 9)


def robot(kind, env=walk, helper=OnlineHelper, **options):
    spaces = {name: options.pop(name) for name in ("seed", "n_agents", "driver") if name in options}
    one = env()
    func = create_algorithm_func(QTable, dict(obs=one.observation_space, act=one.action_space), kind, options)
    return Robot(env, trace=True, tasks={"RL": ComputationTask(func, helper)}, **spaces)


def table(made):
    return made.tasks["RL"].algorithm.model.table


def learned(kind, *batches, **options):
    task = ComputationTask(create_algorithm_func(QTable, SPACES, kind, dict(lr=0.5, gamma=0.5, **options)))
    task.build()
    task.algorithm.model.table[3:5] = (1.0, 4.0), (8.0, 2.0)
    for batch in batches:
        task.learn(dict(batch))
    return task.algorithm.model


# Right, right, left with the rewards 0, 1, 2; the last one ends the episode.
ROWS = {"obs": np.array([2, 3, 4]), "act": np.array([1, 1, 0]), "rew": np.array([0.0, 1.0, 2.0]), "obs_next": np.array([3, 4, 0]),
        "terminated": np.array([False, False, True]), "truncated": np.zeros(3, bool), "last": np.array([False, False, True]),
        "first": np.array([True, False, False]), "lane": np.zeros(3, np.int64), "next_act": np.array([1, 0, 0]),
        "has_next": np.array([True, True, False])}
ONE = {name: column[:1] for name, column in ROWS.items()}


def test_targets_of_one_step_by_hand():
    """Of the step to state 3, worth 1 and 4, with α = γ = ½."""
    assert learned(QLearning, ONE).table[2, 1] == 0.5 * 0.5 * 4
    assert learned(SARSA, ONE).table[2, 1] == 0.5 * 0.5 * 4
    assert learned(ExpectedSARSA, ONE, epsilon=0.2).table[2, 1] == pytest.approx(0.5 * 0.5 * (0.9 * 4 + 0.1 * 1))
    double = learned(DoubleQLearning, ONE)  # the other table is worth 0 in state 3, or chooses the first of two equals
    assert (double.table[2, 1], double.second[2, 1]) in [(0.0, 0.25), (0.0, 0.0)]


def test_targets_of_several_steps_by_hand():
    # Two steps: 0 + ½ · 1 + ¼ · Q(4, 0); 1 + ½ · 2; 2. Of Q(3, 1), 4, and Q(4, 0), 8, half the way.
    found = learned(NStepQ, ROWS, n=2).table
    assert (found[2, 1], found[3, 1], found[4, 0]) == (0.5 * (0.5 + 2.0), 0.5 * (4 + 2), 0.5 * (8 + 2))
    # SARSA(λ), λ = 1: errors ½ · 4, then 1 + ½ · 8 − 4, then 2 − 8, with traces 1, ½, ¼.
    found = learned(SARSALambda, ROWS, lam=1.0).table
    assert (found[2, 1], found[3, 1], found[4, 0]) == (0.5 * (2 + 0.5 * 1 - 0.25 * 6), 4 + 0.5 * (1 - 0.5 * 6), 8 - 0.5 * 6)
    # Returns 0 + ½ · 2; 1 + ½ · 2; 2.
    found = learned(MonteCarlo, ROWS).table
    assert (found[2, 1], found[3, 1], found[4, 0]) == (0.5 * 1, 0.5 * (4 + 2), 0.5 * (8 + 2))


def test_watkins_trace_ends_where_a_random_action_was_taken():
    rows = {**ROWS, "act": np.array([1, 0, 0])}  # left in state 3, worth 1, where right is worth 4
    kept, ended = learned(QLambda, ROWS, lam=1.0).table, learned(QLambda, rows, lam=1.0).table
    assert kept[2, 1] == 0.5 * (2 + 0.5 * 1 - 0.25 * 6) and ended[2, 1] == 0.5 * 2


@pytest.mark.parametrize(("kind", "options", "same", "theirs"), [
    (SARSALambda, dict(lam=0.0), SARSA, {}), (SARSALambda, dict(lam=0.0, trace="accumulating"), SARSA, {}),
    (NStepQ, dict(n=1), SARSA, {}), (NStepQ, dict(n=1, target="max"), QLearning, {}), (QLambda, dict(lam=0.0), QLearning, {}),
    (NStepQ, dict(n=1, target="expected"), ExpectedSARSA, {}), (DynaQ, dict(planning_steps=0), QLearning, {}),
    (PrioritizedSweeping, dict(planning_steps=0), QLearning, {}),
    (ExpectedSARSA, dict(epsilon=0.0), QLearning, dict(epsilon=0.0)),
    (DynaQ, dict(planning_steps=7), DynaQ, dict(planning_steps=7)),
], ids=lambda value: getattr(value, "__name__", None) or str(value))
def test_without_its_novelty_it_is_the_simpler_one(kind, options, same, theirs):
    """The same episodes and the same table after 600 steps, of two agents with a time limit."""
    found = []
    for one, own in ((kind, options), (same, theirs)):
        with robot(one, n_agents=2, seed=3, lr=0.3, **{"gamma": 0.9, "epsilon": 0.3, **own}) as made:
            made.run(600)
            found.append((list(made.recent_returns), list(made.recent_lengths), table(made).tobytes()))
    assert found[0] == found[1]


def test_with_lambda_one_and_all_steps_it_is_monte_carlo():
    rows, episode = [], np.arange(3)
    for start in range(5):
        rows.append({**ROWS, "act": (episode + start) % 2, "rew": ROWS["rew"] + start, "next_act": (episode + start + 1) % 2})
    for options in (dict(n=100), dict(n=100, target="max")):
        np.testing.assert_allclose(learned(NStepQ, *rows, **options).table, learned(MonteCarlo, *rows).table, atol=1e-12)


def test_double_q_learning_is_not_drawn_to_what_is_large_by_chance():
    """Sutton & Barto (2018), example 6.7: left of the start many arms pay −0.1 on average, right nothing."""
    lefts = {}
    for kind in (QLearning, DoubleQLearning):
        task = ComputationTask(create_algorithm_func(QTable, dict(obs=gym.spaces.Discrete(3), act=gym.spaces.Discrete(10)), kind,
                                                     dict(lr=0.1, gamma=1.0)))
        task.build(np.random.SeedSequence(1))
        rng, values = np.random.default_rng(0), []
        for _ in range(300):  # one step to state 1, and one of its arms
            act = rng.integers(10, size=2)
            task.learn(dict(obs=np.array([0, 1]), act=np.array([0, act[1]]), rew=np.array([0.0, rng.normal(-0.1)]),
                            obs_next=np.array([1, 2]), terminated=np.array([False, True]), truncated=np.zeros(2, bool)))
            values.append(float(task.algorithm.predict(Batch(obs=np.array([0])))["q"][0, 0]))
        lefts[kind] = np.mean(values)
    assert lefts[QLearning] > 0.1 > abs(lefts[DoubleQLearning] + 0.05)


# ------------------------------------------------------------------------------------------------------------ known problems


def cliff():
    return gym.wrappers.TimeLimit(gym.make("CliffWalking-v1"), 500)


@pytest.mark.parametrize(("kind", "options", "steps", "expected"), [
    (QLearning, dict(lr=0.5), 20_000, -13),
    (DynaQ, dict(lr=0.5, planning_steps=2), 6_000, -13), (PrioritizedSweeping, dict(lr=0.5, planning_steps=2), 6_000, -13),
    pytest.param(ExpectedSARSA, dict(lr=1.0), 200_000, -15, marks=pytest.mark.slow),
])
def test_the_greedy_path_along_the_cliff(kind, options, steps, expected):
    """−13 along the edge; −15 one row above it, for those who value the policy that explores (learning_marks, section 2)."""
    with robot(kind, cliff, gamma=1.0, seed=0, **options) as made:
        made.run(steps)
        assert made.evaluate(1).mean_return == expected


def test_the_table_of_a_lake_that_is_not_slippery_is_that_of_value_iteration():
    """With a rate of 1 exactly, but for states from which the goal is out of reach."""
    lake = gym.make("FrozenLake-v1", is_slippery=False)
    with robot(QLearning, lambda: TableEnv.from_gymnasium(lake), gamma=0.95, epsilon=1.0, seed=1, lr=1.0) as made:
        made.run(20_000)
        np.testing.assert_allclose(table(made).max(1), value_iteration(lake, 0.95).values, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [QLearning, NStepQ])
def test_the_table_of_the_lake_is_that_of_value_iteration(kind):
    """Within 0.02 in every state that is visited, at γ 0.95. The fewer steps of a target the less a random action misleads it."""
    lake = gym.make("FrozenLake-v1")
    best = value_iteration(lake, 0.95).values
    options = dict(n=1, target="max") if kind is NStepQ else {}
    with robot(kind, lambda: TableEnv.from_gymnasium(lake), gamma=0.95, epsilon=1.0, seed=1,
               lr=Exponential(0.2, 0.002, 40_000), **options) as made:
        made.run(200_000)
        seen = made.tasks["RL"].algorithm.model.table.any(1)
        assert seen.sum() >= 10 and abs(table(made).max(1) - best)[seen].max() < 0.02


@pytest.mark.parametrize(("kind", "seeds"), [
    (DynaQ, 3), *[pytest.param(kind, 10, marks=pytest.mark.slow) for kind in (DynaQ, PrioritizedSweeping)]])
def test_planning_shortens_the_episodes_of_the_maze(kind, seeds):
    """Sutton & Barto (2018), figure 8.2: in the third episode 50 planning steps need half the steps of 5, or fewer."""
    lengths = {}
    for planning in (5, 50):
        lengths[planning] = []
        for seed in range(seeds):
            with robot(kind, Maze, lr=0.1, gamma=0.95, planning_steps=planning, seed=seed) as made:
                made.run(StopAfterEpisodes(3))
                lengths[planning].append(made.recent_lengths[2])
    mean = {planning: np.mean(each) for planning, each in lengths.items()}
    assert mean[50] <= 0.5 * mean[5] and mean[50] < 30, mean


# -------------------------------------------------------------------------------------------------------- tasks like others

MEMBERS = {QLearning: {}, ExpectedSARSA: {}, DoubleQLearning: {}, SARSALambda: {}, QLambda: {}, NStepQ: {}, DynaQ: {},
           PrioritizedSweeping: {}, MonteCarlo: {}}


@pytest.mark.parametrize("kind", MEMBERS)
@pytest.mark.parametrize("helper", [OnlineHelper, EpisodicHelper], ids=lambda one: one.__name__)
def test_it_learns_to_go_right_and_a_resumed_run_is_the_same(kind, helper, tmp_path):
    if kind is MonteCarlo and helper is OnlineHelper:
        pytest.skip("it takes whole episodes, see below")

    def make():
        return robot(kind, helper=helper, n_agents=2, seed=3, lr=0.3, gamma=0.9, epsilon=0.3)

    with make() as whole, make() as half:
        whole.run(700)
        whole.save(tmp_path / "half")
        whole.run(700)
        half.load(tmp_path / "half")
        half.run(700)
        assert whole.trace_hash() == half.trace_hash() and table(whole).tobytes() == table(half).tobytes()
        assert table(whole)[3:6].argmax(1).tolist() == [1] * 3


@pytest.mark.parametrize(("kind", "helper", "driver"), [
    (QLearning, partial(OnPolicyHelper, unroll=1), "threads"), (SARSALambda, EpisodicHelper, Processes(workers=1)),
    *[pytest.param(*one, marks=pytest.mark.slow) for one in (
        (QLearning, partial(OnPolicyHelper, unroll=1), Processes(workers=1)), (SARSALambda, EpisodicHelper, "threads"),
        (DynaQ, partial(OnPolicyHelper, unroll=1), "threads"), (DynaQ, partial(OnPolicyHelper, unroll=1), Processes(workers=1)))],
], ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__))
def test_it_learns_under_every_driver(kind, helper, driver):
    with robot(kind, helper=helper, n_agents=2, seed=3, driver=driver, lr=0.3, gamma=0.9, epsilon=0.3) as made:
        made.run(500)
        assert made.tasks["RL"].rows_learned > 400 and table(made)[5, 1] > 0.5


@pytest.mark.parametrize("kind", [MonteCarlo, MonteCarloPrediction])
@pytest.mark.parametrize("helper", [OnlineHelper, partial(OnPolicyHelper, unroll=1), partial(OnPolicyHelper, unroll=64)], ids=str)
def test_monte_carlo_is_refused_where_it_would_not_get_whole_episodes(kind, helper):
    model = QTable if kind is MonteCarlo else VTable
    task = ComputationTask(create_algorithm_func(model, SPACES, kind, {}), helper)
    with pytest.raises(ValueError, match=f"{kind.__name__} learns from whole episodes, and .*; use EpisodicHelper"):
        Robot(walk, tasks={"RL": task})


def test_targets_read_the_epsilon_by_which_their_rows_were_acted():
    """Two agents: rows 1, 2, … of each with ε 1/1, 1/2, …, however often and in what order the table was updated."""
    counted = {kind: learned(kind, {**ONE, "step": np.array([4])}, epsilon=lambda n: 1.0 / n, **more).table[2, 1]
               for kind, more in ((ExpectedSARSA, {}), (NStepQ, dict(target="expected", n=1)))}
    assert counted == {kind: pytest.approx(0.5 * 0.5 * (0.25 * 2.5 + 0.75 * 4)) for kind in counted}
    cut = {**ONE, "step": np.array([4]), "truncated": np.array([True]), "last": np.array([True])}
    assert learned(MonteCarlo, cut, epsilon=lambda n: 1.0 / n).table[2, 1] == pytest.approx(0.5 * 0.5 * (0.25 * 2.5 + 0.75 * 4))


def test_rows_without_the_number_of_their_act_have_no_epsilon_of_a_schedule():
    algorithm = ExpectedSARSA(QTable(gym.spaces.Discrete(3), gym.spaces.Discrete(2)), epsilon=Linear(1.0, 0.0, 10))
    row = Batch(obs=np.array([0]), act=np.array([1]), rew=np.ones(1), obs_next=np.array([1]), terminated=np.array([False]))
    with pytest.raises(ValueError, match="ExpectedSARSA: rows have no `step`.*let a helper make the rows"):
        algorithm.learn(row)


@pytest.mark.parametrize(("kind", "helper", "options"), [
    (ExpectedSARSA, OnlineHelper, {}), (ExpectedSARSA, partial(OnPolicyHelper, unroll=4), {}), (MonteCarlo, EpisodicHelper, {}),
    (NStepQ, OnlineHelper, dict(target="expected"))])
def test_a_schedule_of_epsilon_counts_the_acts_of_each_helper_in_targets_too(kind, helper, options, tmp_path):
    def make():
        return robot(kind, helper=helper, n_agents=2, epsilon=Linear(1.0, 0.0, 1_000), **options)

    told = []
    with make() as made, make() as other:
        made.run(400)
        made.save(tmp_path / "half")
        other.load(tmp_path / "half")
        algorithm = other.tasks["RL"].algorithm
        algorithm.epsilon_of = lambda step, whole=algorithm.epsilon_of: told.append(step) or whole(step)
        steps = [agent.helpers["RL"].acting.steps for agent in other.agents]
        other.run(100)
        acts = {n for agent, before in zip(other.agents, steps, strict=True)
                for n in range(before - 20, agent.helpers["RL"].acting.steps + 1)}
    read = {int(n) for one in told for n in np.atleast_1d(one)}
    assert read and read <= acts, "acts of one agent, not updates, nor acts of both"


def test_what_is_swept_first_by_hand():
    """Sutton & Barto (2018), 8.4, α ½, γ ½: a row of A (to B) has the error 8. C leads to A, and D to C; E led to A but ended
    there."""
    env = gym.spaces.Discrete(5), gym.spaces.Discrete(1)
    a, b, c, d, e = range(5)

    def made(planning_steps):
        one = PrioritizedSweeping(QTable(*env), lr=0.5, gamma=0.5, planning_steps=planning_steps, threshold=0.1)
        for before, after, ended in ((c, a, False), (d, c, False), (e, a, True)):
            one.learn(Batch(obs=before, act=0, rew=0.0, obs_next=after, terminated=ended))
        assert not one.model.table.any() and not one.model.priority.any()
        one.learn(Batch(obs=a, act=0, rew=8.0, obs_next=b, terminated=False))
        return one.model.table[:, 0].tolist(), one.model.priority[:, 0].tolist()

    # The row itself: A = 4, error 4 left. A waits with 4, C with ½ · 4 = 2.
    assert made(0) == ([4, 0, 0, 0, 0], [4, 0, 2, 0, 0])
    # A is the largest: A = 6, 2 left; C now has 3.
    assert made(1) == ([6, 0, 0, 0, 0], [2, 0, 3, 0, 0])
    # C: 1.5, and 1.5 left; D waits with ½ · 1.5.
    assert made(2) == ([6, 0, 1.5, 0, 0], [2, 0, 1.5, 0.75, 0])
    # A: 7, 1 left, C has 3.5 − 1.5. C: 2.5, 1 left, D has 1.25. D: 0.625, 0.625 left.
    assert made(3) == ([7, 0, 1.5, 0, 0], [1, 0, 2, 0.75, 0])
    assert made(4) == ([7, 0, 2.5, 0, 0], [1, 0, 1, 1.25, 0])
    assert made(5) == ([7, 0, 2.5, 0.625, 0], [1, 0, 1, 0.625, 0])


def test_bad_options_are_named():
    for kind, options, said in ((NStepQ, dict(target="best"), "target is 'best'; expected one of sarsa, expected, max"),
                                (NStepQ, dict(n=0), "n is 0"), (DynaQ, dict(planning_steps=-1), "planning_steps is -1"),
                                (QLambda, dict(trace="dutch"), "trace is 'dutch'"), (SARSALambda, dict(lam=2.0), "lam is 2.0"),
                                (PrioritizedSweeping, dict(threshold=-1.0), "threshold is -1")):
        with pytest.raises(ValueError, match=said):
            kind(QTable(**SPACES), **options)
