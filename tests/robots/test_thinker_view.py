"""What `play` shows of Thinker's plans: the tree by hand, frames, rollouts as text, video, pictures, and the command line."""

import io
import json
from types import ModuleType

import gymnasium as gym
import numpy as np
import pytest
import torch
from PIL import Image

from parl_like.environment import factory
from parl_like.envs.sokoban import SokobanVectorEnv
from parl_like.envs.thinker.augmented import AugmentedEnv
from parl_like.envs.thinker.tree import Tree
from parl_like.lab import experiment as experiments
from parl_like.lab.cli import main
from parl_like.lab.experiment import Experiment
from parl_like.lab.reports import plots
from parl_like.models.planner import PlanningHead
from parl_like.robots import thinker
from parl_like.robots.thinker import view
from parl_like.robots.thinker.build import make_envs

K, DEPTH = 8, 3
TINY = {
    "env_options": {"size": 5, "n_boxes": 1, "obs": "planes", "max_steps": 12}, "env_n": 2, "rec_t": K, "max_depth": DEPTH,
    "widths": [4, 4, 4],
    "model_downscale_c": 32, "model_strides": [1, 1, 1, 1], "actor_unroll_len": K, "total_steps": 16, "model_warm_up_n": 16,
    "model_batch_size": 4,
    "model_unroll_len": 2, "model_return_n": 2, "tensorboard": False,
}
KINDS = {"learned": {}, "perfect": {"planning": "perfect"}, "latent": {"latent": True}, "features": {"model_decoder_depth": 2}}


def config(**options):
    return thinker.Config(**{**TINY, "widths": (4, 4, 4), "model_strides": (1, 1, 1, 1), **options})


@pytest.fixture
def whims(monkeypatch):
    """An untrained planner does one thing all the time; this one follows its whims, the same in every run."""
    generator, forward = torch.Generator().manual_seed(1), PlanningHead.forward

    def whimsical(self, *args):
        out = forward(self, *args)
        noise = torch.randn(out["logits"].shape, generator=generator)
        noise[:, -1] -= 1.2  # resets are rarer
        return {**out, "logits": out["logits"] + noise}

    monkeypatch.setattr(PlanningHead, "forward", whimsical)


@pytest.fixture
def taken(monkeypatch):
    """The augmented steps that were really taken: (primary action, reset, forced, real)."""
    out, states, step, update = [], [], AugmentedEnv.step, Tree.update

    def note(self, *arguments):
        states.append(update(self, *arguments))
        return states[-1]

    def spy(self, actions):
        reply = step(self, actions)
        state = states[-1]
        out.append((*actions[0].tolist(), bool(state.forced[0]), not reply[-1]["imagined"][0]))
        assert state.reset[0] == (not out[-1][3] and (out[-1][1] == 1 or out[-1][2]))
        return reply

    monkeypatch.setattr(Tree, "update", note)
    monkeypatch.setattr(AugmentedEnv, "step", spy)
    return out


# ------------------------------------------------------------------------------------------------ by hand


@pytest.fixture
def plan():
    """γ = ½; root (v 4) –0→ A (r 1, v 2) –1→ B (r 0, v 6, forced reset); root –1→ C (r −1, v 0, reset); root –0→ A again
    (reset)."""
    tree = Tree(1, 2, 5, max_depth=2, discounting=0.5)
    tree.begin([4.0], [[0.0, 1.0]])
    actions = [(0, 0), (1, 0), (1, 1), (0, 1)]
    for (act, reset), told in zip(actions, [(1.0, 2.0), (0.0, 6.0), (-1.0, 0.0), None], strict=True):
        tree.select(np.array([act]), np.array([reset]))
        tree.update(None if told is None else ([told[0]], [told[1]], [False], [[0.0, 0.0]]))
    return view.tree_nodes(tree.state_dict()), actions


def test_the_tree_is_the_one_computed_by_hand(plan):
    nodes, _ = plan
    # Returns: B 0 + ½·6. A 1 + ½·2 and 1 + ½·3. C −1. Root ½·4, ½·2, ½·2.5, ½·(−1).
    assert nodes == [
        view.Node(0, -1, 0, 0.0, 4.0, visits=0, mean=0.9375, max=2.0, done=False, depth=0),
        view.Node(1, 0, 0, 1.0, 2.0, visits=2, mean=2.25, max=2.5, done=False, depth=1),
        view.Node(2, 1, 1, 0.0, 6.0, visits=1, mean=3.0, max=3.0, done=False, depth=2),
        view.Node(3, 0, 1, -1.0, 0.0, visits=1, mean=-1.0, max=-1.0, done=False, depth=1),
    ]
    assert view.tree_places(nodes) == {0: (0.5, 0), 1: (0.0, 1), 2: (0.0, 2), 3: (1.0, 1)}


def test_rollouts_and_their_text(plan):
    nodes, actions = plan
    rollouts = view.rollouts_of(nodes, actions, 2)
    assert [[(node.id, end) for node, end in rollout] for rollout in rollouts] == [
        [(1, ""), (2, "forced reset")],
        [(3, "reset")],
        [(1, "reset")],
    ]
    stage = view.PlannedStage(7, 1, None, nodes, rollouts, {}, {}, None, -12.5, "terminated")
    assert view.rollouts_text(stage, ["west", "east"], 0.5).splitlines() == [
        "step 7",
        "  rollout 1: west east | forced reset | r 1.00 0.00 | v 2.00 6.00 | return 2.50",
        "  rollout 2: east | reset | r -1.00 | v 0.00 | return -1.00",
        "  rollout 3: west | reset | r 1.00 | v 2.00 | return 2.00",
        "  real: east | reward -12.5 | terminated",
    ]
    assert [[end for _, end in rollout] for rollout in view.rollouts_of(nodes, actions[:2], 0)] == [
        ["", ""]
    ]  # the real step came before a reset


def test_sokoban_planes_are_drawn_as_the_game_draws_itself():
    envs = SokobanVectorEnv(20, kind="train", size=6, n_boxes=4, obs="planes", n_danger=4, render_mode="rgb_array")
    obs, _ = envs.reset(seed=0)
    for _ in range(30):
        for planes, shown in zip(obs, envs.render(), strict=True):
            np.testing.assert_array_equal(view.picture(planes.astype(np.float32), envs), shown[::4, ::4])
        obs = envs.step(envs.np_random.integers(0, 5, 20))[0]
    wall, floor = np.zeros((5, 1, 1)), np.zeros((5, 1, 1))
    wall[0] = 1
    both = view.tiles(wall).astype(float) + view.tiles(floor)
    assert abs(view.tiles((wall + floor) / 2) - both / 2).max() <= 0.5  # what is unsure is blended


@pytest.mark.parametrize(("shape", "channels"),
                         [((3, 2, 4), [0, 1, 2]), ((1, 2, 4), [0, 0, 0]), ((4, 2, 4), [3, 3, 3]), ((6, 2, 4), [3, 4, 5])])
def test_images_are_shown_in_colour_or_grey_and_of_stacks_the_newest(shape, channels):
    envs = gym.vector.VectorEnv()
    x = np.random.default_rng(0).random(shape)
    np.testing.assert_array_equal(view.picture(x, envs), np.round(x[channels] * 255).transpose(1, 2, 0))
    squares = view.picture(np.array([0.0, 0.2, 7.0]), envs)
    assert squares[..., 0].tolist() == [[0, 51], [255, 0]] and squares.shape == (2, 2, 3)


# ------------------------------------------------------------------------------------------------ an episode


def stages_of(robot, settings, steps):
    out = []
    film = view.PlanFilm(out.append)
    robot.watch(film, seed=3, env=lambda: make_envs(settings, 1, {}), max_steps=steps)
    return out, film


@pytest.mark.parametrize("kind", ["learned", "latent"])
def test_imagined_frames_are_those_of_the_model(whims, kind):
    settings = config(**KINDS[kind])
    with thinker.build(settings) as robot:
        (stage,), _ = stages_of(robot, settings, 1)
        envs = make_envs(settings, 1, {})
        net = robot.tasks["model"].algorithm.acting
        obs, _ = envs.reset(seed=0)
        assert len(stage.rollouts) > 1 and stage.frames.keys() == {node.id for node in stage.nodes[1:]}
        # The real observation again, from its picture: the cell of each plane is found by its tiles.
        planes = next(p for p in all_boards(envs) if np.array_equal(view.tiles(p), stage.before))
        for rollout in stage.rollouts:
            with torch.no_grad():
                _, _, state = net.initial(torch.as_tensor(planes)[None])
                for node, _ in rollout:
                    r, _, v, _, state, _ = net.recurrent(state, torch.tensor([node.action]))
                    assert (node.r, node.v) == (pytest.approx(float(r), abs=1e-5), pytest.approx(float(v), abs=1e-5))
                    expected = view.tiles(net.decode(state)[0].clamp(0, 1).numpy())
                    assert abs(stage.frames[node.id].astype(int) - expected).max() <= 1
        envs.close()


def all_boards(envs):
    for level in range(len(envs.unwrapped.levels)):
        yield envs.reset(options={"level": level})[0][0]


def test_a_perfect_model_imagines_what_then_happens(whims):
    settings = config(**KINDS["perfect"])
    with thinker.build(settings) as robot:
        stages, film = stages_of(robot, settings, 8)
        assert film.steps == len(stages) == 8
        panels = [slice(view.EDGE, view.EDGE + 160, 4),
                  slice(2 * view.EDGE + 160, 2 * view.EDGE + 320, 4)]  # of the video: 40 pixels, fourfold
        for stage in stages:
            pages = [np.array(page)[panels[0]] for page in view.video_frames(stage, list("01234"))]
            for page, (node, _) in zip(pages, sum(stage.rollouts, []), strict=False):
                np.testing.assert_array_equal(page[:, panels[0]], stage.before)
                np.testing.assert_array_equal(page[:, panels[1]], stage.frames[node.id])
            np.testing.assert_array_equal(pages[-1][:, panels[0]], stage.after)
            assert len(pages) == K
        foreseen = 0
        for stage, after in zip(stages, [*stages[1:], None], strict=True):
            assert after is None or np.array_equal(after.before, stage.after)
            for node in stage.nodes:
                if node.depth == 1 and node.action == stage.act:
                    foreseen += 1
                    assert node.r == pytest.approx(stage.rew) and np.array_equal(stage.frames[node.id], stage.after)
        assert foreseen > 1


@pytest.mark.parametrize("kind", KINDS)
def test_text_video_and_pictures_tell_what_was_done(tmp_path, whims, taken, kind):
    settings, steps, told = config(**KINDS[kind]), 2, io.StringIO()
    (tmp_path / "episode").mkdir()
    (tmp_path / "episode" / "step_0009.png").touch()  # of an earlier, longer time
    with thinker.build(settings) as robot:
        result = view.play(robot, settings, tmp_path / "episode.gif", seed=3, max_steps=steps, stream=told)
        assert robot.env_steps == 0
    assert result["steps"] == steps and result["return"] == pytest.approx(-0.01 * steps, abs=0.03)
    assert len(taken) == steps * K and [k for k, step in enumerate(taken, 1) if step[3]] == [K, 2 * K]

    names, expected, fresh = ["stay", "up", "down", "left", "right"], [], True
    ends = []
    for primary, reset, forced, real in taken:
        if real:
            expected += [f"real: {names[primary]}"]
            ends.append("real")
        else:
            expected = [*expected, names[primary]] if fresh else [*expected[:-1], f"{expected[-1]} {names[primary]}"]
            ends.append("reset" if reset else "forced reset" if forced else "")
        fresh = bool(ends[-1])
    lines = told.getvalue().splitlines()
    assert [line.split(": ", 1)[-1].split(" | ")[0] if "rollout" in line else line.split(" | ")[0].strip() for line in lines
            if not line.startswith("step")] == expected
    assert [line.split(" | ")[1] for line in lines if "rollout" in line] == [
        end or "end of stage"
        for end, after in zip(ends, ends[1:], strict=False)
        if end in ("reset", "forced reset") or (end == "" and after == "real")]
    assert (tmp_path / "episode" / "plan.txt").read_text() == told.getvalue()
    assert {"reset", "forced reset", "", "real"} == set(ends)

    film = Image.open(tmp_path / "episode.gif")
    assert film.n_frames == len(taken) and film.size == (2 * 160 + 3 * view.EDGE, 160 + 2 * view.EDGE + view.CAPTION)
    for k, end in enumerate(ends):
        film.seek(k)
        shown, meant = np.array(film.convert("RGB"))[2, 2], Image.new("RGB", (1, 1), view.COLOURS[end]).getpixel((0, 0))
        assert abs(shown.astype(int) - meant).max() < 12
    pictures = sorted(path.name for path in (tmp_path / "episode").glob("*.png"))
    assert pictures == ([] if plots.matplotlib_missing() else ["step_0001.png", "step_0002.png"])
    assert result["pictures"] == len(pictures)
    for name in pictures:  # a model that draws no frames leaves the lowest part of the picture out
        width, height = Image.open(tmp_path / "episode" / name).size
        assert width == 1100 and (height < 800) == (kind == "features")


def test_a_long_video_is_thinned_as_every_film_is(tmp_path, monkeypatch):
    settings = config()
    monkeypatch.setattr(plots, "matplotlib_missing", lambda: False)
    drawn = []
    monkeypatch.setattr(view, "draw_plan", lambda stage, names, path: drawn.append(path.name))
    monkeypatch.setattr(view, "MOST_PLANS", 1)
    page = (2 * 160 + 3 * view.EDGE) * (160 + 2 * view.EDGE + view.CAPTION)
    monkeypatch.setattr(factory, "FILM_PIXELS", 6 * page)
    with thinker.build(settings) as robot:
        result = view.play(robot, settings, tmp_path / "episode.gif", seed=3, max_steps=3)
    film = Image.open(tmp_path / "episode.gif")
    assert film.n_frames <= 6 < 3 * K and film.info["duration"] == 1000 * (2 ** ((3 * K - 2) // 6)) // 5
    assert result["pictures"] == 1 and drawn == ["step_0001.png"]


def test_stages_without_imagination_and_a_whole_episode(tmp_path):
    settings = config(rec_t=1, max_depth=0)
    with thinker.build(settings) as robot:
        stages, _ = stages_of(robot, settings, 0)
    assert stages[-1].end in ("terminated", "truncated") and not any(stage.end or stage.rollouts for stage in stages[:-1])
    assert [len(list(view.video_frames(stage, list("01234")))) for stage in stages] == [1] * len(stages)
    assert all(policy.sum() == pytest.approx(1) for name, policy in stages[0].policies.items() if name != "rollouts begun so")


# ------------------------------------------------------------------------------------------------ the command


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Trains the tiny robot by command, with these options more, and returns the run directory."""
    module = ModuleType("tiny_thinker")
    module.Config, module.build, module.play = thinker.Config, thinker.build, view.play
    monkeypatch.setattr(experiments, "_registered", {})
    monkeypatch.setattr(experiments, "_modules", {})
    experiments.register(Experiment(name="tiny-thinker", robot="thinker", config=TINY), module=module)
    monkeypatch.setattr(plots, "matplotlib_missing", lambda: True)

    def train(*words):
        assert main(["train", "tiny-thinker", "eval_episodes=1", f"run_dir={tmp_path / 'run'}", *words]) == 0
        capsys.readouterr()
        return tmp_path / "run"

    return train


def test_play_from_the_command_line(run, capsys):
    folder = run()
    assert main(["play", str(folder), "--seed", "3", "--steps", "2"]) == 0
    said, *lines = capsys.readouterr().out.splitlines()
    video = folder / "videos" / "episode_3.gif"
    assert said.endswith("playing, then writing the film ...") and lines[0] == "step 1" and lines[1].startswith("  rollout 1: ")
    assert sum(line.startswith("  real: ") for line in lines) == 2
    assert lines[-2] == plots.MISSING and lines[-1].split()[0] == str(video)
    assert Image.open(video).n_frames == 2 * K
    assert (video.with_suffix("") / "plan.txt").read_text().splitlines() == lines[:-2]

    assert main(["play", str(folder), "--seed", "3", "--steps", "1", "--json"]) == 0
    out, err = capsys.readouterr()
    (episode,) = json.loads(out)
    assert (episode["path"], episode["seed"], episode["steps"], episode["pictures"]) == (str(video), 3, 1, 0)
    assert err.splitlines()[1] == "step 1" and episode["return"] == pytest.approx(-0.01, abs=1.1)


def test_a_robot_that_does_not_plan_is_filmed_as_any_other(run, capsys):
    folder = run("planning=none", "see_real_state=true", "see_h=false")
    assert main(["play", str(folder), "--seed", "3", "--steps", "3"]) == 0
    said, line = capsys.readouterr().out.splitlines()
    assert said.endswith("playing, then writing the film ...")
    film = Image.open(folder / "videos" / "episode_3.gif")
    assert line.split()[0] == str(folder / "videos" / "episode_3.gif") and film.size == (320, 350)
