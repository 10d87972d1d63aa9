"""One check of what an environment returns: the same rules, whoever asks."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest
from agent_fakes import Corridor
from gymnasium.spaces import Box

import parl_like
from parl_like.environment.value_check import BadOutput, ExactCheck, OutputCheck
from parl_like.values.spec import SpecError

CHECK = OutputCheck(Corridor(), "raise")


class Several(Corridor):
    reward_space = Box(-1, 1, (2,), np.float64)


@pytest.mark.parametrize(("rule", "fine", "wrong", "said"), [
    (CHECK.pair, [(1, {}), [1, {}], (1, None)], [1, (1,), (1, {}, 2), {"obs": 1}], "expected the pair"),
    (CHECK.info, [{}, {"a": 1}], [None, [1], "text"], "gave the info"),
    (CHECK.reward, [1, 1.5, np.float32(2), np.zeros(1)], [None, np.zeros(2)], "gave (the|a) reward"),
    (OutputCheck(Several(), "raise").reward, [1.5, np.zeros(2)], [np.zeros(3)], r"of shape \(3,\), and declares \(2,\)"),
    (ExactCheck.pair, [(1, {})], [(1, None), [1, {}], (1, {}, 2), 1], "reset must return"),
    (ExactCheck.info, [{}, {"a": 1}], [None, [1]], "expected a dict"),
    (ExactCheck.number, [1, 1.5, True, np.float32(2), np.array(2.0)], [None, "1", np.zeros(1), [1.0]], "expected one number"),
    (ExactCheck.finite, [0.0, -1e308], [math.nan, math.inf, -math.inf], "expected a finite number"),
])  # fmt: skip
def test_what_may_be_returned(rule, fine, wrong, said):
    for value in fine:
        rule(value)
    for value in wrong:
        with pytest.raises(BadOutput, match=said):
            rule(value)


@pytest.mark.parametrize(("flags", "said"), [((0, True), "terminated is 0"), ((True, None), "truncated is None")])
def test_exact_flags_are_bools(flags, said):
    ExactCheck.flags(True, np.bool_(False))
    with pytest.raises(BadOutput, match=said):
        ExactCheck.flags(*flags)


def test_values_are_refused_or_replaced():
    drops, mends = OutputCheck(Corridor(), "drop"), OutputCheck(Corridor(), "replace")
    assert (CHECK.judges, drops.judges, drops.mends, mends.mends) == (False, True, False, True)
    with pytest.raises(SpecError, match="field 'rew'.*give finite numbers"):
        drops.value(drops.rewards, math.nan)
    assert mends.value(mends.rewards, math.inf) == 0.0 and drops.value(drops.rewards, 2.5) == 2.5


def test_no_other_place_refuses_what_reset_and_step_return():
    """`BadOutput` is raised by the check, and for observations by the layout of the arrays that they are written into."""
    root, raised = Path(parl_like.__file__).parent, set()
    for path in [*root.rglob("*.py"), *(root.parent / "envs").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and getattr(node.exc.func, "id", "") == "BadOutput":
                raised.add("/".join(path.parts[-2:]))
    assert raised == {"environment/value_check.py", "vector/columns.py", "vector/group.py"}
