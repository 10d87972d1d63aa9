"""What a task saves: whatever of its algorithm changes while it learns. What cannot be saved is refused by name when the task is
built."""

import threading
import types
from collections import deque
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import ComputationTask
from parl_like.data.storage.archive import read_archive, write_archive
from parl_like.learning.algorithm import Algorithm, Linear
from parl_like.learning.model import Model

OBS = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
ACT = gym.spaces.Discrete(2)
ROWS = {"obs": np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], np.float32)}


class Weights(Model):
    def __init__(self):
        super().__init__(OBS, ACT)
        self.w = torch.nn.Parameter(torch.tensor([1.0, 2.0]))


class Plain(Algorithm):
    def __init__(self, **options):
        super().__init__(Weights(), **{"lr": 0.1, **options})

    def learn(self, batch):
        return {"loss": (batch.obs * self.model.w).sum(1).square().mean()}


@dataclass
class Average:
    """A number that moves."""

    value: float = 0.0
    seen: int = 0

    def add(self, x):
        self.seen += 1
        self.value += (x - self.value) / self.seen

    def state_dict(self):
        return {"value": self.value, "seen": self.seen}

    def load_state_dict(self, state):
        self.value, self.seen = state["value"], state["seen"]


class Rich(Plain):
    """Learns with everything that an algorithm may keep beside its networks: a temperature with an optimiser of its own,
    counters, targets."""

    def __init__(self, **options):
        super().__init__(**options)
        self.temperature = torch.nn.Parameter(torch.tensor(1.0))
        self.second = torch.optim.Adam([self.temperature], lr=0.05)
        self.updates_seen, self.name, self.best = 0, "begin", None
        self.mean, self.table = np.zeros(2), torch.zeros(3)
        self.recent, self.pair, self.seen, self.by_act = deque(maxlen=3), (0, 0.0), set(), {0: 0.0, (1, 2): [1]}
        self.average, self.noise, self.torch_noise = Average(), np.random.default_rng(7), torch.Generator()
        self.entropy = Linear(1.0, 0.0, 10)
        self.tools, self.lock = {"f": np.sum}, threading.Lock()

    def parameters(self):
        return self.model.parameters()

    def learn(self, batch):
        self.updates_seen += 1
        drawn = self.noise.normal() + float(torch.rand((), generator=self.torch_noise))
        self.second.zero_grad()
        (self.temperature * float(self.mean.sum() + drawn + 1)).square().backward()
        self.second.step()
        self.mean = 0.5 * self.mean + batch.obs.mean(0).numpy()
        self.table[self.updates_seen % 3] += 1
        self.average.add(drawn)
        self.recent.append(drawn)
        self.pair, self.name, self.best = (self.updates_seen, drawn), f"update {self.updates_seen}", drawn
        self.seen.add(self.updates_seen)
        self.by_act[(1, 2)].append(self.updates_seen)
        scale = self.temperature.detach() + self.mean.sum() + self.average.value + sum(self.recent) + len(self.seen)
        return {"loss": (batch.obs * self.model.w).sum(1).square().mean() * float(scale)}


def rich(seed=1):
    task = ComputationTask(Rich)
    task.build(np.random.SeedSequence(seed))
    return task


def facts(task):
    a = task.algorithm
    return (a.model.w.tolist(), float(a.temperature.detach()), a.updates_seen, a.name, a.best, a.mean.tolist(), a.table.tolist(),
            list(a.recent), a.recent.maxlen,
            a.pair, a.seen, a.by_act, a.average, a.noise.random(), float(torch.rand((), generator=a.torch_noise)), a.entropy)


def test_everything_that_changes_while_learning_comes_back(tmp_path):
    """Three updates, saved, two more: from the files a new task, and a task that has gone on, do the same two updates."""
    task = rich()
    for _ in range(3):
        task.learn(ROWS)
    write_archive(tmp_path / "saved", {"task": task.state_dict()})
    for _ in range(2):
        task.learn(ROWS)
    saved = read_archive(tmp_path / "saved")[0]["task"]
    expected = facts(task)
    for other in (rich(seed=2), task):
        other.load_state_dict(saved)
        for _ in range(2):
            other.learn(ROWS)
        assert facts(other) == expected
        assert other.algorithm.second.param_groups[0]["params"][0] is other.algorithm.temperature


def test_a_state_is_a_copy():
    task = rich()
    task.learn(ROWS)
    state = task.state_dict()
    task.learn(ROWS)
    task.load_state_dict(state)
    assert task.algorithm.updates_seen == 1 and task.algorithm.by_act[(1, 2)] == [1, 1]
    task.learn(ROWS)
    assert state["algorithm"]["updates_seen"] == 1
    task.load_state_dict(state)
    assert task.algorithm.by_act[(1, 2)] == [1, 1] and task.algorithm.table.tolist() == [0.0, 1.0, 0.0]


def test_loading_takes_back_what_has_changed_since():
    task = rich()
    state = task.state_dict()
    task.learn(ROWS)
    task.load_state_dict(state)
    other = rich()
    assert facts(task) == facts(other)


def test_what_learning_does_not_change_is_the_new_robots_own():
    """A run may go on with other settings: they are not state."""
    class Tuned(Plain):
        def __init__(self, gamma, **options):
            super().__init__(**options)
            self.gamma, self.count = gamma, 0

        def learn(self, batch):
            self.count += 1
            return super().learn(batch)

    first, second = ComputationTask(Tuned(0.9)), ComputationTask(Tuned(0.5, lr=0.3))
    first.learn(ROWS)
    state = first.state_dict()
    assert state["algorithm"] == {"count": 1}
    second.load_state_dict(state)
    assert (second.algorithm.gamma, second.algorithm.lr, second.algorithm.count) == (0.5, 0.3, 1)


def test_a_checkpoint_of_before_has_no_such_part():
    task = ComputationTask(Plain())
    state = task.state_dict()
    state.pop("algorithm")
    task.load_state_dict(state)


@pytest.mark.parametrize(("value", "what"), [
    (iter([1, 2]), "list_iterator"), (torch.nn.Linear(2, 2), "network"), ({"deep": [torch.nn.Linear(2, 2)]}, "network"),
    (object(), "object"),
    (types.SimpleNamespace(a=1), "SimpleNamespace"),
    ((n for n in range(3)), "generator"),
])
def test_what_cannot_be_saved_is_refused_when_the_task_is_built(value, what):
    class Odd(Plain):
        def __init__(self):
            super().__init__()
            self.odd = value

    with pytest.raises(TypeError, match=rf"task 'task': Odd\.odd.*{what}.*(transient|networks\(\))"):
        ComputationTask(Odd())

    class Passing(Odd):
        transient = ("odd",)

    if what != "network":
        ComputationTask(Passing())

    class OwnState(Odd):
        def state_dict(self):
            return {"k": 3}

        def load_state_dict(self, state):
            self.k = state["k"]

    task = ComputationTask(OwnState())
    task.load_state_dict(task.state_dict())
    assert task.algorithm.k == 3


def test_what_came_later_and_cannot_be_saved_is_said():
    task = ComputationTask(Plain())
    task.algorithm.late = iter([1])
    with pytest.warns(RuntimeWarning, match=r"task 'task': Plain\.late.*list_iterator.*left out"):
        assert task.state_dict()["algorithm"] == {}


# ------------------------------------------------------------------------------------------------------------ parameters of
# nobody


def test_parameters_that_no_optimiser_holds_are_reported():
    class TwoNets(Plain):
        def __init__(self):
            super().__init__()
            self.extra = torch.nn.Linear(2, 1)
            self.frozen = torch.nn.Linear(2, 1).requires_grad_(False)

        def networks(self):
            return {"model": self.model, "extra": self.extra, "frozen": self.frozen}

    with pytest.warns(RuntimeWarning, match=r"task 'task': no optimiser holds extra\.weight, extra\.bias"):
        ComputationTask(TwoNets())

    class Whole(TwoNets):
        def parameters(self):
            yield from super().parameters()
            yield from self.extra.parameters()

    ComputationTask(Whole())  # a warning would fail the test
    ComputationTask(TwoNets(), train=False)


# --------------------------------------------------------------------------------------------------------------- groups and
# schedules


def test_groups_of_parameters_keep_their_own_rates_under_a_schedule():
    class Groups(Plain):
        def __init__(self, slow, **options):
            super().__init__(**options)
            self.slow = slow
            self.model.v = torch.nn.Parameter(torch.tensor([1.0, 2.0]))

        def optimizer(self, parameters):
            return torch.optim.SGD([{"params": parameters[:1]}, {"params": parameters[1:], "lr": self.slow}], lr=self.lr(0))

        def learn(self, batch):
            return {"loss": (self.model.w + self.model.v).sum()}

    task = ComputationTask(Groups(0.25, lr=Linear(1.0, 0.0, 4)))
    for rate in (1.0, 0.75, 0.5):
        task.learn(ROWS)
        assert [group["lr"] for group in task.optimizer.param_groups] == [rate, 0.25 * rate]
    assert task.algorithm.model.w.tolist() == [1 - 2.25, 2 - 2.25] and task.algorithm.model.v.tolist() == [1 - 0.5625, 2 - 0.5625]
    other = ComputationTask(Groups(0.25, lr=Linear(1.0, 0.0, 4)))
    other.load_state_dict(task.state_dict())
    other.learn(ROWS)
    assert [group["lr"] for group in other.optimizer.param_groups] == [0.25, 0.0625]
    with pytest.raises(ValueError, match="task 'task': the schedule of the learning rate begins at 0"):
        ComputationTask(Groups(0.25, lr=Linear(0.0, 1.0, 4)))


# ---------------------------------------------------------------------------------------------------- rows of several minibatches


class Split(Plain):
    """Two passes over the rows in random order, two at a time; the second pass says more."""

    def minibatches(self, batch):
        for self.turn in (1, 2):
            order = torch.from_numpy(self.rng.permutation(len(batch.obs)))
            yield batch[order[:2]]
            yield batch[order[2:]]

    def learn(self, batch):
        return {**super().learn(batch), "priority": batch.obs[:, 0] * self.turn, "first": batch.obs}


def test_what_learn_says_of_rows_is_put_back_in_their_order():
    task = ComputationTask(Split())
    for _ in range(3):
        result = task.learn(ROWS)
        assert result["priority"].tolist() == [2.0, 6.0, 10.0, 14.0]
        np.testing.assert_array_equal(result["first"], ROWS["obs"])


def test_rows_of_a_step_that_was_left_out_have_numbers_all_the_same():
    rows = {"obs": ROWS["obs"].copy()}
    rows["obs"][2] = np.nan
    result = ComputationTask(Split()).learn(rows)["priority"]
    assert result[2] == 0.0 and np.isfinite(result).all() and (result[[0, 1, 3]] > 0).all()


def test_numbers_are_means_of_the_steps_that_were_taken():
    class Halves(Plain):
        def minibatches(self, batch):
            yield batch[:2]
            yield batch[2:]

    rows = {"obs": ROWS["obs"].copy()}
    rows["obs"][0] = np.nan  # the first step is left out; (5 · 1 + 6 · 2)² and (7 · 1 + 8 · 2)² of the second
    assert ComputationTask(Halves()).learn(rows)["loss"] == (17**2 + 23**2) / 2


def test_minibatches_that_lose_the_rows_are_refused_by_name():
    class Loses(Split):
        def minibatches(self, batch):
            self.turn = 1
            yield batch[:3]

    with pytest.raises(ValueError, match="task 'task': learn returned 'priority' for 3 of 4 rows"):
        ComputationTask(Loses()).learn(ROWS)

    class Strips(Split):
        def minibatches(self, batch):
            self.turn = 1
            for part in (batch[:2], batch[2:]):
                yield type(batch)(obs=part.obs)

    with pytest.raises(ValueError, match="task 'task': learn returned 'priority' with 2 rows.*minibatches.*update_row"):
        ComputationTask(Strips()).learn(ROWS)


# ------------------------------------------------------------------------------------------------------------- states that are
# wrong


def spoil(path, value):
    def change(state):
        *where, last = path
        for key in where:
            state = state[key]
        state[last] = value
    return change


@pytest.mark.parametrize(("change", "message"), [
    (spoil(["networks", "model", "w"], torch.tensor([1.0, float("nan")])), "network 'model', 'w'.*NaN"),
    (spoil(["networks", "model", "w"], torch.tensor([float("inf"), 1.0])), "network 'model', 'w'.*inf"),
    (spoil(["networks", "model", "w"], [1.0, 2.0]), "network 'model', 'w'.*expected a tensor.*list"),
    (spoil(["networks", "model", "w"], torch.tensor([1, 2])), "network 'model', 'w'.*float32.*int64"),
    (spoil(["networks", "model"], 3), "network 'model'.*int"), (spoil(["networks"], None), "networks"),
    (spoil(["networks"], {}), "network 'model'"),
    (spoil(["counters", "updates"], "many"), "counters.*'updates'.*'many'"),
    (spoil(["counters", "version"], -1), "counters.*'version'.*-1"),
    (spoil(["counters", "rows"], 1.5), "counters.*'rows'.*1.5"),
    (spoil(["counters", "learns"], True), "counters.*'learns'.*True"),
    (spoil(["counters"], []), "counters"), (spoil(["optimizer"], 7), "optimizer"),
    (spoil(["optimizer", "groups"], []), "optimizer.*group"),
    (spoil(["optimizer", "state"], {"x": {}}), "optimizer.*'x'"), (spoil(["optimizer", "state", "0"], 3), "optimizer"),
    (spoil(["optimizer", "state", "0", "exp_avg"], torch.zeros(5)), r"optimizer.*exp_avg.*\(5,\)"),
    (spoil(["optimizer", "state", "0", "exp_avg"], torch.full((2,), float("nan"))), "optimizer.*exp_avg.*NaN"),
    (spoil(["optimizer", "groups", 0, "lr"], float("nan")), "optimizer.*lr.*nan"),
    (spoil(["optimizer", "groups", 0, "lr"], "big"), "optimizer.*lr.*big"),
    (spoil(["rng"], 3), "random state"), (spoil(["torch_rng"], [1, 2]), "random state"), (spoil(["algorithm"], 5), "algorithm"),
    (spoil(["algorithm", "count"], {"$": 1}), "algorithm.*count"), (spoil(["algorithm", "learn"], 5), "algorithm.*'learn'"),
    (spoil(["algorithm", "noise"], 5), "algorithm.*noise"),
    (spoil(["algorithm", "noise", "value", "inc"], 4), "algorithm.*noise"),
    (spoil(["algorithm", "t"], torch.tensor([1.0, np.nan])), "algorithm.*'t'.*NaN"),
    (spoil(["algorithm", "t"], torch.ones(3)), "algorithm.*'t'.*fits the Parameter"),
    (spoil(["algorithm", "average", "kind"], "rng"), "algorithm.*average"),
    (spoil(["algorithm", "average", "value"], {}), "algorithm.*average"),
])
def test_a_state_of_wrong_types_or_numbers_is_refused_by_name_and_changes_nothing(change, message):
    class Counting(Plain):
        def __init__(self):
            super().__init__()
            self.count, self.mean, self.noise, self.average = 0, np.zeros(2), np.random.default_rng(3), Average()
            self.t = torch.nn.Parameter(torch.zeros(2), requires_grad=False)

        def learn(self, batch):
            self.count += 1
            self.mean = self.mean + self.noise.random()
            self.average.add(2.0)
            self.t += 1
            return super().learn(batch)

    task, other = ComputationTask(Counting()), ComputationTask(Counting())
    task.learn(ROWS)
    state = task.state_dict()
    change(state)
    before = other.state_dict()
    with pytest.raises(ValueError, match=f"(?s)task 'task'.*{message}|{message}"):
        other.load_state_dict(state)
    after = other.state_dict()
    assert after["counters"] == before["counters"] and after["algorithm"] == before["algorithm"]
    assert torch.equal(after["networks"]["model"]["w"],
                       before["networks"]["model"]["w"]) and after["optimizer"] == before["optimizer"]


@pytest.mark.parametrize("state", [None, 3, [], {}, {"networks": {}}])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ValueError, match="task 'task'"):
        ComputationTask(Plain()).load_state_dict(state)
