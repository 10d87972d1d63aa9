"""Shows what Thinker thinks: `parl-like play RUN` for a robot of `parl_like.robots.thinker`.

Per real step a picture of the plan and its rollouts as text; of the episode a video, in which imagined frames stand beside real
ones. Everything is read off an ordinary greedy episode: the tree, the actions, and hidden states, which are decoded for display.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from PIL import Image, ImageDraw

from parl_like.data.storage.safe_files import open_file
from parl_like.environment.factory import Reel, write_gif
from parl_like.environment.hooks import Hook
from parl_like.envs.sokoban import SPRITES, SokobanVectorEnv
from parl_like.interfaces import AgentPort
from parl_like.lab.reports import plots
from parl_like.lab.text import printer
from parl_like.robots.thinker.build import make_envs
from parl_like.run.evaluation import FILM_LIMIT
from parl_like.run.robot import Robot
from parl_like.values.spec import Array

# by how an imaginary step ended ('' goes on)
COLOURS = {"reset": "#e6b800", "forced reset": "#d62728", "": "#b8b8b8", "real": "#1f77b4"}
POLICIES = {"world model": "0.6", "imagining, at the root": "#ffcf70", "rollouts begun so": "#c98a00",
            "real action": COLOURS["real"]}
SIDE, EDGE, CAPTION = 180, 6, 16  # pixels of the video: a frame (about), the border around it, the text below
NODE, CELL = 0.85, 1.2  # inches of a picture: a leaf of the tree, an imagined frame
BLACK = np.zeros((1, 1, 3), np.uint8)
RATE = 5
"""Frames per second of the video."""
MOST_PLANS = 1000
"""Real steps, from the first on, whose plans are drawn; each is a file."""


class Node(NamedTuple):
    """A node of a tree and the edge to it: its `action`, reward `r`, and `visits` (traversals, in earlier stages, too, if the
    tree was carried).

    `id` is its place in the tree's arrays, −1 the root's parent; `v` the model's value, `done` that the episode is over here;
    `mean` and `max` are of the rollout returns through the edge, r included.
    """

    id: int
    parent: int
    action: int
    r: float
    v: float
    visits: int
    mean: float
    max: float
    done: bool
    depth: int


Rollout = list[tuple[Node, str]]
"""The nodes of an imagined way from the root, and how each step ended: 'reset', 'forced reset', or '' (it went on)."""


def tree_nodes(arrays: Mapping[str, Array], e: int = 0) -> list[Node]:
    """The tree of environment `e` in `Tree.state_dict()`: root first, each node before its children, and these by action."""
    out, ahead = [], [(int(arrays["root"][e]), 0)]
    while ahead:
        i, depth = ahead.pop()
        parent, action, r, v, visits, size, total, best, done = (
            arrays[name][i].item() for name in ("parent", "action", "r", "v", "visits", "size", "total", "best", "done"))
        out.append(Node(i, parent, action, r, v, visits, total / size, best, bool(done), depth))
        ahead += [(child, depth + 1) for child in reversed(arrays["children"][i].tolist()) if child >= 0]
    return out


def rollouts_of(nodes: Sequence[Node], actions: Sequence[tuple[int, int]], max_depth: int) -> list[Rollout]:
    """The imaginary steps of a stage, (primary action, reset) each, as rollouts. `nodes`: the tree at the end of the stage. At
    `max_depth` a reset is forced (0 or less: never)."""
    children = {(node.parent, node.action): node for node in nodes}
    out: list[Rollout] = []
    at = root = nodes[0]
    for action, reset in actions:
        if at is root:
            out.append([])
        at = children[at.id, action]
        end = "reset" if reset else "forced reset" if 0 < max_depth <= at.depth else ""
        out[-1].append((at, end))
        at = root if end else at
    return out


class PlannedStage(NamedTuple):
    """A real step, number 1 … of the episode, and the thoughts before it.

    `before` and `after` are real observations as pictures [h, w, 3] uint8, `frames` those of nodes, where there can be one;
    `policies` whose → [A] probabilities. `act`, `rew`, `end` (if the episode is over) are the real step's.
    """

    number: int
    act: int
    before: Array
    nodes: list[Node]
    rollouts: list[Rollout]
    frames: dict[int, Array]
    policies: dict[str, Array]
    after: Any = None
    rew: float = 0.0
    end: str = ""


class PlanFilm(Hook):
    """Watches a `ThinkerAgent` with one environment, and calls `show` with every `PlannedStage`."""

    def __init__(self, show: Callable[[PlannedStage], None]) -> None:
        self.show, self.steps = show, 0
        self.thoughts: list[tuple[int, int, Array]] = []  # of this stage: primary action, reset, the planner's logits
        self.seen: dict[int, Array] = {}

    def pre_episode(self, agent: AgentPort) -> None:
        acting: Any = agent
        augmented, model = acting.augmented, acting.helpers["model"].task.algorithm
        self.augmented, self.model = augmented, model
        sokoban = isinstance(augmented.envs.unwrapped, SokobanVectorEnv)
        self.names = ["stay", "up", "down", "left", "right"] if sokoban else [str(i) for i in range(augmented.n_actions)]
        self.before = self.picture(agent.env.last[0]["real_states"][0])
        if augmented.perfect is not None:  # what the model is asked about are the nodes' observations
            ask = augmented.ask

            def listen(rows: dict[str, Array]) -> Any:
                self.seen.update(zip((rows["node"] - augmented.answers.nodes).tolist(), np.array(rows["obs"]), strict=True))
                return ask(rows)

            augmented.ask = listen

    def pre_act(self, agent: AgentPort, act: Any) -> None:
        acting: Any = agent
        (primary, reset), logits = act[0].tolist(), acting.helpers["plan"].outputs["logits"][0, : len(self.names)]
        if agent.env.last[0]["step_status"][0] < 2:
            self.thoughts.append((primary, reset, logits))
            return
        arrays = self.augmented.tree.state_dict()
        nodes = tree_nodes(arrays)
        rollouts = rollouts_of(nodes, [thought[:2] for thought in self.thoughts], self.augmented.tree.layout.max_depth)
        first = np.cumsum([0, *map(len, rollouts)])[:-1].tolist()
        rows = {"world model": [arrays["logits"][nodes[0].id]], "imagining, at the root": [self.thoughts[i][2] for i in first],
                "real action": [logits]}
        policies = {name: torch.tensor(np.stack(row)).softmax(-1).mean(0).numpy() for name, row in rows.items() if row}
        begun = [rollout[0][0].action for rollout in rollouts]
        policies["rollouts begun so"] = np.bincount(begun, minlength=len(logits)) / max(len(begun), 1)
        self.steps, self.thoughts = self.steps + 1, []
        self.stage = PlannedStage(self.steps, primary, self.before, nodes, rollouts, self.frames(nodes), policies)

    def post_act(self, agent: AgentPort) -> None:
        _, _, rew, terminated, truncated, info = agent.env.last
        if not info["imagined"][0]:
            self.before = self.picture(agent.env.obs_next["real_states"][0])
            end = "terminated" if terminated[0] else "truncated" if truncated[0] else ""
            self.show(self.stage._replace(after=self.before, rew=float(rew[0]), end=end))

    def picture(self, obs: Array) -> Array:
        net: Any = self.model.acting
        return picture(net.normalize(torch.as_tensor(obs)[None].to(net.low.device))[0].cpu().numpy(), self.augmented.envs)

    def frames(self, nodes: Sequence[Node]) -> dict[int, Array]:
        """Pictures of all nodes but the root. What follows an end has no state."""
        over, net = {-1, *(node.id for node in nodes if node.done)}, self.model.acting
        ids = [node.id for node in nodes if node.parent not in over]
        if self.augmented.perfect is not None:
            return {i: self.picture(self.seen[i]) for i in ids}
        if not ids or not net.dual or net.depth:
            return {}
        with torch.no_grad():
            rows = torch.tensor(ids) + self.augmented.answers.nodes
            x = net.decode({name: values[rows] for name, values in self.model.table.items()}).cpu().numpy()
        return {i: picture(frame, self.augmented.envs) for i, frame in zip(ids, x, strict=True)}


def number(x: float) -> str:
    return f"{x:z.2f}" if abs(x) < 9.995 else f"{x:.3g}"


def rollouts_text(stage: PlannedStage, names: Sequence[str], gamma: float) -> str:
    """A line for each rollout: its actions and how it ended, predicted rewards, values and return; then what was really done."""
    lines = [f"step {stage.number}"]
    for k, rollout in enumerate(stage.rollouts, 1):
        total = rollout[-1][0].v
        for node, _ in reversed(rollout):
            total = node.r + gamma * total
        words, r, v = (" ".join(each) for each in zip(*((names[n.action], number(n.r), number(n.v)) for n, _ in rollout),
                                                      strict=True))
        lines.append(f"  rollout {k}: {words} | {rollout[-1][1] or 'end of stage'} | r {r} | v {v} | return {number(total)}")
    return "\n".join([*lines, f"  real: {names[stage.act]} | reward {number(stage.rew)}{stage.end and ' | ' + stage.end}"])


def picture(x: Array, envs: Any) -> Array:
    """An observation of `envs`, real or imagined, normalised to [0, 1], as [h, w, 3] uint8: Sokoban's planes as tiles, images in
    colour or grey (of a stack the newest), numbers as grey squares."""
    x = x.clip(0.0, 1.0)
    if isinstance(envs.unwrapped, SokobanVectorEnv) and len(x) == 5:
        return tiles(x)
    if x.ndim == 1:
        side = math.ceil(math.sqrt(len(x)))
        x = np.pad(x, (0, side * side - len(x))).reshape(1, side, side)
    x = x[-3:] if len(x) % 3 == 0 else x[-1:].repeat(3, 0)
    return (x * 255).round().astype(np.uint8).transpose(1, 2, 0)


def tiles(planes: Array) -> Array:
    """Sokoban's board [8 h, 8 w, 3] uint8 from planes [5, h, w]: wall, target, box, player, danger; each the chance of one, tiles
    are blended."""
    wall, target, box, player, danger = planes
    ground = np.stack([(1 - target) * (1 - danger), target, (1 - target) * danger])
    above = np.stack([(1 - player) * (1 - box), (1 - player) * box, player])
    weight = np.zeros((10, *wall.shape))
    # [floor, target, danger] × [nothing, box, player]
    weight[[[1, 2, 4], [6, 3, 5], [7, 8, 9]]] = ground[:, None] * above * (1 - wall)
    weight[0] = wall
    image: Array = np.einsum("khw,kcyx->hywxc", weight, SPRITES.astype(np.float64)).round().astype(np.uint8)
    return image.reshape(8 * wall.shape[0], 8 * wall.shape[1], 3)


def video_frames(stage: PlannedStage, names: Sequence[str]) -> Iterator[Image.Image]:
    """A frame per augmented step: left the real observation, right the imagined one; of a real step what had been imagined of
    it."""
    scale = max(1, round(SIDE / max(stage.before.shape[:2])))
    height, width = (scale * n for n in stage.before.shape[:2])
    steps = [step for rollout in stage.rollouts for step in rollout]
    shown = [(stage.before, node.id, end, f".{k}/{len(steps)} {names[node.action]} r {number(node.r)} v {number(node.v)} {end}")
             for k, (node, end) in enumerate(steps, 1)]
    foreseen = next((node.id for node in stage.nodes if node.depth == 1 and node.action == stage.act), -1)
    shown.append((stage.after, foreseen, "real", f" real: {names[stage.act]} reward {number(stage.rew)} {stage.end}"))
    for real, node_id, end, text in shown:
        page = Image.new("RGB", (2 * width + 3 * EDGE, height + 2 * EDGE + CAPTION), COLOURS[end])
        for k, image in enumerate((real, stage.frames.get(node_id, BLACK))):
            page.paste(Image.fromarray(image).resize((width, height), Image.Resampling.NEAREST),
                       (EDGE + k * (width + EDGE), EDGE))
        draw = ImageDraw.Draw(page)
        draw.rectangle((0, height + 2 * EDGE, page.width, page.height), "black")
        draw.text((EDGE, height + 2 * EDGE + 2), f"{stage.number}{text}", "white")
        yield page


def draw_plan(stage: PlannedStage, names: Sequence[str], path: Path) -> None:
    """Writes the picture of a stage; needs matplotlib. Top: real frame, policies; middle: the tree; bottom: imagined frames."""
    from matplotlib.figure import Figure  # not pyplot: no global state, no window
    places = tree_places(stage.nodes)
    leaves, levels = max(x for x, _ in places.values()) + 1, max(depth for _, depth in places.values()) + 1
    width = max(11.0, min(NODE * leaves, 20.0))
    rows = -(-len(sum(stage.rollouts, [])) // int(width / CELL)) if stage.frames else 0
    heights = [2.8, NODE * levels + 0.2, 1.3 * CELL * rows + 0.3][: 3 if rows else 2]
    figure = Figure(figsize=(width, sum(heights)))
    parts: Any = figure.subfigures(len(heights), 1, height_ratios=heights)
    margins = {"left": 0.02, "right": 0.97, "top": 0.85, "wspace": 0.1}
    real, policies = parts[0].subplots(1, 2, width_ratios=(1, 3), gridspec_kw=margins)
    real.imshow(stage.before, interpolation="nearest")
    real.set_title(f"real step {stage.number}: {names[stage.act]}", fontsize=9, color=COLOURS["real"])
    real.set_axis_off()
    for k, (name, colour) in enumerate(POLICIES.items()):
        policies.bar(np.arange(len(names)) + 0.2 * k - 0.3, stage.policies.get(name, 0.0), 0.2, label=name, color=colour)
    ticks = [f"[{name}]" if i == stage.act else name for i, name in enumerate(names)]
    policies.set(ylim=(0, 1), xticks=range(len(names)), xticklabels=ticks)
    # above the bars, which may fill the axes
    policies.legend(fontsize=7, ncols=4, loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False)
    policies.set_title("policies", fontsize=9, loc="left")
    _draw_tree(parts[1].add_axes((0.0, 0.05, 1.0, 0.9)), stage, names, places, width / NODE)
    if rows:
        _draw_rollouts(parts[2], stage, names, rows, int(width / CELL))
    figure.savefig(path, dpi=100)


def tree_places(nodes: Sequence[Node]) -> dict[int, tuple[float, int]]:
    """Node → (x, depth): leaves one unit apart, parents above the middle of their children. `nodes` in the order of
    `tree_nodes`."""
    leaves = len(nodes) - len({node.parent for node in nodes[1:]})
    below: dict[int, list[float]] = {}
    out: dict[int, tuple[float, int]] = {}
    for node in reversed(nodes):
        leaves -= node.id not in below
        out[node.id] = float(np.mean(below.get(node.id, [leaves]))), node.depth
        below.setdefault(node.parent, []).append(out[node.id][0])
    return out


def _draw_tree(
    axes: Any, stage: PlannedStage, names: Sequence[str], places: Mapping[int, tuple[float, int]], columns: float,
) -> None:
    from matplotlib import colormaps
    edges = stage.nodes[1:] or stage.nodes
    low, high, most = min(node.max for node in edges), max(node.max for node in edges), max(node.visits for node in edges)
    last = max(x for x, _ in places.values())
    for node in stage.nodes:
        x, depth = places[node.id]
        taken = depth == 1 and node.action == stage.act
        if depth:
            axes.plot([places[node.parent][0], x], [0.75 - depth, 0.25 - depth], color=COLOURS["real"] if taken else "0.4",
                      linewidth=0.5 + 2.5 * node.visits / max(most, 1), zorder=1)
        head = f"{names[node.action]} ×{node.visits}\nr {number(node.r)}  " if depth else "root\n"
        box = {"boxstyle": "round,pad=0.3", "linewidth": 2.0 if taken or node.done else 0.6,
               "edgecolor": COLOURS["real"] if taken else "black" if node.done else "0.5",
               "facecolor": colormaps["YlGn"](0.05 + 0.5 * (node.max - low) / max(high - low, 1e-9)) if depth else "white"}
        axes.text(x, -depth, f"{head}v {number(node.v)}\nmean {number(node.mean)}\nmax {number(node.max)}", ha="center",
                  va="center", fontsize=min(7.0, 7.0 * columns / (last + 1)), linespacing=1.15, zorder=2, bbox=box)
    room = max(0.5, (columns - last) / 2)  # small trees stay in the middle, as narrow as large ones
    axes.set(xlim=(-room, last + room), ylim=(-max(depth for _, depth in places.values()) - 0.5, 0.5))
    axes.set_axis_off()


def _draw_rollouts(part: Any, stage: PlannedStage, names: Sequence[str], rows: int, columns: int) -> None:
    from matplotlib.patches import Patch
    margins = {"left": 0.01, "right": 0.99, "top": 0.94, "hspace": 0.4}
    bare = {"xticks": (), "yticks": (), "frame_on": False}
    grid = part.subplots(rows, columns, squeeze=False, gridspec_kw=margins, subplot_kw=bare)
    height, width = stage.before.shape[:2]
    steps = ((k if j == 0 else 0, *step) for k, rollout in enumerate(stage.rollouts, 1) for j, step in enumerate(rollout))
    for axes, (begins, node, end) in zip(grid.flat, steps, strict=False):
        axes.imshow(stage.frames.get(node.id, BLACK), extent=(0, width, height, 0), interpolation="nearest")
        axes.set(frame_on=True)
        axes.spines[:].set(color=COLOURS[end], linewidth=3.0 if end else 1.0)
        head = f"{begins}: " if begins else ""
        axes.set_title(f"{head}{names[node.action]}{' †' if node.done else ''}", fontsize=8, loc="left", pad=3.0,
                       weight="bold" if begins else "normal")
        axes.set_xlabel(f"r {number(node.r)}  v {number(node.v)}", fontsize=7, loc="left", labelpad=2.0)
    meaning = {"reset": "chosen reset", "forced reset": "forced reset", "": "goes on (†: episode over)"}
    patches = [Patch(color=COLOURS[end], label=name) for end, name in meaning.items()]
    part.legend(handles=patches, loc="lower left", fontsize=7, ncols=3, frameon=False)


def play(robot: Robot, config: Any, path: Path, *, seed: int, max_steps: int = 0, stream: TextIO | None = None) -> dict[str, Any]:
    """Plays one greedy episode in one environment, and shows how it was planned.

    `path` is the video, a GIF, which is thinned as every film is (`Reel`); a folder of the same name beside it gets `plan.txt`
    and, with matplotlib, `step_0001.png` …, `MOST_PLANS` at most. It stops after `max_steps` real steps; 0: at the end of the
    episode, or after `FILM_LIMIT`. The rollouts are written on `stream`, too, while it plays.

    Returns:
        `return` and `steps` of what was played, `pictures`, how many, and `plan`, the text file; without planning only `return`.
    """
    if config.planning == "none":
        options = {**config.eval_options, "render_mode": "rgb_array"}
        return {"return": robot.play(path, seed=seed, env=lambda: make_envs(config, 1, options), max_steps=max_steps)}
    folder, draws = path.with_suffix(""), not plots.matplotlib_missing()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("step_*.png"):
        old.unlink()
    film = Reel()
    rollouts_file = open_file(folder / "plan.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with open(rollouts_file, "w", encoding="utf-8") as plan:

        def show(stage: PlannedStage) -> None:
            text = rollouts_text(stage, watch.names, config.discounting)
            for file in (plan,) if stream is None else (plan, stream):
                print(text, file=printer(file), flush=True)
            for frame in video_frames(stage, watch.names):
                film.add(frame.quantize(128, Image.Quantize.FASTOCTREE), frame.width * frame.height)
            if draws and stage.number <= MOST_PLANS:
                draw_plan(stage, watch.names, folder / f"step_{stage.number:04d}.png")

        watch = PlanFilm(show)
        total = robot.watch(watch, seed=seed, env=lambda: make_envs(config, 1, config.eval_options), max_steps=max_steps,
                            max_episode_steps=FILM_LIMIT)
    if not draws and stream is not None:
        print(plots.MISSING, file=stream)
    write_gif(path, film.shown, RATE / film.every)
    drawn = min(watch.steps, MOST_PLANS) if draws else 0
    return {"return": total, "steps": watch.steps, "pictures": drawn, "plan": str(folder / "plan.txt")}
