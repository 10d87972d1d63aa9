"""Agents, and the helpers through which they talk to tasks.

`agent` Agent · `vector_agent` VectorAgent · `helper` AgentHelper, which holds: `acting` predictions, `row_writer` rows on their
way into the buffer and out of it, `updates` training requests · `off_policy` · `on_policy` · `episodic` · `offline` · `online` ·
`population` helpers by when they learn and from which rows.
"""
