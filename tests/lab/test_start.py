"""What a start loads: nothing that it does not use. Each in a process of its own."""

import json
import subprocess
import sys

SLOW = {"torch._dynamo", "torch._inductor", "sympy", "matplotlib", "pandas", "ray", "scipy", "sklearn", "stable_baselines3",
        "moviepy", "pygame", "cv2", "h5py", "minari", "IPython"}
"""Modules that take long to load, and are for what a run of one step does not do."""


def loaded_by(code):
    """Return the modules that are there after this code, and what it left in `code`, an exit code."""
    end = "\nprint('\\n' + json.dumps([sorted(sys.modules), code]))"
    done = subprocess.run([sys.executable, "-c", f"import json, sys; code = 0\n{code}{end}"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    modules, code = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    return set(modules)


def test_help_loads_no_library():
    modules = loaded_by("from parl_like.lab.cli import main\ncode = main(['--help'])")
    assert not modules & {"torch", "numpy", "gymnasium", "yaml", "msgspec", "cloudpickle", "email", "importlib.metadata"}


def test_the_robot_class_loads_only_what_it_needs():
    modules = loaded_by("from parl_like import Robot")
    assert not modules & (SLOW | {"tensorboard", "PIL", "multiprocessing.managers", "yaml"})


def test_counting_the_bytes_of_tensors_loads_no_compiler():
    modules = loaded_by("import torch\nfrom parl_like.lab.config import ExperimentConfig\n"
                        "from parl_like.lab.sizes import bounded\nwith bounded(ExperimentConfig()):\n"
                        "    torch.rand(2), torch.randn(2), torch.eye(2), torch.arange(2), torch.full((2,), 1.0)")
    assert "torch" in modules
    assert not modules & SLOW


def test_a_run_of_one_step_loads_neither_compilers_nor_what_draws(tmp_path):
    modules = loaded_by("from parl_like.lab.cli import main\n"
                        f"code = main(['train', 'ppo-cartpole', 'total_steps=1', 'run_dir={tmp_path / 'run'}'])")
    assert "torch" in modules
    assert not modules & SLOW
    said = json.loads((tmp_path / "run" / "result.json").read_text())
    assert said["counters"]["updates/RL"], "its optimiser has made steps"
