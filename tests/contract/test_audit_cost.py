"""What failures did to training, against advantages worked out by hand."""

import pytest
from rollout_files import audited, failure, row


def masked(task, rollout, reward=0.0, **more):
    return row(task, rollout, reward, mask_sample=True, **more)


def test_one_masked_row_shifts_its_siblings(tmp_path):
    # saw [.5, .5, -.5, -.5]; without row 1: [2/3, 0, -1/3, -1/3]
    rows = [row(0, 0, 1), masked(0, 1, 1), row(0, 2, 0), row(0, 3, 0)]
    cost = audited(tmp_path, rows)["cost"]
    assert cost["advantage_shift"] == {"mean": pytest.approx(1 / 6), "largest": pytest.approx(1 / 6)}
    assert cost["rows_trained_on_nothing"] == 1
    assert cost["sign_flips"] == 0
    assert (cost["groups"], cost["groups_affected"]) == (1, 1)


def test_a_group_that_differs_only_by_a_failure_had_no_signal_of_its_own(tmp_path):
    rows = [row(0, 0, 1), row(0, 1, 1), row(0, 2, 1), masked(0, 3)]
    cost = audited(tmp_path, rows)["cost"]
    assert cost["groups_with_signal_only_from_failures"] == 1
    assert cost["advantage_shift"]["largest"] == pytest.approx(0.25)
    assert cost["sign_flips"] == 0


def test_a_failure_can_turn_an_advantage_around(tmp_path):
    # saw: mean .4 and .5 - .4 > 0; without the two zeros: mean 2/3 and .5 - 2/3 < 0
    rows = [row(0, 0, 1), row(0, 1, 0.5), row(0, 2, 0.5), masked(0, 3), masked(0, 4)]
    assert audited(tmp_path, rows)["cost"]["sign_flips"] == 2


def test_a_group_with_one_measured_row_left_is_lost(tmp_path):
    rows = [row(0, 0, 1), masked(0, 1), row(1, 0, 1), row(1, 1, 0)]
    cost = audited(tmp_path, rows)["cost"]
    assert cost["groups_lost"] == 1
    assert cost["groups"] == 2


def test_a_failed_attempt_without_a_reward_trained_as_a_zero(tmp_path):
    cost = audited(tmp_path, [row(0, 0, 1), row(0, 1, 1)], failures=[failure(0, 2)])["cost"]
    assert cost["groups_with_signal_only_from_failures"] == 1
    assert cost["rows_trained_on_nothing"] == 1


def test_a_run_without_failures_costs_nothing(tmp_path):
    cost = audited(tmp_path, [row(0, 0, 1), row(0, 1, 0)])["cost"]
    assert cost["groups_affected"] == 0
    assert cost["advantage_shift"] == {"mean": None, "largest": None}


def test_masked_content_other_than_the_reward_that_training_saw_does_not_matter(tmp_path):
    rows = [row(0, 0, 1), row(0, 1, 0), masked(0, 2, float("nan"))]
    cost = audited(tmp_path, rows)["cost"]
    assert cost == audited(tmp_path, [*rows[:2], masked(0, 2, None)])["cost"]


def test_equal_rewards_are_no_signal_whatever_their_rounding(tmp_path):
    rows = [row(0, number, 0.1) for number in range(3)] + [masked(0, 3, 0.1)]
    assert audited(tmp_path, rows)["cost"]["groups_with_signal_only_from_failures"] == 0


def test_rollouts_that_never_ran_take_no_part(tmp_path):
    inputs = [row(0, number) for number in range(4)]
    cost = audited(tmp_path, [row(0, 0, 1), row(0, 1, 0)], inputs=inputs)["cost"]
    assert (cost["rows_measured"], cost["groups_affected"]) == (2, 0)
