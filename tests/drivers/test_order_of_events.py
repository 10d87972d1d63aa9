"""Sync runs with workers repeat themselves, whatever the order in which messages come and go: over a link that draws it."""

import pytest
from shuffled_link import Shuffled
from transport_fakes import Drift, Elementwise

from parl_like import Agent, ComputationTask, OffPolicyHelper, OnPolicyHelper, Robot

SEEDS = range(5)


class Crowded(Elementwise):
    """What a row is answered depends on how many are in its batch, as rounding does with real networks."""

    def predict(self, inputs):
        return {"logits": inputs.obs * self.model.w * (1 + len(inputs.obs))}


class Alternating(Agent):
    """Asks its two tasks by turns, each agent in a rhythm of its own: some nearly always "here"."""

    def run_one_episode(self):
        obs, _ = self.env.reset()
        done = False
        while not done:
            helper = self.helpers["here" if self.steps % (40 if self.index % 2 else self.index + 2) else "there"]
            act = helper.predict(obs)
            obs_next, rew, terminated, truncated, info = self.env.step(act)
            for other in self.helpers.values():
                other.store(obs, act, rew, obs_next, terminated, truncated, info)
            obs, done = obs_next, terminated or truncated


def unrolling():
    return OnPolicyHelper(unroll=30, store_policy=False)


def replaying():
    return OffPolicyHelper(size=500, batch_size=8, learn_every=4)


def go(robot, folder, parts):
    """What each part of a run leaves: the agents' trace, steps, episodes, updates."""
    for part in parts.split():
        match part:
            case "run":
                robot.run(160)
            case "collect":
                robot.collect(n_step=30)
            case "episodes":
                robot.collect(n_episode=5)
            case "train":
                robot.train_iter()
            case "save":
                robot.save(folder / "state")
        yield part, robot.trace_hash(), robot.env_steps, robot.episodes, {name: t.learns for name, t in robot.tasks.items()}


SERVED = {"central": ("central", "central"), "replicas": ("replica", "replica"), "both ways": ("central", "replica")}
HELPERS = {"unroll": (unrolling, unrolling), "replay": (replaying, replaying), "both": (replaying, unrolling)}


QUICK = {("central", "both"), ("replicas", "unroll"), ("both ways", "replay")}


@pytest.mark.parametrize(("served", "helpers"), [
    pytest.param(served, helpers, marks=[pytest.mark.slow] * ((served, helpers) not in QUICK))
    for served in SERVED for helpers in HELPERS])
def test_two_tasks_of_one_agent(served, helpers, tmp_path):
    parts = "run run save run train run" if helpers != "replay" else "run collect run save run train episodes collect run"
    seen = set()
    for seed in SEEDS:
        tasks = {name: ComputationTask(Crowded, helper, serve=serve)
                 for name, serve, helper in zip(("there", "here"), SERVED[served], HELPERS[helpers], strict=True)}
        with Robot(Drift, tasks=tasks, agent=Alternating, n_agents=5, driver=Shuffled(workers=2, seed=seed), seed=3,
                   trace=True) as robot:
            seen.add(repr(list(go(robot, tmp_path, parts))))
    assert len(seen) == 1
