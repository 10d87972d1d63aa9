"""Rows in time order: what is stored, how it is read, where it is kept.

`timestep` TimeStep · `experience` Experience · `returns` returns and advantages · `extra_fields` what a row keeps beside the
transition · `datasets` recorded data · `rng` states of random generators · `buffers/` · `storage/` files · `transforms/`.
"""
