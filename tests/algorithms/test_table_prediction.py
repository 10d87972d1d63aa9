"""Values of a given policy: the walk of the textbook, identities of traces and returns, importance sampling."""

from functools import partial

import numpy as np
import pytest

from parl_like import ComputationTask, EpisodicHelper, Linear, OnPolicyHelper, Robot, create_algorithm_func
from parl_like.agents.online import OnlineHelper
from parl_like.algorithms import TD, MonteCarloPrediction, NStepTD
from parl_like.algorithms.tables import policy_evaluation
from parl_like.data.returns import lambda_return
from parl_like.drivers.workers.processes import Processes
from parl_like.envs.tabular import RandomWalk
from parl_like.envs.textbook import BlackjackTable
from parl_like.models import QTable, VTable

WALK = RandomWalk()
SPACES = dict(obs=WALK.observation_space, act=WALK.action_space)
TRUE = policy_evaluation(WALK)


def episodes(n, seed=0, cut=False):
    """Batches, a whole walk each; with `cut`, every second one is truncated after 3 steps at most."""
    env, rng, made = RandomWalk(), np.random.default_rng(seed), []
    for episode in range(n):
        rows, (s, _), done = [], env.reset(), False
        while not done:
            a = int(rng.integers(2))
            after, rew, terminated, _, _ = env.step(a)
            truncated = bool(cut and episode % 2 and len(rows) == 2 and not terminated)
            done = terminated or truncated
            rows.append((s, a, rew, after, terminated, truncated, done, not rows, 0))
            s = after
        names = "obs act rew obs_next terminated truncated last first lane".split()
        made.append({name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})
    return made


def learned(kind, batches, table=None, **options):
    """The table after these batches; `table` are options of it."""
    task = ComputationTask(create_algorithm_func(VTable, {**SPACES, **(table or {})}, kind, options))
    for batch in batches:
        task.learn(dict(batch))
    return task.algorithm.model.table


def single(batches):
    """The same rows, each a batch of its own."""
    return [{name: column[i : i + 1] for name, column in batch.items()} for batch in batches for i in range(len(batch["rew"]))]


# ---------------------------------------------------------------------------------------------------------------- by hand


def test_a_table_moves_by_a_rate_or_is_a_mean():
    """ReinforcementLearning.jl's numbers: targets 3 and 6 give 1.5 and 3 where the start counts once, 3 and 4.5 as a mean."""
    for prior, rate, expected in ((1.0, 1.0, [1.5, 3.0]), (0.0, 1.0, [3.0, 4.5]), (None, 0.5, [1.5, 3.75])):
        for table, where in ((VTable(**SPACES, prior=prior), 2), (QTable(**SPACES, prior=prior), (2, 1))):
            seen = []
            for target in (3.0, 6.0):
                table.add(where, target - table.table[where], rate)
                seen.append(float(table.table[where]))
            assert seen == expected and np.count_nonzero(table.table) == 1
    both = VTable(**SPACES, prior=0.0)
    both.add(np.array([2, 2, 3]), np.array([3.0, 6.0, 1.0]), 1.0)  # an entry that comes twice is the mean, too
    assert both.table.tolist() == [0, 0, 4.5, 1, 0, 0, 0] and both.visits.tolist() == [0, 0, 2, 1, 0, 0, 0]
    both.reset_parameters()
    assert not both.table.any() and not both.visits.any()
    with pytest.raises(ValueError, match="VTable: prior is -1"):
        VTable(**SPACES, prior=-1)


ROWS = {"obs": np.array([3, 4, 5]), "act": np.array([1, 1, 1]), "rew": np.array([0.0, 2.0, 1.0]), "obs_next": np.array([4, 5, 6]),
        "terminated": np.array([False, False, True]), "truncated": np.zeros(3, bool), "last": np.array([False, False, True]),
        "first": np.array([True, False, False]), "lane": np.zeros(3, np.int64)}


def test_targets_by_hand():
    # γ = ½, α = ½. TD(0): 0; then ½ · 2 = 1; then ½ · 1.
    assert learned(TD, [ROWS], lr=0.5, gamma=0.5)[3:6].tolist() == [0.0, 1.0, 0.5]
    # λ = 1: the error 2 moves 4 by ½ · 2, and 3 by ½ · 2 · ½; the error 1 moves 5 by ½, 4 by ¼, 3 by ⅛.
    assert learned(TD, [ROWS], lr=0.5, gamma=0.5, lam=1.0)[3:6].tolist() == [0.625, 1.25, 0.5]
    # Two steps: 0 + ½ · 2 + ¼ · V(5); 2 + ½ · 1; 1.
    assert learned(NStepTD, [ROWS], lr=0.5, gamma=0.5, n=2)[3:6].tolist() == [0.5, 1.25, 0.5]
    # Returns: 0 + ½ · 2.5; 2 + ½; 1.
    assert learned(MonteCarloPrediction, [ROWS], {"prior": 0.0}, gamma=0.5)[3:6].tolist() == [1.25, 2.5, 1.0]


def test_first_and_every_visit_by_hand():
    rows = {**ROWS, "obs": np.array([3, 4, 3]), "obs_next": np.array([4, 3, 2])}
    # Returns 1.25, 2.5, 1 of the states 3, 4, 3.
    assert learned(MonteCarloPrediction, [rows], {"prior": 0.0}, gamma=0.5)[3:5].tolist() == [1.25, 2.5]
    assert learned(MonteCarloPrediction, [rows], {"prior": 0.0}, gamma=0.5, first_visit=False)[3:5].tolist() == [1.125, 2.5]
    # Behind a cut first visits count anew, and a truncated episode goes on with the value of what follows, 7 here.
    ends = np.array([False, True, True])
    cut = {**rows, "terminated": np.zeros(3, bool), "truncated": ends, "last": ends, "obs_next": np.array([4, 1, 1])}
    task = ComputationTask(create_algorithm_func(VTable, {**SPACES, "prior": 0.0}, MonteCarloPrediction, dict(gamma=0.5)))
    task.build()
    task.algorithm.model.table[1] = 7.0
    task.learn(cut)
    # 2 + 3.5 at 4; 0 + ½ · 5.5 and 1 + 3.5 at 3.
    assert task.algorithm.model.table[3:5].tolist() == [(2.75 + 4.5) / 2, 5.5]


# -------------------------------------------------------------------------------------------------------------- identities


def test_without_lambda_and_with_one_step_it_is_td_0():
    batches, v = episodes(40, cut=True), np.zeros(7)
    for batch in batches:
        for s, r, after, ended in zip(batch["obs"], batch["rew"], batch["obs_next"], batch["terminated"], strict=True):
            v[s] += 0.1 * (r + 0.9 * (1 - ended) * v[after] - v[s])
    for kind, options in ((TD, {}), (TD, dict(trace="replacing")), (NStepTD, {}), (TD, dict(trace="dutch"))):
        for rows in (batches, single(batches)):
            np.testing.assert_allclose(learned(kind, rows, gamma=0.9, **options), v, atol=1e-14)


@pytest.mark.parametrize("lam", [0.0, 0.4, 0.9, 1.0])
def test_off_line_traces_are_the_forward_view(lam):
    """The λ-returns of an episode, whose values stay what they were before it."""
    batches, v = episodes(60, cut=True), np.zeros(7)
    for batch in batches:
        discount = 0.9 * (1.0 - batch["terminated"])
        target = lambda_return(batch["rew"], discount, v[batch["obs_next"]], batch["last"], lam)
        np.add.at(v, batch["obs"], 0.1 * (target - v[batch["obs"]]))
    for rows in (batches, single(batches)):
        np.testing.assert_allclose(learned(TD, rows, gamma=0.9, lam=lam, offline=True), v, atol=1e-12, rtol=0)


def test_with_lambda_one_and_as_many_steps_as_there_are_it_is_monte_carlo():
    batches = episodes(60)
    monte_carlo = learned(MonteCarloPrediction, batches, lr=0.1, gamma=0.9, first_visit=False)
    np.testing.assert_allclose(learned(TD, batches, lr=0.1, gamma=0.9, lam=1.0, offline=True), monte_carlo, atol=1e-12, rtol=0)
    # n-step targets move one state after the other; of a state that comes once in an episode that is the same.
    once = [batch for batch in batches if len(set(batch["obs"].tolist())) == len(batch["obs"])]
    assert len(once) > 5
    np.testing.assert_allclose(learned(NStepTD, once, lr=0.1, gamma=0.9, n=1000),
                               learned(MonteCarloPrediction, once, lr=0.1, gamma=0.9, first_visit=False), atol=1e-12, rtol=0)


def test_dutch_traces_are_the_online_forward_view():
    """At each step of an episode all values of its states as the λ-returns up to that step say, from the values before it
    (Sutton & Barto 2018, 12.4)."""
    lam, gamma, rate, v = 0.8, 0.9, 0.2, np.zeros(7)
    batches = episodes(30)
    for batch in batches:
        begin, now = v.copy(), [v.copy()]  # the values that each step bootstraps from
        for h in range(1, len(batch["rew"]) + 1):
            w = begin.copy()
            for t in range(h):
                target = 0.0
                steps, weight = 0.0, 1.0 - lam
                for k in range(t, h):
                    steps += gamma ** (k - t) * batch["rew"][k]
                    ended = batch["terminated"][k]
                    value = 0.0 if ended else now[k][batch["obs_next"][k]]
                    target += (weight * lam ** (k - t) if k < h - 1 else lam ** (k - t)) * (steps + gamma ** (k - t + 1) * value)
                w[batch["obs"][t]] += rate * (target - w[batch["obs"][t]])
            now.append(w)
        v = now[-1]
    np.testing.assert_allclose(learned(TD, batches, lr=rate, gamma=gamma, lam=lam, trace="dutch"), v, atol=1e-12, rtol=0)


# ------------------------------------------------------------------------------------------------------------ through robots


RATE = Linear(0.1, 0.001, 9_000)


@pytest.mark.parametrize(("kind", "helper", "options", "steps"), [
    (MonteCarloPrediction, EpisodicHelper, {}, 9_000),
    pytest.param(MonteCarloPrediction, EpisodicHelper, {"first_visit": False}, 9_000, marks=pytest.mark.slow),
    (TD, OnlineHelper, {"lr": RATE}, 9_000),
    pytest.param(NStepTD, OnlineHelper, {"n": 4, "lr": RATE}, 27_000, marks=pytest.mark.slow),
], ids=["first", "every", "td0", "nstep"])
def test_the_walk_is_learned_within_three_standard_errors(kind, helper, options, steps):
    """A thousand walks, of which about 333 go through the outermost states, with a return of −1 or 1."""
    prior = None if "lr" in options else 0.0
    func = create_algorithm_func(VTable, {**SPACES, "prior": prior}, kind, {"gamma": 1.0, **options})
    with Robot(RandomWalk, tasks={"RL": ComputationTask(func, helper)}, seed=1) as robot:
        robot.run(steps)
        table, walks = robot.tasks["RL"].algorithm.model.table, min(robot.episodes, 1000)
        visits = np.array([0, 1 / 3, 2 / 3, 1, 2 / 3, 1 / 3, 0]) * walks  # walks that pass a state at all
        errors = np.sqrt((1 - TRUE[1:-1] ** 2) / visits[1:-1])
        assert walks > 900 and (abs(table - TRUE)[1:-1] < 3 * errors).all(), table
        assert table[0] == table[6] == 0


EACH_ROW = partial(OnPolicyHelper, unroll=1)


@pytest.mark.parametrize(("driver", "helper"), [
    ("cooperative", OnlineHelper), ("cooperative", EACH_ROW), ("threads", EACH_ROW), (Processes(workers=1), EACH_ROW),
], ids=str)
def test_traces_go_through_every_driver(driver, helper):
    func = create_algorithm_func(VTable, SPACES, TD, dict(lam=0.8, lr=0.05, gamma=1.0))
    with Robot(RandomWalk, tasks={"RL": ComputationTask(func, helper)}, n_agents=2, seed=1, driver=driver) as robot:
        robot.run(600)
        table = robot.tasks["RL"].algorithm.model.table
        assert robot.tasks["RL"].rows_learned >= 590 and table[1] < -0.2 and table[5] > 0.2


def test_the_state_of_blackjack_is_valued_by_games_of_another_policy():
    """Sutton & Barto (2018), 5.5: −0.27726 of a policy that sticks on 20 and 21, from games of one that tosses coins. The
    standard error of 100,000 games is 0.007."""
    state = BlackjackTable.number(13, 2, True)
    sticks = [BlackjackTable.number(total, dealer, soft) for total in (20, 21) for dealer in range(1, 11) for soft in (0, 1)]
    target = np.eye(2)[[int(s not in sticks) for s in range(280)]]
    table, rng, rows = BlackjackTable(state), np.random.default_rng(0), []
    for game in range(100_000):
        s, done = table.reset(seed=2 if not game else None)[0], False
        while not done:
            a = int(rng.random() * 2)
            after, rew, done, _, _ = table.step(a)
            rows.append((s, a, rew, after, done))
            s = after
    obs, act, rew, after, last = map(np.array, zip(*rows, strict=True))
    games = dict(obs=obs, act=act, rew=rew, obs_next=after, terminated=last, truncated=np.zeros(len(obs), bool), last=last)
    spaces = dict(obs=table.observation_space, act=table.action_space, prior=0.0)
    for importance, within in (("weighted", 0.01), ("ordinary", 0.03)):
        func = create_algorithm_func(VTable, spaces, MonteCarloPrediction, dict(gamma=1.0, target=target, importance=importance))
        task = ComputationTask(func)
        task.learn(dict(games))
        assert abs(task.algorithm.model.table[state] + 0.27726) < within, importance


def test_importance_sampling_by_hand():
    target = np.tile([0.0, 1.0], (7, 1))  # always right: each ratio is 2, or 0
    left = {**ROWS, "act": np.array([1, 0, 1])}
    for importance, expected in (("weighted", [1.25, 2.5, 1.0]), ("ordinary", [8 * 1.25 / 2, 4 * 2.5 / 2, (2 + 2) / 2])):
        found = learned(MonteCarloPrediction, [ROWS, left], {"prior": 0.0}, gamma=0.5, target=target, importance=importance)
        assert found[3:6].tolist() == expected, importance
    same = learned(MonteCarloPrediction, [ROWS, left], gamma=0.5, target=np.full((7, 2), 0.5))
    np.testing.assert_allclose(same, learned(MonteCarloPrediction, [ROWS, left], {"prior": 0.0}, gamma=0.5))


@pytest.mark.parametrize(("kind", "options", "said"), [
    (TD, dict(lam=1.5), "lam is 1.5"), (TD, dict(trace="pink"), "expected .* one of accumulating, replacing, dutch"),
    (TD, dict(offline=True, trace="dutch"), "offline goes with no dutch trace"), (NStepTD, dict(n=0), "n is 0"),
    (TD, dict(policy="lazy"), "policy is 'lazy'; expected 'uniform', None, or probabilities"),
    (TD, dict(policy=np.ones((7, 2))), "sum to 1 in each row"),
    (MonteCarloPrediction, dict(importance="some"), "importance is 'some'"),
    (MonteCarloPrediction, dict(policy=np.tile([1.0, 0.0], (7, 1)), target=np.tile([0.0, 1.0], (7, 1))), "never takes"),
])
def test_what_does_not_fit_is_refused(kind, options, said):
    with pytest.raises(ValueError, match=said):
        kind(VTable(**SPACES), **options)
    with pytest.raises(ValueError, match="the table has a prior"):
        TD(VTable(**SPACES, prior=0.0))
