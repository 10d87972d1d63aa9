"""Several players of one agent: a helper, lane, memory and return for each, and rows that are each player's own."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from aec_fakes import aec_of, leaving, rows_of_turns, rude

from parl_like.agents.agent import Agent
from parl_like.agents.episodic import EpisodicHelper
from parl_like.agents.off_policy import OffPolicyHelper
from parl_like.agents.on_policy import OnPolicyHelper
from parl_like.agents.players import SimultaneousAgent, TurnAgent
from parl_like.agents.population import PopulationHelper
from parl_like.agents.vector_agent import VectorAgent
from parl_like.algorithms.actor_critic import A2C
from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.evolution import ES
from parl_like.environment.player_view import PlayerView
from parl_like.environment.stop_conditions import StopAtReturn
from parl_like.envs.games import Kuhn, TicTacToe
from parl_like.learning.explorers import EpsilonGreedy
from parl_like.models.mlp import MLPQ, MLPActorCritic
from parl_like.models.recurrent import RecurrentActorCritic
from parl_like.run.robot import Robot
from parl_like.tasks.task import ComputationTask
from parl_like.values.errors import AgentFailed


def spaces(make):
    env = make()
    view = PlayerView(env, env.possible_agents[0])
    return view.observation_space, view.action_space


def dqn(make, **options):
    """A task that acts evenly at random, and keeps all rows."""
    options = {"size": 4000, "learn_every": None, "explorer": EpsilonGreedy(1.0), **options}
    return ComputationTask(lambda: DQN(MLPQ(*spaces(make), hidden=(8,))), helper=partial(OffPolicyHelper, **options))


def rows_of(robot, task="RL", agent=0):
    """Title of each helper of an agent → its rows as lists of numbers."""
    out = {}
    for helper in robot.agents[agent].helpers.values():
        rows = robot.buffers[helper.name].lane_rows(helper.lanes.start)
        columns = [rows[name].ravel().tolist() for name in ("obs", "act", "rew", "obs_next", "terminated", "truncated")]
        out[helper.title] = [list(row) for row in zip(*columns, strict=True)]
    return out


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_rude_players_are_those_of_a_plain_twin(seed):
    n = 1 + seed % 4
    env = rude(seed, n)
    with Robot(env, tasks={"RL": dqn(lambda: rude(seed, n))}, agent=TurnAgent, seed=seed) as robot:
        robot.collect(n_episode=8)
        seen = rows_of(robot)
        assert seen.keys() == {f"RL/p{i}" for i in range(n)}
        expected = {f"RL/p{i}": rows_of_turns(env.turns, f"p{i}") for i in range(n)}
        assert seen == expected and sum(map(len, expected.values())) > 20


def test_the_return_is_each_players_own():
    env = rude(3, 3)
    with Robot(env, tasks={"RL": dqn(lambda: rude(3, 3))}, agent=TurnAgent) as robot:
        episodes = robot.collect(n_episode=5)
        games = []
        for turn in env.turns:
            games.append({}) if turn == "reset" else games[-1].update({turn[0]: turn[3]})
        expected = [[game.get(f"p{i}", 0.0) for i in range(3)] for game in games[:5]]
        assert np.array(episodes.returns).tolist() == expected
        assert sum(row[2] for rows in rows_of(robot).values() for row in rows) != 0
        assert robot.agents[0].env.returns() == dict(zip(["p0", "p1", "p2"], expected[-1], strict=True))


def test_rows_of_players_that_act_at_once_come_and_go():
    def make():
        return leaving(1, 3, box=True, cut=(1,))

    with Robot(make, tasks={"RL": dqn(make)}, agent=SimultaneousAgent) as robot:
        episodes = robot.collect(n_episode=1)
        rows = robot.buffers["RL"].lane_rows(0), robot.buffers["RL"].lane_rows(1)
        assert rows[0]["obs"].tolist() == [[0, 0]] and rows[1]["obs"].tolist() == [[0, 0], [1, 1], [2, 2]]
        assert rows[1]["obs_next"].tolist() == [[1, 1], [2, 2], [3, 3]]
        assert rows[0]["terminated"].tolist() == [True] and rows[1]["terminated"].tolist() == [False] * 3
        assert rows[1]["truncated"].tolist() == [False, False, True]
        assert rows[0]["rew"].tolist() == rows[0]["act"].tolist()
        assert (rows[1]["rew"] - 10).tolist() == rows[1]["act"].tolist()
        assert episodes.returns[0].tolist() == [rows[0]["rew"].sum(), rows[1]["rew"].sum()] and episodes.lengths == [3]


class TwoPlayers(Agent):
    """As a user writes it, with a table of what it did."""

    def run_one_episode(self):
        env, waiting = self.env, {}
        env.reset()
        for player in env.agent_iter():
            obs, rew, terminated, truncated, info = env.last()
            helper = self.helpers["RL", player]
            if player in waiting:
                helper.store(*waiting.pop(player), rew, obs, terminated, truncated, info)
            if terminated or truncated:
                env.step(None)
                continue
            waiting[player] = obs, helper.predict(obs)
            env.step(waiting[player][1])


def test_an_agent_of_ones_own_is_plain_code_and_does_what_the_ready_one_does():
    def make():
        return aec_of(TicTacToe())

    hashes = []
    for agent in (TwoPlayers, TurnAgent):
        with Robot(make, tasks={"RL": dqn(make, learn_every=4)}, agent=agent, n_agents=2, trace=True) as robot:
            robot.run(300)
            assert robot.tasks["RL"].learns > 10
            hashes.append(robot.trace_hash())
    assert hashes[0] == hashes[1]


def test_both_players_rows_of_tic_tac_toe_are_complete():
    """The article's trap: the loser does not move last, and still learns that it has lost."""
    def make():
        return aec_of(TicTacToe())

    with Robot(make, tasks={"RL": dqn(make)}, agent=TurnAgent, seed=1) as robot:
        episodes = robot.collect(n_episode=40)
        for i in range(2):
            rows = robot.buffers["RL"].lane_rows(robot.agents[0].helpers["RL", f"player_{i}"].lanes.start)
            assert rows["terminated"].sum() == 40 and not rows["truncated"].any()
            assert rows["rew"][rows["terminated"]].tolist() == [returns[i] for returns in episodes.returns]
            assert not rows["rew"][~rows["terminated"]].any()
            assert not rows["obs_next.mask"][rows["terminated"]].any() and rows["obs.mask"].any(1).all()
        assert {-1.0, 1.0} <= {returns[0] for returns in episodes.returns}


def test_an_unknown_helper_is_answered_with_the_known_ones():
    def make():
        return aec_of(Kuhn())

    agent = partial(TurnAgent, {"RL": ("player_0", "player_1")})
    with Robot(make, tasks={"RL": dqn(make), "one": dqn(make)}, agent=agent) as robot:
        helpers = robot.agents[0].helpers
        assert helpers["RL", "player_1"].role == "player_1" and helpers["one"].role is None
        for key, says in ((("RL", "player_2"), "task 'RL': no role 'player_2'; did you mean 'player_"),
                          ("RL", "has the roles player_0, player_1; write helpers\\['RL', 'player_0'\\]"),
                          (("one", "white"), "task 'one' has no roles here; write helpers\\['one'\\]"),
                          ("LR", "no task 'LR'; there are 'RL', 'one'"), (("LR", "white"), "no task 'LR'")):
            with pytest.raises(KeyError, match=says):
                helpers[key]


def test_roles_that_are_none_are_refused():
    def make():
        return aec_of(Kuhn())

    for roles, kind, says in (({"LR": ("a",)}, ValueError, "roles: no task 'LR'; there are 'RL'"),
                              ({"RL": "white"}, TypeError, r"are 'white'; expected names, such as \('white', 'black'\)"),
                              ({"RL": ("a", "")}, TypeError, "expected names"),
                              ({"RL": ("a", "a")}, ValueError, "expected each once")):
        with pytest.raises(kind, match=says):
            Robot(make, tasks={"RL": dqn(make)}, agent=partial(TurnAgent, roles))


def test_traits_are_checked_before_a_run_with_the_way_out():
    def turns():
        return aec_of(Kuhn())

    def at_once():
        return leaving(1, 1, box=True)

    for env, agent, says in ((turns, Agent, "an AECEnv .* several players; .*agent=TurnAgent"),
                             (at_once, Agent, "a ParallelEnv .* agent=SimultaneousAgent"),
                             (turns, VectorAgent, "AECEnv .* several players"),
                             (turns, SimultaneousAgent, "act by turns, and SimultaneousAgent .* at once; use TurnAgent"),
                             (at_once, TurnAgent, "act at once, and TurnAgent .* by turns; use SimultaneousAgent, or give pett"),
                             (lambda: gym.make("CartPole-v1"), TurnAgent, "TurnAgent is for environments of several players")):
        with pytest.raises(TypeError, match=says):
            Robot(env, tasks={"RL": dqn(turns)}, agent=agent)


def test_each_role_has_its_own_lane_generator_and_numbers():
    def make():
        return aec_of(Kuhn())

    with Robot(make, tasks={"RL": dqn(make)}, agent=TurnAgent, n_agents=3) as robot:
        robot.collect(n_step=30)
        helpers = [helper for agent in robot.agents for helper in agent.helpers.values()]
        assert [helper.lanes for helper in helpers] == [range(i, i + 1) for i in range(6)]
        assert [helper.context.first_lane for helper in helpers] == list(range(6))
        assert len({helper.rng.bit_generator.state["state"]["state"] for helper in helpers}) == 6
        assert len({id(helper.explorer) for helper in helpers}) == 6
        assert robot.buffers["RL"].n_lanes == 6
        leaves = robot.agents[1]
        robot.remove_agent(leaves)
        new, = robot.add_agents(1)
        assert sorted(h.lanes.start for h in new.helpers.values()) == [2, 3] and robot.buffers["RL"].n_lanes == 6
        robot.collect(n_step=30)


def test_players_may_have_tasks_of_their_own():
    def make():
        return aec_of(Kuhn())

    agent = partial(TurnAgent, {"first": ("player_0",), "second": ("player_1",)})
    with Robot(make, tasks={"first": dqn(make), "second": dqn(make)}, agent=agent) as robot:
        robot.collect(n_episode=10)
        rows = {name: buffer.lane_rows(0)["rew"] for name, buffer in robot.buffers.items()}
        assert rows["first"].sum() == -rows["second"].sum() and all(buffer.n_lanes == 1 for buffer in robot.buffers.values())
    with pytest.raises(AgentFailed, match="player 'player_1' has no role at any task; name it in roles="):
        with Robot(make, tasks={"first": dqn(make)}, agent=partial(TurnAgent, {"first": ("player_0",)})) as robot:
            robot.run(20)


def test_a_search_among_parameters_takes_one_player():
    task = ComputationTask(lambda: ES(MLPActorCritic(*spaces(tic_tac_toe), hidden=(8,)), population=4), helper=PopulationHelper)
    with pytest.raises(ValueError, match="role 'player_0'.*there is one of several players; give an environment of one"):
        Robot(tic_tac_toe, tasks={"RL": task}, agent=TurnAgent)


class Recorded(A2C):
    """Keeps how many rows, and how many segments, each update had."""

    def __init__(self, model, **options):
        super().__init__(model, **options)
        self.seen = []

    def learn(self, batch):
        self.seen.append((len(batch.rew), int(batch.last.sum())))
        return super().learn(batch)


def test_the_roles_of_an_agent_learn_together():
    def make():
        return aec_of(Kuhn(4))

    task = ComputationTask(lambda: Recorded(MLPActorCritic(*spaces(make), hidden=(8,))), helper=partial(OnPolicyHelper, unroll=4))
    with Robot(make, tasks={"RL": task}, agent=TurnAgent) as robot:
        robot.run(400)
        seen = task.algorithm.seen
        assert len(seen) > 10 and all(4 <= rows <= 16 and segments >= 2 for rows, segments in seen)
        assert np.mean([rows for rows, _ in seen]) > 8
        assert robot.metrics()["RL/dropped"] == 0.0  # each alone would have made the others' rows old


def test_whole_episodes_of_all_roles_are_learned_from_at_once():
    def make():
        return aec_of(TicTacToe())

    helper = partial(EpisodicHelper, episodes=2, max_steps=50)
    task = ComputationTask(lambda: Recorded(MLPActorCritic(*spaces(make), hidden=(8,))), helper=helper)
    with Robot(make, tasks={"RL": task}, agent=TurnAgent) as robot:
        robot.run(200)
        lengths = list(robot.recent_lengths)
        assert task.algorithm.seen == [(sum(lengths[i:i + 2]), 4) for i in range(0, len(lengths) // 2 * 2, 2)]
        assert len(lengths) > 20


def learning(make, kind):
    """A task that learns, by random rows or by unrolls."""
    if kind == "off":
        return dqn(make, learn_every=4, warmup=32, batch_size=16, explorer=EpsilonGreedy(0.3))
    return ComputationTask(lambda: A2C(MLPActorCritic(*spaces(make), hidden=(8,))), helper=partial(OnPolicyHelper, unroll=8))


def tic_tac_toe():
    return aec_of(TicTacToe())


def runners():
    return leaving(3, 7, 5, box=True, cut=(1,))


KINDS = [(tic_tac_toe, TurnAgent, "off"), (tic_tac_toe, TurnAgent, "on"), (runners, SimultaneousAgent, "off")]


@pytest.mark.parametrize("driver, kinds", [
    ("cooperative", KINDS), ("threads", KINDS), ("processes", KINDS[2:]),
    pytest.param("processes", KINDS[:2], marks=pytest.mark.slow),  # the next test has one of them in workers
], ids=lambda value: value if isinstance(value, str) else f"{len(value)}kinds")  # fmt: skip
def test_every_driver_runs_players(driver, kinds):
    for make, agent, kind in kinds:
        with Robot(make, tasks={"RL": learning(make, kind)}, agent=agent, n_agents=3, driver=driver) as robot:
            robot.run(240)
            task = robot.tasks["RL"]
            assert task.learns >= 4 and np.shape(robot.recent_returns[-1]) == (len(make().possible_agents),)
            assert robot.wrappers["RL"].predictions.counters.rows >= 240
            assert robot.evaluate(3).mean_return.shape == np.shape(robot.recent_returns[-1])


@pytest.mark.parametrize("driver, make, agent, kind", [
    *[("cooperative", *kind) for kind in KINDS], ("processes", *KINDS[1]),
    *[pytest.param("processes", *kind, marks=pytest.mark.slow) for kind in (KINDS[0], KINDS[2])],
])  # fmt: skip
def test_a_run_of_players_goes_on_exactly(driver, make, agent, kind, tmp_path):
    def robot():
        return Robot(make, tasks={"RL": learning(make, kind)}, agent=agent, n_agents=2, driver=driver, seed=5, trace=True)

    hashes = []
    with robot() as whole:
        whole.run(150)
        whole.save(tmp_path / "mid")
        whole.run(150)
        hashes.append(whole.trace_hash())
    with robot() as again:
        again.load(tmp_path / "mid")
        again.run(150)
        hashes.append(again.trace_hash())
    assert hashes[0] == hashes[1]


def test_a_game_is_carried_over_a_checkpoint(tmp_path):
    with Robot(tic_tac_toe, tasks={"RL": dqn(tic_tac_toe)}, agent=TurnAgent, seed=2) as robot:
        robot.run(3)
        before = robot.agents[0].env.state_now.history[:]
        robot.save(tmp_path / "mid")
        assert robot.metrics().get("episodes_cut", 0) == 0
        robot.run(1)
        assert robot.agents[0].env.state_now.history[:3] == before
    with Robot(runners, tasks={"RL": dqn(runners)}, agent=SimultaneousAgent) as robot:  # it cannot clone its state
        robot.run(2)
        robot.save(tmp_path / "other")
        assert robot.metrics()["episodes_cut"] == 1


def test_long_episodes_are_cut_off_by_an_evaluation_for_every_player():
    for make, agent in ((tic_tac_toe, TurnAgent), (partial(leaving, 50, 60, box=True), SimultaneousAgent)):
        with Robot(make, tasks={"RL": dqn(make)}, agent=agent) as robot, pytest.warns(RuntimeWarning, match="did not end within"):
            episodes = robot.evaluate(1, max_episode_steps=4)
            assert episodes.cut == 1 and episodes.lengths == [4] and episodes.returns[0].shape == (2,)


class Strange:
    """What is wrong with an environment, by name."""

    def __init__(self, what):
        self.what = what

    def __call__(self):
        env, what = leaving(2, 3, box=True), self.what
        step, reset = env.step, env.reset

        def strange(actions):
            obs, rewards, ends, cuts, infos = step(actions)
            if what == "stranger":
                env.agents.append("p9")
            if what == "reward":
                rewards["p0"] = "much"
            if what == "missing":
                del ends["p1"]
            if what == "blind":
                del obs["p1"]
            if what == "nan":
                obs["p1"][:] = np.nan
                rewards["p1"] = np.inf
            return obs, rewards, ends, cuts, infos

        env.step = strange
        if what == "pair":
            env.reset = lambda seed=None, options=None: reset()[0]
        return env


@pytest.mark.parametrize("what, says", [
    ("stranger", "has the players 'p9', who are not among its possible_agents p0, p1"),
    ("reward", "gave player 'p0' the reward the text 'much'; expected a number"),
    ("missing", "gave no reward, termination or truncation for 'p1', who is there"),
    ("blind", "gave no observation for 'p1'"), ("pair", "expected the pair .observations, infos."),
    ("nan", "expected a finite number, got inf"),
])  # fmt: skip
def test_what_a_parallel_environment_gives_wrongly_is_refused_by_name(what, says):
    make = Strange(what)
    with Robot(make, tasks={"RL": dqn(make)}, agent=SimultaneousAgent) as robot, pytest.raises(Exception, match=says) as told:
        robot.run(5)
    assert "agent 0" in str(told.value)


def test_bad_values_of_players_are_replaced_or_dropped():
    make = Strange("nan")
    agent = partial(SimultaneousAgent, on_bad_value="replace")
    with Robot(make, tasks={"RL": dqn(make)}, agent=agent) as robot:
        robot.collect(n_episode=2)
        assert robot.bad_values == 6
        rows = robot.buffers["RL"].lane_rows(1)
        assert not rows["obs_next"].any() and not rows["rew"].any() and len(rows["rew"]) == 6
        assert robot.buffers["RL"].lane_rows(0)["obs_next"][0].tolist() == [1, 1]
    with Robot(make, tasks={"RL": dqn(make)}, agent=partial(SimultaneousAgent, on_bad_value="drop")) as robot:
        robot.run(5)
        assert robot.bad_values == 5 and robot.episodes == 0


def test_an_aec_environment_that_lets_players_go_without_a_last_turn_is_refused():
    for what, says in (("short", "has let player_0.* go without a last turn.*stepped once more, with None"),
                       ("stays", "keeps 'player_[01]' after its last turn")):
        env = aec_of(Kuhn())
        step = env.step

        def wrong(action, env=env, step=step, what=what):
            done = env.terminations[env.agent_selection]
            if done and what == "stays":
                return
            step(action)
            if what == "short" and all(env.terminations.values()):
                env.agents = []

        env.step = wrong
        with Robot(env, tasks={"RL": dqn(lambda: aec_of(Kuhn()))}, agent=TurnAgent) as robot:
            with pytest.raises(AgentFailed, match=says):
                robot.run(10)


def test_an_agent_that_steps_wrongly_is_told():
    class Idle(Agent):
        def run_one_episode(self):
            self.env.reset()
            for player in self.env.agent_iter():
                self.helpers["RL", player].predict(self.env.last()[0])

    class Wrong(TurnAgent):
        def run_one_episode(self):
            self.env.reset()
            self.env.step(99)

    class Half(SimultaneousAgent):
        def run_one_episode(self):
            self.env.reset()
            self.env.step({"p0": 0})

    class Turned(SimultaneousAgent):
        def run_one_episode(self):
            self.env.reset()
            self.env.last()

    for make, agent, says in ((tic_tac_toe, Idle, "turn of 'player_0' was left without step"),
                              (tic_tac_toe, Wrong, "player 'player_0': action outside the space: expected Discrete"),
                              (runners, Half, "actions of p0; expected one of each who is there: p0, p1, p2"),
                              (runners, Turned, "act at once; use reset.. and step.actions.")):
        with Robot(make, tasks={"RL": dqn(make)}, agent=agent) as robot, pytest.raises(AgentFailed, match=says):
            robot.run(10)


def test_each_role_has_a_memory_of_its_own(tmp_path):
    """A recurrent model: the stored memory is zero where a player's episode begins, and its own later."""
    def make():
        return aec_of(TicTacToe())

    def robot():
        task = ComputationTask(lambda: A2C(RecurrentActorCritic(*spaces(make), hidden=(4,), size=3)),
                               helper=partial(OnPolicyHelper, unroll=200))
        return Robot(make, tasks={"RL": task}, agent=TurnAgent, trace=True)

    hashes = []
    for resumed in (False, True):
        with robot() as run:
            if resumed:
                run.load(tmp_path / "mid")
            else:
                run.collect(n_step=120)
                for helper in run.agents[0].helpers.values():
                    rows = run.buffers["RL"].lane_rows(helper.lanes.start)
                    begins = np.concatenate([[True], (rows["terminated"] | rows["truncated"])[:-1]])
                    (state,) = [column for name, column in rows.items() if name.startswith("state")]
                    assert not state[begins].any() and state[~begins].any(axis=-1).all() and begins.sum() > 5
                first, second = (run.agents[0].helpers["RL", f"player_{i}"].memory[0] for i in range(2))
                assert not np.array_equal(first, second)
                run.save(tmp_path / "mid")
            run.run(70)
            hashes.append(run.trace_hash())
    assert hashes[0] == hashes[1]


def test_a_run_stops_at_a_players_return():
    with Robot(tic_tac_toe, tasks={"RL": dqn(tic_tac_toe)}, agent=TurnAgent, seed=3) as robot:
        robot.run(StopAtReturn(0.5, 2, player="player_1"))
        assert [returns[1] for returns in list(robot.recent_returns)[-2:]] in ([0.0, 1.0], [1.0, 0.0], [1.0, 1.0])
        with pytest.raises(ValueError, match="no player 'white'; there are 'player_0', 'player_1'"):
            robot.run(StopAtReturn(0.5, player="white"))
        with pytest.raises(AgentFailed, match="of several players StopAtReturn.threshold, player="):
            robot.run(StopAtReturn(0.5, 2))


@pytest.mark.parametrize("mode, driver", [("async", "cooperative"), ("async", "threads"),
                                          *[pytest.param(mode, "ray", marks=pytest.mark.slow) for mode in ("sync", "async")],
                                          pytest.param("async", "processes", marks=pytest.mark.slow)])
def test_players_learn_without_waiting_and_over_ray(mode, driver):
    if driver == "ray":
        pytest.importorskip("ray")
    for make, agent, kind in KINDS:
        with Robot(make, tasks={"RL": learning(make, kind)}, agent=agent, n_agents=2, driver=driver, mode=mode) as robot:
            robot.run(300)
            assert robot.tasks["RL"].learns >= 2 and np.shape(robot.recent_returns[-1]) == (len(make().possible_agents),)
