"""parl_like.envs."""

if __name__ != "parl_like.envs":
    raise ImportError(f"this folder is the package parl_like.envs; it was imported as {__name__!r}")
