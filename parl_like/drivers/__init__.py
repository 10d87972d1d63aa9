"""parl_like.drivers."""
