"""The options of every verb and the settings of every experiment, kept in tests/data/options.json.

A new one is a decision: whoever adds one, or takes one away, writes the file anew, and the change shows it.

    python tests/options_table.py       writes the file anew
"""

import inspect
import json
import sys
from importlib import import_module
from pathlib import Path

import msgspec

from parl_like.lab import config as configs
from parl_like.lab import experiment as experiments
from parl_like.lab.cli import VERBS
from parl_like.lab.yaml_text import ConfigError
from parl_like.robots.arguments import arguments
from parl_like.robots.settings import CATALOGUE, named

sys.path.insert(0, str(Path(__file__).parent / "fakes"))
from recorded_rows import offline  # noqa: E402

FILE = Path(__file__).parent / "data" / "options.json"


def verbs():
    """Verb → its words and options."""
    return {verb.name: " ".join(name for name, _ in verb.options) for verb in VERBS}


def fields():
    """Robot → the keys of its configuration, with those of structs in it."""
    robots = {experiments.get(name).robot for name in experiments.names() if not experiments.is_registered(name)}
    return {robot: " ".join(_keys(import_module(f"parl_like.robots.{robot}").Config)) for robot in sorted(robots)}


def _keys(struct, head=""):
    for field in msgspec.structs.fields(struct):
        yield head + field.name
        if isinstance(field.default, msgspec.Struct):
            yield from _keys(type(field.default), f"{head}{field.name}.")


def classes():
    """Class of the catalogue → its arguments that plain data can give."""
    found = {}
    for kind, paths in CATALOGUE.items():
        for path in paths:
            for name, one in vars(import_module(path)).items():
                if inspect.isclass(one) and one.__module__.startswith("parl_like.") and _is_named(kind, name):
                    found[name] = " ".join(arguments(one))
    return dict(sorted(found.items()))


def _is_named(kind, name):
    try:
        return named(kind, name) is not None
    except ConfigError:
        return False


def parts(name):
    """The parts of an experiment's robot that have settings, each with its arguments that cannot be set there: `-device`."""
    experiment = experiments.get(name)
    module = experiment.module()
    if "parts" not in module.Config.__struct_fields__:
        return []
    overrides = {key: value for key, value in offline(name).items() if key == "data"}
    if name.endswith("-lander"):  # whose package need not be there; the parts are those of any such task
        overrides["env"] = "CartPole-v1"
    robot = module.build(configs.resolve(module.Config, experiment.config, overrides))
    try:
        owners = {}
        for full, one in (robot.parts.settings if robot.parts is not None else {}).items():
            head, _, argument = full.rpartition(".")
            owners.setdefault(head, (one.owner, []))[1].append(argument)
        return [" ".join([head, *(f"-{each}" for each in arguments(owner) if each not in given),
                          *(f"+{each}" for each in given if each not in arguments(owner))])
                for head, (owner, given) in owners.items()]
    finally:
        robot.close()


def kept():
    """What the file says."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def written(table):
    """The text of the file: a line for each verb, robot, class and part."""
    return json.dumps(table, indent=1, ensure_ascii=False, sort_keys=False) + "\n"


def differences(old, new):
    """What is new, and what is gone, of two tables of words or lists."""
    words = {key: [set(one.get(key, "").split() if isinstance(one.get(key, ""), str) else one[key]) for one in (old, new)]
             for key in {**old, **new}}
    return {key: {"new": sorted(after - before), "gone": sorted(before - after)} for key, (before, after) in words.items()
            if before != after}


def main():
    """Write the file anew; experiments that cannot be built here stay as they were."""
    before = kept() if FILE.exists() else {"experiments": {}}
    robots = {}
    for name in experiments.names():
        try:
            robots[name] = parts(name)
        except (ConfigError, ImportError) as error:
            print(f"{name} stays as it was: {error}")
            robots[name] = before["experiments"].get(name, [])
    table = {"verbs": verbs(), "fields": fields(), "classes": classes(), "experiments": robots}
    FILE.write_text(written(table), encoding="utf-8")


if __name__ == "__main__":
    main()
