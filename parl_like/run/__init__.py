"""A robot and its run.

`robot` Robot · `agent_pool` its agents and driver, with `agent_maker`, `helper_maker`, `lifecycle` (phases), `run_hooks` and
`statistics` as parts · `evaluation` episodes that are counted · `robot_state` what a checkpoint holds · `robot_checks` what a
robot refuses · `diagnosis` why a task does not learn · `run_policy`.
"""
