"""What an editor shows of models, algorithms and layers: their own arguments, and their own methods instead of all of torch's."""

import ast
import inspect
import pydoc
import re
from pathlib import Path

import pytest
import torch

import parl_like.algorithms
import parl_like.models
from parl_like.algorithms.dynamics import DynamicsLearner
from parl_like.learning import layers
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.model import Model
from parl_like.models.dynamics import Dynamics, Trunk
from parl_like.models.thinker_net import ThinkerNet

PUBLIC = {
    **{name: getattr(parl_like.models, name) for name in parl_like.models.__all__},
    **{name: getattr(parl_like.algorithms, name) for name in parl_like.algorithms.__all__},
    **{name: getattr(layers, name) for name in ("fc", "conv2d", "embedding", "lstm", "gru", "layer_norm", "batch_norm",
                                                "activation")},
    "Model": Model, "Algorithm": Algorithm, "Dynamics": Dynamics, "Trunk": Trunk, "DynamicsLearner": DynamicsLearner,
}
CLASSES = {name: value for name, value in PUBLIC.items() if isinstance(value, type) and issubclass(value, torch.nn.Module)}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_argument_is_shown_with_its_type(name):
    parameters = inspect.signature(PUBLIC[name]).parameters.values()
    assert parameters and not [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) or p.annotation is p.empty]


LEARNERS = [name for name, kind in PUBLIC.items() if isinstance(kind, type) and issubclass(kind, Algorithm)]


@pytest.mark.parametrize("name", LEARNERS)
def test_what_an_argument_is_elsewhere_it_is_here_or_it_is_explained(name):
    """Members say `The others: As for SAC`: an argument that SAC has, too, is of its type, and has its default or a line here."""
    kind = PUBLIC[name]
    base, text = kind.__mro__[1], inspect.getdoc(kind)
    inherited = inspect.signature(base).parameters if base is not Algorithm else {}
    for argument, one in inspect.signature(kind).parameters.items():
        if other := inherited.get(argument):
            assert one.annotation == other.annotation, argument
            assert one.default == other.default or re.search(rf"\b{argument}\b", text), argument


def test_signatures_are_those_of_the_constructors():
    assert list(inspect.signature(parl_like.models.MLPQ).parameters) == ["obs", "act", "hidden", "activation", "dueling", "noisy",
                                                                            "layer_norm", "heads", "trunk"]

    class Plain(parl_like.models.MLPQ):
        pass

    assert inspect.signature(Plain) == inspect.signature(parl_like.models.MLPQ)
    assert {"clip", "epochs", "gamma", "lam", "entropy", "lr",
            "max_grad_norm"} <= set(inspect.signature(parl_like.algorithms.PPO).parameters)


@pytest.mark.parametrize("name", [*CLASSES, "LayerFunc"])
def test_help_shows_what_is_ours(name):
    kind = CLASSES.get(name, layers.LayerFunc)
    text = pydoc.plain(pydoc.render_doc(kind))
    assert "register_full_backward_hook" not in text and "Methods inherited from torch" not in text
    assert "__init__" in text and len(text.splitlines()) < 330


def test_objects_still_name_everything():
    model = ThinkerNet(parl_like.models.thinker_net.gym.spaces.Box(0, 1, (4,)),
                       parl_like.models.thinker_net.gym.spaces.Discrete(2), channels=2)
    assert {"parameters", "to", "state_dict", "recurrent", "weights_hash", "vp_heads"} <= set(dir(model))


# ------------------------------------------------------------------------------------------------------------ named arguments

ROOT = Path(__file__).resolve().parent.parent
BY_POSITION = {
    "parl_like/data/returns.py vtrace": "the columns of an unroll, in the order of the formula; its three numbers are named",
    "parl_like/data/timestep.py next_step": "what gymnasium's step gives, in gymnasium's order",
    "parl_like/agents/helper.py store": "one row, in the order of its columns, once for each step; documented so",
    "parl_like/agents/population.py store": "as the helper's",
    "parl_like/agents/online.py store": "as the helper's",
    "parl_like/agents/reservoir.py store": "as the helper's",
    "parl_like/agents/offline.py store": "as the helper's",
    "parl_like/agents/row_writer.py store": "as the helper's",
    "parl_like/agents/online.py _learn_row": "one row, once for each step",
    "envs/sokoban/vector.py SokobanVectorEnv": "the number of environments, and then what `SokobanEnv` takes",
}
"""Functions with more than six parameters of which more than four may be given by position, and why."""


def long_ones():
    """Yield the functions with more than six parameters: their name, and how many of these may be given by position."""
    for top in ("parl_like", "algorithms", "models", "envs", "robots"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                for one in getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else ():
                    if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                        given = [arg.arg for arg in (*one.args.posonlyargs, *one.args.args) if arg.arg not in ("self", "cls")]
                        if len(given) + len(one.args.kwonlyargs) > 6:
                            name = node.name if one.name == "__init__" else one.name
                            yield f"{path.relative_to(ROOT)} {name}", len(given)


def test_functions_of_many_arguments_have_them_named():
    found = dict(long_ones())
    assert len(found) > 30  # it looks somewhere
    wrong = {name for name, positions in found.items() if positions > 4} - set(BY_POSITION)
    assert not wrong, f"more than six parameters, and more than four by position: {sorted(wrong)}; put a * before the later ones"
    assert not [name for name in BY_POSITION if found.get(name, 0) <= 4], "take those out of the list that it no longer needs"
