"""Players with a memory, where turns may be far apart: each remembers what it saw itself, from where it began."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from aec_fakes import aec_of, leaving, rows_of_turns, rude

from parl_like.agents.off_policy import OffPolicyHelper
from parl_like.agents.on_policy import OnPolicyHelper
from parl_like.agents.players import SimultaneousAgent, TurnAgent
from parl_like.algorithms import A2C, R2D2
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.player_view import PlayerView
from parl_like.envs.games import TicTacToe
from parl_like.models.recurrent import RecurrentActorCritic, RecurrentQ
from parl_like.run.robot import Robot
from parl_like.tasks.task import ComputationTask
from parl_like.values.batch import Batch

pettingzoo = pytest.importorskip("pettingzoo")


def actor_critic(make, **options):
    return task_of(make, partial(OnPolicyHelper, **{"unroll": 3000, **options}), A2C, RecurrentActorCritic)


def q_learner(make, **options):
    helper = partial(OffPolicyHelper, **{"size": 8000, "learn_every": None, "batch_size": 2, **options})
    return task_of(make, helper, partial(R2D2, sequence=4, burn_in=2, n_step=2, epsilon=0.5), RecurrentQ)


def task_of(make, helper, algorithm, model):
    env = make()
    view = PlayerView(env, env.possible_agents[0])
    return ComputationTask(lambda: algorithm(model(view.observation_space, view.action_space, hidden=(4,), size=3)), helper)


def check_memories(robot):
    """The memory of each row is what the model makes of that player's own rows before it, since it began: 0 at first. Where a
    checkpoint cuts rows off in the middle of an episode, it goes on. Returns how many rows there were, and how many began."""
    algorithm, n, begun = robot.tasks["RL"].algorithm, 0, 0
    for agent in robot.agents:
        for helper in agent.helpers.values():
            rows = robot.buffers["RL"].lane_rows(helper.lanes.start)
            inputs = Batch.nest({name: torch.as_tensor(np.array(part)) for name, part in rows.items()
                                 if name.split(".")[0] in ("obs", "state")})
            with torch.no_grad():
                after = Batch(algorithm.predict(inputs)).state
            ends = rows["terminated"] | rows["truncated"]
            (seen,) = [name for name in rows if name in ("obs", "obs.obs", "obs.whole")]
            goes_on = (rows[seen.replace("obs", "obs_next", 1)][:-1] == rows[seen][1:]).reshape(len(ends) - 1, -1).all(1)
            assert (goes_on | ends[:-1]).all()
            begins = np.concatenate([[True], ~goes_on])
            for name, part in after.items():
                expected = np.roll(np.asarray(part), 1, axis=0)
                expected[begins] = 0.0
                np.testing.assert_allclose(rows[f"state.{name}"], expected, atol=1e-6, err_msg=helper.title)
            n, begun = n + len(ends), begun + int(begins.sum())
    return n, begun


class Dressed(pettingzoo.utils.BaseWrapper):
    """Shows the number that an environment has as a Dict, or as a number and a mask."""

    def __init__(self, env, kind):
        super().__init__(env)
        self.kind = kind

    def observation_space(self, agent):
        number = self.env.observation_space(agent)
        if self.kind == "dict":
            return gym.spaces.Dict({"whole": number, "parity": gym.spaces.MultiBinary(2)})
        return gym.spaces.Dict({"observation": number, "action_mask": gym.spaces.Box(0, 1, (3,), np.int8)})

    def observe(self, agent):
        number = self.env.observe(agent)
        if self.kind == "dict":
            return {"whole": number, "parity": np.eye(2, dtype=np.int8)[int(number[0]) % 2]}
        return {"observation": number, "action_mask": (np.arange(3) != number[0] % 3).astype(np.int8)}


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
@pytest.mark.parametrize("task", [actor_critic, q_learner])
@pytest.mark.parametrize(("seed", "kind"), [(0, "plain"), (3, "dict"), (3, "masks")])
def test_each_remembers_its_own_turns_since_it_began(seed, kind, task, driver):
    """Others take several turns between two of a player, episodes end in theirs, players leave and come back in the same one."""
    def make():
        env = rude(seed, 3, steps=30, back=True)
        return env if kind == "plain" else Dressed(env, kind)

    env = make()
    with Robot(env, tasks={"RL": task(make)}, agent=TurnAgent, seed=seed, driver=driver) as robot:
        for _ in range(4):
            robot.collect(n_episode=2)
            robot.checkpoint_boundary()
        rows, begun = check_memories(robot)
        turns = env.unwrapped.turns
        expected = {f"p{i}": rows_of_turns(turns, f"p{i}") for i in range(3)}
        assert rows == sum(map(len, expected.values())) > 100 and begun > 3 * robot.episodes
        for helper in robot.agents[0].helpers.values():
            found = robot.buffers["RL"].lane_rows(helper.lanes.start)
            assert found["rew"].tolist() == [row[2] for row in expected[helper.role]]
            if kind == "masks":
                first = found["obs.obs"][:, 0] % 3
                assert not (found["act"] == first).any(), "nobody does what its own mask forbids"


class Revolving(pettingzoo.ParallelEnv):
    """Two players, each of whom is there for three steps, away for one or two, and back again; nine steps in all."""

    metadata = {"name": "revolving"}
    possible_agents = ["p0", "p1"]

    def observation_space(self, agent):
        return gym.spaces.Box(0, 99, (1,), np.float32)

    def action_space(self, agent):
        return gym.spaces.Discrete(2)

    def there(self):
        return [] if self.t == 9 else [name for i, name in enumerate(self.possible_agents) if (self.t + 3 * i) % (4 + i) < 3]

    def seen(self, agents):
        return {name: np.array([self.t], np.float32) for name in agents}

    def reset(self, seed=None, options=None):
        self.t = 0
        self.agents = self.there()
        return self.seen(self.agents), {name: {} for name in self.agents}

    def step(self, actions):
        self.t, acted = self.t + 1, self.agents
        self.agents = self.there()
        left = {name: name not in self.agents for name in acted}
        return (self.seen({*acted, *self.agents}), dict.fromkeys(acted, 1.0),
                {name: left[name] and self.t < 9 for name in acted}, {name: left[name] and self.t == 9 for name in acted},
                {name: {} for name in acted})


@pytest.mark.parametrize("task", [actor_critic, q_learner])
def test_who_comes_back_among_those_who_act_at_once_remembers_nothing(task):
    with Robot(Revolving, tasks={"RL": task(Revolving)}, agent=SimultaneousAgent) as robot:
        robot.collect(n_episode=2)
        assert check_memories(robot) == (2 * (7 + 5), 2 * (3 + 2))


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
@pytest.mark.parametrize("task", [actor_critic, q_learner])
def test_those_who_act_at_once_remember_their_own(task, driver):
    def make():
        return leaving(4, 9, 6, box=True, cut=(1,))

    with Robot(make, tasks={"RL": task(make)}, agent=SimultaneousAgent, n_agents=2, driver=driver) as robot:
        robot.collect(n_episode=6)
        rows, begun = check_memories(robot)
        assert rows >= 6 * 19 and begun >= 3 * 6


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
def test_memories_go_on_over_checkpoints(driver, tmp_path):
    """Saved and loaded in the middle of games, with masks: the rows that wait have the memory of their own prediction."""
    def make():
        return aec_of(TicTacToe())

    for i, n in enumerate((13, 10, 17, 4)):
        with Robot(make, tasks={"RL": q_learner(make)}, agent=TurnAgent, seed=7, driver=driver) as robot:
            if i:
                robot.load(tmp_path / str(i))
            robot.run(n)
            robot.save(tmp_path / str(i + 1))
            robot.run(3)
            robot.save(tmp_path / str(i + 1))
            assert robot.metrics().get("episodes_cut", 0) == 0
            rows, begun = check_memories(robot)
    assert rows >= 50 and begun == pytest.approx(2 * robot.episodes, abs=2)


@pytest.mark.parametrize("driver", ["cooperative", "threads", pytest.param(Processes(workers=1), marks=pytest.mark.slow)],
                         ids=["cooperative", "threads", "processes"])
@pytest.mark.parametrize("task, options", [(actor_critic, {"unroll": 5}), (q_learner, {"learn_every": 4, "warmup": 40})])
def test_a_run_of_players_with_a_memory_goes_on_exactly(task, options, driver, tmp_path):
    def make():
        return aec_of(TicTacToe())

    def robot(seed):
        return Robot(make, tasks={"RL": task(make, **options)}, agent=TurnAgent, seed=seed, driver=driver, trace=True,
                     n_agents=1 if driver == "threads" else 2)  # of threads the order is not promised

    left = []
    with robot(1) as whole, robot(2) as other:
        whole.run(67)
        whole.save(tmp_path / "mid")
        other.load(tmp_path / "mid")
        for one in (whole, other):
            one.run(60)
            left.append((one.trace_hash(), one.tasks["RL"].algorithm.model.weights_hash(), one.tasks["RL"].learns))
    assert left[0] == left[1] and left[0][2] > 5
