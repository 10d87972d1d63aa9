"""Replays recorded cases of Thinker's tree in the toy world: replay_tree.py CASES.json [--layout G1|G2]

CASES.json has a section "tree" (or is that section): {"layout_79" and/or "layout_111": {name: case}}, or cases without that
level, which --layout or the length of their vectors tells apart. A case has A, K, L, gamma, action, reset_action and, as far as
recorded, reset_mode, tree_carry, perfect, stat_mask_type, test_rec_t, has_action_seq, and what came out of each step. Constants
of the toy world: section "toy". Prints the largest deviation of every case, and of which field; exits 1 where one is above 1e-5
or a case cannot be replayed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from parl_like.envs.thinker.tree import Tree

TOLERANCE = 1e-5
CONSTANTS = {
    "modulus": 1009, "reward_mul": 7, "reward_mod": 11, "reward_sub": 5, "reward_div": 8, "reward_version_div": 16,
    "value_mul": 5, "value_mod": 13, "value_sub": 6, "value_div": 4, "value_version_div": 8,
    "logit_mul": 3, "logit_mod": 5, "logit_div": 2, "logit_sub": 1, "logit_version_div": 4,
    "imagined_done_mod": 7, "imagined_done_residue": 3, "real_reward_add": 0.25, "root_value_add": 0.5, "root_logit_add": 0.125,
    "real_done_mod": 11, "real_done_residue": 5, "genuine_done_mod": 22, "genuine_done_residue": 5, "truncated_mod": 33,
    "truncated_residue": 5, "reset_env_mul": 17, "reset_episode_mul": 13,
}
# What a recording may hold for every step, beside what the toy world and the tree put out under the same name.
INTERNAL = ("depth_after_step", "pointer_state_id_after_step", "root_child_counts_after_step", "root_rollout_returns_after_step")


class Toy:
    """The toy world of n environments: states are (s, ver), s an integer modulo 1009, ver the real steps so far. All exact in
    float32.

    The model's guess (`imagine`) differs from the truth (`step`) in reward, value, priors and ends, and from one real step to the
    next.
    """

    def __init__(self, n: int, n_actions: int, constants: dict[str, Any] | None = None) -> None:
        self.n_actions, self.of = n_actions, CONSTANTS | (constants or {})
        self.env, self.episode = np.arange(n), np.zeros(n, np.int64)
        self.now = np.zeros((n, 2), np.int64)  # s, ver; ver is never reset
        self.begin(np.ones(n, np.bool_))

    def begin(self, over: Any) -> None:
        start = self.of["reset_env_mul"] * self.env + self.of["reset_episode_mul"] * self.episode
        self.now[over, 0] = start[over] % self.of["modulus"]
        self.episode[over] += 1

    def look(self, s: Any, ver: Any, root: bool) -> tuple[Any, Any]:
        """Value [m] and logits [m, A] of states; of the initial inference if `root`."""
        c = self.of
        v = (c["value_mul"] * s % c["value_mod"] - c["value_sub"]) / c["value_div"] + ver / c["value_version_div"]
        logits = (c["logit_mul"] * s[:, None] + np.arange(self.n_actions)) % c["logit_mod"] / c["logit_div"] - c["logit_sub"]
        logits = logits + ver[:, None] / c["logit_version_div"]
        return (v + c["root_value_add"], logits + c["root_logit_add"]) if root else (v, logits)

    def move(self, s: Any, action: Any) -> tuple[Any, Any]:
        c = self.of
        s = (self.n_actions * s + action + 1) % c["modulus"]
        return s, (c["reward_mul"] * s % c["reward_mod"] - c["reward_sub"]) / c["reward_div"]

    def imagine(self, states: Any, action: Any, perfect: bool) -> tuple[Any, Any]:
        """States [m, 2] one step on, and the model's (r, v, done, logits); if `perfect`, those of the real environment."""
        s, r = self.move(states[:, 0], action)
        ver, c = states[:, 1] + perfect, self.of
        kind = "real" if perfect else "imagined"
        done = s % c[f"{kind}_done_mod"] == c[f"{kind}_done_residue"]
        r = r + (c["real_reward_add"] if perfect else ver / c["reward_version_div"])
        v, logits = self.look(s, ver, root=perfect)
        return np.stack([s, ver], 1), (r, v, done, logits)

    def step(self, real: Any, action: Any) -> dict[str, Any]:
        """Steps the environments `real` [n] bool. Reward and the three kinds of done, [n] each."""
        c = self.of
        s, r = self.move(self.now[:, 0], action)
        flags = {
            name: real & (s % c[f"{kind}_mod"] == c[f"{kind}_residue"])
            for name, kind in (("done", "real_done"), ("real_done", "genuine_done"), ("truncated_done", "truncated"))
        }
        self.now[real] = np.stack([s, self.now[:, 1] + 1], 1)[real]
        self.begin(flags["done"])
        return {"reward": np.where(real, r + c["real_reward_add"], 0.0), **flags}


class Player:
    """A `Tree` in the toy world, with the table of states that a caller keeps."""

    def __init__(self, tree: Tree, toy: Toy) -> None:
        self.tree, self.toy = tree, toy
        self.table = np.full((tree.n * tree.capacity, 2), -1, np.int64)
        self.shown = tree.begin(*toy.look(toy.now[:, 0], toy.now[:, 1], root=True))
        self.table[self.shown.root_slot] = toy.now

    def step(self, primary: Any, reset: Any) -> dict[str, Any]:
        """One augmented step of all environments; everything that can be seen of it, by the names of the recordings."""
        tree, toy = self.tree, self.toy
        plan = tree.select(primary, reset)
        assert (self.table[plan.parent_slot] >= 0).all(), "an expansion from a slot that was never written"
        states, guess = toy.imagine(self.table[plan.parent_slot], plan.action, tree.perfect)
        self.table[plan.child_slot] = states
        seen = toy.step(plan.real, np.asarray(primary))
        self.table[plan.root_slot] = toy.now[plan.real]
        v, logits = toy.look(toy.now[plan.real, 0], toy.now[plan.real, 1], root=True)
        out = self.shown = tree.update(guess, (seen["reward"][plan.real], seen["done"][plan.real], v, logits))
        at = np.where(out.current_done[:, None], 0, self.table[out.current_slot])
        return seen | {
            "hs_state_id": at[:, 0], "hs_version": at[:, 1], "tree_reps": out.features, "step_status": out.step_status,
            "im_reward": out.im_reward, "baseline": out.baseline, "max_rollout_depth": out.max_rollout_depth, "reset": out.reset,
            "forced": out.forced, "plan": plan,
        }

    def inside(self) -> dict[str, Any]:
        """What recordings tell about the inside of the tree, per environment."""
        state = self.tree.state_dict()
        root, children = state["root"], state["children"]
        counts = state["visits"] if self.tree.layout.generation == "G2" else state["size"]
        kids = children[root]
        return {
            "depth_after_step": state["depth"], "pointer_state_id_after_step": self.table[self.owners(state)[state["cur"]], 0],
            "root_child_counts_after_step": np.where(kids >= 0, counts[kids], 0),
            "root_rollout_returns_after_step": [sorted(self.returns(state, int(node))) for node in root],
        }

    @staticmethod
    def owners(state: dict[str, Any]) -> Any:
        """Node → the node whose model data it shows: its own, or for a state after an end that of the end itself."""
        owner = np.arange(len(state["parent"]))
        for _ in range(len(owner)):
            up = state["parent"][owner]
            shares = (up >= 0) & (state["done"][up] > 0)
            if not shares.any():
                break
            owner = np.where(shares, up, owner)
        return owner

    def returns(self, state: dict[str, Any], node: int) -> list[float]:
        """The rollout returns that pass a node, from parent links alone."""
        gamma, r = self.tree.discounting, float(state["r"][node])
        below = [ret for child in state["children"][node] if child >= 0 for ret in self.returns(state, int(child))]
        return [r + gamma * ret for ret in [float(state["v"][node]), *below]]


def replay(case: dict[str, Any], generation: str, constants: dict[str, Any] | None = None) -> dict[str, float]:
    """The largest deviation of every recorded field of a case; inf where shapes differ."""
    action, reset = (np.asarray(case[name], np.int64) for name in ("action", "reset_action"))
    n = 1 if action.ndim == 1 else action.shape[1]
    n_actions = int(case["A"])
    tree = Tree(
        n, n_actions, int(case["K"]), max_depth=int(case["L"]),
        discounting=float(case["gamma"] if "gamma" in case else case["discounting"]),
        layout=generation, tree_carry=bool(case.get("tree_carry", 1)), reset_mode=int(case.get("reset_mode", 0)),
        stat_mask_type=int(case.get("stat_mask_type", case.get("mask", 0))), has_action_seq=bool(case.get("has_action_seq", 1)),
        perfect=bool(case.get("perfect", 0)), test_K=case.get("test_rec_t", case.get("test_K")) or None, faithful=True,
    )
    player = Player(tree, Toy(n, n_actions, constants))
    worst: dict[str, float] = {}

    def compare(name: str, got: Any, recorded: Any) -> None:
        got, want = (np.asarray(value, np.float64).reshape(-1) for value in (got, recorded))
        gap = float("inf") if got.shape != want.shape else float(np.nan_to_num(np.abs(got - want), nan=np.inf).max(initial=0.0))
        worst[name] = max(worst.get(name, 0.0), gap)

    if "reset_tree_reps" in case:
        compare("reset_tree_reps", player.shown.features, case["reset_tree_reps"])
    recorded = [name for name, values in case.items() if isinstance(values, list) and len(values) == len(action)]
    for t in range(len(action)):
        seen = player.step(action[t].reshape(n), reset[t].reshape(n))
        if any(name in case for name in INTERNAL):
            seen |= player.inside()
        for name in recorded:
            if name == "root_rollout_returns_after_step":
                lists = [case[name][t]] if n == 1 and np.ndim(case[name][t][0]) == 0 else case[name][t]
                compare(name, sum(seen[name], []), [ret for one in lists for ret in sorted(one)])
            elif name in seen:
                compare(name, seen[name], case[name][t])
    return worst


def cases_of(found: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """All cases below `found`, whatever the levels above them are called."""
    if isinstance(found, dict) and "action" in found and "A" in found:
        return [(path, found)]
    items = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    return [case for key, value in items if key != "toy" for case in cases_of(value, (*path, str(key)))]


def generation_of(path: tuple[str, ...], case: dict[str, Any]) -> str:
    """Told by the name of the level above, else by the length of the vectors."""
    for key in reversed(path[:-1]):
        for mark, generation in (("79", "G1"), ("111", "G2"), ("g1", "G1"), ("g2", "G2")):
            if mark in key.lower():
                return generation
    size = case.get("dim") or np.shape(case["tree_reps"])[-1]
    return "G1" if size == 10 * case["A"] + case["K"] + 9 else "G2"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--layout", choices=("G1", "G2"), help="replay only cases of this generation; take unnamed ones as of it")
    options = parser.parse_args(argv)
    found = json.loads(options.cases.read_text(encoding="utf-8"))
    toy = found.get("toy") if isinstance(found, dict) else None
    cases = cases_of(found["tree"] if isinstance(found, dict) and "tree" in found else found)
    failed = replayed = 0
    for path, case in cases:
        name = ".".join(path)
        try:
            named = any("layout" in key.lower() for key in path[:-1])
            generation = generation_of(path, case) if named or options.layout is None else options.layout
            if options.layout not in (None, generation):
                continue
            worst = replay(case, generation, toy)
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            failed, replayed = failed + 1, replayed + 1
            print(f"{name}: cannot be replayed: {type(error).__name__}: {error}")
            continue
        field = max(worst, key=lambda key: worst[key])
        failed, replayed = failed + (worst[field] > TOLERANCE), replayed + 1
        print(f"{name} ({generation}): {len(case['action'])} steps, largest deviation {worst[field]:.2e} in {field} of "
              f"{len(worst)} fields")
    print(f"{failed} of {replayed} cases deviate by more than {TOLERANCE:g}")
    return int(failed > 0 or replayed == 0)


if __name__ == "__main__":
    raise SystemExit(main())
