"""The options of the verbs and the settings of the experiments are those of tests/data/options.json: a new one is a decision,
made by `python tests/options_table.py` in the change that adds it."""

import options_table
import pytest

from parl_like.lab import experiment as experiments
from parl_like.lab.yaml_text import ConfigError

KEPT = options_table.kept()
DECIDE = "options have changed; if that is meant, run `python tests/options_table.py` and commit tests/data/options.json"
SHIPPED = [name for name in experiments.names() if not experiments.is_registered(name)]


@pytest.mark.parametrize("table", ["verbs", "fields", "classes"])
def test_options_are_those_that_were_decided(table):
    assert options_table.differences(KEPT[table], getattr(options_table, table)()) == {}, DECIDE


def test_every_experiment_is_there():
    assert list(KEPT["experiments"]) == SHIPPED, DECIDE


def held(name):
    try:
        found = options_table.parts(name)
    except (ConfigError, ImportError) as error:
        pytest.skip(str(error))
    assert options_table.differences({name: KEPT["experiments"][name]}, {name: found}) == {}, DECIDE


@pytest.mark.parametrize("name", ["ppo-cartpole", "dqn-cartpole"])
def test_settings_of_two_experiments(name):
    held(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_settings_of_every_experiment(name):
    held(name)


def test_a_new_option_and_a_lost_one_are_told():
    assert options_table.differences({"train": "--config", "list": "--runs"}, {"train": "--config --new", "list": ""}) == {
        "train": {"new": ["--new"], "gone": []}, "list": {"new": [], "gone": ["--runs"]}}
