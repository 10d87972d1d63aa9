"""Agents in worker processes, and the robot's side of them.

`processes` ProcessesDriver · `hosted` the robot's side · `handle` a worker as it is known there · `supervisor` who begins and
replaces them · `recipes` what they are told · `reports` what they say has happened · `worker_states` · `shared_rows` and
`shared_parameters` shared memory · `worker` a worker's loop · `worker_agents` its agents · `proxies` what stands for a task.
"""
