"""Games with all their players against PettingZoo's own tests, and the joint view of a parallel environment by hand numbers."""

import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from aec_fakes import aec_of, leaving

from parl_like import Robot
from parl_like.environment.state import clone_state, restore_state
from parl_like.envs import make_vector_env
from parl_like.envs.games import ConnectFour, Kuhn, Leduc, MatrixGame, RockPaperScissors, TicTacToe, TurnBased
from parl_like.envs.joint import Joint
from parl_like.envs.pettingzoo import AECPlayer

GAMES = {"tic-tac-toe": TicTacToe, "kuhn": Kuhn, "kuhn4": lambda: Kuhn(4), "leduc": Leduc,
         "connect-four": ConnectFour, "rock-paper-scissors": lambda: TurnBased(RockPaperScissors())}
each_game = pytest.mark.parametrize("game", GAMES.values(), ids=GAMES)


@each_game
def test_pettingzoos_own_tests_pass_for_our_games(game):
    aec_of(game())
    from pettingzoo.test import api_test, seed_test

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that observations are Dicts, and an empty board zeros
        api_test(aec_of(game()), num_cycles=60, verbose_progress=False)
        seed_test(lambda: aec_of(game()), num_cycles=30)


def test_pettingzoos_own_test_passes_for_the_fake_that_players_leave():
    env = leaving(2, 3, masks=True)
    from pettingzoo.test import parallel_api_test

    parallel_api_test(env, num_cycles=5)


@each_game
def test_a_game_goes_on_from_a_cloned_state_as_it_would_have(game):
    env, other, rng = aec_of(game()), aec_of(game()), np.random.default_rng(0)
    with pytest.raises(gym.error.ResetNeeded, match="reset it first"):
        env.clone_state()

    def play(env, acts):
        seen = []
        for act in acts:
            obs, rew, terminated, truncated, _ = env.last()
            legal = np.flatnonzero(obs["action_mask"])
            env.step(None if terminated else int(legal[act % len(legal)]))
            seen.append((env.agent_selection, rew, terminated, obs["observation"].tolist(), dict(env.rewards)))
            if not env.agents:
                env.reset()
        return seen

    env.reset(seed=3)
    other.reset(seed=4)
    for _ in range(30):
        play(env, rng.integers(0, 9, rng.integers(1, 6)).tolist())
        state, acts = env.clone_state(), rng.integers(0, 9, 12).tolist()
        expected = play(env, acts)
        other.restore_state(state)
        assert play(other, acts) == expected


def test_a_game_of_simultaneous_moves_is_led_to_its_turns():
    with pytest.raises(ValueError, match=r"take TurnBased\(game\).* cannot play this game: it needs dynamics 'sequential'"):
        aec_of(RockPaperScissors())


def test_a_state_of_another_game_is_refused():
    env = aec_of(Kuhn(3))
    env.reset(seed=0)
    with pytest.raises(ValueError, match="player_2; expected some of player_0, player_1"):
        aec_of(Kuhn(2)).restore_state(env.clone_state())


def test_the_joint_view_has_what_everybody_saw_did_and_got():
    env = Joint(leaving(1, 3), alive=True)
    assert env.players == ("p0", "p1") and env.action_space == gym.spaces.MultiDiscrete([2, 3])
    assert env.observation_space["obs"].shape == (2, 2) and env.observation_space["state"].shape == (1,)
    obs, info = env.reset(seed=0)
    assert obs["obs"].tolist() == [[0, 0], [0, 0]] and obs["alive"].tolist() == [1, 1] and info["alive"].tolist() == [1, 1]
    obs, rew, terminated, truncated, info = env.step(np.array([1, 2]))
    assert obs["obs"].tolist() == [[1, 0], [1, 1]] and obs["state"].tolist() == [1] and obs["alive"].tolist() == [0, 1]
    assert (rew, terminated, truncated) == (13.0, False, False)  # 0 + 1, and 10 + 2
    assert info["rewards"].tolist() == [1, 12] and info["alive"].tolist() == [1, 1] and info["ended"].tolist() == [True, False]
    assert info["players"] == {"p0": {"t": 1}, "p1": {"t": 1}}
    obs, rew, terminated, truncated, info = env.step(np.array([1, 0]))  # what is chosen for a player who is gone is ignored
    assert obs["obs"].tolist() == [[0, 0], [2, 2]] and rew == 10.0 and info["rewards"].tolist() == [0, 10]
    assert info["alive"].tolist() == [0, 1] and not (terminated or truncated)
    obs, rew, terminated, truncated, info = env.step(np.array([0, 1]))
    assert (terminated, truncated) == (True, False) and info["ended"].all() and obs["alive"].tolist() == [0, 0]
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        env.step(np.array([0, 0]))
    assert env.reset()[1]["ended"].tolist() == [False, False]


def test_masks_of_the_joint_view_stand_side_by_side_and_leave_the_gone_one_action():
    env = Joint(leaving(1, 2, masks=True, cut=(1,)))
    assert env.observation_space["mask"] == gym.spaces.MultiBinary(5)
    obs, _ = env.reset()
    assert obs["mask"].tolist() == [1, 0, 1, 1, 0]  # of two actions the first, of three the first two
    obs, _, terminated, truncated, _ = env.step(np.array([0, 1]))
    assert obs["mask"].tolist() == [1, 0, 1, 1, 0] and not (terminated or truncated)
    obs, _, terminated, truncated, info = env.step(np.array([0, 1]))
    assert (terminated, truncated) == (False, True) and info["ended"].tolist() == [True, False]
    assert obs["mask"].tolist() == [1, 0, 1, 1, 0]  # who was cut off keeps what is legal, for its value is asked for


@pytest.mark.parametrize("reward, expected", [("sum", 13.0), ("mean", 6.5), ("each", [1.0, 12.0])])
def test_the_joint_reward_is_of_the_team_or_of_each(reward, expected):
    env = Joint(leaving(2, 2), reward=reward)
    env.reset()
    assert np.array_equal(env.step(np.array([1, 2]))[1], expected)
    assert getattr(env, "reward_space", None) == (gym.spaces.Box(-np.inf, np.inf, (2,), np.float64) if reward == "each" else None)


def test_equal_observations_are_stacked_as_they_are():
    env = Joint(leaving(2, 2, box=True))
    assert env.observation_space["obs"] == gym.spaces.Box(0, 99, (2, 2), np.float32)


def test_what_is_no_parallel_environment_is_refused():
    with pytest.raises(TypeError, match="AEC environment; give pettingzoo.utils.aec_to_parallel"):
        Joint(aec_of(Kuhn()))
    with pytest.raises(TypeError, match="is no such environment"):
        Joint(gym.make("CartPole-v1"))
    with pytest.raises(ValueError, match="'sum', 'mean' or 'each'"):
        Joint(leaving(1, 1), reward="all")
    env = Joint(leaving(1, 1))
    env.reset()
    with pytest.raises(TypeError, match="methods clone_state and restore_state"):
        clone_state(env)


def test_a_joint_view_goes_on_from_a_cloned_state_where_its_environment_can():
    inner = leaving(2, 4)
    type(inner).clone_state = lambda self: {"t": self.t, "agents": list(self.agents)}
    type(inner).restore_state = lambda self, state: vars(self).update(t=state["t"], agents=list(state["agents"]))
    env = Joint(inner)
    env.reset()
    env.step(np.array([0, 0]))
    state = clone_state(env)
    expected = [env.step(np.array([1, i])) for i in range(3)]
    restore_state(env, state)
    again = [env.step(np.array([1, i])) for i in range(3)]
    assert [step[1:4] for step in again] == [step[1:4] for step in expected] and expected[-1][2]
    assert [step[4]["ended"].tolist() for step in again] == [step[4]["ended"].tolist() for step in expected]


def test_a_mask_needs_discrete_actions():
    env = leaving(1, 1, masks=True)
    env.action_space = lambda agent: gym.spaces.Box(-1, 1, (1,), np.float32)
    with pytest.raises(TypeError, match="player 'p0': a mask of legal actions needs Discrete actions"):
        Joint(env)


def test_a_game_with_all_its_players_is_that_of_one_among_others():
    env, whole = AECPlayer(aec_of(Kuhn()), 1, lambda obs, rng: int(obs["mask"].argmax())), aec_of(Kuhn())
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        whole.reset(seed=seed)
        whole.step(0)  # the first player's first legal action: to pass
        assert np.array_equal(whole.last()[0]["observation"], obs["obs"])
        _, rew, terminated, _, _ = env.step(1)
        whole.step(1)
        whole.step(0)
        assert terminated and whole._cumulative_rewards["player_1"] == rew


PAYOFFS = np.arange(12.0).reshape(2, 3, 2)  # of different numbers of actions: 6 r + 2 c and one more
AT_ONCE = {"rps": RockPaperScissors, "2 x 3": lambda: MatrixGame(PAYOFFS),
           "of three": lambda: MatrixGame(np.ones((2, 2, 2, 3)))}


def at_once(game):
    pytest.importorskip("pettingzoo")
    from parl_like.envs.games.players import GameParallel

    return GameParallel(game, render_mode="ansi")


@pytest.mark.parametrize("game", AT_ONCE.values(), ids=AT_ONCE)
def test_pettingzoos_own_tests_pass_for_games_of_simultaneous_moves(game):
    at_once(game())
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parallel_api_test(at_once(game()), num_cycles=40)
        parallel_seed_test(lambda: at_once(game()), num_cycles=20)


def test_all_players_move_at_once_and_get_what_the_matrix_says():
    env = at_once(MatrixGame(PAYOFFS))
    obs, _ = env.reset(seed=0)
    assert [one["action_mask"].tolist() for one in obs.values()] == [[1, 1, 0], [1, 1, 1]]
    assert obs["player_1"]["observation"].tolist() == [0, 1]
    with pytest.raises(ValueError, match="player_0 takes 2 in .*; legal are 0, 1"):
        env.step({"player_0": 2, "player_1": 0})
    state = env.clone_state()
    obs, rewards, terminated, truncated, _ = env.step({"player_0": 1, "player_1": 2})
    assert rewards == {"player_0": 10.0, "player_1": 11.0} and all(terminated.values()) and not any(truncated.values())
    assert not env.agents and not obs["player_0"]["action_mask"].any()
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        env.step({"player_0": 1, "player_1": 2})
    env.restore_state(state)
    assert env.step({"player_0": 0, "player_1": 1})[1] == {"player_0": 2.0, "player_1": 3.0}
    with pytest.raises(ValueError, match="of a game of turns take GameAEC"):
        at_once(TicTacToe())
    with pytest.raises(ValueError, match="of a game of simultaneous moves take GameParallel"):
        aec_of(RockPaperScissors())


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
def test_games_of_simultaneous_moves_are_learned_from_by_all_players(driver):
    """Each has a best action, whatever the other does: the second one."""
    payoffs = np.zeros((2, 2, 2))
    payoffs[1, :, 0] = payoffs[:, 1, 1] = 1.0
    with Robot.of("DQN", lambda: at_once(MatrixGame(payoffs)), n_agents=2, hidden=[8], warmup=50, batch_size=16, lr=0.01,
                  total_steps=400, seed=1, driver=driver) as robot:
        robot.run(400)
        assert robot.evaluate(4).returns == [pytest.approx([1.0, 1.0])] * 4


@pytest.mark.parametrize("kind", ["sync", "thread", "process"])
@pytest.mark.parametrize("n", [1, 2])
def test_vectors_of_several_players_are_refused_with_the_way_out(kind, n):
    at_once(RockPaperScissors())
    for make in (partial(at_once, RockPaperScissors()), partial(aec_of, TicTacToe())):
        with pytest.raises(TypeError, match="has several players, and copies .* not stepped as one; give the robot n_agents"):
            make_vector_env(make, n, kind)
    envs = make_vector_env(lambda: Joint(leaving(2, 2, box=True)), n, kind)
    assert envs.reset(seed=0)[0]["obs"].shape == (n, 2, 2)
    envs.close()
