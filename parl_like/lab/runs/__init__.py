"""The directory of a run.

`rundir` its layout · `lock` one process at a time · `outbox` writing while it goes on · `checkpoint` · `metrics` · `stored` from
the directory to a configuration.
"""
