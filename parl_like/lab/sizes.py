"""Limits on what a robot takes of this machine: a number in a configuration costs nothing to write, and may come from somebody
else.

Numbers of agents, threads and workers are held against the machine before anything is built; while it is built, the operating
system gives this process no more memory than there is. So what is too large is an error, and no end of the machine.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil

from parl_like.data.storage.safe_files import read_file
from parl_like.lab import config as configs
from parl_like.lab import foreign
from parl_like.lab.config import ExperimentConfig
from parl_like.lab.yaml_text import ConfigError
from parl_like.values.limits import TooLarge, in_words

AGENTS_PER_CORE = 8192  # each is Python of its own; building one takes a millisecond
ENVS_PER_CORE = 8192  # a third of a millisecond each
ENV_BYTES = 16 << 10  # at least, of an environment with what its agent knows of it
WORKER_BYTES = 32 << 20  # at least, of a worker process
STATE_FACTOR, STATE_ROOM = 8, 64 << 20  # a saved state has at most so many times a new one's bytes, and so many more
THREADS_PER_CORE, LEAST_THREADS = 16, 64
_SPANS = ("seed", "total_steps", "checkpoint_every", "metrics_every", "eval_every", "keep_checkpoints", "eval_episodes")


def machine_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_memory() -> int:
    """Bytes of memory of this machine, or of the control group that this process is in."""
    total = int(psutil.virtual_memory().total)
    with suppress(OSError, ValueError):
        total = min(total, int(_group_limit()))
    return total


def check(config: ExperimentConfig) -> None:
    """Raises ConfigError where agents, environments, threads or workers are more than this machine could ever have."""
    memory, cores = machine_memory(), machine_cores()
    threads = max(LEAST_THREADS, THREADS_PER_CORE * cores)
    if config.torch_threads > threads:
        raise ConfigError(f"Config: key 'torch_threads' is {config.torch_threads}; expected at most {threads} on this machine of "
                          f"{cores} cores; give torch_threads=1 (a run goes on with those that it began with)")
    if config.n_agents > (most := AGENTS_PER_CORE * cores):
        raise ConfigError(f"Config: key 'n_agents' is {config.n_agents}; expected at most {most} on this machine of {cores} "
                          "cores; lower it, and give each of them more environments (env.vector)")
    several = {"n_agents": config.n_agents, "env_n": getattr(config, "env_n", 1),
               "env.vector": getattr(getattr(config, "env", None), "vector", 0) or 1}
    lanes, named = math.prod(several.values()), " × ".join(f"{key}={n}" for key, n in several.items() if n > 1)
    if lanes * ENV_BYTES > memory:
        raise ConfigError(f"Config: {named} are {lanes} environments; expected at most {memory // ENV_BYTES}, for each takes "
                          f"at least {in_words(ENV_BYTES)} of the {in_words(memory)} of this machine; lower them")
    if lanes > (most := ENVS_PER_CORE * cores):
        raise ConfigError(f"Config: {named} are {lanes} environments; expected at most {most} on this machine of {cores} cores; "
                          "lower them")
    workers = min(config.workers.count, config.n_agents)
    if workers * WORKER_BYTES > memory:
        raise ConfigError(f"Config: key 'workers.count' is {config.workers.count}; expected at most {memory // WORKER_BYTES} "
                          f"processes on this machine of {in_words(memory)}; give workers.count=0, one per core")


@contextmanager
def bounded(config: msgspec.Struct, tensors: int | None = None) -> Iterator[None]:
    """Meanwhile this process gets no more memory than is free now, or, for a configuration that the user has typed or run
    before, twice as much as the machine has: a replay buffer takes its memory only as it fills.

    Raises:
        ConfigError: that is not enough.

    Args:
        tensors: Bytes that all tensors made meanwhile may have; None: a quarter of what is free, for a weight that is learned has
            a gradient and two moments.
    """
    device = getattr(config, "device", "cpu")
    if device != "cpu" and "torch" in sys.modules:  # its driver maps memory as it likes when it begins: that is no robot's
        with suppress(RuntimeError, AssertionError, ImportError):
            sys.modules["torch"].zeros(1, device=device)
    free, rule = min(int(psutil.virtual_memory().available), machine_memory()), foreign.rule()
    own = rule is None or rule.ran
    most = 2 * machine_memory() if own else free
    if own:
        before, more = _limit(most), f"twice the {in_words(machine_memory())} of memory of this machine"
    else:
        before, more = _limit(most), f"the {in_words(free)} of memory that are free here"
    try:
        with _counted(free // 4 if tensors is None else tensors):
            yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, TooManyTensors):
            why = "a quarter of the memory that is free here" if tensors is None else "which its checkpoints are far below"
            more = f"{error}, {why}"
        elif not isinstance(error, MemoryError) and "DefaultCPUAllocator: can't allocate" not in str(error):  # so torch says it
            raise
        tree = {key: value for key, value in configs.to_dict(config).items() if key not in _SPANS}
        largest = f"this robot takes more than {more}{_largest(tree)}"
        if isinstance(error, TooLarge):
            largest = f"{error}; {largest}" if error.size > most else str(error)
        raise ConfigError(f"Config: {largest}") from None
    finally:
        if before is not None:
            _set_limit(before)


class TooManyTensors(MemoryError):
    """All tensors together are larger than they may be."""


def _counted(limit: int) -> AbstractContextManager[object]:
    """Counts the bytes of tensors that are made meanwhile, each before it takes memory; raises TooManyTensors above `limit`."""
    if (torch := sys.modules.get("torch")) is None:
        return nullcontext()
    from torch.overrides import TorchFunctionMode

    makers = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye, torch.arange}

    def square(n: int, m: int | None = None, **how: object) -> object:
        return torch.empty(n, n if m is None else m, **how)

    def counting(start: float = 0, end: float | None = None, step: float = 1, **how: object) -> object:
        first, last = (0, start) if end is None else (start, end)
        whole = all(isinstance(one, int) for one in (first, last, step))
        return torch.empty(max(0, math.ceil((last - first) / step)), **{"dtype": torch.int64 if whole else None, **how})

    # What is as large, for without memory torch makes these by Python that loads its compiler: half a second.
    blank = {torch.rand: torch.empty, torch.randn: torch.empty, torch.eye: square, torch.arange: counting}

    class Counted(TorchFunctionMode):
        total = 0

        def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func in makers and "out" not in kwargs:
                asked = {key: value for key, value in kwargs.items() if key not in ("generator", "pin_memory")}
                self.total += blank.get(func, func)(*args, **{**asked, "device": "meta"}).nbytes
                if self.total > limit:
                    raise TooManyTensors(f"{in_words(limit)} in tensors")
            return func(*args, **kwargs)

    return Counted()


def _largest(tree: Mapping[str, object]) -> str:
    """The way out: which numbers are the largest ones."""
    numbers = {key: value for key, value in configs.flat(tree).items() if type(value) is int and value > 1000}
    found = sorted(numbers, key=lambda key: -numbers[key])[:3]
    return f"; its largest numbers are {', '.join(f'{key}={numbers[key]}' for key in found)}; lower them" if found else ""


def _group_limit() -> str:
    return read_file(Path("/sys/fs/cgroup/memory.max"), limit=100).decode("ascii").strip()


def _limit(more: int) -> tuple[int, int] | None:
    """Allows this process `more` bytes of data than it has; the limit before, None where there is no such thing."""
    try:
        import resource

        before = resource.getrlimit(resource.RLIMIT_DATA)
        has = int(psutil.Process().memory_info().data)
        soft = has + more
        if before[0] != resource.RLIM_INFINITY and before[0] <= soft:
            return None
        _set_limit((soft, before[1]))
        return before
    except (ImportError, AttributeError, OSError, ValueError):
        return None


def _set_limit(limit: tuple[int, int]) -> None:
    import resource

    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, limit)
