"""Random actions: even over every kind of space, legal, for the first steps of a run and in collections; resumed exactly."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_fakes import Corridor, Noisy, Recorder, dqn, ppo, robot_of, weights
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from parl_like import Agent, OffPolicyHelper, OnPolicyHelper, VectorAgent
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.learning.explorers import random_actions
from parl_like.learning.model import Model
from parl_like.values.action_codec import ActionCodec

N = 20_000


def drawn(space, masks=None, n=N):
    made = random_actions(space, np.random.default_rng(0), n, masks or {})
    return made.pop("log_prob"), made


def even(act, expected):
    found = np.bincount(act, minlength=len(expected)) / len(act)
    expected = np.asarray(expected)
    return bool((np.abs(found - expected) <= 4 * np.sqrt(expected * (1 - expected) / len(act))).all())


def test_choices_are_even_over_the_legal_ones():
    log_prob, made = drawn(Discrete(4, start=3))
    assert even(made["act"], [0.25] * 4) and np.allclose(log_prob, -np.log(4))
    log_prob, made = drawn(Discrete(4), {"mask": np.array([[1, 0, 1, 0]] * N)})
    assert even(made["act"], [0.5, 0, 0.5, 0]) and np.allclose(log_prob, -np.log(2))
    log_prob, made = drawn(Discrete(4), {"mask": np.zeros((N, 4))})
    assert even(made["act"], [0.25] * 4)
    log_prob, made = drawn(MultiDiscrete([2, 3]), {"mask": np.array([[1, 1, 0, 1, 1]] * N)})
    assert even(made["act"][:, 0] * 3 + made["act"][:, 1], [0, 0.25, 0.25] * 2) and np.allclose(log_prob, -np.log(4))
    log_prob, made = drawn(MultiBinary((2, 2)))
    assert even(made["act"] @ [8, 4, 2, 1], [1 / 16] * 16) and np.allclose(log_prob, -np.log(16))


def test_numbers_are_even_between_the_bounds():
    log_prob, made = drawn(Box(np.float32([0, -10]), np.float32([1, 30])))
    env = ActionCodec(Box(np.float32([0, -10]), np.float32([1, 30]))).to_env(made)
    assert made["act"].dtype == np.float32 and np.allclose(log_prob, -2 * np.log(2))
    for column, low, high in zip(env.T, (0, -10), (1, 30), strict=True):
        assert even(((column - low) / (high - low) * 5).astype(int).clip(0, 4), [0.2] * 5)
    whole = Box(0, 2, (1,), np.int8)  # rounded numbers would give 1 twice as often as 0 and 2
    log_prob, made = drawn(whole)
    assert even(ActionCodec(whole).to_env(made)[:, 0].astype(int), [1 / 3] * 3) and np.allclose(log_prob, -np.log(3))
    # A policy's density is that of its own numbers, here 2 / 255 apart; or the ratio of the two would be wrong by that.
    log_prob, made = drawn(Box(0, 255, (2,), np.uint8))
    assert np.allclose(log_prob, -2 * np.log(256 * 2 / 255))
    log_prob, made = drawn(Box(3, 3, (1,), np.uint8))
    assert not log_prob.any()


def test_where_a_bound_is_missing_the_distributions_are_those_of_gymnasium():
    space = Box(np.float32([-np.inf, 5, -np.inf, 0]), np.float32([np.inf, np.inf, -3, 4]))
    log_prob, made = drawn(space)
    act = made["act"].astype(np.float64)
    assert all(space.contains(row) for row in made["act"][:500])
    for column, mean, std in zip(act.T, (0, 6, -4, 2), (1, 1, 1, 4 / np.sqrt(12)), strict=True):
        assert abs(column.mean() - mean) < 4 * std / np.sqrt(N) and column.std() == pytest.approx(std, rel=0.05)
    hand = -0.5 * act[:, 0] ** 2 - 0.5 * np.log(2 * np.pi) - (act[:, 1] - 5) - (-3 - act[:, 2]) - np.log(4)
    np.testing.assert_allclose(log_prob, hand, atol=1e-4)


def test_a_nested_action_is_drawn_part_by_part():
    space = Dict(arm=Dict(grip=Discrete(2), turn=Box(-1, 1, (2,), np.float32)), gear=Discrete(3))
    log_prob, made = drawn(space, {"mask.arm.grip": np.array([[0, 1]] * N)})
    assert set(made) == {"act.arm.grip", "act.arm.turn", "act.gear"}
    assert (made["act.arm.grip"] == 1).all() and even(made["act.gear"], [1 / 3] * 3)
    assert np.allclose(log_prob, -2 * np.log(2) - np.log(3))


# ----------------------------------------------------------------------------------------------------------- the first steps


class Always(Model):
    """For actions that are always the same."""

    def __init__(self, obs, act):
        super().__init__(obs, act)
        self.w = torch.nn.Parameter(torch.ones(1))


def columns_of(tree):
    """The rows of all buffers in a saved state."""
    if not isinstance(tree, dict):
        return []
    return [tree["columns"]] if "columns" in tree else [columns for part in tree.values() for columns in columns_of(part)]


def off(**options):
    return lambda: OffPolicyHelper(**{"size": 5000, "batch_size": 8, "learn_every": 8, **options})


@pytest.mark.parametrize("agent", [Agent, lambda: VectorAgent(3)], ids=["single", "vector"])
def test_the_first_steps_of_each_environment_are_random_and_stored_as_all_others(agent):
    """200 steps of 2 agents, or of 6 environments (34 each); then the rule: action 0."""
    with robot_of(Recorder(), off(random_steps=200), env=lambda: Corridor(7), agent=agent, n_agents=2, seed=3) as robot:
        robot.run(StopAfterSteps(600))
        buffer = robot.buffers["RL"]
        share = -(-200 // buffer.n_lanes)
        for lane in range(buffer.n_lanes):
            act = buffer.lane_rows(lane)["act"]
            assert not act[share:].any() and abs(act[:share].mean() - 0.5) < 4 * 0.5 / np.sqrt(share)
        assert robot.tasks["RL"].learns > 0
        assert set(robot.evaluate(1).lengths) == {7}
        env = robot.agents[0].env
        if agent is Agent:
            played = [entry for entry in env.log if not isinstance(entry, tuple)]
            assert played == buffer.lane_rows(0)["act"].tolist()


def test_random_steps_are_legal_scaled_and_stored_in_the_policys_units():
    class Arm(gym.Env):
        observation_space = Dict(at=Box(0, 99, (1,), np.float32), mask=Dict(grip=MultiBinary(3)))
        action_space = Dict(grip=Discrete(3, start=5), turn=Box(10, 30, (1,), np.float32))

        def obs(self):
            mask = np.zeros(3, np.int8)
            mask[[self.t % 3, (self.t + 1) % 3]] = 1
            return {"at": np.float32([self.t]), "mask": {"grip": mask}}

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.t = 0
            return self.obs(), {}

        def step(self, act):
            assert self.action_space.contains(act) and (act["grip"] - 5 - self.t) % 3 != 2
            self.t += 1
            return self.obs(), 0.0, False, self.t == 20, {}

    class Still(Recorder):
        def predict(self, inputs):
            n = len(inputs.obs.at)
            return {"act": {"grip": inputs.obs.mask.grip.argmax(1), "turn": torch.zeros(n, 1)}}

    for agent in (Agent, lambda: VectorAgent(2)):
        still = Still(Always(Arm.observation_space, Arm.action_space))
        with robot_of(still, off(random_steps=100), env=Arm, agent=agent) as robot:
            robot.run(StopAfterSteps(140))
            rows = [robot.buffers["RL"].lane_rows(lane) for lane in range(robot.buffers["RL"].n_lanes)]
            share = 100 // len(rows)
            grip, turn = (np.concatenate([row[name][:share] for row in rows]) for name in ("act.grip", "act.turn"))
            assert set(grip.tolist()) == {0, 1, 2} and -1 <= turn.min() < -0.8 and 0.8 < turn.max() <= 1
            assert not any(row["act.turn"][share:].any() for row in rows)


@pytest.mark.parametrize("agent", [Agent, lambda: VectorAgent(2)], ids=["single", "vector"])
@pytest.mark.parametrize("at", [40, 90])
def test_a_run_that_is_resumed_among_its_random_steps_is_the_one_that_went_on(at, agent):
    def make():
        return robot_of(dqn(Noisy), off(random_steps=60), env=Noisy, agent=agent, n_agents=2, seed=5, trace=True)

    with make() as robot:
        robot.run(StopAfterSteps(at))
        robot.checkpoint_boundary()
        state = robot.state_dict()
        robot.run(StopAfterSteps(160))
        expected = robot.trace_hash(), weights(robot)
    with make() as again:
        again.load_state_dict(state)
        again.run(StopAfterSteps(160))
        assert (again.trace_hash(), weights(again)) == expected


def test_random_steps_of_workers():
    """Of two workers with an agent each, both begin with 30 random steps."""
    with robot_of(Recorder(), off(random_steps=30), env=lambda: Corridor(7), n_agents=2, driver="processes", seed=3) as robot:
        robot.run(StopAfterSteps(200))
        robot.checkpoint_boundary()
        acts = [columns["act"] for columns in columns_of(robot.state_dict())]
        assert len(acts) == 2 and all(5 < act[:30].sum() < 25 and not act[30:].any() for act in acts)


# --------------------------------------------------------------------------------------------------------------- collections


def test_a_collection_may_be_random():
    with robot_of(Recorder(), off(warmup=500), env=lambda: Corridor(7), n_agents=2, seed=1) as robot:
        robot.collect(n_step=100, random=True)
        robot.collect(n_episode=2)
        act = robot.buffers["RL"].lane_rows(0)["act"]
        assert 10 < act[:50].sum() < 40 and not act[50:].any() and robot.tasks["RL"].learns == 0


def test_a_random_collection_of_workers():
    with robot_of(Recorder(), off(warmup=500), env=lambda: Corridor(5), n_agents=2, driver="processes", seed=1) as robot:
        robot.collect(n_episode=20, random=True)
        robot.checkpoint_boundary()
        act = np.concatenate([columns["act"] for columns in columns_of(robot.state_dict())])
        assert len(act) == 100 and 25 < act.sum() < 75


def test_rows_of_a_random_collection_know_the_probability_of_their_actions():
    """Uniform over 2 actions, whatever the policy says; and the rows say so."""
    with robot_of(ppo(Noisy), lambda: OnPolicyHelper(unroll=40, store_policy=True), env=Noisy, seed=1) as robot:
        robot.collect(n_step=30, random=True)
        np.testing.assert_allclose(robot.buffers["RL"].lane_rows(0)["policy.log_prob"], np.log(0.5), atol=1e-6)
        outputs = robot.agents[0].helpers["RL"].outputs
        assert {"logits", "act", "log_prob"} <= set(outputs)


def test_random_steps_are_a_count():
    with pytest.raises(ValueError, match="random_steps is -1"):
        OffPolicyHelper(random_steps=-1)
