"""Those who learn values, in robots: with masks in Dict observations, n steps, prioritised rows, and beside another task on the
same encoder; they learn, and go on exactly where they were interrupted."""

import sys
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from masked_pick import Pick

from parl_like import ComputationTask, OffPolicyHelper, PrioritizedReplayBuffer, Robot, VectorAgent, create_algorithm_func
from parl_like.algorithms import C51, DQN, FQF, IQN, MDQN, QRDQN, R2D2, REM, BootstrappedDQN, Rainbow
from parl_like.algorithms.dynamics import DynamicsLearner
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.learning.factory import Shared
from parl_like.models import MLPQ, MLPBootstrappedQ, MLPCategoricalQ, MLPFractionQ, MLPImplicitQ, RecurrentQ
from parl_like.models.dynamics import Dynamics, Trunk
from parl_like.values.batch_leaf import same

MEMBERS = {
    "DQN": (DQN, MLPQ, {}, {}), "MDQN": (MDQN, MLPQ, {}, {}),
    "C51": (C51, MLPCategoricalQ, {}, dict(v_min=0.0, v_max=3.0)), "QRDQN": (QRDQN, MLPQ, {}, dict(heads=9)),
    "REM": (REM, MLPQ, {}, dict(heads=4)),
    "IQN": (IQN, MLPImplicitQ, {}, dict(points=8)), "FQF": (FQF, MLPFractionQ, {}, dict(points=8)),
    "BootstrappedDQN": (BootstrappedDQN, MLPBootstrappedQ, {}, dict(heads=4, prior=0.3)),
    "R2D2": (R2D2, RecurrentQ, dict(sequence=3, burn_in=2), dict(size=8)),
    "Rainbow": (Rainbow, MLPCategoricalQ, {}, dict(v_min=0.0, v_max=3.0, noisy=0.5, dueling=True)),
}
"""Name → algorithm, network, and the arguments of both."""


def task_of(name, every=4, serve="central", **network):
    algorithm, model, options, own = MEMBERS[name]
    options = {"lr": 0.01, "gamma": 0.5, "tau": 0.1, **options} | ({} if name == "MDQN" else {"n_step": 2})
    spaces = dict(obs=Pick.observation_space, act=Pick.action_space)
    helper = partial(OffPolicyHelper, size=500, batch_size=16, learn_every=every, random_steps=40, buffer=PrioritizedReplayBuffer)
    func = create_algorithm_func(model, {**spaces, "hidden": (16,), **own, **network}, algorithm, options)
    return ComputationTask(func, helper, serve=serve)


def beside(name, driver="cooperative", serve="central"):
    """A member, and a task that learns what the environment does, on one encoder."""
    trunk = Shared(Trunk, Pick.observation_space, (8,))
    other = create_algorithm_func(Dynamics, dict(obs=Pick.observation_space, act=Pick.action_space, trunk=trunk, hidden=(8,)),
                                  DynamicsLearner, dict(lr=0.01))
    tasks = {"RL": task_of(name, serve=serve, trunk=trunk),
             "dynamics": ComputationTask(other, lambda: OffPolicyHelper(size=500, batch_size=16, learn_every=8), serve=serve)}
    return Robot(Pick, tasks=tasks, n_agents=2, seed=0, trace=True,
                 driver=Processes(workers=2) if driver == "processes" else driver)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_resumed_run_is_the_one_that_was_not_interrupted(name, tmp_path):
    with beside(name) as whole, beside(name) as part:
        encoder = whole.tasks["RL"].algorithm.model.perception
        assert encoder is whole.tasks["dynamics"].algorithm.model.trunk
        before = [parameter.clone() for parameter in encoder.parameters()]
        whole.run(StopAfterSteps(100))
        whole.save(tmp_path / "state")
        whole.evaluate(1, seed=1)  # leaves no trace
        part.load(tmp_path / "state")
        for one in (whole, part):
            one.run(StopAfterSteps(100))
        assert whole.trace_hash() == part.trace_hash() and whole.counters() == part.counters()
        assert same(*({name: task.state_dict() for name, task in one.tasks.items()} for one in (whole, part)))
        assert whole.tasks["RL"].algorithm.updates > 20 and len(np.unique(whole.buffers["RL"].weights(np.arange(50)))) > 5
        assert not any((one == other).all() for one, other in zip(before, encoder.parameters(), strict=True))


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
SIBLINGS = ("MDQN", "QRDQN", "REM", "FQF", "R2D2", "BootstrappedDQN")
"""Members of which the tests that cost most are slow ones."""
EVERYWHERE = [pytest.param("threads", "central", name, marks=[pytest.mark.slow] * (name in SIBLINGS[4:])) for name in MEMBERS] + [
    pytest.param("processes", serve, name, marks=[LINUX] if (serve, name) == ("replica", "Rainbow") else
                 [LINUX, pytest.mark.slow]) for serve in ("central", "replica") for name in MEMBERS]


@pytest.mark.parametrize(("driver", "serve", "name"), EVERYWHERE)
def test_they_share_an_encoder_with_another_task_under_every_driver(driver, serve, name):
    with beside(name, driver, serve) as robot:
        robot.run(StopAfterSteps(160))
        assert all(task.algorithm.updates > 5 for task in robot.tasks.values())
        assert np.isfinite(robot.evaluate(2, seed=1).mean_return)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SIBLINGS)) for name in MEMBERS])
def test_they_learn_from_a_vector_environment(name):
    """Random legal actions earn 10 in 20 steps, the best ones 13.3."""
    with Robot(lambda: gym.vector.SyncVectorEnv([Pick] * 4), agent=VectorAgent, tasks={"RL": task_of(name, 2)}, seed=0) as robot:
        robot.run(StopAfterSteps(400))
        assert robot.evaluate(5, seed=1).mean_return > 12.0


def test_rainbow_with_all_parts_off_by_settings_is_dqn():
    """Same actions and same weights."""
    options = {"n_step": 1, "double": False, "epsilon": 0.1, "warmup": 64, "batch_size": 32, "seed": 1, "trace": True}
    off = {"model": "MLPQ", "dueling": False, "noisy": 0.0, "buffer": "ReplayBuffer", "random_steps": 0}
    left = []
    for name, more in (("DQN", {}), ("Rainbow", off), ("Rainbow", {})):
        with Robot.of(name, "CartPole-v1", n_agents=2, total_steps=200, **options, **more) as robot:
            robot.run(200)
            task = robot.tasks["RL"]
            assert task.learns > 50
            left.append((robot.trace_hash(), task.algorithm.model.weights_hash()))
    assert left[0] == left[1] and left[2] != left[0]
