"""Robot: running, iterating, collecting, evaluating, saving and going on exactly."""

import copy
import pickle
from itertools import count, cycle

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_fakes import (
    ACT,
    POSITION,
    Corridor,
    Log,
    Noisy,
    Plain,
    Recorder,
    TwoLengths,
    a2c,
    dqn,
    ppo,
    robot_of,
    rows,
    same,
    weights,
)
from transport_fakes import until

from parl_like import (
    Agent,
    AgentHelper,
    Batch,
    ComputationTask,
    EpisodicHelper,
    Hook,
    OffPolicyHelper,
    OnPolicyHelper,
    PrioritizedReplayBuffer,
    Robot,
    VectorAgent,
    create_algorithm_func,
)
from parl_like.algorithms import A2C, DQN
from parl_like.data.transforms import Moments, ObservationNormalizer
from parl_like.drivers.workers.processes import Processes
from parl_like.drivers.workers.proxies import AlgorithmProxy
from parl_like.environment.hooks import EpisodeStats, EveryNSteps
from parl_like.environment.stop_conditions import StopAfterEpisodes, StopAfterIterations, StopAfterSteps, StopWhen
from parl_like.envs.wrappers import ActionRepeat
from parl_like.learning.algorithm import Linear
from parl_like.models import MLPQ, MLPActorCritic
from parl_like.robots.goal_agent import GOAL_EXTRAS, GoalAgent
from parl_like.run.description import kind_of
from parl_like.tasks.batch_rule import BatchRule
from parl_like.values.errors import AgentFailed, NotEnoughRows, Stopped, TaskFailed

GOALS = gym.spaces.Discrete(3)


class Goals(GoalAgent):
    """Goals are thirds of the walk's line."""

    goal_horizon = 4

    def goal_achieved(self, obs, goal):
        return int(np.clip((obs[0] + 1) * 1.5, 0, 2)) == goal


def hierarchical(**options):
    env = Noisy()
    above = gym.spaces.Dict({"obs": env.observation_space, "prev_goal": GOALS})
    below = gym.spaces.Dict({"obs": env.observation_space, "goal": GOALS})

    class Above(gym.Env):
        observation_space, action_space = above, GOALS

    class Below(gym.Env):
        observation_space, action_space = below, env.action_space

    tasks = {
        "goal": ComputationTask(dqn(Above, epsilon=0.3),
                                lambda: OffPolicyHelper(size=200, batch_size=4, learn_every=2, extras=GOAL_EXTRAS)),
        "RL": ComputationTask(ppo(Below), lambda: OnPolicyHelper(unroll=7)),
    }
    return Robot(Noisy, tasks=tasks, agent=Goals, trace=True, **options)


def off(**options):
    return lambda: OffPolicyHelper(**{"size": 300, "batch_size": 8, "learn_every": 4, **options})


BUILD = {
    "dqn": lambda **o: robot_of(dqn(Noisy, epsilon=Linear(0.9, 0.1, 100)), off(), Noisy, trace=True, **o),
    "dqn_n_step": lambda **o: robot_of(dqn(Noisy, n_step=3), off(warmup=20), Noisy, trace=True, **o),
    "ppo": lambda **o: robot_of(ppo(Noisy), lambda: OnPolicyHelper(unroll=8), Noisy, trace=True, **o),
    "a2c": lambda **o: robot_of(a2c(Noisy), lambda: OnPolicyHelper(unroll=5), Noisy, trace=True, **o),
    "episodic": lambda **o: robot_of(a2c(Noisy), lambda: EpisodicHelper(episodes=2), Noisy, trace=True, **o),
    "recurrent": lambda **o: robot_of(ppo(Noisy, recurrent=True), lambda: OnPolicyHelper(unroll=8), Noisy, trace=True, **o),
    "continuous": lambda **o: robot_of(
        ppo(lambda: Noisy(gym.spaces.Box(-1, 1, (2,), np.float32))), lambda: OnPolicyHelper(unroll=8),
        lambda: Noisy(gym.spaces.Box(-1, 1, (2,), np.float32)), trace=True, **o),
    "vector": lambda **o: robot_of(dqn(Noisy), off(), Noisy, agent=lambda: VectorAgent(3), trace=True, **o),
    "vector_recurrent": lambda **o: robot_of(
        ppo(Noisy, recurrent=True), lambda: OnPolicyHelper(unroll=6), Noisy, agent=lambda: VectorAgent(2), trace=True, **o),
    "hierarchical": hierarchical,
}


# --------------------------------------------------------------------------------------------------------------------- running


@pytest.mark.parametrize("kind", BUILD)
def test_the_seed_decides_everything(kind):
    def trace(seed):
        state = np.random.get_state()[1].copy(), torch.random.get_rng_state()
        with BUILD[kind](seed=seed, n_agents=2) as robot:
            robot.run(StopAfterSteps(80))
            assert (np.random.get_state()[1] == state[0]).all() and torch.equal(torch.random.get_rng_state(), state[1])
            return robot.trace_hash()

    assert trace(1) == trace(1) != trace(2)


def test_a_robot_runs_more_than_once():
    with BUILD["dqn"]() as robot:
        for k in (1, 2, 3):
            robot.run(StopAfterSteps(40))
            assert robot.env_steps == 40 * k and len(robot.buffers["RL"]) == 40 * k
        assert robot.tasks["RL"].learns == 29  # rows 8, 12, … 120


def test_no_threads_of_the_past_are_left_in_a_closed_robot():
    envs = []

    def make():
        envs.append(Corridor())
        return envs[-1]

    robot = robot_of(Recorder(), env=make, n_agents=2)
    robot.run(StopAfterSteps(3))
    robot.close()
    robot.close()
    assert all(env.closed for env in envs)


def test_a_run_of_n_iterations_is_n_calls_of_train_iter():
    for kind in ("ppo", "dqn", "hierarchical", "vector"):
        with BUILD[kind](seed=3, n_agents=2) as one, BUILD[kind](seed=3, n_agents=2) as other:
            one.run(StopAfterIterations(5))
            for _ in range(5):
                metrics = other.train_iter()
            assert weights(one) == weights(other) and one.counters() == other.counters()
            if kind != "hierarchical":
                assert metrics["RL/loss"] == other.metrics()["RL/loss"]


def test_parameters_do_not_change_while_the_agents_unroll():
    with BUILD["ppo"](n_agents=3) as robot:
        seen = []
        robot.run(StopAfterIterations(4), EveryNSteps(1, lambda robot: seen.append((robot.iterations, weights(robot)["RL"]))))
        assert len(seen) == 4 * 24 and len(set(seen)) == 4  # one hash per iteration
        assert len({hash_ for _, hash_ in seen}) == 4


def test_on_policy_every_step_is_learned_from_once_at_every_moment():
    with BUILD["ppo"](n_agents=3) as robot:
        for k in range(1, 4):
            robot.train_iter()
            counters = robot.counters()
            assert counters["env_steps"] == counters["rows/RL"] == 24 * k
            assert counters["iterations"] == k and counters["updates/RL"] == 4 * k  # 2 epochs × 2 minibatches


def test_off_policy_counts_steps_and_learned_rows_apart():
    with BUILD["dqn"]() as robot:
        robot.run(StopAfterSteps(100))
        assert robot.counters() == {"env_steps": 100, "time_steps": 100, "episodes": robot.episodes,
                                    "iterations": robot.iterations,
                                    "updates/RL": 24, "rows/RL": 24 * 8}


def test_train_iter_needs_a_learner_and_rounds():
    with robot_of(Recorder()) as robot, pytest.raises(ValueError, match="no helper of this robot learns; use collect"):
        robot.train_iter()
    with robot_of(Recorder(), off(), mode="async") as robot, pytest.raises(ValueError, match="this robot is async, where an "
                                                                                             "iteration is not"):
        robot.train_iter()


def test_an_agent_that_does_not_wait_is_the_updates_of_one_step_ahead():
    """Twelve rows a step are three updates: while they wait to be given the agent goes on, to the next three."""
    with robot_of(dqn(Noisy), off(), Noisy, agent=lambda: VectorAgent(12), mode="async") as robot:
        helper, counters = robot.agents[0].helpers["RL"], robot.wrappers["RL"].trainings.counters
        put, ahead = helper.comm.put_training, []
        helper.comm.put_training = lambda *request: ahead.append(len(ahead) - counters.batches) or put(*request)
        robot.run(StopAfterSteps(360))
        assert ahead[:3] == [0, 1, 2] and max(ahead) == 2
        assert len(ahead) == 3 * 29  # the step that ends the run is not learned from


def test_an_async_robot_learns_and_stops_where_it_should():
    with robot_of(dqn(Noisy), off(), Noisy, n_agents=2, mode="async") as robot:
        robot.run(StopAfterSteps(200))
        assert robot.env_steps == 200 and robot.tasks["RL"].learns > 20


@pytest.mark.parametrize("build", [
    lambda: robot_of(Recorder(), n_agents=0),
    lambda: robot_of(Recorder(), mode="sometimes"), lambda: robot_of(Recorder(), driver="cooperativ"),
    lambda: robot_of(Recorder(), env=Corridor(), n_agents=2),
    lambda: robot_of(Recorder(), env=gym.vector.SyncVectorEnv([Corridor]), agent=VectorAgent, n_agents=2),
])
def test_arguments_that_make_no_robot_are_refused(build):
    with pytest.raises(ValueError, match="expected at least 1|expected 'sync' or 'async'|did you mean 'cooperative'|cannot "
                                         "share one environment"):
        build()


def test_arguments_of_wrong_types_are_refused():
    with pytest.raises(TypeError, match="task 'RL' is AlgorithmFactory; expected ComputationTask"):
        Robot(Corridor, tasks={"RL": dqn()})
    with pytest.raises(TypeError, match="agent is Agent; expected a function that makes one"):
        Robot(Corridor, tasks={}, agent=Agent())
    with pytest.raises(TypeError, match="agent\\(\\) gave Corridor; expected an Agent"):
        Robot(Corridor, tasks={}, agent=Corridor)


# ------------------------------------------------------------------------------------------------------------- iterate, epochs


def test_iterate_stops_at_the_first_iteration_that_is_far_enough():
    with BUILD["ppo"](n_agents=2) as robot:
        assert list(robot.iterate(40)) == [1, 2, 3] and robot.env_steps == 48
        assert list(robot.iterate(48)) == []
        iterations = robot.iterate(200)
        next(iterations)
        iterations.close()  # left in the middle
        assert list(robot.iterate(80)) == [5]


def test_robots_that_are_advanced_together_are_as_if_apart():
    def stats(robot):
        return [(epoch, stat["eval/score"], stat["RL/loss"], info["env_steps"]) for epoch, stat,
                info in robot.epochs(3, 60, evaluate_episodes=2)]

    with BUILD["dqn"](seed=1, n_agents=2) as a, BUILD["ppo"](seed=2) as b:
        apart = stats(a), stats(b)
        hashes = a.trace_hash(), b.trace_hash()
    with BUILD["dqn"](seed=1, n_agents=2) as a, BUILD["ppo"](seed=2) as b:
        together = ([], [])
        for left, right in zip(a.epochs(3, 60, evaluate_episodes=2), b.epochs(3, 60, evaluate_episodes=2), strict=True):
            for found, (epoch, stat, info) in zip(together, (left, right), strict=True):
                found.append((epoch, stat["eval/score"], stat["RL/loss"], info["env_steps"]))
        assert together == apart and (a.trace_hash(), b.trace_hash()) == hashes


def test_epochs_report_the_best_and_stop_early():
    with BUILD["dqn"]() as robot:
        seen = []
        for epoch, stats, info in robot.epochs(9, 20, evaluate_episodes=1, stop=lambda mean: len(seen) == 2):
            seen.append((epoch, info["env_steps"]))
            assert info["best_epoch"] <= epoch and info["best_score"] >= stats["eval/score"]
        assert [epoch for epoch, _ in seen] == [1, 2] and seen[0][1] >= 20
        with pytest.raises(ValueError, match="n_epochs is 0"):
            next(robot.epochs(0, 20))


def test_epochs_end_before_the_first_one_where_nothing_is_left_to_do(caplog):
    with BUILD["dqn"]() as robot:
        asked = []
        assert list(robot.epochs(9, 20, evaluate_episodes=1, stop=lambda score: asked.append(score) or True)) == []
        assert robot.env_steps == 0 and len(asked) == 1 and "never learned" not in caplog.text



class Heard(Hook):
    def __init__(self):
        self.log = []

    def pre_experiment(self, robot):
        self.log.append("begin")

    def post_act(self, agent):
        self.log.append(agent.robot.env_steps)

    def post_experiment(self, robot):
        self.log.append("end")


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
def test_epochs_have_hooks_as_runs_have(driver):
    with BUILD["dqn"](driver=driver) as robot:
        one, other = Heard(), EpisodeStats()
        for epoch, _, info in robot.epochs(2, 20, evaluate_episodes=3, hooks=one + other):
            assert one.log == ["begin", *range(1, info["env_steps"] + 1)], "acts of evaluations are not of the run"
            if epoch == 1:
                robot.run(StopAfterSteps(2))  # one of its own, which the hooks do not hear
                one.log += range(info["env_steps"] + 1, robot.env_steps + 1)
        assert one.log == ["begin", *range(1, robot.env_steps + 1), "end"] and other.returns
        epochs = robot.epochs(2, 20, evaluate_episodes=1, hooks=one)
        next(epochs)
        epochs.close()
        assert one.log[-1] == "end", "left in the middle"
        with pytest.raises(TypeError, match="is no hook"):
            robot.epochs(2, 20, hooks=print)


# --------------------------------------------------------------------------------------------------------------------- collect


def test_collecting_steps_leaves_the_agents_where_they_are():
    with robot_of(Recorder(), off(), env=lambda: Corridor(5), n_agents=2) as robot:
        first = robot.collect(n_step=6)
        assert (first.n_steps, first.n_episodes) == (6, 0)
        second = robot.collect(n_step=6)
        assert (second.n_steps, second.lengths) == (6, [5, 5])
        assert rows(robot)["obs"][:, 0].tolist() == [0, 1, 2, 3, 4, 0]
        robot.run(StopAfterSteps(2))  # and a run goes on there
        assert rows(robot)["obs"][:, 0].tolist() == [0, 1, 2, 3, 4, 0, 1]


def test_an_episode_that_ends_with_the_last_step_counts():
    with robot_of(Recorder(), off(), env=lambda: Corridor(5)) as robot:
        assert robot.collect(n_step=5).lengths == [5] and robot.collect(n_step=10).lengths == [5, 5]


def test_collecting_episodes_begins_anew_and_has_quotas():
    with robot_of(Recorder(), off(), env=lambda: Corridor(5), n_agents=2) as robot:
        robot.collect(n_step=4)
        found = robot.collect(n_episode=5)
        assert found.lengths == [5] * 5 and found.n_steps == 25 and [agent.steps for agent in robot.agents] == [2 + 15, 2 + 10]
        stored = rows(robot)
        assert stored["truncated"][:3].tolist() == [False, True, False]  # a cut where the first collection ended


def test_the_mean_of_collected_episodes_is_not_biased_to_short_ones():
    """Lengths 1 and 9: the mean is 5. Of the first 200 to end among 20 agents it would be about 2.8."""
    with robot_of(Recorder(), off(learn_every=1000), env=TwoLengths, n_agents=20) as robot:
        found = robot.collect(n_episode=200)
        assert found.n_episodes == 200 and abs(found.mean_length - 5) < 3 * 4 / np.sqrt(200)
        assert found.mean_return == found.mean_length and found.min_return == 1 and found.max_return == 9
        assert found.std_return == pytest.approx(4, abs=0.3)


def test_nothing_is_learned_while_collecting():
    for kind in ("dqn", "vector", "hierarchical"):
        with BUILD[kind](n_agents=2) as robot:
            before = weights(robot)
            robot.collect(n_step=12)
            assert weights(robot) == before and all(task.learns == 0 for task in robot.tasks.values())
            robot.run(StopAfterSteps(6))
            assert all(task.learns <= 4 for task in robot.tasks.values())  # no backlog


def test_steps_are_rounded_up_with_a_warning():
    with robot_of(Recorder(), off(), n_agents=4) as robot, pytest.warns(UserWarning, match="n_step 10 is not a multiple of 4 "
                                                                                           "environments"):
        assert robot.collect(n_step=10).n_steps == 12


@pytest.mark.parametrize(("options", "message"), [
    ({}, "exactly one of n_step and n_episode"), ({"n_step": 1, "n_episode": 1}, "exactly one of n_step and n_episode"),
    ({"n_step": 0}, "n_step is 0; expected at least 1"), ({"n_episode": -1}, "n_episode is -1"),
])
def test_collect_wants_one_number(options, message):
    with robot_of(Recorder(), off()) as robot, pytest.raises(ValueError, match=message):
        robot.collect(**options)


def test_a_robot_without_environment_cannot_collect():
    with Robot(tasks={"RL": ComputationTask(Recorder(), off())}) as robot, pytest.raises(ValueError, match="this robot has no "
                                                                                                           "environment"):
        robot.collect(n_step=1)


# ---------------------------------------------------------------------------------------------------------------- custom loops


def test_an_on_policy_loop_by_hand():
    with robot_of(Recorder(), lambda: OnPolicyHelper(unroll=10), env=lambda: Corridor(4), n_agents=2) as robot:
        for k in range(3):
            assert robot.collect(n_step=20).n_steps == 20
            assert robot.update("RL") == {"loss": 1.0} or k
        updates = robot.tasks["RL"].algorithm.updates_seen
        per_agent = [p for update in updates for p in update["obs"][:10, 0].tolist()]
        assert per_agent == [t % 4 for t in range(30)] and [int(update["last"].sum()) for update in updates] == [6, 6, 6]
        assert robot.update("RL") == {} and robot.metrics()["RL/loss"] > 0
        with pytest.raises(ValueError, match="learns on-policy, from all rows since the last time; leave batch_size out"):
            robot.collect(n_step=2)
            robot.update("RL", 5)


def test_collecting_more_than_an_on_policy_helper_holds_is_refused():
    with robot_of(Recorder(), lambda: OnPolicyHelper(unroll=4)) as robot:
        robot.collect(n_step=4)
        with pytest.raises(AgentFailed, match="agent 0, task 'RL': collected more than 4 steps, all that this helper holds"):
            robot.collect(n_step=1)


def test_what_was_collected_counts_for_the_next_unroll():
    with robot_of(Recorder(), lambda: OnPolicyHelper(unroll=4), env=lambda: Corridor(100)) as robot:
        robot.collect(n_step=4)
        robot.train_iter()
        (update,) = robot.tasks["RL"].algorithm.updates_seen
        assert update["obs"][:, 0].tolist() == [0, 1, 2, 3, 4]


def test_an_off_policy_loop_by_hand():
    with robot_of(Recorder(), off(), env=lambda: Corridor(4)) as robot:
        assert robot.update("RL") == {} and robot.update("RL", 4) == {}
        robot.collect(n_step=6)
        robot.update("RL")
        assert robot.tasks["RL"].algorithm.updates_seen[0]["obs"][:, 0].tolist() == [0, 1, 2, 3, 0, 1]  # all, in time order
        robot.update("RL", 4)
        assert len(robot.tasks["RL"].algorithm.updates_seen[1]["rew"]) == 4
        with pytest.raises(NotEnoughRows, match="agent 0, task 'RL': learning needs 7 rows, the buffer has 6"):
            robot.update("RL", 7)
        with pytest.raises(KeyError, match="no task 'R'; did you mean 'RL'"):
            robot.update("R")


def test_a_loop_of_collect_and_update_learns_cartpole():
    """Random play lasts 21 steps; after 30 × (100 steps, 25 updates), an episode must last 60 in the mean of three seeds."""
    env = gym.make("CartPole-v1")
    func = create_algorithm_func(MLPQ, dict(obs=env.observation_space, act=env.action_space, hidden=[64, 64]),
                                 DQN, dict(gamma=0.99, n_step=3, lr=2e-3, target_period=50, epsilon=0.1))
    scores = []
    for seed in range(3):
        with Robot("CartPole-v1", tasks={"RL": ComputationTask(func, off(size=10_000))}, seed=seed) as robot:
            for _ in range(30):
                robot.collect(n_step=100)
                for _ in range(25):
                    robot.update("RL", 64)
            scores.append(robot.evaluate(5).mean_return)
    assert np.mean(scores) >= 60


def test_an_evaluation_without_any_helper_in_six_lines():
    with robot_of(dqn(lambda: gym.make("CartPole-v1")), env="CartPole-v1") as robot:
        env, done, total, task = gym.make("CartPole-v1"), False, 0.0, robot.tasks["RL"]
        obs, _ = env.reset(seed=0)
        while not done:
            act = int(task.predict({"obs": obs[None]}, "test")["q"].argmax(1)[0])
            obs, rew, terminated, truncated, _ = env.step(act)
            total, done = total + rew, terminated or truncated
        assert total >= 8


def test_a_state_of_open_episodes_is_told_of(caplog):
    with BUILD["dqn"](seed=4, n_agents=2) as robot:
        robot.state_dict()
        robot.run(StopAfterSteps(20))
        robot.acting_state()
        assert not [one for one in caplog.records if "state_dict" in one.message]
        robot.state_dict()
        robot.checkpoint_boundary()
        robot.state_dict()
        assert len([one for one in caplog.records if "Call checkpoint_boundary() first" in one.message]) == 1


# ------------------------------------------------------------------------------------------------------------------- evaluating


@pytest.mark.parametrize("kind", BUILD)
def test_an_evaluation_is_repeatable_and_leaves_no_trace(kind):
    def go(evaluating):
        with BUILD[kind](seed=4, n_agents=2) as robot:
            robot.run(StopAfterSteps(60))
            if evaluating:
                before = copy.deepcopy(robot.state_dict())
                first = robot.evaluate(5)
                assert robot.evaluate(5).returns == first.returns and robot.evaluate(5, seed=9).returns != first.returns
                assert first.n_episodes == 5 and same(robot.state_dict(), before)
            for _ in robot.iterate(120):
                if evaluating:
                    robot.evaluate(1)  # also between iterations, while agents are in mid-episode
            return robot.trace_hash(), robot.counters()

    assert go(True) == go(False)


def test_an_evaluation_inside_a_run():
    results = []
    with BUILD["dqn"](seed=4, n_agents=3) as robot, BUILD["dqn"](seed=4, n_agents=3) as other:
        robot.run(StopAfterSteps(100), EveryNSteps(30, lambda robot: results.append(robot.evaluate(2).mean_return)))
        other.run(StopAfterSteps(100))
        assert len(results) == 3 and robot.trace_hash() == other.trace_hash()


def test_an_evaluation_that_is_stopped_has_the_episodes_that_were_over():
    """Two evaluators, episodes of 5 steps; after 3 of 10 it is enough."""
    with robot_of(Recorder(), env=lambda: Corridor(5), n_agents=2) as robot:
        seen = robot.evaluate(10, stop=StopAfterEpisodes(3))
        assert (seen.n_episodes, seen.returns, seen.n_steps) == (3, [5.0] * 3, 10 + 9)
        assert robot.evaluate(4).n_episodes == 4 and not robot.stop_requested
        begun = count()
        assert robot.evaluate(10**9, stop=StopWhen(lambda pool: next(begun) == 7)).n_episodes == 0  # in mid-episode
        robot.run(StopAfterSteps(10))


def test_an_evaluation_has_environments_of_its_own_where_the_robot_says_so():
    made = []

    def held_out():
        made.append(Corridor(2))
        return made[-1]

    with robot_of(Recorder(), env=lambda: Corridor(7), eval_env=held_out, n_agents=2) as robot:
        assert robot.evaluate(4).lengths == [2] * 4 and len(made) == 2 and all(env.closed for env in made)
        assert robot.evaluate(2, env=lambda: Corridor(3)).lengths == [3] * 2  # this call's own goes before it
        assert robot.collect(n_episode=2).lengths == [7] * 2 and len(made) == 2


def test_the_trace_covers_networks_that_are_no_models():
    class Counting(Recorder):
        def __init__(self):
            super().__init__()
            self.bn = torch.nn.BatchNorm1d(1, affine=False)

        def networks(self):
            return {**super().networks(), "statistics": self.bn}

    with robot_of(Counting(), trace=True) as robot:
        robot.run(StopAfterSteps(5))
        before = robot.trace_hash()
        robot.tasks["RL"].algorithm.bn.running_mean += 1
        assert robot.trace_hash() != before


def test_evaluating_is_greedy():
    with robot_of(dqn(epsilon=1.0), off(), env=lambda: Corridor(30)) as robot:
        acts = []

        class Watched(Corridor):
            def step(self, act):
                acts.append(act)
                return super().step(act)

        robot.evaluate(1, env=lambda: Watched(30))
        q = robot.tasks["RL"].predict({"obs": np.arange(30, dtype=np.float32)[:, None]}, "test")["q"]
        assert acts == q.argmax(1).tolist()


def test_an_environment_that_is_lent_is_not_closed():
    env = Corridor(3)
    with robot_of(Recorder(), env=lambda: Corridor(2), n_agents=3) as robot:
        assert robot.evaluate(4, env=env).lengths == [3] * 4 and env.closed == 0
        assert robot.evaluate(2).lengths == [2, 2]


def test_the_training_environment_is_made_again_for_an_evaluation_or_refused():
    made = gym.make("FrozenLake-v1", is_slippery=False, map_name="8x8")
    model = dqn(lambda: made)
    with robot_of(model, env=made) as robot:
        pool = robot.evaluator.pool(1, None, robot.evaluator.source(None), None, None)
        assert pool.agents[0].env.unwrapped is not made.unwrapped
        assert pool.agents[0].env.unwrapped.desc.shape == (8,
                                                           8) and len(pool.agents[0].env.unwrapped.P[0][1]) == 1  # not slippery
        pool.close()
    for env, agent in ((Corridor(), Agent), (gym.make_vec("CartPole-v1", 2), VectorAgent)):
        with robot_of(dqn(lambda: env) if agent is Agent else dqn(lambda: gym.make("CartPole-v1")), env=env,
                      agent=agent) as robot:
            with pytest.raises(ValueError, match="is not registered with gymnasium, so it cannot be made a second time"):
                robot.evaluate(1)
    with robot_of(Recorder(), env=Corridor()) as robot:
        with pytest.raises(ValueError, match="is not registered with gymnasium, so it cannot be made a second time; give the "
                                             "robot a factory"):
            robot.evaluate(1)
        assert robot.evaluate(1, env=Corridor(2)).lengths == [2]
    with Robot(tasks={"RL": ComputationTask(Recorder())}) as robot, pytest.raises(ValueError, match="no environment; give one "
                                                                                                    "as env="):
        robot.evaluate(1)


@pytest.mark.parametrize("vector", [False, True])
def test_a_picture_of_an_episode(tmp_path, vector):
    from PIL import Image

    gym.register("Corridor-v0", lambda **options: Corridor(**options), kwargs={"length": 6})
    try:
        agent = (lambda: VectorAgent(2)) if vector else Agent
        with robot_of(Recorder(), env=lambda: gym.make("Corridor-v0", length=4), agent=agent) as robot:
            assert robot.play(tmp_path / "film.gif") == 4.0  # the length that was asked for, not the registered one
            assert Image.open(tmp_path / "film.gif").n_frames == 5
    finally:
        gym.registry.pop("Corridor-v0")
    with robot_of(Recorder(), env=Corridor()) as robot, pytest.raises(ValueError, match="not registered"):
        robot.play(tmp_path / "film.gif")


# ------------------------------------------------------------------------------------------------------------------------ modes


def test_modes_are_readable_inside_the_calls_and_restored():
    with robot_of(Recorder(), off(learn_every=4, batch_size=1)) as robot:
        algorithm = robot.tasks["RL"].algorithm
        assert algorithm.mode == "test"
        algorithm.modes.clear()
        robot.run(StopAfterSteps(4))
        assert algorithm.modes == [("predict", "collect")] * 4 + [("process", "update"), ("learn", "update")]
        algorithm.modes.clear()
        robot.evaluate(1)
        assert set(algorithm.modes) == {("predict", "test")} and algorithm.mode == "test"


def test_modes_are_restored_after_an_exception():
    class Failing(Recorder):
        def learn(self, batch):
            raise OSError("no update")

    with robot_of(Failing(), off(learn_every=1, batch_size=1)) as robot:
        with pytest.raises(TaskFailed, match="no update"):
            robot.run(StopAfterSteps(4))
        assert robot.tasks["RL"].algorithm.mode == "test"
        with pytest.raises(OSError, match="no update"):
            robot.update("RL", 1)
        assert robot.tasks["RL"].algorithm.mode == "test"


# --------------------------------------------------------------------------------------------------------------- save and resume


@pytest.mark.parametrize(("seed", "n_agents", "on_disk"), [(0, 1, False), (1, 3, True)])
@pytest.mark.parametrize("kind", BUILD)
def test_a_run_that_was_saved_loaded_and_resumed_is_the_run_that_was_not(kind, seed, n_agents, on_disk, tmp_path):
    stops = (60, 120, 160)
    with BUILD[kind](seed=seed, n_agents=n_agents) as whole:
        for stop in stops:
            for _ in whole.iterate(stop):
                pass
            whole.checkpoint_boundary()
        expected = whole.trace_hash(), whole.counters(), weights(whole)
    state = b""
    for stop in stops:
        begun = stop > stops[0]
        with BUILD[kind](seed=seed + 7 * begun, n_agents=n_agents) as part:  # another seed: everything must come from the file
            if begun:
                part.load(tmp_path / "state") if on_disk else part.load_state_dict(pickle.loads(state))
            for _ in part.iterate(stop):
                pass
            if on_disk:
                part.save(tmp_path / "state")
            else:
                part.checkpoint_boundary()
                state = pickle.dumps(part.state_dict())
            found = part.trace_hash(), part.counters(), weights(part)
    assert found == expected


@pytest.mark.parametrize("steps", [63, 64, 65, 128])
def test_a_resumed_run_goes_on_inside_and_at_the_edges_of_a_block_of_noise(steps, tmp_path):
    def build(seed):
        return robot_of(dqn(epsilon=0.5), off(), env=lambda: Corridor(end=None), trace=True, seed=seed)

    with build(0) as whole:
        whole.run(StopAfterSteps(steps))
        whole.checkpoint_boundary()
        whole.run(StopAfterSteps(100))
        expected = whole.trace_hash()
    with build(0) as first:
        first.run(StopAfterSteps(steps))
        first.save(tmp_path / "state")
    with build(5) as second:
        second.load(tmp_path / "state")
        second.run(StopAfterSteps(100))
        assert second.trace_hash() == expected


@pytest.mark.parametrize("kind", BUILD)
def test_two_runs_are_resumed_as_two_runs(kind):
    with BUILD[kind](seed=2, n_agents=2) as whole:
        whole.run(StopAfterSteps(77))
        whole.checkpoint_boundary()
        whole.run(StopAfterSteps(77))
        expected = whole.trace_hash()
    with BUILD[kind](seed=2, n_agents=2) as first:
        first.run(StopAfterSteps(77))
        first.checkpoint_boundary()
        state = pickle.dumps(first.state_dict())
    with BUILD[kind](seed=3, n_agents=2) as second:
        second.load_state_dict(pickle.loads(state))
        second.run(StopAfterSteps(77))
        assert second.trace_hash() == expected


def test_a_checkpoint_in_mid_collection_is_resumed_exactly(tmp_path):
    """The agents are parked in mid-episode: their rows need a cut, and they must go on after it."""
    with BUILD["dqn"](seed=1, n_agents=2) as whole, BUILD["dqn"](seed=9, n_agents=2) as second:
        whole.collect(n_step=34)
        whole.save(tmp_path / "state")
        assert rows(whole)["truncated"][-1] or rows(whole)["terminated"][-1]
        second.load(tmp_path / "state")
        for robot in (whole, second):
            robot.collect(n_step=20)
            robot.run(StopAfterSteps(50))
        assert whole.trace_hash() == second.trace_hash() and whole.env_steps == 34 + 20 + 50


def test_time_steps_are_saved(tmp_path):
    build = lambda: robot_of(Recorder(), off(), env=lambda: ActionRepeat(Corridor(12), 5))  # noqa: E731
    with build() as first, build() as second:
        first.run(StopAfterEpisodes(1))
        first.save(tmp_path / "state")
        second.load(tmp_path / "state")
        assert second.counters()["time_steps"] == 12 and second.counters()["env_steps"] == 3


@pytest.mark.parametrize(("other", "message"), [
    (lambda: BUILD["dqn"](n_agents=3), "the saved state has 2 agents, this robot 3; set n_agents"),
    (lambda: BUILD["hierarchical"](n_agents=2), "build the robot as it was saved"),
    (lambda: robot_of(dqn(Noisy, hidden=(9,)), off(), Noisy, n_agents=2), "task 'RL', network 'model': the checkpoint is of "
                                                                          "another model: 'net.layers.0.bias' is"),
    (lambda: robot_of(dqn(Noisy), off(size=400), Noisy, n_agents=2), "the saved size is 300, this buffer's 400"),
])
def test_a_state_of_another_robot_is_refused_by_name(other, message, tmp_path):
    with BUILD["dqn"](n_agents=2) as robot:
        robot.run(StopAfterSteps(20))
        robot.save(tmp_path / "state")
    with other() as wrong, pytest.raises(ValueError, match=message):
        wrong.load(tmp_path / "state")


# --------------------------------------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_agents_in_threads_collect_learn_save_and_go_on(mode, tmp_path):
    """The same verbs; only the order of events is the threads' own."""
    def build():
        return robot_of(dqn(Noisy), off(size=10_000), Noisy, n_agents=3, driver="threads", mode=mode)

    with build() as robot:
        assert robot.collect(n_step=30).n_steps == 30 and robot.tasks["RL"].learns == 0
        assert robot.collect(n_episode=5).n_episodes == 5
        for _ in robot.iterate(robot.env_steps + 100):
            pass
        assert robot.tasks["RL"].learns > 5
        robot.save(tmp_path / "state")
        before = robot.counters()
        assert before["env_steps"] == sum(agent.steps for agent in robot.agents) == len(robot.buffers["RL"])
        for lane in range(3):
            assert rows(robot, lane=lane)["truncated"][-1] or rows(robot, lane=lane)["terminated"][-1]
        robot.run(StopAfterEpisodes(5))
        assert robot.evaluate(3).n_episodes == 3
    with build() as other:
        other.load(tmp_path / "state")
        assert other.counters() == before
        other.run(StopAfterEpisodes(2))


# --------------------------------------------------------------------------------------------------------------------- various


def test_metrics_are_flat_numbers():
    with BUILD["dqn"]() as robot:
        robot.run(StopAfterSteps(100))
        metrics = robot.metrics()
        assert all(isinstance(value, float) for value in metrics.values())
        assert {"return/mean", "return/max", "return/last", "episode/length", "RL/loss", "RL/predict/mean_batch",
                "env_steps"} <= metrics.keys()
        assert metrics["return/mean"] == pytest.approx(np.mean(robot.recent_returns))


def test_metrics_have_rates_norms_of_gradients_and_how_agents_explore():
    """Of several losses each its own; a schedule's number is that of the next act."""
    with Robot.of("DQN", Corridor, seed=0, n_agents=1, warmup=8, batch_size=8, epsilon=Linear(1.0, 0.0, 100),
                  lr=Linear(0.01, 0.0, 100), max_grad_norm=None) as robot:
        assert robot.metrics()["RL/act/epsilon"] == pytest.approx(0.99) and "RL/learn/lr" not in robot.metrics()
        robot.run(50)
        metrics, task = robot.metrics(), robot.tasks["RL"]
        steps = task.algorithm.updates
        assert metrics["RL/act/epsilon"] == pytest.approx(1 - (50 + 1) / 100, abs=0.011)  # its next act may be drawn already
        assert metrics["RL/learn/lr"] == pytest.approx(0.01 * (1 - (steps - 1) / 100))
        gradients = [p.grad for p in task.algorithm.model.parameters()]
        assert metrics["RL/learn/grad_norm"] == pytest.approx(float(torch.stack([g.norm() for g in gradients]).norm()), rel=1e-4)
    with Robot.of("TD3", "Pendulum-v1", seed=0, warmup=8, batch_size=8, delay=1) as robot:
        robot.run(12)
        metrics = robot.metrics()
        assert metrics["RL/act/std"] == 0.1
        assert all(metrics[f"RL/learn/{name}.{loss}"] > 0 for name in ("lr", "grad_norm") for loss in ("critic", "actor"))


def test_an_agent_may_use_the_tasks_by_itself():
    """Any order of tasks is legal, as is data from one to the other: it goes through the agent."""
    class Chain(Agent):
        def run_one_episode(self):
            obs, _ = self.env.reset()
            done = False
            while not done:
                guess = self.helpers["look"].predict(obs)
                act = self.helpers["act"].predict({"obs": obs, "guess": guess.guess})
                obs, _, terminated, truncated, _ = self.env.step(act)
                done = terminated or truncated

    class Look(Recorder):
        def predict(self, inputs):
            return {"guess": inputs.obs * 2}

    space = gym.spaces.Dict({"obs": POSITION, "guess": POSITION})
    act = Recorder(Plain(space, ACT), lambda obs: ((obs["guess"] == 2 * obs["obs"])[:, 0]).long())
    with Robot(Corridor, tasks={"look": ComputationTask(Look()), "act": ComputationTask(act)}, agent=Chain, n_agents=2) as robot:
        robot.run(StopAfterEpisodes(4))
        assert set(robot.agents[0].env.log[1:6]) == {1}


def test_a_stop_that_looks_at_the_robot():
    log = Log()
    with BUILD["ppo"]() as robot:
        robot.run(StopWhen(lambda robot: robot.tasks["RL"].learns >= 2), log)
        assert robot.tasks["RL"].learns == 2 and robot.env_steps == 17


def test_batches_and_factories_survive_copies():
    with BUILD["dqn"]() as robot:
        robot.run(StopAfterSteps(10))
        batch = robot.buffers["RL"][:]
        assert isinstance(batch, Batch) and copy.deepcopy(batch) == batch


# ------------------------------------------------------------------------------------------------- where episodes lie; vectors


@pytest.mark.parametrize("n_agents", [1, 3])
def test_a_collection_says_where_its_episodes_begin(n_agents):
    """T54. Every idx is a first row: the row before it ends another episode, and `lengths` rows follow it."""
    with robot_of(Recorder(), lambda: OnPolicyHelper(unroll=200), n_agents=n_agents) as robot:
        seen = robot.collect(n_episode=2 * n_agents)
        buffer = robot.buffers["RL"]
        assert len(seen.idxs) == len(seen.lengths) == 2 * n_agents
        done = buffer.done
        for start, length in zip(seen.idxs, seen.lengths, strict=True):
            rows = np.arange(start, start + length)
            assert done[rows].tolist() == [False] * (length - 1) + [True]
            assert start % buffer.lane_size == 0 or done[start - 1]
        assert robot.evaluate(2).idxs == [-1, -1]


class TwoRewards(Corridor):
    """Reward (1, number of the step)."""

    reward_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def step(self, act):
        obs, _, *rest = super().step(act)
        self.count += 1
        return obs, np.array([1.0, self.count], np.float32), *rest

    def reset(self, **options):
        self.count = 0
        return super().reset(**options)


def test_vector_rewards_are_stored_summed_and_averaged_by_component(tmp_path):
    """R3: the environment says how many kinds there are, and the algorithm combines them."""
    class Weighted(A2C):
        one_reward = False

        def process(self, batch):
            batch.rew = batch.rew @ torch.tensor([1.0, 10.0], dtype=batch.rew.dtype)
            return super().process(batch)

    def make():
        func = create_algorithm_func(MLPActorCritic, dict(obs=POSITION, act=ACT, hidden=[8]), Weighted, {})
        return robot_of(func, lambda: OnPolicyHelper(unroll=200), env=TwoRewards, n_agents=2)

    with make() as robot:
        seen = robot.collect(n_episode=4)
        assert robot.buffers["RL"].columns["rew"].shape[1:] == (2,)
        expected = np.array([[n, n * (n + 1) / 2] for n in seen.lengths])
        np.testing.assert_allclose(np.array(seen.returns), expected)
        np.testing.assert_allclose(seen.mean_return, expected.mean(0))
        assert "±" in repr(seen)
        robot.update("RL")
        robot.save(tmp_path / "saved")
        with make() as other:
            other.load(tmp_path / "saved")
            np.testing.assert_allclose(np.array(other.recent_returns), np.array(robot.recent_returns))
            assert other.metrics()["return/mean"] == robot.metrics()["return/mean"]


def test_a_checkpoint_of_another_model_names_all_that_differs_or_is_loaded_in_part(tmp_path):
    """F40."""
    with robot_of(dqn(hidden=(8,)), lambda: OffPolicyHelper(size=50, batch_size=4)) as robot, robot_of(
        dqn(hidden=(9,)), lambda: OffPolicyHelper(size=50, batch_size=4)
    ) as other:
        robot.save(tmp_path / "saved")
        with pytest.raises(ValueError) as caught:
            other.load(tmp_path / "saved")
        for text in ("'net.layers.0.weight' is (8, 1) there and (9, 1) here", "'net.layers.1.weight' is (2, 8) there and (2, 9) "
                                                                              "here"):
            assert text in str(caught.value)
        before = weights(other)["RL"]
        left = other.load(tmp_path / "saved", partial=True)
        assert left == [f"RL {net} net.layers.{key}" for net in ("model", "target") for key in ("0.bias", "0.weight", "1.weight")]
        mine, theirs = (r.tasks["RL"].algorithm.model.net.layers for r in (other, robot))
        assert torch.equal(mine[1].bias, theirs[1].bias) and weights(other)["RL"] != before
        assert other.env_steps == 0


def test_a_load_in_part_takes_the_statistics_of_transforms_that_fit_and_names_those_that_do_not(tmp_path):
    def wider():
        space = gym.spaces.Box(0, 1, (3,), np.float32)
        return gym.wrappers.TransformObservation(Corridor(), lambda obs: np.repeat(obs, 3), space)

    def make(env, *transforms, n_agents):
        return Robot.of("DQN", env, n_agents=n_agents, hidden=(8,), transforms=list(transforms), seed=0)

    with make(Corridor, ObservationNormalizer(), n_agents=3) as robot:
        robot.run(2_000)
        robot.save(tmp_path / "saved")
        with make(Corridor, ObservationNormalizer(), n_agents=1) as other:
            assert other.load(tmp_path / "saved", partial=True) == []
            np.testing.assert_equal(other.transforms["RL"].state_dict(), robot.transforms["RL"].state_dict())
            assert other.evaluate(3).mean_return == robot.evaluate(3).mean_return
        fading = ObservationNormalizer(moments=Moments(rate=0.1))
        for others in ((Corridor,), (wider, ObservationNormalizer()), (Corridor, fading)):
            with make(*others, n_agents=1) as other:
                before = other.transforms["RL"].state_dict()
                assert "RL transforms" in other.load(tmp_path / "saved", partial=True)
                np.testing.assert_equal(other.transforms["RL"].state_dict(), before)
    with Robot(Corridor, tasks={"other": ComputationTask(dqn(), off())}, seed=0) as other:
        assert "other" in other.load(tmp_path / "saved", partial=True)


# -------------------------------------------------------------------------------------------------- agents that come and go


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
@pytest.mark.parametrize("kind", ["dqn", "a2c"])
def test_agents_may_join_and_leave_between_iterations(driver, kind):
    task = {"dqn": lambda: (dqn(Noisy), off()), "a2c": lambda: (a2c(Noisy), lambda: OnPolicyHelper(unroll=8))}[kind]()
    with robot_of(*task, Noisy, n_agents=2, driver=driver) as robot:
        for _ in range(3):
            robot.train_iter()
        before = rows(robot, lane=0), robot.agents[0].steps
        new = robot.add_agents(2)
        assert [str(agent) for agent in new] == ["agent 2", "agent 3"] and robot.buffers["RL"].n_lanes == 4
        if kind == "dqn":
            same(rows(robot, lane=0), before[0])
        gone = robot.agents[1]
        robot.remove_agent(gone)
        left = gone.steps
        for _ in range(10):
            robot.train_iter()
        robot.run(StopAfterSteps(100))
        assert gone.steps == left and all(agent.steps > 10 for agent in robot.agents)
        assert [agent.index for agent in robot.agents] == [0, 2, 3]
        if kind == "dqn":
            assert robot.collect(n_episode=6).n_episodes == 6
        assert sorted(robot.wrappers["RL"].communicators) == ["agent 0", "agent 2", "agent 3"]
        with pytest.raises(ValueError, match="agent 1 is no agent of this robot; there are agent 0, agent 2, agent 3"):
            robot.remove_agent(gone)
        again = robot.add_agents()[0]
        assert again.index == 4 and robot.evaluate(4).n_episodes == 4


def test_joining_is_reproducible():
    def hashes():
        with BUILD["dqn"](n_agents=2) as robot:
            robot.collect(n_step=20)
            robot.add_agents(2)
            robot.run(StopAfterSteps(100))
            return robot.trace_hash()

    assert hashes() == hashes()


def test_one_environment_is_not_shared_and_the_last_agent_stays():
    with robot_of(dqn(Noisy), off(), Noisy(), n_agents=1) as robot:
        with pytest.raises(ValueError, match="cannot share one environment"):
            robot.add_agents()
        with pytest.raises(ValueError, match="agent 0 is the only agent"):
            robot.remove_agent(robot.agents[0])


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
@pytest.mark.parametrize("drain", [True, False])
def test_closing_drains_the_queues_or_answers_stopped(driver, drain):
    """An asynchronous request is open when the robot is closed: served, or refused."""
    answers = []

    class Sender(Agent):
        def run_one_episode(self):
            self.env.reset()
            comm = self.helpers["RL"].comm
            tickets.append(comm.put_training({"obs": np.zeros((3, 1), np.float32)}))
            self.robot.request_stop()
            self.env.step(0)

    tickets = []
    task = ComputationTask(Recorder(), training_rule=BatchRule(min_rows=100), helper=Waits)
    robot = Robot(lambda: Corridor(3), tasks={"RL": task}, agent=Sender, driver=driver)
    robot.pool.lifecycle.advance()
    if driver == "threads":
        until(lambda: robot.pool.driver.parked)  # nobody is left who could still come
    robot.close(drain=drain)
    try:
        answers.append(robot.agents[0].helpers["RL"].comm.get(tickets[0])["loss"])
    except Stopped:
        answers.append("stopped")
    assert (answers == ["stopped"]) is not drain and len(task.algorithm.updates_seen) == drain


class Waits(AgentHelper):
    learns = True


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
def test_a_hook_may_ask_for_a_save(driver, tmp_path):
    path = tmp_path / "state"
    hook = EveryNSteps(40, lambda robot: robot.request_save(path))
    with robot_of(dqn(Noisy), off(), Noisy, n_agents=2, driver=driver) as robot:
        robot.run(StopAfterSteps(50), hook)
    with robot_of(dqn(Noisy), off(), Noisy, n_agents=2) as other:
        other.load(path)
        assert 40 <= other.env_steps <= 50


def test_one_robot_may_mix_on_policy_and_off_policy_tasks():
    """A2: rows of one step go to both; each learns at its own rhythm."""
    tasks = {"PPO": ComputationTask(ppo(Noisy), lambda: OnPolicyHelper(unroll=8, store_policy=True)),
             "DQN": ComputationTask(dqn(Noisy), off(learn_every=4))}
    with Robot(Noisy, tasks=tasks, n_agents=2) as robot:
        robot.run(StopAfterSteps(160))
        assert tasks["PPO"].learns == 10 and tasks["DQN"].learns > 10
        assert tasks["PPO"].rows_learned == 160 and len(robot.buffers["DQN"]) == 160


def test_an_action_may_choose_how_often_it_is_repeated():
    """R4: K is read at each step, so what chooses the action may choose it."""
    class Chooses(Agent):
        def run_one_episode(self):
            self.env.reset()
            done, taken = False, []
            while not done:
                self.env.set_wrapper_attr("n", 1 + len(taken))
                _, rew, terminated, truncated, _ = self.env.step(0)
                taken.append(rew)
                done = terminated or truncated
            rewards.append(taken)

    rewards = []
    with robot_of(Recorder(), off(), env=lambda: ActionRepeat(Corridor(8), 1), agent=Chooses) as robot:
        robot.run(StopAfterEpisodes(1))
        assert rewards == [[1.0, 2.0, 3.0, 2.0]]  # the last is cut short by the end
        assert (robot.counters()["env_steps"], robot.counters()["time_steps"]) == (4, 8)


# ------------------------------------------------------------------------------------------------- found by a review


class Boom(Hook):
    """Raises while the training request of every agent waits."""

    def post_act(self, agent):
        helpers = [each.helpers["RL"] for each in agent.robot.agents]
        if all(h.sender.pending and not h.comm.is_served(h.sender.pending[0][0]) for h in helpers):
            raise ValueError("boom")


@pytest.mark.parametrize("n_agents", [1, 2])
def test_agents_live_on_after_a_halt_that_found_their_updates_open(n_agents):
    task = ComputationTask(dqn(Noisy), off(), training_rule=BatchRule(min_rows=8 * n_agents + 1))
    with Robot(Noisy, tasks={"RL": task}, n_agents=n_agents, mode="async") as robot:
        with pytest.raises(AgentFailed, match="boom"):
            robot.run(StopAfterSteps(1000), Boom())
        before = [agent.steps for agent in robot.agents]
        robot.run(StopAfterSteps(300))
        taken = [agent.steps - b for agent, b in zip(robot.agents, before, strict=True)]
        assert sum(taken) == 300 and max(taken) - min(taken) <= 1


def test_the_last_update_before_a_checkpoint_speaks_in_both_runs(tmp_path):
    """In async mode its priorities came after the state was saved."""
    def build(seed):
        return robot_of(dqn(Noisy), off(buffer=PrioritizedReplayBuffer), Noisy, n_agents=2, mode="async", trace=True, seed=seed)

    with build(1) as whole, build(2) as part:
        for stop in (100, 200):
            for _ in whole.iterate(stop):
                pass
            whole.save(tmp_path / str(stop))
        part.load(tmp_path / "100")
        for _ in part.iterate(200):
            pass
        part.checkpoint_boundary()
        assert part.trace_hash() == whole.trace_hash() and part.metrics().keys() == whole.metrics().keys()
        mine, theirs = ({k: v for k, v in r.metrics().items() if not k.endswith("_s")} for r in (part, whole))
        assert mine == theirs  # the counters of the queues, too


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
@pytest.mark.parametrize(("where", "what"), [
    (lambda robot: (robot.pool.driver, "join"), lambda robot: robot.add_agents(1)),
    (lambda robot: (robot.pool.driver, "reopen"), lambda robot: robot.remove_agent(robot.agents[1])),
    (lambda robot: (robot.pool.lifecycle, "halt"), lambda robot: robot.add_agents(1)),
    (lambda robot: (robot.pool.driver, "iterate"), lambda robot: robot.train_iter()),
    (lambda robot: (robot.pool.driver, "halt"), lambda robot: robot.checkpoint_boundary()),
], ids=["join", "reopen", "halt", "iterate", "boundary"])
def test_after_ctrl_c_anywhere_the_next_run_is_whole(driver, where, what, monkeypatch):
    with robot_of(a2c(Noisy), lambda: OnPolicyHelper(unroll=5), Noisy, n_agents=3, driver=driver) as robot:
        robot.train_iter()

        def strike(*args, **kwargs):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(*where(robot), strike)
            what(robot)
        before = robot.env_steps
        robot.run(StopAfterSteps(120))
        assert robot.env_steps - before == 120


def test_after_ctrl_c_in_a_start_the_next_run_is_whole(monkeypatch):
    import parl_like.drivers.serving as serving

    def strike(*args):
        raise KeyboardInterrupt

    with robot_of(a2c(Noisy), lambda: OnPolicyHelper(unroll=5), Noisy, n_agents=3, driver="threads") as robot:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(serving, "Server", strike)
            robot.train_iter()
        robot.run(StopAfterSteps(120))
        assert robot.env_steps == 120


class Blocks(Corridor):
    """Does not come back from its fourth step until told."""

    gate = None
    stuck = 0

    def step(self, act):
        if self.at == 3:
            Blocks.stuck += 1
            Blocks.gate.wait(60)
        return super().step(act)


def test_draining_does_not_wait_for_ever(monkeypatch):
    import threading

    from parl_like.run import lifecycle as module

    Blocks.gate = threading.Event()
    monkeypatch.setattr(module, "DRAIN_PATIENCE", 0.2)
    robot = robot_of(Recorder(), off(batch_size=2, learn_every=2), lambda: Blocks(9), n_agents=2, driver="threads", mode="async")
    envs = [agent.env._env for agent in robot.agents]
    robot.pool.lifecycle.advance()
    until(lambda: Blocks.stuck == 2)
    join = robot.pool.driver.join
    robot.pool.driver.join = lambda timeout: (Blocks.gate.set(), join(timeout))[1]  # they come back when nobody waits any more
    with pytest.raises(RuntimeError, match="still busy 0.2 s after they were told to end their episodes: agent 0, agent 1"):
        robot.close(drain=True)
    assert [env.closed for env in envs] == [1, 1]


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
def test_environments_are_closed_though_draining_fails(driver):
    class Fails(Recorder):
        def learn(self, batch):
            raise OSError("no update")

    robot = Robot(lambda: Corridor(end=None), tasks={"RL": ComputationTask(Fails())}, driver=driver, mode="async")
    env = robot.agents[0].env._env
    robot.pool.lifecycle.advance()
    robot.agents[0].helpers["RL"].comm.put_training({"obs": np.zeros((3, 1), np.float32)})
    with pytest.raises(TaskFailed, match="no update"):
        robot.close(drain=True)
    assert env.closed == 1


def test_dropping_the_oldest_is_for_those_who_do_not_wait():
    task = ComputationTask(dqn(Noisy), off(), training_rule=BatchRule(max_queued=20, when_full="drop_oldest"))
    with pytest.raises(ValueError, match="in sync mode every agent waits for its own; use when_full='block', or mode='async'"):
        Robot(Noisy, tasks={"RL": task})


def test_max_wait_closes_a_training_batch_that_waits_for_those_who_never_come():
    class Half(Agent):
        def run_one_episode(self):
            helper = self.helpers["RL"]
            obs, _ = self.env.reset()
            done = False
            while not done:
                act = helper.predict(obs)
                obs_next, rew, terminated, truncated, _ = self.env.step(act)
                if self.index == 0:
                    helper.store(obs, act, rew, obs_next, terminated, truncated)
                obs, done = obs_next, terminated or truncated

    task = ComputationTask(a2c(Noisy), lambda: OnPolicyHelper(unroll=5), training_rule=BatchRule(min_rows=8, max_wait=0.0))
    with Robot(Noisy, tasks={"RL": task}, agent=Half, n_agents=2, mode="async") as robot:
        robot.run(StopAfterSteps(400))
        assert robot.agents[0].steps > 100


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
def test_saves_that_are_asked_for(driver, tmp_path):
    asked = EveryNSteps(40, lambda robot: [robot.request_save(tmp_path / "a"), robot.request_save(tmp_path / "b")])
    lost = EveryNSteps(40, lambda robot: robot.request_save(tmp_path / "a" / "manifest.json" / "c"))
    with robot_of(dqn(Noisy), off(), Noisy, n_agents=2, driver=driver) as robot:
        for _ in range(5):
            robot.train_iter()
        robot.run(StopAfterSteps(50), asked)
        iterations = robot.iterations
        with pytest.warns(RuntimeWarning, match="request_save: could not save to .*manifest.json"):
            robot.run(StopAfterSteps(50), lost)
        robot.request_save(tmp_path / "stale")  # of no iteration: the next run does not know it
        robot.run(StopAfterSteps(10))
        assert not (tmp_path / "stale").exists()
    for name in ("a", "b"):
        with robot_of(dqn(Noisy), off(), Noisy, n_agents=2) as other:
            other.load(tmp_path / name)
            assert 5 < other.iterations <= iterations


def test_books_stay_true_when_agents_leave():
    with robot_of(dqn(Noisy), off(size=40, warmup=40), Noisy, n_agents=4) as robot:
        robot.run(StopAfterSteps(20))
        for agent in robot.agents[1:]:
            robot.remove_agent(agent)
        assert robot.counters()["time_steps"] == robot.counters()["env_steps"] == 20
        robot.run(StopAfterSteps(60))
        assert robot.tasks["RL"].learns > 5  # lanes of those who left will never fill
        capacity = robot.buffers["RL"].capacity
        for _ in range(5):
            robot.remove_agent(robot.add_agents(1)[0])
        assert robot.buffers["RL"].capacity == capacity
        for n in (0, -1):
            with pytest.raises(ValueError, match=f"add_agents: n is {n}; expected at least 1"):
                robot.add_agents(n)


def test_an_evaluation_may_draw_its_actions():
    """Of a policy that knows nothing, the best action is always the same one; drawn ones are not, but they are the same each
    time."""

    def taken(**options):
        envs = []

        def make():
            envs.append(Corridor(20))
            return envs[-1]

        func = create_algorithm_func(MLPActorCritic, {"obs": POSITION, "act": ACT, "hidden": [4]}, A2C, {})
        with Robot(make, tasks={"RL": ComputationTask(func, OnPolicyHelper)}, seed=3, **options) as robot:
            robot.evaluate(1)
        return [entry for entry in envs[-1].log if isinstance(entry, int)]

    assert len(taken()) == 20 and len(set(taken())) == 1
    assert len(set(taken(eval_explore=True))) == 2 and taken(eval_explore=True) == taken(eval_explore=True)


@pytest.mark.parametrize(("driver", "agent", "n"), [
    ("cooperative", Agent, 1), ("threads", Agent, 1), (Processes(workers=1), Agent, 1),
    ("cooperative", lambda: VectorAgent(2), 2), (Processes(workers=1), lambda: VectorAgent(2), 2)],
    ids=["cooperative", "threads", "processes", "vector", "vector-processes"])
def test_environments_whose_first_episode_has_not_ended_are_counted(driver, agent, n):
    """Half of them have episodes of 2 steps, and end dozens before the others end one of 50; a checkpoint knows it, too."""
    lengths = cycle([2, 50])
    helper = lambda: OffPolicyHelper(size=100, batch_size=1, learn_every=10**9)  # noqa: E731
    make = lambda: robot_of(Recorder(), helper, env=lambda: Corridor(next(lengths)), agent=agent, n_agents=2,  # noqa: E731
                            driver=driver)
    with make() as robot:
        assert robot.metrics()["episode/first_open"] == 2 * n
        robot.run(StopAfterSteps(40 * n))
        assert robot.metrics()["episode/first_open"] == n and robot.episodes > 4 * n
        robot.checkpoint_boundary()
        state = robot.state_dict()
        robot.run(StopAfterSteps(120 * n))
        assert "episode/first_open" not in robot.metrics()
    with make() as again:
        again.load_state_dict(state)
        assert again.metrics()["episode/first_open"] == n


def test_a_task_that_is_elsewhere_is_described_by_its_algorithm_and_model():
    """As the dashboard draws it."""
    with Robot.of("DQN", "CartPole-v1") as robot:
        proxy = AlgorithmProxy(robot.tasks["RL"].algorithm)
        assert (kind_of(proxy), kind_of(proxy.model)) == ("DQN", "MLPQ")
        (task,) = robot.describe()["tasks"]
        assert (task["algorithm"], task["model"]) == ("DQN", "MLPQ")
