"""`make_vector_env`: n copies of an environment as one gymnasium vector environment: in this thread, in threads, or in worker
processes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

from parl_like.envs.make import Layers, make_env
from parl_like.envs.vector.compiled import parts_of as known_parts
from parl_like.envs.vector.group import SPACES, AlreadyBatched, EnvFailed, Group
from parl_like.envs.vector.group_env import GroupVectorEnv
from parl_like.envs.vector.hosts import HOSTS, Host, InlineHost, ProcessHost, ThreadHost

__all__ = [
    "EnvFailed", "GroupVectorEnv", "Host", "InlineHost", "ProcessHost", "ThreadHost", "create_env", "make_vector_env", "together",
]


def make_vector_env(
    env_fn: str | Callable[[], Any] | VectorEnv[Any, Any, Any], n: int | None = None, kind: str | type[Host] = "sync", *,
    seed: int | None = None, autoreset: AutoresetMode | str | None = None, step_timeout: float | None = None,
    start_timeout: float | None = 120.0, restart: bool = False, workers: int | None = None, copy: bool = True,
    inline: bool = False,
) -> VectorEnv[Any, Any, Any]:
    """n environments as one. The same seeds give the same trajectories with every kind, and as n single environments.

    gymnasium's classic control, FrozenLake, CliffWalking and Taxi, as `make_env` makes them, take one compiled step together with
    kind "sync"; nothing but the speed is another (`parl_like.envs.vector.compiled`).

    Args:
        env_fn: Makes one environment; or an id for `make_env`; or a vector environment, or a factory of one, which is passed
            through: gymnasium's, `SokobanVectorEnv`, `ale_py.vector_env.AtariVectorEnv`, EnvPool's (`envpool.make_gymnasium`,
            which is seeded there). No option of this function is for those.
        n: Environments. None: those of the vector environment that is passed through.
        kind: "sync": here. "thread": for environments that wait or release the GIL. "process": in worker processes, which make
            them; observations, actions, rewards and flags lie in shared memory. Or a `Host` of your own.
        seed: For the first reset, where that is not given one: environment i gets seed + i.
        autoreset: When finished episodes are reset: a gymnasium `AutoresetMode`. None: SAME_STEP.
        step_timeout: Seconds that one `step` or `reset` of an environment may take. None: any time. Not for "sync".
        start_timeout: Seconds that a thread or process may take to start and to make its environments, for each of them. None:
            any time. It says which factory hangs; a slow import is no hang, so it is long. Not for "sync", where it is ignored.
        restart: An environment that raises, returns what it must not, hangs, or loses its process is rebuilt with a fresh seed:
            its open episode ends there, truncated, with reward 0 at the last observation seen, and `restarted`, `dropped` and
            `fault` in the infos of that step; a VectorAgent does not store it. An environment that fails again within a minute
            waits up to a second before it is rebuilt, and is given up after ten times. False: `EnvFailed` is raised, and
            everything closed.
        workers: Threads or processes. None: a thread each; as many processes as there are cores, but with `restart` one each, for
            environments that share a process are lost together when it dies or hangs.
        copy: False: observations are views of one array each, overwritten by the next call.
        inline: For debugging: kind "sync" whatever `kind` says, no time limit, no compiled steps, and no environment but the n.

    Raises:
        ValueError: Options that do not go together; spaces that differ.
        TypeError: A space without a fixed size.
        EnvFailed: An environment could not be made.
    """
    options: dict[str, Any] = {"seed": seed, "autoreset": autoreset, "step_timeout": step_timeout, "restart": restart or None,
                               "workers": workers, "copy": None if copy else False}
    given = [name for name, value in options.items() if value is not None]
    if isinstance(env_fn, VectorEnv):
        return _passed(env_fn, n, given)
    if isinstance(env_fn, str):
        env_fn = partial(make_env, env_fn)
    if not callable(env_fn):
        raise ValueError(f"make_vector_env: {env_fn!r} makes no environment; expected an id, a factory or a vector environment")
    if n is None or (isinstance(env_fn, type) and issubclass(env_fn, VectorEnv)):
        made = env_fn()
        if isinstance(made, VectorEnv):
            return _passed(made, n, given, ours=True)
        made.close()
    if n is None or n < 1:
        raise ValueError(f"make_vector_env: n is {n}; expected at least 1 environment of {env_fn!r}, which makes a single one")
    if inline:
        kind, step_timeout = "sync", None
    if isinstance(kind, str) and kind not in HOSTS:
        raise ValueError(f"make_vector_env: kind is {kind!r}; expected one of {sorted(HOSTS)}, or a Host")
    host = HOSTS[kind] if isinstance(kind, str) else kind
    if step_timeout is not None and (not step_timeout > 0 or not host.limits_time):
        raise ValueError(f"make_vector_env: step_timeout is {step_timeout} for kind {kind!r}; expected more than 0 s, and kind "
                         "'process' or 'thread': what runs in the calling thread cannot be left")
    if start_timeout is not None and not start_timeout > 0:
        raise ValueError(f"make_vector_env: start_timeout is {start_timeout}; expected more than 0 s, or None for no limit")
    if workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = 1 if host is InlineHost else n if host is ThreadHost or restart else min(cores, n)
    if not 1 <= workers <= n:
        raise ValueError(f"make_vector_env: workers is {workers}; expected 1 to {n}, the number of environments")
    try:
        return GroupVectorEnv(env_fn, n, host, workers, seed=seed, mode=AutoresetMode(autoreset or AutoresetMode.SAME_STEP),
                              step_timeout=step_timeout or math.inf, start_timeout=start_timeout or math.inf, restart=restart,
                              copy=copy, compiled=not inline)
    except AlreadyBatched:
        batched: Any = env_fn()
        return _passed(batched, n, given, ours=True)


def _passed(env: VectorEnv[Any, Any, Any], n: int | None, given: Sequence[str], ours: bool = False) -> VectorEnv[Any, Any, Any]:
    """A vector environment as it came, with the same calls."""
    wrong = ""
    if n is not None and n != env.num_envs:
        wrong = f"n is {n}, but {env} already is {env.num_envs} environments; leave n out, or ask its factory for {n}"
    elif given:
        wrong = (f"{', '.join(given)} came too late for {env}, which is made already; give such things to its constructor, "
                 "and a seed to its reset")
    if wrong:
        if ours:
            env.close()
        raise ValueError(f"make_vector_env: {wrong}")
    if "metadata" not in vars(env) and (mode := getattr(env, "autoreset_mode", None)) is not None:
        # ale_py writes the mode into its class, and so into that of every other one.
        env.metadata = {**env.metadata, "autoreset_mode": AutoresetMode(mode)}
    return env


class EnvsCompiled(GroupVectorEnv):
    """Environments that were there already, and take compiled steps; with the attributes of gymnasium's `SyncVectorEnv`."""

    observation_mode = "same"

    @property
    def envs(self) -> list[Any]:
        """The environments, which step by themselves from now on."""
        hosts = self.hosts
        return _group_of(hosts[0]).envs if hosts else []

    @envs.setter
    def envs(self, envs: list[Any]) -> None:
        _group_of(self.hosts[0]).envs = envs

    @property
    def env_fns(self) -> list[Callable[[], Any]]:
        """Functions that give them, as it were."""
        return [partial(_itself, env) for env in self.envs]

    @property
    def note(self) -> str:
        """The note of the first one, or no text; see `parl_like.environment.factory.note_of`."""
        first = None if self.closed else _group_of(self._pool.hosts[0]).envs[0]
        return str(first.get_wrapper_attr("note")) if first is not None and first.has_wrapper_attr("note") else ""


def _group_of(host: Host) -> Group:
    assert isinstance(host, InlineHost) and host.group is not None
    return host.group


def _itself(env: Any) -> Any:
    return env


def together(envs: list[Any]) -> EnvsCompiled | None:
    """Environments that are there already as one that takes compiled steps, and resets with the step that ends an episode; None:
    they take none, and stay as they are.

    Args:
        envs: Nobody else may hold one of them. The list is emptied where they are taken.
    """
    if any(known_parts(env) is None for env in envs) or not _alike(envs):
        return None
    kept = list(envs)
    del envs[:]
    made = EnvsCompiled(partial(kept.pop, 0), len(kept), InlineHost, 1, seed=None, mode=AutoresetMode.SAME_STEP,
                        step_timeout=math.inf, start_timeout=math.inf, restart=False, copy=True)
    if made.compiled is None:
        envs += made.envs
        made.envs = []  # or else it closes them
        made.close()
        return None
    return made


def _alike(envs: list[Any]) -> bool:
    """Return whether environments have equal spaces of one array each."""
    for name in SPACES:
        first, *others = [getattr(env, name) for env in envs]
        if not isinstance(first, (Box, Discrete)) or any(other != first for other in others):
            return False
    return True


def create_env(env_id: Any, n: int, *, layers: Layers | None = None, inline: bool = False, seed: int | None = None,
               vector_options: dict[str, Any] | None = None, **options: Any) -> VectorEnv[Any, Any, Any]:
    """All six layers: n environments made by `make_env(env_id, layers=layers, **options)`, in `layers.host`, put together by
    `layers.stack`.

    Args:
        env_id: Id or factory.
        n: Environments.
        layers: Each may be replaced; see `Layers`.
        inline, seed, vector_options: For `make_vector_env`.
        options: For `make_env`.
    """
    layers = layers or Layers()
    stack = layers.stack or make_vector_env
    return stack(partial(make_env, env_id, layers=layers, **options), n, layers.host, inline=inline, seed=seed,
                 **(vector_options or {}))
