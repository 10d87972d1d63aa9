"""Helpers with the whole room of experience: transforms, prioritised and frame-stacking buffers, sequences."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_fakes import Corridor, Noisy, Plain, Recorder, a2c, dqn, robot_of, rows
from gymnasium.spaces import Box, Dict, Discrete

from parl_like import (
    Agent,
    ComputationTask,
    EpisodicHelper,
    OffPolicyHelper,
    OnPolicyHelper,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    Robot,
    VectorAgent,
    create_algorithm_func,
)
from parl_like.algorithms import DQN
from parl_like.data.transforms import (
    FrameStacker,
    Hindsight,
    ImageScale,
    ObservationClip,
    ObservationNormalizer,
    RewardClipping,
    RewardNormalizer,
    RewardScaling,
    Transforms,
)
from parl_like.environment.stop_conditions import StopAfterEpisodes, StopAfterSteps
from parl_like.learning.algorithm import Algorithm, Window
from parl_like.learning.model import Model
from parl_like.values.errors import NotEnoughRows
from parl_like.values.spec import Spec, SpecError


def off(**options):
    return lambda: OffPolicyHelper(**{"size": 100, "batch_size": 4, "learn_every": 4, **options})


# ------------------------------------------------------------------------------------------------------------------ transforms


class Seen(Recorder):
    """Remembers what it is asked, too."""

    def __init__(self, model=None, **options):
        super().__init__(model, **options)
        self.asked = []

    def predict(self, inputs):
        self.asked.append({name: leaf.numpy().copy() for name, leaf in inputs.leaves().items()})
        return {"act": torch.zeros(len(next(iter(inputs.leaves().values()))), dtype=torch.int64)}


@pytest.mark.parametrize("schedule", ["off", "on", "episodic"])
@pytest.mark.parametrize("vector", [False, True])
def test_a25_rows_are_stored_raw_and_pass_the_chain_on_rollout_and_on_replay(schedule, vector):
    chain = lambda: [ObservationClip(0.0, 3.0), RewardScaling(10.0)]  # noqa: E731
    make = {
        "off": lambda: OffPolicyHelper(size=100, batch_size=30, learn_every=30, transforms=chain()),
        "on": lambda: OnPolicyHelper(unroll=10, transforms=chain()),
        "episodic": lambda: EpisodicHelper(transforms=chain()),
    }[schedule]
    algorithm = Seen(Plain(Box(0.0, 3.0, (1,), np.float32)))
    with robot_of(algorithm, make, lambda: Corridor(6), agent=partial(VectorAgent, 2) if vector else Agent) as robot:
        robot.collect(n_episode=1) if schedule == "off" else None
        robot.run(StopAfterSteps(60))
        stored = robot.buffers["RL"].columns
        assert stored["obs"].max() == (6 if schedule == "episodic" and vector else 5) or stored["obs_next"].max() == 6
        assert set(np.unique(stored["rew"])) <= {0.0, 1.0}
    assert max(asked["obs"].max() for asked in algorithm.asked) == 3
    update = algorithm.updates_seen[0]
    assert update["obs"].max() == update["obs_next"].max() == 3 and set(update["rew"]) == {10.0}


def pixels():
    class Pixels(Corridor):
        """The position as a picture of 2 × 2."""

        def __init__(self):
            super().__init__(6, end="truncated")
            self.observation_space = Box(0, 255, (2, 2), np.uint8)

        def obs(self):
            return np.full((2, 2), self.at, np.uint8)

    return Pixels()


@pytest.mark.parametrize("agent", [Agent, partial(VectorAgent, 3)], ids=["plain", "vector"])
def test_frames_are_stacked_on_rollout_as_on_replay(agent):
    chain = lambda: [FrameStacker(3), ImageScale()]  # noqa: E731
    space = Transforms(chain()).space(pixels().observation_space)
    algorithm = Seen(Plain(space))
    helper = off(batch_size=16, learn_every=2, transforms=chain(), buffer=partial(ReplayBuffer, ignore_obs_next=True))
    with robot_of(algorithm, helper, pixels, agent=agent) as robot:
        robot.run(StopAfterSteps(40))
        assert robot.buffers["RL"].columns["obs"].dtype == np.uint8 and robot.buffers["RL"].columns["obs"].shape[1:] == (2, 2)
    expected = [[max(t - 2, 0), max(t - 1, 0), t] for t in range(7)]
    close = lambda frames: np.round(frames[:, 0, 0] * 255).astype(int).tolist()  # noqa: E731
    asked = [close(one) for batch in algorithm.asked[1:] for one in batch["obs"]]
    assert all(frames in expected[:6] for frames in asked) and asked[-1] != asked[0]
    for update in algorithm.updates_seen:
        for obs, obs_next in zip(update["obs"], update["obs_next"], strict=True):
            assert expected[expected.index(close(obs)) + 1] == close(obs_next)


def test_statistics_are_shared_saved_and_left_alone_by_evaluation(tmp_path):
    def build():
        return robot_of(dqn(Noisy), off(size=1000, transforms=[ObservationNormalizer()]), Noisy, n_agents=3, trace=True)

    with build() as robot, build() as other:
        robot.run(StopAfterSteps(100))
        state = robot.transforms["RL"].state_dict()
        assert state
        for agent in robot.agents:
            assert str(agent.helpers["RL"].transforms.state_dict()) == str(state)  # the same numbers, whoever learned
        robot.evaluate(3)
        assert str(robot.transforms["RL"].state_dict()) == str(state)
        robot.save(tmp_path / "state")
        other.load(tmp_path / "state")
        assert str(other.transforms["RL"].state_dict()) == str(state)
        for each in (robot, other):
            each.run(StopAfterSteps(100))
        assert robot.trace_hash() == other.trace_hash()
        assert str(robot.transforms["RL"].state_dict()) != str(state)


def test_a_chain_of_another_robot_is_refused(tmp_path):
    with robot_of(dqn(Noisy), off(transforms=[ObservationNormalizer()]), Noisy) as robot:
        robot.save(tmp_path / "state")
    with robot_of(dqn(Noisy), off(), Noisy) as plain, pytest.raises(ValueError, match="build the robot as it was saved"):
        plain.load(tmp_path / "state")


def test_a27_reading_says_what_it_means():
    chain = lambda: [RewardClipping(-0.5, 0.5), ObservationClip(0.0, 2.0)]  # noqa: E731
    with robot_of(Recorder(Plain(Box(0.0, 2.0, (1,), np.float32))), off(transforms=chain()), lambda: Corridor(5)) as robot:
        robot.run(StopAfterEpisodes(1))
        helper = robot.agents[0].helpers["RL"]
        assert helper.read(slice(None), "rew").tolist() == [0.5] * 5
        assert helper.read(slice(None), "rew", transformed=False).tolist() == [1.0] * 5
        assert helper.read(np.array([4, 1]), "obs").tolist() == [[2], [1]]
        assert helper.read(4, "obs", transformed=False).tolist() == [4] and helper.read(4, "obs").tolist() == [2]
        with pytest.raises(KeyError, match="no field 'reward'"):
            helper.read(0, "reward")
        with pytest.raises(IndexError, match="position 7 holds no row"):
            helper.read(7, "rew")


@pytest.mark.parametrize(
    ("chain", "model", "message"),
    [
        (
            [FrameStacker(3)],
            Box(0.0, 1000.0, (1,), np.float32),
            r"field 'obs': expected \(1,\) float32, got \(3, 1\) float32 from "
            r"Transforms",
        ),
        (
            [ObservationClip(0, 1)],
            Dict(a=Box(0.0, 1.0, (1,), np.float32)),
            "the model takes obs.a, the transforms make obs; build it for",
        ),
    ],
)
def test_a_model_for_other_observations_is_refused_at_once(chain, model, message):
    with pytest.raises(SpecError, match=message):
        robot_of(Recorder(Plain(model)), off(transforms=chain), Corridor)


class Reach(gym.Env):
    """A point on a line that shall reach a goal: hindsight makes something of every failure."""

    action_space = Discrete(2)
    observation_space = Dict(observation=Box(-9, 9, (1,), np.float32), achieved_goal=Box(-9, 9, (1,), np.float32),
                             desired_goal=Box(-9, 9, (1,), np.float32))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t, self.goal = 0.0, 0, float(self.np_random.choice([-4, -3, 3, 4]))
        return self.obs(), {}

    def obs(self):
        x = np.array([self.x], np.float32)
        return {"observation": x, "achieved_goal": x, "desired_goal": np.array([self.goal], np.float32)}

    def step(self, act):
        self.x += 2.0 * int(act) - 1
        self.t += 1
        return self.obs(), 0.0 if self.x == self.goal else -1.0, False, self.t == 6, {}


def test_hindsight_relabels_and_normalises_alike():
    algorithm = Seen(Plain(Reach.observation_space))
    helper = off(size=500, batch_size=64, learn_every=8,
                 transforms=[Hindsight(), ObservationNormalizer(fields=("obs.desired_goal",))])
    with robot_of(algorithm, helper, Reach, n_agents=2) as robot:
        robot.run(StopAfterSteps(300))
        assert {-4.0, -3.0, 3.0, 4.0} >= set(np.unique(robot.buffers["RL"].columns["obs.desired_goal"]).tolist()) - {0.0}
    update = algorithm.updates_seen[-1]
    same = np.isclose(update["obs.desired_goal"], update["obs_next.desired_goal"]).all()
    assert same and len(np.unique(np.round(update["obs.desired_goal"], 4))) > 4 and (update["rew"] == 0).any()


# ------------------------------------------------------------------------------------------------------------------ prioritised


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_training_return_sets_priorities(driver, mode):
    helper = off(size=1000, batch_size=8, learn_every=2, buffer=partial(PrioritizedReplayBuffer, alpha=1.0))
    with robot_of(dqn(Noisy), helper, Noisy, n_agents=3, driver=driver, mode=mode) as robot:
        robot.run(StopAfterSteps(300))
        buffer = robot.buffers["RL"]
        weights = buffer._sum[buffer.sample_indices(0)]
        assert len(np.unique(np.round(weights, 6))) > 50 and buffer.batches_drawn >= robot.tasks["RL"].learns
        before = buffer._sum.values
        robot.update("RL", 32)
        assert (buffer._sum.values != before).any()


def test_priorities_are_those_of_the_rows_that_were_learned_from():
    """With Q = 0 and no bootstrap the TD error of a row is its reward."""
    class Zero(Algorithm):
        def predict(self, inputs):
            return {"act": torch.zeros(len(inputs.obs), dtype=torch.int64)}

        def learn(self, batch):
            assert batch.weight.shape == batch.rew.shape
            return {"loss": (batch.weight * self.model.w).sum(), "priority": batch.obs[:, 0]}

    helper = off(size=40, batch_size=6, learn_every=1, buffer=partial(PrioritizedReplayBuffer, alpha=1.0, beta=0.0))
    with robot_of(Zero(Plain()), helper, lambda: Corridor(7), n_agents=4) as robot:
        robot.run(StopAfterSteps(400))
        buffer = robot.buffers["RL"]
        for position in buffer.sample_indices(0).tolist():
            assert round(buffer._sum[position], 3) in (buffer.obs[position, 0], 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
        learned = np.array([round(buffer._sum[p], 3) == buffer.obs[p, 0] for p in buffer.sample_indices(0)])
        assert learned.mean() > 0.5


def test_rows_keep_their_priorities_where_a_step_was_left_out_before_they_were_said():
    class Late(Recorder):
        turn = 0

        def learn(self, batch):
            self.turn += 1
            yield {"loss": self.model.w.sum() * (torch.nan if self.turn % 2 else 1.0)}
            return {"priority": torch.full((len(batch.rew),), 3.0)}

    with robot_of(Late(), off(learn_every=1, buffer=PrioritizedReplayBuffer)) as robot:
        robot.run(StopAfterSteps(8))
        assert (robot.tasks["RL"].skipped, robot.tasks["RL"].algorithm.updates) == (3, 2)


def test_an_algorithm_without_priorities_is_told_so():
    with robot_of(Recorder(), off(buffer=PrioritizedReplayBuffer)) as robot:
        with pytest.raises(Exception, match="a prioritised buffer needs a `priority` for each row; learn of Recorder returned "
                                            "loss"):
            robot.run(StopAfterSteps(20))


def test_dqn_weighs_its_rows():
    func = dqn(Noisy, n_step=3)
    robots = [
        robot_of(func, off(batch_size=16, learn_every=100, buffer=b), Noisy, seed=3)
        for b in (ReplayBuffer, PrioritizedReplayBuffer)
    ]
    for robot in robots:
        robot.collect(n_step=60)
    plain, prioritised = robots
    rows_of = plain.agents[0].helpers["RL"].sample(16)[0]
    same = {**{n: v.copy() for n, v in rows_of.items()}, "weight": np.ones(16, np.float32)}
    one = plain.tasks["RL"].learn(rows_of)
    two = prioritised.tasks["RL"].learn(same)
    assert one["loss"] == pytest.approx(two["loss"], rel=1e-6) and two["priority"].shape == (16,)
    assert (two["priority"] >= 0).all()


# -------------------------------------------------------------------------------------------------- frames, sequences, masks


@pytest.mark.parametrize("ignore", [True, False])
def test_a_buffer_may_stack_what_the_environment_stacks(ignore):
    """The environment gives stacks, the buffer keeps single frames, the algorithm gets stacks."""
    make = lambda: gym.wrappers.FrameStackObservation(pixels(), 3)  # noqa: E731
    algorithm = Seen(Plain(make().observation_space))
    buffer = partial(ReplayBuffer, stack_num=3, save_only_last_obs=True, ignore_obs_next=ignore)
    with robot_of(algorithm, off(batch_size=16, learn_every=2, buffer=buffer), make) as robot:
        robot.run(StopAfterSteps(40))
        assert robot.buffers["RL"].columns["obs"].shape[1:] == (2, 2)
        assert ("obs_next" in robot.buffers["RL"].columns) is not ignore
    expected = [[max(t - 2, 0), max(t - 1, 0), t] for t in range(7)]
    for update in algorithm.updates_seen:
        for obs, obs_next in zip(update["obs"][..., 0, 0].tolist(), update["obs_next"][..., 0, 0].tolist(), strict=True):
            assert expected[expected.index(obs) + 1] == obs_next


class Sequences(Recorder):
    window = Window(sequence=4, burn_in=2)


@pytest.mark.parametrize("buffer", [ReplayBuffer, PrioritizedReplayBuffer])
def test_sequences_with_burn_in(buffer):
    class Remembers(Plain):
        def state_specs(self):
            return {"t": Spec("t", (1,), np.dtype(np.float32))}

    class Counts(Sequences):
        """Its memory counts the steps of the episode."""

        def predict(self, inputs):
            return {"act": torch.zeros(len(inputs.obs), dtype=torch.int64), "state": {"t": inputs.state.t + 1}}

        def learn(self, batch):
            return {**super().learn(batch), "priority": torch.ones(len(batch.rew))}

    algorithm = Counts(Remembers())
    with robot_of(algorithm, off(size=1000, batch_size=16, learn_every=2, buffer=buffer), lambda: Corridor(9),
                  n_agents=2) as robot:
        robot.run(StopAfterSteps(200))
    assert algorithm.updates_seen
    for update in algorithm.updates_seen:
        assert update["obs"].shape == (16, 6, 1) and update["valid"].shape == (16, 6) and update["state.t"].shape == (16, 1)
        for obs, valid, state, terminated in zip(update["obs"][..., 0], update["valid"], update["state.t"], update["terminated"],
                                                 strict=True):
            real = obs[valid]
            assert (np.diff(real) == 1).all() and valid[2]  # consecutive, the sampled row included
            assert state == obs[0]  # the memory before the first row of the window
            assert valid.all() or obs[0] == real[0] == 0 or terminated[valid][-1]  # cut at the ends of episodes only


def test_sequences_need_rows_to_look_at():
    with pytest.raises(ValueError, match=r"the algorithm looks at 6 rows in a row, a lane of the buffer holds 5; give the "
                                         r"helper size ≥ 12"):
        robot_of(Sequences(), off(size=10), n_agents=2)
    with pytest.raises(ValueError, match="looks at 9 rows in a row, a lane of the buffer holds 8"):
        robot_of(dqn(n_step=9), off(size=8))
    for wrong in (dict(n_step=0), dict(sequence=0), dict(burn_in=-1), dict(sequence=3, n_step=2), dict(burn_in=3, in_order=True)):
        with pytest.raises(ValueError, match="expected|goes with neither"):
            Window(**wrong)


class Masked(gym.Env):
    """Of three actions only those that the observation's mask allows are legal; an illegal one is an error."""

    action_space = Discrete(3)
    observation_space = Dict(obs=Box(0, 9, (2,), np.float32), mask=Box(0, 1, (3,), np.int8))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def look(self):
        self.mask = np.zeros(3, np.int8)
        self.mask[self.np_random.permutation(3)[: self.np_random.integers(1, 3)]] = 1
        return {"obs": np.array([self.t, 0], np.float32), "mask": self.mask}

    def step(self, act):
        assert self.mask[act], "an illegal action"
        self.t += 1
        return self.look(), 1.0, self.t == 8, False, {}


class MaskedQ(Model):
    def __init__(self):
        super().__init__(Masked.observation_space, Masked.action_space)
        self.net = torch.nn.Linear(2, 3)

    def q(self, obs):
        return self.net(obs["obs"]).masked_fill(obs["mask"] == 0, -1e9)


def test_masks_of_legal_actions_are_stored_and_replayed():
    func = create_algorithm_func(MaskedQ, {}, DQN, dict(epsilon=0.5, target_period=5))
    with Robot(Masked, tasks={"RL": ComputationTask(func, off(size=200, buffer=partial(ReplayBuffer, ignore_obs_next=True)))},
               n_agents=2) as robot:
        robot.run(StopAfterSteps(200))
        batch = robot.buffers["RL"].sample(64)[0]
        assert batch.obs["mask"].dtype == np.int8 and (batch.obs["mask"][np.arange(64), batch.act] == 1).all()
        assert robot.tasks["RL"].learns > 20
        assert robot.evaluate(5).mean_return == 8


def test_on_policy_transforms_keep_views_out_of_the_buffer():
    helper = lambda: OnPolicyHelper(unroll=8, transforms=[RewardScaling(2.0)])  # noqa: E731
    with robot_of(a2c(Noisy), helper, Noisy, n_agents=2) as robot:
        robot.run(StopAfterSteps(64))
        assert rows(robot)["rew"].shape[0] <= 9 and robot.tasks["RL"].learns == 4


# ------------------------------------------------------------------------------------------------- found by a review


@pytest.mark.parametrize("schedule", ["on", "episodic"])
@pytest.mark.parametrize("agent", [Agent, partial(VectorAgent, 2)], ids=["plain", "vector"])
def test_on_policy_updates_have_the_frames_that_were_acted_on(schedule, agent):
    """Frames reach back over the border of two unrolls, where the rows before were forgotten."""
    chain = lambda: [FrameStacker(3), ImageScale(low=0.0)]  # noqa: E731
    algorithm = Seen(Plain(Transforms(chain()).space(pixels().observation_space)))
    make = {"on": lambda: OnPolicyHelper(unroll=4, transforms=chain()),
            "episodic": lambda: EpisodicHelper(max_steps=4, transforms=chain())}
    with robot_of(algorithm, make[schedule], pixels, agent=agent) as robot:
        robot.run(StopAfterSteps(36))
    expected = [[max(t - 2, 0), max(t - 1, 0), t] for t in range(7)]
    learned = 0
    for update in algorithm.updates_seen:
        for obs, obs_next in zip(update["obs"][..., 0, 0] * 255, update["obs_next"][..., 0, 0] * 255, strict=True):
            assert expected[expected.index(np.round(obs).astype(int).tolist()) + 1] == np.round(obs_next).astype(int).tolist()
            learned += 1
    assert 28 <= learned <= 36  # every row once


def test_rows_without_an_error_are_still_drawn():
    class Nothing(Corridor):
        def obs(self):
            return np.zeros(1, np.float32)

        def step(self, act):
            return self.obs(), 0.0, False, False, {}

    func = dqn(Nothing, lr=1e-9)
    helper = off(size=50, batch_size=16, learn_every=1, buffer=partial(PrioritizedReplayBuffer, alpha=1.0))
    with robot_of(func, helper, Nothing) as robot:
        with torch.no_grad():
            for parameter in robot.tasks["RL"].algorithm.parameters():
                parameter.zero_()
        robot.tasks["RL"].algorithm.target.sync_from(robot.tasks["RL"].algorithm.model)
        robot.run(StopAfterSteps(200))
        buffer = robot.buffers["RL"]
        assert (buffer._sum[buffer.sample_indices(0)] > 0).all() and robot.tasks["RL"].learns > 100
        assert np.isfinite(robot.update("RL")["loss"])


def test_padding_of_sequences_and_rows_of_a_reset_do_not_count():
    class Normalised(Sequences):
        pass

    chain = [RewardNormalizer()]
    algorithm = Normalised(Plain())
    with robot_of(algorithm, off(size=200, batch_size=16, learn_every=2, transforms=chain), lambda: Corridor(3)) as robot:
        robot.run(StopAfterSteps(60))
        moments = robot.transforms["RL"].state_dict()["0 RewardNormalizer"]["rew"]
        assert moments["n"] == sum(update["valid"].sum() for update in algorithm.updates_seen)
    rollout = [RewardNormalizer(update_on="rollout")]
    with robot_of(Recorder(), off(transforms=rollout), lambda: Corridor(3), agent=partial(VectorAgent, 2)) as robot:
        robot.run(StopAfterSteps(60))
        moments = robot.transforms["RL"].state_dict()["0 RewardNormalizer"]["rew"]
        assert moments["n"] == len(robot.buffers["RL"]) and moments["mean"] == 1


@pytest.mark.parametrize(
    ("algorithm", "helper", "message"),
    [
        (
            lambda: Sequences(),
            lambda: OnPolicyHelper(unroll=4),
            "Sequences asks for Window.*sends whole segments; use OffPolicyHelper",
        ),
        (dqn(n_step=3), lambda: OnPolicyHelper(unroll=4), "DQN asks for Window"),
        (a2c(), off(), r"A2C learns from rows in order \(in_order\), OffPolicyHelper sends random ones; use OnPolicyHelper"),
        (
            lambda: Recorder(),
            off(buffer=partial(ReplayBuffer, stack_num=3)),
            r"expected \(1,\) float32, got \(3, 1\) from "
            r"ReplayBuffer",
        ),
        (
            lambda: Sequences(Plain(Box(0.0, 1000.0, (4, 1), np.float32))),
            off(size=8, transforms=[FrameStacker(4)]),
            "looks at 9 rows in a row, a lane of the buffer holds 8",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_before_it_runs(algorithm, helper, message):
    with pytest.raises(ValueError, match=message):
        robot_of(algorithm, helper, Corridor)


def test_hindsight_is_for_rows_that_stand_alone_and_buffers_of_single_frames():
    class Twos(Recorder):
        window = Window(sequence=2)

    helper = off(transforms=[Hindsight()])
    with pytest.raises(ValueError, match=r"expected rows that stand alone: Window\(sequence=1\)"):
        robot_of(Twos(Plain(Reach.observation_space)), helper, Reach)
    from parl_like.data.transforms import Source

    buffer = ReplayBuffer(9, stack_num=2)
    row = {"achieved_goal": np.zeros(1), "desired_goal": np.ones(1)}
    for _ in range(4):
        buffer.add(dict(obs=row, act=0, rew=-1.0, terminated=False, truncated=False, obs_next=row))
    at = np.arange(4)
    with pytest.raises(ValueError, match="expected a buffer of single frames; put FrameStacker behind, got stack_num=2"):
        Hindsight().replay(buffer.gather(at), Source(buffer, at, np.random.default_rng(0), at))


def test_too_few_rows_for_a_sequence_say_so():
    with robot_of(Sequences(), off(size=200)) as robot:
        robot.collect(n_step=3)
        with pytest.raises(NotEnoughRows):
            robot.agents[0].helpers["RL"].sample(2)


def test_offline_data_is_checked_as_it_is_read():
    data = ReplayBuffer(20, stack_num=3, save_only_last_obs=True, ignore_obs_next=True)
    stack = np.zeros((3, 2), np.float32)
    for i in range(20):
        data.add(dict(obs=stack, act=0, rew=0.0, terminated=False, truncated=i == 19, obs_next=stack))
    from parl_like import OfflineHelper

    with robot_of(Recorder(Plain(Box(-1, 1, (3, 2), np.float32))), lambda: OfflineHelper(data, batch_size=4), None) as robot:
        assert robot.update("RL", 4)["loss"] == 1
    with pytest.raises(SpecError, match=r"expected \('N', 2\) float32, got \('N', 3, 2\) float32"):
        robot_of(Recorder(Plain(Box(-1, 1, (2,), np.float32))), lambda: OfflineHelper(data, batch_size=4), None)
    with pytest.raises(ValueError, match="transforms need the space of raw observations, and there is no environment; give the "
                                         "helper obs_space="):
        robot_of(Recorder(), lambda: OfflineHelper(data, batch_size=4, transforms=[RewardScaling(2.0)]), None)


def test_done_can_be_read_through_transforms():
    with robot_of(Recorder(), off(transforms=[RewardScaling(2.0)]), lambda: Corridor(3)) as robot:
        robot.run(StopAfterEpisodes(1))
        assert robot.agents[0].helpers["RL"].read(slice(None), "done").tolist() == [False, False, True]
