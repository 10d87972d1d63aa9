"""Open episodes over checkpoints: of vector environments, under Thinker's trees, and where an environment refuses or fails."""

from functools import partial

import gymnasium as gym
import pytest
from agent_fakes import a2c, spaces_of
from test_carried_episodes import Clonable, Lottery, robot_of
from transport_fakes import OVER_RAY, connected, one_ray  # noqa: F401 - fixtures

from parl_like import Agent, ComputationTask, OnPolicyHelper, VectorAgent, create_algorithm_func
from parl_like.algorithms import A2C
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.state import clone_state, restore_state
from parl_like.envs.games import TicTacToe
from parl_like.envs.games.all_seats import AllSeats
from parl_like.envs.sokoban.vector import SokobanVectorEnv
from parl_like.envs.vector import make_vector_env
from parl_like.models import MLPActorCritic
from parl_like.robots import thinker
from parl_like.values.errors import AgentFailed


class Stubborn(Clonable):
    """Goes back to a state, or raises `error`."""

    def __init__(self, error=None):
        super().__init__()
        self.error = error

    def restore_state(self, state):
        if self.error is not None:
            raise self.error
        super().restore_state(state)


def group(kind, autoreset):
    return lambda: make_vector_env(Clonable, 3, kind, autoreset=autoreset, **({} if kind == "sync" else {"workers": 2}))


@pytest.mark.parametrize(("kind", "autoreset"), [("sync", "SameStep"), ("thread", "NextStep"),
                                                 pytest.param("process", "SameStep", marks=pytest.mark.slow)])
def test_a_group_goes_on_after_a_checkpoint_and_a_resume_is_exact(kind, autoreset, tmp_path):
    """Checkpoints every 14 steps; episodes have 2 or 30."""
    def build():
        task = ComputationTask(a2c(Clonable), lambda: OnPolicyHelper(unroll=7))
        return robot_of(group(kind, autoreset), task, agent=VectorAgent, n_agents=1)

    with build() as whole, build() as part:
        for i in range(6):
            for _ in range(2):
                whole.train_iter()
            if i == 3:
                whole.save(tmp_path / "c")
            whole.checkpoint_boundary()
        part.load(tmp_path / "c")
        for _ in range(2):
            for _ in range(2):
                part.train_iter()
            part.checkpoint_boundary()
        assert part.trace_hash() == whole.trace_hash() and part.recent_returns == whole.recent_returns
        assert whole.episodes_cut == 0 and set(whole.recent_lengths) == {2, 30}


@pytest.mark.parametrize("agent", [Agent, partial(VectorAgent, 3)], ids=["one", "three"])
def test_episodes_whose_environment_refuses_illegal_actions_are_carried(agent, tmp_path, caplog):
    """Each is tried out by a step before it goes on, with an action that its mask allows."""
    def build():
        spaces = spaces_of(AllSeats(TicTacToe()))
        task = ComputationTask(create_algorithm_func(MLPActorCritic, {**spaces, "hidden": [4]}, A2C, {}),
                               lambda: OnPolicyHelper(unroll=7))
        return robot_of(partial(AllSeats, TicTacToe()), task, agent=agent, n_agents=1)

    with build() as whole, build() as part:
        for i in range(3):
            whole.train_iter()
            if i == 1:
                whole.save(tmp_path / "c")
            whole.checkpoint_boundary()
        part.load(tmp_path / "c")
        part.train_iter()
        part.checkpoint_boundary()
        assert part.trace_hash() == whole.trace_hash() and whole.episodes_cut == 0 and "cut off" not in caplog.text


def test_games_of_sokoban_are_carried_also_over_two_checkpoints_in_a_row(tmp_path):
    """With a limit of 20 steps: 15 to 20, for the counter of a game begins at 0 to 5."""
    def build():
        env = partial(SokobanVectorEnv, 4, size=5, n_boxes=1, obs="planes", max_steps=20, autoreset_mode="NextStep")
        game = env()
        args = dict(obs=game.single_observation_space, act=game.single_action_space, hidden=[4])
        task = ComputationTask(create_algorithm_func(MLPActorCritic, args, A2C, {}), lambda: OnPolicyHelper(unroll=7))
        return robot_of(env, task, agent=VectorAgent, n_agents=1)

    with build() as whole, build() as part:
        for i in range(8):
            whole.train_iter()
            if i == 3:
                whole.save(tmp_path / "c")
            whole.checkpoint_boundary()
        part.load(tmp_path / "c")
        for _ in range(4, 8):
            part.checkpoint_boundary()
            part.train_iter()
        part.checkpoint_boundary()
        assert part.trace_hash() == whole.trace_hash() and part.recent_lengths == whole.recent_lengths
        assert whole.episodes_cut == 0 and 15 <= max(whole.recent_lengths) <= 20


def test_episodes_under_trees_are_carried_and_begin_a_new_stage(tmp_path):
    def build():
        return thinker.build(thinker.Config(
            env_options=dict(size=5, n_boxes=1, obs="planes", max_steps=12), env_n=4, rec_t=3, max_depth=2, actor_unroll_len=12,
            model_downscale_c=32, model_strides=(1, 1, 1, 1), widths=(4, 4, 4), total_steps=400, model_batch_size=4,
            model_unroll_len=2, model_return_n=2, model_buffer_n=400, model_warm_up_n=24, max_replay_ratio=1.0, trace=True))

    with build() as whole, build() as part:
        for i in range(4):
            for _ in range(2):
                whole.train_iter()
            if i == 1:
                whole.save(tmp_path / "c")
            whole.checkpoint_boundary()
            assert whole.agents[0].env.carried.held is not None
        part.load(tmp_path / "c")
        for _ in range(2):
            for _ in range(2):
                part.train_iter()
            part.checkpoint_boundary()
        assert part.trace_hash() == whole.trace_hash() and part.tasks["model"].learns == whole.tasks["model"].learns > 0
        assert part.recent_returns == whole.recent_returns and part.recent_lengths == whole.recent_lengths
        assert whole.episodes_cut == 0 and max(whole.recent_lengths) <= 12


@pytest.mark.parametrize("other", [
    lambda: make_vector_env(Clonable, 2), group("thread", "SameStep"),
    lambda: make_vector_env(lambda: gym.wrappers.TimeLimit(Clonable(), 9), 3), lambda: gym.vector.SyncVectorEnv([Clonable] * 2),
], ids=["fewer", "other groups", "other layers", "gymnasium's"])
def test_a_vector_environment_refuses_the_state_of_another(other):
    one, two = make_vector_env(Clonable, 3), other()
    with pytest.raises(gym.error.ResetNeeded):
        clone_state(one)
    one.reset(seed=0)
    with pytest.raises(ValueError, match="restore_state: the state is of"):
        restore_state(two, clone_state(one))
    one.close()
    two.close()


def test_a_vector_environment_says_that_its_environments_cannot_be_cloned():
    env = make_vector_env(Lottery, 2)
    env.reset(seed=0)
    with pytest.raises(TypeError, match="what .*Lottery remembers is not known; give it the methods clone_state"):
        clone_state(env)
    env.close()


def task():
    return ComputationTask(a2c(Clonable), lambda: OnPolicyHelper(unroll=7))


@pytest.mark.parametrize("driver", ["cooperative", Processes(workers=2), OVER_RAY])
def test_an_environment_that_fails_to_go_back_is_named_and_one_that_refuses_begins_anew(driver, tmp_path, caplog):
    with robot_of(Stubborn, task(), driver=driver) as robot:
        robot.train_iter()
        robot.save(tmp_path / "c")
    with robot_of(partial(Stubborn, KeyError("rooms")), task(), driver=driver) as other:
        with pytest.raises(AgentFailed, match=r"agent [01]: its environment raised in restore_state: KeyError: 'rooms'"):
            other.load(tmp_path / "c")
    with robot_of(partial(Stubborn, ValueError("a state of the old rules")), task(), driver=driver) as other:
        other.load(tmp_path / "c")
        other.train_iter()
        assert other.env_steps == robot.env_steps + 14
        assert "cut off, for it cannot go on here: a state of the old rules" in caplog.text or driver != "cooperative"


def test_an_environment_that_fails_to_say_its_state_is_named():
    class Broken(Clonable):
        def clone_state(self):
            raise KeyError("rooms")

    with robot_of(Broken) as robot:
        robot.train_iter()
        with pytest.raises(AgentFailed, match="agent 0: its environment raised in clone_state: KeyError: 'rooms'"):
            robot.checkpoint_boundary()
