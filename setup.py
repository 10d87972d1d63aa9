"""Build script: places the top-level areas inside the parl_like package and compiles the Cython modules."""

import os
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup

AREAS = ("robots", "algorithms", "models", "envs")


def dotted(source: Path) -> str:
    """algorithms/_fast.pyx -> parl_like.algorithms._fast; parl_like/data/_returns.pyx -> parl_like.data._returns."""
    parts = source.with_suffix("").parts
    return ".".join(parts if parts[0] == "parl_like" else ("parl_like", *parts))


# The links parl_like/<area> serve editors and type checkers; the build never looks through them.
linked = [f"parl_like.{area}{tail}" for area in AREAS for tail in ("", ".*")]
packages = find_packages(include=["parl_like", "parl_like.*"], exclude=linked)
packages += [f"parl_like.{p}" for area in AREAS for p in find_packages(include=[area, f"{area}.*"])]

# No debug information: it would be most of the files, and a seventh of the time.
FLAGS = ["-O3", "-g0"]
HEADERS = [numpy.get_include()]
SHARED = "parl_like._cyutility"  # Cython's memory views, once for all modules

sources = [src for top in ("parl_like", *AREAS) for src in sorted(Path(top).rglob("*.pyx"))]

setup(
    packages=packages,
    options={"build_ext": {"parallel": os.cpu_count()}},
    package_dir={f"parl_like.{area}": area for area in AREAS},
    ext_modules=cythonize(
        [
            *(Extension(dotted(src), [str(src)], include_dirs=HEADERS, extra_compile_args=FLAGS) for src in sources),
            Extension(SHARED, [f"{SHARED.replace('.', '/')}.c"], extra_compile_args=FLAGS),
        ],
        shared_utility_qualified_name=SHARED,
        build_dir="build/cython",
        language_level=3,
    ),
)
