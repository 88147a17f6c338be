"""Each of NeMo-RL's GRPO loops, driven for a real step: who trains, on which advantages, what is logged."""

import bed
import pytest
import torch

ONE_MASKED = ([1.0, 1.0, 0.0, 0.0], {1})
every_path = pytest.mark.parametrize("path", bed.PATHS)


def test_the_stock_loop_lets_a_masked_row_vote_and_ignores_the_top_level():
    nested = bed.run("grpo_train", bed.components(1, 4), bed.batch_of(*ONE_MASKED, place="nested"))
    top = bed.run("grpo_train", bed.components(1, 4), bed.batch_of(*ONE_MASKED, place="top"))
    assert (nested.advantages, nested.sample_mask) == ([0.5, 0.5, -0.5, -0.5], [1, 0, 1, 1])
    assert (top.advantages, top.sample_mask) == ([0.5, 0.5, -0.5, -0.5], [1, 1, 1, 1])


@pytest.mark.parametrize("place", bed.PLACES)
@every_path
def test_a_masked_row_neither_trains_nor_votes_wherever_its_flag_stands(adapter, path, place):
    step = bed.run(path, bed.components(1, 4), bed.batch_of(*ONE_MASKED, place=place))
    assert step.advantages == pytest.approx([2 / 3, 0.0, -1 / 3, -1 / 3])
    assert step.sample_mask == [1, 0, 1, 1]


@every_path
def test_normalised_advantages_use_the_standard_deviation_of_the_voters(adapter, path):
    parts = bed.components(1, 4, estimator_options={"normalize_rewards": True})
    step = bed.run(path, parts, bed.batch_of(*ONE_MASKED))
    assert step.advantages == pytest.approx([1.1547, 0, -0.57735, -0.57735], abs=1e-4)


@every_path
def test_metrics_say_how_many_rows_were_masked_and_why(adapter, path):
    metrics = bed.run(path, bed.components(1, 4), bed.batch_of(*ONE_MASKED)).metrics
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


@every_path
def test_the_account_of_the_run_goes_on_over_its_steps(adapter, path):
    parts = bed.components(1, 4)
    metrics = bed.run(path, parts, bed.batch_of(*ONE_MASKED)).metrics
    assert {name: value for name, value in metrics.items() if name.startswith("mask_sample_run/")} == {
        "mask_sample_run/scored": 3.0,
        "mask_sample_run/masked": 1.0,
        "mask_sample_run/failed": 0.0,
        "mask_sample_run/reward": 0.5,
        "mask_sample_run/reward_unmasked": 1 / 3,
        "mask_sample_run/kind/session_lost": 1.0,
    }


@every_path
def test_a_healthy_step_has_the_stock_values_and_no_new_metric(adapter, path):
    step = bed.run(path, bed.components(1, 4), bed.batch_of([1.0, 1.0, 0.0, 0.0]))
    assert (step.advantages, step.sample_mask) == ([0.5, 0.5, -0.5, -0.5], [1, 1, 1, 1])
    assert not [name for name in step.metrics if name.startswith("mask_sample/")]


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf")])
@every_path
def test_a_rollout_without_a_finite_reward_is_masked_and_never_becomes_a_zero(adapter, path, reward):
    step = bed.run(path, bed.components(1, 4), bed.batch_of([1.0, reward, 0.0, 0.0]))
    assert step.advantages == pytest.approx([2 / 3, 0.0, -1 / 3, -1 / 3])
    assert step.sample_mask == [1, 0, 1, 1]
    assert step.metrics["mask_sample/reward_unmasked"] == pytest.approx(1 / 3)


@every_path
def test_a_group_with_one_voter_is_thin_and_none_of_its_rows_trains(adapter, path):
    results = bed.batch_of([1.0, 1.0, 0.0, 1.0, 0.0, 0.0], {0, 1}, groups=2)
    step = bed.run(path, bed.components(2, 3), results, groups=2)
    assert step.sample_mask == [0, 0, 0, 1, 1, 1]
    assert step.advantages == pytest.approx([0, 0, 0, 2 / 3, -1 / 3, -1 / 3])
    assert step.metrics["mask_sample/groups_thin"] == 1.0
    assert step.metrics["mask_sample/rows_trained"] == 3.0


@every_path
def test_drop_group_takes_the_siblings_out_too(adapter, path):
    results = bed.batch_of([1.0, 1.0, 0.0, 1.0, 0.0, 0.0], {0}, groups=2)
    step = bed.run(path, bed.components(2, 3, {"action": "drop_group"}), results, groups=2)
    assert step.sample_mask == [0, 0, 0, 1, 1, 1]
    assert step.metrics["mask_sample/groups_dropped"] == 1.0


@every_path
def test_loss_multiplier_lets_masked_rows_vote_as_nemo_rl_does_by_itself(adapter, path):
    parts = bed.components(1, 4, {"action": "loss_multiplier"})
    step = bed.run(path, parts, bed.batch_of(*ONE_MASKED))
    assert step.sample_mask == [1, 0, 1, 1]
    assert step.advantages == [0.5, 0.0, -0.5, -0.5]


@every_path
def test_ignore_changes_nothing(adapter, path):
    step = bed.run(path, bed.components(1, 4, {"action": "ignore"}), bed.batch_of(*ONE_MASKED))
    assert (step.advantages, step.sample_mask) == ([0.5, 0.5, -0.5, -0.5], [1, 1, 1, 1])
    assert not [name for name in step.metrics if name.startswith("mask_sample/")]


@pytest.mark.parametrize("place", bed.PLACES)
@every_path
def test_nemo_rls_own_switch_turns_masking_off_on_every_path(adapter, path, place, caplog):
    parts = bed.components(1, 4)
    parts["master_config"].env["should_mask_flagged_samples"] = False
    with caplog.at_level("INFO", "samplemask"):
        step = bed.run(path, parts, bed.batch_of(*ONE_MASKED, place=place))
    assert (step.advantages, step.sample_mask) == ([0.5, 0.5, -0.5, -0.5], [1, 1, 1, 1])
    assert caplog.text.count("env.should_mask_flagged_samples is false, so no row is masked") == 1


@every_path
def test_a_scored_kind_trains_and_votes_although_masked(adapter, path):
    results = bed.batch_of(*ONE_MASKED, kind="agent_timeout")
    step = bed.run(path, bed.components(1, 4, {"scored_kinds": ["agent_timeout"]}), results)
    assert (step.advantages, step.sample_mask) == ([0.5, 0.5, -0.5, -0.5], [1, 1, 1, 1])


@every_path
def test_a_masked_kind_masks_although_the_environment_did_not(adapter, path):
    rows = [
        bed.response(1.0),
        bed.response(1.0, failure_kind="judge_failed"),
        bed.response(0.0),
        bed.response(0.0),
    ]
    parts = bed.components(1, 4, {"masked_kinds": ["judge_failed"]})
    step = bed.run(path, parts, [bed.result(row) for row in rows])
    assert step.advantages == pytest.approx([2 / 3, 0.0, -1 / 3, -1 / 3])
    assert step.metrics["mask_sample/kind/judge_failed"] == 1.0


@every_path
def test_an_outage_raises_and_names_the_kinds(adapter, path):
    from samplemask import OutageError

    policy = {"max_masked_fraction": 0.2, "outage_min_rows": 4}
    with pytest.raises(OutageError, match=r"1 of 4 rollouts .* session_lost: 1"):
        bed.run(path, bed.components(1, 4, policy), bed.batch_of(*ONE_MASKED))


@every_path
def test_an_outage_that_skips_the_step_leaves_no_row_in_the_loss(adapter, path):
    policy = {"max_masked_fraction": 0.2, "outage_min_rows": 4, "on_outage": "skip_step"}
    step = bed.run(path, bed.components(1, 4, policy), bed.batch_of(*ONE_MASKED))
    assert (step.advantages, step.sample_mask) == ([0, 0, 0, 0], [0, 0, 0, 0])
    assert step.metrics["mask_sample/no_signal_step"] == 1.0


@pytest.mark.parametrize("estimator", ["grpo", "reinforce_plus_plus"])
@every_path
def test_a_fully_masked_batch_gives_zeros_not_nan(adapter, path, estimator):
    step = bed.run(
        path, bed.components(1, 4, estimator=estimator), bed.batch_of([1.0, 1.0, 0.0, 0.0], range(4))
    )
    assert (step.advantages, step.sample_mask) == ([0, 0, 0, 0], [0, 0, 0, 0])
    assert step.metrics["mask_sample/no_signal_step"] == 1.0
    assert step.metrics["mask_sample/kind/session_lost"] == 4.0


@pytest.mark.parametrize("path", bed.PATHS[:3])
def test_an_overlong_row_has_no_loss_but_keeps_its_vote(adapter, path):
    parts = bed.components(1, 4, overlong_filtering=True)
    for part in (parts["master_config"].policy["generation"]["vllm_cfg"],):
        part["max_model_len"] = 7
    results = bed.batch_of([1.0, 9.0, 1.0, 0.0], {1})
    long = results[3]["message_log"][1]
    long["token_ids"], long["generation_logprobs"] = torch.arange(4), torch.zeros(4)
    step = bed.run(path, parts, results)
    assert step.sample_mask == [1, 0, 1, 0]
    assert step.advantages == pytest.approx([1 / 3, 0.0, 1 / 3, -2 / 3])


def test_a_policy_that_cannot_work_is_refused_as_the_run_starts(adapter):
    from samplemask import ContractError

    parts = bed.components(1, 4, {"acton": "exclude"})
    with pytest.raises(ContractError, match=r"grpo\.adv_estimator\.mask_sample: .*Did you mean 'action'"):
        bed.run("grpo_train", parts, bed.batch_of(*ONE_MASKED))
