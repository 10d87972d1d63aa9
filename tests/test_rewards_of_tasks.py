"""Rewards that one task gives another: by weight, with today's parameters, for rows of any shape, under every driver."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from aec_fakes import aec_of

from parl_like import ComputationTask, OffPolicyHelper, OnPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms.bc import BC
from parl_like.algorithms.curiosity import ICM, Counts
from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.evolution import ES
from parl_like.algorithms.mbpo import MBPO
from parl_like.algorithms.ppo import PPO
from parl_like.envs.games import TicTacToe
from parl_like.learning.algorithm import Algorithm, Window
from parl_like.learning.model import Model
from parl_like.models import MLPQ, MLPActorCritic, MLPActorQ, Novel
from parl_like.models.curiosity import ICMNet, read_fields

OBS, ACT = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), gym.spaces.Discrete(2)


class Reader(Model):
    """Reads the fields of a row that it is told of."""

    def __init__(self, obs, act, reads=("obs", "act", "obs_next")):
        super().__init__(obs, act)
        self.reads = reads

    def inputs(self):
        return read_fields(self, self.reads)


class Moved(Algorithm):
    """Rewards by the first number of what comes next, and the action."""

    losses = {}

    def predict(self, inputs):
        return {"reward": inputs.obs_next[:, 0] + 10.0 * inputs.act}


class Origin(Algorithm):
    losses = {}

    def predict(self, inputs):
        return {"reward": 100.0 * inputs.lane + inputs.episode}


class Silent(Algorithm):
    losses = {}

    def predict(self, inputs):
        return {"bonus": inputs.obs[:, 0]}


class Kept(PPO):
    """Notes the rewards that it learns from, and those of the environment, which are all 1."""

    def process(self, batch):
        self.learned_from = batch.rew.tolist()
        self.expected = (batch.obs_next[:, 0] + 10.0 * batch.act).tolist()
        self.origin = (100.0 * batch.lane + batch.episode).tolist() if "lane" in batch else []
        return super().process(batch)


def build(algorithm, rewards, giver=Moved, reads=("obs", "act", "obs_next"), helper=None, n=2, **options):
    spaces = {"obs": OBS, "act": ACT}
    model = MLPQ if issubclass(algorithm, DQN) else MLPActorCritic
    helper = helper or partial(OnPolicyHelper, unroll=8)
    func = create_algorithm_func(model, {**spaces, "hidden": (8,)}, algorithm, options)
    tasks = {"RL": ComputationTask(func, helper, rewards=rewards),
             "judge": ComputationTask(create_algorithm_func(Reader, {**spaces, "reads": reads}, giver, {}))}
    return Robot("CartPole-v1", tasks=tasks, n_agents=n, trace=True)


@pytest.mark.parametrize(("rewards", "own", "given"), [({"judge": 2.0}, 1.0, 2.0), ({"judge": 1.0, "env": 0.0}, 0.0, 1.0),
                                                      ({"judge": 0.0, "env": 3.0}, 3.0, 0.0)])
def test_rewards_are_the_weighted_sum(rewards, own, given):
    robot = build(Kept, rewards)
    robot.run(16)
    learned = robot.tasks["RL"].algorithm
    assert learned.learned_from
    np.testing.assert_allclose(learned.learned_from, [own + given * one for one in learned.expected], rtol=1e-6)
    robot.run(200)
    assert {float(one) % 1 for one in robot.recent_returns} == {0.0} and min(robot.recent_returns) >= 1  # the environment's own
    robot.close()


def test_fields_that_only_the_other_reads_are_stored():
    robot = build(Kept, {"judge": 1.0, "env": 0.0}, Origin, ("obs", "lane", "episode"))
    robot.run(64)
    learned = robot.tasks["RL"].algorithm
    assert learned.learned_from == learned.origin and max(learned.origin) >= 100
    robot.close()


def test_the_mean_of_the_rewards_is_reported():
    robot = build(Kept, {"judge": 2.0})
    rows = {"obs": np.zeros((4, 4), np.float32), "act": np.array([0, 1, 0, 1]), "rew": np.ones(4, np.float32),
            "obs_next": np.zeros((4, 4), np.float32), "terminated": np.zeros(4, bool), "truncated": np.zeros(4, bool),
            "last": np.array([False, False, False, True])}
    assert robot.tasks["RL"].learn(rows)["reward/judge"] == 5.0
    robot.close()


def test_off_policy_rows_are_paid_when_they_are_learned_from():
    class Seen(DQN):
        def process(self, batch):
            self.seen = batch.rew.tolist(), (batch.obs_next[:, 0] + 10.0 * batch.act).tolist()
            return super().process(batch)

    robot = build(Seen, {"judge": 0.5}, helper=partial(OffPolicyHelper, size=100, batch_size=8, warmup=8, learn_every=8))
    robot.run(64)
    rew, expected = robot.tasks["RL"].algorithm.seen
    np.testing.assert_allclose(rew, [1.0 + 0.5 * one for one in expected], rtol=1e-6)
    robot.close()


def test_rows_of_several_steps_are_refused():
    with pytest.raises(ValueError, match=r"DQN learns from 3 rewards a row, and those of judge are for single steps; .*n_step=1"):
        build(DQN, {"judge": 1.0}, helper=partial(OffPolicyHelper, size=100, batch_size=8, warmup=8), n_step=3)


@pytest.mark.parametrize(("rewards", "giver", "message"), [
    ({"judge": 1.0}, Silent, "task 'judge' predicts .*bonus.*; expected `reward`"),
    ({"juge": 1.0}, Moved, "did you mean 'judge'"),
    ({"judge": float("nan")}, Moved, "expected the weight of that task's rewards, a number"),
    ({"judge": True}, Moved, "expected the weight of that task's rewards, a number"),
])
def test_what_cannot_give_a_reward_is_refused(rewards, giver, message):
    with pytest.raises((ValueError, KeyError), match=message):
        build(Kept, rewards, giver)


@pytest.mark.parametrize("n_step", [1, 3])
def test_the_environment_s_own_rewards_have_a_weight_where_nobody_else_gives_any(n_step):
    class Seen(DQN):
        def process(self, batch):
            self.seen = batch.rew.tolist()
            return super().process(batch)

    robot = build(Seen, {"env": 3.0}, helper=partial(OffPolicyHelper, size=100, batch_size=8, warmup=8), n_step=n_step)
    robot.run(64)
    assert np.max(robot.tasks["RL"].algorithm.seen) == 3.0
    robot.close()


def test_random_rows_cannot_be_paid_by_first_visits():
    """What older episodes have seen is forgotten."""
    spaces = {"obs": OBS, "act": ACT}
    tasks = {"RL": ComputationTask(create_algorithm_func(MLPQ, spaces, DQN, {}), OffPolicyHelper, rewards={"curiosity": 1.0}),
             "curiosity": ComputationTask(create_algorithm_func(Novel, spaces, Counts, {"first_visits": True}), OnPolicyHelper)}
    with pytest.raises(ValueError, match="those of task 'curiosity' are for rows in order.*DQN learns from random ones"):
        Robot("CartPole-v1", tasks=tasks)


class Returns(DQN):
    """Learns from the returns of episodes."""

    def __init__(self, model):
        super().__init__(model)
        self.window = Window(in_order=False, fields=("to_go",))


@pytest.mark.parametrize(("algorithm", "model", "options"), [
    (Returns, MLPQ, {}), (BC, MLPActorCritic, {}), (ES, MLPActorCritic, {}), (MBPO, MLPActorQ, {}), (ICM, ICMNet, {})])
def test_who_learns_from_other_rewards_refuses_these(algorithm, model, options):
    spaces = {"obs": OBS, "act": ACT}
    tasks = {"RL": ComputationTask(create_algorithm_func(model, spaces, algorithm, options), rewards={"env": 2.0})}
    with pytest.raises(ValueError, match=f"{algorithm.__name__} learns from other numbers than the rewards of its rows"):
        Robot("CartPole-v1", tasks=tasks)


def test_imagined_rows_are_refused_and_real_ones_are_not():
    func = create_algorithm_func(MLPActorQ, {"obs": OBS, "act": ACT}, MBPO, {"real": 1.0})
    Robot("CartPole-v1", tasks={"RL": ComputationTask(func, OffPolicyHelper, rewards={"env": 2.0})}).close()


@pytest.mark.parametrize("driver", ["cooperative", "threads", "processes"])
def test_every_driver(driver):
    spaces, helper = {"obs": OBS, "act": ACT}, partial(OnPolicyHelper, unroll=8)
    tasks = {"RL": ComputationTask(create_algorithm_func(MLPActorCritic, {**spaces, "hidden": (8,)}, PPO, {"epochs": 1}), helper,
                                   rewards={"curiosity": 1.0}),
             "curiosity": ComputationTask(create_algorithm_func(Novel, spaces, Counts, {"first_visits": True}), helper)}
    with Robot("CartPole-v1", tasks=tasks, n_agents=2, driver=driver) as robot:
        robot.run(64)
        assert robot.tasks["curiosity"].rows_learned >= 32 and robot.tasks["RL"].learns >= 2


@pytest.mark.parametrize("curiosity", ["Counts", "ICM", "RND"])
@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_with_weight_0_the_policy_is_as_without(algorithm, curiosity):
    options = {"n_agents": 2, "total_steps": 200, "trace": True, "seed": 1, "hidden": (8,)}
    options |= {"epochs": 1, "unroll": 25} if algorithm == "PPO" else {"n_step": 1, "warmup": 50}
    named = {f"{algorithm}.{key}" if key == "epochs" else f"MLP{'ActorCritic' if algorithm == 'PPO' else 'Q'}.{key}"
             if key == "hidden" else key: value for key, value in options.items()}
    plain, curious = (Robot.of(algorithm, "CartPole-v1", **named, **more)
                      for more in ({}, {"curiosity": curiosity, "rewards": {"curiosity": 0.0}}))
    for robot in (plain, curious):
        robot.run(200)
    assert plain.trace.hexdigest() == curious.trace.hexdigest()
    weights = [list(robot.tasks["RL"].algorithm.model.parameters()) for robot in (plain, curious)]
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))
    assert curious.tasks["curiosity"].learns > 0
    for robot in (plain, curious):
        robot.close()


def test_one_line_makes_a_curious_robot_whose_two_tasks_are_set_by_name():
    robot = Robot.of("DQN", "CartPole-v1", curiosity="RND", rewards={"curiosity": 0.5}, **{"RND.lr": 1e-3, "DQN.lr": 1e-2})
    assert (robot.tasks["curiosity"].algorithm.lr, robot.tasks["RL"].algorithm.lr) == (1e-3, 1e-2)
    assert robot.tasks["RL"].rewards == {"curiosity": 0.5} and robot.tasks["RL"].window.n_step == 1
    robot.close()


@pytest.mark.parametrize(("algorithm", "env"), [("DQN", "CartPole-v1"), ("Rainbow", "CartPole-v1"), ("MPO", "Pendulum-v1")])
def test_a_curious_learner_takes_single_steps_by_default(algorithm, env):
    with Robot.of(algorithm, env, curiosity="Counts", warmup=32, batch_size=8) as robot:
        robot.run(64)
        assert robot.tasks["RL"].window.n_step == 1 and robot.tasks["RL"].learns


def test_other_weights_leave_that_of_curiosity_as_it_is():
    with Robot.of("PPO", "CartPole-v1", curiosity="Counts", rewards={"env": 10.0}) as robot:
        assert robot.tasks["RL"].rewards == {"curiosity": 1.0, "env": 10.0}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_rows_of_older_policies_carry_their_probability(mode):
    """Where learning goes on beside the agents there are such; PPO's ratio would be wrong without."""
    with Robot.of("PPO", "CartPole-v1", curiosity="Counts", mode=mode, n_agents=2, unroll=8) as robot:
        robot.run(32)
        assert [agent.helpers["RL"].store_policy for agent in robot.agents] == [mode == "async"] * 2


def test_a_task_that_would_never_learn_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'curiosity'.*there is an environment of several players"):
        Robot.of("PPO", partial(aec_of, TicTacToe()), curiosity="Counts")
    with pytest.raises(ValueError, match="'curiosity'.*there is the helper OfflineHelper"):
        Robot.of("DQN", "CartPole-v1", curiosity="Counts", helper="OfflineHelper", data=str(tmp_path))


def test_tasks_in_actors_reward_each_other_as_tasks_here_do():
    pytest.importorskip("ray")
    from parl_like.drivers.ray.tasks import Here, RayTask, TaskActor

    ran = []
    for inside in (False, True):
        spaces, helper = {"obs": OBS, "act": ACT}, partial(OnPolicyHelper, unroll=8, store_policy=False)
        tasks = {"RL": ComputationTask(create_algorithm_func(MLPActorCritic, {**spaces, "hidden": (8,)}, PPO, {"epochs": 1}),
                                       helper, rewards={"curiosity": 1.0, "env": 0.0}),
                 "curiosity": ComputationTask(create_algorithm_func(Novel, spaces, Counts, {"first_visits": True}), helper)}
        if inside:
            tasks = {name: RayTask(task, Here(TaskActor)) for name, task in tasks.items()}
        robot = Robot("CartPole-v1", tasks=tasks, n_agents=2, trace=True)
        robot.run(64)
        assert robot.tasks["RL"].window.fields[-3:] == ("lane", "episode", "step")
        ran.append((robot.trace.hexdigest(), {name: value.tolist() for name, value in
                                              robot.tasks["RL"].networks_state()["model"].items()}))
    assert ran[0] == ran[1]
