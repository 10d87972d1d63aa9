"""Fakes for the tests of agents, helpers and robots: environments that count, tasks that remember what they were given."""

import gymnasium as gym
import numpy as np
import torch

from parl_like import ComputationTask, Hook, Robot, create_algorithm_func
from parl_like.algorithms import A2C, DQN, PPO
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.model import Model
from parl_like.models import MLPQ, MLPActorCritic, RecurrentActorCritic

torch.set_num_threads(1)

ACT = gym.spaces.Discrete(2)
POSITION = gym.spaces.Box(0.0, 1000.0, (1,), np.float32)


class Corridor(gym.Env):
    """Every action goes one step on, from position 0 to `length`, for a reward of 1. The observation is the position.

    Args:
        end: 'terminated', 'truncated', 'both', or None for a corridor without end.
        act: Action space.
        fail_at: Position from which a step raises. fail_reset: Reset that raises, from 1.

    Attributes:
        log: ('reset', seed) and the action of every step.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, length=5, end="terminated", act=ACT, fail_at=None, fail_reset=None, render_mode=None):
        self.length, self.end, self.fail_at, self.fail_reset = length, end, fail_at, fail_reset
        self.render_mode = render_mode
        self.observation_space, self.action_space = POSITION, act
        self.log, self.at, self.closed = [], None, 0

    def obs(self):
        return np.array([self.at], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.log.append(("reset", seed))
        if sum(isinstance(entry, tuple) and entry[0] == "reset" for entry in self.log) == self.fail_reset:
            raise OSError("no floor")
        self.at = 0
        return self.obs(), {}

    def step(self, act):
        self.log.append(act)
        if self.at == self.fail_at:
            raise OSError("a hole in the floor")
        assert self.end is None or self.at < self.length, "stepped after the end"
        self.at += 1
        over = self.end is not None and self.at == self.length
        return self.obs(), 1.0, over and self.end in ("terminated", "both"), over and self.end in ("truncated", "both"), {}

    def render(self):
        return np.full((4, 4, 3), self.at, np.uint8)

    def close(self):
        self.closed += 1


class TwoLengths(gym.Env):
    """Episodes of 1 or 9 steps, decided by a coin at the reset. The mean length is 5; of those that end first it is less."""

    observation_space, action_space = POSITION, ACT

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 1 if self.np_random.random() < 0.5 else 9
        return np.zeros(1, np.float32), {}

    def step(self, act):
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {}


class Noisy(gym.Env):
    """A walk on a line whose steps the environment's generator shakes; ends at ±1 or after 20 steps. Exercises every
    generator."""

    observation_space = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)

    def __init__(self, act=ACT):
        self.action_space = act

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = float(self.np_random.normal(0, 0.1)), 0
        return self.obs(), {}

    def obs(self):
        return np.array([self.x, self.t / 20], np.float32)

    def step(self, act):
        push = 2.0 * int(act) - 1.0 if isinstance(self.action_space, gym.spaces.Discrete) else float(np.sum(act))
        self.x = float(np.clip(self.x + 0.2 * push + self.np_random.normal(0, 0.1), -2, 2))
        self.t += 1
        return self.obs(), self.x, abs(self.x) >= 1, self.t == 20, {}


class Plain(Model):
    """A model of one parameter, for algorithms that do not need more."""

    def __init__(self, obs=POSITION, act=ACT):
        super().__init__(obs, act)
        self.w = torch.nn.Parameter(torch.ones(1))


class Recorder(Algorithm):
    """Acts by a rule, and remembers each learning batch and the mode of every call.

    Args:
        rule: Observations (tensors) → actions [N, ...]. Default: 0.
    """

    def __init__(self, model=None, rule=None, **options):
        super().__init__(Plain() if model is None else model, **options)
        self.rule = rule or (lambda obs: torch.zeros(len(first_leaf(obs)), dtype=torch.int64))
        self.updates_seen, self.modes = [], []

    def predict(self, inputs):
        self.modes.append(("predict", self.mode))
        return {"act": self.rule(inputs.obs)}

    def process(self, batch):
        self.modes.append(("process", self.mode))
        self.updates_seen.append({name: np.array(leaf.numpy()) for name, leaf in batch.leaves().items()})
        return batch

    def learn(self, batch):
        self.modes.append(("learn", self.mode))
        return {"loss": self.model.w.square().sum()}


def first_leaf(obs):
    while not isinstance(obs, torch.Tensor):
        obs = next(iter(obs.values()))
    return obs


class Log(Hook):
    """Remembers every stage."""

    def __init__(self, name="hook", events=None):
        self.name, self.events = name, [] if events is None else events

    def _add(self, stage, *rest):
        self.events.append((self.name, stage, *rest))

    def pre_experiment(self, robot):
        self._add("PRE_EXPERIMENT")

    def pre_episode(self, agent):
        self._add("PRE_EPISODE")

    def pre_act(self, agent, act):
        self._add("PRE_ACT", act)

    def post_act(self, agent):
        self._add("POST_ACT", agent.env.last[2])

    def post_episode(self, agent, interrupted):
        self._add("POST_EPISODE", interrupted)

    def post_experiment(self, robot):
        self._add("POST_EXPERIMENT")

    def count(self, stage, *rest):
        return sum(event[1 : 2 + len(rest)] == (stage, *rest) for event in self.events)


def spaces_of(env):
    return dict(obs=env.observation_space, act=env.action_space)


def dqn(env=Corridor, hidden=(8,), **options):
    """A function that builds a small DQN for the environments that `env()` makes."""
    return create_algorithm_func(MLPQ, dict(**spaces_of(env()), hidden=list(hidden)), DQN, dict(target_period=4, **options))


def ppo(env=Corridor, hidden=(8,), recurrent=False, **options):
    model = RecurrentActorCritic if recurrent else MLPActorCritic
    size = dict(size=6) if recurrent else {}
    return create_algorithm_func(model, dict(**spaces_of(env()), hidden=list(hidden), **size), PPO,
                                 {"epochs": 2, "minibatches": 2, **options})


def a2c(env=Corridor, hidden=(8,), **options):
    return create_algorithm_func(MLPActorCritic, dict(**spaces_of(env()), hidden=list(hidden)), A2C, options)


def robot_of(algorithm, helper=None, env=Corridor, **options):
    """A robot with one task 'RL'."""
    return Robot(env, tasks={"RL": ComputationTask(algorithm, helper)}, **options)


def weights(robot):
    return {name: task.algorithm.model.weights_hash() for name, task in robot.tasks.items()}


def same(a, b):
    """Whether two trees of arrays, tensors and plain values are equal."""
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and np.array_equal(np.asarray(a), np.asarray(b))


def rows(robot, task="RL", lane=0):
    """The rows of one lane in time order, flat field name → array."""
    return {name: column.copy() for name, column in robot.buffers[task].lane_rows(lane).items()}
