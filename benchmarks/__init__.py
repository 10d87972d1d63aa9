"""Benchmarks: one command each, contestants side by side in one run on the same work, JSON out. `parl-like bench NAME --json`."""
