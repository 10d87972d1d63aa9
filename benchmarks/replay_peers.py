"""The contestants of `bench replay`: ours, and the replay buffers of other libraries, each behind the same three calls.

    one(i)     stores row i
    many(i)    stores a row for each of LANES environments
    sample()   BATCH rows as they are learned from

A contestant is made for one kind of rows: 'rows' (float32[4]), 'images' (uint8 84 × 84, 4 frames), 'n-step' (3 rewards, γ = 0.99)
or 'prioritised' (`sample` then also sets new priorities). It raises NotImplementedError where its library has no such thing.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

LANES, BATCH, STACK, N_STEP, GAMMA = 64, 256, 4, 3, 0.99
ALPHA, BETA = 0.6, 0.4
SIZES = {"rows": 65_536, "images": 8_192, "n-step": 65_536, "prioritised": 65_536}
EPISODE = 200
FRAMES = np.random.default_rng(0).integers(0, 256, (1024 + STACK, 84, 84), np.uint8)
OBS = np.ones(4, np.float32)
TD = np.random.default_rng(1).random(BATCH)


def observation(kind: str, i: int) -> Any:
    return FRAMES[i % 1024 : i % 1024 + STACK] if kind == "images" else OBS


class Ours:
    def __init__(self, kind: str, lanes: int = 1, dicts: bool = False) -> None:
        from parl_like import PrioritizedReplayBuffer, ReplayBuffer, Spec

        options: dict[str, Any] = dict(stack_num=STACK, ignore_obs_next=True, save_only_last_obs=True) if kind == "images" else {}
        make: Any = partial(PrioritizedReplayBuffer, alpha=ALPHA, beta=BETA) if kind == "prioritised" else ReplayBuffer
        self.kind, self.dicts, self.buffer = kind, dicts, make(SIZES[kind], lanes, np.random.default_rng(0), **options)
        obs = observation(kind, 0)
        spec = partial(Spec, shape=(), dtype=np.dtype(bool))
        self.buffer.allocate([
            Spec("obs", obs.shape, obs.dtype), Spec("act", (), np.dtype(np.int64)), Spec("rew", (), np.dtype(np.float64)),
            spec("terminated"), spec("truncated"), Spec("obs_next", obs.shape, obs.dtype),
        ])  # fmt: skip
        self.names = [spec.name for spec in self.buffer.specs]
        self.lanes = np.arange(lanes)
        self.rows = tuple(np.stack([np.asarray(v, s.dtype)] * lanes) for s, v in zip(self.buffer.specs, self.row(0), strict=True))

    def row(self, i: int) -> tuple[Any, ...]:
        return observation(self.kind, i), 1, 1.0, i % EPISODE == EPISODE - 1, False, observation(self.kind, i + 1)

    def one(self, i: int) -> None:
        if self.dicts:
            self.buffer.add(dict(zip(self.names, self.row(i), strict=True)))
        else:
            self.buffer.push(0, self.row(i))

    def many(self, i: int) -> None:
        if self.dicts:
            self.buffer.add(dict(zip(self.names, self.rows, strict=True)), self.lanes)
        else:
            self.buffer.push_rows(self.lanes, self.rows)

    def sample(self) -> Any:
        if self.kind == "n-step":
            indices = self.buffer.sample_indices(BATCH)
            ahead = self.buffer.n_step(indices, N_STEP)
            rows = self.buffer.gather(indices, ahead["last_index"])
            return rows | {"rew": ahead["rew"] @ (GAMMA ** np.arange(N_STEP))}
        batch, indices = self.buffer.sample(BATCH)
        if self.kind == "prioritised":
            self.buffer.update_weight(indices, TD)
        return batch


class TianshouBuffer:
    def __init__(self, kind: str, lanes: int = 1) -> None:
        from tianshou.data import Batch, PrioritizedReplayBuffer, PrioritizedVectorReplayBuffer, ReplayBuffer, VectorReplayBuffer

        self.kind, self.Batch = kind, Batch
        options: dict[str, Any] = dict(stack_num=STACK, ignore_obs_next=True, save_only_last_obs=True) if kind == "images" else {}
        if kind == "prioritised":
            options = dict(alpha=ALPHA, beta=BETA)
            make = PrioritizedVectorReplayBuffer if lanes > 1 else PrioritizedReplayBuffer
        else:
            make = VectorReplayBuffer if lanes > 1 else ReplayBuffer
        self.buffer = make(SIZES[kind], buffer_num=lanes, **options) if lanes > 1 else make(SIZES[kind], **options)
        self.lanes = np.arange(lanes)
        self.rows = {name: np.stack([np.asarray(value)] * lanes) for name, value in self.row(0).items()}

    def row(self, i: int) -> dict[str, Any]:
        done = i % EPISODE == EPISODE - 1
        return dict(obs=observation(self.kind, i), act=1, rew=1.0, terminated=done, truncated=False,
                    obs_next=observation(self.kind, i + 1), info={})

    def one(self, i: int) -> None:
        self.buffer.add(self.Batch(self.row(i)))

    def many(self, i: int) -> None:
        self.buffer.add(self.Batch(self.rows), self.lanes)

    def sample(self) -> Any:
        batch, indices = self.buffer.sample(BATCH)
        if self.kind == "n-step":
            import torch
            from tianshou.algorithm.algorithm_base import Algorithm

            zeros = torch.zeros(BATCH)
            return Algorithm.compute_nstep_return(batch, self.buffer, indices, lambda *_: zeros, GAMMA, N_STEP)
        if self.kind == "prioritised":
            self.buffer.update_weight(indices, TD)
        return batch


class StableBaselines3:
    def __init__(self, kind: str, lanes: int = 1) -> None:
        import gymnasium as gym
        from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer

        if kind == "prioritised":
            raise NotImplementedError("no prioritised buffer")
        obs = observation(kind, 0)
        space = gym.spaces.Box(0, 255, obs.shape, obs.dtype.type)
        make: Any = partial(NStepReplayBuffer, n_steps=N_STEP, gamma=GAMMA) if kind == "n-step" else ReplayBuffer
        self.buffer = make(SIZES[kind], space, gym.spaces.Discrete(2), device="cpu", n_envs=lanes)
        self.kind, self.lanes = kind, lanes
        self.act, self.rew = np.ones((lanes, 1), np.int64), np.ones(lanes)
        self.obs, self.infos = np.stack([obs] * lanes), [{} for _ in range(lanes)]

    def one(self, i: int) -> None:
        done = np.array([i % EPISODE == EPISODE - 1])
        self.buffer.add(observation(self.kind, i)[None], observation(self.kind, i + 1)[None], self.act, self.rew, done,
                        self.infos)

    def many(self, i: int) -> None:
        self.buffer.add(self.obs, self.obs, self.act, self.rew, np.zeros(self.lanes, bool), self.infos)

    def sample(self) -> Any:
        return self.buffer.sample(BATCH)


class TorchRL:
    def __init__(self, kind: str, lanes: int = 1) -> None:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, PrioritizedSampler, ReplayBuffer, TensorDictReplayBuffer

        if kind == "n-step":
            raise NotImplementedError("n-step returns are made while collecting")
        self.kind, self.torch, self.TensorDict = kind, torch, TensorDict
        if kind == "prioritised":
            sampler = PrioritizedSampler(SIZES[kind], alpha=ALPHA, beta=BETA)
            self.buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(SIZES[kind]), sampler=sampler, batch_size=BATCH)
        else:
            self.buffer = ReplayBuffer(storage=LazyTensorStorage(SIZES[kind]), batch_size=BATCH)
        self.rows = self.row(0).expand(lanes).contiguous()
        self.td = torch.from_numpy(TD)

    def row(self, i: int) -> Any:
        tensor = self.torch.as_tensor
        return self.TensorDict({
            "observation": tensor(observation(self.kind, i)), "action": tensor(1), "next": {
                "reward": tensor([1.0]), "done": tensor([i % EPISODE == EPISODE - 1]),
                "observation": tensor(observation(self.kind, i + 1)),
            },
        })  # fmt: skip

    def one(self, i: int) -> None:
        self.buffer.add(self.row(i))

    def many(self, i: int) -> None:
        self.buffer.extend(self.rows)

    def sample(self) -> Any:
        batch = self.buffer.sample()
        if self.kind == "prioritised":
            self.buffer.update_priority(batch["index"], self.td)
        return batch


class Cpprb:
    def __init__(self, kind: str, lanes: int = 1) -> None:
        import cpprb

        obs = self.of(kind, 0)
        fields = {"obs": {"shape": obs.shape, "dtype": obs.dtype}, "act": {"dtype": np.int64}, "rew": {}, "done": {}}
        options: dict[str, Any] = {}
        if kind == "images":
            options = dict(next_of="obs", stack_compress="obs")
        else:
            fields["next_obs"] = fields["obs"]
        if kind == "n-step":
            options = dict(Nstep={"size": N_STEP, "gamma": GAMMA, "rew": "rew", "next": "next_obs"})
        if kind == "prioritised":
            options = dict(alpha=ALPHA)
        make = cpprb.PrioritizedReplayBuffer if kind == "prioritised" else cpprb.ReplayBuffer
        self.kind, self.buffer = kind, make(SIZES[kind], fields, **options)
        self.rows = {name: np.stack([np.asarray(value)] * lanes) for name, value in self.row(0).items()}

    @staticmethod
    def of(kind: str, i: int) -> Any:
        return observation(kind, i).transpose(1, 2, 0) if kind == "images" else OBS  # it wants the frames last

    def row(self, i: int) -> dict[str, Any]:
        return dict(obs=self.of(self.kind, i), act=1, rew=1.0, next_obs=self.of(self.kind, i + 1),
                    done=float(i % EPISODE == EPISODE - 1))

    def one(self, i: int) -> None:
        row = self.row(i)
        self.buffer.add(**row)
        if row["done"]:
            self.buffer.on_episode_end()

    def many(self, i: int) -> None:
        self.buffer.add(**self.rows)

    def sample(self) -> Any:
        if self.kind != "prioritised":
            return self.buffer.sample(BATCH)
        batch = self.buffer.sample(BATCH, beta=BETA)
        self.buffer.update_priorities(batch["indexes"], TD)
        return batch


PEERS: dict[str, Any] = {"tianshou": TianshouBuffer, "stable_baselines3": StableBaselines3, "torchrl": TorchRL, "cpprb": Cpprb}
