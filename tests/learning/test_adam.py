"""FusedAdam against torch's Adam."""

from functools import partial

import pytest
import torch

from parl_like.learning.adam import FusedAdam
from parl_like.learning.algorithm import Loss
from parl_like.learning.optimizer_steps import Stepper


@pytest.fixture(params=[False, True], ids=["torch", "native"], autouse=True)
def native(request, monkeypatch):
    monkeypatch.setattr(FusedAdam, "native", request.param)
    return request.param


def pair(**options):
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator) for shape in [(3, 4), (4,), (2, 2), ()]]
    sides = [[torch.nn.Parameter(value.clone()) for value in values] for _ in range(2)]
    return sides, FusedAdam(sides[0], **options), torch.optim.Adam(sides[1], **options), generator


def steps(sides, ours, theirs, generator, groups):
    for members in groups:
        ours.zero_grad()
        theirs.zero_grad()
        for i in members:
            grad = torch.randn(sides[0][i].shape, generator=generator)
            for side in sides:
                side[i].grad = grad.clone()
        ours.step()
        theirs.step()
    for mine, other in zip(*sides, strict=True):
        torch.testing.assert_close(mine, other)
    for mine, other in zip(*sides, strict=True):
        assert float(ours.state[mine]["step"]) == float(theirs.state[other]["step"])


ALL = range(4)


@pytest.mark.parametrize("options", [{}, {"lr": 0.1, "eps": 1e-3, "betas": (0.5, 0.9)}, {"weight_decay": 0.1}])
def test_takes_torchs_steps(options):
    options = {"eps": 1e-5, **options}
    steps(*pair(**options), [ALL] * 20)


def test_parameters_without_a_gradient_are_left_alone_and_keep_their_count():
    """A trunk is stepped more often than the heads; counters that were equal must part."""
    steps(*pair(eps=1e-5), [ALL, ALL, [0, 1], ALL, [2], [0, 1], [0, 1], [3], ALL])


@pytest.mark.parametrize("native", [False, True])
def test_a_step_that_reaches_none_of_its_parameters_changes_nothing(native):
    """As of the owner of shared parameters, in an update of another task that leaves them alone."""
    one = torch.nn.Parameter(torch.ones(2))
    optimizer = FusedAdam([one], lr=0.1)
    optimizer.native = native
    optimizer.step()
    assert one.tolist() == [1.0, 1.0]
    one.grad = torch.ones(2)
    optimizer.step()
    assert (one < 1.0).all() and float(optimizer.state[one]["step"]) == 1.0
    one.grad = None
    optimizer.step()
    assert float(optimizer.state[one]["step"]) == 1.0


def test_goes_on_from_its_own_and_from_torchs_state():
    sides, ours, theirs, generator = pair(eps=1e-5)
    steps(sides, ours, theirs, generator, [ALL, ALL, [1]])
    saved = torch.optim.Adam(sides[0], eps=1e-5)
    saved.load_state_dict(ours.state_dict())
    resumed = FusedAdam(sides[0])
    resumed.load_state_dict(saved.state_dict())
    steps(sides, resumed, theirs, generator, [ALL, [2], ALL])


def test_refuses_groups():
    a, b = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    with pytest.raises(ValueError, match="2 parameter groups"):
        FusedAdam([{"params": [a]}, {"params": [b], "lr": 0.1}])


@pytest.mark.parametrize("flushing", [False, True])
@pytest.mark.parametrize("make", [FusedAdam, torch.optim.Adam, partial(torch.optim.SGD, momentum=0.9)])
def test_moments_that_fade_become_zero_and_the_threads_own_mode_stays(make, flushing):
    weights = torch.nn.Parameter(torch.ones(4))
    stepper = Stepper("task 'RL'", Loss(weights, optimizer=make), [weights], [], 1e-8)
    torch.set_flush_denormal(flushing)
    try:
        for k in range(1200):  # 0.9 ** 1200 is 1e-55, below what float32 has
            weights.grad = torch.tensor([1e-3, 0.0, 1e-3, 0.0]) if k == 0 else torch.tensor([0.0, 0.0, 1e-3, 0.0])
            stepper.step(k)
        tiny = 5e-324
        assert (tiny == 0.0) is flushing
    finally:
        torch.set_flush_denormal(False)
    moment = next(value for name, value in stepper.optimizer.state[weights].items() if name in ("exp_avg", "momentum_buffer"))
    assert moment[0] == 0.0 and moment[2] > 0.0
