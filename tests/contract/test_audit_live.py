"""A run's own account agrees exactly with the audit of the files that it wrote."""

import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rollout_files import audited, failure, row

from samplemask import ContractError, Coverage
from samplemask.live import RunCounts


def a_run(seed):
    chance = random.Random(seed)
    rows = []
    for number in range(chance.randint(1, 80)):
        draw = chance.random()
        place = {"task": number // 4, "rollout": number % 4}
        if draw < 0.6:
            rows.append(row(**place, reward=chance.choice([0.0, 1.0, chance.random(), 1e-9, -1e15])))
        elif draw < 0.8:
            kind = chance.choice(["session_lost", None])
            rows.append(row(**place, reward=chance.random(), mask_sample=True, failure_kind=kind))
        elif draw < 0.9:
            rows.append(failure(**place))
        else:
            rows.append(row(**place, error="HTTP 500, no body"))
    return rows


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30))
def test_the_account_of_a_run_is_the_audit_of_its_files(tmp_path_factory, seed, step):
    rows = a_run(seed)
    document = audited(tmp_path_factory.mktemp("run"), rows)
    run = RunCounts()
    for start in range(0, len(rows), step):
        run += RunCounts.of_responses(rows[start : start + step])
    assert {"all": run.reward, "unmasked": run.reward_unmasked} == document["reward"]
    assert run.kinds == document["kinds"]
    coverage = run.coverage()
    assert {name: getattr(coverage, name) for name in document["dispositions"]} == document["dispositions"]


def test_steps_add_up_without_any_rounding():
    nobody = np.zeros(2, dtype=bool)
    steps = [RunCounts.of(nobody, np.array(rewards)) for rewards in ([1e16, 0.1], [0.1, -1e16], [0.1, 0.1])]
    assert sum(steps, RunCounts()).reward == 0.4 / 6


@given(
    st.lists(
        st.floats(allow_nan=False, allow_infinity=False)
        | st.floats(width=32, allow_nan=False, allow_infinity=False)
        | st.integers(-(2**22), 2**22).map(lambda units: units * 2.0**-40)
        | st.sampled_from([2.0**22, -(2.0**22), 2.0**-41, 2.0**21 + 2.0**-31]),
        max_size=20,
    )
)
@example([0.0, 8.2e295])
@example([2.0**21] * 4)
@example([2.0**22 - 2.0**-31, 2.0**-40])
@example([2.0**-41, 1.0])
def test_sums_are_exact_whatever_the_rewards(rewards):
    counts = RunCounts.of(np.zeros(len(rewards), dtype=bool), np.array(rewards, dtype=np.float64))
    assert counts.reward_sum == counts.scored_sum == sum(map(Fraction, rewards), Fraction())


def test_32_bit_rewards_are_summed_at_once(monkeypatch):
    monkeypatch.delattr("samplemask.live._sum_of_any")
    rewards = np.array([0.1, 0.7, -1.0, 1e3, 2.0**-16], dtype=np.float32).astype(np.float64)
    assert RunCounts.of(np.zeros(5, dtype=bool), rewards).reward_sum == sum(
        map(Fraction, rewards), Fraction()
    )


def test_16_bit_rewards_are_summed_without_a_warning():
    rewards = np.array([0.5, 0.0, -0.25], dtype=np.float16)
    assert RunCounts.of(np.zeros(3, dtype=bool), rewards).reward_sum == Fraction(1, 4)


def test_rollouts_of_which_nothing_more_is_said_are_masked_and_did_not_fail():
    counts = RunCounts.of(np.array([True, False]), np.array([0.5, 1.0]))
    assert (counts.scored, counts.masked, counts.failed) == (1, 1, 0)


def test_as_many_failures_as_masked_rollouts_are_published():
    run = RunCounts.of(np.array([True, True]), np.zeros(2), None, np.array([True, False]))
    assert run.metrics()["mask_sample_run/masked"] == run.metrics()["mask_sample_run/failed"] == 1.0


def test_no_responses_are_no_rollouts():
    assert RunCounts.of_responses([]) == RunCounts()
    assert RunCounts().coverage() == Coverage()
    assert RunCounts().coverage(omitted=2) == Coverage(omitted=2)


def test_rewards_near_the_largest_float_have_a_mean():
    assert RunCounts.of(np.zeros(4, dtype=bool), np.array([1.5e308] * 4)).reward == 1.5e308


def test_the_metrics_of_a_run_count_rollouts_not_rows_of_a_policy():
    run = RunCounts.of(
        np.array([False, True, True, True]),
        np.array([1.0, 0.0, np.nan, 0.5]),
        [None, "session_lost", "NodeFailure", None],
        np.array([False, False, True, False]),
    )
    assert run.metrics() == {
        "mask_sample_run/scored": 1.0,
        "mask_sample_run/masked": 2.0,
        "mask_sample_run/failed": 1.0,
        "mask_sample_run/reward": 0.5,
        "mask_sample_run/reward_unmasked": 1.0,
        "mask_sample_run/kind/session_lost": 1.0,
        "mask_sample_run/kind/NodeFailure": 1.0,
        "mask_sample_run/kind/samplemask:unspecified": 1.0,
    }


def test_a_run_that_lost_nothing_publishes_nothing():
    assert RunCounts.of_responses([{"reward": 1.0}, {"reward": 0.0}]).metrics() == {}


def test_a_run_without_a_measurement_has_no_mean():
    run = RunCounts.of_responses([{"reward": 0.0, "mask_sample": True}, {"reward": None}])
    assert (run.reward, run.reward_unmasked) == (0.0, None)
    assert "mask_sample_run/reward_unmasked" not in run.metrics()


def test_a_collector_that_died_shows_as_unknown_rollouts():
    run = RunCounts.of_responses([{"reward": 1.0}] * 3)
    assert run.coverage(8, omitted=1) == Coverage(scored=3, omitted=1, unknown=4)
    with pytest.raises(ContractError, match="expected=2"):
        run.coverage(2)
