"""Faults that users of other projects reported in public, as rollout files; each test names its report."""

import json

import pytest
from rollout_files import audited, counts, failure, row, write

from samplemask.audit import Limit, Options, audit_files
from samplemask.quality import Counting


def masked(task, rollout, kind, reward=0.0, **more):
    return row(task, rollout, reward, mask_sample=True, failure_kind=kind, **more)


def test_the_fields_of_a_verdict_are_read_apart(tmp_path):
    """NVIDIA-NeMo/Gym#2608: a kind alone never masks; a valid zero stays a zero."""
    rows = [
        row(0, 0, 0.0),
        row(1, 0, 0.4, mask_sample=False, failure_kind="judge_degraded", failure_reason="1 of 3 votes"),
        masked(2, 0, "sandbox_lost"),
        row(3, 0, error="HTTP 500, no body"),
        row(4, 0, 1.0, mask_sample=False, failure_kind="brand_new_kind"),
    ]
    document = audited(tmp_path, rows)
    assert counts(document) == {"scored": 3, "masked": 1, "failed": 1}
    assert document["reward"]["unmasked"] == pytest.approx(1.4 / 3)
    assert document["scored_kinds"] == {"brand_new_kind": 1, "judge_degraded": 1}


def test_flags_that_disagree_are_counted_and_either_one_masks(tmp_path):
    """NVIDIA-NeMo/Gym#2611: the decision stands at one place, the default at the other."""
    rows = [
        row(0, 0, 1.0, mask_sample=True, instance_config={"mask_sample": False}),
        row(1, 0, 1.0, mask_sample=False, instance_config={"mask_sample": True}),
        row(2, 0, 1.0, instance_config={"mask_sample": True}),
        row(3, 0, 1.0, instance_config=None),
        row(4, 0, 1.0, metrics={"mask_sample": True}),
    ]
    document = audited(tmp_path, rows)
    assert counts(document) == {"scored": 2, "masked": 3}
    assert document["rows"]["conflicts"] == 2


@pytest.mark.parametrize(("rollouts", "raised"), [(60, True), (50, True), (49, False)])
def test_a_run_that_masks_everything_raises_an_alarm(tmp_path, rollouts, raised):
    """NVIDIA-NeMo/Gym#2125: every sample was masked, silently."""
    document = audited(tmp_path, [masked(number, 0, None) for number in range(rollouts)])
    assert document["alarm"] == {"raised": raised, "max_lost": 0.5, "min_rollouts": 50}
    assert document["safety"]["rate"]["value"] == 1.0
    assert document["reward"]["unmasked"] is None


def test_a_timeout_that_was_graded_keeps_its_reward_and_is_seen(tmp_path):
    """rllm-org/rllm#710: 76 of 178 episodes were cut by the clock, and all said that they were done."""
    rows = [row(number, 0, 1.0) for number in range(102)]
    rows += [row(number, 0, 0.25, failure_kind="agent_timeout") for number in range(102, 178)]
    document = audited(tmp_path, rows)
    assert counts(document) == {"scored": 178}
    assert document["scored_kinds"] == {"agent_timeout": 76}
    assert document["reward"]["unmasked"] == pytest.approx((102 + 76 / 4) / 178)


def test_what_the_policy_can_cause_is_scored_zero_and_what_it_cannot_is_masked(tmp_path):
    """radixark/miles#2802: a policy must not learn to time out."""
    rows = [
        masked(0, 0, "env:sandbox_unavailable"),
        row(0, 1, 0.0, mask_sample=False, failure_kind="env:time_limit_exceeded"),
        masked(0, 2, "env:server_unreachable"),
    ]
    document = audited(tmp_path, rows)
    assert counts(document) == {"scored": 1, "masked": 2}
    assert document["reward"]["unmasked"] == 0.0
    assert not any(kind["policy_can_cause"] for kind in document["safety"]["kinds"].values())


def test_a_forgiven_timeout_that_rises_with_training_is_named(tmp_path):
    """radixark/miles#2802: the rate of each kind is reported against the progress of the run."""
    rows = [masked(n, 0, "agent_timeout") if n > 200 and n % 3 == 0 else row(n, 0, 1.0) for n in range(400)]
    kind = audited(tmp_path, rows)["safety"]["kinds"]["agent_timeout"]
    assert (kind["policy_can_cause"], kind["always_forgiven"]) == (True, True)
    assert kind["significant"] == ["position"]


def test_the_mean_leaves_masked_rows_out_and_no_metric_averages_the_flag(tmp_path):
    """NVIDIA-NeMo/Gym#2611: the profile said 0.5 where the aggregation said 1.0."""
    document = audited(tmp_path, [row(0, 0, 1, mask_sample=False), row(0, 1, 0, mask_sample=True)])
    assert document["reward"]["unmasked"] == 1.0
    assert counts(document) == {"scored": 1, "masked": 1}
    assert "mean/mask_sample" not in json.dumps(document)


def test_every_expected_rollout_is_one_of_five_things(tmp_path):
    """NVIDIA-NeMo/Gym#2611: the residual shows a collector that died; a row in two places counts once."""
    main = [*(row(0, number, 1.0) for number in range(4)), masked(0, 4, "session_lost")]
    sidecar = [failure(0, 5, "agent_request_failed"), failure(0, 4, "session_lost")]
    document = audited(tmp_path, main, failures=sidecar, expected=8, omitted=1)
    assert document["dispositions"] == {"scored": 4, "masked": 1, "failed": 1, "omitted": 1, "unknown": 1}


def test_missing_as_zero_does_not_bring_back_failures_that_were_left_out(tmp_path):
    """NVIDIA-NeMo/Gym#3559."""
    document = audited(
        tmp_path,
        [row(0, 0, 1)],
        failures=[failure(0, 1, "agent_request_failed", _ng_failure_status=503)],
        expected=3,
        counting=Counting(failed="exclude", missing_as_zero=True),
    )
    assert document["reward_counted"] == 0.5


def test_a_sidecar_left_over_from_an_earlier_run_fails_nothing(tmp_path):
    """NVIDIA-NeMo/Gym#2723."""
    document = audited(tmp_path, [row(0, 0, 1)], failures=[failure(0, 0, "agent_timeout")])
    assert counts(document) == {"scored": 1}
    assert document["rows"]["stale_failures"] == 1


def test_server_errors_are_failures_and_make_up_no_reward(tmp_path):
    """NVIDIA-NeMo/Gym#2017: a first fix stored reward 0 with a stub response."""
    path = write(tmp_path, [row(0, 0, 1)])
    write(
        tmp_path,
        [failure(1, 0, "agent_run_error", error="HTTP 500"), failure(2, 0, "agent_request_failed")],
        "rollouts_failures.jsonl",
    )
    with path.open("a") as stream:
        stream.write("Internal Server Error\n")
    document = audit_files([path]).to_json()
    assert counts(document) == {"scored": 1, "failed": 2}
    assert document["kinds"] == {"agent_request_failed": 1, "agent_run_error": 1}
    assert document["reward"] == {"all": 1.0, "unmasked": 1.0}
    assert document["unreadable_lines"] == [2]


def test_a_thousand_failed_resets_are_no_zeros(tmp_path):
    """NVIDIA-NeMo/Gym#2552: 1172 of 1280 rollouts entered GRPO as reward 0."""
    rows = [
        masked(n // 8, n % 8, "session_lost") if n < 1172 else row(n // 8, n % 8, 1.0) for n in range(1280)
    ]
    document = audited(tmp_path, rows)
    assert counts(document) == {"scored": 108, "masked": 1172}
    assert document["safety"]["rate"]["value"] == 0.915625
    assert document["reward"]["unmasked"] == 1.0
    assert document["reward"]["all"] == pytest.approx(108 / 1280)
    assert document["alarm"]["raised"]


@pytest.mark.parametrize(
    ("second", "pass_at"),
    [
        (failure(0, 1, "agent_run_error"), {"1": 0.5, "2": 1.0}),
        (masked(0, 1, "env:judge_timeout"), {"1": 1.0, "2": None}),
    ],
)
def test_a_failed_attempt_lowers_pass_at_1_and_a_masked_one_does_not(tmp_path, second, pass_at):
    """NVIDIA-NeMo/nemo-platform#1065."""
    assert audited(tmp_path, [row(0, 0, 1.0), second])["pass_at"] == pass_at


def test_rejected_rows_that_keep_their_reward_are_out_of_the_measured_mean(tmp_path):
    """NVIDIA-NeMo/RL#3837: both means are reported."""
    rows = [row(0, 0, 1), row(0, 1, 0), masked(0, 2, None, 1), masked(0, 3, None, 1)]
    assert audited(tmp_path, rows)["reward"] == {"all": 0.75, "unmasked": 0.5}


def test_a_masked_timeout_does_not_hide_how_much_was_lost(tmp_path):
    """rllm-org/rllm#798: the measured mean reads higher; the mean of all rows stands beside it."""
    rows = [row(0, 0, 1), row(0, 1, 1), row(0, 2, 0), masked(0, 3, "agent_timeout")]
    document = audited(tmp_path, rows)
    assert document["reward"] == {"all": 0.5, "unmasked": pytest.approx(2 / 3)}
    assert document["reward_bounds"] == {"failures_as_zero": 0.5, "failures_as_one": 0.75}


def test_a_run_without_a_score_has_no_extremes(tmp_path):
    """huggingface/trl#6429: masked minimum and maximum became infinite in the logs."""
    path = tmp_path / "rollouts.jsonl"
    path.write_text('{"reward": NaN, "mask_sample": true}\n' * 2)
    document = audit_files([path], options=Options(limit=Limit(min_rollouts=1))).to_json()
    assert document["reward"] == {"all": None, "unmasked": None}
    assert document["reward_range"] == {"min": None, "max": None}
    json.dumps(document, allow_nan=False)


def test_a_record_that_was_cut_takes_only_itself_along(tmp_path):
    """huggingface/OpenEnv#1154: and a whole record without a newline is kept."""
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b'{"id":0,"reward":1}\n{"id":1,"rew')
    document = audit_files([path]).to_json()
    assert (counts(document), document["unreadable_lines"]) == ({"scored": 1}, [2])
    path.write_bytes(b'{"id":0,"reward":1}\n{"id":1,"reward":0}')
    assert counts(audit_files([path]).to_json()) == {"scored": 2}
    path.write_bytes(b'{"id":0,"reward":1}\n{"id":1,"rew{"id":2,"reward":0}\n{"id":3,"reward":0}\n')
    document = audit_files([path]).to_json()
    assert (counts(document), document["unreadable_lines"]) == ({"scored": 2}, [2])
