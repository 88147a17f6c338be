"""Who trains and who votes: every rule of the policy, with hand-written plans."""

import numpy as np
import pytest
from three_groups import MASKED, bits, plan

from samplemask import ContractError, MaskPolicy, OutageError


def test_exclude_takes_loss_and_vote_and_empties_a_thin_group():
    got = plan()
    assert bits(got.trains_B) == [1, 1, 0, 1, 0, 1, 0, 0]
    assert bits(got.votes_B) == [1, 1, 0, 1, 0, 1, 0, 0]
    assert bits(got.masked_B) == MASKED
    assert (got.dropped_groups, got.thin_groups, got.outage) == (0, 1, False)


def test_exclude_is_the_default():
    assert MaskPolicy() == MaskPolicy(
        action="exclude",
        min_valid=2,
        drop_group_above=0.0,
        scored_kinds=frozenset(),
        masked_kinds=frozenset(),
        max_masked_fraction=None,
        outage_min_rows=50,
        on_outage="raise",
    )


def test_loss_multiplier_takes_the_loss_but_leaves_the_vote():
    got = plan(action="loss_multiplier")
    assert bits(got.trains_B) == [1, 1, 0, 1, 0, 1, 0, 1]
    assert bits(got.votes_B) == [1, 1, 1, 1, 1, 1, 1, 1]
    assert (got.dropped_groups, got.thin_groups) == (0, 0)


def test_ignore_changes_nothing_but_still_counts_the_masked_rows():
    got = plan(action="ignore", min_valid=4)
    assert bits(got.trains_B) == [1] * 8
    assert bits(got.votes_B) == [1] * 8
    assert bits(got.masked_B) == MASKED
    assert (got.dropped_groups, got.thin_groups) == (0, 0)
    assert got.changes_nothing


def test_drop_group_drops_every_group_with_a_masked_row():
    got = plan(action="drop_group")
    assert bits(got.trains_B) == [1, 1, 0, 0, 0, 0, 0, 0]
    assert bits(got.votes_B) == [1, 1, 0, 0, 0, 0, 0, 0]
    assert (got.dropped_groups, got.thin_groups) == (2, 0)


@pytest.mark.parametrize(
    ("above", "trains", "dropped", "thin"),
    [
        (0.0, [1, 1, 0, 0, 0, 0, 0, 0], 2, 0),
        (0.49, [1, 1, 0, 0, 0, 0, 0, 0], 2, 0),
        (0.5, [1, 1, 0, 1, 0, 1, 0, 0], 0, 1),  # 2 of 4 and 1 of 2 are not above one half
        (1.0, [1, 1, 0, 1, 0, 1, 0, 0], 0, 1),
    ],
)
def test_drop_group_drops_above_the_fraction_and_excludes_below_it(above, trains, dropped, thin):
    got = plan(action="drop_group", drop_group_above=above)
    assert bits(got.trains_B) == trains
    assert (got.dropped_groups, got.thin_groups) == (dropped, thin)


@pytest.mark.parametrize(("masked", "rows"), [(29, 100), (1, 10), (3, 10), (55, 100), (7, 100), (57, 100)])
def test_a_fraction_equal_to_the_limit_is_not_above_it(masked, rows):
    flags, limit = [1] * masked + [0] * (rows - masked), masked / rows
    assert plan(flags, [0] * rows, action="drop_group", drop_group_above=limit).dropped_groups == 0
    below = float(np.nextafter(limit, 0))
    assert plan(flags, [0] * rows, action="drop_group", drop_group_above=below).dropped_groups == 1
    assert plan(flags, None, max_masked_fraction=limit, outage_min_rows=1).outage is False
    with pytest.raises(OutageError):
        plan(flags, None, max_masked_fraction=below, outage_min_rows=1)


def test_a_dropped_group_is_not_counted_as_thin_too():
    got = plan([1, 1], ["a", "a"], action="drop_group")
    assert (got.dropped_groups, got.thin_groups) == (1, 0)


@pytest.mark.parametrize(
    ("min_valid", "trains", "thin"),
    [
        (1, [1, 1, 0, 1, 0, 1, 0, 1], 0),
        (2, [1, 1, 0, 1, 0, 1, 0, 0], 1),
        (3, [0, 0, 0, 0, 0, 0, 0, 0], 3),
    ],
)
def test_a_group_with_fewer_voters_than_min_valid_neither_trains_nor_votes(min_valid, trains, thin):
    got = plan(min_valid=min_valid)
    assert bits(got.trains_B) == trains
    assert bits(got.votes_B) == trains
    assert got.thin_groups == thin


def test_a_natural_singleton_is_thin_although_nothing_is_masked():
    got = plan([0, 0, 0], ["a", "a", "b"])
    assert bits(got.trains_B) == [1, 1, 0]
    assert got.thin_groups == 1
    assert not got.changes_nothing


def test_min_valid_counts_voters_so_masked_rows_help_under_loss_multiplier():
    got = plan([1, 0, 1], ["a", "a", "b"], action="loss_multiplier")
    assert bits(got.trains_B) == [0, 1, 0]
    assert bits(got.votes_B) == [1, 1, 0]
    assert got.thin_groups == 1


def test_a_fully_masked_group_is_thin():
    got = plan([1, 1, 0, 0], [7, 7, 8, 8])
    assert bits(got.votes_B) == [0, 0, 1, 1]
    assert got.thin_groups == 1


def test_a_fully_masked_batch_trains_nobody():
    got = plan([1, 1, 1, 1], [0, 0, 1, 1])
    assert bits(got.trains_B) == bits(got.votes_B) == [0, 0, 0, 0]
    assert got.thin_groups == 2


def test_a_healthy_batch_is_left_alone():
    got = plan([0, 0, 0, 0], [0, 0, 1, 1])
    assert got.changes_nothing
    assert (got.dropped_groups, got.thin_groups, got.outage) == (0, 0, False)


@pytest.mark.parametrize("action", ["exclude", "drop_group"])
def test_without_groups_only_the_masked_rows_go(action):
    got = plan([1, 0, 0], None, action=action, min_valid=3)
    assert bits(got.trains_B) == bits(got.votes_B) == [0, 1, 1]
    assert (got.dropped_groups, got.thin_groups) == (0, 0)


def test_without_groups_loss_multiplier_still_votes():
    got = plan([1, 0], None, action="loss_multiplier")
    assert bits(got.trains_B) == [0, 1]
    assert bits(got.votes_B) == [1, 1]


@pytest.mark.parametrize("action", ["loss_multiplier", "exclude", "drop_group", "ignore"])
@pytest.mark.parametrize("group", [None, []])
def test_an_empty_batch_gives_an_empty_plan(action, group):
    got = plan([], group, action=action)
    assert got.trains_B.shape == got.votes_B.shape == got.masked_B.shape == (0,)
    assert bits(got.masked_B) == []
    assert got.changes_nothing


def test_ragged_and_interleaved_groups_are_planned_by_id_not_by_place():
    got = plan([0, 1, 0, 0, 0, 1, 0], ["x", "y", "x", "y", "z", "x", "y"])
    assert bits(got.votes_B) == [1, 0, 1, 1, 0, 0, 1]
    assert got.thin_groups == 1  # z has one row


def test_scored_kinds_stay_scored_although_masked():
    kinds = ["agent_timeout", None, "session_lost", None]
    got = plan([1, 0, 1, 0], [0, 0, 0, 0], kinds, scored_kinds={"agent_timeout"})
    assert bits(got.masked_B) == [0, 0, 1, 0]
    assert bits(got.trains_B) == [1, 1, 0, 1]


def test_masked_kinds_mask_although_the_environment_did_not():
    kinds = [None, "judge_failed", "agent_timeout", None]
    got = plan([0, 0, 0, 0], [0, 0, 0, 0], kinds, masked_kinds={"judge_failed"})
    assert bits(got.masked_B) == [0, 1, 0, 0]
    assert bits(got.trains_B) == [1, 0, 1, 1]


def test_scored_and_masked_kinds_work_together():
    kinds = ["agent_timeout", "judge_failed", None, "session_lost"]
    got = plan(
        [1, 0, 1, 1],
        None,
        kinds,
        scored_kinds={"agent_timeout"},
        masked_kinds={"judge_failed"},
    )
    assert bits(got.masked_B) == [0, 1, 1, 1]


def test_kinds_may_be_a_numpy_column():
    kinds = np.array(["agent_timeout", None], dtype=object)
    assert bits(plan([1, 1], None, kinds, scored_kinds={"agent_timeout"}).masked_B) == [0, 1]
    kinds = np.array(["agent_timeout", ""])
    assert bits(plan([1, 1], None, kinds, scored_kinds={"agent_timeout"}).masked_B) == [0, 1]


@pytest.mark.parametrize("option", ["scored_kinds", "masked_kinds"])
def test_a_policy_that_names_kinds_needs_them(option):
    with pytest.raises(
        ContractError, match=r"^kinds_B: expected one failure kind or None for each of the 2 rows"
    ):
        plan([0, 1], None, **{option: {"agent_timeout"}})


@pytest.mark.parametrize(
    "kinds", ["ab", [None], [None] * 3, 5, {"a": 1, "b": 2}, [1, 2], [["a"], ["b"]], [float("nan"), None]]
)
def test_kinds_that_do_not_fit_are_refused(kinds):
    with pytest.raises(ContractError, match=r"^kinds_B: expected 2 failure kinds, one str or None per row"):
        plan([0, 1], None, kinds)


@pytest.mark.parametrize(
    "masked",
    [
        [True, False],
        (True, False),
        [1, 0],
        [1.0, 0.0],
        np.array([True, False]),
        np.array([1, 0], dtype=np.uint8),
        np.array([1, 0], dtype=np.float16),
        np.array([True, False], dtype=object),
        np.array([np.bool_(True), False], dtype=object),
    ],
)
def test_flags_may_be_booleans_or_zeros_and_ones(masked):
    assert bits(plan(masked, None).masked_B) == [1, 0]


@pytest.mark.parametrize(
    "masked",
    [
        True,
        None,
        "10",
        [[True, False]],
        [[True], [False, True]],
        np.zeros((2, 1), dtype=bool),
        [2, 0],
        [-1, 0],
        [0.5, 0],
        [float("nan"), 0],
        ["True", "False"],
        [None, True],
        np.array([1, True], dtype=object),
        [1j, 0],
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        {True, False},
    ],
    ids=repr,
)
def test_flags_that_are_neither_are_refused(masked):
    with pytest.raises(ContractError, match=r"^masked_B: expected .* Pass the verdicts' mask_sample"):
        plan(masked, None)


def test_the_arrays_of_a_plan_are_new_and_apart():
    masked = np.array([True, False, False])
    for action in ("exclude", "loss_multiplier", "drop_group", "ignore"):
        got = plan(masked, [0, 0, 0], action=action)
        arrays = [masked, got.masked_B, got.votes_B, got.trains_B]
        assert not any(
            np.shares_memory(one, other) for i, one in enumerate(arrays) for other in arrays[i + 1 :]
        )
    assert masked.tolist() == [True, False, False]


def test_kinds_that_do_not_fit_say_what_was_found_and_what_to_do():
    with pytest.raises(ContractError) as error:
        plan([0, 1], None, ["a"])
    assert str(error.value) == (
        "kinds_B: expected 2 failure kinds, one str or None per row of masked_B, found ['a'] (list). "
        "Use None for a row without one."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"min_valid": 0},
            "min_valid: expected greater than or equal to 1, found 0 (int). Correct this option.",
        ),
        (
            {"scored_kinds": "a:b"},
            "scored_kinds: expected a valid list, found 'a:b' (str). Correct this option.",
        ),
        (
            {"action": "zero"},
            "action: expected 'loss_multiplier', 'exclude', 'drop_group' or 'ignore', found 'zero' (str). "
            "Correct this option.",
        ),
        (
            {"scored_kinds": ["a:b"], "masked_kinds": ["a:b"]},
            "['a:b'] cannot be in scored_kinds and in masked_kinds at once",
        ),
    ],
)
def test_an_error_says_option_expected_and_found_in_plain_words(options, message):
    with pytest.raises(ContractError) as caught:
        MaskPolicy(**options)
    assert str(caught.value) == message
