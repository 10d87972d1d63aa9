"""Agents in worker processes, and the robot's side of them.

`processes` ProcessesDriver · `hosted` the robot's side · `supervisor` workers and who replaces them · `worker` a worker's loop ·
`worker_agents` its agents · `proxies` what stands there for a task · `requests` · `background_updates` · `shared_rows` and
`shared_parameters` shared memory · `worker_states`.
"""
