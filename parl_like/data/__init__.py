"""parl_like.data."""
