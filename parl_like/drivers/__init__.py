"""Drivers: how agents run and how their requests travel. Each keeps the contract of `parl_like.run.driver`.

`cooperative` one thread · `threads` a thread per agent · `workers/` agents in other processes of this machine · `ray/` agents and
tasks on other machines · `messages` what travels between processes · `timeline` what a robot does and when.
"""
