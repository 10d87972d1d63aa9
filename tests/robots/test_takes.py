"""What algorithms say that they take is what they take: every combination is built, acts and learns, or is refused."""

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from parl_like import Robot, algorithms, create_algorithm_func
from parl_like.lab.cli import main
from parl_like.learning import action_spaces
from parl_like.models import MLPQ, MLPActorQ, RecurrentQ
from parl_like.robots.single import DEFAULTS

TABLE = {row["algorithm"]: row for row in action_spaces.table()}
INF = np.inf
NUMBERS, IMAGE = Box(-1, 1, (3,), np.float32), Box(0, 255, (3, 12, 12), np.uint8)
ACTIONS = {
    "Discrete": [Discrete(3, start=1)],
    "MultiDiscrete": [MultiDiscrete([2, 3]), MultiDiscrete([[2], [3]], start=[[1], [4]])],
    "MultiBinary": [MultiBinary(2), MultiBinary((2, 1))],
    "Box": [Box(-2, 2, (2,), np.float32), Box(0, 5, (), np.float64), Box(0, 5, (2, 1), np.int64)],
    "unbounded Box": [Box(-INF, INF, (2,), np.float32), Box(np.float32([0, -1]), np.float32([INF, 1]))],
    "Dict, Tuple of choices": [Dict({"a": Discrete(2, start=2), "b": Tuple((MultiDiscrete([2, 3]), MultiBinary(2)))})],
    "Dict, Tuple": [Dict({"a": Discrete(2), "b": Tuple((Box(-1, 1, (1,), np.float32), MultiBinary(2)))})],
}
OBSERVATIONS = {
    "Discrete": [Discrete(4)], "MultiDiscrete": [MultiDiscrete([2, 3])], "MultiBinary": [MultiBinary(3)], "Box": [NUMBERS],
    "unbounded Box": [Box(-INF, INF, (2,), np.float64)],
    "Dict, Tuple of choices": [Tuple((Discrete(2), MultiBinary(2)))],
    "Dict, Tuple": [Dict({"a": NUMBERS, "b": Tuple((Discrete(2, start=3), MultiBinary(2)))})],
}


class Any(gym.Env):
    """Episodes of five steps. Observations are any, but for a `mask`, of which one choice is illegal: to take it is an error."""

    def __init__(self, obs, act):
        self.observation_space, self.action_space = obs, act
        obs.seed(0)

    def obs(self):
        obs = self.observation_space.sample()
        if isinstance(obs, dict) and "mask" in obs:
            obs["mask"] = np.ones_like(obs["mask"])  # of several choices the last one has an illegal alternative
            before = int(self.action_space.nvec[0]) if isinstance(self.action_space, MultiDiscrete) else 0
            self.illegal = int(self.np_random.integers(len(obs["mask"]) - before))
            obs["mask"][before + self.illegal] = 0
        return obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.illegal = 5, None
        return self.obs(), {}

    def step(self, act):
        assert self.action_space.contains(act), act
        assert self.illegal is None or np.ravel(act)[-1] != self.illegal, "an illegal choice"
        self.left -= 1
        return self.obs(), 1.0, False, self.left == 0, {}


def robot(name, obs, act, **more):
    helper = DEFAULTS[name]["helper"]
    small = {"OffPolicyHelper": {"warmup": 8, "batch_size": 8, "learn_every": 4, "OffPolicyHelper.size": 400},
             "OnPolicyHelper": {"unroll": 8}, "PopulationHelper": {"population": 8}}.get(helper, {})
    one = {**dict.fromkeys(("R2D2", "RSAC", "RTD3"), {"sequence": 3, "burn_in": 1}),
           "REDQ": {"updates": 1}, "DroQ": {"updates": 1}, "PPO": {"minibatches": 1},
           "PPG": {"minibatches": 1, "policy_updates": 1}, "CrossQ": {"critic_hidden": [64, 64]},
           "PSRL": {"n_agents": 1}, "DecisionTransformer": {"target_return": 5.0}}.get(name, {})
    return Robot.of(name, lambda: Any(obs, act), seed=0, total_steps=400, **{"n_agents": 2, **small, **one, **more})


def learns(name, obs, act, **more):
    """Builds it, lets it act and learn. Returns the algorithm."""
    with robot(name, obs, act, **more) as made:
        algorithm = made.tasks["RL"].algorithm
        for _ in range(20):
            made.run(20)
            if algorithm.updates:
                break
        assert algorithm.updates, name
        return algorithm


def simplest(row):
    """Observations and actions that this algorithm takes."""
    kind = "Discrete" if "Discrete" in row["actions"] else row["actions"][0]
    return NUMBERS if "Box" in row["observations"] else Discrete(4), ACTIONS[kind][0]


def test_every_algorithm_of_one_task_is_in_the_table():
    """But those of teams, whose observations are joint or have a state."""
    teams = {"VDN", "QMIX", "MADDPG", "MAPPO"}
    assert TABLE.keys() == DEFAULTS.keys() - teams and teams < DEFAULTS.keys()
    assert {name for row in TABLE.values() for key in ("actions", "observations") for name in row[key]} <= set(action_spaces.ALL)


each_once_and_all_variants = pytest.mark.parametrize("variants", [1, pytest.param(None, marks=pytest.mark.slow)],
                                                     ids=["first", "all"])


@each_once_and_all_variants
@pytest.mark.parametrize("name", TABLE)
def test_actions(name, variants):
    """Of each kind all variants, or none; a refusal names who takes them."""
    for kind, spaces in ACTIONS.items():
        for space in spaces[:variants]:
            assert action_spaces.kind_of(space) == kind
            if kind in TABLE[name]["actions"]:
                learns(name, simplest(TABLE[name])[0], space)
                continue
            with pytest.raises(ValueError) as refused:
                robot(name, simplest(TABLE[name])[0], space)
            others = [other for other, row in TABLE.items() if kind in row["actions"]]
            assert f"{kind} actions are taken by {', '.join(others)} (parl-like list --spaces)" in str(refused.value)


@pytest.mark.parametrize("name", ["BCQ", "PLAS", "TD3BC"])
def test_an_action_that_is_a_single_number_is_cloned(name):
    learns(name, simplest(TABLE[name])[0], gym.spaces.Box(-1, 1, (), np.float32))


@pytest.mark.parametrize("name", TABLE)
def test_observations(name):
    row = TABLE[name]
    for kind, spaces in OBSERVATIONS.items():
        for space in spaces:
            if kind in row["observations"]:
                learns(name, space, simplest(row)[1])
            else:
                with pytest.raises(ValueError, match="expected Discrete"):
                    robot(name, space, simplest(row)[1])


@each_once_and_all_variants
@pytest.mark.parametrize("name", TABLE)
def test_images(name, variants):
    row = TABLE[name]
    if "Box" not in row["observations"]:
        with pytest.raises(ValueError, match="expected Discrete"):
            robot(name, IMAGE, simplest(row)[1])
        return
    for space in (Dict({"i": IMAGE, "x": NUMBERS}), IMAGE)[:variants]:
        with robot(name, space, simplest(row)[1]) as made:
            model = made.tasks["RL"].algorithm.model
            assert type(model).__name__.startswith("Conv") == row["images"]
            made.run(4)


@pytest.mark.parametrize("name", TABLE)
def test_masks(name):
    """No illegal choice is taken while agents explore and learn; where masks mean nothing, they are numbers like others."""
    row = TABLE[name]
    act = ACTIONS["MultiDiscrete"][0] if name == "BDQ" else Discrete(3)
    masked = Dict({"mask": MultiBinary(5 if name == "BDQ" else 3), "x": NUMBERS})
    if row["masks"]:
        learns(name, masked, act)
    elif "Discrete" in row["actions"]:
        with pytest.raises(ValueError, match="expected Discrete"):
            robot(name, masked, act)
    else:
        with robot(name, Dict({"mask": Box(0, 1, (2,)), "x": NUMBERS}), simplest(row)[1]) as made:
            assert made.tasks["RL"].algorithm.model.mask is None


@pytest.mark.parametrize("name", TABLE)
def test_memory(name):
    row = TABLE[name]
    obs, act = simplest(row)
    if row["memory"] == "no":
        for model in ("RecurrentActorCritic", "RecurrentQ"):
            with pytest.raises((ValueError, TypeError)):
                learns(name, obs, act, model=model)
        return
    more = {"model": "Recurrent"} if row["memory"] == "yes" else {}
    assert learns(name, obs, act, **more).model.state_specs()
    if row["memory"] == "always":
        with pytest.raises(ValueError, match="memory"):
            robot(name, obs, act, model="MLPQ" if name == "R2D2" else "MLPActorQ")


@pytest.mark.parametrize("build", [
    lambda act: MLPQ(NUMBERS, act), lambda act: MLPActorQ(NUMBERS, act, policy="deterministic"),
    lambda act: RecurrentQ(NUMBERS, act),
    create_algorithm_func(MLPQ, dict(obs=NUMBERS, act=MultiDiscrete([2, 3])), algorithms.DQN, {}),
])
def test_networks_refuse_with_what_fits(build):
    with pytest.raises(TypeError, match=r"MultiDiscrete actions are taken by A2C, .*BDQ, .*PPO, .*\(parl-like list --spaces\)"):
        build() if isinstance(build, create_algorithm_func) else build(MultiDiscrete([2, 3]))


def test_the_command_shows_the_table(capsys):
    assert main(["list", "--spaces", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["algorithms"] == json.loads(json.dumps(action_spaces.table()))
    of = {row["algorithm"]: row["actions"] for row in action_spaces.in_words()}  # each kind once
    assert of["SAC"].endswith("Box, Dict, Tuple") and of["BDQ"].endswith("Dict, Tuple of choices") and of["PPO"] == "any"
    assert main(["list", "--spaces"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ALGORITHM", "ACTIONS", "OBSERVATIONS", "IMAGES", "MASKS", "MEMORY"]
    words = [" ".join(line.split()) for line in lines]
    assert "TD3 Box any as numbers no no" in words and len(lines) == len(TABLE) + 1


class Guarded(gym.Env):
    """Each step one alternative of one choice is illegal; to take it is an error. `legal` says it of an action and a number."""

    def __init__(self, act, size, legal, key):
        self.action_space, self.size, self.legal, self.key = act, size, legal, key
        mask = MultiBinary(size)
        self.observation_space = Dict({"mask": Dict({key: mask}) if key else mask, "x": NUMBERS})

    def obs(self):
        self.shut = int(self.np_random.integers(self.size))
        mask = (np.arange(self.size) != self.shut).astype(np.int8)
        return {"mask": {self.key: mask} if self.key else mask, "x": np.zeros(3, np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 9
        return self.obs(), {}

    def step(self, act):
        assert self.legal(act, self.shut), (act, self.shut)
        self.left -= 1
        return self.obs(), 1.0, False, self.left == 0, {}


@pytest.mark.parametrize(("name", "more"), [("PPO", {}), ("BC", {"random_steps": 1_000}), ("BC", {})],
                         ids=["PPO", "random", "BC"])
@pytest.mark.parametrize(("act", "size", "legal", "key"), [
    (Discrete(3, start=5), 3, lambda act, shut: act != 5 + shut, ""),
    (MultiDiscrete([2, 3], start=[1, 1]), 5, lambda act, shut: [act[0] - 1, 2 + act[1] - 1][shut > 1] != shut, ""),
    (MultiBinary(2), 4, lambda act, shut: act[shut // 2] != shut % 2, ""),
    (Dict({"a": Discrete(3), "b": Box(-1, 1, (1,))}), 3, lambda act, shut: act["a"] != shut, "a"),
    (Tuple((Box(-1, 1, (1,)), Discrete(3, start=1))), 3, lambda act, shut: act[1] - 1 != shut, "1"),
], ids=["Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple"])
def test_masks_are_laid_out_as_the_documents_say(name, more, act, size, legal, key):
    """The rule "Masks" of docs/own: no illegal one is taken, by the policy or at random, before, while and after learning."""
    small = {"unroll": 16, "minibatches": 1} if name == "PPO" else {"warmup": 16, "batch_size": 16, "learn_every": 4}
    with Robot.of(name, lambda: Guarded(act, size, legal, key), seed=0, total_steps=400, n_agents=2, **small, **more) as made:
        made.run(400)
        assert made.tasks["RL"].algorithm.updates and made.tasks["RL"].algorithm.model.mask == "mask"
