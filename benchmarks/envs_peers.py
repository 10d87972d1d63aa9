"""Sokoban of other libraries for `bench envs`: step functions of n boards, one thread, random actions, automatic reset. Each is
skipped where its library is not installed. Boxoban's size; their observations are grids of codes or planes, not pictures."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

ACTIONS = 512


def envpool(n: int) -> tuple[Callable[[int], Any], int]:
    """EnvPool (Weng et al. 2022): C++, grid [10, 10]; pushes four ways and noop are the first five actions."""
    import envpool as pool

    envs = pool.make_gymnasium("Sokoban-v0", num_envs=n, num_threads=1, seed=0)
    envs.reset()
    actions = np.random.default_rng(n).integers(0, min(5, int(envs.single_action_space.n)), (ACTIONS, n))
    return (lambda k: envs.step(actions[k % ACTIONS])), n


def _jumanji(n: int) -> tuple[Any, Any, Any]:
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    import jax
    from jumanji.environments.routing.sokoban.env import Sokoban
    from jumanji.environments.routing.sokoban.generator import ToyGenerator
    from jumanji.wrappers import AutoResetWrapper, VmapWrapper

    env = VmapWrapper(AutoResetWrapper(Sokoban(generator=ToyGenerator())))
    return jax, env, env.reset(jax.random.split(jax.random.key(0), n))[0]


def jumanji(n: int) -> tuple[Callable[[int], Any], int]:
    """Jumanji (Bonnet et al. 2024): JAX, compiled, called step by step, each result waited for."""
    jax, env, state = _jumanji(n)
    step, box = jax.jit(env.step), [state]
    actions = np.random.default_rng(n).integers(0, 4, (ACTIONS, n)).astype(np.int32)

    def one(k: int) -> None:
        box[0], step_out = step(box[0], actions[k % ACTIONS])
        jax.block_until_ready(step_out.observation.grid)

    return one, n


def jumanji_loop(n: int) -> tuple[Callable[[int], Any], int]:
    """The same as one compiled loop of 128 steps: nothing of it reaches Python in between."""
    jax, env, state = _jumanji(n)

    def body(state: Any, key: Any) -> tuple[Any, Any]:
        state, step_out = env.step(state, jax.random.randint(key, (n,), 0, 4))
        return state, step_out.reward

    loop = jax.jit(lambda state, key: jax.lax.scan(body, state, jax.random.split(key, 128)))
    box = [state]

    def one(k: int) -> None:
        box[0], rewards = loop(box[0], jax.random.key(k))
        jax.block_until_ready(rewards)

    return one, 128 * n


PEERS = {"EnvPool": envpool, "Jumanji, step by step": jumanji, "Jumanji, one compiled loop": jumanji_loop}
