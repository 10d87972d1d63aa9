"""What an evaluation is worth, the part of a robot that acts, and evaluations by turns with training."""

import math

import numpy as np
import pytest
from agent_fakes import Corridor, Noisy, Recorder, a2c, dqn, robot_of, same, weights
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from parl_like import OffPolicyHelper, OnPolicyHelper, VectorAgent
from parl_like.data.transforms import ObservationNormalizer
from parl_like.environment.stop_conditions import StopAfterSteps


class Told(Corridor):
    """Its infos say whether it had an even start; `rank` is another number of the last one."""

    started = 0

    def reset(self, **options):
        Told.started += 1
        self.number = Told.started
        return super().reset(**options)

    def step(self, act):
        obs, rew, terminated, truncated, _ = super().step(act)
        return obs, rew, terminated, truncated, {"is_success": terminated and self.number % 2 == 0, "rank": self.at}


@pytest.fixture(autouse=True)
def from_the_first():
    Told.started = 0


def test_the_score_is_the_mean_return_or_another_number_or_a_function():
    with robot_of(Recorder(), env=Told) as robot:
        seen = robot.evaluate(4)
        assert seen.score == seen.numbers()["score"] == 5.0
        assert [info["is_success"] for info in seen.infos] == [False, True, False, True] and seen.success_rate == 0.5
        assert seen.numbers()["success_rate"] == 0.5
        robot.score = "success_rate"
        assert robot.evaluate(3).score == pytest.approx(1 / 3)  # episodes 5 to 7
        robot.score = lambda robot, seen: -sum(info["rank"] for info in seen.infos) - len(robot.agents)
        assert robot.evaluate(3).score == -16.0
        assert robot.collect(n_episode=1).score is None


@pytest.mark.parametrize("mode", AutoresetMode)
def test_success_in_a_vector_environment_is_that_of_the_episode_that_ended(mode):
    """Corridors of 2 and 3 steps: the last infos of their episodes, whatever the environment resets meanwhile."""
    def make():
        return SyncVectorEnv([lambda: Told(2), lambda: Told(3)], autoreset_mode=mode)

    with robot_of(Recorder(), env=make, agent=VectorAgent, score="success_rate") as robot:
        seen = robot.evaluate(4)
        lengths, ranks = seen.lengths, [info["rank"] for info in seen.infos]
        assert ranks == lengths and sorted(lengths)[0] == 2 and len(lengths) == 4
        assert seen.score == np.mean([info["is_success"] for info in seen.infos])


def test_a_score_that_cannot_be():
    with pytest.raises(ValueError, match="Robot: no score 'succes_rate'; did you mean 'success_rate'\\?; or give a function"):
        robot_of(Recorder(), score="succes_rate")
    with robot_of(Recorder(), score="success_rate") as robot:
        with pytest.raises(ValueError, match="no episode's last info has 'is_success'; let the environment give one"):
            robot.evaluate(1)
        assert math.isnan(robot.collect(n_episode=1).success_rate)
        robot.score = quoted
        with pytest.raises(ValueError, match="evaluate: the score function quoted gave 'high'; expected a number"):
            robot.evaluate(1)


def quoted(robot, episodes):
    return "high"


def normalising(**options):
    """Statistics of observations, which evaluations use and do not change."""
    def helper():
        return OffPolicyHelper(size=300, batch_size=8, learn_every=4, transforms=[ObservationNormalizer()])

    return robot_of(dqn(Noisy, epsilon=0.5), helper, Noisy, trace=True, seed=3, n_agents=2, **options)


def test_the_acting_state_acts_alike_in_another_robot_and_leaves_its_buffers_alone():
    with normalising() as robot, normalising() as other:
        robot.run(StopAfterSteps(100))
        before = robot.state_dict()
        first = robot.evaluate(3)
        assert same(robot.state_dict(), before)
        state = robot.acting_state()
        assert sorted(state) == ["counters", "task.RL", "transforms.RL"]
        other.run(StopAfterSteps(40))
        assert weights(other) != weights(robot)
        other.load_state_dict(state)
        assert other.evaluate(3).returns == first.returns and weights(other) == weights(robot)
        assert (other.env_steps, len(other.buffers["RL"])) == (100, 40)
        other.run(StopAfterSteps(20))
        assert (other.env_steps, len(other.buffers["RL"])) == (120, 60)
        with pytest.raises(ValueError, match="build the robot as it was saved"):
            other.load_state_dict({"task.RL": state["task.RL"]})


def test_epochs_evaluate_with_one_seed_and_keep_the_best(tmp_path):
    worth = iter([1.0, 3.0, 2.0, 3.0])
    with normalising(score=lambda robot, seen: next(worth)) as robot, normalising() as alone, normalising() as best:
        found = []
        for epoch, stats, info in robot.epochs(3, 50, evaluate_episodes=2, seed=7, best=tmp_path / "best"):
            for _ in alone.iterate(info["env_steps"]):
                pass
            found.append((stats["eval/score"], info["best_score"], info["best_epoch"]))
            seen = alone.evaluate(2, seed=7)
            assert (stats["eval/mean_return"], stats["eval/episodes"]) == (seen.mean_return, 2)
            assert robot.trace_hash() == alone.trace_hash(), "the evaluations change nothing"
            if epoch == 1:
                first = weights(alone), seen.returns, alone.env_steps
        assert found == [(3.0, 3.0, 1), (2.0, 3.0, 1), (3.0, 3.0, 1)]
        best.load(tmp_path / "best")
        assert (weights(best), best.evaluate(2, seed=7).returns, best.env_steps) == first


@pytest.mark.parametrize(("driver", "mode"), [("threads", "sync"), ("threads", "async"), ("cooperative", "async")])
def test_nothing_is_learned_while_it_is_evaluated(driver, mode):
    updates = []

    def held_out():
        updates.append([robot.tasks["RL"].learns])
        return Noisy()

    def score(robot, seen):
        updates[-1].append(robot.tasks["RL"].learns)
        return seen.mean_return

    with robot_of(a2c(Noisy), lambda: OnPolicyHelper(unroll=5), Noisy, n_agents=2, driver=driver, mode=mode, eval_env=held_out,
                  score=score) as robot:
        for _ in robot.epochs(2, 40, evaluate_episodes=1):
            pass
    assert [before == after for before, after in updates] == [True] * 3 and updates[-1][0] > updates[0][0] == 0


def test_evaluations_of_an_async_cooperative_robot_cut_nothing():
    def trace(evaluating):
        with robot_of(a2c(Noisy), lambda: OnPolicyHelper(unroll=5), Noisy, n_agents=2, mode="async", trace=True) as robot:
            if evaluating:
                list(robot.epochs(2, 40, evaluate_episodes=1))
            else:
                list(robot.iterate(40))
                list(robot.iterate(robot.env_steps + 40))
            return robot.trace_hash(), robot.counters()

    assert trace(True) == trace(False)


# ----------------------------------------------------------------------------------------------------------- episodes without end


class Endless(Corridor):
    """Every second episode never ends; the others have three steps."""

    def reset(self, **options):
        self.tried = getattr(self, "tried", 0) + 1
        return super().reset(**options)

    def step(self, act):
        self.at += 1
        return self.obs(), 1.0, self.tried % 2 == 1 and self.at == 3, False, {}

    def obs(self):
        return np.full(1, min(self.at, 5), np.float32)

    def render(self):
        return np.zeros((4, 4, 3), np.uint8)


def test_an_episode_without_end_is_truncated_counted_and_told(tmp_path):
    with robot_of(Recorder(), env=Endless) as robot:
        with pytest.warns(RuntimeWarning, match="2 of 4 episodes did not end within max_episode_steps.*truncated.*time limit"):
            seen = robot.evaluate(4, max_episode_steps=7)
        assert seen.lengths == [3, 7, 3, 7] and seen.returns == [3.0, 7.0, 3.0, 7.0] and seen.cut == 2
        assert seen.numbers()["episodes_cut"] == 2 and "episodes_cut" not in robot.evaluate(1, max_episode_steps=7).numbers()
        assert robot.evaluate(1, max_episode_steps=None).cut == 0
        with pytest.raises(ValueError, match="max_episode_steps is 0"):
            robot.evaluate(1, max_episode_steps=0)


def test_an_exact_end_is_no_cut():
    with robot_of(Recorder(), env=lambda: Corridor(5)) as robot:
        assert robot.evaluate(3, max_episode_steps=5).cut == 0


def test_films_end_too(tmp_path):
    class Still(Endless):
        def reset(self, **options):
            self.tried = 1
            return super().reset(**options)

    with robot_of(Recorder(), env=Still) as robot:
        with pytest.warns(RuntimeWarning, match="1 of 1 episodes did not end"):
            assert robot.play(tmp_path / "film.gif", max_episode_steps=6) == 6.0
        assert robot.play(tmp_path / "film.gif", max_steps=4) == 4.0


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_vector_environment_that_goes_on_for_ever_is_reset(mode):
    """Its first episodes end in three steps, its second ones never do; the third ones begin with a reset of all."""
    make = lambda: SyncVectorEnv([Endless] * 2, autoreset_mode=mode)  # noqa: E731
    with robot_of(Recorder(), env=make, agent=VectorAgent) as robot:
        with pytest.warns(RuntimeWarning, match="2 of 6 episodes did not end"):
            seen = robot.evaluate(6, max_episode_steps=7)
    assert sorted(seen.lengths) == [3, 3, 3, 3, 7, 7] and seen.cut == 2
