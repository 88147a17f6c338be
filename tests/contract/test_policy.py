"""Who trains and who votes: every rule of the policy, with hand-written plans."""

import pickle

import numpy as np
import pytest
from pydantic import ValidationError

from samplemask import ContractError, MaskPolicy, OutageError, RowPlan, plan_rows

# Three groups: a healthy one, one with two masked rows of four, one with a lone survivor.
GROUP = ["a", "a", "b", "b", "b", "b", "c", "c"]
MASKED = [0, 0, 1, 0, 1, 0, 1, 0]


def plan(masked=MASKED, group=GROUP, kinds=None, **options) -> RowPlan:
    return plan_rows(masked, group, MaskPolicy(**options), kinds)


def bits(array) -> list[int]:
    assert array.dtype == bool
    return array.astype(int).tolist()


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action": "excluded"}, r"^action: expected .*'exclude'.*, found 'excluded' \(str\)\. Correct"),
        ({"action": None}, r"^action: "),
        ({"min_valid": 0}, r"^min_valid: .*greater than or equal to 1, found 0 \(int\)"),
        ({"min_valid": "2"}, r"^min_valid: .*valid integer, found '2' \(str\)"),
        ({"min_valid": True}, r"^min_valid: "),
        ({"min_valid": 2.0}, r"^min_valid: "),
        ({"drop_group_above": -0.1}, r"^drop_group_above: .*greater than or equal to 0"),
        ({"drop_group_above": 1.1}, r"^drop_group_above: .*less than or equal to 1"),
        ({"drop_group_above": 50}, r"^drop_group_above: .*less than or equal to 1"),
        ({"drop_group_above": float("nan")}, r"^drop_group_above: .*finite"),
        ({"drop_group_above": "0.5"}, r"^drop_group_above: "),
        ({"max_masked_fraction": 1.5}, r"^max_masked_fraction: "),
        ({"max_masked_fraction": float("nan")}, r"^max_masked_fraction: .*finite"),
        ({"outage_min_rows": 0}, r"^outage_min_rows: "),
        ({"on_outage": "stop"}, r"^on_outage: "),
        ({"scored_kinds": "agent_timeout"}, r"^scored_kinds: "),
        ({"masked_kinds": [1]}, r"^masked_kinds\.0: "),
        ({"acton": "exclude"}, r"^unknown policy option 'acton'\. Did you mean 'action'\?$"),
        ({"zzz": 1}, r"^unknown policy option 'zzz'\. Known options: action, min_valid, .*on_outage\.$"),
        ({"scored_kinds": ["a:b"], "masked_kinds": ["a:b"]}, r"\['a:b'\] cannot be in scored_kinds and in"),
        ({"scored_kinds": ["samplemask:reward_missing"]}, r"cannot be scored: such a row has no reward"),
        ({"scored_kinds": ["samplemask:reward_not_finite"]}, r"cannot be scored"),
        ({"min_valid": 0, "acton": 1}, r"^min_valid: .*; unknown policy option 'acton'"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(ContractError, match=message):
        MaskPolicy(**options)


@pytest.mark.parametrize("fraction", [0, 1, 0.0, 1.0, 0.5])
def test_fractions_run_from_zero_to_one(fraction):
    assert MaskPolicy(drop_group_above=fraction).drop_group_above == fraction
    assert MaskPolicy(max_masked_fraction=fraction).max_masked_fraction == fraction


@pytest.mark.parametrize("kinds", [["a:b"], ("a:b",), {"a:b"}, frozenset({"a:b"})])
def test_kinds_of_a_policy_come_in_any_collection(kinds):
    assert MaskPolicy(scored_kinds=kinds).scored_kinds == frozenset({"a:b"})


def test_a_policy_is_immutable_hashable_and_pickles():
    policy = MaskPolicy(scored_kinds={"a:b"}, min_valid=3)
    with pytest.raises(ValidationError):
        policy.min_valid = 1
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert hash(policy) == hash(MaskPolicy(scored_kinds=["a:b"], min_valid=3))


def test_a_policy_from_a_hosts_configuration_names_the_place_in_its_errors():
    assert MaskPolicy.from_config({"action": "drop_group"}, "algorithm.mask_sample").action == "drop_group"
    assert MaskPolicy.from_config(None, "x") == MaskPolicy.from_config({}, "x") == MaskPolicy()
    with pytest.raises(ContractError, match=r"^algorithm\.mask_sample: unknown policy option 'acton'"):
        MaskPolicy.from_config({"acton": "exclude"}, "algorithm.mask_sample")
    with pytest.raises(ContractError, match=r"^grpo\.mask: .*unknown policy option '1'"):
        MaskPolicy.from_config({1: "exclude"}, "grpo.mask")


@pytest.mark.parametrize("options", ["exclude", ["exclude"], 1, True])
def test_a_configuration_that_is_no_mapping_is_refused(options):
    with pytest.raises(
        ContractError, match=r"^a\.b: expected a mapping of policy options, .*a\.b\.action=exclude"
    ):
        MaskPolicy.from_config(options, "a.b")


def test_kinds_that_do_not_fit_say_what_was_found_and_what_to_do():
    with pytest.raises(ContractError) as error:
        plan([0, 1], None, ["a"])
    assert str(error.value) == (
        "kinds_B: expected 2 failure kinds, one str or None per row of masked_B, found ['a'] (list). "
        "Use None for a row without one."
    )


def test_kinds_of_equal_frequency_stand_in_alphabetical_order():
    with pytest.raises(OutageError) as error:
        plan([1, 1, 1], None, ["c:c", "a:a", "b:b"], max_masked_fraction=0.0, outage_min_rows=1)
    assert list(error.value.kinds) == ["a:a", "b:b", "c:c"]


def test_an_error_of_no_single_option_is_the_policys():
    with pytest.raises(
        ContractError, match=r"^policy: expected .* cannot be in scored_kinds and in masked_kinds"
    ):
        MaskPolicy(scored_kinds=["a:b"], masked_kinds=["a:b"])


def test_the_nearest_option_is_suggested():
    with pytest.raises(
        ContractError, match=r"^unknown policy option 'outage_min_row'\. Did you mean 'outage_min_rows'\?$"
    ):
        MaskPolicy(outage_min_row=3)


def test_a_configuration_that_is_no_mapping_is_shown():
    with pytest.raises(ContractError) as error:
        MaskPolicy.from_config("exclude", "a.b")
    assert str(error.value) == (
        "a.b: expected a mapping of policy options, found 'exclude' (str). Write a.b.action=exclude."
    )
