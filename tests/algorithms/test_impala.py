"""IMPALA: golden numbers of both reward streams, the loss written out in NumPy, and what must not matter."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from return_twins import vtrace_reference
from torch import nn

from parl_like import ComputationTask
from parl_like.algorithms import A2C, IMPALA, Stream
from parl_like.algorithms.impala import Recent, env_reward, planning_reward, thinker_streams
from parl_like.learning.algorithm import Linear
from parl_like.learning.model import Model
from parl_like.models import MLPActorCritic, MultiCategoricalHead, RecurrentActorCritic
from parl_like.values.batch import Batch

BOX = gym.spaces.Box(-1, 1, (3,), np.float32)
INF = np.inf

# `vtrace` of the golden file: K = 4, γ = ½; two stages, the second ends with the end of an episode.
STATUS = [1, 1, 2, 0, 1, 1, 2, 0]  # after the action of the row
DONE = [0, 0, 0, 0, 0, 0, 0, 1]
REAL = [0, 0, 0, 1.0, 0, 0, 0, -0.5]
PLANNING = [0.25, 0, 0.5, 0, 0.125, 0, 0, 0]
VALUES = [[0.1, 0.2], [0.0, 0.1], [0.3, -0.1], [0.2, 0.0], [0.1, 0.4], [0.0, 0.0], [-0.2, 0.1], [0.05, 0.2],
          [0.4, 0.3]]  # and the bootstrap
LOG_RHO = [0.0, 0.1, -0.2, 0.3, 0.0, -0.5, 0.2, 0.0]
GOLDEN = {
    "real": dict(vs=[0.451455, 0.536874, 0.638454, 0.848367, -0.180323, -0.214441, -0.420448, -0.5],
                 weight=[0.351455, 0.536874, 0.338454, 0.648367, -0.280323, -0.214441, -0.220448, -0.55], mask=[1] * 8),
    "planning": dict(vs=[0.526647, 0.328991, 0.391238, 0.105112, 0.125, 0.0, 0.0, 0.252269],
                     weight=[0.326647, 0.228991, 0.491238, 0.0, -0.275, 0.0, -0.1, 0.0], mask=[1, 1, 1, 0, 1, 1, 1, 0]),
}


class Table(Model):
    """Logits of (2 actions, reset) and two baselines for each of nine rows, whatever else is observed."""

    def __init__(self):
        super().__init__(gym.spaces.Dict(row=gym.spaces.Discrete(9), step_status=gym.spaces.Discrete(4),
                                         last_rew=gym.spaces.Box(-INF, INF, (2,))),
                         gym.spaces.MultiDiscrete([2, 2]))
        generator = torch.Generator().manual_seed(0)
        self.logits = nn.Parameter(torch.randn(9, 4, generator=generator))
        self.values = nn.Parameter(torch.tensor(VALUES))
        self.head = MultiCategoricalHead(1, [2, 2])

    def evaluate(self, obs, state=None, first=None):
        out = {"logits": self.logits[obs["row"]]}
        return {**out, "reg": out["logits"].square().sum(1)}, self.values[obs["row"]]


def table_rows(model, vector=False):
    act = torch.tensor([[i % 2, i // 2 % 2] for i in range(8)])
    rewards = torch.tensor([REAL, PLANNING]).T.double()
    status = torch.tensor(STATUS)
    before = torch.cat([torch.tensor([0]), status[:-1]])
    ends = torch.tensor(DONE).bool()
    obs = Batch(row=torch.arange(8), step_status=before, last_rew=torch.zeros(8, 2))
    obs_next = Batch(row=torch.arange(1, 9), step_status=status, last_rew=torch.zeros(8, 2) if vector else rewards.float())
    with torch.no_grad():
        log_prob = model.head.log_prob({"logits": model.logits[:8]}, act)
    return Batch(obs=obs, act=act, rew=rewards if vector else rewards[:, 0], terminated=ends,
                 truncated=torch.zeros(8, dtype=torch.bool), obs_next=obs_next,
                 last=ends, policy=Batch(log_prob=log_prob - torch.tensor(LOG_RHO)))


@pytest.mark.parametrize("vector", [False, True], ids=["from last_rew", "from rew"])
def test_golden_numbers_of_both_streams(vector):
    algorithm = IMPALA(Table(), streams=thinker_streams(0.5, 4))
    batch = table_rows(algorithm.model, vector)
    out, value, boot = algorithm.unroll(batch)
    assert boot.tolist() == torch.tensor(VALUES[8:]).tolist() and value.tolist() == torch.tensor(VALUES[:8]).tolist()
    log_ratio = algorithm.model.head.log_prob(out, batch.act).detach() - batch.policy.log_prob
    np.testing.assert_allclose(log_ratio, LOG_RHO, atol=1e-6)
    for i, stream in enumerate(algorithm.streams):
        assert stream.gamma == pytest.approx(0.8408964152537145)
        golden = GOLDEN[stream.name]
        vs, advantage, counts = algorithm.targets(i, batch, value[:, i].detach(), boot[:, i], log_ratio)
        np.testing.assert_allclose(vs, golden["vs"], atol=2e-6)
        np.testing.assert_allclose(advantage * counts, golden["weight"], atol=2e-6)
        np.testing.assert_array_equal(counts, golden["mask"])


def test_the_loss_of_both_streams_is_the_sum_that_the_paper_writes():
    """Masked rows of the planning reward are left out; the entropy costs 1e-3 in real rows and 1e-4 in imagined ones."""
    streams = thinker_streams(0.5, 4, cost=Linear(1.0, 0.0, 10), entropy=1e-4)
    algorithm = IMPALA(Table(), streams=streams, entropy=1e-3, reg=1e-3, reduction="sum", value_weight=0.5)
    batch = table_rows(algorithm.model)
    model = algorithm.model
    with torch.no_grad():
        out, value = model.evaluate(batch.obs)
        log_prob, entropy = model.head.log_prob(out, batch.act).numpy(), model.head.entropy(out).numpy()
    for algorithm.updates, c in ((0, 1.0), (4, 0.6), (10, 0.0), (11, 0.0)):
        expected = {}
        for i, name in enumerate(GOLDEN):
            golden = {key: np.array(numbers) for key, numbers in GOLDEN[name].items()}
            expected[f"{name}_policy_loss"] = -(golden["weight"] * log_prob).sum()
            expected[f"{name}_value_loss"] = (golden["mask"] * (golden["vs"] - value[:, i].numpy()) ** 2).sum()
        imagined = np.array(GOLDEN["planning"]["mask"])
        loss = expected["real_policy_loss"] + 0.5 * expected["real_value_loss"]
        loss += c * (expected["planning_policy_loss"] + 0.5 * expected["planning_value_loss"])
        loss -= (np.where(imagined, 1e-4, 1e-3) * entropy).sum()
        loss += 1e-3 * float((model.logits[:8] ** 2).sum().detach())
        result = algorithm.learn(batch)
        assert {key: float(result[key].detach()) for key in expected} == pytest.approx(expected, rel=1e-4)
        assert float(result["loss"].detach()) == pytest.approx(loss, rel=1e-4)
    result["loss"].backward()
    assert (
        model.values.grad[:, 1].abs().max() == 0 < model.values.grad[:8, 0].abs().min()
    )  # cost 0; and the bootstrap learns nothing
    assert model.values.grad[8].tolist() == [0.0, 0.0]


def test_curiosity_is_a_third_reward_that_ends_with_the_episode():
    """Three rows of an episode, surprises 1, 2, 4, γ = 1/2 per row: returns 4, 2 + 4/2 = 4, 1 + 4/2 = 3. All values 0, all four
    joint actions as likely: loss = cost · (11 ln 4 + ½ (16 + 16 + 9))."""
    streams = thinker_streams(0.5, 1, cost=0.0, entropy=0.0, curiosity=Linear(0.8, 0.0, 4))
    algorithm = IMPALA(Table(), streams=streams, entropy=0.0, reduction="sum", value_weight=0.5)
    algorithm.model.logits.data.zero_()
    algorithm.model.values = nn.Parameter(torch.zeros(9, 3))
    last = torch.tensor([False, False, True])
    seen = torch.tensor([[0.0, 0.0, surprise] for surprise in (1.0, 2.0, 4.0)])
    batch = Batch(obs=Batch(row=torch.arange(3), step_status=torch.ones(3, dtype=torch.int64), last_rew=torch.zeros(3, 3)),
                  obs_next=Batch(row=torch.arange(1, 4), step_status=torch.ones(3, dtype=torch.int64), last_rew=seen),
                  act=torch.zeros(3, 2, dtype=torch.int64), rew=torch.zeros(3).double(), last=last, terminated=last,
                  truncated=torch.zeros(3, dtype=torch.bool))
    for algorithm.updates, cost in ((0, 0.8), (2, 0.4), (4, 0.0)):
        result = algorithm.learn(batch)
        assert float(result["curiosity_policy_loss"]) == pytest.approx(11 * np.log(4))
        assert float(result["curiosity_value_loss"]) == pytest.approx(41.0)
        assert float(result["loss"].detach()) == pytest.approx(cost * (11 * np.log(4) + 20.5), abs=1e-5)


def test_values_of_real_rows_teach_nothing_about_planning():
    """Of rows that acted for real, neither planning baseline nor reward changes the planning loss of the others."""
    algorithm = IMPALA(Table(), streams=thinker_streams(0.5, 4))
    batch = table_rows(algorithm.model)
    before = {k: float(v) for k, v in algorithm.learn(batch).items() if "planning" in k}
    with torch.no_grad():
        algorithm.model.values[[3, 7, 8], 1] += 9.0
    batch.obs_next.last_rew[[3, 7], 1] = 5.0
    assert {k: float(v) for k, v in algorithm.learn(batch).items() if "planning" in k} == before
    # Rows of K = 1, where status is always 3, have no stage to plan in.
    batch.obs.step_status[:] = batch.obs_next.step_status[:] = 3
    _, goes_on, counts = planning_reward(batch)
    assert not goes_on.any() and not counts.any()
    assert float(algorithm.learn(batch)["planning_policy_loss"]) == 0.0


# ------------------------------------------------------------------------------------------- as an ordinary algorithm, one stream


ACTS = {"discrete": gym.spaces.Discrete(4), "joint": gym.spaces.MultiDiscrete([2, 3]),
        "box": gym.spaces.Box(-1, 1, (2,), np.float32)}


def rows_of(space, n=12, seed=0):
    """Segments end with row 3 (terminated), 7 (truncated) and 11 (cut in the episode)."""
    rng = np.random.default_rng(seed)
    act = {"discrete": lambda: rng.integers(4, size=n), "joint": lambda: rng.integers([2, 3], size=(n, 2)),
           "box": lambda: rng.normal(size=(n, 2)).astype(np.float32)}
    last, terminated, truncated = np.zeros((3, n), bool)
    last[[3, 7, n - 1]], terminated[3], truncated[7] = True, True, True
    obs, obs_next = rng.uniform(-1, 1, (2, n, 3)).astype(np.float32)
    fields = {"obs": obs, "act": act[space](), "rew": rng.normal(size=n), "terminated": terminated, "truncated": truncated,
              "obs_next": obs_next, "last": last}
    return Batch({name: torch.from_numpy(value) for name, value in fields.items()})


def algorithm_of(space="discrete", kind=IMPALA, model=MLPActorCritic, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        algorithm = kind(model(obs=BOX, act=ACTS[space], hidden=[8]), **options)
        for parameter in algorithm.model.parameters():
            parameter.data += 0.3 * torch.randn(parameter.shape)
    return algorithm


@pytest.mark.parametrize("space", ACTS)
def test_with_rows_of_its_own_policy_it_is_a2c_with_n_step_returns(space):
    """ρ = 1 and λ = 1: V-trace is GAE with λ = 1. With rows of another policy it is not."""
    options = dict(gamma=0.9, lam=1.0, entropy=0.03, value_weight=0.7, reward_scale=0.5, lr=3e-3, max_grad_norm=0.5)
    tasks = [ComputationTask(algorithm_of(space, kind, **options, **more))
             for kind, more in ((IMPALA, {}), (A2C, {"normalize": False}), (IMPALA, {}))]
    start = [p.detach().clone() for p in tasks[0].algorithm.model.parameters()]
    for step in range(20):
        given = rows_of(space, seed=step).leaves()
        for i, task in enumerate(tasks):
            task.learn(given if i < 2 else {**given, "policy.log_prob": np.full(12, -0.9, np.float32)})
    impala, a2c, other = ([p.detach() for p in task.algorithm.model.parameters()] for task in tasks)
    for one, two, before in zip(impala, a2c, start, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
        assert (one - before).abs().max() > 1e-3
    assert not all(torch.allclose(one, two, rtol=1e-3, atol=1e-4) for one, two in zip(impala, other, strict=True))


@pytest.mark.parametrize("space", ACTS)
@pytest.mark.parametrize("faithful", [False, True])
def test_targets_of_an_older_policys_rows(space, faithful):
    """Against the reference of V-trace, with ρ̄ and c̄ of their own; a time limit is an end only where the original is
    followed."""
    algorithm = algorithm_of(space, gamma=0.9, lam=0.8, rho_bar=1.3, c_bar=0.9, reward_scale=0.5, faithful=faithful, entropy=0.0)
    batch = rows_of(space)
    out, value = algorithm.model.evaluate(batch.obs)
    boot = algorithm.model.value(batch.obs_next).detach().double().numpy()
    log_prob, value = algorithm.model.head.log_prob(out, batch.act).detach(), value.detach().double().numpy()
    log_ratio = np.linspace(-0.7, 0.7, 12)
    batch.policy = Batch(log_prob=log_prob - torch.from_numpy(log_ratio).float())
    last = batch.last.numpy()
    ends = (batch.terminated | batch.truncated if faithful else batch.terminated).numpy()
    after = np.where(last, boot, np.append(value[1:], 0.0))
    v, a = vtrace_reference(0.5 * batch.rew.numpy(), np.where(ends, 0.0, 0.9), value, after, log_ratio, last, 1.3, 0.9, 0.8)
    result = algorithm.learn(algorithm.process(batch))
    assert float(result["policy_loss"]) == pytest.approx(-(a * log_prob.numpy()).mean(), rel=1e-4)
    assert float(result["value_loss"]) == pytest.approx(((v - value) ** 2).mean(), rel=1e-4)
    assert float(result["rho"]) == pytest.approx(np.minimum(np.exp(log_ratio), 1.3).mean(), rel=1e-4)
    assert abs(a[7] - vtrace_reference(0.5 * batch.rew.numpy(), np.where(ends ^ batch.truncated.numpy(), 0.0, 0.9), value, after,
                                       log_ratio, last, 1.3, 0.9, 0.8)[1][7]) > 1e-3


def test_a_rows_duration_discounts_what_follows_it():
    algorithm = algorithm_of(gamma=0.9, lam=1.0)
    batch = rows_of("discrete")
    batch.duration, batch.last = torch.arange(1, 13), torch.ones(12, dtype=torch.bool)
    _, value, boot = algorithm.unroll(batch)
    expected = batch.rew + 0.9**batch.duration * ~batch.terminated * boot[:, 0] - value.detach()[:, 0]
    _, advantage, _ = algorithm.targets(0, batch, value[:, 0].detach(), boot[:, 0], torch.zeros(12))
    np.testing.assert_allclose(advantage, expected.float(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", [MLPActorCritic, RecurrentActorCritic])
def test_segments_never_meet(model):
    """A sum over a batch of segments is the sum over the segments alone, memory or none."""
    algorithm = algorithm_of(model=model, reduction="sum")
    batch = with_memory(algorithm, rows_of("discrete"))
    alone = [float(algorithm.learn(batch[begin:end])["loss"].detach()) for begin, end in ((0, 4), (4, 8), (8, 12))]
    assert float(algorithm.learn(batch)["loss"].detach()) == pytest.approx(sum(alone), rel=1e-5)


def with_memory(algorithm, batch):
    generator = torch.Generator().manual_seed(5)
    state = {name: torch.randn(12, *spec.shape, generator=generator) for name, spec in algorithm.model.state_specs().items()}
    batch.policy = Batch(log_prob=torch.randn(12, generator=generator) - 1.4)
    if state:
        batch.state = Batch(state)
    return batch


@pytest.mark.parametrize("lengths", [(4, 4, 4), (1, 9, 2), (12,)])
def test_memory_runs_from_each_segments_first_state_to_the_observation_behind_its_end(lengths):
    algorithm = algorithm_of(model=RecurrentActorCritic)
    batch = with_memory(algorithm, rows_of("discrete"))
    ends = np.cumsum(lengths)
    batch.last = torch.zeros(12, dtype=torch.bool)
    batch.last[ends - 1] = True
    with torch.no_grad():
        out, value, boot = algorithm.unroll(batch)
        values, logits, boots = [], [], []
        for begin, end in zip(ends - lengths, ends, strict=True):
            state = {name: part[begin : begin + 1] for name, part in batch.state.items()}
            for t in range(begin, end):
                values.append(algorithm.model.value(batch.obs[t : t + 1], state))
                step, state = algorithm.model.policy(batch.obs[t : t + 1], state)
                logits.append(step["logits"])
            boots.append(algorithm.model.value(batch.obs_next[end - 1 : end], state))
    torch.testing.assert_close(value[:, 0], torch.cat(values))
    torch.testing.assert_close(boot[:, 0], torch.cat(boots))
    torch.testing.assert_close(out["logits"], torch.cat(logits))


def test_sums_are_means_times_rows():
    losses = [
        float(algorithm_of(reduction=reduction).learn(rows_of("discrete"))["loss"].detach()) for reduction in ("mean", "sum")
    ]
    assert losses[1] == pytest.approx(12 * losses[0], rel=1e-5)


# ------------------------------------------------------------------------------------------------------------- normal advantages


@pytest.mark.parametrize("by", ["targets", "advantages", "batch", None])
def test_advantages_are_divided_by_the_range_of_what_was_seen(by):
    plain, algorithm = algorithm_of(), algorithm_of(return_norm=by, norm_floor=0.01)
    seen = []
    for seed in range(3):
        batch = rows_of("discrete", seed=seed)
        out, value, boot = plain.unroll(batch)
        v, a, _ = plain.targets(0, batch, value[:, 0].detach(), boot[:, 0], torch.zeros(12))
        seen.append({"targets": v, "advantages": a}.get(by, a))
        low, high = np.percentile(torch.cat(seen).numpy(), [5, 95])
        scaled = a if by is None else (a - a.mean()) / a.std() if by == "batch" else a / (high - low)
        log_prob = plain.model.head.log_prob(out, batch.act).detach()
        assert float(algorithm.learn(batch)["policy_loss"]) == pytest.approx(float(-(scaled * log_prob).mean()), rel=1e-4)
    wide = algorithm_of(return_norm=by, norm_floor=1e6)
    if by in ("targets", "advantages"):
        assert abs(float(wide.learn(batch)["policy_loss"])) < 1e-4


def test_only_the_newest_numbers_are_kept():
    recent = Recent(2, size=100)
    assert recent.spread(0, torch.zeros(0)) == 0.0
    numbers = np.random.default_rng(0).normal(size=930).astype(np.float32)
    at = 0
    for n in (30, 60, 70, 500, 20, 250):
        got = recent.spread(1, torch.from_numpy(numbers[at : at + n]))
        at += n
        low, high = np.percentile(numbers[max(at - 100, 0) : at], [5, 95])
        assert float(got) == pytest.approx(high - low, rel=1e-5)
    assert recent.count[0] == 0


def test_what_was_seen_is_saved_with_the_task():
    first, second = (ComputationTask(algorithm_of(return_norm="advantages")) for _ in range(2))
    first.learn(rows_of("discrete").leaves())
    second.load_state_dict(first.state_dict())
    recent = second.algorithm.recent
    assert recent.count.tolist() == [12] and torch.equal(recent.numbers, first.algorithm.recent.numbers)
    third = ComputationTask(algorithm_of(return_norm="advantages"))
    third.sync_from(first)
    assert third.algorithm.recent.count.tolist() == [12]
    assert "recent" not in algorithm_of().networks()


# ----------------------------------------------------------------------------------------------------------------------- refusals


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="c_bar is 1.0 and rho_bar 0.5"):
        algorithm_of(rho_bar=0.5)
    with pytest.raises(ValueError, match="reduction is 'max'"):
        algorithm_of(reduction="max")
    with pytest.raises(ValueError, match="return_norm 'returns'"):
        algorithm_of(return_norm="returns")
    with pytest.raises(ValueError, match=r"streams are \['real', 'real'\]; expected"):
        algorithm_of(streams=[Stream(gamma=0.9), Stream(gamma=0.5, read=env_reward)])
    with pytest.raises(ValueError, match="gamma is 1.5"):
        Stream(gamma=1.5)
    with pytest.raises(ValueError, match="stage is 0"):
        thinker_streams(0.9, 0)
    with pytest.raises(ValueError, match=r"has 1 baselines, and there are 2 streams \(real, planning\)"):
        algorithm_of(streams=thinker_streams(0.9, 4)).learn(rows_of("discrete"))
