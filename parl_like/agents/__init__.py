"""Agents, and the helpers through which they talk to tasks.

`agent` Agent · `vector_agent` VectorAgent · `helper` AgentHelper · `off_policy` · `on_policy` · `episodic` · `offline` · `online`
· `population` helpers by when they learn and from which rows · `row_format` the columns of a row · `helper_checks` what is
refused.
"""
