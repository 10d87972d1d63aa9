"""torch's optimisers without `torch._dynamo`. In processes of their own: once it is loaded, it is there for all tests."""

import json
import subprocess
import sys

import pytest

CODE = """
import copy, json, sys
import torch
{before}
KINDS = [kind for kind in vars(torch.optim).values() if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
         and kind is not torch.optim.Optimizer]

def trained(kind, steps=3):
    torch.manual_seed(0)
    weights, hooked = torch.nn.Parameter(torch.randn(4, 3)), []
    optimizer = kind([weights], lr=0.1)
    optimizer.register_step_post_hook(lambda *_: hooked.append(torch.is_grad_enabled()))

    def loss():
        optimizer.zero_grad()
        value = ((weights - 1.0) ** 2).sum()
        value.backward()
        if kind is torch.optim.SparseAdam:
            weights.grad = weights.grad.to_sparse()
        return value

    for _ in range(steps):
        optimizer.step(loss)
    again = copy.deepcopy(optimizer)
    again.load_state_dict(optimizer.state_dict())
    optimizer.add_param_group({{"params": [torch.nn.Parameter(torch.zeros(2, 2))], "lr": 0.5}})
    return [weights.tolist(), hooked, [group["lr"] for group in optimizer.param_groups], torch.is_grad_enabled()]

def one_group(kind):
    return kind is not torch.optim.LBFGS  # which takes no second group

found = {{kind.__name__: trained(kind) for kind in KINDS if one_group(kind)}}
loaded = "torch._dynamo" in sys.modules
{after}
print(json.dumps([found, loaded]))
"""

COMPILED = """
@torch.compile(backend="eager")
def compiled(optimizer, weights):
    optimizer.zero_grad()
    (weights ** 2).sum().backward()
    optimizer.step()

for kind in (torch.optim.SGD, torch.optim.Adam):
    weights = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([weights], lr=0.1)
    compiled(optimizer, weights)
    compiled(optimizer, weights)
    found[f"compiled {kind.__name__}"] = weights.tolist()
"""

AFTERWARDS = """
method = torch.optim.Optimizer.zero_grad
import parl_like.learning.adam
assert torch.optim.Optimizer.zero_grad is method, "torch has its compiler, and keeps its methods"
"""


def said_by(before, after):
    code = CODE.format(before=before, after=after)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_optimizers_of_torch_do_the_same_without_its_compiler():
    ours, loaded = said_by("import parl_like.learning.adam", "")
    theirs, loads = said_by("", AFTERWARDS)
    assert not loaded
    assert loads, "torch loads no compiler by itself any more: this module can go"
    assert ours == theirs
    assert {"SGD", "Adam", "AdamW", "RMSprop"} <= ours.keys()


@pytest.mark.slow
def test_compiled_steps_are_those_of_torch():
    ours, _ = said_by("import parl_like.learning.adam", COMPILED)
    theirs, _ = said_by("", COMPILED)
    assert ours == theirs
    assert "compiled Adam" in ours
