"""Updates by compiled loops against those by torch: metrics, parameters, divergence, checkpoints, and which way a task goes."""

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from parl_like import ComputationTask, create_algorithm_func
from parl_like.algorithms import A2C, DDPG, DQN, PPO, SAC, TD3
from parl_like.learning import native
from parl_like.models import MLPQ, ConvQ, MLPActorCritic, MLPActorQ

OBS = gymnasium.spaces.Box(-1, 1, (4,))
MASKED = gymnasium.spaces.Dict(obs=OBS, mask=gymnasium.spaces.MultiBinary(3))
ACTS = {"discrete": gymnasium.spaces.Discrete(3), "box": gymnasium.spaces.Box(-1, 1, (2,)),
        "multi": gymnasium.spaces.MultiDiscrete([2, 3])}


def made(algorithm, options, model=MLPActorCritic, act="discrete", obs=OBS, on=True, **of_model):
    act = ACTS[act] if isinstance(act, str) else act
    func = create_algorithm_func(model, dict(obs=obs, act=act, hidden=[16, 16], **of_model), algorithm, options)
    task = ComputationTask(func, native=on)
    task.build(np.random.SeedSequence(3))
    return task


def pair(*arguments, **options):
    return made(*arguments, **options, on=False), made(*arguments, **options)


def rows(n, task, seed=0):
    rng = np.random.default_rng(seed)
    out = {name: rng.standard_normal((n, 4)).astype(np.float32) for name in ("obs", "obs_next")}
    act = task.algorithm.model.act_space
    if isinstance(act, gymnasium.spaces.Box):
        out["act"] = np.tanh(rng.standard_normal((n, 2))).astype(np.float32)
    else:
        out["act"] = rng.integers(0, 2, (n, 2) if isinstance(act, gymnasium.spaces.MultiDiscrete) else n)
    if isinstance(task.algorithm.model.obs_space, gymnasium.spaces.Dict):
        mask = np.ones((n, 3), np.int8)
        mask[::2, 2] = mask[::5, 0] = 0  # some actions that were taken are illegal
        out = {**{f"{name}.obs": out.pop(name) for name in ("obs", "obs_next")}, "obs.mask": mask, "obs_next.mask": mask, **out}
    out |= {"rew": rng.standard_normal(n).astype(np.float32), "terminated": rng.random(n) < 0.1, "truncated": np.zeros(n, bool)}
    out["last"] = np.arange(n) % 8 == 7
    out["last"][-1] = True
    return out


def agree(first, second, updates=3, n=48, **more):
    """Give both tasks the same rows, and compare what they return and their parameters."""
    for i in range(updates):
        told, other = (task.learn({**rows(n, task, i), **more}) for task in (first, second))
        assert told.keys() == other.keys()
        for name, value in told.items():
            np.testing.assert_allclose(other[name], value, rtol=2e-4, atol=3e-6, err_msg=name)
    for a, b in zip(first.algorithm.model.parameters(), second.algorithm.model.parameters(), strict=True):
        np.testing.assert_allclose(b.detach(), a.detach(), rtol=1e-4, atol=2e-5)
    assert first.algorithm.updates == second.algorithm.updates


@pytest.fixture
def written(monkeypatch):
    """How often a written gradient was taken."""
    calls = []
    before = native.WrittenLoss.backward
    monkeypatch.setattr(native.WrittenLoss, "backward", lambda self, **options: (calls.append(1), before(self, **options))[1])
    return calls


def options_of(rng):
    return dict(entropy=float(rng.choice([0.0, 0.05])), clip=float(rng.choice([0.01, 0.2])), normalize=bool(rng.integers(2)),
                dual_clip=rng.choice([None, 1.1]), value_clip=rng.choice([None, 0.05]), max_grad_norm=rng.choice([None, 0.1]),
                target_kl=rng.choice([None, 0.02]), value_weight=float(rng.random()), epochs=2, minibatches=3, lr=1e-2)


HEADS = [("discrete", {}), ("box", {}), ("box", {"state_dependent_std": True}), ("multi", {}),
         ("discrete", {"obs": MASKED}), ("discrete", {"shared": True, "activation": "relu"})]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("act", "of_model"), HEADS, ids=str)
def test_ppo_takes_the_steps_of_autograd(act, of_model, seed, written):
    options = options_of(np.random.default_rng(seed + 10 * len(of_model) + len(act)))
    first, second = pair(PPO, options, act=act, **of_model)
    agree(first, second)
    assert len(written) == second.algorithm.updates and second.computes == "native, losses too"


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("act", "of_model"), HEADS, ids=str)
def test_a2c_takes_the_steps_of_autograd(act, of_model, normalize, written):
    agree(*pair(A2C, dict(entropy=0.02, normalize=normalize, lr=1e-2), act=act, **of_model))
    assert len(written) == 3


@pytest.mark.parametrize("options", [{}, {"double": False, "max_grad_norm": None}, {"tau": 0.1}, {"n_step": 2}], ids=str)
def test_dqn_takes_the_steps_of_autograd(options, written):
    first, second = pair(DQN, dict(lr=1e-2, **options), model=MLPQ)
    more = {"rew": np.ones((48, 2), np.float32), "valid": np.full(48, 2)} if "n_step" in options else {}
    agree(first, second, **more)
    agree(first, second, weight=np.linspace(0.1, 1, 48, dtype=np.float32), **more)
    agree(*pair(DQN, options, model=MLPQ, obs=MASKED), **more)
    assert len(written) == 9


CRITICS = [{}, {"critics": 1}, {"critics": 3, "layer_norm": True}]


@pytest.mark.parametrize("of_model", CRITICS, ids=str)
@pytest.mark.parametrize(("algorithm", "options", "policy"), [
    (TD3, {}, "deterministic"), (DDPG, {}, "deterministic"), (SAC, {}, "squashed"),
    (SAC, {"learn_alpha": False, "delay": 2, "max_grad_norm": 0.5}, "squashed"), (SAC, {"target_entropy": -1.0}, "squashed")],
    ids=str)
def test_actors_and_critics_take_the_steps_of_autograd(algorithm, options, policy, of_model, written):
    first, second = pair(algorithm, dict(lr=3e-3, **options), model=MLPActorQ, act="box", policy=policy, **of_model)
    agree(first, second)
    agree(first, second, weight=np.linspace(0.1, 1, 48, dtype=np.float32))
    assert len(written) >= 9 and second.computes == "native, losses too"


@pytest.mark.parametrize("of_model", CRITICS, ids=str)
@pytest.mark.parametrize(("algorithm", "policy"), [(TD3, "deterministic"), (SAC, "squashed")])
def test_targets_are_those_of_torch(algorithm, policy, of_model):
    tasks = pair(algorithm, {}, model=MLPActorQ, act="box", policy=policy, **of_model)
    targets = []
    for task in tasks:
        with torch.no_grad():
            targets.append(task.algorithm.process(task.runner.sent(rows(48, task))).target)
    np.testing.assert_allclose(targets[1], targets[0], rtol=2e-5, atol=2e-6)
    seen = []
    tasks[1].algorithm.target.critics.register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        tasks[1].algorithm.process(tasks[1].runner.sent(rows(48, tasks[1])))
    assert seen  # so torch computes them


@pytest.mark.parametrize("options", [dict(kl_weight=0.1), dict(kl_weight=0.1, adaptive_kl=0.01)], ids=str)
def test_what_is_not_written_out_goes_through_autograd_on_native_layers(options, written):
    agree(*pair(PPO, dict(epochs=2, minibatches=2, **options)))
    assert not written


class Mine(PPO):
    def total_loss(self, policy_loss, value_loss, entropy):
        return super().total_loss(policy_loss, value_loss, entropy) * 2.0


def test_a_class_made_from_one_of_ours_learns_by_its_own_learn(written, monkeypatch):
    first, second = pair(Mine, dict(epochs=1))
    agree(first, second)
    assert second.computes == "native layers, losses by torch" and not written
    task = made(PPO, dict(epochs=1))
    monkeypatch.setattr(task.algorithm, "learn", task.algorithm.learn)
    task.learn(rows(16, task))
    assert not written


def test_frozen_and_hooked_parameters_are_left_to_torch(written):
    first, second = pair(PPO, dict(epochs=1))
    for task in (first, second):
        task.algorithm.model.value_head.bias.requires_grad_(False)
    agree(first, second)
    assert not written
    for task in (first, second):
        task.algorithm.model.value_head.bias.requires_grad_(True)
        task.algorithm.model.own.register_forward_hook(lambda module, inputs, out: out * 0.5)
    agree(first, second)
    assert not written


def test_a_step_that_is_no_number_is_left_out_bit_for_bit(written):
    for algorithm, model in ((PPO, MLPActorCritic), (A2C, MLPActorCritic), (DQN, MLPQ)):
        task = made(algorithm, {}, model=model)
        task.learn(rows(16, task))
        before = [one.clone() for one in task.algorithm.model.state_dict().values()]
        states = [{key: value.clone() for key, value in state.items()} for state in task.optimizer.state.values()]
        # a Huber loss has no steep slope
        for name, value in (("rew", np.nan), *((("rew", 1e30),) if algorithm is not DQN else ()), ("obs", np.inf)):
            bad = rows(16, task)
            bad[name][:] = value
            told = task.learn(bad)
            assert told["left_out"] == task.skipped > 0
            assert all(map(torch.equal, before, task.algorithm.model.state_dict().values()))
            for old, new in zip(states, task.optimizer.state.values(), strict=True):
                assert all(torch.equal(old[key], new[key]) for key in old)
            task.counts.skipped = 0
        task.learn(rows(16, task))
        assert not all(map(torch.equal, before, task.algorithm.model.state_dict().values()))


def test_checkpoints_go_from_native_to_torch_and_back():
    first, second = pair(PPO, dict(epochs=2, lr=1e-2))
    agree(first, second)
    for source in (first, second):
        for on in (False, True):
            other = made(PPO, dict(epochs=2, lr=1e-2), on=on)
            other.load_state_dict(source.state_dict())
            agree(source, other) if source is first else agree(other, source)


def test_a_resumed_native_task_takes_the_same_steps():
    task, other = made(PPO, dict(epochs=2)), made(PPO, dict(epochs=2))
    task.learn(rows(48, task))
    other.load_state_dict(task.state_dict())
    told = [one.learn(rows(48, one, 1)) for one in (task, other)]
    assert told[0] == told[1]
    assert all(map(torch.equal, task.algorithm.model.parameters(), other.algorithm.model.parameters()))


def test_a_task_says_what_computes():
    assert made(PPO, {}).computes == made(DQN, {}, model=MLPQ).computes == "native, losses too"
    assert made(PPO, {}, on=False).computes == "torch"
    assert "noisy" in made(DQN, {}, model=MLPQ, noisy=0.5).computes
    image = gymnasium.spaces.Box(0, 255, (36, 36, 4), np.uint8)
    func = create_algorithm_func(ConvQ, dict(obs=image, act=ACTS["discrete"]), DQN, {})
    task = ComputationTask(func)
    task.build()
    assert task.computes.startswith("torch (ConvQ")
    with pytest.raises(TypeError, match="native is 'no'"):
        ComputationTask(func, native="no")


KINDS = [(PPO, {}), (A2C, {}), (DQN, dict(model=MLPQ)), (TD3, dict(model=MLPActorQ, policy="deterministic")),
         (DDPG, dict(model=MLPActorQ, policy="deterministic")), (SAC, dict(model=MLPActorQ, policy="squashed"))]


def kind_of(algorithm, of_model, options=None, **more):
    """Two tasks, by torch and natively, with Box actions where the algorithm has them."""
    return pair(algorithm, options or {}, act="discrete" if issubclass(algorithm, DQN) else "box", **of_model, **more)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64, np.uint8])
@pytest.mark.parametrize(("algorithm", "of_model"), KINDS, ids=str)
def test_rows_of_other_types_are_learned_from_as_by_torch(algorithm, of_model, dtype, written):
    box = gymnasium.spaces.Box(0, 5, (4,), dtype)
    acts = [None] if algorithm is DQN else [gymnasium.spaces.Box(0, 1, (2,), one) for one in (np.float64, np.float16, np.int32)]
    for act in acts[:3 if dtype is np.float64 else 1]:
        first, second = (made(algorithm, {}, act=act or "discrete", obs=box, on=on, **of_model) for on in (False, True))
        rng = np.random.default_rng(1)
        kept = rows(48, first)
        more = {name: rng.integers(0, 6, (48, 4)).astype(dtype) for name in ("obs", "obs_next")}
        more["rew"] = kept["rew"].astype(np.float64)
        more |= {} if act is None else {"act": np.abs(kept["act"]).astype(act.dtype)}
        agree(first, second, updates=2, **more)
        if algorithm is not PPO and algorithm is not A2C:
            agree(first, second, updates=1, **more, weight=np.linspace(0.1, 1, 48))
    assert written


def hooks_of_parameters():
    def gradient(parameter):
        parameter.register_hook(lambda given: given * 0.0)

    def accumulated(parameter):
        parameter.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", one.grad * 0.0))

    return [gradient, accumulated]


@pytest.mark.parametrize("hook", hooks_of_parameters(), ids=lambda f: f.__name__)
@pytest.mark.parametrize(("algorithm", "of_model"), KINDS, ids=str)
def test_hooks_of_parameters_that_come_later_run(algorithm, of_model, hook, written):
    first, second = kind_of(algorithm, of_model)
    agree(first, second, updates=1)
    written.clear()
    for task in (first, second):
        model = task.algorithm.model
        parameter = getattr(getattr(model, "head", None), "log_std", None)
        parameter = next(model.parameters()) if parameter is None else parameter
        before = parameter.detach().clone()
        for one in model.parameters():
            hook(one)
        for state in task.optimizers.values():
            state.state.clear()
            state._members = []
        task.learn(rows(48, task))
        assert torch.equal(parameter, before)
    agree(first, second, updates=1)
    assert not written


class Counting(nn.Module):
    """A perception that counts its calls, normalises, and drops some numbers."""

    def __init__(self, learns):
        super().__init__()
        self.out_size, self.norm, self.drop = 4, nn.BatchNorm1d(4, affine=learns), nn.Dropout(0.3)
        self.layer = nn.Linear(4, 4) if learns else nn.Identity()

    def forward(self, obs):
        return self.drop(self.layer(self.norm(obs)))

    def reset_parameters(self):
        pass


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize(("algorithm", "of_model"), KINDS, ids=str)
def test_a_perception_runs_as_often_as_with_torch(algorithm, of_model, learns):
    told = []
    torch.manual_seed(3)
    tasks = kind_of(algorithm, of_model, trunk=Counting(learns))
    for task in tasks:
        torch.manual_seed(4)
        seen = []
        task.algorithm.model.perception.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        told.append(task.learn(rows(48, task)) | {"calls": len(seen), "of the norm": int(
            task.algorithm.model.perception.norm.num_batches_tracked)})
    for name, value in told[0].items():
        np.testing.assert_allclose(told[1][name], value, rtol=2e-3, atol=3e-4, err_msg=name)


STOOD_FOR = [(PPO, {}, "total_loss"), (PPO, {}, "evaluate"), (A2C, {}, "value_and_entropy"), (A2C, {}, "learn"),
             (SAC, KINDS[-1][1], "critic_update"), (SAC, KINDS[-1][1], "soft"), (SAC, KINDS[-1][1], "drawn"),
             (SAC, KINDS[-1][1], "pool"), (DQN, KINDS[2][1], "learn"), (DDPG, KINDS[4][1], "learn")]


@pytest.mark.parametrize("where", ["instance", "class", "base", "subclass"])
@pytest.mark.parametrize(("algorithm", "of_model", "name"), STOOD_FOR, ids=str)
def test_methods_that_native_learn_stands_for_may_be_replaced(algorithm, of_model, name, where, written, monkeypatch):
    calls, before = [], getattr(algorithm, name)

    def other(self, *given):
        calls.append(name)
        return before(self, *given)

    if where == "subclass":  # which says that it learns as before
        kind = type("Own", (algorithm,), {name: other, "native_learn": algorithm.native_learn})
    else:
        kind = algorithm
    task = kind_of(kind, of_model)[1]
    if where == "instance":
        monkeypatch.setattr(task.algorithm, name, lambda *given: other(task.algorithm, *given), raising=False)
    elif where != "subclass":
        of = algorithm if where == "class" else next(one for one in algorithm.__mro__ if name in vars(one))
        monkeypatch.setattr(of, name, other)
    calls.clear()
    task.learn(rows(48, task))
    assert calls and not written


def test_moments_of_another_shape_are_refused_until_they_are_forgotten():
    class Own(MLPQ):
        pass

    for on in (True, False):
        for size in (1, 3, 300):
            task = made(DQN, dict(target_period=0), model=Own, on=on)
            task.learn(rows(16, task))
            first, second, *_ = task.algorithm.model.net.layers
            torch.manual_seed(0)
            first.weight.data, first.bias.data = torch.randn(size, 4), torch.zeros(size)
            second.weight.data = torch.randn(16, size)
            with pytest.raises(ValueError, match=rf"shape \({size}, 4\) has moments of \(16, 4\).*del"):
                task.learn(rows(16, task))
            with pytest.raises(ValueError, match="moments of"):
                task.learn(rows(16, task))
            for parameter in (first.weight, first.bias, second.weight):
                del task.optimizer.state[parameter]
            task.learn(rows(16, task))
            assert all(state["exp_avg"].shape == p.shape for p, state in task.optimizer.state.items())


@pytest.mark.parametrize(("algorithm", "of_model"), KINDS, ids=str)
def test_losses_that_float32_does_not_hold_are_left_out_as_by_torch(algorithm, of_model):
    for scale in (1e15, 1e18, 1e19, 1e20, 1e30, 1e38):
        options = dict(normalize=False) if algorithm in (PPO, A2C) else {}
        told = []
        for task in kind_of(algorithm, of_model, options):
            batch = rows(48, task)
            batch["rew"] *= np.float32(scale)
            task.learn(batch)
            told.append((task.skipped, task.algorithm.updates))
        assert told[0] == told[1], scale


@pytest.mark.parametrize("on", [True, False])
def test_a_graph_from_before_a_step_is_refused(on):
    class Twice(DQN):
        def learn(self, batch):
            q = self.model.q(batch.obs)
            yield {"loss": q.mean()}
            yield {"loss": q.square().mean()}

    task = made(Twice, {}, model=MLPQ, on=on)
    versions = [p._version for p in task.algorithm.model.parameters()]
    with pytest.raises(RuntimeError, match="changed between|inplace operation|second time"):
        task.learn(rows(16, task))
    assert all(p._version > v for p, v in zip(task.algorithm.model.parameters(), versions, strict=True))
