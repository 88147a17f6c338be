"""Dynamic sampling filters by the rows that vote, and replaces the groups that give no signal."""

import bed
import pytest

PATHS = ("grpo_train", "grpo_train_sync")
WITH_SIGNAL = ([1.0, 0.0, 0.0, 0.0], ())


def run(path, batches, mask_sample=None):
    """`batches` are (rewards, masked rows) of one prompt each, generated one after the other."""
    parts = bed.components(1, 4, mask_sample, use_dynamic_sampling=True, dynamic_sampling_max_gen_batches=5)
    results = [bed.batch_of(rewards, masked) for rewards, masked in batches]
    step = bed.run_grpo(parts, results) if path == "grpo_train" else bed.run_grpo_sync(parts, results)
    return step, step.metrics["dynamic_sampling_num_gen_batches"]


@pytest.mark.parametrize("path", PATHS)
def test_a_group_that_differs_only_by_a_masked_zero_is_replaced(adapter, path):
    step, generated = run(path, [([1.0, 1.0, 1.0, 0.0], {3}), WITH_SIGNAL])
    assert generated == 2
    assert step.advantages == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_stock_nemo_rl_keeps_that_group_and_trains_on_it():
    step, generated = run("grpo_train", [([1.0, 1.0, 1.0, 0.0], {3}), WITH_SIGNAL])
    assert generated == 1
    assert step.advantages == pytest.approx([0.25, 0.25, 0.25, -0.75])


@pytest.mark.parametrize("path", PATHS)
def test_a_masked_row_follows_its_group(adapter, path):
    step, generated = run(path, [([1.0, 5.0, 0.0, 0.0], {1})])
    assert generated == 1
    assert step.sample_mask == [1, 0, 1, 1]
    assert step.advantages == pytest.approx([2 / 3, 0.0, -1 / 3, -1 / 3])


@pytest.mark.parametrize("path", PATHS)
def test_fully_masked_thin_and_dropped_groups_are_replaced(adapter, path):
    policy = {"action": "drop_group", "drop_group_above": 0.3}
    batches = [
        ([1.0, 0.0, 1.0, 0.0], {0, 1, 2, 3}),
        ([1.0, 0.0, 1.0, 0.0], {0, 1, 2}),
        ([1.0, 0.0, 1.0, 0.0], {0, 1}),
        WITH_SIGNAL,
    ]
    step, generated = run(path, batches, policy)
    assert generated == 4
    assert step.sample_mask == [1, 1, 1, 1]
    assert step.metrics["mask_sample/groups_dropped"] == 3.0
    assert step.metrics["mask_sample/masked_pct"] == 100 * 9 / 16
    assert step.metrics["mask_sample/rows_trained"] == 4.0


@pytest.mark.parametrize("path", PATHS)
def test_the_logged_baseline_is_that_of_the_voting_rows(adapter, path):
    step, _ = run(path, [([1.0, 9.0, 1.0, 0.0], {1})])
    assert step.metrics["baseline_reward/pct_1"] == 0.0
    assert step.metrics["baseline_reward/pct_mixed"] == 100.0
