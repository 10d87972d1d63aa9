"""What tests of the lab share: a folder of their own, and the experiment `fake` as the only registered one."""

import pytest
from lab_fakes import MODULE, FakeRobot, experiment

from parl_like.lab import experiment as experiments
from parl_like.lab import snapshot


@pytest.fixture
def fake_experiment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiments, "_registered", {})
    monkeypatch.setattr(experiments, "_modules", {})
    monkeypatch.setattr(FakeRobot, "at_step", {})
    monkeypatch.setattr(snapshot, "imported", lambda: {"parl_like/__init__.py": b""})  # not the sources of a thousand tests
    experiments.register(experiment(), module=MODULE)
