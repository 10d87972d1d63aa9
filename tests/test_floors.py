"""The lowest versions that pyproject.toml allows, and the ones that we build with."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
# The first version without known ways to harm whoever opens a crafted file; of h5py the one with the fewest.
MENDED = {"pillow": "12.2", "h5py": "3.16", "protobuf": "6.33.5", "torch": "2.10", "pyyaml": "6.0.1", "ray": "2.52"}

pytestmark = pytest.mark.checkout


def requirements():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    return [Requirement(text) for text in texts]


def test_floors_leave_out_parsers_with_known_holes():
    floors = {}
    for one in requirements():
        for part in one.specifier:
            if part.operator == ">=":
                floors[canonicalize_name(one.name)] = Version(part.version)
    for name, version in MENDED.items():
        assert floors[name] >= Version(version), name


def test_what_we_build_with_is_allowed():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    for one in requirements():
        if canonicalize_name(one.name) in pins:
            assert one.specifier.contains(pins[canonicalize_name(one.name)], prereleases=True), one
