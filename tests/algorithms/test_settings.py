"""Every constructor argument of every algorithm, assigned once its task is built: the next updates go by it, or the assignment is
refused by name."""

import inspect
from functools import cache, partial

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import Algorithm, ComputationTask, Linear, Robot, algorithms
from parl_like.algorithms import DQN, MBPO, EnsembleLearner
from parl_like.algorithms.dynamics import DynamicsLearner
from parl_like.algorithms.world_model import WorldModel
from parl_like.drivers.workers.proxies import AlgorithmProxy
from parl_like.learning.algorithm import Loss
from parl_like.learning.model import ArrayModel
from parl_like.models import MLPQ, MLPActorQ
from parl_like.models.dynamics import Dynamics, EnsembleDynamics, Trunk
from parl_like.models.thinker_net import ThinkerNet
from parl_like.robots.single import DEFAULTS

N_UPDATES = 4
NUMBERS = gym.spaces.Box(-1, 1, (3,), np.float32)
TEAM = gym.spaces.Dict(obs=gym.spaces.Box(-1, 1, (2, 3), np.float32), state=NUMBERS)


class World(gym.Env):
    """Three numbers, random rewards; an episode terminates in every seventh step, and another one is truncated."""

    def __init__(self, act, obs):
        self.observation_space, self.action_space = obs, act

    def seen(self):
        if isinstance(self.observation_space, gym.spaces.Discrete):
            return int(self.np_random.integers(5))
        shapes = {name: space.shape for name, space in getattr(self.observation_space, "spaces", {"": NUMBERS}).items()}
        seen = {name: self.np_random.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
        return seen.get("", seen)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen(), {}

    def step(self, act):
        chance = self.np_random.random()
        return self.seen(), float(self.np_random.normal() + np.sum(act)), chance < 1 / 7, chance > 6 / 7, {}


OPTIONS = {
    "DQN": dict(target_period=3, lr=0.05), "C51": dict(lr=0.3),
    **dict.fromkeys(("R2D2", "RSAC", "RTD3"), dict(sequence=4, burn_in=2)),
    "MPO": dict(target_period=2),
    "PPO": dict(epochs=2, minibatches=2, kl_weight=0.1, dual_clip=2.0, value_clip=0.1, clip=0.05, lr=0.01, adaptive_kl=1e-4),
    "PPG": dict(epochs=2, minibatches=2, policy_updates=2, aux_epochs=1, aux_minibatches=2, clip=0.05, lr=0.01),
    "APPO": dict(c_bar=0.05), "IMPALA": dict(c_bar=0.05, return_norm="targets", norm_floor=3.0),
    "VMPO": dict(epochs=2, minibatches=2), "TRPO": dict(delta=10.0), "NPG": dict(value_epochs=1, value_minibatches=2),
    "ES": dict(population=4), "ARS": dict(population=4), "CEM": dict(population=4, elite=0.5, extra=0.1),
    "REINFORCE": dict(baseline=True), "DecisionTransformer": dict(target_return=2.0),
    "DiscreteBCQ": dict(threshold=0.01), "PLAS": dict(behavior_updates=2, delay=1), "BCQ": dict(behavior_updates=2),
    "IQL": dict(weight_max=1.5), "CRR": dict(weight_max=1.5), "MARWIL": dict(weight_max=1.5),
    "PSRL": dict(every=4), "SAC": dict(delay=2), "REDQ": dict(delay=2), "CrossQ": dict(delay=2),
}
"""Arguments of an algorithm and, where they have those, of the classes made from it, with which all settings matter soon."""
HELPERS = {"OffPolicyHelper": dict(size=500, batch_size=16, learn_every=4, warmup=32, updates=1),
           "OnPolicyHelper": dict(unroll=16),
           "EpisodicHelper": dict(episodes=1), "PopulationHelper": {}, "OnlineHelper": {}}
OTHER = {"tau": 0.5, "target_kl": 1e-9, "minibatch_rows": 5, "dual_clip": 1.01, "value_clip": 1e-6, "max_grad_norm": 1e-3,
         "adaptive_kl": 10.0, "target_entropy": 1.0, "reduction": "sum", "return_norm": "batch", "backtracks": None, "eps": None,
         "epsilon_eta": 5.0, "actor_lr": 0.0, "alpha_lr": 0.0, "clip": 1e-4, "subset": 1, "n_step": 2, "faithful": True,
         "norm_floor": 100.0, "floor": -1e-3, "cg_steps": 1, "double": False, "rho_bar": 0.1, "c_bar": 0.1, "delta": 1e-6,
         "shrink": 0.1, "lam": 0.1, "beta": 0.3, "threshold": 1.0, "sequence": 3}
"""What is assigned; else half of a number, one more than a whole one, the other of two."""


def options_of(name, kind):
    named = [one.__name__ for one in reversed(getattr(algorithms, name).__mro__) if one.__name__ in OPTIONS]
    given = {key: value for one in named for key, value in OPTIONS[one].items()}
    return {key: value for key, value in given.items() if key in kind}


def arguments(kind):
    return {name: one.default for name, one in inspect.signature(kind).parameters.items() if one.kind is one.KEYWORD_ONLY}


def world_of(name):
    """An environment that the member can learn in."""
    helper = DEFAULTS[name]["helper"]
    act = gym.spaces.MultiDiscrete([2, 3]) if name in ("BDQ", "VDN", "QMIX") else gym.spaces.Discrete(3)
    if name == "MADDPG":
        act = gym.spaces.Box(-2, 2, (2, 1), np.float32)
    if helper == "OffPolicyHelper" and DEFAULTS[name]["models"][0] in ("MLPActorQ", "MLPCrossQ", "MLPLatentActorQ",
                                                                                      "RecurrentActorQ"):
        act = gym.spaces.Box(-2, 2, (2,), np.float32)
    team = DEFAULTS[name]["models"][0].startswith(("MLPTeam", "MLPCentral"))
    table = DEFAULTS[name]["models"][0] in ("QTable", "VTable")
    return partial(World, act, TEAM if team else gym.spaces.Discrete(5) if table else NUMBERS)


@cache
def recorded(name):
    """What builds the algorithm, and the rows of its first updates."""
    kind, helper, env = getattr(algorithms, name), DEFAULTS[name]["helper"], world_of(name)
    if helper == "OnlineHelper":
        rng = np.random.default_rng(0)
        rows = [{"obs": rng.integers(5, size=4), "act": rng.integers(3, size=4), "rew": rng.normal(size=4), "obs_next":
                 rng.integers(5, size=4), "terminated": rng.random(4) < 0.5 * (name != "PSRL"), "truncated": np.zeros(4, bool),
                 "next_act": rng.integers(3, size=4), "has_next": np.ones(4, bool), "lane": np.zeros(4, np.int64),
                 "first": np.arange(4) == 0} for _ in range(N_UPDATES)]
    options = {**options_of(name, arguments(kind)), **{f"{helper}.{key}": value for key, value in HELPERS[helper].items()}}
    options |= {"critic_hidden": (32, 32)} if name == "CrossQ" else {}
    n_agents = 4 if helper == "PopulationHelper" else 1 if name == "PSRL" else 2
    with Robot.of(name, env, n_agents=n_agents, total_steps=2_000, **options) as robot:
        if helper == "OnlineHelper":
            return robot.tasks["RL"].source, rows
        rows, task = [], robot.tasks["RL"]
        learn = task.learn

        def watched(batch):
            rows.append({key: np.array(value) for key, value in batch.items()})
            return learn(batch)
        task.learn = watched
        while len(rows) < N_UPDATES:
            robot.run(200)
        return task.source, rows[:N_UPDATES]


def learned(source, updates, change=lambda algorithm: None):
    """Yields after each of these updates all that a new task holds and said, after `change`."""
    task = ComputationTask(source)
    task.build(np.random.SeedSequence(1))
    change(task.algorithm)
    for rows in updates:
        said = task.learn(dict(rows))
        nets = {f"{name}.{key}": value.clone() for name, net in task.algorithm.networks().items()
                for key, value in net.state_dict().items()}
        own = {name: value.detach().clone() for name, value in vars(task.algorithm).items()
               if isinstance(value, torch.nn.Parameter)}
        yield said, {**nets, **own}


@cache
def untouched(name):
    """What is learned of these rows without an assignment, which no case of the algorithm need compute again."""
    torch.manual_seed(0)
    return [*learned(*recorded(name))]


def differ(one, other):
    return str(one[0]) != str(other[0]) or any(not torch.equal(value, other[1][name]) for name, value in one[1].items())


def other_than(name, value):
    if name in OTHER:
        return OTHER[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return value / 2 if isinstance(value, float) and value else 0.37


ACTING = ("target_return",)  # settings that only `predict` reads: their own tests say what they change

CASES = [(name, key) for name in DEFAULTS for key in arguments(getattr(algorithms, name))]


@pytest.mark.parametrize(("name", "key"), CASES, ids=str)
def test_an_assigned_setting_changes_the_next_updates_or_is_refused_by_name(name, key):
    source, updates = recorded(name)
    kind = getattr(algorithms, name)
    refused, assigned = [], []

    def assign(algorithm):
        value = vars(algorithm).get(key, {**arguments(kind), **source.algorithm_args}[key])
        assigned[:] = value, other_than(key, value)
        try:
            setattr(algorithm, key, assigned[1])
        except AttributeError as error:
            refused.append(str(error))

    before, differs = untouched(name), False
    torch.manual_seed(0)
    for n, both in enumerate(zip(before, learned(source, updates, assign), strict=True)):
        differs = differ(*both)
        if differs or refused and n == 1:  # two updates show that what was refused has changed nothing
            break
    if refused:
        assert key in refused[0] and kind.__name__ in refused[0] and any(w in refused[0] for w in (";", ":")), refused
        assert not differs
    elif key in ACTING:
        assert not differs
    else:
        assert differs, f"{name}.{key} = {assigned[1]} (was {assigned[0]}) changes nothing"


LIVE = {"DQN": "tau target_period double lr max_grad_norm", "PPO": "clip epochs entropy gamma lam value_weight lr target_kl",
        "SAC": "tau lr actor_lr alpha_lr target_entropy delay max_grad_norm", "TD3": "tau lr actor_lr delay smoothing",
        "FQF": "lr fraction_lr", "VMPO": "lr dual_lr epochs", "MPO": "lr actor_lr dual_lr samples", "QLearning": "lr gamma"}


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in LIVE.items() for key in keys.split()])
def test_what_can_be_read_as_it_goes_is(name, key):
    """So that a refusal is no way around the work."""
    source, _ = recorded(name)
    task = ComputationTask(source)
    task.build()
    setattr(task.algorithm, key, OTHER.get(key, 1))
    assert getattr(task.algorithm, key) == OTHER.get(key, 1)


@pytest.mark.parametrize("name", [name for name in DEFAULTS if "lr" in arguments(getattr(algorithms, name))
                                  and name != "ThompsonBandit"])  # its posterior needs the rate 1, so another is refused
def test_a_learning_rate_of_zero_stops_all_that_it_moves(name):
    """All rates of several optimisers; NPG and TRPO move the policy by `delta`."""
    source, updates = recorded(name)
    rates = [key for key in arguments(getattr(algorithms, name)) if key.endswith("lr") or key == "delta"]

    def stop(algorithm):
        for key in rates:
            setattr(algorithm, key, 0.0)

    task = ComputationTask(source)
    task.build(np.random.SeedSequence(1))
    stop(task.algorithm)
    model = task.algorithm.model
    weights = {key: value.detach().clone() for key, value in model.named_parameters()}
    table = model.table.copy() if isinstance(model, ArrayModel) else None
    for rows in updates:
        task.learn(dict(rows))
    assert all(torch.equal(value, weights[key]) for key, value in model.named_parameters())
    assert table is None or (model.table == table).all()


# ------------------------------------------------------------------------------------------------------------ what users write


class Plain(Algorithm):
    """loss = Σ w, so a step of SGD moves w by its learning rate."""

    def __init__(self, power=2, **options):
        super().__init__(MLPQ(gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2), ()), **options)
        self.power = power

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.5)

    def learn(self, batch):
        return {"loss": sum(p.sum() for p in self.model.parameters())}


ROWS = {"obs": np.zeros((2, 3), np.float32)}


def moved(task):
    before = next(task.algorithm.model.parameters()).detach().clone()
    task.learn(ROWS)
    return round(float((before - next(task.algorithm.model.parameters()).detach()).max()), 6)


def test_an_optimiser_of_ones_own_keeps_its_rate_until_lr_is_assigned():
    """0.5 where lr says 0.25: the group has twice the algorithm's rate, and goes on so."""
    task = ComputationTask(Plain(lr=0.25))
    assert moved(task) == 0.5
    task.optimizer.param_groups[0]["lr"] = 0.125  # as torch's own schedules do it
    assert moved(task) == 0.125
    task.algorithm.lr = 0.5
    assert moved(task) == 1.0
    task.algorithm.lr = Linear(0.5, 0.0, 10)
    assert [moved(task), moved(task)] == [0.7, 0.6]  # a share of the schedule, whose count is `updates`: 3 and 4
    task.algorithm.lr = 0.25  # back from the schedule
    assert moved(task) == 0.5


def test_a_loaded_task_has_its_own_rate_and_one_that_was_assigned_goes_into_the_checkpoint():
    first = ComputationTask(Plain(lr=0.25))
    moved(first)
    other = ComputationTask(Plain(lr=0.5))
    other.load_state_dict(first.state_dict())
    assert other.algorithm.lr == 0.5 and moved(other) == 0.5
    first.algorithm.lr = 0.125
    again = ComputationTask(Plain(lr=0.25))
    again.load_state_dict(first.state_dict())
    assert again.algorithm.lr == 0.125 and moved(again) == 0.25
    before = first.state_dict()
    del before["rates"]  # of a version before
    again.load_state_dict(before)


@pytest.mark.parametrize(("key", "value", "error"), [("lr", "fast", TypeError), ("lr", -1.0, ValueError), ("lr", None, TypeError),
                                                     ("max_grad_norm", 0.0, ValueError), ("actor_lr", "x", TypeError),
                                                     ("delay", 0, ValueError)])
def test_what_is_no_rate_is_refused_where_it_is_assigned(key, value, error):
    source, _ = recorded("SAC")
    task = ComputationTask(source)
    with pytest.raises(error):
        setattr(task.algorithm, key, value)


def test_attributes_of_a_users_own_class_are_assigned_as_ever():
    class Mine(DQN):
        own_settings = ("gamma",)

        def __init__(self, model, *, boost=1.0, **options):
            super().__init__(model, **options)
            self.boost, self.gamma = boost, 0.5  # its own use of that name

        def process(self, batch):
            batch = super().process(batch)
            batch.target = batch.target + self.boost * self.gamma
            self.seen = len(batch)
            return batch

    algorithm = Mine(MLPQ(gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(3), (8,)), n_step=3)
    task = ComputationTask(algorithm)
    algorithm.boost, algorithm.gamma, algorithm.anything = 3.0, 0.9, "new"
    _, updates = recorded("DQN")
    task.learn(updates[0])
    assert algorithm.seen == 16
    with pytest.raises(AttributeError, match=r"Mine\.n_step cannot be assigned .* build a new one, Mine\(…, n_step=3\)"):
        algorithm.n_step = 3
    for name in ("model", "window", "losses", "moves", "adam_eps"):
        with pytest.raises(AttributeError, match=rf"Mine\.{name} cannot be assigned once the task is built: .+;"):
            setattr(algorithm, name, None)


@pytest.mark.parametrize("declared", [True, False])
def test_a_name_of_ours_that_a_users_class_has_for_itself_is_declared(declared):
    """Its code reads and sets the name in both cases: only the declaration counts."""
    class Mine(DQN):
        own_settings = ("n_step",) if declared else ()

        def process(self, batch):
            self.n_step = getattr(self, "n_step", 0) + 1
            return super().process(batch)

    task = ComputationTask(Mine(MLPQ(gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(3), (8,)), n_step=3))
    _, updates = recorded("DQN")
    if declared:
        task.learn(updates[0])
        assert task.algorithm.n_step == 1
    else:
        with pytest.raises(AttributeError, match=r"if it is an attribute of your own, write own_settings = \('n_step',\)"):
            task.learn(updates[0])


def test_a_clone_that_has_no_task_yet_is_free():
    source, _ = recorded("DQN")
    other = ComputationTask(source).algorithm.clone()
    other.n_step = other.gamma = 3


def test_a_rate_that_no_loss_reads_is_refused():
    class Two(Plain):
        def __init__(self, **options):
            super().__init__(**options)
            self.losses = {"a": Loss(self.model, 0.5, optimizer=torch.optim.SGD)}

        def learn(self, batch):
            return {"a": sum(p.sum() for p in self.model.parameters())}

    class Named(Two):
        def __init__(self, **options):
            super().__init__(**options)
            self.fast = None
            self.losses = {"a": Loss(self.model, "fast", optimizer=torch.optim.SGD)}

    task = ComputationTask(Two(lr=0.1))
    for name in ("lr", "max_grad_norm"):
        with pytest.raises(AttributeError, match=f"none of the losses of Two reads it; let one name it, Loss.*{name}="):
            setattr(task.algorithm, name, 1.0)
    task = ComputationTask(Named(lr=0.25))
    assert moved(task) == 0.25
    task.algorithm.lr = 0.5  # which stands in for `fast`
    assert moved(task) == 0.5
    task.algorithm.fast = 0.125
    assert moved(task) == 0.125
    with pytest.raises(AttributeError, match="none of the losses"):
        task.algorithm.lr = 0.5
    broken = Named()
    broken.losses = {"a": Loss(broken.model, "fats")}
    with pytest.raises(ValueError, match="loss 'a': no attribute 'fats'; did you mean 'fast'"):
        ComputationTask(broken)


OBS, BOX = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Box(-1, 1, (2,), np.float32)
SEVERAL = {
    MBPO: lambda: MLPActorQ(OBS, BOX, (8,)), EnsembleLearner: lambda: EnsembleDynamics(OBS, BOX, (8,)),
    DynamicsLearner: lambda: Dynamics(OBS, BOX, Trunk(OBS, (8,)), (8,)),
    WorldModel: lambda: ThinkerNet(gym.spaces.Box(0, 255, (2, 7, 7), np.uint8), gym.spaces.Discrete(4), channels=8,
                                   strides=(1, 1, 2, 1)),
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_members_of_several_tasks_read_what_can_be_assigned(kind):
    """Those that no robot of one task has: what can be assigned is named by a method other than the constructor, or by a loss."""
    task = ComputationTask(kind(SEVERAL[kind]()))
    algorithm, refused = task.algorithm, set()
    read = {name for one in kind.__mro__ for key, value in vars(one).items() if key not in ("__init__", "fixed_settings")
            for name in getattr(getattr(value, "__code__", None), "co_names", ())}
    read |= {name for loss in (algorithm.losses or {}).values() for name in (loss.lr, loss.max_grad_norm, loss.every)}
    for name, default in arguments(kind).items():
        try:
            setattr(algorithm, name, getattr(algorithm, name, default))
        except AttributeError as error:
            assert f"{kind.__name__}.{name}" in str(error)
            refused.add(name)
    assert {*arguments(kind)} - refused - read - {"lr", "max_grad_norm"} == set()
    assert refused >= {MBPO: {"real", "gamma"}, WorldModel: {"unroll", "value", "nodes"}}.get(kind, set())


# ------------------------------------------------------------------------------------------------------------ drivers, helpers


def test_the_owner_of_shared_parameters_is_stepped_by_its_own_rate_of_now():
    """The second task steps the first one's optimiser, which learns nothing itself meanwhile."""
    first = Plain(lr=0.5)
    second = Plain(lr=0.5)
    second.model = first.model
    tasks = ComputationTask(first), ComputationTask(second)
    assert moved(tasks[1]) == 0.5
    first.lr = 0.25
    assert moved(tasks[1]) == 0.25
    second.lr = 4.0  # it owns none of them
    assert moved(tasks[1]) == 0.25


def test_an_algorithm_that_is_elsewhere_takes_no_settings():
    proxy = AlgorithmProxy(Plain(lr=0.5))
    assert proxy.lr == 0.5
    with pytest.raises(AttributeError, match=r"Plain\.lr cannot be assigned here: the task is in the robot's process"):
        proxy.lr = 0.0
    assert proxy.lr == 0.5


@pytest.mark.parametrize(("driver", "mode", "serve"), [("cooperative", "sync", "central"), ("cooperative", "async", "central"),
                                                       ("threads", "async", "central"), ("processes", "sync", "replica")])
def test_a_rate_of_zero_stops_learning_whoever_acts(driver, mode, serve):
    options = {f"OffPolicyHelper.{key}": value for key, value in HELPERS["OffPolicyHelper"].items()}
    with Robot.of("DQN", partial(World, gym.spaces.Discrete(3), NUMBERS), n_agents=2, total_steps=500, driver=driver, mode=mode,
                  **{**options, "ComputationTask.serve": serve}) as robot:
        task = robot.tasks["RL"]
        robot.run(100)
        before = task.algorithm.model.weights_hash()
        task.algorithm.lr = 0.0
        updates = task.algorithm.updates
        robot.run(100)
        assert task.algorithm.model.weights_hash() == before and task.algorithm.updates > updates > 0
        task.algorithm.lr = 0.1
        robot.run(100)
        assert task.algorithm.model.weights_hash() != before


def test_settings_of_helpers_and_explorers():
    """`learn_every` and the explorer's ε count from the next step on; what the buffer was made for is refused."""
    options = {f"OffPolicyHelper.{key}": value for key, value in HELPERS["OffPolicyHelper"].items()}
    env = partial(World, gym.spaces.Discrete(3), NUMBERS)
    with Robot.of("DQN", env, n_agents=1, total_steps=500, **options, epsilon=0.0) as robot:
        helper, task = robot.agents[0].helpers["RL"], robot.tasks["RL"]
        robot.run(100)
        task.algorithm.lr = 0.0  # so that the best action of an observation stays
        before = task.algorithm.updates
        helper.learn_every = 10
        robot.run(100)
        assert task.algorithm.updates - before in (10, 11)
        taken = []
        seen = World(gym.spaces.Discrete(3), NUMBERS).reset(seed=0)[0]
        robot.agents[0].run_one_episode = lambda env=None: taken.append(helper.predict(seen))
        for name, value in (("size", 3), ("explorer", None), ("transforms", ()), ("extras", ()), ("store_policy", True),
                            ("random_steps", 3), ("obs_space", None)):
            with pytest.raises(AttributeError, match=f"agent 0, task 'RL': {name} of OffPolicyHelper cannot be assigned"):
                setattr(helper, name, value)
        noise = helper.acting.noise
        assert noise.draw() == -1.0 and len(noise.left) > 0
        helper.explorer.epsilon = 1.0
        assert not noise.left and noise.draw() >= 0.0
        with pytest.raises(AttributeError, match=r"EpsilonGreedy\.random_ties cannot be assigned once its helper has joined"):
            helper.explorer.random_ties = True
