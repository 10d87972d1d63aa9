"""Sharing, cloning and synchronising between algorithms and tasks; what a factory promises; what leaves a task."""

import gc
import multiprocessing
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_fakes import Noisy, Plain, Recorder, a2c, dqn, ppo, spaces_of
from transport_fakes import OVER_RAY, connected, one_ray  # noqa: F401 - fixtures

from parl_like import Agent, ComputationTask, OffPolicyHelper, OnPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import DQN, PPO
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.factory import Shared
from parl_like.learning.model import Model
from parl_like.models import MLP, MLPQ, MLPActorCritic

OBS = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)


def update(n=8):
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(n, 2)).astype(np.float32)
    return {"obs": obs, "act": rng.integers(2, size=n), "rew": rng.normal(size=n), "terminated": np.zeros(n, bool),
            "truncated": np.zeros(n, bool), "obs_next": obs[::-1].copy()}


def q_of(task):
    return task.predict({"obs": OBS}, "test")["q"]


# --------------------------------------------------------------------------------------------------------------- the same model


def test_one_model_in_two_tasks_has_one_storage_and_one_optimiser():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MLPQ(**spaces_of(Noisy()), hidden=[8])
    first, second = (ComputationTask(DQN(model, target_period=0, lr=0.05)) for _ in range(2))
    before = q_of(second)
    np.testing.assert_array_equal(before, q_of(first))
    for learner in (first, second):  # whichever learns, both predict anew, and alike
        learner.learn(update())
        assert not np.array_equal(q_of(first), before)
        before = q_of(second)
        np.testing.assert_array_equal(q_of(first), before)
    owners = [task for task in (first, second) if task.optimizer is not None]
    assert owners == [first] and first.version == second.version == 2 and first.lock is second.lock


def test_one_algorithm_in_two_tasks():
    algorithm = dqn(Noisy)()
    first, second = ComputationTask(algorithm), ComputationTask(algorithm)
    first.learn(update())
    np.testing.assert_array_equal(q_of(first), q_of(second))
    assert algorithm.updates == 1


# ------------------------------------------------------------------------------------------------------------------------ clone


@pytest.mark.parametrize("build", [dqn(Noisy), ppo(Noisy), ppo(Noisy, recurrent=True), a2c(Noisy)])
def test_a_clone_is_equal_and_lives_on_its_own(build):
    algorithm = build()
    clone, anew = algorithm.clone(), algorithm.clone(copy=False)
    for name, network in algorithm.networks().items():
        twin, other = clone.networks()[name], anew.networks()[name]
        assert twin.weights_hash() == network.weights_hash() != other.weights_hash()
        storages = [{value.data_ptr() for value in part.state_dict().values()} for part in (network, twin, other)]
        assert not (storages[0] & storages[1] or storages[0] & storages[2] or storages[1] & storages[2])
    before = algorithm.model.weights_hash()
    with torch.no_grad():
        next(clone.parameters()).add_(1.0)
    assert algorithm.model.weights_hash() == before
    assert clone.torch_rng is not algorithm.torch_rng and clone.rng is not algorithm.rng


def test_what_is_one_object_is_one_in_the_clone():
    alone = DQN(MLPQ(**spaces_of(Noisy()), hidden=[8]), target_period=0)
    for copy in (True, False):
        clone = alone.clone(copy=copy)
        assert clone.target is clone.model
    head = dqn(Noisy)()
    head.part = next(head.model.children())
    assert head.clone().part is not head.part
    clone = head.clone()
    assert clone.part is next(clone.model.children())


def test_a_new_target_is_a_copy_of_the_new_model():
    algorithm = dqn(Noisy)()
    with torch.no_grad():
        next(algorithm.model.parameters()).add_(1.0)  # model and target differ
    anew = algorithm.clone(copy=False)
    assert (
        anew.target.weights_hash()
        == anew.model.weights_hash()
        not in (algorithm.model.weights_hash(), algorithm.target.weights_hash())
    )
    assert anew.target is not anew.model


def test_a_cloned_task_learns_on_its_own():
    algorithm = dqn(Noisy, lr=0.05)()
    clone = ComputationTask(algorithm.clone())
    task = ComputationTask(algorithm)
    np.testing.assert_array_equal(q_of(task), q_of(clone))
    before = q_of(task)
    clone.learn(update())
    np.testing.assert_array_equal(q_of(task), before)
    assert not np.array_equal(q_of(clone), before)
    task.learn(update())
    np.testing.assert_array_equal(q_of(task), q_of(clone))  # the same update from the same weights


# ------------------------------------------------------------------------------------------------------------------------- sync


def test_a_task_follows_another():
    learner, actor = (ComputationTask(dqn(Noisy, lr=0.05)) for _ in range(2))
    learner.build(np.random.SeedSequence(1))
    actor.build(np.random.SeedSequence(2))
    assert not np.array_equal(q_of(learner), q_of(actor))
    actor.sync_from(learner)
    np.testing.assert_array_equal(q_of(learner), q_of(actor))
    before = {name: value.clone() for name, value in actor.algorithm.model.state_dict().items()}
    learner.learn(update())
    actor.sync_from(learner, decay=0.7)
    for name, value in actor.algorithm.model.state_dict().items():
        torch.testing.assert_close(value, 0.7 * before[name] + 0.3 * learner.algorithm.model.state_dict()[name])
    with pytest.raises(ValueError, match=r"'net.layers.0.weight' is \(8, 2\) here and \(9, 2\) in the other"):
        actor.sync_from(ComputationTask(dqn(Noisy, hidden=(9,))))


# -------------------------------------------------------------------------------------------------------------------- factories


def build_there(packed, queue):
    factory = pickle.loads(packed)
    task = ComputationTask(factory)
    task.build(np.random.SeedSequence(5))
    queue.put((task.algorithm.model.weights_hash(), repr(factory)))


def test_a_factory_builds_the_same_in_a_spawned_process():
    factory = dqn(Noisy, n_step=2)
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=build_there, args=(pickle.dumps(factory), queue))
    process.start()
    there = queue.get()
    process.join()
    here = ComputationTask(factory)
    here.build(np.random.SeedSequence(5))
    assert there == (here.algorithm.model.weights_hash(), repr(factory))


def test_two_builds_share_nothing_and_arguments_are_frozen():
    hidden, options = [8], {"gamma": 0.5, "target_period": 0}
    model_args = {**spaces_of(Noisy()), "hidden": hidden}
    factory = create_algorithm_func(MLPQ, model_args, DQN, options)
    hidden.append(99)
    options["gamma"] = 0.9
    model_args["hidden"] = [1]
    first, second = factory(), factory()
    assert first.gamma == 0.5 and [layer.out_features for layer in first.model.net.layers] == [8, 2]
    assert first.model is not second.model and first.model.weights_hash() != second.model.weights_hash()
    pointers = [{value.data_ptr() for value in part.model.state_dict().values()} for part in (first, second)]
    assert pointers[0].isdisjoint(pointers[1])
    assert factory == create_algorithm_func(MLPQ, {**spaces_of(Noisy()), "hidden": [8]}, DQN, {"gamma": 0.5, "target_period": 0})


class Anchored(DQN):
    """The document's algorithm: it builds its reference network itself, and is drawn towards what that one says."""

    def __init__(self, *, model_func, **options):
        super().__init__(model_func(), **options)
        self.model_func = model_func
        self.reference = model_func().requires_grad_(False)
        self.drawn_apart = self.model.weights_hash() != self.reference.weights_hash()
        self.reference.sync_from(self.model)

    def networks(self):
        return {**super().networks(), "reference": self.reference}

    def learn(self, batch):
        result = super().learn(batch)
        with torch.no_grad():
            anchor = self.reference.q(batch.obs)
        return {**result, "loss": result["loss"] + (self.model.q(batch.obs) - anchor).square().mean()}


class Beside(Anchored):
    """Takes a ready model, and the function for more."""

    def __init__(self, model, *, model_func, **options):
        super().__init__(model_func=model_func, **options)
        self.given = model

    def networks(self):
        return {**super().networks(), "given": self.given}


def anchored(algorithm, **options):
    return create_algorithm_func(MLPQ, {**spaces_of(Noisy()), "hidden": [8]}, algorithm, {"target_period": 0, **options})


@pytest.mark.parametrize(("algorithm", "networks"), [(Anchored, 2), (Beside, 3)])
def test_an_algorithm_that_takes_model_func_builds_its_networks_itself(algorithm, networks):
    first, second = anchored(algorithm)(), anchored(algorithm)()
    assert first.drawn_apart  # each call drew new parameters
    built = [network for one in (first, second) for network in one.networks().values()]
    storages = [{p.data_ptr() for p in network.parameters()} for network in built]
    assert len(built) == 2 * networks and len(set.union(*storages)) == sum(map(len, storages))
    assert torch.equal(first.model.q(torch.from_numpy(OBS)), first.reference.q(torch.from_numpy(OBS)))


def test_a_reference_of_its_own_making_stays_while_the_model_learns_and_is_saved(tmp_path):
    def build():
        return Robot(Noisy, tasks={"RL": ComputationTask(anchored(Anchored, lr=0.1),
                                                         helper=lambda: OffPolicyHelper(size=200, batch_size=16))}, seed=3)

    with build() as robot, build() as other:
        algorithm = robot.tasks["RL"].algorithm
        before = algorithm.reference.weights_hash()
        robot.run(100)
        assert algorithm.updates and algorithm.reference.weights_hash() == before != algorithm.model.weights_hash()
        robot.save(tmp_path / "c")
        other.tasks["RL"].algorithm.reference.net.layers[0].weight.data.zero_()
        other.load(tmp_path / "c")
        assert other.tasks["RL"].algorithm.reference.weights_hash() == before
        clone = algorithm.clone()
        assert clone.model_func().weights_hash() != before  # a clone can build more, too


def test_a_factory_with_model_func_travels_and_a_shared_model_is_one():
    shared = Shared(MLPQ, **spaces_of(Noisy()), hidden=[8])
    algorithm = create_algorithm_func(shared, {}, Anchored, {"target_period": 0})()
    assert algorithm.model is algorithm.reference and not algorithm.drawn_apart
    copied = pickle.loads(pickle.dumps(anchored(Anchored)))
    assert copied == anchored(Anchored) and copied().model_func().act_space == spaces_of(Noisy())["act"]


# --------------------------------------------------------------------------------------------------------- what leaves a task


def test_no_tensor_and_no_gradient_leave_a_task():
    class Leaky(Recorder):
        """Gives out everything it can: tensors with gradients, nested ones, and rows from learning."""

        def predict(self, inputs):
            w = self.model.w
            return {"act": torch.zeros(len(inputs.obs), dtype=torch.int64), "value": inputs.obs[:, 0] * w,
                    "deep": {"er": inputs.obs * w}}

        def learn(self, batch):
            return {"loss": self.model.w.square().sum(), "td": batch.rew * self.model.w, "mean": self.model.w.mean()}

    def only_arrays(value):
        if isinstance(value, dict):
            return all(only_arrays(part) for part in value.values())
        return isinstance(value, (np.ndarray, float, int)) and not isinstance(value, torch.Tensor)

    task = ComputationTask(Leaky(Plain(*spaces_of(Noisy()).values())))
    assert only_arrays(task.predict({"obs": OBS}))
    returned = task.learn(update())
    assert only_arrays(returned) and returned["td"].shape == (8,)

    class Looking(Agent):
        def run_one_episode(self):
            obs, _ = self.env.reset()
            self.helpers["RL"].predict(obs)
            ticket = self.helpers["RL"].acting.last[1]
            self.robot.seen = [*ticket.values()]
            self.robot.request_stop()

    with Robot(Noisy, tasks={"RL": ComputationTask(Leaky(Plain(*spaces_of(Noisy()).values())))}, agent=Looking) as robot:
        robot.run()
        assert len(robot.seen) == 3 and only_arrays(dict(enumerate(robot.seen)))


# ----------------------------------------------------------------------------------------------------------------- shared trunk


class Trunk(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = MLP([2, 8], activate_last=True)
        self.out_size = 8

    def forward(self, obs):
        return self.net(obs)


class Reconstruct(Model):
    """The auxiliary task's model: the observation from the trunk's features."""

    def __init__(self, obs, act, trunk):
        super().__init__(obs, act)
        self.trunk = trunk
        self.out = MLP([trunk.out_size, 2])

    def guess(self, obs):
        return self.out(self.trunk(obs))


class Auxiliary(Algorithm):
    def learn(self, batch):
        return {"loss": (self.model.guess(batch.obs) - batch.obs).square().mean()}


def with_auxiliary():
    shared = Shared(Trunk)
    spaces = spaces_of(Noisy())
    policy = create_algorithm_func(MLPActorCritic, dict(**spaces, hidden=[8], trunk=shared), PPO,
                                   dict(epochs=1, minibatches=1, lr=0.01))
    auxiliary = create_algorithm_func(Reconstruct, dict(**spaces, trunk=shared), Auxiliary, dict(lr=0.01))
    return {
        "RL": ComputationTask(policy, lambda: OnPolicyHelper(unroll=8)),
        "aux": ComputationTask(auxiliary, lambda: OffPolicyHelper(size=100, batch_size=8, learn_every=8)),
    }


def test_a_shared_trunk_is_changed_by_either_task():
    tasks = with_auxiliary()
    with Robot(Noisy, tasks=tasks, seed=1) as robot:
        policy, auxiliary = tasks["RL"].algorithm.model, tasks["aux"].algorithm.model
        assert policy.perception is auxiliary.trunk
        logits = lambda: tasks["RL"].predict({"obs": OBS})["logits"]  # noqa: E731
        guess = lambda: auxiliary.guess(torch.from_numpy(OBS)).detach().numpy()  # noqa: E731
        before = logits(), guess()
        tasks["aux"].learn(update())  # one optimiser step of the auxiliary task
        assert not np.array_equal(logits(), before[0]) and not np.array_equal(guess(), before[1])
        before = logits(), guess()
        robot.run(StopAfterSteps(8))
        assert tasks["RL"].learns == 1 and not np.array_equal(logits(), before[0]) and not np.array_equal(guess(), before[1])
        heads = {name for name, _ in tasks["aux"].algorithm.model.named_parameters()}
        assert {name.split(".")[0] for name in heads} == {"trunk", "out"}


def test_the_policy_works_on_without_its_auxiliary_task():
    tasks = with_auxiliary()
    with Robot(Noisy, tasks=tasks, seed=1) as robot:
        robot.run(StopAfterSteps(16))
    alone = {"RL": tasks.pop("RL")}
    del tasks, robot
    gc.collect()
    before = alone["RL"].algorithm.model.weights_hash()
    with Robot(Noisy, tasks=alone, seed=2) as robot:
        robot.run(StopAfterSteps(16))
        assert alone["RL"].learns == 4 and alone["RL"].algorithm.model.weights_hash() != before
        assert robot.evaluate(1).n_episodes == 1


def test_the_auxiliary_task_works_on_without_the_policy():
    """The policy's task owned the trunk's optimiser; what is left must still be able to learn."""
    tasks = with_auxiliary()
    for task in tasks.values():
        task.build()
    auxiliary = tasks.pop("aux")
    del tasks, task
    gc.collect()
    auxiliary.claim()
    trunk = auxiliary.algorithm.model.trunk.net.layers[0].weight
    before = trunk.detach().clone()
    auxiliary.learn(update())
    assert not torch.equal(before, trunk) and auxiliary.optimizer is not None


@pytest.mark.parametrize("driver", ["cooperative", Processes(workers=1), OVER_RAY], ids=lambda one: getattr(one, "name", one))
def test_a_robot_with_a_shared_trunk_is_repeatable_wherever_its_agents_are(driver):
    def run(driver):
        with Robot(Noisy, tasks=with_auxiliary(), seed=3, trace=True, driver=driver) as robot:
            robot.run(StopAfterSteps(40))
            robot.checkpoint_boundary()
            return robot.trace_hash(), robot.tasks["RL"].algorithm.model.weights_hash()

    assert run(driver) == run("cooperative")




def test_dropout_draws_from_the_tasks_generator_and_leaves_the_global_one_alone():
    class Forgetful(MLPQ):
        def __init__(self, **options):
            super().__init__(**options)
            self.drop = torch.nn.Dropout(0.5)

        def q(self, obs):
            return self.drop(super().q(obs))

    def learned():
        args = {"obs": gym.spaces.Box(-1, 1, (3,), np.float32), "act": gym.spaces.Discrete(2), "hidden": [8]}
        task = ComputationTask(create_algorithm_func(Forgetful, args, DQN, {"lr": 0.1}))
        task.build(np.random.SeedSequence(4))
        rows = {"obs": np.ones((8, 3), np.float32), "act": np.zeros(8, np.int64), "obs_next": np.ones((8, 3), np.float32),
                "rew": np.ones(8), "terminated": np.zeros(8, bool), "truncated": np.zeros(8, bool)}
        for _ in range(3):
            torch.rand(1)  # somebody else's draws
            task.learn(rows)
        return task.algorithm.model.weights_hash()

    torch.manual_seed(1)
    first = learned()
    drawn = torch.rand(1)
    torch.manual_seed(2)
    assert learned() == first
    torch.manual_seed(1)
    torch.rand(3)
    assert torch.rand(1) == drawn
