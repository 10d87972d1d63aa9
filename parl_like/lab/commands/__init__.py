"""The verbs of the command `parl-like`: what each does, beside the arguments that it takes.

Read `one_run` for train, resume, eval, play, record, export and verify, `many_runs` for list, plot, report, dashboard, diff,
marks and sweep, `tools` for bench, probe and doctor.
"""
