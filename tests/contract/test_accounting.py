"""Every rollout counted once, and the metrics of a step."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samplemask import (
    ContractError,
    Coverage,
    Disposition,
    MaskPolicy,
    plan_rows,
    read_verdict,
    step_metrics,
)
from samplemask.accounting import StepCounts


def disposition(response) -> Disposition:
    return Disposition.of(read_verdict(response), response)


@pytest.mark.parametrize(
    ("response", "name"),
    [
        ({"reward": 0.0}, "scored"),
        ({"reward": 1.0, "failure_kind": "judge_failed"}, "scored"),
        ({"reward": 0.0, "mask_sample": True}, "masked"),
        ({"reward": 0.0, "instance_config": {"mask_sample": True}}, "masked"),
        ({"reward": None}, "masked"),
        ({"reward": math.nan}, "masked"),
        ({"reward": 0.0, "_ng_failure_class": "judge_failed"}, "failed"),
        ({"reward": 0.0, "mask_sample": True, "_ng_failure_class": "judge_failed"}, "failed"),
        ({"error": "HTTP 500, no body"}, "failed"),
        ({"error": "HTTP 500", "reward": 0.0, "mask_sample": True}, "masked"),
        ({"error": "recovered", "reward": 0.5}, "scored"),
        ({"error": None}, "masked"),
    ],
)
def test_a_row_has_one_disposition(response, name):
    assert disposition(response) is Disposition(name)


def test_a_verdict_alone_has_a_disposition():
    assert Disposition.of(read_verdict({"error": "HTTP 500"})) is Disposition.MASKED
    assert Disposition.of(read_verdict({"reward": 1})) is Disposition.SCORED


def test_a_failure_counted_as_zero_is_scored():
    verdict = read_verdict({"_ng_failure_class": "agent_timeout"}, failures_as_zero=["agent_timeout"])
    assert Disposition.of(verdict) is Disposition.SCORED


def test_dispositions_are_five_strings():
    assert [name.value for name in Disposition] == ["scored", "masked", "failed", "omitted", "unknown"]
    assert Disposition.SCORED == "scored"


def test_unknown_is_the_residual_of_what_was_expected():
    coverage = Coverage(scored=4, masked=1, failed=1, omitted=1, expected=8)
    assert coverage.unknown == 1
    assert coverage.expected == 8


def test_without_an_expectation_everything_is_known():
    coverage = Coverage(scored=2, masked=1)
    assert (coverage.unknown, coverage.expected) == (0, 3)


def test_an_unknown_count_raises_the_expectation():
    assert Coverage(scored=2, unknown=3).expected == 5


def test_an_empty_coverage_is_all_zeros():
    assert Coverage() == Coverage(0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "counts",
    [
        {"scored": 5, "expected": 4},
        {"scored": -1},
        {"unknown": -1},
        {"scored": 1, "unknown": 1, "expected": 3},
        {"scored": 2, "masked": -1, "expected": 1},
        {"expected": -1},
        {"scored": 4.5, "expected": 8},
        {"scored": 1, "expected": 1.0},
    ],
)
def test_counts_that_do_not_add_up_are_refused(counts):
    with pytest.raises(
        ContractError, match=r"^Coverage: expected counts of at least 0 that add up to expected="
    ):
        Coverage(**counts)


def test_coverages_add_up():
    total = Coverage(scored=1, masked=2, expected=4) + Coverage(failed=3, omitted=4, unknown=5)
    assert total == Coverage(scored=1, masked=2, failed=3, omitted=4, unknown=6, expected=16)


COUNT = st.integers(0, 1000)


@given(COUNT, COUNT, COUNT, COUNT, COUNT)
def test_the_five_always_add_up_to_the_expected_count(scored, masked, failed, omitted, more):
    coverage = Coverage(scored, masked, failed, omitted, expected=scored + masked + failed + omitted + more)
    assert coverage.unknown == more
    assert coverage + Coverage() == coverage


def metrics(masked, reward, group=None, kinds=None, **options) -> dict[str, float]:
    plan = plan_rows(masked, group, MaskPolicy(**options), kinds)
    found = step_metrics(plan, reward, kinds)
    assert all(name.startswith("mask_sample/") for name in found)
    assert all(type(value) is float for value in found.values())
    return {name.removeprefix("mask_sample/"): value for name, value in found.items()}


def test_a_step_with_one_masked_row_publishes_its_metrics():
    kinds = [None, "session_lost", None, None]
    assert metrics([0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], kinds) == {
        "masked_pct": 25.0,
        "reward": 0.5,
        "reward_unmasked": pytest.approx(1 / 3),
        "rows_trained": 3.0,
        "groups_dropped": 0.0,
        "groups_thin": 0.0,
        "no_signal_step": 0.0,
        "kind/session_lost": 1.0,
    }


def test_a_healthy_step_publishes_nothing():
    assert metrics([0, 0], [1, 0], [0, 0]) == {}
    assert metrics([], [], []) == {}


def test_a_healthy_step_does_not_even_look_at_the_rewards():
    assert metrics([0, 0], ["junk"], [0, 0]) == {}


def test_ignored_masked_rows_are_still_counted():
    found = metrics([1, 0], [1, 0], [0, 0], action="ignore")
    assert (found["masked_pct"], found["rows_trained"], found["kind/samplemask:unspecified"]) == (
        50.0,
        2.0,
        1.0,
    )


def test_a_step_without_signal_says_so():
    found = metrics([1, 1, 0, 1], [1, 0, 1, 0], [0, 0, 1, 1])
    assert (found["no_signal_step"], found["rows_trained"], found["groups_thin"]) == (1.0, 0.0, 2.0)


def test_dropped_groups_are_counted():
    found = metrics([1, 0, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1], action="drop_group")
    assert (found["groups_dropped"], found["rows_trained"]) == (1.0, 2.0)


def test_means_are_over_finite_rewards_and_left_out_when_nothing_was_measured():
    assert metrics([1, 0], [math.nan, 0.5])["reward"] == 0.5
    assert metrics([1, 0], [None, 0.5])["reward"] == 0.5
    found = metrics([1, 1], [math.nan, math.inf])
    assert "reward" not in found
    assert "reward_unmasked" not in found
    assert "reward_unmasked" not in metrics([1, 1], [0.0, 1.0])


def test_the_mean_of_the_largest_rewards_does_not_overflow():
    assert metrics([1, 0, 0], [0.0, 1.5e308, 1.5e308])["reward_unmasked"] == 1.5e308
    assert metrics([1, 0, 0], [0.0, 1.5e308, 1.0e308])["reward_unmasked"] == 1.25e308
    assert metrics([1, 0, 0], [0.0, 1.5e308, -1.5e308])["reward"] == 0.0
    largest = 1.7976931348623157e308  # a third of it, three times, is rounded to infinity
    assert metrics([1, 0, 0, 0], [math.nan, *[largest] * 3])["reward_unmasked"] == largest
    assert metrics([1, 0, 0, 0], [math.nan, *[-largest] * 3])["reward_unmasked"] == -largest


def test_kinds_are_counted_for_masked_rows_only_most_frequent_first():
    kinds = ["a:x", "b:y", "b:y", None, "", "a:x"]
    found = metrics([1, 1, 1, 1, 1, 0], [0] * 6, None, kinds)
    names = [name for name in found if name.startswith("kind/")]
    assert names == ["kind/b:y", "kind/samplemask:unspecified", "kind/a:x"]
    assert [found[name] for name in names] == [2.0, 2.0, 1.0]
    found = metrics([1, 1], [0, 0], None, ["samplemask:unspecified", None])
    assert found["kind/samplemask:unspecified"] == 2.0


@pytest.mark.parametrize("reward", [[1], [1, 2, 3], [[1], [2]], 5, np.zeros((2, 2))])
def test_rewards_of_another_shape_are_refused(reward):
    with pytest.raises(
        ContractError, match=r"^reward_B: expected one reward per row, shape \(2,\), found \("
    ):
        metrics([1, 0], reward)


@pytest.mark.parametrize("reward", [["x", 1], [[1], [2, 3]], [object(), 1], [1j, 0]])
def test_rewards_that_are_no_numbers_are_refused(reward):
    with pytest.raises(ContractError, match=r"^reward_B: expected one reward per row, .* Pass numbers"):
        metrics([1, 0], reward)


@pytest.mark.parametrize(
    "kinds", [[None, 5, "a:x"], np.array([None, 5, "a:x"], dtype=object), (None, 5, "a:x")]
)
def test_a_masked_rows_kind_that_is_no_text_is_refused_and_shown(kinds):
    plan = plan_rows([0, 1, 1], None, MaskPolicy())
    with pytest.raises(ContractError) as caught:
        step_metrics(plan, [0, 0, 0], kinds)
    assert str(caught.value) == (
        "kinds_B: expected 3 failure kinds, one str or None per row of masked_B, found [5, 'a:x'] (list). "
        "Use None for a row without one."
    )


def test_kinds_that_do_not_fit_the_plan_are_refused():
    plan = plan_rows([1, 0], None, MaskPolicy())
    with pytest.raises(ContractError, match=r"^kinds_B"):
        step_metrics(plan, [1, 0], ["a:x"])


def test_the_metrics_of_an_outage_that_was_skipped_say_no_signal():
    found = metrics([1] * 60, [0.0] * 60, max_masked_fraction=0.5, on_outage="skip_step")
    assert (found["no_signal_step"], found["masked_pct"]) == (1.0, 100.0)


@given(st.lists(st.tuples(st.booleans(), st.floats(), st.sampled_from([None, "session_lost"])), max_size=30))
def test_kind_counts_add_up_to_the_masked_rows_and_no_metric_is_nan(rows):
    masked = [row[0] for row in rows]
    found = metrics(masked, [row[1] for row in rows], None, [row[2] for row in rows])
    assert sum(value for name, value in found.items() if name.startswith("kind/")) == sum(masked)
    assert all(math.isfinite(value) for value in found.values())


def test_counts_of_two_batches_add_up_to_those_of_one():
    rewards = [1.0, 0.0, 0.5, 0.25, math.nan, 1.0]
    masked = [False, True, False, False, True, False]
    kinds = [None, "session_lost", None, None, "session_lost", None]
    groups = [0, 0, 0, 1, 1, 1]

    def counts(rows):
        plan = plan_rows(masked[rows], groups[rows], MaskPolicy())
        return StepCounts.of(plan, rewards[rows], kinds[rows])

    whole, parts = counts(slice(0, 6)), counts(slice(0, 3)) + counts(slice(3, 6))
    assert parts.metrics() == pytest.approx(whole.metrics())
    assert whole.metrics() == {
        "mask_sample/masked_pct": pytest.approx(100 / 3),
        "mask_sample/reward": pytest.approx(2.75 / 5),
        "mask_sample/reward_unmasked": pytest.approx(2.75 / 4),
        "mask_sample/rows_trained": 4.0,
        "mask_sample/groups_dropped": 0.0,
        "mask_sample/groups_thin": 0.0,
        "mask_sample/no_signal_step": 0.0,
        "mask_sample/kind/session_lost": 2.0,
    }


def test_no_counts_are_the_neutral_element_and_publish_nothing():
    assert StepCounts().metrics() == {}
    plan = plan_rows([False, True, False], [0, 0, 0], MaskPolicy())
    counts = StepCounts.of(plan, [1.0, 0.0, 0.0], [None, "cancelled", None])
    assert counts + StepCounts() == counts
    assert StepCounts() + counts == counts


def test_a_coverage_that_does_not_add_up_says_what_to_do():
    with pytest.raises(ContractError) as error:
        Coverage(scored=2, expected=1)
    assert str(error.value) == (
        "Coverage: expected counts of at least 0 that add up to expected=1, found "
        "{'scored': 2, 'masked': 0, 'failed': 0, 'omitted': 0, 'unknown': -1} (dict). "
        "Count each rollout once, and expect every rollout that left a row."
    )


def test_rewards_that_do_not_fit_say_what_to_do():
    with pytest.raises(ContractError) as error:
        metrics([1, 0], [1])
    assert str(error.value) == (
        "reward_B: expected one reward per row, shape (2,), found (1,) (tuple). Sum over tokens first."
    )
    with pytest.raises(
        ContractError, match=r"found \['x', 1\] \(list\)\. Pass numbers; None where there is none\."
    ):
        metrics([1, 0], ["x", 1])


def test_the_counts_of_a_batch_without_measured_rewards_have_no_mean():
    counts = StepCounts.of(plan_rows([1, 1], None, MaskPolicy()), [math.nan, math.inf])
    assert counts.reward == counts.reward_unmasked == (0.0, 0)
    assert (counts + counts).reward == (0.0, 0)


def test_an_ordinary_mean_is_numpys_own():
    assert metrics([1, *[0] * 6], [1.0] * 7)["reward"] == 1.0
    assert 7 * [1 / 7] != 7 * [1.0]


def test_the_counts_of_two_batches_add_up():
    drop = MaskPolicy(action="drop_group")
    one = StepCounts.of(plan_rows([1, 0, 0], ["a", "a", "b"], drop), [0.0, 1.0, 1.0], ["a:x", None, None])
    other = StepCounts.of(
        plan_rows([1, 0, 0, 0], ["c", "c", "d", "e"], drop), [0.0] * 4, ["a:x", None, None, None]
    )
    both = one + other
    assert (both.rows, both.masked, both.trained) == (7, 2, 0)
    assert (both.groups_dropped, both.groups_thin) == (2, 3)
    assert both.kinds == {"a:x": 2}
    assert both.reward == pytest.approx((2 / 7, 7))
    assert both.reward_unmasked == pytest.approx((2 / 5, 5))
    assert both.metrics()["mask_sample/masked_pct"] == pytest.approx(200 / 7)


def test_counts_without_rows_publish_zero_percent():
    assert StepCounts().metrics() == {}
    assert StepCounts(changed=True).metrics()["mask_sample/masked_pct"] == 0.0
