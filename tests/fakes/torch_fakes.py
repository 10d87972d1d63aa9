"""Tensors for tests."""

import torch


def normal(*shape, seed=1):
    """Draw standard normal numbers from a generator of their own."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
