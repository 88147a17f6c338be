"""Reward components of real NeMo-RL: what was not measured reaches gdpo as NaN, and fails no batch."""

import bed
import pytest
import torch


def columns(*responses):
    """The batch that NeMo-RL's own rollout code makes of verify responses."""
    parts = bed.components(1, len(responses))
    (group,) = bed.rollout_groups(parts, [bed.result(response) for response in responses], 1)
    return group.final_batch


def response(reward, masked=False, **components):
    return bed.response(reward, masked, reward_components=components)


@pytest.mark.parametrize("nothing", [None, float("nan"), float("inf"), "1_0", "n/a", [], "inf"])
def test_a_component_without_a_number_is_not_measured_and_the_others_are(adapter, nothing):
    batch = columns(
        response(1.0, a=1.0, b=0.0), response(0.5, a=0.5, b=nothing), response(0.75, a=0.5, b=0.25)
    )
    assert batch["reward/a"].tolist() == [1.0, 0.5, 0.5]
    assert batch["reward/b"].isnan().tolist() == [False, True, False]
    assert batch["reward/b"][[0, 2]].tolist() == [0.0, 0.25]
    assert batch["total_reward"].tolist() == [1.0, 0.5, 0.75]


def test_the_components_of_a_masked_row_need_not_add_up_and_are_not_measured(adapter):
    batch = columns(response(1.0, a=1.0, b=0.0), response(0.0, True, a=7.0, b=5.0), response(0.5, a=0.5))
    assert batch["reward/a"].isnan().tolist() == [False, True, False]
    assert batch["reward/b"].isnan().tolist() == [False, True, False]
    assert batch["mask_sample"].tolist() == [False, True, False]


def test_numbers_as_text_and_missing_names_are_read_as_nemo_rl_reads_them(adapter):
    batch = columns(response(1.5, a="1.5"), response(0.5, a=0.25, b=0.25), bed.response(0.0))
    assert batch["reward/a"].tolist() == [1.5, 0.25, 0.0]
    assert batch["reward/b"].tolist() == [0.0, 0.25, 0.0]


def test_components_of_a_measured_row_that_do_not_add_up_are_still_nemo_rls_error(adapter):
    with pytest.raises(ValueError, match="reward_components sum to"):
        columns(response(1.0, a=0.25, b=0.25), response(0.0, a=0.0, b=0.0))


def test_stock_nemo_rl_fails_the_batch_for_one_component_without_a_number():
    with pytest.raises((TypeError, ValueError)):
        columns(response(1.0, a=1.0, b=0.0), response(0.5, a=0.5, b=None))


def test_a_group_with_unmeasured_components_trains_on_what_was_measured(adapter):
    parts = bed.components(1, 4, estimator="gdpo")
    results = [
        bed.result(response(1.0, a=1.0, b=0.0)),
        bed.result(response(1.0, a=0.0, b=1.0)),
        bed.result(response(1.0, a=None, b=1.0)),
        bed.result(response(0.5, a=0.5, b=0.0)),
    ]
    step = bed.run("grpo_train", parts, results)
    # Means over the rows that have a value: a 0.5, b 0.5. Row 2 has only b.
    together = torch.tensor([0.5 - 0.5, -0.5 + 0.5, 0.5, 0.0 - 0.5])
    expected = (together - together.mean()) / together.std()
    assert step.advantages == pytest.approx(expected.tolist(), abs=1e-5)
    assert step.sample_mask == [1, 1, 1, 1]
    assert {name: value for name, value in step.metrics.items() if name.startswith("mask_sample")} == {
        "mask_sample/components_unmeasured": 1.0
    }
