"""AgentPool: what a robot, an evaluation and a worker process have, and none of them is."""

import ast
import gc
import inspect
import weakref

import pytest
from agent_fakes import Corridor, Recorder, robot_of

from parl_like import OffPolicyHelper, Robot
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.run.agent_maker import AgentMaker
from parl_like.run.agent_pool import AgentPool
from parl_like.run.helper_maker import HelperMaker
from parl_like.run.lifecycle import Lifecycle
from parl_like.run.run_hooks import RunHooks
from parl_like.run.statistics import Statistics


def robot(n_agents=2, **options):
    return robot_of(Recorder(), lambda: OffPolicyHelper(size=100, batch_size=2, learn_every=2), n_agents=n_agents, **options)


def test_a_robot_has_a_pool_and_is_none():
    assert not issubclass(Robot, AgentPool)
    with robot() as made:
        pool = made.pool
        assert made.agents is pool.agents and made.wrappers is pool.wrappers and made.statistics is pool.statistics
        assert [(agent.agent_pool, agent.robot) for agent in made.agents] == [(pool, made)] * 2
        made.run(10)
        assert (made.env_steps, made.episodes) == (pool.env_steps, pool.episodes) == (10, pool.statistics.episodes)
        assert made.agents[0].robot.env_steps == 10  # also while they wait for the next run
        made.run(10)
        assert made.env_steps == 20


def test_agents_that_join_and_leave_are_seen_by_robot_and_pool():
    with robot(1) as made:
        new, = made.add_agents(1)
        assert made.agents == made.pool.agents and new in made.agents and new.robot is made
        made.remove_agent(new)
        assert made.agents == made.pool.agents and len(made.agents) == 1


def test_what_an_evaluation_counts_is_not_the_robots():
    with robot() as made:
        asked = []

        class Asks(StopAfterSteps):
            def __call__(self, of):
                asked.append(of)
                return super().__call__(of)

        with made.evaluator.pool(1, 0, made.pool.options.env, Asks(3), None) as pool:
            while pool.lifecycle.advance():
                pass
            assert (pool.env_steps, made.env_steps) == (3, 0)
            assert pool.statistics is not made.statistics and {id(of) for of in asked} == {id(pool)}
            assert pool.robot is pool and pool.tasks["RL"] is made.tasks["RL"]


def test_a_robot_that_is_forgotten_while_its_agents_wait_goes_with_its_pool():
    made = robot()
    made.run(10)
    gone = weakref.ref(made), weakref.ref(made.pool)
    envs = [agent.env for agent in made.agents]
    del made
    gc.collect()
    assert [each() for each in gone] == [None, None] and all(isinstance(env.unwrapped, Corridor) for env in envs)


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
def test_a_robot_that_was_closed_after_a_run_is_gone_when_nobody_has_it(driver):
    made = robot(driver=driver)
    for _ in range(2):
        made.run(10)
    made.close()
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("kind", [Robot, AgentPool, AgentMaker, HelperMaker, Lifecycle, RunHooks, Statistics])
def test_a_pool_and_its_parts_have_few_attributes_and_methods(kind):
    nodes = list(ast.walk(ast.parse(inspect.getsource(kind))))
    assigned = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name) and node.value.id == "self"}
    methods = sum(isinstance(node, ast.FunctionDef) for node in nodes)
    assert len(assigned) <= 20 and methods <= (45 if kind is Robot else 30), (assigned, methods)
