"""Vector environments: many environments that take one step together, in this process or in workers.

`make` builds them · `group_env` the face of gymnasium · `host_pool` and `hosts` the places of environments · `group` what runs
there · `columns` rows in shared memory · `compiled` one call for gymnasium's small environments.
"""

from parl_like.envs.vector.make import create_env, make_vector_env

__all__ = ["create_env", "make_vector_env"]
