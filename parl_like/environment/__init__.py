"""One agent's environment: how it is made, stepped, checked, observed, saved.

`factory` of what environments are made · `face` EnvFace, the one way between an agent and its
environment · `value_check` what it may return · `process_guard` what it may change · `state` its
state · `resumed_episode` · `hooks` stages and hooks · `stop_conditions`.
"""
