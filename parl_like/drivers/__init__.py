"""Drivers: how agents run, and how their requests travel. Each is one class, with two sides.

To the agents it is the `Link` of their communicators, and has `park(agent)`. To the robot it has `agents` (that have not ended),
`parked`, `stopping`, and: `start`; `resume(agents)` those that are parked; `iterate`, until the next point where the robot has a say;
`request_stop`, from anywhere; `halt`, which makes all agents end or park; `join`, which says who did not; `reopen` for the next start.
`tests/test_transport.py` holds every driver to one contract. A driver whose agents are in other processes says so (`hosted`), and
has `enlist`, `fetch`, `load`, `trace` and `close` besides.
"""
