"""The storm of the public run at small scale, in the real verl trainer: most of one step is lost."""

from collections import Counter

import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
from cpu_bed.run import run_trainer

GROUP, BATCH, STEPS, STORMY = 4, 16, 4, 3
# The data come in order, four prompts a step: these are the third step's.
PROMPTS = [8, 9, 10, 11]
STORM = {"storm_prompts": PROMPTS, "storm_fraction": 0.8}
SKIP = tuple(
    f"+algorithm.mask_sample.{option}"
    for option in ("max_masked_fraction=0.5", "outage_min_rows=8", "on_outage=skip_step")
)


def stormed(folder, *overrides, **options):
    folder.mkdir()
    run = run_trainer(folder, *overrides, steps=STEPS, environment=STORM, **options).check()
    storm = [row for row in run.rollouts if row["prompt"] in map(str, PROMPTS) and row["split"] == "train"]
    lost = sum(row["failed"] for row in storm)
    assert len(storm) == BATCH
    assert 0.5 * BATCH < lost < BATCH
    assert sum(row["failed"] for row in run.rollouts) == lost  # nothing fails before or after
    assert len(run.steps) == STEPS
    return run, storm, lost


@pytest.mark.slow
def test_stock_verl_trains_on_every_lost_rollout_of_the_storm(tmp_path):
    run, _, _ = stormed(tmp_path / "stock", samplemask=False)
    assert len(run.actor()) == STEPS
    assert all(mask > 0 for mask in run.actor()[STORMY - 1]["loss_mask"])


@pytest.mark.slow
def test_with_samplemask_only_measured_rollouts_of_the_storm_train(tmp_path):
    run, storm, lost = stormed(tmp_path / "exclude")
    scored = Counter(row["prompt"] for row in storm if not row["failed"])
    training = sum(count for count in scored.values() if count >= 2)
    metrics = run.steps[STORMY - 1]
    assert metrics["mask_sample/masked_pct"] == pytest.approx(100 * lost / BATCH)
    assert metrics["mask_sample/rows_trained"] == training
    assert metrics["mask_sample/no_signal_step"] == (training == 0)
    assert len(run.actor()) == STEPS - (training == 0)
    for step, healthy in enumerate(run.steps, start=1):
        assert step == STORMY or "mask_sample/masked_pct" not in healthy


@pytest.mark.slow
def test_a_storm_that_is_an_outage_is_skipped_and_the_run_goes_on(tmp_path):
    run, _, _ = stormed(tmp_path / "skip", *SKIP)
    assert run.steps[STORMY - 1]["mask_sample/rows_trained"] == 0
    assert run.steps[STORMY - 1]["mask_sample/no_signal_step"] == 1.0
    assert len(run.actor()) == STEPS - 1
    assert all(mask > 0 for mini_batch in run.actor() for mask in mini_batch["loss_mask"])
