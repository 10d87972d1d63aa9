"""End-to-end training steps per second on CartPole-v1: environments, acting, storing and learning, start-up not counted.

`ppo_cartpole` and `dqn_cartpole` share this file. Contestants: parl_like, a hand-written loop on gymnasium and torch alone as
tutorials have it, one from which every cost was taken that can be taken ("by hand, tuned"), and stable-baselines3
(skipped with a word when it is not installed), all with the same network, optimiser, batch sizes and number of optimiser steps,
on one torch thread.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.common import compare, machine, ratio, report
from parl_like import ComputationTask, OffPolicyHelper, OnPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import DQN, PPO
from parl_like.models import MLPQ, MLPActorCritic

ENV = "CartPole-v1"
BATCH = 1024
ZOO = dict(batch=8 * 32, epochs=20, minibatches=4)
"""PPO's unroll and updates of CartPole-v1 in the RL Zoo: minibatches of 64."""


def spaces() -> dict[str, Any]:
    env = gym.make(ENV)
    return {"obs": env.observation_space, "act": env.action_space}


# ------------------------------------------------------------------------------------------------------------------------ PPO


def ppo_ours(n_agents: int, steps: int, batch: int = BATCH, epochs: int = 4, minibatches: int = 4) -> float:
    func = create_algorithm_func(MLPActorCritic, dict(**spaces(), hidden=[64, 64], activation="tanh"), PPO,
                                 dict(gamma=0.99, lam=0.95, lr=3e-4, epochs=epochs, minibatches=minibatches, clip=0.2,
                                      max_grad_norm=0.5))
    with Robot(ENV, n_agents=n_agents,
               tasks={"RL": ComputationTask(func, helper=lambda: OnPolicyHelper(unroll=batch // n_agents))}) as robot:
        robot.train_iter()
        begin, before = perf_counter(), robot.env_steps
        for _ in robot.iterate(before + steps):
            pass
        seconds = perf_counter() - begin
        updates = robot.tasks["RL"].algorithm.updates
        assert updates == robot.iterations * epochs * minibatches, (updates, robot.iterations)
        return (robot.env_steps - before) / seconds


def ppo_by_hand(n_envs: int, steps: int) -> float:
    """Train PPO as tutorials write it in one file."""
    envs = gym.vector.SyncVectorEnv([lambda: gym.make(ENV)] * n_envs, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    horizon = BATCH // n_envs

    def net(out: int) -> torch.nn.Module:
        tanh = torch.nn.Tanh
        return torch.nn.Sequential(torch.nn.Linear(4, 64), tanh(), torch.nn.Linear(64, 64), tanh(), torch.nn.Linear(64, out))

    actor, critic = net(2), net(1)
    parameters = [*actor.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(parameters, lr=3e-4, eps=1e-5, fused=True)
    obs_b = torch.zeros(horizon, n_envs, 4)
    act_b = torch.zeros(horizon, n_envs, dtype=torch.long)
    logp_b, val_b, rew_b, end_b = (torch.zeros(horizon, n_envs) for _ in range(4))
    obs, _ = envs.reset(seed=0)
    rng = np.random.default_rng(0)

    def iteration() -> None:
        nonlocal obs
        with torch.inference_mode():
            for t in range(horizon):
                x = torch.from_numpy(obs)
                logp = torch.log_softmax(actor(x), 1)
                act = torch.multinomial(logp.exp(), 1)
                obs_b[t], act_b[t], logp_b[t], val_b[t] = x, act[:, 0], logp.gather(1, act)[:, 0], critic(x)[:, 0]
                obs, rew, terminated, truncated, _ = envs.step(act[:, 0].numpy())
                rew_b[t], end_b[t] = torch.from_numpy(rew), torch.from_numpy(terminated | truncated)
            nxt, adv, last = critic(torch.from_numpy(obs))[:, 0], torch.zeros(horizon, n_envs), torch.zeros(n_envs)
            for t in reversed(range(horizon)):
                alive = 1 - end_b[t]
                last = rew_b[t] + 0.99 * nxt * alive - val_b[t] + 0.99 * 0.95 * alive * last
                adv[t], nxt = last, val_b[t]
        data = [v.reshape(-1, *v.shape[2:]).clone() for v in (obs_b, act_b, logp_b, adv, adv + val_b)]
        for _ in range(4):
            order = torch.from_numpy(rng.permutation(BATCH))
            for k in range(0, BATCH, BATCH // 4):
                o, a, lp, ad, ret = (v[order[k : k + BATCH // 4]] for v in data)
                ad = (ad - ad.mean()) / (ad.std() + 1e-8)
                logits = torch.log_softmax(actor(o), 1)
                ratio = (logits.gather(1, a[:, None])[:, 0] - lp).exp()
                policy = -torch.min(ratio * ad, ratio.clamp(0.8, 1.2) * ad).mean()
                entropy = -(logits.exp() * logits).sum(1).mean()
                loss = policy + 0.5 * F.mse_loss(critic(o)[:, 0], ret) - 0.0 * entropy
                adam.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, 0.5)
                adam.step()

    iteration()
    begin = perf_counter()
    for _ in range(steps // BATCH):
        iteration()
    return steps // BATCH * BATCH / (perf_counter() - begin)


def ppo_careful(n_envs: int, steps: int, batch: int = BATCH, epochs: int = 4, minibatches: int = 4) -> float:
    """The same work by someone who measures: acting in NumPy, values once per unroll, each epoch's rows copied once.

    It is tied to these two networks and this loss; it is here to say what a general framework costs.
    """
    envs = gym.vector.SyncVectorEnv([lambda: gym.make(ENV)] * n_envs, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    horizon, rng, each = batch // n_envs, np.random.default_rng(0), np.arange(n_envs)

    def net(out: int) -> torch.nn.Sequential:
        tanh = torch.nn.Tanh
        return torch.nn.Sequential(torch.nn.Linear(4, 64), tanh(), torch.nn.Linear(64, 64), tanh(), torch.nn.Linear(64, out))

    actor, critic = net(2), net(1)
    parameters = [*actor.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(parameters, lr=3e-4, eps=1e-5, fused=True)
    obs = np.zeros((horizon + 1, n_envs, 4), np.float32)
    act, log_p = np.zeros((horizon, n_envs), np.int64), np.zeros((horizon, n_envs), np.float32)
    rew, alive = np.zeros((horizon, n_envs), np.float32), np.zeros((horizon, n_envs), np.float32)
    obs[0], _ = envs.reset(seed=0)

    def iteration() -> None:
        w0, b0, w1, b1, w2, b2 = (p.detach().numpy().T.copy() for p in actor.parameters())
        noise = rng.random((horizon, n_envs, 1), np.float32)
        for t in range(horizon):
            logits = np.tanh(np.tanh(obs[t] @ w0 + b0) @ w1 + b1) @ w2 + b2
            logits -= logits.max(1, keepdims=True)
            below = np.exp(logits).cumsum(1)
            act[t] = (noise[t] * below[:, -1:] >= below).sum(1)
            log_p[t] = logits[each, act[t]] - np.log(below[:, -1])
            obs[t + 1], rew[t], terminated, truncated, _ = envs.step(act[t])
            alive[t] = ~(terminated | truncated)
        with torch.inference_mode():
            value = critic(torch.from_numpy(obs))[..., 0].numpy()
        error = rew + 0.99 * value[1:] * alive - value[:-1]
        adv, last = np.empty_like(error), np.zeros(n_envs, np.float32)
        for t in reversed(range(horizon)):
            adv[t] = last = error[t] + 0.99 * 0.95 * alive[t] * last
        data = [obs[:-1].reshape(batch, 4), *(x.reshape(batch) for x in (act, log_p, adv, adv + value[:-1]))]
        for _ in range(epochs):
            order = rng.permutation(batch)
            rows = [torch.from_numpy(x[order]) for x in data]
            for k in range(0, batch, batch // minibatches):
                o, a, old, ad, ret = (x[k : k + batch // minibatches] for x in rows)
                ad = (ad - ad.mean()) / (ad.std() + 1e-8)
                change = (-F.cross_entropy(actor(o), a, reduction="none") - old).exp()
                policy = -torch.min(change * ad, change.clamp(0.8, 1.2) * ad).mean()
                loss = policy + 0.5 * F.mse_loss(critic(o)[:, 0], ret)
                adam.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, 0.5, foreach=True)
                adam.step()
        obs[0] = obs[-1]

    iteration()
    begin = perf_counter()
    for _ in range(steps // batch):
        iteration()
    return steps // batch * batch / (perf_counter() - begin)


def ppo_sb3(n_envs: int, steps: int, batch: int = BATCH, epochs: int = 4, minibatches: int = 4) -> float:
    from stable_baselines3 import PPO as Peer
    from stable_baselines3.common.env_util import make_vec_env

    model = Peer("MlpPolicy", make_vec_env(ENV, n_envs), n_steps=batch // n_envs, batch_size=batch // minibatches,
                 n_epochs=epochs, learning_rate=3e-4, device="cpu", policy_kwargs=dict(net_arch=[64, 64]))
    model.learn(batch)
    begin = perf_counter()
    model.learn(steps)
    return model.num_timesteps / (perf_counter() - begin)


# ------------------------------------------------------------------------------------------------------------------------ DQN


def dqn_ours(learn_every: int, steps: int, n_agents: int = 1) -> float:
    func = create_algorithm_func(MLPQ, dict(**spaces(), hidden=[64, 64]), DQN,
                                 dict(gamma=0.99, lr=1e-3, target_period=500, double=False, epsilon=0.1))
    helper = lambda: OffPolicyHelper(size=50_000, batch_size=64, learn_every=learn_every, warmup=200)  # noqa: E731
    with Robot(ENV, n_agents=n_agents, tasks={"RL": ComputationTask(func, helper=helper)}) as robot:
        for _ in robot.iterate(300):
            pass
        begin, before, updates = perf_counter(), robot.env_steps, robot.tasks["RL"].algorithm.updates
        for _ in robot.iterate(before + steps):
            pass
        seconds, done = perf_counter() - begin, robot.env_steps - before
        learned = robot.tasks["RL"].algorithm.updates - updates
        assert abs(learned - done / learn_every) <= 1 + n_agents, (learned, done)
        return done / seconds


def dqn_by_hand(learn_every: int, steps: int) -> float:
    env = gym.make(ENV)

    def net() -> torch.nn.Module:
        relu = torch.nn.ReLU
        return torch.nn.Sequential(torch.nn.Linear(4, 64), relu(), torch.nn.Linear(64, 64), relu(), torch.nn.Linear(64, 2))

    q, target = net(), net()
    target.load_state_dict(q.state_dict())
    adam = torch.optim.Adam(q.parameters(), lr=1e-3, fused=True)
    size = 50_000
    obs_b, next_b = np.zeros((size, 4), np.float32), np.zeros((size, 4), np.float32)
    act_b, rew_b, end_b = np.zeros(size, np.int64), np.zeros(size, np.float32), np.zeros(size, np.float32)
    rng = np.random.default_rng(0)
    obs, _ = env.reset(seed=0)
    begin, updates = 0.0, 0
    for t in range(steps + 300):
        if t == 300:
            begin = perf_counter()
        if rng.random() < 0.1:
            act = int(rng.integers(2))
        else:
            with torch.inference_mode():
                act = int(q(torch.from_numpy(obs)[None]).argmax())
        nxt, rew, terminated, truncated, _ = env.step(act)
        i = t % size
        obs_b[i], next_b[i], act_b[i], rew_b[i], end_b[i] = obs, nxt, act, rew, terminated
        obs = env.reset()[0] if terminated or truncated else nxt
        if t >= 200 and t % learn_every == 0:
            k = rng.integers(0, min(t + 1, size), 64)
            o, n, a, r, e = (torch.from_numpy(v[k]) for v in (obs_b, next_b, act_b, rew_b, end_b))
            with torch.no_grad():
                y = r + 0.99 * (1 - e) * target(n).amax(1)
            loss = F.smooth_l1_loss(q(o).gather(1, a[:, None])[:, 0], y)
            adam.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(q.parameters(), 10)
            adam.step()
            updates += 1
            if updates % 500 == 0:
                target.load_state_dict(q.state_dict())
    return steps / (perf_counter() - begin)


def dqn_careful(learn_every: int, steps: int) -> float:
    """The same by someone who measures: acting and targets in NumPy on the memory of the weights, one gather for each column."""
    env = gym.make(ENV, disable_env_checker=True)
    relu, batch, size = torch.nn.ReLU, 64, 50_000
    q = torch.nn.Sequential(torch.nn.Linear(4, 64), relu(), torch.nn.Linear(64, 64), relu(), torch.nn.Linear(64, 2))
    parameters = list(q.parameters())
    w0, b0, w1, b1, w2, b2 = weights = [p.detach().numpy() for p in parameters]
    target = [w.copy() for w in weights]
    adam = torch.optim.Adam(parameters, lr=1e-3, fused=True)
    obs_b, next_b = np.zeros((size, 4), np.float32), np.zeros((size, 4), np.float32)
    act_b, rew_b, alive_b = np.zeros((size, 1), np.int64), np.zeros(size, np.float32), np.zeros(size, np.float32)
    rng = np.random.default_rng(0)
    obs, _ = env.reset(seed=0)
    begin, updates, maximum = 0.0, 0, np.maximum
    for t in range(steps + 300):
        if t == 300:
            begin = perf_counter()
        if rng.random() < 0.1:
            act = int(rng.integers(2))
        else:
            left, right = w2 @ maximum(w1 @ maximum(w0 @ obs + b0, 0.0) + b1, 0.0) + b2
            act = int(right > left)
        nxt, rew, terminated, truncated, _ = env.step(act)
        i = t % size
        obs_b[i], next_b[i], act_b[i], rew_b[i], alive_b[i] = obs, nxt, act, rew, not terminated
        obs = env.reset()[0] if terminated or truncated else nxt
        if t >= 200 and t % learn_every == 0:
            k = rng.integers(0, min(t + 1, size), batch)
            v0, c0, v1, c1, v2, c2 = target
            best = (maximum(maximum(next_b.take(k, 0) @ v0.T + c0, 0.0) @ v1.T + c1, 0.0) @ v2.T + c2).max(1)
            y = torch.from_numpy(rew_b.take(k) + np.float32(0.99) * alive_b.take(k) * best)
            chosen = q(torch.from_numpy(obs_b.take(k, 0))).gather(1, torch.from_numpy(act_b.take(k, 0)))[:, 0]
            adam.zero_grad(set_to_none=True)
            F.smooth_l1_loss(chosen, y).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 10, foreach=True)
            adam.step()
            updates += 1
            if updates % 500 == 0:
                target = [w.copy() for w in weights]
    return steps / (perf_counter() - begin)


def dqn_sb3(learn_every: int, steps: int) -> float:
    from stable_baselines3 import DQN as Peer

    model = Peer("MlpPolicy", gym.make(ENV), learning_starts=200, batch_size=64, train_freq=learn_every, gradient_steps=1,
                 buffer_size=50_000, learning_rate=1e-3, target_update_interval=500, exploration_fraction=1e-6,
                 exploration_final_eps=0.1, device="cpu", policy_kwargs=dict(net_arch=[64, 64]))
    model.learn(300)
    begin = perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    return steps / (perf_counter() - begin)


# ----------------------------------------------------------------------------------------------------------------------- both


def run(name: str, cases: dict[str, dict[str, Callable[[float], float]]], argv: list[str] | None) -> int:
    """Compares the contestants of each case and prints the rates with their ratios to stable-baselines3 and to the loops.

    Args:
        cases: Case → contestant → a function of the share of the steps that returns steps per second.
    """
    parser = argparse.ArgumentParser(prog=f"parl-like bench {name}", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the steps, for a quick look")
    parser.add_argument("--case", choices=list(cases), action="append", help="default: all")
    options = parser.parse_args(argv)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    result: dict[str, Any] = {"bench": name, "unit": "environment steps/s", "machine": machine(), "cases": {}}
    peers = find_spec("stable_baselines3") is not None
    lines = [] if peers else ["stable-baselines3 is not installed: skipped (pip install 'parl_like[peers]')"]
    for case in options.case or cases:
        contestants = {k: partial(v, options.scale) for k, v in cases[case].items() if peers or k != "stable-baselines3"}
        rates = compare(contestants, options.rounds)
        ratios = {f"vs {other}": ratio(rates["parl_like"], rates[other]) for other in rates if other != "parl_like"}
        result["cases"][case] = {"rates": rates, "ratios": ratios}
        lines.append(f"{case}: " + ", ".join(f"{k} {v['median']:,.0f}" for k, v in rates.items()) + "; "
                     + ", ".join(f"{k} {v:.2f}×" for k, v in ratios.items()))
    report(result, options.json, lines)
    return 0
