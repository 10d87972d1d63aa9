"""MAPPO: PPO for players of a team, whose critic knows more than who acts (Yu et al. 2022). IPPO is PPO without that."""

from __future__ import annotations

from parl_like.algorithms.ppo import PPO
from parl_like.learning.action_spaces import Takes
from parl_like.learning.model_check import ContractError
from parl_like.values.batch import Batch


class MAPPO(PPO):
    """PPO on the rows of all players, each with a value V(s) of the state of all and a policy π(a|o) of what that player sees.

    Each player has a role of the task, and so an unroll and advantages of its own; the loss is that of PPO, over their rows
    together. `CentralState(env)` puts the state into what each player sees; in experiments of mpe2 the option `players: central`
    does so. IPPO is `PPO` with `CentralState(env, state=False)`, there `players: own`.

    Differences:
        - Values are learned by the plain squared error of unscaled returns; the paper normalises returns and takes a clipped
          Huber loss.
        - An update has 4 epochs of 4 minibatches, as `PPO` here; the paper advises one minibatch.
        - All players share one network; the paper also trains one for each where players differ.

    Args:
        model: As for `PPO`; its observation is a Dict with `state`, which its `policy` does not read.
        The others: As for `PPO`.
    """

    fitting_models = "MLPCentralActorCritic"
    takes: Takes | None = None

    def check_model(self, inputs: Batch) -> None:
        super().check_model(inputs)
        if isinstance(inputs.obs, Batch) and "state" in inputs.obs:
            return
        raise ContractError("MAPPO needs observations with a `state` that critics read and policies do not; let the environment "
                            "be CentralState(env), or use PPO, which is IPPO then")
