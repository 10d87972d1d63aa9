"""What a wrong call is told, and how much of a traceback a script shows before it."""

import logging
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from agent_fakes import ACT, POSITION, Corridor, dqn, ppo, robot_of

from parl_like import Agent, BatchRule, ComputationTask, OffPolicyHelper, ReplayBuffer, Robot, VectorAgent
from parl_like.algorithms import DQN, PPO
from parl_like.drivers.ray.cluster import Ray
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopWhen
from parl_like.learning.explorers import EpsilonGreedy
from parl_like.models import MLPQ
from parl_like.tasks import no_progress
from parl_like.values.errors import AgentFailed
from parl_like.values.user_calls import is_users, trim, users_lines

SCRIPT = """
import sys
import gymnasium as gym
import numpy as np
from parl_like import Robot
from parl_like.algorithms import PPO

class Env(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)

    broken = False

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, act):
        return self.half(act)

    def half(self, act):
        if self.broken:
            return 1 / 0
        return np.zeros(3, np.float32), 1.0, True, False, {}

class Mine(PPO):
    def learn(self, batch):
        return {}["loss"] + 1

if __name__ == "__main__":
    Env.broken = "env" in sys.argv
    robot = Robot.of(Mine, Env, n_agents=2, unroll=2, driver=sys.argv[1])
    if "call" in sys.argv:
        robot.evaluate(episode=3)
    robot.run(100)
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(*words, **env):
        clean = {key: value for key, value in os.environ.items() if key != "PARL_LIKE_TRACEBACK"}
        done = subprocess.run([sys.executable, "script.py", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                              env={**clean, **env})
        assert done.returncode == 1
        return done.stderr.rstrip().splitlines()

    return run


@pytest.mark.parametrize(("driver", "what", "good"), [
    ("cooperative", "env", "parl_like.values.errors.AgentFailed: agent 0: its environment"),
    pytest.param("threads", "env", "parl_like.values.errors.AgentFailed: agent ", marks=pytest.mark.slow),
    ("processes", "env", "parl_like.values.errors.AgentFailed: agent "),
    ("cooperative", "task", "parl_like.values.errors.TaskFailed: task 'RL': learn failed"),
    ("cooperative", "call", "TypeError: evaluate: no option 'episode'; did you mean 'episodes'?"),
])
def test_a_script_shows_at_most_ten_lines_before_the_good_one(script, driver, what, good):
    lines = script(driver, what)
    at = next(i for i, line in enumerate(lines) if line.startswith(good))
    assert at <= 10, lines
    files = [line for line in lines if line.startswith("  File ")]
    assert all("script.py" in line or "PARL_LIKE_TRACEBACK=1" in line for line in files)
    place = {"env": ", in half", "task": ", in learn", "call": ", in <module>"}[what]
    assert any(place in line for line in lines)


def test_all_of_it_is_shown_where_that_is_wanted(script):
    assert len(script("cooperative", "env", PARL_LIKE_TRACEBACK="1")) > 30
    assert len(script("cooperative", "env", PARL_LIKE_TRACEBACK="0")) <= 11


def test_a_cause_that_is_hidden_is_there_all_the_same():
    with robot_of(dqn(), env=lambda: Corridor(fail_at=0)) as robot, pytest.raises(AgentFailed) as caught:
        robot.run(5)
    assert isinstance(caught.value.__cause__, OSError)
    again = AgentFailed("another")
    again.__cause__ = KeyError("x")  # and can be given anew
    assert isinstance(again.__cause__, KeyError)


def test_our_own_modules_get_whole_tracebacks():
    assert is_users(__file__)
    assert not any(map(is_users, (sys.modules["parl_like.run.robot"].__file__,
                                  np.__file__, gym.__file__, logging.__file__, "<x>")))
    try:
        Path("/nowhere/at/all").read_text()
    except OSError as error:
        assert "in test_our_own_modules" in users_lines(error)[1]
        assert trim(error).__traceback__.tb_frame.f_code.co_filename == __file__


def test_causes_that_go_in_a_circle_are_told_once():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert users_lines(first) == []
    second.__cause__ = second
    assert users_lines(second) == [] and trim(second) is second


# ------------------------------------------------------------------------------------------------------------------ wrong calls

MODEL = MLPQ(POSITION, ACT)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: PPO(MODEL, lrr=1), "PPO: no option 'lrr'; did you mean 'lr'?"),
    (lambda: DQN(MODEL, learning_rate=1), "DQN: no option 'learning_rate'; did you mean 'lr'?"),
    (lambda: DQN(MODEL, gama=1), "DQN: no option 'gama'; did you mean 'gamma'?"),
    (lambda: MLPQ(POSITION, ACT, hiden=(3,)), "MLPQ: no option 'hiden'; did you mean 'hidden'?"),
    (lambda: EpsilonGreedy(eps=0.1), "EpsilonGreedy: no option 'eps'; did you mean 'epsilon'?"),
    (lambda: ReplayBuffer("3"), "ReplayBuffer: size is '3' (str); expected int"),
    (lambda: OffPolicyHelper(size="3"), "OffPolicyHelper: size is '3' (str); expected int"),
    (lambda: VectorAgent("3"), "VectorAgent: n_envs is '3' (str); expected int"),
    (lambda: BatchRule(max_row=3), "BatchRule: no option 'max_row'; did you mean 'max_rows'?"),
    (lambda: ComputationTask(dqn, devise="cpu"), "ComputationTask: no option 'devise'; did you mean 'device'?"),
    (lambda: Robot(Corridor, taks={}), "Robot: no option 'taks'; did you mean 'tasks'?"),
    (lambda: Robot(Corridor, tasks=[]), "Robot: tasks is list; expected a dict from names to tasks"),
])
def test_a_wrong_argument_is_named_with_what_is_expected(call, message):
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_a_users_own_class_is_helped_as_well_and_its_own_errors_stay():
    class Mine(DQN):
        def __init__(self, model, *, depth: int = 3, **options):
            super().__init__(model, **options)
            self.depth = depth + "one"

    with pytest.raises(TypeError, match=r"^Mine: no option 'dept'; did you mean 'depth'\?"):
        Mine(MODEL, dept=3)
    with pytest.raises(TypeError, match="unsupported operand"):
        Mine(MODEL)


def test_wrong_arguments_of_methods():
    with robot_of(dqn()) as robot:
        for call, message in [(lambda: robot.evaluate("3"), "evaluate: episodes is '3' (str); expected int"),
                              (lambda: robot.collect(n_step="5"), "collect: n_step is '5' (str); expected int or None"),
                              (lambda: robot.evaluate(n_agent=2), "evaluate: no option 'n_agent'; did you mean 'n_agents'?")]:
            with pytest.raises(TypeError) as caught:
                call()
            assert str(caught.value) == message
        robot.evaluate(np.int64(1))


# ------------------------------------------------------------------------------------------------------------- closed, or taken


@pytest.mark.parametrize("call", [
    lambda robot: robot.run(5), lambda robot: robot.train_iter(), lambda robot: robot.collect(n_step=4),
    lambda robot: next(robot.iterate(100)), lambda robot: next(robot.epochs(1, 5)), lambda robot: robot.add_agents(),
])
def test_a_closed_robot_does_not_act_again(call):
    robot = robot_of(dqn(), lambda: OffPolicyHelper(batch_size=2))
    robot.run(5)
    robot.close()
    with pytest.raises(RuntimeError, match="this robot was closed, and its environments with it; make a new one"):
        call(robot)
    assert robot.env_steps == 5 and robot.evaluate(1).n_episodes == 1  # with an environment of its own
    robot.close()


def test_the_tasks_of_a_robot_are_no_other_robots():
    tasks = {"RL": ComputationTask(dqn(), lambda: OffPolicyHelper(batch_size=2))}
    first = Robot(Corridor, tasks=tasks)
    with pytest.raises(ValueError, match=r"task 'RL' is that of another robot, Robot\(1 agents.*; make a ComputationTask for "
                                         r"each robot, or close\(\)"):
        Robot(Corridor, tasks=tasks)
    first.run(5)  # as before
    first.close()
    second = Robot(Corridor, tasks=tasks)
    del second, first  # forgotten, not closed
    Robot(Corridor, tasks=tasks).close()


# ---------------------------------------------------------------------------------------------------------------- what goes wrong


def test_a_checkpoint_of_another_algorithm_is_named(tmp_path):
    with robot_of(ppo()) as robot:
        robot.save(tmp_path / "there")
    with robot_of(dqn(), lambda: OffPolicyHelper(batch_size=2), n_agents=2) as robot:
        with pytest.raises(ValueError, match="the checkpoint is PPO's, and this task has DQN, whose networks are others; build "
                                             "the robot with PPO"):
            robot.load(tmp_path / "there")
        with pytest.raises(ValueError, match="nothing: there is no such path; look for a typing error"):
            robot.load(tmp_path / "nowhere")


@pytest.mark.parametrize(("name", "error", "message"), [
    ("a.mp4", ValueError, "expected a name that ends in .gif, .png or .webp"),
    ("a", ValueError, "expected a name that ends in .gif"),
    ("no/a.gif", FileNotFoundError, "the folder .* is not there; make it first"),
])
def test_a_film_that_cannot_be_written_is_refused_before_it_is_played(name, error, message, tmp_path):
    with robot_of(dqn()) as robot, pytest.raises(error, match=message):
        robot.play(tmp_path / name)


@pytest.mark.parametrize("suffix", [".gif", ".png", ".webp"])
def test_films_of_other_formats_move(suffix, tmp_path):
    from PIL import Image

    with robot_of(dqn()) as robot:
        robot.play(tmp_path / f"a{suffix}")
    assert getattr(Image.open(tmp_path / f"a{suffix}"), "n_frames", 1) > 1


class Asks(Agent):
    """Predicts and predicts, and takes no step until it has been told of often enough."""

    def run_one_episode(self):
        no_progress.LOOK_S, no_progress.PATIENCE_S["predict"] = 0.0, 0.02  # here, for this may be a worker
        obs, _ = self.env.reset()
        for _ in range(2000):
            self.helpers["RL"].predict(obs)
        for _ in range(5):
            self.env.step(0)


DRIVERS = ["cooperative", "threads", *[pytest.param(Processes(workers=n), id=f"processes {n}") for n in (1, 2)],
           pytest.param(Ray(workers=1, num_cpus=0), id="ray", marks=[
               pytest.mark.xdist_group("ray"), pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")])]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("driver", DRIVERS)
def test_an_agent_that_asks_and_never_steps_is_told_by_name(driver, caplog, monkeypatch):
    monkeypatch.setattr(no_progress, "LOOK_S", 0.0)
    monkeypatch.setitem(no_progress.PATIENCE_S, "predict", 0.02)
    with robot_of(dqn(), agent=Asks, driver=driver) as robot, caplog.at_level(logging.WARNING, "parl_like"):
        robot.run(5)
    said = [record.getMessage() for record in caplog.records if "without a step of its environment" in record.getMessage()]
    assert len(said) == 1 and said[0].startswith("agent 0 has asked task 'RL' (predict) for ")


class Resets(Agent):
    """The first one resets for ever, and takes no step."""

    def run_one_episode(self):
        no_progress.LOOK_S, no_progress.PATIENCE_S["reset"] = 0.0, 0.0  # here, for this may be a worker
        while self.index == 0:
            self.env.reset()
        super().run_one_episode()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_an_agent_that_resets_for_ever_is_told_by_name_while_others_go_on(driver, mode, caplog, monkeypatch):
    monkeypatch.setattr(no_progress, "LOOK_S", 0.0)
    monkeypatch.setitem(no_progress.PATIENCE_S, "reset", 0.0)

    def said():
        told = [record.getMessage() for record in caplog.records]
        return [text for text in told if "without a step of its environment" in text]

    with robot_of(dqn(), agent=Resets, driver=driver, mode=mode, n_agents=2) as robot, \
            caplog.at_level(logging.WARNING, "parl_like"):
        robot.run(StopWhen(lambda robot: said() and robot.env_steps >= 20))
        robot.checkpoint_boundary()
        robot.run(20)
    assert len(said()) == 1 and said()[0].startswith("agent 0 has reset its environment again and again for ")


def generator(self):
    yield self.env.reset()


async def coroutine(self):
    self.env.reset()


async def both(self):
    yield self.env.reset()


@pytest.mark.parametrize(("method", "message"), [
    (generator, "run_one_episode is a generator, for it has a `yield`, so a call of it runs nothing; write it as a plain method"),
    (coroutine, r"run_one_episode is asynchronous \(`async def`\), so a call of it runs nothing"),
    (both, r"run_one_episode is asynchronous \(`async def`\), so a call of it runs nothing"),
])
def test_an_episode_that_a_call_does_not_run_is_refused(method, message):
    mine = type("Mine", (Agent,), {"run_one_episode": method})
    with robot_of(dqn(), agent=mine) as robot, pytest.raises(AgentFailed, match=message):
        robot.run(10)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: MLPQ(POSITION, ACT, hidden=3), r"MLPQ: hidden is 3 \(int\); expected Sequence\[int\]"),
    (lambda: MLPQ(POSITION, ACT, hidden="64"), r"MLPQ: hidden is '64' \(str\); expected Sequence\[int\]"),
    (lambda: EpsilonGreedy("0.1"), r"EpsilonGreedy: epsilon is '0.1' \(str\); expected float or Schedule or Sequence\[float\]"),
    (lambda: EpsilonGreedy(["a"]), r"EpsilonGreedy: epsilon is \['a'\] \(list\); expected float or Schedule"),
    (lambda: Robot.of("DQN", agent=Agent), r"^Robot.of: env is missing; expected Robot.of\(algorithm, env\)$"),
])
def test_arguments_of_a_wrong_type_are_named(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_robot_of_takes_an_agent_of_the_users_own():
    class Short(Agent):
        def run_one_episode(self):
            self.env.reset()
            self.env.step(0)

    with Robot.of("DQN", "CartPole-v1", agent=Short) as robot:
        robot.run(10)
        assert robot.env_steps == 10 and isinstance(robot.agents[0], Short)
    with pytest.raises(ValueError, match="agent is Short; expected a function that makes one, such as its class"):
        Robot.of("DQN", "CartPole-v1", agent=Short())


@pytest.mark.parametrize(("options", "message"), [
    ({"minibatches": 9}, "PPO: minibatches is 9, and an update has 4 rows: each row is an optimiser step of its own"),
    ({"minibatch_rows": 9}, "PPO: minibatch_rows is 9, and an update has 4 rows: all of them are one minibatch"),
    ({"minibatches": 4}, None), ({"minibatch_rows": 4}, None),
])
def test_minibatches_above_the_rows_of_an_update_are_told_once(options, message, caplog):
    from parl_like import OnPolicyHelper
    from parl_like.models import MLPActorCritic

    algorithm = PPO(MLPActorCritic(POSITION, ACT, hidden=(4,)), **options)
    with robot_of(algorithm, lambda: OnPolicyHelper(unroll=4)) as robot, caplog.at_level(logging.WARNING, "parl_like"):
        robot.run(12)
    said = [record.getMessage() for record in caplog.records if "minibatch" in record.getMessage()]
    assert len(said) == bool(message) and all(one.startswith(message) for one in said)

