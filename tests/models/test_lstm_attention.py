"""LSTM-attention: golden numbers of the original, a slow twin in NumPy, and the laws of a memory."""

import math

import numpy as np
import pytest
import torch

from parl_like.models import LSTMAttention


def of(layers=2, size=8, heads=2, memory=3, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LSTMAttention(size, layers, heads, memory, **options).double()


def inputs(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# `lstm_attn` of the golden file: width 4, 2 layers, 2 heads, memory 3; every weight tensor is 0.1 · sin(1, 2, 3, …) in C order,
# LayerNorm 1 and 0; x[t][j] = cos(t + j), and row 3 starts an episode.
OUTPUT = [[0.210122, 0.145201, -0.146443, -0.274818], [0.292157, 0.063058, -0.258183, -0.291124],
          [0.185519, -0.151052, -0.213527, 0.059992],
          [-0.205778, -0.101936, 0.142202, 0.214397], [-0.272393, 0.008872, 0.26084, 0.23851]]
C_LAST = [[-0.673893, 0.008256, 0.673596, 0.568764], [-0.647265, 0.01965, 0.665038, 0.550164]]


def golden_run(accumulate):
    model = of(size=4, accumulate=accumulate)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0 if "weight" in name else 0.0)
            else:
                parameter.copy_(0.1 * torch.sin(torch.arange(1, parameter.numel() + 1).double()).view(parameter.shape))
        x = torch.tensor([[[math.cos(t + j) for j in range(4)]] for t in range(5)], dtype=torch.float64)
        return model(x, None, torch.tensor([0, 0, 0, 1, 0]).bool()[:, None])


def test_golden_numbers_of_the_original():
    """Six digits are given. The keys of the original add up, which moves its third step by more than half a unit of the sixth."""
    y, state = golden_run(accumulate=True)
    np.testing.assert_allclose(y[:, 0].numpy(), OUTPUT, atol=6e-7)
    np.testing.assert_allclose(state["c"][0].numpy(), C_LAST, atol=6e-7)
    assert state["filled"].tolist() == [2]  # mask_last [1, 0, 0]: one slot is not there
    ours = golden_run(accumulate=False)[0][:, 0].numpy()
    assert 8e-7 < np.abs(ours - OUTPUT).max() < 1e-5


def reference(model, xs, first):
    """One row through an episode or several, with lists for memories: `LSTMAttention` as its formulas say."""
    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    weights = {name: p.detach().numpy() for name, p in model.named_parameters()}
    n, size, heads, dim = len(model.cells), model.size, model.heads, model.size // model.heads
    outputs = []
    for x, begins in zip(xs.numpy(), first.tolist(), strict=True):
        if begins or not outputs:
            h, c, slots = np.zeros((n, size)), np.zeros((n, size)), [[] for _ in range(n)]
        below = h[-1]
        for i in range(n):
            w = {name.removeprefix(f"cells.{i}."): value for name, value in weights.items() if name.startswith(f"cells.{i}.")}
            u = np.concatenate([x, below])
            k, q, v = (w["project.weight"] @ u + w["project.bias"]).reshape(heads, 3, dim).transpose(1, 0, 2)
            slots[i] = [*slots[i], (k, v)][-model.memory :]
            found = np.zeros((heads, dim))
            for head in range(heads):
                scores = []
                for back, (key, _) in enumerate(reversed(slots[i])):
                    slot = model.memory - 1 - back
                    place = w["slot_key"][slot].reshape(heads, dim)[head]
                    scores.append(q[head] @ (key[head] + place) / np.sqrt(dim) + w["slot_bias"][slot, head] + 5.0 * (back == 0))
                p = np.exp(scores) / np.exp(scores).sum()
                found[head] = sum(p_s * value[head] for p_s, (_, value) in zip(p, reversed(slots[i]), strict=True))
            r = x + w["out.weight"] @ found.ravel() + w["out.bias"]
            r = (r - r.mean()) / np.sqrt(r.var() + 1e-5) * w["norm.weight"] + w["norm.bias"]
            ins, forget, out, new, attend = (w["gates.weight"] @ np.concatenate([u, h[i]]) + w["gates.bias"]).reshape(5, size)
            c[i] = sigmoid(forget) * c[i] + sigmoid(ins) * np.tanh(new) + sigmoid(attend) * np.tanh(r)
            below = h[i] = sigmoid(out) * np.tanh(c[i])
        outputs.append(below)
    return np.stack(outputs)


@pytest.mark.parametrize(("layers", "heads", "memory"), [(1, 1, 1), (2, 4, 3), (3, 2, 20)])
def test_equals_the_slow_twin(layers, heads, memory):
    """Ten steps, more than three slots hold, in two episodes; in the other row all in one."""
    model, xs = of(layers, 8, heads, memory), inputs(10, 2, 8)
    for cell in model.cells:  # far from even weights, so that a wrong slot shows
        cell.slot_key.data.mul_(5.0)
        cell.slot_bias.data.mul_(30.0)
    first = torch.zeros(10, 2, dtype=torch.bool)
    first[4, 0] = True
    with torch.no_grad():
        y, _ = model(xs, None, first)
    for row in (0, 1):
        np.testing.assert_allclose(y[:, row], reference(model, xs[:, row], first[:, row]), atol=1e-12)


def test_step_by_step_is_the_same_as_at_once():
    model, xs, first = of(), inputs(7, 3, 8), torch.zeros(7, 3, dtype=torch.bool)
    first[3, 1] = True
    with torch.no_grad():
        whole, after = model(xs, None, first)
        state, steps = None, []
        for t in range(7):
            y, state = model(xs[t], state, first[t])
            steps.append(y)
    torch.testing.assert_close(torch.stack(steps), whole)
    assert state.keys() == after.keys() == model.state_specs().keys()
    for name, spec in model.state_specs().items():
        torch.testing.assert_close(state[name], after[name])
        assert state[name].shape == (3, *spec.shape)


def test_an_episode_begins_with_zeros_whatever_was_before():
    model, xs = of(), inputs(5, 2, 8)
    with torch.no_grad():
        _, dirty = model(inputs(4, 2, 8, seed=9))
        begun, _ = model(xs, dirty, torch.tensor([[True, True]] + [[False, False]] * 4))
        torch.testing.assert_close(begun, model(xs)[0])
        zeros = {name: torch.zeros(2, *s.shape, dtype=torch.int64 if name == "filled" else torch.float64)
                 for name, s in model.state_specs().items()}
        torch.testing.assert_close(begun, model(xs, zeros)[0])
        assert not torch.allclose(begun, model(xs, dirty)[0])


def test_rows_never_meet_and_every_parameter_learns_through_time():
    model, xs = of(), inputs(6, 4, 8)
    with torch.no_grad():
        together = model(xs)[0]
        torch.testing.assert_close(torch.cat([model(xs[:, [b]])[0] for b in range(4)], 1), together)
    xs.requires_grad_()
    model(xs)[0][-1].sum().backward()
    assert (xs.grad[0].abs().sum(-1) > 0).all()
    assert all((p.grad.abs() > 0).any() for p in model.parameters())


@pytest.mark.parametrize("arguments", [dict(size=6, heads=4), dict(memory=0), dict(layers=0)])
def test_impossible_sizes_are_refused(arguments):
    with pytest.raises(ValueError, match="LSTMAttention: size is"):
        LSTMAttention(**arguments)
    with pytest.raises(ValueError, match=r"\(3, 7\); expected \[N, 8\]"):
        of()(torch.zeros(3, 7, dtype=torch.float64))
