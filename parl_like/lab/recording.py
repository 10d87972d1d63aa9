"""Recording: episodes of a trained run, or what it has stored while it learned, become a data set."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np
from msgspec import structs

from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.buffers.saving import HDF5, save_buffer
from parl_like.data.datasets import from_arrays, from_episodes, rows_hash, to_arrays, to_minari
from parl_like.data.storage.archive import check_place
from parl_like.data.storage.tree_encoding import versions
from parl_like.environment.factory import EnvSource, make_one, one_player
from parl_like.lab import runner
from parl_like.lab.recorded import DATA_DIR, POLICIES, Policy, Provenance, hashes, missing, recipes
from parl_like.lab.runs.checkpoint import Checkpoints
from parl_like.lab.runs.rundir import RunDir, git_state
from parl_like.lab.runs.trained import Train, train_to_the_end
from parl_like.lab.writing import written
from parl_like.lab.yaml_text import UsageError
from parl_like.learning.explorers.uniform import random_legal
from parl_like.run.evaluation import EPISODE_LIMIT
from parl_like.values.errors import unknown
from parl_like.values.spec import Array, leaves, nest

if TYPE_CHECKING:
    from parl_like.run.robot import Robot

SEED = 2_000_000
"""Episodes are seeded with this plus the run's seed: other start states than those of evaluations."""
REFERENCE_EPISODES = 50
"""Episodes of random actions, whose mean return counts as 0."""
TRIAL_EPISODES = 20
"""Episodes of each checkpoint that may be the medium one."""


class PlayedEpisode(NamedTuple):
    """One episode as Minari has it, see `parl_like.data.datasets.from_episodes`."""

    id: int
    observations: Any
    actions: Any
    rewards: Array
    terminations: Array
    truncations: Array


class EpisodeRecorder(gym.Wrapper[Any, Any, Any, Any]):
    """Notes what is played in an environment: each episode that has come to its end, in `episodes`.

    Args:
        episodes: The list that they are added to.
    """

    def __init__(self, env: gym.Env[Any, Any], episodes: list[PlayedEpisode]) -> None:
        super().__init__(env)
        self.episodes = episodes
        self._obs: list[Any] = []
        self._rows: list[tuple[Any, float, bool, bool]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As that of the environment."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._obs, self._rows = [_copied(obs, "obs")], []
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As that of the environment; an episode of `EPISODE_LIMIT` steps is truncated."""
        taken = _copied(action, "act")  # before the environment may change it
        obs, rew, terminated, truncated, info = self.env.step(action)
        truncated = bool(truncated) or len(self._rows) + 1 >= EPISODE_LIMIT
        self._obs.append(_copied(obs, "obs"))
        self._rows.append((taken, float(rew), bool(terminated), truncated))
        if terminated or truncated:
            acts, rewards, terminations, truncations = zip(*self._rows, strict=True)
            self.episodes.append(PlayedEpisode(len(self.episodes), _stacked(self._obs, "obs"), _stacked(acts, "act"),
                                               np.array(rewards), np.array(terminations), np.array(truncations)))
            self._obs, self._rows = [], []
        return obs, rew, terminated, truncated, info


def record(run_dir: str | Path, out: str | Path, *, policy: Policy = "expert", episodes: int = 20, checkpoint: str = "",
           seed: int | None = None, minari: str = "", source: str = "", overrides: Mapping[str, Any] | None = None) -> Provenance:
    """Writes a data set, and returns what its manifest says of it.

    Args:
        run_dir: A run of one environment with one player.
        out: The directory to make; `ReplayBuffer.load` and `OfflineHelper` read it.
        policy: `expert`: the run's policy, as evaluations play it. `medium`: that of the checkpoint whose score is nearest to the
            middle between random actions and the expert. `replay`: what the run has stored while it learned: `episodes` of
            them, evenly over time, or all. `random`: actions drawn evenly.
        checkpoint: Of the policy, or of the replay; empty: the latest, for `medium` chosen as above.
        seed: Of the environments; None: 2,000,000 plus the run's.
        minari: Id of a Minari data set that is made, too.
        source, overrides: As for `parl_like.lab.runner.resume`.

    Raises:
        UsageError: there is no such run, policy or checkpoint, the run has no environment of one player, or no replay, or
            something else is at `out`.
        ImportError: minari is missing.
    """
    if policy not in POLICIES:
        raise UsageError(f"record: {unknown('policy', policy, POLICIES)}")
    with written(f"rows to {out}", "--out"):
        if not str(out).endswith(HDF5):
            check_place(Path(out))  # before anything is played
    run, given = RunDir.open(run_dir), dict(overrides or {})
    where = {"source": source, **given}
    with closing(runner.load_run(run.path, checkpoint=checkpoint or "latest", **where)) as robot:
        env_source = robot.evaluator.source(None)
        first = SEED + robot.seed if seed is None else seed
        rng = np.random.default_rng(first)
        random_return = float(np.mean([one.rewards.sum() for one in at_random(env_source, REFERENCE_EPISODES, rng)]))
        evaluated = ((run.result() or {}).get("evaluation") or {}).get("mean_return")
        expert_return = float(robot.evaluate(TRIAL_EPISODES).mean_return if evaluated is None else evaluated)
        step, probe = robot.env_steps, one_env(env_source)
        with closing(probe):
            spaces = probe.observation_space, probe.action_space
        if policy == "replay":
            buffer = replay_of(robot, episodes, spaces[1], str(run.path))
        else:
            if policy == "random":
                played, step = at_random(env_source, episodes, rng), 0
            elif policy == "medium" and not checkpoint:
                step = _medium_step(run, where, (random_return + expert_return) / 2)
                with closing(runner.load_run(run.path, checkpoint=str(step), **where)) as medium:
                    played = played_by(medium, episodes, first)
            else:
                played = played_by(robot, episodes, first)
            buffer = from_episodes(played, *spaces, source="record")
        env_id = type(probe).__name__ if probe.spec is None else str(probe.spec.id)
    returns, info, git = returns_of(buffer), run.info(), git_state()
    provenance = Provenance(
        policy=policy, experiment=info.experiment, differs=info.differs, seed=robot.seed, step=step, env=env_id,
        episodes=len(returns), rows=len(buffer), mean_return=float(np.mean(returns)), std_return=float(np.std(returns)),
        random_return=random_return, expert_return=expert_return, sha256=rows_hash(buffer), versions=versions(),
        commit="" if git is None else git.commit)
    with written(f"rows to {out}", "--out"):
        save_buffer(buffer, out, meta={"provenance": structs.asdict(provenance)})
    if minari:
        to_minari(buffer, minari, observation_space=spaces[0], action_space=spaces[1], algorithm_name=info.experiment,
                  description=f"{policy} policy of {info.experiment}, seed {robot.seed}, step {step}; rows {provenance.sha256}")
    return provenance


def make(name: str, out: str | Path = "", train: Train | None = None, say: Callable[[str], object] = print) -> Provenance:
    """Make the data set of this name of `robots/datasets.yaml`, in `data/NAME` or `out`; its run is trained first, below
    `runs/data`, unless it is there.

    Raises:
        UsageError: there is no such data set. RunError: the run failed.
    """
    known = recipes()
    if name not in known:
        raise UsageError(unknown("data set", name, known))
    one = known[name]
    words = [f"{key}={value}" for key, value in one.config.items()]
    run = Path("runs", "data", f"{one.experiment}_s{one.seed}")
    say(f"data set {name}: {one.policy} episodes of {run}, which is trained first unless it is there ...")
    train_to_the_end(one.experiment, one.seed, run, words, train)
    return record(run, out or os.path.join(DATA_DIR, name), policy=one.policy, episodes=one.episodes)


def rows_of(settings: Mapping[str, object], train: Train | None = None, say: Callable[[str], object] = print) -> dict[str, str]:
    """Return the sha256 of the data sets among the settings of a robot, by name or path; what has a name is made first where it
    is not there."""
    for name in missing(settings):
        make(name, train=train, say=say)
    return hashes(settings)


def returns_of(buffer: ReplayBuffer) -> Array:
    """Return the undiscounted return of each episode, [episodes]; of the last one as far as it is there."""
    rows = to_arrays(buffer)
    ends = np.flatnonzero(rows["terminated"] | rows["truncated"])
    return np.add.reduceat(rows["rew"], np.r_[0, ends[ends < len(rows["rew"]) - 1] + 1])


def one_env(source: EnvSource) -> Any:
    """An environment of a source. Raises UsageError where it is a vector environment, or has several players."""
    env = make_one(source)
    try:
        one_player(env)
    except TypeError as error:
        raise UsageError(f"record: {error}") from None
    if isinstance(env, gym.vector.VectorEnv):
        raise UsageError("record: the run's environment is a vector environment; give single ones: env.vector=0")
    return env


def played_by(robot: Robot, episodes: int, seed: int) -> list[PlayedEpisode]:
    """Return episodes of a robot, as evaluations play them; `seed` is that of the environments."""
    found: list[PlayedEpisode] = []
    source = robot.evaluator.source(None)
    robot.evaluate(episodes, seed=seed, env=lambda: EpisodeRecorder(one_env(source), found), n_agents=1)
    return found[:episodes]


def at_random(source: EnvSource, episodes: int, rng: np.random.Generator) -> list[PlayedEpisode]:
    """Return episodes of actions that are drawn evenly, legal ones where observations have a `mask`."""
    found: list[PlayedEpisode] = []
    with closing(EpisodeRecorder(one_env(source), found)) as env:
        while len(found) < episodes:
            obs, _ = env.reset(seed=int(rng.integers(2**31)))
            over = False
            while not over:
                obs, _, terminated, truncated, _ = env.step(random_legal(env.action_space, rng, obs))
                over = terminated or len(found) == episodes or truncated
    return found


def replay_of(robot: Robot, episodes: int, action_space: gym.Space[Any], name: str) -> ReplayBuffer:
    """Return what a robot has stored: so many whole episodes, evenly over time, or all there are; raises UsageError."""
    buffers = [one for one in robot.buffers.values() if isinstance(one, ReplayBuffer) and len(one)]
    if not buffers:
        raise UsageError(f"{name} keeps no rows that it has learned from, so there is no replay; record another policy, or a run "
                         "whose helper has a buffer (OffPolicyHelper)")
    rows = to_arrays(buffers[0])
    flat = {key: column for key, column in leaves(rows, "")
            if key.split(".")[0] in ("obs", "act", "rew", "terminated", "truncated", "obs_next")}
    ends = np.flatnonzero(flat["terminated"] | flat["truncated"]) + 1
    if not len(ends):
        raise UsageError(f"{name} has stored no whole episode; train for longer")
    starts = np.r_[0, ends[:-1]]
    chosen = np.unique(np.linspace(0, len(ends) - 1, min(episodes, len(ends))).round().astype(int))
    index = np.concatenate([np.arange(starts[i], ends[i]) for i in chosen])
    return from_arrays(**nest({key: column[index] for key, column in flat.items()}), action_space=action_space)


def _medium_step(run: RunDir, where: Mapping[str, Any], middle: float) -> int:
    """The step of the checkpoint whose mean return is nearest to `middle`."""
    scores = {}
    for step in Checkpoints(run.checkpoints).steps():
        with closing(runner.load_run(run.path, checkpoint=str(step), **where)) as robot:
            scores[step] = abs(robot.evaluate(TRIAL_EPISODES, seed=SEED).mean_return - middle)
    return min(scores, key=lambda step: scores[step])


def _copied(value: object, name: str) -> dict[str, Array]:
    return {key: np.array(leaf) for key, leaf in leaves(value, name)}


def _stacked(values: Any, name: str) -> Any:
    """Rows of flat names as nested columns [T, …]."""
    return nest({key: np.stack([one[key] for one in values]) for key in values[0]})[name]
