"""parl_like.models."""

if __name__ != "parl_like.models":
    raise ImportError(f"this folder is the package parl_like.models; it was imported as {__name__!r}")
