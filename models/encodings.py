"""Encodings of numbers that a network predicts: as they are, or as a distribution over places on a squashed axis.

    f(x) = sign(x) (√(|x| + 1) − 1) + 0.001 x        'sqrt'  (Pohlen et al. 2018)
    f(x) = sign(x) ln(|x| + 1)                       'log'

Two-hot (Schrittwieser et al. 2020): m atoms stand one apart on the axis of f. A number between two of them is written as two
weights that sum to 1. With `biased=False` the weights mix f⁻¹ of the atoms, so the expectation of x itself is learned; with
`biased=True` they mix the atoms, and f⁻¹ of the expectation of f(x) is read, which is less than the expectation of a noisy x.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parl_like.values.errors import unknown

Squash = Literal["sqrt", "log"]
SUPPORT = {"sqrt": 300, "log": 20}
"""Atoms on each side of zero: 601 in all for 'sqrt', 41 for 'log'."""
EPS = 0.001


def squash(x: Tensor, kind: Squash = "sqrt") -> Tensor:
    """f(x), of any shape, see above."""
    if kind == "log":
        return x.sign() * x.abs().log1p()
    # √(|x| + 1) − 1 = |x| / (√(|x| + 1) + 1), which keeps the digits of a small x
    return x / ((x.abs() + 1.0).sqrt() + 1.0) + EPS * x


def unsquash(y: Tensor, kind: Squash = "sqrt") -> Tensor:
    """f⁻¹(y).

    For 'sqrt' with u = √(|x| + 1) − 1: ε u² + (1 + 2ε) u = |y|, solved without a difference of nearly equal numbers, too; then
    |x| = u (u + 2).
    """
    size = y.abs()
    if kind == "log":
        return y.sign() * size.expm1()
    b = 1.0 + 2.0 * EPS
    u = 2.0 * size / (b + (b * b + 4.0 * EPS * size).sqrt())
    return y.sign() * u * (u + 2.0)


class Scalar(nn.Module):
    """A number as it is: one output, squared error."""

    size = 1

    def decode(self, out: Tensor) -> Tensor:
        """Outputs of the network [..., 1] → numbers [...]."""
        return out.squeeze(-1)

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        """(out − target)², [...] each."""
        return (out.squeeze(-1) - target).square()


class TwoHot(nn.Module):
    """A number as a distribution over 2 · support + 1 atoms: softmax, cross-entropy. What lies beyond the outermost atom counts
    as it.

    Args:
        kind: Which f.
        biased: See above.

    Attributes:
        size: Number of atoms.
        atoms: [size] float32, in units of x (`biased=False`) or of f(x).

    Raises:
        ValueError: there is no such f.
    """

    atoms: Tensor

    def __init__(self, kind: Squash = "sqrt", biased: bool = False) -> None:
        super().__init__()
        if kind not in SUPPORT:
            raise ValueError("TwoHot: " + unknown("f", kind, SUPPORT))
        self.kind, self.biased, self.support = kind, biased, SUPPORT[kind]
        self.size = 2 * self.support + 1
        places = torch.arange(-self.support, self.support + 1, dtype=torch.float64)
        self.register_buffer("atoms", (places if biased else unsquash(places, kind)).float(), persistent=False)

    def encode(self, x: Tensor) -> Tensor:
        """Numbers [...] → weights [..., size] float32 on the two atoms around each."""
        y = squash(x, self.kind).clamp(-self.support, self.support)
        below = y.floor().clamp(max=self.support - 1)
        index = (below + self.support).long()
        if self.biased:
            above = y - below
        else:
            low, high = self.atoms[index], self.atoms[index + 1]
            above = ((x - low) / (high - low)).clamp(0.0, 1.0)
        above = above.to(self.atoms.dtype).unsqueeze(-1)
        index = index.unsqueeze(-1)
        out = torch.zeros(*x.shape, self.size, device=x.device)
        return out.scatter_(-1, torch.cat([index, index + 1], -1), torch.cat([1.0 - above, above], -1))

    def decode(self, out: Tensor) -> Tensor:
        """Logits [..., size] → numbers [...]. Equal logits give exactly 0: opposite atoms are summed first."""
        p = out.float().softmax(-1)
        middle = self.support
        mean = ((p[..., middle + 1 :] - p[..., :middle].flip(-1)) * self.atoms[middle + 1 :]).sum(-1)
        return unsquash(mean, self.kind) if self.biased else mean

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy −Σ w log p against the two weights of `target`, [...] each."""
        return -(self.encode(target) * F.log_softmax(out.float(), -1)).sum(-1)


ENCODINGS = ("scalar", "two_hot", "two_hot_biased")


def make_encoding(name: str, kind: Squash = "sqrt") -> Scalar | TwoHot:
    """'scalar' (published enc_type 0), 'two_hot' (2), 'two_hot_biased' (3).

    Raises:
        ValueError: no such encoding, or no such f.
    """
    if name not in ENCODINGS:
        raise ValueError(unknown("encoding", name, ENCODINGS))
    return Scalar() if name == "scalar" else TwoHot(kind, biased=name == "two_hot_biased")
