"""MuZero: targets and losses against plain ones, and search in a model against plain trees and against the rules of a game."""

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from parl_like import Batch
from parl_like.algorithms.games import alpha_beta
from parl_like.algorithms.muzero import MuZero, MuZeroModel, half, unrolled_targets
from parl_like.algorithms.search.latent import LatentSearch
from parl_like.algorithms.search.plain import PlainTrees
from parl_like.algorithms.search.tree import Kernel, root_noise
from parl_like.envs.games import TicTacToe
from parl_like.models.muzero_net import LatentPrediction, LatentWorld, MuZeroNet, scaled

OBS, ACT = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)
YES, NO = True, False


def tensors(*rows):
    return [torch.tensor([row]) for row in rows]


# -------------------------------------------------------------------------------------------------------------------- targets


def test_a_target_by_hand():
    """γ ½, two steps: z_0 = 1 + ½ · 2 + ¼ · 8, and so on; the episode terminates with the fourth row."""
    rew, nu, player, terminated, valid = tensors([1.0, 2.0, 3.0, 4.0, 4.0, 4.0], [9.0, 9.0, 8.0, 7.0, 7.0, 7.0], [0] * 6,
                                                 [NO, NO, NO, YES, YES, YES], [YES, YES, YES, YES, NO, NO])
    got = unrolled_targets(rew, nu, player, terminated, valid=valid, k=3, n=2, gamma=0.5)
    assert got.value.tolist() == [[1 + 1 + 2, 2 + 1.5 + 7 / 4, 3 + 2, 4]]
    assert got.known.tolist() == [[1, 1, 1, 1]] and got.real.tolist() == [[YES] * 4]
    behind = unrolled_targets(*(one[:, 2:] for one in (rew, nu, player, terminated)), valid=valid[:, 2:], k=2, n=1, gamma=0.5)
    assert behind.value.tolist() == [[3 + 3.5, 4, 0]], "behind the end nothing is earned"
    assert behind.known.tolist() == [[1, 1, 1]] and behind.real.tolist() == [[YES, YES, NO]]


def test_a_target_of_two_players_by_hand():
    """They move in turn, and player 0 wins with the third row: of the second, which is the other's, −γ."""
    *rows, valid = tensors([0.0, 0.0, 1.0, 1.0, 1.0], [0.5, -0.4, 0.3, 0.3, 0.3], [0, 1, 0, 0, 0], [NO, NO, YES, YES, YES],
                   [YES, YES, YES, NO, NO])
    assert unrolled_targets(*rows, valid=valid, k=2, n=2, gamma=0.5).value.tolist() == [[pytest.approx(0.25 * 0.3), -0.5, 1.0]]
    one_step = unrolled_targets(*rows, valid=valid, k=1, n=1, gamma=0.5)
    assert one_step.value.tolist() == [[pytest.approx(0.5 * 0.4), pytest.approx(-0.5 * 0.3)]]


def test_what_follows_a_cut_is_not_known():
    """The second row is the last, and its episode goes on unseen: z ends with its ν, in place of a reward."""
    *rows, valid = tensors([1.0, 2.0, 2.0, 2.0, 2.0], [5.0, 6.0, 6.0, 6.0, 6.0], [0] * 5, [NO] * 5, [YES, YES, NO, NO, NO])
    got = unrolled_targets(*rows, valid=valid, k=2, n=2, gamma=0.5)
    assert got.value.tolist() == [[1 + 3, 6, 0]] and got.known.tolist() == [[1, 1, 0]]


def test_targets_are_those_of_a_plain_loop():
    """Random rows, ends, cuts and players."""
    rng, k, n, gamma = np.random.default_rng(0), 3, 4, 0.9
    t = k + n + 1
    for _ in range(200):
        length, ends = int(rng.integers(1, t + 4)), bool(rng.integers(2))
        valid = np.arange(t) < length
        at = np.minimum(np.arange(t), length - 1)  # the last row stands again behind the end
        rew, nu, player = rng.normal(size=t)[at], rng.normal(size=t)[at], rng.integers(2, size=t)[at]
        terminated = (at == length - 1) & ends
        rows = [torch.from_numpy(one[None]) for one in (rew, nu, player, terminated)]
        got = unrolled_targets(*rows, valid=torch.from_numpy(valid[None]), k=k, n=n, gamma=gamma)
        for row in range(k + 1):
            total = 0.0
            for i in range(n + 1):
                j = row + i
                if j >= length:
                    break
                sign = 1 if player[j] == player[row] else -1
                stops = i == n or (j == length - 1 and not ends and j < t - 1)
                total += gamma**i * sign * (nu[j] if stops else rew[j])
                if stops:
                    break
            assert got.value[0, row] == pytest.approx(total if row < length else 0.0)
            assert bool(got.known[0, row]) is (row < length or ends) and bool(got.real[0, row]) is (row < length)
    with pytest.raises(ValueError, match=r"expected one \[N, T\] with T ≥ 8"):
        unrolled_targets(*tensors(*[[0.0] * 7] * 3, [NO] * 7), valid=torch.ones(1, 7, dtype=torch.bool), k=k, n=n, gamma=gamma)


# --------------------------------------------------------------------------------------------------------------------- losses


def networks(encoding="scalar", obs=OBS, act=ACT):
    torch.manual_seed(0)
    world = LatentWorld(obs, act, size=6, hidden=(8,))
    prediction = LatentPrediction(6, int(act.n), (8,), encoding)
    model = MuZeroNet(obs, act, world, prediction, reward=(8,), encoding=encoding)
    for net in (prediction.net, model.reward):  # which begin with nought
        torch.nn.init.normal_(net.layers[-1].weight)
    return model, MuZeroNet(obs, act, world, prediction, reward=None)


def rows_of(n=5, length=8, seed=0):
    rng = np.random.default_rng(seed)
    end = torch.from_numpy(rng.integers(1, length + 3, size=n))[:, None]
    at = torch.minimum(torch.arange(length)[None], end - 1)
    take = lambda x: torch.gather(torch.from_numpy(x), 1, at)  # noqa: E731
    return Batch(obs=torch.from_numpy(rng.normal(size=(n, length, 3)).astype(np.float32)),
                 act=take(rng.integers(2, size=(n, length))), rew=take(rng.normal(size=(n, length))),
                 root_value=take(rng.normal(size=(n, length))), player=torch.zeros(n, length, dtype=torch.int64),
                 terminated=(at == end - 1) & (torch.arange(n)[:, None] % 2 == 0), valid=torch.arange(length)[None] < end,
                 search_policy=torch.from_numpy(rng.dirichlet([1, 1], (n, length)).astype(np.float32)))


@pytest.mark.parametrize("encoding", ["scalar", "two_hot"])
def test_the_unrolled_losses_are_those_of_plain_torch(encoding):
    """Values, and gradients of every parameter, against a loop over rows in which gradients are halved by hooks."""
    model, prediction = networks(encoding)
    world_task, value_task = (MuZeroModel(model, unroll=3, reward_weight=4.0),
                               MuZero(prediction, unroll=3, n_step=4, gamma=0.9, value_weight=0.25))
    for task, net in ((world_task, model), (value_task, prediction)):
        batch = task.process(rows_of(length=task.window.sequence))
        batch["weight"] = torch.linspace(0.5, 1.5, 5)
        out = task.learn(batch)
        assert out["priority"].shape == (5,)
        got = torch.autograd.grad(out["loss"], list(task.parameters()))
        total = 0.0
        for row in range(5):
            state = scaled(net.world.representation(batch.obs[row]))
            loss = 0.0
            for i in range(4):
                if task is value_task:
                    out_i = net.prediction.net(state)
                    logits, value = out_i[:2], out_i[2:]
                    z = batch.value[row, i]
                    error = (value[0] - z) ** 2 if encoding == "scalar" else -(net.prediction.code.encode(z) * F.log_softmax(
                        value, 0)).sum()
                    policy = -(batch.policy[row, i] * F.log_softmax(logits, 0)).sum()
                    loss = loss + (1 if i == 0 else 1 / 3) * (0.25 * batch.known[row, i] * error + batch.real[row, i] * policy)
                if i == 3:
                    break
                state = state.clone()
                state.register_hook(lambda gradient: gradient / 2)
                both = torch.cat([state, torch.eye(2)[batch.act[row, i]]])
                if task is world_task:
                    reward = net.reward(both)
                    r = batch.rew[row, i]
                    error = (reward[0] - r) ** 2 if encoding == "scalar" else -(net.code.encode(r) * F.log_softmax(reward,
                                                                                                                0)).sum()
                    loss = loss + 4 * batch.known[row, i] * error / 3
                state = scaled(state + net.world.transition(both))
            total = total + batch.weight[row] * loss / 5
        assert out["loss"].item() == pytest.approx(total.item(), rel=1e-5)
        for one, other in zip(got, torch.autograd.grad(total, list(task.parameters())), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_what_is_behind_an_end_has_rewards_of_nought_and_drawn_actions():
    task = MuZeroModel(networks()[0], unroll=3)
    batch = task.process(rows := Batch(
        obs=torch.zeros(400, 4, 3), act=torch.ones(400, 4, dtype=torch.int64), rew=torch.ones(400, 4),
        terminated=torch.tensor([[YES] * 4] * 200 + [[NO] * 4] * 200), valid=torch.tensor([[YES, NO, NO, NO]] * 400)))
    assert batch.rew[:, 0].eq(1).all() and not batch.rew[:, 1:].any() and batch.act[:, 0].eq(1).all()
    assert 0.4 < batch.act[:, 1:].float().mean() < 0.6
    assert batch.known[:200].eq(1).all() and not batch.known[200:, 1:].any() and len(rows.act) == 400


def test_states_are_scaled_and_gradients_halved():
    state = scaled(torch.tensor([[1.0, 3.0, 5.0], [2.0, 2.0, 2.0]]))
    assert state.tolist() == [[0.0, 0.5, 1.0], [0.0, 0.0, 0.0]]
    x = torch.ones(2, requires_grad=True)
    (3 * half(x)).sum().backward()
    assert half(x).tolist() == [1.0, 1.0] and x.grad.tolist() == [1.5, 1.5]


def test_the_two_tasks_share_the_world_and_learn_each_its_own():
    model, prediction = networks()
    world, heads = (set(map(id, task.parameters())) for task in (MuZeroModel(model), MuZero(prediction)))
    assert world & heads == set(map(id, model.world.parameters()))
    assert world | heads == set(map(id, model.parameters()))


def test_what_is_refused():
    model, prediction = networks()
    for make in (lambda: MuZeroModel(model, unroll=0), lambda: MuZeroModel(model, nodes=0), lambda: MuZero(prediction, n_step=0),
                 lambda: MuZero(prediction, gamma=1.5), lambda: MuZero(prediction, value_weight=-1.0),
                 lambda: MuZeroModel(model, reward_weight=-1.0)):
        with pytest.raises(ValueError, match="expected a"):
            make()
    with pytest.raises(TypeError, match="LatentWorld: act is Box"):
        LatentWorld(OBS, OBS)
    with pytest.raises(ValueError, match="players 3"):
        LatentSearch(lambda rows: {}, 2, 5, players=3)


# --------------------------------------------------------------------------------------------------------------------- search


class RandomModel:
    """A model whose answers are drawn once for each sequence of actions, so that two searches of one order see the same."""

    def __init__(self, n_actions):
        self.n_actions, self.ways = n_actions, {}

    def __call__(self, rows):
        out = []
        for op, act, parent, node in zip(rows["op"], rows["act"], rows["parent"], rows["node"], strict=True):
            way = self.ways[int(node)] = (*(self.ways[int(parent)] if op else (int(node),)), int(act))
            rng = np.random.default_rng(way)
            out.append((rng.normal() * op, rng.normal(), rng.normal(size=self.n_actions)))
        names = ("reward", "value", "logits")
        return {name: np.array(column) for name, column in zip(names, zip(*out, strict=True), strict=True)}


def reference(model, root, simulations, players, gamma, legal, noise):
    """One search as the paper's appendix B says, in its own words: nodes are dicts, and nothing is kept up to date."""
    def node(way, logits, allowed):
        p = np.where(allowed, np.exp(logits - logits[allowed].max()), 0.0)
        return {"way": way, "children": {}, "p": p / p.sum(), "returns": []}

    def answered(way):
        rng = np.random.default_rng(way)
        return rng.normal(), rng.normal(), rng.normal(size=model.n_actions)

    first = answered((root, 0))
    top = node((root, 0), first[2], legal)
    top["p"] = 0.75 * top["p"] + 0.25 * noise
    top["returns"].append(first[1])
    sign = 1 if players == 1 else -1
    q = lambda child: child["r"] + gamma * sign * np.mean(child["returns"])  # noqa: E731
    seen = []  # of every Q that there has been
    for _ in range(simulations):
        at, path = top, [top]
        while True:
            low, high = (min(seen), max(seen)) if seen else (0, 0)
            scores = {}
            for a in np.flatnonzero(at["p"] if at is not top else legal):
                child = at["children"].get(a)
                value = 0.0 if child is None else (q(child) - low) / (high - low) if high > low else q(child)
                visits, times = len(at["returns"]), 0 if child is None else len(child["returns"])
                scores[a] = value + at["p"][a] * np.sqrt(visits) / (1 + times) * (1.25 + np.log((visits + 19652 + 1) / 19652))
            act = max(scores, key=lambda a: scores[a])
            if act in at["children"]:
                at = at["children"][act]
                path.append(at)
                continue
            reward, value, logits = answered((*at["way"], int(act)))
            child = at["children"][act] = node((*at["way"], int(act)), logits, np.ones(model.n_actions, bool)) | {"r": reward}
            path.append(child)
            break
        for one in reversed(path):
            one["returns"].append(value)
            if one is not top:
                seen.append(q(one))
                value = one["r"] + gamma * sign * value
    visits = np.array([len(top["children"][a]["returns"]) if a in top["children"] else 0 for a in range(model.n_actions)])
    values = np.array([q(top["children"][a]) if a in top["children"] else 0.0 for a in range(model.n_actions)])
    return visits, values, np.mean(top["returns"])


@pytest.mark.parametrize(("players", "gamma"), [(1, 0.97), (2, 1.0)])
def test_search_in_random_models_is_that_of_plain_trees_and_of_the_paper(players, gamma):
    """Compiled trees and plain ones to the last bit; visits of both those of a reference that is written from the paper, exactly,
    and its values but for the order in which numbers are added."""
    n, actions, simulations, rng = 3, 4, 40, np.random.default_rng(0)
    legal = np.array([[YES] * 4, [YES, NO, YES, YES], [NO, NO, YES, YES]])
    noise, player = root_noise(rng, legal, 0.25), np.array([0, 1, 0]) % players
    searches = [LatentSearch(RandomModel(actions), actions, simulations, gamma=gamma, players=players, first=7, kernel=kernel)
                for kernel in (Kernel, PlainTrees)]
    found = [search.search({}, legal, player, noise) for search in searches]
    for one, other in zip(*found, strict=True):
        assert (one == other).all()
    assert not found[0].visits[~legal].any() and (found[0].visits.sum(1) == simulations).all()
    for tree in range(n):
        root = 7 + tree * (simulations + 1)
        visits, q, value = reference(RandomModel(actions), root, simulations, players, gamma, legal[tree], noise[tree])
        assert visits.tolist() == found[0].visits[tree].tolist()
        assert q == pytest.approx(found[0].q[tree]) and value == pytest.approx(found[0].value[tree])


class Perfect:
    """The rules of tic-tac-toe as a model that knows nothing of what a position is worth. An illegal move loses, and the game is
    then over, as after a win: rewards and values are 0 whatever is done."""

    def __init__(self, roots):
        self.roots, self.states = roots, {}

    def __call__(self, rows):
        reward = np.zeros(len(rows["op"]))
        for i, (op, act, parent, node) in enumerate(zip(rows["op"], rows["act"], rows["parent"], rows["node"], strict=True)):
            before = self.states.get(int(parent)) if op else None
            after = None
            if not op:
                after = self.roots[i].clone()
            elif before is not None and int(act) not in before.legal():
                reward[i] = -1.0
            elif before is not None:
                after = before.clone()
                after.apply(int(act))
                if after.is_terminal:
                    reward[i], after = after.returns()[before.player], None
            self.states[int(node)] = after
        return {"reward": reward, "value": np.zeros(len(reward)), "logits": np.zeros((len(reward), 9))}


def test_with_a_perfect_model_it_finds_the_best_moves_of_tic_tac_toe():
    """Of positions with one best move: wins, threats that must be met, and forks, from both seats, all searched at once."""
    game, rng = TicTacToe(), np.random.default_rng(1)
    roots, best = [], []
    while len(roots) < 16:
        state = game.start()
        for _ in range(int(rng.integers(4, 7))):
            if not state.is_terminal:
                state.apply(int(rng.choice(state.legal())))
        if state.is_terminal:
            continue
        worth = {}
        for act in state.legal():
            after = state.clone()
            after.apply(act)
            worth[act] = (1 if state.player == 0 else -1) * alpha_beta(after, table=True).value
        top = [act for act, value in worth.items() if value == max(worth.values())]
        if len(top) == 1:
            roots.append(state)
            best.append(top[0])
    search = LatentSearch(Perfect(roots), 9, 800, gamma=1.0, players=2)
    found = search.search({}, np.stack([one.mask() for one in roots]) > 0, np.array([one.player for one in roots]))
    assert found.visits.argmax(1).tolist() == best
    assert {one.player for one in roots} == {0, 1}
