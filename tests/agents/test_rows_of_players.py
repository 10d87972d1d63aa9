"""Rows of several players where the agent leaves between the last step and their stores, where players come back, and where
roles are no players."""

import re
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from aec_fakes import aec_of, leaving

from parl_like.agents.agent import Agent
from parl_like.agents.off_policy import OffPolicyHelper
from parl_like.agents.on_policy import OnPolicyHelper
from parl_like.agents.players import SimultaneousAgent, TurnAgent
from parl_like.algorithms import PPO
from parl_like.algorithms.dqn import DQN
from parl_like.data.storage.archive import read_archive
from parl_like.data.transforms import ObservationNormalizer, Transforms
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.player_view import PlayerView
from parl_like.environment.state import hold, unhold
from parl_like.environment.stop_conditions import StopAfterEpisodes
from parl_like.envs.games import TicTacToe
from parl_like.learning.explorers import EpsilonGreedy
from parl_like.models.mlp import MLPQ, MLPActorCritic
from parl_like.run.robot import Robot
from parl_like.run.run_policy import run_policy
from parl_like.tasks.task import ComputationTask
from parl_like.values.errors import AgentFailed

pettingzoo = pytest.importorskip("pettingzoo")


def game():
    return aec_of(TicTacToe())


def runners():
    return leaving(3, 3, box=True)


def dqn(make, **options):
    """A task that acts evenly at random, and keeps all rows."""
    env = make()
    view = PlayerView(env, env.possible_agents[0])
    space = Transforms(options.get("transforms", ())).space(view.observation_space)
    options = {"size": 4000, "learn_every": None, "explorer": EpsilonGreedy(1.0), **options}
    return ComputationTask(lambda: DQN(MLPQ(space, view.action_space, hidden=(8,))), helper=partial(OffPolicyHelper, **options))


def rows_of(robot):
    helpers = robot.agents[0].helpers.values()
    return {helper.title: robot.buffers[helper.name].lane_rows(helper.lanes.start) for helper in helpers}


def joins(robot):
    """Rows that neither end an episode nor lead to where the next one begins."""
    out = []
    for title, rows in rows_of(robot).items():
        name = "obs.obs" if "obs.obs" in rows else "obs"
        ends, after = rows["terminated"] | rows["truncated"], rows[name.replace("obs", "obs_next", 1)]
        out += [(title, i) for i in range(len(ends) - 1) if not ends[i] and not np.array_equal(after[i], rows[name][i + 1])]
    return out


class LearnsByTurns(TurnAgent):
    def run_one_episode(self):
        env = self.env
        env.reset()
        for player in env.agent_iter():
            helper = self.helpers["RL", player]
            obs, rew, terminated, truncated, info = env.last()
            if (before := env.previous()) is not None:
                helper.store(*before, rew, obs, terminated, truncated, info)
                helper.learn()
            env.step(None if terminated or truncated else helper.predict(obs))


class LearnsAtOnce(SimultaneousAgent):
    def run_one_episode(self):
        env = self.env
        obs, _ = env.reset()
        while env.agents:
            acts = {player: self.actor(player).predict(obs[player]) for player in env.agents}
            after, rews, terminated, truncated, infos = env.step(acts)
            for p, act in acts.items():
                self.actor(p).store(obs[p], act, rews[p], after[p], terminated[p], truncated[p], infos[p])
                self.actor(p).learn()
            obs = after


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
@pytest.mark.parametrize("make, agent", [(game, LearnsByTurns), (runners, LearnsAtOnce)])
def test_learning_by_hand_loses_no_players_last_row(make, agent, driver):
    with Robot(make, tasks={"RL": dqn(make, batch_size=2)}, agent=agent, seed=1, driver=driver) as robot:
        for _ in range(8):
            robot.run(StopAfterEpisodes(1))
            robot.checkpoint_boundary()
        assert robot.tasks["RL"].learns > 8 and joins(robot) == []
        total = np.sum(list(robot.recent_returns), axis=0)
        rows = rows_of(robot)
        assert [part["terminated"].sum() for part in rows.values()] == [robot.episodes] * 2
        assert [part["rew"].sum() for part in rows.values()] == total.tolist()


def test_learning_by_hand_loses_no_row_in_the_middle_of_an_episode():
    def make():
        return leaving(50, 50, box=True)

    with Robot(make, tasks={"RL": dqn(make, batch_size=2)}, agent=LearnsAtOnce, seed=1) as robot:
        for _ in range(6):
            robot.run(3)
            robot.checkpoint_boundary()
        rows = rows_of(robot)
        assert joins(robot) == [] and {len(part["rew"]) for part in rows.values()} == {robot.env_steps}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_between_the_last_turns_cuts_the_rows_of_who_has_not_stored(error):
    class Fails(TurnAgent):
        failed = False

        def actor(self, player):
            if len(self.env.leaving) == 1 and not Fails.failed:
                Fails.failed = True
                raise error("by hand")
            return super().actor(player)

    with Robot(game, tasks={"RL": dqn(game)}, agent=Fails, seed=1) as robot:
        with pytest.raises(BaseException, match="by hand"):
            robot.run(40)
        robot.run(40)
        assert Fails.failed and joins(robot) == []
        assert sum(rows["truncated"].sum() for rows in rows_of(robot).values()) == 1


class Counts(pettingzoo.utils.BaseWrapper):
    """Shows how many moves there were, which it alone remembers."""

    def reset(self, seed=None, options=None):
        self.n = 0
        super().reset(seed=seed, options=options)

    def step(self, action):
        self.n += 1
        super().step(action)

    def observe(self, agent):
        seen = super().observe(agent)
        return {**seen, "observation": np.append(np.float32(min(1.0, self.n / 20)), seen["observation"][1:])}


class CountsAndTells(Counts):
    def clone_state(self):
        return {"n": self.n, "inner": self.env.clone_state()}

    def restore_state(self, state):
        self.n = state["n"]
        self.env.restore_state(state["inner"])


def ordered(env):
    return pettingzoo.utils.OrderEnforcingWrapper(pettingzoo.utils.AssertOutOfBoundsWrapper(env))


@pytest.mark.parametrize("make, cut", [(lambda: Counts(game()), 1), (lambda: ordered(Counts(game())), 1),
                                       (lambda: CountsAndTells(game()), 0), (lambda: ordered(CountsAndTells(game())), 0),
                                       (lambda: ordered(game()), 0)])
def test_a_wrapper_that_remembers_is_not_taken_for_the_game_within(make, cut, tmp_path):
    def robot():
        return Robot(make, tasks={"RL": dqn(make)}, agent=TurnAgent, seed=5, trace=True)

    hashes = []
    with robot() as whole:
        whole.run(4)
        whole.save(tmp_path / "mid")
        assert whole.metrics().get("episodes_cut", 0) == cut
        whole.run(4)
        hashes.append(whole.trace_hash())
    with robot() as again:
        again.load(tmp_path / "mid")
        again.run(4)
        hashes.append(again.trace_hash())
    assert hashes[0] == hashes[1]


def test_a_player_that_leaves_without_a_flag_is_refused():
    def make():
        env = leaving(2, 5, box=True)
        step = env.step

        def silent(actions):
            obs, rewards, terminations, truncations, infos = step(actions)
            return obs, rewards, {**terminations, "p0": False}, truncations, infos

        env.step = silent
        return env

    with Robot(make, tasks={"RL": dqn(make)}, agent=SimultaneousAgent) as robot:
        with pytest.raises(AgentFailed, match="agent 0.*has let p0 go without terminated or truncated"):
            robot.run(20)


def test_roles_need_not_be_players():
    class Sides(Agent):
        roles = {"RL": ("attacker", "defender")}

        def run_one_episode(self):
            env = self.env
            env.reset()
            for player in env.agent_iter():
                helper = self.helpers["RL", "attacker" if player == "player_0" else "defender"]
                obs, rew, terminated, truncated, info = env.last()
                if (before := env.previous()) is not None:
                    helper.store(*before, rew, obs, terminated, truncated, info)
                env.step(None if terminated or truncated else helper.predict(obs))

    with Robot(game, tasks={"RL": dqn(game)}, agent=Sides) as robot:
        robot.run(50)
        assert rows_of(robot).keys() == {"RL/attacker", "RL/defender"} and joins(robot) == []
    transformed = dqn(runners, transforms=[ObservationNormalizer()])
    with pytest.raises(ValueError, match="role 'attacker'.*is no player of the environment.*obs_space="):
        Robot(runners, tasks={"RL": transformed}, agent=Sides)


def test_a_robot_acts_for_its_players_through_transforms():
    with Robot(runners, tasks={"RL": dqn(runners, transforms=[ObservationNormalizer()])}, agent=SimultaneousAgent) as robot:
        robot.run(10)
        assert robot.act(np.zeros(2, np.float32)) in (0, 1)
        assert np.shape(robot.act(np.zeros((3, 2), np.float32))) == (3,)


class ForOne(Agent):
    def run_one_episode(self):
        self.env.reset()
        obs, _, terminated, truncated, _ = self.env.step(0)


def test_code_for_one_player_is_told_the_way_out():
    says = "an AECEnv of PettingZoo, with several players; .*agent=TurnAgent.*AECPlayer"
    with pytest.raises(TypeError, match=says):
        run_policy(lambda obs: 0, game)
    with Robot(game, tasks={"RL": dqn(game)}, agent=ForOne) as robot, pytest.raises(AgentFailed) as told:
        robot.run(5)
    assert re.search(says, "".join(told.value.__cause__.__notes__)), told.value.__cause__


class Back(pettingzoo.AECEnv):
    """Player b leaves before it has moved, comes back, and is given 5 at once."""

    metadata = {"name": "back", "is_parallelizable": False}
    possible_agents = ["a", "b"]

    def observation_space(self, agent):
        return gym.spaces.Box(-1, 99, (1,), np.float32)

    def action_space(self, agent):
        return gym.spaces.Discrete(2)

    def observe(self, agent):
        return np.array([self.t], np.float32)

    def reset(self, seed=None, options=None):
        self.t, self.agents, self.agent_selection, self._skip_agent_selection = 0, ["a", "b"], "b", None
        for name, value in (("rewards", 0.0), ("_cumulative_rewards", 0.0), ("terminations", False), ("truncations", False)):
            setattr(self, name, dict.fromkeys(self.agents, value))
        self.infos = {name: {} for name in self.agents}

    def step(self, action):
        player = self.agent_selection
        if self.terminations[player]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[player] = 0.0
        self._clear_rewards()
        self.t += 1
        if self.t == 1:  # b goes
            self.terminations["b"], self.agent_selection = True, "a"
            self._deads_step_first()
        elif self.t == 2:
            self.agents.append("b")
            self.rewards["b"] = self._cumulative_rewards["b"] = 5.0
            self.terminations["b"] = self.truncations["b"] = False
            self.infos["b"], self.agent_selection = {}, "b"
        elif self.t == 3:
            self.agent_selection = "a"
        else:
            self.terminations = dict.fromkeys(self.agents, True)
            self.agent_selection = self.agents[0]


def test_a_player_that_comes_back_keeps_what_it_got_before_its_first_new_action():
    with Robot(Back, tasks={"RL": dqn(Back)}, agent=TurnAgent) as robot:
        episodes = robot.collect(n_episode=2)
        assert [returns.tolist() for returns in episodes.returns] == [[0.0, 5.0]] * 2
        rows = rows_of(robot)
        assert rows["RL/b"]["rew"].tolist() == [0.0, 5.0] * 2 and rows["RL/b"]["terminated"].tolist() == [True] * 4
        assert rows["RL/a"]["rew"].tolist() == [0.0, 0.0] * 2


def tictactoe_task(helper, algorithm=DQN, model=MLPQ, **options):
    view = PlayerView(aec_of(TicTacToe()), "player_0")
    return ComputationTask(lambda: algorithm(model(view.observation_space, view.action_space, hidden=(8,)), **options), helper)


def tictactoe(task, **options):
    return Robot(lambda: aec_of(TicTacToe()), tasks={"RL": task()}, agent=TurnAgent, trace=True, **options)


def off_policy():
    return tictactoe_task(partial(OffPolicyHelper, size=2000, batch_size=8, warmup=30), n_step=1)


def with_policies():
    return tictactoe_task(partial(OnPolicyHelper, unroll=500, store_policy=True), PPO, MLPActorCritic)


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
@pytest.mark.parametrize("task", [off_policy, with_policies])
def test_rows_that_wait_for_a_players_next_turn_survive_checkpoints(driver, task, tmp_path):
    """Each action of a player but the newest is one row, however often the robot was saved, and loaded by another one."""
    steps, taken = [13, 10, 17, 4, 9, 11], 0
    for i, n in enumerate(steps):
        with tictactoe(task, seed=i, driver=driver) as robot:
            if i:
                robot.load(tmp_path / str(i))
            robot.run(n)
            robot.save(tmp_path / str(i + 1))
            robot.run(3)
            robot.save(tmp_path / str(i + 1))
            taken, buffer = robot.env_steps, robot.buffers["RL"]
            env = robot.agents[0].env
            waiting = sum(count > 0 for count in env.turns.values()) if env.carried.held is not None else 0
            assert taken - len(buffer) <= waiting <= 2, (taken, len(buffer), waiting)
    assert taken == sum(steps) + 3 * len(steps)
    rows = np.concatenate([np.arange(lane * buffer.lane_size, newest + 1) for lane, newest in enumerate(buffer.newest())])
    assert len(rows) == len(buffer) > 50
    act, before, after = (buffer.get(rows, name) for name in ("act", "obs.obs", "obs_next.obs"))
    for board, count in ((before, 0), (after, 1)):
        marks = board.reshape(-1, 2, 9)[np.arange(len(rows)), :, act.astype(int)]
        assert (marks.sum(1) == count).all(), "each row has its own action, and what came of it"


@pytest.mark.parametrize("driver", ["cooperative", "threads", Processes(workers=1)], ids=str)
def test_a_resume_with_rows_that_wait_is_exact(driver, tmp_path):
    left, n = [], 1 if driver == "threads" else 2  # whose order is not promised
    with tictactoe(off_policy, n_agents=n, seed=1, driver=driver) as whole, \
            tictactoe(off_policy, n_agents=n, seed=2, driver=driver) as other:
        whole.run(61)
        whole.save(tmp_path / "mid")
        other.load(tmp_path / "mid")
        for robot in (whole, other):
            robot.run(60)
            robot.save(tmp_path / "end")
            left.append((robot.trace_hash(), robot.tasks["RL"].algorithm.model.weights_hash(), robot.env_steps))
    assert left[0] == left[1]


def test_damaged_rows_that_wait_cut_the_episode_off(tmp_path, caplog):
    with tictactoe(off_policy, seed=1) as robot:
        robot.run(12)
        robot.save(tmp_path / "mid")
        state = read_archive(tmp_path / "mid")[0]
    held = state["agents"]["0"]["carried"]
    waiting = unhold(held["waiting"])
    player, row = next(iter(waiting["rows"].items()))
    for name, wrong in (("player", {"nobody": row}), ("act", {player: [row[0], 99, row[2]]}),
                        ("obs", {player: [{"obs": 3}, row[1], row[2]]}), ("kept", {player: [row[0], row[1], {}]})):
        held["waiting"] = hold({**waiting, "rows": wrong})
        with tictactoe(off_policy, seed=1) as robot:
            caplog.clear()
            robot.load_state_dict(state)
            assert "is cut off" in caplog.text, name
            robot.run(12)
