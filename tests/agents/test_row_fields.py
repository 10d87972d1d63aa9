"""Fields of rows that an algorithm asks for, and data in its stored order."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
from agent_fakes import Corridor, Noisy, Plain, Recorder, robot_of

from parl_like import Agent, OfflineHelper, OffPolicyHelper, OnPolicyHelper, ReplayBuffer, VectorAgent
from parl_like.data.datasets import from_arrays
from parl_like.data.transforms import RewardScaling
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.learning.algorithm import Window

ALL = ("first", "lane", "episode", "next_act")


class Asks(Recorder):
    """Takes actions 0 and 1 by turns along the corridor."""

    def __init__(self, **window):
        super().__init__(rule=lambda obs: obs[:, 0].long() % 2)
        self.window = Window(**{"fields": ALL, **window})


def on(**options):
    return lambda: OnPolicyHelper(**{"unroll": 4, **options})


def off(**options):
    return lambda: OffPolicyHelper(**{"size": 1000, "batch_size": 16, "learn_every": 8, **options})


def test_an_unroll_by_hand():
    """Corridors of 3, updates of 4 rows: positions 0 1 2 0 | 1 2 0 1; the last row of an update does not know its next yet."""
    with robot_of(Asks(), on(), env=lambda: Corridor(3)) as robot:
        robot.run(StopAfterSteps(8))
        first, second = robot.tasks["RL"].algorithm.updates_seen
    assert first["first"].tolist() == [True, False, False, True] and second["first"].tolist() == [False, False, True, False]
    assert first["episode"].tolist() == [0, 0, 0, 1] and second["episode"].tolist() == [1, 1, 2, 2]
    assert first["has_next"].tolist() == [True, True, False, False]  # an end, and a row that is not there yet
    assert first["next_act"].tolist() == [1, 0, 0, 0] and first["act"].tolist() == [0, 1, 0, 0]
    assert set(first["lane"].tolist()) == {0}


@pytest.mark.parametrize("driver", ["cooperative", "processes"])
@pytest.mark.parametrize("agent", [Agent, lambda: VectorAgent(2)], ids=["single", "vector"])
def test_lanes_and_episodes_are_told_apart(agent, driver):
    """Also where each worker counts its lanes from 0: in an update of all agents, the rows of one lane and episode are one
    corridor."""
    seen, first = {}, {}

    with robot_of(Asks(), on(unroll=6), env=lambda: Corridor(4), agent=agent, n_agents=3, driver=driver) as robot:
        robot.run(StopAfterSteps(6 * 3 * 4))
        updates = robot.tasks["RL"].algorithm.updates_seen
    for update in updates:
        for key, at, begins in zip(zip(update["lane"], update["episode"], strict=True), update["obs"][:, 0], update["first"],
                                   strict=True):
            seen.setdefault(key, []).append(int(at))
            first.setdefault(key, []).append(bool(begins))
    assert {lane for lane, _ in seen} == set(range(3 if agent is Agent else 6))
    for key, at in seen.items():
        assert at == list(range(len(at))) and first[key] == [i == 0 for i in range(len(at))]
    assert sum(len(at) == 4 for at in seen.values()) >= 12


def test_random_rows_know_the_action_after_them():
    """After position 1 comes action 0, after 0 action 1; the row at the end, and the newest one, have none."""
    with robot_of(Asks(), off(), env=lambda: Corridor(5)) as robot:
        robot.run(StopAfterSteps(200))
        updates = robot.tasks["RL"].algorithm.updates_seen
        assert len(updates) > 10
        for update in updates:
            at, has = update["obs"][:, 0].astype(int), update["has_next"]
            assert (update["next_act"] == np.where(has, (at + 1) % 2, 0)).all() and not has[at == 4].any()
            assert (update["first"] == (at == 0)).all()
        assert np.concatenate([update["has_next"][update["obs"][:, 0] < 4] for update in updates]).mean() > 0.9


@pytest.mark.parametrize(("window", "steps"), [(dict(n_step=3), 3), (dict(sequence=3), 1)])
def test_after_several_steps_it_is_the_action_after_the_last(window, steps):
    with robot_of(Asks(**window), off(transforms=[RewardScaling(2.0)]), env=lambda: Corridor(9)) as robot:
        robot.run(StopAfterSteps(100))
        for update in robot.tasks["RL"].algorithm.updates_seen:
            at, has = update["obs"][..., 0].astype(int), update["has_next"]
            assert has.shape == update["next_act"].shape == at.shape
            assert (update["next_act"] == np.where(has, (at + steps) % 2, 0)).all() and has.any() and not has.all()


def test_a_cut_begins_anew_and_numbers_go_on_after_a_checkpoint():
    """An episode that cannot be carried is cut at a checkpoint; the row after the cut is the first of another."""
    def make():
        return robot_of(Asks(), off(), env=lambda: Corridor(100), n_agents=2)

    with make() as robot:
        robot.run(StopAfterSteps(30))
        robot.checkpoint_boundary()
        state = robot.state_dict()
        robot.run(StopAfterSteps(60))
        expected = robot.buffers["RL"].lane_rows(1)
    with make() as again:
        again.load_state_dict(state)
        again.run(StopAfterSteps(60))
        rows = again.buffers["RL"].lane_rows(1)
    for name in ("first", "episode", "lane"):
        np.testing.assert_array_equal(rows[name], expected[name])
    cuts = rows["truncated"] | rows["terminated"]
    np.testing.assert_array_equal(rows["first"], np.append(True, cuts[:-1]))
    np.testing.assert_array_equal(rows["episode"], np.append(0, np.cumsum(cuts[:-1])))
    assert (rows["lane"] == 1).all()


def test_a_row_keeps_its_number_and_shares_it_with_none():
    with robot_of(Asks(fields=("number",)), off(size=40), env=lambda: Corridor(5), n_agents=2) as robot:
        robot.run(StopAfterSteps(50))  # beyond the end of the lanes
        helper, places = robot.agents[0].helpers["RL"], np.arange(40)
        before = helper.rows_at(places)["number"]
        assert sorted(before) == sorted([*range(5, 25), *(range(2**40 + 5, 2**40 + 25))])
        robot.run(StopAfterSteps(10))
        after = helper.rows_at(places)["number"]
        assert (before != after).sum() == 10 and not set(before) & set(after[before != after])


def test_rows_that_nobody_asked_for_are_not_stored():
    with robot_of(Recorder(), off()) as robot:
        robot.run(StopAfterSteps(20))
        assert not {"first", "lane", "episode", "next_act"} & set(robot.buffers["RL"].columns)
    with pytest.raises(ValueError, match="'first'"):
        Window(fields=("frist",))


def test_parts_of_an_action_have_next_ones():
    class Two(Noisy):
        def step(self, act):
            return super().step(act["a"])

    space = gym.spaces.Dict(a=gym.spaces.Discrete(2), b=gym.spaces.Discrete(3))
    algorithm = Recorder(Plain(Noisy.observation_space, space))
    algorithm.predict = lambda inputs: {"act": {"a": inputs.obs[:, 0].long() * 0, "b": inputs.obs[:, 0].long() * 0 + 2}}
    algorithm.window = Window(fields=("next_act",))
    with robot_of(algorithm, on(unroll=8), env=lambda: Two(space)) as robot:
        robot.run(StopAfterSteps(8))
        update = algorithm.updates_seen[0]
        assert (update["next_act.b"] == 2 * update["has_next"]).all() and "next_act.a" in update


# ----------------------------------------------------------------------------------------------------------- data in its order


def data(n=10, ends=(3, 7)):
    """Rows 0, 1, … whose observation is their number; some end their episodes."""
    obs = np.arange(n, dtype=np.float32)[:, None]
    return from_arrays(obs=obs, act=np.arange(n) % 2, rew=np.arange(n, dtype=float), terminated=np.isin(np.arange(n), ends),
                       truncated=np.zeros(n, bool), obs_next=obs + 1)


def updates_of(helper, n, algorithm=None):
    with robot_of(algorithm or Recorder(), helper, None) as robot:
        robot.run(StopAfterSteps(n))
        return robot.tasks["RL"].algorithm.updates_seen


def test_offline_data_goes_by_in_its_order_pass_after_pass():
    found = updates_of(lambda: OfflineHelper(data(), batch_size=4, in_order=True), 6)
    assert [update["obs"][:, 0].tolist() for update in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2
    random = updates_of(lambda: OfflineHelper(data(), batch_size=4), 6)
    assert random[0]["obs"][:, 0].tolist() != [0, 1, 2, 3] and "last" not in random[0]


def test_an_algorithm_for_whole_segments_learns_offline_from_rows_in_order():
    """`last` where an episode ends, and at the end of the update; the lane of another environment is another segment."""
    algorithm = Asks(in_order=True, fields=("next_act",))
    found = updates_of(lambda: OfflineHelper(data(), batch_size=6), 2, algorithm)
    assert found[0]["last"].tolist() == [False, False, False, True, False, True]
    assert found[0]["next_act"].tolist() == [1, 0, 1, 0, 1, 0]
    assert found[0]["has_next"].tolist() == [True, True, True, False, True, True]
    two = ReplayBuffer(6, 2)
    for i in range(3):
        rows = {"obs": np.array([[i], [10 + i]], np.float32), "act": np.zeros(2, np.int64), "rew": np.zeros(2)}
        two.add({**rows, "obs_next": rows["obs"] + 1, "terminated": np.zeros(2, bool), "truncated": np.zeros(2, bool)})
    update = updates_of(lambda: OfflineHelper(two, batch_size=6), 1, Asks(in_order=True, fields=()))[0]
    assert update["obs"][:, 0].tolist() == [0, 1, 2, 10, 11, 12] and update["last"].tolist() == [False, False, True] * 2
    with pytest.raises(ValueError, match="rows in order"):
        updates_of(lambda: OfflineHelper(data(), batch_size=6, in_order=False), 1, Asks(in_order=True, fields=()))
    with pytest.raises(ValueError, match="'first'.*record the field"):
        updates_of(lambda: OfflineHelper(data(), batch_size=6), 1, Asks(in_order=True))


def test_the_place_in_the_data_is_saved():
    def make():
        return robot_of(Recorder(), lambda: OfflineHelper(data(), batch_size=3, in_order=True), None)

    with make() as robot:
        robot.run(StopAfterSteps(2))
        state = robot.state_dict()
    with make() as again:
        again.load_state_dict(state)
        again.run(StopAfterSteps(3))
        assert again.tasks["RL"].algorithm.updates_seen[2]["obs"][:, 0].tolist() == [6, 7, 8]


def test_numbers_of_environments_differ_in_workers_that_do_not_know_each_other():
    """Each makes agents of 2, 1 and 4 environments, also more than the example that the robot itself has made."""
    made = itertools.cycle([3, 2, 1, 4])
    with robot_of(Asks(), on(unroll=6), env=lambda: Corridor(4), agent=lambda: VectorAgent(next(made)), n_agents=6,
                  driver=Processes(workers=2)) as robot:
        robot.run(StopAfterSteps(600))
        updates = robot.tasks["RL"].algorithm.updates_seen
    seen = {}
    for update in updates:
        for key, at in zip(zip(update["lane"], update["episode"], strict=True), update["obs"][:, 0], strict=True):
            seen.setdefault(key, []).append(int(at))
    assert len({lane for lane, _ in seen}) == 2 * (2 + 1 + 4)
    assert all(steps == list(range(len(steps))) for steps in seen.values()), "the rows of one corridor, in their order"


def test_numbers_of_environments_differ_where_agents_have_different_numbers_of_them():
    """Three, one and two: 0 1 2, 3, 4 5; and one that joins later gets 6."""
    sizes = iter([3, 1, 2, 1])
    with robot_of(Asks(), on(unroll=6), env=lambda: Corridor(4), agent=lambda: VectorAgent(next(sizes)), n_agents=3) as robot:
        robot.run(StopAfterSteps(6 * 6))
        assert set(robot.tasks["RL"].algorithm.updates_seen[-1]["lane"].tolist()) == set(range(6))
        new, = robot.add_agents(1)
        assert [agent.first_env for agent in robot.agents] == [0, 3, 4, 6] and new.first_env == 6
