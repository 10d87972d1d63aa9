"""The agent with two time resolutions: goals, and actions under them."""

import gymnasium as gym
import numpy as np
import pytest
from agent_fakes import ACT, POSITION, Corridor, Plain, Recorder, dqn, rows

from parl_like import ComputationTask, OffPolicyHelper, OnPolicyHelper, Robot
from parl_like.environment.stop_conditions import StopAfterEpisodes, StopAfterSteps
from parl_like.robots.goal_agent import GOAL_EXTRAS, GoalAgent, Left
from parl_like.values.errors import AgentFailed

PLACES = gym.spaces.Discrete(100)
ABOVE = gym.spaces.Dict({"obs": POSITION, "prev_goal": PLACES})
BELOW = gym.spaces.Dict({"obs": POSITION, "goal": PLACES})


class Walker(GoalAgent):
    """Goals are places; the reward that a goal's row keeps is the plain sum."""

    goal_gamma = 1.0

    def goal_achieved(self, obs, goal):
        return obs[0] >= goal


def tasks(ahead=7, learn_every=1, unroll=5, goal_model=None):
    """A goal is `ahead` places from here; the worker's action has no effect."""
    choose = Recorder(goal_model or Plain(ABOVE, PLACES), lambda obs: obs["obs"][:, 0].long() + ahead)
    follow = Recorder(Plain(BELOW, ACT))
    return {
        "goal": ComputationTask(choose,
                                lambda: OffPolicyHelper(size=100, batch_size=1, learn_every=learn_every, extras=GOAL_EXTRAS)),
        "RL": ComputationTask(follow, lambda: OnPolicyHelper(unroll=unroll)),
    }


def episode(agent=Walker, episodes=1, env=lambda: Corridor(20), **options):
    """The robot after some episodes."""
    robot = Robot(env, tasks=tasks(**options), agent=agent)
    robot.run(StopAfterEpisodes(episodes))
    robot.close()
    return robot


def test_twenty_steps_with_goals_of_seven():
    robot = episode()
    goal = rows(robot, "goal")
    assert goal["obs.obs"][:, 0].tolist() == [0, 7, 14]  # where the goal was chosen, not where it was left
    assert goal["rew"].tolist() == [7.0, 7.0, 6.0]
    assert goal["obs.prev_goal"].tolist() == [0, 7, 14] and goal["act"].tolist() == [7, 14, 21]
    assert goal["obs_next.obs"][:, 0].tolist() == [7, 14, 20] and goal["obs_next.prev_goal"].tolist() == [7, 14, 21]
    assert goal["duration"].tolist() == [7, 7, 6] and goal["left"].tolist() == [Left.ACHIEVED, Left.ACHIEVED, Left.EPISODE_END]
    assert goal["terminated"].tolist() == [False, False, True] and not goal["truncated"].any()


def three_levels(ahead=2):
    """A middle level, whose goals are `ahead` places from here, between the two; returns the robot after an episode."""
    space = gym.spaces.Dict({"obs": POSITION, "goal": PLACES})
    way = Recorder(Plain(space, PLACES), lambda obs: obs["obs"][:, 0].long() + ahead)

    class Upper(Walker):
        tasks = ("goal", "way")

        def __init__(self):
            self.below = type("Lower", (Walker,), {"tasks": ("way", "RL")})()

    made = tasks()
    made["way"] = ComputationTask(way, lambda: OffPolicyHelper(size=100, batch_size=1, learn_every=1, extras=GOAL_EXTRAS))
    robot = Robot(lambda: Corridor(20), tasks=made, agent=Upper)
    robot.run(StopAfterEpisodes(1))
    robot.close()
    return robot


def test_three_levels_are_the_same_pieces_once_more():
    """Goals of 7 places are reached by goals of 2: at place 8, where an upper goal is achieved, and 16."""
    robot = three_levels()
    goal, way = rows(robot, "goal"), rows(robot, "way")
    assert goal["obs.obs"][:, 0].tolist() == [0, 8, 16] and goal["duration"].tolist() == [8, 8, 4]
    assert goal["rew"].tolist() == [8.0, 8.0, 4.0]
    assert way["obs.obs"][:, 0].tolist() == list(range(0, 20, 2)) and way["duration"].tolist() == [2] * 10
    assert way["obs.goal"].tolist() == [7] * 4 + [15] * 4 + [23] * 2 and way["act"].tolist() == list(range(2, 21, 2))
    # to the middle level each upper goal is an episode, which pays where it is achieved
    assert way["terminated"].tolist() == [False, False, False, True] * 2 + [False, True]
    assert way["rew"].tolist() == [0, 0, 0, 1] * 2 + [0, 0]
    assert way["left"].tolist() == [Left.ACHIEVED] * 10
    assert robot.tasks["RL"].algorithm.updates_seen[-1]["obs.goal"].tolist() == [16, 18, 18, 20, 20]


class Level(Walker):
    def __init__(self, tasks, below=None):
        self.tasks, self.below = tasks, below


def middle(ahead):
    """The task of a level between others, whose goals are `ahead` places from here."""
    space = gym.spaces.Dict({"obs": POSITION, "goal": PLACES})
    way = Recorder(Plain(space, PLACES), lambda obs: obs["obs"][:, 0].long() + ahead)
    return ComputationTask(way, lambda: OffPolicyHelper(size=100, batch_size=1, learn_every=1, extras=GOAL_EXTRAS))


def test_there_may_be_any_number_of_levels():
    levels = lambda: Level(("goal", "way"), Level(("way", "near"), Level(("near", "RL"))))  # noqa: E731
    made = {**tasks(), "way": middle(4), "near": middle(2)}
    with Robot(lambda: Corridor(20), tasks=made, agent=levels) as robot:
        robot.run(StopAfterEpisodes(1))
        starts = {name: rows(robot, name)["obs.obs"][:, 0].tolist() for name in ("goal", "way", "near")}
        assert starts == {"goal": [0, 8, 16], "way": [0, 4, 8, 12, 16], "near": list(range(0, 20, 2))}
        assert rows(robot, "way")["duration"].tolist() == [4] * 5 and robot.tasks["RL"].learns == 4


def test_levels_that_do_not_meet_or_are_anothers_too_are_told():
    shared = Level(("way", "RL"))
    for agent, said in ((lambda: Level(("goal", "RL"), Level(("way", "RL"))), "below` \\('way', 'RL'\\); .*expected 'RL'"),
                        (lambda: Level(("goal", "way"), shared), "its `below` is another agent's, too; make one for each")):
        with Robot(lambda: Corridor(20), tasks={**tasks(), "way": middle(2)}, agent=agent, n_agents=2) as robot, \
                pytest.raises(AgentFailed, match=said):
            robot.run(StopAfterEpisodes(2))


def test_a_middle_level_whose_goals_last_a_step_changes_nothing_above():
    one, other = rows(three_levels(ahead=1), "goal"), rows(episode(), "goal")
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_each_level_learns_on_its_own_schedule():
    robot = episode()
    assert robot.tasks["RL"].learns == 20 // 5 and robot.tasks["goal"].learns == 3
    updates = robot.tasks["RL"].algorithm.updates_seen
    assert [update["obs.obs"][:, 0].tolist() for update in updates] == [[5 * k + i for i in range(5)] for k in range(4)]


def test_the_workers_interval_survives_goals_and_episodes():
    """23 steps per episode in goals of 7; with a counter that starts anew at every goal or episode it would be fewer."""
    robot = episode(episodes=3, env=lambda: Corridor(23))
    assert robot.tasks["RL"].learns == 3 * 23 // 5 and rows(robot, "goal")["obs.prev_goal"].tolist() == [0, 7, 14, 21] * 3


def test_the_workers_rows():
    robot = episode(unroll=100)
    worker = rows(robot)
    assert worker["obs.goal"].tolist() == worker["obs_next.goal"].tolist() == [7] * 7 + [14] * 7 + [21] * 6
    assert worker["obs.obs"][:, 0].tolist() == list(range(20))
    # To the worker, a goal that is achieved is an end, for the reward of 1.
    assert np.flatnonzero(worker["terminated"]).tolist() == [6, 13, 19] and not worker["truncated"].any()
    assert np.flatnonzero(worker["rew"]).tolist() == [6, 13] and worker["rew"].max() == 1.0


def test_a_goal_that_is_achieved_already_costs_one_step():
    robot = episode(ahead=0)
    assert rows(robot, "goal")["duration"].tolist() == [1] * 20 and robot.env_steps == 20


def test_a_goal_out_of_reach_is_aborted_at_the_horizon():
    robot = episode(agent=type("A", (Walker,), {"goal_horizon": 6}), ahead=50, unroll=100)
    goal = rows(robot, "goal")
    assert goal["duration"].tolist() == [6, 6, 6, 2] and goal["rew"].tolist() == [6.0, 6.0, 6.0, 2.0]
    assert goal["left"].tolist() == [Left.ABORTED] * 3 + [Left.EPISODE_END]
    assert np.flatnonzero(rows(robot)["truncated"]).tolist() == [5, 11, 17]  # the worker's value goes on through a cut


def test_ones_own_reason_to_abort():
    class Impatient(Walker):
        def aborted(self, obs, goal, steps):
            return obs[0] == 3

    goal = rows(episode(agent=Impatient), "goal")
    assert goal["duration"].tolist() == [3, 7, 7, 3] and goal["left"].tolist() == [1, 0, 0, 2]


def test_a_goal_achieved_on_the_horizon_is_achieved():
    goal = rows(episode(agent=type("A", (Walker,), {"goal_horizon": 7})), "goal")
    assert goal["left"].tolist() == [0, 0, 2]


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_the_episodes_end_reaches_both_levels(end):
    robot = episode(env=lambda: Corridor(10, end), unroll=100)
    other = "truncated" if end == "terminated" else "terminated"
    assert rows(robot, "goal")[end].tolist() == [False, True] and not rows(robot, "goal")[other].any()
    assert bool(rows(robot)[end][-1]) and not rows(robot)[other][-1]


# ------------------------------------------------------------------------------------------------------------------ discounting


def test_rewards_inside_a_goal_are_discounted():
    """γ = 1/2: 1 + 1/2 + 1/4, …, and for the last 2 steps 1 + 1/2."""
    goal = rows(episode(agent=type("A", (Walker,), {"goal_gamma": 0.5}), ahead=3), "goal")
    assert goal["rew"].tolist() == [1.75] * 6 + [1.5] and goal["duration"].tolist() == [3] * 6 + [2]


class Choosing(gym.Env):
    observation_space, action_space = ABOVE, PLACES


def semi_markov(gamma):
    """One goal of each duration n in front of a value of 8 everywhere: Σ γᵏ + γⁿ · 8."""
    choose = dqn(Choosing, gamma=gamma, epsilon=0.0)
    made = tasks()
    made["goal"] = ComputationTask(choose, lambda: OffPolicyHelper(size=100, batch_size=50, extras=GOAL_EXTRAS))
    agent = type("A", (Walker,), {"goal_gamma": None, "goal_achieved": lambda self, obs, goal: obs[0] in (1, 3, 6)})
    with Robot(lambda: Corridor(10, "truncated"), tasks=made, agent=agent) as robot:
        net = robot.tasks["goal"].algorithm
        for network in (net.model, net.target):
            for name, value in network.state_dict().items():
                value.fill_(8.0 if name.endswith("layers.1.bias") else 0.0)
        robot.run(StopAfterEpisodes(1))
        return rows(robot, "goal"), net.process(robot.buffers["goal"][:].to_torch()).target.tolist()


def test_the_target_of_a_goal_is_that_of_a_semi_markov_decision():
    stored, target = semi_markov(0.5)
    assert stored["duration"].tolist() == [1, 2, 3, 4] and stored["rew"].tolist() == [1.0, 1.5, 1.75, 1.875]  # γ of the algorithm
    assert target == [1 + 4, 1.5 + 2, 1.75 + 1, 1.875 + 0.5]


# ---------------------------------------------------------------------------------------------------------------- interruptions


def test_a_goal_that_a_save_interrupts_leaves_no_row_and_no_way_across():
    with Robot(lambda: Corridor(20), tasks=tasks(unroll=100), agent=Walker) as robot:
        robot.run(StopAfterSteps(10))
        robot.checkpoint_boundary()
        goal = rows(robot, "goal")
        assert goal["duration"].tolist() == [7] and goal["truncated"].tolist() == [True]
        assert rows(robot)["truncated"].tolist() == [False] * 9 + [True]
        robot.run(StopAfterEpisodes(1))
        assert rows(robot, "goal")["obs.prev_goal"].tolist() == [0, 0, 7, 14]


def test_several_agents_at_two_resolutions():
    with Robot(lambda: Corridor(20), tasks=tasks(), agent=Walker, n_agents=4) as robot:
        robot.run(StopAfterSteps(400))
        assert robot.tasks["RL"].learns >= 1 and robot.tasks["RL"].rows_learned == 400
        for lane in range(4):
            assert rows(robot, "goal", lane)["rew"].tolist() == [7.0, 7.0, 6.0] * 5
        assert robot.evaluate(2).lengths == [20, 20]


# ----------------------------------------------------------------------------------------------------------------------- spaces


def test_the_first_previous_goal_is_zero_in_the_goals_space():
    assert rows(episode(), "goal")["obs.prev_goal"][0] == 0
    later = gym.spaces.Discrete(100, start=3)
    above = gym.spaces.Dict({"obs": POSITION, "prev_goal": later})
    made = tasks()
    made["goal"] = ComputationTask(Recorder(Plain(above, later)), made["goal"].helper)
    with Robot(lambda: Corridor(20), tasks=made, agent=Walker) as robot:
        robot.run(StopAfterEpisodes(1))
        assert rows(robot, "goal")["obs.prev_goal"].tolist()[:2] == [3, 3] and set(rows(robot, "goal")["act"].tolist()) == {0}


def test_goals_may_be_continuous():
    place = gym.spaces.Box(0.0, 40.0, (1,), np.float32)
    above, below = gym.spaces.Dict({"obs": POSITION, "prev_goal": place}), gym.spaces.Dict({"obs": POSITION, "goal": place})
    made = tasks()
    # half of the way of the space: −1 … 1 becomes 0 … 40
    made["goal"] = ComputationTask(Recorder(Plain(above, place), lambda obs: (obs["obs"] + 10) / 20 - 1), made["goal"].helper)
    made["RL"] = ComputationTask(Recorder(Plain(below, ACT)), made["RL"].helper)
    agent = type("A", (GoalAgent,), {"goal_gamma": 1.0})  # achieved: the observation equals the goal
    with Robot(lambda: Corridor(20), tasks=made, agent=agent) as robot:
        robot.run(StopAfterEpisodes(1))
        goal = rows(robot, "goal")
        assert goal["duration"].tolist() == [10, 10] and goal["obs.prev_goal"][:, 0].tolist() == [0.0, 10.0]
        assert goal["act"][:, 0].tolist() == [-0.5, 0.0]


def test_a_helper_without_the_columns_of_goals_is_explained():
    made = tasks()
    made["goal"] = ComputationTask(made["goal"].algorithm, lambda: OffPolicyHelper(size=100, batch_size=1))
    with Robot(Corridor, tasks=made, agent=Walker) as robot:
        with pytest.raises(Exception, match=r"agent 0, task 'goal': store got extra \['duration', 'left'\]; expected \[\]"):
            robot.run(StopAfterEpisodes(1))


# --------------------------------------------------------------------------------------------------------------------- learning


class Line(gym.Env):
    """Five places in a row, begun in the middle; the right end gives 1, the left end 0; 12 steps at most."""

    observation_space = gym.spaces.Box(0.0, 1.0, (5,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def obs(self):
        return np.eye(5, dtype=np.float32)[self.at]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.t = 2, 0
        return self.obs(), {}

    def step(self, act):
        self.at, self.t = self.at + 2 * int(act) - 1, self.t + 1
        return self.obs(), float(self.at == 4), self.at in (0, 4), self.t == 12, {}


def test_both_levels_learn():
    """Goals: the left or the right end. Random play reaches the right one half of the time; 3,000 steps must always."""
    sides = gym.spaces.Discrete(2)

    class Sides(GoalAgent):
        goal_horizon = 4

        def goal_achieved(self, obs, goal):
            return bool(obs[4 * goal])

    class Above(gym.Env):
        observation_space, action_space = gym.spaces.Dict({"obs": Line.observation_space, "prev_goal": sides}), sides

    class Below(gym.Env):
        observation_space, action_space = gym.spaces.Dict({"obs": Line.observation_space, "goal": sides}), Line.action_space

    made = {
        "goal": ComputationTask(dqn(Above, hidden=(32,), epsilon=0.3, lr=5e-3, gamma=0.9),
                                lambda: OffPolicyHelper(size=2000, batch_size=32, learn_every=1, extras=GOAL_EXTRAS)),
        "RL": ComputationTask(dqn(Below, hidden=(32,), epsilon=0.3, lr=5e-3, gamma=0.9),
                              lambda: OffPolicyHelper(size=2000, batch_size=32, learn_every=2)),
    }
    with Robot(Line, tasks=made, agent=Sides, seed=0) as robot:
        robot.run(StopAfterSteps(3000))
        found = robot.evaluate(4)
        assert found.returns == [1.0] * 4 and found.lengths == [2] * 4
        q = robot.tasks["RL"].predict({"obs.obs": np.eye(5, dtype=np.float32)[[2, 2]], "obs.goal": np.array([0, 1])}, "test")["q"]
        assert q.argmax(1).tolist() == [0, 1]  # the worker goes where it is told, also to the side that pays nothing
