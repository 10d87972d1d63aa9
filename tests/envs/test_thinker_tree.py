"""Thinker's tree: recorded numbers, the compiled trees against the plain one of tree_twin.py, memory, state, arguments."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tree_twin import ReferenceTree

from parl_like.envs.thinker.layout import ENCODED, Layout, decode, encode
from parl_like.envs.thinker.tree import Tree

SHARED = Path(os.environ["PARL_LIKE_SHARED"]) if os.environ.get("PARL_LIKE_SHARED") else None
TESTS = Path(__file__).resolve().parent.parent
SCRIPT = TESTS / "conformance" / "replay_tree.py"


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


script = module(SCRIPT)
Toy, Player = script.Toy, script.Player

# ----------------------------------------------------------------------------------------------------------------- golden numbers

SMALL = {"A": 2, "K": 9, "L": 3, "gamma": 0.5}
ACTION = [0, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0]
RESET = [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0]

# Spec section 12, the example that can be redone by hand (G1). The toy world: s' = 2s + a + 1,
# r = ((7s' mod 11) − 5)/8 + ver/16, v = ((5s' mod 13) − 6)/4 + ver/8 (+1/2 at a root), an end iff s' mod 7 = 3; γ = 1/2.
HAND = [
    # the root's returns: g(0 → 1) = ½·(¼ + ½·(−¼)) = 1/16; g(0 → 3) = ½·¼ + ¼·0.625 = 0.28125, twice: the end's child adds
    # nothing
    ([-0.5, 0.0625], [1, 0], 0.125, 1, 1),
    ([-0.5, 0.0625, 0.28125], [2, 0], 0.4375, 3, 1),
    ([-0.5, 0.0625, 0.28125, 0.28125], [3, 0], 0.0, 0, 1),  # depth 3: forced reset
    ([-0.5, 0.0625, 0.28125, 0.28125, 0.125], [3, 1], 0.0, 2, 1),
    ([-0.5, 0.0625, 0.28125, 0.28125, 0.125, -0.03125], [3, 2], 0.0, 0, 1),  # chosen reset
    ([-0.5, 0.0625, 0.28125, 0.28125, 0.125, -0.03125], [3, 2], 0.0, 2, 1),  # revisit
    ([-0.5, 0.0625, 0.28125, 0.28125, 0.125, -0.03125, -0.0625], [3, 3], 0.0, 6, 1),
    ([-0.5, 0.0625, 0.28125, 0.28125, 0.125, -0.03125, -0.0625, -0.125], [3, 4], 0.0, 0, 2),
    ([0.8125, 0.1875, 0.125, 0.0], [1, 2], 0.0, 2, 0),  # node 2 becomes the root: reward 0, v 1.625
]


def player(n=1, n_actions=2, K=9, max_depth=3, discounting=0.5, toy=None, **options):
    return Player(Tree(n, n_actions, K, max_depth=max_depth, discounting=discounting, **options), toy or Toy(n, n_actions))


def test_the_example_by_hand():
    game = player(faithful=True)
    assert game.shown.features[0, 27:29].tolist() == [1.0, 1.0] and game.shown.features[0, 3] == -1.0
    for t, (returns, counts, im_reward, pointer, status) in enumerate(HAND):
        seen = game.step(ACTION[t : t + 1], RESET[t : t + 1]) | game.inside()
        got = (
            seen["root_rollout_returns_after_step"][0], seen["root_child_counts_after_step"][0].tolist(),
            float(seen["im_reward"][0]),
            int(seen["pointer_state_id_after_step"][0]), int(seen["step_status"][0]),
        )
        assert got == (sorted(returns), counts, im_reward, pointer, status), f"step {t + 1}"
    assert seen["baseline"][0] == 0.0078125  # mean of the eight entries / γ
    assert seen["tree_reps"][0, 13:15].tolist() == [1.625, 1.625]


G1_COUNTS = [
    [1, 0], [2, 0], [3, 0], [3, 1], [3, 2], [3, 2], [3, 3], [3, 4], [1, 2], [1, 2], [1, 2], [1, 3], [1, 3], [2, 3], [2, 3],
    [2, 3], [2, 4],
    [0, 0], [1, 0], [2, 0], [3, 0], [3, 0],
]
G2_COUNTS = [
    [1, 0], [1, 0], [1, 0], [1, 1], [1, 1], [1, 2], [1, 2], [1, 2], [1, 1], [1, 2], [1, 2], [1, 2], [2, 2], [2, 2], [2, 3],
    [2, 3], [2, 3],
    [0, 0], [1, 0], [1, 0], [1, 0], [2, 0],
]
MODE1_COUNTS = [
    [1, 0], [1, 0], [1, 0], [1, 1], [1, 1], [1, 2], [1, 2], [1, 2], [0, 1], [0, 2], [0, 2], [0, 2], [1, 2], [1, 2], [1, 3],
    [1, 3], [1, 3],
    [0, 0], [1, 0], [1, 0], [1, 0], [2, 0],
]
LEARNED = {"hs_state_id": [1, 0, 0, 2, 5, 2, 6, 13, 2, 6, 13, 28, 5, 12, 6, 13, 27, 13, 27, 56, 114, 27]}
LEARNED["pointer_state_id_after_step"] = [1, 3, 0, 2, 0, 2, 6, 0, 2, 6, 13, 2, 5, 2, 6, 13, 2, 13, 27, 56, 13, 27]
PERFECT = {"hs_state_id": [1, 3, 8, 2, 0, 2, 6, 13, 2, 6, 13, 28, 0, 0, 6, 13, 0, 13, 0, 0, 0, 0]}
PERFECT["pointer_state_id_after_step"] = [1, 3, 0, 2, 0, 2, 6, 0, 2, 6, 13, 2, 5, 2, 6, 13, 2, 13, 27, 27, 13, 27]
GOLDEN = {
    # name: (generation, options, recorded with the original: planning rewards that are not 0 by step, baselines by stage, the
    # rest)
    "G1": ("G1", {}, {1: 0.125, 2: 0.4375, 19: 0.5, 20: 0.3125, 21: 0.125}, (0.0078125, 0.53571427), LEARNED, G1_COUNTS),
    "G2": ("G2", {}, {1: 0.125, 2: 0.4375, 19: 0.5, 20: 0.3125}, (0.0078125, 0.53571427), LEARNED, G2_COUNTS),
    "G1-perfect": ("G1", {"perfect": 1}, {1: 0.6875, 2: 0.1875, 19: 0.625}, (0.359375, 0.6785714), PERFECT, G1_COUNTS),
    "G2-perfect": ("G2", {"perfect": 1}, {1: 0.6875, 2: 0.1875, 19: 0.625}, (0.359375, 0.6785714), PERFECT, G2_COUNTS),
    "G2-reset_mode1": (
        "G2", {"reset_mode": 1}, {1: 0.125, 2: 0.4375, 19: 0.5, 20: 0.3125}, (-0.0375, 0.65625),
        {
            "hs_state_id": [1, 0, 0, 2, 0, 2, 6, 0, 2, 6, 13, 2, 5, 2, 6, 13, 2, 13, 27, 56, 13, 27],
            "pointer_state_id_after_step": LEARNED["pointer_state_id_after_step"],
        },
        MODE1_COUNTS,
    ),
}


def golden(name):
    """A recorded case of the original: steps 10 to 22 hold a stale re-expansion, a carried tree, an end with truncation, a new
    episode."""
    generation, options, rewards, baselines, rest, counts = GOLDEN[name]
    steps = range(1, 23)
    return generation, SMALL | options | rest | {
        "action": ACTION, "reset_action": RESET, "root_child_counts_after_step": counts,
        "im_reward": [rewards.get(t, 0.0) for t in steps],
        "baseline": [0.0 if t < 9 else baselines[t >= 18] for t in steps],
        "step_status": [0 if t % 9 == 0 else 2 if t % 9 == 8 else 1 for t in steps],
        "reward": [-0.125 if t == 18 else 0.0 for t in steps],
        "done": [t == 18 for t in steps], "real_done": [t == 18 for t in steps], "truncated_done": [t == 18 for t in steps],
        "max_rollout_depth": [min((t - 1) % 9, 3) if t % 9 else 3 for t in steps],
        "depth_after_step": [1, 2, 0, 1, 0, 1, 2, 0, 0, 1, 2, 0, 1, 0, 1, 2, 0, 0, 1, 2, 0, 1],
    }


@pytest.mark.parametrize("name", GOLDEN)
def test_recorded_by_the_original(name):
    generation, case = golden(name)
    worst = script.replay(case, generation)
    assert len(worst) == 12 and max(worst.values()) < 1e-7, worst


@pytest.mark.skipif(SHARED is None, reason="PARL_LIKE_SHARED does not name the folder with spec/")
def test_all_recorded_cases(capsys):
    assert script.main([str(SHARED / "spec" / "thinker_golden.json")]) == 0
    assert capsys.readouterr().out.endswith("0 of 7 cases deviate by more than 1e-05\n")


@pytest.mark.skipif(SHARED is None, reason="PARL_LIKE_SHARED does not name the folder with spec/")
def test_the_reference_reproduces_the_recorded_vectors():
    tree = json.loads((SHARED / "spec" / "thinker_golden.json").read_text())["tree"]
    for group, generation in (("layout_79", "G1"), ("layout_111", "G2")):
        for case in tree[group].values():
            options = dict(max_depth=case["L"], discounting=case["gamma"], layout=generation, reset_mode=case["reset_mode"])
            slow = Slow(Toy(1, case["A"]), case["K"], perfect=bool(case["perfect"]), faithful=True, **options)
            np.testing.assert_allclose(slow.shown[0]["features"], case["reset_tree_reps"], atol=1e-6)
            for t, action in enumerate(case["action"]):
                out = slow.step([action], [case["reset_action"][t]])[0]
                np.testing.assert_allclose(out["features"], case["tree_reps"][t], atol=1e-6, err_msg=f"step {t + 1}")
                np.testing.assert_allclose(out["im_reward"], case["im_reward"][t], atol=1e-6)
                if "root_rollout_returns_after_step" in case:
                    np.testing.assert_allclose(out["root"].returns, case["root_rollout_returns_after_step"][t], atol=1e-6)


def test_replaying_finds_what_differs(tmp_path, capsys):
    (tmp_path / "cases.json").write_text(json.dumps({"layout_79": {"small": golden("G1")[1]},
                                                     "layout_111": {"small": golden("G2")[1]}}))
    assert script.main([str(tmp_path / "cases.json")]) == 0
    assert script.main([str(tmp_path / "cases.json"), "--layout", "G2"]) == 0
    assert capsys.readouterr().out.endswith("0 of 1 cases deviate by more than 1e-05\n")
    changed, lacking = golden("G1")[1], golden("G1")[1]
    changed["im_reward"][20] += 0.001
    del lacking["K"]
    (tmp_path / "cases.json").write_text(json.dumps({"tree": {"a": changed, "b": lacking, "c": golden("G1")[1]}}))
    assert script.main([str(tmp_path / "cases.json"), "--layout", "G1"]) == 1
    a, b, c, last = capsys.readouterr().out.splitlines()
    assert a.startswith("a (G1): 22 steps, largest deviation 1.00e-03 in im_reward")
    assert b == "b: cannot be replayed: KeyError: 'K'"
    assert c.startswith("c (G1): 22 steps, largest deviation") and last == "2 of 3 cases deviate by more than 1e-05"


def test_replaying_from_the_command_line(tmp_path):
    (tmp_path / "cases.json").write_text(json.dumps({"layout_79": {"small": golden("G1")[1]}}))
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "cases.json")], capture_output=True, text=True, timeout=100,
        cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("0 of 1 cases deviate by more than 1e-05\n")


# ------------------------------------------------------------------------------------------------------------------------- layout


@pytest.mark.parametrize(("generation", "options", "size"), [
    ("G1", {}, 79), ("G2", {}, 111), ("G2", {"has_action_seq": False}, 81), ("G2", {"reset_mode": 1}, 106),
    ("G1", {"reset_mode": 1}, 79),
])
def test_sizes_for_sokoban(generation, options, size):
    layout = Layout(5, 20, 5, generation, **options)
    assert layout.size == size == Tree(2, 5, 20, layout=generation, **options).layout.size
    ends = [0, *(where.stop for where in layout.slices.values())]
    assert ends[:-1] == [where.start for where in layout.slices.values()] and ends[-1] == size


@pytest.mark.parametrize("max_depth", [-1, 0])
def test_unlimited_depth_has_no_action_sequence(max_depth):
    assert Layout(5, 20, max_depth, "G2").size == 81 and "action_seq" not in Layout(5, 20, max_depth, "G2").slices


def test_where_entries_stand():
    """Spec 2.6."""
    older, newer = Layout(5, 20, 5).slices, Layout(5, 20, 5, "G2").slices
    starts = {
        "root_action": 0, "root_r": 5, "root_v": 6, "root_logits": 7, "root_qs_mean": 12, "root_qs_max": 17, "root_ns": 22,
        "root_trail_r": 27,
        "root_trail_q": 28, "root_max_v": 29, "cur_action": 30, "cur_r": 35, "cur_v": 36, "cur_logits": 37, "cur_qs_mean": 42,
        "cur_qs_max": 47, "cur_ns": 52, "reset": 57, "time": 58, "derec": 78,
    }
    assert [(name, where.start) for name, where in older.items()] == list(starts.items())
    starts = {
        "root_action": 0, "root_r": 5, "root_d": 6, "root_v": 7, "root_policy": 8, "root_qs_mean": 13, "root_qs_max": 18,
        "root_ns": 23,
        "root_trail_r": 28, "rollout_return": 29, "max_rollout_return": 30, "cur_action": 31, "cur_r": 36, "cur_d": 37,
        "cur_v": 38,
        "cur_policy": 39, "cur_qs_mean": 44, "cur_qs_max": 49, "cur_ns": 54, "cur_reset": 59, "k": 60, "deprec": 80,
        "action_seq": 81,
    }
    assert [(name, where.start) for name, where in newer.items()] == list(starts.items())


@pytest.mark.parametrize("lead", [(), (3,), (4, 3)])
@pytest.mark.parametrize("generation", ["G1", "G2"])
def test_decoding_arrays_and_tensors(generation, lead):
    layout = Layout(3, 4, 2, generation)
    whole = np.random.default_rng(0).standard_normal((*lead, layout.size)).astype(np.float32)
    entries = layout.decode(whole)
    assert entries.pop("raw") is whole
    np.testing.assert_array_equal(np.concatenate(list(entries.values()), -1), whole)
    assert entries["root_v"].shape == (*lead, 1)
    tensors = layout.decode(torch.from_numpy(whole))
    for name, entry in entries.items():
        np.testing.assert_array_equal(tensors[name].numpy(), entry)


@pytest.mark.parametrize("f_type", [0, 1])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_scalar_transform_is_undone(f_type, kind):
    x = np.concatenate([-np.geomspace(1e-4, 300, 50), [0.0], np.geomspace(1e-4, 300, 50)]).astype(kind)
    rounding = 64 * np.finfo(kind).eps
    np.testing.assert_allclose(decode(encode(x, f_type), f_type), x, rtol=rounding, atol=rounding)
    np.testing.assert_allclose(decode(encode(torch.from_numpy(x), f_type), f_type).numpy(), x, rtol=rounding, atol=rounding)
    # by hand: f0(3) = √4 − 1 + 0.003; f1(e − 1) = 1
    np.testing.assert_allclose(encode(np.array([3.0, -3.0]), 0), [1.003, -1.003], rtol=1e-12)
    np.testing.assert_allclose(encode(np.array([np.e - 1, 1 - np.e]), 1), [1, -1], rtol=1e-12)


@pytest.mark.parametrize("f_type", [0, 1])
@pytest.mark.parametrize("generation", ["G1", "G2"])
def test_encoded_features_decode_to_plain_ones(generation, f_type):
    plain, encoded = (player(n_actions=3, layout=generation, enc_type=enc, enc_f_type=f_type) for enc in (0, 2))
    rng = np.random.default_rng(1)
    for _ in range(60):
        action = rng.integers(0, 3, 1), rng.integers(0, 2, 1)
        one, two = (game.step(*action) for game in (plain, encoded))
        before, after = (game.tree.layout.decode(out["tree_reps"]) for game, out in ((plain, one), (encoded, two)))
        for name in plain.tree.layout.slices:
            np.testing.assert_allclose(after[name], before[name], atol=1e-5, err_msg=name)
            if name in ENCODED and np.abs(before[name]).max() > 0.01:
                assert not np.allclose(encoded.tree.layout.decode(two["tree_reps"])["raw"][..., plain.tree.layout.slices[name]],
                                       before[name])
        np.testing.assert_array_equal(one["im_reward"], two["im_reward"])


# -------------------------------------------------------------------------------------------------------- against the plain tree


class Slow:
    """`Player` with one `ReferenceTree` per environment."""

    def __init__(self, toy, K, perfect=False, phase=None, **options):
        self.toy, self.perfect = toy, perfect
        n = len(toy.env)
        self.trees = [
            ReferenceTree(toy.n_actions, K, perfect=perfect, phase=0 if phase is None else int(phase[e]),
                          **options) for e in range(n)
        ]
        v, logits = toy.look(toy.now[:, 0], toy.now[:, 1], root=True)
        self.shown = [tree.begin(float(v[e]), logits[e]) for e, tree in enumerate(self.trees)]
        for e, out in enumerate(self.shown):
            out["root"].data = toy.now[e].copy()

    def step(self, primary, reset):
        toy = self.toy
        self.plans = [tree.select(int(a), int(rho)) for tree, a, rho in zip(self.trees, primary, reset, strict=True)]
        self.expanded = [e for e, plan in enumerate(self.plans) if plan["expand"]]
        self.real = np.array([plan["real"] for plan in self.plans])
        truth = toy.step(self.real, np.asarray(primary))
        v, logits = toy.look(toy.now[:, 0], toy.now[:, 1], root=True)
        outs = []
        for e, (tree, plan) in enumerate(zip(self.trees, self.plans, strict=True)):
            if plan["real"]:
                outs.append(tree.update(real=(float(truth["reward"][e]), bool(truth["done"][e]), float(v[e]), logits[e])))
                outs[-1]["root"].data = toy.now[e].copy()
            elif plan["expand"]:
                parent, child, action = plan["expand"]
                data, guess = toy.imagine(parent.data[None], np.array([action]), self.perfect)
                child.data = data[0]
                r, value, done, priors = (column[0] for column in guess)
                outs.append(tree.update(expanded=(float(r), float(value), bool(done), priors)))
            else:
                outs.append(tree.update())
        self.shown = outs
        return outs


def compare(options, n=3, steps=120, seed=0, reset_rate=0.15):
    """Plays the same actions in both; returns what happened, so that a test can tell that it has seen something."""
    options = dict(options)
    n_actions, K = options.pop("n_actions"), options.pop("K")
    # another real world than the golden one: ends are more frequent, so that trees are cut at all ages
    constants = {"real_done_mod": 17, "real_done_residue": 3}
    fast = Player(Tree(n, n_actions, K, **options), Toy(n, n_actions, constants))
    slow = Slow(Toy(n, n_actions, constants), K, **options)
    np.testing.assert_allclose(fast.shown.features, [out["features"] for out in slow.shown], atol=1e-5)
    rng, seen_ends = np.random.default_rng(seed), 0
    favourite = rng.integers(0, n_actions, n)  # often the same action, so that parts of the tree are kept for long
    for t in range(steps):
        primary = np.where(rng.random(n) < 0.5, favourite, rng.integers(0, n_actions, n))
        reset = (rng.random(n) < reset_rate).astype(np.int64)
        out, outs = fast.step(primary, reset), slow.step(primary, reset)
        where = f"step {t + 1} of {options}"
        np.testing.assert_array_equal(out["plan"].real, slow.real, err_msg=where)
        assert out["plan"].expand.tolist() == slow.expanded, where
        np.testing.assert_array_equal(fast.table[out["plan"].child_slot],
                                      [slow.plans[e]["expand"][1].data for e in slow.expanded] or
                                      np.empty((0, 2)), err_msg=where)
        for name, got in (("features", out["tree_reps"]), *((name, out[name]) for name in ("im_reward", "baseline"))):
            np.testing.assert_allclose(got, [one[name] for one in outs], atol=1e-5, err_msg=f"{name}, {where}")
        for name in ("step_status", "max_rollout_depth", "reset", "forced"):
            assert out[name].tolist() == [one[name] for one in outs], f"{name}, {where}"
        for e, one in enumerate(outs):
            assert fast.shown.current_done[e] == one["current_done"], where
            if not one["current_done"]:
                assert [out["hs_state_id"][e], out["hs_version"][e]] == one["cur"].data.tolist(), where
            assert fast.table[fast.shown.root_slot[e]].tolist() == one["root"].data.tolist(), where
        seen_ends += int(out["done"].sum())
    return seen_ends


OPTIONS = st.fixed_dictionaries({
    "n_actions": st.integers(2, 5), "K": st.integers(1, 20), "max_depth": st.integers(-1, 5),
    "discounting": st.sampled_from([0.5, 0.97, 1.0]),
    "layout": st.sampled_from(["G1", "G2"]), "tree_carry": st.booleans(), "reset_mode": st.sampled_from([0, 0, 1]),
    "stat_mask_type": st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5]), "has_action_seq": st.sampled_from([True, True, False]),
    "perfect": st.booleans(), "test_K": st.sampled_from([None, None, None, 1, 3, 7, 25]), "faithful": st.booleans(),
    "enc_type": st.sampled_from([0, 0, 2]), "enc_f_type": st.sampled_from([0, 1]),
})


@given(OPTIONS, st.integers(0, 2**16), st.integers(1, 4))
def test_compiled_trees_equal_the_plain_one(options, seed, n):
    stage = options["test_K"] or options["K"]
    phase = np.random.default_rng(seed).integers(0, stage, n) if seed % 2 else None
    compare(options | {"phase": phase}, n=n, steps=60, seed=seed, reset_rate=(0.05, 0.2, 0.5)[seed % 3])


BASE = {"n_actions": 2, "K": 6, "max_depth": 3, "discounting": 0.5, "layout": "G2"}


@pytest.mark.parametrize("options", [
    {}, {"layout": "G1"}, {"K": 20, "n_actions": 5, "max_depth": 5, "discounting": 0.97}, {"max_depth": -1, "K": 12}, {"K": 1},
    {"K": 2},
    {"tree_carry": False}, {"perfect": True}, {"perfect": True, "layout": "G1", "faithful": True}, {"reset_mode": 1},
    {"max_depth": 1},
    {"reset_mode": 1, "max_depth": -1}, {"test_K": 9}, {"test_K": 3}, {"phase": [0, 2, 5]}, {"faithful": True},
    *({"stat_mask_type": mask, "layout": layout} for mask in range(1, 6) for layout in ("G1", "G2")),
], ids=str)
@pytest.mark.parametrize("steps, ends", [(200, 0), pytest.param(400, 5, marks=pytest.mark.slow)], ids=["short", "long"])
def test_every_option_for_long(options, steps, ends):
    """The same, for sure and long enough that ends, carried trees and stale nodes come often."""
    assert compare(BASE | options, steps=steps * 2 if options.get("K") == 20 else steps) > ends


def test_environments_never_meet():
    """Four trees in one object are four trees: each as if alone, at its own phase."""
    rng = np.random.default_rng(5)
    phase = np.array([0, 3, 1, 5])
    options = dict(n_actions=3, K=6, max_depth=4, discounting=0.9, layout="G2")
    together = player(n=4, phase=phase, **options)
    alone = []
    for e in range(4):
        toy = Toy(4, 3)
        toy.env, toy.episode, toy.now = toy.env[e : e + 1], toy.episode[e : e + 1], toy.now[e : e + 1]
        alone.append(player(n=1, phase=phase[e : e + 1], toy=toy, **options))
    for _ in range(200):
        primary, reset = rng.integers(0, 3, 4), (rng.random(4) < 0.2).astype(int)
        seen = together.step(primary, reset)
        for e, game in enumerate(alone):
            one = game.step(primary[e : e + 1], reset[e : e + 1])
            for name in set(one) - {"plan"}:
                np.testing.assert_array_equal(one[name][0], seen[name][e], err_msg=name)


# --------------------------------------------------------------------------------------------------------------- stages and rules


def test_phases_stagger_the_real_steps():
    game = player(n=4, K=4, phase=[0, 1, 2, 3])
    assert game.shown.step_status.tolist() == [0, 0, 0, 3]  # the last one's first action is real
    real = [game.step(np.zeros(4, int), np.zeros(4, int))["plan"].real.tolist() for _ in range(8)]
    assert real == [[t % 4 == (3 - e) for e in range(4)] for t in range(8)]


def test_a_test_time_stage_is_longer_than_the_one_hot():
    game = player(K=3, test_K=5)
    hot = [game.step([0], [0])["tree_reps"][0, game.tree.layout.slices["time"]].tolist() for _ in range(6)]
    assert hot == [[0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert game.tree.capacity == 8  # of this stage 3 + 1, of the two before 2 and 1 nodes at most; the root


def test_stages_of_one_step():
    for faithful, status in ((False, 3), (True, 0)):
        game = player(K=1, faithful=faithful)
        assert game.shown.step_status.tolist() == [status]
        for _ in range(5):
            seen = game.step([1], [1])
            assert seen["step_status"].tolist() == [status] and seen["plan"].real.all() and not seen["reset"].any()


def test_no_planning_reward_is_lost_on_a_reset():
    """Step 21 of the golden case: 0.125 is gained by a step with a chosen reset."""
    for generation, faithful, expected in (("G1", True, 0.125), ("G2", True, 0.0), ("G2", False, 0.125)):
        game = player(layout=generation, faithful=faithful)
        rewards = [float(game.step([a], [rho])["im_reward"][0]) for a, rho in zip(ACTION, RESET, strict=True)]
        assert rewards[20] == expected


def test_the_first_planning_reward_starts_from_the_roots_value():
    """v = −1, and the first rollout returns 0.125 / γ = 0.125: 1.125 more, not 0.125."""
    assert player().step([0], [0])["im_reward"].tolist() == [1.125]
    assert player(faithful=True).step([0], [0])["im_reward"].tolist() == [0.125]


@pytest.mark.parametrize(("generation", "faithful", "expected"), [("G1", False, 0.0), ("G2", False, 0.0), ("G2", True, -0.125)])
def test_a_new_episode_begins_without_a_reward(generation, faithful, expected):
    """Step 18 of the golden case ends the episode with reward −0.125."""
    game = player(layout=generation, faithful=faithful)
    for a, rho in zip(ACTION[:18], RESET[:18], strict=True):
        seen = game.step([a], [rho])
    entries = game.tree.layout.decode(seen["tree_reps"])
    assert seen["done"].all() and entries["root_r"].tolist() == [[expected]] and entries["root_action"].tolist() == [[1.0, 0.0]]


def test_a_perfect_g1_pays_negative_rewards_as_the_original_did():
    """From 0 instead of the root's value, which is −3 here: the first rollout (return 0 + ½·(−3)) is worse than nothing."""
    for generation, faithful, expected in (("G1", True, -1.5), ("G2", True, 0.0), ("G1", False, 1.5)):
        tree = Tree(1, 2, 5, discounting=0.5, layout=generation, perfect=True, faithful=faithful)
        tree.begin([-3.0], [[0.0, 0.0]])
        tree.select([0], [0])
        assert tree.update(([0.0], [-3.0], [False], [[0.0, 0.0]])).im_reward.tolist() == [expected]


@pytest.mark.parametrize("generation", ["G1", "G2"])
def test_planning_rewards_add_up_to_the_gain(generation):
    game, rng, total = player(n_actions=3, layout=generation, tree_carry=False), np.random.default_rng(2), 0.0
    best = "root_max_v" if generation == "G1" else "max_rollout_return"
    start = float(game.tree.layout.decode(game.shown.features)[best][0, 0])
    for t in range(1, 91):
        seen = game.step(rng.integers(0, 3, 1), rng.integers(0, 2, 1))
        now = float(game.tree.layout.decode(seen["tree_reps"])[best][0, 0])
        total += float(seen["im_reward"][0])
        if t % 9 == 0:
            start, total = now, 0.0
        assert total == now - start  # exact: γ = 1/2


def test_an_end_has_value_zero_and_no_state():
    tree = Tree(1, 2, 5, discounting=0.5)
    tree.begin([1.0], [[0.0, 0.0]])
    tree.select([1], [0])
    state = tree.update(([0.5], [np.nan], [True], [[3.0, 4.0]]))  # an end's value is not looked at
    entries = tree.layout.decode(state.features)
    assert state.current_done.tolist() == [True] and entries["cur_v"].tolist() == [[0.0]]
    assert entries["root_trail_q"].tolist() == [[0.5]]
    plan = tree.select([0], [0])
    assert len(plan.expand) == 0  # what comes after an end needs no model
    state = tree.update()
    entries = tree.layout.decode(state.features)
    assert (
        state.current_done.tolist() == [True]
        and entries["cur_logits"].tolist() == [[3.0, 4.0]]
        and entries["cur_r"].tolist() == [[0.0]]
    )


def test_what_a_step_returned_stays_as_it_was():
    game, kept = player(n=2), []
    for t in range(30):
        game.step([t % 2, 0], [0, t % 3 == 0])
        kept.append((game.shown, [np.copy(array) for array in game.shown]))
    for state, copies in kept:
        for array, copy in zip(state, copies, strict=True):
            np.testing.assert_array_equal(array, copy)


# ------------------------------------------------------------------------------------------------------------------------- memory


def alive_slots(state, e):
    found, todo = [], [int(state["root"][e])]
    while todo:
        node = todo.pop()
        found.append(node)
        todo += [int(child) for child in state["children"][node] if child >= 0]
    return found


def slots_are_accounted_for(tree):
    """Every slot is alive or free, once. Returns the most slots alive in an environment."""
    state, most = tree.state_dict(), 0
    for e in range(tree.n):
        alive, free = alive_slots(state, e), state["free"][e, : state["n_free"][e]].tolist()
        assert sorted(alive + free) == list(range(e * tree.capacity, (e + 1) * tree.capacity))
        assert state["size"][state["root"][e]] == len(alive)
        most = max(most, len(alive))
    return most


def test_memory_does_not_grow():
    tree = Tree(50, 3, 8, max_depth=4, discounting=0.9, phase=np.arange(50) % 8)
    game, rng = Player(tree, Toy(50, 3)), np.random.default_rng(0)
    before = {name: (id(array), array.nbytes) for name, array in tree._kernel.arrays.items()}
    for t in range(2000):  # 100,000 steps
        game.step(rng.integers(0, 3, 50), (rng.random(50) < 0.1).astype(int))
        if t % 100 == 0:
            slots_are_accounted_for(tree)
    assert {name: (id(array), array.nbytes) for name, array in tree._kernel.arrays.items()} == before


@pytest.mark.parametrize(("K", "max_depth", "carry", "capacity", "most"), [
    (4, 9, True, 7, 7), (6, 3, True, 10, 8), (6, -1, True, 16, 14), (6, 3, False, 6, 6), (1, 5, True, 1, 1), (12, 1, True, 4, 4),
    (2, -1, True, 2, 2), (20, 5, True, 56, 28),
])
def test_the_capacity_is_enough(K, max_depth, carry, capacity, most):
    """Twenty agents of all tempers: some repeat one action, some reset often. `most`: slots that one of them fills at least once.

    (4, 9): a chain of three lives 3 stages; of it 3 + 2 + 1 nodes and the root. (12, 1): root and children, however often they
    are made.
    """
    n, A, rng = 20, 3, np.random.default_rng(0)
    tree = Tree(n, A, K, max_depth=max_depth, tree_carry=carry)
    tree.begin(np.zeros(n), np.zeros((n, A)))
    assert tree.capacity == capacity
    steady, restless, reached = rng.random(n), rng.random(n) / 2, 0
    for t in range(4000):
        plan = tree.select(np.where(rng.random(n) < steady, 0, rng.integers(0, A, n)), rng.random(n) < restless)
        m, k = len(plan.expand), len(plan.root_slot)
        assert (plan.child_slot // capacity == plan.expand).all()
        assert (plan.root_slot // capacity == np.flatnonzero(plan.real)).all()
        tree.update((np.zeros(m), np.zeros(m), np.zeros(m, bool), np.zeros((m, A))),
                    (np.zeros(k), np.zeros(k, bool), np.zeros(k), np.zeros((k, A))))
        reached = max(reached, capacity - int(tree._kernel.arrays["n_free"].min()))
        if t % 500 == 0:
            slots_are_accounted_for(tree)
    assert most <= reached <= capacity


def test_new_states_never_overwrite_living_ones():
    game, rng = player(n=2, n_actions=3, K=7, max_depth=-1), np.random.default_rng(3)
    for _ in range(300):
        before = game.tree.state_dict()
        seen = game.step(rng.integers(0, 3, 2), (rng.random(2) < 0.1).astype(int))
        for e, parent, slot, action in zip(*seen["plan"][1:3], *seen["plan"][3:5], strict=True):
            was = before["children"][parent, action]
            assert slot == was if was >= 0 else slot not in alive_slots(before, e)


def test_starting_over():
    game = player(n=2)
    first = game.shown.features.copy()
    for _ in range(20):
        game.step([0, 1], [0, 0])
    again = Player(game.tree, Toy(2, 2))
    np.testing.assert_array_equal(again.shown.features, first)
    twin = player(n=2)
    for _ in range(30):
        np.testing.assert_array_equal(again.step([0, 1], [1, 0])["tree_reps"], twin.step([0, 1], [1, 0])["tree_reps"])


# ---------------------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "Tree: n is 0; expected at least 1"),
        ({"n_actions": 0}, "n_actions is 0; expected at least 1"),
        ({"K": 0}, "K is 0; expected at least 1"),
        ({"discounting": 0.0}, r"discounting is 0.0; expected a number in \(0, 1\]"),
        ({"discounting": 1.5}, "discounting is 1.5"),
        ({"layout": "G3"}, r"generation is 'G3'; expected 'G1' \(79"),
        ({"reset_mode": 2}, "reset_mode is 2; expected 0 or 1"),
        ({"stat_mask_type": 6}, "stat_mask_type is 6; expected 0 to 5"),
        ({"test_K": 0}, "test_K is 0; expected None"),
        ({"enc_type": 4}, "enc_type is 4"),
        ({"enc_f_type": 2}, "enc_f_type is 2"),
        ({"phase": [0, 4]}, "phase holds 0 to 4; expected 0 to 3"),
        ({"phase": [0, -1]}, "phase holds -1 to 0"),
        ({"phase": [0]}, r"Tree: phase is \(1,\) int64; expected \(2,\) integers"),
        (
            {"phase": [0.5, 1.0]},
            r"phase is \(2,\) "
            r"float64",
        ),
        ({"n": 10**9}, "lower n, K or max_depth"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        Tree(**{"n": 2, "n_actions": 3, "K": 4} | options)


@pytest.mark.parametrize(("primary", "reset", "message"), [
    ([0, 3], [0, 0], r"primary\[1\] is 3; expected an action from 0 to 2"), ([-1, 0], [0, 0], r"primary\[0\] is -1"),
    ([0, 0], [0, 2], r"reset\[1\] is 2; expected 0 \(go on\) or 1"), ([0, 0], [-1, 0], r"reset\[0\] is -1"),
    ([0], [0, 0], r"primary is \(1,\) int64; expected \(2,\) integers, one for each environment"),
    ([0, 0], [[0, 0]], r"reset is \(1, 2\) int64"), ([0.0, 1.0], [0, 0], r"primary is \(2,\) float64"),
])
def test_actions_out_of_range(primary, reset, message):
    tree = Tree(2, 3, 4)
    tree.begin(np.zeros(2), np.zeros((2, 3)))
    before = tree.state_dict()
    tree.select([0, 0], [0, 0])  # a plan that the refused actions take away
    with pytest.raises(ValueError, match=message):
        tree.select(primary, reset)
    with pytest.raises(RuntimeError, match=r"there is no plan to carry out; call select\(primary, reset\) before each update"):
        tree.update()
    for name, array in tree.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


GOOD = ([0.5, 0.5], [0.0, 0.0], [False, False], [[0.0] * 3] * 2)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (None, None, r"expanded is None; expected \(r, v, done, logits\) with 2 rows, one for each environment of plan.expand"),
        (0, [0.5], r"expanded r has shape \(1,\); expected \(2,\), one row for each"),
        (
            1,
            [[0.0, 0.0]],
            r"expanded v has shape "
            r"\(1, 2\)",
        ),
        (2, [0.0, 0.0], r"expanded done is \(2,\) float64; expected \(2,\) bool"),
        (2, [True], r"expanded done is \(1,\) bool"),
        (3, [[0.0] * 2] * 2, r"expanded logits has shape \(2, 2\); expected \(2, 3\)"),
        (0, [0.5, np.nan], r"expanded r\[1\] is nan; expected finite numbers: has the network diverged\?"),
        (1, [np.inf, 0.0], r"expanded v\[0\] is inf; expected finite"),
    ],
)
def test_rows_that_do_not_fit(column, value, message):
    tree = Tree(2, 3, 4)
    tree.begin(np.zeros(2), np.zeros((2, 3)))
    tree.select([0, 1], [0, 0])
    before = tree.state_dict()
    rows = None if column is None else [value if i == column else good for i, good in enumerate(GOOD)]
    with pytest.raises(ValueError, match=message):
        tree.update(rows)
    for name, array in tree.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
    assert tree.update(GOOD).step_status.tolist() == [1, 1]  # the plan is still there
    with pytest.raises(RuntimeError, match="there is no plan to carry out"):
        tree.update(GOOD)


@pytest.mark.parametrize(("real", "message"), [
    (None, r"real is None; expected \(reward, done, v, logits\) with 2 rows, one for each environment of plan.real"),
    (GOOD, r"real done is \(2,\) float64; expected \(2,\) bool"),
    (([np.nan, 0.0], [False] * 2, [0.0] * 2, [[0.0] * 3] * 2), r"real reward\[0\] is nan"),
    (([0.0] * 2, [False] * 2, [0.0, -np.inf], [[0.0] * 3] * 2), r"real v\[1\] is -inf"),
    (([0.0] * 3, [False] * 3, [0.0] * 3, [[0.0] * 3] * 3), r"real reward has shape \(3,\); expected \(2,\)"),
])
def test_real_rows_that_do_not_fit(real, message):
    tree = Tree(2, 3, 1)
    tree.begin(np.zeros(2), np.zeros((2, 3)))
    tree.select([0, 1], [0, 0])
    with pytest.raises(ValueError, match=message):
        tree.update(None, real)


def test_first_values_that_do_not_fit():
    with pytest.raises(RuntimeError, match=r"Tree.select: the tree has no roots yet; call begin\(v, logits\) first"):
        Tree(2, 3, 4).select([0, 0], [0, 0])
    for v, logits, message in (
        ([0.0], [[0.0] * 3] * 2, r"Tree.begin: v has shape \(1,\); expected \(2,\), one row for each environment"),
        ([0.0, np.nan], [[0.0] * 3] * 2, "Tree.begin: v holds nan; expected finite numbers"),
        ([0.0] * 2, [[0.0] * 2] * 2, r"Tree.begin: logits has shape \(2, 2\); expected \(2, 3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            Tree(2, 3, 4).begin(v, logits)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: Layout(5, 20, 5).decode(np.zeros((2, 78))), r"tree_reps has shape \(2, 78\); expected \(..., 79\)"),
    (lambda: Layout(5, 20, 5).decode(np.float32(0)), r"tree_reps has shape \(\)"),
    (lambda: Layout(5, 0, 5), "Layout: K is 0; expected at least 1"),
])
def test_layouts_that_do_not_fit(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", ["begin", "step"])
def test_kernels_release_the_gil(name):
    tree = Tree(64, 5, 20)
    v, logits = np.zeros(64, np.float32), np.zeros((64, 5), np.float32)
    tree.begin(v, logits)
    if name == "begin":
        call = lambda: tree.begin(v, logits)  # noqa: E731
    else:
        def call():
            m, k = (len(rows) for rows in tree.select(np.zeros(64, np.int64), np.zeros(64, np.int64))[1::4])
            tree.update((v[:m], v[:m], v[:m] > 1, logits[:m]), (v[:k], v[:k] > 1, v[:k], logits[:k]))
    module(TESTS / "fakes" / "gil.py").let_others_run(call, 20_000, name)
