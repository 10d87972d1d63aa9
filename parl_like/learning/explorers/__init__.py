"""Explorers: how a prediction becomes an action.

An explorer has two halves. `draw` makes the noise of one agent's rows from that agent's own generator; it travels with the
request. `act` maps the predictions and the noise of a whole batch to actions, with no memory and no generator. So what an agent
does depends on its own seed and prediction alone, never on which requests happened to share a batch, and the arithmetic is
vectorised. What lasts for an episode (a correlated noise, a chosen head) is the explorer's `memory`: `begin` makes it, `draw`
reads it.
"""

from parl_like.learning.explorers.base import (
    GREEDY,
    KINDS,
    NOISE_BLOCK,
    Explorer,
    Noise,
    StructuredExplorer,
    legal,
    n_logits,
    part_of,
)
from parl_like.learning.explorers.box import (
    GSDE,
    Beta,
    Gaussian,
    Noisy,
    OrnsteinUhlenbeck,
    SquashedGaussian,
    log_beta,
    log_slope,
    log_squashed,
)
from parl_like.learning.explorers.candidates import Candidates
from parl_like.learning.explorers.discrete import (
    UCB,
    BootstrappedHeads,
    Categorical,
    EpsilonGreedy,
    GumbelSoftmax,
    MultiCategorical,
    MultiEpsilonGreedy,
    NestedEpsilonGreedy,
    Softmax,
    Thompson,
    Weighted,
    all_best,
    best_actions,
    one_of,
    sample_categorical,
)
from parl_like.learning.explorers.uniform import random_actions

__all__ = [
    "GREEDY", "GSDE", "KINDS", "NOISE_BLOCK", "UCB", "Beta", "BootstrappedHeads", "Candidates", "Categorical", "EpsilonGreedy",
    "Explorer", "Gaussian", "GumbelSoftmax", "MultiCategorical", "MultiEpsilonGreedy", "NestedEpsilonGreedy", "Noise", "Noisy",
    "OrnsteinUhlenbeck", "Softmax", "SquashedGaussian", "StructuredExplorer", "Thompson", "Weighted", "all_best",
    "best_actions", "legal", "log_beta", "log_slope", "log_squashed", "n_logits", "one_of", "part_of", "random_actions",
    "sample_categorical",
]  # fmt: skip
