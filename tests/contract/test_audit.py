"""Every rollout is counted once, whatever the files look like."""

import gzip
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_files import audited, counts, failure, row, write

from samplemask import ContractError
from samplemask.audit import Options, audit_files, close
from samplemask.ledger import Ledger
from samplemask.reader import Reader
from samplemask.rows import row_of


def test_the_means_of_the_simulation_server_with_two_nested_masks(tmp_path):
    masked = {"instance_config": {"mask_sample": True}, "mask_sample": False}
    document = audited(
        tmp_path, [row(0, 0, 1), row(1, 0, 0), row(2, 0, 0, **masked), row(3, 0, 1), row(4, 0, 0, **masked)]
    )
    assert counts(document) == {"scored": 3, "masked": 2}
    assert document["reward"]["all"] == pytest.approx(0.4)
    assert document["reward"]["unmasked"] == pytest.approx(2 / 3)
    assert document["rows"]["conflicts"] == 2


def test_the_newest_attempt_wins_in_whatever_order_the_rows_stand(tmp_path):
    rows = [row(0, 0, 0.0, attempt=1), row(0, 0, 1.0, attempt=2), row(0, 0, 0.5)]
    for order in (rows, rows[::-1], [rows[1], rows[2], rows[0]]):
        document = audited(tmp_path, order)
        assert counts(document) == {"scored": 1}
        assert document["reward"]["unmasked"] == 1.0
        assert document["rows"]["superseded_attempts"] == 2


def test_a_success_in_the_main_file_supersedes_the_failures_of_its_earlier_attempts(tmp_path):
    document = audited(
        tmp_path, [row(0, 0, 1.0, attempt=2)], failures=[failure(0, 0), failure(0, 0, attempt=1)]
    )
    assert counts(document) == {"scored": 1}
    assert document["rows"]["superseded_attempts"] == 2
    assert document["rows"]["stale_failures"] == 0
    assert document["kinds"] == {}


def test_a_sidecar_failure_of_a_rollout_that_succeeded_at_once_is_stale_and_reported(tmp_path):
    document = audited(tmp_path, [row(0, 0, 1.0)], failures=[failure(1, 0), failure(0, 0)])
    assert counts(document) == {"scored": 1, "failed": 1}
    assert document["rows"]["stale_failures"] == 1
    assert [(each["line"], each["task"]) for each in document["stale_failures"]] == [(2, 0)]


def test_a_row_of_the_main_file_beats_every_attempt_in_the_sidecar(tmp_path):
    sidecar = [failure(0, 0, attempt=1), failure(0, 0, attempt=5)]
    document = audited(tmp_path, [row(0, 0, 1.0)], failures=sidecar)
    assert counts(document) == {"scored": 1}


def test_within_a_file_a_newer_failure_beats_an_older_success(tmp_path):
    rows = [failure(0, 0, attempt=1), row(0, 0, 1.0)]
    for order in (rows, rows[::-1]):
        assert counts(audited(tmp_path, order)) == {"failed": 1}


def test_within_an_attempt_a_result_beats_a_failure(tmp_path):
    rows = [row(0, 0, 1.0), failure(0, 0)]
    for order in (rows, rows[::-1]):
        assert counts(audited(tmp_path, order)) == {"scored": 1}


def test_the_last_of_several_failed_attempts_names_the_kind(tmp_path):
    attempts = [failure(0, 0, "agent_timeout", attempt=1), failure(0, 0, "judge_failed")]
    document = audited(tmp_path, [], failures=attempts)
    assert document["kinds"] == {"agent_timeout": 1}


def test_a_row_in_two_files_is_counted_once(tmp_path):
    masked = row(0, 4, 0, mask_sample=True, failure_kind="session_lost")
    main = [row(0, 0, 1), row(0, 1, 1), row(0, 2, 0), row(0, 3, 0), masked]
    inputs = [row(0, number) for number in range(8)]
    document = audited(tmp_path, main, failures=[failure(0, 5), failure(0, 4)], inputs=inputs, omitted=1)
    assert document["dispositions"] == {"scored": 4, "masked": 1, "failed": 1, "omitted": 1, "unknown": 1}
    assert document["expected"] == 8


def test_equal_rows_are_counted_once_and_reported(tmp_path):
    document = audited(tmp_path, [row(0, 0, 1.0), row(0, 0, 1.0), row(0, 1, 0.0)])
    assert counts(document) == {"scored": 2}
    assert document["rows"]["duplicates"] == 1


def test_rows_without_indices_are_rollouts_of_their_own(tmp_path):
    document = audited(tmp_path, [{"reward": 1.0}, {"reward": 1.0}, {"reward": 0.0, "_ng_task_index": 0}])
    assert counts(document) == {"scored": 3}
    assert document["rows"]["unattributed"] == 3


def test_rows_without_indices_stand_for_missing_rollouts_of_their_agent_first(tmp_path):
    inputs = [row(0, 0, agent="a"), row(0, 1, agent="a"), row(1, 0, agent="b"), row(1, 1, agent="b")]
    rows = [row(0, 0, 1.0, agent="a"), {"reward": 0.0, "agent_ref": {"name": "b"}}]
    document = audited(tmp_path, rows, inputs=inputs)
    assert counts(document) == {"scored": 2, "unknown": 2}
    unknown = {name: summary["dispositions"]["unknown"] for name, summary in document["by_agent"].items()}
    assert unknown == {"a": 1, "b": 1}


def test_the_residual_is_never_negative(tmp_path):
    rows = [{"reward": 1.0}] * 5 + [row(9, 9, 1.0)]
    document = audited(tmp_path, rows, inputs=[row(0, 0)])
    assert counts(document) == {"scored": 6}
    assert document["rows"]["unexpected"] == 1


def test_expected_rollouts_that_left_no_row_are_unknown(tmp_path):
    document = audited(tmp_path, [row(0, 0, 1.0)], inputs=[row(0, 0), row(0, 1), row(0, 1)])
    assert counts(document) == {"scored": 1, "unknown": 1}


def test_a_declared_number_of_rollouts_shows_what_is_missing(tmp_path):
    document = audited(tmp_path, [row(0, 0, 1.0)], expected=4, omitted=1)
    assert counts(document) == {"scored": 1, "omitted": 1, "unknown": 2}


def test_more_rollouts_than_declared_are_noted(tmp_path):
    document = audited(tmp_path, [row(0, 0, 1.0), row(0, 1, 1.0)], expected=1)
    assert counts(document) == {"scored": 2}
    assert document["rows"]["unexpected"] == 1


def test_whatever_lies_among_the_failures_without_a_measurement_failed(tmp_path):
    document = audited(
        tmp_path, [], failures=[row(0, 0, failure="timeout"), row(0, 1, 0.0, mask_sample=True)]
    )
    assert counts(document) == {"failed": 2}


def test_an_odd_attempt_number_is_no_crash(tmp_path):
    rows = [row(0, 0, 1.0, attempt=-(2**40)), row(0, 0, 0.5, attempt=2**40), row(0, 0, 0.0, attempt="x")]
    assert audited(tmp_path, rows)["reward"]["unmasked"] == 0.5


def test_rows_that_say_that_they_never_ran_are_omitted(tmp_path):
    drained = failure(0, 0, "cancelled", _ng_no_persist=True, _ng_dispatch_drained=True)
    assert counts(audited(tmp_path, [drained])) == {"omitted": 1}


def test_equal_indices_of_two_runs_are_two_rollouts(tmp_path):
    paths = [write(tmp_path, [row(0, 0, reward)], f"run{reward}.jsonl") for reward in (0, 1)]
    assert counts(audit_files(paths).to_json()) == {"scored": 2}


def test_the_failures_of_one_run_do_not_hide_behind_the_rows_of_another(tmp_path):
    paths = [write(tmp_path, [row(0, 0, 1)], "a.jsonl"), write(tmp_path, [], "b.jsonl")]
    write(tmp_path, [failure(0, 0)], "b_failures.jsonl")
    assert counts(audit_files(paths).to_json()) == {"scored": 1, "failed": 1}


def test_failure_classes_can_be_counted_as_measured_zeros(tmp_path):
    document = audited(tmp_path, [row(0, 0, 1)], failures=[failure(0, 1)], failures_as_zero=["judge_failed"])
    assert counts(document) == {"scored": 2}
    assert document["reward"]["unmasked"] == 0.5


def test_indices_that_are_text_or_floats_still_tell_rollouts_apart(tmp_path):
    rows = [
        row("a", 0, 1),
        row("a", 0, 1),
        row("b", 0, 1),
        row(1, 0, 1),
        row(1.0, 0, 1),
        row(-1, 0, 1),
        row(2**40, 0, 1),
    ]
    assert counts(audited(tmp_path, rows)) == {"scored": 5}


def test_unreadable_lines_are_reported_by_number_and_the_rest_is_read(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(
        b'{"reward": 1.0}\n<PLACEHOLDER ROW>\n\n{"reward": 0.0, "text": "\xff"}\n{"reward": 0.5}\n{"rew'
    )
    document = audit_files([path]).to_json()
    assert document["unreadable_lines"] == [2, 4, 6]
    assert [line["reason"].split(":")[0] for line in document["unreadable"]["lines"]] == [
        "not JSON",
        "not UTF-8",
        "not JSON",
    ]
    assert counts(document) == {"scored": 2}


def test_a_verdict_that_cannot_be_read_is_an_unreadable_line_and_its_rollout_unknown(tmp_path):
    document = audited(
        tmp_path, [row(0, 0, 1), row(0, 1, 1, mask_sample="maybe"), {"reward": 1, "mask_sample": 2}]
    )
    assert counts(document) == {"scored": 1, "unknown": 1}
    assert document["unreadable_lines"] == [2, 3]
    assert "mask_sample" in document["unreadable"]["lines"][0]["reason"]


@pytest.mark.parametrize("reward", ["NaN", "Infinity", "null"])
def test_a_reward_that_is_no_number_is_masked_and_never_zero(tmp_path, reward):
    path = tmp_path / "rollouts.jsonl"
    path.write_text(f'{{"reward": {reward}}}\n{{"reward": 1.0}}\n')
    document = audit_files([path]).to_json()
    assert counts(document) == {"scored": 1, "masked": 1}
    assert document["reward"] == {"all": 1.0, "unmasked": 1.0}


def test_nothing_measured_is_null_and_the_document_is_json(tmp_path):
    document = audited(
        tmp_path, [row(0, 0, float("nan"), mask_sample=True), row(0, 1, 7.0, mask_sample=True)]
    )
    assert document["reward"]["unmasked"] is None
    assert document["reward_range"] == {"min": None, "max": None}
    assert document["pass_at"] == {"1": None, "2": None}
    json.dumps(document, allow_nan=False)


def test_an_empty_file_has_no_rollouts_and_no_means(tmp_path):
    document = audited(tmp_path, [])
    assert document["expected"] == 0
    assert document["reward"] == {"all": None, "unmasked": None}


def test_rewards_near_the_largest_float_have_a_mean(tmp_path):
    document = audited(tmp_path, [row(0, 0, 1.7e308), row(0, 1, 1.7e308)])
    assert document["reward"]["unmasked"] == pytest.approx(1.7e308)
    json.dumps(document, allow_nan=False)


def test_a_compressed_file_gives_the_same_audit(tmp_path):
    rows = [row(0, 0, 1.0), row(0, 1, 0.0, mask_sample=True, failure_kind="session_lost")]
    plain = audited(tmp_path, rows)
    packed = tmp_path / "rollouts2.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "rollouts.jsonl").read_bytes()))
    document = audit_files([packed]).to_json()
    for name in ("dispositions", "reward", "kinds", "by_agent", "cost", "safety"):
        assert document[name] == plain[name]


def test_one_path_instead_of_a_list_is_refused(tmp_path):
    with pytest.raises(ContractError, match="list"):
        audit_files(str(write(tmp_path, [])))


kinds = st.sampled_from([None, "judge_failed", "agent_timeout", "env:lost"])
random_rows = st.lists(
    st.one_of(
        st.builds(
            lambda task, rollout, reward, masked, kind, attempt, agent: row(
                task, rollout, reward, attempt=attempt, agent=agent, mask_sample=masked, failure_kind=kind
            ),
            st.integers(0, 2) | st.none(),
            st.integers(0, 2) | st.none(),
            st.sampled_from([0.0, 0.5, 1.0, None]),
            st.booleans(),
            kinds,
            st.integers(0, 2) | st.none(),
            st.sampled_from(["a", "b", None]),
        ),
        st.builds(
            failure, st.integers(0, 2), st.integers(0, 2), st.sampled_from(["judge_failed", "shutdown"])
        ),
    ),
    max_size=12,
)
keys = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from(["a", "b"])), max_size=10)


def closed(main, failures, expected):
    ledger = Ledger()
    for role, rows in (("main", main), ("failures", failures)):
        ledger.add([(row_of(each), line, 0) for line, each in enumerate(rows, 1)], run="r", role=role)
    ledger.expect([row_of(row(task, rollout, agent=agent)) for task, rollout, agent in expected], run="r")
    return close(ledger, Reader(ledger), Options())


@settings(max_examples=150, deadline=None)
@given(random_rows, random_rows, keys)
def test_the_dispositions_always_add_up_overall_and_in_every_part(main, failures, expected):
    audit = closed(main, failures, expected)
    document = audit.to_json()
    assert sum(document["dispositions"].values()) == document["expected"] == len(audit.resolved.rollouts)
    for name, count in document["dispositions"].items():
        assert sum(agent["dispositions"][name] for agent in document["by_agent"].values()) == count
    assert (
        sum(document["kinds"].values())
        == document["dispositions"]["masked"] + document["dispositions"]["failed"]
    )
    indexed = {
        (each["_ng_task_index"], each["_ng_rollout_index"])
        for each in main + failures
        if "_ng_task_index" in each and "_ng_rollout_index" in each
    }
    loose = (
        len(main)
        + len(failures)
        - sum("_ng_task_index" in each and "_ng_rollout_index" in each for each in main + failures)
    )
    missing = len({key[:2] for key in expected} - indexed)
    assert document["dispositions"]["unknown"] == max(0, missing - loose)
    assert document["expected"] == len(indexed) + loose + max(0, missing - loose)


@settings(max_examples=100, deadline=None)
@given(random_rows, random_rows, st.randoms(use_true_random=False))
def test_the_order_of_rows_of_different_attempts_does_not_matter(main, failures, chance: random.Random):
    distinct = {
        (each.get("_ng_task_index"), each.get("_ng_rollout_index"), each.get("_ng_attempt_index") or 0): each
        for each in main
    }
    ordered = list(distinct.values())
    shuffled = ordered[:]
    chance.shuffle(shuffled)
    first, second = closed(ordered, failures, []).to_json(), closed(shuffled, failures, []).to_json()
    for name in ("dispositions", "reward", "kinds", "by_agent", "pass_at", "rows"):
        assert first[name] == second[name]
