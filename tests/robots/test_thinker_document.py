"""The document of Thinker's own package (version 1.1), line by line: a test for each thing that its user types, in its order."""

import csv
import inspect
import re
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import gymnasium as gym
import nine_places
import numpy as np
import pytest
import torch

from parl_like.envs import thinker
from parl_like.envs.atari import named_by
from parl_like.lab import experiment as experiments
from parl_like.lab.config import resolve
from parl_like.lab.yaml_text import ConfigError, dump_yaml, load_yaml_file
from parl_like.robots.thinker import Config, build
from parl_like.robots.thinker import config as options_

PAGE = Path(__file__).resolve().parents[2] / "docs" / "thinker.md"
A, N, K = 3, 2, 4
TINY = {"gpu": False, "model_downscale_c": 64}
SMALL = {
    **TINY, "rec_t": K, "max_depth": 3, "model_batch_size": 8, "model_unroll_len": 2, "model_return_n": 2,
    "model_warm_up_n": 40, "model_buffer_n": 400, "min_replay_ratio": 1, "max_replay_ratio": 4,
}  # fmt: skip


class Walk(nine_places.Walk):
    """Of any shape, filled with the place; pays 5."""

    pay = 5.0

    def __init__(self, shape=(2,), high=9.0):
        self.observation_space = gym.spaces.Box(0, high, shape, np.float32)

    def seen(self):
        return np.full(self.observation_space.shape, self.x, np.float32)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working directory, in which a user's logs/ begins."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def walk(**options):
    return thinker.make(**{"env_fn": Walk, "env_n": N, **SMALL, **options})


def play(env, steps, seed=0):
    """What every step of so many gave."""
    rng = np.random.default_rng(seed)
    env.reset()
    return [env.step(rng.integers(env.num_actions, size=env.env_n), rng.integers(2, size=env.env_n)) for _ in range(steps)]


# ------------------------------------------------------------------------------------------------------------- Basic Usage


def test_basic_usage():
    env_n = 16
    env = thinker.make("Sokoban-v0", env_n=env_n, **TINY)
    initial_state = env.reset()
    for _ in range(20):
        primary_action = np.random.default_rng(0).integers(5, size=env_n)
        reset_action = np.random.default_rng(1).integers(2, size=env_n)
        state, reward, done, info = env.step(primary_action, reset_action)
    assert f"{state['tree_reps'].shape} {state['real_states'].shape}" == "torch.Size([16, 79]) torch.Size([16, 3, 80, 80])"
    assert initial_state.keys() == state.keys() and (reward.shape, done.shape) == ((16,), (16,))
    env.close()


# ----------------------------------------------------------------------------------------------------------- Configuration


def test_options_by_name_and_in_a_file(here):
    with thinker.make("Sokoban-v0", env_n=16, rec_t=10, max_depth=10, **TINY) as env:
        assert (env.options.rec_t, env.options.max_depth) == (10, 10) and env.reset()["tree_reps"].shape == (16, 10 * 5 + 10 + 9)
    (here / "custom.yaml").write_text("# custom.yaml\nrec_t: 10\nmax_depth: 10\n")
    with thinker.make("Sokoban-v0", env_n=16, config="custom.yaml", **TINY) as env:
        assert (env.options.rec_t, env.options.max_depth) == (10, 10)
    with thinker.make("Sokoban-v0", env_n=16, config="custom.yaml", rec_t=7, **TINY) as env:
        assert (env.options.rec_t, env.options.max_depth) == (7, 10)


def test_the_important_parameters_have_their_published_defaults():
    o = options_.ThinkerOptions()
    assert (o.rec_t, o.max_depth, o.model_unroll_len, o.wrapper_type, o.model_size_nn, o.savedir) == (20, 5, 5, 0, 1, "logs")


V1 = {
    "train_model": True, "model_batch_size": 128, "model_learning_rate": 0.0001, "model_grad_norm_clipping": 0,
    "min_replay_ratio": 5, "max_replay_ratio": 6, "total_steps": 50_000_000, "priority_alpha": 0.6, "priority_beta": 0.4,
    "buffer_traj_len": 50, "model_unroll_len": 5, "model_warm_up_n": 200_000, "model_buffer_n": 200_000,
    "model_logits_loss_cost": 0.5, "model_vs_loss_cost": 0.25, "model_rs_loss_cost": 1.0, "model_done_loss_cost": 1.0,
    "model_img_loss_cost": 10.0, "model_reg_loss_cost": 0.0, "dual_net": True, "model_enc_type": 0, "model_size_nn": 1,
    "model_downscale_c": 2, "model_disable_bn": True, "model_zero_init": True, "frame_stack_n": 1, "model_img_type": 1,
    "require_prob": False, "wrapper_type": 0, "rec_t": 20, "test_rec_t": -1, "max_depth": 5, "tree_carry": True,
    "return_h": True, "return_x": False, "return_double": False, "discounting": 0.99, "reward_clip": -1, "im_enable": True,
    "cur_enable": False, "cur_reward_cost": 0.0, "cur_v_cost": 0.0, "cur_enc_cost": 0.0, "cur_done_gate": False,
    "stat_mask_type": 0, "xpid": "", "ckp": False, "preload": "", "savedir": "logs", "profile": False, "parallel": False,
    "base_seed": 1, "ray_mem": -1, "ray_gpu": -1, "ray_cpu": -1, "gpu_learn": 0.5,
}  # fmt: skip
"""Every option of version 1.1, with its default."""

CHANGED = {"min_replay_ratio": 4, "max_replay_ratio": 5, "model_warm_up_n": 10_000, "model_grad_norm_clipping": 0.0,
           "discounting": 0.97, "model_img_loss_cost": 0.0}
NEW = {"has_model": True, "model_return_n": 5, "model_policy_loss_cost": 0.5, "model_fea_loss_cost": 10.0,
       "model_decoder_depth": 0, "model_enc_f_type": 0, "model_downscale_c_vp": 2, "reset_mode": 0, "has_action_seq": True,
       "sokoban_pomdp": False, "float16": False}
GONE = {"buffer_traj_len", "model_logits_loss_cost", "frame_stack_n", "model_img_type", "return_double",
        *(name for name in V1 if name.startswith("cur_"))}
V2 = {name: value for name, value in {**V1, **CHANGED, **NEW, **options_.UNBUILT}.items() if name not in GONE}
"""Every option of version 1.2, with its default."""


@pytest.mark.parametrize("published", [V1, V2], ids=["1.1", "1.2"])
def test_a_whole_file_of_the_originals_is_taken(published, here, capsys):
    assert (len(V1), len(V2)) == (56, 91)
    (here / "default_thinker.yaml").write_text(dump_yaml(published))
    with thinker.make(env_fn=Walk, gpu=False, config="default_thinker.yaml") as env:
        known = {**published, "xpid": env.options.xpid}
        assert all(getattr(env.options, name) == value for name, value in known.items()
                   if name in options_.OPTIONS and name != "model_img_loss_cost")
        assert env.options.model_fea_loss_cost == 10 and env.options.model_img_loss_cost == 0
        env.reset()


def test_what_is_not_built_is_refused_unless_it_says_what_is_done_anyway():
    other = {name: 7 if value != 7 else 8 for name, value in options_.UNBUILT.items()}
    for name, value in other.items():
        with pytest.raises(ConfigError, match=rf"not built: {name}={value!r} \(published: .*\); .*docs/thinker.md"):
            walk(**{name: value})
    with pytest.raises(ConfigError) as error:
        walk(**other)  # all at once, so that a file is mended in one go
    assert all(name in str(error.value) for name in other)


def section(title):
    return PAGE.read_text(encoding="utf-8").split(f"## {title}\n")[1].split("\n## ")[0].splitlines()


@pytest.mark.checkout
def test_the_page_gives_a_reason_for_each_option_that_is_not_built():
    rows = [line.split(" | ")[0] for line in section("Options that are not built") if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall("`([a-z_]+)`", row)) == sorted(options_.UNBUILT)


def test_steps_come_into_use_in_pieces():
    """buffer_traj_len: the model learns as much, and in fewer goes."""
    with walk() as env, walk(buffer_traj_len=10) as pieces:
        learned = [[], []]
        for seen, one in zip(learned, (env, pieces), strict=True):
            one.vector.reset()
            for k in range(60 * K):
                one.vector.step(np.full((N, 2), k % A, np.int64) * [1, 0])
                seen.append(one.robot.tasks["model"].algorithm.updates)
    steps = [np.diff(np.array(seen)[K - 1 :: K]) for seen in learned]
    assert set(steps[0]) == {0, 1} and set(steps[1]) == {0, 5}  # 10 steps of 2 environments, an update for every 4 rows
    assert learned[0][-1] == 20 and learned[1][-1] == 20


def test_the_profile_is_printed_at_the_end(capsys):
    with walk(profile=True, savedir="") as env:
        play(env, K)
    out = capsys.readouterr().out
    assert "cumulative" in out and "augmented.py" in out


# --------------------------------------------------------------------------------------------------------------- curiosity


def expected(env, weights, before, after, act, ended):
    """`cur_reward` by hand, from the network itself."""
    model = env.robot.tasks["model"].algorithm.acting
    obs, new = (torch.as_tensor(seen["real_states"]) for seen in (before, after))
    act = torch.as_tensor(act)
    first = torch.where(ended, 0, act)
    prev = torch.as_tensor(before["prev"])
    with torch.no_grad():
        _, _, state = model.initial(obs, prev)
        r, done, v, _, _, x = model.recurrent(state, act)
        seen_v, _, _ = model.initial(new, first)
        z, seen_z = model.held_feature(x, act), model.held_feature(model.normalize(new), first)
    d, over = ended, done > 0.5
    rew = after["rew"] * ~d
    return (weights[0] * (rew - r * ~over) ** 2 + weights[1] * (seen_v * ~d - v * ~over) ** 2
            + weights[2] * (seen_z * ~d[:, None] - z * ~over[:, None]).square().mean(1))


@pytest.mark.parametrize("gate", [False, True])
def test_curiosity_is_what_the_model_did_not_expect(gate):
    weights = (0.5, 0.25, 2.0)
    o = dict(zip(("cur_reward_cost", "cur_v_cost", "cur_enc_cost"), weights, strict=True))
    with walk(cur_enable=True, cur_done_gate=gate, **o, train_model=False, model_zero_init=False, env_n=8, reward_clip=2) as env:
        state, prev, sums, ends = env.reset(), np.zeros(8, int), np.zeros(8, np.float32), 0
        rng = np.random.default_rng(3)
        for step in range(30 * K):
            act = rng.integers(A, size=8)
            before = {"real_states": state["real_states"], "prev": prev}
            state, reward, done, info = env.step(act, rng.integers(2, size=8))
            if step % K < K - 1:
                assert not info["cur_reward"].any()
                continue
            wanted = expected(env, weights, before, {"real_states": state["real_states"], "rew": reward}, act, done)
            if gate:
                wanted[done] = 0.0
            np.testing.assert_allclose(info["cur_reward"], wanted, rtol=1e-4, atol=1e-5)
            sums += info["cur_reward"].numpy()
            np.testing.assert_allclose(info["cur_episode_return"], sums, rtol=1e-4)
            sums[done.numpy()], ends = 0.0, ends + int(done.sum())
            prev = np.where(done, 0, act)
        assert ends and info["cur_reward"].dtype == torch.float32
    with pytest.raises(ConfigError, match="cur_enable.*wrapper_type=0"):
        walk(cur_enable=True, wrapper_type=1)


# -------------------------------------------------------------------------------------------------- Available Environments


def games(env):
    return env.robot.agents[0].augmented.envs


@pytest.mark.parametrize(("name", "game", "sticky"), [
    ("BreakoutNoFrameskip-v4", "breakout", 0.0), ("SeaquestNoFrameskip-v4", "seaquest", 0.0), ("ALE/Pong-v5", "pong", 0.25),
    ("SpaceInvaders-v0", "space_invaders", 0.25),
])  # fmt: skip
def test_atari_games_by_name_have_the_published_preparation(name, game, sticky):
    pytest.importorskip("ale_py")
    with thinker.make(name, env_n=1, train_model=False, rec_t=2, **TINY) as env:
        assert env.reset()["real_states"].shape == (1, 4 * 3, 96, 96)
        known = {key: games(env).get_attr(key)[0] for key in
                 ("frame_stack_n", "noop_max", "frame_skip", "max_frames", "life_loss", "grey", "size", "sticky", "clip_reward")}
        assert known == {"frame_stack_n": 4, "noop_max": 30, "frame_skip": 4, "max_frames": 108_000, "life_loss": True,
                         "grey": False, "size": (96, 96), "sticky": sticky, "clip_reward": None}
        assert games(env).get_attr("emulator")[0].rom.stem == game
        assert env.robot.tasks["model"].algorithm.model.frame == 3
        (_, _, _, info), (state, *_) = play(env, 2)[::-1]
        assert info["step_status"] == 0 and state["real_states"].dtype == torch.uint8


def test_games_are_found_before_ale_py_was_imported():
    pytest.importorskip("ale_py")
    code = ("import gymnasium as gym; from parl_like.envs.atari import named_by; gym.registry.pop('PongNoFrameskip-v4', None)\n"
            "import sys; sys.modules.pop('ale_py', None); print(named_by('PongNoFrameskip-v4'))")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'game': 'pong', 'sticky': 0.0, 'full_actions': False}\n", done.stderr


def test_without_ale_py_the_way_out_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    monkeypatch.delitem(gym.registry, "BreakoutNoFrameskip-v4", raising=False)
    with pytest.raises(ConfigError, match=r"name: Atari needs ale-py; install the extra: pip install 'parl_like\[atari\]'"):
        thinker.make("BreakoutNoFrameskip-v4", **TINY)
    assert named_by("CartPole-v1") is None and named_by("Nothing-v0") is None
    monkeypatch.setitem(gym.registry, "Breakout-v9", gym.envs.registration.EnvSpec("Breakout-v9", "my.own:Env"))
    assert named_by("Breakout-v9") is None  # another's environment of such a name stays his


def test_atari_v0_takes_a_game(capsys):
    pytest.importorskip("ale_py")
    with thinker.make("Atari-v0", game="seaquest", **TINY) as env:
        assert env.robot.tasks["model"].algorithm.model.frame == 3
        assert games(env).get_attr("emulator")[0].rom.stem == "seaquest"
    assert capsys.readouterr().out.splitlines().count("Detected frame stacking with 4 counts") == 1
    with pytest.raises(ConfigError, match="game is 'pong'.*'Atari-v0'"):
        thinker.make("BreakoutNoFrameskip-v4", game="pong", **TINY)


class Stacked(Walk):
    frame_stack_n = 2

    def __init__(self):
        super().__init__((4, 16, 16))


def test_frame_stacking_is_found_under_wrappers(capsys):
    def env_fn():
        return gym.wrappers.TimeLimit(gym.wrappers.OrderEnforcing(Stacked()), 5)

    with walk(env_fn=env_fn) as env:
        assert env.robot.tasks["model"].algorithm.model.frame == 2
    assert "Detected frame stacking with 2 counts" in capsys.readouterr().out.splitlines()
    with walk(env_fn=lambda: Walk((4, 16, 16)), frame_stack_n=4) as env:  # the option, where the environment says nothing
        assert env.robot.tasks["model"].algorithm.model.frame == 1
    with pytest.raises(ConfigError, match="frame_stack_n is 3; expected a divisor of 4"):
        walk(env_fn=lambda: Walk((4, 16, 16)), frame_stack_n=3)


def test_custom_environments():
    with thinker.make(env_fn=lambda: Walk((3, 16, 16)), env_n=16, **TINY) as env:
        assert env.reset()["real_states"].shape == (16, 3, 16, 16)


@pytest.mark.parametrize("shape", [(84, 84, 3), (210, 160, 3), (84, 84, 1), (84, 84, 12), (7, 7, 3)])
def test_channels_last_are_refused(shape):
    C, first = shape[2], shape[:2]
    said = f"env_fn: observations {shape} are images with their channels last; expected (C, H, W), {(C, *first)}"
    with pytest.raises(ConfigError, match=re.escape(said)):
        walk(env_fn=lambda: Walk(shape))
    gym.register("Upright-v0", lambda: Walk(shape))
    try:
        with pytest.raises(ConfigError, match=re.escape(f"key 'env': {said.removeprefix('env_fn: ')}")):
            build(Config(env="Upright-v0"))
    finally:
        del gym.registry["Upright-v0"]


@pytest.mark.parametrize("shape", [(3, 16, 16), (12, 16, 8), (7, 6, 6), (3, 1, 1), (20, 10, 9), (1, 16, 2), (5,)])
def test_channels_first_are_taken(shape):
    with walk(env_fn=lambda: Walk(shape), train_model=False) as env:
        assert env.reset()["real_states"].shape == (N, *shape)


@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 4, 5)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ConfigError, match=r"env_fn: .*expected Box \(C, H, W\), channels first, or Box \(N,\)"):
        walk(env_fn=lambda: Walk(shape))


def test_sokoban_by_itself():
    env = gym.make("Sokoban-v0")
    assert env.reset()[0].shape == (3, 80, 80) and env.action_space.n == 5
    env.close()


# ------------------------------------------------------------------------------------------------------ Resource Management


def test_mode_1_learns_inside_of_step():
    with walk() as env:
        assert play(env, 30 * K)[-1][3]["model_status"]["running"]
        assert env.robot.tasks["model"].algorithm.updates == 5


def test_mode_2_without_ray_learns_in_a_thread_and_says_so(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "ray", None)
    with walk(parallel=True, gpu_learn=0.5) as env:
        play(env, 30 * K)
        env.robot.agents[0].helpers["model"].settle()
        assert env.robot.tasks["model"].algorithm.updates == 5
    assert "the model learns in a thread" in caplog.text


# -------------------------------------------------------------------------------------------- Resuming from a Checkpoint


def test_a_run_without_a_name_gets_one_which_is_printed(here, capsys):
    env = walk()
    xpid = env.options.xpid
    assert re.fullmatch(r"thinker-\d{8}-\d{6}(-\d+)?", xpid)
    assert f"xpid={xpid!r}" in capsys.readouterr().out
    play(env, 40 * K)
    env.close()
    run = here / "logs" / xpid
    assert {path.name for path in run.iterdir()} == {"config_c.yaml", "checkpoint", "logs_model.csv"}
    saved = load_yaml_file(run / "config_c.yaml")
    assert saved["xpid"] == xpid and saved["rec_t"] == K
    rows = list(csv.DictReader((run / "logs_model.csv").open()))
    assert [row["_tick"] for row in rows] == [str(k) for k in range(len(rows))] and rows
    assert (int(rows[-1]["step"]), int(rows[-1]["real_step"])) == (10, 40 * N) and float(rows[-1]["model/loss"]) > 0
    assert {"_tick", "_time", "step", "real_step", "model/reward_loss", "model/value_loss", "model/policy_loss"} <= rows[0].keys()
    assert (here / "logs" / "latest").resolve() == run

    with walk(xpid=xpid, ckp=True) as env:
        assert env.vector.real_steps == 40 * N
        play(env, 10 * K)
    more = list(csv.DictReader((run / "logs_model.csv").open()))
    assert more[: len(rows)] == rows and int(more[-1]["_tick"]) == len(rows) and int(more[-1]["real_step"]) == 50 * N


def test_runs_of_one_second_have_two_names(capsys, monkeypatch):
    monkeypatch.setattr("time.strftime", lambda form: "thinker-20230101-120000")
    with walk() as one, walk() as other:
        assert (one.options.xpid, other.options.xpid) == ("thinker-20230101-120000", "thinker-20230101-120000-1")


def test_a_finished_run_says_so(here):
    with walk(total_steps=60, xpid="run") as env:
        assert play(env, 30 * K)[-1][3]["model_status"]["finish"]
    assert (here / "logs" / "run" / "finish").exists()


# -------------------------------------------------------------------------------------------------------------------- API


def test_make_takes_what_the_document_says():
    parameters = list(inspect.signature(thinker.make).parameters)
    assert parameters[:5] == ["name", "env_fn", "ray_obj", "env_n", "gpu"] and parameters[-1] == "options"
    with thinker.make("Sokoban-v0", None, None, 2, False, model_downscale_c=64) as env:
        assert env.env_n == 2


KINDS = {"real_done": torch.bool, "truncated_done": torch.bool, "step_status": torch.int64, "max_rollout_depth": torch.int64,
         "episode_step": torch.int64, "baseline": torch.float32, "im_reward": torch.float32, "episode_return": torch.float32,
         "im_episode_return": torch.float32}


def test_step_takes_tensors_arrays_and_lists_and_returns_what_it_should():
    forms = cycle([np.array, torch.tensor, list])
    with walk(env_fn=lambda: Walk((3, 16, 16)), return_x=True, require_prob=True) as env:
        assert env.observation_space["tree_reps"].shape == (N, 10 * A + K + 9)
        state, statuses = env.reset(), []
        for _, form in zip(range(3 * K), forms, strict=False):
            state, reward, done, info = env.step(form([0, 2]), form([0, 1]), action_prob=np.full((N, A), 1 / A))
            statuses.append(info["step_status"].tolist())
        assert statuses == 3 * [[1] * N, [1] * N, [2] * N, [0] * N]
        assert {name: tuple(value.shape) for name, value in state.items()} == {
            name: space.shape for name, space in env.observation_space.items()}
        assert state["xs"].shape == (N, 3, 16, 16) and state.keys() == {"tree_reps", "real_states", "hs", "xs"}
        assert (reward.shape, reward.dtype, done.shape, done.dtype) == ((N,), torch.float32, (N,), torch.bool)
        assert {name: info[name].dtype for name in KINDS} == KINDS and all(info[name].shape == (N,) for name in KINDS)
        assert {"processed_n", "model_warm_up_n", "warm_up_n", "running", "finish"} <= info["model_status"].keys()
        assert info["model_status"]["model_warm_up_n"] == info["model_status"]["warm_up_n"] == 40
    env.close()


@pytest.mark.parametrize("options", [{}, {"wrapper_type": 1}], ids=str)
def test_rewards_are_clipped_and_returns_are_not(options):
    """5 is paid; with reward_clip=1 a step gives 1, and the return is of 5s."""
    with walk(**options) as raw, walk(reward_clip=1, **options) as clipped:
        paid = 0
        for a, b in zip(play(raw, 40 * K, seed=2), play(clipped, 40 * K, seed=2), strict=True):
            assert set(a[1].tolist()) <= {0.0, 5.0} and torch.equal(b[1], a[1].clamp(-1, 1))
            assert torch.equal(a[3]["episode_return"], b[3]["episode_return"])
            paid += int(a[1].sum())
        assert paid > 20


def test_both_nodes_are_shown():
    with walk(env_fn=lambda: Walk((3, 16, 16)), return_x=True, return_double=True) as env:
        state = env.reset()
        assert state["xs"].shape == (N, 6, 16, 16) and env.observation_space["hs"].shape == state["hs"].shape


@pytest.mark.parametrize("generation", ["G1", "G2"])
def test_decode_tree_reps_is_a_function(generation):
    with walk(layout=generation, max_depth=5) as env:
        state, *_ = play(env, K + 1)[-1]
        known = {} if generation == "G1" else {"generation": "G2"}
        decoded, own = thinker.util.decode_tree_reps(state["tree_reps"], A, **known), env.decode_tree_reps(state["tree_reps"])
        assert decoded.keys() == own.keys() and all(torch.equal(decoded[name], own[name]) for name in own)
        names = {"root_qs_mean", "root_ns", "root_logits" if generation == "G1" else "root_policy"}
        assert names <= decoded.keys() and decoded["root_ns"].shape == (N, A)
        with pytest.raises(ValueError, match="tree_reps has 12 entries; expected at least"):
            thinker.util.decode_tree_reps(torch.zeros(2, 12), A, **known)


# ------------------------------------------------------------------------------------------ IMPALA on Thinker-augmented MDP


def test_the_atari_run_of_the_document():
    """train.py --env BreakoutNoFrameskip-v4 --reward_clip 1 --model_size_nn 2 --discounting 0.99"""
    pytest.importorskip("ale_py")
    words = {"env": "SeaquestNoFrameskip-v4", "reward_clip": 1, "model_size_nn": 2, "discounting": 0.99}
    small = {"model_downscale_c": 64, "widths": [4, 4, 4], "env_n": 1, "rec_t": 2}
    with build(resolve(Config, experiments.get("thinker-atari").config, words, small)) as robot:
        assert robot.tasks["model"].algorithm.model.frame == 3
        assert robot.agents[0].augmented.envs.get_attr("emulator")[0].rom.stem == "seaquest"


@pytest.mark.checkout
def test_the_table_of_translations_is_true():
    """What stands for an option of train.py is an option of ours, and all options of train.py are in the table."""
    ours, told = {*Config.__struct_fields__}, set()
    for there, here_ in (line.strip("| ").split(" | ") for line in section("Its training commands") if line.startswith("| `--")):
        told |= (names := set(re.findall(r"--(\w+)", there)))
        keys = set(re.findall(r"`(\w+)(?:=[^`]*)?`", here_))
        assert keys <= ours and (keys or here_.startswith(("– ", "`parl-like"))), (names, keys - ours)
    assert told | ours >= ACTOR


ACTOR = set("""
    name require_prob parallel discounting reward_clip train_actor total_steps actor_learning_rate actor_batch_size
    actor_unroll_len actor_use_rms actor_grad_norm_clipping actor_adam_eps return_norm_type im_cost im_cost_anneal cur_cost
    cur_cost_anneal baseline_cost entropy_cost im_entropy_cost reg_cost xss_cost see_real_state see_tree_rep see_h see_x drc
    tree_rep_rnn x_rnn tran_t tran_mem_n tran_layer_n tran_lstm_no_attn tran_attn_b tran_dim disable_mem critic_zero_init
    critic_enc_type sep_im_head xpid ckp preload_actor savedir use_wandb wandb_ckp_freq policy_vis_freq policy_vis_length
    profile parallel_actor auto_res ray_mem ray_gpu ray_cpu self_play_n env_n gpu_self_play gpu_learn_actor gpu_learn env
""".split())  # fmt: skip
"""Options of train.py, version 1.1."""
