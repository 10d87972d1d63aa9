"""Dict and Tuple action spaces: a head for each array, from the explorer to the environment and back into learning."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from transport_fakes import OVER_RAY, connected, one_ray  # noqa: F401 - fixtures

from parl_like import (
    Agent,
    Batch,
    ComputationTask,
    Hook,
    OffPolicyHelper,
    OnPolicyHelper,
    Robot,
    VectorAgent,
    create_algorithm_func,
)
from parl_like.algorithms import A2C, IMPALA, PPO, SAC
from parl_like.algorithms.actor_critic import explorer_of
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.envs.vector import make_vector_env
from parl_like.models import MLPActorCritic, MLPActorQ, RecurrentActorCritic
from parl_like.models.heads import make_head
from parl_like.values.errors import AgentFailed

SPACE = Dict({
    "arm": Dict({"grip": Discrete(3, start=1), "reach": Box(0.0, 4.0, (2,), np.float32)}),
    "mode": MultiDiscrete([2, 3]),
    "pair": Tuple((MultiBinary(2), Box(-np.inf, np.inf, (), np.float32))),
})
NAMES = ["act.arm.grip", "act.arm.reach", "act.mode", "act.pair.0", "act.pair.1"]


class Crane(gym.Env):
    """Every part of the action is paid for itself. Of the grips one is illegal, another one in each state. The environment writes
    into the arrays of its actions and hands out the same arrays of observations again.

    Attributes:
        acts: The actions, as they came.
    """

    observation_space = Dict({"mask": Dict({"arm": Dict({"grip": MultiBinary(3)})}), "x": Box(-1, 1, (3,), np.float32)})
    action_space = SPACE

    def __init__(self):
        self.mask, self.x = np.ones(3, np.int8), np.zeros(3, np.float32)
        self.acts = []

    def obs(self):
        self.illegal = int(self.np_random.integers(3))
        self.mask[:] = np.arange(3) != self.illegal
        self.x[:] = self.np_random.uniform(-1, 1, 3)
        return {"mask": {"arm": {"grip": self.mask}}, "x": self.x}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return self.obs(), {}

    def step(self, act):
        assert act["arm"]["grip"] != self.illegal + 1
        reach, (flags, shift) = act["arm"]["reach"], act["pair"]
        assert reach.dtype == np.float32 and (0 <= reach).all() and (reach <= 4).all() and np.shape(shift) == ()
        self.acts.append((int(act["arm"]["grip"]), reach.copy(), act["mode"].copy(), flags.copy(), float(shift)))
        rew = -float(np.abs(reach - 3).sum()) - abs(float(shift) - 0.5) + act["mode"].sum() + flags.sum()
        reach[:], act["mode"][:], flags[:] = 99, 99, 99
        self.left -= 1
        terminated = self.left == 0 and self.x[0] > 0
        return self.obs(), rew, bool(terminated), self.left == 0 and not terminated, {}


class Pair(gym.Env):
    """A Tuple, without masks: (1 if x > 0, −x)."""

    observation_space, action_space = Box(-1, 1, (1,), np.float32), Tuple((Discrete(2), Box(-1, 1, (1,), np.float32)))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.x = 10, self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.x, {}

    def step(self, act):
        which, number = act
        rew = float(which == (self.x[0] > 0)) - float(abs(number[0] + self.x[0]))
        self.left, self.x = self.left - 1, self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.x, rew, False, self.left == 0, {}


def task_of(env=Crane, algorithm=PPO, model=MLPActorCritic, unroll=16, lr=0.01, **options):
    sizes = dict(obs=env.observation_space, act=env.action_space, hidden=[16])
    func = create_algorithm_func(model, sizes, algorithm, dict(lr=lr))
    return ComputationTask(func, lambda: OnPolicyHelper(unroll=unroll, store_policy=algorithm is IMPALA), **options)


def head_and_outputs(n=4):
    head = make_head(3, SPACE, gain=1.0, log_std_init=-0.5)
    return head, head(torch.linspace(-1, 1, 3 * n).reshape(n, 3))


# ---------------------------------------------------------------------------------------------------------------- heads


def test_log_probabilities_and_entropies_are_sums_worked_out_by_hand():
    """Two rows, features 0, so logits are the biases: grip of 2 by log 3 : 0, steer N(1, 1)."""
    head = make_head(1, Dict({"grip": Discrete(2), "steer": Box(-1, 1, (1,))}))
    grip, steer = head.heads
    with torch.no_grad():
        grip.linear.bias.copy_(torch.tensor([math.log(3.0), 0.0]))
        steer.linear.bias.fill_(1.0)
    out = head(torch.zeros(2, 1))
    assert set(out) == {"logits.grip", "mean.steer", "log_std.steer"}
    act = {"grip": torch.tensor([0, 1]), "steer": torch.tensor([[1.0], [3.0]])}
    density = -0.5 * math.log(2 * math.pi)  # of the normal at its mean
    expected = [math.log(0.75) + density, math.log(0.25) + density - 2.0]
    torch.testing.assert_close(head.log_prob(out, act), torch.tensor(expected))
    torch.testing.assert_close(head.log_prob(out, Batch(act)), torch.tensor(expected))
    entropy = -0.75 * math.log(0.75) - 0.25 * math.log(0.25) + 0.5 * (1 + math.log(2 * math.pi))
    torch.testing.assert_close(head.entropy(out), torch.tensor([entropy, entropy]))


def test_a_mask_is_of_its_own_part_only():
    head = make_head(1, Dict({"a": Discrete(2), "b": Discrete(2)}), gain=None)
    out = head(torch.zeros(1, 1), {"b": torch.tensor([[0, 1]])})
    p = torch.softmax(out["logits.b"], -1)
    assert p.tolist() == [[0.0, 1.0]] and (torch.softmax(out["logits.a"], -1) > 0).all()


def test_what_is_drawn_has_the_log_probability_that_the_head_gives():
    head, out = head_and_outputs(64)
    explorer = explorer_of(head, SPACE)
    explorer.log_prob = True
    noise = explorer.draw(np.random.default_rng(0), 0, 64)
    drawn = explorer.act({name: value.detach().numpy() for name, value in out.items()}, noise)
    assert list(drawn) == [*NAMES, "log_prob"]
    act = {"arm": {k: torch.from_numpy(drawn[f"act.arm.{k}"]) for k in ("grip", "reach")}, "mode":
           torch.from_numpy(drawn["act.mode"]), "pair": {k: torch.from_numpy(drawn[f"act.pair.{k}"]) for k in "01"}}
    np.testing.assert_allclose(drawn["log_prob"], head.log_prob(out, act).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert len(np.unique(drawn["act.arm.grip"])) == 3 and len(np.unique(drawn["act.arm.reach"])) == 128


def test_an_action_does_not_depend_on_the_batch_and_the_greedy_one_is_the_likeliest():
    head, out = head_and_outputs()
    explorer = explorer_of(head, SPACE)
    rows = {name: value.detach().numpy() for name, value in out.items()}
    noise = explorer.draw(np.random.default_rng(0), 0, 4)
    whole, one = explorer.act(rows, noise), explorer.act({name: v[2:3] for name, v in rows.items()}, noise[2:3])
    assert all(np.array_equal(whole[name][2:3], one[name]) for name in NAMES)
    best = explorer.act(rows, np.array([explorer.greedy()] * 4))
    assert best["act.arm.grip"].tolist() == rows["logits.arm.grip"].argmax(1).tolist()
    assert np.array_equal(best["act.arm.reach"], rows["mean.arm.reach"])
    assert best["act.mode"][:, 1].tolist() == rows["logits.mode"][:, 2:].argmax(1).tolist()


def test_a_space_without_a_head_is_named():
    with pytest.raises(TypeError, match="no policy head for actions in Text"):
        make_head(2, Dict({"say": Text(3)}))


@pytest.mark.parametrize(("mask", "message"), [
    (Dict({"arm": Dict({"grip": MultiBinary(4)})}), r"'mask.arm.grip' has shape \(4,\); expected \(3,\)"),
    (Dict({"leg": MultiBinary(3)}), r"'mask.leg' .*expected masks named like the .*mask.arm.grip, mask.mode, mask.pair.0"),
    (MultiBinary(3), "'mask' is .*expected masks named like"),
])
def test_masks_that_fit_no_part_are_refused(mask, message):
    with pytest.raises(ValueError, match=message):
        MLPActorCritic(Dict({"mask": mask, "x": Box(-1, 1, (2,))}), SPACE)


# --------------------------------------------------------------------------------------------------------------- robots


@pytest.mark.parametrize("model", [MLPActorCritic, RecurrentActorCritic])
@pytest.mark.parametrize("algorithm", [PPO, A2C, IMPALA])
def test_agents_act_and_learn(algorithm, model, tmp_path):
    def build():
        return Robot(Crane, tasks={"RL": task_of(Crane, algorithm, model)}, n_agents=2, seed=1, trace=True)

    with build() as robot, build() as other:
        robot.run(StopAfterSteps(64))
        task = robot.tasks["RL"]
        assert task.learns == 2 and np.isfinite(robot.evaluate(2).returns).all()
        columns = robot.buffers["RL"].columns
        assert [name for name in columns if name.startswith("act")] == NAMES
        assert set(np.unique(columns["act.arm.grip"])) == {0, 1, 2}  # the policy's own numbers
        assert np.abs(columns["act.arm.reach"]).max() > 1  # as drawn, not as clipped
        robot.save(tmp_path / "c")
        other.load(tmp_path / "c")
        for one in (robot, other):
            one.run(StopAfterSteps(64))
        assert robot.trace_hash() == other.trace_hash()


def test_what_is_stored_is_what_was_done():
    with Robot(Crane, tasks={"RL": task_of(unroll=40)}, seed=2) as robot:
        robot.collect(n_step=20)
        columns, acts = robot.buffers["RL"].columns, robot.agents[0].env.acts
        for i, (grip, reach, mode, flags, shift) in enumerate(acts):
            assert columns["act.arm.grip"][i] == grip - 1
            np.testing.assert_allclose(2 + 2 * np.clip(columns["act.arm.reach"][i], -1, 1), reach, rtol=1e-6)
            assert columns["act.mode"][i].tolist() == mode.tolist() and columns["act.pair.0"][i].tolist() == flags.tolist()
            assert columns["act.pair.1"][i] == np.float32(shift)
        assert len(acts) == 20


def test_an_action_of_the_agents_own_is_stored_in_the_policys_units():
    class Own(Agent):
        def run_one_episode(self):
            obs, _ = self.env.reset()
            act = {"arm": {"grip": 1 + (obs["mask"]["arm"]["grip"].argmax()), "reach": np.array([0, 3], np.float32)},
                   "mode": np.array([1, 2]), "pair": (np.array([0, 1], np.int8), np.array(7, np.float32))}
            self.helpers["RL"].store(obs, act, *self.env_step(act))

        def env_step(self, act):
            obs, rew, terminated, truncated, info = self.env.step(act)
            return rew, obs, terminated, truncated, info

    with Robot(Crane, agent=Own, tasks={"RL": task_of()}, seed=0) as robot:
        robot.collect(n_step=1)
        row = {name: column[0].tolist() for name, column in robot.buffers["RL"].columns.items() if name.startswith("act")}
        assert row.pop("act.arm.grip") in (0, 1)
        assert row == {"act.arm.reach": [-1.0, 0.5], "act.mode": [1, 2], "act.pair.0": [0, 1], "act.pair.1": 7.0}


def test_an_action_without_a_part_is_named():
    class Half(Agent):
        def run_one_episode(self):
            self.env.reset()
            self.env.step({"arm": {"grip": 1}})

    with pytest.raises(AgentFailed, match="action outside the space"), Robot(Crane, agent=Half, tasks={"RL": task_of()}) as robot:
        robot.run(10)


@pytest.mark.parametrize("make", [
    lambda: gym.vector.SyncVectorEnv([Crane] * 3), lambda: make_vector_env(Crane, 3),
    lambda: make_vector_env(Crane, 3, kind="process"),
], ids=["gymnasium", "sync", "process"])
def test_vector_agents_act_and_learn(make):
    class Steps(Hook):
        seen = 0

        def post_episode(self, agent, interrupted):
            step = agent.env.time_step
            if step.is_last:
                flags, shift = step.prev_action["pair"]
                assert SPACE.contains({**step.prev_action, "pair": (flags, np.asarray(shift))})
                self.seen += 1

    steps, task = Steps(), task_of()
    with Robot(make, tasks={"RL": task}, agent=VectorAgent, seed=1) as robot:
        robot.run(StopAfterSteps(96), steps)
        columns = robot.buffers["RL"].columns
        assert task.learns == 2 and steps.seen >= 15 and [name for name in columns if name.startswith("act")] == NAMES
        assert np.isfinite(robot.evaluate(3).returns).all()


def test_vector_actions_of_too_few_rows_are_named():
    class Short(VectorAgent):
        def run_one_episode(self):
            obs, _ = self.env.reset()
            act = self.helpers["RL"].predict(obs)
            self.env.step({**act, "mode": act["mode"][:2]})

    envs = lambda: gym.vector.SyncVectorEnv([Crane] * 3)  # noqa: E731
    with pytest.raises(AgentFailed, match="expected rows for 3 environments in each part"), \
            Robot(envs, tasks={"RL": task_of()}, agent=Short) as robot:
        robot.run(10)


@pytest.mark.parametrize("driver", [Processes(workers=2), OVER_RAY], ids=lambda one: one.name)
@pytest.mark.parametrize("serve", ["central", "replica"])
def test_workers_act_and_learn_as_one_process_does(serve, driver):
    def weights(driver, **options):
        task = task_of(**options)
        with Robot(Crane, tasks={"RL": task}, n_agents=2, driver=driver, seed=1) as robot:
            for _ in range(2):
                robot.train_iter()
            return torch.nn.utils.parameters_to_vector(task.algorithm.model.parameters())

    # Nearly equal: a replica predicts one row at a time, which torch rounds in another way than two.
    torch.testing.assert_close(weights(driver, serve=serve), weights("cooperative"), rtol=1e-3, atol=1e-5)


def test_threads_act_and_learn():
    with Robot(Crane, tasks={"RL": task_of()}, n_agents=3, driver="threads", seed=1) as robot:
        robot.run(StopAfterSteps(200))
        assert robot.tasks["RL"].learns >= 2


def test_actions_by_hand_are_nested_like_the_space():
    """One greedy action, and three of them stacked."""
    with Robot(Crane, tasks={"RL": task_of()}, seed=1) as robot, Robot(Pair, tasks={"RL": task_of(Pair)}, seed=1) as pairs:
        obs = Crane.observation_space.sample()
        one = robot.act(obs)
        many = robot.act({"mask": {"arm": {"grip": np.ones((3, 3), np.int8)}}, "x": np.zeros((3, 3), np.float32)})
        assert SPACE.contains(one) and many["arm"]["reach"].shape == (3, 2) and many["pair"][1].shape == (3,)
        which, number = pairs.act(np.zeros(1, np.float32))
        assert type(which) is int and number.shape == (1,)


def test_off_policy_rows_hold_them_too():
    """Rows for an algorithm that draws them at random come nested, as they were stored."""
    seen = []

    class Looks(A2C):
        from parl_like.learning.algorithm import Window
        window = Window(in_order=False)

        def process(self, batch):
            seen.append(batch.act)
            return batch

        def learn(self, batch):
            out, _ = self.model.evaluate(batch.obs)
            return {"loss": -self.model.head.log_prob(out, batch.act).mean()}

    func = create_algorithm_func(MLPActorCritic, dict(obs=Crane.observation_space, act=SPACE, hidden=[8]), Looks, {})
    task = ComputationTask(func, lambda: OffPolicyHelper(size=100, batch_size=8, learn_every=8))
    with Robot(Crane, tasks={"RL": task}, seed=0) as robot:
        robot.run(40)
    assert seen and seen[0].arm.reach.shape == (8, 2) and seen[0].pair["1"].shape == (8,) and seen[0].mode.dtype == torch.int64


@pytest.mark.slow
def test_every_part_is_learned():
    """Random play earns about 0.5 − 0.5 − … a step; what is right in both parts earns 10 an episode."""
    with Robot(Pair, tasks={"RL": task_of(Pair, unroll=64, lr=3e-3)}, n_agents=8, seed=0) as robot:
        before = robot.evaluate(20).mean_return
        robot.run(StopAfterSteps(12_000))
        after = robot.evaluate(20).mean_return
    assert before < 4 and after > 7, (before, after)


def test_a_robot_of_one_line_takes_them():
    with Robot.of("PPO", Pair, n_agents=2, unroll=8) as robot:
        robot.run(64)
        assert robot.tasks["RL"].learns
    with pytest.raises(ValueError, match="MLPQ: act is .*expected Discrete"):
        Robot.of("DQN", Pair)


# -------------------------------------------------------------------------------------------------- off-policy: SAC and BDQ


class Choices(gym.Env):
    """Choices alone, of which an illegal one of `b` is an error: (1 if x > 0 in `a`, all of `b` like the sign of x)."""

    action_space = Dict({"a": Discrete(2, start=5), "b": Tuple((MultiDiscrete([2, 3]), MultiBinary(1)))})
    observation_space = Dict({"mask": Dict({"b": Tuple((MultiBinary(5),))}), "x": Box(-1, 1, (1,), np.float32)})

    def obs(self):
        self.x = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return {"mask": {"b": (np.array([1, 1, 1, 1, 0], np.int8),)}, "x": self.x}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 10
        return self.obs(), {}

    def step(self, act):
        two, flag = act["b"]
        assert self.action_space.contains(act) and two[1] < 2, act
        side = int(self.x[0] > 0)
        self.left -= 1
        rew = float(act["a"] - 5 == side) + float(two[0] == side) + float(two[1] == side) + float(flag[0] == side)
        return self.obs(), rew / 4, False, self.left == 0, {}


def test_values_and_policy_of_a_structured_action_worked_out_by_hand():
    """π of `a` is (¾, ¼); q = (1, 2) of `a`, (0, 4, 8) of `b` (uniform), and the numbers are drawn."""
    space = Dict({"a": Discrete(2), "b": MultiDiscrete([3]), "x": Box(-1, 1, (2,), np.float32)})
    model = MLPActorQ(Box(-1, 1, (1,)), space, (4,), critics=1)
    a, _, x = model.parts.heads
    with torch.no_grad():
        for head in model.parts.heads:
            head.linear.weight.zero_()
            head.linear.bias.zero_()
        a.linear.bias.copy_(torch.tensor([math.log(3.0), 0.0]))
    model.values = lambda obs, numbers: torch.tensor([[[1.0, 2.0, 0.0, 4.0, 8.0]]]).expand(1, len(obs), 5)
    obs, noise = torch.zeros(1, 1), torch.tensor([[0.0, 1.0]])
    numbers, p, log_p = model.parts(model.policy(obs), noise)
    torch.testing.assert_close(p, torch.tensor([[0.75, 0.25, 1 / 3, 1 / 3, 1 / 3]]))
    torch.testing.assert_close(numbers, torch.tensor([[0.0, math.tanh(1.0)]]))
    torch.testing.assert_close(model.expected_q(obs, numbers, p), torch.tensor([[1.25 + 4.0]]))
    expected = torch.tensor([[0.75 * math.log(0.75) + 0.25 * math.log(0.25)], [math.log(1 / 3)]])
    torch.testing.assert_close(log_p[:2], expected)
    torch.testing.assert_close(log_p[2], x.log_prob({"mean": torch.zeros(1, 2), "log_std": torch.zeros(1, 2)}, numbers))
    act = Batch({"a": torch.tensor([1]), "b": torch.tensor([[2]]), "x": numbers})
    assert model.q(obs, act).tolist() == [[2.0 + 8.0]]
    torch.testing.assert_close(model.parts.entropies(obs), torch.tensor([0.98 * math.log(2), 0.98 * math.log(3), -2.0]))


def test_default_entropies_count_legal_choices():
    model = MLPActorQ(Choices.observation_space, Choices.action_space, (4,))
    obs = Batch({"mask": {"b": {"0": torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 1, 0]])}}, "x": torch.zeros(2, 1)})
    wanted = [math.log(2), math.log(2) + math.log(2) / 2, math.log(2)]
    torch.testing.assert_close(model.parts.entropies(obs), 0.98 * torch.tensor(wanted))


@pytest.mark.parametrize("act", [Box(-1, 1, (2,), np.float32), Discrete(3)], ids=["Box", "Discrete"])
def test_sac_on_an_action_of_one_part_is_sac_on_that_part(act):
    """The same parameters after 20 updates; of choices with one critic, as the least of two is taken of the whole action."""
    obs, critics = Box(-1, 1, (3,), np.float32), 1 if isinstance(act, Discrete) else 2
    plain, parts = MLPActorQ(obs, act, (8,), critics=critics), MLPActorQ(obs, Dict({"a": act}), (8,), critics=critics)
    for one, other in zip(parts.parameters(), plain.parameters(), strict=True):
        one.data.copy_(other.data)
    tasks = [ComputationTask(SAC(model, lr=0.01)) for model in (plain, parts)]
    rng = np.random.default_rng(0)
    for task in tasks:
        task.algorithm.native_learn = lambda batch: None  # compiled loops draw the same noise, but round otherwise
    for seed in range(20):
        rows = {"obs": rng.normal(size=(8, 3)).astype(np.float32), "obs_next": rng.normal(size=(8, 3)).astype(np.float32),
                "rew": rng.normal(size=8).astype(np.float32), "terminated": rng.random(8) < 0.2}
        done = rng.integers(0, 3, 8) if critics == 1 else rng.uniform(-1, 1, (8, 2)).astype(np.float32)
        for task, name in zip(tasks, ("act", "act.a"), strict=True):
            task.algorithm.torch_rng.manual_seed(seed)
            task.learn({**rows, name: done})
    for one, other in zip(parts.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tasks[0].algorithm.log_alpha, tasks[1].algorithm.log_alpha[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("algorithm", "env"), [("SAC", Pair), ("SAC", Choices), ("REDQ", Choices), ("BDQ", Choices)])
def test_off_policy_agents_act_and_learn(algorithm, env, tmp_path):
    def build():
        more = {"updates": 1} if algorithm == "REDQ" else {}
        return Robot.of(algorithm, env, seed=1, n_agents=2, warmup=20, batch_size=8, learn_every=4, hidden=[8], trace=True,
                        total_steps=100, **more)

    with build() as robot, build() as other:
        robot.run(50)
        assert robot.tasks["RL"].learns > 5 and np.isfinite(robot.evaluate(2).returns).all()
        robot.save(tmp_path / "c")
        other.load(tmp_path / "c")
        for one in (robot, other):
            one.run(50)
        assert robot.trace_hash() == other.trace_hash()
        if algorithm == "SAC":
            names = robot.tasks["RL"].algorithm.parts.names
            assert all(f"RL/{key}.{name}" in robot.metrics() for key in ("entropy", "alpha") for name in names)


def test_entropies_are_given_part_by_part():
    with Robot.of("SAC", Pair, target_entropy=[0.5, -2.0], warmup=8, batch_size=8) as robot:
        robot.run(20)
        assert robot.tasks["RL"].algorithm.wanted_entropy(None).tolist() == [0.5, -2.0]
    with pytest.raises(ValueError, match="target_entropy is -1.0; expected a number for each array of the action: 0, 1"):
        Robot.of("SAC", Pair, target_entropy=-1.0)
    with pytest.raises(ValueError, match="target_entropy is .*; expected one number"):
        Robot.of("SAC", "Pendulum-v1", target_entropy=[-1.0])


def test_an_unbounded_part_is_named():
    with pytest.raises(ValueError, match=r"act.pair.1 is Box.*unbounded Box actions are taken by A2C"):
        Robot.of("SAC", Crane)


def test_bdq_is_refused_real_numbers():
    with pytest.raises(ValueError, match="expected several choices.*Dict, Tuple actions are taken by .*SAC"):
        Robot.of("BDQ", Pair)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "env", "least"), [("SAC", Pair, 9.0), ("SAC", Choices, 9.0), ("BDQ", Choices, 9.0)])
def test_every_part_is_learned_off_policy(algorithm, env, least):
    """All right in both parts earns 10 an episode; random play 5 of choices, below 2 of the pair."""
    with Robot.of(algorithm, env, seed=0, n_agents=2, total_steps=6_000) as robot:
        robot.run(6_000)
        assert robot.evaluate(20).mean_return > least
