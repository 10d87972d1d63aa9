"""Layers merge; whatever does not fit is a ConfigError of one line that names the key."""

import os
from typing import Annotated, Any, Literal

import msgspec
import pytest

from parl_like.lab.config import ExperimentConfig, Workers, differences, fit, parse_assignments, resolve, to_dict
from parl_like.lab.yaml_text import MAX_BYTES, MAX_DEPTH, ConfigError, dump_yaml, load_yaml, load_yaml_file
from parl_like.robots import single

Positive = Annotated[float, msgspec.Meta(gt=0)]


class Net(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    hidden: Annotated[tuple[Annotated[int, msgspec.Meta(ge=1)], ...], msgspec.Meta(min_length=1)] = (64,)
    activation: Literal["tanh", "relu"] = "tanh"


class Config(ExperimentConfig, frozen=True, kw_only=True):
    lr: Positive = 1e-3
    net: Net = Net()
    teacher: Net | None = None
    env: str = "CartPole-v1"
    gamma: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.99
    batch_size: Annotated[int, msgspec.Meta(ge=1)] = 64
    warmup_steps: Annotated[int, msgspec.Meta(ge=0)] = 100
    limits: dict[str, Positive] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.warmup_steps < self.batch_size:
            raise ValueError(f"warmup_steps ({self.warmup_steps}) is below batch_size ({self.batch_size}); raise warmup_steps")


def test_later_layers_win_and_nested_ones_merge():
    config = resolve(Config, {"lr": 0.5, "net": {"hidden": [8], "activation": "relu"}, "seed": 1},
                     {"net": {"hidden": [16, 16]}}, {"seed": 3})
    assert config == Config(lr=0.5, net=Net(hidden=(16, 16), activation="relu"), seed=3)


def test_lists_and_plain_dicts_are_replaced_not_merged():
    config = resolve(Config, {"limits": {"a": 1}, "net": {"hidden": [1, 2, 3]}}, {"limits": {"b": 2}, "net": {"hidden": [4]}})
    assert (config.limits, config.net.hidden) == ({"b": 2}, (4,))


def test_an_optional_part_is_filled_like_any_other():
    assert resolve(Config, {"teacher": {"hidden": [2]}}).teacher == Net(hidden=(2,))
    assert resolve(Config, {"teacher": {"hidden": [2]}}, {"teacher": None}).teacher is None


def test_a_configuration_is_frozen():
    with pytest.raises(AttributeError):
        resolve(Config).seed = 1  # type: ignore[misc]


def test_command_line_words_are_yaml_values():
    words = ["total_steps=1e6", "lr=3e-4", "net.hidden=[32, 32]", "driver=threads", "trace=true", "env=x=y:0", "run_dir=",
             "batch_size=1_0"]
    config = resolve(Config, parse_assignments(words))
    assert (config.total_steps, config.lr, config.net.hidden, config.driver) == (1_000_000, 3e-4, (32, 32), "threads")
    assert (config.trace, config.env, config.run_dir, config.batch_size) == (True, "x=y:0", "", 10)
    assert isinstance(config.total_steps, int)


@pytest.mark.parametrize("words", [["seed"], ["=3"], ["net.=3"], [".net=3"], ["net=3", "net.hidden=[1]"]])
def test_words_that_assign_nothing_are_refused(words):
    with pytest.raises(ConfigError):
        parse_assignments(words)


@pytest.mark.parametrize(("words", "message"), [
    (["lr=0.01", "lr.end=0"], "key 'lr' is given as a whole and in parts ('lr.end'); give either the whole or its parts"),
    (["env.vector=2", "env=Acrobot-v1"], "key 'env' is given as a whole and in parts ('env.vector'); give either the whole or "
                                         "its parts"),
    (["a={b: 1}", "a.b.c=2"], "key 'a.b' is given as a whole and in parts ('a.b.c'); give either the whole or its parts"),
])
def test_a_whole_and_its_part_are_refused_in_both_orders(words, message):
    for one in (words, words[::-1]):
        with pytest.raises(ConfigError) as caught:
            parse_assignments(one)
        assert str(caught.value) == message


def test_a_mapping_and_a_part_that_it_does_not_name_are_merged_in_both_orders():
    words = ["env={id: Acrobot-v1, options: {a: 1}}", "env.options.b=2", "env.vector=2"]
    for one in (words, words[::-1]):
        tree = to_dict(resolve(single.Config, parse_assignments(one)))
        assert tree["env"] == {"id": "Acrobot-v1", "vector": 2, "options": {"a": 1, "b": 2}, "wrappers": []}


def test_of_several_words_for_one_key_the_last_one_counts_and_a_line_says_so():
    said = []
    words = ["tau=0.01", "net={hidden: [1]}", "tau=0.02", "net={activation: relu}", "tau=0.03", "seed=1"]
    assert parse_assignments(words, said.append) == {"tau": 0.03, "net": {"activation": "relu"}, "seed": 1}
    assert resolve(Config, parse_assignments(["net.hidden=[1]", "seed=1", "net.activation=relu"])) == resolve(
        Config, {"seed": 1, "net": {"hidden": [1], "activation": "relu"}}), "other keys may stand between parts of a whole"
    assert said == ["net is {activation: relu}, as 'net={activation: relu}' says; 'net={hidden: [1]}', which came before, does "
                    "not count", "tau is 0.03, as 'tau=0.03' says; 'tau=0.01', 'tau=0.02', which came before, do not count"]


@pytest.mark.parametrize(("words", "key"), [
    (["net={hidden: [1]}", "net.hidden=[2]"], "net.hidden"), (["net.hidden=[2]", "net={hidden: [1]}"], "net.hidden"),
    (["net={a: true}", "net.a=true"], "net.a"), (["net={a: {}}", "net.a=1"], "net.a"),
])
def test_a_value_inside_a_mapping_and_by_itself_is_refused(words, key):
    with pytest.raises(ConfigError) as caught:
        parse_assignments(words)
    assert str(caught.value) == f"key {key!r} is given twice; keep one"


def test_scalars_follow_yaml_1_2():
    text = "{a: 1e-3, b: yes, c: 2026-01-01, d: 1:30, e: ~, f: 1_000, g: '5', h: 0x10, i: .5, j: True, k: -3, l: off}"
    assert load_yaml(text) == {"a": 1e-3, "b": "yes", "c": "2026-01-01", "d": "1:30", "e": None, "f": 1000, "g": "5", "h": "0x10",
                               "i": 0.5, "j": True, "k": -3, "l": "off"}
    assert load_yaml("") == load_yaml("# only a comment\n") == {}


NASTY = ["1e5", "yes", "~", "", "null", "true", "1_0", ".nan", "# no", " x ", "a: b", "a\nb", "\x85x", "\u2028", "\x07", "*x",
         "&x", "!x",
         "- a", "é💥", "'", '"', "\\", "%", "@", "`", "{", "[", "?", "<<", "=", "x" * 500]


def test_a_dumped_configuration_loads_back_unchanged():
    for text in NASTY:
        config = Config(seed=2**63 - 1, env=text, run_dir=text, lr=1e-7, net=Net(hidden=(3, 4)), limits={text: 1e300, "b": 0.1},
                        teacher=Net())
        assert resolve(Config, load_yaml(dump_yaml(to_dict(config)))) == config, repr(text)


def test_plain_values_are_those_that_yaml_and_json_give_back():
    tree = to_dict(Config(net=Net(hidden=(3, 4))))
    assert tree == load_yaml(dump_yaml(tree))
    assert tree["net"] == {"hidden": [3, 4], "activation": "tanh"}


def test_differences_are_dotted():
    a, b = to_dict(Config()), to_dict(Config(lr=0.5, net=Net(activation="relu")))
    assert differences(a, b) == {"lr": (1e-3, 0.5), "net.activation": ("tanh", "relu")}
    assert differences({"a": 1}, {}) == {"a": (1, None)}


def test_the_message_names_class_key_expected_and_got():
    cases = {
        "batchsize: 3": "Config has no key 'batchsize'; did you mean 'batch_size'?",
        "net: {hiden: [1]}": "Config has no key 'net.hiden'; did you mean 'net.hidden'?",
        "seed: -1": "Config: key 'seed' expects `int` >= 0, got -1 (int)",
        "net: {hidden: [8, x]}": "Config: key 'net.hidden[1]' expects `int`, got [8, 'x'] (list)",
        "driver: thread": "Config: key 'driver' expects one of 'cooperative', 'threads', 'processes', 'ray' (did you mean "
                          "'threads'?), got 'thread' (str)",
        "gamma: .nan": "Config: key 'gamma' expects a finite number, got nan",
        "seed: 1\nseed: 2": "YAML: line 2: key 'seed' is given twice; keep one",
        "warmup_steps: 3": "Config: warmup_steps (3) is below batch_size (64); raise warmup_steps",
    }
    for text, message in cases.items():
        with pytest.raises(ConfigError) as caught:
            resolve(Config, load_yaml(text))
        assert str(caught.value) == message


def test_a_bad_value_is_refused_even_where_a_later_layer_covers_it():
    with pytest.raises(ConfigError, match="'seed'"):
        resolve(Config, {"seed": "x"}, {"seed": 1})


# ---- F43 of reliability.md: about 200 bad configurations, all refused, all naming their key

INTS = ("seed", "total_steps", "n_agents", "checkpoint_every", "keep_checkpoints", "metrics_every", "eval_episodes", "batch_size")
FLOATS = ("log_every_s", "lr", "gamma")
NO_INT = ("1.5", "-1", "x", "'3'", "true", "~", "[1]", "{a: 1}", ".nan", ".inf", "9" * 30, "9" * 5000, "1e400", "2026-01-01")
NO_FLOAT = ("-0.5", "x", "'0.5'", "false", "~", "[0.5]", "{a: 1}", ".nan", "-.inf", "1e999", "9" * 5000)
TYPOS = {"sed": "seed", "total_step": "total_steps", "nagents": "n_agents", "drivers": "driver", "rundir": "run_dir",
         "devices": "device", "checkpoint_evry": "checkpoint_every", "tensorbord": "tensorboard", "traces": "trace",
         "learning_rate": "lr", "gama": "gamma", "warmup_step": "warmup_steps", "LR": "lr", "seed ": "seed"}


def bad_configs() -> list[tuple[str, str]]:
    """(YAML text, the key that its error must name)."""
    out = [(f"{key}: {value}", key) for key in INTS for value in NO_INT]
    out += [(f"{key}: {value}", key) for key in FLOATS for value in NO_FLOAT]
    out += [(f"{typo!r}: 1", typo) for typo in TYPOS]
    out += [(f"{key}: 1\n{key}: 1", key) for key in (*INTS, *FLOATS)]
    out += [(f"{key}: {value}", key) for key in ("tensorboard", "trace") for value in ("yes", "1", "'true'", "~", "[]")]
    out += [(f"{key}: {value}", key) for key in ("driver", "device") for value in ("3", "~", "''", "[cpu]")]
    out += [(f"{key}: &a [*a]", key) for key in ("net", "env")] + [(f"{key}: *a", key) for key in ("seed", "env")]
    out += [(f"env: !!python/object/apply:os.system ['touch {os.devnull}']", "env"), ("env: !!str x", "env"),
            ("seed: !!int 3", "seed")]
    out += [("env: " + "[" * 30 + "]" * 30, "env"), ("limits: " + "{a: " * 30 + "1" + "}" * 30, "limits")]
    out += [("env: [&a x, *a, *a]", "env"), ("env: &a x", "env"), ("<<: {seed: 1}", "<<"), ("1: 2", "1"),
            ("? [seed]\n: 1", "seed")]
    out += [("net: {hidden: []}", "net.hidden"), ("net: {hidden: [0]}", "net.hidden[0]"), ("net: 3", "net"),
            ("net: {x: 1}", "net.x"),
            ("net: {activation: gelu}", "net.activation"), ("limits: {a: -1}", "limits"), ("limits: {a: .nan}", "limits"),
            ("teacher: {hidden: 3}", "teacher.hidden"), ("teacher: {y: 3}", "teacher.y"), ("warmup_steps: 3", "warmup_steps"),
            ("net.hidden: [0]", "net.hidden"), ("net: {hidden: [3]}\nnet.hidden: [3]", "net.hidden")]
    return out


def test_there_are_two_hundred_bad_configurations():
    assert len(bad_configs()) >= 200


@pytest.mark.parametrize(("text", "key"), bad_configs(), ids=lambda part: part[:24])
def test_bad_configuration_is_one_line_that_names_the_key(text, key):
    with pytest.raises(ConfigError) as caught:
        resolve(Config, load_yaml(text))
    assert key in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    if key in TYPOS and key not in ("learning_rate", "LR"):
        assert f"did you mean {TYPOS[key]!r}" in str(caught.value)


@pytest.mark.parametrize("text",
                         ["- a", "a", "a: [", "a: b: c", "a: 'x", "\x00", "a: b\n---\nc: d", "%YAML 9", "}", "a:\tb: c",
                          "\ud800"])
def test_what_is_no_mapping_is_refused(text):
    with pytest.raises(ConfigError):
        load_yaml(text)


def test_size_is_limited_before_parsing(tmp_path):
    with pytest.raises(ConfigError, match="1000000 bytes"):
        load_yaml("a: " + "x" * MAX_BYTES)
    big = tmp_path / "big.yaml"
    with open(big, "wb") as file:
        file.truncate(10_000_000)  # a hole: if it were read, it would be ten million NUL characters
    with pytest.raises(ConfigError, match="has 10000000 bytes"):
        load_yaml_file(big)


def test_depth_is_limited():
    assert load_yaml("a: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1))["a"] != []
    for deep in ("a: " + "[" * MAX_DEPTH + "]" * MAX_DEPTH, "a: " + "[" * 100_000):
        with pytest.raises(ConfigError, match="nested over 20 levels deep"):
            load_yaml(deep)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"env: \xff\xfe")
    for path in (tmp_path / "none.yaml", tmp_path, tmp_path / "latin.yaml"):
        with pytest.raises(ConfigError, match=str(path)):
            load_yaml_file(path)


def test_a_score_to_stop_at_needs_evaluations():
    with pytest.raises(ConfigError, match="stop_score=475 is reached by an evaluation while training; give eval_every=, too"):
        resolve(ExperimentConfig, {"stop_score": 475})
    assert resolve(ExperimentConfig, {"stop_score": 475, "eval_every": 10}).stop_score == 475


def test_the_base_fields_and_their_defaults():
    defaults: dict[str, Any] = to_dict(ExperimentConfig())
    assert defaults == {"seed": 0, "total_steps": 100_000, "n_agents": 1, "driver": "cooperative", "workers": to_dict(Workers()),
                        "run_dir": "", "device": "cpu",
                        "checkpoint_every": 0, "checkpoint_buffers": True, "keep_checkpoints": 5,
                        "metrics_every": 1_000, "log_every_s": 10.0,
                        "eval_episodes": 0, "eval_every": 0, "eval_process": False, "stop_score": None,
                        "eval_score": "", "torch_threads": 1,
                        "tensorboard": True, "trace": False}


def test_layers_stay_as_they_were_given():
    layer = {"net": {"hidden": [1]}, "net.activation": "relu"}
    assert resolve(Config, layer).net == Net(hidden=(1,), activation="relu")
    assert layer == {"net": {"hidden": [1]}, "net.activation": "relu"}


@pytest.mark.parametrize("text", ["x: [" + "0," * 200_000 + "0]", "x: {" + ",".join(f"k{i}: 0" for i in range(60_000)) + "}"],
                         ids=["list", "dict"])  # else a name is a million letters
def test_values_without_end_are_refused_before_they_are_read(text):
    """A million bytes of YAML take half a minute."""
    with pytest.raises(ConfigError, match="over 20000 values"):
        load_yaml(text)


@pytest.mark.parametrize("expected", [int, dict, list[int], Literal["a", "b"]])
def test_a_text_that_is_no_unicode_is_refused_by_key(expected):
    with pytest.raises(ConfigError, match=r"key 'k' expects text in UTF-8"):
        fit("\ud800", expected, "Config", "k")
