"""Computation tasks and the requests that reach them.

`task` ComputationTask · `wrapper` ComputationWrapper and Communicator · `queues` requests of many agents gather in batches ·
`tickets` one request · `batch_rule` when a queue is served ·
`rounds` which is next, and whom an update waits for · `acting_copies` parameters for predictions · `no_progress` agents that
never step · `row_slots` which rows belong to which agent · `driver` how requests travel, the contract.
"""
