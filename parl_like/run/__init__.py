"""A robot and its run.

`robot` Robot · `agent_pool` its agents, their environments, helpers and driver · `evaluation` episodes that are counted ·
`robot_state` what a checkpoint holds · `robot_checks` what a robot refuses · `diagnosis` why a task does not learn · `film` ·
`run_policy`.
"""
