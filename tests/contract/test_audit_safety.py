"""Whether masking is safe: rates with intervals, and failures that grow with something."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rollout_files import audited, row

from samplemask.safety import _rank_correlation, policy_can_cause, rate


def timed_out(number, masked, **response):
    more = {"mask_sample": True, "failure_kind": "agent_timeout"} if masked else {}
    return row(number // 4, number % 4, 0.0 if masked else 1.0, response=response, **more)


def test_the_interval_of_a_rate_is_wilsons():
    # Wilson's score interval for 1 of 10, 95 %: 0.0179 to 0.4042 (Newcombe 1998, method 3)
    found = rate(1, 10)
    assert found["value"] == 0.1
    assert found["low"] == pytest.approx(0.0179, abs=5e-5)
    assert found["high"] == pytest.approx(0.4042, abs=5e-5)


def test_the_interval_of_nothing_and_of_everything_stays_between_0_and_1():
    assert rate(0, 20)["low"] == 0.0
    assert rate(20, 20)["high"] == 1.0
    assert rate(0, 0)["value"] is None


def test_a_timeout_that_grows_with_the_length_of_the_response_is_named(tmp_path):
    rows = [timed_out(number, number >= 30, usage={"output_tokens": number * 10}) for number in range(40)]
    kind = audited(tmp_path, rows)["safety"]["kinds"]["agent_timeout"]
    assert kind["count"] == 10
    assert kind["policy_can_cause"]
    assert kind["always_forgiven"]
    assert "tokens" in kind["significant"]
    assert kind["moves_with"]["tokens"] > 3


def test_a_kind_that_grows_during_training_is_named(tmp_path):
    rows = [
        timed_out(number, number % 2 == 0 and number > 30, created_at=1e9 + number) for number in range(60)
    ]
    kind = audited(tmp_path, rows)["safety"]["kinds"]["agent_timeout"]
    assert "time" in kind["significant"]


def test_a_failure_that_comes_at_any_length_moves_with_nothing(tmp_path):
    rows = [timed_out(number, number % 4 == 0, usage={"output_tokens": number}) for number in range(80)]
    kind = audited(tmp_path, rows)["safety"]["kinds"]["agent_timeout"]
    assert kind["significant"] == []


def test_the_bins_hold_every_row_that_has_the_value_once(tmp_path):
    rows = [timed_out(number, number % 5 == 0, usage={"output_tokens": number % 7}) for number in range(50)]
    safety = audited(tmp_path, [*rows, row(99, 0, 1.0)])["safety"]
    assert sum(bucket["rows"] for bucket in safety["by_tokens"]) == 50
    assert sum(bucket["rows"] for bucket in safety["by_position"]) == 51
    assert sum(bucket["count"] for bucket in safety["by_tokens"]) == 10
    assert safety["by_turns"] == []
    for before, after in zip(safety["by_tokens"], safety["by_tokens"][1:], strict=False):
        assert before["to"] < after["from"]


def test_turns_are_the_runs_of_what_the_model_made(tmp_path):
    output = [
        {"type": "reasoning"},
        {"type": "function_call"},
        {"type": "function_call_output"},
        {"type": "message", "role": "assistant"},
        {"type": "message", "role": "user"},
        {"type": "message", "role": "assistant"},
    ]
    (bucket,) = audited(tmp_path, [row(0, 0, 1.0, response={"output": output})])["safety"]["by_turns"]
    assert (bucket["from"], bucket["to"]) == (3, 3)


def test_gyms_own_performance_record_has_priority(tmp_path):
    more = {"ng_perf": {"num_turns": 7, "completion_tokens": 90}, "response": {"usage": {"output_tokens": 5}}}
    safety = audited(tmp_path, [row(0, 0, 1.0, **more)])["safety"]
    assert safety["by_turns"][0]["from"] == 7
    assert safety["by_tokens"][0]["from"] == 90


def test_a_kind_that_is_also_scored_is_not_always_forgiven(tmp_path):
    rows = [timed_out(0, True), row(0, 1, 0.0, failure_kind="agent_timeout")]
    assert not audited(tmp_path, rows)["safety"]["kinds"]["agent_timeout"]["always_forgiven"]


@pytest.mark.parametrize(
    "kind",
    ["agent_timeout", "TimeLimitExceeded", "provider_oom_killed", "judge_unparseable", "env:out_of_memory"],
)
def test_kinds_that_a_policy_can_bring_about(kind):
    assert policy_can_cause(kind)


@pytest.mark.parametrize(
    "kind", ["session_lost", "judge_failed", "provider_unavailable", "env:room_gone", "transport_timeout"]
)
def test_kinds_that_it_cannot(kind):
    assert not policy_can_cause(kind)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 2.5, 7.0]) | st.floats(-1e6, 1e6), st.booleans()), min_size=3
    )
)
def test_the_rank_correlation_is_numpys_of_mean_ranks(pairs):
    values, chosen = np.array([value for value, _ in pairs]), np.array([flag for _, flag in pairs])
    assume(0 < chosen.sum() < len(chosen))
    assume(np.ptp(values) > 0)
    ranks = [(values < value).sum() + ((values == value).sum() - 1) / 2 for value in values]
    assert _rank_correlation(values, chosen) == pytest.approx(np.corrcoef(ranks, chosen)[0, 1], abs=1e-9)
