"""Thinker with its agents and their trees in worker processes: hidden states in the robot's process, or in each worker's own
replica."""

import os
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from shuffled_link import Shuffled

from parl_like.drivers.workers.processes import FORK_SERVER
from parl_like.environment.stop_conditions import StopAfterSteps, StopWhen
from parl_like.lab.config import Workers
from parl_like.robots.thinker import Config, build

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")]

torch.set_num_threads(1)

TINY = dict(
    env_options=dict(size=5, n_boxes=1, obs="planes", max_steps=12), n_agents=2, env_n=2, rec_t=3, max_depth=2,
    actor_unroll_len=12, model_downscale_c=32, model_strides=(1, 1, 1, 1), widths=(4, 4, 4), total_steps=400,
    model_batch_size=4, model_unroll_len=2, model_return_n=2, model_buffer_n=400, model_warm_up_n=20, max_replay_ratio=1.0,
    driver="processes", trace=True,
)  # fmt: skip


def robot(**options):
    return build(Config(**{**TINY, **options}))


def run(steps=96, **options):
    with robot(**options) as made:
        made.run(StopAfterSteps(steps))
        made.checkpoint_boundary()  # until here agents in workers have imagined more than those that were told of the stop
        counters = made.counters()
        return made.trace_hash(), counters["env_steps"], counters.get("updates/model")


@pytest.mark.parametrize("serve", [pytest.param("central", marks=pytest.mark.slow), "replica"])
def test_two_sync_runs_are_the_same(serve):
    first = run(serve=serve, mode="sync")
    assert first == run(serve=serve, mode="sync") and first[1] >= 96 and first[2] > 5


def test_sync_runs_are_the_same_in_whatever_order_messages_come(monkeypatch, tmp_path):
    def parts(seed):
        monkeypatch.setattr(Config, "robot_driver", lambda self: Shuffled(workers=2, seed=seed))
        with robot(mode="sync", n_agents=3) as made:
            for steps in (30, 34):
                made.run(StopAfterSteps(steps))
                yield made.trace_hash()
                made.save(tmp_path / "state")
            yield made.trace_hash(), made.counters()["updates/model"]

    first = list(parts(0))
    assert first[-1][1] > 0 and all(first == list(parts(seed)) for seed in (1, 2))


@pytest.mark.parametrize("planning", ["learned", pytest.param("perfect", marks=pytest.mark.slow), "none"])
def test_one_worker_does_what_the_cooperative_driver_does(planning):
    options = dict(planning=planning, see_real_state=True, see_h=planning == "learned", mode="sync", serve="central",
                   workers=Workers(count=1), steps=96)
    assert run(**options) == run(**options, driver="cooperative")


def test_workers_of_an_actor_without_a_tree_do_what_the_cooperative_driver_does():
    options = dict(planning="none", see_real_state=True, see_h=False, mode="sync", serve="central")
    assert run(**options) == run(**options, driver="cooperative")


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(tmp_path):
    with robot(mode="sync", see_h=False, see_real_state=True) as made:
        made.run(StopAfterSteps(48))
        made.save(tmp_path / "state")
        made.run(StopAfterSteps(48))
        whole = made.trace_hash(), made.counters()
        assert whole[1]["updates/model"] > 0
    with robot(mode="sync", see_h=False, see_real_state=True) as made:
        made.load(tmp_path / "state")
        made.run(StopAfterSteps(48))
        assert (made.trace_hash(), made.counters()) == whole


def test_workers_that_never_wait_for_updates_are_the_default():
    with robot() as made:
        assert not made.sync and {task.serve for task in made.tasks.values()} == {"replica"}
        assert len(made.pool.driver.workers) == min(max(os.cpu_count() - 1, 1), 2)  # one core is the updates'
        made.run(StopWhen(lambda robot: robot.counters()["updates/model"] > 5))


def test_what_cannot_be_in_a_worker_is_refused_before_one_is_started(monkeypatch):
    class Closed(gym.Env):
        """Cannot clone its state."""

        observation_space, action_space = gym.spaces.Box(0, 1, (2, 4, 4), np.float32), gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros((2, 4, 4), np.float32), {}

    gym.register("ThinkerClosed-v0", entry_point=Closed)
    monkeypatch.setattr(FORK_SERVER, "start", lambda *_: pytest.fail("a worker was started"))
    with pytest.raises(TypeError, match="perfect model: .*clone_state"):
        robot(env="ThinkerClosed-v0", env_options={}, planning="perfect", see_h=False, see_real_state=True)


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("serve", ["central", "replica"])
def test_rays_actors_do_what_worker_processes_do(serve):
    pytest.importorskip("ray")
    options = dict(serve=serve, mode="sync")
    assert run(**options, driver="ray") == run(**options)
    with robot(driver="ray", serve=serve) as made:
        made.run(StopWhen(lambda robot: robot.counters()["updates/model"] > 5))


def test_a_worker_that_is_killed_is_replaced_and_leaves_no_nodes_behind():
    with robot(serve="central", workers=Workers(count=2)) as made:
        driver, places, killed = made.pool.driver, made.tasks["model"].row_slots, []

        def kills(robot):
            if len(killed) < 2 and robot.env_steps > 30 * (1 + len(killed)) and driver.restarts == len(killed):
                killed.append(driver.workers[0])
                driver.link.kill(killed[-1])
            return robot.env_steps >= 120 and driver.restarts == 2 and robot.counters()["updates/model"] > 0

        made.run(StopWhen(kills))
        claims = sorted(claim[:2] for claim in places._claims if claim[2]() is not None)
        need = made.agents[0].needs["model"]
        assert [n for _, n in claims] == [need, need] and max(first for first, _ in claims) <= 2 * need
        made.evaluate(2)
        assert sorted(claim[:2] for claim in places._claims if claim[2]() is not None) == claims
