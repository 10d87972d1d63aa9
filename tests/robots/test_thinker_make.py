"""thinker.make: the original's interface, its three kinds of wrapper, learning inside of step, checkpoints, and what is said to
wrong input."""

import os
import shutil
import subprocess
import sys
import threading
from functools import partial

import gymnasium as gym
import nine_places
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from parl_like.data.storage.archive import read_archive
from parl_like.envs import thinker
from parl_like.lab.yaml_text import ConfigError, dump_yaml, load_yaml_file
from parl_like.robots.thinker import env as thinker_env
from parl_like.values.errors import TaskFailed

A, N = 3, 4


class Walk(nine_places.Walk):
    """Also as an image of (x, t)."""

    def __init__(self, image=False):
        self.image = image
        self.observation_space = gym.spaces.Box(0, 9, (2, 16, 16) if image else (2,), np.float32)

    def seen(self):
        both = super().seen()
        return np.broadcast_to(both[:, None, None], (2, 16, 16)).copy() if self.image else both


class Copied(Walk):
    def clone_state(self):
        return {"x": self.x, "t": self.t}

    def restore_state(self, state):
        self.x, self.t = state["x"], state["t"]


class Classic(Walk):
    """The same before gymnasium."""

    def reset(self):
        return super().reset(seed=3)[0]

    def step(self, act):
        obs, rew, terminated, truncated, info = super().step(act)
        return obs, rew, terminated or truncated, {**info, "real_done": False}


SMALL = {
    "env_fn": Walk, "env_n": N, "gpu": False, "savedir": "", "model_downscale_c": 32, "rec_t": 4, "max_depth": 3,
    "model_batch_size": 8, "model_unroll_len": 2,
    "model_return_n": 2, "model_warm_up_n": 40, "model_buffer_n": 400, "min_replay_ratio": 1, "max_replay_ratio": 4,
}  # fmt: skip


def make(**options):
    return thinker.make(**{**SMALL, **options})


def actions(seed=0):
    """Endless (primary, reset)."""
    rng = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(A, (N,), generator=rng), torch.randint(2, (N,), generator=rng)


def play(env, stages, seed=0):
    """The last step of so many whole stages."""
    stream = actions(seed)
    for _ in range(stages * SMALL["rec_t"]):
        out = env.step(*next(stream))
    return out


def learner(env):
    return env.robot.tasks["model"].algorithm


def weights(env):
    return {name: value.clone() for name, value in learner(env).model.state_dict().items()}


# ----------------------------------------------------------------------------------------------------------- basic usage


def test_basic_usage_of_the_original():
    env_n = 16
    env = thinker.make("Sokoban-v0", env_n=env_n, gpu=False, model_downscale_c=64)
    env.reset()
    rng = torch.Generator().manual_seed(0)
    for _ in range(20):
        primary_action, reset_action = (torch.randint(k, size=(env_n,), generator=rng) for k in (5, 2))
        state, reward, done, info = env.step(primary_action, reset_action)
    assert state["tree_reps"].shape == torch.Size([16, 79]) and state["real_states"].shape == torch.Size([16, 3, 80, 80])
    assert state["real_states"].dtype == torch.uint8 and info["model_status"]["processed_n"] == 16
    assert env.decode_tree_reps(state["tree_reps"])["root_action"].shape == (16, 5)
    assert env.action_space[0][15] == gym.spaces.Discrete(5) and env.action_space[1][0] == gym.spaces.Discrete(2)
    env.close()
    env.close()
    with pytest.raises(gym.error.ClosedEnvironmentError):
        env.reset()


INFO = {
    "real_done": torch.bool, "truncated_done": torch.bool, "cost": torch.bool, "step_status": torch.int64,
    "max_rollout_depth": torch.int64,
    "baseline": torch.float32, "im_reward": torch.float32, "im_episode_return": torch.float32, "episode_return": torch.float32,
    "episode_step": torch.int64,
}  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"wrapper_type": 1}, {"wrapper_type": 2, "env_fn": Copied}, {"env_fn": Classic}],
                         ids=str)
def test_every_key_of_info(options):
    with make(**options) as env:
        env.reset()
        ends = 0
        for (primary, reset), _ in zip(actions(), range(60), strict=False):
            state, reward, done, info = env.step(primary, reset)
            ends += int(done.sum())
            if "env_fn" in options and options["env_fn"] is Classic:
                assert not info["real_done"].any()  # the environment's own word
            else:
                assert torch.equal(info["real_done"], done)
        assert ends
        assert (reward.shape, reward.dtype, done.shape, done.dtype) == ((N,), torch.float32, (N,), torch.bool)
        assert {key: (value.shape, value.dtype) for key, value in info.items() if key in INFO} == {
            key: ((N,), dtype) for key, dtype in INFO.items()
        }
        np.testing.assert_array_equal(info["real_states_np"], state["real_states"])
        status = info["model_status"]
        assert info.keys() == {*INFO, "model_status", "real_states_np", "initial_per_state"}
        assert status.keys() == {"processed_n", "model_warm_up_n", "warm_up_n", "running", "finish", "replay_ratio"}
        kept, old = state["real_states"].clone(), state["real_states"]
        old.zero_()  # a state is the caller's
        state = env.step(primary * 0, reset * 0)[0]
        assert options.get("wrapper_type") == 1 or torch.equal(state["real_states"], kept)


def test_without_planning_rewards():
    with make(im_enable=False) as env:
        env.reset()
        assert not {"im_reward", "im_episode_return"} & play(env, 1)[3].keys()


# -------------------------------------------------------------------------------------------------------- kinds of wrapper


@pytest.mark.parametrize(("options", "shapes"), [
    ({"layout": "G1"}, {"tree_reps": 10 * A + 4 + 9, "hs": (32,)}),
    ({"layout": "G2"}, {"tree_reps": 10 * A + 11 + 4 + A * 4, "hs": (32,)}),
    ({"layout": "G2", "has_action_seq": False, "return_h": False}, {"tree_reps": 10 * A + 11 + 4}),
    ({"env_fn": partial(Walk, True), "return_x": True, "return_double": True},
     {"tree_reps": 10 * A + 13, "hs": (32, 1, 1), "xs": (4, 16, 16)}),
    ({"dual_net": False, "model_enc_type": 3, "reward_clip": 1}, {"tree_reps": 10 * A + 13, "hs": (16,)}),
    ({"wrapper_type": 2, "env_fn": Copied}, {"tree_reps": 10 * A + 13, "hs": (16,)}),
    ({"wrapper_type": 1}, {}),
    ({"env_fn": partial(Walk, True), "float16": True, "model_img_type": 0, "model_decoder_depth": 0, "model_disable_bn": False},
     {"tree_reps": 10 * A + 13, "hs": (16, 1, 1)}),
], ids=str)  # fmt: skip
def test_what_a_state_holds(options, shapes):
    """And every kind of model can learn."""
    with make(**options) as env:
        env.reset()
        state, *_ = play(env, 14)
        seen = {name: tuple(value.shape[1:]) for name, value in state.items()}
        assert seen.pop("real_states") == env.vector.single_observation_space["real_states"].shape
        assert seen == {name: shape if isinstance(shape, tuple) else (shape,) for name, shape in shapes.items()}
        assert env.observation_space.contains({name: value.numpy() for name, value in state.items()})
        assert env.robot is None or learner(env).updates > 0


def test_raw_steps_are_the_environments():
    env, single = make(wrapper_type=1, env_n=1, base_seed=5), Walk()
    state = env.reset()
    obs, _ = single.reset(seed=5)
    rng = np.random.default_rng(0)
    for _ in range(40):
        np.testing.assert_array_equal(state["real_states"][0], obs)
        act = int(rng.integers(A))
        state, reward, done, info = env.step(np.array([act]))
        obs, rew, terminated, truncated, _ = single.step(act)
        assert (reward, done, info["step_status"]) == (rew, terminated or truncated, 3)
        if done:
            obs, _ = single.reset()
    assert env.observation_space.keys() == {"real_states"}


def test_a_perfect_model_imagines_what_happens():
    """From x = 1 (after a real step), action 2 leads to 4, which pays 1, whatever the network thinks."""
    with make(wrapper_type=2, env_fn=Copied, env_n=1, model_batch_size=4, train_model=False) as env:
        env.reset()
        env.robot.agents[0].augmented.envs.unwrapped.hosts[0].group.envs[0].unwrapped.x = 5
        for _ in range(4):
            state, *_ = env.step([0], [0])  # the fourth is real: 5 → 1
        assert state["real_states"][0, 0] == 1
        state, *_ = env.step([2], [0])
        assert env.decode_tree_reps(state["tree_reps"])["cur_r"][0] == 1.0


# ---------------------------------------------------------------------------------------------------------------- learning


def test_mode_1_learns_as_often_as_the_ratio_says():
    with make(env_fn=partial(Walk, True)) as env:
        env.reset()
        before = weights(env)
        status = play(env, 10)[3]["model_status"]
        assert status == {"processed_n": 40, "model_warm_up_n": 40, "warm_up_n": 40, "running": True, "finish": False,
                          "replay_ratio": 0.0}
        assert all(torch.equal(value, before[name]) for name, value in weights(env).items())
        status = play(env, 40)[3]["model_status"]
        # 160 rows after the warm-up, 40 updates of 8 sequences of 2 steps: 640 / 160
        assert learner(env).updates == 40 and status["replay_ratio"] == pytest.approx(4.0, rel=0.01)
        after = weights(env)
        counts = [int(value) for name, value in after.items() if name.endswith("num_batches_tracked")]
        assert counts and min(counts) >= 40  # batch normalisation in training mode
        assert all(not torch.equal(value, before[name]) for name, value in after.items() if "running_mean" in name)
        acting = learner(env).acting.state_dict()
        assert all(torch.equal(value, acting[name]) for name, value in after.items()) and not learner(env).acting.training


def test_learning_ends_with_total_steps():
    with make(total_steps=100) as env:
        env.reset()
        status = play(env, 40)[3]["model_status"]
        assert status["finish"] and not status["running"] and learner(env).updates == 14  # rows 44, 48 … 96


def test_the_policy_target_is_what_the_actor_said():
    prob = torch.tensor([[0.5, 0.5, 0.0]] * N)
    with make(require_prob=True) as env, make() as plain:
        for one in (env, plain):
            one.reset()
        primary, reset = torch.zeros(N, dtype=torch.int64), torch.zeros(N, dtype=torch.int64)
        for _ in range(3):
            env.step(primary, reset)  # imagined: nothing is kept
            plain.step(primary, reset)
        with pytest.raises(ValueError, match="require_prob.*action_prob"):
            env.step(primary, reset)
        env.step(primary, reset, prob)
        plain.step(primary, reset)
        np.testing.assert_allclose(env.robot.buffers["model"].get(slice(None), "action_prob")[:1], [[0.5, 0.5, 0.0]])
        np.testing.assert_array_equal(plain.robot.buffers["model"].get(slice(None), "action_prob")[:1], [[1.0, 0.0, 0.0]])


def test_without_require_prob_the_distribution_is_not_read():
    wrong = np.full((N, 7), np.nan)
    with make() as env, make() as plain:
        for one in (env, plain):
            one.reset()
        for _ in range(4):
            env.step(ZEROS, ZEROS, wrong)
            plain.step(ZEROS, ZEROS)
        rows = [one.robot.buffers["model"].get(slice(None), "action_prob") for one in (env, plain)]
        np.testing.assert_array_equal(*rows)


class FourValues(Walk):
    """An environment of gymnasium whose step has the four values from before; `cut` says how its info names a truncation."""

    cut = "truncated_done"

    def step(self, act):
        obs, rew, terminated, truncated, info = super().step(act)
        return obs, rew, terminated or truncated, info | ({self.cut: True} if truncated else {})


class OldFourValues(FourValues):
    """The same, with the `reset` from before: it goes into OldStyle."""

    def reset(self):
        return super().reset(seed=3)[0]


class LimitFourValues(FourValues):
    cut = "TimeLimit.truncated"


class ContraryFive(Walk):
    """Five values, and a truncation that only the info calls one."""

    def step(self, act):
        obs, rew, terminated, truncated, info = super().step(act)
        return obs, rew, terminated or truncated, False, info | {"truncated_done": truncated}


@pytest.mark.parametrize("kind", [
    FourValues, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (OldFourValues, LimitFourValues)), ContraryFive])
def test_what_an_info_calls_a_truncation_is_stored_as_one(kind):
    with make(env_fn=kind) as env, make(env_fn=Walk) as plain:
        counts = []
        for one in (env, plain):
            one.reset(seed=0)
            ends = [out[3]["truncated_done"].sum() for out in (play(one, 1, seed) for seed in range(40))]
            buffer = one.robot.buffers["model"]
            stored = [int(buffer.get(slice(None), name).sum()) for name in ("terminated", "truncated")]
            assert stored[0] > 0 and stored[1] == sum(ends) > 0
            counts.append(stored)
        if kind is not OldFourValues:  # which begins elsewhere
            assert counts[0] == counts[1]


def test_a_perfect_model_of_an_environment_with_four_values():
    class Cloned(FourValues):
        clone_state, restore_state = Copied.clone_state, Copied.restore_state

    with make(env_fn=Cloned, wrapper_type=2) as env:
        env.reset()
        assert any(bool(play(env, 1, seed)[2].any()) for seed in range(12))


def test_observations_outside_of_their_space_are_told_once(caplog):
    class Outside(Walk):
        def __init__(self):
            super().__init__()
            self.observation_space = gym.spaces.Box(0, 3, (2,), np.float32)

    with make(env_fn=Outside, return_x=True) as env:
        env.reset()
        play(env, 20)
    assert len([text for text in caplog.messages if "leave [0, 1]" in text]) == 1
    caplog.clear()
    with make(return_x=True) as env:
        env.reset()
        play(env, 20)
    assert not caplog.messages


def test_a_model_that_is_not_trained_stays_as_it_is():
    with make(train_model=False) as env:
        env.reset()
        before = weights(env)
        status = play(env, 20)[3]["model_status"]
        assert status["processed_n"] == 80 and not status["running"] and not env.robot.buffers
        assert all(torch.equal(value, before[name]) for name, value in weights(env).items())


def test_mode_2_learns_in_a_thread():
    before = set(threading.enumerate())
    env = make(parallel=True)
    env.reset()
    assert set(threading.enumerate()) > before
    play(env, 50)
    env.robot.agents[0].helpers["model"].settle()
    assert learner(env).updates == 40  # one update is open at most, so the ratio is that of mode 1
    env.close()
    assert set(threading.enumerate()) <= before  # some of another test's may have ended meanwhile


@pytest.mark.parametrize("parallel", [False, True])
def test_an_update_that_fails_is_told_and_the_environment_closes(parallel, monkeypatch):
    env = make(parallel=parallel)
    env.reset()
    monkeypatch.setattr(learner(env), "learn", lambda batch: 1 / 0)
    with pytest.raises(TaskFailed, match="ZeroDivisionError"):
        play(env, 20)
    env.close()


# ------------------------------------------------------------------------------------------------------------- vector view


def test_the_vector_view_is_the_same_object():
    env, other = make(), make()
    view = other.vector
    state = env.reset(seed=3)
    obs, _ = view.reset(seed=3)
    assert view.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP and isinstance(view, gym.vector.VectorEnv)
    assert isinstance(view.single_action_space, gym.spaces.MultiDiscrete)
    ends, before = 0, obs["real_states"]
    for (primary, reset), _ in zip(actions(), range(120), strict=False):
        assert view.observation_space.contains(obs)
        assert all(np.array_equal(state[name], obs[name]) for name in state)
        state, reward, done, _ = env.step(primary, reset)
        obs, rew, terminated, truncated, info = view.step(torch.stack([primary, reset], 1).numpy())
        np.testing.assert_array_equal(reward, rew.astype(np.float32))
        np.testing.assert_array_equal(done, terminated | truncated)
        np.testing.assert_array_equal(obs["last_act"], torch.stack([primary, reset], 1))
        np.testing.assert_array_equal(info["imagined"], obs["step_status"] != 0)
        if not info["imagined"].any():
            newest = [other.robot.buffers["model"].lane_positions(lane)[-1] for lane in range(N)]
            np.testing.assert_array_equal(other.robot.buffers["model"].get(newest, "act"), primary)
            np.testing.assert_array_equal(other.robot.buffers["model"].get(newest, "obs"), before)
            going = ~(terminated | truncated)
            np.testing.assert_array_equal(obs["real_states"][going, 0], (2 * before[:, 0] + primary.numpy())[going] % 9)
        before = obs["real_states"]
        for i in np.flatnonzero(terminated | truncated):
            ends += 1
            assert view.single_observation_space.contains(info["final_obs"][i])
            assert info["final_obs"][i]["real_states"][1] > 0 == obs["real_states"][i, 1]
    assert ends and learner(env).updates == learner(other).updates > 0
    for one in (env, other):
        one.close()


def test_gymnasiums_own_wrapper_counts_episodes():
    with make(train_model=False) as made:
        env = gym.wrappers.vector.RecordEpisodeStatistics(made.vector)
        env.reset(seed=[1, 2, 3, 4])
        first = made.vector.reset(seed=[1, 2, 3, 4])[0]
        again = made.vector.reset(seed=[1, 2, 3, 4])[0]
        assert all(np.array_equal(first[name], again[name]) for name in first)
        env.action_space.seed(0)
        lengths = []
        for _ in range(60):
            *_, info = env.step(env.action_space.sample())
            lengths += info["episode"]["l"][info["_episode"]].tolist() if "episode" in info else []
        assert lengths and max(lengths) <= 8 * SMALL["rec_t"]


# ------------------------------------------------------------------------------------------------------------- checkpoints


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return np.array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("parallel", [False, True])
def test_resume_takes_everything(tmp_path, parallel):
    run = {"savedir": str(tmp_path), "xpid": "run"}
    with make(parallel=parallel, **run) as env:
        env.reset()
        play(env, 30)
    env.robot.agents[0].cut()
    wanted = env.robot.state_dict()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    resumed = [thinker.make(env_fn=Walk, gpu=False, ckp=True, savedir=str(tmp_path), xpid=xpid) for xpid in ("run", "copy")]
    assert resumed[0].env_n == N and resumed[0].options.rec_t == 4
    for name in ("task.model", "buffer.model", "agents", "counters"):
        assert same(resumed[0].robot.state_dict()[name], wanted[name]), name
    for env in resumed:
        env.reset()
        play(env, 10, seed=1)
    if not parallel:
        assert same(resumed[0].robot.state_dict(), resumed[1].robot.state_dict())
    assert learner(resumed[0]).updates > wanted["task.model"]["counters"]["updates"]
    for env in resumed:
        env.close()


@pytest.mark.parametrize("put", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "link"])
def test_a_log_that_is_no_plain_file_is_refused_before_the_first_step(tmp_path, put):
    with make(savedir=str(tmp_path), xpid="x") as env:
        env.reset()
    (tmp_path / "x" / "logs_model.csv").unlink(missing_ok=True)
    put(tmp_path / "x" / "logs_model.csv")
    with pytest.raises(OSError, match="plain file|link"):
        make(savedir=str(tmp_path), xpid="x", ckp=True)


@pytest.mark.parametrize("text", [b"\xff\xfe\n", b"x" * 200_000])
def test_a_log_that_no_run_wrote_is_refused(tmp_path, text):
    with make(savedir=str(tmp_path), xpid="x") as env:
        env.reset()
    (tmp_path / "x" / "logs_model.csv").write_bytes(text)
    with pytest.raises(OSError, match="no table that a run wrote"):
        make(savedir=str(tmp_path), xpid="x", ckp=True)


def test_the_mark_of_a_finished_run_is_written_through_no_link(tmp_path):
    with make(savedir=str(tmp_path), xpid="x", total_steps=4) as env:
        env.reset()
        play(env, 6)
        (tmp_path / "x" / "finish").symlink_to(tmp_path / "outside")
    assert (tmp_path / "x" / "checkpoint").exists() and not (tmp_path / "outside").exists()


@pytest.mark.parametrize(("changed", "said"), [
    ({"env_n": 10**9}, "env_n=1000000000 are 1000000000 environments"),
    pytest.param({"model_size_nn": 10**5}, "its largest numbers", marks=pytest.mark.slow),
    ({"spaces": None}, "made with env_fn None"),
])
def test_what_a_stranger_writes_into_a_run_is_refused_by_name(tmp_path, changed, said):
    with make(savedir=str(tmp_path), xpid="x"):
        pass
    file = tmp_path / "x" / "config_c.yaml"
    kept = {**load_yaml_file(file), **changed}
    file.write_text(dump_yaml({key: value for key, value in kept.items() if value is not None}))
    with pytest.raises(ConfigError, match=said):
        thinker.make(env_fn=Walk, gpu=False, savedir=str(tmp_path), xpid="x", ckp=True)


def test_a_saved_run_goes_on_and_is_not_overwritten(tmp_path, monkeypatch):
    monkeypatch.setattr(thinker_env, "CHECKPOINT_S", 0.0)
    run = {"savedir": str(tmp_path), "xpid": "run"}
    env = make(**run)
    env.reset()
    play(env, 12)
    steps = read_archive(tmp_path / "run" / "checkpoint")[0]["counters"]["env_steps"]  # the clock said so
    assert steps == 48
    play(env, 1)
    env.close()
    with pytest.raises(ConfigError, match="there is a run in .*ckp=True.*another xpid"):
        make(**run)
    taught = weights(env)
    for options in ({"preload": str(tmp_path / "run")}, {"ckp": True, "train_model": False, **run}):
        with make(**options) as other:
            assert other.vector.folder is None
            assert all(torch.equal(value, taught[name]) for name, value in weights(other).items())
    with pytest.raises(ConfigError, match="preload.*another network"):
        make(preload=str(tmp_path / "run"), dual_net=False)


def test_nothing_is_written_unasked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with make() as env:
        env.reset()
        with pytest.raises(ValueError, match="xpid"):
            env.save()
    with make(train_model=False, xpid="run"):
        pass
    with make(wrapper_type=1, xpid="run"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("options", "said"), [
    ({"rec_t": 5}, "made with rec_t 4, not 5"), ({"env_n": 3}, "made with env_n 4, not 3"),
    ({"layout": "G2"}, "made with layout 'G1', not 'G2'"),
    ({"env_fn": partial(Walk, True)}, r"made with env_fn 'Box\(0.0, 9.0, \(2,\)"),
    ({"model_logits_loss_cost": 1.0}, "model_policy_loss_cost 0.5, not 1.0"),
    ({"xpid": "other"}, "no checkpoint in .*other"), ({"preload": "x"}, "ckp takes all"),
])  # fmt: skip
def test_a_checkpoint_of_another_configuration(tmp_path, options, said):
    with make(savedir=str(tmp_path), xpid="run"):
        pass
    with pytest.raises(ConfigError, match=said):
        thinker.make(**{"env_fn": Walk, "gpu": False, "savedir": str(tmp_path), "xpid": "run", "ckp": True, **options})
    with thinker.make(env_fn=Walk, gpu=False, savedir=str(tmp_path), xpid="run", ckp=True, total_steps=99, parallel=True) as env:
        assert env.options.total_steps == 99


SCRIPT = """
import sys
from parl_like.envs import thinker
assert "torch" not in sys.modules and "make" in dir(thinker)
import numpy as np, torch
torch.set_num_threads(1)
env = thinker.make("Sokoban-v0", env_n=2, gpu=False, model_downscale_c=64, rec_t=2, model_batch_size=4, model_warm_up_n=8,
                   model_unroll_len=1, model_return_n=1, model_buffer_n=100, savedir=sys.argv[1], xpid="run", parallel=True,
                   max_replay_ratio=1, min_replay_ratio=0)
env.reset()
for _ in range(60):
    env.step(np.ones(2, int), np.zeros(2, int))
"""


def test_the_end_of_the_interpreter_is_a_checkpoint_without_secrets(tmp_path):
    secret = {**os.environ, "TOKEN": "hunter2-xyzzy"}
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], env=secret, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    state, _ = read_archive(tmp_path / "run" / "checkpoint")
    assert state["counters"]["env_steps"] == 60 and state["task.model"]["counters"]["updates"] > 0
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 3 and not any(b"hunter2-xyzzy" in path.read_bytes() for path in files)


# ----------------------------------------------------------------------------------------------------------- configuration


def test_a_file_and_keywords_in_both_spellings(tmp_path):
    (tmp_path / "a.yaml").write_text("rec_t: 7\nmax_depth: 2\nmodel_img_type: 1\nmodel_img_loss_cost: 3\n")
    with thinker.make(config=tmp_path / "a.yaml", **{**SMALL, "max_depth": 4, "model_logits_loss_cost": 2}) as env:
        o = env.options
        assert (o.rec_t, o.max_depth, o.model_policy_loss_cost, o.model_fea_loss_cost, o.model_img_loss_cost) == (4, 4, 2, 3, 0)
    with make(savedir=str(tmp_path), xpid="run", stat_mask_type=1) as env:
        saved = load_yaml_file(tmp_path / "run" / "config_c.yaml")
    (tmp_path / "b.yaml").write_text(dump_yaml({**saved, "xpid": "next"}))
    with thinker.make(env_fn=Walk, gpu=False, config=tmp_path / "b.yaml") as again:
        assert again.env_n == N and again.options.stat_mask_type == 1 and again.vector.folder == tmp_path / "next"


def _unbounded():
    env = Walk()
    env.observation_space = gym.spaces.Box(0, np.inf, (2,), np.float32)
    return env


def _with(**spaces):
    env = Walk()
    env.__dict__.update(spaces)
    return env


@pytest.mark.parametrize(("options", "said"), [
    ({"rect_t": 3}, "no option 'rect_t'; did you mean 'rec_t'"), ({"envn": 3}, "did you mean 'env_n'"),
    ({"rec_t": 0}, "rec_t.*>= 1"),
    ({"rec_t": 2.5}, "rec_t.*int"), ({"layout": "G3"}, "layout.*'G1', 'G2'"), ({"wrapper_type": 3}, "wrapper_type is 3.*never "
                                                                                                    "published"),
    ({"wrapper_type": 2}, "wrapper_type=2.*clone_state.*wrapper_type=0"),
    ({"wrapper_type": 1, "train_model": True}, "train_model out"),
    ({"has_model": False}, "has_model.*wrapper_type=1"), ({"env_fn": None}, "give name .* or env_fn"),
    ({"env_fn": None, "name": "Sokobam-v0"}, "name: .*Sokoban"), ({"env_n": 0}, "'env_n' expects `int` >= 1, got 0"),
    ({"env_fn": lambda: 3}, "env_fn: .*no reset, step"),
    ({"env_fn": _unbounded}, "env_fn: .*finite limits.*RescaleObservation"),
    ({"env_fn": lambda: _with(action_space=gym.spaces.Box(-1, 1, (2,)))}, "env_fn: .*expected Discrete.*Discretize"),
    ({"env_fn": lambda: _with(observation_space=gym.spaces.Box(0, 1, (2, 2)))}, r"env_fn: .*Box \(C, H, W\)"),
    ({"env_fn": lambda: _with(observation_space=gym.spaces.Discrete(3))}, r"env_fn: .*Box \(C, H, W\)"),
    ({"ckp": True}, "give its xpid"),
    ({"model_buffer_n": 20, "model_warm_up_n": 8}, "model_buffer_n is 20; expected at least 28"),
    ({"model_warm_up_n": 500}, "model_buffer_n is 400.*model_warm_up_n"), ({"min_replay_ratio": 9}, "min_replay_ratio 9.0 is "
                                                                                                    "above"),
    ({"max_replay_ratio": 99}, "max_replay_ratio is 99"), ({"model_enc_type": 1}, "model_enc_type is 1"),
    ({"sokoban_pomdp": True}, "sokoban_pomdp"),
    ({"return_x": True, "dual_net": False}, "return_x.*dual_net"),
    ({"model_img_type": 1, "model_fea_loss_cost": 1}, "model_img_type"),
    ({"model_logits_loss_cost": 1, "model_policy_loss_cost": 1}, "one option"),
    ({"config": "/nowhere/a.yaml"}, "cannot read /nowhere/a.yaml"),
    pytest.param({"gpu": True}, "gpu=False", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")),
], ids=lambda value: "" if isinstance(value, dict) else value)  # fmt: skip
def test_wrong_options(options, said):
    with pytest.raises(ConfigError, match=said):
        make(**options)


ZEROS = np.zeros(N, int)


@pytest.mark.parametrize(("arguments", "said"), [
    ((ZEROS + A, ZEROS), r"primary_action has 3 … 3; expected \(4,\) integers, 0 … 2"),
    ((ZEROS - 1, ZEROS), "primary_action has -1"),
    ((ZEROS, ZEROS + 2), "reset_action has 2 … 2; .* 0 … 1"), ((ZEROS, np.zeros(N)), "reset_action has shape .* float64"),
    ((ZEROS[:2], ZEROS), r"primary_action has shape \(2,\)"), ((ZEROS,), "reset_action is missing"),
])  # fmt: skip
def test_wrong_arguments_change_nothing(arguments, said):
    with make() as env:
        with pytest.raises(gym.error.ResetNeeded):
            env.step(ZEROS, ZEROS)
        env.reset()
        with pytest.raises(ValueError, match=said):
            env.step(*arguments)
        assert play(env, 1)[3]["step_status"].tolist() == [0] * N


@pytest.mark.parametrize(("prob", "said"), [(np.ones((N, A)), "action_prob has rows that sum to 3"),
                                            (np.ones(N), r"action_prob has shape \(4,\)")])
def test_a_wrong_distribution_changes_nothing(prob, said):
    with make(require_prob=True) as env:
        env.reset()
        with pytest.raises(ValueError, match=said):
            env.step(ZEROS, ZEROS, prob)
        right = np.full((N, A), 1 / A)
        assert [env.step(ZEROS, ZEROS, right)[3]["step_status"][0].item() for _ in range(4)] == [1, 1, 2, 0]


def test_only_the_newest_of_stacked_frames_is_imagined():
    with make(env_fn=lambda: _stacked(), return_x=True) as env:
        env.reset()
        assert learner(env).model.frame == 1
        first = env.step(ZEROS, ZEROS)[0]
        np.testing.assert_allclose(first["xs"][:, 0],
                                   first["real_states"][:, 1] / 9)  # what was the newest frame is the oldest now


def _stacked():
    env = Walk(True)
    env.frame_stack_n = 2
    return env


def test_options_that_no_memory_has_room_for_are_refused(tmp_path):
    for key in ("model_buffer_n", "rec_t"):
        with pytest.raises(ConfigError, match=f"takes more than twice .* of this machine; its largest numbers are {key}="):
            thinker.make("Sokoban-v0", env_n=1, gpu=False, savedir="", **{key: 10**12})
