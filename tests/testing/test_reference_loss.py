"""The reference loss, by hand."""

import math

import pytest

from samplemask import ContractError
from samplemask.testing import reference_loss

LOSS = [[1.0, 3.0], [5.0, 0.0], [100.0, 100.0]]
MASK = [[1, 1], [1, 0], [0, 0]]


def test_the_mean_over_tokens():
    assert reference_loss(LOSS, MASK) == 3.0


def test_the_means_over_sequences_leave_rows_without_a_token_out():
    assert reference_loss(LOSS, MASK, "seq-mean-token-sum") == 4.5
    assert reference_loss(LOSS, MASK, "seq-mean-token-mean") == 3.5


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
def test_masked_entries_may_hold_anything_and_nothing_gives_none(mode):
    trash = [[1.0, 3.0], [5.0, math.nan], [math.inf, -math.inf]]
    assert reference_loss(trash, MASK, mode) == reference_loss(LOSS, MASK, mode)
    assert reference_loss(LOSS, [[0, 0]] * 3, mode) is None


def test_an_unknown_mode_is_refused():
    with pytest.raises(ContractError, match=r"^mode: expected"):
        reference_loss(LOSS, MASK, "mean")
