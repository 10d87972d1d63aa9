"""Small robots of every kind of model, for tests of exported policies."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from parl_like import Robot
from parl_like.data.transforms import FrameStacker, ImageScale, ObservationClip, ObservationNormalizer

NUMBERS, IMAGE = Box(-2, 2, (3,), np.float32), Box(0, 255, (1, 12, 12), np.uint8)
MASKED = Dict({"x": NUMBERS, "mask": Box(0, 1, (4,), np.int8)})
NESTED = Dict({"b": Tuple((Discrete(2, start=3), MultiBinary(2))), "a": NUMBERS})
CHOICE, SCALED = Discrete(4, start=2), Box(np.float32([-2, 0]), np.float32([2, 5]))
PARTS = Dict({"b": Tuple((Box(0, 3, (1,), np.float32), MultiBinary(2))), "a": Discrete(2, start=5)})
WIDE = [FrameStacker(3), ObservationNormalizer(clip=3.0), ObservationClip(-2.0, 2.0)]


class Steps(gym.Env):
    """Episodes of seven random observations; of a `mask` one action is forbidden."""

    def __init__(self, obs, act):
        self.observation_space, self.action_space = obs, act

    def observed(self):
        obs = self.observation_space.sample()
        if isinstance(obs, dict) and "mask" in obs:
            obs["mask"] = np.ones(4, np.int8)
            obs["mask"][self.np_random.integers(4)] = 0
        return obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.left = 7
        return self.observed(), {}

    def step(self, act):
        assert self.action_space.contains(act), act
        self.left -= 1
        return self.observed(), float(self.np_random.random()), False, self.left == 0, {}


SMALL = {"warmup": 8, "batch_size": 8, "learn_every": 4, "OffPolicyHelper.size": 400}
CASES = {
    "MLP, one choice": ("PPO", NUMBERS, CHOICE, {"unroll": 8, "minibatches": 1}),
    "masks in a Dict": ("DQN", MASKED, CHOICE, SMALL),
    "masked logits": ("PPO", MASKED, CHOICE, {"unroll": 8, "minibatches": 1}),
    "CNN": ("PPO", IMAGE, CHOICE, {"unroll": 8, "minibatches": 1}),
    "CNN values": ("DQN", IMAGE, CHOICE, SMALL),
    "dueling with noise in the weights": ("Rainbow", NUMBERS, CHOICE, {**SMALL, "random_steps": 8}),
    "distributions of returns": ("C51", NUMBERS, CHOICE, SMALL),
    "quantiles": ("QRDQN", MASKED, CHOICE, SMALL),
    "drawn quantiles": ("IQN", NUMBERS, CHOICE, SMALL),
    "branches": ("BDQ", NUMBERS, MultiDiscrete([2, 3]), SMALL),
    "squashed Gaussian": ("SAC", NUMBERS, SCALED, {**SMALL, "random_steps": 8}),
    "deterministic": ("TD3", NUMBERS, Box(0, 9, (2, 1), np.int64), {**SMALL, "random_steps": 8}),
    "Gaussian without bounds": ("A2C", NUMBERS, Box(-np.inf, np.inf, (2,), np.float64), {"unroll": 8}),
    "Beta": ("A2C", NUMBERS, SCALED, {"unroll": 8, "distribution": "beta"}),
    "state-dependent noise": ("A2C", NUMBERS, SCALED, {"unroll": 8, "distribution": "gsde"}),
    "Dict observations and actions": ("PPO", NESTED, PARTS, {"unroll": 8, "minibatches": 1}),
    "recurrent": ("PPO", NUMBERS, CHOICE, {"unroll": 8, "minibatches": 1, "model": "RecurrentActorCritic"}),
    "recurrent values": ("R2D2", NUMBERS, CHOICE, {**SMALL, "sequence": 3, "burn_in": 1}),
    "recurrent Gaussian": ("RSAC", NUMBERS, SCALED, {**SMALL, "random_steps": 8, "sequence": 3, "burn_in": 1}),
    "attention over the past": ("DecisionTransformer", NUMBERS, CHOICE, {**SMALL, "target_return": 5.0}),
    "several heads": ("BootstrappedDQN", NUMBERS, CHOICE, SMALL),
    "a population": ("ES", NUMBERS, CHOICE, {"population": 8}),
    "a table": ("QLearning", Discrete(6), Discrete(4), {}),
    "frames, normaliser": ("PPO", NUMBERS, CHOICE, {"unroll": 8, "minibatches": 1, "transforms": WIDE}),
    "scaled images": ("PPO", IMAGE, CHOICE, {"unroll": 8, "minibatches": 1, "transforms": [ImageScale(-1.0)]}),
}


def robot_of(name):
    """The robot of a case, after some updates."""
    algorithm, obs, act, more = CASES[name]
    one = 1 if algorithm == "QLearning" else 2
    robot = Robot.of(algorithm, lambda: Steps(obs, act), seed=0, total_steps=400, **{"n_agents": one, **more})
    robot.run(64)
    return robot


