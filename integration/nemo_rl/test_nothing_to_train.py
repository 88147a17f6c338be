"""A step in which no row trains does not step NeMo-RL's optimizers."""

import bed
import bed_ppo
import pytest
import torch
from nemo_rl.algorithms import grpo, ppo
from nemo_rl.models.policy.lm_policy import Policy
from nemo_rl.models.policy.tq_policy import TQPolicy
from nemo_rl.models.value.lm_value import Value


class ReachedError(Exception):
    """The host's own training code was reached."""


def without_workers(model_class, monkeypatch):
    """A real Policy or Value whose training fails at its first look at the configuration."""
    model = object.__new__(model_class)

    class Config(dict):
        def __missing__(self, key):
            raise ReachedError(key)

    model.cfg = Config()
    return model


def begin_step_without_rows():
    """What a step does whose rows are all masked, up to the estimator."""
    estimator = grpo._create_advantage_estimator(bed.components(1, 2)["master_config"])
    flags = {"mask_sample": torch.ones(2, dtype=torch.bool)}
    prompts, rewards, mask = torch.ones(2, 1).long(), torch.ones(2), torch.ones(2, 3)
    estimator.compute_advantage(prompts, rewards, mask, repeated_batch=flags)


def batch(*sample_mask):
    return {"sample_mask": torch.tensor(sample_mask), "input_lengths": torch.ones(len(sample_mask))}


@pytest.mark.parametrize("model_class", [Policy, Value])
def test_training_is_skipped_when_no_row_of_the_batch_is_in_the_loss(adapter, monkeypatch, model_class):
    begin_step_without_rows()
    model = without_workers(model_class, monkeypatch)
    result = model.train(batch(0.0, 0.0), None)
    assert result["grad_norm"].item() == 0.0
    assert result["all_mb_metrics"]["global_valid_toks"] == [0.0]


@pytest.mark.parametrize("model_class", [Policy, Value])
def test_training_is_not_skipped_when_a_row_is_in_the_loss_or_when_evaluating(
    adapter, monkeypatch, model_class
):
    begin_step_without_rows()
    model = without_workers(model_class, monkeypatch)
    with pytest.raises(ReachedError):
        model.train(batch(0.0, 1.0), None)
    with pytest.raises(ReachedError):
        model.train(batch(0.0, 0.0), None, eval_mode=True)


def test_the_whole_grpo_loop_goes_on_after_a_fully_masked_step(adapter):
    parts = bed.components(1, 4)
    policy = parts["policy"]
    policy.train.side_effect = lambda data, loss_fn, timer=None: Policy.train(policy, data, loss_fn)
    parts["trained"].append({"advantages": torch.zeros(4, 6), "sample_mask": torch.zeros(4)})
    metrics = bed.run_grpo(parts, [bed.batch_of([1.0, 1.0, 0.0, 0.0], range(4))]).metrics
    assert policy.train.call_count == 1
    policy.worker_group.run_all_workers_sharded_data.assert_not_called()
    assert metrics["loss"] == 0.0
    assert metrics["mask_sample/no_signal_step"] == 1.0


def test_the_data_plane_skips_training_after_a_fully_masked_step(adapter):
    parts = bed.components(1, 4)
    policy = parts["policy"]
    policy.train_from_meta.side_effect = lambda meta, loss_fn, **_: TQPolicy.train_from_meta(
        policy, meta, loss_fn
    )
    metrics = bed.run_grpo_sync(parts, [bed.batch_of([1.0, 1.0, 0.0, 0.0], range(4))]).metrics
    assert policy.train_from_meta.call_count == 1
    policy._stamp_pad_seqlen.assert_not_called()
    assert metrics["grad_norm"] == 0.0


def test_the_whole_ppo_loop_goes_on_after_a_fully_masked_step(adapter):
    parts = bed_ppo.components(1, 2)
    policy, value = parts["policy"], parts["value_model"]
    policy.train.side_effect = lambda data, loss_fn, timer=None: Policy.train(policy, data, loss_fn)
    value.train.side_effect = lambda data, loss_fn, timer=None: Value.train(value, data, loss_fn)
    step = bed_ppo.run(parts, bed.batch_of([1.0, 0.0], range(2)))
    policy.worker_group.run_all_workers_sharded_data.assert_not_called()
    value.worker_group.run_all_workers_sharded_data.assert_not_called()
    assert step.metrics["critic/loss"] == 0.0
    assert step.metrics["mask_sample/no_signal_step"] == 1.0


def test_stock_ppo_stops_the_run_when_every_row_is_out_of_the_loss():
    train_data = {"token_mask": torch.ones(2, 3), "sample_mask": torch.zeros(2)}
    train_data |= {name: torch.zeros(2, 3) for name in ("prev_logprobs", "generation_logprobs")}
    with pytest.raises(RuntimeError, match="no valid response tokens"):
        ppo._apply_ppo_seq_logprob_error_masking(train_data, torch.zeros(2), None)
