"""A robot and its run.

`robot` Robot, with `run_loop`, `evaluation`, `diagnosis` (why a task does not learn) and `robot_state` (what a checkpoint holds)
as parts · `agent_pool` its agents and driver, with `agent_maker`, `helper_maker`, `lifecycle` (phases), `run_hooks` and
`statistics` as parts · `run_policy`.
"""
