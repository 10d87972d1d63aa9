"""What a robot is built of, by name: which settings there are, who wins, what is refused, and that a run keeps them all."""

import dataclasses
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import Continuous_MountainCarEnv
from numpy.typing import NDArray
from recorded_rows import small_data

from parl_like import EpisodicHelper, OfflineHelper, OffPolicyHelper, ReplayBuffer, Robot
from parl_like.algorithms import DQN
from parl_like.data.buffers.prioritized import PrioritizedReplayBuffer
from parl_like.data.datasets import from_arrays
from parl_like.drivers.ray.cluster import Ray
from parl_like.drivers.workers.processes import Processes
from parl_like.envs.wrappers import ActionRepeat
from parl_like.lab import experiment as experiments
from parl_like.lab import runner
from parl_like.lab.cli import main
from parl_like.lab.config import Workers, ends_with, parse_assignments, resolve
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.yaml_text import ConfigError, UsageError, load_yaml
from parl_like.learning.explorers import EpsilonGreedy
from parl_like.learning.schedule import Exponential, Linear
from parl_like.robots import auxiliary, hierarchy, single
from parl_like.robots.arguments import arguments_of


def robot(*words, **layer):
    return single.build(resolve(single.Config, {"algorithm": "DQN", **layer}, parse_assignments(words)))


def test_a_key_is_an_end_of_a_name_or_a_part_of_its_mapping():
    name = "robot.tasks.RL.DQN.lr"
    assert [ends_with(name, key) for key in (name, "DQN.lr", "lr", "lr.end", "RL.DQN.lr.end", "r", "PPO.lr", "DQN")] == [
        "", "", "", "end", "end", None, None, None]


def test_every_part_takes_its_arguments():
    words = ("DQN.tau=0.01", "OffPolicyHelper.batch_size=128", "robot.tasks.RL.DQN.lr=1e-4", "hidden=[8]", "mode=async",
             "max_skips=3", "explorer=EpsilonGreedy", "EpsilonGreedy.random_ties=true", "alpha=0.5",
             "buffer=PrioritizedReplayBuffer",
             "transforms=[RewardScaling]", "RewardScaling.scale=0.1",
             "env.wrappers=[NoisyObservation]", "NoisyObservation.n=3")
    with robot(*words) as one:
        task, helper = one.tasks["RL"], one.agents[0].helpers["RL"]
        assert (task.algorithm.tau, task.algorithm.lr, task.max_skips, one.sync) == (0.01, 1e-4, 3, False)
        assert helper.batch_size == 128 and isinstance(helper.explorer, EpsilonGreedy) and helper.explorer.random_ties
        assert isinstance(one.buffers["RL"], PrioritizedReplayBuffer) and one.buffers["RL"].alpha == 0.5
        assert [t.scale for t in helper.transforms] == [0.1]
        assert task.algorithm.model.obs_space.shape == (7,)
        assert helper.explorer is not one.agents[1].helpers["RL"].explorer


@pytest.mark.parametrize(("words", "model", "shape"), [
    (["transforms=[FrameStacker]", "FrameStacker.stack=3"], "MLPQ", (3, 4)),
    (["algorithm=PPO", "transforms=[FrameStacker, ObservationNormalizer]", "stack=2", "unroll=16"], "MLPActorCritic", (2, 4)),
    (["env=MinAtar-v0", "transforms=[ImageScale]", "ConvQ.hidden=[8]"], "ConvQ", (10, 10, 4)),
])
def test_a_network_is_made_for_what_the_transforms_give(words, model, shape):
    with robot(*words) as one:
        network = one.tasks["RL"].algorithm.model
        assert type(network).__name__ == model and network.obs_space.shape == shape
        one.run(16 * len(one.agents))
        assert len(one.evaluate(1).returns) == 1


@pytest.mark.parametrize("words", [(), ("SquashedGaussian.shape=1",)])
def test_an_explorer_has_the_shape_of_the_actions(words):
    with robot("explorer=SquashedGaussian", "correlation=0.5", *words, algorithm="SAC", env="Pendulum-v1") as one:
        assert one.agents[0].helpers["RL"].explorer.shape == (1,)
    with pytest.raises(ConfigError, match="Gaussian.shape is needed"):
        robot("explorer=Gaussian")


@pytest.mark.parametrize(("wrapper", "words", "attributes"), [
    ("RescaleAction", ["RescaleAction.min_action=-3", "max_action=3.5"], {"action_space": gym.spaces.Box(-3, 3.5, (1,))}),
    ("RescaleAction", ["min_action=[-3]", "max_action=[3.5]"], {"action_space": gym.spaces.Box(-3, 3.5, (1,))}),
    ("RescaleObservation", ["min_obs=[0, 0, 1]", "max_obs=[2, 2, 3]"],
     {"observation_space": gym.spaces.Box(np.float32([0, 0, 1]), np.float32([2, 2, 3]))}),
    ("ClipReward", ["min_reward=-1", "ClipReward.max_reward=0.5"], {}),
    ("NormalizeReward", ["NormalizeReward.gamma=0.25", "epsilon=1e-3"], {"gamma": 0.25, "epsilon": 1e-3}),
    ("DelayObservation", ["DelayObservation.delay=2"], {"delay": 2}),
], ids=str)
def test_wrappers_of_gymnasium_take_numbers_and_lists_of_them(wrapper, words, attributes):
    with robot(f"env.wrappers=[{wrapper}]", *words, algorithm="TD3", env="Pendulum-v1", n_agents=1, warmup=8) as one:
        env = one.agents[0].env
        for name, value in attributes.items():
            assert getattr(env, name) == value, name
        one.run(4)


class Numbers(gym.Wrapper):
    def __init__(self, env, plain, half: np.float32, table: NDArray[np.int32] | None, count: np.integer = 3) -> None:  # noqa: ANN001
        super().__init__(env)
        self.given = plain, half, table, count


def test_numbers_become_what_the_annotation_says():
    with robot(f"env.wrappers=[{__name__}:Numbers]", "plain=x", "half=1", "table=[[1, 2], [3, 4]]", "Numbers.count=4") as one:
        plain, half, table, count = one.agents[0].env.given
        assert (plain, half, count) == ("x", 1.0, 4) and isinstance(half, np.float32) and isinstance(count, np.int64)
        assert table.dtype == np.int32 and table.tolist() == [[1, 2], [3, 4]]
        assert one.parts.complete()["robot.env.Numbers.table"] == [[1, 2], [3, 4]]


@pytest.mark.parametrize(("words", "message"), [
    (["min_action=x", "max_action=1"], r"key 'min_action' expects `int \| float \| array`, got 'x'"),
    (["min_action=[[1], [1, 2]]", "max_action=1"], r"key 'min_action' expects numbers in lists of one length, got \[\[1"),
    (["min_action=[a]", "max_action=1"], r"key 'min_action' expects numbers in lists of one length, got \[a\]"),
    (["min_action=0"], "RescaleAction.max_action is needed: float | int | list of numbers"),
    (["env.wrappers=[TransformReward]"], r"TransformReward is not built from a configuration: TransformReward.func takes "
     "Callable.*, which is given in Python only: .*; elsewhere name a class of your own that gives it, written module:Name"),
    (["env.wrappers=[NormalizeObservation]", "NormalizeObservation.moments=5"],
     "key 'NormalizeObservation.moments': NormalizeObservation.moments takes .*Moments | None, which is given in Python only"),
])
def test_what_is_no_number_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        robot("env.wrappers=[RescaleAction]", *words, algorithm="TD3", env="Pendulum-v1")


@pytest.mark.parametrize(("words", "message"), [
    (["algorithm=dqn"], "no Algorithm 'dqn'; did you mean 'DQN'"),
    (["explorer=epsilongreedy"], "no Explorer 'epsilongreedy'; did you mean 'EpsilonGreedy'"),
    (["algorithm=parl_like.models:MLPQ"], "no Algorithm 'parl_like.models:MLPQ'; what has this name is no class made from A"),
    (["env.wrappers=[gymnasium:make]"], "no Wrapper 'gymnasium:make'; what has this name is no class made from Wrapper"),
    (["env.wrappers=TimeLimit"], r"key 'env.wrappers' expects a list, written \[a, b\], got 'TimeLimit' \(str\)"),
    (["training_rule.max_row=64"], "Config has no key 'training_rule.max_row'; did you mean 'max_rows'"),
    (["predict_rule={max_rows: 64, wait: 1}"], "Config has no key 'predict_rule.*wait'; did you mean 'max_wait'"),
    (["training_rule.max_rows=x"], r"key 'training_rule.max_rows' expects `int \| null`, got .*'x'"),
    (["env.options=3"], r"key 'env.options' expects a mapping, written \{key: value\}, got 3 \(int\)"),
    (["transforms=RewardScaling"], r"key 'transforms' expects a list, written \[a, b\], got 'RewardScaling' \(str\)"),
])
def test_what_is_no_such_part_or_no_list_is_told_how_it_is_written(words, message):
    with pytest.raises(ConfigError, match=message):
        robot(*words)


@pytest.mark.parametrize(("words", "said"), [
    (["warmup=500"], "task 'RL' has its first update after 500 rows (warmup, batch_size)"),
    (["batch_size=400", "warmup=4"], "task 'RL' has its first update after 400 rows (warmup, batch_size)"),
    (["algorithm=PPO", "unroll=16", "n_agents=5", "env.vector=4"], "after 320 rows (unroll × environments)"),
    (["warmup=300"], ""), (["algorithm=PPO", "unroll=15", "n_agents=5", "env.vector=4"], ""),
])
def test_a_run_that_ends_before_its_first_update_is_told_at_build(words, said):
    with robot("total_steps=300", *words) as one:
        assert len(one.notes) == bool(said)
        assert not said or one.notes[0].startswith("total_steps is 300, and ") and said in one.notes[0]


def test_a_schedule_with_other_parts_is_refused():
    with pytest.raises(ConfigError, match=r"expects float \| .*\{start, end, share\}, got"):
        robot("epsilon={start: 1, end: 0, duration: 9}")


def test_schedules_end_with_the_run():
    """50,000 steps, an update every 2: 25,000 updates; 8 agents: 6,250 acts each, of which ε takes a fifth."""
    with robot("lr={start: 1e-3, end: 1e-4}") as one:
        algorithm = one.tasks["RL"].algorithm
        assert algorithm.lr == Linear(1e-3, 1e-4, 25_000) and algorithm.epsilon == Linear(1.0, 0.05, 1_250)
    with robot("algorithm=PPO", "n_agents=4", "unroll=50", "epochs=2", "minibatches=4", "total_steps=2000", "lr.end=0") as one:
        assert one.tasks["RL"].algorithm.lr == Linear(3e-4, 0.0, 80)
    # The same 10 updates of 200 rows, in minibatches of 60 rows, of which there are 3.
    with robot("algorithm=PPO", "n_agents=4", "unroll=50", "epochs=2", "minibatch_rows=60", "total_steps=2000",
               "lr.end=0") as one:
        assert one.tasks["RL"].algorithm.lr == Linear(3e-4, 0.0, 60)


def test_schedules_end_with_a_run_on_recorded_rows():
    """Each of its steps is an update, however often agents would learn; two agents take turns."""
    for more in ("n_agents=1", "n_agents=2", "learn_every=8"):
        with robot("algorithm=BC", "env=CartPole-v1", "helper=OfflineHelper", f"data={small_data('CartPole-v1')}",
                   "total_steps=40", "batch_size=16", "lr={start: 1e-3, end: 0}", more) as one:
            algorithm = one.tasks["RL"].algorithm
            assert algorithm.lr == Linear(1e-3, 0.0, 40)
            for _ in one.iterate(40):
                pass
            assert algorithm.updates == 40


def test_a_schedule_may_be_exponential():
    with robot("epsilon={start: 1.0, end: 0.01, decay: 500}", "lr={start: 1e-3, end: 0, decay: 40, warmup: 7}") as one:
        algorithm = one.tasks["RL"].algorithm
        assert algorithm.epsilon == Exponential(1.0, 0.01, 500) and algorithm.lr == Exponential(1e-3, 0.0, 40, warmup=7)
        assert algorithm.epsilon(500) == pytest.approx(0.01 + 0.99 / np.e)
    with robot("algorithm=REINFORCE", "lr={start: 1, end: 0, decay: 9}", env="CartPole-v1") as one:
        assert one.tasks["RL"].algorithm.lr == Exponential(1.0, 0.0, 9)
    for given in ("decay: -1", "decay: 5, steps: 9"):
        with pytest.raises(ConfigError, match="DQN.epsilon has decay .*expected {start, end, decay} with a decay above 0, or"):
            robot(f"epsilon={{start: 1, end: 0, {given}}}")


@pytest.mark.parametrize("words", [
    ["algorithm=PPO", "minibatch_rows=20"], ["algorithm=APPO", "training_rule={max_rows: 32}", "minibatches=2"],
    ["algorithm=PPG", "policy_updates=3", "aux_epochs=2", "aux_minibatches=5"], ["algorithm=VMPO"], ["algorithm=TRPO"],
], ids=lambda words: words[0])
def test_the_rate_of_unrolls_is_at_its_end_when_the_run_is(words):
    """Auxiliary phases of PPG, minibatches of so many rows, and updates of some of the agents take steps, too."""
    with robot(*words, "n_agents=4", "unroll=16", "total_steps=640", "lr.start=1e-3", "lr.end=0", env="CartPole-v1") as one:
        one.run(640)
        algorithm = one.tasks["RL"].algorithm
        assert algorithm.lr.steps == algorithm.updates


@pytest.mark.parametrize(("words", "name"), [(["algorithm=REINFORCE", "lr.end=0"], "REINFORCE.lr"),
                                             (["algorithm=CEM", "extra={start: 1, end: 0, share: 0.5}"], "CEM.extra")])
def test_a_schedule_over_updates_of_whole_episodes_needs_their_number(words, name):
    """Before, it spanned as many updates as there are steps, and hardly moved."""
    with pytest.raises(ConfigError, match=f"{name} .*depends on how long its episodes are; say how many.*steps: N"):
        robot(*words, env="CartPole-v1")
    with robot(*words, f"{name}.steps=7", env="CartPole-v1") as one:
        assert getattr(one.tasks["RL"].algorithm, name.partition(".")[2]).steps == 7


def test_the_last_one_counts_and_the_robot_says_so():
    with robot("DQN.lr=0.5", "robot.tasks.RL.DQN.gamma=0.5", lr=0.1, gamma=0.1) as one:
        algorithm = one.tasks["RL"].algorithm
        assert algorithm.lr == 0.5 and algorithm.discounts[1] == 0.5
        assert "lr: 0.5  # float | {start, end, share}; default 0.001; given as DQN.lr" in one.parts.describe()
        assert one.notes == ["DQN.gamma is 0.5, as 'robot.tasks.RL.DQN.gamma' says; 'gamma', which came before, does not count",
                             "DQN.lr is 0.5, as 'DQN.lr' says; 'lr', which came before, does not count"]
    with robot("lr.end=0", "lr.start=0.1") as one:
        assert one.notes == [], "parts of one value"
    with robot("DQN.n_step=1", "lr=0.1", "DQN.lr=0.2", "env.vector=2", "seed=1", "env.id=Acrobot-v1") as one:
        assert one.notes == ["DQN.lr is 0.2, as 'DQN.lr' says; 'lr', which came before, does not count"]
        assert one.tasks["RL"].algorithm.model.obs_space.shape == (6,) and one.agents[0].env.num_envs == 2
    with robot("lr=0.1", "DQN.lr=0.2", "lr=0.3") as one:
        assert one.notes == ["DQN.lr is 0.3, as 'lr' says; 'DQN.lr', which came before, does not count"]
    with robot("lr.end=0", "DQN.lr=0.5") as one:
        assert one.notes == ["DQN.lr is 0.5, as 'DQN.lr' says; 'lr.end', which came before, does not count"]


@pytest.mark.parametrize(("words", "message"), [
    (["taw=1"], "no key 'taw'.*did you mean 'tau'"), (["PPO.clip=0.1"], "no key 'PPO.clip': it is a setting of PPO, which"),
    (["algorithm=PPO", "n_step=3"], r"no key .n_step.: it is a setting of BCQ, BDQ, BasicDQN and \d+ more, which this robot"),
    (["unroll=8"], "no key .unroll.: it is a setting of .*OnPolicyHelper and .* not built of; an "
     "experiment's own settings count, too, so begin with"),
    (["sed=1"], "no key 'sed'.*did you mean 'seed'"),
    (["tau=x"], "key 'tau' expects .*got 'x'"), (["hidden=[8, x]"], "key 'hidden"),
    (["batch_size=1.5"], "key 'batch_size' expects"),
    (["lr=x"], r"key 'lr' expects float \| \{start, end, share\}, got 'x'"),
    (["buffer=PrioritisedReplayBuffer"], "no ReplayBuffer .*did you mean 'PrioritizedReplayBuffer'"),
    (["algorithm=DQQN"], "no Algorithm 'DQQN'; did you mean 'DQN'"), (["model=MLPP"], "no Model 'MLPP'; did you mean 'MLP"),
    (["env.wrappers=[NoisyObservation]"], "NoisyObservation.n is needed: int"), (["lr={start: 1}"], "key 'lr"),
])
def test_what_does_not_fit_is_refused_before_anything_runs(words, message):
    with pytest.raises(ConfigError, match=message):
        robot(*words)


def test_what_several_parts_have_needs_more_of_its_name():
    with pytest.raises(ConfigError, match=r"'batch_size' may be 'robot.tasks.RL.OffPolicyHelper.batch_size' or "
                                          r"'robot.tasks.auxiliary.OffPolicyHelper.batch_size'"):
        auxiliary.build(resolve(auxiliary.Config, {"batch_size": 8}))
    pytest.importorskip("minigrid")
    with hierarchy.build(resolve(hierarchy.Config, {"goal.PPO.lr": 0.5, "RL.PPO.lr": 0.25})) as one:
        assert [one.tasks[name].algorithm.lr for name in ("goal", "RL")] == [0.5, 0.25]


@pytest.mark.parametrize("name", ["SAC", "TD3", "DDPG", "REDQ", "DroQ", "TQC", "QRSAC", "CrossQ", "OAC"])
def test_the_off_policy_actors_learn_on_another_environment(name):
    layer = {"algorithm": name, "model": "MLP", "hidden": [8], "warmup": 32, "batch_size": 32, "updates": 1,
             **({"critic_hidden": [8]} if name == "CrossQ" else {}),
             "env": {"id": "MountainCarContinuous-v0", "vector": 2, "options": {"goal_velocity": 0.01}}}
    with robot(**layer) as one:
        one.run(80)
        assert one.tasks["RL"].algorithm.updates >= 40 and one.never_learned() == {}
        assert isinstance(one.tasks["RL"].algorithm.model.act_space, gym.spaces.Box)


def test_a_run_keeps_every_setting_and_is_rebuilt_from_these_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = "train dqn-cartpole run_dir=run total_steps=200 n_agents=2 eval_episodes=1 tensorboard=false tau=0.125 warmup=100"
    assert main([*words.split(), "checkpoint_every=100"]) == 0
    kept = RunDir.open("run").config()
    assert kept["robot"]["tasks"]["RL"]["DQN"]["tau"] == 0.125 and kept["robot"]["tasks"]["RL"]["ReplayBuffer"]["stack_num"] == 1
    assert RunDir.open("run").info().differs == {
        "total_steps": 200, "n_agents": 2, "eval_episodes": 1, "tensorboard": False, "checkpoint_every": 100,
        "DQN.tau": 0.125, "OffPolicyHelper.warmup": 100}
    monkeypatch.setitem(single.DEFAULTS, "DQN", {**single.DEFAULTS["DQN"], "DQN.target_period": 1})  # a later version differs
    with runner.load_run("run", tau=0.125) as one:
        assert one.tasks["RL"].algorithm.target_period == 200 and one.tasks["RL"].algorithm.tau == 0.125
    with pytest.raises(UsageError, match="a run keeps its configuration: 'tau' is 0.125 there and 0.5 now"):
        runner.load_run("run", tau=0.5)
    (tmp_path / "run" / "config.yaml").write_text("total_steps: 200\nlr_decay: 0.9\n")
    with pytest.raises(UsageError, match=r"config.yaml has lr_decay, but no `robot`"):
        runner.load_run("run")


def test_show_config_prints_what_another_run_takes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = "train sac-pendulum --show-config alpha=0.1 env.id=MountainCarContinuous-v0 model=MLP hidden=[32,32]"
    assert main(words.split()) == 0
    shown = capsys.readouterr().out
    assert "    alpha: 0.1  # float; default 1.0; given as alpha" in shown and "SAC:  # parl_like.algorithms.sac" in shown
    one = experiments.get("sac-pendulum")
    with single.build(resolve(single.Config, one.config, load_yaml(shown))) as again:
        assert again.tasks["RL"].algorithm.model.body.out_size == 32


@pytest.mark.parametrize("name", ["EpisodicHelper", "OfflineHelper", "MyHelper"])
def test_what_a_class_gives_the_next_one_itself_is_no_setting(name):
    """For every helper: what is listed can be given."""
    owner = {"EpisodicHelper": EpisodicHelper, "OfflineHelper": OfflineHelper, "MyHelper": MyHelper}[name]
    rows = ReplayBuffer(100)
    listed = arguments_of(owner)
    fixed = {"EpisodicHelper": "unroll", "OfflineHelper": "size", "MyHelper": "batch_size"}[name]
    assert fixed not in listed and "transforms" in listed
    for key, parameter in listed.items():
        data = {"data": filled(rows)} if name == "OfflineHelper" else {}
        default = parameter.default if parameter.default is not parameter.empty else data[key]
        owner(**{**data, key: default})


class MyHelper(OffPolicyHelper):
    given_on = ("batch_size",)

    def __init__(self, *, rows=8, **options):
        super().__init__(batch_size=rows, **options)


class Unsaid(OffPolicyHelper):
    def __init__(self, *, rows=8, **options):
        super().__init__(batch_size=rows, **options)


def test_an_option_that_a_constructor_gives_itself_is_refused_with_the_declaration():
    assert "batch_size" in arguments_of(Unsaid) and "batch_size" not in arguments_of(MyHelper)
    for kind in (Unsaid, MyHelper):
        with pytest.raises(TypeError, match=rf"{kind.__name__}: batch_size cannot be set.*given_on = \('batch_size',\)"):
            kind(batch_size=4)


class Untyped(DQN):
    def __init__(self, model, bonus=0.0, table=(), call=len, calls={"a": len}, path: Path = "", some: Any = 1,  # noqa: B006
                 made: Any = print, needed: Any = ..., later: "Nowhere" = 2, **options):  # noqa: F821
        super().__init__(model, **options)
        self.bonus, self.table, self.some = bonus, table, some


@pytest.mark.parametrize("value", [0.5, "x", True, None, [1, "a"], {"a": [1]}])
def test_an_argument_without_an_annotation_takes_any_plain_value(value):
    """Where its default is plain data: what has a callable may not be given one by a name."""
    name = f"{__name__}:Untyped"
    with robot(f"algorithm={name}", **{"bonus": value, "Untyped.table": value}) as one:
        algorithm = one.tasks["RL"].algorithm
        assert (algorithm.bonus, algorithm.table, algorithm.some) == (value, value, 1)
        ours = {key.rpartition(".")[2] for key, setting in one.parts.settings.items() if setting.owner is Untyped}
    with robot() as one:
        assert ours - {key.rpartition(".")[2] for key in one.parts.settings} == {"bonus", "table", "some"}
    with pytest.raises(ConfigError, match="key 'Untyped.call': Untyped.call takes an object, which is given in Python only"):
        robot(f"algorithm={name}", "Untyped.call=print")


def filled(buffer, n=80):
    """Rows of CartPole, whose action says where the pole leans."""
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, (n, 4)).astype(np.float32)
    return from_arrays(obs=obs, act=(obs[:, 2] > 0).astype(np.int64), rew=np.zeros(n), terminated=np.ones(n, bool),
                       truncated=np.zeros(n, bool), obs_next=obs)


def test_recorded_rows_are_given_by_their_path(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    filled(None).save("rows")
    monkeypatch.setattr(experiments, "_registered", {})
    config = dict(algorithm="BC", helper="OfflineHelper", batch_size=16, total_steps=60, hidden=[16], lr=0.02, eval_episodes=2,
                  tensorboard=False, metrics_every=20)
    experiments.register(experiments.Experiment(name="cloned", robot="single", config=config))
    assert main(["train", "cloned", "data=rows", "run_dir=run"]) == 0
    said = "".join(capsys.readouterr())
    assert re.search(r"task 'RL' learned: 60 updates, 960 rows, loss 0\.\d+", said)
    assert "learning curve: run/plots/learning_curve.png" in said and "no value" not in said
    assert main(["plot", "run"]) == 2
    assert "'return/mean' has no value yet; train for longer, or draw another, such as --metric RL/" in capsys.readouterr().err
    with runner.load_run("run") as one:
        assert one.tasks["RL"].algorithm.updates == 60 and one.env_steps == 60, "an update is a step: nobody acts"
        obs = filled(None).columns["obs"][:20]
        assert (one.act(obs) == (obs[:, 2] > 0)).mean() > 0.9
    capsys.readouterr()
    assert main(["train", "cloned", "data=rows", "run_dir=short", "total_steps=5"]) == 0
    assert "first update" not in "".join(capsys.readouterr()), "the rows are there"
    for words, message in ((["data=none"], "'none'; expected a directory"), (["data=rows.h5"], "expected a directory"),
                           ([], "data is needed: str")):
        assert main(["train", "cloned", *words]) == 2
        assert message in capsys.readouterr().err


def test_an_evaluation_has_an_environment_of_its_own():
    """As far as it is said; the rest is as in training."""
    words = ("env.id=MountainCarContinuous-v0", "algorithm=SAC", "env.options={goal_velocity: 0.01}",
             "env.wrappers=[ActionRepeat]", "ActionRepeat.n=2")
    with robot(*words) as one:
        assert one.eval_env is None
    with robot(*words, "eval_env.options={render_mode: rgb_array}") as one, closing(one.eval_env()) as env:
        assert isinstance(env, ActionRepeat)
        assert env.unwrapped.goal_velocity == 0.01 and env.unwrapped.render_mode == "rgb_array"
    words += ("eval_env.wrappers=[]", "eval_env.options={goal_velocity: 0.02}")
    with robot(*words) as one, closing(one.eval_env()) as env:
        assert not isinstance(env, ActionRepeat) and env.unwrapped.goal_velocity == 0.02
    with robot("eval_env=CartPole-v0") as one:
        assert one.eval_env == "CartPole-v0"
    gym.register("Hill-v0", entry_point=Continuous_MountainCarEnv)
    with robot(*words[:-1], "eval_env.id=Hill-v0", "eval_env.options={render_mode: rgb_array}") as one:
        with closing(one.eval_env()) as env:
            assert env.unwrapped.render_mode == "rgb_array" and env.unwrapped.goal_velocity == 0
    del gym.registry["Hill-v0"]
    for given in ("CartPole-v0", {"id": "CartPole-v0"}, lambda: gym.make("CartPole-v0")):
        with Robot.of("DQN", "CartPole-v1", eval_env=given) as one:
            assert one.eval_env == (given if callable(given) else "CartPole-v0")


@pytest.mark.parametrize(("words", "message"), [
    (["env=Kettle-v0"], "key 'env': Environment `Kettle` doesn't exist. One of your own is written module:ID"),
    (["eval_env=CartPole-v9"], "key 'eval_env': Environment version `v9` for environment `CartPole` doesn't exist"),
    (["eval_env=Acrobot-v1"], r"key 'eval_env': its observations are Box\(.*\(6,\), float32\), in training Box\(.*\(4,\), "),
    (["eval_env.wrappers=[NoisyObservation]", "NoisyObservation.n=2"], "key 'eval_env': its observations are .* need the same")])
def test_an_environment_that_cannot_be_used_is_refused_before_training(words, message):
    with pytest.raises(ConfigError, match=message):
        robot(*words)


@pytest.mark.parametrize("words, id, options", [
    (["env=CartPole-v1"], "CartPole-v1", {}),
    (["env.id=CartPole-v1"], "CartPole-v1", {}),
    (["env.id=CartPole-v1", "env.options={sutton_barto_reward: true}"], "CartPole-v1", {"sutton_barto_reward": True}),
    (["env=Pendulum-v1"], "Pendulum-v1", {"g": 9.0}),
    (["env.wrappers=[NoisyObservation]"], "Pendulum-v1", {"g": 9.0})])
def test_the_options_of_one_environment_are_not_given_to_another(words, id, options, caplog):
    file = {"env": {"id": "Pendulum-v1", "options": {"g": 9.0}, "vector": 2}}
    env = resolve(single.Config, file, parse_assignments(words)).env
    assert (env.id, env.options, env.vector) == (id, options, 2)
    said = "Config: env.id is CartPole-v1 now, so env.options of the one before does not count: {g: 9.0}"
    assert [one.getMessage() for one in caplog.records] == ([] if options else [said])
    caplog.clear()
    same = resolve(single.Config, {"env.options": {"a": 1}}, {"env": "CartPole-v1"}).env
    assert same.options == {"a": 1} and not caplog.records


def test_every_option_of_a_driver_can_be_given(caplog):
    names = {field.name for field in dataclasses.fields(Ray) if field.init}
    assert {"count" if name == "workers" else name for name in names} == set(Workers.__struct_fields__)
    layer = {"count": 2, "start_limit": 1.0, "step_limit": 2.0, "max_restarts": 3, "period": 4.0, "agent_restarts": 5}
    same = {"workers": 2, **{name: value for name, value in layer.items() if name != "count"}}
    assert resolve(single.Config, {"driver": "processes", "workers": {**layer, "memory_limit": 6}}).robot_driver() == Processes(
        **same, memory_limit=6)
    ray = {"num_cpus": 0.5, "tasks": {"RL": {"num_gpus": 1}}, "address": "auto"}
    assert resolve(single.Config, {"driver": "ray", "workers": {**layer, **ray}}).robot_driver() == Ray(**same, **ray)
    assert resolve(single.Config, {"driver": "processes"}).robot_driver() == Processes()
    with pytest.raises(ConfigError, match="workers.address, workers.num_cpus, workers.tasks: options of driver=ray; driver is"):
        resolve(single.Config, {"driver": "processes", "workers": ray}).robot_driver()
    # No error: who looks at a run under another driver should not have to take these out.
    assert resolve(single.Config, {"workers": {"count": 2, "step_limit": 3.0}}).robot_driver() == "cooperative"
    assert "workers.count, workers.step_limit: options of driver=processes and driver=ray, without effect" in caplog.text
