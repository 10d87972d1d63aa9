"""PredictionQueue: rows that agents want predictions for, and the answers of their task."""

from __future__ import annotations

from typing import Any

import numpy as np

from parl_like.learning.explorers import Explorer
from parl_like.tasks.batch_rule import BatchRule
from parl_like.tasks.queues import RequestBatch, RequestQueue
from parl_like.tasks.row_blocks import RowBlocks
from parl_like.tasks.task import ComputationTask, Mode
from parl_like.tasks.tickets import Ticket, number
from parl_like.values.action_codec import ActionCodec
from parl_like.values.spec import Array, Spec, SpecError


class PredictionQueue(RequestQueue):
    """Rows of many agents, written straight into preallocated columns.

    Attributes:
        codec: Makes the environment's actions of the task's outputs.
        blocks: The memory of batches.
    """

    kind = "predict"

    def __init__(self, task: ComputationTask, rule: BatchRule, lock: object, mode: Mode, specs: list[Spec],
                 codec: ActionCodec) -> None:
        super().__init__(task, rule, lock)
        self.mode: Mode = mode
        self.codec, self.blocks = codec, RowBlocks(specs, rule.max_rows or 64)
        self.explorer: Explorer | None = None

    @property
    def specs(self) -> list[Spec]:
        """The columns of a request, in the order of its values."""
        return self.blocks.specs

    def add_explorer(self, explorer: Explorer, agent: object) -> None:
        """The explorer of one more agent.

        Raises:
            ValueError: it is of another kind than those of the other agents.
        """
        if self.explorer is None:
            self.explorer = explorer
            if explorer.noise is not None:
                self.blocks.specs = [*self.specs, explorer.noise.owned_by(f"task {self.task.name!r}")]
        elif self.explorer.kind() != explorer.kind():
            raise ValueError(f"{agent}, task {self.task.name!r}: explorer {explorer.kind()} differs from {self.explorer.kind()} "
                             "of the other agents; one batch has one kind of explorer, so give all helpers of a task the same")

    def portions(self, rows: int) -> list[int]:
        """Divide a request of `rows` rows from many agents: what the open batch still takes first, then whole batches."""
        limit = self.max_rows or rows
        room = limit - self.batches[-1].rows if self.batches and self.max_rows else 0
        first = min(room or limit, rows)
        return [first, *(min(limit, rows - start) for start in range(first, rows, limit))]

    def _new_batch(self) -> RequestBatch:
        return RequestBatch(self.blocks.take())

    def put(self, ticket: Ticket, values: Any) -> None:
        """Adds a request for a row of values, or for `ticket.rows` rows of arrays. The caller holds `lock`."""
        if self.stopped is not None:
            raise self._refused(ticket)
        ticket.queue = self
        rows = ticket.rows or 1
        if self.batches and self.max_rows is None:
            batch = self.batches[-1]
        else:
            batch = self._room_for(rows)
        start = batch.rows
        if start + rows > batch.block.capacity:
            batch.block = self.blocks.grown(batch.block, start, rows)
        try:
            if ticket.rows:
                batch.block.write_rows(start, rows, values)
            else:
                batch.block.write(start, values)
        except Exception as error:
            if not start:
                self.batches.pop()
            raise type(error)(f"{ticket.agent}: {error}") from None
        batch.rows = start + rows
        batch.tickets.append(ticket)
        ticket.start = start
        self.rows += rows

    def _run(self, batch: RequestBatch) -> None:
        try:
            self._ask(batch)
        except Exception:
            if not self.task.bisect or len(batch.tickets) == 1:
                raise
            try:
                for half in self.halves(batch):
                    try:
                        self._run(half)
                    except Exception as again:  # noqa: BLE001  as above
                        self._fail(again, half.tickets)
            except BaseException:  # Ctrl-C: the batch is put back as it was
                number(batch.tickets)
                for ticket in batch.tickets:
                    ticket.error = None
                raise

    def halves(self, batch: RequestBatch) -> list[RequestBatch]:
        """The requests of a batch that failed, as two with copies of their rows: asked again, they tell whose rows are bad."""
        middle, out = len(batch.tickets) // 2, []
        row = batch.tickets[middle].start
        for tickets, rows in ((batch.tickets[:middle], slice(0, row)), (batch.tickets[middle:], slice(row, batch.rows))):
            n = rows.stop - rows.start
            out.append(RequestBatch(self.blocks.copied(batch.block, rows), tickets, n, born=batch.born))
            number(tickets)
        return out

    def _ask(self, batch: RequestBatch) -> None:
        """One forward pass, and its answers to all requests of the batch."""
        n = batch.rows
        inputs = {name: column[:n] for name, column in batch.block.arrays.items()}
        noise = inputs.pop("noise", None)
        if noise is not None and self.explorer is not None and self.explorer.given is not None:
            inputs[self.explorer.given] = noise
        out, version = self.task.act(inputs, self.mode)
        if self.explorer is not None:
            for name, value in self.explorer.act(out, noise).items():
                if getattr(value, "shape", ())[:1] != (n,):
                    raise SpecError(f"{type(self.explorer).__name__}.act returned {name!r} as {type(value).__name__} of shape "
                                    f"{np.shape(value)} for {n} rows; expected an array with one row for each")
                # The columns are reused for the next batch, so an explorer's action must not live in them.
                out[name] = value.copy() if noise is not None and np.may_share_memory(value, noise) else value
        self.answer(batch.tickets, out, version)

    def answer(self, tickets: list[Ticket], out: dict[str, Array], version: int) -> None:
        """Gives the members of one batch its outputs; and its actions as a list, where one of them asked for a single row."""
        if not tickets[0].rows or any(not ticket.rows for ticket in tickets):
            acts = self.codec.listed(out)
        else:
            acts = None
            self.codec.round(out)
        for ticket in tickets:
            ticket.out, ticket.acts, ticket.version = out, acts, version

    def recycle(self, batch: RequestBatch) -> None:
        """Keep the batch's block of rows for a later one."""
        self.blocks.give_back(batch.block)
