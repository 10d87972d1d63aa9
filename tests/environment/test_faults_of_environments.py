"""Faults of environments and of learning as ordinary events: what is dropped, replaced, left out or put back, counted, and gone
on from."""

import io
import json
import logging
import math
import os
import random
import signal
import sys
import warnings
from functools import partial
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_fakes import ACT, POSITION, Corridor, Log, Noisy, Plain, Recorder, dqn, ppo, robot_of, rows, same, weights
from transport_fakes import BAD, Echo, echo_task, play, row

from parl_like import Agent, ComputationTask, OffPolicyHelper, OnPolicyHelper, Robot, VectorAgent
from parl_like.data.buffers.prioritized import PrioritizedReplayBuffer
from parl_like.data.rng import Borrowed
from parl_like.environment.process_guard import watched
from parl_like.environment.stop_conditions import StopAfterEpisodes, StopAfterSteps
from parl_like.lab import config as configs
from parl_like.lab import experiment as experiments
from parl_like.lab import runner, session
from parl_like.lab.experiment import Experiment
from parl_like.lab.reports import plots
from parl_like.lab.runs.rundir import RunDir
from parl_like.learning.algorithm import Algorithm, Linear
from parl_like.learning.explorers import EpsilonGreedy
from parl_like.learning.layers import batch_norm, fc
from parl_like.learning.model import Model
from parl_like.values.errors import AgentFailed, Diverged, TaskFailed
from parl_like.values.spec import SpecError


def off(**options):
    return lambda: OffPolicyHelper(**{"size": 200, "batch_size": 4, "learn_every": 4, **options})


# ------------------------------------------------------------------------------------------ F09: bad values of an environment


class Flawed(Corridor):
    """Gives something else, once: as the observation or the reward of the step to position 3, or of the first reset.

    The other observations are the position, the other rewards 1; episodes have 5 steps.
    """

    def __init__(self, place="step", obs=None, rew=None, space=POSITION):
        super().__init__(5)
        self.observation_space = space
        self.place, self.flaw_obs, self.flaw_rew = place, obs, rew

    def obs(self):
        return int(self.at) if isinstance(self.observation_space, gym.spaces.Discrete) else super().obs()

    def reset(self, **options):
        obs, info = super().reset(**options)
        if self.place == "reset":
            self.place = ""
            obs = self.flaw_obs
        return obs, info

    def step(self, act):
        obs, rew, *rest = super().step(act)
        if self.place == "step" and self.at == 3:
            self.place = ""
            obs = obs if self.flaw_obs is None else self.flaw_obs
            rew = rew if self.flaw_rew is None else self.flaw_rew
        return obs, rew, *rest


def f32(*values):
    return np.array(values, np.float32)


LETTERS = gym.spaces.Discrete(9)
KINDS = [  # name, what is wrong, what it becomes by 'replace' (None: it cannot be mended), what 'raise' says (None: nobody minds)
    ("NaN", dict(obs=f32(np.nan)), 0.0, "NaN"),
    ("inf", dict(obs=f32(np.inf)), 0.0, None),
    ("minus inf", dict(obs=f32(-np.inf)), 0.0, None),
    ("above the bounds", dict(obs=f32(2000.0)), 1000.0, None),
    ("below the bounds", dict(obs=f32(-1.0)), 0.0, None),
    ("an integer outside", dict(obs=9, space=LETTERS), 8, r"stay within \[0, 8\]"),
    ("shape", dict(obs=f32(1.0, 2.0)), None, r"got \(2,\) float32"),
    ("dtype", dict(obs=np.array([1.0])), None, r"got \(1,\) float64; astype\('float32'\)"),
    ("text", dict(obs=np.array(["a"])), None, r"got \(1,\) <U1"),
    ("ragged", dict(obs=[[1.0], [2.0, 3.0]]), None, "a ragged list"),
    ("no array", dict(obs="lost"), None, "the text 'lost'"),
    ("keys", dict(obs={"at": f32(1.0)}), None, "expected .*, got "),
    ("NaN as reward", dict(rew=math.nan), 0.0, "NaN"),
    ("inf as reward", dict(rew=-math.inf), 0.0, "expected a finite number, got -inf"),
    ("two rewards", dict(rew=np.zeros(2)), None, r"got \(2,\) float64"),
]
each_kind = pytest.mark.parametrize(("flaw", "mended", "said"), [kind[1:] for kind in KINDS], ids=[kind[0] for kind in KINDS])


def corridor_robot(flaw, policy, **options):
    agent = partial(Agent, on_bad_value=policy)
    task = Recorder(Plain(flaw.get("space", POSITION)))
    return robot_of(task, off(learn_every=1000), env=lambda: Flawed(**flaw), agent=agent, **options)


@each_kind
def test_a_bad_value_raises(flaw, mended, said):
    with corridor_robot(flaw, "raise") as robot:
        if said is None:
            robot.run(StopAfterSteps(10))
            return
        if np.ndim(flaw.get("rew", 0)):
            said = r"environment \(seed \d+\), after 2 steps .* gave a reward of shape \(2,\).*RewardWeights"
            with pytest.raises(AgentFailed, match=said):
                robot.run(StopAfterSteps(10))
            return
        field = "rew" if "rew" in flaw else "obs"
        with pytest.raises(SpecError, match=f"^agent 0: task 'RL', field '{field}.*{said}") as caught:
            robot.run(StopAfterSteps(10))
        assert any("its environment (seed " in note and "after 3 steps of the episode" in note for note in caught.value.__notes__)


@each_kind
@pytest.mark.parametrize("driver", ["cooperative", "threads"])
def test_a_bad_value_costs_its_episode(flaw, mended, said, driver, caplog):
    """Steps to 1 and 2 are kept, with a cut behind; the step to 3 is not stored, but counts; then whole episodes follow."""
    log = Log()
    with corridor_robot(flaw, "drop", driver=driver) as robot, caplog.at_level(logging.WARNING, "parl_like"):
        robot.run(StopAfterEpisodes(2), log)
        stored, (agent,) = rows(robot), robot.agents
        assert stored["obs"].ravel().tolist() == [0, 1] + [0, 1, 2, 3, 4] * 2
        assert stored["truncated"].tolist() == [False, True] + [False] * 10
        assert (agent.bad_values, agent.steps, robot.env_steps, robot.episodes) == (1, 13, 13, 2)
        assert [event[2] for event in log.events if event[1] == "POST_EPISODE"] == [True, False, False]
        assert np.isfinite(robot.metrics()["return/mean"])
        seeds = [entry[1] for entry in agent.env.unwrapped.log if isinstance(entry, tuple)]
        assert seeds[0] is not None and seeds[2] is None
        assert seeds[1] not in (None, seeds[0])  # another beginning, not the same once more
    text = caplog.records[0].message
    field = "rew" if "rew" in flaw else "obs"
    assert text.startswith("agent 0: its environment (seed ") and f"step 2 of the episode: field '{field}" in text
    assert "episode dropped" in text


@each_kind
def test_a_bad_value_is_replaced_if_it_can_be(flaw, mended, said, caplog):
    with corridor_robot(flaw, "replace") as robot, caplog.at_level(logging.WARNING, "parl_like"):
        if mended is None:
            field = "rew" if "rew" in flaw else "obs"
            with pytest.raises(
                (SpecError, AgentFailed),
                match=r"agent 0: its environment \(seed \d+\), step 2 of the episode: "
                rf"field '{field}",
            ):
                robot.run(StopAfterSteps(10))
            return
        robot.run(StopAfterSteps(10))
        stored = rows(robot)
        expected = [0, 1, 2, 3, 4, 5] if "rew" in flaw else [0, 1, 2, mended, 4, 5]
        assert stored["obs"].ravel().tolist()[:5] == expected[:5] and stored["obs_next"].ravel().tolist()[:5] == expected[1:]
        assert stored["rew"].tolist()[:5] == [1, 1, mended if "rew" in flaw else 1, 1, 1]
        assert robot.agents[0].bad_values == 1 and robot.episodes == 2
    assert "replaced" in caplog.records[0].message


@pytest.mark.parametrize(("policy", "first"), [("drop", 0), ("replace", 0)])
def test_a_bad_first_observation(policy, first):
    with corridor_robot(dict(place="reset", obs=f32(np.nan)), policy) as robot:
        robot.run(StopAfterEpisodes(1))
        assert rows(robot)["obs"].ravel().tolist() == [0, 1, 2, 3, 4] and robot.agents[0].bad_values == 1


def test_nested_observations_are_replaced_in_place():
    space = gym.spaces.Dict({"at": POSITION, "pair": gym.spaces.Tuple([gym.spaces.Discrete(3), POSITION])})

    class Nested(Corridor):
        def __init__(self):
            super().__init__(4)
            self.observation_space = space

        def obs(self):
            return {"at": f32(np.inf if self.at == 2 else self.at), "pair": (1, f32(np.nan if self.at == 2 else 7.0))}

    with robot_of(Recorder(Plain(space), lambda obs: torch.zeros(len(obs.at), dtype=torch.int64)), off(learn_every=1000),
                  env=Nested,
                  agent=partial(Agent, on_bad_value="replace")) as robot:
        robot.run(StopAfterEpisodes(1))
        stored = rows(robot)
        assert stored["obs.at"].ravel().tolist() == [0, 1, 0, 3] and stored["obs.pair.1"].ravel().tolist() == [7, 7, 0, 7]
        assert stored["obs.pair.0"].tolist() == [1] * 4


def test_an_environment_that_is_never_right_ends_the_run():
    class Lost(Corridor):
        where = "reset"

        def reset(self, **options):
            obs, info = super().reset(**options)
            return (f32(np.nan) if self.where == "reset" else obs), info

        def step(self, act):
            return f32(np.nan), *super().step(act)[1:]

    with robot_of(Recorder(), env=Lost, agent=partial(Agent, on_bad_value="drop")) as robot:
        with pytest.raises(AgentFailed, match="returned 1000 times without") as caught:
            robot.run(StopAfterSteps(10))
        assert "reset: field 'obs'" in str(caught.value.__cause__)
        robot.agents[0].env.unwrapped.where = "step"
        robot.run(StopAfterSteps(10))  # the steps count
        assert robot.env_steps == 10 and robot.episodes == 0
        assert robot.collect(n_step=7).n_steps == 7


def test_one_cause_is_told_once_and_not_by_every_agent(caplog):
    class Rude(Corridor):
        def reset(self, **options):
            np.random.seed(1)
            return super().reset(**options)

        def step(self, act):
            return *super().step(act)[:1], math.nan, False, self.at == self.length, {}

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with robot_of(Recorder(), env=Rude, agent=partial(Agent, on_bad_value="replace"), n_agents=4) as robot:
            robot.run(StopAfterSteps(32))
            for _ in range(2):
                robot.evaluate(2)
    assert len([w for w in told if "the global generator of numpy" in str(w.message)]) == 1
    texts = [record.getMessage() for record in caplog.records]
    assert sum("replaced" in text for text in texts if "agent" in text[:6]) == 6  # 1, 2, 4 … 32


def test_counts_of_bad_values_are_saved():
    with corridor_robot(dict(obs=f32(np.nan)), "drop") as robot, corridor_robot({}, "drop") as other:
        robot.run(StopAfterEpisodes(1))
        other.load_state_dict(robot.state_dict())
        assert other.agents[0].bad_values == 1
        before = robot.agents[0].state_dict()
        del before["bad_values"]  # a checkpoint of before there were such counts
        other.agents[0].load_state_dict(before)
        assert other.agents[0].bad_values == 0


def test_policies_that_do_not_exist():
    with pytest.raises(ValueError, match="Agent: on_bad_value is 'ignore'; expected 'raise', 'drop' or 'replace'"):
        robot_of(Recorder(), agent=partial(Agent, on_bad_value="ignore"))
    vector = type("V", (VectorAgent,), {"on_bad_value": "drop"})
    with pytest.raises(ValueError, match="V: on_bad_value is 'drop'; expected 'raise' of an agent with a vector environment"):
        robot_of(Recorder(), agent=vector)


# -------------------------------------------------------------------------------------------- F10: environments without manners


@pytest.fixture
def as_before():
    """The process's own state is put back, whatever a test did to it."""
    here, handler = os.getcwd(), signal.getsignal(signal.SIGINT)
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    os.chdir(here)
    signal.signal(signal.SIGINT, handler)
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


class Rude(Noisy):
    """Does in `places` what an environment should not do."""

    def __init__(self, places=("made", "reset", "step"), directory=True):
        super().__init__()
        self.places, self.directory = places, directory
        self.do("made")

    def do(self, place):
        if place in self.places:
            random.seed(1)
            np.random.seed(2)
            torch.manual_seed(3)
            random.random(), np.random.random(), torch.rand(1)
            if self.directory:
                os.chdir("/")
                if place != "reset" or signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def reset(self, **options):
        self.do("reset")
        return super().reset(**options)

    def step(self, act):
        self.do("step")
        return super().step(act)


def trained(env, driver="cooperative", n_agents=3):
    with robot_of(dqn(Noisy, epsilon=0.3), off(), env=env, n_agents=n_agents, driver=driver, trace=True, seed=5) as robot:
        robot.run(StopAfterSteps(122))  # no update is open at the stop, which the threads driver would not wait for
        return robot.trace_hash(), weights(robot), robot.counters()


@pytest.mark.parametrize(("driver", "n_agents"), [("cooperative", 3), ("threads", 1)])
def test_what_an_environment_does_to_global_generators_changes_nothing(driver, n_agents, as_before):
    polite = trained(Noisy, driver, n_agents)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert trained(partial(Rude, directory=False), driver, n_agents) == polite


def test_updates_of_ppo_and_dropout_do_not_draw_from_global_generators_either(as_before):
    def weights_after(env):
        with robot_of(ppo(Noisy), lambda: OnPolicyHelper(unroll=8), env=env, n_agents=2, seed=3) as robot:
            robot.run(StopAfterSteps(64))
            return weights(robot)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert weights_after(partial(Rude, directory=False)) == weights_after(Noisy)


def test_an_update_that_borrows_the_generator_beside_a_reset_is_not_the_environments_doing():
    """As learning in a thread does, while the main thread acts: its random numbers go on in the global generator meanwhile."""
    agent = SimpleNamespace(process_changes=set(), agent_pool=SimpleNamespace(warned=set()))
    state = torch.get_rng_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with watched(agent, "reset"):
                Borrowed.begun += 1
                torch.manual_seed(5)
            with watched(agent, "reset"):
                torch.manual_seed(6)
                Borrowed.ended += 1
        with pytest.warns(RuntimeWarning, match="the global generator of torch"), watched(agent, "reset"):
            torch.manual_seed(7)
    finally:
        torch.set_rng_state(state)


@pytest.mark.parametrize("place", ["made", "reset"])
def test_directory_and_handler_are_put_back_and_each_thing_is_said_once(place, as_before, tmp_path):
    os.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGINT)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with robot_of(Recorder(Plain(Noisy.observation_space)), env=partial(Rude, places=(place,)), n_agents=2) as robot:
            robot.run(StopAfterEpisodes(6))
    assert os.getcwd() == str(tmp_path) and signal.getsignal(signal.SIGINT) is handler
    said = [str(one.message) for one in caught if "while its environment was" in str(one.message)]
    assert [text.partition(":")[0] for text in said] == ["agent 0"]  # agent 1 does the same
    for part in (
        f"was {place}",
        "the working directory (put back)",
        "the handler of Ctrl-C (put back)",
        "generator of random (left so",
        "generator of numpy (left so",
        "generator of torch (left so",
    ):
        assert part in said[0]


def test_in_another_thread_it_is_told_and_left(as_before, tmp_path):
    """Beside the threads of other agents, which may rely on them, nothing can be put back."""
    os.chdir(tmp_path)

    class Moves(Corridor):
        def reset(self, **options):
            os.chdir("/")
            return super().reset(**options)

    with pytest.warns(RuntimeWarning, match="agent 0: while its environment was reset, .* the working directory .not put back"):
        with robot_of(Recorder(), env=Moves, driver="threads") as robot:
            robot.run(StopAfterEpisodes(2))
    assert os.getcwd() == "/"


def test_an_environment_that_raises_has_its_traces_removed_too(as_before, tmp_path):
    os.chdir(tmp_path)

    def broken():
        os.chdir("/")
        raise OSError("no such place")

    with pytest.warns(RuntimeWarning, match="the working directory .put back"), pytest.raises(OSError, match="no such place"):
        robot_of(Recorder(), env=broken)
    assert os.getcwd() == str(tmp_path)


def test_a_polite_environment_is_not_accused(recwarn):
    with robot_of(dqn(Noisy), off(), env=Noisy, n_agents=2) as robot:
        robot.run(StopAfterSteps(60))
    assert not [one for one in recwarn if "environment" in str(one.message)]


# ------------------------------------------------------------------------------------------ F11: one record that no task can take


def ask_with_one_bad(agent):
    """The third question of agent 3 cannot be answered."""
    comm, agent.answers, agent.failures = agent.helpers["echo"].comm, [], []
    for i in range(5):
        asked = BAD if (agent.index, i) == (3, 2) else i
        try:
            ticket = comm.predict(row(agent, asked))
            agent.answers.append(ticket.out["echo"][ticket.start].tolist())
        except TaskFailed as error:
            agent.failures.append(str(error))


@pytest.mark.parametrize("driver", ["cooperative", "threads", "inline"])
def test_only_the_agent_with_the_bad_record_hears_of_it(driver):
    task = echo_task(bisect=True)
    robot = play(driver, ask_with_one_bad, 8, {"echo": task})
    for agent in robot.agents:
        guilty = agent.index == 3
        assert agent.answers == [[agent.index, i] for i in range(5) if not (guilty and i == 2)]
        assert len(agent.failures) == guilty
    for part in ("predict failed for a batch of 1 requests (agent 3)", "ArithmeticError: the row is bad", "transport_fakes.py"):
        assert part in robot.agents[3].failures[0]
    counters = robot.wrappers["echo"].predictions.counters
    assert (counters.requests, counters.rows, counters.errors) == (40, 40, 1)
    if driver == "cooperative":  # 8, 4 + (2 + (1 + 1) + 2) … of one batch in five
        assert counters.batches == 5
        assert [len(batch) for batch in task.algorithm.batches] == [8, 8, 8, 4, 2, 2, 1, 1, 4, 8, 8]


def test_requests_of_several_rows_and_several_bad_ones():
    """Rows 1, 3, 2, 5 of four agents; the second and the last have a bad row."""
    def ask(agent):
        obs = np.stack([np.full((1, 3, 2, 5)[agent.index], float(agent.index)), np.arange((1, 3, 2, 5)[agent.index])], 1)
        if agent.index % 2:
            obs[-1, 1] = BAD
        try:
            tickets = agent.helpers["echo"].comm.predict_rows((obs,), len(obs))
            agent.got = np.concatenate([t.out["echo"][t.start : t.start + t.rows] for t in tickets])
        except TaskFailed:
            agent.got = None
        agent.asked = obs

    robot = play("cooperative", ask, 4, {"echo": echo_task(bisect=True)})
    for agent in robot.agents:
        assert agent.got is None if agent.index % 2 else np.array_equal(agent.got, agent.asked)
    counters = robot.wrappers["echo"].predictions.counters
    assert (counters.requests, counters.rows, counters.errors) == (4, 11, 2)


def test_noise_stays_with_its_row():
    """Every agent acts in halves as in one batch, where the noise makes some of them explore."""
    class Values(Echo):
        def predict(self, inputs):
            super().predict(inputs)
            return {"q": torch.stack([inputs.obs[:, 0], inputs.obs[:, 0] + 1], 1)}

        def explorer(self):
            return EpsilonGreedy(0.9)

    def acts(bisect, bad):
        def ask(agent):
            comm = agent.helpers["echo"].comm
            (noise,) = comm.wrapper.predictions.explorer.draw(agent.rng, 0, 1)
            try:
                ticket = comm.predict((np.array([agent.index, BAD if agent.index in bad else 1.0]), noise))
                agent.act = ticket.acts[ticket.start]
            except TaskFailed:
                agent.act = None

        robot = play("cooperative", ask, 8, {"echo": echo_task(Values(), bisect=bisect)}, seed=1)
        return [agent.act for agent in robot.agents]

    whole = acts(False, ())
    assert len(set(whole)) == 2
    assert acts(True, (0, 5)) == [None if i in (0, 5) else act for i, act in enumerate(whole)]


def test_a_failure_of_everybody_is_everybodys(monkeypatch):
    task = echo_task(bisect=True)
    monkeypatch.setattr(task, "act", lambda *args: 1 / 0)
    robot = play("cooperative", ask_with_one_bad, 4, {"echo": task})
    assert all(len(agent.failures) == 5 and not agent.answers for agent in robot.agents)


def test_ctrl_c_in_the_midst_of_halves_puts_the_batch_back_as_it_was():
    task = echo_task(bisect=True)
    with Robot(tasks={"echo": task}, agent=Agent, n_agents=4) as robot:
        comms = [agent.helpers["echo"].comm for agent in robot.agents]
        tickets = [comm.put_prediction((np.array([i, BAD if i == 1 else 0.0]),)) for i, comm in enumerate(comms)]
        queue, algorithm = robot.wrappers["echo"].predictions, task.algorithm

        def strike(obs):
            if len(algorithm.batches) == 5:  # 4, 2, 1, 1, and now the second half
                raise KeyboardInterrupt

        algorithm.before = strike
        with pytest.raises(KeyboardInterrupt):
            queue.serve()
        assert [ticket.start for ticket in tickets] == [0, 1, 2, 3] and not any(ticket.error for ticket in tickets)
        algorithm.before = lambda obs: None
        queue.serve()
        for i, ticket in enumerate(tickets):
            assert (ticket.error is not None) if i == 1 else ticket.out["echo"][ticket.start].tolist() == [i, 0]


# ------------------------------------------------------------------------------------------------ F12: learning that goes wrong


class Net(Model):
    """A layer, and a batch norm, whose running statistics every forward pass of an update changes."""

    def __init__(self):
        super().__init__(gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), ACT)
        self.layer, self.norm = fc(3, name="layer"), batch_norm(name="norm")

    def forward(self, obs):
        return self.norm(self.layer(obs))


class Square(Algorithm):
    """loss = mean((net(obs) − 1)²), with Adam, a schedule, and `steps` steps per update. Fails at the loss where an observation
    does."""

    steps = 1

    def __init__(self, model=Net, **options):
        super().__init__(model, lr=Linear(0.1, 0.0, 50), **options)

    def predict(self, inputs):
        return {"y": self.model(inputs.obs)}

    def minibatches(self, batch):
        for _ in range(self.steps):
            yield batch

    def learn(self, batch):
        error = (self.model(batch.obs) - 1) ** 2
        return {"loss": error.mean(), "priority": error.mean(1)}


class Steep(Square):
    """The loss is finite, but its slope is not, where an observation is 0: √|x · w| at 0."""

    def learn(self, batch):
        return {"loss": (batch.obs[0, 0] * self.model.layer.w.sum()).abs().sqrt() + self.model.norm.b.sum()}


def built(algorithm=Square, seed=1, **options):
    task = ComputationTask(algorithm, **options)
    task.build(np.random.SeedSequence(seed))
    return task


def updates(n):
    return [{"obs": np.random.default_rng(i).normal(size=(4, 2)).astype(np.float32)} for i in range(n)]


def spoiled(rows, value=np.nan):
    return {"obs": np.where(np.arange(8).reshape(4, 2) == 5, np.float32(value), rows["obs"])}


def learned(task):
    """What learning has changed."""
    state = task.state_dict()
    return {"networks": state["networks"], "optimizer": state["optimizer"], "updates": task.algorithm.updates,
            "version": task.version}


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_updates_without_a_number_are_as_if_they_had_not_been(value, clip):
    """At the 3rd and the 7th of ten: weights, running statistics, moments, counters and learning rate as without them."""
    with_bad, without = (built(partial(Square, max_grad_norm=clip)) for _ in range(2))
    for i, update in enumerate(updates(10)):
        if i in (3, 7):
            before = with_bad.algorithm.model.weights_hash()
            result = with_bad.learn(spoiled(update, value))
            assert with_bad.algorithm.model.weights_hash() == before
            assert not math.isfinite(result["loss"]) and np.isfinite(result["priority"]).all() and len(result["priority"]) == 4
        else:
            assert with_bad.learn(update)["loss"] == without.learn(update)["loss"]
    assert same(learned(with_bad), learned(without))
    assert with_bad.optimizer.param_groups[0]["lr"] == without.optimizer.param_groups[0]["lr"]
    assert (with_bad.skipped, with_bad.skips, without.skipped) == (2, 0, 0)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_an_infinite_slope_is_found_without_clipping_too(clip):
    task = built(partial(Steep, max_grad_norm=clip))
    before = learned(task)
    assert task.learn({"obs": np.zeros((4, 2), np.float32)})["loss"] == 0
    assert same(learned(task), before) and task.skipped == 1 and not task.learned.step_rates(), "a step that was taken has them"
    task.learn(updates(1)[0])
    assert not same(learned(task), before) and math.isfinite(task.learned.step_rates()["grad_norm"])


def test_one_bad_minibatch_of_an_update_is_left_out_and_the_rest_counts():
    class Second(Square):
        steps = 3

        def learn(self, batch):
            out = super().learn(batch)
            self.updates_seen = getattr(self, "updates_seen", 0) + 1
            return {**out, "loss": out["loss"] * (math.nan if self.updates_seen == 2 else 1)}

    task = built(Second, max_skips=1)
    assert math.isfinite(task.learn(updates(1)[0])["loss"])
    assert (task.algorithm.updates, task.skipped, task.skips) == (2, 1, 0)


def test_after_so_many_updates_in_a_row_it_raises(caplog):
    """A whole update counts once, however many steps it has; a good one between begins the count anew."""
    def many():
        algorithm = Square()
        algorithm.steps = 4
        return algorithm

    task = built(many, max_skips=2)
    good, bad = updates(1)[0], spoiled(updates(1)[0])
    with caplog.at_level(logging.WARNING, "parl_like"):
        for update in (bad, bad, good, bad, bad):
            task.learn(update)
        before = learned(task)
        with pytest.raises(Diverged, match=r"task 'task': loss is nan at optimiser step 4; the weights are unchanged.*\(3 "
                                           r"updates in a row"):
            task.learn(bad)
    assert same(learned(task), before) and (task.skipped, task.skips) == (20, 3)
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["1)", "2)", "4)", "8)", "16)"]
    task.learn(good)
    assert task.skips == 0


def test_without_patience_the_first_raises():
    task = built(max_skips=0)
    before = learned(task)
    with pytest.raises(Diverged, match="task 'task': loss is nan at optimiser step 0; the weights are unchanged"):
        task.learn(spoiled(updates(1)[0]))
    assert same(learned(task), before) and task.skipped == 0
    with pytest.raises(ValueError, match="ComputationTask: max_skips is -1; expected at least 0"):
        ComputationTask(Square, max_skips=-1)


def test_what_was_left_out_is_saved_and_a_checkpoint_of_before_loads():
    task, other = built(), built(seed=2)
    for _ in range(3):
        task.learn(spoiled(updates(1)[0]))
    state = task.state_dict()
    other.load_state_dict(state)
    assert (other.skipped, other.skips) == (3, 3)
    del state["counters"]["skipped"], state["counters"]["skips"]
    other.load_state_dict(state)
    assert (other.skipped, other.skips) == (0, 0)


class Overflow(Noisy):
    """Rewards of which one in thirty is infinite as it is stored, in single precision."""

    def step(self, act):
        obs, rew, *rest = super().step(act)
        return obs, 1e39 if self.np_random.random() < 1 / 30 else rew, *rest


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
def test_a_run_survives_infinite_rewards_also_with_priorities(driver):
    buffer = partial(PrioritizedReplayBuffer, alpha=0.6)
    with robot_of(dqn(Noisy), off(buffer=buffer), env=Overflow, n_agents=2, driver=driver) as robot:
        robot.run(StopAfterSteps(400))
        metrics, task = robot.metrics(), robot.tasks["RL"]
        assert metrics["RL/learn/skipped"] == task.skipped > 0 and metrics["updates/RL"] > 0
        assert metrics["updates/RL"] + task.skipped == task.learns
        assert all(torch.isfinite(p).all() for p in task.algorithm.parameters())


# --- and in a run of the lab: back to the last checkpoint, once


class Config(configs.ExperimentConfig, frozen=True, kw_only=True):
    bad_from: int = 10**9
    bad_until: int = 10**9


class Turning(Square):
    """Its loss is no number between two counts of updates; those are not saved, so a robot that is loaded does not come there
    again."""

    transient = ("count",)

    def __init__(self, begin, end):
        super().__init__(partial(Plain, Noisy.observation_space))
        self.begin, self.end, self.count = begin, end, 0

    def predict(self, inputs):
        return {"act": torch.zeros(len(inputs.obs), dtype=torch.int64)}

    def learn(self, batch):
        self.count += 1
        loss = (self.model.w.sum() - batch.rew.mean()) ** 2
        return {"loss": loss * (math.nan if self.begin < self.count <= self.end else 1)}


def build(config):
    task = ComputationTask(lambda: Turning(config.bad_from, config.bad_until), off(), max_skips=3)
    return Robot(Noisy, tasks={"RL": task}, n_agents=config.n_agents, seed=config.seed, trace=True)


def lab_run(monkeypatch, tmp_path, **config):
    """Updates are every 4 steps, from step 4 on; checkpoints every 50."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiments, "_registered", {})
    monkeypatch.setattr(experiments, "_modules", {})
    monkeypatch.setattr(plots, "matplotlib_missing", lambda: True)
    base = {"total_steps": 200, "n_agents": 1, "checkpoint_every": 50, "metrics_every": 10, "tensorboard": False}
    one = Experiment(name="turning", robot="turning", description="", expect={}, config=base)
    experiments.register(one, module=sys.modules[__name__])
    stream = io.StringIO()
    code = runner.train(one, configs.resolve(Config, one.config, {"run_dir": "run", **config}), stream=stream)
    return code, RunDir(tmp_path / config.get("run_dir", "run")), stream.getvalue()


def steps_of(run):
    return [int(line.partition(",")[0]) for line in run.metrics_file.read_text().splitlines()[1:]]


def test_a_run_that_diverges_goes_back_once_and_on(monkeypatch, tmp_path):
    """Updates 20 … 23 fail, at steps 80 … 92: from 92 it goes back to the checkpoint after 50."""
    code, run, screen = lab_run(monkeypatch, tmp_path, bad_from=19, bad_until=23)
    assert code == 0 and run.info().state == "finished"
    assert "loss is nan" in screen and "once, training goes back to the checkpoint of step 52" in screen
    (event,) = [line for line in (run.path / "events.jsonl").read_text().splitlines() if "rolled back" in line]
    assert '"step":52,"reached":92' in event.replace(" ", "")
    assert steps_of(run) == sorted(set(steps_of(run))) and steps_of(run)[-1] >= 200
    trace = json.loads((run.path / "result.json").read_text())["trace_hash"]
    assert runner.resume("run", {"total_steps": 300}) == 0
    _, straight, _ = lab_run(monkeypatch, tmp_path, run_dir="straight")
    # equal, if the same data had come again
    assert json.loads((straight.path / "result.json").read_text())["trace_hash"] != trace


def test_a_run_that_diverges_again_ends_with_its_own_exit_code(monkeypatch, tmp_path):
    code, run, screen = lab_run(monkeypatch, tmp_path, bad_from=19)
    assert (code, run.info().state) == (4, "failed")
    assert screen.count("goes back to the checkpoint") == 1


def test_without_a_checkpoint_there_is_nothing_to_go_back_to(monkeypatch, tmp_path):
    code, run, screen = lab_run(monkeypatch, tmp_path, bad_from=19, bad_until=23, checkpoint_every=0)
    assert (code, run.info().state) == (4, "failed") and "goes back" not in screen
    assert "cannot be loaded" not in run.log_file.read_text()


def test_a_checkpoint_that_was_damaged_is_not_gone_back_to(monkeypatch, tmp_path):
    def damage(*args):
        for path in (tmp_path / "run" / "checkpoints").glob("0*/*.json"):
            path.write_text("{}")
        return roll_back(*args)

    roll_back = session.Session._roll_back
    monkeypatch.setattr(session.Session, "_roll_back", damage)
    code, run, screen = lab_run(monkeypatch, tmp_path, bad_from=19, bad_until=23)
    assert code == 4 and "loss is nan" in screen and "goes back" not in screen
    assert "the checkpoint of step 52 cannot be loaded" in run.log_file.read_text()


def test_after_going_back_other_data_come():
    """Every generator of the state has moved, everything else has not."""
    with build(Config(run_dir="", total_steps=1, n_agents=2)) as robot:
        robot.run(StopAfterSteps(50))
        state = robot.state_dict()
        moved = session._moved_on(state)
        changed = []

        def compare(a, b, path):
            if isinstance(a, dict):
                for key in a:
                    compare(a[key], b[key], (*path, key))
            elif not np.array_equal(np.asarray(a), np.asarray(b)):
                changed.append(path[-2])

        compare(state, moved, ("", ""))
        assert set(changed) <= {"rng", "noise_rng"} and len(changed) >= 5
        robot.load_state_dict(moved)
        robot.run(StopAfterSteps(20))
