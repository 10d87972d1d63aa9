"""The verbs of the command `parl-like`: what each does, beside the arguments that it takes."""
