"""Transforms: what is done to raw rows on their way to a model, the same on rollout and on replay. The buffer keeps raw rows.

A chain (`Transforms`) is ordered: transforms that copy raw rows come first, then those that read the buffer, whose rows are raw,
then those that treat each row alone. So whatever is read from the buffer passes through the rest of the chain like the row
itself.
"""

from parl_like.data.transforms.chain import Identity, Source, Tier, Transform, Transforms, UntransformedTimeStep
from parl_like.data.transforms.frames import FrameStacker
from parl_like.data.transforms.hindsight import Hindsight, goal_reached
from parl_like.data.transforms.moments import Moments
from parl_like.data.transforms.normalize import ObservationNormalizer, ReturnScaling, RewardNormalizer
from parl_like.data.transforms.scale import (
    FunctionalReward,
    FunctionalRewardTransformer,
    ImageScale,
    ObservationCast,
    ObservationClip,
    ObservationTransform,
    RewardClipping,
    RewardScaling,
    RewardShifting,
    RewardTransform,
)

__all__ = [
    "FrameStacker", "FunctionalReward", "FunctionalRewardTransformer", "Hindsight", "Identity", "ImageScale", "Moments",
    "ObservationCast", "ObservationClip", "ObservationNormalizer", "ObservationTransform", "ReturnScaling", "RewardClipping",
    "RewardNormalizer", "RewardScaling", "RewardShifting", "RewardTransform", "Source", "Tier", "Transform", "Transforms",
    "UntransformedTimeStep", "goal_reached",
]
