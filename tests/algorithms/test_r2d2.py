"""R2D2: its targets by hand, what its memory is, and that without memory it is DQN."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from value_rows import ACT, MASKED, OBS, batch_of, rows

from parl_like import ComputationTask, OffPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import DQN, R2D2
from parl_like.algorithms.targets import along, rescale, rescale_inverse
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.envs.recall import Recall
from parl_like.learning.model import Model
from parl_like.learning.model_check import ContractError
from parl_like.models import MLP, MLPQ, RecurrentQ
from parl_like.values.batch import Batch
from parl_like.values.spec import Spec


def test_rescaling_by_hand_and_back():
    """h(3) = √4 − 1 + 3 ε, h(−8) = −(√9 − 1) − 8 ε."""
    x = torch.tensor([0.0, 3.0, -8.0], dtype=torch.float64)
    np.testing.assert_allclose(rescale(x, 0.001), [0.0, 1.003, -2.008], rtol=1e-12)
    x = torch.linspace(-1e4, 1e4, 101)
    for eps in (0.0, 1e-3, 0.5):
        np.testing.assert_allclose(rescale_inverse(rescale(x, eps), eps), x, rtol=1e-4)


def test_returns_along_a_sequence_by_hand():
    """Two steps at discount ½. The first sequence has three real rows; the second terminates at its second."""
    rew = torch.tensor([[1.0, 2.0, 4.0, 9.0], [1.0, 2.0, 9.0, 9.0]])
    discount = torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.5, 0.0, 0.5, 0.5]])
    valid = torch.tensor([[True, True, True, False], [True, True, False, False]])
    total, factor, then = along(rew, discount, valid, 2)
    assert total[0, :3].tolist() == [2.0, 4.0, 4.0] and total[1, :2].tolist() == [2.0, 2.0]
    assert factor[0, :3].tolist() == [0.25, 0.25, 0.5] and factor[1, :2].tolist() == [0.0, 0.0]
    assert then[0, :3].tolist() == [2, 3, 3] and then[1, :2].tolist() == [2, 2]


class Sums(Model):
    """Remembers the sum h of what it saw; q = (h, scale · h)."""

    def __init__(self, scale=1.0):
        super().__init__(gym.spaces.Box(-9, 9, (1,), np.float32), gym.spaces.Discrete(2))
        self.scale = torch.nn.Parameter(torch.tensor([1.0, scale]))

    def state_specs(self):
        return {"h": Spec("h", (1,), np.dtype(np.float32))}

    def q(self, obs, state=None):
        h = obs.cumsum(0) + state["h"] if obs.ndim == 3 else obs + state["h"]
        return h * self.scale, {"h": h[-1] if obs.ndim == 3 else h}


def sequences(**more):
    """Two sequences of two rows behind one of burn-in. The first follows a row and goes on; the second begins its episode with a
    stored memory of 10 and is truncated at its first row, which led to 7."""
    fields = {"obs": [[1.0, 2.0, 3.0], [4.0, 4.0, 4.0]], "obs_next": [[2.0, 3.0, 5.0], [7.0, 7.0, 7.0]],
              "rew": [[0.0, 1.0, 2.0], [3.0, 3.0, 3.0]], "act": [[0, 1, 0], [1, 1, 1]], "state.h": [[0.5], [10.0]],
              "valid": [[True, True, True], [False, True, False]],
              "terminated": [[False] * 3, [False] * 3], "truncated": [[False] * 3, [True] * 3], **more}
    return {name: np.array(value, None if name in ("act", "valid", "terminated", "truncated") else np.float32)
            for name, value in ((name, np.expand_dims(value, -1) if name.startswith("obs") else value)
                                for name, value in fields.items())}


@torch.no_grad()
def processed(learner, **more):
    return learner.process(batch_of(sequences(**more)))


def test_targets_and_priorities_by_hand():
    """Scale 2, the target 3. First sequence: h 0.5 + 1 = 1.5 after the burn-in, then 3.5, 6.5 and at last 11.5. y_1 = 1 + ½ · 2 +
    ¼ · 3 · 11.5, y_2 = 2 + ½ · 3 · 11.5. Second one: h stays 10, then 14, and 21 follows: y_1 = 3 + ½ · 3 · 21."""
    learner = R2D2(Sums(2.0), gamma=0.5, n_step=2, sequence=2, burn_in=1, eps=None, eta=0.5)
    learner.target.scale.data = torch.tensor([1.0, 3.0])
    batch = processed(learner)
    assert batch.memory.h.tolist() == [[1.5], [10.0]]
    np.testing.assert_allclose(batch.target[0], [2 + 0.75 * 11.5, 2 + 1.5 * 11.5])
    np.testing.assert_allclose(batch.target[1, 0], 3 + 1.5 * 21)
    out = learner.learn(batch)
    # |y − q|: |10.625 − 2 · 3.5| = 3.625 and |19.25 − 6.5| = 12.75; |34.5 − 2 · 14| = 6.5
    np.testing.assert_allclose(out["priority"], [(12.75 + (3.625 + 12.75) / 2) / 2, 6.5])
    np.testing.assert_allclose(out["loss"].detach(), (3.125 + 12.25 + 6.0) / 3, rtol=1e-6)
    weighted = learner.learn(processed(learner, weight=[2.0, 0.5]))
    np.testing.assert_allclose(weighted["loss"].detach(), (2 * (3.125 + 12.25) + 0.5 * 6.0) / 3, rtol=1e-6)
    squeezed = R2D2(Sums(2.0), gamma=0.5, n_step=2, sequence=2, burn_in=1, target_period=0)
    # h⁻¹ of 2 · 11.5, twice a quarter of it, and h again
    inside = 2 + 0.25 * float(rescale_inverse(torch.tensor(23.0), 1e-3))
    np.testing.assert_allclose(processed(squeezed).target[0, 0], np.sqrt(inside + 1) - 1 + 1e-3 * inside,
                               rtol=1e-5)


class Weighed(Sums):
    """Remembers the sum of what it saw, each times the first number of `scale`."""

    def q(self, obs, state=None):
        return super().q(obs * self.scale[0], state)


class Shapes(Model):
    """Adds what it sees to every number of its memory, whose parts have no axis beside that of the rows, one and two."""

    def __init__(self):
        super().__init__(gym.spaces.Box(-99, 99, (1,), np.float32), gym.spaces.Discrete(2))

    def state_specs(self):
        return {"count": Spec("count", (), np.dtype(np.int64)), "h": Spec("h", (3,), np.dtype(np.float32)),
                "layers": Spec("layers", (4, 3), np.dtype(np.float32))}

    def q(self, obs, state=None):
        after = {name: part + obs.reshape(-1, *(1,) * (part.ndim - 1)).to(part.dtype) for name, part in state.items()}
        return after["h"][:, :2], after


def test_rows_that_are_not_real_leave_memories_of_every_shape_alone():
    """Two rows of burn-in, which show 1 and 10: of the four sequences one has none of them, one the last, two both. As many
    sequences as layers, so that a mask along the wrong axis would fit, too."""
    learner = R2D2(Shapes(), sequence=2, burn_in=2)
    valid = [[False, False, True, True], [False, True, True, True], [True] * 4, [True] * 4]
    state = {f"state.{name}": np.random.default_rng(0).integers(1, 9, (4, *spec.shape)).astype(spec.dtype) * 100
             for name, spec in learner.model.state_specs().items()}
    shown = np.tile(np.array([1, 10, 50, 50], np.float32)[:, None], (4, 1, 1))
    after = learner.sequences.warmed(learner.model.q, batch_of({"obs": shown, "valid": np.array(valid), **state}))
    for name, part in after.items():
        before = state[f"state.{name}"]
        assert np.array_equal(part, before + np.array([0, 10, 11, 11]).reshape(4, *(1,) * (before.ndim - 1)))
        assert part.numpy().dtype == before.dtype


def test_network_and_target_each_have_a_memory_of_their_own_and_the_network_chooses():
    """The network, (1, 2), prefers action 1. The target is (3, −1): h = 0.5 + 3 · 1 after the burn-in, then 9.5, 18.5 and
    33.5."""
    learner = R2D2(Weighed(2.0), gamma=0.5, n_step=1, sequence=2, burn_in=1, eps=None)
    learner.target.scale.data = torch.tensor([3.0, -1.0])
    batch = processed(learner)
    assert batch.memory.h[0].tolist() == [1.5]
    np.testing.assert_allclose(batch.target[0], [1 - 0.5 * 18.5, 2 - 0.5 * 33.5])
    learner.double = False
    np.testing.assert_allclose(processed(learner).target[0], [1 + 0.5 * 3 * 18.5, 2 + 0.5 * 3 * 33.5])


class InABatch(Sums):
    """Gives its memory as a `Batch`."""

    def q(self, obs, state=None):
        q, memory = super().q(obs, state)
        return q, Batch(memory)


def test_a_memory_may_be_a_batch():
    plain, batch = (ComputationTask(R2D2(model(2.0), sequence=2, burn_in=1)) for model in (Sums, InABatch))
    inputs = {"obs": np.ones((2, 1), np.float32), "state.h": np.ones((2, 1), np.float32)}
    for task in (plain, batch):
        task.learn(sequences())
    for name, column in plain.predict(inputs).items():
        np.testing.assert_array_equal(column, batch.predict(inputs)[name])
    assert plain.algorithm.model.scale.tolist() == batch.algorithm.model.scale.tolist() != [1.0, 2.0]


def test_an_end_by_termination_has_nothing_behind_it():
    learner = R2D2(Sums(), gamma=0.5, n_step=3, sequence=2, burn_in=1, eps=None)
    batch = processed(learner, terminated=[[False, False, True], [True] * 3])
    assert batch.target[0].tolist() == [2.0, 2.0] and batch.target[1, 0] == 3.0


class Forgetful(MLPQ):
    """A memory that keeps nothing."""

    def state_specs(self):
        return {"h": Spec("h", (1,), np.dtype(np.float32))}

    def q(self, obs, state=None):
        return super().q(obs), dict(state)


@pytest.mark.parametrize("obs", [OBS, MASKED])
def test_without_a_memory_it_is_dqn(obs):
    """The same rows, two by two in sequences, give the same weights."""
    model = MLPQ(obs, ACT, (8,))
    forgetful = Forgetful(obs, ACT, (8,))
    forgetful.load_state_dict(model.state_dict())
    one = ComputationTask(DQN(model, target_period=5))
    other = ComputationTask(R2D2(forgetful, n_step=1, sequence=2, burn_in=0, eps=None, target_period=5))
    before = copy.deepcopy(model.state_dict())
    for seed in range(20):
        flat = rows(seed, masked=obs is MASKED, terminated=np.arange(8) % 4 == 3)
        for name in ("obs.x", "obs.mask") if obs is MASKED else ("obs",):  # behind the first row of each, its second
            flat[name.replace("obs", "obs_next")][::2] = flat[name][1::2]
        one.learn(flat)
        other.learn({**{name: column.reshape(4, 2, *column.shape[1:]) for name, column in flat.items()},
                     "valid": np.ones((4, 2), bool), "state.h": np.zeros((4, 1), np.float32)})
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(forgetful.state_dict()[name], value, atol=1e-6)
        assert not torch.equal(value, before[name])


def test_a_dueling_network_with_a_memory_has_its_value_as_the_mean():
    model = RecurrentQ(OBS, ACT, (8,), size=8, dueling=True)
    seen = []
    model.v.register_forward_hook(lambda module, given, out: seen.append(out))
    q, _ = model.q(torch.randn(5, 3), {"h": torch.randn(5, 8)})
    torch.testing.assert_close(q.mean(1, keepdim=True), seen[0])
    assert q.std(1).min() > 0


@pytest.mark.parametrize("memory", ["gru", "lstm", "attention"])
def test_steps_in_a_row_are_the_steps_one_by_one(memory):
    model = RecurrentQ(MASKED, ACT, (8,), memory, size=8, dueling=True)
    obs = {"x": torch.randn(4, 3, 3), "mask": torch.ones(4, 3, 4)}
    obs["mask"][:, :, 1] = 0
    state = {name: torch.full((3,), 2) if name == "filled" else torch.randn(3, *spec.shape)
             for name, spec in model.state_specs().items()}
    whole, after = model.q(obs, state)
    for t in range(4):
        q, state = model.q({name: part[t] for name, part in obs.items()}, state)
        torch.testing.assert_close(whole[t], q)
        assert (q[:, 1] == -1e9).all()
    torch.testing.assert_close(after, state)
    advantages = model.net(model._remember(obs, state)[0])
    assert model.v is not None and advantages.shape == (4, 3, 4)


@pytest.mark.parametrize("memory", ["gru", "lstm", "attention"])
def test_burn_in_finds_the_memory_that_the_agent_had(memory):
    """With parameters that stand still it is the one that was stored with the row after it."""
    spaces = dict(obs=Recall().observation_space, act=Recall().action_space)
    network = {**spaces, "hidden": (), "size": 4, "memory": memory}
    func = create_algorithm_func(RecurrentQ, network, R2D2, dict(sequence=5, burn_in=3, lr=0.0))
    tasks = {"RL": ComputationTask(func, lambda: OffPolicyHelper(size=200, batch_size=16))}
    with Robot(lambda: Recall(6), tasks=tasks, n_agents=2, seed=0) as robot:
        robot.run(StopAfterSteps(100))
        helper = robot.agents[0].helpers["RL"]
        found, at = helper.sample(64)
        batch = batch_of(found)
        warmed = robot.tasks["RL"].algorithm.sequences.warmed(robot.tasks["RL"].algorithm.model.q, batch)
        assert set(warmed) == set(robot.tasks["RL"].algorithm.model.state_specs())
        for name, part in warmed.items():
            torch.testing.assert_close(part, torch.from_numpy(robot.buffers["RL"].get(at, f"state.{name}")))
            assert part.abs().max() > 0
        assert not found["valid"][:, :3].all()


def test_a_robot_whose_memory_is_attention_learns_from_sequences_with_a_burn_in():
    options = {"memory": "attention", "RecurrentQ.size": 8, "burn_in": 3, "sequence": 4, "warmup": 50, "batch_size": 8}
    with Robot.of("R2D2", "CartPole-v1", learn_every=10, n_agents=1, seed=0, **options) as robot:
        model = robot.tasks["RL"].algorithm.model
        before = [parameter.clone() for parameter in model.parameters()]
        robot.run(150)
        assert robot.tasks["RL"].learns >= 5
        assert not any(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
        assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_tests_act_without_noise():
    """Those who collect have that of the last update, also after a test."""
    trunk = MLP([3, 8], noisy=3.0, activate_last=True)
    task = ComputationTask(R2D2(RecurrentQ(OBS, ACT, (8,), size=8, trunk=trunk), n_step=1, sequence=2, burn_in=0))
    flat = {name: column.reshape(4, 2, *column.shape[1:]) for name, column in rows().items()}
    task.learn({**flat, "valid": np.ones((4, 2), bool), "state.h": np.zeros((4, 8), np.float32)})
    inputs = {"obs": np.ones((2, 3), np.float32), "state.h": np.zeros((2, 8), np.float32)}
    collected, tested, again = (task.predict(inputs, mode) for mode in ("collect", "test", "collect"))
    layers = task.algorithm.noisy
    assert len(layers) == 2 and all(layer.noise_in.any() for layer in layers)
    for noise in (noise for layer in layers for noise in (layer.noise_in, layer.noise_out)):
        noise.zero_()
    without = task.predict(inputs, "collect")
    assert set(tested) == {"q", "state.h"}
    for name in tested:
        np.testing.assert_allclose(tested[name], without[name], atol=1e-6)
        np.testing.assert_array_equal(collected[name], again[name])
        assert not np.allclose(tested[name], collected[name])


@pytest.mark.parametrize(("make", "message"), [
    (lambda: R2D2(MLPQ(OBS, ACT)), "needs a memory"), (lambda: DQN(RecurrentQ(OBS, ACT)), "tuple"),
    (lambda: RecurrentQ(OBS, OBS), "expected Discrete"), (lambda: R2D2(RecurrentQ(OBS, ACT), sequence=1), "sequence is 1"),
    (lambda: RecurrentQ(OBS, ACT, memory="rnn"), "memory is 'rnn'"),
])
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises((ContractError, TypeError, ValueError), match=message):
        ComputationTask(make())
