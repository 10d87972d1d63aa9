"""The names that PARL's design document prints: those that are ours under another name can be read, and the page has them all."""

import re
from pathlib import Path

import gymnasium as gym
import pytest

from parl_like import ComputationTask, Model, OffPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import DQN
from parl_like.learning import layers
from parl_like.models import MLPQ

PAGE = Path(__file__).resolve().parents[1] / "docs" / "coming-from" / "parl.md"
PRINTED = {
    "Model": "get_input_specs get_state_specs get_action_specs perceive post_prediction",
    "Algorithm": "model _predict _learn model_func create_algorithm_func",
    "ComputationTask": "algorithm predict learn",
    "Agent": "env helpers run_one_episode",
    "AgentHelper": "name comm exp_q predict store_data learn sample OnPolicyHelper OffPolicyHelper",
    "Communicator": "agent_id training_q prediction_q training_return_q prediction_return_q put_training_data "
                    "put_prediction_data put_training_return put_prediction_return get_training_return get_prediction_return",
    "ComputationWrapper": "ct training_q prediction_q comms model_input_specs create_communicator _pack_data _unpack_data "
                          "_prediction_loop _training_loop run min_batchsize",
    "LayerFunc": "param_attr bias_attr layers.fc layers.data",
    "Experience": "inputs states actions rewards game_over",
}


@pytest.fixture
def robot():
    env = gym.make("CartPole-v1")
    func = create_algorithm_func(MLPQ, dict(obs=env.observation_space, act=env.action_space), DQN, {})
    task = ComputationTask(func, helper=lambda: OffPolicyHelper(size=100, batch_size=4, warmup=4))
    with Robot("CartPole-v1", tasks={"RL": task}, n_agents=2, seed=0) as robot:
        yield robot


def test_the_names_of_the_document_read_what_is_ours(robot):
    wrapper, helper = robot.wrappers["RL"], robot.agents[0].helpers["RL"]
    assert wrapper.ct is wrapper.task and wrapper.comms is wrapper.communicators
    assert wrapper.prediction_q is wrapper.predictions and wrapper.training_q is wrapper.trainings
    assert wrapper.model_input_specs is wrapper.predictions.specs
    assert helper.exp_q is helper.buffer and helper.store_data == helper.store and helper.name == "RL"
    comm = helper.comm
    assert comm.prediction_q is wrapper.predictions and comm.training_q is wrapper.trainings
    assert wrapper.comms[comm.agent_id] is comm
    assert (comm.put_prediction_data, comm.put_training_data) == (comm.put_prediction, comm.put_training)
    assert comm.get_prediction_return == comm.get_training_return == comm.get
    model = robot.tasks["RL"].algorithm.model
    assert model.get_input_specs() == model.inputs() and model.get_state_specs() == model.state_specs() == {}
    assert model.get_action_specs() == model.act_specs


def test_requests_by_the_names_of_the_document(robot):
    robot.run(40)
    comm = robot.agents[0].helpers["RL"].comm
    obs = robot.agents[0].env.observation_space.sample()
    ticket = comm.put_prediction_data((obs, *([0.0] * (len(comm.prediction_q.specs) - 1))))
    assert comm.get_prediction_return(ticket)["act"].shape == (1,)


@pytest.mark.parametrize("name", ["agent_id", "prediction_q", "put_training_data", "get_training_return"])
def test_the_names_of_the_document_are_read_only(robot, name):
    with pytest.raises(AttributeError, match=f"Communicator.{name} is PARL's name for .* read-only"):
        setattr(robot.agents[0].helpers["RL"].comm, name, None)


def test_the_names_of_a_layers_parameters():
    first = layers.fc(3, in_size=2)
    assert (first.param_attr, first.bias_attr) == (f"{first.name}.w", f"{first.name}.b")
    sharing = layers.fc(3, in_size=2, bias=False, w=first)
    assert (sharing.param_attr, sharing.bias_attr) == (f"{first.name}.w", "")


def test_a_model_may_define_what_parls_models_define():
    class FromParl(Model):
        def get_input_specs(self):
            return ["image"]

    box = gym.spaces.Box(-1, 1, (2,))
    assert FromParl(box, gym.spaces.Discrete(2)).get_input_specs() == ["image"]


@pytest.mark.parametrize("kind", PRINTED)
def test_the_page_has_every_printed_name(kind):
    page = re.sub(r"```.*?```", "", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    named = {word for code in re.findall(r"`([^`]+)`", page) for word in re.findall(r"[\w.]+", code)}
    assert not [name for name in PRINTED[kind].split() if name not in named]
