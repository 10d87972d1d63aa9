"""What every algorithm can do as a task: learn beside another task on one trunk, from a vector environment, and with masks."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from parl_like import (
    ComputationTask,
    EpisodicHelper,
    OffPolicyHelper,
    OnPolicyHelper,
    Robot,
    VectorAgent,
    algorithms,
    create_algorithm_func,
)
from parl_like.agents.population import PopulationHelper
from parl_like.algorithms.dynamics import DynamicsLearner
from parl_like.algorithms.evolution import Evolution
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.learning.factory import Shared
from parl_like.models import MLPActorCritic, MLPActorQ, MLPCrossQ, MLPLatentActorQ, RecurrentActorCritic
from parl_like.models.dynamics import Dynamics, Trunk


class Narrow(gym.Env):
    """Raises on an illegal action. Of three actions one or more are legal, as `mask` says, an array that is changed in place with
    each step, and `shown` in numbers that stay. The legal action with the largest number earns 1."""

    observation_space = gym.spaces.Dict({"mask": gym.spaces.MultiBinary(3), "shown": gym.spaces.Box(-1, 1, (3,), np.float32)})
    action_space = gym.spaces.Discrete(3)

    def __init__(self):
        self.mask = np.zeros(3, np.int8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def look(self):
        self.mask[:] = self.np_random.random(3) < 0.4
        self.mask[self.np_random.integers(3)] = 1
        self.shown = np.where(self.mask, self.np_random.uniform(0.1, 1, 3), -1).astype(np.float32)
        return {"mask": self.mask, "shown": self.shown.copy()}

    def step(self, act):
        if self.shown[act] < 0:
            raise ValueError(f"action {act} is illegal: {self.shown}")
        rew, self.steps = float(self.shown[act] == self.shown.max()), self.steps + 1
        return self.look(), rew, self.steps == 7, self.np_random.random() < 0.1, {}


class Lane(gym.Env):
    """Shows which environment it is, and at which step, of so many that a time limit cuts it; the reward falls with the distance
    of the action from the sign of a third number."""

    observation_space = gym.spaces.Box(-1, 20, (3,), np.float32)
    action_space = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))

    def __init__(self, lane, length):
        self.lane, self.length = lane, length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.look(), {}

    def look(self):
        self.sign = self.np_random.choice([-1.0, 1.0])
        return np.array([self.lane, self.at, self.sign], np.float32)

    def step(self, act):
        rew, self.at = -abs(float(act[0]) - self.sign), self.at + 1
        return self.look(), rew, False, self.at == self.length, {}


LENGTHS = 2, 5, 9
"""Of the episodes of each environment of a vector."""

UNROLL, POLICY = partial(OnPolicyHelper, unroll=8), partial(OnPolicyHelper, unroll=8, store_policy=True)
EPISODES, OFF = partial(EpisodicHelper, episodes=2), partial(OffPolicyHelper, size=500, batch_size=16, learn_every=4)
NATURAL, EPOCHS, SEARCH = dict(value_epochs=2, value_minibatches=2), dict(epochs=2, minibatches=2), dict(population=4)
MEMBERS = {
    "A2C": (UNROLL, {}, {}), "PPO": (UNROLL, EPOCHS, {}), "VMPO": (UNROLL, EPOCHS, {}),
    "REINFORCE": (EPISODES, dict(baseline=True), {}),
    "PPG": (UNROLL, dict(policy_updates=2, aux_epochs=1, aux_minibatches=2, minibatches=2), dict(auxiliary=True)),
    "IMPALA": (POLICY, {}, {}), "APPO": (POLICY, EPOCHS, {}), "NPG": (UNROLL, NATURAL, {}), "TRPO": (UNROLL, NATURAL, {}),
    "ES": (PopulationHelper, SEARCH, {}), "ARS": (PopulationHelper, SEARCH, {}),
    "CEM": (PopulationHelper, {**SEARCH, "elite": 0.5}, {}),
    "TD3": (OFF, {}, dict(policy="deterministic")), "REDQ": (OFF, {}, dict(critics=3)), "OAC": (OFF, {}, {}),
    "DroQ": (OFF, {}, dict(dropout=0.1, layer_norm=True)), "CrossQ": (OFF, {}, dict(critic_hidden=(16,))),
    "TQC": (OFF, {}, dict(heads=5)), "QRSAC": (OFF, {}, dict(heads=5)), "MPO": (OFF, {}, {}),
    "CQL": (OFF, dict(samples=2), {}), "CRR": (OFF, dict(samples=2), {}), "IQL": (OFF, {}, dict(value=True)),
    "TD3BC": (OFF, {}, dict(policy="deterministic")), "PLAS": (OFF, dict(behavior_updates=3), {}),
    "BCQ": (OFF, dict(behavior_updates=3, samples=2), dict(perturbs=True)), "MARWIL": (UNROLL, {}, {}),
}
"""Name → helper, options of the algorithm, and what its network is."""


def task_of(name, env, **network):
    """A member, by its name; after `recurrent`, with a memory."""
    *memory, name = name.split()
    helper, options, own = MEMBERS[name]
    off_policy = {"CrossQ": MLPCrossQ, "PLAS": MLPLatentActorQ, "BCQ": MLPLatentActorQ}.get(name, MLPActorQ)
    model = RecurrentActorCritic if memory else off_policy if helper is OFF else MLPActorCritic
    spaces = dict(obs=env.observation_space, act=env.action_space, hidden=(8,), **own, **network)
    rate = {} if name == "CEM" else {"lr": 0.01}
    return ComputationTask(create_algorithm_func(model, spaces, getattr(algorithms, name), {**rate, **options}), helper)


def numbers(tasks):
    """Task and name of each parameter → a copy of it."""
    return {(task, name): value.detach().clone() for task, one in tasks.items()
            for name, value in one.algorithm.model.named_parameters()}


def watched(robot):
    """The robot's updates from now on, by task: their rows and what they returned, and the parameters of any task that they have
    moved. All that they bring has to be finite."""
    updates, moved = {name: [] for name in robot.tasks}, {name: set() for name in robot.tasks}
    for name, task in robot.tasks.items():
        def learn(update, name=name, task=task, plain=task.learn):
            rows, before = {field: column.copy() for field, column in update.items()}, numbers(robot.tasks)
            result = plain(update)
            updates[name].append((rows, result))
            after = numbers(robot.tasks)
            assert all(np.isfinite(value).all() for value in result.values()), result
            networks = task.algorithm.networks().values()
            parts = [*task.optimized(), *(part for network in networks for part in network.state_dict().values())]
            assert all(torch.isfinite(part).all() for part in parts)
            moved[name] |= {key for key, value in after.items() if not torch.equal(value, before[key])}
            return result
        task.learn = learn
    return updates, moved


@pytest.mark.parametrize("name", ["A2C", "PPG", "REINFORCE", "VMPO", "IMPALA", "APPO", "ES", "CEM", "ARS", "recurrent PPO",
                                  "recurrent A2C", "MARWIL", "recurrent MARWIL", "NPG", "TRPO"])
def test_a_member_shares_a_trunk_with_another_task(name):
    """Updates of either move the trunk, which is one object, and no parameter that is the other's alone."""
    trunk = Shared(Trunk, Narrow.observation_space, (8,))
    spaces = dict(obs=Narrow.observation_space, act=Narrow.action_space)
    other = create_algorithm_func(Dynamics, {**spaces, "trunk": trunk, "hidden": (8,)}, DynamicsLearner, dict(lr=0.01))
    tasks = {"RL": task_of(name, Narrow, trunk=trunk), "dynamics": ComputationTask(other, partial(OFF, learn_every=8))}
    with Robot(Narrow, tasks=tasks, n_agents=2, seed=0) as robot:
        one = tasks["RL"].algorithm.model.perception
        assert one is tasks["dynamics"].algorithm.model.trunk
        _, moved = watched(robot)
        keys = set(numbers(tasks))
        common = {key for key in keys if key[1].startswith(("perception.net.", "trunk.net."))}
        mine, others = ({key for key in keys - common if key[0] == task} for task in tasks)
        if isinstance(tasks["RL"].algorithm, Evolution):
            mine -= {key for key in mine if key[1].startswith("value_head.")}  # candidates have no values
        robot.run(StopAfterSteps(200))
        assert all(task.learns > 5 and not task.skipped for task in tasks.values())
        assert {task.version for task in tasks.values()} == {sum(task.algorithm.updates for task in tasks.values())}
        assert len(common) == 4 and moved == {"RL": mine | common, "dynamics": others | common}
        assert tasks["RL"].algorithm.model.perception is one is tasks["dynamics"].algorithm.model.trunk
        assert np.isfinite(robot.evaluate(2, seed=1).mean_return)


@pytest.mark.parametrize("name", ["TD3", "REDQ", "DroQ", "TQC", "QRSAC", "CrossQ", "OAC", "MPO", "VMPO", "NPG", "TRPO", "PPG",
                                  "APPO", "CQL", "CRR", "IQL", "TD3BC", "PLAS", "BCQ", "MARWIL"])
def test_a_member_learns_from_a_vector_environment(name):
    """From whole rows of each of its environments, whose episodes have different lengths, with a time limit no end."""
    env = partial(SyncVectorEnv, [partial(Lane, lane, length) for lane, length in enumerate(LENGTHS)])
    with Robot(env, agent=VectorAgent, tasks={"RL": task_of(name, Lane(0, 2))}, seed=0) as robot:
        updates, moved = watched(robot)
        robot.run(StopAfterSteps(300))
        task = robot.tasks["RL"]
        assert task.learns > 5 and not task.skipped and moved["RL"] == set(numbers(robot.tasks))
        n_step, seen, cut = task.algorithm.window.n_step, set(), set()
        for rows, _ in updates["RL"]:
            obs, after, lengths = rows["obs"], rows["obs_next"], np.array(LENGTHS)[rows["obs"][:, 0].astype(int)]
            steps = rows["valid"] if n_step > 1 else np.ones(len(obs))
            assert (after[:, 0] == obs[:, 0]).all() and (after[:, 1] == obs[:, 1] + steps).all() and not rows["terminated"].any()
            assert (rows["truncated"] == (after[:, 1] == lengths)).all() and (after[:, 1] <= lengths).all()
            seen |= set(obs[:, 0].tolist())
            cut |= set(obs[rows["truncated"], 0].tolist())
        assert seen == cut == set(range(len(LENGTHS)))
        assert np.isfinite(robot.evaluate(3, seed=1).mean_return)


@pytest.mark.parametrize("name", ["PPG", "REINFORCE", "NPG", "TRPO", "APPO", "A2C", "VMPO", "MARWIL"])
def test_a_member_takes_no_illegal_action(name):
    """Not in hundreds of steps of an environment that raises on one. Each row that is learned from has the mask of its own step,
    though the environment has changed the array since, and the policy that learns is one over the legal actions, too."""
    with Robot(Narrow, tasks={"RL": task_of(name, Narrow)}, n_agents=2, seed=0) as robot:
        updates, moved = watched(robot)
        robot.run(StopAfterSteps(600))
        task = robot.tasks["RL"]
        assert task.learns > 20 and not task.skipped and moved["RL"] == set(numbers(robot.tasks))
        legal = []
        for rows, result in updates["RL"]:
            for when in ("obs", "obs_next"):
                assert (rows[f"{when}.mask"] == (rows[f"{when}.shown"] > 0)).all()
            assert rows["obs.mask"][np.arange(len(rows["act"])), rows["act"]].all()
            counts = rows["obs.mask"].sum(1)
            assert result["entropy"] < np.log(counts).mean() + 0.1  # minibatches may differ by a row; log 3 is far above
            legal += counts.tolist()
        assert len(legal) > 500 and set(legal) == {1, 2, 3}
        assert np.isfinite(robot.evaluate(5, seed=1).mean_return)
