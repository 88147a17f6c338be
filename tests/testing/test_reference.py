"""The reference estimators, by hand."""

import numpy as np
import pytest

from samplemask import ContractError, MaskPolicy
from samplemask.testing import GrpoBatch, padding_rows, reference_advantage

EXACT = {"rel": 0, "abs": 1e-6}


def advantages(rewards, masked=None, groups=None, **options) -> list[float]:
    return reference_advantage(GrpoBatch.of(rewards, masked, groups), **options).tolist()


def test_the_group_mean_leaves_masked_rows_out():
    assert advantages([1, 1, 0, 0], [0, 1, 0, 0]) == pytest.approx([2 / 3, 0, -1 / 3, -1 / 3])


def test_the_group_mean_normalised():
    found = advantages([1, 1, 0, 0], [0, 1, 0, 0], normalize=True)
    assert found == pytest.approx([1.154701, 0, -0.577350, -0.577350], **EXACT)


def test_leave_one_out():
    found = advantages([1, 1, 0, 0], [0, 1, 0, 0], baseline="leave_one_out")
    assert found == pytest.approx([1, 0, -0.5, -0.5])


def test_leave_one_out_normalised_leaves_an_equal_comparison_set_alone():
    found = advantages([1, 1, 0, 0], [0, 1, 0, 0], baseline="leave_one_out", normalize=True)
    assert found == pytest.approx([1, 0, -0.707107, -0.707107], **EXACT)


@pytest.mark.parametrize("normalize", [False, True])
def test_equal_rewards_give_zeros_even_when_their_mean_is_rounded(normalize):
    assert advantages([0.1] * 3, normalize=normalize) == pytest.approx([0, 0, 0], abs=1e-15)


def test_a_lone_survivor_an_empty_group_and_an_empty_batch_give_zeros():
    assert advantages([1, 0, 5], [0, 1, 1], ["a", "a", "b"]) == [0, 0, 0]
    assert advantages([]) == []


def test_the_policy_decides():
    loss_only = advantages([1, 1, 0, 0], [0, 1, 0, 0], policy=MaskPolicy(action="loss_multiplier"))
    assert loss_only == [0.5, 0, -0.5, -0.5]
    dropped = advantages([1, 1, 0, 0], [0, 1, 0, 0], policy=MaskPolicy(action="drop_group"))
    assert dropped == [0, 0, 0, 0]
    ignored = advantages([1, 1, 0, 0], [0, 1, 0, 0], policy=MaskPolicy(action="ignore"))
    assert ignored == [0.5, 0.5, -0.5, -0.5]
    alone = advantages(
        [1, 0], [0, 1], policy=MaskPolicy(min_valid=1), baseline="leave_one_out", normalize=True
    )
    assert alone == [1, 0]


def test_groups_are_kept_apart_and_padding_is_left_out():
    batch = GrpoBatch.of([1, 0, 5, 3], None, ["a", "a", "b", "b"]).append(padding_rows(2))
    assert reference_advantage(batch).tolist() == [0.5, -0.5, 1.0, -1.0, 0.0, 0.0]


def test_a_session_of_two_rows_votes_once_and_its_last_row_has_the_reward():
    batch = GrpoBatch.of([9.0, 1.0, 0.5], [0, 0, 0])
    batch.session_B[:] = ["A", "A", "B"]
    batch.order_B[:] = [0, 1, 0]
    assert reference_advantage(batch).tolist() == [0.25, 0.25, -0.25]
    assert reference_advantage(batch.select([1, 2, 0])).tolist() == [0.25, -0.25, 0.25]


def test_a_session_is_masked_when_any_of_its_rows_is():
    batch = GrpoBatch.of([1.0, 1.0, 0.5, 0.0], [1, 0, 0, 0])
    batch.session_B[:] = ["A", "A", "B", "C"]
    batch.order_B[:] = [0, 1, 0, 0]
    assert reference_advantage(batch).tolist() == [0, 0, 0.25, -0.25]


def test_an_unknown_baseline_is_refused():
    with pytest.raises(ContractError, match=r'^baseline: expected "group_mean" or "leave_one_out"'):
        advantages([1], baseline="median")


def test_masked_rows_may_hold_anything():
    for trash in (np.nan, np.inf, -np.inf, 1e300):
        assert advantages([1, trash, 0], [0, 1, 0]) == [0.5, 0, -0.5]
