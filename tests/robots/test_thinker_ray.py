"""Mode 3 of Thinker: clients in several Ray actors that share one world model."""

import os
import sys
from itertools import islice

import gymnasium as gym
import numpy as np
import pytest

from parl_like.data.storage.archive import read_archive
from parl_like.lab.yaml_text import ConfigError
from parl_like.learning.model import Model
from parl_like.robots.thinker import make as thinker_make
from parl_like.robots.thinker.ray import ModelActor

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(1800),
              pytest.mark.skipif(sys.platform != "linux", reason="tested on Linux only")]

A, N, K = 3, 2, 4
SMALL = {
    "env_n": N, "gpu": False, "savedir": "", "model_downscale_c": 32, "rec_t": K, "max_depth": 3, "model_batch_size": 8,
    "model_unroll_len": 2,
    "model_return_n": 2, "model_warm_up_n": 30, "model_buffer_n": 400, "min_replay_ratio": 1, "max_replay_ratio": 4,
}  # fmt: skip


class Walk(gym.Env):
    """As that of `nine_places`, which actors of Ray cannot import; the third number says whose environment it is."""

    action_space = gym.spaces.Discrete(A)
    observation_space = gym.spaces.Box(0, 99, (3,), np.float32)

    def __init__(self, mark=0.0):
        self.mark = mark

    def seen(self):
        return np.array([self.x, self.t, self.mark], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = int(self.np_random.integers(7)), 0
        return self.seen(), {}

    def step(self, act):
        self.x, self.t = (2 * self.x + int(act)) % 9, self.t + 1
        return self.seen(), float(self.x == 4), self.x == 7, self.t == 8, {}


class Wide(Walk):
    observation_space = gym.spaces.Box(0, 99, (4,), np.float32)


def make(mark=0.0, **options):
    return thinker_make.make(**{"env_fn": lambda: Walk(mark), **SMALL, **options})


def actions(seed=0):
    rng = np.random.default_rng(seed)
    while True:
        yield rng.integers(A, size=N), rng.integers(2, size=N)


def play(env, stages, seed=0):
    """What every step of so many stages gave."""
    return [env.step(*pair) for pair in islice(actions(seed), stages * K)]


def weights(env):
    return [Model.weights_hash(network) for network in env.robot.tasks["model"].algorithm.networks().values()]


class Client:
    """A client in a Ray actor."""

    def __init__(self, mark, ray_obj, options, bare=False):
        made = thinker_make.make if bare else make
        self.env = made(env_fn=lambda: Walk(mark), ray_obj=ray_obj, **options)
        self.env.reset()

    def pid(self):
        return os.getpid()

    def rank(self):
        return self.env.robot.tasks["model"].rank

    def play(self, stages):
        return play(self.env, stages)[-1][3]["model_status"]

    def weights(self):
        return weights(self.env), self.env.robot.tasks["model"].version

    def close(self):
        self.env.close()


def client(mark, ray_obj, **options):
    return ray.remote(Client).options(num_cpus=0).remote(mark, ray_obj, options)


@pytest.fixture(scope="module", autouse=True)
def instance():
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # which the actors need not find
    ray.init(address="local", num_cpus=8, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False,
             logging_level="ERROR")
    yield
    ray.shutdown()
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def ray_obj():
    with thinker_make.ray_init() as made:
        yield made


@pytest.mark.slow
def test_one_maker_has_what_it_has_without_ray(ray_obj):
    """The same observations, rewards and weights as in mode 1: sharing changes where the model is, and nothing else."""
    with make() as alone, make(ray_obj=ray_obj) as sharing:
        for a, b in ((alone.reset(), sharing.reset()),
                     *zip(*([step[0] for step in play(env, 30)] for env in (alone, sharing)), strict=True)):
            assert all((a[key] == b[key]).all() for key in a) and a.keys() == b.keys()
        assert alone.vector.status() == sharing.vector.status() and alone.robot.tasks["model"].version > 0
        assert weights(alone) == weights(sharing)


def test_an_update_that_is_heard_late_takes_no_steps_back():
    """It has a thread of its own in the actor: what was asked later may be answered before."""
    class Actor(ModelActor):
        def call(self, *_):
            return {}, {}

    actor = Actor()
    assert [actor.enter({})[0] for _ in range(2)] == [0, 1]
    for rank, steps, method in ((0, 10, "act"), (1, 4, "act"), (0, 6, "learn")):
        actor.serve(rank, steps, method, (), {})
    assert (actor.real_steps, actor.serve(1, 4, "state_dict", (), {})[0]) == (14, {"others": 10})
    actor.serve(0, 2, "load_state_dict", ({"others": 1},), {})
    assert actor.real_steps == 1 + 2 + 4


def test_mode_3_as_the_document_has_it(monkeypatch):
    """The configuration goes to ray_init; clients, also in other processes, say only what is theirs."""
    options = {key: value for key, value in SMALL.items() if key not in ("env_n", "gpu")}
    with thinker_make.ray_init(**{**options, "gpu_learn": 0.5, "rec_t": 6}) as ray_obj:
        with thinker_make.make(env_fn=Walk, env_n=3, gpu=False, ray_obj=ray_obj) as env_1:
            other = ray.remote(Client).options(num_cpus=0).remote(2.0, ray_obj, {"env_n": N}, bare=True)
            assert ray.get(other.rank.remote()) == 1
            assert (env_1.options.rec_t, env_1.options.model_batch_size, env_1.env_n) == (6, 8, 3)
            assert env_1.reset()["tree_reps"].shape == (3, 10 * A + 6 + 9)
            before = ray.get(other.weights.remote())[1]
            for _ in range(25 * 6):  # 75 rows of 3 environments: 30 to warm up
                *_, info = env_1.step([0, 1, 2], [0, 0, 0])
            assert info["step_status"].tolist() == [0, 0, 0] and info["model_status"]["processed_n"] == 75
            assert before == 0 and env_1.robot.tasks["model"].version == 11
            ray.get(other.close.remote())
    with pytest.raises(ConfigError, match="no option 'rect_t'; did you mean 'rec_t'"):
        thinker_make.ray_init(rect_t=6)
    with monkeypatch.context() as patched, pytest.raises(ConfigError, match="gpu_learn is 2.0, and the cluster has 1 GPUs"):
        patched.setattr(ray, "cluster_resources", lambda: {"GPU": 1.0})
        thinker_make.ray_init(gpu_learn=2)
    with pytest.raises(ConfigError, match="'gpu' is an argument of make, and no option"):
        thinker_make.ray_init(gpu=False)
    with thinker_make.ray_init(**options) as ray_obj, make(ray_obj=ray_obj):
        with pytest.raises(ConfigError, match="first maker has rec_t 4, not 5"):
            make(ray_obj=ray_obj, rec_t=5)


@pytest.mark.parametrize("options", [
    {"gpu_learn": 0.5}, pytest.param({"ray_mem": -1, "ray_GPU": -1, "ray_CPU": -1}, marks=pytest.mark.slow),
], ids=str)
def test_mode_2_learns_in_an_actor_of_its_own(options):
    with make(parallel=True, **options) as env:
        task = env.robot.tasks["model"]
        env.reset()
        step = play(env, 30)[-1]
        env.robot.agents[0].helpers["model"].settle()
        assert type(task).__name__ == "SharedTask" and task.version == 8 == step[3]["model_status"]["processed_n"] // 4 - 7
        actor = task._actor
    with pytest.raises(ray.exceptions.RayActorError):
        while True:  # until Ray has ended it
            ray.get(actor.facts.remote())


@pytest.mark.slow
def test_two_actors_learn_one_model_from_rows_of_both_and_one_may_die(ray_obj):
    both = [client(mark, ray_obj) for mark in (1.0, 2.0)]
    assert sorted(ray.get([m.rank.remote() for m in both])) == [0, 1]
    before, _ = ray.get(both[0].weights.remote())
    statuses = ray.get([m.play.remote(30) for m in both])
    keys = {"processed_n", "model_warm_up_n", "warm_up_n", "running", "finish", "replay_ratio"}
    assert [set(s) for s in statuses] == [keys] * 2
    (first, version), second = ray.get([m.weights.remote() for m in both])
    assert (first, version) == second and first != before
    # Each has made 60 real steps: 30 to warm up, and one update for every 4 after that.
    assert version == 2 * ((30 + 3) // 4)
    assert ray.get(both[0].play.remote(1))["processed_n"] == 2 * N * 30 + N
    facts = ray.get(ray_obj.actor.facts.remote())
    assert facts["counts"].rows_learned == 8 * facts["version"] >= 8 * version

    os.kill(ray.get(both[0].pid.remote()), 9)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(both[0].pid.remote())
    n = ray.get(both[1].play.remote(10))["processed_n"] - N * 40
    assert N * 30 <= n <= N * 31  # its last step may not have been told
    assert ray.get(both[1].weights.remote())[1] > version
    third = client(3.0, ray_obj)
    assert ray.get(third.rank.remote()) == 2  # nobody sits in the place of the dead, whose hidden states may be still asked for
    ray.get([both[1].close.remote(), third.close.remote()])


@pytest.mark.slow
def test_each_maker_has_hidden_states_of_its_own(ray_obj):
    """Trees of two clients that step by turns are those of a client that is alone."""
    untrained = {"ray_obj": ray_obj, "train_model": False, "model_zero_init": False}
    with make(1.0, **untrained) as env:
        env.reset(seed=1)
        expected = [step[0] for step in play(env, 5)]
    with make(1.0, **untrained) as env, make(2.0, **untrained) as other:
        env.reset(seed=1), other.reset(seed=2)
        seen = []
        for mine, theirs in zip(islice(actions(0), 5 * K), actions(1), strict=False):
            seen.append(env.step(*mine)[0])
            other.step(*theirs)
    assert all((a[key] == b[key]).all() for a, b in zip(expected, seen, strict=True) for key in ("tree_reps", "hs"))


@pytest.mark.slow
def test_makers_of_one_model_must_fit(ray_obj):
    with make(ray_obj=ray_obj) as env:
        with pytest.raises(ConfigError, match="first maker has model_unroll_len 2, not 3; makers of one model have the same"):
            make(ray_obj=ray_obj, model_unroll_len=3)
        with pytest.raises(ConfigError, match=r"shared model has observations Box\(0.0, 99.0, \(3,\).*these environments "
                                              r"Box\(0.0, 99.0, \(4,\)"):
            make(ray_obj=ray_obj, env_fn=Wide)
        with pytest.raises(ConfigError, match="wrapper_type 1 has no model to share"):
            make(ray_obj=ray_obj, wrapper_type=1)
        with make(ray_obj=ray_obj, env_n=1) as other:
            assert (env.robot.tasks["model"].rank, other.robot.tasks["model"].rank) == (0, 1)  # those that were refused have left


@pytest.mark.slow
def test_rank_0_saves_and_a_run_goes_on(tmp_path):
    run = {"savedir": str(tmp_path), "xpid": "run"}
    with (
        thinker_make.ray_init() as ray_obj,
        make(1.0, ray_obj=ray_obj, **run) as first,
        make(2.0, ray_obj=ray_obj, **run) as second,
    ):
        first.reset(), second.reset()
        play(first, 20), play(second, 20)
        with pytest.raises(ValueError, match="no place for a checkpoint"):
            second.save()
        first.save()
        hashes, version = weights(first), first.robot.tasks["model"].version
        assert version > 0 and read_archive(tmp_path / "run" / "checkpoint")[0]["task.model"]["others"] == N * 20
        first.vector.folder = None  # no second checkpoint when it is closed
    with (  # in mode 3 the document wants these at ray_init
        thinker_make.ray_init(ckp=True, **run) as ray_obj,
        thinker_make.make(env_fn=lambda: Walk(1.0), gpu=False, ray_obj=ray_obj) as env,
    ):
        assert env.options.rec_t == K
        assert (weights(env), env.robot.tasks["model"].version) == (hashes, version)
        env.reset()
        assert play(env, 1)[-1][3]["model_status"]["processed_n"] == 2 * N * 20 + N
    with make(1.0, ckp=True, **run) as env:  # a checkpoint is a checkpoint, whoever made it
        assert env.robot.env_steps == N * 21


@pytest.mark.slow
def test_a_model_that_dies_is_said(ray_obj):
    with make(ray_obj=ray_obj) as env:
        env.reset()
        ray.kill(ray_obj.actor)  # which does not wait for its end: steps may still be taken
        with pytest.raises(Exception, match="task 'model': its actor has died, and its weights with it; go on from a checkpoint"):
            play(env, 1_000)
