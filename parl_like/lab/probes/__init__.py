"""Probes: laws that an algorithm, an environment or a buffer of your own should keep, each tried in seconds.

`laws` what is found, in a table · `tiny` environments with known answers · `algorithm` · `env` · `buffer`
· `users` which one of these.
"""
