"""Rows that a task keeps for its agents: who has which, and what copies of an algorithm have in common."""

import pickle

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from parl_like import ComputationTask
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.model import Model
from parl_like.tasks.row_slots import Owner, RowSlots


def test_rows_are_claimed_in_the_first_gap_and_free_when_their_owner_is_gone():
    places = RowSlots()
    a, b, c = Owner(), Owner(), Owner()
    assert [places.claim(a, 10), places.claim(b, 5), places.claim(c, 7)] == [0, 10, 15]
    del b
    late = Owner()
    assert places.claim(late, 6) == 22 and places.claim(a, 5) == 10


def test_what_was_set_aside_is_divided_in_the_same_way_and_no_further():
    places = pickle.loads(pickle.dumps(RowSlots(100, 12)))
    a, b = Owner(), Owner()
    assert [places.claim(a, 6), places.claim(b, 6)] == [100, 106]
    with pytest.raises(ValueError, match="1 rows are wanted where 12 were set aside .* 12 of which are taken"):
        places.claim(a, 1)
    del a
    a = Owner()
    assert places.claim(a, 6) == 100


class Tally(Algorithm):
    """Counts the requests that name each of its rows; asked in another's place, too."""

    remembers = ("rows",)

    def __init__(self):
        model = Model(Box(0, 9, (1,), np.int64), Discrete(2))
        model.weight = torch.nn.Parameter(torch.zeros(1))
        super().__init__(model)
        self.rows = {}

    def predict(self, inputs):
        for row in inputs.obs[:, 0].tolist():
            self.rows[row] = self.rows.get(row, 0) + 1
        return {"count": torch.tensor([self.rows[row] for row in inputs.obs[:, 0].tolist()])}


def test_copies_that_predict_remember_what_the_others_have_seen():
    task = ComputationTask(Tally())
    rows, counts = {"obs": np.array([[3]])}, []
    for _ in range(4):
        counts.append(int(task.predict(rows)["count"][0]))
        task.publish()
    first = counts[0]
    assert counts == [first, first + 1, first + 2, first + 3]
    assert task.algorithm.clone().rows is not task.algorithm.rows and "rows" not in task.state_dict()["algorithm"]
