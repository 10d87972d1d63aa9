"""parl_like.lab: experiments by name, their configuration, the directory that a run leaves, and the command line."""
