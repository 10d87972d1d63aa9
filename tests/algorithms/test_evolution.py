"""ES, CEM and ARS by hand; candidates in one batch; the same search for any number of agents, under any driver, and resumed."""

import sys

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import BatchRule, ComputationTask, Robot, VectorAgent, create_algorithm_func
from parl_like.agents.population import PopulationHelper
from parl_like.algorithms import ARS, CEM, DQN, ES
from parl_like.algorithms.evolution import ranks
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.learning.algorithm import Linear
from parl_like.learning.model import Model
from parl_like.learning.model_check import ContractError
from parl_like.models import MLPQ, GaussianHead, MLPActorCritic, RecurrentActorCritic
from parl_like.values.batch import Batch
from parl_like.values.errors import AgentFailed
from parl_like.values.spec import Spec, SpecError

OBS, BOX = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32)
KINDS = {"es": ES, "cem": CEM, "ars": ARS}
each = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


class Point(Model):
    """θ are two numbers; the action is the first."""

    def __init__(self, obs=OBS, act=BOX):
        super().__init__(obs, act)
        self.theta, self.head = torch.nn.Parameter(torch.zeros(2)), GaussianHead(1, 1)
        self.head.requires_grad_(False)

    def policy(self, obs, state=None):
        out = {"mean": self.theta[:1].expand(len(obs), 1), "log_std": self.theta[1:].expand(len(obs), 1)}
        return out, {}


def update(scores, episodes=1):
    """The rows of a generation, in any order."""
    n = len(scores)
    order = np.random.default_rng(0).permutation(n * episodes)
    return {"candidate": order % n, "episode": order // n, "episodes": np.full(n * episodes, episodes),
            "score": np.asarray(scores, float)[order % n] + order // n}


def task_of(kind, **options):
    torch.manual_seed(0)
    task = ComputationTask(kind(Point(), **options))
    task.build()
    return task


def theta(task):
    return task.algorithm.model.theta.detach().clone()


def offsets(task):
    table = task.algorithm._candidates.table
    return (table[:-1] - table[-1]).clone()


# ---------------------------------------------------------------------------------------------------------------------- hand


def test_ranks_go_from_minus_to_plus_one_half_and_equal_scores_share_theirs():
    """Of 5, 1, 5, 9 the places are 2, 0, 1 or 2 → 1.5, 3, of 3."""
    assert ranks(torch.tensor([5.0, 1.0, 5.0, 9.0])).tolist() == [0.0, -0.5, 0.0, 0.5]


def test_the_first_step_of_es_by_hand():
    """Adam's first step is the rate along the sign of each slope, g = Σ r ε / (n σ²); the centre of the table follows."""
    task = task_of(ES, population=4, std=0.5, lr=0.1)
    noise, scores = offsets(task), np.array([3.0, 1.0, 2.0, 0.0])
    slope = torch.tensor([0.5, -1 / 6, 1 / 6, -0.5]) @ noise / (4 * 0.25)
    result = task.learn(update(scores))
    np.testing.assert_allclose(theta(task), 0.1 * torch.sign(slope), rtol=1e-3)
    assert result["slope"] == pytest.approx(slope.norm().item(), rel=1e-5) and (result["score"], result["best_score"]) == (1.5, 3)
    assert torch.equal(task.algorithm._candidates.table[-1], theta(task)) and task.version == task.algorithm.updates == 1
    after = offsets(task)
    torch.testing.assert_close(after[:2], -after[2:])
    assert not torch.allclose(after, noise)


def test_a_generation_of_cem_by_hand():
    """Of four candidates the two best: their mean, and their deviation number by number with the extra variance."""
    task = task_of(CEM, population=4, elite=0.5, extra=Linear(0.25, 0.0, 2))
    table = task.algorithm._candidates.table.clone()
    best = table[[1, 3]]
    result = task.learn(update([0.0, 2.0, 1.0, 3.0]))
    torch.testing.assert_close(theta(task), best.mean(0))
    expected = ((best[0] - best[1]).square() / 4 + 0.25).sqrt()
    torch.testing.assert_close(task.algorithm._candidates.std, expected)
    assert result["std"] == pytest.approx(expected.mean().item())


def test_a_step_of_ars_by_hand():
    """Pairs (0, 2) and (1, 3) with returns (4, 3.5) and (2, 5): the second has the best of all, though the first is better on
    average; σ_R = 1.5, the step −3 / 1.5 · ε."""
    task = task_of(ARS, population=4, std=0.5, lr=0.1, top=0.5)
    noise = offsets(task)[1] / 0.5
    task.learn(update([4.0, 2.0, 3.5, 5.0]))
    torch.testing.assert_close(theta(task), 0.1 * (2.0 - 5.0) / 1.5 * noise)
    task = task_of(ARS, population=4, lr=0.1)
    task.learn(update([1.0, 1.0, 1.0, 1.0]))
    assert not theta(task).any()  # nothing was better than anything


@each
def test_each_finds_the_top_of_a_hill(kind):
    """Score −(θ₁ − ½)² − (θ₂ + 1)²."""
    options = {ES: dict(lr=0.05, std=0.1), CEM: dict(std=0.5), ARS: dict(std=0.1, lr=0.1)}[kind]
    task = task_of(kind, population=20, **options)
    goal = torch.tensor([0.5, -1.0])
    for _ in range(60):
        task.learn(update(-(task.algorithm._candidates.table[:-1] - goal).square().sum(1).numpy()))
    assert (theta(task) - goal).abs().max() < 0.1


@each
def test_what_others_change_meanwhile_is_kept(kind):
    """As another task that has the same trunk does; without one, CEM's centre is the mean of the best, bit for bit."""
    options = dict(population=4, **({"elite": 0.5} if kind is CEM else {}))
    alone, shared, change = task_of(kind, **options), task_of(kind, **options), torch.tensor([0.3, -0.7])
    for generation in (1, 2):
        best = alone.algorithm._candidates.table[[1, 3]]
        with torch.no_grad():
            shared.algorithm.model.theta += change
        for task in (alone, shared):
            task.learn(update([0.0, 2.0, 1.0, 3.0]))
        torch.testing.assert_close(theta(shared), theta(alone) + generation * change, atol=1e-6, rtol=1e-6)
        assert torch.equal(shared.algorithm._candidates.table[-1], theta(shared))
        assert kind is not CEM or torch.equal(theta(alone), best.mean(0))


@each
def test_a_clone_that_is_newly_initialised_searches_around_its_own_parameters(kind):
    """With the deviation of the beginning, however far the search was."""
    torch.manual_seed(0)
    task = ComputationTask(kind(MLPActorCritic(OBS, BOX, hidden=[4]), population=10, std=0.25))
    task.learn(update(np.arange(10.0)))
    before = task.algorithm._candidates.table.clone()
    same, new = task.algorithm.clone(), task.algorithm.clone(copy=False)
    center, table = new.center().detach(), new._candidates.table
    assert not torch.allclose(center, before[-1]) and torch.equal(table[-1], center)
    assert 0.15 < (table[:-1] - center).std() < 0.35 and (new._candidates.std == 0.25).all()
    for old in (task.algorithm, same):
        assert torch.equal(old._candidates.table, before) and torch.equal(old.center().detach(), before[-1])
    assert torch.equal(same._candidates.std, task.algorithm._candidates.std)


def test_the_score_of_a_candidate_is_the_mean_of_its_episodes():
    """Of 0 and 10, and of 6 and 6: the second is the better one, whose best episode is not."""
    rows = {"candidate": [1, 0, 1, 0], "episode": [0, 0, 1, 1], "episodes": [2] * 4, "score": [6.0, 0.0, 6.0, 10.0]}
    batch = Batch({name: torch.tensor(value) for name, value in rows.items()})
    assert task_of(ES, population=2).algorithm.process(batch).scores.tolist() == [5.0, 6.0]


@each
def test_several_episodes_count_by_their_mean_and_nothing_is_learned_where_one_is_missing(kind):
    scores = np.random.default_rng(0).normal(size=10)
    one, three = task_of(kind, population=10), task_of(kind, population=10)
    one.learn(update(scores))
    three.learn(update(scores - 1.0, 3))  # of 3 episodes with 0, 1 and 2 more
    torch.testing.assert_close(theta(one), theta(three), atol=1e-5, rtol=1e-5)
    rows = {name: column[:-2] for name, column in update(scores, 3).items()}
    before = theta(one)
    assert one.learn(rows) == {} and one.learns == 1 and torch.equal(theta(one), before)
    rows = update(scores, 3)
    first = rows["episode"] == 0  # of every candidate, as when the agents with all the other episodes were told to leave them
    assert one.learn({name: column[first] for name, column in rows.items()}) == {} and torch.equal(theta(one), before)


@each
def test_updates_of_a_restored_task_are_the_same(kind):
    task, other = task_of(kind, population=10), task_of(kind, population=10)
    rng = np.random.default_rng(0)
    for _ in range(3):
        task.learn(update(rng.normal(size=10)))
    other.load_state_dict(task.state_dict())
    assert torch.equal(offsets(task), offsets(other))
    scores = rng.normal(size=10)
    for one in (task, other):
        one.learn(update(scores))
    assert torch.equal(theta(task), theta(other)) and torch.equal(offsets(task), offsets(other))


def test_the_global_generators_are_left_alone():
    task = task_of(CEM, population=10)
    state = torch.get_rng_state()
    task.learn(update(np.arange(10.0)))
    assert torch.equal(torch.get_rng_state(), state)


def test_sizes_that_cannot_be_are_refused():
    for kind, options in ((ES, dict(population=5)), (CEM, dict(population=1)), (ES, dict(std=0.0)), (CEM, dict(elite=0.01)),
                          (CEM, dict(elite=1.0)), (ARS, dict(top=0.0)), (ARS, dict(top=1.5))):
        with pytest.raises(ValueError, match="expected"):
            kind(Point(), **options)


# ---------------------------------------------------------------------------------------------------- candidates in one batch


class Tied(Model):
    """Two layers of one weight."""

    def __init__(self):
        super().__init__(OBS, BOX)
        self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.head = GaussianHead(1, 1)

    def policy(self, obs, state=None):
        mean = self.second(torch.tanh(self.first(obs))).sum(1, keepdim=True)
        return {"mean": mean, "log_std": 0 * mean}, {}


NESTED = gym.spaces.Dict({"x": OBS, "at": gym.spaces.Discrete(3), "mask": gym.spaces.MultiBinary(4)})
MODELS = {
    "box": lambda: MLPActorCritic(OBS, BOX, hidden=[4]),
    "dict with a mask": lambda: MLPActorCritic(NESTED, gym.spaces.Discrete(4), hidden=[4], shared=True),
    "memory": lambda: RecurrentActorCritic(OBS, gym.spaces.Discrete(4), hidden=[4], size=3),
    "linear": lambda: MLPActorCritic(OBS, gym.spaces.MultiDiscrete([2, 3]), hidden=[]),
    "tied": Tied,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_computes_for_each_row_what_its_candidate_would_alone(name):
    torch.manual_seed(0)
    model = MODELS[name]()
    algorithm = CEM(model, population=5, elite=0.4)
    ComputationTask(algorithm)
    rng = np.random.default_rng(0)
    which = torch.tensor([3, 0, -1, 3, 2])
    inputs = {}
    for field, spec in model.inputs().items():
        shape = 5, *spec.shape
        numbers = rng.standard_normal(shape) if spec.dtype.kind == "f" else rng.integers(2, size=shape)
        inputs[field] = torch.from_numpy(numbers.astype(spec.dtype))
    batch = Batch.nest(inputs)
    with torch.inference_mode():
        out = algorithm.predict(Batch.nest({**inputs, "candidate": which}))
        before = algorithm.center()
        for row, candidate in enumerate(which.tolist()):
            algorithm.move(algorithm._candidates.table[candidate].clone())
            alone = algorithm.predict(batch[row : row + 1])
            for key, part in alone.items():
                for ours, theirs in zip(out[key].values(), part.values(), strict=True) if key == "state" else [(out[key], part)]:
                    torch.testing.assert_close(ours[row], theirs[0], atol=1e-5, rtol=1e-4)
            algorithm.move(before)


class Late(Point):
    """Acts by what it kept twenty steps ago."""

    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(1))

    def state_specs(self):
        return {"kept": Spec("kept", (20,), np.float32)}

    def policy(self, obs, state=None):
        mean = state["kept"][:, :1] * self.gain
        return {"mean": mean, "log_std": 0 * mean}, {"kept": torch.cat([state["kept"][:, 1:], (obs @ self.theta)[:, None]], 1)}


class Second(Point):
    """Acts by what it kept, once it has kept two steps."""

    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(1))

    def state_specs(self):
        return {"kept": Spec("kept", (1,), np.float32), "steps": Spec("steps", (), np.int64)}

    def policy(self, obs, state=None):
        mean = (state["steps"] > 1).float()[:, None] * state["kept"] * self.gain
        return {"mean": mean, "log_std": 0 * mean}, {"kept": (obs @ self.theta)[:, None], "steps": state["steps"] + 1}


RECURRENT = {
    "gru": lambda: RecurrentActorCritic(OBS, BOX, hidden=[4], size=4),
    "attention": lambda: RecurrentActorCritic(OBS, BOX, hidden=[4], memory="attention", size=4),
    "late": Late, "second": Second,
}


@each
@pytest.mark.parametrize("name", RECURRENT)
def test_what_only_later_steps_read_is_searched_too(name, kind):
    """Weights of the state before, places in an attention, what a count of steps lets through: all but the values' own."""
    torch.manual_seed(0)
    task = ComputationTask(kind(RECURRENT[name](), population=6, **({"elite": 0.5} if kind is CEM else {})))
    parameters = {name: p for name, p in task.algorithm.model.named_parameters() if p.requires_grad}
    before = {name: p.detach().clone() for name, p in parameters.items()}
    task.learn(update(np.arange(6.0)))
    still = {name for name, p in parameters.items() if torch.equal(p, before[name])}
    assert still == {name for name in parameters if name.startswith("critic")}


class Looks(Point):
    def policy(self, obs, state=None):
        return super().policy(obs)[0] if self.theta[0].item() > 1e9 else super().policy(obs)


def test_a_policy_that_cannot_be_computed_for_several_candidates_is_refused():
    model = Looks()
    with pytest.raises(ContractError, match=r"computes the policies of several candidates at once \(torch.vmap\)"):
        ComputationTask(ES(model))
    assert all(isinstance(parameter, torch.nn.Parameter) for parameter in model.parameters())


# --------------------------------------------------------------------------------------------------------------------- robots


class Reach(gym.Env):
    """Starts somewhere; the reward is high where the action is half of what is seen. Of random length."""

    observation_space, action_space = OBS, BOX

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.t = int(self.np_random.integers(1, 6)), 0
        return self.look(), {}

    def look(self):
        self.seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.seen

    def step(self, act):
        self.t += 1
        rew = -abs(float(act[0]) - 0.5 * float(self.seen[0])) + 0.01 * self.np_random.normal()
        return self.look(), rew, self.t >= self.length, False, {}


def robot_of(kind=ES, episodes=2, serve="central", env=Reach, helper=None, **options):
    func = create_algorithm_func(MLPActorCritic, dict(obs=OBS, act=BOX, hidden=[4]), kind, dict(population=12))
    task = ComputationTask(func, helper or (lambda: PopulationHelper(episodes=episodes)), serve=serve)
    return Robot(env, tasks={"RL": task}, **{"seed": 3, **options})


def after(robot, generations=3):
    with robot:
        for _ in range(generations):
            robot.train_iter()
        return robot.tasks["RL"].algorithm.center(), robot.tasks["RL"].learns


@pytest.mark.parametrize("kind", [ES, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (CEM, ARS))])
def test_the_search_is_the_same_for_any_number_of_agents(kind):
    found = [after(robot_of(kind, n_agents=n)) for n in (1, 5, 12)]
    same = torch.allclose if kind is ARS else torch.equal  # it adds scores up, and those of larger batches are rounded otherwise
    assert all(same(center, found[0][0]) and learns == 3 for center, learns in found)
    assert not torch.equal(after(robot_of(kind, n_agents=5, seed=4))[0], found[0][0])


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")


@pytest.mark.parametrize(("driver", "serve"), [pytest.param("threads", "central", marks=pytest.mark.slow),
                                               pytest.param("processes", "central", marks=[LINUX, pytest.mark.slow]),
                                               pytest.param("processes", "replica", marks=LINUX)])
def test_the_search_is_the_same_under_every_driver(driver, serve):
    expected = after(robot_of(n_agents=4))
    found = after(robot_of(n_agents=5, serve=serve, driver=Processes(workers=2) if driver == "processes" else driver))
    assert torch.equal(found[0], expected[0])


@pytest.mark.parametrize("driver", ["cooperative", "threads", "processes"])
def test_a_collection_leaves_the_search_as_it_was(driver):
    """Before the first episode, and where some agents wait for the others' returns; the search also goes on from its middle."""
    expected = after(robot_of(n_agents=4))
    with robot_of(n_agents=4, driver=Processes(workers=2) if driver == "processes" else driver) as robot:
        assert robot.collect(n_step=40).n_steps == 40
        robot.run(StopAfterSteps(50))
        for options in (dict(n_step=40), dict(n_step=20, random=True), dict(n_episode=4)):
            robot.collect(**options)
        assert robot.tasks["RL"].learns == 0
        found = after(robot)
    assert torch.equal(found[0], expected[0]) and found[1] == expected[1]


def test_an_interrupted_generation_goes_on_where_it_was(tmp_path):
    """Also in a robot with another seed."""
    with robot_of(n_agents=5, trace=True) as whole, robot_of(n_agents=5, trace=True, seed=9) as part:
        whole.run(StopAfterSteps(100))
        whole.checkpoint_boundary()
        state = whole.state_dict()
        assert any(agent.helpers["RL"]._scores for agent in whole.agents)
        part.load_state_dict(state)
        for robot in (whole, part):
            robot.run(StopAfterSteps(300))
        assert part.trace_hash() == whole.trace_hash() and part.tasks["RL"].learns == whole.tasks["RL"].learns > 2
        assert torch.equal(part.tasks["RL"].algorithm.center(), whole.tasks["RL"].algorithm.center())
    assert torch.equal(whole.tasks["RL"].algorithm.center(), after(robot_of(n_agents=3), whole.tasks["RL"].learns)[0])


@pytest.mark.parametrize("driver", ["cooperative", pytest.param("threads", marks=pytest.mark.slow),
                                    pytest.param("processes", marks=[LINUX, pytest.mark.slow])])
def test_a_run_may_end_while_some_wait_for_the_returns_of_the_others(driver):
    """At any step; and the search is the same as without an end there."""
    with robot_of(n_agents=5, driver=driver) as robot:
        learned = []
        for _ in range(12):
            robot.run(StopAfterSteps(37))
            learned.append((robot.tasks["RL"].learns, robot.tasks["RL"].algorithm.updates))
        task = robot.tasks["RL"]
        assert task.learns > 1 and all(learns == updates for learns, updates in learned)
        found = task.algorithm.center()
    assert torch.equal(found, after(robot_of(n_agents=3), task.learns)[0])


def test_tests_and_single_actions_are_those_of_the_centre():
    with robot_of(n_agents=4) as robot:
        robot.train_iter()
        obs = np.array([0.3, -0.2], np.float32)
        with torch.no_grad():
            expected = robot.tasks["RL"].algorithm.model.policy(torch.from_numpy(obs[None]))[0]["mean"][0, 0].item()
        assert robot.act(obs)[0] == pytest.approx(np.clip(expected, -1, 1), abs=1e-6)
        before = robot.tasks["RL"].state_dict()["networks"]["candidates"]["table"]
        first, second = (robot.evaluate(6, seed=1).returns for _ in range(2))
        assert list(first) == list(second)
        assert torch.equal(robot.tasks["RL"].state_dict()["networks"]["candidates"]["table"], before)


@pytest.mark.parametrize(("options", "message"), [
    (dict(agent=lambda: VectorAgent(2)), "a vector environment; give each agent one environment"),
    (dict(mode="async"), "mode 'async'; use mode='sync'"),
    (dict(helper=lambda: PopulationHelper(episodes=0)), "expected at least 1"),
])
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        robot_of(**options)


def test_other_algorithms_and_too_many_agents_are_refused():
    func = create_algorithm_func(MLPQ, dict(obs=OBS, act=gym.spaces.Discrete(2)), DQN, {})
    with pytest.raises(ValueError, match="there is EpsilonGreedy; take an algorithm such as ES, CEM or ARS"):
        Robot("CartPole-v1", tasks={"RL": ComputationTask(func, PopulationHelper)})
    with robot_of(n_agents=13, episodes=1) as robot, pytest.raises(AgentFailed, match="13 agents share 12 candidates of 1 episo"):
        robot.train_iter()


def test_a_training_rule_that_parts_a_generation_is_refused():
    func = create_algorithm_func(MLPActorCritic, dict(obs=OBS, act=BOX, hidden=[4]), ES, dict(population=12))
    task = ComputationTask(func, PopulationHelper, training_rule=BatchRule(max_rows=5))
    with Robot(Reach, tasks={"RL": task}, n_agents=4) as robot, pytest.raises(AgentFailed, match="some of 12 episodes; let all"):
        robot.run(StopAfterSteps(200))


def test_a_reward_that_is_no_number_is_refused():
    class Bad(Reach):
        def step(self, act):
            return self.look(), np.nan, False, False, {}

    with robot_of(env=Bad) as robot, pytest.raises(SpecError, match="field 'rew': expected a finite number"):
        robot.train_iter()
