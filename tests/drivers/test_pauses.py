"""A run goes on after its process stood still for a while (Ctrl-Z, a frozen container, a machine that swaps), under every driver
and mode."""

import os
import signal
import subprocess
import sys
from textwrap import dedent
from time import sleep

import psutil
import pytest

PAUSES_S = {"processes": 4.0, "ray": 4.0}
"""By driver: more than the limit of a step. Drivers without limits stand still for `PAUSE_S` seconds."""

PAUSE_S = 1.0

PROGRAM = dedent("""
    import select, sys
    from drivers.test_processes import replaying
    from transport_fakes import Drift, Elementwise
    from parl_like import ComputationTask, Robot
    from parl_like.drivers.workers.processes import Processes
    from parl_like.drivers.ray.cluster import Ray
    from parl_like.environment.stop_conditions import StopWhen

    def told(robot):
        if not told.learning and robot.metrics()["updates/RL"]:
            told.learning = True
            print("learning", flush=True)
        return told.learning and bool(select.select([sys.stdin], [], [], 0)[0])

    if __name__ == "__main__":
        told.learning = False
        driver, mode = sys.argv[1:]
        if driver == "processes":
            driver = Processes(workers=2, step_limit=3.0)  # less than the pause
        elif driver == "ray":
            driver = Ray(workers=2, num_cpus=0, step_limit=3.0)
        task = ComputationTask(Elementwise(), helper=replaying)
        with Robot(Drift, tasks={"RL": task}, n_agents=4, driver=driver, mode=mode) as robot:
            robot.run(StopWhen(told))
            print("restarts", getattr(robot.pool.driver, "restarts", 0), flush=True)
""")


@pytest.mark.parametrize(("driver", "whole_family", "mode"), [
    ("threads", False, "async"), ("processes", True, "async"),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in [
        ("processes", False, "sync"),
        ("cooperative", False, "sync"), ("cooperative", False, "async"), ("threads", False, "sync"),
        ("processes", True, "sync"), ("processes", False, "async"),
        ("ray", False, "sync"), ("ray", True, "sync"), ("ray", False, "async"), ("ray", True, "async")])])
def test_a_run_goes_on_after_its_process_stood_still(driver, whole_family, mode):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    words = [sys.executable, "-c", PROGRAM, driver, mode]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=environment) as process:
        try:
            assert process.stdout.readline() == "learning\n", process.communicate()[1]
            family = psutil.Process(process.pid).children(recursive=True) if whole_family else []
            family.append(psutil.Process(process.pid))
            for each in family:
                each.send_signal(signal.SIGSTOP)
            sleep(PAUSES_S.get(driver, PAUSE_S))
            for each in family:
                each.send_signal(signal.SIGCONT)
            sleep(0.2)
            out, err = process.communicate("end\n", timeout=200)
            assert process.returncode == 0, err
            assert out.splitlines()[-1] == "restarts 0"
        finally:
            process.kill()
