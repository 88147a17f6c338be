"""NeMo-RL's PPO loops, driven for a real step: masked rows have no loss and do not move the whitening."""

import bed
import bed_ppo
import pytest
import torch

PATHS = ("sync", "async")


def run(path, results, groups=1, mask_sample=None):
    generations = len(results) // groups
    parts = bed_ppo.components(groups, generations, mask_sample, asynchronous=path == "async")
    return bed_ppo.run(parts, results) if path == "sync" else bed_ppo.run_async(parts, results, groups)


def rollouts(rewards, masked, place="top", groups=1):
    rows = [
        bed.response(reward, row in masked, place, failure_kind="judge_failed" if row in masked else None)
        for row, reward in enumerate(rewards)
    ]
    return [bed.result(row, (1 + index * groups // len(rows), 2, 3)) for index, row in enumerate(rows)]


@pytest.mark.parametrize("place", bed.PLACES)
@pytest.mark.parametrize("path", PATHS)
def test_a_masked_row_does_not_train_wherever_its_flag_stands(adapter, path, place):
    step = run(path, rollouts([1.0, 1.0, 0.0, 0.0], {1}, place))
    assert step.sample_mask == [1, 0, 1, 1]
    assert step.advantages[1] == 0
    assert step.metrics["mask_sample/masked_pct"] == 25.0
    assert step.metrics["mask_sample/kind/judge_failed"] == 1.0
    assert step.metrics["mask_sample/rows_trained"] == 3.0


@pytest.mark.parametrize("path", PATHS)
def test_advantages_and_returns_are_those_of_a_batch_without_the_masked_row(adapter, path):
    whole = run(path, rollouts([1.0, 1e6, 0.25, 0.0], {1})).data
    without = run(path, rollouts([1.0, 0.25, 0.0], set())).data
    for name in ("advantages", "returns"):
        assert torch.equal(whole[name][[0, 2, 3]], without[name]), name


@pytest.mark.parametrize("path", PATHS)
def test_drop_group_takes_the_siblings_out_too(adapter, path):
    step = run(path, rollouts([1.0, 1.0, 0.0, 0.0], {1}, groups=2), 2, {"action": "drop_group"})
    assert step.sample_mask == [0, 0, 1, 1]
    assert step.metrics["mask_sample/groups_dropped"] == 1.0


@pytest.mark.parametrize("path", PATHS)
def test_a_fully_masked_batch_passes_with_no_row_in_the_loss(adapter, path):
    step = run(path, rollouts([1.0, 0.0], {0, 1}))
    assert step.sample_mask == [0, 0]
    assert step.advantages == [0, 0]
    assert step.metrics["mask_sample/no_signal_step"] == 1.0


@pytest.mark.parametrize("path", PATHS)
def test_a_healthy_step_publishes_no_new_metric(adapter, path):
    metrics = run(path, rollouts([1.0, 0.0], set())).metrics
    assert not [name for name in metrics if name.startswith("mask_sample/")]
