"""ComputationTask: what enters and leaves, what a learning step does, whose parameters are whose, and what is saved."""

import gc
import threading
from unittest.mock import patch

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like.learning.algorithm import Algorithm, Linear
from parl_like.learning.model import Model
from parl_like.learning.module_modes import WITH_MODES, set_mode
from parl_like.learning.optimizer_steps import clip_gradients
from parl_like.tasks.batch_rule import BatchRule
from parl_like.tasks.task import ComputationTask
from parl_like.values.errors import Diverged
from parl_like.values.spec import SpecError

OBS = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
ACT = gym.spaces.Discrete(2)
ROWS = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)


class Two(Model):
    """Two parameters of two numbers, dropout and a running mean."""

    def __init__(self, shared=None):
        super().__init__(OBS, ACT)
        self.a = torch.nn.Parameter(torch.tensor([1.0, 2.0])) if shared is None else shared
        self.b = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        self.dropout = torch.nn.Dropout(0.5)
        self.norm = torch.nn.BatchNorm1d(2, affine=False)


class Plain(Algorithm):
    """SGD with learning rate 1 on (a + b) · target, so that each step moves every parameter by −target.

    Attributes:
        log: (stage, mode, whether gradients are on, whether the network trains).
    """

    def __init__(self, model=None, out=None, **options):
        options = {"lr": 1.0, **options}
        super().__init__(model or Two(), **options)
        self.out = out
        self.log = []
        self.steps = 1

    def _note(self, stage):
        self.log.append((stage, self.mode, torch.is_grad_enabled(), self.model.training))

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=self.lr(0) if callable(self.lr) else self.lr, momentum=0.0)

    def predict(self, inputs):
        self._note("predict")
        return {"y": self.model.dropout(inputs.obs * 2)} if self.out is None else self.out(self, inputs)

    def process(self, batch):
        self._note("process")
        return batch

    def minibatches(self, batch):
        for _ in range(self.steps):
            yield batch

    def learn(self, batch):
        self._note("learn")
        target = batch.obs.mean(0)
        return {"loss": (target * (self.model.a + self.model.b)).sum(), "updates": self.updates, "row": batch.obs.sum(1)}

    def post_process(self, batch):
        self._note("post_process")


def task_of(out=None, model=None, task_options=None, **options):
    algorithm = Plain(model, out, **options)
    task = ComputationTask(algorithm, **(task_options or {}))
    algorithm.log.clear()
    return task


def a_of(task):
    return task.algorithm.model.a.tolist()


# --------------------------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize(("rule", "text"), [
    (dict(min_rows=0), "min_rows is 0"), (dict(max_rows=-1), "max_rows is -1"), (dict(max_wait=-0.1), "max_wait is -0.1"),
    (dict(max_wait=float("nan")), "max_wait is nan"), (dict(min_rows=5, max_rows=4), r"min_rows \(5\) is above max_rows \(4\)"),
])
def test_a_rule_that_could_never_close_a_batch_is_refused(rule, text):
    with pytest.raises(ValueError, match=f"BatchRule: {text}"):
        BatchRule(**rule)


def test_what_a_task_refuses():
    with pytest.raises(ValueError, match="on_error is 'ignore'; expected 'stop' or 'fail_batch'"):
        task_of(task_options={"on_error": "ignore"})
    with pytest.raises(TypeError, match="task 'task': the algorithm function gave int; expected an Algorithm"):
        ComputationTask(lambda: 3).build()
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device is 'cuda', but torch sees no CUDA device"):
            task_of(task_options={"device": "cuda"})


@pytest.mark.parametrize(("out", "got"), [
    (lambda self, inputs: {"y": inputs.obs[:1]}, r"\(1, 2\)"), (lambda self, inputs: {"y": inputs.obs.sum()}, r"\(\)"),
    (lambda self, inputs: {"y": {"z": inputs.obs[0]}}, None), (lambda self, inputs: {"y": np.zeros((3, 2))}, r"\(3, 2\)"),
])
def test_a_model_that_does_not_answer_every_row_is_found_when_the_task_is_made(out, got):
    if got is None:  # two rows of zeros in, [2] out: passes the trial, and is found with three rows
        task = task_of(out)
        with pytest.raises(SpecError, match=r"field 'y.z'.*got \(2,\) float32.*the batch has 3 rows"):
            task.predict({"obs": ROWS})
    else:
        with pytest.raises(SpecError, match=f"field 'y': expected .*got {got}.*the batch has 2 rows"):
            task_of(out)


def test_building_is_decided_by_the_seed_and_leaves_the_global_generators_alone():
    class Random(Two):
        def __init__(self):
            super().__init__(torch.nn.Parameter(torch.randn(2)))

    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002 - it is the one that must not be touched
    before = torch.random.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002

    def build(seed):
        task = ComputationTask(lambda: Plain(Random()))
        task.build(np.random.SeedSequence(seed))
        algorithm = task.algorithm
        return a_of(task), algorithm.rng.random(), torch.rand(1, generator=algorithm.torch_rng).item()

    assert build(1) == build(1) != build(2)
    assert torch.equal(torch.random.get_rng_state(), before[0]) and np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002


# ---------------------------------------------------------------------------------------------------------------- what leaves


def everything(self, inputs):
    """Outputs that could leak a gradient, a parameter or the caller's memory."""
    n, model = len(inputs.obs), self.model
    return {
        "fresh": inputs.obs * model.a, "view": model.a.expand(n, 2), "input": inputs.obs, "part": inputs.obs[:, 0],
        "buffer": model.norm.running_mean.expand(n, 2), "nested": {"deep": {"er": model.b.expand(n, 2)}},
        "numpy": inputs.obs.numpy()[:, 1], "int": torch.arange(n),
    }


def test_only_arrays_leave_and_they_are_nobody_elses():
    """A reply changes neither with the parameters, nor with the buffers, nor with the array that the request lay in."""
    task = task_of(everything)
    rows = ROWS.copy()
    out = task.predict({"obs": rows})
    assert set(out) == {"fresh", "view", "input", "part", "buffer", "nested.deep.er", "numpy", "int"}
    assert all(type(value) is np.ndarray and len(value) == 3 for value in out.values())
    kept = {name: value.copy() for name, value in out.items()}
    rows[:] = -1
    task.learn({"obs": ROWS})
    with torch.no_grad():
        task.algorithm.model.norm.running_mean += 7
    for name, value in out.items():
        np.testing.assert_array_equal(value, kept[name], err_msg=name)
    assert a_of(task) == [-2.0, -2.0]


def test_no_gradient_leaves_a_task():
    task = task_of(lambda self, inputs: {"parameter": self.model.a, "rows": inputs.obs[:2] * self.model.b})
    out = task.predict({"obs": ROWS[:2]})
    assert all(type(value) is np.ndarray for value in out.values()) and out["parameter"].tolist() == [1, 2]
    result = task_of().learn({"obs": ROWS})
    assert {name: type(value) for name, value in result.items()} == {"loss": float, "updates": float, "row": np.ndarray}


def test_mode_and_training_flag_travel_with_the_call():
    task = task_of()
    algorithm = task.algorithm
    np.testing.assert_array_equal(task.predict({"obs": ROWS}, "collect")["y"], ROWS * 2)  # dropout off
    task.predict({"obs": ROWS}, "test")
    task.learn({"obs": ROWS})
    assert algorithm.log == [
        ("predict", "collect", False, False), ("predict", "test", False, False),
        ("process", "update", False, True), ("learn", "update", True, True), ("post_process", "update", False, True),
    ]
    assert algorithm.mode == "test" and not algorithm.model.training


@pytest.mark.parametrize("method", ["predict", "process", "learn", "post_process"])
def test_mode_and_lock_are_restored_after_a_failure(method):
    task = task_of()

    def fail(*arguments):
        raise ArithmeticError

    setattr(task.algorithm, method, fail)
    with pytest.raises(ArithmeticError):
        task.predict({"obs": ROWS}) if method == "predict" else task.learn({"obs": ROWS})
    assert task.algorithm.mode == "test" and not task.algorithm.model.training
    assert free(task)


def free(task):
    """Whether another thread can take the lock."""
    got = []
    thread = threading.Thread(target=lambda: got.append(task.lock.acquire(blocking=False)))
    thread.start()
    thread.join()
    return got[0]


@pytest.mark.parametrize("failing", [True, False])
def test_a_network_that_cannot_change_its_mode_does_not_keep_the_lock(failing, monkeypatch):
    """`train(True)` or `train(False)` raises: whoever predicts next would wait for ever."""
    task = task_of()

    def train(flag=True):
        if flag is failing:
            raise ArithmeticError

    monkeypatch.setattr(task.algorithm.model, "train", train)
    with pytest.raises(ArithmeticError):
        task.learn({"obs": ROWS})
    assert free(task)


# ------------------------------------------------------------------------------------------------------------- a learning step


def test_a_step_by_hand():
    """The mean row is (3, 4), and it is the gradient of both parameters: a = (1, 2) − (3, 4), loss = 3 · (1 + 3) + 4 · (2 +
    4)."""
    task = task_of()
    result = task.learn({"obs": ROWS})
    assert a_of(task) == [-2.0, -2.0] and task.algorithm.model.b.tolist() == [0.0, 0.0]
    assert (result["loss"], result["row"].tolist()) == (36.0, [3.0, 7.0, 11.0])
    assert (task.version, task.learns, task.rows_learned, task.algorithm.updates) == (1, 1, 3, 1)


def test_scalars_are_means_over_the_steps():
    """Losses 36, then 3 · (−2 + 0) + 4 · (−2 + 0) = −14, then −14 − 50 = −64."""
    task = task_of()
    task.algorithm.steps = 3
    result = task.learn({"obs": ROWS})
    assert (result["loss"], result["updates"]) == ((36 - 14 - 64) / 3, 1.0)
    assert (task.version, task.learns) == (3, 1)


def test_clipping_scales_all_gradients_by_their_common_norm():
    """(3, 4) twice has norm √50; with a bound of √2 each is divided by 5."""
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    for parameter in parameters[:2]:
        parameter.grad = torch.tensor([3.0, 4.0])
    norm = clip_gradients(parameters, 2**0.5)
    assert norm == pytest.approx(50**0.5)
    for parameter in parameters[:2]:
        torch.testing.assert_close(parameter.grad, torch.tensor([0.6, 0.8]))
    clip_gradients(parameters, 10.0)
    torch.testing.assert_close(parameters[0].grad, torch.tensor([0.6, 0.8]))  # below the bound nothing is scaled
    task = task_of(max_grad_norm=2**0.5)
    task.learn({"obs": ROWS})
    np.testing.assert_allclose(a_of(task), [0.4, 1.2], rtol=1e-5)


def test_the_learning_rate_follows_its_schedule():
    """1, 0.5, 0 at steps 0, 1, 2: a = (1, 2) − 1.5 · (3, 4)."""
    task = task_of(lr=Linear(1.0, 0.0, 2))
    task.algorithm.steps = 3
    task.learn({"obs": ROWS})
    assert a_of(task) == [-3.5, -4.0]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_that_is_no_number_changes_nothing(value):
    task = task_of(task_options={"max_skips": 0})
    task.learn({"obs": ROWS})
    before = task.algorithm.model.weights_hash()
    with pytest.raises(FloatingPointError, match="task 'task': loss is (nan|-?inf) at optimiser step 1; the weights are "
                                                 "unchanged"):
        task.learn({"obs": np.full((3, 2), value, np.float32)})
    assert task.algorithm.model.weights_hash() == before and task.version == 1


def test_a_gradient_that_is_no_number_changes_nothing():
    """√(a₀ + …) at 0 has a finite value and an infinite slope."""
    task = task_of(max_grad_norm=1.0, task_options={"max_skips": 0})
    task.algorithm.learn = lambda batch: {"loss": (task.algorithm.model.a * 0).abs().sqrt().sum()}
    before = task.algorithm.model.weights_hash()
    with pytest.raises(Diverged, match="task 'task': norm of the gradient is nan at optimiser step 0; the weights are unchanged"):
        task.learn({"obs": ROWS})
    assert task.algorithm.model.weights_hash() == before and task.version == 0


# --------------------------------------------------------------------------------------------------------------------- sharing


def test_three_tasks_with_one_parameter_all_notice_a_step_of_any():
    shared = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    tasks = [task_of(model=Two(shared)) for _ in range(3)]
    for i, task in enumerate(tasks):
        task.learn({"obs": ROWS})
        assert [other.version for other in tasks] == [i + 1] * 3
        assert a_of(tasks[0]) == a_of(tasks[2]) == [1 - 3 * (i + 1), 2 - 4 * (i + 1)]
    assert len({id(task.lock) for task in tasks}) == 1


def test_a_task_between_two_others_joins_their_locks():
    """Its step writes tensors of both, so both owners' readers must be kept out."""
    first, second = task_of(), task_of()
    assert first.lock is not second.lock
    model = Two(first.algorithm.model.a)
    model.b = second.algorithm.model.b
    between = task_of(model=model)
    assert first.lock is second.lock is between.lock
    assert between.optimizer is None
    between.learn({"obs": ROWS})
    assert a_of(first) == [-2.0, -2.0] and second.algorithm.model.b.tolist() == [0.0, 0.0]
    assert first.algorithm.model.b.tolist() == [3.0, 4.0]
    assert (first.version, second.version, between.version) == (1, 1, 1)
    first.learn({"obs": ROWS})
    assert (first.version, second.version, between.version) == (2, 1, 2)  # `second` shares nothing with `first`


def test_the_sharer_of_a_task_that_is_gone_can_own_its_parameters():
    first = task_of()
    second = task_of(model=Two(first.algorithm.model.a))
    del first
    gc.collect()
    second.learn({"obs": ROWS})
    assert a_of(second) == [-2.0, -2.0]
    second.claim()
    second.learn({"obs": ROWS})
    assert a_of(second) == [-5.0, -6.0]


# ----------------------------------------------------------------------------------------------------------------------- state


def momentum_task():
    class Momentum(Plain):
        def optimizer(self, parameters):
            return torch.optim.Adam(parameters, lr=0.5)

    return ComputationTask(Momentum())


def test_a_state_is_a_copy_and_restores_exactly():
    """Learn, keep the state, learn on: the state has not moved, and from it the same steps lead to the same weights, twice."""
    task = momentum_task()
    task.build(np.random.SeedSequence(1))
    task.learn({"obs": ROWS})
    state = task.state_dict()

    def go_on(task):
        for factor in (1.0, -0.5):
            task.learn({"obs": ROWS * np.float32(factor)})
        algorithm = task.algorithm
        counts = task.version, task.learns, task.rows_learned, algorithm.updates
        return algorithm.model.weights_hash(), counts, algorithm.rng.random()

    expected = go_on(task)
    for _ in range(2):
        other = momentum_task()
        other.build(np.random.SeedSequence(2))
        other.load_state_dict(state)
        assert other.version == 1
        assert go_on(other) == expected


def test_a_state_of_another_network_is_refused_by_name():
    class Wider(Two):
        def __init__(self):
            super().__init__()
            self.b = torch.nn.Parameter(torch.zeros(3))

    other = ComputationTask(Plain(Wider(), lambda self, inputs: {"y": inputs.obs}))
    with pytest.raises(ValueError, match=r"task 'task', network 'model': the checkpoint is of another model: 'b' is \(3,\) "
                                         r"there and \(2,\) here"):
        task_of().load_state_dict(other.state_dict())


def test_two_tasks_may_follow_each_other_from_two_threads():
    """A ← B here while B ← A there: taken in two orders, their locks would wait for each other."""
    first, second = task_of(), task_of()

    def follow(one, other):
        for _ in range(300):
            one.sync_from(other, 0.5)

    threads = [threading.Thread(target=follow, args=pair, daemon=True) for pair in ((first, second), (second, first))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "the two tasks wait for each other"


class Undeclared(torch.nn.Module):
    def forward(self, x):
        return x + torch.randn(x.shape) if self.training else x


class OwnNoise(Undeclared):
    has_modes = True


@pytest.mark.parametrize("part", [
    lambda: OwnNoise(), lambda: torch.nn.LSTM(2, 2, num_layers=2, dropout=0.5),
    lambda: torch.nn.MultiheadAttention(2, 1, dropout=0.5),
    lambda: torch.nn.Dropout(0.5), lambda: torch.nn.BatchNorm1d(2),
])
def test_whatever_has_modes_predicts_in_mode_eval(part):
    """Modules of torch are known by their types, others by what they declare."""
    class Wrapped(Two):
        def __init__(self):
            super().__init__()
            self.part = part()
            self.dropout, self.norm = torch.nn.Identity(), torch.nn.Identity()

    class Through(Algorithm):
        def predict(self, inputs):
            x = inputs.obs
            part = self.model.part
            out = part(x, x, x)[0] if isinstance(part, torch.nn.MultiheadAttention) else part(x)
            return {"x": out[0] if isinstance(out, tuple) else out}

        def learn(self, batch):
            assert self.model.part.training
            return {"loss": self.model.a.sum()}

    task = ComputationTask(Through(Wrapped()))
    before = torch.get_rng_state()
    for _ in range(2):
        first, second = (task.predict({"obs": ROWS})["x"] for _ in range(2))
        np.testing.assert_array_equal(first, second)
        task.learn({"obs": ROWS})
        assert not task.algorithm.model.part.training
    assert torch.equal(before, torch.get_rng_state())


def has_modes_of(*parts):
    """Return whether a task knows that its network, through which a prediction goes, has modes."""
    class Through(Algorithm):
        def predict(self, inputs):
            return {"x": self.model.parts(inputs.obs)}

    class Wrapped(Two):
        def __init__(self):
            super().__init__()
            self.parts, self.dropout, self.norm = torch.nn.Sequential(*parts), torch.nn.Identity(), torch.nn.Identity()

    task = ComputationTask(Through(Wrapped()))
    task.build()
    return task.runner.has_modes


def test_a_module_that_reads_its_mode_and_does_not_say_so_is_warned_of_and_has_modes():
    class Silent(Undeclared):
        has_modes = False

    class Frozen(torch.nn.Linear):
        def train(self, mode=True):
            return self

    class Far(torch.nn.Module):
        """It reads its mode by a way that no look at its own code would find."""

        def forward(self, x):
            return torch.nn.functional.dropout(x, training=getattr(self, "train" + "ing"))

    for part in (Undeclared(), Frozen(2, 2), Far()):
        with pytest.warns(RuntimeWarning, match=rf"{type(part).__name__}: the class reads `training`.*has_modes = True"):
            assert has_modes_of(torch.nn.ReLU(), part)
        assert "training" not in vars(type(part)) and part.training in (True, False)  # nobody watches any more
    assert not has_modes_of(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2), Silent())
    assert has_modes_of(OwnNoise()) and has_modes_of(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Dropout(0.5)))


@pytest.mark.parametrize("predicts", [True, False])
def test_a_module_that_reads_its_mode_only_while_it_learns_needs_to_say_nothing(predicts):
    """It is in training mode, as a fresh module of torch is; a copy that follows another network is not."""
    class Learns(torch.nn.Module):
        def forward(self, x):
            return x

        def loss(self, x):
            seen.append(self.training)
            return x.sum()

    class Reads(Algorithm):
        def __init__(self):
            model = Two()
            model.dropout, model.norm, model.aux = torch.nn.Identity(), torch.nn.Identity(), Learns()
            super().__init__(model)
            self.target = Learns()

        def networks(self):
            return {"model": self.model, "target": self.target}

        def process(self, batch):
            self.model.aux.loss(batch.obs)
            return batch

        def learn(self, batch):
            self.target.loss(batch.obs)
            return {"loss": self.model.a.sum() * self.model.aux.loss(batch.obs)}

    class Predicts(Reads):
        def predict(self, inputs):
            return {"x": self.model.aux(inputs.obs)}

    seen: list = []
    task = ComputationTask(Predicts() if predicts else Reads())
    for _ in range(2):
        if predicts:
            task.predict({"obs": ROWS})
        task.learn({"obs": ROWS})
    assert not task.runner.has_modes and seen == [True, False, True] * 2


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_modules_of_torch_whose_reading_cannot_be_seen_have_modes():
    """A scripted module reads its mode outside of Python, and one step of a spectral norm is made while it learns."""
    scripted = torch.jit.script(torch.nn.Sequential(torch.nn.Dropout(0.5)))
    normed = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(2, 2))
    for part in (scripted, normed):
        assert has_modes_of(part)


def test_all_modules_of_torch_that_read_their_mode_are_known():
    def reads_training(kind):
        bases = [base for base in kind.__mro__ if issubclass(base, torch.nn.Module) and base is not torch.nn.Module]
        return any(name == "train" or "training" in getattr(getattr(value, "__code__", None), "co_names", ())
                   for base in bases for name, value in vars(base).items())

    reads = [kind for kind in vars(torch.nn).values() if isinstance(kind, type) and issubclass(kind, torch.nn.Module)
             and reads_training(kind)]
    assert len(reads) > 20 and all(issubclass(kind, WITH_MODES) for kind in reads)


def test_setting_the_mode_is_what_train_does():
    """Also for a class with a `train` of its own, an instance with one, and a layer put in later."""
    heard = []

    class Frozen(torch.nn.Dropout):
        def train(self, mode=True):
            heard.append(mode)
            return super().train(False)

    own = torch.nn.Dropout()
    own.train = lambda mode=True: heard.append(mode)
    network = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Dropout(), Frozen()), own)
    set_mode([network], True)
    assert [m.training for m in network.modules()] == [True, True, True, False, True] and heard == [True, True]
    network.append(torch.nn.BatchNorm1d(2))
    set_mode([network], False)
    assert not network[2].training and not network[0][0].training and network[1].training and heard == [True, True, False, False]


def test_the_layers_of_a_model_are_set_without_the_checks_of_torch():
    """A class with a `__setattr__` of its own, as models have, hears of its mode; its layers are plain ones."""
    heard = []

    class Noted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.BatchNorm1d(2))

        def __setattr__(self, name, value):
            heard.append((name, value))
            super().__setattr__(name, value)

    networks = [Two(), Noted()]
    heard.clear()
    with patch.object(torch.nn.Module, "__setattr__", autospec=True, side_effect=torch.nn.Module.__setattr__) as checked:
        set_mode(networks, False)
    assert not any(module.training for network in networks for module in network.modules())
    assert heard == [("training", False)] and checked.call_count == 2  # of the two themselves


def test_a_loss_that_reaches_no_parameter_of_the_task_is_refused():
    """It has a gradient, but of another network: every step would leave the task as it is."""
    task = task_of()
    other = torch.nn.Linear(2, 1)
    task.algorithm.learn = lambda batch: {"loss": other(batch.obs).mean()}
    with pytest.raises(ValueError, match="task 'task': the loss of Plain reaches none of the task's parameters"):
        task.learn({"obs": ROWS})
    task.algorithm.learn = lambda batch: {"loss": (task.algorithm.model.a * 0).sum()}  # a gradient of 0 is one
    task.learn({"obs": ROWS})
    assert task.version == 1


def test_what_an_algorithm_draws_itself_goes_on_beside_dropout_in_its_networks():
    """Dropout has numbers of its own from the same seed, and every call of an algorithm has others."""
    seen = []

    class Drawing(Algorithm):
        def process(self, batch):
            seen.append(torch.randn(50, generator=self.torch_rng))
            return batch

        def learn(self, batch):
            seen.append(torch.randn(50, generator=self.torch_rng))
            seen.append(torch.randn(50))  # as a layer does
            return {"loss": self.model.a.sum()}

    task = ComputationTask(Drawing(Two()))
    for _ in range(2):
        task.learn({"obs": ROWS})
    assert len({tuple(numbers.tolist()) for numbers in seen}) == len(seen) == 6
    assert not set(torch.cat(seen[::3]).tolist()) & set(torch.cat([*seen[1::3], *seen[2::3]]).tolist())
