"""A run's own account agrees exactly with the audit of the files that it wrote."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_files import audited, failure, row

from samplemask import MaskPolicy, plan_rows, read_verdict
from samplemask.accounting import StepCounts
from samplemask.live import RunAccount


def a_run(seed):
    chance = random.Random(seed)
    rows = []
    for number in range(chance.randint(1, 80)):
        draw = chance.random()
        place = {"task": number // 4, "rollout": number % 4}
        if draw < 0.6:
            rows.append(row(**place, reward=chance.random(), agent=chance.choice(["a", "b"])))
        elif draw < 0.8:
            kind = chance.choice(["session_lost", None])
            rows.append(row(**place, reward=chance.random(), agent="a", mask_sample=True, failure_kind=kind))
        elif draw < 0.9:
            rows.append(failure(**place, agent="b"))
        else:
            rows.append(row(**place, error="HTTP 500, no body"))
    return rows


def recorded(rows):
    account = RunAccount()
    for each in rows:
        account.record(
            read_verdict(each),
            task=each["_ng_task_index"],
            rollout=each["_ng_rollout_index"],
            agent=each.get("agent_ref", {}).get("name"),
            error=each.get("error"),
        )
    return account


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_the_account_of_a_run_is_the_audit_of_its_files(tmp_path_factory, seed):
    rows = a_run(seed)
    document = audited(tmp_path_factory.mktemp("run"), rows)
    account = recorded(rows)
    assert account.summary().to_json() == {name: document[name] for name in account.summary().to_json()}
    metrics = account.metrics()
    assert metrics.get("mask_sample/run/reward_unmasked") == document["reward"]["unmasked"]
    for name, count in document["dispositions"].items():
        assert metrics[f"mask_sample/run/{name}"] == count
    for kind, count in document["kinds"].items():
        assert metrics[f"mask_sample/run/kind/{kind}"] == count


def test_steps_that_are_counted_one_by_one_add_up_to_the_audit(tmp_path):
    rows = [row(number // 4, number % 4, number / 8, mask_sample=number % 5 == 0) for number in range(32)]
    counts, account = StepCounts(), RunAccount()
    for start in range(0, 32, 8):
        verdicts = [read_verdict(each) for each in rows[start : start + 8]]
        plan = plan_rows([verdict.mask_sample for verdict in verdicts], None, MaskPolicy())
        counts += StepCounts.of(plan, [verdict.reward for verdict in verdicts])
        account.record_step(verdicts)
    document = audited(tmp_path, rows)
    assert counts.masked == document["dispositions"]["masked"] == account.summary().coverage.masked
    assert abs(counts.reward_unmasked[0] - document["reward"]["unmasked"]) < 1e-12
    assert account.summary().reward["unmasked"] == document["reward"]["unmasked"]


def test_a_retry_is_settled_while_the_run_goes_on():
    account = RunAccount()
    account.record(read_verdict(failure(0, 0)), task=0, rollout=0)
    assert account.metrics()["mask_sample/run/failed"] == 1
    account.record(read_verdict({"reward": 1.0}), task=0, rollout=0, attempt=1)
    assert account.metrics()["mask_sample/run/failed"] == 0
    assert account.metrics()["mask_sample/run/reward_unmasked"] == 1.0


def test_a_collector_that_died_shows_as_unknown_rollouts():
    account = RunAccount()
    account.record_step([read_verdict({"reward": 1.0})] * 3)
    account.expect(8, omitted=1)
    metrics = account.metrics()
    assert (metrics["mask_sample/run/unknown"], metrics["mask_sample/run/omitted"]) == (4, 1)


def test_a_run_without_a_measurement_has_no_mean():
    account = RunAccount()
    account.record_step([read_verdict({"reward": 0.0, "mask_sample": True})], agents=["a"])
    assert "mask_sample/run/reward_unmasked" not in account.metrics()
