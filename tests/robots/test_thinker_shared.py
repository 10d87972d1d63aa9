"""The IMPALA over mode 3 of Thinker's document: actors with trees of their own, one world model in a Ray actor."""

import json
import sys

import numpy as np
import pytest

from parl_like.lab import experiment as experiments
from parl_like.lab.cli import main
from parl_like.lab.config import resolve
from parl_like.lab.yaml_text import ConfigError
from parl_like.robots import thinker_shared

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(1800),
              pytest.mark.skipif(sys.platform != "linux", reason="tested on Linux only")]

STEPS = 120
SMALL = {
    "env_options": {"size": 5, "n_boxes": 1, "obs": "planes", "max_steps": 12}, "n_agents": 2, "env_n": 2, "rec_t": 3,
    "max_depth": 2, "total_steps": STEPS, "actor_unroll_len": 12, "actor_batch_size": 4, "widths": [4, 4, 4],
    "tree_rep_rnn": False, "model_downscale_c": 32, "model_batch_size": 4, "model_unroll_len": 2, "model_return_n": 1,
    "model_warm_up_n": 30, "model_buffer_n": 200, "max_replay_ratio": 0.5, "eval_options": {}, "driver": "cooperative",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def instance():
    ray.init(address="local", num_cpus=8, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False,
             logging_level="ERROR")
    yield
    ray.shutdown()


def build(**options):
    config = experiments.get("thinker-sokoban-shared").config
    return thinker_shared.build(resolve(thinker_shared.Config, config, {**SMALL, **options}))


def weights(robot):
    return robot.tasks["model"].networks_state()["model"]


def trained():
    robot = build()
    for _ in robot.iterate(STEPS):
        pass
    return robot


def test_actors_share_a_model():
    with trained() as robot:
        clients = [agent.env.env for agent in robot.agents]
        ranks = [client.robot.tasks["model"].rank for client in clients]
        own = [client.robot.tasks["model"].version for client in clients]
        counts = robot.counters()
        # Each has made 60 real steps or more: 30 to warm up, then an update every 16 rows.
        assert ranks == [0, 1] and counts["updates/plan"] >= 4 and counts["updates/model"] == max(own) >= 4
        assert counts["rows/model"] == 4 * counts["updates/model"]
        stored = [client.robot.buffers["model"].get(slice(None), "action_prob") for client in clients]
        assert all(len(rows) >= 60 and 0 < rows.min() and rows.max() < 1 for rows in stored)  # the actor's word, not one-hot
        before, result, after = weights(robot), robot.evaluate(2, seed=1), weights(robot)
        assert result.n_episodes == 2 and all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.slow
def test_the_model_is_saved_with_the_planner():
    with trained() as robot:
        before, updates, saved = weights(robot), robot.counters()["updates/model"], robot.state_dict()
        assert updates and 0 <= robot.env_steps - saved["task.model"]["others"] <= 4  # the last travel with the next request
    with build(seed=5) as again:
        again.load_state_dict(saved)
        kept = weights(again)
        assert again.counters()["updates/model"] == updates and all(np.array_equal(before[name], kept[name]) for name in before)
        for _ in again.iterate(again.env_steps + 12):
            pass
        status = again.agents[0].env.env.status()
        assert status["processed_n"] >= STEPS + 12 and status["finish"]


def test_what_it_cannot_do_is_refused():
    for options, said in (({"planning": "none", "see_real_state": True}, "no model to share"),
                          ({"model_strides": [1, 1, 1, 1]}, "model_strides is no option of thinker.make"),
                          ({"env": "Nowhere-v0"}, "env_fn: .*Nowhere")):
        with pytest.raises(ConfigError, match=said):
            build(**options)


@pytest.mark.slow
def test_the_experiment_runs_with_actors_in_ray_and_goes_on(tmp_path):
    words = [f"{key}={json.dumps(value)}" for key, value in {**SMALL, "driver": "ray", "workers": {"count": 2}}.items()]
    run = tmp_path / "run"
    words += [f"run_dir={run}", "tensorboard=false", "eval_episodes=2", "checkpoint_every=60"]
    assert main(["train", "thinker-sokoban-shared", *words]) == 0
    done = json.loads((run / "result.json").read_text())
    assert main(["resume", str(run), f"total_steps={2 * done['env_steps']}"]) == 0
    more = json.loads((run / "result.json").read_text())
    assert more["env_steps"] >= 2 * done["env_steps"] >= 2 * STEPS
