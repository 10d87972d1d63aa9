"""The public face: what `from parl_like import` gives, and what an import does to the process."""

import subprocess
import sys

import parl_like

NAMES = """Robot Agent VectorAgent AgentHelper OnPolicyHelper OffPolicyHelper OfflineHelper EpisodicHelper ComputationTask
ComputationWrapper Communicator Algorithm Model create_algorithm_func layers Batch Spec TimeStep Experience ReplayBuffer
VectorReplayBuffer PrioritizedReplayBuffer Stage Hook StopCondition Experiment register
Shared Window Linear BatchRule make_env load_run probe_algorithm probe_buffer probe_env Policy""".split()


def test_the_exported_names():
    assert sorted(parl_like.__all__) == sorted(NAMES)
    for name in parl_like.__all__:
        assert getattr(parl_like, name) is not None
    assert set(parl_like.__all__) <= set(dir(parl_like))


def test_the_ways_to_make_environments_are_where_the_readme_says():
    from parl_like.envs import make_env, make_vector_env

    assert make_env is parl_like.make_env and callable(make_vector_env)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_has_no_side_effects():
    assert run("""
import os, sys, threading, warnings, random
import numpy
warnings.simplefilter("error")
state = (dict(os.environ), threading.active_count(), list(warnings.filters), random.getstate(),
         numpy.random.get_state()[1].tolist())
import parl_like
after = (dict(os.environ), threading.active_count(), list(warnings.filters), random.getstate(),
         numpy.random.get_state()[1].tolist())
print(state == after, "torch" in sys.modules)
""") == "True False"


def test_the_whole_face_leaves_torch_as_it_was():
    assert run("""
import torch
state = (torch.get_num_threads(), torch.initial_seed(), torch.random.get_rng_state().tolist(), torch.is_grad_enabled(),
         torch.get_default_dtype())
import parl_like
for name in parl_like.__all__:
    getattr(parl_like, name)
import parl_like.algorithms, parl_like.models
after = (torch.get_num_threads(), torch.initial_seed(), torch.random.get_rng_state().tolist(), torch.is_grad_enabled(),
         torch.get_default_dtype())
print(state == after)
""") == "True"


def test_list_answers_without_torch():
    assert run("""
import sys
from parl_like.lab.cli import main
code = main(["list"])
print(code, "torch" in sys.modules)
""").splitlines()[-1] == "0 False"
