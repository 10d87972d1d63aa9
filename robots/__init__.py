"""parl_like.robots."""

if __name__ != "parl_like.robots":
    raise ImportError(f"this folder is the package parl_like.robots; it was imported as {__name__!r}")
