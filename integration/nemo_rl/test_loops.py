"""Each of NeMo-RL's training loops, driven for a real step: who trains, on which advantages, what is logged."""

import bed
import pytest

MASKED = [2 / 3, 0.0, -1 / 3, -1 / 3]


def four(place="top", kind="session_lost"):
    """Rewards 1, 1, 0, 0 of one prompt; row 1 masked."""
    rows = [bed.response(1.0), bed.response(1.0, True, place, failure_kind=kind), bed.response(0.0), bed.response(0.0)]
    return [bed.result(row) for row in rows]


def run(path, parts, results, groups=1):
    loops = {
        "grpo_train": lambda: bed.run_grpo(parts, [results]),
        "async_grpo_train": lambda: bed.run_async_grpo(parts, results, groups),
        "grpo_train_sync": lambda: bed.run_grpo_sync(parts, [results]),
        "single_controller": lambda: bed.run_single_controller(parts, results, groups),
    }
    return loops[path]()


PATHS = ("grpo_train", "async_grpo_train", "grpo_train_sync", "single_controller")


@pytest.mark.parametrize("place", bed.PLACES)
@pytest.mark.parametrize("path", PATHS)
def test_a_masked_row_neither_trains_nor_votes_wherever_its_flag_stands(adapter, path, place):
    step = run(path, bed.components(1, 4), four(place))
    assert step.advantages == pytest.approx(MASKED)
    assert step.sample_mask == [1, 0, 1, 1]


@pytest.mark.parametrize("path", PATHS)
def test_normalised_advantages_use_the_standard_deviation_of_the_voters(adapter, path):
    step = run(path, bed.components(1, 4, estimator_options={"normalize_rewards": True}), four())
    assert step.advantages == pytest.approx([1.1547, 0, -0.57735, -0.57735], abs=1e-4)


@pytest.mark.parametrize("path", PATHS)
def test_metrics_say_how_many_rows_were_masked_and_why(adapter, path):
    metrics = run(path, bed.components(1, 4), four()).metrics
    assert {name: value for name, value in metrics.items() if name.startswith("mask_sample/")} == {
        "mask_sample/masked_pct": 25.0,
        "mask_sample/reward": 0.5,
        "mask_sample/reward_unmasked": pytest.approx(1 / 3),
        "mask_sample/rows_trained": 3.0,
        "mask_sample/groups_dropped": 0.0,
        "mask_sample/groups_thin": 0.0,
        "mask_sample/no_signal_step": 0.0,
        "mask_sample/kind/session_lost": 1.0,
    }
