"""Search trees: scores and returns by hand, and the compiled trees against plain ones on random input."""

import math

import numpy as np
import pytest

from parl_like.algorithms.search.plain import PlainTrees
from parl_like.algorithms.search.tree import Evaluation, Kernel, SearchRule, SearchTree, root_noise, visit_policy

BOTH = pytest.mark.parametrize("kernel", [Kernel, PlainTrees])


def leaf(value, reward=0.0, done=False, player=0, logits=(0.0, 0.0), legal=(True, True)):
    """The evaluation of one edge."""
    return Evaluation(np.array([reward]), np.array([done]), np.array([value]), np.array([logits]), np.array([player]),
                      np.array([legal]))


def one_tree(rule, kernel, logits=(0.0, 0.0), value=0.0, **more):
    tree = SearchTree(1, 2, 10, rule, kernel)
    tree.begin(np.array([logits]), np.array([value]), **more)
    return tree


def selected(tree):
    """(parent, action, node) of the one leaf."""
    leaves = tree.select()
    assert leaves.tree.tolist() == [0]
    return leaves.parent[0], leaves.action[0], leaves.node[0]


@BOTH
def test_puct_by_hand(kernel):
    """P = (1/4, 3/4), c = 1, b so large that its logarithm is 0 for all figures here."""
    tree = one_tree(SearchRule(exploration=1.0, base=1e12, gamma=0.5), kernel, logits=(0.0, math.log(3.0)), value=0.2)
    assert selected(tree) == (0, 1, 1), "0.75 √1 / 1 against 0.25"
    tree.expand(leaf(value=-0.4, reward=0.1))
    found = tree.found()
    assert found.q[0].tolist() == [0.0, pytest.approx(0.1 + 0.5 * -0.4)] and found.visits[0].tolist() == [0, 1]
    assert found.value[0] == pytest.approx((0.2 - 0.1) / 2), "its own evaluation, and the return r + γ V = −0.1"
    # N(root) = 2: a = 0 has 0 + 0.25 √2 = 0.354, a = 1 has −0.1 + 0.75 √2 / 2 = 0.430
    assert selected(tree) == (1, 0, 2)
    tree.expand(leaf(value=0.0, reward=-2.0, done=True))
    # G(1) = −2, V(1) = (−0.4 − 2) / 2 = −1.2, Q(root, 1) = 0.1 + 0.5 · −1.2
    assert tree.found().q[0, 1] == pytest.approx(-0.5) and tree.found().value[0] == pytest.approx((0.2 - 0.1 + 0.1 - 1.0) / 3)
    assert selected(tree) == (0, 0, 3), "0.25 √3 against −0.5 + 0.75 √3 / 3"


@BOTH
def test_exploration_grows_with_the_visits(kernel):
    """With c = 0 and b = 1 its weight is ln(N + 2)."""
    tree = one_tree(SearchRule(exploration=0.0, base=1.0), kernel)
    assert selected(tree) == (0, 0, 1)
    tree.expand(leaf(value=0.5))  # 0.5 + ln 4 · ½ √2 / 2 = 0.990 against ln 4 · ½ √2 = 0.980
    assert selected(tree) == (1, 0, 2)
    tree = one_tree(SearchRule(exploration=0.0, base=1.0), kernel)
    tree.select()
    tree.expand(leaf(value=0.48))
    assert selected(tree) == (0, 1, 2)


@BOTH
def test_uct_by_hand(kernel):
    tree = one_tree(SearchRule("uct", exploration=1.0), kernel)
    for action, value in ((0, 1.0), (1, 0.0)):
        assert selected(tree)[:2] == (0, action), "actions without a node come first"
        tree.expand(leaf(value=value))
    assert selected(tree) == (1, 0, 3), "1 + √ln 3 against √ln 3"
    tree.expand(leaf(value=-3.0))  # V(1) = (1 − 3) / 2
    assert tree.found().q[0].tolist() == [-1.0, 0.0]
    # −1 + √(ln 4 / 2) = −0.17 against √ln 4 = 1.18
    assert selected(tree) == (2, 0, 4)


@BOTH
@pytest.mark.parametrize("after", [0, 1])
def test_what_one_player_wins_the_other_loses(kernel, after):
    """Player 0 moves, then player 1 or player 0 again; γ 0.5, rewards for who moved."""
    tree = one_tree(SearchRule(gamma=0.5), kernel, logits=(9.0, 0.0), player=np.array([0]))
    assert selected(tree)[:2] == (0, 0)
    tree.expand(leaf(value=0.6, reward=1.0, player=after, logits=(9.0, 0.0)))
    sign = 1 if after == 0 else -1
    assert tree.found().q[0, 0] == pytest.approx(1.0 + sign * 0.5 * 0.6)
    assert selected(tree)[:2] == (1, 0)
    tree.expand(leaf(value=0.3, reward=2.0, player=0, logits=(9.0, 0.0)))
    inner = 2.0 + sign * 0.5 * 0.3  # for who moves in node 1
    assert tree.found().q[0, 0] == pytest.approx(1.0 + sign * 0.5 * (0.6 + inner) / 2)


@BOTH
def test_normalised_values_do_not_know_the_unit_of_rewards(kernel):
    def order(scale, shift):
        tree, rng = one_tree(SearchRule(normalize=True), kernel), np.random.default_rng(0)
        way = []
        for _ in range(10):
            way.append(selected(tree))
            tree.expand(leaf(value=0.0, reward=scale * rng.integers(-8, 8) + shift, done=False))
        return way

    assert order(1.0, 0.0) == order(1024.0, 0.0)


@BOTH
def test_a_state_that_is_over_is_visited_again_without_a_leaf(kernel):
    tree = one_tree(SearchRule(), kernel, legal=np.array([[False, True]]))
    assert selected(tree) == (0, 1, 1)
    tree.expand(leaf(value=7.0, reward=-1.0, done=True))
    for _ in range(3):
        assert not len(tree.select().tree)
    assert tree.found().visits.tolist() == [[0, 4]] and tree.found().q.tolist() == [[0.0, -1.0]], "its value is not read"


@BOTH
def test_noise_at_the_root(kernel):
    tree = one_tree(SearchRule(), kernel, logits=(2.0, 0.0), noise=np.array([[0.0, 1.0]]), share=0.5)
    assert selected(tree)[1] == 1, "½ · 0.12 + ½ against ½ · 0.88"
    tree = one_tree(SearchRule(), kernel, logits=(2.0, 0.0), noise=np.array([[0.0, 1.0]]), share=0.25)
    assert selected(tree)[1] == 0
    legal = np.array([[True, True, False, True]] * 2000)
    noise = root_noise(np.random.default_rng(0), legal, 0.3)
    assert noise.sum(1) == pytest.approx(1) and not noise[:, 2].any()
    # of Dirichlet(α, α, α): mean 1/3, variance 2/9 / (3 α + 1)
    assert noise[:, 0].mean() == pytest.approx(1 / 3, abs=0.02) and noise[:, 0].var() == pytest.approx(2 / 9 / 1.9, rel=0.1)
    assert root_noise(np.random.default_rng(0), legal, 1e-9).sum(1) == pytest.approx(1), "where all draws are 0"


def test_visits_as_a_policy():
    visits = np.array([[1, 3, 0], [2, 2, 4]])
    assert visit_policy(visits).tolist() == [[0.25, 0.75, 0.0], [0.25, 0.25, 0.5]]
    assert visit_policy(visits, 0.5).tolist() == [[pytest.approx(0.1), pytest.approx(0.9), 0.0],
                                                  [pytest.approx(4 / 24), pytest.approx(4 / 24), pytest.approx(16 / 24)]]
    assert visit_policy(visits, 0).tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    assert np.isfinite(visit_policy(np.array([[5000, 4999]]), 0.01)).all()
    with pytest.raises(ValueError, match="temperature is -1; expected at least 0"):
        visit_policy(visits, -1)


@pytest.mark.parametrize("selection", ["puct", "uct"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("gamma", [1.0, 0.97])
def test_compiled_trees_are_plain_ones(selection, normalize, gamma):
    """Random rewards, ends, values, priors, players and legal actions; visits are the same, and values to the last bit."""
    n, actions, simulations = 5, 4, 60
    trees = [SearchTree(n, actions, simulations, SearchRule(selection, gamma=gamma, normalize=normalize, base=50.0), kernel)
             for kernel in (Kernel, PlainTrees)]
    rng = np.random.default_rng(1)

    def evaluation(m):
        legal = rng.random((m, actions)) < 0.7
        legal[np.arange(m), rng.integers(actions, size=m)] = True
        return Evaluation(rng.integers(-1, 2, m).astype(float), rng.random(m) < 0.15, rng.normal(size=m),
                          rng.normal(size=(m, actions)).astype(np.float32), rng.integers(2, size=m), legal)

    for _ in range(3):  # trees are thrown away
        root, noise = evaluation(n), None
        if normalize:
            noise = root_noise(rng, root.legal, 0.3)
        for tree in trees:
            tree.begin(root.logits, root.value, player=root.player, legal=root.legal, noise=noise)
        for _ in range(simulations):
            compiled, plain = (tree.select() for tree in trees)
            assert all((a == b).all() for a, b in zip(compiled, plain, strict=True))
            if len(compiled.tree):
                leaves = evaluation(len(compiled.tree))
                for tree in trees:
                    tree.expand(leaves)
        one, other = (tree.found() for tree in trees)
        assert (one.visits == other.visits).all() and (one.q == other.q).all() and (one.value == other.value).all()
        assert (one.visits.sum(1) == simulations).all()


def test_a_search_finds_the_best_of_a_known_chain():
    """Three states in a row; only the action 1, taken three times, is paid. The value of it is γ²."""
    at = np.zeros(200, np.int64)

    def evaluate(leaves):
        stays = leaves.action == 0
        at[leaves.node] = np.where(stays, 0, at[leaves.parent] + 1)
        won = at[leaves.node] == 3
        return Evaluation(won.astype(float), won | stays, np.zeros(1), np.zeros((1, 2)))

    tree = SearchTree(1, 2, 150, SearchRule(gamma=0.9))
    tree.begin(np.zeros((1, 2)), np.zeros(1))
    found = tree.run(150, evaluate)
    assert found.visits[0, 1] > 120 and found.q[0, 0] == 0 and 0.6 < found.q[0, 1] <= 0.81


def test_what_is_refused():
    for arguments in ((0, 2, 3), (1, 0, 3), (1, 2, 0)):
        with pytest.raises(ValueError, match="SearchTree: n is .*expected at least 1 each"):
            SearchTree(*arguments)
    for rule in ({"selection": "best"}, {"exploration": -1.0}, {"base": 0.0}, {"gamma": 1.5}, {"exploration": math.nan}):
        with pytest.raises(ValueError, match="SearchRule: "):
            SearchRule(**rule)
    tree = SearchTree(2, 2, 1)
    with pytest.raises(ValueError, match=r"select: begin\(\) comes first"):
        tree.select()
    with pytest.raises(ValueError, match=r"begin\(\) comes first"):
        tree.found()
    with pytest.raises(ValueError, match=r"logits has shape \(2, 3\); expected finite numbers \(2, 2\)"):
        tree.begin(np.zeros((2, 3)), np.zeros(2))
    with pytest.raises(ValueError, match="value holds numbers that are not finite"):
        tree.begin(np.zeros((2, 2)), np.array([0.0, np.nan]))
    with pytest.raises(ValueError, match="a state that is not over has no legal action"):
        tree.begin(np.zeros((2, 2)), np.zeros(2), legal=np.array([[True, True], [False, False]]))
    tree.begin(np.zeros((2, 2)), np.zeros(2))
    with pytest.raises(ValueError, match=r"no leaves wait; select\(\) comes first"):
        tree.expand(leaf(0.0))
    tree.select()
    with pytest.raises(ValueError, match=r"2 leaves wait for expand\(\)"):
        tree.select()
    with pytest.raises(ValueError, match=r"has shape \(1,|has shape \(1, 2\)"):
        tree.expand(leaf(0.0))
    tree.expand(Evaluation(np.zeros(2), np.zeros(2, bool), np.zeros(2), np.zeros((2, 2))))
    with pytest.raises(ValueError, match="the trees hold 1 simulations"):
        tree.select()
