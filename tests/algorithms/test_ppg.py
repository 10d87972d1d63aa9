"""PPG: the auxiliary phase by hand, what it moves, and that without one it is PPO."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import ComputationTask
from parl_like.algorithms import PPG, PPO
from parl_like.learning.model_check import ContractError
from parl_like.models import ConvActorCritic, MLPActorCritic, RecurrentActorCritic
from parl_like.values.batch import Batch

OBS, TWO = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)
NESTED = gym.spaces.Dict({"x": OBS, "mask": gym.spaces.MultiBinary(2)})


def rows(n=24, seed=0, nested=False):
    rng = np.random.default_rng(seed)
    obs, obs_next = rng.uniform(-1, 1, (2, n, 3)).astype(np.float32)
    last = np.arange(n) % 8 == 7
    made = {"act": rng.integers(2, size=n), "rew": rng.normal(size=n), "terminated": last, "truncated": np.zeros(n, bool),
            "last": last}
    if not nested:
        return made | {"obs": obs, "obs_next": obs_next}
    return made | {"obs.x": obs, "obs.mask": np.ones((n, 2), np.int8), "obs_next.x": obs_next,
                   "obs_next.mask": np.ones((n, 2), np.int8)}


def task_of(kind=PPG, obs=OBS, **options):
    torch.manual_seed(0)
    # by torch: the gradients of PPO are written out, and those of PPG are not, which round differently
    task = ComputationTask(kind(MLPActorCritic(obs, TWO, hidden=[8], auxiliary=True), minibatches=2, **{"lr": 3e-3, **options}),
                           native=False)
    task.build()
    return task


def same(one, other, **tolerance):
    return all(torch.allclose(a, b, **tolerance)
               for a, b in zip(one.algorithm.model.parameters(), other.algorithm.model.parameters(), strict=True))


def test_without_an_auxiliary_phase_it_is_ppo():
    ppg, ppo, other = task_of(policy_updates=100), task_of(PPO, epochs=1), task_of(policy_updates=3)
    for step in range(20):
        for task in (ppg, ppo, other):
            task.learn(rows(seed=step))
    assert same(ppg, ppo, rtol=0, atol=0) and not same(ppg, other, rtol=1e-2, atol=1e-3)


def test_the_auxiliary_loss_by_hand():
    """G = 1, 3; V' = 0, 1 and V = 1, 1: ½ (1 + 4) / 2 + ½ (0 + 4) / 2 = 2.25. The divergence of (¾, ¼) from (½, ½): 0.130812."""
    algorithm = task_of(clone=2.0).algorithm
    algorithm._phase = Batch(obs=torch.zeros(2, 3), returns=torch.tensor([1.0, 3.0]),
                             out=Batch(logits=torch.tensor([[np.log(3.0), 0.0]] * 2).float()))
    out = {"logits": torch.zeros(2, 2, requires_grad=True)}
    algorithm.model.auxiliary = lambda obs: (out, torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.0]))
    result = algorithm.learn(Batch(index=torch.tensor([0, 1])))
    assert result["loss"].item() == pytest.approx(2.25 + 2 * 0.130812, abs=1e-5)
    assert (result["aux_loss"].item(), result["clone_kl"].item()) == pytest.approx((1.25, 0.130812), abs=1e-5)


@pytest.mark.parametrize("nested", [False, True])
def test_a_phase_follows_so_many_updates_and_has_the_rows_of_all(nested):
    task = task_of(obs=NESTED if nested else OBS, policy_updates=3, aux_epochs=2, aux_minibatches=4)
    updates, plain, seen, sizes = [], task.algorithm.learn, [], set()

    def learn(batch):
        if "index" in batch:
            seen.extend(batch.index.tolist())
            sizes.add(len(task.algorithm._phase.returns))
        return plain(batch)

    task.algorithm.learn = learn
    for step in range(7):
        result = task.learn(rows(seed=step, nested=nested))
        updates.append(task.algorithm.updates)
        assert ("aux_loss" in result) is (step % 3 == 2)
    assert updates == [2, 4, 6 + 8, 16, 18, 20 + 8, 30] and len(task.algorithm._kept) == 1
    assert len(task.algorithm._kept[0]["returns"]) == 24 and task.algorithm._phase is None
    assert sizes == {72} and all(sorted(seen[k : k + 72]) == list(range(72)) for k in range(0, 4 * 72, 72))
    assert len(seen) == 4 * 72 and seen[:72] != seen[72:144]


def test_an_auxiliary_phase_has_all_updates_and_the_policy_of_its_beginning():
    """Each of its steps against the formula: rows and returns of three updates, π_old = π before the first step, about (0.9, 0.1)
    here. It moves far, so that no other policy gives these divergences."""
    task = task_of(policy_updates=3, aux_epochs=2, aux_minibatches=3, clone=2.0, lr=0.03)
    algorithm, model, updates, steps = task.algorithm, task.algorithm.model, [], []
    with torch.no_grad():
        model.head.linear.weight *= 3
        model.head.linear.bias += torch.tensor([2.0, 0.0])
    process, learn = algorithm.process, algorithm.learn

    def processed(batch):
        updates.append(process(batch))
        return updates[-1]

    def learned(batch):
        before, result = model.clone(), learn(batch)
        if "index" in batch:
            steps.append((before, batch.index, {name: value.item() for name, value in result.items()}))
        return result

    algorithm.process, algorithm.learn = processed, learned
    for seed in range(3):
        task.learn(rows(seed=seed))
    obs = torch.from_numpy(np.concatenate([rows(seed=seed)["obs"] for seed in range(3)]))
    returns = torch.cat([update.returns for update in updates])
    with torch.no_grad():
        old = torch.softmax(steps[0][0].policy(obs)[0]["logits"], -1)
        assert len(steps) == 6 and old[:, 0].mean() > 0.8
        for before, index, result in steps:
            out, value, second = before.auxiliary(obs[index])
            kl = (old[index] * (old[index].log() - torch.log_softmax(out["logits"], -1))).sum(1).mean().item()
            aux_loss, value_loss = (0.5 * (returns[index] - v).square().mean().item() for v in (second, value))
            assert result["clone_kl"] == pytest.approx(kl, rel=1e-3, abs=1e-6)
            assert result["aux_loss"] == pytest.approx(aux_loss, rel=1e-4)
            assert result["loss"] == pytest.approx(aux_loss + 2.0 * kl + value_loss, rel=1e-4)
    assert steps[0][2]["clone_kl"] == pytest.approx(0.0, abs=1e-6) and kl > 1e-3
    assert sorted(torch.cat([index for _, index, _ in steps[:3]]).tolist()) == list(range(72))


@pytest.mark.slow
def test_the_divergence_holds_the_policy_where_it_was():
    moved = []
    for clone in (0.0, 100.0):
        task = task_of(policy_updates=1, aux_epochs=20, clone=clone)
        task.algorithm.clip = 1e-9  # a policy phase that hardly moves it
        obs = torch.from_numpy(rows()["obs"])
        before = task.algorithm.model.clone()
        task.learn(rows())
        with torch.no_grad():
            model = task.algorithm.model
            moved.append(model.head.kl(before.policy(obs)[0], model.policy(obs)[0]).mean().item())
    assert moved[1] < 0.3 * moved[0]


def test_a_phase_that_is_half_over_is_saved():
    task, other = task_of(policy_updates=3), task_of(policy_updates=3)
    for step in range(2):
        task.learn(rows(seed=step))
    other.load_state_dict(task.state_dict())
    assert len(other.algorithm._kept) == 2
    for one in (task, other):
        assert "aux_loss" in one.learn(rows(seed=2))
    assert same(task, other, rtol=0, atol=0)


def test_models_that_cannot_be_are_refused():
    with pytest.raises(ContractError, match="has no second value; build it with auxiliary=True"):
        ComputationTask(PPG(MLPActorCritic(OBS, TWO)))
    with pytest.raises(TypeError, match="RecurrentActorCritic has a memory"):
        PPG(RecurrentActorCritic(OBS, TWO))
    with pytest.raises(ValueError, match="policy_updates is 0; expected at least 1"):
        PPG(MLPActorCritic(OBS, TWO, auxiliary=True), policy_updates=0)
    image = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    ComputationTask(PPG(ConvActorCritic(image, TWO, features=8, auxiliary=True)))
