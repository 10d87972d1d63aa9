"""Curiosity: counts, random network distillation and ICM, by hand and in small worlds."""

from copy import deepcopy
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import ComputationTask, OnPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms.curiosity import ICM, RND, Counts, OpenEpisodes, SimHash, Visits, exact_keys
from parl_like.algorithms.ppo import PPO
from parl_like.models import MLPActorCritic
from parl_like.models.curiosity import ICMNet, Novel, RNDNet
from parl_like.values.batch import Batch

CELL, TURN = gym.spaces.Discrete(9), gym.spaces.Discrete(2)
NUMBERS = gym.spaces.Box(-10, 10, (3,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
MIXED = gym.spaces.Dict({"image": IMAGE, "here": CELL, "speed": NUMBERS})
NETS = {Counts: Novel, ICM: ICMNet, RND: RNDNet}


def rows(obs, obs_next, lane=None, episode=None, first=None, act=None, at=1):
    """A batch of one environment's rows, in which observations are what these lists say; `at`: the step of the first."""
    n = len(obs)
    kind = torch.long if isinstance(obs[0], int) else torch.float32
    return Batch(obs=torch.tensor(obs, dtype=kind), obs_next=torch.tensor(obs_next, dtype=kind),
                 act=torch.tensor([0] * n if act is None else act), lane=torch.tensor([0] * n if lane is None else lane),
                 episode=torch.tensor([0] * n if episode is None else episode), step=torch.arange(at, at + n),
                 first=torch.tensor([False] * n if first is None else first).bool(), last=torch.arange(n) == n - 1)


def task(kind, obs=CELL, act=TURN, model=None, **options):
    made = ComputationTask(create_algorithm_func(NETS[kind], dict(obs=obs, act=act, **(model or {})), kind, options))
    made.build(np.random.SeedSequence(0))
    return made


def learn(made, batch, times=1):
    """Updates of these rows, whose fields a robot's helpers would send; returns what the last one said."""
    for _ in range(times):
        out = made.learn({name: value.numpy() for name, value in batch.items()})
    return out


def rewards(made, batch):
    names = [name.split(".")[0] for name in made.algorithm.model.inputs()]
    return made.predict({name: batch[name].numpy() for name in names})["reward"]


# ------------------------------------------------------------------------------------------------------------------- counts


def test_counts_are_the_formula():
    made, path = task(Counts), rows([0, 1, 2, 1], [1, 2, 1, 2], first=[True, False, False, False])
    np.testing.assert_array_equal(rewards(made, path), np.ones(4, np.float32))  # nothing was learned yet
    learn(made, path)  # seen: 0 once, for it began an episode; 1 and 2 twice
    # 1 / sqrt(N + 1): the visit itself counts
    np.testing.assert_allclose(rewards(made, rows([0, 0, 0, 0], [0, 1, 2, 3])), [2**-0.5, 3**-0.5, 3**-0.5, 1.0], rtol=1e-6)


def test_the_difference_of_two_novelties_by_hand():
    made = task(Counts, alpha=0.5)
    learn(made, rows([0, 1, 1], [1, 1, 1], first=[True, False, False]))  # 0 once, 1 three times
    # max(n(s') - n(s) / 2, 0): from 0 to 1: 1/2 - 0.5 / sqrt(2); from 1 to 0: 1 / sqrt(2) - 0.25; from 3, which is new, to 1: 0
    np.testing.assert_allclose(rewards(made, rows([0, 1, 3], [1, 0, 1])), [0.5 - 0.5**1.5, 0.5**0.5 - 0.25, 0.0], atol=1e-6)


def test_only_the_first_visit_of_an_episode_is_rewarded_and_unrolls_do_not_matter():
    path = rows([0, 1, 2, 1, 0, 3], [1, 2, 1, 3, 3, 0], episode=[0, 0, 0, 0, 1, 1], first=[True, 0, 0, 0, True, 0])
    expected = [True, True, False, True, True, False]
    whole = task(Counts, first_visits=True)
    assert (rewards(whole, path) > 0).tolist() == expected
    for cut in range(1, 6):
        made, seen = task(Counts, first_visits=True), []
        for part in (path[:cut], path[cut:]):
            seen += (rewards(made, part) > 0).tolist()
            learn(made, part)
        assert seen == expected, cut
        learn(made, rows([3], [0], episode=[1], at=7))
        assert made.algorithm.episodes.rows[:, 1:3].tolist() == [[1, 0], [1, 3]]  # of the episode that is over nothing is kept


def test_first_visits_are_the_same_for_who_asks_after_the_task_has_learned():
    """As where updates go on beside the agents, or the task learns from shorter unrolls."""
    path = rows([0, 1, 2, 1, 0, 3], [1, 2, 1, 3, 3, 0], episode=[0, 0, 0, 0, 1, 1], first=[True, 0, 0, 0, True, 0])
    made = task(Counts, first_visits=True)
    learn(made, path[:2])
    learn(made, path[2:])
    assert (rewards(made, path[2:]) > 0).tolist() == [False, True, True, False]
    assert (rewards(made, path) > 0).tolist() == [True, True, False, True, True, False]


def test_environments_do_not_share_an_episode():
    path = rows([0, 0], [1, 1], lane=[0, 1])
    made = task(Counts, first_visits=True)
    learn(made, path)
    again = rows([0, 0], [1, 1], lane=[0, 1], at=4)
    assert (rewards(made, again) > 0).all()  # to 1 again: neither episode has begun a row with it
    learn(made, rows([1], [2], lane=[1], at=3))
    assert (rewards(made, again) > 0).tolist() == [True, False]


def test_visits_are_those_of_a_dict():
    rng, visits, plain = np.random.default_rng(0), Visits(), {}
    for _ in range(20):
        keys = rng.integers(0, 2**64, 30, dtype=np.uint64, endpoint=False) % np.uint64(40)
        visits.add(keys)
        for key in keys.tolist():
            plain[key] = plain.get(key, 0) + 1
        asked = np.arange(50, dtype=np.uint64)
        assert visits.of(asked).tolist() == [plain.get(key, 0) for key in range(50)]
        other = Visits()
        other.load_state_dict(visits.state_dict())
        assert other.of(asked).tolist() == visits.of(asked).tolist()


def test_first_visits_are_those_of_a_plain_loop():
    rng, episodes = np.random.default_rng(0), OpenEpisodes()
    cells, episode, seen = np.zeros(4, int), np.zeros(4, int), [set() for _ in range(4)]
    for k in range(20):
        path, expected = [], []
        for lane in range(4):
            for step in range(7 * k, 7 * k + 7):
                before, cells[lane] = cells[lane], rng.integers(12)
                seen[lane].add(before)
                path.append((lane, episode[lane], step, before, cells[lane]))
                expected.append(cells[lane] not in seen[lane])
                if rng.random() < 0.2:
                    episode[lane], seen[lane] = episode[lane] + 1, set()
        lanes, numbers, steps, keys, keys_next = np.array(path).T
        keys, keys_next = keys.astype(np.uint64), keys_next.astype(np.uint64)
        for _ in range(2):
            assert episodes.first_visits(lanes, numbers, steps, keys, keys_next).tolist() == expected
            episodes.add(lanes, numbers, steps, keys)  # and once more, after it was told of them


def test_small_observations_are_their_own_keys_and_others_differ():
    assert exact_keys(torch.tensor([3, 7])).tolist() == [3, 7]
    floats = exact_keys(torch.tensor([[0.0, 1.0], [-0.0, 1.0], [0.0, 2.0]]))
    assert floats[0] == floats[1] != floats[2]
    many = torch.arange(5000).reshape(1000, 5)
    assert len(set(exact_keys(many).tolist())) == 1000
    mixed = Batch(a=torch.tensor([1, 2]), b=torch.zeros(2, 3))
    assert len(set(exact_keys(mixed).tolist())) == 2


def test_near_numbers_share_a_key_and_far_ones_do_not():
    made = SimHash(Novel(gym.spaces.Box(np.float32([-1.2, -0.07]), np.float32([0.6, 0.07])), TURN), 32)
    near, far = torch.tensor([[-0.5, 0.0], [-0.500001, 0.0]]), torch.tensor([[-0.5, 0.0], [0.5, 0.0], [-0.5, 0.06]])
    assert made(near)[0] == made(near)[1] and len(set(made(far).tolist())) == 3


# ---------------------------------------------------------------------------------------------------------------------- RND


def test_the_reward_of_rnd_falls_for_what_is_repeated_and_not_for_what_is_new():
    made = task(RND, NUMBERS, lr=1e-3)
    old = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)).tolist()
    batch, new = rows(old, old), rows([[9.0, -9.0, 9.0]] * 2, [[9.0, -9.0, 9.0]] * 2)
    assert rewards(made, batch).tolist() == [0.0] * 64  # nothing is known of how large errors are
    learn(made, batch)
    first, error = rewards(made, batch), made.algorithm.error(batch.obs).mean()
    learn(made, batch, 60)
    assert made.algorithm.error(batch.obs).mean() < error / 20 and rewards(made, batch).mean() < first.mean() / 2
    assert rewards(made, new).mean() > 5 * rewards(made, batch).mean()


def test_the_scale_of_rnd_is_the_deviation_of_discounted_sums_along_each_environment():
    made = task(RND, NUMBERS, gamma=0.5, lr=0.0)
    algorithm = made.algorithm
    path = rows([[0.0] * 3] * 4, [[1.0, 2.0, 3.0], [2.0, 0.0, 1.0], [5.0, 1.0, 1.0], [3.0, 3.0, 3.0]], lane=[0, 0, 1, 1])
    learn(made, path)
    e = algorithm.error(path.obs_next).tolist()  # the predictor has learned nothing, with rate 0
    sums = [e[0], e[1] + e[0] / 2, e[2], e[3] + e[2] / 2]
    np.testing.assert_allclose(algorithm.running, [sums[1], sums[3]], rtol=1e-6)
    np.testing.assert_allclose(rewards(made, path), np.array(e) / np.std(sums), rtol=1e-5)
    learn(made, path)  # sums go on, also over the ends of episodes
    np.testing.assert_allclose(algorithm.running[0], e[1] + 0.5 * (e[0] + 0.5 * sums[1]), rtol=1e-2)


def test_observations_of_rnd_are_normalised_and_cut():
    made = task(RND, NUMBERS)
    learn(made, rows([[0.0] * 3] * 2, [[1.0, 2.0, 3.0], [3.0, 2.0, 3.0]]))
    numbers = made.algorithm.numbers(torch.tensor([[3.0, 2.0, 9.0], [0.0, 2.0, 3.0]]))
    np.testing.assert_allclose(numbers, [[1.0, 0.0, 5.0], [-2.0, 0.0, 0.0]], atol=1e-4)


def test_the_target_of_rnd_stays():
    made = task(RND, NUMBERS)
    before = [one.clone() for one in made.algorithm.model.target.parameters()]
    learn(made, rows([[0.0] * 3] * 8, [[1.0, 2.0, 3.0]] * 8), 3)
    assert all(torch.equal(one, other) for one, other in zip(before, made.algorithm.model.target.parameters(), strict=True))


# ---------------------------------------------------------------------------------------------------------------------- ICM


def test_the_loss_of_icm_by_hand():
    made = task(ICM, NUMBERS, beta=0.2, minibatches=1)
    model, batch = made.algorithm.model, rows([[1.0, 0.0, 0.0]] * 2, [[0.0, 1.0, 0.0]] * 2, act=[0, 1])
    with torch.no_grad():
        before, after = model.trunk(batch.obs), model.trunk(batch.obs_next)
        guess = model.between(before, after).log_softmax(1)
        inverse = -(guess[0, 0] + guess[1, 1]) / 2
        forward = 0.5 * (model.next_obs(before, batch.act) - after).square().sum(1)
    np.testing.assert_allclose(rewards(made, batch), forward, rtol=1e-5)
    out = learn(made, batch)
    np.testing.assert_allclose([out["loss"], out["forward"], out["inverse"]],
                               [0.8 * inverse + 0.2 * forward.mean(), forward.mean(), inverse], rtol=1e-5)


def ring(n, rng, noisy):
    """Steps on a ring of 8 cells, one-hot, by an action; `noisy`: beside two numbers that no action changes."""
    cell, act = rng.integers(8, size=n), rng.integers(2, size=n)
    eye = np.eye(8, dtype=np.float32)
    obs, after = eye[cell], eye[(cell + 2 * act - 1) % 8]
    if noisy:
        obs, after = (np.concatenate([x, rng.normal(size=(n, 2)).astype(np.float32)], 1) for x in (obs, after))
    return Batch(obs=torch.from_numpy(obs), act=torch.from_numpy(act), obs_next=torch.from_numpy(after),
                 last=torch.arange(n) == n - 1)


@pytest.mark.parametrize("noisy", [False, True])
def test_icm_comes_to_know_a_small_world_and_leaves_noise_out(noisy):
    rng, size = np.random.default_rng(0), 10 if noisy else 8
    made = task(ICM, gym.spaces.Box(-9, 9, (size,), np.float32), lr=3e-3, minibatches=1, model={"hidden": (64, 32)})
    for _ in range(240):
        out = learn(made, ring(256, rng, noisy))
    assert out["inverse"] < 0.05
    batch = ring(512, rng, noisy)
    scale = made.algorithm.model.trunk(batch.obs).square().sum(1).mean().item()
    assert rewards(made, batch).mean() < 0.02 * scale
    if noisy:  # what the features are of the same cell does not depend on the noise
        other = torch.cat([batch.obs[:, :8], torch.randn(512, 2, generator=torch.Generator().manual_seed(1))], 1)
        apart = (made.algorithm.model.trunk(batch.obs) - made.algorithm.model.trunk(other)).square().sum(1).mean()
        assert apart < 0.1 * scale


# ---------------------------------------------------------------------------------------------- beside a policy, of any spaces


class Shown(gym.Env):
    """Shows samples of a space; episodes of five steps without a reward."""

    action_space = TURN

    def __init__(self, obs):
        self.observation_space = deepcopy(obs)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample(), {}

    def step(self, act):
        self.left -= 1
        return self.observation_space.sample(), 0.0, self.left == 0, False, {}


def curious(kind, obs, **options):
    spaces, helper = {"obs": obs, "act": TURN}, partial(OnPolicyHelper, unroll=8)
    own = {} if kind is Counts else {"hidden": (8,)}
    tasks = {"RL": ComputationTask(create_algorithm_func(MLPActorCritic, {**spaces, "hidden": (8,)}, PPO, {"epochs": 1}), helper,
                                   rewards={"curiosity": 1.0}),
             "curiosity": ComputationTask(create_algorithm_func(NETS[kind], {**spaces, **own}, kind, options), helper)}
    return Robot(partial(Shown, obs), tasks=tasks, n_agents=2, trace=True)


KINDS = [(Counts, {}), (Counts, {"planes": 8, "alpha": 0.5, "first_visits": True}), (RND, {}),
         (RND, {"alpha": 0.5, "first_visits": True}), (ICM, {})]


@pytest.mark.parametrize(("kind", "options"), KINDS)
@pytest.mark.parametrize("obs", [CELL, IMAGE, MIXED], ids=["Discrete", "image", "Dict"])
def test_any_observation_is_rewarded_and_resumed_exactly(kind, options, obs, tmp_path):
    if obs is not MIXED and options:
        pytest.skip("once is enough")
    whole, resumed = curious(kind, obs, **options), curious(kind, obs, **options)
    try:
        whole.run(32)
        whole.save(tmp_path / "there")
        whole.run(32)
        resumed.load(tmp_path / "there")
        resumed.run(32)
        for name in ("RL", "curiosity"):
            states = [robot.tasks[name].state_dict() for robot in (whole, resumed)]
            assert flat(states[0]) == flat(states[1])
        assert whole.tasks["curiosity"].rows_learned == 64
        made = whole.tasks["curiosity"]
        assert made.asked is None and whole.tasks["RL"].window.fields[-3:] == (("lane", "episode", "step") if options else ())
    finally:
        whole.close()
        resumed.close()


def flat(state, name=""):
    """A saved state as names and lists."""
    if isinstance(state, dict):
        return {key: value for part, inside in state.items() for key, value in flat(inside, f"{name}/{part}").items()}
    return {name: state.tolist() if hasattr(state, "tolist") else state}
