"""Models, algorithms, their optimiser steps and explorers.

`model` Model · `layers` layers that own their parameters · `algorithm` Algorithm · `loss` Loss · `factory` `Algorithm(Model)`
factories · `model_check` what an algorithm calls of its model · `optimizer_steps` · `module_modes` · `parameter_owners` ·
`schedule` · `saved_state` what a checkpoint holds of a task · `explorers/` how a prediction becomes an action.
"""
