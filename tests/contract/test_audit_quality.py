"""Means, bounds and pass@k without the failures, against numbers worked out by hand."""

from itertools import combinations
from math import comb
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_files import audited, failure, row

from samplemask.quality import Counting


def masked(task, rollout, reward=0.0, kind="session_lost", **more):
    return row(task, rollout, reward, mask_sample=True, failure_kind=kind, **more)


def test_a_failed_attempt_counts_as_one_that_did_not_pass(tmp_path):
    document = audited(tmp_path, [row(0, 0, 1)], failures=[failure(0, 1)])
    assert document["pass_at"] == {"1": 0.5, "2": 1.0}
    assert document["reward_counted"] == 0.5


def test_a_failed_attempt_can_be_left_out(tmp_path):
    document = audited(
        tmp_path, [row(0, 0, 1)], failures=[failure(0, 1)], counting=Counting(failed="exclude")
    )
    assert document["pass_at"] == {"1": 1.0, "2": None}
    assert document["reward_counted"] == 1.0


def test_a_masked_attempt_is_no_attempt(tmp_path):
    document = audited(tmp_path, [row(0, 0, 1), masked(0, 1, kind="judge_failed")])
    assert document["pass_at"] == {"1": 1.0, "2": None}


def test_missing_rollouts_as_zeros_do_not_bring_back_failures_that_were_left_out(tmp_path):
    document = audited(
        tmp_path,
        [row(0, 0, 1)],
        failures=[failure(0, 1)],
        inputs=[row(0, 0), row(0, 1), row(0, 2)],
        counting=Counting(failed="exclude", missing_as_zero=True),
    )
    assert document["reward_counted"] == 0.5
    assert document["reward"]["unmasked"] == 1.0


def test_the_bounds_score_every_failure_zero_or_one(tmp_path):
    document = audited(tmp_path, [row(0, 0, 1), row(0, 1, 0), masked(0, 2, 0.7)], failures=[failure(0, 3)])
    assert document["reward_bounds"] == {"failures_as_zero": 0.25, "failures_as_one": 0.75}
    assert document["reward"]["all"] == pytest.approx(1.7 / 3)


def test_pass_at_k_is_averaged_over_the_tasks_that_have_k_attempts(tmp_path):
    rows = [row(0, number, reward) for number, reward in enumerate([1, 0, 0, 0])] + [
        row(1, 0, 0),
        row(1, 1, 1),
    ]
    document = audited(tmp_path, rows)
    assert document["pass_at"]["1"] == pytest.approx((1 / 4 + 1 / 2) / 2)
    assert document["pass_at"]["2"] == pytest.approx((1 / 2 + 1) / 2)
    assert document["pass_at"]["4"] == pytest.approx(1.0)


def test_two_agents_on_one_task_are_two_groups(tmp_path):
    rows = [row(0, 0, 1, agent="a"), row(0, 1, 0, agent="b")]
    assert audited(tmp_path, rows)["pass_at"] == {"1": 0.5}


def test_rows_without_a_task_have_no_pass_at_k(tmp_path):
    assert audited(tmp_path, [{"reward": 1.0}])["pass_at"] == {"1": None}


def test_each_agent_has_its_own_numbers_and_the_one_that_lost_most_comes_first(tmp_path):
    rows = [row(0, 0, 1, agent="steady"), row(1, 0, 1, agent="lossy"), masked(1, 1, agent="lossy")]
    agents = audited(tmp_path, rows)["by_agent"]
    assert list(agents) == ["lossy", "steady"]
    assert agents["lossy"]["reward"] == {"all": 0.5, "unmasked": 1.0}
    assert agents["steady"]["kinds"] == {}


def test_the_worst_tasks_are_the_ones_that_lost_the_largest_share(tmp_path):
    rows = [row(0, 0, 1), masked(0, 1), masked(1, 0), row(2, 0, 1)]
    tasks = audited(tmp_path, rows)["tasks"]
    assert (tasks["count"], tasks["measured"], tasks["without_measurement"]) == (3, 2, 1)
    assert [(task["task"], task["reward_unmasked"]) for task in tasks["worst"]] == [(1, None), (0, 1.0)]


def test_a_kind_on_a_scored_row_is_counted_apart(tmp_path):
    rows = [row(0, 0, 0.4, failure_kind="agent_timeout"), masked(0, 1, kind="agent_timeout")]
    document = audited(tmp_path, rows)
    assert document["kinds"] == {"agent_timeout": 1}
    assert document["scored_kinds"] == {"agent_timeout": 1}


rewards = st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(st.lists(rewards, min_size=1, max_size=3), st.integers(1, 6))
def test_pass_at_k_is_the_mean_best_of_all_draws(tmp_path_factory, tasks, k):
    rows = [
        row(task, number, reward) for task, group in enumerate(tasks) for number, reward in enumerate(group)
    ]
    document = audited(tmp_path_factory.mktemp("pass"), rows)
    draws = [fmean(max(draw) for draw in combinations(group, k)) for group in tasks if len(group) >= k]
    if str(k) in document["pass_at"]:
        assert document["pass_at"][str(k)] == pytest.approx(fmean(draws))


def test_pass_at_k_of_ones_and_zeros_is_the_usual_estimator(tmp_path):
    rows = [row(0, number, float(number < 3)) for number in range(8)]
    pass_at = audited(tmp_path, rows)["pass_at"]
    for k in (1, 2, 4, 8):
        assert pass_at[str(k)] == pytest.approx(1 - comb(5, k) / comb(8, k))
