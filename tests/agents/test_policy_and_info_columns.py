"""What rows keep beside the transition: `policy` of predict, and chosen keys of info; in every buffer, with every agent."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_fakes import ACT, POSITION, Recorder, robot_of
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from parl_like import Agent, OfflineHelper, OffPolicyHelper, OnPolicyHelper, PrioritizedReplayBuffer, ReplayBuffer, VectorAgent
from parl_like.agents.population import PopulationHelper
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.values.errors import AgentFailed
from parl_like.values.spec import SpecError


class Telling(gym.Env):
    """Counts from 0 to 3, where it ends; info has twice the count, and in the last step whether it is a success."""

    observation_space, action_space = POSITION, ACT

    def __init__(self, wrong=None):
        self.wrong = wrong

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return np.zeros(1, np.float32), {"double": 99.0}  # of a reset: no step has it

    def step(self, act):
        self.at += 1
        info = {"double": 2.0 * self.at, "pair": np.array([self.at, -self.at], np.int64)}
        if self.at == 3:
            info["is_success"] = True
        if self.wrong is not None:
            info |= self.wrong
        return np.full(1, self.at, np.float32), 0.0, self.at == 3, False, {k: v for k, v in info.items() if v is not None}


WANTED = {"double": 0.0, "pair": np.zeros(2, np.int64), "is_success": False}


def off(**options):
    return lambda: OffPolicyHelper(**{"size": 1000, "batch_size": 8, "learn_every": 8, "store_info": WANTED, **options})


BUFFERS = {"plain": ReplayBuffer, "prioritised": PrioritizedReplayBuffer,
           "no obs_next": partial(ReplayBuffer, ignore_obs_next=True)}
VECTORS = {str(mode): lambda mode=mode: SyncVectorEnv([Telling] * 2, autoreset_mode=mode) for mode in AutoresetMode}


class Rated(Recorder):
    def learn(self, batch):
        out = super().learn(batch)
        return {**out, "priority": np.ones(len(batch.rew))}


def check(update):
    at = update["obs"][:, 0] + 1
    assert (update["info.double"] == 2.0 * at).all() and update["info.double"].dtype == np.float64
    assert (update["info.pair"] == np.stack([at, -at], 1)).all() and update["info.pair"].dtype == np.int64
    assert (update["info.is_success"] == (at == 3)).all() and update["info.is_success"].dtype == bool


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("env", [None, *VECTORS])
def test_chosen_keys_of_info_are_columns(buffer, env):
    """Also where the info of a vector environment's last steps stands in `final_info`, and that of a reset in its place."""
    source, agent = (Telling, Agent) if env is None else (VECTORS[env], VectorAgent)
    with robot_of(Rated(), off(buffer=BUFFERS[buffer]), env=source, agent=agent) as robot:
        robot.run(StopAfterSteps(40))
        updates = robot.tasks["RL"].algorithm.updates_seen
        assert robot.agents[0].helpers["RL"].read(slice(None), "info.double").max() == 6.0
    assert updates
    for update in updates:
        check(update)


def test_they_are_in_unrolls_and_workers_and_saved_buffers(tmp_path):
    on = lambda: OnPolicyHelper(unroll=6, store_info=("double",))  # noqa: E731
    with robot_of(Recorder(), on, env=Telling, n_agents=2, driver="processes") as robot:
        robot.run(StopAfterSteps(24))
        for update in robot.tasks["RL"].algorithm.updates_seen:
            assert (update["info.double"] == 2.0 * (update["obs"][:, 0] + 1)).all()
    with robot_of(Recorder(), off(), env=Telling) as robot:
        robot.run(StopAfterSteps(20))
        robot.buffers["RL"].save(tmp_path / "rows")
    with robot_of(Recorder(), lambda: OfflineHelper(str(tmp_path / "rows"), batch_size=8), env=None) as robot:
        robot.run(StopAfterSteps(3))
        check(robot.tasks["RL"].algorithm.updates_seen[0])


@pytest.mark.parametrize(("wrong", "wanted", "message"), [
    ({"double": None}, ("double",), r"task 'RL', field 'info.double'.*got info with 'pair'.*store_info=\{'double': 0.0\}"),
    ({"double": "text"}, ("double",), "field 'info.double'.*example"),
    ({"double": np.zeros(2)}, ("double",), "field 'info.double'"),
    ({"pair": np.zeros(2)}, WANTED, r"field 'info.pair': expected \(2,\) int64, got \(2,\) float64"),
    ({"double": np.nan}, ("double",), "NaN")])
def test_what_does_not_fit_is_named(wrong, wanted, message):
    with robot_of(Recorder(), off(store_info=wanted), env=lambda: Telling(wrong)) as robot, \
            pytest.raises(SpecError, match=message):
        robot.run(StopAfterSteps(20))


@pytest.mark.parametrize(("wanted", "message"), [("x", "expected keys of info"), ((1,), "expected keys"),
                                                 ({"x": "a"}, r"store_info\['x'\]")])
def test_what_cannot_be_wanted_is_refused(wanted, message):
    with pytest.raises(TypeError, match=f"OffPolicyHelper: store_info.*{message}|{message}"):
        OffPolicyHelper(store_info=wanted)


def test_helpers_without_rows_refuse_it():
    with pytest.raises(ValueError, match="PopulationHelper keeps no rows, so it cannot store_info"):
        robot_of(Recorder(), lambda: PopulationHelper(store_info=("double",)), env=Telling)


# -------------------------------------------------------------------------------------------------------------- what predict gave


class Explains(Rated):
    """Gives with each action where it was, and which number of the robot's requests it is in."""

    def predict(self, inputs):
        out = super().predict(inputs)
        return {**out, "policy": {"seen": 10.0 * inputs.obs[:, 0], "pair": torch.stack([inputs.obs[:, 0].long()] * 2, 1)}}


@pytest.mark.parametrize("agent", [Agent, lambda: VectorAgent(2)], ids=["single", "vector"])
@pytest.mark.parametrize("driver", ["cooperative", "threads", "processes"])
def test_what_predict_gives_as_policy_is_stored_with_its_action(agent, driver):
    with robot_of(Explains(), off(store_info=()), env=Telling, agent=agent, n_agents=2, driver=driver) as robot:
        robot.run(StopAfterSteps(60))
        updates = robot.tasks["RL"].algorithm.updates_seen
    assert updates
    for update in updates:
        assert (update["policy.seen"] == 10.0 * update["obs"][:, 0]).all() and update["policy.seen"].dtype == np.float32
        assert (update["policy.pair"] == update["obs"].astype(np.int64)).all() and update["policy.pair"].dtype == np.int64


def test_it_can_be_left_out_and_belongs_to_the_last_prediction():
    with robot_of(Explains(), off(store_policy=False), env=Telling) as robot:
        robot.run(StopAfterSteps(20))
        assert not any(name.startswith("policy") for name in robot.buffers["RL"].columns)

    class Own(Agent):
        def run_one_episode(self):
            obs, _ = self.env.reset()
            self.helpers["RL"].predict(obs)
            self.helpers["RL"].store(obs, 1, 0.0, obs, True, False)

    with robot_of(Explains(), off(store_info=()), env=Telling, agent=Own) as robot, \
            pytest.raises(AgentFailed, match="predict gives policy.seen, policy.pair to be stored with .*store_policy=False"):
        robot.run(StopAfterSteps(20))
