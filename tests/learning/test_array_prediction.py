"""Predictions from arrays to arrays: they are those of the ordinary way, see changes at once, and give way where they must."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import ComputationTask, create_algorithm_func
from parl_like.algorithms import DDPG, DQN, MPO, OAC, PPO, SAC
from parl_like.learning.array_prediction import gives
from parl_like.learning.native import networks_of
from parl_like.models import MLPQ, MLPActorCritic, MLPActorQ

OBS, BOX, TWO = gym.spaces.Box(-9, 9, (5,), np.float32), gym.spaces.Box(-1, 1, (2, 2), np.float32), gym.spaces.Discrete(3)
SEVERAL = gym.spaces.MultiDiscrete([2, 3])
KINDS = {
    "ppo": (MLPActorCritic, PPO, TWO, {}), "ppo several": (MLPActorCritic, PPO, SEVERAL, {"shared": True, "activation": "relu"}),
    "ppo box": (MLPActorCritic, PPO, BOX, {"activation": "silu"}),
    "ppo box state": (MLPActorCritic, PPO, BOX, {"state_dependent_std": True}),
    "ppo squashed": (MLPActorCritic, PPO, BOX, {"distribution": "squashed"}), "dqn": (MLPQ, DQN, TWO, {}),
    "sac": (MLPActorQ, SAC, BOX, {"hidden": (40, 24)}), "sac choices": (MLPActorQ, SAC, TWO, {}),
    "mpo": (MLPActorQ, MPO, BOX, {}), "ddpg": (MLPActorQ, DDPG, BOX, {"policy": "deterministic"}),
}  # fmt: skip


def task_of(model, algorithm, act, options, obs=OBS, native=True):
    task = ComputationTask(create_algorithm_func(model, {"obs": obs, "act": act, **options}, algorithm, {}))
    task.build(np.random.SeedSequence(1))
    own = task.algorithm.model
    own.native = networks_of(own) if native else {}
    return task


def model_of(task):
    return task.algorithm.model


def rows(n, seed=0):
    return {"obs": np.random.default_rng(seed).standard_normal((n, 5)).astype(np.float32)}


def ordinarily(task, inputs):
    """What the task predicts through torch, with the same native networks."""
    runner = task.runner
    return runner.predict(task.algorithm, inputs, "collect", runner.inference, lambda inputs: None)


def by_torch(task, inputs):
    model = task.algorithm.model
    native, model.native = model.native, {}
    out = task.predict(inputs)
    model.native = native
    return out


def check_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype and ours[name].shape == value.shape
        np.testing.assert_array_equal(ours[name], value)


def is_direct(task, inputs=None):
    return task.runner.on_rows(rows(3) if inputs is None else inputs) is not None


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_outputs_are_those_of_the_ordinary_way_and_of_torch(kind):
    task = task_of(*kind)
    assert is_direct(task)
    for n in (1, 2, 7, 8, 64, 65, 300):
        out = task.predict(rows(n, n))
        check_equal(out, ordinarily(task, rows(n, n)))
        for name, value in by_torch(task, rows(n, n)).items():
            np.testing.assert_allclose(out[name], value, rtol=1e-5, atol=1e-6)
        kept = {name: value.copy() for name, value in out.items()}
        task.predict(rows(n, n + 1))
        out[next(iter(out))][:] = 7.0
        check_equal({**out, next(iter(out)): kept[next(iter(out))]}, kept)  # nothing is shared with another reply or output


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_row_does_not_depend_on_the_rows_beside_it(kind):
    task, whole = task_of(*kind), rows(300)["obs"]
    out = task.predict({"obs": whole})
    for begin, end in ((0, 1), (1, 2), (0, 7), (3, 11), (50, 114), (50, 115), (299, 300)):
        check_equal(task.predict({"obs": whole[begin:end]}), {name: value[begin:end] for name, value in out.items()})


CHANGES = {
    "step": lambda task, p: [torch.no_grad()(lambda: q.add_(0.1))() for q in p],
    "data": lambda task, p: [q.data.add_(0.1) for q in p],
    "array": lambda task, p: [np.add(q.detach().numpy(), 0.1, out=q.detach().numpy()) for q in p],
    "new memory": lambda task, p: [setattr(q, "data", q.data + 0.1) for q in p],
    "one number": lambda task, p: p[0].data.view(-1)[:1].add_(1e-3),
    "state": lambda task, p: model_of(task).load_state_dict({k: v + 0.1 for k, v in model_of(task).state_dict().items()}),
    "another": lambda task, p: model_of(task).sync_from(model_of(task_of(*KINDS["ppo box"])).clone(copy=False), 0.5),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_parameters_act_at_once(change):
    task, inputs = task_of(*KINDS["ppo box"]), rows(8)
    for _ in range(3):
        before = task.predict(inputs)
        change(task, list(task.algorithm.model.own.parameters()))
        after = task.predict(inputs)
        assert (before["mean"] != after["mean"]).any()
        check_equal(after, ordinarily(task, inputs))
        assert is_direct(task)


def test_observations_of_other_types_and_layouts_are_taken():
    task, obs = task_of(*KINDS["ppo"]), rows(6)["obs"]
    for given in (np.asfortranarray(obs), np.repeat(obs, 2, 1)[:, ::2]):
        check_equal(task.predict({"obs": given}), task.predict({"obs": obs}))
    task = task_of(MLPQ, DQN, TWO, {}, gym.spaces.Box(-9, 9, (5,), np.float64))
    assert is_direct(task, {"obs": obs.astype(np.float64)})
    check_equal(task.predict({"obs": obs.astype(np.float64)}), ordinarily(task, {"obs": obs.astype(np.float64)}))


def test_acting_copies_predict_so_too():
    task = task_of(*KINDS["ppo"])
    task.publish()
    assert task.acting.front.on_rows(rows(3)) is not None
    before = task.predict(rows(3))
    for parameter in task.algorithm.model.parameters():
        parameter.data.add_(0.1)
    check_equal(task.predict(rows(3)), before)
    task.publish()
    check_equal(task.predict(rows(3)), task.predict(rows(3), "update"))


class OtherPredict(PPO):
    def predict(self, inputs):
        return super().predict(inputs)


class OtherActs(DQN):
    def acts_by(self, inputs):
        return {"q": -super().acts_by(inputs)["q"]}


class OtherPolicy(MLPActorCritic):
    def policy(self, obs, state=None):
        out, state = super().policy(obs, state)
        return {"logits": -out["logits"]}, state


class Marked(PPO):
    @gives("policy")
    def predict(self, inputs):
        return self.model.policy(inputs.obs)[0]


class SameModel(MLPActorCritic):
    native_networks, native_reader = MLPActorCritic.native_networks, MLPActorCritic.native_reader


class Kept(PPO):
    """Overrides nothing that matters."""


MASKED = gym.spaces.Dict({"x": OBS, "mask": gym.spaces.MultiBinary(3)})


@pytest.mark.parametrize(("model", "algorithm"), [(MLPActorCritic, Kept), (MLPActorCritic, Marked), (SameModel, PPO)])
def test_classes_made_from_ours_that_predict_as_these_do_may(model, algorithm):
    task = task_of(model, algorithm, TWO, {})
    assert is_direct(task)
    check_equal(task.predict(rows(5)), ordinarily(task, rows(5)))


@pytest.mark.parametrize(("model", "algorithm", "act", "obs"), [
    (MLPActorCritic, OtherPredict, TWO, OBS), (MLPQ, OtherActs, TWO, OBS), (MLPActorQ, OAC, BOX, OBS),
    (MLPActorCritic, PPO, TWO, gym.spaces.Box(0, 255, (5,), np.uint8)), (MLPActorCritic, PPO, TWO, gym.spaces.Discrete(5)),
    (MLPActorCritic, PPO, TWO, MASKED), (MLPQ, DQN, TWO, gym.spaces.Box(-9, 9, (5, 1), np.float32)),
])  # fmt: skip
def test_what_computes_something_else_goes_the_ordinary_way(model, algorithm, act, obs):
    task = task_of(model, algorithm, act, {}, obs)
    inputs = {name: spec.legal(3) for name, spec in task.algorithm.model.inputs().items()}
    assert not is_direct(task, inputs)
    check_equal(task.predict(inputs), ordinarily(task, inputs))


@pytest.mark.parametrize(("model", "algorithm", "options"), [
    (OtherPolicy, PPO, {}), (MLPQ, DQN, {"noisy": 0.5}), (MLPQ, DQN, {"dueling": True}),
    (MLPActorCritic, PPO, {"activation": "elu"}),
])  # fmt: skip
def test_models_without_native_networks_go_the_ordinary_way(model, algorithm, options):
    assert not is_direct(task_of(model, algorithm, TWO, options, native=False))


@pytest.mark.parametrize("what", ["predict", "policy", "forward hook", "layer hook", "model", "class", "activation", "double"])
def test_what_is_changed_later_goes_the_ordinary_way(what, monkeypatch):
    task = task_of(*KINDS["ppo"])
    algorithm = task.algorithm
    model, inputs = algorithm.model, rows(3)
    before = task.predict(inputs)
    calls = []
    if what == "predict":
        algorithm.predict = lambda inputs: {"logits": -PPO.predict(algorithm, inputs)["logits"]}
    elif what == "class":
        plain = PPO.predict
        monkeypatch.setattr(PPO, "predict", lambda self, inputs: {"logits": -plain(self, inputs)["logits"]})
    elif what == "policy":
        plain = model.policy
        model.policy = lambda obs, state=None: ({"logits": -plain(obs)[0]["logits"]}, {})
    elif what == "forward hook":
        model.perception.register_forward_hook(lambda *_: calls.append(1))
    elif what == "layer hook":
        model.own.register_forward_pre_hook(lambda *_: calls.append(1))
    elif what == "model":
        algorithm.__dict__["model"] = task_of(*KINDS["ppo"], native=False).algorithm.model
    elif what == "activation":
        model.own.activation = torch.cos
    else:
        model.double()
        assert not is_direct(task)
        return
    assert not is_direct(task)
    after = task.predict(inputs)
    if what in ("predict", "policy", "class"):
        np.testing.assert_allclose(after["logits"], -before["logits"], rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_allclose(after["logits"], by_torch(task, inputs)["logits"], rtol=1e-5, atol=1e-6)
