"""AugmentedEnv: against the recorded toy world, ends and their last observation, perfect models, spaces, arguments."""

import importlib.util
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from parl_like.envs.sokoban import SokobanVectorEnv
from parl_like.envs.thinker.augmented import AugmentedEnv
from parl_like.envs.thinker.snapshots import snapshots_of
from parl_like.envs.thinker.tree import Tree
from parl_like.envs.vector import make_vector_env

SCRIPT = Path(__file__).resolve().parent.parent / "conformance" / "replay_tree.py"
spec = importlib.util.spec_from_file_location("replay_tree", SCRIPT)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)

A = 3


class ToyEnvs(VectorEnv):
    """The toy world of the recordings behind gymnasium's interface; the observation is (state, version). Every third end is a
    truncation."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, n, start=0):
        self.num_envs, self.start = n, start
        self.single_observation_space = gym.spaces.Box(0, 10_000, (2,), np.float32)
        self.single_action_space = gym.spaces.Discrete(A, start=start)
        self.observation_space, self.action_space = (
            batch_space(self.single_observation_space, n),
            batch_space(self.single_action_space, n),
        )

    def obs(self):
        return self.toy.now.astype(np.float32)

    def reset(self, *, seed=None, options=None):
        self.toy = script.Toy(self.num_envs, A)
        return self.obs(), {}

    def step(self, actions):
        assert (np.asarray(actions) >= self.start).all()
        before = self.toy.now.copy()
        seen = self.toy.step(np.ones(self.num_envs, bool), actions - self.start)
        done = seen["done"]
        truncated = done & (self.toy.episode % 3 == 0)
        final = np.full(self.num_envs, None, object)
        for i in np.flatnonzero(done):
            s, _ = self.toy.move(before[i, 0], actions[i] - self.start)
            final[i] = np.array([s, before[i, 1] + 1], np.float32)
        final_info = {"real_done": seen["real_done"], "_real_done": done, "truncated_done": seen["truncated_done"],
                      "_truncated_done": done}
        info = {"final_obs": final, "_final_obs": done, "final_info": final_info, "_final_info": done} if done.any() else {}
        return self.obs(), seen["reward"], done & ~truncated, truncated, info


class ToyModel:
    """The toy world's guess, as a world model with a table of states."""

    def __init__(self):
        self.table, self.calls = {}, []
        self.toy = script.Toy(1, A)

    def __call__(self, rows):
        self.calls.append(len(rows["op"]))
        out = {"r": [], "done": [], "v": [], "logits": [], "hs": [], "x": []}
        for i, op in enumerate(rows["op"]):
            if op == 0:
                state = np.asarray(rows["obs"][i]).astype(np.int64)
                v, logits = self.toy.look(state[None, 0], state[None, 1], root=True)
                r, done = 0.0, 0.0
            else:
                states, (r, v, over, logits) = self.toy.imagine(
                    self.table[int(rows["parent"][i])][None], rows["act"][i : i + 1], False
                )
                state, r, done = states[0], r[0], 0.9 * over[0]
            self.table[int(rows["node"][i])] = state
            for name, value in (("r", r), ("done", done), ("v", v[0]), ("logits", logits[0]), ("hs", state[:, None, None]),
                                ("x", state / 1e4)):
                out[name].append(value)
        return {name: np.array(values, np.float32) for name, values in out.items()}


def augmented(n=4, model=None, start=0, **options):
    model = model or ToyModel()
    return AugmentedEnv(ToyEnvs(n, start), model, **{**dict(K=4, max_depth=3, discounting=0.5), **options}), model


def random_actions(rng, n):
    return np.stack([rng.integers(0, A, n), rng.integers(0, 2, n)], 1)


@pytest.mark.parametrize("layout", ["G1", "G2"])
@pytest.mark.parametrize(("K", "start", "options"),
                         [(4, 0, {}), (7, 5, {"max_depth": 0}), (1, 0, {}), (5, 0, {"tree_carry": False, "stat_mask_type": 1})],
                         ids=str)
def test_every_step_is_that_of_the_recorded_world(layout, K, start, options):
    n = 4
    env, _ = augmented(n, start=start, K=K, layout=layout, h_shape=(2, 1, 1), nodes=1000, **options)
    player = script.Player(Tree(n, A, K, layout=layout, **{**dict(max_depth=3, discounting=0.5), **options}), script.Toy(n, A))
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(obs["tree_reps"], player.shown.features)
    rng = np.random.default_rng(1)
    returns, steps, im_returns = np.zeros(n), np.zeros(n, int), np.zeros(n)
    for _ in range(200):
        actions = random_actions(rng, n)
        seen = player.step(actions[:, 0], actions[:, 1])
        obs, rew, terminated, truncated, info = env.step(actions)
        np.testing.assert_allclose(obs["tree_reps"], seen["tree_reps"], atol=1e-6)
        np.testing.assert_array_equal(rew, seen["reward"])
        np.testing.assert_array_equal(terminated | truncated, seen["done"])
        for name in ("step_status", "max_rollout_depth", "baseline", "im_reward", "real_done", "truncated_done"):
            np.testing.assert_array_equal(info[name], seen[name], err_msg=name)
        np.testing.assert_array_equal(obs["hs"][:, :, 0, 0], np.stack([seen["hs_state_id"], seen["hs_version"]], 1))
        np.testing.assert_array_equal(obs["real_states"], player.toy.now)
        np.testing.assert_array_equal(obs["last_act"], actions)
        np.testing.assert_array_equal(obs["last_rew"], np.stack([rew, info["im_reward"]], 1).astype(np.float32))
        real = seen["plan"].real
        np.testing.assert_array_equal(info["imagined"], ~real)
        returns, steps, im_returns = returns + rew, steps + (real if layout == "G2" else 1), im_returns + info["im_reward"]
        np.testing.assert_allclose(info["episode_return"], returns)
        np.testing.assert_array_equal(info["episode_step"], steps)
        np.testing.assert_allclose(info["im_episode_return"], im_returns, rtol=1e-6)
        returns[seen["real_done"]], steps[seen["real_done"]], im_returns[real] = 0, 0, 0
        assert env.observation_space.contains({name: np.asarray(value, env.observation_space[name].dtype)
                                               for name, value in obs.items()})


@pytest.mark.parametrize(("layout", "expected"), [("G1", [1, 2, 3, 4, 5, 6, 7, 8]), ("G2", [0, 0, 0, 1, 1, 1, 1, 2])])
def test_episode_step_counts_as_the_version_of_the_layout_does(layout, expected):
    env, _ = augmented(1, K=4, layout=layout, nodes=1000)
    env.reset(seed=0)
    counts = [env.step(np.zeros((1, 2), int))[4]["episode_step"][0] for _ in expected]
    assert counts == expected


def test_the_initial_inference_is_told_what_led_there_and_0_after_an_end():
    env, model = augmented(5, K=1)
    env.reset()
    asked, rng = [], np.random.default_rng(0)
    env.ask = lambda rows: (asked.append(rows), model(rows))[1]
    for _ in range(40):
        actions = random_actions(rng, 5)
        _, _, terminated, truncated, _ = env.step(actions)
        np.testing.assert_array_equal(asked[-1]["act"][:5], np.where(terminated | truncated, 0, actions[:, 0]))
        np.testing.assert_array_equal(asked[-1]["act"][5:], actions[truncated, 0])  # final observations follow their action


def test_one_call_of_the_model_serves_a_step():
    env, model = augmented(8, K=3)
    env.reset()
    rng = np.random.default_rng(0)
    for _ in range(60):
        before = len(model.calls)
        env.step(random_actions(rng, 8))
        assert len(model.calls) - before <= 1


def test_arrays_of_a_step_are_never_written_again():
    env, _ = augmented(K=3)
    obs, info = env.reset()
    rng = np.random.default_rng(0)
    for _ in range(30):
        kept = {**{f"o.{k}": v for k, v in obs.items()},
                **{f"i.{k}": v for k, v in info.items() if isinstance(v, np.ndarray) and v.dtype != object}}
        copies = {name: value.copy() for name, value in kept.items()}
        obs, _, _, _, info = env.step(random_actions(rng, 4))
        for name, value in kept.items():
            np.testing.assert_array_equal(value, copies[name], err_msg=name)


@pytest.mark.parametrize("layout", ["G1", "G2"])
def test_a_truncated_episode_shows_its_final_observation_as_a_fresh_root(layout):
    env, model = augmented(6, K=2, layout=layout, h_shape=(2, 1, 1))
    env.reset()
    rng = np.random.default_rng(2)
    met = 0
    for _ in range(400):
        actions = random_actions(rng, 6)
        obs, rew, terminated, truncated, info = env.step(actions)
        for i in np.flatnonzero(truncated):
            met += 1
            final = info["final_obs"][i]
            state = final["real_states"].astype(np.int64)
            v, logits = model.toy.look(state[None, 0], state[None, 1], root=True)
            entries = env.tree.layout.decode(final["tree_reps"])
            assert entries["root_v"] == np.float32(v[0]) == entries["cur_v"]
            np.testing.assert_array_equal(entries["root_policy" if layout == "G2" else "root_logits"],
                                          logits[0].astype(np.float32))
            np.testing.assert_array_equal(entries["root_action"], np.arange(A) == actions[i, 0])
            assert (entries["root_ns"] == 0).all() and entries["reset" if layout == "G1" else "cur_reset"] == 1
            if layout == "G2":
                assert entries["root_r"] == np.float32(rew[i])
            np.testing.assert_array_equal(final["hs"][:, 0, 0], state)
            assert set(final) == set(obs) and final["step_status"] == 0 and final["last_act"][0] == actions[i, 0]
        for i in np.flatnonzero(terminated):
            assert info["final_obs"][i] is not None
            np.testing.assert_array_equal(obs["last_act"][i], actions[i])
    assert met > 5


# ------------------------------------------------------------------------------------------------------------------ perfect model


def values(rows):
    """A model that knows nothing but what the observation is."""
    flat = np.asarray(rows["obs"], np.float32).reshape(len(rows["op"]), -1)
    v = flat @ np.linspace(-1, 1, flat.shape[1], dtype=np.float32) / 100
    logits = np.stack([v * k for k in range(5)], 1)
    return {"r": np.full(len(v), np.nan, np.float32), "done": np.full(len(v), np.nan, np.float32), "v": v, "logits": logits}


def sokoban(kind):
    options = dict(size=6, n_boxes=1, obs="planes", max_steps=12)
    if kind == "batched":
        return SokobanVectorEnv(3, autoreset_mode="SameStep", **options)
    return make_vector_env(partial(gym.make, "parl_like.envs:Sokoban-v0", disable_env_checker=True, **options), 3)


@pytest.mark.parametrize("kind", ["batched", "single"])
def test_a_perfect_model_imagines_what_the_environment_does(kind):
    """Imagine a path, then walk it: each imagined child had the reward and the value of what then came, and planning changed
    nothing."""
    envs = sokoban(kind)
    env = AugmentedEnv(envs, values, K=4, max_depth=0, discounting=1.0,
                       perfect=partial(snapshots_of, envs, make=lambda: sokoban(kind)))
    twin = sokoban("batched")
    env.reset(seed=7)
    twin.reset(seed=7)
    rng = np.random.default_rng(3)
    layout = env.tree.layout
    ends = 0
    for _ in range(60):
        first = rng.integers(0, 5, 3)
        obs, _, _, _, _ = env.step(np.stack([first, np.ones(3, int)], 1))  # one step deep, and back
        guess = layout.decode(obs["tree_reps"])
        for _ in range(2):
            obs, rew, terminated, truncated, _ = env.step(np.stack([rng.integers(0, 5, 3), np.zeros(3, int)], 1))
            assert not rew.any() and not terminated.any() and not truncated.any()
        obs, rew, terminated, truncated, _ = env.step(np.stack([first, np.zeros(3, int)], 1))
        theirs = twin.step(first)
        np.testing.assert_array_equal(obs["real_states"], theirs[0])
        np.testing.assert_allclose(rew, theirs[1])
        np.testing.assert_array_equal(terminated, theirs[2])
        np.testing.assert_array_equal(truncated, theirs[3])
        np.testing.assert_allclose(guess["cur_r"][:, 0], rew, atol=1e-6)
        over = terminated | truncated
        ends += over.sum()
        after = values({"obs": theirs[0], "op": np.zeros(3)})["v"]
        np.testing.assert_allclose(guess["cur_v"][~over, 0], after[~over], atol=1e-6)
        assert (guess["cur_v"][over] == 0).all()
    assert ends > 5


def test_environments_that_cannot_be_cloned_are_refused():
    class Opaque(gym.Env):
        observation_space, action_space = gym.spaces.Box(0, 1, (2,), np.float32), gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(2, np.float32), {}

    envs = make_vector_env(Opaque, 2)
    with pytest.raises(TypeError, match=r"perfect model: .*Opaque.*clone_state.* or use a learned model"):
        AugmentedEnv(envs, values, perfect=partial(snapshots_of, envs, make=Opaque))
    apart = make_vector_env(Opaque, 2, "thread")
    with pytest.raises(TypeError, match="kind 'sync'"):
        AugmentedEnv(apart, values, perfect=partial(snapshots_of, apart, make=Opaque))
    apart.close()


# ---------------------------------------------------------------------------------------------------------------------- arguments


def test_bad_actions_change_nothing():
    env, _ = augmented()
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros((4, 2), int))
    obs, _ = env.reset()
    state = env.tree.state_dict()
    for actions, words in [
        (np.zeros(4, int), r"expected \(4, 2\) integers"), (np.zeros((4, 2)), r"float64; expected \(4, 2\) integers"),
        (np.array([[0, 0]] * 3 + [[A, 0]]), r"primary\[3\] is 3; expected an action from 0 to 2"),
        (np.array([[0, 2]] * 4), r"reset\[0\] is 2; expected 0"),
    ]:
        with pytest.raises(ValueError, match=words):
            env.step(actions)
    for name, value in env.tree.state_dict().items():
        np.testing.assert_array_equal(value, state[name])


def test_environments_that_do_not_fit_are_refused():
    with pytest.raises(TypeError, match="no vector environment; put environments together with"):
        AugmentedEnv(gym.make("CartPole-v1"), values)
    with pytest.raises(ValueError, match="expected SAME_STEP"):
        AugmentedEnv(make_vector_env("CartPole-v1", 2, autoreset="NextStep"), values)
    with pytest.raises(TypeError, match="expected Discrete.*Discretize"):
        AugmentedEnv(make_vector_env("Pendulum-v1", 2), values)
    with pytest.raises(TypeError, match=r"expected Box \(C, H, W\)"):
        AugmentedEnv(make_vector_env("FrozenLake-v1", 2), values)
    env, model = augmented(h_shape=(2, 1, 1))
    env.ask = lambda rows: {name: value for name, value in model(rows).items() if name != "hs"}
    with pytest.raises(ValueError, match="build it with return_h=True"):
        env.reset()


def test_root_and_current_state_side_by_side():
    env, _ = augmented(2, K=6, max_depth=0, h_shape=(2, 1, 1), x_shape=(2,), return_double=True)
    assert env.single_observation_space["hs"].shape == (4, 1, 1) and env.single_observation_space["xs"].shape == (4,)
    obs, _ = env.reset()
    np.testing.assert_array_equal(obs["hs"][:, :2], obs["hs"][:, 2:])
    obs = env.step(np.array([[0, 0], [1, 0]]))[0]
    np.testing.assert_array_equal(obs["hs"][:, :2, 0, 0], obs["real_states"])
    assert (obs["hs"][:, 2, 0, 0] == A * obs["real_states"][:, 0] + [1, 2]).all() and np.allclose(
        obs["xs"][:, 2:], obs["hs"][:, 2:, 0, 0] / 1e4
    )
