"""The six stages, the hooks that come with the house, and stop conditions."""

import sys
import time

import numpy as np
import pytest
from agent_fakes import Corridor, Log, Recorder, TwoLengths, robot_of

from parl_like import Agent, AgentHelper, OffPolicyHelper, Robot
from parl_like.environment.hooks import (
    EpisodeStats,
    EveryNEpisodes,
    EveryNSteps,
    Hook,
    LossLog,
    RewardsPerEpisode,
    Stage,
    StageHook,
    TimePerStep,
    TraceHash,
)
from parl_like.environment.stop_conditions import (
    StopAfterEpisodes,
    StopAfterIterations,
    StopAfterSeconds,
    StopAfterSteps,
    StopAtReturn,
    StopCondition,
    StopSignal,
    StopWhen,
    StopWithoutImprovement,
)
from parl_like.run.run_policy import run_policy

# ---------------------------------------------------------------------------------------------------------------- the sequence


class LoggingHelper(AgentHelper):
    """A policy that hears of the stages, before any hook."""

    events: list = []

    def pre_episode(self, agent):
        super().pre_episode(agent)
        self.events.append(("policy", "PRE_EPISODE"))

    def predict(self, obs):
        self.events.append(("policy", "predict", float(obs[0])))
        return super().predict(obs)

    def pre_act(self, agent, act):
        self.events.append(("policy", "PRE_ACT", act))

    def post_act(self, agent):
        self.events.append(("policy", "POST_ACT", agent.env.last[2]))

    def store(self, *args, **kwargs):
        self.events.append(("policy", "store"))

    def post_episode(self, agent, interrupted):
        self.events.append(("policy", "POST_EPISODE", interrupted))


def test_two_episodes_of_two_steps_give_exactly_this_sequence():
    events = []
    helper = type("Helper", (LoggingHelper,), {"events": events})

    class Stop(StopAfterEpisodes):
        def __call__(self, robot):
            events.append(("stop?",))
            return super().__call__(robot)

    with robot_of(Recorder(), helper, env=lambda: Corridor(2)) as robot:
        robot.run(Stop(2), [Log("first", events), Log("second", events)])

    def everybody(stage, *rest):
        return [(who, stage, *rest) for who in ("policy", "first", "second")]

    def step(position):
        return [("policy", "predict", position), *everybody("PRE_ACT", 0), *everybody("POST_ACT", 1.0), ("stop?",),
                ("policy", "store")]

    episode = [*everybody("PRE_EPISODE"), *step(0.0), *step(1.0), *everybody("POST_EPISODE", False)]
    assert events == [
        ("first", "PRE_EXPERIMENT"), ("second", "PRE_EXPERIMENT"), *episode, *episode, ("first", "POST_EXPERIMENT"),
        ("second", "POST_EXPERIMENT"),
    ]


def test_a_second_run_has_stages_of_its_own():
    first, second = Log(), Log()
    with robot_of(Recorder(), env=lambda: Corridor(2)) as robot:
        robot.run(StopAfterEpisodes(1), first)
        robot.run(StopAfterEpisodes(2), second)
    assert (first.count("POST_EPISODE", False), second.count("POST_EPISODE", False)) == (1, 2)
    assert first.count("POST_EXPERIMENT") == second.count("PRE_EXPERIMENT") == second.count("POST_EXPERIMENT") == 1


def test_ten_episodes_give_ten_entries_in_whatever_runs_they_fall():
    """The third episode begins in the first run and ends in the second."""
    stats, rewards = EpisodeStats(), RewardsPerEpisode()
    with robot_of(Recorder(), env=lambda: Corridor(4)) as robot:
        robot.run(StopAfterSteps(10), [stats, rewards])
        robot.run(StopAfterEpisodes(8), [stats, rewards])
        assert stats.lengths == [4] * 10 and stats.returns == [4.0] * 10
        assert [sum(episode) for episode in rewards.rewards[0, 0]] == [4.0] * 10


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
@pytest.mark.parametrize("where", ["env", "agent", "hook", "stop", "pre_experiment"])
def test_post_experiment_comes_also_after_an_error(where, driver):
    class Failing(Hook):
        def post_act(self, agent):
            if where == "hook" and agent.steps == 3:
                raise OSError("a hook")

        def pre_experiment(self, robot):
            if where == "pre_experiment":
                raise OSError("at once")

    class FailingStop(StopCondition):
        def __call__(self, robot):
            if where == "stop" and robot.env_steps > 3:
                raise OSError("a stop")
            return False

    class FailingAgent(Agent):
        def run_one_episode(self):
            super().run_one_episode()
            if where == "agent":
                raise OSError("an agent")

    log = Log()
    env = lambda: Corridor(4, fail_at=2 if where == "env" else None)  # noqa: E731
    with robot_of(Recorder(), env=env, agent=FailingAgent, n_agents=2, driver=driver) as robot:
        with pytest.raises(Exception, match="a hole|an agent|a hook|a stop|at once"):
            robot.run(FailingStop(), [log, Failing()])
        assert log.events[0] == ("hook", "PRE_EXPERIMENT") and log.events[-1] == ("hook", "POST_EXPERIMENT")
        assert log.count("PRE_EPISODE") == log.count("POST_EPISODE")  # also of the agents that had no part in it
        if where == "env":
            return
        fresh = Log()
        where = "nowhere"
        robot.run(StopAfterEpisodes(2), fresh)  # the robot is as usable as before
        assert fresh.count("POST_EPISODE", False) >= 2


def test_an_error_is_not_hidden_by_those_that_follow_from_it():
    class Bad(Hook):
        def post_episode(self, agent, interrupted):
            if interrupted:
                raise ValueError("second")

    with robot_of(Recorder(), env=lambda: Corridor(9, fail_at=2), n_agents=2) as robot:
        with pytest.raises(Exception, match="a hole in the floor") as caught:
            robot.run(StopAfterSteps(100), Bad())
        assert any("afterwards POST_EPISODE of agent" in note for note in caught.value.__notes__)
        with pytest.raises(Exception, match="a hole in the floor"):
            robot.run(StopAfterSteps(100))  # and what happened while ending does not turn up in the next run


def test_an_error_while_ending_is_not_left_for_the_next_iteration():
    class Untidy(Agent):
        def run_one_episode(self):
            try:
                super().run_one_episode()
            finally:
                if self.index == 1 and self.env.length == 9:
                    raise ValueError("second")

    helper = lambda: OffPolicyHelper(size=100, batch_size=1, learn_every=1)  # noqa: E731
    with robot_of(Recorder(), helper, env=lambda: Corridor(9, fail_at=2), agent=Untidy, n_agents=2) as robot:
        with pytest.raises(Exception, match="a hole in the floor"):
            for _ in range(3):
                robot.train_iter()
        for agent in robot.agents:
            agent.env.fail_at = agent.env._env.fail_at = None
            agent.env._env.length = 8
        robot.train_iter()


def test_an_error_that_only_ending_brings_is_raised():
    class Bad(Hook):
        def post_act(self, agent):
            agent.robot.request_save("never")

        def post_episode(self, agent, interrupted):
            raise ValueError("while ending")

    with robot_of(Recorder(), env=lambda: Corridor(end=None)) as robot:
        with pytest.raises(Exception, match="while ending"):
            robot.run(StopAfterSteps(5), Bad())
        robot.run(StopAfterSteps(5))
        assert robot.env_steps == 10


# ----------------------------------------------------------------------------------------------------------------------- hooks


def test_hooks_add_up_in_order():
    a, b, c = Hook(), Hook(), Hook()
    assert a + b == [a, b] and a + b + c == [a, b, c] and a + (b + c) == [a, b, c]


def test_a_function_at_a_stage():
    calls = []
    hooks = StageHook(Stage.PRE_EXPERIMENT, calls.append) + StageHook(Stage.POST_EPISODE, lambda agent,
                                                                      interrupted: calls.append(interrupted))
    with robot_of(Recorder(), env=lambda: Corridor(2)) as robot:
        robot.run(StopAfterEpisodes(2), hooks)
        assert calls == [robot, False, False]


def test_what_is_done_every_n_steps_and_episodes():
    steps, episodes = [], []
    helper = lambda: OffPolicyHelper(size=100, batch_size=1, learn_every=1)  # noqa: E731
    with robot_of(Recorder(), helper, env=lambda: Corridor(4), n_agents=3) as robot:
        hooks = [EveryNSteps(10, lambda r: steps.append(r.env_steps)), EveryNEpisodes(3, lambda r: episodes.append(r.episodes))]
        robot.run(StopAfterSteps(35), hooks)
        assert steps == [10, 20, 30]
        assert len(episodes) == 2  # three agents end together, before the first hook hears of it, and each three are noticed once
        robot.run(StopAfterSteps(10), hooks)
        assert steps == [10, 20, 30, 40]
    for hook in (EveryNSteps, EveryNEpisodes):
        with pytest.raises(ValueError, match="n is 0; expected at least 1"):
            hook(0, print)


def test_every_n_episodes_may_count_their_beginnings():
    begun = []
    with robot_of(Recorder(), env=lambda: Corridor(4)) as robot:
        robot.run(StopAfterSteps(14), EveryNEpisodes(2, lambda r: begun.append(r.env_steps), stage=Stage.PRE_EPISODE))
    assert begun == [4, 12]
    with pytest.raises(ValueError, match=r"stage is Stage.PRE_ACT; expected Stage.PRE_EPISODE or Stage.POST_EPISODE"):
        EveryNEpisodes(2, print, stage=Stage.PRE_ACT)


@pytest.mark.parametrize("stage", [Stage.PRE_EPISODE, Stage.POST_EPISODE])
def test_a_class_made_from_every_n_episodes_may_listen_to_episodes_itself(stage):
    begun, ended, counted = [], [], []

    class Listens(EveryNEpisodes):
        def pre_episode(self, agent):
            begun.append(agent.index)
            super().pre_episode(agent)

        def post_episode(self, agent, interrupted):
            ended.append(interrupted)
            super().post_episode(agent, interrupted)

    with robot_of(Recorder(), env=lambda: Corridor(4)) as robot:
        robot.run(StopAfterEpisodes(4), Listens(2, lambda r: counted.append(r.env_steps), stage))
    assert len(begun) >= 4 and ended[:4] == [False] * 4
    assert counted == ([4, 12] if stage is Stage.PRE_EPISODE else [8, 16])


@pytest.mark.parametrize("driver", ["cooperative", "threads", pytest.param("processes", marks=pytest.mark.skipif(
    sys.platform != "linux", reason="workers are forked"))])
def test_the_losses_of_updates_are_logged(driver):
    log, workers = LossLog(), {"workers.count": 2} if driver == "processes" else {}
    with Robot.of("PPO", "CartPole-v1", n_agents=2, seed=0, unroll=16, hidden=[8], driver=driver, **workers) as robot:
        robot.run(StopAfterIterations(1))  # of which it does not hear
        robot.run(StopAfterSteps(3 * 32), log)
        rows = log.rows["RL"]
        assert [row["updates"] for row in rows] == list(range(2, robot.tasks["RL"].learns + 1)) and len(rows) >= 3
        assert rows[-1].keys() > {"updates", "env_steps", "loss", "entropy"}
        steps = [row["env_steps"] for row in rows]
        assert steps == sorted(steps) and steps[0] > 32
        assert rows[-1]["loss"] == robot.metrics()["RL/loss"]


def test_a_hook_changes_settings_and_saves_meanwhile(tmp_path):
    """The rate counts from the next update on; the state is written at the end of the iteration."""
    def settle(robot):
        robot.tasks["RL"].algorithm.lr = 0.0
        weights.append(robot.tasks["RL"].algorithm.model.weights_hash())

    weights: list = []
    with Robot.of("PPO", "CartPole-v1", n_agents=2, seed=0, unroll=16, hidden=[8]) as robot:
        saves = EveryNSteps(64, lambda robot: robot.request_save(tmp_path / f"{robot.env_steps}"))
        robot.run(StopAfterSteps(160), EveryNSteps(80, settle) + saves)
        assert robot.tasks["RL"].learns == 5 and len(weights) == 2 and len(set(weights)) == 1
        assert robot.tasks["RL"].algorithm.model.weights_hash() == weights[0]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["128", "64"]
        robot.load(tmp_path / "64")


def test_time_per_step_is_the_environments():
    class Slow(Corridor):
        def step(self, act):
            time.sleep(0.002)
            return super().step(act)

    times = TimePerStep(keep=5)
    with robot_of(Recorder(), env=Slow) as robot:
        robot.run(StopAfterSteps(8), times)
    assert len(times.seconds) == 5 and min(times.seconds) >= 0.002


def test_a_trace_sees_every_event():
    def digest(env, steps=10):
        trace = TraceHash()
        with robot_of(Recorder(), env=env) as robot:
            robot.run(StopAfterSteps(steps), trace)
        return trace.hexdigest()

    base = digest(lambda: Corridor(4))
    assert digest(lambda: Corridor(4)) == base
    others = [digest(lambda: Corridor(5)), digest(lambda: Corridor(4, "truncated")), digest(lambda: Corridor(4), 11)]
    assert len({base, *others}) == 4


# ------------------------------------------------------------------------------------------------------------- stop conditions


def play(stop, env=lambda: Corridor(4), **options):
    """The robot after a run with this stop condition."""
    robot = robot_of(Recorder(), env=env, **options)
    robot.run(stop)
    robot.close()
    return robot


@pytest.mark.parametrize("n_agents", [1, 3])
def test_steps_and_episodes_are_exact(n_agents):
    assert play(StopAfterSteps(17), n_agents=n_agents).env_steps == 17
    robot = play(StopAfterEpisodes(5), n_agents=n_agents)
    assert robot.episodes == 5 and sum(agent.steps for agent in robot.agents) == robot.env_steps


def test_conditions_count_from_the_start_of_their_run():
    with robot_of(Recorder(), env=lambda: Corridor(4)) as robot:
        for expected in (7, 14):
            robot.run(StopAfterSteps(7))
            assert robot.env_steps == expected
        assert robot.episodes == 3  # of 4 steps each
        stop = StopAfterEpisodes(2)
        for expected in (5, 7):
            robot.run(stop)
            assert robot.episodes == expected


def test_any_and_all():
    assert play(StopAfterSteps(9) | StopAfterEpisodes(1)).env_steps == 4
    assert play(StopAfterSteps(2) | StopAfterEpisodes(1)).env_steps == 2
    assert play(StopAfterSteps(9) & StopAfterEpisodes(1)).env_steps == 9
    assert play(StopAfterSteps(2) & StopAfterEpisodes(2)).env_steps == 8
    assert play((StopAfterSteps(3) | StopAfterSteps(5)) & (StopAfterSteps(6) | StopAfterEpisodes(1))).env_steps == 4


def test_both_sides_are_asked_at_every_act():
    class Count(StopCondition):
        n = 0

        def __call__(self, robot):
            self.n += 1
            return self.n >= 6

    for stop in (StopAfterSteps(3) & Count(), Count() & StopAfterSteps(3), StopAfterSteps(9) | Count(),
                 Count() | StopAfterSteps(9)):
        assert play(stop).env_steps == 6
    ones = Count()
    play((StopAfterSteps(2) | ones) & StopAfterSteps(4))
    assert ones.n == 4  # also where the other side had said yes already


class Returns(Corridor):
    """One-step episodes whose returns are given."""

    def __init__(self, returns):
        super().__init__(1)
        self.returns = iter(returns)

    def step(self, act):
        obs, _, *rest = super().step(act)
        return obs, float(next(self.returns)), *rest


@pytest.mark.parametrize(("best_at", "delta"), [(1, 0.0), (50, 0.0), (50, 2.0)])
def test_without_improvement_a_run_ends_patience_episodes_after_the_best(best_at, delta):
    """30 episodes after the last that was better by more than `delta` than the best before it."""
    returns = np.zeros(200)
    returns[:best_at] = 3.0 * np.arange(1, best_at + 1)
    returns[best_at + 5] = returns.max() + delta  # no improvement: not more than delta above the best
    assert play(StopWithoutImprovement(30, delta), lambda: Returns(returns)).episodes == best_at + 30


def test_improvement_of_a_value_of_ones_own():
    values = iter([0, 1, 2, 3, 3, 3, 3, 3])
    assert play(StopWithoutImprovement(3, value=lambda robot: next(values))).episodes == 4 + 3
    with pytest.raises(ValueError, match="patience is 0"):
        StopWithoutImprovement(0)


def test_the_other_conditions():
    begin = time.monotonic()
    play(StopAfterSeconds(0.05))
    assert time.monotonic() - begin >= 0.05
    assert play(StopAtReturn(2.0, episodes=4), lambda: Returns([1, 1, 1, 1, 2, 2, 2, 2, 2, 2])).episodes == 8
    assert play(StopWhen(lambda robot: robot.env_steps == 3)).env_steps == 3
    signal = StopSignal()
    robot = robot_of(Recorder())
    robot.run(signal, EveryNSteps(7, lambda robot: signal.set()))
    assert robot.env_steps == 7
    robot.run(signal)
    assert robot.env_steps == 8
    signal.clear()
    robot.run(signal | StopAfterSteps(2))
    assert robot.env_steps == 10
    robot.close()


def test_iterations_end_between_unrolls():
    helper = lambda: OffPolicyHelper(size=100, batch_size=1, learn_every=5)  # noqa: E731
    for stop in (StopAfterIterations(3), StopAfterIterations(3) | StopAfterSteps(1000),
                 StopAfterIterations(3) & StopAfterSteps(2)):
        with robot_of(Recorder(), helper, n_agents=2) as robot:
            robot.run(stop)
            assert (robot.iterations, robot.env_steps, robot.tasks["RL"].learns) == (3, 30, 6)
    with robot_of(Recorder(), helper) as robot:  # with `&` it is asked after every act, too
        robot.run(StopAfterIterations(1) & StopAfterSteps(12))
        assert robot.env_steps == 12


@pytest.mark.parametrize("make", [StopAfterSteps, StopAfterEpisodes, StopAfterIterations])
def test_nothing_is_no_number(make):
    with pytest.raises(ValueError, match="n is 0; expected at least 1"):
        make(0)
    with pytest.raises(TypeError, match=r"n is 2.5 \(float\); expected int"):
        make(2.5)


@pytest.mark.parametrize("make", [
    lambda: StopAfterSeconds(float("nan")), lambda: StopAfterSeconds(-1), lambda: StopAtReturn(1.0, episodes=0),
    lambda: StopAtReturn(1.0, episodes=101),
])
def test_what_could_never_be_answered_is_refused(make):
    with pytest.raises(ValueError, match="expected"):
        make()


def test_only_conditions_are_composed():
    for compose in (lambda: StopAfterSteps(3) & (lambda robot: True), lambda: StopAfterSteps(3) | 5):
        with pytest.raises(TypeError, match="expected a StopCondition"):
            compose()


def test_no_agent_takes_a_step_after_the_stop():
    for n in range(1, 12):
        robot = play(StopAfterSteps(n), env=lambda: TwoLengths(), n_agents=4)
        assert robot.env_steps == n


def test_a_stop_may_be_asked_for_before_the_first_step():
    with robot_of(Recorder()) as robot:
        robot.run(None, StageHook(Stage.PRE_EXPERIMENT, lambda robot: robot.request_stop()))
        assert robot.env_steps == 0
        robot.run(StopAfterSteps(2))
        assert robot.env_steps == 2


# ------------------------------------------------------------------------------------------------------------------ run_policy


def test_a_plain_function_is_a_policy():
    log = Log()
    run_policy(lambda obs: int(obs[0]) % 2, lambda: Corridor(4), StopAfterEpisodes(2), log)
    assert [e[2] for e in log.events if e[1] == "PRE_ACT"] == [0, 1, 0, 1] * 2
    env = Corridor(3)
    run_policy(lambda obs: 0, env)  # one episode
    assert env.at == 3 and env.log[1:] == [0, 0, 0] and not env.closed


def test_an_environment_for_a_function_needs_no_spaces():
    class Counter:
        at = 0

        def reset(self, *, seed=None, options=None):
            self.at = 0
            return self.at, {}

        def step(self, act):
            self.at += act
            return self.at, 1.0, self.at >= 4, False, {}

    env, log = Counter(), Log()
    run_policy(lambda obs: 2, env, None, log)
    assert env.at == 4 and [e[2] for e in log.events if e[1] == "PRE_ACT"] == [2, 2]
    run_policy(lambda obs: 4, Counter, StopAfterEpisodes(3), log)


def test_ones_own_environment_can_be_watched_twice():
    seen = EpisodeStats()
    for _ in range(2):
        run_policy(lambda obs: 0, "CartPole-v1", None, seen, seed=4)
    assert seen.lengths[0] == seen.lengths[1]  # one seed, one start


class Old:
    """As environments were before gymnasium: its reset takes nothing, and a number of `rng` says how far it is."""

    def __init__(self):
        self.rng = np.random.default_rng()

    def reset(self):
        self.at = 0
        return self.rng.random(), {}

    def step(self, act):
        self.at += 1
        return self.rng.random(), 1.0, self.at == 3, False, {}


class Seeded(Old):
    def seed(self, seed):
        self.rng = np.random.default_rng(seed)


class Shown(Hook):
    def __init__(self):
        self.seen = []

    def post_act(self, agent):
        self.seen.append(agent.env.last[0])


def shown(env, seed):
    hook = Shown()
    run_policy(lambda obs: 0, env, StopAfterEpisodes(2), hook, seed=seed)
    return hook.seen


def test_an_environment_whose_reset_takes_no_seed_is_seeded_by_its_seed_or_said_to_differ():
    first = shown(Seeded, 3)
    assert first == shown(Seeded, 3) != shown(Seeded, 4) and len(first) == 6
    with pytest.warns(RuntimeWarning, match=r"agent 0: reset of .*Old.* takes no seed, so no run in it can be repeated; write "
                                            r"reset\(self, \*, seed=None"):
        assert len(shown(Old, 3)) == 6


# ------------------------------------------------------------------------------------------------------------ a robot's own


class Ends(Hook):
    """Notes what it hears, after its name."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def pre_experiment(self, robot):
        self.log.append((self.name, "begin"))

    def post_episode(self, agent, interrupted):
        if not interrupted:
            self.log.append((self.name, "episode"))

    def post_experiment(self, robot):
        self.log.append((self.name, "end"))


@pytest.mark.parametrize("driver", ["cooperative", "threads", "processes"])
def test_hooks_of_a_robot_hear_every_run_before_those_of_the_run(driver):
    log, before = [], 0
    with robot_of(Recorder(), OffPolicyHelper, env=lambda: Corridor(5), driver=driver, hooks=[Ends("own", log)]) as robot:
        for _ in range(2):
            robot.run(StopAfterEpisodes(1), Ends("run", log))
            assert log[:4] == [("own", "begin"), ("run", "begin"), ("own", "episode"), ("run", "episode")]
            assert log[-2:] == [("own", "end"), ("run", "end")]
            assert [log.count((name, "episode")) for name in ("own", "run")] == [robot.episodes - before] * 2
            before = robot.episodes
            log.clear()


def test_hooks_of_a_robot_hear_of_all_but_evaluations(tmp_path):
    log = []
    with robot_of(Recorder(), OffPolicyHelper, env=lambda: Corridor(5), hooks=Ends("own", log)) as robot:
        iterations = robot.iterate(40)
        for _ in iterations:
            break
        assert log[0] == ("own", "begin") and ("own", "end") not in log
        iterations.close()
        assert log[-1] == ("own", "end"), "left in the middle"
        log.clear()
        robot.evaluate(2)
        assert not log
        robot.collect(n_episode=2)
        assert log == [("own", "episode")] * 2
        log.clear()
        list(robot.epochs(2, 20, evaluate_episodes=1))
        assert log.count(("own", "begin")) == log.count(("own", "end")) == 3, "before the first epoch, too"


def test_what_is_no_hook_of_a_robot_is_refused():
    with pytest.raises(TypeError, match=r"Robot: .* is no hook; expected objects of classes made from parl_like.Hook"):
        robot_of(Recorder(), hooks=[print])
    with pytest.raises(ValueError, match=r"Robot.of: Robot: .* is no hook"):
        Robot.of("DQN", Corridor, hooks=[print])


def test_one_line_takes_hooks_for_the_robot():
    stats = EpisodeStats()
    with Robot.of("DQN", lambda: Corridor(5), hooks=stats, n_agents=2) as robot:
        robot.run(40)
        assert len(stats.returns) == robot.episodes > 0
