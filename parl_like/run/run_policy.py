"""run_policy: a plain function acts in an environment, and its episodes are counted as those of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

from parl_like.agents.agent import Agent
from parl_like.environment.factory import EnvSource, factory_of, is_made, several_players
from parl_like.environment.hooks import Hook, hooks_of
from parl_like.environment.stop_conditions import StopAfterEpisodes, StopCondition
from parl_like.run.evaluation import Episodes, Quotas
from parl_like.run.film import filmed
from parl_like.run.robot import Robot
from parl_like.run.robot_checks import check_film


def run_policy(
    policy: Callable[[Any], object], env: EnvSource, stop: StopCondition | int | None = None,
    hooks: Hook | Iterable[Hook] = (), *, seed: int = 0, film: str | Path | None = None,
) -> Episodes:
    """Runs a plain function observation → action, without tasks or learning: `run_policy(lambda obs: 0, "CartPole-v1")`.

    Args:
        policy: Anything callable. It is given the observation alone; one that looks at the environment keeps it:
            `run_policy(lambda obs: env.action_space.sample(), env)`.
        stop: As for `Robot.run`; None: after one episode.
        env: As for `Robot`; anything with gymnasium's `reset` and `step`, spaces are not needed. An environment itself is not
            closed.
        film: File for an animation of the run, see `Robot.play`.

    Returns:
        The episodes that ended, as `Robot.evaluate` returns them: `mean_return`, `lengths`, `success_rate`, ….

    Raises:
        TypeError: the policy cannot be called. ValueError: the environment is a vector environment; or there is to be a film,
            and the environment does not draw itself.
    """
    if not callable(policy):
        raise TypeError(f"run_policy: policy is {policy!r}; expected a function observation → action; a robot's policy is "
                        "run by robot.evaluate()")
    if film is None:
        return _run(policy, env, stop, hooks_of(hooks), seed)
    check_film(film)
    seen: list[Episodes] = []

    def watch(camera: Hook, drawn: EnvSource) -> float:
        seen.append(_run(policy, drawn, stop, [*hooks_of(hooks), camera], seed))
        return 0.0

    filmed(film, env if is_made(env) else factory_of(env), watch)
    return seen[0]


def _run(policy: Callable[[Any], object], env: EnvSource, stop: StopCondition | int | None, hooks: list[Hook],
         seed: int) -> Episodes:
    class PolicyAgent(Agent):
        def run_one_episode(self) -> None:
            obs, _ = self.env.reset()
            while not self.env.is_over:
                obs = self.env.step(policy(obs))[0]

    with Robot(env, tasks={}, agent=PolicyAgent, seed=seed) as robot:
        robot.pool.borrowed = is_made(env)
        if robot.agents[0].env.owes_rows:
            raise several_players(robot.agents[0].env.unwrapped)
        if (n := getattr(robot.agents[0].env, "num_envs", None)) is not None:
            raise ValueError(f"run_policy: the environment is {n} environments at once; give it a single one")
        begin, quotas = perf_counter(), Quotas(robot.agents, infos=True)
        robot.run(StopAfterEpisodes(1) if stop is None else stop, [quotas, *hooks])
        return quotas.episodes(robot.env_steps, perf_counter() - begin)
