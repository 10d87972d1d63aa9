"""The ensemble that learns what the environment does, and SAC on what it imagines: both by hand, and the robot of the two."""

import math
import sys
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import ComputationTask, OffPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import MBPO, SAC, EnsembleLearner
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.lab.config import resolve
from parl_like.lab.yaml_text import ConfigError
from parl_like.models import EnsembleMLP, MLPActorQ
from parl_like.models.dynamics import EnsembleDynamics
from parl_like.robots.mbpo import Config, build
from parl_like.values.batch import Batch
from parl_like.values.spec import nest

OBS, ACT = gym.spaces.Box(-2, 2, (2,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32)
THREE = gym.spaces.Discrete(3)


def rows(n=64, seed=0, act=ACT, **fields):
    """s' = s + (a, 0), r = 2 s_1, over where s_0 > 1."""
    rng = np.random.default_rng(seed)
    obs = rng.uniform(-2, 2, (n, 2)).astype(np.float32)
    acts = rng.integers(3, size=n) if act is THREE else rng.uniform(-1, 1, (n, 1)).astype(np.float32)
    moved = acts - 1.0 if act is THREE else acts[:, 0]
    after = np.clip(obs + np.stack([moved, 0 * moved], 1), -2, 2).astype(np.float32)
    return {"obs": obs, "act": acts, "rew": 2.0 * obs[:, 1].astype(np.float64), "obs_next": after, "terminated": obs[:, 0] > 1,
            "truncated": np.zeros(n, bool), **fields}


def task_of(algorithm, **options):
    task = ComputationTask(algorithm, **options)
    task.build()
    return task


# ----------------------------------------------------------------------------------------------------------------- the ensemble


def test_each_network_has_rows_of_its_own():
    torch.manual_seed(0)
    net = EnsembleMLP(3, [2, 4, 1], activate_last=False)
    x = torch.randn(3, 5, 2)
    for i, out in enumerate(net.each(x)):
        torch.testing.assert_close(out, net.one(i, x[i]))
    torch.testing.assert_close(net(x[0]), net.each(x[:1].expand(3, -1, -1)))


def test_what_goes_in_and_comes_out_is_normalised_by_all_that_was_seen():
    model = EnsembleDynamics(OBS, ACT, (4,), 2)
    seen = [Batch({k: torch.from_numpy(v) for k, v in rows(n, n).items()}) for n in (3, 50, 7)]
    for one in seen:
        model.observe(one.obs, one.act, one.obs_next, one.rew)
    inputs = torch.cat([torch.cat([one.obs, one.act], 1) for one in seen])
    change = torch.cat([torch.cat([one.obs_next - one.obs, one.rew[:, None].float()], 1) for one in seen])
    for name, x in (("input", inputs), ("target", change)):
        torch.testing.assert_close(getattr(model, f"{name}_mean"), x.mean(0), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(getattr(model, f"{name}_var"), x.var(0, unbiased=False), rtol=1e-4, atol=1e-6)
    last = seen[-1]
    after, rew = model.drawn(last.obs, model.targets(last.obs, last.obs_next, last.rew))
    torch.testing.assert_close(after, last.obs_next)
    torch.testing.assert_close(rew, last.rew.float())


@pytest.mark.parametrize(("shape", "act"), [((), ()), ((2, 2), (3, 1))], ids=str)
def test_observations_and_actions_have_any_shape(shape, act):
    torch.manual_seed(0)
    spaces = gym.spaces.Box(-9, 9, shape, np.float64), gym.spaces.Box(-1, 1, act, np.float64)
    model = EnsembleDynamics(*spaces, (4,), 2)
    task_of(EnsembleLearner(model))
    obs, after, acts = torch.randn(5, *shape).double(), torch.randn(5, *shape).double(), torch.randn(5, *act).double()
    model.observe(obs, acts, after, torch.arange(5.0))
    found, rew = model.drawn(obs, model.targets(obs, after, torch.arange(5.0)))
    assert model.features(obs, acts).shape == (5, obs[0].numel() + acts[0].numel())
    torch.testing.assert_close(found, after, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rew, torch.arange(5.0))


def test_the_likelihood_by_hand():
    """One row, one member: errors 1, 0, 2 of (s', r), log variances 0, ln 4, ln 4: 1 + 0 + ln 4 + 4 / 4 + ln 4; p(end) = ½."""
    algorithm = EnsembleLearner(EnsembleDynamics(OBS, ACT, (4,), 1))
    model, four = algorithm.model, math.log(4.0)
    model.observe = lambda *row: None
    model.each = lambda x: (torch.zeros(1, 1, 3, requires_grad=True), torch.tensor([[[0.0, four, four]]]), torch.zeros(1, 1))
    row = Batch(obs=torch.zeros(1, 2), act=torch.zeros(1, 1), obs_next=torch.tensor([[1.0, 0.0]]), rew=torch.tensor([-2.0]),
                terminated=torch.tensor([True]))
    bounds = 0.01 * 3 * 10.5
    assert algorithm.learn(row)["loss"].item() == pytest.approx(2 + 2 * four + 2 * math.log(2.0) + bounds)


def test_each_member_learns_from_rows_of_its_own_drawn_with_replacement():
    algorithm, seen = EnsembleLearner(EnsembleDynamics(OBS, ACT, (4,), 3)), []
    plain = algorithm.model.each
    algorithm.model.each = lambda x: (seen.append(x), plain(x))[1]
    algorithm.learn(Batch({name: torch.from_numpy(value) for name, value in rows().items()}))
    drawn, = seen
    assert drawn.shape[:2] == (3, 64) and not torch.equal(drawn[0], drawn[1])
    assert all(0.5 < len(one.unique(dim=0)) / 64 < 0.8 for one in drawn)  # 1 − 1 / e of them


def test_a_prediction_is_drawn_with_the_width_that_its_member_says():
    """Log variance ln 4: a standard deviation of 2."""
    algorithm, n = EnsembleLearner(EnsembleDynamics(OBS, ACT, (4,), 2)), 4_000
    algorithm.model.each = lambda x: (torch.zeros(2, x.shape[1], 3), torch.full((2, x.shape[1], 3), math.log(4.0)),
                                      torch.zeros(2, x.shape[1]))
    out = algorithm.predict(Batch(obs=torch.zeros(n, 2), act=torch.zeros(n, 1)))
    assert out["rew"].std().item() == pytest.approx(2.0, rel=0.06) and abs(out["terminated"].float().mean() - 0.5) < 0.04


def test_each_row_is_asked_of_one_member_and_all_are_asked_equally_often():
    algorithm = EnsembleLearner(EnsembleDynamics(OBS, ACT, (4,), 3))
    model = algorithm.model
    who = torch.arange(3.0).view(3, 1, 1)
    # the mean of r is the member, of s' − s the observation itself; hardly any noise
    model.each = lambda x: (torch.cat([x[..., :2], who.expand(3, x.shape[1], 1)], -1), torch.full((3, x.shape[1], 3), -40.0),
                            torch.where(x[..., 0] > 0, 99.0, -99.0))
    obs = torch.rand(8, 2) - 0.5
    out = algorithm.predict(Batch(obs=obs, act=torch.zeros(8, 1)))
    torch.testing.assert_close(out["obs_next"], 2 * obs)
    assert sorted(out["rew"].round().tolist()) in ([0, 0, 0, 1, 1, 1, 2, 2], [0, 0, 0, 1, 1, 2, 2, 2], [0, 0, 1, 1, 1, 2, 2, 2])
    assert torch.equal(out["terminated"], obs[:, 0] > 0)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_of_few_rows_too_every_member_is_asked_as_often(n):
    """Each row is as likely with each of 5 members, and of 7 rows no member gets more than 2."""
    algorithm = EnsembleLearner(EnsembleDynamics(OBS, ACT, (4,), 5))
    who, members = torch.arange(5.0).view(5, 1, 1), 5
    algorithm.model.each = lambda x: (who.expand(members, x.shape[1], 3), torch.full((members, x.shape[1], 3), -40.0),
                                      torch.zeros(members, x.shape[1]))
    draws, rows_of = 1000, Batch(obs=torch.zeros(n, 2), act=torch.zeros(n, 1))
    asked = torch.stack([algorithm.predict(rows_of)["rew"].round().long() for _ in range(draws)])
    assert torch.stack([torch.bincount(one, minlength=5) for one in asked]).max() == -(-n // 5)
    counts = torch.stack([torch.bincount(asked[:, row], minlength=5) for row in range(n)])
    assert (counts - draws / 5).abs().max() < 5 * (draws * 0.2 * 0.8) ** 0.5


@pytest.mark.parametrize("act", [ACT, THREE], ids=["box", "discrete"])
def test_it_learns_what_the_environment_does(act):
    torch.manual_seed(0)
    task = task_of(EnsembleLearner(EnsembleDynamics(OBS, act, (16,), 3), lr=0.02))
    for seed in range(100):
        task.learn(rows(seed=seed, act=act))
    given = rows(seed=999, act=act)
    out = task.predict({"obs": given["obs"], "act": given["act"]})
    inside = np.abs(given["obs_next"]).max(1) < 2
    assert np.abs(out["obs_next"] - given["obs_next"])[inside].mean() < 0.1 and np.abs(out["rew"] - given["rew"]).mean() < 0.2
    assert (out["terminated"] == given["terminated"]).mean() > 0.8


# ------------------------------------------------------------------------------------------------------------------------- MBPO


def imagining(act=ACT, **options):
    torch.manual_seed(0)
    algorithm = MBPO(MLPActorQ(OBS, act, (8,)), lr=0.01, **options)
    asked = []

    def ask(name, obs, act):
        asked.append((name, len(obs)))
        return Batch(obs_next=obs + 10, rew=torch.full((len(obs),), 5.0), terminated=obs[:, 0] > 10)

    algorithm.ask = ask
    return task_of(algorithm), asked


@pytest.mark.parametrize("act", [ACT, THREE], ids=["box", "discrete"])
def test_all_but_a_few_rows_are_imagined_on_from_those_of_the_update(act):
    task, asked = imagining(act, horizon=3, real=0.25, imagine_every=2)
    given = rows(8, act=act)
    with torch.no_grad():
        batch = task.algorithm.process(task.runner.sent(given))
    # all go on from s to s + 10 and on to s + 20, unless s_0 > 0, for which s + 10 is the last
    alive = int((given["obs"][:, 0] <= 0).sum())
    assert asked == [("model", 8), ("model", 8), ("model", alive)] and task.algorithm._kept == 16 + alive
    assert torch.equal(batch.obs[:2], torch.from_numpy(given["obs"][:2])) and (batch.rew[2:] == 5).all() and len(batch.obs) == 8
    torch.testing.assert_close(batch.obs_next[2:], batch.obs[2:] + 10)
    for _ in range(3):
        task.learn(given)
    assert len(asked) == 6


def test_the_newest_rows_are_kept():
    task, _ = imagining(imagined_size=10, imagine_every=1)
    for k in range(3):
        obs = torch.full((4, 2), float(k))
        task.algorithm.keep({"obs": obs, "rew": obs[:, 0]})
    assert sorted(task.algorithm.imagined["rew"].tolist()) == [0] * 2 + [1] * 4 + [2] * 4 and task.algorithm._kept == 10


def test_of_more_rows_than_are_kept_the_newest_stay_whole():
    task, _ = imagining(imagined_size=5, imagine_every=1)
    numbers = torch.arange(1.0, 13.0)
    for rows_at_once in numbers.split([3, 9]):
        task.algorithm.keep({"obs": rows_at_once[:, None].repeat(1, 2), "rew": rows_at_once})
    kept = task.algorithm.imagined
    assert sorted(kept["rew"].tolist()) == [8, 9, 10, 11, 12] and torch.equal(kept["obs"][:, 0], kept["rew"])
    task.algorithm.keep({"obs": torch.full((1, 2), 13.0), "rew": torch.full((1,), 13.0)})
    assert sorted(kept["rew"].tolist()) == [9, 10, 11, 12, 13]


def test_with_real_rows_alone_it_is_sac():
    torch.manual_seed(0)
    model = MLPActorQ(OBS, ACT, (8,))
    tasks = [task_of(MBPO(model.clone(), real=1.0, lr=0.01), native=False),
             task_of(SAC(model.clone(), lr=0.01), native=False)]  # SAC alone has its gradients written out
    for seed in range(20):
        told = [task.learn(rows(8, seed)) for task in tasks]
        assert told[0]["critic"] == told[1]["critic"]
    hashes = {task.algorithm.model.weights_hash() for task in tasks}
    assert len(hashes) == 1 and hashes != {model.weights_hash()}


def test_imagined_rows_are_saved():
    (task, _), (other, _) = imagining(imagine_every=3), imagining(imagine_every=3)
    for seed in range(2):
        task.learn(rows(seed=seed))
    other.load_state_dict(task.state_dict())
    assert other.algorithm._kept == 64
    for seed in range(2, 5):
        assert task.learn(rows(seed=seed)) | {"priority": 0} == other.learn(rows(seed=seed)) | {"priority": 0}


def test_what_cannot_be_is_refused():
    with pytest.raises(TypeError, match="EnsembleDynamics: act is MultiDiscrete"):
        EnsembleDynamics(OBS, gym.spaces.MultiDiscrete([2, 2]))
    for options in (dict(horizon=0), dict(real=1.5), dict(imagined_size=0)):
        with pytest.raises(ValueError, match="expected"):
            MBPO(MLPActorQ(OBS, ACT), **options)
    with pytest.raises(ValueError, match="rows with durations"):
        imagining()[0].learn(rows(duration=np.full(64, 2)))


# -------------------------------------------------------------------------------------------------------------------- the robot


def small(**options):
    few = {f"{task}.OffPolicyHelper.{key}": value for task in ("RL", "model")[: 1 + options.get("model", True)]
           for key, value in (("warmup", 32), ("batch_size", 16))}
    return build(resolve(Config, {"total_steps": 400, "MLPActorQ.hidden": [8], "trace": True, **few, **options}))


def test_a_robot_of_two_tasks_one_of_which_asks_the_other():
    with small(**{"RL.OffPolicyHelper.updates": 3}) as robot:
        for _ in robot.iterate(56):
            pass
        policy, model = robot.tasks.values()
        assert policy.asks == ("model",) and not model.asks and policy.algorithm._kept > 100
        assert policy.algorithm.updates == pytest.approx(3 * model.algorithm.updates, abs=6) and model.algorithm.updates > 20
        assert policy.lock is model.lock and np.isfinite(robot.evaluate(1, seed=1).mean_return)
    with small(model=False) as robot:
        assert list(robot.tasks) == ["RL"] and type(robot.tasks["RL"].algorithm) is SAC


@pytest.mark.parametrize("options", [
    {"env": "CartPole-v1", "n_agents": 2}, {"env": {"id": "Pendulum-v1", "vector": 2}}, {"driver": "threads", "n_agents": 2},
    pytest.param({"driver": "processes", "workers": {"count": 2}, "n_agents": 2},
                 marks=pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux"))])
def test_it_runs_with_discrete_actions_several_agents_and_under_every_driver(options):
    with small(**{"RL.OffPolicyHelper.updates": 1, **options}) as robot:
        robot.run(100)
        assert robot.never_learned() == {} and robot.tasks["RL"].algorithm._kept >= 16


@pytest.mark.parametrize(("task", "name"), [("RL", "MBPO"), ("model", "EnsembleLearner")])
@pytest.mark.parametrize("options", [{}, pytest.param({"driver": "processes", "workers": {"count": 1}},
                                                      marks=pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"))],
                         ids=["here", "workers"])
def test_a_prioritised_buffer_is_refused_before_anything_starts(task, name, options):
    buffer = {f"{task}.OffPolicyHelper.buffer": "PrioritizedReplayBuffer"}
    with pytest.raises(ValueError, match=f"{name} has no priorities for its rows; use a ReplayBuffer"):
        small(**buffer, **options)


def test_transforms_of_both_tasks_are_the_same():
    """Imagined rows are in the units of the model's helper, real ones in those of the policy's."""
    own, other = ({f"tasks.{task}.OffPolicyHelper.transforms": ["RewardScaling"], f"tasks.{task}.RewardScaling.scale": 0.1}
                  for task in ("RL", "model"))
    build(resolve(Config, own, other)).close()
    for given in (own, own | other | {"tasks.model.RewardScaling.scale": 0.2}):
        with pytest.raises(ConfigError, match="transforms of RL are .*RewardScaling.*expected the same"):
            build(resolve(Config, given))


def test_without_imagined_rows_it_takes_priorities():
    with small(**{"MBPO.real": 1.0, "RL.OffPolicyHelper.buffer": "PrioritizedReplayBuffer"}) as robot:
        for _ in robot.iterate(40):
            pass
        assert robot.tasks["RL"].algorithm.updates


def legal_at(place):
    return [place > -2, abs(place) < 2, place < 2]


class Places(gym.Env):
    """Raises on an illegal action. Of five places in a row the action −1 or 1 leads to the next one; at an end only one of the
    three actions leads on, the others are illegal. The mask is an array that is changed in place."""

    observation_space = gym.spaces.Dict({
        "mask": gym.spaces.MultiBinary(3), "place": gym.spaces.Discrete(5, start=-2),
        "seen": gym.spaces.Tuple((gym.spaces.Box(-2, 2, (), np.float32), gym.spaces.Box(0, 4, (1, 1), np.uint8)))})
    action_space = gym.spaces.Discrete(3)

    def __init__(self):
        self.mask = np.zeros(3, np.int8)

    def look(self):
        self.mask[:] = legal_at(self.place)
        seen = np.float32(self.place), np.full((1, 1), self.place + 2, np.uint8)
        return {"mask": self.mask, "place": self.place, "seen": seen}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(-2, 3))
        return self.look(), {}

    def step(self, act):
        if not self.mask[act]:
            raise ValueError(f"action {act} is illegal: {self.mask}")
        self.place += int(act) - 1
        return self.look(), float(self.place == 2), False, self.np_random.random() < 0.1, {}


def test_observations_of_any_space_are_imagined():
    """Of a Dict with a mask all numbers are; they are observations of the space, and most of them right."""
    torch.manual_seed(0)
    spaces = dict(obs=Places.observation_space, act=Places.action_space)
    helper = partial(OffPolicyHelper, size=500, batch_size=32, learn_every=1, warmup=32)
    policy = create_algorithm_func(MLPActorQ, {**spaces, "hidden": (8,)}, MBPO, dict(horizon=2, imagined_size=100, lr=0.01))
    model = create_algorithm_func(EnsembleDynamics, {**spaces, "hidden": (64,)}, EnsembleLearner, dict(lr=0.005))
    tasks = {"RL": ComputationTask(policy, helper, asks=["model"]), "model": ComputationTask(model, helper)}
    with Robot(Places, tasks=tasks, seed=0) as robot:
        robot.run(StopAfterSteps(300))
        assert all(task.learns > 250 for task in tasks.values()) and np.isfinite(robot.evaluate(2, seed=1).mean_return)
    kept = {name: column.numpy() for name, column in tasks["RL"].algorithm.imagined.items()}
    assert kept["act"].shape == (100,)
    right = np.zeros(100, bool)
    for i in range(100):
        before, after = (nest({name: column[i] for name, column in kept.items() if name.startswith(f"{obs}.")})[obs]
                         for obs in ("obs", "obs_next"))
        for obs in (before, after):
            obs["seen"] = tuple(map(np.asarray, obs["seen"].values()))
            assert obs in Places.observation_space
        assert before["mask"][kept["act"][i]] or not before["mask"].any()
        place = before["place"] + kept["act"][i] - 1
        right[i] = after["place"] == place == after["seen"][1] - 2 and after["mask"].tolist() == legal_at(place)
    assert right.mean() > 0.5


def test_observations_that_are_discrete_are_imagined():
    with small(**{"env": "FrozenLake-v1", "RL.OffPolicyHelper.updates": 1}) as robot:
        robot.run(100)
        kept = robot.tasks["RL"].algorithm.imagined
        assert robot.never_learned() == {} and kept["obs_next"].dtype == torch.int64 and kept["obs_next"].max() < 16
