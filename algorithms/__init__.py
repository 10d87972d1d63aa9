"""parl_like.algorithms."""

if __name__ != "parl_like.algorithms":
    raise ImportError(f"this folder is the package parl_like.algorithms; it was imported as {__name__!r}")
