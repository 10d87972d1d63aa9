"""Every public name of environments and of their folder in the core has a docstring, its own or that of its base."""

import importlib
import inspect
from pathlib import Path

import pytest

import parl_like

ROOT = Path(parl_like.__file__).parent
FILES = [path for folder in ("envs", "environment") for path in sorted((ROOT / folder).rglob("*.py")) if path.name[0] != "_"]


def public(module):
    """Yield (name, object) of the public functions and classes that a module defines, and of the methods of these."""
    for name, one in vars(module).items():
        if name.startswith("_") or getattr(one, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(one):
            yield name, one
            for inner in vars(one):
                member = getattr(one, inner)
                if not inner.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                    yield f"{name}.{inner}", member if not isinstance(member, property) else member.fget
        elif inspect.isfunction(one):
            yield name, one


def described(name, one, module):
    kind, _, method = name.partition(".")
    owners = getattr(module, kind).__mro__ if method else ()
    return inspect.getdoc(one) or any(inspect.getdoc(vars(base)[method]) for base in owners if method in vars(base))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_public_name_is_described(path):
    name = ".".join(("parl_like", *path.relative_to(ROOT).with_suffix("").parts))
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(str(error))
    assert [name for name, one in public(module) if not described(name, one, module)] == []
