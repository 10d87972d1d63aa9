"""Every buffer with every helper, with and without memory: it learns, or an error says what to take instead."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from agent_fakes import Corridor, Recorder, robot_of

from parl_like import (
    ComputationTask,
    EpisodicHelper,
    OfflineHelper,
    OffPolicyHelper,
    OnPolicyHelper,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    Robot,
    create_algorithm_func,
)
from parl_like.algorithms import BC, DQN, PPO, R2D2
from parl_like.data.buffers.cached import CachedReplayBuffer
from parl_like.data.buffers.episodes import EpisodeBuffer
from parl_like.data.buffers.reservoir import ReservoirBuffer
from parl_like.data.datasets import from_arrays
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.models import MLPQ, MLPActorCritic, RecurrentActorCritic, RecurrentQ
from parl_like.values.spec import SpecError

SPACES = dict(obs=Corridor(5).observation_space, act=Corridor(5).action_space)
BUFFERS = {
    "plain": ReplayBuffer, "prioritised": PrioritizedReplayBuffer, "no obs_next": partial(ReplayBuffer, ignore_obs_next=True),
    "episodes": EpisodeBuffer, "reservoir": ReservoirBuffer,
    "reservoir of rows": lambda size, lanes, rng: ReservoirBuffer(size, rng),
    "cached": lambda size, lanes, rng: CachedReplayBuffer(ReplayBuffer(size, 1, rng), lanes), "nothing": lambda *args: None,
    "no factory": lambda size: ReplayBuffer(size),
}
LEARNERS = {"DQN": (DQN, MLPQ, {}), "R2D2": (R2D2, RecurrentQ, dict(sequence=4, burn_in=2))}


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("driver", ["cooperative", "threads"])
def test_a_buffer_serves_or_is_refused_in_words(name, buffer, driver):
    algorithm, model, options = LEARNERS[name]
    func = create_algorithm_func(model, {**SPACES, "hidden": (8,)}, algorithm, options)
    helper = partial(OffPolicyHelper, size=200, batch_size=8, learn_every=4, buffer=BUFFERS[buffer])
    make = lambda: Robot(lambda: Corridor(5), tasks={"RL": ComputationTask(func, helper)}, n_agents=2, driver=driver)  # noqa: E731
    if buffer in ("plain", "prioritised", "no obs_next", "cached"):
        with make() as robot:
            robot.run(StopAfterSteps(120))
            assert robot.counters()["updates/RL"] > 0
    else:
        with pytest.raises(TypeError, match="OffPolicyHelper: buffer (gives|could not be made).*expected"):
            make()


def data(n=60):
    rng = np.random.default_rng(0)
    obs = rng.integers(0, 5, (n + 1, 1)).astype(np.float32)
    return from_arrays(obs[:-1], rng.integers(0, 2, n), rng.random(n), np.arange(n) % 5 == 4, next_observations=obs[1:])


class OfEpisodes(OnPolicyHelper):
    def make_buffer(self, n_lanes, rng):
        return EpisodeBuffer(100, n_lanes)


def test_what_a_helper_of_ones_own_makes_is_looked_at_too():
    with pytest.raises(TypeError, match="task 'RL': make_buffer of OfEpisodes gives EpisodeBuffer; expected a ReplayBuffer"):
        robot_of(Recorder(), OfEpisodes, env=lambda: Corridor(3))


@pytest.mark.parametrize("with_env", [False, True])
def test_data_without_a_memory_is_refused_for_a_learner_with_one(with_env):
    func = create_algorithm_func(RecurrentQ, {**SPACES, "hidden": (8,)}, R2D2, dict(sequence=4, burn_in=2))
    with pytest.raises(SpecError, match="task 'RL', field 'state.*no such column.*record the field"):
        Robot((lambda: Corridor(5)) if with_env else None,
              tasks={"RL": ComputationTask(func, partial(OfflineHelper, data(), batch_size=8))})


@pytest.mark.parametrize("model", [RecurrentActorCritic, MLPActorCritic])
@pytest.mark.parametrize("helper", [partial(OnPolicyHelper, unroll=8), partial(EpisodicHelper, episodes=1)])
def test_helpers_that_send_their_own_rows(model, helper):
    func = create_algorithm_func(model, {**SPACES, "hidden": (8,)}, PPO, dict(epochs=1, minibatches=2))
    with Robot(lambda: Corridor(5), tasks={"RL": ComputationTask(func, helper)}, n_agents=2) as robot:
        robot.run(StopAfterSteps(80))
        assert robot.counters()["updates/RL"] > 0


def test_an_environment_beside_offline_data_is_acted_in_and_the_data_learned_from():
    """Every fourth step of each agent is an update of the data; the buffer stays as it is."""
    rows = data()
    func = create_algorithm_func(MLPActorCritic, {**SPACES, "hidden": (8,)}, BC, {})
    helper = partial(OfflineHelper, rows, batch_size=8)
    with Robot(lambda: Corridor(5), tasks={"RL": ComputationTask(func, helper)}, n_agents=2) as robot:
        robot.run(StopAfterSteps(80))
        assert robot.counters()["updates/RL"] == 20 and robot.counters()["episodes"] == 16 and len(rows) == 60
        assert robot.never_learned() == {}
        seen = robot.evaluate(2)  # a test counts nothing
        assert seen.n_episodes == 2 and robot.counters()["updates/RL"] == 20
    helper = partial(OfflineHelper, rows, batch_size=8, learn_every=None)
    with Robot(lambda: Corridor(5), tasks={"RL": ComputationTask(func, helper)}) as robot:
        robot.run(StopAfterSteps(20))
        assert robot.never_learned()["RL"].startswith("20 rows were stored, but no agent calls helpers['RL'].learn(), and learn")
    with pytest.raises(ValueError, match="OfflineHelper: store_info says what to store, and it stores nothing"):
        OfflineHelper(rows, batch_size=8, store_info=("x",))


def test_frames_are_stored_once_as_the_documentation_says():
    make = lambda: gym.wrappers.FrameStackObservation(gym.make("CartPole-v1"), 4)  # noqa: E731
    env = make()
    func = create_algorithm_func(MLPQ, dict(obs=env.observation_space, act=env.action_space, hidden=(8,)), DQN, {})
    for buffer in (ReplayBuffer, PrioritizedReplayBuffer):
        made = partial(buffer, stack_num=4, save_only_last_obs=True, ignore_obs_next=True)
        helper = partial(OffPolicyHelper, size=300, batch_size=8, learn_every=4, buffer=made)
        with Robot(make, tasks={"RL": ComputationTask(func, helper)}, n_agents=2) as robot:
            robot.run(StopAfterSteps(100))
            rows = robot.buffers["RL"]
            assert rows.columns["obs"].shape == (300, 4) and "obs_next" not in rows.columns
            assert rows[:].obs.shape == (100, 4, 4) and robot.counters()["updates/RL"] > 0


def test_a_recorder_without_rows_says_so():
    with robot_of(Recorder(), lambda: OffPolicyHelper(size=20, batch_size=4), env=lambda: Corridor(3)) as robot:
        robot.run(StopAfterSteps(8))
        assert len(robot.buffers["RL"]) == 8
