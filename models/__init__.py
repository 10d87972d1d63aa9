"""parl_like.models: the networks of this package; each is a `Model`, see parl_like/learning/model.py for what algorithms
call."""

if __name__ != "parl_like.models":
    raise ImportError(f"this folder is the package parl_like.models; it was imported as {__name__!r}")

from parl_like.models.actor_q import MLPActorQ
from parl_like.models.auxiliary_heads import CellQ, FeatureModel, RewardClasses
from parl_like.models.behavior import MLPImitationQ, MLPLatentActorQ
from parl_like.models.bootstrapped import MLPBootstrappedQ
from parl_like.models.branching import MLPBranchingQ
from parl_like.models.causal import CausalTransformer
from parl_like.models.conv import ConvActorCritic, ConvQ, ConvTrunk
from parl_like.models.cross_q import MLPCrossQ
from parl_like.models.curiosity import ICMNet, Novel, RNDNet
from parl_like.models.distributional import (
    ConvCategoricalQ,
    ConvFractionQ,
    ConvImplicitQ,
    MLPCategoricalQ,
    MLPFractionQ,
    MLPImplicitQ,
)
from parl_like.models.flat_obs import FlatObs
from parl_like.models.heads import (
    BetaHead,
    CategoricalHead,
    GaussianHead,
    GSDEHead,
    MultiCategoricalHead,
    SquashedGaussianHead,
    make_head,
)
from parl_like.models.imitator import MLPImitator
from parl_like.models.lstm_attention import LSTMAttention
from parl_like.models.mlp import MLP, MLPQ, EnsembleMLP, MLPActorCritic
from parl_like.models.muzero_net import LatentPrediction, LatentWorld, MuZeroNet
from parl_like.models.planner import Planner
from parl_like.models.recurrent import RecurrentActorCritic, RecurrentActorQ, RecurrentQ
from parl_like.models.skills import SkillClassifier
from parl_like.models.tabular import OptionTable, QTable, VTable
from parl_like.models.team import MLPCentralActorCritic, MLPTeamActorQ, MLPTeamMix, MLPTeamQ
from parl_like.models.thinker_net import ThinkerNet

__all__ = [
    "MLP",
    "MLPQ",
    "BetaHead",
    "CategoricalHead",
    "CausalTransformer",
    "CellQ",
    "ConvActorCritic",
    "ConvCategoricalQ",
    "ConvFractionQ",
    "ConvImplicitQ",
    "ConvQ",
    "ConvTrunk",
    "EnsembleMLP",
    "FeatureModel",
    "FlatObs",
    "GSDEHead",
    "GaussianHead",
    "ICMNet",
    "LSTMAttention",
    "LatentPrediction",
    "LatentWorld",
    "MLPActorCritic",
    "MLPActorQ",
    "MLPBootstrappedQ",
    "MLPBranchingQ",
    "MLPCategoricalQ",
    "MLPCentralActorCritic",
    "MLPCrossQ",
    "MLPFractionQ",
    "MLPImitationQ",
    "MLPImitator",
    "MLPImplicitQ",
    "MLPLatentActorQ",
    "MLPTeamActorQ",
    "MLPTeamMix",
    "MLPTeamQ",
    "MuZeroNet",
    "MultiCategoricalHead",
    "OptionTable",
    "Novel",
    "Planner",
    "QTable",
    "RNDNet",
    "RecurrentActorCritic",
    "RecurrentActorQ",
    "RecurrentQ",
    "RewardClasses",
    "SkillClassifier",
    "SquashedGaussianHead",
    "ThinkerNet",
    "VTable",
    "make_head",
]
