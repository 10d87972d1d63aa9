"""Mistakes in using a robot that would show in nothing but its numbers: each is refused, or said, by name."""

import logging
import re
import threading

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_fakes import ACT, POSITION, Corridor, Recorder, dqn, ppo, robot_of

from parl_like import (
    Agent,
    AgentHelper,
    ComputationTask,
    EpisodicHelper,
    Hook,
    Model,
    OffPolicyHelper,
    OnPolicyHelper,
    Robot,
    VectorAgent,
    create_algorithm_func,
)
from parl_like.algorithms import DQN, ES, SAC, TD3, TQC
from parl_like.data.transforms import Hindsight
from parl_like.environment.hooks import EpisodeMetrics
from parl_like.environment.stop_conditions import StopAfterSteps, StopSignal, StopWhen
from parl_like.learning.explorers import EpsilonGreedy
from parl_like.models import MLPQ, MLPActorCritic, MLPActorQ
from parl_like.values.errors import AgentFailed, TaskFailed


def off(**options):
    return lambda: OffPolicyHelper(**{"size": 200, "batch_size": 4, "learn_every": 4, **options})


# --------------------------------------------------------------------------------------------------------------- the same twice


def test_one_task_under_two_names_is_refused():
    task = ComputationTask(dqn(), off())
    with pytest.raises(ValueError, match="tasks 'RL' and 'twin' are one ComputationTask; make one for each"):
        Robot(Corridor, tasks={"RL": task, "twin": task})


def test_one_helper_or_agent_for_several_agents_is_refused():
    helper = OffPolicyHelper()
    with pytest.raises(ValueError, match=r"task 'RL': helper\(\) gave one OffPolicyHelper to several agents; expected a new one "
                                         r"at every call"):
        robot_of(dqn(), lambda: helper, n_agents=2)
    agent = Agent()
    with pytest.raises(ValueError, match=r"agent\(\) gave one Agent several times; expected a new one at every call"):
        robot_of(dqn(), agent=lambda: agent, n_agents=2)


# ---------------------------------------------------------------------------------------------------------------- misspelt stages


@pytest.mark.parametrize(("name", "right"),
                         [("post_epsiode", "post_episode"), ("pre_action", "pre_act"), ("post_experimnt", "post_experiment")])
def test_a_misspelt_stage_of_a_hook_is_refused(name, right):
    mine = type("Mine", (Hook,), {name: lambda self, *rest: None, "process": lambda self: None})
    with robot_of(Recorder()) as robot, pytest.raises(TypeError, match=f"Mine.{name} is no stage; did you mean {right!r}"):
        robot.run(StopAfterSteps(1), mine())


@pytest.mark.parametrize(("name", "ours"), [("_on_step", "post_act"), ("on_episode_end", "post_episode")])
def test_a_callback_as_it_is_called_elsewhere_is_refused(name, ours):
    mine = type("Mine", (Hook,), {name: lambda self, *rest: None})
    with robot_of(Recorder()) as robot, pytest.raises(TypeError, match=f"Mine.{name} is no stage; did you mean '{ours}'"):
        robot.run(StopAfterSteps(1), mine())


def test_a_text_for_keys_and_a_score_for_a_function_are_told():
    with pytest.raises(TypeError, match=r"EpisodeMetrics: info is 'energy'; expected a list of keys, such as \['energy'\]"):
        EpisodeMetrics("energy")
    with robot_of(Recorder()) as robot, pytest.raises(TypeError, match="stop is 0.5; expected a function, such as"):
        next(iter(robot.epochs(1, 10, stop=0.5)))


def test_a_stage_that_there_is_not_is_refused():
    mine = type("Mine", (Hook,), {"post_step": lambda self, agent: None})
    with robot_of(Recorder()) as robot, pytest.raises(TypeError, match="Mine.post_step is no stage; there are 'post_act', "):
        robot.run(StopAfterSteps(1), mine())


def test_a_misspelt_stage_of_a_helper_is_refused():
    class Hears(AgentHelper):
        def pre_epsiode(self, agent):
            """Never called."""

    with pytest.raises(TypeError, match="Hears.pre_epsiode is no stage; did you mean 'pre_episode'"):
        robot_of(Recorder(), Hears)


# -------------------------------------------------------------------------------------------------------------- learns nothing


class Forgetful(Agent):
    """Stores nothing."""

    def run_one_episode(self):
        obs, _ = self.env.reset()
        over = False
        while not over:
            obs, _, terminated, truncated, _ = self.env.step(self.helpers["RL"].predict(obs))
            over = terminated or truncated


@pytest.mark.parametrize(("helper", "agent", "why"), [
    (None, Agent, "its agents have no helper that learns"),
    (AgentHelper, Agent, "its agents have no helper that learns"),
    (off(), Forgetful, r"no row was stored for it: no agent calls helpers\['RL'\].store"),
    (off(warmup=100), Agent, "20 rows were stored, and it begins with 100"),
    (lambda: EpisodicHelper(episodes=50), Agent, "20 rows were stored, but no update was due yet"),
])
def test_a_learner_that_never_learns_is_told(helper, agent, why, caplog):
    algorithm = dqn() if helper is not None and isinstance(helper(), OffPolicyHelper) else ppo()
    with robot_of(algorithm, helper, agent=agent) as robot:
        with caplog.at_level(logging.WARNING, "parl_like"):
            robot.run(StopAfterSteps(20))
        assert list(robot.never_learned()) == ["RL"]
        said = [record.getMessage() for record in caplog.records if "never learned" in record.getMessage()]
        assert said == [f"task 'RL' never learned: {robot.never_learned()['RL']}"]
        assert re.search(why, robot.never_learned()["RL"])


def test_of_a_robot_that_took_no_step_nothing_else_is_told():
    with robot_of(dqn(), off()) as robot:
        assert robot.remarks() == ["task 'RL' never learned: no environment step was taken"]


@pytest.mark.slow
def test_a_learner_in_other_processes_that_never_learns_is_told_both_numbers():
    with robot_of(dqn(), off(warmup=100), driver="processes") as robot:
        robot.run(StopAfterSteps(20))
        assert robot.never_learned() == {
            "RL": f"{robot.env_steps} env steps were taken, and it begins with 100 rows (warmup, batch_size); train for longer, "
                  "or lower them"}


def test_epochs_tell_of_a_learner_that_never_learned(caplog):
    with robot_of(dqn(), off(warmup=100), mode="async") as robot, caplog.at_level(logging.WARNING, "parl_like"):
        list(robot.epochs(1, 20, evaluate_episodes=1))
        assert "task 'RL' never learned: " in caplog.text and "it begins with 100" in caplog.text


def test_tasks_that_learned_or_were_not_to_learn_are_not_told(caplog):
    with robot_of(dqn(), off()) as robot, caplog.at_level(logging.WARNING, "parl_like"):
        robot.run(StopAfterSteps(40))
        assert robot.never_learned() == {}
    tasks = {"RL": ComputationTask(dqn(), train=False)}
    with Robot(Corridor, tasks=tasks) as robot, caplog.at_level(logging.WARNING, "parl_like"):
        robot.run(StopAfterSteps(40))
        assert robot.never_learned() == {}
    assert "never learned" not in caplog.text


# -------------------------------------------------------------------------------------------------------------------- two threads


@pytest.mark.parametrize("second", ["run", "train_iter", "collect", "save", "close"])
def test_a_robot_that_another_thread_runs_is_refused(second, tmp_path):
    stop, running, errors = StopSignal(), threading.Event(), []

    def begun(robot):
        running.set()
        return False

    with robot_of(dqn(), off()) as robot:
        first = threading.Thread(target=lambda: robot.run(stop | StopWhen(begun)), name="first")
        first.start()
        assert running.wait(60)
        calls = {"run": lambda: robot.run(StopAfterSteps(10)), "train_iter": robot.train_iter,
                 "collect": lambda: robot.collect(n_step=4), "save": lambda: robot.save(tmp_path / "there"), "close": robot.close}
        try:
            with pytest.raises(RuntimeError, match=r"thread 'first' runs this robot; .* request_stop\(\)"):
                calls[second]()
            robot.evaluate(1)  # has agents of its own
        except BaseException as error:
            errors.append(error)
        finally:
            stop.set()
            first.join(60)
        assert not first.is_alive() and not errors
        robot.run(StopAfterSteps(10))  # and then it is free again


# --------------------------------------------------------------------------------------------------- what a newcomer gets wrong


class Goals(Corridor):
    """With a goal in its observation, as hindsight reads it."""

    observation_space = gym.spaces.Dict({name: POSITION for name in ("observation", "achieved_goal", "desired_goal")})

    def __init__(self):
        super().__init__()
        self.observation_space = Goals.observation_space

    def obs(self):
        return {name: np.array([self.at], np.float32) for name in self.observation_space}


def made(model, algorithm=DQN, helper=None, env=Corridor, act=ACT, given=None, **options):
    space = env().observation_space
    func = create_algorithm_func(model, dict(obs=space, act=act, **(given or {})), algorithm, options)
    return lambda: robot_of(func, helper or off(), env=env)


class NoVector(DQN):
    def learn(self, batch):
        return {"loss": self.model.q(batch.obs)}


class NoDict(DQN):
    def predict(self, inputs):
        return self.model.q(inputs.obs)


class Misfit(Model):
    def __init__(self, obs, act):
        super().__init__(obs, act)
        self.layer = torch.nn.Linear(7, 2)

    def q(self, obs):
        return self.layer(obs)


class Unpaid(Corridor):
    def step(self, act):
        return self.obs(), None, False, False, {}


BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
WRONG = {
    "loss": (made(MLPQ, NoVector), r"learn returned 'loss' of shape \(4, 2\); expected 'loss', a scalar tensor"),
    "predict": (made(MLPQ, NoDict), r"NoDict.predict returned Tensor; expected a mapping, such as \{'q': …\}"),
    "layer": (made(Misfit), "Misfit.q raised RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
    "reward": (made(MLPQ, env=Unpaid), "gave the reward None; expected a number"),
    "explorer": (made(MLPQ, helper=off(explorer=lambda out: 0)), "OffPolicyHelper: explorer is <function .*expected an Explorer"),
    "option": (made(MLPQ, helper=off(buffer_siz=3)), "OffPolicyHelper: no option 'buffer_siz'; did you mean 'buffer'"),
    "helper": (made(MLPQ, helper="OffPolicyHelper"), r"helper is 'OffPolicyHelper'; .*helper=lambda: OffPolicyHelper\(…\)"),
    "rate": (made(MLPQ, lr="fast"), r"DQN: lr is 'fast' \(str\); expected float or Schedule"),
    "actor": (made(MLPActorCritic, SAC), "SAC calls .* of its model, and MLPActorCritic has no q; MLPActorQ has it"),
    "deterministic": (made(MLPActorQ, TD3, act=BOX), "MLPActorQ.act raised .*policy='deterministic'"),
    "quantiles": (made(MLPActorQ, TQC, act=BOX), "more than the 2 quantiles .*`heads` of MLPActorQ"),
    "choices": (made(MLPQ, act=gym.spaces.MultiDiscrete([2, 3])), "MLPQ: act is MultiDiscrete.*BDQ with MLPBranchingQ"),
    "population": (made(MLPActorCritic, ES, helper=lambda: OnPolicyHelper(unroll=4)),
                   "ES learns from the returns of candidates, OnPolicyHelper sends rows; use PopulationHelper"),
    "hindsight": (made(MLPQ, n_step=3, env=Goals, helper=off(transforms=[Hindsight()])),
                  r"Hindsight\(compute_reward=goal_reached.*rows of one step: set n_step=1, got n_step=3"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_message_says_how_to_mend_it(case):
    make, message = WRONG[case]
    with pytest.raises((TypeError, ValueError, AgentFailed, TaskFailed), match=message):
        with make() as robot:
            robot.run(StopAfterSteps(40))


@pytest.mark.parametrize("hooks", [Hook, [object()], [Hook(), Hook]])
def test_what_is_no_hook_is_refused(hooks):
    with robot_of(Recorder()) as robot, pytest.raises(TypeError, match=r"Robot.run: .* is no hook; expected objects .*Hook"):
        robot.run(1, hooks)


# -------------------------------------------------------------------------------------------------------------------- two players


class Duel(gym.Env):
    """Two players see different numbers; each move of theirs adds to their own."""

    observation_space = gym.spaces.Box(-1000.0, 1000.0, (2,), np.float32)
    action_space = ACT

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = np.array([[0.0, 0.0], [100.0, 0.0]], np.float32)
        return self.at.copy(), {}

    def step(self, act):
        self.at += 1.0
        return self.at.copy(), 1.0, bool(self.at[0, 0] == 9), False, {}


class BothAtOnce(Agent):
    def run_one_episode(self):
        obs, _ = self.env.reset()
        over = False
        while not over:
            acts = [self.helpers["RL"].predict(one) for one in obs]
            obs_next, rew, over, truncated, _ = self.env.step(int(acts[0]))
            for player in range(2):
                self.helpers["RL"].store(obs[player], acts[player], rew, obs_next[player], over, truncated)
            obs = obs_next


class InTurns(Agent):
    """A player's row is stored when it is its turn again."""

    def run_one_episode(self):
        helper, waiting, player, over = self.helpers["RL"], [None, None], 0, False
        obs, _ = self.env.reset()
        while not over:
            if waiting[player] is not None:
                helper.store(*waiting[player], 1.0, obs[player], False, False)
            act = helper.predict(obs[player])
            waiting[player] = obs[player], act
            obs, _, over, _, _ = self.env.step(act)
            player = 1 - player


@pytest.mark.parametrize("act", [lambda q: q.argmax(1)[:-1], lambda q: q.argmax(1).tolist(), lambda q: q.argmax(1)[0]])
def test_an_explorer_that_gives_another_number_of_actions_is_named(act):
    class Own(EpsilonGreedy):
        def act(self, out, noise):
            return {"act": act(out["q"])}

    message = r"Own.act returned 'act' as \w+ of shape .* for 2 rows; expected an array"
    with robot_of(dqn(), off(explorer=Own()), n_agents=2) as robot, pytest.raises(TaskFailed, match=message):
        robot.run(StopAfterSteps(10))


@pytest.mark.parametrize("agent", [BothAtOnce, InTurns])
@pytest.mark.parametrize(("algorithm", "helper"), [
    (lambda: dqn(Duel, n_step=3), off()), (lambda: ppo(Duel), lambda: OnPolicyHelper(unroll=16)),
], ids=["n-step", "on-policy"])
def test_two_players_of_one_helper_are_refused(agent, algorithm, helper):
    with robot_of(algorithm(), helper, env=Duel, agent=agent) as robot:
        with pytest.raises(AgentFailed, match=r"agent 0, task 'RL': .*rows of two players came by turns, .* a role of its own"):
            robot.run(StopAfterSteps(40))


class Aims(Agent):
    """Adds to the observation what it goes for, which changes with every step; says so, or not."""

    def __init__(self, says):
        self.says = says

    def run_one_episode(self):
        def seen(obs, aim):
            return np.array([obs[0] // 10, aim], np.float32)

        obs, _ = self.env.reset()
        over, aim = False, 0
        while not over:
            act = self.helpers["RL"].predict(seen(obs, aim))
            obs_next, rew, over, cut, _ = self.env.step(act)
            self.helpers["RL"].store(seen(obs, aim), act, rew, seen(obs_next, aim), over, cut or self.says)
            obs, aim = obs_next, 1 - aim


def test_a_goal_that_changes_is_a_cut_that_the_agent_says():
    func = create_algorithm_func(MLPQ, dict(obs=Duel.observation_space, act=ACT), DQN, dict(n_step=3))
    with robot_of(func, off(), env=lambda: Corridor(20), agent=lambda: Aims(True)) as robot:
        robot.run(StopAfterSteps(60))
    with robot_of(func, off(), env=lambda: Corridor(20), agent=lambda: Aims(False)) as robot:
        with pytest.raises(AgentFailed, match="or a goal in the observation changed.* store truncated=True where a goal is left"):
            robot.run(StopAfterSteps(60))


def test_one_step_rows_of_two_players_do_no_harm():
    with robot_of(dqn(Duel), off(), env=Duel, agent=BothAtOnce) as robot:
        robot.run(StopAfterSteps(40))
        assert robot.tasks["RL"].learns > 0


class Revisits(Corridor):
    """Back and forth between two places, so that every observation is also the one of two steps ago."""

    def obs(self):
        return np.array([self.at % 2], np.float32)


class Skips(Agent):
    """Stores every other step only."""

    def run_one_episode(self):
        obs, _ = self.env.reset()
        over, number = False, 0
        while not over:
            act = self.helpers["RL"].predict(obs)
            obs_next, rew, over, truncated, _ = self.env.step(act)
            if number % 2:
                self.helpers["RL"].store(obs, act, rew, obs_next, over, truncated)
            obs, number = obs_next, number + 1


@pytest.mark.parametrize("env", [Corridor, Revisits])
@pytest.mark.parametrize("agent", [Agent, Skips, lambda: VectorAgent(2)], ids=["all", "every other", "vector"])
def test_one_player_is_never_taken_for_two(env, agent):
    with robot_of(dqn(n_step=3), off(), env=lambda: env(12), agent=agent) as robot:
        robot.run(StopAfterSteps(100))
        assert robot.tasks["RL"].learns > 0
