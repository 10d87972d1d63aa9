"""One agent's environment: how it is made, stepped, checked, observed, saved.

`factory` of what environments are made · `face` EnvFace, the one way between an agent and its environment · `vector_face` the
same for many at once · `action_check` and `value_check` what goes in and comes out · `process_guard` what it may change ·
`state` its state · `resumed_episode` · `hooks` stages and hooks · `stop_conditions`.
"""
