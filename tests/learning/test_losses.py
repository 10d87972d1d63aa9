"""Several losses in one algorithm: order, reach, period, rates, clipping, faults, checkpoints, sharing; and algorithms that
change their parameters themselves."""

import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like.algorithms import MPO, PPO, SAC, TD3, VMPO
from parl_like.learning.algorithm import Algorithm, Linear, Loss
from parl_like.learning.model import Model
from parl_like.learning.optimizer_steps import BESIDE
from parl_like.models import MLPActorCritic, MLPActorQ
from parl_like.tasks.task import ComputationTask
from parl_like.values.errors import Diverged

ROWS = {"obs": np.ones((2, 1), np.float32)}


class Actor(Model):
    def __init__(self, trunk=None):
        super().__init__(gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2))
        self.w = torch.nn.Parameter(torch.tensor([1.0]))
        if trunk is not None:
            self.trunk = trunk


class Scale(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.v = torch.nn.Parameter(torch.tensor([value]))


def sgd(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr)


class Pair(Algorithm):
    """Critic: moves v by its rate in the direction of 1. Actor: moves w by its rate · v, the critic's newest."""

    def __init__(self, model=None, *, make=sgd, critic_lr=0.5, actor_lr=1.0, every=1, clip=None, trunk=None):
        super().__init__(model or Actor(trunk))
        self.critic = Scale(2.0)
        self.losses = {"critic": Loss(self.critic, critic_lr, optimizer=make),
                       "actor": Loss(self.model, actor_lr, clip, every, optimizer=make)}
        self.bad = None

    def networks(self):
        return {"model": self.model, "critic": self.critic}

    def predict(self, inputs):
        return {"y": inputs.obs * self.model.w}

    def learn(self, batch):
        factor = torch.nan if self.bad == "critic" else 1.0
        yield {"critic": (self.critic.v * factor).sum(), "priority": batch.obs[:, 0] * 3}
        if self.due("actor"):
            factor = torch.nan if self.bad == "actor" else 1.0
            yield {"actor": (self.model.w * self.critic.v * factor).sum()}
        return {"seen": self.critic.v.detach().mean()}


def numbers(task):
    return task.algorithm.critic.v.item(), task.algorithm.model.w.item()


def test_each_step_is_taken_where_it_is_asked_for_and_moves_its_own_parameters_only():
    task = ComputationTask(Pair())
    out = task.learn(ROWS)
    assert numbers(task) == (1.5, 1.0 - 1.5)  # the actor's slope is the critic's v after its step; the critic feels none of it
    assert out["critic"] == 2.0 and out["actor"] == 1.5 and out["seen"] == 1.5 and out["priority"].tolist() == [3.0, 3.0]
    assert (task.version, task.algorithm.updates, task.learns) == (1, 1, 1)


def test_a_loss_may_be_due_less_often():
    """As the actor of TD3: after every second step of the critic."""
    task = ComputationTask(Pair(every=2))
    seen = []
    for _ in range(4):
        task.learn(ROWS)
        seen.append(numbers(task))
    assert seen == [(1.5, 1.0), (1.0, 0.0), (0.5, 0.0), (0.0, 0.0)]


def test_a_loss_that_is_not_due_is_not_stepped_even_if_it_is_given():
    class Always(Pair):
        def learn(self, batch):
            return {"critic": self.critic.v.sum(), "actor": self.model.w.sum()}

    task, seen = ComputationTask(Always(every=2)), []
    for _ in range(4):
        task.learn(ROWS)
        seen.append(numbers(task))
    assert seen == [(1.5, 1.0), (1.0, 0.0), (0.5, 0.0), (0.0, -1.0)] and task.algorithm.updates == 4


def test_a_misspelt_loss_is_refused():
    class Misspelt(Pair):
        def learn(self, batch):
            yield {"critic": self.critic.v.sum()}
            yield {"acter": self.model.w.sum()}

    with pytest.raises(ValueError, match=r"learn gives 'acter', a number with a gradient .*'critic', 'actor'"):
        ComputationTask(Misspelt()).learn(ROWS)


@pytest.mark.parametrize(("options", "message"), [
    ({"max_grad_norm": -1.0}, "max_grad_norm is -1.0; expected a number above 0"), ({"max_grad_norm": 0}, "above 0"),
    ({"every": 0}, "every is 0"), ({"every": 1.5}, "every is 1.5; expected a whole number"), ({"lr": "1e-3"}, "lr is '1e-3'"),
    ({"optimizer": "sgd", "every": 1}, r"optimizer is str; expected .* such as torch.optim.AdamW")])
def test_settings_of_a_loss_are_checked(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Loss(Scale(1.0), **options)
    if "every" not in options:
        with pytest.raises((TypeError, ValueError), match=message):
            Algorithm(Actor(None), **options)


@pytest.mark.parametrize("moves", [lambda net: net.parameters(), lambda net: [net.parameters()], lambda net: [net, net.v]])
def test_what_a_loss_moves_may_be_given_as_torch_gives_it_and_counts_once(moves):
    algorithm = Pair()
    algorithm.losses["critic"] = Loss(moves(algorithm.critic), 0.5, optimizer=sgd)
    task = ComputationTask(algorithm)
    task.learn(ROWS)
    assert numbers(task) == (1.5, -0.5)


@pytest.mark.parametrize(("moves", "kind"), [("critic", "str"), ({"critic": Scale(1.0)}, "dict"), (torch.zeros(1), "Tensor"),
                                             ([Scale(1.0), 3], "int")])
def test_what_cannot_be_moved_is_refused(moves, kind):
    with pytest.raises(TypeError, match=f"Loss: moves has {kind}; expected networks and parameters"):
        Loss(moves)


@pytest.mark.parametrize("losses", [lambda critic: [Loss(critic)], lambda critic: {"critic": critic}])
def test_losses_are_named_ones(losses):
    algorithm = Pair()
    algorithm.losses = losses(algorithm.critic)
    with pytest.raises(TypeError, match=r"task 'task': losses of Pair .*; expected a dict from names to Loss\(…\)"):
        ComputationTask(algorithm)


def test_frozen_parameters_stay_and_the_others_of_their_loss_learn():
    algorithm = Pair()
    algorithm.critic.base = torch.nn.Linear(1, 1).requires_grad_(False)
    task, before = ComputationTask(algorithm), algorithm.critic.base.weight.clone()
    task.learn(ROWS)
    assert numbers(task) == (1.5, -0.5) and torch.equal(algorithm.critic.base.weight, before)
    algorithm.critic.requires_grad_(False)
    with pytest.raises(ValueError, match="'critic' without a gradient"):
        task.learn(ROWS)


def test_after_an_update_whose_step_was_left_out_nothing_is_processed():
    """Or the weights would change, and nobody would be told of a new version."""
    class After(Pair):
        def post_process(self, batch):
            with torch.no_grad():
                self.model.w += 1.0

    task = ComputationTask(After())
    task.algorithm.bad = "critic"
    task.learn(ROWS)
    assert (numbers(task), task.version) == ((2.0, 1.0), 0)
    task.algorithm.bad = None
    task.learn(ROWS)
    assert (numbers(task), task.version) == ((1.5, 0.5), 1)


def test_what_post_process_changes_after_an_update_without_steps_is_a_new_version():
    class OnlyAfter(Pair):
        def minibatches(self, batch):
            return ()

        def post_process(self, batch):
            with torch.no_grad():
                self.model.w += 1.0

    task = ComputationTask(OnlyAfter())
    task.learn(ROWS)
    assert (numbers(task), task.version) == ((2.0, 2.0), 1)


def test_due_knows_the_losses_by_name():
    with pytest.raises(ValueError, match=r"Pair: due\('acter'\): no loss 'acter'; did you mean 'actor'\?"):
        Pair().due("acter")


def test_each_loss_has_its_own_rate_schedule_and_clip():
    task = ComputationTask(Pair(critic_lr=Linear(0.5, 0.0, 2), clip=0.25))
    for v, w in ((1.5, 0.75), (1.25, 0.5), (1.25, 0.25)):  # the actor's slope is cut to 0.25
        task.learn(ROWS)
        assert numbers(task) == pytest.approx((v, w), abs=1e-6)


@pytest.mark.parametrize(("kind", "model", "eps"), [
    (SAC, MLPActorQ, 1e-8), (TD3, partial(MLPActorQ, policy="deterministic"), 1e-8), (MPO, MLPActorQ, 1e-8),
    (PPO, MLPActorCritic, 1e-5), (VMPO, MLPActorCritic, 1e-5)])
def test_adam_has_the_published_epsilon(kind, model, eps):
    """Along small gradients it decides how long a step is: with 1e-5 in the place of 1e-8, a fifth of the first steps of SAC's
    actor on MuJoCo's Hopper were shorter by a tenth and more."""
    box = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    task = ComputationTask(kind(model(box, box, (4,))))
    assert {group["eps"] for optimizer in task.optimizers.values() for group in optimizer.param_groups} == {eps}


def test_losses_of_one_mapping_see_the_same_parameters():
    class Together(Pair):
        def learn(self, batch):
            return {"critic": (self.critic.v * self.model.w).sum(), "actor": (self.model.w * self.critic.v).sum()}

    task = ComputationTask(Together())
    task.learn(ROWS)
    assert numbers(task) == (2.0 - 0.5 * 1.0, 1.0 - 2.0)


class Apart(Pair):
    """One loss in two parts: 3 v, whose slope is 3, and w². `meet` is called in the backward pass of each."""

    def __init__(self):
        super().__init__()
        self.losses, self.transient = {"loss": Loss([self.critic.v, self.model.w], 0.5, optimizer=sgd)}, ("meet",)
        self.meet = lambda gradient: None

    def learn(self, batch):
        factor = torch.nan if self.bad else 1.0
        parts = 3 * self.critic.v.sum(), self.model.w.square().sum() * factor
        for part in parts:
            part.register_hook(self.meet)
        return {"loss": parts}


def test_parts_of_a_loss_are_added_and_their_backward_passes_go_on_at_the_same_time_where_there_are_threads(caplog):
    task = ComputationTask(Apart())
    assert task.learn(ROWS)["loss"] == 3 * 2.0 + 1.0 and numbers(task) == (2.0 - 0.5 * 3, 1.0 - 0.5 * 2)
    both = Barrier(2)

    def meet(gradient):
        both.wait(60)

    task = ComputationTask(Apart())
    task.algorithm.meet = meet
    with ThreadPoolExecutor(1) as threads:
        token = BESIDE.set(threads)
        try:
            task.learn(ROWS)
        finally:
            BESIDE.reset(token)
    assert numbers(task) == (0.5, 0.0)
    task.algorithm.bad = "w"
    assert np.isnan(task.learn(ROWS)["loss"]) and numbers(task) == (0.5, 0.0) and "loss is nan" in caplog.text


def test_a_loss_that_is_no_number_leaves_out_its_step_and_what_follows(caplog):
    task = ComputationTask(Pair())
    task.algorithm.bad = "critic"
    with caplog.at_level(logging.WARNING):
        task.learn(ROWS)
    assert numbers(task) == (2.0, 1.0) and (task.version, task.skipped, task.skips, task.algorithm.updates) == (0, 1, 1, 0)
    assert "critic is nan at optimiser step 0; the weights are unchanged. Lower" in caplog.text
    task.algorithm.bad = "actor"
    out = task.learn(ROWS)
    assert numbers(task) == (1.5, 1.0) and (task.version, task.skipped, task.skips, task.algorithm.updates) == (1, 2, 0, 1)
    assert out["critic"] == 2.0
    assert "actor is nan at optimiser step 0; the step of 'critic' was taken, and nothing after it. Lower" in caplog.text
    task.max_skips = 0
    with pytest.raises(Diverged, match="actor is nan"):
        task.learn(ROWS)


def test_what_a_step_that_was_left_out_says_does_not_count_beside_one_that_was_taken():
    class Late(Pair):
        def learn(self, batch):
            yield {"critic": self.critic.v.sum()}
            factor = torch.nan if self.bad else 1.0
            yield {"actor": (self.model.w * factor).sum(), "priority": batch.obs[:, 0] * factor, "slope": self.bad}

    task = ComputationTask(Late())
    task.algorithm.bad = True
    out = task.learn(ROWS)
    assert out["critic"] == 2.0 and out["priority"].tolist() == [0.0, 0.0]  # or a prioritised buffer would end the run
    assert "actor" not in out and "slope" not in out and out["left_out"] == 1.0


def test_rows_of_which_a_step_that_was_left_out_says_nothing_count_nothing():
    class Last(Pair):
        def minibatches(self, batch):
            self.bad = False
            yield batch[:1]
            self.bad = True
            yield batch[1:]

        def learn(self, batch):
            yield {"critic": self.critic.v.sum()}
            yield {"actor": (self.model.w * (torch.nan if self.bad else 1.0)).sum()}
            return {"priority": batch.obs[:, 0]}

    out = ComputationTask(Last()).learn(ROWS)
    assert out["priority"].tolist() == [1.0, 0.0] and out["left_out"] == 1.0



def test_buffers_are_as_they_were_before_the_step_that_was_left_out():
    class Counting(Pair):
        def __init__(self):
            super().__init__()
            self.critic.register_buffer("passes", torch.zeros(()))

        def learn(self, batch):
            for part in super().learn(batch):
                self.critic.passes += 1
                yield part

    task = ComputationTask(Counting())
    task.learn(ROWS)
    assert task.algorithm.critic.passes == 2
    task.algorithm.bad = "actor"
    task.learn(ROWS)
    assert task.algorithm.critic.passes == 3  # that of the critic's step, which was taken


def test_all_optimisers_are_in_a_checkpoint():
    def adam():
        return ComputationTask(Pair(make=torch.optim.Adam, critic_lr=0.1, actor_lr=Linear(0.1, 0.0, 5), every=2))

    task, other = adam(), adam()
    for _ in range(3):
        task.learn(ROWS)
    state = task.state_dict()
    other.load_state_dict(state)
    for _ in range(3):
        task.learn(ROWS)
        other.learn(ROWS)
    assert numbers(task) == numbers(other)
    state["optimizers"]["actor"]["state"]["0"]["exp_avg"] = torch.zeros(3)
    with pytest.raises(ValueError, match=r"task 'task', loss 'actor', optimizer, state 0, exp_avg: expected \(1,\)"):
        other.load_state_dict(state)
    del state["optimizers"]["actor"]
    with pytest.raises(ValueError, match="loss 'actor', optimizer: expected a `state` and 1 `groups`"):
        other.load_state_dict(state)


def test_an_optimiser_whose_state_has_shapes_of_its_own_goes_on_from_a_checkpoint():
    """Adafactor keeps means over the rows and columns of a matrix."""
    def built():
        algorithm = Pair(make=torch.optim.Adafactor)
        algorithm.critic.v = torch.nn.Parameter(torch.ones(3, 2))
        return ComputationTask(algorithm)

    task, other = built(), built()
    task.learn(ROWS)
    other.load_state_dict(task.state_dict())
    task.learn(ROWS)
    other.learn(ROWS)
    assert torch.equal(task.algorithm.critic.v, other.algorithm.critic.v) and not (task.algorithm.critic.v == 1.0).any()


def test_a_trunk_of_two_tasks_has_one_optimiser_and_both_move_it():
    trunk = Scale(4.0)

    class Deep(Pair):
        def learn(self, batch):
            yield {"critic": self.critic.v.sum()}
            yield {"actor": (self.model.w + self.model.trunk.v).sum()}

    first, second = ComputationTask(Deep(trunk=trunk)), ComputationTask(Deep(trunk=trunk, actor_lr=0.5))
    assert first.lock is second.lock and len(second.optimizers) == 2
    second.learn(ROWS)
    assert trunk.v.item() == 3.0  # by the owner's rate
    assert second.algorithm.model.w.item() == 0.5 and first.algorithm.model.w.item() == 1.0
    assert (first.version, second.version) == (1, 1)


def test_two_losses_do_not_move_one_parameter():
    class Twice(Pair):
        def __init__(self):
            super().__init__()
            self.losses["critic"] = Loss([self.critic, self.model.w])

    with pytest.raises(ValueError, match=r"task 'task': two losses of Twice name one parameter, of shape \(1,\), the second is"):
        ComputationTask(Twice())


def test_what_no_loss_names_is_told():
    class Forgets(Pair):
        def __init__(self):
            super().__init__()
            self.temperature = torch.nn.Parameter(torch.zeros(()))

    with pytest.warns(RuntimeWarning, match="no optimiser holds temperature; yield them in losses of Forgets"):
        ComputationTask(Forgets())


@pytest.mark.parametrize(("learn", "message"), [
    (lambda self, batch: {"q": torch.zeros(())}, r"learn returned keys \['q'\]; expected 'critic' or 'actor', a scalar tensor"),
    (lambda self, batch: {"actor": torch.zeros(())}, "learn returned 'actor' without a gradient"),
    (lambda self, batch: {"actor": self.critic.v.sum()}, "the actor of Pair reaches none of its parameters"),
    (lambda self, batch: self.critic.v.sum(), "learn of Pair gives Tensor; expected a mapping, such as {'critic': …}"),
    (lambda self, batch: iter([("critic", self.critic.v.sum())]), "learn of Pair gives list_iterator; expected a mapping"),
])  # fmt: skip
def test_what_learn_gives_is_checked(learn, message, monkeypatch):
    monkeypatch.setattr(Pair, "learn", learn)
    with pytest.raises(ValueError, match=message):
        ComputationTask(Pair()).learn(ROWS)


class Hill(Algorithm):
    """Steps by itself, without gradients."""

    losses = {}

    def __init__(self, step=1.0):
        super().__init__(Actor())
        self.step = step

    def predict(self, inputs):
        return {"y": inputs.obs * self.model.w}

    def learn(self, batch):
        with torch.no_grad():
            self.model.w += self.step
        return {"height": self.model.w.mean()}


def test_an_algorithm_may_change_its_parameters_itself():
    task = ComputationTask(Hill())
    task.publish()
    assert task.learn(ROWS)["height"] == 2.0
    assert (task.version, task.algorithm.updates, task.optimizers) == (1, 1, {})
    task.publish()
    assert task.predict(ROWS)["y"].tolist() == [[2.0], [2.0]]
    other = ComputationTask(Hill())
    other.load_state_dict(task.state_dict())
    assert other.algorithm.model.w.item() == 2.0 and other.version == 1


def test_such_a_step_that_gives_no_numbers_is_left_out():
    task = ComputationTask(Hill())
    task.algorithm.step = torch.nan
    task.learn(ROWS)
    assert task.algorithm.model.w.item() == 1.0 and (task.version, task.skipped) == (0, 1)


class Half(Pair):
    """The critic by its loss, and w, by the critic's newest v, by itself."""

    def __init__(self, **options):
        super().__init__(**options)
        del self.losses["actor"]
        self.moves = [self.model.w, *(self.model.trunk.parameters() if hasattr(self.model, "trunk") else ())]

    def learn(self, batch):
        yield {"critic": (self.critic.v * self.model.w.mean()).sum() * (torch.nan if self.bad == "critic" else 1.0)}
        with torch.no_grad():
            for parameter in self.moves:
                parameter -= self.critic.v * (torch.nan if self.bad == "actor" else 1.0)


def test_an_algorithm_may_change_some_parameters_itself_beside_its_losses(recwarn):
    """The critic's gradient, 1 · ½, reaches nothing else; a shared part that is changed so has one lock, and its sharers know."""
    trunk = Scale(4.0)
    task, other = ComputationTask(Half(trunk=trunk)), ComputationTask(Pair(trunk=trunk))
    assert task.lock is other.lock and not [one for one in recwarn if "no optimiser" in str(one.message)]
    task.learn(ROWS)
    assert numbers(task) == (1.5, -0.5) and trunk.v.item() == 2.5 and task.algorithm.model.w.grad is None
    assert (task.version, other.version, task.algorithm.updates) == (1, 1, 1)


def test_what_learn_moves_may_be_given_as_torch_gives_it():
    algorithm = Half()
    algorithm.moves = algorithm.model.parameters()
    task = ComputationTask(algorithm)
    for _ in range(2):
        task.learn(ROWS)
    assert numbers(task) == (1.0 + 0.75, -0.5 - 1.75) and numbers(ComputationTask(algorithm.clone())) == numbers(task)


@pytest.mark.parametrize(("bad", "expected", "version"), [("critic", (2.0, 1.0), 0), ("actor", (1.5, 1.0), 1)])
def test_what_such_a_change_makes_no_number_is_taken_back(bad, expected, version):
    task = ComputationTask(Half())
    task.algorithm.bad = bad
    task.learn(ROWS)
    assert numbers(task) == expected and (task.version, task.skipped) == (version, 1)
