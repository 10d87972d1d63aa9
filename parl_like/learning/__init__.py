"""Models, algorithms, their optimiser steps and explorers.

`model` Model · `layers` layers that own their parameters · `noisy` · `algorithm` Algorithm · `factory` `Algorithm(Model)`
factories · `model_check` what an algorithm calls of its model · `optimizer_steps` · `parameter_owners` · `adam` · `schedule` ·
`saved_state` what a checkpoint holds of a task · `explorers/` how a prediction becomes an action.
"""
