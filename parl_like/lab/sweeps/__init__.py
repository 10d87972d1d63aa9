"""Many runs of one experiment: their settings, their processes, and searches for the best.

`spaces`: settings that words stand for. `sweep`: the runs. `tuning`: a search by Optuna.
"""
