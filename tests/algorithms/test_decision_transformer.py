"""The decision transformer: what each action is made of, its memory while it acts, its loss by hand, and that it does what it is
told to earn."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from parl_like import ComputationTask, OfflineHelper, OffPolicyHelper, Robot, VectorAgent, create_algorithm_func
from parl_like.algorithms import DecisionTransformer
from parl_like.data.datasets import from_arrays
from parl_like.models import CausalTransformer
from parl_like.values.batch import Batch

OBS, BOX, THREE = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Box(-2, 2, (2,), np.float32), gym.spaces.Discrete(3)


def network(act=THREE, context=4, **more):
    torch.manual_seed(0)
    return CausalTransformer(OBS, act, context=context, size=8, blocks=2, heads=2, **more).eval()


def numbers(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32))


@pytest.mark.parametrize("changed", ["to_go", "features", "act"])
def test_an_action_is_made_of_what_came_before_it(changed):
    """Of its own step without the action, and of nothing later."""
    model = network()
    given = {"to_go": numbers(2, 4), "features": numbers(2, 4, 3, seed=1), "act": numbers(2, 4, 3, seed=2)}
    before = model.actions(**given)
    for t in range(4):
        other = {**given, changed: given[changed].clone()}
        other[changed][:, t] += 1.0
        moved = (model.actions(**other) - before).abs().amax((0, 2)) > 0
        assert moved.tolist() == [at > t or (at == t and changed != "act") for at in range(4)]


class Earns(gym.Env):
    """Shows random numbers; the reward says which step of which environment it is. Episodes of `length` steps."""

    def __init__(self, act=THREE, length=7, number=0):
        self.observation_space, self.action_space, self.length, self.number, self.seen = OBS, act, length, number, []
        self.episodes = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, obs = 0, self.observation_space.sample()
        self.seen = [(obs, None, None)]
        self.episodes.append(self.seen)
        return obs, {}

    def step(self, act):
        self.t += 1
        obs, rew = self.observation_space.sample(), 10.0 * self.number + self.t
        self.seen.append((obs, act, rew))
        return obs, rew, False, self.t == self.length, {}


def task(act=THREE, helper=None, context=4, **options):
    spaces = {"obs": OBS, "act": act, "context": context, "size": 8, "blocks": 1}
    options = {"target_return": 50.0, "return_scale": 9.0, **options}
    func = create_algorithm_func(CausalTransformer, spaces, DecisionTransformer, options)
    return ComputationTask(func, helper or (lambda: OffPolicyHelper(warmup=16, batch_size=8, size=400)))


def checked(model, seen):
    """The actions that whole contexts lead to are those that were taken."""
    obs = torch.from_numpy(np.stack([one[0] for one in seen]))
    rew = np.array([one[2] for one in seen[1:]])
    to_go = torch.from_numpy((50.0 - np.cumsum(np.r_[0.0, rew])) / 9.0).float()
    taken = np.array([one[1] for one in seen[1:]])
    if not len(taken):
        return
    act = model.numbers(torch.from_numpy(taken if taken.ndim == 1 else taken / 2.0))
    for t in range(len(taken)):
        first = max(0, t - model.context + 1)
        did = torch.cat([act[first:t], torch.zeros(1, model.dim)])
        out = model.actions(to_go[None, first : t + 1], obs[None, first : t + 1], did[None])[0, -1].detach().numpy()
        if taken.ndim == 1:
            assert out.argmax() == taken[t]
        else:
            np.testing.assert_allclose(2.0 * out, taken[t], atol=1e-5)


@pytest.mark.parametrize("act", [THREE, BOX], ids=["discrete", "box"])
def test_its_memory_is_the_context_of_each_agent(act):
    """Agents of one batch whose episodes have several lengths: each acts by its own last steps and rewards."""
    envs = []

    def make():
        envs.append(Earns(act, 5 + 2 * len(envs), len(envs)))
        return envs[-1]

    with Robot(make, tasks={"RL": task(act, lambda: OffPolicyHelper(learn_every=None))}, n_agents=3, seed=0) as robot:
        robot.run(40)
        model = robot.tasks["RL"].algorithm.model
        for env in envs:
            for seen in env.episodes:
                checked(model, seen)
        assert max(len(seen) for env in envs for seen in env.episodes) > 5


def test_its_memory_in_a_vector_environment():
    envs = [Earns(BOX, 5 + 2 * k, k) for k in range(3)]
    vector = SyncVectorEnv([lambda env=env: env for env in envs])
    tasks = {"RL": task(BOX, lambda: OffPolicyHelper(learn_every=None))}
    with Robot(lambda: vector, tasks=tasks, agent=VectorAgent, seed=0) as robot:
        robot.run(3 * 16)
        for env in envs:
            assert len(env.episodes[0]) == env.length + 1
            for seen in env.episodes:
                checked(robot.tasks["RL"].algorithm.model, seen)


def test_an_episode_goes_on_where_a_checkpoint_was_taken(tmp_path):
    def robot():
        return Robot(lambda: gym.make("CartPole-v1"), tasks={"RL": ComputationTask(create_algorithm_func(
            CausalTransformer, {"obs": gym.make("CartPole-v1").observation_space, "act": gym.spaces.Discrete(2), "context": 3,
                                "size": 8, "blocks": 1}, DecisionTransformer, {"target_return": 50.0}),
            lambda: OffPolicyHelper(warmup=16, batch_size=8, size=400))}, n_agents=2, seed=0, trace=True)

    with robot() as one, robot() as two:
        one.run(101)
        one.save(tmp_path / "saved")
        two.load(tmp_path / "saved")
        for each in (one, two):
            each.run(100)
        assert one.trace_hash() == two.trace_hash() and one.env_steps == two.env_steps > 200


@pytest.mark.parametrize("discrete", [True, False])
def test_the_loss_by_hand(discrete):
    """Of the real rows of two sequences of three, one of which ends after two."""
    model = network(THREE if discrete else BOX, 3)
    algorithm = DecisionTransformer(model, target_return=1.0, return_scale=4.0)
    obs, to_go, valid = numbers(2, 3, 3), numbers(2, 3, seed=1), torch.tensor([[True, True, True], [True, True, False]])
    act = torch.tensor([[0, 1, 2], [2, 1, 1]]) if discrete else numbers(2, 3, 2, seed=2)
    found = algorithm.learn(Batch(obs=obs, act=act, to_go=to_go.double(), valid=valid))["loss"]
    out = model.actions(to_go / 4.0, obs, model.numbers(act)).detach()
    errors = [-float(out[i, t].log_softmax(0)[act[i, t]]) if discrete else float((out[i, t] - act[i, t]).square().mean())
              for i in range(2) for t in range(3) if valid[i, t]]
    assert float(found.detach()) == pytest.approx(np.mean(errors), rel=1e-5)


def recorded(episodes=200, length=4):
    """Random actions −1 … 1; each earns itself."""
    rng = np.random.default_rng(0)
    n = episodes * length
    obs, act = rng.uniform(-1, 1, (n, 3)).astype(np.float32), rng.uniform(-1, 1, (n, 1)).astype(np.float32)
    ends = np.arange(n) % length == length - 1
    return from_arrays(obs=obs, act=act, rew=act[:, 0], terminated=ends, obs_next=obs, action_space=UNIT)


UNIT = gym.spaces.Box(-1, 1, (1,), np.float32)


class Sum(gym.Env):
    """Each action earns itself; episodes of four."""

    observation_space, action_space = OBS, UNIT

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, act):
        self.t += 1
        return self.observation_space.sample(), float(act[0]), self.t == 4, False, {}


def test_it_earns_what_it_is_told():
    func = create_algorithm_func(CausalTransformer, {"obs": OBS, "act": UNIT, "context": 4, "size": 16, "blocks": 1},
                                 DecisionTransformer, {"target_return": 2.0, "lr": 1e-2})
    with Robot(tasks={"RL": ComputationTask(func, lambda: OfflineHelper(recorded(), batch_size=32))}, seed=0) as robot:
        robot.run(200)
        algorithm = robot.tasks["RL"].algorithm
        assert algorithm.updates == 200
        for told in (2.0, -2.0, 0.0):
            algorithm.target_return = told
            assert robot.evaluate(20, env=Sum, seed=1).mean_return == pytest.approx(told, abs=0.5)


def test_rewards_to_go_end_with_the_episode():
    buffer = from_arrays(obs=np.zeros((7, 3), np.float32), act=np.zeros(7, np.int64), rew=np.arange(1.0, 8.0),
                         terminated=np.array([0, 0, 1, 0, 0, 0, 0], bool), truncated=np.array([0, 0, 0, 0, 1, 0, 1], bool),
                         obs_next=np.zeros((7, 3), np.float32))
    order = buffer.sample_indices(0)
    assert buffer.to_go(order).tolist() == [6.0, 5.0, 3.0, 9.0, 5.0, 13.0, 7.0]
    assert buffer.to_go(order[[3, 0]]).tolist() == [9.0, 6.0]
    state, small = buffer.state_dict(), buffer._summed
    assert buffer.to_go(order[:1]).tolist() == [6.0] and buffer._summed is small, "an update does not go through all rows"
    state["columns"]["rew"] = state["columns"]["rew"] * 10
    buffer.load_state_dict(state)
    assert buffer.to_go(order[:1]).tolist() == [60.0]
    buffer.push(0, tuple(column[1] for column in buffer.columns.values()))  # in the place of the oldest row
    assert buffer.to_go(buffer.sample_indices(0)[:1]).tolist() == [50.0]


@pytest.mark.parametrize(("make", "message"), [
    (lambda: DecisionTransformer(network(), target_return=1.0, return_scale=0.0), "return_scale is 0.0"),
    (lambda: CausalTransformer(OBS, THREE, size=8, heads=3), "size is 8 and heads 3; expected a size that the heads divide"),
])
def test_numbers_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_other_actions_are_refused():
    with pytest.raises(TypeError, match="expected Discrete, or a Box with finite bounds"):
        network(gym.spaces.MultiDiscrete([2, 3]))
