"""This machine: versions, cores, memory, and which extras are there."""

from __future__ import annotations

import importlib.util
import platform
import re
from importlib import metadata

import psutil

from parl_like.lab import sizes
from parl_like.lab.yaml_text import Tree

EXTRAS = {"plot": "matplotlib", "tb": "tensorboard", "grid": "minigrid", "minigrid": "minigrid", "atari": "ale_py",
           "mujoco": "mujoco", "box2d": "Box2D", "dm-control": "shimmy", "pettingzoo": "pettingzoo", "mpe": "mpe2",
           "games": "pyspiel", "sweep": "optuna", "wandb": "wandb", "trackio": "trackio",
           "mlflow": "mlflow", "dashboard": "uvicorn", "export": "onnxruntime", "hdf5": "h5py", "minari": "minari", "ray": "ray",
           "peers": "stable_baselines3", "docs": "sphinx"}
"""Extra → a module that it brings."""


def examine() -> tuple[Tree, list[str]]:
    """Return what is here, for machines and as lines for people; of a package that is needed and not there, `missing`."""
    packages: dict[str, str] = {}
    for requirement in metadata.requires("parl_like") or []:
        if "extra ==" not in requirement:
            package = re.split(r"[^A-Za-z0-9_.-]", requirement)[0]
            try:
                packages[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                packages[package] = "missing"
    memory = psutil.virtual_memory()
    machine = {
        "parl_like": metadata.version("parl_like"),
        "python": platform.python_version(), "system": platform.platform(),
        "cores": sizes.machine_cores(),
        "memory_gb": round(memory.total / 1e9, 1), "memory_free_gb": round(memory.available / 1e9, 1),
    }
    extras = {extra: importlib.util.find_spec(module) is not None for extra, module in EXTRAS.items()}
    lines = [f"{key:16} {value}" for key, value in {**machine, **packages}.items()]
    for extra, found in extras.items():
        hint = "found" if found else f"not found ({EXTRAS[extra]}); pip install 'parl_like[{extra}]'"
        lines.append(f"{'extra ' + extra:16} {hint}")
    return {**machine, "packages": packages, "extras": extras}, lines
