"""Experiments by name, their configuration, the directory that a run leaves, and the command line.

`experiment` the registry · `user_experiments` the user's own · `config` and `yaml_text` settings · `runner` train, resume,
evaluate, play · `session` one process's part of a run · `runs/` what a run writes · `reports/` what is made of it · `following`
W&B and the like · `cli` the command.
"""
