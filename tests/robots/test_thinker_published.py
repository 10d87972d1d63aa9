"""`thinker-sokoban`, `thinker-atari` and their `-g2` have the published settings: docs/thinker-published.md is compared with the
robots as they are built."""

from pathlib import Path

import numpy as np
import pytest
import torch

from parl_like.agents.helper import AgentHelper
from parl_like.agents.row_writer import RowWriter
from parl_like.envs import atari
from parl_like.lab import config as configs
from parl_like.lab import experiment as experiments
from parl_like.learning.algorithm import value_of

torch.set_num_threads(1)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "thinker-published.md"
STEPS = 50_000_000


class Console:
    """What `Atari` asks of an emulator before the first game, with all 18 actions."""

    shape = (210, 160)
    actions = ("NOOP", "FIRE", *(f"MOVE {i}" for i in range(16)))

    def __init__(self, game, full_actions=False):
        assert game == "breakout"


@pytest.fixture(scope="module", params=["thinker-sokoban", "thinker-sokoban-g2", "thinker-atari", "thinker-atari-g2"])
def built(request):
    """(The robot, game, version)."""
    name = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PARL_LIKE_BOXOBAN", raising=False)
        patch.setattr(atari, "Ale", Console)
        for step in ("allocate", "_check_buffer"):  # replay takes gigabytes, of which no row is needed
            patch.setattr(AgentHelper, step, lambda *_: None)
        patch.setattr(RowWriter, "check_buffer", lambda *_: None)
        experiment = experiments.get(name)
        module = experiment.module()
        with module.build(configs.resolve(module.Config, experiment.config)) as robot:
            yield robot, "Atari" if "atari" in name else "Sokoban", "1.2" if name.endswith("g2") else "1.1"


def tables():
    """Section → {setting: {column: text}}."""
    out, section, head = {}, "", []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section, head = line[3:], []
        elif line.startswith("|") and not line.startswith("|-"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not head:
                head = cells
            elif "ours 1.1" in head:
                out.setdefault(section, {})[cells[0]] = dict(zip(head, cells, strict=True))
    return out


def count(*modules):
    return sum(p.numel() for module in modules for p in module.parameters())


class Settings:
    """What a robot does, by the names of the page."""

    def __init__(self, robot, generation):
        self.robot, self.agents = robot, robot.agents
        self.agent = agent = robot.agents[0]
        self.envs, self.tree, self.planning = agent.augmented.envs, agent.augmented.tree, agent.planning
        self.plan, self.world = (robot.tasks[name].algorithm for name in ("plan", "model"))
        self.unrolls, self.replay = (agent.helpers[name] for name in ("plan", "model"))
        self.per_sequence = self.world.k + (generation == "1.2")  # rows that the version counts

    def adam(self, task):
        group = self.robot.tasks[task].optimizer.param_groups[0]
        assert group["weight_decay"] == 0 and not group["amsgrad"]
        return (*group["betas"], group["eps"])

    def half_way(self, schedule):
        """Its value after half of the updates; at the end it is 0."""
        assert value_of(schedule, 310_945) == 0.0
        return value_of(schedule, 310_945 / 2)

    def model_rate(self, real_steps):
        self.world.real_steps = real_steps
        try:
            return value_of(self.world.lr, 0)
        finally:
            self.world.real_steps = 0

    def ends(self):
        """Real steps after which the model's learning rate is 0, and before which it is not."""
        assert self.model_rate(STEPS - 1) > 0 == self.model_rate(STEPS)
        return STEPS

    def rows_of_update(self):
        """Environments in one update: the agents' requests that its training queue puts into one batch."""
        rows, mine = self.robot.wrappers["plan"].trainings.rule.max_rows, self.agent.n_envs * self.unrolls.unroll
        return rows // mine * self.agent.n_envs

    def of_one_game(self, name):
        return self.envs.get_attr(name)[0]

    def zero(self):
        heads = [self.world.model.vp_heads.linear["value"], self.world.model.vp_heads.linear["logits"],
                 self.world.model.sr_heads.linear["reward"]]
        return not any(part.any() for linear in heads for part in (linear.weight, linear.bias))


W = "weight of the "
BOTH = {
    "steps from one real action to the next, K": lambda s: s.tree.stage,
    "imaginary steps after which a reset is forced, L": lambda s: s.planning["max_depth"],
    "chosen subtree is kept": lambda s: s.planning["tree_carry"],
    "layout of tree_reps": lambda s: s.tree.layout.generation,
    "what the tree tells is masked": lambda s: s.planning["stat_mask_type"],
    "action sequence in tree_reps": lambda s: "action_seq" in s.tree.layout.slices,
    "real steps of the run": lambda s: s.ends(),
    "networks that imagine and judge": lambda s: s.world.model.net,
    "channels of the first stage": lambda s: s.world.model.sr_encoder.first.net[0].out_channels,
    "stages of the decoder left out": lambda s: s.world.model.depth,
    "strides of the encoder": lambda s: strides(s.world.model),
    "values and rewards are encoded as": lambda s: {1: "scalar"}[s.world.model.code.size],
    "batch normalisation in recurrent blocks": lambda s: any(
        isinstance(m, torch.nn.BatchNorm2d) for net in (s.world.model.sr_rnn, s.world.model.vp_rnn) for m in net.modules()),
    "model's first predictions are 0": lambda s: s.zero(),
    "precision": lambda s: 16 if s.world.model.low_precision else 32,
    "sequences of a model update": lambda s: s.robot.wrappers["model"].trainings.rule.max_rows,
    "steps of a sequence, k": lambda s: s.world.k,
    "steps of a return, n": lambda s: s.world.n,
    "model's optimiser": lambda s: torch_name(s.robot.tasks["model"].optimizer),
    "model's learning rate": lambda s: s.model_rate(0),
    "model's learning rate after 2.5e7 real steps": lambda s: s.model_rate(STEPS // 2),
    "model's Adam: β₁, β₂, ε": lambda s: s.adam("model"),
    "model's gradient is clipped at": lambda s: s.world.max_grad_norm or "none",
    "learned per real step, as the version counts":
        lambda s: round(s.replay.batch_size * s.per_sequence / s.replay.learn_every, 2),
    "rows of replay": lambda s: s.robot.buffers["model"].size,
    "real steps before the first model update": lambda s: s.replay.warmup,
    "priorities: α": lambda s: s.robot.buffers["model"].alpha,
    "weight of large features and logits": lambda s: s.plan.reg,
    **{f"{W}{name} loss": lambda s, key=name: s.world.weights[key]
       for name in ("reward", "done", "image", "feature", "value", "policy")},
    f"{W}regularisation": lambda s: s.world.weights["reg"],
    "model's policy learns": lambda s: "distribution" if s.world.soft_policy else "action",
    "planner sees": lambda s: [*["tree_reps"] * (s.plan.model.memory is not None), *s.plan.model.encoders],
    "planner's memory: layers, width, heads, slots": lambda s: memory(s.plan.model.memory),
    "its bias for the present step": lambda s: s.plan.model.memory.current_bias,
    "channels of the planner's image encoder": lambda s: [group[0].out_channels for group in s.plan.model.encoders["hs"].groups],
    "numbers it ends in": lambda s: s.plan.model.encoders["hs"].linear.out_features,
    "head of its own for imagined actions": lambda s: s.plan.model.head.imagined is not None,
    "baselines, and whether they start at 0":
        lambda s: (s.plan.model.baseline.out_features, not s.plan.model.baseline.weight.any()),
    "environments of one planner update": lambda s: s.rows_of_update(),
    "augmented steps of each in it": lambda s: s.unrolls.unroll,
    "planner's optimiser": lambda s: torch_name(s.robot.tasks["plan"].optimizer),
    "planner's learning rate": lambda s: value_of(s.plan.lr, 0),
    "planner's learning rate after half of its updates": lambda s: s.half_way(s.plan.lr),
    "planner's updates in a run": lambda s: s.plan.lr.steps,
    "planner's Adam: β₁, β₂, ε": lambda s: s.adam("plan"),
    "planner's gradient is clipped at": lambda s: s.plan.max_grad_norm or "none",
    "losses are": lambda s: {"sum": "sums", "mean": "means"}[s.plan.reduction],
    "advantages are divided by": lambda s: s.plan.return_norm or "nothing",
    "V-trace: ρ̄, c̄, λ": lambda s: (s.plan.rho_bar, s.plan.c_bar, s.plan.lam),
    "weight of baseline losses": lambda s: s.plan.value_weight,
    "weight of entropy in real steps": lambda s: s.plan.entropy,
    "weight of entropy in imaginary steps": lambda s: s.plan.streams[1].entropy,
    "weight of the planning reward, at first and after half of the updates":
        lambda s: (value_of(s.plan.streams[1].cost, 0), s.half_way(s.plan.streams[1].cost)),
    "priorities: β at the beginning of the run": lambda s: beta(s, 0),
    "priorities: β at its end": lambda s: beta(s, STEPS),
}
GAME = {
    "observation": lambda s: s.envs.single_observation_space.shape,
    "discount of a real step": lambda s: discount(s),
    "discount of an augmented step, γ^(1/K)": lambda s: round(s.plan.streams[0].gamma, 6),
    "rewards are clipped at": lambda s: clipped(s),
    "environments": lambda s: sum(agent.n_envs for agent in s.agents),
    "entries of tree_reps": lambda s: s.tree.layout.size,
    "blocks of the world model":
        lambda s: sum(type(m).__name__ == "ResBlock" for m in s.world.model.sr_encoder.rest[0].modules()),
    "parameters of the world model": lambda s: count(s.world.model),
    "of the part that judges": lambda s: count(s.world.model.vp_encoder, s.world.model.vp_rnn, s.world.model.vp_heads),
    "hidden state, hs": lambda s: s.plan.model.obs_specs["obs.hs"].shape,
    "numbers that its heads see": lambda s: s.plan.model.head.linear.in_features,
    "values are kept within": lambda s: kept(s),
}
SOKOBAN = {
    **GAME, "parameters of the planner": lambda s: count(s.plan.model),
    "steps after which a level is given up": lambda s: s.envs.options["max_steps"],
}
ATARI = {
    **GAME, "frames in it, of which the model imagines the newest": lambda s: frames(s),
    "raw frames for which an action is held": lambda s: s.of_one_game("frame_skip"),
    "no-ops at a start, at most": lambda s: s.of_one_game("noop_max"),
    "a lost life is an end": lambda s: s.of_one_game("life_loss"),
    "raw frames after which a game is given up": lambda s: s.of_one_game("max_frames"),
}
FOUND = {"Both games": BOTH, "Sokoban": SOKOBAN, "Atari": ATARI}


def torch_name(optimizer):
    """Of torch's own class that it is one of."""
    return next(kind.__name__ for kind in type(optimizer).mro() if kind.__module__.startswith("torch.optim"))


def strides(model):
    """Of the four stages, by what they make of 96 pixels."""
    sides, x = [96], torch.zeros(1, model.sr_encoder.first.net[0].in_channels - model.n, 96, 96)
    with torch.inference_mode():
        x = model.sr_encoder.first(x, torch.zeros(1, model.n))
        sides.append(x.shape[-1])
        for stage in model.sr_encoder.rest:
            x = stage(x)
            sides.append(x.shape[-1])
    return [before // after for before, after in zip(sides, sides[1:], strict=False)]


def memory(net):
    """Layers, width, heads, slots, from the shapes of a state."""
    specs = net.state_specs()
    layers, width = specs["h"].shape
    _, heads, slots, per_head = specs["keys"].shape
    assert heads * per_head == width == net.size
    return layers, width, heads, slots


def discount(s):
    assert s.world.gamma == s.tree.discounting == pytest.approx(s.plan.streams[1].gamma ** s.tree.stage)
    return s.world.gamma


def clipped(s):
    """In the tree, in the model's targets, and in what the planner learns from."""
    clips = {s.agent.augmented.reward_clip, s.world.model.reward_clip}
    clips |= {transform.high for transform in s.unrolls.transforms} or {None}
    (clip,) = clips
    return "none" if clip is None else clip


def kept(s):
    assert s.plan.model.value_bound == s.world.model.value_clip
    return "none" if s.plan.model.value_bound is None else round(s.plan.model.value_bound, 6)


def frames(s):
    assert s.world.model.shape[0] // s.world.model.frame == s.of_one_game("frame_stack_n")
    return s.of_one_game("frame_stack_n")


def beta(s, real_steps):
    """β follows the updates, of which there is one every `learn_every` steps after the warmup."""
    schedule = s.robot.buffers["model"]._beta
    per_step = 1 / s.replay.learn_every
    at_warmup, end = value_of(schedule, 0), value_of(schedule, round((STEPS - s.replay.warmup) * per_step))
    slope = (end - at_warmup) / (STEPS - s.replay.warmup)
    return round(at_warmup + slope * (real_steps - s.replay.warmup), 3)


def values(cell):
    """The numbers and words of a cell."""
    out = []
    for word in cell.split():
        try:
            out.append(float(word.replace(",", "")))
        except ValueError:
            out.append(word)
    return out


def as_words(found):
    parts = found if isinstance(found, (list, tuple)) else [found]
    return [str(part).lower() if isinstance(part, (bool, np.bool_)) else part if isinstance(part, str) else float(part)
            for part in parts]


def test_the_page_names_every_setting_once():
    assert {section: set(rows) for section, rows in tables().items()} == {name: set(found) for name, found in FOUND.items()}


def test_the_robots_are_what_the_page_says(built):
    robot, game, version = built
    settings, wrong = Settings(robot, version), []
    for section in ("Both games", game):
        for name, row in tables()[section].items():
            found, ours = as_words(FOUND[section][name](settings)), values(row[f"ours {version}"])
            same = len(found) == len(ours) and all(
                a == pytest.approx(b, rel=1e-6) if isinstance(a, float) and isinstance(b, float) else a == b
                for a, b in zip(found, ours, strict=True))
            if not same:
                wrong.append((name, "built", found, "ours", ours))
    assert not wrong


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_ours_is_the_published_value(version):
    for rows in tables().values():
        for name, row in rows.items():
            published, ours = row[version], row[f"ours {version}"]
            if "…" in published:
                low, high = map(float, published.split("…"))
                assert low <= float(ours) <= high, name
            else:
                assert published in (ours, "–"), name
            assert row["where it is written"], name
