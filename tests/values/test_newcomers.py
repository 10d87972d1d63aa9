"""Mistakes of who comes from another library, or begins: each is told what was expected, what came, and the way out."""

import gymnasium as gym
import numpy as np
import pytest
from agent_fakes import ACT, POSITION, Corridor, dqn, robot_of

from parl_like import Agent, ComputationTask, Robot, create_algorithm_func
from parl_like.algorithms import DQN, PPO
from parl_like.envs import make_env
from parl_like.models import MLPQ
from parl_like.values.errors import AgentFailed, unknown
from parl_like.values.spec import SpecError

CARTPOLE = "CartPole-v1"


class Sized(Corridor):
    def __init__(self, size):
        super().__init__()
        self.size = size


class Old:
    """An environment of the API before gymnasium."""

    observation_space, action_space = POSITION, ACT

    def reset(self):
        return np.zeros(POSITION.shape, POSITION.dtype)

    def step(self, act):
        return np.zeros(POSITION.shape, POSITION.dtype), 0.0, True, {}


WRONG = {
    "a policy's name": (lambda: Robot.of("PPO", "MlpPolicy", CARTPOLE), TypeError,
                        r"^Robot.of: got 3 values without a name; expected at most 2: Robot.of\(algorithm, env\)$"),
    "the environment first": (lambda: Robot.of(CARTPOLE, "PPO"), ValueError,
                              r"the algorithm comes first: Robot.of\('PPO', 'CartPole-v1'\)"),
    "tasks without a name": (lambda: Robot(Corridor, {"RL": ComputationTask(dqn)}), TypeError,
                             r"^Robot: got 2 values without a name; expected at most 1; others are given by name: Robot\(env, "),
    "no tasks": (lambda: Robot(Corridor), TypeError, r"^Robot: tasks is missing; expected Robot\(tasks=…, agent=…, "),
    "a class of algorithms": (lambda: ComputationTask(DQN), TypeError,
                              r"algorithm is the class DQN; expected a function that makes one with its model: create_"),
    "a number for a rule": (lambda: ComputationTask(dqn, training_rule=8), TypeError,
                            r"training_rule is 8; expected a BatchRule, such as BatchRule\(min_rows=8\)"),
    "no model": (lambda: DQN(), TypeError, r"^DQN: model is missing; expected DQN\(model, gamma=…"),
    "a policy's name for a model": (lambda: DQN("MlpPolicy"), TypeError, r"^DQN: model is 'MlpPolicy'; expected a Model, or a "),
    "an environment for a model": (lambda: DQN(gym.make(CARTPOLE)), TypeError, r"^DQN: model is <TimeLimit.*; expected a Model"),
    "policy and environment": (lambda: PPO("MlpPolicy", CARTPOLE), TypeError, r"^PPO: got 2 values without a name; "),
    "no spaces": (create_algorithm_func(MLPQ, {}, DQN, {}), TypeError, r"^MLPQ: obs and act are missing; expected MLPQ"),
    "an environment with arguments": (lambda: Robot.of("DQN", Sized), ValueError,
                                      r"env: Sized cannot be made without size; give a function .*: lambda: Sized\(size=…\)"),
    "a vector for a plain agent": (
        lambda: robot_of(dqn(), env=lambda: gym.vector.SyncVectorEnv([Corridor] * 3)), TypeError,
        "the environment is a vector of 3, and Agent acts in one; give agent=VectorAgent, or a function "),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_made_says_what_to_give(case):
    make, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        make()


CALLS = {
    "learn": (lambda robot: robot.learn(total_timesteps=9), AttributeError,
              "^Robot has no 'learn'; what others call learn is run here$"),
    "train": (lambda robot: robot.train(), AttributeError, "what others call train is run here"),
    "predict": (lambda robot: robot.predict(np.zeros(4)), AttributeError, "what others call predict is act here"),
    "misspelt": (lambda robot: robot.evalute(), AttributeError, "^Robot has no 'evalute'; did you mean 'evaluate'"),
    "nothing like it": (lambda robot: robot.xyz, AttributeError, "^Robot has no 'xyz'$"),
    "total_timesteps": (lambda robot: robot.run(total_timesteps=9), TypeError,
                        "^run: no option 'total_timesteps'; did you mean 'stop'.*, as it is called here"),
    "callback": (lambda robot: robot.run(9, callback=print), TypeError, "^run: no option 'callback'; did you mean 'hooks'"),
    "n_eval_episodes": (lambda robot: robot.evaluate(n_eval_episodes=2), TypeError, "did you mean 'episodes'"),
    "stop_fn": (lambda robot: robot.epochs(1, 9, stop_fn=bool), TypeError, "did you mean 'stop'"),
    "train_fn": (lambda robot: robot.epochs(1, 9, train_fn=print), TypeError, "no option .train_fn.; write it into the body"),
    "render": (lambda robot: robot.collect(n_step=9, render=0.1), TypeError, r"no option .render.; `robot\.play\(path\)`"),
    "reset_buffer": (lambda robot: robot.collect(n_step=9, reset_buffer=True), TypeError, r"`robot\.buffers\[name\]\.reset"),
    "an option that is none": (lambda robot: robot.run(9, speed=2), TypeError,
                               "^run: no option 'speed'; there are 'hooks', 'progress', 'stop'$"),
    "steps without a name": (lambda robot: robot.collect(9), TypeError,
                             r"^collect: got 1 values without a name; expected at most 0; others are .*: collect\(n_step=…"),
    "what reset returns": (lambda robot: robot.act(gym.make(CARTPOLE).reset()), SpecError,
                           r"got the pair \(observation, info\); that is what reset\(\) returns; take the first of it"),
}


@pytest.fixture(scope="module")
def cartpole():
    with Robot.of("DQN", CARTPOLE, seed=np.int64(3)) as robot:
        yield robot


@pytest.mark.parametrize("case", CALLS)
def test_a_call_of_another_library_is_told_ours(case, cartpole):
    call, kind, message = CALLS[case]
    with pytest.raises(kind, match=message):
        call(cartpole)


def test_what_a_robot_has_is_told_by_itself(cartpole, monkeypatch):
    assert not hasattr(cartpole, "learn") and not hasattr(cartpole, "__array__") and cartpole.seed == 3
    monkeypatch.setattr(Robot, "broken", property(lambda robot: robot.tasks.colour), raising=False)
    with pytest.raises(AttributeError, match="'dict' object has no attribute 'colour'"):
        cartpole.broken  # noqa: B018


def test_lists_are_observations_of_whatever_type_the_space_has(cartpole):
    assert cartpole.act([0, 0, 0, 0]) in (0, 1) and cartpole.act([[0, 0, 0, 0], [0.5, 0, 0, 1]]).shape == (2,)
    with pytest.raises(SpecError, match=r"task 'RL', field 'obs': expected \(4,\) float32, got .* with the text "):
        cartpole.act([0, 0, 0, "a"])


class Unpacks(Agent):
    def run_one_episode(self):
        self.env.reset()
        obs, rew, done, info = self.env.step(0)  # noqa: F841


class Pair(Agent):
    def run_one_episode(self):
        self.helpers["RL"].predict(self.env.reset())


class OneHelper(Agent):
    def run_one_episode(self):
        self.helper.predict(self.env.reset()[0])


class OwnError(Agent):
    def run_one_episode(self):
        self.env.reset()
        raise ValueError("mine")


EPISODES = {
    Unpacks: (AgentFailed, r"too many values to unpack \(expected 4\); gymnasium's step returns \(obs, reward, terminated, "),
    Pair: (SpecError, r"got the pair \(observation, info\); that is what reset\(\) returns; take the first of it: obs, info = "),
    OneHelper: (AgentFailed, "'OneHelper' object has no attribute 'helper'; did you mean 'helpers'"),
    OwnError: (AgentFailed, "run_one_episode raised ValueError: mine$"),
}


@pytest.mark.parametrize(("agent", "driver"), [*((agent, "cooperative") for agent in EPISODES), (Unpacks, "threads"),
                                               (Unpacks, "processes")])
def test_an_episode_of_the_users_own_says_what_was_meant(agent, driver):
    kind, message = EPISODES[agent]
    with robot_of(dqn(), agent=agent, driver=driver) as robot, pytest.raises(kind, match=message):
        robot.run(10)


def test_an_episode_that_nobody_would_call_is_refused():
    class Misspelt(Agent):
        def run_episode(self):
            self.env.reset()

    class Helped(Agent):
        def run_one_episode(self):
            self.run_an_episode()

        def run_an_episode(self):
            self.env.reset()
            self.env.step(0)

    with pytest.raises(TypeError, match="Misspelt.run_episode is called by nobody; did you mean 'run_one_episode'"):
        robot_of(dqn(), agent=Misspelt)
    with robot_of(dqn(), agent=Helped) as robot:
        robot.run(3)


@pytest.mark.filterwarnings("ignore:.*takes no seed")
def test_the_old_api_has_a_way_out():
    with Robot.of("DQN", Old) as robot, pytest.raises(AgentFailed, match=r"old gym API with parl_like.envs.make.make_env"):
        robot.run(2)
    with Robot.of("DQN", lambda: make_env(Old)) as robot:
        robot.run(2)


@pytest.mark.parametrize(("name", "hint"), [
    ("ppo", "did you mean 'ppo-acrobot' or 'ppo-pendulum'?"), ("PPO-P", "did you mean 'ppo-pendulum'?"), ("", "there are 'dqn-"),
    ("xyz", "there are 'dqn-cartpole', 'ppo-acrobot', 'ppo-pendulum'"),
])
def test_a_name_that_is_only_begun_is_completed(name, hint):
    assert hint in unknown("experiment", name, ["ppo-pendulum", "ppo-acrobot", "dqn-cartpole"])


def test_a_robot_of_numpy_s_numbers_is_the_same():
    with Robot.of("DQN", CARTPOLE, n_agents=np.int32(2), gamma=np.float64(0.9)) as robot:
        assert robot.n_agents == 2 and robot.tasks["RL"].algorithm.gamma == 0.9
