"""Bad input: the error names the agent, the task, the field, what was expected and what came; and the robot ends cleanly."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_fakes import ACT, POSITION, Corridor, Log, Plain, Recorder, dqn, ppo, robot_of

from parl_like import Agent, ComputationTask, OffPolicyHelper, OnPolicyHelper, Robot, VectorAgent, create_algorithm_func
from parl_like.algorithms import DQN
from parl_like.environment.stop_conditions import StopAfterEpisodes, StopAfterSteps
from parl_like.learning.explorers import Beta, Noisy
from parl_like.models import MLPQ
from parl_like.values.errors import AgentFailed, Diverged, TaskFailed
from parl_like.values.spec import SpecError

DRIVERS = ["cooperative", "threads"]


def off(**options):
    return lambda: OffPolicyHelper(**{"size": 100, "batch_size": 4, "learn_every": 4, **options})


def fails_cleanly(robot, error, message, mend=None):
    """Runs; the error is as expected, all stages were closed, and the robot runs again once it is mended, and closes."""
    log = Log()
    with robot:
        with pytest.raises(error, match=message):
            robot.run(StopAfterSteps(1000), log)
        assert log.events[-1] == ("hook", "POST_EXPERIMENT")
        assert log.count("PRE_EPISODE") == log.count("POST_EPISODE")
        assert robot.pool.driver.agents == [] and not robot.stop_requested  # every agent has ended
        assert all(not queue.rows for wrapper in robot.wrappers.values() for queue in (wrapper.predictions, wrapper.trainings))
        if mend is not None:
            mend(robot)
            before = robot.env_steps
            robot.run(StopAfterSteps(20))
            assert robot.env_steps - before in range(20, 25)


# ----------------------------------------------------------------------------------------------------------------- observations


class Wrong(Corridor):
    """Shows something else than it declares, from the `at`-th observation on, in agent 1 only."""

    made = 0

    def __init__(self, wrong, at=3):
        super().__init__(6)
        self.wrong, self.shown_at = wrong, at
        self.number, Wrong.made = Wrong.made, Wrong.made + 1

    def obs(self):
        return self.wrong if self.number == 1 and self.at == self.shown_at else super().obs()


SHAPE = np.zeros(2, np.float32)
DTYPE = np.zeros(1, np.float64)
NAN = np.array([np.nan], np.float32)
WRONG = [
    (SHAPE, r"expected \(1,\) float32, got \(2,\) float32"),
    (np.zeros((1, 1), np.float32), r"expected \(1,\) float32, got \(1, 1\) float32; drop the row axis"),
    (np.float32(0), r"expected \(1,\) float32, got \(\) float32"),
    (DTYPE, r"expected \(1,\) float32, got \(1,\) float64; astype\('float32'\)"),
    (np.array(["a"]), r"expected \(1,\) float32, got \(1,\) <U1"),
    (NAN, r"expected \(1,\) float32, got \(1,\) float32 with NaN at \(0,\)"),
    (None, r"expected \(1,\) float32, got None"),
]


@pytest.fixture(autouse=True)
def count_anew():
    Wrong.made = 0


def heal(robot):
    for agent in robot.agents:
        agent.env._env.number = -1


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_a_wrong_observation_in_a_step(wrong, message, driver):
    """The default agent stores before it predicts, so there it is `obs_next` that is wrong."""
    robot = robot_of(dqn(), off(), env=lambda: Wrong(wrong), n_agents=3, driver=driver)
    fails_cleanly(robot, SpecError, f"^agent 1: task 'RL', field 'obs_next': {message}", heal)


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_a_wrong_observation_in_a_reset(wrong, message):
    robot = robot_of(dqn(), off(), env=lambda: Wrong(wrong, 0), n_agents=3)
    fails_cleanly(robot, SpecError, f"^agent 1: task 'RL', field 'obs': {message}", heal)


@pytest.mark.parametrize("store", [True, False])
def test_a_wrong_key(store):
    space = gym.spaces.Dict({"at": POSITION, "room": gym.spaces.Discrete(2)})

    class Renamed(Wrong):
        def __init__(self):
            super().__init__({"at": np.zeros(1, np.float32), "rooms": 0})
            self.observation_space = space

        def obs(self):
            obs = super().obs()
            return obs if obs is self.wrong else {"at": obs, "room": 0}

    robot = robot_of(dqn(Renamed), off() if store else None, env=Renamed, n_agents=2)
    Wrong.made = 0
    robot.close()
    robot = robot_of(dqn(Renamed), off() if store else None, env=Renamed, n_agents=4)
    message = (r"^agent \d: task 'RL', field 'obs': expected obs.at, obs.room, got obs.at, obs.rooms \(missing "
               r"\['obs.room'\], unexpected \['obs.rooms'\]\)")
    fails_cleanly(robot, SpecError, message, heal)


def test_wrong_rows_of_a_vector_environment():
    class Short(gym.vector.SyncVectorEnv):
        def step(self, act):
            obs, *rest = super().step(act)
            return obs[:1], *rest

    robot = robot_of(dqn(), off(), env=lambda: Short([Corridor, Corridor]), agent=VectorAgent)
    fails_cleanly(robot, SpecError, r"^agent 0: task 'RL', field 'obs_next': expected \('N', 1\) float32, got \(1, 1\) float32; "
                                    r"give 2 rows")


# --------------------------------------------------------------------------------------------------------- rewards and actions


@pytest.mark.parametrize(("rew", "message"), [
    (float("nan"), r"field 'rew': expected \(\) float64, got \(\) float64 with NaN"),
    (np.zeros(2), r"field 'rew': expected \(\) float64, got \(2,\) float64"),
    ("much", r"field 'rew': expected \(\) float64, got \(\) <U4"),
])
def test_a_reward_that_is_none(rew, message):
    class Odd(Corridor):
        def step(self, act):
            obs, _, *rest = super().step(act)
            return obs, rew, *rest

    class Lenient(Agent):
        """Keeps the reward from the face, which adds it up."""

        def run_one_episode(self):
            obs, _ = self.env.reset()
            obs_next, _, *ends = self.env.step(0)
            self.helpers["RL"].store(obs, 0, rew, obs_next, *ends)

    fails_cleanly(robot_of(dqn(), off(), env=Corridor, agent=Lenient), SpecError, f"^agent 0: task 'RL', {message}")


def test_flags_that_are_none():
    class Old(Corridor):
        def step(self, act):
            obs, rew, terminated, _, info = super().step(act)
            return obs, rew, int(terminated), 0, info

    fails_cleanly(
        robot_of(dqn(), off(), env=Old), SpecError, "^agent 0: task 'RL', field 'terminated': expected .* bool, got .* int64"
    )


def test_an_environment_of_the_old_interface():
    class Four(Corridor):
        def step(self, act):
            return super().step(act)[:4]

    message = (r"^agent 0: its environment \(seed \d+\) raised in step\(0\), step 0 of the episode: ValueError: not "
               r"enough values to unpack .*; gymnasium.s step returns \(obs, reward, terminated, truncated, info\)")
    fails_cleanly(robot_of(Recorder(), env=Four), AgentFailed, message)


@pytest.mark.parametrize(("space", "act", "got"), [
    (ACT, torch.tensor([2]), "2"), (ACT, torch.tensor([-1]), "-1"), (ACT, torch.tensor([0.5]), "0.5"),
    (gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), torch.tensor([[np.nan, 0.0]]), r"array\(\[nan"),
    (gym.spaces.Box(-1, 1, (2,), np.float32), torch.tensor([[0.0, 0.0, 0.0]]), r"array\(\[0"),
    (gym.spaces.MultiDiscrete([2, 2]), torch.tensor([[0, 2]]), r"array\(\[0, 2\]\)"),
])
def test_an_action_outside_the_space(space, act, got):
    task = Recorder(Plain(POSITION, space), lambda obs: act.expand(len(obs), *act.shape[1:]))
    robot = robot_of(task, off(), env=lambda: Corridor(act=space), n_agents=2)
    if act.shape == (1, 3):
        fails_cleanly(robot, TaskFailed, "task 'RL': predict failed")  # does not even scale
        return
    fails_cleanly(robot, AgentFailed, rf"^agent 0: action outside the space: expected .*, got {got}")


# ----------------------------------------------------------------------------------------------------------------- environments


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_environment_that_raises_in_a_step(driver):
    robot = robot_of(dqn(), off(), env=lambda: Corridor(6, fail_at=2), n_agents=2, driver=driver)

    def mend(robot):
        for agent in robot.agents:
            agent.env._env.fail_at = None

    message = (r"^agent \d: its environment \(seed \d+\) raised in step\([01]\), step 2 of the episode: OSError: a "
               r"hole in the floor")
    fails_cleanly(robot, AgentFailed, message, mend)


@pytest.mark.parametrize("which", [1, 2])
def test_an_environment_that_raises_in_a_reset(which):
    robot = robot_of(dqn(), off(), env=lambda: Corridor(6, fail_reset=which), n_agents=2)
    seed = r"\d+" if which == 1 else "None"

    def mend(robot):
        for agent in robot.agents:
            agent.env._env.fail_reset = None

    fails_cleanly(robot, AgentFailed, rf"^agent 0: its environment raised in reset\(seed={seed}\): OSError: no floor", mend)


def test_the_cause_is_kept():
    with robot_of(dqn(), env=lambda: Corridor(fail_at=0)) as robot:
        with pytest.raises(AgentFailed) as caught:
            robot.run(StopAfterSteps(5))
        assert isinstance(caught.value.__cause__, OSError)


def test_an_environment_that_cannot_be_made():
    def broken():
        raise OSError("no such place")

    with pytest.raises(OSError, match="no such place"):
        robot_of(dqn(), env=broken)


def test_an_evaluation_fails_as_clearly_and_leaves_the_robot_alone():
    with robot_of(dqn(), off()) as robot:
        robot.run(StopAfterSteps(7))
        with pytest.raises(AgentFailed, match=r"^evaluator 0: its environment \(seed \d+\) raised in step"):
            robot.evaluate(2, env=lambda: Corridor(fail_at=1))
        robot.run(StopAfterSteps(7))
        assert robot.env_steps == 14


# ------------------------------------------------------------------------------------------------------------------------ models


def test_a_model_whose_output_does_not_fit_the_explorer():
    class Values(Recorder):
        def predict(self, inputs):
            return {"v": inputs.obs[:, 0]}

        def explorer(self):
            from parl_like.learning.explorers import EpsilonGreedy

            return EpsilonGreedy()

    with pytest.raises(ValueError, match=r"task 'RL': EpsilonGreedy reads 'q' of the prediction, which has v; return it"):
        robot_of(Values(), off())


@pytest.mark.parametrize(("explorer", "out", "message"), [
    (Noisy(3), {"mean": 2}, r"field 'act': expected \('N', 2\), as of the action space, got \('N', 3\); look at Noisy"),
    (Noisy(2), {"mean": 3}, r"field 'mean': expected \('N', 2\), as of the action space, got \('N', 3\); .* last layer of"),
    (Beta((1, 2)), {"alpha": 2, "beta": 1}, r"field 'beta': expected \('N', 2\), as of the action space, got \('N', 1\)"),
    (Noisy, {"mean": 2}, "explorer of Values is <class .*Noisy'>; expected an Explorer, such as EpsilonGreedy"),
])  # fmt: skip
def test_an_explorer_or_a_model_with_other_actions_than_the_space(explorer, out, message):
    class Values(Recorder):
        def predict(self, inputs):
            return {name: torch.ones(len(inputs.obs), n) for name, n in out.items()}

        def explorer(self):
            return explorer

    model = Plain(act=gym.spaces.Box(-1, 1, (2,), np.float32))
    with pytest.raises((SpecError, TypeError), match=message):
        robot_of(Values(model), off())


def test_a_model_that_gives_another_number_of_rows():
    class Mean(Recorder):
        def predict(self, inputs):
            return {"act": torch.zeros(1, dtype=torch.int64)}

    with pytest.raises(SpecError, match=r"task '\w+', output of predict, field 'act': .* the batch has 2 rows; return one row "
                                        r"for each"):
        ComputationTask(Mean())


def test_a_model_with_more_actions_than_the_environment():
    class Wide(Corridor):
        def __init__(self):
            super().__init__(act=gym.spaces.Discrete(50))

    robot = robot_of(dqn(Wide, epsilon=1.0), off(), env=Corridor)
    fails_cleanly(robot, AgentFailed, r"^agent 0: action outside the space: expected Discrete\(2\), got \d+; look at the output "
                                      r"of the task")


def test_a_model_for_other_observations():
    class Wide(Corridor):
        def __init__(self):
            super().__init__()
            self.observation_space = gym.spaces.Box(0, 1, (3,), np.float32)

    fails_cleanly(
        robot_of(dqn(Wide), off(), env=Corridor),
        SpecError,
        r"^agent 0: task 'RL', field 'obs': expected \(3,\) "
        r"float32, got \(1,\)",
    )


def test_a_state_that_has_another_shape():
    from parl_like.values.spec import Spec

    class Memory(Plain):
        def state_specs(self):
            return {"h": Spec("h", (3,), np.dtype(np.float32))}

    class Forgetful(Recorder):
        def predict(self, inputs):
            return {**super().predict(inputs), "state": {"h": inputs.state.h[:, :2]}}

    fails_cleanly(
        robot_of(Forgetful(Memory()), off()),
        SpecError,
        r"^agent 0: task 'RL', field 'state.h': expected \(3,\) "
        r"float32, got \(2,\)",
    )


@pytest.mark.parametrize("agent", [Agent, lambda: VectorAgent(2)])
def test_an_algorithm_without_memory_for_a_model_with_one(agent):
    from parl_like.values.spec import Spec

    class Memory(Plain):
        def state_specs(self):
            return {"h": Spec("h", (3,), np.dtype(np.float32))}

    message = "^agent 0: task 'RL', field 'state.h': expected in the output of predict, got act; this model has a memory"
    fails_cleanly(robot_of(Recorder(Memory()), off(), agent=agent), SpecError, message)


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_update_that_raises(driver):
    class Failing(Recorder):
        broken = True

        def learn(self, batch):
            if self.broken:
                raise ArithmeticError("too hard")
            return super().learn(batch)

    robot = robot_of(Failing(), off(), n_agents=2, driver=driver)

    def mend(robot):
        robot.tasks["RL"].algorithm.broken = False

    fails_cleanly(robot, TaskFailed, r"task 'RL': learn failed for a batch of 1 requests \(agent [01]\): ArithmeticError: too "
                                     r"hard", mend)


def test_a_loss_that_is_no_number():
    class Infinite(Recorder):
        def learn(self, batch):
            return {"loss": self.model.w.sum() * float("inf")}

    fails_cleanly(robot_of(Infinite(), off()), TaskFailed, "task 'RL': loss is inf at optimiser step 0; the weights are "
                                                           "unchanged")


# --------------------------------------------------------------------------------------------------------------------- the agent


class Custom(Agent):
    def run_one_episode(self):
        obs, _ = self.env.reset()
        self.go(obs)


@pytest.mark.parametrize(
    ("go", "error", "message"),
    [
        (
            lambda self, obs: self.helpers["R"],
            AgentFailed,
            r"^agent 0: run_one_episode raised KeyError: no task 'R'; did you mean "
            r"'RL'\?",
        ),
        (lambda self, obs: self.helpers["goal"], AgentFailed, r"no task 'goal'; there are 'RL'"),
        (lambda self, obs: self.nothing, AgentFailed, "^agent 0: run_one_episode raised AttributeError: .*'nothing'"),
        (
            lambda self, obs: self.helpers["RL"].predict([1.0, 2.0]),
            SpecError,
            r"^agent 0: task 'RL', field 'obs': expected \(1,\) "
            r"float32, got \(2,\)",
        ),
        (
            lambda self, obs: self.helpers["RL"].store(obs, 0.5, 1.0, obs, False, False),
            SpecError,
            r"^agent 0: task 'RL', field "
            r"'act': expected .* int64",
        ),
        (
            lambda self, obs: self.helpers["RL"].store(obs, 0, 1.0, obs, None, False),
            SpecError,
            r"field 'terminated': expected .* "
            r"bool, got None",
        ),
    ],
)
def test_mistakes_in_an_agents_own_code(go, error, message):
    agent = type("A", (Custom,), {"go": go})
    fails_cleanly(robot_of(Recorder(), off(), agent=agent, n_agents=2), error, message)


def test_only_the_agents_that_were_served_hear_of_a_failed_batch_if_that_is_wanted():
    """A task with on_error='fail_batch': an agent may catch the failure of its update and go on."""
    class Failing(Recorder):
        def learn(self, batch):
            raise ArithmeticError("too hard")

    class Patient(Agent):
        failures = 0

        def run_one_episode(self):
            obs, _ = self.env.reset()
            for _ in range(5):
                obs_next, rew, terminated, truncated, _ = self.env.step(0)
                try:
                    self.helpers["RL"].store(obs, 0, rew, obs_next, terminated, truncated)
                except TaskFailed:
                    self.failures += 1
                obs = obs_next

    task = ComputationTask(Failing(), lambda: OnPolicyHelper(unroll=5), on_error="fail_batch")
    with Robot(Corridor, tasks={"RL": task}, agent=Patient) as robot:
        robot.run(StopAfterEpisodes(3))
        assert robot.agents[0].failures == 3 and robot.env_steps == 15


def test_a_robot_that_has_nobody_to_act():
    for agent in (Agent, lambda: VectorAgent(2)):
        fails_cleanly(
            Robot(Corridor, tasks={}, agent=agent), AgentFailed, "^agent 0: the robot has no task that could act; give it one"
        )


def test_an_interruption_from_the_keyboard():
    class Impatient(Agent):
        def run_one_episode(self):
            self.env.reset()
            self.env.step(0)
            if self.steps == 3:
                raise KeyboardInterrupt

    fails_cleanly(robot_of(Recorder(), off(), agent=Impatient), KeyboardInterrupt, None)


def test_recurrent_and_policy_columns_are_named_too():
    with robot_of(ppo(recurrent=True), lambda: OnPolicyHelper(store_policy=True)) as robot:
        assert {"state.h", "policy.log_prob"} <= robot.buffers["RL"].columns.keys()


@pytest.mark.parametrize("columns", [1, 4])
def test_a_prediction_with_another_number_of_actions(columns):
    class Narrow(MLPQ):
        def q(self, obs):
            return super().q(obs)[:, :1].expand(-1, columns)

    func = create_algorithm_func(Narrow, dict(obs=POSITION, act=ACT, hidden=[4]), DQN, {})
    message = (rf"task 'RL': DQN calls q\(obs\) -> \[N, A\].*; Narrow.q: expected \(2, 2\) for a batch of 2 rows, got "
               rf"\(2, {columns}\)")
    with pytest.raises(TypeError, match=message):
        robot_of(func, off())


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("place", ["reset", "step"])
def test_an_environment_that_exits_the_process(driver, place):
    """exit code 0 would say that all is well."""
    class Exits(Corridor):
        def leave(self, where):
            if where == place:
                raise SystemExit(0)

        def reset(self, **options):
            self.leave("reset")
            return super().reset(**options)

        def step(self, act):
            self.leave("step")
            return super().step(act)

    with robot_of(Recorder(), env=Exits, driver=driver) as robot, pytest.raises(AgentFailed, match=r"^agent 0: .*SystemExit"):
        robot.run()


def test_a_device_that_does_not_exist():
    with pytest.raises(ValueError, match="device is 'banana'; expected 'cpu', 'cuda'"):
        ComputationTask(dqn(), device="banana")


def test_a_discrete_observation_outside_of_its_space_is_refused_by_name():
    class Lost(gym.Env):
        observation_space, action_space = gym.spaces.Discrete(4), gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.at = 0
            return 0, {}

        def step(self, act):
            self.at += 1
            return self.at, 0.0, False, False, {}

    from agent_fakes import Plain, Recorder

    with (
        robot_of(Recorder(Plain(gym.spaces.Discrete(4))), off(), Lost) as robot,
        pytest.raises(
            Exception,
            match=r"field 'obs': expected "
            r"\(\) int64, got 4; stay "
            r"within \[0, 3\]",
        ),
    ):
        robot.run(StopAfterSteps(10))


# --------------------------------------------------------------------------------------------------- rewards that are no numbers


class Paid(Corridor):
    def __init__(self, rew):
        super().__init__(6)
        self.rew = rew

    def step(self, act):
        obs, _, *rest = super().step(act)
        return obs, self.rew, *rest


@pytest.mark.parametrize("rew", [np.inf, -np.inf, np.float32(np.inf), np.float64(-np.inf)], ids=str)
@pytest.mark.parametrize("agent", [Agent, lambda: VectorAgent(2)], ids=["single", "vector"])
@pytest.mark.parametrize("learns", [off(), lambda: OnPolicyHelper(unroll=4)], ids=["off", "on"])
def test_an_infinite_reward_is_named_where_it_arrives(rew, agent, learns):
    with robot_of(Recorder(), learns, env=lambda: Paid(rew), agent=agent) as robot:
        with pytest.raises(SpecError, match=r"agent 0[,:] task 'RL', field 'rew': expected a finite number, got .*inf.*mend"):
            robot.run(StopAfterSteps(100))
        assert not robot.tasks["RL"].learns


@pytest.mark.parametrize(("name", "steps"), [("PPO", 1_000), ("A2C", 200)])
def test_a_run_without_one_step_ends_as_diverged(name, steps):
    """1e39 is a number for the environment and none for the network; so many steps are fewer updates than `max_skips`."""
    with Robot.of(name, lambda: Paid(1e39), total_steps=5_000, n_agents=2) as robot, np.errstate(over="ignore"):
        with pytest.raises(Diverged, match=r"task 'RL': all \d+ optimiser steps were left out, so nothing was learned; the last "
                                           r"one: task 'RL': loss is (nan|inf) at optimiser step 0"):
            robot.run(steps)
        with pytest.raises(Diverged, match="all"):
            for _ in robot.epochs(1, steps // 4, evaluate_episodes=1):
                pass


# ---------------------------------------------------------------------------------------- what a reset and a step give


def gives(reset=None, **step):
    """A Corridor whose reset gives `reset`, and whose step has these of obs, rew, terminated, truncated, info."""

    class Odd(Corridor):
        def reset(self, *, seed=None, options=None):
            given = super().reset(seed=seed)
            return given if reset is None else reset(given[0])

        def step(self, act):
            values = dict(zip(("obs", "rew", "terminated", "truncated", "info"), super().step(act), strict=True))
            return tuple({**values, **step}.values())

    return Odd


@pytest.mark.parametrize(("env", "message"), [
    (gives(lambda obs: obs), r"reset\(\) of its environment gave \[0\.\].*expected the pair \(observation, info\)|array\(\[0"),
    (gives(lambda obs: (obs, {}, 1)), r"reset\(\) of its environment gave 3 values, a tuple \(ndarray, dict, int\); expected the "
                                      r"pair \(observation, info\), info a dict: `return obs, \{\}`"),
    (gives(lambda obs: {"obs": obs}), r"reset\(\) of its environment gave .* expected the pair"),
    (gives(lambda obs: (obs, None)), r"reset\(\) of its environment .* gave the info None; expected a dict, \{\} where"),
    (gives(info=None), r"step\([01]\), step 0 of the episode, of its environment .* gave the info None; expected a dict"),
    (gives(info=[1]), r"gave the info 1 values, a list \(int\); expected a dict"),
    (gives(rew="1.0"), r"after 0 steps of the episode, gave the reward the text '1\.0'; expected a number"),
    (gives(rew={"r": 1}), r"gave the reward \{'r': 1\}; expected a number"),
    (gives(terminated=np.array([False, False])), r"gave terminated = an array of shape \(2,\); expected True or False"),
])
def test_a_reset_or_step_that_gives_something_else_is_told_what_is_expected(env, message):
    fails_cleanly(robot_of(dqn(), off(), env=env), AgentFailed, f"^agent 0: .*({message})")


ORDERS = {  # places of obs, act, rew, obs_next, terminated, truncated
    "act and rew": ((0, 2, 1, 3, 4, 5), "field 'act'"),
    "rew and obs_next": ((0, 1, 3, 2, 4, 5), "field 'rew'"),
    "obs and act": ((1, 0, 2, 3, 4, 5), "field 'obs'"),
    "obs and obs_next": ((3, 1, 2, 0, 4, 5), "field 'obs': expected the observation that was acted on"),
    "the flags": ((0, 1, 2, 3, 5, 4), "field 'terminated': expected what the environment said, True"),
}


@pytest.mark.parametrize("name", ORDERS)
def test_swapped_arguments_of_store_are_refused(name):
    order, message = ORDERS[name]

    class Swaps(Agent):
        def run_one_episode(self):
            obs, _ = self.env.reset()
            over = False
            while not over:
                act = self.helpers["RL"].predict(obs)
                obs_next, rew, terminated, truncated, _ = self.env.step(act)
                row = obs, act, rew, obs_next, terminated, truncated
                self.helpers["RL"].store(*(row[i] for i in order))
                obs, over = obs_next, terminated or truncated

    wide = gym.spaces.Box(0, 9, (2,), np.float32)

    class Wide(Corridor):
        def __init__(self):
            super().__init__()
            self.observation_space = wide

        def obs(self):
            return np.array([self.at, 0], np.float32)

    task = DQN(MLPQ(wide, ACT, hidden=(4,)))
    fails_cleanly(robot_of(task, off(), env=Wide, agent=Swaps), SpecError,
                  f"^agent 0: task 'RL', {message}.*store takes obs, act, rew, obs_next, terminated, truncated in this order")
