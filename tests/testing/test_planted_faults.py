"""Estimators with one planted fault each: the property that names the fault catches it, and it alone."""

from dataclasses import replace

import numpy as np
import pytest

from samplemask.testing import GrpoBatch, check_estimator, reference_advantage, reference_estimator


def correct(batch: GrpoBatch) -> np.ndarray:
    return reference_advantage(batch)


def valid_rows(batch: GrpoBatch) -> np.ndarray:
    return ~batch.masked_B & ~batch.padding_B


def members(batch: GrpoBatch) -> list[np.ndarray]:
    return [batch.group_B == group for group in dict.fromkeys(batch.group_B)]


def votes_before_it_is_masked(batch: GrpoBatch) -> np.ndarray:
    """The baseline over all rows, the mask afterwards: what NeMo-RL's loss multiplier does."""
    out = np.zeros(len(batch))
    finite = np.nan_to_num(batch.reward_B, nan=0.0, posinf=0.0, neginf=0.0)
    for member in members(batch):
        valid = member & valid_rows(batch)
        if valid.sum() >= 2:
            out[valid] = batch.reward_B[valid] - finite[member].mean()
    return out


def counts_as_zero(batch: GrpoBatch) -> np.ndarray:
    """A masked row enters the mean as a zero, whatever it holds."""
    out = np.zeros(len(batch))
    for member in members(batch):
        valid = member & valid_rows(batch)
        if valid.sum() >= 2:
            out[valid] = batch.reward_B[valid] - batch.reward_B[valid].sum() / member.sum()
    return out


def multiplies_by_zero(batch: GrpoBatch) -> np.ndarray:
    """Right for finite rewards; NaN * 0 is NaN."""
    out = np.zeros(len(batch))
    weight = valid_rows(batch).astype(float)
    for member in members(batch):
        valid = member & valid_rows(batch)
        if valid.sum() >= 2:
            mean = (batch.reward_B[member] * weight[member]).sum() / weight[member].sum()
            out[valid] = batch.reward_B[valid] - mean
    return out


def leaves_masked_rows_at_their_distance(batch: GrpoBatch) -> np.ndarray:
    """Right for the survivors; the masked row keeps reward - baseline."""
    out = correct(batch)
    for member in members(batch):
        valid, masked = member & valid_rows(batch), member & batch.masked_B
        if valid.sum() >= 2:
            out[masked] = batch.reward_B[masked] - batch.reward_B[valid].mean()
    return out


def multiplies_its_result_by_the_mask(batch: GrpoBatch) -> np.ndarray:
    """Right for the survivors; a masked NaN stays NaN, and so do the gradients that it reaches."""
    return correct(batch) + np.where(batch.masked_B, batch.reward_B, 0.0) * ~batch.masked_B


def trains_the_lone_survivor(batch: GrpoBatch) -> np.ndarray:
    """verl's singleton rule: one row alone keeps its raw reward."""
    out = correct(batch)
    for member in members(batch):
        valid = member & valid_rows(batch)
        if valid.sum() == 1:
            out[valid] = batch.reward_B[valid] + 1.0
    return out


def reads_groups_by_place(batch: GrpoBatch) -> np.ndarray:
    """The baseline of each run of neighbours with one id, not of the id."""
    before = [None, *batch.group_B[:-1]]
    runs = np.cumsum([group != last for group, last in zip(batch.group_B, before, strict=True)])
    return correct(replace(batch, group_B=runs.astype(object)))


def takes_groups_for_one_by_prefix(batch: GrpoBatch) -> np.ndarray:
    """Ids cut to 8 characters, as a display would."""
    return correct(batch.relabel(lambda group: str(group)[:8]))


def lets_padding_vote(batch: GrpoBatch) -> np.ndarray:
    """Scales by the rows of the batch, padding included."""
    return correct(batch) * (1 + batch.padding_B.sum())


def scales_by_the_number_of_groups(batch: GrpoBatch) -> np.ndarray:
    """A group that is masked as a whole still counts as a group."""
    lost = sum(bool(batch.masked_B[member].all()) for member in members(batch))
    return correct(batch) * (1 + lost)


def divides_by_the_valid_rows(batch: GrpoBatch) -> np.ndarray:
    """Global scale over the rows that train: 0 / 0 when there are none."""
    out = correct(batch)
    valid = valid_rows(batch)
    return out if valid.any() else out + np.float64(0.0) / valid.sum()


def raises_on_a_masked_batch(batch: GrpoBatch) -> np.ndarray:
    if batch.masked_B.all():
        raise ValueError("mean of no rows")
    return correct(batch)


def writes_into_its_input(batch: GrpoBatch) -> np.ndarray:
    out = correct(batch)
    batch.reward_B[batch.masked_B] = 0.0
    return out


def counts_every_row_of_a_session(batch: GrpoBatch) -> np.ndarray:
    return correct(replace(batch, session_B=np.arange(len(batch)).astype(object)))


def rounds_its_result(batch: GrpoBatch) -> np.ndarray:
    return correct(batch).astype(np.float32).astype(np.float64)


def divides_by_n(batch: GrpoBatch) -> np.ndarray:
    """A vectorised twin with the other standard deviation (ddof 0)."""
    out = np.zeros(len(batch))
    for member in members(batch):
        valid = member & valid_rows(batch)
        if valid.sum() >= 2 and np.ptp(batch.reward_B[valid]) > 0:
            reward = batch.reward_B[valid]
            out[valid] = (reward - reward.mean()) / reward.std()
    return out


FAULTS = [
    (votes_before_it_is_masked, {"deletion_equivalence", "masked_content_irrelevant"}),
    (counts_as_zero, {"deletion_equivalence"}),
    (multiplies_by_zero, {"masked_content_irrelevant"}),
    (leaves_masked_rows_at_their_distance, {"masked_rows_are_zero"}),
    (multiplies_its_result_by_the_mask, {"masked_rows_are_zero"}),
    (trains_the_lone_survivor, {"thin_group_silent"}),
    (reads_groups_by_place, {"row_permutation", "deletion_equivalence"}),
    (takes_groups_for_one_by_prefix, {"group_relabelling"}),
    (lets_padding_vote, {"padding_inert"}),
    (scales_by_the_number_of_groups, {"masked_group_inert"}),
    (divides_by_the_valid_rows, {"masked_batch_silent"}),
    (raises_on_a_masked_batch, {"masked_batch_silent"}),
    (writes_into_its_input, {"input_unchanged"}),
]


@pytest.mark.parametrize(("estimator", "properties"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_a_planted_fault_is_caught_by_the_property_that_names_it(estimator, properties):
    assert set(check_estimator(estimator).failed) == properties


def test_an_estimator_that_counts_rows_instead_of_rollouts_is_caught():
    report = check_estimator(counts_every_row_of_a_session, sessions=True)
    assert report.failed == ("sessions_vote_once",)


def test_an_estimator_that_changes_healthy_batches_is_caught():
    report = check_estimator(rounds_its_result, stock=correct)
    assert report.failed == ("healthy_batch_unchanged",)


def test_a_twin_that_disagrees_is_caught():
    report = check_estimator(reference_estimator(normalize=True), twin=divides_by_n)
    assert report.failed == ("twins_agree",)


@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_reference_estimators_pass_every_property(baseline, normalize):
    reference = reference_estimator(baseline=baseline, normalize=normalize)
    report = check_estimator(reference, stock=reference, twin=reference, sessions=True)
    assert report.failed == ()
    assert [finding.name for finding in report.findings if finding.skipped] == []
