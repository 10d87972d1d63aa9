"""The tables "Errors" of docs/own/: each message that they show is brought about by its mistake, and each line is tried."""

import re
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import prose
import pytest
import torch

from parl_like import (
    Agent,
    Algorithm,
    ComputationTask,
    Hook,
    Model,
    OffPolicyHelper,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    Robot,
    Spec,
    Window,
    create_algorithm_func,
    layers,
)
from parl_like.algorithms import DQN
from parl_like.data.transforms import FrameStacker, FunctionalReward, ImageScale, ObservationNormalizer, ObservationTransform
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.lab import config as configs
from parl_like.lab import experiment, user_experiments
from parl_like.learning.explorers import EpsilonGreedy, Explorer
from parl_like.learning.model import ArrayModel
from parl_like.models import MLPQ
from parl_like.robots import single
from parl_like.run import diagnosis

PAGES = sorted((prose.ROOT / "docs" / "own").glob("*.md"))
CELL = re.compile(r"^\| (.+?) (?<!\\)\| ", re.MULTILINE)


class Ends(gym.Env):
    """Gives what it is told to, in episodes of four steps."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)
    reset_gives = step_gives = None
    rew = 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return (np.zeros(2, np.float32), {}) if self.reset_gives is None else self.reset_gives

    def step(self, act):
        self.steps += 1
        obs = np.full(2, self.steps / 9, np.float32) if self.step_gives is None else self.step_gives
        return obs, self.rew, self.steps == 4, False, {}


def made(**attributes):
    """A class of environments with these attributes."""
    return type("Made", (Ends,), attributes)


def learned(env=Ends, algorithm="DQN", steps=60, **options):
    """Run a robot for some steps, with updates."""
    few = {"warmup": 8, "batch_size": 8} if algorithm != "PPO" else {}
    with Robot.of(algorithm, env, seed=0, n_agents=options.pop("n_agents", 1), **few, **options) as robot:
        robot.run(steps)


def run(agent, tasks=("goal",), helper=OffPolicyHelper, algorithm=DQN, model=MLPQ, env=Ends, iterate=False, **options):
    """Run a robot with tasks of its own."""
    func = create_algorithm_func(model, {"obs": Ends.observation_space, "act": Ends.action_space}, algorithm, options)
    with Robot(env, agent=agent, tasks={name: ComputationTask(func, helper) for name in tasks}, seed=0) as robot:
        robot.train_iter() if iterate else robot.run(60)


class Looped(Agent):
    """Does as `act` and `store` say at each step."""

    def run_one_episode(self):
        helper = self.helpers["goal"]
        obs, _ = self.env.reset()
        done = False
        while not done:
            act = self.choose(helper, obs)
            obs_next, rew, terminated, truncated, info = self.env.step(act)
            self.keep(helper, obs, act, rew, obs_next, terminated, truncated, info)
            obs, done = obs_next, terminated or truncated

    def choose(self, helper, obs):
        return helper.predict(obs)

    def keep(self, helper, *row):
        helper.store(*row)


class Swapped(Looped):
    def keep(self, helper, obs, act, rew, obs_next, *rest):
        helper.store(obs_next, act, rew, obs, *rest)


class Yields(Agent):
    def run_one_episode(self):
        yield self.env.reset()


class Idle(Agent):
    def run_one_episode(self):
        pass


class Misnamed(Agent):
    def run_one_episode(self):
        self.helpers["gaol"].predict(self.env.reset()[0])


class AsksInside(DQN):
    """Asks a helper from `learn`, where no agent is."""

    robot = None

    def learn(self, batch):
        AsksInside.robot.agents[0].helpers["RL"].predict(np.zeros(2, np.float32))
        return super().learn(batch)


def asks_inside():
    with Robot.of(AsksInside, Ends, warmup=8, batch_size=8, n_agents=1) as robot:
        AsksInside.robot = robot
        robot.run(60)


class NoQ(Model):
    pass


class Wide(MLPQ):
    def q(self, obs):
        q = super().q(obs)
        return torch.cat([q, q[:, :1]], 1)


class Unreached(Model):
    """Has a layer that nothing calls when it is built."""

    def __init__(self, obs, act):
        super().__init__(obs, act)
        self.body, self.other = layers.fc(int(act.n)), layers.fc(3)

    def q(self, obs):
        return self.body(obs)


class Bare(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(1))


class WithBare(MLPQ):
    def __init__(self, obs, act):
        super().__init__(obs, act)
        self.bare = Bare()


class Half(DQN):
    """Learns some of its parameters alone."""

    def parameters(self):
        return iter(list(self.model.parameters())[:1])


class Values(ArrayModel):
    def __init__(self, obs, act):
        super().__init__(obs, act)
        self.add_array("q", np.zeros((2, 2)))


def assigned():
    Values(gym.spaces.Discrete(2), gym.spaces.Discrete(2)).q = np.ones((2, 2))


class Nan(DQN):
    def learn(self, batch):
        return {"loss": super().learn(batch)["loss"] * float("nan")}


class Scratch(Algorithm):
    window = Window(in_order=True)

    def explorer(self):
        return EpsilonGreedy()

    def predict(self, inputs):
        return {"q": self.model.q(inputs.obs)}

    def learn(self, batch):
        return {"loss": self.model.q(batch.obs).mean()}


class Held(Explorer):
    reads = "q"
    noise = Spec("noise", (), np.dtype(np.float64))


def assigned_setting():
    with Robot.of("DQN", Ends, explorer=EpsilonGreedy(0.1), n_agents=1) as robot:
        robot.agents[0].helpers["RL"].explorer.random_ties = True


def assigned_n_step():
    with Robot.of("DQN", Ends, n_agents=1) as robot:
        robot.tasks["RL"].algorithm.n_step = 3


class NoApply(ObservationTransform):
    def box(self, name, space):
        return space


class NoBox(ObservationTransform):
    def apply(self, name, x):
        return x


class Given(OffPolicyHelper):
    given_on = ("learn_every",)

    def __init__(self, **options):
        super().__init__(learn_every=None, **options)


class Extra(Looped):
    def keep(self, helper, *row):
        helper.store(*row, extra={"more": 1})


class PriorityLess(DQN):
    def learn(self, batch):
        return {"loss": super().learn(batch)["loss"]}


class Longest(Hook):
    def post_step(self, agent):
        pass


class Asking(Hook):
    def post_act(self, agent):
        agent.helpers["RL"].predict(np.zeros(2, np.float32))


def registering(tmp_path, text, name="mine_of_pages.py", word=""):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    user_experiments.chosen(f"{file}{word}")


TWO = ("from parl_like import Experiment, register\n"
       "register(Experiment(name='a', robot='single'))\nregister(Experiment(name='b', robot='single'))\n")


def in_a_run(tmp_path):
    for name in ("run.json", "config.yaml"):
        (tmp_path / name).write_text("", encoding="utf-8")
    registering(tmp_path, TWO)


def elsewhere(tmp_path):
    (tmp_path / "there.py").write_text("", encoding="utf-8")
    source = experiment.ExperimentSource(file=str(tmp_path / "there.py"), sha256="0" * 64)
    user_experiments.of_run(tmp_path, "my-corridor", source)


def built(**options):
    config = configs.resolve(single.Config, {"algorithm": "DQN", **options})
    single.build(config).close()


def evaluated():
    with Robot.of("DQN", Ends()) as robot:
        robot.evaluate(1)


OFF = {"helper": partial(OffPolicyHelper, warmup=8, batch_size=8)}
CASES = {
    "environment": {
        "expected the pair (observation, info)": lambda: learned(made(reset_gives=np.zeros(3))),
        "field 'obs_next': expected …, got …": lambda: learned(made(step_gives=np.zeros(3, np.float32))),
        "gave the reward None": lambda: learned(made(rew=None)),
        "expected a finite number": lambda: learned(made(rew=float("inf"))),
        "action outside the space": lambda: run(type("Far", (Looped,), {"choose": lambda *_: 7}), **OFF),
        "agents cannot share one environment": lambda: learned(Ends(), n_agents=2),
        "is not registered with gymnasium, so it cannot be made a second time": evaluated,
    },
    "agent": {
        "expected the observation that was acted on, got the one that the environment gave last": lambda: run(Swapped, **OFF),
        "run_one_episode is a generator": lambda: run(Yields),
        "run_one_episode returned … times without an environment step or a request": lambda: run(Idle),
        "WrongCaller": asks_inside,
        "and none asks for an update": lambda: run(Looped, helper=partial(OffPolicyHelper, learn_every=None), iterate=True),
        "no task 'gaol'; did you mean 'goal'?": lambda: run(Misnamed),
    },
    "network": {
        "DQN calls q(obs) -> [N, A] …, and Dueling has no q": lambda: learned(model=type("Dueling", (NoQ,), {})),
        "expected (2, 2) for a batch of 2 rows, got (2, 3)": lambda: learned(model=Wide),
        "has no parameters yet": lambda: learned(model=Unreached),
        "has parameters … but no reset_parameters()":
            lambda: WithBare(Ends.observation_space, Ends.action_space).clone(copy=False),
        "no optimiser holds …": lambda: learned(algorithm=Half),
        "cannot assign Values.q, an array of the model": assigned,
    },
    "algorithm": {
        "calls q(obs) -> [N, A] …, and … has no q": lambda: learned(model=NoQ),
        "reads 'q' of the prediction, which has …": lambda: learned(algorithm="PPO", explorer=EpsilonGreedy()),
        "learns from rows in order (in_order), OffPolicyHelper sends random ones": lambda: run(Looped, algorithm=Scratch),
        "Robot.of: Q is no algorithm of those that it knows, nor made from one":
            lambda: Robot.of(type("Q", (Scratch,), {}), Ends),
        "no optimiser holds …": lambda: learned(algorithm=Half),
        "loss is nan at optimiser step": lambda: learned(algorithm=Nan),
    },
    "explorer": {
        "has a noise spec but no draw()": lambda: learned(explorer=Held()),
        "Held reads 'q' of the prediction, which has logits": lambda: learned(algorithm="PPO", explorer=Held()),
        "cannot be assigned once its helper has joined the task": assigned_setting,
        "expected an Explorer": lambda: OffPolicyHelper(explorer=0.1),
    },
    "transform": {
        "write apply(self, name, x)": lambda: learned(transforms=[NoApply()]),
        "write box(self, name, space)": lambda: learned(transforms=[NoBox()]),
        "field 'obs.x': expected one of …": lambda: learned(transforms=[ObservationNormalizer(fields=("obs.x",))]),
        "stands after …; put it before": lambda: learned(transforms=[ImageScale(), FrameStacker(2)]),
        "expected numbers, got NaN": lambda: learned(transforms=[FunctionalReward(lambda rew: rew * np.nan)]),
        "keep statistics, and each worker process would count":
            lambda: learned(transforms=[ObservationNormalizer()], driver="processes"),
    },
    "helper": {
        "AfterEpisodes: learn_every cannot be set": lambda: type("AfterEpisodes", (Given,), {})(learn_every=3),
        "learns from rows in order (in_order), … sends random ones": lambda: run(Looped, algorithm=Scratch),
        "store got extra […]; expected […]": lambda: run(Extra),
        "info with …; let every step give it": lambda: run(Looped, helper=partial(OffPolicyHelper, store_info=("x",))),
        "buffer could not be made … expected what takes size, lanes and a generator":
            lambda: run(Looped, helper=partial(OffPolicyHelper, buffer=lambda size: ReplayBuffer(size))),
        "warmup (…) or batch_size (…) is above size": lambda: OffPolicyHelper(size=10, warmup=20),
        "a prioritised buffer needs a":
            lambda: run(Looped, helper=partial(OffPolicyHelper, warmup=8, batch_size=8, buffer=PrioritizedReplayBuffer),
                        algorithm=PriorityLess),
    },
    "hook": {
        "Longest.post_step is no stage": lambda: learned(hooks=[Longest()]),
        "is no hook; expected objects of classes made from parl_like.Hook": lambda: learned(hooks=[Asking]),
        "cannot be assigned": assigned_n_step,
        "a helper was asked from a hook or a stop condition": lambda: learned(hooks=[Asking()], driver="threads"),
        "a stop condition was composed with …": lambda: StopAfterSteps(5) | 3,
    },
    "experiment": {
        "registers no experiment": lambda tmp: registering(tmp, "x = 1"),
        "has the experiments …; write …:a": lambda tmp: registering(tmp, TWO, "two_of_pages.py"),
        "there is another module …; rename the file": lambda tmp: registering(tmp, TWO, "json.py"),
        "is in the run directory …, and nothing in one is imported": in_a_run,
        "give --from …, if you trust it": elsewhere,
        "is given in Python only": lambda: built(extras=[1]),
        "has no key": lambda: built(nothing=1),
    },
}


def shown(page):
    """The messages in the first cells of a page's table of errors."""
    table = page.read_text(encoding="utf-8").partition("\n## Errors\n")[2]
    return [text for cell in CELL.findall(table) for text in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_line_of_a_table_is_tried(page):
    assert shown(page) == list(CASES.get(page.stem, {}))


def said(error):
    """What an error and its causes say, with their kinds."""
    while error is not None:
        yield f"{type(error).__name__}: {error}"
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(("page", "message"), [(page, message) for page, there in CASES.items() for message in there])
def test_a_mistake_brings_about_what_the_page_shows(page, message, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for kept in ("_registered", "_modules", "_brought"):
        monkeypatch.setattr(experiment, kept, {})
    monkeypatch.setattr(diagnosis, "UNASKED", 100)
    mistake = CASES[page][message]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            mistake(tmp_path) if page == "experiment" and mistake.__code__.co_argcount else mistake()
        except Exception as error:  # noqa: BLE001  whatever it is, its text is looked at
            texts = list(said(error))
        else:
            texts = [str(one.message) for one in warned]
    pieces = [piece.strip() for piece in message.split("…")]
    assert any(re.search(".*".join(map(re.escape, pieces)), text, re.DOTALL) for text in texts), texts
