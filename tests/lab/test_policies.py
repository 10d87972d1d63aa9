"""Exported policies: they act as the robot does, remember as it does, and what is not exactly what was written is refused."""

import inspect
import json
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from policy_cases import CASES, NUMBERS, Steps, robot_of

from parl_like import Agent, AgentHelper, ComputationTask, Policy, Robot, VectorAgent, create_algorithm_func
from parl_like.algorithms import A2C, DQN
from parl_like.data.storage.archive import read_archive, write_archive
from parl_like.data.storage.tree_encoding import ArchiveError
from parl_like.data.transforms import FunctionalReward, ObservationNormalizer
from parl_like.lab import experiment as experiments
from parl_like.lab.cli import main
from parl_like.lab.config import resolve
from parl_like.lab.policies import graph, policy_files
from parl_like.lab.policies.computing import GraphComputation, PolicyParts
from parl_like.lab.policies.description import Description
from parl_like.lab.policies.exporting import write
from parl_like.lab.policies.parts import NotExported, built, described, space_tree
from parl_like.lab.recording import played_by
from parl_like.learning import explorers
from parl_like.learning.explorers import EpsilonGreedy, Explorer
from parl_like.learning.schedule import Linear
from parl_like.models import MLPQ
from parl_like.values.spec import SpecError, leaves

QUICK = ("MLP, one choice", "masks in a Dict", "squashed Gaussian", "Dict observations and actions", "recurrent",
         "attention over the past", "frames, normaliser", "a table")
GRAPHS = ("MLP, one choice", "squashed Gaussian", "CNN", "recurrent", "masks in a Dict", "Dict observations and actions")
ALL = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
ALL_GRAPHS = [pytest.param(name, marks=() if name in GRAPHS else pytest.mark.slow) for name in CASES]


def acts_as(robot, policy, near=0.0):
    """Holds a policy against what the robot does in two episodes."""
    for episode in played_by(robot, 2, 5):
        policy.reset()
        for i in range(len(episode.rewards)):
            obs = _row(episode.observations, i)
            act = policy(_as(policy.observation_space, obs))
            assert policy.action_space.contains(act)
            expected = dict(leaves(_row(episode.actions, i), "act"))
            for name, value in leaves(act, "act"):
                assert np.shape(value) == expected[name].shape
                assert np.allclose(value, expected[name], atol=near, rtol=near), (name, i)
            policy.earned(episode.rewards[i])


def _row(tree, i):
    return {key: _row(value, i) for key, value in tree.items()} if isinstance(tree, dict) else tree[i]


def _as(space, tree):
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_as(part, tree[str(i)]) for i, part in enumerate(space.spaces))
    return {key: _as(part, tree[key]) for key, part in space.spaces.items()} if isinstance(space, gym.spaces.Dict) else tree


def many(space, n):
    """n stacked observations."""
    rows = [dict(leaves(space.sample(), "obs")) for _ in range(n)]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("name", ALL)
def test_a_policy_of_weights_acts_as_its_robot(name, tmp_path):
    with robot_of(name) as robot:
        write(robot, tmp_path / "policy")
        acts_as(robot, Policy.load(tmp_path / "policy"))


@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_a_graph_acts_as_its_robot(name, tmp_path):
    pytest.importorskip("onnxruntime")
    with robot_of(name) as robot:
        found = write(robot, tmp_path / "policy", "onnx")
        policy = Policy.load(tmp_path / "policy")
        acts_as(robot, policy, 1e-4)
    assert bool(found.state) == policy.remembers


@pytest.mark.slow  # eight graphs
@pytest.mark.parametrize("name", ["vdn-twostep", "qmix-twostep", "maddpg-speaker", "mappo-spread"])
def test_policies_of_teams_act_as_their_robots(name, tmp_path):
    for package in ("onnxruntime", "mpe2"):
        pytest.importorskip(package)
    experiment = experiments.get(name)
    module = experiment.module()
    with module.build(resolve(module.Config, experiment.config, {"n_agents": 1, "total_steps": 400})) as robot:
        robot.run(200)
        for to in ("safetensors", "onnx"):
            write(robot, tmp_path / to, to)
            policy = Policy.load(tmp_path / to)
            for _ in range(9):
                obs = policy.observation_space.sample()
                assert np.allclose(robot.act(obs), policy(obs), atol=1e-4)


def test_a_graph_that_cannot_draw_says_so(tmp_path, monkeypatch):
    """Its network explores itself, or must be told what was drawn: nothing is greedy without a word."""
    monkeypatch.setattr(graph, "exported", lambda task, explorer, transforms, obs, description: graph.Exported(b"", description))
    for name, draws in (("several heads", False), ("dueling with noise in the weights", False), ("masks in a Dict", True)):
        with robot_of(name) as robot:
            write(robot, tmp_path / name, "onnx")
            manifest = json.loads((tmp_path / name / "manifest.json").read_text())
            assert (manifest["spaces"]["explorer"] is not None) is draws, name
            robot.eval_explore = True
            if not draws:
                with pytest.raises(NotExported, match="evaluations draw actions.*--to safetensors"):
                    write(robot, tmp_path / "other", "onnx")
            write(robot, tmp_path / "weights")
            assert Policy.load(tmp_path / "weights").drawn
            shutil.rmtree(tmp_path / "weights")

    computation = GraphComputation(None, {}, ["act"], ["q"])
    for explorer in (None, Explorer(), explorers.BootstrappedHeads(3)):
        stored = PolicyParts(Description(), NUMBERS, gym.spaces.Discrete(3), explorer, computation)
        with pytest.raises(ValueError, match="drawn=True.*--to safetensors"):
            Policy(stored, drawn=True)


def test_drawn_actions_are_those_of_a_network_that_explores(tmp_path):
    with robot_of("dueling with noise in the weights") as robot:
        for layer in robot.tasks["RL"].algorithm.noisy:
            layer.noise_in.normal_(), layer.noise_out.normal_()
            layer.weight_std.data.fill_(1.0)
        robot.wrappers["RL"].predictions.explorer.epsilon = 0.0
        write(robot, tmp_path / "policy")
        obs = many(NUMBERS, 200)
        expected = [robot.tasks["RL"].predict(obs, mode)["q"].argmax(1) + 2 for mode in ("test", "collect")]
    best, drawn = (Policy.load(tmp_path / "policy", drawn=one)(obs["obs"]) for one in (False, True))
    assert (best == expected[0]).all() and (drawn == expected[1]).all() and (best != drawn).any()


class Scaled(AgentHelper):
    """A helper whose own code changes what is asked."""

    def predict(self, obs):
        return super().predict(-obs)


def test_helpers_with_a_predict_of_their_own_are_refused(tmp_path):
    func = create_algorithm_func(MLPQ, {"obs": NUMBERS, "act": gym.spaces.Discrete(3)}, DQN, {})
    with Robot(lambda: Steps(NUMBERS, gym.spaces.Discrete(3)), tasks={"RL": ComputationTask(func, Scaled)}) as robot:
        with pytest.raises(NotExported, match="Scaled.predict is code of your own.*load_run"):
            write(robot, tmp_path / "policy")
        write(robot, tmp_path / "policy", task="RL")


def test_a_batch_is_what_its_rows_are_and_rows_begin_anew_by_themselves(tmp_path):
    with robot_of("recurrent") as robot:
        write(robot, tmp_path / "policy")
    batch, single = Policy.load(tmp_path / "policy"), [Policy.load(tmp_path / "policy") for _ in range(5)]
    for step in range(6):
        obs = many(NUMBERS, 5)["obs"]
        assert batch(obs).tolist() == [one(row) for one, row in zip(single, obs, strict=True)]
        if step == 2:
            over = np.array([True, False, False, True, False])
            batch.reset(over)
            for i in np.flatnonzero(over):
                single[i].reset()
    with pytest.raises(ValueError, match="got 3 observations, and before 5.*reset"):
        batch(obs[:3])
    with pytest.raises(ValueError, match="expected .5,., one for each"):
        batch.reset(np.ones(4, bool))
    for bad in ([5], [-1], np.ones(5, np.float32)):
        with pytest.raises(ValueError, match="expected bool.*numbers of rows below 5"):
            batch.reset(bad)
    with pytest.raises(SpecError, match="at least one row"):
        batch(obs[:0])
    batch.reset()
    assert batch(obs[:3]).shape == (3,)


def test_actions_are_drawn_by_a_seed_where_one_asks(tmp_path):
    with robot_of("masked logits") as robot:
        write(robot, tmp_path / "policy")
    obs = {"x": np.zeros((400, 3), np.float32), "mask": np.tile(np.int8([1, 0, 1, 1]), (400, 1))}
    first, again, other = (Policy.load(tmp_path / "policy", drawn=True, seed=seed)(obs) for seed in (1, 1, 2))
    assert (first == again).all() and (first != other).any()
    assert set(first.tolist()) == {2, 4, 5}, "the second action, 3, is forbidden"
    assert len(set(Policy.load(tmp_path / "policy")(obs).tolist())) == 1


def test_the_verb_writes_what_three_lines_read_without_robot_or_environment(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "dqn-cartpole", "total_steps=400", "n_agents=2", "warmup=100", "hidden=[16]", "tensorboard=false",
                 "eval_episodes=1", "run_dir=run"]) == 0
    assert main(["export", "run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["path"], said["experiment"], said["env"], said["step"]) == (
        "policies/run_safetensors", "dqn-cartpole", "CartPole-v1", 400)
    assert said["observations"][0]["shape"] == [4] and said["actions"] == [
        {"name": "act", "shape": [], "dtype": "int64", "low": 0, "high": 1}]
    shutil.rmtree("run")
    script = ("import sys, numpy as np\nfrom parl_like import Policy\npolicy = Policy.load('policies/run_safetensors')\n"
              "print(policy(np.zeros(4, np.float32)), 'parl_like.run.robot' in sys.modules, 'pickle' in vars(np))")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split()[0] in ("0", "1"), done.stderr
    assert main(["export", "run"]) == 2


class Searches(Agent):
    """An agent whose own code chooses."""

    def run_one_episode(self):
        obs, _ = self.env.reset()
        over = False
        while not over:
            obs, _, terminated, truncated, _ = self.env.step((self.helpers["RL"].predict(obs) + 1) % 3)
            over = terminated or truncated


class Plans(Agent):
    """An agent whose environment is another one, as that of Thinker is."""

    def join(self, make):
        super().join(make)


def test_what_an_agent_s_own_code_makes_is_refused_by_name_with_the_way_out(tmp_path):
    func = create_algorithm_func(MLPQ, {"obs": NUMBERS, "act": gym.spaces.Discrete(3)}, DQN, {})
    tasks = {"RL": ComputationTask(func, AgentHelper)}
    with Robot(lambda: Steps(NUMBERS, gym.spaces.Discrete(3)), tasks=tasks, agent=Searches) as robot:
        with pytest.raises(NotExported, match="Searches has code of its own, such as a search.*--task RL.*load_run"):
            write(robot, tmp_path / "policy")
        with pytest.raises(NotExported, match="'LR'"):
            write(robot, tmp_path / "policy", task="LR")
        assert write(robot, tmp_path / "policy", task="RL").task == "RL"
        robot.agents[0].__class__ = Plans
        with pytest.raises(NotExported, match="Plans has code of its own"):
            write(robot, tmp_path / "policy")
        obs = many(NUMBERS, 9)["obs"]
        assert (Policy.load(tmp_path / "policy")(obs) == robot.act(obs)).all()


@pytest.mark.slow  # each graph takes three seconds
def test_parts_without_a_name_are_refused_and_a_graph_needs_none(tmp_path):
    pytest.importorskip("onnxruntime")

    class Own(MLPQ):
        pass

    func = create_algorithm_func(Own, {"obs": NUMBERS, "act": gym.spaces.Discrete(3)}, DQN, {})
    with Robot(lambda: Steps(NUMBERS, gym.spaces.Discrete(3)), tasks={"RL": ComputationTask(func, AgentHelper)}) as robot:
        with pytest.raises(NotExported, match="Own, a class inside of a function.*--to onnx"):
            write(robot, tmp_path / "policy")
        write(robot, tmp_path / "policy", "onnx")
        obs = many(NUMBERS, 9)["obs"]
        assert (Policy.load(tmp_path / "policy")(obs) == robot.act(obs)).all()


class Halved(EpsilonGreedy):
    """Makes actions in a way of its own."""

    def act(self, out, noise):
        return {"act": out["q"].argmin(1)}


def test_an_explorer_with_a_rule_of_its_own_is_no_graph(tmp_path):
    pytest.importorskip("onnxruntime")
    func = create_algorithm_func(MLPQ, {"obs": NUMBERS, "act": gym.spaces.Discrete(3)}, DQN, {})
    tasks = {"RL": ComputationTask(func, lambda: AgentHelper(explorer=Halved()))}
    with Robot(lambda: Steps(NUMBERS, gym.spaces.Discrete(3)), tasks=tasks) as robot:
        with pytest.raises(NotExported, match="explorer Halved makes actions in NumPy.*--to safetensors"):
            write(robot, tmp_path / "policy", "onnx")
        write(robot, tmp_path / "policy")
        acts_as(robot, Policy.load(tmp_path / "policy"))


ARGS = {"n": 3, "nvec": [2, 3], "shape": (2,), "features": 4, "best": explorers.EpsilonGreedy(0.2),
        "act": gym.spaces.Dict({"a": gym.spaces.Discrete(2), "b": gym.spaces.MultiBinary(2)}),
        "parts": {"a": explorers.Categorical(), "b": explorers.Beta(2)}}
EXPLORERS = [name for name in explorers.__all__ if inspect.isclass(one := getattr(explorers, name)) and issubclass(one, Explorer)]


@pytest.mark.parametrize("name", EXPLORERS)
def test_every_explorer_can_be_written_and_built_again(name):
    kind = getattr(explorers, name)
    needed = [key for key, one in inspect.signature(kind).parameters.items() if one.default is one.empty]
    explorer = kind(**{key: ARGS[key] for key in needed})
    again = built(described(explorer, Explorer, "it"), Explorer, "file")
    assert type(again) is kind and repr(again.kind()) == repr(explorer.kind()) and again.noise == explorer.noise


def test_transforms_of_rewards_are_no_part_of_a_policy(tmp_path):
    wide = [ObservationNormalizer(), FunctionalReward(lambda rew: 2 * rew)]
    few = {"n_agents": 1, "unroll": 8, "minibatches": 1}
    with Robot.of("PPO", lambda: Steps(NUMBERS, gym.spaces.Discrete(3)), transforms=wide, **few) as robot:
        robot.run(32)
        write(robot, tmp_path / "policy")
        acts_as(robot, Policy.load(tmp_path / "policy"))


def test_schedules_of_explorers_stand_still_where_the_run_is():
    tree = described(EpsilonGreedy(Linear(1.0, 0.0, 100)), Explorer, "it", 25)
    assert built(tree, Explorer, "file").epsilon == 0.75
    inner = explorers.StructuredExplorer({"a": explorers.Noisy(2, Linear(1.0, 0.0, 100))})
    assert built(described(inner, Explorer, "it", 25), Explorer, "file").parts["a"].std == 0.75


def test_schedules_go_by_the_acts_of_one_helper_in_all_its_environments(tmp_path):
    func = create_algorithm_func(MLPQ, {"obs": NUMBERS, "act": gym.spaces.Discrete(3)}, DQN, {})
    task = ComputationTask(func, lambda: AgentHelper(explorer=EpsilonGreedy(Linear(1.0, 0.0, 100))), train=False)
    with Robot(lambda: Steps(NUMBERS, gym.spaces.Discrete(3)), tasks={"RL": task}, n_agents=2, agent=lambda: VectorAgent(3)
               ) as robot:
        robot.run(120)
        write(robot, tmp_path / "policy")
        rates = robot.agents[0].helpers["RL"].explorer.rates_now()  # three more have been asked for
    assert Policy.load(tmp_path / "policy").explorer.epsilon == pytest.approx(0.4) == rates["epsilon"] + 0.04


def test_observations_that_do_not_fit_are_refused(tmp_path):
    with robot_of("masks in a Dict") as robot:
        write(robot, tmp_path / "policy")
    policy = Policy.load(tmp_path / "policy")
    good = {"x": np.zeros(3, np.float32), "mask": np.ones(4, np.int8)}
    policy(good)
    for bad, said in (({"x": good["x"]}, "expected obs.mask, obs.x"), ({**good, "x": np.zeros(2, np.float32)}, "obs.x"),
                      ((good, {}), "obs, info = env.reset"), ({**good, "x": np.full(3, np.nan, np.float32)}, "NaN"),
                      ({"x": np.zeros((2, 3), np.float32), "mask": np.ones((3, 4), np.int8)}, "as many rows")):
        with pytest.raises(SpecError, match=re.escape(said)):
            policy(bad)


# ------------------------------------------------------------------------------------------------ hostile files


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    with robot_of("frames, normaliser") as robot:
        write(robot, folder / "policy")
    return folder / "policy"


def changed(exported, change, meta=None):
    """The same policy with a change in its tree, sealed as a writer would."""
    tree, manifest = read_archive(exported)
    change(tree["policy"])
    out = exported.with_name("changed")
    write_archive(out, tree, meta or manifest.meta)
    return out


def _weights(tree, shape):
    tree["networks"]["model"]["value_head.weight"] = torch.zeros(shape)


CHANGES = {
    "an unknown model": (lambda tree: tree["model"].update({"class": "MLPActorCritc"}), "MLPActorCritic"),
    "a class of another kind": (lambda tree: tree["model"].update({"class": "MLP"}), "a Model that is registered"),
    "somebody's own class": (lambda tree: tree["algorithm"].update({"class": "evil.module:Own"}), "import evil.module first"),
    "a function that is loaded": (lambda tree: tree["model"].update({"class": "os:system"}), "nothing is imported"),
    "an argument that there is not": (lambda tree: tree["model"]["args"].update(depth=3), "depth"),
    "a huge network": (lambda tree: tree["model"]["args"].update(hidden={"$kind": "list", "value": [10**6, 10**6]}), "at most"),
    "a huge space": (lambda tree: tree["obs"].update(shape=[10**9]), "at most 64 MiB"),
    "a space of no kind": (lambda tree: tree["obs"].update(space="Graph"), "expected a space of"),
    "weights of another shape": (lambda tree: _weights(tree, (3, 3)), r"value_head.weight of \(1, 64\)"),
    "weights that are no numbers": (lambda tree: tree["networks"]["model"].update(
        {"value_head.weight": torch.full((1, 64), torch.nan)}), "finite numbers"),
    "weights that are missing": (lambda tree: tree["networks"]["model"].pop("value_head.weight"), "weights of MLPActorCritic"),
    "another task's networks": (lambda tree: tree.update(networks={}), "expected the networks model"),
    "a transform that runs code": (lambda tree: tree["transforms"].append({"class": "FunctionalReward", "args": {
        "function": "os.system"}}), None),
    "statistics of others": (lambda tree: tree.update(statistics={}), "statistics"),
    "a part that is missing": (lambda tree: tree.pop("explorer"), "expected the fields"),
    "an explorer of no kind": (lambda tree: tree.update(explorer={"class": "Noise", "args": {}}), "Explorer that is registered"),
    "a dtype of many numbers": (lambda tree: tree["obs"].update(dtype="(100000000,)f4"), "dtype"),
    "an explorer with huge noise": (lambda tree: tree.update(explorer={"class": "Gaussian", "args": {
        "shape": {"$kind": "tuple", "value": [40_000, 40_000]}}}), "at most 64 MiB"),
    "a class of the script that wrote it": (lambda tree: tree["model"].update({"class": "__main__:Own"}), "put the class"),
    "arguments without end": (lambda tree: tree["model"]["args"].update(hidden=_deep(20)), "at most 16 levels"),
}


def _deep(n):
    return {"$kind": "list", "value": [_deep(n - 1)]} if n else 1


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_policy_is_refused_with_the_cause(name, exported):
    change, said = CHANGES[name]
    path = changed(exported, change)
    if said is None:  # it is never called: a policy has no rewards
        assert Policy.load(path)(np.zeros(3, np.float32)) >= 2
        return
    with pytest.raises(ArchiveError, match=said):
        Policy.load(path)


def test_damaged_and_foreign_directories_are_refused(exported, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(exported, copy)
    weights = copy / "policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ArchiveError, match="policy.safetensors: expected .* bytes"):
        Policy.load(copy)
    with pytest.raises(ArchiveError, match="no such path"):
        Policy.load(tmp_path / "nothing")
    with pytest.raises(ArchiveError, match="expected an exported policy, got another archive"):
        write_archive(tmp_path / "other", {"x": {}})
        Policy.load(tmp_path / "other")
    link = tmp_path / "link"
    shutil.copytree(exported, tmp_path / "third")
    (tmp_path / "third" / "policy.json").unlink()
    (tmp_path / "third" / "policy.json").symlink_to(exported / "policy.json")
    with pytest.raises(ArchiveError, match="plain file|link"):
        Policy.load(tmp_path / "third")
    assert not link.exists()


def with_weights_outside(whole):
    """The same graph with its largest array in the file `beside.bin` of the working directory."""
    onnx = pytest.importorskip("onnx")
    model = onnx.ModelProto.FromString(whole)
    largest = max(model.graph.initializer, key=lambda one: len(one.raw_data))
    Path("beside.bin").write_bytes(largest.raw_data)
    onnx.external_data_helper.set_external_data(largest, "beside.bin", 0, len(largest.raw_data))
    largest.ClearField("raw_data")
    return model.SerializeToString()


def test_a_graph_that_is_not_that_of_its_manifest_is_not_looked_at(tmp_path):
    """So it needs no onnxruntime."""
    with robot_of("MLP, one choice") as robot:
        model = robot.tasks["RL"].algorithm.model
        policy_files.write_graph(tmp_path / "policy", write(robot, tmp_path / "weights"), {
            "obs": space_tree(model.obs_space), "act": space_tree(model.act_space), "explorer": None}, b"a graph")
    file = tmp_path / "policy" / "policy.onnx"
    for content in (b"", b"a grape", b"a graph of more"):
        file.write_bytes(content)
        with pytest.raises(ArchiveError, match="7 bytes with the sha256 .* other bytes|readable policy"):
            Policy.load(tmp_path / "policy")
    file.unlink()
    file.symlink_to("/etc/hostname")
    with pytest.raises(ArchiveError, match="link"):
        Policy.load(tmp_path / "policy")


def test_hostile_graphs_are_refused(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    with robot_of("MLP, one choice") as robot:
        write(robot, tmp_path / "policy", "onnx")
    manifest, graph = tmp_path / "policy" / "manifest.json", tmp_path / "policy" / "policy.onnx"
    good, whole = json.loads(manifest.read_text()), graph.read_bytes()

    def refused(said, tree=None, content=None):
        manifest.write_text(json.dumps(tree or good))
        graph.write_bytes(whole if content is None else content)
        with pytest.raises(ArchiveError, match=said):
            Policy.load(tmp_path / "policy")

    import hashlib

    refused("other bytes", content=whole[:-100])
    refused("other bytes", content=b"x" * len(whole))
    refused("a graph that onnxruntime runs",
            {**good, "size": 100, "sha256": hashlib.sha256(b"x" * 100).hexdigest()}, b"x" * 100)
    refused("manifest of a policy", {**good, "more": 1})
    refused("manifest of a policy", {**good, "size": 2**40})
    state = [{"name": "state.h", "shape": [2], "dtype": "float32", "low": None, "high": None}]
    refused("inputs obs, state.h", {**good, "policy": {**good["policy"], "state": state}})
    refused("fits the space", {**good, "policy": {**good["policy"], "observations": state}})
    refused("outputs act, policy.logits, policy.more",
            {**good, "policy": {**good["policy"], "outputs": [*good["policy"]["outputs"], {**state[0], "name": "more"}]}})
    wide = [{**one, "dtype": "float64"} for one in good["policy"]["state"] or state]
    refused("at most 64 MiB", {**good, "policy": {**good["policy"], "state": [{**wide[0], "shape": [10**9]}]}})
    monkeypatch.chdir(tmp_path)
    outside = with_weights_outside(whole)
    refused("External data", {**good, "size": len(outside), "sha256": hashlib.sha256(outside).hexdigest()}, outside)
    graph.unlink()
    graph.symlink_to("/etc/hostname")
    with pytest.raises(ArchiveError, match="link"):
        Policy.load(tmp_path / "policy")


def test_a_policy_of_one_s_own_classes_is_loaded_where_they_are_imported(tmp_path):
    func = create_algorithm_func(OwnQ, {"obs": NUMBERS, "act": gym.spaces.Discrete(3), "hidden": (8,)}, DQN, {})
    with Robot(lambda: Steps(NUMBERS, gym.spaces.Discrete(3)), tasks={"RL": ComputationTask(func, AgentHelper)}) as robot:
        write(robot, tmp_path / "policy")
        acts_as(robot, Policy.load(tmp_path / "policy"))


class OwnQ(MLPQ):
    """A model of the user's."""


def test_a_robot_that_draws_in_evaluations_has_a_policy_that_draws(tmp_path):
    with closing(Robot.of("A2C", lambda: Steps(NUMBERS, gym.spaces.Discrete(3)), n_agents=1, eval_explore=True)) as robot:
        assert isinstance(robot.tasks["RL"].algorithm, A2C)
        write(robot, tmp_path / "policy")
    assert Policy.load(tmp_path / "policy").drawn
