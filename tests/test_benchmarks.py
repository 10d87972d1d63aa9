"""The benchmarks run and report what they say; how fast is not a matter for tests."""

import importlib
import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.checkout


@pytest.fixture(autouse=True)
def ours(monkeypatch):
    """The repository's own folder, whatever other tests have imported under that name."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parent.parent))
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(("name", "argv"), [
    ("transport", ["--agents", "4", "--rounds", "1"]),
    ("memory", ["--agents", "8"]),
    ("replay", ["--rounds", "1", "--scale", "0.01", "--alone"]),
    ("returns", ["--rounds", "1", "--scale", "0.01"]),
    ("envs", ["--rounds", "1", "--scale", "0.01"]),
    ("thinker", ["--rounds", "1", "--scale", "0.05", "--net", "small", "--threads", "1"]),
    ("faults", ["--quick", "--only", "bad", "unsafe"]),
])
def test_json_out(name, argv, capsys):
    assert importlib.import_module(f"benchmarks.{name}").main([*argv, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["bench"] == name and result["machine"]["cores"]
    if name == "memory":
        assert result["robot_mib"] < 1024 and not result["import"]["loads_torch"] and result["import"]["untouched"]
    elif name == "replay":
        names = {"insert 1 row", "insert 64 lanes", "sample 256", "sample 256 images", "sample 256 n-step", "sample 256 prioritised"}
        assert set(result["cases"]) == names and result["cases"]["insert 1 row"]["ratios"]["push vs dict of arrays"] > 0
        assert result["atari_bytes_per_row"] < 7_200 * 1.1  # of a small buffer; a large one is measured by the command
        assert result["prioritised_growth"] > 0
    elif name == "returns":
        assert set(result["cases"]) == {f"{kind} {shape}" for kind in ("gae", "vtrace") for shape in ("[128, 64]", "[20, 256]")}
        assert all(case["ratios"]["vs numpy"] > 0 for case in result["cases"].values())
    elif name == "envs":
        assert set(result["sokoban"]) == set(result["reset_us"]) == {"16", "64"} and len(result["sokoban"]["64"]) == 8
        assert all(rate["median"] > 0 for rate in result["levels_per_s"].values())
    elif name == "thinker":
        assert set(result["tree"]) == set(result["acting"]["small"]) == {"16", "64"} and result["learning"]["small"]["over_bare"] > 0
        assert all(case["decoding"]["over_bare"] > 0 and case["latent_vs_decoding"] > 0 for case in result["acting"]["small"].values())
        assert {"decoding, channels_last", "latent, bfloat16", "decoding, compiled"} <= result["variants"]["small"].keys()
        assert result["memory"]["growth"] < 0.1
    elif name == "faults":
        assert {name.split()[0] for name in result["card"]} == {"bad", "unsafe"} and len(result["card"]) == 3
        assert all(line["reached"] for name, line in result["card"].items() if name.startswith("bad")), result["card"]
    else:
        case = result["agents"]["4"]
        rates = case["rates"]
        assert case["ratios"]["threads vs plain queues"] == rates["threads"]["median"] / rates["plain queues"]["median"]
        assert set(case["ratios"]) == {"cooperative vs bare greenlets", "threads vs plain queues", "threads vs simple queues"}


def test_compare_takes_turns_and_the_ratio_is_that_of_neighbours():
    from benchmarks.common import compare, ratio

    order = []
    rates = compare({"a": lambda: order.append("a") or 1.0, "b": lambda: order.append("b") or len(order)}, rounds=3)
    assert order == ["a", "b"] * 3
    assert rates["b"] == {"median": 4, "best": 6, "spread": 1.0, "rounds": [2, 4, 6]}
    assert ratio({"rounds": [1, 2, 12]}, {"rounds": [1, 1, 4]}) == 2
