"""Policies that leave a run: exported, loaded and called without robot or environment.

`policy` has `Policy`, what one calls. `exporting` takes a policy out of a robot and writes it, `policy_files` reads it, `parts`
writes and rebuilds what it is made of by registered names, and `graph` is the same as one ONNX graph.
"""
