"""Values that pass between all others: batches and their leaves, specs, actions, copies, names, errors.

`batch` Batch · `batch_leaf` one leaf of it · `spec` Spec, and nested values as flat names · `action_codec` actions of a policy
and of its environment · `copying` arrays that an environment changes later · `errors` · `user_calls` what a wrong call is told ·
`names` names that are given as text · `env_ids` ids of installed environments · `agent_orders` signals and quotas of agents ·
`limits` bounds on what numbers make.
"""
