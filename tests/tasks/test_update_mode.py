"""UpdateMode: what an update holds, and what Ctrl-C leaves behind."""

import sys
import threading
from contextlib import nullcontext
from functools import partial

import gymnasium as gym
import pytest
import torch
from value_rows import ACT, OBS, rows

from parl_like import Agent, ComputationTask, OffPolicyHelper, Robot
from parl_like.algorithms import DQN
from parl_like.models import MLPQ
from parl_like.tasks import algorithm_runner


def test_ctrl_c_at_any_call_of_an_update_s_mode_leaves_the_lock_free():
    """It strikes where a function begins. Another thread asks for the lock, for this one might take it twice."""
    task, file = ComputationTask(DQN(MLPQ(OBS, ACT))), algorithm_runner.__file__
    given, free = rows(), []

    def look():
        free.append(task.lock.acquire(blocking=False))
        if free[-1]:
            task.lock.release()

    def interrupted(call):
        """Learn, and return whether there was so late a call."""
        left = [call]

        def strike(frame, event, _):
            if event == "call" and frame.f_code.co_filename == file:
                left[0] -= 1
                if not left[0]:
                    raise KeyboardInterrupt

        sys.setprofile(strike)
        try:
            task.learn(given)
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
        return False

    call = 1
    while interrupted(call):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        call += 1
    assert all(free) and len(free) >= 9  # three parts of an update, each with at least three calls


@pytest.fixture
def torch_as_it_was():
    yield
    torch.set_grad_enabled(True)


def cart_pole(**options):
    env = gym.make("CartPole-v1")
    helper = partial(OffPolicyHelper, size=50, batch_size=4, learn_every=2)
    task = ComputationTask(DQN(MLPQ(env.observation_space, env.action_space)), helper)
    return Robot("CartPole-v1", tasks={"RL": task}, **options)


def modes():
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


@pytest.mark.parametrize("around", [True, False], ids=["gradients", "no gradients"])
@pytest.mark.parametrize("doing", ["learn", "predict", "run"])
def test_ctrl_c_while_torch_changes_its_mode_leaves_it_as_it_was(doing, around, torch_as_it_was):
    """It strikes at the beginning and the end of each function of torch's own contexts, such as `no_grad.__enter__`."""
    given, file = rows(), torch.autograd.grad_mode.__file__
    done = [0]

    def interrupted(at, call):
        left = [at]

        def strike(frame, event, _):
            if event in ("call", "return") and frame.f_code.co_filename == file and frame.f_code.co_name in (
                    "__enter__", "__exit__"):
                left[0] -= 1
                if not left[0]:
                    raise KeyboardInterrupt

        torch.set_grad_enabled(around)
        sys.setprofile(strike)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
        return False

    with cart_pole() if doing == "run" else nullcontext() as robot:
        task = ComputationTask(DQN(MLPQ(OBS, ACT)), native=doing != "predict")  # a native one changes no mode of torch
        task.build()
        call = {"learn": lambda: task.learn(given), "predict": lambda: task.predict({"obs": given["obs"]}),
                "run": lambda: robot.run(8)}[doing]
        while interrupted(done[0] + 1, call) and done[0] < 12:
            done[0] += 1
            assert modes() == (around, False), done[0]
        call()
    assert done[0] >= 4 and modes() == (around, False)


def test_an_update_keeps_gradients_while_an_agent_waits_without(torch_as_it_was):
    """The greenlets of agents share one thread, so what one of them sets is set for all, and for updates."""
    class Careless(Agent):
        def run_one_episode(self):
            with torch.no_grad():
                super().run_one_episode()

    with cart_pole(agent=Careless, n_agents=2) as robot:
        robot.run(20)
        assert robot.tasks["RL"].algorithm.updates >= 4 and modes() == (True, False)
