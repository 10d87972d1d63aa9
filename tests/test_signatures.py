"""What an editor shows of models, algorithms and layers: their own arguments, and their own methods instead of all of torch's."""

import inspect
import pydoc
import re

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
                                                                            "heads", "trunk"]

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
