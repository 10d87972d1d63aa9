"""Draws a robot as SVG, for its page on the site: agents, their helpers, the tasks, and which fields go where; all read off a
robot that is built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from parl_like.agents.helper import AgentHelper
from parl_like.robots.thinker_shared import SharedModelTask
from parl_like.run.description import kind_of
from parl_like.run.robot import Robot
from parl_like.tasks.task import ComputationTask

AGENTS, HELPER, TASK, RIGHT = (10, 180), (218, 176), (612, 150), 874
"""Left edge and width of the three columns, and the picture's width."""
SHARED = "shared layers"
TOP, EACH, HEIGHT = 34, 92, 76
TRANSITION = ("obs", "act", "rew", "terminated", "truncated", "obs_next")
STYLE = """text{font:13px Helvetica,Arial,sans-serif;fill:#1f2328}.small{font-size:11.5px;fill:#57606a}.head{font-weight:bold}
.agents{fill:#eaf2fb;stroke:#3b73af}.helper{fill:#f6f8fa;stroke:#8c959f}.task{fill:#e6f4e8;stroke:#3c8a44}
path{fill:none;stroke:#8c959f;stroke-width:1.5}.between{stroke:#b0761a}marker path{fill:#8c959f;stroke:none}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#a3b0bd}.agents{fill:#17283c;stroke:#6ea8e6}
.helper{fill:#1f252d;stroke:#7d8894}.task{fill:#16301b;stroke:#6cc077}.between{stroke:#dba54a}}""".replace("\n", "")
ARROW = ('<marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto-start-reverse">'
         '<path d="M0,0L8,4L0,8z"/></marker>')


def svg(title: str, robot: Robot, where: str = "") -> str:
    """Return the picture of a robot; `where`: its environment, in a word or two."""
    names = list(robot.tasks)
    height = TOP + EACH * max(len(names), 1)
    one = robot.agents[0]
    n_envs = sum(agent.n_envs for agent in robot.agents)
    about = [type(one).__name__, where, f"{n_envs} environments" if n_envs > len(robot.agents) else ""]
    drawn = [_box(AGENTS, TOP, height - TOP - EACH + HEIGHT, "agents",
                  f"{len(robot.agents)} agent{'s' * (len(robot.agents) > 1)}", filter(None, about)),
             _text(AGENTS[0], 20, "who acts", "small")]
    if not names:
        drawn.append(_text(HELPER[0], TOP + HEIGHT / 2, "no task: nothing predicts, and nothing is learned", "small"))
    else:
        drawn += [_text(left, 20, text, "small") for (left, _), text in (
            (HELPER, "one helper for each agent and task"), ((HELPER[0] + HELPER[1] + 12, 0), "requests, and rows"),
            (TASK, "who predicts and learns"))]
    for number, name in enumerate(names):
        drawn += _lane(robot, name, TOP + EACH * number)
    for number, (first, second, text) in enumerate(_between(robot)):
        drawn.append(_joined(*(TOP + EACH * names.index(one) + HEIGHT / 2 for one in (first, second)), text, number))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {RIGHT} {height}" role="img"><title>{escape(title)}</title>'
            f"<style>{STYLE}</style><defs>{ARROW}</defs>{''.join(drawn)}</svg>\n")


def _lane(robot: Robot, name: str, y: float) -> Iterator[str]:
    """Yield what belongs to one task: the helper, the task, and what goes between them."""
    task = robot.tasks[name]
    of_agent = [helper for key, helper in robot.agents[0].helpers.items() if name in (key, key[0])]
    helper = of_agent[0]
    shared = isinstance(task, SharedModelTask)
    said = [*(["environments ask it"] if shared else _schedule(helper, task)),
            f"one for each of {len(of_agent)} players" if len(of_agent) > 1 else ""]
    yield _box(HELPER, y, HEIGHT, "helper", type(helper).__name__, filter(None, said))
    fixed = ["learns from its clients"] if shared else [] if task.train else ["does not learn"]
    yield _box(TASK, y, HEIGHT, "task", name, [kind_of(task.algorithm), kind_of(task.algorithm.model), *fixed])
    left, right = HELPER[0] + HELPER[1], TASK[0]
    yield _way(AGENTS[0] + AGENTS[1], HELPER[0], y + HEIGHT / 2, both=True)
    yield _way(left, right, y + 26, both=True)
    yield _text(left + 8, y + 20, f"asks: {_fields(spec.name for spec in robot.wrappers[name].predictions.specs)}", "small")
    if task.train:
        buffer = robot.buffers.get(name)
        names = [] if buffer is None else [spec.name for spec in buffer.specs or ()]
        more = _fields(name for name in names if name.partition(".")[0] not in TRANSITION)
        yield _way(left, right, y + 54)
        yield _text(left + 8, y + 48, "rows: transition", "small")
        yield _text(left + 8, y + 69, f"with {more}" if more else "", "small")


def _fields(names: Iterable[str]) -> str:
    """Return the names of fields, without those of their parts."""
    return ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))


def _schedule(helper: AgentHelper, task: ComputationTask) -> Iterator[str]:
    """Yield in words from which rows a task learns, and when."""
    told = vars(helper)
    if not task.train:
        yield "asks alone"
    elif "unroll" in told:
        yield f"{told['unroll']} steps, each once"
    elif "batch_size" in told:
        yield f"{told['batch_size']} rows of its buffer"
        yield _pace(told["learn_every"], told.get("updates", 1))
    elif "episodes" in told:
        yield f"after {told['episodes']} episode{'s' * (told['episodes'] > 1)}"
    else:
        yield "each step, at once"


def _pace(every: int | None, updates: int) -> str:
    if every is None:
        return "when the agent says so"
    return f"{f'{updates} updates ' * (updates > 1)}every {f'{every} steps' if every > 1 else 'step'}"


def _between(robot: Robot) -> Iterator[tuple[str, str, str]]:
    """Yield pairs of tasks, and what joins them: a reward, a question, layers."""
    for name, task in robot.tasks.items():
        for other in task.asks:
            yield other, name, f"reward × {task.rewards[other]:g}" if other in task.rewards else "is asked"
    held = {name: {id(one) for one in getattr(task.algorithm.model, "parameters", tuple)()} for name, task in robot.tasks.items()}
    for number, name in enumerate(held):
        if first := next((other for other in list(held)[:number] if held[other] & held[name]), ""):
            yield first, name, SHARED


def _box(column: tuple[int, int], y: float, height: float, kind: str, head: str, lines: Iterable[str]) -> str:
    x, width = column
    small = "".join(_text(x + 10, y + 38 + 16 * i, line, "small") for i, line in enumerate(lines))
    return (f'<rect class="{kind}" x="{x}" y="{y:g}" width="{width}" height="{height:g}" rx="7"/>'
            f"{_text(x + 10, y + 20, head, 'head')}{small}")


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _way(left: float, right: float, y: float, both: bool = False) -> str:
    start = ' marker-start="url(#end)"' if both else ""
    return f'<path d="M{left + 2:g} {y:g}H{right - 2:g}" marker-end="url(#end)"{start}/>'


def _joined(first: float, second: float, text: str, number: int) -> str:
    """Return a line from one task to another on their right."""
    x, out = TASK[0] + TASK[1] + 2, 10 + 14 * number
    upper, lower = sorted((first, second))
    both = ' marker-start="url(#end)"' if text == SHARED else ""
    line = f'<path class="between" d="M{x} {first:g}h{out}V{second:g}h{-out}" marker-end="url(#end)"{both}/>'
    return line + _text(x + out + 6, (upper + lower) / 2 + 4, text, "small")
