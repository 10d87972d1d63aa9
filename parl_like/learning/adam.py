"""Adam for small networks, and an optimiser step without denormal numbers."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from parl_like.learning import _native
from parl_like.learning.eager_optimizers import spare_compiler

_DENORMAL = 5e-324

spare_compiler()


def step(optimizer: torch.optim.Optimizer) -> None:
    """A step in which numbers too small for full precision (below 1.2e-38 for float32) count as 0.

    The moments of a unit that gets no gradient, such as a ReLU that never fires, shrink until they are such denormal numbers, and
    stay there; processors compute with them many times slower, and what they would change is below the precision of a weight.
    """
    if isinstance(optimizer, FusedAdam) and optimizer.step_natively():  # its loops see to that
        return
    before = _DENORMAL == 0.0  # so it is where this thread flushes them already
    torch.set_flush_denormal(True)
    try:
        optimizer.step()
    finally:
        torch.set_flush_denormal(before)


class FusedAdam(torch.optim.Adam):
    """`torch.optim.Adam(fused=True)` with the same state, state dict and numbers; a step costs about half for a 2×64 network.

    What it leaves out: several parameter groups, profiler marks and step hooks.
    Parameters without a gradient are skipped, as in torch (a task that shares a trunk relies on it).

    Args:
        params: Parameters, or one group of them.
        lr: Learning rate, above 0.
        betas, eps, weight_decay: As for `torch.optim.Adam`.

    Attributes:
        native: Whether a step is a compiled loop of our own, where parameters and gradients are dense float32 on the CPU.

    Raises:
        ValueError: there is more than one parameter group.
    """

    native = False

    def __init__(self, params: ParamsT, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)
        if len(self.param_groups) != 1:
            raise ValueError(f"FusedAdam: {len(self.param_groups)} parameter groups; expected one (use torch.optim.Adam for "
                             "more)")
        self._lists: tuple[list[torch.Tensor], ...] = ()
        self._members: list[torch.Tensor] = []
        self._counts: list[torch.Tensor] = []
        self._sizes: list[int] = []
        self._plain = False

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self._members = []  # the state tensors are new ones

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        if self.step_natively():
            return
        group, members, (moments, squares, counts) = self.param_groups[0], self._members, self._lists
        gradients: Any = [p.grad for p in members]
        beta1, beta2 = group["betas"]
        for count in self._counts:
            count += 1.0
        with torch.no_grad():
            torch._fused_adam_(
                members, gradients, moments, squares, [], counts, lr=group["lr"], beta1=beta1, beta2=beta2,
                weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False, maximize=False, grad_scale=None,
                found_inf=None)
        torch._C._increment_version(members)  # so that a graph from before the step is refused

    step.hooked = True  # type: ignore[attr-defined]  # keeps Optimizer.__init__ from wrapping step in profiler hooks

    def step_natively(self) -> bool:
        """Take a step by compiled loops, where they may; return whether they did. Else what a step needs is gathered.

        Raises:
            ValueError: a parameter has another shape than its gradient or its moments.
        """
        group = self.param_groups[0]
        members = [p for p in group["params"] if p.grad is not None]
        if not members:  # of the owner of shared parameters, which this update did not reach
            return True
        if len(members) != len(self._members) or not all(map(operator.is_, members, self._members)) or not _native.have(
                members, self._sizes):
            self._gather(members)
        gradients: Any = [p.grad for p in members]
        if not _native.have(gradients, self._sizes):
            raise ValueError("FusedAdam: a gradient has not the shape of its parameter, which was given other data since; "
                             "compute it anew")
        if not (self.native and self._plain and _native.dense(members, gradients)):
            return False
        moments, squares, counts = self._lists
        beta1, beta2 = group["betas"]
        _native.adam(members, gradients, moments, squares, counts, self._counts, lr=group["lr"], beta1=beta1, beta2=beta2,
                     eps=group["eps"], weight_decay=group["weight_decay"])
        torch._C._increment_version(members)
        return True

    def _gather(self, members: list[torch.Tensor]) -> None:
        for p in members:
            if not self.state[p]:
                self.state[p] = {"step": torch.zeros((), device=p.device), "exp_avg": torch.zeros_like(p),
                                 "exp_avg_sq": torch.zeros_like(p)}
        # Parameters that have taken equally many steps share one counter, so that a step adds to one number instead of to one per
        # tensor. The others of an earlier group keep theirs, hence new ones here.
        counters: dict[float, torch.Tensor] = {}
        for p in members:
            steps = self.state[p]["step"]
            self.state[p]["step"] = counters.setdefault(float(steps), steps.clone())
        for p in members:
            if self.state[p]["exp_avg"].shape != p.shape:
                raise ValueError(f"FusedAdam: a parameter of shape {tuple(p.shape)} has moments of "
                                 f"{tuple(self.state[p]['exp_avg'].shape)}: it was given data of another shape. Forget them (del "
                                 "optimizer.state[parameter]), and they begin at 0")
        self._counts = list(counters.values())
        self._members, self._sizes = members, [p.numel() for p in members]
        self._lists = tuple([self.state[p][key] for p in members] for key in ("exp_avg", "exp_avg_sq", "step"))
        self._plain = all(_native.plain(one) for some in self._lists for one in some)
