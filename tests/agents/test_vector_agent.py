"""VectorAgent: rows, ends, seeds and quotas in every autoreset mode of gymnasium."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_fakes import ACT, POSITION, Corridor, Log, Noisy, Recorder, TwoLengths, dqn, ppo, robot_of, rows
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from parl_like import Agent, EpisodicHelper, Hook, OffPolicyHelper, OnPolicyHelper, VectorAgent
from parl_like.environment.hooks import EpisodeStats, EveryNSteps, RewardsPerEpisode
from parl_like.environment.stop_conditions import StopAfterEpisodes, StopAfterSteps, StopWithoutImprovement
from parl_like.envs.vector import make_vector_env
from parl_like.values.errors import AgentFailed, Stopped, TaskFailed

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]


def keep():
    return OffPolicyHelper(size=1000, batch_size=1, learn_every=10**9)


def vector(mode, *lengths, end="truncated", kind=SyncVectorEnv, **options):
    return lambda: kind([lambda length=length: Corridor(length, end) for length in lengths], autoreset_mode=mode, **options)


def by_parity(obs):
    """An action that depends on the observation: position modulo 2."""
    return obs[:, 0].long() % 2


# --------------------------------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_n_episodes_of_length_l_are_n_times_l_rows(mode, end):
    with robot_of(Recorder(rule=by_parity), keep, env=vector(mode, 3, 3, end=end), agent=VectorAgent) as robot:
        seen = robot.collect(n_episode=6)
        assert seen.lengths == [3] * 6 and seen.returns == [3.0] * 6
        assert seen.n_steps == 18 == robot.env_steps == robot.agents[0].steps
        for lane in range(2):
            stored = rows(robot, lane=lane)
            assert stored["obs"][:, 0].tolist() == [0, 1, 2] * 3
            assert stored["obs_next"][:, 0].tolist() == [1, 2, 3] * 3  # the final observation, not the next episode's first
            assert stored["act"].tolist() == [0, 1, 0] * 3
            assert stored[end].tolist() == [False, False, True] * 3
            assert not stored["truncated" if end == "terminated" else "terminated"].any()


@pytest.mark.parametrize("mode", MODES)
def test_a_vector_agent_stores_what_single_agents_store(mode):
    lengths = (2, 3, 5)
    with robot_of(Recorder(rule=by_parity), keep, env=vector(mode, *lengths), agent=VectorAgent) as one:
        one.run(StopAfterSteps(90))
        together = [rows(one, lane=lane) for lane in range(3)]
    queue = list(lengths)
    with robot_of(Recorder(rule=by_parity), keep, env=lambda: Corridor(queue.pop(0), "truncated"), n_agents=3) as three:
        three.run(StopAfterSteps(90))
        apart = [rows(three, lane=lane) for lane in range(3)]
    for ours, theirs in zip(together, apart, strict=True):
        n = min(len(ours["rew"]), len(theirs["rew"])) - 1  # NEXT_STEP loses a step per episode; the last row may have a cut
        assert n >= 20
        for name in ours:
            np.testing.assert_array_equal(ours[name][:n], theirs[name][:n])


@pytest.mark.parametrize("mode", MODES)
def test_stacked_dict_observations_keep_their_final_rows(mode):
    class Named(Corridor):
        def __init__(self):
            super().__init__(3, "truncated")
            self.observation_space = gym.spaces.Dict({"at": POSITION,
                                                      "deep": gym.spaces.Dict({"twice": gym.spaces.Discrete(10)})})

        def obs(self):
            return {"at": super().obs(), "deep": {"twice": 2 * self.at}}

    env = lambda: SyncVectorEnv([Named, Named], autoreset_mode=mode)  # noqa: E731
    with robot_of(dqn(Named), keep, env=env, agent=VectorAgent) as robot:
        robot.collect(n_episode=4)
        for lane in range(2):
            stored = rows(robot, lane=lane)
            assert stored["obs_next.at"][:, 0].tolist() == [1, 2, 3] * 2
            assert stored["obs_next.deep.twice"].tolist() == [2, 4, 6] * 2 and stored["obs.deep.twice"].tolist() == [0, 2, 4] * 2


@pytest.mark.parametrize("mode", MODES)
def test_environments_that_reuse_their_arrays(mode):
    with robot_of(Recorder(), keep, env=vector(mode, 3, 4, copy=False), agent=VectorAgent) as robot:
        robot.collect(n_episode=4)
        assert rows(robot, lane=0)["obs"][:, 0].tolist() == [0, 1, 2] * 2
        assert rows(robot, lane=1)["obs"][:, 0].tolist() == [0, 1, 2, 3] * 2
        assert rows(robot, lane=1)["obs_next"][:, 0].tolist() == [1, 2, 3, 4] * 2


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_environments_in_other_processes(mode):
    with robot_of(Recorder(), keep, env=vector(mode, 2, 3, kind=AsyncVectorEnv), agent=VectorAgent) as robot:
        robot.collect(n_episode=4)
        assert rows(robot, lane=0)["obs_next"][:, 0].tolist() == [1, 2] * 2
        assert rows(robot, lane=1)["obs_next"][:, 0].tolist() == [1, 2, 3] * 2


@pytest.mark.parametrize("mode", MODES)
def test_on_policy_rows_of_each_environment_are_learned_in_order_and_once(mode):
    with robot_of(Recorder(), lambda: OnPolicyHelper(unroll=4), env=vector(mode, 2, 100), agent=VectorAgent) as robot:
        for _ in range(3):
            robot.train_iter()
        updates = robot.tasks["RL"].algorithm.updates_seen
        long = [p for update in updates for p in update["obs"][-4:, 0].tolist()]
        assert long == list(range(12))
        short = [update["obs"][:-4, 0].tolist() for update in updates]
        # NEXT_STEP: the rows in which the first environment was only reset are missing.
        assert short == ([[0, 1, 0], [1, 0, 1], [0, 1]] if mode is AutoresetMode.NEXT_STEP else [[0, 1, 0, 1]] * 3)
        assert all(update["last"][len(part) - 1] for update, part in zip(updates, short, strict=True))


def test_off_policy_updates_count_real_rows():
    """NEXT_STEP gives 2 rows of every 3 steps in the first environment, all in the second."""
    helper = lambda: OffPolicyHelper(size=1000, batch_size=1, learn_every=5)  # noqa: E731
    with robot_of(Recorder(), helper, env=vector(AutoresetMode.NEXT_STEP, 2, 1000), agent=VectorAgent) as robot:
        robot.run(StopAfterSteps(100))
        assert robot.env_steps == 100 and robot.tasks["RL"].learns == 20


# ------------------------------------------------------------------------------------------------------------------- stages


@pytest.mark.parametrize("mode", MODES)
def test_episodes_are_reported_by_environment(mode):
    class Ends(Log):
        def pre_episode(self, agent):
            self.events.append(("begin", agent.env.env_index))

        def post_episode(self, agent, interrupted):
            self.events.append(("end", agent.env.env_index, agent.env.episode_return, agent.env.episode_length, interrupted))

    ends, stats, rewards = Ends(), EpisodeStats(), RewardsPerEpisode()
    with robot_of(Recorder(), keep, env=vector(mode, 2, 5), agent=VectorAgent) as robot:
        robot.run(StopAfterEpisodes(3), [ends, stats, rewards])
        assert robot.episodes == 3 and list(robot.recent_lengths) == [2, 2, 5 if mode is not AutoresetMode.NEXT_STEP else 5]
    first = [e for e in ends.events if e[1] == 0]
    second = [e for e in ends.events if e[1] == 1]
    assert [e[0] for e in first] == (["begin", "end"] * len(first))[: len(first)]  # the last one may be open
    assert first[:4] == [("begin", 0), ("end", 0, 2.0, 2, False)] * 2
    assert second[:2] == [("begin", 1), ("end", 1, 5.0, 5, False)]
    assert stats.lengths == [2, 2, 5]
    assert rewards.rewards[0, 0][:2] == [[1.0, 1.0]] * 2 and rewards.rewards[0, 1][0] == [1.0] * 5


@pytest.mark.parametrize("mode", MODES)
def test_a_save_interrupts_the_environments_that_are_in_mid_episode(mode, tmp_path):
    log = Log()
    log.post_act = lambda agent: agent.robot.episodes == 2 and agent.robot.request_save(tmp_path / "state")
    with robot_of(Recorder(), keep, env=vector(mode, 2, 100), agent=VectorAgent) as robot:
        robot.run(StopAfterEpisodes(2), log)
        assert log.count("POST_EPISODE", False) == 2 and log.count("POST_EPISODE", True) in (1, 2)
        assert log.count("PRE_EPISODE") == log.count("POST_EPISODE")
        assert rows(robot, lane=1)["truncated"].tolist()[-1] is True  # the cut
        before = len(rows(robot, lane=1)["rew"])
        robot.run(StopAfterEpisodes(1))
        assert rows(robot, lane=1)["obs"][before, 0] == 0


def test_hooks_and_stops_that_count_steps_see_jumps():
    calls = []
    with robot_of(Recorder(), keep, env=lambda: Corridor(1), agent=lambda: VectorAgent(8)) as robot:
        robot.run(StopAfterSteps(400), EveryNSteps(100, lambda robot: calls.append(robot.env_steps)))
        assert calls == [104, 200, 304, 400]  # the first acts at or after 100, 200, 300, 400
        robot.run(StopWithoutImprovement(30))
        assert robot.episodes - 400 == 32  # 8 episodes end with every act


# ------------------------------------------------------------------------------------------------------------ seeds, options


def test_environments_get_seeds_of_their_own_and_repeat():
    def seeds():
        envs = []

        def make():
            envs.append(Noisy())
            return envs[-1]

        with robot_of(dqn(Noisy), keep, env=make, agent=lambda: VectorAgent(3), seed=5) as robot:
            robot.run(StopAfterSteps(60))
            return [rows(robot, lane=lane)["obs"] for lane in range(3)]

    first, second = seeds(), seeds()
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first[0][:5], first[1][:5])


def test_a_limit_is_put_on_environments_that_are_made():
    with robot_of(Recorder(), keep, env=lambda: gym.wrappers.TimeLimit(Corridor(end=None), 4),
                  agent=lambda: VectorAgent(2)) as robot:
        seen = robot.collect(n_episode=4)
        assert seen.lengths == [4] * 4 and rows(robot)["truncated"].tolist() == [False, False, False, True] * 2


@pytest.mark.parametrize(("agent", "env", "message"), [
    (lambda: VectorAgent(0), Corridor, "n_envs is 0; expected at least 1"),
    (type("A", (VectorAgent,), {"action_repeat": 2}), Corridor, "action_repeat is the environment's business"),
    (lambda: VectorAgent(2), Corridor(), "2 environments are needed, and the robot has one; give it a factory or an id"),
])
def test_options_that_would_be_ignored_are_refused(agent, env, message):
    with pytest.raises(ValueError, match=message):
        robot_of(Recorder(), env=env, agent=agent)


# ------------------------------------------------------------------------------------------------------------------ collecting


@pytest.mark.parametrize("mode", MODES)
def test_each_environment_has_its_quota_and_the_mean_is_not_biased(mode):
    """Of the first 400 episodes to end in 8 environments, nearly all are short; of 50 in each, half."""
    env = lambda: SyncVectorEnv([TwoLengths] * 8, autoreset_mode=mode)  # noqa: E731
    with robot_of(Recorder(), keep, env=env, agent=VectorAgent, seed=1) as robot:
        seen = robot.collect(n_episode=400)
        assert seen.n_episodes == 400 and set(seen.lengths) == {1, 9}
        assert abs(seen.mean_length - 5) < 3 * 4 / 20  # 3 standard errors: σ = 4, √400 = 20
        assert seen.n_steps == sum(seen.lengths) == robot.env_steps


@pytest.mark.parametrize("mode", MODES)
def test_after_a_collection_nothing_looks_across_its_end(mode):
    with robot_of(Recorder(), keep, env=vector(mode, 2, 7), agent=VectorAgent) as robot:
        for _ in range(2):
            assert robot.collect(n_episode=3).lengths == [2, 7, 2] or mode
        for lane, length in ((0, 2), (1, 7)):
            stored = rows(robot, lane=lane)
            ends = np.flatnonzero(stored["terminated"] | stored["truncated"])
            assert (stored["obs"][ends[:-1] + 1] == 0).all() and (np.diff(ends) <= length).all()


def test_a_collection_by_steps_goes_on_where_it_stopped():
    with robot_of(Recorder(), keep, env=lambda: Corridor(5), agent=lambda: VectorAgent(4)) as robot:
        with pytest.warns(UserWarning, match="n_step 10 is not a multiple of 4 environments; collecting 12"):
            assert robot.collect(n_step=10).n_steps == 12
        assert robot.collect(n_step=16).n_steps == 16
        assert rows(robot)["obs"][:, 0].tolist() == [0, 1, 2, 3, 4, 0, 1]
        assert len({id(lane) for lane in [robot.buffers["RL"]]}) == 1 and robot.agents[0].steps == 28


@pytest.mark.parametrize("episodes", [1, 3, 8, 11])
def test_evaluations_play_as_many_episodes_as_asked_for(episodes):
    with robot_of(Recorder(), keep, env=lambda: Corridor(3), agent=lambda: VectorAgent(4), n_agents=2) as robot:
        assert robot.evaluate(episodes).lengths == [3] * episodes


# ------------------------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["dqn", "ppo", "recurrent", "episodic"])
def test_algorithms_run_on_vector_environments(kind, mode):
    on_policy = lambda: OnPolicyHelper(unroll=8)  # noqa: E731
    helper = {"dqn": lambda: OffPolicyHelper(size=500, batch_size=8), "episodic": EpisodicHelper}.get(kind, on_policy)
    func = dqn(Noisy) if kind == "dqn" else ppo(Noisy, recurrent=kind == "recurrent")
    env = lambda: SyncVectorEnv([Noisy] * 3, autoreset_mode=mode)  # noqa: E731
    with robot_of(func, helper, env=env, agent=VectorAgent, n_agents=2, trace=True) as robot:
        before = robot.trace_hash()
        robot.run(StopAfterSteps(120))
        assert robot.tasks["RL"].learns > 0 and robot.trace_hash() != before


# --------------------------------------------------------------------------------------------------------------------- errors


def test_wrong_actions_are_named():
    for rule, message in [
        (lambda obs: torch.full((len(obs),), 2), r"agent 0: action outside the space: expected Discrete\(2\), got .*2"),
        (lambda obs: torch.zeros(len(obs), 2, dtype=torch.int64), r"action outside the space"),
    ]:
        with robot_of(Recorder(rule=rule), keep, env=vector(MODES[0], 3, 3), agent=VectorAgent) as robot:
            with pytest.raises(AgentFailed, match=message):
                robot.run(StopAfterSteps(2))


def test_step_needs_a_reset():
    class Hasty(VectorAgent):
        def run_one_episode(self):
            self.env.step(np.zeros(2, np.int64))

    with robot_of(Recorder(), env=vector(MODES[0], 3, 3), agent=Hasty) as robot:
        with pytest.raises(AgentFailed, match=r"step\(\) before reset\(\)"):
            robot.run(StopAfterSteps(2))


@pytest.mark.parametrize("mode", MODES)
def test_an_environment_that_raises_is_named(mode):
    env = lambda: SyncVectorEnv([Corridor, lambda: Corridor(fail_at=2)], autoreset_mode=mode)  # noqa: E731
    log = Log()
    with robot_of(Recorder(), keep, env=env, agent=VectorAgent) as robot:
        with pytest.raises(AgentFailed, match=r"agent 0: its vector environment \(seed \d+\) raised in step\(\): OSError: a "
                                              r"hole in the floor"):
            robot.run(StopAfterSteps(20), log)
        assert log.count("POST_EPISODE", True) == 2 and log.events[-1] == ("hook", "POST_EXPERIMENT")
        assert len(rows(robot)["rew"]) == 2


def test_a_time_step_of_one_environment():
    with robot_of(Recorder(), keep, env=vector(MODES[2], 2, 3), agent=VectorAgent) as robot:
        robot.run(StopAfterSteps(4))
        env = robot.agents[0].env
        env.env_index = 0
        assert env.time_step.is_last and env.time_step.discount == 1.0 and env.time_step.reward == 1.0
        env.env_index = 1
        assert not env.time_step.is_last and env.time_step.observation.tolist() == [2.0]


@pytest.mark.parametrize("mode", MODES)
def test_time_steps_are_those_of_the_episode_that_they_belong_to(mode):
    """At LAST the true final observation, whatever the environment shows next; the step that only resets is FIRST."""
    seen = []

    def note(agent, stage):
        for i in range(2) if stage == "act" else [agent.env.env_index]:
            agent.env.env_index = i
            step = agent.env.time_step
            seen.append((stage, i, step.step_type.name, step.observation.tolist(), step.reward, step.discount))

    class Notes(Hook):
        def pre_episode(self, agent):
            note(agent, "begin")

        def post_act(self, agent):
            note(agent, "act")

    with robot_of(Recorder(), keep, env=vector(mode, 2, 9, end="terminated"), agent=VectorAgent) as robot:
        robot.run(StopAfterSteps(8), Notes())
    mine = [(stage, *rest) for stage, i, *rest in seen if i == 0]
    first, mid, last = ("FIRST", [0.0], 0.0, 1.0), ("MID", [1.0], 1.0, 1.0), ("LAST", [2.0], 1.0, 0.0)
    between = [("act", *first)] if mode is AutoresetMode.NEXT_STEP else []
    assert mine[:5 + len(between)] == [("begin", *first), ("act", *mid), ("act", *last), *between, ("begin", *first),
                                       ("act", *mid)]
    other = [rest for stage, i, *rest in seen if i == 1 and stage == "act"]
    assert [step[:2] for step in other[:4]] == [["MID", [1.0]], ["MID", [2.0]], ["MID", [3.0]], ["MID", [4.0]]]


def test_single_and_vector_agents_share_the_face():
    assert issubclass(VectorAgent, Agent) and ACT == gym.spaces.Discrete(2)


# ------------------------------------------------------------------------------------------------------- environments that fail


@pytest.mark.parametrize("mode", MODES)
def test_a_dropped_episode_is_cut_off_and_its_made_up_row_is_not_stored(mode):
    made = []

    def make():
        made.append(Corridor(3, "terminated", fail_at=1 if len(made) == 1 else None))  # the second one, until it is rebuilt
        return made[-1]

    env = make_vector_env(make, 2, restart=True, autoreset=mode)
    with robot_of(Recorder(rule=by_parity), keep, env=lambda: env, agent=VectorAgent) as robot:
        seen = robot.collect(n_episode=4)
        whole, cut = rows(robot, lane=0), rows(robot, lane=1)
    assert len(made) == 3 and seen.lengths == [3] * 4  # the dropped episode is none
    assert whole["obs_next"][:6, 0].tolist() == [1, 2, 3, 1, 2, 3] and not whole["truncated"][:6].any()
    assert cut["obs"][:, 0].tolist() == [0] + [0, 1, 2] * 2 and cut["obs_next"][:, 0].tolist() == [1] + [1, 2, 3] * 2
    assert cut["truncated"].tolist() == [True] + [False] * 6 and cut["terminated"].tolist() == [False] + [False, False, True] * 2
    assert cut["rew"].tolist() == [1.0] * 7


def test_hooks_hear_that_a_dropped_episode_was_interrupted():
    made = []

    def make():
        made.append(Corridor(2, "terminated", fail_at=1 if len(made) == 1 else None))
        return made[-1]

    heard = []

    class Ends(Hook):
        def post_episode(self, agent, interrupted):
            heard.append((agent.env.env_index, interrupted, agent.env.episode_length))

    with robot_of(Recorder(), keep, env=lambda: make_vector_env(make, 2, restart=True), agent=VectorAgent) as robot:
        robot.run(StopAfterSteps(7), hooks=[Ends()])
    assert heard[:4] == [(1, True, 1), (0, False, 2), (0, False, 2), (1, False, 2)]


# ------------------------------------------------------------------------------------------------- environments that imagine, or
# ask


class Imagining(SyncVectorEnv):
    """Calls two steps of three imagined."""

    def step(self, actions):
        *out, info = super().step(actions)
        self.at = getattr(self, "at", 0) + 1
        return *out, {**info, "imagined": np.full(self.num_envs, self.at % 3 != 0)}


def test_imagined_steps_are_rows_but_no_steps():
    def env():
        return Imagining([lambda: Corridor(9, "truncated")] * 2, autoreset_mode=AutoresetMode.SAME_STEP)

    with robot_of(Recorder(rule=by_parity), keep, env=env, agent=VectorAgent) as robot:
        seen = robot.collect(n_episode=4)
        assert seen.lengths == [3] * 4 and seen.returns == [9.0] * 4 and seen.n_steps == 12
        assert robot.env_steps == robot.agents[0].steps == robot.counters()["time_steps"] == 12
        assert len(rows(robot)["rew"]) == 18
        assert robot.collect(n_step=8).n_steps == 8  # a quota of real steps
        assert len(rows(robot)["rew"]) == 18 + 12


@pytest.mark.parametrize("stage", ["reset", "step"])
@pytest.mark.parametrize("error", [TaskFailed("task 'model': predict failed"), Stopped("the robot stopped")],
                         ids=["failed", "stopped"])
def test_what_a_task_says_to_an_environment_that_asks_it_is_no_failure_of_the_environment(stage, error):
    class Asking(SyncVectorEnv):
        def step(self, actions):
            if stage == "step":
                raise error
            return super().step(actions)

        def reset(self, **options):
            if stage == "reset":
                raise error
            return super().reset(**options)

    with robot_of(Recorder(rule=by_parity), env=lambda: Asking([Corridor] * 2, autoreset_mode=AutoresetMode.SAME_STEP),
                  agent=VectorAgent) as robot:
        if isinstance(error, TaskFailed):
            with pytest.raises(TaskFailed, match="^task 'model'"):
                robot.run(StopAfterSteps(4))
        else:
            robot.run(StopAfterSteps(4))


# --------------------------------------------------------------------------------------- environments that reuse their arrays


class Reusing(gym.Env):
    """Counts in one array, which it gives away again and again; an episode begins at 0 and has three steps."""

    observation_space, action_space = gym.spaces.Box(0, 9, (1,), np.float32), ACT

    def __init__(self):
        self.seen = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        self.seen[:] = 0
        return self.seen, {}

    def step(self, act):
        self.seen += 1
        return self.seen, 0.0, False, bool(self.seen[0] == 3), {}


def test_final_observations_of_environments_that_reuse_their_arrays():
    """gymnasium resets an environment before it gives its final observation away: copies are made in time."""
    make = lambda: SyncVectorEnv([Reusing] * 2, autoreset_mode=AutoresetMode.SAME_STEP)  # noqa: E731
    with robot_of(Recorder(rule=by_parity), keep, env=make, agent=VectorAgent) as robot:
        robot.run(StopAfterSteps(12))
        stored = robot.buffers["RL"].lane_rows(0)
    assert stored["obs_next"][:, 0].tolist() == [1, 2, 3, 1, 2, 3]


class Resetting(SyncVectorEnv):
    """As other vector environments, in which nobody can make copies in time: the final observations are the next first ones."""

    def step(self, act):
        obs, rew, terminated, truncated, info = super().step(act)
        if truncated.any():
            info["final_obs"] = np.array([*obs, None], object)[:-1]
        return obs, rew, terminated, truncated, info


def test_lost_final_observations_are_told_once():
    make = lambda: Resetting([Reusing] * 2, autoreset_mode=AutoresetMode.SAME_STEP)  # noqa: E731
    with robot_of(Recorder(rule=by_parity), keep, env=make, agent=VectorAgent) as robot:
        with pytest.warns(RuntimeWarning, match="agent 0: final observations .* environments reuse their arrays") as told:
            robot.run(StopAfterSteps(60))
    assert sum("reuse" in str(one.message) for one in told) == 1


# ------------------------------------------------------------------------------------------------------ what is no step's outcome


@pytest.mark.parametrize(("wrong", "message"), [
    ({1: np.array(["a", "b"])}, r"its vector environment \(seed .*\) gave the rewards .*'a'.*; expected a number for each"),
    ({4: None}, r"step\(\) of its vector environment \(seed .*\) gave the info None; expected a dict, \{\} where"),
    ({2: False, 3: False}, r"gave terminated and truncated of shapes \(\) and \(\); expected \(2,\), a flag for each"),
])
def test_what_a_step_of_a_vector_environment_cannot_give(wrong, message):
    class Wrong(SyncVectorEnv):
        def step(self, act):
            return tuple(wrong.get(i, value) for i, value in enumerate(super().step(act)))

    make = lambda: Wrong([Corridor] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)  # noqa: E731
    with robot_of(Recorder(), keep, env=make, agent=VectorAgent) as robot, pytest.raises(AgentFailed, match=message):
        robot.run(StopAfterSteps(12))


# ------------------------------------------------------------------------------------------------- compiled steps of small ones


@pytest.mark.parametrize("id", ["CartPole-v1", "FrozenLake-v1"])
def test_copies_of_gymnasiums_small_environments_take_compiled_steps_and_store_the_same_rows(id):
    """Of an id and of a factory; the third ones are put together by gymnasium."""
    make = lambda: gym.make(id, disable_env_checker=True)  # noqa: E731
    stored, kinds = [], []
    for source in (id, make, lambda: SyncVectorEnv([make] * 3, autoreset_mode=AutoresetMode.SAME_STEP)):
        with robot_of(dqn(make), keep, env=source, agent=lambda: VectorAgent(3), seed=4) as robot:
            robot.collect(n_step=180)
            stored.append([rows(robot, lane=lane) for lane in range(3)])
            kinds.append(getattr(robot.agents[0].env.unwrapped, "compiled", None) is not None)
    assert kinds == [True, True, False]
    for mine, like, theirs in zip(*stored, strict=True):
        assert len(mine["rew"]) == 60 and mine.keys() == theirs.keys()
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name])
            np.testing.assert_array_equal(like[name], theirs[name])


def test_copies_that_a_factory_keeps_step_by_themselves():
    kept = []

    def make():
        kept.append(gym.make("CartPole-v1", disable_env_checker=True))
        return kept[-1]

    with robot_of(dqn(make), keep, env=make, agent=lambda: VectorAgent(2)) as robot:
        robot.collect(n_step=8)
        inner = robot.agents[0].env.unwrapped
        assert isinstance(inner, SyncVectorEnv) and all(one.unwrapped.state is not None for one in kept[-2:])
