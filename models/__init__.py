"""parl_like.models: the networks that come with the house; each is a `Model`, see parl_like/model.py for what algorithms call."""

if __name__ != "parl_like.models":
    raise ImportError(f"this folder is the package parl_like.models; it was imported as {__name__!r}")

from parl_like.models.conv import ConvActorCritic, ConvQ, ConvTrunk
from parl_like.models.heads import CategoricalHead, GaussianHead, MultiCategoricalHead, make_head
from parl_like.models.lstm_attention import LSTMAttention
from parl_like.models.mlp import MLP, MLPQ, FlatObs, MLPActorCritic, TwinMLP
from parl_like.models.planner import Planner
from parl_like.models.recurrent import RecurrentActorCritic
from parl_like.models.thinker_net import ThinkerNet

__all__ = [
    "MLP",
    "MLPQ",
    "CategoricalHead",
    "ConvActorCritic",
    "ConvQ",
    "ConvTrunk",
    "FlatObs",
    "GaussianHead",
    "LSTMAttention",
    "MLPActorCritic",
    "MultiCategoricalHead",
    "Planner",
    "RecurrentActorCritic",
    "ThinkerNet",
    "TwinMLP",
    "make_head",
]
