"""The suite itself: what it says, what it skips, and that its failing batches are small."""

import numpy as np
import pytest

from samplemask import ContractError
from samplemask.testing import (
    PROPERTIES,
    ConformanceError,
    GrpoBatch,
    check_estimator,
    conformance_batches,
    reference_advantage,
    reference_estimator,
)


def stock_grpo(batch):
    out = np.zeros(len(batch))
    for group in set(batch.group_B):
        member = batch.group_B == group
        out[member] = batch.reward_B[member] - batch.reward_B[member].mean()
    return out


def test_stock_grpo_fails_deletion_equivalence_with_the_smallest_batch():
    report = check_estimator(stock_grpo)
    assert "deletion_equivalence" in report.failed
    finding = report["deletion_equivalence"]
    assert len(finding.batch) == 3
    assert finding.batch.masked_B.sum() == 1
    assert finding.problem == "row 1 got -0.333333, not 0, which it gets when the other rows are deleted"


def test_the_report_shows_the_property_the_sentence_and_the_batch():
    text = str(check_estimator(stock_grpo, name="stock grpo"))
    assert text.splitlines()[0] == "stock grpo: 5 of 10 properties hold"
    assert "FAIL  deletion_equivalence: row 1 got -0.333333, not 0" in text
    assert "      Rows that train get what they get when the other rows are deleted.\n" in text
    assert "      row  group     reward    masked  tokens\n" in text
    assert "      0    g         1         yes     2\n" in text
    assert "-     twins_agree: not tried (no twin was given)" in text


def test_a_report_is_true_when_everything_holds():
    assert check_estimator(reference_estimator())
    assert not check_estimator(stock_grpo)


def test_raise_if_failed_shows_the_report():
    check_estimator(reference_estimator()).raise_if_failed()
    with pytest.raises(ConformanceError, match="FAIL  deletion_equivalence") as error:
        check_estimator(stock_grpo).raise_if_failed()
    assert isinstance(error.value, AssertionError)


def test_properties_can_be_skipped_by_name():
    report = check_estimator(stock_grpo, skip=["deletion_equivalence"])
    assert report["deletion_equivalence"].skipped == "skipped by the caller"
    assert not report["deletion_equivalence"].holds
    report = check_estimator(stock_grpo, skip={"padding_inert": "no padding here"})
    assert report["padding_inert"].skipped == "no padding here"
    with pytest.raises(ContractError, match=r"^skip: expected some of .*\['deletion'\]"):
        check_estimator(stock_grpo, skip=["deletion"])


def test_what_cannot_be_tried_says_why():
    report = check_estimator(reference_estimator())
    assert report["twins_agree"].skipped == "no twin was given"
    assert report["healthy_batch_unchanged"].skipped == "no stock estimator was given"
    assert report["sessions_vote_once"].skipped == "the estimator does not read sessions"
    alone = check_estimator(
        reference_estimator(), group_relative=False, skip=PROPERTIES.keys() - {"thin_group_silent"}
    )
    assert alone["thin_group_silent"].skipped == "the estimator has no groups"


def test_an_estimator_that_raises_fails_with_its_error():
    def broken(batch):
        raise RuntimeError("no GPU")

    report = check_estimator(broken)
    assert report["row_permutation"].problem == "raised RuntimeError: no GPU"
    assert len(report["row_permutation"].batch) == 1


@pytest.mark.parametrize("shape", [lambda batch: np.zeros(len(batch) + 1), lambda batch: 0.0])
def test_an_estimator_that_returns_another_number_of_rows_fails(shape):
    assert "the estimator returned shape" in check_estimator(shape)["row_permutation"].problem


def test_token_level_advantages_are_accepted():
    def per_token(batch):
        return reference_advantage(batch)[:, None] * batch.response_mask()

    assert check_estimator(per_token)


def test_torch_advantages_are_accepted():
    torch = pytest.importorskip("torch")

    def with_gradient(batch):
        return torch.tensor(reference_advantage(batch), requires_grad=True)

    assert check_estimator(with_gradient)


def test_an_estimator_without_groups_trains_lone_survivors():
    def raw(batch):
        return np.where(batch.masked_B | batch.padding_B, 0.0, batch.reward_B)

    assert check_estimator(raw, group_relative=False)
    assert check_estimator(raw).failed == ("thin_group_silent",)


def test_a_larger_minimum_is_asked_for():
    assert "thin_group_silent" in check_estimator(reference_estimator(), min_valid=3).failed


def test_exact_asks_for_every_bit():
    def nearly(batch):
        return reference_advantage(batch) * (1 + 1e-9 * bool(batch.masked_B.any()))

    assert check_estimator(nearly)
    assert "deletion_equivalence" in check_estimator(nearly, exact=True).failed


def test_own_batches_can_be_given():
    healthy = [GrpoBatch.of([1.0, 0.0])]
    assert "deletion_equivalence" not in check_estimator(stock_grpo, batches=healthy).failed


def test_the_built_in_batches_are_not_all_alike():
    batches = list(conformance_batches())
    assert len(batches) == 15
    assert any(not batch.masked_B.any() for batch in batches) is False
    assert any(len(set(batch.group_B)) > 3 for batch in batches)
    trained = [~batch.masked_B & (batch.group_B == batch.group_B[0]) for batch in batches]
    assert any(member.sum() == 1 for member in trained)


def test_a_property_has_a_name_and_a_sentence():
    assert len(PROPERTIES) == 13
    for name, each in PROPERTIES.items():
        assert each.name == name
        assert each.says.endswith(".")
