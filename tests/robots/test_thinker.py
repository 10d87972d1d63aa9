"""Thinker as a robot: what its tasks are given, that runs repeat and resume, that agents do not disturb each other, and its
configuration."""

import gc
import io
import json
from collections import defaultdict

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like.environment.hooks import EveryNSteps
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.envs.sokoban import Levels
from parl_like.envs.thinker.layout import Layout
from parl_like.envs.thinker.snapshots import EnvSnapshots, snapshots_of
from parl_like.envs.vector import make_vector_env
from parl_like.lab import config as configs
from parl_like.lab import experiment as experiments
from parl_like.lab import runner, session
from parl_like.lab.yaml_text import ConfigError
from parl_like.learning.algorithm import value_of
from parl_like.robots.thinker import Config, ThinkerAgent, build
from parl_like.values.errors import TaskFailed

torch.set_num_threads(1)

SOKOBAN = dict(env_options=dict(size=5, n_boxes=1, obs="planes", max_steps=12))
LIVES = dict(env="ThinkerLives-v0")
TINY = dict(
    env_n=4, rec_t=3, max_depth=2, actor_unroll_len=12, model_downscale_c=32, model_strides=(1, 1, 1, 1), widths=(4, 4, 4),
    total_steps=400, model_batch_size=4,
    model_unroll_len=2, model_return_n=2, model_buffer_n=400, model_warm_up_n=40, max_replay_ratio=1.0, trace=True,
)  # fmt: skip


class Lives(gym.Env):
    """A game of two lives and at most 9 steps. A lost life is an end, after which the same game goes on; image 0 shows the step
    of the game.

    Reward (2 · step + action) / 4, actions from 1: so a row tells by itself whether observation, action and reward belong
    together.
    """

    action_space = gym.spaces.Discrete(3, start=1)
    observation_space = gym.spaces.Box(0, 255, (2, 4, 4), np.uint8)

    def __init__(self):
        self.over, self.closed, self.picture = True, 0, np.zeros((2, 4, 4), np.uint8)

    def see(self):
        self.picture[0], self.picture[1] = self.t, self.mark  # the same array each time
        return self.picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.over or seed is not None:
            self.t, self.lives, self.mark = 0, 2, int(self.np_random.integers(256))
        self.over = False
        return self.see(), {"real_done": False}

    def step(self, act):
        assert self.action_space.contains(act)
        rew = (2 * self.t + int(act)) / 4
        self.t, self.mark = self.t + 1, (self.mark * 5 + int(act)) % 256
        lost = self.mark % 4 == 0
        self.lives -= lost
        truncated = self.t >= 9 and not lost
        self.over = self.lives == 0 or truncated
        return self.see(), rew, lost, truncated, {"real_done": self.over}

    def clone_state(self):
        return {"game": (self.t, self.mark, self.lives, self.over), "rng": self.np_random.bit_generator.state}

    def restore_state(self, state):
        self.t, self.mark, self.lives, self.over = state["game"]
        self.np_random.bit_generator.state = state["rng"]

    def close(self):
        self.closed += 1


gym.register("ThinkerLives-v0", entry_point=Lives)


def config(**options):
    return Config(**{**TINY, **({} if "env" in options else SOKOBAN), **options})


def go_on(robot, steps):
    for _ in robot.iterate(steps):
        pass
    return robot


def copied(tree):
    return {name: np.array(value) for name, value in tree.items() if isinstance(value, np.ndarray) and value.dtype != object}


def tensors(obs):
    return {name: torch.from_numpy(np.asarray(value)) for name, value in obs.items()}


def watch(robot, agent=0):
    """The events of an agent, one for each augmented step, with the distribution of the real head as the weights were when it
    acted."""
    member, events = robot.agents[agent], []
    remember, model = member.remember, robot.tasks["plan"].algorithm.model

    def spy(obs, act, rew, terminated, truncated, info):
        with torch.no_grad():
            features = model._features(tensors(obs), None, None)[0]
            real = torch.softmax(model.head.linear(features)[:, : model.n], 1).numpy()
        events.append(dict(obs=copied(obs), act=act.copy(), rew=rew.copy(), obs_next=copied(member.env.obs_next),
                           terminated=terminated.copy(),
                           truncated=truncated.copy(), info=copied(info), real=real,
                           log_prob=member.helpers["plan"].outputs["log_prob"].copy()))
        remember(obs, act, rew, terminated, truncated, info)

    member.remember = spy
    return events


# ------------------------------------------------------------------------------------------------------ what the world model gets


@pytest.mark.parametrize("options", [
    dict(rec_t=1), dict(rec_t=2, tree_carry=False), dict(), dict(layout="G2", reward_clip=1.5), dict(planning="perfect"),
    dict(n_agents=2),
    dict(driver="threads", n_agents=2),
], ids=str)  # fmt: skip
def test_a_row_of_the_world_model_is_one_real_step(options):
    """Observation, action, reward and end of it; the baseline of its root; the distribution that its action is from."""
    config_ = config(**LIVES, **options)
    ends = 0
    with build(config_) as robot:
        watched = [watch(robot, i) for i in range(config_.n_agents)]
        go_on(robot, 120)
        layout = Layout(3, config_.rec_t, config_.max_depth, config_.layout)
        robot.checkpoint_boundary()
        for agent, events in zip(robot.agents, watched, strict=True):
            imagined = [bool(e["info"]["imagined"].all()) for e in events[: 2 * config_.rec_t]]
            assert imagined == ([True] * (config_.rec_t - 1) + [False]) * 2
            real = [e for e in events if not e["info"]["imagined"].any()]
            for i, lane in enumerate(agent.helpers["model"].lanes):
                rows = robot.buffers["model"].lane_rows(lane)
                assert len(rows["rew"]) == len(real) > 10
                for j, event in enumerate(real):
                    act, obs = rows["act"][j], rows["obs"][j]
                    assert act == event["act"][i, 0] and act in range(3)
                    np.testing.assert_array_equal(obs, event["obs"]["real_states"][i])
                    assert rows["rew"][j] == (2 * obs[0, 0, 0] + act + 1) / 4  # the same step's, and as the environment gave it
                    assert event["obs_next"]["last_rew"][i, 0] == min(rows["rew"][j], config_.clip or np.inf)
                    assert rows["terminated"][j] == event["terminated"][i]
                    cut = j == len(real) - 1
                    assert rows["truncated"][j] == event["truncated"][i] or cut
                    np.testing.assert_allclose(rows["action_prob"][j], event["real"][i], rtol=1e-4)
                    entries = {name: value[i] for name, value in layout.decode(event["obs"]["tree_reps"]).items()}
                    if config_.rec_t == 1:  # all that is known of the root is its value
                        assert rows["baseline"][j] == pytest.approx(entries["root_v"].item(), abs=1e-5)
                    elif config_.rec_t == 2:  # and one rollout
                        expected = (entries["root_v"] + entries["root_trail_q"]).item() / 2
                        assert rows["baseline"][j] == pytest.approx(expected, abs=1e-5)
                    assert (
                        event["obs_next"]["real_states"][i][0, 0, 0] == obs[0, 0, 0] + 1
                    )  # at an end the true final observation
                    if not cut and not event["terminated"][i] and not event["truncated"][i]:
                        np.testing.assert_array_equal(rows["obs"][j + 1], event["obs_next"]["real_states"][i])
                    ends += event["terminated"][i] or event["truncated"][i]
        assert ends > 10
        assert any(e["terminated"].any() and not e["info"]["real_done"].all() for e in watched[0])  # lives were lost


# ---------------------------------------------------------------------------------------------------------- what the planner gets


def slow_vtrace(rew, discount, value, value_next, rho, cut):
    """V-trace as the specification writes it (6.3), for one environment; `value_next` [T], `cut` [T]: nothing flows over it."""
    targets, advantages = np.zeros(len(rew)), np.zeros(len(rew))
    for t in reversed(range(len(rew))):
        clipped = min(1.0, rho[t])
        ahead = value_next[t] if cut[t] else targets[t + 1]
        delta = clipped * (rew[t] + discount[t] * value_next[t] - value[t])
        targets[t] = value[t] + delta + discount[t] * clipped * (ahead - value_next[t])
        advantages[t] = clipped * (rew[t] + discount[t] * ahead - value[t])
    return targets, advantages


def test_both_streams_learn_from_what_happened():
    """Targets and advantages, computed once more from the events of the run, with the weights of a policy that is not the one
    that acted."""
    updates = []
    with build(config(**LIVES, max_replay_ratio=0.01)) as robot:
        task, events = robot.tasks["plan"], watch(robot)
        algorithm, learn, targets = task.algorithm, task.algorithm.learn, task.algorithm.targets

        def spy_targets(i, batch, value, boot, log_ratio):
            out = targets(i, batch, value, boot, log_ratio)
            updates[-1].append([part.numpy().copy() for part in out])
            return out

        def spy(batch):
            with torch.no_grad():
                for k, parameter in enumerate(algorithm.model.parameters()):  # an older policy acted
                    parameter += 0.05 * torch.sin(torch.arange(parameter.numel()) + k).view_as(parameter)
            updates.append([])
            expected = [slow(i) for i in range(4)]
            out = learn(batch)
            for stream, (target, advantage, counts) in enumerate(updates[-1]):
                ours = [np.concatenate([e[stream][part] for e in expected]) for part in range(3)]
                np.testing.assert_allclose(target, ours[0], rtol=2e-4, atol=2e-4)
                np.testing.assert_allclose(advantage, ours[1], rtol=2e-4, atol=2e-4)
                np.testing.assert_array_equal(counts, ours[2])
            return out

        def slow(i):
            """Of environment i: (targets, advantages, counts) of the real and of the planning reward."""
            steps = events[-12:]
            obs = {name: np.stack([e["obs"][name][i] for e in steps]) for name in steps[0]["obs"]}
            after = {name: np.stack([e["obs_next"][name][i] for e in steps]) for name in steps[0]["obs"]}
            with torch.no_grad():
                value, value_next = (algorithm.model.value(tensors(x)).numpy() for x in (obs, after))
                act = torch.from_numpy(np.stack([e["act"][i] for e in steps]))
                now = algorithm.model.head.log_prob(algorithm.model.policy(tensors(obs))[0], act).numpy()
            rho = np.exp(now - np.array([e["log_prob"][i] for e in steps]))
            assert (np.abs(rho - 1) > 1e-3).any()
            terminated, truncated = (np.array([e[name][i] for e in steps]) for name in ("terminated", "truncated"))
            before, status = obs["step_status"], np.array([e["info"]["step_status"][i] for e in steps])
            cut = terminated | truncated
            cut[-1] = True
            per_row = 0.97 ** (1 / 3)
            real = slow_vtrace(np.array([e["rew"][i] for e in steps]), per_row * ~terminated, value[:, 0], value_next[:, 0], rho,
                               cut)
            gain = np.array([e["info"]["im_reward"][i] for e in steps])
            planning = slow_vtrace(gain, per_row * ~np.isin(status, (2, 3)), value[:, 1], value_next[:, 1], rho, cut)
            return (*real, np.ones(12, bool)), (*planning, ~np.isin(before, (2, 3)))

        algorithm.learn, algorithm.targets = spy, spy_targets
        go_on(robot, 100)
    assert len(updates) == 7 and all(len(update) == 2 for update in updates)
    counts = updates[0][1][2]
    assert counts.reshape(4, 4, 3).tolist() == [[[True, True, False]] * 4] * 4


@pytest.mark.parametrize("options",
                         [dict(return_norm="targets"), dict(return_norm="batch", rec_t=1), dict(tree_rep_rnn=True),
                          dict(see_x=True),
                                     dict(latent=True, see_h=False), dict(model_decoder_depth=4), dict(max_depth=0)], ids=str)
def test_variants_run(options):
    with go_on(build(config(**options)), 60) as robot:
        assert robot.counters()["updates/plan"] >= 1 and robot.counters()["updates/model"] >= 1 and robot.trace_hash()
        assert robot.evaluate(2).n_episodes == 2


# ----------------------------------------------------------------------------------------------------------------- the same again


@pytest.mark.parametrize("options", [
    dict(), dict(planning="perfect"), dict(planning="perfect", **LIVES), dict(planning="none", see_real_state=True, **LIVES),
    pytest.param(dict(n_agents=2, tree_rep_rnn=True, **LIVES), marks=pytest.mark.slow),
], ids=str)  # fmt: skip
def test_a_run_is_the_same_evaluated_saved_or_resumed(options, tmp_path):
    """Hidden states are in no checkpoint: trees start anew there."""
    traces = []
    for evaluated in (True, False):
        with go_on(build(config(**options)), 56) as robot:
            if evaluated:
                running = {name: net.state_dict() for name, net in robot.tasks["plan"].algorithm.networks().items()}
                kept = {f"{n}.{k}": v.clone() for n, tree in running.items() for k, v in tree.items()}
                assert robot.evaluate(5, n_agents=3, seed=1).n_episodes == 5
                assert all(torch.equal(v, kept[f"{n}.{k}"]) for n, tree in running.items() for k, v in tree.items())
            robot.save(tmp_path / str(evaluated))
            if evaluated:
                robot.evaluate(2)
            go_on(robot, 88)
            traces.append((robot.trace_hash(), robot.counters()))
    with build(config(**options)) as robot:
        robot.load(tmp_path / "True")
        traces.append((go_on(robot, 88).trace_hash(), robot.counters()))
    assert traces[0] == traces[1] == traces[2]


def test_a_run_of_the_lab_resumes_from_its_checkpoints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        experiment = experiments.get("tiny-thinker")
    except experiments.ExperimentError:
        experiment = experiments.register(
            experiments.Experiment(name="tiny-thinker", robot="thinker", config={**TINY, **SOKOBAN})
        )
    words = dict(total_steps=88, checkpoint_every=40, metrics_every=40, eval_episodes=2, tensorboard=False)

    def trace(run, **more):
        made = configs.resolve(Config, configs.to_dict(config()), {**words, "run_dir": run, **more})
        assert runner.train(experiment, made, stream=(screen := io.StringIO())) == session.FINISHED
        note = "Sokoban: 580 levels that were generated for this package (5x5-1-train)"
        assert json.loads((tmp_path / run / "result.json").read_text())["notes"] == [note]
        assert screen.getvalue().count(note + "\n") == 1 and note in (tmp_path / run / "events.jsonl").read_text()
        return json.loads((tmp_path / run / "result.json").read_text())["trace_hash"]

    whole = trace("whole")
    info = tmp_path / "whole" / "run.json"
    info.write_text(info.read_text().replace('"finished"', '"stopped"'))
    assert runner.resume("whole", which="48") == session.FINISHED
    assert json.loads((tmp_path / "whole" / "result.json").read_text())["trace_hash"] == whole


def test_a_finished_run_goes_on_to_more_steps(tmp_path):
    """The buffer is none of what total_steps decides."""
    with go_on(build(config(total_steps=64)), 64) as robot:
        robot.save(tmp_path / "finished")
    with build(config(total_steps=128)) as robot:
        robot.load(tmp_path / "finished")
        assert go_on(robot, 96).counters()["updates/model"] > 0 and len(robot.buffers["model"]) >= 96


def test_an_evaluation_says_nothing_to_learning():
    """Not how far the run is, which sets the learning rate, nor anything that stays behind."""
    with go_on(build(config()), 64) as robot:
        task = robot.tasks["model"]
        real_steps = task.algorithm.real_steps
        assert 0 < real_steps <= robot.env_steps
        gc.disable()
        try:
            sizes = []
            for _ in range(3):
                robot.evaluate(2, n_agents=2)
                sizes.append(task.row_slots.claim(robot, 1))  # the first free place
        finally:
            gc.enable()
        assert task.algorithm.real_steps == real_steps
        assert len(set(sizes)) == 1 + 2 and sizes[2] - sizes[0] == 2  # only our own claims lie between


def test_an_evaluation_by_a_hook_in_mid_stage_changes_nothing():
    traces = []
    for period in (10**9, 25):
        with build(config(n_agents=2)) as robot:
            robot.run(StopAfterSteps(64), EveryNSteps(period, lambda robot: robot.evaluate(1)))
            traces.append(robot.trace_hash())
    assert traces[0] == traces[1]


# -------------------------------------------------------------------------------------------------------------------- many agents


def test_agents_share_the_batches_of_both_tasks():
    with go_on(build(config(n_agents=3, tree_carry=False)), 60) as robot:
        plan, model = (robot.wrappers[name].predictions.counters for name in ("plan", "model"))
        assert plan.rows == 12 * plan.batches and plan.requests == 3 * plan.batches
        assert model.requests > 2.8 * model.batches > 28  # an agent all of whose trees have the node asks for nothing


def test_updates_come_as_often_whoever_steps():
    ratios = []
    for n in (1, 3):
        with go_on(build(config(n_agents=n, max_replay_ratio=0.5, rec_t=1)), 240) as robot:
            counters = robot.counters()
            ratios.append(counters["rows/model"] * 2 / (counters["env_steps"] - 40))  # model_unroll 2
            assert counters["updates/model"] == counters["rows/model"] / 4
    assert ratios == pytest.approx([0.5, 0.5], rel=0.15)


def places(monkeypatch):
    """Agent → places in the table that its requests name."""
    named, ask = defaultdict(set), ThinkerAgent._ask

    def spy(self, rows):
        named[self].update(rows["node"].tolist(), rows["parent"].tolist())
        return ask(self, rows)

    monkeypatch.setattr(ThinkerAgent, "_ask", spy)
    return named


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
def test_no_two_agents_use_one_place_of_the_table(driver, monkeypatch):
    named = places(monkeypatch)
    with go_on(build(config(n_agents=3, driver=driver)), 48) as robot:
        robot.evaluate(2, n_agents=2)
        assert len(named) == 5 and len(set().union(*named.values())) == sum(map(len, named.values()))
        evaluated = set().union(*(used for agent, used in named.items() if agent not in robot.agents))
        second = robot.agents[1]
        robot.remove_agent(second)
        robot.add_agents(2)
        go_on(robot, 96)
        living = [named[agent] for agent in robot.agents]
        assert len(set().union(*living)) == sum(map(len, living))
        assert named[robot.agents[2]] & named[second] and named[robot.agents[3]] & evaluated  # places are used again
        assert all(len(used) > 4 for used in living)


def test_a_tree_does_not_depend_on_who_else_plans():
    seen = []
    for n in (1, 3):
        with build(config(n_agents=n, actor_unroll_len=100, model_warm_up_n=300, driver="cooperative")) as robot:
            events = watch(robot)
            robot.collect(n_step=20 * 4 * n)
            seen.append(events[:60])
    for ours, theirs in zip(*seen, strict=True):
        np.testing.assert_array_equal(ours["act"], theirs["act"])
        for name in ("tree_reps", "hs"):
            np.testing.assert_allclose(ours["obs"][name], theirs["obs"][name], atol=1e-4)


@pytest.mark.parametrize("driver", ["cooperative", "threads"])
def test_a_world_model_that_fails_is_named_not_the_environment(driver):
    def boom(*_, **__):
        raise ArithmeticError("too much imagination")

    with build(config(n_agents=2, driver=driver)) as robot:
        robot.tasks["model"].algorithm.acting.recurrent = boom
        with pytest.raises(TaskFailed, match="task 'model': predict failed .*too much imagination"):
            robot.run(StopAfterSteps(50))


@pytest.mark.parametrize("seed", range(3))
def test_threads_that_are_stopped_in_mid_request_end_quietly(seed):
    with build(config(n_agents=3, driver="threads", seed=seed)) as robot:
        robot.run(StopAfterSteps(50 + seed))
        robot.run(StopAfterSteps(20))
        assert robot.env_steps >= 70


# ---------------------------------------------------------------------------------------------------------------------- schedules


@pytest.mark.parametrize(("n_agents", "batch", "rows"), [(1, 4, [48]), (2, 16, [96]), (2, 4, [48, 48]), (3, 8, [96, 48])])
def test_one_update_of_the_planner_is_the_unrolls_of_whole_agents(n_agents, batch, rows):
    """`actor_batch_size` environments, 4 of each agent, 12 rows of each environment; the next update has other agents' rows."""
    seen = []
    with build(config(n_agents=n_agents, actor_batch_size=batch, max_replay_ratio=0.01, **LIVES)) as robot:
        plan = robot.tasks["plan"].algorithm
        learn = plan.learn
        plan.learn = lambda batch: (seen.append(batch.obs["real_states"][:, 0, 0, 0].tolist()), learn(batch))[1]
        for _ in range(40):
            robot.train_iter()
            if seen:
                break
        assert [len(each) for each in seen] == rows and plan.updates == len(rows) and not robot.agents[0].helpers["plan"].dropped


@pytest.mark.parametrize(("n_agents", "batch"), [*(pytest.param(n, 16, marks=pytest.mark.slow) for n in (1, 2)), (2, 4)])
def test_schedules_end_with_the_run(n_agents, batch):
    with build(config(n_agents=n_agents, actor_batch_size=batch, priority_beta=0.4, im_cost=2.0, total_steps=240,
                      max_replay_ratio=0.5)) as robot:
        plan, model = (robot.tasks[name].algorithm for name in ("plan", "model"))
        beta = [robot.buffers["model"].beta]
        rates = []
        learn = model.learn
        model.learn = lambda batch: (rates.append(value_of(model.lr, model.updates)), beta.append(robot.buffers["model"].beta),
                                     learn(batch))[2]
        go_on(robot, 240)
        total = 240 // (16 * n_agents) if batch == 16 else 15
        assert total - 2 <= plan.updates <= total
        for schedule, first in ((plan.lr, 6e-4), (plan.streams[1].cost, 2.0)):
            assert value_of(schedule, 0) == first and value_of(schedule, total) == 0.0
            assert value_of(schedule, plan.updates) <= 2 * first / total + 1e-9
        assert (
            rates[0] == pytest.approx(1e-4 * (1 - 48 / 240), rel=0.1)
            and rates[-1] == 0.0
            and sorted(rates, reverse=True) == rates
        )
        assert beta[0] == pytest.approx(0.4 + 0.6 * 40 / 240) and beta[-1] == pytest.approx(1.0, abs=0.08)  # linear in real steps


def test_held_out_levels_are_played_where_the_robot_is_evaluated():
    with go_on(build(config(env_options=dict(SOKOBAN["env_options"], max_steps=30), eval_options=dict(max_steps=7))),
               128) as robot:
        seen = robot.evaluate(6)
        assert max(seen.lengths) <= 7 and seen.n_episodes == 6  # real steps, not augmented ones
        assert max(robot.recent_lengths) > 7


def test_the_record_says_on_which_levels_it_was_evaluated_where_they_are_others():
    held_out = dict(env_options=dict(SOKOBAN["env_options"], size=6), eval_options=dict(kind="test"))
    with build(config(**held_out)) as robot:
        for _ in range(2):
            robot.evaluate(1)
        assert [note.partition(" levels that were generated")[0] for note in robot.notes] == [
            f"Sokoban: {len(Levels.shipped(6, 1)):,}", f"evaluation: Sokoban: {len(Levels.shipped(6, 1, 'test')):,}"]


# ---------------------------------------------------------------------------------------------------------------------- snapshots


def test_planning_never_steps_the_environment_itself():
    envs = make_vector_env(Lives, 2)
    with pytest.raises(TypeError, match="an environment of its own to step.*give a factory"):
        snapshots_of(envs, 4, lambda: envs)


def test_of_the_environments_that_are_made_to_plan_with_one_is_kept_until_the_end():
    envs, made = make_vector_env(Lives, 2), []

    def make():
        made.append(make_vector_env(Lives, 2))
        return made[-1]

    snapshots = snapshots_of(envs, 4, make)
    games = [env.unwrapped for env in made[0].unwrapped.hosts[0].group.envs]
    assert [game.closed for game in games] == [0, 1]
    snapshots.close()
    assert [game.closed for game in games] == [1, 1]


def test_observations_of_snapshots_are_copies():
    real = [Lives(), Lives()]
    for i, env in enumerate(real):
        env.reset(seed=i)
    snapshots = EnvSnapshots(real, 4, Lives())
    snapshots.take(np.array([0, 1]))
    seen, rew, _ = snapshots.step(np.array([0, 1]), np.array([2, 3]), np.array([1, 2]))
    expected = [env.step(act)[0].copy() for env, act in zip(real, (1, 2), strict=True)]
    np.testing.assert_array_equal(seen, expected)
    assert rew.tolist() == [0.25, 0.5]


# ------------------------------------------------------------------------------------------------------------------ configuration


class Opaque(Lives):
    clone_state = restore_state = None


class Unbounded(Lives):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2, 4, 4), np.float32)


gym.register("ThinkerOpaque-v0", entry_point=Opaque)
gym.register("ThinkerUnbounded-v0", entry_point=Unbounded)


@pytest.mark.parametrize(("options", "words"), [
    (dict(rec_t=0), "'rec_t' expects `int` >= 1"),
    (dict(planning="none"), "set see_real_state=true"),
    (dict(planning="none", see_real_state=True, see_x=True), "see_x=false"),
    (dict(planning="perfect", latent=True), "leave latent and model_decoder_depth out"),
    (dict(planning="perfect", model_decoder_depth=1), "leave latent and model_decoder_depth out"),
    (dict(model_decoder_depth=2, see_x=True), "set see_x=false or model_decoder_depth=0"),
    (dict(model_decoder_depth=4, latent=True), "set latent=false"),
    (dict(latent=True, see_x=True), "set one of them to false"),
    (dict(model_residual=True, latent=True), "with the latter two latent=false"),
    (dict(model_markov=True, model_decoder_depth=1), "set model_decoder_depth=0"),
    (dict(model_downscale_c=5), "numbers of channels; expected even ones"),
    (dict(model_strides=[3, 1, 1, 1]), "'model_strides\\[0\\]' expects `int` <= 2"),
    (dict(widths=[0]), "'widths\\[0\\]' expects"),
    (dict(discounting=0), "'discounting' expects `float` > 0"),
    (dict(discounting=1.0, reward_clip=1.0), "with discounting=1 set reward_clip=0"),
    (dict(priority_alpha=0.0), "'priority_alpha' expects"),
    (dict(model_batch_size=500), r"model_batch_size \(500\) is above 400"),
    (dict(model_warm_up_n=500), r"model_warm_up_n \(500\).*is above 400"),
    (dict(total_steps=20), r"model_warm_up_n \(40\).*above 20, the smaller of model_buffer_n and total_steps"),
    (dict(env_n=20), r"actor_batch_size \(16\) is below env_n \(20\), and the unrolls of one agent stay together"),
    (dict(model_buffer_n=40, env_n=16), "6 steps in a row.*each of 16 environments has 2; raise them, or lower env_n"),
    (dict(env="Nowhere-v0", env_options={}), "'env' and 'env_options'.*Nowhere"),
    (dict(env_options=dict(sizes=5)), "'env' and 'env_options'.*sizes"),
    (dict(env_options=dict(size=1)), "'env' and 'env_options'.*no 'train' levels"),
    (dict(env="CartPole-v1", env_options=dict(fog=1)), "'env' and 'env_options'.*fog"),
    (dict(eval_options=dict(sizes=5)), "'eval_options'.*sizes"),
    (dict(eval_options=dict(size=6)), "'eval_options'.*would be evaluated with Box"),
    (dict(env="Pendulum-v1", env_options={}), "'env': the action space is Box.*expected Discrete"),
    (dict(env="ThinkerUnbounded-v0", env_options={}), "bounds of their space, and some of these are infinite"),
    (dict(env="ThinkerOpaque-v0", env_options={}, planning="perfect"), "perfect model: .*Opaque.*clone_state"),
    (dict(env_options=dict(copy=False, **SOKOBAN["env_options"])), "make them with copy=True"),
], ids=str)  # fmt: skip
def test_a_configuration_that_cannot_be_is_refused_in_one_line(options, words):
    with pytest.raises((ValueError, TypeError), match=words) as caught:  # the lab makes one line of each
        build(configs.resolve(Config, configs.to_dict(config()), options)).close()
    assert "\n" not in str(caught.value)
    if {"env", "env_options", "eval_options"} & options.keys() and options.get("env") not in (
        "ThinkerUnbounded-v0",
        "ThinkerOpaque-v0",
    ):
        assert isinstance(caught.value, ConfigError) or "copy" in options["env_options"]


def test_rewards_are_clipped_where_they_are_learned_from():
    """Stored and counted they are the environment's; the planner's updates, the tree and the world model have them clipped."""
    with build(config(**LIVES, reward_clip=0.5)) as robot:
        updates, algorithm = [], robot.tasks["plan"].algorithm
        process = algorithm.process
        algorithm.process = lambda batch: (updates.append(batch.rew.numpy().copy()), process(batch))[1]
        events = watch(robot)
        go_on(robot, 60)
        seen = np.concatenate(updates)
        assert seen.max() == 0.5 and max(e["rew"].max() for e in events) > 0.5
        assert max(robot.recent_returns) > 0.5 * max(robot.recent_lengths)
        assert robot.tasks["model"].algorithm.model.reward_clip == 0.5
