"""This machine, for a bug report: versions, compiled modules, cores, threads, memory, and which extras are there."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import parl_like
from parl_like.lab import sizes
from parl_like.lab.yaml_text import Tree

EXTRAS = {"plot": "matplotlib", "tb": "tensorboard", "grid": "minigrid", "minigrid": "minigrid", "atari": "ale_py",
           "mujoco": "mujoco", "box2d": "Box2D", "dm-control": "shimmy", "pettingzoo": "pettingzoo", "mpe": "mpe2",
           "games": "pyspiel", "sweep": "optuna", "wandb": "wandb", "trackio": "trackio",
           "mlflow": "mlflow", "dashboard": "uvicorn", "export": "onnxruntime", "hdf5": "h5py", "minari": "minari", "ray": "ray",
           "peers": "stable_baselines3", "notebooks": "nbclient", "docs": "sphinx"}
"""Extra → a module that it brings."""

MISSING = "missing"
INSTRUCTIONS = ("neither AVX2 nor AVX-512", "AVX2 with FMA", "AVX-512")
"""The vectors that compiled loops work on, by `parl_like.learning._native.level`."""
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "CUDA_VISIBLE_DEVICES")
"""Variables of the environment that decide how fast numbers are computed."""


def examine() -> tuple[Tree, list[str]]:
    """Return what is here, for machines and as lines for people; of a package that is needed and not there, `missing`."""
    needed = requirements()
    packages = {package: version(package) for package in needed.pop("")}
    memory = psutil.virtual_memory()
    machine: dict[str, Any] = {
        "parl_like": metadata.version("parl_like"), "installed": installation(),
        "python": f"{platform.python_implementation()} {platform.python_version()}", "system": platform.platform(),
        "processor": processor(), "cores": sizes.machine_cores(),
        "memory_gb": round(memory.total / 1e9, 1), "memory_free_gb": round(memory.available / 1e9, 1),
    }
    with suppress(OSError):
        machine["shared_memory_free_gb"] = round(shutil.disk_usage("/dev/shm").free / 1e9, 1)
    compiled, absent = compiled_modules()
    computing = {
        "compiled": f"{len(compiled)} modules" + f"; {MISSING}: {', '.join(absent)}" * bool(absent),
        "instructions": tried(instructions), "torch_threads": tried(torch_threads), "gpus": tried(gpus),
        "numpy_blas": tried(numpy_blas), **{name: os.environ[name] for name in VARIABLES if name in os.environ},
    }
    extras = {extra: importlib.util.find_spec(module) is not None for extra, module in EXTRAS.items()}
    brought = {extra: {package: version(package) for package in needed.get(extra, ()) if package not in packages}
               for extra in EXTRAS}
    lines = [f"{key:22} {value}" for key, value in {**machine, **packages, **computing}.items()]
    lines += [f"{'extra ' + extra:22} {_extra(extra, found, brought[extra])}" for extra, found in extras.items()]
    return {**machine, "packages": packages, "computing": computing, "extras": extras, "extra_packages": brought}, lines


def _extra(extra: str, found: bool, brought: dict[str, str]) -> str:
    """Return an extra in words: versions, or how to install it."""
    there = ", ".join(f"{package} {number}" for package, number in brought.items() if number != MISSING) or EXTRAS[extra]
    lacking = [package for package, number in brought.items() if number == MISSING]
    if found and not lacking:
        return there
    how = f"pip install 'parl_like[{extra}]'"
    return f"{there}, but not {', '.join(lacking)}; {how}" if found else f"not found ({EXTRAS[extra]}); {how}"


def requirements() -> dict[str, list[str]]:
    """Return extra → the packages that it asks for, by name; those that are always needed are of the extra ''."""
    found: dict[str, list[str]] = {"": []}
    for requirement in metadata.requires("parl_like") or []:
        extra = re.search(r"""extra == ["']([\w.-]+)["']""", requirement)
        found.setdefault(extra[1] if extra else "", []).append(re.split(r"[^A-Za-z0-9_.-]", requirement)[0])
    return found


def version(package: str) -> str:
    """Return the version of an installed package, or `missing`."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return MISSING


def tried(look: Callable[[], str]) -> str:
    """Return what `look` finds, or why it fails: a machine where something is broken is what bug reports are about."""
    try:
        return look()
    except Exception as error:
        return f"not known: {type(error).__name__}: {error}".splitlines()[0]


def installation() -> str:
    """Return how this package came here: `editable`, from a checkout, or `wheel`."""
    with suppress(metadata.PackageNotFoundError, OSError):
        if '"editable": true' in (metadata.distribution("parl_like").read_text("direct_url.json") or ""):
            return "editable"
    return "wheel" if "site-packages" in Path(parl_like.__file__).parts else "checkout"


def processor() -> str:
    """Return the processor's name as Linux has it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def processor_and_cores() -> str:
    """Return this machine in words: its processor and how many cores it has."""
    cores = sizes.machine_cores()
    return f"{processor()}, {cores} core{'s' * (cores != 1)}"


def compiled_modules() -> tuple[list[str], list[str]]:
    """Return the compiled modules that are there for this Python, and those that are missing; each has a stub beside it."""
    root = Path(parl_like.__file__).parent
    stubs = [Path(folder, name) for folder, _, names in os.walk(root, followlinks=True) for name in names
             if name.startswith("_") and name.endswith(".pyi")]
    there: dict[bool, list[str]] = {True: [], False: []}
    for stub in sorted(stubs):
        files = [stub.with_name(stub.stem + suffix) for suffix in importlib.machinery.EXTENSION_SUFFIXES]
        there[any(file.exists() for file in files)].append(".".join(stub.relative_to(root).with_suffix("").parts))
    return there[True], there[False]


def instructions() -> str:
    """Return the vectors that compiled loops work on here."""
    return INSTRUCTIONS[importlib.import_module("parl_like.learning._native").level()]


def torch_threads() -> str:
    """Return torch's threads, and the library that multiplies matrices for it."""
    import torch

    library = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return f"{torch.get_num_threads()}, BLAS {library[1] if library else 'not known'}"


def numpy_blas() -> str:
    """Return the library that multiplies matrices for NumPy."""
    import numpy

    found: Any = numpy.show_config(mode="dicts")
    blas = found["Build Dependencies"]["blas"]
    return f"{blas['name']} {blas['version']}"


def gpus() -> str:
    """Return the GPUs that torch sees, and the CUDA that it was built for."""
    import torch

    seen = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{', '.join(seen) or 'none'} (torch built for {f'CUDA {torch.version.cuda}' if torch.version.cuda else 'the CPU'})"
