"""parl_like.lab."""
