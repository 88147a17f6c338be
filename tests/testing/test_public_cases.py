"""Every public fault report that is in reach, by kind; each test says which report it failed."""

import itertools
import json
import logging
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from samplemask import (
    ContractError,
    Disposition,
    MaskPolicy,
    OutageError,
    plan_rows,
    read_verdict,
    step_metrics,
)
from samplemask.audit import Options, audit_files
from samplemask.quality import Counting
from samplemask.testing import (
    GrpoBatch,
    advantage_examples,
    out_of_reach,
    padding_rows,
    public_cases,
    reference_advantage,
    reference_loss,
)
from samplemask.testing.cases import example_batch, numbers

ROOT = Path(__file__).resolve().parents[2]
TO_SIX_DIGITS = {"rel": 0, "abs": 2e-6}


def of(kind: str) -> list:
    examples = [(case, example) for case in public_cases(kind) for example in case.examples]
    names = [f"{case.id}-{number}" for number, (case, _) in enumerate(examples)]
    return [
        pytest.param(case, example, id=name) for (case, example), name in zip(examples, names, strict=True)
    ]


def estimate(name: str, batch: GrpoBatch, policy: MaskPolicy) -> np.ndarray:
    if name == "length_weighted":
        votes = plan_rows(batch.masked_B, batch.group_B, policy).votes_B
        weights = batch.length_B[votes]
        baseline = (batch.reward_B[votes] * weights).sum() / weights.sum()
        return np.where(votes, batch.reward_B - baseline, 0.0)
    baseline, normalize = name.removesuffix("_norm"), name.endswith("_norm")
    return reference_advantage(batch, baseline=baseline, normalize=normalize, policy=policy)


@pytest.mark.parametrize(
    "example", [pytest.param(each, id=f"{each.case.id}-{each.estimator}") for each in advantage_examples()]
)
def test_advantages_are_the_right_ones_and_not_those_reported(example):
    found = estimate(example.estimator, example.batch, MaskPolicy(**example.policy))
    assert found.tolist() == pytest.approx(example.expected.tolist(), **TO_SIX_DIGITS), example.case.report
    if example.wrong is not None:
        assert found.tolist() != pytest.approx(example.wrong.tolist(), abs=1e-3)


@pytest.mark.parametrize(("case", "example"), of("invariance"))
def test_what_a_masked_row_holds_changes_nothing(case, example):
    batch = example_batch(example)
    for name in example["estimators"]:
        found = [
            estimate(name, batch.with_masked_reward(value), MaskPolicy())[example["row"]]
            for value in numbers(example["replace"])
        ]
        assert len(set(found)) == 1, case.report
        assert found[0] == pytest.approx(example.get("value", found[0]), **TO_SIX_DIGITS)


@pytest.mark.parametrize(("case", "example"), of("verdict"))
def test_verdicts_are_read_as_they_should(case, example, caplog, monkeypatch):
    monkeypatch.setattr("samplemask.failure_kinds._reported", set())
    response = example["response"]
    if field := example.get("refused"):
        with pytest.raises(ContractError, match=f"^{field}: "):
            read_verdict(response)
        return
    verdict = read_verdict(response)
    assert {name: getattr(verdict, name) for name in example["verdict"]} == example["verdict"], case.report
    if "disposition" in example:
        assert Disposition.of(verdict, response) == example["disposition"]
    if example.get("warns"):
        assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize(("case", "example"), of("dispositions"))
def test_rollouts_are_accounted_for(case, example):
    found, kinds = Counter(), Counter()
    for row in example["rows"]:
        verdict = read_verdict(row["response"])
        found[Disposition.of(verdict, row["response"]).value] += row["count"]
        kinds[verdict.failure_kind] += row["count"] * verdict.mask_sample
    assert found == example["expected"], case.report
    assert {kind: count for kind, count in kinds.items() if count} == example["kinds"]


@pytest.mark.parametrize(("case", "example"), of("plan"))
def test_the_right_rows_train(case, example):
    repeated = [(flag, kind) for count, flag, kind in example.get("repeat", []) for _ in range(count)]
    masked = example.get("masked") or [flag for flag, _ in repeated]
    kinds = example.get("kinds") or [kind for _, kind in repeated] or None
    policy = MaskPolicy(**example.get("policy", {}))
    if outage := example.get("outage"):
        with pytest.raises(OutageError) as error:
            plan_rows(masked, example.get("groups"), policy, kinds)
        assert {name: getattr(error.value, name) for name in outage} == outage, case.report
        return
    plan = plan_rows(masked, example.get("groups"), policy, kinds)
    metrics = step_metrics(plan, [0.0] * len(masked), kinds)
    found = {
        "trains": plan.trains_B.astype(int).tolist(),
        "masked": plan.masked_B.astype(int).tolist(),
        "rows_trained": int(plan.trains_B.sum()),
        "thin_groups": plan.thin_groups,
        "dropped_groups": plan.dropped_groups,
        "no_signal_step": metrics.get("mask_sample/no_signal_step"),
    }
    assert {name: found[name] for name in example["expected"]} == example["expected"], case.report


@pytest.mark.parametrize(("case", "example"), of("metrics"))
def test_metrics_say_what_was_measured(case, example):
    masked = example["masked"]
    found = step_metrics(plan_rows(masked, None, MaskPolicy()), numbers(example["rewards"]))
    for name, value in example["expected"].items():
        assert found[f"mask_sample/{name}"] == pytest.approx(value, **TO_SIX_DIGITS), case.report
    assert not {f"mask_sample/{name}" for name in example.get("absent", [])} & found.keys()
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize(("case", "example"), of("loss"))
def test_losses_average_over_what_the_mask_keeps(case, example):
    loss, mask = numbers(example["loss"]), example["mask"]
    for mode, value in example["expected"].items():
        assert reference_loss(loss, mask, mode) == pytest.approx(value, abs=1e-6), case.report
        assert reference_loss(loss, np.zeros_like(mask), mode) is None
    for mode, gradient in example.get("gradient", {}).items():
        for row, token in itertools.product(range(len(loss)), range(len(loss[0]))):
            moved = np.array(loss)
            moved[row, token] += 1.0
            slope = reference_loss(moved, mask, mode) - reference_loss(loss, mask, mode)
            assert slope == pytest.approx(gradient[row][token])


@pytest.mark.parametrize(("case", "example"), of("padding"))
def test_padding_fills_the_batch_and_changes_nothing(case, example):
    rows = example["rows"]
    batch = GrpoBatch.of([row % 3 / 2 for row in range(rows)], groups=[f"p{row // 3}" for row in range(rows)])
    padded = batch.append(padding_rows(example["padded"] - rows))
    assert len(padded) == example["padded"], case.report
    assert all(len(padded) % factor == 0 for factor in example["multiple_of"])
    found = reference_advantage(padded)
    assert found[:rows].tolist() == reference_advantage(batch).tolist()
    assert found[rows:].tolist() == [0.0] * (example["padded"] - rows)
    assert np.count_nonzero(found) > 0


@pytest.mark.parametrize(("case", "example"), of("odds"))
def test_the_cost_of_a_policy_follows_from_the_plan(case, example):
    size, fails = example["group_size"], example["failure_probability"]
    dropped = lost = 0.0
    for masked in itertools.product([0, 1], repeat=size):
        chance = math.prod(fails if flag else 1 - fails for flag in masked)
        dropped += chance * plan_rows(masked, [0] * size, MaskPolicy(action="drop_group")).dropped_groups
        kept = plan_rows(masked, [0] * size, MaskPolicy(min_valid=1)).trains_B.sum()
        lost += chance * (size - int(kept)) / size
    assert dropped == pytest.approx(example["expected"]["groups_dropped"], abs=1e-5), case.report
    assert lost == pytest.approx(example["expected"]["rows_lost"])


@pytest.mark.parametrize(("case", "example"), of("audit"))
def test_an_audit_counts_every_rollout_once(case, example, tmp_path):
    main = tmp_path / "run.jsonl"
    main.write_text(example.get("text") or lines(example["main"]))
    if "failures" in example:
        (tmp_path / "run_failures.jsonl").write_text(lines(example["failures"]))
    options = dict(example["options"])
    counting = Counting(options.pop("failed", "zero"), options.pop("missing_as_zero", False))
    document = audit_files([main], options=Options(counting=counting, **options)).to_json()
    found = {
        "dispositions": document["dispositions"],
        "unmasked": document["reward"]["unmasked"],
        "reward_counted": document["reward_counted"],
        "kinds": document["kinds"],
        "pass_at": document["pass_at"],
        "stale": document["rows"]["stale_failures"],
        "unreadable": len(document["unreadable_lines"]),
    }
    assert {name: found[name] for name in example["expected"]} == example["expected"], case.report


def lines(rows: list) -> str:
    """Write rows in Gym's form."""
    written = []
    for row in rows:
        if isinstance(row, str):
            written.append(row)
            continue
        row = dict(row)
        keys = {"_ng_task_index": row.pop("task"), "_ng_rollout_index": row.pop("rollout", 0)}
        if "attempt" in row:
            keys["_ng_attempt_index"] = row.pop("attempt")
        if failure := row.pop("failure", None):
            row = {"_ng_failure_class": failure, "_ng_failure_terminal": True}
        written.append(json.dumps({**keys, **row}))
    return "\n".join(written) + "\n"


@pytest.mark.parametrize(("case", "example"), of("verl"))
def test_verl_columns_read_the_same_in_both_trainers(case, example):
    from samplemask_verl.verdicts import read_rows

    rows = len(example["masked"])
    place = example["samples"] if "samples" in example else example["columns"]
    verdicts = read_rows([place], np.zeros(rows))
    assert verdicts.masked_B.astype(int).tolist() == example["masked"], case.report
    assert list(verdicts.kinds_B) == example["kinds"]
    assert verdicts.stated is example.get("stated", True)


def test_each_of_the_60_reports_is_a_case_or_has_a_reason_and_more_are_cases():
    cases, others = public_cases(), out_of_reach()
    names = [each.id for each in (*cases, *others)]
    assert (len(cases), len(others), len(set(names))) == (67, 7, 74)
    assert sum(name.startswith("R") for name in names) == 60
    assert all(case.examples or case.kind == "host" for case in cases)
    assert all(len(other.why) > 40 for other in others)


def test_every_kind_of_case_is_tried_here():
    kinds = "advantages invariance verdict dispositions plan metrics loss padding odds audit verl host"
    assert {case.kind for case in public_cases()} == set(kinds.split())


@pytest.mark.parametrize(
    ("case", "test"),
    [(case, test) for case in public_cases() for test in case.also],
    ids=lambda value: str(value)[-60:],
)
def test_the_host_tests_that_cases_name_exist(case, test):
    path, _, function = test.partition("::")
    assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8")


def test_a_case_knows_the_address_of_its_report():
    (case,) = (case for case in public_cases() if case.id == "R01")
    assert case.url == "https://github.com/NVIDIA-NeMo/RL/issues/3467"
    assert out_of_reach()[0].url.startswith("https://github.com/")


def test_an_example_with_sessions_numbers_their_rows():
    batch = example_batch({"rewards": [1, 2, 3], "sessions": ["A", "A", "B"]})
    assert batch.order_B.tolist() == [0, 1, 0]
    assert replace(batch).session_B.tolist() == ["A", "A", "B"]
