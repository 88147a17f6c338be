"""Whole V1 runs of the real verl trainer: groups are replaced; an environment that stays down ends it."""

from collections import Counter

import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
from cpu_bed.run import run_trainer

pytestmark = pytest.mark.slow

MODES = pytest.mark.parametrize("mode", ["sync", "colocate_async"])
DROPS = "+algorithm.mask_sample.action=drop_group"
TWO_GROUPS = ("data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2")
FAILS_A_THIRD = {"fail_fraction": 0.33, "failed_reward": 7.0}


@MODES
def test_no_masked_row_reaches_the_actor_when_groups_with_one_are_replaced(tmp_path, mode):
    run = run_trainer(
        tmp_path,
        *TWO_GROUPS,
        f"trainer.v1.trainer_mode={mode}",
        DROPS,
        "+algorithm.mask_sample.max_refills=60",
        environment=FAILS_A_THIRD,
    ).check()
    assert "extra_fields" not in run.fields_read()  # groups were judged by their tags
    assert all(isinstance(tag["samplemask"], float) for tag in run.tags())
    (mini_batch,) = run.actor()
    assert all(mask > 0 for mask in mini_batch["loss_mask"])
    assert set(Counter(mini_batch["uid"]).values()) == {4}
    assert max(mini_batch["reward"]) <= 1.0  # a failed rollout's stand-in is 7
    metrics = run.steps[-1]
    assert metrics["mask_sample/refilled/groups"] > 0
    assert metrics["mask_sample/refilled/rows"] == 4 * metrics["mask_sample/refilled/groups"]
    counted = {
        name: value for name, value in metrics.items() if name.startswith("mask_sample/refilled/kind/")
    }
    assert sum(counted.values()) == metrics["mask_sample/refilled/masked_rows"]
    failed = sum(row["failed"] for row in run.rollouts)
    if mode == "sync":  # async has more groups under way when the step ends
        assert metrics["mask_sample/refilled/masked_rows"] == failed
    else:
        assert metrics["mask_sample/refilled/masked_rows"] <= failed


@MODES
def test_thin_groups_are_replaced_until_every_group_has_min_valid_rows(tmp_path, mode):
    run = run_trainer(
        tmp_path,
        *TWO_GROUPS,
        f"trainer.v1.trainer_mode={mode}",
        "+algorithm.mask_sample.max_refills=60",
        environment={**FAILS_A_THIRD, "fail_prompts": [0, 1]},
    ).check()
    (mini_batch,) = run.actor()
    training = Counter(
        uid for uid, mask in zip(mini_batch["uid"], mini_batch["loss_mask"], strict=True) if mask > 0
    )
    assert set(training) == set(mini_batch["uid"])
    assert min(training.values()) >= 2
    metrics = run.steps[-1]
    assert metrics["mask_sample/refilled/groups"] >= 2
    assert metrics.get("mask_sample/groups_thin", 0.0) == 0.0


@MODES
def test_an_environment_that_is_down_for_good_ends_the_run_within_the_bound(tmp_path, mode):
    run = run_trainer(
        tmp_path,
        *TWO_GROUPS,
        f"trainer.v1.trainer_mode={mode}",
        "+algorithm.mask_sample.max_refills=6",
        environment={"fail_fraction": 1.0},
    )
    assert run.returncode not in (0, None)
    assert "RefillError" in run.output
    assert "more than max_refills=6 allows" in run.output
    assert "session_lost: " in run.output
    assert run.steps == []
    assert run.mini_batches == []


@MODES
def test_a_batch_that_is_mostly_masked_ends_the_run_with_the_counts_per_kind(tmp_path, mode):
    run = run_trainer(
        tmp_path,
        f"trainer.v1.trainer_mode={mode}",
        "+algorithm.mask_sample.max_masked_fraction=0.5",
        "+algorithm.mask_sample.outage_min_rows=8",
        environment={"fail_fraction": 0.9},
    )
    assert run.returncode not in (0, None)
    assert "OutageError" in run.output
    assert run.mini_batches == []
