"""Workers and tasks as Ray actors.

`cluster` RayDriver · `tasks` a task in an actor of its own · `connection` this process's one connection to Ray · `resources` what
an actor asks for.
"""
