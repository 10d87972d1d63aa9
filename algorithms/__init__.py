"""parl_like.algorithms: one readable file per family."""

if __name__ != "parl_like.algorithms":
    raise ImportError(f"this folder is the package parl_like.algorithms; it was imported as {__name__!r}")

from parl_like.algorithms.actor_critic import A2C, ActorCritic
from parl_like.algorithms.alphazero import AlphaZero
from parl_like.algorithms.appo import APPO
from parl_like.algorithms.auxiliary_tasks import SPR, FeatureControl, RewardPrediction, ValueReplay
from parl_like.algorithms.bc import BC
from parl_like.algorithms.bcq import BCQ, PLAS, DiscreteBCQ
from parl_like.algorithms.bootstrapped import BootstrappedDQN
from parl_like.algorithms.branching import BDQ
from parl_like.algorithms.c51 import C51, Rainbow
from parl_like.algorithms.cql import CQL, DiscreteCQL
from parl_like.algorithms.crossq import CrossQ
from parl_like.algorithms.crr import CRR
from parl_like.algorithms.curiosity import ICM, RND, Counts
from parl_like.algorithms.ddpg import DDPG, TD3
from parl_like.algorithms.decision_transformer import DecisionTransformer
from parl_like.algorithms.diayn import Discriminator
from parl_like.algorithms.dqn import DQN, BasicDQN
from parl_like.algorithms.dynamics import DynamicsLearner
from parl_like.algorithms.evolution import ARS, CEM, ES
from parl_like.algorithms.gail import GAIL
from parl_like.algorithms.impala import IMPALA, Stream
from parl_like.algorithms.iql import IQL
from parl_like.algorithms.maddpg import MADDPG
from parl_like.algorithms.mappo import MAPPO
from parl_like.algorithms.marwil import MARWIL
from parl_like.algorithms.mbpo import MBPO, EnsembleLearner
from parl_like.algorithms.mixing import QMIX, VDN
from parl_like.algorithms.mpo import MPO
from parl_like.algorithms.munchausen import MDQN
from parl_like.algorithms.muzero import MuZero, MuZeroModel
from parl_like.algorithms.natural import NPG, TRPO
from parl_like.algorithms.oac import OAC
from parl_like.algorithms.ppg import PPG
from parl_like.algorithms.ppo import PPO
from parl_like.algorithms.pqn import PQN
from parl_like.algorithms.quantiles import FQF, IQN, QRDQN
from parl_like.algorithms.r2d2 import R2D2
from parl_like.algorithms.recurrent_actors import RSAC, RTD3
from parl_like.algorithms.redq import REDQ, DroQ
from parl_like.algorithms.reinforce import REINFORCE
from parl_like.algorithms.rem import REM
from parl_like.algorithms.sac import SAC
from parl_like.algorithms.tables.bandits import EpsilonGreedyBandit, GradientBandit, ThompsonBandit, UCBBandit
from parl_like.algorithms.tables.curriculum import LearningProgress
from parl_like.algorithms.tables.monte_carlo import MonteCarlo, MonteCarloPrediction
from parl_like.algorithms.tables.options import OptionCritic
from parl_like.algorithms.tables.planning import DynaQ, PrioritizedSweeping
from parl_like.algorithms.tables.prediction import TD, NStepTD
from parl_like.algorithms.tables.psrl import PSRL
from parl_like.algorithms.tables.temporal_difference import SARSA, DoubleQLearning, ExpectedSARSA, QLearning
from parl_like.algorithms.tables.traces import NStepQ, QLambda, SARSALambda
from parl_like.algorithms.td3_bc import TD3BC
from parl_like.algorithms.tqc import QRSAC, TQC
from parl_like.algorithms.vmpo import VMPO
from parl_like.algorithms.world_model import WorldModel

__all__ = [
    "MuZero", "MuZeroModel",
    "A2C", "APPO", "ARS", "BC", "BCQ", "BDQ", "C51", "CEM", "CQL", "CRR", "DDPG", "DQN", "ES", "FQF", "GAIL", "IMPALA", "IQL",
    "IQN", "MADDPG", "MAPPO", "MARWIL", "MBPO", "MDQN", "MPO", "NPG", "OAC", "PLAS", "PPG", "PPO", "PSRL", "QMIX", "QRDQN",
    "QRSAC", "R2D2", "REDQ", "REINFORCE", "REM", "SAC", "SARSA", "TD", "TD3", "TD3BC", "TQC", "TRPO", "VDN", "VMPO",
    "ActorCritic", "AlphaZero", "BasicDQN", "BootstrappedDQN", "CrossQ", "DecisionTransformer", "DiscreteBCQ", "DiscreteCQL",
    "DoubleQLearning", "DroQ", "DynaQ", "DynamicsLearner", "EnsembleLearner", "EpsilonGreedyBandit", "ExpectedSARSA",
    "GradientBandit", "MonteCarlo", "SPR", "FeatureControl", "LearningProgress",
    "MonteCarloPrediction", "NStepQ", "NStepTD", "OptionCritic", "PrioritizedSweeping", "QLambda", "QLearning", "Rainbow",
    "RewardPrediction", "Counts", "Discriminator", "ICM", "RND",
    "SARSALambda", "Stream", "ThompsonBandit", "UCBBandit", "ValueReplay", "WorldModel",
    "PQN", "RSAC", "RTD3",
]  # fmt: skip
