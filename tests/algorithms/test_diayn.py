"""DIAYN: rewards and loss by hand, nothing to earn with one skill, and skills that are told apart."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like.algorithms import Discriminator
from parl_like.envs.plane import Plane
from parl_like.lab import config as configs
from parl_like.lab import experiment as experiments
from parl_like.lab.yaml_text import ConfigError
from parl_like.models import SkillClassifier
from parl_like.robots import skills
from parl_like.tasks.task import ComputationTask
from parl_like.values.batch import Batch

BOX = gym.spaces.Box(-1, 1, (2,), np.float32)


def learner(n=3, **more):
    torch.manual_seed(0)
    return Discriminator(SkillClassifier(gym.spaces.Dict({"obs": BOX, "skill": gym.spaces.Discrete(n)}), BOX, (8,)), **more)


def rows(n=4, n_skills=3):
    skill = torch.arange(n) % n_skills
    obs = torch.randn(2, n, 2, generator=torch.Generator().manual_seed(1))
    return Batch(obs=Batch(obs=obs[0], skill=skill), obs_next=Batch(obs=obs[1], skill=skill), last=torch.arange(n) == n - 1)


def build(**overrides):
    experiment = experiments.get("diayn-plane")
    return skills.build(configs.resolve(skills.Config, experiment.config, overrides))


def test_a_skill_earns_what_tells_it_from_the_others():
    one, batch = learner(), rows()
    chances = torch.softmax(one.model.net(batch.obs_next.obs), 1)[range(4), batch.obs.skill]
    torch.testing.assert_close(one.predict(batch)["reward"], chances.log() - np.log(1 / 3))
    torch.testing.assert_close(one.learn(batch)["loss"], -chances.log().mean())


def test_one_skill_earns_nothing():
    assert learner(1).predict(rows(n_skills=1))["reward"].tolist() == [0.0] * 4


def test_the_accuracy_is_about_rows_that_are_not_learned_yet():
    one, batch = learner(), rows()
    with torch.no_grad():
        one.model.net.layers[-1].weight.zero_()
        one.model.net.layers[-1].bias.copy_(torch.tensor([0.0, 1.0, 0.0]))  # it says 1, which is right for one row of four
    one.process(batch)
    assert one.accuracy == pytest.approx(1 / 3 + 0.05 * (0.25 - 1 / 3))
    parts = list(one.minibatches(batch))
    assert len(parts) == 16 and sum(map(len, parts)) == 4 * 4


@pytest.mark.parametrize("space", [BOX, gym.spaces.Dict({"obs": BOX}),
                                   gym.spaces.Dict({"obs": BOX, "skill": gym.spaces.Discrete(2, start=1)})])
def test_it_asks_for_an_observation_and_a_skill(space):
    with pytest.raises(TypeError, match="expected Dict.obs=…, skill=Discrete.n.."):
        SkillClassifier(space, BOX)


def test_the_policy_is_paid_by_the_discriminator_alone():
    few = {"OffPolicyHelper.warmup": 64, "OffPolicyHelper.batch_size": 32, "OnPolicyHelper.unroll": 20}
    with build(total_steps=200, **few) as robot:
        for _ in robot.iterate(200):
            pass
        assert robot.tasks["RL"].rewards == {"discriminator": 1.0, "env": 0.0}
        assert robot.tasks["RL"].learns and robot.tasks["discriminator"].learns >= 9
        assert robot.evaluate(2).score == robot.tasks["discriminator"].algorithm.accuracy
        buffer = robot.agents[0].helpers["RL"].buffer[:]  # rows of one episode, 30 steps, have one skill
        assert len(set(buffer.obs.skill[:30].tolist())) == 1 and len(set(buffer.obs.skill.tolist())) > 1
        assert (buffer.obs_next.skill == buffer.obs.skill).all()


def test_masks_of_actions_are_refused(monkeypatch):
    """They would stand a level deeper than where the policy looks for them."""
    masked = gym.spaces.Dict({"obs": BOX, "mask": gym.spaces.MultiBinary(3)})
    monkeypatch.setattr(skills, "probed", lambda source: ({"obs": masked, "act": gym.spaces.Discrete(3)}, skills.Agent))
    with pytest.raises(ConfigError, match="says which actions are legal"):
        build(total_steps=200)


def test_the_accuracy_is_known_of_a_discriminator_in_an_actor():
    pytest.importorskip("ray")
    from parl_like.drivers.ray.tasks import Here, RayTask, TaskActor

    with build(total_steps=200) as robot:
        name = "discriminator"
        actor = RayTask(ComputationTask(robot.tasks[name].source), Here(TaskActor))
        actor.build()
        assert skills.accuracy(SimpleNamespace(tasks={name: actor}), None) == 1 / 8


def test_the_plane():
    env = Plane()
    obs, _ = env.reset(seed=0)
    assert obs.tolist() == [0.0, 0.0]
    assert env.step(np.array([1.0, -0.5], np.float32))[0].tolist() == pytest.approx([0.1, -0.05])
    for _ in range(20):
        obs = env.step(np.array([5.0, -1.0], np.float32))[0]
    assert obs.tolist() == [1.0, -1.0]
    state = env.clone_state()
    env.step(np.array([-1.0, 0.0], np.float32))
    env.restore_state(state)
    assert env.step(np.zeros(2, np.float32))[0].tolist() == [1.0, -1.0]
    with pytest.raises(gym.error.ResetNeeded):
        Plane().step(np.zeros(2))


@pytest.mark.slow
def test_eight_skills_are_told_apart():
    with build(total_steps=10_000) as robot:
        for _ in robot.iterate(10_000):
            pass
        assert robot.tasks["discriminator"].algorithm.accuracy >= 0.8
