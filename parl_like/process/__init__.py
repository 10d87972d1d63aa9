"""Child processes of one machine.

`child` their life, and how often they may be restarted · `fork_server` forks them from a process that has imported what they need
· `shared_memory` memory that several processes map.
"""
