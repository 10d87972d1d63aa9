"""What all tests share: one torch thread (the networks are small, and a second costs more than it gives), shared memory of their
own, examples; and that none of them ends the others."""

import copy
import functools
import gc
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from parl_like.drivers.workers import processes
from parl_like.envs.vector import hosts
from parl_like.lab import yaml_text

# A shell that starts a job in the background makes it ignore Ctrl-C, and the children with it; some tests are about Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # until all tests are collected: what is made there stays

if not torch.cuda.is_available():  # the same draws; torch's own function keeps a stack for each device that is not there
    torch.manual_seed = torch.random.manual_seed = lambda seed: torch.default_generator.manual_seed(seed)  # noqa: PLW0108

# Tests run beside others (`pytest -n`): each process has a folder of /dev/shm for itself, so that one sees nothing of another.
MEMORY = tempfile.mkdtemp(prefix="parl-like-tests-", dir="/dev/shm") if os.path.isdir("/dev/shm") else ""
if MEMORY:
    os.environ["PARL_LIKE_SHM"] = MEMORY

# No test pulls a plug: what the disk of this machine has really written is waited for by those alone that start a process.
os.fsync = lambda descriptor: None

# YAML is parsed in Python, and the same experiments are read by hundreds of tests: each text once.
_parsed = functools.lru_cache(maxsize=1000)(yaml_text.parse)
yaml_text.parse = lambda text, source, key: copy.deepcopy(_parsed(text, source, key))

# Ray's workers would have the lowest priority, so that they begin minutes later beside other tests; and some begin for nobody.
os.environ |= {"RAY_worker_niceness": "0", "RAY_prestart_worker_first_driver": "0"}

# What the user has run and imported is remembered in a folder of theirs, too.
os.environ["XDG_STATE_HOME"] = STATE = tempfile.mkdtemp(prefix="parl-like-tests-")

# How long an example takes depends on the machine, so none has a deadline. `many` is for `make test-slow`.
settings.register_profile("few", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("many", settings.get_profile("few"), max_examples=400)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "few"))


def pytest_itemcollected(item):
    """Processes that share the tests must call them the same, so no name may hold an address."""
    if " at 0x" in item.nodeid:
        raise pytest.UsageError(f"{item.nodeid}: give its parameters names of their own (ids=)")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Under --dist loadgroup a process gets all tests of a group, or else of a file, so that what these share is made once; the
    files with most tests come first."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid):
            return super()._split_scope(nodeid).split("::")[0]

        def _assign_work_unit(self, node):
            if not self.assigned_work.get(node) and "ray" in self.workqueue:  # few tests, and the longest of all: not last
                self.workqueue.move_to_end("ray", last=False)
            super()._assign_work_unit(node)

    return ByFile(config, log)


class Slow:
    """Marks the tests of slow.txt, before those that are not asked for are left out."""

    @staticmethod
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(config, items):
        lines = Path(__file__).with_name("slow.txt").read_text(encoding="utf-8").splitlines()
        parts = (line.partition(" 1/") for line in lines if not line.startswith("#"))
        shares = {name: int(share or 0) for name, _, share in parts}
        met, files = set(), set()
        for item in items:
            case = f"{item.path.relative_to(Path(__file__).parent)}::{item.nodeid.split('::', 1)[1].removesuffix('@ray')}"
            files.add(case.split("::")[0])
            named = shares.keys() & {case, case.split("[")[0]}
            # By what a case is called, so that no other case decides; the first one of all stays.
            stays = named and all(shares[name] and (name not in met or not crc32(case.encode()) % shares[name]) for name in named)
            met |= named
            if named and not stays:
                item.add_marker("slow")
        stale = {line for line in shares.keys() - met if line.split("::")[0] in files}
        if stale and not any("::" in arg for arg in config.args):
            raise pytest.UsageError(f"tests/slow.txt names no test: {', '.join(sorted(stale))}; write its line anew")


def pytest_configure(config):
    config.pluginmanager.register(Slow)
    config.pluginmanager.register(Collector())
    # Files of one folder one after the other: pytest 9.1 forgets the fixtures of a folder to which it comes back.
    config.args.sort(key=lambda arg: os.path.dirname(arg.partition("::")[0]))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Tests of one group share a Ray cluster; where groups are ignored, each process would start one."""
    for item in items if getattr(config.option, "loadgroup", False) else ():
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
            raise pytest.UsageError(f"--dist loadgroup: pytest {pytest.__version__} and this pytest-xdist do not keep the group "
                                    f"of {item.nodeid} together; install the versions of constraints.txt")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """What is raised between the phases of a test, by the alarm of its time limit, say, is a failure of this test alone: under
    pytest-xdist it would end them all. Nor does one leave a handler of Ray's, which would raise SystemExit there."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        return (yield)
    except (KeyboardInterrupt, pytest.exit.Exception):
        raise
    except BaseException:
        said = traceback.format_exc()
        try:
            item.session._setupstate.teardown_exact(nextitem)
        except BaseException:
            said += traceback.format_exc()
        item.ihook.pytest_runtest_logreport(report=pytest.TestReport(
            item.nodeid, item.location, {}, "failed", f"Raised between the phases of the test:\n{said}", "teardown"))
        return True


def pytest_collection_finish():
    """What is there now stays until the end: full collections, of which tests ask many, need not walk through it again. Small
    ones come less often; hypothesis has Python code called at each."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch.") and isinstance(logger, logging.Logger):
            logger.propagate = True  # pytest adds its handlers, six times a test, to each of those that do not


class Collector:
    """A robot is few objects, much memory, and refers to itself: the collector, which counts objects, comes to it too late."""

    kept = 0  # megabytes after the last collection

    def pytest_runtest_logfinish(self):
        if sys.platform == "linux" and self.resident() > self.kept + 200:
            gc.collect()
            self.kept = self.resident()

    @staticmethod
    def resident():
        """Megabytes that this process has."""
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def pytest_unconfigure():
    for folder in filter(None, (MEMORY, STATE)):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def draws_of_its_own():
    """What a test draws without a seed is the same at each run of it, whatever ran before: none fails once in a hundred."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.fixture(autouse=True, scope="session")
def one_fork_server():
    """A new one imports for seconds, so it waits until the next test that has workers, and has what the files of tests import."""
    for server in (processes.FORK_SERVER, hosts.FORK_SERVER):
        server.idle = 3600.0
        server.preload = ("pytest", "psutil", "parl_like.algorithms", "parl_like.models", "parl_like.run.robot",
                          "parl_like.drivers.workers.hosted")


@pytest.fixture(autouse=True, scope="module")
def no_ray_stays():
    """Other modules count this process's children, and a robot leaves Ray connected."""
    yield
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()


@pytest.fixture
def seeded():
    """torch's global generator begins at 0 within the test, and is put back after it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
