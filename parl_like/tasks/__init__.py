"""Computation tasks and the requests that reach them.

`task` ComputationTask · `algorithm_runner` how it calls its algorithm · `row_updates` updates by single rows · `asked_tasks` whom
it asks while it learns · `acting_copies` parameters for predictions · `wrapper` ComputationWrapper and Communicator · `queues`
requests of many agents gather in batches · `tickets` one request · `batch_rule` when a queue is served · `rounds` which is next,
and whom an update waits for · `no_progress` agents that never step · `row_slots` which rows belong to which agent.
"""
