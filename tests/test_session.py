"""A session of tests: what is raised between the phases of one test ends none of the others; what slow.txt names is left out."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from zlib import crc32

import pytest

HOOK = """

@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    if report.nodeid.endswith("test_struck") and report.when == os.environ["WHEN"]:
        if report.outcome == "passed":
            raised = {"exit": SystemExit(15), "alarm": pytest.fail.Exception("Timeout"), "error": ValueError("report")}
            raise raised[os.environ["WHAT"]]
"""

TESTS = """
    import pytest

    ended = []

    @pytest.fixture
    def opened():
        yield
        ended.append("opened")

    def test_before():
        pass

    def test_struck(opened):
        pass

    def test_after():
        assert ended == ["opened"]

    @pytest.mark.parametrize("case", range(9))
    def test_many(case):
        pass

    def test_long():
        assert False
"""
SLOW = "# some and none\ntest_them.py::test_many 1/3\ntest_them.py::test_long\n"
STAY = {case for case in range(9) if case == 0 or crc32(f"test_them.py::test_many[{case}]".encode()) % 3 == 0}


@pytest.mark.parametrize(("when", "what", "said"), [
    ("setup", "exit", "SystemExit: 15"), ("call", "alarm", "Failed: Timeout"),
    pytest.param("teardown", "error", "ValueError: report", marks=pytest.mark.slow),
])
def test_what_is_raised_between_the_phases_of_a_test_is_its_own_failure(when, what, said, tmp_path):
    (tmp_path / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text() + HOOK)
    (tmp_path / "slow.txt").write_text(SLOW)
    (tmp_path / "test_them.py").write_text(textwrap.dedent(TESTS))
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", os.devnull,
                           "--rootdir", tmp_path, "-o", "markers=slow", "-m", "not slow", "test_them.py"],
                          cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "WHEN": when, "WHAT": what})
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stdout and "ERROR test_them.py::test_struck - Raised between the phases of the test" in done.stdout
    assert 1 < len(STAY) < 9
    passed = len(STAY) + (2 if when == "setup" else 3)  # its own report came before
    assert f"{passed} passed, {10 - len(STAY)} deselected, 1 error" in done.stdout
