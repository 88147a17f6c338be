"""When too many rows of a batch are masked."""

import numpy as np
import pytest
from three_groups import plan

from samplemask import OutageError


def test_1172_of_1280_is_an_outage_that_says_why():
    masked = [1] * 1172 + [0] * 108
    kinds = ["session_lost"] * 1000 + ["transport_timeout"] * 170 + [None] * 110
    with pytest.raises(OutageError) as error:
        plan(masked, [row // 8 for row in range(1280)], kinds, max_masked_fraction=0.5)
    assert (error.value.masked, error.value.rows) == (1172, 1280)
    assert error.value.kinds == {
        "session_lost": 1000,
        "transport_timeout": 170,
        "samplemask:unspecified": 2,
    }
    assert str(error.value) == (
        "outage: 1172 of 1280 rollouts (91.6%) are masked, more than max_masked_fraction=0.5 allows. "
        "Per failure kind: session_lost: 1000, transport_timeout: 170, samplemask:unspecified: 2. "
        "Repair the environment and resume from the last checkpoint, or set "
        'on_outage="skip_step" to go on without training on such a batch.'
    )


def test_60_of_60_is_an_outage():
    with pytest.raises(OutageError, match="60 of 60"):
        plan([1] * 60, None, max_masked_fraction=0.5)


def test_49_rows_are_too_few_for_an_outage():
    assert plan([1] * 49, None, max_masked_fraction=0.5).outage is False
    with pytest.raises(OutageError):
        plan([1] * 50, None, max_masked_fraction=0.5)


def test_the_smallest_batch_that_can_be_an_outage_is_configured():
    with pytest.raises(OutageError):
        plan([1, 0], None, max_masked_fraction=0.0, outage_min_rows=2)
    assert plan([1, 0], None, max_masked_fraction=0.0, outage_min_rows=3).outage is False


def test_a_batch_at_the_limit_is_no_outage():
    assert plan([1] * 30 + [0] * 30, None, max_masked_fraction=0.5).outage is False
    with pytest.raises(OutageError, match="31 of 60"):
        plan([1] * 31 + [0] * 29, None, max_masked_fraction=0.5)


def test_without_a_limit_nothing_is_an_outage():
    assert plan([1] * 5000, None).outage is False


def test_a_limit_of_one_is_never_exceeded():
    assert plan([1] * 60, None, max_masked_fraction=1.0).outage is False


def test_skip_step_empties_the_plan_instead_of_raising():
    got = plan([1] * 40 + [0] * 20, [0] * 60, max_masked_fraction=0.5, on_outage="skip_step")
    assert got.outage is True
    assert not got.trains_B.any()
    assert not got.votes_B.any()
    assert int(got.masked_B.sum()) == 40
    assert (got.dropped_groups, got.thin_groups) == (0, 0)
    assert not np.shares_memory(got.trains_B, got.votes_B)


def test_the_outage_counts_rows_after_the_policys_kinds():
    kinds = ["agent_timeout"] * 60
    scored = plan([1] * 60, None, kinds, max_masked_fraction=0.5, scored_kinds={"agent_timeout"})
    assert scored.outage is False
    with pytest.raises(OutageError, match="agent_timeout: 60"):
        plan([0] * 60, None, kinds, max_masked_fraction=0.5, masked_kinds={"agent_timeout"})


def test_an_outage_without_kinds_is_counted_as_unspecified():
    with pytest.raises(OutageError) as error:
        plan([1] * 60, None, max_masked_fraction=0.5)
    assert error.value.kinds == {"samplemask:unspecified": 60}


def test_kinds_of_equal_frequency_stand_in_alphabetical_order():
    with pytest.raises(OutageError) as error:
        plan([1, 1, 1], None, ["c:c", "a:a", "b:b"], max_masked_fraction=0.0, outage_min_rows=1)
    assert list(error.value.kinds) == ["a:a", "b:b", "c:c"]
