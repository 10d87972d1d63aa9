"""UpdateSchedule: which rows a kind of helper keeps, and when it sends them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.tasks.batch_rule import BatchRule
from parl_like.values.spec import Spec
from parl_like.values.user_calls import Guarded


class UpdateSchedule(Guarded):
    """The questions about learning that kinds of helpers answer differently: an `AgentHelper` asks them of itself. What stands
    here are the answers of one that keeps no rows and never learns.

    Attributes:
        learns: Whether rows become training requests.
        sends_returns: Whether these are about candidates and their returns, in place of rows.
        sends_episodes: Whether the rows of a training request are whole episodes.
        refills: Whether the buffer may be empty where a run goes on, for it holds rows that will be stored again.
        acts_in_step: Whether acting and learning must see the same statistics of transforms, where learning waits.
    """

    learns = False
    sends_returns = False
    sends_episodes = False
    refills = False
    acts_in_step = False

    # ------------------------------------------------------------------------------------------- when the helper joins a task

    def training_rule(self) -> BatchRule:
        """Return when this schedule's training batches close, unless the task says otherwise."""
        return BatchRule()

    def make_buffer(self, n_lanes: int, rng: np.random.Generator) -> ReplayBuffer | None:
        """Return the buffer that all helpers of the task share; asked of the first helper only.

        Args:
            n_lanes: Lanes in it, one for each environment of each agent.
            rng: Its own generator.
        """
        return None

    def allocate(self, buffer: ReplayBuffer, specs: Sequence[Spec]) -> None:
        """Declare the columns of a row, in the order in which `store` writes them."""
        buffer.allocate(specs)

    def _check_buffer(self, buffer: ReplayBuffer) -> None:
        """Raise ValueError for a buffer that this schedule cannot work with; its columns have been allocated."""

    def _check_window(self) -> None:
        """Raise ValueError for an algorithm that asks for rows which this schedule does not send."""

    def learns_late(self) -> bool:
        """Return whether parameters may change between an action and its update, and this schedule cares."""
        return False

    # ------------------------------------------------------------------------------------------------- while the agent acts

    def episode_seed(self) -> int | None:
        """Return the seed with which the agent's next episode begins; None: this helper does not say."""

    def _after_store(self, rows: int, ended: int) -> None:
        """Learn, if it is time: called after each stored step with the number of its rows, and of those that ended an episode."""

    def ready(self) -> bool:
        """Return whether there is enough to learn from."""
        return True

    def due(self) -> bool:
        """Return whether rows are stored that the schedule itself will send: the updates of others wait for them in sync mode."""
        return self.learns
