"""parl_like.models: the networks that come with the house; each is a `Model`, see parl_like/model.py for what algorithms call."""

if __name__ != "parl_like.models":
    raise ImportError(f"this folder is the package parl_like.models; it was imported as {__name__!r}")

from parl_like.models.conv import ConvActorCritic, ConvQ, ConvTrunk
from parl_like.models.heads import CategoricalHead, GaussianHead, MultiCategoricalHead, make_head
from parl_like.models.mlp import MLP, MLPQ, FlatObs, MLPActorCritic, TwinMLP
from parl_like.models.recurrent import RecurrentActorCritic

__all__ = [
    "MLP",
    "MLPQ",
    "CategoricalHead",
    "ConvActorCritic",
    "ConvQ",
    "ConvTrunk",
    "FlatObs",
    "GaussianHead",
    "MLPActorCritic",
    "MultiCategoricalHead",
    "RecurrentActorCritic",
    "TwinMLP",
    "make_head",
]
