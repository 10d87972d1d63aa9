"""The ray driver and tasks in actors of their own: what they add to the contract of tests/test_transport.py, and what happens
when actors and nodes die."""

import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import zlib
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch
from drivers.test_processes import Broken, Cursed, Elementwise, Faulty, Fragile, Uneven, run_until_uneven
from test_asking import Policy, Predictor
from transport_fakes import BAD, Drift, Echo, Programmed, no_fork_server_stays, row, until, update  # noqa: F401 - a fixture

from parl_like import OffPolicyHelper, OnPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms.ddpg import DDPG, TD3
from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.dynamics import DynamicsLearner
from parl_like.algorithms.ppo import PPO
from parl_like.algorithms.sac import SAC
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.drivers.frame_stream import FrameStream
from parl_like.drivers.ray import connection
from parl_like.drivers.ray.cluster import Ray, RayLink
from parl_like.drivers.ray.connection import CONNECTION
from parl_like.drivers.ray.tasks import RayTask
from parl_like.drivers.workers.handle import WorkerHandle
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.hooks import EpisodeStats
from parl_like.environment.stop_conditions import StopAfterSteps, StopWhen
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.explorers import Categorical
from parl_like.learning.factory import Shared
from parl_like.learning.model import Model
from parl_like.learning.span import Span
from parl_like.models.actor_q import MLPActorQ
from parl_like.models.dynamics import Dynamics, Trunk
from parl_like.models.mlp import MLPQ, MLPActorCritic
from parl_like.process.child import RestartBudget
from parl_like.tasks.task import ComputationTask
from parl_like.values.errors import AgentFailed, TaskFailed

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux"),
              pytest.mark.timeout(1800)]  # a busy machine takes minutes to start a cluster, a node, a worker

MEMORY = {"object_store_memory": 80 << 20}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """A cluster of one node with one CPU, to which this process is connected. The workers of most tests ask for none."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **MEMORY})
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


def two(**options):
    return Ray(**{"workers": 2, "num_cpus": 0, "start_limit": 1800.0, "step_limit": 1800.0, **options})


@pytest.fixture
def another_node(cluster):
    """Starts a node with one CPU, which one worker wants; its end is that of the test. Ray itself gives it 30 s to begin."""
    nodes = []

    def start():
        try:
            nodes.append(cluster.add_node(num_cpus=1, **MEMORY))
        except Exception as error:  # a plain one
            if "timed out during startup" not in str(error):
                raise
            pytest.skip("this machine is too slow for Ray to start a node")
        return nodes[-1]

    yield start
    for node in nodes:
        if node in cluster.worker_nodes:
            cluster.remove_node(node)


def drifting(driver, task, n_agents=5, **options):
    return Robot(Drift, tasks={"RL": task}, n_agents=n_agents, driver=driver, trace=True, **options)


def ppo(serve="auto"):
    return ComputationTask(
        create_algorithm_func(MLPActorCritic, dict(obs=Drift.observation_space, act=Drift.action_space, hidden=[8]), PPO,
                              dict(epochs=2, minibatches=2)),
        partial(OnPolicyHelper, unroll=8), serve=serve)


def dqn():
    return ComputationTask(
        create_algorithm_func(MLPQ, dict(obs=Drift.observation_space, act=Drift.action_space, hidden=[8]), DQN,
                              dict(target_period=8)),
        partial(OffPolicyHelper, size=500, batch_size=16, learn_every=4))


def actors():
    """Names of our actors' processes on the nodes that were started here."""
    names = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            names.append(" ".join(process.cmdline()))
    return [name for name in names if name.startswith(("ray::WorkerActor", "ray::TaskActor"))]


# ------------------------------------------------------------------------------------------------------------------- exactness


def two_runs(robot, path):
    """What two runs leave, with a checkpoint between them."""
    with robot:
        robot.run(StopAfterSteps(300))
        robot.save(path)
        robot.run(StopAfterSteps(300))
        return robot.trace_hash(), robot.counters()


@pytest.fixture(params=["socket", pytest.param("calls", marks=pytest.mark.slow)])
def way(request, monkeypatch):
    """How messages get to workers: by a socket on the robot's node, or by calls, as elsewhere."""
    if request.param == "calls":
        monkeypatch.setattr(RayLink, "_listen", lambda link, worker: "")
    return request.param


@pytest.mark.parametrize("serve", ["auto", pytest.param("central", marks=pytest.mark.slow)])
def test_sync_runs_are_those_of_worker_processes(tmp_path, way, serve):
    """Told nothing, workers of both drivers predict by replicas."""
    expected = two_runs(drifting(Processes(workers=2), ppo(serve)), tmp_path / "processes")
    robot = drifting(two(), ppo(serve))
    assert two_runs(robot, tmp_path / "ray") == expected and expected[1]["updates/RL"] > 10
    assert robot.tasks["RL"].serve == ("replica" if serve == "auto" else "central")
    assert robot.pool.driver.link.prompt is (way == "socket")


def test_a_socket_takes_only_whom_it_was_made_for(monkeypatch):
    """It has no file, nobody connects to it twice, and processes of other users are sent away."""
    link, worker = RayLink(None, 0), WorkerHandle(0, [SimpleNamespace(index=0)], RestartBudget())
    link.open()
    with monkeypatch.context() as other:
        other.setattr("parl_like.drivers.ray.cluster._is_ours", lambda connection: False)
        address = link._listen(worker)
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect("\0" + address)
        assert link.receive() == [] and stranger.recv(1) == b""
        stranger.close()
    friend = socket.socket(socket.AF_UNIX)
    friend.connect("\0" + address)
    FrameStream(friend, waits=True).send([b"hello"])
    assert [(who, [bytes(frame) for frame in frames]) for who, frames in link.receive()] == [(worker, [b"hello"])]
    with pytest.raises(ConnectionRefusedError):
        socket.socket(socket.AF_UNIX).connect("\0" + address)
    link._streams.forget(worker)
    link.close()


@pytest.mark.slow
def test_a_task_in_an_actor_learns_the_same_and_a_checkpoint_takes_it_back(tmp_path):
    expected = two_runs(drifting(Processes(workers=1), dqn()), tmp_path / "processes")
    assert expected[1]["updates/RL"] > 10
    driver = two(workers=1, tasks={"RL": {"num_cpus": 0}})
    assert two_runs(drifting(driver, dqn()), tmp_path / "ray") == expected
    with drifting(driver, dqn()) as robot:
        robot.load(tmp_path / "ray")
        stats = EpisodeStats()
        robot.run(StopAfterSteps(300), stats)
        assert (robot.trace_hash(), robot.counters()) == expected and stats.lengths
        assert robot.evaluate(2).lengths == [50] * 2


@pytest.mark.slow
def test_schedules_in_actors_end_with_the_first_run():
    """That of a learning rate, in the task's actor, and of ε, in the workers that have begun already."""
    spaces = dict(obs=Drift.observation_space, act=Drift.action_space, hidden=[8])
    runs = []
    for given in (True, False):
        span = Span(300 if given else 9000, given)
        learner = dict(lr=span.linear(1e-2, 0.0, lambda steps: steps / 4), epsilon=span.linear(1.0, 0.0, lambda steps: steps / 2))
        task = ComputationTask(create_algorithm_func(MLPQ, spaces, DQN, learner), partial(OffPolicyHelper, batch_size=16))
        with drifting(two(workers=1, tasks={"RL": {"num_cpus": 0}}), task, n_agents=2) as robot:
            robot.span = span
            robot.trace_hash()  # for which the workers begin
            robot.run(300)
            runs.append((robot.trace_hash(), span.ends))
    assert runs[0] == runs[1] and runs[1][1] == [75, 150]


@pytest.mark.slow
@pytest.mark.parametrize("placed", ["in an actor", "beside a task on the same encoder"])
@pytest.mark.parametrize(("env", "algorithm", "policy"), [
    ("Pendulum-v1", SAC, "squashed"), ("CartPole-v1", SAC, "squashed"), ("Pendulum-v1", TD3, "deterministic"),
    ("Pendulum-v1", DDPG, "deterministic")])  # fmt: skip
def test_off_policy_actors_learn_as_with_worker_processes(env, algorithm, policy, placed, tmp_path):
    made = gym.make(env)
    spaces, alone = dict(obs=made.observation_space, act=made.action_space, hidden=[8]), placed == "in an actor"

    def robot(driver):
        trunk = {} if alone else {"trunk": Shared(Trunk, made.observation_space, [8])}
        funcs = {"RL": create_algorithm_func(MLPActorQ, {**spaces, **trunk, "policy": policy}, algorithm, {})}
        if not alone:
            funcs["dynamics"] = create_algorithm_func(Dynamics, {**spaces, **trunk}, DynamicsLearner, {})
        helper = partial(OffPolicyHelper, size=500, batch_size=16, learn_every=8)
        tasks = {name: ComputationTask(func, helper) for name, func in funcs.items()}
        return Robot(env, tasks=tasks, n_agents=2, driver=driver, trace=True)

    ours = two(workers=1, tasks={"RL": {"num_cpus": 0}}) if alone else two(workers=1)
    expected, same = (two_runs(robot(driver), tmp_path / driver.name) for driver in (Processes(workers=1), ours))
    assert same == expected and expected[1]["updates/RL"] > 30


# ---------------------------------------------------------------------------------------------------------------- tasks in actors


def echo_in_actor(**options):
    task = RayTask(ComputationTask(Echo, **options), resources={"num_cpus": 0})
    task.name = "echo"
    return task


def fail_and_go_on(agent):
    comm = agent.helpers["echo"].comm
    with pytest.raises(TaskFailed) as caught:
        comm.predict(row(agent, BAD))
    said = str(caught.value)
    for part in ("task 'echo': predict failed", "ArithmeticError: the row is bad", "in the actor of task 'echo'",
                 "transport_fakes.py", "in predict"):
        assert part in said, part
    assert type(caught.value.__cause__) is ArithmeticError
    ticket = comm.predict(row(agent, 3))
    assert ticket.out["echo"][ticket.start].tolist() == [agent.index, 3] and ticket.version == 0
    np.testing.assert_array_equal(comm.learn(update(agent, 4))["row"], update(agent, 4)["obs"])
    ticket = comm.predict(row(agent, 4))
    assert ticket.version == 1 and ticket.out["w0"][ticket.start].tolist() == [1.0]


def test_a_task_in_an_actor_answers_learns_fails_and_dies():
    task = echo_in_actor()
    with Robot(tasks={"echo": task}, agent=partial(Programmed, fail_and_go_on)) as robot:
        robot.run()
        assert (task.version, task.learns, task.rows_learned, task.algorithm.updates) == (1, 1, 4, 1)
        state = task.state_dict()
        assert state["counters"]["updates"] == 1 and state["networks"]["model"]["parts.0"].item() == 1.0
        with pytest.raises(AttributeError, match=r"Echo.batches: the algorithm is in a Ray actor; here it has"):
            task.algorithm.batches  # noqa: B018
        with pytest.raises(ValueError, match="cannot follow"):
            task.sync_from(task)
        ray.kill(task._actor)  # which does not wait for its end: calls may still be answered
        with pytest.raises(TaskFailed, match="task 'echo': its actor has died, and its weights with it; go on from a checkpoint"):
            until(lambda: task.predict({"obs": np.zeros((1, 2))}) is None, what="the end of the actor")
    task.close()
    with pytest.raises(TaskFailed, match="its actor was ended when"):
        task.state_dict()


@pytest.mark.slow
def test_several_faces_of_one_actor_see_what_all_have_learned_step_by_step():
    first = RayTask(ComputationTask(partial(Echo, steps=300)), resources={"num_cpus": 0})
    first.build()
    second = RayTask(ComputationTask(Echo), first._actor)
    second.build()
    rows = {"obs": np.zeros((2, 2))}
    first.learn(rows)
    second.learn(rows)
    for task in (first, second):
        out, version = task.act(rows)
        assert out["w0"].tolist() == [[600.0]] * 2 and (version, task.version, task.rows_learned) == (600, 600, 4)
    update, seen = second._send("learn", rows), []
    while not ray.wait([update], timeout=0)[0]:
        seen.append(first.act(rows)[1])
    assert any(600 < version < 900 for version in seen) and sorted(seen) == seen
    state = first.state_dict()
    second.learn(rows)
    first.load_state_dict(state)
    assert second.act(rows)[1] == 900 and second.version == 900
    second.close()  # not its own
    assert first.predict(rows)["w0"].tolist() == [[900.0]] * 2
    first.close()


@pytest.mark.slow
@pytest.mark.parametrize("placed", [["RND"], ["RL", "RND"]])
def test_a_task_asks_another_that_is_in_an_actor(placed):
    rows = {"obs": np.ones((2, 1), np.float32)}
    with Robot(tasks=asking_tasks(), driver=two(tasks={name: {"num_cpus": 0} for name in placed})) as robot:
        for version, bonus in enumerate((1.0, 0.25, 0.0625)):
            out = robot.tasks["RL"].learn(rows)
            assert (out["bonus"], out["version/RND"]) == (bonus, version)
            robot.tasks["RND"].learn(rows)


@pytest.mark.slow
def test_a_task_in_an_actor_cannot_ask_one_that_is_in_none():
    with pytest.raises(ValueError, match=r"task 'RL' is in a Ray actor and asks 'RND', not in one; name all of them"):
        Robot(tasks=asking_tasks(), driver=two(tasks={"RL": {"num_cpus": 0}}))
    assert not CONNECTION.users  # a robot that was not made leaves no actor


def asking_tasks():
    return {"RL": ComputationTask(Policy, asks=["RND"]), "RND": ComputationTask(Predictor)}


def test_what_cannot_be_in_an_actor_is_refused():
    trunk = torch.nn.Linear(3, 3)
    with pytest.raises(TypeError, match="Elementwise already; give it a function"):
        RayTask(ComputationTask(Elementwise()))
    with pytest.raises(TypeError, match="task 'task': what builds the algorithm cannot be sent.*holds a Linear that is here "
                                        "already; build it inside"):
        RayTask(ComputationTask(lambda: trunk)).build()
    shared = Shared(MLPQ, Drift.observation_space, Drift.action_space)
    with pytest.raises(TypeError, match="holds a Shared, whose copies would learn each by itself"):
        RayTask(ComputationTask(create_algorithm_func(shared, {}, DQN, {}))).build()
    with pytest.raises(KeyError, match="no task 'model'; there are 'RL'"):
        drifting(two(tasks={"model": {}}), ppo())
    with pytest.raises(ValueError, match="num_gpu"):
        drifting(two(tasks={"RL": {"num_gpu": 1}}), ppo())
    assert not CONNECTION.users
    with pytest.raises(ValueError, match="Ray: memory_limit is an option of Processes; Ray itself"):
        two(memory_limit=1 << 30)
    with drifting(two(), ppo()) as robot:
        assert [len(worker.agents) for worker in robot.pool.driver.workers] == [3, 2]


# ---------------------------------------------------------------------------------------------------------------------- faults


def learned(robot):
    """Rows; none twice."""
    assert 0 < robot.tasks["RL"].rows_learned <= robot.env_steps
    assert robot.wrappers["RL"].predictions.abandoned == 0
    return robot.tasks["RL"].rows_learned


def test_workers_that_die_are_replaced_and_the_run_goes_on(tmp_path, caplog, way):
    """One is killed in the middle of a step; then one between two calls, of which nobody hears before the next message to it."""
    task = ComputationTask(Elementwise(), partial(OnPolicyHelper, unroll=8))
    killed = []

    def over(robot):
        driver = robot.pool.driver
        if robot.env_steps > 500 and driver.restarts == 1 and not killed:
            killed.append([worker for worker in driver.workers if worker.running and not worker.incarnation][0])
            ray.kill(driver.link._actors[killed[0]])
        return driver.restarts == 2 and robot.env_steps > 1000

    with Robot(partial(Faulty, tmp_path / "count", "kill"), tasks={"RL": task}, n_agents=4,
               driver=two()) as robot, caplog.at_level(logging.WARNING):
        robot.run(StopWhen(over))
        before = learned(robot)
        assert [worker.incarnation for worker in robot.pool.driver.workers] == [1, 1]
        said = [record.getMessage() for record in caplog.records if "is replaced, its agents begin anew" in record.getMessage()]
        reasons = [text.partition(" was lost: ")[2].partition("; it is replaced")[0] for text in said]
        assert reasons == ["its process was killed or has crashed; memory may have run out there", "it was ended through Ray"]
        robot.run(StopAfterSteps(100))
        assert learned(robot) > before


@pytest.mark.slow
def test_a_worker_that_hangs_is_replaced_while_the_others_go_on(tmp_path, caplog):
    task = ComputationTask(Elementwise(), partial(OnPolicyHelper, unroll=8))
    with Robot(partial(Faulty, tmp_path / "count", "hang"), tasks={"RL": task}, n_agents=4, driver=two(step_limit=10.0),
               mode="async") as robot:
        with caplog.at_level(logging.WARNING):
            robot.run(StopWhen(lambda robot: robot.env_steps >= 1000 and robot.pool.driver.restarts))
        assert sorted(w.incarnation for w in robot.pool.driver.workers) == [0, 1] and learned(robot)
        assert "said nothing for 10 s" in caplog.text


@pytest.mark.parametrize(("env", "kind", "said", "trace"), [
    (Cursed, {}, r"agent 0: its environment raised in reset\(seed=.*OSError: no level", "in reset"),
    pytest.param(Broken, {}, r"worker 0 \(agents 0 to 0\): building its agents raised FileNotFoundError: levels.txt",
                 "in __init__", marks=pytest.mark.slow),
    pytest.param(Fragile, {"max_restarts": 1, "period": 9000.0}, "worker 0 .*was lost: its process (ended|was killed).*; it was "
                 "replaced 1 times within 9000 s", "", marks=pytest.mark.slow),
])
def test_what_ends_the_run_is_said(env, kind, said, trace, tmp_path):
    make = partial(env, tmp_path / "count") if env is Broken else env
    with Robot(make, tasks={"RL": ComputationTask(Elementwise())}, n_agents=1, driver=two(workers=1, **kind)) as robot:
        with pytest.raises(AgentFailed, match=said) as caught:
            robot.run(StopAfterSteps(10))
        assert trace in str(caught.value.__cause__)


def test_a_call_that_ends_after_its_robot_is_told_to_nobody(caplog):
    """The actors of a node that was lost end when the cluster does."""
    link, late = RayLink(None, 0), Future()
    link.open()
    link._calls["worker"] = deque()
    link._await("worker", SimpleNamespace(future=lambda: late))
    link.close()
    late.set_exception(ray.exceptions.RayActorError())  # whose callbacks' errors are logged
    assert not caplog.text


def test_a_node_that_is_lost_takes_its_worker_and_the_run_goes_on(cluster, another_node, caplog):
    """One worker a node, for each wants a CPU; a third node takes in who was on the second."""
    second = another_node()
    lost = []
    task = ComputationTask(Elementwise(), partial(OnPolicyHelper, unroll=8))

    def lose(robot):
        if robot.env_steps > 300 and not lost:
            lost.append(another_node())
            cluster.remove_node(second, allow_graceful=False)
        driver = robot.pool.driver
        return robot.env_steps > 1500 and driver.restarts > 0 and all(worker.running for worker in driver.workers)

    with drifting(two(num_cpus=1), task, n_agents=4) as robot:
        robot.run(StopWhen(lose))
        assert lost and task.rows_learned <= robot.env_steps and 1 in [min(w.incarnation, 1) for w in robot.pool.driver.workers]
        assert "was lost: its node has died or cannot be reached; it is replaced" in caplog.text


@pytest.mark.slow
def test_a_node_100_times_slower_is_named_and_holds_up_nobody(another_node, tmp_path, caplog):
    another_node()
    task = ComputationTask(Elementwise(), partial(OnPolicyHelper, unroll=8))
    with Robot(partial(Uneven, str(tmp_path / "count")), tasks={"RL": task}, n_agents=2, driver=two(num_cpus=1),
               mode="async") as robot:
        run_until_uneven(robot, caplog)
    assert caplog.text.count("is slow: a turn of its agents takes") == 1 and "nobody waits for it" in caplog.text


# ------------------------------------------------------------------------------------------------------------------ three nodes


class Pictures(gym.Env):
    """Pictures of noise, whose first bytes tell whether the others are as they were. Notes which nodes of Ray it was made on."""

    observation_space = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, path):
        if ray.get_runtime_context().get_actor_id():  # one is made where the robot is, to be looked at
            (path / ray.get_runtime_context().get_node_id()).touch()

    def seen(self):
        picture = self.np_random.integers(0, 256, (84, 84, 4), np.uint8)
        picture.reshape(-1)[:4] = check(picture)
        return picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.seen(), {}

    def step(self, act):
        self.t += 1
        return self.seen(), float(act), False, self.t == 100, {}


def check(picture):
    return np.frombuffer(zlib.crc32(picture.reshape(-1)[4:].tobytes()).to_bytes(4, "little"), np.uint8)


class Checks(Algorithm):
    """Fails if a picture is not as its environment made it."""

    def __init__(self):
        model = Model(Pictures.observation_space, Pictures.action_space)
        model.w = torch.nn.Parameter(torch.zeros(2))
        super().__init__(model)
        self.checked = 0

    def look(self, pictures):
        for picture in pictures.numpy():
            if picture.any():  # else of the trial when the task was built
                assert (check(picture) == picture.reshape(-1)[:4]).all()
                self.checked += 1

    def predict(self, inputs):
        self.look(inputs.obs)
        return {"logits": self.model.w.expand(len(inputs.obs), 2)}

    def explorer(self):
        return Categorical()

    def learn(self, batch):
        self.look(batch.obs)
        self.look(batch.obs_next)
        return {"loss": -(self.model.w * batch.rew.float().mean()).sum()}


@pytest.mark.slow
@pytest.mark.parametrize("rows", [40, 3_750])
def test_a_robot_on_three_nodes_sends_images_and_its_replay_is_saved_and_loaded(rows, another_node, tmp_path):
    """With 3,750 rows in each of three workers 300 MiB: pytest -m slow tests/drivers/test_ray.py -k three_nodes."""
    for _ in range(2):
        another_node()
    helper = partial(OffPolicyHelper, size=rows, batch_size=16, learn_every=32,
                     buffer=partial(ReplayBuffer, ignore_obs_next=True))
    (tmp_path / "nodes").mkdir()

    def robot():
        return Robot(partial(Pictures, tmp_path / "nodes"), tasks={"RL": ComputationTask(Checks, helper)}, n_agents=12,
                     driver=two(workers=3, num_cpus=1), trace=True)

    def goes_on(robot):
        robot.run(StopAfterSteps(240))
        return robot.trace_hash(), robot.counters()

    with robot() as first:
        first.run(StopAfterSteps(4 * rows))
        first.save(tmp_path / "state")
        assert len(list((tmp_path / "nodes").iterdir())) == 3, "the workers are on three nodes"
        expected = goes_on(first)
        assert first.tasks["RL"].algorithm.checked > 5 * rows and expected[1]["updates/RL"] > 2
    assert sum(file.stat().st_size for file in (tmp_path / "state").rglob("*")) > 3 * rows * 84 * 84 * 4
    with robot() as second:
        second.load(tmp_path / "state")
        assert goes_on(second) == expected


# ----------------------------------------------------------------------------------------------------------------- the connection


def script(tmp_path, text, **environment):
    """What a program says that is a process of its own."""
    head = f"""
        import os, sys
        sys.path[:0] = {sys.path!r}
        import psutil, ray
        from functools import partial
        from drivers.test_ray import *
    """
    (tmp_path / "robot.py").write_text(textwrap.dedent(head) + textwrap.dedent(text))
    done = subprocess.run([sys.executable, tmp_path / "robot.py"], capture_output=True, text=True,
                          env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def living(processes):
    """Names of those that have not ended; who has, but is waited for by nobody, counts as ended."""
    names = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                names.append(process.name())
    return names


def looked_at(processes):
    """The command line of each, and the addresses at which it listens."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it has just ended
            sockets = [one for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
            found.append((" ".join(process.cmdline()), {one.laddr.ip.removeprefix("::ffff:") for one in sockets}))
    return found


def test_sigterm_is_answered_by_who_did_before_ray_was_connected(monkeypatch):
    """Ray's own answer ends the process: a run would not be saved."""
    answered = []
    monkeypatch.setattr(connection, "the_ray", lambda: SimpleNamespace(
        is_initialized=lambda: False, init=lambda **_: signal.signal(signal.SIGTERM, lambda *_: 1 / 0), shutdown=lambda: None))
    signal.signal(signal.SIGTERM, lambda *_: answered.append("the run"))
    CONNECTION.open()
    CONNECTION.close()
    os.kill(os.getpid(), signal.SIGTERM)
    assert answered == ["the run"]


@pytest.mark.slow
def test_a_robot_finds_a_cluster_by_its_address_alone(cluster, tmp_path):
    said = script(tmp_path, f"""
        with drifting(Ray(workers=1, num_cpus=0, address={cluster.address!r}), ppo()) as robot:
            robot.train_iter()
            print(robot.env_steps)
            try:
                CONNECTION.open("10.0.0.1:1")
            except ValueError as error:
                print(error)
        print(ray.is_initialized())
    """)
    assert f"40\nRay: address is '10.0.0.1:1', but this process is connected to {cluster.address}" in said
    assert said.endswith("False\n")
    assert ray.nodes()[0]["Alive"]


@pytest.mark.slow
def test_a_local_instance_listens_to_this_machine_alone_and_nothing_is_left_of_it(tmp_path):
    """It serves no dashboard, ends with the last robot that uses it, and nobody waits for room there."""
    said = script(tmp_path, """
        robot = drifting(Ray(workers=1, num_cpus=100, tasks={"RL": {"num_cpus": 100}}), ppo())
        with robot, drifting(Ray(workers=1), ppo(), n_agents=1) as other:
            robot.train_iter()
            other.train_iter()
            robot.close()
            other.train_iter()
            family = psutil.Process().children(recursive=True)
            print(ray.is_initialized(), any("raylet" in process.name() for process in family))
            found = looked_at([psutil.Process(), *family])
            served = [program for program, addresses in found if addresses and "dashboard.py" in program]
            print(len(found) > 4, {ip for _, addresses in found for ip in addresses}, served)
        until(lambda: not living(family), what="the end of the instance")
        print(ray.is_initialized())
    """, RAY_ADDRESS="10.0.0.1:1")  # is not asked for
    assert said == "True True\nTrue {'127.0.0.1'} []\nFalse\n"


def test_a_cluster_that_is_not_there_is_said(tmp_path):
    with socket.socket() as bound:  # a port at which nobody listens
        bound.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{bound.getsockname()[1]}", "no-such-host.invalid:6379", "nonsense"]
        said = script(tmp_path, f"""
            for address in {addresses!r}:
                try:
                    with drifting(Ray(workers=1, address=address), ppo()) as robot:
                        robot.train_iter()
                except ConnectionError as error:
                    print(error)
            print(ray.is_initialized())
        """)
    lines = said.splitlines()
    for line, address in zip(lines, addresses, strict=False):
        assert line.startswith(f"Ray: there is no cluster at {address} (") and "`ray start --head --port=6379`" in line
    assert lines[3:] == ["False"]


@pytest.mark.slow
def test_nothing_is_left_in_a_cluster_of_a_robot_that_is_killed(cluster, tmp_path):
    """F32: Ray ends the actors of a program that has ended, whatever ended it."""
    program = tmp_path / "robot.py"
    program.write_text(textwrap.dedent(f"""
        import sys
        sys.path[:0] = {sys.path!r}
        from drivers.test_ray import *

        with drifting(Ray(workers=2, num_cpus=0, address={cluster.address!r}, tasks={{"RL": {{"num_cpus": 0}}}}), dqn()) as robot:
            robot.run(StopAfterSteps(100))
            print("running", flush=True)
            robot.run(StopWhen(lambda robot: False))
    """))
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "running\n"
        mine = actors()
        assert len(mine) >= 3
        process.kill()
    until(lambda: not actors(), what="the end of the actors")


@pytest.mark.slow
def test_nothing_is_left_in_a_cluster():
    until(lambda: not actors(), what="the end of the actors")  # Ray ends them by and by
    assert not CONNECTION.users


def test_without_ray_there_is_one_line_that_says_what_to_install(tmp_path):
    code = """
        import sys
        sys.modules["ray"] = None
        from parl_like.drivers.ray.cluster import Ray, RayLink
        from parl_like.drivers.ray.connection import the_ray
        try:
            the_ray()
        except ImportError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=200)
    assert done.stdout == "Ray is not installed; pip install 'parl_like[ray]'\n", done.stderr
